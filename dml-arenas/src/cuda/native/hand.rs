//! CUDA as a hand-written program calls it: context, stream, memory and kernels, without any of the data layer. Each call that
//! moves data, runs a kernel or makes storage is counted.
//!
//! ```text
//!   Device::open ─▶ kernel, page_locked ──┐ made before anything is timed
//!        │                                ▼
//!        └─▶ run ─▶ Commands: buffer, write, launch, read ─▶ the stream is finished
//! ```
//! # What holds here
//! 1. There is one stream, and nothing is waited for but reads. The program alone decides when.
//! 2. A write uses memory that outlives the run, and the run ends only when the stream is finished.
//! 3. Buffers cannot leave the run.
//! 4. The device's context is current for the whole run.

use super::gpu::{Arguments, Gpu, Memory};
pub use super::gpu::{Kernel, PageLocked};
use crate::cuda::session::Entered;
use crate::native::BaselineError;
pub use crate::native::Calls;
use bytemuck::Pod;
use dml_core::sync::Arc;
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

    /// Makes a kernel of CUDA C source, whose last parameter is a `DmlItems`.
    ///
    /// # Errors
    /// [`BaselineError::Build`] with the compiler's log, if the source has no such kernel, and without a compiler;
    /// [`BaselineError::Call`], also in a fork.
    pub fn kernel(&self, source: &str, name: &str) -> Result<Kernel, BaselineError> {
        self.gpu.kernel(source, name, "")
    }

    /// Makes page-locked memory of the host, all zeros.
    ///
    /// # Errors
    /// [`BaselineError::Call`], also in a fork.
    pub fn page_locked<T: Pod>(&self, elements: usize) -> Result<PageLocked<T>, BaselineError> {
        self.gpu.page_locked(elements)
    }

    /// Runs a program, and finishes the stream before it returns, also when the program fails or panics. Returns what the
    /// program returned, and its calls.
    ///
    /// # Errors
    /// What the program returned; [`BaselineError::Call`] if the stream cannot be finished, and in a fork.
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

/// A program that runs: its stream is finished also when it panics, unless this is a fork that it has made meanwhile.
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
        // Whoever asked was told before, and a panic that goes on reports more than this could.
        if self.finish().is_err() && !self.gpu.is_here() {
            std::mem::forget(self.entered.take());
        }
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Arg<'a, 'run> {
    /// A pointer: a whole buffer.
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

/// The commands of one run, on data that outlives it.
#[derive(Debug)]
pub struct Commands<'run, 'data> {
    gpu: &'data Arc<Gpu>,
    calls: Calls,
    run: PhantomData<fn(&'run ()) -> &'run ()>,
    data: PhantomData<fn(&'data ()) -> &'data ()>,
    /// The context is current on one thread.
    _on_thread: PhantomData<*const ()>,
}

impl<'run, 'data> Commands<'run, 'data> {
    /// Makes a buffer of so many elements.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub fn buffer<T: Pod>(&mut self, elements: usize) -> Result<Buffer<'run>, BaselineError> {
        self.gpu.expect_here()?;
        self.calls.alloc += 1;
        let memory = self.gpu.alloc(elements.saturating_mul(size_of::<T>()))?;
        Ok(Buffer { memory, run: PhantomData })
    }

    /// Writes elements to the start of a buffer, and does not wait.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    ///
    /// # Panics
    /// When the buffer is smaller.
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
        // SAFETY: the elements outlive the run, whose stream is finished before it ends (2).
        unsafe { self.gpu.write(&buffer.memory, bytemuck::cast_slice(elements)) }
    }

    /// Reads the start of a buffer, and waits for everything before.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    ///
    /// # Panics
    /// When the buffer is smaller.
    pub fn read<T: Pod>(&mut self, buffer: &Buffer<'run>, elements: &mut [T]) -> Result<(), BaselineError> {
        if elements.is_empty() {
            return Ok(());
        }
        self.gpu.expect_here()?;
        self.calls.read += 1;
        // SAFETY: the elements are borrowed until the stream is finished, below.
        let enqueued = unsafe { self.gpu.read(&buffer.memory, bytemuck::cast_slice_mut(elements)) };
        let finished = self.gpu.finish();
        enqueued.and(finished)
    }

    /// Launches a kernel over items along two axes, and does not wait. Their number is padded to a multiple of `local` in both.
    ///
    /// # Safety
    /// 1. The arguments fit the kernel but for its last parameter, a `DmlItems`, which is added. Their buffers are of this run,
    ///    and the kernel of its device.
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
        // SAFETY: the caller answers for the arguments (1) and for what the kernel touches (2).
        unsafe { self.gpu.launch(kernel, &arguments, items, local) }
    }
}
