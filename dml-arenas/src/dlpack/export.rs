//! Granted bytes as tensors for others, who give them back by the deleter.

use super::abi::{
    CPU, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLTensor, FLAG_READ_ONLY, VERSION,
};
use super::{Element, elements, row_major};
use dml_core::foreign::guard;
use dml_core::{BufferName, Grants, Region, TransferError, ViewError};
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use thiserror::Error;

/// Why granted bytes cannot be a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The bytes are not granted, or not on the host, or not aligned for the elements.
    #[error("{0}")]
    View(#[from] ViewError),
    /// The shape has another size than the bytes.
    #[error(
        "a tensor of {shape:?} elements of {element_bytes} bytes was asked for of {bytes} bytes of {buffer}"
    )]
    Shape {
        /// The buffer.
        buffer: BufferName,
        /// The extents asked for.
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
    /// The structure of before version 1 cannot say that a tensor must not be written.
    #[error("what is granted for reading needs a structure of DLPack 1, which can say so")]
    ReadOnly,
    /// The memory is not what the arena was asked to export.
    #[error("{buffer} is not in {expected} here")]
    Elsewhere {
        /// The buffer.
        buffer: BufferName,
        /// The kind of memory asked for.
        expected: &'static str,
    },
}

/// Grants that were not exported. The error returns them.
#[derive(Debug, Error)]
#[error("{cause}")]
pub struct Unexported<G: fmt::Debug> {
    /// The reason.
    pub cause: ExportError,
    /// What the caller passed in.
    pub kept: G,
}

/// Waits until nobody's work uses the memory any more.
pub(crate) type Settle = Box<dyn FnOnce() -> Result<(), TransferError> + Send>;

/// Where granted bytes are, in the words of DLPack.
pub(crate) struct Place {
    pub(crate) address: *mut c_void,
    /// The size of the granted bytes.
    pub(crate) bytes: u64,
    pub(crate) device: DLDevice,
    pub(crate) is_read_only: bool,
    /// What to wait for before the grants end, if the consumer's work may go on when it calls the deleter.
    pub(crate) settle: Option<Settle>,
}

/// A tensor that is to be handed to another framework. Dropped before that, it rolls the grants back, as they do.
#[must_use = "dropping it rolls the grants back"]
pub struct Export {
    grants: Grants,
    place: Place,
    tensor: DLTensor,
    /// The shape, and behind it the strides.
    sizes: Box<[i64]>,
}

// SAFETY: the addresses are those of granted memory and of the sizes, both of which it owns.
unsafe impl Send for Export {}

/// Makes a tensor of granted bytes in memory of the host, in the shape `shape`. It keeps the grants until it is deleted.
///
/// It may be written if all its bytes are granted for writing, and the deleter then commits them, as
/// [`Grants::release`] does: DLPack has no word for failure. Otherwise it is read-only.
///
/// # Shape and units
/// Row-major, in elements. No extents are one element.
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
    /// Makes a tensor of granted bytes at a place.
    pub(crate) fn at<T: Element>(
        grants: Grants,
        region: &impl Region,
        shape: &[u64],
        place: Place,
    ) -> Result<Self, Box<Unexported<Grants>>> {
        let (bytes, element_bytes) = (place.bytes, size_of::<T>() as u64);
        let fits = elements(shape).and_then(|count| count.checked_mul(element_bytes)) == Some(bytes);
        // Strides of a tensor without elements may be too large for their type, and mean nothing.
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

    /// Says that the memory is on another kind of device than of the host alone, and what to wait for at the end.
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

    /// Takes the tensor back: the grants as they were.
    pub fn into_grants(self) -> Grants {
        self.grants
    }

    /// Hands the tensor out. Whoever gets the pointer owns it, and calls its deleter once, on any thread. For a GPU's memory, no
    /// thread does so from a callback of the driver.
    #[must_use = "whoever gets it has to call its deleter"]
    pub fn into_versioned(self) -> NonNull<DLManagedTensorVersioned> {
        let flags = if self.is_read_only() { FLAG_READ_ONLY } else { 0 };
        let (manager_ctx, dl_tensor) = self.into_parts();
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut DLManagedTensorVersioned));
        let managed = DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter, flags, dl_tensor };
        NonNull::from(Box::leak(Box::new(managed)))
    }

    /// As [`into_versioned`](Self::into_versioned), in the structure of before version 1.
    ///
    /// # Errors
    /// [`Unexported`] with the tensor: [`ExportError::ReadOnly`], because this structure cannot say that it is.
    pub fn into_legacy(self) -> Result<NonNull<DLManagedTensor>, Box<Unexported<Self>>> {
        if self.is_read_only() {
            return Err(Box::new(Unexported { cause: ExportError::ReadOnly, kept: self }));
        }
        let (manager_ctx, dl_tensor) = self.into_parts();
        let deleter = Some(delete_legacy as unsafe extern "C" fn(*mut DLManagedTensor));
        Ok(NonNull::from(Box::leak(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter }))))
    }

    /// Returns the context of a structure, which owns everything, and the tensor, which names the context's sizes.
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

/// What a structure that was handed out owns.
struct Context {
    grants: Grants,
    settle: Option<Settle>,
    /// What the structure names.
    sizes: Box<[i64]>,
}

impl Context {
    /// Ends the grants, once nobody's work uses the memory.
    fn end(self) {
        let settled = self.settle.map_or(Ok(()), |settle| settle());
        // The consumer hears of no error. Who acquires the bytes next does.
        let _ = match settled {
            Ok(()) => self.grants.release(),
            Err(_) => self.grants.failed(),
        };
    }
}

/// Ends what a structure owns. A panic of a plug-in ends here, because no language but Rust has one.
///
/// # Safety
/// The context of a structure of this module, for the last time.
unsafe fn end(context: *mut c_void) {
    // SAFETY: leaked in `into_parts`, and the caller's word.
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
    use dml_core::sync::Arc;
    use dml_core::{DeviceDesc, DeviceKind, Platform};

    /// Granted bytes of a device have no view that checks them: whoever asks for a tensor of them has the address alone.
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
        // No elements are nowhere.
        let empty = Export::at::<f64>(aligned.into_grants(), &buffer.range(4..4), &[0], place(0x1004, 0));
        assert_eq!(empty.unwrap().address(), None);
    }
}
