//! Waiting: one slot per waiting request, filled by whoever lets it in.
//!
//! The thread whose change lets a request in (a release, a finished copy, a cancellation) evaluates the queue under
//! the buffer's lock and hands the result to the request's own [`Waiter`]; it wakes it after the lock is given up.
//! Each waiter has a condition variable and a waker of its own, so no wake-up can reach the wrong one (L-4).

use crate::engine::{guard, quietly};
use crate::id::Ticket;
use crate::state::{Admission, Begin};
use crate::sync::{Arc, Condvar, Mutex};
use std::fmt;
use std::task::{Poll, Waker};
use std::time::Instant;

/// How long somebody waits for what others hold. Copies of its own are waited for on the thread, unless there is a waker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait<'a> {
    /// Not at all.
    Try,
    /// The thread sleeps, until a moment or for as long as it takes.
    Until(Option<Instant>),
    /// As a future: it goes on when this waker is called.
    Awaken(&'a Waker),
}

/// Where a waiting request learns what became of it.
pub(crate) struct Waiter {
    slot: Mutex<Slot>,
    arrived: Condvar,
}

enum Slot {
    Waiting(Option<Waker>),
    Arrived(Begin),
    Taken,
}

impl Waiter {
    pub(crate) fn new() -> Self {
        Self { slot: Mutex::new(Slot::Waiting(None)), arrived: Condvar::new() }
    }

    /// Waits for the answer. There is none where the time was not enough; with a waker it may be pending.
    pub(crate) fn wait(&self, wait: Wait<'_>) -> Poll<Option<Begin>> {
        match wait {
            Wait::Try => Poll::Ready(take(&mut self.slot.lock())),
            Wait::Until(deadline) => Poll::Ready(self.sleep(deadline)),
            Wait::Awaken(waker) => self.poll(waker).map(Some),
        }
    }

    /// Sleeps until it is known, or until `deadline`.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> Option<Begin> {
        let mut slot = self.slot.lock();
        loop {
            if let Some(begin) = take(&mut slot) {
                return Some(begin);
            }
            match deadline {
                None => slot = self.arrived.wait(slot),
                Some(deadline) => {
                    let (guard, timed_out) = self.arrived.wait_until(slot, deadline);
                    slot = guard;
                    if timed_out {
                        return take(&mut slot);
                    }
                }
            }
        }
    }

    /// As a future: the result, or `waker` is called when it is there.
    fn poll(&self, waker: &Waker) -> Poll<Begin> {
        // A waker runs foreign code when it is cloned or dropped: never under a lock.
        let waker = waker.clone();
        let mut slot = self.slot.lock();
        if let Some(begin) = take(&mut slot) {
            drop(slot);
            return Poll::Ready(begin);
        }
        let replaced = std::mem::replace(&mut *slot, Slot::Waiting(Some(waker)));
        drop(slot);
        quietly(replaced);
        Poll::Pending
    }

    /// Fills the slot; who is to be called about it.
    fn deliver(&self, begin: Begin) -> Option<Waker> {
        let before = std::mem::replace(&mut *self.slot.lock(), Slot::Arrived(begin));
        self.arrived.notify_all();
        match before {
            Slot::Waiting(waker) => waker,
            Slot::Arrived(_) | Slot::Taken => None,
        }
    }
}

fn take(slot: &mut Slot) -> Option<Begin> {
    match slot {
        Slot::Arrived(_) => match std::mem::replace(slot, Slot::Taken) {
            Slot::Arrived(begin) => Some(begin),
            _ => unreachable!("just matched"),
        },
        Slot::Waiting(_) | Slot::Taken => None,
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiter")
    }
}

/// Waiters by ticket.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<(Ticket, Arc<Waiter>)>);

impl Waiters {
    pub(crate) fn add(&mut self, ticket: Ticket) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter::new());
        self.0.push((ticket, waiter.clone()));
        waiter
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Arc<Waiter>> {
        let index = self.0.iter().position(|(waiting, _)| *waiting == ticket)?;
        Some(self.0.remove(index).1)
    }

    /// Pairs those let in with their waiters; they are woken when the result is [fired](Wakes::fire).
    pub(crate) fn admit(&mut self, admissions: Vec<Admission>, wakes: &mut Wakes) {
        for admission in admissions {
            if let Some(waiter) = self.remove(admission.ticket) {
                wakes.0.push((waiter, admission.begin));
            }
        }
    }
}

/// Requests let in, to be told once the buffer's lock is given up.
#[derive(Debug, Default)]
#[must_use = "a waiter that is not told sleeps for ever"]
pub(crate) struct Wakes(Vec<(Arc<Waiter>, Begin)>);

impl Wakes {
    /// Tells all of them, before any code of somebody else's runs: it may wait for the answer of another. What is left to do is
    /// to [call](Calls::call) those who want to be.
    pub(crate) fn deliver(self) -> Calls {
        Calls(self.0.into_iter().filter_map(|(waiter, begin)| waiter.deliver(begin)).collect())
    }
}

/// Wakers to be called.
#[derive(Debug, Default)]
#[must_use = "a future whose waker is not called is not polled again"]
pub(crate) struct Calls(Vec<Waker>);

impl Calls {
    /// Calls them. A waker is somebody else's code: a panic of one is its owner's, who has it on standard error, and reaches
    /// neither the others nor the thread whose change let them in.
    pub(crate) fn call(self) {
        for waker in self.0 {
            // By reference, so that one that panics is dropped under a guard of its own.
            let woken = guard(|| waker.wake_by_ref());
            quietly(waker);
            let _ = woken;
        }
    }
}
