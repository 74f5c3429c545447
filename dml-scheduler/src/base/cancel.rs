//! Cancellation of a run, including its threads that wait for buffers.
//!
//! ```text
//!   cancel ─┬─▶ the commander hands out no further package
//!           └─▶ a thread that waits for a buffer drops its request ──▶ Interrupted
//! ```
//! 1. A thread joins the list of sleepers before it checks the cancel flag. A canceller sets the flag before
//!    it reads the list. So no thread sleeps through a cancellation.
//! 2. A request that can be granted at once is granted in a cancelled run too: only waiting ends.

use dml_core::internal::sync::{Arc, Condvar, Mutex};
use dml_core::{Acquire, Grants};
use std::cell::RefCell;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// Started runs that this thread works for, by the addresses of their [`Cancel`]s.
    static WITHIN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The request was dropped because its run was cancelled.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the run was cancelled")]
pub(crate) struct Interrupted;

/// Cancel flag of a run, and its sleeping threads.
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
    /// Marks the run as cancelled, and wakes every thread that waits for a request.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        for sleeper in &*self.sleepers.lock() {
            sleeper.wake_by_ref();
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }

    /// Waits for a request, unless the run is cancelled first.
    ///
    /// # Errors
    /// [`Interrupted`] if the run is cancelled while the request waits; otherwise the error of the request.
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

    /// Marks this thread as one of the run until the returned value is dropped.
    pub(crate) fn enter(&self) -> Within {
        WITHIN.with_borrow_mut(|runs| runs.push(self.address()));
        Within
    }

    /// Returns whether this thread works for the run, so that waiting for the run would never end.
    pub(crate) fn is_within(&self) -> bool {
        WITHIN.try_with(|runs| runs.borrow().contains(&self.address())).unwrap_or(false)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// A sleeper's entry in the list; dropping it removes the entry.
struct Listed<'a> {
    cancel: &'a Cancel,
    sleeper: &'a Arc<Sleeper>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.cancel.sleepers.lock().retain(|other| !Arc::ptr_eq(other, self.sleeper));
    }
}

/// Mark of a thread that works for a started run. A thread's marks are dropped in the reverse order of their
/// creation.
pub(crate) struct Within;

impl Drop for Within {
    fn drop(&mut self) {
        WITHIN.with_borrow_mut(Vec::pop);
    }
}
