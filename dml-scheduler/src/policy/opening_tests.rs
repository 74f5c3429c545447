//! Tests of the opening: what it decides, package by package.

use super::*;
use crate::{Assignment, Splitter};

pub(super) const HOST: UnitId = UnitId(0);
pub(super) const OTHER: UnitId = UnitId(1);

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

/// Both together would be almost twice as fast, if the host had its memory for itself. In a long run it is worth finding out, and of a unit that
/// is known it need not be found out.
#[test]
fn who_moves_an_item_for_longer_than_others_take_to_compute_it_is_not_called() {
    let called = |work: u64, per_item: f64| run(work, 10, Freight { setup: 1e-4, per_item }).1.is_some();
    // Three milliseconds of work, and 160.
    assert!(called(300_000, 9.5e-9) && !called(300_000, 10.5e-9));
    assert!(called(1 << 24, 10.5e-9));
    for trusted in [false, true] {
        let prior = crate::policy::Prior { trusted, ..crate::policy::Prior::measured(9e7, Duration::ZERO) };
        let inner = Calibrated::new(300_000, 1, &[None, Some(prior)]).unwrap();
        let freight = Freight { setup: 1e-4, per_item: 1.0 / 9e7 };
        let mut policy = Opening::new(inner, 300_000, HOST, vec![(OTHER, freight)]);
        policy.next(HOST, 300_000).unwrap();
        let (package, end) = (Package::new(0..10_000, HOST, 0), Duration::from_micros(100));
        policy.handed(&package, Duration::ZERO);
        policy.computed(&Computed::new(&package, Duration::ZERO, Duration::ZERO, end, end));
        policy.next(HOST, 290_000);
        policy.computed(&Computed::new(&package, end, end, 2 * end, 2 * end));
        assert_eq!(policy.call_up() == [OTHER], trusted);
    }
}

/// What remains after samples of so many items that took so many microseconds, and whether the host was then given all of it.
fn after_samples(threads: u64, work: u64, samples: [(u64, u64); 2], other: Freight) -> bool {
    let inner = Calibrated::new(work, 1, &[None, None]).unwrap();
    let mut policy = Opening::new(inner, work, HOST, vec![(OTHER, other)]).threads(threads);
    let mut now = Duration::ZERO;
    for (items, micros) in samples {
        policy.next(HOST, work).unwrap();
        let package = Package::new(0..items, HOST, 0);
        let end = now + Duration::from_micros(micros);
        policy.computed(&Computed::new(&package, now, now, end, end));
        now = end;
    }
    policy.next(HOST, work) == Some(work)
}

/// 1000 items more than in the sample before take 24 us longer: 24 ns each for one thread. A host of sixteen is likely to take a fourth of that, 6.
#[test]
fn a_sample_of_few_threads_says_what_all_of_them_are_likely_to_take() {
    let moves = |nanos: f64| Freight { setup: 1e-6, per_item: nanos * 1e-9 };
    assert!(after_samples(16, 40_000, [(100, 6), (1100, 30)], moves(6.1)));
    assert!(!after_samples(16, 40_000, [(100, 6), (1100, 30)], moves(5.9)));
    assert!(after_samples(4, 40_000, [(100, 6), (1100, 30)], moves(12.1)), "four may be twice as fast");
    assert!(!after_samples(4, 40_000, [(100, 6), (1100, 30)], moves(11.9)));
    assert!(!after_samples(1, 40_000, [(100, 6), (1100, 30)], moves(25.0)), "one is one");
    // With all that they cost, where the sample before was of half as many items or took half as long: 6.8 and 7.5 of a fourth.
    assert!(
        after_samples(16, 40_000, [(550, 6), (1100, 30)], moves(6.9))
            && !after_samples(16, 40_000, [(550, 6), (1100, 30)], moves(6.7))
    );
    assert!(
        after_samples(16, 40_000, [(100, 15), (1000, 30)], moves(7.6))
            && !after_samples(16, 40_000, [(100, 15), (1000, 30)], moves(7.4))
    );
    // A millisecond that it is likely to take is worth finding out.
    assert!(after_samples(16, 166_000, [(100, 6), (1100, 30)], moves(6.1)));
    assert!(!after_samples(16, 168_000, [(100, 6), (1100, 30)], moves(6.1)));
    // One of less than 20 us was a launch and little else, and in one of 40 others may have woken up.
    assert!(!after_samples(16, 40_000, [(100, 6), (1100, 19)], moves(10.0)));
    assert!(after_samples(16, 40_000, [(100, 6), (1100, 20)], moves(10.0)));
    assert!(after_samples(16, 40_000, [(100, 6), (1100, 39)], moves(10.0)));
    assert!(!after_samples(16, 40_000, [(100, 6), (1100, 40)], moves(10.0)));
}

/// The threads of a host take 40 us to wake up in every package: 60 of 100 us for 1000 items are 60 ns each.
#[test]
fn what_it_takes_threads_to_wake_up_is_no_reason_to_call_others() {
    let samples = [(500, 45), (1000, 100)];
    let moves = |nanos: f64| Freight { setup: 1e-6, per_item: nanos * 1e-9 };
    assert!(
        after_samples(16, 40_000, samples, moves(60.5)) && !after_samples(16, 40_000, samples, moves(59.5))
    );
    assert!(!after_samples(1, 40_000, samples, moves(70.0)), "one thread is awake");
    // Sixty nanoseconds each are four milliseconds for 66,667 items.
    assert!(
        after_samples(16, 66_000, samples, moves(60.5)) && !after_samples(16, 67_000, samples, moves(60.5))
    );
    assert!(!after_samples(16, 40_000, [(500, 45), (1000, 79)], moves(60.5)), "it was not longer than that");
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

/// A sample that may be the waking of threads and little else is followed by one of 400 us, any other by one of 150.
#[test]
fn whose_threads_wake_up_has_longer_samples() {
    let samples = |wakes: bool| {
        let inner = Calibrated::new(1 << 20, 1, &[None, None]).unwrap();
        let freight = Freight { setup: 1e-3, per_item: 0.0 };
        let opening = Opening::new(inner, 1 << 20, HOST, vec![(OTHER, freight)]);
        let mut policy = opening.threads(if wakes { 2 } else { 1 });
        let mut sizes = Vec::new();
        for micros in [39, 70] {
            // Of so few, even two threads would not need help, if the sample was one thread's.
            sizes.push(policy.next(HOST, 400).unwrap());
            let package = Package::new(0..sizes[sizes.len() - 1], HOST, 0);
            let end = Duration::from_micros(micros);
            policy.computed(&Computed::new(&package, Duration::ZERO, Duration::ZERO, end, end));
        }
        (sizes, policy.call_up())
    };
    assert_eq!(samples(false), (vec![1, 3], vec![OTHER]), "70 us are telling");
    assert_eq!(
        samples(true),
        (vec![1, 10], vec![]),
        "70 us are not: the threads may have woken up meanwhile"
    );
}

/// The first sample for which all threads woke up says that another unit helps, and the next one, of as many items, that it does not: half of its time was
/// their waking.
#[test]
fn the_sample_that_woke_the_threads_is_repeated() {
    let called = |before: u64| {
        let inner = Calibrated::new(1 << 24, 1, &[None, None]).unwrap();
        let freight = Freight { setup: 100e-6, per_item: 0.1e-9 };
        let mut policy = Opening::new(inner, 1 << 24, HOST, vec![(OTHER, freight)]).threads(16);
        let (mut sizes, mut left, mut now) = (Vec::new(), 1 << 24, Duration::ZERO);
        for micros in [10, before, 300, 75] {
            let items = policy.next(HOST, left).unwrap();
            (sizes, left) = ([sizes, vec![items]].concat(), left - items);
            let package = Package::new(0..items.min(1 << 20), HOST, 0);
            policy.handed(&package, now);
            // As if the samples before had been as many.
            let items = match micros {
                10 => 1,
                39 | 40 => 1 << 16,
                _ => 1 << 20,
            };
            let package = Package::new(0..items, HOST, 0);
            let end = now + Duration::from_micros(micros);
            policy.computed(&Computed::new(&package, now, now, end, end));
            now = end;
            let called = policy.call_up();
            if !called.is_empty() {
                return (sizes, called);
            }
        }
        (sizes, policy.next(HOST, left).filter(|items| *items == left).map(|_| HOST).into_iter().collect())
    };
    let (sizes, who) = called(39);
    assert_eq!((sizes.len(), who), (4, vec![HOST]), "{sizes:?}");
    assert_eq!(sizes[3], 1 << 20, "as many again: {sizes:?}");
    let (sizes, who) = called(40);
    assert_eq!((sizes.len(), who), (3, vec![OTHER]), "they were awake before: {sizes:?}");
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
    among(2, work, packages)
}

/// The same for any number of units, the host first.
fn among(units: usize, work: u64, packages: &[(UnitId, u64, u64)]) -> Opening {
    let inner = Calibrated::new(work, 1, &vec![None; units]).unwrap();
    let freight = Freight { setup: 1e-4, per_item: 0.0 };
    let others = (1..units).map(|unit| (UnitId(unit), freight)).collect();
    let mut policy = Opening::new(inner, work, HOST, others).at_once();
    let mut ends = vec![Duration::ZERO; units];
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
    assert!(together(1 << 20, &slow_turns(2)).next(OTHER, 1 << 19).is_some(), "two packages say too little");
    assert_eq!(together(1 << 20, &slow_turns(3)).next(OTHER, 1 << 19), None);
    let tenth = [vec![fast; 3], vec![(OTHER, 1200, 1000); 3]].concat();
    assert!(together(1 << 20, &tenth).next(OTHER, 1 << 19).is_some(), "it does more than a tenth");
}

#[test]
fn who_is_left_over_divides_the_rest_as_if_it_had_begun_alone() {
    let slow = vec![(OTHER, 1, 1000); 3];
    let flat = vec![(HOST, 1000, 200), (HOST, 10_000, 200), (HOST, 20_000, 210)];
    let mut policy = together(1 << 20, &[slow.clone(), flat].concat());
    assert_eq!(policy.next(HOST, 90_000), Some(90_000));
    // Twice the items took twice the time: where its results travel meanwhile, it has packages, and else none but the rest.
    let steep = vec![(HOST, 1000, 200), (HOST, 10_000, 2000), (HOST, 20_000, 4000)];
    let mut policy = together(1 << 20, &[slow.clone(), steep.clone()].concat());
    assert_eq!(policy.next(HOST, 600_000), Some(600_000));
    let mut policy = together(1 << 20, &[slow, steep].concat());
    policy.inner = policy.inner.overlapping([HOST]);
    assert_eq!(policy.next(HOST, 600_000), Some(100_000));
}

#[test]
fn a_unit_whose_packages_are_as_short_as_a_launch_leaps() {
    // A rate of ten items per second says nothing here: the launch may have been all of it.
    let host = (HOST, 1 << 17, 1000);
    let open = [(OTHER, 100, 9), (OTHER, 400, 9)]; // as long as a launch, and no longer for four times the items
    let mut policy = together(1 << 20, &[host, open[0], open[1], host]);
    assert!(policy.next(OTHER, 1 << 19) >= Some(16 * 400));
    // At that rate, no longer than a launch can take.
    let mut policy = together(1 << 40, &[host, (OTHER, 1 << 17, 500), host]);
    assert_eq!(policy.next(OTHER, 1 << 22), Some(1 << 19));
    // Or than the run so far, where the others hardly count.
    let mut policy = together(1 << 40, &[host, (OTHER, 1 << 20, 500), host]);
    assert_eq!(policy.next(OTHER, 1 << 23), Some(1 << 22));
    // No more than its part of the rest, at the least that its rate can be: one in 27,000.
    let mut policy = together(1 << 20, &[host, (OTHER, 1, 200), host]);
    assert!(policy.next(OTHER, 1 << 20) < Some(60), "it may be slow");
    // Four times the items took four times the time: it computed.
    let mut policy = together(1 << 20, &[host, (OTHER, 100, 500), (OTHER, 400, 2000), host]);
    assert!(policy.next(OTHER, 1 << 19) < Some(1600));
}

/// Nobody waits for the fastest one to compute, but its results wait for it to end.
#[test]
fn the_fastest_whose_results_travel_takes_a_third_of_what_it_may_at_a_time() {
    let host = (HOST, 1 << 17, 1000);
    let fast = [(OTHER, 1 << 18, 1000), (OTHER, 1 << 19, 2000)];
    let policy = || together(1 << 26, &[host, fast[0], fast[1], host]);
    let whole = policy().next(OTHER, 1 << 25).unwrap();
    let mut travelling = policy();
    travelling.inner = travelling.inner.overlapping([OTHER]);
    let third = travelling.next(OTHER, 1 << 25).unwrap();
    assert!(third <= whole / 3 + 1, "{third} of {whole}");
}

#[test]
fn a_dominant_unit_is_one_beside_others_that_have_computed_or_the_last_one() {
    let fast = (OTHER, 1 << 20, 1000);
    assert!(!together(1 << 26, &[fast]).is_dominant(OTHER), "nobody knows what the other one can do");
    let mut policy = together(1 << 26, &[fast, (HOST, 1 << 17, 1000)]);
    assert!(policy.is_dominant(OTHER) && !policy.is_dominant(HOST));
    policy.retire(OTHER);
    assert!(policy.is_dominant(HOST), "nobody else is left");
    assert!(
        !together(1 << 26, &[fast, (HOST, 1 << 19, 1000)]).is_dominant(OTHER),
        "two thirds of what both do"
    );
}

/// Where items differ, packages that take milliseconds take as long by chance. Of one that does nearly all, it is believed.
#[test]
fn packages_of_milliseconds_are_flat_of_a_dominant_unit_alone() {
    let flat = [(OTHER, 1000, 5000), (OTHER, 2000, 5000)];
    let beside = |host: u64| {
        let host = (HOST, host, 5000);
        together(1 << 26, &[host, flat[0], host, flat[1]]).pace_of(OTHER).is_flat
    };
    assert!(!beside(1000));
    assert!(beside(10));
}

#[test]
fn while_nobody_knows_how_fast_a_unit_is_it_has_one_package_at_a_time() {
    let host = (HOST, 1 << 17, 1000);
    let mut policy = together(1 << 20, &[host, host]);
    assert_eq!(policy.next(OTHER, 1 << 19), Some((1 << 19) / 16), "its first package");
    let package = |index| Package::new(0..100, OTHER, index);
    policy.handed(&package(5), Duration::from_millis(2));
    assert_eq!(policy.next(OTHER, 1 << 19), None);
    policy.given_back(&package(5));
    assert!(policy.next(OTHER, 1 << 19).is_some());
    // Nor while it may have been its launch that took the time.
    let mut policy = together(1 << 20, &[host, (OTHER, 100, 9), (OTHER, 400, 9), host]);
    assert!(policy.next(OTHER, 1 << 19).is_some());
    policy.handed(&package(5), Duration::from_millis(2));
    assert_eq!(policy.next(OTHER, 1 << 19), None);
    // Measured, and the fastest, it gets the next one while it computes.
    let fast = [(OTHER, 1 << 18, 1000), (OTHER, 1 << 19, 2000)];
    let mut policy = together(1 << 22, &[host, fast[0], fast[1], host]);
    policy.handed(&package(5), Duration::from_millis(2));
    assert!(policy.next(OTHER, 1 << 19).is_some());
}

/// It may have several packages, but all of them are no longer than the run so far.
#[test]
fn what_the_fastest_unit_has_under_way_is_bound() {
    let mut policy =
        together(1 << 30, &[(HOST, 40_000, 1000), (OTHER, 80_000, 1000), (OTHER, 240_000, 3000)]);
    let whole = policy.next(OTHER, 1 << 29).expect("it has none");
    assert_eq!(whole, 320_000, "four milliseconds have passed, at 80 items in each microsecond");
    policy.handed(&Package::new(0..whole, OTHER, 5), Duration::from_millis(4));
    assert_eq!(policy.next(OTHER, 1 << 29), None);
}

#[test]
fn a_unit_that_may_be_slow_leaps_no_further_than_its_part_of_the_rest() {
    // It does a little of what the host does, and of its first millisecond nobody knows how much was its launch.
    let host = (HOST, 1 << 17, 1000);
    let mut policy = together(1 << 20, &[host, (OTHER, 10_000, 900), host]);
    assert_eq!(policy.next(OTHER, 50_000), Some(3907));
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
    let mut policy = together(1 << 20, &[(HOST, 10_000, 1000), (HOST, 10_000, 1000), (OTHER, 5_000, 1000)]);
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

/// What the last sample took longer than the one before is the kernel's, if both have grown. Else all of it is.
#[test]
fn two_samples_tell_what_items_cost_where_both_grew() {
    let per_item = |before: (f64, f64), last: (f64, f64)| {
        let samples = Samples { threads: 1, before: Some(before), last: Some(last), ..Samples::default() };
        samples.seconds_per_item().unwrap()
    };
    let (gross, net) = per_item((100.0, 1e-4), (300.0, 2e-4));
    assert!((gross * 300.0 / 2e-4 - 1.0).abs() < 1e-9 && (net * 200.0 / 1e-4 - 1.0).abs() < 1e-9, "{net}");
    for last in [(300.0, 0.5e-4), (300.0, 1e-4), (50.0, 0.5e-4), (50.0, 2e-4), (100.0, 2e-4)] {
        let (gross, net) = per_item((100.0, 1e-4), last);
        assert_eq!((gross, net), (last.1 / last.0, last.1 / last.0), "{last:?} after 100 items in 100 us");
    }
}

/// A third of what it has more is enough, from a fifth more on; and once is.
#[test]
fn a_unit_scales_once_more_items_took_it_longer() {
    let scales = |packages: &[(u64, u64)]| {
        let packages: Vec<_> = packages.iter().map(|&(items, micros)| (OTHER, items, micros)).collect();
        together(1 << 40, &packages).pace_of(OTHER).scales
    };
    assert!(!scales(&[(1000, 100)]) && !scales(&[(1000, 100), (1100, 200)]), "hardly more items");
    assert!(!scales(&[(1000, 100), (4000, 190)]) && scales(&[(1000, 100), (4000, 210)]));
    assert!(scales(&[(1000, 100), (4000, 210), (4000, 210)]));
}

/// Neither a package of no time nor one of no items has a rate.
#[test]
fn a_package_of_nothing_says_nothing() {
    assert_eq!(together(1 << 20, &[(OTHER, 100, 0)]).pace_of(OTHER).rate, None);
    assert_eq!(together(1 << 20, &[(OTHER, 0, 100)]).pace_of(OTHER).rate, None);
}

#[test]
fn a_first_package_of_a_millisecond_was_no_launch() {
    let is_open = |micros| together(1 << 30, &[(OTHER, 1000, micros)]).pace_of(OTHER).is_open;
    assert!(is_open(999) && !is_open(1000));
}

/// A dominant unit is open until it has shown that more takes it longer. Of the first unit nobody waits for that.
#[test]
fn a_dominant_unit_is_open_until_it_scales() {
    let slow = |unit| (unit, 100, 2000);
    let fast = |unit, items, micros| (unit, items, micros);
    let other = |second| {
        let packages = [slow(HOST), fast(OTHER, 100_000, 2000), fast(OTHER, 400_000, second), slow(HOST)];
        together(1 << 40, &packages).pace_of(OTHER).is_open
    };
    assert!(other(3000) && !other(8000));
    let host = [slow(OTHER), fast(HOST, 100_000, 2000), fast(HOST, 400_000, 3000)];
    assert!(!together(1 << 40, &host).pace_of(HOST).is_open);
}

/// None of twelve equal units does a tenth of what all do.
#[test]
fn of_many_equal_units_none_is_left_out() {
    let packages: Vec<_> = (0..36).map(|index| (UnitId(index % 12), 1000, 1000)).collect();
    let mut policy = among(12, 1 << 20, &packages);
    assert!((0..12).all(|unit| policy.next(UnitId(unit), 1 << 19).is_some()));
}

/// Whoever is not measured counts as one as fast as the others are on average, where a unit leaps as far as its part of the rest.
#[test]
fn a_unit_leaps_as_far_as_its_part_beside_units_of_average_speed() {
    let packages = [(HOST, 3000, 1000), (OTHER, 1000, 900), (HOST, 3000, 1000)];
    let rate = 1000.0 / 900e-6;
    let mean = (3e6 + rate) / 2.0;
    let share = 6000.0 * rate / (3e6 + rate + mean);
    let length = among(3, 1 << 20, &packages).next(OTHER, 6000).unwrap();
    assert_eq!(length, share as u64);
}

/// A dominant unit gets no package that is shorter than two of its shortest one.
#[test]
fn the_last_unit_that_is_left_takes_a_twelfth_of_what_there_was_at_least() {
    let steep =
        [(OTHER, 1, 1000), (OTHER, 1, 1000), (OTHER, 1, 1000), (HOST, 1000, 200), (HOST, 10_000, 2000)];
    let mut policy = together(1 << 20, &[&steep[..], &[(HOST, 20_000, 4000)]].concat());
    policy.inner = policy.inner.overlapping([HOST]);
    assert_eq!(policy.next(HOST, 600_000), Some(100_000));
    assert_eq!(policy.next(HOST, 120_000), Some(50_000), "and no more than is worth it");
}

/// The host's threads may still be waking up, where nobody is known to be faster.
#[test]
fn the_first_unit_leaps_while_its_packages_are_as_short_as_its_waking() {
    let next = |other: (u64, u64), host: (u64, u64)| {
        let packages = [(OTHER, other.0, other.1), (HOST, host.0, host.1)];
        together(1 << 40, &packages).next(HOST, 20_000).unwrap()
    };
    assert_eq!(next((20_000, 2000), (1000, 50)), 8000, "what it does in 400 us");
    assert!(next((20_000, 2000), (1600, 80)) < 6000, "80 us are not its waking");
    assert!(next((100_000, 2000), (1000, 50)) < 3000, "the other one is faster");
}

/// Where the rates say that the fastest should wait, it gets a sixth of the rest.
#[test]
fn the_fastest_never_waits() {
    let packages = [(HOST, 40_000, 1000), (OTHER, 80_000, 1000), (OTHER, 240_000, 3000)];
    let mut policy = together(1 << 30, &packages);
    policy.handed(&Package::new(0..100, OTHER, 5), Duration::from_millis(4));
    assert_eq!(policy.next(OTHER, 60_000), Some(10_000));
    // All that it has under way is bound, and a little less than the whole is not kept back for that.
    assert_eq!(policy.next(OTHER, 1 << 29), Some(320_000 - 100));
}

/// Two launches of a dominant unit are no part that travels, however long they take.
#[test]
fn the_shortest_package_of_a_dominant_unit_bounds_what_it_takes_at_a_time() {
    let mut policy =
        together(1 << 40, &[(HOST, 40_000, 4000), (OTHER, 100_000, 1500), (OTHER, 200_000, 2500)]);
    policy.inner = policy.inner.overlapping([OTHER]);
    assert_eq!(policy.next(OTHER, 1 << 39), Some(120_000), "1.5 ms, and not a third of 4 ms");
}

/// The first unit alone is asked for samples, and after them for all: the others are left out.
#[test]
fn whoever_is_not_the_first_gets_nothing_before_it_is_called() {
    let inner = Calibrated::new(1000, 1, &[None, None]).unwrap();
    let mut policy = Opening::new(inner, 1000, HOST, vec![(OTHER, Freight { setup: 10e-3, per_item: 0.0 })]);
    assert_eq!(policy.next(OTHER, 1000), None);
    assert_eq!(policy.next(HOST, 1000), Some(1));
    let package = Package::new(0..1, HOST, 0);
    let done = Duration::from_micros(5);
    policy.handed(&package, Duration::ZERO);
    policy.computed(&Computed::new(&package, Duration::ZERO, Duration::ZERO, done, done));
    assert_eq!(policy.stage, Stage::Alone);
    assert_eq!((policy.next(OTHER, 999), policy.next(HOST, 999)), (None, Some(999)));
}

/// Who leaves while it was the only one calls the others up; another one, or the first beside others, does not.
#[test]
fn only_a_first_unit_that_leaves_its_run_calls_the_others_up() {
    let third = UnitId(2);
    let freight = Freight { setup: 1e-3, per_item: 0.0 };
    let inner = || Calibrated::new(1 << 20, 1, &[None, None, None]).unwrap();
    let opening = || Opening::new(inner(), 1 << 20, HOST, vec![(OTHER, freight), (third, freight)]);
    let called = |mut policy: Opening, unit| {
        policy.retire(unit);
        policy.call_up()
    };
    assert_eq!(called(opening(), HOST), [OTHER, third]);
    assert_eq!(called(opening(), OTHER), []);
    assert_eq!(called(opening().at_once(), HOST), []);
    assert_eq!(called(opening().at_once(), OTHER), []);
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

/// A package of a unit with these items, times in microseconds: handed out, begun, ended and done.
fn told(unit: UnitId, items: u64, index: u64, micros: [u64; 4]) -> (Package, Computed) {
    let package = Package::new(0..items, unit, index);
    let [handed, begun, ended, done] = micros.map(Duration::from_micros);
    let computed = Computed::new(&package, handed, begun, ended, done);
    (package, computed)
}

/// Sixteen threads, of which one may have computed the sample. Another unit that would help all of them is called at once, and not
/// after a second sample.
#[test]
fn who_would_help_even_if_all_threads_were_as_fast_as_one_is_called_at_once() {
    let called = |items: u64, micros: u64, threads: u64| {
        let inner = Calibrated::new(1 << 30, 1, &[None, None]).unwrap();
        let freight = Freight { setup: 1e-3, per_item: 0.0 };
        let mut policy = Opening::new(inner, 1 << 30, HOST, vec![(OTHER, freight)]).threads(threads);
        assert_eq!(policy.next(HOST, items), Some(1));
        policy.computed(&told(HOST, 1, 0, [0, 0, micros, micros]).1);
        policy.call_up()
    };
    // The rest takes one thread 40 ms, and sixteen 2.5: less than 1.7 would not be worth it.
    assert_eq!(called(1000, 40, 16), [OTHER]);
    assert_eq!(called(600, 40, 16), [], "1.5 ms");
    assert_eq!(called(1000, 39, 16), [], "it may have been a launch");
    assert_eq!(called(1000, 40, 1), [], "one thread alone wakes nobody, and its second sample is as short");
}

/// Of two that could be called up, the second one moves its data too slowly to help sixteen threads. A longer sample decides.
#[test]
fn nobody_is_called_at_once_where_another_would_be_left_out_for_it() {
    let inner = Calibrated::new(1 << 30, 1, &[None; 3]).unwrap();
    let third = UnitId(2);
    let freight = |per_item: f64| Freight { setup: 1e-4, per_item };
    let others = vec![(OTHER, freight(0.0)), (third, freight(10e-6))];
    let mut policy = Opening::new(inner, 1 << 30, HOST, others).threads(16);
    assert_eq!(policy.next(HOST, 1 << 20), Some(1));
    policy.computed(&told(HOST, 1, 0, [0, 0, 50, 50]).1);
    assert_eq!(policy.call_up(), []);
    assert!(policy.next(HOST, 1 << 20).is_some());
    policy.computed(&told(HOST, 1, 1, [50, 50, 150, 150]).1);
    assert_eq!(policy.call_up(), [OTHER, third]);
}

#[test]
fn what_a_package_shows_is_learned_when_it_ends_and_not_again_when_it_is_done() {
    let host = (HOST, 1 << 17, 1000);
    let mut policy = together(1 << 20, &[host, host]);
    let (package, computed) = told(OTHER, 3000, 5, [2000, 2000, 3000, 9000]);
    policy.handed(&package, computed.handed);
    policy.ended(&computed);
    let pace = policy.pace_of(OTHER);
    assert_eq!((pace.packages, pace.in_flight, pace.ahead), (1, 0, 0));
    assert_eq!(pace.rate.map(f64::round), Some(3e6), "three thousand in a millisecond");
    assert_eq!(policy.now, Duration::from_micros(3000));
    policy.handed(&told(OTHER, 3000, 6, [3000; 4]).0, Duration::from_micros(3000));
    policy.computed(&computed);
    let pace = policy.pace_of(OTHER);
    assert_eq!((pace.packages, pace.in_flight, pace.ahead), (1, 1, 3000), "the second one is under way");
    assert_eq!(policy.now, Duration::from_micros(9000));
    assert_eq!(
        policy.inner.costs()[1],
        Duration::from_millis(6),
        "what divides the rest learns of the way back"
    );
    // Another unit's package of as many items, handed out at the same time, is another one.
    policy.ended(&computed);
    policy.computed(&Computed { unit: HOST, ..computed.clone() });
    assert_eq!(policy.pace_of(HOST).packages, 3);
    policy.computed(&Computed { handed: Duration::from_micros(2500), ..computed });
    assert_eq!(policy.pace_of(OTHER).packages, 3, "so is one that was handed out later");
}

#[test]
fn a_package_that_comes_back_after_its_end_is_under_way_no_more() {
    let host = (HOST, 1 << 17, 1000);
    let mut policy = together(1 << 20, &[host, host]);
    let (package, computed) = told(OTHER, 3000, 5, [2000, 2000, 3000, 3000]);
    let (second, _) = told(OTHER, 500, 6, [2000; 4]);
    policy.handed(&package, computed.handed);
    policy.handed(&second, computed.handed);
    policy.ended(&computed);
    policy.given_back(&package);
    assert_eq!((policy.pace_of(OTHER).in_flight, policy.pace_of(OTHER).ahead), (1, 500));
    policy.given_back(&second);
    assert_eq!((policy.pace_of(OTHER).in_flight, policy.pace_of(OTHER).ahead), (0, 0));
    policy.computed(&computed);
    assert_eq!(policy.pace_of(OTHER).packages, 2, "nobody was told of this one");
}

/// The first unit's results may travel, too: two GPUs.
#[test]
fn a_sample_counts_when_it_ends() {
    let inner = Calibrated::new(1 << 20, 1, &[None, None]).unwrap();
    let freight = Freight { setup: 1e-3, per_item: 0.0 };
    let mut policy = Opening::new(inner, 1 << 20, HOST, vec![(OTHER, freight)]).threads(1);
    assert_eq!(policy.next(HOST, 1 << 20), Some(1));
    let (package, computed) = told(HOST, 1, 0, [0, 0, 2000, 5000]);
    policy.handed(&package, computed.handed);
    policy.ended(&computed);
    assert_eq!(policy.call_up(), [OTHER], "two milliseconds of one item");
    policy.computed(&computed);
    assert_eq!(policy.samples.before, None, "it is no second sample");
}

#[test]
fn no_unit_computes_faster_than_its_data_moves() {
    let inner = Calibrated::new(1 << 30, 1, &[None, None]).unwrap();
    let freight = Freight { setup: 1e-4, per_item: 1e-6 };
    let mut policy = Opening::new(inner, 1 << 30, HOST, vec![(OTHER, freight)]).at_once();
    policy.ended(&told(OTHER, 10_000, 0, [0, 0, 1000, 1000]).1);
    assert_eq!(policy.pace_of(OTHER).rate.map(f64::round), Some(1e6), "and not ten");
    policy.ended(&told(HOST, 10_000, 1, [0, 0, 1000, 1000]).1);
    assert_eq!(policy.pace_of(HOST).rate.map(f64::round), Some(1e7), "nothing of the host's moves");
}

/// A GPU that does 90% of all would leave the host a rest that it computes itself in less time than its next launch.
#[test]
fn a_dominant_unit_leaves_nothing_that_takes_it_less_than_half_a_package() {
    let host = (HOST, 1_000, 1000);
    let gpu = [(OTHER, 8_000, 1000), (OTHER, 9_000, 1000)];
    let next = |remaining: u64| {
        let mut policy = together(1 << 20, &[vec![host; 6], gpu.to_vec()].concat());
        assert!(policy.is_dominant(OTHER));
        policy.next(OTHER, remaining).unwrap()
    };
    // Of 40,000 it leaves 10%: at its 9,000 in a millisecond less than a half of one.
    assert_eq!(next(40_000), 40_000);
    assert!(next(60_000) < 60_000);
    // Who does not do nearly all leaves their part to the others.
    let mut equal = together(1 << 20, &[(HOST, 9_000, 1000), gpu[0], (HOST, 9_000, 1000), gpu[1]]);
    assert!(equal.next(OTHER, 3_000) < Some(3_000));
}

/// Results that take longer to travel than the shortest package took travel while the next third computes.
#[test]
fn what_a_unit_may_compute_has_three_packages_where_its_results_take_long() {
    let policy = |per_item: f64| {
        let inner = Calibrated::new(1 << 30, 1, &[None, None]).unwrap().overlapping([OTHER]);
        let others = vec![(OTHER, Freight { setup: 1e-4, per_item })];
        let mut policy = Opening::new(inner, 1 << 30, HOST, others).at_once();
        for (unit, items, index) in [(HOST, 10, 0), (OTHER, 10_000, 1), (HOST, 10, 2)] {
            policy.computed(&told(unit, items, index, [0, 0, 100, 100]).1);
        }
        policy
    };
    let whole = policy(1e-9).next(OTHER, 30_000).unwrap();
    let mut travelling = policy(10e-9);
    let mut lengths = Vec::new();
    for index in 5..8 {
        lengths.push(travelling.next(OTHER, 30_000).expect("though the one before is under way"));
        travelling
            .handed(&told(OTHER, lengths[lengths.len() - 1], index, [200; 4]).0, Duration::from_micros(200));
    }
    assert_eq!(lengths.iter().sum::<u64>(), whole);
    assert_eq!(lengths, [whole.div_ceil(3), whole.div_ceil(3), whole - 2 * whole.div_ceil(3)]);
    assert_eq!(travelling.next(OTHER, 1 << 20), None, "it has what it was allowed");
}

/// The last unit that is left waits for its second package alone, and only if the first took so long that it may be most of the run.
#[test]
fn the_last_unit_that_is_left_takes_a_third_at_a_time_while_nobody_knows_how_fast_it_is() {
    let policy = |micros: u64| {
        let mut policy = together(1 << 20, &[(HOST, 1 << 10, 1000), (OTHER, 1 << 10, micros)]);
        policy.inner = policy.inner.overlapping([OTHER]);
        policy.retire(HOST);
        policy.paces[HOST.0].is_dropped = true;
        policy
    };
    let mut quick = policy(90);
    assert!(quick.pace_of(OTHER).is_open);
    assert_eq!(quick.next(OTHER, 90_000), Some(30_000));
    quick.handed(&told(OTHER, 30_000, 7, [2000; 4]).0, Duration::from_micros(2000));
    assert_eq!(quick.next(OTHER, 60_000), Some(20_000), "it does not wait");
    let mut long = policy(1100);
    long.paces[OTHER.0].is_open = true;
    assert_eq!(long.next(OTHER, 90_000), Some(30_000));
    long.handed(&told(OTHER, 30_000, 7, [2000; 4]).0, Duration::from_micros(2000));
    assert_eq!(
        long.next(OTHER, 60_000),
        None,
        "what takes longer than a millisecond says more than a launch"
    );
}

#[test]
fn what_several_do_is_told_of_the_end_of_a_package_before_its_results_arrive() {
    let priors = [Some(crate::policy::Prior::measured(1e6, Duration::ZERO)); 2];
    let inner = || Calibrated::new(1000, 1, &priors).unwrap().overlapping([HOST]);
    let next = |policy: &mut dyn Policy| {
        for (place, items) in [400, 20].into_iter().enumerate() {
            policy.handed(&Package::new(0..items, HOST, place as u64), Duration::ZERO);
        }
        for items in [400, 20] {
            let (package, micro) = (Package::new(0..items, HOST, 0), Duration::from_micros(1));
            policy.ended(&Computed::new(&package, Duration::ZERO, Duration::ZERO, micro, micro));
        }
    };
    let (mut alone, freight) = (inner(), Freight { setup: 1e-4, per_item: 1e-9 });
    let mut opening = Opening::new(inner(), 1000, HOST, vec![(OTHER, freight)]).at_once();
    next(&mut alone);
    next(&mut opening);
    assert!(alone.next(HOST, 580).is_some());
    assert_eq!(opening.inner.next(HOST, 580), alone.next(HOST, 580));
}
