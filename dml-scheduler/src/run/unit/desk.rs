//! Computed packages whose results are on their way to the collecting device, and the thread that brings them there.
//!
//! If there is no such thread, the unit's own thread collects while it has nothing to compute and holds nothing. Otherwise it stays free for the next package.

use super::{Journey, Start, Trouble, Unit, UnitRun};
use crate::base::guard::Quiet;
use dml_core::sync::{Condvar, Mutex};
use std::collections::VecDeque;

/// What the thread that computes and the thread that collects share.
#[derive(Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Computed packages, in the order in which they ended.
    computed: VecDeque<Journey>,
    /// What was collected, and is complete.
    run: UnitRun,
    /// What could not be collected.
    troubles: Vec<Trouble>,
    /// Whether a thread was asked for that collects.
    has_called: bool,
    /// Whether no thread was to be had for that.
    lacks_thread: bool,
    /// How many threads are bringing a package.
    collecting: usize,
    /// Whether no further package will be computed.
    is_closed: bool,
}

impl Desk {
    /// Hands over a computed package. Another thread collects it and those after it, and completes them.
    pub(super) fn hand_in(&self, unit: Unit<'_>, journey: Journey, starter: &dyn Start) {
        let mut state = self.state.lock();
        state.computed.push_back(journey);
        let begins = !std::mem::replace(&mut state.has_called, true);
        drop(state);
        self.changed.notify_all();
        if begins && !starter.collect(unit.id) {
            self.state.lock().lacks_thread = true;
        }
    }

    /// The thread that collects: until the desk is closed and empty.
    pub(crate) fn collect_all(&self, unit: Unit<'_>, starter: &dyn Start) {
        let _within = unit.commander.enter();
        unit.span.within(|| self.collect_while(unit, starter, |state| state.is_closed));
    }

    /// Collects package after package, until there is none and `ends` says that none will come.
    fn collect_while(&self, unit: Unit<'_>, starter: &dyn Start, ends: impl Fn(&State) -> bool) {
        let mut state = self.state.lock();
        loop {
            let Some(journey) = state.computed.pop_front() else {
                if ends(&state) {
                    return;
                }
                state = self.changed.wait(state);
                continue;
            };
            state.collecting += 1;
            drop(state);
            let mut done = UnitRun::default();
            let trouble = match journey.span.within(|| unit.collect(&journey.package)) {
                Ok(()) => {
                    unit.complete(journey, &mut done, starter);
                    None
                }
                Err(error) => Some(Trouble { journey, error: Quiet::new(error), is_computed: true }),
            };
            state = self.state.lock();
            state.run.packages.append(&mut done.packages);
            state.collecting -= 1;
            if let Some(trouble) = trouble {
                state.troubles.push(trouble);
                // The unit may be waiting for work, of which there is none before this is dealt with.
                drop(state);
                unit.commander.call_back();
                state = self.state.lock();
            }
            self.changed.notify_all();
        }
    }

    /// Returns whether some package could not be collected.
    pub(super) fn has_trouble(&self) -> bool {
        !self.state.lock().troubles.is_empty()
    }

    /// Whether the unit's own thread is to collect.
    pub(super) fn lacks_thread(&self) -> bool {
        self.state.lock().lacks_thread
    }

    /// Collects what nobody has begun to bring. The thread of the unit holds nothing meanwhile.
    pub(super) fn collect_rest(&self, unit: Unit<'_>, starter: &dyn Start) {
        self.collect_while(unit, starter, |_| true);
    }

    /// Collects what nobody has begun to bring, and waits for the rest. Returns what could not be collected.
    pub(super) fn drain(&self, unit: Unit<'_>, starter: &dyn Start) -> Vec<Trouble> {
        self.collect_rest(unit, starter);
        let mut state = self.state.lock();
        while state.collecting > 0 {
            state = self.changed.wait(state);
        }
        std::mem::take(&mut state.troubles)
    }

    /// Ends the thread, once nothing is on its way.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// What was collected.
    pub(super) fn take_run(&self) -> UnitRun {
        std::mem::take(&mut self.state.lock().run)
    }
}
