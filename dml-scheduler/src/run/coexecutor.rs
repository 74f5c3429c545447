//! The entry point: runs one kernel over several devices.

use crate::kernel::Kernel;
use crate::model::Knowledge;
use crate::plan::setup::{Chosen, Setup};
use crate::policy::PolicySpec;
use crate::report::{Report, RunError};
use crate::run::director::Prepared;
use crate::run::hooks::{Hooks, NoHooks, Patient};
use crate::run::running::{self, Running};
use dml_core::{DeviceDesc, DeviceId, Platform};
use std::panic::Location;
use std::sync::OnceLock;

/// How many cores the thread could use that asked first. To ask takes some ten microseconds.
fn cores() -> u32 {
    static CORES: OnceLock<u32> = OnceLock::new();
    *CORES.get_or_init(|| {
        std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
    })
}

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
            devices: Chosen::Every,
            powers: None,
            policy: PolicySpec::default(),
            collect_on: platform.host(),
            knowledge: Knowledge::new(),
            cores: cores(),
            records: false,
        })
    }

    /// Uses only these devices, with one unit each.
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        self.0.devices = Chosen::Named(devices.into_iter().collect());
        self
    }

    /// Uses only those devices that pass a filter and that the kernel has a variant for, in the platform's order, with one unit each. The
    /// filter is asked in this call, once for each device on which kernels run. If none is left, a run is refused
    /// ([`RunError::NonePassed`]). The last call of this and of [`devices`](Self::devices) counts.
    ///
    /// ```
    /// # use dml_core::{DeviceKind, Platform};
    /// # use dml_scheduler::Coexecutor;
    /// # fn made(platform: &Platform) -> Coexecutor {
    /// Coexecutor::new(platform).devices_where(|device| device.kind == DeviceKind::Gpu || device.units >= 8)
    /// # }
    /// ```
    #[must_use]
    pub fn devices_where(mut self, mut passes: impl FnMut(&DeviceDesc) -> bool) -> Self {
        let devices = (0..).map(DeviceId).zip(self.0.platform.devices());
        let passed = devices.filter(|(_, desc)| passes(desc)).map(|(device, _)| device).collect();
        self.0.devices = Chosen::Passed(passed);
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

    /// Sets how many cores the devices of kind [`cpu`](dml_core::DeviceKind::Cpu) share: the processor, workers and OpenCL devices on the same
    /// processor. By default these are as many as the thread could use that made the first co-executor of the process; 0 counts as 1.
    ///
    /// Devices whose [units](DeviceDesc::units) together are no more than that compute at once. With [`PolicySpec::Calibrated`], others do
    /// not compute at the same time: they would take the cores from each other, and the run would be longer than on the best of them. In a
    /// long run of an unknown kernel one such device takes turns with the one that began. Each computes packages while the other pauses, and
    /// the faster one goes on. Name the devices to use, or give each a part of the cores, if that is not wanted.
    #[must_use]
    pub fn cores(mut self, cores: u32) -> Self {
        self.0.cores = cores.max(1);
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

    /// Keeps what the policy was asked, was told and decided in each [report](Report::decisions): a text to keep, and a run that can be
    /// decided again without its devices. It costs an allocation per decision, and the memory until the report goes.
    ///
    /// ```
    /// # use dml_core::Platform;
    /// # use dml_scheduler::{Coexecutor, Kernel};
    /// # fn recorded(platform: &Platform, kernel: &Kernel) -> Result<(), Box<dyn std::error::Error>> {
    /// let report = Coexecutor::new(platform).record_decisions().run(kernel, 1_000_000)?;
    /// let recording = report.decisions.expect("it was asked for");
    /// std::fs::write("run.decisions", recording.to_string())?;
    /// recording.replay()?; // names the first decision that differs
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn record_decisions(mut self) -> Self {
        self.0.records = true;
        self
    }

    /// Computes items `0..items` of the kernel and waits for all of them. It waits for whoever else uses the kernel's buffers, and for
    /// fences of its variants, without a limit. The calling thread must not hold a buffer that the kernel writes, nor hold one for
    /// writing that it reads.
    ///
    /// With [`PolicySpec::Calibrated`] a device of which little is known computes a short package of the run if it could help. The run
    /// waits for it, as for every package.
    ///
    /// # Errors
    /// [`RunError`]. A failed unit is no error while other units can finish its work; the report names it. A lost
    /// device is no error as long as the results lost with it can be computed again.
    #[track_caller]
    pub fn run(&self, kernel: &Kernel, items: u64) -> Result<Report, RunError> {
        self.run_with(kernel, items, &NoHooks)
    }

    /// Runs a kernel as [`Coexecutor::run`] does, with hooks.
    ///
    /// # Errors
    /// As [`Coexecutor::run`].
    #[track_caller]
    pub fn run_with(&self, kernel: &Kernel, items: u64, hooks: &dyn Hooks) -> Result<Report, RunError> {
        let prepared = Prepared::new(&self.0, kernel, items, None, Location::caller())?;
        let hooks = Patient::new(hooks);
        let report = prepared.direct(&self.0, &hooks);
        hooks.end();
        report
    }

    /// Starts a run of items `0..items` of the kernel on a thread of its own, and returns at once. The handle tells how far the run has
    /// come, cancels it, and is waited for or awaited.
    ///
    /// The calling thread may hold buffers that the kernel reads, and has to release those that it holds for writing before it waits.
    ///
    /// # Errors
    /// What [`Coexecutor::run`] refuses before it begins; [`RunError::NoThread`]. Everything else comes with the wait.
    ///
    /// ```
    /// # use dml_scheduler::{Coexecutor, Kernel, RunError};
    /// # fn started(coexecutor: &Coexecutor, kernel: &Kernel) -> Result<(), RunError> {
    /// let mut running = coexecutor.start(kernel, 1_000_000)?;
    /// // Something else goes on here, and may look how far it has come.
    /// println!("{} of 1000000", running.progress().computed);
    /// let report = running.wait()?; // or .await
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn start(&self, kernel: &Kernel, items: u64) -> Result<Running, RunError> {
        self.start_with(kernel, items, NoHooks)
    }

    /// Starts a run as [`Coexecutor::start`] does, with hooks. They are dropped before the end of the run is told.
    ///
    /// # Errors
    /// As [`Coexecutor::start`].
    #[track_caller]
    pub fn start_with(
        &self,
        kernel: &Kernel,
        items: u64,
        hooks: impl Hooks + Send + 'static,
    ) -> Result<Running, RunError> {
        running::start(self.0.clone(), kernel, items, Box::new(hooks), Location::caller())
    }
}
