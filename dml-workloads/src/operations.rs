//! The numbers of calls that a program made, by kind.

use dml_core::Platform;
use dml_core::record::Operation;

/// Number of calls that a program made, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operations {
    /// Storage mapped for the host.
    pub map: u64,
    /// Mappings ended.
    pub unmap: u64,
    /// The framework's read calls.
    pub read: u64,
    /// The framework's write calls.
    pub write: u64,
    /// Kernels launched.
    pub kernel: u64,
    /// Storage allocated.
    pub alloc: u64,
    /// Storage bound to other storage.
    pub bind: u64,
    /// Copies by the processor.
    pub copy: u64,
}

impl Operations {
    /// Returns what a platform has counted since its counters were reset.
    #[must_use]
    pub fn of(platform: &Platform) -> Self {
        let count = |operation| platform.counters().operation(operation);
        Self {
            map: count(Operation::Map),
            unmap: count(Operation::Unmap),
            read: count(Operation::Read),
            write: count(Operation::Write),
            kernel: count(Operation::Kernel),
            alloc: count(Operation::Alloc),
            bind: count(Operation::Bind),
            copy: count(Operation::Copy),
        }
    }

    /// Returns the number of calls that transfer data.
    #[must_use]
    pub const fn transfers(&self) -> u64 {
        self.map + self.unmap + self.read + self.write + self.copy
    }
}
