//! A run that several threads may advance: the thread that requested it, and those that wait behind it.
//!
//! ```text
//!              ┌── carry_on, complete, give_up ──┐
//!   Parked(run) ◀──── copies are in flight ──── Driven ──── the plan has ended ──▶ Ended(result)
//! ```
//! A program may keep a prefetch without polling it. Its copies end, but its plan keeps its reservations
//! until a thread reports these ends. So requests that wait behind a prefetch advance it as well.
//!
//! 1. At most one thread has the run. The others see [`Course::Driven`], and are notified by that thread.
//! 2. Every poll of a fence uses the shared run's own waker, so that no listener's waker replaces another.
//! 3. A wake-up while a thread has the run is kept for that thread. Any other wakes all listeners.
//! 4. The lock is not held while the run advances, or while a waker is called or dropped.

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

/// A run that makes no grant, in its own slot.
pub(crate) struct SharedRun {
    slot: Ranked<Slot>,
    /// Notified when the run is parked or ends, and when one of its copies ends.
    changed: Condvar,
    stop: Stop,
}

struct Slot {
    course: Course,
    /// Whether a copy has ended since the run last polled its copies.
    rung: bool,
    /// The waker of the task that awaits the run.
    asker: Option<Waker>,
    /// The requests that wait behind the run.
    behind: Vec<Weak<Waiter>>,
}

enum Course {
    Parked(Box<Run>),
    Driven,
    Ended(Result<(), AcquireError>),
}

/// How far a caller advances a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Completes the copies that have ended, and begins the steps that can begin.
    Notice,
    /// Also waits for the oldest copy, if its arena cannot notify its end.
    Await,
}

/// The listener that is notified when the run can advance or has ended.
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

    /// Advances the run as far as possible, unless another thread has it. Returns its result if it has ended;
    /// otherwise the listener is notified later.
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

    /// Runs the plan to its end, and waits for its copies one by one.
    pub(crate) fn complete(self: &Arc<Self>) -> Result<(), AcquireError> {
        self.take().map_or_else(|ended| ended, Turn::complete)
    }

    /// Advances the run until it ends or `deadline` passes. Returns `None` after a timeout.
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

    /// Gives the run up if it has not ended: no further step begins. Waits for the copies in flight.
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

    /// Takes the run, as soon as no other thread has it. If it has ended, returns its result as the error.
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

    /// Sleeps until the run has ended or can advance. Returns whether that was before the deadline.
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

    /// Wakes all listeners.
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

/// The result of an attempt to take the run.
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

/// Called when a copy has ended, or when its arena needs another poll.
impl Wake for SharedRun {
    fn wake(self: Arc<Self>) {
        let mut slot = self.slot.lock();
        slot.rung = true;
        if matches!(slot.course, Course::Parked(_)) {
            self.tell(slot);
        }
    }
}

/// Exclusive use of the run by this thread. Dropping the turn gives the run up.
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

    /// Puts the run back, unless a copy has ended since its last poll. Returns whether it did.
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
        // The run is dropped first, because it may hold the last handle of the buffer.
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

/// Records that a run has ended, even if dropping it panics.
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
