//! The set of devices that is expected to end a run first, and which others are worth exploring.
//!
//! ```text
//!   end of a device with n items    = (moving its bytes + computing n items) * slowdown beside each other member
//!   end of a set                    = all members end at once, each with its part
//!   chosen                          = the least expected end; of two that are about equal, the one with fewer devices
//!   instead, now and then           = a set whose least end is before that, if its expected end costs no more than the credit
//!   explored within the run         = a device of which nothing is measured, if at its best it would shorten the run
//! ```

use super::moving::Moving;
use crate::base::package::UnitId;
use crate::model::{DeviceModel, EXPLORES, Interval, KEPT, Width};
use crate::policy::{CALLING_SECONDS, CAUTION, Explorer};
use crate::report::Reason;

/// The part of a run that a further device has to save: predictions err by as much. (`cargo xtask policies`, table of 1 to 4 devices)
const LEAST_GAIN: f64 = 0.04;
/// The packages of a device that shares a run: its first half, a quarter, and the rest.
const SHARED_PACKAGES: f64 = 3.0;
/// The seconds that another thread takes to begin: that of a device other than the host, with a launch and a wait, and one that brings results.
pub(super) const THREAD_SECONDS: f64 = 100e-6;
/// How often the shares of a set are adjusted to its members' speeds.
const ADJUSTMENTS: usize = 6;
/// The most known devices of which every set is looked at; of more, sets of the fastest.
const MOST_IN_SETS: usize = 6;

/// A device that could take part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// What is known of it, or else of a twin.
    pub(super) model: Option<&'a DeviceModel>,
    pub(super) name: &'a str,
    /// The first candidate of its model, if there are several.
    pub(super) twin: Option<usize>,
    pub(super) moving: Moving,
    /// The packages of a run of this device alone.
    pub(super) packages: f64,
    /// Which part of the processor's cores it computes on; 0 for what has units of its own.
    pub(super) part_of_cores: f64,
    /// How many items it computes side by side, and how many a GPU computes in the time of one.
    pub(super) width: Width,
    pub(super) latent: u64,
    /// Whether the last run there failed.
    pub(super) has_failed: bool,
}

impl Candidate<'_> {
    fn is_measured(&self) -> bool {
        self.model.is_some_and(DeviceModel::is_measured)
    }

    /// The seconds that it takes at least to begin.
    fn setup(&self) -> f64 {
        let begins = if self.moving.is_host { 0.0 } else { THREAD_SECONDS };
        begins + self.moving.whole.seconds
    }
}

/// The devices of a run.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    /// Those that take part from the start; none if nothing is known of any.
    pub(super) members: Vec<usize>,
    /// Those that are explored.
    pub(super) explorers: Vec<Explorer>,
    /// What the members are expected to take, in seconds.
    pub(super) seconds: f64,
    /// What the best set is expected to take, which is less if another one is explored.
    pub(super) best_seconds: f64,
    /// What each member computes, and in what time.
    pub(super) shares: Vec<Share>,
    /// Why each device is left out.
    pub(super) reasons: Vec<Option<Reason>>,
}

/// What a member computes of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    pub(super) items: f64,
    /// The seconds that it computes, without moving.
    pub(super) computing: f64,
}

/// The devices that could compute some items, and what exploring may cost.
pub(super) struct Choice<'a> {
    pub(super) items: f64,
    /// The work-groups of these items.
    pub(super) groups: u64,
    pub(super) candidates: &'a [Candidate<'a>],
    pub(super) credit: f64,
    /// Whether one device computes all.
    pub(super) is_undivided: bool,
}

/// A set of candidates with what it is expected to take.
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
        // Of those about as fast, the one with the fewest devices.
        let most = fastest.end.expected * (1.0 + LEAST_GAIN);
        let about = sets.iter().filter(|set| set.end.expected <= most);
        let best = about.min_by_key(|set| set.members.len()).unwrap_or(fastest);
        let chosen = self.alternative(&sets, best).unwrap_or(best).clone();
        let is_best = chosen.members == best.members && !self.is_undivided;
        let explorers = if is_best { self.explorers(&chosen) } else { Vec::new() };
        // Too few work-groups to share are all an explorer's.
        let alone = explorers.iter().find(|explorer| explorer.is_for_later && self.groups < CAUTION);
        if let Some(Explorer { unit: UnitId(alone), .. }) = alone {
            let others_seconds = best.end.expected;
            let reason = |index| (index != *alone).then_some(Reason::Unknown { others_seconds });
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

    /// Nothing is known of any device, so all are explored.
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

    /// All sets of measured devices that could be the best.
    fn sets(&self) -> Vec<Set> {
        let measured =
            |index: &usize| self.candidates[*index].is_measured() && !self.candidates[*index].has_failed;
        let mut alone: Vec<Set> =
            (0..self.candidates.len()).filter(measured).filter_map(|index| self.set(vec![index])).collect();
        alone.sort_by(|one, other| one.end.expected.total_cmp(&other.end.expected));
        let Some(best) = alone.first().map(|set| set.end.expected) else { return alone };
        // Nobody helps who has not begun when the best one is done.
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

    /// Adds some devices to a set, and further ones to those sets that this made faster.
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

    /// Whether devices have cores beside each other.
    fn fit(&self, members: &[usize]) -> bool {
        let parts = members.iter().map(|&index| self.candidates[index].part_of_cores);
        let parts: Vec<f64> = parts.filter(|part| *part > 0.0).collect();
        parts.len() < 2 || parts.iter().sum::<f64>() < 1.0 + 1e-9
    }

    /// The seconds that a device needs for its first items.
    fn least_end(&self, index: usize) -> f64 {
        let candidate = &self.candidates[index];
        let Some(model) = candidate.model else { return candidate.setup() };
        let moving = model.moving(candidate.moving.whole.bytes, candidate.moving.per_byte());
        let computing = model.computing(1.0, 1.0, candidate.width);
        moving.zip(computing).map_or(0.0, |(moving, computing)| moving.least + computing.least)
    }

    /// What a device takes for so many items beside others: to compute, and in all.
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
                // Nobody has seen how they disturb each other.
                None => end.most *= 2.0,
            }
        }
        Some((computing.expected * slower, end))
    }

    /// What a set takes if all end at once; `None` if one of them has nothing to do.
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
            // A device whose time is that of beginning gets less in each round.
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

    /// A set that may be faster than the best one, and costs no more than the credit if it is not. The best one itself comes first.
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

    /// How many runs of a device alone were about this size; of several, whether it is known how they disturb each other.
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

    /// The devices of which little is known that could shorten the run of the members, or another run: as long as the credit pays for a
    /// run that is longer by what they need to begin.
    fn explorers(&self, set: &Set) -> Vec<Explorer> {
        let seconds = set.end.expected;
        let is_open =
            |index: &usize| !self.candidates[*index].is_measured() && !self.candidates[*index].has_failed;
        let explorer = |index: usize| {
            let candidate = &self.candidates[index];
            let explorer = self.explorer(index, &set.members);
            // Driver and cores are busy with a cold start, if the cores are those of the others.
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
