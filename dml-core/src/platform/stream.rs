//! The kernels in flight of each arena, in the order of their submission, and the thread that ends them.
//!
//! ```text
//!   submit ──push──▶ queue: n, n + 1, …  ──first──▶ reaper: waits for its kernel, ends its grants ──▶ settled
//! ```
//! 1. A kernel gets its number after its launch has returned and before a submission that conflicts with it is
//!    granted. So the numbers of conflicting kernels are in the order of their launches.
//! 2. After the first failure, all kernels in the queue end as failed. So does a kernel whose request was made
//!    before, because it may have read what the failed one should have written.
//! 3. The reaper is one thread for each arena. It sleeps while the queue is empty.

use crate::base::helpers::Helpers;
use crate::base::sync::{Arc, Condvar, Mutex};
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

/// Maximum number of kernels in the queue of one stream. It bounds the memory that they keep.
const MOST_IN_FLIGHT: u64 = 256;
/// Maximum number of failures that a stream remembers, for those that ask later.
const MOST_FAILURES: usize = 64;

/// The cause of a failure.
pub(crate) type Cause = Arc<dyn Error + Send + Sync>;

/// A launched kernel with its grants.
pub(crate) trait Work: Send {
    /// Waits for the kernel and ends its grants; as failed if `fails` or the kernel failed.
    fn end(self: Box<Self>, fails: bool) -> Result<(), Cause>;
}

/// A failed kernel, on behalf of all that ended with it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The number of the kernel that failed.
    pub(crate) number: u64,
    /// Its label.
    pub(crate) label: Arc<str>,
    pub(crate) cause: Cause,
    /// The number of the last kernel that ended as failed with it.
    last: u64,
}

/// The streams of a platform, by arena.
#[derive(Debug)]
pub(crate) struct Streams(Box<[Arc<Stream>]>);

/// The kernels in flight of one arena.
#[derive(Default)]
pub(crate) struct Stream {
    state: Mutex<State>,
    /// Something was pushed, or the platform is gone.
    has_come: Condvar,
    /// A kernel has ended.
    has_ended: Condvar,
    /// The number of failures that are dealt with.
    failures: AtomicU64,
    /// The number of kernels that have a number.
    given: AtomicU64,
    /// The number of the last kernel that ended, with all before it.
    settled: AtomicU64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Entry>,
    reaper: Reaper,
    /// The failure with which the rest of the queue ends.
    failing: Option<Failure>,
    /// The last failures.
    failed: VecDeque<Failure>,
    wakers: Vec<(u64, Waker)>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Reaper {
    #[default]
    None,
    Runs,
    Sleeps,
    /// The platform is gone.
    Over,
}

struct Entry {
    number: u64,
    label: Arc<str>,
    work: Box<dyn Work>,
    /// Whether it ends as failed whatever its kernel does.
    is_doomed: bool,
}

impl Streams {
    pub(crate) fn new(arenas: usize) -> Self {
        Self((0..arenas).map(|_| Arc::default()).collect())
    }

    pub(crate) fn of(&self, arena: crate::base::id::ArenaId) -> &Arc<Stream> {
        &self.0[usize::from(arena.0)]
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // Each kernel in flight keeps the platform alive, so the queues are empty.
        for stream in &self.0 {
            stream.state.lock().reaper = Reaper::Over;
            stream.has_come.notify_all();
        }
    }
}

impl Stream {
    /// Returns the number of failures that are dealt with, to be passed to [`push`](Self::push).
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Returns the number of the kernel that must end before there is room for another one.
    fn in_the_way(&self) -> u64 {
        (self.given() + 1).saturating_sub(MOST_IN_FLIGHT)
    }

    /// Returns whether there is room for another kernel.
    pub(crate) fn has_room(&self) -> bool {
        self.has_settled(self.in_the_way())
    }

    /// Waits until there is room for another kernel. The caller must hold no grants.
    pub(crate) fn wait_for_room(&self) {
        self.settle(self.in_the_way());
    }

    /// As [`wait_for_room`](Self::wait_for_room), for a future.
    pub(crate) fn poll_room(&self, waker: &Waker) -> Poll<()> {
        if self.poll(self.in_the_way(), waker) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Adds a launched kernel, and returns its number. `failures` is the number of
    /// [`failures`](Self::failures) before it asked for its buffers.
    pub(crate) fn push(self: &Arc<Self>, work: Box<dyn Work>, label: Arc<str>, failures: u64) -> u64 {
        let mut state = self.state.lock();
        let number = self.given.load(Ordering::Relaxed) + 1;
        self.given.store(number, Ordering::Release);
        let is_doomed = self.failures() != failures;
        state.queue.push_back(Entry { number, label, work, is_doomed });
        match state.reaper {
            Reaper::Runs | Reaper::Over => {}
            Reaper::Sleeps => self.has_come.notify_all(),
            Reaper::None => {
                state.reaper = Reaper::Runs;
                drop(state);
                let stream = self.clone();
                if Helpers::shared().call(move || stream.reap(true)).is_err() {
                    // Without a thread, this one ends what there is.
                    self.reap(false);
                }
            }
        }
        number
    }

    /// Ends one kernel after the other; with `stays`, until the platform is gone.
    fn reap(&self, stays: bool) {
        let mut state = self.state.lock();
        loop {
            let Some(Entry { number, label, work, is_doomed }) = state.queue.pop_front() else {
                if state.reaper == Reaper::Over {
                    return;
                }
                if !stays {
                    state.reaper = Reaper::None;
                    return;
                }
                state.reaper = Reaper::Sleeps;
                state = self.has_come.wait(state);
                if state.reaper == Reaper::Sleeps {
                    state.reaper = Reaper::Runs;
                }
                continue;
            };
            let before = match is_doomed {
                true => state.failing.clone().or_else(|| state.failed.back().cloned()),
                false => state.failing.clone(),
            };
            drop(state);
            let ended = work.end(before.is_some());
            state = self.state.lock();
            let failure = match (before, ended) {
                (Some(before), _) => Some(Failure { last: number, ..before }),
                (None, Err(cause)) => Some(Failure { number, label, cause, last: number }),
                (None, Ok(())) => None,
            };
            if let Some(failure) = failure {
                state.fails(failure);
            }
            if state.queue.is_empty() && state.failing.take().is_some() {
                self.failures.fetch_add(1, Ordering::AcqRel);
            }
            self.settled.store(number, Ordering::Release);
            self.has_ended.notify_all();
            let woken: Vec<_> = state.wakers.extract_if(.., |(awaited, _)| *awaited <= number).collect();
            if !woken.is_empty() {
                drop(state);
                for (_, waker) in woken {
                    let _ = crate::base::guard::guard(|| waker.wake());
                }
                state = self.state.lock();
            }
        }
    }

    /// Returns the number of the last kernel.
    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Acquire)
    }

    /// Returns whether a kernel and all before it have ended.
    pub(crate) fn has_settled(&self, number: u64) -> bool {
        self.settled.load(Ordering::Acquire) >= number
    }

    /// Waits until a kernel and all before it have ended.
    pub(crate) fn settle(&self, number: u64) {
        if self.has_settled(number) {
            return;
        }
        let mut state = self.state.lock();
        while !self.has_settled(number) {
            state = self.has_ended.wait(state);
        }
    }

    /// Returns whether a kernel and all before it have ended. Otherwise, `waker` is called once they have.
    pub(crate) fn poll(&self, number: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if self.has_settled(number) {
            return true;
        }
        if !state.wakers.iter().any(|(awaited, known)| *awaited == number && known.will_wake(waker)) {
            state.wakers.push((number, waker.clone()));
        }
        false
    }

    /// Returns the failure with which an ended kernel ended.
    pub(crate) fn failure(&self, number: u64) -> Option<Failure> {
        let state = self.state.lock();
        let covers = |failure: &&Failure| (failure.number..=failure.last).contains(&number);
        state.failed.iter().rev().find(covers).cloned()
    }
}

impl State {
    /// Records a failure, or one more kernel that ended with it.
    fn fails(&mut self, failure: Failure) {
        match self.failed.back_mut().filter(|last| last.number == failure.number) {
            Some(last) => last.last = failure.last,
            None => self.failed.push_back(failure.clone()),
        }
        if self.failed.len() > MOST_FAILURES {
            self.failed.pop_front();
        }
        self.failing = Some(failure);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (settled, given) = (self.settled.load(Ordering::Relaxed), self.given.load(Ordering::Relaxed));
        write!(f, "Stream({settled} of {given} settled)")
    }
}
