//! The CUDA interface of hand-written programs: context, stream, memory and kernels, without the data layer.
//! It counts the calls that move data, launch kernels or create storage.
//!
//! ```text
//!   Device::open ─▶ kernel, page_locked ──┐ made before anything is timed
//!        │                                ▼
//!        └─▶ run ─▶ Commands: buffer, write, launch, read ─▶ the stream is finished
//! ```
//! # Invariants
//! 1. There is one stream, and only reads wait for it. The program alone decides when to read.
//! 2. A write uses memory that outlives the run, and the run ends only when the stream is finished.
//! 3. Buffers cannot leave the run.
//! 4. The device's context is current for the whole run.

use super::gpu::{Arguments, Gpu, Memory};
pub use super::gpu::{Kernel, PageLocked};
use crate::cuda::session::Entered;
use crate::native::BaselineError;
pub use crate::native::Calls;
use bytemuck::Pod;
use dml_core::internal::sync::Arc;
use std::marker::PhantomData;

/// A device with its context and a stream. It does not work in a fork.
#[derive(Debug)]
pub struct Device {
    gpu: Arc<Gpu>,
}

impl Device {
    /// Opens `cuda:N`.
    ///
    /// # Errors
    /// [`BaselineError::Device`] if the device cannot be used.
    pub fn open(number: usize) -> Result<Self, BaselineError> {
        Ok(Self { gpu: Gpu::open(number, None)? })
    }

    /// Builds a kernel from CUDA C source. Its last parameter is a `DmlItems`.
    ///
    /// # Errors
    /// [`BaselineError::Build`] if the compiler rejects the source, the source has no such kernel, or there
    /// is no compiler. [`BaselineError::Call`] if a call fails, and in a fork.
    pub fn kernel(&self, source: &str, name: &str) -> Result<Kernel, BaselineError> {
        self.gpu.kernel(source, name, "")
    }

    /// Allocates zeroed page-locked host memory.
    ///
    /// # Errors
    /// [`BaselineError::Call`], also in a fork.
    pub fn page_locked<T: Pod>(&self, elements: usize) -> Result<PageLocked<T>, BaselineError> {
        self.gpu.page_locked(elements)
    }

    /// Runs a program, and finishes the stream before returning, also if the program fails or panics. Returns
    /// the program's result and its calls.
    ///
    /// # Errors
    /// The program's error; [`BaselineError::Call`] if the stream cannot be finished, and in a fork.
    pub fn run<'data, R, E: From<BaselineError>>(
        &'data self,
        program: impl for<'run> FnOnce(&mut Commands<'run, 'data>) -> Result<R, E>,
    ) -> Result<(R, Calls), E> {
        let running = Running { entered: Some(self.gpu.enter()?), gpu: &self.gpu };
        let mut commands = Commands {
            gpu: &self.gpu,
            calls: Calls::default(),
            run: PhantomData,
            data: PhantomData,
            _on_thread: PhantomData,
        };
        let result = program(&mut commands);
        let calls = commands.calls;
        let ended = running.finish();
        let result = result?;
        ended?;
        Ok((result, calls))
    }
}

/// A running program. Its stream is finished also if it panics, except in a fork that the program made.
struct Running<'a> {
    entered: Option<Entered<'a>>,
    gpu: &'a Gpu,
}

impl Running<'_> {
    fn finish(&self) -> Result<(), BaselineError> {
        self.gpu.expect_here()?;
        self.gpu.finish()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // `run` has already returned this error, or a panic is unwinding that reports more. In a fork, the
        // driver must not be called, so the context stays current.
        if self.finish().is_err() && !self.gpu.is_here() {
            std::mem::forget(self.entered.take());
        }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Arg<'a, 'run> {
    /// A pointer to a whole buffer.
    Buffer(&'a Buffer<'run>),
    /// An `unsigned int`.
    U32(u32),
    /// An `unsigned long long`.
    U64(u64),
}

/// Device memory of a run.
#[derive(Debug)]
pub struct Buffer<'run> {
    memory: Memory,
    run: PhantomData<fn(&'run ()) -> &'run ()>,
}

/// The commands of one run, on data that outlives the run.
#[derive(Debug)]
pub struct Commands<'run, 'data> {
    gpu: &'data Arc<Gpu>,
    calls: Calls,
    run: PhantomData<fn(&'run ()) -> &'run ()>,
    data: PhantomData<fn(&'data ()) -> &'data ()>,
    /// Not `Send`: the context is current on one thread.
    _on_thread: PhantomData<*const ()>,
}

impl<'run, 'data> Commands<'run, 'data> {
    /// Allocates a buffer of `elements` elements.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub fn buffer<T: Pod>(&mut self, elements: usize) -> Result<Buffer<'run>, BaselineError> {
        self.gpu.expect_here()?;
        self.calls.alloc += 1;
        let memory = self.gpu.alloc(elements.saturating_mul(size_of::<T>()))?;
        Ok(Buffer { memory, run: PhantomData })
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
        if elements.is_empty() {
            return Ok(());
        }
        self.gpu.expect_here()?;
        self.calls.write += 1;
        // SAFETY: the elements outlive the run, which finishes the stream before it ends (2).
        unsafe { self.gpu.write(&buffer.memory, bytemuck::cast_slice(elements)) }
    }

    /// Reads the start of a buffer. Waits for all earlier commands.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    ///
    /// # Panics
    /// If the buffer is smaller than the elements.
    pub fn read<T: Pod>(&mut self, buffer: &Buffer<'run>, elements: &mut [T]) -> Result<(), BaselineError> {
        if elements.is_empty() {
            return Ok(());
        }
        self.gpu.expect_here()?;
        self.calls.read += 1;
        // SAFETY: the elements are borrowed until the stream is finished, in the next statement.
        let enqueued = unsafe { self.gpu.read(&buffer.memory, bytemuck::cast_slice_mut(elements)) };
        let finished = self.gpu.finish();
        enqueued.and(finished)
    }

    /// Launches a kernel over items along two axes, without waiting. Along both axes, the number of threads
    /// is padded to a multiple of `local`.
    ///
    /// # Safety
    /// 1. The arguments fit the kernel without its last parameter, a `DmlItems`, which is appended. Their
    ///    buffers belong to this run, and the kernel belongs to its device.
    /// 2. With these arguments and this many items, the kernel touches only its buffers' bytes.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub unsafe fn launch(
        &mut self,
        kernel: &'data Kernel,
        args: &[Arg<'_, 'run>],
        items: [usize; 2],
        local: [usize; 2],
    ) -> Result<(), BaselineError> {
        let mut arguments = Arguments::default();
        for arg in args {
            match arg {
                Arg::Buffer(buffer) => arguments.memory(&buffer.memory),
                Arg::U32(value) => arguments.scalar(*value),
                Arg::U64(value) => arguments.scalar(*value),
            }
        }
        self.gpu.expect_here()?;
        self.calls.kernel += 1;
        // SAFETY: the caller guarantees the arguments (1) and what the kernel touches (2).
        unsafe { self.gpu.launch(kernel, &arguments, items, local) }
    }
}
