//! A run of steps: submission, choice of the strips, and recovery from a checkpoint.

use super::balance::Balance;
use super::kept::Kept;
use super::plan::{Kernels, Part, Plan};
use super::recorded::{End, Recorded};
use super::{Iterate, IterateError, Iterated, Measured, Stepped};
use crate::kernel::Argument;
use dml_core::{DeviceId, DeviceKind, Submission, Submit, SubmitError};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Number of steps of which the shortest is measured. What delays the notice of an end is no work.
const SAMPLES: usize = 3;
/// Number of steps of a trial without a device.
const TRIAL: u64 = 16;
/// Share of the remaining time that a trial may be expected to lose.
const RISK: f64 = 0.02;

/// Steps in progress.
pub(super) struct Run<'a> {
    iterate: Iterate<'a>,
    devices: Vec<DeviceId>,
    /// Where the caller asked for the run.
    origin: &'static Location<'static>,
    kernels: Kernels,
    balance: Balance,
    plan: Plan,
    /// The number of submitted steps.
    made: u64,
    last: u64,
    is_stopped: bool,
    /// The time of callbacks and checkpoints.
    aside: Duration,
    kept: Option<Kept>,
    recorded: Option<Recorded>,
    measured: Vec<Measured>,
    /// Devices of which a kernel failed since the last recovery.
    suspects: Vec<DeviceId>,
    failed: Vec<DeviceId>,
}

/// When the last border and the interior of a device ended, from the begin of the step.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    border: Option<Duration>,
    interior: Option<Duration>,
}

impl Ends {
    fn all(&self) -> Option<Duration> {
        self.border.max(self.interior)
    }

    /// Returns the shorter one.
    fn least(self, other: Self) -> Self {
        if other.all() < self.all() { other } else { self }
    }

    /// Returns the duration of the strip without its borders, as far as it is known.
    fn own(&self) -> Option<Duration> {
        // A part behind a border begins when that ends.
        let inner = self.interior?.checked_sub(self.border?);
        inner.filter(|inner| !inner.is_zero()).or(self.all())
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(
        iterate: Iterate<'a>,
        last: u64,
        origin: &'static Location<'static>,
    ) -> Result<Self, IterateError> {
        let devices = iterate.chosen()?;
        let balance = iterate.balance(&devices)?;
        let kernels = iterate.kernels(&devices, origin)?;
        let plan = Plan::new(&kernels, &devices, balance.shares())?;
        Ok(Self {
            iterate,
            devices,
            origin,
            kernels,
            balance,
            plan,
            made: 0,
            last,
            is_stopped: false,
            aside: Duration::ZERO,
            kept: None,
            recorded: None,
            measured: Vec::new(),
            suspects: Vec::new(),
            failed: Vec::new(),
        })
    }

    pub(super) fn run(mut self) -> Result<Iterated, IterateError> {
        let begun = Instant::now();
        self.recorded = self.iterate.is_recorded.then(|| Recorded::new(self.iterate.platform));
        if self.iterate.checkpoints.is_some() {
            self.keep()?;
        }
        self.stop_by_flag();
        while let Err(error) = self.all() {
            self.recover(error)?;
        }
        self.keep_strips();
        let name = self.kernels.steps[0].first().map_or("", |kernel| kernel.name());
        let report =
            self.recorded.map(|recorded| recorded.report(self.iterate.platform, name, &self.devices));
        Ok(Iterated {
            steps: self.made,
            is_stopped: self.is_stopped,
            duration: begun.elapsed(),
            corrections: self.balance.corrections(),
            strips: self.plan.strips(&self.kernels.steps[0], &self.devices),
            failed: self.failed,
            report,
            shares: self.balance.shares().to_vec(),
            measured: self.measured,
            swaps: self.iterate.swaps,
        })
    }

    fn all(&mut self) -> Result<(), IterateError> {
        // The first step allocates, and says little of the later ones.
        self.make(1)?;
        if self.balance.measures() {
            self.choose_strips()?;
        }
        self.make(u64::MAX)?;
        self.settle()
    }

    /// Keeps strips that were measured and found balanced.
    fn keep_strips(&self) {
        let is_found = self.balance.is_balanced() && !self.measured.is_empty() && self.failed.is_empty();
        if let (true, Some(knowledge), Some((kernel, items))) =
            (is_found, &self.iterate.knowledge, self.iterate.steps.first())
        {
            let descs = self.devices.iter().map(|device| self.iterate.platform.device_desc(*device));
            knowledge.keep_strips(kernel.name(), *items, descs, self.balance.shares());
        }
    }

    fn remaining(&self) -> u64 {
        if self.is_stopped { 0 } else { self.last - self.made }
    }

    /// Makes at most `steps` steps.
    fn make(&mut self, steps: u64) -> Result<(), IterateError> {
        for _ in 0..steps.min(self.remaining()) {
            self.made += 1;
            self.submit_step(|_, _| ())?;
            self.end_step()?;
            if self.is_stopped {
                break;
            }
        }
        Ok(())
    }

    /// Submits the kernels of a step, and calls a function with each.
    fn submit_step(&mut self, mut submitted: impl FnMut(&Part, Submission)) -> Result<(), IterateError> {
        let parts = &self.plan.parts[usize::from(self.made.is_multiple_of(2))];
        for part in parts {
            match submit(&self.iterate, &self.devices, part) {
                Ok(submission) => {
                    if let Some(recorded) = &mut self.recorded {
                        recorded.add(part, submission.clone());
                    }
                    submitted(part, submission);
                }
                Err(cause) => {
                    let unit = part.unit;
                    return Err(self.refused(unit, cause));
                }
            }
        }
        Ok(())
    }

    /// Returns the error of a kernel that was not submitted, which may be due to an earlier one.
    fn refused(&mut self, unit: usize, cause: SubmitError) -> IterateError {
        if let Err(earlier) = self.settle() {
            return earlier;
        }
        if !matches!(cause, SubmitError::Acquire(_)) {
            self.suspects.push(self.devices[unit]);
        }
        IterateError::Failed { step: self.made, cause: Box::new(cause) }
    }

    /// Does what is due after a step.
    fn end_step(&mut self) -> Result<(), IterateError> {
        for index in 0..self.kernels.checks.len() {
            if self.made.is_multiple_of(self.kernels.checks[index].0) {
                self.check(index)?;
            }
        }
        if self.iterate.callback.as_ref().is_some_and(|(every, _)| self.made.is_multiple_of(*every)) {
            self.settle()?;
            if let Some((_, callback)) = &mut self.iterate.callback {
                let begun = Instant::now();
                let flow = callback(&Stepped { steps: self.made, swaps: &self.iterate.swaps });
                self.aside += begun.elapsed();
                let flow = flow.map_err(|cause| IterateError::Callback { step: self.made, cause })?;
                self.is_stopped = flow.is_break();
            }
        }
        if self.iterate.checkpoints.is_some_and(|every| self.made.is_multiple_of(every))
            && self.remaining() > 0
        {
            self.settle()?;
            self.keep()?;
        }
        self.stop_by_flag();
        Ok(())
    }

    fn stop_by_flag(&mut self) {
        self.is_stopped |= self.iterate.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
    }

    /// Launches a kernel that is not launched in every step, with the buffers of the next step.
    fn check(&mut self, index: usize) -> Result<(), IterateError> {
        let place = (self.made % 2) as usize;
        let mut has_added = vec![false; self.devices.len()];
        for part in &self.plan.checks[index][place] {
            let unit = part.unit;
            has_added[unit] = true;
            if let Err(cause) = submit(&self.iterate, &self.devices, part) {
                return Err(self.refused(unit, cause));
            }
        }
        if !self.kernels.checks[index].1[place].arguments().iter().any(Argument::is_reduced) {
            return Ok(());
        }
        self.settle()?;
        let kernel = &self.kernels.checks[index].1[place];
        let combined = kernel.combine(&has_added, &|acquire| Ok(acquire.wait()?));
        let cleared = combined.and_then(|()| kernel.clear());
        cleared.map_err(|cause| IterateError::Combine { step: self.made, cause: Box::new(cause) })
    }

    /// Waits for all kernels, and notes the devices of which one failed.
    fn settle(&mut self) -> Result<(), IterateError> {
        let mut first = Ok(());
        for &device in &self.devices {
            let settled = self.iterate.platform.settle(device);
            if settled.is_err() {
                self.suspects.push(device);
            }
            first = first.and(settled);
        }
        first.map_err(|cause| IterateError::Failed { step: self.made, cause: Box::new(cause) })
    }

    fn keep(&mut self) -> Result<(), IterateError> {
        let begun = Instant::now();
        self.kept = Some(Kept::new(self.iterate.platform, &self.kernels, self.made, self.kept.as_ref())?);
        self.aside += begun.elapsed();
        Ok(())
    }

    /// Returns to the checkpoint, without the devices that failed.
    fn recover(&mut self, error: IterateError) -> Result<(), IterateError> {
        if matches!(error, IterateError::Callback { .. }) {
            return Err(error);
        }
        // No kernel stays in flight, and every failed device is known.
        let _ = self.settle();
        let Some(kept) = &self.kept else { return Err(error) };
        // Where a device is lost, the kernels of others fail that read what it had.
        let lost = self.iterate.platform.lost_devices();
        let suspects = std::mem::take(&mut self.suspects);
        let well = self.devices.iter().filter(|device| !self.failed.contains(device));
        let (lost, others): (Vec<_>, Vec<_>) = well.copied().partition(|device| lost.contains(*device));
        let failed = if lost.is_empty() {
            others.into_iter().filter(|device| suspects.contains(device)).collect()
        } else {
            lost
        };
        // Each recovery leaves out a further device, so there are not many.
        if failed.is_empty() || self.failed.len() + failed.len() == self.devices.len() {
            return Err(error);
        }
        self.failed.extend(failed);
        let is_well = |device: &DeviceId| !self.failed.contains(device);
        let of = |(device, share): (&DeviceId, &f64)| if is_well(device) { *share } else { 0.0 };
        let mut shares: Vec<f64> = self.devices.iter().zip(self.balance.shares()).map(of).collect();
        if shares.iter().all(|share| *share == 0.0) {
            // Those that were left out take over.
            shares = self.devices.iter().map(|device| if is_well(device) { 1.0 } else { 0.0 }).collect();
        }
        self.made = kept.steps;
        kept.restore(self.iterate.platform)?;
        self.is_stopped = false;
        // The partials of reductions may be corrupt.
        self.kernels = self.iterate.kernels(&self.devices, self.origin)?;
        self.use_shares(shares)
    }

    fn use_shares(&mut self, shares: Vec<f64>) -> Result<(), IterateError> {
        self.balance.set(shares);
        self.plan = Plan::new(&self.kernels, &self.devices, self.balance.shares())?;
        Ok(())
    }

    /// Corrects the strips by the durations of steps, and leaves out devices that do not pay.
    fn choose_strips(&mut self) -> Result<(), IterateError> {
        let (mut alone, mut together) = (None, 0.0);
        while self.balance.measures() && self.remaining() > 0 {
            let shares = self.balance.shares().to_vec();
            let ends = self.measured()?;
            together = slowest(&ends);
            if alone.is_none() {
                alone = Some(self.try_alone(&ends)?);
                if self.balance.devices() < 2 {
                    return Ok(());
                }
            }
            let durations: Vec<Option<Duration>> = ends.iter().map(Ends::all).collect();
            let is_corrected = self.balance.correct(&durations);
            self.measured.push(Measured { shares, durations });
            if is_corrected {
                let corrected = Plan::new(&self.kernels, &self.devices, self.balance.shares())?;
                if corrected.cuts == self.plan.cuts {
                    self.balance.rest();
                }
                self.plan = corrected;
            }
        }
        match alone.flatten() {
            // They are so much slower that it is known without another trial.
            Some((only, alone)) if alone < together && !self.is_worth_a_trial(together, alone) => {
                self.use_shares(only)
            }
            alone => self.leave_out(alone),
        }
    }

    /// Makes some steps on one device alone, and then on others, if they are not expected to cost much.
    /// Leaves the others out if the fastest takes no longer for a step than any two take for their borders.
    /// Returns the ratios of that device alone, and the seconds of a step.
    fn try_alone(&mut self, ends: &[Ends]) -> Result<Option<(Vec<f64>, f64)>, IterateError> {
        let all = self.balance.shares().to_vec();
        let total: f64 = all.iter().sum();
        // The duration of all items on one device, from that of its strip.
        let mut expected: Vec<(usize, f64)> = (0..all.len())
            .filter_map(|unit| {
                let own = ends[unit].own().or(ends[unit].all())?;
                Some((unit, own.as_secs_f64() * total / all[unit]))
            })
            .collect();
        expected.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        let mut best: Option<(Vec<f64>, f64)> = None;
        for (unit, expected) in expected {
            let usual = best.as_ref().map_or_else(|| slowest(ends), |(_, seconds)| *seconds);
            if !self.is_worth_a_trial(expected, usual) {
                break;
            }
            let only: Vec<f64> = all
                .iter()
                .enumerate()
                .map(|(other, share)| if other == unit { *share } else { 0.0 })
                .collect();
            let seconds = self.timed(only.clone())?;
            if best.as_ref().is_none_or(|(_, best)| seconds < *best) {
                best = Some((only, seconds));
            }
        }
        let mut borders: Vec<Duration> = ends.iter().filter_map(|ends| ends.border).collect();
        borders.sort();
        // Of any two devices, the slower one at its border takes at least this long.
        let least = borders.get(1).map_or(0.0, Duration::as_secs_f64);
        let next = best.as_ref().filter(|(_, alone)| *alone <= least).map_or(all, |(only, _)| only.clone());
        self.use_shares(next)?;
        Ok(best)
    }

    /// Leaves out the device with the smallest strip as long as steps become faster. `alone` has the seconds
    /// of a step on one device, if they are known.
    fn leave_out(&mut self, alone: Option<(Vec<f64>, f64)>) -> Result<(), IterateError> {
        if self.remaining() <= 2 * (TRIAL + 1) {
            return Ok(());
        }
        let mut shares = self.balance.shares().to_vec();
        let mut seconds = self.timed(shares.clone())?;
        while self.balance.devices() > 1 {
            let least = (0..shares.len()).filter(|unit| shares[*unit] > 0.0);
            let Some(least) = least.min_by(|one, other| shares[*one].total_cmp(&shares[*other])) else {
                break;
            };
            let others = 1.0 - shares[least] / shares.iter().sum::<f64>();
            if !self.is_worth_a_trial(seconds / others, seconds) {
                break;
            }
            let mut fewer = shares.clone();
            fewer[least] = 0.0;
            let without = self.timed(fewer.clone())?;
            if without > seconds {
                break;
            }
            (shares, seconds) = (fewer, without);
        }
        self.use_shares(match alone {
            Some((only, alone)) if alone <= seconds => only,
            _ => shares,
        })
    }

    /// Returns whether steps that are expected to take `expected` instead of `usual` are few among the
    /// remaining ones.
    fn is_worth_a_trial(&self, expected: f64, usual: f64) -> bool {
        let (steps, remaining) = ((TRIAL + 1) as f64, self.remaining() as f64);
        self.remaining() > 2 * (TRIAL + 1) && steps * (expected - usual) <= RISK * remaining * usual
    }

    /// Uses strips in these ratios. Returns the seconds of a step, over several.
    fn timed(&mut self, shares: Vec<f64>) -> Result<f64, IterateError> {
        self.use_shares(shares)?;
        // Rows move.
        self.make(1)?;
        self.settle()?;
        let (begun, made, aside) = (Instant::now(), self.made, self.aside);
        self.make(TRIAL)?;
        self.settle()?;
        let duration = begun.elapsed().saturating_sub(self.aside - aside);
        Ok(duration.as_secs_f64() / (self.made - made).max(1) as f64)
    }

    /// Makes some steps, and returns the ends of each device's parts in its shortest one.
    fn measured(&mut self) -> Result<Vec<Ends>, IterateError> {
        let mut least = self.measured_once()?;
        for _ in 1..SAMPLES {
            if self.remaining() == 0 {
                break;
            }
            let ends = self.measured_once()?;
            least = least.into_iter().zip(ends).map(|(least, ends)| least.least(ends)).collect();
        }
        Ok(least)
    }

    /// Makes a step that begins when all others have ended, and returns the ends of each device's parts.
    fn measured_once(&mut self) -> Result<Vec<Ends>, IterateError> {
        self.settle()?;
        self.made += 1;
        let begun = Instant::now();
        let mut last: Vec<[Option<Submission>; 2]> = vec![[None, None]; self.devices.len()];
        self.submit_step(|part, submission| {
            last[part.unit][usize::from(!part.is_border)] = Some(submission);
        })?;
        let watched: Vec<[Option<Arc<End>>; 2]> =
            last.into_iter().map(|of_device| of_device.map(|submission| submission.map(End::of))).collect();
        self.settle()?;
        let duration = |end: Option<Arc<End>>| end.map(|end| end.at().saturating_duration_since(begun));
        let of_device =
            |[border, interior]: [_; 2]| Ends { border: duration(border), interior: duration(interior) };
        let ends = watched.into_iter().map(of_device).collect();
        self.end_step()?;
        Ok(ends)
    }
}

/// Returns the seconds until the last device ended.
fn slowest(ends: &[Ends]) -> f64 {
    ends.iter().filter_map(Ends::all).max().map_or(0.0, |longest| longest.as_secs_f64())
}

fn submit(iterate: &Iterate<'_>, devices: &[DeviceId], part: &Part) -> Result<Submission, SubmitError> {
    let Part { unit, launcher, kernel, items, total, shape, arguments, is_border } = part;
    let submit = iterate.platform.submit(devices[*unit], launcher).label(kernel);
    let submit = if *is_border { submit.ends_alone() } else { submit };
    // A processor copies on the threads that compute. A copy behind the interior would wait for that.
    let copies_itself = iterate.platform.device_desc(devices[*unit]).kind == DeviceKind::Cpu;
    let submit = match iterate.platform.host() {
        Some(host) if *is_border && copies_itself => submit.bring_results(host),
        _ => submit,
    };
    let submit = arguments.iter().cloned().fold(submit, Submit::argument);
    submit.part(items.clone(), *total, *shape)
}
