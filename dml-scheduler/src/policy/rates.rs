//! Estimates of one unit's speed, for the calibrated policy: its rate in items per second, and the fixed cost
//! of a package.
//!
//! ```text
//!     handed       begun          ended      done      handed while the device computes another package:
//!       |  inbound   |   device     | outbound |         the inbound time is not measurable,
//!       +------------+--------------+----------+         and the package yields no cost estimate
//!                     depends on what the items cost
//! ```
//! The cost per package is estimated from the transfer times: inbound, with the launch, and outbound. A line
//! through the total times of two packages would do for regular work. If the items of one package are ten
//! times as expensive, such a line errs by more than the cost.
//!
//! The latency of a device that computes many items in parallel is a cost, too. It is the time of a package
//! with too few items to fill the device.

use super::Computed;
use std::collections::VecDeque;
use std::time::Duration;

/// Number of recent packages kept as samples.
const SAMPLES: usize = 64;

/// Number of recent estimates over which a median is taken.
const ESTIMATES: usize = 15;

/// Weight of a cost that is known before the run, in estimates. The first transfer times of a run say little.
/// (`cargo xtask policies`, table of 1 to 4 devices: with a weight of 1, the learned runs share less)
const KNOWN_COSTS: usize = 3;

/// Minimum size ratio of two packages from which the cost per package and the time per item are told apart.
const LEVER: f64 = 1.5;

/// Minimum fraction of a package's time that counts as computing if the rest is latency. How much more the
/// device could have computed meanwhile is unknown.
const LEAST_LATENT: f64 = 0.25;

/// Distance over which a package's weight falls to 1/e, as a multiple of the items so far.
const WINDOW: f64 = 2.0;

/// Minimum fraction of a package's time that counts as computing, however high the estimated cost.
const LEAST_NET: f64 = 0.05;

/// The recent packages of one unit, and the estimates from them.
#[derive(Debug, Clone, Default)]
pub(super) struct Rates {
    samples: VecDeque<Sample>,
    /// Estimates of the cost per package in seconds, the latest last.
    costs: VecDeque<f64>,
    /// Estimates of the transfer time per item, in seconds.
    travels: VecDeque<f64>,
    /// Transfer times of packages, as fractions of their computing times.
    ways_parts: VecDeque<f64>,
    /// The last measured inbound time per item, in seconds.
    inward: f64,
    /// The shortest computing time of a package that did not fill the device, in seconds; 0 without such a
    /// package.
    latency: f64,
    /// The number of items that the device computes in the time of one.
    fills: f64,
    /// The latest time at which the device had computed a package.
    last_ended: Duration,
    /// The latest time at which a package was done.
    last_done: Duration,
}

/// The measurements of one package.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// The index of its first item.
    start: f64,
    items: f64,
    /// The part of its time after the previous completion, in seconds.
    seconds: f64,
    /// The transfer time, inbound and outbound, in seconds; `None` if the inbound time was not measurable.
    ways: Option<f64>,
    /// The part of its computing time after the end of the previous package, in seconds.
    computing: f64,
}

impl Rates {
    /// Starts with a cost per package, in seconds, that is known before the run.
    pub(super) fn with_cost(seconds: f64) -> Self {
        Self { costs: [seconds; KNOWN_COSTS].into(), ..Self::default() }
    }

    /// Sets how many items the device computes in the time of one. A package with no more items shows the
    /// latency.
    pub(super) const fn fill(&mut self, items: u64) {
        self.fills = items as f64;
    }

    /// Returns whether a package was measured.
    pub(super) fn is_measured(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Learns from a package that begins at item `start`. Ignores a package that took no time, or whose clock
    /// went back.
    ///
    /// Only the time since the previous completion counts. So the bottleneck is measured, be it the device or
    /// the link; time hidden behind other packages is not.
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

    /// Estimates the cost per package and the transfer time per item. It compares the transfer times of this
    /// package and of an earlier one with another size. Without such a package, the whole transfer time
    /// counts as cost.
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

    /// Returns the fixed cost of a package, in seconds; 0 if unknown.
    pub(super) fn cost(&self) -> f64 {
        median(&self.costs).max(self.latency())
    }

    /// Returns the device's time for any package, however small, in seconds; 0 if unknown.
    pub(super) fn latency(&self) -> f64 {
        self.latency
    }

    /// Returns the recent transfer time, as a fraction of the computing time; `None` before the first
    /// measurement.
    ///
    /// A unit with one package at a time loses this fraction.
    pub(super) fn ways_part(&self) -> Option<f64> {
        (!self.ways_parts.is_empty()).then(|| median(&self.ways_parts))
    }

    /// Returns the items per second of the last package.
    pub(super) fn latest(&self) -> Option<f64> {
        self.samples.back().map(|sample| sample.items / sample.seconds)
    }

    /// Returns the lowest and the highest place in the work where a measured package ends; `None` without
    /// one.
    pub(super) fn measured(&self) -> Option<(f64, f64)> {
        let ends = || self.samples.iter().map(|sample| sample.start + sample.items);
        Some((ends().reduce(f64::min)?, ends().reduce(f64::max)?))
    }

    /// Returns the measured items before a place in the work, and their seconds, net of the cost per package.
    ///
    /// The weight of an item falls with its distance from the place. Both values are above 0 if a measured
    /// package ends at or before the place.
    pub(super) fn before(&self, place: f64) -> (f64, f64) {
        let (travel, latency) = (median(&self.travels), self.latency());
        let (mut items, mut seconds) = (0.0, 0.0);
        for sample in &self.samples {
            // Beyond 2^53 items, a package's start and end can round to the same float.
            let is_before = sample.start + sample.items <= place;
            let part = if is_before { 1.0 } else { (place - sample.start) / sample.items };
            if part > 0.0 {
                let age = (place - sample.start - sample.items * part / 2.0).max(0.0) / (WINDOW * place);
                let weight = part * (-age).exp();
                // The start-up of the device is a cost of its first package.
                let cost = sample.ways.map_or(0.0, |ways| (ways - travel * sample.items).max(0.0));
                items += weight * sample.items;
                let least = if latency > 0.0 { LEAST_LATENT } else { LEAST_NET };
                seconds += weight * (sample.seconds - cost - latency).max(least * sample.seconds);
            }
        }
        (items, seconds)
    }
}

/// Returns the median of some estimates; 0 without any.
fn median(estimates: &VecDeque<f64>) -> f64 {
    let mut sorted: Vec<f64> = estimates.iter().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Appends a value to a queue that keeps the latest `most`.
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

    /// Learns from a package of `items` items at `start`; the times are in microseconds.
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
        learn(&mut rates, 100, 400, [1060, 1110, 41_110, 41_120]); // ten times as expensive items
        assert_eq!(micros(rates.cost()), 60.0);
    }

    /// While a package is computed, the inbound time of the next one is not measurable. It counts as that of
    /// the previous one, per item.
    #[test]
    fn the_ways_are_a_part_of_computing_seen_or_not() {
        let mut rates = Rates::default();
        assert_eq!(rates.ways_part(), None);
        learn(&mut rates, 0, 100, [0, 20, 1020, 1050]);
        assert_eq!(rates.ways_part(), Some(0.05));
        // Handed out while the previous package is computed: 40 us inbound for 200 items, and 60 us outbound.
        learn(&mut rates, 100, 200, [900, 1020, 3020, 3080]);
        assert_eq!(micros(rates.ways_part().unwrap() * 1e-6), 0.05);
        // The median of the last packages counts.
        for (start, from, part) in [(300, 4000, 0.05), (400, 5000, 0.5), (500, 6000, 0.5)] {
            learn(&mut rates, start, 100, [from, from + 30, from + 130, from + 150]);
            assert_eq!(micros(rates.ways_part().unwrap() * 1e-6), part, "{start}");
        }
    }

    /// The device computes 400 items in parallel. A package with no more shows its latency: the minimum of
    /// their times.
    #[test]
    fn what_a_package_takes_that_does_not_fill_the_device_is_a_cost() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 10, 1010, 1010]);
        assert_eq!((micros(rates.latency()), micros(rates.cost())), (0.0, 10.0), "no width is known");
        let mut rates = Rates::default();
        rates.fill(400);
        learn(&mut rates, 0, 800, [0, 10, 2010, 2010]);
        assert_eq!(micros(rates.latency()), 0.0, "the package fills the device");
        learn(&mut rates, 800, 400, [2010, 2020, 3120, 3120]);
        learn(&mut rates, 1200, 100, [3120, 3130, 4130, 4130]);
        assert_eq!((micros(rates.latency()), micros(rates.cost())), (1000.0, 1000.0));
        // Too little of the time is left for a rate: a quarter of the package's time counts.
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
            let begun = from + 40 + items; // 1 us per item inbound
            learn(&mut rates, start, items, [from, begun, begun + 2 * items, begun + 2 * items]);
        }
        assert_eq!(micros(rates.cost()), 40.0);
        let (items, seconds) = rates.before(1500.0);
        assert!((seconds / items * 1e6 - 3.0).abs() < 1e-6, "1 us inbound and 2 us on the device per item");
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

    /// Packages are reported in any order. A package's time begins at the latest completion reported before.
    #[test]
    fn no_time_counts_twice_where_a_package_is_told_late() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 50, 1000, 1040]);
        learn(&mut rates, 100, 100, [10, 60, 500, 540]);
        learn(&mut rates, 200, 100, [20, 70, 1500, 1540]);
        let seconds: Vec<f64> = rates.samples.iter().map(|sample| micros(sample.seconds)).collect();
        assert_eq!(seconds, [1040.0, 500.0], "the second package lies within the time of the first");
        // A package that was handed out before the last one ended has waited: its transfer times are unknown.
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

    /// Two sizes separate cost and time per item if one is at least 1.5 times the other. A smaller package
    /// with a longer transfer shows no time per item.
    #[test]
    fn ways_of_about_the_same_size_or_that_shrink_are_a_cost() {
        let mut rates = Rates::default();
        learn(&mut rates, 0, 100, [0, 60, 1060, 1060]);
        learn(&mut rates, 100, 140, [2000, 2100, 4100, 4100]);
        assert_eq!(micros(rates.cost()), 100.0, "1.4 times the items: the whole transfer time");
        let mut rates = Rates::default();
        learn(&mut rates, 0, 400, [0, 60, 1060, 1060]);
        learn(&mut rates, 400, 100, [2000, 2100, 4100, 4100]);
        assert_eq!(micros(rates.cost()), 60.0, "fewer items, longer transfer: the shorter of both");
    }

    /// The weight falls to 1/e over twice the items so far, from the middle of the part before the place.
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
