//! The opening of a run of which nothing is known: one unit begins, and others join if that is worth their while.
//!
//! ```text
//!   first unit   ▏sample▏longer sample▏longer sample▏ ── the rest is short ──▶ all of it
//!                                                  │
//!                                                  └──── the rest is long ────▶ the others are called up
//! ```
//! Nobody knows yet which device is the best one. But the first unit costs next to nothing to set going (the host's), and
//! after some tens of microseconds it has shown how long the rest takes. If that is shorter than what the others take to begin,
//! the run is over before they could help. Otherwise they join, and no package is longer than a part of the run so far, so that
//! a unit that turns out to be slow does not keep the others waiting at the end. One that turns out to do next to nothing is
//! left out.

use super::{Calibrated, Computed, Policy};
use crate::{Package, UnitId};
use std::time::Duration;

/// How many times as many items each sample has as the one before, at most: as many as would take [`SAMPLE_SECONDS`], or so many times
/// as many where the last one took as long as a shorter one. One that was telling is repeated once, because the first one woke the
/// host's threads.
const GROWTH: u64 = 32;
const SAMPLE_SECONDS: f64 = 150e-6;
/// A sample of this time says more about the kernel than about the clock and the launch.
const TELLING_SECONDS: f64 = 60e-6;
/// A sample of this time says enough, though it woke the host's threads.
const LONG_SECONDS: f64 = 2e-3;
/// What the time with another unit could be, of that without, for the unit to be called up: more than a little, because
/// units disturb each other, and because it takes time to learn what a unit can do.
const WORTH_WHILE: f64 = 0.6;
/// The part of the rest that is the first package of a unit that joins. It is done before the rest is, unless the unit is so many
/// times as slow as the others.
const FIRST: u64 = 32;
/// How many times as long as the longest one before a package of a unit may be, as long as it may be its launch that took the
/// time: of a package shorter than this, of its first one shorter than that, and of one that took as long as a much shorter one.
const LEAP: u64 = 16;
const SHORT_SECONDS: f64 = 100e-6;
const FIRST_SECONDS: f64 = 1e-3;
/// How many times as long as its launch a package is at least, if the unit's part of the rest is.
const LAUNCHES: f64 = 2.0;
/// Two packages whose items differ by more, and whose times by less, took the time that a launch takes, if that is less than
/// [`FIRST_SECONDS`]. Or less than the last of these, of a dominant unit: a GPU may take milliseconds for an item, and no longer for thousands.
const FLAT_ITEMS: f64 = 1.3;
const FLAT_SECONDS: f64 = 1.2;
const FLAT_MOST_SECONDS: f64 = 20e-3;
/// A unit that does so much of what all units do is dominant. It gets no package shorter than [`LAUNCHES`] times its shortest one: that would be a
/// launch and little else, and nobody is there who could do the rest meanwhile.
const DOMINANT: f64 = 0.8;
/// A unit of which nothing is known may be so many times as fast as those that are.
const FASTEST: f64 = 256.0;
/// A unit with less than this part of what all units do is left out from then on, once each has done [`MEASURED`] packages.
/// It can shorten the run by no more, and may lengthen it at the end.
const LEAST_SHARE: f64 = 0.1;
const MEASURED: u64 = 3;
/// The least time of a package, except of the last one.
const LEAST_SECONDS: f64 = 50e-6;
/// The part of the rest that the fastest unit gets where the rates say that it should wait for the others.
const SINGLE: f64 = 1.0 / 6.0;
/// The part of the run so far that a package may take. Of the fastest unit: that all of its packages under way may take. And the least
/// such time.
const PATIENCE: f64 = 0.125;
const PATIENCE_WITH_FASTEST: f64 = 1.0;
const LEAST_PATIENCE_SECONDS: f64 = 50e-6;

/// What is known of a unit that could join: not how fast it computes, but what moving its data takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Freight {
    /// The least seconds before its first package begins.
    pub(crate) setup: f64,
    /// The least seconds per item.
    pub(crate) per_item: f64,
}

impl Freight {
    /// Returns whether the unit could be worth its while in a run of `items`, of which the others compute `others` per second: if
    /// it computed as fast as its data moves, and were no more than [`FASTEST`] times as fast as they are.
    pub(crate) fn could_help(&self, items: f64, others: f64) -> bool {
        let without = items / others;
        let rate = (1.0 / self.per_item).min(others * FASTEST);
        let with = (items + self.setup * rate) / (rate + others);
        self.setup < without && with < without * WORTH_WHILE
    }
}

/// Calibrated, begun by one unit.
#[derive(Debug, Clone)]
pub(crate) struct Opening {
    inner: Calibrated,
    first: UnitId,
    /// The units that could join.
    others: Vec<(UnitId, Freight)>,
    stage: Stage,
    /// The unassigned items, as of the last package handed out.
    remaining: u64,
    samples: Samples,
    now: Duration,
    /// How fast each unit was lately.
    paces: Vec<Pace>,
    /// The units that are called up, and were not yet told.
    called: Vec<UnitId>,
}

/// How fast a unit was lately.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    /// Items per second of the last package that took any time.
    rate: Option<f64>,
    /// Whether that package took as long as one of another size: then it is its launch that takes the time.
    is_flat: bool,
    /// The last package's items and seconds.
    last: Option<(u64, f64)>,
    /// The highest such rate.
    best: f64,
    /// The seconds that its launch takes, by the last two packages of different sizes that took as long; 0 before.
    launch: f64,
    /// The seconds of its shortest package.
    least: f64,
    /// Whether that package's launch may have taken most of its time: then the unit may be far faster than it seems.
    is_open: bool,
    /// The items of its longest package.
    most: u64,
    /// The packages that it has, and their items.
    in_flight: u64,
    ahead: u64,
    /// When the last package was done.
    done: Duration,
    packages: u64,
    is_dropped: bool,
}

impl Pace {
    /// One of its packages is no more under way.
    fn leaves(&mut self, items: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ahead = self.ahead.saturating_sub(items);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The first unit computes samples.
    Sampling,
    /// The first unit computes all.
    Alone,
    /// Others have joined.
    Together,
}

/// Whether two packages, each as items and seconds, differ in their items alone.
fn is_flat(one: (f64, f64), other: (f64, f64), most_seconds: f64) -> bool {
    let (small, large) = if one.0 < other.0 { (one, other) } else { (other, one) };
    let longer = small.1.max(large.1);
    large.0 > small.0 * FLAT_ITEMS && longer < (small.1.min(large.1) * FLAT_SECONDS).min(most_seconds)
}

/// The last two samples, as items and seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Samples {
    before: Option<(f64, f64)>,
    last: Option<(f64, f64)>,
}

impl Samples {
    fn add(&mut self, items: u64, seconds: f64) {
        self.before = self.last;
        self.last = Some((items as f64, seconds));
    }

    /// Whether the last sample took as long as a shorter one: then it took what a launch takes.
    fn is_flat(&self) -> bool {
        self.before.zip(self.last).is_some_and(|(before, last)| is_flat(before, last, FIRST_SECONDS))
    }

    /// Whether the last sample took long enough to say something about the kernel.
    fn is_telling(&self) -> bool {
        self.last.is_some_and(|(_, seconds)| seconds >= TELLING_SECONDS) && !self.is_flat()
    }

    /// Whether the last sample took far longer than it takes to wake the host's threads.
    fn is_long(&self) -> bool {
        self.last.is_some_and(|(_, seconds)| seconds >= LONG_SECONDS)
    }

    /// Seconds per item: by the last sample with all that it cost, and by what it took longer than the one before.
    fn seconds_per_item(&self) -> Option<(f64, f64)> {
        let (items, seconds) = self.last?;
        let gross = seconds / items;
        let net = match self.before {
            Some((before, took)) if items > before && seconds > took => (seconds - took) / (items - before),
            _ => gross,
        };
        Some((gross, net.min(gross)))
    }
}

impl Opening {
    /// Lets `first` begin a run of `work` items; of the others is known what `others` says. Units that are in neither are
    /// left out for good.
    pub(crate) fn new(inner: Calibrated, work: u64, first: UnitId, others: Vec<(UnitId, Freight)>) -> Self {
        Self {
            inner,
            first,
            others,
            stage: Stage::Sampling,
            remaining: work,
            samples: Samples::default(),
            now: Duration::ZERO,
            paces: Vec::new(),
            called: Vec::new(),
        }
    }

    /// Lets all begin at once.
    #[must_use]
    pub(crate) fn at_once(mut self) -> Self {
        self.stage = Stage::Together;
        self
    }

    /// Decides, as far as the samples allow it, whether others join.
    fn decide(&mut self) {
        let Some((gross, net)) = self.samples.seconds_per_item() else { return };
        let is_telling =
            self.samples.is_telling() && (self.samples.before.is_some() || self.samples.is_long());
        let remaining = self.remaining as f64;
        let joining = |per_item: f64| -> Vec<UnitId> {
            let helps = |freight: &Freight| freight.could_help(remaining, 1.0 / per_item);
            self.others.iter().filter(|(_, freight)| helps(freight)).map(|(unit, _)| *unit).collect()
        };
        // Nobody could help even if the rest took as long per item as a sample with all that it cost.
        if joining(gross).is_empty() {
            self.stage = Stage::Alone;
        } else if is_telling {
            let called = joining(net);
            if called.is_empty() {
                self.stage = Stage::Alone;
                return;
            }
            for (unit, _) in &self.others {
                if !called.contains(unit) {
                    self.inner.retire(*unit);
                }
            }
            self.others.retain(|(unit, _)| called.contains(unit));
            self.called = called;
            self.stage = Stage::Together;
        }
    }

    /// Learns how fast a unit was lately.
    fn pace(&mut self, computed: &Computed) {
        let is_first = computed.unit == self.first;
        let flat_seconds = if self.is_dominant(computed.unit) { FLAT_MOST_SECONDS } else { FIRST_SECONDS };
        let pace = self.pace_mut(computed.unit);
        pace.leaves(computed.items);
        // While the package before was under way, this one had to wait.
        let seconds = computed.done.saturating_sub(pace.done.max(computed.handed)).as_secs_f64();
        if seconds > 0.0 && computed.items > 0 {
            pace.rate = Some(computed.items as f64 / seconds);
            let this = (computed.items as f64, seconds);
            let flat = pace.last.filter(|(items, took)| is_flat((*items as f64, *took), this, flat_seconds));
            pace.is_flat = flat.is_some();
            pace.launch = flat.map_or(pace.launch, |(_, took)| seconds.min(took));
            pace.last = Some((computed.items, seconds));
            // What the first unit is like, its samples have shown.
            let most = if pace.packages == 0 { FIRST_SECONDS } else { SHORT_SECONDS };
            pace.is_open = pace.is_flat || (!is_first && seconds < most);
            pace.least = if pace.least > 0.0 { pace.least.min(seconds) } else { seconds };
            pace.most = pace.most.max(computed.items);
            pace.best = pace.best.max(computed.items as f64 / seconds);
        }
        pace.done = pace.done.max(computed.done);
        pace.packages += 1;
        if self.stage == Stage::Together {
            self.drop_slow();
        }
    }

    fn pace_mut(&mut self, unit: UnitId) -> &mut Pace {
        if unit.0 >= self.paces.len() {
            self.paces.resize(unit.0 + 1, Pace::default());
        }
        &mut self.paces[unit.0]
    }

    fn pace_of(&self, unit: UnitId) -> Pace {
        self.paces.get(unit.0).copied().unwrap_or_default()
    }

    /// The units that take part, or may.
    fn units(&self) -> impl Iterator<Item = UnitId> + '_ {
        let all = self.others.iter().map(|(other, _)| *other).chain([self.first]);
        all.filter(|unit| !self.pace_of(*unit).is_dropped)
    }

    /// Returns whether a unit was lately so much faster than all others that these hardly count. Not before it and another one have
    /// computed.
    fn is_dominant(&self, unit: UnitId) -> bool {
        let rate = |unit: UnitId| self.pace_of(unit).rate.unwrap_or(0.0);
        let sum: f64 = self.units().map(rate).sum();
        rate(unit) < sum && rate(unit) > sum * DOMINANT
    }

    /// Leaves those out that do next to nothing.
    fn drop_slow(&mut self) {
        let paces: Vec<(UnitId, Pace)> = self.units().map(|unit| (unit, self.pace_of(unit))).collect();
        if paces.iter().any(|(_, pace)| pace.packages < MEASURED) {
            return;
        }
        // Of many equal units none does much of the whole.
        let least = |rates: &[f64]| {
            let fastest = rates.iter().copied().fold(0.0, f64::max);
            (rates.iter().sum::<f64>() * LEAST_SHARE).min(fastest / 2.0)
        };
        let lately: Vec<f64> = paces.iter().filter_map(|(_, pace)| pace.rate).collect();
        // Whose last package was the dearer one only looks slow: at one place of the work it is not.
        let of_all = self.inner.rates();
        let at_one_place: Vec<f64> = paces.iter().map(|(unit, _)| of_all[unit.0]).collect();
        for (index, (unit, pace)) in paces.into_iter().enumerate() {
            let is_slow = pace.rate.is_some_and(|rate| rate < least(&lately));
            if is_slow && at_one_place[index] < least(&at_one_place) {
                self.paces[unit.0].is_dropped = true;
                self.inner.retire(unit);
            }
        }
    }

    /// The length of the next package of a unit, while several take part.
    fn together(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        let pace = self.pace_of(unit);
        if pace.is_dropped {
            return None;
        }
        // While nobody knows how fast the unit is, one package after the other tells most.
        if pace.in_flight > 0 && (pace.rate.is_none() || pace.is_open) {
            return None;
        }
        let items = |seconds: f64| pace.rate.map_or(0, |rate| (rate * seconds) as u64); // The cast saturates.
        // At the least that its rate can be, its part of the rest is done when the others have done theirs, who are as fast on
        // average where that is not known.
        let known = || self.units().filter_map(|unit| self.pace_of(unit).rate);
        let mean = known().sum::<f64>() / known().count().max(1) as f64;
        let sum: f64 = self.units().map(|unit| self.pace_of(unit).rate.unwrap_or(mean)).sum();
        let share = pace.rate.map_or(0, |rate| (remaining as f64 * rate / sum) as u64);
        // What takes the same time whatever its size may take as long again, and no longer than the run so far.
        let surely = if pace.is_flat { self.now.as_secs_f64().max(FIRST_SECONDS) } else { FIRST_SECONDS };
        let leap = if pace.is_open { pace.most.saturating_mul(LEAP).min(items(surely)) } else { 0 };
        let launch = if self.is_dominant(unit) { pace.launch.max(pace.least) } else { pace.launch };
        let worth = (pace.best * launch * LAUNCHES) as u64;
        let first = if pace.rate.is_none() { remaining / FIRST } else { 0 };
        let least = items(LEAST_SECONDS).max(leap.max(worth).min(share)).max(first);
        if self.units().all(|other| other == unit) {
            // Nobody waits for it, so that its packages are as long as if it had begun alone.
            return if pace.is_flat { Some(remaining) } else { Some(self.inner.next(unit, remaining)?.max(worth)) };
        }
        // Where the work is irregular, what comes may take many times as long as what the unit has shown. The fastest unit, once it is
        // known which that is, may go further: it is not to wait, but it is not to take all that is left either, should the rest be slower.
        let is_slower =
            |other: Pace| !other.is_open && other.rate.is_some_and(|other| Some(other) <= pace.rate);
        let is_fastest = self.units().all(|other| other == unit || is_slower(self.pace_of(other)));
        let length = match self.inner.next(unit, remaining) {
            None if is_fastest => (remaining as f64 * SINGLE) as u64,
            length => length?,
        };
        let part = if is_fastest { PATIENCE_WITH_FASTEST } else { PATIENCE };
        let patience = (self.now.as_secs_f64() * part).max(LEAST_PATIENCE_SECONDS);
        let most = items(patience).max(leap.min(share)).max(1);
        let length = length.max(least);
        match (pace.rate, is_fastest) {
            (None, _) => Some(length),
            (Some(_), false) => Some(length.min(most)),
            (Some(_), true) => {
                // What is under way is bound as well: it may have several packages. The rest of a package is none.
                let room = most.saturating_sub(pace.ahead);
                (pace.in_flight == 0 || room >= length / 2).then_some(length.min(room).max(1))
            }
        }
    }
}

impl Policy for Opening {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        self.remaining = remaining;
        match self.stage {
            Stage::Sampling if unit == self.first => {
                let Some((items, seconds)) = self.samples.last else { return Some(1) };
                // The cast saturates.
                let growth = match (self.samples.is_telling(), self.samples.is_flat()) {
                    (true, _) => 1,
                    (_, true) => GROWTH,
                    (false, false) => (SAMPLE_SECONDS / seconds) as u64,
                };
                Some((items as u64).saturating_mul(growth.clamp(1, GROWTH)).max(1))
            }
            Stage::Alone if unit == self.first => Some(remaining),
            Stage::Together => self.together(unit, remaining),
            _ => None,
        }
    }

    fn handed(&mut self, package: &Package, now: Duration) {
        self.now = self.now.max(now);
        self.remaining = self.remaining.saturating_sub(package.items());
        let pace = self.pace_mut(package.unit());
        pace.in_flight += 1;
        pace.ahead = pace.ahead.saturating_add(package.items());
        self.inner.handed(package, now);
    }

    fn computed(&mut self, computed: &Computed) {
        self.now = self.now.max(computed.done);
        self.inner.computed(computed);
        self.pace(computed);
        if self.stage == Stage::Sampling && computed.unit == self.first {
            self.samples.add(computed.items, computed.done.saturating_sub(computed.handed).as_secs_f64());
            self.decide();
        }
    }

    fn given_back(&mut self, package: &Package) {
        self.remaining = self.remaining.saturating_add(package.items());
        self.pace_mut(package.unit()).leaves(package.items());
        self.inner.given_back(package);
    }

    fn retire(&mut self, unit: UnitId) {
        self.inner.retire(unit);
        self.others.retain(|(other, _)| *other != unit);
        if unit == self.first && self.stage != Stage::Together {
            // Whoever is left is called up.
            self.called = self.others.iter().map(|(unit, _)| *unit).collect();
            self.stage = Stage::Together;
        }
    }

    fn call_up(&mut self) -> Vec<UnitId> {
        std::mem::take(&mut self.called)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Assignment, Splitter};

    const HOST: UnitId = UnitId(0);
    const OTHER: UnitId = UnitId(1);

    fn splitter(work: u64, other: Freight) -> Splitter {
        let inner = Calibrated::new(work, 1, &[None, None]).unwrap();
        let policy = Opening::new(inner, work, HOST, vec![(OTHER, other)]);
        let mut splitter = Splitter::new(Box::new(policy), 2, work, 1).unwrap();
        splitter.bench(OTHER);
        splitter
    }

    /// Runs the host alone, with a launch of 5 us, and returns the packages and who was called up when.
    fn run(work: u64, nanos_per_item: u64, other: Freight) -> (Vec<u64>, Option<(Duration, Vec<UnitId>)>) {
        let mut splitter = splitter(work, other);
        let (mut now, mut sizes) = (Duration::ZERO, Vec::new());
        while let Assignment::Package(package) = splitter.assign_at(HOST, now) {
            sizes.push(package.items());
            let end = now + Duration::from_nanos(5_000 + nanos_per_item * package.items());
            splitter.complete_with(&package, Computed::new(&package, now, now, end, end)).unwrap();
            now = end;
            let called = splitter.called_up();
            if !called.is_empty() {
                return (sizes, Some((now, called)));
            }
        }
        assert!(splitter.is_finished());
        (sizes, None)
    }

    #[test]
    fn a_short_run_is_the_first_units_alone() {
        let (sizes, called) = run(4096, 1, Freight { setup: 150e-6, per_item: 0.0 });
        assert_eq!(called, None);
        assert_eq!(sizes.iter().sum::<u64>(), 4096);
        assert!(sizes.len() <= 5, "{sizes:?}");
    }

    #[test]
    fn a_long_run_calls_the_others_within_a_fraction_of_a_millisecond() {
        let (sizes, called) = run(1 << 30, 10, Freight { setup: 1e-3, per_item: 1e-10 });
        let (when, called) = called.expect("ten seconds of work");
        assert_eq!(called, [OTHER]);
        assert!(when < Duration::from_micros(700), "{when:?} after {sizes:?}");
    }

    #[test]
    fn who_could_only_move_the_data_as_slowly_as_others_compute_it_is_not_called() {
        let (_, called) = run(1 << 24, 10, Freight { setup: 1e-4, per_item: 200e-9 });
        assert_eq!(called, None);
    }

    #[test]
    fn no_package_is_longer_than_a_part_of_the_run() {
        let mut splitter = splitter(1 << 30, Freight { setup: 1e-4, per_item: 0.0 });
        let mut now = Duration::ZERO;
        loop {
            let Assignment::Package(package) = splitter.assign_at(HOST, now) else { panic!("it has work") };
            let took = Duration::from_nanos(10 * package.items());
            if now > Duration::from_millis(2) {
                break;
            }
            let most = Duration::from_micros(1_000).max(now);
            assert!(took < most, "{took:?} at {now:?}");
            let end = now + took;
            splitter.complete_with(&package, Computed::new(&package, now, now, end, end)).unwrap();
            now = end;
            splitter.called_up();
        }
    }

    #[test]
    fn where_nobody_could_begin_in_time_one_sample_is_enough() {
        // The samples cost five microseconds each: even a thousand of them are over before the other has begun.
        let (sizes, called) = run(1000, 1, Freight { setup: 10e-3, per_item: 0.0 });
        assert_eq!((sizes, called), (vec![1, 999], None));
    }

    #[test]
    fn a_telling_sample_is_repeated_before_it_decides() {
        // Each item takes a hundred microseconds, so the first sample is telling, and the second is no longer than it.
        let (sizes, called) = run(1 << 16, 100_000, Freight { setup: 1e-3, per_item: 0.0 });
        assert_eq!(sizes, [1, 1]);
        assert_eq!(called.map(|(_, units)| units), Some(vec![OTHER]));
        // Nothing that wakes up takes two milliseconds.
        let (sizes, called) = run(1 << 16, 2_000_000, Freight { setup: 1e-3, per_item: 0.0 });
        assert_eq!((sizes, called.map(|(_, units)| units)), (vec![1], Some(vec![OTHER])));
    }

    /// A policy in which both units work, and packages of theirs of these items and microseconds each.
    fn together(work: u64, packages: &[(UnitId, u64, u64)]) -> Opening {
        let inner = Calibrated::new(work, 1, &[None, None]).unwrap();
        let freight = Freight { setup: 1e-4, per_item: 0.0 };
        let mut policy = Opening::new(inner, work, HOST, vec![(OTHER, freight)]).at_once();
        let mut ends = [Duration::ZERO; 2];
        for (index, &(unit, items, micros)) in (0..).zip(packages) {
            let package = Package::new(0..items, unit, index);
            let begun = ends[unit.0];
            let end = begun + Duration::from_micros(micros);
            policy.handed(&package, begun);
            policy.computed(&Computed::new(&package, begun, begun, end, end));
            ends[unit.0] = end;
        }
        policy
    }

    #[test]
    fn a_unit_that_does_next_to_nothing_is_left_out_once_all_are_measured() {
        let fast = (HOST, 10_000, 1000);
        let slow = (OTHER, 900, 1000);
        let slow_turns = |turns: usize| [vec![fast; 3], vec![slow; turns]].concat();
        assert!(
            together(1 << 20, &slow_turns(2)).next(OTHER, 1 << 19).is_some(),
            "two packages say too little"
        );
        assert_eq!(together(1 << 20, &slow_turns(3)).next(OTHER, 1 << 19), None);
        let tenth = [vec![fast; 3], vec![(OTHER, 1200, 1000); 3]].concat();
        assert!(together(1 << 20, &tenth).next(OTHER, 1 << 19).is_some(), "it does more than a tenth");
    }

    #[test]
    fn who_is_left_over_takes_all_at_once_only_where_a_package_costs_its_launch() {
        let slow = vec![(OTHER, 1, 1000); 3];
        let flat = vec![(HOST, 1000, 200), (HOST, 10_000, 200), (HOST, 20_000, 210)];
        let mut policy = together(1 << 20, &[slow.clone(), flat].concat());
        assert_eq!(policy.next(HOST, 90_000), Some(90_000));
        // Twice the items took twice the time: what comes may take longer still.
        let steep = vec![(HOST, 1000, 200), (HOST, 10_000, 2000), (HOST, 20_000, 4000)];
        let mut policy = together(1 << 20, &[slow, steep].concat());
        assert_eq!(policy.next(HOST, 90_000), Some(30_000));
    }

    #[test]
    fn a_unit_whose_packages_are_as_short_as_a_launch_leaps() {
        // A rate of ten items per second says nothing here: the launch may have been all of it.
        let host = (HOST, 1 << 17, 1000);
        let open = [(OTHER, 100, 9), (OTHER, 400, 9)]; // as long as a launch, and no longer for four times the items
        let mut policy = together(1 << 20, &[host, open[0], open[1], host]);
        assert!(policy.next(OTHER, 1 << 19) >= Some(16 * 400));
        // At that rate, no longer than a launch can take.
        let mut policy = together(1 << 40, &[host, (OTHER, 1 << 20, 500), host]);
        assert_eq!(policy.next(OTHER, 1 << 22), Some(1 << 21));
        // No more than its part of the rest, at the least that its rate can be: one in 27,000.
        let mut policy = together(1 << 20, &[host, (OTHER, 1, 200), host]);
        assert!(policy.next(OTHER, 1 << 20) < Some(60), "it may be slow");
        // Four times the items took four times the time: it computed.
        let mut policy = together(1 << 20, &[host, (OTHER, 100, 500), (OTHER, 400, 2000), host]);
        assert!(policy.next(OTHER, 1 << 19) < Some(1600));
    }

    #[test]
    fn while_nobody_knows_how_fast_a_unit_is_it_has_one_package_at_a_time() {
        let host = (HOST, 1 << 17, 1000);
        let mut policy = together(1 << 20, &[host, host]);
        assert_eq!(policy.next(OTHER, 1 << 19), Some((1 << 19) / 32), "its first package");
        let package = |index| Package::new(0..100, OTHER, index);
        policy.handed(&package(5), Duration::from_millis(2));
        assert_eq!(policy.next(OTHER, 1 << 19), None);
        policy.given_back(&package(5));
        assert!(policy.next(OTHER, 1 << 19).is_some());
        // Measured, and the fastest, it gets the next one while it computes.
        let fast = [(OTHER, 1 << 18, 1000), (OTHER, 1 << 19, 2000)];
        let mut policy = together(1 << 22, &[host, fast[0], fast[1], host]);
        policy.handed(&package(5), Duration::from_millis(2));
        assert!(policy.next(OTHER, 1 << 19).is_some());
    }

    #[test]
    fn only_the_fastest_unit_may_have_a_package_longer_than_a_part_of_the_run() {
        let packages = [(HOST, 40_000, 4000), (OTHER, 20_000, 4000)];
        // A half of a millisecond is an eighth of the four that have passed: 2500 items of the slower unit.
        assert_eq!(together(1 << 30, &packages).next(OTHER, 1 << 29), Some(2500));
        assert!(together(1 << 30, &packages).next(HOST, 1 << 29) > Some(5000));
    }

    #[test]
    fn time_that_a_package_waited_for_the_one_before_says_nothing_of_the_unit() {
        let mut policy =
            together(1 << 20, &[(HOST, 10_000, 1000), (HOST, 10_000, 1000), (OTHER, 5_000, 1000)]);
        for (index, end) in [(7, 2000), (8, 3000), (9, 4000)] {
            // All are handed out at once, and computed one after the other.
            let package = Package::new(0..5_000, OTHER, index);
            let [handed, end] = [1000, end].map(Duration::from_micros);
            policy.handed(&package, handed);
            policy.computed(&Computed::new(&package, handed, handed, end, end));
        }
        assert_eq!(policy.pace_of(OTHER).rate.map(|rate| (rate / 1e3).round()), Some(5_000.0));
    }

    #[test]
    fn only_the_first_units_packages_are_samples() {
        let inner = Calibrated::new(1 << 20, 1, &[None, None]).unwrap();
        let mut policy =
            Opening::new(inner, 1 << 20, HOST, vec![(OTHER, Freight { setup: 1e-4, per_item: 0.0 })]);
        let ms = Duration::from_millis;
        for (index, end) in [(0, 1), (1, 2)] {
            let package = Package::new(index..index + 1, OTHER, index);
            policy.computed(&Computed::new(&package, ms(end - 1), ms(end - 1), ms(end), ms(end)));
        }
        assert_eq!(policy.call_up(), []);
        assert_eq!(policy.next(HOST, 1 << 20), Some(1));
    }

    /// A unit as it is.
    struct Truth {
        /// How many times as fast it computes as the kernel's costs say.
        speed: f64,
        /// What a package costs besides its items, in seconds.
        launch: f64,
        /// How many packages it has under way.
        depth: usize,
    }

    const CPU: Truth = Truth { speed: 1.0, launch: 5e-6, depth: 1 };
    const WORKER: Truth = Truth { speed: 1.0, launch: 50e-6, depth: 3 };
    const GPU: Truth = Truth { speed: 70.0, launch: 50e-6, depth: 3 };

    /// Runs a kernel of which nothing is known, whose item at a place from 0 to 1 takes `cost` seconds. Returns the seconds that it takes by
    /// those that the faster of the two takes alone.
    fn simulate(items: u64, cost: impl Fn(f64) -> f64, other: &Truth) -> f64 {
        const STEPS: usize = 10_000;
        // The cost of all items up to a place.
        let mut sums = vec![0.0];
        for step in 0..STEPS {
            let here = cost((step as f64 + 0.5) / STEPS as f64) * items as f64 / STEPS as f64;
            sums.push(sums[step] + here);
        }
        let up_to = |item: u64| {
            let place = item as f64 / items as f64 * STEPS as f64;
            let step = (place as usize).min(STEPS - 1);
            sums[step] + (sums[step + 1] - sums[step]) * (place - step as f64)
        };
        let mut splitter = splitter(items, Freight { setup: 1e-4, per_item: 0.0 });
        let units = [&CPU, other];
        let mut queues = [Vec::new(), Vec::new()];
        let (mut now, mut free): (f64, [f64; 2]) = (0.0, [0.0, 0.0]);
        let at = Duration::from_secs_f64;
        loop {
            for (unit, queue) in queues.iter_mut().enumerate() {
                while queue.len() < units[unit].depth {
                    let Assignment::Package(package) = splitter.assign_at(UnitId(unit), at(now)) else {
                        break;
                    };
                    let begun = free[unit].max(now);
                    let computing = (up_to(package.end()) - up_to(package.start())) / units[unit].speed;
                    free[unit] = begun + units[unit].launch + computing;
                    queue.push((package, now, begun, free[unit]));
                }
            }
            let next = (0..2).filter_map(|unit| Some((unit, queues[unit].first()?.3)));
            let Some((unit, end)) = next.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            now = end;
            let (package, handed, begun, end) = queues[unit].remove(0);
            let computed = Computed::new(&package, at(handed), at(begun), at(end), at(end));
            splitter.complete_with(&package, computed).unwrap();
            if !splitter.called_up().is_empty() {
                // It takes a moment to wake up.
                free[1] = now + 1e-4;
            }
        }
        assert!(splitter.is_finished());
        now / (sums[STEPS] / other.speed.max(1.0))
    }

    #[test]
    fn an_irregular_kernel_of_which_nothing_is_known_is_computed_by_all() {
        let edge =
            |cheap: f64| move |place: f64| if (0.2..0.8).contains(&place) { 1e-6 } else { 1e-6 * cheap };
        for (name, ratio) in [
            ("constant", simulate(1 << 20, |_| 1e-6, &WORKER)),
            ("cheap edges", simulate(1 << 20, edge(0.1), &WORKER)),
            ("very cheap edges", simulate(1 << 20, edge(0.005), &WORKER)),
            ("rising", simulate(1 << 20, |place| 1e-6 * place, &WORKER)),
            ("falling", simulate(1 << 20, |place| 1e-6 * (1.0 - place), &WORKER)),
            ("short", simulate(1 << 14, edge(0.1), &WORKER)),
        ] {
            println!("two equal cores, {name}: {ratio:.3}");
            assert!(ratio < 0.56, "two equal cores, {name}: {ratio:.3}");
        }
        // What the processor's samples and the first packages take counts the more, the shorter the run is.
        for (name, ratio, most) in [
            ("constant", simulate(1 << 20, |_| 1e-6, &GPU), 1.2),
            ("cheap edges", simulate(1 << 20, edge(0.1), &GPU), 1.2),
            ("rising", simulate(1 << 20, |place| 1e-6 * place, &GPU), 1.3),
            ("constant, 4 ms", simulate(1 << 18, |_| 1e-6, &GPU), 1.4),
            ("rising, 2 ms", simulate(1 << 18, |place| 1e-6 * place, &GPU), 1.8),
            ("constant, 1 ms", simulate(1 << 16, |_| 1e-6, &GPU), 1.8),
        ] {
            println!("a GPU of 70 times the processor, {name}: {ratio:.3}");
            assert!(ratio < most, "a GPU of 70 times the processor, {name}: {ratio:.3}");
        }
    }

    #[test]
    fn where_the_first_unit_fails_the_others_take_over() {
        let mut splitter = splitter(1000, Freight { setup: 1.0, per_item: 0.0 });
        let Assignment::Package(package) = splitter.assign_at(HOST, Duration::ZERO) else { panic!("work") };
        assert_eq!(package.items(), 1);
        splitter.retire(HOST);
        assert_eq!(splitter.called_up(), [OTHER]);
        while !splitter.is_finished() {
            let Assignment::Package(package) = splitter.assign(OTHER) else { panic!("it is called up") };
            splitter.complete(&package).unwrap();
        }
    }
}
