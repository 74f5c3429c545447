//! Page-locked scratch memory, for transfers of memory that is not locked.
//!
//! ```text
//!   take ──▶ an idle piece ────────────────────────┐
//!        ──▶ a new piece, below the limit ─────────┴─▶ locked for its devices ──▶ lent
//!        ──▶ none: the transfer does without                                        │
//!   idle for IDLE ──▶ a thread frees them ◀── idle ◀────────────────────────────────┘
//! ```
//! 1. No caller waits for a piece. A transfer may get fewer than it requested, or none.
//! 2. The total size of all pieces is at most `limit_bytes`. Page locks also count in the [`PageLockBudget`].
//! 3. Pieces are created, locked and freed without the pool's mutex, because these calls reach a driver.
//! 4. A piece's page locks are dropped before its memory.

mod pool;

use self::pool::{Lent, Pool};
use super::PageLocker;
use crate::fork::Origin;
use crate::main_mem::{PageLockBudget, PageLockShare};
use dml_core::HostMemory;
use dml_core::internal::sync::Arc;
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Size of a piece, in bytes. A link at 54 GB/s transfers it in 40 us, about twice the latency of a call.
pub(crate) const PIECE_BYTES: u64 = 2 << 20;
/// Idle time after which pieces are freed.
const IDLE: Duration = Duration::from_secs(1);

/// The pool of scratch pieces of one platform.
pub(crate) struct ScratchPool {
    sizes: Sizes,
    budget: Arc<PageLockBudget>,
    pieces: Pool<Piece>,
    origin: Origin,
}

/// The sizes of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The size of a piece, in bytes.
    pub(crate) piece_bytes: u64,
    /// The maximum total size of all pieces, in bytes.
    pub(crate) limit_bytes: u64,
    /// The idle time after which pieces are freed.
    pub(crate) idle: Duration,
}

/// A piece of memory with its page locks.
struct Piece {
    locks: Vec<PieceLock>,
    memory: HostMemory,
}

struct PieceLock {
    holder: u64,
    _lock: Box<dyn Any + Send>,
    _share: PageLockShare,
}

/// A piece for one transfer, which returns to its pool when it is dropped.
pub(crate) struct Scratch(Lent<Piece>);

impl ScratchPool {
    /// Creates a pool of pieces of the default size.
    pub(crate) fn new(limit_bytes: u64, budget: &Arc<PageLockBudget>) -> Arc<Self> {
        Self::with(Sizes { piece_bytes: PIECE_BYTES, limit_bytes, idle: IDLE }, budget)
    }

    pub(crate) fn with(sizes: Sizes, budget: &Arc<PageLockBudget>) -> Arc<Self> {
        let pieces = Pool::new(sizes.limit_bytes / sizes.piece_bytes, sizes.idle);
        Arc::new(Self { sizes, budget: budget.clone(), pieces, origin: Origin::here() })
    }

    pub(crate) fn piece_bytes(&self) -> u64 {
        self.sizes.piece_bytes
    }

    /// Takes at most `count` pieces that are locked for all of these lockers.
    pub(crate) fn take(&self, count: usize, lockers: &[&Arc<dyn PageLocker>]) -> Vec<Scratch> {
        std::iter::from_fn(|| self.take_one(lockers)).take(count).collect()
    }

    fn take_one(&self, lockers: &[&Arc<dyn PageLocker>]) -> Option<Scratch> {
        // From here on, dropping the scratch frees its place in the pool, whatever fails.
        let mut scratch = Scratch(self.pieces.take()?);
        if scratch.0.piece.is_none() {
            let memory = HostMemory::zeroed(self.sizes.piece_bytes).ok()?;
            scratch.0.piece = Some(Piece { locks: Vec::new(), memory });
        }
        let piece = scratch.0.piece.as_mut()?;
        if lockers.iter().all(|locker| piece.lock_for(&***locker, &self.budget)) {
            return Some(scratch);
        }
        // A piece that cannot be locked is useless here, and may hold budget that another piece needs.
        drop(scratch.0.piece.take());
        None
    }

    /// Returns the number of pieces, idle or lent.
    #[cfg(test)]
    pub(crate) fn pieces(&self) -> u64 {
        self.pieces.pieces()
    }
}

impl Piece {
    /// Locks the pages for the locker's holder, unless they are. Returns whether they are locked.
    fn lock_for(&mut self, locker: &dyn PageLocker, budget: &Arc<PageLockBudget>) -> bool {
        if self.locks.iter().any(|held| held.holder == locker.holder()) {
            return true;
        }
        let Some(share) = budget.take(self.memory.len()) else { return false };
        let Some(lock) = locker.lock(self.memory.span()) else { return false };
        self.locks.push(PieceLock { holder: locker.holder(), _lock: lock, _share: share });
        true
    }
}

impl Deref for Scratch {
    type Target = HostMemory;

    fn deref(&self) -> &HostMemory {
        &self.0.piece.as_ref().expect("a scratch that was handed out has its piece").memory
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut HostMemory {
        &mut self.0.piece.as_mut().expect("a scratch that was handed out has its piece").memory
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A transfer may still hold a part of the memory. Then no other caller may get the piece.
        drop(self.0.piece.take_if(|piece| piece.memory.is_lent()));
    }
}

impl Drop for ScratchPool {
    fn drop(&mut self) {
        // A fork does not have the pool's thread, which may hold the lock.
        if self.origin.is_here() {
            self.pieces.close();
        }
    }
}

impl fmt::Debug for ScratchPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScratchPool({:?})", self.sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::next_holder;
    use super::*;
    use dml_core::HostSpan;

    const PIECE: u64 = 64 << 10;

    /// A locker that never refuses.
    #[derive(Debug)]
    struct Willing(u64);

    impl PageLocker for Willing {
        fn holder(&self) -> u64 {
            self.0
        }

        fn lock(&self, _memory: &HostSpan) -> Option<Box<dyn Any + Send>> {
            Some(Box::new(()))
        }
    }

    fn locker() -> Arc<dyn PageLocker> {
        Arc::new(Willing(next_holder()))
    }

    fn pool(limit_bytes: u64, budget: &Arc<PageLockBudget>) -> Arc<ScratchPool> {
        ScratchPool::with(Sizes { piece_bytes: PIECE, limit_bytes, idle: Duration::from_secs(3600) }, budget)
    }

    #[test]
    fn the_limit_holds_and_pieces_are_used_again() {
        let locker = locker();
        let budget = PageLockBudget::new(u64::MAX);
        let pool = pool(3 * PIECE + 1, &budget);
        let taken = pool.take(2, &[&locker]);
        let address = taken[1].span().as_ptr().addr();
        assert_eq!((taken.len(), pool.pieces()), (2, 2));
        assert_eq!((pool.take(9, &[&locker]).len(), pool.pieces()), (1, 3), "the limit");
        drop(taken);
        let again = pool.take(3, &[&locker]);
        assert!(again.iter().any(|piece| piece.span().as_ptr().addr() == address));
        assert_eq!(pool.pieces(), 3);
    }

    #[test]
    fn a_pool_takes_what_it_locks_from_the_budget_and_gives_it_back() {
        let locker = locker();
        let budget = PageLockBudget::new(2 * PIECE);
        let pool = pool(9 * PIECE, &budget);
        let taken = pool.take(9, &[&locker]);
        assert_eq!((taken.len(), pool.pieces()), (2, 2), "a piece that cannot be locked is freed");
        drop(taken);
        assert!(!budget.is_unused(), "idle pieces stay locked");
        let held = pool.take(1, &[&locker]);
        drop(pool);
        assert!(!budget.is_unused(), "a transfer keeps its piece");
        drop(held);
        assert!(budget.is_unused());
    }

    #[test]
    fn a_piece_for_two_devices_is_locked_for_both() {
        let (one, two) = (locker(), locker());
        let budget = PageLockBudget::new(3 * PIECE);
        let pool = pool(9 * PIECE, &budget);
        let taken = pool.take(9, &[&one, &two]);
        assert_eq!(taken.len(), 1, "two locks each, of a budget for three");
        drop(taken);
        assert_eq!(pool.take(9, &[&two]).len(), 2, "a piece is locked once for each device");
    }

    #[test]
    fn what_is_idle_is_freed() {
        let locker = locker();
        let budget = PageLockBudget::new(u64::MAX);
        let idle = Duration::from_millis(1);
        let pool = ScratchPool::with(Sizes { piece_bytes: PIECE, limit_bytes: 4 * PIECE, idle }, &budget);
        for _ in 0..3 {
            let held = pool.take(1, &[&locker]);
            drop(pool.take(2, &[&locker]));
            while pool.pieces() > 1 {
                std::thread::yield_now();
            }
            assert_eq!((held.len(), pool.pieces()), (1, 1), "a lent piece stays");
            drop(held);
            while !budget.is_unused() {
                std::thread::yield_now();
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_fork_takes_no_lock_of_the_pool() {
        use crate::fork::testing::{child_says, fork};
        let locker = locker();
        let pool = pool(2 * PIECE, &PageLockBudget::new(u64::MAX));
        drop(pool.take(2, &[&locker]));
        let fork_drops_it = || {
            let ScratchPool { sizes, budget, pieces, origin } = &*pool;
            let (budget, pieces) = (budget.clone(), pieces.clone());
            drop(ScratchPool { sizes: *sizes, budget, pieces, origin: *origin });
            true
        };
        assert!(pool.pieces.while_locked(|| child_says(fork, fork_drops_it)));
        assert_eq!(pool.take(2, &[&locker]).len(), 2);
    }

    #[test]
    fn what_a_transfer_keeps_is_given_to_nobody_else() {
        let locker = locker();
        let budget = PageLockBudget::new(u64::MAX);
        let pool = pool(PIECE, &budget);
        let mut taken = pool.take(1, &[&locker]);
        let kept = taken[0].target(dml_core::Span::new(0, 10));
        let address = kept.span().as_ptr().addr();
        drop(taken);
        let next = pool.take(1, &[&locker]);
        assert_ne!(next[0].span().as_ptr().addr(), address);
        drop(kept);
    }
}
