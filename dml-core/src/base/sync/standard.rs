//! The locks of the standard library, without their poisoning.
//!
//! Each lock and each condition variable is a separate word. A library that keeps waiting threads in a
//! process-wide table would break a fork: its table would name threads that the child does not have.

pub use std::sync::MutexGuard;
use std::sync::{PoisonError, TryLockError};
use std::time::Instant;

/// Number of tries before a thread sleeps until the lock is free.
const TRIES: u32 = 4;
/// Number of pauses before each try. Two readers of one buffer take 0.3 us each with 64 pauses (1 us),
/// 0.55 us with 32, and 1.1 us without (`dml bench acquire`).
const PAUSES: u32 = 64;

/// A mutual exclusion lock without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.lock_contended())
    }

    /// Takes the lock, unless another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Tries a few times, and then sleeps. The pauses let the thread that has the lock take it again several
    /// times, with all that it protects in its cache.
    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        let mut tries = (0..TRIES).map(|_| {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            self.try_lock()
        });
        tries.find_map(|guard| guard).unwrap_or_else(|| self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the value through an exclusive reference, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Releases the lock, sleeps until woken, and takes the lock again. It may also wake spuriously.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Condvar::wait`], until `deadline` at most. Returns whether the deadline passed.
    pub fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        let (guard, result) = self.0.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Wakes every waiter.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
