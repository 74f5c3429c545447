//! Bytes that the packages of a run touch: acquired ranges, results, and the partials of reductions.

use super::footprint::{FootprintError, FootprintFault};
use super::reduction::Wait;
use super::{Argument, Kernel, Touched};
use crate::base::cancel::Interrupted;
use crate::base::package::Package;
use crate::report::RunError;
use dml_core::{Access, Acquire, DeviceId, Platform, RawBuffer};
use std::error::Error;
use std::ops::Range;
use std::panic::Location;

impl Kernel {
    /// Returns whether every result byte of a computed package can be read from some arena.
    pub(crate) fn has_results(&self, package: &Package) -> bool {
        let mut written = self.arguments.iter().filter(|argument| argument.access().writes());
        written.all(|argument| argument.is_readable(package))
    }

    /// Returns whether every input byte of a package can be read from some arena.
    pub(crate) fn has_inputs(&self, package: &Package) -> bool {
        // A recomputed package adds to the partial of another unit.
        let is_input = |argument: &&Argument| argument.access().reads() && !argument.is_reduced();
        let mut read = self.arguments.iter().filter(is_input);
        read.all(|argument| argument.is_readable(package))
    }

    /// Returns whether a computed package can be recomputed without changing its inputs a second time.
    ///
    /// A package with bytes in read-write arguments cannot. Nor can one whose footprint has become invalid:
    /// the bytes that it changed are unknown.
    pub(crate) fn is_repeatable(&self, package: &Package) -> bool {
        let is_changed =
            |argument: &&Argument| argument.access() == Access::ReadWrite && !argument.is_reduced();
        let mut changed = self.arguments.iter().filter(is_changed);
        changed.all(|argument| {
            argument.ranges(package.range()).is_ok_and(|ranges| ranges.iter().all(Range::is_empty))
        })
    }

    /// Returns the ranges of each argument that the items touch, in the order of the arguments.
    ///
    /// # Errors
    /// [`FootprintError`] for the first invalid footprint.
    pub(crate) fn ranges(&self, items: Range<u64>) -> Result<Vec<Touched<'_>>, FootprintError> {
        let of = |(index, argument): (usize, _)| {
            let ranges = Argument::ranges(argument, items.clone());
            ranges
                .map(|ranges| (argument, ranges))
                .map_err(|cause| self.at_fault(index, items.clone(), cause))
        };
        self.arguments.iter().enumerate().map(of).collect()
    }

    pub(super) fn at_fault(
        &self,
        argument: usize,
        items: Range<u64>,
        cause: FootprintFault,
    ) -> FootprintError {
        let (kernel, buffer) = (self.name.clone(), self.arguments[argument].buffer().name());
        FootprintError { kernel, argument: self.position(argument), buffer, items, cause }
    }

    /// Returns the request for the package's part of every argument, range by range.
    ///
    /// # Errors
    /// As [`ranges`](Self::ranges).
    pub(crate) fn acquire(
        &self,
        platform: &Platform,
        device: DeviceId,
        package: &Package,
    ) -> Result<Acquire<'_>, FootprintError> {
        let mut acquire = platform.acquire(device);
        if let Some(origin) = self.asked_at {
            acquire = acquire.located_at(origin);
        }
        for (argument, ranges) in self.ranges(package.range())? {
            for bytes in ranges {
                acquire = acquire.access_range(argument.buffer_of(package), bytes, argument.access());
            }
        }
        Ok(acquire)
    }

    /// Returns the parts of buffers that a package wrote.
    ///
    /// # Errors
    /// As [`ranges`](Self::ranges).
    pub(crate) fn results(&self, package: &Package) -> Result<Vec<(&RawBuffer, Range<u64>)>, FootprintError> {
        let written =
            self.ranges(package.range())?.into_iter().filter(|(argument, _)| argument.access().writes());
        let parts = written.flat_map(|(argument, ranges)| {
            ranges.into_iter().map(|bytes| (argument.buffer_of(package), bytes))
        });
        Ok(parts.collect())
    }

    /// Returns the parts of buffers that a package reads and changes.
    ///
    /// Invalid footprints are left out: no unit has acquired their bytes.
    pub(crate) fn changed(&self, package: &Package) -> Vec<(&RawBuffer, Range<u64>)> {
        let changed = self.arguments.iter().filter(|argument| argument.access() == Access::ReadWrite);
        let ranges = |argument: &Argument| argument.ranges(package.range()).unwrap_or_default();
        changed
            .flat_map(|argument| {
                ranges(argument).into_iter().map(|bytes| (argument.buffer_of(package), bytes))
            })
            .collect()
    }

    /// Returns a copy of the kernel for a run of `items` items, in which each unit has its own partials.
    pub(crate) fn for_run(
        &self,
        units: usize,
        items: u64,
        asked_at: &'static Location<'static>,
    ) -> Result<Self, RunError> {
        let mut own = self.clone();
        own.total = items;
        own.asked_at = Some(asked_at);
        for (index, argument) in self.arguments.iter().enumerate() {
            own.arguments[index] =
                argument.for_run(units).map_err(|cause| self.not_reduced(index, &*cause))?;
        }
        Ok(own)
    }

    /// Combines the partials of a run in which all items were computed.
    ///
    /// `has_added` selects the units whose packages count. Another unit's partial may be corrupt.
    pub(crate) fn combine(&self, has_added: &[bool], wait: Wait<'_>) -> Result<(), RunError> {
        for (index, argument) in self.arguments.iter().enumerate() {
            argument.combine(has_added, wait).map_err(|cause| {
                if cause.is::<Interrupted>() {
                    let kernel = self.name.clone();
                    RunError::Cancelled { kernel, missing: 0, failures: Vec::new() }
                } else {
                    self.not_reduced(index, &*cause)
                }
            })?;
        }
        Ok(())
    }

    /// Initializes the partials once more, for another run.
    pub(crate) fn clear(&self) -> Result<(), RunError> {
        self.arguments.iter().enumerate().try_for_each(|(index, argument)| {
            argument.clear().map_err(|cause| self.not_reduced(index, &*cause))
        })
    }

    fn not_reduced(&self, index: usize, cause: &dyn Error) -> RunError {
        RunError::Reduction {
            kernel: self.name.clone(),
            index: self.position(index),
            buffer: self.arguments[index].buffer().name(),
            cause: cause.to_string(),
        }
    }
}
