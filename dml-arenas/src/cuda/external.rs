//! Memory that others allocated on a GPU, as blocks: addresses, slices of cudarc.
//!
//! ```text
//!   address, size, container ──what the driver knows of it──▶ ExternalBlock ──RawBuffer::attach_block──▶ a buffer
//!   CudaSlice ── its stream has ended ──────────────────────▶               ◀──RawBuffer::into_container──
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
use dml_core::sync::Arc;
use dml_core::{ExternalBlock, Fence, NativeHandle, NewBlock, TransferError};
use std::any::Any;
use std::fmt;
use thiserror::Error;

/// Why an arena cannot use memory that others allocated.
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
        /// What the driver says of it.
        found: &'static str,
    },
    /// The memory is of another GPU.
    #[error("{address:#x} is memory of GPU {found}, and {arena} is GPU {own}")]
    OtherDevice {
        /// The arena's name.
        arena: Arc<str>,
        /// The address.
        address: u64,
        /// The GPU that has the memory, as the driver numbers them.
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
    /// The memory is smaller than was said.
    #[error("{bytes} bytes at {address:#x} reach past their allocation of {size} bytes at {start:#x}")]
    TooShort {
        /// The address.
        address: u64,
        /// The size that was said, in bytes.
        bytes: u64,
        /// The address of the allocation.
        start: u64,
        /// The size of the allocation in bytes.
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

/// Memory that an arena did not take. The error returns its container.
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
    /// Makes a block over `bytes` bytes of this GPU's memory at `address` (a `CUdeviceptr`), which `container` keeps: dropping
    /// the container frees them. [`RawBuffer::attach_block`](dml_core::RawBuffer::attach_block) makes it storage of a
    /// buffer, and [`RawBuffer::into_container`](dml_core::RawBuffer::into_container) gives the container back with the latest
    /// contents. Where nothing is to be freed, `()` is a container.
    ///
    /// The driver is asked whether this is memory of the device and its primary context, and whether the allocation has so many
    /// bytes there. What it cannot tell is the caller's to keep:
    ///
    /// # Errors
    /// [`Refused`] with the container, for what the driver says otherwise. Memory that the host addresses as well (managed,
    /// or of the host) is refused.
    ///
    /// # Safety
    /// 1. The memory stays allocated, at this address, until `container` is dropped or given back. No commands use it then, so it
    ///    may be freed in any order with other streams.
    /// 2. Until then nobody else reads or writes the bytes, in any stream, on the host or on another device, but with a grant of
    ///    the buffer.
    /// 3. What was enqueued before on these bytes, in whatever stream, has ended ([`fence_of`](Self::fence_of) waits for a stream).
    ///    This arena's streams do not wait for others.
    /// 4. The address is aligned for what kernels read there. Memory from the driver is aligned to 256 bytes, a part of
    ///    it may not be.
    /// 5. `container` may be dropped on any thread. It is not dropped in a fork of the process.
    ///
    /// ```no_run
    /// # use dml_arenas::{CudaArena, Discover};
    /// # use dml_core::{NativeHandle, Platform};
    /// # fn allocated_by_a_framework() -> usize { unimplemented!() }
    /// # let platform = Platform::builder().discover()?.build()?;
    /// let home = platform.home(platform.device("cuda:0")?).expect("a device has an arena");
    /// let cuda: &CudaArena = platform.arena(home).downcast_ref().expect("a CUDA device has this one");
    /// let address = NativeHandle(allocated_by_a_framework());
    /// // SAFETY: the framework has allocated 4000 bytes there, and leaves them alone until it hears of the end of the buffer.
    /// let block = unsafe { cuda.external(address, 4000, ()) }?;
    /// let buffer = platform.buffer::<f32>(1000).build()?;
    /// buffer.raw().attach_block(home, block)?;
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
            // SAFETY: the caller's word, and the driver's.
            Ok(()) => Ok(unsafe { self.over(start, bytes, container) }),
            Err(cause) => Err(Box::new(Refused { cause, container })),
        }
    }

    /// Makes a block over a slice of cudarc, which comes back by
    /// [`RawBuffer::into_container`](dml_core::RawBuffer::into_container), or is freed with the buffer. What its stream, and those
    /// that cudarc has it follow, were told to do with it has ended when this returns. When the slice comes back, all commands of
    /// this library have ended, so the next use on any stream is in order.
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
    /// let home = platform.home(platform.device("cuda:0")?).expect("a device has an arena");
    /// let cuda: &CudaArena = platform.arena(home).downcast_ref().expect("a CUDA device has this one");
    /// let stream = CudaContext::new(0)?.default_stream();
    /// let slice = stream.clone_htod(&[1.0_f32; 1000])?;
    /// let buffer = platform.buffer::<f32>(1000).build()?;
    /// buffer.raw().attach_block(home, cuda.external_slice(slice)?)?;
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
            // SAFETY: the slice keeps its memory in this context (1), and nobody else has it (2).
            Ok(address) => Ok(unsafe { self.over(address, bytes, slice) }),
            Err(cause) => Err(Box::new(Refused { cause, container: slice })),
        }
    }

    /// Returns a fence for the end of what a stream of the application has been told to do so far. With it
    /// [`Grants::in_flight`](dml_core::Grants::in_flight) keeps grants until kernels have ended that a framework launched on its own
    /// stream, and [`Fence::wait`] has memory settled before it is handed over. It can be awaited and asked as one of the arena's own
    /// commands.
    ///
    /// # Errors
    /// [`TransferError`] of the driver, as of a lost device.
    ///
    /// # Safety
    /// 1. `stream` is a `CUstream` of the device's primary context ([`context`](Self::context)), which lives during the call. Zero
    ///    names its default stream, two the one that the calling thread has of its own (`CU_STREAM_PER_THREAD`).
    pub unsafe fn fence_of(&self, stream: NativeHandle) -> Result<Fence, TransferError> {
        let stream = std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(stream.0) as CUstream;
        // SAFETY: the caller's word.
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
        // SAFETY: the caller's word; the block keeps the container.
        let block = unsafe { CudaBlock::over(&self.session, address, bytes, container.clone()) };
        ExternalBlock::new(NewBlock::new(Arc::new(block)), container)
    }

    /// Waits for what a slice's stream was told to do, and returns the slice's address.
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

    /// Asks the driver whether these bytes are memory of the device that the arena can use.
    fn examine(&self, address: CUdeviceptr, bytes: u64) -> Result<(), ExternalError> {
        let _entered = self.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        let arena = || self.desc.name.clone();
        let not_device = |found| ExternalError::NotDeviceMemory { arena: arena(), address, found };
        let kind = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
            .map_err(|_| not_device("an address that the driver does not know"))?;
        // A driver that cannot say so has no such memory.
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
        // Memory of a pool, and memory that was mapped, belongs to no context.
        let context = attribute(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, address).unwrap_or(0);
        if context != 0 && context != self.session.context().addr() as u64 {
            return Err(ExternalError::OtherContext { arena: arena(), address });
        }
        let (start, mut size) = range(address).map_err(|failure| self.failure(failure))?;
        let is_within = |size: u64| address.checked_add(bytes).is_some_and(|end| end <= start + size);
        // What was mapped piece by piece is one range of addresses, and the driver tells of each piece.
        while context == 0 && !is_within(size) {
            match range(start + size) {
                Ok((next, more)) if next == start + size && more != 0 => size += more,
                _ => break,
            }
        }
        if is_within(size) { Ok(()) } else { Err(ExternalError::TooShort { address, bytes, start, size }) }
    }
}

/// Returns the address and the size of the allocation that has an address. A context is current.
fn range(address: CUdeviceptr) -> Result<(u64, u64), Failure> {
    let (mut start, mut size) = (0, 0);
    // SAFETY: the call writes an address and a number.
    let found = unsafe { cuMemGetAddressRange_v2(&raw mut start, &raw mut size, address) };
    check("cuMemGetAddressRange", found).map(|()| (start, size as u64))
}

/// Asks the driver for a fact about an address. A context is current.
fn attribute(attribute: Attribute, address: CUdeviceptr) -> Result<u64, Failure> {
    let mut value = 0_u64;
    // SAFETY: the call writes a handle or a smaller number, for which there is room. Smaller ones are the low bytes: the driver
    // runs on little-endian machines alone.
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
