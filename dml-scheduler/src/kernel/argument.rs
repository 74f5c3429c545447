//! The arguments of a kernel: buffers with footprints, and values.

use super::KernelError;
use super::footprint::{self, Footprint, FootprintFault};
use super::reduction::{Elementwise, Reduce, Wait};
use crate::base::package::{Package, UnitId};
use bytemuck::Pod;
use dml_core::{Access, Buffer, LaunchArg, RawBuffer, Region, Scalar};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// One buffer of a kernel, with its access and footprint.
///
/// # Examples
/// ```
/// # use dml_core::{Access, Buffer};
/// # use dml_scheduler::{Argument, Footprint, Kernel};
/// # fn example(picture: &Buffer<u8>, weights: &Buffer<f32>, total: &Buffer<f32>) -> Kernel {
/// // An item reads its row of 640 pixels, and three rows above and below.
/// let rows = Argument::part(picture, Access::ReadOnly, Footprint::rows(640, 640, 3));
/// let table = Argument::whole(weights);
/// let sum = Argument::reduction(total, 0.0, |one, other| one + other);
/// Kernel::new("weigh", 64).argument(rows).argument(table).argument(sum)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Argument {
    buffer: RawBuffer,
    access: Access,
    footprint: Footprint,
    reduction: Option<Reduction>,
    /// Bytes of the argument's region, if it is not the whole buffer: a mistake that a run refuses.
    part: Option<Range<u64>>,
    /// The kernel's parameters, if the footprint depends on its scalars; otherwise empty.
    parameters: Arc<[Parameter]>,
}

/// Returns the buffer of a region, and the region's bytes if they are not all.
fn whole_or_part(region: &impl Region) -> (RawBuffer, Option<Range<u64>>) {
    let (buffer, bytes) = (region.buffer().clone(), region.bytes());
    let part = (bytes != (0..buffer.len())).then_some(bytes);
    (buffer, part)
}

/// Combination of an argument's partials.
#[derive(Clone)]
struct Reduction {
    how: Arc<dyn Reduce>,
    /// The partials, one per unit; empty outside a run.
    partials: Vec<RawBuffer>,
}

impl Argument {
    /// Creates an argument that every package reads completely.
    #[must_use]
    pub fn whole(region: &impl Region) -> Self {
        Self::part(region, Access::ReadOnly, Footprint::Whole)
    }

    /// Creates an argument of which a package uses the part that `footprint` names.
    ///
    /// Footprints count from the start of the buffer, so the region must be a whole buffer. A run refuses any
    /// other region ([`RunError::PartOfBuffer`](crate::RunError)).
    #[must_use]
    pub fn part(region: &impl Region, access: Access, footprint: Footprint) -> Self {
        let (buffer, part) = whole_or_part(region);
        Self { buffer, access, footprint, reduction: None, part, parameters: Arc::default() }
    }

    /// Changes the buffer.
    pub(super) fn set_region(&mut self, region: &impl Region) {
        (self.buffer, self.part) = whole_or_part(region);
    }

    /// Changes the access and the footprint.
    pub(super) fn set_footprint(&mut self, access: Access, footprint: Footprint) {
        (self.access, self.footprint, self.parameters) = (access, footprint, Arc::default());
    }

    /// Returns the same argument for another buffer, without its reduction.
    pub(crate) fn of_buffer(&self, buffer: &RawBuffer) -> Self {
        Self { buffer: buffer.clone(), reduction: None, part: None, ..self.clone() }
    }

    /// Passes the kernel's parameters to the footprint, if it depends on them.
    pub(super) fn tell(&mut self, parameters: &[Parameter]) {
        if matches!(self.footprint, Footprint::OfLaunch(_)) {
            self.parameters = parameters.into();
        }
    }

    /// Returns the same argument with another footprint.
    pub(crate) fn with_footprint(&self, footprint: Footprint) -> Self {
        Self { footprint, ..self.clone() }
    }

    /// Creates an argument to which every package adds.
    ///
    /// Each unit has its own partial, as large as the buffer, with every element initialized to `identity`. A
    /// package reads and changes all of its unit's partial. When all items are computed, `combine` merges the
    /// partials element by element, and the result overwrites the buffer. A run of no items leaves the
    /// identity.
    ///
    /// `combine` must be associative and commutative, because the packages of a unit and their order vary
    /// from run to run. `combine(identity, x)` must be `x`, because the number of partials varies too.
    ///
    /// The work-items of a package share the partial, so a kernel with several of them adds by atomics or
    /// within a group first.
    ///
    /// On devices, a kernel receives its partial as an argument of a [`Launcher`](dml_core::Launcher). A
    /// variant on the host reaches it through the [`views`](dml_core::Grants::views) of its grants.
    #[must_use]
    pub fn reduction<T: Pod + fmt::Debug + Send + Sync>(
        result: &Buffer<T>,
        identity: T,
        combine: impl Fn(T, T) -> T + Send + Sync + 'static,
    ) -> Self {
        let how = Arc::new(Elementwise { result: result.clone(), identity, combine });
        let reduction = Some(Reduction { how, partials: Vec::new() });
        Self { reduction, ..Self::part(result, Access::ReadWrite, Footprint::Whole) }
    }

    /// Returns the bytes of the argument's region, if it is not the whole buffer.
    pub(super) fn part_of_buffer(&self) -> Option<Range<u64>> {
        self.part.clone()
    }

    /// Returns a copy of the argument for a run, with one partial per unit if it is a reduction.
    pub(super) fn for_run(&self, units: usize) -> Result<Self, KernelError> {
        let mut own = self.clone();
        if let Some(Reduction { how, partials }) = &mut own.reduction {
            *partials = (0..units).map(|_| how.partial()).collect::<Result<_, _>>()?;
        }
        Ok(own)
    }

    /// Combines the partials of those units that have added to theirs; does nothing without a reduction.
    pub(super) fn combine(&self, has_added: &[bool], wait: Wait<'_>) -> Result<(), KernelError> {
        let Some(Reduction { how, partials }) = &self.reduction else { return Ok(()) };
        let added = partials.iter().zip(has_added).filter(|(_, has_added)| **has_added);
        how.combine(&added.map(|(partial, _)| partial.clone()).collect::<Vec<_>>(), wait)
    }

    /// Initializes the partials to the identity once more; does nothing without a reduction.
    pub(super) fn clear(&self) -> Result<(), KernelError> {
        let Some(Reduction { how, partials }) = &self.reduction else { return Ok(()) };
        partials.iter().try_for_each(|partial| how.clear(partial))
    }

    /// Returns whether the argument is a reduction.
    #[must_use]
    pub fn is_reduced(&self) -> bool {
        self.reduction.is_some()
    }

    /// Returns the buffer that a package uses: the partial of its unit in a reduction, otherwise the
    /// argument's.
    pub(super) fn buffer_of(&self, package: &Package) -> &RawBuffer {
        let partials = self.reduction.as_ref().map_or(&[][..], |reduction| &reduction.partials);
        partials.get(package.unit().0).unwrap_or(&self.buffer)
    }

    /// Returns the buffer of the argument.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// Returns the access of the kernel to the buffer.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the footprint: which bytes a package touches.
    #[must_use]
    pub fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// Returns the bytes that the items touch: ascending, disjoint, at least one range.
    ///
    /// # Errors
    /// As [`Footprint::ranges`].
    pub fn ranges(&self, items: Range<u64>) -> Result<Vec<Range<u64>>, FootprintFault> {
        let mut scalars = Vec::new();
        if !self.parameters.is_empty() {
            scalars = self::scalars(&self.parameters, items.clone())?;
        }
        self.footprint.ranges_of(items, &scalars, self.buffer.len())
    }

    /// Returns whether every byte of a package can be read from some arena.
    ///
    /// An argument with an invalid footprint counts as readable, because the acquire refuses it.
    pub(super) fn is_readable(&self, package: &Package) -> bool {
        let Ok(ranges) = self.ranges(package.range()) else { return true };
        ranges.into_iter().all(|bytes| self.buffer_of(package).is_readable(bytes).unwrap_or(true))
    }
}

/// Returns the scalars of a launch of some items.
pub(super) fn scalars(parameters: &[Parameter], items: Range<u64>) -> Result<Vec<Scalar>, FootprintFault> {
    let package = Package::new(items, UnitId(0), 0);
    footprint::asked(|| parameters.iter().filter_map(|parameter| parameter.scalar(&package)).collect())
}

/// A scalar that is computed for each package.
#[derive(Clone)]
pub(super) struct OfPackage {
    /// A sample value of the scalar's type.
    sample: Scalar,
    value: Arc<dyn Fn(&Package) -> Scalar + Send + Sync>,
}

/// One position in a kernel's signature.
#[derive(Clone, Debug)]
pub(super) enum Parameter {
    /// The index of a buffer among the kernel's buffers.
    Buffer(usize),
    Value(LaunchArg),
    OfPackage(OfPackage),
}

impl Parameter {
    /// Creates a scalar that is computed for each package.
    pub(super) fn of_package<S>(value: impl Fn(&Package) -> S + Send + Sync + 'static) -> Self
    where
        S: Into<Scalar> + Default,
    {
        let value = Arc::new(move |package: &Package| value(package).into());
        Self::OfPackage(OfPackage { sample: S::default().into(), value })
    }

    /// Returns the scalar of a package, if the position holds a scalar.
    fn scalar(&self, package: &Package) -> Option<Scalar> {
        match self {
            Self::Value(LaunchArg::Scalar(scalar)) => Some(*scalar),
            Self::OfPackage(scalar) => Some((scalar.value)(package)),
            Self::Buffer(_) | Self::Value(_) => None,
        }
    }

    /// Returns the argument of a package, or a sample of the right kind without a package.
    ///
    /// # Errors
    /// The index of the buffer with an invalid footprint, and the fault.
    pub(super) fn argument(
        &self,
        buffers: &[Argument],
        package: Option<&Package>,
    ) -> Result<LaunchArg, (usize, FootprintFault)> {
        Ok(match self {
            Self::Buffer(index) => {
                let argument = &buffers[*index];
                let ranges = package.map(|package| argument.ranges(package.range())).transpose();
                let ranges = ranges.map_err(|fault| (*index, fault))?;
                let buffer = package.map_or(&argument.buffer, |package| argument.buffer_of(package));
                LaunchArg::Buffer {
                    buffer: buffer.clone(),
                    access: argument.access,
                    ranges: ranges.unwrap_or_default().into(),
                }
            }
            Self::Value(value) => value.clone(),
            Self::OfPackage(scalar) => {
                LaunchArg::Scalar(package.map_or(scalar.sample, |package| (scalar.value)(package)))
            }
        })
    }
}

impl fmt::Debug for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reduction({} partials)", self.partials.len())
    }
}

impl fmt::Debug for OfPackage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfPackage({})", self.sample.type_name())
    }
}
