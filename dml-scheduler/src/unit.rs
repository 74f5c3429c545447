//! A Coexecution Unit: one device's thread. It takes packages, acquires their sub-buffers in canonical order, runs
//! them, and has what they wrote brought to where it is collected.
//!
//! ```text
//!   next ──▶ acquire, launch, wait, release ──▶ collect ──▶ complete
//!                        │ fails                   │ fails
//!                        ▼                         ├── results readable ──▶ complete; they stay where they are
//!              losses noticed, old contents back ◀─┘ results lost
//!                        ├── another device is gone ──▶ tried again
//!                        └── else ──▶ retire: the package goes to the others
//! ```
//! A package whose results can be read is never computed again: what it changed would be changed twice.

use crate::coexecutor::Hooks;
use crate::commander::Commander;
use crate::kernel::{Kernel, KernelError, NotStarted};
use crate::package::{Package, UnitId};
use crate::report::{PackageRecord, UnitFailure};
use dml_core::{Access, AcquireError, DeviceId, Operation, Platform, panic_text};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// What a unit works with.
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

/// What a unit did.
#[derive(Debug, Default)]
pub(crate) struct UnitRun {
    pub(crate) packages: Vec<PackageRecord>,
    pub(crate) busy: Duration,
    pub(crate) end: Duration,
    pub(crate) failure: Option<UnitFailure>,
}

/// Why a unit gives up.
struct GivesUp {
    why: String,
    /// Whether its last package is computed all the same.
    is_computed: bool,
}

impl Unit<'_> {
    /// Works until there is nothing more for it, or until it fails. Adds to what it did before.
    pub(crate) fn run(self, run: &mut UnitRun) {
        self.hooks.unit_start(self.id, self.device);
        while let Some(package) = self.commander.next(self.id) {
            let start = self.begun.elapsed();
            let is_computed = Cell::new(false);
            let outcome = guarded(|| self.attempt(&package, &is_computed)).unwrap_or_else(|message| {
                Err(GivesUp { why: format!("panic: {message}"), is_computed: is_computed.get() })
            });
            let end = self.begun.elapsed();
            if outcome.as_ref().map_or_else(|failed| failed.is_computed, |()| true) {
                self.hooks.package_done(&package, self.device);
                self.commander.complete(&package);
                run.busy += end - start;
                run.end = end;
                let package = package.clone();
                run.packages.push(PackageRecord { package, device: self.device, start, end });
            }
            if let Err(GivesUp { why: message, .. }) = outcome {
                // Whether anybody is left to take its share shows when all units have ended.
                let _ = self.commander.retire(self.id);
                run.failure = Some(UnitFailure { device: self.device, package, message });
                break;
            }
        }
        self.hooks.unit_end(self.id, self.device);
    }

    /// Computes a package and has its results collected. It is tried again where other devices are lost, once for each: what
    /// was to come from there may come from elsewhere.
    ///
    /// Errors are of the kernel's types and arenas of anybody's: what is asked of them may panic, which is the caller's to see.
    fn attempt(&self, package: &Package, done: &Cell<bool>) -> Result<(), GivesUp> {
        for tries in 1.. {
            let computed = caught(|| self.compute(package));
            let is_computed = computed.is_ok();
            done.set(is_computed);
            let Err(error) = computed.and_then(|()| self.collect(package)) else { return Ok(()) };
            self.platform.notice_losses();
            let lost = self.platform.lost_devices();
            let why = match lost.contains(self.device) {
                true => {
                    format!("device {} was lost: {}", self.name(), self.loss().unwrap_or(error.to_string()))
                }
                false => error.to_string(),
            };
            if is_computed && self.kernel.has_results(package) {
                // The director looks after results that stay where they are.
                return match self.stays(&*error) {
                    true => Ok(()),
                    false => Err(GivesUp { why, is_computed }),
                };
            }
            self.undo(package);
            // Not by what was lost meanwhile: a loss may be known before the buffers are, and be met only then.
            if lost.contains(self.device) || tries > lost.len() {
                return Err(GivesUp { why, is_computed: false });
            }
        }
        unreachable!("there are more numbers than devices")
    }

    fn compute(&self, package: &Package) -> Result<(), KernelError> {
        let variant =
            self.kernel.variant_for(self.device).ok_or("no variant of the kernel for this device")?;
        let mut acquire = self.platform.acquire(self.device);
        for argument in self.kernel.arguments() {
            let region = argument.buffer().range(argument.checked_bytes(package)?);
            acquire = acquire.access(&region, argument.access());
        }
        let mut grants = acquire.wait()?;
        self.platform.counters().count(Operation::Kernel);
        match variant.launch(package, &mut grants) {
            Ok(fence) => Ok(grants.in_flight(fence).wait()?.release()?),
            Err(error) => {
                // Before the grants end, so that nobody is let in to a memory that is gone.
                self.platform.notice_losses();
                match error.is::<NotStarted>() {
                    // The launch's own error says more than that of the release.
                    true => drop(grants.not_started()),
                    // What was handed out for writing is spoilt; the rest stays as it was.
                    false => drop(grants),
                }
                Err(error)
            }
        }
    }

    /// Brings what the package wrote to the collecting device while other packages compute.
    fn collect(&self, package: &Package) -> Result<(), KernelError> {
        let Some(device) = self.collect_on.filter(|&device| device != self.device) else { return Ok(()) };
        for argument in self.kernel.written() {
            let (buffer, bytes) = (argument.buffer(), argument.checked_bytes(package)?);
            match buffer.prefetch(device, bytes.clone()) {
                // Somebody needs the buffer more urgently: wait for them, as a reader. Until the results are there, this
                // device is the only one that has them.
                Err(AcquireError::Busy { .. }) => {
                    self.platform.acquire(device).read(&buffer.range(bytes)).wait()?.release()?;
                }
                brought => brought?,
            }
        }
        Ok(())
    }

    /// Whether results may stay where they were computed, though they were to be collected: there is no collecting device
    /// any more, or its links refuse for now. The final reader brings them.
    fn stays(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        let is_busy = error.downcast_ref::<AcquireError>().is_some_and(AcquireError::is_busy);
        let lost = self.platform.lost_devices();
        let has_lost_its_goal = self.collect_on.is_some_and(|device| lost.contains(device));
        !lost.contains(self.device) && (is_busy || has_lost_its_goal)
    }

    /// After a failed package, gives what it was to change its old contents back, so that another unit finds them. Losses
    /// are declared by then: what another memory holds is known to be all that is left.
    fn undo(&self, package: &Package) {
        for argument in
            self.kernel.arguments().iter().filter(|argument| argument.access() == Access::ReadWrite)
        {
            // Where the old contents are lost, the next unit's acquire says so.
            let _ = argument.checked_bytes(package).map(|bytes| argument.buffer().restore(bytes));
        }
    }

    /// Why the device is gone, where its arena knows.
    pub(crate) fn loss(&self) -> Option<String> {
        let home = self.platform.home(self.device)?;
        guarded(|| self.platform.arena(home).loss().map(|loss| loss.to_string())).unwrap_or_default()
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.platform.devices()[usize::from(self.device.0)].name
    }
}

/// Runs a kernel's code; a panic becomes its error.
fn caught(compute: impl FnOnce() -> Result<(), KernelError>) -> Result<(), KernelError> {
    guarded(compute).unwrap_or_else(|message| Err(format!("the kernel panicked: {message}").into()))
}

/// Runs code of somebody else's; a panic becomes its message.
fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let message = panic_text(&*panic).to_string();
        // What was panicked with may panic when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
        message
    })
}
