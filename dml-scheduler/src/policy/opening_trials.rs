//! When a trial begins beside the first unit, and of whom none is worth its while.
//!
//! ```text
//!   first unit   ▏sample▏longer sample▏ ── a unit would move an item for longer than this one takes ──▶ no trial
//!                            │
//!                            └─ it has taken so long already, or the run has ──▶ the trial begins
//! ```

use super::{Freight, Opening, Tries};
use crate::UnitId;
use std::time::Duration;

/// A sample that takes so long already is worth a trial, which holds nobody up. But what moves for it disturbs who computes, and a first package may take so
/// long because none of its code is in the caches yet. So the sample is to have taken this part of what the trial takes, or the last of these times.
const TRIAL_SECONDS: f64 = 20e-6;
const TRIAL_EVIDENCE: f64 = 0.125;
const TRIAL_MOST_SECONDS: f64 = 30e-6;
/// In runs whose rest takes longer than this it is worth finding out whether a unit helps that moves an item for longer than another computes it.
const MOVING_SECONDS: f64 = 4e-3;

impl Opening {
    /// Whether the first unit's package has taken so long already that the device that can be tried out would be done in its place.
    pub(super) fn could_be_replaced(&self, by: UnitId, now: Duration) -> bool {
        let Some((items, handed)) = self.sampled else { return false };
        let others = items as f64 / now.saturating_sub(handed).as_secs_f64();
        self.freight_of(by).is_some_and(|freight| freight.could_replace(items as f64, others))
    }

    /// The least seconds per item of the first unit, by the last sample or by how long the one under way takes already; `None` while that is
    /// no longer than a launch. It may be one thread's.
    fn least_per_item(&self, now: Duration) -> Option<f64> {
        let net = |handed: Duration| self.samples.net(now.saturating_sub(handed).as_secs_f64());
        let under_way = self.sampled.map(|(items, handed)| (items as f64, net(handed)));
        let told = [under_way, self.samples.last].into_iter().flatten();
        let takes = self.tries.map_or(0.0, |tries| tries.takes);
        let least = (takes * TRIAL_EVIDENCE).clamp(TRIAL_SECONDS, TRIAL_MOST_SECONDS);
        let per_item = told.filter(|(_, seconds)| *seconds >= least).map(|(items, seconds)| seconds / items);
        per_item.reduce(f64::min).map(|seconds| seconds / self.samples.threads.max(1) as f64)
    }

    /// Whether the unit that can be tried out could help, by the least that the first unit may take.
    pub(super) fn is_trial_worth_while(&self, now: Duration) -> bool {
        let (Some(Tries { unit, .. }), Some(per_item)) = (self.tries, self.least_per_item(now)) else {
            return false;
        };
        let helps = |freight: Freight| freight.could_help(self.remaining as f64, 1.0 / per_item);
        self.freight_of(unit).is_some_and(helps) && !self.moves_longer(unit, per_item)
    }

    /// Whether an item's data takes a unit longer to move than others take to compute it. By their rates both would be done sooner than one. But then the
    /// host's memory has less left for who computes there. A unit that earlier runs know is judged by what they know.
    pub(super) fn moves_longer(&self, unit: UnitId, per_item: f64) -> bool {
        let is_short = per_item * (self.remaining as f64) < MOVING_SECONDS;
        is_short && self.per_item(unit) >= per_item && !self.inner.is_trusted(unit)
    }

    /// Whether that is so of all others, by the last sample.
    pub(super) fn do_all_move_longer(&self) -> bool {
        let move_longer =
            |per_item: f64| self.others.iter().all(|(unit, _)| self.moves_longer(*unit, per_item));
        self.samples.awake_per_item().is_some_and(move_longer)
    }

    /// Whether a trial may begin though the samples do not say that it is worth its while. One that has ended was no longer than a launch, and the next ones
    /// soon say more. They are waited for until the inputs of the trial's items could have come, and where an item takes longer to move than to compute.
    pub(super) fn may_be_early(&self, Tries { unit, takes, .. }: Tries, now: Duration) -> bool {
        let Some((items, seconds)) = self.samples.last else { return true };
        let at_best = seconds / items / self.samples.threads.max(1) as f64;
        let setup = self.freight_of(unit).map_or(0.0, |freight| freight.setup);
        now.as_secs_f64() >= takes - setup && !self.moves_longer(unit, at_best)
    }
}
