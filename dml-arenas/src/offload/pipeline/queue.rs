//! The actions of a pipeline, from the request to the worker's answer.
//!
//! ```text
//!   enqueue ──▶ waiting ──next_task──▶ the thread begins it ──▶ a transfer has ended
//!                                           │ send
//!   send ─────────────────────────────▶ running ──next_answered──▶ a run has ended
//! ```
//! 1. Actions begin in the order in which they were added. A caller sends a run itself only while no action
//!    waits or is being begun.
//! 2. The thread begins no action while a run is unanswered.

use crate::offload::transfer::Transfer;
use crate::offload::transport::{Channel, ChannelError};
use crate::offload::unix::CONTROL_LIMIT;
use crate::offload::{Signal, Signaller};
use dml_core::internal::sync::Arc;
use std::any::Any;
use std::collections::VecDeque;
use std::time::Instant;

/// Largest number of runs in flight: sent to the worker and not yet answered.
const MOST_RUNNING: usize = 32;
/// Largest total size of the messages of runs in flight, in bytes. Within it, a worker busy with the first
/// run never blocks a sender.
const MOST_RUNNING_BYTES: usize = 64 << 10;

/// The actions of a pipeline that have not ended, and the state of its thread.
#[derive(Default)]
pub(super) struct Queue {
    /// Actions that have not begun.
    waiting: VecDeque<Action>,
    /// Whether the thread is working on an action taken from `waiting`.
    is_busy: bool,
    /// Runs sent to the worker, in order.
    running: VecDeque<Running>,
    /// Whether the thread was started.
    pub(super) has_thread: bool,
    /// Whether the handle was dropped. The thread then ends once all actions are done.
    pub(super) is_closed: bool,
}

/// A run or a transfer that has not begun.
pub(super) struct Action {
    /// The signals that must end successfully before the work begins.
    pub(super) after: Vec<Signal>,
    pub(super) work: Work,
    pub(super) signaller: Signaller,
    pub(super) keep: Keep,
}

/// Objects that live until an action has ended, such as its blocks.
pub(super) type Keep = Box<dyn Any + Send>;

/// The work of an action.
pub(super) enum Work {
    Run(Run),
    Transfer(Transfer),
}

/// A run as it is sent to the worker.
pub(super) struct Run {
    /// The number by which the worker's answer names the run.
    pub(super) ticket: u64,
    pub(super) function: Arc<str>,
    pub(super) message: Vec<u8>,
}

/// A run that the worker has not answered.
pub(super) struct Running {
    pub(super) sent: Sent,
    pub(super) signaller: Signaller,
    pub(super) keep: Keep,
    message_bytes: usize,
}

/// The run that the next answer must match, and the start of its time limit.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) ticket: u64,
    pub(super) function: Arc<str>,
    /// When the run was sent, or when the run before it ended.
    pub(super) since: Instant,
}

/// A run that could not be sent.
pub(super) struct Unsent {
    pub(super) error: ChannelError,
    pub(super) function: Arc<str>,
    pub(super) signaller: Signaller,
}

/// What the thread of a pipeline does next.
#[must_use]
pub(super) enum Task {
    /// Wait for the answer to the oldest run sent.
    Answer,
    /// Begin an action, which has left the queue. The queue is busy until [`Queue::begun`] is called.
    Begin(Action),
    /// End: the pipeline is closed, and all its actions are done.
    End,
}

impl Queue {
    /// Takes the thread's next task, or returns `None` while there is nothing to do.
    pub(super) fn next_task(&mut self) -> Option<Task> {
        if !self.running.is_empty() {
            return Some(Task::Answer);
        }
        if let Some(action) = self.waiting.pop_front() {
            self.is_busy = true;
            return Some(Task::Begin(action));
        }
        self.is_closed.then_some(Task::End)
    }

    /// Marks the thread's last action as begun: its run was sent, or the action has ended.
    pub(super) fn begun(&mut self) {
        self.is_busy = false;
    }

    /// Returns whether a run may be sent now, behind the runs in flight.
    pub(super) fn takes(&self, run: &Run) -> bool {
        let bytes: usize = self.running.iter().map(|running| running.message_bytes).sum();
        let is_room = self.running.len() < MOST_RUNNING
            && (bytes == 0 || bytes + run.message.len() <= MOST_RUNNING_BYTES);
        self.waiting.is_empty() && !self.is_busy && is_room
    }

    /// Adds an action for the thread.
    pub(super) fn enqueue(&mut self, action: Action) {
        self.waiting.push_back(action);
    }

    /// Sends a run to the worker, which answers runs in the order sent.
    pub(super) fn send(
        &mut self,
        channel: &dyn Channel,
        run: Run,
        signaller: Signaller,
        keep: Keep,
    ) -> Result<(), Unsent> {
        let Run { ticket, function, message } = run;
        match channel.send(&message, Some(Instant::now() + CONTROL_LIMIT)) {
            Ok(()) => {
                let sent = Sent { ticket, function, since: Instant::now() };
                self.running.push_back(Running { sent, signaller, keep, message_bytes: message.len() });
                Ok(())
            }
            Err(error) => Err(Unsent { error, function, signaller }),
        }
    }

    /// Returns the oldest run sent, which the worker answers next.
    pub(super) fn oldest_sent(&self) -> Option<Sent> {
        self.running.front().map(|running| running.sent.clone())
    }

    /// Removes the oldest run sent, and starts the time limit of the next one.
    pub(super) fn next_answered(&mut self) -> Option<Running> {
        let front = self.running.pop_front();
        if let Some(next) = self.running.front_mut() {
            next.sent.since = Instant::now();
        }
        front
    }

    /// Returns the number of actions that wait or are being begun, and the number of unanswered runs.
    pub(super) fn lengths(&self) -> (usize, usize) {
        (self.waiting.len() + usize::from(self.is_busy), self.running.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A channel that accepts every message and never answers.
    #[derive(Debug)]
    struct Sink;

    impl Channel for Sink {
        fn send(&self, _message: &[u8], _deadline: Option<Instant>) -> Result<(), ChannelError> {
            Ok(())
        }

        fn receive(&self, _deadline: Option<Instant>) -> Result<Vec<u8>, ChannelError> {
            Err(ChannelError::Closed)
        }

        fn close(&self) {}
    }

    fn run(ticket: u64, bytes: usize) -> Run {
        Run { ticket, function: "any".into(), message: vec![7; bytes] }
    }

    fn send(queue: &mut Queue, ticket: u64, bytes: usize) {
        let sent = queue.send(&Sink, run(ticket, bytes), Signal::new().1, Box::new(()));
        assert!(sent.is_ok());
    }

    /// While a worker is busy with the first run, the later ones must fit in the socket.
    #[test]
    fn runs_are_sent_ahead_up_to_so_many_and_so_many_bytes() {
        let mut queue = Queue::default();
        assert!(queue.takes(&run(0, 10 * MOST_RUNNING_BYTES)), "the first one goes, however long");
        send(&mut queue, 0, MOST_RUNNING_BYTES - 100);
        assert!(queue.takes(&run(1, 100)) && !queue.takes(&run(1, 101)));
        let mut short = Queue::default();
        for ticket in 0..MOST_RUNNING as u64 {
            assert!(short.takes(&run(ticket, 1)));
            send(&mut short, ticket, 1);
        }
        assert!(!short.takes(&run(99, 1)));
        assert_eq!(short.next_answered().map(|run| run.sent.ticket), Some(0));
        assert!(short.takes(&run(99, 1)));
    }

    /// While the thread begins an action, no run overtakes it.
    #[test]
    fn what_waits_is_begun_and_what_is_sent_is_counted() {
        let mut queue = Queue::default();
        assert_eq!(queue.lengths(), (0, 0));
        for _ in 0..2 {
            let (work, signaller) = (Work::Run(run(0, 1)), Signal::new().1);
            queue.enqueue(Action { after: Vec::new(), work, signaller, keep: Box::new(()) });
        }
        assert_eq!((queue.lengths(), queue.takes(&run(9, 1))), ((2, 0), false));
        assert!(matches!(queue.next_task(), Some(Task::Begin(_))));
        assert_eq!(queue.lengths(), (2, 0), "one waits, and one is begun");
        queue.begun();
        assert_eq!(queue.lengths(), (1, 0));
        assert!(matches!(queue.next_task(), Some(Task::Begin(_))));
        assert!(!queue.takes(&run(9, 1)), "it is being begun");
        queue.begun();
        assert!(queue.takes(&run(9, 1)));
        for ticket in 0..3 {
            send(&mut queue, ticket, 1);
        }
        assert_eq!(queue.lengths(), (0, 3));
        assert!(matches!(queue.next_task(), Some(Task::Answer)));
    }

    /// A channel that records the deadlines of its sends.
    #[derive(Debug, Default)]
    struct Deadlines(std::sync::Mutex<Vec<Option<Instant>>>);

    impl Channel for Deadlines {
        fn send(&self, _message: &[u8], deadline: Option<Instant>) -> Result<(), ChannelError> {
            self.0.lock().unwrap().push(deadline);
            Ok(())
        }

        fn receive(&self, _deadline: Option<Instant>) -> Result<Vec<u8>, ChannelError> {
            Err(ChannelError::Closed)
        }

        fn close(&self) {}
    }

    #[test]
    fn a_worker_has_time_to_read_a_run() {
        let (channel, before) = (Deadlines::default(), Instant::now());
        let sent = Queue::default().send(&channel, run(0, 1), Signal::new().1, Box::new(()));
        assert!(sent.is_ok());
        let deadlines = channel.0.into_inner().unwrap();
        assert!(
            matches!(deadlines[..], [Some(deadline)] if deadline >= before + CONTROL_LIMIT),
            "{deadlines:?}"
        );
    }

    /// The time limit of a run sent in advance starts when the worker begins the run.
    #[test]
    fn the_time_of_a_run_begins_when_the_one_before_has_ended() {
        let mut queue = Queue::default();
        send(&mut queue, 0, 1);
        send(&mut queue, 1, 1);
        let waited = Duration::from_millis(3);
        std::thread::sleep(waited);
        let first = queue.next_answered().unwrap();
        let second = queue.oldest_sent().unwrap();
        assert_eq!((first.sent.ticket, second.ticket), (0, 1));
        assert!(second.since >= first.sent.since + waited);
    }
}
