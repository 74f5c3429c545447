//! Selects the devices with the earliest predicted end of a run, and the unmeasured devices worth exploring.
//!
//! ```text
//!   end of a device with n items = (transfers + computing n items) * slowdown beside each other member
//!   end of a set                 = all members end at once, each with its share
//!   selected                     = earliest expected end; of nearly equal sets, the smallest
//!   occasional alternative       = a set with an earlier lower bound, if its extra time fits the budget
//!   explored within the run      = an unmeasured device that at its best would shorten the run
//! ```

use super::moving::Moving;
use crate::base::package::UnitId;
use crate::model::{DeviceModel, EXPLORES, Interval, KEPT, Width};
use crate::policy::{CALLING_SECONDS, CAUTION, Explorer};
use crate::report::Reason;

/// Minimum share of a run's time that an additional device must save. Predictions err by as much.
/// (`cargo xtask policies`, table of 1 to 4 devices)
const LEAST_GAIN: f64 = 0.04;
/// Number of packages of a device that shares a run: its first half, a quarter, and the rest.
const SHARED_PACKAGES: f64 = 3.0;
/// Startup cost of a further thread, in seconds: the thread of a non-host device, with a launch and a wait,
/// or a thread that collects results.
pub(super) const THREAD_SECONDS: f64 = 100e-6;
/// Maximum number of rounds that adjust a set's shares to its members' speeds.
const ADJUSTMENTS: usize = 6;
/// Maximum number of devices whose sets are all considered; of more devices, only the fastest form sets.
const MOST_IN_SETS: usize = 6;

/// A device that could take part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// Performance model of the device, or else of a twin.
    pub(super) model: Option<&'a DeviceModel>,
    pub(super) name: &'a str,
    /// First of the candidates that are the same hardware model, if there are several.
    pub(super) twin: Option<usize>,
    pub(super) moving: Moving,
    /// Number of packages of a run on this device alone.
    pub(super) packages: f64,
    /// Share of the processor's cores that it computes on; 0 for a device with its own units.
    pub(super) part_of_cores: f64,
    /// The device's parallelism.
    pub(super) width: Width,
    /// Number of items that a GPU computes in the time of one; 0 for another device.
    pub(super) latent: u64,
    /// Whether the last run on the device failed.
    pub(super) has_failed: bool,
}

impl Candidate<'_> {
    fn is_measured(&self) -> bool {
        self.model.is_some_and(DeviceModel::is_measured)
    }

    /// Returns the minimum time until the device begins to compute, in seconds.
    fn setup(&self) -> f64 {
        let begins = if self.moving.is_host { 0.0 } else { THREAD_SECONDS };
        begins + self.moving.whole.seconds
    }
}

/// The devices that are selected for a run.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    /// Devices that take part from the start; empty if no device is known.
    pub(super) members: Vec<usize>,
    /// Devices that are explored.
    pub(super) explorers: Vec<Explorer>,
    /// Expected duration with the members, in seconds.
    pub(super) seconds: f64,
    /// Expected duration with the best set, in seconds; less than `seconds` if another set is explored.
    pub(super) best_seconds: f64,
    /// The share of each member.
    pub(super) shares: Vec<Share>,
    /// Why each device is left out; `None` if it is not.
    pub(super) reasons: Vec<Option<Reason>>,
}

/// A member's share of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    pub(super) items: f64,
    /// Compute time without transfers, in seconds.
    pub(super) computing: f64,
}

/// The candidates for a run, and its exploration budget.
pub(super) struct Choice<'a> {
    pub(super) items: f64,
    /// Number of work-groups of these items.
    pub(super) groups: u64,
    pub(super) candidates: &'a [Candidate<'a>],
    /// Exploration budget, in seconds.
    pub(super) credit: f64,
    /// Whether one device computes all items.
    pub(super) is_undivided: bool,
}

/// A set of candidates with its predicted end.
#[derive(Clone, Debug)]
struct Set {
    members: Vec<usize>,
    end: Interval,
    shares: Vec<Share>,
}

impl Choice<'_> {
    pub(super) fn select(&self) -> Selection {
        let mut sets = self.sets();
        sets.sort_by(|one, other| one.end.expected.total_cmp(&other.end.expected));
        let Some(fastest) = sets.first() else { return self.unknown() };
        // Of the sets that are about as fast, the one with the fewest devices.
        let most = fastest.end.expected * (1.0 + LEAST_GAIN);
        let about = sets.iter().filter(|set| set.end.expected <= most);
        let best = about.min_by_key(|set| set.members.len()).unwrap_or(fastest);
        let chosen = self.alternative(&sets, best).unwrap_or(best).clone();
        let is_best = chosen.members == best.members && !self.is_undivided;
        let explorers = if is_best { self.explorers(&chosen) } else { Vec::new() };
        // Too few work-groups to share all go to one explorer.
        let alone = explorers.iter().find(|explorer| explorer.is_for_later && self.groups < CAUTION);
        if let Some(Explorer { unit: UnitId(alone), .. }) = alone {
            let reason = |index| (index != *alone).then_some(Reason::Trial);
            return Selection {
                members: vec![*alone],
                explorers: Vec::new(),
                seconds: f64::MAX,
                best_seconds: best.end.expected,
                shares: Vec::new(),
                reasons: (0..self.candidates.len()).map(reason).collect(),
            };
        }
        let reasons = self.reasons(&chosen, &explorers, &sets);
        Selection {
            members: chosen.members,
            explorers,
            seconds: chosen.end.expected,
            best_seconds: best.end.expected,
            shares: chosen.shares,
            reasons,
        }
    }

    /// Returns a selection that explores all devices, because no usable device is measured.
    fn unknown(&self) -> Selection {
        let explorers = (0..self.candidates.len()).map(|index| self.explorer(index, &[])).collect();
        Selection {
            members: Vec::new(),
            explorers,
            seconds: f64::MAX,
            best_seconds: f64::MAX,
            shares: Vec::new(),
            reasons: vec![None; self.candidates.len()],
        }
    }

    /// Returns all sets of measured devices that could be the best.
    fn sets(&self) -> Vec<Set> {
        let measured =
            |index: &usize| self.candidates[*index].is_measured() && !self.candidates[*index].has_failed;
        let mut alone: Vec<Set> =
            (0..self.candidates.len()).filter(measured).filter_map(|index| self.set(vec![index])).collect();
        alone.sort_by(|one, other| one.end.expected.total_cmp(&other.end.expected));
        let Some(best) = alone.first().map(|set| set.end.expected) else { return alone };
        // A device does not help if it begins after the best one ends.
        let helps = |set: &&Set| self.least_end(set.members[0]) < best;
        let some: Vec<usize> =
            alone.iter().filter(helps).map(|set| set.members[0]).take(MOST_IN_SETS).collect();
        let mut sets = alone;
        if self.is_undivided || some.len() < 2 {
            return sets;
        }
        let begun: Vec<Set> = sets.iter().filter(|set| some.contains(&set.members[0])).cloned().collect();
        begun
            .iter()
            .zip(1..)
            .for_each(|(set, next)| self.extend(set, &some[next.min(some.len())..], &mut sets));
        sets
    }

    /// Adds one further device at a time to a set, and extends each larger set that is faster.
    fn extend(&self, set: &Set, others: &[usize], sets: &mut Vec<Set>) {
        for (place, other) in others.iter().enumerate() {
            let mut members = set.members.clone();
            members.push(*other);
            members.sort_unstable();
            if let Some(larger) = self.fit(&members).then(|| self.set(members)).flatten() {
                if larger.end.expected < set.end.expected {
                    self.extend(&larger, &others[place + 1..], sets);
                }
                sets.push(larger);
            }
        }
    }

    /// Returns whether the devices have enough cores to compute at the same time.
    fn fit(&self, members: &[usize]) -> bool {
        let parts = members.iter().map(|&index| self.candidates[index].part_of_cores);
        let parts: Vec<f64> = parts.filter(|part| *part > 0.0).collect();
        parts.len() < 2 || parts.iter().sum::<f64>() < 1.0 + 1e-9
    }

    /// Returns the lower bound of the time until a device's first item is computed, in seconds.
    fn least_end(&self, index: usize) -> f64 {
        let candidate = &self.candidates[index];
        let Some(model) = candidate.model else { return candidate.setup() };
        let moving = model.moving(candidate.moving.whole.bytes, candidate.moving.per_byte());
        let computing = model.computing(1.0, 1.0, candidate.width);
        moving.zip(computing).map_or(0.0, |(moving, computing)| moving.least + computing.least)
    }

    /// Returns the times of a device for `items` items beside the other members: computing only, and in
    /// total.
    fn end_of(&self, index: usize, items: f64, members: &[usize]) -> Option<(f64, Interval)> {
        let Candidate { model, moving, packages, width, .. } = &self.candidates[index];
        let model = (*model)?;
        let part = items / self.items;
        let bytes = moving.whole.bytes + (moving.inward.bytes + moving.outward.bytes) * part;
        if let [_] = members {
            let end = model.alone(items, *packages, bytes, moving.per_byte(), *width)?;
            let computing = model.computing(items, *packages, *width)?;
            return Some((computing.expected, end));
        }
        let computing = model.computing(items, packages.max(SHARED_PACKAGES), *width)?;
        let moving = model.moving(bytes, moving.per_byte()).unwrap_or(Interval::ZERO);
        let mut end = computing.plus(moving);
        let mut slower = 1.0;
        for other in members.iter().filter(|other| **other != index) {
            match model.slowdown(self.candidates[*other].name, items) {
                Some(slowdown) => {
                    end = end.times(slowdown);
                    slower *= slowdown;
                }
                // Their mutual slowdown is unknown.
                None => end.most *= 2.0,
            }
        }
        Some((computing.expected * slower, end))
    }

    /// Returns a set with the shares that let all members end at once; `None` if a share is less than one
    /// item.
    fn set(&self, members: Vec<usize>) -> Option<Set> {
        let mut parts = vec![self.items / members.len() as f64; members.len()];
        let mut ends = Vec::new();
        for _ in 0..ADJUSTMENTS {
            ends = members
                .iter()
                .zip(&parts)
                .map(|(&index, &items)| self.end_of(index, items, &members))
                .collect::<Option<Vec<_>>>()?;
            let all = |of: fn(f64, f64) -> f64, from| ends.iter().map(|(_, end)| end.expected).fold(from, of);
            if all(f64::max, 0.0) <= all(f64::min, f64::MAX) * (1.0 + LEAST_GAIN / 2.0) {
                break;
            }
            let rates: Vec<f64> =
                parts.iter().zip(&ends).map(|(items, (_, end))| items / end.expected.max(1e-12)).collect();
            let sum: f64 = rates.iter().sum();
            // A device that spends its time on starting up gets less in each round.
            parts = rates.iter().map(|rate| self.items * rate / sum).collect();
            if parts.iter().any(|items| *items < 1.0) {
                return None;
            }
        }
        let most = |of: fn(&Interval) -> f64| ends.iter().map(|(_, end)| of(end)).fold(0.0, f64::max);
        let end = Interval {
            least: most(|end| end.least),
            expected: most(|end| end.expected),
            most: most(|end| end.most),
        };
        let shares =
            parts.iter().zip(&ends).map(|(&items, &(computing, _))| Share { items, computing }).collect();
        Some(Set { members, end, shares })
    }

    /// Returns a set that may be faster than the best one, at an expected extra cost within the budget.
    ///
    /// The best set itself is run first.
    fn alternative<'a>(&self, sets: &'a [Set], best: &Set) -> Option<&'a Set> {
        if self.times(best) == 0 {
            return None;
        }
        let may_be = sets.iter().filter(|set| {
            let costs = set.end.expected - best.end.expected;
            set.members != best.members
                && set.end.least < best.end.expected * (1.0 - LEAST_GAIN)
                && costs < self.credit + EXPLORES * best.end.expected
                && self.times(set) < if set.members.len() > 1 { 1 } else { KEPT }
        });
        may_be.min_by(|one, other| one.end.least.total_cmp(&other.end.least))
    }

    /// Returns the number of runs of about this size on a device alone; for a set, whether all mutual
    /// slowdowns are known.
    fn times(&self, set: &Set) -> usize {
        let model = |index: usize| self.candidates[index].model;
        if let [alone] = set.members[..] {
            return model(alone).map_or(0, |model| model.runs_alone(self.items));
        }
        let is_known = set.members.iter().all(|&index| {
            let mut others = set.members.iter().filter(|other| **other != index);
            others.all(|other| {
                let name = self.candidates[*other].name;
                model(index).is_some_and(|model| model.slowdown(name, self.items).is_some())
            })
        });
        usize::from(is_known)
    }

    /// Returns the unmeasured devices that could shorten this run of the members, or a later run.
    ///
    /// The budget must cover the time by which their startup may lengthen the run.
    fn explorers(&self, set: &Set) -> Vec<Explorer> {
        let seconds = set.end.expected;
        let is_open =
            |index: &usize| !self.candidates[*index].is_measured() && !self.candidates[*index].has_failed;
        let explorer = |index: usize| {
            let candidate = &self.candidates[index];
            let explorer = self.explorer(index, &set.members);
            // A cold start keeps the driver and the cores busy. That costs time if members use the same
            // cores.
            let cold = candidate.model.and_then(|model| model.computing(1.0, 1.0, candidate.width));
            let cold = cold.filter(|_| !explorer.turns_with.is_empty()).map_or(0.0, |cold| cold.expected);
            let costs = CALLING_SECONDS + cold;
            if explorer.could_help(self.items, seconds) {
                return (costs < self.credit + EXPLORES * seconds).then_some(explorer);
            }
            let moves = explorer.per_item * self.items / CAUTION as f64;
            let is_paid = explorer.turns_with.is_empty() && costs + candidate.setup() + moves < self.credit;
            is_paid.then_some(Explorer { is_for_later: true, ..explorer })
        };
        (0..self.candidates.len()).filter(is_open).filter_map(explorer).collect()
    }

    fn explorer(&self, index: usize, members: &[usize]) -> Explorer {
        let candidate = &self.candidates[index];
        let turns = members.iter().filter(|member| !self.fit(&[**member, index]));
        let twin = candidate.twin.filter(|twin| *twin != index);
        Explorer {
            unit: UnitId(index),
            setup: candidate.setup(),
            per_item: candidate.moving.per_item(self.items as u64),
            fills: candidate.latent,
            turns_with: turns.map(|member| UnitId(*member)).collect(),
            is_for_later: false,
            twin: twin.map(UnitId),
        }
    }

    fn reasons(&self, chosen: &Set, explorers: &[Explorer], sets: &[Set]) -> Vec<Option<Reason>> {
        let seconds = chosen.end.expected;
        let reason = |index: usize| {
            let is_in =
                chosen.members.contains(&index) || explorers.iter().any(|explorer| explorer.unit.0 == index);
            if is_in {
                return None;
            }
            if self.is_undivided {
                return Some(Reason::Undivided);
            }
            let with_it = sets.iter().filter(|set| set.members.contains(&index)).map(|set| set.end.expected);
            let setup_seconds = self.least_end(index);
            let is_beside = chosen.members.iter().all(|member| self.fit(&[*member, index]));
            Some(match with_it.reduce(f64::min) {
                _ if setup_seconds >= seconds => Reason::SetUp { setup_seconds, others_seconds: seconds },
                Some(with_it_seconds) if is_beside || with_it_seconds > seconds => {
                    Reason::Slower { seconds, with_it_seconds }
                }
                _ if !is_beside => Reason::SameCores,
                _ => Reason::Unknown { others_seconds: seconds },
            })
        };
        (0..self.candidates.len()).map(reason).collect()
    }
}

#[cfg(test)]
mod tests;
