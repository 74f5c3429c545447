//! `dml reproduce memory`: what copies, one storage for all memories, and the planner's own choice cost every workload.
//!
//! The three are three platforms of the same devices. In each round every one of them runs once, so that all find the
//! machine in the same condition; ratios are taken within a round, and their medians count.

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
use dml::scheduler::{Knowledge, PolicySpec};
use dml_workloads::prepare::{Kind, Prepared, Workload};
use std::collections::BTreeMap;

/// At most so many times the better of the other two is the planner's choice to take.
const MOST_OVER_BETTER: f64 = 1.03;
/// Runs that count, unless the options say how many: each order of the three as often.
const RUNS: u32 = 12;
/// Runs in which the calibrated policy learns, and that do not count: no device runs alone before, so it tries all sets by itself.
const LEARNING_RUNS: u32 = 12;
/// The orders in which rounds run the configurations: in six rounds each has each place twice, and follows each other.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

/// Measures and prints.
pub(super) fn run(options: &ReproduceOptions) -> Result<(), Failure> {
    if options.memory.is_some() {
        return Err(Failure::Usage("--memory means nothing to memory: it compares all of them".to_owned()));
    }
    if options.pinned.pinned.is_some() {
        let why = "it compares kinds of memory that any device has";
        return Err(Failure::Usage(format!("--pinned means nothing to memory: {why}")));
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

/// The devices of one kind of memory, and what runs on them taught.
struct Configuration {
    memory: Memory,
    options: BenchOptions,
    machine: Machine,
    knowledge: Knowledge,
}

/// Copies, one storage for all if it can be had, and the planner's choice, which comes last; and why there is no such
/// storage.
fn configurations(options: &ReproduceOptions) -> Result<(Vec<Configuration>, Option<String>), Failure> {
    // First, because what is wrong with the request is wrong here, too.
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
        // What is known of copies says nothing of shared storage.
        Ok(Self { memory, options, machine, knowledge: Knowledge::new() })
    }

    /// How many devices a workload is timed on alone: those that take part, where their powers are asked for.
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
        let name =
            |device: &DeviceId| self.machine.platform.devices()[usize::from(device.0)].name.to_string();
        devices.iter().map(name).collect()
    }

    fn devices(&self, names: &[String]) -> Result<Vec<DeviceId>, Failure> {
        names.iter().map(|name| self.machine.platform.device(name).map_err(Failure::usage)).collect()
    }
}

/// One workload with every configuration.
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
        // What one kind of memory cannot hold is not compared.
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

/// The runs of each configuration that count, in the order of the rounds.
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

/// Runs every configuration once in each round. The first round does not count.
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

/// The order of the configurations in a round.
fn order(round: u32, count: usize) -> impl Iterator<Item = usize> {
    ORDERS[round as usize % ORDERS.len()].into_iter().filter(move |index| *index < count)
}

/// What the runs of one workload say: those of each configuration, the planner's choice last.
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

/// The configurations beside each other: copies, one storage if it can be had, and the planner's choice.
#[derive(Debug, PartialEq)]
struct Compared {
    /// Which one has the least median, the planner's choice left out.
    better: usize,
    /// The ratio of each one's times to those of the better one.
    over_better: Vec<f64>,
    bound_over_copy: Option<f64>,
}

impl Compared {
    /// From the times of each configuration, in the order of the rounds.
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

/// The median of the ratios of times in the same round.
fn ratio(one: &[f64], other: &[f64]) -> f64 {
    median(one.iter().zip(other).map(|(one, other)| one / other))
}

/// What one configuration costs: its times, and what its median run used, moved and called.
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

/// Geometric means of what shared storage takes of the time of copies.
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

/// A line for each workload and configuration, below a line of names.
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

/// What the rows come to, a sentence each.
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
    lines.extend(result.bound_missing.iter().map(|why| format!("bound cannot be had: {why}")));
    lines
}

/// The table for people.
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

/// The table as markdown.
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
