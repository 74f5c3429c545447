//! The end of a command: a fence that can be waited for and awaited.
//!
//! ```text
//!   wait ──▶ clWaitForEvents
//!   poll ──▶ has it ended? ──no──▶ clSetEventCallback, once per command ──▶ a thread of the driver ─▶ the queue ┐
//!                            └───▶ watched: asked now and then, by a thread of the session                      │
//!                                                   a thread of the session wakes the future ◀──────────────────┘
//! ```
//! 1. The driver's thread only appends to a queue. A waker is foreign code, which may enqueue commands or wait for
//!    some; OpenCL forbids both in a callback. A thread of the session calls the wakers, one after the other.
//! 2. The state of the event decides whether the command has ended, so a call that comes early or late loses nothing.
//! 3. A driver may call back late: NVIDIA's does so up to 20 ms after the end. So the thread of the session also asks
//!    for the state of each command, after a part of the time for which it has waited already ([`PATIENCE`]).
//! 4. A command that is only waited for sets no callback, and a session without futures has no such thread.

use super::handle::Event;
use super::session::Session;
use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{Completion, TransferError};
use opencl3::event::{CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, get_event_info, set_event_callback};
use opencl3::types::{cl_event, cl_int};
use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// A command that was handed to the device. Dropping it does not wait; [`Fence`](dml_core::Fence) does.
pub(super) struct Command {
    pub(super) call: &'static str,
    pub(super) event: Arc<Event>,
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
        let event = self.event.clone();
        let call_back = Arc::new(CallBack { waker: Mutex::new(Some(waker)), queue: queue.clone(), event });
        let data = Arc::into_raw(call_back.clone()).cast_mut().cast::<c_void>();
        if set_event_callback(self.event.raw(), CL_COMPLETE, ended, data).is_err() {
            // SAFETY: the reference from `into_raw` above, which the driver has not taken.
            drop(unsafe { Arc::from_raw(data.cast_const().cast::<CallBack>()) });
            return false;
        }
        queue.watch(&call_back);
        self.call_back = Some(call_back);
        true
    }
}

impl Completion for Command {
    fn wait(mut self: Box<Self>) -> Result<u64, TransferError> {
        self.result()
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        let (session, event) = (self.session.clone(), self.event.clone());
        let is_running = || session.is_here() && is_running(&event);
        if is_running() && self.set_waker(waker) && is_running() {
            return Poll::Pending;
        }
        // The command has ended, or the driver can only be waited for.
        Poll::Ready(self.result())
    }
}

/// The waker of one command, shared with the driver until it calls back, and with the thread that wakes.
pub(super) struct CallBack {
    waker: Mutex<Option<Waker>>,
    queue: Arc<Wakers>,
    event: Arc<Event>,
}

impl CallBack {
    /// Replaces the waker.
    fn set(&self, waker: Option<Waker>) {
        let old = std::mem::replace(&mut *self.waker.lock(), waker);
        // The lock is free again: a waker is foreign code.
        drop(old);
    }
}

/// Returns whether a command has not ended yet, as far as the driver tells.
fn is_running(event: &Event) -> bool {
    let status = get_event_info(event.raw(), CL_EVENT_COMMAND_EXECUTION_STATUS).map(i32::from);
    status.is_ok_and(|status| status > CL_COMPLETE)
}

/// The part of a command's time so far after which it is looked at again, and the least and the most of it.
const PATIENCE: u32 = 32;
const LEAST_PATIENCE: Duration = Duration::from_micros(20);
const MOST_PATIENCE: Duration = Duration::from_millis(1);

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
    /// The commands of which the driver has told the end.
    ended: VecDeque<Arc<CallBack>>,
    /// The commands that are looked at, with the time since which they are.
    watched: Vec<(Arc<CallBack>, Instant)>,
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

    /// Looks at a command until it has ended.
    fn watch(&self, call_back: &Arc<CallBack>) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.watched.push((call_back.clone(), Instant::now()));
            self.changed.notify_all();
        }
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
            self.state.lock().watched.retain(|(watched, _)| !Arc::ptr_eq(watched, &call_back));
            let waker = call_back.waker.lock().take();
            // A panic of one waker must not keep the others asleep. Its payload may panic as well when it is dropped.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.map(Waker::wake))) {
                std::mem::forget(panic);
            }
        }
    }

    /// Waits for the end of a command. Returns `None` when the session is gone.
    fn next(&self) -> Option<Arc<CallBack>> {
        loop {
            let mut state = self.state.lock();
            loop {
                if let Some(call_back) = state.ended.pop_front() {
                    return Some(call_back);
                }
                if state.is_closed {
                    return None;
                }
                let now = Instant::now();
                let patience = state.watched.iter().map(|(_, since)| patience(now - *since)).min();
                let (next, is_due) = match patience {
                    Some(patience) => self.changed.wait_until(state, now + patience),
                    None => (self.changed.wait(state), false),
                };
                state = next;
                if is_due {
                    break;
                }
            }
            let watched: Vec<_> = state.watched.iter().map(|(call_back, _)| call_back.clone()).collect();
            // The driver is asked without the lock, which its own thread takes in `push`.
            drop(state);
            if let Some(ended) = watched.into_iter().find(|call_back| !is_running(&call_back.event)) {
                return Some(ended);
            }
        }
    }
}

/// Returns how long to wait before a command is looked at again that has been waited for so long.
fn patience(waited: Duration) -> Duration {
    (waited / PATIENCE).clamp(LEAST_PATIENCE, MOST_PATIENCE)
}

impl fmt::Debug for Wakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wakers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opencl::device::list;
    use opencl3::event::{create_user_event, set_user_event_status};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_driver_that_does_not_call_back_keeps_nobody_waiting() {
        let Some(found) = list().ok().and_then(|listing| listing.found.first()) else {
            let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("opencl"));
            assert!(!expected, "DML_EXPECT names opencl, and there is no device");
            return eprintln!("SKIPPED: no OpenCL device");
        };
        let session = Arc::new(Session::open(found.part(None).unwrap()).unwrap());
        let queue = session.wakers().expect("a thread can be started");
        let calls = [(); 2].map(|()| {
            let event = create_user_event(session.context().unwrap()).unwrap();
            // SAFETY: the event just made, whose one reference is ours.
            let event = Arc::new(unsafe { Event::own(event) });
            let woken = Arc::new(Woken::default());
            let waker = Mutex::new(Some(woken.clone().into()));
            (Arc::new(CallBack { waker, queue: queue.clone(), event }), woken)
        });
        // No callback is set with the driver, so nothing but a look at the events can tell their ends.
        calls.iter().for_each(|(call_back, _)| queue.watch(call_back));
        let is_woken = |index: usize| calls[index].1.0.load(Ordering::SeqCst);
        for (ended, other) in [(1, 0), (0, 1)] {
            std::thread::sleep(Duration::from_millis(30));
            assert!(!is_woken(ended), "woken before the end");
            set_user_event_status(calls[ended].0.event.raw(), CL_COMPLETE).unwrap();
            let begun = Instant::now();
            while !is_woken(ended) {
                assert!(begun.elapsed() < Duration::from_secs(20), "nobody looks at the command");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(is_woken(other), ended == 0);
        }
        assert!(queue.state.lock().watched.is_empty(), "what has ended is looked at no more");
    }

    #[test]
    fn long_commands_are_looked_at_less_often() {
        let waited = [0, 640, 6_400, 60_000_000].map(Duration::from_micros);
        assert_eq!(waited.map(patience), [20, 20, 200, 1_000].map(Duration::from_micros));
    }
}
