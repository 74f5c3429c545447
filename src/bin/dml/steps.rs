//! `dml bench jacobi` and other programs of repeated steps: each device alone, then all together, in turns.
//! Each result is checked, and those of different devices are compared bit by bit where kernels round alike.

use crate::chain::median;
use crate::cli::{BenchFiles, SizeSpec, StepsOptions};
use crate::failure::{self, Failure};
use crate::machine::{Machine, pinned_bytes};
use crate::output::Unwritten;
use crate::progress::Progress;
use crate::{json, table, timeline};
use dml::scheduler::Iterated;
use dml::timeline::Trace;
use dml::{DeviceId, Platform};
use dml_workloads::prepare::PrepareError;
use dml_workloads::steps::{Program, Size, Steps};
use std::ops::ControlFlow;

/// Steps before the measured ones, which allocate. They are even, so that the grids are in their places.
const WARM_UP: u64 = 2;

/// Measures and prints the table.
pub(crate) fn run(steps: Steps, options: &StepsOptions) -> Result<(), Failure> {
    if options.output.is_some() && steps != Steps::GrayScott {
        return Err(Failure::Usage(format!("{steps} does not make a picture: omit --output")));
    }
    let files = BenchFiles {
        input: None,
        output: options.output.clone(),
        trace: options.trace.clone(),
        html: options.html.clone(),
        decisions: None,
    };
    timeline::check(&files, &[])?;
    let machine = Machine::of(&options.machine)?;
    let mut measured = Measured::new(&machine, steps, options)?;
    let mut result = measured.measure(options.runs)?;
    let mut unwritten = Unwritten::default();
    if let Some(path) = &options.output
        && let Some(picture) = measured.program.picture(measured.made).map_err(Failure::work)?
    {
        let written = picture.write(path).map_err(Failure::work);
        result.picture = unwritten.name(path, written);
    }
    [result.trace, result.html] = timeline::write(&files, &mut unwritten, || measured.traced());
    if options.json {
        json::print(&result)?;
    } else {
        failure::print(&text(&result, machine.note.as_deref()))?;
    }
    unwritten.end()
}

/// A program, the devices that compute it, and the times of its runs.
pub(crate) struct Measured<'a> {
    platform: &'a Platform,
    pub(crate) devices: Vec<DeviceId>,
    pub(crate) program: Program,
    shares: Option<Vec<f64>>,
    correct: bool,
    by_hand: bool,
    steps: u64,
    /// The steps of the last run, and the ratios of its strips.
    made: u64,
    found: Vec<f64>,
    digest: Option<u64>,
}

impl<'a> Measured<'a> {
    pub(crate) fn new(machine: &'a Machine, steps: Steps, options: &StepsOptions) -> Result<Self, Failure> {
        machine.check_used(options.shares.iter().map(|share| &*share.device))?;
        let size = size(steps, options);
        let (platform, devices) = (&machine.platform, machine.devices.clone());
        let program = steps.prepare(platform, &devices, size).map_err(|error| match error {
            PrepareError::Build { .. } | PrepareError::Threads { .. } => Failure::work(error),
            error => Failure::usage(error),
        })?;
        let share = |device: &DeviceId| {
            let name = &platform.device_desc(*device).name;
            options.shares.iter().find(|share| share.device == **name).map_or(1.0, |share| share.value)
        };
        let shares = (!options.shares.is_empty()).then(|| devices.iter().map(share).collect());
        let (correct, by_hand) = (options.correct, options.by_hand);
        Ok(Self {
            platform,
            devices,
            program,
            shares,
            correct,
            by_hand,
            steps: size.steps,
            made: 0,
            found: Vec::new(),
            digest: None,
        })
    }

    fn measure(&mut self, runs: u32) -> Result<json::StepsBench, Failure> {
        let alone: Vec<Vec<DeviceId>> = self.devices.iter().map(|device| vec![*device]).collect();
        let mut sets = alone.clone();
        if self.devices.len() > 1 {
            sets.push(self.devices.clone());
        }
        let mut progress = Progress::new(u64::from(runs + 1) * sets.len() as u64);
        let (mut seconds, mut by_hand) = (vec![Vec::new(); sets.len()], vec![Vec::new(); sets.len()]);
        let mut last = None;
        for round in 0..=runs {
            for (number, set) in sets.iter().enumerate() {
                let shares = self.shares.clone().filter(|_| set.len() > 1);
                let (step_s, iterated, bytes) = self.timed(set, shares.as_deref())?;
                let by_hand_s = self.timed_by_hand(&iterated)?;
                if round > 0 {
                    seconds[number].push(step_s);
                    by_hand[number].extend(by_hand_s);
                }
                last = (set.len() > 1).then_some((iterated, bytes));
                progress.step(self.program.steps().name());
            }
        }
        progress.done();
        let name = |device: DeviceId| self.platform.device_desc(device).name.to_string();
        let medians: Vec<f64> = seconds.iter().map(|seconds| median(seconds)).collect();
        let by_hand = |set: usize| (!by_hand[set].is_empty()).then(|| median(&by_hand[set]));
        let of_alone = self.devices.iter().enumerate().map(|(number, device)| json::StepsAlone {
            device: name(*device),
            step_s: medians[number],
            by_hand_s: by_hand(number),
        });
        let best = medians[..self.devices.len()].iter().copied().fold(f64::INFINITY, f64::min);
        let together = last.map(|(iterated, bytes_per_step)| {
            let step_s = medians[self.devices.len()];
            let rates: f64 = medians[..self.devices.len()].iter().map(|seconds| 1.0 / seconds).sum();
            let strip = |strip: &dml::scheduler::Strip| json::StepsStrip {
                kernel: strip.kernel.clone(),
                device: name(strip.device),
                first_item: strip.items.start,
                items: strip.items.end - strip.items.start,
            };
            json::StepsTogether {
                step_s,
                speedup: best / step_s,
                ideal: best * rates,
                by_hand_s: by_hand(self.devices.len()),
                corrections: iterated.corrections,
                bytes_per_step,
                strips: iterated.strips.iter().map(strip).collect(),
            }
        });
        let Size { columns, rows, planes, .. } = self.program.size();
        Ok(json::StepsBench {
            program: self.program.steps().name(),
            columns,
            rows,
            planes,
            steps: self.steps,
            pinned_bytes: pinned_bytes(self.platform),
            runs,
            alone: of_alone.collect(),
            together,
            picture: None,
            trace: None,
            html: None,
        })
    }

    /// Makes the steps on some devices, and checks the result. Returns the seconds of a step, and the bytes
    /// that were copied per step in the last half of the steps.
    pub(crate) fn timed(
        &mut self,
        devices: &[DeviceId],
        shares: Option<&[f64]>,
    ) -> Result<(f64, Iterated, f64), Failure> {
        self.program.reset().map_err(Failure::work)?;
        let iterate = || {
            let iterate = self.program.iterate(self.platform).devices(devices.iter().copied());
            match shares {
                Some(shares) if self.correct => iterate.first_shares(shares.iter().copied()),
                Some(shares) => iterate.shares(shares.iter().copied()),
                None => iterate,
            }
        };
        iterate().run(WARM_UP).map_err(Failure::work)?;
        // Strips are chosen in the first half.
        let half = self.steps.div_ceil(2);
        let iterate = iterate().every(half, |stepped| {
            if stepped.steps == half {
                self.platform.counters().reset();
            }
            Ok(ControlFlow::Continue(()))
        });
        let iterated = iterate.run(self.steps).map_err(Failure::work)?;
        let bytes: u64 = self.platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum();
        let bytes = bytes as f64 / (self.steps - half).max(1) as f64;
        let step_s = iterated.duration.as_secs_f64() / self.steps as f64;
        self.made = WARM_UP + self.steps;
        self.found.clone_from(&iterated.shares);
        self.program.verify(self.made).map_err(|wrong| Failure::Work(format!("wrong result: {wrong}")))?;
        if self.program.steps().is_exact() {
            let digest = self.program.digest(self.made).map_err(Failure::work)?;
            if *self.digest.get_or_insert(digest) != digest {
                let names = devices.iter().map(|device| &*self.platform.device_desc(*device).name);
                let names = names.collect::<Vec<_>>().join(", ");
                return Err(Failure::Work(format!(
                    "the result on {names} differs from that of other devices"
                )));
            }
        }
        Ok((step_s, iterated, bytes))
    }

    /// Makes some more steps with the strips of the last run, and returns what the devices did.
    fn traced(&self) -> Result<Trace, Failure> {
        /// The number of steps.
        const TRACED: u64 = 8;

        let recording = Trace::record(self.platform);
        let used = self.devices.iter().take(self.found.len()).copied();
        let iterate = self.program.iterate(self.platform).devices(used).shares(self.found.iter().copied());
        let iterated = iterate.record().run(TRACED).map_err(Failure::work)?;
        let report = iterated.report.ok_or_else(|| Failure::Work("no steps were recorded".to_owned()))?;
        let label = format!("{}, {TRACED} steps", self.program.steps());
        Ok(recording.finish(&report).map_err(Failure::work)?.labelled(label))
    }

    /// Makes the steps by hand with the strips of a run, if there is such a program. Returns the seconds of a
    /// step.
    fn timed_by_hand(&self, iterated: &Iterated) -> Result<Option<f64>, Failure> {
        if !self.by_hand {
            return Ok(None);
        }
        #[cfg(any(feature = "cuda", feature = "opencl"))]
        {
            let strips = iterated.strips.iter().filter(|strip| !strip.items.is_empty());
            let strips: Vec<_> =
                strips.map(|strip| (strip.device, strip.items.end - strip.items.start)).collect();
            let mut size = self.program.size();
            size.steps = self.made;
            let made = dml_workloads::by_hand::steps::run(self.platform, self.program.steps(), size, &strips);
            let Some((duration, digest)) = made.map_err(Failure::work)? else { return Ok(None) };
            if self.digest.is_some_and(|expected| expected != digest) {
                return Err(Failure::Work("the result by hand differs".to_owned()));
            }
            Ok(Some(duration.as_secs_f64() / self.made as f64))
        }
        #[cfg(not(any(feature = "cuda", feature = "opencl")))]
        {
            let _ = iterated;
            Ok(None)
        }
    }
}

/// Returns the size that the options ask for.
fn size(steps: Steps, options: &StepsOptions) -> Size {
    let mut size = match options.size {
        SizeSpec::Tiny => steps.tiny(),
        SizeSpec::Small => steps.small(),
        SizeSpec::Paper => steps.paper(),
        SizeSpec::Number(edge) => steps.sized(edge),
    };
    size.steps = options.steps.unwrap_or(size.steps);
    size
}

/// Returns the lengths of a grid's axes.
pub(crate) fn shape(rows: u64, columns: u64, planes: u64) -> String {
    match (planes, rows) {
        (1, 1) => format!("{columns} bodies"),
        (1, _) => format!("{rows} rows of {columns}"),
        _ => format!("{planes} planes of {rows} rows of {columns}"),
    }
}

fn text(result: &json::StepsBench, note: Option<&str>) -> String {
    let json::StepsBench { program, columns, rows, planes, steps, runs, .. } = result;
    let (shape, pinned) = (shape(*rows, *columns, *planes), table::pinned(result.pinned_bytes));
    let mut lines = vec![format!("{program}: {shape}, {steps} steps{pinned}; median of {runs} runs")];
    lines.extend(note.map(str::to_owned));
    lines.push(String::new());
    let mut rows = vec![["on", "per step", "speedup", "at most"].map(str::to_owned).to_vec()];
    let together = result.together.iter().map(|together| together.by_hand_s);
    if result.alone.iter().map(|alone| alone.by_hand_s).chain(together).any(|by_hand| by_hand.is_some()) {
        rows[0].extend(["by hand", "of by hand"].map(str::to_owned));
    }
    let best = result.alone.iter().map(|alone| alone.step_s).fold(f64::INFINITY, f64::min);
    let line = |name: &str, step_s: f64, ideal: String, by_hand_s: Option<f64>| {
        let mut cells = vec![name.to_owned(), table::seconds(step_s), format!("{:.2}", best / step_s), ideal];
        cells.extend(by_hand_s.map(table::seconds));
        cells.extend(by_hand_s.map(|by_hand_s| format!("{:.2}", by_hand_s / step_s)));
        cells
    };
    let alone = result.alone.iter();
    rows.extend(alone.map(|alone| line(&alone.device, alone.step_s, String::new(), alone.by_hand_s)));
    if let Some(together) = &result.together {
        rows.push(line("together", together.step_s, format!("{:.2}", together.ideal), together.by_hand_s));
    }
    lines.extend(table::lines(&rows));
    lines.push(String::new());
    if let Some(together) = &result.together {
        let json::StepsTogether { strips, corrections, bytes_per_step, .. } = together;
        let strip = |strip: &json::StepsStrip| match strip.items {
            0 => format!("{} is left out", strip.device),
            items => format!("{} {}..{}", strip.device, strip.first_item, strip.first_item + items),
        };
        let first = strips.first().map_or("", |strip| &strip.kernel);
        let strips: Vec<_> = strips.iter().filter(|other| other.kernel == first).map(strip).collect();
        lines.push(format!("strips      {}; {corrections} corrections", strips.join(", ")));
        lines.push(format!("moved       {bytes_per_step:.0} bytes per step"));
    }
    lines.extend(result.picture.iter().map(|path| format!("picture     {path}")));
    lines.extend(result.trace.iter().map(|path| format!("trace       {path}")));
    lines.extend(result.html.iter().map(|path| format!("timeline    {path}")));
    let is_exact = result.program.parse().is_ok_and(Steps::is_exact);
    let same = if is_exact { ", and that all devices compute the same" } else { "" };
    lines.push(format!("verified    every element of the last step{same}"));
    lines.push(String::new());
    lines.join("\n")
}
