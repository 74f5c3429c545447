//! `dml bench`: measures each device alone and all together, in turns.
//!
//! Every run starts with the inputs on the host only and ends with the outputs on the host, so it includes
//! all transfers. In each round, every device runs alone, and then all run together, so that they see the
//! same clock frequencies. A short run is preceded by an untimed one on the same devices. After a GPU's run,
//! it would find cold caches and sleeping cores. One round is discarded. The others give the median, minimum
//! and maximum time. The result of the last run of each configuration is checked.

mod text;

use crate::by_hand::{self, ByHand};
use crate::cli::{
    AllOptions, BenchCommand, BenchFiles, BenchOptions, BenchTable, MachineOptions, NO_FILES, PerDevice,
    SizeSpec,
};
use crate::energy::{self, Meter, PerRun};
use crate::failure::{self, Failure};
use crate::figures::{self, Figures};
use crate::json;
use crate::knowledge;
use crate::last::Last;
use crate::machine::{Machine, pinned_bytes};
use crate::offload;
use crate::output::Unwritten;
use crate::progress::Progress;
use crate::replay;
use crate::suite;
use crate::timeline;
use crate::{acquire, chain, never_loses, pipeline, slam, steps};
use dml::core::record::{Event, OPERATIONS};
use dml::core::{DeviceId, record::Operation};
use dml::energy::{Energy, EnergyError, EnergySources};
use dml::prelude::*;
use dml::scheduler::metrics::Overlap;
use dml::scheduler::{Knowledge, Report};
use dml::timeline::Trace;
use dml_workloads::prepare::{Input, PrepareError, Prepared, Workload};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Duration from which the previous run does not affect a run's time, in seconds.
const LONG_SECONDS: f64 = 0.05;

/// Runs `dml bench`.
pub(crate) fn run(command: &BenchCommand) -> Result<(), Failure> {
    match &command.table {
        Some(BenchTable::All(all)) => run_suite(all),
        Some(BenchTable::NeverLoses(options)) => never_loses::run(options),
        Some(BenchTable::Offload(options)) => offload::run(options),
        Some(BenchTable::Acquire(options)) => acquire::run(options),
        Some(BenchTable::Chain(options)) => chain::run(options),
        Some(BenchTable::Pipeline(options)) => pipeline::run(options),
        Some(BenchTable::Slam(options)) => slam::run(options),
        Some(table) => table.steps().map_or(Ok(()), |(program, options)| steps::run(program, options)),
        None => run_workloads(command),
    }
}

/// Runs workloads, and prints each result as soon as it is measured.
fn run_workloads(command: &BenchCommand) -> Result<(), Failure> {
    let BenchCommand { options, files, .. } = command;
    let mut workloads = command.workloads.clone();
    workloads.dedup();
    check(files, &workloads)?;
    let machine = machine(options)?;
    let mut unwritten = Unwritten::default();
    let results = measure_all(options, &machine, &workloads, files, |bench, mut measured| {
        // Printed before files are written, so that a failed write loses no result.
        if !options.json {
            failure::print(&text::result(&measured.result, machine.note.as_deref(), &machine.unavailable))?;
        }
        bench.write_files(&mut measured, &mut unwritten);
        if !options.json {
            failure::print(&text::written(&measured.result))?;
        }
        Ok(measured.result)
    })?;
    match &results[..] {
        _ if !options.json => {}
        [one] => json::print(one)?,
        many => json::print(&many)?,
    }
    unwritten.end()
}

/// Runs the suite, and prints it with its change since the last one.
fn run_suite(AllOptions { options, no_last }: &AllOptions) -> Result<(), Failure> {
    let machine = machine(options)?;
    let last = if *no_last { None } else { Last::of(options, &machine) };
    let mut unwritten = Unwritten::default();
    let results = measure_all(options, &machine, &Workload::ALL, &NO_FILES, |bench, mut measured| {
        bench.write_files(&mut measured, &mut unwritten);
        Ok(measured.result)
    })?;
    let mut suite = suite::of(results);
    let mut notes = Vec::new();
    last.iter().for_each(|last| last.compare(&mut suite, &mut notes));
    notes.iter().for_each(|note| eprintln!("dml: {note}"));
    if options.json {
        json::print(&suite)?;
    } else {
        failure::print(&suite::text(&suite, machine.note.as_deref(), &machine.unavailable))?;
    }
    unwritten.end()
}

/// Opens the devices that the options request.
fn machine(options: &BenchOptions) -> Result<Machine, Failure> {
    for PerDevice { device, value } in &options.powers {
        if !(value.is_finite() && *value > 0.0) {
            return Err(Failure::Usage(format!("power {value} of {device} is not a positive number")));
        }
    }
    let machine = Machine::of(&options.machine)?;
    machine.check_used(options.powers.iter().map(|power| &*power.device))?;
    Ok(machine)
}

/// Measures workloads one after the other, and passes each measurement to `finish`.
fn measure_all(
    options: &BenchOptions,
    machine: &Machine,
    workloads: &[Workload],
    files: &BenchFiles,
    mut finish: impl FnMut(&Bench<'_>, Measured) -> Result<json::Bench, Failure>,
) -> Result<Vec<json::Bench>, Failure> {
    let Machine { platform, devices, link_prices, .. } = machine;
    let knowledge = knowledge::of_this_machine();
    let measure = |&workload: &Workload| {
        let able = able(&options.machine, platform, devices, workload);
        let prepared = prepare(options, files, platform, &able, workload)?;
        let holding = holding(&*prepared, platform, &able)?;
        let found = (platform, &holding[..], link_prices, &knowledge);
        let bench = Bench::new(options, files, found, &*prepared);
        let measured = bench.measure()?;
        knowledge::save(&knowledge);
        finish(&bench, measured)
    };
    workloads.iter().map(measure).collect()
}

fn check(files: &BenchFiles, workloads: &[Workload]) -> Result<(), Failure> {
    let usage = |text: String| Err(Failure::Usage(text));
    if let (Some(_), Some(workload)) =
        (&files.input, workloads.iter().find(|workload| !workload.takes_picture()))
    {
        return usage(format!("{workload} does not take a picture: --input is for gaussian"));
    }
    if let Some(output) = &files.output {
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
    timeline::check(files, workloads)
}

/// The environment of a workload: the platform, its participating devices, the origin of the link prices, and
/// the knowledge.
pub(crate) type Found<'a> = (&'a Platform, &'a [DeviceId], &'a json::LinkPrices, &'a Knowledge);

/// Returns the devices for which a workload has a kernel, and notes the others on standard error. Devices
/// that the options name are never left out: preparing the workload reports a missing kernel.
pub(crate) fn able(
    options: &MachineOptions,
    platform: &Platform,
    devices: &[DeviceId],
    workload: Workload,
) -> Vec<DeviceId> {
    let is_able = |device: &DeviceId| {
        let is_able = is_able(options, platform, *device, workload);
        if !is_able {
            let name = &platform.device_desc(*device).name;
            eprintln!("dml: {name} is left out: {workload} has no kernel for it");
        }
        is_able
    };
    devices.iter().copied().filter(is_able).collect()
}

/// Returns whether a device takes part in a workload.
pub(crate) fn is_able(
    options: &MachineOptions,
    platform: &Platform,
    device: DeviceId,
    workload: Workload,
) -> bool {
    !options.devices.is_empty() || workload.has_kernel_for(platform, device)
}

pub(crate) fn prepare(
    options: &BenchOptions,
    files: &BenchFiles,
    platform: &Platform,
    devices: &[DeviceId],
    workload: Workload,
) -> Result<Box<dyn Prepared>, Failure> {
    let input = match (&files.input, options.size) {
        (Some(path), _) => Input::Picture(path),
        (None, SizeSpec::Tiny) => Input::Tiny,
        (None, SizeSpec::Small) => Input::Small,
        (None, SizeSpec::Paper) => Input::Paper,
        (None, SizeSpec::Number(size)) => Input::Size(size),
    };
    workload.prepare(platform, devices, &input).map_err(|error| match error {
        PrepareError::Build { .. } | PrepareError::Threads { .. } => Failure::work(error),
        error => Failure::usage(error),
    })
}

/// Returns the devices whose memory can hold the buffers of a workload. Notes the others on standard error.
///
/// # Errors
/// The buffers cannot be reset, or no device is left.
pub(crate) fn holding(
    prepared: &dyn Prepared,
    platform: &Platform,
    devices: &[DeviceId],
) -> Result<Vec<DeviceId>, Failure> {
    prepared.reset().map_err(Failure::work)?;
    let (mut holding, mut notes) = (Vec::new(), Vec::new());
    for &device in devices {
        match prepared.try_holding(device) {
            Err(error) if error.is_out_of_memory() => {
                notes.push((&*platform.device_desc(device).name, error));
            }
            // Any other error will be reported by a run.
            _ => holding.push(device),
        }
    }
    if holding.is_empty() && !notes.is_empty() {
        let why: Vec<_> = notes.iter().map(|(name, error)| format!("{name}: {error}")).collect();
        let workload = prepared.workload();
        return Err(Failure::Work(format!(
            "no device can hold the buffers of {workload}: {}",
            why.join("; ")
        )));
    }
    notes.iter().for_each(|(name, error)| eprintln!("dml: {name} is left out: {error}"));
    Ok(holding)
}

/// Number of uncounted runs in which the calibrated policy tries the most promising sets of devices.
pub(crate) const LEARNING_RUNS: u32 = 4;

/// One workload, ready to run on the devices.
pub(crate) struct Bench<'a> {
    options: &'a BenchOptions,
    files: &'a BenchFiles,
    platform: &'a Platform,
    devices: &'a [DeviceId],
    link_prices: &'a json::LinkPrices,
    knowledge: &'a Knowledge,
    /// The sources of energy counters.
    sources: EnergySources,
    workload: Workload,
    prepared: &'a dyn Prepared,
}

/// The measurements of each device alone.
pub(crate) struct Alone {
    /// Median time of each device, in seconds, in the order of the devices.
    pub(crate) seconds: Vec<f64>,
    /// Median time of the hand-written program, in seconds, by device name.
    by_hand_s: BTreeMap<String, f64>,
    /// Energy of a run on each device, in the order of the devices.
    energy: Vec<PerRun>,
}

/// One run on some devices.
pub(crate) struct Run {
    pub(crate) seconds: f64,
    pub(crate) energy: Result<Energy, EnergyError>,
    pub(crate) report: Report,
    /// Recorded events; empty unless the options request them.
    events: Vec<Event>,
    pub(crate) operations: BTreeMap<&'static str, u64>,
    pub(crate) transfers: Vec<json::BenchTransfer>,
}

/// One configuration of devices, measured in turn with the others.
struct Turn {
    /// Name of the configuration.
    what: String,
    coexecutor: Coexecutor,
    meter: Meter,
    by_hand: Option<ByHand>,
    /// The counted runs.
    runs: Vec<Run>,
}

/// Whether a round is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    No,
    Yes,
    /// It is counted, and its results are checked.
    Last,
}

/// The counted runs of a configuration.
struct Timed {
    runs: Vec<Run>,
    /// Energy of one run.
    energy: PerRun,
}

/// The counted runs of all devices together, and the overlap in one more run with recorded events.
struct Together {
    timed: Timed,
    overlap: Overlap,
}

/// The result of a benchmark, and the counted runs of all devices together.
pub(crate) struct Measured {
    pub(crate) result: json::Bench,
    runs: Vec<Run>,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(
        options: &'a BenchOptions,
        files: &'a BenchFiles,
        found: Found<'a>,
        prepared: &'a dyn Prepared,
    ) -> Self {
        let ((platform, devices, link_prices, knowledge), workload) = (found, prepared.workload());
        let sources = options
            .powercap
            .iter()
            .fold(EnergySources::default(), |sources, folder| sources.powercap(folder));
        Self { options, files, platform, devices, link_prices, knowledge, sources, workload, prepared }
    }

    pub(crate) fn workload(&self) -> Workload {
        self.workload
    }

    /// Measures each device alone and all together, in turns.
    pub(crate) fn measure(&self) -> Result<Measured, Failure> {
        let mut progress = self.progress();
        let mut alone = self.turns()?;
        // The first round only yields the powers for the policy.
        let first_s = self.round(&mut alone, Counts::No, &mut progress)?;
        let mut powers = self.powers_of(&first_s);
        let together = self.coexecutor(self.devices, &powers, self.options.policy.clone());
        let together = if self.files.decisions.is_some() { together.record_decisions() } else { together };
        let mut together = [self.turn(together, None)];
        for _ in 0..=self.learning() {
            self.round(&mut together, Counts::No, &mut progress)?;
        }
        for left in (0..self.options.runs).rev() {
            let counts = if left == 0 { Counts::Last } else { Counts::Yes };
            self.round(&mut alone, counts, &mut progress)?;
            self.round(&mut together, counts, &mut progress)?;
        }
        let [together] = together;
        let overlap = self.overlap(&together.coexecutor)?;
        progress.done();
        let together = Together { timed: self.timed(together)?.0, overlap };
        let alone = self.alone(alone)?;
        powers = self.powers(&alone);
        let result = self.result(alone, &powers, &together);
        Ok(Measured { result, runs: together.timed.runs })
    }

    /// Creates a progress bar with a step for each turn. A hand-written program is part of its device's step.
    fn progress(&self) -> Progress {
        let configurations = self.devices.len() as u64 + 1;
        Progress::new(configurations * (u64::from(self.options.runs) + 1) + u64::from(self.learning()))
    }

    /// Returns the number of uncounted runs together in which the policy learns.
    fn learning(&self) -> u32 {
        let learns = self.options.policy == PolicySpec::Calibrated && self.devices.len() > 1;
        u32::from(learns) * LEARNING_RUNS
    }

    /// Creates the configurations of each device alone, with hand-written programs if requested.
    fn turns(&self) -> Result<Vec<Turn>, Failure> {
        let turn = |&device: &DeviceId| {
            let by_hand = self.by_hand(device)?;
            // The calibrated policy may split one device's work into packages to overlap transfers.
            let is_calibrated = self.options.policy == PolicySpec::Calibrated;
            let policy = if is_calibrated { PolicySpec::Calibrated } else { PolicySpec::Static };
            Ok(self.turn(self.coexecutor(&[device], &[1.0], policy), Some((device, by_hand))))
        };
        self.devices.iter().map(turn).collect()
    }

    /// Creates the configuration of a device alone, or of all together.
    fn turn(&self, coexecutor: Coexecutor, alone: Option<(DeviceId, Option<ByHand>)>) -> Turn {
        let (what, meter, by_hand) = match alone {
            Some((device, by_hand)) => (self.name(device).to_owned(), self.meter(&[device]), by_hand),
            None => ("all devices together".to_owned(), self.meter(self.devices), None),
        };
        Turn { what, coexecutor, meter, by_hand, runs: Vec::new() }
    }

    /// Runs each configuration once, and returns their times in seconds.
    fn round(
        &self,
        turns: &mut [Turn],
        counts: Counts,
        progress: &mut Progress,
    ) -> Result<Vec<f64>, Failure> {
        let (short, mut seconds) = (Meter::of_a_short_run(), Vec::with_capacity(turns.len()));
        for turn in turns {
            progress.step(&format!("{}: {}", self.workload, turn.what));
            let is_short = turn.runs.last().is_none_or(|run| run.seconds < LONG_SECONDS);
            // Reading counters can take as long as a short run.
            let meter = if is_short { &short } else { &turn.meter };
            if is_short && counts != Counts::No {
                self.run_once(&turn.coexecutor, meter)?;
            }
            let run = self.run_once(&turn.coexecutor, meter)?;
            seconds.push(run.seconds);
            if counts == Counts::Last {
                self.verify(&turn.what)?;
            }
            if counts != Counts::No {
                turn.runs.push(run);
            }
            // Runs right after DML, so that both see the machine in the same condition.
            turn.by_hand.as_mut().map_or(Ok(()), |by_hand| by_hand.run(counts != Counts::No))?;
        }
        Ok(seconds)
    }

    /// Returns the counted runs of a configuration, with the energy of one run, and the hand-written program.
    fn timed(&self, turn: Turn) -> Result<(Timed, Option<ByHand>), Failure> {
        let Turn { coexecutor, meter, runs, by_hand, .. } = turn;
        let metered = runs.iter().map(|run| run.energy.clone()).collect();
        let prepare = || self.prepared.reset().map_err(Failure::work);
        let energy = meter.per_run(metered, prepare, || self.work_of_all(&coexecutor))?;
        Ok((Timed { runs, energy }, by_hand))
    }

    fn alone(&self, turns: Vec<Turn>) -> Result<Alone, Failure> {
        let mut alone = Alone { seconds: Vec::new(), by_hand_s: BTreeMap::new(), energy: Vec::new() };
        for (turn, &device) in turns.into_iter().zip(self.devices) {
            let (timed, by_hand) = self.timed(turn)?;
            if let Some(by_hand) = by_hand {
                alone.by_hand_s.insert(self.name(device).to_owned(), by_hand.summary(self.prepared)?);
            }
            alone.seconds.push(figures::median(timed.runs.iter().map(|run| run.seconds)));
            alone.energy.push(timed.energy);
        }
        Ok(alone)
    }

    /// Measures and checks each device alone.
    pub(crate) fn time_alone(&self, progress: &mut Progress) -> Result<Alone, Failure> {
        let mut turns = self.turns()?;
        self.round(&mut turns, Counts::No, progress)?;
        for left in (0..self.options.runs).rev() {
            self.round(&mut turns, if left == 0 { Counts::Last } else { Counts::Yes }, progress)?;
        }
        self.alone(turns)
    }

    /// Runs once more with recorded events, and returns how its transfers overlapped with compute.
    fn overlap(&self, coexecutor: &Coexecutor) -> Result<Overlap, Failure> {
        self.prepared.reset().map_err(Failure::work)?;
        let recording = self.platform.record();
        let report = coexecutor.run(self.prepared.kernel(), self.prepared.items()).map_err(Failure::work)?;
        Ok(report.overlap(&recording.finish()))
    }

    pub(crate) fn coexecutor(&self, devices: &[DeviceId], powers: &[f64], policy: PolicySpec) -> Coexecutor {
        let coexecutor = Coexecutor::new(self.platform)
            .devices(devices.iter().copied())
            .policy(policy.clone())
            .knowledge(self.knowledge);
        // The calibrated policy learns powers itself.
        match policy == PolicySpec::Calibrated && self.options.powers.is_empty() {
            true => coexecutor,
            false => coexecutor.powers(powers.iter().copied()),
        }
    }

    /// Runs once more for the meter, and notes devices that failed. Returns the seconds.
    fn work_of_all(&self, coexecutor: &Coexecutor) -> Result<f64, Failure> {
        let (seconds, report) = self.work(coexecutor)?;
        for failure in &report.failures {
            let (name, why) = (self.name(failure.device), &failure.message);
            eprintln!(
                "dml: {name} failed in a metered run, whose energy is that of the other devices: {why}"
            );
        }
        Ok(seconds)
    }

    pub(crate) fn meter(&self, devices: &[DeviceId]) -> Meter {
        Meter::new(self.platform, devices, &self.sources)
    }

    /// Runs the workload, from the inputs on the host only to the outputs on the host.
    pub(crate) fn run_once(&self, coexecutor: &Coexecutor, meter: &Meter) -> Result<Run, Failure> {
        self.prepared.reset().map_err(Failure::work)?;
        self.platform.counters().reset();
        let recording = timeline::is_wanted(self.files).then(|| self.platform.record());
        let ((seconds, report), energy) = meter.one(|| self.work(coexecutor))?;
        let events = recording.map_or_else(Vec::new, |recording| recording.finish());
        let (operations, transfers) = (self.operations(), self.transfers());
        Ok(Run { seconds, energy, report, events, operations, transfers })
    }

    /// Runs the timed part of a run, which ends when the outputs are on the host. Returns the seconds.
    fn work(&self, coexecutor: &Coexecutor) -> Result<(f64, Report), Failure> {
        let begun = Instant::now();
        let report = coexecutor.run(self.prepared.kernel(), self.prepared.items()).map_err(Failure::work)?;
        self.prepared.collect().map_err(Failure::work)?;
        Ok((begun.elapsed().as_secs_f64(), report))
    }

    pub(crate) fn verify(&self, what: &str) -> Result<(), Failure> {
        let wrong = |error| Failure::Work(format!("the result of {what} is wrong: {error}"));
        self.prepared.verify().map_err(wrong)
    }

    /// Returns the power of each device: the user's, otherwise the measured one.
    pub(crate) fn powers(&self, alone: &Alone) -> Vec<f64> {
        self.powers_of(&alone.seconds)
    }

    fn powers_of(&self, alone_s: &[f64]) -> Vec<f64> {
        let given = |name: &str| {
            self.options.powers.iter().rev().find(|power| *power.device == *name).map(|power| power.value)
        };
        let given: Vec<_> = self.devices.iter().map(|&device| given(self.name(device))).collect();
        figures::powers(alone_s, &given)
    }

    fn operations(&self) -> BTreeMap<&'static str, u64> {
        let counters = self.platform.counters();
        OPERATIONS
            .iter()
            .map(|&operation: &Operation| (operation.name(), counters.operation(operation)))
            .collect()
    }

    /// Returns the transfers of each directed pair of arenas, over all of its links.
    fn transfers(&self) -> Vec<json::BenchTransfer> {
        let name = |arena| self.platform.arena(arena).desc().name.to_string();
        let transfers = self.platform.counters().transfers();
        figures::by_pair(transfers.into_iter().map(|transfer| {
            let link = self.platform.links()[usize::from(transfer.link.0)];
            let (bytes, copies) = (transfer.bytes, transfer.copies);
            let seconds = transfer.duration.as_secs_f64();
            json::BenchTransfer { from: name(link.from), to: name(link.to), bytes, copies, seconds }
        }))
    }

    /// Writes the picture, and the requested files about the median run of all devices together. Adds the
    /// names of the written files to the result.
    fn write_files(&self, measured: &mut Measured, unwritten: &mut Unwritten) {
        let Self { files, workload, prepared, .. } = *self;
        let Measured { result, runs } = measured;
        let alone_s: Vec<_> = result.devices.iter().map(|device| device.alone_s).collect();
        let times: Vec<_> = runs.iter().map(Run::times).collect();
        let Run { seconds, report, events, .. } = &runs[Figures::of(&alone_s, &times).median_run];
        if workload.makes_picture() && prepared.items() > 0 {
            let path = files.output.clone().unwrap_or_else(|| timeline::picture(workload));
            result.picture = unwritten.name(&path, prepared.write_picture(&path).map_err(Failure::work));
        }
        if let (Some(path), Some(decisions)) = (&files.decisions, &report.decisions) {
            result.decisions = unwritten.name(path, replay::write(path, decisions));
        }
        [result.trace, result.html] = timeline::write(files, unwritten, || {
            let trace = Trace::of(self.platform, report, events).map_err(Failure::work)?;
            Ok(trace
                .labelled(workload.to_string())
                .alone(alone_s.into_iter().map(Duration::from_secs_f64))
                .total(Duration::from_secs_f64(*seconds)))
        });
    }

    /// Returns the result in the schema of docs/json.md.
    fn result(
        &self,
        alone: Alone,
        powers: &[f64],
        Together { timed: together, overlap }: &Together,
    ) -> json::Bench {
        let times: Vec<_> = together.runs.iter().map(Run::times).collect();
        let figures = Figures::of(&alone.seconds, &times);
        let median = &together.runs[figures.median_run];
        let of_alone: Vec<_> = alone.seconds.iter().copied().zip(alone.energy.iter().cloned()).collect();
        let (of_alone, energy) = energy::figures(&of_alone, (figures.coexec_s, &together.energy));
        let row = |(index, energy)| self.device_row((median, index), (&alone, energy), powers);
        let devices = of_alone.into_iter().enumerate().map(row);
        json::Bench {
            workload: self.workload.to_string(),
            size: self.prepared.size().into_iter().collect(),
            policy: self.options.policy.to_string(),
            memory: self.options.machine.memory.name(),
            pinned_bytes: pinned_bytes(self.platform),
            runs: self.options.runs,
            verified: true,
            devices: devices.collect(),
            coexec_s: figures.coexec_s,
            coexec_min_s: figures.coexec_min_s,
            coexec_max_s: figures.coexec_max_s,
            speedup: figures.speedup,
            s_max: figures.s_max,
            efficiency: figures.efficiency,
            balance: figures.balance,
            by_hand_s: alone.by_hand_s,
            transfers: median.transfers.clone(),
            under_compute: json::UnderCompute {
                transfer_s: overlap.transfer.as_secs_f64(),
                under_compute_s: overlap.under_compute.as_secs_f64(),
                part: overlap.part(),
            },
            link_prices: self.link_prices.clone(),
            operations: median.operations.clone(),
            failures: self.failures(together),
            energy_j: energy.energy_j,
            energy,
            picture: None,
            trace: None,
            html: None,
            decisions: None,
        }
    }

    fn device_row(
        &self,
        (run, index): (&Run, usize),
        (alone, alone_energy): (&Alone, json::Energy),
        powers: &[f64],
    ) -> json::BenchDevice {
        let report = &run.report.devices[index];
        let desc = self.platform.device_desc(report.device);
        let home = self.platform.home(report.device);
        let arena = home.map(|arena| self.platform.arena(arena).desc().name.to_string());
        json::BenchDevice {
            name: desc.name.to_string(),
            arena: arena.unwrap_or_default(),
            units: desc.compute_units,
            alone_s: alone.seconds[index],
            power: powers[index],
            busy_s: report.busy.as_secs_f64(),
            end_s: report.end.as_secs_f64(),
            packages: report.packages,
            items: report.items,
            alone_energy,
        }
    }

    fn failures(&self, timed: &Timed) -> Vec<String> {
        let all = timed.runs.iter().flat_map(|run| &run.report.failures);
        all.map(|failure| format!("{}: {}", self.name(failure.device), failure.message)).collect()
    }

    /// Returns the hand-written program for a device, if it is requested and exists.
    fn by_hand(&self, device: DeviceId) -> Result<Option<ByHand>, Failure> {
        if !self.options.by_hand {
            return Ok(None);
        }
        let memory = by_hand::memory(self.platform, device);
        ByHand::of(self.platform, device, memory, self.prepared)
    }

    fn name(&self, device: DeviceId) -> &str {
        &self.platform.device_desc(device).name
    }
}

impl Run {
    fn times(&self) -> figures::Times {
        figures::Times { seconds: self.seconds, balance: self.report.balance() }
    }
}

#[cfg(test)]
pub(crate) mod tests;
