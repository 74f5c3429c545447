//! `dml run`: an application that a TOML file describes.

use crate::chain::median;
use crate::cli::{ApplicationOptions, BenchFiles, NO_FILES, Named, RunOptions};
use crate::failure::{self, Failure};
use crate::machine::{self, Machine};
use crate::output::{self, Unwritten};
use crate::{json, knowledge, parts, table, timeline};
use dml::app::{Application, ApplicationError, ArrayPart, Basis, Changes, Outcome, Prepared, Repeated};
use dml::scheduler::Knowledge;
use dml::timeline::Trace;
use dml::{Access, DeviceId, Platform};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Runs an application, and prints what it did.
pub(crate) fn run(options: &RunOptions) -> Result<(), Failure> {
    let (machine, application, mut prepared) = prepared(&options.application, &options.output)?;
    if parts::is_check(&application, &mut prepared)? {
        return Ok(());
    }
    let files = BenchFiles { trace: options.trace.clone(), html: options.html.clone(), ..NO_FILES.clone() };
    check_files(&application, &prepared, &files)?;
    if options.check {
        return check(options, &application, &prepared);
    }
    parts::check_unproven(options, &application, &names(&prepared))?;
    let knowledge = if options.no_knowledge { Knowledge::new() } else { knowledge::of_this_machine() };
    prepared.knowledge(&knowledge);
    if let Some(policy) = &options.policy {
        prepared.policy(policy.clone());
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
    if !options.no_knowledge {
        knowledge::save(&knowledge);
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
        repeats: repeats.iter().map(|repeat| repeated(repeat, &names(&prepared))).collect(),
        files: written,
        trace,
        html,
    };
    if options.application.json {
        json::print(&result)?;
    } else {
        failure::print(&text(&result, machine.note.as_deref()))?;
    }
    unwritten.end()
}

/// Prints that there are no mistakes, and the parts.
fn check(options: &RunOptions, application: &Application, prepared: &Prepared) -> Result<(), Failure> {
    if options.parts {
        parts::check_all(application)?;
    }
    for contradiction in application.contradictions() {
        eprintln!("dml: note: {contradiction}");
    }
    let devices = names(prepared);
    let parts: Vec<_> = application.parts().into_iter().map(part).collect();
    if options.application.json {
        let application = application.name().to_owned();
        return json::print(&json::CheckedApplication { application, devices, parts });
    }
    let devices = devices.join(", ");
    let mut text = format!("{}: no mistakes; it can run on {devices}\n", application.name());
    for json::ArrayPart { kernel, array, access, part, is_declared, is_proven } in &parts {
        let basis = match (is_declared, is_proven) {
            (false, _) => "proven",
            (true, true) => "declared, and proven",
            (true, false) => "declared, not proven",
        };
        let _ = match part {
            Some(part) => {
                writeln!(text, "{basis}: kernel {kernel}: {{ array = \"{array}\", {access} = \"{part}\" }}")
            }
            None => writeln!(
                text,
                "{basis}: kernel {kernel}: {access} parts of {array} that a file cannot declare"
            ),
        };
    }
    failure::print(&text)
}

fn part(part: ArrayPart) -> json::ArrayPart {
    let access = match part.access {
        Access::ReadOnly => "reads",
        Access::WriteInvalidate => "writes",
        _ => "updates",
    };
    let (is_declared, is_proven) = (part.basis != Basis::Proven, part.basis != Basis::Declared);
    json::ArrayPart {
        kernel: part.kernel,
        array: part.array,
        access,
        part: part.part,
        is_declared,
        is_proven,
    }
}

fn repeated(repeat: &Repeated, devices: &[String]) -> json::RanRepeat {
    let shares = repeat.strips.as_ref().ok();
    json::RanRepeat {
        count: repeat.count,
        stopped: repeat.is_stopped,
        until: repeat.until.as_ref().map(|(_, value)| *value),
        shares: shares.map(|shares| devices.iter().cloned().zip(shares.iter().copied()).collect()),
        one_by_one: repeat.strips.as_ref().err().copied(),
    }
}

/// Reads an application, opens the named devices or all that can run it, and prepares it for them.
pub(crate) fn prepared(
    options: &ApplicationOptions,
    outputs: &[Named],
) -> Result<(Machine, Application, Prepared), Failure> {
    let changes = Changes::new();
    let changes = options.set.iter().fold(changes, |changes, set| changes.parameter(&set.name, &set.value));
    let changes =
        options.input.iter().fold(changes, |changes, input| changes.input(&input.name, &input.value));
    let changes = outputs.iter().fold(changes, |changes, output| changes.output(&output.name, &output.value));
    let application = Application::from_file_with(&options.file, &changes).map_err(Failure::usage)?;
    let mut wanted = options.machine.clone();
    if wanted.devices.is_empty() {
        let platform = machine::discover(&wanted.workers.discover_options().offload(0))?;
        let devices = application.devices(&platform).map_err(Failure::usage)?;
        wanted.devices =
            devices.iter().map(|device| platform.device_desc(*device).name.to_string()).collect();
    }
    let machine = Machine::of(&wanted)?;
    let mut prepared = prepare(&application, &machine.platform, &machine.devices)?;
    if !options.shares.is_empty() {
        machine.check_used(options.shares.iter().map(|share| &*share.device))?;
        let of = |name: String| {
            let share = options.shares.iter().rev().find(|share| share.device == name);
            share.map_or(1.0, |share| share.value)
        };
        let shares: Vec<f64> = names(&prepared).into_iter().map(of).collect();
        if !shares.iter().all(|share| share.is_finite() && *share >= 0.0)
            || shares.iter().all(|share| *share == 0.0)
        {
            return Err(Failure::Usage(
                "--shares needs numbers of at least 0, one of them above 0".to_owned(),
            ));
        }
        prepared.shares(shares);
    }
    Ok((machine, application, prepared))
}

#[allow(unsafe_code, reason = "the user trusts the kernels like the command itself")]
pub(crate) fn prepare(
    application: &Application,
    platform: &Platform,
    devices: &[DeviceId],
) -> Result<Prepared, Failure> {
    // SAFETY: `dml run --help` says that the user vouches for the kernels.
    unsafe { application.prepare(platform, devices.iter().copied()) }.map_err(failed)
}

/// Returns the names of the devices.
pub(crate) fn names(prepared: &Prepared) -> Vec<String> {
    let name = |device: &DeviceId| prepared.platform().device_desc(*device).name.to_string();
    prepared.devices().iter().map(name).collect()
}

/// Mistakes in what a user wrote are usage.
pub(crate) fn failed(error: ApplicationError) -> Failure {
    match error {
        ApplicationError::Misfit(_)
        | ApplicationError::Parts { .. }
        | ApplicationError::Device { .. }
        | ApplicationError::Build { .. } => Failure::usage(error),
        _ => Failure::work(error),
    }
}

/// Checks that no output replaces an input or another output, and that each has a folder.
fn check_files(application: &Application, prepared: &Prepared, files: &BenchFiles) -> Result<(), Failure> {
    let named = [("--trace", &files.trace), ("--html", &files.html)];
    let mut outputs: Vec<(&str, &Path)> =
        named.iter().filter_map(|(option, path)| Some((*option, path.as_deref()?))).collect();
    outputs.extend(prepared.files());
    let inputs: Vec<(&str, &Path)> = application.inputs().map(|path| ("an input", path)).collect();
    output::check(&inputs, &outputs)?;
    for (_, path) in outputs {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
            let why = if path.is_dir() { "it is a folder" } else { "its folder does not exist" };
            return Err(Failure::Usage(format!("cannot write {}: {why}", path.display())));
        }
    }
    Ok(())
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
    for repeat in &result.repeats {
        let until = match (repeat.until, repeat.stopped) {
            (None, _) => String::new(),
            (Some(value), true) => format!(", until the condition held ({value})"),
            (Some(value), false) => format!(", and the condition did not hold ({value})"),
        };
        let how = repeat.one_by_one.map_or_else(String::new, |why| format!("; step by step, because {why}"));
        lines.push(format!("repeated    {} times{until}{how}", repeat.count));
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
