//! The front door: one kernel over several devices.

use crate::director;
use crate::kernel::Kernel;
use crate::package::{Package, UnitId};
use crate::policy::PolicySpec;
use crate::report::{Report, RunError};
use dml_core::{DeviceId, Platform};

/// What an application may do at the turns of a co-execution (the papers' extended mode). Every method runs on the
/// thread of the unit it is about, the director's on the caller's.
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
        director::direct(self, kernel, items, hooks)
    }
}
