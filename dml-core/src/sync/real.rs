//! The real thing: what the standard library has, without its poisoning.
//!
//! A lock is a word of its own, and so is a condition variable. A library that keeps those who wait in a table of the process
//! would leave a fork with a table that names threads it does not have.

use std::marker::PhantomData;
pub use std::sync::MutexGuard;
use std::sync::PoisonError;
pub use std::sync::atomic;
pub use std::thread_local;
use std::time::Instant;

/// A mutual exclusion lock without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// The value, when nobody else can have it any more.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, through the only reference there is.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Nobody waits yet.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Gives the lock up, sleeps until woken, and has the lock again. It may also wake by itself.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Condvar::wait`], until `deadline` at most; whether the deadline passed.
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

/// A lock for a static, whose critical sections call nothing.
#[derive(Debug)]
pub struct StaticMutex<T>(std::sync::Mutex<T>);

impl<T> StaticMutex<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Runs `act` on the value. It must not take another lock.
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
