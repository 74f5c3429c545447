//! Packages that a trial has computed as well as those who have them.
//!
//! ```text
//!   host   ▏package ......................... withdrawn ▏
//!   trial       ▏the rest, and that package ▏           ▏copies both
//!                                           └─ is it late by now?
//! ```
//! Whoever is done first has computed it. Whoever leaves a package copies the trial's results to what its launch was granted: nobody else sees what that has written. What a package still takes is guessed by the last one that began beside the trial; to leave it, and to
//! copy the trial's results, takes some time as well.

use crate::package::{Package, UnitId};
use crate::trial::Results;
use dml_core::Withdrawal;
use dml_core::sync::Arc;
use std::time::{Duration, Instant};

/// What it takes to leave a package and to copy the trial's results. A package is withdrawn if it takes so much longer than the trial, or than it was
/// expected to.
const LEAVING: Duration = Duration::from_micros(100);

/// What a run knows of such packages.
#[derive(Debug, Default)]
pub(crate) struct Overtaking {
    /// The packages that began beside the trial.
    begun: Vec<Begun>,
    /// The seconds per item of the last one of these that was computed.
    pace: Option<f64>,
    /// Whose trial it was, and when it had ended.
    tried: Option<(UnitId, Instant)>,
    /// Those that the trial has computed and their units are still at.
    awaited: Vec<Package>,
    /// The results of the trial, as long as somebody may copy them.
    results: Option<Arc<Results>>,
    /// Those that were given up, and whose results are copied.
    given_up: Vec<Package>,
    lost: Vec<Overtaken>,
}

/// A package that began beside a trial, and how it can be withdrawn.
#[derive(Debug)]
struct Begun {
    package: Package,
    withdrawal: Withdrawal,
    at: Instant,
}

impl Begun {
    /// Whether a trial that had computed the same at some time is better not kept waiting any longer. As long as nobody knows how long it takes, it may
    /// take for ever.
    fn is_late(&self, pace: Option<f64>, tried: Instant, now: Instant) -> bool {
        let Some(pace) = pace else { return true };
        let takes = Duration::try_from_secs_f64(pace * self.package.items() as f64).unwrap_or(Duration::MAX);
        let had = tried.saturating_duration_since(self.at);
        let has_taken = now.saturating_duration_since(self.at);
        takes.saturating_sub(had) > LEAVING || has_taken > takes.max(had).saturating_add(LEAVING)
    }
}

/// A package that a unit gave up, because another one had computed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overtaken {
    pub(crate) unit: UnitId,
    pub(crate) items: u64,
    /// How long the unit had computed it.
    pub(crate) took: Duration,
}

impl Overtaking {
    /// Notes that a package begins beside a trial. Returns how its launch is withdrawn.
    pub(crate) fn begins(&mut self, package: &Package, at: Instant) -> Withdrawal {
        let withdrawal = Withdrawal::new();
        self.begun.push(Begun { package: package.clone(), withdrawal: withdrawal.clone(), at });
        self.withdraw_late(at);
        withdrawal
    }

    /// Notes that a package is computed by its own unit.
    pub(crate) fn computed(&mut self, package: &Package, now: Instant) {
        let begun = self.begun.iter().find(|begun| begun.package == *package);
        if let Some(Begun { at, .. }) = begun {
            self.pace = Some(now.saturating_duration_since(*at).as_secs_f64() / package.items() as f64);
        }
        self.forget(package);
    }

    /// Notes that nobody is at a package any more.
    pub(crate) fn forget(&mut self, package: &Package) {
        self.begun.retain(|begun| begun.package != *package);
        self.awaited.retain(|other| other != package);
    }

    /// Notes that a unit's trial has computed packages of others, for which nobody has anything else to do.
    pub(crate) fn tried(&mut self, unit: UnitId, awaited: Vec<Package>, now: Instant) {
        self.tried = Some((unit, now));
        self.awaited = awaited;
        self.withdraw_late(now);
    }

    /// Withdraws the packages that the trial has computed as well, and that are late. Returns whether one is not late yet.
    pub(crate) fn withdraw_late(&self, now: Instant) -> bool {
        let Some((_, tried)) = self.tried else { return false };
        let is_awaited = |begun: &&Begun| self.awaits(&begun.package);
        let (late, in_time): (Vec<_>, Vec<_>) =
            self.begun.iter().filter(is_awaited).partition(|begun| begun.is_late(self.pace, tried, now));
        late.iter().for_each(|begun| begun.withdrawal.withdraw());
        !in_time.is_empty()
    }

    /// Whose trial it was.
    pub(crate) fn unit(&self) -> Option<UnitId> {
        self.tried.map(|(unit, _)| unit)
    }

    pub(crate) fn awaits(&self, package: &Package) -> bool {
        self.awaited.contains(package)
    }

    pub(crate) fn awaits_any(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Awaits only such packages from now on.
    pub(crate) fn await_only(&mut self, is_one: impl Fn(&Package) -> bool) {
        self.awaited.retain(is_one);
    }

    /// Takes the results of the trial.
    pub(crate) fn offer(&mut self, results: Arc<Results>) {
        self.results = Some(results);
    }

    /// The results of the trial, as long as somebody may copy them.
    pub(crate) fn results(&self) -> Option<Arc<Results>> {
        self.results.clone()
    }

    /// Notes that nobody copies anything any more. Returns the results, which are not to be freed under a lock.
    pub(crate) fn end(&mut self) -> Option<Arc<Results>> {
        self.given_up.clear();
        self.results.take()
    }

    /// Notes that a package was given up, and under which name the unit of the trial has it now.
    pub(crate) fn given_up(&mut self, package: &Package, claimed: Package, took: Duration) {
        self.lost.push(Overtaken { unit: package.unit(), items: package.items(), took });
        self.given_up.push(claimed);
    }

    /// Notes that the results of a package are copied, or could not be.
    pub(crate) fn copied(&mut self, claimed: &Package) {
        self.given_up.retain(|other| other != claimed);
    }

    /// Returns whether somebody copies results.
    pub(crate) fn are_copied(&self) -> bool {
        !self.given_up.is_empty()
    }

    /// What was given up in all.
    pub(crate) fn lost(&self) -> &[Overtaken] {
        &self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: UnitId = UnitId(0);
    const GPU: UnitId = UnitId(1);
    const MICRO: Duration = Duration::from_micros(1);

    fn package(range: std::ops::Range<u64>) -> Package {
        Package::new(range, HOST, 0)
    }

    /// One that begins when a package of as many items has taken so long, if there was one.
    fn begun(pace: Option<u32>, began: Instant) -> (Overtaking, Package, Withdrawal) {
        let mut overtaking = Overtaking::default();
        if let Some(micros) = pace {
            let before = package(0..10);
            assert!(!overtaking.begins(&before, began).is_withdrawn());
            overtaking.computed(&before, began + micros * MICRO);
        }
        let package = package(10..20);
        let withdrawal = overtaking.begins(&package, began);
        (overtaking, package, withdrawal)
    }

    #[test]
    fn a_package_is_withdrawn_that_takes_much_longer_than_the_trial() {
        let began = Instant::now();
        // What one took before, after what time the trial ends, and whether it waits for the package then.
        for (pace, ended, waits) in [
            (None, 0, false),
            (None, 1000, false),
            (Some(50), 10, true),
            (Some(110), 10, true),
            (Some(111), 10, false),
            (Some(1_000_000), 10, false),
            (Some(1_000_000), 999_901, true),
            (Some(10), 5000, true),
        ] {
            let (mut overtaking, package, withdrawal) = begun(pace, began);
            let ended = began + ended * MICRO;
            overtaking.tried(GPU, vec![package], ended);
            assert_eq!(withdrawal.is_withdrawn(), !waits, "{pace:?}");
            assert_eq!(overtaking.withdraw_late(ended), waits);
        }
    }

    #[test]
    fn a_package_is_withdrawn_that_takes_much_longer_than_was_expected() {
        let began = Instant::now();
        for (pace, ended, late) in [(50, 10, 150), (50, 400, 500), (90, 10, 190)] {
            let (mut overtaking, package, withdrawal) = begun(Some(pace), began);
            overtaking.tried(GPU, vec![package], began + ended * MICRO);
            assert!(overtaking.withdraw_late(began + late * MICRO), "{pace}");
            assert!(!withdrawal.is_withdrawn());
            assert!(!overtaking.withdraw_late(began + (late + 1) * MICRO));
            assert!(withdrawal.is_withdrawn(), "{pace}");
        }
    }

    #[test]
    fn only_what_the_trial_has_computed_is_withdrawn() {
        let now = Instant::now();
        let (mut overtaking, package, withdrawal) = begun(None, now);
        let other = Package::new(20..30, HOST, 1);
        let others = overtaking.begins(&other, now);
        assert!(!overtaking.withdraw_late(now + 100_000 * MICRO), "no trial has ended");
        overtaking.tried(GPU, vec![package.clone()], now);
        assert_eq!((withdrawal.is_withdrawn(), others.is_withdrawn()), (true, false));
        assert_eq!((overtaking.awaits(&package), overtaking.awaits(&other)), (true, false));
        overtaking.forget(&package);
        assert!(!overtaking.awaits_any());
        // Nor is it withdrawn twice as another one: that is begun anew.
        assert!(!overtaking.begins(&package, now).is_withdrawn());
    }

    /// A unit may have taken it, and not begun.
    #[test]
    fn a_package_that_begins_after_the_trial_has_computed_it_is_withdrawn_at_once() {
        let now = Instant::now();
        let mut overtaking = Overtaking::default();
        overtaking.tried(GPU, vec![package(0..10)], now);
        assert!(overtaking.begins(&package(0..10), now).is_withdrawn());
        assert_eq!(overtaking.unit(), Some(GPU));
    }

    /// Items that take no time, or for ever, say nothing that could not be.
    #[test]
    fn no_pace_is_too_much() {
        let began = Instant::now();
        for took in [0, u32::MAX] {
            let (mut overtaking, _, _) = begun(Some(took), began);
            let all = Package::new(20..u64::MAX, HOST, 2);
            let withdrawal = overtaking.begins(&all, began);
            overtaking.tried(GPU, vec![all], began);
            assert_eq!(withdrawal.is_withdrawn(), took > 0);
        }
    }
}
