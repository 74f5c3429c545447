//! A coprocessor: one worker, what it can run, and whether it is still there.
//!
//! ```text
//!   start ──▶ there ──▶ lost      by its own end, a time limit, a malformed reply, a broken connection, stop, a fork
//! ```
//! 1. A device is lost once and for good: a new worker is a new device.
//! 2. When it is lost its worker is ended, and everybody who waits for it hears so.
//! 3. Nothing that a worker sends is believed: a reply is decoded, compared with what was asked, and means nothing to
//!    memory. Where payload goes is decided here.
//! 4. In a fork of the process that made it a device is lost. Nothing there reaches the worker or its memory, and of the
//!    transport nothing is called but its destructor.

use super::error::{Loss, OffloadError};
use super::function::Function;
use super::heap::Heap;
use super::message::{Command, LIMIT_BYTES, Reply};
use super::pipeline::{Pipeline, Transfer};
use super::transport::{Channel, ChannelError, Transport};
use super::unix::{CONTROL_LIMIT, Start, UnixTransport};
use crate::fork::Origin;
use dml_core::Span;
use dml_core::sync::{Arc, Condvar, Mutex};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a run may take unless the options say otherwise.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);
/// How long the end of a process may come after that of its connection.
const END_DELAY: Duration = Duration::from_millis(500);

/// How a worker is to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerOptions {
    /// The program: one that calls [`hook`](super::hook) first thing in `main`, or `dml-offload-worker`.
    pub program: PathBuf,
    /// How many threads its functions may use, at least 1. They are told so; what a function does is its own.
    pub threads: u32,
    /// The cores its threads are kept on, as the operating system numbers them; empty for any.
    pub pins: Vec<u32>,
    /// The size of its memory, in bytes. Pages are taken when they are allocated.
    pub memory_bytes: u64,
    /// How long a run may take before its worker counts as hung; `None` for as long as it likes.
    pub time_limit: Option<Duration>,
}

impl WorkerOptions {
    /// One thread, 1 GiB, [`TIME_LIMIT`], on any core.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let (memory_bytes, time_limit) = (1 << 30, Some(TIME_LIMIT));
        Self { program: program.into(), threads: 1, pins: Vec::new(), memory_bytes, time_limit }
    }
}

/// What a name is used for takes no more.
const NAME_LIMIT_BYTES: usize = 200;

impl WorkerOptions {
    /// Says what cannot be, before it fails somewhere else under another name.
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
/// Dropping the last reference ends the worker. So does the end of this process, however it ends. A fork of this process
/// inherits a handle of no use: the device is lost there ([`Loss::Forked`]), and here it goes on.
pub struct OffloadDevice {
    name: Arc<str>,
    threads: u32,
    time_limit: Option<Duration>,
    life: Arc<Life>,
    /// One question at a time.
    asking: Mutex<()>,
    pipelines: AtomicU64,
    /// Which of the worker's memory is taken.
    heap: Heap,
    transport: Box<dyn Transport>,
}

/// Somebody who waits for more than a channel, and has to know that the device is lost.
pub(super) trait HearsOfLoss: Send + Sync {
    fn lost(&self);
}

/// Whether a device is still there.
struct Life {
    is_lost: AtomicBool,
    end: Mutex<End>,
    changed: Condvar,
    /// To be closed when it is lost, so that those who wait in them hear of it.
    channels: Mutex<Vec<Weak<dyn Channel>>>,
    pipelines: Mutex<Vec<Weak<dyn HearsOfLoss>>>,
    /// The process whose device it is.
    origin: Origin,
}

#[derive(Debug, Default)]
struct End {
    loss: Option<Loss>,
    /// Whether the worker has ended, and not only been told to.
    is_over: bool,
}

impl Life {
    /// Not to be called in a fork.
    fn lose(&self, loss: Loss) {
        self.end.lock().loss.get_or_insert(loss);
        // Set before the channels are closed: whoever finds one closed finds the reason too.
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
    /// [`OffloadError::Start`] with the program and what is wrong with it.
    pub fn start(name: &str, options: &WorkerOptions) -> Result<Arc<Self>, OffloadError> {
        let WorkerOptions { program, threads, pins, memory_bytes, time_limit } = options;
        options.check(name)?;
        let start = Start { device: name, program, threads: *threads, pins, memory_bytes: *memory_bytes };
        let transport = UnixTransport::start(&start)
            .map_err(|reason| OffloadError::Start { device: name.into(), reason: reason.into() })?;
        Ok(Self::over(name, *threads, *time_limit, Box::new(transport)))
    }

    /// A device whose worker is reached by another transport, and listens.
    pub fn over(
        name: &str,
        threads: u32,
        time_limit: Option<Duration>,
        transport: Box<dyn Transport>,
    ) -> Arc<Self> {
        let life = Arc::new(Life {
            is_lost: AtomicBool::new(false),
            end: Mutex::new(End::default()),
            changed: Condvar::new(),
            channels: Mutex::new(Vec::new()),
            pipelines: Mutex::new(Vec::new()),
            origin: Origin::here(),
        });
        let watched = life.clone();
        transport.watch(Box::new(move |status| {
            watched.end.lock().is_over = true;
            watched.lose(Loss::Ended { status });
        }));
        let (asking, pipelines) = (Mutex::new(()), AtomicU64::new(0));
        let heap = Heap::new(transport.memory_bytes());
        Arc::new(Self { name: name.into(), threads, time_limit, life, asking, pipelines, heap, transport })
    }

    /// The device's name, such as `offload:0`.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// How many threads its functions may use.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// How long a run may take.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// The size of its memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.transport.memory_bytes()
    }

    /// The worker's number as a process, where it is one of this machine.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.transport.process()
    }

    /// Why the device is lost, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        if !self.is_here() {
            return Some(Loss::Forked);
        }
        self.life.end.lock().loss.clone()
    }

    /// Whether the device is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.life.is_lost.load(Ordering::SeqCst) || !self.is_here()
    }

    /// Whether this process is the one that the worker works for, and not a fork of it.
    pub(super) fn is_here(&self) -> bool {
        self.life.origin.is_here()
    }

    /// Ends the worker, and waits until it has ended. What it does is not waited for, and fails. In a fork this does
    /// nothing.
    pub fn stop(&self) {
        if !self.is_here() {
            return;
        }
        self.lose(Loss::Stopped);
        // A process that the kernel does not let go of is left to the kernel.
        self.wait(Instant::now() + CONTROL_LIMIT, |end| end.is_over);
    }

    /// Looks a function up by name: in the worker's registry, then in the libraries it has loaded, the first one first.
    ///
    /// # Errors
    /// [`OffloadError::UnknownFunction`], [`OffloadError::TooLong`], [`OffloadError::Lost`].
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, OffloadError> {
        let find = Command::Find { name: name.to_owned() };
        let reply = self.ask("a lookup", &find, Some(CONTROL_LIMIT))?;
        match reply {
            Reply::Found { function } => Ok(Function::new(self.clone(), name.into(), function)),
            Reply::NotFound => {
                Err(OffloadError::UnknownFunction { device: self.name.clone(), function: name.into() })
            }
            other => Err(self.unexpected(&other, "a lookup")),
        }
    }

    /// Has the worker load a shared library, whose functions can be looked up from then on. A path without a slash is
    /// searched for as the worker's loader searches.
    ///
    /// The library is trusted with the worker, not with this process: what it breaks there is a lost device here. Loading
    /// it runs its initialisers, which may take as long as a run may.
    ///
    /// # Errors
    /// [`OffloadError::Library`] with what the loader said, [`OffloadError::TooLong`], [`OffloadError::Lost`].
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

    /// A new pipeline: what is put in it is done in order, beside what other pipelines do.
    #[must_use]
    pub fn pipeline(self: &Arc<Self>) -> Pipeline {
        let number = self.pipelines.fetch_add(1, Ordering::Relaxed);
        Pipeline::new(self.clone(), number)
    }

    /// One command and its reply on the control channel.
    fn ask(
        &self,
        what: &'static str,
        command: &Command,
        limit: Option<Duration>,
    ) -> Result<Reply, OffloadError> {
        let message = self.message(what, command)?;
        // Before the lock too: a fork may find it taken for good.
        self.expect_there()?;
        let _one = self.asking.lock();
        self.expect_there()?;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let control = self.transport.control();
        let answer = control.send(&message, deadline).and_then(|()| control.receive(deadline));
        let answer = answer.map_err(|error| self.broken(error, what, limit.unwrap_or(Duration::MAX)))?;
        Reply::decode(&answer).map_err(|what| self.protocol(what))
    }

    /// A command as a message, if it is not too long for one.
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

    /// A channel of the caller's own, closed when the device is lost.
    pub(super) fn open(&self) -> Result<Arc<dyn Channel>, OffloadError> {
        self.expect_there()?;
        let channel = self.transport.open().map_err(|error| match error {
            ChannelError::Failed(cause) => self.resource("a channel", &cause),
            error => self.broken(error, "a new channel", CONTROL_LIMIT),
        })?;
        keep(&self.life.channels, Arc::downgrade(&channel));
        // A loss meanwhile may have passed it by.
        if self.is_lost() {
            channel.close();
        }
        Ok(channel)
    }

    /// Has `who` told when the device is lost.
    pub(super) fn tell_of_loss(&self, who: Weak<dyn HearsOfLoss>) {
        keep(&self.life.pipelines, who);
    }

    pub(super) fn heap(&self) -> &Heap {
        &self.heap
    }

    pub(super) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Takes pages of the worker's memory back. What a fork gives back is still its parent's.
    pub(super) fn give_back(&self, pages: Span) {
        if self.is_here() {
            self.transport.give_back(pages);
            self.heap.give_back(pages);
        }
    }

    /// Carries a transfer out, on this thread. One that ends after the device was lost counts as lost with it.
    pub(super) fn transfer(&self, transfer: &Transfer) -> Result<u64, OffloadError> {
        self.expect_there()?;
        let (bytes, moved) = match transfer {
            Transfer::In { offset, from } => {
                // SAFETY: the transfer holds the loan.
                (from.len(), unsafe { self.transport.copy_in(*offset, from.span()) })
            }
            Transfer::Out { offset, to } => {
                // SAFETY: as above.
                (to.len(), unsafe { self.transport.copy_out(*offset, to.span()) })
            }
            Transfer::Fill { place, byte, .. } => (place.len(), self.transport.fill(*place, *byte)),
        };
        if let Err(cause) = moved {
            return Err(self.broken(ChannelError::Failed(cause), "a transfer", CONTROL_LIMIT));
        }
        self.expect_there().map(|()| bytes)
    }

    /// Whether somebody may still be served.
    pub(super) fn expect_there(&self) -> Result<(), OffloadError> {
        if self.is_lost() { Err(self.lost()) } else { Ok(()) }
    }

    /// The error of a device that is lost.
    pub(super) fn lost(&self) -> OffloadError {
        let loss = self.loss().unwrap_or(Loss::Stopped);
        OffloadError::Lost { device: self.name.clone(), loss }
    }

    pub(super) fn resource(&self, what: &'static str, cause: &std::io::Error) -> OffloadError {
        OffloadError::Resource { device: self.name.clone(), what, cause: cause.to_string().into() }
    }

    fn lose(&self, loss: Loss) {
        self.life.lose(loss);
        self.transport.kill();
    }

    /// A channel failed while `command` was to be done: the device is lost. Yields why.
    pub(super) fn broken(&self, error: ChannelError, command: &str, limit: Duration) -> OffloadError {
        let cause = match error {
            ChannelError::TimedOut => {
                self.lose(Loss::Hung { command: command.into(), limit });
                return self.lost();
            }
            ChannelError::Failed(cause) => cause.to_string(),
            ChannelError::Closed => {
                // The end of a process closes its channels a little before it is told.
                self.wait(Instant::now() + END_DELAY, |end| end.loss.is_some());
                "the worker closed it".to_owned()
            }
        };
        self.lose(Loss::Connection { cause: cause.into() });
        self.lost()
    }

    /// The worker sent what it must not: the device is lost. Yields why.
    pub(super) fn protocol(&self, what: impl Into<Arc<str>>) -> OffloadError {
        self.lose(Loss::Protocol { what: what.into() });
        self.lost()
    }

    fn unexpected(&self, reply: &Reply, to: &str) -> OffloadError {
        self.protocol(format!("{reply:?} in reply to {to}"))
    }

    fn wait(&self, deadline: Instant, is_so: impl Fn(&End) -> bool) {
        let mut end = self.life.end.lock();
        while !is_so(&end) {
            let (guard, timed_out) = self.life.changed.wait_until(end, deadline);
            end = guard;
            if timed_out {
                return;
            }
        }
    }
}

/// Adds one to those there are, without those that are gone.
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
