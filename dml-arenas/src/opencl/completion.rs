//! The completion of a command: a fence that a thread can wait for and a future can poll.
//!
//! ```text
//!   wait ──▶ clWaitForEvents
//!   poll ──▶ has it ended? ──no──▶ clSetEventCallback, once per command ──▶ a driver thread ──▶ queue ┐
//!                            └───▶ watched: polled by the waker thread of the session                 │
//!                                                    the waker thread wakes the future ◀──────────────┘
//! ```
//! 1. The driver's thread only appends to a queue. A waker is foreign code, which may enqueue commands or
//!    wait for some; OpenCL forbids both in a callback. One thread of the session calls the wakers, one after
//!    another.
//! 2. The event's status decides whether the command has ended, so an early or late callback loses nothing.
//! 3. A driver may call back late: NVIDIA's does so up to 20 ms after the end. So the waker thread also polls
//!    each command. The interval is a fraction ([`PATIENCE`]) of the time since the command's first poll.
//! 4. A command that no future polls sets no callback. A session without futures has no waker thread.

use super::handle::Event;
use super::session::Session;
use crate::kit::{Awaited, Signal, Signaller};
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use dml_core::{Completion, TransferError};
use opencl3::event::{CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, get_event_info, set_event_callback};
use opencl3::types::{cl_event, cl_int};
use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// A command that was submitted to the device. Dropping it does not wait; [`Fence`](dml_core::Fence) does.
pub(super) struct Command {
    pub(super) call: &'static str,
    pub(super) event: Arc<Event>,
    /// The number in the kernels' queue, if it was enqueued in order.
    pub(super) number: Option<u64>,
    /// The number of bytes that the command moves.
    pub(super) bytes: u64,
    pub(super) session: Arc<Session>,
    /// The resources that the command uses, kept until it has ended.
    pub(super) keep: Option<Box<dyn Any + Send>>,
    /// The signal of the command's end; `None` before the first poll.
    pub(super) told: Option<Awaited>,
}

impl Command {
    /// Waits for the end, and drops the command's resources and its waker.
    fn result(&mut self) -> Result<u64, TransferError> {
        self.session.submit_all();
        let ended = self.session.wait_in_order(self.call, &self.event, self.number);
        self.keep = None;
        // A waker's destructor may panic, so it runs after the end: until then the command uses its loan.
        self.told = None;
        ended.map(|()| self.bytes)
    }

    /// Registers `waker` for the command's end. Returns `false` on failure or after the end was signalled.
    fn set_waker(&mut self, waker: &Waker) -> bool {
        if self.told.is_none() {
            self.told = self.watch();
        }
        self.told.as_mut().is_some_and(|told| told.poll_end(waker).is_pending())
    }

    /// Sets a callback for the command's end, and has the waker thread poll the command. Returns `None` if
    /// the thread or the callback cannot be set up.
    fn watch(&self) -> Option<Awaited> {
        let queue = self.session.wakers()?;
        let (signal, signaller) = Signal::new();
        let signaller = Mutex::new(Some(signaller));
        let watch = Arc::new(Watch { event: self.event.clone(), signaller, queue: queue.clone() });
        let data = Arc::into_raw(watch.clone()).cast_mut().cast::<c_void>();
        if set_event_callback(self.event.raw(), CL_COMPLETE, ended, data).is_err() {
            // SAFETY: the reference from `into_raw` above, which the driver did not take over.
            drop(unsafe { Arc::from_raw(data.cast_const().cast::<Watch>()) });
            return None;
        }
        queue.watch(&watch);
        Some(signal.awaited())
    }
}

impl Completion for Command {
    fn wait(mut self: Box<Self>) -> Result<u64, TransferError> {
        self.result()
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        let (session, event) = (self.session.clone(), self.event.clone());
        session.submit_all();
        let is_to_come = || session.is_here() && !has_ended(&event);
        if is_to_come() && self.set_waker(waker) && is_to_come() {
            return Poll::Pending;
        }
        // The command has ended, or its end cannot be signalled and this thread blocks.
        Poll::Ready(self.result())
    }

    fn has_ended(&self) -> bool {
        self.session.submit_all();
        !self.session.is_here() || has_ended(&self.event)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// A watched command. The driver references it until it calls back, the queue until the command has ended.
struct Watch {
    event: Arc<Event>,
    /// The signaller of the end; `None` once it has signalled.
    signaller: Mutex<Option<Signaller>>,
    queue: Arc<Wakers>,
}

/// Returns a command's execution status. An error may only mean that the query failed.
fn status(event: &Event) -> Result<i32, cl_int> {
    get_event_info(event.raw(), CL_EVENT_COMMAND_EXECUTION_STATUS).map(i32::from)
}

/// Returns whether the driver reports that a command has ended.
fn has_ended(event: &Event) -> bool {
    status(event).is_ok_and(|status| status <= CL_COMPLETE)
}

/// Returns whether the driver reports that a command has not ended yet.
fn is_running(event: &Event) -> bool {
    status(event).is_ok_and(|status| status > CL_COMPLETE)
}

/// Ratio of the time since a command's first poll to its polling interval.
const PATIENCE: u32 = 32;
/// Minimum polling interval.
const LEAST_PATIENCE: Duration = Duration::from_micros(20);
/// Maximum polling interval.
const MOST_PATIENCE: Duration = Duration::from_millis(1);

/// Receives the driver's callback at the end of a command, whether it succeeded or failed.
extern "C" fn ended(_event: cl_event, _status: cl_int, data: *mut c_void) {
    // SAFETY: the reference that `Command::watch` made for this one callback.
    let watch = unsafe { Arc::from_raw(data.cast_const().cast::<Watch>()) };
    let queue = watch.queue.clone();
    queue.push(watch);
}

/// The watched commands of one session, whose futures a thread wakes.
#[derive(Default)]
pub(super) struct Wakers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The commands whose end the driver has reported.
    ended: VecDeque<Arc<Watch>>,
    /// The commands that are polled, each with the start of its polling.
    watched: Vec<(Arc<Watch>, Instant)>,
    has_thread: bool,
    /// Whether the session is gone, so that no future is left to wake.
    is_closed: bool,
}

impl Wakers {
    /// Starts the waker thread, unless it runs. Returns whether it runs.
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
        let mut state = self.state.lock();
        state.is_closed = true;
        // A watched command holds a reference to this queue.
        let watched = std::mem::take(&mut state.watched);
        drop(state);
        drop(watched);
        self.changed.notify_all();
    }

    /// Polls a command until it has ended.
    fn watch(&self, watch: &Arc<Watch>) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.watched.push((watch.clone(), Instant::now()));
            self.changed.notify_all();
        }
    }

    fn push(&self, watch: Arc<Watch>) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.ended.push_back(watch);
            self.changed.notify_all();
        }
        // A command keeps its session, and drops its waker at the end. So a callback after the session has no
        // waker to call.
    }

    fn wake_all(&self) {
        while let Some(ended) = self.next() {
            self.state.lock().watched.retain(|(watch, _)| !Arc::ptr_eq(watch, &ended));
            let signaller = ended.signaller.lock().take();
            // The event has the result. The signal only reports the end.
            if let Some(signaller) = signaller {
                signaller.end(Ok(0));
            }
        }
    }

    /// Waits until a command ends, and returns it. Returns `None` when the session is gone.
    fn next(&self) -> Option<Arc<Watch>> {
        loop {
            let mut state = self.state.lock();
            loop {
                if let Some(watch) = state.ended.pop_front() {
                    return Some(watch);
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
            let watched: Vec<_> = state.watched.iter().map(|(watch, _)| watch.clone()).collect();
            // The driver is queried without the lock, because its callback takes the lock in `push`.
            drop(state);
            if let Some(ended) = watched.into_iter().find(|watch| !is_running(&watch.event)) {
                return Some(ended);
            }
        }
    }
}

/// Returns the polling interval of a command that has been polled for the time `waited`.
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
    use crate::opencl::testing::session;
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
        let Some(session) = session() else { return };
        let queue = session.wakers().expect("a thread can be started");
        let calls = [(); 2].map(|()| {
            let event = create_user_event(session.context().unwrap()).unwrap();
            // SAFETY: the event just made, whose one reference is ours.
            let event = Arc::new(unsafe { Event::own(event) });
            let woken = Arc::new(Woken::default());
            let (signal, signaller) = Signal::new();
            let mut told = signal.awaited();
            assert!(told.poll_end(&woken.clone().into()).is_pending());
            let signaller = Mutex::new(Some(signaller));
            (Arc::new(Watch { signaller, queue: queue.clone(), event }), woken, told)
        });
        // The driver has no callback, so only polling can detect the ends.
        calls.iter().for_each(|(watch, ..)| queue.watch(watch));
        let is_woken = |index: usize| calls[index].1.0.load(Ordering::SeqCst);
        for (ended, other) in [(1, 0), (0, 1)] {
            std::thread::sleep(Duration::from_millis(30));
            assert!(!is_woken(ended), "woken before the end");
            set_user_event_status(calls[ended].0.event.raw(), CL_COMPLETE).unwrap();
            let begun = Instant::now();
            while !is_woken(ended) {
                assert!(begun.elapsed() < Duration::from_secs(20), "no thread polls the command");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(is_woken(other), ended == 0);
        }
        assert!(queue.state.lock().watched.is_empty(), "a command that has ended is not polled");
    }

    #[test]
    fn long_commands_are_looked_at_less_often() {
        let waited = [0, 640, 6_400, 60_000_000].map(Duration::from_micros);
        assert_eq!(waited.map(patience), [20, 20, 200, 1_000].map(Duration::from_micros));
    }
}
