//! Measured times as a function of a size, with estimates for other sizes.
//!
//! ```text
//!   seconds |                    x        One point per power of two: the median of its latest samples.
//!           |               x .'          Between two points: a power law, a straight line in this drawing.
//!           |   x____x___.-'              Beyond the last: the slope of the last two over the same factor,
//!           |                             then in proportion. A single point's launch time is not scaled.
//!           +------------------- log size
//! ```
//! A CPU's curve rises from its first point. A GPU's stays flat until its threads are busy, so two points
//! predict more than one rate does.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of samples per point.
///
/// More would adapt to a changed machine later; the median of fewer would follow a busy moment.
/// (`median_of_nine_ignores_four_busy_runs`)
pub(crate) const KEPT: usize = 9;
/// Factor by which two consecutive samples must be below all earlier ones to replace them.
///
/// Such samples come from a changed kernel or another machine. Slower samples may come from a busy moment, so
/// they count only through the median. (`a_kernel_that_became_faster_is_believed_after_two_runs`)
const CHANGED: f64 = 1.5;
/// Minimum time of a package of any size, in seconds. A single short sample cannot separate it from the
/// items' time. (`cargo xtask policies`, learned at 1/64)
const LAUNCH_SECONDS: f64 = 5e-6;
/// Relative uncertainty of an estimate per power of two of distance from a measured point.
/// (`doubt_grows_with_the_distance`)
const DOUBT_PER_DOUBLING: f64 = 0.15;

/// A time in seconds: lower bound, estimate and upper bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) least: f64,
    pub(crate) expected: f64,
    pub(crate) most: f64,
}

impl Interval {
    pub(crate) const ZERO: Self = Self { least: 0.0, expected: 0.0, most: 0.0 };

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            least: self.least + other.least,
            expected: self.expected + other.expected,
            most: self.most + other.most,
        }
    }

    pub(crate) fn times(self, factor: f64) -> Self {
        Self { least: self.least * factor, expected: self.expected * factor, most: self.most * factor }
    }
}

/// The latest measurements of one quantity, each positive and finite.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "VecDeque<f64>", into = "VecDeque<f64>")]
pub(crate) struct Samples {
    kept: VecDeque<f64>,
    /// Derived values, cached because every plan needs them.
    median: Option<f64>,
    interval: Option<Interval>,
}

impl From<VecDeque<f64>> for Samples {
    fn from(kept: VecDeque<f64>) -> Self {
        let mut sorted: Vec<f64> = kept.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        // The lower median.
        let median = sorted.get(sorted.len().saturating_sub(1) / 2).copied();
        let (least, most) = bounds(kept.iter());
        // The first samples may include compilation and first touch, so the minimum of up to three is the
        // estimate.
        let expected = if kept.len() <= 3 { Some(least) } else { median };
        // Fewer samples give wider bounds.
        let doubt = 1.0 + 1.0 / kept.len().max(1) as f64;
        let interval = expected.filter(|_| !kept.is_empty()).map(|expected| Interval {
            least: expected / doubt,
            expected,
            most: most * doubt,
        });
        Self { kept, median, interval }
    }
}

impl From<Samples> for VecDeque<f64> {
    fn from(samples: Samples) -> Self {
        samples.kept
    }
}

impl Samples {
    pub(crate) fn add(&mut self, sample: f64) {
        if !is_sample(sample) {
            return;
        }
        let mut kept = std::mem::take(&mut self.kept);
        kept.push_back(sample);
        let earlier = kept.len().saturating_sub(2);
        let (before, last) = (bounds(kept.iter().take(earlier)), bounds(kept.iter().skip(earlier)));
        if earlier >= 2 && last.1 * CHANGED < before.0 {
            kept.drain(..earlier);
        }
        if kept.len() > KEPT {
            kept.pop_front();
        }
        *self = kept.into();
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Returns the lower median; `None` without a sample.
    pub(crate) fn median(&self) -> Option<f64> {
        self.median
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.len() <= KEPT && self.kept.iter().copied().all(is_sample)
    }
}

fn is_sample(sample: f64) -> bool {
    sample.is_finite() && sample > 0.0
}

fn bounds<'a>(samples: impl Iterator<Item = &'a f64>) -> (f64, f64) {
    samples.fold((f64::INFINITY, 0.0), |(least, most), &sample| (least.min(sample), most.max(sample)))
}

/// Times as a function of a size, such as the items of a package or the bytes that move.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Curve(BTreeMap<u32, Point>);

/// Samples with sizes in one power of two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    size: Samples,
    /// Seconds per unit of the size.
    rate: Samples,
}

/// The median size of a point, and the time estimated for it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    size: f64,
    seconds: Interval,
}

impl Point {
    fn known(&self) -> Option<Known> {
        let size = self.size.median?;
        Some(Known { size, seconds: self.rate.interval?.times(size) })
    }
}

impl Curve {
    /// Adds the measured time of a size. Sizes below 1 count as 1.
    pub(crate) fn add(&mut self, size: f64, seconds: f64) {
        let size = size.max(1.0);
        if is_sample(size) && is_sample(seconds) {
            let point = self.0.entry(class_of(size)).or_default();
            point.size.add(size);
            point.rate.add(seconds / size);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of samples at this size's point.
    pub(crate) fn samples_at(&self, size: f64) -> usize {
        self.0.get(&class_of(size.max(1.0))).map_or(0, |point| point.rate.len())
    }

    pub(crate) fn is_valid(&self) -> bool {
        let is_valid = |point: &Point| point.size.is_valid() && point.rate.is_valid() && point.rate.len() > 0;
        self.0.values().all(is_valid)
    }

    /// Returns the time for a size; `None` if nothing was measured.
    pub(crate) fn at(&self, size: f64, growth: Growth) -> Option<Interval> {
        let size = size.max(1.0);
        let class = class_of(size);
        let known = |(_, point): (&u32, &Point)| point.known();
        let mut below = self.0.range(..=class).rev().filter_map(known).skip_while(|point| point.size > size);
        let mut above = self.0.range(class..).filter_map(known).skip_while(|point| point.size < size);
        match (below.next(), above.next()) {
            (Some(low), Some(high)) => Some(between(low, high, size)),
            (Some(last), None) => Some(beyond(below.next(), last, size, growth)),
            (None, Some(first)) => Some(before(first, above.next(), size, growth)),
            (None, None) => None,
        }
    }
}

/// Parallelism of a device for a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Width {
    /// Number of items that have threads of their own; further items take turns.
    pub(crate) fills: f64,
    /// Exponent of the time's growth with the number of items, below `fills`.
    ///
    /// It is 0 on a GPU, where each item has a thread at once. A kernel on the host may or may not divide
    /// items among its threads, so its exponent is between 0 and 1.
    pub(crate) grows: f64,
}

impl Width {
    #[cfg(test)]
    pub(crate) const ONE: Self = Self { fills: 1.0, grows: 0.0 };

    /// Returns the time of a package of `items` items, relative to a package of one.
    fn by_one(self, items: f64) -> f64 {
        let fills = self.fills.max(1.0);
        items.min(fills).powf(self.grows) * (items / fills).max(1.0)
    }
}

/// Growth of a time where its points do not determine it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Growth {
    /// As for a package of items, on a device of this width.
    Items(Width),
    /// By this slope, in seconds per unit of the size, but at most in proportion.
    By(f64),
}

fn class_of(size: f64) -> u32 {
    (size as u64).max(1).ilog2() // The cast saturates.
}

/// Interpolates between two points by a power law.
fn between(low: Known, high: Known, size: f64) -> Interval {
    if high.size <= low.size {
        return low.seconds;
    }
    let part = (size / low.size).ln() / (high.size / low.size).ln();
    let (low, high) = (low.seconds, high.seconds);
    let expected = low.expected * (high.expected / low.expected).powf(part);
    let doubt = |low: f64, high: f64| expected * (low + (high - low) * part);
    Interval {
        least: doubt(low.least / low.expected, high.least / high.expected),
        expected,
        most: doubt(low.most / low.expected, high.most / high.expected),
    }
}

/// Returns the bounds of an estimate at a distance from a point.
///
/// They widen with the distance, but stay between no growth at all and growth in proportion.
fn doubted(point: Known, size: f64, expected: f64) -> Interval {
    let ratio = size / point.size;
    let doubt = 1.0 + DOUBT_PER_DOUBLING * ratio.log2().abs();
    let (flat, proportional) = (1.0_f64.min(ratio), 1.0_f64.max(ratio));
    let scale = expected / point.seconds.expected;
    Interval {
        least: (point.seconds.least * scale / doubt).max(point.seconds.least * flat),
        expected,
        most: (point.seconds.most * scale * doubt).min(point.seconds.most * proportional).max(expected),
    }
}

/// Returns the slope between two points, in seconds per unit of the size; with one point, the slope that
/// `growth` gives.
///
/// It is at least 0 and at most proportional to `point`.
fn slope(point: Known, other: Option<Known>, growth: Growth) -> f64 {
    let proportional = point.seconds.expected / point.size;
    let measured =
        other.map(|other| (other.seconds.expected - point.seconds.expected) / (other.size - point.size));
    let slope = match (measured, growth) {
        (Some(slope), _) | (None, Growth::By(slope)) => slope,
        (None, Growth::Items(_)) => proportional,
    };
    slope.clamp(0.0, proportional)
}

fn beyond(second: Option<Known>, last: Known, size: f64, growth: Growth) -> Interval {
    let slope = slope(last, second, growth);
    let expected = match growth {
        Growth::By(_) => last.seconds.expected + slope * (size - last.size),
        Growth::Items(width) => {
            // A slope that was measured over a factor is extrapolated over the same factor.
            let measured_to = second.map_or(last.size, |second| last.size * (last.size / second.size));
            let from = measured_to.min(size);
            let until_then = last.seconds.expected + slope * (from - last.size);
            // One point cannot separate a launch from its items.
            let launch = if second.is_none() { LAUNCH_SECONDS.min(until_then) } else { 0.0 };
            launch + (until_then - launch) * (width.by_one(size) / width.by_one(from))
        }
    };
    let mut interval = doubted(last, size, expected);
    if second.is_none() {
        // One point cannot distinguish a latency from a rate.
        interval.least = interval.least.min(last.seconds.least * (size / last.size).sqrt());
    }
    interval
}

fn before(first: Known, second: Option<Known>, size: f64, growth: Growth) -> Interval {
    let expected = match (second, growth) {
        (None, Growth::Items(width)) => {
            let launch = LAUNCH_SECONDS.min(first.seconds.expected);
            launch + (first.seconds.expected - launch) * (width.by_one(size) / width.by_one(first.size))
        }
        _ => first.seconds.expected - slope(first, second, growth) * (first.size - size),
    };
    doubted(first, size, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> Curve {
        let mut curve = Curve::default();
        points.iter().for_each(|&(size, seconds)| curve.add(size, seconds));
        curve
    }

    fn expected(curve: &Curve, size: f64) -> f64 {
        let interval = curve.at(size, Growth::Items(Width::ONE)).expect("the curve has points");
        assert!(interval.least <= interval.expected && interval.expected <= interval.most, "{interval:?}");
        interval.expected
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}");
    }

    #[test]
    fn one_point_promises_the_same_rate_at_every_size_but_for_its_launch() {
        let one = curve(&[(1000.0, 1e-3)]);
        for size in [1.0, 10.0, 1000.0, 1e6] {
            near(expected(&one, size), LAUNCH_SECONDS + size / 1e3 * (1e-3 - LAUNCH_SECONDS));
        }
        near(expected(&curve(&[(1.0, 4e-6)]), 64.0), 4e-6);
        assert_eq!(Curve::default().at(1.0, Growth::By(1.0)), None);
    }

    /// 1 ms for any package up to 1,000 items, and 1 us for each further item.
    #[test]
    fn two_points_tell_a_latency_from_a_rate() {
        let gpu = curve(&[(10.0, 1e-3), (1000.0, 1e-3), (101_000.0, 101e-3)]);
        near(expected(&gpu, 100.0), 1e-3);
        near(expected(&gpu, 1.0), 1e-3);
        near(expected(&gpu, 201_000.0), 201e-3);
        // A curve that was flat over a factor of a hundred may stay flat over another.
        let flat = curve(&[(10.0, 1e-3), (1000.0, 1e-3)]);
        near(expected(&flat, 1e5), 1e-3);
        near(expected(&flat, 1e6), 10e-3);
        assert!(
            flat.at(1e5, Growth::Items(Width::ONE)).unwrap().most > 2e-3,
            "it may rise beyond the measured sizes"
        );
    }

    #[test]
    fn a_device_that_computes_items_side_by_side_takes_as_long_for_fewer() {
        let one = curve(&[(100.0, 1e-3)]);
        let at = |size| one.at(size, Growth::Items(Width { fills: 1000.0, ..Width::ONE })).unwrap().expected;
        near(at(10.0), 1e-3);
        near(at(1000.0), 1e-3);
        near(at(5000.0), LAUNCH_SECONDS + 5.0 * (1e-3 - LAUNCH_SECONDS));
    }

    #[test]
    fn a_given_slope_counts_where_the_points_show_none() {
        let one = curve(&[(1000.0, 1e-3)]);
        near(one.at(3000.0, Growth::By(1e-7)).unwrap().expected, 1.2e-3);
        near(one.at(500.0, Growth::By(1e-7)).unwrap().expected, 0.95e-3);
        near(one.at(3000.0, Growth::By(1.0)).unwrap().expected, 3e-3);
    }

    #[test]
    fn doubt_grows_with_the_distance() {
        let two = curve(&[(10.0, 1e-3), (1000.0, 10e-3)]);
        let width = |size| {
            let Interval { least, most, .. } = two.at(size, Growth::Items(Width::ONE)).unwrap();
            most / least
        };
        assert!(width(4000.0) > width(1000.0) && width(64_000.0) > width(4000.0));
    }

    #[test]
    fn median_of_nine_ignores_four_busy_runs() {
        let mut samples = Samples::default();
        for sample in [1.0, 1.1, 1.4, 1.0, 1.45, 1.1, 1.4, 1.0, 1.45] {
            samples.add(sample);
        }
        assert_eq!(samples.median(), Some(1.1));
        assert_eq!(samples.len(), KEPT);
    }

    #[test]
    fn a_kernel_that_became_faster_is_believed_after_two_runs() {
        let mut samples = Samples::default();
        [10.0, 11.0, 10.0, 5.0].into_iter().for_each(|sample| samples.add(sample));
        assert_eq!(samples.len(), 4, "one sample may be chance");
        samples.add(6.0);
        assert_eq!((samples.len(), samples.median()), (2, Some(5.0)));
        [50.0, 40.0].into_iter().for_each(|sample| samples.add(sample));
        assert_eq!((samples.len(), samples.median()), (4, Some(6.0)), "the machine may be busy");
    }

    #[test]
    fn what_is_no_time_is_no_sample() {
        let mut one = curve(&[(0.0, 1.0)]);
        for (size, seconds) in
            [(1.0, 0.0), (1.0, f64::NAN), (f64::NAN, 0.0), (f64::INFINITY, 1.0), (1.0, -1.0)]
        {
            one.add(size, seconds);
        }
        assert_eq!((one.samples_at(0.0), one.samples_at(1.0)), (1, 1));
        assert!(one.is_valid());
    }
}
