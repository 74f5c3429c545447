//! Values in other types.

use super::{Base, Machine};
use crate::poly::{Condition, Kind, Poly, Symbol, Term};
use crate::token::Place;
use crate::types::{INT, Type};
use crate::value::{Integer, Value, held};
use std::collections::BTreeSet;
use std::rc::Rc;

impl Machine<'_> {
    /// Returns a value in another type.
    pub(super) fn converted(&mut self, value: Value, to: &Type, at: Place) -> Value {
        match (to, &value) {
            (Type::Integer { .. } | Type::Bool, Value::Test(_)) => return value,
            (Type::Bool, _) => return Value::Test(value.truth()),
            _ => {}
        }
        let Type::Integer { bytes, is_signed } = to else {
            return match (to, value) {
                (Type::Pointer(of, _), Value::Pointer { base: Base::Table(..), of: from, .. })
                    if **of != from =>
                {
                    Value::Pointer { base: Base::Own, offset: Poly::default(), of: (**of).clone() }
                }
                (Type::Pointer(of, _), Value::Pointer { base, offset, .. }) => {
                    Value::Pointer { base, offset, of: (**of).clone() }
                }
                (Type::Pointer(of, _), Value::Astray { base: Base::Table(..), of: from, .. })
                    if **of != from =>
                {
                    Value::Pointer { base: Base::Own, offset: Poly::default(), of: (**of).clone() }
                }
                (Type::Pointer(of, _), Value::Astray { base, why, .. }) => {
                    Value::Astray { base, of: (**of).clone(), why }
                }
                (Type::Vector(of, _), Value::Lanes(values)) => {
                    let values = spread((*values).clone(), to, at).into_iter();
                    Value::Lanes(Rc::new(values.map(|value| self.converted(value, of, at)).collect()))
                }
                (Type::Struct(of), Value::Lanes(values))
                    if of.is_vector() && values.len() == of.fields.len() =>
                {
                    let fields = of.fields.iter().zip(values.iter());
                    let fields = fields.map(|((_, of), value)| self.converted(value.clone(), of, at));
                    Value::Lanes(Rc::new(fields.collect()))
                }
                (Type::Struct(of), Value::Fields(from, values)) if *of == from => Value::Fields(from, values),
                (Type::Struct(of), Value::Lanes(values)) if values.len() == of.fields.len() => {
                    let fields = of.fields.iter().zip(values.iter());
                    let fields = fields.map(|((_, of), value)| self.converted(value.clone(), of, at));
                    Value::Fields(of.clone(), Rc::new(fields.collect()))
                }
                (Type::Vector(of, _), value @ Value::Integer(_)) => {
                    let value = self.converted(value, of, at);
                    Value::Lanes(Rc::new(spread(vec![value], to, at)))
                }
                (_, Value::Unknown(why)) => Value::Unknown(why),
                _ => Value::unknown(at, "a value of another type"),
            };
        };
        match self.numeric(value) {
            Value::Integer(of) => {
                let mut of = self.widened(of, *bytes);
                if *bytes <= 4 {
                    of.poly = self.narrowed(&of.poly);
                    if of.bytes > 4 && self.is_wide(&of.poly, &mut BTreeSet::new()) {
                        return Value::unknown(at, "a number that its type may not hold");
                    }
                }
                let is_held =
                    of.bytes <= *bytes && of.is_signed == *is_signed || of.bytes < *bytes && !of.is_signed;
                match of.poly.constant() {
                    None if *bytes < 4 && !is_held => Value::integer(self.within(to), to),
                    Some(value) => Value::integer(Poly::from(held(value, *bytes, *is_signed)), to),
                    _ => Value::integer(of.poly, to),
                }
            }
            Value::Unknown(_) if *bytes < 4 => Value::integer(self.within(to), to),
            Value::Unknown(why) => Value::Unknown(why),
            _ => Value::unknown(at, "a conversion to an integer"),
        }
    }

    /// Returns an integer as a type of so many bytes needs it: an unsigned one of 4 bytes that may be
    /// negative here is another number in a type of 8 bytes.
    pub(super) fn widened(&mut self, of: Integer, bytes: u64) -> Integer {
        if of.is_signed || of.bytes != 4 || bytes <= 4 || self.is_natural(&of.poly) {
            return of;
        }
        let span = Poly::from(1 << 32);
        let poly = match of.poly.constant() {
            Some(value) => Poly::from(value.rem_euclid(1 << 32)),
            None => self.term(Term { wraps: 32, ..Term::new(Kind::Remainder, &of.poly, &span) }),
        };
        Integer { poly, ..of }
    }

    /// Returns whether a number is a sum of products of numbers that are never negative, such as quotients
    /// and remainders of unsigned ones.
    pub(super) fn is_natural(&self, poly: &Poly) -> bool {
        poly.products().all(|(symbols, factor)| {
            let is_natural = |symbol: &Symbol| match symbol {
                Symbol::Argument(_) | Symbol::Some(_) => false,
                Symbol::Term(term) => {
                    let Term { kind, wraps, .. } = &self.trace.terms[*term];
                    *wraps > 0 && matches!(kind, Kind::Quotient | Kind::Remainder)
                }
                _ => true,
            };
            factor >= 0 && symbols.iter().all(is_natural)
        })
    }

    /// Returns the number that a term has [widened](Self::widened).
    fn wide(&self, term: usize) -> Option<&Poly> {
        let Term { kind, one, other, wraps, .. } = &self.trace.terms[term];
        (*kind == Kind::Remainder && *wraps == 32 && other.constant() == Some(1 << 32)).then_some(one)
    }

    /// Returns whether a number depends on one that was widened.
    fn is_wide(&self, poly: &Poly, seen: &mut BTreeSet<usize>) -> bool {
        poly.products().flat_map(|(symbols, _)| symbols).any(|symbol| match symbol {
            Symbol::Term(term) if seen.insert(*term) => {
                let Term { one, other, .. } = &self.trace.terms[*term];
                self.wide(*term).is_some() || self.is_wide(one, seen) || self.is_wide(other, seen)
            }
            _ => false,
        })
    }

    /// Returns a number as a type of 4 bytes has it: see [`widened`](Self::widened).
    pub(super) fn narrowed(&self, poly: &Poly) -> Poly {
        let of_wide = |symbol: &Symbol| match symbol {
            Symbol::Term(term) => self.wide(*term).map(|one| (*symbol, one.clone())),
            _ => None,
        };
        let mut poly = poly.clone();
        while !poly.is_excessive() {
            let wide = poly.products().flat_map(|(symbols, _)| symbols).find_map(of_wide);
            let Some((symbol, by)) = wide else { break };
            poly = poly.with(symbol, &by);
        }
        poly
    }

    /// Returns some number of a type of one or two bytes.
    pub(super) fn within(&mut self, of: &Type) -> Poly {
        let Type::Integer { bytes, is_signed } = of else { return Poly::default() };
        let span = 1_i128 << (8 * bytes);
        let least = if *is_signed { -span / 2 } else { 0 };
        self.some(least, least + span - 1)
    }

    /// Returns a test as a number.
    pub(super) fn numeric(&mut self, value: Value) -> Value {
        match value {
            Value::Test(condition) => match condition {
                Condition::All(of) if of.is_empty() => Value::integer(Poly::from(1), &INT),
                Condition::Any(of) if of.is_empty() => Value::integer(Poly::from(0), &INT),
                _ => Value::integer(self.some(0, 1), &INT),
            },
            value => value,
        }
    }
}

/// Returns the elements of a vector of this type: one value is that of all.
pub(super) fn spread(mut values: Vec<Value>, of: &Type, at: Place) -> Vec<Value> {
    let count = match of {
        Type::Vector(_, count) => *count as usize,
        Type::Struct(of) => of.fields.len(),
        _ => values.len(),
    };
    if let [value] = &values[..] {
        return vec![value.clone(); count];
    }
    values.resize(count, Value::unknown(at, "an element without a value"));
    values
}
