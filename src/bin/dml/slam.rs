//! `dml bench slam`: a camera that finds its way, on each device alone, and with the next frame prepared on
//! another device. The results of all are compared with the true way and with each other.

use crate::chain::median;
use crate::cli::{SlamOptions, TableSize};
use crate::failure::{self, Failure};
use crate::machine::{Machine, pinned_bytes};
use crate::output::{self, Unwritten};
use crate::progress::Progress;
use crate::{json, table, timeline};
use dml::timeline::Trace;
use dml::{DeviceId, Platform};
use dml_workloads::picture::Picture;
use dml_workloads::slam::{
    Accuracy, FIRST, Frames, Layered, Order, PAPER, Placement, Run, SMALL, Size, TINY, most_apart, shaded,
    surface_error, trajectory_svg,
};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Maximum distance of the cameras of two devices in one frame, in metres. Kernels add up floats in different
/// orders, and the volume remembers that.
const MOST_APART_M: f64 = 0.001;
/// Number of frames whose stages are measured.
const STAGED: usize = FIRST as usize + 16;
/// Number of frames of a trace.
const TRACED: usize = 12;

/// The output of `dml bench slam --json`.
#[derive(Debug, Serialize)]
struct Slam {
    width: u32,
    height: u32,
    edge: u32,
    frames: usize,
    pinned_bytes: Option<u64>,
    runs: u32,
    rows: Vec<Row>,
    /// The last row; `None` with one device.
    pipelined: Option<Pipelined>,
    picture: Option<String>,
    trajectory: Option<String>,
    trace: Option<String>,
    html: Option<String>,
}

/// A placement of the stages.
#[derive(Debug, Serialize)]
struct Row {
    preprocess: String,
    rest: String,
    frame_s: f64,
    frames_per_s: f64,
    latency_s: f64,
    ate_mean_m: Option<f64>,
    ate_max_m: Option<f64>,
    lost: usize,
    iterations: u32,
    surface_m: Option<f64>,
    /// The largest distance to the camera of the first row.
    apart_m: f64,
    /// Means of the stages alone: preprocess, track, model.
    stages_s: [f64; 3],
}

/// What is known of the best placement on several devices.
#[derive(Debug, Serialize)]
struct Pipelined {
    /// The time per frame that the stages alone allow.
    allowed_s: f64,
    /// That time over the measured one.
    of_allowed: f64,
    /// The row whose stages promise the least time.
    chosen: usize,
    /// The time of the best device alone over that of the chosen row.
    speedup: f64,
}

/// Measures and prints the table.
pub(crate) fn run(options: &SlamOptions) -> Result<(), Failure> {
    check(options)?;
    let machine = Machine::of(&options.machine)?;
    let frames = frames(options)?;
    if let Some(path) = &options.input
        && frames.len() <= FIRST as usize
    {
        let (path, count) = (path.display(), frames.len());
        return Err(Failure::Usage(format!(
            "{path} has {count} frames: slam tracks from the {}th",
            FIRST + 1
        )));
    }
    let mut measured = Measured::new(&machine, &frames)?;
    let mut result = measured.measure(options.runs)?;
    let mut unwritten = Unwritten::default();
    if let Some(path) = &options.frames_to {
        unwritten.name(path, frames.write(path).map_err(Failure::usage));
    }
    if let Some(path) = &options.way_to {
        let way = frames.way_text().expect("generated frames have a way");
        unwritten.name(path, output::write(path, "way", |file| file.write_all(way.as_bytes())));
    }
    if let Some(path) = &options.output {
        result.picture = unwritten.name(path, measured.picture(path));
    }
    if let Some(path) = &options.trajectory {
        let svg = trajectory_svg(&measured.rows[0].last, &frames);
        let written = output::write(path, "picture", |file| file.write_all(svg.as_bytes()));
        result.trajectory = unwritten.name(path, written);
    }
    let files = timeline::Files { trace: options.trace.as_deref(), html: options.html.as_deref() };
    [result.trace, result.html] = files.write(&mut unwritten, || measured.traced());
    if options.json {
        json::print(&result)?;
    } else {
        failure::print(&text(&result, machine.note.as_deref()))?;
    }
    unwritten.end()
}

/// Checks that no two files are the same.
fn check(options: &SlamOptions) -> Result<(), Failure> {
    let inputs: Vec<(&str, &Path)> = options.input.iter().map(|path| ("--input", &**path)).collect();
    let outputs = [
        ("--frames-to", &options.frames_to),
        ("--way-to", &options.way_to),
        ("--output", &options.output),
        ("--trajectory", &options.trajectory),
        ("--trace", &options.trace),
        ("--html", &options.html),
    ];
    let outputs: Vec<_> =
        outputs.iter().filter_map(|(option, path)| Some((*option, path.as_deref()?))).collect();
    output::check(&inputs, &outputs)
}

/// Returns a size, and its default number of frames.
pub(crate) fn size(size: TableSize) -> (Size, u32) {
    match size {
        TableSize::Tiny => (TINY, 20),
        TableSize::Small => (SMALL, 50),
        TableSize::Paper => (PAPER, 100),
    }
}

fn frames(options: &SlamOptions) -> Result<Frames, Failure> {
    let (size, count) = size(options.size);
    match &options.input {
        Some(path) => Frames::read(path, size.edge, options.frames.unwrap_or(count)),
        None => Frames::generate(size, options.frames.unwrap_or(count), options.seed),
    }
    .map_err(Failure::usage)
}

/// Returns the time per frame that stages allow, if the first one is on another device than the others.
fn allowed([preprocess, track, model]: [f64; 3]) -> f64 {
    preprocess.max(track + model)
}

/// A placement, with the times of its runs.
struct Placed {
    placement: Placement,
    order: Order,
    program: Layered,
    frame_s: Vec<f64>,
    stages_s: [f64; 3],
    surface_m: Option<f64>,
    normals: Vec<[f32; 3]>,
    last: Run,
}

struct Measured<'a> {
    platform: &'a Platform,
    frames: &'a Frames,
    rows: Vec<Placed>,
}

impl<'a> Measured<'a> {
    /// Builds the programs of all devices, and runs each once.
    fn new(machine: &'a Machine, frames: &'a Frames) -> Result<Self, Failure> {
        let (platform, mut rows) = (&machine.platform, Vec::new());
        for &device in &machine.devices {
            if Layered::has_kernels(platform, device) {
                rows.push(Placed::new(platform, frames, (Placement::on(device), Order::OneByOne))?);
            } else {
                let name = &platform.device_desc(device).name;
                eprintln!("dml: {name} is left out, as slam has no kernels for it");
            }
        }
        if rows.is_empty() {
            return Err(Failure::Usage("slam needs the host or a device of OpenCL or CUDA".to_owned()));
        }
        let mut measured = Self { platform, frames, rows };
        if let Some(placement) = measured.best_pair() {
            measured.rows.push(Placed::new(platform, frames, (placement, Order::Ahead))?);
        }
        Ok(measured)
    }

    /// Returns the two devices on which a frame takes the least time, by the stages of each alone, if there
    /// are two.
    fn best_pair(&self) -> Option<Placement> {
        let mut best: Option<(f64, Placement)> = None;
        for one in &self.rows {
            for other in &self.rows {
                let (preprocess, rest) = (one.placement.preprocess, other.placement.model);
                let longest = allowed([one.stages_s[0], other.stages_s[1], other.stages_s[2]]);
                if preprocess != rest && best.is_none_or(|(least, _)| longest < least) {
                    best = Some((longest, Placement { preprocess, ..Placement::on(rest) }));
                }
            }
        }
        best.map(|(_, placement)| placement)
    }

    /// Runs all placements in turns.
    fn measure(&mut self, runs: u32) -> Result<Slam, Failure> {
        let mut progress = Progress::new(u64::from(runs) * self.rows.len() as u64);
        for _ in 0..runs {
            for row in &mut self.rows {
                row.run(self.frames)?;
                progress.step("slam");
            }
        }
        progress.done();
        let rows: Vec<Row> = self.rows.iter().map(|row| self.row(row)).collect();
        self.check(&rows)?;
        let alone = self.rows.iter().zip(&rows).filter(|(placed, _)| placed.order == Order::OneByOne);
        let best = alone.map(|(_, row)| row.frame_s).fold(f64::INFINITY, f64::min);
        let ahead = self.rows.iter().zip(&rows).find(|(placed, _)| placed.order == Order::Ahead);
        let pipelined = ahead.map(|(_, row)| {
            let allowed_s = allowed(row.stages_s);
            let promised = self.rows.iter().enumerate().map(|(index, row)| (row.promised(), index));
            let chosen =
                promised.min_by(|one, other| one.0.total_cmp(&other.0)).map_or(0, |(_, index)| index);
            let speedup = best / rows[chosen].frame_s;
            Pipelined { allowed_s, of_allowed: allowed_s / row.frame_s, chosen, speedup }
        });
        let Size { width, height, edge, .. } = self.frames.size();
        Ok(Slam {
            width,
            height,
            edge,
            frames: self.frames.len(),
            pinned_bytes: pinned_bytes(self.platform),
            runs,
            rows,
            pipelined,
            picture: None,
            trajectory: None,
            trace: None,
            html: None,
        })
    }

    fn row(&self, placed: &Placed) -> Row {
        let name = |device: DeviceId| self.platform.device_desc(device).name.to_string();
        let accuracy = Accuracy::of(&placed.last, self.frames);
        let tracked = placed.last.seen.iter().filter(|seen| seen.is_tracked.is_some());
        let latencies: Vec<f64> = tracked.map(|seen| seen.latency.as_secs_f64()).collect();
        let frame_s = median(&placed.frame_s);
        Row {
            preprocess: name(placed.placement.preprocess),
            rest: name(placed.placement.model),
            frame_s,
            frames_per_s: 1.0 / frame_s,
            latency_s: median(&latencies),
            ate_mean_m: accuracy.map(|accuracy| accuracy.mean_m),
            ate_max_m: accuracy.map(|accuracy| accuracy.max_m),
            lost: placed.last.lost(),
            iterations: placed.last.iterations(),
            surface_m: placed.surface_m,
            apart_m: most_apart(&self.rows[0].last, &placed.last),
            stages_s: placed.stages_s,
        }
    }

    /// Compares the rows with the true way, if it is known, and with each other.
    fn check(&self, rows: &[Row]) -> Result<(), Failure> {
        let frames = self.frames;
        for row in rows {
            let on = &row.rest;
            let wrong = match (row.ate_mean_m, row.surface_m) {
                _ if row.lost == frames.len() - FIRST as usize => "no frame was tracked".to_owned(),
                (Some(_), _) if row.lost > 0 => format!("{} frames were not tracked", row.lost),
                (Some(mean), _) if mean > frames.most_error_m() => {
                    format!("the camera is off by {mean:.4} m")
                }
                (Some(_), Some(off)) if off > frames.most_surface_error_m() => {
                    format!("surfaces are off by {off:.4} m")
                }
                (Some(_), None) => "the volume has no surface".to_owned(),
                _ if row.apart_m > MOST_APART_M => {
                    format!("the camera is {:.4} m from that of another device", row.apart_m)
                }
                _ => continue,
            };
            return Err(Failure::Work(format!("wrong result on {on}: {wrong}")));
        }
        Ok(())
    }

    fn picture(&self, path: &Path) -> Result<(), Failure> {
        let Size { width, height, .. } = self.frames.size();
        let picture = Picture::new(width, height, shaded(&self.rows[0].normals)).map_err(Failure::work)?;
        picture.write(path).map_err(Failure::work)
    }

    /// Runs some frames on all devices, and returns what these did.
    fn traced(&mut self) -> Result<Trace, Failure> {
        let frames = self.frames.first(TRACED);
        let row = self.rows.last_mut().expect("there is a row");
        let recording = Trace::record(self.platform);
        row.program.run(&frames, row.order).map_err(Failure::work)?;
        Ok(recording.finish_submissions(&format!("slam, {} frames", frames.len())))
    }
}

impl Placed {
    fn new(
        platform: &Platform,
        frames: &Frames,
        (placement, order): (Placement, Order),
    ) -> Result<Self, Failure> {
        let mut program = Layered::new(platform, placement).map_err(Failure::work)?;
        let (last, finished) = program.run(frames, order).map_err(Failure::work)?;
        let surface = surface_error(&finished.volume().map_err(Failure::work)?, &frames.size());
        let normals = finished.normals().map_err(Failure::work)?;
        drop(finished);
        let times = program.stages(frames, STAGED).map_err(Failure::work)?;
        // Frames that are not tracked count as often as in a run.
        let (first, tracked) = times.split_at(times.len().min(FIRST as usize));
        let mean = |stage: usize| {
            let mean = |times: &[[Duration; 3]]| {
                let sum: Duration = times.iter().map(|times| times[stage]).sum();
                sum.as_secs_f64() / times.len().max(1) as f64
            };
            let part = first.len() as f64 / frames.len().max(1) as f64;
            part * mean(first) + (1.0 - part) * mean(tracked)
        };
        let stages_s = [mean(0), mean(1), mean(2)];
        // Another room has other surfaces.
        let surface_m = surface.filter(|_| frames.way().is_some()).map(|(off, _)| off);
        Ok(Self { placement, order, program, frame_s: Vec::new(), stages_s, surface_m, normals, last })
    }

    /// Returns the time per frame that its stages promise. They contain the copies between devices.
    fn promised(&self) -> f64 {
        match self.order {
            Order::OneByOne => self.stages_s.iter().sum(),
            Order::Ahead => allowed(self.stages_s),
        }
    }

    fn run(&mut self, frames: &Frames) -> Result<(), Failure> {
        let (run, _) = self.program.run(frames, self.order).map_err(Failure::work)?;
        self.frame_s.push(run.duration.as_secs_f64() / frames.len() as f64);
        self.last = run;
        Ok(())
    }
}

fn text(result: &Slam, note: Option<&str>) -> String {
    let Slam { width, height, edge, frames, runs, .. } = result;
    let pinned = table::pinned(result.pinned_bytes);
    let mut lines = vec![format!(
        "slam: {frames} frames of {width} x {height}, {edge} voxels per edge{pinned}; median of {runs} runs"
    )];
    lines.extend(note.map(str::to_owned));
    lines.push(String::new());
    let heading =
        ["on", "per frame", "frames/s", "latency", "preprocess", "track", "model", "ATE", "most", "lost"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let millimetres =
        |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{:.2} mm", value * 1e3));
    rows.extend(result.rows.iter().map(|row| {
        let on = match row.preprocess == row.rest {
            true => row.rest.clone(),
            false => format!("{}, then {}", row.preprocess, row.rest),
        };
        let mut cells = vec![on, table::seconds(row.frame_s), format!("{:.1}", row.frames_per_s)];
        cells.push(table::seconds(row.latency_s));
        cells.extend(row.stages_s.map(table::seconds));
        cells.extend([millimetres(row.ate_mean_m), millimetres(row.ate_max_m), row.lost.to_string()]);
        cells
    }));
    lines.extend(table::lines(&rows));
    lines.push(String::new());
    if let Some(Pipelined { allowed_s, of_allowed, chosen, speedup }) = &result.pipelined {
        let allowed = table::seconds(*allowed_s);
        lines.push(format!("pipelined   {of_allowed:.2} of what the stages allow ({allowed})"));
        let on = &rows[chosen + 1][0];
        lines.push(format!("chosen      {on}, by the stages: {speedup:.2} of the best device alone"));
    }
    let apart = result.rows.iter().map(|row| row.apart_m).fold(0.0, f64::max);
    lines.extend(result.picture.iter().map(|path| format!("picture     {path}")));
    lines.extend(result.trajectory.iter().map(|path| format!("trajectory  {path}")));
    lines.extend(result.trace.iter().map(|path| format!("trace       {path}")));
    lines.extend(result.html.iter().map(|path| format!("timeline    {path}")));
    let truth = match result.rows[0].ate_mean_m {
        Some(_) => "camera and surfaces are where they were; ".to_owned(),
        None => format!("{} frames were not tracked; ", result.rows[0].lost),
    };
    lines.push(format!("verified    {truth}devices agree within {:.3} mm", apart * 1e3));
    lines.push(String::new());
    lines.join("\n")
}
