//! The worker process: how it is started, watched and killed.
//!
//! ```text
//!   keeper thread:  spawn ──▶ wait until it ends ──▶ reap ──▶ call the watchers
//! ```
//! 1. The keeper thread lives as long as the worker. The kernel kills the worker when the thread that started
//!    it ends (parent-death signal), so the worker never outlives this process. The keeper thread stays
//!    alive, so the worker does not end earlier.
//! 2. A process is signalled through a pidfd or, without one, only before it is reaped. So a signal never
//!    reaches another process that reuses its process id.
//! 3. Dropping the handle ends the process and waits for its end, unless a debugger or the kernel keeps it
//!    alive. In a fork of the owner, dropping the handle affects neither the process nor the keeper thread,
//!    which the fork does not have.

use crate::fork::Origin;
use dml_core::internal::sync::{Arc, Condvar, Mutex};
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

/// The `argv[0]` of a worker, by which a program knows that it was started as one. Also the file name of the
/// separate worker program.
pub(super) const WORKER: &str = "dml-offload-worker";
/// The prefix of the device's name in a worker's only argument.
pub(super) const DEVICE: &str = "--device=";

/// Longest wait for the end of a killed process when its handle is dropped. A device's `stop` has waited
/// longer before.
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

/// The process that signals are sent to.
struct Target {
    pid: Pid,
    /// The pidfd, which never refers to another process; `None` if it cannot be opened, as on Linux before
    /// 5.3.
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
        // Functions print to standard error, because the owner's standard output must stay its own.
        let errors = io::stderr().as_fd().try_clone_to_owned();
        command.stdout(errors.map_or_else(|_| Stdio::null(), Stdio::from));
        // Compute libraries read the number of threads from these two variables.
        let threads = threads.to_string();
        command.env("RAYON_NUM_THREADS", &threads).env("OMP_NUM_THREADS", &threads);
        // A process group of its own, so that Ctrl-C at the terminal reaches only the owner.
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

    /// Returns the worker's process id.
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
                unreachable!("a `Process` is made only after its worker started")
            }
        };
        on_end(status);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(keeper) = self.keeper.take() else { return };
        if !self.origin.is_here() {
            // The handle refers to a thread of the owner. In a fork its id may belong to a newer thread,
            // which dropping the handle would detach.
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
                // A debugger or the kernel keeps the process alive. The keeper thread goes on waiting for it.
                return;
            }
        }
        drop(progress);
        // Only a watcher can panic in the keeper thread. No caller is left to receive its panic.
        let _ = keeper.join();
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Process({})", self.number)
    }
}

/// Runs the keeper thread: starts the worker, waits for its end, and calls the watchers.
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
    // This wait does not reap the process, so its process id is not reused while other threads may signal it.
    let not_reaping = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), not_reaping) {}
    let (watchers, status) = {
        let mut progress = state.progress.lock();
        let status = reap(child);
        let Progress::Running(_, watchers) =
            std::mem::replace(&mut *progress, Progress::Ended(status.clone()))
        else {
            unreachable!("only the keeper thread ends the state `Running`")
        };
        (watchers, status)
    };
    state.changed.notify_all();
    watchers.into_iter().for_each(|on_end| on_end(status.clone()));
}

/// Reaps the process, and describes how it ended. The status is unknown if the application ignores SIGCHLD:
/// the kernel then reaps the process.
fn reap(mut child: Child) -> Arc<str> {
    match child.wait() {
        Ok(status) => status.to_string().into(),
        Err(error) => format!("exit status unknown: {error}").into(),
    }
}
