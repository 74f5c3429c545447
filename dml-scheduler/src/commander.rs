//! The Commander: hands packages to units as they become free, and takes back what fails.
//!
//! The papers run it as a loop on a thread of its own, merged into the CPU's unit where that thread would take a core
//! from it. Here it is merged into every unit: a unit that wants work runs the loop's body itself, under a lock held
//! for the time of one decision. There is no message to wait for and no thread to schedule.
//!
//! # Source
//! "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", section 4.1 (Commander loop).

use crate::package::{Package, UnitId};
use crate::policy::{Assignment, Retirement, Splitter};
use dml_core::sync::{Condvar, Mutex};

/// Where units get their packages.
#[derive(Debug)]
pub(crate) struct Commander {
    splitter: Mutex<Splitter>,
    changed: Condvar,
}

impl Commander {
    pub(crate) fn new(splitter: Splitter) -> Self {
        Self { splitter: Mutex::new(splitter), changed: Condvar::new() }
    }

    /// The unit's next package. Sleeps while other units hold the rest of the work, which may come back; `None` when
    /// there is nothing more for it.
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

    /// A package's items are computed.
    pub(crate) fn complete(&self, package: &Package) {
        // A package that is not in flight was taken back when its unit retired: its items are another's by then.
        let _ = self.splitter.lock().complete(package);
        self.changed.notify_all();
    }

    /// A unit can do no more: its package and its share go to the others.
    pub(crate) fn retire(&self, unit: UnitId) -> Retirement {
        let retirement = self.splitter.lock().retire(unit);
        self.changed.notify_all();
        retirement
    }

    /// A completed package's results were lost: its items are to be computed again.
    pub(crate) fn reopen(&self, package: &Package) {
        // One that is not completed has no results to lose: its items are somebody's already.
        let _ = self.splitter.lock().reopen(package);
        self.changed.notify_all();
    }

    /// Whether the unit is still part of the run.
    pub(crate) fn is_active(&self, unit: UnitId) -> bool {
        self.splitter.lock().is_active(unit)
    }

    /// The items nobody computed.
    pub(crate) fn missing(&self) -> u64 {
        let splitter = self.splitter.lock();
        splitter.work() - splitter.completed()
    }
}
