//! The Director: checks a run, sets its units up, and gathers what they did.

use crate::coexecutor::{Coexecutor, Hooks};
use crate::commander::Commander;
use crate::kernel::{Footprint, Kernel};
use crate::package::UnitId;
use crate::report::{DeviceReport, Report, RunError};
use crate::unit::{Unit, UnitRun};
use dml_core::DeviceId;
use std::time::Instant;

/// Runs items `0..items` of `kernel` over the co-executor's devices.
pub(crate) fn direct(
    coexecutor: &Coexecutor,
    kernel: &Kernel,
    items: u64,
    hooks: &dyn Hooks,
) -> Result<Report, RunError> {
    let devices = devices(coexecutor, kernel)?;
    let powers = coexecutor.powers.clone().unwrap_or_else(|| vec![1.0; devices.len()]);
    if powers.len() != devices.len() {
        return Err(RunError::Powers { powers: powers.len(), devices: devices.len() });
    }
    let splitter = coexecutor.policy.splitter(&powers, items, kernel.local_size())?;
    let commander = Commander::new(splitter);
    hooks.director_start();
    let begun = Instant::now();
    let unit = |(index, &device): (usize, &DeviceId)| Unit {
        id: UnitId(index),
        device,
        platform: &coexecutor.platform,
        kernel,
        commander: &commander,
        hooks,
        collect_on: coexecutor.collect_on,
        begun,
    };
    let runs = run_units(devices.iter().enumerate().map(unit).collect());
    hooks.director_end();
    let report = gather(&devices, runs);
    match commander.missing() {
        0 => Ok(report),
        missing => {
            Err(RunError::Unfinished { kernel: kernel.name().to_owned(), missing, failures: report.failures })
        }
    }
}

/// One thread per unit; a single unit, or the last of several, works on the caller's.
fn run_units(mut units: Vec<Unit<'_>>) -> Vec<UnitRun> {
    std::thread::scope(|scope| {
        let last = units.pop();
        let threads: Vec<_> = units.into_iter().map(|unit| scope.spawn(move || unit.run())).collect();
        let last = last.map(Unit::run);
        // A unit catches what its kernel panics with; a panic of its own is a bug that must not be swallowed.
        let join = |thread: std::thread::ScopedJoinHandle<'_, UnitRun>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).chain(last).collect()
    })
}

fn devices(coexecutor: &Coexecutor, kernel: &Kernel) -> Result<Vec<DeviceId>, RunError> {
    let named = |device: DeviceId| coexecutor.platform.devices()[usize::from(device.0)].name.to_string();
    let devices = coexecutor.devices.clone().unwrap_or_else(|| kernel.devices().collect());
    if devices.is_empty() {
        return Err(RunError::NoDevices { kernel: kernel.name().to_owned() });
    }
    for (index, &device) in devices.iter().enumerate() {
        if kernel.variant_for(device).is_none() {
            return Err(RunError::NoVariant { kernel: kernel.name().to_owned(), device: named(device) });
        }
        if devices[..index].contains(&device) {
            return Err(RunError::DuplicateDevice { device: named(device) });
        }
    }
    let whole_write = kernel
        .arguments()
        .iter()
        .position(|argument| argument.access().writes() && matches!(argument.footprint(), Footprint::Whole));
    match whole_write {
        Some(index) => Err(RunError::WholeWrite { kernel: kernel.name().to_owned(), index }),
        None => Ok(devices),
    }
}

fn gather(devices: &[DeviceId], runs: Vec<UnitRun>) -> Report {
    let duration = runs.iter().map(|run| run.end).max().unwrap_or_default();
    let reports = devices.iter().zip(&runs).map(|(&device, run)| DeviceReport {
        device,
        packages: run.packages.len() as u64,
        items: run.packages.iter().map(|record| record.package.items()).sum(),
        busy: run.busy,
        end: run.end,
    });
    Report {
        duration,
        devices: reports.collect(),
        failures: runs.iter().filter_map(|run| run.failure.clone()).collect(),
        packages: runs.into_iter().flat_map(|run| run.packages).collect(),
    }
}
