//! The opening of a run of which nothing is known, on devices of one model: one computes as if it were alone, and calls its twins up.
//!
//! ```text
//!   first unit   ▏package▏package▏package▏ ── the rest is short ──▶ all of it
//!                        │
//!                        └──── the rest is long ──▶ the next ones go to whoever asks
//! ```
//! A device that computes alone has a few packages in any case, so that its transfers overlap with computing. The first of them that ends
//! shows how fast it is, and with that how fast its twins are. So a run that is too short for two is that of one, and costs no more. The
//! packages stay as long as they are: nobody knows yet whether shorter ones would take less time. A unit that was called up has a short
//! package first: if somebody else uses its device, it is slower than its twins.
//!
//! Devices of one model may hang on unequal links, and where results take longer than computing, that shows at the end. So a unit whose results queue up leaves
//! the rest to twins that would have it home sooner.

use super::travelling::Travelling;
use super::{Computed, Freight, Policy};
use crate::{Package, UnitId};
use std::time::Duration;

/// How many packages a unit has at most that it has not computed: nobody else can help with those. The second one hides the time from the end of
/// the first to its launch.
const AHEAD: u64 = 2;

/// How many packages whose results travel a unit has at least when it leaves further ones to others: its link has something to bring meanwhile.
const TRAVELLING: u64 = 2;
/// How many times as long as all links together need for what is not home a unit's link may take for what it has and another package.
const LATE_HOME: f64 = 1.1;
/// The part of a unit's packages whose results may travel until some are home, and so many in any case. Before, nobody knows how slow its link is.
const UNKNOWN_LINK: u64 = 4;
const LEAST_UNKNOWN: u64 = 3;

/// How many times as long as all others need for what is left a unit may take for its next package: rates are those of other items.
const LATE: f64 = 1.2;
/// The part of all items that the first package of a unit that was called up has at most.
const FIRST: u64 = 16;

/// Equal packages, at first for one of several units that are as fast as each other.
#[derive(Debug, Clone)]
pub(crate) struct Twins {
    first: UnitId,
    /// The units that take part.
    members: Vec<UnitId>,
    /// Those of them that have computed a package, or of which it is known that they are as fast as the others.
    proven: Vec<UnitId>,
    /// The items of a package, and of the first one of a unit that was called up.
    piece: u64,
    short: u64,
    /// How many packages the run has.
    pieces: u64,
    /// The units that could join, until it is decided that they do.
    others: Vec<(UnitId, Freight)>,
    /// The unassigned items, as of the last package handed out.
    remaining: u64,
    units: Vec<Unit>,
    travelling: Travelling,
    /// The units that are called up, and were not yet told.
    called: Vec<UnitId>,
}

/// What a unit has done so far.
#[derive(Debug, Clone, Copy, Default)]
struct Unit {
    /// The packages that it has and has not computed.
    in_flight: u64,
    /// The items that it has computed, the seconds that these took, and when the last of them ended.
    items: f64,
    seconds: f64,
    ended: Duration,
}

impl Unit {
    /// Items per second, if it has computed anything in any time.
    fn rate(&self) -> Option<f64> {
        (self.items > 0.0 && self.seconds > 0.0).then(|| self.items / self.seconds)
    }
}

impl Twins {
    /// Lets `first` begin a run of `work` items in so many packages. Who is not among the others either gets nothing.
    pub(crate) fn new((work, pieces): (u64, u64), first: UnitId, others: Vec<(UnitId, Freight)>) -> Self {
        Self {
            first,
            members: vec![first],
            proven: vec![first],
            piece: work.div_ceil(pieces.max(1)),
            short: work.div_ceil(pieces.max(FIRST)),
            pieces,
            others,
            remaining: work,
            units: Vec::new(),
            travelling: Travelling::default(),
            called: Vec::new(),
        }
    }

    /// Lets all take part from the start: it is known that the run is long enough.
    #[must_use]
    pub(crate) fn at_once(mut self) -> Self {
        self.members.extend(self.others.drain(..).map(|(other, _)| other));
        self.proven.clone_from(&self.members);
        self
    }

    fn unit_mut(&mut self, unit: UnitId) -> &mut Unit {
        if unit.0 >= self.units.len() {
            self.units.resize(unit.0 + 1, Unit::default());
        }
        &mut self.units[unit.0]
    }

    fn unit(&self, unit: UnitId) -> Unit {
        self.units.get(unit.0).copied().unwrap_or_default()
    }

    fn leaves(&mut self, unit: UnitId) {
        let unit = self.unit_mut(unit);
        unit.in_flight = unit.in_flight.saturating_sub(1);
    }

    /// Learns that a package was computed.
    fn learn(&mut self, computed: &Computed) {
        self.leaves(computed.unit);
        if !self.proven.contains(&computed.unit) {
            self.proven.push(computed.unit);
        }
        let unit = self.unit_mut(computed.unit);
        let began = computed.begun.max(unit.ended);
        unit.ended = unit.ended.max(computed.ended);
        unit.items += computed.items as f64;
        unit.seconds += computed.ended.saturating_sub(began).as_secs_f64();
        if let Some(rate) = unit.rate().filter(|_| computed.unit == self.first) {
            self.decide(rate);
        }
    }

    fn call(&mut self, unit: UnitId) {
        self.members.push(unit);
        self.called.push(unit);
    }

    /// Returns whether there would be nothing for somebody who has nothing to do, or will soon, if a unit took another package ahead.
    fn is_short(&self, remaining: u64) -> bool {
        let waits = |member: &&UnitId| self.unit(**member).in_flight == 0 || !self.proven.contains(member);
        remaining <= self.piece.saturating_mul(self.members.iter().filter(waits).count() as u64)
    }

    /// Returns whether the others would bring all that is not home sooner than a unit its own results and those of another package, as fast as results have
    /// travelled so far. A link of which nothing is known is as fast as the others.
    fn queues_up(&self, unit: UnitId, remaining: u64) -> bool {
        let travelling = self.travelling.of(unit);
        if self.members.len() < 2 || travelling < TRAVELLING {
            return false;
        }
        let part = self.pieces / (self.members.len() as u64 * UNKNOWN_LINK);
        if self.travelling.per_item(unit).is_none() && travelling >= part.max(LEAST_UNKNOWN) {
            return true;
        }
        let links = || self.members.iter().filter_map(|member| self.travelling.per_item(*member));
        let mean = if links().next().is_none() { 1.0 } else { links().sum::<f64>() / links().count() as f64 };
        let per_item = |unit: UnitId| self.travelling.per_item(unit).unwrap_or(mean);
        let not_home = |unit: UnitId| (self.unit(unit).in_flight + self.travelling.of(unit)) as f64;
        let packages: f64 = self.members.iter().map(|member| not_home(*member)).sum();
        let rate: f64 = self.members.iter().map(|member| 1.0 / per_item(*member)).sum();
        let all = (remaining as f64 + packages * self.piece as f64) / rate;
        (not_home(unit) + 1.0) * self.piece as f64 * per_item(unit) > all * LATE_HOME
    }

    /// Returns whether all would be done before a unit that is not the fastest is done with another package.
    fn comes_too_late(&self, unit: UnitId, remaining: u64) -> bool {
        let rates = || self.members.iter().filter_map(|member| self.unit(*member).rate());
        let Some(rate) = self.unit(unit).rate().filter(|own| rates().any(|rate| rate > *own)) else {
            return false;
        };
        let packages: u64 = self.members.iter().map(|member| self.unit(*member).in_flight).sum();
        let all = (remaining as f64 + packages as f64 * self.piece as f64) / rates().sum::<f64>();
        let own = (self.unit(unit).in_flight + 1) as f64 * self.piece as f64 / rate;
        own > all * LATE
    }

    /// Calls those up for whom the rest is long enough, where the first unit computes so many items per second.
    fn decide(&mut self, rate: f64) {
        let remaining = self.remaining as f64;
        let helps = |(_, freight): &mut (UnitId, Freight)| {
            // Nor does the first one get on faster than its data moves.
            let rate = rate.min(1.0 / freight.per_item);
            freight.helps(remaining, rate, rate)
        };
        let called: Vec<_> = self.others.extract_if(.., helps).collect();
        called.into_iter().for_each(|(other, _)| self.call(other));
    }
}

impl Policy for Twins {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        self.remaining = remaining;
        if !self.members.contains(&unit) {
            return None;
        }
        let ahead = self.unit(unit).in_flight;
        if !self.proven.contains(&unit) {
            return (ahead == 0).then_some(self.short);
        }
        let gets = ahead == 0 || ahead < AHEAD && !self.is_short(remaining);
        (gets && !self.queues_up(unit, remaining) && !self.comes_too_late(unit, remaining))
            .then_some(self.piece)
    }

    fn handed(&mut self, package: &Package, _: Duration) {
        self.remaining = self.remaining.saturating_sub(package.items());
        self.unit_mut(package.unit()).in_flight += 1;
    }

    fn ended(&mut self, computed: &Computed) {
        self.travelling.depart(computed);
        self.learn(computed);
    }

    fn computed(&mut self, computed: &Computed) {
        if !self.travelling.arrive(computed) {
            self.learn(computed);
        }
    }

    fn given_back(&mut self, package: &Package) {
        self.remaining = self.remaining.saturating_add(package.items());
        if !self.travelling.come_back(package) {
            self.leaves(package.unit());
        }
    }

    fn retire(&mut self, unit: UnitId) {
        self.others.retain(|(other, _)| *other != unit);
        self.members.retain(|member| *member != unit);
        if unit == self.first {
            // Whoever is left is called up.
            std::mem::take(&mut self.others).into_iter().for_each(|(other, _)| self.call(other));
        }
    }

    fn call_up(&mut self) -> Vec<UnitId> {
        // Nobody is to begin for nothing.
        if self.remaining == 0 {
            return Vec::new();
        }
        std::mem::take(&mut self.called)
    }
}

#[cfg(test)]
#[path = "twins_tests.rs"]
mod tests;
