//! The entry point: runs one kernel over several devices.

use crate::director::{self, Setup};
use crate::hooks::{Hooks, NoHooks, Patient};
use crate::kernel::Kernel;
use crate::knowledge::Knowledge;
use crate::policy::PolicySpec;
use crate::report::{Report, RunError};
use dml_core::{DeviceId, Platform};

/// Runs kernels over several devices at once.
///
/// # Source
/// "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", section 4.
#[derive(Clone, Debug)]
pub struct Coexecutor(Setup);

impl Coexecutor {
    /// Makes a co-executor over every device that a kernel has a variant for, with [`PolicySpec::Calibrated`],
    /// collecting on the host. It learns from its runs, as its clones do.
    #[must_use]
    pub fn new(platform: &Platform) -> Self {
        Self(Setup {
            platform: platform.clone(),
            devices: None,
            powers: None,
            policy: PolicySpec::default(),
            collect_on: platform.host(),
            knowledge: Knowledge::new(),
        })
    }

    /// Uses only these devices, with one unit each.
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        self.0.devices = Some(devices.into_iter().collect());
        self
    }

    /// Splits the work by this policy.
    #[must_use]
    pub fn policy(mut self, policy: PolicySpec) -> Self {
        self.0.policy = policy;
        self
    }

    /// Shares what is learned with others, or with earlier processes. [`PolicySpec::Calibrated`] decides by it who takes
    /// part in a run, and every run of that policy adds to it.
    #[must_use]
    pub fn knowledge(mut self, knowledge: &Knowledge) -> Self {
        self.0.knowledge = knowledge.clone();
        self
    }

    /// Sets the devices' relative powers, in their order. By default all are equal. [`PolicySpec::Calibrated`] begins with
    /// them where it knows nothing of a device, and goes on with what it measures.
    #[must_use]
    pub fn powers(mut self, powers: impl IntoIterator<Item = f64>) -> Self {
        self.0.powers = Some(powers.into_iter().collect());
        self
    }

    /// Brings each package's results to this device before the package counts as computed. With `None`, results stay
    /// where they were computed until a reader needs them. Results lost with a device before the run ends are computed
    /// again, also those that only a lost collecting device had.
    #[must_use]
    pub fn collect_on(mut self, device: Option<DeviceId>) -> Self {
        self.0.collect_on = device;
        self
    }

    /// Computes items `0..items` of the kernel and waits for all of them. It waits for whoever else uses the kernel's buffers, and for
    /// fences of its variants, without a limit. The calling thread must not hold a buffer that the kernel writes, nor hold one for
    /// writing that it reads.
    ///
    /// # Errors
    /// [`RunError`]. A failed unit is no error while other units can finish its work; the report names it. A lost
    /// device is no error as long as the results lost with it can be computed again.
    pub fn run(&self, kernel: &Kernel, items: u64) -> Result<Report, RunError> {
        self.run_with(kernel, items, &NoHooks)
    }

    /// Runs a kernel as [`Coexecutor::run`] does, with hooks.
    ///
    /// # Errors
    /// As [`Coexecutor::run`].
    pub fn run_with(&self, kernel: &Kernel, items: u64, hooks: &dyn Hooks) -> Result<Report, RunError> {
        let hooks = Patient::new(hooks);
        let report = director::direct(&self.0, kernel, items, &hooks);
        hooks.end();
        report
    }
}
