//! Programs that measure the data layer itself: nothing is copied, and no kernel computes.
//!
//! ```text
//!   Program ──prepare──▶ Prepared: a platform with main memory, buffers with valid bytes
//!                           └─run(operations)──▶ time of all operations, on one thread or on each of two
//! ```
//! The [mutex pair](Program::MutexPair) calibrates the processor: an operation is best stated as the number of
//! pairs that take as long.

use dml_arenas::MainMem;
use dml_core::internal::sync::Mutex;
use dml_core::{
    AcquireError, BusyReason, DeviceDesc, DeviceId, DeviceKind, Fence, Grants, Launch, LaunchArg,
    LaunchError, Launcher, Misfit, Platform, RawBuffer, RawRange, Submission, SubmitError,
};
use std::error::Error;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::hint::black_box;
use std::pin::pin;
use std::str::FromStr;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);
/// Size of a buffer.
const BYTES: u64 = 64;
/// Distance of the ranges of a buffer. Half of each is committed, so that no two ranges are one segment.
const RANGE_BYTES: u64 = 16;
/// Number of kernels that are submitted before the stream ends them. With more in its queue, a stream leaves
/// launches to its own thread.
const BATCH: u64 = 8;

/// What the operations of a measurement are.
///
/// Each acquires valid bytes and releases them, unless it says something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Program {
    /// Locks and unlocks a mutex, the kind that buffers have.
    MutexPair,
    /// Reads a buffer.
    Read,
    /// Changes a buffer.
    ReadWrite,
    /// Overwrites a buffer.
    Write,
    /// Reads a buffer, and takes a slice of its bytes.
    Slice,
    /// Makes a view of a buffer for reading, as `buffer.read()` does, and drops it.
    View,
    /// Reads a buffer as a future, which is ready at once.
    Await,
    /// Reads ten buffers by one request.
    TenBuffers,
    /// Submits a kernel that reads one buffer and changes another one. The kernel does nothing. Its end does
    /// not count.
    Submit,
    /// Creates and drops a buffer.
    NewBuffer,
    /// Locks and unlocks a mutex for each of two threads.
    TwoMutexes,
    /// Locks and unlocks a mutex on two threads.
    OneMutex,
    /// Reads one buffer for each of two threads.
    TwoBuffers,
    /// Reads a buffer on two threads.
    TwoReaders,
    /// Changes a buffer on two threads, in turns.
    TwoWriters,
    /// Reads one of so many ranges of a buffer, each of which is a segment of its own.
    Ranges(u32),
    /// Reads so many buffers, one after the other.
    Buffers(u32),
    /// Reads a buffer of which the thread holds so many grants for reading.
    Held(u32),
}

/// Makes a program of its number.
type Counted = fn(u32) -> Program;

/// Programs with a number.
const COUNTED: [(&str, Counted); 3] =
    [("ranges", Program::Ranges), ("buffers", Program::Buffers), ("held", Program::Held)];

impl Program {
    /// The programs without a number.
    pub const PLAIN: [Self; 15] = [
        Self::MutexPair,
        Self::Read,
        Self::ReadWrite,
        Self::Write,
        Self::Slice,
        Self::View,
        Self::Await,
        Self::TenBuffers,
        Self::Submit,
        Self::NewBuffer,
        Self::TwoMutexes,
        Self::OneMutex,
        Self::TwoBuffers,
        Self::TwoReaders,
        Self::TwoWriters,
    ];

    fn plain_name(self) -> &'static str {
        match self {
            Self::MutexPair => "mutex-pair",
            Self::Read => "read",
            Self::ReadWrite => "read-write",
            Self::Write => "write",
            Self::Slice => "slice",
            Self::View => "view",
            Self::Await => "await",
            Self::TenBuffers => "ten-buffers",
            Self::Submit => "submit",
            Self::NewBuffer => "new-buffer",
            Self::TwoMutexes => "two-mutexes",
            Self::OneMutex => "one-mutex",
            Self::TwoBuffers => "two-buffers",
            Self::TwoReaders => "two-readers",
            Self::TwoWriters => "two-writers",
            Self::Ranges(_) => "ranges",
            Self::Buffers(_) => "buffers",
            Self::Held(_) => "held",
        }
    }

    /// Makes what the operations need.
    ///
    /// # Errors
    /// Those of the data layer, if memory is short.
    pub fn prepare(self) -> Result<Prepared, Failed> {
        let platform = platform()?;
        let buffers = match self {
            Self::Ranges(ranges) => vec![of_ranges(&platform, ranges)?],
            Self::Buffers(buffers) => written(&platform, buffers)?,
            Self::TenBuffers => written(&platform, 10)?,
            _ => written(&platform, 2)?,
        };
        Ok(Prepared { program: self, platform, buffers, mutexes: <_>::default() })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plain_name())?;
        match self {
            Self::Ranges(count) | Self::Buffers(count) | Self::Held(count) => write!(f, ":{count}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Program {
    type Err = UnknownProgram;

    fn from_str(text: &str) -> Result<Self, UnknownProgram> {
        let unknown = || UnknownProgram { given: text.to_owned() };
        if let Some((name, count)) = text.split_once(':') {
            let (_, program) = COUNTED.into_iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
            let count = count.parse().ok().filter(|count| *count > 0).ok_or_else(unknown)?;
            return Ok(program(count));
        }
        Self::PLAIN.into_iter().find(|program| program.plain_name() == text).ok_or_else(unknown)
    }
}

/// A program that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProgram {
    /// The name that was given.
    pub given: String,
}

impl fmt::Display for UnknownProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no program {:?}; there are", self.given)?;
        Program::PLAIN.iter().try_for_each(|program| write!(f, " {program},"))?;
        f.write_str(" and, with a number above 0,")?;
        COUNTED
            .iter()
            .enumerate()
            .try_for_each(|(place, (name, _))| write!(f, "{} {name}:N", if place == 0 { "" } else { "," }))
    }
}

impl Error for UnknownProgram {}

/// The failure of a program.
pub type Failed = Box<dyn Error + Send + Sync>;

/// A program that is ready to be measured.
#[derive(Debug)]
pub struct Prepared {
    program: Program,
    platform: Platform,
    buffers: Vec<RawBuffer>,
    mutexes: [Apart; 2],
}

/// A mutex with cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(256))]
struct Apart(Mutex<u64>);

impl Prepared {
    /// Returns the number of buffers that the operations name.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// Carries out so many operations, each thread as many. Returns their time, of two threads the mean.
    ///
    /// # Errors
    /// Those of the data layer.
    pub fn run(&self, operations: u64) -> Result<Duration, Failed> {
        let Self { platform, buffers, mutexes, .. } = self;
        let (one, other) = (&buffers[0], buffers.last().unwrap_or(&buffers[0]));
        match self.program {
            Program::MutexPair => timed(operations, || add_one(&mutexes[0])),
            Program::Read => timed(operations, || read(platform, one)),
            Program::ReadWrite => {
                timed(operations, || platform.acquire(CPU).read_write(black_box(one)).wait()?.release())
            }
            Program::Write => timed(operations, || write(platform, one)),
            Program::Slice => timed(operations, || {
                let grants = platform.acquire(CPU).read(black_box(one)).wait()?;
                let viewed = |cause| AcquireError::View { buffer: one.name(), cause };
                black_box(grants.slice::<u8>(one).map_err(viewed)?);
                grants.release()
            }),
            Program::View => {
                let buffer = platform.buffer_from(vec![0_u8; BYTES as usize])?;
                timed(operations, || black_box(&buffer).read().map(|view| drop(black_box(view))))
            }
            Program::Await => timed(operations, || {
                let future = pin!(platform.acquire(CPU).read(black_box(one)).into_future());
                match future.poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(grants) => grants?.release(),
                    Poll::Pending => {
                        Err(AcquireError::Busy { buffer: one.name(), reason: BusyReason::Queue })
                    }
                }
            }),
            Program::TenBuffers => timed(operations, || {
                let all = buffers.iter().fold(platform.acquire(CPU), |all, buffer| all.read(buffer));
                all.wait()?.release()
            }),
            Program::Submit => submitted(platform, [one, other], operations),
            Program::NewBuffer => timed(operations, || {
                drop(black_box(platform.raw_buffer(BYTES).build()?));
                Ok::<_, Failed>(())
            }),
            Program::TwoMutexes => on_two_threads(operations, [&mutexes[0], &mutexes[1]], add_one),
            Program::OneMutex => on_two_threads(operations, [&mutexes[0]; 2], add_one),
            Program::TwoBuffers => on_two_threads(operations, [one, other], |buffer| read(platform, buffer)),
            Program::TwoReaders => on_two_threads(operations, [one, one], |buffer| read(platform, buffer)),
            Program::TwoWriters => on_two_threads(operations, [one, one], |buffer| write(platform, buffer)),
            Program::Ranges(ranges) => {
                let part = range(one, ranges / 2);
                timed(operations, || platform.acquire(CPU).read(black_box(&part)).wait()?.release())
            }
            Program::Held(held) => {
                // Only meanwhile, because they make every acquire on this thread slower.
                let held = (0..held).map(|_| platform.acquire(CPU).read(one).wait());
                let held: Vec<Grants> = held.collect::<Result<_, _>>()?;
                let time = timed(operations, || read(platform, one));
                held.into_iter().try_for_each(Grants::release)?;
                time
            }
            Program::Buffers(_) => {
                let mut next = buffers.iter().cycle();
                timed(operations, || next.next().map_or(Ok(()), |buffer| read(platform, buffer)))
            }
        }
    }
}

#[inline(always)]
fn add_one(mutex: &Apart) -> Result<(), AcquireError> {
    *black_box(mutex).0.lock() += 1;
    Ok(())
}

#[inline(always)]
fn read(platform: &Platform, buffer: &RawBuffer) -> Result<(), AcquireError> {
    platform.acquire(CPU).read(black_box(buffer)).wait()?.release()
}

#[inline(always)]
fn write(platform: &Platform, buffer: &RawBuffer) -> Result<(), AcquireError> {
    platform.acquire(CPU).write(black_box(buffer)).wait()?.release()
}

/// Returns a platform with main memory alone.
fn platform() -> Result<Platform, Failed> {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    Ok(builder.build()?)
}

/// Returns buffers whose bytes are valid.
fn written(platform: &Platform, count: u32) -> Result<Vec<RawBuffer>, Failed> {
    let one = |_| -> Result<RawBuffer, Failed> {
        let buffer = platform.raw_buffer(BYTES).build()?;
        write(platform, &buffer)?;
        Ok(buffer)
    };
    (0..count).map(one).collect()
}

/// Returns a buffer with ranges that are committed one by one.
fn of_ranges(platform: &Platform, ranges: u32) -> Result<RawBuffer, Failed> {
    let buffer = platform.raw_buffer(u64::from(ranges) * RANGE_BYTES).build()?;
    for number in 0..ranges {
        platform.acquire(CPU).write(&range(&buffer, number)).wait()?.release()?;
    }
    Ok(buffer)
}

fn range(buffer: &RawBuffer, number: u32) -> RawRange {
    let start = u64::from(number) * RANGE_BYTES;
    buffer.range(start..start + RANGE_BYTES / 2)
}

#[inline(always)]
fn timed<E: Into<Failed>>(
    operations: u64,
    mut operation: impl FnMut() -> Result<(), E>,
) -> Result<Duration, Failed> {
    let begun = Instant::now();
    for _ in 0..operations {
        operation().map_err(Into::into)?;
    }
    Ok(begun.elapsed())
}

/// Carries out the operations on two threads, which begin together.
fn on_two_threads<T: Sync>(
    operations: u64,
    of: [&T; 2],
    operation: impl Fn(&T) -> Result<(), AcquireError> + Sync,
) -> Result<Duration, Failed> {
    let (begin, operation) = (Barrier::new(2), &operation);
    let times = thread::scope(|scope| {
        let threads = of.map(|of| {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                timed(operations, || operation(of))
            })
        });
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    });
    let [one, other] = times;
    Ok((one? + other?) / 2)
}

/// Memory that a program uses per object, as the system counts it: with what the allocator adds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Footprint {
    /// A buffer without storage.
    pub buffer_bytes: f64,
    /// Its storage in main memory, without the contents.
    pub storage_bytes: f64,
    /// A range of a buffer whose neighbours have other contents.
    pub range_bytes: f64,
}

impl Footprint {
    /// Measures many objects, which should be the first of the process: memory that was freed before is used
    /// again, and is then not counted. Returns `None` on systems that do not tell the memory of a process.
    ///
    /// # Errors
    /// Those of the data layer, if memory is short.
    pub fn measured() -> Result<Option<Self>, Failed> {
        /// Number of objects.
        const COUNT: u32 = 1 << 16;

        let platform = platform()?;
        let mut buffers = Vec::with_capacity(COUNT as usize);
        let per_object = |make: &mut dyn FnMut(u32) -> Result<(), Failed>| -> Result<Option<f64>, Failed> {
            let Some(before) = resident_bytes() else { return Ok(None) };
            (0..COUNT).try_for_each(make)?;
            let grown = |now: u64| now.saturating_sub(before) as f64 / f64::from(COUNT);
            Ok(resident_bytes().map(grown))
        };
        // Pages of the list count before the buffers.
        buffers.resize_with(COUNT as usize, || None);
        let made = per_object(&mut |number| {
            buffers[number as usize] = Some(platform.raw_buffer(BYTES).build()?);
            Ok(())
        })?;
        let buffers: Vec<RawBuffer> = buffers.into_iter().flatten().collect();
        let stored = per_object(&mut |number| Ok(write(&platform, &buffers[number as usize])?))?;
        let buffer = platform.raw_buffer(u64::from(COUNT) * RANGE_BYTES).build()?;
        let ranges = per_object(&mut |number| {
            Ok(platform.acquire(CPU).write(&range(&buffer, number)).wait()?.release()?)
        })?;
        let (Some(made), Some(stored), Some(ranges)) = (made, stored, ranges) else { return Ok(None) };
        Ok(Some(Self {
            buffer_bytes: made,
            storage_bytes: stored - BYTES as f64,
            // There are two segments for each: one with contents, and one without.
            range_bytes: ranges / 2.0,
        }))
    }
}

/// Returns the memory that the process alone uses now.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(|kibibytes: u64| kibibytes * 1024)
}

/// A kernel that does nothing, in no time.
struct Nothing(Arc<str>);

impl Launcher for Nothing {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn label(&self) -> Arc<str> {
        self.0.clone()
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn launch(&self, _: &Launch<'_>, _: &mut Grants) -> Result<Fence, LaunchError> {
        Ok(Fence::done(0))
    }
}

/// Submits kernels in batches. Returns the time of the submissions alone.
fn submitted(platform: &Platform, [from, to]: [&RawBuffer; 2], kernels: u64) -> Result<Duration, Failed> {
    let kernel = Arc::new(Nothing("nothing".into()));
    let mut time = Duration::ZERO;
    let mut left = kernels;
    while left > 0 {
        let batch = left.min(BATCH);
        time += timed(batch, || -> Result<(), SubmitError> {
            let submit = platform.submit(CPU, &kernel).read(from).read_write(to);
            submit.items(BYTES).map(drop::<Submission>)
        })?;
        platform.settle(CPU)?;
        left -= batch;
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name is that of the program which prints it.
    #[test]
    fn programs_are_known_by_their_names() {
        let counted = COUNTED.map(|(_, program)| program(17));
        for program in Program::PLAIN.into_iter().chain(counted) {
            assert_eq!(program.to_string().parse(), Ok(program));
        }
        for unknown in ["", "reads", "read:2", "held", "held:0", "held:-1", "ranges:4294967296", "none:1"] {
            let refused = unknown.parse::<Program>().expect_err("there is no such program").to_string();
            assert!(refused.contains(&format!("{unknown:?}")) && refused.contains("held:N"), "{refused}");
        }
    }

    /// Each program carries out its operations, and leaves nothing behind that a second run would wait for.
    #[test]
    fn programs_can_be_repeated() {
        let counted = COUNTED.map(|(_, program)| program(17));
        for program in Program::PLAIN.into_iter().chain(counted) {
            let prepared = program.prepare().expect("there is memory");
            for operations in [0, 1, 20] {
                prepared.run(operations).unwrap_or_else(|error| panic!("{program}: {error}"));
            }
        }
    }
}
