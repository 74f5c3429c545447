//! Pipelines: what is put in one is done in order; several go on side by side.
//!
//! ```text
//!   run ─────────┐ idle, and nothing to wait for: sent at once by whoever asks
//!                ▼
//!   copy_in ──▶ waiting ──▶ thread: waits for `after`, copies ──▶ signal
//!   copy_out       └─run──▶ thread: sends ──▶ running ──▶ thread: receives ──▶ signal
//! ```
//! 1. In each pipeline everything ends in the order in which it was put there.
//! 2. Runs may follow each other to the worker before the first has ended; a transfer waits until they have.
//! 3. What was put in ends, well or not, also when the pipeline is dropped or the device is lost.
//! 4. The thread sleeps while there is nothing to do. It is started by the first thing it has to do.

use super::block::OffloadBlock;
use super::device::OffloadDevice;
use super::error::OffloadError;
use super::function::{Argument, Function};
use super::message::{Outcome, Reply};
use super::signal::{Signal, Signaller};
use super::transport::Channel;
use super::unix::CONTROL_LIMIT;
use dml_core::sync::{Arc, Condvar, Mutex, MutexGuard};
use dml_core::{Block, BlockRef, HostSpan, Span};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs sent to a worker and not answered, at most.
const MOST_RUNNING: usize = 32;
/// Their bytes, at most, so that a worker that is busy with the first one never keeps anybody from sending.
const MOST_RUNNING_BYTES: usize = 64 << 10;

/// An ordered sequence of runs and transfers on one device.
///
/// # Examples
/// ```no_run
/// # use dml_arenas::offload::{Argument, OffloadDevice, OffloadError, WorkerOptions};
/// # use dml_core::{BlockRef, Span};
/// # fn example(host: BlockRef, there: BlockRef) -> Result<(), OffloadError> {
/// let device = OffloadDevice::start("offload:0", &WorkerOptions::new("dml-offload-worker"))?;
/// device.load("libkernels.so")?;
/// let scale = device.function("scale")?;
/// let (transfers, runs) = (device.pipeline(), device.pipeline());
/// let whole = Span::new(0, 4096);
/// let copied = transfers.copy_in((&there, 0), (&host, whole), &[])?;
/// let ran = runs.run(&scale, 0..1024, &[Argument::Write(&there, whole)], &[copied])?;
/// transfers.copy_out((&there, 0), (&host, whole), &[ran])?.wait()?;
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
    next_ticket: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// What has not been begun.
    waiting: VecDeque<Action>,
    /// The thread has taken something out of `waiting` and not finished with it.
    is_busy: bool,
    /// Runs sent to the worker, in order.
    running: VecDeque<Running>,
    /// To the worker; there once something was to be run.
    channel: Option<Arc<dyn Channel>>,
    has_thread: bool,
    /// The handle is gone: the thread goes too when everything is done.
    is_closed: bool,
}

struct Action {
    after: Vec<Signal>,
    work: Work,
    signaller: Signaller,
    /// What the work uses.
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
    _keep: Keep,
    message_bytes: usize,
    /// When it was sent, or the one before it ended.
    since: Instant,
}

/// A transfer by places in the two memories.
#[derive(Clone)]
pub(super) enum Transfer {
    In { offset: u64, from: HostSpan },
    Out { offset: u64, to: HostSpan },
    Fill { place: Span, byte: u8 },
}

impl Pipeline {
    pub(super) fn new(device: Arc<OffloadDevice>, number: u64) -> Self {
        let name = format!("{}-{number}", device.name());
        let (queue, changed) = (Mutex::new(Queue::default()), Condvar::new());
        let next_ticket = AtomicU64::new(0);
        Self { shared: Arc::new(Shared { device, name, queue, changed, next_ticket }) }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<OffloadDevice> {
        &self.shared.device
    }

    /// Runs a function over the items, after everything put in before and after all of `after` has ended well.
    ///
    /// Parts of blocks are numbered as the function's buffers, scalars as its scalars, each in their order.
    ///
    /// # Errors
    /// [`OffloadError::Argument`] and [`OffloadError::TooLong`] of a call that cannot be, [`OffloadError::Lost`],
    /// [`OffloadError::Resource`]. What goes wrong later is the signal's: [`OffloadError::Function`],
    /// [`OffloadError::Dependency`], [`OffloadError::Lost`].
    pub fn run(
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
                function: format!("{function:?}").into(),
            });
        }
        let (message, blocks) = function.message(ticket, &items, arguments)?;
        let run = Run { ticket, function: function.name().clone(), message };
        self.shared.put(Work::Run(run), after, Box::new(blocks))
    }

    /// Copies bytes of a host block into one of the device, from the byte `to.1` of it on.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn copy_in(
        &self,
        to: (&BlockRef, u64),
        from: (&BlockRef, Span),
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let (place, from_host, keep) = self.ends(to, from)?;
        self.shared.put(Work::Transfer(Transfer::In { offset: place.start(), from: from_host }), after, keep)
    }

    /// Copies bytes of a block of the device, from the byte `from.1` of it on, into one of the host.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn copy_out(
        &self,
        from: (&BlockRef, u64),
        to: (&BlockRef, Span),
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let (place, to_host, keep) = self.ends(from, to)?;
        self.shared.put(Work::Transfer(Transfer::Out { offset: place.start(), to: to_host }), after, keep)
    }

    /// Sets bytes of a block of the device.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn fill(
        &self,
        (block, span): (&BlockRef, Span),
        byte: u8,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let place = self.place(block, span)?;
        self.shared.put(Work::Transfer(Transfer::Fill { place, byte }), after, Box::new(block.clone()))
    }

    /// A transfer whose bytes the caller keeps alive until the signal has ended, as the engine does.
    pub(super) fn transfer(&self, transfer: Transfer, keep: BlockRef) -> Result<Signal, OffloadError> {
        self.shared.put(Work::Transfer(transfer), &[], Box::new(keep))
    }

    fn ends(
        &self,
        (there, offset): (&BlockRef, u64),
        (here, span): (&BlockRef, Span),
    ) -> Result<(Span, HostSpan, Keep), OffloadError> {
        let place = self.place(there, Span::new(offset, offset.saturating_add(span.len())))?;
        let host = here.host().ok_or_else(|| self.misfit(1, "is no host memory"))?;
        if span.end() > host.len() {
            return Err(self.misfit(1, &format!("bytes {span} of a block of {} bytes", host.len())));
        }
        Ok((place, host.slice(span), Box::new((there.clone(), here.clone()))))
    }

    fn place(&self, block: &BlockRef, span: Span) -> Result<Span, OffloadError> {
        let own = block.downcast_ref::<OffloadBlock>().filter(|own| own.is_of(self.device()));
        let own = own.ok_or_else(|| self.misfit(0, "the block belongs to another arena"))?;
        own.place(span)
            .ok_or_else(|| self.misfit(0, &format!("bytes {span} of a block of {} bytes", own.len())))
    }

    fn misfit(&self, index: usize, reason: &str) -> OffloadError {
        let (device, function) = (self.device().name().clone(), "a transfer".into());
        OffloadError::Argument { device, function, index, reason: reason.into() }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
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
        let (signal, signaller) = Signal::new();
        let mut queue = self.queue.lock();
        self.start_thread(&mut queue)?;
        let ended_well = |signal: &Signal| signal.is_ended() && signal.wait().is_ok();
        match work {
            Work::Run(run) if queue.takes(&run) && after.iter().all(ended_well) => {
                self.send(&mut queue, run, signaller, keep).map_err(|(error, _)| error)?;
            }
            work => queue.waiting.push_back(Action { after: after.to_vec(), work, signaller, keep }),
        }
        drop(queue);
        self.changed.notify_all();
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

    /// Sends a run to the worker, to be answered after those sent before.
    fn send(
        &self,
        queue: &mut MutexGuard<'_, Queue>,
        run: Run,
        signaller: Signaller,
        keep: Keep,
    ) -> Result<(), (OffloadError, Signaller)> {
        let Run { ticket, function, message } = run;
        let channel = match &queue.channel {
            Some(channel) => Ok(channel.clone()),
            None => self.device.open().map(|channel| queue.channel.insert(channel).clone()),
        };
        let sent = channel.and_then(|channel| {
            let deadline = Some(Instant::now() + CONTROL_LIMIT);
            let sent = channel.send(&message, deadline);
            sent.map_err(|error| self.device.broken(error, &function, CONTROL_LIMIT))
        });
        if let Err(error) = sent {
            return Err((error, signaller));
        }
        let (message_bytes, since) = (message.len(), Instant::now());
        queue.running.push_back(Running { ticket, function, signaller, _keep: keep, message_bytes, since });
        Ok(())
    }

    /// The thread's life.
    fn serve(&self) {
        loop {
            let mut queue = self.queue.lock();
            if !queue.running.is_empty() {
                drop(queue);
                self.answer();
            } else if let Some(action) = queue.waiting.pop_front() {
                queue.is_busy = true;
                drop(queue);
                // A panic is a bug of ours: its signal says so, and the pipeline goes on.
                let _ = catch_unwind(AssertUnwindSafe(|| self.act(action)));
                self.queue.lock().is_busy = false;
            } else if queue.is_closed {
                return;
            } else {
                drop(self.changed.wait(queue));
            }
        }
    }

    /// Waits until the run sent first has ended.
    fn answer(&self) {
        let (function, ticket, since, channel) = {
            let queue = self.queue.lock();
            let (Some(front), Some(channel)) = (queue.running.front(), &queue.channel) else { return };
            (front.function.clone(), front.ticket, front.since, channel.clone())
        };
        let limit = self.device.time_limit();
        let received = channel.receive(limit.and_then(|limit| since.checked_add(limit)));
        let ended = match received {
            Ok(message) => self.outcome(&message, ticket, &function),
            Err(error) => Err(self.device.broken(error, &function, limit.unwrap_or(Duration::MAX))),
        };
        let Some(front) = self.queue.lock().next_answered() else { return };
        front.signaller.end(ended);
    }

    fn outcome(&self, message: &[u8], ticket: u64, function: &Arc<str>) -> Result<u64, OffloadError> {
        // A reply that comes after the device was lost is from a worker nobody trusts any more.
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

    fn act(&self, action: Action) {
        let Action { after, work, signaller, keep } = action;
        let failed = after.iter().find_map(|signal| signal.wait().err());
        let ready = match failed {
            None => self.device.expect_there(),
            Some(cause) => {
                let device = self.device.name().clone();
                Err(OffloadError::Dependency { device, cause: Arc::new(cause) })
            }
        };
        let done = match (ready, work) {
            (Err(error), _) => Err(error),
            (Ok(()), Work::Run(run)) => {
                let sent = self.send(&mut self.queue.lock(), run, signaller, keep);
                if let Err((error, signaller)) = sent {
                    signaller.end(Err(error));
                }
                return;
            }
            (Ok(()), Work::Transfer(transfer)) => self.device.transfer(&transfer),
        };
        drop(keep);
        signaller.end(done);
    }
}

impl Queue {
    /// Whether a run may be sent now, after those before it.
    fn takes(&self, run: &Run) -> bool {
        let bytes: usize = self.running.iter().map(|running| running.message_bytes).sum();
        let is_room = self.running.len() < MOST_RUNNING
            && (bytes == 0 || bytes + run.message.len() <= MOST_RUNNING_BYTES);
        self.waiting.is_empty() && !self.is_busy && is_room
    }

    /// Takes the first run out; the next one's time begins.
    fn next_answered(&mut self) -> Option<Running> {
        let front = self.running.pop_front();
        if let Some(next) = self.running.front_mut() {
            next.since = Instant::now();
        }
        front
    }
}
