//! Steps of kernels, repeated, each over the same strips of devices.
//!
//! ```text
//!   kernels, strips ─plan─▶ launches of an even and an odd step
//!                              │ per kernel: the borders of all strips, then their interiors
//!                              └─submit, in this order─▶ streams of the devices ─every m steps─▶ callback
//!                                                              └─a device fails─▶ back to the checkpoint
//! ```
//! No code exchanges borders. A part that reads a border acquires it, and the buffer's valid-set names the
//! bytes that the device lacks.
//!
//! 1. One thread submits all launches, so they act as if each had ended before the next one began, on any
//!    devices ([`Submit`](dml_core::Submit)).
//! 2. The parts of a kernel are disjoint and have all of its items. So a run equals the same steps on one
//!    device, bit by bit if the devices round alike.
//! 3. A border is computed before the interior. It has the items that write what another device reads, or
//!    read what that changes. So another device waits for borders, which move while the interiors are
//!    computed.
//! 4. A checkpoint has what the step after it reads. A run returns to it without the devices that failed:
//!    those that are lost, or otherwise those of which a kernel failed.
//! 5. Partials of a reduction begin with the identity each time that its kernel is launched.
//!
//! # Choice of the strips
//! The damped rule of `balance.rs` corrects strips by the durations of the first steps, of which the shortest
//! of three counts. A device that does not pay is found by trial: some steps are made without it, if they are
//! expected to lose little of the remaining time.
//!
//! # Source
//! "Algorithmic scheme for hybrid computing with CPU, Xeon-Phi/MIC and GPU devices on a single machine"
//! computes boundaries first. The exchange follows from footprints, as in Celerity.

mod balance;
mod kept;
mod plan;
mod recorded;
mod run;
mod strips;

use crate::kernel::{Argument, FootprintError, Kernel, KernelError};
use crate::model::Knowledge;
use crate::report::{Report, RunError};
use balance::Balance;
use bytemuck::Pod;
use dml_core::{AcquireError, Buffer, BufferName, DeviceId, Platform, RawBuffer, SubmitError};
use plan::Kernels;
use run::Run;
use std::any::Any;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::panic::Location;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use thiserror::Error;

/// Repeated steps over several devices, such as those of a stencil.
///
/// A step launches one or more kernels. Each device computes the same strip of a kernel's items in every
/// step, so that its results stay where the next step needs them. Only borders move: the bytes that a
/// kernel's footprint reads outside its device's strip.
///
/// - Results do not depend on the strips if all devices round alike. OpenCL C and CUDA C may fuse a product
///   and a sum unless told otherwise (`#pragma OPENCL FP_CONTRACT OFF`, `--fmad=false`).
/// - A launcher is called for parts of a strip. In a function of the host, a part that is read with a margin
///   begins with the margin, which is cut at the ends of the buffer. On OpenCL and CUDA, indices are those of
///   the whole buffer.
/// - A device that does not pay is found by trial, in runs that are long enough for one, and left out.
/// - To go on later, name the buffers in the places in which the last run left them:
///   [`Iterated::buffer`].
///
/// # Examples
/// ```no_run
/// # use dml_core::{Access, Platform};
/// # use dml_scheduler::{Argument, Footprint, Iterate, Kernel};
/// # use std::ops::ControlFlow;
/// # fn example(platform: &Platform, launchers: Vec<(dml_core::DeviceId, std::sync::Arc<dyn dml_core::Launcher>)>)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let (rows, columns) = (300, 300);
/// let a = platform.buffer::<f64>(rows * columns).zeroed().build()?;
/// let b = platform.buffer::<f64>(rows * columns).zeroed().build()?;
/// let row = Footprint::one_to_one(columns * 8);
/// let jacobi = Kernel::new("jacobi", 1) // an item is a row
///     .rows(columns, 64)
///     .argument(Argument::part(&a, Access::ReadOnly, Footprint::neighbourhood(columns * 8, 1)))
///     .argument(Argument::part(&b, Access::WriteInvalidate, row))
///     .end()
///     .launchers(launchers)?;
/// let iterated = Iterate::new(platform).step(&jacobi, rows).swap(&a, &b).run(1000)?;
/// let result = iterated.buffer(&a); // the buffer that the next step would read
/// println!("{}", result.read()?[150 * 300 + 150]);
/// # Ok(())
/// # }
/// ```
pub struct Iterate<'a> {
    platform: &'a Platform,
    devices: Option<Vec<DeviceId>>,
    /// Ratios of the strips, and whether they are corrected.
    shares: Option<(Vec<f64>, bool)>,
    steps: Vec<(Kernel, u64)>,
    /// Kernels that are launched after every so many steps.
    checks: Vec<(u64, Kernel, u64)>,
    swaps: Swaps,
    callback: Option<(u64, Box<Callback<'a>>)>,
    checkpoints: Option<u64>,
    is_recorded: bool,
    stop: Option<&'a AtomicBool>,
    knowledge: Option<Knowledge>,
}

type Callback<'a> = dyn FnMut(&Stepped<'_>) -> Result<ControlFlow<()>, KernelError> + 'a;

/// Buffers that change places after each step.
#[derive(Default)]
struct Swaps(Vec<(RawBuffer, RawBuffer, Box<dyn Any + Send + Sync>)>);

/// Why steps failed or were refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IterateError {
    /// A kernel cannot run on these devices. Nothing was launched.
    #[error(transparent)]
    Refused(#[from] RunError),
    /// The footprint of an argument is invalid. Nothing was launched.
    #[error(transparent)]
    Footprint(#[from] FootprintError),
    /// No step was given.
    #[error("there is no kernel to iterate")]
    NoKernel,
    /// A buffer is to change places with itself, or with two others.
    #[error("{buffer} cannot change places with itself, or with two others")]
    Swap {
        /// The buffer.
        buffer: BufferName,
    },
    /// The number of shares differs from the number of devices, a share is negative or no number, or none is
    /// positive.
    #[error(
        "the shares {shares:?} are not one number for each of {devices} devices, 0 or more, and one above 0"
    )]
    Shares {
        /// The shares.
        shares: Vec<f64>,
        /// The number of devices.
        devices: usize,
    },
    /// A kernel has no launcher for a device. A [`Variant`](crate::Variant) cannot be submitted.
    #[error("kernel {kernel} has no launcher for device {device}, which steps need")]
    NoLauncher {
        /// The kernel's name.
        kernel: String,
        /// The device's name.
        device: String,
    },
    /// An argument is a reduction, which [`step_every`](Iterate::step_every) allows and a step cannot have.
    #[error("kernel {kernel}: argument {index} is a reduction, which a step cannot have: see step_every")]
    Reduction {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
    },
    /// A kernel was not launched, or failed. What it and later kernels were to write is poisoned.
    #[error("step {step}: {cause}")]
    Failed {
        /// The step, from 1, at or before which the kernel was submitted.
        step: u64,
        /// The error of the kernel.
        cause: Box<SubmitError>,
    },
    /// A reduction could not be combined, after this step.
    #[error("after step {step}: {cause}")]
    Combine {
        /// The step, from 1.
        step: u64,
        /// The error.
        cause: Box<RunError>,
    },
    /// The buffers could not be copied for a checkpoint, or from one.
    #[error("checkpoint of step {step}: {cause}")]
    Checkpoint {
        /// The step, from 0.
        step: u64,
        /// The error.
        cause: Box<AcquireError>,
    },
    /// The callback returned an error. All steps up to this one are complete.
    #[error("after step {step}: {cause}")]
    Callback {
        /// The last step, from 1.
        step: u64,
        /// The callback's error.
        cause: KernelError,
    },
}

/// The strip of a device, which is empty if the device has no part in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Strip {
    /// The name of the kernel.
    pub kernel: String,
    /// The device.
    pub device: DeviceId,
    /// Its items.
    pub items: Range<u64>,
}

/// Complete steps.
#[derive(Debug)]
#[non_exhaustive]
pub struct Iterated {
    /// The number of steps.
    pub steps: u64,
    /// Whether the callback or the flag stopped them.
    pub is_stopped: bool,
    /// The time from the first submission to the end of the last kernel, with callbacks.
    pub duration: Duration,
    /// The number of times that strips were corrected.
    pub corrections: u32,
    /// The strips of the last step, by kernel and device, of the kernels of each step. That of a device which
    /// was left out is empty.
    pub strips: Vec<Strip>,
    /// The devices that failed, if there were checkpoints.
    pub failed: Vec<DeviceId>,
    /// The parts of all steps as packages, if they were [recorded](Iterate::record).
    pub report: Option<Report>,
    /// The ratios of the last strips, by device: what a later run can begin with. 0 if a device was left out.
    pub shares: Vec<f64>,
    /// The measured steps by which strips were corrected, or found balanced.
    pub measured: Vec<Measured>,
    swaps: Swaps,
}

/// A step whose durations were measured, to correct the strips.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// The ratios of the strips, by device.
    pub shares: Vec<f64>,
    /// The duration of each device's part; `None` if it had none.
    pub durations: Vec<Option<Duration>>,
}

/// The state between two steps, for a callback. No kernel is in flight.
#[derive(Debug)]
#[non_exhaustive]
pub struct Stepped<'a> {
    /// The number of complete steps.
    pub steps: u64,
    swaps: &'a Swaps,
}

impl Swaps {
    /// Returns a buffer that has no definite partner.
    fn ambiguous(&self) -> Option<&RawBuffer> {
        let all: Vec<_> = self.0.iter().flat_map(|(a, b, _)| [a, b]).collect();
        all.iter()
            .enumerate()
            .find(|(index, buffer)| all[..*index].contains(buffer))
            .map(|(_, buffer)| *buffer)
    }

    fn partner(&self, buffer: &RawBuffer) -> Option<&RawBuffer> {
        self.0.iter().find_map(|(a, b, _)| match buffer {
            buffer if buffer == a => Some(b),
            buffer if buffer == b => Some(a),
            _ => None,
        })
    }

    /// Returns the buffer that is in the place of another one after some steps.
    fn after<T: Pod + Send + Sync>(&self, steps: u64, buffer: &Buffer<T>) -> Buffer<T> {
        let swapped = self.0.iter().filter(|_| steps % 2 == 1).find_map(|(.., pair)| {
            let (a, b) = pair.downcast_ref::<(Buffer<T>, Buffer<T>)>()?;
            match buffer.raw() {
                raw if raw == a.raw() => Some(b),
                raw if raw == b.raw() => Some(a),
                _ => None,
            }
        });
        swapped.unwrap_or(buffer).clone()
    }
}

impl<'a> Iterate<'a> {
    /// Starts with no kernels, on all devices that have a launcher of each kernel. Strips are equal at
    /// first. From the second step on, at most eight corrections follow, until the durations of the devices
    /// in one step differ by 5 percent (standard deviation over mean). Then 16 steps at a time are made
    /// without one of the devices, which is left out if the others alone are not slower. A trial takes place
    /// if it is expected to lose at most 2 percent of the remaining time, so hardly in runs of a few hundred
    /// short steps.
    #[must_use]
    pub fn new(platform: &'a Platform) -> Self {
        Self {
            platform,
            devices: None,
            shares: None,
            steps: Vec::new(),
            checks: Vec::new(),
            swaps: Swaps::default(),
            callback: None,
            checkpoints: None,
            is_recorded: false,
            stop: None,
            knowledge: None,
        }
    }

    /// Uses these devices, which have strips in this order.
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        self.devices = Some(devices.into_iter().collect());
        self
    }

    /// Cuts strips in these ratios, one for each device; 0 leaves it out. They are not corrected. Those of an
    /// earlier run are [`Iterated::shares`].
    #[must_use]
    pub fn shares(mut self, shares: impl IntoIterator<Item = f64>) -> Self {
        self.shares = Some((shares.into_iter().collect(), false));
        self
    }

    /// Begins with strips in these ratios, one for each device, and corrects them. As
    /// [`shares`](Self::shares) otherwise, of which the last call counts.
    #[must_use]
    pub fn first_shares(mut self, shares: impl IntoIterator<Item = f64>) -> Self {
        self.shares = Some((shares.into_iter().collect(), true));
        self
    }

    /// Cuts the strips that an earlier run with this knowledge found, and does not correct them. Without
    /// such a run, or after [`first_shares`](Self::first_shares), it keeps those of this run if the devices
    /// ended together. They belong to the first kernel's name, its number of items and the devices.
    #[must_use]
    pub fn knowledge(mut self, knowledge: &Knowledge) -> Self {
        self.knowledge = Some(knowledge.clone());
        self
    }

    /// Adds a kernel to each step, behind those added before. It has `items` items.
    ///
    /// Its arguments are whole buffers with footprints. The footprint of what it reads may reach into the
    /// strips of other devices.
    #[must_use]
    pub fn step(mut self, kernel: &Kernel, items: u64) -> Self {
        self.steps.push((kernel.clone(), items));
        self
    }

    /// Adds a kernel that is launched after every `every` steps (0 counts as 1), when the buffers have
    /// changed places and before the callback. It may have [reductions](Argument::reduction), whose results
    /// the callback can read, such as the residual of a grid `a` with that before it in `b`:
    ///
    /// ```
    /// # use dml_core::{Access, Buffer, Platform};
    /// # use dml_scheduler::{Argument, Footprint, Iterate, Kernel};
    /// # use std::ops::ControlFlow;
    /// # fn example<'a>(iterate: Iterate<'a>, platform: &Platform, a: &Buffer<f64>, b: &Buffer<f64>, rows: u64)
    /// #     -> Result<Iterate<'a>, Box<dyn std::error::Error>> {
    /// let most = platform.buffer::<f64>(1).zeroed().build()?;
    /// let row = || Footprint::one_to_one(300 * 8);
    /// let change = Kernel::new("change", 1)
    ///     .argument(Argument::part(a, Access::ReadOnly, row()))
    ///     .argument(Argument::part(b, Access::ReadOnly, row()))
    ///     .argument(Argument::reduction(&most, 0.0, f64::max)); // and its launchers
    /// let iterate = iterate.step_every(50, &change, rows).every(50, move |_| {
    ///     Ok(if most.read()?[0] < 1e-6 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    /// });
    /// # Ok(iterate)
    /// # }
    /// ```
    #[must_use]
    pub fn step_every(mut self, every: u64, kernel: &Kernel, items: u64) -> Self {
        self.checks.push((every.max(1), kernel.clone(), items));
        self
    }

    /// Keeps a copy in main memory of what the kernels read and change, before the first step and after every
    /// `every` steps (0 counts as 1). If a kernel or a device fails, the steps since then are made again by
    /// the other devices, with their callbacks, also by devices that were left out. A device that failed once
    /// takes no further part. Without this call, a failure ends the run.
    #[must_use]
    pub fn checkpoint(mut self, every: u64) -> Self {
        self.checkpoints = Some(every.max(1));
        self
    }

    /// Records the parts of all steps as packages of [`Iterated::report`], for a timeline of a few steps.
    #[must_use]
    pub fn record(mut self) -> Self {
        self.is_recorded = true;
        self
    }

    /// Stops once the flag is set, for example by a handler of Ctrl-C. The steps in flight are completed. No
    /// step is made if it is set before the first one.
    #[must_use]
    pub fn stop(mut self, flag: &'a AtomicBool) -> Self {
        self.stop = Some(flag);
        self
    }

    /// Has two buffers change places in all kernels after each step. A scheme with three grids, such as
    /// leapfrog, has two if it overwrites the oldest one in place ([`Access::ReadWrite`](dml_core::Access)). A program with several grids calls this
    /// once for each.
    #[must_use]
    pub fn swap<T: Pod + Send + Sync>(mut self, a: &Buffer<T>, b: &Buffer<T>) -> Self {
        let pair = Box::new((a.clone(), b.clone()));
        self.swaps.0.push((a.raw().clone(), b.raw().clone(), pair));
        self
    }

    /// Calls a function after every `steps` steps (0 counts as 1), when no kernel is in flight. It may read
    /// the buffers, and change them by [`Buffer::read_write`], whose view it releases. It stops the steps by
    /// [`ControlFlow::Break`]. A second call replaces the first.
    ///
    /// ```
    /// # use dml_core::Buffer;
    /// # use dml_scheduler::Iterate;
    /// # use std::ops::ControlFlow;
    /// # fn example<'a>(iterate: Iterate<'a>, a: &'a Buffer<f64>) -> Iterate<'a> {
    /// iterate.every(50, |stepped| {
    ///     let hottest = stepped.buffer(a).read()?.iter().copied().fold(0.0, f64::max);
    ///     Ok(if hottest < 1e-6 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn every(
        mut self,
        steps: u64,
        callback: impl FnMut(&Stepped<'_>) -> Result<ControlFlow<()>, KernelError> + 'a,
    ) -> Self {
        self.callback = Some((steps.max(1), Box::new(callback)));
        self
    }

    /// Makes the steps, and returns when the last one has ended.
    ///
    /// # Errors
    /// [`IterateError`]. After [`IterateError::Failed`] the buffers have the results of complete steps, or
    /// poisoned bytes.
    #[track_caller]
    pub fn run(self, steps: u64) -> Result<Iterated, IterateError> {
        Run::new(self, steps, Location::caller())?.run()
    }

    fn balance(&self, chosen: &[DeviceId]) -> Result<Balance, IterateError> {
        let devices = chosen.len();
        let Some((shares, are_corrected)) = self.shares.clone() else {
            let known = self.knowledge.as_ref().zip(self.steps.first());
            let descs = chosen.iter().map(|device| self.platform.device_desc(*device));
            let known = known.and_then(|(known, (kernel, items))| known.strips(kernel.name(), *items, descs));
            return Ok(known.map_or_else(|| Balance::new(vec![1.0; devices]), Balance::fixed));
        };
        if shares.len() != devices
            || !shares.iter().all(|share| share.is_finite() && *share >= 0.0)
            || shares.iter().sum::<f64>() <= 0.0
        {
            return Err(IterateError::Shares { shares, devices });
        }
        Ok(if are_corrected { Balance::new(shares) } else { Balance::fixed(shares) })
    }

    /// Returns the devices: those that were named, or all with a launcher of each kernel.
    fn chosen(&self) -> Result<Vec<DeviceId>, IterateError> {
        let Some((first, _)) = self.steps.first() else { return Err(IterateError::NoKernel) };
        let devices = self.devices.clone().unwrap_or_else(|| {
            let kernels = || {
                self.steps
                    .iter()
                    .map(|(kernel, _)| kernel)
                    .chain(self.checks.iter().map(|(_, kernel, _)| kernel))
            };
            let runs_all = |device: &DeviceId| kernels().all(|kernel| kernel.launcher_for(*device).is_some());
            self.platform.device_ids().filter(runs_all).collect()
        });
        if devices.is_empty() {
            return Err(RunError::NoDevices { kernel: first.name().to_owned() }.into());
        }
        let count = self.platform.devices().len();
        for (index, device) in devices.iter().enumerate() {
            let Some(desc) = self.platform.devices().get(usize::from(device.0)) else {
                let kernel = first.name().to_owned();
                return Err(RunError::UnknownDevice { kernel, device: *device, devices: count }.into());
            };
            if devices[..index].contains(device) {
                return Err(RunError::DuplicateDevice { device: desc.name.to_string() }.into());
            }
        }
        Ok(devices)
    }

    /// Returns the kernels for these devices.
    fn kernels(
        &self,
        devices: &[DeviceId],
        origin: &'static Location<'static>,
    ) -> Result<Kernels, IterateError> {
        if let Some(buffer) = self.swaps.ambiguous() {
            return Err(IterateError::Swap { buffer: buffer.name() });
        }
        let mut kernels = Kernels::default();
        for (kernel, items) in &self.steps {
            if let Some(index) = kernel.arguments().iter().position(Argument::is_reduced) {
                let (kernel, index) = (kernel.name().to_owned(), kernel.position(index));
                return Err(IterateError::Reduction { kernel, index });
            }
            let [odd, even] = self.both(kernel, *items, devices, origin)?;
            kernels.steps[0].push(odd);
            kernels.steps[1].push(even);
        }
        for (every, kernel, items) in &self.checks {
            kernels.checks.push((*every, self.both(kernel, *items, devices, origin)?));
        }
        Ok(kernels)
    }

    /// Returns a kernel with the buffers of an odd step, and with those of an even one.
    fn both(
        &self,
        kernel: &Kernel,
        items: u64,
        devices: &[DeviceId],
        origin: &'static Location<'static>,
    ) -> Result<[Kernel; 2], IterateError> {
        self.check(kernel, items, devices)?;
        let odd = kernel.for_run(devices.len(), items, origin)?;
        let mut even = odd.clone();
        self.exchange(&mut even)?;
        // The buffers that change places may differ in size.
        self.check(&even, items, devices)?;
        Ok([odd, even])
    }

    fn check(&self, kernel: &Kernel, items: u64, devices: &[DeviceId]) -> Result<(), IterateError> {
        if let Some(device) = devices.iter().find(|device| kernel.launcher_for(**device).is_none()) {
            let device = self.platform.device_desc(*device).name.to_string();
            return Err(IterateError::NoLauncher { kernel: kernel.name().to_owned(), device });
        }
        kernel.check_platform(self.platform)?;
        kernel.check_launchers(self.platform)?;
        kernel.check_items(items)?;
        Ok(kernel.check_writes(items)?)
    }

    /// Gives a kernel the buffers of an even step.
    fn exchange(&self, kernel: &mut Kernel) -> Result<(), IterateError> {
        for place in 0..kernel.arguments().len() {
            if let Some(partner) = self.swaps.partner(kernel.arguments()[place].buffer()) {
                let index = kernel.position(place);
                let exchanged = kernel.set_buffer(index, partner);
                exchanged.map_err(|misfit| RunError::Misfit {
                    kernel: kernel.name().to_owned(),
                    device: "every device".to_owned(),
                    cause: misfit.to_string(),
                })?;
            }
        }
        Ok(())
    }
}

impl Iterated {
    /// Returns the buffer that a kernel which names `buffer` would get in the next step.
    #[must_use]
    pub fn buffer<T: Pod + Send + Sync>(&self, buffer: &Buffer<T>) -> Buffer<T> {
        self.swaps.after(self.steps, buffer)
    }
}

impl Stepped<'_> {
    /// Returns the buffer that a kernel which names `buffer` gets in the next step.
    #[must_use]
    pub fn buffer<T: Pod + Send + Sync>(&self, buffer: &Buffer<T>) -> Buffer<T> {
        self.swaps.after(self.steps, buffer)
    }
}

impl fmt::Debug for Swaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(a, b, _)| (a, b))).finish()
    }
}

impl fmt::Debug for Iterate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iterate")
            .field("devices", &self.devices)
            .field("shares", &self.shares)
            .field("steps", &self.steps)
            .field("checks", &self.checks)
            .field("swaps", &self.swaps)
            .field("checkpoints", &self.checkpoints)
            .finish_non_exhaustive()
    }
}
