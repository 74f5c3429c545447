//! The plan of a run: its devices, the rates that the policy assumes, and the locations of the data.
//!
//! ```text
//!   buffers, links ──▶ moving ──┐
//!   Knowledge ──────────────────┴─▶ select ──▶ members, explorers ──▶ policy, splitter
//! ```

mod moving;
mod select;
pub(crate) mod setup;
#[cfg(feature = "simulated")]
pub mod simulated;

#[cfg(feature = "simulated")]
pub(crate) use moving::Moved;
pub(crate) use moving::{Moving, are_results_there};

use crate::base::package::UnitId;
use crate::kernel::Kernel;
use crate::model::{KernelModel, Member, Width, name_of};
use crate::policy::{
    Begins, Blueprint, Explorer, First, Learned, Log, Plan, PolicySpec, Prior, Recorded, Splitter,
};
use crate::report::{Reason, RunError};
use dml_core::{DeviceDesc, DeviceId, DeviceKind};
use select::{Candidate, Choice, Selection, Share, THREAD_SECONDS};
use setup::Setup;
use std::ops::Range;
use std::time::Duration;

/// Overhead of a package besides computing and transfers, in seconds: a launch, a wait, and idle units at
/// both ends.
const PACKAGE_SECONDS: f64 = 25e-6;
/// Minimum number of work-items that a unit of a GPU computes concurrently. Fewer work-items take as long.
const GPU_UNIT_ITEMS: u64 = 256;
/// Maximum number of packages of a device that computes alone.
const MOST_PACKAGES: f64 = 16.0;

/// A planned run: its devices, and which of them take part.
#[derive(Debug)]
pub(crate) struct RunPlan {
    pub(crate) devices: Vec<DeviceId>,
    /// Why each device is left out; `None` for a device that takes part, or may be called up.
    pub(crate) reasons: Vec<Option<Reason>>,
    /// The devices, with the data to learn from the run; empty if nothing is learned from it.
    pub(crate) members: Vec<Member>,
    /// Predicted duration without exploration, in seconds; `None` if the run does not explore.
    pub(crate) without_exploring: Option<f64>,
    plan: Plan,
    homes: Vec<(Range<u64>, UnitId)>,
}

/// Returns whether the plan selects the devices and learns from the run: with the calibrated policy, or with
/// an undivided kernel.
pub(crate) fn decides(setup: &Setup, kernel: &Kernel) -> bool {
    setup.policy == PolicySpec::Calibrated || kernel.is_undivided()
}

impl RunPlan {
    pub(crate) fn of(
        setup: &Setup,
        kernel: &Kernel,
        items: u64,
        devices: Vec<DeviceId>,
    ) -> Result<Self, RunError> {
        if let Some(powers) = setup.powers.as_ref().map(Vec::len).filter(|powers| *powers != devices.len()) {
            return Err(RunError::Powers { powers, devices: devices.len() });
        }
        let homes = if devices.len() > 1 {
            moving::homes(&setup.platform, kernel, items, &devices)
        } else {
            Vec::new()
        };
        if !decides(setup, kernel) {
            let powers = setup.powers.clone().unwrap_or_else(|| vec![1.0; devices.len()]);
            return Ok(Self {
                reasons: vec![None; devices.len()],
                members: Vec::new(),
                without_exploring: None,
                plan: Plan::Given(setup.policy.clone(), powers),
                homes,
                devices,
            });
        }
        let moving: Vec<Moving> =
            devices.iter().map(|&device| Moving::of(setup, kernel, items, device)).collect();
        let desc = |device: &DeviceId| setup.platform.device_desc(*device);
        let members: Vec<Member> = devices
            .iter()
            .zip(&moving)
            .map(|(device, moving)| Member {
                device: *device,
                name: name_of(desc(device), moving.is_in_place),
                bytes: [moving.whole.bytes, moving.inward.bytes + moving.outward.bytes],
                per_byte: moving.per_byte(),
                width: width(desc(device), kernel.grain(), kernel.work_items_per_item()),
                is_host: moving.is_host,
                has_launched: kernel.has_launched_on(*device),
            })
            .collect();
        let lost = setup.platform.lost_devices();
        let is_there = |device: &DeviceId| setup.platform.home(*device).is_some() && !lost.contains(*device);
        let planner = Planner {
            items,
            local_size: kernel.grain(),
            is_undivided: kernel.is_undivided(),
            powers: setup.powers.as_deref(),
            cores: setup.cores,
            descs: devices.iter().map(desc).collect(),
            are_there: devices.iter().map(is_there).collect(),
            moving,
            members: &members,
        };
        let (plan, reasons, without_exploring) =
            setup.knowledge.with(kernel.name(), |model| planner.plan(model));
        Ok(Self { reasons, without_exploring, plan, homes, devices, members })
    }

    /// Returns a device's name in the performance model; empty if nothing is learned from the run.
    pub(crate) fn name_of(&self, device: DeviceId) -> &str {
        self.members.iter().find(|member| member.device == device).map_or("", |member| &member.name)
    }

    /// Returns whether the plan has one device compute all items.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.plan, Plan::Packages(_))
    }

    /// Returns whether devices may be called up while or after one device computes its first sample: a
    /// work-group of `local_size` of the `items`.
    pub(crate) fn explores(&self, items: u64, local_size: u64) -> bool {
        let Plan::Calibrated(Learned { explores: Some((Begins::Sampled(first), explorers)), .. }) =
            &self.plan
        else {
            return false;
        };
        !explorers.is_empty() && (first.fills.is_none() || local_size < items)
    }

    /// Returns a device's rate in items per second, as predicted from earlier runs.
    pub(crate) fn known_rate(&self, index: usize) -> Option<f64> {
        match &self.plan {
            Plan::Calibrated(learned) => {
                learned.priors[index].filter(|prior| prior.trusted).map(|prior| prior.rate)
            }
            _ => None,
        }
    }

    /// Returns the splitter of the run, with the policy and the known rates of the devices.
    ///
    /// If decisions are recorded, it also returns the policy's blueprint and the log of its decisions.
    pub(crate) fn splitter(
        &self,
        setup: &Setup,
        kernel: &Kernel,
        items: u64,
    ) -> Result<(Splitter, Option<(Blueprint, Log)>), RunError> {
        let (units, local_size) = (self.devices.len(), kernel.grain());
        // Powers are checked even if the policy does not use them.
        if let Some(powers) = &setup.powers {
            PolicySpec::Static.build(powers, items, local_size)?;
        }
        let name = |device: &DeviceId| setup.platform.device_desc(*device).name.to_string();
        let names = self.devices.iter().map(name).collect();
        let blueprint = Blueprint::new(items, local_size, names, self.plan.clone());
        let (policy, log) = match (blueprint.build()?, setup.records) {
            (policy, false) => (policy, None),
            (policy, true) => {
                let (policy, log) = Recorded::new(policy);
                (Box::new(policy) as _, Some((blueprint, log)))
            }
        };
        let mut splitter = Splitter::new(policy, units, items, local_size)?;
        let is_in = |(_, unit): &&(Range<u64>, UnitId)| self.reasons[unit.0].is_none();
        let homes: Vec<_> = self.homes.iter().filter(is_in).cloned().collect();
        splitter.place(&homes);
        leave_out(&mut splitter, &self.reasons);
        Ok((splitter, log))
    }
}

/// Benches every unit that has a reason to be left out.
pub(crate) fn leave_out(splitter: &mut Splitter, reasons: &[Option<Reason>]) {
    let left_out = (0..reasons.len()).filter(|&index| reasons[index].is_some());
    left_out.for_each(|index| splitter.bench(UnitId(index)));
}

/// Returns the devices that share a run from the start; empty if only one begins.
pub(crate) fn chosen(devices: &[DeviceId], waits: impl Fn(UnitId) -> bool) -> Vec<DeviceId> {
    let begins = |(index, device): (usize, &DeviceId)| (!waits(UnitId(index))).then_some(*device);
    let chosen: Vec<DeviceId> = devices.iter().enumerate().filter_map(begins).collect();
    if chosen.len() > 1 { chosen } else { Vec::new() }
}

/// Returns the parallelism of a device for a kernel with work-groups of `local_size` items.
pub(crate) fn width(desc: &DeviceDesc, local_size: u64, work_items_per_item: u64) -> Width {
    let units = u64::from(desc.compute_units.max(1));
    if desc.kind == DeviceKind::Gpu {
        let fills = units * GPU_UNIT_ITEMS / work_items_per_item.max(1);
        Width { fills: fills as f64, grows: 0.0 }
    } else {
        Width { fills: local_size.saturating_mul(units) as f64, grows: 0.5 }
    }
}

/// Inputs of a plan.
pub(crate) struct Planner<'a> {
    pub(crate) items: u64,
    pub(crate) local_size: u64,
    pub(crate) is_undivided: bool,
    pub(crate) powers: Option<&'a [f64]>,
    /// Number of cores that the devices of kind `cpu` share.
    pub(crate) cores: u32,
    pub(crate) descs: Vec<&'a DeviceDesc>,
    /// Whether each device has a memory and is not lost.
    pub(crate) are_there: Vec<bool>,
    pub(crate) moving: Vec<Moving>,
    pub(crate) members: &'a [Member],
}

impl Planner<'_> {
    /// Returns the policy's plan, why each device is left out, and the predicted duration without exploration
    /// if the run explores.
    pub(crate) fn plan(&self, model: &KernelModel) -> (Plan, Vec<Option<Reason>>, Option<f64>) {
        if let [_] = self.members {
            let expected = self.expected(model, 0);
            return (Plan::Packages(self.packages(0, 1.0, expected) as u64), vec![None], None);
        }
        let candidates: Vec<Candidate<'_>> =
            (0..self.members.len()).map(|index| self.candidate(model, index)).collect();
        let choice = Choice {
            items: self.items as f64,
            groups: self.items.div_ceil(self.local_size),
            candidates: &candidates,
            credit: model.credit,
            is_undivided: self.is_undivided,
        };
        let Selection { members, explorers, best_seconds, seconds, shares, reasons } = choice.select();
        let explored = Some(best_seconds)
            .filter(|_| !members.is_empty() && (!explorers.is_empty() || seconds > best_seconds));
        if self.is_undivided {
            let chosen = self.undivided(&candidates, members.first().map(|&best| (best, seconds)));
            let left_out = |index| Some(Reason::Undivided).filter(|_| index != chosen);
            return (Plan::Packages(1), (0..candidates.len()).map(left_out).collect(), None);
        }
        if let ([alone], []) = (&members[..], &explorers[..]) {
            let packages = candidates[*alone].packages as u64;
            return (Plan::Packages(packages), reasons, explored);
        }
        let mut priors = self.given();
        for (&index, share) in members.iter().zip(&shares) {
            let launch = if self.moving[index].is_host { 0.0 } else { PACKAGE_SECONDS };
            let rate = share.items / share.computing.max(f64::MIN_POSITIVE);
            if rate.is_finite() && rate > 0.0 {
                priors[index] =
                    Some(Prior::measured(rate, Duration::try_from_secs_f64(launch).unwrap_or_default()));
            }
        }
        let mut reasons = reasons;
        let explores = match &members[..] {
            [] if self.powers.is_some() => None,
            [] => {
                let (first, explorers) = self.begins(&candidates, explorers);
                // The fastest of several devices on the same cores is unknown: only one is compared with the
                // first unit.
                let mut has_rival = false;
                for explorer in &explorers {
                    if !explorer.turns_with.is_empty() && std::mem::replace(&mut has_rival, true) {
                        reasons[explorer.unit.0] = Some(Reason::SameCores);
                    }
                }
                let explorers = explorers.into_iter().filter(|explorer| reasons[explorer.unit.0].is_none());
                Some((Begins::Sampled(first), explorers.collect()))
            }
            _ if explorers.is_empty() => None,
            _ => Some((Begins::Known(seconds), explorers)),
        };
        let share =
            |index: usize| members.iter().position(|&member| member == index).map(|place| shares[place]);
        let overlaps = |&index: &usize| match share(index) {
            Some(Share { items, computing }) => {
                self.packages(index, items / self.items as f64, Some(computing)) > 1.0
            }
            None => !self.moving[index].is_host,
        };
        let overlapping = (0..priors.len()).filter(overlaps);
        let left_out = (0..priors.len()).filter(|&index| reasons[index].is_some());
        let learned = Learned {
            priors,
            overlapping: overlapping.map(UnitId).collect(),
            fills: (0..self.descs.len()).map(|index| self.latent(index)).collect(),
            left_out: left_out.map(UnitId).collect(),
            explores,
        };
        (Plan::Calibrated(learned), reasons, explored)
    }

    /// Returns the number of items that a GPU computes in the time of one; 0 for another device.
    fn latent(&self, index: usize) -> u64 {
        if self.descs[index].kind == DeviceKind::Gpu { self.members[index].width.fills as u64 } else { 0 }
    }

    fn candidate<'a>(&'a self, model: &'a KernelModel, index: usize) -> Candidate<'a> {
        let twins: Vec<usize> = (0..self.descs.len()).filter(|&other| self.are_twins(index, other)).collect();
        let of = |index: usize| model.device(&self.members[index].name).filter(|model| model.is_known());
        let desc = self.descs[index];
        let is_on_cores = desc.kind == DeviceKind::Cpu;
        Candidate {
            model: of(index).or_else(|| twins.iter().find_map(|&twin| of(twin))),
            name: &self.members[index].name,
            twin: twins.iter().copied().chain([index]).min().filter(|_| !twins.is_empty()),
            moving: self.moving[index],
            packages: self.packages(index, 1.0, self.expected(model, index)),
            part_of_cores: if is_on_cores {
                f64::from(desc.compute_units) / f64::from(self.cores)
            } else {
                0.0
            },
            width: self.members[index].width,
            latent: self.latent(index),
            has_failed: model.device(&self.members[index].name).is_some_and(|model| model.has_failed),
        }
    }

    /// Returns whether two devices are separate hardware of one model.
    ///
    /// Devices that share hardware are no twins: the share of each is unknown.
    fn are_twins(&self, one: usize, other: usize) -> bool {
        let hardware = |index: usize| self.descs[index].hardware.as_ref();
        let is_shared = |index: usize| {
            hardware(index).is_some()
                && (0..self.descs.len()).any(|other| other != index && hardware(other) == hardware(index))
        };
        one != other && self.descs[one].is_twin_of(self.descs[other]) && !is_shared(one) && !is_shared(other)
    }

    /// Returns priors from the given powers, for devices without measurements.
    fn given(&self) -> Vec<Option<Prior>> {
        match self.powers {
            Some(powers) => powers.iter().map(|&power| Some(Prior::of_power(power))).collect(),
            None => vec![None; self.members.len()],
        }
    }

    /// Returns the predicted time in which a device computes all items alone, in seconds, if it is known.
    fn expected(&self, model: &KernelModel, index: usize) -> Option<f64> {
        let known = model.device(&self.members[index].name)?;
        Some(known.computing(self.items as f64, 1.0, self.members[index].width)?.expected)
    }

    /// Returns the number of packages in which a device computes a part of all items.
    ///
    /// More packages overlap more of the transfers with computing, but each has an overhead.
    fn packages(&self, index: usize, part: f64, computing: Option<f64>) -> f64 {
        let Moving { inward, outward, is_host, .. } = self.moving[index];
        let (inward, outward) = (inward.seconds * part, outward.seconds * part);
        let longest = inward.max(outward);
        if is_host || self.is_undivided || longest <= 0.0 {
            return 1.0;
        }
        let computing = computing.unwrap_or(longest);
        let hidden = inward + outward + computing - longest.max(computing);
        let packages = (hidden / PACKAGE_SECONDS).sqrt().clamp(1.0, MOST_PACKAGES).floor();
        let saved = hidden * (1.0 - 1.0 / packages) - PACKAGE_SECONDS * (packages - 1.0);
        if saved > THREAD_SECONDS { packages } else { 1.0 }
    }

    /// Returns the unit that begins without measurements, and the other explorers.
    ///
    /// The first unit is the host, or else a device on the processor's cores that uses the buffers in place,
    /// or else the first device. A device on which the last run failed is skipped.
    fn begins(&self, candidates: &[Candidate<'_>], explorers: Vec<Explorer>) -> (First, Vec<Explorer>) {
        let is_near =
            |index: &usize| self.moving[*index].is_in_place && candidates[*index].part_of_cores > 0.0;
        let all = || 0..candidates.len();
        let able = |index: &usize| !candidates[*index].has_failed;
        let host = all().find(|&index| self.moving[index].is_host && able(&index));
        let near = host.or_else(|| all().find(|index| is_near(index) && able(index)));
        let first = near.or_else(|| all().find(able)).unwrap_or(0);
        let fills = near.map(|first| self.members[first].width.fills as u64);
        let fits = |index: usize| {
            let parts = candidates[first].part_of_cores + candidates[index].part_of_cores;
            candidates[first].part_of_cores == 0.0
                || candidates[index].part_of_cores == 0.0
                || parts < 1.0 + 1e-9
        };
        let others = explorers.into_iter().filter(|explorer| explorer.unit.0 != first);
        let others = others.map(|explorer| Explorer {
            turns_with: if fits(explorer.unit.0) { Vec::new() } else { vec![UnitId(first)] },
            ..explorer
        });
        (First { unit: UnitId(first), fills }, others.collect())
    }

    /// Returns the device that computes an undivided kernel.
    ///
    /// It is an unmeasured device if its data moves in less time than the best measured one takes in total. A
    /// device that is lost, has no memory, or failed in the last run comes last.
    fn undivided(&self, candidates: &[Candidate<'_>], best: Option<(usize, f64)>) -> usize {
        let moving = |index: &usize| {
            let candidate = &candidates[*index];
            let Moving { whole, inward, outward, .. } = candidate.moving;
            let seconds = whole.seconds + inward.seconds + outward.seconds;
            if candidate.has_failed || !self.are_there[*index] { f64::INFINITY } else { seconds }
        };
        let unknown = (0..candidates.len()).filter(|&index| candidates[index].model.is_none());
        let nearest = unknown.min_by(|one, other| moving(one).total_cmp(&moving(other)));
        match (best, nearest) {
            (Some((_, takes)), Some(unknown)) if moving(&unknown) < takes => unknown,
            (Some((best, _)), _) => best,
            (None, nearest) => {
                let last =
                    || (0..candidates.len()).min_by(|one, other| moving(one).total_cmp(&moving(other)));
                nearest.filter(|unknown| moving(unknown).is_finite()).or_else(last).unwrap_or(0)
            }
        }
    }
}
