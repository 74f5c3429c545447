//! `dml bench`: each device alone, then all together.
//!
//! Every run begins with the inputs on the host alone and ends with the outputs on the host, so all transfers count.
//! One run is discarded, the others give median, least and greatest time; the result of the last run of each
//! configuration is checked item by item.

use crate::cli::{BenchOptions, SizeSpec};
use crate::failure::{self, Failure};
use crate::machine::Machine;
use crate::offload;
use crate::progress::Progress;
use crate::{json, table};
use dml::arenas::opencl::native::{Baseline, BaselineArg, BaselineSpec};
use dml::core::{DeviceId, DeviceKind, Operation, Unavailable, record::OPERATIONS};
use dml::prelude::*;
use dml::scheduler::{Report, metrics};
use dml_workloads::prepare::{Input, PlainArgument, PrepareError, Prepared, Workload};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Runs every workload asked for and prints its result.
pub(crate) fn run(options: &BenchOptions) -> Result<(), Failure> {
    if options.workloads.iter().any(|name| name == offload::NAME) {
        return offload::run(options);
    }
    let workloads = workloads(&options.workloads)?;
    check(options, &workloads)?;
    let Machine { platform, devices, note, unavailable } = Machine::of(options)?;
    let mut results = Vec::new();
    for workload in workloads {
        let result = bench(options, &platform, &devices, workload)?;
        if !options.json {
            failure::print(&text(&result, note.as_deref(), &unavailable))?;
        }
        results.push(result);
    }
    match &results[..] {
        _ if !options.json => Ok(()),
        [one] => json::print(one),
        many => json::print(&many),
    }
}

fn workloads(names: &[String]) -> Result<Vec<Workload>, Failure> {
    let mut workloads = Vec::new();
    for name in names {
        match name.as_str() {
            "all" => workloads.extend(Workload::ALL),
            name => workloads.push(name.parse().map_err(Failure::usage)?),
        }
    }
    workloads.dedup();
    Ok(workloads)
}

fn check(options: &BenchOptions, workloads: &[Workload]) -> Result<(), Failure> {
    let usage = |text: String| Err(Failure::Usage(text));
    if let (Some(_), Some(workload)) =
        (&options.input, workloads.iter().find(|workload| !workload.takes_picture()))
    {
        return usage(format!("{workload} does not take a picture: --input is for gaussian"));
    }
    if let Some(output) = &options.output {
        if workloads.len() > 1 {
            return usage("--output names one file: give one workload".to_owned());
        }
        if let Some(workload) = workloads.iter().find(|workload| !workload.makes_picture()) {
            return usage(format!(
                "{workload} does not make a picture: {} would stay empty",
                output.display()
            ));
        }
    }
    for power in &options.powers {
        if !(power.value.is_finite() && power.value > 0.0) {
            return usage(format!("power {} of {} is not a positive number", power.value, power.device));
        }
    }
    Ok(())
}

/// One configuration's runs.
struct Timed {
    seconds: Vec<f64>,
    runs: Vec<Run>,
}

/// One run.
struct Run {
    report: Report,
    operations: BTreeMap<&'static str, u64>,
    transfers: Vec<json::BenchTransfer>,
}

impl Timed {
    fn summary(&self) -> metrics::Summary {
        metrics::Summary::of(&self.seconds).expect("at least one run counts")
    }

    /// The run whose time is the median, or next above it.
    fn median_run(&self) -> &Run {
        let mut order: Vec<usize> = (0..self.runs.len()).collect();
        order.sort_by(|&a, &b| self.seconds[a].total_cmp(&self.seconds[b]));
        &self.runs[order[order.len() / 2]]
    }
}

fn bench(
    options: &BenchOptions,
    platform: &Platform,
    devices: &[DeviceId],
    workload: Workload,
) -> Result<json::Bench, Failure> {
    let input = match (&options.input, options.size) {
        (Some(path), _) => Input::Picture(path),
        (None, SizeSpec::Tiny) => Input::Tiny,
        (None, SizeSpec::Small) => Input::Small,
        (None, SizeSpec::Paper) => Input::Paper,
        (None, SizeSpec::Number(size)) => Input::Size(size),
    };
    let prepared = workload.prepare(platform, devices, &input).map_err(|error| match error {
        PrepareError::Build { .. } | PrepareError::Threads { .. } => Failure::work(error),
        error => Failure::usage(error),
    })?;
    let bench = Bench { options, platform, prepared: &*prepared };
    let rounds = devices.len() as u64 + 1 + u64::from(options.native);
    let mut progress = Progress::new(rounds * (u64::from(options.runs) + 1));
    let mut alone = Vec::new();
    let mut native_s = BTreeMap::new();
    for &device in devices {
        let name = platform.devices()[usize::from(device.0)].name.to_string();
        let mut baseline = bench.baseline(&name)?;
        let timed = bench.time(&[device], &[1.0], dml::scheduler::PolicySpec::Static, |native_runs| {
            progress.step(&format!("{workload}: {name} alone"));
            match &mut baseline {
                Some(baseline) => native_runs(baseline),
                None => Ok(()),
            }
        })?;
        bench.verify(&name)?;
        if let Some(baseline) = baseline {
            native_s.insert(name, baseline.summary(&*prepared)?);
        }
        alone.push(timed.summary().median);
    }
    let measured = metrics::powers(&alone);
    let powers = powers(options, platform, devices, &measured);
    let timed = bench.time(devices, &powers, options.policy, |_| {
        progress.step(&format!("{workload}: together"));
        Ok(())
    })?;
    bench.verify("all devices together")?;
    drop(progress);
    let picture = bench.write_picture(workload)?;
    let summary = timed.summary();
    let balances: Vec<f64> = timed.runs.iter().map(|run| run.report.balance()).collect();
    let fastest = alone.iter().copied().fold(f64::INFINITY, f64::min);
    let speedup = metrics::speedup(fastest, summary.median);
    let s_max = metrics::s_max(&measured);
    let median = timed.median_run();
    Ok(json::Bench {
        workload: workload.to_string(),
        size: prepared.size().into_iter().collect(),
        policy: options.policy.to_string(),
        memory: "copy",
        runs: options.runs,
        verified: true,
        devices: (0..devices.len())
            .map(|index| device_row(platform, median, index, &alone, &powers))
            .collect(),
        coexec_s: summary.median,
        coexec_min_s: summary.min,
        coexec_max_s: summary.max,
        speedup,
        s_max,
        efficiency: metrics::efficiency(speedup, s_max),
        balance: metrics::Summary::of(&balances).map_or(1.0, |summary| summary.median),
        native_s,
        transfers: median.transfers.clone(),
        operations: median.operations.clone(),
        failures: failures(platform, &timed),
        energy_j: None,
        picture: picture.map(|path| path.display().to_string()),
    })
}

fn failures(platform: &Platform, timed: &Timed) -> Vec<String> {
    let all = timed.runs.iter().flat_map(|run| &run.report.failures);
    all.map(|failure| {
        let name = &platform.devices()[usize::from(failure.device.0)].name;
        format!("{name}: {}", failure.message)
    })
    .collect()
}

fn powers(options: &BenchOptions, platform: &Platform, devices: &[DeviceId], measured: &[f64]) -> Vec<f64> {
    let given = |device: DeviceId| {
        let name = &platform.devices()[usize::from(device.0)].name;
        options.powers.iter().rev().find(|power| *power.device == **name).map(|power| power.value)
    };
    devices.iter().zip(measured).map(|(&device, &power)| given(device).unwrap_or(power)).collect()
}

fn device_row(
    platform: &Platform,
    run: &Run,
    index: usize,
    alone: &[f64],
    powers: &[f64],
) -> json::BenchDevice {
    let report = &run.report.devices[index];
    let desc = &platform.devices()[usize::from(report.device.0)];
    let arena = platform.home(report.device).map(|arena| platform.arena(arena).desc().name.to_string());
    json::BenchDevice {
        name: desc.name.to_string(),
        arena: arena.unwrap_or_default(),
        units: desc.units,
        alone_s: alone[index],
        power: powers[index],
        busy_s: report.busy.as_secs_f64(),
        end_s: report.end.as_secs_f64(),
        packages: report.packages,
        items: report.items,
    }
}

struct Bench<'a> {
    options: &'a BenchOptions,
    platform: &'a Platform,
    prepared: &'a dyn Prepared,
}

/// The hand-written program and its times.
struct Native {
    baseline: Baseline,
    seconds: Vec<f64>,
}

impl Bench<'_> {
    /// One discarded run, then those that count. `beside` is called after each, and may run the hand-written program,
    /// so that both meet the same weather.
    fn time(
        &self,
        devices: &[DeviceId],
        powers: &[f64],
        policy: dml::scheduler::PolicySpec,
        mut beside: impl FnMut(&mut dyn FnMut(&mut Native) -> Result<(), Failure>) -> Result<(), Failure>,
    ) -> Result<Timed, Failure> {
        let coexecutor = Coexecutor::new(self.platform)
            .devices(devices.iter().copied())
            .powers(powers.iter().copied())
            .policy(policy);
        let mut timed = Timed { seconds: Vec::new(), runs: Vec::new() };
        for run in 0..=self.options.runs {
            self.prepared.reset().map_err(Failure::work)?;
            self.platform.counters().reset();
            let begun = Instant::now();
            let report =
                coexecutor.run(self.prepared.kernel(), self.prepared.items()).map_err(Failure::work)?;
            self.prepared.collect().map_err(Failure::work)?;
            let seconds = begun.elapsed().as_secs_f64();
            let (operations, transfers) = (self.operations(), self.transfers());
            if run > 0 {
                timed.seconds.push(seconds);
                timed.runs.push(Run { report, operations, transfers });
            }
            beside(&mut |native| native.run(run > 0))?;
        }
        Ok(timed)
    }

    fn verify(&self, what: &str) -> Result<(), Failure> {
        let wrong = |error| Failure::Work(format!("the result of {what} is wrong: {error}"));
        self.prepared.verify().map_err(wrong)
    }

    fn operations(&self) -> BTreeMap<&'static str, u64> {
        let counters = self.platform.counters();
        OPERATIONS
            .iter()
            .map(|&operation: &Operation| (operation.name(), counters.operation(operation)))
            .collect()
    }

    /// What each pair of arenas exchanged, over all of its links.
    fn transfers(&self) -> Vec<json::BenchTransfer> {
        let mut pairs: Vec<json::BenchTransfer> = Vec::new();
        for transfer in self.platform.counters().transfers() {
            let link = self.platform.links()[usize::from(transfer.link.0)];
            let name = |arena| self.platform.arena(arena).desc().name.to_string();
            let (from, to) = (name(link.from), name(link.to));
            let seconds = transfer.duration.as_secs_f64();
            match pairs.iter_mut().find(|pair| pair.from == from && pair.to == to) {
                Some(pair) => {
                    pair.bytes += transfer.bytes;
                    pair.copies += transfer.copies;
                    pair.seconds += seconds;
                }
                None => {
                    let (bytes, copies) = (transfer.bytes, transfer.copies);
                    pairs.push(json::BenchTransfer { from, to, bytes, copies, seconds });
                }
            }
        }
        pairs
    }

    fn write_picture(&self, workload: Workload) -> Result<Option<PathBuf>, Failure> {
        if !workload.makes_picture() || self.prepared.items() == 0 {
            return Ok(None);
        }
        let path = self.options.output.clone().unwrap_or_else(|| PathBuf::from(format!("{workload}.png")));
        self.prepared.write_picture(&path).map_err(Failure::work)?;
        Ok(Some(path))
    }

    /// The hand-written program for an OpenCL device, where it is asked for.
    fn baseline(&self, device: &str) -> Result<Option<Native>, Failure> {
        let number = device.strip_prefix("opencl:").and_then(|number| number.parse().ok());
        let (Some(number), true) = (number, self.options.native && self.prepared.items() > 0) else {
            return Ok(None);
        };
        let plain = self.prepared.plain();
        let id = self.platform.device(device).map_err(Failure::usage)?;
        let limit = self.options.limit.iter().find(|limit| limit.device == device).map(|limit| limit.value);
        let args: Vec<BaselineArg> = plain.arguments.iter().map(baseline_arg).collect();
        let spec = BaselineSpec {
            device: number,
            limit: limit.or_else(|| self.is_limited(id)),
            source: plain.source,
            kernel: plain.kernel,
            options: "",
            args,
            items: self.prepared.items() as usize,
            local: plain.local_size as usize,
        };
        let baseline = Baseline::new(spec).map_err(Failure::work)?;
        Ok(Some(Native { baseline, seconds: Vec::new() }))
    }

    /// The units of a device that shares the processor's cores, whether or not the user said so.
    fn is_limited(&self, device: DeviceId) -> Option<u32> {
        let desc = &self.platform.devices()[usize::from(device.0)];
        (desc.kind == DeviceKind::Cpu).then_some(desc.units)
    }
}

impl Native {
    fn run(&mut self, counts: bool) -> Result<(), Failure> {
        let duration = self.baseline.run().map_err(Failure::work)?;
        if counts {
            self.seconds.push(duration.as_secs_f64());
        }
        Ok(())
    }

    /// The median time, once the result has been checked.
    fn summary(&self, prepared: &dyn Prepared) -> Result<f64, Failure> {
        let wrong =
            |error| Failure::Work(format!("the result of the hand-written program is wrong: {error}"));
        prepared.verify_plain(self.baseline.output(0)).map_err(wrong)?;
        Ok(metrics::Summary::of(&self.seconds).map_or(0.0, |summary| summary.median))
    }
}

fn baseline_arg(argument: &PlainArgument) -> BaselineArg {
    match argument {
        PlainArgument::Input(bytes) => BaselineArg::Input(bytes.clone()),
        PlainArgument::Output(len) => BaselineArg::Output(*len as usize),
        PlainArgument::U32(value) => BaselineArg::U32(*value),
        PlainArgument::U64(value) => BaselineArg::U64(*value),
        PlainArgument::F32(value) => BaselineArg::F32(*value),
        other => unreachable!("{other:?} has no counterpart in a hand-written program"),
    }
}

/// The result as a table for people.
fn text(result: &json::Bench, note: Option<&str>, unavailable: &[Unavailable]) -> String {
    let mut lines: Vec<String> = Vec::new();
    let size =
        result.size.iter().map(|(name, value)| format!("{value} {name}")).collect::<Vec<_>>().join(", ");
    lines.push(format!(
        "{}: {size}; policy {}; median of {} runs",
        result.workload, result.policy, result.runs
    ));
    if let Some(note) = note {
        lines.push(note.to_owned());
    }
    for missing in unavailable {
        lines.push(format!("unavailable: {missing}"));
    }
    let heading = ["device", "units", "alone", "power", "packages", "items", "busy", "end"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for device in &result.devices {
        rows.push(vec![
            device.name.clone(),
            device.units.to_string(),
            table::seconds(device.alone_s),
            format!("{:.3}", device.power),
            device.packages.to_string(),
            device.items.to_string(),
            table::seconds(device.busy_s),
            table::seconds(device.end_s),
        ]);
    }
    lines.push(String::new());
    for line in table::lines(&rows) {
        lines.push(format!("  {line}"));
    }
    lines.push(String::new());
    lines.push(format!(
        "together    {} ({} to {})",
        table::seconds(result.coexec_s),
        table::seconds(result.coexec_min_s),
        table::seconds(result.coexec_max_s)
    ));
    lines.push(format!(
        "speedup     {:.3} of {:.3}: efficiency {:.3}, balance {:.3}",
        result.speedup, result.s_max, result.efficiency, result.balance
    ));
    for (device, seconds) in &result.native_s {
        let alone = result.devices.iter().find(|row| row.name == *device).map_or(0.0, |row| row.alone_s);
        lines.push(format!(
            "by hand     {} on {device}: dml takes {:.3} of it",
            table::seconds(*seconds),
            alone / seconds
        ));
    }
    for transfer in &result.transfers {
        lines.push(format!(
            "transfers   {} -> {}: {} in {} copies, {}",
            transfer.from,
            transfer.to,
            table::bytes(transfer.bytes),
            transfer.copies,
            table::seconds(transfer.seconds)
        ));
    }
    let counts: Vec<_> = result
        .operations
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    lines.push(format!("operations  {}", counts.join(", ")));
    for failure in &result.failures {
        lines.push(format!("failed      {failure}; others finished its work"));
    }
    lines.push("verified    every item, each device alone and all together".to_owned());
    if let Some(picture) = &result.picture {
        lines.push(format!("picture     {picture}"));
    }
    lines.push(String::new());
    lines.push(String::new());
    lines.join("\n")
}
