//! The same interface on loom, which explores every interleaving of a small model.

pub use loom::sync::MutexGuard;
pub use loom::sync::atomic;
pub use loom::thread_local;
use std::time::Instant;

/// A mutual exclusion lock without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An open lock around `value`.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// The value, when nobody else can have it any more.
    pub fn into_inner(self) -> T {
        self.0.into_inner().expect("no thread of a model panics while it holds a lock")
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread of a model panics while it holds a lock")
    }

    /// The value, through the only reference there is.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("no thread of a model panics while it holds a lock")
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// Nobody waits yet.
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    /// Gives the lock up, sleeps until woken, and has the lock again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).expect("no thread of a model panics while it holds a lock")
    }

    /// As [`Condvar::wait`]: in a model no deadline ever passes.
    pub fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _deadline: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        (self.wait(guard), false)
    }

    /// Wakes every waiter.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock for a static, whose critical sections call nothing: with no switch of threads inside them, the model need not
/// know of it, and it may outlive one run of the model.
#[derive(Debug)]
pub struct StaticMutex<T>(std::sync::Mutex<T>);

impl<T> StaticMutex<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Runs `act` on the value. It must not take another lock.
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.0.lock().expect("no critical section of a static panics"))
    }
}
