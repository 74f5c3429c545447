//! A hand-written OpenCL program that does the same work without the data layer, to measure its overhead.
//!
//! It shares with DML only the numbering of devices.

pub mod hand;

use super::device::{Part, list};
use super::error::words;
use crate::fork::Origin;
use crate::native::HandWritten;
use crate::native::host_pages::HostPages;
pub use crate::native::{BaselineArg, BaselineError, BaselineSpec};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::error_codes::{CL_DEVICE_NOT_AVAILABLE, CL_MAP_FAILURE, ClError};
use opencl3::kernel::Kernel;
use opencl3::memory::{
    Buffer, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_READ_ONLY, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, ClMem,
};
use opencl3::program::Program;
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING, cl_map_flags, cl_mem};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

impl From<ClError> for BaselineError {
    fn from(error: ClError) -> Self {
        Self::Call { framework: "OpenCL", code: i64::from(error.0), message: words(error.0) }
    }
}

/// A kernel with its buffers, ready to run and be timed. It does not work in a fork.
#[derive(Debug)]
pub struct Baseline {
    objects: ManuallyDrop<Objects>,
    origin: Origin,
}

/// The OpenCL objects, in the order of their release.
#[derive(Debug)]
struct Objects {
    slots: Vec<Slot>,
    kernel: Kernel,
    queue: CommandQueue,
    _program: Program,
    _context: Context,
    _part: Part,
    global: [usize; 2],
    local: Option<[usize; 2]>,
    storage: Storage,
}

/// The memory that holds the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    /// Device memory: a run writes the inputs and reads the outputs.
    OfDevice,
    /// Host memory, which the device uses in place: a run unmaps the inputs and maps the outputs.
    OfHost,
}

/// A buffer, and host memory with its data. The buffer is released first, because it may use this memory.
#[derive(Debug)]
struct Slot {
    buffer: Buffer<u8>,
    data: HostPages,
    is_output: bool,
    /// Whether the host has mapped the buffer, so that `data` holds its contents.
    is_mapped: bool,
}

impl Baseline {
    /// Opens the device, builds the program, allocates the buffers in the device's memory and sets the
    /// arguments. A run writes the inputs and reads the outputs.
    ///
    /// # Errors
    /// The [`BaselineError`] of the step that failed.
    pub fn new(spec: BaselineSpec<'_>) -> Result<Self, BaselineError> {
        let part = open(spec.device, spec.limit)?;
        Self::on(part, Storage::OfDevice, spec)
    }

    /// Does the same as [`new`](Self::new), but a device that shares the host's memory uses the host's bytes
    /// in place (`CL_MEM_USE_HOST_PTR`). There, a run unmaps the inputs and maps the outputs, and copies
    /// nothing.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn suited(spec: BaselineSpec<'_>) -> Result<Self, BaselineError> {
        let part = open(spec.device, spec.limit)?;
        let storage = if part.is_discrete { Storage::OfDevice } else { Storage::OfHost };
        Self::on(part, storage, spec)
    }

    fn on(part: Part, storage: Storage, spec: BaselineSpec<'_>) -> Result<Self, BaselineError> {
        let context = Context::from_device(part.device())?;
        // `CommandQueue::create` works on OpenCL 1.2; the newer call needs 2.0.
        // SAFETY: a live context and its own device.
        let queue = unsafe { CommandQueue::create(&context, part.id(), 0) }?;
        let program = Program::create_and_build_from_source(&context, spec.source, spec.options)
            .map_err(|log| BaselineError::Build { kernel: spec.kernel.to_owned(), log })?;
        let kernel = Kernel::create(&program, spec.kernel)?;
        let mut slots = Vec::new();
        for (index, arg) in (0..).zip(spec.args) {
            let (data, is_output) = match arg {
                BaselineArg::Input(data) => (HostPages::of(&data), false),
                BaselineArg::Output(len) => (HostPages::zeroed(len), true),
                BaselineArg::U32(value) => {
                    set_scalar(&kernel, index, value)?;
                    continue;
                }
                BaselineArg::U64(value) => {
                    set_scalar(&kernel, index, value)?;
                    continue;
                }
                BaselineArg::F32(value) => {
                    set_scalar(&kernel, index, value)?;
                    continue;
                }
            };
            let mut slot = Slot::new(&context, storage, data, is_output)?;
            if storage == Storage::OfDevice && is_output && !slot.data.is_empty() {
                // All pages of unwritten memory may be one page of zeros, which would be read from a cache.
                // SAFETY: the buffer has as many bytes as the data, and the call waits.
                unsafe { queue.enqueue_write_buffer(&mut slot.buffer, CL_BLOCKING, 0, &slot.data, &[]) }?;
            }
            // SAFETY: the caller's kernel takes a pointer here. The buffer lives as long as the kernel.
            unsafe { kernel.set_arg(index, &slot.buffer.get()) }?;
            slots.push(slot);
        }
        let local = match spec.local {
            [0, _] | [_, 0] => None,
            local => Some(local),
        };
        let global = [0, 1].map(|axis| spec.items[axis].next_multiple_of(local.unwrap_or([1, 1])[axis]));
        let (_program, _context, _part) = (program, context, part);
        let objects = Objects { slots, kernel, queue, _program, _context, _part, global, local, storage };
        Ok(Self { objects: ManuallyDrop::new(objects), origin: Origin::here() })
    }
}

impl HandWritten for Baseline {
    /// If the buffers are in host memory, the host maps the inputs and unmaps the outputs before timing
    /// starts.
    fn run(&mut self) -> Result<Duration, BaselineError> {
        if !self.origin.is_here() {
            return Err(ClError(CL_DEVICE_NOT_AVAILABLE).into());
        }
        if self.objects.storage == Storage::OfHost {
            self.objects.take_back()?;
        }
        let start = Instant::now();
        let enqueued = self.objects.enqueue();
        // The enqueued commands use the data, so wait for them even if a later call failed.
        let finished = self.objects.queue.finish();
        enqueued?;
        finished?;
        Ok(start.elapsed())
    }

    fn output(&self, index: usize) -> &[u8] {
        let mut outputs = self.objects.slots.iter().filter(|slot| slot.is_output);
        &outputs.nth(index).unwrap_or_else(|| panic!("the kernel has no output {index}")).data
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        if self.origin.is_here() {
            if self.objects.storage == Storage::OfHost {
                // A mapped buffer would outlive its release. A destructor cannot report a failure.
                let _ = self.objects.unmap_all();
            }
            // SAFETY: dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.objects) }
        }
    }
}

impl Slot {
    fn new(
        context: &Context,
        storage: Storage,
        mut data: HostPages,
        is_output: bool,
    ) -> Result<Self, ClError> {
        let access = if is_output { CL_MEM_READ_WRITE } else { CL_MEM_READ_ONLY };
        // OpenCL has no empty buffers.
        let (flags, address) = match storage {
            Storage::OfHost if !data.is_empty() => (access | CL_MEM_USE_HOST_PTR, data.as_mut_ptr().cast()),
            _ => (access, std::ptr::null_mut()),
        };
        // SAFETY: a live context. Host memory has as many bytes, and the slot keeps it until the buffer is
        // released. The host uses it only while the buffer is mapped.
        let buffer = unsafe { Buffer::<u8>::create(context, flags, data.len().max(1), address) }?;
        Ok(Self { buffer, data, is_output, is_mapped: false })
    }

    /// Maps a buffer in host memory, without waiting.
    fn map(&mut self, queue: &CommandQueue, access: cl_map_flags) -> Result<(), ClError> {
        if self.is_mapped || self.data.is_empty() {
            return Ok(());
        }
        let (len, mut address): (_, cl_mem) = (self.data.len(), std::ptr::null_mut());
        // SAFETY: the buffer has these bytes. No code touches them until the queue is finished.
        unsafe {
            queue.enqueue_map_buffer(&self.buffer, CL_NON_BLOCKING, access, 0, len, &mut address, &[])
        }?;
        self.is_mapped = true;
        // The standard guarantees that a mapping of a buffer over host memory has the address of that memory.
        if address.addr() == self.data.as_mut_ptr().addr() { Ok(()) } else { Err(ClError(CL_MAP_FAILURE)) }
    }

    /// Unmaps the buffer, without waiting.
    fn unmap(&mut self, queue: &CommandQueue) -> Result<(), ClError> {
        if !self.is_mapped {
            return Ok(());
        }
        let address = self.data.as_mut_ptr().cast();
        // SAFETY: the address that the mapping of this buffer returned. No code touches the bytes until the
        // next mapping.
        unsafe { queue.enqueue_unmap_mem_object(self.buffer.get(), address, &[]) }?;
        self.is_mapped = false;
        Ok(())
    }
}

impl Objects {
    /// Maps the inputs, as if the host had just written them, and unmaps the outputs.
    fn take_back(&mut self) -> Result<(), ClError> {
        for slot in &mut self.slots {
            match slot.is_output {
                true => slot.unmap(&self.queue)?,
                false => slot.map(&self.queue, CL_MAP_READ | CL_MAP_WRITE)?,
            }
        }
        self.queue.finish()
    }

    fn unmap_all(&mut self) -> Result<(), ClError> {
        for slot in &mut self.slots {
            slot.unmap(&self.queue)?;
        }
        self.queue.finish()
    }

    fn enqueue(&mut self) -> Result<(), ClError> {
        for slot in self.slots.iter_mut().filter(|slot| !slot.is_output && !slot.data.is_empty()) {
            if self.storage == Storage::OfHost {
                slot.unmap(&self.queue)?;
                continue;
            }
            // SAFETY: the buffer has as many bytes as the data. No code touches the data until `run` has
            // finished the queue.
            unsafe {
                self.queue.enqueue_write_buffer(&mut slot.buffer, CL_NON_BLOCKING, 0, &slot.data, &[])
            }?;
        }
        if !self.global.contains(&0) {
            let local = self.local.as_ref().map_or(std::ptr::null(), |local| local.as_ptr());
            let (kernel, global) = (self.kernel.get(), self.global.as_ptr());
            let dimensions = if self.global[1] > 1 { 2 } else { 1 };
            // SAFETY: every argument was set in `on`. Both sizes have two elements, of which the call reads
            // one or two.
            unsafe {
                self.queue.enqueue_nd_range_kernel(kernel, dimensions, std::ptr::null(), global, local, &[])
            }?;
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.is_output && !slot.data.is_empty()) {
            if self.storage == Storage::OfHost {
                slot.map(&self.queue, CL_MAP_READ)?;
                continue;
            }
            // SAFETY: as for the inputs.
            unsafe { self.queue.enqueue_read_buffer(&slot.buffer, CL_NON_BLOCKING, 0, &mut slot.data, &[]) }?;
        }
        Ok(())
    }
}

fn set_scalar<T: Copy>(kernel: &Kernel, index: u32, value: T) -> Result<(), ClError> {
    // SAFETY: only this thread uses the kernel. The caller of `new` named a scalar of this type for it.
    unsafe { kernel.set_arg(index, &value) }
}

fn open(device: usize, limit: Option<u32>) -> Result<Part, BaselineError> {
    let unusable = |reason| BaselineError::Device { device: format!("opencl:{device}"), reason };
    let listing = list().map_err(unusable)?;
    let count = listing.found.len();
    let found =
        listing.found.get(device).ok_or_else(|| unusable(format!("there are {count} OpenCL devices")))?;
    match &found.defect {
        Some(defect) => Err(unusable(defect.clone())),
        None => found.part(limit).map_err(unusable),
    }
}
