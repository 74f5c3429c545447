//! The cost of a copy, in nanoseconds.

use std::fmt;
use std::ops::Add;

/// An estimated duration in whole nanoseconds. Sums saturate: they never wrap, and never become infeasible by
/// themselves.
///
/// # Shape and units
/// Nanoseconds. [`Cost::INFEASIBLE`] is not a duration; it marks a copy that cannot be done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cost(u64);

impl Cost {
    /// A duration of zero.
    pub const ZERO: Self = Self(0);
    /// The longest duration that is still feasible.
    pub const LONGEST: Self = Self(u64::MAX - 1);
    /// The mark of a copy that cannot be done.
    pub const INFEASIBLE: Self = Self(u64::MAX);

    /// Creates a cost of `ns` nanoseconds, at most [`Cost::LONGEST`].
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        if ns == u64::MAX { Self::LONGEST } else { Self(ns) }
    }

    /// Returns the latency plus the size over the bandwidth.
    ///
    /// # Shape and units
    /// `latency_ns` in nanoseconds, `bytes` in bytes, `bytes_per_s` in bytes per second. A bandwidth of zero
    /// is infeasible unless `bytes` is zero.
    #[must_use]
    pub const fn of_transfer(latency_ns: u64, bytes: u64, bytes_per_s: u64) -> Self {
        if bytes == 0 {
            return Self::from_ns(latency_ns);
        }
        if bytes_per_s == 0 {
            return Self::INFEASIBLE;
        }
        let ns = (bytes as u128 * 1_000_000_000) / bytes_per_s as u128 + latency_ns as u128;
        if ns >= u64::MAX as u128 { Self::LONGEST } else { Self(ns as u64) }
    }

    /// Returns the nanoseconds, or `None` if infeasible.
    #[must_use]
    pub const fn as_ns(self) -> Option<u64> {
        if self.0 == u64::MAX { None } else { Some(self.0) }
    }

    /// Returns whether the copy can be done at all.
    #[must_use]
    pub const fn is_feasible(self) -> bool {
        self.0 != u64::MAX
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        if self.is_feasible() && other.is_feasible() {
            Self(self.0.saturating_add(other.0).min(Self::LONGEST.0))
        } else {
            Self::INFEASIBLE
        }
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_ns() {
            Some(ns) => write!(f, "{ns} ns"),
            None => f.write_str("infeasible"),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_saturates_below_infeasible() {
        assert_eq!(Cost::LONGEST + Cost::LONGEST, Cost::LONGEST);
        assert_eq!(Cost::LONGEST + Cost::from_ns(1), Cost::LONGEST);
        assert_eq!(Cost::INFEASIBLE + Cost::ZERO, Cost::INFEASIBLE);
        assert_eq!(Cost::from_ns(u64::MAX), Cost::LONGEST);
    }

    #[test]
    fn a_cost_says_its_nanoseconds() {
        assert_eq!(
            (Cost::from_ns(1010).to_string(), format!("{:?}", Cost::ZERO)),
            ("1010 ns".into(), "0 ns".into())
        );
        assert_eq!(Cost::INFEASIBLE.to_string(), "infeasible");
    }

    #[test]
    fn a_transfer_is_latency_plus_size_over_bandwidth() {
        assert_eq!(Cost::of_transfer(10, 1000, 1_000_000_000), Cost::from_ns(1010));
        assert_eq!(Cost::of_transfer(10, 0, 0), Cost::from_ns(10));
        assert_eq!(Cost::of_transfer(10, 1, 0), Cost::INFEASIBLE);
        assert_eq!(Cost::of_transfer(0, u64::MAX, 1), Cost::LONGEST);
    }
}
