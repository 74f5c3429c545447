//! P-1 to P-4 for every policy behind the splitter, under arbitrary interleavings, failures and retirements.

use super::*;
use crate::base::package::Package;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

/// A policy as badly behaved as the trait allows; it cycles through a list of answers.
#[derive(Debug)]
struct Unruly {
    lengths: Vec<Option<u64>>,
    set_aside: Option<Vec<u64>>,
    calls: usize,
}

impl Policy for Unruly {
    fn next(&mut self, _unit: UnitId, _remaining: u64) -> Option<u64> {
        self.calls += 1;
        self.lengths[self.calls % self.lengths.len()]
    }

    fn set_aside(&mut self, _items: u64, _units: &[UnitId]) -> Option<Vec<u64>> {
        self.set_aside.clone()
    }
}

/// A call to a splitter.
#[derive(Debug, Clone)]
enum Event {
    Ask(usize),
    Complete(Index),
    GiveBack(Index),
    Reopen(Index),
    Retire(usize),
    Spare(usize),
    CallUp,
}

const UNITS: usize = 5;

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..UNITS).prop_map(Event::Ask),
        5 => any::<Index>().prop_map(Event::Complete),
        3 => any::<Index>().prop_map(Event::GiveBack),
        2 => any::<Index>().prop_map(Event::Reopen),
        1 => (0..UNITS).prop_map(Event::Retire),
        1 => (0..UNITS).prop_map(Event::Spare),
        1 => Just(Event::CallUp),
    ]
}

fn power() -> impl Strategy<Value = f64> {
    prop_oneof![0.01..=1.0f64, (-12..=12i32).prop_map(|exponent| 10f64.powi(exponent)), Just(1.0)]
}

fn powers() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(power(), 1..=UNITS)
}

fn local_size() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(64), Just(255), 1..300u64, Just(1 << 40), Just(u64::MAX)]
}

fn modest_work() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), 0..3000u64, (1..20u64).prop_map(|groups| groups * 64)]
}

fn any_work() -> impl Strategy<Value = u64> {
    prop_oneof![2 => modest_work(), 1 => 0..=u64::MAX / 2, 1 => Just(u64::MAX / 2), 1 => Just(u64::MAX)]
}

fn spec() -> impl Strategy<Value = PolicySpec> {
    prop_oneof![
        Just(PolicySpec::Calibrated),
        Just(PolicySpec::Static),
        prop_oneof![1..300u64, Just(1)].prop_map(|packages| PolicySpec::Dynamic { packages }),
        (1.0..4.0f64, prop_oneof![Just(None), (0..500u64).prop_map(Some)])
            .prop_map(|(k, min)| PolicySpec::HGuided { k, min }),
    ]
}

fn unruly() -> impl Strategy<Value = Unruly> {
    let length = prop_oneof![Just(None), Just(Some(0)), Just(Some(u64::MAX)), (0..200u64).prop_map(Some)];
    let share = prop_oneof![Just(0), Just(u64::MAX), 0..2000u64];
    let set_aside = prop::option::of(prop::collection::vec(share, 0..UNITS + 2));
    (prop::collection::vec(length, 1..6), set_aside).prop_map(|(lengths, set_aside)| Unruly {
        lengths,
        set_aside,
        calls: 0,
    })
}

/// Drives a splitter, and independently tracks the state of all item ranges.
struct Witness {
    splitter: Splitter,
    units: usize,
    in_flight: Vec<Package>,
    done: Vec<Package>,
    /// Ranges that are in flight or completed: start to end.
    taken: BTreeMap<u64, u64>,
    completed: u64,
    next_index: u64,
}

impl Witness {
    fn new(splitter: Splitter, units: usize) -> Self {
        let (in_flight, done, taken) = (vec![], vec![], BTreeMap::new());
        let witness = Self { splitter, units, in_flight, done, taken, completed: 0, next_index: 0 };
        witness.check_books();
        witness
    }

    fn check_books(&self) {
        let in_flight: u64 = self.in_flight.iter().map(Package::items).sum();
        assert_eq!(self.splitter.completed(), self.completed);
        assert!(self.splitter.in_flight().eq(self.in_flight.iter()));
        assert_eq!(self.done.iter().map(Package::items).sum::<u64>(), self.completed);
        assert_eq!(self.splitter.unassigned() + in_flight + self.completed, self.splitter.work(), "P-1");
        assert_eq!(self.splitter.is_finished(), self.completed == self.splitter.work());
        assert_eq!(self.splitter.handed_out(), self.next_index);
    }

    fn check_new(&mut self, package: &Package, unit: UnitId) {
        let (work, local_size) = (self.splitter.work(), self.splitter.local_size());
        assert_eq!(package.unit(), unit);
        assert_eq!(package.index(), self.next_index);
        assert!(package.start() < package.end() && package.end() <= work, "{package}: empty or past the end");
        assert_eq!(package.start() % local_size, 0, "P-2: {package}");
        assert!(package.end().is_multiple_of(local_size) || package.end() == work, "P-2: {package}");
        if let Some((start, end)) = self.taken.range(..package.end()).next_back() {
            assert!(*end <= package.start(), "P-1: {package} overlaps {start}..{end}");
        }
        self.next_index += 1;
        self.taken.insert(package.start(), package.end());
        self.in_flight.push(package.clone());
    }

    /// Asks for a unit, and returns whether it got a package.
    fn ask(&mut self, unit: usize) -> bool {
        let unit = UnitId(unit);
        let assignment = self.splitter.assign(unit);
        let stopped = self.splitter.is_finished() || !self.splitter.is_active(unit);
        assert_eq!(assignment == Assignment::NoMore, stopped);
        if let Assignment::Package(package) = &assignment {
            self.check_new(package, unit);
        }
        self.check_books();
        matches!(assignment, Assignment::Package(_))
    }

    fn complete(&mut self, place: usize) {
        let package = self.in_flight.remove(place);
        self.completed += package.items();
        self.splitter.complete(&package).unwrap();
        assert_eq!(self.splitter.is_finished(), self.completed == self.splitter.work());
        assert_eq!(self.splitter.complete(&package).unwrap_err().package, package);
        assert_eq!(self.splitter.give_back(&package).unwrap_err().package, package);
        self.done.push(package);
        self.check_books();
    }

    fn reopen(&mut self, place: usize) {
        let package = self.done.swap_remove(place);
        self.completed -= package.items();
        self.taken.remove(&package.start());
        self.splitter.reopen(&package).unwrap();
        assert_eq!(self.splitter.reopen(&package).unwrap_err().package, package);
        assert_eq!(self.splitter.complete(&package).unwrap_err().package, package);
        for package in &self.in_flight {
            assert!(self.splitter.reopen(package).is_err(), "{package} was not completed");
        }
        self.check_books();
    }

    fn give_back(&mut self, place: usize) {
        let package = self.in_flight.remove(place);
        self.taken.remove(&package.start());
        self.splitter.give_back(&package).unwrap();
        assert_eq!(self.splitter.give_back(&package).unwrap_err().package, package);
        self.check_books();
    }

    fn take_out(&mut self, unit: usize, take: fn(&mut Splitter, UnitId)) {
        let unit = UnitId(unit);
        let (lost, kept) = self.in_flight.drain(..).partition(|package| package.unit() == unit);
        self.in_flight = kept;
        take(&mut self.splitter, unit);
        for package in lost {
            self.taken.remove(&package.start());
            assert!(
                self.splitter.complete(&package).is_err(),
                "{package} was completed after its unit retired"
            );
        }
        let left = (0..self.units).any(|unit| self.splitter.is_active(UnitId(unit)));
        let unfinished = self.splitter.work() - self.completed;
        assert_eq!(self.splitter.stranded(), if left { 0 } else { unfinished });
        self.check_books();
    }

    /// Applies the events; the last unit is never retired.
    fn apply(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Ask(unit) => {
                    self.ask(unit % self.units);
                }
                Event::Complete(which) if !self.in_flight.is_empty() => {
                    self.complete(which.index(self.in_flight.len()));
                }
                Event::GiveBack(which) if !self.in_flight.is_empty() => {
                    self.give_back(which.index(self.in_flight.len()));
                }
                Event::Retire(unit) => {
                    let unit = unit % self.units;
                    if (0..self.units).any(|other| other != unit && self.splitter.is_active(UnitId(other))) {
                        self.take_out(unit, Splitter::retire);
                    }
                }
                Event::Spare(unit) => self.take_out(unit % self.units, Splitter::spare),
                Event::CallUp => _ = self.splitter.call_up_all(),
                Event::Reopen(which) if !self.done.is_empty() => {
                    self.reopen(which.index(self.done.len()));
                }
                Event::Complete(_) | Event::GiveBack(_) | Event::Reopen(_) => {}
            }
        }
    }

    /// Runs all units in turn until the work is finished, then checks that no item is missing.
    fn finish(&mut self) {
        while !self.splitter.is_finished() {
            while !self.in_flight.is_empty() {
                self.complete(0);
            }
            let mut moved = self.splitter.is_finished();
            for unit in 0..self.units {
                moved |= self.ask(unit);
            }
            moved |= self.splitter.call_up_all();
            assert!(moved, "P-3: unfinished with nothing in flight, but every unit was refused");
        }
        let mut end = 0;
        for (start, stop) in &self.taken {
            assert_eq!(*start, end, "P-1: items {end}..{start} were never computed");
            end = *stop;
        }
        assert_eq!(end, self.splitter.work(), "P-1: the end of the work was never computed");
        for unit in 0..self.units + 1 {
            assert_eq!(self.splitter.assign(UnitId(unit)), Assignment::NoMore);
        }
    }
}

/// A policy that records the requests and retirements.
#[derive(Debug, Default)]
struct Noting(std::sync::Arc<dml_core::internal::sync::Mutex<Vec<String>>>);

impl Policy for Noting {
    fn next(&mut self, unit: UnitId, _: u64) -> Option<u64> {
        self.0.lock().push(format!("next {unit}"));
        Some(10)
    }

    fn retire(&mut self, unit: UnitId) {
        self.0.lock().push(format!("retire {unit}"));
    }
}

#[test]
fn a_spare_unit_is_retired_to_the_policy_and_computes_what_others_leave() {
    let policy = Noting::default();
    let noted = policy.0.clone();
    let mut splitter = Splitter::new(Box::new(policy), 2, 100, 1).unwrap();
    splitter.spare(UnitId(0));
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait);
    let done = package(&mut splitter, 1);
    splitter.complete(&done).unwrap();
    let lost = package(&mut splitter, 1);
    splitter.retire(UnitId(1));
    assert_eq!((lost.range(), splitter.stranded()), (10..20, 0), "the spare unit is left");
    assert!(splitter.call_up_all() && !splitter.call_up_all());
    for expected in [10..20, 20..100] {
        let package = package(&mut splitter, 0);
        assert_eq!(package.range(), expected);
        splitter.complete(&package).unwrap();
    }
    splitter.retire(UnitId(0));
    assert!(splitter.is_finished());
    assert_eq!(*noted.lock(), ["retire u0", "next u1", "next u1", "retire u1"]);
}

fn package(splitter: &mut Splitter, unit: usize) -> Package {
    match splitter.assign(UnitId(unit)) {
        Assignment::Package(package) => package,
        other => panic!("unit {unit} got {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn p1_p2_p3_published_policies_compute_every_item_once(
        spec in spec(),
        powers in powers(),
        work in any_work(),
        local_size in local_size(),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut witness = Witness::new(spec.splitter(&powers, work, local_size).unwrap(), powers.len());
        witness.apply(&events);
        witness.finish();
    }

    #[test]
    fn p1_p2_p3_unruly_policies_compute_every_item_once(
        policy in unruly(),
        units in 1..=UNITS,
        work in modest_work(),
        local_size in local_size(),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let splitter = Splitter::new(Box::new(policy), units, work, local_size).unwrap();
        let mut witness = Witness::new(splitter, units);
        witness.apply(&events);
        witness.finish();
    }

    #[test]
    fn a_run_is_a_function_of_its_calls(
        spec in spec(),
        powers in powers(),
        work in modest_work(),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let run = || {
            let mut witness = Witness::new(spec.splitter(&powers, work, 16).unwrap(), powers.len());
            witness.apply(&events);
            witness.finish();
            witness.taken
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn static_shares_do_not_depend_on_who_asks_first(
        powers in powers(),
        work in any_work(),
        local_size in local_size(),
        order in Just((0..UNITS).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let units: Vec<UnitId> = (0..powers.len()).map(UnitId).collect();
        let shares = Static::new(&powers, local_size).unwrap().set_aside(work, &units).unwrap();
        prop_assert_eq!(shares.iter().sum::<u64>(), work);
        let mut splitter = PolicySpec::Static.splitter(&powers, work, local_size).unwrap();
        let mut received = vec![0..0; powers.len()];
        for unit in order.into_iter().filter(|unit| *unit < powers.len()) {
            if let Assignment::Package(package) = splitter.assign(UnitId(unit)) {
                received[unit] = package.range();
            }
        }
        let mut start = 0;
        for (share, range) in shares.into_iter().zip(received) {
            prop_assert_eq!(range.end - range.start, share);
            prop_assert!(share == 0 || range.start == start);
            start += share;
        }
    }

    #[test]
    fn static_shares_are_within_a_local_size_of_the_formula(
        powers in prop::collection::vec(0.01..=1.0f64, 1..=UNITS),
        work in 0..1u64 << 40,
        local_size in 1..300u64,
    ) {
        let units: Vec<UnitId> = (0..powers.len()).map(UnitId).collect();
        let shares = Static::new(&powers, local_size).unwrap().set_aside(work, &units).unwrap();
        let sum: f64 = powers.iter().sum();
        for (share, power) in shares.iter().zip(&powers).take(powers.len() - 1) {
            let ideal = work as f64 * power / sum;
            prop_assert_eq!(share % local_size, 0);
            prop_assert!(*share as f64 <= ideal + 0.01 && *share as f64 > ideal - local_size as f64 - 0.01);
        }
    }

    #[test]
    fn dynamic_makes_exactly_n_equal_packages(
        packages in 1..400u64,
        work in modest_work(),
        local_size in 1..300u64,
        askers in prop::collection::vec(0..UNITS, 1..20),
    ) {
        let spec = PolicySpec::Dynamic { packages };
        let mut witness = Witness::new(spec.splitter(&[1.0; UNITS], work, local_size).unwrap(), UNITS);
        for unit in askers.iter().cycle() {
            if witness.splitter.unassigned() == 0 {
                break;
            }
            prop_assert!(witness.ask(*unit));
        }
        let groups = work.div_ceil(local_size);
        prop_assert_eq!(witness.next_index, packages.min(groups));
        let sizes: Vec<u64> = witness.in_flight.iter().map(|package| package.items().div_ceil(local_size)).collect();
        let spread = sizes.iter().max().unwrap_or(&0) - sizes.iter().min().unwrap_or(&0);
        prop_assert!(spread <= 1, "{:?}", sizes);
        witness.finish();
    }

    #[test]
    fn hguided_packages_of_a_unit_never_grow_and_keep_the_minimum(
        powers in powers(),
        k in 1.0..4.0f64,
        min in 1..500u64,
        work in any_work(),
        local_size in 1..300u64,
        askers in prop::collection::vec(0..UNITS, 1..40),
    ) {
        let spec = PolicySpec::HGuided { k, min: Some(min) };
        let mut witness = Witness::new(spec.splitter(&powers, work, local_size).unwrap(), powers.len());
        let mut last = vec![u64::MAX; powers.len()];
        for unit in askers {
            let unit = unit % powers.len();
            if !witness.ask(unit) {
                break;
            }
            let package = witness.in_flight.last().unwrap();
            prop_assert!(package.items() <= last[unit]);
            prop_assert!(package.items() >= min || package.end() == work);
            last[unit] = package.items();
        }
        witness.finish();
    }
}

#[test]
fn hguided_through_the_splitter_rounds_up_to_work_groups() {
    let mut splitter = PolicySpec::HGuided { k: 2.0, min: None }.splitter(&[1.0, 0.5], 10_000, 64).unwrap();
    assert_eq!(package(&mut splitter, 0).range(), 0..1728); // 10000 / 6 = 1666.7, up to 27 * 64
    assert_eq!(package(&mut splitter, 1).range(), 1728..2432); // 8272 / 12 = 689.3, up to 11 * 64
    assert_eq!(package(&mut splitter, 0).range(), 2432..3712); // 7568 / 6 = 1261.3, up to 20 * 64
}

#[test]
fn p4_work_that_came_back_goes_out_first_and_in_pieces() {
    let mut splitter = PolicySpec::HGuided { k: 2.0, min: None }.splitter(&[1.0, 0.5], 10_000, 64).unwrap();
    let large = package(&mut splitter, 0);
    let small = package(&mut splitter, 1);
    splitter.give_back(&large).unwrap();
    assert_eq!(package(&mut splitter, 1).range(), 0..832); // (10000 - 704) / 12 = 774.7, up to 13 * 64
    assert_eq!(package(&mut splitter, 1).range(), 832..1600); // 8464 / 12 = 705.3, up to 12 * 64
    assert_eq!(package(&mut splitter, 1).range(), 1600..1728); // 7696 / 12 = 641.3, but no more came back
    assert_eq!(package(&mut splitter, 1).range(), 2432..3072); // 7568 / 12 = 630.7, up to 10 * 64
    splitter.complete(&small).unwrap();
    assert!(!splitter.is_finished());
}

#[test]
fn a_static_share_that_came_back_is_shared_by_all() {
    let mut splitter = PolicySpec::Static.splitter(&[1.0, 1.0, 0.5], 1000, 10).unwrap();
    let lost = package(&mut splitter, 0);
    assert_eq!(lost.range(), 0..400);
    assert_eq!(package(&mut splitter, 1).range(), 400..800);
    splitter.retire(UnitId(0));
    assert_eq!(splitter.stranded(), 0);
    assert_eq!(package(&mut splitter, 1).range(), 0..260); // 400 / 1.5 = 266.7
    assert_eq!(package(&mut splitter, 2).range(), 260..400); // before its own share
    assert_eq!(package(&mut splitter, 2).range(), 800..1000);
    assert_eq!(splitter.assign(UnitId(0)), Assignment::NoMore);
    assert_eq!(splitter.assign(UnitId(1)), Assignment::Wait);
    assert!(splitter.complete(&lost).is_err());
}

#[test]
fn a_static_share_of_a_unit_that_never_asked_is_shared_too() {
    let mut splitter = PolicySpec::Static.splitter(&[1.0, 1.0], 1000, 1).unwrap();
    let own = package(&mut splitter, 1);
    splitter.complete(&own).unwrap();
    assert!(!splitter.is_finished());
    assert_eq!(splitter.assign(UnitId(1)), Assignment::Wait);
    splitter.retire(UnitId(0));
    assert_eq!(splitter.stranded(), 0);
    let rest = package(&mut splitter, 1);
    assert_eq!(rest.range(), 0..500);
    splitter.complete(&rest).unwrap();
    assert!(splitter.is_finished());
    splitter.retire(UnitId(1));
    assert_eq!(splitter.stranded(), 0);
}

#[test]
fn p4_what_was_lost_is_computed_again_before_the_rest_and_by_those_left() {
    let mut splitter = PolicySpec::Static.splitter(&[1.0, 1.0, 1.0], 900, 1).unwrap();
    let lost = package(&mut splitter, 0);
    assert_eq!(
        splitter.reopen(&lost).unwrap_err().to_string(),
        "not completed: package 0 of u0 (items 0..300)"
    );
    splitter.complete(&lost).unwrap();
    assert!(!splitter.is_finished());
    splitter.retire(UnitId(0));
    assert_eq!(splitter.stranded(), 0);
    assert_eq!((splitter.completed(), splitter.unassigned()), (300, 600));
    splitter.reopen(&lost).unwrap();
    assert_eq!((splitter.completed(), splitter.unassigned()), (0, 900));
    assert!(splitter.complete(&lost).is_err() && splitter.reopen(&lost).is_err());
    let order = [1, 2, 1, 2].map(|unit| package(&mut splitter, unit).range());
    assert_eq!(order, [0..150, 150..300, 300..600, 600..900]);
}

#[test]
fn p3_a_finished_run_goes_on_where_results_were_lost() {
    let mut splitter = PolicySpec::Dynamic { packages: 2 }.splitter(&[1.0, 1.0], 100, 1).unwrap();
    let [first, second] = [0, 1].map(|unit| package(&mut splitter, unit));
    splitter.complete(&first).unwrap();
    assert!(!splitter.is_finished());
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait);
    splitter.complete(&second).unwrap();
    assert!(splitter.is_finished());
    assert_eq!(splitter.assign(UnitId(0)), Assignment::NoMore);
    splitter.reopen(&first).unwrap();
    assert!(!splitter.is_finished());
    let again = package(&mut splitter, 0);
    assert_eq!((again.range(), again.index()), (0..50, 2));
    splitter.complete(&again).unwrap();
    assert!(splitter.is_finished());
    // Lost again, with no unit left: its items are stranded.
    splitter.retire(UnitId(1));
    assert_eq!(splitter.stranded(), 0);
    splitter.reopen(&again).unwrap();
    splitter.retire(UnitId(0));
    assert_eq!(splitter.stranded(), 50);
}

#[test]
fn without_units_the_work_is_stranded_and_counted() {
    let mut splitter = PolicySpec::Dynamic { packages: 4 }.splitter(&[1.0, 1.0], 1000, 1).unwrap();
    let first = package(&mut splitter, 0);
    splitter.complete(&first).unwrap();
    assert!(!splitter.is_finished());
    let _lost = package(&mut splitter, 1);
    splitter.retire(UnitId(1));
    assert_eq!(splitter.stranded(), 0);
    splitter.retire(UnitId(0));
    assert_eq!(splitter.stranded(), 750);
    splitter.retire(UnitId(7));
    assert_eq!(splitter.stranded(), 750);
    assert_eq!(splitter.unassigned(), 750);
    assert_eq!(splitter.assign(UnitId(0)), Assignment::NoMore);
}

#[test]
fn p3_a_policy_that_refuses_everybody_does_not_strand_the_work() {
    let refusing = || Box::new(Unruly { lengths: vec![None], set_aside: Some(vec![600, 300]), calls: 0 });
    let mut splitter = Splitter::new(refusing(), 2, 1000, 1).unwrap();
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait); // unit 1 has not asked
    assert_eq!(package(&mut splitter, 1).range(), 900..1000);
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait); // unit 1 has a package in flight
    let mut witness = Witness::new(Splitter::new(refusing(), 2, 1000, 1).unwrap(), 2);
    witness.finish();
}

#[test]
fn p3_a_unit_with_work_in_flight_is_asked_again_before_anybody_is_forced() {
    let policy = Unruly { lengths: vec![None, Some(10), None, None], set_aside: None, calls: 0 };
    let mut splitter = Splitter::new(Box::new(policy), 2, 100, 1).unwrap();
    let first = package(&mut splitter, 0);
    assert_eq!(splitter.assign(UnitId(1)), Assignment::Wait);
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait); // it asks for a second package in advance
    splitter.complete(&first).unwrap();
    assert!(!splitter.is_finished());
    // Unit 1 was refused before the package was completed, so it asks again, too.
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait);
    assert_eq!(package(&mut splitter, 1).range(), 10..20);
}

#[test]
fn p3_a_unit_that_is_not_ahead_yet_is_asked_before_another_is_forced() {
    let policy = Unruly { lengths: vec![Some(7), Some(10), None, None, None], set_aside: None, calls: 0 };
    let mut splitter = Splitter::new(Box::new(policy), 2, 100, 1).unwrap();
    let first = package(&mut splitter, 0);
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait); // nothing in advance yet
    assert_eq!(splitter.assign(UnitId(1)), Assignment::Wait);
    splitter.complete(&first).unwrap();
    assert_eq!(splitter.assign(UnitId(1)), Assignment::Wait); // the rest is not forced on it
    assert_eq!(package(&mut splitter, 0).range(), 10..17);
}

/// A policy that records its calls.
#[derive(Debug, Default)]
struct Listener(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Listener {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl Policy for Listener {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        self.note(format!("next {unit} {remaining}"));
        Some(10)
    }

    fn handed(&mut self, package: &Package, now: Duration) {
        self.note(format!("handed {package} at {now:?}"));
    }

    fn ended(&mut self, computed: &Computed) {
        let Computed { unit, items, handed, begun, ended, .. } = computed;
        self.note(format!("ended {unit} {items} {handed:?} {begun:?} {ended:?}"));
    }

    fn computed(&mut self, computed: &Computed) {
        let Computed { unit, items, handed, begun, ended, done } = computed;
        self.note(format!("computed {unit} {items} {handed:?} {begun:?} {ended:?} {done:?}"));
    }

    fn given_back(&mut self, package: &Package) {
        self.note(format!("given back {package}"));
    }

    fn retire(&mut self, unit: UnitId) {
        self.note(format!("retire {unit}"));
    }
}

#[test]
fn a_policy_is_told_what_was_cut_computed_and_given_back() {
    let told = Listener::default();
    let notes = std::sync::Arc::clone(&told.0);
    let mut splitter = Splitter::new(Box::new(told), 2, 100, 16).unwrap();
    let at = Duration::from_millis;
    let Assignment::Package(first) = splitter.assign_at(UnitId(0), at(3)) else { panic!("no package") };
    let ahead = package(&mut splitter, 0);
    let Assignment::Package(other) = splitter.assign_at(UnitId(1), at(2)) else { panic!("no package") };
    splitter.ended(&ahead, Computed::new(&other, at(3), at(4), at(5), at(5))).unwrap();
    splitter.complete_with(&ahead, Computed::new(&other, at(3), at(4), at(5), at(7))).unwrap();
    assert_eq!(
        splitter.ended(&ahead, Computed::new(&ahead, at(3), at(4), at(5), at(5))).unwrap_err().package,
        ahead
    );
    splitter.give_back(&other).unwrap();
    splitter.complete(&first).unwrap();
    assert!(splitter.complete_with(&first, Computed::new(&first, at(3), at(4), at(5), at(9))).is_err());
    splitter.retire(UnitId(1));
    let expected = [
        "next u0 100",
        "handed package 0 of u0 (items 0..16) at 3ms",
        "next u0 84",
        "handed package 1 of u0 (items 16..32) at 3ms",
        "next u1 68",
        "handed package 2 of u1 (items 32..48) at 3ms",
        "ended u0 16 3ms 4ms 5ms",
        "computed u0 16 3ms 4ms 5ms 7ms",
        "given back package 2 of u1 (items 32..48)",
        "computed u0 16 7ms 7ms 7ms 7ms",
        "retire u1",
    ];
    assert_eq!(*notes.lock().unwrap(), expected);
}

/// It stays in flight until its results are in place. Its end advances the splitter's time like any call.
#[test]
fn a_package_that_ended_is_in_flight_until_it_is_done() {
    let told = Listener::default();
    let notes = std::sync::Arc::clone(&told.0);
    let mut splitter = Splitter::new(Box::new(told), 2, 100, 1).unwrap();
    let first = package(&mut splitter, 0);
    let at = Duration::from_millis;
    let ended = Computed::new(&first, at(0), at(0), at(5), at(9));
    splitter.ended(&first, ended.clone()).unwrap();
    assert_eq!((splitter.completed(), splitter.unassigned(), splitter.is_finished()), (0, 90, false));
    assert_eq!(package(&mut splitter, 1).range(), 10..20);
    assert_eq!(notes.lock().unwrap().last().unwrap(), "handed package 1 of u1 (items 10..20) at 5ms");
    splitter.complete(&first).unwrap();
    assert_eq!(splitter.completed(), 10);
    let error = splitter.ended(&first, ended.clone()).unwrap_err();
    assert_eq!(error.package, first, "it is completed");
    let nobodys = Package::new(20..30, UnitId(1), 2);
    assert!(splitter.ended(&nobodys, ended.clone()).is_err(), "no unit has it");
    let others = Package::new(10..20, UnitId(0), 1);
    assert!(splitter.ended(&others, ended).is_err(), "unit 1 has it");
}

#[test]
fn p3_units_that_were_turned_away_are_asked_again_when_work_comes_back() {
    let policy = Unruly { lengths: vec![Some(10), None, Some(20), None], set_aside: None, calls: 0 };
    let mut splitter = Splitter::new(Box::new(policy), 2, 100, 1).unwrap();
    assert_eq!(splitter.assign(UnitId(1)), Assignment::Wait);
    let failed = package(&mut splitter, 0);
    splitter.give_back(&failed).unwrap();
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait); // unit 1 was not asked about this work
    assert_eq!(package(&mut splitter, 1).range(), 0..10);
}

#[test]
fn p4_work_that_came_back_for_all_goes_out_before_what_is_set_aside() {
    let policy = Unruly { lengths: vec![Some(150)], set_aside: Some(vec![100]), calls: 0 };
    let mut splitter = Splitter::new(Box::new(policy), 2, 300, 1).unwrap();
    let failed = package(&mut splitter, 1);
    assert_eq!(failed.range(), 100..250);
    splitter.give_back(&failed).unwrap();
    let order = [0, 0, 0, 0].map(|unit| package(&mut splitter, unit).range());
    assert_eq!(order, [100..200, 200..250, 0..100, 250..300]);
}

#[test]
fn a_package_of_another_run_is_not_taken() {
    let run = || PolicySpec::Dynamic { packages: 2 }.splitter(&[1.0, 1.0], 100, 1).unwrap();
    let (mut ours, mut theirs) = (run(), run());
    let _first = package(&mut ours, 0);
    let foreign = package(&mut theirs, 1);
    let error = ours.complete(&foreign).unwrap_err();
    assert_eq!(error.to_string(), "not in flight: package 0 of u1 (items 0..50)");
    assert_eq!(ours.completed(), 0);
}

#[test]
fn a_splitter_checks_its_facts() {
    let policy = || Box::new(Dynamic::new(1, 10, 1).unwrap());
    assert_eq!(Splitter::new(policy(), 0, 10, 1).unwrap_err(), PolicyError::NoUnits);
    assert_eq!(Splitter::new(policy(), 1, 10, 0).unwrap_err(), PolicyError::ZeroLocalSize);
    let mut nothing = Splitter::new(policy(), 1, 0, 1).unwrap();
    assert!(nothing.is_finished());
    assert_eq!(nothing.assign(UnitId(0)), Assignment::NoMore);
}

/// A lost package does not count among its unit's packages and items.
#[test]
fn a_lost_package_counts_for_nobody() {
    let mut splitter = PolicySpec::Dynamic { packages: 4 }.splitter(&[1.0, 1.0], 400, 1).unwrap();
    let packages = [0, 0, 1].map(|unit| match splitter.assign(UnitId(unit)) {
        Assignment::Package(package) => package,
        other => panic!("{other:?}"),
    });
    packages.iter().for_each(|package| splitter.complete(package).unwrap());
    assert_eq!(splitter.completed_by_unit().collect::<Vec<_>>(), [(2, 200), (1, 100)]);
    splitter.reopen(&packages[1]).unwrap();
    assert_eq!(splitter.completed_by_unit().collect::<Vec<_>>(), [(1, 100), (1, 100)]);
    splitter.reopen(&packages[0]).unwrap();
    assert_eq!(splitter.completed_by_unit().collect::<Vec<_>>(), [(0, 0), (1, 100)]);
}

/// Adjacent packages of a retired unit come back in one piece.
#[test]
fn p4_neighbouring_packages_come_back_as_one() {
    let lengths = [300, 100, 100, 100].map(Some).to_vec();
    let policy = Unruly { lengths, set_aside: None, calls: 0 };
    let mut splitter = Splitter::new(Box::new(policy), 2, 400, 1).unwrap();
    for unit in [0, 0, 1] {
        assert!(matches!(splitter.assign(UnitId(unit)), Assignment::Package(_)));
    }
    splitter.retire(UnitId(0));
    let next = splitter.assign(UnitId(1));
    assert!(matches!(&next, Assignment::Package(package) if package.range() == (0..200)), "{next:?}");
}
