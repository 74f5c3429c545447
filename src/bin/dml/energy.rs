//! The energy of each configuration: metered for each counted run, or for many runs if one is too short.

use crate::failure::Failure;
use crate::figures;
use crate::{json, table};
use dml::core::{DeviceId, Platform};
use dml::energy::{Energy, EnergyError, EnergyMeter, EnergySources};
use dml::scheduler::metrics;
use std::time::Duration;

/// Extra time beyond the counters' minimum after which a counter counts as stuck.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of runs before which no counter counts as stuck.
const MOST_RUNS: u32 = 20;

/// The energy of one run of a configuration, or why it is unknown.
pub(crate) type PerRun = Result<Measured, EnergyError>;

/// The energy of one run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    joules: f64,
    /// Names of the counters that it includes.
    counters: Vec<String>,
    /// Why counters are missing from it.
    without: Option<String>,
}

/// A meter of the runs on some devices.
#[derive(Debug)]
pub(crate) struct Meter {
    meter: Result<EnergyMeter, EnergyError>,
    /// Why counters are missing from its figures.
    without: Option<String>,
}

impl Meter {
    /// Creates a meter. If the processor has no counters, it meters only GPUs.
    pub(crate) fn new(platform: &Platform, devices: &[DeviceId], sources: &EnergySources) -> Self {
        let of = |sources: &EnergySources| EnergyMeter::new(platform, devices.iter().copied(), sources);
        let meter = of(sources);
        let started = meter.as_ref().map(|meter| meter.start().map(drop));
        if let Ok(Err(error @ EnergyError::NoPackages { .. })) = started
            && let Ok(gpus) = of(&sources.clone().without_processor())
        {
            return Self { meter: Ok(gpus), without: Some(error.to_string()) };
        }
        Self { meter, without: None }
    }

    /// Creates a meter for runs that are too short to be metered one by one. It reads no counters.
    pub(crate) fn of_a_short_run() -> Self {
        let (elapsed, least) = (Duration::ZERO, Duration::ZERO);
        Self { meter: Err(EnergyError::TooShort { counter: String::new(), elapsed, least }), without: None }
    }

    /// Meters one run. `run` must do nothing but the work itself.
    pub(crate) fn one<R>(
        &self,
        run: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<(R, Result<Energy, EnergyError>), Failure> {
        let metering = match &self.meter {
            Ok(meter) => meter.start(),
            Err(error) => Err(error.clone()),
        };
        let result = run()?;
        Ok((result, metering.and_then(|metering| metering.finish())))
    }

    /// Returns the energy of one run: the median of the metered runs. If these are too short, it repeats the
    /// work: `prepare` prepares the next run, and `run` returns its seconds.
    pub(crate) fn per_run(
        &self,
        metered: Vec<Result<Energy, EnergyError>>,
        prepare: impl FnMut() -> Result<(), Failure>,
        run: impl FnMut() -> Result<f64, Failure>,
    ) -> Result<PerRun, Failure> {
        let is_short = |metered: &Result<_, _>| match metered {
            Err(EnergyError::TooShort { .. }) => true,
            Err(EnergyError::Still { elapsed, .. }) => *elapsed < PATIENCE,
            _ => false,
        };
        let per_run = match &self.meter {
            Err(error) => Err(error.clone()),
            Ok(meter) if metered.iter().any(is_short) => repeated(meter, prepare, run)?,
            Ok(_) => metered.into_iter().collect::<Result<Vec<_>, _>>().map(|all| Measured::median(&all)),
        };
        Ok(per_run.map(|measured| Measured { without: self.without.clone(), ..measured }))
    }
}

impl Measured {
    fn median(metered: &[Energy]) -> Self {
        let joules = figures::median(metered.iter().map(|energy| energy.joules));
        Self { joules, counters: metered.first().map_or_else(Vec::new, counters), without: None }
    }
}

fn counters(energy: &Energy) -> Vec<String> {
    energy.parts.iter().map(|(name, _)| name.clone()).collect()
}

/// Meters as many runs in a row as the slowest counter needs. The energy of the time between runs is
/// deducted at the mean power.
fn repeated(
    meter: &EnergyMeter,
    mut prepare: impl FnMut() -> Result<(), Failure>,
    mut run: impl FnMut() -> Result<f64, Failure>,
) -> Result<PerRun, Failure> {
    let mut metering = match meter.start() {
        Ok(metering) => metering,
        Err(error) => return Ok(Err(error)),
    };
    // Each preparation is followed by a run, because the results are checked afterwards.
    prepare()?;
    let (mut runs, mut seconds) = (0_u32, 0.0);
    loop {
        seconds += run()?;
        runs += 1;
        if let Err(error) = metering.sample() {
            return Ok(Err(error));
        }
        let Err(error) = metering.check() else { break };
        if runs >= MOST_RUNS && metering.elapsed() > metering.least().saturating_add(PATIENCE) {
            return Ok(Err(error));
        }
        prepare()?;
    }
    Ok(metering.finish().map(|energy| Measured {
        joules: energy.joules * part(seconds, energy.elapsed.as_secs_f64()) / f64::from(runs),
        counters: counters(&energy),
        without: None,
    }))
}

/// Returns the fraction of a time that was spent in runs.
fn part(seconds: f64, elapsed_s: f64) -> f64 {
    if elapsed_s > 0.0 { (seconds / elapsed_s).min(1.0) } else { 1.0 }
}

/// Returns the figures of each device alone and of all together, relative to the fastest device alone.
pub(crate) fn figures(
    alone: &[(f64, PerRun)],
    (coexec_s, together): (f64, &PerRun),
) -> (Vec<json::Energy>, json::Energy) {
    let fastest = alone.iter().min_by(|(a, _), (b, _)| a.total_cmp(b));
    let fastest = fastest.and_then(|(seconds, energy)| Some((*seconds, energy.as_ref().ok()?.joules)));
    let figures = |seconds: f64, energy: &PerRun| match energy {
        Ok(Measured { joules, counters, without }) => {
            let edp_js = metrics::energy_delay_joule_seconds(*joules, seconds);
            let fastest_js = |(seconds, joules)| metrics::energy_delay_joule_seconds(joules, seconds);
            json::Energy {
                energy_j: Some(*joules),
                edp_js: Some(edp_js),
                energy_over_fastest: fastest.and_then(|(_, of)| metrics::normalised(*joules, of)),
                edp_over_fastest: fastest.and_then(|of| metrics::normalised(edp_js, fastest_js(of))),
                counters: counters.clone(),
                missing: None,
                without: without.clone(),
            }
        }
        Err(error) => json::Energy { missing: Some(error.to_string()), ..json::Energy::default() },
    };
    let of_alone = alone.iter().map(|(seconds, energy)| figures(*seconds, energy)).collect();
    (of_alone, figures(coexec_s, together))
}

/// Returns a line for each configuration, or one line if all are missing for the same reason.
pub(crate) fn lines(result: &json::Bench) -> Vec<String> {
    let alone = result.devices.iter().map(|device| (format!("{} alone", device.name), &device.alone_energy));
    let all: Vec<_> = std::iter::once(("together".to_owned(), &result.energy)).chain(alone).collect();
    if let Some(reason) = &result.energy.missing
        && all.iter().all(|(_, energy)| energy.missing.as_ref() == Some(reason))
    {
        return vec![format!("energy      not measured: {reason}")];
    }
    let without = all.iter().find_map(|(_, energy)| energy.without.as_ref());
    let without = without.map(|without| format!("energy      of GPUs only: {without}"));
    let lines = all.iter().map(|(what, energy)| format!("energy      {}", line(what, energy)));
    lines.chain(without).collect()
}

fn line(what: &str, energy: &json::Energy) -> String {
    let (Some(energy_j), Some(edp_js)) = (energy.energy_j, energy.edp_js) else {
        return format!("{what}: not measured: {}", energy.missing.as_deref().unwrap_or("no reason"));
    };
    let mut line = format!("{what} {}, EDP {} s", table::joules(energy_j), table::joules(edp_js));
    if let (Some(energy), Some(edp)) = (energy.energy_over_fastest, energy.edp_over_fastest) {
        line += &format!("; of the fastest device alone {energy:.3}, EDP {edp:.3}");
    }
    line
}

/// Returns the lines of a suite: each workload's energy with all devices together, or why it is missing.
pub(crate) fn suite_lines(all: &[(&str, &json::Energy)], means: &json::SuiteMeans) -> Vec<String> {
    let reason = all.first().and_then(|(_, energy)| energy.missing.as_ref());
    if let Some(reason) =
        reason.filter(|reason| all.iter().all(|(_, it)| it.missing.as_ref() == Some(*reason)))
    {
        return vec![format!("energy      not measured: {reason}")];
    }
    if all.is_empty() {
        return Vec::new();
    }
    let columns = ["workload", "energy", "EDP", "energy of fastest", "EDP of fastest"];
    let mut rows = vec![columns.map(str::to_owned).to_vec()];
    let cell = |figure: Option<f64>, text: fn(f64) -> String| figure.map_or_else(|| "-".to_owned(), text);
    rows.extend(all.iter().map(|(workload, energy)| {
        let joules = cell(energy.energy_j, table::joules);
        let edp = cell(energy.edp_js, |edp_js| format!("{} s", table::joules(edp_js)));
        let ratios = [energy.energy_over_fastest, energy.edp_over_fastest];
        let [of_energy, of_edp] = ratios.map(|figure| cell(figure, |figure| format!("{figure:.3}")));
        vec![(*workload).to_owned(), joules, edp, of_energy, of_edp]
    }));
    let means = [means.energy_over_fastest, means.edp_over_fastest];
    let means = means.map(|mean| cell(mean, |mean| format!("{mean:.3}")));
    rows.push(["geometric mean".to_owned(), String::new(), String::new()].into_iter().chain(means).collect());
    let mut lines = vec![String::new()];
    lines.extend(table::lines(&rows).into_iter().map(|line| format!("  {line}")));
    lines.push(String::new());
    let without = all.iter().find_map(|(_, energy)| energy.without.as_ref());
    lines.extend(without.map(|without| format!("energy      of GPUs only: {without}")));
    for (workload, energy) in all {
        let missing = energy.missing.iter();
        lines.extend(missing.map(|reason| format!("energy      {workload}: not measured: {reason}")));
    }
    lines
}

#[cfg(test)]
mod tests;
