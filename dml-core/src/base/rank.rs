//! The order in which locks are taken, and the rule that no foreign code runs under a lock (I-22). Debug
//! builds check both.
//!
//! A thread that holds a lock may only take locks of a higher rank. So no thread holds two buffers' locks at
//! once, and no cycle of threads can wait for each other's locks.

#[cfg(debug_assertions)]
use crate::base::sync::thread_local;
use crate::base::sync::{Condvar, Mutex, MutexGuard};
#[cfg(debug_assertions)]
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// The position of a lock in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The registry of a platform's buffers.
    Registry,
    /// The lock of one buffer.
    Buffer,
    /// Locks that are taken last: the path cache, the recorder's tape, a waiter's slot.
    Leaf,
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: RefCell<Vec<Rank>> = RefCell::new(Vec::with_capacity(2));
}

/// Checks that this thread holds no lock, before it runs foreign code.
pub(crate) fn assert_unlocked() {
    #[cfg(debug_assertions)]
    {
        let held = HELD.try_with(|held| held.borrow().last().copied()).unwrap_or_default();
        if let Some(held) = held {
            panic!("I-22: foreign code is called under the lock of a {held:?}");
        }
    }
}

/// A lock with a rank.
#[derive(Debug)]
pub(crate) struct Ranked<T> {
    #[cfg(debug_assertions)]
    rank: Rank,
    lock: Mutex<T>,
}

/// A held lock. The thread's list contains it while this value lives.
pub(crate) struct RankedGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    held: Held,
}

struct Held(#[cfg(debug_assertions)] Rank);

#[cfg(debug_assertions)]
impl Held {
    fn new(rank: Rank) -> Self {
        // A thread that is ending has no list any more.
        let last = HELD.try_with(|held| held.borrow().last().copied()).unwrap_or_default();
        if let Some(last) = last {
            assert!(last < rank, "I-22: the lock of a {rank:?} is taken under that of a {last:?}");
        }
        let _ = HELD.try_with(|held| held.borrow_mut().push(rank));
        Self(rank)
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(index) = held.iter().rposition(|rank| *rank == self.0) {
                held.remove(index);
            }
        });
    }
}

impl<T> Ranked<T> {
    /// Creates an unlocked lock around `value`.
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            rank,
            lock: Mutex::new(value),
        }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// In a debug build, if this thread holds a lock of the same or a higher rank.
    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        // The lock is listed first, so that a thread that would deadlock panics instead.
        #[cfg(debug_assertions)]
        let held = Held::new(self.rank);
        #[cfg(not(debug_assertions))]
        let held = Held();
        RankedGuard { guard: self.lock.lock(), held }
    }

    /// Returns the value through an exclusive reference, without locking.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T> RankedGuard<'_, T> {
    /// Releases the lock, sleeps until woken, and takes the lock again. It may also wake spuriously.
    pub(crate) fn wait(self, condvar: &Condvar) -> Self {
        let Self { guard, held } = self;
        Self { guard: condvar.wait(guard), held }
    }

    /// As [`wait`](Self::wait), until `deadline` at most. Returns whether the deadline passed.
    pub(crate) fn wait_until(self, condvar: &Condvar, deadline: Instant) -> (Self, bool) {
        let Self { guard, held } = self;
        let (guard, timed_out) = condvar.wait_until(guard, deadline);
        (Self { guard, held }, timed_out)
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn i22_locks_are_taken_in_their_order_alone() {
        let lock = |rank| Ranked::new(rank, 0);
        let (registry, buffer, leaf) = (lock(Rank::Registry), lock(Rank::Buffer), lock(Rank::Leaf));
        for (first, second, is_allowed) in [
            (&registry, &buffer, true),
            (&registry, &leaf, true),
            (&buffer, &leaf, true),
            (&buffer, &registry, false),
            (&buffer, &lock(Rank::Buffer), false),
            (&leaf, &lock(Rank::Leaf), false),
        ] {
            let took = catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _first = first.lock();
                drop(second.lock());
            }));
            assert_eq!(took.is_ok(), is_allowed || !cfg!(debug_assertions), "{first:?}, {second:?}");
            assert_unlocked();
        }
    }

    #[test]
    fn i22_nobody_elses_code_runs_under_a_lock() {
        let lock = Ranked::new(Rank::Leaf, 0);
        let called = catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            assert_unlocked();
        }));
        assert_eq!(called.is_err(), cfg!(debug_assertions));
        assert_unlocked();
    }
}
