//! Calls of OpenCL: a context of its own, and one in-order queue.

use super::{Arg, ByHandError, Calls, Device, count, home};
use dml_arenas::OpenClArena;
use dml_core::internal::sync::Arc;
use dml_core::{DeviceId, Platform};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::error_codes::ClError;
use opencl3::kernel::Kernel;
use opencl3::memory::{
    Buffer as Memory, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, ClMem,
};
use opencl3::program::Program;
use opencl3::types::{CL_NON_BLOCKING, cl_map_flags, cl_mem_flags};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance_mut};

impl From<ClError> for ByHandError {
    fn from(error: ClError) -> Self {
        Self::Call { framework: "OpenCL", code: i64::from(error.0), message: error.to_string() }
    }
}

/// A device with its context and queue, which are released in this order.
#[derive(Debug)]
pub(crate) struct OpenCl {
    queue: Arc<CommandQueue>,
    context: Arc<Context>,
    shares_memory: bool,
    calls: Cell<Calls>,
    /// Keeps a sub-device alive.
    _platform: Platform,
}

/// A buffer, unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Memory<u8>,
    is_bound: bool,
    /// The address at which the host has mapped the buffer; null if it has not.
    mapped: *mut c_void,
    queue: Arc<CommandQueue>,
}

impl OpenCl {
    fn memory(&self, flags: cl_mem_flags, bytes: usize, host: *mut c_void) -> Result<Buffer, ByHandError> {
        // OpenCL has no empty buffers.
        // SAFETY: a live context. Host memory has as many bytes, and the caller of `bind` keeps it.
        let memory = unsafe { Memory::create(&self.context, flags, bytes.max(1), host) }?;
        Ok(Buffer { memory, is_bound: !host.is_null(), mapped: null_mut(), queue: self.queue.clone() })
    }

    /// Maps a buffer for the host, without waiting.
    fn map(&self, buffer: &mut Buffer, bytes: usize, access: cl_map_flags) -> Result<(), ByHandError> {
        count(&self.calls, |calls| &mut calls.map);
        let Buffer { memory, mapped, .. } = buffer;
        // SAFETY: the driver checks the size. No code uses the address before the queue is finished.
        unsafe { self.queue.enqueue_map_buffer(memory, CL_NON_BLOCKING, access, 0, bytes, mapped, &[]) }?;
        Ok(())
    }
}

impl Buffer {
    /// Unmaps the buffer, without waiting.
    fn unmap(&mut self) -> Result<(), ClError> {
        let mapped = std::mem::replace(&mut self.mapped, null_mut());
        // SAFETY: the address that the last map of this buffer returned, unmapped once.
        unsafe { self.queue.enqueue_unmap_mem_object(self.memory.get(), mapped, &[]) }?;
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.mapped.is_null() {
            // A mapped buffer would outlive its release. A destructor cannot report an error.
            let _ = self.unmap().and_then(|()| self.queue.finish());
        }
    }
}

/// Creates a queue for the device of a context.
fn queue(context: &Context) -> Result<Arc<CommandQueue>, ByHandError> {
    // `CommandQueue::create` works on OpenCL 1.2; the newer call needs 2.0.
    // SAFETY: a live context and its own device.
    Ok(Arc::new(unsafe { CommandQueue::create(context, context.default_device(), 0) }?))
}

impl Device for OpenCl {
    type Kernel = Kernel;
    type Buffer = Buffer;

    fn open(platform: &Platform, device: DeviceId) -> Result<Self, ByHandError> {
        let id = home::<OpenClArena>(platform, device)?.device().0;
        let device = opencl3::device::Device::new(without_provenance_mut(id));
        let context = Arc::new(Context::from_device(&device)?);
        let queue = queue(&context)?;
        let shares_memory = device.host_unified_memory()?;
        Ok(Self { queue, context, shares_memory, calls: Cell::default(), _platform: platform.clone() })
    }

    fn another(&self) -> Result<Self, ByHandError> {
        let (context, platform) = (self.context.clone(), self._platform.clone());
        let queue = queue(&context)?;
        let (shares_memory, calls) = (self.shares_memory, Cell::default());
        Ok(Self { queue, context, shares_memory, calls, _platform: platform })
    }

    fn calls(&self) -> &Cell<Calls> {
        &self.calls
    }

    fn kernel(&self, source: &str, name: &str) -> Result<Kernel, ByHandError> {
        let program = Program::create_and_build_from_source(&self.context, source, "")
            .map_err(|log| ByHandError::Build { kernel: name.to_owned(), log })?;
        Ok(Kernel::create(&program, name)?)
    }

    fn shares_memory(&self) -> bool {
        self.shares_memory
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, ByHandError> {
        count(&self.calls, |calls| &mut calls.alloc);
        self.memory(CL_MEM_READ_WRITE, bytes, null_mut())
    }

    unsafe fn bind(&self, memory: &mut [u8]) -> Result<Buffer, ByHandError> {
        if memory.is_empty() {
            return self.buffer(0);
        }
        count(&self.calls, |calls| &mut calls.bind);
        self.memory(CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, memory.len(), memory.as_mut_ptr().cast())
    }

    unsafe fn send(&self, buffer: &mut Buffer, bytes: &[u8]) -> Result<(), ByHandError> {
        if buffer.is_bound {
            if !buffer.mapped.is_null() {
                count(&self.calls, |calls| &mut calls.unmap);
                buffer.unmap()?;
            }
        } else if !bytes.is_empty() {
            count(&self.calls, |calls| &mut calls.write);
            // SAFETY: the driver checks the size. The caller guarantees the bytes (1).
            unsafe { self.queue.enqueue_write_buffer(&mut buffer.memory, CL_NON_BLOCKING, 0, bytes, &[]) }?;
        }
        Ok(())
    }

    unsafe fn fetch(&self, buffer: &mut Buffer, bytes: &mut [u8]) -> Result<(), ByHandError> {
        if buffer.is_bound {
            if buffer.mapped.is_null() {
                self.map(buffer, bytes.len(), CL_MAP_READ | CL_MAP_WRITE)?;
            }
        } else if !bytes.is_empty() {
            count(&self.calls, |calls| &mut calls.read);
            // SAFETY: the driver checks the size. The caller guarantees the bytes (1).
            unsafe { self.queue.enqueue_read_buffer(&buffer.memory, CL_NON_BLOCKING, 0, bytes, &[]) }?;
        }
        Ok(())
    }

    unsafe fn view<'a>(&self, buffer: &'a mut Buffer, bytes: &'a mut [u8]) -> Result<&'a [u8], ByHandError> {
        self.map(buffer, bytes.len(), CL_MAP_READ)?;
        self.finish()?;
        // SAFETY: the driver has mapped as many bytes. No command uses them while they are borrowed, as the
        // caller guarantees (2). The mapping of a buffer over host memory is the memory itself, which the
        // caller lends.
        Ok(unsafe { std::slice::from_raw_parts(buffer.mapped.cast::<u8>(), bytes.len()) })
    }

    unsafe fn launch(
        &self,
        kernel: &Kernel,
        arguments: &[Arg<&Buffer>],
        items: [u64; 2],
        local_size: [u64; 2],
    ) -> Result<(), ByHandError> {
        for (index, argument) in (0..).zip(arguments) {
            // SAFETY: only this thread uses the kernel, and the driver checks the size. Argument and
            // parameter have one type, as the caller guarantees.
            unsafe {
                match argument {
                    Arg::Buffer(buffer) => kernel.set_arg(index, &buffer.memory.get()),
                    Arg::U32(value) => kernel.set_arg(index, value),
                    Arg::U64(value) => kernel.set_arg(index, value),
                    Arg::F32(value) => kernel.set_arg(index, value),
                    Arg::Matrix(values) => kernel.set_arg(index, values),
                }
            }?;
        }
        if items.contains(&0) {
            return Ok(());
        }
        count(&self.calls, |calls| &mut calls.kernel);
        let local = local_size.map(|size| size as usize);
        // A number that is too large for the driver stays too large.
        let padded = |items: u64, local: usize| (items as usize).checked_next_multiple_of(local.max(1));
        let global = [0, 1].map(|axis| padded(items[axis], local[axis]).unwrap_or(usize::MAX));
        let dimensions = if global[1] > 1 { 2 } else { 1 };
        let local = if local.contains(&0) { null() } else { local.as_ptr() };
        let (kernel, global) = (kernel.get(), global.as_ptr());
        // SAFETY: both sizes have two elements. The caller guarantees what the kernel touches.
        unsafe { self.queue.enqueue_nd_range_kernel(kernel, dimensions, null(), global, local, &[]) }?;
        Ok(())
    }

    fn finish(&self) -> Result<(), ByHandError> {
        Ok(self.queue.finish()?)
    }
}
