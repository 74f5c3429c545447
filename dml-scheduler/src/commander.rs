//! The Commander: hands packages to units as they become free, and takes failed packages back.
//!
//! The papers run the Commander as a loop on its own thread, or merge it into the CPU's unit where that thread would
//! take a core. Here it is merged into every unit. A unit that wants work runs the loop's body itself, under a lock
//! held for one decision. No messages and no extra thread are needed.
//!
//! # Source
//! "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", section 4.1 (Commander loop).

use crate::package::{Package, UnitId};
use crate::policy::{Assignment, Splitter};
use dml_core::sync::{Condvar, Mutex};

/// Hands out the packages of a run.
#[derive(Debug)]
pub(crate) struct Commander {
    splitter: Mutex<Splitter>,
    changed: Condvar,
}

impl Commander {
    pub(crate) fn new(splitter: Splitter) -> Self {
        Self { splitter: Mutex::new(splitter), changed: Condvar::new() }
    }

    /// Returns the unit's next package. Sleeps while other units hold the rest of the work, which may come back.
    /// Returns `None` when the unit gets no more work.
    pub(crate) fn next(&self, unit: UnitId) -> Option<Package> {
        let mut splitter = self.splitter.lock();
        loop {
            match splitter.assign(unit) {
                Assignment::Package(package) => return Some(package),
                Assignment::NoMore => return None,
                Assignment::Wait => splitter = self.changed.wait(splitter),
            }
        }
    }

    /// Records that a package's items are computed.
    ///
    /// # Panics
    /// When no unit has the package. A unit completes its packages before it retires.
    pub(crate) fn complete(&self, package: &Package) {
        self.splitter.lock().complete(package).expect("the unit has it");
        self.changed.notify_all();
    }

    /// Retires a unit: the other units get its package and its share.
    pub(crate) fn retire(&self, unit: UnitId) {
        self.splitter.lock().retire(unit);
        self.changed.notify_all();
    }

    /// Reopens a completed package whose results were lost: its items are computed again.
    ///
    /// # Panics
    /// When the package is not completed. The director reopens each recorded package only once.
    pub(crate) fn reopen(&self, package: &Package) {
        self.splitter.lock().reopen(package).expect("the unit has computed it");
        self.changed.notify_all();
    }

    /// Returns whether the unit is still part of the run.
    pub(crate) fn is_active(&self, unit: UnitId) -> bool {
        self.splitter.lock().is_active(unit)
    }

    /// The number of items that no unit computed.
    pub(crate) fn missing(&self) -> u64 {
        let splitter = self.splitter.lock();
        splitter.work() - splitter.completed()
    }
}
