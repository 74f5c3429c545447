//! The Director: checks a run, sets up its units, and gathers their results.
//!
//! ```text
//!   check ──▶ round: every remaining unit works until it gets no more packages ──▶ gather
//!               ▲                                         │
//!               └── results lost with a device: ──────────┘
//!                   reopened for the remaining units
//! ```
//! A lost device can lose results that were complete but not collected. The director detects that after the
//! units have ended, so the remaining units work another round. Each further round follows one of three
//! events: the loss of a device, the failure of a unit that spoiled its partial of a reduction, or the
//! call-up of units that were left out. So the number of rounds is bounded.

use crate::base::cancel::Cancel;
use crate::base::package::{Package, UnitId};
use crate::kernel::Kernel;
use crate::model::Ran;
use crate::plan::setup::Setup;
use crate::plan::{RunPlan, chosen, decides};
use crate::policy::{Blueprint, Log, PolicySpec, RecordedDecisions};
use crate::report::{CalledUp, DeviceReport, LeftOut, PackageRecord, Reason, Report, RunError, UnitFailure};
use crate::run::commander::Commander;
use crate::run::hooks::Hooks;
use crate::run::round::{Round, Rounds, Threadless};
use crate::run::unit::{DEPTH, PUBLISHED_DEPTH, Unit, UnitRun};
use dml_core::internal::TraceSpan;
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{DeviceId, DeviceSet, Platform, PlatformId, span};
use std::panic::Location;
use std::time::{Duration, Instant};

/// A run that is checked and set up but has not begun.
pub(crate) struct Prepared {
    /// The kernel, with this run's partials of its reductions.
    kernel: Kernel,
    items: u64,
    plan: RunPlan,
    commander: Arc<Commander>,
    /// The policy's blueprint and the log of its decisions, if decisions are recorded.
    decided: Option<(Blueprint, Log)>,
}

impl Prepared {
    /// Checks a run of items `0..items` of `kernel` over the co-executor's devices, and sets it up.
    ///
    /// The checks concern the calling thread: a buffer that it holds is an error. `cancel` is the run's
    /// cancellation, if it can be cancelled.
    pub(crate) fn new(
        setup: &Setup,
        kernel: &Kernel,
        items: u64,
        cancel: Option<Arc<Cancel>>,
        asked_at: &'static Location<'static>,
    ) -> Result<Self, RunError> {
        let devices = setup.candidates(kernel)?;
        kernel.check_platform(&setup.platform)?;
        kernel.check_launchers(&setup.platform)?;
        kernel.check_items(items)?;
        kernel.check_writes(items)?;
        let plan = RunPlan::of(setup, kernel, items, devices)?;
        let kernel = kernel.for_run(plan.devices.len(), items, asked_at)?;
        let (splitter, decided) = plan.splitter(setup, &kernel, items)?;
        let commander = Arc::new(Commander::new(splitter, cancel));
        Ok(Self { kernel, items, plan, commander, decided })
    }

    /// Returns the devices of the run, including those that are left out.
    pub(crate) fn devices(&self) -> &[DeviceId] {
        &self.plan.devices
    }

    pub(crate) fn commander(&self) -> &Arc<Commander> {
        &self.commander
    }

    /// Runs the kernel on this thread and on others.
    pub(crate) fn direct(&self, setup: &Setup, hooks: &dyn Hooks) -> Result<Report, RunError> {
        let span = span!(
            INFO,
            "run",
            kernel = self.kernel.name(),
            items = self.items,
            devices = self.plan.devices.len(),
            policy = %setup.policy,
        );
        span.within(|| self.direct_within(setup, hooks, &span))
    }

    fn direct_within(&self, setup: &Setup, hooks: &dyn Hooks, span: &TraceSpan) -> Result<Report, RunError> {
        let Self { kernel, items, plan, commander, decided } = self;
        hooks.director_start();
        let opening = RunStart {
            platform: setup.platform.id(),
            kernel: kernel.name().to_owned(),
            policy: setup.policy.clone(),
            begun: setup.platform.elapsed(),
            waited: (0..plan.devices.len()).map(|index| commander.is_left_out(UnitId(index))).collect(),
        };
        let chosen = chosen(&plan.devices, |unit| opening.waited[unit.0]);
        let begun = Instant::now();
        let depth = if setup.policy == PolicySpec::Calibrated { DEPTH } else { PUBLISHED_DEPTH };
        let unit = |(index, &device): (usize, &DeviceId)| Unit {
            id: UnitId(index),
            device,
            platform: &setup.platform,
            kernel,
            commander,
            hooks,
            span,
            collect_on: setup.collect_on,
            begun,
            depth,
        };
        let units: Vec<Unit<'_>> = plan.devices.iter().enumerate().map(unit).collect();
        let runs: Vec<Mutex<UnitRun>> = units.iter().map(|_| Mutex::default()).collect();
        let threadless = Mutex::default();
        // A policy of the application's may call units up at any time.
        let has_reserve = matches!(setup.policy, PolicySpec::Custom(_)) && opening.waited.contains(&true);
        let explores = has_reserve || plan.explores(*items, kernel.grain());
        let rounds =
            Rounds { units: &units, runs: &runs, commander, threadless: &threadless, explores, begun };
        let given_up = run_rounds(&rounds, &setup.platform);
        hooks.director_end();
        let runs: Vec<UnitRun> = runs.into_iter().map(Mutex::into_inner).collect();
        let has_added: Vec<bool> = runs.iter().map(|run| !run.packages.is_empty()).collect();
        let is_waiting = |index| commander.is_left_out(UnitId(index));
        let threadless = threadless.into_inner();
        let mut report = gather(plan, opening, runs, &threadless, is_waiting);
        report.decisions =
            decided.as_ref().map(|(blueprint, log)| RecordedDecisions::new(blueprint.clone(), log));
        let name = || kernel.name().to_owned();
        if kernel.is_undivided() {
            let computed = report.devices.iter().filter(|device| device.packages > 0);
            let computed = computed.map(|device| (device.device, false));
            let failed = report.failures.iter().map(|failure| (failure.device, true));
            failed.chain(computed).for_each(|(device, has_failed)| {
                setup.knowledge.note_failure(kernel.name(), plan.name_of(device), has_failed);
            });
        }
        let missing = commander.missing() + given_up;
        if let Some(cause) = commander.policy_failure() {
            let (kernel, policy, failures) = (name(), setup.policy.to_string(), report.failures);
            let cause = cause.to_owned();
            return Err(RunError::PolicyFailed { kernel, policy, cause, missing, failures });
        }
        match missing {
            0 => {
                kernel.combine(&has_added, &|request| commander.wait_for(request)).map_err(|error| {
                    match error {
                        RunError::Cancelled { kernel, missing, .. } => {
                            RunError::Cancelled { kernel, missing, failures: report.failures.clone() }
                        }
                        error => error,
                    }
                })?;
                // A run in which some device had no thread says nothing about the speed of the set.
                if decides(setup, kernel) && threadless.is_empty() && report.failures.is_empty() {
                    let run = Ran {
                        kernel: kernel.name(),
                        items: *items,
                        duration: report.duration,
                        packages: &report.packages,
                        called_up: &report.called_up,
                        chosen: &chosen,
                        is_alone: plan.is_alone(),
                        without_exploring: plan.without_exploring,
                    };
                    setup.knowledge.learn(&plan.members, &run);
                }
                Ok(report)
            }
            missing if commander.is_cancelled() => {
                Err(RunError::Cancelled { kernel: name(), missing, failures: report.failures })
            }
            missing => Err(RunError::Unfinished { kernel: name(), missing, failures: report.failures }),
        }
    }
}

/// Runs rounds until no further device is lost and no result spoiled, nothing is left to compute, or the run
/// stops.
///
/// Returns the number of items that cannot be computed again, because their inputs are lost or were changed.
fn run_rounds(rounds: &Rounds<'_>, platform: &Platform) -> u64 {
    let Rounds { units, runs, commander, .. } = *rounds;
    let mut known = platform.lost_devices();
    let mut given_up = 0;
    loop {
        Round::run(rounds);
        // An idle device may have been lost after its last package.
        platform.notice_losses();
        let lost = platform.lost_devices();
        let is_spoiled = units.iter().zip(runs).any(|(unit, run)| has_spoiled(unit, &run.lock()));
        if lost == known && !is_spoiled {
            // Units that were left out finish the work that the others could not.
            let is_short = commander.missing() > 0 && !commander.is_stopped();
            if is_short && commander.call_up_all() {
                continue;
            }
            return given_up;
        }
        known = lost;
        for unit in units.iter().filter(|unit| lost.contains(unit.device)) {
            // Units that this calls up work in the next round.
            _ = commander.retire(unit.id, unit.begun.elapsed());
        }
        for (unit, run) in units.iter().zip(runs) {
            given_up += take_back_lost(unit, &mut run.lock(), lost);
        }
        if commander.missing() == 0 || commander.is_stopped() {
            return given_up;
        }
    }
}

/// Returns whether a unit that gave up has spoiled results of its earlier packages.
///
/// That happens to a partial of a reduction that was in no other memory.
fn has_spoiled(unit: &Unit<'_>, run: &UnitRun) -> bool {
    run.failure.is_some() && run.packages.iter().any(|record| !unit.kernel.has_results(&record.package))
}

/// Takes back a unit's packages whose results can no longer be read, so that they are computed again.
///
/// Returns the number of items that cannot be computed again, because their inputs are lost too or were
/// changed.
fn take_back_lost(unit: &Unit<'_>, run: &mut UnitRun, lost_devices: DeviceSet) -> u64 {
    let (kept, lost): (Vec<_>, Vec<_>) = std::mem::take(&mut run.packages)
        .into_iter()
        .partition(|record| unit.kernel.has_results(&record.package));
    run.packages = kept;
    if let Some(PackageRecord { package, .. }) = lost.last()
        && lost_devices.contains(unit.device)
    {
        run.failure.get_or_insert_with(|| lost_with(unit, package, lost.len()));
    }
    reopen(unit, &lost)
}

/// Reopens packages for the remaining units, except packages whose inputs are lost or may have been changed.
///
/// Returns the number of items in these exceptions.
fn reopen(unit: &Unit<'_>, lost: &[PackageRecord]) -> u64 {
    let mut given_up = 0;
    for PackageRecord { package, .. } in lost {
        if unit.kernel.has_inputs(package) && unit.kernel.is_repeatable(package) {
            unit.commander.reopen(package);
        } else {
            given_up += package.items();
        }
    }
    given_up
}

/// Returns the failure of a unit whose device was lost with the results of some packages; `package` is the
/// last one.
fn lost_with(unit: &Unit<'_>, package: &Package, packages: usize) -> UnitFailure {
    let why = unit.loss().map_or_else(String::new, |loss| format!(": {loss}"));
    let message = format!("device {} was lost with the results of {packages} packages{why}", unit.name());
    unit.failure(package.clone(), message, unit.begun.elapsed())
}

/// The state of a run at its start.
struct RunStart {
    platform: PlatformId,
    kernel: String,
    policy: PolicySpec,
    /// Start of the run, on the platform's clock.
    begun: Duration,
    /// Whether each device was left out at the start, until it is called up.
    waited: Vec<bool>,
}

/// Returns whether a unit that began joined after the start of the run.
fn joins_later(waited: bool, had_no_thread: Option<&Threadless>) -> bool {
    waited || had_no_thread.is_some_and(|unit| !unit.had_begun)
}

/// Builds the report of a run.
///
/// `threadless` are the units for which there was no thread. `is_waiting` returns whether a unit was left out
/// until the end.
fn gather(
    plan: &RunPlan,
    opening: RunStart,
    runs: Vec<UnitRun>,
    threadless: &[Threadless],
    is_waiting: impl Fn(usize) -> bool,
) -> Report {
    let RunStart { platform, kernel, policy, begun, waited } = opening;
    let duration = runs.iter().map(|run| run.end).max().unwrap_or_default();
    let of_devices = plan.devices.iter().zip(&runs);
    let reports = of_devices.clone().enumerate().map(|(index, (&device, run))| DeviceReport {
        device,
        packages: run.packages.len() as u64,
        items: run.packages.iter().map(|record| record.package.items()).sum(),
        busy: run.busy,
        end: run.end,
        known_rate: plan.known_rate(index),
    });
    // A unit that was called up and worked was needed, so it does not count as left out.
    let others_seconds = duration.as_secs_f64();
    let (mut left_out, mut called_up) = (Vec::new(), Vec::new());
    for (index, ((&device, run), waited)) in of_devices.zip(&waited).enumerate() {
        let had_no_thread = threadless.iter().find(|threadless| threadless.unit == UnitId(index));
        let joined = run.joined.filter(|_| joins_later(*waited, had_no_thread));
        if !run.end.is_zero() || run.failure.is_some() {
            called_up.extend(joined.map(|at| CalledUp { device, at }));
            continue;
        }
        let reason = had_no_thread.map(|_| Reason::NoThread);
        let reason = reason.or_else(|| plan.reasons[index].clone());
        let reason = reason.or_else(|| is_waiting(index).then_some(Reason::NotCalledUp { others_seconds }));
        let too_late =
            || joined.map(|at| Reason::TooLate { began_seconds: at.as_secs_f64(), others_seconds });
        left_out.extend(reason.or_else(too_late).map(|reason| LeftOut { device, reason }));
    }
    Report {
        platform,
        kernel,
        policy,
        begun,
        duration,
        devices: reports.collect(),
        failures: runs.iter().filter_map(|run| run.failure.clone()).collect(),
        left_out,
        called_up,
        packages: runs.into_iter().flat_map(|run| run.packages).collect(),
        decisions: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit that began at the start can lack a thread in a later round.
    #[test]
    fn who_began_at_the_start_is_not_called_up() {
        let of = |had_begun| Threadless { unit: UnitId(0), had_begun };
        let later = [(false, None), (false, Some(of(true))), (false, Some(of(false))), (true, None)];
        assert_eq!(
            later.map(|(waited, unit)| joins_later(waited, unit.as_ref())),
            [false, false, true, true]
        );
    }
}
