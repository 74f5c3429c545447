//! Who takes part: the devices that make a run shorter.
//!
//! ```text
//!   time |        ____ without        Devices that are set going within L_i and then compute r_i items per second are
//!        |    ___/                    all done at t = (N + sum(L_i r_i)) / sum(r_i). A further device brings that closer
//!        |___/____ t                  to its own L_i. So it helps where L_i is below the time without it, and else not,
//!        |  |                         however fast it is.
//!        +--L_1--L_2---- devices
//! ```

use crate::UnitId;
use std::time::Duration;

/// What is known of a device that could take part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Items per second while the others run too.
    pub rate: f64,
    /// How long it takes to set the device going, to compute one work-group and to get its results back: no device does less.
    pub setup: Duration,
}

/// The devices that take part.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Chosen {
    /// The devices that take part, ascending; none only where there is no device.
    pub members: Vec<UnitId>,
    /// How long these take together, in seconds, if all end at once.
    pub seconds: f64,
}

/// Returns which devices should share `work` items, so that the run is never longer than on the best of them alone.
///
/// It starts with the device that is fastest alone. A further device joins only if it is set going before the others would
/// be done without it, and if that makes the run shorter by more than `noise` seconds. The device that it started with
/// goes again if the others are done before it is set going.
///
/// # Shape and units
/// Estimates have the order of the units. The noise is what a run varies by, and what sharing costs that the estimates do
/// not contain: several packages for each device instead of one. Noise that is negative or not a number counts as 0. A device whose rate is not
/// positive and finite is left out; if that is so for all, the first one takes part, with an infinite time.
///
/// ```
/// use dml_scheduler::policy::{Estimate, join};
/// use std::time::Duration;
///
/// let estimate = |rate, micros| Estimate { rate, setup: Duration::from_micros(micros) };
/// let chosen = join(1_000, &[estimate(1e6, 10), estimate(1e8, 1_200)], 0.0);
/// assert_eq!(chosen.members.len(), 1); // 1000 items take the first device 1.01 ms
/// ```
#[must_use]
pub fn join(work: u64, estimates: &[Estimate], noise: f64) -> Chosen {
    let noise = noise.max(0.0); // also takes NaN for 0
    let mut candidates: Vec<Candidate> =
        estimates.iter().enumerate().filter_map(|(unit, estimate)| Candidate::new(unit, estimate)).collect();
    candidates.sort_by(|one, other| one.setup.total_cmp(&other.setup));
    let alone = |candidate: &Candidate| candidate.alone(work);
    let fastest = candidates.iter().copied().min_by(|one, other| alone(one).total_cmp(&alone(other)));
    let Some(fastest) = fastest else {
        let members: Vec<UnitId> = (0..estimates.len().min(1)).map(UnitId).collect();
        let seconds = if members.is_empty() { 0.0 } else { f64::INFINITY };
        return Chosen { members, seconds };
    };
    let others = candidates.into_iter().filter(|candidate| candidate.unit != fastest.unit);
    let mut group = Group::of(fastest, work);
    let mut without: Option<Group> = None;
    let mut members = vec![fastest.unit];
    for candidate in others {
        let joined = group.with(candidate);
        if candidate.setup < group.seconds && joined.seconds < group.seconds - noise {
            group = joined;
            without = Some(without.map_or_else(|| Group::of(candidate, work), |rest| rest.with(candidate)));
            members.push(candidate.unit);
        }
    }
    if let Some(without) = without
        && fastest.setup >= without.seconds
    {
        group = without;
        members.remove(0);
    }
    members.sort_unstable();
    Chosen { members, seconds: group.seconds }
}

fn is_rate(rate: f64) -> bool {
    rate.is_finite() && rate > 0.0
}

#[derive(Clone, Copy)]
struct Candidate {
    unit: UnitId,
    rate: f64,
    setup: f64,
}

impl Candidate {
    fn new(unit: usize, estimate: &Estimate) -> Option<Self> {
        let Estimate { rate, setup } = *estimate;
        is_rate(rate).then_some(Self { unit: UnitId(unit), rate, setup: setup.as_secs_f64() })
    }

    /// How long the device takes alone, in seconds.
    fn alone(&self, work: u64) -> f64 {
        (self.setup + work as f64 / self.rate).min(f64::MAX)
    }
}

/// Devices that end at once.
#[derive(Clone, Copy)]
struct Group {
    rate: f64,
    seconds: f64,
}

impl Group {
    fn of(candidate: Candidate, work: u64) -> Self {
        Self { rate: candidate.rate, seconds: candidate.alone(work) }
    }

    /// The devices and one more: by the formula for t, the mean of both times by their rates.
    fn with(self, candidate: Candidate) -> Self {
        let largest = self.rate.max(candidate.rate);
        let (own, other) = (self.rate / largest, candidate.rate / largest);
        let seconds = self.seconds + (candidate.setup - self.seconds) * (other / (own + other));
        Self { rate: (self.rate + candidate.rate).min(f64::MAX), seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn estimate(rate: f64, micros: u64) -> Estimate {
        Estimate { rate, setup: Duration::from_micros(micros) }
    }

    fn members(chosen: &Chosen) -> Vec<usize> {
        chosen.members.iter().map(|unit| unit.0).collect()
    }

    #[test]
    fn a_device_joins_when_it_is_set_going_before_the_others_are_done() {
        let devices = [estimate(1e6, 100), estimate(3e6, 900)];
        let short = join(500, &devices, 0.0);
        assert_eq!(members(&short), [0]);
        assert!((short.seconds - 0.0006).abs() < 1e-12, "{}", short.seconds);
        let long = join(4_000, &devices, 0.0);
        assert_eq!(members(&long), [0, 1]);
        assert!((long.seconds - 0.0017).abs() < 1e-12, "(4000 + 100 + 2700) / 4e6: {}", long.seconds);
    }

    #[test]
    fn a_device_that_gains_less_than_the_noise_stays_out() {
        let devices = [estimate(1e6, 0), estimate(1e6, 900)];
        assert_eq!(members(&join(1_000, &devices, 0.000_04)), [0, 1]); // 0.95 ms instead of 1 ms
        assert_eq!(members(&join(1_000, &devices, 0.000_06)), [0]);
    }

    #[test]
    fn the_fastest_alone_goes_where_many_are_done_before_it_starts() {
        let mut devices = vec![estimate(1e9, 1_000)];
        devices.extend([estimate(9e5, 0); 10]);
        let chosen = join(1_000, &devices, 0.0); // 1.001 ms on the first alone, 0.111 ms on the others
        assert_eq!(members(&chosen), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_device_without_a_rate_stays_out_and_nobody_is_refused_everything() {
        let chosen = join(10, &[estimate(f64::NAN, 0), estimate(10.0, 0), estimate(-1.0, 0)], 0.0);
        assert_eq!(members(&chosen), [1]);
        assert_eq!(members(&join(10, &[estimate(0.0, 0), estimate(f64::INFINITY, 0)], 0.0)), [0]);
        let nobody = join(10, &[], 0.0);
        assert_eq!((nobody.members.len(), nobody.seconds), (0, 0.0));
    }

    fn estimates() -> impl Strategy<Value = Vec<Estimate>> {
        let rate = (-3.0..9.0f64).prop_map(|exponent| 10f64.powf(exponent));
        prop::collection::vec((rate, 0..2_000_000u64).prop_map(|(rate, micros)| estimate(rate, micros)), 1..6)
    }

    fn best_alone(work: u64, estimates: &[Estimate]) -> f64 {
        let alone = |estimate: &Estimate| estimate.setup.as_secs_f64() + work as f64 / estimate.rate;
        estimates.iter().map(alone).fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn never_longer_than_the_best_alone(work in 0..1u64 << 40, estimates in estimates(), noise in 0.0..0.1f64) {
            let chosen = join(work, &estimates, noise);
            prop_assert!(chosen.seconds <= best_alone(work, &estimates) * (1.0 + 1e-9));
        }

        #[test]
        fn no_other_set_is_shorter(work in 0..1u64 << 40, estimates in estimates()) {
            let seconds = join(work, &estimates, 0.0).seconds;
            for set in 1..1u32 << estimates.len() {
                let chosen = estimates.iter().enumerate().filter(|(unit, _)| set >> unit & 1 == 1);
                let (items, rates) = chosen.fold((work as f64, 0.0), |(items, rates), (_, estimate)| {
                    (items + estimate.setup.as_secs_f64() * estimate.rate, rates + estimate.rate)
                });
                prop_assert!(seconds <= items / rates * (1.0 + 1e-6), "{:#b}: {} < {}", set, items / rates, seconds);
            }
        }

        #[test]
        fn more_work_takes_longer_and_more_devices_do_not(
            work in 0..1u64 << 40,
            more in 0..1u64 << 40,
            estimates in estimates(),
        ) {
            let seconds = join(work, &estimates, 0.0).seconds;
            prop_assert!(seconds <= join(work + more, &estimates, 0.0).seconds * (1.0 + 1e-9));
            prop_assert!(seconds <= join(work, &estimates[..1], 0.0).seconds * (1.0 + 1e-9));
        }

        #[test]
        fn any_floats_get_an_answer(
            work: u64,
            rates in prop::collection::vec(any::<f64>(), 0..6),
            setups in prop::collection::vec(any::<Duration>(), 6),
            noise: f64,
        ) {
            let estimates: Vec<Estimate> =
                rates.iter().zip(setups).map(|(&rate, setup)| Estimate { rate, setup }).collect();
            let chosen = join(work, &estimates, noise);
            prop_assert!(!chosen.seconds.is_nan() && chosen.seconds >= 0.0);
            prop_assert_eq!(chosen.members.is_empty(), estimates.is_empty());
            prop_assert!(chosen.members.is_sorted() && chosen.members.iter().all(|unit| unit.0 < estimates.len()));
        }
    }
}
