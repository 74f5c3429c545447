//! The worker as a process: started, killed, and never left behind.
//!
//! ```text
//!   keeper thread:  spawn ──▶ wait until it ends ──▶ reap ──▶ tell
//! ```
//! 1. The keeper lives as long as the process does. The worker asks the kernel to be killed when the thread that
//!    started it ends, so it ends with this process however that ends; the keeper sees to it that it is not earlier.
//! 2. A process is signalled by a descriptor of its own, or else while it is known not to be reaped: never one that has
//!    taken over its number.
//! 3. Dropping the handle ends the process and waits until it has, unless somebody else holds on to it. A fork of the
//!    owner that drops what it inherited does nothing to it, nor to the keeper, a thread that the fork does not have.

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

/// The name under which a worker runs, and by which a program that is its own worker knows that it is one.
pub(super) const WORKER: &str = "dml-offload-worker";
/// What comes before the device's name in a worker's one argument.
pub(super) const DEVICE: &str = "--device=";

/// How long a process that was killed may take to be gone before it is left to the kernel. A device has waited longer by
/// then.
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
    /// What names it and no successor; kernels before 5.3 have none.
    descriptor: Option<OwnedFd>,
}

impl Target {
    fn of(child: &Child) -> Self {
        let pid = Pid::from_child(child);
        Self { pid, descriptor: pidfd_open(pid, PidfdFlags::empty()).ok() }
    }

    fn kill(&self) {
        // It may have ended already and not be reaped yet, which is as good.
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
    /// What the operating system reports of the program or the thread.
    pub(super) fn start(program: &Path, device: &str, threads: u32, socket: OwnedFd) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg0(WORKER).arg(format!("{DEVICE}{device}")).stdin(Stdio::from(socket));
        // What a function prints must not get between the lines of the program that started it.
        let errors = io::stderr().as_fd().try_clone_to_owned();
        command.stdout(errors.map_or_else(|_| Stdio::null(), Stdio::from));
        // The two ways in which compute libraries are told how many threads to have.
        let threads = threads.to_string();
        command.env("RAYON_NUM_THREADS", &threads).env("OMP_NUM_THREADS", &threads);
        // A Ctrl-C at the terminal is the owner's to handle.
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

    /// Its number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Ends it at once. Not to be called in a fork of its owner.
    pub(super) fn kill(&self) {
        if let Progress::Running(target, _) = &*self.state.progress.lock() {
            target.kill();
        }
    }

    /// Has `on_end` called when it ends, or now where it has.
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
            // The handle names a thread of the owner's. In a fork that may be the name of a thread started since, which
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
                // A debugger or the kernel holds on to it. The keeper has all it needs to see it off.
                return;
            }
        }
        drop(progress);
        // The keeper runs nothing that panics but a watcher, which has no one left to tell.
        let _ = keeper.join();
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Process({})", self.number)
    }
}

/// The keeper's life.
fn keep(mut command: Command, state: &State) {
    let started = command.spawn();
    // Closes the worker's end of its socket on this side: when the worker ends, the socket must.
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
    // Without reaping it yet: its number is its own for as long as others may want to signal it.
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

/// How it ended, in words. Where the application has told the kernel to forget children, nobody knows.
fn reap(mut child: Child) -> Arc<str> {
    match child.wait() {
        Ok(status) => status.to_string().into(),
        Err(error) => format!("how is not known: {error}").into(),
    }
}
