//! A run that several threads may carry on: whoever asked for it, and whoever waits behind it.
//!
//! ```text
//!              ┌── carry_on, complete, give_up ──┐
//!   Parked(run) ◀──── copies are under way ──── Driven ──── the plan has ended ──▶ Ended(result)
//! ```
//! The value that asked for a prefetch may be kept without being looked at. Its copies end, but its plan keeps its
//! reservations until somebody reports their ends. So those who wait behind the prefetch do that too.
//!
//! 1. One thread at most has the run. The others see [`Course::Driven`], and hear from that thread.
//! 2. Every poll of a fence uses the shared run's own waker. So nobody's waker replaces another's.
//! 3. A wake-up while a thread has the run is kept for that thread. Any other goes to all who listen.
//! 4. The lock is not held while the run goes on, or while a waker is called or dropped.

use crate::base::guard::quietly;
use crate::base::rank::{Rank, Ranked, RankedGuard};
use crate::base::sync::{Arc, Condvar};
use crate::buffer::engine::{Run, Stop};
use crate::buffer::error::AcquireError;
use crate::buffer::wait::{Calls, Wait, Waiter};
use std::fmt;
use std::sync::Weak;
use std::task::{Poll, Wake, Waker};
use std::time::Instant;

/// A run that grants nothing, in a slot of its own.
pub(crate) struct SharedRun {
    slot: Ranked<Slot>,
    /// The run was parked, has ended, or a copy of it has.
    changed: Condvar,
    stop: Stop,
}

struct Slot {
    course: Course,
    /// Whether a copy has ended since the run last looked at its copies.
    rung: bool,
    /// The task of the value that asked.
    asker: Option<Waker>,
    /// The requests that wait behind the run.
    behind: Vec<Weak<Waiter>>,
}

enum Course {
    Parked(Box<Run>),
    Driven,
    Ended(Result<(), AcquireError>),
}

/// How far a caller carries a run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Notices what has ended, and begins what can begin.
    Notice,
    /// Also waits for the oldest copy, if its arena cannot tell of its end.
    Await,
}

/// Who is told when the run can go on or has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listener<'a> {
    Nobody,
    Asker(&'a Waker),
    Behind(&'a Arc<Waiter>),
}

impl SharedRun {
    pub(crate) fn new(run: Run, stop: Stop) -> Arc<Self> {
        let course = Course::Parked(Box::new(run.stopped_by(stop.clone())));
        let slot = Slot { course, rung: false, asker: None, behind: Vec::new() };
        Arc::new(Self { slot: Ranked::new(Rank::Leaf, slot), changed: Condvar::new(), stop })
    }

    /// Carries the run on as far as it goes, unless another thread has it, and returns its result if it has ended.
    /// Otherwise the listener will be told.
    pub(crate) fn carry_on(
        self: &Arc<Self>,
        pace: Pace,
        listener: Listener<'_>,
    ) -> Poll<Result<(), AcquireError>> {
        // Cloning or dropping a waker runs foreign code, so neither happens under the lock.
        let (asker, behind) = match listener {
            Listener::Nobody => (None, None),
            Listener::Asker(waker) => (Some(waker.clone()), None),
            Listener::Behind(waiter) => (None, Some(Arc::downgrade(waiter))),
        };
        let mut slot = self.slot.lock();
        let replaced = slot.listen(asker, behind);
        let taken = slot.take_run();
        drop(slot);
        quietly(replaced);
        match taken {
            Taken::Run(run) => Turn { shared: self, run: Some(run) }.carry_on(pace),
            Taken::Elsewhere => Poll::Pending,
            Taken::Ended(result) => Poll::Ready(result),
        }
    }

    /// Carries the run to its end, and waits for its copies one by one.
    pub(crate) fn complete(self: &Arc<Self>) -> Result<(), AcquireError> {
        self.take().map_or_else(|ended| ended, Turn::complete)
    }

    /// Carries the run to its end, until `deadline`. Returns `None` if the time was not enough.
    pub(crate) fn finish(self: &Arc<Self>, deadline: Option<Instant>) -> Option<Result<(), AcquireError>> {
        loop {
            if let Poll::Ready(ended) = self.carry_on(Pace::Await, Listener::Nobody) {
                return Some(ended);
            }
            if !self.sleep(deadline) {
                return None;
            }
        }
    }

    /// Gives the run up if it has not ended: no further step begins, and the copies under way are waited for.
    pub(crate) fn give_up(self: &Arc<Self>) {
        self.stop.stop();
        let asker = self.slot.lock().asker.take();
        quietly(asker);
        drop(self.take());
    }

    /// Returns whether the run has ended.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.slot.lock().course, Course::Ended(_))
    }

    /// Takes the run, as soon as no other thread has it. Its result is the error if it has ended.
    fn take(self: &Arc<Self>) -> Result<Turn<'_>, Result<(), AcquireError>> {
        let mut slot = self.slot.lock();
        loop {
            match slot.take_run() {
                Taken::Run(run) => return Ok(Turn { shared: self, run: Some(run) }),
                Taken::Elsewhere => slot = slot.wait(&self.changed),
                Taken::Ended(result) => return Err(result),
            }
        }
    }

    /// Sleeps until the run has ended or can go on. Returns whether that was before the deadline.
    fn sleep(&self, deadline: Option<Instant>) -> bool {
        let goes_on = |slot: &Slot| match slot.course {
            Course::Parked(_) => slot.rung,
            Course::Driven => false,
            Course::Ended(_) => true,
        };
        let mut slot = self.slot.lock();
        while !goes_on(&slot) {
            match deadline {
                None => slot = slot.wait(&self.changed),
                Some(deadline) => {
                    let (guard, timed_out) = slot.wait_until(&self.changed, deadline);
                    slot = guard;
                    if timed_out {
                        return goes_on(&slot);
                    }
                }
            }
        }
        true
    }

    /// Wakes all who listen.
    fn tell(&self, mut slot: RankedGuard<'_, Slot>) {
        let (asker, behind) = (slot.asker.take(), std::mem::take(&mut slot.behind));
        drop(slot);
        self.changed.notify_all();
        // Threads are woken before any foreign code runs.
        let nudged: Vec<_> =
            behind.iter().filter_map(Weak::upgrade).filter_map(|waiter| waiter.nudge()).collect();
        Calls::of(nudged.into_iter().chain(asker)).call();
    }

    fn ended(&self, result: Result<(), AcquireError>) {
        let mut slot = self.slot.lock();
        slot.course = Course::Ended(result);
        self.tell(slot);
    }
}

/// What a thread that asks for the run gets.
enum Taken {
    Run(Box<Run>),
    /// Another thread has it.
    Elsewhere,
    Ended(Result<(), AcquireError>),
}

impl Slot {
    fn take_run(&mut self) -> Taken {
        match std::mem::replace(&mut self.course, Course::Driven) {
            Course::Parked(run) => {
                self.rung = false;
                Taken::Run(run)
            }
            Course::Driven => Taken::Elsewhere,
            Course::Ended(result) => {
                self.course = Course::Ended(result.clone());
                Taken::Ended(result)
            }
        }
    }

    /// Adds a listener, unless the run has ended. Returns the waker that is not needed any more.
    fn listen(&mut self, asker: Option<Waker>, behind: Option<Weak<Waiter>>) -> Option<Waker> {
        if matches!(self.course, Course::Ended(_)) {
            return asker;
        }
        if let Some(behind) = behind {
            self.behind.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&behind));
            self.behind.push(behind);
        }
        asker.and_then(|asker| self.asker.replace(asker))
    }
}

/// A copy has ended, or the arena wants to be asked again.
impl Wake for SharedRun {
    fn wake(self: Arc<Self>) {
        let mut slot = self.slot.lock();
        slot.rung = true;
        if matches!(slot.course, Course::Parked(_)) {
            self.tell(slot);
        }
    }
}

/// The run in the hands of this thread. Dropping the turn gives the run up.
struct Turn<'a> {
    shared: &'a Arc<SharedRun>,
    run: Option<Box<Run>>,
}

impl Turn<'_> {
    fn carry_on(mut self, pace: Pace) -> Poll<Result<(), AcquireError>> {
        let waker = Waker::from(self.shared.clone());
        loop {
            let ended = self.run.as_mut().map(|run| match pace {
                Pace::Notice => run.begin(&waker),
                Pace::Await => run.advance(Wait::Awaken(&waker)),
            });
            if let Some(Poll::Ready(ended)) = ended {
                return Poll::Ready(self.end(ended.map(|_| ())));
            }
            if self.park() {
                return Poll::Pending;
            }
        }
    }

    fn complete(mut self) -> Result<(), AcquireError> {
        loop {
            if let Some(Poll::Ready(ended)) = self.run.as_mut().map(|run| run.advance(Wait::Try)) {
                return self.end(ended.map(|_| ()));
            }
        }
    }

    /// Puts the run back, unless a copy has ended since it was looked at.
    fn park(&mut self) -> bool {
        let mut slot = self.shared.slot.lock();
        if std::mem::take(&mut slot.rung) {
            return false;
        }
        if let Some(run) = self.run.take() {
            slot.course = Course::Parked(run);
        }
        drop(slot);
        self.shared.changed.notify_all();
        true
    }

    fn end(mut self, result: Result<(), AcquireError>) -> Result<(), AcquireError> {
        // The run goes first: with it may go the last handle of the buffer.
        drop(self.run.take());
        self.shared.ended(result.clone());
        result
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(run) = self.run.take() else { return };
        let cancelled = AcquireError::Cancelled { buffer: run.buffer_name() };
        let ended = Ended { shared: self.shared, result: Some(cancelled) };
        drop(run);
        drop(ended);
    }
}

/// Says that a run has ended, even if its end panics.
struct Ended<'a> {
    shared: &'a SharedRun,
    result: Option<AcquireError>,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if let Some(cancelled) = self.result.take() {
            self.shared.ended(Err(cancelled));
        }
    }
}

impl fmt::Debug for SharedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedRun")
    }
}
