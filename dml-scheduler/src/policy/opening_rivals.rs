//! Two units that compute on the same cores: which of them is the faster one.
//!
//! ```text
//!   first unit   ▏samples▏short packages▏           ▏ package ▏
//!   its rival             └▶ trial ────▶ package ──▶▏         └▶ the faster one goes on alone
//! ```
//! Together they would take the cores from each other, and take longer than either alone. So they compute one after the other, and only where
//! the rest takes so long that this hardly counts. A trial comes first: a rival that takes far too long, because it compiles its
//! kernel or hangs, holds nobody up. Then each has a package of the same length, next to each other, since items differ.

use super::{Computed, Freight, GROWTH, Opening, Package, Policy, Stage, UnitId};
use std::ops::Range;
use std::time::Duration;

/// The least seconds of the rest for which units are compared. What that costs is a few launches.
const LEAST_REST_SECONDS: f64 = 8e-3;
/// The part of the rest that the trial is of, and that each one's package is.
const TRIAL: u64 = 64;
const PACKAGE: u64 = 32;
/// The least seconds that the trial and a package take the first unit: several launches.
const LEAST_SECONDS: f64 = 300e-6;
/// The seconds of a sample that a trial is compared with, and the most that it is of the rest. Shorter ones are launches and the waking of threads.
const SAMPLE_SECONDS: f64 = 1e-3;
const SAMPLE: u64 = 8;
/// A rival with less than this part of the first unit's rate in its trial is not compared any further. The trial was of other items, and both computed
/// meanwhile.
const PROMISING: f64 = 0.3;
/// How many times as fast as the first unit a rival has to be to take its place.
const FASTER: f64 = 1.1;

/// The comparison of the first unit with its rival.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns {
    /// The items of each one's package.
    items: u64,
    /// When the comparison began.
    since: Duration,
    /// Whether the one whose turn it is has its package, and which that is, as soon as that is known.
    is_handed: bool,
    package: Option<Range<u64>>,
    /// The rival's items per second, once it has computed its package.
    rival_rate: Option<f64>,
}

impl Opening {
    /// Lets the first unit compute all, unless it has a rival that is worth a comparison. If that cannot be said yet, it computes another
    /// sample.
    pub(super) fn alone(&mut self) {
        let rest = |per_item: f64| per_item * self.remaining as f64;
        let Some((_, freight)) = self.rival else {
            self.stage = Stage::Alone;
            return;
        };
        let remaining = self.remaining as f64;
        let told = self.samples.seconds_per_item();
        let helps = |per_item: f64| freight.could_replace(remaining, 1.0 / per_item);
        let is_long = |per_item: f64| rest(per_item) >= LEAST_REST_SECONDS && helps(per_item);
        match told {
            // A longer sample says more.
            Some((gross, _)) if !self.samples.is_long() && is_long(gross) => {}
            Some((_, net)) if self.samples.is_long() && is_long(net) => {
                (self.stage, self.begins) = (Stage::Trying, true);
            }
            _ => self.drop_rival(),
        }
    }

    /// Lets the first unit compute all.
    pub(super) fn drop_rival(&mut self) {
        if let Some((rival, _)) = self.rival.take() {
            self.inner.retire(rival);
        }
        self.stage = Stage::Alone;
    }

    /// How many times as many items the next sample has, if the last one told enough of a run without a rival.
    pub(super) fn growth_beside_rival(&self) -> Option<u64> {
        let (items, seconds) = self.samples.last.filter(|_| self.rival.is_some() && self.is_telling())?;
        let most = (self.remaining / SAMPLE / (items as u64).max(1)).clamp(1, GROWTH);
        Some(((SAMPLE_SECONDS / seconds).ceil() as u64).clamp(1, most)) // The cast saturates.
    }

    /// On how many items the rival is tried out.
    pub(super) fn trial_of_rival(&self) -> u64 {
        (self.remaining / TRIAL).max(self.items_of_first(LEAST_SECONDS))
    }

    /// How many items the first unit computes in so many seconds, one at least.
    fn items_of_first(&self, seconds: f64) -> u64 {
        let per_item = self.samples.seconds_per_item().map_or(f64::INFINITY, |(_, net)| net);
        ((seconds / per_item) as u64).clamp(1, self.remaining.max(1)) // The cast saturates.
    }

    /// Learns how the rival's trial went. If it is promising, it has its turn.
    pub(super) fn rival_was_tried(&mut self, rival: UnitId, computed: Option<&Computed>) {
        let least = self.samples.seconds_per_item().map_or(f64::INFINITY, |(_, net)| PROMISING / net);
        match computed {
            Some(computed) if self.rate(computed) >= least => {
                self.now = self.now.max(computed.ended);
                let items = (self.remaining / PACKAGE).max(self.items_of_first(LEAST_SECONDS));
                self.turns = Turns { items, since: computed.ended, ..Turns::default() };
                (self.stage, self.called) = (Stage::Turns, vec![rival]);
            }
            _ => self.drop_rival(),
        }
    }

    /// Whose turn it is.
    fn turn(&self) -> Option<UnitId> {
        match self.turns.rival_rate {
            None => self.rival.map(|(rival, _)| rival),
            Some(_) => Some(self.first),
        }
    }

    /// The length of the package of a unit whose turn it is, once the other one has ended what it had.
    pub(super) fn in_turn(&mut self, unit: UnitId) -> Option<u64> {
        let is_quiet = |(rival, _): (UnitId, Freight)| {
            [rival, self.first].iter().all(|other| *other == unit || self.pace_of(*other).in_flight == 0)
        };
        if self.turn() != Some(unit) || self.turns.is_handed || !self.rival.is_some_and(is_quiet) {
            return None;
        }
        self.turns.is_handed = true;
        Some(self.turns.items)
    }

    /// Learns what the package showed of the unit whose turn it is.
    pub(super) fn took_turn(&mut self, computed: &Computed) {
        // What was handed out before is of the trial, or of the samples.
        if !self.turns.is_handed || self.turn() != Some(computed.unit) || computed.handed < self.turns.since {
            return;
        }
        (self.turns.is_handed, self.turns.package) = (false, None);
        let rate = self.rate(computed);
        match (self.turns.rival_rate, self.rival) {
            (Some(rival_rate), Some(rival)) if rival_rate > rate * FASTER => self.replace(rival),
            (Some(_), _) => self.drop_rival(),
            (None, _) => self.turns.rival_rate = Some(rate),
        }
    }

    /// Learns which package it is that the unit whose turn it is has got.
    pub(super) fn turn_begins(&mut self, package: &Package) {
        if self.turns.is_handed && self.turn() == Some(package.unit()) {
            self.turns.package.get_or_insert_with(|| package.range());
        }
    }

    /// A package came back. If it was that of the unit whose turn it is, it is that unit's turn again.
    pub(super) fn turn_came_back(&mut self, package: &Package) {
        if self.turn() == Some(package.unit()) && self.turns.package == Some(package.range()) {
            (self.turns.is_handed, self.turns.package) = (false, None);
        }
    }

    /// Items per second of a package. Moving a rival's data takes the cores that both compute on.
    fn rate(&self, computed: &Computed) -> f64 {
        let own = self.rival.filter(|(rival, _)| *rival == computed.unit);
        let moved = own.map_or(0.0, |(_, freight)| freight.per_item * computed.items as f64);
        computed.items as f64 / (computed.ended.saturating_sub(computed.begun).as_secs_f64() + moved)
    }

    /// Lets the rival compute the rest.
    fn replace(&mut self, rival: (UnitId, Freight)) {
        self.rival = None;
        self.others = vec![rival];
        self.pace_mut(self.first).is_dropped = true;
        self.inner.retire(self.first);
        self.stage = Stage::Together;
    }
}

#[cfg(test)]
#[path = "opening_rivals_tests.rs"]
mod tests;
