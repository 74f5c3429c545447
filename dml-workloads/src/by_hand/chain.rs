//! Dependent kernels: the same small programs queued by hand, submitted, and launched under one grant.
//!
//! ```text
//!   chain     0 ─▶ 1 ─▶ 0 ─▶ 1 ─▶ …        diamond   0 ─▶ 1 ─┐        fan   0 ─▶ 1, 2, … 7
//!                                                      └─▶ 2 ─┴─▶ 0          1, 7 ─▶ 0
//! ```

use super::{Arg, ByHandError, Device, language, unusable};
use crate::prepare::Language;
use dml_arenas::launch;
use dml_core::{
    Access, Buffer, DeviceId, ItemShape, Items, Launch, LaunchArg, Launcher, Platform, Region, Submission,
    SubmitError,
};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KERNEL: &str = "combine";
/// The number of work-items of a group.
const LOCAL: u64 = 64;

/// The shape in which kernels depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// Each kernel reads what the one before it wrote.
    Chain,
    /// Two kernels read what one wrote, and the next one reads what both wrote.
    Diamond,
    /// Seven kernels read what one wrote, and the next one reads what two of them wrote.
    Fan,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 3] = [Self::Chain, Self::Diamond, Self::Fan];

    /// Returns the shape's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Diamond => "diamond",
            Self::Fan => "fan",
        }
    }

    /// Returns the kernels of one round: the two buffers that each reads, and the one that it writes.
    const fn round(self) -> &'static [[usize; 3]] {
        match self {
            Self::Chain => &[[0, 0, 1], [1, 1, 0]],
            Self::Diamond => &[[0, 0, 1], [0, 0, 2], [1, 2, 0]],
            Self::Fan => {
                &[[0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 0, 4], [0, 0, 5], [0, 0, 6], [0, 0, 7], [1, 7, 0]]
            }
        }
    }

    fn buffers(self) -> usize {
        self.round().iter().flatten().max().map_or(0, |most| most + 1)
    }

    /// Returns the first `kernels` kernels.
    fn steps(self, kernels: usize) -> impl Iterator<Item = [usize; 3]> {
        self.round().iter().copied().cycle().take(kernels)
    }

    /// Returns a value of buffer 0 after `kernels` kernels.
    fn expected(self, kernels: usize, first: u32) -> u32 {
        let mut values = vec![first; self.buffers()];
        for [x, y, to] in self.steps(kernels) {
            values[to] = values[x].wrapping_mul(3).wrapping_add(values[y]);
        }
        values[0]
    }
}

/// The failure of a chain.
pub type Failed = Box<dyn Error + Send + Sync>;

/// The same kernels by three ways, on one device.
pub struct Chains {
    platform: Platform,
    device: DeviceId,
    launcher: Arc<dyn Launcher>,
    by_hand: Box<dyn ByHand>,
    elements: u64,
}

impl fmt::Debug for Chains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chains").field("device", &self.device).field("elements", &self.elements).finish()
    }
}

impl Chains {
    /// Builds the kernel for a device of OpenCL or CUDA, for buffers of `elements` words.
    ///
    /// # Errors
    /// The framework's.
    pub fn new(platform: &Platform, device: DeviceId, elements: u64) -> Result<Self, Failed> {
        let (source, by_hand): (_, Box<dyn ByHand>) = match language(platform, device) {
            #[cfg(feature = "opencl")]
            Some(Language::OpenClC) => {
                let source = include_str!("../kernels/combine.cl");
                (source, Box::new(Queued::<super::opencl::OpenCl>::new(platform, device, source)?))
            }
            #[cfg(feature = "cuda")]
            Some(Language::CudaC) => {
                let source = include_str!("../kernels/combine.cu");
                (source, Box::new(Queued::<super::cuda::Cuda>::new(platform, device, source)?))
            }
            _ => return Err(unusable(platform, device, "there is no program for its memory").into()),
        };
        // SAFETY: the kernel touches only the elements of its items, and nothing past the end.
        let launcher = unsafe { launch::kernel(platform, device, source, KERNEL) }?;
        Ok(Self { platform: platform.clone(), device, launcher, by_hand, elements })
    }

    /// Queues `kernels` kernels by hand, and waits for them once. Returns the elapsed time.
    ///
    /// # Errors
    /// The framework's, or a wrong result.
    pub fn by_hand(&mut self, shape: Shape, kernels: usize) -> Result<Duration, Failed> {
        let first = vec![1_u32; self.elements as usize];
        let (took, result) = self.by_hand.run(shape, kernels, &first)?;
        verified(shape, kernels, &result)?;
        Ok(took)
    }

    fn buffers(&self, shape: Shape) -> Result<Vec<Buffer<u32>>, Failed> {
        let mut buffers = Vec::new();
        for _ in 0..shape.buffers() {
            let buffer = self.platform.buffer_from(vec![1_u32; self.elements as usize])?;
            // It is on the device before anything is timed, as by hand.
            drop(self.platform.acquire(self.device).read(&buffer).wait()?);
            buffers.push(buffer);
        }
        Ok(buffers)
    }

    /// Submits `kernels` kernels, and waits for them once. Returns the elapsed time.
    ///
    /// # Errors
    /// Those of [`Platform::submit`], or a wrong result.
    pub fn submitted(&self, shape: Shape, kernels: usize) -> Result<Duration, Failed> {
        let buffers = self.buffers(shape)?;
        let begun = Instant::now();
        for step in shape.steps(kernels) {
            self.submit(step, &buffers)?;
        }
        self.platform.settle(self.device)?;
        let took = begun.elapsed();
        verified(shape, kernels, &buffers[0].read()?)?;
        Ok(took)
    }

    /// Submits a chain of `kernels` kernels on each of several devices, in turns on this thread, and waits
    /// for all of them. Returns the elapsed time.
    ///
    /// # Errors
    /// As [`submitted`](Self::submitted).
    pub fn at_once(chains: &[&Self], kernels: usize) -> Result<Duration, Failed> {
        let shape = Shape::Chain;
        let buffers: Vec<_> = chains.iter().map(|one| one.buffers(shape)).collect::<Result<_, _>>()?;
        let begun = Instant::now();
        for step in shape.steps(kernels) {
            for (chain, buffers) in chains.iter().zip(&buffers) {
                chain.submit(step, buffers)?;
            }
        }
        for chain in chains {
            chain.platform.settle(chain.device)?;
        }
        let took = begun.elapsed();
        for buffers in &buffers {
            verified(shape, kernels, &buffers[0].read()?)?;
        }
        Ok(took)
    }

    fn submit(&self, [x, y, to]: [usize; 3], buffers: &[Buffer<u32>]) -> Result<Submission, SubmitError> {
        let submit = self.platform.submit(self.device, &self.launcher);
        let submit = submit.read(&buffers[x]).read(&buffers[y]).write(&buffers[to]);
        submit.scalar(self.elements).items(Items::from(self.elements).in_groups([LOCAL, 1, 1]))
    }

    /// Launches `kernels` kernels under one grant of all buffers, and waits for them once. Returns the
    /// elapsed time.
    ///
    /// # Errors
    /// Those of the launcher, or a wrong result.
    pub fn one_grant(&self, shape: Shape, kernels: usize) -> Result<Duration, Failed> {
        let buffers = self.buffers(shape)?;
        let (items, line) = (0..self.elements, ItemShape::line(LOCAL));
        let begun = Instant::now();
        let acquire = self.platform.acquire(self.device);
        let mut grants = buffers.iter().fold(acquire, |acquire, buffer| acquire.read_write(buffer)).wait()?;
        let mut launched = Vec::with_capacity(kernels);
        for [x, y, to] in shape.steps(kernels) {
            let buffer = |at: usize, access| LaunchArg::Buffer {
                buffer: buffers[at].raw().clone(),
                access,
                ranges: buffers[at].bytes().into(),
            };
            let arguments = [
                buffer(x, Access::ReadOnly),
                buffer(y, Access::ReadOnly),
                buffer(to, Access::WriteInvalidate),
                LaunchArg::Scalar(self.elements.into()),
            ];
            launched.push(self.launcher.launch(&Launch::new(&items, &line, &arguments), &mut grants)?);
        }
        match launched.pop() {
            Some(last) => grants.in_flight(last).wait()?.release()?,
            None => grants.release()?,
        }
        drop(launched);
        let took = begun.elapsed();
        verified(shape, kernels, &buffers[0].read()?)?;
        Ok(took)
    }

    /// Acquires, launches, waits and releases for each of `kernels` kernels. Returns the elapsed time.
    ///
    /// # Errors
    /// Those of [`Platform::submit`], or a wrong result.
    pub fn one_by_one(&self, shape: Shape, kernels: usize) -> Result<Duration, Failed> {
        let buffers = self.buffers(shape)?;
        let begun = Instant::now();
        for step in shape.steps(kernels) {
            self.submit(step, &buffers)?.wait()?;
        }
        let took = begun.elapsed();
        verified(shape, kernels, &buffers[0].read()?)?;
        Ok(took)
    }
}

/// Compares a result with the one that the host computes.
fn verified(shape: Shape, kernels: usize, result: &[u32]) -> Result<(), Failed> {
    let expected = shape.expected(kernels, 1);
    match result.iter().position(|value| *value != expected) {
        None => Ok(()),
        Some(at) => Err(format!("element {at} is {}, not {expected}", result[at]).into()),
    }
}

trait ByHand {
    fn run(
        &mut self,
        shape: Shape,
        kernels: usize,
        first: &[u32],
    ) -> Result<(Duration, Vec<u32>), ByHandError>;
}

/// An open device with the kernel.
struct Queued<D: Device> {
    kernel: D::Kernel,
    device: D,
}

impl<D: Device> Queued<D> {
    fn new(platform: &Platform, device: DeviceId, source: &str) -> Result<Self, ByHandError> {
        let device = D::open(platform, device)?;
        Ok(Self { kernel: device.kernel(source, KERNEL)?, device })
    }
}

impl<D: Device> ByHand for Queued<D> {
    fn run(
        &mut self,
        shape: Shape,
        kernels: usize,
        first: &[u32],
    ) -> Result<(Duration, Vec<u32>), ByHandError> {
        let (device, bytes) = (&self.device, bytemuck::cast_slice(first));
        let mut buffers = Vec::new();
        for _ in 0..shape.buffers() {
            let mut buffer = device.buffer(bytes.len())?;
            // SAFETY: the queue is finished in this statement.
            unsafe { device.send(&mut buffer, bytes) }.and(device.finish())?;
            buffers.push(buffer);
        }
        let begun = Instant::now();
        let enqueued = shape.steps(kernels).try_for_each(|[x, y, to]| {
            let argument = |at: usize| Arg::Buffer(&buffers[at]);
            let arguments = [argument(x), argument(y), argument(to), Arg::U64(first.len() as u64)];
            // SAFETY: the kernel touches only the elements of its items, and nothing past the end. The
            // buffers live until the queue is finished.
            unsafe { device.launch(&self.kernel, &arguments, [first.len() as u64, 1], [LOCAL, 1]) }
        });
        enqueued.and(device.finish())?;
        let took = begun.elapsed();
        let mut result = vec![0_u32; first.len()];
        // SAFETY: the queue is finished in this statement.
        let fetched = unsafe { device.fetch(&mut buffers[0], bytemuck::cast_slice_mut(&mut result)) };
        fetched.and(device.finish())?;
        Ok((took, result))
    }
}
