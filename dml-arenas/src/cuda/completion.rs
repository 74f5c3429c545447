//! The end of a command: a fence that can be waited for and awaited.
//!
//! ```text
//!   command ──▶ its event joins the lane, in the order of the stream ──▶ ended: it leaves the lane
//!   wait ──▶ the caller looks at the event for a moment, then now and then, and sleeps between two looks
//!   poll ──▶ ended? ──no──▶ watched: the lane's thread waits for the first event, then the next, and wakes
//! ```
//! 1. A stream runs in order, so a thread that waits for the first event of its lane never waits for one that ends after
//!    another. It sleeps for a small part of the time that it has waited, so it takes next to no processor time, but for a moment
//!    ([`MOMENT`]) at the beginning. An event for which a thread can sleep in the driver (`CU_EVENT_BLOCKING_SYNC`) comes with an
//!    interrupt: beside some GPUs its end is seen 30 us late, also by who looks all the time.
//! 2. The event says how the command has ended. The thread only tells that it has.
//! 3. A command that is only waited for wakes no thread, and a lane without futures has none.
//! 4. Between a command and its event nobody else enqueues anything, nor between that and its place in the lane ([`Lane::in_order`]). Otherwise its
//!    end would be told with that of another one.
//! 5. A stream of the application has a lane while fences of it are to come.

use super::error::check;
use super::session::{Raw, Session};
use crate::kit::{Awaited, Signal, Signaller};
use cudarc::driver::sys::{CUevent, CUresult, CUstream, cuEventQuery, cuEventSynchronize};
use dml_core::sync::{Arc, Condvar, Mutex, MutexGuard};
use dml_core::{Completion, TransferError};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// How long whoever waits looks at an event all the time. Short kernels end meanwhile, and transfers of some megabytes. Between two looks
/// threads that have work get the core.
const MOMENT: Duration = Duration::from_millis(3);
/// The same of the thread that tells others.
const TELLERS_MOMENT: Duration = Duration::from_micros(60);
/// Whoever has waited for longer sleeps for this part of the wait so far, and for so long at the least and at the most.
const SLEEPS: u32 = 128;
const LEAST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// An event of a session, which takes it back.
#[derive(Debug)]
pub(super) struct Event {
    raw: Raw<CUevent>,
    session: Arc<Session>,
}

impl Event {
    pub(super) fn new(raw: Raw<CUevent>, session: Arc<Session>) -> Self {
        Self { raw, session }
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw.0
    }

    /// Waits for the event: looks at it for a moment, then now and then.
    fn wait(&self, call: &'static str, moment: Duration) -> Result<(), TransferError> {
        let _entered = self.session.enter_lost()?;
        let begun = Instant::now();
        let ended = loop {
            // SAFETY: a live event of the context.
            match unsafe { cuEventQuery(self.raw.0) } {
                CUresult::CUDA_ERROR_NOT_READY => {}
                CUresult::CUDA_SUCCESS => break CUresult::CUDA_SUCCESS,
                // Another error than that of the command may only mean that the event cannot be asked now.
                // SAFETY: as above.
                _ => break unsafe { cuEventSynchronize(self.raw.0) },
            }
            match begun.elapsed() {
                waited if waited < moment => std::thread::yield_now(),
                waited => std::thread::sleep((waited / SLEEPS).clamp(LEAST_SLEEP, LONGEST_SLEEP)),
            }
        };
        check(call, ended).map_err(|failure| self.session.failed(failure))
    }

    /// Returns whether the event has come, as far as the driver tells. Another error than that it has not may only mean that it cannot be asked now.
    fn has_come(&self) -> bool {
        let Ok(_entered) = self.session.enter_lost() else { return true };
        // SAFETY: a live event of the context.
        unsafe { cuEventQuery(self.raw.0) == CUresult::CUDA_SUCCESS }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.session.take_back(self.raw);
    }
}

/// A command that was enqueued. Dropping it does not wait; [`Fence`](dml_core::Fence) does.
pub(super) struct Command {
    call: &'static str,
    lane: Arc<Lane>,
    number: u64,
    event: Arc<Event>,
    /// The number of bytes that the command moves.
    bytes: u64,
    /// What must live until the command has ended.
    keep: Option<Box<dyn Any + Send>>,
    /// The word that the command has ended, once somebody has polled.
    told: Option<Awaited>,
}

impl Command {
    pub(super) fn new(
        call: &'static str,
        lane: &Arc<Lane>,
        event: Event,
        bytes: u64,
        keep: Option<Box<dyn Any + Send>>,
    ) -> Self {
        let event = Arc::new(event);
        let number = lane.join(&event);
        Self { call, lane: lane.clone(), number, event, bytes, keep, told: None }
    }

    /// Waits for the end, and lets go of what the command used and of the waker.
    fn result(&mut self) -> Result<u64, TransferError> {
        let ended = self.event.wait(self.call, MOMENT);
        if self.event.session.is_here() {
            self.lane.leave(self.number);
        }
        self.keep = None;
        // The destructor of a waker may panic. It comes after the end, because the command uses what it was lent until then.
        self.told = None;
        ended.map(|()| self.bytes)
    }
}

impl Completion for Command {
    fn wait(mut self: Box<Self>) -> Result<u64, TransferError> {
        self.result()
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        if !self.event.has_come() {
            if self.told.is_none() {
                self.told = self.lane.watch(self.number);
            }
            if self.told.as_mut().is_some_and(|told| told.poll_end(waker).is_pending()) {
                return Poll::Pending;
            }
        }
        // It has ended, whether or not that was told yet, or there is no thread to tell it.
        Poll::Ready(self.result())
    }

    fn has_ended(&self) -> bool {
        // A device that is lost tells of no event, but the lane has waited for it.
        self.event.has_come() || self.told.as_ref().is_some_and(Completion::has_ended)
    }
}

/// A stream, and the events of its commands that have not ended.
pub(super) struct Lane {
    stream: Raw<CUstream>,
    /// Held by whoever enqueues a command.
    order: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next_number: u64,
    /// The events to come, by number, with whom to tell.
    events: BTreeMap<u64, (Arc<Event>, Option<Signaller>)>,
    has_thread: bool,
    is_closed: bool,
}

impl Lane {
    pub(super) fn new(stream: Raw<CUstream>) -> Arc<Self> {
        Arc::new(Self { stream, order: Mutex::new(()), state: Mutex::default(), changed: Condvar::new() })
    }

    pub(super) fn stream(&self) -> CUstream {
        self.stream.0
    }

    /// Lets nobody else enqueue a command, until the result is dropped.
    pub(super) fn in_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock()
    }

    fn join(&self, event: &Arc<Event>) -> u64 {
        let mut state = self.state.lock();
        let number = state.next_number;
        state.next_number += 1;
        state.events.insert(number, (event.clone(), None));
        number
    }

    fn leave(&self, number: u64) {
        let left = self.state.lock().events.remove(&number);
        drop(left);
    }

    /// Has the lane's thread tell the end of a command. `None` if it has ended, or no thread can be started.
    fn watch(self: &Arc<Self>, number: u64) -> Option<Awaited> {
        let mut state = self.state.lock();
        if !state.has_thread {
            let (this, thread) = (self.clone(), std::thread::Builder::new().name("cuda events".to_owned()));
            state.has_thread = thread.spawn(move || this.tell()).is_ok();
        }
        if !state.has_thread {
            return None;
        }
        let (_, signaller) = state.events.get_mut(&number)?;
        let (signal, tells) = Signal::new();
        *signaller = Some(tells);
        drop(state);
        self.changed.notify_all();
        Some(signal.awaited())
    }

    /// Returns whether all of its commands have ended, as far as anybody has seen.
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().events.is_empty()
    }

    /// Ends the thread, once it has told whom it is to tell.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for the events, one after the other, as long as somebody is to be told.
    fn tell(&self) {
        while let Some((number, event)) = self.next() {
            // How it ended is for the command to find out.
            let _ = event.wait("cuEventSynchronize", TELLERS_MOMENT);
            let ended = self.state.lock().events.remove(&number);
            // The last of a session may go here, which closes this lane.
            if let Some((_, Some(signaller))) = ended {
                signaller.end(Ok(0));
            }
        }
    }

    fn next(&self) -> Option<(u64, Arc<Event>)> {
        let mut state = self.state.lock();
        loop {
            if state.events.values().any(|(_, signaller)| signaller.is_some()) {
                return state.events.first_key_value().map(|(number, (event, _))| (*number, event.clone()));
            }
            if state.is_closed {
                // Whoever has a command of it still may ask later.
                state.has_thread = false;
                return None;
            }
            state = self.changed.wait(state);
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({:?})", self.stream.0)
    }
}
