//! Exploration of units with unknown speed, step by step.

use super::*;
use crate::policy::{Assignment, Splitter};

const FIRST: UnitId = UnitId(0);
const OTHER: UnitId = UnitId(1);
const WORK: u64 = 1_000_000;

fn explorer(setup: f64, per_item: f64) -> Explorer {
    Explorer {
        unit: OTHER,
        setup,
        per_item,
        fills: 0,
        turns_with: Vec::new(),
        is_for_later: false,
        twin: None,
    }
}

/// A manually driven run of two units.
struct Run {
    splitter: Splitter,
    now: Duration,
    /// The time per item of each unit, in nanoseconds.
    item_ns: [f64; 2],
    /// The fixed time of a package.
    launch: Duration,
    packages: Vec<(UnitId, u64)>,
}

impl Run {
    fn new(item_ns: [f64; 2], begins: Begins, explorer: Explorer) -> Self {
        Self::known(item_ns, begins, explorer, [None, None])
    }

    fn known(
        item_ns: [f64; 2],
        begins: Begins,
        explorer: Explorer,
        priors: [Option<super::super::Prior>; 2],
    ) -> Self {
        let inner = Calibrated::new(WORK, 1, &priors).unwrap();
        let opening = Exploring::new(inner, (WORK, 1), begins, vec![explorer]);
        let mut splitter = Splitter::new(Box::new(opening), 2, WORK, 1).unwrap();
        splitter.bench(OTHER);
        Self {
            splitter,
            now: Duration::ZERO,
            item_ns,
            launch: Duration::from_micros(5),
            packages: Vec::new(),
        }
    }

    fn ask(&mut self, unit: UnitId) -> Option<Package> {
        match self.splitter.assign_at(unit, self.now) {
            Assignment::Package(package) => Some(package),
            _ => None,
        }
    }

    /// Completes a package that its unit was handed at `handed`. Returns the units that are called up.
    fn done(&mut self, package: &Package, handed: Duration) -> Vec<UnitId> {
        let unit = package.unit();
        let seconds = package.items() as f64 * self.item_ns[unit.0] * 1e-9;
        let ended = handed + self.launch + Duration::from_secs_f64(seconds);
        self.now = self.now.max(ended);
        self.packages.push((unit, package.items()));
        self.splitter.complete_with(package, Computed::new(package, handed, handed, ended, ended)).unwrap();
        self.splitter.called_up(self.now)
    }

    /// Computes the next package of a unit alone. Returns the units that are called up.
    fn turn(&mut self, unit: UnitId) -> Vec<UnitId> {
        let package = self.ask(unit).expect("the unit gets work");
        let handed = self.now;
        self.done(&package, handed)
    }
}

fn sampled(fills: Option<u64>) -> Begins {
    Begins::Sampled(First { unit: FIRST, fills })
}

/// A million items of 0.01 ns are done before another unit could begin.
#[test]
fn a_short_run_is_the_first_units_alone() {
    let mut run = Run::new([0.01, 0.01], sampled(Some(1)), explorer(150e-6, 0.0));
    while !run.splitter.is_finished() {
        assert_eq!(run.turn(FIRST), [], "{:?}", run.packages);
    }
    assert!(run.packages.len() <= 8, "{:?}", run.packages);
}

/// Samples grow until one takes long enough to measure a rate. The run takes 10 ms, more than the setup of
/// the explorer.
#[test]
fn a_long_run_calls_the_others_up_after_a_sample_that_is_no_launch() {
    let mut run = Run::new([10.0, 10.0], sampled(Some(1)), explorer(150e-6, 0.0));
    while run.turn(FIRST).is_empty() {
        assert!(run.now < Duration::from_millis(1), "{:?}", run.packages);
    }
    let (_, last) = run.packages[run.packages.len() - 1];
    assert!(last as f64 * 10e-9 + 5e-6 >= LAUNCH_SECONDS, "{:?}", run.packages);
    assert!(run.packages.is_sorted_by_key(|(_, items)| *items), "{:?}", run.packages);
}

/// The first sample, a work-group, may have run on one of many threads. A unit is called up if it could help
/// at the lower bound of the rest. If it could help only at the upper bound, another sample follows.
#[test]
fn a_sample_may_be_a_single_threads() {
    for (item_ns, calls) in [(15_200.0, true), (15_020.0, false)] {
        let mut run = Run::new([item_ns, 1.0], sampled(Some(10_000)), explorer(300e-6, 0.0));
        assert_eq!(!run.turn(FIRST).is_empty(), calls, "{item_ns}: {:?}", run.packages);
        assert_eq!(run.packages, [(FIRST, 1)]);
    }
}

/// A sample in flight gives a lower bound of the time for the rest.
#[test]
fn others_are_called_up_while_a_long_sample_is_under_way() {
    let mut run = Run::new([1e6, 1.0], sampled(Some(16)), explorer(150e-6, 0.0));
    _ = run.ask(FIRST).unwrap();
    run.now = Duration::from_micros(19);
    assert_eq!(run.splitter.called_up(run.now), [], "the time so far may be the launch");
    run.now = Duration::from_micros(50);
    assert_eq!(run.splitter.called_up(run.now), [OTHER]);
    assert!(run.ask(OTHER).is_some());
}

/// A sample that came back is not running, so its age gives no lower bound.
#[test]
fn a_sample_that_came_back_tells_nothing() {
    let mut run = Run::new([1e6, 1.0], sampled(Some(16)), explorer(150e-6, 0.0));
    let sample = run.ask(FIRST).unwrap();
    run.splitter.give_back(&sample).unwrap();
    assert_eq!(run.splitter.called_up(Duration::from_millis(10)), []);
}

/// No package begins that would end long after an explorer could have completed the rest.
#[test]
fn others_begin_as_little_as_they_can_while_an_explorer_may_do_it_sooner() {
    let gpu = Explorer { fills: 1000, ..explorer(150e-6, 0.0) };
    let mut run = Run::new([1e6, 1.0], sampled(Some(16)), gpu);
    let sample = run.ask(FIRST).unwrap();
    assert_eq!(run.splitter.called_up(Duration::from_micros(50)), [OTHER]);
    assert!(run.ask(OTHER).is_some());
    assert_eq!(run.done(&sample, Duration::ZERO), []);
    (0..5).for_each(|_| _ = run.turn(FIRST));
    assert!(run.now > Duration::from_millis(5), "an item takes 1 ms");
    assert_eq!(run.ask(FIRST).map(|package| package.items()), Some(1), "{:?}", run.packages);
}

/// Moving its data takes longer than the first unit computes.
#[test]
fn a_unit_whose_data_moves_too_slowly_is_not_called_up() {
    let mut run = Run::new([10.0, 10.0], sampled(Some(1)), explorer(150e-6, 500e-9));
    while !run.splitter.is_finished() {
        assert_eq!(run.turn(FIRST), [], "{:?}", run.packages);
    }
}

/// The explorer's first package would take the others as long as the run so far, and is at most a fraction of
/// the rest.
#[test]
fn an_explorer_begins_with_a_package_that_holds_nobody_up() {
    let mut run = Run::new([10.0, 1000.0], sampled(Some(1)), explorer(150e-6, 0.0));
    while run.turn(FIRST).is_empty() {}
    let so_far = run.now.as_secs_f64();
    let left = run.splitter.unassigned();
    let package = run.ask(OTHER).unwrap();
    assert!(package.items() <= left / CAUTION, "{package}");
    assert!(package.items() as f64 * 10e-9 <= so_far * 1.5, "{package} after {so_far}");
    assert_eq!(run.ask(OTHER), None, "one package at a time until it is measured");
    // The packages of the first unit are limited, too.
    let of_first = run.ask(FIRST).unwrap();
    assert!(of_first.items() as f64 * 10e-9 <= so_far * 1.5, "{of_first} after {so_far}");
}

#[test]
fn a_gpu_begins_with_as_many_items_as_it_computes_side_by_side() {
    let gpu = Explorer { fills: 200_000, ..explorer(150e-6, 0.0) };
    let mut run = Run::new([10.0, 1.0], sampled(Some(1)), gpu.clone());
    while run.turn(FIRST).is_empty() {}
    assert_eq!(run.ask(OTHER).unwrap().items(), 200_000);
    // A larger device gets all remaining items.
    let mut run = Run::new([10.0, 1.0], sampled(Some(1)), Explorer { fills: u64::MAX, ..gpu });
    while run.turn(FIRST).is_empty() {}
    let left = run.splitter.unassigned();
    assert_eq!(run.ask(OTHER).unwrap().items(), left);
}

/// Known units give the time for the rest, so an explorer begins with the run.
#[test]
fn beside_known_units_an_explorer_begins_at_once() {
    let prior = super::super::Prior::measured(1e8, Duration::ZERO);
    let mut run = Run::known([10.0, 10.0], Begins::Known(10e-3), explorer(150e-6, 0.0), [Some(prior), None]);
    assert_eq!(run.splitter.called_up(run.now), [OTHER]);
    let package = run.ask(OTHER).unwrap();
    assert!(package.items() as f64 * 10e-9 <= CALLING_SECONDS * 1.5, "{package}");
    let mut run = Run::known([10.0, 10.0], Begins::Known(100e-6), explorer(150e-6, 0.0), [Some(prior), None]);
    assert_eq!(run.splitter.called_up(run.now), [], "the others are done before its setup ends");
    assert_eq!(run.ask(FIRST).unwrap().items(), WORK);
}

/// The cores serve one unit at a time: the explorer computes a short package, then a longer one, while the
/// first pauses.
#[test]
fn an_explorer_on_the_same_cores_takes_turns_and_the_faster_one_goes_on() {
    for (item_ns, faster) in [([100.0, 30.0], OTHER), ([100.0, 200.0], FIRST)] {
        let turns = Explorer { turns_with: vec![FIRST], ..explorer(150e-6, 0.0) };
        let mut run = Run::new(item_ns, sampled(Some(1)), turns);
        while run.turn(FIRST).is_empty() {}
        // It waits for its turn while the first unit computes.
        let of_first = run.ask(FIRST).unwrap();
        assert_eq!(run.ask(OTHER), None);
        let handed = run.now;
        _ = run.done(&of_first, handed);
        for _ in 0..MEASURED {
            assert_eq!(run.ask(FIRST), None, "it pauses");
            _ = run.turn(OTHER);
        }
        let rest = run.ask(faster).unwrap_or_else(|| panic!("{faster} got no work: {:?}", run.packages));
        let handed = run.now;
        _ = run.done(&rest, handed);
        let slower = if faster == FIRST { OTHER } else { FIRST };
        assert_eq!(run.ask(slower), None);
        let tried: u64 =
            run.packages.iter().filter(|(unit, _)| *unit == OTHER).map(|(_, items)| items).take(2).sum();
        assert!(tried < WORK / 4, "{:?}", run.packages);
    }
}

/// A first package that wakes threads does not count in a comparison of units on the same cores.
#[test]
fn nobody_is_compared_by_a_cold_start() {
    let turns = Explorer { turns_with: vec![FIRST], ..explorer(150e-6, 0.0) };
    let mut run = Run::new([7.0, 64.0], sampled(Some(2)), turns);
    run.launch = Duration::from_micros(130);
    assert_eq!(run.turn(FIRST), []);
    run.launch = Duration::from_micros(2);
    while run.turn(FIRST).is_empty() {}
    assert!(run.packages[run.packages.len() - 1].1 > 1000, "{:?}", run.packages);
}

#[test]
fn a_unit_that_does_next_to_nothing_is_left_out() {
    let mut run = Run::new([10.0, 500.0], sampled(Some(1)), explorer(150e-6, 0.0));
    while run.turn(FIRST).is_empty() {}
    for _ in 0..MEASURED {
        _ = run.turn(FIRST);
        if let Some(package) = run.ask(OTHER) {
            let handed = run.now;
            _ = run.done(&package, handed);
        }
    }
    assert_eq!(run.ask(OTHER), None, "{:?}", run.packages);
}

/// The other units must compute the rest.
#[test]
fn if_the_first_unit_retires_all_others_are_called_up() {
    let mut run = Run::new([10.0, 10.0], sampled(Some(1)), explorer(1.0, 1.0));
    let _ = run.ask(FIRST).unwrap();
    run.splitter.retire(FIRST);
    assert_eq!(run.splitter.called_up(run.now), [OTHER]);
    while !run.splitter.is_finished() {
        _ = run.turn(OTHER);
    }
}

/// A measured twin makes a sample of the unit unnecessary.
#[test]
fn a_twin_that_is_measured_tells_how_fast_a_unit_is() {
    let next = |twin: Option<UnitId>| {
        let of = |unit: usize, twin| Explorer { unit: UnitId(unit), twin, ..explorer(150e-6, 0.0) };
        let inner = Calibrated::new(WORK, 1, &[None, None, None]).unwrap();
        let explorers = vec![of(1, None), of(2, twin)];
        let mut opening = Exploring::new(inner, (WORK, 1), sampled(Some(1)), explorers);
        opening.call_those_that_help(1.0);
        opening.units[1].arrived = 1;
        opening.next(UnitId(2), WORK)
    };
    assert_eq!(next(None), Some(1), "a sample");
    assert!(next(Some(OTHER)).is_some_and(|length| length > 1000));
}
