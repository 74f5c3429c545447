//! Launches on behalf of submitters that are far ahead of their device.
//!
//! A submitter then goes on while the framework takes its launch, which for a small kernel takes longer than
//! the rest of the submission. A submitter that is not ahead launches itself, because waking another thread
//! takes longer.

use super::{Entry, Helper, OnStream, Refused, State, Stream, Work, is_on_stream};
use crate::base::guard::guard;
use crate::base::helpers::help;
use crate::base::sync::atomic::Ordering;
use crate::base::sync::{Arc, MutexGuard};
use smallvec::SmallVec;
use std::time::{Duration, Instant};

/// Number of kernels in the queue from which on launches are left to the launching thread. A model has few.
pub(super) const AHEAD: usize = if cfg!(dml_loom) { 1 } else { 16 };
/// Maximum number of kernels that are launched in one round of the stream's lock.
const MOST_AT_ONCE: usize = 8;
/// The time after which a round of launches ends, so that the kernels launched in it may.
const ROUND: Duration = Duration::from_micros(20);

/// Kernels to be launched, without those that will end as failed.
type Taken = SmallVec<[(u64, Option<Box<dyn Work>>); MOST_AT_ONCE]>;

impl Stream {
    /// Returns whether the launch of a kernel that is granted now is left to the launching thread. It is, if
    /// launches before it are, if its submitter is ahead, or if a launch has failed.
    pub(crate) fn launches_aside(&self) -> bool {
        // A kernel that the caller's one depends on has been pushed before the caller got its grants.
        self.launches_aside.load(Ordering::Acquire)
    }

    /// Records whether launches are left to the launching thread. To be called after each change of what that
    /// depends on, and after a failure is counted.
    pub(super) fn tell_where_to_launch(&self, state: &State) {
        let aside = !state.to_launch.is_empty() || state.is_refusing || state.queue.len() >= AHEAD;
        if self.launches_aside.load(Ordering::Relaxed) != aside {
            self.launches_aside.store(aside, Ordering::Release);
        }
    }

    /// Waits until all launches that are left to the stream are made, for a caller that launches itself.
    /// Returns whether it may, because none of them failed.
    pub(crate) fn wait_for_launches(self: &Arc<Self>) -> Result<bool, Refused> {
        let mut state = self.state.lock();
        if is_on_stream() && !state.to_launch.is_empty() {
            return Err(Refused);
        }
        if let Some(last) = state.to_launch.back().copied() {
            state = self.reaped(state, last);
        }
        state.await_launches += 1;
        while !state.to_launch.is_empty() {
            state = self.has_ended.wait(state);
        }
        state.await_launches -= 1;
        Ok(!state.is_refusing)
    }

    /// Wakes or starts the launching thread, if it has to launch next. Without a thread for it, this one
    /// launches.
    pub(super) fn have_launched<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        if !state.launches_next() {
            return state;
        }
        match state.launching {
            Helper::Sleeps => {
                state.launching = Helper::Runs;
                self.is_to_launch.notify_all();
                state
            }
            Helper::None => {
                state = self.noticed(state);
                state.launching = Helper::Runs;
                drop(state);
                let stream = self.clone();
                let is_started = help(move || stream.launch_all()).is_ok();
                let state = self.state.lock();
                if is_started { state } else { self.launch_here(state) }
            }
            _ => state,
        }
    }

    /// Launches what is to be launched, in its order, up to the end of the platform.
    fn launch_all(&self) {
        let mut state = self.state.lock();
        loop {
            if state.launches_next() {
                state = self.launch_next(state);
            } else if state.is_over {
                return;
            } else {
                state.launching = Helper::Sleeps;
                state = self.is_to_launch.wait(state);
            }
        }
    }

    /// Launches on this thread what is to be launched, because there is no launching thread.
    pub(super) fn launch_here<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.launching = Helper::Runs;
        while state.launches_next() {
            state = self.launch_next(state);
        }
        state.launching = Helper::None;
        state
    }

    /// Launches the next kernels, several in one round of the lock. One that will end as failed is not
    /// launched: it would read what those before it have not written.
    pub(super) fn launch_next<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let mut taken = state.take_to_launch();
        drop(state);
        let (on_stream, begun) = (OnStream::enter(), Instant::now());
        let (mut launched, mut has_failed) = (0, false);
        while launched < taken.len() && (launched == 0 || cfg!(dml_loom) || begun.elapsed() < ROUND) {
            let is_followed = taken.get(launched + 1).is_some_and(|(_, work)| work.is_some());
            if let (Some(work), false) = (&mut taken[launched].1, has_failed) {
                has_failed = !guard(|| work.launch(is_followed)).unwrap_or(false);
            }
            launched += 1;
        }
        drop(on_stream);
        let mut state = self.state.lock();
        state.is_refusing |= has_failed;
        state.put_back(taken, launched);
        self.tell_where_to_launch(&state);
        if state.to_launch.is_empty() && state.await_launches > 0 {
            self.has_ended.notify_all();
        }
        if state.reaper == Helper::Sleeps {
            self.wake(&mut state);
        }
        if state.launching == Helper::Sleeps && state.launches_next() {
            state.launching = Helper::Runs;
            self.is_to_launch.notify_all();
        }
        state
    }
}

impl State {
    /// Takes the next kernels that are to be launched, as far as no launch waits behind another one: the
    /// kernels before it could not end meanwhile.
    fn take_to_launch(&mut self) -> Taken {
        let fails = self.failing.is_some() || self.is_refusing;
        let (mut taken, numbers) = (Taken::new(), std::mem::take(&mut self.to_launch));
        for &number in numbers.iter().take(MOST_AT_ONCE) {
            let Some(entry) = self.entry(number) else { break };
            if !taken.is_empty() && (entry.computes || entry.waits) {
                break;
            }
            let work = if fails || entry.is_doomed { None } else { entry.work.take() };
            taken.push((number, work));
            if entry.computes {
                break;
            }
        }
        self.to_launch = numbers;
        taken
    }

    /// Records that the first kernels that were taken are launched, and returns the others.
    fn put_back(&mut self, taken: Taken, launched: usize) {
        for (place, (number, work)) in taken.into_iter().enumerate() {
            let Some(entry) = self.entry(number) else { continue };
            entry.work = work.or(entry.work.take());
            if place < launched {
                entry.is_launched = true;
                self.to_launch.pop_front();
            }
        }
    }

    /// Returns whether the launching thread has to launch next.
    pub(super) fn launches_next(&mut self) -> bool {
        let next = self.to_launch.front().copied();
        next.and_then(|number| self.entry(number)).is_some_and(|entry| !entry.computes)
    }

    /// Returns the entry of a kernel that has not ended.
    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let first = self.queue.front()?.number;
        self.queue.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }
}
