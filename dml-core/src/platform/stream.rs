//! The kernels in flight of each arena, in the order of their submission, and the thread that ends them.
//!
//! ```text
//!   submit ──push──▶ queue: n, n + 1, …  ──first──▶ reaper: waits for its kernel, ends its grants ──▶ settled
//!                      └─ unlaunched, in order ──▶ launching thread, or the reaper if the launch computes
//! ```
//! 1. A kernel gets its number before a submission that conflicts with it is granted. By then its submitter
//!    has launched it, or has left that to the launching thread, which launches in the order of the numbers.
//!    So the numbers of conflicting kernels are in the order of their launches.
//! 2. After the first failure, all kernels in the queue end as failed. So does a kernel whose request was
//!    made before, because it may have read what the failed one should have written.
//! 3. Code that a stream calls must not wait for a stream, or in a buffer's queue: both may wait for that
//!    code. Such a wait is refused ([`is_on_stream`]).
//! 4. The reaper is one thread for each arena, and the launching thread another one. They sleep while they
//!    have nothing to do.
//! 5. One thread at a time ends kernels: the reaper, or a caller that waits for launched kernels while the
//!    reaper sleeps. A switch of threads would take longer than many kernels.

mod launching;

use crate::base::guard::{guard, quietly};
use crate::base::helpers::help;
use crate::base::id::{BufferId, OwnerId};
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{Arc, Condvar, Mutex, MutexGuard, thread, thread_local};
use crate::memory::error::TransferError;
use crate::platform::registry::Registry;
use launching::AHEAD;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Maximum number of kernels in the queue of one stream. It bounds the memory that they keep.
const MOST_IN_FLIGHT: u64 = 256;
/// Number of kernels that end before a caller that waits for room goes on.
const ROOM: u64 = 64;
/// The time after which the reaper looks which kernels have ended, if no caller awaits one.
const DOZE: Duration = Duration::from_millis(1);
/// The time after which the reaper looks again at a kernel that a caller awaits, while others are launched.
const NAP: Duration = Duration::from_micros(50);
/// Maximum number of failures that a stream remembers, for those that ask later.
const MOST_FAILURES: usize = 1024;

thread_local! {
    #[allow(clippy::missing_const_for_thread_local, reason = "a model's macro takes no constant")]
    static IS_ON_STREAM: Cell<bool> = Cell::new(false);
}

/// Returns whether a stream called the code that runs on this thread.
pub(crate) fn is_on_stream() -> bool {
    IS_ON_STREAM.with(Cell::get)
}

/// Returns code that waits for what it may wait for on this thread, whichever thread runs it.
pub fn as_here<R>(code: impl FnOnce() -> R) -> impl FnOnce() -> R {
    let is_on_stream = is_on_stream();
    move || {
        let _on_stream = is_on_stream.then(OnStream::enter);
        code()
    }
}

/// A wait is refused, because a stream called the code that would wait.
#[derive(Debug)]
pub(crate) struct Refused;

/// Marks the thread as one that works for a stream.
struct OnStream(bool);

impl OnStream {
    fn enter() -> Self {
        Self(IS_ON_STREAM.with(|is_on_stream| is_on_stream.replace(true)))
    }
}

impl Drop for OnStream {
    fn drop(&mut self) {
        IS_ON_STREAM.with(|is_on_stream| is_on_stream.set(self.0));
    }
}

/// The buffers of a kernel, with its grants. The grants keep the buffers alive.
pub(crate) type AllHeld = SmallVec<[(BufferId, OwnerId); 3]>;

/// What is to be done once the stream's lock is free.
pub(crate) type Afterwards = Vec<Box<dyn FnOnce()>>;

/// The cause of a failure.
pub(crate) type Cause = Arc<dyn Error + Send + Sync>;

/// A kernel with its grants.
pub(crate) trait Work: Send {
    /// Returns the buffers with the grants.
    fn held(&self) -> AllHeld;

    /// Records in the buffers that the kernel has a number, so that those that follow it may be granted. It
    /// is called under the stream's lock.
    fn start(&mut self) -> Afterwards;

    /// Launches the kernel, if that was not done before, and returns whether that succeeded. A failure counts
    /// as that of the kernel. `is_followed`: another launch follows at once.
    fn launch(&mut self, is_followed: bool) -> bool;

    /// Waits for the kernel. Its result counts at the end.
    fn wait(&mut self);

    /// Returns whether the kernel is known to have ended. The call is cheap.
    fn has_ended(&self) -> bool;

    /// Waits for the kernel and ends its grants; as failed if `fails` or the kernel failed. A kernel that was
    /// not launched has ended.
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
    /// The first and the last of some neighbours that ended as failed with it.
    of: (u64, u64),
    /// Whether a caller has got it, or one that it hides.
    is_told: bool,
}

/// How a kernel is launched.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Start {
    /// Its submitter has launched it.
    Made,
    /// The launching thread launches it.
    Left {
        /// Whether the launch may wait.
        waits: bool,
    },
    /// Its launch computes. The reaper makes it, once all kernels before it have ended.
    Computes,
}

/// The streams of a platform, by arena.
#[derive(Debug)]
pub(crate) struct Streams(Box<[Arc<Stream>]>);

/// The kernels in flight of one arena.
#[derive(Default)]
pub(crate) struct Stream {
    /// The buffers of the platform.
    registry: Arc<Registry>,
    state: Mutex<State>,
    /// Something was pushed, or the platform is gone.
    has_come: Condvar,
    /// A kernel has ended, or all launches are made.
    has_ended: Condvar,
    /// A kernel is to be launched, or the platform is gone.
    is_to_launch: Condvar,
    /// The number of failures that are dealt with.
    failures: AtomicU64,
    /// The number of kernels that have a number.
    given: AtomicU64,
    /// The number of the last kernel that ended, with all before it.
    settled: AtomicU64,
    /// Whether launches are left to the launching thread.
    launches_aside: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Entry>,
    reaper: Helper,
    launching: Helper,
    /// What the kernel has that is being ended.
    ending: AllHeld,
    /// The kernels in the queue that are not launched, in their order.
    to_launch: VecDeque<u64>,
    /// The number of callers that wait until none is to be launched.
    await_launches: usize,
    /// Whether a launch by the stream failed, and the kernels behind it are still in the queue.
    is_refusing: bool,
    /// Whether the platform is gone.
    is_over: bool,
    /// The failure with which the rest of the queue ends.
    failing: Option<Failure>,
    /// The last failures.
    failed: VecDeque<Failure>,
    wakers: Vec<(u64, Waker)>,
    /// The greatest number of a kernel that a caller awaits.
    awaited: u64,
    /// The kernels for which threads wait.
    waiting: Vec<u64>,
    /// The process of the threads; 0 before there is one.
    process: u32,
}

/// What a thread of a stream does.
#[derive(Clone, Copy, Default, PartialEq)]
enum Helper {
    #[default]
    None,
    Runs,
    Sleeps,
    /// It sleeps for a short time.
    Dozes,
    /// It was woken, and has not gone on yet.
    Wakes,
    /// A caller that waits does its work meanwhile.
    IsReplaced {
        /// Whether it sleeps for a short time.
        dozes: bool,
    },
}

struct Entry {
    number: u64,
    label: Arc<str>,
    /// `None` while a thread of the stream uses it.
    work: Option<Box<dyn Work>>,
    held: AllHeld,
    is_launched: bool,
    /// Whether the reaper launches it, because its launch computes.
    computes: bool,
    /// Whether its launch may wait.
    waits: bool,
    /// Whether it runs behind those before it on the device, waits for nothing else, and may be waited for
    /// with those behind it.
    is_in_order: bool,
    /// Whether it ends as failed whatever its kernel does.
    is_doomed: bool,
}

impl Streams {
    /// Has all kernels ended, because a request waits for the end of a grant.
    pub(crate) fn hurry(&self) {
        self.0.iter().for_each(|stream| stream.hurry_all());
    }

    pub(crate) fn new(arenas: usize, registry: &Arc<Registry>) -> Self {
        let new = |_| Arc::new(Stream { registry: registry.clone(), ..Stream::default() });
        Self((0..arenas).map(new).collect())
    }

    pub(crate) fn of(&self, arena: crate::base::id::ArenaId) -> &Arc<Stream> {
        &self.0[usize::from(arena.0)]
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // Each kernel with buffers keeps the platform alive. The reaper still ends those without.
        for stream in &self.0 {
            stream.state.lock().is_over = true;
            stream.has_come.notify_all();
            stream.is_to_launch.notify_all();
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
    pub(crate) fn wait_for_room(self: &Arc<Self>) -> Result<(), Refused> {
        if self.has_room() { Ok(()) } else { self.settle(self.in_the_way() + ROOM) }
    }

    /// As [`wait_for_room`](Self::wait_for_room), for a future.
    pub(crate) fn poll_room(self: &Arc<Self>, waker: &Waker) -> Poll<()> {
        if self.poll(self.in_the_way(), waker) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Adds a kernel, and returns its number.
    ///
    /// `failures` is the number of [`failures`](Self::failures) before it asked for its buffers.
    pub(crate) fn push(
        self: &Arc<Self>,
        (work, start): (Box<dyn Work>, Start),
        (label, is_in_order): (Arc<str>, bool),
        failures: u64,
    ) -> u64 {
        let (held, mut work) = (work.held(), work);
        let mut state = self.state.lock();
        let number = self.given.load(Ordering::Relaxed) + 1;
        self.given.store(number, Ordering::Release);
        let is_doomed = self.failures() != failures;
        let is_launched = start == Start::Made;
        if !is_launched || state.queue.len() + 1 >= AHEAD {
            self.launches_aside.store(true, Ordering::Release);
        }
        // Not before: those that follow get greater numbers, and see where to launch.
        let (afterwards, work) = (work.start(), Some(work));
        let (computes, waits) = (start == Start::Computes, start == Start::Left { waits: true });
        let entry = Entry { number, label, work, held, is_launched, computes, waits, is_in_order, is_doomed };
        state.queue.push_back(entry);
        if !is_launched {
            state.to_launch.push_back(number);
            state = self.have_launched(state);
        }
        match state.reaper {
            Helper::Dozes if !computes => drop(state),
            Helper::None => drop(self.reaped(state, number)),
            _ => {
                self.wake(&mut state);
                drop(state);
            }
        }
        afterwards.into_iter().for_each(|act| act());
        number
    }

    /// Ends the grants of a kernel that a thread of the parent has, in a fork.
    fn lose(&self, held: &AllHeld) {
        let live = if held.is_empty() { Vec::new() } else { self.registry.live() };
        for (id, grant) in held {
            live.iter().filter(|buffer| buffer.id() == *id).for_each(|buffer| buffer.lose(*grant));
        }
    }

    /// Wakes the reaper, if it sleeps.
    fn wake(&self, state: &mut State) {
        if matches!(state.reaper, Helper::Sleeps | Helper::Dozes) {
            state.reaper = Helper::Wakes;
            self.has_come.notify_all();
        }
    }

    /// Notices a fork.
    fn noticed<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let held = state.notice_fork();
        if held.is_empty() {
            return state;
        }
        drop(state);
        self.lose(&held);
        self.state.lock()
    }

    /// Starts the reaper, if there is none and something to do. Without a thread for it, this one ends the
    /// kernels up to `number`.
    fn reaped<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        number: u64,
    ) -> MutexGuard<'a, State> {
        state = self.noticed(state);
        if state.reaper != Helper::None || state.queue.is_empty() {
            return state;
        }
        state.reaper = Helper::Runs;
        drop(state);
        let stream = self.clone();
        if help(move || stream.reap(u64::MAX)).is_err() {
            self.reap(number);
        }
        self.state.lock()
    }

    /// Ends kernels in their order, up to `until` or the end of the platform.
    ///
    /// It blocks for a kernel that a caller awaits, and for one that has not ended when it looks a second
    /// time. Otherwise it looks from time to time which kernels have ended, so that short kernels cost no
    /// switch of threads each.
    fn reap(&self, until: u64) {
        let _on_stream = OnStream::enter();
        let mut state = self.state.lock();
        // Whether the queue was empty at the last look, and the number of the kernel that had not ended then.
        let (mut was_empty, mut running) = (false, 0);
        // The number of kernels that are waited for together: many only if they are short.
        let mut batch = 1;
        loop {
            if self.has_settled(until) {
                state.reaper = Helper::None;
                return;
            }
            let Some(first) = state.queue.front().map(|entry| entry.number) else {
                if state.is_over {
                    return;
                }
                if was_empty || cfg!(dml_loom) {
                    state = self.sleep(state);
                } else {
                    state = self.doze(state, DOZE);
                }
                was_empty = true;
                continue;
            };
            was_empty = false;
            if !state.queue[0].is_launched {
                state = match state.launching {
                    _ if state.queue[0].computes => self.launch_next(state),
                    Helper::None => self.launch_here(state),
                    _ if state.awaited >= first => self.sleep(state),
                    _ => self.doze(state, DOZE),
                };
                continue;
            }
            if state.awaited >= first || first == running || until != u64::MAX {
                if state.launches_next() && until == u64::MAX {
                    // A wait would query the driver all the time, and slow the launches down.
                    let last = state.short_batch(batch);
                    let (now, has_ended) = self.with_work(state, last, |work| work.has_ended());
                    state = now;
                    // In a fork, the work may be with a thread of the parent, and never come back.
                    if has_ended == Some(false) {
                        batch = 1;
                        state = self.doze(state, NAP);
                        continue;
                    }
                }
                state = self.end_batch(state, &mut batch);
                continue;
            }
            let (now, has_ended) = self.with_work(state, 0, |work| work.has_ended());
            state = now;
            if has_ended == Some(true) {
                state = self.end_first(state);
            } else if state.awaited < first {
                running = first;
                state = self.doze(state, DOZE);
            }
        }
    }

    /// Waits for the first kernels, at most `batch`, and ends them.
    fn end_batch<'a>(&'a self, mut state: MutexGuard<'a, State>, batch: &mut usize) -> MutexGuard<'a, State> {
        let last = state.short_batch(*batch);
        let begun = Instant::now();
        state = self.with_work(state, last, |work| work.wait()).0;
        // Twice as many must end in time for those that await the first. A model has no time.
        let is_short = cfg!(dml_loom) || 2 * begun.elapsed() < DOZE;
        *batch = if is_short { (2 * *batch).min(ROOM as usize) } else { 1 };
        for _ in 0..=last {
            state = self.end_first(state);
        }
        state
    }

    /// Ends launched kernels on this thread, because switching to the reaper takes time. Stops once
    /// `is_done`, for which no kernel behind `awaited` matters. Does nothing while the reaper runs.
    pub(crate) fn end_here(self: &Arc<Self>, awaited: u64, is_done: impl Fn() -> bool) {
        let on_stream = OnStream::enter();
        let mut state = self.state.lock();
        state = self.noticed(state);
        if !matches!(state.reaper, Helper::Sleeps | Helper::Dozes | Helper::Wakes) {
            return;
        }
        state.reaper = Helper::IsReplaced { dozes: state.reaper == Helper::Dozes };
        state.awaited = state.awaited.max(awaited);
        let mut batch = 1;
        while state.queue.front().is_some_and(|first| first.is_launched) {
            state = self.end_batch(state, &mut batch);
            drop(state);
            let is_done = is_done();
            state = self.state.lock();
            if is_done {
                break;
            }
        }
        state.reaper = match state.reaper {
            Helper::IsReplaced { dozes: true } => Helper::Dozes,
            _ => Helper::Sleeps,
        };
        if !state.queue.is_empty() || state.is_over {
            self.wake(&mut state);
        }
        drop((state, on_stream));
    }

    /// Calls foreign code of a kernel in the queue, without the lock. Only the reaper removes kernels.
    fn with_work<'a, R>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        place: usize,
        act: impl FnOnce(&mut dyn Work) -> R,
    ) -> (MutexGuard<'a, State>, Option<R>) {
        let Some(mut work) = state.queue[place].work.take() else { return (state, None) };
        drop(state);
        let result = guard(|| act(&mut *work)).ok();
        let mut state = self.state.lock();
        state.queue[place].work = Some(work);
        (state, result)
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.reaper = Helper::Sleeps;
        let state = self.has_come.wait(state);
        self.awake(state)
    }

    fn doze<'a>(&'a self, mut state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        state.reaper = Helper::Dozes;
        let state = if cfg!(dml_loom) {
            // In a model the time is over once the other threads have run.
            drop(state);
            thread::yield_now();
            self.state.lock()
        } else {
            self.has_come.wait_until(state, Instant::now() + time).0
        };
        self.awake(state)
    }

    /// Goes on as the reaper, once no caller replaces it.
    fn awake<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Helper::IsReplaced { dozes } = &mut state.reaper {
            *dozes = false;
            state = self.has_come.wait(state);
        }
        state.reaper = Helper::Runs;
        state
    }

    /// Ends the first kernel of the queue.
    fn end_first<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(Entry { number, label, work, mut held, is_doomed, .. }) = state.queue.pop_front() else {
            return state;
        };
        let before = match is_doomed {
            true => state.failing.clone().or_else(|| state.failed.back().cloned()),
            false => state.failing.clone(),
        };
        if work.is_some() {
            state.ending = std::mem::take(&mut held);
        }
        drop(state);
        let lost = || {
            // In a fork, a thread of the parent has the kernel with its grants.
            self.lose(&held);
            Err(Arc::new(TransferError::DeviceLost { loss: None }) as Cause)
        };
        let ended = guard(|| work.map_or_else(lost, |work| work.end(before.is_some())));
        let ended =
            ended.unwrap_or_else(|message| Err(Arc::new(TransferError::Panicked { message }) as Cause));
        let mut state = self.state.lock();
        state.ending.clear();
        let failure = match (before, ended) {
            (Some(before), _) => Some(Failure { of: (number, number), is_told: false, ..before }),
            (None, Err(cause)) => {
                Some(Failure { number, label, cause, of: (number, number), is_told: false })
            }
            (None, Ok(())) => None,
        };
        if let Some(failure) = failure {
            state.fails(failure);
        }
        if state.queue.is_empty() && state.failing.take().is_some() {
            state.is_refusing = false;
            self.failures.fetch_add(1, Ordering::AcqRel);
        }
        self.tell_where_to_launch(&state);
        self.settled.store(number, Ordering::Release);
        if state.waiting.iter().any(|waiting| *waiting <= number) {
            self.has_ended.notify_all();
        }
        if state.wakers.is_empty() {
            return state;
        }
        let woken: Vec<_> = state.wakers.extract_if(.., |(awaited, _)| *awaited <= number).collect();
        drop(state);
        for (_, waker) in woken {
            let _ = guard(|| waker.wake_by_ref());
            quietly(waker);
        }
        self.state.lock()
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
    pub(crate) fn settle(self: &Arc<Self>, number: u64) -> Result<(), Refused> {
        if self.has_settled(number) {
            return Ok(());
        }
        if is_on_stream() {
            return Err(Refused);
        }
        let mut state = self.state.lock();
        while !self.has_settled(number) {
            drop(state);
            self.end_here(number, || self.has_settled(number));
            state = self.state.lock();
            if self.has_settled(number) {
                break;
            }
            self.hurry(&mut state, number);
            state = self.reaped(state, number);
            if self.has_settled(number) {
                break;
            }
            state.waiting.push(number);
            state = self.has_ended.wait(state);
            if let Some(place) = state.waiting.iter().position(|waiting| *waiting == number) {
                state.waiting.swap_remove(place);
            }
        }
        Ok(())
    }

    /// Wakes the reaper, because a caller awaits a kernel.
    fn hurry(&self, state: &mut State, number: u64) {
        state.awaited = state.awaited.max(number);
        self.wake(state);
    }

    /// Has all kernels ended that have a number, because a request waits for the end of a grant.
    pub(crate) fn hurry_all(self: &Arc<Self>) {
        let last = self.given();
        if !self.has_settled(last) {
            let mut state = self.state.lock();
            self.hurry(&mut state, last);
            drop(self.reaped(state, last));
        }
    }

    /// Returns whether a kernel and all before it have ended. Otherwise, `waker` is called once they have.
    pub(crate) fn poll(self: &Arc<Self>, number: u64, waker: &Waker) -> bool {
        // The waker is foreign code.
        let waker = waker.clone();
        let mut state = self.state.lock();
        if self.has_settled(number) {
            drop(state);
            quietly(waker);
            return true;
        }
        let known = state.wakers.iter().position(|(of, known)| *of == number && known.will_wake(&waker));
        let needless = match known {
            Some(_) => Some(waker),
            None => {
                state.wakers.push((number, waker));
                None
            }
        };
        self.hurry(&mut state, number);
        drop(self.reaped(state, number));
        quietly(needless);
        self.has_settled(number)
    }

    /// Returns the failure with which an ended kernel ended.
    pub(crate) fn failure(&self, number: u64) -> Option<Failure> {
        let state = self.state.lock();
        let covers = |failure: &&Failure| (failure.of.0..=failure.of.1).contains(&number);
        state.failed.iter().rev().find(covers).cloned()
    }
}

impl Stream {
    /// Returns the first failure up to a kernel that was not returned before.
    pub(crate) fn untold(&self, number: u64) -> Option<Failure> {
        let mut state = self.state.lock();
        let mut untold = state.failed.iter_mut().filter(|failure| !failure.is_told && failure.of.0 <= number);
        let first = untold.next().map(|failure| {
            failure.is_told = true;
            failure.clone()
        });
        untold.for_each(|failure| failure.is_told = true);
        first
    }

    /// Records that the caller gets the failure of a kernel.
    pub(crate) fn tell(&self, number: u64) {
        let mut state = self.state.lock();
        let of_it = state.failed.iter_mut().rev().find(|failure| failure.number == number);
        of_it.into_iter().for_each(|failure| failure.is_told = true);
    }
}

impl State {
    /// Forgets the threads of the parent process, and what they had taken. A fork has none of them. Returns
    /// what the kernel has that one of them was ending.
    fn notice_fork(&mut self) -> AllHeld {
        let process = std::process::id();
        let before = std::mem::replace(&mut self.process, process);
        if [0, process].contains(&before) {
            return AllHeld::new();
        }
        (self.reaper, self.launching) = (Helper::None, Helper::None);
        for taken in self.queue.iter_mut().filter(|entry| !entry.is_launched && entry.work.is_none()) {
            taken.is_launched = true;
            self.to_launch.pop_front();
        }
        std::mem::take(&mut self.ending)
    }

    /// Returns the place of the last of at most `most` first kernels that are awaited and run in order.
    /// Others are waited for one after the other, because one may wait for what another one holds.
    fn short_batch(&self, most: usize) -> usize {
        let joins = |entry: &&Entry| entry.is_in_order && entry.is_launched && entry.number <= self.awaited;
        self.queue.iter().take(most).take_while(joins).count().saturating_sub(1)
    }

    /// Records that a kernel ended with a failure.
    fn fails(&mut self, failure: Failure) {
        let (number, of) = (failure.number, failure.of);
        match self.failed.back_mut().filter(|last| (last.number, last.of.1 + 1) == (number, of.0)) {
            Some(last) => last.of.1 = of.1,
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
