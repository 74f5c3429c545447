//! `dml bench chain`: the cost of a small kernel that depends on others, submitted, queued by hand, and under
//! one grant. The ways take turns in one process, and every result is checked.

use crate::cli::{ChainOptions, MachineOptions};
use crate::failure::{self, Failure};
use crate::machine::{Machine, discover};
use crate::{json, table};
use dml::scheduler::metrics::Summary;
use dml::{DeviceId, Platform};
use dml_workloads::by_hand::chain::{Chains, Failed, Shape};
use dml_workloads::by_hand::language;
use std::time::Duration;

/// Measures and prints the table.
pub(crate) fn run(options: &ChainOptions) -> Result<(), Failure> {
    let result = measure(options)?;
    if options.json { json::print(&result) } else { failure::print(&text(&result)) }
}

fn measure(options: &ChainOptions) -> Result<json::Chain, Failure> {
    /// The numbers of elements of the buffers.
    const ELEMENTS: [u64; 3] = [64, 1024, 65_536];

    let (machine, devices) = compiled(&options.machine, "chain")?;
    let (platform, mut rows) = (&machine.platform, Vec::new());
    for &device in &devices {
        for elements in ELEMENTS {
            let mut chains = Chains::new(platform, device, elements).map_err(failed)?;
            for shape in Shape::ALL {
                let kernels = options.kernels as usize;
                let seconds = take_turns(options.runs, || {
                    Ok([
                        chains.submitted(shape, kernels)?,
                        chains.by_hand(shape, kernels)?,
                        chains.one_grant(shape, kernels)?,
                        chains.one_by_one(shape, kernels)?,
                    ])
                })?;
                let name = platform.device_desc(device).name.to_string();
                rows.push(row((name, shape.name(), elements), options.kernels, &seconds));
            }
        }
    }
    let pairs = match devices[..] {
        [one, other, ..] => vec![pair(platform, [one, other], options)?],
        _ => Vec::new(),
    };
    Ok(json::Chain { kernels: options.kernels, runs: options.runs, rows, pairs })
}

/// Opens the devices with compiled kernels, of which the benchmark needs one. If none is named, these are all
/// that there are, also on few cores.
pub(crate) fn compiled(
    options: &MachineOptions,
    benchmark: &str,
) -> Result<(Machine, Vec<DeviceId>), Failure> {
    let mut options = options.clone();
    if options.devices.is_empty() {
        let platform = discover(&options.workers.discover_options().offload(0))?;
        let all = (0..).map(DeviceId).zip(platform.devices());
        let all = all.filter(|(device, _)| language(&platform, *device).is_some());
        options.devices = all.map(|(_, device)| device.name.to_string()).collect();
    }
    let machine = Machine::of(&options)?;
    let has_programs = |device: &DeviceId| language(&machine.platform, *device).is_some();
    let found: Vec<_> = machine.devices.iter().copied().filter(has_programs).collect();
    if found.is_empty() {
        let missing = machine.unavailable.iter().map(|missing| format!("; unavailable: {missing}"));
        let missing: String = missing.collect();
        return Err(Failure::Usage(format!("{benchmark} needs a device of OpenCL or CUDA{missing}")));
    }
    Ok((machine, found))
}

pub(crate) fn failed(error: Failed) -> Failure {
    Failure::Work(error.to_string())
}

/// Measures a chain on each of two devices, alone and both at once.
fn pair(
    platform: &Platform,
    devices: [DeviceId; 2],
    options: &ChainOptions,
) -> Result<json::ChainPair, Failure> {
    /// The number of elements of the buffers: a kernel takes longer than two submissions.
    const ELEMENTS: u64 = 1 << 20;

    let new = |device| Chains::new(platform, device, ELEMENTS).map_err(failed);
    let ([one, other], kernels) = ([new(devices[0])?, new(devices[1])?], options.kernels as usize);
    let seconds = take_turns(options.runs, || {
        Ok([
            one.submitted(Shape::Chain, kernels)?,
            other.submitted(Shape::Chain, kernels)?,
            Chains::at_once(&[&one, &other], kernels)?,
        ])
    })?;
    let per_kernel = |seconds: &[f64]| median(seconds) * 1e9 / options.kernels as f64;
    let [first, second, both] = &seconds;
    let alone = first.iter().zip(second).map(|(one, other)| one.max(*other));
    let ratios: Vec<f64> = both.iter().zip(alone).map(|(both, longer)| both / longer).collect();
    Ok(json::ChainPair {
        devices: devices.map(|device| platform.device_desc(device).name.to_string()),
        elements: ELEMENTS,
        alone_ns: [per_kernel(first), per_kernel(second)],
        both_ns: per_kernel(both),
        over_longer: median(&ratios),
    })
}

/// Runs rounds in which several ways take turns. Returns the seconds of each way. The first round does not
/// count.
pub(crate) fn take_turns<const WAYS: usize>(
    runs: u32,
    mut round: impl FnMut() -> Result<[Duration; WAYS], Failed>,
) -> Result<[Vec<f64>; WAYS], Failure> {
    let mut seconds = [const { Vec::new() }; WAYS];
    for number in 0..=runs {
        let times = round().map_err(failed)?;
        if number > 0 {
            seconds.iter_mut().zip(times).for_each(|(seconds, time)| seconds.push(time.as_secs_f64()));
        }
    }
    Ok(seconds)
}

pub(crate) fn median(seconds: &[f64]) -> f64 {
    Summary::of(seconds).map_or(0.0, |summary| summary.median)
}

/// Returns the medians of a row, from the seconds of each way: submitted, by hand, under one grant, and one
/// after the other.
fn row(
    (device, shape, elements): (String, &'static str, u64),
    kernels: u64,
    seconds: &[Vec<f64>; 4],
) -> json::ChainRow {
    let [submitted, by_hand, one_grant, one_by_one] = seconds.each_ref().map(|seconds| median(seconds));
    let per_kernel = |seconds: f64| seconds * 1e9 / kernels as f64;
    let ratios: Vec<f64> = seconds[0].iter().zip(&seconds[1]).map(|(one, other)| one / other).collect();
    json::ChainRow {
        device,
        shape: shape.to_owned(),
        elements,
        per_kernel_ns: per_kernel(submitted),
        by_hand_ns: per_kernel(by_hand),
        one_grant_ns: per_kernel(one_grant),
        one_by_one_ns: per_kernel(one_by_one),
        over_by_hand: median(&ratios),
    }
}

fn text(result: &json::Chain) -> String {
    let heading =
        ["device", "shape", "elements", "submitted", "by hand", "one grant", "one by one", "over by hand"];
    let time = |ns: f64| table::seconds(ns * 1e-9);
    let rows = result.rows.iter().map(|row| {
        vec![
            row.device.clone(),
            row.shape.clone(),
            row.elements.to_string(),
            time(row.per_kernel_ns),
            time(row.by_hand_ns),
            time(row.one_grant_ns),
            time(row.one_by_one_ns),
            format!("{:.2}", row.over_by_hand),
        ]
    });
    let rows: Vec<_> = std::iter::once(heading.map(str::to_owned).to_vec()).chain(rows).collect();
    let (kernels, runs) = (result.kernels, result.runs);
    let first = format!("time per kernel, of {kernels} dependent kernels; median of {runs} runs");
    let pairs = result.pairs.iter().map(|pair| {
        let ([one, other], [first, second]) = (&pair.devices, pair.alone_ns.map(time));
        let (both, ratio) = (time(pair.both_ns), pair.over_longer);
        format!("{one} alone {first}, {other} alone {second}, both at once {both}: {ratio:.2} of the longer")
    });
    let pairs = (!result.pairs.is_empty()).then(String::new).into_iter().chain(pairs);
    let lines = [first, String::new()].into_iter().chain(table::lines(&rows)).chain(pairs);
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_the_median_of_its_way() {
        let around = |median: f64| vec![median * 5.0, median / 2.0, median];
        let seconds = [0.5, 0.25, 0.125, 1.0].map(around);
        let row = row(("a".to_owned(), "chain", 64), 1000, &seconds);
        let found = [row.per_kernel_ns, row.by_hand_ns, row.one_grant_ns, row.one_by_one_ns];
        assert_eq!(found, [500_000.0, 250_000.0, 125_000.0, 1_000_000.0]);
        assert_eq!(row.over_by_hand, 2.0);
        let text = text(&json::Chain { kernels: 1000, runs: 3, rows: vec![row], pairs: Vec::new() });
        assert!(text.contains("500.0 us") && text.contains("250.0 us") && text.contains("2.00"), "{text}");
    }
}
