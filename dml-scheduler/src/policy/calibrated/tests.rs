//! Each rule of the calibrated policy, and its robustness against arbitrary times, rates and sizes.

use super::*;
use crate::policy::{Assignment, Recorded, Splitter};
use proptest::prelude::*;

const MICRO: Duration = Duration::from_micros(1);

fn splitter(work: u64, priors: &[Option<Prior>]) -> Splitter {
    let policy = Calibrated::new(work, 1, priors).unwrap();
    Splitter::new(Box::new(policy), priors.len(), work, 1).unwrap()
}

fn package(splitter: &mut Splitter, unit: usize) -> Package {
    match splitter.assign(UnitId(unit)) {
        Assignment::Package(package) => package,
        other => panic!("unit {unit} got {other:?}"),
    }
}

/// Completes a package that was handed out at `handed`, had a fixed cost of `cost` and then took `per_item`
/// for each item, in microseconds. Returns when it was done.
fn compute(splitter: &mut Splitter, package: &Package, [handed, cost, per_item]: [u64; 3]) -> u64 {
    let done = handed + cost + per_item * package.items();
    let [handed, begun, done_at] = [handed, handed + cost, done].map(|micros| MICRO * micros as u32);
    splitter.complete_with(package, Computed::new(package, handed, begun, done_at, done_at)).unwrap();
    done
}

#[test]
fn a_first_package_is_a_sample_and_nothing_follows_before_it_is_measured() {
    let mut splitter = splitter(128_000, &[None, None]);
    assert_eq!(package(&mut splitter, 0).items(), 1000); // 128000 / 64 / 2
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait);
    assert_eq!(package(&mut splitter, 1).items(), 1000);
}

#[test]
fn a_sample_is_in_proportion_to_the_power_given() {
    let mut splitter = splitter(128_000, &[Some(Prior::of_power(8.0)), Some(Prior::of_power(2.0))]);
    assert_eq!(package(&mut splitter, 0).items(), 1000);
    assert_eq!(package(&mut splitter, 1).items(), 250);
}

#[test]
fn sizes_follow_the_measured_rates_whatever_powers_were_given() {
    let mut splitter = splitter(128_000, &[Some(Prior::of_power(1.0)), Some(Prior::of_power(1.0))]);
    let samples = [package(&mut splitter, 0), package(&mut splitter, 1)];
    compute(&mut splitter, &samples[0], [0, 0, 1]);
    compute(&mut splitter, &samples[1], [0, 0, 3]);
    assert_eq!(package(&mut splitter, 0).items(), 23_625); // 126000 * 3/4 / 4
    assert_eq!(package(&mut splitter, 1).items(), 6_398); // 102375 / 4 / 4
}

#[test]
fn a_unit_that_is_not_measured_is_as_fast_as_its_power_beside_the_measured() {
    let mut policy =
        Calibrated::new(128_000, 1, &[Some(Prior::of_power(1.0)), Some(Prior::of_power(0.5)), None]).unwrap();
    let sample = Package::new(0..600, UnitId(0), 0);
    policy.handed(&sample, Duration::ZERO);
    policy.computed(&Computed::new(&sample, Duration::ZERO, Duration::ZERO, MICRO * 300, MICRO * 300));
    let rates = policy.rates();
    assert!(
        [2e6, 1e6, 1.5e6].iter().zip(&rates).all(|(rate, is)| (is / rate - 1.0).abs() < 1e-9),
        "{rates:?}"
    );
    policy.retire(UnitId(0));
    assert_eq!(policy.rates()[0], 0.0);
    // A rate from an earlier run counts, even if no other unit has a prior; a power alone does not.
    let priors = [None, Some(Prior::measured(3e6, MICRO)), Some(Prior::of_power(0.5))];
    let mut policy = Calibrated::new(128_000, 1, &priors[..2]).unwrap();
    let mut by_power = Calibrated::new(128_000, 1, &[priors[0], priors[2]]).unwrap();
    for policy in [&mut policy, &mut by_power] {
        policy.handed(&sample, Duration::ZERO);
        policy.computed(&Computed::new(&sample, Duration::ZERO, Duration::ZERO, MICRO * 300, MICRO * 300));
    }
    let [rates, by_power] = [policy.rates(), by_power.rates()].map(|rates| rates[1] / rates[0]);
    assert!((rates - 1.5).abs() < 1e-9 && (by_power - 1.0).abs() < 1e-9, "{rates}, {by_power}");
}

#[test]
fn packages_grow_step_by_step_and_one_at_a_time_while_a_unit_is_unknown() {
    let trusted = Some(Prior::measured(1e6, MICRO * 1_000));
    let mut splitter = splitter(128_000, &[trusted, None]);
    let sample = package(&mut splitter, 1);
    assert_eq!(package(&mut splitter, 0).items(), 15_875); // 127000 / 2 / 4
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait, "though it is trusted");
    compute(&mut splitter, &sample, [0, 0, 1]);
    package(&mut splitter, 0);
    let mut strangers = self::splitter(128_000, &[None, None]);
    let samples = [package(&mut strangers, 0), package(&mut strangers, 1)];
    compute(&mut strangers, &samples[0], [0, 0, 1]);
    assert_eq!(package(&mut strangers, 0).items(), 4000, "four times the sample");
    assert_eq!(strangers.assign(UnitId(0)), Assignment::Wait);
}

#[test]
fn a_unit_that_would_come_too_late_leaves_the_end_to_the_others() {
    let priors = [Some(Prior::measured(1e6, MICRO)), Some(Prior::measured(1e3, MICRO))];
    let policy = Calibrated::new(10_000, 64, &priors).unwrap();
    let mut splitter = Splitter::new(Box::new(policy), 2, 10_000, 64).unwrap();
    let first = package(&mut splitter, 0);
    assert_eq!(
        splitter.assign(UnitId(1)),
        Assignment::Wait,
        "64 ms for a work-group, 10 ms for all items on the other unit"
    );
    splitter.complete(&first).unwrap();
    package(&mut splitter, 0); // the fastest unit continues
    let priors = [Some(Prior::measured(1e6, MICRO)), Some(Prior::measured(1e4, MICRO))];
    let policy = Calibrated::new(10_000, 64, &priors).unwrap();
    let mut splitter = Splitter::new(Box::new(policy), 2, 10_000, 64).unwrap();
    package(&mut splitter, 0);
    assert_eq!(package(&mut splitter, 1).items(), 64, "6.4 ms for a work-group");
}

#[test]
fn a_unit_that_computed_a_dearer_part_of_the_work_does_not_pass_for_slower() {
    // Items become ten times as expensive after unit 0's second package. Unit 1 is equally fast, but has not
    // got there.
    let mut splitter = splitter(128_000, &[None, None]);
    let samples = [package(&mut splitter, 0), package(&mut splitter, 1)];
    let now = compute(&mut splitter, &samples[0], [0, 0, 1]);
    let cheap = package(&mut splitter, 0);
    let now = compute(&mut splitter, &cheap, [now, 0, 1]);
    let dear = package(&mut splitter, 0);
    compute(&mut splitter, &dear, [now, 0, 10]);
    compute(&mut splitter, &samples[1], [0, 0, 1]);
    let remaining = splitter.unassigned();
    assert_eq!(package(&mut splitter, 1).items(), remaining / 8); // G / 2 / 4: equally fast where both were
}

#[test]
fn packages_are_worth_their_cost_but_do_not_jump() {
    let mut splitter = splitter(12_800, &[None, None]);
    let samples = [package(&mut splitter, 0), package(&mut splitter, 1)];
    compute(&mut splitter, &samples[0], [0, 0, 1]);
    let now = compute(&mut splitter, &samples[1], [0, 1000, 20]);
    // Its share gives 12600 / 21 / 4 = 150 items. A package is worth its cost from 1000 / 0.15 / 20 = 333
    // items up.
    let next = package(&mut splitter, 1);
    assert_eq!(next.items(), 200, "twice the 100 of the sample");
    compute(&mut splitter, &next, [now, 1000, 20]);
    assert_eq!(package(&mut splitter, 1).items(), 295, "half of its share: 12400 / 21 / 2");
}

#[test]
fn a_unit_is_handed_work_ahead_only_within_four_fifths_of_its_part() {
    let mut splitter = splitter(
        1_280_000,
        &[Some(Prior::measured(1e6, MICRO * 10_000)), Some(Prior::measured(1e6, MICRO * 10_000))],
    );
    let first = package(&mut splitter, 0);
    assert_eq!(first.items(), 160_000); // 1280000 / 2 / 4
    let ahead = package(&mut splitter, 0); // from the start, because it is trusted
    assert_eq!(ahead.items(), 140_000);
    assert_eq!(package(&mut splitter, 0).items(), 122_500);
    // 4/5 of its half of the uncompleted work are 512000, and a package is worth its cost from 66666 items
    // up.
    assert_eq!(package(&mut splitter, 0).items(), 512_000 - 422_500);
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait);
    splitter.complete(&first).unwrap();
    assert_eq!(package(&mut splitter, 0).items(), 768_000 / 8);
}

#[test]
fn what_the_others_have_counts_as_not_done() {
    let trusted = || Some(Prior::measured(1e6, MICRO * 10_000));
    let mut splitter = splitter(600_000, &[trusted(), trusted()]);
    let sizes = [0, 1, 0].map(|unit| package(&mut splitter, unit).items());
    assert_eq!(sizes, [75_000, 66_666, 66_666]);
    // 4/5 of its half of the uncompleted work are 240000; of the unassigned work they would be 156667.
    assert_eq!(package(&mut splitter, 0).items(), 66_666);
}

#[test]
fn a_unit_whose_results_travel_gets_no_more_than_a_twelfth_of_its_part() {
    let trusted = || Some(Prior::measured(1e6, MICRO));
    let policy = Calibrated::new(1_200_000, 1, &[trusted(), trusted()]).unwrap().overlapping([UnitId(1)]);
    let mut splitter = Splitter::new(Box::new(policy), 2, 1_200_000, 1).unwrap();
    assert_eq!(package(&mut splitter, 1).items(), 50_000);
    assert_eq!(package(&mut splitter, 0).items(), 1_150_000 / 8);
}

#[test]
fn nothing_is_handed_out_ahead_where_that_hides_nothing() {
    let trusted = || Some(Prior::measured(1e6, MICRO));
    let mut free = splitter(1_280_000, &[trusted(), trusted()]);
    package(&mut free, 0);
    assert_eq!(free.assign(UnitId(0)), Assignment::Wait, "1 us of 320 ms");
    let policy =
        Calibrated::new(1_280_000, 1, &[trusted(), trusted()]).unwrap().overlapping([UnitId(0), UnitId(9)]);
    let mut travelling = Splitter::new(Box::new(policy), 2, 1_280_000, 1).unwrap();
    package(&mut travelling, 0);
    package(&mut travelling, 0);
    package(&mut travelling, 1);
    assert_eq!(travelling.assign(UnitId(1)), Assignment::Wait);
}

/// Packages compute for 100,000 us each. A transfer time of a hundredth is worth hiding, and a shorter one is
/// not.
#[test]
fn nothing_is_handed_out_ahead_to_whom_its_ways_take_next_to_nothing() {
    let trusted = || Some(Prior::measured(1e6, MICRO));
    for ([out, back], is_ahead) in [
        ([0, 999], false),
        ([0, 1000], true),
        ([999, 0], false),
        ([1000, 0], true),
        ([500, 500], true),
        ([0, 0], false),
    ] {
        let policy =
            Calibrated::new(10_000_000, 1, &[trusted(), trusted()]).unwrap().overlapping([UnitId(0)]);
        let mut splitter = Splitter::new(Box::new(policy), 2, 10_000_000, 1).unwrap();
        let first = package(&mut splitter, 0);
        let times = [0, out, out + 100_000, out + 100_000 + back].map(|micros| MICRO * micros);
        let [handed, begun, ended, done] = times;
        splitter.complete_with(&first, Computed::new(&first, handed, begun, ended, done)).unwrap();
        package(&mut splitter, 0);
        let next = splitter.assign(UnitId(0));
        assert_eq!(
            matches!(next, Assignment::Package(_)),
            is_ahead,
            "{out} us inbound and {back} us outbound: {next:?}"
        );
    }
}

#[test]
fn a_single_unit_gets_everything_at_once() {
    let mut alone = splitter(1000, &[None]);
    assert_eq!(package(&mut alone, 0).items(), 1000);
    let mut left = splitter(128_000, &[None, None]);
    package(&mut left, 0);
    left.retire(UnitId(1));
    assert_eq!(package(&mut left, 0).items(), 127_000);
}

#[test]
fn a_single_unit_that_overlaps_gets_at_most_sixteen_packages() {
    for work in [1, 15, 1000, 1 << 20, u64::MAX] {
        let policy = Calibrated::new(work, 1, &[None]).unwrap().overlapping([UnitId(0)]);
        let mut splitter = Splitter::new(Box::new(policy), 1, work, 1).unwrap();
        let mut packages = 0;
        while splitter.unassigned() > 0 {
            package(&mut splitter, 0); // all in flight
            packages += 1;
        }
        assert!(packages <= 16 && (work < 1000 || packages >= 8), "{work} items: {packages} packages");
    }
    let prior = Prior::measured(1e6, MICRO * 1000);
    let policy = Calibrated::new(9_000, 1, &[Some(prior)]).unwrap().overlapping([UnitId(0)]);
    let mut dear = Splitter::new(Box::new(policy), 1, 9_000, 1).unwrap();
    assert_eq!(package(&mut dear, 0).items(), 6_666, "the cost is 15% of the computing time");
}

#[test]
fn a_package_that_came_back_no_longer_counts_as_in_flight() {
    let trusted = || Some(Prior::measured(1e6, MICRO * 10_000));
    let mut splitter = splitter(1_280_000, &[trusted(), trusted()]);
    let packages = [0; 4].map(|unit| package(&mut splitter, unit));
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait);
    packages.iter().for_each(|package| splitter.give_back(package).unwrap());
    assert_eq!(package(&mut splitter, 0).items(), 160_000);
    assert_eq!(package(&mut splitter, 0).items(), 140_000);
}

#[test]
fn bad_rates_are_named() {
    for rate in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        let error = Calibrated::new(1, 1, &[None, Some(Prior::of_power(rate))]).unwrap_err();
        assert!(matches!(error, PolicyError::BadPower { unit: UnitId(1), .. }), "{error}");
    }
    assert_eq!(Calibrated::new(1, 1, &[]).unwrap_err(), PolicyError::NoUnits);
}

/// Both units have rates from an earlier run. Each rate weighs as much as the unit's measurements since the
/// start.
#[test]
fn a_trusted_rate_counts_as_much_as_what_was_measured_since_the_start() {
    let priors = [2e6, 1e6].map(|rate| Some(Prior::measured(rate, Duration::ZERO)));
    let mut policy = Calibrated::new(128_000, 1, &priors).unwrap();
    for (unit, start, micros) in [(0, 0, 500), (1, 1000, 2000)] {
        let package = Package::new(start..start + 1000, UnitId(unit), 0);
        policy.handed(&package, Duration::ZERO);
        let done = MICRO * micros;
        policy.computed(&Computed::new(&package, Duration::ZERO, Duration::ZERO, done, done));
    }
    // Both rates cover the items before 2000, where the older half weighs less.
    let [old, new] = [(-0.375_f64).exp(), (-0.125_f64).exp()];
    let scale = 1000.0 * (old + new) / (500e-6 * old + 0.5 * 2000e-6 * new);
    let since_start = 2000e-6;
    let expected = [
        (1000.0 * old + scale * since_start) / (500e-6 * old + since_start),
        (1000.0 * new + 0.5 * scale * since_start) / (2000e-6 * new + since_start),
    ];
    let rates = policy.rates();
    let are_equal = rates.iter().zip(expected).all(|(is, expected)| (is / expected - 1.0).abs() < 1e-9);
    assert!(are_equal, "{rates:?}, not {expected:?}");
}

/// An idle unit or an unmeasured unit does not count as completing the rest in time.
#[test]
fn a_unit_comes_too_late_only_beside_known_ones_that_compute() {
    let priors = [Some(Prior::measured(1e6, MICRO)), Some(Prior::measured(1e3, MICRO))];
    let policy = Calibrated::new(10_000, 64, &priors).unwrap();
    let mut splitter = Splitter::new(Box::new(policy), 2, 10_000, 64).unwrap();
    assert_eq!(package(&mut splitter, 1).items(), 64, "the fast unit is idle");
    let mut guessed = self::splitter(1000, &[Some(Prior::of_power(1.0)), Some(Prior::of_power(0.0001))]);
    let sample = package(&mut guessed, 1);
    package(&mut guessed, 0);
    compute(&mut guessed, &sample, [0, 0, 1000]);
    package(&mut guessed, 1);
}

#[test]
fn what_a_stranger_is_said_to_cost_makes_no_package_longer() {
    let prior = Prior { rate: 1e6, launch: MICRO * 1_000_000, trusted: false };
    let policy = Calibrated::new(9_000, 1, &[Some(prior)]).unwrap().overlapping([UnitId(0)]);
    let mut alone = Splitter::new(Box::new(policy), 1, 9_000, 1).unwrap();
    assert_eq!(package(&mut alone, 0).items(), 750, "a twelfth of the work");
}

#[test]
fn a_package_is_a_half_of_the_units_part_by_the_number_of_units() {
    let trusted = || Some(Prior::measured(1e6, Duration::ZERO));
    let mut splitter = splitter(180_000, &[trusted(), trusted(), trusted()]);
    assert_eq!(package(&mut splitter, 0).items(), 10_000); // 180000 / 3 / 6
}

/// With a latency, a longer package risks little.
#[test]
fn packages_grow_faster_where_they_take_as_long_whatever_their_size() {
    for (fills, length) in [(400, 1600), (0, 875)] {
        let mut policy = Calibrated::new(128_000, 1, &[None, None]).unwrap().filled_by(&[fills; 2]);
        for unit in [UnitId(0), UnitId(1)] {
            let first = Package::new(0..100, unit, 0);
            let second = Package::new(100..500, unit, 1);
            for (package, handed, computing) in [(first, 0, 1000), (second, 1100, 1000)] {
                let [handed, begun, done] =
                    [handed, handed + 100, handed + 100 + computing].map(|at| MICRO * at);
                policy.handed(&package, handed);
                policy.computed(&Computed::new(&package, handed, begun, done, done));
            }
        }
        // An eighth of the rest, or four times the previous 400 items.
        assert_eq!(policy.next(UnitId(0), 7000), Some(length));
    }
}

/// A unit at its limit gets no package, not one of zero items.
#[test]
fn a_unit_with_four_fifths_of_its_part_gets_nothing_ahead() {
    let trusted = || Some(Prior::measured(1e6, Duration::ZERO));
    let mut policy = Calibrated::new(1000, 1, &[trusted(), trusted()]).unwrap().overlapping([UnitId(0)]);
    policy.handed(&Package::new(0..800, UnitId(0), 0), Duration::ZERO);
    assert_eq!(policy.next(UnitId(0), 200), None);
}

/// Until its results arrive, a trusted unit would be idle. Its limit is still its full share.
#[test]
fn a_unit_that_waits_for_results_alone_may_have_all_of_its_part() {
    let ahead = |priors: [Option<Prior>; 2], ended: &[u64]| {
        let mut policy = Calibrated::new(1000, 1, &priors).unwrap().overlapping([UnitId(0)]);
        for (place, items) in [400, 20].into_iter().enumerate() {
            policy.handed(&Package::new(0..items, UnitId(0), place as u64), Duration::ZERO);
        }
        for &items in ended {
            let package = Package::new(0..items, UnitId(0), 0);
            policy.ended(&Computed::new(&package, Duration::ZERO, Duration::ZERO, MICRO, MICRO));
        }
        policy.next(UnitId(0), 580)
    };
    let trusted = || [Some(Prior::measured(1e6, Duration::ZERO)); 2];
    assert_eq!(ahead(trusted(), &[]), None, "420 items in flight, limit 400");
    assert_eq!(ahead(trusted(), &[400]), None, "it computes the other package");
    assert_eq!(ahead(trusted(), &[400, 400]), None, "the long package, reported twice");
    assert_eq!(ahead(trusted(), &[20, 20]), None, "the short package, reported twice");
    assert_eq!(
        ahead(trusted(), &[400, 20]),
        Some(41),
        "of the 80 items up to its share, a twelfth of its share at a time"
    );
    assert_eq!(ahead([None, None], &[400, 20]), None);
}

fn prior() -> impl Strategy<Value = Option<Prior>> {
    let rate =
        prop_oneof![1e-3..1e12f64, Just(f64::MIN_POSITIVE / 4.0), Just(f64::MIN_POSITIVE), Just(f64::MAX),];
    let prior =
        (rate, time(), any::<bool>()).prop_map(|(rate, launch, trusted)| Prior { rate, launch, trusted });
    prop::option::of(prior)
}

fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::MAX),
        Just(Duration::from_nanos(1)),
        (0..1_000_000_000u64).prop_map(Duration::from_nanos),
    ]
}

fn work() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0..1_000_000u64, any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// With arbitrary clocks, every item is computed once, the run ends after few packages, and all rates
    /// stay finite.
    #[test]
    fn no_time_or_rate_or_size_starves_it(
        priors in prop::collection::vec(prior(), 1..5),
        overlapping in prop::collection::vec(0..5usize, 0..3),
        work in work(),
        local_size in prop_oneof![Just(1u64), Just(64), 1..1000u64],
        times in prop::collection::vec((time(), any::<[Duration; 4]>(), time(), time()), 1..20),
    ) {
        let units = priors.len();
        let policy = Calibrated::new(work, local_size, &priors).unwrap().overlapping(overlapping.into_iter().map(UnitId));
        let mut checked = policy.clone();
        let (policy, log) = Recorded::new(Box::new(policy));
        let mut splitter = Splitter::new(Box::new(policy), units, work, local_size).unwrap();
        let mut times = times.iter().cycle();
        let mut computed = 0u64;
        let mut rounds = 0;
        while !splitter.is_finished() {
            rounds += 1;
            prop_assert!(rounds < 20_000, "{} items are still unassigned", splitter.unassigned());
            let mut in_flight = Vec::new();
            for unit in (0..units).chain(0..units) {
                let (now, ..) = times.next().unwrap();
                if let Assignment::Package(package) = splitter.assign_at(UnitId(unit), *now) {
                    in_flight.push(package);
                }
            }
            prop_assert!(!in_flight.is_empty() || splitter.is_finished());
            for package in in_flight {
                let (_, wild, begun, ended) = times.next().unwrap();
                let [handed, _, _, done] = if package.index() % 2 == 0 { *wild } else { [*begun, *begun, *ended, *ended] };
                computed += package.items();
                splitter.complete_with(&package, Computed::new(&package, handed, *begun, *ended, done)).unwrap();
            }
        }
        prop_assert_eq!(computed, work);
        for decision in log.decisions() {
            prop_assert_eq!(&decision.replayed(&mut checked), &decision);
        }
        let rates = checked.rates();
        prop_assert!(rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0), "{:?}", rates);
        prop_assert!(checked.costs().len() == units);
    }
}
