//! Pipelines: each does runs and transfers in order; several pipelines proceed side by side.
//!
//! ```text
//!   run ─────────┐ idle, and nothing to wait for: sent at once by whoever asks
//!                ▼
//!   copy_in ──▶ waiting ──▶ thread: waits for `after`, copies ──▶ signal
//!   copy_out       └─run──▶ thread: sends ──▶ running ──▶ thread: receives ──▶ signal
//! ```
//! 1. In each pipeline the actions end in the order in which they were added.
//! 2. Several runs may be sent to the worker before the first has ended. A transfer waits until all earlier runs have
//!    ended.
//! 3. Every action ends, successfully or not, also when the pipeline is dropped or the device is lost.
//! 4. The thread sleeps while it has nothing to do. The first action starts the thread.
//! 5. A fork of the process lacks the thread, and may find its locks held for ever. In a fork no action is accepted,
//!    and dropping the pipeline touches nothing.

use super::block::OffloadBlock;
use super::device::{HearsOfLoss, OffloadDevice};
use super::error::OffloadError;
use super::function::{Argument, Function};
use super::message::{Outcome, Reply};
use super::signal::{Signal, Signaller};
use super::transfer::Transfer;
use super::transport::{Channel, ChannelError};
use super::unix::CONTROL_LIMIT;
use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{BlockRef, HostSource, HostTarget, Span};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// The largest number of runs sent to a worker and not yet answered.
const MOST_RUNNING: usize = 32;
/// The largest size of those runs in bytes, so that a worker busy with the first run never blocks a sender.
const MOST_RUNNING_BYTES: usize = 64 << 10;

/// An ordered sequence of runs and transfers on one device.
///
/// # Examples
/// ```no_run
/// # use dml_arenas::offload::{Argument, OffloadArena, OffloadDevice, WorkerOptions};
/// # use dml_core::{Arena, DeviceId, HostMemory, Span};
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let device = OffloadDevice::start("offload:0", &WorkerOptions::new("dml-offload-worker"))?;
/// device.load("libkernels.so")?;
/// let scale = device.function("scale")?;
/// let (transfers, runs) = (device.pipeline(), device.pipeline());
/// let there = OffloadArena::new(device, DeviceId(1));
/// let (mut host, block, whole) = (HostMemory::zeroed(4096)?, there.alloc(4096)?.into_block(), Span::new(0, 4096));
/// // SAFETY: block and memory are this function's own, and each step waits for the one before.
/// let back = unsafe {
///     let copied = transfers.copy_in((&block, 0), host.source(whole), &[])?;
///     let ran = runs.run(&scale, 0..1024, &[Argument::Write(&block, whole)], &[copied])?;
///     transfers.copy_out((&block, 0), host.target(whole), &[ran])?
/// };
/// back.wait()?;
/// # Ok(())
/// # }
/// ```
pub struct Pipeline {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<OffloadDevice>,
    name: String,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// The channel to the worker, opened for the first run.
    channel: Mutex<Option<Arc<dyn Channel>>>,
    next_ticket: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// Actions that have not begun.
    waiting: VecDeque<Action>,
    /// Whether the thread is working on an action taken from `waiting`.
    is_busy: bool,
    /// Runs sent to the worker, in order.
    running: VecDeque<Running>,
    has_thread: bool,
    /// Whether the handle was dropped. The thread then ends once all actions are done.
    is_closed: bool,
}

struct Action {
    after: Vec<Signal>,
    work: Work,
    signaller: Signaller,
    /// Keeps alive what the work uses.
    keep: Keep,
}

type Keep = Box<dyn Any + Send>;

enum Work {
    Run(Run),
    Transfer(Transfer),
}

struct Run {
    ticket: u64,
    function: Arc<str>,
    message: Vec<u8>,
}

struct Running {
    ticket: u64,
    function: Arc<str>,
    signaller: Signaller,
    keep: Keep,
    message_bytes: usize,
    /// When the run was sent, or when the run before it ended.
    since: Instant,
}

impl OffloadDevice {
    /// Makes a pipeline. Its actions are done in order, and concurrently with those of other pipelines.
    #[must_use]
    pub fn pipeline(self: &Arc<Self>) -> Pipeline {
        Pipeline::new(self.clone(), self.next_pipeline_number())
    }
}

impl Pipeline {
    fn new(device: Arc<OffloadDevice>, number: u64) -> Self {
        // A thread name must not contain a zero.
        let name = format!("{}-{number}", device.name().replace('\0', " "));
        let (queue, changed) = (Mutex::new(Queue::default()), Condvar::new());
        let (channel, next_ticket) = (Mutex::new(None), AtomicU64::new(0));
        let shared = Arc::new(Shared { device, name, queue, changed, channel, next_ticket });
        let this: Weak<Shared> = Arc::downgrade(&shared);
        shared.device.tell_of_loss(this);
        Self { shared }
    }

    /// The device on which the pipeline works.
    #[must_use]
    pub fn device(&self) -> &Arc<OffloadDevice> {
        &self.shared.device
    }

    /// Runs a function over the items, after all earlier actions, and after every signal in `after` has ended
    /// successfully.
    ///
    /// The parts of blocks are numbered in order as the function's buffers, and the scalars in order as its scalars.
    ///
    /// # Safety
    /// 1. Until the signal has ended, only the function writes the parts, and nothing else reads the parts that it may
    ///    write. Runs and transfers that this one waits for, or that wait for it, are excepted. A grant of the blocks
    ///    guarantees this.
    ///
    /// # Errors
    /// [`OffloadError::Argument`], [`OffloadError::Items`] and [`OffloadError::TooLong`] for an impossible call,
    /// [`OffloadError::UnknownFunction`] for a function of another device, [`OffloadError::Lost`],
    /// [`OffloadError::Resource`]. The signal reports later errors: [`OffloadError::Function`],
    /// [`OffloadError::Dependency`], [`OffloadError::Lost`].
    pub unsafe fn run(
        &self,
        function: &Function,
        items: Range<u64>,
        arguments: &[Argument<'_>],
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        self.begin(function, items, arguments, after)
    }

    /// Does the same as [`run`](Self::run), for callers that uphold its safety conditions.
    pub(super) fn begin(
        &self,
        function: &Function,
        items: Range<u64>,
        arguments: &[Argument<'_>],
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let ticket = self.shared.next_ticket.fetch_add(1, Ordering::Relaxed);
        if !Arc::ptr_eq(function.device(), self.device()) {
            return Err(OffloadError::UnknownFunction {
                device: self.device().name().clone(),
                function: function.name().clone(),
            });
        }
        let (message, blocks) = function.message(ticket, &items, arguments)?;
        let run = Run { ticket, function: function.name().clone(), message };
        self.shared.put(Work::Run(run), after, Box::new(blocks))
    }

    /// Copies host memory into a block of the device, starting at byte `to.1` of the block.
    ///
    /// # Safety
    /// 1. Until the signal has ended, nothing else touches these bytes of the block. Runs and transfers that this one
    ///    waits for, or that wait for it, are excepted.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub unsafe fn copy_in(
        &self,
        to: (&BlockRef, u64),
        from: HostSource,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let place = self.place(to.0, Span::new(to.1, to.1.saturating_add(from.len())))?;
        let transfer = Transfer::In { offset: place.start(), from };
        self.shared.put(Work::Transfer(transfer), after, Box::new(to.0.clone()))
    }

    /// Copies from a block of the device into host memory, starting at byte `from.1` of the block.
    ///
    /// # Safety
    /// 1. Until the signal has ended, nothing writes these bytes of the block. Runs and transfers that this one waits
    ///    for, or that wait for it, are excepted.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub unsafe fn copy_out(
        &self,
        from: (&BlockRef, u64),
        to: HostTarget,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let place = self.place(from.0, Span::new(from.1, from.1.saturating_add(to.len())))?;
        let transfer = Transfer::Out { offset: place.start(), to };
        self.shared.put(Work::Transfer(transfer), after, Box::new(from.0.clone()))
    }

    /// Sets every byte of a span of a block to `byte`.
    ///
    /// # Safety
    /// 1. Until the signal has ended, nothing else touches these bytes. Runs and transfers that this one waits for, or
    ///    that wait for it, are excepted.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub unsafe fn fill(
        &self,
        (block, span): (&BlockRef, Span),
        byte: u8,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let place = self.place(block, span)?;
        let transfer = Transfer::Fill { place, byte, _request: None };
        self.shared.put(Work::Transfer(transfer), after, Box::new(block.clone()))
    }

    /// Adds a transfer for core, which upholds the safety conditions. `keep` is the block.
    pub(super) fn transfer(&self, transfer: Transfer, keep: BlockRef) -> Result<Signal, OffloadError> {
        self.shared.put(Work::Transfer(transfer), &[], Box::new(keep))
    }

    /// Returns a signal that ends after all actions added so far.
    pub(super) fn tail(&self) -> Result<Signal, OffloadError> {
        let nothing = Transfer::Fill { place: Span::default(), byte: 0, _request: None };
        self.shared.put(Work::Transfer(nothing), &[], Box::new(()))
    }

    fn place(&self, block: &BlockRef, span: Span) -> Result<Span, OffloadError> {
        OffloadBlock::find(block, self.device(), span).map_err(|reason| self.misfit(0, &reason))
    }

    fn misfit(&self, index: usize, reason: &str) -> OffloadError {
        let (device, function) = (self.device().name().clone(), "a transfer".into());
        OffloadError::Argument { device, function, index, reason: reason.into() }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if !self.device().is_here() {
            return;
        }
        self.shared.queue.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.queue.lock();
        let (waiting, running) = (queue.waiting.len() + usize::from(queue.is_busy), queue.running.len());
        write!(f, "Pipeline({}, {waiting} waiting, {running} running)", self.shared.name)
    }
}

impl Shared {
    fn put(self: &Arc<Self>, work: Work, after: &[Signal], keep: Keep) -> Result<Signal, OffloadError> {
        self.device.expect_there()?;
        let channel = match &work {
            Work::Run(_) => Some(self.channel()?),
            Work::Transfer(_) => None,
        };
        let (signal, signaller) = Signal::new();
        let ended_well = |signal: &Signal| signal.is_ended() && signal.wait().is_ok();
        let may_begin = after.iter().all(ended_well);
        let mut queue = self.queue.lock();
        self.start_thread(&mut queue)?;
        let sent = match (work, channel) {
            (Work::Run(run), Some(channel)) if may_begin && queue.takes(&run) => {
                queue.send(&*channel, run, signaller, keep)
            }
            (work, _) => {
                queue.waiting.push_back(Action { after: after.to_vec(), work, signaller, keep });
                Ok(())
            }
        };
        drop(queue);
        self.changed.notify_all();
        // `broken` is called after the unlock: losing the device notifies every pipeline, which takes the queue's lock.
        sent.map_err(|unsent| self.device.broken(unsent.error, &unsent.function, CONTROL_LIMIT))?;
        Ok(signal)
    }

    fn start_thread(self: &Arc<Self>, queue: &mut Queue) -> Result<(), OffloadError> {
        if !queue.has_thread {
            let shared = self.clone();
            std::thread::Builder::new()
                .name(self.name.clone())
                .spawn(move || shared.serve())
                .map_err(|error| self.device.resource("a thread", &error))?;
            queue.has_thread = true;
        }
        Ok(())
    }

    /// Returns the channel to the worker; the first run opens it.
    fn channel(&self) -> Result<Arc<dyn Channel>, OffloadError> {
        let mut channel = self.channel.lock();
        match &*channel {
            Some(channel) => Ok(channel.clone()),
            None => Ok(channel.insert(self.device.open()?).clone()),
        }
    }

    /// Runs the pipeline's thread, until the pipeline is closed and all its actions are done.
    fn serve(self: &Arc<Self>) {
        loop {
            let mut queue = self.queue.lock();
            if !queue.running.is_empty() {
                drop(queue);
                self.answer();
            } else if let Some(action) = queue.waiting.pop_front() {
                queue.is_busy = true;
                drop(queue);
                // A panic here is a bug of this crate. The action's signal reports a failure, and the pipeline goes on.
                let _ = catch_unwind(AssertUnwindSafe(|| self.act(action)));
                self.queue.lock().is_busy = false;
            } else if queue.is_closed {
                return;
            } else {
                drop(self.changed.wait(queue));
            }
        }
    }

    /// Waits for the answer to the oldest run sent, and ends its signal.
    fn answer(&self) {
        let (function, ticket, since) = {
            let queue = self.queue.lock();
            let Some(front) = queue.running.front() else { return };
            (front.function.clone(), front.ticket, front.since)
        };
        let limit = self.device.time_limit();
        let received = self.channel().map(|channel| {
            let deadline = limit.and_then(|limit| since.checked_add(limit));
            channel.receive(deadline)
        });
        let ended = match received {
            Ok(Ok(message)) => self.outcome(&message, ticket, &function),
            Ok(Err(error)) => Err(self.device.broken(error, &function, limit.unwrap_or(Duration::MAX))),
            Err(error) => Err(error),
        };
        let Some(front) = self.queue.lock().next_answered() else { return };
        let Running { signaller, keep, .. } = front;
        // The memory is released before the signal ends, because a waiter may need it at once.
        drop(keep);
        signaller.end(ended);
    }

    fn outcome(&self, message: &[u8], ticket: u64, function: &Arc<str>) -> Result<u64, OffloadError> {
        // A reply that arrives after the device was lost is not trusted.
        self.device.expect_there()?;
        match Reply::decode(message) {
            Ok(Reply::Ended { ticket: answered, outcome }) if answered == ticket => match outcome {
                Outcome::Done => Ok(0),
                Outcome::Failed { code, message } => {
                    let (device, function) = (self.device.name().clone(), function.clone());
                    Err(OffloadError::Function { device, function, code, message: message.into() })
                }
            },
            Ok(other) => {
                Err(self.device.protocol(format!("{other:?} in reply to run {ticket} of {function}")))
            }
            Err(what) => Err(self.device.protocol(what)),
        }
    }

    fn act(self: &Arc<Self>, action: Action) {
        let Action { after, work, signaller, keep } = action;
        let ready = after.iter().try_for_each(|signal| self.await_end(signal));
        let done = match (ready.and_then(|()| self.device.expect_there()), work) {
            (Err(error), _) => Err(error),
            (Ok(()), Work::Run(run)) => {
                let channel = match self.channel() {
                    Ok(channel) => channel,
                    Err(error) => return signaller.end(Err(error)),
                };
                let sent = self.queue.lock().send(&*channel, run, signaller, keep);
                if let Err(Unsent { error, function, signaller }) = sent {
                    signaller.end(Err(self.device.broken(error, &function, CONTROL_LIMIT)));
                }
                return;
            }
            // The transfer returns its loan before the signal ends.
            (Ok(()), Work::Transfer(transfer)) => self.device.transfer(&transfer),
        };
        drop(keep);
        signaller.end(done);
    }

    /// Waits until a signal ends or the device is lost, whichever comes first.
    fn await_end(self: &Arc<Self>, signal: &Signal) -> Result<(), OffloadError> {
        let waker = Waker::from(Arc::new(Nudge(Arc::downgrade(self))));
        let mut number = None;
        loop {
            if let Poll::Ready(ended) = signal.poll(&mut number, &waker) {
                let device = || self.device.name().clone();
                let failed = |cause| OffloadError::Dependency { device: device(), cause: Arc::new(cause) };
                return ended.map(drop).map_err(failed);
            }
            let queue = self.queue.lock();
            // Every event from here on calls `nudge`, which takes the lock that this thread holds until it waits.
            if !signal.is_ended() {
                self.device.expect_there()?;
                drop(self.changed.wait(queue));
            }
        }
    }

    /// Makes the thread check again what it waits for.
    fn nudge(&self) {
        drop(self.queue.lock());
        self.changed.notify_all();
    }
}

/// Wakes the thread of a pipeline, as long as the pipeline exists.
struct Nudge(Weak<Shared>);

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.nudge();
        }
    }
}

impl HearsOfLoss for Shared {
    fn lost(&self) {
        self.nudge();
    }
}

/// A run that could not be sent.
struct Unsent {
    error: ChannelError,
    function: Arc<str>,
    signaller: Signaller,
}

impl Queue {
    /// Returns whether a run may be sent now, after the runs before it.
    fn takes(&self, run: &Run) -> bool {
        let bytes: usize = self.running.iter().map(|running| running.message_bytes).sum();
        let is_room = self.running.len() < MOST_RUNNING
            && (bytes == 0 || bytes + run.message.len() <= MOST_RUNNING_BYTES);
        self.waiting.is_empty() && !self.is_busy && is_room
    }

    /// Sends a run to the worker, which answers runs in the order sent.
    fn send(
        &mut self,
        channel: &dyn Channel,
        run: Run,
        signaller: Signaller,
        keep: Keep,
    ) -> Result<(), Unsent> {
        let Run { ticket, function, message } = run;
        match channel.send(&message, Some(Instant::now() + CONTROL_LIMIT)) {
            Ok(()) => {
                let (message_bytes, since) = (message.len(), Instant::now());
                self.running.push_back(Running { ticket, function, signaller, keep, message_bytes, since });
                Ok(())
            }
            Err(error) => Err(Unsent { error, function, signaller }),
        }
    }

    /// Removes the oldest run sent, and starts the time of the next one.
    fn next_answered(&mut self) -> Option<Running> {
        let front = self.running.pop_front();
        if let Some(next) = self.running.front_mut() {
            next.since = Instant::now();
        }
        front
    }
}
