//! `dml reproduce jacobi`: steps of jacobi on two or three devices, with strips around those that the
//! devices' speeds alone suggest, beside the published table.

use super::give;
use crate::cli::{MachineOptions, Memory, ReproduceOptions, SizeSpec, StepsOptions, TableSize};
use crate::failure::Failure;
use crate::json;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::steps::{Measured, shape};
use crate::{chain::median, table};
use dml_workloads::steps::Steps;

/// Default number of counted runs.
const RUNS: u32 = 5;

/// A published machine: its name, the points per second of GPU, CPU and MIC alone, the stated ideal speedup,
/// the lines C and M, and the points per second of the nine cells. In these, C and M are moved by -500, 0
/// and 500.
type Published = (&'static str, [f64; 3], f64, [u64; 2], [[f64; 3]; 3]);

const PUBLISHED: [Published; 2] = [
    (
        "CentraleSupelec machine",
        [9.84e9, 1.19e9, 3.50e9],
        1.43,
        [13_500, 15_000],
        [[1.15e10, 1.11e10, 8.79e9], [1.12e10, 1.22e10, 1.12e10], [1.12e10, 1.12e10, 1.13e10]],
    ),
    (
        "Loria machine",
        [7.93e9, 1.60e9, 4.83e9],
        1.74,
        [12_500, 14_000],
        [[8.99e9, 1.01e10, 1.02e10], [9.76e9, 1.06e10, 1.03e10], [9.64e9, 1.00e10, 9.98e9]],
    ),
];

const SOURCE: &str = "Algorithmic scheme for hybrid computing with CPU, Xeon-Phi/MIC and GPU devices on a single \
                      machine, tables 1 and 2";

/// Measures and prints the table.
pub(super) fn run(options: &ReproduceOptions) -> Result<(), Failure> {
    if options.policy.is_some() {
        return Err(Failure::Usage("jacobi has no packages: omit --policy".to_owned()));
    }
    let size = options.size.unwrap_or(TableSize::Small);
    let of_steps = StepsOptions {
        machine: MachineOptions {
            devices: options.devices.clone(),
            limit: options.limit.clone(),
            workers: options.workers.clone(),
            memory: options.memory.unwrap_or(Memory::Auto),
            pinned: options.pinned,
        },
        size: match size {
            TableSize::Tiny => SizeSpec::Tiny,
            TableSize::Small => SizeSpec::Small,
            TableSize::Paper => SizeSpec::Paper,
        },
        steps: None,
        shares: Vec::new(),
        runs: options.runs.unwrap_or(RUNS),
        correct: false,
        by_hand: false,
        trace: None,
        html: None,
        output: None,
        json: options.json,
    };
    let machine = Machine::of(&of_steps.machine)?;
    let count = machine.devices.len();
    if !(2..=3).contains(&count) {
        let why = "jacobi cuts a grid between two or three devices: name them with --devices";
        return Err(Failure::Usage(format!("{why}, instead of {count}")));
    }
    let result = measure(&machine, &of_steps)?;
    let note = machine.note.as_deref();
    give(options, &result, || text(&result, note), |_| markdown(&result, note), None)
}

fn measure(machine: &Machine, options: &StepsOptions) -> Result<json::Jacobi, Failure> {
    let mut measured = Measured::new(machine, Steps::Jacobi, options)?;
    let (devices, size) = (measured.devices.clone(), measured.program.size());
    let points = size.elements() as f64;
    let cells = 3_usize.pow(devices.len() as u32 - 1);
    let mut progress = Progress::new(u64::from(options.runs + 1) * (devices.len() + cells) as u64);
    // Sets of devices take turns.
    let mut speeds = |measured: &mut Measured<'_>, sets: &[(Vec<_>, Option<Vec<f64>>)]| {
        let mut seconds = vec![Vec::new(); sets.len()];
        for round in 0..=options.runs {
            for ((devices, shares), seconds) in sets.iter().zip(&mut seconds) {
                let (step_s, ..) = measured.timed(devices, shares.as_deref())?;
                if round > 0 {
                    seconds.push(step_s);
                }
                progress.step("jacobi");
            }
        }
        Ok::<Vec<f64>, Failure>(seconds.iter().map(|seconds| points / median(seconds)).collect())
    };
    let single: Vec<_> = devices.iter().map(|device| (vec![*device], None)).collect();
    let alone = speeds(&mut measured, &single)?;
    let total: f64 = alone.iter().sum();
    // The rows at which strips begin, in proportion to the speeds alone.
    let mut sum = 0.0;
    let line = |speed: &f64| {
        sum += speed;
        (size.rows as f64 * sum / total).round() as u64
    };
    let lines: Vec<u64> = alone[..alone.len() - 1].iter().map(line).collect();
    let moved_by = (size.rows / 40).max(1);
    let mut sets = Vec::new();
    let mut around = Vec::new();
    for cell in 0..cells {
        let moves = [cell / 3_usize.pow(devices.len() as u32 - 2), cell % 3];
        let mut cuts = vec![0];
        for (line, step) in lines.iter().zip(moves) {
            let line = (line + step as u64 * moved_by).saturating_sub(moved_by);
            cuts.push(line.clamp(cuts[cuts.len() - 1] + 1, size.rows - 2));
        }
        cuts.push(size.rows);
        let shares = cuts.windows(2).map(|cut| (cut[1] - cut[0]) as f64).collect();
        sets.push((devices.clone(), Some(shares)));
        around.push(json::JacobiCell { lines: cuts[1..cuts.len() - 1].to_vec(), points_per_s: 0.0 });
    }
    let found = speeds(&mut measured, &sets)?;
    around.iter_mut().zip(found).for_each(|(cell, speed)| cell.points_per_s = speed);
    progress.done();
    let best_alone = alone.iter().copied().fold(0.0, f64::max);
    let best = around.iter().map(|cell| cell.points_per_s).fold(0.0, f64::max);
    let name = |device: &dml::DeviceId| machine.platform.device_desc(*device).name.to_string();
    Ok(json::Jacobi {
        table: "jacobi",
        rows: size.rows,
        columns: size.columns,
        steps: size.steps,
        runs: options.runs,
        alone: devices
            .iter()
            .zip(&alone)
            .map(|(device, speed)| json::JacobiAlone { device: name(device), points_per_s: *speed })
            .collect(),
        moved_by,
        around,
        speedup: best / best_alone,
        ideal: total / best_alone,
        share_of_ideal: best / total,
    })
}

/// Returns the cells of a table around the lines: columns are those of M, if there is one.
fn cells(around: &[(Vec<u64>, f64)], best_alone: f64) -> Vec<Vec<String>> {
    let per_row = if around.len() == 9 { 3 } else { 1 };
    let mut rows = vec![vec![String::new()]];
    for (lines, _) in &around[..per_row] {
        rows[0].push(lines.get(1).map_or_else(|| "points/s".to_owned(), |line| format!("M = {line}")));
    }
    for row in around.chunks(per_row) {
        let mut cells = vec![format!("C = {}", row[0].0[0])];
        let cell = |(_, speed): &(Vec<u64>, f64)| format!("{speed:.2e} ({:.2})", speed / best_alone);
        cells.extend(row.iter().map(cell));
        rows.push(cells);
    }
    rows
}

fn heading(result: &json::Jacobi) -> String {
    let json::Jacobi { rows, columns, steps, runs, .. } = result;
    format!("{} doubles, {steps} steps; median of {runs} runs", shape(*rows, *columns, 1))
}

/// Returns blocks of lines: a title, and the cells of a table.
fn blocks(result: &json::Jacobi) -> Vec<(String, Vec<Vec<String>>)> {
    let alone = result.alone.iter().map(|alone| format!("{} {:.2e}", alone.device, alone.points_per_s));
    let summary = |speedup: f64, ideal: f64| {
        format!("speedup {speedup:.2} of {ideal:.2}, which is {:.0} % of the ideal", 100.0 * speedup / ideal)
    };
    let around: Vec<_> = result.around.iter().map(|cell| (cell.lines.clone(), cell.points_per_s)).collect();
    let best_alone = result.alone.iter().map(|alone| alone.points_per_s).fold(0.0, f64::max);
    let alone = alone.collect::<Vec<_>>().join(", ");
    let here = format!("here: alone {alone}; {}", summary(result.speedup, result.ideal));
    let mut blocks = vec![(here, cells(&around, best_alone))];
    for (name, alone, ideal, [c, m], speeds) in PUBLISHED {
        let moved = [-500_i64, 0, 500];
        let place = |line: u64, by: i64| line.saturating_add_signed(by);
        let around: Vec<_> = (0..9)
            .map(|cell| {
                (vec![place(c, moved[cell / 3]), place(m, moved[cell % 3])], speeds[cell / 3][cell % 3])
            })
            .collect();
        let best = speeds.into_iter().flatten().fold(0.0, f64::max);
        let [gpu, cpu, mic] = alone;
        let alone = format!("GPU {gpu:.2e}, CPU {cpu:.2e}, MIC {mic:.2e}");
        let title = format!("{name}: alone {alone}; {}", summary(best / gpu, ideal));
        blocks.push((title, cells(&around, gpu)));
    }
    blocks
}

const READING: [&str; 3] = [
    "A cell has updated points per second, and the speedup from the fastest device alone. The first device has the",
    "rows up to C, the second one those up to M (of three devices), the last one the rest. The published grid has",
    "20000 rows of 10000 points, and 5000 steps.",
];

/// Returns a warning if steps are too short for meaningful figures.
fn too_small(result: &json::Jacobi) -> Option<&'static str> {
    let warning = "At this size a step takes about as long as its exchange, so nothing can be gained.";
    (result.rows < 500).then_some(warning)
}

fn text(result: &json::Jacobi, note: Option<&str>) -> String {
    let mut lines = vec![format!("jacobi: {}", heading(result))];
    lines.extend(note.map(str::to_owned));
    lines.extend(READING.map(str::to_owned));
    lines.extend(too_small(result).map(str::to_owned));
    for (title, cells) in blocks(result) {
        lines.extend([String::new(), title]);
        lines.extend(table::lines(&cells).into_iter().map(|line| format!("  {line}")));
    }
    lines.extend([String::new(), format!("source: {SOURCE}")]);
    lines.extend(
        ["verified    every element of the last step, and that all cells have the same grid", ""]
            .map(str::to_owned),
    );
    lines.join("\n")
}

fn markdown(result: &json::Jacobi, note: Option<&str>) -> String {
    let mut lines = vec!["# Jacobi on several devices".to_owned(), String::new()];
    lines.push(format!("`dml reproduce jacobi` measured this: {}.", heading(result)));
    lines.extend(note.map(|note| format!("Here {note}.")));
    lines.extend(READING.map(str::to_owned));
    for (title, cells) in blocks(result) {
        lines.extend([String::new(), title, String::new()]);
        lines.extend(table::markdown(&cells));
    }
    lines.extend([String::new(), format!("Source: {SOURCE}."), String::new()]);
    lines.join("\n")
}
