//! The structures of DLPack, as C lays them out (dlpack.h, version 1.1).

use std::ffi::c_void;

/// The version of the structures that this module makes. Other major versions have other layouts.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };

/// `DLPACK_FLAG_BITMASK_READ_ONLY`: the consumer must not write the elements.
pub const FLAG_READ_ONLY: u64 = 1;
/// `DLPACK_FLAG_BITMASK_IS_COPIED`: the producer has made a copy for this consumer.
pub const FLAG_IS_COPIED: u64 = 2;

/// `kDLCPU`: memory of the host.
pub const CPU: i32 = 1;
/// `kDLCUDA`: memory of a GPU.
pub const CUDA: i32 = 2;
/// `kDLCUDAHost`: page-locked memory of the host.
pub const CUDA_HOST: i32 = 3;

/// `kDLInt`: signed integers.
pub const INT: u8 = 0;
/// `kDLUInt`: unsigned integers.
pub const UINT: u8 = 1;
/// `kDLFloat`: IEEE floating-point numbers.
pub const FLOAT: u8 = 2;

/// The version of a structure.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// The major version, which changes with the layout.
    pub major: u32,
    /// The minor version, which only adds values.
    pub minor: u32,
}

/// The device that holds the elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// The kind of memory: [`CPU`], [`CUDA`], [`CUDA_HOST`].
    pub device_type: i32,
    /// The number of the device within its kind; 0 for host memory.
    pub device_id: i32,
}

/// The type of the elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// The kind: [`INT`], [`UINT`], [`FLOAT`].
    pub code: u8,
    /// The size in bits.
    pub bits: u8,
    /// The number of values in an element; 1 except for vector types.
    pub lanes: u16,
}

/// The elements and their shape.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The start of the memory, `byte_offset` bytes before the first element.
    pub data: *mut c_void,
    /// The device that holds the memory.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The type of the elements.
    pub dtype: DLDataType,
    /// `ndim` extents, in elements.
    pub shape: *mut i64,
    /// `ndim` strides, in elements; null if compact and row-major.
    pub strides: *mut i64,
    /// The offset of the first element, in bytes.
    pub byte_offset: u64,
}

/// A tensor with its producer's destructor and no version: the structure of DLPack before version 1.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's context.
    pub manager_ctx: *mut c_void,
    /// Frees this structure and everything that it points to. The consumer calls it once. Null if there is
    /// nothing to free.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A tensor with its producer's destructor.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version of this structure. Of another major version only the next two fields may be used.
    pub version: DLPackVersion,
    /// The producer's context.
    pub manager_ctx: *mut c_void,
    /// Frees this structure and everything that it points to. The consumer calls it once. Null if there is
    /// nothing to free.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// [`FLAG_READ_ONLY`] and others.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The layout of dlpack.h by a C compiler on 64-bit machines.
    #[test]
    fn the_structures_are_laid_out_as_in_c() {
        assert_eq!((size_of::<DLDevice>(), size_of::<DLDataType>(), size_of::<DLTensor>()), (8, 4, 48));
        let tensor = [
            offset_of!(DLTensor, device),
            offset_of!(DLTensor, ndim),
            offset_of!(DLTensor, dtype),
            offset_of!(DLTensor, shape),
            offset_of!(DLTensor, strides),
            offset_of!(DLTensor, byte_offset),
        ];
        assert_eq!(tensor, [8, 16, 20, 24, 32, 40]);
        assert_eq!((size_of::<DLManagedTensor>(), size_of::<DLManagedTensorVersioned>()), (64, 80));
        assert_eq!(
            [offset_of!(DLManagedTensor, manager_ctx), offset_of!(DLManagedTensor, deleter)],
            [48, 56]
        );
        let versioned = [
            offset_of!(DLManagedTensorVersioned, manager_ctx),
            offset_of!(DLManagedTensorVersioned, deleter),
            offset_of!(DLManagedTensorVersioned, flags),
            offset_of!(DLManagedTensorVersioned, dl_tensor),
        ];
        assert_eq!(versioned, [8, 16, 24, 32]);
    }
}
