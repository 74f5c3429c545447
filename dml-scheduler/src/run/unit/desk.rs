//! Computed packages whose results are in transfer to the collecting device, and the thread that collects
//! them.
//!
//! With a collector thread, the unit's own thread stays free for the next package. Without one, the unit's
//! thread collects while it has nothing to compute and holds no buffers.

use super::{Journey, Start, Trouble, Unit, UnitRun};
use crate::base::guard::Quiet;
use dml_core::internal::sync::{Condvar, Mutex};
use std::collections::VecDeque;

/// The state shared by the unit's thread and the collector thread.
#[derive(Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Computed packages whose results are not collected yet, in the order in which they ended.
    computed: VecDeque<Journey>,
    /// The record of the packages that were collected and are complete.
    run: UnitRun,
    /// The packages whose results could not be collected.
    troubles: Vec<Trouble>,
    /// Whether the unit has requested a collector thread.
    has_called: bool,
    /// Whether no collector thread was available.
    lacks_thread: bool,
    /// Number of threads that are collecting a package.
    collecting: usize,
    /// Whether the desk gets no further packages.
    is_closed: bool,
}

impl Desk {
    /// Queues a computed package for the collector thread, which collects and completes it.
    ///
    /// The first call requests that thread.
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

    /// Collects packages on the collector thread until the desk is closed and empty.
    pub(crate) fn collect_all(&self, unit: Unit<'_>, starter: &dyn Start) {
        let _within = unit.commander.enter();
        unit.span.within(|| self.collect_while(unit, starter, |state| state.is_closed));
    }

    /// Collects packages until the queue is empty and `ends` returns `true`.
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
                // The unit may be waiting for work that appears only after it has recovered this package.
                drop(state);
                unit.commander.call_back();
                state = self.state.lock();
            }
            self.changed.notify_all();
        }
    }

    /// Returns whether some package could not be collected and is not recovered yet.
    pub(super) fn has_trouble(&self) -> bool {
        !self.state.lock().troubles.is_empty()
    }

    /// Returns whether the unit's own thread has to collect.
    pub(super) fn lacks_thread(&self) -> bool {
        self.state.lock().lacks_thread
    }

    /// Collects the packages that no thread has begun to collect. The calling unit holds no buffers.
    pub(super) fn collect_rest(&self, unit: Unit<'_>, starter: &dyn Start) {
        self.collect_while(unit, starter, |_| true);
    }

    /// Collects the packages that no thread has begun to collect, and waits for the others.
    ///
    /// Returns the packages that could not be collected.
    pub(super) fn drain(&self, unit: Unit<'_>, starter: &dyn Start) -> Vec<Trouble> {
        self.collect_rest(unit, starter);
        let mut state = self.state.lock();
        while state.collecting > 0 {
            state = self.changed.wait(state);
        }
        std::mem::take(&mut state.troubles)
    }

    /// Closes the desk: the collector thread ends once the queue is empty.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Takes the record of the collected packages.
    pub(super) fn take_run(&self) -> UnitRun {
        std::mem::take(&mut self.state.lock().run)
    }
}
