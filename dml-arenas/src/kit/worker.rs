//! A worker thread for transfers, for frameworks whose calls block.
//!
//! ```text
//!   run(job) ──▶ queue ──▶ thread: job ──▶ its parts are dropped ──▶ its fence ends
//! ```
//! 1. Jobs run one after the other, in the order of submission.
//! 2. The values that a job holds, such as a transfer, are dropped before its fence ends (A-3). A panic fails
//!    that job alone.
//! 3. Every submitted job is carried out, also after the worker itself is dropped.
//! 4. In a fork of the process that started it, a worker takes no jobs and does not touch its queue: the
//!    thread is missing, and may hold the lock.

use super::signal::{Signal, Signaller};
use crate::fork::Origin;
use dml_core::internal::guard;
use dml_core::internal::sync::{Arc, Condvar, Mutex, thread};
use dml_core::{Fence, TransferError};
use std::collections::VecDeque;
use std::fmt;
use std::io;

type Job = Box<dyn FnOnce() -> Result<u64, TransferError> + Send>;

/// One thread that does blocking work in order, with a [`Fence`] for the end of each job.
///
/// # Examples
/// ```
/// use dml_arenas::kit::Worker;
///
/// let worker = Worker::start("copies")?;
/// let first = worker.run(|| Ok(1));
/// assert_eq!(worker.run(|| Ok(2)).wait(), Ok(2));
/// assert_eq!(first.wait(), Ok(1));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Worker {
    origin: Origin,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Job, Signaller)>,
    is_closed: bool,
}

impl Worker {
    /// Starts a worker thread with this name.
    ///
    /// # Errors
    /// The operating system's error if no thread can be started. [`io::ErrorKind::InvalidInput`] for a name
    /// with a zero byte, which no thread can have.
    pub fn start(name: &str) -> io::Result<Self> {
        if name.contains('\0') {
            let message = format!("a worker cannot be named {name:?}: the name has a zero byte");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let queue = Arc::new(Queue::default());
        let of_thread = queue.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || of_thread.work())?;
        Ok(Self { origin: Origin::here(), queue })
    }

    /// Submits a job, which returns the number of bytes that it moved. The fence ends when the job has ended.
    pub fn run(&self, job: impl FnOnce() -> Result<u64, TransferError> + Send + 'static) -> Fence {
        let (signal, signaller) = Signal::new();
        if self.origin.is_here() {
            self.queue.state.lock().jobs.push_back((Box::new(job), signaller));
            self.queue.changed.notify_all();
        } else {
            drop(job);
            signaller.end(Err(TransferError::DeviceLost { loss: None }));
        }
        signal.fence()
    }

    /// Returns a fence for the end of all jobs submitted so far, for [`Arena::tail`](dml_core::Arena::tail).
    pub fn tail(&self) -> Fence {
        self.run(|| Ok(0))
    }

    /// Returns whether this process started the worker. In a fork of that process the worker's memory counts
    /// as lost ([`Arena::is_lost`](dml_core::Arena::is_lost)).
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.origin.is_here()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.origin.is_here() {
            self.queue.state.lock().is_closed = true;
            self.queue.changed.notify_all();
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

impl Queue {
    fn work(&self) {
        while let Some((job, signaller)) = self.next() {
            // The call consumes the job, and drops the values that it holds.
            let ended = guard(job).unwrap_or_else(|message| Err(TransferError::Panicked { message }));
            signaller.end(ended);
        }
    }

    fn next(&self) -> Option<(Job, Signaller)> {
        let mut state = self.state.lock();
        loop {
            if let Some(next) = state.jobs.pop_front() {
                return Some(next);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_in_order_and_a_panic_fails_one() {
        let (worker, order) = (Worker::start("test").unwrap(), Arc::new(Mutex::new(Vec::new())));
        let job = |number: u64| {
            let order = order.clone();
            worker.run(move || {
                order.lock().push(number);
                assert!(number != 2, "job {number} panics");
                Ok(number)
            })
        };
        let fences: Vec<_> = (0..5).map(job).collect();
        let ended: Vec<_> = fences.into_iter().rev().map(Fence::wait).collect();
        let panicked = TransferError::Panicked { message: "job 2 panics".into() };
        assert_eq!(ended, [Ok(4), Ok(3), Err(panicked), Ok(1), Ok(0)]);
        assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_name_that_no_thread_can_have_is_an_error() {
        let refused = Worker::start("a\0b").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert!(refused.to_string().contains("zero byte"), "{refused}");
    }

    #[test]
    fn what_was_handed_over_is_done_after_the_worker_has_gone() {
        let worker = Worker::start("test").unwrap();
        let gate = Signal::<TransferError>::new();
        let waits = gate.0;
        let fences = [worker.run(move || waits.wait()), worker.run(|| Ok(2)), worker.tail()];
        drop(worker);
        gate.1.end(Ok(1));
        assert_eq!(fences.map(Fence::wait), [Ok(1), Ok(2), Ok(0)]);
    }

    #[test]
    fn what_a_job_holds_is_dropped_before_its_fence_ends() {
        let (worker, held) = (Worker::start("test").unwrap(), Arc::new(()));
        for _ in 0..100 {
            let holds = held.clone();
            let fence = worker.run(move || Ok(Arc::strong_count(&holds) as u64));
            assert_eq!(fence.wait(), Ok(2));
            assert_eq!(Arc::strong_count(&held), 1);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_fork_uses_no_worker_of_its_parents() {
        use crate::fork::testing::{child_says, fork};
        let worker = Worker::start("test").unwrap();
        let says = child_says(fork, || {
            let refused = worker.run(|| Ok(1)).wait() == Err(TransferError::DeviceLost { loss: None });
            // The child drops its copy of the worker.
            drop(Worker { origin: worker.origin, queue: worker.queue.clone() });
            refused
        });
        assert!(says);
        assert_eq!(worker.run(|| Ok(1)).wait(), Ok(1));
    }
}
