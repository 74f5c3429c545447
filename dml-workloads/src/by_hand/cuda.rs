//! Calls of CUDA: the device's primary context, which DML uses too, and a stream of its own.

use super::{Arg, ByHandError, Calls, Device, Host, count, home, unusable};
use bytemuck::Pod;
use cudarc::driver::result::{self, DriverError, mem_pool};
use cudarc::driver::sys::{CUmemPool_attribute, CUmemoryPool};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, PinnedHostSlice};
use dml_arenas::CudaArena;
use dml_arenas::cuda::CudaKernel;
use dml_arenas::launch::BuildCause;
use dml_core::{DeviceId, Platform};
use std::cell::Cell;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

/// Threads of a block whose size is left open.
const THREADS: u64 = 256;
/// Maximum number of blocks of a launch along the second axis.
const MOST_ROWS: u64 = 65_535;
/// Divisor of the device's memory. The result is the amount that the pool keeps for later allocations, as
/// much as that of a `CudaArena`.
const KEPT: usize = 16;

impl From<DriverError> for ByHandError {
    fn from(error: DriverError) -> Self {
        let text =
            error.error_string().map_or_else(|_| "unknown error".into(), |text| text.to_string_lossy());
        let message = format!("{:?}: {text}", error.0);
        Self::Call { framework: "CUDA", code: i64::from(error.0 as u32), message }
    }
}

/// A device with its stream.
#[derive(Debug)]
pub(crate) struct Cuda {
    stream: Arc<CudaStream>,
    /// The pool of all allocations; `None` if the driver has no pools.
    pool: Option<CUmemoryPool>,
    calls: Cell<Calls>,
    /// The platform and the device, which compile the kernels.
    dml: (Platform, DeviceId),
}

/// The items of a launch, as kernels receive them.
#[derive(Debug)]
#[repr(C)]
struct DmlItems {
    offset: [u64; 3],
    end: [u64; 3],
}

/// Page-locked memory.
struct PageLocked<T> {
    start: *mut T,
    len: usize,
    _memory: PinnedHostSlice<u8>,
}

impl<T: Pod> Deref for PageLocked<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: so many elements of this memory, which begins at a page boundary. They were initialised
        // when it was made, and any bytes are a valid `T`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T: Pod> DerefMut for PageLocked<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the memory is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Cuda {
    /// Returns the pool of the device, after it was told to keep freed memory. Otherwise it would return all
    /// of it to the system whenever the stream is finished.
    fn pool(context: &CudaContext) -> Result<CUmemoryPool, DriverError> {
        // SAFETY: a live device.
        let pool = unsafe { result::device::get_mem_pool(context.cu_device()) }?;
        let mut kept = (context.total_mem()? / KEPT) as u64;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: a live pool, and the address of a 64-bit number, as this attribute requires.
        unsafe { mem_pool::set_attribute(pool, attribute, (&raw mut kept).cast()) }?;
        Ok(pool)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let finished = self.stream.synchronize();
        if let (Some(pool), Ok(())) = (self.pool, finished) {
            // Gives the kept memory back. A destructor cannot report an error.
            // SAFETY: the pool of a live device. Memory in use stays in it.
            let _ = unsafe { mem_pool::trim_to(pool, 0) };
        }
    }
}

impl Device for Cuda {
    type Kernel = CudaKernel;
    type Buffer = CudaSlice<u8>;

    fn open(platform: &Platform, device: DeviceId) -> Result<Self, ByHandError> {
        home::<CudaArena>(platform, device)?;
        let name = &platform.device_desc(device).name;
        let number = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        let number = number.ok_or_else(|| unusable(platform, device, "its name has no device number"))?;
        let context = CudaContext::new(number)?;
        // Events would make each call slower than by hand.
        // SAFETY: all memory is used on one stream, which is created in the next statement, or the caller
        // of `another` orders the commands.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let pool = if context.has_async_alloc() { Some(Self::pool(&context)?) } else { None };
        Ok(Self { stream, pool, calls: Cell::default(), dml: (platform.clone(), device) })
    }

    fn another(&self) -> Result<Self, ByHandError> {
        let stream = self.stream.context().new_stream()?;
        Ok(Self { stream, pool: self.pool, calls: Cell::default(), dml: self.dml.clone() })
    }

    fn calls(&self) -> &Cell<Calls> {
        &self.calls
    }

    /// DML compiles the kernel, so that both sides run the same machine code.
    fn kernel(&self, source: &str, name: &str) -> Result<CudaKernel, ByHandError> {
        let (platform, device) = &self.dml;
        home::<CudaArena>(platform, *device)?.kernel(source, name, "").map_err(|error| {
            let log = match error.cause {
                BuildCause::Compile(log) => log,
                other => other.to_string(),
            };
            ByHandError::Build { kernel: name.to_owned(), log }
        })
    }

    fn page_locked<T: Pod>(&self, elements: &[T]) -> Result<Host<T>, ByHandError> {
        let (context, len) = (self.stream.context(), elements.len());
        // The driver allocates no empty memory. Memory with other flags would be slow to read.
        // SAFETY: the next statements write all bytes that `PageLocked` reads.
        let mut memory = unsafe { context.alloc_pinned_with_flags::<u8>(size_of_val(elements).max(1), 0) }?;
        let start = memory.as_mut_ptr()?.cast::<T>();
        // SAFETY: new memory for as many elements, which begins at a page boundary.
        unsafe { start.copy_from_nonoverlapping(elements.as_ptr(), len) };
        Ok(Box::new(PageLocked { start, len, _memory: memory }))
    }

    fn buffer(&self, bytes: usize) -> Result<CudaSlice<u8>, ByHandError> {
        count(&self.calls, |calls| &mut calls.alloc);
        // The driver allocates no empty memory.
        // SAFETY: a kernel's caller guarantees what it reads, and any bytes are valid.
        Ok(unsafe { self.stream.alloc(bytes.max(1)) }?)
    }

    unsafe fn bind(&self, _memory: &mut [u8]) -> Result<CudaSlice<u8>, ByHandError> {
        let (platform, device) = &self.dml;
        Err(unusable(platform, *device, "it uses no host memory in place"))
    }

    unsafe fn send(&self, buffer: &mut CudaSlice<u8>, bytes: &[u8]) -> Result<(), ByHandError> {
        if bytes.is_empty() {
            return Ok(());
        }
        count(&self.calls, |calls| &mut calls.write);
        Ok(self.stream.memcpy_htod(bytes, buffer)?)
    }

    unsafe fn fetch(&self, buffer: &mut CudaSlice<u8>, bytes: &mut [u8]) -> Result<(), ByHandError> {
        if bytes.is_empty() {
            return Ok(());
        }
        count(&self.calls, |calls| &mut calls.read);
        let from = buffer.slice(..bytes.len());
        Ok(self.stream.memcpy_dtoh(&from, bytes)?)
    }

    unsafe fn launch(
        &self,
        kernel: &CudaKernel,
        arguments: &[Arg<&CudaSlice<u8>>],
        items: [u64; 2],
        local_size: [u64; 2],
    ) -> Result<(), ByHandError> {
        if items.contains(&0) {
            return Ok(());
        }
        count(&self.calls, |calls| &mut calls.kernel);
        // CUDA's hosts are little-endian, so a word begins with the bytes of a smaller value.
        let words = arguments.iter().map(|argument| match *argument {
            Arg::Buffer(buffer) => buffer.device_ptr(&self.stream).0,
            Arg::U32(value) => u64::from(value),
            Arg::U64(value) => value,
            Arg::F32(value) => u64::from(value.to_bits()),
            // Its address is passed instead of a word's.
            Arg::Matrix(_) => 0,
        });
        let mut words: Vec<u64> = words.collect();
        let local = if local_size.contains(&0) { [THREADS.min(kernel.max_local()), 1] } else { local_size };
        // A number that is too large for the driver stays too large.
        let of = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let function = without_provenance_mut(kernel.function().0);
        let rows = MOST_ROWS.saturating_mul(local[1]);
        for first in (0..items[1]).step_by(rows as usize) {
            let end = items[1].min(first.saturating_add(rows));
            let mut part = DmlItems { offset: [0, first, 0], end: [items[0], end, 1] };
            let grid = (of(items[0].div_ceil(local[0])), of((end - first).div_ceil(local[1])), 1);
            let block = (of(local[0]), of(local[1]), 1);
            let values = words.iter_mut().zip(arguments).map(|(word, argument)| match argument {
                Arg::Matrix(values) => values.as_ptr().cast_mut().cast::<c_void>(),
                _ => std::ptr::from_mut(word).cast::<c_void>(),
            });
            let mut values: Vec<_> = values.chain([(&raw mut part).cast()]).collect();
            // SAFETY: a live function, and the address of a value for each of its parameters, which the call
            // copies. The caller guarantees what the kernel touches.
            unsafe { result::launch_kernel(function, grid, block, 0, self.stream.cu_stream(), &mut values) }?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), ByHandError> {
        Ok(self.stream.synchronize()?)
    }
}
