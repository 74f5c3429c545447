//! A Coexecution Unit: the thread of one device. It takes packages, acquires their sub-buffers in canonical order, runs
//! them, and has their results brought to the collecting device.
//!
//! ```text
//!   next ──▶ acquire, launch, wait, release ──▶ collect ──▶ complete
//!                        │ fails                   │ fails
//!                        ▼                         ├── results readable ──▶ complete; they stay where they are
//!              losses noticed, old contents back ◀─┘ results lost
//!                        ├── another device is gone ──▶ tried again
//!                        └── else ──▶ retire: the package goes to the others
//! ```
//! A package whose results can be read is never computed again: its read-write arguments would be changed twice.

use crate::commander::Commander;
use crate::guard::{Quiet, guarded};
use crate::hooks::Hooks;
use crate::kernel::{Kernel, KernelError, NotStarted};
use crate::package::{Package, UnitId};
use crate::report::{PackageRecord, UnitFailure};
use dml_core::{AcquireError, DeviceId, DeviceSet, Grants, Operation, Platform};
use std::cell::Cell;
use std::error::Error;
use std::time::{Duration, Instant};

/// The context in which a unit works.
#[derive(Clone, Copy)]
pub(crate) struct Unit<'a> {
    pub(crate) id: UnitId,
    pub(crate) device: DeviceId,
    pub(crate) platform: &'a Platform,
    pub(crate) kernel: &'a Kernel,
    pub(crate) commander: &'a Commander,
    pub(crate) hooks: &'a dyn Hooks,
    pub(crate) collect_on: Option<DeviceId>,
    pub(crate) begun: Instant,
}

/// The record of what a unit did.
#[derive(Debug, Default)]
pub(crate) struct UnitRun {
    pub(crate) packages: Vec<PackageRecord>,
    pub(crate) busy: Duration,
    pub(crate) end: Duration,
    pub(crate) failure: Option<UnitFailure>,
}

/// How a package ended at a unit.
struct Ending {
    /// Whether the package's items are computed.
    is_computed: bool,
    /// Why the unit cannot go on, if it cannot.
    failure: Option<String>,
}

impl Unit<'_> {
    /// Works until the commander has no more packages for the unit, or until the unit fails. Appends to `run`.
    pub(crate) fn run(self, run: &mut UnitRun) {
        self.hooks.unit_start(self.id, self.device);
        while let Some(package) = self.commander.next(self.id) {
            let start = self.begun.elapsed();
            let ending = self.process(&package);
            if ending.is_computed {
                self.complete(&package, start, run);
            }
            if let Some(message) = ending.failure {
                self.commander.retire(self.id);
                run.failure = Some(UnitFailure { device: self.device, package, message });
                break;
            }
        }
        self.hooks.unit_end(self.id, self.device);
    }

    /// Computes a package and has its results collected. A panic on the way fails the unit: the kernel's error types
    /// and the arenas are foreign code, which may panic.
    fn process(&self, package: &Package) -> Ending {
        let is_computed = Cell::new(false);
        let outcome = guarded(|| self.attempt(package, &is_computed))
            .unwrap_or_else(|message| Err(format!("panic: {message}")));
        Ending { is_computed: is_computed.get(), failure: outcome.err() }
    }

    /// Reports a computed package to the application and the commander, and records it in `run`.
    fn complete(&self, package: &Package, start: Duration, run: &mut UnitRun) {
        let end = self.begun.elapsed();
        self.hooks.package_done(package, self.device);
        self.commander.complete(package);
        run.busy += end - start;
        run.end = end;
        run.packages.push(PackageRecord { package: package.clone(), device: self.device, start, end });
    }

    /// Tries to compute and collect a package. If another device is lost, the unit tries again, at most once per lost
    /// device: inputs that were to come from that device may be available elsewhere.
    ///
    /// `is_computed` says whether the items are computed, also when this fails or panics.
    ///
    /// # Errors
    /// Why the unit cannot go on.
    fn attempt(&self, package: &Package, is_computed: &Cell<bool>) -> Result<(), String> {
        let mut tries = 0;
        loop {
            tries += 1;
            let Err(error) = self.compute_and_collect(package, is_computed) else { return Ok(()) };
            // One that panics when it is shown may panic once more as it goes.
            let error = Quiet::new(error);
            self.platform.notice_losses();
            let lost = self.platform.lost_devices();
            let why = self.explain(&**error, lost);
            if is_computed.get() && self.kernel.has_results(package) {
                // The director handles results that stay on their device.
                return if self.stays(&**error) { Ok(()) } else { Err(why) };
            }
            self.undo(package);
            is_computed.set(false);
            // All losses count, not only those since the last try: a loss may be known before a buffer meets it.
            if lost.contains(self.device) || tries > lost.len() {
                return Err(why);
            }
        }
    }

    fn compute_and_collect(&self, package: &Package, is_computed: &Cell<bool>) -> Result<(), KernelError> {
        let computed = caught(|| self.compute(package));
        is_computed.set(computed.is_ok());
        computed?;
        self.collect(package)
    }

    fn compute(&self, package: &Package) -> Result<(), KernelError> {
        let variant =
            self.kernel.variant_for(self.device).ok_or("no variant of the kernel for this device")?;
        let mut grants = self.acquire(package)?;
        let own: Vec<_> = grants.ids().collect();
        self.platform.counters().count(Operation::Kernel);
        let launched = variant.launch(package, &mut grants);
        if !grants.ids().eq(own) {
            // These roll back, after the work has ended. The package's own grants end where the variant has put them.
            drop(launched);
            drop(grants);
            return Err("the variant exchanged the grants of its package for others (K-5)".into());
        }
        match launched {
            Ok(fence) => Ok(grants.in_flight(fence).wait()?.release()?),
            Err(error) => {
                self.end_failed_launch(grants, &*error);
                Err(error)
            }
        }
    }

    /// Waits until the device has the package's part of every argument.
    fn acquire(&self, package: &Package) -> Result<Grants, KernelError> {
        Ok(self.kernel.acquire(self.platform, self.device, package)?.wait()?)
    }

    /// Ends the grants of a launch that failed.
    fn end_failed_launch(&self, grants: Grants, error: &(dyn Error + Send + Sync + 'static)) {
        // Losses are noticed before the grants end, so that no waiting request is granted a lost memory.
        self.platform.notice_losses();
        if error.is::<NotStarted>() {
            // The launch's own error says more than that of the release.
            drop(grants.not_started());
        } else {
            // Bytes that were handed out for writing are poisoned; all others stay as they were.
            drop(grants);
        }
    }

    /// Brings what the package wrote to the collecting device while other packages compute.
    fn collect(&self, package: &Package) -> Result<(), KernelError> {
        let Some(device) = self.collect_on.filter(|&device| device != self.device) else { return Ok(()) };
        for (buffer, bytes) in self.kernel.results(package)? {
            match buffer.prefetch(device, bytes.clone()).wait() {
                // Another request uses the buffer, so the unit waits as a reader. Until the results arrive, only this
                // device has them.
                Err(AcquireError::Busy { .. }) => {
                    self.platform.acquire(device).read(&buffer.range(bytes)).wait()?.release()?;
                }
                brought => brought?,
            }
        }
        Ok(())
    }

    /// Says why a package failed: its error, or the loss of the unit's own device.
    fn explain(&self, error: &dyn Error, lost: DeviceSet) -> String {
        let error = guarded(|| error.to_string()).unwrap_or_else(|message| format!("panic: {message}"));
        if lost.contains(self.device) {
            format!("device {} was lost: {}", self.name(), self.loss().unwrap_or(error))
        } else {
            error
        }
    }

    /// Returns whether results that were to be collected may stay where they were computed. That is so where the
    /// collecting device is lost, or the collection was refused as busy. The final reader then brings them.
    fn stays(&self, error: &(dyn Error + 'static)) -> bool {
        let is_busy = error.downcast_ref::<AcquireError>().is_some_and(AcquireError::is_busy);
        let lost = self.platform.lost_devices();
        let has_lost_its_goal = self.collect_on.is_some_and(|device| lost.contains(device));
        !lost.contains(self.device) && (is_busy || has_lost_its_goal)
    }

    /// Restores the old contents of a failed package's read-write arguments, so that another unit finds them. Losses
    /// are declared before, so the restored contents are those that a surviving memory holds.
    fn undo(&self, package: &Package) {
        for (buffer, bytes) in self.kernel.changed(package) {
            // Where the old contents are lost, the acquire of the next unit reports that.
            _ = buffer.restore(bytes);
        }
    }

    /// Returns why the device is lost, where its arena knows.
    pub(crate) fn loss(&self) -> Option<String> {
        let home = self.platform.home(self.device)?;
        guarded(|| self.platform.arena(home).loss().map(|loss| loss.to_string())).unwrap_or_default()
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.platform.devices()[usize::from(self.device.0)].name
    }
}

/// Runs a kernel's code, and turns a panic into an error.
fn caught(compute: impl FnOnce() -> Result<(), KernelError>) -> Result<(), KernelError> {
    guarded(compute).unwrap_or_else(|message| Err(format!("the kernel panicked: {message}").into()))
}
