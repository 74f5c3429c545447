//! `dml reproduce`: measures the papers' tables on this machine. This module implements table 1.

pub(crate) mod coexec;
mod jacobi;
mod memory;
mod published;
mod slam;
mod stepocl;

use crate::cli::{ReproduceOptions, Table, TableSize};
use crate::failure::{self, Failure};
use crate::progress::Progress;
use crate::{json, output, single, table};
use dml::scheduler::metrics::Summary;
use dml_workloads::prepare::Input;
use dml_workloads::table1::{
    Bench, DEVICE, Framework, Measured, Mode, Operations, Published, Row, Table1Error, Timed,
};
use serde::Serialize;
use std::path::Path;

/// The modes that the paper reports.
const PUBLISHED: [Mode; 3] = [Mode::Hand, Mode::Noopt, Mode::Opt];

/// Measures the requested table and prints it.
pub(crate) fn run(options: &ReproduceOptions) -> Result<(), Failure> {
    // Checked before measuring, which takes minutes.
    if let Some(folder) = options.output.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Failure::Usage(format!("--output {} is not a folder", folder.display())));
    }
    if options.frames.is_some() && options.table != Table::Slam {
        return Err(Failure::Usage(format!("--frames does not apply to {}", options.table.name())));
    }
    match options.table {
        Table::Table1 => table1(options),
        Table::Single => single::run(options),
        Table::Memory => memory::run(options),
        Table::Coexec => coexec::run(options),
        Table::Jacobi => jacobi::run(options),
        Table::Stepocl => stepocl::run(options),
        Table::Slam => slam::run(options),
    }
}

/// Prints a table in the requested format, and writes its files if the options name a folder. `markdown` gets
/// the name of the chart's file.
fn give(
    options: &ReproduceOptions,
    json: &impl Serialize,
    text: impl FnOnce() -> String,
    markdown: impl Fn(Option<&str>) -> String,
    chart: Option<&str>,
) -> Result<(), Failure> {
    match (options.json, options.markdown) {
        (true, _) => json::print(json)?,
        (false, true) => failure::print(&markdown(None))?,
        (false, false) => failure::print(&text())?,
    }
    let Some(folder) = &options.output else { return Ok(()) };
    let name = options.table.name();
    let (page, picture) = (folder.join(format!("{name}.md")), format!("{name}.svg"));
    let write =
        |file: &Path, text: &str| output::write(file, "table", |file| file.write_all(text.as_bytes()));
    if let Some(chart) = chart {
        write(&folder.join(&picture), chart)?;
    }
    write(&page, &markdown(chart.map(|_| &*picture)))?;
    if options.json || options.markdown {
        Ok(())
    } else {
        failure::print(&format!("written     {}\n", page.display()))
    }
}

/// Default number of rounds of table 1. The order of its modes repeats after four rounds.
const TABLE1_RUNS: u32 = 12;

/// Rejects options that do not apply to a table that compares programs on one device, with their own memory.
fn check_one_device(options: &ReproduceOptions) -> Result<(), Failure> {
    let table = options.table.name();
    let workers = &options.workers;
    let given = [
        ("--limit", !options.limit.is_empty()),
        ("--offload", workers.offload.is_some()),
        ("--pin", !workers.pin.is_empty()),
        ("--time-limit", workers.time_limit.is_some()),
        ("--policy", options.policy.is_some()),
        ("--memory", options.memory.is_some()),
        ("--pinned", options.pinned.pinned.is_some()),
        ("--output", options.output.is_some() && options.table == Table::Table1),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::Usage(format!("{option} does not apply to {table}"))),
        None if options.devices.len() > 1 => {
            let devices = options.devices.join(", ");
            Err(Failure::Usage(format!(
                "{table} compares programs on one OpenCL or CUDA device, not {devices}"
            )))
        }
        None => Ok(()),
    }
}

fn table1(options: &ReproduceOptions) -> Result<(), Failure> {
    check_one_device(options)?;
    let size = match options.size.unwrap_or(TableSize::Paper) {
        TableSize::Tiny => Input::Tiny,
        TableSize::Small => Input::Small,
        TableSize::Paper => Input::Paper,
    };
    let runs = options.runs.unwrap_or(TABLE1_RUNS);
    let name = options.devices.first().map_or(DEVICE, String::as_str);
    let mut progress: Option<Progress> = None;
    let (mut device, mut framework) = (String::new(), Framework::OpenCl);
    let mut rows = Vec::new();
    for row in Row::ALL {
        let mut bench = Bench::open(row, name).map_err(failure_of)?;
        (device, framework) = (bench.device().to_owned(), bench.framework());
        let progress = progress.get_or_insert_with(|| Progress::new(steps(runs, framework)));
        let step = |mode: Mode| progress.step(&format!("{row}: {mode}"));
        rows.push(bench.measure(size, runs, step).map_err(failure_of)?);
    }
    progress.into_iter().for_each(Progress::done);
    let heading = Heading { device, framework, size: options.size_name(TableSize::Paper), runs };
    match (options.json, options.markdown) {
        (true, _) => json::print(&of_json(&heading, &rows)),
        (false, true) => failure::print(&markdown(&heading, &rows)),
        (false, false) => failure::print(&text(&heading, &rows)),
    }
}

/// Returns the number of program runs: each mode of each row once per round, with a discarded first round.
fn steps(runs: u32, framework: Framework) -> u64 {
    (u64::from(runs) + 1) * (Row::ALL.len() * framework.modes().len()) as u64
}

/// Converts an error. A device without programs is wrong usage.
fn failure_of(error: Table1Error) -> Failure {
    match error {
        Table1Error::NoProgram { .. } => Failure::usage(error),
        error => Failure::work(error),
    }
}

/// The device and settings of a measurement.
struct Heading {
    device: String,
    framework: Framework,
    size: &'static str,
    runs: u32,
}

impl Heading {
    fn line(&self) -> String {
        let Self { device, size, runs, .. } = self;
        format!("{device}; {size} size; median of {runs} rounds, in which every mode runs once")
    }
}

fn summary(timed: &Timed) -> Summary {
    Summary::of(&timed.seconds).expect("at least one run counts")
}

/// Returns the table in the schema of docs/json.md.
fn of_json(heading: &Heading, rows: &[Measured]) -> json::Reproduced {
    json::Reproduced {
        table: "table1",
        device: heading.device.clone(),
        size: heading.size,
        runs: heading.runs,
        verified: true,
        rows: rows.iter().map(row_of_json).collect(),
    }
}

fn row_of_json(measured: &Measured) -> json::ReproducedRow {
    let published = |mode: Mode| measured.row.published(mode).map(|cells| published_of_json(&cells));
    let here = |mode: Mode| {
        let timed = measured.mode(mode)?;
        let Summary { median, min, max, .. } = summary(timed);
        let operations = operations_of_json(&timed.operations);
        Some(json::ReproducedMode { seconds: median, seconds_min: min, seconds_max: max, operations })
    };
    json::ReproducedRow {
        row: measured.row.name(),
        size: measured.size.iter().copied().collect(),
        published: PUBLISHED.into_iter().filter_map(|mode| Some((mode.name(), published(mode)?))).collect(),
        hand: here(Mode::Hand),
        hand_bound: here(Mode::HandBound),
        hand_pinned: here(Mode::HandPinned),
        noopt: here(Mode::Noopt),
        opt: here(Mode::Opt),
        ratios: json::ReproducedRatios {
            opt_over_hand: measured.ratio(Mode::Opt, Mode::Hand),
            opt_over_hand_bound: measured.ratio(Mode::Opt, Mode::HandBound),
            opt_over_hand_pinned: measured.ratio(Mode::Opt, Mode::HandPinned),
            noopt_over_hand: measured.ratio(Mode::Noopt, Mode::Hand),
        },
    }
}

fn published_of_json(cells: &Published) -> json::PublishedMode {
    let Published { seconds, map, unmap, read, write, kernel, alloc, bind, copy, .. } = *cells;
    let counted = [("map", map), ("unmap", unmap), ("read", read), ("write", write), ("kernel", kernel)];
    let counted = counted.into_iter().map(|(name, count)| (name, Some(count)));
    let operations = counted.chain([("alloc", alloc), ("bind", bind), ("copy", copy)]).collect();
    json::PublishedMode { seconds, operations }
}

fn operations_of_json(operations: &Operations) -> std::collections::BTreeMap<&'static str, u64> {
    let Operations { map, unmap, read, write, kernel, alloc, bind, copy, .. } = *operations;
    [
        ("map", map),
        ("unmap", unmap),
        ("read", read),
        ("write", write),
        ("kernel", kernel),
        ("alloc", alloc),
        ("bind", bind),
        ("copy", copy),
    ]
    .into_iter()
    .collect()
}

/// Returns the cells for one row of the paper's table, after a line of column names.
fn cells(framework: Framework, measured: &Measured) -> Vec<Vec<String>> {
    let published: Vec<Published> =
        PUBLISHED.into_iter().filter_map(|mode| measured.row.published(mode)).collect();
    let here = &measured.modes;
    let over = |mode, over| measured.ratio(mode, over).map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
    let mut lines = vec![vec!["call".to_owned()]];
    lines[0].extend(PUBLISHED.map(|mode| format!("paper {mode}")));
    lines[0].extend(here.iter().map(|timed| timed.mode.name().to_owned()));
    type OfPaper = fn(&Published) -> Option<u64>;
    type Here = fn(&Operations) -> u64;
    let calls: [(&str, OfPaper, Here); 9] = [
        ("map", |cells| Some(cells.map), |calls| calls.map),
        ("unmap", |cells| Some(cells.unmap), |calls| calls.unmap),
        ("read", |cells| Some(cells.read), |calls| calls.read),
        ("write", |cells| Some(cells.write), |calls| calls.write),
        ("memcpy", |cells| cells.copy, |calls| calls.copy),
        ("all transfers", |cells| Some(transfers(cells)), Operations::transfers),
        ("kernel", |cells| Some(cells.kernel), |calls| calls.kernel),
        ("alloc", |cells| cells.alloc, |calls| calls.alloc),
        ("bind", |cells| cells.bind, |calls| calls.bind),
    ];
    let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    for (name, of_paper, of_calls) in calls {
        let mut line = vec![name.to_owned()];
        line.extend(published.iter().map(|cells| count(of_paper(cells))));
        line.extend(here.iter().map(|timed| of_calls(&timed.operations).to_string()));
        lines.push(line);
    }
    let mut times = vec!["time".to_owned()];
    times.extend(published.iter().map(|cells| table::seconds(cells.seconds)));
    times.extend(here.iter().map(|timed| table::seconds(summary(timed).median)));
    lines.push(times);
    let mut ratios = vec!["time over hand".to_owned()];
    let hand = published.first().map_or(1.0, |cells| cells.seconds);
    ratios.extend(published.iter().map(|cells| format!("{:.3}", cells.seconds / hand)));
    ratios.extend(here.iter().map(|timed| over(timed.mode, Mode::Hand)));
    lines.push(ratios);
    let mut suited = vec![format!("over {}", framework.suited())];
    suited.extend(published.iter().map(|_| "-".to_owned()));
    suited.extend(here.iter().map(|timed| over(timed.mode, framework.suited())));
    lines.push(suited);
    lines
}

fn transfers(cells: &Published) -> u64 {
    cells.map + cells.unmap + cells.read + cells.write + cells.copy.unwrap_or(0)
}

fn title(measured: &Measured) -> String {
    let size: Vec<_> = measured.size.iter().map(|(name, value)| format!("{value} {name}")).collect();
    format!("{}: {}", measured.row, size.join(", "))
}

/// Returns the table as text.
fn text(heading: &Heading, rows: &[Measured]) -> String {
    let mut lines = vec![format!("table1: {}", heading.line())];
    for measured in rows {
        lines.extend([String::new(), title(measured)]);
        lines.extend(
            table::lines(&cells(heading.framework, measured)).into_iter().map(|line| format!("  {line}")),
        );
    }
    lines.extend([String::new(), VERIFIED.to_owned(), String::new()]);
    lines.join("\n")
}

const VERIFIED: &str = "verified    every item, in the first and the last round of every mode";

/// Returns the table as markdown.
fn markdown(heading: &Heading, rows: &[Measured]) -> String {
    let mut lines = vec![format!("Measured on {}.", heading.line())];
    for measured in rows {
        lines.extend([String::new(), format!("### {}", title(measured)), String::new()]);
        lines.extend(table::markdown(&cells(heading.framework, measured)));
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests;
