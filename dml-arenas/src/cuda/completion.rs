//! The end of a command: a fence that a thread can wait for and a future can await.
//!
//! ```text
//!   command ──▶ its event joins the lane, in stream order ──▶ ended: the event leaves the lane
//!   wait ──▶ the waiter polls the event for a moment, then sleeps between polls
//!   poll ──▶ ended? ──no──▶ watched: the lane's thread waits for the events in order, and wakes the future
//! ```
//! 1. A stream runs in order, so the first event of a lane completes first. A waiter polls for [`MOMENT`],
//!    and then sleeps for a small fraction of its wait so far, so it uses almost no processor time. Events do
//!    not use `CU_EVENT_BLOCKING_SYNC`, which lets a thread sleep in the driver. Its interrupt delays the end
//!    by 30 us on some GPUs, also for a thread that polls.
//! 2. The event carries the result of the command. The lane's thread only signals the end.
//! 3. A command that is only waited for wakes no thread. A lane without futures has no thread.
//! 4. Between enqueueing a command, recording its event and adding that to the lane, no other thread enqueues
//!    on the stream ([`Lane::in_order`]). Otherwise, one command's end could be reported as another's.
//! 5. A stream of the application has a lane while fences of it are pending.

use super::error::check;
use super::session::{Raw, Session};
use crate::kit::{Awaited, Signal, Signaller};
use cudarc::driver::sys::{CUevent, CUresult, CUstream, cuEventQuery, cuEventSynchronize};
use dml_core::internal::sync::{Arc, Condvar, Mutex, MutexGuard};
use dml_core::{Completion, TransferError};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// How long a waiter polls before it sleeps. Short kernels and transfers of a few megabytes end within it.
/// Each poll yields the core to threads that have work.
const MOMENT: Duration = Duration::from_millis(3);
/// [`MOMENT`] of a lane's thread.
const TELLERS_MOMENT: Duration = Duration::from_micros(60);
/// A waiter sleeps for 1/`SLEEPS` of its wait so far, within [`LEAST_SLEEP`] and [`LONGEST_SLEEP`].
const SLEEPS: u32 = 128;
const LEAST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// An event of a session, returned to it on drop.
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

    fn wait(&self, call: &'static str, moment: Duration) -> Result<(), TransferError> {
        self.session.wait_for_event(self.raw.0, call, moment)
    }

    fn has_come(&self) -> bool {
        self.session.has_come(self.raw.0)
    }
}

impl Session {
    /// Waits for an event of this session.
    pub(super) fn wait_for(&self, event: CUevent, call: &'static str) -> Result<(), TransferError> {
        self.wait_for_event(event, call, MOMENT)
    }

    /// Waits for an event: polls for `moment`, then sleeps between polls.
    fn wait_for_event(
        &self,
        event: CUevent,
        call: &'static str,
        moment: Duration,
    ) -> Result<(), TransferError> {
        let _entered = self.enter_lost()?;
        let begun = Instant::now();
        let ended = loop {
            // SAFETY: a live event of the context.
            match unsafe { cuEventQuery(event) } {
                CUresult::CUDA_ERROR_NOT_READY => {}
                CUresult::CUDA_SUCCESS => break CUresult::CUDA_SUCCESS,
                // An error may only mean that the event cannot be queried now. If it is the command's,
                // synchronizing returns it, too.
                // SAFETY: as above.
                _ => break unsafe { cuEventSynchronize(event) },
            }
            match begun.elapsed() {
                waited if waited < moment => std::thread::yield_now(),
                waited => std::thread::sleep((waited / SLEEPS).clamp(LEAST_SLEEP, LONGEST_SLEEP)),
            }
        };
        check(call, ended).map_err(|failure| self.failed(failure))
    }

    /// Returns whether an event has completed, or the driver cannot be called. An error of the query counts
    /// as not completed: the event may only be unavailable to queries now.
    pub(super) fn has_come(&self, event: CUevent) -> bool {
        let Ok(_entered) = self.enter_lost() else { return true };
        // SAFETY: a live event of the context.
        unsafe { cuEventQuery(event) == CUresult::CUDA_SUCCESS }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.session.take_back(self.raw);
    }
}

/// An enqueued command. Dropping it does not wait; [`Fence`](dml_core::Fence) does.
pub(super) struct Command {
    call: &'static str,
    lane: Arc<Lane>,
    number: u64,
    event: Arc<Event>,
    /// The number of bytes that the command moves.
    bytes: u64,
    /// Resources that the command uses, kept until it has ended.
    keep: Option<Box<dyn Any + Send>>,
    /// The signal of the lane's thread that the command has ended. Set by the first poll.
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

    /// Returns the event behind the command, if it is one of this session.
    pub(super) fn event_of(&self, session: &Arc<Session>) -> Option<CUevent> {
        Arc::ptr_eq(&self.event.session, session).then_some(self.event.raw.0)
    }

    /// Waits for the end, then drops the resources of the command and the waker.
    fn result(&mut self) -> Result<u64, TransferError> {
        let ended = self.event.wait(self.call, MOMENT);
        if self.event.session.is_here() {
            self.lane.leave(self.number);
        }
        self.keep = None;
        // A waker's destructor may panic. It runs last, because the command uses lent memory until its end.
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
        // The command has ended, whether signalled or not, or the lane has no thread to signal it.
        Poll::Ready(self.result())
    }

    fn has_ended(&self) -> bool {
        // The driver reports no events of a lost device, but the lane's thread has waited for it.
        self.event.has_come() || self.told.as_ref().is_some_and(Completion::has_ended)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// A stream, and the events of its commands in flight.
pub(super) struct Lane {
    stream: Raw<CUstream>,
    /// Held by a thread that enqueues a command.
    order: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next_number: u64,
    /// The pending events, by number, with the signallers of their watchers.
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

    /// Keeps other threads from enqueueing a command until the result is dropped.
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

    /// Requests a signal from the lane's thread when a command ends. Returns `None` if it has ended, or no
    /// thread can be started.
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

    /// Returns whether no command is known to be in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().events.is_empty()
    }

    /// Ends the thread after it has signalled all watched events.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for the events in order, while any is watched.
    fn tell(&self) {
        while let Some((number, event)) = self.next() {
            // The command queries the result itself.
            let _ = event.wait("cuEventSynchronize", TELLERS_MOMENT);
            let ended = self.state.lock().events.remove(&number);
            // This may drop the last reference to the session, whose destructor closes this lane.
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
                // The owner of a remaining command may start the thread again.
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
