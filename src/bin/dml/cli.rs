//! The command line.

mod application;
mod slam;

pub(crate) use application::{AnalyseOptions, ApplicationOptions, Named, ProfileOptions, RunOptions};
pub(crate) use slam::SlamOptions;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use dml::prelude::{DiscoverOptions, Workers};
use dml::scheduler::policy::PolicySpec;
use dml_workloads::prepare::Workload;
use dml_workloads::steps::Steps;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The end of `dml --help`.
const EXAMPLES: &str = "\
Examples:
  dml devices                              devices, memories, links, and what is missing
  dml bench mandelbrot --html run.html     each device alone, all together, and a timeline of it
  dml bench all --devices cpu,cuda:0       the suite on two devices";

/// Keeps buffers coherent across the memories of this machine, and runs one kernel over all of its devices.
#[derive(Debug, Parser)]
#[command(name = "dml", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists devices, arenas and links with their measured speed, and what is missing and why.
    ///
    /// The first call measures the speeds and keeps them in the user's cache folder.
    Devices(DevicesOptions),
    /// Runs a workload on each device alone, then on all together, and checks every result.
    Bench(Box<BenchCommand>),
    /// Runs an application: kernels in OpenCL C and CUDA C that a TOML file describes.
    ///
    /// The kernels are trusted like the command itself.
    Run(Box<RunOptions>),
    /// Finds the ratios in which devices divide the kernels of an application, for later runs of it.
    ///
    /// The kernels are trusted like the command itself.
    Profile(Box<ProfileOptions>),
    /// Prints which elements of its buffers each kernel of a source accesses.
    Analyse(AnalyseOptions),
    /// Draws a trace of dml bench --trace as a self-contained HTML page, and prints its findings.
    Report(ReportOptions),
    /// Replays the policy's decisions in a run, without its devices, and reports the first that differs.
    ///
    /// Exits with 1 if a decision differs.
    Replay(ReplayOptions),
    /// Measures a table of a paper on this machine, and prints it beside the published one.
    Reproduce(ReproduceOptions),
    /// Lists what earlier runs taught about kernels and devices, or forgets it.
    Knowledge(KnowledgeOptions),
    /// Prints a completion script for a shell.
    Completions {
        /// Shell that runs the script.
        #[arg(value_enum)]
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct KnowledgeOptions {
    /// Forgets a kernel. May be repeated.
    #[arg(long, value_name = "KERNEL")]
    pub(crate) forget: Vec<String>,

    /// Forgets all kernels.
    #[arg(long)]
    pub(crate) forget_all: bool,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesOptions {
    #[command(flatten)]
    pub(crate) workers: WorkerOptions,

    /// Limits a device's compute units: threads of cpu and offload, a sub-device of opencl. May be repeated.
    ///
    /// A sub-device has link speeds of its own.
    #[arg(long, value_name = "DEVICE=N", value_parser = PerDevice::<u32>::from_str)]
    pub(crate) limit: Vec<PerDevice<u32>>,

    #[command(flatten)]
    pub(crate) pinned: PinnedOptions,

    /// Prints the sync path between two memories and the rejected alternatives. Moves no bytes.
    ///
    /// FROM and TO each name an arena or a device.
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], requires = "bytes", conflicts_with = "measure")]
    pub(crate) plan: Option<Vec<String>>,

    /// Number of bytes to plan for, such as 4096, 512M or 8G.
    #[arg(long, value_name = "BYTES", requires = "plan", value_parser = bytes)]
    pub(crate) bytes: Option<u64>,

    /// Plans with an OpenCL device bound to main memory. May be repeated.
    #[arg(long, value_name = "DEVICE", requires = "plan")]
    pub(crate) bind: Vec<String>,

    /// Measures the links again, even if their speeds are known.
    #[arg(long)]
    pub(crate) measure: bool,

    /// Prints one JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The worker processes.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorkerOptions {
    /// Number of worker processes to start, offload:0 to offload:N-1. Default: 1, if one can be started.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=32))]
    pub(crate) offload: Option<u32>,

    /// Pins a worker's threads to these cores, such as offload:0=0,2-3. May be repeated.
    #[arg(long, value_name = "DEVICE=CORES", value_parser = PerDevice::<Cores>::from_str)]
    pub(crate) pin: Vec<PerDevice<Cores>>,

    /// Timeout of one run on a worker, in seconds. Then the worker counts as hung. Default: 300.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) time_limit: Option<u64>,
}

impl WorkerOptions {
    /// Returns the discovery options with these settings.
    pub(crate) fn discover_options(&self) -> DiscoverOptions {
        let mut workers = self.offload.map_or_else(Workers::default, Workers::new);
        for pin in &self.pin {
            workers = workers.pin(&pin.device, pin.value.0.iter().copied());
        }
        if let Some(seconds) = self.time_limit {
            workers = workers.time_limit(Some(Duration::from_secs(seconds)));
        }
        DiscoverOptions::default().offload(workers)
    }
}

/// Page-locked memory for the buffers of main memory.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct PinnedOptions {
    /// Allocates buffers of main memory page-locked, up to this many bytes, such as 4096, 512M or 8G.
    ///
    /// CUDA GPUs transfer page-locked memory at the speed of the link. Without a CUDA GPU, buffers use
    /// ordinary memory, and a note says so.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) pinned: Option<u64>,
}

/// Parses a positive number of bytes, in units of 1, 2^10 (K), 2^20 (M) or 2^30 (G).
fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 1 << 10),
        Some((at, 'M')) => (&text[..at], 1 << 20),
        Some((at, 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1_u64),
    };
    let number: u64 =
        number.parse().map_err(|_| "expected a number of bytes, such as 4096, 512M or 8G".to_owned())?;
    match number.checked_mul(unit) {
        Some(0) => Err("expected at least 1 byte".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err("more bytes than 64 bits can count".to_owned()),
    }
}

/// Returns the list of workloads for `--help`.
fn workloads_help() -> String {
    format!("Workloads: {}", Workload::ALL.map(Workload::name).join(", "))
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    pub(crate) table: Option<BenchTable>,

    #[arg(required = true, value_name = "WORKLOAD", value_parser = Workload::from_str, help = workloads_help())]
    pub(crate) workloads: Vec<Workload>,

    #[command(flatten)]
    pub(crate) options: BenchOptions,

    #[command(flatten)]
    pub(crate) files: BenchFiles,
}

/// A benchmark of its own, without a list of workloads.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchTable {
    /// Runs the suite: every workload, geometric means, and the change since the last suite.
    All(AllOptions),
    /// Compares all devices with the best one alone, for each workload, size and set of devices.
    NeverLoses(NeverLosesOptions),
    /// Measures transfers to a worker and calls of it, beside a copy within main memory.
    Offload(OffloadOptions),
    /// Measures the data layer itself: acquire and release, contention, scaling, submissions.
    Acquire(AcquireOptions),
    /// Measures small kernels that depend on each other, submitted and queued by hand.
    Chain(ChainOptions),
    /// Measures chunks whose transfers overlap the kernels of other chunks, submitted and queued by hand.
    Pipeline(PipelineOptions),
    /// Tracks a camera and models its room, on each device alone and on two, and compares with the true way.
    Slam(SlamOptions),
    /// Repeats steps of a mean of five points on each device alone and on all, which exchange borders.
    Jacobi(StepsOptions),
    /// As jacobi, with weights, in single precision.
    Stencil2d(StepsOptions),
    /// As stencil2d, with seven points of a volume.
    Stencil3d(StepsOptions),
    /// As jacobi, with the star of the Parallel Research Kernels.
    Prk(StepsOptions),
    /// As jacobi, with bodies that attract each other.
    NbodySteps(StepsOptions),
    /// As jacobi, with two substances that react and spread. Makes a picture.
    GrayScott(StepsOptions),
}

impl BenchTable {
    /// Returns the program of steps, if it is one.
    pub(crate) fn steps(&self) -> Option<(Steps, &StepsOptions)> {
        match self {
            Self::Jacobi(options) => Some((Steps::Jacobi, options)),
            Self::Stencil2d(options) => Some((Steps::Stencil2d, options)),
            Self::Stencil3d(options) => Some((Steps::Stencil3d, options)),
            Self::Prk(options) => Some((Steps::Prk, options)),
            Self::NbodySteps(options) => Some((Steps::Nbody, options)),
            Self::GrayScott(options) => Some((Steps::GrayScott, options)),
            _ => None,
        }
    }
}

/// The devices of a benchmark, and their storage.
#[derive(Clone, Debug, Args)]
pub(crate) struct MachineOptions {
    /// Devices to use, such as cpu,opencl:0. Default: all.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) devices: Vec<String>,

    /// Limits a device's compute units: threads of cpu and offload, a sub-device of opencl. May be repeated.
    ///
    /// Other devices that compute on the processor's cores divide the rest of them evenly.
    #[arg(long, value_name = "DEVICE=N", value_parser = PerDevice::<u32>::from_str)]
    pub(crate) limit: Vec<PerDevice<u32>>,

    #[command(flatten)]
    pub(crate) workers: WorkerOptions,

    /// Where memories have their storage.
    #[arg(long, default_value = "auto", value_enum)]
    pub(crate) memory: Memory,

    #[command(flatten)]
    pub(crate) pinned: PinnedOptions,
}

/// The options of all benchmarks of workloads.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,

    /// Load-balancing policy: calibrated, static, dynamic:N, hguided, hguided:K or hguided:K:MIN.
    #[arg(long, default_value = "calibrated", value_parser = PolicySpec::from_str)]
    pub(crate) policy: PolicySpec,

    /// Relative power of a device, instead of the measured one. May be repeated.
    #[arg(long, value_name = "DEVICE=P", value_parser = PerDevice::<f64>::from_str)]
    pub(crate) powers: Vec<PerDevice<f64>>,

    /// Size: tiny, small, paper, or a number of items (gaussian: edge of the picture; matmul: rows).
    #[arg(long, default_value = "small", value_parser = SizeSpec::from_str)]
    pub(crate) size: SizeSpec,

    /// Number of measured runs, after one warm-up run.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Also times the same kernel written by hand against the framework.
    #[arg(long)]
    pub(crate) by_hand: bool,

    /// Folder of the processor's energy counters. Default: /sys/class/powercap.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) powercap: Option<PathBuf>,

    /// Prints one JSON value instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// No files: for benchmarks that read and write none.
pub(crate) static NO_FILES: BenchFiles =
    BenchFiles { input: None, output: None, trace: None, html: None, decisions: None };

/// Files that a benchmark reads and writes.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchFiles {
    /// PNG picture to read, for gaussian.
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub(crate) input: Option<PathBuf>,

    /// PNG picture to write. Default: WORKLOAD.png.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Writes the median run as a trace for ui.perfetto.dev and dml report.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Writes the median run as a page with a timeline.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Writes the policy's decisions in the median run, for dml replay.
    #[arg(long, value_name = "FILE")]
    pub(crate) decisions: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct AllOptions {
    #[command(flatten)]
    pub(crate) options: BenchOptions,

    /// Neither compares with the last suite that had these options nor stores this one.
    #[arg(long)]
    pub(crate) no_last: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NeverLosesOptions {
    /// Workloads to run. Default: all.
    #[arg(value_name = "WORKLOAD", value_parser = Workload::from_str)]
    pub(crate) workloads: Vec<Workload>,

    #[command(flatten)]
    pub(crate) machine: MachineOptions,

    /// Number of measured rounds.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Omits sizes for which the best device takes longer than this, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3)]
    pub(crate) longest: f64,

    /// Measures every Nth size, starting with the first.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) every: u32,

    /// Existing folder for the decisions of each row's median run without knowledge, for dml replay.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) decisions: Option<PathBuf>,

    /// Prints one JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OffloadOptions {
    /// Limits the threads of the worker: offload:0=N.
    #[arg(long, value_name = "DEVICE=N", value_parser = PerDevice::<u32>::from_str)]
    pub(crate) limit: Vec<PerDevice<u32>>,

    #[command(flatten)]
    pub(crate) workers: WorkerOptions,

    /// Number of measured rounds.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AcquireOptions {
    /// Number of measured rounds.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Largest number of buffers that are visited one after the other. A million take 0.7 GB.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) buffers: u32,

    /// Writes the figures as a chart (SVG).
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChainOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,

    /// Number of kernels of a chain.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) kernels: u64,

    /// Number of measured rounds.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PipelineOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,

    /// Number of chunks.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) chunks: u32,

    /// Number of 4-byte elements of a chunk.
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) elements: u32,

    /// Number of multiply-adds per element. Default: as many as make kernels as long as the transfers.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,

    /// Number of measured rounds, in which all ways take turns.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StepsOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,

    /// Size: tiny, small, paper, or a number of elements along each axis (nbody-steps: of bodies).
    #[arg(long, default_value = "small", value_parser = SizeSpec::from_str)]
    pub(crate) size: SizeSpec,

    /// Number of steps. Default: that of the size, 100 for a number.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,

    /// Ratio of a device's strip; 1 for devices without one. Strips are then not corrected. May be repeated.
    #[arg(long, value_name = "DEVICE=R", value_parser = PerDevice::<f64>::from_str)]
    pub(crate) shares: Vec<PerDevice<f64>>,

    /// Corrects the strips that begin with the ratios of --shares.
    #[arg(long, requires = "shares")]
    pub(crate) correct: bool,

    /// Number of measured rounds, after one warm-up round.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Also times jacobi and stencil2d written by hand, with the strips that were found.
    ///
    /// All devices but the first one must then be cpu and workers, which are threads by hand.
    #[arg(long)]
    pub(crate) by_hand: bool,

    /// Writes some steps on all devices as a trace for ui.perfetto.dev and dml report.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Writes some steps on all devices as a page with a timeline.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// PNG picture to write, for gray-scott.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReportOptions {
    /// Trace of dml bench --trace: a file or a pipe.
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    /// Page to write. Default: the path of the trace with the extension .html; required for a pipe.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayOptions {
    /// Decisions of dml bench --decisions: a file or a pipe.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceOptions {
    /// Table to reproduce.
    #[arg(value_name = "TABLE", value_enum)]
    pub(crate) table: Table,

    /// Size of the workloads. Default: paper for table1, single and slam, otherwise small.
    ///
    /// tiny takes milliseconds, small is the size of dml bench, and paper is the published size. For single,
    /// runs of size paper take 1 s, 50 ms and 1 ms, and the goals apply to them; small takes a tenth.
    #[arg(long, value_enum)]
    pub(crate) size: Option<TableSize>,

    /// Number of frames of slam. Default: 20 for tiny, 50 for small, 100 for paper; the paper has 880.
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..=10_000))]
    pub(crate) frames: Option<u32>,

    /// Number of measured rounds, after one warm-up round. Default: 9 for coexec, 5 for slam, otherwise 12.
    ///
    /// A round of single has one pair of 1 s, two of 50 ms and ten of 1 ms.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: Option<u32>,

    /// Devices to use, such as cpu,opencl:0. Default: all that the table supports; table1, slam: opencl:0.
    ///
    /// table1 and slam take one OpenCL or CUDA device. single takes devices that have a hand-written form.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) devices: Vec<String>,

    /// Limits a device's compute units, as for bench. Not for table1, slam and single.
    #[arg(long, value_name = "DEVICE=N", value_parser = PerDevice::<u32>::from_str)]
    pub(crate) limit: Vec<PerDevice<u32>>,

    #[command(flatten)]
    pub(crate) workers: WorkerOptions,

    /// Load-balancing policy, as for bench. Default: calibrated. Only for coexec and memory.
    #[arg(long, value_parser = PolicySpec::from_str)]
    pub(crate) policy: Option<PolicySpec>,

    /// Where memories have their storage. Default: auto. Not for table1, slam and memory.
    #[arg(long, value_enum)]
    pub(crate) memory: Option<Memory>,

    #[command(flatten)]
    pub(crate) pinned: PinnedOptions,

    /// Existing folder for the table as TABLE.md, and for coexec.svg. Not for table1 and single.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,

    /// Prints markdown instead of text.
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
}

impl ReproduceOptions {
    /// Returns the options of a benchmark of the suite, with `runs` as the default number of runs.
    pub(crate) fn of_suite(&self, memory: Memory, runs: u32) -> BenchOptions {
        let size = match self.size.unwrap_or(TableSize::Small) {
            TableSize::Tiny => SizeSpec::Tiny,
            TableSize::Small => SizeSpec::Small,
            TableSize::Paper => SizeSpec::Paper,
        };
        BenchOptions {
            machine: MachineOptions {
                devices: self.devices.clone(),
                limit: self.limit.clone(),
                workers: self.workers.clone(),
                memory,
                pinned: self.pinned,
            },
            policy: self.policy.clone().unwrap_or_default(),
            powers: Vec::new(),
            size,
            runs: self.runs.unwrap_or(runs),
            by_hand: false,
            powercap: None,
            json: self.json,
        }
    }

    /// Returns the name of the size in effect.
    pub(crate) fn size_name(&self, default: TableSize) -> &'static str {
        self.size.unwrap_or(default).name()
    }
}

/// Where the devices' memories have their storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Memory {
    /// Shares storage where devices need not take turns, and copies elsewhere. For single: as copy.
    Auto,
    /// Gives each memory its own storage, and copies bytes (the papers' Buffers).
    Copy,
    /// Shares one storage among all memories, and copies no bytes (the papers' unified shared memory). CUDA
    /// GPUs share page-locked memory with cpu, so they need --pinned, and no other device can take part.
    Bound,
}

impl Memory {
    /// Returns the name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Copy => "copy",
            Self::Bound => "bound",
        }
    }
}

/// A table of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Table {
    /// Operation counts and times of vecadd, matmul and bfs, written by hand and on the data layer.
    Table1,
    /// One device through the runtime, compared with the same kernel without DML.
    Single,
    /// Cost of copies, of one shared storage, and of the planner's choice, for each workload.
    Memory,
    /// Co-execution of the suite: speedups, efficiencies and balances, with their means.
    Coexec,
    /// Steps of jacobi on two or three devices, with strips around the best ones.
    Jacobi,
    /// Applications that a file describes: their lengths, and their speeds beside OpenCL written by hand.
    Stepocl,
    /// Operation counts and times of a camera's tracking, written by hand and on the data layer.
    Slam,
}

impl Table {
    /// Returns the name on the command line, which is also that of the table's files.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Table1 => "table1",
            Self::Single => "single",
            Self::Memory => "memory",
            Self::Coexec => "coexec",
            Self::Jacobi => "jacobi",
            Self::Stepocl => "stepocl",
            Self::Slam => "slam",
        }
    }
}

/// The size of a table's workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableSize {
    Tiny,
    Small,
    Paper,
}

impl TableSize {
    /// Returns the name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Paper => "paper",
        }
    }
}

/// A value for one device, as `DEVICE=VALUE`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PerDevice<T> {
    pub(crate) device: String,
    pub(crate) value: T,
}

impl<T: FromStr> FromStr for PerDevice<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, value) = text.split_once('=').ok_or("expected DEVICE=VALUE, such as cpu=1")?;
        if device.is_empty() {
            return Err("no device before the equals sign".to_owned());
        }
        let value = value.parse().map_err(|_| format!("{value:?} is not a valid value"))?;
        Ok(Self { device: device.to_owned(), value })
    }
}

/// A list of cores, such as `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores(pub(crate) Vec<u32>);

impl Cores {
    /// Returns the number of distinct cores.
    pub(crate) fn count(&self) -> u32 {
        self.0.iter().collect::<BTreeSet<_>>().len() as u32
    }
}

impl FromStr for Cores {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        /// Maximum number of cores of a list; no machine has more.
        const MOST: usize = 4096;
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().map_err(drop)?, last.parse().map_err(drop)?);
            if first > last || (last - first) as usize >= MOST - cores.len().min(MOST) {
                return Err(());
            }
            cores.extend(first..=last);
        }
        Ok(Self(cores))
    }
}

/// The size of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeSpec {
    Tiny,
    Small,
    Paper,
    Number(u64),
}

impl FromStr for SizeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tiny" => Ok(Self::Tiny),
            "small" => Ok(Self::Small),
            "paper" => Ok(Self::Paper),
            _ => text
                .parse()
                .map(Self::Number)
                .map_err(|_| "expected tiny, small, paper, or a whole number that fits 64 bits".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
