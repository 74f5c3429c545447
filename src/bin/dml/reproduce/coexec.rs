//! `dml reproduce coexec`: co-executes the suite, beside the papers' figures.

use super::{give, published};
use crate::bench::{self, Bench, able};
use crate::chart::{Chart, Line};
use crate::cli::{Memory, NO_FILES, ReproduceOptions, TableSize};
use crate::failure::Failure;
use crate::knowledge;
use crate::machine::Machine;
use crate::speeds::date;
use crate::{json, suite, table};
use dml_workloads::prepare::{Kind, Workload};
use std::time::{SystemTime, UNIX_EPOCH};

/// Default number of counted runs.
const RUNS: u32 = 9;

/// Measures and prints the table.
pub(super) fn run(options: &ReproduceOptions) -> Result<(), Failure> {
    let of_suite = options.of_suite(options.memory.unwrap_or(Memory::Auto), RUNS);
    let machine = Machine::of(&of_suite.machine)?;
    let knowledge = knowledge::of_this_machine();
    let mut rows = Vec::new();
    for workload in Workload::ALL {
        let devices = able(&of_suite.machine, &machine.platform, &machine.devices, workload);
        let prepared = bench::prepare(&of_suite, &NO_FILES, &machine.platform, &devices, workload)?;
        let devices = bench::holding(&*prepared, &machine.platform, &devices)?;
        let found = (&machine.platform, &devices[..], &machine.link_prices, &knowledge);
        rows.push(row(
            workload.kind(),
            Bench::new(&of_suite, &NO_FILES, found, &*prepared).measure()?.result,
        ));
        knowledge::save(&knowledge);
    }
    let result = table(options, of_suite.runs, rows);
    let about = About { devices: devices(&machine), note: machine.note.as_deref() };
    let text = || text(&result, &about);
    let svg = chart(&result).svg();
    give(options, &result, text, |chart| markdown(&result, &about, chart), Some(&svg))
}

fn row(kind: Kind, bench: json::Bench) -> json::CoexecRow {
    let packages = bench.devices.iter().map(|device| device.packages).sum();
    json::CoexecRow { kind: kind.name(), packages, bench }
}

/// Returns the table with the rows sorted by kind, and their means.
fn table(options: &ReproduceOptions, runs: u32, mut rows: Vec<json::CoexecRow>) -> json::Coexec {
    let pinned_bytes = rows.first().and_then(|row| row.bench.pinned_bytes);
    let kinds = [Kind::Regular, Kind::Irregular].map(Kind::name);
    rows.sort_by_key(|row| kinds.iter().position(|kind| *kind == row.kind).unwrap_or(kinds.len()));
    let means = |is_of: &dyn Fn(&str) -> bool| {
        let of_kind: Vec<&json::Bench> =
            rows.iter().filter(|row| is_of(row.kind)).map(|row| &row.bench).collect();
        suite::means_of(&of_kind)
    };
    let means = json::ByKind {
        regular: means(&|kind| kind == kinds[0]),
        irregular: means(&|kind| kind == kinds[1]),
        all: means(&|_| true),
    };
    json::Coexec {
        table: "coexec",
        size: options.size_name(TableSize::Small),
        policy: options.policy.clone().unwrap_or_default().to_string(),
        memory: options.memory.unwrap_or(Memory::Auto).name(),
        pinned_bytes,
        runs,
        verified: true,
        rows,
        means,
        published: published::COEXEC.to_vec(),
    }
}

/// The description of the machine.
struct About<'a> {
    /// Name, description and units of each device.
    devices: Vec<String>,
    note: Option<&'a str>,
}

fn devices(machine: &Machine) -> Vec<String> {
    let shown = |device: &dml::core::DeviceId| {
        let desc = machine.platform.device_desc(*device);
        let units = if desc.compute_units == 1 {
            "1 unit".to_owned()
        } else {
            format!("{} units", desc.compute_units)
        };
        format!("{} ({}, {units})", desc.name, desc.description)
    };
    machine.devices.iter().map(shown).collect()
}

fn heading(result: &json::Coexec) -> String {
    let json::Coexec { size, policy, memory, pinned_bytes, runs, .. } = result;
    let pinned = table::pinned(*pinned_bytes);
    format!("{size} size; policy {policy}; memory {memory}{pinned}; median of {runs} runs")
}

/// Returns a line of cells for each workload, between the line of column names and the means.
fn cells(result: &json::Coexec) -> Vec<Vec<String>> {
    let names = suite::names(result.rows.iter().map(|row| &row.bench));
    let mut heading = suite::columns(&names);
    heading.insert(1, "kind".to_owned());
    heading.push("packages".to_owned());
    let mut lines = vec![heading];
    for row in &result.rows {
        let mut line = suite::row(&row.bench, &names);
        line.insert(1, row.kind.to_owned());
        line.push(row.packages.to_string());
        lines.push(line);
    }
    let json::ByKind { regular, irregular, all } = &result.means;
    for (kind, means) in [("regular", regular), ("irregular", irregular), ("all", all)] {
        let mut line = suite::means_row(means, names.len());
        line.insert(1, kind.to_owned());
        line.push(String::new());
        lines.push(line);
    }
    lines
}

/// Returns the cells of the published figures, after a line of column names.
fn published_cells(result: &json::Coexec) -> Vec<Vec<String>> {
    let heading = ["published", "policy", "over", "speedup", "efficiency", "balance"];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    let figure = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"));
    for row in &result.published {
        let json::PublishedCoexec { system, policy, over, speedup, efficiency, balance, .. } = *row;
        let mut line = vec![system.to_owned(), policy.to_owned(), over.to_owned()];
        line.extend([speedup, efficiency, balance].map(figure));
        lines.push(line);
    }
    lines
}

/// Returns the papers without duplicates.
fn sources(result: &json::Coexec) -> Vec<&'static str> {
    let mut sources: Vec<&'static str> = result.published.iter().map(|row| row.source).collect();
    sources.dedup();
    sources
}

/// Returns the table as text.
fn text(result: &json::Coexec, about: &About<'_>) -> String {
    let mut lines = vec![format!("coexec: {}", heading(result))];
    lines.extend(about.note.map(str::to_owned));
    lines.extend(about.devices.iter().map(|device| format!("device: {device}")));
    lines.push(String::new());
    lines.extend(table::lines(&cells(result)).into_iter().map(|line| format!("  {line}")));
    lines.push(String::new());
    lines.extend(table::lines(&published_cells(result)).into_iter().map(|line| format!("  {line}")));
    lines.push(String::new());
    lines.extend(published::COEXEC_NOTES.map(str::to_owned));
    lines.extend(sources(result).into_iter().map(|source| format!("source: {source}")));
    lines.extend(too_small(result).map(str::to_owned));
    lines.extend(
        ["verified    every item of every workload, each device alone and all together", ""]
            .map(str::to_owned),
    );
    lines.join("\n")
}

/// Returns the chart of the speedups, the maximum possible speedups, the means, and the published means.
pub(crate) fn chart(result: &json::Coexec) -> Chart<'_> {
    let json::Coexec { size, policy, memory, runs, .. } = result;
    let about = format!(
        "{size} size, policy {policy}, memory {memory}, median of {runs} runs; \
         a mark shows the most that the devices can bring"
    );
    let bar = |label: &str, speedup: f64, most: Option<f64>, is_published| {
        let most_shown = most.map_or_else(String::new, |most| format!(" of {most:.2}"));
        let (label, figures) = (label.to_owned(), format!("{speedup:.2}{most_shown}"));
        Line::Bar { label, value: speedup, mark: most, is_published, figures }
    };
    let mut lines = Vec::new();
    for row in &result.rows {
        if !lines.iter().any(|line| matches!(line, Line::Heading(kind) if *kind == row.kind)) {
            lines.push(Line::Heading(row.kind));
        }
        let json::Bench { workload, speedup, s_max, .. } = &row.bench;
        lines.push(bar(workload, *speedup, Some(*s_max), false));
    }
    lines.push(Line::Heading("geometric means"));
    let json::ByKind { regular, irregular, all } = &result.means;
    for (kind, means) in [("regular", regular), ("irregular", irregular), ("all", all)] {
        if let Some(speedup) = means.speedup {
            lines.push(bar(kind, speedup, means.s_max, false));
        }
    }
    lines.push(Line::Heading("published means"));
    for row in result.published.iter().filter(|row| row.over == "all") {
        // The maximum possible speedup is the published speedup over the efficiency.
        if let (Some(speedup), Some(efficiency)) = (row.speedup, row.efficiency) {
            let processor = row.system.split(" and ").next().unwrap_or(row.system);
            let label = format!("{processor}, {}", row.policy);
            lines.push(bar(&label, speedup, Some(speedup / efficiency), true));
        }
    }
    Chart { title: "Speedup over the fastest device alone", about, lines, reference: Some(1.0) }
}

/// Returns the table as markdown, with the chart if that is in a file.
fn markdown(result: &json::Coexec, about: &About<'_>, chart: Option<&str>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut lines = vec![
        "# The suite co-executed".to_owned(),
        String::new(),
        format!("`dml reproduce coexec` measured this: {}, {}.", heading(result), date(now)),
        format!("Devices: {}.", about.devices.join("; ")),
    ];
    lines.extend(about.note.map(|note| format!("Here {note}.")));
    lines.extend(too_small(result).map(|warning| format!("\n**{warning}**")));
    lines.push(String::new());
    lines.extend(INTRODUCTION.map(str::to_owned));
    if let Some(chart) = chart {
        lines.extend([
            String::new(),
            format!("![Speedups beside the most that these devices can bring]({chart})"),
        ]);
    }
    lines.push(String::new());
    lines.extend(table::markdown(&cells(result)));
    lines.extend(["", "## What the papers report", ""].map(str::to_owned));
    lines.extend(table::markdown(&published_cells(result)));
    lines.push(String::new());
    lines.extend(published::COEXEC_NOTES.map(|note| format!("- {note}")));
    lines.push(String::new());
    lines.extend(sources(result).into_iter().map(|source| format!("Source: {source}.\n")));
    lines.extend(CAVEATS.map(str::to_owned));
    lines.push(String::new());
    lines.join("\n")
}

/// Returns a warning if the sizes are too small for meaningful figures.
fn too_small(result: &json::Coexec) -> Option<&'static str> {
    let warning =
        "At this size a run takes about as long as handing out its packages, so nothing can be gained.";
    (result.size == TableSize::Tiny.name()).then_some(warning)
}

const INTRODUCTION: [&str; 6] = [
    "Each device runs a workload alone, then all run it together. Times go from the inputs on the host to the results",
    "on the host, and every result is checked. *Speedup* is the time of the fastest device alone over the time together.",
    "*Of* is the greatest possible one (S_max): the sum of the devices' powers, where the fastest has power 1.",
    "*Efficiency* is the part of it that was reached. *Balance* is the end of the first device over the end of the last.",
    "Means are geometric; balances of runs in which a device had no part do not count, and nbody, whose items need all",
    "of an input, counts in the last mean alone.",
];

const CAVEATS: [&str; 3] = [
    "Speedups of different systems cannot be compared, because they depend on how strong the second device is;",
    "efficiencies can. The papers' systems are a processor and a GPU, and their suites have other programs and sizes.",
    "In the chart, the most that their devices could bring is their speedup over their efficiency.",
];

#[cfg(test)]
pub(crate) mod tests;
