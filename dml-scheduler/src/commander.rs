//! The Commander: hands packages to units as they become free, and takes failed packages back.
//!
//! The papers run the Commander as a loop on its own thread, or merge it into the CPU's unit where that thread would
//! take a core. Here it is merged into every unit. A unit that wants work runs the loop's body itself, under a lock
//! held for one decision. No messages and no extra thread are needed.
//!
//! # Source
//! "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", section 4.1 (Commander loop).

use crate::kernel::KernelError;
use crate::package::{Package, UnitId};
use crate::policy::{Assignment, Computed, Splitter};
use crate::running::{Cancel, Within};
use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{Acquire, Grants};
use std::time::Instant;

/// Hands out the packages of a run.
#[derive(Debug)]
pub(crate) struct Commander {
    splitter: Mutex<Splitter>,
    changed: Condvar,
    /// How the run is cancelled, if it can be.
    cancel: Option<Arc<Cancel>>,
}

/// What a unit does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Compute this package.
    Package(Package),
    /// There is nothing now: end a package in flight, then ask again.
    Later,
    /// Something of the unit's own wants its attention.
    CalledBack,
    /// Stop.
    NoMore,
}

impl Commander {
    pub(crate) fn new(splitter: Splitter, cancel: Option<Arc<Cancel>>) -> Self {
        Self { splitter: Mutex::new(splitter), changed: Condvar::new(), cancel }
    }

    /// Returns whether the run was cancelled: nobody gets any further package.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.is_cancelled())
    }

    /// Waits for a request of the run, as long as the run is not cancelled.
    ///
    /// # Errors
    /// [`Interrupted`](crate::running::Interrupted) after a cancellation, or what the request ends with.
    pub(crate) fn wait_for(&self, acquire: Acquire) -> Result<Grants, KernelError> {
        match &self.cancel {
            Some(cancel) => cancel.wait(acquire),
            None => Ok(acquire.wait()?),
        }
    }

    /// Marks this thread as one of the run, if the run was started.
    pub(crate) fn enter(&self) -> Option<Within> {
        self.cancel.as_ref().map(|cancel| cancel.enter())
    }

    /// Returns what a unit with nothing in flight does next. Sleeps while other units hold the rest of the work, which may
    /// come back, and while the unit is not called back.
    pub(crate) fn next(&self, unit: UnitId, begun: Instant, is_called_back: impl Fn() -> bool) -> Next {
        let mut splitter = self.splitter.lock();
        loop {
            if is_called_back() {
                return Next::CalledBack;
            }
            if self.is_cancelled() {
                return Next::NoMore;
            }
            match splitter.assign_at(unit, begun.elapsed()) {
                Assignment::Package(package) => return Next::Package(package),
                Assignment::NoMore => return Next::NoMore,
                Assignment::Wait => splitter = self.changed.wait(splitter),
            }
        }
    }

    /// Returns what a unit with packages in flight does next.
    pub(crate) fn next_now(&self, unit: UnitId, begun: Instant) -> Next {
        if self.is_cancelled() {
            return Next::NoMore;
        }
        match self.splitter.lock().assign_at(unit, begun.elapsed()) {
            Assignment::Package(package) => Next::Package(package),
            Assignment::NoMore => Next::NoMore,
            Assignment::Wait => Next::Later,
        }
    }

    /// Wakes the units that sleep in [`Commander::next`]: one is called back, or the run is cancelled.
    pub(crate) fn call_back(&self) {
        // Whoever has looked, and does not sleep yet, holds the lock.
        drop(self.splitter.lock());
        self.changed.notify_all();
    }

    /// Tells the policy that a package is computed, and that its results still travel. Returns the units that were left out so far, and are
    /// to begin now.
    ///
    /// # Panics
    /// As [`complete`](Self::complete).
    #[must_use]
    pub(crate) fn ended(&self, package: &Package, computed: Computed) -> Vec<UnitId> {
        let mut splitter = self.splitter.lock();
        splitter.ended(package, computed).expect("the unit has it");
        let called = self.called_up(&mut splitter);
        drop(splitter);
        self.changed.notify_all();
        called
    }

    /// Records that a package's items are computed. Returns the units that were left out so far, and are to begin now.
    ///
    /// # Panics
    /// When no unit has the package. A unit completes its packages before it retires.
    #[must_use]
    pub(crate) fn complete(&self, package: &Package, computed: Computed) -> Vec<UnitId> {
        let mut splitter = self.splitter.lock();
        splitter.complete_with(package, computed).expect("the unit has it");
        let called = self.called_up(&mut splitter);
        drop(splitter);
        self.changed.notify_all();
        called
    }

    /// Retires a unit: the other units get its packages and its share. Returns the units that were left out so far, and are
    /// to begin now.
    pub(crate) fn retire(&self, unit: UnitId) -> Vec<UnitId> {
        let mut splitter = self.splitter.lock();
        splitter.retire(unit);
        let called = self.called_up(&mut splitter);
        drop(splitter);
        self.changed.notify_all();
        called
    }

    /// The units that are to begin now. A cancelled run starts nobody.
    fn called_up(&self, splitter: &mut Splitter) -> Vec<UnitId> {
        if self.is_cancelled() { Vec::new() } else { splitter.called_up() }
    }

    /// Reopens a completed package whose results were lost: its items are computed again.
    ///
    /// # Panics
    /// When the package is not completed. The director reopens each recorded package only once.
    pub(crate) fn reopen(&self, package: &Package) {
        self.splitter.lock().reopen(package).expect("the unit has computed it");
        self.changed.notify_all();
    }

    /// Lets all units take part that were left out. Returns whether there were any.
    pub(crate) fn call_up_all(&self) -> bool {
        self.splitter.lock().call_up_all()
    }

    /// Returns whether the unit is left out, and was not called up.
    pub(crate) fn is_left_out(&self, unit: UnitId) -> bool {
        self.splitter.lock().is_benched(unit)
    }

    /// Returns whether the unit is still part of the run, and not left out.
    pub(crate) fn is_active(&self, unit: UnitId) -> bool {
        let splitter = self.splitter.lock();
        splitter.is_active(unit) && !splitter.is_benched(unit)
    }

    /// The packages that each unit has completed, and their items.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        self.splitter.lock().completed_by_unit().collect()
    }

    /// The number of items that no unit computed.
    pub(crate) fn missing(&self) -> u64 {
        let splitter = self.splitter.lock();
        splitter.work() - splitter.completed()
    }
}
