//! How a run hears that it was cancelled, also where it waits for others.
//!
//! ```text
//!   cancel ─┬─▶ the commander hands out no further package
//!           └─▶ who waits for a buffer gives the request up ──▶ Interrupted
//! ```
//! 1. Whoever is about to sleep is on the list before it looks whether the run is cancelled. Whoever cancels says so before it
//!    reads the list. So nobody sleeps through it.
//! 2. A request that is granted at once is granted in a cancelled run too: only waiting ends.

use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{Acquire, Grants};
use std::cell::RefCell;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// The started runs on whose threads this code runs, by address.
    static WITHIN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A request was given up, because its run was cancelled.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the run was cancelled")]
pub(crate) struct Interrupted;

/// Whether a run was cancelled, and who sleeps in it.
#[derive(Debug, Default)]
pub(crate) struct Cancel {
    is_cancelled: AtomicBool,
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
}

/// A thread that waits for a request.
#[derive(Debug, Default)]
struct Sleeper {
    is_awake: Mutex<bool>,
    changed: Condvar,
}

impl Sleeper {
    fn sleep(&self) {
        let mut is_awake = self.is_awake.lock();
        while !std::mem::take(&mut *is_awake) {
            is_awake = self.changed.wait(is_awake);
        }
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.is_awake.lock() = true;
        self.changed.notify_all();
    }
}

impl Cancel {
    /// Says that the run is cancelled, and wakes who waits for a request.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        for sleeper in &*self.sleepers.lock() {
            sleeper.wake_by_ref();
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }

    /// Waits for a request, as long as the run is not cancelled.
    ///
    /// # Errors
    /// [`Interrupted`], or what the request ends with.
    pub(crate) fn wait(&self, acquire: Acquire) -> Result<Grants, Box<dyn Error + Send + Sync>> {
        let mut request = pin!(acquire.into_blocking_future());
        let sleeper = Arc::new(Sleeper::default());
        let _listed = self.list(&sleeper);
        let waker = Waker::from(sleeper.clone());
        loop {
            if let Poll::Ready(granted) = request.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(granted?);
            }
            if self.is_cancelled() {
                return Err(Interrupted.into());
            }
            sleeper.sleep();
        }
    }

    fn list<'a>(&'a self, sleeper: &'a Arc<Sleeper>) -> Listed<'a> {
        self.sleepers.lock().push(sleeper.clone());
        Listed { cancel: self, sleeper }
    }

    /// Marks this thread as one of the run, until the value is dropped.
    pub(crate) fn enter(&self) -> Within {
        WITHIN.with_borrow_mut(|runs| runs.push(self.address()));
        Within
    }

    /// Returns whether this thread is one of the run: it would wait for itself.
    pub(crate) fn is_within(&self) -> bool {
        WITHIN.try_with(|runs| runs.borrow().contains(&self.address())).unwrap_or(false)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// A sleeper's place on the list.
struct Listed<'a> {
    cancel: &'a Cancel,
    sleeper: &'a Arc<Sleeper>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.cancel.sleepers.lock().retain(|other| !Arc::ptr_eq(other, self.sleeper));
    }
}

/// The mark of a thread that works for a started run. Marks end in the reverse order of their beginnings.
pub(crate) struct Within;

impl Drop for Within {
    fn drop(&mut self) {
        WITHIN.with_borrow_mut(Vec::pop);
    }
}
