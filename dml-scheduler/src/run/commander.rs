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
use dml_core::sync::{Arc, Condvar, Mutex, MutexGuard};
use dml_core::{Acquire, Grants};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a thread of a run polls for something to do before it sleeps. The others are at their last packages, and a sleeping thread would be
/// woken late; a polling one takes a core. (`dml bench never-loses`, rows below 1 ms)
pub(crate) const POLLS: Duration = Duration::from_micros(300);

/// Hands out the packages of a run.
#[derive(Debug)]
pub(crate) struct Commander {
    splitter: Mutex<Splitter>,
    changed: Condvar,
    /// How often it was told that there may be something else to do.
    told: AtomicU64,
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
        Self { splitter: Mutex::new(splitter), changed: Condvar::new(), told: AtomicU64::new(0), cancel }
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

    /// Returns what a unit with nothing in flight does next. Waits while other units hold the rest of the work, which may
    /// come back, and while the unit is not called back.
    pub(crate) fn next(&self, unit: UnitId, begun: Instant, is_called_back: impl Fn() -> bool) -> Next {
        let since = Instant::now();
        let mut splitter = self.splitter.lock();
        loop {
            if is_called_back() {
                return Next::CalledBack;
            }
            match self.assign(&mut splitter, unit, begun) {
                Next::Later if since.elapsed() < POLLS => splitter = self.poll(splitter, since),
                Next::Later => splitter = self.changed.wait(splitter),
                next => return next,
            }
        }
    }

    /// Returns what a unit with packages in flight does next.
    pub(crate) fn next_now(&self, unit: UnitId, begun: Instant) -> Next {
        self.assign(&mut self.splitter.lock(), unit, begun)
    }

    fn assign(&self, splitter: &mut Splitter, unit: UnitId, begun: Instant) -> Next {
        if self.is_cancelled() {
            return Next::NoMore;
        }
        match splitter.assign_at(unit, begun.elapsed()) {
            Assignment::Package(package) => Next::Package(package),
            Assignment::NoMore => Next::NoMore,
            Assignment::Wait => Next::Later,
        }
    }

    /// Wakes the units that sleep, and tells those that poll, that there may be something else to do.
    fn tell(&self) {
        self.told.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// Polls until there may be something else to do, or for long enough. Others have the lock and the core meanwhile.
    fn poll<'a>(&'a self, splitter: MutexGuard<'a, Splitter>, since: Instant) -> MutexGuard<'a, Splitter> {
        let told = self.told.load(Ordering::Acquire);
        drop(splitter);
        while self.told.load(Ordering::Acquire) == told && since.elapsed() < POLLS {
            std::thread::yield_now();
        }
        self.splitter.lock()
    }

    /// Wakes the units that sleep in [`Commander::next`]: one is called back, or the run is cancelled.
    pub(crate) fn call_back(&self) {
        // A unit that has looked, and does not sleep yet, holds the lock.
        drop(self.splitter.lock());
        self.tell();
    }

    /// Changes the splitter, and returns the units that were left out so far, and are to begin now. A cancelled run starts none.
    fn change(&self, change: impl FnOnce(&mut Splitter)) -> Vec<UnitId> {
        let mut splitter = self.splitter.lock();
        change(&mut splitter);
        let called = if self.is_cancelled() { Vec::new() } else { splitter.called_up(Duration::ZERO) };
        drop(splitter);
        self.tell();
        called
    }

    /// The units that the policy calls up before any package, or while the first is under way. A cancelled run starts none.
    pub(crate) fn called_up(&self, now: Duration) -> Vec<UnitId> {
        if self.is_cancelled() { Vec::new() } else { self.splitter.lock().called_up(now) }
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
        self.splitter.lock().reopen(package).expect("the unit has computed it");
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
        self.splitter.lock().completed_by_unit().collect()
    }

    /// The number of items that no unit computed.
    pub(crate) fn missing(&self) -> u64 {
        let splitter = self.splitter.lock();
        splitter.work() - splitter.completed()
    }
}
