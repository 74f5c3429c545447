//! The same interface on loom, which explores every interleaving of a small model.

use loom::cell::UnsafeCell;
pub use loom::sync::MutexGuard;
pub use loom::sync::atomic;
pub use loom::thread;
pub use loom::thread_local;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A mutual exclusion lock without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked lock around `value`.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().expect("no thread of a model panics while it holds a lock")
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread of a model panics while it holds a lock")
    }

    /// Returns the value through an exclusive reference, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("no thread of a model panics while it holds a lock")
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// Creates a condition variable without waiters.
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    /// Releases the lock, sleeps until woken, and takes the lock again.
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

/// A lock for a static, whose critical sections call nothing. Threads do not switch inside them, so the model
/// need not know the lock, and it may outlive one run of the model.
#[derive(Debug)]
pub struct StaticMutex<T>(std::sync::Mutex<T>);

impl<T> StaticMutex<T> {
    /// Creates an unlocked lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Runs `act` on the value. `act` must not take another lock.
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.0.lock().expect("no critical section of a static panics"))
    }

    /// As [`with`](Self::with), unless another thread has the lock.
    pub fn try_with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.try_lock().ok().map(|mut value| act(&mut value))
    }
}

/// Tracks the accesses to each byte of one storage with one loom cell per byte. loom fails a model in which
/// two accesses to a cell, one of them a write, are not ordered by locks.
///
/// Clones and [parts](Tracker::part) track the same bytes.
#[derive(Clone, Default)]
pub struct Tracker {
    storage: Option<super::Arc<Tracked>>,
    start: usize,
}

struct Tracked {
    cells: Box<[UnsafeCell<()>]>,
    /// This is no loom atomic: reference counts order the free, and the models do not see those.
    is_freed: AtomicBool,
}

impl Tracker {
    /// Creates a tracker of fresh storage of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        let cells = (0..bytes).map(|_| UnsafeCell::new(())).collect();
        let tracked = Tracked { cells, is_freed: AtomicBool::new(false) };
        Self { storage: Some(super::Arc::new(tracked)), start: 0 }
    }

    /// Returns a tracker of the bytes from `start` on.
    pub fn part(&self, start: usize) -> Self {
        Self { storage: self.storage.clone(), start: self.start + start }
    }

    /// Records a read of the first `bytes` bytes.
    pub fn read(&self, bytes: usize) {
        self.touched(bytes).iter().for_each(|cell| cell.with(|_| ()));
    }

    /// Records a write of the first `bytes` bytes.
    pub fn write(&self, bytes: usize) {
        self.touched(bytes).iter().for_each(|cell| cell.with_mut(|_| ()));
    }

    /// Records that the storage is freed. No access may follow.
    pub fn free(&self) {
        if let Some(storage) = &self.storage {
            storage.is_freed.store(true, Ordering::Relaxed);
        }
    }

    fn touched(&self, bytes: usize) -> &[UnsafeCell<()>] {
        let Some(storage) = &self.storage else { return &[] };
        assert!(
            !storage.is_freed.load(Ordering::Relaxed),
            "{bytes} bytes touched after their storage was freed"
        );
        &storage.cells[self.start..self.start + bytes]
    }
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tracker")
    }
}

/// Lent values that may be in use until their lender ends.
#[derive(Debug)]
pub struct Lent<T>(std::sync::Mutex<Vec<T>>);

impl<T> Default for Lent<T> {
    fn default() -> Self {
        Self(std::sync::Mutex::default())
    }
}

impl<T> Lent<T> {
    /// Adds a lent value.
    pub fn add(&self, lent: impl FnOnce() -> T) {
        self.0.lock().expect("no critical section panics").push(lent());
    }

    /// Ends all lent values, and calls `last_use` for each. A thread that unwinds skips this, because its
    /// model fails anyway.
    pub fn end(&mut self, last_use: impl Fn(&T)) {
        if !std::thread::panicking() {
            self.0.get_mut().expect("no critical section panics").drain(..).for_each(|lent| last_use(&lent));
        }
    }
}
