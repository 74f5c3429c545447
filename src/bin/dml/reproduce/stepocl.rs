//! `dml reproduce stepocl`: applications that a file describes, beside OpenCL written by hand: their lengths,
//! the speed on one device, and the share of the sum of all devices.

use super::give;
use crate::chain::median;
use crate::cli::{MachineOptions, Memory, ReproduceOptions, TableSize};
use crate::failure::Failure;
use crate::machine::{self, Machine};
use crate::progress::Progress;
use crate::{json, run, table};
use dml::DeviceId;
use dml::app::{Application, Changes, Prepared};
use dml_workloads::by_hand::native;
use std::fs;
use tempfile::TempDir;

/// Default number of counted rounds.
const RUNS: u32 = 5;

const SOURCE: &str = "Automatic OpenCL code generation for multi-device heterogeneous architectures, tables I and III, \
                      figures 8 to 10";

/// An application: its name, and the files of its folder.
type Files = (&'static str, [(&'static str, &'static str); 3]);

/// The paper's figures of an application. Lines by hand include kernels. `single` is the speed on one device
/// by that of the program by hand. `shares` are those of the sum of devices, on its two machines.
struct Published {
    by_hand_lines: u64,
    description_lines: u64,
    single: f64,
    shares: [f64; 2],
}

macro_rules! files {
    ($name:literal) => {
        (
            $name,
            [
                (
                    concat!($name, ".toml"),
                    include_str!(concat!("../../../../examples/apps/", $name, "/", $name, ".toml")),
                ),
                (
                    concat!($name, ".cl"),
                    include_str!(concat!("../../../../examples/apps/", $name, "/", $name, ".cl")),
                ),
                (
                    concat!($name, ".cu"),
                    include_str!(concat!("../../../../examples/apps/", $name, "/", $name, ".cu")),
                ),
            ],
        )
    };
}

const APPLICATIONS: [(Files, Published); 3] = [
    (
        files!("stencil2d"),
        Published { by_hand_lines: 490, description_lines: 75, single: 0.99, shares: [0.93, 0.91] },
    ),
    (
        files!("matmul"),
        Published { by_hand_lines: 1212, description_lines: 56, single: 1.0, shares: [0.986, 0.88] },
    ),
    (
        files!("nbody"),
        Published { by_hand_lines: 1041, description_lines: 83, single: 0.98, shares: [0.94, 0.83] },
    ),
];

/// Measures and prints the table.
pub(super) fn run(options: &ReproduceOptions) -> Result<(), Failure> {
    if options.policy.is_some() {
        return Err(Failure::Usage("stepocl divides by ratios: omit --policy".to_owned()));
    }
    let size = options.size.unwrap_or(TableSize::Small);
    let runs = options.runs.unwrap_or(RUNS);
    let folder = tempfile::tempdir().map_err(Failure::work)?;
    let mut opened: Option<Machine> = None;
    let mut rows = Vec::new();
    let mut progress = Progress::new(u64::from(runs + 1) * APPLICATIONS.len() as u64);
    for ((name, files), published) in APPLICATIONS {
        let application = application(&folder, name, &files, size)?;
        let machine = match opened.take() {
            Some(machine) => machine,
            None => open(&application, options)?,
        };
        rows.push(row(&application, &machine, (&files, &published), (runs, &mut progress))?);
        opened = Some(machine);
    }
    progress.done();
    let name = |device: &DeviceId, machine: &Machine| machine.platform.device_desc(*device).name.to_string();
    let machine = opened.expect("there are applications");
    let devices = machine.devices.iter().map(|device| name(device, &machine)).collect();
    let size = options.size_name(TableSize::Small);
    let result = json::Stepocl { table: "stepocl", size, runs, devices, rows };
    let note = machine.note.as_deref();
    give(options, &result, || text(&result, note), |_| markdown(&result, note), None)
}

/// Writes the files of an application, and reads it.
fn application(
    folder: &TempDir,
    name: &str,
    files: &[(&str, &str)],
    size: TableSize,
) -> Result<Application, Failure> {
    for (file, text) in files {
        fs::write(folder.path().join(file), text).map_err(Failure::work)?;
    }
    let (parameter, value) = match (name, size) {
        ("stencil2d", TableSize::Tiny) => ("n", 67),
        ("stencil2d", TableSize::Small) => ("n", 2048),
        ("stencil2d", TableSize::Paper) => ("n", 4096),
        ("matmul", TableSize::Tiny) => ("n", 67),
        ("matmul", TableSize::Small) => ("n", 768),
        ("matmul", TableSize::Paper) => ("n", 1024),
        (_, TableSize::Tiny) => ("bodies", 301),
        (_, TableSize::Small) => ("bodies", 8192),
        (_, TableSize::Paper) => ("bodies", 32_768),
    };
    let changes = Changes::new().parameter(parameter, value.to_string());
    Application::from_file_with(folder.path().join(files[0].0), &changes).map_err(Failure::work)
}

/// Opens the named devices, or all OpenCL devices that can run the applications.
fn open(application: &Application, options: &ReproduceOptions) -> Result<Machine, Failure> {
    let mut wanted = MachineOptions {
        devices: options.devices.clone(),
        limit: options.limit.clone(),
        workers: options.workers.clone(),
        memory: options.memory.unwrap_or(Memory::Auto),
        pinned: options.pinned,
    };
    if wanted.devices.is_empty() {
        let platform = machine::discover(&wanted.workers.discover_options().offload(0))?;
        let devices = application.devices(&platform).map_err(Failure::usage)?;
        let names = devices.iter().map(|device| platform.device_desc(*device).name.to_string());
        wanted.devices = names.collect();
    }
    Machine::of(&wanted)
}

/// Returns the number of lines that are neither empty nor comments.
fn lines(text: &str) -> u64 {
    let counts = |line: &&str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//") && !line.starts_with('#')
    };
    text.lines().filter(counts).count() as u64
}

fn row(
    application: &Application,
    machine: &Machine,
    (files, published): (&[(&'static str, &'static str); 3], &Published),
    (runs, progress): (u32, &mut Progress),
) -> Result<json::StepoclRow, Failure> {
    let name = application.name().to_owned();
    let source = files[1].1;
    let mut alone: Vec<Prepared> = Vec::new();
    for device in &machine.devices {
        alone.push(run::prepare(application, &machine.platform, &[*device])?);
    }
    let mut together = match machine.devices.len() {
        1 => None,
        _ => Some(run::prepare(application, &machine.platform, &machine.devices)?),
    };
    if let Some(together) = &mut together {
        together.profile().map_err(run::failed)?;
    }
    let is_native = native::device(&machine.platform, machine.devices[0]).is_ok();
    let (mut native_s, mut together_s) = (Vec::new(), Vec::new());
    let mut alone_s = vec![Vec::new(); alone.len()];
    for round in 0..=runs {
        let mut results = Vec::new();
        for (prepared, seconds) in alone.iter_mut().zip(&mut alone_s) {
            seconds.push(prepared.run().map_err(run::failed)?.duration.as_secs_f64());
            results.push(output(application, prepared)?);
        }
        if let Some(prepared) = &mut together {
            together_s.push(prepared.run().map_err(run::failed)?.duration.as_secs_f64());
            results.push(output(application, prepared)?);
        }
        if is_native {
            let (seconds, result) = by_hand(application, &mut alone[0], source)?;
            native_s.push(seconds);
            results.push(result);
        }
        // Devices of one kind run the same code, and round alike.
        let wrong = results.windows(2).find_map(|pair| difference(&pair[0], &pair[1]));
        if let Some(wrong) = wrong {
            return Err(Failure::Work(format!("{name}: results of two devices differ by {wrong:.1e}")));
        }
        if round == 0 {
            // It allocated.
            alone_s.iter_mut().for_each(Vec::clear);
            (native_s, together_s) = (Vec::new(), Vec::new());
        }
        progress.step(&name);
    }
    let alone_s: Vec<f64> = alone_s.iter().map(|seconds| median(seconds)).collect();
    let rates: f64 = alone_s.iter().map(|seconds| 1.0 / seconds).sum();
    let by_hand = native::SOURCES.iter().find(|(of, _)| *of == name).map_or("", |(_, source)| source);
    let native_s = is_native.then(|| median(&native_s));
    let together_s = together.is_some().then(|| median(&together_s));
    Ok(json::StepoclRow {
        description_lines: lines(files[0].1),
        kernel_lines: lines(source),
        by_hand_lines: lines(by_hand),
        published_description_lines: published.description_lines,
        published_by_hand_lines: published.by_hand_lines,
        native_s,
        single: native_s.map(|native_s| native_s / alone_s[0]),
        published_single: published.single,
        share_of_sum: together_s.map(|together_s| 1.0 / together_s / rates),
        published_shares_of_sum: published.shares,
        alone_s,
        together_s,
        application: name,
    })
}

/// Returns the array that the application writes.
fn output(application: &Application, prepared: &Prepared) -> Result<Vec<f32>, Failure> {
    let array = prepared.files().next().map(|(array, _)| array.to_owned()).unwrap_or_default();
    values(application, prepared, &array)
}

fn values(application: &Application, prepared: &Prepared, array: &str) -> Result<Vec<f32>, Failure> {
    let buffer = prepared.array::<f32>(array);
    let buffer =
        buffer.ok_or_else(|| Failure::Work(format!("{} has no floats {array}", application.name())))?;
    Ok(buffer.read().map_err(Failure::work)?.to_vec())
}

/// Runs the program by hand on the same contents.
fn by_hand(
    application: &Application,
    prepared: &mut Prepared,
    source: &str,
) -> Result<(f64, Vec<f32>), Failure> {
    let device = native::device(prepared.platform(), prepared.devices()[0]).map_err(Failure::work)?;
    let parameter = |name: &str| {
        let found = application.parameters().find(|(known, _)| *known == name);
        found.map_or(0.0, |(_, value)| value)
    };
    prepared.reset().map_err(run::failed)?;
    let values = |array: &str| values(application, prepared, array);
    let (n, steps) = (parameter("n") as usize, parameter("steps") as u64);
    // The first of two runs allocates.
    let timed = match application.name() {
        "stencil2d" => native::stencil2d(&device, source, n, steps, &values("from")?, 2),
        "matmul" => native::matmul(&device, source, n, [&values("a")?, &values("b")?], 2),
        _ => {
            let scalars = [parameter("softening") as f32, parameter("dt") as f32];
            let bodies = [&values("positions")?[..], &values("velocities")?[..]];
            native::nbody(&device, source, steps, scalars, bodies, 2)
        }
    };
    let (duration, result) = timed.map_err(Failure::work)?.pop().expect("it ran twice");
    Ok((duration.as_secs_f64(), result))
}

/// Returns the largest difference of two results, if it is no rounding.
fn difference(one: &[f32], other: &[f32]) -> Option<f32> {
    let most = one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    let scale = one.iter().map(|value| value.abs()).fold(1.0, f32::max);
    (one.len() != other.len() || most > 1e-3 * scale || most.is_nan()).then_some(most)
}

fn cells(result: &json::Stepocl) -> Vec<Vec<String>> {
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(
        [
            "description",
            "kernels",
            "by hand",
            "paper: description",
            "by hand",
            "single device",
            "paper",
            "share of the sum",
            "paper",
        ]
        .map(str::to_owned),
    );
    for row in &result.rows {
        let [hannibal, mistral] = row.published_shares_of_sum;
        rows.push(vec![
            row.application.clone(),
            row.description_lines.to_string(),
            row.kernel_lines.to_string(),
            row.by_hand_lines.to_string(),
            row.published_description_lines.to_string(),
            row.published_by_hand_lines.to_string(),
            ratio(row.single),
            ratio(Some(row.published_single)),
            ratio(row.share_of_sum),
            format!("{hannibal}, {mistral}"),
        ]);
    }
    rows
}

fn times(result: &json::Stepocl) -> Vec<Vec<String>> {
    let mut rows = vec![vec![String::new(), "by hand".to_owned()]];
    rows[0].extend(result.devices.iter().cloned());
    rows[0].push("together".to_owned());
    let shown = |seconds: Option<f64>| seconds.map_or("-".to_owned(), table::seconds);
    for row in &result.rows {
        let mut cells = vec![row.application.clone(), shown(row.native_s)];
        cells.extend(row.alone_s.iter().map(|seconds| table::seconds(*seconds)));
        cells.push(shown(row.together_s));
        rows.push(cells);
    }
    rows
}

const READING: [&str; 4] = [
    "Lines are neither empty nor comments. `kernels` has those in OpenCL C, which `by hand` does not contain; the",
    "paper's programs by hand contain theirs. `single device` is the time of the program by hand over that of the",
    "application, on the first device. `share of the sum` is the speed of all devices over the sum of their speeds",
    "alone. Times include transfers from and to main memory.",
];

fn heading(result: &json::Stepocl) -> String {
    let json::Stepocl { size, runs, devices, .. } = result;
    format!("{}; {size} size; median of {runs} rounds", devices.join(", "))
}

fn text(result: &json::Stepocl, note: Option<&str>) -> String {
    let mut lines = vec![format!("stepocl: {}", heading(result))];
    lines.extend(note.map(str::to_owned));
    lines.extend(READING.map(str::to_owned));
    for cells in [cells(result), times(result)] {
        lines.push(String::new());
        lines.extend(table::lines(&cells).into_iter().map(|line| format!("  {line}")));
    }
    lines.extend([String::new(), format!("paper       {SOURCE}"), String::new()]);
    lines.join("\n")
}

fn markdown(result: &json::Stepocl, note: Option<&str>) -> String {
    let mut lines = vec![format!("Measured on {}.", heading(result))];
    lines.extend(note.map(|note| format!("Note: {note}.")));
    lines.push(String::new());
    lines.extend(READING.map(str::to_owned));
    for cells in [cells(result), times(result)] {
        lines.push(String::new());
        lines.extend(table::markdown(&cells));
    }
    lines.extend([String::new(), format!("Source: {SOURCE}."), String::new()]);
    lines.join("\n")
}
