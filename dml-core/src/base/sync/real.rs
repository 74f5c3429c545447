//! The implementation for real threads.

#[cfg(dml_tsan)]
#[path = "sanitized.rs"]
mod locks;
#[cfg(not(dml_tsan))]
#[path = "standard.rs"]
mod locks;

pub use locks::{Condvar, Mutex, MutexGuard};
use std::marker::PhantomData;
pub use std::sync::atomic;
pub use std::thread;
pub use std::thread_local;

/// A lock for a static, whose critical sections call nothing.
#[derive(Debug)]
pub struct StaticMutex<T>(Mutex<T>);

impl<T> StaticMutex<T> {
    /// Creates an unlocked lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Runs `act` on the value. `act` must not take another lock.
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.0.lock())
    }

    /// As [`with`](Self::with), unless another thread has the lock. In a fork it may have it for ever.
    pub fn try_with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.try_lock().map(|mut value| act(&mut value))
    }
}

/// Tracks the accesses to the bytes of one storage in models. Here it does nothing.
#[derive(Clone, Debug, Default)]
pub struct Tracker(());

impl Tracker {
    /// Creates a tracker of fresh storage.
    #[must_use]
    pub const fn new(_bytes: usize) -> Self {
        Self(())
    }

    /// Returns a tracker of the bytes from `start` on.
    #[must_use]
    pub const fn part(&self, _start: usize) -> Self {
        Self(())
    }

    /// Records a read of the first `bytes` bytes.
    pub const fn read(&self, _bytes: usize) {}

    /// Records a write of the first `bytes` bytes.
    pub const fn write(&self, _bytes: usize) {}

    /// Records that the storage is freed. No access may follow.
    pub const fn free(&self) {}
}

/// Tracks lent values in models. Here it does nothing.
#[derive(Debug)]
pub struct Lent<T>(PhantomData<T>);

impl<T> Default for Lent<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T> Lent<T> {
    /// Adds a lent value.
    pub fn add(&self, _lent: impl FnOnce() -> T) {}

    /// Ends all lent values.
    pub fn end(&mut self, _last_use: impl Fn(&T)) {}
}
