//! Waiting: one slot per waiting request, filled by the thread that admits the request.
//!
//! A thread whose change admits a request (a release, a finished copy, a cancellation) evaluates the queue
//! under the buffer's lock. It hands the result to the request's own [`Waiter`], and wakes the waiter after
//! the lock is released. Each waiter has its own condition variable and waker, so no wake-up can reach the
//! wrong one (L-4).
//!
//! A request that waits behind a prefetch also advances it, because no other thread may be polling it. When a
//! copy of the prefetch ends, the requests behind it are [nudged](Waiter::nudge).

use crate::base::guard::{guard, quietly};
use crate::base::id::{OwnerId, Ticket};
use crate::base::polling::polled;
use crate::base::rank::{Rank, Ranked};
use crate::base::sync::{Arc, Condvar};
use crate::buffer::shared_run::{Listener, Pace, SharedRun};
use crate::state::{Admission, Begin};
use std::collections::VecDeque;
use std::fmt;
use std::task::{Poll, Waker};
use std::time::Instant;

/// How a request waits for other users. Its own copies block the thread, unless there is a waker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait<'a> {
    /// The request does not wait.
    Try,
    /// The thread sleeps, until a deadline or without limit.
    Until(Option<Instant>),
    /// The request is a future, and continues when this waker is called.
    Awaken(&'a Waker),
}

/// The slot in which a waiting request receives its answer.
pub(crate) struct Waiter {
    slot: Ranked<Slot>,
    arrived: Condvar,
}

enum Slot {
    Waiting { waker: Option<Waker>, nudged: bool, sleeps: bool },
    Arrived(Begin),
    Taken,
}

/// Why a waiter stopped waiting.
#[derive(Debug)]
pub(crate) enum Woken {
    Answered(Begin),
    /// A prefetch ahead of the request can advance.
    Nudged,
    TimedOut,
}

/// The place of a request in its buffer's queue.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) ticket: Ticket,
    pub(crate) grant: OwnerId,
    pub(crate) waiter: Arc<Waiter>,
    /// The prefetches that had not ended when the request began to wait. No new one begins while it waits.
    pub(crate) ahead: Vec<Arc<SharedRun>>,
}

impl Place {
    /// Waits for the answer, and advances the prefetches ahead of the request meanwhile. Returns `None` after
    /// a timeout. Pending only with a waker.
    pub(crate) fn wait(&self, wait: Wait<'_>) -> Poll<Option<Begin>> {
        loop {
            let waits = self.ahead.iter().take_while(|_| !self.waiter.is_answered());
            waits.for_each(|run| _ = run.carry_on(Pace::Await, Listener::Behind(&self.waiter)));
            let Poll::Ready(woken) = self.waiter.wait(wait) else { return Poll::Pending };
            match woken {
                Woken::Answered(begin) => return Poll::Ready(Some(begin)),
                Woken::Nudged => {}
                Woken::TimedOut => return Poll::Ready(None),
            }
        }
    }
}

impl Waiter {
    pub(crate) fn new() -> Self {
        let slot = Slot::Waiting { waker: None, nudged: false, sleeps: false };
        Self { slot: Ranked::new(Rank::Leaf, slot), arrived: Condvar::new() }
    }

    /// Waits for the answer or a nudge. Pending only with a waker.
    fn wait(&self, wait: Wait<'_>) -> Poll<Woken> {
        match wait {
            Wait::Try => Poll::Ready(take(&mut self.slot.lock()).unwrap_or(Woken::TimedOut)),
            Wait::Until(deadline) => Poll::Ready(self.sleep(deadline)),
            Wait::Awaken(waker) => self.poll(waker),
        }
    }

    /// Sleeps until the answer arrives.
    pub(crate) fn answer(&self) -> Begin {
        loop {
            if let Woken::Answered(begin) = self.sleep(None) {
                return begin;
            }
        }
    }

    /// Sleeps until the answer or a nudge arrives, or until `deadline`.
    fn sleep(&self, deadline: Option<Instant>) -> Woken {
        polled(|| self.is_answered());
        let mut slot = self.slot.lock();
        loop {
            if let Some(woken) = take(&mut slot) {
                return woken;
            }
            if let Slot::Waiting { sleeps, .. } = &mut *slot {
                *sleeps = true;
            }
            match deadline {
                None => slot = slot.wait(&self.arrived),
                Some(deadline) => {
                    let (guard, timed_out) = slot.wait_until(&self.arrived, deadline);
                    slot = guard;
                    if timed_out {
                        return take(&mut slot).unwrap_or(Woken::TimedOut);
                    }
                }
            }
        }
    }

    /// Returns the answer or a nudge, or stores `waker` to be called when one arrives.
    fn poll(&self, waker: &Waker) -> Poll<Woken> {
        // Cloning or dropping a waker runs foreign code, so neither happens under a lock.
        let waker = waker.clone();
        let mut slot = self.slot.lock();
        if let Some(woken) = take(&mut slot) {
            drop(slot);
            return Poll::Ready(woken);
        }
        let replaced =
            std::mem::replace(&mut *slot, Slot::Waiting { waker: Some(waker), nudged: false, sleeps: false });
        drop(slot);
        quietly(replaced);
        Poll::Pending
    }

    /// Wakes a waiting thread, so that it advances the prefetches ahead of its request. Returns the waker to
    /// be called, if the request has one.
    pub(crate) fn nudge(&self) -> Option<Waker> {
        let mut slot = self.slot.lock();
        let Slot::Waiting { waker, nudged, sleeps } = &mut *slot else { return None };
        *nudged = true;
        let (waker, sleeps) = (waker.take(), *sleeps);
        drop(slot);
        if sleeps {
            self.arrived.notify_all();
        }
        waker
    }

    pub(crate) fn is_answered(&self) -> bool {
        !matches!(*self.slot.lock(), Slot::Waiting { .. })
    }

    /// Fills the slot, and returns the waker to be called.
    fn deliver(&self, begin: Begin) -> Option<Waker> {
        let before = std::mem::replace(&mut *self.slot.lock(), Slot::Arrived(begin));
        match before {
            Slot::Waiting { waker, sleeps, .. } => {
                if sleeps {
                    self.arrived.notify_all();
                }
                waker
            }
            Slot::Arrived(_) | Slot::Taken => None,
        }
    }
}

fn take(slot: &mut Slot) -> Option<Woken> {
    match slot {
        Slot::Arrived(_) => match std::mem::replace(slot, Slot::Taken) {
            Slot::Arrived(begin) => Some(Woken::Answered(begin)),
            _ => unreachable!("just matched"),
        },
        Slot::Waiting { nudged, .. } => std::mem::take(nudged).then_some(Woken::Nudged),
        Slot::Taken => None,
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiter")
    }
}

/// Waiters in the order of their tickets.
#[derive(Debug, Default)]
pub(crate) struct Waiters(VecDeque<(Ticket, Arc<Waiter>)>);

impl Waiters {
    pub(crate) fn add(&mut self, ticket: Ticket) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter::new());
        self.0.push_back((ticket, waiter.clone()));
        waiter
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Arc<Waiter>> {
        let index = self.0.binary_search_by_key(&ticket, |(waiting, _)| *waiting).ok()?;
        Some(self.0.remove(index)?.1)
    }

    /// Pairs admitted requests with their waiters. [`Wakes::deliver`] wakes the waiters later.
    pub(crate) fn admit(&mut self, admissions: Vec<Admission>, wakes: &mut Wakes) {
        for admission in admissions {
            if let Some(waiter) = self.remove(admission.ticket) {
                wakes.0.push((waiter, admission.begin));
            }
        }
    }
}

/// Admitted requests, to be notified after the buffer's lock is released.
#[derive(Debug, Default)]
#[must_use = "a waiter that is not woken sleeps for ever"]
pub(crate) struct Wakes(Vec<(Arc<Waiter>, Begin)>);

impl Wakes {
    /// Delivers all answers before any foreign code runs, because that code may wait for one of them. The
    /// caller then [calls](Calls::call) the returned wakers.
    pub(crate) fn deliver(self) -> Calls {
        Calls(self.0.into_iter().filter_map(|(waiter, begin)| waiter.deliver(begin)).collect())
    }
}

/// Wakers that are still to be called.
#[derive(Debug, Default)]
#[must_use = "a future whose waker is not called is not polled again"]
pub(crate) struct Calls(Vec<Waker>);

impl Calls {
    pub(crate) fn of(wakers: impl IntoIterator<Item = Waker>) -> Self {
        Self(wakers.into_iter().collect())
    }

    /// Calls all wakers. A waker is foreign code: its panic is printed on standard error, and affects neither
    /// the other wakers nor this thread.
    pub(crate) fn call(self) {
        for waker in self.0 {
            // The call is by reference, so that a waker that panics is dropped under a separate guard.
            let woken = guard(|| waker.wake_by_ref());
            quietly(waker);
            let _ = woken;
        }
    }
}
