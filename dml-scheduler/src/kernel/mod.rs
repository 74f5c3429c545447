//! The kernel of a co-execution: its arguments, and how each device runs it.
//!
//! ```text
//!   Kernel ── arguments ──▶ footprints of a package ──▶ acquire, range by range ──▶ Grants
//!     │                                                                               │
//!     └── device ──▶ Variant: code that knows its scalars ◀───────────────────────────┤
//!                └─▶ Launcher: one of a framework, given the package's arguments ◀────┘
//! ```
//! The grants have one item for each range of each argument, in this order. So a host kernel has as many views of an argument
//! as the argument's footprint has ranges.

mod argument;
mod footprint;
mod reduction;
mod variant;

pub use argument::Argument;
pub(crate) use footprint::shared;
pub use footprint::{Footprint, FootprintError, FootprintFault};
pub use variant::{KernelError, NotStarted, Variant};

use crate::commander::Commander;
use crate::guard::{guarded, quietly};
use crate::package::Package;
use crate::report::RunError;
use crate::running::Interrupted;
use argument::Parameter;
use bytemuck::Pod;
use dml_core::sync::Mutex;
use dml_core::{
    Access, Acquire, ArenaDesc, ArenaKind, Buffer, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence,
    Grants, ItemShape, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform, RawBuffer, Region, Scalar,
};
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

/// How a device runs a kernel.
#[derive(Clone)]
enum How {
    /// Code that has its buffers and scalars itself.
    Variant(Arc<dyn Variant>),
    /// A launcher, which is given the kernel's arguments; how many of these it has checked, and in which shape.
    Launcher(Arc<dyn Launcher>, (usize, ItemShape)),
}

/// An argument, and the ranges of it that a package touches.
type Touched<'a> = (&'a Argument, Vec<Range<u64>>);

/// A data-parallel kernel over items `0..n`: its arguments, and how each device runs it.
///
/// Arguments are added in the order of the kernel's signature. A [`Launcher`] is given all of them. A [`Variant`] is given the
/// grants of the buffers alone, and knows the rest itself.
///
/// ```
/// # use dml_core::{ArenaDesc, Platform};
/// use dml_scheduler::{Argument, Footprint, Kernel};
/// use dml_core::Access;
/// # fn made(platform: &Platform) -> Result<(), Box<dyn std::error::Error>> {
/// let picture = platform.buffer::<u8>(640 * 480).build()?;
/// let blurred = platform.buffer::<u8>(640 * 480).build()?;
/// let kernel = Kernel::new("blur", 64)
///     .argument(Argument::part(&picture, Access::ReadOnly, Footprint::rows(640, 640, 3)))
///     .write(&blurred) // one element per item
///     .scalar(640_u32)
///     .end(); // the item after the package's last one
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Kernel {
    name: String,
    local_size: u64,
    shape: ItemShape,
    arguments: Vec<Argument>,
    parameters: Vec<Parameter>,
    devices: Vec<(DeviceId, How)>,
    /// The devices that have launched it, or a clone of it.
    launched: Arc<Mutex<DeviceSet>>,
    /// The platforms for whose devices variants were made.
    platforms: Vec<Platform>,
    /// The number of items of the run that this copy is for; 0 elsewhere.
    total: u64,
    is_undivided: bool,
    /// Where the run was asked for that this copy is for.
    asked_at: Option<&'static Location<'static>>,
    /// The dimension of the items that was asked for.
    axis: Option<usize>,
}

impl Kernel {
    /// Makes a kernel without arguments or variants. All packages but the last are multiples of `local_size` items. An item
    /// is one work-item, and `local_size` of them are a work-group. A size that a device does not allow is refused
    /// ([`Misfit::Groups`]). With 0 each framework chooses, and packages may have any length; a source in which a kernel asks for its
    /// group needs a size.
    ///
    /// Kernels in OpenCL C and CUDA C see their group, and the size of the launch, as if all items were launched at once.
    #[must_use]
    pub fn new(name: impl Into<String>, local_size: u64) -> Self {
        Self {
            name: name.into(),
            local_size,
            shape: ItemShape::line(local_size),
            arguments: Vec::new(),
            parameters: Vec::new(),
            devices: Vec::new(),
            launched: Arc::default(),
            platforms: Vec::new(),
            total: 0,
            is_undivided: false,
            asked_at: None,
            axis: None,
        }
    }

    /// Makes each item a row of so many work-items. A work-group has `local` columns, and the kernel's local size of rows. Each framework
    /// chooses a size that is 0.
    #[must_use]
    pub fn rows(self, columns: u64, local: u64) -> Self {
        let local = [local, self.local_size];
        self.shaped(ItemShape::rows(columns, local))
    }

    /// Sets the shape of the items, along the dimension that was asked for if there is one.
    fn shaped(mut self, shape: ItemShape) -> Self {
        self.shape = self.axis.and_then(|axis| shape.along(axis)).unwrap_or(shape);
        self
    }

    /// Makes each item a plane of so many columns and rows of work-items. A work-group has `local` columns and rows, and the
    /// kernel's local size of planes.
    #[must_use]
    pub fn planes(self, plane: [u64; 2], local: [u64; 2]) -> Self {
        let local = [local[0], local[1], self.local_size];
        self.shaped(ItemShape::planes(plane, local))
    }

    /// Makes another dimension that of the items: `get_global_id(axis)` is the item's number. The other dimensions keep their order,
    /// so [`rows`](Self::rows) along dimension 0 have their columns along dimension 1. Rows and planes that are set later have their
    /// items along this dimension too, as far as they have it.
    ///
    /// # Errors
    /// [`Misfit::Axis`] if the kernel does not have so many dimensions.
    pub fn along(mut self, axis: usize) -> Result<Self, Misfit> {
        let dimensions = self.shape.dimensions();
        self.shape = self.shape.along(axis).ok_or_else(|| Misfit::Axis {
            kernel: self.name.clone(),
            axis,
            dimensions,
        })?;
        self.axis = Some(axis);
        Ok(self)
    }

    /// Runs all items as one package on one device. It is for kernels whose work-groups write the same bytes, or wait for each
    /// other: any footprint may be written, and policies have nothing to divide.
    ///
    /// The device is the one with the least predicted time: the rate of earlier runs, plus copies of the inputs from where they
    /// are valid. A device without a rate gets one run if its copies alone take less than that. If the device fails, the other
    /// devices compute the package, as far as its inputs are left.
    #[must_use]
    pub fn undivided(mut self) -> Self {
        self.is_undivided = true;
        self
    }

    /// Adds a buffer.
    #[must_use]
    pub fn argument(mut self, argument: Argument) -> Self {
        self.parameters.push(Parameter::Buffer(self.arguments.len()));
        self.arguments.push(argument);
        self.told()
    }

    /// Adds a buffer that is read, one element per item.
    #[must_use]
    pub fn read<T: Pod>(self, buffer: &Buffer<T>) -> Self {
        self.element(buffer, Access::ReadOnly)
    }

    /// Adds a buffer that is overwritten, one element per item.
    #[must_use]
    pub fn write<T: Pod>(self, buffer: &Buffer<T>) -> Self {
        self.element(buffer, Access::WriteInvalidate)
    }

    /// Adds a buffer that is read and changed, one element per item.
    #[must_use]
    pub fn read_write<T: Pod>(self, buffer: &Buffer<T>) -> Self {
        self.element(buffer, Access::ReadWrite)
    }

    /// Adds a buffer that every package reads completely.
    #[must_use]
    pub fn read_all(self, region: &impl Region) -> Self {
        self.argument(Argument::whole(region))
    }

    /// Adds a buffer all of which an [undivided](Self::undivided) kernel overwrites.
    #[must_use]
    pub fn write_all(self, region: &impl Region) -> Self {
        self.argument(Argument::part(region, Access::WriteInvalidate, Footprint::Whole))
    }

    /// Adds a buffer of which an [undivided](Self::undivided) kernel reads and changes any bytes.
    #[must_use]
    pub fn read_write_all(self, region: &impl Region) -> Self {
        self.argument(Argument::part(region, Access::ReadWrite, Footprint::Whole))
    }

    fn element<T: Pod>(self, buffer: &Buffer<T>, access: Access) -> Self {
        self.argument(Argument::part(buffer, access, Footprint::one_to_one(size_of::<T>() as u64)))
    }

    /// Adds a buffer to which every package adds: see [`Argument::reduction`].
    #[must_use]
    pub fn reduce<T: Pod + fmt::Debug + Send + Sync>(
        self,
        result: &Buffer<T>,
        identity: T,
        combine: impl Fn(T, T) -> T + Send + Sync + 'static,
    ) -> Self {
        self.argument(Argument::reduction(result, identity, combine))
    }

    /// Adds a scalar. [`set_scalar`](Self::set_scalar) changes its value later.
    #[must_use]
    pub fn scalar(mut self, value: impl Into<Scalar>) -> Self {
        self.parameters.push(Parameter::Value(LaunchArg::Scalar(value.into())));
        self.told()
    }

    /// Adds a scalar that is computed for each package.
    #[must_use]
    pub fn scalar_of<S: Into<Scalar> + Default>(
        mut self,
        value: impl Fn(&Package) -> S + Send + Sync + 'static,
    ) -> Self {
        self.parameters.push(Parameter::of_package(value));
        self.told()
    }

    /// Adds the item after the package's last one, as a `u64`: frameworks that pad a launch to whole groups need it.
    #[must_use]
    pub fn end(self) -> Self {
        self.scalar_of(Package::end)
    }

    /// Adds a value of any other type, as its bytes.
    #[must_use]
    pub fn value<T: Pod>(mut self, value: &T) -> Self {
        self.parameters.push(Parameter::Value(LaunchArg::Bytes(bytemuck::bytes_of(value).into())));
        self.told()
    }

    /// Adds memory of each work-group, in bytes, at least one and as many as the device has. Frameworks without work-groups pass nothing
    /// in its place.
    #[must_use]
    pub fn local_memory(mut self, bytes: u64) -> Self {
        self.parameters.push(Parameter::Value(LaunchArg::Local(bytes)));
        self.told()
    }

    /// Tells the footprints of a change of the parameters.
    fn told(mut self) -> Self {
        self.tell();
        self
    }

    fn tell(&mut self) {
        self.arguments.iter_mut().for_each(|argument| argument.tell(&self.parameters));
    }

    /// Changes a scalar for the runs that follow. `index` counts all arguments, in the order in which they were added.
    ///
    /// # Errors
    /// [`Misfit`] if there is no argument of this index, or if it is not a scalar of the same type.
    pub fn set_scalar(&mut self, index: usize, value: impl Into<Scalar>) -> Result<(), Misfit> {
        let (kernel, value, takes) = (self.name.clone(), value.into(), self.parameters.len());
        match self.parameters.get_mut(index) {
            None => Err(Misfit::Missing { kernel, index, takes }),
            Some(Parameter::Value(LaunchArg::Scalar(old))) if old.is_like(value) => {
                *old = value;
                self.tell();
                Ok(())
            }
            Some(other) => {
                let takes = match other {
                    Parameter::Buffer(_) => "a buffer".to_owned(),
                    Parameter::OfPackage(_) => "computed for each package".to_owned(),
                    Parameter::Value(value) => value.describe(),
                };
                Err(Misfit::Argument { kernel, index, takes, given: LaunchArg::Scalar(value).describe() })
            }
        }
    }

    /// Sets how a device runs the kernel; the last call for a device counts.
    #[must_use]
    pub fn variant(self, device: DeviceId, variant: impl Variant + 'static) -> Self {
        self.on(device, How::Variant(Arc::new(variant)))
    }

    /// Sets how those devices of a kind run the kernel that have no variant of their own yet.
    #[must_use]
    pub fn variant_for_kind(
        self,
        platform: &Platform,
        kind: DeviceKind,
        variant: impl Variant + 'static,
    ) -> Self {
        self.variant_where(platform, variant, |device, _| device.kind == kind)
    }

    /// Sets how those devices run the kernel whose memory is of a kind, and that have no variant of their own yet.
    #[must_use]
    pub fn variant_for_arenas(
        self,
        platform: &Platform,
        kind: ArenaKind,
        variant: impl Variant + 'static,
    ) -> Self {
        self.variant_where(platform, variant, |_, arena| arena.kind == kind)
    }

    fn variant_where(
        mut self,
        platform: &Platform,
        variant: impl Variant + 'static,
        is_meant: impl Fn(&DeviceDesc, &ArenaDesc) -> bool,
    ) -> Self {
        let variant: Arc<dyn Variant> = Arc::new(variant);
        self.platforms.push(platform.clone());
        for (device, desc) in (0..).map(DeviceId).zip(platform.devices()) {
            let home = platform.home(device).map(|home| platform.desc(home));
            if home.is_some_and(|arena| is_meant(desc, arena)) && self.variant_for(device).is_none() {
                self = self.on(device, How::Variant(variant.clone()));
            }
        }
        self
    }

    /// Lets devices run the kernel by launchers, which are given its arguments; the last call for a device counts. The
    /// arguments should be there already: what is added or changed later is checked when a run begins ([`RunError::Misfit`]).
    ///
    /// # Errors
    /// [`Misfit`] if a launcher knows that the arguments or the work-groups do not fit.
    pub fn launchers<L: Launcher + 'static>(
        mut self,
        launchers: impl IntoIterator<Item = (DeviceId, L)>,
    ) -> Result<Self, Misfit> {
        let samples = self.samples();
        for (device, launcher) in launchers {
            launcher.check(&samples)?;
            launcher.check_groups(&self.shape)?;
            let checked = (samples.len(), self.shape);
            self = self.on(device, How::Launcher(Arc::new(launcher), checked));
        }
        Ok(self)
    }

    /// An argument of the right kind for each place of the signature.
    fn samples(&self) -> Vec<LaunchArg> {
        let sample =
            |parameter: &Parameter| parameter.argument(&self.arguments, None).expect("no footprint is asked");
        self.parameters.iter().map(sample).collect()
    }

    fn on(mut self, device: DeviceId, how: How) -> Self {
        match self.devices.iter_mut().find(|(other, _)| *other == device) {
            Some((_, known)) => quietly(std::mem::replace(known, how)),
            None => self.devices.push((device, how)),
        }
        self
    }

    /// The kernel's name, for reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The local work size in items; 0 where each framework chooses.
    #[must_use]
    pub fn local_size(&self) -> u64 {
        self.local_size
    }

    /// What the lengths of packages are multiples of, in items.
    pub(crate) fn grain(&self) -> u64 {
        if self.is_undivided { self.total.max(1) } else { self.local_size.max(1) }
    }

    /// Whether one device computes all items in one package.
    /// The number of work-items of an item.
    pub(crate) fn work_items_per_item(&self) -> u64 {
        self.shape.global(&(0..1)).into_iter().fold(1, u64::saturating_mul)
    }

    pub(crate) fn is_undivided(&self) -> bool {
        self.is_undivided
    }

    /// The buffers, in their order.
    #[must_use]
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The devices that can run the kernel.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.devices.iter().map(|(device, _)| *device)
    }

    /// Returns whether all results of a computed package can be read, in any arena.
    pub(crate) fn has_results(&self, package: &Package) -> bool {
        let mut written = self.arguments.iter().filter(|argument| argument.access().writes());
        written.all(|argument| argument.is_readable(package))
    }

    /// Returns whether all inputs of a package can be read, in any arena.
    pub(crate) fn has_inputs(&self, package: &Package) -> bool {
        // A package that is computed again adds to the partial of another unit.
        let is_input = |argument: &&Argument| argument.access().reads() && !argument.is_reduced();
        let mut read = self.arguments.iter().filter(is_input);
        read.all(|argument| argument.is_readable(package))
    }

    /// Returns whether a computed package can be computed again without changing its inputs a second time: if it has read-write arguments, it cannot.
    /// Nor can one with a footprint that is at fault by now: nobody knows what it has changed.
    pub(crate) fn is_repeatable(&self, package: &Package) -> bool {
        let is_changed =
            |argument: &&Argument| argument.access() == Access::ReadWrite && !argument.is_reduced();
        let mut changed = self.arguments.iter().filter(is_changed);
        changed.all(|argument| {
            argument.ranges(package.range()).is_ok_and(|ranges| ranges.iter().all(Range::is_empty))
        })
    }

    /// Returns what a package touches: each argument with its ranges, in the order of the arguments.
    ///
    /// # Errors
    /// [`FootprintError`] for the first footprint that is at fault.
    pub(crate) fn ranges(&self, items: Range<u64>) -> Result<Vec<Touched<'_>>, FootprintError> {
        let of = |(index, argument): (usize, _)| {
            let ranges = Argument::ranges(argument, items.clone());
            ranges
                .map(|ranges| (argument, ranges))
                .map_err(|cause| self.at_fault(index, items.clone(), cause))
        };
        self.arguments.iter().enumerate().map(of).collect()
    }

    fn at_fault(&self, argument: usize, items: Range<u64>, cause: FootprintFault) -> FootprintError {
        let (kernel, buffer) = (self.name.clone(), self.arguments[argument].buffer().name());
        FootprintError { kernel, argument: self.position(argument), buffer, items, cause }
    }

    /// Asks for the package's part of every argument, range by range.
    ///
    /// # Errors
    /// As [`ranges`](Self::ranges).
    pub(crate) fn acquire(
        &self,
        platform: &Platform,
        device: DeviceId,
        package: &Package,
    ) -> Result<Acquire, FootprintError> {
        let mut acquire = platform.acquire(device);
        if let Some(origin) = self.asked_at {
            acquire = acquire.located_at(origin);
        }
        for (argument, ranges) in self.ranges(package.range())? {
            for bytes in ranges {
                acquire = acquire.access(&argument.buffer_of(package).range(bytes), argument.access());
            }
        }
        Ok(acquire)
    }

    /// Returns the parts of buffers that a package wrote.
    ///
    /// # Errors
    /// As [`ranges`](Self::ranges).
    pub(crate) fn results(&self, package: &Package) -> Result<Vec<(&RawBuffer, Range<u64>)>, FootprintError> {
        let written =
            self.ranges(package.range())?.into_iter().filter(|(argument, _)| argument.access().writes());
        let parts = written.flat_map(|(argument, ranges)| {
            ranges.into_iter().map(|bytes| (argument.buffer_of(package), bytes))
        });
        Ok(parts.collect())
    }

    /// Returns the parts of buffers that a package reads and changes. Footprints that are at fault are left out: no unit
    /// has acquired their bytes.
    pub(crate) fn changed(&self, package: &Package) -> Vec<(&RawBuffer, Range<u64>)> {
        let changed = self.arguments.iter().filter(|argument| argument.access() == Access::ReadWrite);
        let ranges = |argument: &Argument| argument.ranges(package.range()).unwrap_or_default();
        changed
            .flat_map(|argument| {
                ranges(argument).into_iter().map(|bytes| (argument.buffer_of(package), bytes))
            })
            .collect()
    }

    /// Checks that the kernel was made for the platform: its buffers, and the variants that were chosen by a property of devices.
    pub(crate) fn check_platform(&self, platform: &Platform) -> Result<(), RunError> {
        let foreign = |what: String| Err(RunError::OtherPlatform { kernel: self.name.clone(), what });
        if let Some(index) = self.arguments.iter().position(|argument| !platform.owns(argument.buffer())) {
            return foreign(format!("the buffer of argument {}", self.position(index)));
        }
        // Every platform has a list of its own.
        if self.platforms.iter().any(|other| !std::ptr::eq(other.devices(), platform.devices())) {
            return foreign("a variant for a kind of devices or arenas".to_owned());
        }
        Ok(())
    }

    /// Lets those launchers check the kernel again that it was changed behind.
    pub(crate) fn check_launchers(&self, platform: &Platform) -> Result<(), RunError> {
        for (device, how) in &self.devices {
            let How::Launcher(launcher, checked) = how else { continue };
            if *checked == (self.parameters.len(), self.shape) {
                continue;
            }
            let told = guarded(|| {
                let told = launcher.check(&self.samples()).and_then(|()| launcher.check_groups(&self.shape));
                told.map_err(|misfit| misfit.to_string())
            });
            let told = told.unwrap_or_else(|message| Err(format!("the launcher panicked: {message}")));
            told.map_err(|cause| {
                let desc = platform.devices().get(usize::from(device.0));
                let device = desc.map_or_else(|| device.to_string(), |desc| desc.name.to_string());
                RunError::Misfit { kernel: self.name.clone(), device, cause }
            })?;
        }
        Ok(())
    }

    /// Checks that the buffers have bytes for all items, if a launcher is to compute them: what a framework's kernel does past
    /// the end of its buffers, no footprint can tell. A variant answers for that itself.
    pub(crate) fn check_items(&self, items: u64) -> Result<(), RunError> {
        if !self.devices.iter().any(|(_, how)| matches!(how, How::Launcher(..))) {
            return Ok(());
        }
        for (index, argument) in self.arguments.iter().enumerate() {
            match argument.footprint().holds(argument.buffer().len()) {
                Some(holds) if holds < items => {
                    let (kernel, index) = (self.name.clone(), self.position(index));
                    let buffer = argument.buffer().name();
                    return Err(RunError::TooManyItems { kernel, index, buffer, holds, items });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that no two packages write the same bytes, because packages run side by side. Packages of one work-group that
    /// follow each other are compared, at some places between the items. For the named footprints that is exact.
    pub(crate) fn check_writes(&self, items: u64) -> Result<(), RunError> {
        for (index, argument) in self.arguments.iter().enumerate() {
            let (place, name) = (self.position(index), || (self.name.clone(), argument.buffer().name()));
            if let Some(bytes) = argument.part_of_buffer() {
                let (kernel, buffer) = name();
                return Err(RunError::PartOfBuffer { kernel, index: place, buffer, bytes });
            }
            if argument.access().writes() && argument.buffer().is_held_here() {
                let (kernel, buffer) = name();
                return Err(RunError::HeldByCaller { kernel, index: place, buffer });
            }
            let before = self.arguments[..index].iter().position(|other| other.buffer() == argument.buffer());
            if let Some(first) = before
                && (argument.access().writes() || self.arguments[first].access().writes())
            {
                let (kernel, first) = (self.name.clone(), self.position(first));
                return Err(RunError::OneBufferTwice { kernel, first, second: place });
            }
        }
        if self.is_undivided {
            return Ok(());
        }
        let is_shared = |argument: &Argument| argument.access().writes() && !argument.is_reduced();
        let written = self.arguments.iter().enumerate().filter(|(_, argument)| is_shared(argument));
        for (index, argument) in written {
            let (index, buffer) = (self.position(index), argument.buffer().name());
            if matches!(argument.footprint(), Footprint::Whole) {
                return Err(RunError::WholeWrite { kernel: self.name.clone(), index, buffer });
            }
            for (first, second) in neighbours(self.grain(), items) {
                // A footprint that is at fault fails its packages.
                let ranges = |items: &Range<u64>| argument.ranges(items.clone()).unwrap_or_default();
                if let Some(bytes) = footprint::shared(&ranges(&first), &ranges(&second)) {
                    let kernel = self.name.clone();
                    return Err(RunError::SharedWrites { kernel, index, buffer, first, second, bytes });
                }
            }
        }
        Ok(())
    }

    /// Makes a copy of the kernel for a run of so many items, in which each unit has its partials of the reductions.
    pub(crate) fn for_run(
        &self,
        units: usize,
        items: u64,
        asked_at: &'static Location<'static>,
    ) -> Result<Self, RunError> {
        let mut own = self.clone();
        own.total = items;
        own.asked_at = Some(asked_at);
        for (index, argument) in self.arguments.iter().enumerate() {
            own.arguments[index] =
                argument.for_run(units).map_err(|cause| self.not_reduced(index, &*cause))?;
        }
        Ok(own)
    }

    /// Combines the partials of a run in which all items were computed: of those units to which packages are left. Another
    /// unit's partial may be spoiled.
    pub(crate) fn combine(&self, has_added: &[bool], commander: &Commander) -> Result<(), RunError> {
        for (index, argument) in self.arguments.iter().enumerate() {
            argument.combine(has_added, commander).map_err(|cause| {
                if cause.is::<Interrupted>() {
                    let kernel = self.name.clone();
                    RunError::Cancelled { kernel, missing: 0, failures: Vec::new() }
                } else {
                    self.not_reduced(index, &*cause)
                }
            })?;
        }
        Ok(())
    }

    fn not_reduced(&self, index: usize, cause: &dyn Error) -> RunError {
        RunError::Reduction {
            kernel: self.name.clone(),
            index: self.position(index),
            buffer: self.arguments[index].buffer().name(),
            cause: cause.to_string(),
        }
    }

    /// Returns how a device runs the kernel.
    pub(crate) fn variant_for(&self, device: DeviceId) -> Option<DeviceVariant<'_>> {
        let (_, how) = self.devices.iter().find(|(other, _)| *other == device)?;
        Some(DeviceVariant { kernel: self, device, how })
    }

    /// Returns the launcher of a device, if the device runs the kernel by one.
    pub(crate) fn launcher_for(&self, device: DeviceId) -> Option<&Arc<dyn Launcher>> {
        match self.variant_for(device)?.how {
            How::Launcher(launcher, _) => Some(launcher),
            How::Variant(_) => None,
        }
    }

    /// Returns whether a device has launched the kernel, or a clone of it.
    pub(crate) fn has_launched_on(&self, device: DeviceId) -> bool {
        self.launched.lock().contains(device)
    }

    /// Returns the arguments of a package, with other buffers in the place of the kernel's.
    ///
    /// # Errors
    /// As [`ranges`](Self::ranges).
    pub(crate) fn launch_args(
        &self,
        package: &Package,
        buffers: &[Argument],
    ) -> Result<Vec<LaunchArg>, FootprintError> {
        let argument = |parameter: &Parameter| {
            let argument = parameter.argument(buffers, Some(package));
            argument.map_err(|(index, cause)| self.at_fault(index, package.range(), cause))
        };
        self.parameters.iter().map(argument).collect()
    }

    /// Makes a copy of the kernel for launches that are parts of a run of so many items.
    pub(crate) fn of_total(&self, items: u64) -> Self {
        let mut own = self.clone();
        own.total = items;
        own
    }

    /// Returns the position of a buffer among all arguments, by its index among the buffers.
    pub(crate) fn position(&self, buffer: usize) -> usize {
        let is_its =
            |parameter: &Parameter| matches!(parameter, Parameter::Buffer(index) if *index == buffer);
        self.parameters.iter().position(is_its).unwrap_or(buffer)
    }

    /// Returns the launch of some items of a run.
    pub(crate) fn launch<'a>(&'a self, items: &'a Range<u64>, arguments: &'a [LaunchArg]) -> Launch<'a> {
        Launch::new(items, &self.shape, arguments).of(self.total)
    }
}

/// Returns pairs of neighbouring work-groups, at some places between `items` items: the first few, the last, and some between.
fn neighbours(local: u64, items: u64) -> impl Iterator<Item = (Range<u64>, Range<u64>)> {
    const PLACES: u64 = 16;
    let places = items.saturating_sub(1) / local;
    let some =
        (1..=places.min(PLACES)).chain((1..=PLACES).map(move |part| places / PLACES * part)).chain([places]);
    some.filter(|&place| place > 0).map(move |place| {
        let between = place * local;
        (between - local..between, between..between.saturating_add(local).min(items))
    })
}

/// How one device runs a kernel.
#[derive(Clone, Copy)]
pub(crate) struct DeviceVariant<'a> {
    kernel: &'a Kernel,
    device: DeviceId,
    how: &'a How,
}

impl DeviceVariant<'_> {
    /// Launches a package, as [`Variant::launch`] does.
    pub(crate) fn launch(&self, package: &Package, grants: &mut Grants) -> Result<Fence, KernelError> {
        let mut launched = self.kernel.launched.lock();
        *launched = launched.with(self.device);
        drop(launched);
        match self.how {
            How::Variant(variant) => variant.launch(package, grants),
            How::Launcher(launcher, _) => {
                let arguments =
                    self.kernel.launch_args(package, &self.kernel.arguments).map_err(NotStarted::new)?;
                let items = package.range();
                // Each package has grants of its own.
                let launch = self.kernel.launch(&items, &arguments).independent();
                launcher.launch(&launch, grants).map_err(|error| match error {
                    LaunchError::NotStarted(cause) => NotStarted::new(cause).into(),
                    LaunchError::Failed(cause) => cause,
                })
            }
        }
    }
}

/// Variants, launchers and footprints are dropped one after the other: two that panic in one unwinding would end the process.
impl Drop for Kernel {
    fn drop(&mut self) {
        std::mem::take(&mut self.devices).into_iter().for_each(quietly);
        std::mem::take(&mut self.parameters).into_iter().for_each(quietly);
        std::mem::take(&mut self.arguments).into_iter().for_each(quietly);
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("shape", &self.shape)
            .field("arguments", &self.arguments)
            .field("parameters", &self.parameters)
            .field("devices", &self.devices().collect::<Vec<_>>())
            .finish()
    }
}
