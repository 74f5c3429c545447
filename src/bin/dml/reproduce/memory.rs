//! `dml reproduce memory`: compares copies, one shared storage, and the planner's choice, for each workload.
//!
//! The three configurations are platforms of the same devices. Each one runs once in each round, so that all
//! see the machine in the same condition. The table shows medians of ratios within a round.

use super::{give, published};
use crate::bench::{self, Bench, Run, able, is_able};
use crate::cli::{BenchOptions, Memory, NO_FILES, ReproduceOptions, TableSize};
use crate::failure::Failure;
use crate::figures::median;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::suite::geometric_mean;
use crate::{json, table};
use dml::core::DeviceId;
use dml::core::record::OPERATIONS;
use dml::scheduler::metrics::Summary;
use dml::scheduler::{Knowledge, policy::PolicySpec};
use dml_workloads::prepare::{Kind, Prepared, Workload};
use std::collections::BTreeMap;

/// Maximum ratio of the planner's choice to the better of the other two.
const MOST_OVER_BETTER: f64 = 1.03;
/// Default number of counted rounds, a multiple of the number of [`ORDERS`].
const RUNS: u32 = 12;
/// Number of uncounted runs in which the calibrated policy learns. It tries all sets of devices itself,
/// because no device runs alone before.
const LEARNING_RUNS: u32 = 12;
/// Orders of the configurations in successive rounds. In six rounds, each configuration has each place twice,
/// and follows each other one equally often.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

/// Measures and prints the table.
pub(super) fn run(options: &ReproduceOptions) -> Result<(), Failure> {
    if options.memory.is_some() {
        return Err(Failure::Usage("--memory does not apply to memory: it compares all kinds".to_owned()));
    }
    if options.pinned.pinned.is_some() {
        let why = "it compares kinds of memory that any device has";
        return Err(Failure::Usage(format!("--pinned does not apply to memory: {why}")));
    }
    let (configurations, bound_missing) = configurations(options)?;
    let [.., auto] = &configurations[..] else { unreachable!("two can always be had") };
    let runs = auto.options.runs;
    let of_workload = |workload| configurations.len() + auto.timed_alone(workload);
    let steps = Workload::ALL.into_iter().map(of_workload).sum::<usize>() as u64 * (u64::from(runs) + 1);
    let mut progress = Progress::new(steps);
    let mut rows = Vec::new();
    for workload in Workload::ALL {
        rows.push(measure(&configurations, workload, &mut progress)?);
    }
    progress.done();
    let result = json::MemoryTable {
        table: "memory",
        size: options.size_name(TableSize::Small),
        policy: auto.options.policy.to_string(),
        runs,
        verified: true,
        devices: auto.names(&auto.machine.devices),
        bound_missing,
        most_over_better: MOST_OVER_BETTER,
        missed: rows.iter().filter(|row| !row.kept).count() as u64,
        bound_over_copy: means(&rows),
        rows,
    };
    let note = auto.machine.note.as_deref();
    give(options, &result, || text(&result, note), |_| markdown(&result, note), None)
}

/// The devices with one kind of memory, and the knowledge of their runs.
struct Configuration {
    memory: Memory,
    options: BenchOptions,
    machine: Machine,
    knowledge: Knowledge,
}

/// Returns the configurations: copies, one storage if available, and the planner's choice last. If one
/// storage is unavailable, returns the reason, too.
fn configurations(options: &ReproduceOptions) -> Result<(Vec<Configuration>, Option<String>), Failure> {
    // Opened first, because this reports any error in the request.
    let auto = Configuration::open(options, Memory::Auto)?;
    let copy = Configuration::open(options, Memory::Copy)?;
    Ok(match Configuration::open(options, Memory::Bound) {
        Ok(bound) => (vec![copy, bound, auto], None),
        Err(failure) => (vec![copy, auto], Some(failure.to_string())),
    })
}

impl Configuration {
    fn open(options: &ReproduceOptions, memory: Memory) -> Result<Self, Failure> {
        let options = options.of_suite(memory, RUNS);
        let machine = Machine::of(&options.machine)?;
        // Knowledge of copies does not apply to shared storage.
        Ok(Self { memory, options, machine, knowledge: Knowledge::new() })
    }

    /// Returns the number of devices to time alone: all that take part, if the policy needs their powers.
    fn timed_alone(&self, workload: Workload) -> usize {
        let Self { options, machine, .. } = self;
        let takes_part =
            |device: &&DeviceId| is_able(&options.machine, &machine.platform, **device, workload);
        match options.policy {
            PolicySpec::Calibrated => 0,
            _ => machine.devices.iter().filter(takes_part).count(),
        }
    }

    fn names(&self, devices: &[DeviceId]) -> Vec<String> {
        let name = |device: &DeviceId| self.machine.platform.device_desc(*device).name.to_string();
        devices.iter().map(name).collect()
    }

    fn devices(&self, names: &[String]) -> Result<Vec<DeviceId>, Failure> {
        names.iter().map(|name| self.machine.platform.device(name).map_err(Failure::usage)).collect()
    }
}

/// Measures one workload with all configurations.
fn measure(
    configurations: &[Configuration],
    workload: Workload,
    progress: &mut Progress,
) -> Result<json::MemoryRow, Failure> {
    let auto = configurations.last().expect("two can always be had");
    let mut names =
        auto.names(&able(&auto.options.machine, &auto.machine.platform, &auto.machine.devices, workload));
    let mut prepared: Vec<Box<dyn Prepared>> = Vec::new();
    for one in configurations {
        let (platform, devices) = (&one.machine.platform, one.devices(&names)?);
        let this = bench::prepare(&one.options, &NO_FILES, platform, &devices, workload)?;
        // A device takes part only if it can hold the buffers in every kind of memory.
        let held = one.names(&bench::holding(&*this, platform, &devices)?);
        prepared.push(this);
        names.retain(|name| held.contains(name));
    }
    if names.is_empty() {
        return Err(Failure::Work(format!("no device can hold the buffers of {workload} in every memory")));
    }
    let devices: Vec<Vec<DeviceId>> =
        configurations.iter().map(|one| one.devices(&names)).collect::<Result<_, _>>()?;
    progress.skip(
        (auto.timed_alone(workload).saturating_sub(names.len())) as u64 * (u64::from(auto.options.runs) + 1),
    );
    let each = || configurations.iter().zip(&devices);
    let benches: Vec<Bench<'_>> = each()
        .zip(&prepared)
        .map(|((one, devices), prepared)| {
            let found = (&one.machine.platform, &devices[..], &one.machine.link_prices, &one.knowledge);
            Bench::new(&one.options, &NO_FILES, found, &**prepared)
        })
        .collect();
    let runs = paired(configurations, &benches, &devices, progress)?;
    for (one, bench) in configurations.iter().zip(&benches) {
        bench.verify(&format!("{workload} with --memory {}", one.memory.name()))?;
    }
    let size = prepared[0].size().into_iter().collect();
    Ok(row(workload, size, names, configurations, &runs))
}

/// Returns the counted runs of each configuration, in the order of the rounds.
fn paired(
    configurations: &[Configuration],
    benches: &[Bench<'_>],
    devices: &[Vec<DeviceId>],
    progress: &mut Progress,
) -> Result<Vec<Vec<Run>>, Failure> {
    let options = &configurations[0].options;
    let last = benches.len() - 1;
    let powers = match options.policy {
        PolicySpec::Calibrated => vec![1.0; devices[last].len()],
        _ => benches[last].powers(&benches[last].time_alone(progress)?),
    };
    let coexecutor =
        |index: usize| benches[index].coexecutor(&devices[index], &powers, options.policy.clone());
    let coexecutors: Vec<_> = (0..benches.len()).map(coexecutor).collect();
    let meters: Vec<_> = benches.iter().zip(devices).map(|(bench, devices)| bench.meter(devices)).collect();
    if options.policy == PolicySpec::Calibrated {
        for (bench, (coexecutor, meter)) in benches.iter().zip(coexecutors.iter().zip(&meters)) {
            for _ in 0..LEARNING_RUNS {
                bench.run_once(coexecutor, meter)?;
            }
        }
    }
    rounds(options.runs, benches.len(), |index| {
        progress.step(&format!("{}: {}", benches[index].workload(), configurations[index].memory.name()));
        benches[index].run_once(&coexecutors[index], &meters[index])
    })
}

/// Runs every configuration once in each round. Discards the first round.
fn rounds<T>(
    runs: u32,
    count: usize,
    mut run: impl FnMut(usize) -> Result<T, Failure>,
) -> Result<Vec<Vec<T>>, Failure> {
    let mut counted: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for round in 0..=runs {
        for index in order(round, count) {
            let result = run(index)?;
            if round > 0 {
                counted[index].push(result);
            }
        }
    }
    Ok(counted)
}

/// Returns the order of the configurations in a round.
fn order(round: u32, count: usize) -> impl Iterator<Item = usize> {
    ORDERS[round as usize % ORDERS.len()].into_iter().filter(move |index| *index < count)
}

/// Returns the row of one workload. `runs` are those of each configuration, the planner's choice last.
fn row(
    workload: Workload,
    size: BTreeMap<&'static str, u64>,
    devices: Vec<String>,
    configurations: &[Configuration],
    runs: &[Vec<Run>],
) -> json::MemoryRow {
    let seconds = runs.iter().map(|runs| runs.iter().map(|run| run.seconds).collect());
    let Compared { better, over_better, bound_over_copy } = Compared::of(&seconds.collect::<Vec<_>>());
    let of = |index: usize| cost(&runs[index], over_better[index], &devices);
    let auto = runs.len() - 1;
    json::MemoryRow {
        workload: workload.to_string(),
        kind: workload.kind().name(),
        size,
        copy: of(0),
        bound: bound_over_copy.map(|_| of(1)),
        auto: of(auto),
        better: configurations[better].memory.name(),
        bound_over_copy,
        auto_over_better: over_better[auto],
        kept: over_better[auto] <= MOST_OVER_BETTER,
        devices,
    }
}

/// The comparison of the configurations: copies, one storage if available, and the planner's choice.
#[derive(Debug, PartialEq)]
struct Compared {
    /// Index of the configuration with the smallest median, except for the planner's choice.
    better: usize,
    /// Median ratio of each configuration's times to those of the better one.
    over_better: Vec<f64>,
    bound_over_copy: Option<f64>,
}

impl Compared {
    /// Compares the times of each configuration, which are in the order of the rounds.
    fn of(seconds: &[Vec<f64>]) -> Self {
        let choices = seconds.len() - 1;
        let medians: Vec<f64> = seconds.iter().map(|seconds| median(seconds.iter().copied())).collect();
        let better = (0..choices).min_by(|a, b| medians[*a].total_cmp(&medians[*b])).unwrap_or_default();
        Self {
            better,
            over_better: seconds.iter().map(|one| ratio(one, &seconds[better])).collect(),
            bound_over_copy: (choices > 1).then(|| ratio(&seconds[1], &seconds[0])),
        }
    }
}

/// Returns the median of the ratios of times in the same round.
fn ratio(one: &[f64], other: &[f64]) -> f64 {
    median(one.iter().zip(other).map(|(one, other)| one / other))
}

/// Returns the cost of one configuration: its times, and the devices, bytes and operations of its median run.
fn cost(runs: &[Run], over_better: f64, devices: &[String]) -> json::MemoryCost {
    let seconds: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
    let Summary { median, min, max, .. } = Summary::of(&seconds).expect("at least one round counts");
    let mut order: Vec<&Run> = runs.iter().collect();
    order.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let run = order[order.len() / 2];
    let used = run.report.devices.iter().zip(devices).filter(|(device, _)| device.items > 0);
    json::MemoryCost {
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        over_better,
        used: used.map(|(_, name)| name.clone()).collect(),
        bytes: run.transfers.iter().map(|transfer| transfer.bytes).sum(),
        operations: run.operations.clone(),
    }
}

/// Returns the geometric means of the ratio of shared storage's time to that of copies.
fn means(rows: &[json::MemoryRow]) -> json::ByKind<Option<f64>> {
    let mean = |is_of: &dyn Fn(&str) -> bool| {
        geometric_mean(rows.iter().filter(|row| is_of(row.kind)).filter_map(|row| row.bound_over_copy))
    };
    json::ByKind {
        regular: mean(&|kind| kind == Kind::Regular.name()),
        irregular: mean(&|kind| kind == Kind::Irregular.name()),
        all: mean(&|_| true),
    }
}

/// Returns a line of cells for each workload and configuration, after a line of column names.
fn cells(result: &json::MemoryTable) -> Vec<Vec<String>> {
    let mut heading: Vec<String> =
        ["workload", "memory", "used", "time", "over better", "moved"].map(str::to_owned).to_vec();
    heading.extend(OPERATIONS.iter().map(|operation| operation.name().to_owned()));
    let mut lines = vec![heading];
    for row in &result.rows {
        let costs = [("copy", Some(&row.copy)), ("bound", row.bound.as_ref()), ("auto", Some(&row.auto))];
        for (memory, cost) in costs {
            let Some(cost) = cost else { continue };
            let missed = if memory == "auto" && !row.kept { " missed" } else { "" };
            let mut line = vec![
                row.workload.clone(),
                memory.to_owned(),
                cost.used.join("+"),
                table::seconds(cost.seconds),
                format!("{:.3}{missed}", cost.over_better),
                table::bytes(cost.bytes),
            ];
            let count = |name: &str| cost.operations.get(name).copied().unwrap_or_default().to_string();
            line.extend(OPERATIONS.iter().map(|operation| count(operation.name())));
            lines.push(line);
        }
    }
    lines
}

fn heading(result: &json::MemoryTable) -> String {
    let json::MemoryTable { size, policy, runs, devices, .. } = result;
    format!(
        "{}; {size} size; policy {policy}; median of {runs} rounds, in which every memory runs once",
        devices.join(" + ")
    )
}

/// Returns the outcome of all rows, in sentences.
fn outcome(result: &json::MemoryTable) -> Vec<String> {
    let (rows, missed) = (result.rows.len() as u64, result.missed);
    let mut lines = vec![format!(
        "Of {rows} rows, {} have auto within {MOST_OVER_BETTER} of the better of the other two, and {missed} miss it.",
        rows - missed
    )];
    let json::ByKind { regular, irregular, all } = result.bound_over_copy;
    if let (Some(regular), Some(irregular), Some(all)) = (regular, irregular, all) {
        lines.push(format!(
            "bound takes {regular:.3} of the time of copy on regular workloads, {irregular:.3} on irregular ones, \
             and {all:.3} on all (geometric means)."
        ));
    }
    lines.extend(result.bound_missing.iter().map(|why| format!("bound is unavailable: {why}")));
    lines
}

/// Returns the table as text.
fn text(result: &json::MemoryTable, note: Option<&str>) -> String {
    let mut lines = vec![format!("memory: {}", heading(result))];
    lines.extend(note.map(str::to_owned));
    lines.push(String::new());
    lines.extend(table::lines(&cells(result)).into_iter().map(|line| format!("  {line}")));
    lines.push(String::new());
    lines.extend(outcome(result));
    lines.extend([published::MEMORY_NOTE, VERIFIED, ""].map(str::to_owned));
    lines.join("\n")
}

const VERIFIED: &str = "verified    every item of the last round, with every memory";

/// Returns the table as markdown.
fn markdown(result: &json::MemoryTable, note: Option<&str>) -> String {
    let mut lines = vec![
        "# Copies, one storage, and the planner's choice".to_owned(),
        String::new(),
        format!("`dml reproduce memory` measured this: {}.", heading(result)),
    ];
    lines.extend(INTRODUCTION.map(str::to_owned));
    lines.extend(note.map(|note| format!("Here {note}.")));
    lines.push(String::new());
    lines.extend(table::markdown(&cells(result)));
    for sentence in outcome(result) {
        lines.extend([String::new(), sentence]);
    }
    lines.extend([String::new(), published::MEMORY_NOTE.to_owned(), String::new()]);
    lines.join("\n")
}

const INTRODUCTION: [&str; 4] = [
    "`copy`: each memory has storage of its own, the papers' Buffers. `bound`: all share one storage, their USM.",
    "`auto`: as the planner chooses. *Over better* are times over those of the faster of `copy` and `bound`: medians of",
    "ratios within a round. The devices that computed, bytes and operations are those of the median run. *Missed* is more",
    "than 1.03 times the faster one.",
];

#[cfg(test)]
mod tests;
