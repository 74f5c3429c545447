//! The worker process: how it is started, watched and killed.
//!
//! ```text
//!   keeper thread:  spawn ──▶ wait until it ends ──▶ reap ──▶ tell
//! ```
//! 1. The keeper thread lives as long as the worker. The kernel kills the worker when the thread that started it ends,
//!    so the worker ends with this process in any case. The keeper makes sure that it does not end earlier.
//! 2. A process is signalled through a pidfd or, without one, only while it is certainly not reaped. So a signal never
//!    hits another process that has taken over its number.
//! 3. Dropping the handle ends the process and waits for its end, unless a debugger or the kernel keeps it alive. In a
//!    fork of the owner, dropping the handle affects neither the process nor the keeper thread, which the fork does not
//!    have.

use crate::fork::Origin;
use dml_core::sync::{Arc, Condvar, Mutex};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal, waitid,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The name under which a worker runs. A program that is its own worker recognises by it that it was started as one.
pub(super) const WORKER: &str = "dml-offload-worker";
/// The prefix of the device's name in a worker's only argument.
pub(super) const DEVICE: &str = "--device=";

/// How long a killed process may take to end before it is left to the kernel. By then a device has waited longer.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A running worker.
pub(super) struct Process {
    number: u32,
    origin: Origin,
    state: Arc<State>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
enum Progress {
    #[default]
    Starting,
    NotStarted(io::Error),
    Running(Target, Vec<OnEnd>),
    Ended(Arc<str>),
}

/// A process to be signalled.
struct Target {
    pid: Pid,
    /// The pidfd, which never names a successor; `None` on kernels before 5.3.
    descriptor: Option<OwnedFd>,
}

impl Target {
    fn of(child: &Child) -> Self {
        let pid = Pid::from_child(child);
        Self { pid, descriptor: pidfd_open(pid, PidfdFlags::empty()).ok() }
    }

    fn kill(&self) {
        // The process may already have ended without being reaped; the failure is then harmless.
        let _ = match &self.descriptor {
            Some(descriptor) => pidfd_send_signal(descriptor, Signal::KILL),
            None => kill_process(self.pid, Signal::KILL),
        };
    }
}

type OnEnd = Box<dyn FnOnce(Arc<str>) + Send>;

impl Process {
    /// Starts a program as the worker of a device, with `socket` as its standard input.
    ///
    /// # Errors
    /// The error that the operating system reports for the program or the thread.
    pub(super) fn start(program: &Path, device: &str, threads: u32, socket: OwnedFd) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg0(WORKER).arg(format!("{DEVICE}{device}")).stdin(Stdio::from(socket));
        // The output of functions must not mix with that of the program that started the worker.
        let errors = io::stderr().as_fd().try_clone_to_owned();
        command.stdout(errors.map_or_else(|_| Stdio::null(), Stdio::from));
        // Compute libraries read the number of threads from these two variables.
        let threads = threads.to_string();
        command.env("RAYON_NUM_THREADS", &threads).env("OMP_NUM_THREADS", &threads);
        // The owner handles Ctrl-C at the terminal.
        command.process_group(0);
        let state = Arc::new(State::default());
        let keeper = {
            let state = state.clone();
            std::thread::Builder::new()
                .name(format!("{device}-keeper"))
                .spawn(move || keep(command, &state))?
        };
        let mut progress = state.progress.lock();
        while matches!(*progress, Progress::Starting) {
            progress = state.changed.wait(progress);
        }
        let number = match std::mem::take(&mut *progress) {
            Progress::NotStarted(error) => {
                drop(progress);
                let _ = keeper.join();
                return Err(error);
            }
            other => {
                let number = if let Progress::Running(target, _) = &other {
                    target.pid.as_raw_pid().cast_unsigned()
                } else {
                    0
                };
                *progress = other;
                number
            }
        };
        drop(progress);
        Ok(Self { number, origin: Origin::here(), state, keeper: Some(keeper) })
    }

    /// The process id of the worker.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Kills the process at once. Must not be called in a fork of its owner.
    pub(super) fn kill(&self) {
        if let Progress::Running(target, _) = &*self.state.progress.lock() {
            target.kill();
        }
    }

    /// Calls `on_end` when the process ends, or now if it has ended.
    pub(super) fn watch(&self, on_end: OnEnd) {
        let status = match &mut *self.state.progress.lock() {
            Progress::Running(_, watchers) => return watchers.push(on_end),
            Progress::Ended(status) => status.clone(),
            Progress::Starting | Progress::NotStarted(_) => {
                unreachable!("a handle is of a process that started")
            }
        };
        on_end(status);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(keeper) = self.keeper.take() else { return };
        if !self.origin.is_here() {
            // The handle names a thread of the owner. In a fork the same name may belong to a newer thread, which
            // dropping the handle would detach.
            std::mem::forget(keeper);
            return;
        }
        self.kill();
        if keeper.thread().id() == std::thread::current().id() {
            return;
        }
        let deadline = Instant::now() + END_LIMIT;
        let mut progress = self.state.progress.lock();
        while !matches!(*progress, Progress::Ended(_)) {
            let (guard, timed_out) = self.state.changed.wait_until(progress, deadline);
            progress = guard;
            if timed_out {
                // A debugger or the kernel keeps the process alive. The keeper waits for it without this handle.
                return;
            }
        }
        drop(progress);
        // Only a watcher can panic in the keeper, and its panic has no one left to be reported to.
        let _ = keeper.join();
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Process({})", self.number)
    }
}

/// Runs the keeper thread: starts the worker, waits for its end, and tells the watchers.
fn keep(mut command: Command, state: &State) {
    let started = command.spawn();
    // Closes this side's copy of the worker's socket, so that the socket ends when the worker ends.
    drop(command);
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            *state.progress.lock() = Progress::NotStarted(error);
            state.changed.notify_all();
            return;
        }
    };
    let target = Target::of(&child);
    let pid = target.pid;
    *state.progress.lock() = Progress::Running(target, Vec::new());
    state.changed.notify_all();
    // The process is not reaped yet, so its number stays its own while others may signal it.
    let not_reaping = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), not_reaping) {}
    let (watchers, status) = {
        let mut progress = state.progress.lock();
        let status = reap(child);
        let Progress::Running(_, watchers) =
            std::mem::replace(&mut *progress, Progress::Ended(status.clone()))
        else {
            unreachable!("it runs until it is reaped, here")
        };
        (watchers, status)
    };
    state.changed.notify_all();
    watchers.into_iter().for_each(|on_end| on_end(status.clone()));
}

/// Reaps the process, and describes in words how it ended. The end is unknown if the application told the kernel to
/// forget children.
fn reap(mut child: Child) -> Arc<str> {
    match child.wait() {
        Ok(status) => status.to_string().into(),
        Err(error) => format!("how is not known: {error}").into(),
    }
}
