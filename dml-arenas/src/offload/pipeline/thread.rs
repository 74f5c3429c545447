//! The state shared by a pipeline's handle and its thread. The handle adds actions; the thread executes them.
//!
//! 1. The queue's lock is held while a run is sent, so that runs are sent in the order of the queue. It is
//!    not held while a thread waits for a signal or an answer.
//! 2. No thread declares a loss, or waits for one, while it holds the queue's lock: a loss notifies every
//!    pipeline, which takes that lock.
//! 3. The channel's lock is held while the channel is opened. The queue's lock may be taken under it, never
//!    the other way around.

use super::queue::{Action, Keep, Queue, Run, Running, Sent, Task, Unsent, Work};
use crate::offload::device::{HearsOfLoss, OffloadDevice};
use crate::offload::error::OffloadError;
use crate::offload::message::{Outcome, Reply};
use crate::offload::transfer::Transfer;
use crate::offload::transport::Channel;
use crate::offload::unix::CONTROL_LIMIT;
use crate::offload::{Signal, Signaller};
use dml_core::internal::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

/// The state shared by a pipeline's handle and its thread.
pub(super) struct Shared {
    device: Arc<OffloadDevice>,
    name: String,
    queue: Mutex<Queue>,
    /// Notified of every event that the thread may wait for: an action, a close, the end of a signal, or a
    /// loss.
    changed: Condvar,
    /// The channel to the worker, opened for the first run.
    channel: Mutex<Option<Arc<dyn Channel>>>,
    next_ticket: AtomicU64,
}

impl Shared {
    /// Makes a pipeline without a thread, and registers it for the notification of a loss.
    pub(super) fn new(device: Arc<OffloadDevice>, name: String) -> Arc<Self> {
        let (queue, changed) = (Mutex::new(Queue::default()), Condvar::new());
        let (channel, next_ticket) = (Mutex::new(None), AtomicU64::new(0));
        let shared = Arc::new(Self { device, name, queue, changed, channel, next_ticket });
        let this: Weak<Self> = Arc::downgrade(&shared);
        shared.device.tell_of_loss(this);
        shared
    }

    pub(super) fn device(&self) -> &Arc<OffloadDevice> {
        &self.device
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the ticket of the next run.
    pub(super) fn next_ticket(&self) -> u64 {
        self.next_ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of actions that wait or are being begun, and the number of unanswered runs.
    pub(super) fn lengths(&self) -> (usize, usize) {
        self.queue.lock().lengths()
    }

    /// Makes the thread end once all actions are done.
    pub(super) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Wakes the thread, which then checks its wait condition again.
    fn nudge(&self) {
        drop(self.queue.lock());
        self.changed.notify_all();
    }
}

/// The calls of the handle, which add actions.
impl Shared {
    /// Adds a run. Sends it at once if the pipeline has room for it and all its dependencies have succeeded.
    pub(super) fn put_run(
        self: &Arc<Self>,
        run: Run,
        after: &[Signal],
        keep: Keep,
    ) -> Result<Signal, OffloadError> {
        self.device.expect_there()?;
        let channel = self.channel()?;
        let (signal, signaller) = Signal::new();
        let may_begin = after.iter().all(has_succeeded);
        let mut queue = self.queue_with_thread()?;
        let sent = if may_begin && queue.takes(&run) {
            queue.send(&*channel, run, signaller, keep)
        } else {
            queue.enqueue(Action { after: after.to_vec(), work: Work::Run(run), signaller, keep });
            Ok(())
        };
        drop(queue);
        self.changed.notify_all();
        // A loss is declared after the unlock (2).
        sent.map_err(|unsent| self.device.broken(unsent.error, &unsent.function, CONTROL_LIMIT))?;
        Ok(signal)
    }

    /// Adds a transfer for the thread.
    pub(super) fn put_transfer(
        self: &Arc<Self>,
        transfer: Transfer,
        after: &[Signal],
        keep: Keep,
    ) -> Result<Signal, OffloadError> {
        self.device.expect_there()?;
        let (signal, signaller) = Signal::new();
        let mut queue = self.queue_with_thread()?;
        queue.enqueue(Action { after: after.to_vec(), work: Work::Transfer(transfer), signaller, keep });
        drop(queue);
        self.changed.notify_all();
        Ok(signal)
    }

    /// Locks the queue, and starts the thread if none was started.
    fn queue_with_thread(self: &Arc<Self>) -> Result<MutexGuard<'_, Queue>, OffloadError> {
        let mut queue = self.queue.lock();
        if !queue.has_thread {
            let shared = self.clone();
            std::thread::Builder::new()
                .name(self.name.clone())
                .spawn(move || shared.serve())
                .map_err(|error| self.device.resource("a thread", &error))?;
            queue.has_thread = true;
        }
        Ok(queue)
    }

    /// Returns the channel to the worker; the first run opens it.
    fn channel(&self) -> Result<Arc<dyn Channel>, OffloadError> {
        let mut channel = self.channel.lock();
        match &*channel {
            Some(channel) => Ok(channel.clone()),
            None => Ok(channel.insert(self.device.open()?).clone()),
        }
    }
}

/// Returns whether the work of a signal has ended successfully.
fn has_succeeded(signal: &Signal) -> bool {
    signal.is_ended() && signal.wait().is_ok()
}

/// The code of the thread, which executes the actions.
impl Shared {
    /// Runs the pipeline's thread, until the pipeline is closed and all its actions are done.
    fn serve(self: &Arc<Self>) {
        loop {
            match self.next_task() {
                Task::Answer => self.answer(),
                Task::Begin(action) => {
                    // A panic here is a bug of this crate. The action's signal then reports a failure, and
                    // the pipeline goes on.
                    let _ = catch_unwind(AssertUnwindSafe(|| self.begin(action)));
                    self.queue.lock().begun();
                }
                Task::End => return,
            }
        }
    }

    /// Takes the next task from the queue. Sleeps while there is none.
    fn next_task(&self) -> Task {
        let mut queue = self.queue.lock();
        loop {
            match queue.next_task() {
                Some(task) => return task,
                None => queue = self.changed.wait(queue),
            }
        }
    }

    /// Waits for an action's dependencies, then sends its run or makes its transfer.
    fn begin(self: &Arc<Self>, action: Action) {
        let Action { after, work, signaller, keep } = action;
        let ready = after.iter().try_for_each(|signal| self.await_success(signal));
        let ended = match (ready.and_then(|()| self.device.expect_there()), work) {
            (Ok(()), Work::Run(run)) => return self.send(run, signaller, keep),
            // The transfer, and with it the loan, is dropped before the signal ends.
            (Ok(()), Work::Transfer(transfer)) => self.device.transfer(&transfer),
            (Err(error), _) => Err(error),
        };
        drop(keep);
        signaller.end(ended);
    }

    /// Waits until a signal ends or the device is lost, whichever comes first.
    ///
    /// # Errors
    /// [`OffloadError::Dependency`] if the signal ended with an error, [`OffloadError::DeviceLost`].
    fn await_success(self: &Arc<Self>, signal: &Signal) -> Result<(), OffloadError> {
        let waker = Waker::from(Arc::new(Nudge(Arc::downgrade(self))));
        let mut awaited = signal.clone().awaited();
        loop {
            if let Poll::Ready(ended) = awaited.poll_end(&waker) {
                return ended.map(drop).map_err(|cause| self.not_begun(cause));
            }
            let queue = self.queue.lock();
            // No wake-up is lost: every event calls `nudge`, which takes the lock that this thread holds
            // until it waits.
            if !signal.is_ended() {
                if self.device.is_lost() {
                    return Err(self.device.lost());
                }
                drop(self.changed.wait(queue));
            }
        }
    }

    /// Sends a run to the worker. If that fails, ends the run's signal with the error.
    fn send(&self, run: Run, signaller: Signaller, keep: Keep) {
        let channel = match self.channel() {
            Ok(channel) => channel,
            Err(error) => return signaller.end(Err(error)),
        };
        let sent = self.queue.lock().send(&*channel, run, signaller, keep);
        if let Err(Unsent { error, function, signaller }) = sent {
            signaller.end(Err(self.device.broken(error, &function, CONTROL_LIMIT)));
        }
    }

    /// Waits for the answer to the oldest run sent, and ends its signal.
    fn answer(&self) {
        let Some(sent) = self.queue.lock().oldest_sent() else { return };
        let ended = self.receive(&sent).and_then(|message| self.outcome(&message, &sent));
        let Some(answered) = self.queue.lock().next_answered() else { return };
        let Running { signaller, keep, .. } = answered;
        // The memory is released before the signal ends, because a waiter may need it at once.
        drop(keep);
        signaller.end(ended);
    }

    /// Waits for a message of the worker, within the time limit of the run that it should answer.
    fn receive(&self, sent: &Sent) -> Result<Vec<u8>, OffloadError> {
        let limit = self.device.time_limit();
        let deadline = limit.and_then(|limit| sent.since.checked_add(limit));
        let received = self.channel()?.receive(deadline);
        received.map_err(|error| self.device.broken(error, &sent.function, limit.unwrap_or(Duration::MAX)))
    }

    /// Decodes how a run ended from the worker's message. A message that does not answer the run loses the
    /// device.
    fn outcome(&self, message: &[u8], sent: &Sent) -> Result<u64, OffloadError> {
        // A reply that arrives after the device was lost is not trusted.
        self.device.expect_there()?;
        let Sent { ticket, function, .. } = sent;
        match Reply::decode(message) {
            Ok(Reply::Ended { ticket: answered, outcome }) if answered == *ticket => match outcome {
                Outcome::Done => Ok(0),
                Outcome::Failed { code, message } => Err(self.failed(function, code, message)),
            },
            Ok(other) => {
                Err(self.device.protocol(format!("{other:?} in reply to run {ticket} of {function}")))
            }
            Err(what) => Err(self.device.protocol(what)),
        }
    }

    /// Returns the error of an action with a failed dependency.
    fn not_begun(&self, cause: OffloadError) -> OffloadError {
        OffloadError::Dependency { device: self.device.name().clone(), cause: Arc::new(cause) }
    }

    /// Returns the error of a function that reported a failure.
    fn failed(&self, function: &Arc<str>, code: i32, message: String) -> OffloadError {
        let (device, function) = (self.device.name().clone(), function.clone());
        OffloadError::Function { device, function, code, message: message.into() }
    }
}

/// Waker of a pipeline's thread. It has no effect once the pipeline is dropped.
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
