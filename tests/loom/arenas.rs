//! What the arenas that ship are made of: the thread of a worker, page locks, and pieces that are lent.
//!
//! Page locks and the pool are private to dml-arenas. Their source knows nothing of the rest of that crate,
//! so it is compiled into the models as well.

#[path = "../../dml-arenas/src/main_mem/page_locks.rs"]
mod page_locks;
#[path = "../../dml-arenas/src/locked/scratch/pool.rs"]
mod pool;

use crate::rig::{explore, explore_all, thread};
use dml::arenas::kit::Worker;
use dml::core::internal::sync::atomic::{AtomicU64, Ordering};
use dml::core::internal::sync::{Arc, Condvar, Mutex};
use dml::core::{Fence, TransferError};
use page_locks::{PageLockBudget, PageLocks};
use pool::Pool;
use std::any::Any;
use std::time::Duration;

/// Counts changes. Nothing but the locks of others orders them and a look: without these loom lets a look
/// find too few.
#[derive(Clone, Default)]
struct Changes(Arc<AtomicU64>);

impl Changes {
    /// Reads and writes, as one thread at a time may.
    fn add(&self) {
        self.0.store(self.seen() + 1, Ordering::Relaxed);
    }

    fn seen(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Hands over a job that has a number.
fn job(worker: &Worker, changes: &Changes, number: u64) -> Fence {
    let changes = changes.clone();
    worker.run(move || {
        changes.add();
        Ok(number)
    })
}

#[test]
fn l04_a_worker_does_the_jobs_of_two_threads_one_at_a_time_and_ends() {
    // In every interleaving it takes half a minute.
    explore(|| {
        let (worker, changes) = (Arc::new(Worker::start("copies").expect("a thread")), Changes::default());
        let (theirs, at) = (worker.clone(), changes.clone());
        let other = thread::spawn(move || job(&theirs, &at, 2));
        assert_eq!(job(&worker, &changes, 1).wait(), Ok(1));
        assert_eq!(other.join().expect("the other ends").wait(), Ok(2));
        assert_eq!(changes.seen(), 2);
    });
}

#[test]
fn l04_a_worker_that_goes_does_its_jobs_first() {
    explore_all(|| {
        let (worker, changes) = (Worker::start("copies").expect("a thread"), Changes::default());
        let fences = [1, 2].map(|number| job(&worker, &changes, number));
        drop(worker);
        assert_eq!(fences.map(Fence::wait), [Ok(1), Ok(2)]);
        assert_eq!(changes.seen(), 2);
    });
}

/// Counts when it goes.
struct Goes(Changes);

impl Drop for Goes {
    fn drop(&mut self) {
        self.0.add();
    }
}

#[test]
fn what_a_job_holds_has_gone_when_its_fence_ends() {
    explore_all(|| {
        let (worker, changes) = (Worker::start("copies").expect("a thread"), Changes::default());
        for fails in [false, true] {
            let held = Goes(changes.clone());
            let fence = worker.run(move || {
                let _held = &held;
                if fails { Err(TransferError::DeviceLost { loss: None }) } else { Ok(3) }
            });
            assert_eq!(fence.wait().is_err(), fails);
            assert_eq!(changes.seen(), 1 + u64::from(fails));
        }
    });
}

/// The bytes that are really locked, which never exceed a limit.
struct Locked {
    bytes: Mutex<u64>,
    limit_bytes: u64,
}

/// Pages that are locked until it is dropped.
struct Pages(Arc<Locked>, u64);

impl Locked {
    fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(0), limit_bytes })
    }

    fn lock(self: &Arc<Self>, bytes: u64) -> Option<Box<dyn Any + Send>> {
        let mut locked = self.bytes.lock();
        *locked += bytes;
        assert!(*locked <= self.limit_bytes, "{} bytes are locked", *locked);
        drop(locked);
        Some(Box::new(Pages(self.clone(), bytes)))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        *self.0.bytes.lock() -= self.1;
    }
}

const DEVICE: u64 = 1;

/// A transfer of a whole block of 400 bytes, which is to be locked from the first transfer on.
fn transfer(block: &PageLocks, budget: &Arc<PageLockBudget>, locked: &Arc<Locked>) -> bool {
    block.transfer((DEVICE, budget), (400, 400), |_| true, || locked.lock(400))
}

#[test]
fn two_transfers_of_a_block_lock_its_pages_once() {
    explore_all(|| {
        let (block, budget, locked) =
            (Arc::new(PageLocks::default()), PageLockBudget::new(1_000), Locked::new(400));
        let theirs = (block.clone(), budget.clone(), locked.clone());
        let other = thread::spawn(move || transfer(&theirs.0, &theirs.1, &theirs.2));
        let mine = transfer(&block, &budget, &locked);
        let their = other.join().expect("the other ends");
        assert!(mine || their, "one of them makes the lock");
        assert!(block.is_held(DEVICE));
        assert_eq!(*locked.bytes.lock(), 400);
        drop(Arc::into_inner(block).expect("the other has ended"));
        assert_eq!(*locked.bytes.lock(), 0);
        assert!(budget.is_unused());
    });
}

#[test]
fn the_limit_of_locked_pages_holds_while_blocks_go() {
    explore_all(|| {
        let (budget, locked) = (PageLockBudget::new(400), Locked::new(400));
        let theirs = (budget.clone(), locked.clone());
        let other = thread::spawn(move || {
            let block = PageLocks::default();
            transfer(&block, &theirs.0, &theirs.1)
        });
        let block = PageLocks::default();
        let mine = transfer(&block, &budget, &locked);
        let their = other.join().expect("the other ends");
        assert!(mine || their, "there is room for one of them");
        assert!(transfer(&block, &budget, &locked), "the other block has gone");
    });
}

/// The pieces that exist, which are never more than there is room for.
struct Alive {
    pieces: Mutex<u64>,
    changed: Condvar,
    most: u64,
}

struct Piece(Arc<Alive>);

impl Alive {
    fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { pieces: Mutex::new(0), changed: Condvar::new(), most })
    }

    fn piece(self: &Arc<Self>) -> Piece {
        let mut pieces = self.pieces.lock();
        *pieces += 1;
        assert!(*pieces <= self.most, "{} pieces exist", *pieces);
        drop(pieces);
        Piece(self.clone())
    }

    /// Waits until the last piece has gone.
    fn wait_for_none(&self) {
        let mut pieces = self.pieces.lock();
        while *pieces > 0 {
            pieces = self.changed.wait(pieces);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        *self.0.pieces.lock() -= 1;
        self.0.changed.notify_all();
    }
}

/// Takes a piece and gives it back. Returns whether there was one.
fn use_one(pool: &Pool<Piece>, alive: &Arc<Alive>) -> bool {
    let Some(mut lent) = pool.take() else { return false };
    lent.piece.get_or_insert_with(|| alive.piece());
    true
}

const AT_ONCE: Duration = Duration::ZERO;
const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn no_more_pieces_exist_than_the_pool_has_room_for_and_idle_ones_go() {
    // Up to four threads, for each piece that comes back may start one that frees it.
    explore(|| {
        let (pool, alive) = (Pool::new(1, AT_ONCE), Alive::new(1));
        let theirs = (pool.clone(), alive.clone());
        let other = thread::spawn(move || use_one(&theirs.0, &theirs.1));
        let mine = use_one(&pool, &alive);
        let their = other.join().expect("the other ends");
        assert!(mine || their, "there is room for one of them");
        alive.wait_for_none();
    });
}

#[test]
fn a_pool_that_closes_frees_what_is_idle_and_what_comes_back() {
    explore(|| {
        let (pool, alive) = (Pool::new(2, NEVER), Alive::new(2));
        let theirs = (pool.clone(), alive.clone());
        let other = thread::spawn(move || use_one(&theirs.0, &theirs.1));
        assert!(use_one(&pool, &alive), "there is room for both");
        pool.close();
        assert!(other.join().expect("the other ends"), "there is room for both");
        alive.wait_for_none();
        assert_eq!(pool.pieces(), 0);
    });
}
