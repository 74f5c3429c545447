//! The end of a command: a fence that can be waited for and awaited.
//!
//! ```text
//!   wait ──▶ clWaitForEvents
//!   poll ──▶ has it ended? ──no──▶ clSetEventCallback, once per command
//!                                        │ a thread of the driver
//!                                        ▼
//!                                  ended: the call joins the queue ──▶ a thread of the session ends the signal
//! ```
//! 1. The driver's thread only appends to a queue. A signal wakes futures, which may enqueue commands or wait for some;
//!    OpenCL forbids both in a callback. A thread of the session ends the signals, one after the other.
//! 2. The state of the event decides whether the command has ended, so a call that comes early or late loses nothing.
//! 3. A command that is only waited for sets no callback, and a session without futures has no such thread.

use super::handle::Event;
use super::session::Session;
use crate::kit::{Awaited, Signal, Signaller};
use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{Completion, TransferError};
use opencl3::event::{CL_COMPLETE, set_event_callback};
use opencl3::types::{cl_event, cl_int};
use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::task::{Poll, Waker};

/// A command that was handed to the device. Dropping it does not wait; [`Fence`](dml_core::Fence) does.
pub(super) struct Command {
    pub(super) call: &'static str,
    pub(super) event: Event,
    /// The number of bytes that the command moves.
    pub(super) bytes: u64,
    pub(super) session: Arc<Session>,
    /// What must live until the command has ended.
    pub(super) keep: Option<Box<dyn Any + Send>>,
    /// The driver's call at the end, once somebody has polled.
    pub(super) told: Option<Awaited>,
}

impl Command {
    /// Waits for the end, and lets go of what the command used and of the waker.
    fn result(&mut self) -> Result<u64, TransferError> {
        let ended = self.session.wait(self.call, &self.event);
        self.keep = None;
        // The destructor of a waker may panic. It comes after the end, because the command uses what it was lent until then.
        self.told = None;
        ended.map(|()| self.bytes)
    }

    /// Arranges that `waker` is called when the command ends. Returns whether that is possible, and the end not told yet.
    fn set_waker(&mut self, waker: &Waker) -> bool {
        if self.told.is_none() {
            self.told = self.call_back();
        }
        self.told.as_mut().is_some_and(|told| told.poll_end(waker).is_pending())
    }

    /// Has the driver call at the end of the command, if it can.
    fn call_back(&self) -> Option<Awaited> {
        let queue = self.session.wakers()?;
        let (signal, signaller) = Signal::new();
        let data = Box::into_raw(Box::new(CallBack { signaller, queue }));
        if set_event_callback(self.event.raw(), CL_COMPLETE, ended, data.cast::<c_void>()).is_err() {
            // SAFETY: the box from `into_raw` above, which the driver has not taken.
            drop(unsafe { Box::from_raw(data) });
            return None;
        }
        Some(signal.awaited())
    }
}

impl Completion for Command {
    fn wait(mut self: Box<Self>) -> Result<u64, TransferError> {
        self.result()
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        let is_running = self.session.is_running(&self.event);
        if is_running && self.set_waker(waker) && self.session.is_running(&self.event) {
            return Poll::Pending;
        }
        // The command has ended, or the driver can only be waited for.
        Poll::Ready(self.result())
    }
}

/// What the driver holds until it calls back.
struct CallBack {
    signaller: Signaller,
    queue: Arc<Wakers>,
}

/// Receives the driver's call at the end of a command, whether it succeeded or failed.
extern "C" fn ended(_event: cl_event, _status: cl_int, data: *mut c_void) {
    // SAFETY: the box that `Command::call_back` made for this one call.
    let CallBack { signaller, queue } = *unsafe { Box::from_raw(data.cast::<CallBack>()) };
    queue.push(signaller);
}

/// The futures of one session that are to be woken.
#[derive(Default)]
pub(super) struct Wakers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ended: VecDeque<Signaller>,
    has_thread: bool,
    /// Whether the session is gone, so that nobody is left to be woken.
    is_closed: bool,
}

impl Wakers {
    /// Starts the thread that wakes, unless it runs. Returns whether it runs.
    pub(super) fn start(self: &Arc<Self>, name: &str) -> bool {
        let mut state = self.state.lock();
        if !state.has_thread {
            let this = self.clone();
            let thread = std::thread::Builder::new().name(format!("{name} wakers"));
            state.has_thread = thread.spawn(move || this.wake_all()).is_ok();
        }
        state.has_thread
    }

    /// Ends the thread when the queue is empty.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn push(&self, signaller: Signaller) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.ended.push_back(signaller);
            self.changed.notify_all();
        }
        // A command keeps the session, and takes its waker back at the end. A call after the session has nobody to wake.
    }

    fn wake_all(&self) {
        while let Some(signaller) = self.next() {
            // The result is the event's. The signal only tells that there is one.
            signaller.end(Ok(0));
        }
    }

    fn next(&self) -> Option<Signaller> {
        let mut state = self.state.lock();
        loop {
            if let Some(signaller) = state.ended.pop_front() {
                return Some(signaller);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state);
        }
    }
}

impl fmt::Debug for Wakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wakers")
    }
}
