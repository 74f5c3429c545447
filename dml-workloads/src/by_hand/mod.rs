//! Programs by hand: kernels directly on OpenCL or CUDA, without the data layer, to measure its overhead.
//!
//! ```text
//!   Program::new ─▶ run ─┐                    ┌─ opencl: a context and an in-order queue
//!                        ├─▶ Device, counted ─┤
//!   table 1 ─────────────┘                    └─ cuda: a stream
//! ```
//! The device is that of a platform: DML has found it, and has limited it to its compute units. In CUDA, DML
//! also compiles the kernels, so both sides run the same machine code. Everything else is separate.
//!
//! Programs are for benchmarks. They do not work in a fork, and a driver that violates the standard may make
//! them panic.

#![cfg_attr(not(feature = "opencl"), allow(dead_code, reason = "table 1 needs OpenCL"))]

#[cfg(any(feature = "cuda", feature = "opencl"))]
pub mod chain;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "opencl")]
pub mod native;
#[cfg(feature = "opencl")]
pub(crate) mod opencl;
#[cfg(any(feature = "cuda", feature = "opencl"))]
pub mod pipeline;
pub mod steps;

use crate::operations::Operations;
pub use crate::prepare::language;
use crate::prepare::{Language, Plain, PlainArgument, Recipe, plain};
use bytemuck::Pod;
use dml_core::{Arena, DeviceId, Platform};
use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};
use thiserror::Error;

/// The kind of host memory that holds a program's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostMemory {
    /// Ordinary memory. A run writes the inputs to the device and reads the outputs.
    Ordinary,
    /// Memory that suits the device. CUDA transfers page-locked memory. An OpenCL device that shares the
    /// host's memory uses it in place: a run unmaps the inputs and maps the outputs.
    Suited,
}

/// Why a program could not be created or run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ByHandError {
    /// The device cannot be used.
    #[error("{device} cannot be used: {reason}")]
    Device {
        /// The device's name.
        device: String,
        /// The reason.
        reason: String,
    },
    /// The kernel could not be built: the compiler rejected the source, or there is no compiler.
    #[error("building kernel {kernel} failed:\n{log}")]
    Build {
        /// The kernel's name.
        kernel: String,
        /// The compiler's log.
        log: String,
    },
    /// A call failed.
    #[error("{framework} failed: {message} (code {code})")]
    Call {
        /// The framework's name.
        framework: &'static str,
        /// The framework's error code.
        code: i64,
        /// A description of the code.
        message: String,
    },
}

/// A kernel with its buffers, ready to run and be timed.
pub struct Program(Box<dyn Run>);

impl Program {
    /// Builds the kernel, and allocates its buffers on the device and on the host.
    ///
    /// # Safety
    /// 1. The kernel has these arguments. In CUDA C, a `DmlItems` with all items follows them.
    /// 2. With these arguments, the kernel touches only the bytes of its buffers. It skips work-items past
    ///    the last item: their number is padded to whole groups along both axes.
    ///
    /// # Errors
    /// [`ByHandError::Device`] for a device without a [`language`], [`ByHandError::Build`], and
    /// [`ByHandError::Call`].
    pub unsafe fn new(
        platform: &Platform,
        device: DeviceId,
        memory: HostMemory,
        plain: &Plain,
    ) -> Result<Self, ByHandError> {
        Ok(Self(match language(platform, device) {
            #[cfg(feature = "opencl")]
            Some(Language::OpenClC) => {
                Box::new(Buffered::<opencl::OpenCl>::new(platform, device, memory, plain)?)
            }
            #[cfg(feature = "cuda")]
            Some(Language::CudaC) => Box::new(Buffered::<cuda::Cuda>::new(platform, device, memory, plain)?),
            _ => return Err(unusable(platform, device, "there is no program for its memory")),
        }))
    }

    /// Makes the program of a workload; `None` if the device has none, or the workload has no kernel for it.
    pub(crate) fn of<R: Recipe>(
        recipe: &R,
        platform: &Platform,
        device: DeviceId,
        memory: HostMemory,
    ) -> Result<Option<Self>, ByHandError> {
        let found = language(platform, device).and_then(|language| plain(recipe, language));
        // SAFETY: the arguments are those of the recipe's kernel (1). The kernels of this crate touch only
        // their buffers, and skip items past the end, which is their last argument (2).
        found.map(|plain| unsafe { Self::new(platform, device, memory, &plain) }).transpose()
    }

    /// Transfers the inputs to the device, runs the kernel over all items, transfers the outputs back, and
    /// waits once for all of it. Returns the elapsed time.
    ///
    /// # Errors
    /// [`ByHandError::Call`].
    pub fn run(&mut self) -> Result<Duration, ByHandError> {
        self.0.run()
    }

    /// Returns the bytes of the `index`-th output, as of the last successful run.
    ///
    /// # Panics
    /// If the arguments have fewer outputs.
    #[must_use]
    pub fn output(&self, index: usize) -> &[u8] {
        self.0.output(index)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Program")
    }
}

trait Run {
    fn run(&mut self) -> Result<Duration, ByHandError>;
    fn output(&self, index: usize) -> &[u8];
}

/// Memory of the host.
pub(crate) type Host<T> = Box<dyn DerefMut<Target = [T]>>;

/// An argument of a kernel.
pub(crate) enum Arg<B> {
    Buffer(B),
    U32(u32),
    U64(u64),
    F32(f32),
    /// A structure of as many floats.
    Matrix([f32; 12]),
}

/// The number of calls, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) alloc: u64,
    pub(crate) bind: u64,
    pub(crate) map: u64,
    pub(crate) unmap: u64,
    pub(crate) read: u64,
    pub(crate) write: u64,
    pub(crate) kernel: u64,
}

impl From<Calls> for Operations {
    fn from(calls: Calls) -> Self {
        let Calls { alloc, bind, map, unmap, read, write, kernel } = calls;
        // None of the programs copies with the processor.
        Self { map, unmap, read, write, kernel, alloc, bind, copy: 0 }
    }
}

/// An open device of a framework, with one in-order queue.
///
/// Only [`finish`](Self::finish) and [`view`](Self::view) wait for commands. Memory without bytes and kernels
/// without items need no call.
///
/// # Safety
/// The unsafe methods have these obligations, which last until the queue is finished:
/// 1. Memory that is sent, fetched or bound stays valid. Memory that is sent does not change before the next
///    command on the buffer, and no code touches memory that is fetched.
/// 2. Bound memory outlives its buffer. It is what is sent and fetched with that buffer, and the host touches
///    it only before the first command, and between a fetch and the next send.
/// 3. A launch meets the obligations of [`Program::new`]. The kernel and the buffers belong to the device,
///    and no buffer is mapped.
pub(crate) trait Device: Sized + 'static {
    type Kernel: 'static;
    type Buffer: 'static;

    fn open(platform: &Platform, device: DeviceId) -> Result<Self, ByHandError>;

    /// Opens another queue, on which the buffers and kernels of this one may be used. The caller orders the
    /// commands of the two.
    fn another(&self) -> Result<Self, ByHandError>;

    /// The calls since the count was last reset.
    fn calls(&self) -> &Cell<Calls>;

    fn kernel(&self, source: &str, name: &str) -> Result<Self::Kernel, ByHandError>;

    /// Returns whether the device can use the host's memory in place.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Copies elements to page-locked memory if the framework has it, otherwise to ordinary memory.
    fn page_locked<T: Pod>(&self, elements: &[T]) -> Result<Host<T>, ByHandError> {
        Ok(Box::new(elements.to_vec()))
    }

    /// Allocates a buffer on the device.
    fn buffer(&self, bytes: usize) -> Result<Self::Buffer, ByHandError>;

    /// Creates a buffer over host memory, on a device that shares it.
    unsafe fn bind(&self, memory: &mut [u8]) -> Result<Self::Buffer, ByHandError>;

    /// Writes bytes to the start of a buffer, or unmaps a bound one.
    unsafe fn send(&self, buffer: &mut Self::Buffer, bytes: &[u8]) -> Result<(), ByHandError>;

    /// Reads the start of a buffer, or maps a bound one.
    unsafe fn fetch(&self, buffer: &mut Self::Buffer, bytes: &mut [u8]) -> Result<(), ByHandError>;

    /// Returns the start of a buffer: mapped if the framework maps buffers, otherwise read into `bytes`. No
    /// command may use the buffer while the result is borrowed.
    unsafe fn view<'a>(
        &self,
        buffer: &'a mut Self::Buffer,
        bytes: &'a mut [u8],
    ) -> Result<&'a [u8], ByHandError> {
        // SAFETY: guaranteed by the caller (1, 2). The queue is finished in this statement.
        unsafe { self.fetch(buffer, bytes) }.and(self.finish())?;
        Ok(bytes)
    }

    /// Launches a kernel over items along two axes, padded to whole groups. A size of zero leaves the size of
    /// a group to the framework.
    unsafe fn launch(
        &self,
        kernel: &Self::Kernel,
        arguments: &[Arg<&Self::Buffer>],
        items: [u64; 2],
        local_size: [u64; 2],
    ) -> Result<(), ByHandError>;

    /// Waits for all commands.
    fn finish(&self) -> Result<(), ByHandError>;
}

/// Adds one call to the count.
fn count(calls: &Cell<Calls>, kind: impl FnOnce(&mut Calls) -> &mut u64) {
    let mut now = calls.get();
    *kind(&mut now) += 1;
    calls.set(now);
}

/// Finishes the queue of a device when it is dropped, also by a panic. It is dropped before the memory that
/// was made before it.
pub(crate) struct Finished<'a, D: Device>(pub(crate) &'a D);

impl<D: Device> Drop for Finished<'_, D> {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.0.finish();
    }
}

/// Returns a device's arena, if it has this type.
fn home<A: Arena>(platform: &Platform, device: DeviceId) -> Result<&A, ByHandError> {
    platform.home_as(device).ok_or_else(|| unusable(platform, device, "its memory is of another framework"))
}

pub(crate) fn unusable(platform: &Platform, device: DeviceId, reason: &str) -> ByHandError {
    let desc = platform.devices().get(usize::from(device.0));
    let device = desc.map_or_else(|| device.to_string(), |desc| desc.name.to_string());
    ByHandError::Device { device, reason: reason.to_owned() }
}

/// The program of one kernel.
struct Buffered<D: Device> {
    arguments: Vec<Arg<Slot<D>>>,
    kernel: D::Kernel,
    items: [u64; 2],
    local_size: [u64; 2],
    /// Whether the buffers are over the host's memory.
    is_in_place: bool,
    device: D,
}

/// A buffer with its data on the host. The buffer is dropped first, because it may be over this memory.
struct Slot<D: Device> {
    buffer: D::Buffer,
    data: Host<u8>,
    is_output: bool,
}

impl<D: Device> Buffered<D> {
    fn new(
        platform: &Platform,
        device: DeviceId,
        memory: HostMemory,
        plain: &Plain,
    ) -> Result<Self, ByHandError> {
        let device = D::open(platform, device)?;
        let kernel = device.kernel(plain.source, plain.kernel)?;
        let is_in_place = memory == HostMemory::Suited && device.shares_memory();
        let Plain { items, local_size, .. } = *plain;
        let mut made = Self { arguments: Vec::new(), kernel, items, local_size, is_in_place, device };
        for argument in &plain.arguments {
            made.arguments.push(match argument {
                PlainArgument::Input(bytes) => Arg::Buffer(made.slot(memory, bytes, false)?),
                PlainArgument::Output(bytes) => {
                    Arg::Buffer(made.slot(memory, &vec![0; *bytes as usize], true)?)
                }
                PlainArgument::U32(value) => Arg::U32(*value),
                PlainArgument::U64(value) => Arg::U64(*value),
                PlainArgument::F32(value) => Arg::F32(*value),
            });
        }
        Ok(made)
    }

    fn slot(&self, memory: HostMemory, bytes: &[u8], is_output: bool) -> Result<Slot<D>, ByHandError> {
        let device = &self.device;
        let mut data = match memory {
            HostMemory::Suited if !self.is_in_place => device.page_locked(bytes)?,
            _ => Pages::of(bytes),
        };
        if self.is_in_place {
            // SAFETY: the slot keeps the memory until the buffer is dropped. `run` and `output` touch it only
            // while it is mapped.
            return Ok(Slot { buffer: unsafe { device.bind(&mut data) }?, data, is_output });
        }
        let mut buffer = device.buffer(data.len())?;
        if is_output {
            // Overwrites what an earlier program left in the memory, which could pass for the result.
            // SAFETY: the queue is finished in this statement.
            unsafe { device.send(&mut buffer, &data) }.and(device.finish())?;
        }
        Ok(Slot { buffer, data, is_output })
    }

    /// Sends the inputs or the outputs to the device.
    fn send(&mut self, are_outputs: bool) -> Result<(), ByHandError> {
        slots(&mut self.arguments, are_outputs)
            // SAFETY: no code touches the data until `run` or the destructor has finished the queue.
            .try_for_each(|Slot { buffer, data, .. }| unsafe { self.device.send(buffer, data) })
    }

    /// Fetches the inputs or the outputs from the device.
    fn fetch(&mut self, are_outputs: bool) -> Result<(), ByHandError> {
        slots(&mut self.arguments, are_outputs)
            // SAFETY: as in `send`.
            .try_for_each(|Slot { buffer, data, .. }| unsafe { self.device.fetch(buffer, data) })
    }

    fn enqueue(&mut self) -> Result<(), ByHandError> {
        self.send(false)?;
        let arguments = self.arguments.iter().map(|argument| match argument {
            Arg::Buffer(slot) => Arg::Buffer(&slot.buffer),
            Arg::U32(value) => Arg::U32(*value),
            Arg::U64(value) => Arg::U64(*value),
            Arg::F32(value) => Arg::F32(*value),
            Arg::Matrix(values) => Arg::Matrix(*values),
        });
        let arguments: Vec<_> = arguments.collect();
        // SAFETY: the caller of `Program::new` guarantees what the kernel touches. All buffers are unmapped:
        // the inputs just now, and the outputs before the run.
        unsafe { self.device.launch(&self.kernel, &arguments, self.items, self.local_size) }?;
        self.fetch(true)
    }
}

/// Returns the inputs or the outputs.
fn slots<D: Device>(arguments: &mut [Arg<Slot<D>>], are_outputs: bool) -> impl Iterator<Item = &mut Slot<D>> {
    arguments.iter_mut().filter_map(move |argument| match argument {
        Arg::Buffer(slot) if slot.is_output == are_outputs => Some(slot),
        _ => None,
    })
}

impl<D: Device> Run for Buffered<D> {
    fn run(&mut self) -> Result<Duration, ByHandError> {
        if self.is_in_place {
            // The host takes the inputs, as if it had just written them, and leaves the outputs.
            self.fetch(false)?;
            self.send(true)?;
        } else {
            // As the outputs of a run on DML, which are overwritten before it: a result that does not come is
            // noticed, and the processor has the memory in its caches.
            slots(&mut self.arguments, true).for_each(|slot| slot.data.fill(0xFF));
        }
        // This call also makes the context of CUDA current on this thread.
        self.device.finish()?;
        let begun = Instant::now();
        // The enqueued commands use the data, so wait for them even if a later call failed.
        self.enqueue().and(self.device.finish())?;
        Ok(begun.elapsed())
    }

    fn output(&self, index: usize) -> &[u8] {
        let mut outputs = self.arguments.iter().filter_map(|argument| match argument {
            Arg::Buffer(slot) if slot.is_output => Some(&*slot.data),
            _ => None,
        });
        outputs.nth(index).unwrap_or_else(|| panic!("the kernel has no output {index}"))
    }
}

impl<D: Device> Drop for Buffered<D> {
    fn drop(&mut self) {
        drop(Finished(&self.device));
    }
}

/// Ordinary memory that begins at a page boundary, which some devices need to use it in place.
struct Pages {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Pages {
    fn of(contents: &[u8]) -> Host<u8> {
        const PAGE_BYTES: usize = 4096;
        let (bytes, len) = (vec![0; contents.len() + PAGE_BYTES], contents.len());
        let start = bytes.as_ptr().addr().wrapping_neg() % PAGE_BYTES;
        let mut pages = Self { bytes, start, len };
        pages.copy_from_slice(contents);
        Box::new(pages)
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_begin_at_a_boundary_and_hold_what_they_were_given() {
        for len in [0, 1, 4095, 4096, 4097] {
            let bytes: Vec<u8> = (0..len).map(|index| (index * 7 % 251) as u8).collect();
            let pages = Pages::of(&bytes);
            assert_eq!((pages.as_ptr().addr() % 4096, &pages[..]), (0, &bytes[..]));
        }
    }
}
