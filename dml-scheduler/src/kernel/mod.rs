//! The kernel of a co-execution: its arguments, and how each device runs it.
//!
//! ```text
//!   Kernel ── arguments ──▶ footprints of a package ──▶ acquire, range by range ──▶ Grants
//!     │                                                                               │
//!     └── device ──▶ Variant: code that captures its scalars ◀────────────────────────┤
//!                └─▶ Launcher: a framework's, given the package's arguments ◀─────────┘
//! ```
//! The grants hold one entry per range of each argument, in argument order. So a host kernel has one view per
//! range of an argument's footprint.

mod argument;
mod checks;
mod footprint;
mod packages;
mod reduction;
mod variant;

pub use argument::Argument;
pub(crate) use footprint::shared;
pub use footprint::{Footprint, FootprintError, FootprintFault};
pub use variant::{KernelError, NotStarted, Variant};

use crate::base::guard::quietly;
use crate::base::package::{Package, UnitId};
use argument::Parameter;
use bytemuck::Pod;
use dml_core::internal::sync::Mutex;
use dml_core::{
    Access, ArenaDesc, ArenaKind, Buffer, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, Grants,
    ItemShape, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform, Region, Scalar,
};
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

/// How a device runs a kernel.
#[derive(Clone)]
enum How {
    /// Code that captures its buffers and scalars.
    Variant(Arc<dyn Variant>),
    /// A launcher, and the number of arguments and the item shape that it has checked.
    Launcher(Arc<dyn Launcher>, (usize, ItemShape)),
}

/// An argument with the byte ranges that a package touches.
type Touched<'a> = (&'a Argument, Vec<Range<u64>>);

/// A data-parallel kernel over items `0..n`: its arguments, and how each device runs it.
///
/// Arguments are added in the order of the kernel's signature. A [`Launcher`] receives all of them. A
/// [`Variant`] receives only the grants of the buffers, and captures the other arguments.
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
    /// Devices that have launched this kernel or a clone of it.
    launched: Arc<Mutex<DeviceSet>>,
    /// Platforms whose devices were given variants by a property, such as their kind.
    platforms: Vec<Platform>,
    /// Number of items of the run that this copy is for; 0 if it is for no run.
    total: u64,
    is_undivided: bool,
    /// Call site of the run that this copy is for.
    asked_at: Option<&'static Location<'static>>,
    /// Requested dimension of the items.
    axis: Option<usize>,
}

impl Kernel {
    /// Creates a kernel without arguments or variants, with work-groups of `local_size` items.
    ///
    /// An item is one work-item. All packages but the last are multiples of `local_size` items. A size that a
    /// device does not allow is refused ([`Misfit::Groups`]). With 0 each framework chooses, and packages may
    /// have any length. A kernel whose source queries its work-group needs a nonzero size.
    ///
    /// Kernels in OpenCL C and CUDA C see their work-group's index and the size of the launch as if all items
    /// were launched at once.
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

    /// Makes each item a row of `columns` work-items: `get_global_id(0)` is the column, `get_global_id(1)` is
    /// the item. Its bytes are those of [`Footprint::one_to_one`] with the size of a row, and with rows above
    /// and below those of [`Footprint::neighbourhood`].
    ///
    /// A work-group has `local` columns, and as many rows as the kernel's local size. Each framework chooses
    /// a size that is 0.
    #[must_use]
    pub fn rows(self, columns: u64, local: u64) -> Self {
        let local = [local, self.local_size];
        self.shaped(ItemShape::rows(columns, local))
    }

    /// Sets the shape of the items, along the requested dimension if there is one.
    fn shaped(mut self, shape: ItemShape) -> Self {
        self.shape = self.axis.and_then(|axis| shape.along(axis)).unwrap_or(shape);
        self
    }

    /// Makes each item a plane of work-items, with the columns and rows that `plane` gives.
    ///
    /// A work-group has `local` columns and rows, and as many planes as the kernel's local size.
    #[must_use]
    pub fn planes(self, plane: [u64; 2], local: [u64; 2]) -> Self {
        let local = [local[0], local[1], self.local_size];
        self.shaped(ItemShape::planes(plane, local))
    }

    /// Makes `axis` the dimension of the items: `get_global_id(axis)` is the item's number.
    ///
    /// The other dimensions keep their order, so [`rows`](Self::rows) along dimension 0 have their columns
    /// along dimension 1. Rows and planes that are set later use this dimension for their items too, if they
    /// have it.
    ///
    /// # Errors
    /// [`Misfit::Axis`] if the kernel has no such dimension.
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

    /// Runs all items as one package on one device.
    ///
    /// It is for kernels whose work-groups write the same bytes, or wait for each other. Any footprint may be
    /// written, and policies have nothing to divide.
    ///
    /// The device is the one with the least predicted time: computing at the rate of earlier runs, plus
    /// copies of the inputs from where they are valid. A device without a rate gets one run if its copies
    /// alone take less than that. If the device fails, another device computes the package, provided its
    /// inputs are still readable.
    #[must_use]
    pub fn undivided(mut self) -> Self {
        self.is_undivided = true;
        self
    }

    /// Adds a buffer with its access and footprint.
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

    /// Adds a buffer that an [undivided](Self::undivided) kernel overwrites completely.
    #[must_use]
    pub fn write_all(self, region: &impl Region) -> Self {
        self.argument(Argument::part(region, Access::WriteInvalidate, Footprint::Whole))
    }

    /// Adds a buffer in which an [undivided](Self::undivided) kernel may read and change any bytes.
    #[must_use]
    pub fn read_write_all(self, region: &impl Region) -> Self {
        self.argument(Argument::part(region, Access::ReadWrite, Footprint::Whole))
    }

    fn element<T: Pod>(self, buffer: &Buffer<T>, access: Access) -> Self {
        self.argument(Argument::part(buffer, access, Footprint::one_to_one(size_of::<T>() as u64)))
    }

    /// Adds a reduction: a buffer to which every package adds. See [`Argument::reduction`].
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

    /// Adds the item after the package's last one, as a `u64`.
    ///
    /// Frameworks that pad a launch to whole work-groups need it.
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

    /// Adds local memory of `bytes` bytes per work-group: at least 1, at most what the device has.
    ///
    /// Frameworks without work-groups pass nothing in its place.
    #[must_use]
    pub fn local_memory(mut self, bytes: u64) -> Self {
        self.parameters.push(Parameter::Value(LaunchArg::Local(bytes)));
        self.told()
    }

    /// Passes changed parameters on to the footprints.
    fn told(mut self) -> Self {
        self.tell();
        self
    }

    fn tell(&mut self) {
        self.arguments.iter_mut().for_each(|argument| argument.tell(&self.parameters));
    }

    /// Changes a scalar for later runs. `index` counts all arguments, in the order in which they were added.
    ///
    /// # Errors
    /// [`Misfit`] if there is no argument of this index, or if it is not a scalar of the same type.
    pub fn set_scalar(&mut self, index: usize, value: impl Into<Scalar>) -> Result<(), Misfit> {
        let value = value.into();
        match self.parameters.get_mut(index) {
            Some(Parameter::Value(LaunchArg::Scalar(old))) if old.is_like(value) => {
                *old = value;
                self.tell();
                Ok(())
            }
            _ => Err(self.unlike(index, LaunchArg::Scalar(value).describe())),
        }
    }

    /// Changes a buffer for later runs, as two kernels that exchange their buffers do in each step. Access
    /// and footprint stay. `index` counts all arguments, in the order in which they were added.
    ///
    /// Launchers get the new buffer. A [`Variant`] that has captured the old one does not find it in its
    /// grants.
    ///
    /// ```
    /// # use dml_core::{Buffer, Misfit};
    /// # use dml_scheduler::Kernel;
    /// # fn example((a, b): (&Buffer<f32>, &Buffer<f32>)) -> Result<(), Misfit> {
    /// let mut step = Kernel::new("step", 64).read(a).write(b).end();
    /// step.set_buffer(0, b)?;
    /// step.set_buffer(1, a)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Misfit`] if there is no argument of this index, or if it is no buffer, or a reduction.
    pub fn set_buffer(&mut self, index: usize, region: &impl Region) -> Result<(), Misfit> {
        let place = match self.parameters.get(index) {
            Some(Parameter::Buffer(place)) if !self.arguments[*place].is_reduced() => *place,
            _ => return Err(self.unlike(index, "a buffer".to_owned())),
        };
        self.arguments[place].set_region(region);
        Ok(())
    }

    /// Changes the access to a buffer, and which part of it a package touches. `index` counts all arguments,
    /// in the order in which they were added.
    ///
    /// # Errors
    /// As [`set_buffer`](Self::set_buffer).
    pub fn set_footprint(
        &mut self,
        index: usize,
        access: Access,
        footprint: Footprint,
    ) -> Result<(), Misfit> {
        let place = match self.parameters.get(index) {
            Some(Parameter::Buffer(place)) if !self.arguments[*place].is_reduced() => *place,
            _ => return Err(self.unlike(index, "a part of a buffer".to_owned())),
        };
        self.arguments[place].set_footprint(access, footprint);
        self.tell();
        Ok(())
    }

    /// Returns the error for a new value that an argument cannot have.
    fn unlike(&self, index: usize, given: String) -> Misfit {
        let kernel = self.name.clone();
        let takes = match self.parameters.get(index) {
            None => return Misfit::Missing { kernel, index, takes: self.parameters.len() },
            Some(Parameter::Buffer(place)) if self.arguments[*place].is_reduced() => "a reduction".to_owned(),
            Some(Parameter::Buffer(_)) => "a buffer".to_owned(),
            Some(Parameter::OfPackage(_)) => "computed for each package".to_owned(),
            Some(Parameter::Value(value)) => value.describe(),
        };
        Misfit::Argument { kernel, index, takes, given }
    }

    /// Sets how a device runs the kernel; the last call for a device wins.
    #[must_use]
    pub fn variant(self, device: DeviceId, variant: impl Variant + 'static) -> Self {
        self.on(device, How::Variant(Arc::new(variant)))
    }

    /// Sets how the devices of a kind run the kernel, except devices that have a variant or a launcher
    /// already.
    #[must_use]
    pub fn variant_for_kind(
        self,
        platform: &Platform,
        kind: DeviceKind,
        variant: impl Variant + 'static,
    ) -> Self {
        self.variant_where(platform, variant, |device, _| device.kind == kind)
    }

    /// Sets how the devices with a kind of arena run the kernel, except devices that have a variant or a
    /// launcher already.
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

    /// Sets the launchers by which devices run the kernel; the last call for a device wins.
    ///
    /// A launcher receives the kernel's arguments, so add these first. Arguments that are added or changed
    /// later are checked when a run begins ([`RunError::Misfit`](crate::RunError::Misfit)).
    ///
    /// # Errors
    /// [`Misfit`] if a launcher rejects the arguments or the work-groups.
    pub fn launchers<L: Launcher + 'static>(
        mut self,
        launchers: impl IntoIterator<Item = (DeviceId, L)>,
    ) -> Result<Self, Misfit> {
        let samples = self.signature();
        for (device, launcher) in launchers {
            launcher.check(&samples)?;
            launcher.check_groups(&self.shape)?;
            let checked = (samples.len(), self.shape);
            self = self.on(device, How::Launcher(Arc::new(launcher), checked));
        }
        Ok(self)
    }

    /// Returns an argument of the right kind for each position of the signature, without the ranges and
    /// scalars of a package.
    #[must_use]
    pub fn signature(&self) -> Vec<LaunchArg> {
        let sample =
            |parameter: &Parameter| parameter.argument(&self.arguments, None).expect("no footprint runs");
        self.parameters.iter().map(sample).collect()
    }

    fn on(mut self, device: DeviceId, how: How) -> Self {
        match self.devices.iter_mut().find(|(other, _)| *other == device) {
            Some((_, known)) => quietly(std::mem::replace(known, how)),
            None => self.devices.push((device, how)),
        }
        self
    }

    /// Returns the kernel's name, which reports use.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the local work size in items; 0 if each framework chooses.
    #[must_use]
    pub fn local_size(&self) -> u64 {
        self.local_size
    }

    /// Returns the granularity of package lengths, in items.
    pub(crate) fn grain(&self) -> u64 {
        if self.is_undivided { self.total.max(1) } else { self.local_size.max(1) }
    }

    /// Returns the number of work-items per item.
    pub(crate) fn work_items_per_item(&self) -> u64 {
        self.shape.global(&(0..1)).into_iter().fold(1, u64::saturating_mul)
    }

    /// Returns whether one device computes all items in one package.
    #[must_use]
    pub fn is_undivided(&self) -> bool {
        self.is_undivided
    }

    /// Returns the buffer arguments, in the order in which they were added.
    #[must_use]
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Returns the devices that can run the kernel.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.devices.iter().map(|(device, _)| *device)
    }

    /// Returns the scalars of a launch of some items, as footprints get them
    /// ([`of_launch`](Footprint::of_launch)).
    ///
    /// # Errors
    /// [`FootprintFault::Panicked`] if a function of a scalar panics.
    pub fn scalars(&self, items: Range<u64>) -> Result<Vec<Scalar>, FootprintFault> {
        argument::scalars(&self.parameters, items)
    }

    /// Returns how a device runs the kernel.
    pub(crate) fn variant_for(&self, device: DeviceId) -> Option<DeviceVariant<'_>> {
        let (_, how) = self.devices.iter().find(|(other, _)| *other == device)?;
        Some(DeviceVariant { kernel: self, device, how })
    }

    /// Returns the launcher of a device, if it has one.
    pub(crate) fn launcher_for(&self, device: DeviceId) -> Option<&Arc<dyn Launcher>> {
        match self.variant_for(device)?.how {
            How::Launcher(launcher, _) => Some(launcher),
            How::Variant(_) => None,
        }
    }

    /// Returns whether a device has launched this kernel or a clone of it.
    pub(crate) fn has_launched_on(&self, device: DeviceId) -> bool {
        self.launched.lock().contains(device)
    }

    /// Returns the arguments of a package, with `buffers` in place of the kernel's own.
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

    /// Returns the arguments of some items that a unit computes.
    ///
    /// # Errors
    /// As [`ranges`](Self::ranges).
    pub(crate) fn arguments_of(
        &self,
        items: Range<u64>,
        unit: usize,
    ) -> Result<Vec<LaunchArg>, FootprintError> {
        self.launch_args(&Package::new(items, UnitId(unit), 0), &self.arguments)
    }

    /// Returns the number of items of the run that this copy is for.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the layout of the work-items of an item.
    #[must_use]
    pub fn shape(&self) -> ItemShape {
        self.shape
    }

    /// Returns a copy of the kernel for launches that are parts of a run of `items` items.
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
            How::Variant(variant) => {
                grants.before_launch(false)?;
                variant.launch(package, grants)
            }
            How::Launcher(launcher, _) => {
                grants.before_launch(launcher.follows_copies())?;
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

/// Drops variants, launchers and footprints one after the other: two panics in one unwinding would end the
/// process.
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
