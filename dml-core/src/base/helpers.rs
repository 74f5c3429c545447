//! Cached threads: a task starts without the delay of creating a thread.
//!
//! ```text
//!   call(task) ─┬─ a thread is idle ──▶ it wakes up ──▶ task ──▶ idle, next to be called
//!               └─ none is idle ──────▶ new thread ───▶ task ──▶ idle, or ends if enough threads are idle
//! ```
//! 1. No task waits for another one: each task gets its own thread, whatever the number of tasks.
//! 2. The thread that became idle last is called first: the caches of its core may still be warm.
//! 3. A fork has none of its parent's threads, and may find their lock held for ever. In a fork, each task
//!    gets a new thread.

use crate::base::guard::guard;
use crate::base::sync::{Arc, Condvar, Mutex, thread};
use std::fmt;
use std::io;
use std::sync::OnceLock;

/// Maximum number of idle threads that the process keeps.
const MOST_KEPT: usize = 16;

/// Cached threads for tasks of any kind.
///
/// A new thread takes about 0.1 ms until it runs; waking an idle one takes less than half of that. An idle
/// thread costs the memory of the stack pages that it has touched.
///
/// A thread has the core affinity, the priority and the signal mask of the caller that created it.
/// Thread-locals persist from one task to the next, which may be of another caller. Their destructors run
/// when the thread ends.
///
/// ```
/// use dml_core::internal::Helpers;
/// use std::sync::mpsc;
///
/// let (sender, receiver) = mpsc::channel();
/// Helpers::shared().call(move || sender.send(42).expect("the receiver lives"))?;
/// assert_eq!(receiver.recv(), Ok(42));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Helpers(Arc<Shared>);

type Task = Box<dyn FnOnce() + Send>;

struct Shared {
    process: u32,
    most_kept: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The idle threads, in the order in which they became idle.
    idle: Vec<Arc<Seat>>,
    is_closed: bool,
}

/// The place where an idle thread waits for its next task.
#[derive(Default)]
struct Seat {
    next: Mutex<Next>,
    has_come: Condvar,
}

/// An instruction to an idle thread.
#[derive(Default)]
enum Next {
    #[default]
    Wait,
    Do(Task),
    End,
}

impl Helpers {
    /// Creates a cache that keeps at most `most_kept` idle threads.
    #[must_use]
    pub fn new(most_kept: usize) -> Self {
        let state = Mutex::new(State::default());
        Self(Arc::new(Shared { process: std::process::id(), most_kept, state }))
    }

    /// Returns the cache of the process, which keeps at most sixteen idle threads.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Helpers> = OnceLock::new();
        SHARED.get_or_init(|| Self::new(MOST_KEPT))
    }

    /// Returns whether this process made the cache. In a fork of that process, its threads do not exist.
    #[must_use]
    pub fn are_here(&self) -> bool {
        self.0.is_here()
    }

    /// Runs a task on another thread. A panic of the task is ignored.
    ///
    /// # Errors
    /// The system's error if no thread is idle and none can be created. The task is then dropped.
    pub fn call(&self, task: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let task: Task = Box::new(task);
        if !self.0.is_here() {
            return spawn(move || _ = guard(task));
        }
        let idle = self.0.state.lock().idle.pop();
        if let Some(seat) = idle {
            seat.hand(Next::Do(task));
            return Ok(());
        }
        let shared = self.0.clone();
        spawn(move || shared.work(task))
    }
}

/// Runs a task on a cached thread of the process, as [`Helpers::call`]. In a model, the thread is a new one,
/// because no thread outlives a model.
pub(crate) fn help(task: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if cfg!(dml_loom) { spawn(task) } else { Helpers::shared().call(task) }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("dml helper".to_owned()).spawn(work).map(drop)
}

impl Drop for Helpers {
    fn drop(&mut self) {
        if !self.0.is_here() {
            return;
        }
        let idle = {
            let mut state = self.0.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.idle)
        };
        idle.iter().for_each(|seat| seat.hand(Next::End));
    }
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Helpers(at most {} idle threads)", self.0.most_kept)
    }
}

impl Shared {
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Runs one task after the other, until the cache is full or closed.
    fn work(&self, first: Task) {
        let seat = Arc::new(Seat::default());
        let mut task = first;
        loop {
            let _ = guard(task);
            if !self.is_here() {
                // The task has forked. In the child process, no caller knows this thread.
                return;
            }
            {
                let mut state = self.state.lock();
                if state.is_closed || state.idle.len() >= self.most_kept {
                    return;
                }
                state.idle.push(seat.clone());
            }
            match seat.wait() {
                Some(next) => task = next,
                None => return,
            }
        }
    }
}

impl Seat {
    fn hand(&self, next: Next) {
        *self.next.lock() = next;
        self.has_come.notify_all();
    }

    /// Waits for a task. Returns `None` if the thread must end.
    fn wait(&self) -> Option<Task> {
        let mut next = self.next.lock();
        loop {
            match std::mem::take(&mut *next) {
                Next::Wait => next = self.has_come.wait(next),
                Next::Do(task) => return Some(task),
                Next::End => return None,
            }
        }
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::{ThreadId, current};
    use std::time::{Duration, Instant};

    /// Runs a task that sends its thread's id, and ends when the second returned value is called.
    fn who(helpers: &Helpers) -> (Receiver<ThreadId>, impl FnOnce() + use<>) {
        let ((says, said), (lets, may_end)) = (channel(), channel());
        let task = move || {
            says.send(current().id()).unwrap();
            may_end.recv().unwrap();
        };
        helpers.call(task).unwrap();
        (said, move || lets.send(()).unwrap())
    }

    fn idle(helpers: &Helpers) -> usize {
        helpers.0.state.lock().idle.len()
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(20), "timed out after 20 s");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_does_one_task_after_the_other() {
        let helpers = Helpers::new(1);
        let mut threads = Vec::new();
        for _ in 0..3 {
            let (thread, end) = who(&helpers);
            threads.push(thread.recv().unwrap());
            end();
            wait_until(|| idle(&helpers) == 1);
        }
        assert!(threads.iter().all(|thread| *thread == threads[0]));
    }

    /// Five tasks run at once, although only two idle threads are kept.
    #[test]
    fn no_task_waits_for_another() {
        let helpers = Helpers::new(2);
        let tasks: Vec<_> = (0..5).map(|_| who(&helpers)).collect();
        let mut threads = Vec::new();
        for (thread, end) in tasks {
            threads.push((thread.recv().unwrap(), end));
        }
        assert_eq!(
            threads.iter().map(|(thread, _)| thread).collect::<std::collections::HashSet<_>>().len(),
            5
        );
        threads.into_iter().for_each(|(_, end)| end());
        wait_until(|| Arc::strong_count(&helpers.0) == 3);
        assert_eq!(idle(&helpers), 2);
    }

    #[test]
    fn whoever_was_idle_last_is_called_first() {
        let helpers = Helpers::new(2);
        let (first, second) = (who(&helpers), who(&helpers));
        let (first, second) = ((first.0.recv().unwrap(), first.1), (second.0.recv().unwrap(), second.1));
        second.1();
        wait_until(|| idle(&helpers) == 1);
        first.1();
        wait_until(|| idle(&helpers) == 2);
        let (next, end) = who(&helpers);
        assert_eq!(next.recv().unwrap(), first.0);
        let (other, end_other) = who(&helpers);
        assert_eq!(other.recv().unwrap(), second.0);
        end();
        end_other();
    }

    #[test]
    fn a_task_that_panics_leaves_its_thread() {
        struct Payload;
        impl Drop for Payload {
            fn drop(&mut self) {
                panic!("a destructor");
            }
        }
        let helpers = Helpers::new(1);
        helpers.call(|| std::panic::panic_any(Payload)).unwrap();
        wait_until(|| idle(&helpers) == 1);
        let (thread, end) = who(&helpers);
        thread.recv().unwrap();
        end();
    }

    /// The task runs another task, and drops the last handle on the cache of its own thread.
    #[test]
    fn a_task_may_use_the_threads_that_do_it() {
        let (says, said) = channel();
        let helpers = Arc::new(Helpers::new(1));
        let (shared, own) = (helpers.0.clone(), helpers.clone());
        let task = move || {
            let other = says.clone();
            own.call(move || other.send(current().id()).unwrap()).unwrap();
            drop(own);
            says.send(current().id()).unwrap();
        };
        helpers.call(task).unwrap();
        drop(helpers);
        assert_ne!(said.recv().unwrap(), said.recv().unwrap());
        wait_until(|| Arc::strong_count(&shared) == 1);
    }

    #[test]
    fn idle_threads_end_with_their_owner_and_others_after_their_task() {
        let helpers = Helpers::new(2);
        let (first, second) = (who(&helpers), who(&helpers));
        first.1();
        wait_until(|| idle(&helpers) == 1);
        let shared = helpers.0.clone();
        drop(helpers);
        wait_until(|| Arc::strong_count(&shared) == 2);
        second.1();
        wait_until(|| Arc::strong_count(&shared) == 1);
        assert!(shared.state.lock().idle.is_empty());
    }
}
