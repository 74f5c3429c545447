//! Tests of trials: when the opening wants one, what it makes of its end, and what the splitter hands out of it.

use super::opening::{Opening, Tries};
use super::*;
use proptest::prelude::*;
use std::ops::Range;

pub(super) const HOST: UnitId = UnitId(0);
pub(super) const GPU: UnitId = UnitId(1);
const SLOW: UnitId = UnitId(2);
const NEAR: Freight = Freight { setup: 150e-6, per_item: 1e-12 };
const WORK: u64 = 1 << 20;

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// The GPU, which can be tried out on so many items when the host has shown something.
fn later(items: u64) -> Option<Tries> {
    Some(Tries { unit: GPU, items, after: f64::INFINITY, takes: 0.0 })
}

/// An opening in which the GPU can be tried out on so many items, on a host with so many threads.
fn opening(work: u64, items: u64, threads: u64) -> Opening {
    let inner = Calibrated::new(work, 1, &[None, None]).unwrap();
    Opening::new(inner, work, HOST, vec![(GPU, NEAR)]).threads(threads).tries(later(items))
}

/// Hands the host its next package at a time, in microseconds, and returns its items.
fn handed(policy: &mut Opening, left: u64, at: u64) -> u64 {
    let items = policy.next(HOST, left).expect("it always gets some").min(left);
    policy.handed(&Package::new(WORK - left..WORK - left + items, HOST, 0), micros(at));
    items
}

fn computed(policy: &mut Opening, items: u64, times: Range<u64>) {
    let (begun, ended) = (micros(times.start), micros(times.end));
    policy.computed(&Computed::new(&Package::new(0..items, HOST, 0), begun, begun, ended, ended));
}

/// The end of a trial, in microseconds.
fn tried(policy: &mut Opening, items: u64, times: Range<u64>) {
    let (begun, ended) = (micros(times.start), micros(times.end));
    policy.tried(GPU, Some(&Computed::new(&Package::new(0..items, GPU, 0), begun, begun, ended, ended)));
}

#[test]
fn a_sample_that_takes_long_is_reason_enough_while_it_is_under_way() {
    let now = TryOut::Now { unit: GPU, items: 5000 };
    let mut policy = opening(WORK, 5000, 1);
    assert_eq!(policy.try_out(micros(4)), TryOut::Later);
    assert_eq!(handed(&mut policy, WORK, 5), 1);
    assert_eq!(policy.try_out(micros(24)), TryOut::Later, "it may be a launch");
    assert_eq!(policy.try_out(micros(26)), now);
    assert_eq!(policy.try_out(micros(27)), TryOut::No, "there is one trial");
    // Sixteen threads together may be sixteen times as fast: 150 items take three milliseconds, or a fifth of one.
    for (threads, answer) in [(1, now), (16, TryOut::Later)] {
        let mut policy = opening(150, 5000, threads);
        handed(&mut policy, 150, 5);
        assert_eq!(policy.try_out(micros(26)), answer, "{threads} threads");
    }
}

/// What moves for a trial disturbs who computes.
#[test]
fn a_trial_that_takes_long_needs_a_longer_sample() {
    let begins_after = |takes: f64| {
        let tries = later(5000).map(|tries| Tries { takes, ..tries });
        let mut policy = opening(WORK, 5000, 1).tries(tries);
        handed(&mut policy, WORK, 0);
        (1..100).find(|at| policy.try_out(micros(*at)) != TryOut::Later)
    };
    assert_eq!(begins_after(0.0), Some(20));
    assert_eq!(begins_after(151e-6), Some(20), "it moves next to nothing");
    assert_eq!(begins_after(199e-6), Some(25), "an eighth of what it takes");
    assert_eq!(begins_after(1.0), Some(30));
}

/// A sample that was no longer than a launch says that the next one is worth waiting for. If an item of it took no longer than it would move, there is no
/// trial.
#[test]
fn a_trial_waits_for_the_samples_that_follow_a_short_one() {
    let moves = |per_item: f64, items: u64, sample: u64| {
        let inner = Calibrated::new(200_000, 1, &[None, None]).unwrap();
        let tries = Some(Tries { unit: GPU, items: 5000, after: 20e-6, takes: 249.5e-6 });
        let freight = Freight { per_item, ..NEAR };
        let mut policy = Opening::new(inner, 200_000, HOST, vec![(GPU, freight)]).threads(16).tries(tries);
        policy.handed(&Package::new(0..items, HOST, 0), micros(0));
        computed(&mut policy, items, 0..sample);
        (1..1000).find(|at| policy.try_out(micros(*at)) != TryOut::Later)
    };
    // Its inputs take 100 us.
    assert_eq!(moves(1e-12, 100, 16), Some(100));
    // 16 us for 100 items are 10 ns for one, if sixteen threads are sixteen times as fast.
    assert_eq!((moves(9.9e-9, 100, 16), moves(10.1e-9, 100, 16)), (Some(100), None));
    // While no sample has ended, it begins.
    let tries = Some(Tries { unit: GPU, items: 5000, after: 20e-6, takes: 1.0 });
    let mut policy = opening(WORK, 5000, 16).tries(tries);
    handed(&mut policy, WORK, 0);
    assert_eq!(policy.try_out(micros(19)), TryOut::Later);
    assert_ne!(policy.try_out(micros(20)), TryOut::Later);
}

/// 30 us for 100 items are 19 ns for one, if sixteen threads are sixteen times as fast.
#[test]
fn no_trial_begins_of_a_device_that_may_move_an_item_for_longer_than_the_host_computes_it() {
    let begins = |per_item: f64| {
        let inner = Calibrated::new(200_000, 1, &[None, None]).unwrap();
        let freight = Freight { per_item, ..NEAR };
        let mut policy =
            Opening::new(inner, 200_000, HOST, vec![(GPU, freight)]).threads(16).tries(later(5000));
        policy.handed(&Package::new(0..100, HOST, 0), micros(0));
        computed(&mut policy, 100, 0..30);
        policy.try_out(micros(31)) != TryOut::Later
    };
    assert!(begins(18e-9) && !begins(20e-9));
}

/// While the trial's inputs move, the host shows that it is done with an item before that has moved: it computes all that is left, and nobody has the trial.
#[test]
fn a_host_that_computes_items_before_they_have_moved_waits_for_no_trial() {
    let goes_on = |per_item: f64, second: Option<Freight>| {
        let inner = Calibrated::new(60_000, 1, &[None, None, None]).unwrap();
        let others = [Some((GPU, Freight { per_item, ..NEAR })), second.map(|second| (SLOW, second))];
        let opening = Opening::new(inner, 60_000, HOST, others.into_iter().flatten().collect());
        let mut policy = opening.threads(16).tries(later(5000));
        policy.next(HOST, 60_000).unwrap();
        policy.handed(&Package::new(0..1, HOST, 0), micros(0));
        assert_ne!(policy.try_out(micros(30)), TryOut::Later);
        computed(&mut policy, 1, 0..30);
        policy.handed(&Package::new(0..1000, HOST, 0), micros(30));
        // 100 us, of which the threads take 40 to wake up.
        computed(&mut policy, 1000, 30..130);
        let is_all = policy.next(HOST, 58_000) == Some(58_000);
        tried(&mut policy, 5000, 30..140);
        assert_eq!(policy.call_up().is_empty(), is_all);
        is_all
    };
    assert!(goes_on(60.5e-9, None) && !goes_on(59.5e-9, None));
    assert!(goes_on(60.5e-9, Some(Freight { per_item: 61e-9, ..NEAR })));
    assert!(!goes_on(60.5e-9, Some(NEAR)), "another could help");
}

#[test]
fn a_sample_that_is_done_counts_as_well() {
    let mut policy = opening(WORK, 5000, 1);
    let items = handed(&mut policy, WORK, 0);
    computed(&mut policy, items, 0..30);
    assert_eq!(policy.try_out(micros(31)), TryOut::Now { unit: GPU, items: 5000 });
}

#[test]
fn who_is_done_before_anybody_could_begin_has_no_trial() {
    let mut policy = opening(WORK, 5000, 1);
    policy.handed(&Package::new(0..WORK - 1000, HOST, 0), micros(0));
    // A nanosecond for each of the rest.
    computed(&mut policy, WORK - 1000, 0..1000);
    assert_eq!(policy.try_out(micros(1001)), TryOut::No);
}

/// Where the samples say that another unit helps, it is tried out, and not called up.
#[test]
fn a_trial_comes_before_the_call() {
    let mut policy = opening(WORK, 5000, 1);
    let items = handed(&mut policy, WORK, 0);
    computed(&mut policy, items, 0..700);
    assert_eq!(policy.call_up(), []);
    assert_eq!(policy.try_out(micros(701)), TryOut::Now { unit: GPU, items: 5000 });
    // Without one to be had, it is called up after all.
    let mut policy = opening(WORK, 5000, 1);
    policy.tried(GPU, None);
    let items = handed(&mut policy, WORK, 0);
    computed(&mut policy, items, 0..700);
    assert_eq!((policy.try_out(micros(701)), policy.call_up()), (TryOut::No, vec![GPU]));
}

#[test]
fn a_trial_that_failed_leads_to_the_call() {
    let mut policy = opening(WORK, 5000, 1);
    let items = handed(&mut policy, WORK, 0);
    policy.try_out(micros(50));
    computed(&mut policy, items, 0..700);
    assert_eq!(policy.call_up(), []);
    policy.tried(GPU, None);
    assert_eq!((policy.try_out(micros(701)), policy.call_up()), (TryOut::No, vec![GPU]));
}

/// An opening in which a trial has begun after 20 us, whatever the host does.
fn opening_early() -> Opening {
    let tries = Some(Tries { unit: GPU, items: 5000, after: 20e-6, takes: 0.0 });
    let mut policy = opening(WORK, 5000, 16).tries(tries);
    assert_eq!(policy.try_out(micros(19)), TryOut::Later);
    assert_eq!(policy.try_out(micros(20)), TryOut::Now { unit: GPU, items: 5000 });
    assert_eq!(policy.try_out(micros(21)), TryOut::No, "there is one trial");
    policy
}

#[test]
fn a_trial_that_moves_little_begins_before_the_host_has_shown_anything() {
    let mut policy = opening_early();
    tried(&mut policy, 5000, 21..121);
    assert_eq!(policy.call_up(), [GPU], "before the host has computed anything");
    assert!(policy.next(HOST, WORK).is_some() && policy.next(GPU, WORK).is_some());
    // It may fail before anybody knows who could help.
    let mut policy = opening_early();
    policy.tried(GPU, None);
    assert_eq!((policy.call_up(), policy.next(HOST, WORK)), (vec![], Some(1)));
    let items = handed(&mut policy, WORK, 130);
    computed(&mut policy, items, 130..900);
    assert_eq!((policy.try_out(micros(901)), policy.call_up()), (TryOut::No, vec![GPU]));
}

/// A host that is soon done goes on with all that is left, and one that is not has short packages from then on.
#[test]
fn beside_an_early_trial_samples_say_what_the_host_does() {
    let mut policy = opening_early();
    policy.handed(&Package::new(0..WORK - 1000, HOST, 0), micros(0));
    // A nanosecond for each of the rest.
    computed(&mut policy, WORK - 1000, 0..1000);
    assert_eq!(policy.next(HOST, 1000), Some(1000));
    tried(&mut policy, 1000, 21..1100);
    assert_eq!((policy.call_up(), policy.next(GPU, 500)), (vec![], None), "it came too late");

    let mut policy = opening_early();
    let items = handed(&mut policy, WORK, 0);
    computed(&mut policy, items, 0..8);
    assert_eq!(policy.next(HOST, WORK - 1), Some(16), "a longer sample");
    let items = handed(&mut policy, WORK - 1, 8);
    // At best a sixteenth of that for each of the others, 65 ms.
    computed(&mut policy, items, 8..30);
    assert_eq!(policy.try_out(micros(31)), TryOut::No);
    assert_eq!(policy.next(HOST, WORK - 17), Some(36), "50 us, and no sample of 400");
    assert!(policy.waits(HOST, micros(31)) <= micros(31), "it has shown too little");
    computed(&mut policy, 36, 31..131);
    assert!(policy.waits(HOST, micros(131)) > micros(1000));
    tried(&mut policy, 5000, 21..121);
    assert_eq!(policy.call_up(), [GPU]);
}

/// Four items that take 0.7 ms each are worth a trial, though not if all sixteen threads were as fast as the one.
#[test]
fn where_an_early_trial_is_under_way_the_samples_ask_for_no_other() {
    let tries = Some(Tries { unit: GPU, items: 5, after: 0.0, takes: 0.0 });
    let mut policy = opening(5, 5, 16).tries(tries);
    assert_eq!(policy.try_out(micros(0)), TryOut::Now { unit: GPU, items: 5 });
    policy.handed(&Package::new(0..1, HOST, 0), micros(0));
    computed(&mut policy, 1, 0..700);
    assert_eq!((policy.try_out(micros(701)), policy.call_up()), (TryOut::No, vec![]));
    assert!(policy.waits(HOST, micros(100)) > micros(100), "it is waited for");
}

/// Of a run of one package nobody else can have a part, however long it takes. But the next one is to be the faster device's.
#[test]
fn where_one_package_is_all_a_trial_teaches_those_who_come_later() {
    let early = Some(Tries { unit: GPU, items: 300, after: 0.0, takes: 0.0 });
    let mut policy = opening(500, 300, 16).tries(early).undivided();
    assert_eq!(policy.try_out(micros(9)), TryOut::Later, "nobody computes");
    assert_eq!(policy.next(HOST, 500), Some(500));
    assert_eq!(policy.next(GPU, 500), None);
    policy.handed(&Package::new(0..500, HOST, 0), micros(10));
    // Data moves in no time, and to begin takes 150 us: so the host is to take 250.
    assert_eq!(policy.try_out(micros(259)), TryOut::Later);
    assert_eq!(policy.try_out(micros(261)), TryOut::Now { unit: GPU, items: 300 });
    assert_eq!(policy.try_out(micros(262)), TryOut::No, "there is one trial");
    assert_eq!(policy.waits(HOST, micros(262)), Duration::ZERO);
    tried(&mut policy, 300, 262..400);
    assert_eq!(policy.call_up(), [], "there is nothing to be had");
    computed(&mut policy, 500, 10..3000);
    assert_eq!(policy.call_up(), []);
    // If the host fails, the other is to compute all of it.
    let mut policy = opening(500, 300, 16).undivided();
    policy.handed(&Package::new(0..500, HOST, 0), micros(10));
    assert_eq!(policy.try_out(micros(261)), TryOut::Now { unit: GPU, items: 300 });
    policy.given_back(&Package::new(0..500, HOST, 0));
    policy.retire(HOST);
    assert_eq!(policy.call_up(), [GPU]);
    // It is not tried out beside its own package.
    let mut policy = opening(500, 300, 16).undivided();
    policy.handed(&Package::new(0..500, HOST, 0), micros(10));
    policy.given_back(&Package::new(0..500, HOST, 0));
    policy.retire(HOST);
    policy.handed(&Package::new(0..500, GPU, 1), micros(20));
    assert_eq!(policy.try_out(micros(900)), TryOut::No);
}

#[test]
fn who_retires_in_an_early_trial_is_not_waited_for() {
    let mut policy = opening_early();
    policy.retire(GPU);
    let items = handed(&mut policy, WORK, 30);
    computed(&mut policy, items, 30..800);
    tried(&mut policy, 5000, 21..900);
    assert_eq!((policy.next(HOST, WORK - 1), policy.call_up()), (Some(WORK - 1), vec![]));
    // Nor is it heard when it ends.
    let mut policy = opening_early();
    policy.retire(GPU);
    tried(&mut policy, 5000, 21..900);
    assert_eq!((policy.next(HOST, WORK), policy.call_up()), (Some(1), vec![]));
    let mut policy = opening_early();
    policy.retire(HOST);
    assert_eq!(policy.call_up(), [GPU]);
    tried(&mut policy, 5000, 21..900);
    assert!(policy.call_up().is_empty() && policy.next(GPU, WORK).is_some());
}

/// What the first unit has under way when the trial ends holds the run up.
#[test]
fn packages_are_short_while_a_trial_is_under_way() {
    let mut policy = opening(WORK, 5000, 1);
    let items = handed(&mut policy, WORK, 0);
    policy.try_out(micros(30));
    computed(&mut policy, items, 0..40);
    assert_eq!(handed(&mut policy, WORK - 1, 40), 1, "one took 40 us, so none takes no longer than 50");
    computed(&mut policy, 1, 40..41);
    assert_eq!(handed(&mut policy, WORK - 2, 41), 16, "no more than 16 times as many as before");
    computed(&mut policy, 16, 41..57);
    policy.next(HOST, WORK);
    computed(&mut policy, 16, 4000..4016);
    assert_eq!(handed(&mut policy, WORK - 99, 4016), 256, "again");
    computed(&mut policy, 256, 4016..4272);
    assert_eq!(handed(&mut policy, WORK - 999, 4272), 534, "an eighth of the run so far");
}

/// Nobody waits for what ends before the trial can. What comes may be twice as dear.
#[test]
fn packages_are_longer_while_a_trial_cannot_have_ended() {
    let tries = later(5000).map(|tries| Tries { takes: 420e-6, ..tries });
    let mut policy = opening(WORK, 5000, 1).tries(tries);
    let items = handed(&mut policy, WORK, 0);
    assert_ne!(policy.try_out(micros(30)), TryOut::Later);
    computed(&mut policy, items, 0..40);
    assert_eq!(handed(&mut policy, WORK - 1, 40), 5, "half of what is left of 450 us is 205");
    computed(&mut policy, 5, 40..200);
    assert_eq!(handed(&mut policy, WORK - 6, 200), 3, "or 125");
    computed(&mut policy, 3, 200..400);
    assert_eq!(handed(&mut policy, WORK - 9, 400), 1, "or 25, so that it is 50");
    computed(&mut policy, 1, 400..440);
    assert_eq!(handed(&mut policy, WORK - 10, 450), 1, "it may end at any time");
    computed(&mut policy, 1, 450..451);
    assert_eq!(handed(&mut policy, WORK - 11, 451), 56, "an eighth of the run so far");
}

#[test]
fn the_first_unit_waits_where_it_would_do_little_meanwhile() {
    let waits = |threads, sample: u64, items: u64| {
        let mut policy = opening(items + 1000, 5000, threads);
        policy.handed(&Package::new(0..items, HOST, 0), micros(0));
        assert_eq!(policy.waits(HOST, micros(20)), Duration::ZERO, "there is no trial");
        assert_ne!(policy.try_out(micros(900)), TryOut::Later);
        assert_eq!(policy.waits(HOST, micros(900)), micros(900), "nothing is known");
        computed(&mut policy, items, 0..sample);
        assert_eq!(policy.waits(GPU, micros(900)), Duration::ZERO, "it is the other that waits");
        policy.waits(HOST, micros(900))
    };
    let after = |micros: u64| Duration::from_micros(900 + micros);
    // A twentieth of what 1000 items take.
    let near = |found: Duration, expected: Duration| {
        assert!(found.abs_diff(expected) < Duration::from_nanos(10), "{found:?}, not {expected:?}");
    };
    near(waits(1, 700, 1), after(35_000));
    near(waits(1, 100, 1), after(5_000));
    near(waits(1, 100, 4), after(1_250));
    // It may have been one thread's, but not if it was long.
    near(waits(10, 100, 1), after(500));
    near(waits(10, 700, 1), after(35_000));
    // That was a launch and little else.
    assert_eq!(waits(1, 59, 1), after(0));
    assert_eq!(waits(10, 79, 1), after(0));
}

#[test]
fn a_trial_shows_how_fast_a_unit_is() {
    let mut policy = opening(WORK, 100_000, 1);
    let items = handed(&mut policy, WORK, 0);
    policy.try_out(micros(50));
    computed(&mut policy, items, 0..60);
    tried(&mut policy, 100_000, 60..1060);
    assert_eq!(policy.call_up(), [GPU]);
    assert_eq!(policy.try_out(micros(1061)), TryOut::No);
    // A host that takes 60 us for an item does next to nothing beside 100 items in a microsecond.
    assert_eq!(policy.next(HOST, WORK / 2), None);
    assert!(policy.next(GPU, WORK / 2).unwrap() > 10_000);
}

/// One that took no longer than a launch does may be as fast with more items.
#[test]
fn a_host_of_which_little_is_known_goes_on() {
    for (threads, sample, goes_on) in [(1, 59, true), (1, 60, false), (16, 79, true), (16, 80, false)] {
        let mut policy = opening(WORK, 100_000, threads);
        handed(&mut policy, WORK, 0);
        policy.try_out(micros(900));
        computed(&mut policy, 1, 0..sample);
        tried(&mut policy, 100_000, 900..1000);
        assert_eq!(policy.next(HOST, WORK / 2).is_some(), goes_on, "{threads} threads, {sample} us");
    }
}

/// Its inputs were there when it began, and its results had not gone: for long, nobody is faster than these move.
#[test]
fn a_trial_is_no_faster_than_data_moves() {
    let inner = Calibrated::new(WORK, 1, &[None, None]).unwrap();
    let freight = Freight { setup: 150e-6, per_item: 1e-6 };
    let mut policy = Opening::new(inner, WORK, HOST, vec![(GPU, freight)]).tries(later(1000));
    handed(&mut policy, WORK, 0);
    policy.try_out(micros(900));
    computed(&mut policy, 1, 0..70);
    // A thousand items in a microsecond, which take a millisecond to move. The host takes 70.
    tried(&mut policy, 1000, 900..901);
    assert_eq!(policy.next(HOST, WORK / 2), None, "less than a sixteenth of it");
    let inner = Calibrated::new(WORK, 1, &[None, None]).unwrap();
    let mut policy = Opening::new(inner, WORK, HOST, vec![(GPU, freight)]).tries(later(1000));
    policy.handed(&Package::new(0..10, HOST, 0), micros(0));
    policy.try_out(micros(900));
    computed(&mut policy, 10, 0..70);
    tried(&mut policy, 1000, 900..901);
    let claimed = Package::new(0..1000, GPU, 1);
    policy.handed(&claimed, micros(901));
    policy.computed(&Computed::new(&claimed, micros(900), micros(900), micros(901), micros(1900)));
    assert!(policy.next(HOST, WORK / 2).is_some(), "a seventh of it");
}

#[test]
fn who_could_not_help_beside_the_two_is_left_out() {
    let inner = Calibrated::new(WORK, 1, &[None, None, None]).unwrap();
    let slow = Freight { setup: 0.1, per_item: 1e-12 };
    let mut policy = Opening::new(inner, WORK, HOST, vec![(GPU, NEAR), (SLOW, slow)]).tries(later(100_000));
    let items = handed(&mut policy, WORK, 0);
    policy.try_out(micros(50));
    computed(&mut policy, items, 0..60);
    tried(&mut policy, 100_000, 60..1060);
    assert_eq!(policy.call_up(), [GPU], "all is done in 10 ms, and it takes 100 to begin");
}

/// What the trial shows of one is what its twin does.
#[test]
fn a_twin_of_the_one_that_was_tried_has_its_rate_and_joins() {
    let inner = Calibrated::new(WORK, 1, &[None, None, None]).unwrap();
    let twins = |twins| {
        let policy = Opening::new(inner.clone(), WORK, HOST, vec![(GPU, NEAR), (SLOW, NEAR)]);
        let mut policy = policy.tries(later(WORK / 2)).twins(twins);
        let items = handed(&mut policy, WORK, 0);
        policy.try_out(micros(50));
        computed(&mut policy, items, 0..60);
        // Half of all takes 500 us, so the rest takes two of them half of that.
        tried(&mut policy, WORK / 2, 60..560);
        assert_eq!(policy.call_up(), [GPU, SLOW]);
        let claimed = Package::new(WORK / 2..WORK, GPU, 1);
        policy.handed(&claimed, micros(560));
        policy.next(SLOW, WORK / 2)
    };
    assert_eq!(twins(Vec::new()), Some(WORK / 32), "as nothing is known of it, a sixteenth");
    let share = twins(vec![SLOW]).expect("it gets some");
    assert!(share > WORK / 24, "{share}");
}

/// But nobody is faster than its own data moves.
#[test]
fn a_twin_whose_data_moves_slowly_is_no_faster_than_that() {
    let far = Freight { setup: 1e-5, per_item: 1.3e-9 };
    let share = |freight| {
        let inner = Calibrated::new(WORK, 1, &[None; 3]).unwrap();
        let policy = Opening::new(inner, WORK, HOST, vec![(GPU, NEAR), (SLOW, freight)]);
        let mut policy = policy.tries(later(WORK / 2)).twins(vec![SLOW]);
        let items = handed(&mut policy, WORK, 0);
        policy.try_out(micros(50));
        computed(&mut policy, items, 0..60);
        tried(&mut policy, WORK / 2, 60..560);
        policy.next(SLOW, WORK / 2).expect("it gets some")
    };
    // A thousand items move in 1.3 us, and are computed in 0.95.
    assert!(share(far) * 10 < share(NEAR) * 9, "{} and {}", share(far), share(NEAR));
}

/// Nobody begins for nothing, but whoever was to begin does where work comes back.
#[test]
fn nobody_is_called_up_when_nothing_is_left() {
    let mut policy = opening(WORK, WORK, 1);
    let items = handed(&mut policy, WORK, 0);
    policy.try_out(micros(50));
    computed(&mut policy, items, 0..60);
    tried(&mut policy, WORK, 60..1060);
    let claimed = Package::new(1..WORK, GPU, 1);
    policy.handed(&claimed, micros(1060));
    assert_eq!(policy.call_up(), []);
    policy.given_back(&claimed);
    assert_eq!(policy.call_up(), [GPU]);
}

#[test]
fn who_retires_during_a_trial_is_not_waited_for() {
    let mut policy = opening(WORK, 5000, 1);
    let items = handed(&mut policy, WORK, 0);
    policy.try_out(micros(50));
    policy.retire(GPU);
    computed(&mut policy, items, 0..700);
    assert_eq!(policy.next(HOST, WORK - 1), Some(WORK - 1), "nobody else is left");
    assert_eq!(policy.waits(HOST, micros(700)), Duration::ZERO);
    let mut policy = opening(WORK, 5000, 1);
    handed(&mut policy, WORK, 0);
    policy.try_out(micros(50));
    policy.retire(HOST);
    assert_eq!(policy.call_up(), [GPU]);
    assert!(policy.next(GPU, WORK - 1).is_some());
    tried(&mut policy, 5000, 60..1060);
    assert_eq!(policy.call_up(), [], "nobody is called up twice");
}

/// Answers what a test says.
#[derive(Debug, Default)]
pub(super) struct Says {
    pub(super) length: u64,
    pub(super) trial: Option<(UnitId, u64)>,
    pub(super) waits: Duration,
    pub(super) asked: u64,
}

impl Policy for Says {
    fn next(&mut self, _: UnitId, _: u64) -> Option<u64> {
        Some(self.length)
    }

    fn try_out(&mut self, _: Duration) -> TryOut {
        self.trial.take().map_or(TryOut::No, |(unit, items)| TryOut::Now { unit, items })
    }

    fn waits(&mut self, _: UnitId, _: Duration) -> Duration {
        self.asked += 1;
        self.waits
    }

    fn tried(&mut self, unit: UnitId, computed: Option<&Computed>) {
        // What it asked for is what it hears of.
        self.length = computed.map_or(1, |computed| computed.items);
        assert_eq!(unit, GPU);
    }
}

pub(super) fn splitter(work: u64, local_size: u64, says: Says) -> Splitter {
    Splitter::new(Box::new(says), 2, work, local_size).unwrap()
}

pub(super) fn trial_of(items: u64) -> Says {
    Says { length: 10, trial: Some((GPU, items)), ..Says::default() }
}

pub(super) const TIMES: Option<[Duration; 3]> = Some([Duration::ZERO; 3]);

#[test]
fn a_trial_is_of_whole_groups_at_the_end() {
    for (items, range) in [(25, 70..103), (23, 80..103), (0, 100..103), (1, 100..103), (1000, 0..103)] {
        let mut splitter = splitter(103, 10, trial_of(items));
        assert_eq!(splitter.try_out(Duration::ZERO), Some(Ok((GPU, range))), "{items} items");
        assert_eq!(splitter.unassigned(), 103, "nobody was handed any");
        assert_eq!(splitter.try_out(Duration::ZERO), None);
    }
}

#[test]
fn a_trial_is_of_what_one_unit_has_as_well() {
    for (length, second) in [(103, Some(0..103)), (100, Some(0..103)), (51, Some(0..103))] {
        let mut splitter = splitter(103, 10, Says { length, ..trial_of(1000) });
        let Assignment::Package(first) = splitter.assign(HOST) else { unreachable!("there is work") };
        let trial = splitter.try_out(Duration::ZERO).map(|trial| trial.unwrap());
        assert_eq!(trial.clone().map(|(_, items)| items), second, "{first:?}");
        let Some((unit, items)) = trial.filter(|_| length == 103) else { continue };
        assert_eq!(splitter.tried(unit, items, TIMES), None, "nothing is claimed of what the host has");
        splitter.complete(&first).unwrap();
        assert!(splitter.is_finished());
    }
    // Two have all of it, or nobody has any.
    let mut splitter = splitter(103, 10, Says { length: 60, ..trial_of(1000) });
    for unit in [HOST, GPU] {
        assert!(matches!(splitter.assign(unit), Assignment::Package(_)));
    }
    assert_eq!(splitter.try_out(Duration::ZERO), None);
    // Nobody is tried out who is gone.
    let mut splitter = self::splitter(103, 10, Says { length: 103, ..trial_of(1000) });
    assert!(matches!(splitter.assign(HOST), Assignment::Package(_)));
    splitter.retire(GPU);
    assert_eq!(splitter.try_out(Duration::ZERO), None);
}

#[test]
fn what_is_claimed_is_what_nobody_has() {
    let mut splitter = splitter(103, 10, trial_of(1000));
    let hand = |splitter: &mut Splitter| match splitter.assign(HOST) {
        Assignment::Package(package) => package,
        _ => unreachable!("there is work"),
    };
    let first = hand(&mut splitter);
    let (unit, items) = splitter.try_out(Duration::ZERO).unwrap().unwrap();
    assert_eq!(items, 0..103, "what is handed out is tried as well: it may take longer than all the rest");
    let second = hand(&mut splitter);
    let claimed = splitter.tried(unit, items, TIMES).unwrap();
    assert_eq!((claimed.range(), claimed.unit()), (20..103, GPU));
    assert_eq!(splitter.unassigned(), 0);
    // It failed at the last moment, so somebody computes it.
    splitter.give_back(&claimed).unwrap();
    assert_eq!(hand(&mut splitter).range(), 20..103);
    splitter.complete(&first).unwrap();
    splitter.complete(&second).unwrap();
    assert_eq!(splitter.completed(), 20);
}

#[test]
fn a_trial_is_of_no_more_than_what_is_under_way_in_front_of_the_rest() {
    let hand = |splitter: &mut Splitter| match splitter.assign(HOST) {
        Assignment::Package(package) => package,
        _ => unreachable!("there is work"),
    };
    // What is computed already is not, nor what is under way before that, nor more than the policy wants.
    for (most, done, items) in
        [(1000, 0, 10..103), (1000, 1, 20..103), (1000, 2, 0..103), (90, 9, 10..103), (80, 9, 20..103)]
    {
        let mut splitter = splitter(103, 10, trial_of(most));
        let packages = [hand(&mut splitter), hand(&mut splitter)];
        if let Some(done) = packages.get(done) {
            splitter.complete(done).unwrap();
        }
        assert_eq!(splitter.try_out(Duration::ZERO), Some(Ok((GPU, items))), "{most} {done}");
    }
}

#[test]
fn a_package_that_is_handed_over_is_anothers() {
    let mut splitter = splitter(103, 10, trial_of(1000));
    let Assignment::Package(package) = splitter.assign(HOST) else { unreachable!("there is work") };
    let taken = splitter.hand_over(&package, GPU).unwrap();
    assert_eq!((taken.range(), taken.unit()), (package.range(), GPU));
    assert_ne!(taken.index(), package.index());
    assert_eq!(splitter.in_flight().collect::<Vec<_>>(), [&taken]);
    assert!(splitter.hand_over(&package, GPU).is_err() && splitter.complete(&package).is_err());
    splitter.complete(&taken).unwrap();
    assert_eq!((splitter.completed(), splitter.unassigned()), (10, 93));
}

/// The last items come first, and the others are handed out from the other end.
#[test]
fn parts_of_a_trial_are_claimed_from_the_end() {
    let mut splitter = splitter(103, 10, trial_of(1000));
    let (unit, items) = splitter.try_out(Duration::ZERO).unwrap().unwrap();
    assert_eq!(items, 0..103);
    let claims = [70..103, 40..70].map(|part| splitter.claim(unit, part).unwrap());
    assert_eq!(claims.clone().map(|package| package.range()), [70..103, 40..70]);
    let Assignment::Package(first) = splitter.assign(HOST) else { unreachable!("there is work") };
    assert_eq!(first.range(), 0..10);
    // Nobody takes what is before the part, or was claimed.
    assert_eq!(splitter.claim(unit, 70..103), None);
    assert_eq!(splitter.tried(unit, items, TIMES).unwrap().range(), 10..40);
    assert_eq!(splitter.unassigned(), 0);
    splitter.retire(unit);
    assert_eq!(splitter.unassigned(), 93, "it loses all of them");
    assert_eq!(splitter.claim(unit, 0..103), None);
}

#[test]
fn a_trial_of_a_part_leaves_the_rest() {
    let mut splitter = splitter(103, 10, trial_of(20));
    let (unit, items) = splitter.try_out(Duration::ZERO).unwrap().unwrap();
    assert_eq!(splitter.tried(unit, items, TIMES).unwrap().range(), 80..103);
    assert_eq!(splitter.unassigned(), 80);
}

#[test]
fn nothing_is_claimed_from_a_trial_that_failed_or_came_too_late() {
    let mut failed = splitter(100, 10, trial_of(1000));
    let (unit, items) = failed.try_out(Duration::ZERO).unwrap().unwrap();
    assert_eq!(failed.tried(unit, items, None), None);
    assert_eq!(failed.unassigned(), 100);
    let mut late = splitter(100, 10, Says { length: 100, ..trial_of(50) });
    let (unit, items) = late.try_out(Duration::ZERO).unwrap().unwrap();
    assert!(matches!(late.assign(HOST), Assignment::Package(_)));
    assert_eq!(late.tried(unit, items, TIMES), None);
    let mut retired = splitter(100, 10, trial_of(50));
    let (unit, items) = retired.try_out(Duration::ZERO).unwrap().unwrap();
    retired.retire(unit);
    assert_eq!(retired.tried(unit, items, TIMES), None);
    assert_eq!(retired.unassigned(), 100);
    // There is nothing to try it on, and the policy hears of that.
    let mut all_handed = splitter(100, 10, Says { length: 60, ..trial_of(50) });
    for _ in 0..2 {
        assert!(matches!(all_handed.assign(HOST), Assignment::Package(_)));
    }
    assert_eq!(all_handed.try_out(Duration::ZERO), None);
}

/// A unit waits as long as the policy says, and is not asked about it again before.
#[test]
fn a_unit_waits_for_a_trial_and_no_longer() {
    let says = Says { waits: micros(50), ..trial_of(20) };
    let mut splitter = splitter(100, 10, says);
    assert!(matches!(splitter.assign_at(HOST, micros(1)), Assignment::Package(_)), "there is no trial");
    let (unit, items) = splitter.try_out(micros(2)).unwrap().unwrap();
    for now in [3, 20, 49] {
        assert_eq!(splitter.assign_at(HOST, micros(now)), Assignment::Wait, "at {now}");
    }
    assert!(format!("{:?}", splitter.policy()).contains("asked: 1"), "{:?}", splitter.policy());
    assert!(matches!(splitter.assign_at(HOST, micros(50)), Assignment::Package(_)));
    splitter.tried(unit, items, TIMES);
    assert!(matches!(splitter.assign_at(HOST, micros(51)), Assignment::Package(_)));
}

/// What the splitter is told to do, and what an unruly policy says.
#[derive(Debug, Clone, Copy)]
enum Act {
    Ask(usize),
    Complete,
    GiveBack,
    Retire(usize),
    Try,
    Tried(bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..3_usize).prop_map(Act::Ask),
        3 => Just(Act::Complete),
        1 => Just(Act::GiveBack),
        1 => (1..3_usize).prop_map(Act::Retire),
        2 => Just(Act::Try),
        2 => any::<bool>().prop_map(Act::Tried),
    ]
}

/// Wants a trial whenever it is asked.
#[derive(Debug)]
struct Unruly(u64, UnitId);

impl Policy for Unruly {
    fn next(&mut self, _: UnitId, _: u64) -> Option<u64> {
        Some(self.0)
    }

    fn try_out(&mut self, _: Duration) -> TryOut {
        TryOut::Now { unit: self.1, items: self.0 * 3 }
    }
}

proptest! {
    #[test]
    fn p1_p2_with_trials_every_item_is_computed_once(
        work in 0..300_u64, local in 1..9_u64, length in 1..40_u64, unit in 0..5_usize,
        acts in prop::collection::vec(act(), 0..60),
    ) {
        let policy = Unruly(length, UnitId(unit));
        let mut splitter = Splitter::new(Box::new(policy), 3, work, local).unwrap();
        let (mut has, mut done, mut trial) = (Vec::new(), Vec::new(), None);
        let finish = (0..1000).map(|turn| if turn % 2 == 0 { Act::Ask(0) } else { Act::Complete });
        for act in acts.into_iter().chain(finish) {
            match act {
                Act::Ask(unit) => {
                    if let Assignment::Package(package) = splitter.assign(UnitId(unit)) {
                        has.push(package);
                    }
                }
                Act::Complete => {
                    if let Some(package) = has.pop() {
                        splitter.complete(&package).unwrap();
                        done.push(package.range());
                    }
                }
                Act::GiveBack => {
                    if let Some(package) = has.pop() {
                        splitter.give_back(&package).unwrap();
                    }
                }
                Act::Retire(unit) => {
                    splitter.retire(UnitId(unit));
                    has.retain(|package| package.unit() != UnitId(unit));
                }
                Act::Try => {
                    if let Some(Ok(wanted)) = splitter.try_out(Duration::ZERO) {
                        trial = Some(wanted);
                    }
                }
                Act::Tried(is_well) => {
                    if let Some((unit, items)) = trial.take() {
                        has.extend(splitter.tried(unit, items.clone(), TIMES.filter(|_| is_well)));
                    }
                }
            }
            let in_flight: u64 = splitter.in_flight().map(Package::items).sum();
            prop_assert_eq!(splitter.unassigned() + in_flight + splitter.completed(), work);
            for package in &has {
                prop_assert!(package.start() % local == 0 && (package.end() % local == 0 || package.end() == work));
            }
        }
        prop_assert!(splitter.is_finished());
        done.sort_by_key(|range| range.start);
        let end = done.iter().try_fold(0, |next, range| (range.start == next).then_some(range.end));
        prop_assert_eq!(end, Some(work));
    }
}
