//! Calibrated: packages that shrink with the work left, in proportion to rates that are learned while the run goes on.

use super::powers::{portion, shares};
use super::rates::Rates;
use super::{Computed, Policy, PolicyError, checked_local_size};
use crate::base::package::{Package, UnitId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is known of a unit before a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Prior {
    /// Items per second, positive and finite. Only the proportions of the units' rates count until a unit is measured.
    pub rate: f64,
    /// What a package costs whatever its size.
    pub launch: Duration,
    /// Whether both come from an earlier run of the same kernel. Then packages are as long as if they were measured in
    /// this run.
    pub trusted: bool,
}

impl Prior {
    /// A unit of this relative power, of which nothing else is known.
    #[must_use]
    pub const fn of_power(power: f64) -> Self {
        Self { rate: power, launch: Duration::ZERO, trusted: false }
    }

    /// A unit that an earlier run of the same kernel has measured.
    #[must_use]
    pub const fn measured(rate: f64, launch: Duration) -> Self {
        Self { rate, launch, trusted: true }
    }
}

/// Packages handed out on demand as [`HGuided`](super::HGuided) hands them out, in proportion to the rates that the units
/// show.
///
/// This policy needs no powers. It makes few packages where work is regular, and adapts where it is not.
///
/// # Shape and units
/// With `G` items left, `n` units, and `w_i` the unit's part of the sum of all rates:
///
/// 1. A package has `G * w_i / (2 n)` items; for a unit where something overlaps no more than 1/12 of the unit's part of all work, so
///    that results begin to travel early. Rates are net of the cost per package, and all for the same stretch of the
///    work, up to a place that every unit has reached. A unit that is not measured yet is as fast as its prior says, scaled
///    by the units that are measured; one without a prior is as fast as the others on average.
/// 2. The first package of a unit that is not trusted is a sample: at most 1/64 of the work by the number of units, in
///    proportion to its prior. While some unit is neither trusted nor measured, nothing is handed out ahead to any, and a
///    package has at most four times the items of the unit's package before.
/// 3. No package is so small that its cost takes more than 15% of its computing, as long as it has no more than half of the
///    unit's part of the rest. At the very end, none is so small that its cost takes more than half, as long as it has no more
///    than the unit's part of the rest. Neither rule makes it larger than twice the unit's package before, or four times where the
///    unit takes as long for any package: its latency is a cost, too.
/// 4. A unit is handed a package ahead only while all that it then has is within 4/5 of its part of what is not done, whoever has it, and
///    only where that hides something: the cost is at least 1/100 of the package, or something [overlaps](Self::overlapping) and
///    the ways of packages take at least 1/100 of their computing. For a trusted unit that has computed all of them, and waits for their
///    results, it is all of its part.
/// 5. A unit that is known, and not the fastest, gets nothing where the others, who have packages, would be done with all that is left before it is
///    done with its package of whole work-groups.
///
/// A trusted prior counts as much as what was measured since the start. A single unit gets the whole rest as one package.
/// Where something of it overlaps, it gets twelve packages, and they are handed out ahead.
///
/// # Source
/// HGuided of paper 001 (section 3.3), with rates that are learned.
///
/// ```
/// use dml_scheduler::{Assignment, Calibrated, Computed, Splitter, UnitId};
/// use std::time::Duration;
///
/// let policy = Calibrated::new(128_000, 1, &[None, None])?;
/// let mut splitter = Splitter::new(Box::new(policy), 2, 128_000, 1)?;
/// let mut next = |splitter: &mut Splitter, unit| match splitter.assign_at(unit, Duration::ZERO) {
///     Assignment::Package(package) => package,
///     _ => unreachable!("both have work to do"),
/// };
/// let samples = [UnitId(0), UnitId(1)].map(|unit| next(&mut splitter, unit));
/// for (sample, millis) in samples.iter().zip([1, 3]) {
///     assert_eq!(sample.items(), 1000);
///     let (handed, done) = (Duration::ZERO, Duration::from_millis(millis));
///     splitter.complete_with(sample, Computed::new(sample, handed, handed, done, done))?;
/// }
/// assert_eq!(next(&mut splitter, UnitId(0)).items(), 23_625); // 126000 * 3/4 / 4
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Calibrated {
    work: u64,
    local_size: u64,
    units: Vec<Unit>,
    /// The latest time that a call brought along.
    now: Duration,
}

#[derive(Debug, Clone)]
struct Unit {
    prior: Option<Prior>,
    /// The prior's rate beside that of the fastest prior, above 0.
    power: Option<f64>,
    rates: Rates,
    overlaps: bool,
    is_active: bool,
    /// The packages that the unit has, in the order in which they were handed out.
    packages: Vec<InFlight>,
    /// The items of the package before; `None` before the first.
    previous: Option<u64>,
}

/// A package that a unit has.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    start: u64,
    length: u64,
    /// Whether it is computed, and its results travel.
    has_ended: bool,
}

/// The divisor k of the package size.
const K: f64 = 2.0;

/// The part of the work that the first packages of all units sample.
const SAMPLE: f64 = 1.0 / 64.0;

/// The part of a package that its cost may take.
const COST_SHARE: f64 = 0.15;

/// How many times its cost a package takes at least when it may be all that is left for the unit.
const LAST_COSTS: f64 = 2.0;

/// The part of a unit's share of all that is not done that it may have in flight. Whoever has less than its share would be done
/// before the others are.
const AHEAD: f64 = 0.8;

/// The largest package of a unit where something overlaps, as a part of the unit's share of the work.
const PIECE: f64 = 1.0 / 12.0;

/// The least part of a package that its cost takes for handing it out ahead to be worth the risk.
const WORTH_HIDING: f64 = 1.0 / 100.0;

/// How many times as long as the package before a package is at most while some unit is unknown.
const GROWTH: u64 = 4;

/// The rates that are told apart, in items per second. Sums and products of them stay numbers.
const RATES: (f64, f64) = (1e-100, 1e100);

impl Calibrated {
    /// Makes the policy for `work` items, a local work size of `local_size` items and these units, with what is known of
    /// each.
    ///
    /// # Errors
    /// [`NoUnits`](PolicyError::NoUnits) without a unit, [`BadPower`](PolicyError::BadPower) when a rate is not positive and
    /// finite, [`ZeroLocalSize`](PolicyError::ZeroLocalSize).
    pub fn new(work: u64, local_size: u64, priors: &[Option<Prior>]) -> Result<Self, PolicyError> {
        if priors.is_empty() {
            return Err(PolicyError::NoUnits);
        }
        for (unit, prior) in priors.iter().enumerate() {
            if let Some(Prior { rate, .. }) = prior
                && !(rate.is_finite() && *rate > 0.0)
            {
                return Err(PolicyError::BadPower { unit: UnitId(unit), power: *rate });
            }
        }
        let fastest = priors.iter().flatten().map(|prior| prior.rate).fold(0.0, f64::max);
        let units = priors.iter().map(|prior| Unit::new(*prior, fastest)).collect();
        Ok(Self { work, local_size: checked_local_size(local_size)?, units, now: Duration::ZERO })
    }

    /// Says for which units something overlaps: results or inputs that travel while another package is computed.
    ///
    /// Units that the policy does not have are left out.
    #[must_use]
    pub fn overlapping(mut self, units: impl IntoIterator<Item = UnitId>) -> Self {
        for unit in units {
            if let Some(unit) = self.units.get_mut(unit.0) {
                unit.overlaps = true;
            }
        }
        self
    }

    /// Says how many items each unit computes in the time of one, in the order of the units: a GPU has as many threads.
    #[must_use]
    pub fn filled_by(mut self, fills: &[u64]) -> Self {
        self.units.iter_mut().zip(fills).for_each(|(unit, items)| unit.rates.fill(*items));
        self
    }

    /// The rates by which the work is split, in items per second once a unit is measured: measured ones, and guesses for
    /// the rest; 0 for retired units.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let active = || self.units.iter().filter(|unit| unit.is_active);
        let measured = || active().filter_map(|unit| unit.rates.measured());
        // Every unit has reached this place, and has computed a package before it.
        let place = measured().map(|(_, last)| last).fold(f64::INFINITY, f64::min);
        let place = measured().map(|(first, _)| first).fold(place, f64::max);
        let done: Vec<Option<(f64, f64)>> = self
            .units
            .iter()
            .map(|unit| (unit.is_active && unit.rates.is_measured()).then(|| unit.rates.before(place)))
            .collect();
        let scale = self.scale(&done);
        let is_any_measured = done.iter().any(Option::is_some);
        let trust = self.now.as_secs_f64();
        let rate = |(unit, done): (&Unit, &Option<(f64, f64)>)| match (*done, unit.power) {
            (Some((items, seconds)), Some(power)) if unit.is_trusted() => {
                let expected = scale.map_or(items / seconds, |scale| scale * power);
                Some((items + expected * trust) / (seconds + trust))
            }
            (Some((items, seconds)), _) => Some(items / seconds),
            (None, power) => match scale {
                Some(scale) => power.map(|power| scale * power),
                None => unit.prior.filter(|prior| prior.trusted || !is_any_measured).map(|prior| prior.rate),
            },
        };
        let rate = |unit| rate(unit).map(|rate| rate.clamp(RATES.0, RATES.1));
        let known: Vec<Option<f64>> = self.units.iter().zip(&done).map(rate).collect();
        let count = known.iter().flatten().count() as f64;
        let mean = if count > 0.0 { known.iter().flatten().map(|rate| rate / count).sum() } else { 1.0 };
        let rate =
            |(unit, rate): (&Unit, &Option<f64>)| if unit.is_active { rate.unwrap_or(mean) } else { 0.0 };
        self.units.iter().zip(&known).map(rate).collect()
    }

    /// Leaves a unit out until it [joins](Self::join).
    pub(super) fn bench(&mut self, unit: UnitId) {
        self.set_active(unit, false);
    }

    /// Lets a unit take part that was left out.
    pub(super) fn join(&mut self, unit: UnitId) {
        self.set_active(unit, true);
    }

    fn set_active(&mut self, unit: UnitId, is_active: bool) {
        if let Some(unit) = self.units.get_mut(unit.0) {
            unit.is_active = is_active;
        }
    }

    /// What a package costs each unit whatever its size, as far as that is known.
    #[must_use]
    pub fn costs(&self) -> Vec<Duration> {
        let cost = |unit: &Unit| Duration::try_from_secs_f64(unit.rates.cost()).unwrap_or_default();
        self.units.iter().map(cost).collect()
    }

    /// The items per second of a unit of power 1, by the units that are measured and have a prior; `None` without any.
    fn scale(&self, done: &[Option<(f64, f64)>]) -> Option<f64> {
        let (mut sum, mut expected) = (0.0, 0.0);
        for (unit, done) in self.units.iter().zip(done) {
            if let (Some(power), Some((items, seconds))) = (unit.power, done) {
                sum += items;
                expected += power * seconds;
            }
        }
        (sum > 0.0 && expected > 0.0).then(|| (sum / expected).min(RATES.1))
    }

    /// The items of a first package: a sample of the work.
    fn sample(&self, unit: &Unit) -> u64 {
        portion(self.work, unit.power.unwrap_or(1.0) * SAMPLE / self.units.len() as f64).max(1)
    }

    /// Returns whether the others would be done with all that is left before the unit is done with a package of this length.
    /// The fastest unit never comes too late: the others have too small a part for it to be left to them.
    fn comes_too_late(&self, unit: UnitId, length: u64, remaining: u64, rates: &[f64]) -> bool {
        let busy = || {
            let others = self.units.iter().zip(rates).enumerate();
            others
                .filter(|(other, (this, _))| *other != unit.0 && this.is_known() && !this.packages.is_empty())
        };
        let rate: f64 = busy().map(|(_, (_, rate))| rate).sum();
        // The rates are of a part that all have reached. What is left may be dearer.
        let latest: f64 = busy().map(|(_, (other, rate))| other.rates.latest().unwrap_or(*rate)).sum();
        let dearer = if latest > 0.0 { (rate / latest).max(1.0) } else { 1.0 };
        let cost = busy().map(|(_, (other, _))| other.rates.cost()).fold(0.0, f64::max);
        let items = busy().fold(remaining as f64, |items, (_, (other, _))| items + other.in_flight() as f64);
        let length = length.div_ceil(self.local_size).saturating_mul(self.local_size).min(remaining);
        let is_fastest = rates.iter().all(|rate| *rate <= rates[unit.0]);
        let own = self.units[unit.0].rates.cost() + dearer * length as f64 / rates[unit.0];
        !is_fastest && rate > 0.0 && own > cost + dearer * items / rate
    }

    /// The package of the only unit that is left.
    fn single(&self, unit: &Unit, rate: f64, remaining: u64) -> u64 {
        if !unit.overlaps {
            return remaining;
        }
        portion(self.work, PIECE).max(unit.worth(rate, COST_SHARE))
    }
}

impl Unit {
    fn new(prior: Option<Prior>, fastest: f64) -> Self {
        let rates = match prior {
            Some(Prior { launch, trusted, .. }) if trusted || !launch.is_zero() => {
                Rates::with_cost(launch.as_secs_f64())
            }
            _ => Rates::default(),
        };
        let power = prior.map(|prior| (prior.rate / fastest).max(f64::MIN_POSITIVE));
        Self { prior, power, rates, overlaps: false, is_active: true, packages: Vec::new(), previous: None }
    }

    /// Returns whether the rate is known well enough to build on it.
    fn is_known(&self) -> bool {
        self.rates.is_measured() || self.is_trusted()
    }

    fn is_trusted(&self) -> bool {
        self.prior.is_some_and(|prior| prior.trusted)
    }

    /// Takes a package of this many items off those that the unit has, and returns where it starts.
    fn take(&mut self, items: u64) -> Option<u64> {
        let place = self.packages.iter().position(|package| package.length == items)?;
        Some(self.packages.remove(place).start)
    }

    /// Returns whether it has a package that it has not computed.
    fn computes(&self) -> bool {
        self.packages.iter().any(|package| !package.has_ended)
    }

    /// The items of all packages that the unit has.
    fn in_flight(&self) -> u64 {
        self.packages.iter().fold(0, |sum, package| sum.saturating_add(package.length))
    }

    /// The fewest items in whose time the cost of a package is no more than this part. `rate` is the one by which work is
    /// split: items per second only where the unit is measured.
    fn worth(&self, rate: f64, part: f64) -> u64 {
        let rate = match self.prior {
            _ if self.rates.is_measured() => rate,
            Some(prior) if prior.trusted => prior.rate,
            _ => 0.0,
        };
        // The cast saturates, and takes NaN for 0.
        (self.rates.cost() * rate / part) as u64
    }
}

impl Policy for Calibrated {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        let this = self.units.get(unit.0).filter(|unit| unit.is_active)?;
        let rates = self.rates();
        let (rate, share) = (rates[unit.0], shares(&rates)[unit.0]);
        let count = self.units.iter().filter(|unit| unit.is_active).count();
        if count == 1 {
            return Some(self.single(this, rate, remaining));
        }
        let part = |factor: f64| portion(remaining, share * factor);
        let piece = if this.overlaps { portion(self.work, share * PIECE) } else { u64::MAX };
        let guided = part(1.0 / (K * count as f64)).min(piece).max(1);
        if !this.is_known() {
            let length = if this.previous.is_none() { guided.min(self.sample(this)) } else { guided };
            return this.packages.is_empty().then_some(length);
        }
        let active = self.units.iter().filter(|unit| unit.is_active);
        let not_done = active.fold(remaining, |sum, unit| sum.saturating_add(unit.in_flight()));
        // Its part of all that is not done, whoever has the rest of it. Where that takes less than a package costs, it takes no two of them.
        let fair = portion(not_done, share).saturating_sub(this.in_flight()).min(remaining);
        let last = if fair <= this.worth(rate, 1.0) { fair } else { part(1.0) };
        let least = this.worth(rate, COST_SHARE).min(part(0.5));
        let least = least.max(this.worth(rate, 1.0 / LAST_COSTS).min(last));
        // Where it takes as long for any package, there is little to lose.
        let more = if this.rates.latency() > 0.0 { GROWTH } else { 2 };
        let least = this.previous.map_or(least, |previous| least.min(previous.saturating_mul(more)));
        let are_all_known = self.units.iter().all(|unit| unit.is_known() || !unit.is_active);
        let most = this
            .previous
            .filter(|_| !are_all_known)
            .map_or(u64::MAX, |previous| previous.saturating_mul(GROWTH));
        let length = guided.max(least).min(most);
        if this.packages.is_empty() {
            return (!self.comes_too_late(unit, length, remaining, &rates)).then_some(length);
        }
        let hides = this.overlaps && this.rates.ways_part().is_none_or(|part| part >= WORTH_HIDING);
        let hides = hides || length <= this.worth(rate, WORTH_HIDING);
        // Who waits for results alone does nothing until it has another one. But of whom little is known, the results may show that its packages
        // are too short.
        let ahead = if this.is_trusted() && !this.computes() { 1.0 } else { AHEAD };
        let room = portion(not_done, share * ahead).saturating_sub(this.in_flight());
        (are_all_known && hides && room > 0 && room >= least).then(|| length.min(room))
    }

    fn handed(&mut self, package: &Package, now: Duration) {
        self.now = self.now.max(now);
        if let Some(unit) = self.units.get_mut(package.unit().0) {
            unit.previous = Some(package.items());
            unit.packages.push(InFlight {
                start: package.start(),
                length: package.items(),
                has_ended: false,
            });
        }
    }

    fn ended(&mut self, computed: &Computed) {
        let unit = self.units.get_mut(computed.unit.0);
        let packages = unit.into_iter().flat_map(|unit| &mut unit.packages);
        let mut computing = packages.filter(|package| !package.has_ended && package.length == computed.items);
        if let Some(package) = computing.next() {
            package.has_ended = true;
        }
    }

    fn computed(&mut self, computed: &Computed) {
        self.now = self.now.max(computed.done);
        if let Some(unit) = self.units.get_mut(computed.unit.0)
            && let Some(start) = unit.take(computed.items)
        {
            unit.rates.learn(start, computed);
        }
    }

    fn given_back(&mut self, package: &Package) {
        if let Some(unit) = self.units.get_mut(package.unit().0) {
            unit.take(package.items());
        }
    }

    fn retire(&mut self, unit: UnitId) {
        if let Some(unit) = self.units.get_mut(unit.0) {
            unit.is_active = false;
            unit.packages.clear();
        }
    }
}

#[cfg(test)]
mod tests;
