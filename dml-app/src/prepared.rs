//! A run of an application.
//!
//! ```text
//!   arrays filled ──▶ steps, in order ──▶ results in main memory ──▶ files
//!                       ├─ kernel ─────▶ Coexecutor: packages over all devices
//!                       └─ repeat ─────▶ Iterate: strips, if the steps are kernels and then exchanges
//!                                        otherwise step by step
//! ```

use crate::arrays::{self, Array};
use crate::error::ApplicationError;
use crate::fault::Fault;
use crate::launch;
use crate::plan::{ArgumentPlan, ArrayPlan, KernelPlan, Plan, StepPlan, Until, gcd};
use dml_core::{AcquireError, Buffer, DeviceId, Launcher, Platform};
use dml_scheduler::policy::PolicySpec;
use dml_scheduler::{
    Argument, CheckError, Coexecutor, Departure, Iterate, Iterated, Kernel, Knowledge, Measured, Report,
    check_footprints,
};
use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An application with its arrays and kernels on a platform.
///
/// Each [`run`](Self::run) begins with the first contents of the arrays.
pub struct Prepared {
    platform: Platform,
    plan: Arc<Plan>,
    devices: Vec<DeviceId>,
    /// The buffers, and by array the position of the one in its place.
    buffers: Vec<Arc<dyn Array>>,
    places: Vec<usize>,
    /// The launchers of each kernel.
    launchers: Vec<Vec<(DeviceId, Arc<dyn Launcher>)>>,
    /// Kernels with the buffers that they were made for.
    kernels: HashMap<(usize, Vec<usize>), Kernel>,
    coexecutor: Coexecutor,
    knowledge: Knowledge,
    has_policy: bool,
    shares: Option<Vec<f64>>,
    is_recorded: bool,
}

/// What a run did.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The time from the first launch until the arrays that are written to files were in main memory.
    pub duration: Duration,
    /// The kernels that ran, in the order of their first run.
    pub kernels: Vec<KernelRuns>,
    /// The repetitions, in the order of their end.
    pub repeats: Vec<Repeated>,
    /// The packages of all kernels, if they were [recorded](Prepared::record).
    pub report: Option<Report>,
}

/// The runs of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelRuns {
    /// The name of the kernel.
    pub kernel: String,
    /// The number of runs.
    pub runs: u64,
    /// The items of each device in the last run.
    pub items: Vec<(DeviceId, u64)>,
}

/// Repeated steps.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Repeated {
    /// The number of repetitions.
    pub count: u64,
    /// Whether `until` ended them.
    pub is_stopped: bool,
    /// The array of `until`, and its first element at the end.
    pub until: Option<(String, f64)>,
    /// The ratios of the devices' strips at the end. If the steps were not run over strips, the reason.
    pub strips: Result<Vec<f64>, &'static str>,
}

/// The profile of a kernel, or of the first one of repeated steps.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// The name of the kernel.
    pub kernel: String,
    /// Its number of items along the axis that devices divide.
    pub items: u64,
    /// The measured steps, each with corrected strips.
    pub measured: Vec<Measured>,
    /// The ratios that are kept, by device.
    pub shares: Vec<f64>,
    /// Whether the devices ended together with them: the standard deviation of the durations was at most 5
    /// percent of their mean.
    pub is_balanced: bool,
}

/// Whether the strips that a run begins with are corrected.
enum Corrected {
    Yes,
    No,
}

/// Steps of a profile: all corrections, each of the shortest of three steps.
const PROFILED: u64 = 32;

/// What a run has done so far.
#[derive(Default)]
struct Progress {
    kernels: Vec<KernelRuns>,
    repeats: Vec<Repeated>,
    reports: Vec<Report>,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plan, devices) = (&self.plan.name, &self.devices);
        f.debug_struct("Prepared")
            .field("application", plan)
            .field("devices", devices)
            .finish_non_exhaustive()
    }
}

impl Prepared {
    /// Allocates arrays, and compiles the kernels for devices that can run them.
    ///
    /// # Safety
    /// As [`CompiledLauncher::new`](dml_arenas::launch::CompiledLauncher::new), of each kernel.
    #[allow(unsafe_code, reason = "sources are trusted like the program itself")]
    pub(crate) unsafe fn new(
        plan: Arc<Plan>,
        platform: &Platform,
        devices: Vec<DeviceId>,
    ) -> Result<Self, ApplicationError> {
        let mut launchers = Vec::new();
        for kernel in &plan.kernels {
            let mut of_kernel: Vec<(DeviceId, Arc<dyn Launcher>)> = Vec::new();
            for &device in &devices {
                // SAFETY: as the caller guarantees.
                let launcher = unsafe { launch::launcher(platform, device, kernel) }?;
                of_kernel.extend(launcher.map(|launcher| (device, launcher)));
            }
            launchers.push(of_kernel);
        }
        let buffers: Vec<_> =
            plan.arrays.iter().map(|array| arrays::allocate(platform, array)).collect::<Result<_, _>>()?;
        let mut prepared = Self {
            platform: platform.clone(),
            devices: devices.clone(),
            places: (0..buffers.len()).collect(),
            buffers,
            launchers,
            kernels: HashMap::new(),
            coexecutor: Coexecutor::new(platform).devices(devices),
            knowledge: Knowledge::new(),
            has_policy: false,
            shares: None,
            is_recorded: false,
            plan,
        };
        // Every mistake in arguments is found before anything runs.
        for kernel in 0..prepared.plan.kernels.len() {
            prepared.kernel(kernel)?;
        }
        Ok(prepared)
    }

    /// Sets the policy of kernels that are not repeated over strips. By default it is
    /// [`Static`](PolicySpec::Static) with the ratios of a [profile](Self::profile), or else
    /// [`Calibrated`](PolicySpec::Calibrated).
    pub fn policy(&mut self, policy: PolicySpec) {
        self.coexecutor = self.coexecutor.clone().policy(policy);
        self.has_policy = true;
    }

    /// Uses what earlier runs taught about the kernels, and adds to it.
    pub fn knowledge(&mut self, knowledge: &Knowledge) {
        self.knowledge = knowledge.clone();
        self.coexecutor = self.coexecutor.clone().knowledge(knowledge);
    }

    /// Sets the ratios of the devices' strips in repeated steps, one for each device; 0 leaves it out. They
    /// are then not corrected.
    pub fn shares(&mut self, shares: impl IntoIterator<Item = f64>) {
        self.shares = Some(shares.into_iter().collect());
    }

    /// Records the packages of later runs.
    pub fn record(&mut self) {
        self.is_recorded = true;
    }

    /// Returns the devices, in the order of their strips.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        &self.devices
    }

    /// Returns the platform.
    #[must_use]
    pub fn platform(&self) -> &Platform {
        &self.platform
    }

    /// Returns an array's buffer, in the place in which the last run left it; `None` if there is no array of
    /// this name with elements of this type.
    #[must_use]
    pub fn array<T: bytemuck::Pod + Send + Sync>(&self, name: &str) -> Option<Buffer<T>> {
        let index = self.plan.arrays.iter().position(|array| array.name == name)?;
        self.buffers[self.places[index]].as_any().downcast_ref::<Buffer<T>>().cloned()
    }

    /// Returns the names of the files that [`write`](Self::write) writes, each with its array.
    pub fn files(&self) -> impl Iterator<Item = (&str, &std::path::Path)> {
        self.plan.arrays.iter().filter_map(|array| Some((&*array.name, array.to.as_deref()?)))
    }

    /// Runs the steps, with the first contents of the arrays.
    ///
    /// # Errors
    /// [`ApplicationError`]. The arrays then have undefined contents, until the next run begins.
    pub fn run(&mut self) -> Result<Outcome, ApplicationError> {
        self.reset()?;
        let plan = self.plan.clone();
        let mut progress = Progress::default();
        let begun = Instant::now();
        for (index, step) in plan.run.iter().enumerate() {
            let is_last = index + 1 == plan.run.len();
            self.step(step, 1, is_last, &mut progress)?;
        }
        for (index, array) in plan.arrays.iter().enumerate().filter(|(_, array)| array.to.is_some()) {
            let collected = self.buffers[self.places[index]].collect();
            collected.map_err(|cause| failed(array, cause))?;
        }
        let duration = begun.elapsed();
        let Progress { kernels, repeats, reports } = progress;
        Ok(Outcome { duration, kernels, repeats, report: Report::joined(reports) })
    }

    /// Runs the steps, and repeats each kernel, or each group of repeated steps, until devices with strips in
    /// these ratios end together. Keeps the ratios in the knowledge, where later runs find them. Without
    /// ratios to begin with, strips are equal.
    ///
    /// Kernels that are undivided, or that reduce, have no profile.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Source
    /// "Automatic OpenCL code generation for multi-device heterogeneous architectures", section IV-B: the
    /// offline profiler.
    pub fn profile(&mut self) -> Result<Vec<Profile>, ApplicationError> {
        self.reset()?;
        let plan = self.plan.clone();
        let mut profiles = Vec::new();
        self.profile_steps(&plan.run, &mut profiles)?;
        Ok(profiles)
    }

    fn profile_steps(
        &mut self,
        steps: &[StepPlan],
        profiles: &mut Vec<Profile>,
    ) -> Result<(), ApplicationError> {
        let mut nothing = Progress::default();
        for step in steps {
            let over = match step {
                StepPlan::Repeat { run, until, .. } => self.over_strips(run, until.as_ref()),
                step => self.over_strips(std::slice::from_ref(step), None),
            };
            match (over, step) {
                (Ok(over), _) => {
                    let kernel = &self.plan.kernels[over.steps[0]];
                    let (name, items) = (kernel.name.clone(), kernel.items[kernel.axis]);
                    if !profiles.iter().any(|profile| profile.kernel == name) {
                        let profile = self.profile_strips(&over, name, items)?;
                        profiles.push(profile);
                    }
                }
                (Err(_), StepPlan::Repeat { run, .. }) => self.profile_steps(run, profiles)?,
                // What follows reads its results.
                (Err(_), step) => self.step(step, 1, false, &mut nothing)?,
            }
        }
        Ok(())
    }

    fn profile_strips(
        &mut self,
        over: &OverStrips,
        kernel: String,
        items: u64,
    ) -> Result<Profile, ApplicationError> {
        let first = self.shares.clone().unwrap_or_else(|| vec![1.0; self.devices.len()]);
        let measured =
            self.iterate(over, PROFILED, None, Some((first, Corrected::Yes)), &mut Progress::default())?;
        let spread = |measured: &Measured| {
            let seconds: Vec<f64> = measured.durations.iter().flatten().map(Duration::as_secs_f64).collect();
            let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
            (seconds.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / seconds.len() as f64).sqrt() / mean
        };
        // An end that is noticed late looks like balance, but not like speed.
        let slowest = |measured: &Measured| measured.durations.iter().flatten().max().copied();
        let best = measured.iter().min_by_key(|measured| slowest(measured));
        let (shares, is_balanced) = match best {
            Some(best) => (best.shares.clone(), spread(best) <= 0.05),
            None => (vec![1.0; self.devices.len()], true),
        };
        let name = kernel_name(&self.plan.name, &kernel);
        let descs = self.devices.iter().map(|device| self.platform.device_desc(*device));
        if !measured.is_empty() {
            self.knowledge.keep_strips(&name, items, descs, &shares);
        }
        Ok(Profile { kernel, items, measured, shares, is_balanced })
    }

    /// Checks that these kernels touch only their parts of arrays, by launches on changed copies of the
    /// first contents ([`check_footprints`]). Returns what cannot be checked: reads of arrays whose elements
    /// are all equal, and kernels that give other results each time.
    ///
    /// Undivided kernels are not checked.
    ///
    /// # Errors
    /// [`ApplicationError::Parts`] with the first departure.
    pub fn check_parts(&mut self, is_meant: impl Fn(&str) -> bool) -> Result<Vec<Fault>, ApplicationError> {
        self.reset()?;
        let plan = self.plan.clone();
        let mut unseen = Vec::new();
        let kernels = plan.kernels.iter().enumerate();
        let is_checked = |kernel: &KernelPlan| !kernel.is_undivided && is_meant(&kernel.name);
        for (index, of_kernel) in kernels.filter(|(_, kernel)| is_checked(kernel)) {
            let (kernel, items) = self.kernel(index)?;
            for &device in &self.devices {
                let checked = match check_footprints(&self.platform, &kernel, items, device) {
                    Err(CheckError::Wrong(wrong)) if wrong.how == Departure::Differs => {
                        unseen.push(parts(of_kernel, &plan.arrays, CheckError::Wrong(wrong)).0);
                        continue;
                    }
                    checked => checked.map_err(|cause| {
                        let (place, cause) = parts(of_kernel, &plan.arrays, cause);
                        ApplicationError::Parts { place, cause: Box::new(cause) }
                    })?,
                };
                for argument in checked.unseen_reads {
                    if let Some((ArgumentPlan::Array { array, .. }, place)) =
                        of_kernel.arguments.get(argument)
                    {
                        let (kernel, array) = (&of_kernel.name, &plan.arrays[*array].name);
                        let why = "all its first elements are equal (give it random ones by `from`)";
                        let message =
                            format!("what kernel {kernel} reads of {array} cannot be checked: {why}");
                        unseen.push(Fault { message, ..place.clone() });
                    }
                }
            }
        }
        unseen.dedup();
        Ok(unseen)
    }

    /// Writes the arrays that have a file.
    ///
    /// # Errors
    /// [`ApplicationError::File`] for the first that cannot be written.
    pub fn write(&self) -> Result<(), ApplicationError> {
        for (index, array) in self.plan.arrays.iter().enumerate() {
            let Some(path) = &array.to else { continue };
            self.buffers[self.places[index]].store(path, &array.shape).map_err(|cause| {
                ApplicationError::File { array: array.name.clone(), path: path.clone(), cause }
            })?;
        }
        Ok(())
    }

    /// Writes the first contents of the arrays, as each run does.
    ///
    /// # Errors
    /// [`ApplicationError::File`] or [`ApplicationError::Access`].
    pub fn reset(&mut self) -> Result<(), ApplicationError> {
        self.places = (0..self.buffers.len()).collect();
        let mut arrays = self.plan.arrays.iter().zip(&self.buffers);
        arrays.try_for_each(|(array, buffer)| buffer.fill(array))
    }

    /// Runs a step of some repetition, from 1.
    fn step(
        &mut self,
        step: &StepPlan,
        repetition: u64,
        is_last: bool,
        progress: &mut Progress,
    ) -> Result<(), ApplicationError> {
        match step {
            StepPlan::Kernel { kernel, every } if repetition.is_multiple_of(*every) => {
                self.run_kernel(*kernel, is_last, progress)
            }
            StepPlan::Kernel { .. } => Ok(()),
            StepPlan::Swap(one, other) => {
                self.places.swap(*one, *other);
                Ok(())
            }
            StepPlan::Repeat { count, until, run } => match self.over_strips(run, until.as_ref()) {
                Ok(steps) => {
                    let shares = self.shares.clone().map(|shares| (shares, Corrected::No));
                    self.iterate(&steps, *count, until.as_ref(), shares, progress).map(drop)
                }
                Err(reason) => self.repeat(run, *count, until.as_ref(), reason, progress),
            },
        }
    }

    fn run_kernel(
        &mut self,
        index: usize,
        is_last: bool,
        progress: &mut Progress,
    ) -> Result<(), ApplicationError> {
        let (kernel, items) = self.kernel(index)?;
        let mut coexecutor = self.coexecutor.clone();
        if !is_last {
            // Results that another kernel may read stay where they are.
            coexecutor = coexecutor.collect_on(None);
        }
        let descs = self.devices.iter().map(|device| self.platform.device_desc(*device));
        if let Some(ratios) = self.knowledge.strips(kernel.name(), items, descs)
            && !self.has_policy
        {
            coexecutor = coexecutor.policy(PolicySpec::Static).powers(ratios);
        }
        let name = &self.plan.kernels[index].name;
        let report = coexecutor
            .run(&kernel, items)
            .map_err(|cause| ApplicationError::Run { kernel: name.clone(), cause: Box::new(cause) })?;
        let items = report.devices.iter().map(|device| (device.device, device.items)).collect();
        progress.ran(name, 1, items);
        if self.is_recorded {
            progress.reports.push(report);
        }
        Ok(())
    }

    /// Runs steps one after the other.
    fn repeat(
        &mut self,
        steps: &[StepPlan],
        count: u64,
        until: Option<&Until>,
        reason: &'static str,
        progress: &mut Progress,
    ) -> Result<(), ApplicationError> {
        let (mut done, mut is_stopped) = (0, false);
        while done < count && !is_stopped {
            done += 1;
            for step in steps {
                self.step(step, done, false, progress)?;
            }
            if let Some(until) = until.filter(|until| done.is_multiple_of(until.every)) {
                let array = &self.plan.arrays[until.array];
                let value = self.buffers[self.places[until.array]].first();
                let value = value.map_err(|cause| failed(array, cause))?;
                is_stopped = until.holds(value);
            }
        }
        let until = self.until_value(until)?;
        progress.repeats.push(Repeated { count: done, is_stopped, until, strips: Err(reason) });
        Ok(())
    }

    /// Returns the name and the first element of the array that ends repetitions.
    fn until_value(&self, until: Option<&Until>) -> Result<Option<(String, f64)>, ApplicationError> {
        let Some(until) = until else { return Ok(None) };
        let array = &self.plan.arrays[until.array];
        let value = self.buffers[self.places[until.array]].first().map_err(|cause| failed(array, cause))?;
        Ok(Some((array.name.clone(), value)))
    }

    /// Returns steps that can be run over strips: kernels, then exchanges, then kernels that check. Otherwise
    /// returns the reason.
    fn over_strips(&self, steps: &[StepPlan], until: Option<&Until>) -> Result<OverStrips, &'static str> {
        let mut over = OverStrips::default();
        for step in steps {
            match *step {
                StepPlan::Kernel { kernel, every } => {
                    let plan = &self.plan.kernels[kernel];
                    if plan.is_undivided {
                        return Err("a kernel is undivided");
                    }
                    if every > 1 || plan.has_reductions() {
                        over.checks.push((every, kernel));
                    } else if over.checks.is_empty() && over.swaps.is_empty() {
                        over.steps.push(kernel);
                    } else {
                        return Err("a kernel follows a swap, a reduction or a kernel with `every`");
                    }
                }
                StepPlan::Swap(one, other) => {
                    if over.swaps_any(&[one, other]) {
                        return Err("an array is in two swaps");
                    }
                    if !over.checks.is_empty() {
                        return Err("a swap follows a reduction or a kernel with `every`");
                    }
                    over.swaps.push((one, other));
                }
                StepPlan::Repeat { .. } => return Err("steps within are repeated"),
            }
        }
        match until {
            _ if over.steps.is_empty() => Err("no kernel has neither a reduction nor `every`"),
            Some(until) if over.swaps_any(&[until.array]) => Err("the array of `until` is swapped"),
            _ => Ok(over),
        }
    }

    /// Runs steps over strips.
    fn iterate(
        &mut self,
        over: &OverStrips,
        count: u64,
        until: Option<&Until>,
        shares: Option<(Vec<f64>, Corrected)>,
        progress: &mut Progress,
    ) -> Result<Vec<Measured>, ApplicationError> {
        if count == 0 {
            let strips = Err("there are no repetitions");
            progress.repeats.push(Repeated { count, is_stopped: false, until: None, strips });
            return Ok(Vec::new());
        }
        let mut kernels = Vec::new();
        for kernel in over.steps.iter().chain(over.checks.iter().map(|(_, kernel)| kernel)) {
            kernels.push(self.kernel(*kernel)?);
        }
        let (steps, checks) = kernels.split_at(over.steps.len());
        let mut iterate = Iterate::new(&self.platform).devices(self.devices.iter().copied());
        iterate = iterate.knowledge(&self.knowledge);
        iterate = match shares {
            Some((shares, Corrected::No)) => iterate.shares(shares),
            Some((shares, Corrected::Yes)) => iterate.first_shares(shares),
            None => iterate,
        };
        if self.is_recorded {
            iterate = iterate.record();
        }
        iterate = steps.iter().fold(iterate, |iterate, (kernel, items)| iterate.step(kernel, *items));
        for ((every, _), (kernel, items)) in over.checks.iter().zip(checks) {
            iterate = iterate.step_every(*every, kernel, *items);
        }
        for (one, other) in &over.swaps {
            let [one, other] = [one, other].map(|array| &self.buffers[self.places[*array]]);
            iterate = one.swap(&**other, iterate);
        }
        if let Some(until) = until {
            let array = self.buffers[self.places[until.array]].clone();
            iterate = iterate.every(until.every, move |_| {
                Ok(if until.holds(array.first()?) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            });
        }
        let Iterated { steps: done, is_stopped, strips, report, shares, measured, .. } =
            iterate.run(count).map_err(Box::new)?;
        for kernel in &over.steps {
            let name = &self.plan.kernels[*kernel].name;
            let full_name = kernel_name(&self.plan.name, name);
            let of_kernel = strips.iter().filter(|strip| strip.kernel == full_name);
            let items = of_kernel.map(|strip| (strip.device, strip.items.end - strip.items.start)).collect();
            progress.ran(name, done, items);
        }
        for (every, kernel) in &over.checks {
            progress.ran(&self.plan.kernels[*kernel].name, done / every, Vec::new());
        }
        if done % 2 == 1 {
            over.swaps.iter().for_each(|(one, other)| self.places.swap(*one, *other));
        }
        progress.reports.extend(report);
        let until = self.until_value(until)?;
        progress.repeats.push(Repeated { count: done, is_stopped, until, strips: Ok(shares) });
        Ok(measured)
    }

    /// Returns a kernel with the buffers in the places of its arrays, and its items.
    fn kernel(&mut self, index: usize) -> Result<(Kernel, u64), ApplicationError> {
        let plan = &self.plan.kernels[index];
        let items = plan.items[plan.axis];
        let places: Vec<usize> = plan.arrays().map(|(array, _)| self.places[array]).collect();
        let key = (index, places);
        if let Some(kernel) = self.kernels.get(&key) {
            return Ok((kernel.clone(), items));
        }
        // Packages are whole tiles and work-groups of every device.
        let grain = self.launchers[index].iter().fold(1, |grain, (device, _)| {
            let variant = plan.variant(self.platform.device_desc(*device).kind);
            let own = variant.group[plan.axis].saturating_mul(variant.tile[plan.axis]);
            (grain / gcd(grain, own)).saturating_mul(own)
        });
        let inner: Vec<u64> =
            (0..plan.dimensions).filter(|axis| *axis != plan.axis).map(|axis| plan.items[axis]).collect();
        let mut kernel = Kernel::new(kernel_name(&self.plan.name, &plan.name), grain);
        kernel = match inner[..] {
            [] => kernel,
            [x] => kernel.rows(x, 1),
            [x, y, ..] => kernel.planes([x, y], [1, 1]),
        };
        let devices = self.launchers[index].iter().filter_map(|(device, _)| {
            Some((self.platform.device_desc(*device).kind, launch::language(&self.platform, *device)?))
        });
        let devices: Vec<_> = devices.collect();
        for (argument, _) in &plan.arguments {
            kernel = match argument {
                ArgumentPlan::Array { array, access, part } => {
                    let shape = &self.plan.arrays[*array];
                    let footprint = part.footprint(&shape.shape, shape.element.bytes(), &devices);
                    kernel.argument(Argument::part(
                        self.buffers[self.places[*array]].raw(),
                        *access,
                        footprint,
                    ))
                }
                ArgumentPlan::Reduction { array, operation } => {
                    kernel.argument(self.buffers[self.places[*array]].reduction(*operation))
                }
                ArgumentPlan::Scalar(scalar) => kernel.scalar(*scalar),
                ArgumentPlan::Local(bytes) => kernel.local_memory(*bytes),
            };
        }
        if plan.is_undivided {
            kernel = kernel.undivided();
        }
        let misfit = |cause| misfit(plan, cause);
        let kernel = kernel.along(plan.axis).map_err(misfit)?;
        let kernel = kernel.launchers(self.launchers[index].iter().cloned()).map_err(misfit)?;
        self.kernels.insert(key, kernel.clone());
        Ok((kernel, items))
    }
}

/// Steps that are run over strips.
#[derive(Default)]
struct OverStrips {
    steps: Vec<usize>,
    swaps: Vec<(usize, usize)>,
    checks: Vec<(u64, usize)>,
}

impl OverStrips {
    fn swaps_any(&self, arrays: &[usize]) -> bool {
        self.swaps.iter().any(|(one, other)| arrays.contains(one) || arrays.contains(other))
    }
}

impl Progress {
    fn ran(&mut self, kernel: &str, runs: u64, items: Vec<(DeviceId, u64)>) {
        match self.kernels.iter_mut().find(|known| known.kernel == kernel) {
            Some(known) => {
                known.runs += runs;
                known.items = items;
            }
            None => self.kernels.push(KernelRuns { kernel: kernel.to_owned(), runs, items }),
        }
    }
}

fn failed(array: &ArrayPlan, cause: AcquireError) -> ApplicationError {
    ApplicationError::Access { array: array.name.clone(), cause: Box::new(cause) }
}

/// Returns the name of a kernel for what is learned about it, which another application's kernel may not
/// have.
fn kernel_name(application: &str, kernel: &str) -> String {
    format!("{application}.{kernel}")
}

/// Adds the place of the argument or of the kernel.
fn misfit(plan: &KernelPlan, cause: dml_core::Misfit) -> ApplicationError {
    let argument = match &cause {
        dml_core::Misfit::Argument { index, .. } => plan.arguments.get(*index),
        _ => None,
    };
    let mut place = argument.map_or(&plan.place, |(_, place)| place).clone();
    place.message = cause.to_string();
    ApplicationError::Misfit(place)
}

/// Returns the place of the argument or of the kernel, with what is wrong.
fn parts(plan: &KernelPlan, arrays: &[ArrayPlan], cause: CheckError) -> (Fault, CheckError) {
    let mut place = plan.place.clone();
    place.message = cause.to_string();
    if let CheckError::Wrong(wrong) = &cause
        && let Some((ArgumentPlan::Array { array, .. }, of_argument)) = plan.arguments.get(wrong.argument)
    {
        let array = &arrays[*array];
        let mut element = wrong.byte / array.element.bytes();
        let mut index = Vec::new();
        for length in array.shape.iter().rev() {
            index.insert(0, element % length);
            element /= length;
        }
        let how = match wrong.how {
            Departure::WritesOutside => "is written, and is not in its part",
            Departure::ReadsOutside => "is read, and is not in its part",
            Departure::Lacks => "is needed, and is not in its part",
            Departure::LeavesOut => {
                "is not written, although its part is to be overwritten: expected `updates`"
            }
            Departure::Differs => "differs between runs on the same contents, so it is not checked",
            Departure::DependsOnCut => "differs when the items are divided otherwise",
            _ => "is in the part of all items, and in none of their two halves",
        };
        let (name, device, items) = (&array.name, &wrong.device, &wrong.items);
        place = of_argument.clone();
        place.message = format!(
            "kernel {} on {device}, items {} to {} along {}: element {index:?} of array {name} {how}",
            plan.name,
            items.start,
            items.end.saturating_sub(1),
            ["x", "y", "z"][plan.axis],
        );
    }
    (place, cause)
}
