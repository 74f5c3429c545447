//! `dml bench never-loses`: compares sets of devices with their best device alone, for all sizes.
//!
//! In each round, the devices that may be the best run alone. Then the set runs with learned knowledge, with
//! knowledge of 1/64 of the size, and without knowledge. An untimed run precedes each timed one, on the same
//! device or on the set with learned knowledge. Otherwise, a run after a GPU's run would find cold caches and
//! sleeping cores. The reported ratio is the median over the rounds.

use crate::bench::{able, holding};
use crate::cli::NeverLosesOptions;
use crate::failure::{self, Failure};
use crate::machine::Machine;
use crate::output::Unwritten;
use crate::progress::Progress;
use crate::{json, replay, table};
use dml::core::DeviceId;
use dml::prelude::*;
use dml::scheduler::policy::RecordedDecisions;
use dml::scheduler::{Knowledge, Report, metrics};
use dml_workloads::prepare::{Input, PrepareError, Prepared, Workload};
use std::time::Instant;

/// Number of runs after which a set counts as having learned.
const TRAINING: u32 = 12;
/// Ratio of a device's time to the best time above which it cannot be the best, and is not timed again.
const NO_RIVAL: f64 = 1.5;
/// Ratio of a device's time to the best time above which it runs only once.
const HOPELESS: f64 = 20.0;
/// Factor between consecutive sizes.
const STEP: u64 = 8;
/// Number of steps from a size down to the smaller one that a set learns from, which is 1/64 of it.
const SMALLER: usize = 2;

/// The limit on a set's time relative to the best device alone.
struct Limit {
    name: &'static str,
    /// Maximum ratios, each with the time of the best device from which it applies, in seconds. Descending.
    ratios: &'static [(f64, f64)],
    /// Maximum difference for shorter times, in seconds.
    more_s: f64,
}

const LEARNED: Limit = Limit { name: "learned", ratios: &[(1e-3, 1.05)], more_s: 30e-6 };
const SCALED: Limit = Limit { name: "learned at 1/64", ratios: &[(1e-3, 1.10)], more_s: 60e-6 };
const UNKNOWN: Limit = Limit { name: "unknown", ratios: &[(10e-3, 1.15), (1e-3, 1.3)], more_s: 300e-6 };

impl Limit {
    fn keeps(&self, alone_s: f64, found: &json::Beside) -> bool {
        match self.ratios.iter().find(|(from_s, _)| alone_s >= *from_s) {
            Some((_, most)) => found.ratio <= *most,
            None => found.more_s <= self.more_s,
        }
    }
}

/// Measures and prints the table.
pub(crate) fn run(options: &NeverLosesOptions) -> Result<(), Failure> {
    let workloads: &[Workload] =
        if options.workloads.is_empty() { &Workload::ALL } else { &options.workloads };
    if let Some(folder) = options.decisions.as_deref().filter(|folder| !folder.is_dir()) {
        return Err(Failure::Usage(format!("--decisions {}: no such folder", folder.display())));
    }
    let machine = Machine::of(&options.machine)?;
    if machine.devices.len() < 2 {
        let missing = machine.unavailable.iter().map(|missing| format!("; unavailable: {missing}"));
        return Err(Failure::Usage(format!(
            "never-loses needs at least two devices to compare, and there is one{}",
            missing.collect::<String>()
        )));
    }
    let (mut rows, mut unwritten) = (Vec::new(), Unwritten::default());
    if !options.json {
        failure::print(&heading(machine.note.as_deref()))?;
    }
    let mut turn = 0;
    for &workload in workloads {
        let devices = &able(&options.machine, &machine.platform, &machine.devices, workload);
        let mut smaller: Vec<Box<dyn Prepared>> = Vec::new();
        for size in sizes(workload) {
            let input = Input::Size(size);
            let prepared = match workload.prepare(&machine.platform, devices, &input) {
                Ok(prepared) => prepared,
                Err(PrepareError::Memory { .. }) => break,
                Err(error) => return Err(Failure::work(error)),
            };
            let holding = &holding(&*prepared, &machine.platform, devices)?;
            let before = (smaller.len() == SMALLER).then(|| &*smaller[0]);
            let bench = Bench {
                options,
                machine: &machine,
                devices: holding,
                workload,
                prepared: &*prepared,
                smaller: before,
            };
            let is_chosen = turn % u64::from(options.every) == 0;
            turn += 1;
            if is_chosen {
                let Some(of_size) = bench.run(&mut unwritten)? else { break };
                rows.extend(of_size);
            }
            smaller.push(prepared);
            smaller.drain(..smaller.len().saturating_sub(SMALLER));
        }
    }
    let kept = |limit: &dyn Fn(&json::NeverLosesRow) -> Option<bool>| {
        let judged: Vec<bool> = rows.iter().filter_map(limit).collect();
        json::Kept { rows: judged.len() as u64, kept: judged.iter().filter(|kept| **kept).count() as u64 }
    };
    let result = json::NeverLoses {
        longest_s: options.longest,
        runs: options.runs,
        learned: kept(&|row| Some(LEARNED.keeps(row.alone_s, &row.learned))),
        scaled: kept(&|row| Some(SCALED.keeps(row.alone_s, row.scaled.as_ref()?))),
        unknown: kept(&|row| Some(UNKNOWN.keeps(row.alone_s, &row.unknown))),
        rows,
    };
    if options.json {
        json::print(&result)?;
    } else {
        failure::print(&summary(&result))?;
    }
    unwritten.end()
}

/// Returns the sizes of a workload: from one item up to the largest published size, by factors of 8.
fn sizes(workload: Workload) -> Vec<u64> {
    let (paper, is_square) = (workload.largest_published(), workload.size_is_edge());
    let paper = if is_square { paper * paper } else { paper };
    let items =
        std::iter::successors(Some(1_u64), |items| Some(items * STEP)).take_while(|items| *items < paper);
    let size = |items: u64| if is_square { (items as f64).sqrt().round() as u64 } else { items };
    items.chain([paper]).map(size).collect()
}

/// One workload at one size.
struct Bench<'a> {
    options: &'a NeverLosesOptions,
    machine: &'a Machine,
    /// Devices of the machine that have a kernel of the workload and can hold its buffers.
    devices: &'a [DeviceId],
    workload: Workload,
    prepared: &'a dyn Prepared,
    /// The workload at 1/64 of the size, if that is one of the sizes.
    smaller: Option<&'a dyn Prepared>,
}

/// A device that computes alone.
struct Alone {
    device: DeviceId,
    coexecutor: Coexecutor,
    seconds: f64,
}

impl Bench<'_> {
    /// Measures every set of at least two devices. Returns `None` if the best device takes longer than the
    /// options allow.
    fn run(&self, unwritten: &mut Unwritten) -> Result<Option<Vec<json::NeverLosesRow>>, Failure> {
        let mut alone = Vec::new();
        for &device in self.devices {
            let coexecutor = Coexecutor::new(&self.machine.platform).devices([device]);
            let best = alone.iter().map(|alone: &Alone| alone.seconds).fold(f64::INFINITY, f64::min);
            let seconds = seconds_beside(best, || self.once(&coexecutor))?;
            alone.push(Alone { device, coexecutor, seconds });
        }
        let best = alone.iter().map(|alone| alone.seconds).fold(f64::INFINITY, f64::min);
        if best > self.options.longest {
            return Ok(None);
        }
        let sets = (1_u32..1 << self.devices.len()).filter(|set| set.count_ones() > 1);
        let mut progress = Progress::new(sets.clone().count() as u64);
        let mut rows = Vec::new();
        for set in sets {
            progress.step(&format!("{}: {} items", self.workload, self.prepared.items()));
            let members: Vec<&Alone> = alone
                .iter()
                .enumerate()
                .filter(|(index, _)| set & 1 << index != 0)
                .map(|(_, it)| it)
                .collect();
            let row = self.set(&members, unwritten)?;
            if !self.options.json {
                progress.print(&line(&row))?;
            }
            rows.push(row);
        }
        progress.done();
        Ok(Some(rows))
    }

    fn set(&self, members: &[&Alone], unwritten: &mut Unwritten) -> Result<json::NeverLosesRow, Failure> {
        let best = members.iter().map(|alone| alone.seconds).fold(f64::INFINITY, f64::min);
        let rivals: Vec<&&Alone> = members.iter().filter(|alone| alone.seconds <= best * NO_RIVAL).collect();
        let devices: Vec<DeviceId> = members.iter().map(|alone| alone.device).collect();
        let together = |knowledge: &Knowledge| {
            Coexecutor::new(&self.machine.platform).devices(devices.iter().copied()).knowledge(knowledge)
        };
        let trained = together(&Knowledge::new());
        for _ in 0..TRAINING {
            self.once(&trained)?;
        }
        let smaller = self.smaller.map(|smaller| self.learned_of(smaller, &together)).transpose()?;
        let (mut alone_s, mut learned_s, mut scaled_s, mut unknown_s, mut decided) =
            (vec![Vec::new(); rivals.len()], Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.options.runs {
            for (rival, seconds) in rivals.iter().zip(&mut alone_s) {
                self.once(&rival.coexecutor)?;
                seconds.push(self.once(&rival.coexecutor)?);
            }
            self.once(&trained)?;
            learned_s.push(self.once(&trained)?);
            if let Some(smaller) = &smaller {
                self.once(&trained)?;
                scaled_s.push(self.once(&together(&smaller.detached()))?);
            }
            let unknown = together(&Knowledge::new());
            let unknown = if self.options.decisions.is_some() { unknown.record_decisions() } else { unknown };
            self.once(&trained)?;
            let (seconds, report) = self.reported(&unknown)?;
            unknown_s.push(seconds);
            decided.push((seconds, report.decisions));
        }
        self.prepared.verify().map_err(|error| Failure::Work(format!("the result is wrong: {error}")))?;
        let devices: Vec<String> = devices.iter().map(|&device| self.name(device)).collect();
        self.write_decisions(&devices, decided, unwritten);
        let (fastest, best_s) = fastest(&alone_s);
        let beside = |seconds: &[f64]| beside(seconds, &alone_s[fastest]);
        let report = trained.run(self.prepared.kernel(), self.prepared.items()).map_err(Failure::work)?;
        let worked = report.devices.iter().filter(|device| device.items > 0).map(|device| device.device);
        Ok(json::NeverLosesRow {
            workload: self.workload.to_string(),
            items: self.prepared.items(),
            devices,
            best: self.name(rivals[fastest].device),
            alone_s: best_s,
            learned: beside(&learned_s),
            scaled: smaller.map(|_| beside(&scaled_s)),
            unknown: beside(&unknown_s),
            used: worked.map(|device| self.name(device)).collect(),
            left_out: report
                .left_out
                .iter()
                .map(|left_out| format!("{}: {}", self.name(left_out.device), left_out.reason))
                .collect(),
        })
    }

    /// Returns the knowledge that a set learns from a smaller size.
    fn learned_of(
        &self,
        smaller: &dyn Prepared,
        together: &dyn Fn(&Knowledge) -> Coexecutor,
    ) -> Result<Knowledge, Failure> {
        let knowledge = Knowledge::new();
        let coexecutor = together(&knowledge);
        for _ in 0..TRAINING {
            smaller.reset().map_err(Failure::work)?;
            coexecutor.run(smaller.kernel(), smaller.items()).map_err(Failure::work)?;
        }
        Ok(knowledge)
    }

    /// Writes the decisions of the median run without knowledge, if the options request it.
    fn write_decisions(
        &self,
        devices: &[String],
        mut decided: Vec<(f64, Option<RecordedDecisions>)>,
        unwritten: &mut Unwritten,
    ) {
        let Some(folder) = &self.options.decisions else { return };
        decided.sort_by(|one, other| one.0.total_cmp(&other.0));
        let Some((_, Some(decisions))) = decided.get(decided.len() / 2) else { return };
        let name = format!("{}-{}-{}.txt", self.workload, self.prepared.items(), devices.join("-"));
        let path = folder.join(name.replace(':', ""));
        unwritten.name(&path, replay::write(&path, decisions));
    }

    /// Runs once, from the inputs on the host only to the outputs on the host. Returns the seconds.
    fn once(&self, coexecutor: &Coexecutor) -> Result<f64, Failure> {
        Ok(self.reported(coexecutor)?.0)
    }

    fn reported(&self, coexecutor: &Coexecutor) -> Result<(f64, Report), Failure> {
        self.prepared.reset().map_err(Failure::work)?;
        let begun = Instant::now();
        let report = coexecutor.run(self.prepared.kernel(), self.prepared.items()).map_err(Failure::work)?;
        self.prepared.collect().map_err(Failure::work)?;
        let seconds = begun.elapsed().as_secs_f64();
        // The time of the remaining devices would not be comparable.
        match report.failures.first() {
            Some(failure) => {
                Err(Failure::Work(format!("{} failed: {}", self.name(failure.device), failure.message)))
            }
            None => Ok((seconds, report)),
        }
    }

    fn name(&self, device: DeviceId) -> String {
        self.machine.platform.device_desc(device).name.to_string()
    }
}

/// Returns the time of a device alone, in seconds: the shorter of two runs, after one that pays for the first
/// touch of memory. If the first run is far slower than `best`, it is the only one.
fn seconds_beside(best: f64, mut once: impl FnMut() -> Result<f64, Failure>) -> Result<f64, Failure> {
    let first = once()?;
    if first > HOPELESS * best {
        return Ok(first);
    }
    Ok(once()?.min(once()?))
}

/// Compares a set's times with those of the best device alone in the same rounds.
fn beside(seconds: &[f64], alone_s: &[f64]) -> json::Beside {
    let rounds = || seconds.iter().zip(alone_s);
    let ratios: Vec<f64> = rounds().map(|(one, other)| one / other).collect();
    let more: Vec<f64> = rounds().map(|(one, other)| one - other).collect();
    json::Beside { seconds: median(seconds), ratio: median(&ratios), more_s: median(&more) }
}

/// Returns the index of the device that is fastest alone, by the median of its rounds, and that median.
fn fastest(alone_s: &[Vec<f64>]) -> (usize, f64) {
    let medians = alone_s.iter().map(|seconds| median(seconds));
    medians.enumerate().min_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or_default()
}

fn median(samples: &[f64]) -> f64 {
    metrics::Summary::of(samples).map_or(0.0, |summary| summary.median)
}

/// Widths of the columns. They are fixed because each row is printed as soon as it is measured.
const WIDTHS: [usize; 11] = [11, 11, 22, 10, 10, 10, 7, 7, 7, 16, 8];

fn columns(cells: [String; 11]) -> String {
    let cells = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:<width$}"));
    format!("{}\n", cells.collect::<Vec<_>>().join(" ").trim_end())
}

fn heading(note: Option<&str>) -> String {
    let names =
        ["workload", "items", "devices", "best", "alone", "learned", "", "1/64", "unknown", "used", "missed"];
    format!(
        "{}{}",
        note.map_or_else(String::new, |note| format!("{note}\n")),
        columns(names.map(str::to_owned))
    )
}

fn line(row: &json::NeverLosesRow) -> String {
    let json::NeverLosesRow { alone_s, learned, scaled, unknown, .. } = row;
    let ratio = |found: &json::Beside| format!("{:.3}", found.ratio);
    let missed = [
        ("l", LEARNED.keeps(*alone_s, learned)),
        ("s", scaled.as_ref().is_none_or(|scaled| SCALED.keeps(*alone_s, scaled))),
        ("u", UNKNOWN.keeps(*alone_s, unknown)),
    ];
    columns([
        row.workload.clone(),
        row.items.to_string(),
        row.devices.join("+"),
        row.best.clone(),
        table::seconds(*alone_s),
        table::seconds(learned.seconds),
        ratio(learned),
        scaled.as_ref().map_or_else(String::new, ratio),
        ratio(unknown),
        row.used.join("+"),
        missed.iter().filter(|(_, keeps)| !keeps).map(|(name, _)| *name).collect(),
    ])
}

/// Returns how many rows are within each limit.
fn summary(result: &json::NeverLoses) -> String {
    let of = [(&LEARNED, &result.learned), (&SCALED, &result.scaled), (&UNKNOWN, &result.unknown)];
    let lines = of.map(|(limit, found)| {
        let ratios =
            limit.ratios.iter().map(|(from_s, most)| format!("{most} from {}", table::seconds(*from_s)));
        let ratios = ratios.collect::<Vec<_>>().join(", ");
        let more = table::seconds(limit.more_s);
        format!("{}: {} of {} rows within {ratios}, below {more} more\n", limit.name, found.kept, found.rows)
    });
    format!("{}missed: l learned, s learned at 1/64, u unknown\n", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Arguments, BenchTable, Command};
    use clap::Parser;

    /// A device that takes more than twenty times as long as the best runs only once.
    #[test]
    fn a_device_runs_three_times_unless_it_is_far_from_the_best() {
        let timed = |best: f64, took: &[f64]| {
            let mut runs = took.iter().copied();
            let seconds =
                seconds_beside(best, || Ok(runs.next().expect("no more runs"))).expect("none fails");
            (seconds, runs.len())
        };
        assert_eq!(timed(f64::INFINITY, &[90.0, 4.0, 5.0]), (4.0, 0));
        assert_eq!(timed(2.0, &[39.0, 31.0, 30.0]), (30.0, 0));
        assert_eq!(timed(2.0, &[41.0, 3.0, 4.0]), (41.0, 2));
        assert_eq!(timed(2.0, &[1.0, 3.0, 4.0]), (3.0, 0), "the first one pays for first touch");
    }

    /// The runs have different numbers of items, which identify the recording that was written.
    #[test]
    fn the_decisions_of_the_median_run_are_written() {
        let folder = std::env::temp_dir().join(format!("dml-decided-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder of temporary files");
        let shown = folder.display().to_string();
        let arguments =
            ["dml", "bench", "never-loses", "--devices", "cpu", "--limit", "cpu=1", "--decisions", &shown];
        let Command::Bench(command) = Arguments::parse_from(arguments).command else { unreachable!() };
        let Some(BenchTable::NeverLoses(options)) = command.table else { unreachable!() };
        let Ok(machine) = Machine::of(&options.machine) else { panic!("there is a processor") };
        let (workload, devices) = (Workload::Saxpy, &machine.devices[..]);
        let prepared = workload.prepare(&machine.platform, devices, &Input::Size(100)).expect("it is small");
        let bench = Bench {
            options: &options,
            machine: &machine,
            devices,
            workload,
            prepared: &*prepared,
            smaller: None,
        };
        let coexecutor = Coexecutor::new(&machine.platform).devices(devices.iter().copied());
        let coexecutor = coexecutor.record_decisions();
        let run = |seconds: f64, items: u64| {
            let report = coexecutor.run(prepared.kernel(), items).expect("nothing is wrong");
            assert!(report.decisions.is_some());
            (seconds, report.decisions)
        };
        let decided = vec![run(3.0, 30), run(1.0, 10), run(5.0, 50), run(4.0, 40), run(2.0, 20)];
        let mut unwritten = Unwritten::default();
        bench.write_decisions(&["cpu".to_owned(), "offload:0".to_owned()], decided, &mut unwritten);
        unwritten.end().expect("it is writable");
        let text = std::fs::read_to_string(folder.join("saxpy-100-cpu-offload0.txt")).expect("it is written");
        let recording: RecordedDecisions = text.parse().expect("what was written is read");
        assert_eq!(recording.blueprint().work(), 30);
        std::fs::remove_dir_all(&folder).expect("it was made here");
    }

    /// The second device has the lowest median, although the first one has the fastest single round.
    #[test]
    fn every_figure_is_recomputed_from_its_rounds() {
        let alone = [[1.0, 9.0, 8.0], [4.0, 2.0, 5.0], [7.0, 6.0, 6.5]].map(Vec::from);
        assert_eq!(fastest(&alone), (1, 4.0));
        // Ratios of the rounds: 0.5, 1.5 and 2. Differences: -2, 1 and 5.
        let expected = json::Beside { seconds: 3.0, ratio: 1.5, more_s: 1.0 };
        assert_eq!(beside(&[2.0, 3.0, 10.0], &alone[1]), expected);
    }

    #[test]
    fn a_limit_is_one_of_ratios_for_long_runs_and_of_differences_for_short_ones() {
        let keeps = |limit: &Limit, alone_s: f64, ratio: f64| {
            let found = json::Beside { seconds: alone_s * ratio, ratio, more_s: alone_s * (ratio - 1.0) };
            limit.keeps(alone_s, &found)
        };
        assert!(keeps(&LEARNED, 1e-3, 1.049) && !keeps(&LEARNED, 1e-3, 1.051));
        assert!(keeps(&LEARNED, 4e-6, 8.0) && !keeps(&LEARNED, 4e-6, 10.0), "30 us more");
        assert!(keeps(&SCALED, 0.1, 1.09) && !keeps(&SCALED, 0.1, 1.11));
        assert!(keeps(&UNKNOWN, 9e-3, 1.29) && !keeps(&UNKNOWN, 9e-3, 1.31));
        assert!(keeps(&UNKNOWN, 10e-3, 1.14) && !keeps(&UNKNOWN, 10e-3, 1.16));
        assert!(keeps(&UNKNOWN, 0.9e-3, 1.33) && !keeps(&UNKNOWN, 0.9e-3, 1.34));
    }

    /// A size that is an edge has its square as the number of items.
    #[test]
    fn sizes_go_by_eights_up_to_what_was_published() {
        for workload in Workload::ALL {
            let (largest, sizes) = (workload.largest_published(), sizes(workload));
            assert!(sizes.is_sorted_by(|one, next| one < next), "{workload}: each once: {sizes:?}");
            let items = |size: u64| if workload.size_is_edge() { size * size } else { size };
            assert_eq!((sizes[0], sizes[sizes.len() - 1]), (1, largest), "{workload}");
            for (step, pair) in (1..).zip(sizes.windows(2)) {
                let exact = 8_f64.powi(step);
                let is_near = (items(pair[1]) as f64 / exact - 1.0).abs() < 0.15;
                assert!(
                    is_near || pair[1] == largest && items(largest) as f64 <= exact,
                    "{workload}: {sizes:?}"
                );
            }
        }
    }

    #[test]
    fn every_figure_of_a_row_stands_in_its_line() {
        let beside = |ratio: f64| json::Beside { seconds: 0.5 * ratio, ratio, more_s: 0.5 * (ratio - 1.0) };
        let row = json::NeverLosesRow {
            workload: "saxpy".to_owned(),
            items: 64,
            devices: vec!["cpu".to_owned(), "opencl:0".to_owned()],
            best: "cpu".to_owned(),
            alone_s: 0.5,
            learned: beside(0.75),
            scaled: Some(beside(1.125)),
            unknown: beside(1.5),
            used: vec!["opencl:0".to_owned()],
            left_out: Vec::new(),
        };
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let figures = "saxpy 64 cpu+opencl:0 cpu 500.00 ms 375.00 ms 0.750 1.125 1.500 opencl:0 su";
        assert_eq!(words(&line(&row)), figures);
        assert_eq!(
            words(&line(&json::NeverLosesRow { scaled: None, ..row })),
            figures.replace(" 1.125", "").replace("su", "u")
        );
        let kept = |kept| json::Kept { rows: 3, kept };
        let result = json::NeverLoses {
            longest_s: 1.0,
            runs: 3,
            learned: kept(3),
            scaled: kept(2),
            unknown: kept(1),
            rows: Vec::new(),
        };
        assert_eq!(
            summary(&result),
            "learned: 3 of 3 rows within 1.05 from 1.00 ms, below 30.0 us more\n\
             learned at 1/64: 2 of 3 rows within 1.1 from 1.00 ms, below 60.0 us more\n\
             unknown: 1 of 3 rows within 1.15 from 10.00 ms, 1.3 from 1.00 ms, below 300.0 us more\n\
             missed: l learned, s learned at 1/64, u unknown\n"
        );
    }
}
