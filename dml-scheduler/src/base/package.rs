//! Packages: the portions of the work that units compute.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// A unit: one device that takes part in a co-execution. The number is its index in the list of devices of the run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct UnitId(pub usize);

impl fmt::Debug for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.0)
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A contiguous, never empty portion of the work, handed to one unit.
///
/// Only a [`Splitter`](crate::Splitter) makes packages. Its items belong to one unit until the package is completed or
/// given back.
///
/// # Shape and units
/// The range counts work-items from the start of the work. It starts at a multiple of the local work size, and ends at
/// such a multiple or at the end of the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    range: Range<u64>,
    unit: UnitId,
    index: u64,
}

impl Package {
    pub(crate) const fn new(range: Range<u64>, unit: UnitId, index: u64) -> Self {
        Self { range, unit, index }
    }

    /// The items to compute.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.range.start..self.range.end
    }

    /// The first item.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.range.start
    }

    /// The item after the last one.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.range.end
    }

    /// The number of items, at least 1.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The unit that computes the package.
    #[must_use]
    pub const fn unit(&self) -> UnitId {
        self.unit
    }

    /// The place in the order in which the run's packages were handed out, from 0; unique in the run.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "package {} of {} (items {}..{})", self.index, self.unit, self.range.start, self.range.end)
    }
}
