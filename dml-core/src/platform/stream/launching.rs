//! Launches on behalf of submitters that are far ahead of their device.
//!
//! A submitter then goes on while the framework takes its launch, which for a small kernel takes longer than
//! the rest of the submission. A submitter that is not ahead launches itself, because waking another thread
//! takes longer.

use super::{Entry, Helper, OnStream, Refused, State, Stream, is_on_stream};
use crate::base::guard::guard;
use crate::base::helpers::help;
use crate::base::sync::{Arc, MutexGuard};

/// Number of kernels in the queue from which on launches are left to the launching thread. A model has few.
const AHEAD: usize = if cfg!(dml_loom) { 1 } else { 16 };

impl Stream {
    /// Returns whether the launch of a kernel that is granted now is left to the launching thread. It is, if
    /// launches before it are, if its submitter is ahead, or if a launch has failed.
    pub(crate) fn launches_aside(&self) -> bool {
        let state = self.state.lock();
        !state.to_launch.is_empty() || state.is_refusing || state.queue.len() >= AHEAD
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

    /// Launches the next kernel. One that will end as failed is not launched: it would read what those before
    /// it have not written.
    pub(super) fn launch_next<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(&number) = state.to_launch.front() else { return state };
        let fails = state.failing.is_some() || state.is_refusing;
        let is_followed = state.to_launch.len() > 1;
        let Some(entry) = state.entry(number) else { return state };
        if !fails
            && !entry.is_doomed
            && let Some(mut work) = entry.work.take()
        {
            drop(state);
            let on_stream = OnStream::enter();
            let is_launched = guard(|| work.launch(is_followed)).unwrap_or(false);
            drop(on_stream);
            state = self.state.lock();
            state.is_refusing |= !is_launched;
            if let Some(entry) = state.entry(number) {
                entry.work = Some(work);
            }
        }
        if let Some(entry) = state.entry(number) {
            entry.is_launched = true;
        }
        state.to_launch.pop_front();
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
