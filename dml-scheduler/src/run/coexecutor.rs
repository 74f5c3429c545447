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

/// Returns the number of cores available to the first thread that called this. The value is cached, because
/// the query takes about ten microseconds.
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
    /// Makes a co-executor over every device for which a kernel has a variant.
    ///
    /// It splits by [`PolicySpec::Calibrated`] and collects results on the host. It learns from its runs and
    /// shares that knowledge with its clones.
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

    /// Uses only devices that pass a filter and for which the kernel has a variant, with one unit each.
    ///
    /// The units are in the platform's order. This call runs the filter once for each device of the platform.
    /// If no device is left, a run fails with [`RunError::NonePassed`]. The last call of this or of
    /// [`devices`](Self::devices) takes effect.
    ///
    /// ```
    /// # use dml_core::{DeviceKind, Platform};
    /// # use dml_scheduler::Coexecutor;
    /// # fn made(platform: &Platform) -> Coexecutor {
    /// Coexecutor::new(platform)
    ///     .devices_where(|device| device.kind == DeviceKind::Gpu || device.compute_units >= 8)
    /// # }
    /// ```
    #[must_use]
    pub fn devices_where(mut self, mut passes: impl FnMut(&DeviceDesc) -> bool) -> Self {
        let devices = (0..).map(DeviceId).zip(self.0.platform.devices());
        let passed = devices.filter(|(_, desc)| passes(desc)).map(|(device, _)| device).collect();
        self.0.devices = Chosen::Passed(passed);
        self
    }

    /// Splits the work by this policy: a named one, or the application's own
    /// ([`PolicySpec::custom`], `examples/policy.rs`). An undivided kernel asks no policy.
    #[must_use]
    pub fn policy(mut self, policy: PolicySpec) -> Self {
        self.0.policy = policy;
        self
    }

    /// Shares knowledge with other co-executors, or with earlier processes.
    ///
    /// [`PolicySpec::Calibrated`] uses it to choose the devices of a run, and every run with that policy adds
    /// to it.
    #[must_use]
    pub fn knowledge(mut self, knowledge: &Knowledge) -> Self {
        self.0.knowledge = knowledge.clone();
        self
    }

    /// Sets the devices' relative powers, in their order. By default all are equal.
    ///
    /// [`PolicySpec::Calibrated`] uses them as first estimates for unknown devices, and replaces them by
    /// measurements.
    #[must_use]
    pub fn powers(mut self, powers: impl IntoIterator<Item = f64>) -> Self {
        self.0.powers = Some(powers.into_iter().collect());
        self
    }

    /// Sets the number of cores that devices of kind [`cpu`](dml_core::DeviceKind::Cpu) share.
    ///
    /// These devices are the processor, workers, and OpenCL devices on the same processor. The default is the
    /// number of cores available to the thread that made the first co-executor of the process; 0 counts as 1.
    ///
    /// Devices compute concurrently if the sum of their [compute units](DeviceDesc::compute_units) does not
    /// exceed the number of cores. With [`PolicySpec::Calibrated`], other devices do not compute
    /// concurrently: they would compete for cores, and the run would take longer than on the best of them
    /// alone. In a long run of an unknown kernel, one such device takes turns with the first one. Each
    /// computes packages while the other pauses, and the faster one continues. To avoid that, name the
    /// devices to use, or give each a part of the cores.
    #[must_use]
    pub fn cores(mut self, cores: u32) -> Self {
        self.0.cores = cores.max(1);
        self
    }

    /// Collects each package's results on this device before the package counts as computed.
    ///
    /// With `None`, results stay where they were computed until a reader needs them. Results lost with a
    /// device before the run ends are computed again. This includes results that only a lost collecting
    /// device had.
    #[must_use]
    pub fn collect_on(mut self, device: Option<DeviceId>) -> Self {
        self.0.collect_on = device;
        self
    }

    /// Records every call of the policy and its answer in each [report](Report::decisions).
    ///
    /// The recording can be saved as text and replayed without devices. It costs one allocation per decision,
    /// and memory until the report is dropped. A run that fails has no report. To keep the decisions of such
    /// runs, let [`PolicySpec::custom`] return a [`Recorded`](crate::policy::Recorded) policy, and keep its
    /// log.
    ///
    /// ```
    /// # use dml_core::Platform;
    /// # use dml_scheduler::{Coexecutor, Kernel};
    /// # fn recorded(platform: &Platform, kernel: &Kernel) -> Result<(), Box<dyn std::error::Error>> {
    /// let report = Coexecutor::new(platform).record_decisions().run(kernel, 1_000_000)?;
    /// let recording = report.decisions.expect("decisions are recorded");
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

    /// Computes items `0..items` of the kernel and waits for all of them.
    ///
    /// The run waits without a timeout for other users of the kernel's buffers, and for fences of its
    /// variants. The calling thread must not hold a buffer that the kernel writes. It must not hold for
    /// writing a buffer that the kernel reads.
    ///
    /// With [`PolicySpec::Calibrated`], an unknown device computes a short package of the run if it could
    /// help. The run waits for that package, as for every other one.
    ///
    /// # Errors
    /// [`RunError`]. A failed unit is no error while other units can finish its work; the report names it. A
    /// lost device is no error if the results lost with it can be computed again.
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

    /// Starts a run of items `0..items` of the kernel on a thread of its own, and returns at once.
    ///
    /// The handle reports progress and cancels the run. A caller can block on it or `.await` it.
    ///
    /// The calling thread may hold buffers that the kernel reads. It must release buffers that it holds for
    /// writing before it waits.
    ///
    /// # Errors
    /// The checks of [`Coexecutor::run`] before a run begins; [`RunError::NoThread`]. All other errors are
    /// returned by the wait.
    ///
    /// ```
    /// # use dml_scheduler::{Coexecutor, Kernel, RunError};
    /// # fn started(coexecutor: &Coexecutor, kernel: &Kernel) -> Result<(), RunError> {
    /// let mut running = coexecutor.start(kernel, 1_000_000)?;
    /// // This thread is free for other work, and can query the progress.
    /// println!("{} of 1000000", running.progress().computed);
    /// let report = running.wait()?; // or .await
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn start(&self, kernel: &Kernel, items: u64) -> Result<Running, RunError> {
        self.start_with(kernel, items, NoHooks)
    }

    /// Starts a run as [`Coexecutor::start`] does, with hooks. The hooks are dropped before the run counts as
    /// ended.
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
