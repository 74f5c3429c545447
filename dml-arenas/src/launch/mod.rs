//! Launchers: one kernel in one framework, given the arguments of each launch as plain data.
//!
//! ```text
//!                  ┌─ host     threads of this process; one view for each range of a buffer
//!   Launch, Grants ┼─ cuda     the whole storage of each buffer; scalars and values by position, and the items
//!                  ├─ opencl   the whole storage of each buffer; scalars, values and local memory by position
//!                  └─ offload  a worker; the ranges of all buffers, then all scalars
//! ```
//! The functions [`host`] (or [`host_by_team`]), `cuda`, [`opencl`] and [`offload`] make a launcher for each device of a platform that the framework has,
//! and none where it has no device. So a program names all frameworks that it has code for, whatever the machine has.
//!
//! | argument | host | OpenCL | CUDA | offload |
//! |---|---|---|---|---|
//! | buffer | a [`Part`]: one view per range | `global` or `constant` pointer to the whole storage | pointer to the whole storage | one view per range |
//! | scalar | [`Values`], counted apart from buffers | by value, of the same type | by value, of the same size | counted apart from buffers |
//! | value as bytes | [`Values::value`] | by value, of the same size | by value, of the same size | refused |
//! | local memory | nothing | `local` pointer | `extern __shared__` memory; no parameter | nothing |
//! | buffer of which the package has no byte | an empty view | a null pointer | a null pointer | an empty view |
//!
//! A package is a part of a run. Kernels in OpenCL C and CUDA C have their work-groups numbered within the whole run, so one that was
//! written for a single launch is right in parts. A kernel that needs the framework's own numbers, such as one whose scratch memory is
//! indexed by the group within its package, defines `DML_PACKAGE_GROUPS`.

#[cfg(feature = "cuda")]
mod cuda;
mod host;
#[cfg(all(feature = "offload", target_os = "linux"))]
mod offload;
#[cfg(feature = "opencl")]
mod opencl;
mod pools;
mod team;

#[cfg(feature = "cuda")]
pub use cuda::{CudaLauncher, cuda};
pub use host::{HostError, HostLauncher, Part, host, host_by_team};
#[cfg(all(feature = "offload", target_os = "linux"))]
pub use offload::{OffloadLauncher, offload};
#[cfg(feature = "opencl")]
pub use opencl::{OpenClLauncher, opencl};
pub use team::Team;

use bytemuck::Pod;
use dml_core::sync::Arc;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use dml_core::{Access, BlockRef, BufferCopy, Grants};
use dml_core::{LaunchArg, Scalar, Span, View, WrongScalar};
use std::error::Error;

/// Why a kernel on the host failed: any error, or a sentence.
pub type ComputeError = Box<dyn Error + Send + Sync>;

/// The arguments of a kernel on the host that are no buffers.
#[derive(Clone, Debug, Default)]
pub struct Values {
    scalars: Vec<Scalar>,
    bytes: Vec<Arc<[u8]>>,
}

impl Values {
    fn of(arguments: &[LaunchArg]) -> Self {
        let mut values = Self::default();
        for argument in arguments {
            match argument {
                LaunchArg::Scalar(scalar) => values.scalars.push(*scalar),
                LaunchArg::Bytes(bytes) => values.bytes.push(bytes.clone()),
                _ => {}
            }
        }
        values
    }

    /// The scalars, in the order of the arguments.
    #[must_use]
    pub fn scalars(&self) -> &[Scalar] {
        &self.scalars
    }

    /// Returns a scalar, which must be of type `T`. `index` counts scalars alone.
    ///
    /// # Errors
    /// An error where the scalar does not exist or has another type.
    pub fn scalar<T: TryFrom<Scalar, Error = WrongScalar>>(&self, index: usize) -> Result<T, ComputeError> {
        scalar(&self.scalars, index)
    }

    /// Returns a value that was given as bytes. `index` counts such values alone.
    ///
    /// # Errors
    /// An error where the value does not exist or has another size.
    pub fn value<T: Pod>(&self, index: usize) -> Result<T, ComputeError> {
        let bytes = self.bytes.get(index).ok_or_else(|| format!("there is no value {index}"))?;
        bytemuck::try_pod_read_unaligned(bytes)
            .map_err(|_| format!("value {index} has {} bytes, not {}", bytes.len(), size_of::<T>()).into())
    }
}

/// Returns one of several scalars, which must be of type `T`.
///
/// # Errors
/// An error where the scalar does not exist or has another type.
pub fn scalar<T: TryFrom<Scalar, Error = WrongScalar>>(
    scalars: &[Scalar],
    index: usize,
) -> Result<T, ComputeError> {
    let scalar =
        scalars.get(index).ok_or_else(|| format!("there is no scalar {index} of {}", scalars.len()))?;
    T::try_from(*scalar).map_err(|wrong| format!("scalar {index}: {wrong}").into())
}

/// The storage of both ends of each copy, and the bytes. All bytes are granted as they are used, and none is outside its block.
#[cfg(any(feature = "cuda", feature = "opencl"))]
fn blocks_of<'a>(
    copies: &[BufferCopy],
    grants: &'a Grants,
) -> Result<Vec<(&'a BlockRef, &'a BlockRef, Span)>, ComputeError> {
    let of = |BufferCopy { from, to, bytes, .. }: &BufferCopy| -> Result<_, ComputeError> {
        let (source, span) = grants.granted(&from.range(bytes.clone()), Access::ReadOnly)?;
        let (target, _) = grants.granted(&to.range(bytes.clone()), Access::WriteInvalidate)?;
        let none = "a buffer has no storage: no byte of it was asked for";
        Ok((source.ok_or(none)?, target.ok_or(none)?, span))
    };
    // What has no bytes may have no storage.
    copies.iter().filter(|copy| !copy.bytes.is_empty()).map(of).collect()
}

/// Bytes of a buffer as a kernel on the host sees them, in this process or in a worker. Code that is written for any of these
/// runs in both.
pub trait HostView {
    /// Returns the bytes of the buffer that are shown.
    fn span(&self) -> Span;

    /// Returns the elements.
    ///
    /// # Errors
    /// An error where the bytes do not make whole aligned elements.
    fn slice<T: Pod>(&self) -> Result<&[T], ComputeError>;

    /// Returns the elements for changing.
    ///
    /// # Errors
    /// As [`slice`](Self::slice), and an error where the bytes are to be read only.
    fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], ComputeError>;
}

impl HostView for View<'_> {
    fn span(&self) -> Span {
        View::span(self)
    }

    fn slice<T: Pod>(&self) -> Result<&[T], ComputeError> {
        Ok(View::slice(self)?)
    }

    fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], ComputeError> {
        Ok(View::slice_mut(self)?)
    }
}

#[cfg(all(feature = "offload", target_os = "linux"))]
impl HostView for crate::offload::View<'_> {
    fn span(&self) -> Span {
        crate::offload::View::span(self)
    }

    fn slice<T: Pod>(&self) -> Result<&[T], ComputeError> {
        crate::offload::View::slice(self)
    }

    fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], ComputeError> {
        crate::offload::View::slice_mut(self)
    }
}
