//! Tests of the opening: what it decides package by package, and whole runs by simulated devices.

use super::*;
use crate::policy::Prior;
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

/// A sample that may be the waking of threads and little else is followed by one of 400 us, any other by one of 150.
#[test]
fn whose_threads_wake_up_has_longer_samples() {
    let samples = |wakes: bool| {
        let inner = Calibrated::new(1 << 20, 1, &[None, None]).unwrap();
        let freight = Freight { setup: 1e-3, per_item: 0.0 };
        let opening = Opening::new(inner, 1 << 20, HOST, vec![(OTHER, freight)]);
        let mut policy = if wakes { opening.waking() } else { opening };
        let mut sizes = Vec::new();
        for micros in [40, 70] {
            sizes.push(policy.next(HOST, 1 << 19).unwrap());
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
    let mut policy = together(1 << 20, &[host, (OTHER, 5000, 900), host]);
    assert_eq!(policy.next(OTHER, 50_000), Some(2033));
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
        let samples = Samples { wakes: false, before: Some(before), last: Some(last) };
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

/// A unit as it is. Times in seconds.
#[derive(Clone, Copy)]
struct Truth {
    /// How many times as fast it computes as the kernel's costs say.
    speed: f64,
    /// What a package costs besides its items, one after the other.
    launch: &'static [f64],
    /// What passes until its first package begins, and until a later one does.
    prepare: [f64; 2],
    /// The least time that computing takes.
    latency: f64,
    /// What results take to travel, while others are computed: of a package, and of an item.
    travel: [f64; 2],
    /// How many packages it has under way.
    depth: usize,
    /// How many threads it has. One of them computes alone what takes it no longer than [`ALONE`], once it knows that, and then nobody
    /// has to wake up.
    threads: f64,
}

/// The most seconds for which a thread of the host wakes no other.
const ALONE: f64 = 20e-6;

const CPU: Truth = Truth {
    speed: 1.0,
    launch: &[5e-6],
    prepare: [0.0; 2],
    latency: 0.0,
    travel: [0.0; 2],
    depth: 1,
    threads: 1.0,
};
const WORKER: Truth = Truth { launch: &[50e-6], prepare: [100e-6, 0.0], depth: 3, ..CPU };
const GPU: Truth = Truth { speed: 70.0, ..WORKER };

/// What is computed, by whom.
struct Simulation<'a> {
    items: u64,
    /// The least items of a package.
    local_size: u64,
    /// The seconds of the first unit for an item at a place from 0 to 1.
    cost: &'a dyn Fn(f64) -> f64,
    units: [Truth; 2],
    /// How it begins.
    begins: Begins,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Begins {
    /// With the first unit, and nothing known.
    Opening,
    /// As that, but with all units at once: the run touches much memory.
    AtOnce,
    /// With both units, and nothing known.
    Both,
    /// With both units, of which these rates are known.
    Known([Prior; 2]),
}

/// A package that is under way.
struct UnderWay {
    package: Package,
    handed: f64,
    begun: f64,
    ended: f64,
    done: f64,
}

impl Simulation<'_> {
    const STEPS: usize = 10_000;

    /// The seconds of all items up to each of the places in between.
    fn sums(&self) -> Vec<f64> {
        let step = |step: usize| (self.cost)((step as f64 + 0.5) / Self::STEPS as f64);
        let each = self.items as f64 / Self::STEPS as f64;
        let sums = (0..Self::STEPS).scan(0.0, |sum, place| {
            *sum += step(place) * each;
            Some(*sum)
        });
        [0.0].into_iter().chain(sums).collect()
    }

    /// The seconds that the run takes with nothing known, and what each unit takes alone, all in one package or in fourteen.
    fn run(&self) -> (f64, [f64; 2]) {
        let sums = self.sums();
        let up_to = |item: u64| {
            let place = item as f64 / self.items as f64 * Self::STEPS as f64;
            let step = (place as usize).min(Self::STEPS - 1);
            sums[step] + (sums[step + 1] - sums[step]) * (place - step as f64)
        };
        let freight = Freight { setup: 150e-6, per_item: self.units[1].travel[1] };
        let priors = match self.begins {
            Begins::Known(priors) => priors.map(Some),
            _ => [None, None],
        };
        let inner = Calibrated::new(self.items, self.local_size, &priors).unwrap();
        let overlapping = [HOST, OTHER].into_iter().filter(|unit| self.units[unit.0].depth > 1);
        let inner = inner.overlapping(overlapping);
        let policy: Box<dyn Policy> = match self.begins {
            Begins::Opening | Begins::AtOnce => {
                let mut opening = Opening::new(inner, self.items, HOST, vec![(OTHER, freight)]);
                opening = if self.units[0].threads > 1.0 { opening.waking() } else { opening };
                Box::new(if self.begins == Begins::AtOnce { opening.at_once() } else { opening })
            }
            _ => Box::new(inner),
        };
        let mut splitter = Splitter::new(policy, 2, self.items, self.local_size).unwrap();
        if self.begins == Begins::Opening {
            splitter.bench(OTHER);
        }
        let (mut queues, mut packages) = ([Vec::new(), Vec::new()], [0_usize; 2]);
        let (mut now, mut free, mut travels, mut called): (f64, [f64; 2], [f64; 2], f64) = Default::default();
        let at = Duration::from_secs_f64;
        loop {
            for (unit, truth) in self.units.iter().enumerate() {
                while queues[unit].len() < truth.depth {
                    let Assignment::Package(package) = splitter.assign_at(UnitId(unit), at(now)) else {
                        break;
                    };
                    let prepared = match packages[unit] {
                        0 => now.max(called) + truth.prepare[0],
                        _ => now + truth.prepare[1],
                    };
                    let begun = free[unit].max(prepared);
                    let computing = (up_to(package.end()) - up_to(package.start())) / truth.speed;
                    let alone = computing * truth.threads;
                    let ended = begun
                        + if truth.threads > 1.0 && alone < ALONE {
                            alone
                        } else {
                            truth.launch[packages[unit] % truth.launch.len()] + computing.max(truth.latency)
                        };
                    let done =
                        ended.max(travels[unit]) + truth.travel[0] + truth.travel[1] * package.items() as f64;
                    (free[unit], travels[unit]) = (ended, done);
                    packages[unit] += 1;
                    queues[unit].push(UnderWay { package, handed: now, begun, ended, done });
                }
            }
            let next = (0..2).filter_map(|unit| Some((unit, queues[unit].first()?.done)));
            let Some((unit, _)) = next.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            let UnderWay { package, handed, begun, ended, done } = queues[unit].remove(0);
            now = done;
            let computed = Computed::new(&package, at(handed), at(begun), at(ended), at(done));
            splitter.complete_with(&package, computed).unwrap();
            if !splitter.called_up().is_empty() {
                called = now;
            }
        }
        assert!(splitter.is_finished());
        let alone = self.units.map(|truth| {
            let computing = (sums[Self::STEPS] / truth.speed).max(truth.latency);
            let travel = truth.travel[1] * self.items as f64;
            let overlapped = if truth.depth > 1 {
                computing.max(travel) + computing.min(travel) / 14.0
            } else {
                computing
            };
            truth.prepare[0] + truth.launch[0] + overlapped + truth.travel[0]
        });
        (now, alone)
    }

    /// The seconds that the run takes, by those that the faster of the two takes alone.
    fn ratio(&self) -> f64 {
        let (seconds, [one, other]) = self.run();
        seconds / one.min(other)
    }
}

fn simulate(items: u64, cost: impl Fn(f64) -> f64, other: &Truth) -> f64 {
    Simulation { items, local_size: 1, cost: &cost, units: [CPU, *other], begins: Begins::Opening }.ratio()
}

#[test]
fn an_irregular_kernel_of_which_nothing_is_known_is_computed_by_all() {
    let edge = |cheap: f64| move |place: f64| if (0.2..0.8).contains(&place) { 1e-6 } else { 1e-6 * cheap };
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
        ("rising", simulate(1 << 20, |place| 1e-6 * place, &GPU), 1.4),
        ("constant, 4 ms", simulate(1 << 18, |_| 1e-6, &GPU), 1.4),
        ("rising, 2 ms", simulate(1 << 18, |place| 1e-6 * place, &GPU), 1.8),
        ("constant, 1 ms", simulate(1 << 16, |_| 1e-6, &GPU), 1.8),
    ] {
        println!("a GPU of 70 times the processor, {name}: {ratio:.3}");
        assert!(ratio < most, "a GPU of 70 times the processor, {name}: {ratio:.3}");
    }
}

/// Sixteen cores whose threads take their time to wake up, and a GPU whose first package waits for inputs, as measured.
const CORES: Truth = Truth { launch: &[120e-6, 45e-6, 65e-6, 30e-6, 50e-6, 90e-6], threads: 16.0, ..CPU };
const LARGE_GPU: Truth = Truth {
    speed: 70.0,
    launch: &[5e-6],
    prepare: [260e-6, 50e-6],
    latency: 20e-6,
    travel: [40e-6, 0.0],
    depth: 3,
    threads: 1.0,
};

/// With the costs of the workloads on an H200 beside 16 cores. In a run of a millisecond the samples and the first packages are most of it.
#[test]
fn a_large_gpu_of_which_nothing_is_known_is_not_kept_from_its_work() {
    let mandelbrot = |place: f64| if (0.15..0.85).contains(&place) { 45e-9 } else { 5e-9 };
    let constant = |cost: f64| move |_: f64| cost;
    let gpu = |speed: f64, latency: f64, per_item: f64| Truth {
        speed,
        latency,
        travel: [LARGE_GPU.travel[0], per_item],
        ..LARGE_GPU
    };
    type Row<'a> = (&'a str, u64, u64, &'a dyn Fn(f64) -> f64, Truth, f64);
    let rows: [Row<'_>; 16] = [
        ("mandelbrot 2M", 1 << 21, 256, &mandelbrot, gpu(90.0, 110e-6, 0.3e-9), 2.8),
        ("mandelbrot 16M", 1 << 24, 256, &mandelbrot, gpu(90.0, 110e-6, 0.3e-9), 1.5),
        ("mandelbrot 70M", 70_300_000, 256, &mandelbrot, gpu(90.0, 110e-6, 0.3e-9), 1.3),
        ("gaussian 262k", 1 << 18, 128, &constant(100e-9), gpu(25.0, 140e-6, 0.1e-9), 1.7),
        ("gaussian 2M", 1 << 21, 128, &constant(100e-9), gpu(25.0, 140e-6, 0.1e-9), 1.15),
        ("nbody 32k", 32_768, 64, &constant(16e-6), gpu(500.0, 1.1e-3, 1e-9), 5.0),
        ("ray 2M", 1 << 21, 128, &constant(25e-9), gpu(160.0, 50e-6, 0.1e-9), 2.3),
        ("ray 9M", 9_437_184, 128, &constant(25e-9), gpu(160.0, 50e-6, 0.1e-9), 1.6),
        ("rap 262k", 1 << 18, 128, &constant(250e-9), gpu(33.0, 400e-6, 0.1e-9), 1.85),
        ("rap 500k", 500_000, 128, &constant(250e-9), gpu(33.0, 400e-6, 0.1e-9), 1.35),
        ("taylor 1M", 1_000_000, 64, &constant(100e-9), gpu(170.0, 80e-6, 0.3e-9), 2.0),
        ("saxpy 2M", 1 << 21, 128, &constant(0.08e-9), gpu(1.0, 20e-6, 0.2e-9), 1.15),
        ("saxpy 16M", 1 << 24, 128, &constant(0.08e-9), gpu(1.0, 20e-6, 0.2e-9), 1.15),
        ("saxpy 100M", 100_000_000, 128, &constant(0.11e-9), gpu(1.0, 20e-6, 0.2e-9), 1.0),
        ("binomial 4k", 4096, 1, &constant(7e-6), gpu(70.0, 40e-6, 1e-9), 2.0),
        ("binomial 32k", 32_768, 1, &constant(7e-6), gpu(70.0, 40e-6, 1e-9), 1.25),
    ];
    for (name, items, local_size, cost, gpu, most) in rows {
        // So much memory is touched that the lineup lets both begin.
        let begins = if name == "saxpy 100M" { Begins::AtOnce } else { Begins::Opening };
        let simulation = Simulation { items, local_size, cost, units: [CORES, gpu], begins };
        let (seconds, alone) = simulation.run();
        let ratio = seconds / alone[0].min(alone[1]);
        println!("{name}: alone {:.3} and {:.3} ms, ratio {ratio:.3}", alone[0] * 1e3, alone[1] * 1e3);
        assert!(ratio < most, "{name}: {ratio:.3}, alone {alone:?}");
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

/// Two GPUs that take 9 ms for any package of nbody, and 64 ms for all of it.
#[test]
fn two_gpus_whose_latency_is_long_share_a_kernel() {
    let latent = |latency: f64| Truth { speed: 1.0, latency, ..LARGE_GPU };
    let mandelbrot = |place: f64| if (0.15..0.85).contains(&place) { 0.5e-9 } else { 0.06e-9 };
    let constant = |cost: f64| move |_: f64| cost;
    type Row<'a> = (&'a str, u64, &'a dyn Fn(f64) -> f64, Truth, f64, f64);
    // The last two: the most that the run may take of one GPU's time, with nothing known and with what is learned.
    let rows: [Row<'_>; 4] = [
        ("nbody 262k", 1 << 18, &constant(0.24e-6), latent(8.8e-3), 1.25, 0.6),
        ("nbody 32k", 1 << 15, &constant(0.03e-6), latent(1.1e-3), 6.5, 1.05),
        ("mandelbrot 70M", 70_300_000, &mandelbrot, latent(0.11e-3), 0.58, 0.56),
        ("gaussian 16M", 1 << 24, &constant(4e-9), latent(0.14e-3), 0.54, 0.53),
    ];
    for (name, items, cost, gpu, most_unknown, most_known) in rows {
        let simulation = Simulation { items, local_size: 64, cost, units: [gpu, gpu], begins: Begins::Both };
        let (unknown, alone) = simulation.run();
        let prior = Prior::measured(items as f64 / alone[0], Duration::from_secs_f64(gpu.latency));
        let (known, _) = Simulation { begins: Begins::Known([prior; 2]), ..simulation }.run();
        let (unknown, known) = (unknown / alone[0], known / alone[0]);
        println!("{name}: alone {:.3} ms, ratio {unknown:.3}, known {known:.3}", alone[0] * 1e3);
        assert!(unknown < most_unknown && known < most_known, "{name}: {unknown:.3}, known {known:.3}");
    }
}
