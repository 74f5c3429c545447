//! One device through the runtime beside the same kernel without DML: the overhead of co-execution on a
//! single device.
//!
//! ```text
//!   Bench::open(device) ─▶ edge_for(length) ─▶ measure ─┬─ by hand: threads, plain OpenCL, plain CUDA
//!                                                       └─ Coexecutor over this device alone
//! ```
//! The kernel is [`matmul`]. It is regular and its results are exact, so both sides are compared bit by bit.
//!
//! # Invariants
//! 1. **Both sides do the same work**: the same kernel with the same work-groups over the same rows of the
//!    same matrices, on the same number of threads or the same device.
//! 2. **Both sides time the same interval**: from inputs in the host's memory to a result that the host can
//!    read. Devices are opened, kernels built and buffers made before it.
//! 3. **The hand-written program is what a good programmer writes for this kind of device.** On a device that
//!    shares the host's memory, buffers stand on that memory and nothing is copied. Elsewhere inputs are
//!    written, the result is read, and the host waits once for all of it. For a CUDA GPU the host's side is
//!    page-locked memory.
//! 4. **Results are compared after every pair**, and the reference checks DML's at the end. DML's result is
//!    overwritten before each run.
//!
//! # Source
//! "Automatic OpenCL code generation for multi-device heterogeneous architectures": a single device reaches
//! 0.98 to 1.00 of native code.

mod hand;

use crate::by_hand::{self, ByHandError};
use crate::matmul;
use crate::prepare::{Input, PrepareError, Prepared, VerifyError, Workload};
use dml_arenas::launch::Team;
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, Sharing};
use dml_core::{AcquireError, ArenaKind, ConfigError, DeviceId, Platform, ViewError};
use dml_scheduler::metrics::Summary;
use dml_scheduler::{Coexecutor, RunError};
use hand::{Form, Hand};
use std::time::{Duration, Instant};
use thiserror::Error;

/// A duration of the hand-written run for which there is a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Length {
    /// A millisecond.
    Millisecond,
    /// Fifty milliseconds.
    FiftyMilliseconds,
    /// A second.
    Second,
}

impl Length {
    /// Every length, the shortest first.
    pub const ALL: [Self; 3] = [Self::Millisecond, Self::FiftyMilliseconds, Self::Second];

    /// Returns the length's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Millisecond => "1 ms",
            Self::FiftyMilliseconds => "50 ms",
            Self::Second => "1 s",
        }
    }

    /// Returns the length as a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        match self {
            Self::Millisecond => Duration::from_millis(1),
            Self::FiftyMilliseconds => Duration::from_millis(50),
            Self::Second => Duration::from_secs(1),
        }
    }

    /// Returns the maximum ratio of DML's time to that of the hand-written program.
    #[must_use]
    pub const fn goal(self) -> f64 {
        match self {
            Self::Millisecond => 1.05,
            Self::FiftyMilliseconds => 1.02,
            Self::Second => 1.01,
        }
    }

    /// Returns the number of pairs per round. Short runs have more, so that their figures are as steady as
    /// those of long runs.
    #[must_use]
    pub const fn pairs_per_round(self) -> u32 {
        match self {
            Self::Millisecond => 10,
            Self::FiftyMilliseconds => 2,
            Self::Second => 1,
        }
    }
}

/// One run of each side, back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pair {
    /// Time of the hand-written program.
    pub hand: Duration,
    /// Time of DML.
    pub dml: Duration,
}

impl Pair {
    /// Makes a pair of these times.
    #[must_use]
    pub const fn new(hand: Duration, dml: Duration) -> Self {
        Self { hand, dml }
    }

    /// Returns the time of DML over that of the hand-written program.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.dml.as_secs_f64() / self.hand.as_secs_f64()
    }

    /// Returns the additional seconds of DML; negative if it takes less.
    #[must_use]
    pub fn more(&self) -> f64 {
        self.dml.as_secs_f64() - self.hand.as_secs_f64()
    }
}

/// The measurements of one device at one size.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// The rows and columns of the matrices.
    pub edge: u64,
    /// The counted pairs in order of measurement, at least one. None has a hand-written time of zero.
    pairs: Vec<Pair>,
}

impl Measured {
    /// Makes measurements of these pairs; `None` without a pair, or if a hand-written time is zero.
    #[must_use]
    pub fn new(edge: u64, pairs: Vec<Pair>) -> Option<Self> {
        let says_something = !pairs.is_empty() && pairs.iter().all(|pair| !pair.hand.is_zero());
        says_something.then_some(Self { edge, pairs })
    }

    /// Returns the pairs in order of measurement: at least one, and none with a hand-written time of zero.
    #[must_use]
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Returns the seconds of the hand-written program.
    #[must_use]
    pub fn hand(&self) -> Summary {
        self.summary(|pair| pair.hand.as_secs_f64())
    }

    /// Returns the seconds of DML.
    #[must_use]
    pub fn dml(&self) -> Summary {
        self.summary(|pair| pair.dml.as_secs_f64())
    }

    /// Returns the ratios within the pairs. Their median is the figure, because a disturbance of a whole pair
    /// does not change it.
    #[must_use]
    pub fn ratio(&self) -> Summary {
        self.summary(Pair::ratio)
    }

    /// Returns the additional seconds of DML within a pair.
    #[must_use]
    pub fn more(&self) -> Summary {
        self.summary(Pair::more)
    }

    fn summary(&self, figure: impl Fn(&Pair) -> f64) -> Summary {
        let figures: Vec<f64> = self.pairs.iter().map(figure).collect();
        Summary::of(&figures).expect("at least one pair counts, and runs take time")
    }
}

/// Why a device could not be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SingleError {
    /// There is no hand-written program for the device.
    #[error("{device} has no hand-written form: {reason}")]
    NoHandForm {
        /// The device's name.
        device: String,
        /// The reason.
        reason: &'static str,
    },
    /// The device cannot be opened.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The platform cannot be made.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The workload cannot be prepared.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// Zero pairs were requested.
    #[error("{device} cannot be measured in 0 pairs: at least 1 is needed")]
    NoPairs {
        /// The device's name.
        device: String,
    },
    /// A hand-written run took too little time for the clock.
    #[error("{device}, matrices of edge {edge}: a hand-written run is too short for the clock")]
    NoTime {
        /// The device's name.
        device: String,
        /// The rows and columns of the matrices.
        edge: u64,
    },
    /// The threads of the hand-written program cannot be started.
    #[error("cannot start {threads} threads for the hand-written program: {cause}")]
    Threads {
        /// Number of threads.
        threads: u32,
        /// Error of the operating system.
        cause: String,
    },
    /// The hand-written program failed.
    #[error("the hand-written program failed: {0}")]
    Hand(#[from] ByHandError),
    /// The run on DML failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The result cannot be acquired.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The result cannot be read.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A unit failed, so the time is not that of a complete run.
    #[error("{device} failed in a timed run: {cause}")]
    Failed {
        /// The device's name.
        device: String,
        /// Error of the unit.
        cause: String,
    },
    /// The results of both sides differ.
    #[error("{device}, matrices of edge {edge}: element {element} is {by_hand} by hand and {dml} on DML")]
    Differs {
        /// The device's name.
        device: String,
        /// The rows and columns of the matrices.
        edge: u64,
        /// The first element that differs, row-major.
        element: usize,
        /// Its value in the hand-written result.
        by_hand: f32,
        /// Its value in DML's result.
        dml: f32,
    },
    /// The result of DML is wrong.
    #[error("{device}, matrices of edge {edge}: the result is wrong: {cause}")]
    Wrong {
        /// The device's name.
        device: String,
        /// The rows and columns of the matrices.
        edge: u64,
        /// The finding of the check.
        cause: Box<VerifyError>,
    },
}

/// The devices of a machine: those that can be measured, and the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Devices {
    /// Devices with a hand-written form, in the platform's order.
    pub measured: Vec<String>,
    /// The other devices, each with the reason.
    pub left_out: Vec<(String, &'static str)>,
}

impl Devices {
    /// Finds all devices on which kernels run.
    ///
    /// # Errors
    /// [`SingleError::Discover`] and [`SingleError::Config`].
    pub fn of_machine() -> Result<Self, SingleError> {
        let platform = Platform::builder().discover_with(&DiscoverOptions::default())?.build()?;
        let mut devices = Self::default();
        for (device, desc) in (0..).map(DeviceId).zip(platform.devices()) {
            match form(&platform, device) {
                Ok(_) => devices.measured.push(desc.name.to_string()),
                Err(reason) => devices.left_out.push((desc.name.to_string(), reason)),
            }
        }
        Ok(devices)
    }
}

/// Returns the form of the hand-written program for a device, or the reason why there is none.
fn form(platform: &Platform, device: DeviceId) -> Result<Form, &'static str> {
    let desc = platform.device_desc(device);
    if platform.host() == Some(device) {
        return Ok(Form::Threads(desc.compute_units));
    }
    if by_hand::language(platform, device).is_some() {
        return Ok(Form::Device(device));
    }
    let arena = platform.home(device).map(|home| platform.arena(home)).ok_or("it has no memory")?;
    Err(match arena.desc().kind {
        ArenaKind("offload") => "a worker is only reachable through DML",
        _ => "there is no program for its memory",
    })
}

/// The storage of a device's buffers on DML.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Memory {
    /// The storage that discovery chooses by default.
    #[default]
    Found,
    /// Main memory, if the device can be bound to it (`Sharing::bound`). A hand-written program for a
    /// device that shares memory uses it, too.
    Bound,
    /// Page-locked main memory, for the transfers of a CUDA GPU (`DiscoverOptions::cuda_pinned`). The
    /// hand-written program uses it, too.
    PageLocked {
        /// Maximum size of main memory's buffers, in bytes.
        limit_bytes: u64,
    },
}

/// One device, ready to be measured.
#[derive(Debug)]
pub struct Bench {
    platform: Platform,
    device: DeviceId,
    form: Form,
}

impl Bench {
    /// Opens a device on a platform of its own.
    ///
    /// # Errors
    /// [`SingleError::Discover`] for a device that does not exist, [`SingleError::NoHandForm`] for one
    /// without a hand-written form, [`SingleError::Config`]; [`SingleError::Prepare`] if threads cannot be
    /// started.
    pub fn open(device: &str, memory: Memory) -> Result<Self, SingleError> {
        Team::start_global().map_err(PrepareError::from)?;
        let options = DiscoverOptions::default().only([device]);
        let options = match memory {
            Memory::Bound if device.starts_with("opencl:") => options.sharing(Sharing::bound(device)),
            Memory::PageLocked { limit_bytes } if device.starts_with("cuda:") => {
                options.sharing(Sharing::page_locked(limit_bytes))
            }
            _ => options,
        };
        let platform = Platform::builder().discover_with(&options)?.build()?;
        let name = device;
        let device = platform.device(name)?;
        let form = form(&platform, device)
            .map_err(|reason| SingleError::NoHandForm { device: name.to_owned(), reason })?;
        Ok(Self { platform, device, form })
    }

    /// Returns the device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.platform.device_desc(self.device).name
    }

    /// Returns the vendor's name of the device.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.platform.device_desc(self.device).description
    }

    /// Returns the number of compute units that both sides use.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.platform.device_desc(self.device).compute_units
    }

    /// Finds the edge of the matrices whose product takes about `length` in the hand-written program. It
    /// tries several edges, each a few times.
    ///
    /// # Errors
    /// The errors of the hand-written program; [`SingleError::Prepare`] if memory is short.
    pub fn edge_for(&self, length: Duration) -> Result<u64, SingleError> {
        fitting_edge(length, |edge| {
            let mut hand = Hand::new(&self.platform, self.form, edge)?;
            // The first run includes one-time costs.
            let first = hand.run()?;
            let again = if first > LONG { 1 } else { 5 };
            (0..again).try_fold(first, |least, _| Ok(least.min(hand.run()?)))
        })
    }

    /// Runs both sides in turn on matrices of this edge: a warm-up pair, then `pairs` counted ones. The sides
    /// alternate in beginning a pair. Calls `after_pair` after each pair. Compares the results after each
    /// pair, and checks DML's at the end.
    ///
    /// # Errors
    /// [`SingleError::Differs`], [`SingleError::Wrong`], [`SingleError::NoPairs`], [`SingleError::NoTime`];
    /// the error that keeps a side from running.
    pub fn measure(&self, edge: u64, pairs: u32, after_pair: impl FnMut()) -> Result<Measured, SingleError> {
        if pairs == 0 {
            return Err(SingleError::NoPairs { device: self.name().to_owned() });
        }
        let prepared = Workload::Matmul.prepare(&self.platform, &[self.device], &Input::Size(edge))?;
        let mut both = Both {
            bench: self,
            edge,
            hand: Hand::new(&self.platform, self.form, edge)?,
            coexecutor: Coexecutor::new(&self.platform).devices([self.device]),
            prepared,
        };
        let pairs = take_turns(&mut both, pairs, after_pair)?;
        let wrong = |cause| {
            let cause = Box::new(cause);
            SingleError::Wrong { device: self.name().to_owned(), edge, cause }
        };
        both.prepared.verify().map_err(wrong)?;
        Measured::new(edge, pairs).ok_or_else(|| SingleError::NoTime { device: self.name().to_owned(), edge })
    }
}

/// Time of a run above which the search for a size repeats it once instead of five times.
const LONG: Duration = Duration::from_millis(200);
/// Edge at which the search begins.
const FIRST_EDGE: u64 = 32;
/// Maximum number of edges that the search tries.
const MOST_TRIES: u32 = 24;
/// Maximum ratio between the measured time and the requested one, in either direction.
const CLOSE: f64 = 1.1;

/// Returns the edge for which `time` returns about `length`. It assumes that times grow with the third power
/// of the edge.
fn fitting_edge<E>(length: Duration, mut time: impl FnMut(u64) -> Result<Duration, E>) -> Result<u64, E> {
    let mut edge = FIRST_EDGE;
    for _ in 0..MOST_TRIES {
        let taken = time(edge)?.as_secs_f64().max(1e-9);
        let factor = length.as_secs_f64() / taken;
        if (1.0 / CLOSE..=CLOSE).contains(&factor) {
            break;
        }
        // A short run predicts a long one poorly, so a step is at most a factor of 4.
        let next = edge as f64 * factor.cbrt().clamp(0.25, 4.0);
        let next = (next.round() as u64).clamp(1, matmul::Problem::LARGEST_EDGE);
        if next == edge {
            break;
        }
        edge = next;
    }
    Ok(edge)
}

/// Two sides that are run in pairs.
trait Sides {
    type Error;

    /// Runs the hand-written program once, and returns the time.
    fn hand(&mut self) -> Result<Duration, Self::Error>;

    /// Runs the kernel on DML once, and returns the time.
    fn dml(&mut self) -> Result<Duration, Self::Error>;

    /// Compares the results of the last two runs.
    fn compare(&self) -> Result<(), Self::Error>;
}

/// Runs a warm-up pair, then `pairs` counted ones. Each side begins every second pair.
fn take_turns<S: Sides>(
    sides: &mut S,
    pairs: u32,
    mut after_pair: impl FnMut(),
) -> Result<Vec<Pair>, S::Error> {
    let mut counted = Vec::new();
    for number in 0..=pairs {
        let pair = if number % 2 == 0 {
            let hand = sides.hand()?;
            Pair { hand, dml: sides.dml()? }
        } else {
            let dml = sides.dml()?;
            Pair { hand: sides.hand()?, dml }
        };
        sides.compare()?;
        if number > 0 {
            counted.push(pair);
        }
        after_pair();
    }
    Ok(counted)
}

/// Both sides of one device and size.
struct Both<'a> {
    bench: &'a Bench,
    edge: u64,
    hand: Hand,
    coexecutor: Coexecutor,
    prepared: Box<dyn Prepared>,
}

impl Sides for Both<'_> {
    type Error = SingleError;

    fn hand(&mut self) -> Result<Duration, SingleError> {
        self.hand.run()
    }

    fn dml(&mut self) -> Result<Duration, SingleError> {
        self.prepared.reset()?;
        let begun = Instant::now();
        let report = self.coexecutor.run(self.prepared.kernel(), self.prepared.items())?;
        self.prepared.collect()?;
        let taken = begun.elapsed();
        match report.failures.first() {
            None => Ok(taken),
            Some(failure) => Err(SingleError::Failed {
                device: self.bench.name().to_owned(),
                cause: failure.message.clone(),
            }),
        }
    }

    fn compare(&self) -> Result<(), SingleError> {
        let by_hand: &[f32] = self.hand.output();
        let host = self.bench.platform.host().ok_or(AcquireError::NoArena { device: self.bench.device })?;
        for output in self.prepared.outputs() {
            let grants = self.bench.platform.acquire(host).read(output).wait()?;
            let dml: &[f32] = grants.slice(output)?;
            differs(by_hand, dml).map_or(Ok(()), |(element, by_hand, dml)| {
                let device = self.bench.name().to_owned();
                Err(SingleError::Differs { device, edge: self.edge, element, by_hand, dml })
            })?;
        }
        Ok(())
    }
}

/// Returns the first element whose bits differ, with both of its values. A missing value is NaN.
fn differs(by_hand: &[f32], dml: &[f32]) -> Option<(usize, f32, f32)> {
    let value = |of: &[f32], element: usize| of.get(element).copied().unwrap_or(f32::NAN);
    (0..by_hand.len().max(dml.len()))
        .find(|&element| {
            by_hand.get(element).map(|it| it.to_bits()) != dml.get(element).map(|it| it.to_bits())
        })
        .map(|element| (element, value(by_hand, element), value(dml, element)))
}

#[cfg(test)]
mod tests;
