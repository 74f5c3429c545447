//! `dml run`: an application that a TOML file describes.

use crate::chain::median;
use crate::cli::{BenchFiles, MachineOptions, NO_FILES, RunOptions};
use crate::failure::{self, Failure};
use crate::machine::{self, Machine};
use crate::output::{self, Unwritten};
use crate::{json, table, timeline};
use dml::DeviceId;
use dml::app::{Application, ApplicationError, Outcome, Prepared};
use dml::timeline::Trace;
use std::collections::BTreeMap;
use std::path::Path;

/// Runs an application, and prints what it did.
pub(crate) fn run(options: &RunOptions) -> Result<(), Failure> {
    let application = application(options)?;
    let machine = open(&application, &options.machine)?;
    let mut prepared = prepare(&application, &machine)?;
    let files = BenchFiles { trace: options.trace.clone(), html: options.html.clone(), ..NO_FILES.clone() };
    check_files(&options.application, &prepared, &files)?;
    if options.check {
        let names = names(&machine, prepared.devices()).join(", ");
        return failure::print(&format!("{}: no mistakes; it can run on {names}\n", application.name()));
    }
    prepared.policy(options.policy.clone());
    if !options.shares.is_empty() {
        machine.check_used(options.shares.iter().map(|share| &*share.device))?;
        let of = |name: &String| {
            let share = options.shares.iter().rev().find(|share| &share.device == name);
            share.map_or(1.0, |share| share.value)
        };
        let shares: Vec<f64> = names(&machine, prepared.devices()).iter().map(of).collect();
        prepared.shares(shares);
    }
    let mut seconds = Vec::new();
    let mut outcome = prepared.run().map_err(failed)?;
    if options.runs == 1 {
        seconds.push(outcome.duration.as_secs_f64());
    }
    // The first of several runs allocates.
    while seconds.len() < options.runs as usize {
        outcome = prepared.run().map_err(failed)?;
        seconds.push(outcome.duration.as_secs_f64());
    }
    let mut unwritten = Unwritten::default();
    let mut written = BTreeMap::new();
    if let Err(error) = prepared.write() {
        unwritten.add(&Failure::work(error));
    } else {
        let files = prepared.files().map(|(array, path)| (array.to_owned(), path.display().to_string()));
        written.extend(files);
    }
    let [trace, html] = timeline::write(&files, &mut unwritten, || traced(&application, &mut prepared));
    let by_name = |device: &DeviceId| machine.platform.device_desc(*device).name.to_string();
    let Outcome { kernels, repeats, .. } = outcome;
    let result = json::Ran {
        application: application.name().to_owned(),
        parameters: application.parameters().map(|(name, value)| (name.to_owned(), value)).collect(),
        devices: prepared.devices().iter().map(by_name).collect(),
        runs: options.runs,
        seconds: median(&seconds),
        seconds_min: seconds.iter().copied().fold(f64::INFINITY, f64::min),
        seconds_max: seconds.iter().copied().fold(0.0, f64::max),
        kernels: kernels
            .into_iter()
            .map(|kernel| json::RanKernel {
                kernel: kernel.kernel,
                runs: kernel.runs,
                items: kernel.items.iter().map(|(device, items)| (by_name(device), *items)).collect(),
            })
            .collect(),
        repeats: repeats
            .into_iter()
            .map(|repeat| json::RanRepeat {
                count: repeat.count,
                stopped: repeat.is_stopped,
                shares: repeat
                    .shares
                    .map(|shares| prepared.devices().iter().map(by_name).zip(shares).collect()),
            })
            .collect(),
        files: written,
        trace,
        html,
    };
    if options.json {
        json::print(&result)?;
    } else {
        failure::print(&text(&result, machine.note.as_deref()))?;
    }
    unwritten.end()
}

/// Reads the application, with the values that the options set.
fn application(options: &RunOptions) -> Result<Application, Failure> {
    let mut application = Application::from_file(&options.application).map_err(Failure::usage)?;
    for set in &options.set {
        application.set_parameter(&set.name, &set.value).map_err(Failure::usage)?;
    }
    for input in &options.input {
        application.set_input(&input.name, &input.value).map_err(Failure::usage)?;
    }
    for output in &options.output {
        application.set_output(&output.name, &output.value).map_err(Failure::usage)?;
    }
    Ok(application)
}

/// Opens the named devices, or all that can run the application.
fn open(application: &Application, options: &MachineOptions) -> Result<Machine, Failure> {
    let mut options = options.clone();
    if options.devices.is_empty() {
        let wanted = options.workers.discover_options().offload(0);
        let platform = machine::discover(&wanted)?;
        let devices = application.devices(&platform).map_err(Failure::usage)?;
        options.devices =
            devices.iter().map(|device| platform.device_desc(*device).name.to_string()).collect();
    }
    Machine::of(&options)
}

#[allow(unsafe_code, reason = "the user trusts the kernels like the command itself")]
fn prepare(application: &Application, machine: &Machine) -> Result<Prepared, Failure> {
    // SAFETY: `dml run --help` says that the user vouches for the kernels.
    unsafe { application.prepare(&machine.platform, machine.devices.iter().copied()) }.map_err(failed)
}

/// Returns the names of devices.
fn names(machine: &Machine, devices: &[DeviceId]) -> Vec<String> {
    devices.iter().map(|device| machine.platform.device_desc(*device).name.to_string()).collect()
}

/// Mistakes in what a user wrote are usage.
fn failed(error: ApplicationError) -> Failure {
    match error {
        ApplicationError::Misfit(_) | ApplicationError::Device { .. } | ApplicationError::Build(_) => {
            Failure::usage(error)
        }
        _ => Failure::work(error),
    }
}

/// Checks that no output replaces the application or another output.
fn check_files(application: &Path, prepared: &Prepared, files: &BenchFiles) -> Result<(), Failure> {
    let named = [("--trace", &files.trace), ("--html", &files.html)];
    let mut outputs: Vec<(&str, &Path)> =
        named.iter().filter_map(|(option, path)| Some((*option, path.as_deref()?))).collect();
    outputs.extend(prepared.files());
    output::check(&[("the application", application)], &outputs)
}

/// Runs the application once more, and returns what the devices did.
fn traced(application: &Application, prepared: &mut Prepared) -> Result<Trace, Failure> {
    prepared.record();
    let recording = Trace::record(prepared.platform());
    let outcome = prepared.run().map_err(failed)?;
    let report = outcome.report.ok_or_else(|| Failure::Work("nothing ran".to_owned()))?;
    Ok(recording.finish(&report).map_err(Failure::work)?.labelled(application.name()))
}

fn text(result: &json::Ran, note: Option<&str>) -> String {
    let parameters: Vec<String> =
        result.parameters.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let mut lines = vec![format!("{}: {}", result.application, parameters.join(", "))];
    lines.extend(note.map(str::to_owned));
    for kernel in &result.kernels {
        let all: u64 = kernel.items.values().sum();
        let share = |(device, items): (&String, &u64)| {
            format!("{device} {:.1} %", 100.0 * *items as f64 / all.max(1) as f64)
        };
        let shares: Vec<String> = kernel.items.iter().map(share).collect();
        let runs = if kernel.runs == 1 { "1 run".to_owned() } else { format!("{} runs", kernel.runs) };
        let shares = if shares.is_empty() { String::new() } else { format!(": {}", shares.join(", ")) };
        lines.push(format!("{:<11} {runs}{shares}", kernel.kernel));
    }
    for repeat in result.repeats.iter().filter(|repeat| repeat.stopped) {
        lines.push(format!("repeated    {} times, until the condition held", repeat.count));
    }
    let range = match result.runs {
        1 => String::new(),
        runs => {
            let [least, most] = [result.seconds_min, result.seconds_max].map(table::seconds);
            format!(", median of {runs} ({least} to {most})")
        }
    };
    lines.push(format!("time        {}{range}", table::seconds(result.seconds)));
    lines.extend(result.files.iter().map(|(array, path)| format!("{array:<11} {path}")));
    lines.extend(result.trace.iter().map(|path| format!("trace       {path}")));
    lines.extend(result.html.iter().map(|path| format!("timeline    {path}")));
    lines.push(String::new());
    lines.join("\n")
}
