//! Transfers of page-locked (pinned) host memory, for every backend with discrete devices.
//!
//! ```text
//!   the block's pages are locked, or locking them pays now ──▶ the driver's call, at the link's speed
//!   else: several cores copy faster than the driver        ──▶ staged, through locked scratch memory
//!   else                                                   ──▶ the driver's call
//! ```
//! A discrete GPU transfers pageable host memory through a buffer of its driver, at the speed of one core. It
//! accesses locked memory directly, several times as fast. Locking takes time, so a block's pages are locked
//! when its transfers pay for it. Each backend has its [`Rates`], and its calls that lock pages
//! ([`PageLocker`]).
//!
//! `staging.rs` copies through scratch memory, and `scratch.rs` provides that memory. `relay.rs` copies
//! between two devices without a direct link.

mod rates;
mod relay;
mod scratch;
mod staging;

pub(crate) use rates::Rates;
pub(crate) use relay::{RelayEnd, relay};
pub(crate) use scratch::{PIECE_BYTES, ScratchPool};
#[cfg(test)]
pub(crate) use scratch::{Scratch, Sizes};
pub(crate) use staging::Staging;
#[cfg(test)]
pub(crate) use staging::whole;

use crate::fork::Origin;
use crate::main_mem::{self, PageLockBudget};
use dml_core::internal::sync::Arc;
use dml_core::{CopyJob, CopyQuery, Cost, CrossArena, Fence, HostSpan, TransferError};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The page-locking calls of one device, or of all devices of a framework.
pub(crate) trait PageLocker: fmt::Debug + Send + Sync {
    /// Returns a number from [`next_holder`], the same for all lockers that share their locks.
    fn holder(&self) -> u64;

    /// Locks the pages of `memory` until the result is dropped. The caller drops it before the memory is
    /// freed. Returns `None` if the driver refuses.
    fn lock(&self, memory: &HostSpan) -> Option<Box<dyn Any + Send>>;
}

/// Returns a new number, unique among the holders of page locks.
pub(crate) fn next_holder() -> u64 {
    // The number orders no other access.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns how many threads copy for one transfer: at most `most`, and at most half of the cores, because the
/// others compute.
///
/// Callers keep the result: reading the number of cores takes as long as a transfer of 64 KiB.
pub(crate) fn copiers(most: usize) -> usize {
    std::thread::available_parallelism().map_or(0, |cores| (cores.get() / 2).min(most))
}

/// A mechanism between main memory and a device. Where it pays, it locks the pages of main memory, or stages
/// copies of unlocked memory.
#[derive(Debug)]
pub(crate) struct PageLocking<M> {
    pub(crate) mechanism: M,
    pub(crate) locker: Arc<dyn PageLocker>,
    pub(crate) budget: Arc<PageLockBudget>,
    pub(crate) staging: Staging,
    pub(crate) rates: Rates,
}

impl<M: CrossArena> CrossArena for PageLocking<M> {
    fn name(&self) -> &str {
        self.mechanism.name()
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.mechanism.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let mut is_locked = false;
        for end in [job.from(), job.to()] {
            if let Some((locks, memory)) = main_mem::page_locks(end.block) {
                let lost_ns = self.rates.lost_ns(job.len(), self.staging.copiers);
                is_locked |= locks.transfer(
                    (self.locker.holder(), &self.budget),
                    (lost_ns, memory.len()),
                    |lost_ns| self.rates.locking_pays(memory.len(), lost_ns),
                    || self.locker.lock(memory),
                );
            }
        }
        let taken = if is_locked { None } else { self.staging.take(&job, &self.locker) };
        match taken {
            Some(taken) => Ok(self.staging.copy(job, taken)),
            None => self.mechanism.copy(job),
        }
    }

    fn copy_behind(&self, job: CopyJob, kernel: &Fence) -> Result<Fence, TransferError> {
        let is_locked = |block| {
            main_mem::page_locks(block).is_some_and(|(locks, memory)| {
                let asked = (self.locker.holder(), &self.budget);
                locks.transfer(asked, (0, memory.len()), |_| false, || None)
            })
        };
        // Pageable memory would be transferred through a buffer of the driver, by this thread.
        if !is_locked(job.to().block) {
            return Err(TransferError::Infeasible);
        }
        self.mechanism.copy_behind(job, kernel)
    }
}

/// A mechanism that copies in the process that created it, but not in its forks.
#[derive(Debug)]
pub(crate) struct Here<M> {
    mechanism: M,
    origin: Origin,
}

impl<M: CrossArena> Here<M> {
    pub(crate) fn new(mechanism: M) -> Self {
        Self { mechanism, origin: Origin::here() }
    }
}

impl<M: CrossArena> CrossArena for Here<M> {
    fn name(&self) -> &str {
        self.mechanism.name()
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.mechanism.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        if self.origin.is_here() {
            self.mechanism.copy(job)
        } else {
            Err(TransferError::DeviceLost { loss: None })
        }
    }

    fn copy_behind(&self, job: CopyJob, kernel: &Fence) -> Result<Fence, TransferError> {
        if self.origin.is_here() {
            self.mechanism.copy_behind(job, kernel)
        } else {
            Err(TransferError::Infeasible)
        }
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cores_copy_and_no_more_than_may() {
        let half = std::thread::available_parallelism().map_or(0, |cores| cores.get() / 2);
        assert_eq!([0, half, half + 1, usize::MAX].map(copiers), [0, half, half, half]);
        assert_eq!(copiers(half.saturating_sub(1)), half.saturating_sub(1));
    }
}
