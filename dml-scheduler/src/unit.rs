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
use crate::hooks::Hooks;
use crate::kernel::{Kernel, KernelError, NotStarted};
use crate::package::{Package, UnitId};
use crate::report::{PackageRecord, UnitFailure};
use dml_core::{Access, AcquireError, DeviceId, Operation, Platform, panic_text};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// Why a unit gives up.
struct GivesUp {
    why: String,
    /// Whether the last package was computed nevertheless.
    is_computed: bool,
}

impl Unit<'_> {
    /// Works until the commander has no more packages for the unit, or until the unit fails. Appends to `run`.
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
                self.commander.retire(self.id);
                run.failure = Some(UnitFailure { device: self.device, package, message });
                break;
            }
        }
        self.hooks.unit_end(self.id, self.device);
    }

    /// Computes a package and has its results collected. If another device is lost, the unit tries again, at most once
    /// per lost device. Inputs that were to come from that device may be available elsewhere.
    ///
    /// The kernel's error types and the arenas are foreign code, which may panic here. The caller catches the panic.
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
                // The director handles results that stay on their device.
                return match self.stays(&*error) {
                    true => Ok(()),
                    false => Err(GivesUp { why, is_computed }),
                };
            }
            self.undo(package);
            // All losses count, not only those since the last try: a loss may be known before a buffer meets it.
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
                // Losses are noticed before the grants end, so that no waiting request is granted a lost memory.
                self.platform.notice_losses();
                match error.is::<NotStarted>() {
                    // The launch's own error says more than that of the release.
                    true => drop(grants.not_started()),
                    // Bytes that were handed out for writing are poisoned; all others stay as they were.
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

    /// Returns whether results that were to be collected may stay where they were computed. That is so where the
    /// collecting device is lost, or the collection was refused as busy. The final reader then brings them.
    fn stays(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        let is_busy = error.downcast_ref::<AcquireError>().is_some_and(AcquireError::is_busy);
        let lost = self.platform.lost_devices();
        let has_lost_its_goal = self.collect_on.is_some_and(|device| lost.contains(device));
        !lost.contains(self.device) && (is_busy || has_lost_its_goal)
    }

    /// Restores the old contents of a failed package's read-write arguments, so that another unit finds them. Losses
    /// are declared before, so the restored contents are those that a surviving memory holds.
    fn undo(&self, package: &Package) {
        for argument in
            self.kernel.arguments().iter().filter(|argument| argument.access() == Access::ReadWrite)
        {
            // Where the old contents are lost, the acquire of the next unit reports that.
            if let Ok(bytes) = argument.checked_bytes(package) {
                _ = argument.buffer().restore(bytes);
            }
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

/// Runs foreign code, and turns a panic into its message.
fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let message = panic_text(&*panic).to_string();
        // The payload of a panic may itself panic when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
        message
    })
}
