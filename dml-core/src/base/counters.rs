//! Counters that always run: the calls on arenas, and the traffic of each link.

use crate::base::id::LinkId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counted kind of call on an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Storage was allocated.
    Alloc,
    /// Storage was bound to another arena's storage.
    Bind,
    /// A remote device was given access.
    Map,
    /// The native device was given access again.
    Unmap,
    /// A framework's read call (device to host).
    Read,
    /// A framework's write call (host to device).
    Write,
    /// A copy by the processor, or between two devices directly.
    Copy,
    /// A fill with zeros.
    Fill,
    /// A kernel was launched by the co-executor, [submitted](crate::Platform::submit), or launched
    /// [under grants](crate::Grants::launch). Launches of the program's own do not count.
    Kernel,
}

/// All operations, in the order of their counters.
pub const OPERATIONS: [Operation; 9] = [
    Operation::Alloc,
    Operation::Bind,
    Operation::Map,
    Operation::Unmap,
    Operation::Read,
    Operation::Write,
    Operation::Copy,
    Operation::Fill,
    Operation::Kernel,
];

impl Operation {
    /// Returns the operation's name in the command's JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Bind => "bind",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::Read => "read",
            Self::Write => "write",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Kernel => "kernel",
        }
    }
}

#[derive(Debug, Default)]
struct LinkCounter {
    bytes: AtomicU64,
    copies: AtomicU64,
    ns: AtomicU64,
}

/// The counters of a platform. Counting is a relaxed addition and orders no other memory access.
///
/// # Examples
/// ```
/// # use dml_core::{AcquireError, Buffer, Platform};
/// use dml_core::record::Operation;
/// # fn example(platform: &Platform, buffer: &Buffer<f32>) -> Result<(), AcquireError> {
/// let counters = platform.counters();
/// counters.reset();
/// let sum: f32 = buffer.read()?.iter().sum();
/// for transfer in counters.transfers() {
///     println!("{}: {} bytes in {:?}", transfer.link, transfer.bytes, transfer.duration);
/// }
/// println!("{} allocations", counters.operation(Operation::Alloc));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Counters {
    operations: [AtomicU64; OPERATIONS.len()],
    links: Vec<LinkCounter>,
}

/// The traffic of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The link that was used.
    pub link: LinkId,
    /// The number of bytes moved.
    pub bytes: u64,
    /// The number of copies made.
    pub copies: u64,
    /// The time between start and completion, summed over the copies.
    pub duration: Duration,
}

impl Counters {
    pub(crate) fn new(links: usize) -> Self {
        Self {
            operations: std::array::from_fn(|_| AtomicU64::new(0)),
            links: (0..links).map(|_| LinkCounter::default()).collect(),
        }
    }

    /// Counts one operation.
    pub fn count(&self, operation: Operation) {
        self.operations[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_transfer(&self, link: LinkId, bytes: u64, duration: Duration) {
        let counter = &self.links[usize::from(link.0)];
        counter.bytes.fetch_add(bytes, Ordering::Relaxed);
        counter.copies.fetch_add(1, Ordering::Relaxed);
        counter.ns.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns how often each operation was called, in the order of [`OPERATIONS`].
    #[must_use]
    pub fn operations(&self) -> [(Operation, u64); OPERATIONS.len()] {
        OPERATIONS.map(|operation| (operation, self.operation(operation)))
    }

    /// Returns how often one operation was called.
    #[must_use]
    pub fn operation(&self, operation: Operation) -> u64 {
        self.operations[operation as usize].load(Ordering::Relaxed)
    }

    /// Returns the traffic of each link that has carried at least one copy.
    #[must_use]
    pub fn transfers(&self) -> Vec<Transfer> {
        (0..)
            .map(LinkId)
            .zip(&self.links)
            .map(|(link, counter)| Transfer {
                link,
                bytes: counter.bytes.load(Ordering::Relaxed),
                copies: counter.copies.load(Ordering::Relaxed),
                duration: Duration::from_nanos(counter.ns.load(Ordering::Relaxed)),
            })
            .filter(|transfer| transfer.copies > 0)
            .collect()
    }

    /// Sets every counter back to zero.
    pub fn reset(&self) {
        self.operations.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        for link in &self.links {
            for counter in [&link.bytes, &link.copies, &link.ns] {
                counter.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reset_begins_every_figure_again() {
        let counters = Counters::new(3);
        counters.count(Operation::Fill);
        counters.count_transfer(LinkId(2), 40, Duration::from_nanos(700));
        counters.count_transfer(LinkId(2), 2, Duration::from_nanos(11));
        let transfer = |bytes, copies, ns| {
            [Transfer { link: LinkId(2), bytes, copies, duration: Duration::from_nanos(ns) }]
        };
        assert_eq!(counters.transfers(), transfer(42, 2, 711));
        assert_eq!(counters.operation(Operation::Fill), 1);
        counters.reset();
        assert!(counters.transfers().is_empty());
        assert!(counters.operations().iter().all(|(_, count)| *count == 0));
        counters.count_transfer(LinkId(2), 5, Duration::from_nanos(3));
        assert_eq!(counters.transfers(), transfer(5, 1, 3), "counts from before the reset are gone");
    }
}
