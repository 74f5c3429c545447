//! The front door: one kernel over several devices.

use crate::director;
use crate::kernel::Kernel;
use crate::package::{Package, UnitId};
use crate::policy::PolicySpec;
use crate::report::{Report, RunError};
use dml_core::sync::Mutex;
use dml_core::{DeviceId, Platform};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What an application may do at the turns of a co-execution (the papers' extended mode). Every method runs on the
/// thread of the unit it is about, the director's on the caller's.
///
/// A hook that panics does not disturb the run: it goes on to its end, and the first panic then reaches whoever called
/// [`run_with`](Coexecutor::run_with). Locks of the scheduler are not held.
pub trait Hooks: Sync {
    /// Before any unit starts.
    fn director_start(&self) {}

    /// After every unit has ended.
    fn director_end(&self) {}

    /// Before a unit takes its first package; again where it goes on because results were lost with another device.
    fn unit_start(&self, unit: UnitId, device: DeviceId) {
        let _ = (unit, device);
    }

    /// After a unit's last package; again where it went on.
    fn unit_end(&self, unit: UnitId, device: DeviceId) {
        let _ = (unit, device);
    }

    /// After a package's results are where they were to be. Items whose results are lost later come in another package.
    fn package_done(&self, package: &Package, device: DeviceId) {
        let _ = (package, device);
    }
}

/// No hooks: the papers' simple mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// Hooks whose panics wait until the run has ended.
pub(crate) struct Patient<'a> {
    hooks: &'a dyn Hooks,
    first_panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl<'a> Patient<'a> {
    pub(crate) fn new(hooks: &'a dyn Hooks) -> Self {
        Self { hooks, first_panic: Mutex::new(None) }
    }

    fn call(&self, hook: impl FnOnce(&dyn Hooks)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| hook(self.hooks))) {
            let mut first = self.first_panic.lock();
            let later = if first.is_none() { first.replace(panic) } else { Some(panic) };
            drop(first);
            // One that is not passed on is forgotten: dropping it may panic again.
            std::mem::forget(later);
        }
    }

    /// The run has ended.
    pub(crate) fn end(self) {
        if let Some(panic) = self.first_panic.into_inner() {
            resume_unwind(panic);
        }
    }
}

impl Hooks for Patient<'_> {
    fn director_start(&self) {
        self.call(|hooks| hooks.director_start());
    }

    fn director_end(&self) {
        self.call(|hooks| hooks.director_end());
    }

    fn unit_start(&self, unit: UnitId, device: DeviceId) {
        self.call(|hooks| hooks.unit_start(unit, device));
    }

    fn unit_end(&self, unit: UnitId, device: DeviceId) {
        self.call(|hooks| hooks.unit_end(unit, device));
    }

    fn package_done(&self, package: &Package, device: DeviceId) {
        self.call(|hooks| hooks.package_done(package, device));
    }
}

/// Runs kernels over several devices at once.
///
/// # Source
/// "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", section 4.
#[derive(Clone, Debug)]
pub struct Coexecutor {
    pub(crate) platform: Platform,
    pub(crate) devices: Option<Vec<DeviceId>>,
    pub(crate) powers: Option<Vec<f64>>,
    pub(crate) policy: PolicySpec,
    pub(crate) collect_on: Option<DeviceId>,
}

impl Coexecutor {
    /// Over every device that a kernel has a variant for, by [`PolicySpec::HGuided`], collecting on the host.
    #[must_use]
    pub fn new(platform: &Platform) -> Self {
        Self {
            platform: platform.clone(),
            devices: None,
            powers: None,
            policy: PolicySpec::default(),
            collect_on: platform.host(),
        }
    }

    /// Uses these devices only; one unit each.
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        self.devices = Some(devices.into_iter().collect());
        self
    }

    /// Splits by this policy.
    #[must_use]
    pub fn policy(mut self, policy: PolicySpec) -> Self {
        self.policy = policy;
        self
    }

    /// The devices' relative powers, in their order. Without them all count as equal.
    #[must_use]
    pub fn powers(mut self, powers: impl IntoIterator<Item = f64>) -> Self {
        self.powers = Some(powers.into_iter().collect());
        self
    }

    /// Brings each package's results to this device before the package counts as computed; `None` leaves them where they
    /// were computed, to be brought when somebody asks. If that device is lost before the run ends, they are computed
    /// again, and so are those that were only on a collecting device that is lost.
    #[must_use]
    pub fn collect_on(mut self, device: Option<DeviceId>) -> Self {
        self.collect_on = device;
        self
    }

    /// Computes items `0..items` of the kernel and waits for all of them.
    ///
    /// # Errors
    /// [`RunError`]. A unit that fails is no error while others can finish its work: the report names it. Neither is a lost
    /// device, as long as what it took along can be computed again.
    pub fn run(&self, kernel: &Kernel, items: u64) -> Result<Report, RunError> {
        self.run_with(kernel, items, &NoHooks)
    }

    /// As [`Coexecutor::run`], with hooks.
    ///
    /// # Errors
    /// As [`Coexecutor::run`].
    pub fn run_with(&self, kernel: &Kernel, items: u64, hooks: &dyn Hooks) -> Result<Report, RunError> {
        let hooks = Patient::new(hooks);
        let report = director::direct(self, kernel, items, &hooks);
        hooks.end();
        report
    }
}
