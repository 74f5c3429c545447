//! Table 1 of the paper on the data layer: three workloads, each written by hand against OpenCL or CUDA and on the layer, with
//! the calls that each makes and the time that it takes.
//!
//! ```text
//!   Bench::open(row, device) ─┬─ by hand, twice ─ straight on the framework, its calls counted
//!                             └─ noopt, opt ───── the same program on two platforms, the platforms' counters
//!        │
//!        └─▶ measure: a round that does not count, then rounds in which every mode runs once, on the same inputs
//! ```
//! | mode | on OpenCL | on CUDA |
//! |---|---|---|
//! | hand | buffers on the device; inputs are written, the result is mapped or read, as the paper says | the same; the result is read |
//! | hand_bound | buffers over the application's vectors, mapped for the host: what suits a device that shares the memory | |
//! | hand_pinned | | as hand, but the application has page-locked memory: what suits a device with a memory of its own |
//! | noopt | the layer with one mechanism: the device's memory is mapped, and the processor copies | the layer over the application's vectors |
//! | opt | the layer with the device bound to main memory | the layer with buffers of page-locked memory |
//!
//! # What holds here
//! 1. **Every mode times the same**: from inputs in vectors of the application to the result readable by the application.
//!    Making buffers on the device counts, releasing them does not. Opening devices and building kernels does not count.
//! 2. **Every mode finds its vectors alike**: written right before the run, inputs by a copy. Only a result that stays in a
//!    buffer of the device has none. Where they are page-locked, by hand or as buffers of the layer, they are made before.
//! 3. **Every mode runs the same kernels** with the same work-groups.
//! 4. **A result that was left in memory is not taken for a new one**: in the first round each mode has a problem of its own.
//!
//! # Source
//! "Abstract Representation of Shared Data for Heterogeneous Computing", section 5 and table 1.

#[allow(unsafe_code, reason = "launching a kernel on the machine's own memory is")]
mod hand;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "launching a kernel on a device's memory is")]
mod hand_cuda;
#[allow(unsafe_code, reason = "launching a kernel on the machine's own memory is")]
mod layered;

use crate::check::Mismatch;
use crate::prepare::Input;
use crate::{bfs, matmul, vecadd};
use dml_arenas::launch::{HostError, Team};
use dml_arenas::native::BaselineError;
use dml_arenas::opencl::BuildError;
use dml_arenas::opencl::native::hand::Device;
use dml_arenas::{DiscoverError, DiscoverOptions, Mechanisms};
use dml_core::{AcquireError, ConfigError, TransferError, ViewError};
use dml_scheduler::metrics::Summary;
use layered::Layered;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// The device that the table is of unless another one is named.
pub const DEVICE: &str = "opencl:0";
/// The most page-locked memory of the layer's buffers: more than any row needs.
#[cfg(feature = "cuda")]
const PINNED_BYTES: u64 = 2 << 30;
/// The orders of four rounds, as indices into [`Framework::modes`]. In these each mode has each place once, and follows each other
/// mode once, so that no mode gains from what the one before leaves behind.
const ORDERS: [[usize; 4]; 4] = [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]];
/// The seed of the inputs; any other would do.
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

    /// The row's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vecadd => "vecadd",
            Self::Matmul => "matmul",
            Self::Bfs => "bfs",
        }
    }

    /// What the paper has for a mode; nothing for [`Mode::HandBound`] and [`Mode::HandPinned`], which are not the paper's.
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

    /// The kernels in CUDA C: their source and their names.
    #[cfg(feature = "cuda")]
    fn cuda_kernels(self) -> (&'static str, &'static [&'static str]) {
        let source = match self {
            Self::Vecadd => vecadd::CUDA_SOURCE,
            Self::Matmul => matmul::CUDA_SOURCE,
            Self::Bfs => bfs::CUDA_SOURCE,
        };
        (source, self.kernels().1)
    }

    /// The kernels in OpenCL C: their source and their names.
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

/// What the programs by hand are written against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Framework {
    /// OpenCL.
    OpenCl,
    /// CUDA.
    Cuda,
}

impl Framework {
    /// The modes of its devices, in the order of the table.
    #[must_use]
    pub const fn modes(self) -> [Mode; 4] {
        [Mode::Hand, self.suited(), Mode::Noopt, Mode::Opt]
    }

    /// The mode by hand that suits its devices.
    #[must_use]
    pub const fn suited(self) -> Mode {
        match self {
            Self::OpenCl => Mode::HandBound,
            Self::Cuda => Mode::HandPinned,
        }
    }

    /// What a device belongs to, and its number there.
    fn of(device: &str) -> Option<(Self, usize)> {
        let (kind, number) = device.split_once(':')?;
        let framework = match kind {
            "opencl" => Self::OpenCl,
            "cuda" => Self::Cuda,
            _ => return None,
        };
        Some((framework, number.parse().ok()?))
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

/// How a workload is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By hand, with buffers of the device.
    Hand,
    /// By hand, with buffers over the application's vectors.
    HandBound,
    /// By hand, with page-locked memory on the host.
    HandPinned,
    /// On the layer, with copies of mapped memory alone; on CUDA over the application's vectors.
    Noopt,
    /// On the layer, with the device bound to main memory; on CUDA with buffers of page-locked memory, of which the device uses in place what it
    /// touches once.
    Opt,
}

impl Mode {
    /// The mode's name.
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

/// What the paper has for one row and mode. It does not count storage of hand-written programs.
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

/// How often a program made each kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operations {
    /// Storage mapped for the host.
    pub map: u64,
    /// Mappings ended.
    pub unmap: u64,
    /// The framework's read calls.
    pub read: u64,
    /// The framework's write calls.
    pub write: u64,
    /// Kernels launched.
    pub kernel: u64,
    /// Storage allocated.
    pub alloc: u64,
    /// Storage made over other storage.
    pub bind: u64,
    /// Copies by the processor.
    pub copy: u64,
}

impl Operations {
    /// The calls that bring data to where it is used.
    #[must_use]
    pub const fn transfers(&self) -> u64 {
        self.map + self.unmap + self.read + self.write + self.copy
    }
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

/// The runs of one mode that count.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Timed {
    /// The mode.
    pub mode: Mode,
    /// The time of each run, in seconds and in order.
    pub seconds: Vec<f64>,
    /// The calls of the first run; they are the same in all, but of [`Mode::Noopt`] on CUDA.
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
    /// The runs of a mode; `None` for one that the device does not have.
    #[must_use]
    pub fn mode(&self, mode: Mode) -> Option<&Timed> {
        self.modes.iter().find(|timed| timed.mode == mode)
    }

    /// The median, over the rounds, of the time of one mode over that of another in the same round; `None` if the device does not
    /// have both.
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
    /// The programs are not written for such a device.
    #[error("table1 compares programs on one OpenCL or CUDA device, not {device}")]
    NoProgram {
        /// The device's name.
        device: String,
    },
    /// There is no device, or it cannot be used by hand.
    #[error("table1 needs {framework} device: {cause}")]
    Device {
        /// What the device belongs to.
        framework: Framework,
        /// What is missing.
        cause: BaselineError,
    },
    /// A hand-written program failed.
    #[error("the hand-written program failed: {0}")]
    Hand(#[from] BaselineError),
    /// The device cannot be had as asked for.
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
    /// A kernel in CUDA C could not be made.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    BuildCuda(#[from] dml_arenas::cuda::BuildError),
    /// A buffer could not be acquired.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// A granted buffer could not be used.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A kernel failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The size is none that the table has.
    #[error("{row} has no size {size}: tiny, small and paper are there")]
    Size {
        /// The row.
        row: Row,
        /// The size asked for.
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
    /// The calls of a mode differ from one run to the next.
    #[error("{row} in mode {mode} made other calls than in the run before: {now:?}, not {before:?}")]
    Unsteady {
        /// The row.
        row: Row,
        /// The mode.
        mode: Mode,
        /// The calls of the run before.
        before: Box<Operations>,
        /// The calls of this run.
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

/// What a run does with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checking {
    /// Every item is compared, after the time has been taken.
    All,
    /// Nothing is compared.
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

/// The programs by hand.
#[derive(Debug)]
enum Hand {
    OpenCl(hand::Hand),
    #[cfg(feature = "cuda")]
    Cuda(hand_cuda::Hand),
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
    /// [`Table1Error::NoProgram`] for another kind of device; [`Table1Error::Device`] where there is no such device;
    /// [`Table1Error::Discover`] and [`Table1Error::Config`] where the layer cannot use it; [`Table1Error::Hand`] and
    /// [`Table1Error::Build`] for kernels that the driver refuses.
    pub fn open(row: Row, device: &str) -> Result<Self, Table1Error> {
        let no_program = || Table1Error::NoProgram { device: device.to_owned() };
        let (framework, number) = Framework::of(device).ok_or_else(no_program)?;
        Team::start_global()?;
        let missing = |cause| Table1Error::Device { framework, cause };
        let options = DiscoverOptions::default().only([device]).offload(0);
        let (hand, noopt, opt) = match framework {
            Framework::OpenCl => {
                let hand = Hand::OpenCl(hand::Hand::new(Device::open(number).map_err(missing)?, row)?);
                (hand, options.clone().mechanisms(Mechanisms::Mapped), options.bind(device))
            }
            #[cfg(feature = "cuda")]
            Framework::Cuda => {
                let opened = dml_arenas::cuda::native::hand::Device::open(number).map_err(missing)?;
                let hand = Hand::Cuda(hand_cuda::Hand::new(opened, row)?);
                (hand, options.clone(), options.cuda_pinned(PINNED_BYTES).allow_binding(device))
            }
            #[cfg(not(feature = "cuda"))]
            Framework::Cuda => {
                let reason = "this program was built without the feature `cuda`".to_owned();
                return Err(missing(BaselineError::Device { device: format!("cuda:{number}"), reason }));
            }
        };
        Ok(Self {
            row,
            framework,
            hand,
            noopt: Layered::new(&noopt, row, Mode::Noopt, device)?,
            opt: Layered::new(&opt, row, Mode::Opt, device)?,
        })
    }

    /// What the device belongs to, which says which modes it has.
    #[must_use]
    pub const fn framework(&self) -> Framework {
        self.framework
    }

    /// What the vendor calls the device.
    #[must_use]
    pub fn device(&self) -> &str {
        self.opt.description()
    }

    /// Runs every mode once without counting, then `runs` times in turn. Four rounds have four orders, in which each mode has
    /// each place and follows each other mode once. Calls `after_run` after each run. The results of the first and the last
    /// round are checked item by item.
    ///
    /// # Errors
    /// [`Table1Error::Wrong`] for a wrong result, [`Table1Error::Unsteady`] if a mode's calls change; whatever keeps a
    /// program from running; [`Table1Error::Size`] for a size that is not tiny, small or paper.
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
            Mode::Hand | Mode::HandBound | Mode::HandPinned => match &mut self.hand {
                Hand::OpenCl(hand) => hand.run(mode, problem, checking),
                #[cfg(feature = "cuda")]
                Hand::Cuda(hand) => hand.run(mode, problem, checking),
            },
            Mode::Noopt => self.noopt.run(problem, checking),
            Mode::Opt => self.opt.run(problem, checking),
        }
    }
}

/// The runs of a mode, all of which have made the same calls. On CUDA a large vector in ordinary memory is sent in as many pieces as
/// there is scratch memory at the moment, so these calls may differ.
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
        // A round that was slow for all says nothing about a ratio; the ratio of the medians would be 1.
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
        assert_eq!(Framework::of("opencl:3"), Some((Framework::OpenCl, 3)));
        assert_eq!(Framework::of("cuda:0"), Some((Framework::Cuda, 0)));
        assert_eq!(["cpu", "offload:0", "cuda:", "cuda:x"].map(Framework::of), [None; 4]);
        for (framework, other) in
            [(Framework::OpenCl, Framework::Cuda.suited()), (Framework::Cuda, Framework::OpenCl.suited())]
        {
            assert!(framework.modes().contains(&framework.suited()) && !framework.modes().contains(&other));
        }
    }
}
