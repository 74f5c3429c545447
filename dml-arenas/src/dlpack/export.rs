//! Exports granted bytes as tensors, which the consumer returns by the deleter.

use super::abi::{
    CPU, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLTensor, FLAG_READ_ONLY, VERSION,
};
use super::{Element, elements, row_major};
use dml_core::internal::guard;
use dml_core::{BufferName, Grants, Region, TransferError, ViewError};
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use thiserror::Error;

/// Why granted bytes cannot be exported as a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The bytes are not granted, not on the host, or not aligned for the elements.
    #[error("{0}")]
    View(#[from] ViewError),
    /// The size of the shape differs from that of the bytes.
    #[error("a tensor of {shape:?} elements of {element_bytes} bytes does not fit {bytes} bytes of {buffer}")]
    Shape {
        /// The buffer.
        buffer: BufferName,
        /// The requested extents.
        shape: Vec<u64>,
        /// The size of an element.
        element_bytes: u64,
        /// The size of the region.
        bytes: u64,
    },
    /// The bytes are not aligned for the elements, in memory that the host does not view.
    #[error("a tensor of {buffer} would begin at {address:#x}, which is not aligned to {align}")]
    Alignment {
        /// The buffer.
        buffer: BufferName,
        /// The address of the first element.
        address: usize,
        /// The alignment that the elements need, in bytes.
        align: usize,
    },
    /// The structure of DLPack before version 1 has no read-only flag.
    #[error("bytes granted for reading need the versioned structure of DLPack, which has a read-only flag")]
    ReadOnly,
    /// The bytes are not in the memory that the arena exports.
    #[error("{buffer} is not in {expected} here")]
    Elsewhere {
        /// The buffer.
        buffer: BufferName,
        /// The kind of memory that the arena exports.
        expected: &'static str,
    },
}

/// An export that failed. The error returns the caller's value.
#[derive(Debug, Error)]
#[error("{cause}")]
pub struct Unexported<G: fmt::Debug> {
    /// The reason.
    pub cause: ExportError,
    /// What the caller passed in.
    pub kept: G,
}

/// Waits until no work uses the memory any more.
pub(crate) type Settle = Box<dyn FnOnce() -> Result<(), TransferError> + Send>;

/// The location of granted bytes, in DLPack's terms.
pub(crate) struct Place {
    pub(crate) address: *mut c_void,
    /// The size of the granted bytes.
    pub(crate) bytes: u64,
    pub(crate) device: DLDevice,
    pub(crate) is_read_only: bool,
    /// Waits for the consumer's work before the grants end, if that may still run when the deleter is called.
    pub(crate) settle: Option<Settle>,
}

/// A tensor to be handed to another framework. Dropping it earlier rolls the grants back.
#[must_use = "dropping it rolls the grants back"]
pub struct Export {
    grants: Grants,
    place: Place,
    tensor: DLTensor,
    /// The shape, followed by the strides.
    sizes: Box<[i64]>,
}

// SAFETY: the addresses point to granted memory and to the sizes, both of which the value owns.
unsafe impl Send for Export {}

/// Creates a tensor of granted bytes in host memory, in the shape `shape`. It keeps the grants until it is
/// deleted.
///
/// The tensor may be written if all its bytes are granted for writing. The deleter then commits them, as
/// [`Grants::release`] does, because DLPack cannot report a failure. Otherwise the tensor is read-only.
///
/// # Shape and units
/// Row-major, in elements. An empty shape is one element.
///
/// # Errors
/// [`Unexported`] with the grants: [`ExportError::View`] and [`ExportError::Shape`].
pub fn export<T: Element>(
    mut grants: Grants,
    region: &impl Region,
    shape: &[u64],
) -> Result<Export, Box<Unexported<Grants>>> {
    let place = |address: *mut T, elements: usize, is_read_only| Place {
        address: address.cast(),
        bytes: (elements * size_of::<T>()) as u64,
        device: DLDevice { device_type: CPU, device_id: 0 },
        is_read_only,
        settle: None,
    };
    let placed = match grants.slice_mut::<T>(region) {
        Ok(elements) => Ok(place(elements.as_mut_ptr(), elements.len(), false)),
        Err(ViewError::NotWritable { .. }) => {
            let elements = grants.slice::<T>(region);
            elements.map(|elements| place(elements.as_ptr().cast_mut(), elements.len(), true))
        }
        Err(error) => Err(error),
    };
    match placed {
        Ok(place) => Export::at::<T>(grants, region, shape, place),
        Err(cause) => Err(Box::new(Unexported { cause: cause.into(), kept: grants })),
    }
}

impl Export {
    /// Creates a tensor of granted bytes at a location.
    pub(crate) fn at<T: Element>(
        grants: Grants,
        region: &impl Region,
        shape: &[u64],
        place: Place,
    ) -> Result<Self, Box<Unexported<Grants>>> {
        let (bytes, element_bytes) = (place.bytes, size_of::<T>() as u64);
        let fits = elements(shape).and_then(|count| count.checked_mul(element_bytes)) == Some(bytes);
        // Sizes of a tensor without elements have no meaning, and may be too large for their type.
        let numbers = shape.iter().copied().chain(row_major(shape));
        let numbers = numbers.map(|number| i64::try_from(number).ok().or((bytes == 0).then_some(0)));
        let Some(sizes) = numbers.collect::<Option<Box<[i64]>>>().filter(|_| fits) else {
            let (buffer, shape) = (region.buffer().name(), shape.to_vec());
            let cause = ExportError::Shape { buffer, shape, element_bytes, bytes };
            return Err(Box::new(Unexported { cause, kept: grants }));
        };
        let (address, align) = (place.address.addr(), align_of::<T>());
        if bytes != 0 && !address.is_multiple_of(align) {
            let cause = ExportError::Alignment { buffer: region.buffer().name(), address, align };
            return Err(Box::new(Unexported { cause, kept: grants }));
        }
        let tensor = DLTensor {
            data: if bytes == 0 { std::ptr::null_mut() } else { place.address },
            device: place.device,
            ndim: shape.len() as i32,
            dtype: T::TYPE,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        // Any thread may call the deleter.
        Ok(Self { grants: grants.hand_over(), place, tensor, sizes })
    }

    /// Sets the device, and what to wait for before the grants end.
    #[cfg(feature = "cuda")]
    pub(crate) fn on(mut self, device: DLDevice, settle: Settle) -> Self {
        self.tensor.device = device;
        self.place.settle = Some(settle);
        self
    }

    /// Returns the address of the first element, or `None` if there are no elements.
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        (!self.tensor.data.is_null()).then(|| self.tensor.data.addr())
    }

    /// Returns whether the tensor must not be written.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.place.is_read_only
    }

    /// Returns the grants, unchanged.
    pub fn into_grants(self) -> Grants {
        self.grants
    }

    /// Hands the tensor out. The receiver owns it, and calls its deleter once, on any thread. A deleter of
    /// GPU memory must not be called from a callback of the driver.
    #[must_use = "the receiver must call its deleter"]
    pub fn into_versioned(self) -> NonNull<DLManagedTensorVersioned> {
        let flags = if self.is_read_only() { FLAG_READ_ONLY } else { 0 };
        let (manager_ctx, dl_tensor) = self.into_parts();
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut DLManagedTensorVersioned));
        let managed = DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter, flags, dl_tensor };
        NonNull::from(Box::leak(Box::new(managed)))
    }

    /// As [`into_versioned`](Self::into_versioned), in the structure of DLPack before version 1.
    ///
    /// # Errors
    /// [`Unexported`] with the tensor: [`ExportError::ReadOnly`] if it is, because this structure has no flag
    /// for that.
    pub fn into_legacy(self) -> Result<NonNull<DLManagedTensor>, Box<Unexported<Self>>> {
        if self.is_read_only() {
            return Err(Box::new(Unexported { cause: ExportError::ReadOnly, kept: self }));
        }
        let (manager_ctx, dl_tensor) = self.into_parts();
        let deleter = Some(delete_legacy as unsafe extern "C" fn(*mut DLManagedTensor));
        Ok(NonNull::from(Box::leak(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter }))))
    }

    /// Returns the context of a structure, which owns everything, and the tensor, which points to the
    /// context's sizes.
    fn into_parts(self) -> (*mut c_void, DLTensor) {
        let Self { grants, place, tensor, sizes } = self;
        let context = Box::leak(Box::new(Context { grants, settle: place.settle, sizes }));
        let (shape, strides) = context.sizes.split_at_mut(tensor.ndim as usize);
        let tensor = DLTensor { shape: shape.as_mut_ptr(), strides: strides.as_mut_ptr(), ..tensor };
        (std::ptr::from_mut(context).cast(), tensor)
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({:?}, {:?})", self.tensor, self.grants)
    }
}

/// The context of a structure that was handed out.
struct Context {
    grants: Grants,
    settle: Option<Settle>,
    /// The shape and strides that the structure points to.
    sizes: Box<[i64]>,
}

impl Context {
    /// Ends the grants once no work uses the memory.
    fn end(self) {
        let settled = self.settle.map_or(Ok(()), |settle| settle());
        // The deleter cannot report an error. The next request for the bytes does.
        let _ = match settled {
            Ok(()) => self.grants.release(),
            Err(_) => self.grants.failed(),
        };
    }
}

/// Drops the context of a structure. A panic of a plug-in is caught, because it must not unwind into other
/// languages.
///
/// # Safety
/// `context` is that of a structure of this module, and is not used afterwards.
unsafe fn end(context: *mut c_void) {
    // SAFETY: leaked in `into_parts`. The caller guarantees that this is its last use.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    let _ = guard(|| context.end());
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    if !managed.is_null() {
        // SAFETY: leaked in `into_versioned`, and the consumer deletes once.
        let managed = unsafe { Box::from_raw(managed) };
        // SAFETY: as above.
        unsafe { end(managed.manager_ctx) };
    }
}

unsafe extern "C" fn delete_legacy(managed: *mut DLManagedTensor) {
    if !managed.is_null() {
        // SAFETY: leaked in `into_legacy`, and the consumer deletes once.
        let managed = unsafe { Box::from_raw(managed) };
        // SAFETY: as above.
        unsafe { end(managed.manager_ctx) };
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;
    use crate::MainMem;
    use dml_core::internal::sync::Arc;
    use dml_core::{DeviceDesc, DeviceKind, Platform};

    /// No view checks the alignment of granted bytes of a device: only their address is known.
    #[test]
    fn elements_that_are_not_aligned_are_no_tensor_wherever_they_are() {
        let mut builder = Platform::builder();
        let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        builder.add_arena(Arc::new(MainMem::new(cpu)));
        let platform = builder.build().unwrap();
        let buffer = platform.buffer_from((0..64).collect::<Vec<u8>>()).unwrap();
        let grants = platform.acquire(cpu).read(&buffer).wait().unwrap();
        let place = |address: usize, bytes| Place {
            address: std::ptr::without_provenance_mut(address),
            bytes,
            device: DLDevice { device_type: CPU, device_id: 0 },
            is_read_only: true,
            settle: None,
        };
        let refused = Export::at::<f64>(grants, &buffer.range(4..12), &[1], place(0x1004, 8)).unwrap_err();
        let Unexported { cause, kept } = *refused;
        let ExportError::Alignment { address, align, .. } = cause else { panic!("{cause}") };
        assert_eq!((address, align), (0x1004, 8));
        let aligned = Export::at::<f32>(kept, &buffer.range(4..12), &[2], place(0x1004, 8)).unwrap();
        // A tensor without elements has no address.
        let empty = Export::at::<f64>(aligned.into_grants(), &buffer.range(4..4), &[0], place(0x1004, 0));
        assert_eq!(empty.unwrap().address(), None);
    }
}
