//! The opening of a run of which nothing is known, on devices of one model: one computes as if it were alone, and calls its twins up.
//!
//! ```text
//!   first unit   ▏package▏package▏package▏ ── the rest is short ──▶ all of it
//!                        │
//!                        └──── the rest is long ──▶ the next ones go to whoever asks
//! ```
//! A device that computes alone has a few packages in any case, so that its transfers overlap with computing. The first of them that ends
//! shows how fast it is, and with that how fast its twins are. So a run that is too short for two is that of one, and costs no more. The
//! packages stay as long as they are: nobody knows yet whether shorter ones would take less time.

use super::travelling::Travelling;
use super::{Computed, Freight, Policy};
use crate::{Package, UnitId};
use std::time::Duration;

/// How many packages a unit has at most that it has not computed: nobody else can help with those. The second one hides the time from the end of
/// the first to its launch.
const AHEAD: u64 = 2;

/// Equal packages, at first for one of several units that are as fast as each other.
#[derive(Debug, Clone)]
pub(crate) struct Twins {
    first: UnitId,
    /// The units that take part.
    members: Vec<UnitId>,
    /// The items of a package.
    piece: u64,
    /// The units that could join, until it is decided that they do.
    others: Vec<(UnitId, Freight)>,
    /// The unassigned items, as of the last package handed out.
    remaining: u64,
    /// The packages that each unit has and has not computed.
    in_flight: Vec<u64>,
    travelling: Travelling,
    /// What the first unit has computed, in items and seconds, and until when.
    computed: (f64, f64),
    ended: Duration,
    /// The units that are called up, and were not yet told.
    called: Vec<UnitId>,
}

impl Twins {
    /// Lets `first` begin a run of `work` items in so many packages. Who is not among the others either gets nothing.
    pub(crate) fn new((work, pieces): (u64, u64), first: UnitId, others: Vec<(UnitId, Freight)>) -> Self {
        Self {
            first,
            members: vec![first],
            piece: work.div_ceil(pieces.max(1)),
            others,
            remaining: work,
            in_flight: Vec::new(),
            travelling: Travelling::default(),
            computed: (0.0, 0.0),
            ended: Duration::ZERO,
            called: Vec::new(),
        }
    }

    /// Lets all take part from the start: it is known that the run is long enough.
    #[must_use]
    pub(crate) fn at_once(mut self) -> Self {
        self.members.extend(self.others.drain(..).map(|(other, _)| other));
        self
    }

    fn in_flight(&mut self, unit: UnitId) -> &mut u64 {
        if unit.0 >= self.in_flight.len() {
            self.in_flight.resize(unit.0 + 1, 0);
        }
        &mut self.in_flight[unit.0]
    }

    fn leaves(&mut self, unit: UnitId) {
        let in_flight = self.in_flight(unit);
        *in_flight = in_flight.saturating_sub(1);
    }

    /// Learns that a package was computed.
    fn learn(&mut self, computed: &Computed) {
        self.leaves(computed.unit);
        if computed.unit != self.first || self.others.is_empty() {
            return;
        }
        let began = computed.begun.max(self.ended);
        self.ended = self.ended.max(computed.ended);
        self.computed.0 += computed.items as f64;
        self.computed.1 += computed.ended.saturating_sub(began).as_secs_f64();
        let (items, seconds) = self.computed;
        if items > 0.0 && seconds > 0.0 {
            self.decide(items / seconds);
        }
    }

    fn call(&mut self, unit: UnitId) {
        self.members.push(unit);
        self.called.push(unit);
    }

    /// Returns whether there would be nothing for somebody who has nothing to do, if a unit took another package ahead.
    fn is_short(&mut self, remaining: u64) -> bool {
        let idle =
            (0..self.members.len()).filter(|&member| *self.in_flight(self.members[member]) == 0).count();
        remaining <= self.piece.saturating_mul(idle as u64)
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
        let ahead = *self.in_flight(unit);
        let gets = self.members.contains(&unit) && (ahead == 0 || ahead < AHEAD && !self.is_short(remaining));
        gets.then_some(self.piece)
    }

    fn handed(&mut self, package: &Package, _: Duration) {
        self.remaining = self.remaining.saturating_sub(package.items());
        *self.in_flight(package.unit()) += 1;
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
