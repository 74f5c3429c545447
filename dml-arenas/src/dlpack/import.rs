//! Tensors of others: taken once, checked, and given back by their deleter.

use super::abi::{
    CPU, CUDA_HOST, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
    FLAG_READ_ONLY, VERSION,
};
use super::{Element, elements, row_major};
use dml_core::foreign::quietly;
use dml_core::host::Foreign;
use std::fmt;
use std::ptr::NonNull;
use thiserror::Error;

/// Why a tensor cannot be taken, or not as asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// There is no tensor.
    #[error("the pointer to the tensor is null")]
    Null,
    /// The structure is laid out otherwise.
    #[error("a tensor of DLPack {}.{} was given, and {} is understood", found.major, found.minor, VERSION.major)]
    Version {
        /// The version of the structure.
        found: DLPackVersion,
    },
    /// The number of dimensions is negative, or they have no extents.
    #[error("a tensor of {ndim} dimensions has no extents")]
    NoShape {
        /// The number of dimensions.
        ndim: i32,
    },
    /// An extent is negative.
    #[error("dimension {axis} of a tensor has {extent} elements")]
    Extent {
        /// The dimension.
        axis: usize,
        /// Its extent.
        extent: i64,
    },
    /// The elements would not fit into an address space.
    #[error("a tensor of {shape:?} elements of {element_bits} bits is larger than the address space")]
    TooLarge {
        /// The extents.
        shape: Vec<u64>,
        /// The size of an element.
        element_bits: u64,
    },
    /// The tensor is not compact and row-major.
    #[error(
        "dimension {axis} of a tensor of {shape:?} elements has stride {stride}, and {expected} is row-major"
    )]
    Stride {
        /// The dimension.
        axis: usize,
        /// Its stride, in elements.
        stride: i64,
        /// The stride of a compact tensor.
        expected: u64,
        /// The extents.
        shape: Vec<u64>,
    },
    /// There are elements, but no memory.
    #[error("a tensor of {elements} elements has no memory")]
    NoData {
        /// The number of elements.
        elements: u64,
    },
    /// The elements are of another type.
    #[error(
        "a tensor has elements of type {} with {} bits and {} lanes, and {expected} was asked for",
        found.code, found.bits, found.lanes
    )]
    Type {
        /// The type of the tensor.
        found: DLDataType,
        /// The type asked for.
        expected: &'static str,
    },
    /// The first element is not aligned for its type.
    #[error("the elements of a tensor begin at {address:#x}, which is not aligned to {align}")]
    Alignment {
        /// The address of the first element.
        address: usize,
        /// The alignment that the type needs, in bytes.
        align: usize,
    },
    /// The tensor must not be written, and a buffer can be.
    #[error("a tensor that is read-only cannot be storage of a buffer: copy its elements")]
    ReadOnly,
    /// The tensor is elsewhere.
    #[error("a tensor is on device {} of type {}, and {expected} was asked for", found.device_id, found.device_type)]
    Device {
        /// The device of the tensor.
        found: DLDevice,
        /// What was asked for.
        expected: String,
    },
}

/// A tensor that was not taken as asked. The error returns it.
#[derive(Debug, Error)]
#[error("{cause}")]
pub struct Untaken {
    /// The reason.
    pub cause: ImportError,
    /// The tensor, which is still the caller's.
    pub tensor: Tensor,
}

/// A structure that is ours to delete.
enum Managed {
    Versioned(NonNull<DLManagedTensorVersioned>),
    Legacy(NonNull<DLManagedTensor>),
}

// SAFETY: who hands a tensor over promises that any thread may delete it, and that its fields stay as they are.
unsafe impl Send for Managed {}

// SAFETY: as above; nothing is done by a shared reference.
unsafe impl Sync for Managed {}

impl Drop for Managed {
    fn drop(&mut self) {
        match self {
            Self::Versioned(managed) => {
                // SAFETY: live until the deleter is called; the field is there in every version.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: the consumer's one call, on the structure that the deleter came with.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
            Self::Legacy(managed) => {
                // SAFETY: as above.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: as above.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
        }
    }
}

/// A tensor of another framework, of which this is the consumer. Dropping it calls the deleter.
///
/// # Shape and units
/// Compact and row-major: the last dimension is contiguous. The shape is in elements; no dimensions are one element.
pub struct Tensor {
    /// The first element.
    data: *mut u8,
    device: DLDevice,
    element: DLDataType,
    shape: Vec<u64>,
    elements: u64,
    is_read_only: bool,
    managed: Option<Managed>,
}

// SAFETY: the address gives no access by itself. What it names is the tensor's alone (contract of the constructors).
unsafe impl Send for Tensor {}

// SAFETY: as above; elements are only read by a shared reference.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Takes a tensor, which is the caller's no more: it is deleted when the result is dropped, and at once if it is refused.
    ///
    /// # Errors
    /// [`ImportError`] for what is not compact and row-major, or contradicts itself. A null pointer is an error, too.
    ///
    /// # Safety
    /// 1. `managed` is null, or names a structure as DLPack describes it, which nobody else deletes. It and the arrays that it names
    ///    stay as they are until the deleter is called.
    /// 2. The deleter may be called on any thread.
    /// 3. The memory is valid for reads, and for writes unless the flag says read-only, of all elements until the
    ///    deleter is called. The elements are initialised.
    /// 4. Until then nobody else writes the elements, and nobody else reads them once they are storage of a buffer. What a
    ///    device was told to do with them before has ended: whoever knows the stream waits for it
    ///    ([`CudaArena::fence_of`](crate::CudaArena::fence_of)).
    pub unsafe fn from_versioned(managed: *mut DLManagedTensorVersioned) -> Result<Self, ImportError> {
        let ptr = NonNull::new(managed).ok_or(ImportError::Null)?;
        let managed = Managed::Versioned(ptr);
        // SAFETY: a live structure (1), of which every version begins like this.
        let found = unsafe { (*ptr.as_ptr()).version };
        if found.major != VERSION.major {
            return Err(ImportError::Version { found });
        }
        // SAFETY: a live structure of this version (1).
        let (flags, tensor) = unsafe { ((*ptr.as_ptr()).flags, (*ptr.as_ptr()).dl_tensor) };
        // SAFETY: the caller's word.
        unsafe { Self::checked(managed, &tensor, flags & FLAG_READ_ONLY != 0) }
    }

    /// Takes a tensor in the structure of before version 1, which has no flags: it may be written.
    ///
    /// # Errors
    /// As [`from_versioned`](Self::from_versioned).
    ///
    /// # Safety
    /// As [`from_versioned`](Self::from_versioned).
    pub unsafe fn from_legacy(managed: *mut DLManagedTensor) -> Result<Self, ImportError> {
        let ptr = NonNull::new(managed).ok_or(ImportError::Null)?;
        let managed = Managed::Legacy(ptr);
        // SAFETY: a live structure (1).
        let tensor = unsafe { (*ptr.as_ptr()).dl_tensor };
        // SAFETY: the caller's word.
        unsafe { Self::checked(managed, &tensor, false) }
    }

    /// Checks a tensor. If it is refused, `managed` goes, which deletes it.
    ///
    /// # Safety
    /// As of the constructors.
    unsafe fn checked(managed: Managed, tensor: &DLTensor, is_read_only: bool) -> Result<Self, ImportError> {
        let (ndim, element) = (tensor.ndim, tensor.dtype);
        let dimensions = usize::try_from(ndim).map_err(|_| ImportError::NoShape { ndim })?;
        // SAFETY: as many numbers as dimensions, where there are any (1 of the constructors).
        let extents = unsafe { numbers(tensor.shape, dimensions) }.ok_or(ImportError::NoShape { ndim })?;
        let mut shape = Vec::with_capacity(dimensions);
        for (axis, &extent) in extents.iter().enumerate() {
            shape.push(u64::try_from(extent).map_err(|_| ImportError::Extent { axis, extent })?);
        }
        let element_bits = u64::from(element.bits) * u64::from(element.lanes);
        let count = elements(&shape);
        let size = count
            .and_then(|count| count.checked_mul(element_bits)?.div_ceil(8).checked_add(tensor.byte_offset))
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        let (Some(elements), Some(_)) = (count, size) else {
            return Err(ImportError::TooLarge { shape, element_bits });
        };
        // SAFETY: as above.
        if let Some(strides) = unsafe { numbers(tensor.strides, dimensions) }.filter(|_| elements != 0) {
            for (axis, (&stride, expected)) in strides.iter().zip(row_major(&shape)).enumerate() {
                // Where there is one element, nobody takes a step.
                if shape[axis] > 1 && u64::try_from(stride) != Ok(expected) {
                    return Err(ImportError::Stride { axis, stride, expected, shape });
                }
            }
        }
        if tensor.data.is_null() && elements != 0 {
            return Err(ImportError::NoData { elements });
        }
        // It may be the address of another memory, so it is no more than a number.
        let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        let device = tensor.device;
        Ok(Self { data, device, element, shape, elements, is_read_only, managed: Some(managed) })
    }

    /// Where the elements are.
    #[must_use]
    pub fn device(&self) -> DLDevice {
        self.device
    }

    /// The type of the elements.
    #[must_use]
    pub fn element(&self) -> DLDataType {
        self.element
    }

    /// The extents of the dimensions, in elements.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.elements
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Returns whether the elements must not be written.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the elements of a tensor in memory of the host, to be copied where the tensor itself cannot be storage.
    ///
    /// # Errors
    /// [`ImportError::Type`], [`ImportError::Alignment`], [`ImportError::Device`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T], ImportError> {
        let first = self.host_elements::<T>()?;
        // SAFETY: live, initialised, written by nobody (contract of the constructors), of this type and aligned, as just checked;
        // their size fits.
        Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), self.elements as usize) })
    }

    /// Makes storage for a buffer of a tensor in memory of the host, page-locked or not:
    /// [`Platform::buffer_from`](dml_core::Platform::buffer_from),
    /// [`Buffer::attach_external`](dml_core::Buffer::attach_external). The tensor is deleted with the buffer, unless
    /// [`Buffer::into_storage`](dml_core::Buffer::into_storage) has it back. That alone brings the latest contents into its memory: a
    /// producer whose deleter goes on with the elements otherwise finds what the host had last.
    ///
    /// # Errors
    /// [`Untaken`] with the tensor: [`ImportError::Type`], [`ImportError::Alignment`], [`ImportError::Device`], and
    /// [`ImportError::ReadOnly`].
    pub fn into_foreign<T: Element>(self) -> Result<Foreign<T, Self>, Untaken> {
        match self.host_elements::<T>().and_then(|first| self.writable().map(|()| first)) {
            // SAFETY: aligned, live, initialised and writable until the tensor is deleted (1), at the address that the producer
            // chose, on any thread (2), and used by nobody else (3): the contract of the constructors.
            Ok(first) => Ok(unsafe { Foreign::new(first, self.elements as usize, self) }),
            Err(cause) => Err(Untaken { cause, tensor: self }),
        }
    }

    /// Returns the first element in memory of the host, or any aligned address if there are no elements.
    fn host_elements<T: Element>(&self) -> Result<NonNull<T>, ImportError> {
        if ![CPU, CUDA_HOST].contains(&self.device.device_type) {
            let expected = "memory of the host".to_owned();
            return Err(ImportError::Device { found: self.device, expected });
        }
        self.elements_of::<T>()?;
        Ok(NonNull::new(self.data.cast::<T>()).filter(|_| !self.is_empty()).unwrap_or(NonNull::dangling()))
    }

    /// Checks that the elements are of this type, and aligned for it. Returns the address of the first one.
    pub(crate) fn elements_of<T: Element>(&self) -> Result<usize, ImportError> {
        if self.element != T::TYPE {
            return Err(ImportError::Type { found: self.element, expected: T::NAME });
        }
        let (address, align) = (self.data.addr(), align_of::<T>());
        match self.is_empty() || address.is_multiple_of(align) {
            true => Ok(address),
            false => Err(ImportError::Alignment { address, align }),
        }
    }

    /// Checks that the elements may be written.
    pub(crate) fn writable(&self) -> Result<(), ImportError> {
        if self.is_read_only { Err(ImportError::ReadOnly) } else { Ok(()) }
    }
}

/// Returns the numbers of an array, which is null if there is none. No numbers need no array.
///
/// # Safety
/// A pointer that is not null names so many numbers, which stay as they are.
unsafe fn numbers<'a>(array: *const i64, count: usize) -> Option<&'a [i64]> {
    match (count, array.is_null()) {
        (0, _) => Some(&[]),
        (_, true) => None,
        // SAFETY: the caller's word.
        (_, false) => Some(unsafe { std::slice::from_raw_parts(array, count) }),
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // The producer may be this library, whose code checks that no lock is held.
        quietly(self.managed.take());
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data, device, element, shape, .. } = self;
        write!(f, "Tensor({shape:?} of {element:?} at {data:p}, {device:?})")
    }
}
