//! Started runs, which proceed on their own thread, and their handles.
//!
//! ```text
//!   start ──▶ checks, setup ──▶ Running ── progress · wait · wait_timeout · await ──▶ Report or RunError
//!                  │               └── cancel · canceller · drop ──▶ no further package; launched ones end
//!                  └─▶ the run's own thread: director, units ──▶ drops the run's state ──▶ signals the end
//! ```
//! 1. The end is signalled only after all state of the run is gone: no unit, no hook, no copy of the kernel.
//! 2. The run's own thread wakes the waiters, without a lock. A waker that panics disturbs no other thread.
//! 3. A fork of the process has the handle but not the run. It takes no lock of the run, and its waits return
//!    [`RunError::Forked`].

use crate::base::cancel::Cancel;
use crate::base::guard::{Quiet, quietly};
use crate::kernel::{Argument, Kernel};
use crate::plan::setup::Setup;
use crate::report::{Report, RunError};
use crate::run::commander::Commander;
use crate::run::director::Prepared;
use crate::run::hooks::{Hooks, Patient};
use dml_core::internal::Helpers;
use dml_core::internal::guard;
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use dml_core::{Access, DeviceId, RawBuffer};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The handle of a run that was started by [`Coexecutor::start`](crate::Coexecutor::start).
///
/// Wait for the end with [`wait`](Self::wait), [`wait_timeout`](Self::wait_timeout) or `.await`. After the
/// end, each of them returns the same result every time. If a hook has panicked, the first of these calls
/// resumes the panic instead.
///
/// Dropping the handle [cancels](Self::cancel) the run and waits for its end. On a thread of the run itself,
/// in a hook, a policy or a kernel, dropping only cancels.
#[must_use = "a run that is dropped is cancelled: wait for it, await it, or keep it"]
pub struct Running(Arc<Shared>);

/// A handle that cancels a run from any thread, even while another thread waits for the run.
#[derive(Clone)]
pub struct RunCanceller(Arc<Shared>);

/// The progress of a run.
///
/// Items whose results were lost with a device do not count as computed, so the numbers can decrease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of items that are computed and whose results are at their destination.
    pub computed: u64,
    /// The number of items of the run.
    pub items: u64,
    /// The progress of each device, in the order of the run's devices.
    pub devices: Vec<DeviceProgress>,
}

/// The progress of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProgress {
    /// The device's id.
    pub device: DeviceId,
    /// The number of packages computed.
    pub packages: u64,
    /// The number of items computed.
    pub items: u64,
}

/// The state shared by the run, its handle and its cancellers.
struct Shared {
    /// The id of the process that started the run.
    process: u32,
    kernel: String,
    items: u64,
    devices: Vec<DeviceId>,
    /// The buffers of the kernel's arguments, with the arguments' positions and access. Empty after the end
    /// of the run.
    buffers: Mutex<Vec<(usize, Access, RawBuffer)>>,
    commander: Arc<Commander>,
    cancel: Arc<Cancel>,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    /// The run is in progress. Holds the waker of the last poll.
    Running(Option<Waker>),
    Ended {
        result: Box<Result<Report, RunError>>,
        /// The first panic of a hook, until a waiter has taken it. Or the panic of the director, which is a
        /// bug.
        panic: Option<Panic>,
    },
}

type Panic = Quiet<Box<dyn Any + Send>>;

/// What a waiter gets when the run has ended.
enum Heard {
    Result(Box<Result<Report, RunError>>),
    Panic(Panic),
}

impl Heard {
    fn tell(self) -> Result<Report, RunError> {
        match self {
            Self::Result(result) => *result,
            Self::Panic(panic) => resume_unwind(panic.into_inner()),
        }
    }
}

impl State {
    fn heard(&mut self) -> Option<Heard> {
        match self {
            Self::Running(_) => None,
            Self::Ended { result, panic } => {
                Some(panic.take().map_or_else(|| Heard::Result(result.clone()), Heard::Panic))
            }
        }
    }
}

/// Starts a run on another thread. The checks are made in this call, which returns their errors.
pub(crate) fn start(
    setup: Setup,
    kernel: &Kernel,
    items: u64,
    hooks: Box<dyn Hooks + Send>,
    asked_at: &'static Location<'static>,
) -> Result<Running, RunError> {
    let hooks = Quiet::new(hooks);
    let cancel = Arc::new(Cancel::default());
    let prepared = Prepared::new(&setup, kernel, items, Some(cancel.clone()), asked_at)?;
    let buffer = |(index, argument): (usize, &Argument)| {
        (kernel.position(index), argument.access(), argument.buffer().clone())
    };
    let shared = Arc::new(Shared {
        process: std::process::id(),
        kernel: kernel.name().to_owned(),
        items,
        devices: prepared.devices().to_vec(),
        buffers: Mutex::new(kernel.arguments().iter().enumerate().map(buffer).collect()),
        commander: prepared.commander().clone(),
        cancel,
        state: Mutex::new(State::Running(None)),
        changed: Condvar::new(),
    });
    let own = shared.clone();
    match Helpers::shared().call(move || own.work(setup, prepared, hooks)) {
        Ok(()) => Ok(Running(shared)),
        Err(error) => {
            // No thread will end the run, so mark it as ended: otherwise a waiter would block forever.
            shared.end(Err(shared.cancelled(items)), None);
            Err(RunError::NoThread { kernel: kernel.name().to_owned(), cause: error.to_string() })
        }
    }
}

impl Shared {
    /// Executes the run, on its own thread.
    fn work(&self, setup: Setup, prepared: Prepared, hooks: Quiet<Box<dyn Hooks + Send>>) {
        let within = self.cancel.enter();
        let patient = Patient::new(&**hooks);
        let directed = catch_unwind(AssertUnwindSafe(|| prepared.direct(&setup, &patient)));
        let panic = patient.into_panic();
        quietly(hooks);
        quietly(prepared);
        quietly(setup);
        // Dropping a buffer's last handle frees its storage. That runs code of an arena, which may query the
        // run.
        let buffers = std::mem::take(&mut *self.buffers.lock());
        quietly(buffers);
        drop(within);
        let (result, panic) = match directed {
            Ok(result) => (result, panic),
            // A bug of the director: the panic resumes in the waiter.
            Err(bug) => (Err(self.cancelled(self.items)), Some(bug)),
        };
        self.end(result, panic.map(Quiet::new));
    }

    fn cancelled(&self, missing: u64) -> RunError {
        RunError::Cancelled { kernel: self.kernel.clone(), missing, failures: Vec::new() }
    }

    fn end(&self, result: Result<Report, RunError>, panic: Option<Panic>) {
        let ended = State::Ended { result: Box::new(result), panic };
        let before = std::mem::replace(&mut *self.state.lock(), ended);
        self.changed.notify_all();
        if let State::Running(Some(waker)) = before {
            // Woken by reference, so that a waker that panics is dropped under a separate guard.
            let _ = guard(|| waker.wake_by_ref());
            quietly(waker);
        }
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    fn forked(&self) -> RunError {
        RunError::Forked { kernel: self.kernel.clone() }
    }

    fn cancel(&self) {
        if self.is_here() {
            self.cancel.cancel();
            // Wakes units that wait for work, so that they see the cancellation.
            self.commander.call_back();
        }
    }

    /// Waits for the end of the run or the deadline. Returns `None` after the deadline.
    fn wait(&self, deadline: Option<Instant>) -> Option<Heard> {
        let mut state = self.state.lock();
        loop {
            if let Some(heard) = state.heard() {
                return Some(heard);
            }
            match deadline {
                None => state = self.changed.wait(state),
                Some(deadline) => {
                    let (again, is_late) = self.changed.wait_until(state, deadline);
                    state = again;
                    if is_late {
                        return state.heard();
                    }
                }
            }
        }
    }
}

impl Running {
    /// Waits until the run has ended.
    ///
    /// # Errors
    /// - [`RunError::Cancelled`] if the run was cancelled before it was complete.
    /// - [`RunError::HeldByCaller`] while the calling thread holds a buffer that the run writes, or holds for
    ///   writing a buffer that it reads. Waiting would deadlock; the run continues.
    /// - [`RunError::WithinItself`] on a thread of the run. Waiting would deadlock; the run continues.
    /// - [`RunError::Forked`] in a fork of the process.
    /// - All others as of [`Coexecutor::run`](crate::Coexecutor::run).
    pub fn wait(&mut self) -> Result<Report, RunError> {
        let shared = &*self.0;
        if !shared.is_here() {
            return Err(shared.forked());
        }
        if !self.is_ended() {
            let kernel = || shared.kernel.clone();
            if shared.cancel.is_within() {
                return Err(RunError::WithinItself { kernel: kernel() });
            }
            let held = shared
                .buffers
                .lock()
                .iter()
                .find(|(_, access, buffer)| match access.writes() {
                    true => buffer.is_held_here(),
                    false => buffer.is_held_for_writing_here(),
                })
                .map(|(index, _, buffer)| (*index, buffer.name()));
            if let Some((index, buffer)) = held {
                return Err(RunError::HeldByCaller { kernel: kernel(), index, buffer });
            }
        }
        shared.wait(None).map_or_else(|| Err(shared.forked()), Heard::tell)
    }

    /// Waits until the run has ended or the timeout has elapsed.
    ///
    /// The run continues after a timeout: wait for it again, or cancel it. A timeout of zero polls the run.
    ///
    /// # Errors
    /// [`RunError::Timeout`] if the run has not ended in time. Otherwise as [`wait`](Self::wait). But a
    /// thread that holds a buffer of the run, or belongs to the run, gets no error of its own and waits for
    /// the whole timeout.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Report, RunError> {
        let shared = &*self.0;
        if !shared.is_here() {
            return Err(shared.forked());
        }
        let late = || RunError::Timeout { kernel: shared.kernel.clone(), waited: timeout };
        shared.wait(Instant::now().checked_add(timeout)).map_or_else(|| Err(late()), Heard::tell)
    }

    /// Returns whether the run has ended and all its state is dropped. Always `true` in a fork of the
    /// process.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        !self.0.is_here() || !matches!(&*self.0.state.lock(), State::Running(_))
    }

    /// Returns the progress of the run. In a fork of the process, which does not have the run, nothing counts
    /// as computed.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let shared = &*self.0;
        let counts = if shared.is_here() { shared.commander.counts() } else { Vec::new() };
        let counts = counts.into_iter().chain(std::iter::repeat((0, 0)));
        let device = |(&device, (packages, items))| DeviceProgress { device, packages, items };
        let devices: Vec<DeviceProgress> = shared.devices.iter().zip(counts).map(device).collect();
        Progress { computed: devices.iter().map(|device| device.items).sum(), items: shared.items, devices }
    }

    /// Cancels the run: it begins no further package. Returns at once.
    ///
    /// Launched packages end, and their results are committed and collected. The bytes of all other items
    /// stay as they were. The run abandons requests for buffers that another user holds. It then ends with
    /// [`RunError::Cancelled`], unless all items are computed. Cancelling a run that has ended has no effect.
    ///
    /// The run also abandons a reduction that would wait for another user of its buffer. It then ends as
    /// cancelled with no item missing, and the buffer keeps its contents.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Returns a handle that cancels the run from any thread. Dropping this value still cancels the run.
    #[must_use]
    pub fn canceller(&self) -> RunCanceller {
        RunCanceller(self.0.clone())
    }
}

impl RunCanceller {
    /// Cancels the run, as [`Running::cancel`] does.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

/// A poll never blocks. Every poll after the end returns the same result.
impl Future for Running {
    type Output = Result<Report, RunError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = &*self.0;
        if !shared.is_here() {
            return Poll::Ready(Err(shared.forked()));
        }
        let mut fresh = Some(context.waker().clone());
        let mut state = shared.state.lock();
        let heard = state.heard();
        if let State::Running(waker) = &mut *state {
            std::mem::swap(waker, &mut fresh);
        }
        drop(state);
        // Dropping a waker is foreign code: the waker of the last poll, or this poll's waker after the end.
        quietly(fresh);
        heard.map_or(Poll::Pending, |heard| Poll::Ready(heard.tell()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let shared = &*self.0;
        if !shared.is_here() {
            return;
        }
        let mut state = shared.state.lock();
        let left = if let State::Running(waker) = &mut *state { waker.take() } else { return };
        drop(state);
        quietly(left);
        shared.cancel();
        if !shared.cancel.is_within() {
            // A caller that drops the run does not need a hook's panic, and a drop must not panic.
            drop(shared.wait(None));
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { kernel, items, .. } = &*self.0;
        f.debug_struct("Running").field("kernel", kernel).field("items", items).finish_non_exhaustive()
    }
}

impl fmt::Debug for RunCanceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunCanceller({})", self.0.kernel)
    }
}
