//! A checked byte range.

use std::fmt;
use std::ops::Range;

/// A half-open range of bytes `[start, end)` with `start <= end`, which is checked at construction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    start: u64,
    end: u64,
}

impl Span {
    /// Creates the range from `start` to `end`.
    ///
    /// # Panics
    /// When `start > end`. For ranges from callers use [`Span::checked`].
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        assert!(start <= end, "a span ends at or after its start");
        Self { start, end }
    }

    /// Returns the range, if it is well-formed and ends within `len`.
    #[must_use]
    pub const fn checked(range: &Range<u64>, len: u64) -> Option<Self> {
        if range.start <= range.end && range.end <= len {
            Some(Self { start: range.start, end: range.end })
        } else {
            None
        }
    }

    /// Returns the first byte.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the byte after the last one.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Returns whether the range is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns whether the two ranges share a byte. An empty range overlaps nothing.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end && !self.is_empty() && !other.is_empty()
    }

    /// Returns the bytes in both ranges, if there are any.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        self.overlaps(other)
            .then(|| Self { start: self.start.max(other.start), end: self.end.min(other.end) })
    }

    /// Returns whether every byte of `other` is in this range.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// Returns the range as a standard range.
    #[must_use]
    pub const fn to_range(self) -> Range<u64> {
        self.start..self.end
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_range_overlaps_nothing() {
        assert!(!Span::new(3, 3).overlaps(Span::new(0, 10)));
        assert!(Span::new(0, 10).contains(Span::new(3, 3)));
        assert_eq!(Span::new(0, 5).intersection(Span::new(5, 9)), None);
        assert_eq!(Span::new(0, 6).intersection(Span::new(5, 9)), Some(Span::new(5, 6)));
    }

    #[test]
    fn ranges_from_outside_are_checked() {
        assert_eq!(Span::checked(&(2..5), 5), Some(Span::new(2, 5)));
        assert_eq!(Span::checked(&(2..6), 5), None);
        #[expect(clippy::reversed_empty_ranges, reason = "the malformed range is the point")]
        let reversed = 5..2;
        assert_eq!(Span::checked(&reversed, 9), None);
    }
}
