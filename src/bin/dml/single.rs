//! `dml reproduce single`: one device through the runtime, beside the same kernel without DML.

use crate::cli::{self, ReproduceOptions, TableSize};
use crate::failure::{self, Failure};
use crate::progress::Progress;
use crate::{json, machine, table};
use dml::prelude::DiscoverOptions;
use dml::scheduler::metrics::Summary;
use dml_workloads::single::{Bench, Devices, Length, Measured, Memory, SingleError};
use std::time::Duration;

/// Edges of the matrices of [`TableSize::Tiny`], one for each of [`Length::ALL`].
const TINY_EDGES: [u64; 3] = [17, 33, 61];
/// Divisor of a run's length at [`TableSize::Small`].
const SMALL_PART: u32 = 10;

/// Default number of rounds.
const RUNS: u32 = 12;

/// Measures the requested devices, or all that have a hand-written form, and prints the table.
pub(crate) fn run(options: &ReproduceOptions) -> Result<(), Failure> {
    check(options)?;
    let (names, left_out) = devices(options)?;
    let named_memory = options.memory.unwrap_or(cli::Memory::Auto);
    let memory = memory(options, &names)?;
    let size = options.size.unwrap_or(TableSize::Paper);
    let mut progress = Progress::new(steps(options, names.len()));
    let mut rows = Vec::new();
    for name in &names {
        let bench = Bench::open(name, memory).map_err(failure_of)?;
        for (length, tiny_edge) in Length::ALL.into_iter().zip(TINY_EDGES) {
            let edge = match duration(size, length) {
                Some(duration) => bench.edge_for(duration),
                None => Ok(tiny_edge),
            };
            let step = || progress.step(&format!("{name}: {}", length.name()));
            let measured = bench.measure(edge.map_err(failure_of)?, pairs(options, length), step);
            let goal = (size == TableSize::Paper).then(|| length.goal());
            let device = (bench.name(), bench.description(), bench.units());
            rows.push(row(device, length, goal, &measured.map_err(failure_of)?));
        }
    }
    progress.done();
    let result = json::Single {
        table: "single",
        workload: "matmul",
        size: size.name(),
        memory: named_memory.name(),
        pinned_bytes: options.pinned.pinned.filter(|_| names.iter().any(|name| name.starts_with("cuda:"))),
        runs: options.runs.unwrap_or(RUNS),
        verified: true,
        missed: missed(&rows),
        rows,
        left_out,
    };
    match (options.json, options.markdown) {
        (true, _) => json::print(&result),
        (false, true) => failure::print(&markdown(&result)),
        (false, false) => failure::print(&text(&result)),
    }
}

/// Rejects options that do not apply: one device computes everything.
fn check(options: &ReproduceOptions) -> Result<(), Failure> {
    let workers = &options.workers;
    let given = [
        ("--limit", !options.limit.is_empty()),
        ("--offload", workers.offload.is_some()),
        ("--pin", !workers.pin.is_empty()),
        ("--time-limit", workers.time_limit.is_some()),
        ("--policy", options.policy.is_some()),
        ("--output", options.output.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::Usage(format!("{option} does not apply to single"))),
        None => Ok(()),
    }
}

/// Returns the devices to measure and those left out for lack of a hand-written form. Named devices are never
/// left out.
fn devices(options: &ReproduceOptions) -> Result<(Vec<String>, Vec<json::SingleLeftOut>), Failure> {
    let names = &options.devices;
    if let Some(index) = (1..names.len()).find(|&index| names[..index].contains(&names[index])) {
        return Err(Failure::Usage(format!("device {} is named twice", names[index])));
    }
    if !names.is_empty() {
        return Ok((names.clone(), Vec::new()));
    }
    let Devices { measured, left_out, .. } = Devices::of_machine().map_err(failure_of)?;
    let left_out = left_out.into_iter().map(|(device, reason)| json::SingleLeftOut { device, reason });
    Ok((measured, left_out.collect()))
}

/// Returns where DML's buffers have their storage. Prints a note if page-locked memory has no effect.
fn memory(options: &ReproduceOptions, names: &[String]) -> Result<Memory, Failure> {
    match (options.memory, options.pinned.pinned) {
        (Some(cli::Memory::Bound), Some(_)) => Err(Failure::Usage(
            "--pinned with --memory bound: buffers lie in one memory or the other".to_owned(),
        )),
        (Some(cli::Memory::Bound), None) => Ok(Memory::Bound),
        (_, None) => Ok(Memory::Found),
        (_, Some(limit_bytes)) => {
            if !names.iter().any(|name| name.starts_with("cuda:")) {
                let host = DiscoverOptions::default().only(["cpu"]).offload(0);
                eprintln!("dml: {}", machine::no_gpu(&machine::discover(&host)?));
            }
            Ok(Memory::PageLocked { limit_bytes })
        }
    }
}

/// Returns the duration of a run, or `None` if the edge of its matrices is fixed.
fn duration(size: TableSize, length: Length) -> Option<Duration> {
    match size {
        TableSize::Tiny => None,
        TableSize::Small => Some(length.duration() / SMALL_PART),
        TableSize::Paper => Some(length.duration()),
    }
}

/// Returns the number of pairs to run on these devices: of each length, the counted ones and a warm-up pair.
fn steps(options: &ReproduceOptions, devices: usize) -> u64 {
    let of_device: u64 = Length::ALL.iter().map(|length| u64::from(pairs(options, *length)) + 1).sum();
    of_device * devices as u64
}

/// Returns the number of counted pairs of a length.
fn pairs(options: &ReproduceOptions, length: Length) -> u32 {
    options.runs.unwrap_or(RUNS).saturating_mul(length.pairs_per_round())
}

/// Converts an error. A missing device, or one without a hand-written form, is wrong usage.
fn failure_of(error: SingleError) -> Failure {
    match error {
        SingleError::Discover(error) => machine::not_found(error),
        SingleError::NoHandForm { .. } => Failure::usage(error),
        error => Failure::work(error),
    }
}

/// Returns a row of a device, which is given by name, description and units.
fn row(
    (device, description, units): (&str, &str, u32),
    length: Length,
    goal: Option<f64>,
    measured: &Measured,
) -> json::SingleRow {
    let Summary { median: ratio, min: ratio_min, max: ratio_max, .. } = measured.ratio();
    json::SingleRow {
        device: device.to_owned(),
        description: description.to_owned(),
        units,
        length: length.name(),
        edge: measured.edge,
        pairs: measured.pairs().len() as u64,
        hand: times(&measured.hand()),
        dml: times(&measured.dml()),
        more_s: measured.more().median,
        ratio,
        ratio_min,
        ratio_max,
        goal,
        kept: goal.map(|goal| ratio <= goal),
    }
}

/// Returns the number of rows that miss their goal.
fn missed(rows: &[json::SingleRow]) -> u64 {
    rows.iter().filter(|row| row.kept == Some(false)).count() as u64
}

fn times(summary: &Summary) -> json::SingleTimes {
    json::SingleTimes { seconds: summary.median, seconds_min: summary.min, seconds_max: summary.max }
}

/// Returns what was measured, as a heading.
fn heading(result: &json::Single) -> String {
    let json::Single { workload, size, memory, pinned_bytes, runs, .. } = result;
    let pinned = table::pinned(*pinned_bytes);
    let pairs: Vec<_> = Length::ALL
        .iter()
        .map(|length| format!("{} x {} for {}", runs, length.pairs_per_round(), length.name()))
        .collect();
    format!("{workload}, {size} size, memory {memory}{pinned}; medians of pairs: {}", pairs.join(", "))
}

/// Returns a line of cells for each row, after a line of column names.
fn cells(result: &json::Single) -> Vec<Vec<String>> {
    let columns = ["device", "length", "edge", "by hand", "dml", "more", "ratio", "goal", "kept"];
    let mut lines = vec![columns.map(str::to_owned).to_vec()];
    for row in &result.rows {
        lines.push(vec![
            row.device.clone(),
            row.length.to_owned(),
            row.edge.to_string(),
            table::seconds(row.hand.seconds),
            table::seconds(row.dml.seconds),
            more(row.more_s),
            format!("{:.3}", row.ratio),
            row.goal.map_or("-".to_owned(), |goal| format!("{goal:.2}")),
            match row.kept {
                Some(true) => "yes",
                Some(false) => "missed",
                None => "-",
            }
            .to_owned(),
        ]);
    }
    lines
}

/// Formats a difference of times with its sign.
fn more(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    format!("{sign}{}", table::seconds(seconds.abs()))
}

/// Returns the description of each measured device, and why the others are left out.
fn notes(result: &json::Single) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for row in &result.rows {
        let note = format!("{}: {}, {} units", row.device, row.description, row.units);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes.extend(result.left_out.iter().map(|left| format!("{}: left out: {}", left.device, left.reason)));
    notes.push(VERIFIED.to_owned());
    notes
}

const VERIFIED: &str = "verified: both results bit by bit after every pair, the last one by the reference";

/// Returns the table as text.
fn text(result: &json::Single) -> String {
    let mut lines = vec![format!("single: {}", heading(result)), String::new()];
    lines.extend(table::lines(&cells(result)).into_iter().map(|line| format!("  {line}")));
    lines.push(String::new());
    lines.extend(notes(result));
    lines.push(String::new());
    lines.join("\n")
}

/// Returns the table as markdown.
fn markdown(result: &json::Single) -> String {
    let cells = cells(result);
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let mut lines = vec![format!("Measured: {}.", heading(result)), String::new(), line(&cells[0])];
    lines.push(format!("|---|---{}|---|", "|--:".repeat(cells[0].len() - 3)));
    lines.extend(cells[1..].iter().map(|cells| line(cells)));
    lines.push(String::new());
    lines.extend(notes(result).into_iter().map(|note| format!("- {note}")));
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Arguments, Command};
    use clap::Parser;
    use dml_workloads::single::Pair;

    /// Rows of one device with three pairs, in which DML takes 1.04, 0.5 and 2 times the time by hand.
    fn result() -> json::Single {
        let of = Duration::from_micros;
        let pairs = [(1000, 1040), (4000, 2000), (500, 1000)].map(|(hand, dml)| Pair::new(of(hand), of(dml)));
        let measured = Measured::new(61, pairs.to_vec()).expect("three pairs");
        let row = |length, goal| row(("cpu", "a processor", 2), length, goal, &measured);
        let rows = vec![
            row(Length::Millisecond, Some(1.05)),
            row(Length::Second, Some(1.01)),
            row(Length::FiftyMilliseconds, Some(1.02)),
            row(Length::Second, None),
        ];
        let left_out = vec![json::SingleLeftOut { device: "cuda:0".to_owned(), reason: "of a reason" }];
        json::Single {
            table: "single",
            workload: "matmul",
            size: "paper",
            memory: "auto",
            pinned_bytes: None,
            runs: 9,
            verified: true,
            missed: missed(&rows),
            rows,
            left_out,
        }
    }

    #[test]
    fn a_row_says_what_was_taken_and_whether_the_goal_is_kept() {
        let result = result();
        let cells = cells(&result);
        assert_eq!(cells[0][3..6], ["by hand", "dml", "more"]);
        assert_eq!(cells[1], ["cpu", "1 ms", "61", "1.00 ms", "1.04 ms", "40.0 us", "1.040", "1.05", "yes"]);
        assert_eq!(cells[2][6..], ["1.040", "1.01", "missed"]);
        assert_eq!(cells[4][7..], ["-", "-"]);
        assert_eq!((result.missed, more(-7e-6)), (2, "-7.0 us".to_owned()));
    }

    #[test]
    fn a_row_has_the_figures_of_its_side() {
        let json::SingleRow { hand, dml, ratio_min, ratio_max, pairs, .. } = &result().rows[0];
        assert_eq!((hand.seconds_min, hand.seconds, hand.seconds_max), (500e-6, 1e-3, 4e-3));
        assert_eq!((dml.seconds_min, dml.seconds, dml.seconds_max), (1e-3, 1040e-6, 2e-3));
        assert_eq!((*ratio_min, *ratio_max, *pairs), (0.5, 2.0, 3));
    }

    /// A difference of zero has no sign.
    #[test]
    fn a_difference_has_its_sign() {
        assert_eq!([0.0, 2e-3, -2e-3].map(more), ["0 ns", "2.00 ms", "-2.00 ms"]);
    }

    #[test]
    fn a_small_run_takes_a_tenth_of_its_length() {
        let of = |size| Length::ALL.map(|length| duration(size, length));
        let us = |us: [u64; 3]| us.map(|us| Some(Duration::from_micros(us)));
        assert_eq!(of(TableSize::Small), us([100, 5_000, 100_000]));
        assert_eq!(of(TableSize::Paper), us([1_000, 50_000, 1_000_000]));
        assert_eq!(of(TableSize::Tiny), [None; 3], "its edges are given");
    }

    /// Three rounds have 30 counted pairs of the shortest length, 6 of the next one and 3 of the longest.
    #[test]
    fn one_pair_of_each_length_does_not_count() {
        let of = |runs: &str, devices| {
            let arguments = ["dml", "reproduce", "single", "--runs", runs];
            let Command::Reproduce(options) = Arguments::parse_from(arguments).command else {
                unreachable!()
            };
            steps(&options, devices)
        };
        assert_eq!((of("3", 1), of("3", 4), of("1", 2)), (42, 168, 32));
        assert_eq!(of("4294967295", 1), 3 << 32, "no length has more pairs than 32 bits can count");
    }

    #[test]
    fn the_storage_is_where_the_options_say() {
        let of = |arguments: &[&str]| {
            let arguments = ["dml", "reproduce", "single", "--devices", "cpu"].iter().chain(arguments);
            let Command::Reproduce(options) = Arguments::parse_from(arguments).command else {
                unreachable!()
            };
            memory(&options, &options.devices).map_err(|failure| failure.to_string())
        };
        assert_eq!(of(&[]), Ok(Memory::Found));
        assert_eq!(of(&["--memory", "copy"]), Ok(Memory::Found));
        assert_eq!(of(&["--memory", "bound"]), Ok(Memory::Bound));
        assert_eq!(of(&["--pinned", "3K"]), Ok(Memory::PageLocked { limit_bytes: 3072 }));
        let both = of(&["--memory", "bound", "--pinned", "3K"]);
        assert!(both.is_err_and(|told| told.contains("--pinned with --memory bound")));
    }

    #[test]
    fn what_is_left_out_is_told_with_its_reason() {
        for printed in [text(&result()), markdown(&result())] {
            assert!(printed.contains("cuda:0: left out: of a reason"), "{printed}");
            assert_eq!(printed.matches("a processor, 2 units").count(), 1, "{printed}");
        }
    }
}
