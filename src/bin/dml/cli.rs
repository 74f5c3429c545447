//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use dml::prelude::DiscoverOptions;
use dml::scheduler::PolicySpec;
use dml_workloads::prepare::Workload;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What `dml --help` ends with.
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
    /// Speeds are measured the first time, and kept in the user's cache folder.
    Devices(DevicesOptions),
    /// Co-executes a workload: each device alone, then all together; checks every result.
    Bench(Box<BenchCommand>),
    /// Draws a trace of dml bench --trace as a page that a browser shows by itself.
    Report(ReportOptions),
    /// Makes the decisions of a run again, without its devices: where this version decides differently, it says so.
    ///
    /// Exits with 1 if a decision differs.
    Replay(ReplayOptions),
    /// Measures a table of a paper on this machine, and prints it beside the published one.
    Reproduce(ReproduceOptions),
    /// Shows of which kernels and devices earlier runs taught something, and forgets it.
    Knowledge(KnowledgeOptions),
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct KnowledgeOptions {
    /// Forgets what is known of a kernel. May be given several times.
    #[arg(long, value_name = "KERNEL")]
    pub(crate) forget: Vec<String>,

    /// Forgets everything.
    #[arg(long)]
    pub(crate) forget_all: bool,

    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesOptions {
    #[command(flatten)]
    pub(crate) workers: WorkerOptions,

    /// Caps a device's compute units, as for bench: the speeds of a sub-device are its own.
    #[arg(long, value_name = "DEVICE=N", value_parser = PerDevice::<u32>::from_str)]
    pub(crate) limit: Vec<PerDevice<u32>>,

    #[command(flatten)]
    pub(crate) pinned: PinnedOptions,

    /// Prints how so many bytes would come from one memory to another, and which ways were rejected; nothing is moved. Memories are
    /// named by arena or by device.
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], requires = "bytes", conflicts_with = "measure")]
    pub(crate) plan: Option<Vec<String>>,

    /// How many bytes to plan for.
    #[arg(long, value_name = "N", requires = "plan")]
    pub(crate) bytes: Option<u64>,

    /// Binds an OpenCL device to main memory, as DiscoverOptions::bind does. May be given once per device.
    #[arg(long, value_name = "DEVICE", requires = "plan")]
    pub(crate) bind: Vec<String>,

    /// Measures the links again, even if their speeds are known.
    #[arg(long)]
    pub(crate) measure: bool,

    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Coprocessors that are processes.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorkerOptions {
    /// Starts N worker processes as coprocessors, offload:0 and on; one by default, where it can be had.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=32))]
    pub(crate) offload: Option<u32>,

    /// Keeps a worker's threads on these cores, such as offload:0=0,2-3. May be given once per worker.
    #[arg(long, value_name = "DEVICE=CORES", value_parser = PerDevice::<Cores>::from_str)]
    pub(crate) pin: Vec<PerDevice<Cores>>,

    /// How long one run on a worker may take before the worker counts as hung.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) time_limit: Option<u64>,
}

impl WorkerOptions {
    /// The options as discovery takes them.
    pub(crate) fn discover_options(&self) -> DiscoverOptions {
        let mut options = DiscoverOptions::default();
        if let Some(workers) = self.offload {
            options = options.offload(workers);
        }
        for pin in &self.pin {
            options = options.pin(&pin.device, pin.value.0.iter().copied());
        }
        if let Some(seconds) = self.time_limit {
            options = options.offload_time_limit(Some(Duration::from_secs(seconds)));
        }
        options
    }
}

/// Page-locked memory for the buffers of main memory.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct PinnedOptions {
    /// Makes main memory's buffers of page-locked memory, of at most so many bytes (as 4096, 512M or 8G), which GPUs of CUDA
    /// transfer at the speed of the link. Without such a GPU buffers are of ordinary memory, and a note says so.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) pinned: Option<u64>,
}

/// A number of bytes that is more than none, in units of 1, 2^10 (K), 2^20 (M) or 2^30 (G).
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
        Some(0) => Err("no buffer is made of no bytes".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err("more bytes than 64 bits can count".to_owned()),
    }
}

/// The list of workloads in `--help`.
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

/// A benchmark other than that of named workloads.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchTable {
    /// Runs the suite: every workload, geometric means, and the change since the last suite.
    All(AllOptions),
    /// Compares all devices with the best one alone, for each workload, size and set of devices.
    NeverLoses(NeverLosesOptions),
    /// Measures transfers to a worker and calls of it, beside a copy within main memory.
    Offload(OffloadOptions),
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

    /// Storage of the memories.
    #[arg(long, default_value = "auto", value_enum)]
    pub(crate) memory: Memory,

    #[command(flatten)]
    pub(crate) pinned: PinnedOptions,
}

/// What runs of workloads have in common.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,

    /// Load-balancing policy: calibrated, static, dynamic:N, hguided, hguided:K or hguided:K:MIN.
    #[arg(long, default_value = "calibrated", value_parser = PolicySpec::from_str)]
    pub(crate) policy: PolicySpec,

    /// A device's relative power, instead of the measured one. May be repeated.
    #[arg(long, value_name = "DEVICE=P", value_parser = PerDevice::<f64>::from_str)]
    pub(crate) powers: Vec<PerDevice<f64>>,

    /// tiny, small, paper, or a number: items; for gaussian the edge of the picture, for matmul the rows.
    #[arg(long, default_value = "small", value_parser = SizeSpec::from_str)]
    pub(crate) size: SizeSpec,

    /// Number of measured runs, after one warm-up run.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Also times the same kernel written by hand against the framework.
    #[arg(long)]
    pub(crate) native: bool,

    /// Folder of the processor's energy counters. Default: /sys/class/powercap.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) powercap: Option<PathBuf>,

    /// Prints one JSON value instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The files of a benchmark that neither reads nor writes one.
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

    /// Omits sizes for which the best device takes longer.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3)]
    pub(crate) longest: f64,

    /// Measures one size in N, the first one first.
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
pub(crate) struct ReportOptions {
    /// The trace, as dml bench --trace writes it: a file or a pipe.
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    /// Where the page goes; beside the trace, with the ending .html, by default. The trace of a pipe needs
    /// it.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayOptions {
    /// The decisions, as dml bench --decisions writes them: a file or a pipe.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceOptions {
    /// The table.
    #[arg(value_name = "TABLE", value_enum)]
    pub(crate) table: Table,

    /// tiny takes milliseconds, small is that of dml bench, paper is as published; of table1 paper by default, otherwise
    /// small. Of single: paper, the default, is a second, 50 ms and 1 ms, to which the goals belong, and small a tenth of each.
    #[arg(long, value_enum)]
    pub(crate) size: Option<TableSize>,

    /// Rounds that count, after one that does not; 12 by default. Of coexec: runs that count, 9 by default. Of single: pairs of a
    /// second; there are twice as many of 50 ms, and ten times as many of 1 ms.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: Option<u32>,

    /// Devices to use, as for bench. Of table1: one, opencl:N or cuda:N, opencl:0 by default. Of single: all that have a hand-written
    /// form by default.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) devices: Vec<String>,

    /// Caps a device's compute units, as for bench; not of table1 and single.
    #[arg(long, value_name = "DEVICE=N", value_parser = PerDevice::<u32>::from_str)]
    pub(crate) limit: Vec<PerDevice<u32>>,

    #[command(flatten)]
    pub(crate) workers: WorkerOptions,

    /// How the work is split, as for bench; calibrated by default, not of table1 and single.
    #[arg(long, value_parser = PolicySpec::from_str)]
    pub(crate) policy: Option<PolicySpec>,

    /// Where the memories' storage comes from, as for bench; auto by default, of coexec and single.
    #[arg(long, value_enum)]
    pub(crate) memory: Option<Memory>,

    #[command(flatten)]
    pub(crate) pinned: PinnedOptions,

    /// Also writes the table into this folder as markdown, TABLE.md, and of coexec a chart of it, TABLE.svg; not of
    /// table1.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print markdown instead of text.
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
}

impl ReproduceOptions {
    /// The options of the benchmark of the suite that these mean, with another default of what is counted.
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
            native: false,
            powercap: None,
            json: self.json,
        }
    }

    /// The name of the size in effect.
    pub(crate) fn size_name(&self, default: TableSize) -> &'static str {
        self.size.unwrap_or(default).name()
    }
}

/// Where the memories of the devices have their storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Memory {
    /// Storage is shared wherever that makes nobody wait, and bytes are copied elsewhere. Of single: as copy.
    Auto,
    /// Each memory has storage of its own, and bytes are copied (the papers' buffers).
    Copy,
    /// All memories share one storage, and no byte is copied (the papers' unified shared memory). GPUs of CUDA share page-locked memory with the
    /// processor: with --pinned, and no other devices.
    Bound,
}

impl Memory {
    /// The name on the command line.
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
    /// Operation counts and times of vecadd, matmul and bfs, by hand and on the data layer.
    Table1,
    /// One device through the runtime beside the same kernel without DML.
    Single,
    /// What copies, one storage for all memories, and the planner's own choice cost every workload.
    Memory,
    /// The suite co-executed: speedups, efficiencies and balances, with their means.
    Coexec,
}

impl Table {
    /// The name on the command line, and of the files with it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Table1 => "table1",
            Self::Single => "single",
            Self::Memory => "memory",
            Self::Coexec => "coexec",
        }
    }
}

/// How large the workloads of a table are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableSize {
    Tiny,
    Small,
    Paper,
}

impl TableSize {
    /// The name on the command line.
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
        let value = value.parse().map_err(|_| format!("{value:?} is not what fits"))?;
        Ok(Self { device: device.to_owned(), value })
    }
}

/// Cores as lists of them are written: `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores(pub(crate) Vec<u32>);

impl Cores {
    /// How many different ones.
    pub(crate) fn count(&self) -> u32 {
        self.0.iter().collect::<BTreeSet<_>>().len() as u32
    }
}

impl FromStr for Cores {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        /// More cores than any machine has.
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

/// How large a workload is to be.
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
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    /// Whoever asks for help learns what there is to run.
    #[test]
    fn the_help_of_bench_names_every_workload() {
        let mut command = Arguments::command();
        let bench = command.find_subcommand_mut("bench").expect("it is there");
        let help = bench.render_long_help().to_string();
        for name in Workload::ALL.map(Workload::name).iter().chain(&["all", "offload", "never-loses"]) {
            assert!(help.contains(name), "{name} is not in {help}");
        }
    }

    /// What is asked of the workers comes to discovery, each option by itself.
    #[test]
    fn the_options_of_workers_are_those_of_discovery() {
        let options = |arguments: &[&str]| {
            let arguments = ["dml", "bench", "saxpy"].iter().chain(arguments);
            let Command::Bench(command) = Arguments::parse_from(arguments).command else { unreachable!() };
            format!("{:?}", command.options.machine.workers.discover_options())
        };
        let plain = DiscoverOptions::default;
        assert_eq!(options(&[]), format!("{:?}", plain()));
        assert_eq!(options(&["--offload", "3"]), format!("{:?}", plain().offload(3)));
        assert_eq!(
            options(&["--pin", "offload:1=0,2-3"]),
            format!("{:?}", plain().pin("offload:1", [0, 2, 3]))
        );
        let limited = plain().offload_time_limit(Some(Duration::from_secs(7)));
        assert_eq!(options(&["--time-limit", "7"]), format!("{limited:?}"));
    }

    #[test]
    fn values_for_devices_parse() {
        assert_eq!("opencl:0=2".parse(), Ok(PerDevice { device: "opencl:0".to_owned(), value: 2u32 }));
        assert!("cpu".parse::<PerDevice<u32>>().is_err());
        assert!("cpu=-1".parse::<PerDevice<u32>>().is_err());
        assert!("=1".parse::<PerDevice<u32>>().is_err());
    }

    #[test]
    fn lists_of_cores_parse() {
        assert_eq!(
            "offload:0=0,2-4".parse(),
            Ok(PerDevice { device: "offload:0".to_owned(), value: Cores(vec![0, 2, 3, 4]) })
        );
        for wrong in ["", "1,", "3-1", "a", "-1", "0-4294967295", "0-4000,0-4000"] {
            assert!(wrong.parse::<Cores>().is_err(), "{wrong}");
        }
        // Not how high they are is limited, but how many.
        for (text, count) in [("0-4095", 4096), ("9000-9001", 2), ("1-4000,4090-4091", 4002), ("7,7-9,8", 3)]
        {
            assert_eq!(text.parse::<Cores>().map(|cores| cores.count()), Ok(count), "{text}");
        }
        for many in ["0-4096", "0-4000,5000-5096", "0-4294967295"] {
            assert!(many.parse::<Cores>().is_err(), "{many}");
        }
    }

    #[test]
    fn numbers_of_bytes_parse() {
        let of = ["1", "4096", "3K", "512M", "8G"].map(|text| bytes(text).ok());
        assert_eq!(of, [1, 4096, 3 << 10, 512 << 20, 8 << 30].map(Some));
        let too_many = format!("{}G", u64::MAX >> 29);
        for wrong in ["", "G", "0", "0G", "-1", "1.5G", "1T", "8g", "1 G", "\u{e9}", &too_many] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_parse() {
        assert_eq!("0".parse(), Ok(SizeSpec::Number(0)));
        assert_eq!("paper".parse(), Ok(SizeSpec::Paper));
        assert!("1e6".parse::<SizeSpec>().is_err());
        assert!("99999999999999999999".parse::<SizeSpec>().is_err());
    }
}
