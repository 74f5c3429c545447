//! Times transfers between main memory and an OpenCL device, beside the same commands written by hand.
//!
//! ```text
//! cargo run --release --example transfers [DEVICE [MIB [RUNS [MEMORY]]]]      opencl:0, 64 MiB, 15 runs, locked
//! cargo run --release --example transfers opencl:0,opencl:1 [MIB [RUNS [MEMORY]]]     from the one to the other
//! ```
//! `MEMORY` is the memory whose pages may be locked: `locked` (the data in place, and scratch memory),
//! `scratch` (only scratch memory; MIB must then exceed 40) or `plain` (none).
//!
//! By hand, the data is in ordinary vectors, which one call each writes and reads. Every run times all
//! variants in turn, and the rows show medians. The first run is shown separately, because it allocates,
//! touches and locks the memory. Memory that is allocated later may be a tenth faster, because its pages are
//! closer together. So the memory of DML and that of the hand-written program exist twice, allocated in
//! either order. A time is the mean of both.

use dml::arenas::launch::{Grid, KernelArg};
use dml::arenas::opencl::OpenClKernel;
use dml::core::InFlight;
use dml::prelude::*;
use dml_workloads::by_hand::{HostMemory, Program};
use dml_workloads::prepare::{Plain, PlainArgument};
use std::error::Error;
use std::future::IntoFuture;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

const SOURCE: &str = "
    __kernel void touch(__global uint* data) { data[get_global_id(0)] += 1; }
    __kernel void fill(__global uint* data) {
        uint word = (uint)get_global_id(0);
        for (int round = 0; round < 200; round++) word = word * 1664525u + 1013904223u;
        data[get_global_id(0)] = word;
    }";
/// Number of ranges in which a result is computed and fetched.
const RANGES: u64 = 8;
/// Size of the scratch memory that both directions use at once, in bytes.
const SCRATCH_BYTES: u64 = 40 << 20;
/// Number of words of a page.
const PAGE: usize = 1024;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Returns the word that kernel `fill` computes for an index.
fn filled(index: u32) -> u32 {
    (0..200).fold(index, |word, _| word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
}

/// The memory whose pages transfers may lock.
#[derive(Clone, Copy)]
enum Memory {
    Locked,
    Scratch,
    Plain,
}

impl Memory {
    fn parse(text: &str) -> Outcome<Self> {
        match text {
            "locked" => Ok(Self::Locked),
            "scratch" => Ok(Self::Scratch),
            "plain" => Ok(Self::Plain),
            _ => Err(format!("memory is locked, scratch or plain, not {text}").into()),
        }
    }

    fn platform(self, names: &[&str]) -> Outcome<Platform> {
        let options = DiscoverOptions::default().only(names.iter().copied()).offload(0);
        let options = match self {
            Self::Locked => options,
            // Scratch memory uses up the limit on locked memory, so the data cannot be locked.
            Self::Scratch => options.page_locks(SCRATCH_BYTES).locked_scratch(SCRATCH_BYTES),
            Self::Plain => options.page_locks(0).locked_scratch(0),
        };
        Ok(Platform::builder().discover_with(&options)?.build()?)
    }
}

/// Times and prints transfers of a buffer from one device to another.
fn between(names: [&str; 2], mib: u64, runs: usize, memory: Memory) -> Outcome<()> {
    let platform = memory.platform(&names)?;
    let [from, to] = [platform.device(names[0])?, platform.device(names[1])?];
    let data = platform.buffer_from((0..(mib << 18) as u32).collect::<Vec<_>>())?;
    let mut times = Vec::new();
    for _ in 0..=runs {
        platform.acquire(from).read_write(&data).wait()?.release()?;
        times.push(timed(|| platform.acquire(to).read(&data).wait()?.release())?);
    }
    let first = times.remove(0);
    times.sort_unstable();
    let median = times[times.len() / 2];
    let rate = (mib << 20) as f64 / median.as_secs_f64() / 1e9;
    println!("{} to {}, {mib} MiB: {median:.2?} {rate:.1} GB/s   first {first:.2?}", names[0], names[1]);
    match data.read()?.iter().zip(0..).position(|(value, index)| *value != index) {
        Some(index) => Err(format!("word {index} did not arrive").into()),
        None => Ok(()),
    }
}

struct Rig {
    platform: Platform,
    cpu: DeviceId,
    device: DeviceId,
    fill: OpenClKernel,
    /// Sent from the host to the device.
    there: Buffer<u32>,
    /// Fetched from the device to the host.
    back: Buffer<u32>,
    result: Buffer<u32>,
    words: u64,
}

impl Rig {
    fn new(name: &str, words: u64, memory: Memory) -> Outcome<Self> {
        let platform = memory.platform(&[name])?;
        let (cpu, device) = (platform.device("cpu")?, platform.device(name)?);
        let arena = platform.home_as::<OpenClArena>(device).ok_or("the device is not of OpenCL")?;
        let fill = arena.kernel(SOURCE, "fill", "")?;
        let vector = || (0..words as u32).collect::<Vec<_>>();
        let (there, back) = (platform.buffer_from(vector())?, platform.buffer_from(vector())?);
        let result = platform.buffer_from(vec![7_u32; words as usize])?;
        Ok(Self { platform, cpu, device, fill, there, back, result, words })
    }

    /// Leaves the latest contents of `there` only on the host, and those of `back` only on the device.
    fn part(&self) -> Outcome<()> {
        self.platform.acquire(self.cpu).read_write(&self.there).wait()?.release()?;
        Ok(self.platform.acquire(self.device).read_write(&self.back).wait()?.release()?)
    }

    fn send(&self) -> Result<(), AcquireError> {
        self.platform.acquire(self.device).read(&self.there).wait()?.release()
    }

    fn fetch(&self) -> Result<(), AcquireError> {
        self.platform.acquire(self.cpu).read(&self.back).wait()?.release()
    }

    /// Times both transfers, awaited on one thread.
    fn both(&self) -> Outcome<Duration> {
        let begun = Instant::now();
        let sent = pin!(self.platform.acquire(self.device).read(&self.there).into_future());
        let fetched = pin!(self.platform.acquire(self.cpu).read(&self.back).into_future());
        for grants in join([sent, fetched]) {
            grants?.release()?;
        }
        Ok(begun.elapsed())
    }

    /// Starts a kernel that computes a range of the result.
    fn launch(&self, words: std::ops::Range<u64>) -> Outcome<InFlight> {
        let range = self.result.range(words.clone());
        let grants = self.platform.acquire(self.device).write(&range).wait()?;
        let args = [KernelArg::Block(grants.block(&range)?.ok_or("it has bytes")?)];
        let launch = Grid::line(words.start, words.end - words.start, 0);
        // SAFETY: the kernel writes one word of the range per item. The range is granted until it has ended.
        let run = unsafe { self.fill.launch(&args, launch) }?;
        Ok(grants.in_flight(run))
    }

    /// Computes the result in this many ranges, and copies each to the host while later ones are computed.
    fn compute(&self, ranges: u64) -> Outcome<Duration> {
        let begun = Instant::now();
        let bounds = |index: u64| index * self.words / ranges..(index + 1) * self.words / ranges;
        let flights = (0..ranges).map(|index| self.launch(bounds(index))).collect::<Outcome<Vec<_>>>()?;
        for (index, flight) in (0..).zip(flights) {
            flight.wait()?.release()?;
            let range = self.result.range(bounds(index));
            self.platform.acquire(self.cpu).read(&range).wait()?.release()?;
        }
        let took = begun.elapsed();
        let seen = self.result.read()?;
        match (0..self.words as usize).step_by(PAGE).find(|&index| seen[index] != filled(index as u32)) {
            Some(index) => Err(format!("word {index} of the result is wrong").into()),
            None => Ok(took),
        }
    }
}

/// Creates a hand-written program with a kernel of the same source. With no items, it only moves the data.
fn by_hand(rig: &Rig, kernel: &'static str, argument: PlainArgument, items: u64) -> Outcome<Program> {
    let plain =
        Plain { source: SOURCE, kernel, arguments: vec![argument], items: [items, 1], local_size: [0, 0] };
    // SAFETY: the kernels have one parameter, a buffer, and touch its word of each item. The group size is
    // left open, so no items are added.
    Ok(unsafe { Program::new(&rig.platform, rig.device, HostMemory::Ordinary, &plain) }?)
}

/// The same transfers and the same kernel by hand.
struct ByHand {
    write: Program,
    read: Program,
    compute: Program,
}

impl ByHand {
    fn new(rig: &Rig) -> Outcome<Self> {
        let words = rig.words;
        let output = || PlainArgument::Output(words * size_of::<u32>() as u64);
        let input = (0..words as u32).flat_map(u32::to_ne_bytes).collect();
        let write = by_hand(rig, "touch", PlainArgument::Input(input), 0)?;
        let read = by_hand(rig, "touch", output(), 0)?;
        let compute = by_hand(rig, "fill", output(), words)?;
        Ok(Self { write, read, compute })
    }
}

/// Times everything once, in the order of the rows.
fn run(rig: &Rig, hand: &mut ByHand) -> Outcome<[Duration; 8]> {
    rig.part()?;
    let (write, send) = (hand.write.run()?, timed(|| rig.send())?);
    let (read, fetch) = (hand.read.run()?, timed(|| rig.fetch())?);
    rig.part()?;
    let both = rig.both()?;
    let (compute, whole, ranges) = (hand.compute.run()?, rig.compute(1)?, rig.compute(RANGES)?);
    Ok([write, send, read, fetch, both, compute, whole, ranges])
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls futures on this thread until all of them have ended.
fn join<F: Future>(mut futures: [Pin<&mut F>; 2]) -> Vec<F::Output> {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut ended: [Option<F::Output>; 2] = [None, None];
    while ended.iter().any(Option::is_none) {
        for (future, ended) in futures.iter_mut().zip(&mut ended).filter(|(_, ended)| ended.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                *ended = Some(output);
            }
        }
        if ended.iter().any(Option::is_none) {
            std::thread::park();
        }
    }
    ended.into_iter().flatten().collect()
}

fn timed(work: impl FnOnce() -> Result<(), AcquireError>) -> Outcome<Duration> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed())
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "opencl:0".to_owned());
    let mib: u64 = arguments.next().map_or(Ok(64), |mib| mib.parse())?;
    let runs: usize = arguments.next().map_or(Ok(15), |runs| runs.parse())?;
    let memory = arguments.next().map_or(Ok(Memory::Locked), |text| Memory::parse(&text))?;
    if let Some((from, to)) = name.split_once(',') {
        return between([from, to], mib, runs, memory);
    }
    let (bytes, words) = (mib << 20, mib << 18);
    let rig = || Rig::new(&name, words, memory);
    let rig_before = rig()?;
    let (hand_after, hand_before) = (ByHand::new(&rig_before)?, ByHand::new(&rig_before)?);
    let mut pairs = [(rig_before, hand_after), (rig()?, hand_before)];

    let mut times: [Vec<Duration>; 8] = Default::default();
    for _ in 0..=runs {
        let mut sums = [Duration::ZERO; 8];
        for (rig, hand) in &mut pairs {
            sums.iter_mut().zip(run(rig, hand)?).for_each(|(sum, took)| *sum += took);
        }
        times.iter_mut().zip(sums).for_each(|(times, sum)| times.push(sum / 2));
    }
    let rows = [
        ("to the device, by hand", 1),
        ("to the device", 1),
        ("from the device, by hand", 1),
        ("from the device", 1),
        ("both at once", 2),
        ("kernel and result, by hand", 1),
        ("kernel and result", 1),
        ("kernel and result, 8 ranges", 1),
    ];
    println!("{name}, {mib} MiB, medians of {runs} runs");
    for ((what, times_moved), mut times) in rows.into_iter().zip(times) {
        let first = times.remove(0);
        times.sort_unstable();
        let median = times[times.len() / 2];
        let rate = (times_moved * bytes) as f64 / median.as_secs_f64() / 1e9;
        println!("{what:<28} {median:>10.2?} {rate:>7.1} GB/s   first {first:>10.2?}");
    }
    Ok(())
}
