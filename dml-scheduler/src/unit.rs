//! A Coexecution Unit: one device's thread. It takes packages, acquires their sub-buffers in canonical order, runs
//! them, and has what they wrote brought to where it is collected.

use crate::coexecutor::Hooks;
use crate::commander::Commander;
use crate::kernel::{Kernel, KernelError};
use crate::package::{Package, UnitId};
use crate::report::{PackageRecord, UnitFailure};
use dml_core::{Access, AcquireError, DeviceId, Operation, Platform};
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

impl Unit<'_> {
    /// Works until there is nothing more for it, or until it fails.
    pub(crate) fn run(self) -> UnitRun {
        let mut run = UnitRun::default();
        self.hooks.unit_start(self.id, self.device);
        while let Some(package) = self.commander.next(self.id) {
            let start = self.begun.elapsed();
            let outcome = catch_unwind(AssertUnwindSafe(|| self.compute(&package)));
            let end = self.begun.elapsed();
            let error: KernelError = match outcome {
                Ok(Ok(())) => {
                    self.hooks.package_done(&package, self.device);
                    self.commander.complete(&package);
                    run.busy += end - start;
                    run.end = end;
                    run.packages.push(PackageRecord { package, device: self.device, start, end });
                    continue;
                }
                Ok(Err(error)) => error,
                Err(panic) => panic_message(&*panic).into(),
            };
            self.undo(&package);
            // Whether anybody is left to take its share shows when all units have ended.
            let _ = self.commander.retire(self.id);
            run.failure = Some(UnitFailure { device: self.device, package, message: error.to_string() });
            break;
        }
        self.hooks.unit_end(self.id, self.device);
        run
    }

    fn compute(&self, package: &Package) -> Result<(), KernelError> {
        let variant =
            self.kernel.variant_for(self.device).ok_or("no variant of the kernel for this device")?;
        let mut acquire = self.platform.acquire(self.device);
        for argument in self.kernel.arguments() {
            let region = argument.buffer().range(argument.bytes(package.range()));
            acquire = acquire.access(&region, argument.access());
        }
        let mut grants = acquire.wait()?;
        self.platform.counters().count(Operation::Kernel);
        match variant.launch(package, &mut grants) {
            Ok(fence) => grants.in_flight(fence).wait()?.release()?,
            Err(error) => {
                // The launch's own error says more than that of the release.
                let _ = grants.failed();
                return Err(error);
            }
        }
        self.collect(package)
    }

    /// Brings what the package wrote to the collecting device while other packages compute.
    fn collect(&self, package: &Package) -> Result<(), KernelError> {
        let Some(device) = self.collect_on.filter(|&device| device != self.device) else { return Ok(()) };
        for argument in self.kernel.arguments().iter().filter(|argument| argument.access().writes()) {
            match argument.buffer().prefetch(device, argument.bytes(package.range())) {
                // Somebody needs the buffer more urgently; the final reader brings the bytes.
                Err(AcquireError::Busy { .. }) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// After a failed package, gives what it was to change its old contents back, so that another unit finds them.
    fn undo(&self, package: &Package) {
        for argument in
            self.kernel.arguments().iter().filter(|argument| argument.access() == Access::ReadWrite)
        {
            // Where the old contents are lost, the next unit's acquire says so.
            let _ = argument.buffer().restore(argument.bytes(package.range()));
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the kernel panicked: {}", text.unwrap_or_else(|| "without a message".to_owned()))
}
