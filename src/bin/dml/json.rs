//! The output of `--json`. Its schema is in docs/json.md.

use crate::failure::{self, Failure};
use serde::Serialize;
use std::collections::BTreeMap;

/// Prints one JSON value.
pub(crate) fn print(value: &impl Serialize) -> Result<(), Failure> {
    failure::print(&(serde_json::to_string_pretty(value).map_err(Failure::work)? + "\n"))
}

/// One workload's result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Bench {
    pub(crate) workload: String,
    pub(crate) size: BTreeMap<&'static str, u64>,
    pub(crate) policy: String,
    pub(crate) memory: &'static str,
    pub(crate) pinned_bytes: Option<u64>,
    pub(crate) runs: u32,
    pub(crate) verified: bool,
    pub(crate) devices: Vec<BenchDevice>,
    pub(crate) coexec_s: f64,
    pub(crate) coexec_min_s: f64,
    pub(crate) coexec_max_s: f64,
    pub(crate) speedup: f64,
    pub(crate) s_max: f64,
    pub(crate) efficiency: f64,
    pub(crate) balance: f64,
    pub(crate) by_hand_s: BTreeMap<String, f64>,
    pub(crate) transfers: Vec<BenchTransfer>,
    pub(crate) under_compute: UnderCompute,
    pub(crate) link_prices: LinkPrices,
    pub(crate) operations: BTreeMap<&'static str, u64>,
    pub(crate) failures: Vec<String>,
    pub(crate) energy_j: Option<f64>,
    pub(crate) energy: Energy,
    pub(crate) picture: Option<String>,
    pub(crate) trace: Option<String>,
    pub(crate) html: Option<String>,
    pub(crate) decisions: Option<String>,
}

/// The output of `dml bench all`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Suite {
    pub(crate) workloads: Vec<Bench>,
    pub(crate) means: SuiteMeans,
    pub(crate) last: Option<SuiteLast>,
}

/// The ratios of the times together to those of the last suite with the same options, by workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SuiteLast {
    pub(crate) measured_unix_s: u64,
    pub(crate) ratios: BTreeMap<String, f64>,
}

/// Geometric means over the workloads.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct SuiteMeans {
    pub(crate) speedup: Option<f64>,
    pub(crate) s_max: Option<f64>,
    pub(crate) efficiency: Option<f64>,
    pub(crate) balance: Option<f64>,
    pub(crate) energy_over_fastest: Option<f64>,
    pub(crate) edp_over_fastest: Option<f64>,
}

/// One device of a result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BenchDevice {
    pub(crate) name: String,
    pub(crate) arena: String,
    pub(crate) units: u32,
    pub(crate) alone_s: f64,
    pub(crate) power: f64,
    pub(crate) busy_s: f64,
    pub(crate) end_s: f64,
    pub(crate) packages: u64,
    pub(crate) items: u64,
    pub(crate) alone_energy: Energy,
}

/// The energy of one configuration, or why it is unknown.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Energy {
    pub(crate) energy_j: Option<f64>,
    pub(crate) edp_js: Option<f64>,
    pub(crate) energy_over_fastest: Option<f64>,
    pub(crate) edp_over_fastest: Option<f64>,
    pub(crate) counters: Vec<String>,
    pub(crate) missing: Option<String>,
    pub(crate) without: Option<String>,
}

/// The copies from one arena to another.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BenchTransfer {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) bytes: u64,
    pub(crate) copies: u64,
    pub(crate) seconds: f64,
}

/// The part of the transfers that overlapped with compute.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UnderCompute {
    pub(crate) transfer_s: f64,
    pub(crate) under_compute_s: f64,
    pub(crate) part: Option<f64>,
}

/// The number of links with measured prices, and with guesses.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LinkPrices {
    pub(crate) measured: u64,
    pub(crate) guessed: u64,
    pub(crate) measured_unix_s: Option<u64>,
    pub(crate) notes: Vec<String>,
}

/// The output of `dml devices`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Devices {
    pub(crate) devices: Vec<Device>,
    pub(crate) arenas: Vec<Arena>,
    pub(crate) links: Vec<Link>,
    pub(crate) speeds: Speeds,
    pub(crate) unavailable: Vec<Unavailable>,
}

/// A device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) description: String,
    pub(crate) units: u32,
}

/// An arena.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Arena {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) native: String,
    pub(crate) remotes: Vec<String>,
}

/// A link and its speed, or why the speed could not be measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Link {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) mechanism: String,
    pub(crate) figures: &'static str,
    pub(crate) measured_unix_s: Option<u64>,
    pub(crate) latency_ns: Option<u64>,
    pub(crate) bytes_per_s: Option<u64>,
    pub(crate) classes: Vec<SizeClass>,
    pub(crate) error: Option<String>,
}

/// The time of a copy of one size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SizeClass {
    pub(crate) bytes: u64,
    pub(crate) copy_ns: u64,
}

/// The file of measured speeds, and notes on what was ignored in it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Speeds {
    pub(crate) file: Option<String>,
    pub(crate) notes: Vec<String>,
}

/// An unavailable backend.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Unavailable {
    pub(crate) backend: String,
    pub(crate) reason: String,
}

/// The times of transfers to a worker and of calls of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Offload {
    pub(crate) device: String,
    pub(crate) runs: u32,
    pub(crate) bytes: u64,
    pub(crate) memcpy_bytes_per_s: u64,
    pub(crate) to_worker_bytes_per_s: u64,
    pub(crate) from_worker_bytes_per_s: u64,
    pub(crate) to_worker_over_memcpy: f64,
    pub(crate) from_worker_over_memcpy: f64,
    pub(crate) short_bytes: u64,
    pub(crate) short_to_worker_ns: u64,
    pub(crate) short_from_worker_ns: u64,
    pub(crate) empty_run_ns: u64,
    pub(crate) start_ns: u64,
}

/// The plan of a copy from one memory to another.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plan {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) bytes: u64,
    pub(crate) first: Option<Steps>,
    pub(crate) again: Option<Steps>,
    pub(crate) rejected: Vec<Rejected>,
}

/// The steps of a plan.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Steps {
    pub(crate) cost_ns: u64,
    pub(crate) steps: Vec<String>,
}

/// A path that the plan does not use.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rejected {
    pub(crate) way: Vec<Hop>,
    pub(crate) cost_ns: Option<u64>,
    pub(crate) reason: Option<String>,
}

/// A link of a path.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hop {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) mechanism: String,
}

/// A table of a paper, beside the published one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Reproduced {
    pub(crate) table: &'static str,
    pub(crate) device: String,
    pub(crate) size: &'static str,
    pub(crate) runs: u32,
    pub(crate) verified: bool,
    pub(crate) rows: Vec<ReproducedRow>,
}

/// One workload of a table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReproducedRow {
    pub(crate) row: &'static str,
    pub(crate) size: BTreeMap<&'static str, u64>,
    pub(crate) published: BTreeMap<&'static str, PublishedMode>,
    pub(crate) hand: Option<ReproducedMode>,
    pub(crate) hand_bound: Option<ReproducedMode>,
    pub(crate) hand_pinned: Option<ReproducedMode>,
    pub(crate) noopt: Option<ReproducedMode>,
    pub(crate) opt: Option<ReproducedMode>,
    pub(crate) ratios: ReproducedRatios,
}

/// The published figures of one mode; `None` for a number that the paper does not give.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PublishedMode {
    pub(crate) seconds: f64,
    pub(crate) operations: BTreeMap<&'static str, Option<u64>>,
}

/// The measured time and operation counts of one mode.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReproducedMode {
    pub(crate) seconds: f64,
    pub(crate) seconds_min: f64,
    pub(crate) seconds_max: f64,
    pub(crate) operations: BTreeMap<&'static str, u64>,
}

/// Medians of the ratios of times in the same round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReproducedRatios {
    pub(crate) opt_over_hand: Option<f64>,
    pub(crate) opt_over_hand_bound: Option<f64>,
    pub(crate) opt_over_hand_pinned: Option<f64>,
    pub(crate) noopt_over_hand: Option<f64>,
}

/// The output of `dml reproduce single`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Single {
    pub(crate) table: &'static str,
    pub(crate) workload: &'static str,
    pub(crate) size: &'static str,
    pub(crate) memory: &'static str,
    pub(crate) pinned_bytes: Option<u64>,
    pub(crate) runs: u32,
    pub(crate) verified: bool,
    pub(crate) missed: u64,
    pub(crate) rows: Vec<SingleRow>,
    pub(crate) left_out: Vec<SingleLeftOut>,
}

/// One device and one length.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SingleRow {
    pub(crate) device: String,
    pub(crate) description: String,
    pub(crate) units: u32,
    pub(crate) length: &'static str,
    pub(crate) edge: u64,
    pub(crate) pairs: u64,
    pub(crate) hand: SingleTimes,
    pub(crate) dml: SingleTimes,
    pub(crate) more_s: f64,
    pub(crate) ratio: f64,
    pub(crate) ratio_min: f64,
    pub(crate) ratio_max: f64,
    pub(crate) goal: Option<f64>,
    pub(crate) kept: Option<bool>,
}

/// The times by hand, or those of DML.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SingleTimes {
    pub(crate) seconds: f64,
    pub(crate) seconds_min: f64,
    pub(crate) seconds_max: f64,
}

/// A device without a hand-written form.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SingleLeftOut {
    pub(crate) device: String,
    pub(crate) reason: &'static str,
}

/// Figures over the regular workloads, over the irregular ones, and over all.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ByKind<T> {
    pub(crate) regular: T,
    pub(crate) irregular: T,
    pub(crate) all: T,
}

/// The suite co-executed, beside the published figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Coexec {
    pub(crate) table: &'static str,
    pub(crate) size: &'static str,
    pub(crate) policy: String,
    pub(crate) memory: &'static str,
    pub(crate) pinned_bytes: Option<u64>,
    pub(crate) runs: u32,
    pub(crate) verified: bool,
    pub(crate) rows: Vec<CoexecRow>,
    pub(crate) means: ByKind<SuiteMeans>,
    pub(crate) published: Vec<PublishedCoexec>,
}

/// One workload of the suite.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CoexecRow {
    pub(crate) kind: &'static str,
    pub(crate) packages: u64,
    #[serde(flatten)]
    pub(crate) bench: Bench,
}

/// The published figures of some programs on one system; `None` for a number that the paper does not give.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PublishedCoexec {
    pub(crate) source: &'static str,
    pub(crate) system: &'static str,
    pub(crate) policy: &'static str,
    pub(crate) over: &'static str,
    pub(crate) speedup: Option<f64>,
    pub(crate) efficiency: Option<f64>,
    pub(crate) balance: Option<f64>,
}

/// The cost of each kind of memory, for each workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemoryTable {
    pub(crate) table: &'static str,
    pub(crate) size: &'static str,
    pub(crate) policy: String,
    pub(crate) runs: u32,
    pub(crate) verified: bool,
    pub(crate) devices: Vec<String>,
    pub(crate) bound_missing: Option<String>,
    pub(crate) most_over_better: f64,
    pub(crate) missed: u64,
    pub(crate) bound_over_copy: ByKind<Option<f64>>,
    pub(crate) rows: Vec<MemoryRow>,
}

/// One workload with each kind of memory.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemoryRow {
    pub(crate) workload: String,
    pub(crate) kind: &'static str,
    pub(crate) size: BTreeMap<&'static str, u64>,
    pub(crate) devices: Vec<String>,
    pub(crate) copy: MemoryCost,
    pub(crate) bound: Option<MemoryCost>,
    pub(crate) auto: MemoryCost,
    pub(crate) better: &'static str,
    pub(crate) bound_over_copy: Option<f64>,
    pub(crate) auto_over_better: f64,
    pub(crate) kept: bool,
}

/// The cost of one kind of memory.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemoryCost {
    pub(crate) seconds: f64,
    pub(crate) seconds_min: f64,
    pub(crate) seconds_max: f64,
    pub(crate) over_better: f64,
    pub(crate) used: Vec<String>,
    pub(crate) bytes: u64,
    pub(crate) operations: BTreeMap<&'static str, u64>,
}

/// The output of `dml bench acquire`. All times are medians, per operation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Acquire {
    pub(crate) runs: u32,
    pub(crate) mutex_pair_ns: f64,
    pub(crate) acquire_release_ns: AcquireRelease,
    pub(crate) ten_buffers_ns: f64,
    pub(crate) submit_ns: f64,
    pub(crate) new_buffer_ns: f64,
    pub(crate) two_threads_ns: TwoThreads,
    pub(crate) by_ranges_ns: BTreeMap<u32, f64>,
    pub(crate) by_buffers_ns: BTreeMap<u32, f64>,
    pub(crate) by_held_ns: BTreeMap<u32, f64>,
    pub(crate) buffer_bytes: Option<f64>,
    pub(crate) storage_bytes: Option<f64>,
    pub(crate) range_bytes: Option<f64>,
}

/// An acquire and a release of one buffer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AcquireRelease {
    pub(crate) read: f64,
    pub(crate) read_write: f64,
    pub(crate) write: f64,
    pub(crate) read_slice: f64,
    pub(crate) read_view: f64,
    pub(crate) read_await: f64,
}

/// Operations on two threads at once, on each of them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TwoThreads {
    pub(crate) different_mutexes: f64,
    pub(crate) same_mutex: f64,
    pub(crate) different_buffers: f64,
    pub(crate) same_buffer_read: f64,
    pub(crate) same_buffer_write: f64,
}

/// The output of `dml bench chain`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Chain {
    pub(crate) kernels: u64,
    pub(crate) runs: u32,
    pub(crate) rows: Vec<ChainRow>,
    pub(crate) pairs: Vec<ChainPair>,
}

/// A chain on each of two devices at once. All figures are medians.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChainPair {
    pub(crate) devices: [String; 2],
    pub(crate) elements: u64,
    pub(crate) alone_ns: [f64; 2],
    pub(crate) both_ns: f64,
    pub(crate) over_longer: f64,
}

/// The kernels of one shape and size on one device. All figures are medians.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChainRow {
    pub(crate) device: String,
    pub(crate) shape: String,
    pub(crate) elements: u64,
    pub(crate) per_kernel_ns: f64,
    pub(crate) by_hand_ns: f64,
    pub(crate) one_grant_ns: f64,
    pub(crate) one_by_one_ns: f64,
    pub(crate) over_by_hand: f64,
}

/// The output of `dml bench pipeline`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pipeline {
    pub(crate) chunks: u32,
    pub(crate) elements: u32,
    pub(crate) pinned_bytes: Option<u64>,
    pub(crate) runs: u32,
    pub(crate) rows: Vec<PipelineRow>,
}

/// The chunks on one device. All figures are medians.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PipelineRow {
    pub(crate) device: String,
    pub(crate) rounds: u32,
    pub(crate) submitted_s: f64,
    pub(crate) by_hand_s: f64,
    pub(crate) one_by_one_s: f64,
    pub(crate) transfers_s: f64,
    pub(crate) kernels_s: f64,
    pub(crate) of_by_hand: f64,
    pub(crate) hidden: f64,
    pub(crate) hidden_by_hand: f64,
}

/// The output of `dml run --check`, if there are no mistakes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckedApplication {
    pub(crate) application: String,
    /// The devices that can run it.
    pub(crate) devices: Vec<String>,
    pub(crate) parts: Vec<ArrayPart>,
}

/// A part of an array that packages of a kernel need.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ArrayPart {
    pub(crate) kernel: String,
    pub(crate) array: String,
    /// `reads`, `writes` or `updates`.
    pub(crate) access: &'static str,
    /// The part as a file would declare it; `null` for one that a file cannot declare.
    pub(crate) part: Option<String>,
    pub(crate) is_declared: bool,
    /// Whether the source proves it.
    pub(crate) is_proven: bool,
}

/// The output of `dml run`. Times are medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ran {
    pub(crate) application: String,
    pub(crate) parameters: BTreeMap<String, f64>,
    pub(crate) devices: Vec<String>,
    pub(crate) runs: u32,
    pub(crate) seconds: f64,
    pub(crate) seconds_min: f64,
    pub(crate) seconds_max: f64,
    /// The kernels of the last run, and its repetitions.
    pub(crate) kernels: Vec<RanKernel>,
    pub(crate) repeats: Vec<RanRepeat>,
    /// The files that were written, by array.
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) trace: Option<String>,
    pub(crate) html: Option<String>,
}

/// A kernel of an application.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RanKernel {
    pub(crate) kernel: String,
    pub(crate) runs: u64,
    /// The items of the last run by device.
    pub(crate) items: BTreeMap<String, u64>,
}

/// Repeated steps of an application.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RanRepeat {
    pub(crate) count: u64,
    pub(crate) stopped: bool,
    /// The last value of the array of `until`; `None` if there is none, or it is no number.
    pub(crate) until: Option<f64>,
    /// The ratios of the strips by device; `None` if the steps were not run over strips.
    pub(crate) shares: Option<BTreeMap<String, f64>>,
    /// Why the steps were not run over strips.
    pub(crate) one_by_one: Option<&'static str>,
}

/// The output of `dml profile`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Profiled {
    pub(crate) application: String,
    pub(crate) devices: Vec<String>,
    pub(crate) kernels: Vec<ProfiledKernel>,
    pub(crate) picture: Option<String>,
}

/// A kernel, or the first one of repeated steps. Lists are by device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProfiledKernel {
    pub(crate) kernel: String,
    pub(crate) items: u64,
    pub(crate) rounds: Vec<ProfiledRound>,
    /// The kept ratios, whose sum is 1.
    pub(crate) ratios: Vec<f64>,
    pub(crate) balanced: bool,
}

/// A measured step with strips in these ratios. The time of a device without a strip is `None`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProfiledRound {
    pub(crate) ratios: Vec<f64>,
    pub(crate) seconds: Vec<Option<f64>>,
}

/// The output of `dml bench jacobi` and of the other programs of steps.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepsBench {
    pub(crate) program: &'static str,
    pub(crate) columns: u64,
    pub(crate) rows: u64,
    pub(crate) planes: u64,
    pub(crate) steps: u64,
    pub(crate) pinned_bytes: Option<u64>,
    pub(crate) runs: u32,
    pub(crate) alone: Vec<StepsAlone>,
    pub(crate) together: Option<StepsTogether>,
    pub(crate) picture: Option<String>,
    pub(crate) trace: Option<String>,
    pub(crate) html: Option<String>,
}

/// A program of steps on one device. The time is the median.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepsAlone {
    pub(crate) device: String,
    pub(crate) step_s: f64,
    /// The time of a program by hand; `None` if there is none or it was not asked for.
    pub(crate) by_hand_s: Option<f64>,
}

/// A program of steps on all devices. All figures are medians, except for those of the last run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepsTogether {
    pub(crate) step_s: f64,
    /// The time of the fastest device alone over the time together.
    pub(crate) speedup: f64,
    /// The speedup that the sum of the devices' rates would give.
    pub(crate) ideal: f64,
    /// The time of a program by hand with the same strips; `None` if there is none or it was not asked for.
    pub(crate) by_hand_s: Option<f64>,
    /// The number of corrections of the strips, in the last run.
    pub(crate) corrections: u32,
    /// The number of bytes per step that devices exchanged in the last half of the last run.
    pub(crate) bytes_per_step: f64,
    /// The strips of the last run, by kernel and device.
    pub(crate) strips: Vec<StepsStrip>,
}

/// A strip: the items of a kernel that a device computes. One that was left out has none.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepsStrip {
    pub(crate) kernel: String,
    pub(crate) device: String,
    pub(crate) first_item: u64,
    pub(crate) items: u64,
}

/// The output of `dml reproduce stepocl`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stepocl {
    pub(crate) table: &'static str,
    pub(crate) size: &'static str,
    pub(crate) runs: u32,
    pub(crate) devices: Vec<String>,
    pub(crate) rows: Vec<StepoclRow>,
}

/// An application. Times are medians; those of the program by hand and of all devices are `None` if there is
/// no such program, or one device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepoclRow {
    pub(crate) application: String,
    pub(crate) description_lines: u64,
    pub(crate) kernel_lines: u64,
    pub(crate) by_hand_lines: u64,
    pub(crate) published_description_lines: u64,
    pub(crate) published_by_hand_lines: u64,
    pub(crate) native_s: Option<f64>,
    /// By device.
    pub(crate) alone_s: Vec<f64>,
    pub(crate) together_s: Option<f64>,
    /// The time of the program by hand over that of the first device.
    pub(crate) single: Option<f64>,
    pub(crate) published_single: f64,
    /// The speed of all devices over the sum of their speeds alone.
    pub(crate) share_of_sum: Option<f64>,
    pub(crate) published_shares_of_sum: [f64; 2],
}

/// The output of `dml reproduce jacobi`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Jacobi {
    pub(crate) table: &'static str,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) steps: u64,
    pub(crate) runs: u32,
    pub(crate) alone: Vec<JacobiAlone>,
    /// The number of rows by which lines are moved.
    pub(crate) moved_by: u64,
    pub(crate) around: Vec<JacobiCell>,
    /// The speed of the best cell over that of the fastest device alone.
    pub(crate) speedup: f64,
    /// The sum of the speeds alone over that of the fastest device.
    pub(crate) ideal: f64,
    pub(crate) share_of_ideal: f64,
}

/// The median speed of a device alone.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JacobiAlone {
    pub(crate) device: String,
    pub(crate) points_per_s: f64,
}

/// The median speed with strips that begin at these rows, after the first one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JacobiCell {
    pub(crate) lines: Vec<u64>,
    pub(crate) points_per_s: f64,
}

/// The output of `dml bench never-loses`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NeverLoses {
    pub(crate) longest_s: f64,
    pub(crate) runs: u32,
    pub(crate) learned: Kept,
    pub(crate) scaled: Kept,
    pub(crate) unknown: Kept,
    pub(crate) rows: Vec<NeverLosesRow>,
}

/// The number of rows that are within a limit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Kept {
    pub(crate) rows: u64,
    pub(crate) kept: u64,
}

/// A set of devices compared with the best one alone. All figures are medians.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Beside {
    pub(crate) seconds: f64,
    pub(crate) ratio: f64,
    pub(crate) more_s: f64,
}

/// One workload and size on one set of devices.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NeverLosesRow {
    pub(crate) workload: String,
    pub(crate) items: u64,
    pub(crate) devices: Vec<String>,
    pub(crate) best: String,
    pub(crate) alone_s: f64,
    pub(crate) learned: Beside,
    /// With knowledge of 1/64 of the size; `None` if that is not one of the sizes.
    pub(crate) scaled: Option<Beside>,
    pub(crate) unknown: Beside,
    pub(crate) used: Vec<String>,
    pub(crate) left_out: Vec<String>,
}
