//! Page locks, which drivers hold on a block's memory so that their devices transfer it at the link's speed.
//!
//! ```text
//!   transfers add up ──▶ a lock would have paid ──▶ made, without the mutex of the records ──▶ held
//!                                                    └──▶ refused: retried after as many more transfers
//!   the block is dropped ──▶ its page locks are dropped, before its memory
//! ```
//! 1. One transfer at a time makes a page lock. Other transfers of the same block proceed without it.
//! 2. The locks of all blocks together stay below the limit of a [`PageLockBudget`].

use dml_core::internal::sync::atomic::{AtomicU64, Ordering};
use dml_core::internal::sync::{Arc, Mutex};
use std::any::Any;
use std::fmt;

/// The budget of memory that drivers may lock for one platform.
#[derive(Debug)]
pub(crate) struct PageLockBudget {
    limit_bytes: u64,
    locked_bytes: AtomicU64,
}

impl PageLockBudget {
    /// Creates a budget of `limit_bytes` bytes.
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, locked_bytes: AtomicU64::new(0) })
    }

    /// Returns whether nothing is locked.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.locked_bytes.load(Ordering::Relaxed) == 0
    }

    /// Takes `bytes` bytes of the budget, or returns `None` if fewer are left.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let add = |locked: u64| locked.checked_add(bytes).filter(|&sum| sum <= self.limit_bytes);
        // The count orders no other access.
        self.locked_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Share { budget: self.clone(), bytes })
    }
}

/// A part of a budget, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<PageLockBudget>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.locked_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The page locks of one block, at most one for each holder.
#[derive(Debug, Default)]
pub(crate) struct PageLocks(Mutex<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    holder: u64,
    /// Total cost of the holder's transfers without a lock, in the unit that `pays` expects.
    lost: u64,
    lock: Lock,
}

/// What a transfer does about its holder's lock.
enum Due {
    /// The caller makes the lock.
    Now,
    /// There is a lock.
    Made,
    /// A lock does not pay yet, or another transfer is making it.
    Later,
}

enum Lock {
    None,
    /// A transfer is making the lock.
    Settled,
    Held {
        _lock: Box<dyn Any + Send>,
        _share: Share,
    },
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Settled => "Settled",
            Self::Held { .. } => "Held",
        })
    }
}

impl PageLocks {
    /// Records a transfer of `holder`, which costs `lost` without a lock, and makes a lock once that pays.
    /// Returns whether the pages are then locked.
    ///
    /// `pays` receives the cost of all transfers so far, and decides whether to lock all `block_bytes` bytes.
    /// `make` makes the lock and returns its guard, which keeps the pages locked until it is dropped.
    pub(crate) fn transfer(
        &self,
        (holder, budget): (u64, &Arc<PageLockBudget>),
        (lost, block_bytes): (u64, u64),
        pays: impl FnOnce(u64) -> bool,
        make: impl FnOnce() -> Option<Box<dyn Any + Send>>,
    ) -> bool {
        match self.due(holder, lost, pays) {
            Due::Now => {}
            Due::Made => return true,
            Due::Later => return false,
        }
        let Some(share) = budget.take(block_bytes) else {
            // Other blocks may be dropped, and leave room for a later transfer.
            self.settle(holder, Lock::None);
            return false;
        };
        let Some(lock) = make() else {
            self.refused(holder);
            return false;
        };
        self.settle(holder, Lock::Held { _lock: lock, _share: share });
        true
    }

    /// Records the cost of a transfer. Returns whether the caller is to make the lock of `holder` now.
    fn due(&self, holder: u64, lost: u64, pays: impl FnOnce(u64) -> bool) -> Due {
        let mut entries = self.0.lock();
        let index = entries.iter().position(|entry| entry.holder == holder).unwrap_or_else(|| {
            entries.push(Entry { holder, lost: 0, lock: Lock::None });
            entries.len() - 1
        });
        let entry = &mut entries[index];
        match entry.lock {
            Lock::None => {}
            Lock::Settled => return Due::Later,
            Lock::Held { .. } => return Due::Made,
        }
        entry.lost = entry.lost.saturating_add(lost);
        if !pays(entry.lost) {
            return Due::Later;
        }
        entry.lock = Lock::Settled;
        Due::Now
    }

    /// Resets the cost after a refusal, so that a lock that is always refused is only retried when it would
    /// have paid again.
    fn refused(&self, holder: u64) {
        let mut entries = self.0.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.holder == holder) {
            (entry.lost, entry.lock) = (0, Lock::None);
        }
    }

    fn settle(&self, holder: u64, lock: Lock) {
        let mut entries = self.0.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.holder == holder) {
            entry.lock = lock;
        }
    }

    /// Returns whether `holder` holds a lock.
    #[cfg(test)]
    pub(crate) fn is_held(&self, holder: u64) -> bool {
        let entries = self.0.lock();
        entries.iter().any(|entry| entry.holder == holder && matches!(entry.lock, Lock::Held { .. }))
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const ONE: u64 = 1;
    const TWO: u64 = 2;

    /// A lock that records that it was dropped.
    struct Gone(Arc<AtomicBool>);

    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn made() -> Option<Box<dyn Any + Send>> {
        Some(Box::new(7_u32))
    }

    fn never() -> Option<Box<dyn Any + Send>> {
        panic!("no lock is to be made")
    }

    #[test]
    fn a_lock_is_made_once_when_the_transfers_so_far_would_have_paid_for_it() {
        let (locks, budget) = (PageLocks::default(), PageLockBudget::new(1_000));
        let pays = |moved: u64| moved >= 250;
        locks.transfer((ONE, &budget), (100, 400), pays, never);
        locks.transfer((TWO, &budget), (200, 400), pays, never);
        locks.transfer((ONE, &budget), (100, 400), pays, never);
        assert!(!locks.is_held(ONE));
        assert!(locks.transfer((ONE, &budget), (50, 400), pays, made));
        assert!(locks.is_held(ONE) && !locks.is_held(TWO), "each holder counts for itself");
        assert!(locks.transfer((ONE, &budget), (400, 400), pays, never), "it is locked already");
        assert!(!locks.transfer((TWO, &budget), (1, 400), pays, never));
    }

    #[test]
    fn the_limit_holds_over_all_blocks_until_one_goes() {
        let budget = PageLockBudget::new(1_000);
        let blocks: Vec<PageLocks> = (0..3).map(|_| PageLocks::default()).collect();
        let lock = |block: &PageLocks| block.transfer((ONE, &budget), (400, 400), |_| true, made);
        assert_eq!(blocks.iter().map(lock).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(blocks.iter().map(|block| block.is_held(ONE)).collect::<Vec<_>>(), [true, true, false]);
        let mut blocks = blocks.into_iter();
        drop(blocks.next());
        let last = blocks.next_back().unwrap();
        assert!(lock(&last));
        assert!(last.is_held(ONE), "a dropped block returns its share");
        let whole = PageLockBudget::new(400);
        let block = PageLocks::default();
        block.transfer((ONE, &whole), (400, 400), |_| true, made);
        assert!(block.is_held(ONE), "the limit itself may be locked");
    }

    #[test]
    fn a_lock_that_is_refused_is_tried_again_when_it_would_have_paid_again_and_costs_nothing() {
        let (locks, budget) = (PageLocks::default(), PageLockBudget::new(400));
        let pays = |lost: u64| lost >= 400;
        assert!(!locks.transfer((ONE, &budget), (400, 400), pays, || None));
        assert!(!locks.transfer((ONE, &budget), (300, 400), pays, never));
        assert!(budget.is_unused());
        assert!(locks.transfer((ONE, &budget), (100, 400), pays, made));
        drop(locks);
        let other = PageLocks::default();
        other.transfer((ONE, &budget), (400, 400), |_| true, made);
        assert!(other.is_held(ONE));
    }

    #[test]
    fn others_go_on_while_a_lock_is_made() {
        let (locks, budget) = (PageLocks::default(), PageLockBudget::new(400));
        let make = || {
            // A concurrent transfer of the same block.
            assert!(!locks.transfer((ONE, &budget), (400, 400), |_| true, never));
            made()
        };
        locks.transfer((ONE, &budget), (400, 400), |_| true, make);
        assert!(locks.is_held(ONE));
    }

    #[test]
    fn a_lock_goes_with_its_block() {
        let (locks, budget) = (PageLocks::default(), PageLockBudget::new(400));
        let gone = Arc::new(AtomicBool::new(false));
        let lock = Gone(gone.clone());
        locks.transfer((ONE, &budget), (400, 400), |_| true, || Some(Box::new(lock)));
        assert!(!gone.load(Ordering::Relaxed));
        drop(locks);
        assert!(gone.load(Ordering::Relaxed));
    }
}
