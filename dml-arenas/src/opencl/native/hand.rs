//! The OpenCL interface of hand-written programs: context, queue, buffers and kernels, without the data
//! layer. It counts the calls that move data, launch kernels or create storage.
//!
//! ```text
//!   Device::open ─▶ kernel ───────────────┐ built before anything is timed
//!        │                                ▼
//!        └─▶ run ─▶ Commands: buffer, bound, write, launch, map, unmap, read ─▶ the queue is finished
//! ```
//! # Invariants
//! 1. The queue is in order, and only blocking reads and maps wait for it. The program alone decides when to
//!    read or map.
//! 2. A non-blocking write uses memory that outlives the run, and the run ends only when the queue is
//!    finished.
//! 3. Buffers and mappings cannot leave the run.

use super::{BaselineError, open};
use crate::fork::Origin;
pub use crate::native::Calls;
use crate::opencl::device::Part;
use bytemuck::Pod;
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::error_codes::{CL_DEVICE_NOT_AVAILABLE, CL_MAP_FAILURE, ClError};
use opencl3::memory::{
    Buffer as Memory, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_READ_ONLY, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR,
    ClMem,
};
use opencl3::program::Program;
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING, cl_map_flags, cl_mem, cl_mem_flags};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null, null_mut};

/// A device with a context and an in-order queue. It does not work in a fork.
#[derive(Debug)]
pub struct Device {
    objects: ManuallyDrop<Objects>,
    origin: Origin,
}

/// The OpenCL objects, in the order of their release.
#[derive(Debug)]
struct Objects {
    queue: CommandQueue,
    context: Context,
    _part: Part,
}

impl Device {
    /// Opens `opencl:N` with all of its compute units.
    ///
    /// # Errors
    /// [`BaselineError::Device`] if the device cannot be used; [`BaselineError::Call`] if a call fails.
    pub fn open(number: usize) -> Result<Self, BaselineError> {
        let part = open(number, None)?;
        let context = Context::from_device(part.device())?;
        // `CommandQueue::create` works on OpenCL 1.2; the newer call needs 2.0.
        // SAFETY: a live context and its own device.
        let queue = unsafe { CommandQueue::create(&context, part.id(), 0) }?;
        let objects = Objects { queue, context, _part: part };
        Ok(Self { objects: ManuallyDrop::new(objects), origin: Origin::here() })
    }

    /// Builds a kernel from OpenCL C source.
    ///
    /// # Errors
    /// [`BaselineError::Build`] if the compiler rejects the source. [`BaselineError::Call`] if a call fails,
    /// if the source has no such kernel, and in a fork.
    pub fn kernel(&self, source: &str, name: &str) -> Result<Kernel, BaselineError> {
        let objects = self.objects()?;
        let program = Program::create_and_build_from_source(&objects.context, source, "")
            .map_err(|log| BaselineError::Build { kernel: name.to_owned(), log })?;
        let kernel = opencl3::kernel::Kernel::create(&program, name)?;
        Ok(Kernel { kernel: ManuallyDrop::new((kernel, program)), origin: self.origin })
    }

    /// Runs a program, and finishes the queue before returning, also if the program fails or panics. Returns
    /// the program's result and its calls.
    ///
    /// # Errors
    /// The program's error; [`BaselineError::Call`] if the queue cannot be finished, and in a fork.
    pub fn run<'data, R, E: From<BaselineError>>(
        &'data self,
        program: impl for<'run> FnOnce(&mut Commands<'run, 'data>) -> Result<R, E>,
    ) -> Result<(R, Calls), E> {
        let objects = self.objects()?;
        let finished = Finished(self);
        let mut commands = Commands {
            objects,
            origin: self.origin,
            calls: Calls::default(),
            run: PhantomData,
            data: PhantomData,
        };
        let result = program(&mut commands);
        let calls = commands.calls;
        std::mem::forget(finished);
        let ended = self.finish();
        let result = result?;
        ended?;
        Ok((result, calls))
    }

    fn finish(&self) -> Result<(), BaselineError> {
        Ok(self.objects()?.queue.finish()?)
    }

    fn objects(&self) -> Result<&Objects, BaselineError> {
        if self.origin.is_here() { Ok(&self.objects) } else { Err(ClError(CL_DEVICE_NOT_AVAILABLE).into()) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.origin.is_here() {
            // SAFETY: dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.objects) }
        }
    }
}

/// A guard that finishes the queue if the program panics.
struct Finished<'a>(&'a Device);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        // A panic is unwinding, which reports more than this error.
        let _ = self.0.finish();
    }
}

/// A kernel with its program.
#[derive(Debug)]
pub struct Kernel {
    kernel: ManuallyDrop<(opencl3::kernel::Kernel, Program)>,
    origin: Origin,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.origin.is_here() {
            // SAFETY: dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.kernel) }
        }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Arg<'a, 'run> {
    /// A buffer.
    Buffer(&'a Buffer<'run>),
    /// A `uint`.
    U32(u32),
    /// A `ulong`.
    U64(u64),
}

/// A buffer of a run.
#[derive(Debug)]
pub struct Buffer<'run> {
    memory: ManuallyDrop<Memory<u8>>,
    bytes: usize,
    origin: Origin,
    run: PhantomData<&'run ()>,
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if self.origin.is_here() {
            // SAFETY: dropped only here, and not used afterwards. The driver keeps the memory for commands
            // that use it.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

/// A buffer mapped for the host.
#[derive(Debug)]
#[must_use = "the device must not use the buffer while it is mapped"]
pub struct Mapped<'buffer, T: Pod> {
    elements: &'buffer mut [T],
    buffer: cl_mem,
}

impl<T: Pod> Deref for Mapped<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T: Pod> DerefMut for Mapped<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.elements
    }
}

/// The host's access to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapFor {
    /// Read only.
    Reading,
    /// Read and write.
    Changing,
}

/// The commands of one run, on data that outlives the run.
#[derive(Debug)]
pub struct Commands<'run, 'data> {
    objects: &'data Objects,
    origin: Origin,
    calls: Calls,
    run: PhantomData<fn(&'run ()) -> &'run ()>,
    data: PhantomData<fn(&'data ()) -> &'data ()>,
}

impl<'run, 'data> Commands<'run, 'data> {
    /// Creates a buffer of `elements` elements, with its own storage.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub fn buffer<T: Pod>(&mut self, elements: usize) -> Result<Buffer<'run>, BaselineError> {
        self.calls.alloc += 1;
        self.memory(CL_MEM_READ_WRITE, elements.saturating_mul(size_of::<T>()), null_mut())
    }

    /// Creates a buffer over elements that the device only reads.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub fn bound<T: Pod>(&mut self, elements: &'data [T]) -> Result<Buffer<'run>, BaselineError> {
        self.calls.bind += 1;
        let address = elements.as_ptr().cast_mut().cast();
        self.memory(CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, size_of_val(elements), address)
    }

    /// Creates a buffer over elements that the device reads and writes.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub fn bound_mut<T: Pod>(&mut self, elements: &'data mut [T]) -> Result<Buffer<'run>, BaselineError> {
        self.calls.bind += 1;
        let bytes = size_of_val(elements);
        self.memory(CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, elements.as_mut_ptr().cast())
    }

    /// Returns the queue, for one call.
    ///
    /// # Errors
    /// [`BaselineError::Call`] in a fork.
    fn queue(&self) -> Result<&'data CommandQueue, BaselineError> {
        if self.origin.is_here() {
            Ok(&self.objects.queue)
        } else {
            Err(ClError(CL_DEVICE_NOT_AVAILABLE).into())
        }
    }

    fn memory(
        &self,
        flags: cl_mem_flags,
        bytes: usize,
        address: *mut std::ffi::c_void,
    ) -> Result<Buffer<'run>, BaselineError> {
        self.queue()?;
        // OpenCL has no empty buffers, and empty memory has no valid address.
        let (flags, address) = if bytes == 0 { (CL_MEM_READ_WRITE, null_mut()) } else { (flags, address) };
        // SAFETY: a live context. Host memory at `address` has this many bytes, and outlives the run and all
        // of its commands.
        let memory = unsafe { Memory::create(&self.objects.context, flags, bytes.max(1), address) }?;
        Ok(Buffer { memory: ManuallyDrop::new(memory), bytes, origin: self.origin, run: PhantomData })
    }

    /// Writes elements to the start of a buffer, without waiting.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    ///
    /// # Panics
    /// If the buffer is smaller than the elements.
    pub fn write<T: Pod>(
        &mut self,
        buffer: &mut Buffer<'run>,
        elements: &'data [T],
    ) -> Result<(), BaselineError> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        assert!(bytes.len() <= buffer.bytes, "{} bytes for a buffer of {}", bytes.len(), buffer.bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        let queue = self.queue()?;
        self.calls.write += 1;
        // SAFETY: the buffer has that many bytes. The elements outlive the run, which finishes the queue
        // before it ends (2).
        unsafe { queue.enqueue_write_buffer(&mut buffer.memory, CL_NON_BLOCKING, 0, bytes, &[]) }?;
        Ok(())
    }

    /// Reads the start of a buffer. Waits for all earlier commands.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    ///
    /// # Panics
    /// If the buffer is smaller than the elements.
    pub fn read<T: Pod>(&mut self, buffer: &Buffer<'run>, elements: &mut [T]) -> Result<(), BaselineError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(elements);
        assert!(bytes.len() <= buffer.bytes, "{} bytes of a buffer of {}", bytes.len(), buffer.bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        let queue = self.queue()?;
        self.calls.read += 1;
        // SAFETY: the buffer has that many bytes, and the call returns when the elements are written.
        unsafe { queue.enqueue_read_buffer(&buffer.memory, CL_BLOCKING, 0, bytes, &[]) }?;
        Ok(())
    }

    /// Maps a whole buffer for the host. Waits for all earlier commands.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    ///
    /// # Panics
    /// If the bytes are misaligned for this type, or not a whole number of elements.
    pub fn map<'buffer, T: Pod>(
        &mut self,
        buffer: &'buffer mut Buffer<'run>,
        what_for: MapFor,
    ) -> Result<Mapped<'buffer, T>, BaselineError> {
        let queue = self.queue()?;
        self.calls.map += 1;
        let flags: cl_map_flags = match what_for {
            MapFor::Reading => CL_MAP_READ,
            MapFor::Changing => CL_MAP_READ | CL_MAP_WRITE,
        };
        let mut address: cl_mem = null_mut();
        let bytes = buffer.bytes.max(1);
        // SAFETY: the buffer has these bytes.
        unsafe { queue.enqueue_map_buffer(&buffer.memory, CL_BLOCKING, flags, 0, bytes, &mut address, &[]) }?;
        let address = NonNull::new(address.cast::<u8>()).ok_or(ClError(CL_MAP_FAILURE))?;
        // SAFETY: the driver has mapped these bytes, at least for reading. The buffer is borrowed while the
        // mapping lives. The caller of `launch` guarantees that no argument is a mapped buffer.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), buffer.bytes) };
        Ok(Mapped { elements: bytemuck::cast_slice_mut(bytes), buffer: buffer.memory.get() })
    }

    /// Unmaps a buffer, without waiting.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub fn unmap<T: Pod>(&mut self, mapped: Mapped<'_, T>) -> Result<(), BaselineError> {
        let queue = self.queue()?;
        self.calls.unmap += 1;
        let address = mapped.elements.as_mut_ptr().cast();
        // SAFETY: the address that the mapping of this buffer returned. `mapped` is dropped afterwards.
        unsafe { queue.enqueue_unmap_mem_object(mapped.buffer, address, &[]) }?;
        Ok(())
    }

    /// Sets all arguments of a kernel.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub fn set_args(&mut self, kernel: &mut Kernel, args: &[Arg<'_, 'run>]) -> Result<(), BaselineError> {
        self.queue()?;
        let kernel = &kernel.kernel.0;
        for (index, arg) in (0..).zip(args) {
            // SAFETY: the kernel is borrowed exclusively, and the driver checks index and size.
            unsafe {
                match arg {
                    Arg::Buffer(buffer) => kernel.set_arg(index, &buffer.memory.get()),
                    Arg::U32(value) => kernel.set_arg(index, value),
                    Arg::U64(value) => kernel.set_arg(index, value),
                }
            }?;
        }
        Ok(())
    }

    /// Launches a kernel with the last set arguments, without waiting. In both dimensions, the number of
    /// work-items is padded to a multiple of `local`.
    ///
    /// # Safety
    /// 1. The arguments fit the kernel. Their buffers belong to this run and are not mapped.
    /// 2. With these arguments and this many work-items, the kernel touches only its buffers' bytes, and does
    ///    not write a [`bound`](Self::bound) buffer.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub unsafe fn launch(
        &mut self,
        kernel: &Kernel,
        items: [usize; 2],
        local: [usize; 2],
    ) -> Result<(), BaselineError> {
        let queue = self.queue()?;
        self.calls.kernel += 1;
        let global = [0, 1].map(|axis| items[axis].next_multiple_of(local[axis].max(1)));
        let dimensions = if global[1] > 1 { 2 } else { 1 };
        let kernel = kernel.kernel.0.get();
        let (global, local) = (global.as_ptr(), local.as_ptr());
        // SAFETY: both sizes have two elements. The caller guarantees the arguments (1) and the memory (2).
        unsafe { queue.enqueue_nd_range_kernel(kernel, dimensions, null(), global, local, &[]) }?;
        Ok(())
    }
}
