//! Chunks whose transfers overlap the kernels of other chunks: submitted, one by one, and by hand on two
//! queues, which take turns.
//!
//! ```text
//!   queue 0   in 0 ─▶ kernel 0 ─▶ out 0   in 2 ─▶ kernel 2 ─▶ out 2
//!   queue 1          in 1 ─▶ kernel 1 ─▶ out 1   in 3 ─▶ kernel 3 ─▶ out 3
//! ```
//! Every run has inputs of its own, and begins with outputs on the host that are overwritten. So nothing that
//! an earlier run left passes for a result.

use super::chain::Failed;
use super::{Arg, ByHandError, Device, Host, HostMemory, Pages, language, unusable};
use crate::prepare::Language;
use dml_arenas::launch;
use dml_core::{Buffer, DeviceId, Items, Launcher, Platform, Submission, SubmitError};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KERNEL: &str = "advance";
/// The factor of the kernel's multiply-adds.
const FACTOR: u32 = 1_664_525;
/// The number of work-items of a group.
const LOCAL: u64 = 256;
/// The number of measurements of which the shortest counts, when the rounds are chosen.
const REPEATS: u32 = 3;
/// Maximum number of rounds that is chosen.
const MOST_ROUNDS: u32 = 1 << 20;
/// The contents of outputs before a run.
const STALE: u32 = 0xDEAD_BEEF;

/// The same chunks on one device: submitted, one by one, and by hand.
pub struct Pipeline {
    platform: Platform,
    device: DeviceId,
    host: DeviceId,
    launcher: Arc<dyn Launcher>,
    /// The input and the output of each chunk.
    buffers: Vec<[Buffer<u32>; 2]>,
    by_hand: Box<dyn ByHand>,
    elements: usize,
    runs: u32,
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chunks, elements) = (self.buffers.len(), self.elements);
        let mut debug = f.debug_struct("Pipeline");
        debug.field("device", &self.device).field("chunks", &chunks).field("elements", &elements).finish()
    }
}

impl Pipeline {
    /// Builds the kernel for a device of OpenCL or CUDA, and allocates `chunks` chunks of `elements` words.
    /// The program by hand has its data in this kind of host memory.
    ///
    /// # Errors
    /// The framework's.
    pub fn new(
        platform: &Platform,
        device: DeviceId,
        memory: HostMemory,
        [chunks, elements]: [usize; 2],
    ) -> Result<Self, Failed> {
        let size = (memory, [chunks, elements]);
        let (source, by_hand): (_, Box<dyn ByHand>) = match language(platform, device) {
            #[cfg(feature = "opencl")]
            Some(Language::OpenClC) => {
                let source = include_str!("../kernels/advance.cl");
                (source, Box::new(Queued::<super::opencl::OpenCl>::new(platform, device, source, size)?))
            }
            #[cfg(feature = "cuda")]
            Some(Language::CudaC) => {
                let source = include_str!("../kernels/advance.cu");
                (source, Box::new(Queued::<super::cuda::Cuda>::new(platform, device, source, size)?))
            }
            _ => return Err(unusable(platform, device, "there is no program for its memory").into()),
        };
        // SAFETY: the kernel touches only the elements of its items, and nothing past the end.
        let launcher = unsafe { launch::kernel(platform, device, source, KERNEL) }?;
        let host = platform.host().ok_or("the platform has no host")?;
        let buffer = || platform.buffer(elements as u64).build();
        let buffers = (0..chunks).map(|_| Ok([buffer()?, buffer()?])).collect::<Result<_, Failed>>()?;
        let platform = platform.clone();
        Ok(Self { platform, device, host, launcher, buffers, by_hand, elements, runs: 0 })
    }

    /// Finds the number of rounds for which the kernels by hand take as long as the transfers.
    ///
    /// # Errors
    /// The framework's.
    pub fn suited_rounds(&mut self) -> Result<u32, Failed> {
        // The first call pays for what the framework puts off.
        self.by_hand.alone(1)?;
        let (mut fewer, mut rounds) = ((0, 0.0), 1_u32);
        loop {
            let mut least = [f64::MAX; 2];
            for _ in 0..REPEATS {
                let times = self.by_hand.alone(rounds)?.map(|time| time.as_secs_f64());
                least = [least[0].min(times[0]), least[1].min(times[1])];
            }
            let [transfers, kernels] = least;
            if kernels >= transfers || rounds >= MOST_ROUNDS {
                // Between the two numbers of rounds, the time grows evenly.
                let part = ((transfers - fewer.1) / (kernels - fewer.1)).clamp(0.0, 1.0);
                return Ok((fewer.0 + (f64::from(rounds - fewer.0) * part) as u32).max(1));
            }
            (fewer, rounds) = ((rounds, kernels), rounds * 2);
        }
    }

    /// Writes the inputs of a run on the host, and overwrites the outputs there. Returns the run's number.
    fn prepare(&mut self) -> Result<u32, Failed> {
        self.runs += 1;
        for (chunk, [input, output]) in self.buffers.iter().enumerate() {
            let (mut values, mut stale) = (input.write()?, output.write()?);
            fill(&mut values, self.runs, chunk);
            stale.fill(STALE);
            values.release()?;
            stale.release()?;
        }
        Ok(self.runs)
    }

    fn submit(&self, [input, output]: &[Buffer<u32>; 2], rounds: u32) -> Result<Submission, SubmitError> {
        let submit = self.platform.submit(self.device, &self.launcher);
        let submit = submit.read(input).write(output).scalar(rounds).scalar(input.len());
        submit.bring_results(self.host).items(Items::from(input.len()).in_groups([LOCAL, 1, 1]))
    }

    /// Submits the kernels of all chunks with their results, then reads these. Returns the elapsed time.
    ///
    /// # Errors
    /// Those of [`Platform::submit`], or a wrong result.
    pub fn submitted(&mut self, rounds: u32) -> Result<Duration, Failed> {
        let run = self.prepare()?;
        let begun = Instant::now();
        for chunk in &self.buffers {
            self.submit(chunk, rounds)?;
        }
        let results = self.buffers.iter().map(|[_, output]| output.read()).collect::<Result<Vec<_>, _>>()?;
        let took = begun.elapsed();
        verified(results.iter().map(|result| &**result), run, rounds)?;
        Ok(took)
    }

    /// Submits the kernel of each chunk and reads its result, before the next chunk. Returns the elapsed
    /// time.
    ///
    /// # Errors
    /// Those of [`Platform::submit`], or a wrong result.
    pub fn one_by_one(&mut self, rounds: u32) -> Result<Duration, Failed> {
        let run = self.prepare()?;
        let mut results = Vec::with_capacity(self.buffers.len());
        let begun = Instant::now();
        for chunk in &self.buffers {
            self.submit(chunk, rounds)?.wait()?;
            results.push(chunk[1].read()?);
        }
        let took = begun.elapsed();
        verified(results.iter().map(|result| &**result), run, rounds)?;
        Ok(took)
    }

    /// Runs the program by hand. Returns the elapsed time.
    ///
    /// # Errors
    /// The framework's, or a wrong result.
    pub fn by_hand(&mut self, rounds: u32) -> Result<Duration, Failed> {
        self.runs += 1;
        self.by_hand.prepare(self.runs);
        let took = self.by_hand.run(rounds)?;
        verified(self.by_hand.results().into_iter(), self.runs, rounds)?;
        Ok(took)
    }

    /// Transfers all chunks there and back, then runs all kernels, by hand on one queue. Returns the elapsed
    /// time of each.
    ///
    /// # Errors
    /// The framework's.
    pub fn alone(&mut self, rounds: u32) -> Result<[Duration; 2], Failed> {
        Ok(self.by_hand.alone(rounds)?)
    }
}

/// Returns the input at an index of a chunk.
fn input(run: u32, chunk: usize, index: usize) -> u32 {
    let place = (run << 16).wrapping_add(chunk as u32).wrapping_mul(0x85EB_CA6B);
    place ^ (index as u32).wrapping_mul(0x9E37_79B1)
}

fn fill(values: &mut [u32], run: u32, chunk: usize) {
    values.iter_mut().enumerate().for_each(|(index, value)| *value = input(run, chunk, index));
}

/// Compares the results of all chunks with those that the host computes.
fn verified<'a>(results: impl Iterator<Item = &'a [u32]>, run: u32, rounds: u32) -> Result<(), Failed> {
    // Each round makes a multiple of the input from another one.
    let factor = (0..rounds).fold(1_u32, |factor, _| factor.wrapping_mul(FACTOR).wrapping_add(1));
    for (chunk, result) in results.enumerate() {
        let expected = |index| input(run, chunk, index).wrapping_mul(factor);
        if let Some(at) = (0..result.len()).find(|&index| result[index] != expected(index)) {
            let (found, expected) = (result[at], expected(at));
            return Err(format!("element {at} of chunk {chunk} is {found}, not {expected}").into());
        }
    }
    Ok(())
}

trait ByHand {
    /// Writes the inputs of a run, and overwrites the outputs.
    fn prepare(&mut self, run: u32);
    fn run(&mut self, rounds: u32) -> Result<Duration, ByHandError>;
    fn alone(&mut self, rounds: u32) -> Result<[Duration; 2], ByHandError>;
    fn results(&self) -> Vec<&[u32]>;
}

/// A chunk: its input and its output, on the device and on the host.
struct Chunk<D: Device> {
    buffers: [D::Buffer; 2],
    data: [Host<u8>; 2],
}

/// An open device with two queues, the kernel, and the chunks.
struct Queued<D: Device> {
    chunks: Vec<Chunk<D>>,
    kernel: D::Kernel,
    queues: [D; 2],
}

impl<D: Device> Queued<D> {
    fn new(
        platform: &Platform,
        device: DeviceId,
        source: &str,
        (memory, [chunks, elements]): (HostMemory, [usize; 2]),
    ) -> Result<Self, ByHandError> {
        let device = D::open(platform, device)?;
        let bytes = vec![0_u8; elements * 4];
        let data = || match memory {
            HostMemory::Suited => device.page_locked(&bytes),
            HostMemory::Ordinary => Ok(Pages::of(&bytes)),
        };
        let chunk = |_| {
            let buffers = [device.buffer(bytes.len())?, device.buffer(bytes.len())?];
            Ok(Chunk { buffers, data: [data()?, data()?] })
        };
        let chunks = (0..chunks).map(chunk).collect::<Result<_, ByHandError>>()?;
        let kernel = device.kernel(source, KERNEL)?;
        // Memory is allocated on the first queue, and used on both.
        device.finish()?;
        Ok(Self { chunks, kernel, queues: [device.another()?, device] })
    }

    /// Waits for all commands, also if a call failed: they use the data.
    fn finish(&self, enqueued: Result<(), ByHandError>) -> Result<(), ByHandError> {
        let [first, second] = self.queues.each_ref().map(D::finish);
        enqueued.and(first).and(second)
    }
}

impl<D: Device> Drop for Queued<D> {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.finish(Ok(()));
    }
}

impl<D: Device> Chunk<D> {
    fn send(&mut self, queue: &D) -> Result<(), ByHandError> {
        // SAFETY: no code touches the data until the caller has finished the queue.
        unsafe { queue.send(&mut self.buffers[0], &self.data[0]) }
    }

    fn launch(&self, queue: &D, kernel: &D::Kernel, rounds: u32) -> Result<(), ByHandError> {
        let ([from, to], elements) = (&self.buffers, self.data[0].len() as u64 / 4);
        let arguments = [Arg::Buffer(from), Arg::Buffer(to), Arg::U32(rounds), Arg::U64(elements)];
        // SAFETY: the kernel touches only the elements of its items, and nothing past the end. The buffers
        // live until the caller has finished the queue.
        unsafe { queue.launch(kernel, &arguments, [elements, 1], [LOCAL, 1]) }
    }

    fn fetch(&mut self, queue: &D) -> Result<(), ByHandError> {
        // SAFETY: as in `send`.
        unsafe { queue.fetch(&mut self.buffers[1], &mut self.data[1]) }
    }
}

impl<D: Device> ByHand for Queued<D> {
    fn prepare(&mut self, run: u32) {
        for (chunk, Chunk { data: [input, output], .. }) in self.chunks.iter_mut().enumerate() {
            fill(bytemuck::cast_slice_mut(input), run, chunk);
            bytemuck::cast_slice_mut(output).fill(STALE);
        }
    }

    fn run(&mut self, rounds: u32) -> Result<Duration, ByHandError> {
        let Self { chunks, kernel, queues } = self;
        let begun = Instant::now();
        let enqueued = (0..=chunks.len()).try_for_each(|at| {
            if let Some(chunk) = chunks.get_mut(at) {
                let queue = &queues[at % 2];
                chunk.send(queue)?;
                chunk.launch(queue, kernel, rounds)?;
            }
            // Ordinary memory holds this thread up until it has arrived. So the next kernel is queued before.
            match at.checked_sub(1) {
                Some(before) => chunks[before].fetch(&queues[before % 2]),
                None => Ok(()),
            }
        });
        self.finish(enqueued)?;
        Ok(begun.elapsed())
    }

    fn alone(&mut self, rounds: u32) -> Result<[Duration; 2], ByHandError> {
        let Self { chunks, kernel, queues: [queue, _] } = self;
        let begun = Instant::now();
        let there = |chunk: &mut Chunk<D>| chunk.send(queue).and_then(|()| chunk.fetch(queue));
        let enqueued = chunks.iter_mut().try_for_each(there);
        enqueued.and(queue.finish())?;
        let transfers = begun.elapsed();
        let enqueued = chunks.iter().try_for_each(|chunk| chunk.launch(queue, kernel, rounds));
        enqueued.and(queue.finish())?;
        Ok([transfers, begun.elapsed() - transfers])
    }

    fn results(&self) -> Vec<&[u32]> {
        self.chunks.iter().map(|chunk| bytemuck::cast_slice(&chunk.data[1])).collect()
    }
}
