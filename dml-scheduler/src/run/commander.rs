//! The Commander: hands packages to units as they become free, and takes failed packages back.
//!
//! The papers run the Commander as a loop on its own thread, or merge it into the CPU's unit where that thread would
//! take a core. Here it is merged into every unit. A unit that wants work runs the loop's body itself, under a lock
//! held for one decision. No messages and no extra thread are needed.
//!
//! # Source
//! "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", section 4.1 (Commander loop).

use crate::base::cancel::{Cancel, Within};
use crate::base::package::{Package, UnitId};
use crate::kernel::KernelError;
use crate::policy::{Assignment, Computed, Splitter};
use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{Acquire, Grants};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a thread of a run polls for something to do before it sleeps. The others are at their last packages, and a sleeping thread would be
/// woken late; a polling one takes a core. (`dml bench never-loses`, rows below 1 ms)
pub(crate) const POLLS: Duration = Duration::from_micros(300);

/// Hands out the packages of a run.
#[derive(Debug)]
pub(crate) struct Commander {
    splitter: Mutex<Splitter>,
    /// The packages that each unit has completed, and their items. The policy's code may ask for them, so the splitter's lock is not needed.
    counts: Mutex<Vec<(u64, u64)>>,
    /// How often something changed that may give a unit something to do.
    changes: AtomicU64,
    /// Where units sleep between two changes.
    sleep: Mutex<()>,
    changed: Condvar,
    /// Whether the policy has failed.
    has_failed: AtomicBool,
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
        Self {
            counts: Mutex::new(splitter.completed_by_unit().collect()),
            splitter: Mutex::new(splitter),
            changes: AtomicU64::new(0),
            sleep: Mutex::new(()),
            changed: Condvar::new(),
            has_failed: AtomicBool::new(false),
            cancel,
        }
    }

    /// Returns whether the run was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.is_cancelled())
    }

    /// Returns whether no further package is handed out: the run was cancelled, or its policy has failed.
    pub(crate) fn is_stopped(&self) -> bool {
        self.has_failed.load(Ordering::Acquire) || self.is_cancelled()
    }

    /// Returns why the policy has failed, if it has.
    pub(crate) fn policy_failure(&self) -> Option<String> {
        self.splitter.lock().policy().failure()
    }

    /// Waits for a request of the run, as long as the run is not cancelled.
    ///
    /// # Errors
    /// [`Interrupted`](crate::base::cancel::Interrupted) after a cancellation, or what the request ends with.
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

    /// Returns what a unit with nothing in flight does next. Waits while other units hold the rest of the work, which may
    /// come back, and while the unit is not called back.
    pub(crate) fn next(&self, unit: UnitId, begun: Instant, is_called_back: impl Fn() -> bool) -> Next {
        let since = Instant::now();
        loop {
            // What changes after this look ends the wait below.
            let seen = self.changes.load(Ordering::Acquire);
            if is_called_back() {
                return Next::CalledBack;
            }
            match self.next_now(unit, begun) {
                Next::Later => self.wait_for_change(seen, since),
                next => return next,
            }
        }
    }

    /// Returns what a unit with packages in flight does next.
    pub(crate) fn next_now(&self, unit: UnitId, begun: Instant) -> Next {
        if self.is_stopped() {
            return Next::NoMore;
        }
        let mut splitter = self.splitter.lock();
        let assignment = splitter.assign_at(unit, begun.elapsed());
        if self.note_failure(&splitter) {
            if let Assignment::Package(package) = &assignment {
                splitter.give_back(package).expect("the unit has it");
            }
            return Next::NoMore;
        }
        match assignment {
            Assignment::Package(package) => Next::Package(package),
            Assignment::NoMore => Next::NoMore,
            Assignment::Wait => Next::Later,
        }
    }

    /// Stops the run if the policy has failed, and returns whether it has.
    fn note_failure(&self, splitter: &Splitter) -> bool {
        let has_failed = splitter.policy().failure().is_some();
        if has_failed && !self.has_failed.swap(true, Ordering::AcqRel) {
            self.tell();
        }
        has_failed
    }

    /// Wakes the units that wait in [`Commander::next`], to look again.
    fn tell(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        // A unit that has looked, and does not sleep yet, has this lock.
        drop(self.sleep.lock());
        self.changed.notify_all();
    }

    /// Waits until something has changed since `seen`: polls first, then sleeps.
    fn wait_for_change(&self, seen: u64, since: Instant) {
        while since.elapsed() < POLLS {
            if self.changes.load(Ordering::Acquire) != seen {
                return;
            }
            std::thread::yield_now();
        }
        let mut sleep = self.sleep.lock();
        while self.changes.load(Ordering::Acquire) == seen {
            sleep = self.changed.wait(sleep);
        }
    }

    /// Wakes the units that wait in [`Commander::next`]: one is called back, or the run is cancelled. It takes no lock under which
    /// the policy runs.
    pub(crate) fn call_back(&self) {
        self.tell();
    }

    /// Changes the splitter, and returns the units that were left out so far, and are to begin now. A run that is stopped starts none.
    fn change(&self, change: impl FnOnce(&mut Splitter)) -> Vec<UnitId> {
        let mut splitter = self.splitter.lock();
        change(&mut splitter);
        let called = if self.is_stopped() { Vec::new() } else { splitter.called_up(Duration::ZERO) };
        self.note_change(&splitter);
        drop(splitter);
        self.tell();
        called
    }

    /// Publishes what the splitter counts, and whether its policy has failed.
    fn note_change(&self, splitter: &Splitter) {
        let mut counts = self.counts.lock();
        counts.clear();
        counts.extend(splitter.completed_by_unit());
        drop(counts);
        self.note_failure(splitter);
    }

    /// The units that the policy calls up before any package, or while the first is under way. A run that is stopped starts none.
    pub(crate) fn called_up(&self, now: Duration) -> Vec<UnitId> {
        if self.is_stopped() {
            return Vec::new();
        }
        let mut splitter = self.splitter.lock();
        let called = splitter.called_up(now);
        self.note_failure(&splitter);
        called
    }

    /// Tells the policy that a package is computed, and that its results still travel. Returns the units that were left out so far, and are
    /// to begin now.
    ///
    /// # Panics
    /// As [`complete`](Self::complete).
    #[must_use]
    pub(crate) fn ended(&self, package: &Package, computed: Computed) -> Vec<UnitId> {
        self.change(|splitter| splitter.ended(package, computed).expect("the unit has it"))
    }

    /// Records that a package's items are computed. Returns the units that were left out so far, and are to begin now.
    ///
    /// # Panics
    /// When no unit has the package. A unit completes its packages before it retires.
    #[must_use]
    pub(crate) fn complete(&self, package: &Package, computed: Computed) -> Vec<UnitId> {
        self.change(|splitter| splitter.complete_with(package, computed).expect("the unit has it"))
    }

    /// Retires a unit: the other units get its packages and its share. Returns the units that were left out so far, and are
    /// to begin now.
    pub(crate) fn retire(&self, unit: UnitId) -> Vec<UnitId> {
        self.change(|splitter| splitter.retire(unit))
    }

    /// Leaves a unit out, as [`retire`](Self::retire) does, unless the others cannot finish the work.
    pub(crate) fn spare(&self, unit: UnitId) -> Vec<UnitId> {
        self.change(|splitter| splitter.spare(unit))
    }

    /// Reopens a completed package whose results were lost: its items are computed again.
    ///
    /// # Panics
    /// When the package is not completed. The director reopens each recorded package only once.
    pub(crate) fn reopen(&self, package: &Package) {
        let mut splitter = self.splitter.lock();
        splitter.reopen(package).expect("the unit has computed it");
        self.note_change(&splitter);
        drop(splitter);
        self.tell();
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
        self.counts.lock().clone()
    }

    /// The number of items that no unit computed.
    pub(crate) fn missing(&self) -> u64 {
        let splitter = self.splitter.lock();
        splitter.work() - splitter.completed()
    }
}
