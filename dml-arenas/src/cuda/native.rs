//! A hand-written CUDA program that does the same work without the data layer, to measure its overhead.
//!
//! It shares with DML only the numbering of devices and the cache of compiled code. So both run the same
//! machine code.

mod gpu;
pub mod hand;

use crate::native::HandWritten;
use crate::native::host_pages::HostPages;
pub use crate::native::{BaselineArg, BaselineError, BaselineSpec};
use dml_core::internal::sync::Arc;
use gpu::{Arguments, Gpu, Kernel, Memory, PageLocked};
use std::time::{Duration, Instant};

/// A kernel with its buffers, ready to run and be timed. It does not work in a fork.
#[derive(Debug)]
pub struct Baseline {
    slots: Vec<Slot>,
    kernel: Kernel,
    arguments: Arguments,
    items: [usize; 2],
    local: [usize; 2],
    gpu: Arc<Gpu>,
}

/// The kind of host memory that holds the data of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostMemory {
    /// Pageable memory, which the driver copies through its own page-locked memory.
    Ordinary,
    /// Page-locked memory from the driver.
    PageLocked,
}

/// A buffer: device memory, and host memory with its data.
#[derive(Debug)]
struct Slot {
    memory: Memory,
    data: HostBytes,
    is_output: bool,
}

#[derive(Debug)]
enum HostBytes {
    Ordinary(HostPages),
    PageLocked(PageLocked<u8>),
}

impl HostBytes {
    fn of(gpu: &Arc<Gpu>, memory: HostMemory, bytes: &[u8]) -> Result<Self, BaselineError> {
        Ok(match memory {
            HostMemory::Ordinary => Self::Ordinary(HostPages::of(bytes)),
            HostMemory::PageLocked => {
                let mut pages = gpu.page_locked(bytes.len())?;
                pages.copy_from_slice(bytes);
                Self::PageLocked(pages)
            }
        })
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Ordinary(pages) => pages,
            Self::PageLocked(pages) => pages,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Ordinary(pages) => pages,
            Self::PageLocked(pages) => pages,
        }
    }
}

impl Baseline {
    /// Opens the device, builds the kernel, and allocates the buffers on the device and on the host. A run
    /// writes the inputs from pageable memory and reads the outputs into it.
    ///
    /// # Errors
    /// The [`BaselineError`] of the step that failed.
    pub fn new(spec: BaselineSpec<'_>) -> Result<Self, BaselineError> {
        Self::with(HostMemory::Ordinary, spec)
    }

    /// Does the same as [`new`](Self::new), but with page-locked host memory, which the GPU transfers at the
    /// speed of the link.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn suited(spec: BaselineSpec<'_>) -> Result<Self, BaselineError> {
        Self::with(HostMemory::PageLocked, spec)
    }

    fn with(host: HostMemory, spec: BaselineSpec<'_>) -> Result<Self, BaselineError> {
        let gpu = Gpu::open(spec.device, spec.limit)?;
        let kernel = gpu.kernel(spec.source, spec.kernel, spec.options)?;
        let entered = gpu.enter()?;
        let (mut slots, mut arguments) = (Vec::new(), Arguments::default());
        for arg in spec.args {
            let (data, is_output) = match arg {
                BaselineArg::Input(data) => (data, false),
                BaselineArg::Output(len) => (vec![0; len], true),
                BaselineArg::U32(value) => {
                    arguments.scalar(value);
                    continue;
                }
                BaselineArg::U64(value) => {
                    arguments.scalar(value);
                    continue;
                }
                BaselineArg::F32(value) => {
                    arguments.scalar(value);
                    continue;
                }
            };
            let slot =
                Slot { memory: gpu.alloc(data.len())?, data: HostBytes::of(&gpu, host, &data)?, is_output };
            if is_output {
                // Overwrites what an earlier program left in the memory, which could pass for the result.
                // SAFETY: the bytes are not changed until the stream is finished, in the next statement.
                let written = unsafe { gpu.write(&slot.memory, slot.data.bytes()) };
                let finished = gpu.finish();
                written.and(finished)?;
            }
            arguments.memory(&slot.memory);
            slots.push(slot);
        }
        drop(entered);
        Ok(Self { slots, kernel, arguments, items: spec.items, local: spec.local, gpu })
    }

    fn enqueue(&mut self) -> Result<(), BaselineError> {
        let gpu = &self.gpu;
        for slot in self.slots.iter().filter(|slot| !slot.is_output && !slot.data.bytes().is_empty()) {
            // SAFETY: no code touches the bytes until `run` has finished the stream.
            unsafe { gpu.write(&slot.memory, slot.data.bytes()) }?;
        }
        // SAFETY: the caller of `new` named these arguments for the kernel. Their buffers are alive.
        unsafe { gpu.launch(&self.kernel, &self.arguments, self.items, self.local) }?;
        for slot in self.slots.iter_mut().filter(|slot| slot.is_output && !slot.data.bytes().is_empty()) {
            // SAFETY: as for the inputs.
            unsafe { gpu.read(&slot.memory, slot.data.bytes_mut()) }?;
        }
        Ok(())
    }
}

impl HandWritten for Baseline {
    /// The context is made current before timing starts.
    fn run(&mut self) -> Result<Duration, BaselineError> {
        let gpu = self.gpu.clone();
        let _entered = gpu.enter()?;
        let start = Instant::now();
        let enqueued = self.enqueue();
        // The enqueued commands use the data, so wait for them even if a later call failed.
        let finished = gpu.finish();
        enqueued?;
        finished?;
        Ok(start.elapsed())
    }

    /// In a fork, a page-locked output is empty.
    fn output(&self, index: usize) -> &[u8] {
        let mut outputs = self.slots.iter().filter(|slot| slot.is_output);
        outputs.nth(index).unwrap_or_else(|| panic!("the kernel has no output {index}")).data.bytes()
    }
}
