//! DLPack, by which frameworks exchange tensors without a copy. Imported tensors become storage of buffers,
//! and granted bytes are exported as tensors.
//!
//! ```text
//!   foreign tensor ──▶ Tensor ──into_foreign──▶ Foreign ──▶ Platform::buffer_from, Buffer::attach_external
//!                             ──CudaArena::external_tensor──▶ ExternalBlock ──▶ RawBuffer::attach_block
//!   Grants of a buffer ──export──▶ Export ──into_versioned, into_legacy──▶ framework, calls the deleter
//!                      ──CudaArena::export, HostArena::export──▶
//! ```
//! # What holds here
//! 1. An import takes ownership of the tensor. The deleter is called once, when the [`Tensor`] is dropped or
//!    when the import is refused.
//! 2. A tensor must be compact and row-major, with elements of one Rust type ([`Element`]). Nothing is copied
//!    or converted.
//! 3. An exported tensor keeps its grants. Conflicting requests wait until the framework calls the deleter.
//!    The deleter commits bytes that were granted for writing, and does all its work on the thread that calls
//!    it.
//! 4. Bytes granted for reading are exported as read-only. A read-only tensor is never storage of a buffer,
//!    because every buffer can be written.
//! 5. No lock of this library is held while a foreign deleter is called. The deleters of this library do not
//!    unwind.
//!
//! This module handles host memory. The arenas of devices handle theirs.
//!
//! ```
//! use dml_arenas::dlpack::{self, Tensor};
//! use dml_arenas::{Discover, MainMem};
//! # use dml_core::{DeviceDesc, DeviceKind, Platform};
//! # use dml_core::internal::sync::Arc;
//! # let mut builder = Platform::builder();
//! # let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
//! # builder.add_arena(Arc::new(MainMem::new(cpu)));
//! # let platform = builder.build()?;
//! let buffer = platform.buffer_from((0..6).map(|i| i as f32).collect::<Vec<_>>())?;
//! // Export: two rows of three elements. The receiver of the pointer calls the deleter.
//! let grants = platform.acquire(cpu).read_write(&buffer).wait()?;
//! let lent = dlpack::export::<f32>(grants, &buffer, &[2, 3])?.into_versioned();
//!
//! // Import: as storage of another buffer, until that is dropped.
//! // SAFETY: the tensor is new, and no other code has it.
//! let tensor = unsafe { Tensor::from_versioned(lent.as_ptr()) }?;
//! assert_eq!(tensor.shape(), [2, 3]);
//! let other = platform.buffer_from(tensor.into_foreign::<f32>()?)?;
//! assert_eq!(other.read()?[5], 5.0);
//! other.raw().close();
//! drop(other);
//! // The deleter has released the grants.
//! assert_eq!(buffer.read()?[5], 5.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod abi;
mod export;
mod import;

#[cfg(feature = "cuda")]
pub(crate) use export::Place;
pub use export::{Export, ExportError, Unexported, export};
pub use import::{ImportError, Tensor, Untaken};

use abi::{DLDataType, FLOAT, INT, UINT};
use bytemuck::Pod;
use std::fmt::Debug;

mod sealed {
    pub trait Sealed {}
}

/// A type of elements that DLPack and Rust have in common: integers of 8 to 64 bits, `f32` and `f64`.
pub trait Element: Pod + Debug + Send + Sync + sealed::Sealed {
    /// The DLPack type.
    const TYPE: DLDataType;
    /// The name of the Rust type.
    const NAME: &'static str;
}

macro_rules! elements {
    ($($type:ident $code:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: DLDataType = DLDataType { code: $code, bits: $type::MAX_BITS, lanes: 1 };
            const NAME: &'static str = stringify!($type);
        }
    )*};
}

/// The size of an element type in bits, which fits into a `u8`.
trait Bits {
    const MAX_BITS: u8;
}

impl<T> Bits for T {
    const MAX_BITS: u8 = size_of::<T>() as u8 * 8;
}

elements!(i8 INT, i16 INT, i32 INT, i64 INT, u8 UINT, u16 UINT, u32 UINT, u64 UINT, f32 FLOAT, f64 FLOAT);

/// Returns the number of elements of a shape; `None` on overflow.
fn elements(shape: &[u64]) -> Option<u64> {
    // A tensor without elements may have any other extents.
    match shape.contains(&0) {
        true => Some(0),
        false => shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent)),
    }
}

/// Returns the strides of a compact, row-major tensor, in elements.
fn row_major(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1_u64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}
