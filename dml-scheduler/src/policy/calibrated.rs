//! Calibrated: packages that shrink with the remaining work, in proportion to rates measured during the run.

use super::powers::{portion, shares};
use super::rates::Rates;
use super::{Computed, Policy, PolicyError, checked_local_size};
use crate::base::package::{Package, UnitId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Knowledge of a unit before a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Prior {
    /// Items per second, positive and finite. Until a unit is measured, only the ratios of the units' rates
    /// count.
    pub rate: f64,
    /// Fixed cost of a package.
    pub launch: Duration,
    /// Whether rate and cost come from an earlier run of the same kernel. Packages are then sized as if both
    /// were measured in this run.
    pub trusted: bool,
}

impl Prior {
    /// Returns the prior of a unit with this relative power and otherwise unknown speed.
    #[must_use]
    pub const fn of_power(power: f64) -> Self {
        Self { rate: power, launch: Duration::ZERO, trusted: false }
    }

    /// Returns the prior of a unit that an earlier run of the same kernel has measured.
    #[must_use]
    pub const fn measured(rate: f64, launch: Duration) -> Self {
        Self { rate, launch, trusted: true }
    }
}

/// Packages handed out on demand, like those of [`HGuided`](super::HGuided), in proportion to the units'
/// measured rates.
///
/// This policy needs no powers. It makes few packages if work is regular, and adapts if it is not.
///
/// # Shape and units
/// With `G` items left, `n` units, and `w_i` the unit's share of the sum of all rates:
///
/// 1. A package has `G * w_i / (2 n)` items. If the unit's [transfers overlap](Self::overlapping) its
///    computing, a package also has at most 1/12 of the unit's share of the whole work, so that results
///    travel early. Rates are net of the cost per package. All rates cover the same stretch of the work, up
///    to a place that every measured unit has reached. An unmeasured unit has the rate of its prior, scaled
///    by the measured units. A unit without a prior has the average rate of the others.
/// 2. The first package of an untrusted unit is a sample: at most 1/64 of the work divided by the number of
///    units, in proportion to its prior. While some unit is neither trusted nor measured, no unit gets a
///    package in advance. A package then has at most four times the items of the unit's previous package.
/// 3. A package is long enough that its cost takes at most 15% of its computing time. This minimum is at most
///    half of the unit's share of the rest. At the end, a package is long enough that its cost takes at most
///    half of its computing time. This minimum is at most the unit's whole share of the rest. Neither minimum
///    exceeds twice the unit's previous package. On a device with a latency the limit is four times, because
///    latency is a cost, too.
/// 4. A unit gets a package in advance only if its packages then stay within 4/5 of its share of the
///    uncompleted work, including other units' packages in flight. A trusted unit that only waits for results
///    may hold its full share. The package must also hide something. Either its cost is at least 1/100 of its
///    computing time, or the unit's [transfers overlap](Self::overlapping) and take at least 1/100 of the
///    computing time.
/// 5. A known unit that is not the fastest gets nothing if it would be a straggler. It is one if the other
///    known units with packages in flight would complete all remaining work before its package of whole
///    work-groups.
///
/// A trusted prior weighs as much as the measurements since the start. A single unit gets the whole rest as
/// one package. If its transfers overlap, it gets twelve packages, in advance.
///
/// # Source
/// HGuided of paper 001 (section 3.3), with measured rates.
///
/// ```
/// use dml_scheduler::{UnitId, policy::{Assignment, Calibrated, Computed, Splitter}};
/// use std::time::Duration;
///
/// let policy = Calibrated::new(128_000, 1, &[None, None])?;
/// let mut splitter = Splitter::new(Box::new(policy), 2, 128_000, 1)?;
/// let mut next = |splitter: &mut Splitter, unit| match splitter.assign_at(unit, Duration::ZERO) {
///     Assignment::Package(package) => package,
///     _ => unreachable!("both units have work to do"),
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
    /// The latest time that a call passed, from the start of the run.
    now: Duration,
}

#[derive(Debug, Clone)]
struct Unit {
    prior: Option<Prior>,
    /// The prior's rate relative to the fastest prior, above 0.
    power: Option<f64>,
    rates: Rates,
    overlaps: bool,
    is_active: bool,
    /// The unit's packages in flight, in the order in which they were handed out.
    packages: Vec<InFlight>,
    /// The items of the unit's previous package; `None` before the first.
    previous: Option<u64>,
}

/// A package in flight.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    start: u64,
    length: u64,
    /// Whether it is computed, with its results in transit.
    has_ended: bool,
}

/// Divisor k of the package size.
const K: f64 = 2.0;

/// Fraction of the work that the first packages of all units sample.
const SAMPLE: f64 = 1.0 / 64.0;

/// Maximum cost of a package, as a fraction of its computing time.
const COST_SHARE: f64 = 0.15;

/// Minimum computing time of a package that may be the unit's last, in multiples of its cost.
const LAST_COSTS: f64 = 2.0;

/// Maximum work in flight of a unit, as a fraction of its share of the uncompleted work. A unit with less
/// than its share would be done before the others.
const AHEAD: f64 = 0.8;

/// Maximum package of a unit whose transfers overlap, as a fraction of the unit's share of the work.
const PIECE: f64 = 1.0 / 12.0;

/// Minimum hidden time for which a package in advance is worth the risk, as a fraction of the computing time.
const WORTH_HIDING: f64 = 1.0 / 100.0;

/// Maximum size ratio of a package to the unit's previous one, while some unit is unknown or the device has a
/// latency.
const GROWTH: u64 = 4;

/// Lower and upper bound of a rate, in items per second. Within them, sums and products of rates stay finite.
const RATES: (f64, f64) = (1e-100, 1e100);

impl Calibrated {
    /// Creates the policy for `work` items, a local work size of `local_size` items, and one unit per prior.
    ///
    /// # Errors
    /// [`NoUnits`](PolicyError::NoUnits) without a unit, [`BadPower`](PolicyError::BadPower) when a rate is
    /// not positive and finite, [`ZeroLocalSize`](PolicyError::ZeroLocalSize).
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

    /// Sets the units whose inputs or results are in transit while they compute another package.
    ///
    /// Ignores units that the policy does not have.
    #[must_use]
    pub fn overlapping(mut self, units: impl IntoIterator<Item = UnitId>) -> Self {
        for unit in units {
            if let Some(unit) = self.units.get_mut(unit.0) {
                unit.overlaps = true;
            }
        }
        self
    }

    /// Sets how many items each unit computes in the time of one, in the order of the units. For a GPU, this
    /// is the number of its threads.
    #[must_use]
    pub fn filled_by(mut self, fills: &[u64]) -> Self {
        self.units.iter_mut().zip(fills).for_each(|(unit, items)| unit.rates.fill(*items));
        self
    }

    /// Returns the rates by which the work is split: measured for some units, and estimated for the others.
    ///
    /// They are in items per second once a unit is measured. A unit that is retired or left out has rate 0.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let active = || self.units.iter().filter(|unit| unit.is_active);
        let measured = || active().filter_map(|unit| unit.rates.measured());
        // Every measured unit has reached this place, and has computed a package before it.
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

    /// Adds a unit that was left out.
    pub(super) fn join(&mut self, unit: UnitId) {
        self.set_active(unit, true);
    }

    fn set_active(&mut self, unit: UnitId, is_active: bool) {
        if let Some(unit) = self.units.get_mut(unit.0) {
            unit.is_active = is_active;
        }
    }

    /// Returns the fixed cost of a package for each unit; zero if unknown.
    #[must_use]
    pub fn costs(&self) -> Vec<Duration> {
        let cost = |unit: &Unit| Duration::try_from_secs_f64(unit.rates.cost()).unwrap_or_default();
        self.units.iter().map(cost).collect()
    }

    /// Returns the items per second of a unit of power 1, estimated from the measured units that have a
    /// prior; `None` without any.
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

    /// Returns the items of a unit's first package, a sample of the work.
    fn sample(&self, unit: &Unit) -> u64 {
        portion(self.work, unit.power.unwrap_or(1.0) * SAMPLE / self.units.len() as f64).max(1)
    }

    /// Returns whether the busy known units would complete all remaining work before the unit completes a
    /// package of this length.
    ///
    /// The fastest unit never comes too late. The others have small shares, and so they would take the rest
    /// in far too many packages.
    fn comes_too_late(&self, unit: UnitId, length: u64, remaining: u64, rates: &[f64]) -> bool {
        let busy = || {
            let others = self.units.iter().zip(rates).enumerate();
            others
                .filter(|(other, (this, _))| *other != unit.0 && this.is_known() && !this.packages.is_empty())
        };
        let rate: f64 = busy().map(|(_, (_, rate))| rate).sum();
        // The rates cover a stretch that all units have reached. The remaining items may be more expensive.
        let latest: f64 = busy().map(|(_, (other, rate))| other.rates.latest().unwrap_or(*rate)).sum();
        let dearer = if latest > 0.0 { (rate / latest).max(1.0) } else { 1.0 };
        let cost = busy().map(|(_, (other, _))| other.rates.cost()).fold(0.0, f64::max);
        let items = busy().fold(remaining as f64, |items, (_, (other, _))| items + other.in_flight() as f64);
        let length = length.div_ceil(self.local_size).saturating_mul(self.local_size).min(remaining);
        let is_fastest = rates.iter().all(|rate| *rate <= rates[unit.0]);
        let own = self.units[unit.0].rates.cost() + dearer * length as f64 / rates[unit.0];
        !is_fastest && rate > 0.0 && own > cost + dearer * items / rate
    }

    /// Returns the length of the next package of the only active unit.
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

    /// Returns whether the unit's rate is measured or trusted.
    fn is_known(&self) -> bool {
        self.rates.is_measured() || self.is_trusted()
    }

    fn is_trusted(&self) -> bool {
        self.prior.is_some_and(|prior| prior.trusted)
    }

    /// Removes a package of this many items from those in flight, and returns its start.
    fn take(&mut self, items: u64) -> Option<u64> {
        let place = self.packages.iter().position(|package| package.length == items)?;
        Some(self.packages.remove(place).start)
    }

    /// Returns whether the unit has a package in flight that is not computed.
    fn computes(&self) -> bool {
        self.packages.iter().any(|package| !package.has_ended)
    }

    /// Returns the items of all packages in flight.
    fn in_flight(&self) -> u64 {
        self.packages.iter().fold(0, |sum, package| sum.saturating_add(package.length))
    }

    /// Returns the minimum number of items for which the cost is at most this fraction of a package's
    /// computing time.
    ///
    /// `rate` is the one by which work is split. It is in items per second only if the unit is measured.
    fn worth(&self, rate: f64, part: f64) -> u64 {
        let rate = match self.prior {
            _ if self.rates.is_measured() => rate,
            Some(prior) if prior.trusted => prior.rate,
            _ => 0.0,
        };
        // The cast saturates, and turns NaN into 0.
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
        // The unit's share of all uncompleted work, including other units' packages in flight, less its own
        // packages. If computing the share takes less time than a package costs, it is not worth two
        // packages.
        let fair = portion(not_done, share).saturating_sub(this.in_flight()).min(remaining);
        let last = if fair <= this.worth(rate, 1.0) { fair } else { part(1.0) };
        let least = this.worth(rate, COST_SHARE).min(part(0.5));
        let least = least.max(this.worth(rate, 1.0 / LAST_COSTS).min(last));
        // With a latency, a longer package risks little: any package takes about the same time.
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
        // A unit that only waits for results is idle until it gets another package. If it is not trusted, its
        // results may still show that its packages are too short.
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
