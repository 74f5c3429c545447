//! Who takes part in a run, and the splitter that hands out its work.

use crate::director::Setup;
use crate::haul::{
    COLLECTOR_SECONDS, DEVICE_SETUP_SECONDS, Haul, OWN_BYTES_PER_SECOND, PACKAGE_SECONDS, bytes, haul,
};
use crate::kernel::Kernel;
use crate::knowledge::{self, Candidate, Reason, SHORT_SECONDS, Selection};
use crate::package::UnitId;
use crate::policy::{
    Blueprint, Estimate, Freight, Learned, Log, Opens, Plan, PolicySpec, Prior, Recorded, Splitter, Tries,
};
use crate::report::RunError;
use crate::undivided;
use dml_core::{DeviceId, DeviceKind, Platform};
use std::time::Duration;

/// A run of so few work-groups is not worth a sample.
const FEW_GROUPS: u64 = 8;
/// The most packages of a device that computes alone.
const MOST_PIECES: f64 = 16.0;
/// The longest package of one of several devices of one model. Shorter packages have fewer work-groups, which may not fill a device.
const SHARED_SECONDS: f64 = 30e-3;
/// The bytes per second that the memory of a host has at most.
const MOST_BYTES_PER_SECOND: f64 = 200e9;

/// The devices of a run, and which of them take part.
pub(crate) struct Lineup {
    pub(crate) devices: Vec<DeviceId>,
    /// What each device is called where runs are learned from.
    names: Vec<String>,
    /// Why each device is left out; `None` for those that take part.
    pub(crate) reasons: Vec<Option<Reason>>,
    /// What is known of each device.
    priors: Vec<Option<Prior>>,
    /// The items per second of each device's kernels alone, as far as earlier runs say.
    kernels: Vec<Option<f64>>,
    /// The unit that begins, and calls the others up.
    opens: Option<usize>,
    hauls: Vec<Haul>,
    /// Whether the run touches so many bytes that the host cannot be done before the others have begun, and these can move
    /// their part as fast.
    is_large: bool,
    /// How many threads the unit that begins has.
    threads: u64,
    /// The unit that can be tried out.
    tries: Option<Tries>,
    /// The units that are as fast as that one.
    twins: Vec<UnitId>,
    /// Whether all that take part are of one model.
    are_twins: bool,
    /// Whether the unit that begins computes as if it were alone, until it calls the others up.
    is_alone: bool,
    /// The unit that computes on the cores of the one that begins, and can be compared with it. Others on the same cores take no part.
    rival: Option<usize>,
}

impl Lineup {
    /// Everybody takes part, unless the policy is to decide about it.
    pub(crate) fn of(
        setup: &Setup,
        kernel: &Kernel,
        items: u64,
        devices: Vec<DeviceId>,
    ) -> Result<Self, RunError> {
        if let Some(powers) = setup.powers.as_ref().map(Vec::len).filter(|powers| *powers != devices.len()) {
            return Err(RunError::Powers { powers, devices: devices.len() });
        }
        let given = setup.powers.iter().flatten().map(|&power| Some(Prior::of_power(power)));
        let given: Vec<Option<Prior>> = given.chain(std::iter::repeat(None)).take(devices.len()).collect();
        if !decides(setup, kernel) {
            let reasons = vec![None; devices.len()];
            return Ok(Self::unlearned(devices, reasons, given));
        }
        let bytes: Vec<u64> = kernel.arguments().iter().map(|argument| bytes(argument, items)).collect();
        let written = kernel.arguments().iter().filter(|argument| argument.access().writes());
        let own = written.map(|argument| argument.buffer().len() as f64).sum::<f64>() / OWN_BYTES_PER_SECOND;
        let hauls: Vec<Haul> =
            devices.iter().map(|&device| Haul { own, ..haul(setup, kernel, &bytes, device) }).collect();
        let name = |(&device, haul): (&DeviceId, &Haul)| {
            knowledge::name_of(&setup.platform, device, haul.is_in_place)
        };
        let names: Vec<String> = devices.iter().zip(&hauls).map(name).collect();
        let mut candidates = Vec::with_capacity(devices.len());
        let desc = |device: DeviceId| &setup.platform.devices()[usize::from(device.0)];
        let is_on_cores = |device: DeviceId| desc(device).kind == DeviceKind::Cpu;
        for ((name, haul), &device) in names.iter().zip(&hauls).zip(&devices) {
            let part = f64::from(desc(device).units) / f64::from(setup.cores);
            let is_near = !haul.is_host && is_on_cores(device) && haul.is_in_place;
            let is_comparable = !haul.is_host && is_on_cores(device) && haul.can_be_tried(kernel, device);
            candidates.push(Candidate {
                name,
                freight: if is_comparable { haul.compared(items) } else { haul.freight(items) },
                alone: haul.alone(items),
                is_host: haul.is_host,
                is_near,
                part_of_cores: if is_on_cores(device) { part } else { 0.0 },
                is_comparable,
                model: first_twin(&setup.platform, &devices, device),
            });
        }
        let selection = setup.knowledge.decide(kernel.name(), items, &candidates);
        let Selection { members, estimates, kernels, by_twins, latencies, mut reasons, opens } = selection;
        debug_assert!(members.iter().zip(&reasons).all(|(member, reason)| *member == reason.is_none()));
        if kernel.is_undivided() {
            let has_failed = |name: &String| setup.knowledge.has_failed((kernel.name(), items), name);
            let failed: Vec<bool> = names.iter().map(has_failed).collect();
            let chosen = undivided::choose(setup, kernel, items, &devices, &estimates, &failed);
            let priors = vec![None; devices.len()];
            let left_out = |index| Some(Reason::Undivided).filter(|_| index != chosen);
            let reasons = (0..devices.len()).map(left_out).collect();
            return Ok(Self { names, hauls, ..Self::unlearned(devices, reasons, priors) });
        }
        let rivals = rivals(&candidates, &members, &estimates, opens);
        let others = members.iter().filter(|member| **member).count() - rivals.len();
        let rival = rivals.iter().copied().find(|&rival| candidates[rival].is_comparable);
        let rival = rival.filter(|_| others == 1 && opens.is_some());
        for &left_out in rivals.iter().filter(|&&index| rival != Some(index)) {
            reasons[left_out] = Some(Reason::SameCores);
        }
        let measured = |estimate: Estimate, launch: f64| {
            Prior::measured(estimate.rate, Duration::try_from_secs_f64(launch).unwrap_or_default())
        };
        let launches = latencies.iter().zip(&hauls).map(|(&latency, haul)| haul.launch(latency));
        let known =
            estimates.into_iter().zip(launches).zip(&by_twins).map(|((estimate, launch), by_twin)| {
                // What a twin has shown is what to expect, and no more.
                let prior = |known: Estimate| {
                    if *by_twin { Prior::of_power(known.rate) } else { measured(known, launch) }
                };
                estimate.map(prior)
            });
        let priors: Vec<Option<Prior>> = known.zip(given).map(|(known, given)| known.or(given)).collect();
        let on_host = bytes.iter().sum::<u64>() as f64 / MOST_BYTES_PER_SECOND;
        let hauled = hauls.iter().map(|haul| haul.inward.max(haul.outward)).fold(0.0, f64::max);
        let is_large = on_host > 2.0 * DEVICE_SETUP_SECONDS && hauled < on_host;
        let models: Vec<Option<usize>> = candidates
            .iter()
            .zip(&reasons)
            .filter(|(_, reason)| reason.is_none())
            .map(|(candidate, _)| candidate.model)
            .collect();
        let are_twins = models.len() > 1 && models.iter().all(|model| model.is_some() && *model == models[0]);
        let begins = |first: usize| {
            // Powers that were given count where nothing is known.
            hauls[first].is_host || setup.powers.is_none()
        };
        let is_by_twin = |&index: &usize| reasons[index].is_none() && by_twins[index];
        let is_known = |&index: &usize| reasons[index].is_none() && !by_twins[index];
        let opens = match opens {
            Some(first) => Some(first).filter(|&first| begins(first)),
            // Whoever is known begins, for those of which only that is known.
            None if are_twins && (0..devices.len()).any(|index| is_by_twin(&index)) => {
                (0..devices.len()).find(is_known).filter(|&first| !hauls[first].is_host)
            }
            None => None,
        };
        let is_alone = opens.is_some_and(|first| is_alone(&candidates[first], are_twins));
        let is_large = is_large && rival.is_none() && !is_alone;
        let units = |index: usize| desc(devices[index]).units;
        let threads = opens.map_or(1, |first| u64::from(units(first)));
        let tries = opens.filter(|_| !is_large && !is_alone).and_then(|first| {
            let is_apart = |&index: &usize| {
                index != first
                    && reasons[index].is_none()
                    && !hauls[index].is_host
                    && !is_on_cores(devices[index])
                    && hauls[index].can_be_tried(kernel, devices[index])
            };
            // Of whom nothing is known first: what is known need not be found out.
            let is_known = |index: &usize| priors[*index].is_some_and(|prior| prior.trusted);
            let setup = |index: &usize| hauls[*index].freight(items).setup;
            let nearest = (0..devices.len())
                .filter(is_apart)
                .min_by(|a, b| is_known(a).cmp(&is_known(b)).then(setup(a).total_cmp(&setup(b))));
            nearest.map(|index| Tries {
                unit: UnitId(index),
                items: hauls[index].tried(items),
                after: hauls[index].tried_after(),
                takes: hauls[index].tried_takes(items),
            })
        });
        let is_twin = |tries: Tries, index: usize| {
            reasons[index].is_none() && candidates[index].is_twin_of(&candidates[tries.unit.0])
        };
        let twins = tries
            .map_or(Vec::new(), |tries| (0..devices.len()).filter(|&index| is_twin(tries, index)).collect());
        let twins = twins.into_iter().map(UnitId).collect();
        Ok(Self {
            devices,
            names,
            reasons,
            priors,
            kernels,
            opens,
            hauls,
            is_large,
            threads,
            tries,
            twins,
            are_twins,
            is_alone,
            rival,
        })
    }

    /// A lineup in which nothing is decided but who is left out.
    fn unlearned(devices: Vec<DeviceId>, reasons: Vec<Option<Reason>>, priors: Vec<Option<Prior>>) -> Self {
        Self {
            names: Vec::new(),
            reasons,
            kernels: vec![None; priors.len()],
            priors,
            opens: None,
            hauls: Vec::new(),
            is_large: false,
            threads: 1,
            tries: None,
            twins: Vec::new(),
            are_twins: false,
            is_alone: false,
            rival: None,
            devices,
        }
    }

    /// The unit that can be tried out in the run, if there is one.
    pub(crate) fn tried(&self, kernel: &Kernel, items: u64) -> Option<UnitId> {
        self.tries.map(|tries| tries.unit.0).or(self.rival)?;
        match self.plan(kernel, items) {
            Plan::Calibrated(Learned { opening: Some(Opens { tries, rival, .. }), .. }) => {
                tries.map(|tries| tries.unit).or(rival.map(|(unit, _)| unit))
            }
            _ => None,
        }
    }

    /// In how many parts a trial is, in a run of so many items.
    pub(crate) fn trial_parts(&self, items: u64) -> u64 {
        self.tries.map_or(1, |tries| self.hauls[tries.unit.0].parts(tries.items, items))
    }

    /// Whether a unit that takes part computes on the cores of the one that begins.
    pub(crate) fn has_rival(&self) -> bool {
        self.rival.is_some()
    }

    /// Who takes part from the start; nobody where one begins, and may call up the others.
    pub(crate) fn chosen(&self) -> Vec<DeviceId> {
        let members = self.devices.iter().zip(&self.reasons).filter(|(_, reason)| reason.is_none());
        members.filter(|_| self.opens.is_none()).map(|(device, _)| *device).collect()
    }

    /// What a device is called where runs are learned from. Empty without the policy that learns.
    pub(crate) fn name_of(&self, device: DeviceId) -> String {
        let names = self.devices.iter().zip(&self.names);
        names.filter(|(other, _)| **other == device).map(|(_, name)| name.clone()).next().unwrap_or_default()
    }

    /// The items per second that earlier runs promise of a device.
    pub(crate) fn known_rate(&self, index: usize) -> Option<f64> {
        self.priors[index].filter(|prior| prior.trusted).map(|prior| prior.rate)
    }

    /// The splitter of the run: the policy with what is known of the devices. Also what the policy is built from, and what it will
    /// have decided, if decisions are recorded.
    pub(crate) fn splitter(
        &self,
        setup: &Setup,
        kernel: &Kernel,
        items: u64,
    ) -> Result<(Splitter, Option<(Blueprint, Log)>), RunError> {
        let (units, local_size) = (self.devices.len(), kernel.grain());
        let powers = setup.powers.clone().unwrap_or_else(|| vec![1.0; units]);
        // This checks the powers, whatever the policy makes of them.
        setup.policy.build(&powers, items, local_size)?;
        let is_calibrated = decides(setup, kernel);
        let plan = if is_calibrated { self.plan(kernel, items) } else { Plan::Given(setup.policy, powers) };
        let name = |device: &DeviceId| setup.platform.devices()[usize::from(device.0)].name.to_string();
        let names = self.devices.iter().map(name).collect();
        let blueprint = Blueprint::new(items, local_size, names, plan);
        let (policy, log) = match (blueprint.build()?, setup.records) {
            (policy, false) => (policy, None),
            (policy, true) => {
                let (policy, log) = Recorded::new(policy);
                (Box::new(policy) as _, Some((blueprint, log)))
            }
        };
        let mut splitter = Splitter::new(policy, units, items, local_size)?;
        for index in 0..units {
            let waits = self.opens.is_some_and(|first| first != index) && !self.is_large;
            if is_calibrated && (self.reasons[index].is_some() || waits) {
                splitter.bench(UnitId(index));
            }
        }
        Ok((splitter, log))
    }

    /// What the policy of those who take part knows.
    fn plan(&self, kernel: &Kernel, items: u64) -> Plan {
        let members = || (0..self.devices.len()).filter(|&index| self.reasons[index].is_none());
        if let (Some(alone), 1) = (members().next(), members().count()) {
            return Plan::Packages(self.pieces(alone, items));
        }
        // By the time that a sample is done, so is the run.
        let is_few = self.opens.is_some() && items <= kernel.grain().saturating_mul(FEW_GROUPS);
        let undivided = is_few && !self.would_keep_others_out(items);
        if undivided && !self.could_be_replaced(items) {
            return Plan::Packages(1);
        }
        let overlapping = members().filter(|&index| !self.hauls[index].is_host).map(UnitId);
        let left_out = (0..self.devices.len()).filter(|&index| self.reasons[index].is_some()).map(UnitId);
        let freight = |index: usize| match self.priors[index] {
            Some(prior) if prior.trusted => {
                Freight { per_item: 1.0 / prior.rate, ..self.hauls[index].freight(items) }
            }
            _ => self.hauls[index].freight(items),
        };
        let are_known = || members().all(|index| self.priors[index].is_some_and(|prior| prior.trusted));
        // Of twins that are known as of others: all begin.
        let has_own_memory = |first: &usize| !self.hauls[*first].is_host;
        let begins_all = || members().next().filter(has_own_memory).filter(|_| self.are_twins && are_known());
        let opening = self.opens.or_else(begins_all).map(|first| {
            let is_alone = self.is_alone || self.opens.is_none();
            let others = members().filter(|&index| index != first && self.rival != Some(index));
            let others = others.map(|index| (UnitId(index), freight(index))).collect();
            let rival = self.rival.map(|index| (UnitId(index), self.hauls[index].compared(items)));
            Opens {
                first: UnitId(first),
                others,
                at_once: self.is_large || self.opens.is_none(),
                undivided,
                threads: if is_alone { 1 } else { self.threads },
                launch: if is_alone { 0.0 } else { self.hauls[first].launch(0.0) },
                packages: is_alone.then(|| match self.opens {
                    Some(_) => self.pieces(first, items),
                    None => self.shared_pieces(first, items, members().count() as u64),
                }),
                tries: self.tries,
                twins: self.twins.clone(),
                rival,
            }
        });
        Plan::Calibrated(Learned {
            priors: self.priors.clone(),
            overlapping: overlapping.collect(),
            left_out: left_out.collect(),
            opening,
        })
    }

    /// Returns whether an unknown device would stay out of this run and of all later ones, because the first device computes all
    /// of it in one package. Such a device cannot be tried out beside that package, and the run is too long to be given to it alone.
    fn would_keep_others_out(&self, items: u64) -> bool {
        let is_unknown = |&index: &usize| self.reasons[index].is_none() && self.priors[index].is_none();
        let is_other = |index: &usize| self.opens != Some(*index) && self.rival != Some(*index);
        let has_unknown = (0..self.devices.len()).filter(is_other).any(|index| is_unknown(&index));
        let rate = self.opens.and_then(|first| self.known_rate(first));
        self.tries.is_none() && has_unknown && rate.is_some_and(|rate| items as f64 / rate >= SHORT_SECONDS)
    }

    /// Whether it is known of the one who begins that another one, which can be tried out, would be done in its place.
    fn could_be_replaced(&self, items: u64) -> bool {
        let (Some(first), Some(tries)) = (self.opens, self.tries) else { return false };
        let known = self.priors[first].filter(|prior| prior.trusted);
        let freight = self.hauls[tries.unit.0].freight(items);
        known.is_some_and(|prior| freight.could_replace(items as f64, prior.rate))
    }

    /// In how many packages so many twins compute all items: each as if its part were all, and none takes longer than [`SHARED_SECONDS`], since they
    /// may differ.
    fn shared_pieces(&self, index: usize, items: u64, twins: u64) -> u64 {
        let part = items.div_ceil(twins);
        let rate = self.priors[index].map_or(f64::INFINITY, |prior| prior.rate);
        let least = (part as f64 / rate / SHARED_SECONDS).ceil();
        // The cast saturates.
        (self.pieces_of(index, items, part).max(least.min(MOST_PIECES) as u64)).saturating_mul(twins)
    }

    /// In how many packages a device computes all items alone. More of them let transfers overlap with computing, and each
    /// costs something.
    fn pieces(&self, index: usize, items: u64) -> u64 {
        self.pieces_of(index, items, items)
    }

    /// As [`pieces`](Self::pieces), of so many of the items.
    fn pieces_of(&self, index: usize, items: u64, part: u64) -> u64 {
        let Haul { inward, outward, is_host, .. } = self.hauls[index];
        if is_host {
            return 1;
        }
        let longest = inward.max(outward);
        let computing = match self.priors[index] {
            // The rate may be that of inputs that travel.
            Some(prior) if prior.trusted => items as f64 / self.kernels[index].unwrap_or(prior.rate),
            _ => longest,
        };
        let hidden =
            (inward + outward + computing - longest.max(computing)) * (part as f64 / items.max(1) as f64);
        let pieces = (hidden / PACKAGE_SECONDS).sqrt().clamp(1.0, MOST_PIECES);
        let saved = hidden * (1.0 - 1.0 / pieces) - PACKAGE_SECONDS * (pieces - 1.0);
        if saved > COLLECTOR_SECONDS { pieces as u64 } else { 1 }
    }
}

/// Whether it is decided who takes part, and learned from the run: by the policy, or of a kernel that one device computes.
pub(crate) fn decides(setup: &Setup, kernel: &Kernel) -> bool {
    setup.policy == PolicySpec::Calibrated || kernel.is_undivided()
}

/// Whether a device that begins computes as if it were alone: its packages are long, since a short one takes it as long.
fn is_alone(candidate: &Candidate<'_>, are_twins: bool) -> bool {
    !candidate.is_host && (are_twins || !candidate.is_near)
}

/// The first of the devices that are of one model with this one, if there are several. Of hardware that several of them are nobody knows what is left
/// for each.
fn first_twin(platform: &Platform, devices: &[DeviceId], device: DeviceId) -> Option<usize> {
    let desc = |device: DeviceId| &platform.devices()[usize::from(device.0)];
    let is_shared = |device: DeviceId| {
        let hardware = desc(device).hardware.as_ref();
        hardware.is_some()
            && devices.iter().any(|&other| other != device && desc(other).hardware.as_ref() == hardware)
    };
    let is_twin = |other: DeviceId| desc(other).is_twin_of(desc(device)) && !is_shared(other);
    let has_twin = !is_shared(device) && devices.iter().any(|&other| is_twin(other));
    devices.iter().position(|&other| other == device || is_twin(other)).filter(|_| has_twin)
}

/// The members that would compute on cores that other members have. If something is known of who begins, those of whom something is known were chosen
/// beside each other; they come first. Then comes who begins, then the others in their order.
fn rivals(
    candidates: &[Candidate<'_>],
    members: &[bool],
    estimates: &[Option<Estimate>],
    opens: Option<usize>,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..members.len()).filter(|&index| members[index]).collect();
    // Nobody was chosen beside one who begins and of whom nothing is known.
    let was_chosen =
        |index: usize| estimates[index].is_some() && opens.is_none_or(|first| estimates[first].is_some());
    order.sort_by_key(|&index| (!was_chosen(index), opens != Some(index)));
    let mut taken = 0.0;
    let mut is_rival = |&index: &usize| {
        let part = candidates[index].part_of_cores;
        let fits = part == 0.0 || taken == 0.0 || was_chosen(index) || knowledge::fits(taken + part);
        taken += if fits { part } else { 0.0 };
        !fits
    };
    order.into_iter().filter(|index| is_rival(index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dml_core::DeviceDesc;

    const DEVICE: Haul = Haul {
        whole: 2e-3,
        inward: 4e-3,
        outward: 3e-3,
        is_host: false,
        is_in_place: false,
        is_exclusive: false,
        own: 0.0,
    };

    fn lineup(haul: Haul, prior: Option<Prior>) -> Lineup {
        Lineup {
            devices: vec![DeviceId(0)],
            names: vec!["gpu".to_owned()],
            reasons: vec![None],
            priors: vec![prior],
            kernels: vec![None; 3],
            opens: None,
            hauls: vec![haul],
            is_large: false,
            threads: 1,
            tries: None,
            twins: Vec::new(),
            are_twins: false,
            is_alone: true,
            rival: None,
        }
    }

    /// What every package reads is there before the first one; of the two ways of an item, the longer one counts.
    #[test]
    fn a_stranger_costs_at_least_what_its_data_takes() {
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found}");
        let freight = DEVICE.freight(1000);
        near(freight.setup, 150e-6 + 2e-3);
        near(freight.per_item, 4e-6);
        let freight = Haul { outward: 5e-3, is_host: true, ..DEVICE }.freight(1000);
        near(freight.setup, 10e-6 + 2e-3);
        near(freight.per_item, 5e-6);
        // Alone, it hides neither way.
        let alone = DEVICE.alone(1000);
        near(alone.setup, 40e-6 + 2e-3);
        near(alone.per_item, 7e-6);
    }

    /// Alone, a device has as many packages as the root of the time that they hide, over what one costs.
    #[test]
    fn a_device_alone_has_the_more_packages_the_more_they_hide() {
        let alone = |haul, prior| lineup(haul, prior).pieces(0, 1000);
        let rate = |rate| Some(Prior::measured(rate, Duration::ZERO));
        assert_eq!(alone(Haul { is_host: true, ..DEVICE }, rate(1e5)), 1);
        // 4 ms in, 3 ms out and 10 ms of computing take 10 ms if everything overlaps.
        assert_eq!(alone(DEVICE, rate(1e5)), (7e-3_f64 / PACKAGE_SECONDS).sqrt() as u64);
        // Of a stranger nobody knows more than that it computes as long as its longest way.
        assert_eq!(alone(DEVICE, None), (7e-3_f64 / PACKAGE_SECONDS).sqrt() as u64);
        // 1 ms of computing is hidden, and so is the shorter way.
        assert_eq!(alone(DEVICE, rate(1e6)), (4e-3_f64 / PACKAGE_SECONDS).sqrt() as u64);
        // The rate was that of inputs, and the kernels took less.
        let fast = Lineup { kernels: vec![Some(1e6)], ..lineup(DEVICE, rate(2.5e5)) };
        assert_eq!(fast.pieces(0, 1000), (4e-3_f64 / PACKAGE_SECONDS).sqrt() as u64);
        // Another thread is worth its while from 225 us on, of which three packages hide two thirds at a cost of 50.
        let short = |outward| alone(Haul { inward: 0.0, outward, ..DEVICE }, rate(1e6));
        assert_eq!([150e-6, 220e-6, 230e-6].map(short), [1, 1, 3]);
        let guessed = Some(Prior::of_power(1e6));
        assert_eq!(alone(DEVICE, guessed), alone(DEVICE, None), "a power is no rate");
        assert_eq!(alone(Haul { inward: 4.0, outward: 3.0, ..DEVICE }, None), 16);
        assert_eq!(alone(Haul { inward: 0.0, outward: 0.0, ..DEVICE }, None), 1);
    }

    /// Of all items, unless what they move takes long: of results that travel for more than 2 ms, and of inputs, as many as travel for 0.5.
    #[test]
    fn a_trial_is_of_as_many_items_as_move_in_half_a_millisecond() {
        let tried = |inward, outward| Haul { inward, outward, ..DEVICE }.tried(1000);
        assert_eq!(tried(0.0, 0.0), 1000);
        assert_eq!((tried(0.0, 1.9e-3), tried(0.0, 2.5e-3), tried(0.0, 5e-3)), (1000, 200, 100));
        assert_eq!((tried(0.4e-3, 0.0), tried(1e-3, 0.0), tried(4e-3, 2.5e-3)), (1000, 500, 125));
        assert_eq!(tried(10.0, 0.0), 1, "one at least");
        // 150 us to begin, 2 ms for what every package reads, and the inputs of its part.
        let takes = |inward, outward| (Haul { inward, outward, ..DEVICE }.tried_takes(1000) * 1e6).round();
        assert_eq!((takes(0.0, 5e-3), takes(0.4e-3, 1e-3), takes(4e-3, 2.5e-3)), (2150.0, 2550.0, 2650.0));
        let after = |haul: Haul| (haul.tried_after() * 1e6).round();
        assert_eq!((after(DEVICE), after(Haul { outward: 6e-3, ..DEVICE })), (1500.0, 2000.0));
    }

    #[test]
    fn a_trial_has_a_part_for_each_tenth_of_a_millisecond_that_its_results_travel() {
        let parts = |outward, tried| Haul { outward, ..DEVICE }.parts(tried, 1000);
        assert_eq!(
            [0.0, 0.19e-3, 0.21e-3, 0.55e-3, 0.65e-3, 1.0].map(|outward| parts(outward, 1000)),
            [1, 1, 2, 5, 6, 6]
        );
        assert_eq!([parts(5e-3, 100), parts(5e-3, 61), parts(0.31e-3, 5000)], [5, 3, 3]);
    }

    /// Memory for a trial's results is made on the cores of the one that computes: that is to be a tenth of the run.
    #[test]
    fn who_is_compared_needs_a_run_ten_times_as_long_as_its_memory_takes() {
        let haul = Haul { own: 3e-3, ..DEVICE };
        let [compared, freight] = [haul.compared(1000), haul.freight(1000)];
        assert!((compared.setup - freight.setup - 30e-3).abs() < 1e-12, "{compared:?}");
        // There and back, on the cores that compute.
        assert!((compared.per_item - 7e-6).abs() < 1e-15, "{compared:?}");
    }

    /// Devices by the part of the cores that each has, and those of which something is known; the second one begins.
    #[test]
    fn who_was_chosen_has_its_cores_first_then_who_begins() {
        let rivals = |parts: &[f64], known: &[usize], members: &[bool]| {
            let candidates: Vec<Candidate<'_>> = (parts.iter())
                .map(|&part_of_cores| Candidate {
                    name: "",
                    freight: DEVICE.freight(1000),
                    alone: DEVICE.alone(1000),
                    is_host: false,
                    part_of_cores,
                    is_near: false,
                    is_comparable: true,
                    model: None,
                })
                .collect();
            let estimate = Estimate { rate: 1e6, setup: Duration::ZERO };
            let estimates: Vec<_> =
                (0..parts.len()).map(|index| known.contains(&index).then_some(estimate)).collect();
            super::rivals(&candidates, members, &estimates, Some(1))
        };
        assert!(rivals(&[0.5, 0.5], &[], &[true; 2]).is_empty(), "both fit");
        assert_eq!(rivals(&[1.0, 1.0], &[], &[true; 2]), [0], "who begins has its cores");
        assert_eq!(rivals(&[1.0, 1.0], &[0], &[true; 2]), [0], "and if something is known of another alone");
        assert_eq!(rivals(&[0.5, 0.6, 0.5], &[0, 1], &[true; 3]), [2], "who is chosen has its cores first");
        assert_eq!(rivals(&[1.0, 1.0, 0.5], &[0, 1], &[true; 3]), [2], "these were chosen together");
        assert_eq!(rivals(&[1.0, 1.0, 0.0], &[], &[true; 3]), [0], "a GPU needs none");
        assert_eq!(rivals(&[1.0, 1.0, 0.5], &[], &[true, false, true]), [2], "who is out takes none");
        assert_eq!(
            rivals(&[0.5, 2.0, 0.5], &[], &[true; 3]),
            [0, 2],
            "nobody fits beside one with more than all"
        );
    }

    #[test]
    fn only_what_earlier_runs_showed_is_a_known_rate() {
        assert_eq!(lineup(DEVICE, Some(Prior::measured(3e6, Duration::ZERO))).known_rate(0), Some(3e6));
        assert_eq!(lineup(DEVICE, Some(Prior::of_power(3e6))).known_rate(0), None);
        assert_eq!(lineup(DEVICE, None).known_rate(0), None);
        let lineup = lineup(DEVICE, None);
        assert_eq!([DeviceId(0), DeviceId(1)].map(|device| lineup.name_of(device)), ["gpu", ""]);
    }

    #[test]
    fn twins_are_named_by_the_first_of_them() {
        let mut builder = Platform::builder();
        for (name, model) in [("a", "one"), ("b", "other"), ("c", "one"), ("d", "third"), ("e", "one")] {
            builder.add_device(DeviceDesc::new(name, DeviceKind::Gpu).with_model(model));
        }
        let platform = builder.build().unwrap();
        let first = |devices: &[u16]| {
            let devices: Vec<DeviceId> = devices.iter().copied().map(DeviceId).collect();
            devices.iter().map(|&device| first_twin(&platform, &devices, device)).collect::<Vec<_>>()
        };
        assert_eq!(first(&[0, 1, 2, 3, 4]), [Some(0), None, Some(0), None, Some(0)]);
        assert_eq!(first(&[1, 4, 2]), [None, Some(1), Some(1)]);
        assert_eq!(first(&[1, 2, 3]), [None; 3], "its twin takes no part");
    }

    #[test]
    fn one_piece_of_hardware_by_two_frameworks_is_nobodys_twin() {
        for order in [[0, 1, 2, 3], [1, 0, 3, 2], [1, 2, 3, 0]] {
            let all = [("cuda:1", "pci 2"), ("cuda:0", "pci 1"), ("opencl:0", "pci 1"), ("cuda:2", "pci 3")];
            let mut builder = Platform::builder();
            for (name, hardware) in order.map(|index: usize| all[index]) {
                let desc = DeviceDesc::new(name, DeviceKind::Gpu).with_model("one").with_hardware(hardware);
                builder.add_device(desc);
            }
            let platform = builder.build().unwrap();
            let devices = [0, 1, 2, 3].map(DeviceId);
            let models = devices.map(|device| first_twin(&platform, &devices, device));
            for (index, model) in order.into_iter().zip(models) {
                assert_eq!(model.is_some(), [0, 3].contains(&index), "{order:?}: {models:?}");
            }
            // Without the last one nobody is left that the first could be of one model with.
            let three: Vec<DeviceId> = devices
                .into_iter()
                .zip(order)
                .filter(|(_, index)| *index < 3)
                .map(|(device, _)| device)
                .collect();
            assert!(three.iter().all(|&device| first_twin(&platform, &three, device).is_none()), "{order:?}");
        }
    }

    /// Who may be called up later is not tried by being there.
    #[test]
    fn those_who_begin_are_chosen() {
        let three = |opens| {
            let devices = [3, 1, 2].map(DeviceId).to_vec();
            let reasons = vec![None, Some(Reason::Trial), None];
            Lineup { devices, reasons, opens, ..lineup(DEVICE, None) }.chosen()
        };
        assert_eq!(three(None), [3, 2].map(DeviceId));
        assert_eq!(three(Some(0)), []);
    }

    #[test]
    fn no_package_of_a_known_device_is_thought_to_cost_nothing() {
        let host = Haul { is_host: true, ..DEVICE };
        assert_eq!(host.launch(0.0), 0.0);
        assert_eq!(host.launch(1e-5), 1e-5);
        assert_eq!(DEVICE.launch(0.0), PACKAGE_SECONDS);
        assert_eq!(DEVICE.launch(2e-3), 2e-3, "its latency is more");
    }

    /// Each of two twins has as many packages as if its half were all; long ones are divided, since items differ.
    #[test]
    fn twins_that_are_known_share_equal_packages() {
        let known = |rate| Some(Prior::measured(rate, Duration::ZERO));
        let pieces = |haul, rate, twins| lineup(haul, known(rate)).shared_pieces(0, 1000, twins);
        // 7 ms are hidden of what takes 10 alone (as above), so 3.5 in each half.
        assert_eq!(pieces(DEVICE, 1e5, 2), 2 * (3.5e-3_f64 / PACKAGE_SECONDS).sqrt() as u64);
        let resident = Haul { inward: 0.0, outward: 0.0, ..DEVICE };
        assert_eq!(pieces(resident, 1e5, 2), 2);
        assert_eq!(pieces(resident, 2e4, 2), 2, "25 ms in each");
        assert_eq!(pieces(resident, 1e4, 2), 2 * 2, "50 ms in each, of which none is longer than 30");
        assert_eq!(pieces(resident, 8e3, 2), 2 * 3, "62.5 ms in each");
        assert_eq!(pieces(resident, 1.0, 4), 4 * 16);
        assert_eq!(pieces(resident, f64::MIN_POSITIVE, 2), 2 * 16);
    }

    /// Two GPUs, or a host and a GPU, of which this is known.
    #[test]
    fn all_begin_where_twins_are_known_and_else_the_first() {
        let plan = |are_twins, opens, priors: [Option<Prior>; 2], is_host| {
            let hauls = vec![Haul { is_host, ..DEVICE }, DEVICE];
            let (devices, reasons) = ([0, 1].map(DeviceId).to_vec(), vec![None; 2]);
            let two = Lineup {
                devices,
                reasons,
                opens,
                hauls,
                are_twins,
                is_alone: !is_host,
                priors: priors.to_vec(),
                ..lineup(DEVICE, None)
            };
            match two.plan(&Kernel::new("kernel", 1), 1000) {
                Plan::Calibrated(learned) => {
                    learned.opening.map(|Opens { first, at_once, packages, .. }| (first.0, at_once, packages))
                }
                other => panic!("{other:?}"),
            }
        };
        let known = || [Some(Prior::measured(1e5, Duration::ZERO)); 2];
        assert_eq!(plan(true, None, known(), false), Some((0, true, Some(22))));
        assert_eq!(plan(false, None, known(), false), None, "of different models");
        assert_eq!(plan(true, None, [known()[0], None], false), None);
        assert_eq!(plan(true, None, [Some(Prior::of_power(1.0)); 2], false), None);
        assert_eq!(plan(true, None, known(), true), None, "they work in the host's memory");
        assert_eq!(plan(true, Some(0), [None; 2], false), Some((0, false, Some(16))));
        assert_eq!(plan(false, Some(0), [None; 2], true), Some((0, false, None)));
    }

    /// Who cannot be tried out is called up in a run of 5 ms or more, which is too long for trying it alone.
    #[test]
    fn one_package_does_not_keep_an_unknown_device_out_for_good() {
        let plan = |seconds: f64, other: Option<Prior>, tries, rival| {
            let hauls = vec![Haul { is_host: true, ..DEVICE }, DEVICE];
            let (devices, reasons, opens) = ([0, 1].map(DeviceId).to_vec(), vec![None; 2], Some(0));
            let priors = vec![Some(Prior::measured(8.0 / seconds, Duration::ZERO)), other];
            let two = Lineup { devices, reasons, opens, hauls, priors, tries, rival, ..lineup(DEVICE, None) };
            match two.plan(&Kernel::new("kernel", 1), 8) {
                Plan::Packages(packages) => Err(packages),
                Plan::Calibrated(Learned { opening: Some(opening), .. }) => Ok(opening.undivided),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(plan(5.01e-3, None, None, None), Ok(false));
        assert_eq!(plan(4.99e-3, None, None, None), Err(1), "it is tried alone");
        assert_eq!(plan(1.0, Some(Prior::measured(1e9, Duration::ZERO)), None, None), Err(1), "it is known");
        assert_eq!(plan(1.0, None, None, Some(1)), Err(1), "it is compared in turns");
        let tries = Some(Tries { unit: UnitId(1), items: 8, after: 0.0, takes: 0.0 });
        assert_eq!(plan(1.0, None, tries, None), Ok(true), "it is tried out beside the package");
    }

    /// A run of eight work-groups is one package of the host. Another device is tried out beside it if it is known that it would be done before: in 0.6 of the
    /// host's time at the most.
    #[test]
    fn few_work_groups_are_one_package() {
        let plan = |prior, tries, items| {
            let hauls = vec![Haul { is_host: true, ..DEVICE }, DEVICE];
            let (devices, reasons, opens) = ([0, 1].map(DeviceId).to_vec(), vec![None; 2], Some(0));
            let priors = vec![prior, Some(Prior::measured(1e9, Duration::ZERO))];
            let two = Lineup { devices, reasons, opens, hauls, priors, tries, ..lineup(DEVICE, None) };
            match two.plan(&Kernel::new("kernel", 1), items) {
                Plan::Packages(packages) => Err(packages),
                Plan::Calibrated(Learned { opening: Some(opening), .. }) => Ok(opening.undivided),
                other => panic!("{other:?}"),
            }
        };
        let measured = |seconds: f64| Some(Prior::measured(8.0 / seconds, Duration::ZERO));
        let tries = Some(Tries { unit: UnitId(1), items: 8, after: 0.0, takes: 0.0 });
        // To begin takes the device 150 us, 2 ms for what every package reads and 4 for its items.
        assert_eq!(plan(measured(10.3e-3), tries, 8), Ok(true));
        assert_eq!(plan(measured(10.2e-3), tries, 8), Err(1));
        assert_eq!(plan(measured(1.0), None, 8), Err(1), "nobody can be tried out");
        assert_eq!(plan(Some(Prior::of_power(8.0)), tries, 8), Err(1), "a power is no rate");
        assert_eq!(plan(None, tries, 8), Err(1));
        assert_eq!((plan(None, tries, 9), plan(measured(1.0), tries, 9)), (Ok(false), Ok(false)));
    }
}
