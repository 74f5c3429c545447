//! Imports tensors: each is taken once, checked, and freed by its deleter.

use super::abi::{
    CPU, CUDA_HOST, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
    FLAG_READ_ONLY, VERSION,
};
use super::{Element, elements, row_major};
use dml_core::Foreign;
use dml_core::internal::quietly;
use std::fmt;
use std::ptr::NonNull;
use thiserror::Error;

/// Why a tensor cannot be imported, or not as requested.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The pointer is null.
    #[error("the pointer to the tensor is null")]
    Null,
    /// The structure has another layout.
    #[error("a tensor has DLPack version {}.{}, and only {} is supported", found.major, found.minor, VERSION.major)]
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
    /// The elements do not fit into an address space.
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
        /// The requested type.
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
    /// The tensor is read-only, and a buffer can be written.
    #[error("a tensor that is read-only cannot be storage of a buffer: copy its elements")]
    ReadOnly,
    /// The tensor is on another device.
    #[error("a tensor is on device {} of type {}, and {expected} was asked for", found.device_id, found.device_type)]
    Device {
        /// The device of the tensor.
        found: DLDevice,
        /// The requested device.
        expected: String,
    },
}

/// A tensor that was not imported as requested. The error returns it.
#[derive(Debug, Error)]
#[error("{cause}")]
pub struct Untaken {
    /// The reason.
    pub cause: ImportError,
    /// The tensor, still the caller's.
    pub tensor: Tensor,
}

/// An owned structure, deleted when it is dropped.
enum Managed {
    Versioned(NonNull<DLManagedTensorVersioned>),
    Legacy(NonNull<DLManagedTensor>),
}

// SAFETY: the constructors require that any thread may delete the structure, and that its fields stay
// unchanged.
unsafe impl Send for Managed {}

// SAFETY: as above; a shared reference gives access to nothing.
unsafe impl Sync for Managed {}

impl Drop for Managed {
    fn drop(&mut self) {
        match self {
            Self::Versioned(managed) => {
                // SAFETY: live until the deleter is called. Every version has the field.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: the only call of the deleter, on its own structure.
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

/// A tensor of another framework. Dropping it calls the deleter.
///
/// # Shape and units
/// Compact and row-major: the last dimension is contiguous. The shape is in elements. An empty shape is one
/// element.
///
/// # Examples
/// ```
/// # use dml_arenas::dlpack::{self, Tensor};
/// # use dml_arenas::{Discover, DiscoverOptions};
/// # use dml_core::Platform;
/// # let options = DiscoverOptions::default().only(["cpu"]).offload(0);
/// # let platform = Platform::builder().discover_with(&options)?.build()?;
/// # let theirs = platform.buffer_from(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0_f32])?;
/// # let grants = platform.acquire(platform.device("cpu")?).read_write(&theirs).wait()?;
/// # let managed = dlpack::export::<f32>(grants, &theirs, &[2, 3])?.into_versioned().as_ptr();
/// // SAFETY: the framework gave up the tensor that it returned as `managed`.
/// let tensor = unsafe { Tensor::from_versioned(managed) }?;
/// assert_eq!(tensor.shape(), [2, 3]);
/// let buffer = platform.buffer_from(tensor.into_foreign::<f32>()?)?; // copies nothing
/// assert_eq!(buffer.read()?[5], 5.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

// SAFETY: the address gives no access by itself. Its memory belongs to the tensor alone (contract of the
// constructors).
unsafe impl Send for Tensor {}

// SAFETY: as above; elements are only read by a shared reference.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Takes ownership of a tensor. It is deleted when the result is dropped, or at once if it is refused.
    ///
    /// # Errors
    /// [`ImportError`] for a null pointer, and for a tensor that is not compact and row-major or contradicts
    /// itself.
    ///
    /// # Safety
    /// 1. `managed` is null, or points to a structure as DLPack describes it, which no other code deletes. It
    ///    and the arrays that it points to stay unchanged until the deleter is called.
    /// 2. The deleter may be called on any thread.
    /// 3. The memory of all elements is valid for reads until the deleter is called, and for writes unless
    ///    the flag says read-only. The elements are initialised.
    /// 4. Until then no other code writes the elements, nor reads them once they are storage of a buffer.
    ///    Earlier work of a device on them has ended: a caller that knows the stream waits for it
    ///    (`CudaArena::fence_of`).
    pub unsafe fn from_versioned(managed: *mut DLManagedTensorVersioned) -> Result<Self, ImportError> {
        let ptr = NonNull::new(managed).ok_or(ImportError::Null)?;
        let managed = Managed::Versioned(ptr);
        // SAFETY: a live structure (1). Every version begins with this field.
        let found = unsafe { (*ptr.as_ptr()).version };
        if found.major != VERSION.major {
            return Err(ImportError::Version { found });
        }
        // SAFETY: a live structure of this version (1).
        let (flags, tensor) = unsafe { ((*ptr.as_ptr()).flags, (*ptr.as_ptr()).dl_tensor) };
        // SAFETY: guaranteed by the caller.
        unsafe { Self::checked(managed, &tensor, flags & FLAG_READ_ONLY != 0) }
    }

    /// Takes ownership of a tensor in the structure of DLPack before version 1. It has no flags, so the
    /// tensor may be written.
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
        // SAFETY: guaranteed by the caller.
        unsafe { Self::checked(managed, &tensor, false) }
    }

    /// Checks a tensor. If it is refused, dropping `managed` deletes it.
    ///
    /// # Safety
    /// As for the constructors.
    unsafe fn checked(managed: Managed, tensor: &DLTensor, is_read_only: bool) -> Result<Self, ImportError> {
        let (ndim, element) = (tensor.ndim, tensor.dtype);
        let dimensions = usize::try_from(ndim).map_err(|_| ImportError::NoShape { ndim })?;
        // SAFETY: if not null, the array has one number per dimension (1 of the constructors).
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
                // The stride of a single element is never used.
                if shape[axis] > 1 && u64::try_from(stride) != Ok(expected) {
                    return Err(ImportError::Stride { axis, stride, expected, shape });
                }
            }
        }
        if tensor.data.is_null() && elements != 0 {
            return Err(ImportError::NoData { elements });
        }
        // The address may be one of a device's memory, so it is not dereferenced here.
        let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        let device = tensor.device;
        Ok(Self { data, device, element, shape, elements, is_read_only, managed: Some(managed) })
    }

    /// Returns the device that holds the elements.
    #[must_use]
    pub fn device(&self) -> DLDevice {
        self.device
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn element(&self) -> DLDataType {
        self.element
    }

    /// Returns the extents of the dimensions, in elements.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the number of elements.
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

    /// Returns the elements of a tensor in host memory, for a copy if the tensor itself cannot be storage.
    ///
    /// # Errors
    /// [`ImportError::Type`], [`ImportError::Alignment`], [`ImportError::Device`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T], ImportError> {
        let first = self.host_elements::<T>()?;
        // SAFETY: live, initialised and not written by other code (contract of the constructors). The type
        // and alignment were just checked, and the size fits.
        Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), self.elements as usize) })
    }

    /// Turns a tensor in host memory, page-locked or not, into storage for a buffer:
    /// [`Platform::buffer_from`](dml_core::Platform::buffer_from),
    /// [`Buffer::attach_external`](dml_core::Buffer::attach_external).
    ///
    /// The tensor is deleted with the buffer, unless [`Buffer::into_storage`](dml_core::Buffer::into_storage)
    /// returns it. Only `into_storage` brings the latest contents into its memory. A producer whose deleter
    /// uses the elements otherwise finds the contents that the host had last.
    ///
    /// # Errors
    /// [`Untaken`] with the tensor: [`ImportError::Type`], [`ImportError::Alignment`],
    /// [`ImportError::Device`], and [`ImportError::ReadOnly`].
    pub fn into_foreign<T: Element>(self) -> Result<Foreign<T, Self>, Untaken> {
        match self.host_elements::<T>().and_then(|first| self.writable().map(|()| first)) {
            // SAFETY: the contract of the constructors. The elements are aligned, live, initialised and
            // writable until the tensor is deleted (1). They stay at the producer's address, and any thread
            // may delete them (2). No other code uses them (3).
            Ok(first) => Ok(unsafe { Foreign::new(first, self.elements as usize, self) }),
            Err(cause) => Err(Untaken { cause, tensor: self }),
        }
    }

    /// Returns the first element in host memory, or any aligned address if there are no elements.
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

/// Returns the numbers of an array; `None` if it is null and `count` is not zero.
///
/// # Safety
/// `array` is null, or points to `count` numbers, which stay unchanged.
unsafe fn numbers<'a>(array: *const i64, count: usize) -> Option<&'a [i64]> {
    match (count, array.is_null()) {
        (0, _) => Some(&[]),
        (_, true) => None,
        // SAFETY: guaranteed by the caller.
        (_, false) => Some(unsafe { std::slice::from_raw_parts(array, count) }),
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // The deleter may be this library's own, whose code checks that no lock is held.
        quietly(self.managed.take());
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data, device, element, shape, .. } = self;
        write!(f, "Tensor({shape:?} of {element:?} at {data:p}, {device:?})")
    }
}
