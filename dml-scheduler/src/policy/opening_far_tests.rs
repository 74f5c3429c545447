//! Tests of the opening by a unit in another process, whose launch takes as long as a short kernel, and whose first one far longer.

use super::tests::{HOST as WORKER, OTHER as GPU};
use super::*;
use crate::Package;
use std::ops::Range;

const WORK: u64 = 1 << 20;
const NEAR: Freight = Freight { setup: 150e-6, per_item: 1e-12 };

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// A worker of one thread whose launch takes 25 us, beside a GPU that can be tried out.
fn far(work: u64) -> Opening {
    let inner = Calibrated::new(work, 1, &[None, None]).unwrap();
    let tries = Tries { unit: GPU, items: work, after: f64::INFINITY, takes: 0.0 };
    Opening::new(inner, work, WORKER, vec![(GPU, NEAR)]).launch(25e-6).tries(Some(tries))
}

/// Hands the worker its next package, of at most so many items.
fn handed(policy: &mut Opening, left: u64, at: u64) -> Package {
    let items = policy.next(WORKER, left).expect("it has nothing").min(left);
    let package = Package::new(WORK - left..WORK - left + items, WORKER, 0);
    policy.handed(&package, micros(at));
    package
}

fn computed(policy: &mut Opening, package: &Package, times: Range<u64>) {
    let [begun, ended] = [times.start, times.end].map(micros);
    policy.computed(&Computed::new(package, begun, begun, ended, ended));
}

/// Samples of so many items that took so many microseconds, one after the other, and what the next one has.
fn after(policy: &mut Opening, samples: &[(u64, u64)]) -> u64 {
    let mut now = 0;
    for &(items, took) in samples {
        policy.next(WORKER, WORK).unwrap();
        let package = Package::new(0..items, WORKER, 0);
        policy.handed(&package, micros(now));
        computed(policy, &package, now..now + took);
        now += took;
    }
    policy.next(WORKER, WORK).unwrap()
}

/// It could have several packages at once: what one sample says is to decide about the next.
#[test]
fn there_is_one_sample_at_a_time() {
    let mut policy = far(WORK);
    let first = handed(&mut policy, WORK, 0);
    assert_eq!(policy.next(WORKER, WORK - 1), None);
    computed(&mut policy, &first, 0..100);
    let second = handed(&mut policy, WORK - 1, 100);
    assert_eq!(policy.next(WORKER, WORK - 1), None);
    // Also while the GPU is tried out, and when a package comes back.
    assert_eq!(policy.try_out(micros(900)), TryOut::Now { unit: GPU, items: WORK });
    assert_eq!(policy.next(WORKER, WORK - 1), None);
    policy.given_back(&second);
    assert!(policy.next(WORKER, WORK).is_some());
}

/// A first package of 115 us was seen where later ones of sixteen times as many items took 30.
#[test]
fn a_first_launch_says_nothing_of_how_long_the_rest_takes() {
    let mut policy = far(WORK);
    // As if it were nothing but a launch: the next sample has as many items more as would take 150 us if it was none.
    assert_eq!(after(&mut policy, &[(1, 40)]), 3);
    assert_eq!(policy.try_out(micros(40)), TryOut::Later);
    // By the first one a thousand items would take a tenth of a second, or next to no time.
    for took in [100, 599] {
        let mut policy = far(1000).tries(None);
        assert_eq!(after(&mut policy, &[(1, took)]), 1, "{took}");
        assert_eq!(policy.call_up(), [], "{took}");
    }
    // Nor is the rest short because of it: an eighth of 100 us for each of eleven items would be.
    let mut policy = far(12).tries(None);
    let first = handed(&mut policy, 12, 0);
    computed(&mut policy, &first, 0..100);
    assert_eq!(policy.next(WORKER, 11), Some(1));
    // What takes longer is no launch: 0.7 ms of computing for one item.
    let mut policy = far(WORK).tries(None);
    after(&mut policy, &[(1, 1300)]);
    assert_eq!(policy.call_up(), [GPU]);
    let mut policy = far(WORK);
    after(&mut policy, &[(1, 900)]);
    assert_eq!(policy.try_out(micros(900)), TryOut::Now { unit: GPU, items: WORK });
}

#[test]
fn what_a_sample_took_besides_its_launch_counts() {
    // 60 us of computing are telling.
    let called = |took| {
        let mut policy = far(WORK).tries(None);
        after(&mut policy, &[(1, 50), (16, 50), (256, took)]);
        policy.call_up()
    };
    assert_eq!((called(86), called(84)), (vec![GPU], vec![]));
    // Next to nothing of 26 us is computing, and an eighth of less is left.
    assert_eq!(after(&mut far(WORK), &[(1, 50), (16, 20)]), 16 * 16, "150 us of 2.5");
    // The rest takes 0.1 ms: the GPU could not begin in that.
    let mut policy = far(3000);
    let first = handed(&mut policy, 3000, 0);
    computed(&mut policy, &first, 0..50);
    policy.next(WORKER, 2999);
    computed(&mut policy, &Package::new(1..601, WORKER, 1), 50..95);
    assert_eq!(policy.next(WORKER, 2399), Some(2399), "all of it");
}

/// A sample under way is reason for a trial when it has taken longer than a launch does.
#[test]
fn a_launch_is_no_reason_for_a_trial() {
    let begins_after = |mut policy: Opening, before: &[(u64, u64)]| {
        let items = after(&mut policy, before);
        let now: u64 = before.iter().map(|(_, took)| took).sum();
        policy.handed(&Package::new(0..items, WORKER, 0), micros(now));
        (1..2000).find(|at| policy.try_out(micros(now + at)) != TryOut::Later)
    };
    // 20 us of computing, after a launch of 25; an eighth of what the first one takes.
    assert_eq!(begins_after(far(WORK), &[(1, 50)]), Some(45));
    assert_eq!(begins_after(far(WORK), &[]), Some(160));
    assert_eq!(begins_after(far(WORK).launch(0.0), &[]), Some(20), "a host's is a call");
    assert_eq!(begins_after(far(WORK).launch(f64::NAN), &[]), Some(20));
    assert_eq!(begins_after(far(WORK).launch(-1.0), &[]), Some(20));
}

/// Beside a trial as well, or its packages would be launches and little else.
#[test]
fn packages_beside_a_trial_are_told_without_their_launch() {
    let tries = Tries { unit: GPU, items: WORK, after: f64::INFINITY, takes: 600e-6 };
    let mut policy = far(WORK).tries(Some(tries));
    let first = handed(&mut policy, WORK, 0);
    assert!(matches!(policy.try_out(micros(300)), TryOut::Now { .. }));
    computed(&mut policy, &first, 0..400);
    // Half of the 500 us that are left may be the next package: 225 of computing. An item takes 50, an eighth of 400, for all that is known.
    let second = handed(&mut policy, WORK - 1, 400);
    assert_eq!(second.items(), 4);
    computed(&mut policy, &second, 400..433);
    // These took 2 us each. Of 233 us 208 are computing, but a package has sixteen times as many items as the one before at the most.
    let third = handed(&mut policy, WORK - 5, 433);
    assert_eq!(third.items(), 4 * 16);
    computed(&mut policy, &third, 433..584);
    assert_eq!(handed(&mut policy, WORK - 69, 584).items(), 67, "158 us, of which 133 are computing");
}

/// Where it computes all in one package, that is compared with what the GPU would take for all: 0.6 of it.
#[test]
fn a_single_package_is_compared_with_all_that_it_takes() {
    let mut policy = far(8).undivided();
    assert_eq!(handed(&mut policy, 8, 0).items(), 8);
    let now = |at| policy.clone().try_out(micros(at));
    assert_eq!((now(249), now(251)), (TryOut::Later, TryOut::Now { unit: GPU, items: 8 }));
}
