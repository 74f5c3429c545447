//! The Commander: hands packages to units as they become free, and takes failed packages back.
//!
//! The papers run the Commander as a loop on its own thread, or merge it into the CPU's unit where that
//! thread would occupy a core. Here it is merged into every unit. A unit that requests work runs the loop's
//! body itself, under a lock held for one decision. This needs no messages and no extra thread.
//!
//! # Source
//! "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", section 4.1 (Commander
//! loop).

use crate::base::cancel::{Cancel, Within};
use crate::base::package::{Package, UnitId};
use crate::kernel::KernelError;
use crate::policy::{Assignment, Computed, Splitter};
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use dml_core::{Acquire, Grants};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an idle thread of a run polls for work before it sleeps.
///
/// Near the end of a run, the other units compute their last packages, and a sleeping thread would wake late.
/// A polling thread occupies a core. (`dml bench never-loses`, rows below 1 ms)
pub(crate) const POLLS: Duration = Duration::from_micros(300);

/// Hands out the packages of a run.
#[derive(Debug)]
pub(crate) struct Commander {
    splitter: Mutex<Splitter>,
    /// The number of packages that each unit has completed, and the number of their items. They have a lock
    /// of their own, because the policy runs under the splitter's lock and may read the run's progress.
    counts: Mutex<Vec<(u64, u64)>>,
    /// Number of changes so far that may give a unit new work.
    changes: AtomicU64,
    /// The lock under which units sleep until the next change.
    sleep: Mutex<()>,
    changed: Condvar,
    /// Why the policy has failed, if it has.
    failure: OnceLock<String>,
    /// The run's cancellation, if it can be cancelled.
    cancel: Option<Arc<Cancel>>,
}

/// What a unit does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Compute this package.
    Package(Package),
    /// No package is available now: finish a package in flight, then ask again.
    Later,
    /// The unit's own condition ended its wait for work: some results could not be collected.
    CalledBack,
    /// Stop: the unit gets no further package.
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
            failure: OnceLock::new(),
            cancel,
        }
    }

    /// Returns whether the run was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.is_cancelled())
    }

    /// Returns whether the run hands out no further package: it was cancelled, or its policy has failed.
    pub(crate) fn is_stopped(&self) -> bool {
        self.failure.get().is_some() || self.is_cancelled()
    }

    /// Returns why the policy has failed, if it has.
    pub(crate) fn policy_failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Waits for a request of the run until it is granted or the run is cancelled.
    ///
    /// # Errors
    /// [`Interrupted`](crate::base::cancel::Interrupted) after a cancellation, or the error of the request.
    pub(crate) fn wait_for(&self, acquire: Acquire) -> Result<Grants, KernelError> {
        match &self.cancel {
            Some(cancel) => cancel.wait(acquire),
            None => Ok(acquire.wait()?),
        }
    }

    /// Marks this thread as a thread of the run, if the run can be cancelled.
    pub(crate) fn enter(&self) -> Option<Within> {
        self.cancel.as_ref().map(|cancel| cancel.enter())
    }

    /// Returns what a unit with nothing in flight does next.
    ///
    /// Waits while other units hold the rest of the work, because that work may come back. `is_called_back`
    /// ends the wait.
    pub(crate) fn next(&self, unit: UnitId, begun: Instant, is_called_back: impl Fn() -> bool) -> Next {
        let since = Instant::now();
        loop {
            // Any change after this load ends the wait below.
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

    /// Returns what a unit does next, without waiting.
    pub(crate) fn next_now(&self, unit: UnitId, begun: Instant) -> Next {
        if self.is_stopped() {
            return Next::NoMore;
        }
        let mut splitter = self.splitter.lock();
        let assignment = splitter.assign_at(unit, begun.elapsed());
        self.note_failure(&splitter);
        // The policy may have failed, or cancelled the run.
        if self.is_stopped() {
            if let Assignment::Package(package) = &assignment {
                splitter.give_back(package).expect("the package was just handed out");
            }
            return Next::NoMore;
        }
        match assignment {
            Assignment::Package(package) => Next::Package(package),
            Assignment::NoMore => Next::NoMore,
            Assignment::Wait => Next::Later,
        }
    }

    /// Stops the run if the policy has failed. Its first failure counts.
    fn note_failure(&self, splitter: &Splitter) {
        if let Some(cause) = splitter.policy().failure()
            && self.failure.set(cause).is_ok()
        {
            self.tell();
        }
    }

    /// Wakes the units that wait in [`Commander::next`], so that they ask again.
    fn tell(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        // A unit that has read `changes` and does not sleep yet holds this lock.
        drop(self.sleep.lock());
        self.changed.notify_all();
    }

    /// Waits until `changes` differs from `seen`: polls first, then sleeps.
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

    /// Wakes the units that wait in [`Commander::next`]: one is called back, or the run is cancelled.
    ///
    /// It takes no lock under which the policy runs.
    pub(crate) fn call_back(&self) {
        self.tell();
    }

    /// Changes the splitter, and returns the units that were left out so far and begin now. A stopped run
    /// starts none.
    /// The units are called up at time `now`, or at the latest time that the splitter knows.
    fn change(&self, now: Duration, change: impl FnOnce(&mut Splitter)) -> Vec<UnitId> {
        let mut splitter = self.splitter.lock();
        change(&mut splitter);
        let called = if self.is_stopped() { Vec::new() } else { splitter.called_up(now) };
        self.note_change(&splitter);
        drop(splitter);
        self.tell();
        called
    }

    /// Publishes the splitter's counts, and whether its policy has failed.
    fn note_change(&self, splitter: &Splitter) {
        let mut counts = self.counts.lock();
        counts.clear();
        counts.extend(splitter.completed_by_unit());
        drop(counts);
        self.note_failure(splitter);
    }

    /// Returns the units that the policy calls up at time `now`. A stopped run starts none.
    ///
    /// Used before any package, and while the first one is in progress.
    pub(crate) fn called_up(&self, now: Duration) -> Vec<UnitId> {
        if self.is_stopped() {
            return Vec::new();
        }
        let mut splitter = self.splitter.lock();
        let called = splitter.called_up(now);
        self.note_failure(&splitter);
        called
    }

    /// Tells the policy that a package is computed while its results are still in transfer.
    ///
    /// Returns the units that were left out so far and begin now.
    ///
    /// # Panics
    /// As [`complete`](Self::complete).
    #[must_use]
    pub(crate) fn ended(&self, package: &Package, computed: Computed) -> Vec<UnitId> {
        let now = computed.ended;
        self.change(now, |splitter| splitter.ended(package, computed).expect("the package is in flight"))
    }

    /// Records that a package's items are computed. Returns the units that were left out so far and begin
    /// now.
    ///
    /// # Panics
    /// When the package is not in flight. A unit completes its packages before it retires.
    #[must_use]
    pub(crate) fn complete(&self, package: &Package, computed: Computed) -> Vec<UnitId> {
        let now = computed.done;
        self.change(now, |splitter| {
            splitter.complete_with(package, computed).expect("the package is in flight");
        })
    }

    /// Retires a unit: the other units get its packages and its share.
    ///
    /// Returns the units that were left out so far and begin now.
    pub(crate) fn retire(&self, unit: UnitId, now: Duration) -> Vec<UnitId> {
        self.change(now, |splitter| splitter.retire(unit))
    }

    /// Leaves a unit out as [`retire`](Self::retire) does, but lets it return if the others cannot finish the
    /// work.
    pub(crate) fn spare(&self, unit: UnitId, now: Duration) -> Vec<UnitId> {
        self.change(now, |splitter| splitter.spare(unit))
    }

    /// Reopens a completed package whose results were lost, so that its items are computed again.
    ///
    /// # Panics
    /// When the package is not completed. The director reopens each recorded package only once.
    pub(crate) fn reopen(&self, package: &Package) {
        let mut splitter = self.splitter.lock();
        splitter.reopen(package).expect("the package is completed");
        self.note_change(&splitter);
        drop(splitter);
        self.tell();
    }

    /// Lets all units that were left out take part. Returns whether there were any.
    pub(crate) fn call_up_all(&self) -> bool {
        self.splitter.lock().call_up_all()
    }

    /// Returns whether the unit is left out and was not called up.
    pub(crate) fn is_left_out(&self, unit: UnitId) -> bool {
        self.splitter.lock().is_benched(unit)
    }

    /// Returns whether the unit takes part in the run: neither retired nor left out.
    pub(crate) fn is_active(&self, unit: UnitId) -> bool {
        let splitter = self.splitter.lock();
        splitter.is_active(unit) && !splitter.is_benched(unit)
    }

    /// Returns the number of packages that each unit has completed, and the number of their items.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        self.counts.lock().clone()
    }

    /// Returns the number of items that are not computed.
    pub(crate) fn missing(&self) -> u64 {
        let splitter = self.splitter.lock();
        splitter.work() - splitter.completed()
    }
}
