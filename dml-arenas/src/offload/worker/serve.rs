//! The main loop of a worker, from the greeting until its owner closes the control channel.

use super::call::{Windows, given};
use super::library::{self, CFunction};
use super::registry::{Native, Registry};
use crate::fork::Origin;
use crate::function::{Call, ComputeError};
use crate::offload::error::NO_CODE;
use crate::offload::message::{self, Command, Outcome, Reply, VERSION};
use crate::offload::transport::Channel;
use crate::offload::unix::SocketChannel;
use crate::shared::window::Window;
use dml_core::internal::panic_text;
use dml_core::internal::sync::{Arc, Mutex};
use libloading::Library;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::exit;

/// The exit code of a program that was not started by DML.
const NOT_STARTED_BY_DML: i32 = 2;

/// Stack size of a thread that runs functions, in bytes: the usual size of a main thread, on which C
/// libraries rely.
const STACK_BYTES: usize = 8 << 20;

/// The state that all pipelines of the worker share.
struct Worker {
    windows: Windows,
    threads: u32,
    functions: Mutex<Functions>,
    /// The worker process, as opposed to a child that a function forks.
    origin: Origin,
}

/// The functions, by name and by the number that the owner knows them by.
struct Functions {
    registry: BTreeMap<String, Arc<Native>>,
    libraries: Vec<Library>,
    numbers: BTreeMap<String, u32>,
    found: Vec<Found>,
}

#[derive(Clone)]
enum Found {
    Native(Arc<Native>),
    Library(CFunction),
}

/// Serves until the owner closes the control channel.
pub(super) fn serve(registry: Registry) -> ! {
    let control = match control() {
        Ok(control) => control,
        Err(reason) => {
            eprintln!("dml-offload-worker is started by DML, not by hand: {reason}");
            exit(NOT_STARTED_BY_DML);
        }
    };
    // This also covers an owner that is killed while this process is stopped and cannot see its channel end.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // SAFETY: ignoring a signal installs no handler, and this is the only thread so far. The worker is a
    // background process of the terminal, so without this a function that prints there could be stopped.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
    match greet(&control, registry) {
        Ok(worker) => answer(&control, &Arc::new(worker)),
        Err(reason) => {
            let reply = Reply::Failed { message: message::text(reason) };
            let _ = control.send(&reply.encode(), None);
        }
    }
    // SAFETY: ends the process without exit handlers, because functions may still be running.
    unsafe { libc::_exit(0) }
}

/// Takes the control channel from standard input. Functions find `/dev/null` there instead.
fn control() -> Result<SocketChannel, String> {
    let failed = |error: rustix::io::Errno| format!("its standard input cannot be used: {error}");
    let input = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(failed)?;
    let control = SocketChannel::over(input).map_err(|error| format!("its standard input: {error}"))?;
    let nothing = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    rustix::stdio::dup2_stdin(nothing.map_err(failed)?).map_err(failed)?;
    Ok(control)
}

/// Receives the greeting, maps its memory, applies its settings, and replies that the worker is ready.
fn greet(control: &SocketChannel, registry: Registry) -> Result<Worker, String> {
    let (greeting, memories) = control.receive_with().map_err(|error| format!("no greeting: {error:?}"))?;
    let Command::Hello { version, memory_bytes, threads, pins, shared_bytes } = Command::decode(&greeting)?
    else {
        return Err("the first message is not a greeting".to_owned());
    };
    if version != VERSION {
        return Err(format!("the owner speaks version {version} of the protocol, the worker {VERSION}"));
    }
    let mut memories = memories.into_iter();
    let memory = memories.next().ok_or("no memory came with the greeting")?;
    let own = Window::map(memory, memory_bytes).map_err(|error| format!("its memory: {error}"))?;
    let shared = match shared_bytes {
        None => None,
        Some(bytes) => {
            let memory = memories.next().ok_or("no shared memory came with the greeting")?;
            Some(Window::map(memory, bytes).map_err(|error| format!("the shared memory: {error}"))?)
        }
    };
    let windows = Windows { own, shared };
    pin(&pins).map_err(|error| format!("its threads cannot be kept on cores {pins:?}: {error}"))?;
    let registry = registry.into_functions().into_iter().map(|(name, function)| (name, Arc::new(function)));
    let functions = Functions {
        registry: registry.collect(),
        libraries: Vec::new(),
        numbers: BTreeMap::new(),
        found: Vec::new(),
    };
    let ready = Reply::Ready { version: VERSION };
    control.send(&ready.encode(), None).map_err(|error| format!("the owner is gone: {error:?}"))?;
    Ok(Worker { windows, threads, functions: Mutex::new(functions), origin: Origin::here() })
}

/// Pins this thread, and all threads that it will start, to these cores.
fn pin(cores: &[u32]) -> std::io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &core in cores {
        let core = core as usize;
        if core >= CpuSet::MAX_CPU {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("no core {core}")));
        }
        set.set(core);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Answers on the control channel until the owner closes it.
fn answer(control: &SocketChannel, worker: &Arc<Worker>) {
    while let Ok((command, descriptors)) = control.receive_with() {
        let reply = match Command::decode(&command) {
            Ok(Command::Find { name }) => {
                worker.find(&name).map_or(Reply::NotFound, |function| Reply::Found { function })
            }
            Ok(Command::Load { path }) => worker.load(&path),
            Ok(Command::Pipeline) => {
                open(worker, descriptors.into_iter().next());
                continue;
            }
            // An owner of the same version sends nothing else.
            Ok(Command::Hello { .. } | Command::Run { .. }) | Err(_) => return,
        };
        if control.send(&reply.encode(), None).is_err() {
            return;
        }
    }
}

/// Serves one more channel on a new thread. On a failure the channel is closed, which the owner notices.
fn open(worker: &Arc<Worker>, descriptor: Option<OwnedFd>) {
    let Some(Ok(channel)) = descriptor.map(SocketChannel::over) else { return };
    let worker = worker.clone();
    let thread = std::thread::Builder::new().name("dml-pipeline".to_owned()).stack_size(STACK_BYTES);
    let _ = thread.spawn(move || worker.run_all(&channel));
}

impl Worker {
    fn find(&self, name: &str) -> Option<u32> {
        let mut functions = self.functions.lock();
        if let Some(number) = functions.numbers.get(name) {
            return Some(*number);
        }
        let native = functions.registry.get(name).cloned().map(Found::Native);
        let mut libraries = functions.libraries.iter();
        let found = native
            .or_else(|| libraries.find_map(|library| library::find(library, name)).map(Found::Library))?;
        let number = u32::try_from(functions.found.len()).ok()?;
        functions.found.push(found);
        functions.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    fn load(&self, path: &[u8]) -> Reply {
        match library::load(path) {
            Ok(library) => {
                self.functions.lock().libraries.push(library);
                Reply::Loaded
            }
            Err(reason) => Reply::Failed { message: message::text(reason) },
        }
    }

    /// Runs the commands of one pipeline until its channel closes.
    fn run_all(&self, channel: &SocketChannel) {
        while let Ok(command) = channel.receive(None) {
            let Ok(Command::Run { ticket, call }) = Command::decode(&command) else { return };
            let outcome = self.run(call);
            if !self.origin.is_here() {
                // A function has forked and returned twice. The worker answers for the run, not the child.
                // SAFETY: ends the child without the exit handlers, which are the worker's.
                unsafe { libc::_exit(i32::from(outcome != Outcome::Done)) }
            }
            if channel.send(&Reply::Ended { ticket, outcome }.encode(), None).is_err() {
                return;
            }
        }
    }

    fn run(&self, call: message::Call) -> Outcome {
        let function = self.functions.lock().found.get(call.function as usize).cloned();
        let failed = |(code, error): (i32, ComputeError)| Outcome::Failed {
            code,
            message: message::text(error.to_string()),
        };
        let Some(function) = function else {
            return failed((NO_CODE, format!("there is no function number {}", call.function).into()));
        };
        let items = call.first..call.end;
        // SAFETY: the caller that launched the run guarantees that it alone is granted the bytes until it
        // ends (`OffloadArena::launch`, `Pipeline::run`).
        let given = unsafe { given(&self.windows, call.arguments) };
        let mut made = match given {
            Ok(given) => Call::new(items, None, given),
            Err(error) => return failed((NO_CODE, error)),
        };
        let ended = catch_unwind(AssertUnwindSafe(|| match function {
            Found::Native(native) => (**native)(&mut made).map_err(|error| (NO_CODE, error)),
            Found::Library(function) => library::call(function, self.threads, &mut made),
        }));
        match ended {
            Ok(Ok(())) => Outcome::Done,
            Ok(Err(error)) => failed(error),
            Err(panic) => failed((NO_CODE, format!("it panicked: {}", panic_text(&*panic)).into())),
        }
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;
    use crate::shared::window::memory;

    /// A worker with built-in functions and no loaded library.
    fn worker(names: &[&str]) -> Worker {
        let own = Window::map(memory("dml-test", 4096).unwrap(), 4096).unwrap();
        let native = || -> Arc<Native> { Arc::new(Box::new(|_: &mut Call<'_>| Ok(()))) };
        let functions = Functions {
            registry: names.iter().map(|name| ((*name).to_owned(), native())).collect(),
            libraries: Vec::new(),
            numbers: BTreeMap::new(),
            found: Vec::new(),
        };
        let windows = Windows { own, shared: None };
        Worker { windows, threads: 1, functions: Mutex::new(functions), origin: Origin::here() }
    }

    /// A library's function of the same name does not replace the worker's own.
    #[test]
    fn the_workers_own_functions_go_before_those_of_libraries() {
        let worker = worker(&["cos", "own"]);
        assert_eq!((worker.find("sin"), worker.find("nowhere")), (None, None));
        // libm is on every machine, and has cos and sin.
        assert_eq!(worker.load(b"libm.so.6"), Reply::Loaded);
        assert_eq!(
            ["sin", "cos", "own", "nowhere"].map(|name| worker.find(name)),
            [Some(0), Some(1), Some(2), None]
        );
        let is_own = |number: usize| matches!(worker.functions.lock().found[number], Found::Native(_));
        assert_eq!([0, 1, 2].map(is_own), [false, true, true]);
        assert_eq!(["own", "sin", "cos"].map(|name| worker.find(name)), [Some(2), Some(0), Some(1)]);
    }
}
