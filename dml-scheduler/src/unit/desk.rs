//! Computed packages whose results are on their way to the collecting device, and the thread that brings them there.

use super::{Journey, Start, Trouble, Unit, UnitRun};
use crate::guard::Quiet;
use dml_core::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::thread::Scope;

/// What the thread that computes and the thread that collects share.
#[derive(Default)]
pub(super) struct Desk {
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
    has_thread: bool,
    /// Whether the thread is bringing a package.
    is_collecting: bool,
    /// Whether no further package will be computed.
    is_closed: bool,
}

impl Desk {
    /// Hands over a computed package. A thread of its own collects it and those after it, and completes them.
    pub(super) fn hand_in<'scope>(
        &'scope self,
        unit: Unit<'scope>,
        journey: Journey,
        scope: &'scope Scope<'scope, '_>,
        starter: &'scope dyn Start,
    ) {
        let mut state = self.state.lock();
        state.computed.push_back(journey);
        let begins = !std::mem::replace(&mut state.has_thread, true);
        drop(state);
        self.changed.notify_all();
        if begins {
            let name = format!("dml collects from {}", unit.name());
            let thread = std::thread::Builder::new().name(name);
            if thread.spawn_scoped(scope, move || self.collect_all(unit, starter)).is_err() {
                // Without a thread, the unit's own does it before it goes on.
                self.state.lock().has_thread = false;
                self.collect_while(unit, starter, |state| state.computed.is_empty());
            }
        }
    }

    /// The thread: collects until the desk is closed and empty.
    fn collect_all(&self, unit: Unit<'_>, starter: &dyn Start) {
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
            state.is_collecting = true;
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
            state.is_collecting = false;
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

    /// Waits until nothing is on its way, and returns what could not be collected.
    pub(super) fn drain(&self) -> Vec<Trouble> {
        let mut state = self.state.lock();
        while state.is_collecting || !state.computed.is_empty() {
            state = self.changed.wait(state);
        }
        std::mem::take(&mut state.troubles)
    }

    /// Ends the thread, once nothing is on its way.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// What was collected by the thread.
    pub(super) fn into_run(self) -> UnitRun {
        self.state.into_inner().run
    }
}
