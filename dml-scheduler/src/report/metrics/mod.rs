//! Metrics of a co-execution, computed from measured times.
//!
//! ```text
//!  alone seconds --powers--> P_i --s_max--> S_max --+
//!  fastest alone, together --speedup--> S ----------+--efficiency--> HE
//!  own end times --balance                samples --Summary--> median, min, max
//!  events --transfers--> intervals ---------+
//!  packages --computing--> intervals -------+--Overlap--> fraction of transfer time under compute
//! ```
//!
//! All times are seconds of wall clock and include transfers. A time *counts as measured* when it is positive
//! and finite; runs of no work, or shorter than the clock's tick, measure 0. Every function is total: it
//! documents its result for times that were not measured, and never returns NaN or an infinity for finite
//! input.
//!
//! # Source
//! Papers 000 (section 5) and 001 (section 4.1).

mod overlap;

pub use overlap::{Overlap, transfers};

/// Number of initial runs that a measurement discards: the first run pays for compilation and first touch.
pub const DISCARDED_RUNS: usize = 1;

/// Minimum number of runs for a summary that may be reported.
pub const FEWEST_RUNS: usize = 9;

/// Returns relative powers from the seconds that each device needs for the whole work alone:
/// `P_i = min(T) / T_i`.
///
/// # Shape and units
/// One power per time, in 0..=1; the fastest device's power is 1. Policies accept every result. A device
/// whose time is 0, negative or NaN counts as fast as the fastest measured device. A device that never
/// finished (infinity) counts as slower than all others. With no measured time, every power is 1.
///
/// ```
/// assert_eq!(dml_scheduler::metrics::powers(&[4.0, 1.0, 2.0]), [0.25, 1.0, 0.5]);
/// ```
#[must_use]
pub fn powers(alone_seconds: &[f64]) -> Vec<f64> {
    let Some(fastest) = alone_seconds.iter().copied().filter(|time| is_measured(*time)).reduce(f64::min)
    else {
        return vec![1.0; alone_seconds.len()];
    };
    let power = |time: &f64| match *time {
        f64::INFINITY => f64::MIN_POSITIVE,
        time if is_measured(time) => (fastest / time).max(f64::MIN_POSITIVE),
        _ => 1.0,
    };
    alone_seconds.iter().map(power).collect()
}

/// Returns how many times faster the devices together are than the fastest one alone:
/// `S = T_alone / T_together`.
///
/// Returns 1 when either time was not measured: a run of no work gains nothing.
#[must_use]
pub fn speedup(fastest_alone_seconds: f64, together_seconds: f64) -> f64 {
    if is_measured(fastest_alone_seconds) && is_measured(together_seconds) {
        finite(fastest_alone_seconds / together_seconds)
    } else {
        1.0
    }
}

/// Returns the maximum speedup of devices with these powers: `S_max = sum(P)`, with the fastest power scaled
/// to 1.
///
/// Powers that are not positive and finite are ignored. If none is left, the result is 1, as for a run on one
/// device.
#[must_use]
pub fn s_max(powers: &[f64]) -> f64 {
    let usable = || powers.iter().copied().filter(|power| is_measured(*power));
    usable().reduce(f64::max).map_or(1.0, |fastest| usable().map(|power| power / fastest).sum())
}

/// Returns the heterogeneous efficiency: `HE = S / S_max`, the achieved fraction of the maximum speedup.
///
/// 1 is ideal. Slightly more is possible if the powers drift between measurements. It is also possible if
/// data fits the caches of all devices together but not the cache of any one. The result is 0 when either
/// argument is not positive and finite.
#[must_use]
pub fn efficiency(speedup: f64, s_max: f64) -> f64 {
    if is_measured(speedup) && is_measured(s_max) { finite(speedup / s_max) } else { 0.0 }
}

/// Returns how evenly the devices finished: `min(T_i) / max(T_i)` over each device's end time from the run's
/// start.
///
/// # Shape and units
/// The result is in 0..=1; 1 is ideal. A device that did no work ended at 0. It makes the balance 0 if
/// another device worked, because it was idle for the whole run. Omit its time to compare only devices that
/// worked. The result is 1 for a single device, for none, and when no device did any work. Negative and NaN
/// times count as 0, and with infinite times the balance is 0.
///
/// ```
/// use dml_scheduler::metrics::balance;
///
/// assert_eq!(balance(&[1.5, 3.0]), 0.5);
/// assert_eq!(balance(&[0.7]), 1.0);
/// assert_eq!(balance(&[0.7, 0.0]), 0.0);
/// ```
#[must_use]
pub fn balance(end_seconds: &[f64]) -> f64 {
    let ends = || end_seconds.iter().map(|end| end.max(0.0)); // max() also turns NaN into 0
    let (Some(first), Some(last)) = (ends().reduce(f64::min), ends().reduce(f64::max)) else { return 1.0 };
    if end_seconds.len() == 1 || last == 0.0 {
        1.0
    } else if last.is_infinite() {
        0.0
    } else {
        first / last
    }
}

/// Returns the energy-delay product `EDP = E * T`, in joule-seconds.
///
/// Returns 0 when the energy or the time is not positive and finite.
#[must_use]
pub fn energy_delay_joule_seconds(energy_joules: f64, seconds: f64) -> f64 {
    if is_measured(energy_joules) && is_measured(seconds) { finite(energy_joules * seconds) } else { 0.0 }
}

/// Returns the ratio of a figure, such as an energy or an energy-delay product, to the fastest device's
/// figure alone.
///
/// # Shape and units
/// A ratio without a unit; below 1, the devices together need less. `None` when either figure is not positive
/// and finite.
///
/// ```
/// use dml_scheduler::metrics::normalised;
///
/// assert_eq!(normalised(3.0, 4.0), Some(0.75));
/// assert_eq!(normalised(3.0, 0.0), None);
/// ```
#[must_use]
pub fn normalised(figure: f64, of_fastest_alone: f64) -> Option<f64> {
    (is_measured(figure) && is_measured(of_fastest_alone)).then(|| finite(figure / of_fastest_alone))
}

/// The median and the extremes of repeated measurements, in the samples' own unit.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// The middle sample, or the mean of the two middle samples.
    pub median: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
    /// The number of finite samples.
    pub samples: usize,
}

impl Summary {
    /// Summarises the finite samples; `None` when there are none.
    ///
    /// It does not apply [`DISCARDED_RUNS`]: pass only the samples that count.
    ///
    /// ```
    /// let summary = dml_scheduler::metrics::Summary::of(&[3.0, 1.0, 2.0, 10.0]).unwrap();
    /// assert_eq!((summary.median, summary.min, summary.max), (2.5, 1.0, 10.0));
    /// ```
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (below, above) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: f64::midpoint(below, above), min, max, samples: sorted.len() })
    }
}

/// Returns whether a quantity is positive and finite, so that it can be a divisor.
fn is_measured(quantity: f64) -> bool {
    quantity > 0.0 && quantity.is_finite()
}

/// Clamps a quotient or product of extreme values to a finite number.
const fn finite(quotient: f64) -> f64 {
    quotient.min(f64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn powers_are_relative_to_the_fastest() {
        assert_eq!(powers(&[1.0, 2.0, 8.0]), [1.0, 0.5, 0.125]);
        assert_eq!(powers(&[3.0]), [1.0]);
        assert_eq!(powers(&[]), [0.0; 0]);
    }

    #[test]
    fn powers_without_a_measured_time_are_still_powers() {
        assert_eq!(powers(&[0.0, 0.0]), [1.0, 1.0]);
        assert_eq!(powers(&[0.0, 2.0, 4.0]), [1.0, 1.0, 0.5]);
        assert_eq!(powers(&[f64::NAN, 2.0, f64::INFINITY]), [1.0, 1.0, f64::MIN_POSITIVE]);
    }

    #[test]
    fn a_hand_computed_run() {
        let powers = powers(&[1.0, 2.0]); // the second device needs twice as long
        assert_eq!(s_max(&powers), 1.5);
        let speedup = speedup(1.0, 0.8);
        assert_eq!(speedup, 1.25);
        assert_eq!(efficiency(speedup, s_max(&powers)), 1.25 / 1.5);
        assert_eq!(balance(&[0.8, 0.6]), 0.6 / 0.8);
        assert_eq!(energy_delay_joule_seconds(30.0, 0.8), 24.0);
        assert_eq!(normalised(30.0, 40.0), Some(0.75));
        assert_eq!((normalised(0.0, 40.0), normalised(30.0, 0.0)), (None, None));
    }

    #[test]
    fn a_run_of_no_work_is_neutral() {
        assert_eq!(speedup(0.0, 0.0), 1.0);
        assert_eq!(speedup(1.0, 0.0), 1.0);
        assert_eq!(speedup(0.0, 1.0), 1.0);
        assert_eq!(balance(&[0.0, 0.0]), 1.0);
        assert_eq!(balance(&[]), 1.0);
        assert_eq!(s_max(&[]), 1.0);
        assert_eq!(efficiency(1.0, 0.0), 0.0);
        assert_eq!(energy_delay_joule_seconds(0.0, 0.0), 0.0);
    }

    #[test]
    fn a_device_without_work_spoils_the_balance() {
        assert_eq!(balance(&[0.5, 0.0, 0.5]), 0.0);
        assert_eq!(balance(&[0.5, 0.5]), 1.0);
        assert_eq!(balance(&[0.5, f64::NAN]), 0.0);
        assert_eq!(balance(&[0.5, f64::INFINITY]), 0.0);
        assert_eq!(balance(&[f64::INFINITY, f64::INFINITY]), 0.0);
    }

    #[test]
    fn s_max_does_not_depend_on_the_scale() {
        assert_eq!(s_max(&[2.0, 1.0]), s_max(&[1.0, 0.5]));
        assert_eq!(s_max(&[f64::MAX, f64::MAX]), 2.0);
    }

    #[test]
    fn summaries_of_odd_even_and_no_samples() {
        let odd = Summary::of(&[9.0, 1.0, 2.0]).unwrap();
        assert_eq!(odd, Summary { median: 2.0, min: 1.0, max: 9.0, samples: 3 });
        assert_eq!(Summary::of(&[4.0]).unwrap(), Summary { median: 4.0, min: 4.0, max: 4.0, samples: 1 });
        assert_eq!(Summary::of(&[f64::MAX, f64::MAX]).unwrap().median, f64::MAX);
        assert_eq!(Summary::of(&[f64::NAN, 1.0, f64::INFINITY]).unwrap().samples, 1);
        assert_eq!(Summary::of(&[f64::NAN]), None);
        assert_eq!(Summary::of(&[]), None);
    }

    proptest! {
        #[test]
        fn nothing_leaks_nan_or_infinity(times in prop::collection::vec(any::<f64>(), 0..6), a: f64, b: f64) {
            for power in powers(&times) {
                prop_assert!(power > 0.0 && power <= 1.0);
            }
            prop_assert!((0.0..=1.0).contains(&balance(&times)));
            for figure in [speedup(a, b), s_max(&times), efficiency(a, b), energy_delay_joule_seconds(a, b)] {
                prop_assert!(figure.is_finite() && figure >= 0.0);
            }
            prop_assert!(normalised(a, b).is_none_or(|ratio| ratio.is_finite() && ratio >= 0.0));
            if let Some(summary) = Summary::of(&times) {
                prop_assert!(summary.min <= summary.median && summary.median <= summary.max);
            }
        }
    }
}
