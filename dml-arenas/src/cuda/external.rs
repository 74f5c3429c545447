//! Blocks over GPU memory that the application allocated: addresses, and slices of cudarc.
//!
//! ```text
//!   address, size, container ── checked by driver ──▶ ExternalBlock ──RawBuffer::attach_block──▶ a buffer
//!   CudaSlice ── its stream has ended ──────────────▶               ◀──RawBuffer::into_container──
//! ```

use super::arena::CudaArena;
use super::block::CudaBlock;
use super::error::{Failure, check, is_lost, words};
use super::session::Session;
use bytemuck::Pod;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemorytype, CUpointer_attribute as Attribute, CUstream, cuMemGetAddressRange_v2,
    cuPointerGetAttribute,
};
use cudarc::driver::{CudaSlice, DevicePtrMut, DeviceRepr, DriverError};
use dml_core::internal::sync::Arc;
use dml_core::{ExternalBlock, Fence, NativeHandle, NewBlock, TransferError};
use std::any::Any;
use std::fmt;
use thiserror::Error;

/// Why an arena cannot use memory that the application allocated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExternalError {
    /// The driver does not know the address, or it is not memory of a GPU.
    #[error("{address:#x} is not memory of a GPU, but {found}: {arena} cannot use it")]
    NotDeviceMemory {
        /// The arena's name.
        arena: Arc<str>,
        /// The address.
        address: u64,
        /// What the driver reports at the address.
        found: &'static str,
    },
    /// The memory is of another GPU.
    #[error("{address:#x} is memory of GPU {found}, and {arena} is GPU {own}")]
    OtherDevice {
        /// The arena's name.
        arena: Arc<str>,
        /// The address.
        address: u64,
        /// The GPU that has the memory, in the driver's numbering.
        found: i32,
        /// The GPU of the arena.
        own: i32,
    },
    /// The memory belongs to another context than the device's primary one.
    #[error("{address:#x} was allocated in another context than the primary one, which {arena} uses")]
    OtherContext {
        /// The arena's name.
        arena: Arc<str>,
        /// The address.
        address: u64,
    },
    /// The allocation is smaller than the given size.
    #[error("{bytes} bytes at {address:#x} reach past their allocation of {size} bytes at {start:#x}")]
    TooShort {
        /// The address.
        address: u64,
        /// The given size, in bytes.
        bytes: u64,
        /// The address of the allocation.
        start: u64,
        /// The size of the allocation, in bytes.
        size: u64,
    },
    /// The device is lost.
    #[error("device lost: {arena}")]
    DeviceLost {
        /// The arena's name.
        arena: Arc<str>,
    },
    /// A call of the driver failed for another reason.
    #[error("{call} failed in {arena}: {message} (code {code})")]
    Framework {
        /// The arena's name.
        arena: Arc<str>,
        /// The driver's call.
        call: &'static str,
        /// The driver's error code.
        code: i64,
        /// The code in words.
        message: Arc<str>,
    },
    /// The tensor cannot be storage.
    #[error("{0}")]
    Tensor(#[from] crate::dlpack::ImportError),
}

/// An error of an arena that did not take the caller's memory, with its container.
#[derive(Error)]
#[error("{cause}")]
pub struct Refused<C> {
    /// The reason.
    pub cause: ExternalError,
    /// What the caller passed in.
    pub container: C,
}

impl<C> fmt::Debug for Refused<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("cause", &self.cause).finish_non_exhaustive()
    }
}

impl CudaArena {
    /// Creates a block over `bytes` bytes of this GPU's memory at `address`, a `CUdeviceptr`.
    ///
    /// `container` keeps the memory: dropping it frees the memory. If nothing must be freed, pass `()`.
    /// [`RawBuffer::attach_block`](dml_core::RawBuffer::attach_block) makes the block storage of a buffer.
    /// [`RawBuffer::into_container`](dml_core::RawBuffer::into_container) returns the container, with the
    /// latest contents in the memory.
    ///
    /// This checks with the driver that the address is memory of the device and its primary context, and that
    /// the allocation has `bytes` bytes there. The caller guarantees the rest.
    ///
    /// # Errors
    /// [`Refused`] with the container, if one of these checks fails. Managed memory and memory of the host
    /// are refused.
    ///
    /// # Safety
    /// 1. The memory stays allocated, at this address, until `container` is dropped or returned. No commands
    ///    use it then, so it may be freed on any stream.
    /// 2. Until then, the bytes are read or written only under a grant of the buffer: on any stream, on the
    ///    host and on other devices.
    /// 3. All commands enqueued on these bytes before this call have ended, on every stream. This arena's
    ///    streams do not wait for others. [`fence_of`](Self::fence_of) waits for a stream.
    /// 4. The address is aligned for what kernels read there. Memory from the driver is aligned to 256 bytes,
    ///    but a part of it may not be.
    /// 5. `container` may be dropped on any thread. It is not dropped in a fork of the process.
    ///
    /// ```no_run
    /// # use dml_arenas::{CudaArena, Discover};
    /// # use dml_core::{NativeHandle, Platform};
    /// # fn allocated_by_a_framework() -> usize { unimplemented!() }
    /// # let platform = Platform::builder().discover()?.build()?;
    /// let gpu = platform.device("cuda:0")?;
    /// let cuda = platform.home_as::<CudaArena>(gpu).expect("a GPU has a CUDA arena");
    /// let address = NativeHandle(allocated_by_a_framework());
    /// // SAFETY: the framework allocated 4000 bytes there, and does not use them until the buffer ends.
    /// let block = unsafe { cuda.external(address, 4000, ()) }?;
    /// let buffer = platform.buffer::<f32>(1000).build()?;
    /// buffer.raw().attach_block(platform.home(gpu).expect("a GPU has an arena"), block)?;
    /// // ... acquires, kernels ...
    /// buffer.raw().clone().into_container::<()>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn external<C: Any + Send + Sync>(
        &self,
        address: NativeHandle,
        bytes: u64,
        container: C,
    ) -> Result<ExternalBlock<C>, Box<Refused<C>>> {
        let start = address.0 as CUdeviceptr;
        match self.examine(start, bytes) {
            // SAFETY: as the caller guarantees, and the driver has confirmed.
            Ok(()) => Ok(unsafe { self.over(start, bytes, container) }),
            Err(cause) => Err(Box::new(Refused { cause, container })),
        }
    }

    /// Creates a block over a slice of cudarc.
    ///
    /// [`RawBuffer::into_container`](dml_core::RawBuffer::into_container) returns the slice; otherwise it is
    /// freed with the buffer. This waits for the slice's stream, including work that cudarc orders before it.
    /// When the slice is returned, all commands of this library have ended, so any stream may use it.
    ///
    /// # Errors
    /// [`Refused`] with the slice: [`ExternalError::OtherContext`] for a slice of another device or context,
    /// [`ExternalError::Framework`] if its stream has failed, [`ExternalError::DeviceLost`].
    ///
    /// ```no_run
    /// # use cudarc::driver::{CudaContext, CudaSlice};
    /// # use dml_arenas::{CudaArena, Discover};
    /// # use dml_core::Platform;
    /// # let platform = Platform::builder().discover()?.build()?;
    /// let gpu = platform.device("cuda:0")?;
    /// let cuda = platform.home_as::<CudaArena>(gpu).expect("a GPU has a CUDA arena");
    /// let stream = CudaContext::new(0)?.default_stream();
    /// let slice = stream.clone_htod(&[1.0_f32; 1000])?;
    /// let buffer = platform.buffer::<f32>(1000).build()?;
    /// buffer.raw().attach_block(platform.home(gpu).expect("a GPU has an arena"), cuda.external_slice(slice)?)?;
    /// assert_eq!(buffer.read()?[999], 1.0);
    /// let slice: CudaSlice<f32> = buffer.raw().clone().into_container()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn external_slice<T: DeviceRepr + Pod + Send + Sync>(
        &self,
        mut slice: CudaSlice<T>,
    ) -> Result<ExternalBlock<CudaSlice<T>>, Box<Refused<CudaSlice<T>>>> {
        let bytes = slice.num_bytes() as u64;
        match self.settled(&mut slice) {
            // SAFETY: the slice keeps its memory in this context (1), and is owned by the block (2).
            Ok(address) => Ok(unsafe { self.over(address, bytes, slice) }),
            Err(cause) => Err(Box::new(Refused { cause, container: slice })),
        }
    }

    /// Returns a fence for the end of all commands enqueued so far on a stream of the application.
    ///
    /// With this fence, [`Grants::in_flight`](dml_core::Grants::in_flight) keeps grants until kernels that a
    /// framework launched on its own stream have ended. With [`Fence::wait`], a thread can wait for the
    /// stream before it hands memory over. The fence can be awaited and polled like those of the arena's own
    /// commands.
    ///
    /// # Errors
    /// [`TransferError`] of the driver, for example of a lost device.
    ///
    /// # Safety
    /// 1. `stream` is a `CUstream` of the device's primary context ([`context`](Self::context)) that lives
    ///    during the call. Zero names the context's default stream, and two the calling thread's own
    ///    (`CU_STREAM_PER_THREAD`).
    pub unsafe fn fence_of(&self, stream: NativeHandle) -> Result<Fence, TransferError> {
        let stream = std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(stream.0) as CUstream;
        // SAFETY: as the caller guarantees.
        unsafe { self.session.recorded(stream) }
    }

    /// # Safety
    /// As [`CudaBlock::over`].
    unsafe fn over<C: Any + Send + Sync>(
        &self,
        address: CUdeviceptr,
        bytes: u64,
        container: C,
    ) -> ExternalBlock<C> {
        let container = Arc::new(container);
        // SAFETY: as the caller guarantees. The block keeps the container.
        let block = unsafe { CudaBlock::over(&self.session, address, bytes, container.clone()) };
        ExternalBlock::new(NewBlock::new(Arc::new(block)), container)
    }

    /// Waits for the commands on a slice's stream, and returns the slice's address.
    fn settled<T>(&self, slice: &mut CudaSlice<T>) -> Result<CUdeviceptr, ExternalError> {
        let _entered = self.enter()?;
        let stream = slice.stream().clone();
        let (address, used) = slice.device_ptr_mut(&stream);
        drop(used);
        if stream.context().cu_ctx() != self.session.context() {
            return Err(ExternalError::OtherContext { arena: self.desc.name.clone(), address });
        }
        let synchronized = stream
            .synchronize()
            .map_err(|DriverError(code)| self.failure(Failure { call: "cuStreamSynchronize", code }));
        synchronized.map(|()| address)
    }

    pub(super) fn enter(&self) -> Result<super::session::Entered<'_>, ExternalError> {
        let lost = |_| ExternalError::DeviceLost { arena: self.desc.name.clone() };
        self.session.enter().map_err(lost)
    }

    pub(super) fn failure(&self, failure: Failure) -> ExternalError {
        self.session.note(failure);
        let (arena, Failure { call, code }) = (self.desc.name.clone(), failure);
        if is_lost(code) {
            return ExternalError::DeviceLost { arena };
        }
        ExternalError::Framework { arena, call, code: i64::from(code as u32), message: words(code).into() }
    }

    /// Checks with the driver that these bytes are memory of the device that the arena can use.
    fn examine(&self, address: CUdeviceptr, bytes: u64) -> Result<(), ExternalError> {
        let _entered = self.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        let arena = || self.desc.name.clone();
        let not_device = |found| ExternalError::NotDeviceMemory { arena: arena(), address, found };
        let kind = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
            .map_err(|_| not_device("an address that the driver does not know"))?;
        // A driver without this attribute has no managed memory.
        if attribute(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, address).is_ok_and(|managed| managed != 0) {
            return Err(not_device("managed memory"));
        }
        if kind == CUmemorytype::CU_MEMORYTYPE_HOST as u64 {
            return Err(not_device("memory of the host"));
        }
        if kind != CUmemorytype::CU_MEMORYTYPE_DEVICE as u64 {
            return Err(not_device("memory of another kind"));
        }
        let found = attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
            .map_err(|failure| self.failure(failure))? as i32;
        let own = self.session.found.device;
        if found != own {
            return Err(ExternalError::OtherDevice { arena: arena(), address, found, own });
        }
        // Pool memory and mapped memory belong to no context.
        let context = attribute(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, address).unwrap_or(0);
        if context != 0 && context != self.session.context().addr() as u64 {
            return Err(ExternalError::OtherContext { arena: arena(), address });
        }
        let (start, mut size) = range(address).map_err(|failure| self.failure(failure))?;
        let is_within = |size: u64| address.checked_add(bytes).is_some_and(|end| end <= start + size);
        // A range that was mapped piece by piece is contiguous, but the driver reports each piece separately.
        while context == 0 && !is_within(size) {
            match range(start + size) {
                Ok((next, more)) if next == start + size && more != 0 => size += more,
                _ => break,
            }
        }
        if is_within(size) { Ok(()) } else { Err(ExternalError::TooShort { address, bytes, start, size }) }
    }
}

/// Returns the start and the size of the allocation that contains an address. A context must be current.
fn range(address: CUdeviceptr) -> Result<(u64, u64), Failure> {
    let (mut start, mut size) = (0, 0);
    // SAFETY: the call writes an address and a number.
    let found = unsafe { cuMemGetAddressRange_v2(&raw mut start, &raw mut size, address) };
    check("cuMemGetAddressRange", found).map(|()| (start, size as u64))
}

/// Returns an attribute of an address. A context must be current.
fn attribute(attribute: Attribute, address: CUdeviceptr) -> Result<u64, Failure> {
    let mut value = 0_u64;
    // SAFETY: the call writes at most 8 bytes. Smaller values fill the low bytes: the driver runs on
    // little-endian machines only.
    check("cuPointerGetAttribute", unsafe {
        cuPointerGetAttribute((&raw mut value).cast(), attribute, address)
    })?;
    Ok(value)
}

/// Returns whether the driver knows an address as page-locked memory of the host.
pub(super) fn is_page_locked(session: &Session, address: usize) -> bool {
    let Ok(_entered) = session.enter() else { return false };
    attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address as CUdeviceptr)
        .is_ok_and(|kind| kind == CUmemorytype::CU_MEMORYTYPE_HOST as u64)
}
