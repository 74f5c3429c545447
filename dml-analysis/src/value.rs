//! What is known of a value.

use crate::poly::{Condition, Poly};
use crate::token::Place;
use crate::types::{Struct, Type};
use std::rc::Rc;

/// The memory that a pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The buffer that is the argument at this position.
    Argument(usize),
    /// Memory of a work-item or a work-group.
    Own,
    /// A variable outside functions.
    Module,
    /// A constant array of integers, with the least and the greatest.
    Table(i128, i128),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Integer(Integer),
    /// The result of a comparison.
    Test(Condition),
    /// `offset` is in bytes.
    Pointer {
        base: Base,
        offset: Poly,
        of: Type,
    },
    /// A pointer into memory, at an unknown place.
    Astray {
        base: Base,
        of: Type,
        why: Why,
    },
    /// The elements of a vector, or of a structure whose fields are called as those.
    Lanes(Rc<Vec<Value>>),
    /// The fields of another structure.
    Fields(Rc<Struct>, Rc<Vec<Value>>),
    Unknown(Why),
}

/// An integer, which is that of the kernel as long as its type can hold it. An unsigned one that is negative
/// here is large there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Integer {
    pub(crate) poly: Poly,
    pub(crate) bytes: u64,
    pub(crate) is_signed: bool,
}

/// Why a value is unknown, and where that begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Why {
    pub(crate) at: Place,
    pub(crate) what: &'static str,
}

impl Value {
    pub(crate) fn unknown(at: Place, what: &'static str) -> Self {
        Self::Unknown(Why { at, what })
    }

    pub(crate) fn integer(poly: Poly, of: &Type) -> Self {
        match *of {
            Type::Integer { bytes, is_signed } => Self::Integer(Integer { poly, bytes, is_signed }),
            _ => Self::Integer(Integer { poly, bytes: 4, is_signed: true }),
        }
    }

    /// Returns the value of a known `bool`.
    pub(crate) fn flag(&self) -> Option<bool> {
        match self {
            Self::Integer(Integer { poly, bytes: 1, .. }) => {
                poly.constant().filter(|value| (0..=1).contains(value)).map(|value| value == 1)
            }
            Self::Test(Condition::All(of)) if of.is_empty() => Some(true),
            Self::Test(Condition::Any(of)) if of.is_empty() => Some(false),
            _ => None,
        }
    }

    /// Returns whether the value is that of a `bool`, known or not.
    pub(crate) fn is_flag(&self) -> bool {
        matches!(self, Self::Test(_)) || self.flag().is_some()
    }

    /// Returns the condition under which the value is not 0.
    pub(crate) fn truth(&self) -> Condition {
        match self {
            Self::Test(condition) => condition.clone(),
            Self::Integer(Integer { poly, .. }) => match poly.constant() {
                Some(value) => Condition::certain(value != 0),
                None => Condition::equal(poly, &Poly::from(0)).negated(),
            },
            _ => Condition::UNKNOWN,
        }
    }

    /// Returns why the value cannot place an element.
    pub(crate) fn why(&self, at: Place) -> Why {
        match self {
            Self::Unknown(why) | Self::Astray { why, .. } => why.clone(),
            _ => Why { at, what: "an index that is no integer" },
        }
    }
}

impl Integer {
    /// Returns whether an operation with another integer is unsigned.
    pub(crate) fn is_unsigned_with(&self, other: &Self) -> bool {
        let wide = |this: &Self| this.bytes.max(4);
        let is_unsigned =
            |this: &Self, that: &Self| !this.is_signed && this.bytes >= 4 && wide(this) >= wide(that);
        is_unsigned(self, other) || is_unsigned(other, self)
    }

    /// Returns the bits of an operation with another integer if it is unsigned, otherwise 0.
    pub(crate) fn wraps_with(&self, other: &Self) -> u64 {
        if self.is_unsigned_with(other) { 8 * self.bytes.max(other.bytes).max(4) } else { 0 }
    }

    /// Returns the number for an operation with another integer, if it is constant, as the kernel has it.
    pub(crate) fn number(&self, other: &Self) -> Option<i128> {
        let bits = self.wraps_with(other);
        self.poly.constant().map(|value| if bits > 0 { value.rem_euclid(1 << bits) } else { value })
    }

    /// Returns the value for a sum with another integer: for large unsigned constants, the negative number
    /// with the same effect.
    pub(crate) fn wrapped(&self, other: &Self) -> Poly {
        let bits = self.wraps_with(other);
        match self.poly.constant() {
            Some(value) if bits > 0 && value >= 1 << (bits - 1) => Poly::from(value - (1 << bits)),
            _ => self.poly.clone(),
        }
    }

    /// Returns the result of an operation of both.
    pub(crate) fn joined(&self, other: &Self, poly: Poly) -> Self {
        let bytes = self.bytes.max(other.bytes).max(4);
        Self { poly, bytes, is_signed: !self.is_unsigned_with(other) }
    }

    /// Returns the condition that this integer is less than another one.
    pub(crate) fn less(&self, other: &Self) -> Condition {
        let (one, two) = (&self.poly, &other.poly);
        let is_less = Condition::less(one, two);
        if !self.is_unsigned_with(other) {
            return is_less;
        }
        if [one, two].iter().any(|poly| poly.constant().is_some_and(|value| value > i128::from(i32::MAX))) {
            return Condition::UNKNOWN;
        }
        let zero = Poly::from(0);
        // What is negative here is large there.
        let is_one_small = || Condition::at_least(one, &zero);
        let is_two_large = || Condition::less(two, &zero);
        match (one.is_count(), two.is_count()) {
            (true, true) => is_less,
            (true, false) => Condition::Any(vec![is_less, is_two_large()]),
            (false, true) => Condition::All(vec![is_one_small(), is_less]),
            (false, false) => Condition::Any(vec![
                Condition::All(vec![is_one_small(), Condition::Any(vec![is_less.clone(), is_two_large()])]),
                Condition::All(vec![is_two_large(), is_less]),
            ]),
        }
    }

    pub(crate) fn equals(&self, other: &Self) -> Condition {
        let is_large = |poly: &Poly| poly.constant().is_some_and(|value| value > i128::from(i32::MAX));
        if self.is_unsigned_with(other) && (is_large(&self.poly) || is_large(&other.poly)) {
            return Condition::UNKNOWN;
        }
        Condition::equal(&self.poly, &other.poly)
    }
}

/// Returns what a type of so many bytes makes of a number. Large unsigned numbers stay negative ones.
pub(crate) fn held(value: i128, bytes: u64, is_signed: bool) -> i128 {
    let span = 1_i128 << (8 * bytes.min(8));
    let value_in_span = value.rem_euclid(span);
    match is_signed {
        true if value_in_span >= span / 2 => value_in_span - span,
        // Large unsigned numbers are negative ones.
        false if bytes >= 4 && value_in_span >= span / 2 => value_in_span - span,
        _ => value_in_span,
    }
}
