//! The arguments of a kernel: buffers with footprints, and values.

use super::KernelError;
use super::footprint::{Footprint, FootprintFault};
use crate::package::Package;
use dml_core::{Access, LaunchArg, RawBuffer, Region, Scalar};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// One buffer of a kernel, with its access and footprint.
#[derive(Clone, Debug)]
pub struct Argument {
    buffer: RawBuffer,
    access: Access,
    footprint: Footprint,
}

impl Argument {
    /// Makes an argument that every package reads completely.
    #[must_use]
    pub fn whole(region: &impl Region) -> Self {
        Self { buffer: region.buffer().clone(), access: Access::ReadOnly, footprint: Footprint::Whole }
    }

    /// Makes an argument of which a package uses the part that its footprint names.
    #[must_use]
    pub fn part(region: &impl Region, access: Access, footprint: Footprint) -> Self {
        Self { buffer: region.buffer().clone(), access, footprint }
    }

    /// The buffer of the argument.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// The access of the kernel to the buffer.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The footprint: which bytes a package touches.
    #[must_use]
    pub fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// Returns the bytes that the items touch: ascending, disjoint, at least one range.
    ///
    /// # Errors
    /// As [`Footprint::ranges`].
    pub fn ranges(&self, items: Range<u64>) -> Result<Vec<Range<u64>>, FootprintFault> {
        self.footprint.ranges(items, self.buffer.len())
    }

    /// Returns whether the bytes of a package can be read, in any arena. An argument whose footprint is at fault counts as
    /// readable, because the acquire refuses it.
    pub(super) fn is_readable(&self, package: &Package) -> bool {
        let Ok(ranges) = self.ranges(package.range()) else { return true };
        ranges.into_iter().all(|bytes| self.buffer.is_readable(bytes).unwrap_or(true))
    }
}

/// A scalar that is computed for each package.
#[derive(Clone)]
pub(super) struct OfPackage {
    /// Any value of the type.
    sample: Scalar,
    value: Arc<dyn Fn(&Package) -> Scalar + Send + Sync>,
}

/// One place in a kernel's signature.
#[derive(Clone, Debug)]
pub(super) enum Parameter {
    /// The kernel's buffer of this number.
    Buffer(usize),
    Value(LaunchArg),
    OfPackage(OfPackage),
}

impl Parameter {
    /// Makes a scalar that is computed for each package.
    pub(super) fn of_package<S>(value: impl Fn(&Package) -> S + Send + Sync + 'static) -> Self
    where
        S: Into<Scalar> + Default,
    {
        let value = Arc::new(move |package: &Package| value(package).into());
        Self::OfPackage(OfPackage { sample: S::default().into(), value })
    }

    /// Returns the argument of a package, or one of the right kind where there is no package.
    pub(super) fn argument(
        &self,
        buffers: &[Argument],
        package: Option<&Package>,
    ) -> Result<LaunchArg, KernelError> {
        Ok(match self {
            Self::Buffer(index) => {
                let Argument { buffer, access, .. } = &buffers[*index];
                let ranges = package.map(|package| buffers[*index].ranges(package.range())).transpose()?;
                LaunchArg::Buffer {
                    buffer: buffer.clone(),
                    access: *access,
                    ranges: ranges.unwrap_or_default(),
                }
            }
            Self::Value(value) => value.clone(),
            Self::OfPackage(scalar) => {
                LaunchArg::Scalar(package.map_or(scalar.sample, |package| (scalar.value)(package)))
            }
        })
    }
}

impl fmt::Debug for OfPackage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfPackage({})", self.sample.type_name())
    }
}
