//! A coprocessor: the connection to one worker, and whether the device is lost.
//!
//! ```text
//!   start ──▶ there ──▶ ending ──▶ lost     by its own end, a time limit, a malformed reply, a broken connection, stop
//!               └──────────────────▶ lost     in a fork
//! ```
//! 1. A lost device stays lost: a new worker is a new device.
//! 2. When a device is lost, its worker is ended, and every waiter gets an error. If the worker shares
//!    memory, no waiter hears of the loss before the process has ended. Until then it could write bytes that
//!    are granted to other kernels. If it does not end in time, that memory is lost with it.
//! 3. The owner trusts nothing that a worker sends: it decodes each reply and checks that it fits the
//!    command. A reply never names memory; the owner decides where payload goes.
//! 4. A fork of the owner's process has lost the device. Nothing in the fork reaches the worker or its
//!    memory, and the fork calls nothing of the transport but its destructor.

use super::error::{Loss, OffloadError};
use super::message::{Command, LIMIT_BYTES, Memory, Reply};
use super::transfer::Transfer;
use super::transport::{Channel, ChannelError, Transport};
use super::unix::{CONTROL_LIMIT, Start, UnixTransport};
use crate::fork::Origin;
use crate::kit::Heap;
use crate::shared::SharedMemory;
use dml_core::Span;
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The default time limit of a run.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);
/// Longest wait, after a connection closes, for the report that its process ended.
const END_DELAY: Duration = Duration::from_millis(500);

/// Longest wait for the end of a killed worker that shares memory. After it, that memory is lost too.
const KILLED_LIMIT: Duration = if cfg!(test) { Duration::from_secs(5) } else { CONTROL_LIMIT };

/// Options for starting a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerOptions {
    /// The program: one that calls [`hook`](super::hook) first thing in `main`, or `dml-offload-worker`.
    pub program: PathBuf,
    /// Number of threads that a function may use, at least 1. C functions and common thread pools receive the
    /// number, but it is not enforced.
    pub threads: u32,
    /// Cores that the worker's threads are pinned to, as the operating system numbers them; empty for any.
    pub pins: Vec<u32>,
    /// The size of the worker's memory, in bytes. Pages are reserved when blocks are allocated.
    pub memory_bytes: u64,
    /// Time limit of a run, after which its worker counts as hung; `None` for no limit.
    pub time_limit: Option<Duration>,
}

impl WorkerOptions {
    /// Makes options for one thread on any core, with 1 GiB of memory and [`TIME_LIMIT`].
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let (memory_bytes, time_limit) = (1 << 30, Some(TIME_LIMIT));
        Self { program: program.into(), threads: 1, pins: Vec::new(), memory_bytes, time_limit }
    }
}

/// Longest device name that all uses of the name accept, in bytes.
const NAME_LIMIT_BYTES: usize = 200;

impl WorkerOptions {
    /// Rejects invalid options, which would cause a less clear error elsewhere.
    fn check(&self, name: &str) -> Result<(), OffloadError> {
        let is_name = (1..=NAME_LIMIT_BYTES).contains(&name.len()) && !name.contains('\0');
        let reason = match (is_name, self.threads, self.memory_bytes) {
            (false, ..) => format!("a name has 1 to {NAME_LIMIT_BYTES} bytes and no zero, unlike {name:?}"),
            (_, 0, _) => "no threads".to_owned(),
            (.., 0) => "no memory".to_owned(),
            _ => return Ok(()),
        };
        Err(OffloadError::Start { device: name.into(), reason: reason.into() })
    }
}

/// A coprocessor: a worker with a memory and functions of its own.
///
/// The worker ends when the last reference is dropped, and when this process ends in any way. In a fork of
/// this process the device is lost ([`Loss::Forked`]); in this process it goes on.
pub struct OffloadDevice {
    name: Arc<str>,
    threads: u32,
    time_limit: Option<Duration>,
    life: Arc<Life>,
    /// Held while a command on the control channel waits for its reply.
    asking: Mutex<()>,
    pipelines: AtomicU64,
    /// The allocator of pages in the worker's own memory.
    heap: Heap,
    /// The memory that the worker shares, if any.
    shared: Option<Arc<SharedMemory>>,
    transport: Box<dyn Transport>,
}

/// A waiter that is notified when the device is lost, because it waits for more than a channel.
pub(super) trait HearsOfLoss: Send + Sync {
    /// Makes the waiter check again whether the device is lost.
    fn lost(&self);
}

/// The state of a device, and the waiters that are notified of its loss.
struct Life {
    /// Whether the device will be lost as soon as its worker has ended.
    is_ending: AtomicBool,
    is_lost: AtomicBool,
    end: Mutex<End>,
    changed: Condvar,
    /// The channels to close when the device is lost, so that their waiters return.
    channels: Mutex<Vec<Weak<dyn Channel>>>,
    pipelines: Mutex<Vec<Weak<dyn HearsOfLoss>>>,
    /// The process that made the device, as opposed to its forks.
    origin: Origin,
}

/// The progress of a device's end.
#[derive(Debug, Default)]
struct End {
    loss: Option<Loss>,
    /// Whether the worker process has ended, rather than only been killed.
    is_over: bool,
}

impl Life {
    /// Records why the device will be lost. The first reason is kept.
    fn begin_end(&self, loss: Loss) {
        self.end.lock().loss.get_or_insert(loss);
        self.is_ending.store(true, Ordering::SeqCst);
    }

    /// Marks the device as lost, and wakes every waiter. Must not be called in a fork.
    fn lose(&self) {
        // The loss is recorded before the channels are closed, so that a waiter on a closed channel finds the
        // reason.
        self.is_lost.store(true, Ordering::SeqCst);
        self.changed.notify_all();
        let channels = std::mem::take(&mut *self.channels.lock());
        channels.iter().filter_map(Weak::upgrade).for_each(|channel| channel.close());
        let pipelines = std::mem::take(&mut *self.pipelines.lock());
        pipelines.iter().filter_map(Weak::upgrade).for_each(|pipeline| pipeline.lost());
    }
}

impl OffloadDevice {
    /// Starts a worker process of this machine.
    ///
    /// # Errors
    /// [`OffloadError::Start`] with the program and the cause.
    pub fn start(name: &str, options: &WorkerOptions) -> Result<Arc<Self>, OffloadError> {
        Self::start_with(name, options, None)
    }

    /// Starts a worker process of this machine that maps `memory` beside its own. The device's arena can then
    /// be bound to the arena of that memory.
    ///
    /// The worker's program and functions are trusted with this memory like code of this process.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_sharing(
        name: &str,
        options: &WorkerOptions,
        memory: &Arc<SharedMemory>,
    ) -> Result<Arc<Self>, OffloadError> {
        Self::start_with(name, options, Some(memory.clone()))
    }

    fn start_with(
        name: &str,
        options: &WorkerOptions,
        shared: Option<Arc<SharedMemory>>,
    ) -> Result<Arc<Self>, OffloadError> {
        let WorkerOptions { program, threads, pins, memory_bytes, time_limit } = options;
        options.check(name)?;
        let (threads, memory_bytes) = (*threads, *memory_bytes);
        let start = Start { device: name, program, threads, pins, memory_bytes, shared: shared.as_deref() };
        let transport = UnixTransport::start(&start)
            .map_err(|reason| OffloadError::Start { device: name.into(), reason: reason.into() })?;
        Ok(Self::sharing(name, threads, *time_limit, Box::new(transport), shared))
    }

    /// Makes a device whose worker already listens on the given transport.
    pub fn over(
        name: &str,
        threads: u32,
        time_limit: Option<Duration>,
        transport: Box<dyn Transport>,
    ) -> Arc<Self> {
        Self::sharing(name, threads, time_limit, transport, None)
    }

    /// Makes a device whose worker already listens, and shares the memory `shared`.
    pub(super) fn sharing(
        name: &str,
        threads: u32,
        time_limit: Option<Duration>,
        transport: Box<dyn Transport>,
        shared: Option<Arc<SharedMemory>>,
    ) -> Arc<Self> {
        let life = Arc::new(Life {
            is_ending: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            end: Mutex::new(End::default()),
            changed: Condvar::new(),
            channels: Mutex::new(Vec::new()),
            pipelines: Mutex::new(Vec::new()),
            origin: Origin::here(),
        });
        let watched = life.clone();
        transport.watch(Box::new(move |status| {
            watched.begin_end(Loss::Ended { status });
            watched.end.lock().is_over = true;
            watched.lose();
        }));
        let (asking, pipelines) = (Mutex::new(()), AtomicU64::new(0));
        let heap = Heap::new(transport.memory_bytes());
        Arc::new(Self {
            name: name.into(),
            threads,
            time_limit,
            life,
            asking,
            pipelines,
            heap,
            shared,
            transport,
        })
    }

    /// Returns the device's name, such as `offload:0`.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the number of threads that a function may use.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Returns the time limit of a run; `None` for no limit.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// Returns the size of the worker's memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.transport.memory_bytes()
    }

    /// Returns the memory that the worker shares with this process, if any.
    #[must_use]
    pub fn shared(&self) -> Option<&Arc<SharedMemory>> {
        self.shared.as_ref()
    }

    /// Returns the process id of the worker, if it is a process of this machine.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.transport.process()
    }

    /// Returns why the device is lost, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        if !self.is_here() {
            return Some(Loss::Forked);
        }
        if self.is_lost() { self.life.end.lock().loss.clone() } else { None }
    }

    /// Returns whether the device is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.life.is_lost.load(Ordering::SeqCst) || !self.is_here()
    }

    /// Returns whether this process made the device, and is not a fork of that process.
    pub(super) fn is_here(&self) -> bool {
        self.life.origin.is_here()
    }

    /// Ends the worker, and waits until it has ended. Runs in flight fail. In a fork this does nothing.
    pub fn stop(&self) {
        if !self.is_here() {
            return;
        }
        self.lose(Loss::Stopped);
        if self.shared.is_none() {
            // A process that does not end in time is left to the kernel.
            self.wait(Instant::now() + CONTROL_LIMIT, |end| end.is_over);
        }
    }

    /// Loads a shared library into the worker. Its functions can then be looked up. The worker's loader
    /// searches for a path without a slash. Among functions of one name, the worker's registry comes first,
    /// then the libraries in the order of loading.
    ///
    /// The library is trusted with the worker, not with this process: a crash there is a lost device here.
    /// Loading runs the library's initialisers, under the time limit of a run.
    ///
    /// # Errors
    /// [`OffloadError::Library`] with the loader's message, [`OffloadError::TooLong`],
    /// [`OffloadError::DeviceLost`].
    pub fn load(&self, path: impl AsRef<Path>) -> Result<(), OffloadError> {
        let path = path.as_ref();
        let load = Command::Load { path: path.as_os_str().as_bytes().to_vec() };
        let reply = self.ask("a library", &load, self.time_limit)?;
        match reply {
            Reply::Loaded => Ok(()),
            Reply::Failed { message } => Err(OffloadError::Library {
                device: self.name.clone(),
                path: path.display().to_string().into(),
                reason: message.into(),
            }),
            other => Err(self.unexpected(&other, "a library")),
        }
    }

    /// Returns the number of the next pipeline, counted from 0.
    pub(super) fn next_pipeline_number(&self) -> u64 {
        self.pipelines.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a command on the control channel, and waits for its reply.
    pub(super) fn ask(
        &self,
        what: &'static str,
        command: &Command,
        limit: Option<Duration>,
    ) -> Result<Reply, OffloadError> {
        let message = self.message(what, command)?;
        // Checked before the lock too: in a fork the lock may be held for ever.
        self.expect_there()?;
        let _one = self.asking.lock();
        self.expect_there()?;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let control = self.transport.control();
        let answer = control.send(&message, deadline).and_then(|()| control.receive(deadline));
        let answer = answer.map_err(|error| self.broken(error, what, limit.unwrap_or(Duration::MAX)))?;
        Reply::decode(&answer).map_err(|what| self.protocol(what))
    }

    /// Encodes a command as a message, if it is not too long for one.
    pub(super) fn message(&self, what: &str, command: &Command) -> Result<Vec<u8>, OffloadError> {
        let message = command.encode();
        if message.len() > LIMIT_BYTES {
            return Err(OffloadError::TooLong {
                device: self.name.clone(),
                what: what.into(),
                bytes: message.len(),
                limit_bytes: LIMIT_BYTES,
            });
        }
        Ok(message)
    }

    /// Opens a channel for the caller, which is closed when the device is lost.
    pub(super) fn open(&self) -> Result<Arc<dyn Channel>, OffloadError> {
        self.expect_there()?;
        let channel = self.transport.open().map_err(|error| match error {
            ChannelError::Failed(cause) => self.resource("a channel", &cause),
            error => self.broken(error, "a new channel", CONTROL_LIMIT),
        })?;
        keep(&self.life.channels, Arc::downgrade(&channel));
        // A loss in the meantime may have missed this channel.
        if self.is_lost() {
            channel.close();
        }
        Ok(channel)
    }

    /// Registers `who` for the notification of a loss.
    pub(super) fn tell_of_loss(&self, who: Weak<dyn HearsOfLoss>) {
        keep(&self.life.pipelines, who);
    }

    pub(super) fn heap(&self) -> &Heap {
        &self.heap
    }

    pub(super) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Frees pages of the worker's memory. Does nothing in a fork, because the pages belong to the parent.
    pub(super) fn give_back(&self, pages: Span) {
        if self.is_here() {
            self.transport.give_back(pages);
            self.heap.give_back(pages);
        }
    }

    /// Makes a transfer on the calling thread. A transfer that ends after the device was lost fails.
    pub(super) fn transfer(&self, transfer: &Transfer) -> Result<u64, OffloadError> {
        self.expect_there()?;
        let (place, bytes) = match transfer {
            Transfer::In { place, from } => (place, from.len()),
            Transfer::Out { place, to } => (place, to.len()),
            Transfer::Fill { place, .. } => (place, place.span.len()),
        };
        let moved = match (place.memory, &self.shared) {
            (Memory::Own, _) => self.transfer_own(place.span, transfer),
            (Memory::Shared, Some(shared)) => {
                let window = shared.window();
                // SAFETY: the transfer holds the loan of the host memory. Core, or the caller of a pipeline,
                // guarantees access to the place.
                unsafe {
                    match transfer {
                        Transfer::In { from, .. } => window.copy_in(place.span.start(), from.span()),
                        Transfer::Out { to, .. } => window.copy_out(place.span.start(), to.span()),
                        Transfer::Fill { byte, .. } => window.fill(place.span, *byte),
                    }
                }
                Ok(())
            }
            (Memory::Shared, None) => unreachable!("only a device that shares binds blocks to shared memory"),
        };
        if let Err(cause) = moved {
            return Err(self.broken(ChannelError::Failed(cause), "a transfer", CONTROL_LIMIT));
        }
        self.expect_there().map(|()| bytes)
    }

    /// Makes a transfer to or from the worker's own memory.
    fn transfer_own(&self, place: Span, transfer: &Transfer) -> std::io::Result<()> {
        match transfer {
            // SAFETY: the transfer holds the loan.
            Transfer::In { from, .. } => unsafe { self.transport.copy_in(place.start(), from.span()) },
            // SAFETY: as above.
            Transfer::Out { to, .. } => unsafe { self.transport.copy_out(place.start(), to.span()) },
            Transfer::Fill { byte, .. } => self.transport.fill(place, *byte),
        }
    }

    /// Checks that the device is not lost. If its worker is being ended, waits for that end: an error of a
    /// loss promises that the worker no longer writes.
    pub(super) fn expect_there(&self) -> Result<(), OffloadError> {
        if self.is_lost() {
            return Err(self.lost());
        }
        if self.life.is_ending.load(Ordering::SeqCst) {
            self.finish_end();
            return Err(self.lost());
        }
        Ok(())
    }

    /// Returns the error of a lost device.
    pub(super) fn lost(&self) -> OffloadError {
        let loss = self.loss().unwrap_or(Loss::Stopped);
        OffloadError::DeviceLost { device: self.name.clone(), loss }
    }

    /// Returns the error of a resource that this process could not get.
    pub(super) fn resource(&self, what: &'static str, cause: &std::io::Error) -> OffloadError {
        OffloadError::Resource { device: self.name.clone(), what, cause: cause.to_string().into() }
    }

    /// Kills the worker, and declares the device lost.
    fn lose(&self, loss: Loss) {
        self.life.begin_end(loss);
        self.transport.kill();
        self.finish_end();
    }

    /// Declares the device lost, once its worker can no longer write shared memory. If the worker does not
    /// end in time, the shared memory is lost too.
    fn finish_end(&self) {
        if let Some(shared) = &self.shared
            && !self.wait(Instant::now() + KILLED_LIMIT, |end| end.is_over)
        {
            shared.spoil(format!("the worker of {} was killed and does not end", self.name));
        }
        self.life.lose();
    }

    /// Declares the device lost because a channel failed during `command`. Returns the error.
    pub(super) fn broken(&self, error: ChannelError, command: &str, limit: Duration) -> OffloadError {
        let cause = match error {
            ChannelError::TimedOut => {
                self.lose(Loss::Hung { command: command.into(), limit });
                return self.lost();
            }
            ChannelError::Failed(cause) => cause.to_string(),
            ChannelError::Closed => {
                // A process that ends closes its channels shortly before its end is reported.
                self.wait(Instant::now() + END_DELAY, |end| end.loss.is_some());
                "the worker closed it".to_owned()
            }
        };
        self.lose(Loss::Connection { cause: cause.into() });
        self.lost()
    }

    /// Declares the device lost because the worker broke the protocol. Returns the error.
    pub(super) fn protocol(&self, what: impl Into<Arc<str>>) -> OffloadError {
        self.lose(Loss::Protocol { what: what.into() });
        self.lost()
    }

    /// Declares the device lost because the reply does not fit the command. Returns the error.
    pub(super) fn unexpected(&self, reply: &Reply, to: &str) -> OffloadError {
        self.protocol(format!("{reply:?} in reply to {to}"))
    }

    /// Waits until `is_so` holds for the end of the device, or until the deadline. Returns whether it holds.
    fn wait(&self, deadline: Instant, is_so: impl Fn(&End) -> bool) -> bool {
        let mut end = self.life.end.lock();
        while !is_so(&end) {
            let (guard, timed_out) = self.life.changed.wait_until(end, deadline);
            end = guard;
            if timed_out {
                return is_so(&end);
            }
        }
        true
    }
}

/// Adds an entry, and removes the entries whose objects are dropped.
fn keep<T: ?Sized>(those: &Mutex<Vec<Weak<T>>>, one: Weak<T>) {
    let mut those = those.lock();
    those.retain(|one| one.strong_count() > 0);
    those.push(one);
}

impl Drop for OffloadDevice {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for OffloadDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffloadDevice")
            .field("name", &self.name)
            .field("threads", &self.threads)
            .field("process", &self.process())
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_options_are_refused_by_name() {
        let told = |name: &str, options: &WorkerOptions| match options.check(name) {
            Ok(()) => None,
            Err(OffloadError::Start { device, reason }) => {
                assert_eq!(&*device, name);
                Some(reason.to_string())
            }
            Err(error) => panic!("{error}"),
        };
        let sound = WorkerOptions::new("/bin/true");
        let longest = "x".repeat(NAME_LIMIT_BYTES);
        for name in ["w", "offload:0", &longest] {
            assert_eq!(told(name, &sound), None, "{name}");
        }
        for name in ["", "a\0b", &format!("{longest}x")] {
            assert!(
                told(name, &sound).is_some_and(|why| why.contains("a name has 1 to 200 bytes")),
                "{name}"
            );
        }
        assert_eq!(told("w", &WorkerOptions { threads: 0, ..sound.clone() }).as_deref(), Some("no threads"));
        assert_eq!(told("w", &WorkerOptions { memory_bytes: 0, ..sound }).as_deref(), Some("no memory"));
    }
}
