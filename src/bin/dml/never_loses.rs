//! `dml bench never-loses`: every workload, size and set of devices, together beside the best device alone.
//!
//! In each round the devices that could be the best run alone, then the set runs with what it has learned, then with nothing
//! known; so all of them find the machine in the same condition. The median of the rounds' ratios counts.

use crate::bench::{able, holding};
use crate::cli::BenchOptions;
use crate::failure::{self, Failure};
use crate::machine::Machine;
use crate::output::Unwritten;
use crate::progress::Progress;
use crate::{json, replay, table};
use dml::core::DeviceId;
use dml::prelude::*;
use dml::scheduler::policy::Recording;
use dml::scheduler::{Knowledge, Report, metrics};
use dml_workloads::prepare::{Input, PrepareError, Prepared, Workload};
use std::time::Instant;

/// What the benchmark is called among the workloads.
pub(crate) const NAME: &str = "never-loses";

/// How often a set runs before it counts as one that has learned.
const TRAINING: u32 = 12;
/// A device that takes so many times what another takes is not the best one, and is not timed again.
const NO_RIVAL: f64 = 1.5;
/// A device that takes so many times what the best one took is run once.
const HOPELESS: f64 = 20.0;
/// From this time of the best device on, ratios are limited; below, the difference is.
const LONG_SECONDS: f64 = 1e-3;
const MOST_LEARNED: f64 = 1.05;
const MOST_UNKNOWN: f64 = 1.15;
const MOST_SECONDS_MORE: f64 = 30e-6;

/// Measures and prints.
pub(crate) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let workloads: Vec<Workload> = match &options.workloads[1..] {
        [] => Workload::ALL.to_vec(),
        names => names.iter().map(|name| name.parse().map_err(Failure::usage)).collect::<Result<_, _>>()?,
    };
    if let Some(folder) = options.decisions.as_deref().filter(|folder| !folder.is_dir()) {
        return Err(Failure::Usage(format!(
            "--decisions {}: {NAME} needs a folder that exists",
            folder.display()
        )));
    }
    let machine = Machine::of(options)?;
    if machine.devices.len() < 2 {
        return Err(Failure::Usage(format!("{NAME} needs two devices; there is one")));
    }
    let (mut rows, mut unwritten) = (Vec::new(), Unwritten::default());
    for workload in workloads {
        let devices = &able(options, &machine.platform, &machine.devices, workload);
        for size in sizes(workload) {
            let input = Input::Size(size);
            let prepared = match workload.prepare(&machine.platform, devices, &input) {
                Ok(prepared) => prepared,
                Err(PrepareError::Memory { .. }) => break,
                Err(error) => return Err(Failure::work(error)),
            };
            let devices = &holding(&*prepared, &machine.platform, devices)?;
            let bench = Bench { options, machine: &machine, devices, workload, prepared: &*prepared };
            let Some(of_size) = bench.run(&mut unwritten)? else { break };
            rows.extend(of_size);
        }
    }
    let result = json::NeverLoses {
        longest_s: options.longest,
        runs: options.runs,
        missed: rows.iter().filter(|row| !row.kept).count() as u64,
        rows,
    };
    if options.json {
        json::print(&result)?;
    } else {
        failure::print(&text(&result, machine.note.as_deref()))?;
    }
    unwritten.end()
}

/// The sizes of a workload, from one item in steps of eight, until it is as large as published.
fn sizes(workload: Workload) -> Vec<u64> {
    let (paper, is_square) = (workload.largest_published(), workload.size_is_edge());
    let paper = if is_square { paper * paper } else { paper };
    let items =
        std::iter::successors(Some(1_u64), |items| Some(items * 8)).take_while(|items| *items < paper);
    let size = |items: u64| if is_square { (items as f64).sqrt().round() as u64 } else { items };
    items.chain([paper]).map(size).collect()
}

/// One workload at one size.
struct Bench<'a> {
    options: &'a BenchOptions,
    machine: &'a Machine,
    /// Those of the machine that have a kernel of the workload.
    devices: &'a [DeviceId],
    workload: Workload,
    prepared: &'a dyn Prepared,
}

/// A device alone.
struct Alone {
    device: DeviceId,
    coexecutor: Coexecutor,
    seconds: f64,
}

impl Bench<'_> {
    /// Every set of devices; `None` if the best device takes longer than the options allow.
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
            rows.push(self.set(&members, unwritten)?);
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
        let (mut alone_s, mut learned_s, mut unknown_s, mut decided) =
            (vec![Vec::new(); rivals.len()], Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.options.runs {
            for (rival, seconds) in rivals.iter().zip(&mut alone_s) {
                seconds.push(self.once(&rival.coexecutor)?);
            }
            learned_s.push(self.once(&trained)?);
            let unknown = together(&Knowledge::new());
            let unknown = if self.options.decisions.is_some() { unknown.record_decisions() } else { unknown };
            let (seconds, report) = self.reported(&unknown)?;
            unknown_s.push(seconds);
            decided.push((seconds, report.decisions));
        }
        self.prepared.verify().map_err(|error| Failure::Work(format!("the result is wrong: {error}")))?;
        let devices: Vec<String> = devices.iter().map(|&device| self.name(device)).collect();
        self.write_decisions(&devices, decided, unwritten);
        let Figures { fastest, alone_s, learned, unknown, kept } =
            Figures::of(&alone_s, &learned_s, &unknown_s);
        let report = trained.run(self.prepared.kernel(), self.prepared.items()).map_err(Failure::work)?;
        let worked = report.devices.iter().filter(|device| device.items > 0).map(|device| device.device);
        Ok(json::NeverLosesRow {
            workload: self.workload.to_string(),
            items: self.prepared.items(),
            devices,
            best: self.name(rivals[fastest].device),
            alone_s,
            learned_s: learned.seconds,
            unknown_s: unknown.seconds,
            learned_ratio: learned.ratio,
            unknown_ratio: unknown.ratio,
            learned_more_s: learned.more_s,
            unknown_more_s: unknown.more_s,
            used: worked.map(|device| self.name(device)).collect(),
            left_out: report
                .left_out
                .iter()
                .map(|left_out| format!("{}: {}", self.name(left_out.device), left_out.reason))
                .collect(),
            kept,
        })
    }

    /// Writes what was decided in the median of the runs with nothing known, if the options ask for it.
    fn write_decisions(
        &self,
        devices: &[String],
        mut decided: Vec<(f64, Option<Recording>)>,
        unwritten: &mut Unwritten,
    ) {
        let Some(folder) = &self.options.decisions else { return };
        decided.sort_by(|one, other| one.0.total_cmp(&other.0));
        let Some((_, Some(decisions))) = decided.get(decided.len() / 2) else { return };
        let name = format!("{}-{}-{}.txt", self.workload, self.prepared.items(), devices.join("-"));
        let path = folder.join(name.replace(':', ""));
        unwritten.name(&path, replay::write(&path, decisions));
    }

    /// One run, from the inputs on the host alone to the outputs on the host; its seconds.
    fn once(&self, coexecutor: &Coexecutor) -> Result<f64, Failure> {
        Ok(self.reported(coexecutor)?.0)
    }

    fn reported(&self, coexecutor: &Coexecutor) -> Result<(f64, Report), Failure> {
        self.prepared.reset().map_err(Failure::work)?;
        let begun = Instant::now();
        let report = coexecutor.run(self.prepared.kernel(), self.prepared.items()).map_err(Failure::work)?;
        self.prepared.collect().map_err(Failure::work)?;
        let seconds = begun.elapsed().as_secs_f64();
        // What the others took without it says nothing.
        match report.failures.first() {
            Some(failure) => {
                Err(Failure::Work(format!("{} failed: {}", self.name(failure.device), failure.message)))
            }
            None => Ok((seconds, report)),
        }
    }

    fn name(&self, device: DeviceId) -> String {
        self.machine.platform.devices()[usize::from(device.0)].name.to_string()
    }
}

/// The time of a device alone, beside the best of those before it: the better one of two, after one that pays for first
/// touch. That one has to do where the device is far from the best.
fn seconds_beside(best: f64, mut once: impl FnMut() -> Result<f64, Failure>) -> Result<f64, Failure> {
    let first = once()?;
    if first > HOPELESS * best {
        return Ok(first);
    }
    Ok(once()?.min(once()?))
}

/// What a set took beside the best device alone.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Beside {
    /// The median of its times.
    seconds: f64,
    /// The median of the rounds' ratios to the best device.
    ratio: f64,
    /// The median of the rounds' differences from the best device.
    more_s: f64,
}

impl Beside {
    fn of(seconds: &[f64], alone_s: &[f64]) -> Self {
        let rounds = || seconds.iter().zip(alone_s);
        let ratios: Vec<f64> = rounds().map(|(one, other)| one / other).collect();
        let more: Vec<f64> = rounds().map(|(one, other)| one - other).collect();
        Self { seconds: median(seconds), ratio: median(&ratios), more_s: median(&more) }
    }

    fn keeps(&self, alone_s: f64, most_ratio: f64) -> bool {
        if alone_s >= LONG_SECONDS { self.ratio <= most_ratio } else { self.more_s <= MOST_SECONDS_MORE }
    }
}

/// What the rounds of one set say: pure, so that each can be recomputed by hand.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    /// The index of the device that is fastest alone, among those timed.
    fastest: usize,
    /// Its median time.
    alone_s: f64,
    learned: Beside,
    unknown: Beside,
    /// Whether the set stays within both limits.
    kept: bool,
}

impl Figures {
    /// From the time of each device alone in each round, and those of the set, learned and with nothing known.
    fn of(alone_s: &[Vec<f64>], learned_s: &[f64], unknown_s: &[f64]) -> Self {
        let medians: Vec<f64> = alone_s.iter().map(|seconds| median(seconds)).collect();
        let fastest =
            (0..medians.len()).min_by(|a, b| medians[*a].total_cmp(&medians[*b])).unwrap_or_default();
        let best_s = medians[fastest];
        let learned = Beside::of(learned_s, &alone_s[fastest]);
        let unknown = Beside::of(unknown_s, &alone_s[fastest]);
        let kept = learned.keeps(best_s, MOST_LEARNED) && unknown.keeps(best_s, MOST_UNKNOWN);
        Self { fastest, alone_s: best_s, learned, unknown, kept }
    }
}

fn median(samples: &[f64]) -> f64 {
    metrics::Summary::of(samples).map_or(0.0, |summary| summary.median)
}

/// The result as text for people.
fn text(result: &json::NeverLoses, note: Option<&str>) -> String {
    let columns = ["workload", "items", "devices", "best", "alone", "learned", "", "unknown", "", "used", ""];
    let mut rows = vec![columns.map(str::to_owned).to_vec()];
    for row in &result.rows {
        rows.push(vec![
            row.workload.clone(),
            row.items.to_string(),
            row.devices.join("+"),
            row.best.clone(),
            table::seconds(row.alone_s),
            table::seconds(row.learned_s),
            format!("{:.3}", row.learned_ratio),
            table::seconds(row.unknown_s),
            format!("{:.3}", row.unknown_ratio),
            row.used.join("+"),
            if row.kept { String::new() } else { "missed".to_owned() },
        ]);
    }
    let mut lines: Vec<String> = note.map(str::to_owned).into_iter().collect();
    lines.extend(table::lines(&rows));
    let kept = result.rows.len() as u64 - result.missed;
    lines.push(format!(
        "{kept} of {} rows within {MOST_LEARNED} learned and {MOST_UNKNOWN} unknown, or 30 us below 1 ms",
        result.rows.len()
    ));
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Arguments, Command};
    use clap::Parser;

    /// Whoever takes more than twenty times as long as the best is not run again.
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

    /// The recording that is kept is that of the median run. Each run here has a number of items of its own.
    #[test]
    fn the_decisions_of_the_median_run_are_written() {
        let folder = std::env::temp_dir().join(format!("dml-decided-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder of temporary files");
        let shown = folder.display().to_string();
        let arguments = ["dml", "bench", NAME, "--devices", "cpu", "--limit", "cpu=1", "--decisions", &shown];
        let Command::Bench(options) = Arguments::parse_from(arguments).command else { unreachable!() };
        let Ok(machine) = Machine::of(&options) else { panic!("there is a processor") };
        let (workload, devices) = (Workload::Saxpy, &machine.devices[..]);
        let prepared = workload.prepare(&machine.platform, devices, &Input::Size(100)).expect("it is small");
        let bench = Bench { options: &options, machine: &machine, devices, workload, prepared: &*prepared };
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
        let recording: Recording = text.parse().expect("what was written is read");
        assert_eq!(recording.blueprint().work(), 30);
        std::fs::remove_dir_all(&folder).expect("it was made here");
    }

    /// The second device is the fastest in the middle of its rounds, though the first one was once.
    const ALONE: [[f64; 3]; 3] = [[1.0, 9.0, 8.0], [4.0, 2.0, 5.0], [7.0, 6.0, 6.5]];

    fn figures(scale: f64, learned: [f64; 3], unknown: [f64; 3]) -> Figures {
        let scaled = |seconds: [f64; 3]| seconds.map(|one| one * scale).to_vec();
        Figures::of(&ALONE.map(scaled), &scaled(learned), &scaled(unknown))
    }

    #[test]
    fn every_figure_is_recomputed_from_its_rounds() {
        let found = figures(1.0, [2.0, 3.0, 10.0], [6.0, 1.0, 4.0]);
        let expected = Figures {
            fastest: 1,
            alone_s: 4.0,
            // Of each round: 0.5, 1.5 and 2, and -2, 1 and 5.
            learned: Beside { seconds: 3.0, ratio: 1.5, more_s: 1.0 },
            // 1.5, 0.5 and 0.8, and 2, -1 and -1.
            unknown: Beside { seconds: 4.0, ratio: 0.8, more_s: -1.0 },
            kept: false,
        };
        assert_eq!(found, expected);
    }

    /// The limit is one of ratios for long runs and one of differences for short ones, and neither run may pass its own.
    #[test]
    fn a_set_is_kept_that_passes_neither_limit() {
        let by = |scale: f64, learned: f64, unknown: f64| {
            let of = |ratio: f64| [4.0, 2.0, 5.0].map(|alone| alone * ratio);
            figures(scale, of(learned), of(unknown)).kept
        };
        assert!(by(1.0, 1.04, 1.14));
        assert!(!by(1.0, 1.06, 1.14) && !by(1.0, 1.04, 1.16), "each has a limit");
        // 4 us alone, of which a half more is nothing, and ten times as much is 36 us more.
        assert!(by(1e-6, 1.5, 1.5));
        assert!(!by(1e-6, 10.0, 1.0) && !by(1e-6, 1.0, 10.0));
        // Below 1 ms the difference counts, and from there on the ratio.
        assert!(by(0.249e-3, 1.030, 1.030) && !by(0.249e-3, 1.031, 1.0), "0.996 ms alone, and 31 us more");
        assert!(by(0.25e-3, 1.049, 1.149) && !by(0.25e-3, 1.051, 1.0), "1 ms alone");
    }

    /// An edge is one of as many squares as there are items.
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
    fn every_figure_of_a_row_stands_in_the_text() {
        let row = |kept: bool| json::NeverLosesRow {
            workload: "saxpy".to_owned(),
            items: 64,
            devices: vec!["cpu".to_owned(), "opencl:0".to_owned()],
            best: "cpu".to_owned(),
            alone_s: 0.5,
            learned_s: 0.25,
            unknown_s: 0.125,
            learned_ratio: 0.75,
            unknown_ratio: 1.5,
            learned_more_s: 0.0,
            unknown_more_s: 0.0,
            used: vec!["opencl:0".to_owned()],
            left_out: Vec::new(),
            kept,
        };
        let result = json::NeverLoses {
            longest_s: 1.0,
            runs: 3,
            missed: 1,
            rows: vec![row(true), row(false), row(true)],
        };
        let text = text(&result, Some("a note"));
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let figures = "saxpy 64 cpu+opencl:0 cpu 500.00 ms 250.00 ms 0.750 125.00 ms 1.500 opencl:0";
        let expected = [
            "a note",
            "workload items devices best alone learned unknown used",
            figures,
            &format!("{figures} missed"),
            figures,
            "2 of 3 rows within 1.05 learned and 1.15 unknown, or 30 us below 1 ms",
        ];
        assert_eq!(lines, expected);
    }
}
