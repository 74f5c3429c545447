//! The end of a command: a fence that can be waited for and awaited.
//!
//! ```text
//!   wait ──▶ clWaitForEvents
//!   poll ──▶ has it ended? ──no──▶ clSetEventCallback, once per command
//!                                        │ a thread of the driver
//!                                        ▼
//!                                  Ended: the call joins the queue ──▶ a thread of the session wakes the future
//! ```
//! 1. The driver's thread only appends to a queue. A waker is foreign code, which may enqueue commands or wait for
//!    some; OpenCL forbids both in a callback. A thread of the session calls the wakers, one after the other.
//! 2. The state of the event decides whether the command has ended, so a call that comes early or late loses nothing.
//! 3. A command that is only waited for sets no callback, and a session without futures has no such thread.

use super::handle::Event;
use super::session::Session;
use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{Completion, TransferError};
use opencl3::event::{CL_COMPLETE, set_event_callback};
use opencl3::types::{cl_event, cl_int};
use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    pub(super) call_back: Option<Arc<CallBack>>,
}

impl Command {
    /// Waits for the end, and lets go of what the command used and of the waker.
    fn result(&mut self) -> Result<u64, TransferError> {
        let ended = self.session.wait(self.call, &self.event);
        self.keep = None;
        // The destructor of a waker may panic. It comes after the end, because the command uses what it was lent until then.
        if let Some(call_back) = self.call_back.take() {
            call_back.set(None);
        }
        ended.map(|()| self.bytes)
    }

    /// Arranges that `waker` is called when the command ends. Returns whether that is possible.
    fn set_waker(&mut self, waker: &Waker) -> bool {
        let waker = waker.clone();
        if let Some(call_back) = &self.call_back {
            call_back.set(Some(waker));
            return true;
        }
        let Some(queue) = self.session.wakers() else { return false };
        let call_back = Arc::new(CallBack { waker: Mutex::new(Some(waker)), queue });
        let data = Arc::into_raw(call_back.clone()).cast_mut().cast::<c_void>();
        if set_event_callback(self.event.raw(), CL_COMPLETE, ended, data).is_err() {
            // SAFETY: the reference from `into_raw` above, which the driver has not taken.
            drop(unsafe { Arc::from_raw(data.cast_const().cast::<CallBack>()) });
            return false;
        }
        self.call_back = Some(call_back);
        true
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

/// The waker of one command, shared with the driver until it calls back.
pub(super) struct CallBack {
    waker: Mutex<Option<Waker>>,
    queue: Arc<Wakers>,
}

impl CallBack {
    /// Replaces the waker.
    fn set(&self, waker: Option<Waker>) {
        let old = std::mem::replace(&mut *self.waker.lock(), waker);
        // The lock is free again: a waker is foreign code.
        drop(old);
    }
}

/// Receives the driver's call at the end of a command, whether it succeeded or failed.
extern "C" fn ended(_event: cl_event, _status: cl_int, data: *mut c_void) {
    // SAFETY: the reference that `set_waker` made for this one call.
    let call_back = unsafe { Arc::from_raw(data.cast_const().cast::<CallBack>()) };
    let queue = call_back.queue.clone();
    queue.push(call_back);
}

/// The futures of one session that are to be woken.
#[derive(Default)]
pub(super) struct Wakers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ended: VecDeque<Arc<CallBack>>,
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

    fn push(&self, call_back: Arc<CallBack>) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.ended.push_back(call_back);
            self.changed.notify_all();
        }
        // A command keeps the session, and takes its waker back at the end. A call after the session has no waker to drop.
    }

    fn wake_all(&self) {
        while let Some(call_back) = self.next() {
            let waker = call_back.waker.lock().take();
            // A panic of one waker must not keep the others asleep. Its payload may panic as well when it is dropped.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.map(Waker::wake))) {
                std::mem::forget(panic);
            }
        }
    }

    fn next(&self) -> Option<Arc<CallBack>> {
        let mut state = self.state.lock();
        loop {
            if let Some(call_back) = state.ended.pop_front() {
                return Some(call_back);
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
