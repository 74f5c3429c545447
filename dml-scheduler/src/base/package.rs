//! Packages: the portions of the work that units compute.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// A unit: one device that takes part in a co-execution.
///
/// The number is the device's index in the run's list of devices: that of
/// [`Coexecutor::devices`](crate::Coexecutor::devices), or else the platform's devices with a variant, in
/// order.
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

/// A contiguous, nonempty portion of the work, handed to one unit.
///
/// Only a [`Splitter`](crate::policy::Splitter) creates packages. A package's items belong to its unit until the
/// package is completed or given back.
///
/// # Shape and units
/// The range counts work-items from the start of the work. It starts at a multiple of the local work size,
/// and ends at such a multiple or at the end of the work.
///
/// # Examples
/// ```
/// use dml_scheduler::UnitId;
/// use dml_scheduler::policy::{Assignment, PolicySpec};
///
/// let mut splitter = PolicySpec::Static.splitter(&[1.0, 3.0], 1024, 64)?;
/// let Assignment::Package(package) = splitter.assign(UnitId(1)) else { unreachable!("it is the first") };
/// assert_eq!((package.range(), package.items()), (256..1024, 768));
/// // ... compute the items ...
/// splitter.complete(&package)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    /// Returns the items to compute.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.range.start..self.range.end
    }

    /// Returns the first item.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.range.start
    }

    /// Returns the item after the last one.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.range.end
    }

    /// Returns the number of items, at least 1.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the unit that computes the package.
    #[must_use]
    pub const fn unit(&self) -> UnitId {
        self.unit
    }

    /// Returns the package's position in the order of hand-out, from 0; unique in the run.
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
