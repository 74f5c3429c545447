//! Exploration of units with unknown speed: they get real packages, short enough to cost little if a unit is
//! slow.
//!
//! ```text
//!   first unit   ▏sample▏longer sample▏ ── the rest is short ──▶ all remaining items
//!                                     └── the rest is long ────▶ packages ........................
//!   explorer                                 called up ▏first package▏ packages at the measured rate ...
//! ```
//! 1. If no unit is measured, the unit that is cheapest to start begins. Its samples give an upper and a
//!    lower bound of the time for the rest. A sample may have run on a single thread. A sample in flight
//!    gives a lower bound.
//! 2. An explorer is called up if the rest takes longer than the explorer's setup, and if the explorer could
//!    shorten it. The estimate assumes that the explorer computes as fast as its data moves.
//! 3. The explorer's first package would take the other units as long as the run so far, and has at most
//!    1/[`CAUTION`] of the rest. A GPU gets at least as many items as it computes in the time of one.
//! 4. Until the explorer is measured, the packages of other units are limited. None takes longer than the run
//!    so far, or than the explorer's best time for the rest.
//! 5. An explorer on the cores of other, measured units takes turns with them. It computes a short package,
//!    then a longer one, while they pause. The faster side continues.
//! 6. A unit with less than [`LEAST_SHARE`] of the total rate is left out. It cannot shorten the run by more
//!    than this share, and may be a straggler at the end.

use super::{Calibrated, Computed, Policy};
use crate::base::package::{Package, UnitId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Divisor of the rest that limits an explorer's package before it is measured. An explorer that is slower by
/// this factor than the others together does not delay the run. (`cargo xtask policies`, table of 1 to 4
/// devices)
pub(crate) const CAUTION: u64 = 8;
/// Cost of calling up a unit, to the other units, in seconds. After the same time all threads of the first
/// unit are awake.
pub(crate) const CALLING_SECONDS: f64 = 50e-6;
/// Maximum launch time within a sample, in seconds.
const LAUNCH_SECONDS: f64 = 20e-6;
/// Maximum size ratio of a sample to the previous one. Also the divisor of the rest that gives the first
/// sample of a unit whose launches take equally long whatever their size.
const GROWTH: u64 = 16;
/// Minimum share of the total rate that keeps a unit in the run. Also the minimum fraction of the rest that
/// an explorer must be able to save to be called up.
const LEAST_SHARE: f64 = 0.1;
/// Number of packages after which a unit that takes turns or may be left out is measured. The first package
/// pays for a cold start.
const MEASURED: u64 = 2;

/// A unit with unknown speed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Explorer {
    pub(crate) unit: UnitId,
    /// The minimum time to begin, in seconds.
    pub(crate) setup: f64,
    /// The minimum time per item, in seconds.
    pub(crate) per_item: f64,
    /// The number of items that it computes in the time of one.
    pub(crate) fills: u64,
    /// The units whose cores it shares, and with which it takes turns.
    pub(crate) turns_with: Vec<UnitId>,
    /// Whether it is called up although it cannot shorten this run, because later runs may be longer.
    pub(crate) is_for_later: bool,
    /// The unit of the same model that is measured first, if there is one.
    pub(crate) twin: Option<UnitId>,
}

impl Explorer {
    fn takes_turns(&self) -> bool {
        !self.turns_with.is_empty()
    }

    /// Returns whether the units that it takes turns with have computed enough for a comparison. A first
    /// package is mostly a cold start.
    fn can_compare(&self, units: &[Seen]) -> bool {
        self.turns_with.iter().all(|other| units[other.0].packages >= MEASURED)
    }

    /// Returns the seconds for the rest with this unit at its best, beside others that take `rest` seconds
    /// without it.
    fn best(&self, items: f64, rest: f64) -> f64 {
        let (own, others) = (1.0 / self.per_item.max(f64::MIN_POSITIVE), items / rest);
        if self.takes_turns() {
            return self.setup + items * self.per_item;
        }
        // It computes nothing during its setup.
        (items + self.setup * own.min(1e300)) / (own.min(1e300) + others)
    }

    /// Returns whether calling it up pays off if the others take `rest` seconds for these items.
    pub(crate) fn could_help(&self, items: f64, rest: f64) -> bool {
        self.setup < rest && self.best(items, rest) < rest * (1.0 - LEAST_SHARE) - CALLING_SECONDS
    }
}

/// The unit that begins if no unit is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct First {
    pub(crate) unit: UnitId,
    /// The number of items that its threads compute in parallel; `None` if launches take equally long
    /// whatever their size.
    pub(crate) fills: Option<u64>,
}

/// How a run begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Begins {
    /// With samples of one unit, because no unit is known.
    Sampled(First),
    /// With the known units, which take this many seconds.
    Known(f64),
}

/// [`Calibrated`], with exploration of units with unknown speed.
#[derive(Debug, Clone)]
pub(crate) struct Exploring {
    inner: Calibrated,
    local_size: u64,
    stage: Stage,
    /// The explorers that are called up.
    explorers: Vec<Explorer>,
    /// The explorers that are not called up yet.
    waiting: Vec<Explorer>,
    units: Vec<Seen>,
    called: Vec<UnitId>,
    remaining: u64,
    now: Duration,
}

#[derive(Debug, Clone, PartialEq)]
enum Stage {
    /// The first unit computes samples.
    Sampling(First, Samples),
    /// The units that take part compute packages.
    Running,
}

/// The samples of the first unit.
#[derive(Debug, Clone, Default, PartialEq)]
struct Samples {
    /// The items of the sample in flight, and when it was handed out.
    under_way: Option<(u64, Duration)>,
    /// The items and seconds of the last computed sample.
    last: Option<(u64, f64)>,
    /// The total seconds of all computed samples.
    seconds: f64,
}

/// The observations of a unit.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// The number of packages in flight that are not computed.
    computing: u64,
    /// The number of computed packages whose results are in transit.
    travelling: u64,
    /// The number of computed packages.
    packages: u64,
    /// The number of computed packages whose results have arrived.
    arrived: u64,
    /// The items per second of the fastest package.
    rate: f64,
    is_dropped: bool,
    /// Whether it waits for its turn.
    is_waiting: bool,
}

impl Exploring {
    /// Creates the policy for `work` items.
    pub(crate) fn new(
        inner: Calibrated,
        (work, local_size): (u64, u64),
        begins: Begins,
        waiting: Vec<Explorer>,
    ) -> Self {
        let units = vec![Seen::default(); inner.rates().len()];
        let mut this = Self {
            inner,
            local_size,
            stage: Stage::Running,
            explorers: Vec::new(),
            waiting,
            units,
            called: Vec::new(),
            remaining: work,
            now: Duration::ZERO,
        };
        this.waiting.iter().for_each(|explorer| this.inner.bench(explorer.unit));
        match begins {
            Begins::Sampled(first) => this.stage = Stage::Sampling(first, Samples::default()),
            Begins::Known(rest) => this.call_those_that_help(rest),
        }
        this
    }

    /// Calls up the explorers that could shorten a rest of `rest` seconds. The others wait, because the rest
    /// may take longer than estimated.
    fn call_those_that_help(&mut self, rest: f64) {
        self.stage = Stage::Running;
        let items = self.remaining as f64;
        // Only one explorer at a time takes turns on the cores.
        let mut has_turns = self.explorers.iter().any(Explorer::takes_turns);
        let units = &self.units;
        let helps = |explorer: &mut Explorer| {
            let helps = (explorer.is_for_later || explorer.could_help(items, rest))
                && !(explorer.takes_turns() && has_turns)
                && explorer.can_compare(units);
            has_turns |= helps && explorer.takes_turns();
            helps
        };
        let called: Vec<Explorer> = self.waiting.extract_if(.., helps).collect();
        for explorer in &called {
            self.inner.join(explorer.unit);
            self.called.push(explorer.unit);
        }
        self.explorers.extend(called);
    }

    fn explorer(&self, unit: UnitId) -> Option<&Explorer> {
        self.explorers.iter().find(|explorer| explorer.unit == unit)
    }

    /// Returns whether an explorer is not measured yet.
    ///
    /// If it takes turns, its computed packages decide, because the other units wait for them. Otherwise, its
    /// arrived results decide.
    fn is_open(&self, explorer: &Explorer) -> bool {
        let Seen { packages, arrived, is_dropped, .. } = self.units[explorer.unit.0];
        !is_dropped && if explorer.takes_turns() { packages < MEASURED } else { arrived == 0 }
    }

    /// Returns the length of the next package of an unmeasured explorer; `None` while it has to wait.
    fn explores(&self, explorer: &Explorer, remaining: u64) -> Option<u64> {
        let seen = &self.units[explorer.unit.0];
        if seen.computing > 0 {
            return None;
        }
        let is_turn = explorer.turns_with.iter().all(|other| self.units[other.0].computing == 0);
        // The measured units together would take as long for it as the run so far.
        let rate = self.inner.rates().into_iter().enumerate();
        let rate: f64 = rate.filter(|(unit, _)| self.is_measured(*unit)).map(|(_, rate)| rate).sum();
        let length = (rate * self.now.as_secs_f64().max(CALLING_SECONDS)) as u64; // The cast saturates.
        // A package that does not fill the device takes equally long.
        let length = length.min(remaining / CAUTION).max(explorer.fills.min(remaining));
        is_turn.then_some(length.max(1))
    }

    /// Returns the least seconds in which an unmeasured explorer at its best could complete the rest with the
    /// others; `None` if all explorers are measured.
    fn soonest(&self, remaining: u64, rate: f64) -> Option<f64> {
        let items = remaining as f64;
        let open = self.explorers.iter().filter(|explorer| self.is_open(explorer));
        open.map(|explorer| explorer.best(items, items / rate)).min_by(f64::total_cmp)
    }

    /// Returns whether a unit's speed is measured, or was known before the run.
    fn is_measured(&self, unit: usize) -> bool {
        let is_explorer = self.explorers.iter().any(|explorer| explorer.unit.0 == unit);
        self.units[unit].arrived > 0 || (!is_explorer && self.stage == Stage::Running)
    }

    /// Returns whether a unit pauses for an explorer that takes turns with it.
    fn pauses(&self, unit: UnitId) -> bool {
        let begins = |seen: &Seen| seen.packages > 0 || seen.computing > 0 || seen.is_waiting;
        self.explorers.iter().any(|explorer| {
            explorer.turns_with.contains(&unit)
                && self.is_open(explorer)
                && begins(&self.units[explorer.unit.0])
        })
    }

    /// Returns the length of the first unit's next sample. Samples begin with one work-group and grow, or
    /// with a fixed fraction of the rest if launches take equally long whatever their size.
    fn sample(&self, first: &First, last: Option<(u64, f64)>, remaining: u64) -> u64 {
        match (last, first.fills) {
            (None, Some(_)) => self.local_size,
            // Few work-groups are computed in one launch.
            (None, None) if remaining / GROWTH < self.local_size => remaining,
            (None, None) => remaining / GROWTH,
            (Some((items, seconds)), _) => {
                let growth = (CALLING_SECONDS / seconds).clamp(2.0, GROWTH as f64);
                (items as f64 * growth) as u64 // The cast saturates.
            }
        }
    }

    /// Returns a lower bound of the seconds that the first unit needs for the rest, from a sample that took
    /// at least `seconds`.
    ///
    /// On a processor, a sample of few items may have run on one thread or on all threads: the geometric mean
    /// of both speedups counts. A sample of many items may be mostly the wake-up of the threads.
    fn least(&self, first: &First, samples: &Samples, items: u64, seconds: f64) -> f64 {
        let threads = match first.fills {
            None => 1.0,
            Some(fills) if items < fills => (fills as f64 / items as f64).sqrt(),
            Some(_) if samples.seconds >= CALLING_SECONDS => 1.0,
            Some(fills) => fills as f64 / self.local_size as f64,
        };
        let launch = if first.fills.is_some() { LAUNCH_SECONDS } else { 0.0 };
        self.remaining as f64 * (seconds - launch).max(0.0) / items as f64 / threads
    }

    fn could_any_help(&self, rest: f64) -> bool {
        let remaining = self.remaining as f64;
        self.waiting
            .iter()
            .any(|explorer| explorer.could_help(remaining, rest) && explorer.can_compare(&self.units))
    }

    /// Decides from a sample whether to call up explorers or to take another sample.
    fn sampled(&mut self, first: First, samples: Samples, items: u64, seconds: f64) {
        let least = self.least(&first, &samples, items, seconds);
        let (remaining, most) = (self.remaining as f64, self.remaining as f64 * seconds / items as f64);
        if !self.waiting.iter().any(|explorer| explorer.could_help(remaining, most)) {
            // No explorer could help, even if the rest took as long as the sample's upper bound.
            self.call_those_that_help(0.0);
        } else if self.could_any_help(least) || first.fills.is_none() {
            self.call_those_that_help(least);
        } else {
            let seconds_of_all = samples.seconds + seconds;
            let samples = Samples { under_way: None, last: Some((items, seconds)), seconds: seconds_of_all };
            self.stage = Stage::Sampling(first, samples);
        }
    }

    /// Calls up the explorers that could help, by the current estimate of the rest. The estimate is that of
    /// the rates, or while sampling a lower bound as if the sample in flight ended now.
    fn look(&mut self, now: Duration) {
        let rest = match &self.stage {
            _ if self.waiting.is_empty() => return,
            Stage::Running if self.units.iter().all(|seen| seen.arrived == 0) => return,
            Stage::Running => self.remaining as f64 / self.inner.rates().iter().sum::<f64>(),
            Stage::Sampling(first, samples) => {
                let Some((items, handed)) = samples.under_way else { return };
                self.least(first, samples, items, now.saturating_sub(handed).as_secs_f64())
            }
        };
        if self.could_any_help(rest) {
            self.call_those_that_help(rest);
        }
    }

    fn drop_unit(&mut self, unit: UnitId) {
        self.units[unit.0].is_dropped = true;
        self.inner.retire(unit);
    }

    /// Leaves out units that cannot help, once an explorer is measured.
    fn compare(&mut self, measured: UnitId) {
        let Some(explorer) = self.explorer(measured).cloned() else { return };
        if self.is_open(&explorer) {
            return;
        }
        if explorer.takes_turns() {
            let theirs: f64 = explorer.turns_with.iter().map(|unit| self.units[unit.0].rate).sum();
            if theirs >= self.units[measured.0].rate {
                self.drop_unit(measured);
            } else {
                explorer.turns_with.iter().for_each(|unit| self.drop_unit(*unit));
            }
        }
        // The rates cover the same stretch of the work: items elsewhere may cost many times as much.
        let rates = self.inner.rates();
        let all: f64 = rates.iter().sum();
        for unit in (0..rates.len()).map(UnitId) {
            let Seen { arrived, is_dropped, .. } = self.units[unit.0];
            if arrived >= MEASURED && !is_dropped && rates[unit.0] < all * LEAST_SHARE {
                self.drop_unit(unit);
            }
        }
    }

    fn learn(&mut self, computed: &Computed) {
        let Computed { unit, items, begun, ended, .. } = *computed;
        let seconds = ended.saturating_sub(begun).as_secs_f64();
        let Some(seen) = self.units.get_mut(unit.0) else { return };
        seen.packages += 1;
        if seconds > 0.0 {
            seen.rate = seen.rate.max(items as f64 / seconds);
        }
        let whole = computed.done.saturating_sub(computed.handed).as_secs_f64();
        if let Stage::Sampling(first, samples) = self.stage.clone()
            && first.unit == unit
        {
            self.sampled(first, samples, items, whole.max(1e-9));
        }
        self.compare(unit);
    }
}

impl Policy for Exploring {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        self.remaining = remaining;
        let seen = self.units.get(unit.0)?;
        if seen.is_dropped {
            return None;
        }
        if let Stage::Sampling(first, samples) = &self.stage {
            let is_its_turn = unit == first.unit && seen.computing == 0;
            return is_its_turn.then(|| self.sample(first, samples.last, remaining));
        }
        if let Some(explorer) = self.explorer(unit).filter(|explorer| self.is_open(explorer)) {
            // A measured twin makes the exploration unnecessary.
            let twin = explorer.twin.map(|twin| &self.units[twin.0]);
            if twin.is_none_or(|twin| twin.arrived == 0) {
                let length = self.explores(explorer, remaining);
                self.units[unit.0].is_waiting = length.is_none();
                return length;
            }
        }
        if self.pauses(unit) {
            return None;
        }
        let rates = self.inner.rates();
        let soonest = self.soonest(remaining, rates.iter().sum());
        let Some(soonest) = soonest.filter(|_| self.is_measured(unit.0)) else {
            return self.inner.next(unit, remaining);
        };
        let patience = self.now.as_secs_f64().max(CALLING_SECONDS).min(soonest) * rates[unit.0];
        Some(self.inner.next(unit, remaining)?.min((patience as u64).max(1)))
    }

    fn handed(&mut self, package: &Package, now: Duration) {
        self.now = self.now.max(now);
        self.remaining = self.remaining.saturating_sub(package.items());
        if let Stage::Sampling(first, samples) = &mut self.stage
            && first.unit == package.unit()
        {
            samples.under_way = Some((package.items(), now));
        }
        if let Some(seen) = self.units.get_mut(package.unit().0) {
            seen.computing += 1;
        }
        self.inner.handed(package, now);
    }

    fn ended(&mut self, computed: &Computed) {
        if let Some(seen) = self.units.get_mut(computed.unit.0) {
            seen.computing = seen.computing.saturating_sub(1);
            seen.travelling += 1;
        }
        self.inner.ended(computed);
        self.learn(computed);
    }

    fn computed(&mut self, computed: &Computed) {
        self.now = self.now.max(computed.done);
        self.inner.computed(computed);
        let Some(seen) = self.units.get_mut(computed.unit.0) else { return };
        seen.arrived += 1;
        if seen.travelling > 0 {
            seen.travelling -= 1;
        } else {
            seen.computing = seen.computing.saturating_sub(1);
            self.learn(computed);
        }
        self.compare(computed.unit);
    }

    fn given_back(&mut self, package: &Package) {
        self.remaining = self.remaining.saturating_add(package.items());
        if let Some(seen) = self.units.get_mut(package.unit().0) {
            let counted = if seen.computing > 0 { &mut seen.computing } else { &mut seen.travelling };
            *counted = counted.saturating_sub(1);
        }
        if let Stage::Sampling(first, samples) = &mut self.stage
            && first.unit == package.unit()
        {
            samples.under_way = None;
        }
        self.inner.given_back(package);
    }

    fn retire(&mut self, unit: UnitId) {
        if let Some(seen) = self.units.get_mut(unit.0) {
            seen.is_dropped = true;
            (seen.computing, seen.travelling) = (0, 0);
        }
        self.inner.retire(unit);
        self.waiting.retain(|explorer| explorer.unit != unit);
        if matches!(&self.stage, Stage::Sampling(first, _) if first.unit == unit) {
            // The other units must compute the rest.
            self.call_those_that_help(f64::INFINITY);
        }
    }

    fn begins(&self, unit: UnitId) -> bool {
        match &self.stage {
            Stage::Sampling(first, _) => first.unit == unit,
            Stage::Running => {
                self.explorers.iter().chain(&self.waiting).all(|explorer| explorer.unit != unit)
            }
        }
    }

    fn call_up(&mut self, now: Duration) -> Vec<UnitId> {
        self.look(now);
        // No unit begins if nothing is left.
        if self.remaining == 0 { Vec::new() } else { std::mem::take(&mut self.called) }
    }
}

#[cfg(test)]
mod tests;
