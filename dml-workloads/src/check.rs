//! What a check says when an output is wrong.

use std::fmt;
use thiserror::Error;

/// One value of an output, or a count of them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A real number, in the precision of the check.
    Real(f64),
    /// A pixel: red, green, blue, alpha.
    Pixel([u8; 4]),
    /// A number of elements.
    Count(u64),
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Real(value) => write!(formatter, "{value:e}"),
            Self::Pixel([red, green, blue, alpha]) => {
                write!(formatter, "rgba({red}, {green}, {blue}, {alpha})")
            }
            Self::Count(count) => write!(formatter, "{count}"),
        }
    }
}

/// The first item of an output that is not what the check expects.
///
/// Naming the first one, whatever the order in which a parallel check looks, makes two runs comparable and points at
/// the package that went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("{what}: item {item} is {found}, expected {expected}")]
pub struct Mismatch {
    /// The global number of the item; for an output of the wrong length, the first item that is missing or too many.
    pub item: u64,
    /// What the check computed.
    pub expected: Value,
    /// What the output holds.
    pub found: Value,
    /// What was compared.
    pub what: &'static str,
}

impl Mismatch {
    /// Compares the length of an output, in elements of which every item has `per_item`.
    ///
    /// # Errors
    /// A [`Mismatch`] of [`Value::Count`]s when the lengths differ.
    pub(crate) fn of_length(
        what: &'static str,
        expected: usize,
        found: usize,
        per_item: u64,
    ) -> Result<(), Self> {
        if expected == found {
            return Ok(());
        }
        let (expected, found) = (expected as u64, found as u64);
        Err(Self {
            item: expected.min(found) / per_item,
            expected: Value::Count(expected),
            found: Value::Count(found),
            what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatch_names_item_and_values() {
        let mismatch = Mismatch {
            item: 12,
            expected: Value::Pixel([1, 2, 3, 4]),
            found: Value::Real(0.5),
            what: "output of a test",
        };
        assert_eq!(mismatch.to_string(), "output of a test: item 12 is 5e-1, expected rgba(1, 2, 3, 4)");
    }

    #[test]
    fn length_mismatch_names_the_first_item_at_fault() {
        assert_eq!(Mismatch::of_length("length", 8, 8, 4), Ok(()));
        let mismatch = Mismatch::of_length("length", 16, 9, 4).unwrap_err();
        assert_eq!((mismatch.item, mismatch.found), (2, Value::Count(9)));
    }
}
