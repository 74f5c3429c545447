//! The real thing.

#[cfg(dml_tsan)]
#[path = "sanitized.rs"]
mod locks;
#[cfg(not(dml_tsan))]
#[path = "standard.rs"]
mod locks;

pub use locks::{Condvar, Mutex, MutexGuard};
use std::marker::PhantomData;
pub use std::sync::atomic;
pub use std::thread_local;

/// A lock for a static, whose critical sections call nothing.
#[derive(Debug)]
pub struct StaticMutex<T>(Mutex<T>);

impl<T> StaticMutex<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Runs `act` on the value. It must not take another lock.
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.0.lock())
    }
}

/// Who touches which bytes of one storage: a model wants to know, here it is nothing.
#[derive(Clone, Debug, Default)]
pub struct Tracker(());

impl Tracker {
    /// Of fresh storage of so many bytes.
    #[must_use]
    pub const fn new(_bytes: usize) -> Self {
        Self(())
    }

    /// Of the bytes from `start` on.
    #[must_use]
    pub const fn part(&self, _start: usize) -> Self {
        Self(())
    }

    /// The first `bytes` bytes are read.
    pub const fn read(&self, _bytes: usize) {}

    /// The first `bytes` bytes are written.
    pub const fn write(&self, _bytes: usize) {}

    /// The storage goes: nobody may touch it from now on.
    pub const fn free(&self) {}
}

/// What was lent and may be in use until whoever lent it ends: a model wants to know, here it is nothing.
#[derive(Debug)]
pub struct Lent<T>(PhantomData<T>);

impl<T> Default for Lent<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T> Lent<T> {
    /// One more.
    pub fn add(&self, _lent: impl FnOnce() -> T) {}

    /// The end, up to which all of it was in use.
    pub fn end(&mut self, _last_use: impl Fn(&T)) {}
}
