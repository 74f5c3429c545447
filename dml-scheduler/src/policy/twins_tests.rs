//! Tests of the opening by one of several equal units: when it calls the others up, and who gets what then.

use super::*;
use crate::policy::{Assignment, Splitter};
use std::ops::Range;

const FIRST: UnitId = UnitId(0);
const SECOND: UnitId = UnitId(1);
const THIRD: UnitId = UnitId(2);
const NEAR: Freight = Freight { setup: 100e-6, per_item: 1e-12 };
const WORK: u64 = 1000;

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Ten packages of 100 items.
fn twins() -> Twins {
    Twins::new((WORK, 10), FIRST, vec![(SECOND, NEAR)])
}

/// Hands a unit its next package, if it gets one. `left` items are unassigned.
fn handed(policy: &mut Twins, unit: UnitId, left: u64) -> Option<Package> {
    let items = policy.next(unit, left)?.min(left);
    let package = Package::new(WORK - left..WORK - left + items, unit, 0);
    policy.handed(&package, Duration::ZERO);
    Some(package)
}

/// A package that began and was computed at these microseconds.
fn computed(package: &Package, times: Range<u64>) -> Computed {
    let [begun, ended] = [times.start, times.end].map(micros);
    Computed::new(package, begun, begun, ended, ended)
}

#[test]
fn a_run_that_is_over_before_another_could_help_is_the_first_units() {
    let mut policy = twins();
    let mut left = WORK;
    for index in 0..10 {
        assert_eq!(policy.next(SECOND, left), None, "it is not called up");
        let package = handed(&mut policy, FIRST, left).expect("there is work");
        assert_eq!(package.items(), 100);
        left -= 100;
        // What is left takes 135 us at the most. With both it would be (135 + 100) / 2, which is too little less.
        policy.computed(&computed(&package, index * 15..index * 15 + 15));
        assert_eq!(policy.call_up(), []);
    }
}

#[test]
fn where_the_rest_is_long_the_twin_is_called_up_and_both_get_equal_packages() {
    let mut policy = twins();
    let package = handed(&mut policy, FIRST, 1000).unwrap();
    assert!(handed(&mut policy, FIRST, 900).is_some(), "one ahead");
    assert_eq!(handed(&mut policy, FIRST, 800), None, "and no further one, that others could compute");
    policy.ended(&computed(&package, 0..1000));
    assert_eq!(policy.call_up(), [SECOND]);
    assert_eq!(policy.call_up(), [], "once");
    let short = handed(&mut policy, SECOND, 800).unwrap();
    assert_eq!(short.items(), 63, "a sixteenth");
    assert_eq!(handed(&mut policy, SECOND, 737), None, "nobody knows how fast it is");
    assert_eq!(handed(&mut policy, FIRST, 737).map(|package| package.items()), Some(100));
    // The results of the first package arrive. Everybody knew that it was computed.
    policy.computed(&computed(&package, 0..1000));
    assert_eq!(handed(&mut policy, FIRST, 637), None);
    policy.computed(&computed(&short, 1000..1063));
    assert_eq!(handed(&mut policy, SECOND, 637).map(|package| package.items()), Some(100));
    assert_eq!(handed(&mut policy, SECOND, 537).map(|package| package.items()), Some(100));
    assert_eq!(handed(&mut policy, SECOND, 437), None);
}

/// Until it is known how fast a unit is, the next package is kept for it. But nobody waits for that.
#[test]
fn a_package_is_kept_for_who_has_a_short_one() {
    let mut policy = twins();
    let package = handed(&mut policy, FIRST, 1000).unwrap();
    let second = handed(&mut policy, FIRST, 900).unwrap();
    policy.computed(&computed(&package, 0..1000));
    assert_eq!(policy.call_up(), [SECOND]);
    handed(&mut policy, SECOND, 163).unwrap();
    assert_eq!(handed(&mut policy, FIRST, 100), None);
    policy.computed(&computed(&second, 1000..2000));
    assert!(handed(&mut policy, FIRST, 100).is_some(), "it has nothing else to do");
}

/// Whoever has nothing to do gets what is left, before another one has two packages.
#[test]
fn the_last_package_is_for_who_has_none() {
    let mut policy = twins();
    let package = handed(&mut policy, FIRST, 1000).unwrap();
    handed(&mut policy, FIRST, 900).unwrap();
    policy.computed(&computed(&package, 0..1000));
    assert_eq!(policy.call_up(), [SECOND]);
    assert_eq!(handed(&mut policy, FIRST, 100), None, "the second unit has none");
    assert!(handed(&mut policy, SECOND, 100).is_some());
    policy.given_back(&Package::new(900..1000, SECOND, 0));
    assert!(handed(&mut policy, FIRST, 101).is_some(), "there is one for each");
}

#[test]
fn the_rate_is_that_of_all_packages_so_far() {
    let mut policy = twins();
    let first = handed(&mut policy, FIRST, 1000).unwrap();
    let second = handed(&mut policy, FIRST, 900).unwrap();
    policy.computed(&computed(&first, 0..10));
    assert_eq!(policy.call_up(), [], "the rest would take 80 us");
    // It began when the one before had ended. 200 items took 1010 us, so 800 take 4.
    policy.computed(&computed(&second, 5..1010));
    assert_eq!(policy.call_up(), [SECOND]);
}

/// A package that was launched while the one before was computed has waited for it.
#[test]
fn the_time_of_two_packages_is_counted_once() {
    let mut policy = twins();
    let first = handed(&mut policy, FIRST, 1000).unwrap();
    let second = handed(&mut policy, FIRST, 900).unwrap();
    policy.computed(&computed(&first, 0..17));
    handed(&mut policy, FIRST, 800).unwrap();
    policy.computed(&computed(&second, 0..34));
    assert_eq!(policy.call_up(), [], "700 items take 119 us, and not 178");
}

/// What is computed is not under way any more. When it comes back that changes nothing.
#[test]
fn a_package_that_comes_back_after_its_end_makes_no_room() {
    let mut policy = twins();
    let first = handed(&mut policy, FIRST, 1000).unwrap();
    handed(&mut policy, FIRST, 900).unwrap();
    policy.ended(&computed(&first, 0..1));
    handed(&mut policy, FIRST, 800).unwrap();
    policy.given_back(&first);
    assert_eq!(handed(&mut policy, FIRST, 800), None, "two are under way");
}

#[test]
fn a_unit_that_would_be_late_leaves_the_rest_to_the_others() {
    let mut policy = Twins::new((WORK, 10), FIRST, vec![(SECOND, NEAR)]).at_once();
    let packages = [FIRST, SECOND].map(|unit| handed(&mut policy, unit, 1000).unwrap());
    policy.computed(&computed(&packages[0], 0..100));
    policy.computed(&computed(&packages[1], 0..1000));
    // A hundred items take the second one 1 ms, and both 0.2 if the first one has most of them.
    assert_eq!(policy.next(SECOND, 200), None);
    assert_eq!(policy.next(SECOND, 1100), Some(100), "here they take both a millisecond");
    assert_eq!(policy.next(FIRST, 100), Some(100), "the fastest never comes too late");
    // It is not by much that it has to be slower.
    let mut policy = Twins::new((WORK, 10), FIRST, vec![(SECOND, NEAR)]).at_once();
    let packages = [FIRST, SECOND].map(|unit| handed(&mut policy, unit, 1000).unwrap());
    policy.computed(&computed(&packages[0], 0..100));
    policy.computed(&computed(&packages[1], 0..110));
    handed(&mut policy, FIRST, 200).unwrap();
    assert_eq!(policy.next(SECOND, 100), Some(100));
}

/// Two units that are known, and the items that nobody was handed yet. There are 40 packages of 25 items.
struct Both {
    policy: Twins,
    left: u64,
}

impl Both {
    fn new() -> Self {
        Self { policy: Twins::new((WORK, 40), FIRST, vec![(SECOND, NEAR)]).at_once(), left: WORK }
    }

    /// Hands a unit its next package, if it gets one.
    fn hands(&mut self, unit: UnitId) -> Option<Package> {
        let package = handed(&mut self.policy, unit, self.left)?;
        self.left -= package.items();
        Some(package)
    }

    /// A unit gets a package and has computed it, and its results travel.
    fn departs(&mut self, unit: UnitId, times: Range<u64>) -> Package {
        let package = self.hands(unit).expect("it gets one");
        self.policy.ended(&computed(&package, times));
        package
    }

    fn departs_twice(&mut self, unit: UnitId, times: Range<u64>) {
        self.departs(unit, times.clone());
        self.departs(unit, times);
    }

    /// The results of a package that was computed at these microseconds are home at this one.
    fn arrives(&mut self, package: &Package, times: Range<u64>, home: u64) {
        let computed = computed(package, times);
        self.policy.computed(&Computed { done: micros(home), ..computed });
    }

    /// Each unit has computed a package in so many microseconds, and its results have travelled for that many.
    fn known(computing: u64, [first, second]: [u64; 2]) -> Self {
        let mut both = Self::new();
        for (unit, travelling) in [(FIRST, first), (SECOND, second)] {
            let package = both.departs(unit, 0..computing);
            both.arrives(&package, 0..computing, computing + travelling);
        }
        both
    }

    /// Whether a unit gets a package while so many are left.
    fn gets(&mut self, unit: UnitId, left: u64) -> bool {
        self.policy.next(unit, left * 25).is_some()
    }
}

#[test]
fn whose_results_queue_up_leaves_the_last_packages_to_the_others() {
    let mut both = Both::new();
    both.departs(FIRST, 0..10);
    assert!(both.gets(FIRST, 2), "its results travel while the next package computes");
    let second = both.departs(FIRST, 10..20);
    // With a third one it would have three to bring, of five and of six that are not home.
    assert!(!both.gets(FIRST, 3) && both.gets(SECOND, 3));
    assert!(both.gets(FIRST, 4), "the other one can have as many");
    let other = both.departs(SECOND, 0..10);
    assert!(both.gets(FIRST, 3));
    // What came back is not on its way.
    both.policy.given_back(&other);
    assert!(!both.gets(FIRST, 3));
    both.policy.given_back(&second);
    assert!(both.gets(FIRST, 3));
}

/// What is under way is to be brought as well.
#[test]
fn packages_that_are_not_computed_count_as_not_home() {
    let mut both = Both::new();
    both.departs_twice(FIRST, 0..10);
    both.hands(FIRST).unwrap();
    assert!(!both.gets(FIRST, 4) && both.gets(FIRST, 5), "four of seven, and of eight");
    both.hands(SECOND).unwrap();
    assert!(both.gets(FIRST, 4));
}

#[test]
fn a_unit_on_a_slower_link_leaves_more_packages_to_the_others() {
    let mut both = Both::known(10, [100, 400]);
    for unit in [FIRST, SECOND] {
        both.departs_twice(unit, 10..20);
    }
    // Both links bring a package in 80 us: fourteen in 1120 us, and thirteen in 1040. A tenth more does not count.
    assert!(both.gets(SECOND, 10), "1200 us for three");
    assert!(!both.gets(SECOND, 9));
    assert!(both.gets(FIRST, 1), "300 us for three");
    // Somebody has to be there who takes it.
    both.policy.retire(FIRST);
    assert!(both.gets(SECOND, 9));
}

/// Nobody knows how slow a link is before results are home.
#[test]
fn until_results_are_home_few_of_a_units_packages_may_travel() {
    let mut both = Both::new();
    let packages: Vec<_> =
        [FIRST, SECOND].repeat(5).into_iter().map(|unit| both.departs(unit, 0..1)).collect();
    assert!(!both.gets(FIRST, 30) && !both.gets(SECOND, 30), "five of twenty");
    both.arrives(&packages[0], 0..1, 100);
    assert!(both.gets(FIRST, 30) && !both.gets(SECOND, 30));
    // Where each has few, three.
    both.policy = Twins::new((WORK, 8), FIRST, vec![(SECOND, NEAR)]).at_once();
    both.left = WORK;
    both.departs_twice(FIRST, 0..1);
    both.departs(SECOND, 0..1);
    assert!(both.gets(FIRST, 25));
    both.departs(FIRST, 0..1);
    assert!(!both.gets(FIRST, 20));
    // Nor does it wait for others that are gone.
    both.policy.retire(SECOND);
    assert!(both.gets(FIRST, 20));
}

/// The time in which several travel beside each other counts once.
#[test]
fn a_link_is_as_fast_as_all_its_packages_together() {
    let mut both = Both::new();
    let packages = [0..10, 10..20].map(|times| both.departs(FIRST, times));
    both.arrives(&packages[0], 0..10, 110);
    both.arrives(&packages[1], 10..20, 120);
    let per_item = both.policy.travelling.per_item(FIRST).unwrap();
    assert!((per_item - 110e-6 / 50.0).abs() < 1e-12, "{per_item}");
    assert_eq!(both.policy.travelling.per_item(SECOND), None);
}

#[test]
fn nothing_is_kept_for_who_is_lost() {
    let mut policy = twins();
    let package = handed(&mut policy, FIRST, 1000).unwrap();
    handed(&mut policy, FIRST, 900).unwrap();
    policy.computed(&computed(&package, 0..1000));
    assert_eq!(policy.call_up(), [SECOND]);
    policy.retire(SECOND);
    assert!(handed(&mut policy, FIRST, 100).is_some());
}

/// A device that has to move so much that the run is as long with it gets nothing. Nor is one device faster than its data moves.
#[test]
fn who_could_not_help_stays_out_while_others_join() {
    let far = Freight { setup: 1.0, per_item: 1e-12 };
    let mut policy = Twins::new((WORK, 10), FIRST, vec![(SECOND, far), (THIRD, NEAR)]);
    let package = handed(&mut policy, FIRST, 1000).unwrap();
    policy.computed(&computed(&package, 0..1000));
    assert_eq!(policy.call_up(), [THIRD]);
    assert_eq!(policy.next(SECOND, 900), None);
    // 900 items of 1 us move in 900 us, though they are computed in 9: two move half of them each.
    let mut policy = Twins::new((WORK, 10), FIRST, vec![(SECOND, Freight { setup: 100e-6, per_item: 1e-6 })]);
    let package = handed(&mut policy, FIRST, 1000).unwrap();
    policy.computed(&computed(&package, 0..1));
    assert_eq!(policy.call_up(), [SECOND]);
}

#[test]
fn where_the_first_unit_is_lost_the_others_compute() {
    let mut policy = twins();
    handed(&mut policy, FIRST, 1000).unwrap();
    policy.retire(FIRST);
    assert_eq!(policy.call_up(), [SECOND]);
    assert!(policy.next(SECOND, 1000).is_some());
    let mut policy = twins();
    policy.retire(SECOND);
    let package = handed(&mut policy, FIRST, 1000).unwrap();
    policy.computed(&computed(&package, 0..1000));
    assert_eq!(policy.call_up(), [], "it is gone");
}

#[test]
fn nobody_is_called_up_for_nothing() {
    let mut policy = Twins::new((WORK, 1), FIRST, vec![(SECOND, NEAR)]);
    let package = handed(&mut policy, FIRST, 1000).unwrap();
    policy.retire(FIRST);
    assert_eq!(policy.call_up(), []);
    policy.given_back(&package);
    assert_eq!(policy.call_up(), [SECOND], "its work came back");
}

#[test]
fn where_all_is_known_all_begin_and_nobody_is_called_up() {
    let mut policy = Twins::new((WORK, 10), FIRST, vec![(SECOND, NEAR), (THIRD, NEAR)]).at_once();
    let units = [THIRD, FIRST, THIRD, SECOND, SECOND];
    for (unit, left) in units.into_iter().zip((0..).map(|given| WORK - given * 100)) {
        assert_eq!(handed(&mut policy, unit, left).map(|package| package.items()), Some(100));
    }
    assert_eq!(handed(&mut policy, THIRD, 500), None, "two at the most");
    assert_eq!(policy.call_up(), []);
    policy.retire(FIRST);
    assert_eq!(policy.call_up(), [], "they are there");
}

/// Packages that took no time, and those of which nobody measured it, keep nobody from getting the next one.
#[test]
fn clocks_that_stand_still_hold_nobody_up() {
    let mut splitter = Splitter::new(Box::new(twins()), 2, WORK, 1).unwrap();
    splitter.bench(SECOND);
    let mut packages = Vec::new();
    for _ in 0..10 {
        let Assignment::Package(package) = splitter.assign(FIRST) else { panic!("it gets one") };
        splitter.complete(&package).unwrap();
        packages.push(package);
    }
    assert!(splitter.is_finished());
    assert_eq!(packages.len(), 10, "{packages:?}");
}
