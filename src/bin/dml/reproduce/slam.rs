//! `dml reproduce slam`: the calls and times of a program of many dependent kernels, by hand and on the data
//! layer, beside the published table.

use super::{check_one_device, give, operations_of_json};
use crate::cli::ReproduceOptions;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{chain::median, slam, table};
use dml_workloads::slam::{Accuracy, Column, Columns, Frames, Run, Size, SlamError};
use dml_workloads::table1::Mode;
use serde::Serialize;
use std::collections::BTreeMap;

/// Default number of counted rounds.
const RUNS: u32 = 5;
/// Seed of the noise. Its value is arbitrary.
const SEED: u64 = 1;
/// Frames of the published runs.
const PUBLISHED_FRAMES: u64 = 880;

/// The output of `dml reproduce slam --json`.
#[derive(Debug, Serialize)]
struct Reproduced {
    table: &'static str,
    device: String,
    size: &'static str,
    frames: usize,
    runs: u32,
    iterations: u32,
    ate_mean_m: Option<f64>,
    ate_max_m: Option<f64>,
    published_frames: u64,
    columns: Vec<OfColumn>,
}

/// A column of the table.
#[derive(Debug, Serialize)]
struct OfColumn {
    column: String,
    published_s: f64,
    published: BTreeMap<&'static str, u64>,
    seconds: f64,
    operations: BTreeMap<&'static str, u64>,
    /// The median of the times over those by hand in the same round, the least and the greatest.
    over_hand: [f64; 3],
}

/// Measures and prints the table.
pub(super) fn run(options: &ReproduceOptions) -> Result<(), Failure> {
    check_one_device(options)?;
    let name = options.devices.first().map_or(dml_workloads::table1::DEVICE, String::as_str);
    let mut columns = Columns::open(name).map_err(|error| match error {
        SlamError::NoKernels { device } => {
            Failure::Usage(format!("slam compares programs on one OpenCL or CUDA device, not {device}"))
        }
        SlamError::Discover(_) => Failure::usage(error),
        error => Failure::work(error),
    })?;
    let (size, count) = slam::size(options.size.unwrap_or(crate::cli::TableSize::Paper));
    let frames = Frames::generate(size, options.frames.unwrap_or(count), SEED).map_err(Failure::usage)?;
    let result = measure(options, &mut columns, &frames)?;
    let line = heading(&result, size);
    give(options, &result, || text(&result, &line), |_| markdown(&result, &line), None)
}

fn measure(
    options: &ReproduceOptions,
    columns: &mut Columns,
    frames: &Frames,
) -> Result<Reproduced, Failure> {
    let runs = options.runs.unwrap_or(RUNS);
    let all = Column::ALL;
    let mut progress = Progress::new(u64::from(runs + 1) * all.len() as u64);
    let mut timed: Vec<Vec<Run>> = vec![Vec::new(); all.len()];
    for round in 0..=runs as usize {
        for place in 0..all.len() {
            // Each column takes each place.
            let at = (place + round) % all.len();
            let run = columns.run(all[at], frames).map_err(Failure::work)?;
            check(all[at], &run, frames)?;
            if round > 0 {
                timed[at].push(run);
            }
            progress.step(&all[at].name());
        }
    }
    progress.done();
    let seconds = |runs: &[Run]| runs.iter().map(|run| run.duration.as_secs_f64()).collect::<Vec<_>>();
    let hand = seconds(&timed[0]);
    let of_column = |(column, runs): (&Column, &Vec<Run>)| {
        let (published_s, _) = column.published();
        let seconds = seconds(runs);
        let mut ratios: Vec<f64> = seconds.iter().zip(&hand).map(|(time, hand)| time / hand).collect();
        ratios.sort_by(f64::total_cmp);
        OfColumn {
            column: column.name(),
            published_s,
            published: published_calls(*column),
            seconds: median(&seconds),
            operations: operations_of_json(&runs[0].operations),
            over_hand: [median(&ratios), ratios[0], ratios[ratios.len() - 1]],
        }
    };
    let accuracy = Accuracy::of(&timed[0][0], frames);
    Ok(Reproduced {
        table: "slam",
        device: columns.device().to_owned(),
        size: options.size_name(crate::cli::TableSize::Paper),
        frames: frames.len(),
        runs,
        iterations: timed[0][0].iterations(),
        ate_mean_m: accuracy.map(|accuracy| accuracy.mean_m),
        ate_max_m: accuracy.map(|accuracy| accuracy.max_m),
        published_frames: PUBLISHED_FRAMES,
        columns: all.iter().zip(&timed).map(of_column).collect(),
    })
}

/// Returns the paper's calls. It does not count the storage of the program by hand.
fn published_calls(column: Column) -> BTreeMap<&'static str, u64> {
    let mut calls = operations_of_json(&column.published().1);
    if column.mode == Mode::Hand {
        calls.retain(|name, _| !["alloc", "bind", "copy"].contains(name));
    }
    calls
}

/// Compares a run with the true way of the camera, and its calls with their formulas.
fn check(column: Column, run: &Run, frames: &Frames) -> Result<(), Failure> {
    let wrong = |why: String| Failure::Work(format!("the result of {} is wrong: {why}", column.name()));
    let off = Accuracy::of(run, frames).map_or(0.0, |accuracy| accuracy.mean_m);
    if run.lost() > 0 || off > frames.most_error_m() {
        return Err(wrong(format!(
            "{} frames were not tracked, and the camera is off by {off:.4} m",
            run.lost()
        )));
    }
    let (kernels, expected) = (run.operations.kernel, column.expected_kernels(run));
    if kernels != expected {
        return Err(wrong(format!("{kernels} kernels, not {expected}")));
    }
    Ok(())
}

fn heading(result: &Reproduced, size: Size) -> String {
    let Reproduced { device, frames, runs, iterations, .. } = result;
    let Size { width, height, edge, .. } = size;
    format!(
        "{device}; {frames} frames of {width} x {height}, {edge} voxels per edge, {iterations} iterations; \
         median of {runs} rounds, in which every mode runs once"
    )
}

/// Returns the cells of the table, after a line of column names.
fn cells(result: &Reproduced) -> Vec<Vec<String>> {
    const CALLS: [&str; 8] = ["map", "unmap", "read", "write", "copy", "kernel", "alloc", "bind"];

    let columns = || result.columns.iter();
    let row = |name: &str, paper: &dyn Fn(&OfColumn) -> String, here: &dyn Fn(&OfColumn) -> String| {
        std::iter::once(name.to_owned()).chain(columns().map(paper)).chain(columns().map(here)).collect()
    };
    let mut lines: Vec<Vec<String>> =
        vec![row("call", &|of| format!("paper {}", of.column), &|of| of.column.clone())];
    let count = |calls: &BTreeMap<&str, u64>, name: &str| {
        calls.get(name).map_or_else(|| "-".to_owned(), ToString::to_string)
    };
    for name in CALLS {
        let shown = if name == "copy" { "memcpy" } else { name };
        lines.push(row(shown, &|of| count(&of.published, name), &|of| count(&of.operations, name)));
    }
    let hand = result.columns[0].published_s;
    lines.push(row("time", &|of| table::seconds(of.published_s), &|of| table::seconds(of.seconds)));
    let per_frame = |seconds: f64, frames: u64| table::seconds(seconds / frames as f64);
    lines.push(row("per frame", &|of| per_frame(of.published_s, result.published_frames), &|of| {
        per_frame(of.seconds, result.frames as u64)
    }));
    lines.push(row("over hand", &|of| format!("{:.3}", of.published_s / hand), &|of| {
        format!("{:.3}", of.over_hand[0])
    }));
    lines.push(row("least to most", &|_| "-".to_owned(), &|of| {
        format!("{:.3}-{:.3}", of.over_hand[1], of.over_hand[2])
    }));
    lines
}

/// Returns the lines below the table.
fn notes(result: &Reproduced) -> Vec<String> {
    let millimetres = |value: Option<f64>| value.map_or(0.0, |value| value * 1e3);
    vec![
        format!("paper       {} frames, 12066 iterations; + cpu: the host tracks", result.published_frames),
        "kernels     10 per frame, 2 per iteration on the device, integrations, a raycast per frame from the fourth, and 1"
            .to_owned(),
        format!(
            "verified    every frame tracked; the camera is off by {:.2} mm, at most {:.2} mm",
            millimetres(result.ate_mean_m),
            millimetres(result.ate_max_m)
        ),
    ]
}

fn text(result: &Reproduced, heading: &str) -> String {
    let mut lines = vec![format!("slam: {heading}"), String::new()];
    lines.extend(table::lines(&cells(result)));
    lines.push(String::new());
    lines.extend(notes(result));
    lines.push(String::new());
    lines.join("\n")
}

fn markdown(result: &Reproduced, heading: &str) -> String {
    let mut lines = vec![format!("Measured on {heading}."), String::new()];
    lines.extend(table::markdown(&cells(result)));
    lines.push(String::new());
    lines.extend(notes(result).into_iter().map(|note| format!("    {note}")));
    lines.push(String::new());
    lines.join("\n")
}
