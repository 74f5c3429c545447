//! Table 1 of the paper on the data layer: three workloads, each written by hand against OpenCL or CUDA and
//! on the layer, with the calls and the time of each program.
//!
//! ```text
//!   Bench::open(row, device) ─┬─ hand, hand_* ── two programs directly on the framework, with counted calls
//!                             └─ noopt, opt ──── one program on two platforms, with the platforms' counters
//!        │
//!        └─▶ measure: a warm-up round, then rounds in which every mode runs once, on the same inputs
//! ```
//! | mode | on OpenCL | on CUDA |
//! |---|---|---|
//! | hand | buffers on the device; inputs are written, the result is mapped or read, as in the paper | the same; the result is read |
//! | hand_bound | buffers over the application's vectors, mapped for the host: suits a device that shares the memory | |
//! | hand_pinned | | as hand, but the application has page-locked memory: suits a device with a memory of its own |
//! | noopt | the layer with one mechanism: the device's memory is mapped, and the processor copies | the layer over the application's vectors |
//! | opt | the layer with the device bound to main memory | the layer with buffers of page-locked memory |
//!
//! # Invariants
//! 1. **Every mode times the same interval**: from inputs in vectors of the application to a result that the
//!    application can read. Making buffers on the device counts, releasing them does not. Opening devices and
//!    building kernels does not count.
//! 2. **Every mode finds its vectors in the same state**: written right before the run, inputs by a copy.
//!    Only a result that stays in a buffer of the device has no vector. Page-locked memory, by hand or as
//!    buffers of the layer, is made before the interval.
//! 3. **Every mode runs the same kernels** with the same work-groups.
//! 4. **A stale result does not pass for a new one**: in the first round each mode has a problem of its own.
//!
//! # Source
//! "Abstract Representation of Shared Data for Heterogeneous Computing", section 5 and table 1.

#[allow(unsafe_code, reason = "launching a kernel on the machine's own memory is unsafe")]
mod hand;
#[allow(unsafe_code, reason = "launching a kernel on the machine's own memory is unsafe")]
mod layered;

use crate::by_hand::{self, ByHandError};
use crate::check::Mismatch;
pub use crate::operations::Operations;
use crate::prepare::Input;
use crate::{bfs, matmul, vecadd};
use dml_arenas::launch::{BuildError, HostError, Team};
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, Mechanisms, Sharing};
use dml_core::{AcquireError, ConfigError, LaunchError, Platform, TransferError};
use dml_scheduler::metrics::Summary;
use layered::Layered;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// Default device of the table.
pub const DEVICE: &str = "opencl:0";
/// Maximum page-locked memory of the layer's buffers, in bytes: more than any row needs.
const PINNED_BYTES: u64 = 2 << 30;
/// Orders of the modes in four rounds, as indices into [`Framework::modes`]. Each mode takes each place once,
/// and follows each other mode once. So no mode gains from the state that its predecessor leaves.
const ORDERS: [[usize; 4]; 4] = [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]];
/// Seed of the inputs. Its value is arbitrary.
const SEED: u64 = 0x7AB_1E1;

/// A workload of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Row {
    /// The sum of two vectors.
    Vecadd,
    /// The product of two matrices.
    Matmul,
    /// A breadth-first search: two kernels in a loop, and a flag that the host reads.
    Bfs,
}

impl Row {
    /// Every row, in the order of the table.
    pub const ALL: [Self; 3] = [Self::Vecadd, Self::Matmul, Self::Bfs];

    /// Returns the row's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vecadd => "vecadd",
            Self::Matmul => "matmul",
            Self::Bfs => "bfs",
        }
    }

    /// Returns the paper's figures for a mode; `None` for [`Mode::HandBound`] and [`Mode::HandPinned`], which
    /// are not the paper's.
    #[must_use]
    pub fn published(self, mode: Mode) -> Option<Published> {
        // Milliseconds; map, unmap, read, write, kernel; alloc, bind, memcpy.
        type Cells = (f64, [u64; 5], [Option<u64>; 3]);
        let layer = |alloc, bind, copy| [Some(alloc), bind, Some(copy)];
        let cells: Cells = match (self, mode) {
            (_, Mode::HandBound | Mode::HandPinned) => return None,
            (Self::Vecadd, Mode::Hand) => (31.74, [1, 0, 0, 2, 1], [None; 3]),
            (Self::Vecadd, Mode::Noopt) => (41.20, [3, 2, 0, 0, 1], layer(6, None, 3)),
            (Self::Vecadd, Mode::Opt) => (32.44, [1, 0, 0, 2, 1], layer(3, Some(3), 0)),
            (Self::Matmul, Mode::Hand) => (1011.0, [0, 0, 1, 2, 1], [None; 3]),
            (Self::Matmul, Mode::Noopt) => (1023.0, [3, 2, 0, 0, 1], layer(6, None, 3)),
            (Self::Matmul, Mode::Opt) => (1015.0, [0, 0, 1, 2, 1], layer(3, Some(3), 0)),
            (Self::Bfs, Mode::Hand) => (149.57, [0, 0, 13, 18, 24], [None; 3]),
            (Self::Bfs, Mode::Noopt) => (156.31, [20, 18, 0, 0, 24], layer(14, None, 31)),
            (Self::Bfs, Mode::Opt) => (154.54, [0, 0, 13, 18, 24], layer(7, Some(7), 0)),
        };
        let (milliseconds, [map, unmap, read, write, kernel], [alloc, bind, copy]) = cells;
        let seconds = milliseconds / 1e3;
        Some(Published { seconds, map, unmap, read, write, kernel, alloc, bind, copy })
    }

    /// Returns the source and the names of the kernels in CUDA C.
    #[cfg(feature = "cuda")]
    fn cuda_kernels(self) -> (&'static str, &'static [&'static str]) {
        let source = match self {
            Self::Vecadd => vecadd::CUDA_SOURCE,
            Self::Matmul => matmul::CUDA_SOURCE,
            Self::Bfs => bfs::CUDA_SOURCE,
        };
        (source, self.kernels().1)
    }

    /// Returns the source and the names of the kernels in OpenCL C.
    fn kernels(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Vecadd => (vecadd::OPENCL_SOURCE, &[vecadd::OPENCL_KERNEL]),
            Self::Matmul => (matmul::OPENCL_SOURCE, &[matmul::OPENCL_KERNEL]),
            Self::Bfs => (bfs::OPENCL_SOURCE, &[bfs::OPENCL_VISIT, bfs::OPENCL_ADVANCE]),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The framework of the hand-written programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Framework {
    /// OpenCL.
    OpenCl,
    /// CUDA.
    Cuda,
}

impl Framework {
    /// Returns the modes of its devices, in the order of the table.
    #[must_use]
    pub const fn modes(self) -> [Mode; 4] {
        [Mode::Hand, self.suited(), Mode::Noopt, Mode::Opt]
    }

    /// Returns the hand-written mode that suits its devices.
    #[must_use]
    pub const fn suited(self) -> Mode {
        match self {
            Self::OpenCl => Mode::HandBound,
            Self::Cuda => Mode::HandPinned,
        }
    }

    /// Returns the options of the platforms of [`Mode::Noopt`] and [`Mode::Opt`], with this device alone.
    pub(crate) fn options(self, device: &str) -> [DiscoverOptions; 2] {
        let options = DiscoverOptions::default().only([device]).offload(0);
        match self {
            Self::OpenCl => {
                [options.clone().mechanisms(Mechanisms::Mapped), options.sharing(Sharing::bound(device))]
            }
            Self::Cuda => {
                let sharing = Sharing::page_locked(PINNED_BYTES).allow_binding(device);
                [options.clone(), options.sharing(sharing)]
            }
        }
    }

    /// Returns the framework of a device by the device's name.
    pub(crate) fn of(device: &str) -> Option<Self> {
        let (kind, number) = device.split_once(':')?;
        let framework = match kind {
            "opencl" => Self::OpenCl,
            "cuda" => Self::Cuda,
            _ => return None,
        };
        number.parse::<u32>().is_ok().then_some(framework)
    }
}

impl fmt::Display for Framework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenCl => "an OpenCL",
            Self::Cuda => "a CUDA",
        })
    }
}

/// A way to write a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Hand-written, with buffers of the device.
    Hand,
    /// Hand-written, with buffers over the application's vectors.
    HandBound,
    /// Hand-written, with page-locked memory on the host.
    HandPinned,
    /// On the layer, which only maps memory and copies. On CUDA over the application's vectors.
    Noopt,
    /// On the layer, with the device bound to main memory. On CUDA with buffers of page-locked memory, where
    /// the device uses in place the buffers that it touches once.
    Opt,
}

impl Mode {
    /// Returns the mode's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hand => "hand",
            Self::HandBound => "hand_bound",
            Self::HandPinned => "hand_pinned",
            Self::Noopt => "noopt",
            Self::Opt => "opt",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The paper's figures for one row and mode. The paper does not count the storage of hand-written programs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are those of `Operations`")]
pub struct Published {
    /// The mean of five runs.
    pub seconds: f64,
    pub map: u64,
    pub unmap: u64,
    pub read: u64,
    pub write: u64,
    pub kernel: u64,
    pub alloc: Option<u64>,
    pub bind: Option<u64>,
    pub copy: Option<u64>,
}

/// One run of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The time from inputs in vectors to a readable result.
    pub duration: Duration,
    /// The calls in that time.
    pub operations: Operations,
}

/// The counted runs of one mode.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Timed {
    /// The mode.
    pub mode: Mode,
    /// The time of each run, in seconds and in order.
    pub seconds: Vec<f64>,
    /// The calls of the first counted run. They are the same in all runs, except for [`Mode::Noopt`] on CUDA.
    pub operations: Operations,
}

/// All modes of one row, measured together.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// The row.
    pub row: Row,
    /// The sizes that describe the problem, by name.
    pub size: Vec<(&'static str, u64)>,
    /// One entry per mode of the device, in the order of [`Framework::modes`].
    pub modes: Vec<Timed>,
}

impl Measured {
    /// Returns the runs of a mode; `None` if the device does not have it.
    #[must_use]
    pub fn mode(&self, mode: Mode) -> Option<&Timed> {
        self.modes.iter().find(|timed| timed.mode == mode)
    }

    /// Returns the median, over the rounds, of the time of one mode over that of another in the same round;
    /// `None` if the device does not have both modes.
    #[must_use]
    pub fn ratio(&self, mode: Mode, over: Mode) -> Option<f64> {
        let pairs = self.mode(mode)?.seconds.iter().zip(&self.mode(over)?.seconds);
        let ratios: Vec<f64> = pairs.map(|(time, over)| time / over).collect();
        Some(Summary::of(&ratios).map_or(1.0, |summary| summary.median))
    }
}

/// Why the table could not be reproduced.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Table1Error {
    /// There are no programs for this kind of device.
    #[error("table1 compares programs on one OpenCL or CUDA device, not {device}")]
    NoProgram {
        /// The device's name.
        device: String,
    },
    /// The device does not exist.
    #[error("table1 needs {framework} device: {cause}")]
    Device {
        /// Framework of the device.
        framework: Framework,
        /// The reason.
        cause: ByHandError,
    },
    /// A hand-written program failed.
    #[error("the hand-written program failed: {0}")]
    Hand(#[from] ByHandError),
    /// The device cannot be opened with these options.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The platform or its buffers cannot be made.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The threads that make the problems cannot be started.
    #[error(transparent)]
    Threads(#[from] HostError),
    /// A kernel could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A buffer could not be acquired.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// A kernel could not be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A kernel failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The table does not have this size.
    #[error("{row} has no size {size}: it has tiny, small and paper")]
    Size {
        /// The row.
        row: Row,
        /// The requested size.
        size: String,
    },
    /// A result is wrong.
    #[error("the result of {row} in mode {mode} is wrong: {cause}")]
    Wrong {
        /// The row.
        row: Row,
        /// The mode.
        mode: Mode,
        /// The first wrong item.
        cause: Mismatch,
    },
    /// The calls of a mode differ between two runs.
    #[error("{row} in mode {mode} made other calls than in the first run: {now:?}, not {before:?}")]
    Unsteady {
        /// The row.
        row: Row,
        /// The mode.
        mode: Mode,
        /// The calls of the first counted run.
        before: Box<Operations>,
        /// The calls of the run that differs.
        now: Box<Operations>,
    },
}

/// The inputs of one run.
#[derive(Clone, Debug)]
enum Problem {
    Vecadd(vecadd::Problem),
    Matmul(matmul::Problem),
    Bfs(bfs::Problem),
}

impl Problem {
    fn generate(row: Row, size: Input<'_>, seed: u64) -> Result<Self, Table1Error> {
        let choose = |sizes: [u64; 3]| match size {
            Input::Tiny => Ok(sizes[0]),
            Input::Small => Ok(sizes[1]),
            Input::Paper => Ok(sizes[2]),
            other => Err(Table1Error::Size { row, size: format!("{other:?}") }),
        };
        let within = "the sizes of the table are within the limits";
        Ok(match row {
            Row::Vecadd => {
                let items = choose([vecadd::TINY, vecadd::SMALL, vecadd::PAPER].map(|size| size.items))?;
                Self::Vecadd(vecadd::Problem::generate(vecadd::Size { items }, seed))
            }
            Row::Matmul => {
                let edge = choose([matmul::TINY, matmul::SMALL, matmul::PAPER].map(|size| size.edge))?;
                Self::Matmul(matmul::Problem::generate(matmul::Size { edge }, seed).expect(within))
            }
            Row::Bfs => {
                let nodes = choose([bfs::TINY, bfs::SMALL, bfs::PAPER].map(|size| size.nodes))?;
                Self::Bfs(bfs::Problem::generate(bfs::Size { nodes }, seed).expect(within))
            }
        })
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Vecadd(problem) => vec![("items", problem.items())],
            Self::Matmul(problem) => vec![("edge", problem.items())],
            Self::Bfs(problem) => {
                let edges = problem.edges().len() as u64;
                vec![("nodes", problem.items()), ("edges", edges), ("levels", problem.levels())]
            }
        }
    }
}

/// The check of a run's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checking {
    /// Compares every item, after the end of the timed interval.
    All,
    /// Compares nothing.
    Nothing,
}

impl Checking {
    /// Checks a result of a row in a mode.
    fn of(
        self,
        (row, mode): (Row, Mode),
        check: impl FnOnce() -> Result<(), Mismatch>,
    ) -> Result<(), Table1Error> {
        match self {
            Self::All => check().map_err(|cause| Table1Error::Wrong { row, mode, cause }),
            Self::Nothing => Ok(()),
        }
    }
}

/// The hand-written programs.
#[derive(Debug)]
enum Hand {
    OpenCl(hand::Hand<by_hand::opencl::OpenCl>),
    #[cfg(feature = "cuda")]
    Cuda(hand::Hand<by_hand::cuda::Cuda>),
}

/// The programs of one row, ready to run.
#[derive(Debug)]
pub struct Bench {
    row: Row,
    framework: Framework,
    hand: Hand,
    noopt: Layered,
    opt: Layered,
}

impl Bench {
    /// Opens a device (`opencl:N` or `cuda:N`) for every mode, and builds the row's kernels.
    ///
    /// # Errors
    /// [`Table1Error::NoProgram`] for another kind of device; [`Table1Error::Device`] if there is no such
    /// device; [`Table1Error::Discover`] and [`Table1Error::Config`] if the layer cannot use it;
    /// [`Table1Error::Hand`] and [`Table1Error::Build`] for kernels that the driver refuses;
    /// [`Table1Error::Threads`] if threads cannot be started.
    pub fn open(row: Row, device: &str) -> Result<Self, Table1Error> {
        let no_program = || Table1Error::NoProgram { device: device.to_owned() };
        let framework = Framework::of(device).ok_or_else(no_program)?;
        Team::start_global()?;
        let [noopt, opt] = framework.options(device);
        let kernels = match framework {
            Framework::OpenCl => row.kernels(),
            #[cfg(feature = "cuda")]
            Framework::Cuda => row.cuda_kernels(),
            #[cfg(not(feature = "cuda"))]
            Framework::Cuda => return Err(no_program()),
        };
        let noopt = Layered::new(&noopt, Mode::Noopt, device, kernels).map_err(|error| match error {
            Table1Error::Discover(error @ DiscoverError::UnknownDevice { .. }) => {
                not_found(framework, device, &error)
            }
            error => error,
        })?;
        let opt = Layered::new(&opt, Mode::Opt, device, kernels)?;
        let hand = match framework {
            Framework::OpenCl => Hand::OpenCl(opt.by_hand(kernels)?),
            #[cfg(feature = "cuda")]
            Framework::Cuda => Hand::Cuda(opt.by_hand(kernels)?),
            #[cfg(not(feature = "cuda"))]
            Framework::Cuda => unreachable!("has no kernels"),
        };
        Ok(Self { row, framework, hand, noopt, opt })
    }

    /// Returns the framework of the device, which determines its modes.
    #[must_use]
    pub const fn framework(&self) -> Framework {
        self.framework
    }

    /// Returns the vendor's name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        self.opt.description()
    }

    /// Runs every mode once as a warm-up, then `runs` times in rounds. Four rounds have four orders, in which
    /// each mode takes each place and follows each other mode once. Calls `after_run` after each run. Checks
    /// the results of the warm-up and of the last round item by item.
    ///
    /// # Errors
    /// [`Table1Error::Wrong`] for a wrong result, [`Table1Error::Unsteady`] if a mode's calls change; the
    /// error that keeps a program from running; [`Table1Error::Size`] for a size that is not tiny, small or
    /// paper.
    pub fn measure(
        &mut self,
        size: Input<'_>,
        runs: u32,
        mut after_run: impl FnMut(Mode),
    ) -> Result<Measured, Table1Error> {
        let (row, modes) = (self.row, self.framework.modes());
        for (mode, seed) in modes.into_iter().zip(SEED + 1..) {
            self.run(mode, &Problem::generate(row, size, seed)?, Checking::All)?;
            after_run(mode);
        }
        let problem = Problem::generate(row, size, SEED)?;
        let mut timed: Vec<Vec<Run>> = vec![Vec::new(); modes.len()];
        for (round, order) in (1..=runs).zip(ORDERS.iter().cycle()) {
            let checking = if round == runs { Checking::All } else { Checking::Nothing };
            for index in *order {
                timed[index].push(self.run(modes[index], &problem, checking)?);
                after_run(modes[index]);
            }
        }
        let modes = modes.into_iter().zip(timed);
        let modes = modes.map(|(mode, runs)| summed_up(row, (self.framework, mode), &runs));
        Ok(Measured { row, size: problem.size(), modes: modes.collect::<Result<_, _>>()? })
    }

    fn run(&mut self, mode: Mode, problem: &Problem, checking: Checking) -> Result<Run, Table1Error> {
        match mode {
            Mode::Hand | Mode::HandBound | Mode::HandPinned => match &self.hand {
                Hand::OpenCl(hand) => hand.run(mode, problem, checking),
                #[cfg(feature = "cuda")]
                Hand::Cuda(hand) => hand.run(mode, problem, checking),
            },
            Mode::Noopt => self.noopt.run(problem, checking),
            Mode::Opt => self.opt.run(problem, checking),
        }
    }
}

/// Returns the error for a device that discovery does not find, with what is missing of its framework.
fn not_found(framework: Framework, device: &str, error: &DiscoverError) -> Table1Error {
    let found = Platform::builder().discover().ok().and_then(|builder| builder.build().ok());
    let missing = found.iter().flat_map(|platform| platform.unavailable());
    let reasons =
        missing.filter(|missing| device.starts_with(missing.backend)).map(|missing| &*missing.reason);
    let reasons: Vec<&str> = reasons.collect();
    let reason = if reasons.is_empty() { error.to_string() } else { reasons.join("; ") };
    Table1Error::Device { framework, cause: ByHandError::Device { device: device.to_owned(), reason } }
}

/// Summarizes the runs of a mode, and checks that all made the same calls. On CUDA a large vector in ordinary
/// memory is sent in pieces, whose number depends on the scratch memory available at the moment. So these
/// calls may differ.
fn summed_up(row: Row, (framework, mode): (Framework, Mode), runs: &[Run]) -> Result<Timed, Table1Error> {
    let operations = runs.first().map(|run| run.operations).unwrap_or_default();
    let is_in_pieces = framework == Framework::Cuda && mode == Mode::Noopt;
    if let Some(run) = runs.iter().find(|run| run.operations != operations && !is_in_pieces) {
        let (before, now) = (Box::new(operations), Box::new(run.operations));
        return Err(Table1Error::Unsteady { row, mode, before, now });
    }
    Ok(Timed { mode, seconds: runs.iter().map(|run| run.duration.as_secs_f64()).collect(), operations })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn in_four_rounds_each_mode_has_each_place_and_follows_each_other_once() {
        for place in 0..4 {
            assert_eq!(ORDERS.iter().map(|order| order[place]).collect::<BTreeSet<_>>().len(), 4, "{place}");
        }
        let pairs: BTreeSet<_> =
            ORDERS.iter().flat_map(|order| order.windows(2)).map(|pair| (pair[0], pair[1])).collect();
        assert_eq!(pairs.len(), 4 * 3);
    }

    #[test]
    fn a_ratio_is_the_median_of_the_ratios_within_the_rounds() {
        let timed = |mode, seconds: &[f64]| Timed {
            mode,
            seconds: seconds.to_vec(),
            operations: Operations::default(),
        };
        // A round that is slow for all modes does not change the ratio. The ratio of the medians would be 1.
        let modes = vec![
            timed(Mode::Hand, &[1.0, 20.0, 3.0]),
            timed(Mode::HandBound, &[1.0; 3]),
            timed(Mode::Noopt, &[1.0; 3]),
            timed(Mode::Opt, &[3.0, 40.0, 1.0]),
        ];
        let measured = Measured { row: Row::Vecadd, size: Vec::new(), modes };
        assert_eq!(measured.ratio(Mode::Opt, Mode::Hand), Some(2.0));
        assert_eq!(measured.ratio(Mode::Hand, Mode::Hand), Some(1.0));
        assert_eq!(measured.ratio(Mode::Opt, Mode::HandPinned), None, "the device has no such mode");
    }

    #[test]
    fn calls_that_change_from_run_to_run_are_refused() {
        let run = |map| Run {
            duration: Duration::from_millis(1),
            operations: Operations { map, ..Operations::default() },
        };
        let opt = (Framework::OpenCl, Mode::Opt);
        assert_eq!(summed_up(Row::Bfs, opt, &[run(3), run(3)]).unwrap().operations.map, 3);
        for framework in [Framework::OpenCl, Framework::Cuda] {
            let refused = summed_up(Row::Bfs, (framework, Mode::Opt), &[run(3), run(4)]).unwrap_err();
            assert!(refused.to_string().starts_with("bfs in mode opt made other calls"), "{refused}");
        }
        let noopt = |framework| summed_up(Row::Bfs, (framework, Mode::Noopt), &[run(3), run(4)]);
        assert!(noopt(Framework::OpenCl).is_err());
        assert_eq!(noopt(Framework::Cuda).unwrap().operations.map, 3, "of the first run");
    }

    #[test]
    fn the_published_search_has_twelve_levels() {
        for mode in [Mode::Hand, Mode::Noopt, Mode::Opt] {
            assert_eq!(Row::Bfs.published(mode).unwrap().kernel, 24);
        }
        assert_eq!([Mode::HandBound, Mode::HandPinned].map(|mode| Row::Bfs.published(mode)), [None; 2]);
    }

    #[test]
    fn a_device_is_of_its_framework_and_has_its_modes() {
        assert_eq!(Framework::of("opencl:3"), Some(Framework::OpenCl));
        assert_eq!(Framework::of("cuda:0"), Some(Framework::Cuda));
        assert_eq!(["cpu", "offload:0", "cuda:", "cuda:x"].map(Framework::of), [None; 4]);
        for (framework, other) in
            [(Framework::OpenCl, Framework::Cuda.suited()), (Framework::Cuda, Framework::OpenCl.suited())]
        {
            assert!(framework.modes().contains(&framework.suited()) && !framework.modes().contains(&other));
        }
    }
}
