//! Integers of a kernel as polynomials of what is known before it runs.
//!
//! An index such as `(y - 1) * n + x` is a polynomial of work-item numbers, numbers of turns of loops, and
//! scalar arguments. What is no polynomial, such as a quotient, is a *term*: a symbol with a definition.

use std::collections::BTreeMap;
use std::ops::{Add, Mul, Neg, Sub};

/// What a polynomial consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Symbol {
    /// The signed argument at this position of the kernel's parameters.
    Argument(usize),
    /// The unsigned argument at this position of the kernel's parameters.
    Unsigned(usize),
    /// The number of a work-item along an axis, in the whole run.
    Item(usize),
    /// The number of a work-group along an axis.
    Group(usize),
    /// The number of a work-item in its group.
    Local(usize),
    /// The work-items of a group.
    GroupSize(usize),
    /// The work-items of the run.
    Size(usize),
    /// The number of a loop's turn: each number from 0 on occurs, as far as the conditions permit.
    Turn(usize),
    /// A number that has one unknown value, as far as the conditions permit.
    Some(usize),
    /// A term by its number.
    Term(usize),
}

/// A sum of products of symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Poly(BTreeMap<Vec<Symbol>, i128>);

/// A number that is no polynomial: an operation of two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Term {
    pub(crate) kind: Kind,
    pub(crate) one: Poly,
    pub(crate) other: Poly,
    /// The bits of the operands if they are unsigned: a negative or a larger one is another number then.
    /// Otherwise 0.
    pub(crate) wraps: u64,
    /// A choice of one of both is another number than each other choice. Otherwise 0.
    pub(crate) choice: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Rounded towards zero.
    Quotient,
    /// With the sign of the first.
    Remainder,
    Min,
    Max,
    /// One of both, unknown which.
    Either,
}

impl Term {
    pub(crate) fn new(kind: Kind, one: &Poly, other: &Poly) -> Self {
        Self { kind, one: one.clone(), other: other.clone(), wraps: 0, choice: 0 }
    }
}

/// The largest absolute value of a coefficient. Larger ones are no numbers of a kernel.
const LIMIT: i128 = 1 << 80;
/// The most products of a polynomial.
const PRODUCTS: usize = 64;
/// The most symbols of a product.
const SYMBOLS: usize = 6;

impl Poly {
    pub(crate) fn symbol(symbol: Symbol) -> Self {
        Self(BTreeMap::from([(vec![symbol], 1)]))
    }

    /// Returns the number, if there are no symbols.
    pub(crate) fn constant(&self) -> Option<i128> {
        match self.0.len() {
            0 => Some(0),
            1 => self.0.get(&Vec::new()).copied(),
            _ => None,
        }
    }

    pub(crate) fn products(&self) -> impl Iterator<Item = (&[Symbol], i128)> {
        self.0.iter().map(|(symbols, factor)| (&symbols[..], *factor))
    }

    /// Returns whether the polynomial is a sum of products of numbers that are never negative.
    pub(crate) fn is_count(&self) -> bool {
        let is_signed =
            |symbol: &Symbol| matches!(symbol, Symbol::Argument(_) | Symbol::Some(_) | Symbol::Term(_));
        self.0.iter().all(|(symbols, factor)| *factor >= 0 && !symbols.iter().any(is_signed))
    }

    /// Returns whether the polynomial is too large to be followed.
    pub(crate) fn is_excessive(&self) -> bool {
        self.0.len() > PRODUCTS
            || self.0.iter().any(|(symbols, factor)| symbols.len() > SYMBOLS || factor.abs() > LIMIT)
    }

    /// Replaces a symbol.
    pub(crate) fn with(&self, symbol: Symbol, by: &Self) -> Self {
        let mut all = Self::default();
        for (symbols, factor) in self.products() {
            let mut product = Self::from(factor);
            for found in symbols {
                product = if *found == symbol { &product * by } else { &product * &Self::symbol(*found) };
            }
            all = &all + &product;
        }
        all
    }

    fn insert(&mut self, symbols: Vec<Symbol>, factor: i128) {
        let sum = self.0.entry(symbols).or_insert(0);
        // A saturated factor is excessive.
        *sum = sum.saturating_add(factor);
        if *sum == 0 {
            self.0.retain(|_, factor| *factor != 0);
        }
    }
}

impl From<i128> for Poly {
    fn from(value: i128) -> Self {
        let mut poly = Self::default();
        poly.insert(Vec::new(), value);
        poly
    }
}

impl Add for &Poly {
    type Output = Poly;

    fn add(self, other: Self) -> Poly {
        let mut sum = self.clone();
        other.products().for_each(|(symbols, factor)| sum.insert(symbols.to_vec(), factor));
        sum
    }
}

impl Neg for &Poly {
    type Output = Poly;

    fn neg(self) -> Poly {
        Poly(self.0.iter().map(|(symbols, factor)| (symbols.clone(), factor.saturating_neg())).collect())
    }
}

impl Sub for &Poly {
    type Output = Poly;

    fn sub(self, other: Self) -> Poly {
        self + &-other
    }
}

impl Mul for &Poly {
    type Output = Poly;

    fn mul(self, other: Self) -> Poly {
        let mut product = Poly::default();
        for (left, one) in self.products() {
            for (right, factor) in other.products() {
                let mut symbols = [left, right].concat();
                symbols.sort_unstable();
                product.insert(symbols, one.saturating_mul(factor));
            }
        }
        product
    }
}

/// What holds where something is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Condition {
    /// The polynomial is at least 0.
    AtLeastZero(Poly),
    All(Vec<Self>),
    Any(Vec<Self>),
    /// It depends on data. Conditions of one branch have a number, and its two sides are opposites.
    Unknown(usize, bool),
}

impl Condition {
    pub(crate) fn certain(is_true: bool) -> Self {
        if is_true { Self::All(Vec::new()) } else { Self::Any(Vec::new()) }
    }

    pub(crate) const UNKNOWN: Self = Self::Unknown(0, true);

    pub(crate) fn less(one: &Poly, other: &Poly) -> Self {
        Self::AtLeastZero(&(other - one) - &Poly::from(1))
    }

    pub(crate) fn at_least(one: &Poly, other: &Poly) -> Self {
        Self::AtLeastZero(one - other)
    }

    pub(crate) fn equal(one: &Poly, other: &Poly) -> Self {
        Self::All(vec![Self::at_least(one, other), Self::at_least(other, one)])
    }

    pub(crate) fn negated(&self) -> Self {
        let all = |of: &[Self]| of.iter().map(Self::negated).collect();
        match self {
            Self::AtLeastZero(poly) => Self::less(poly, &Poly::from(0)),
            Self::All(of) => Self::Any(all(of)),
            Self::Any(of) => Self::All(all(of)),
            Self::Unknown(branch, side) => Self::Unknown(*branch, !side),
        }
    }

    /// Returns the condition with a number for its parts that depend on data.
    pub(crate) fn numbered(&self, branch: usize) -> Self {
        let all = |of: &[Self]| of.iter().map(|of| of.numbered(branch)).collect();
        match self {
            Self::AtLeastZero(poly) => Self::AtLeastZero(poly.clone()),
            Self::All(of) => Self::All(all(of)),
            Self::Any(of) => Self::Any(all(of)),
            Self::Unknown(_, side) => Self::Unknown(branch, *side),
        }
    }

    /// Returns whether a part of it depends on data, without the number of a branch.
    pub(crate) fn has_unnumbered(&self) -> bool {
        match self {
            Self::AtLeastZero(_) => false,
            Self::All(of) | Self::Any(of) => of.iter().any(Self::has_unnumbered),
            Self::Unknown(branch, _) => *branch == 0,
        }
    }

    /// Calls a function with each polynomial.
    pub(crate) fn each(&self, call: &mut dyn FnMut(&Poly)) {
        match self {
            Self::AtLeastZero(poly) => call(poly),
            Self::All(of) | Self::Any(of) => of.iter().for_each(|of| of.each(call)),
            Self::Unknown(..) => {}
        }
    }

    pub(crate) fn with(&self, symbol: Symbol, by: &Poly) -> Self {
        let all = |of: &[Self]| of.iter().map(|of| of.with(symbol, by)).collect();
        match self {
            Self::AtLeastZero(poly) => Self::AtLeastZero(poly.with(symbol, by)),
            Self::All(of) => Self::All(all(of)),
            Self::Any(of) => Self::Any(all(of)),
            Self::Unknown(branch, side) => Self::Unknown(*branch, *side),
        }
    }

    /// Returns whether a part of it depends on data.
    pub(crate) fn is_unknown(&self) -> bool {
        match self {
            Self::AtLeastZero(_) => false,
            Self::All(of) | Self::Any(of) => of.iter().any(Self::is_unknown),
            Self::Unknown(..) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polynomials_are_sums_of_products() {
        let (x, n) = (Poly::symbol(Symbol::Item(0)), Poly::symbol(Symbol::Argument(1)));
        let one = Poly::from(1);
        let index = &(&(&x + &one) * &n) - &n;
        assert_eq!(index, &x * &n);
        assert_eq!((&index - &(&n * &x)).constant(), Some(0));
        assert_eq!(index.with(Symbol::Argument(1), &Poly::from(16)), &x * &Poly::from(16));
        assert_eq!(index.constant(), None);
    }

    #[test]
    fn conditions_are_negated() {
        let x = Poly::symbol(Symbol::Item(0));
        let is_small = Condition::less(&x, &Poly::from(8));
        assert_eq!(is_small.negated(), Condition::at_least(&x, &Poly::from(8)));
        assert_eq!(is_small.negated().negated(), is_small);
        assert!(Condition::All(vec![is_small, Condition::UNKNOWN]).negated().is_unknown());
    }
}
