//! What the calibrated policy learns of one unit: how many items per second it computes, and what a package costs it
//! whatever its size.
//!
//! ```text
//!     handed      begun          ended    done        handed while the device is busy with another package:
//!       |  handing  |   device     |  back  |           no handing is seen, and the package teaches no cost
//!       +-----------+--------------+--------+
//!                    depends on what the items cost
//! ```
//! The cost per package is learned from the ways to the device and back. A line through the times of two whole packages would do
//! for even work, but where a package has ten times dearer items than the other, it errs by more than the cost.
//!
//! The latency of a device that computes many items side by side is a cost, too: what a package of fewer takes.

use super::Computed;
use std::collections::VecDeque;
use std::time::Duration;

/// The number of packages that are remembered.
const SAMPLES: usize = 64;

/// The number of estimates whose median counts.
const ESTIMATES: usize = 15;

/// How many estimates a cost counts for that is known before the run: the first ways of a run say little. (`cargo xtask policies`, table of 1 to 4
/// devices: with one, those that learned share less)
const KNOWN_COSTS: usize = 3;

/// How many times the items of one of two packages the other has at least, for both to tell a cost from a speed.
const LEVER: f64 = 1.5;

/// The least part of a package's time that counts as computing where the rest is latency. Nobody knows how much more the device would
/// have computed in it.
const LEAST_LATENT: f64 = 0.25;

/// Over which part of the items so far a package's weight falls to 1/e.
const WINDOW: f64 = 2.0;

/// The least part of a package's time that counts as computing, however high the cost is estimated.
const LEAST_NET: f64 = 0.05;

/// The packages of one unit, and what follows from them.
#[derive(Debug, Clone, Default)]
pub(super) struct Rates {
    samples: VecDeque<Sample>,
    /// Estimates of the cost per package in seconds, the latest last.
    costs: VecDeque<f64>,
    /// Estimates of the seconds that an item travels.
    travels: VecDeque<f64>,
    /// The ways to the device and back of packages, as parts of the time in which it computed them.
    ways_parts: VecDeque<f64>,
    /// The seconds per item of the way to the device, where it was seen last.
    inward: f64,
    /// The seconds that the device took for a package of fewer items than it computes side by side; 0 without one.
    latency: f64,
    /// How many items it computes in the time of one.
    fills: f64,
    /// When the device had computed the package that ended last.
    last_ended: Duration,
    /// When the latest package was done.
    last_done: Duration,
}

/// One package.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// The place of its first item in the work.
    start: f64,
    items: f64,
    /// The seconds in which the unit had nothing older to do.
    seconds: f64,
    /// The seconds that the ways to the device and back took, where they were seen.
    ways: Option<f64>,
    /// The seconds in which the device computed it, and nothing older.
    computing: f64,
}

impl Rates {
    /// Starts with a cost per package that was known before the run.
    pub(super) fn with_cost(seconds: f64) -> Self {
        Self { costs: [seconds; KNOWN_COSTS].into(), ..Self::default() }
    }

    /// Says how many items the device computes in the time of one: a package of fewer shows its latency.
    pub(super) const fn fill(&mut self, items: u64) {
        self.fills = items as f64;
    }

    /// Returns whether there is a rate.
    pub(super) fn is_measured(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Learns from a package that begins at item `start`. One that took no time, or whose clock went back, says nothing.
    ///
    /// Only the time since the package before was done counts. So the bottleneck is measured, be it the device or the way
    /// to it, and what other packages hide is not.
    pub(super) fn learn(&mut self, start: u64, computed: &Computed) {
        let Computed { items, handed, begun, ended, done, .. } = *computed;
        let seconds = done.saturating_sub(handed.max(self.last_done)).as_secs_f64();
        let are_ways_seen = handed >= self.last_ended;
        let ways = begun.saturating_sub(handed).saturating_add(done.saturating_sub(ended)).as_secs_f64();
        let alone = ended.saturating_sub(begun.max(self.last_ended)).as_secs_f64();
        self.last_ended = self.last_ended.max(ended);
        self.last_done = self.last_done.max(done);
        if items == 0 || seconds <= 0.0 {
            return;
        }
        if are_ways_seen {
            self.inward = begun.saturating_sub(handed).as_secs_f64() / items as f64;
        }
        let all_ways = done.saturating_sub(ended).as_secs_f64() + self.inward * items as f64;
        let computing = ended.saturating_sub(begun).as_secs_f64();
        push(&mut self.ways_parts, all_ways / computing.max(LEAST_NET * seconds), ESTIMATES);
        let ways = are_ways_seen.then_some(ways);
        let sample = Sample { start: start as f64, items: items as f64, seconds, ways, computing: alone };
        self.learn_ways(&sample);
        push(&mut self.samples, sample, SAMPLES);
        let short = self.samples.iter().filter(|sample| sample.items <= self.fills);
        self.latency = short.map(|sample| sample.computing).reduce(f64::min).unwrap_or(0.0);
    }

    /// Learns what a package costs and how long an item travels: by its ways and those of an earlier package of another size.
    /// Where there is none, all of the ways counts as cost.
    fn learn_ways(&mut self, sample: &Sample) {
        let Some(ways) = sample.ways else { return };
        let is_lever = |items: f64| items.max(sample.items) >= LEVER * items.min(sample.items);
        let mut seen = self.samples.iter().rev().filter_map(|other| Some((other.items, other.ways?)));
        match seen.find(|(items, _)| is_lever(*items)) {
            Some((items, others)) => {
                let travel = ((ways - others) / (sample.items - items)).max(0.0);
                let cost = (ways - sample.items * travel).min(others - items * travel).max(0.0);
                push(&mut self.costs, cost, ESTIMATES);
                push(&mut self.travels, travel, ESTIMATES);
            }
            None => push(&mut self.costs, ways, ESTIMATES),
        }
    }

    /// The seconds that a package costs whatever its size; 0 where nothing is known.
    pub(super) fn cost(&self) -> f64 {
        median(&self.costs).max(self.latency())
    }

    /// The seconds that the device takes for any package, however small; 0 where nothing says so.
    pub(super) fn latency(&self) -> f64 {
        self.latency
    }

    /// The time of the ways to the device and back, over the time in which it computes, lately. So much is lost where it has
    /// one package at a time. `None` where nothing was measured.
    pub(super) fn ways_part(&self) -> Option<f64> {
        (!self.ways_parts.is_empty()).then(|| median(&self.ways_parts))
    }

    /// The items per second of the last package.
    pub(super) fn latest(&self) -> Option<f64> {
        self.samples.back().map(|sample| sample.items / sample.seconds)
    }

    /// The places where the first and the last measured package end; `None` where nothing was measured.
    pub(super) fn measured(&self) -> Option<(f64, f64)> {
        let ends = || self.samples.iter().map(|sample| sample.start + sample.items);
        Some((ends().reduce(f64::min)?, ends().reduce(f64::max)?))
    }

    /// The items before a place of the work, and the seconds that they took, net of what their packages cost. The further
    /// from the place, the less they weigh. Both are above 0 where a measured package ends at the place or before.
    pub(super) fn before(&self, place: f64) -> (f64, f64) {
        let (travel, latency) = (median(&self.travels), self.latency());
        let (mut items, mut seconds) = (0.0, 0.0);
        for sample in &self.samples {
            // Beyond 2^53 items, a package can end where it starts, to a float.
            let is_before = sample.start + sample.items <= place;
            let part = if is_before { 1.0 } else { (place - sample.start) / sample.items };
            if part > 0.0 {
                let age = (place - sample.start - sample.items * part / 2.0).max(0.0) / (WINDOW * place);
                let weight = part * (-age).exp();
                // Setting a device going is a cost too, of its first package.
                let cost = sample.ways.map_or(0.0, |ways| (ways - travel * sample.items).max(0.0));
                items += weight * sample.items;
                let least = if latency > 0.0 { LEAST_LATENT } else { LEAST_NET };
                seconds += weight * (sample.seconds - cost - latency).max(least * sample.seconds);
            }
        }
        (items, seconds)
    }
}

/// The middle one of some estimates; 0 where there are none.
fn median(estimates: &VecDeque<f64>) -> f64 {
    let mut sorted: Vec<f64> = estimates.iter().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Appends to a queue that keeps the latest.
fn push<T>(queue: &mut VecDeque<T>, value: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::package::{Package, UnitId};

    /// A package of `items` items at `start`, handed out at `handed` and so on, in microseconds.
    fn learn(rates: &mut Rates, start: u64, items: u64, [handed, begun, ended, done]: [u64; 4]) {
        let package = Package::new(start..start + items, UnitId(0), 0);
        let [handed, begun, ended, done] = [handed, begun, ended, done].map(Duration::from_micros);
        rates.learn(start, &Computed::new(&package, handed, begun, ended, done));
    }

    fn micros(seconds: f64) -> f64 {
        (seconds * 1e9).round() / 1e3
    }

    #[test]
    fn the_cost_is_that_of_the_ways_whatever_the_items_cost() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 50, 1050, 1060]);
        assert_eq!(micros(rates.cost()), 60.0);
        learn(&mut rates, 100, 400, [1060, 1110, 41_110, 41_120]); // ten times dearer items
        assert_eq!(micros(rates.cost()), 60.0);
    }

    /// While a package is computed, the way of the next one is not seen, and is that of the one before, per item.
    #[test]
    fn the_ways_are_a_part_of_computing_seen_or_not() {
        let mut rates = Rates::default();
        assert_eq!(rates.ways_part(), None);
        learn(&mut rates, 0, 100, [0, 20, 1020, 1050]);
        assert_eq!(rates.ways_part(), Some(0.05));
        // Handed out while the one before is computed: 40 us on the way there, of 200 items, and 60 us back.
        learn(&mut rates, 100, 200, [900, 1020, 3020, 3080]);
        assert_eq!(micros(rates.ways_part().unwrap() * 1e-6), 0.05);
        // Of the last packages, the one in the middle counts.
        for (start, from, part) in [(300, 4000, 0.05), (400, 5000, 0.5), (500, 6000, 0.5)] {
            learn(&mut rates, start, 100, [from, from + 30, from + 130, from + 150]);
            assert_eq!(micros(rates.ways_part().unwrap() * 1e-6), part, "{start}");
        }
    }

    /// It computes 400 items side by side, so a package of no more shows its latency: the least of their times.
    #[test]
    fn what_a_package_takes_that_does_not_fill_the_device_is_a_cost() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 10, 1010, 1010]);
        assert_eq!((micros(rates.latency()), micros(rates.cost())), (0.0, 10.0), "it has no side by side");
        let mut rates = Rates::default();
        rates.fill(400);
        learn(&mut rates, 0, 800, [0, 10, 2010, 2010]);
        assert_eq!(micros(rates.latency()), 0.0, "it is filled");
        learn(&mut rates, 800, 400, [2010, 2020, 3120, 3120]);
        learn(&mut rates, 1200, 100, [3120, 3130, 4130, 4130]);
        assert_eq!((micros(rates.latency()), micros(rates.cost())), (1000.0, 1000.0));
        // So little is left of a package that nobody can tell its speed: a quarter of its time counts.
        let mut rates = Rates::default();
        rates.fill(400);
        learn(&mut rates, 0, 100, [0, 10, 1010, 1010]);
        let (items, seconds) = rates.before(100.0);
        assert!((seconds / items * 1e6 - 2.525).abs() < 0.01, "{}", seconds / items * 1e6);
    }

    #[test]
    fn the_cost_does_not_contain_what_travels() {
        let mut rates = Rates::default();
        for (start, items, from) in
            [(0, 100, 0), (100, 1000, 10_000), (1100, 300, 30_000), (1400, 100, 50_000)]
        {
            let begun = from + 40 + items; // 1 us per item on the way
            learn(&mut rates, start, items, [from, begun, begun + 2 * items, begun + 2 * items]);
        }
        assert_eq!(micros(rates.cost()), 40.0);
        let (items, seconds) = rates.before(1500.0);
        assert!(
            (seconds / items * 1e6 - 3.0).abs() < 1e-6,
            "1 us on the way and 2 us on the device per item"
        );
    }

    #[test]
    fn setting_a_device_going_does_not_make_it_slow() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 5000, 5100, 5100]);
        learn(&mut rates, 100, 400, [5100, 5150, 5550, 5550]);
        learn(&mut rates, 500, 200, [5550, 5600, 5800, 5800]);
        assert_eq!(micros(rates.cost()), 50.0);
        let (items, seconds) = rates.before(100.0);
        assert!((seconds / items * 1e6 - 2.5).abs() < 0.1, "1 us per item, and no less than 5% of 5.1 ms");
    }

    #[test]
    fn items_are_measured_where_packages_are_short_of_a_float() {
        let mut rates = Rates::default();
        learn(&mut rates, 1 << 62, 64, [0, 0, 64, 64]);
        let (first, last) = rates.measured().unwrap();
        assert_eq!(first, last);
        assert_eq!(rates.before(last).0, 64.0);
    }

    #[test]
    fn a_package_that_waited_for_another_teaches_no_cost() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 50, 1050, 1050]);
        learn(&mut rates, 100, 200, [10, 1050, 3050, 3050]);
        assert_eq!(micros(rates.cost()), 50.0);
        let (items, seconds) = rates.before(300.0);
        assert!((seconds / items * 1e6 - 10.0).abs() < 1e-6, "{}", seconds / items * 1e6);
    }

    /// Packages are told in any order. What a package took begins when the last of those before it was done.
    #[test]
    fn no_time_counts_twice_where_a_package_is_told_late() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 50, 1000, 1040]);
        learn(&mut rates, 100, 100, [10, 60, 500, 540]);
        learn(&mut rates, 200, 100, [20, 70, 1500, 1540]);
        let seconds: Vec<f64> = rates.samples.iter().map(|sample| micros(sample.seconds)).collect();
        assert_eq!(seconds, [1040.0, 500.0], "all of the second one is in the time of the first");
        // Whoever was handed out before the last one ended has waited, and says nothing of its ways.
        learn(&mut rates, 300, 100, [1450, 1500, 2000, 2040]);
        assert!(rates.samples.iter().skip(1).all(|sample| sample.ways.is_none()));
    }

    #[test]
    fn where_a_clock_stands_still_or_goes_back_nothing_is_learned() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [70, 70, 70, 70]);
        learn(&mut rates, 100, 100, [90, 80, 60, 50]);
        assert!(!rates.is_measured());
        assert_eq!((rates.cost(), rates.measured(), rates.before(200.0)), (0.0, None, (0.0, 0.0)));
    }

    #[test]
    fn only_what_lies_before_the_place_counts() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 0, 100, 100]); // 1 us per item
        learn(&mut rates, 100, 100, [100, 100, 1000, 1000]); // 9 us per item
        assert_eq!(rates.measured(), Some((100.0, 200.0)));
        let per_item = |place| {
            let (items, seconds) = rates.before(place);
            micros(seconds / items)
        };
        assert_eq!((per_item(50.0), per_item(100.0)), (1.0, 1.0));
        assert!(per_item(150.0) > 3.0 && per_item(150.0) < per_item(200.0) && per_item(200.0) < 6.0);
    }

    /// Two sizes tell a cost from a speed where one is half as much again as the other, and what is dearer though it is smaller tells none.
    #[test]
    fn ways_of_about_the_same_size_or_that_shrink_are_a_cost() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 60, 1060, 1060]);
        learn(&mut rates, 100, 140, [2000, 2100, 4100, 4100]);
        assert_eq!(micros(rates.cost()), 100.0, "1.4 times the items: all of the ways");
        let mut rates = Rates::default();
        learn(&mut rates, 0, 400, [0, 60, 1060, 1060]);
        learn(&mut rates, 400, 100, [2000, 2100, 4100, 4100]);
        assert_eq!(micros(rates.cost()), 60.0, "fewer items for longer: the shorter of both");
    }

    /// By 1/e over twice the items so far, from the middle of what lies before the place.
    #[test]
    fn what_lies_further_back_weighs_less() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 0, 100, 100]);
        learn(&mut rates, 100, 100, [100, 100, 1000, 1000]);
        for (place, part, ages) in
            [(200.0, 1.0, [150.0 / 400.0, 50.0 / 400.0]), (150.0, 0.5, [100.0 / 300.0, 25.0 / 300.0])]
        {
            let [first, second] = ages.map(|age: f64| (-age).exp());
            let (items, seconds) = rates.before(place);
            assert!((items - 100.0 * (first + part * second)).abs() < 1e-9, "{items} items before {place}");
            assert!(
                (seconds - 1e-4 * (first + 9.0 * part * second)).abs() < 1e-12,
                "{seconds} s before {place}"
            );
        }
    }
}
