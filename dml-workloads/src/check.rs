//! The finding of a check: the first wrong item of an output.

use std::fmt;
use thiserror::Error;

/// One value of an output, or a count of them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A real number in double precision.
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

/// The first item of an output that differs from the expected one.
///
/// It is the first one even if a parallel check visits items in another order. So two runs are comparable,
/// and the item identifies the package that went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("{what}: item {item} is {found}, expected {expected}")]
pub struct Mismatch {
    /// Global number of the item. In an output of the wrong length, the first missing or surplus item.
    pub item: u64,
    /// Value that the check computed.
    pub expected: Value,
    /// Value in the output.
    pub found: Value,
    /// Name of the compared value.
    pub what: &'static str,
}

impl Mismatch {
    /// Compares the length of an output with the expected one. Lengths are in elements; an item has
    /// `per_item` elements.
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
