//! Whole runs of two units on the same cores, by a clock of the test's own, and the turns package by package.

use super::*;
use crate::policy::{Calibrated, TryOut};
use crate::{Assignment, Package, Splitter};

const HOST: UnitId = UnitId(0);
const RIVAL: UnitId = UnitId(1);
const OTHER: UnitId = UnitId(2);
const NEAR: Freight = Freight { setup: 150e-6, per_item: 0.0 };

/// The cores, and what an item takes each unit on them, in nanoseconds.
struct Cores {
    items: u64,
    /// What an item takes, by its number.
    host: fn(u64) -> u64,
    rival: fn(u64) -> u64,
    /// What a launch of the rival takes.
    launch: u64,
    /// Whether a trial ends, and how.
    trial: Trial,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trial {
    Ends,
    Fails,
    Never,
}

/// What happened.
#[derive(Debug)]
struct Told {
    /// The packages, as they were handed out.
    packages: Vec<Package>,
    /// The items that were tried out.
    tried: Option<std::ops::Range<u64>>,
    nanos: u64,
    /// Whether two units computed packages at once.
    at_once: bool,
}

impl Told {
    fn items_of(&self, unit: UnitId) -> u64 {
        self.packages.iter().filter(|package| package.unit() == unit).map(Package::items).sum()
    }
}

impl Cores {
    fn of(&self, unit: UnitId, items: std::ops::Range<u64>) -> u64 {
        match unit {
            HOST => 5_000 + items.map(self.host).sum::<u64>(),
            _ => self.launch + items.map(self.rival).sum::<u64>(),
        }
    }

    fn run(&self) -> Told {
        let at = Duration::from_nanos;
        let inner = Calibrated::new(self.items, 1, &[None, None]).unwrap();
        let policy = Opening::new(inner, self.items, HOST, Vec::new()).rival(Some((RIVAL, NEAR)));
        let mut splitter = Splitter::new(Box::new(policy), 2, self.items, 1).unwrap();
        splitter.bench(RIVAL);
        let mut told = Told { packages: Vec::new(), tried: None, nanos: 0, at_once: false };
        let (mut now, mut is_called) = (0, false);
        let mut busy: [Option<(Package, u64, u64)>; 2] = [None, None];
        let mut trial: Option<(std::ops::Range<u64>, u64, u64)> = None;
        while !splitter.is_finished() {
            for unit in [HOST, RIVAL] {
                if busy[unit.0].is_none()
                    && (unit == HOST || is_called)
                    && let Assignment::Package(package) = splitter.assign_at(unit, at(now))
                {
                    let end = now + self.of(unit, package.range());
                    told.packages.push(package.clone());
                    busy[unit.0] = Some((package, now, end));
                }
            }
            told.at_once |= busy.iter().all(Option::is_some);
            let ends = busy.iter().flatten().map(|(_, _, end)| *end);
            let next = ends.chain(trial.iter().map(|(_, _, end)| *end)).min().expect("somebody computes");
            now = next;
            if let Some((items, begun, _)) = trial.take_if(|(_, _, end)| *end == next) {
                let times = (self.trial == Trial::Ends).then_some([at(begun), at(begun), at(next)]);
                if let Some(package) = splitter.tried(RIVAL, items, times) {
                    let computed = Computed::new(&package, at(begun), at(begun), at(next), at(next));
                    told.packages.push(package.clone());
                    splitter.complete_with(&package, computed).unwrap();
                }
            }
            for slot in &mut busy {
                if let Some((package, begun, end)) = slot.take_if(|(_, _, end)| *end == next) {
                    let computed = Computed::new(&package, at(begun), at(begun), at(end), at(end));
                    splitter.complete_with(&package, computed).unwrap();
                }
            }
            is_called |= splitter.called_up().contains(&RIVAL);
            if let (None, Some(Ok((unit, items)))) = (&told.tried, splitter.try_out(at(now))) {
                assert_eq!(unit, RIVAL);
                let end = match self.trial {
                    Trial::Never => u64::MAX,
                    _ => now + self.of(RIVAL, items.clone()),
                };
                (told.tried, trial) = (Some(items.clone()), Some((items, now, end)));
            }
        }
        told.nanos = now;
        told
    }
}

const EQUAL: Cores =
    Cores { items: 1 << 20, host: |_| 100, rival: |_| 100, launch: 100_000, trial: Trial::Ends };

#[test]
fn the_faster_rival_computes_what_is_left() {
    let cores = Cores { rival: |_| 25, ..EQUAL };
    let told = cores.run();
    assert!(!told.at_once);
    let part = told.items_of(HOST) as f64 / cores.items as f64;
    assert!(part < 0.1, "{part} of the items were the host's");
    // A quarter of 105 ms, and what it took to find out.
    assert!(told.nanos < 35_000_000, "{} ns", told.nanos);
}

#[test]
fn a_rival_that_is_no_faster_costs_little() {
    let alone = EQUAL.of(HOST, 0..EQUAL.items) as f64;
    for (name, rival, most) in [
        ("equal", (|_| 100) as fn(u64) -> u64, 1.01),
        ("a little faster", |_| 95, 1.01),
        ("half as fast", |_| 200, 1.05),
        ("a tenth as fast", |_| 1000, 1.02),
    ] {
        let told = Cores { rival, ..EQUAL }.run();
        let ratio = told.nanos as f64 / alone;
        assert!(ratio < most, "{name}: {ratio}");
        assert!(told.items_of(HOST) > EQUAL.items * 9 / 10, "{name}: {told:?}");
        assert!(!told.at_once && told.tried.is_some(), "{name}");
    }
}

/// A rival that compiles its kernel for seconds, or hangs, and one that cannot compute it.
#[test]
fn nobody_waits_for_a_trial() {
    let alone = EQUAL.of(HOST, 0..EQUAL.items) as f64;
    for (trial, launch) in [
        (Trial::Never, 100_000),
        (Trial::Fails, 100_000),
        (Trial::Ends, 50_000_000),
        (Trial::Ends, 10_u64.pow(10)),
    ] {
        let told = Cores { trial, launch, rival: |_| 25, ..EQUAL }.run();
        let ratio = told.nanos as f64 / alone;
        assert!(told.tried.is_some() && ratio < 1.02, "{ratio} with a launch of {launch} ns");
    }
}

/// The last items may be cheaper than the first ones, and the trial is of the last ones.
#[test]
fn who_was_fast_with_other_items_is_compared_with_the_same_ones() {
    let half = EQUAL.items / 2;
    assert_eq!(half, 1 << 19);
    let told = Cores {
        host: |item| if item < 1 << 19 { 150 } else { 50 },
        rival: |item| if item < 1 << 19 { 300 } else { 100 },
        ..EQUAL
    }
    .run();
    assert!(told.items_of(RIVAL) > EQUAL.items / 64 + EQUAL.items / 40, "it had its turn: {told:?}");
    assert!(told.items_of(HOST) > EQUAL.items * 9 / 10, "{told:?}");
}

#[test]
fn a_short_run_has_no_comparison() {
    for (items, is_compared) in [(1 << 10, false), (70_000, false), (100_000, true)] {
        let told = Cores { items, rival: |_| 10, ..EQUAL }.run();
        assert_eq!(told.tried.is_some(), is_compared, "{items} items: {told:?}");
    }
}

#[test]
fn a_trial_takes_a_small_part_and_more_than_a_launch() {
    let items = |items| {
        let told = Cores { items, ..EQUAL }.run();
        told.tried.map(|tried| (tried.end == items, tried.end - tried.start)).unwrap()
    };
    let (is_last, tried) = items(1 << 22);
    assert!(is_last && (60_000..=65_536).contains(&tried), "{tried} of 4 million items");
    // 300 us of the host.
    let (_, tried) = items(100_000);
    assert!((2_900..=3_000).contains(&tried), "{tried} of 100,000 items");
}

/// An opening of which `HOST` is the first unit, by samples that took so many microseconds for as many items as were asked for.
fn sampled(others: Vec<(UnitId, Freight)>, micros: &[u64]) -> (Opening, u64) {
    let inner = Calibrated::new(1 << 20, 1, &[None; 3]).unwrap();
    let mut policy = Opening::new(inner, 1 << 20, HOST, others).rival(Some((RIVAL, NEAR)));
    let (mut now, mut at) = (0, 0);
    for (index, micros) in micros.iter().enumerate() {
        let items = policy.next(HOST, (1 << 20) - at).unwrap();
        let package = Package::new(at..at + items, HOST, index as u64);
        policy.handed(&package, Duration::from_micros(now));
        (at, now) = (at + items, now + micros);
        let times = [now - micros, now - micros, now, now].map(Duration::from_micros);
        policy.computed(&Computed::new(&package, times[0], times[1], times[2], times[3]));
    }
    (policy, at)
}

#[test]
fn beside_others_nobody_is_compared() {
    let (mut policy, at) = sampled(vec![(OTHER, NEAR)], &[10, 80, 90]);
    assert_eq!(policy.call_up(), [OTHER]);
    assert_eq!(policy.try_out(Duration::from_millis(1)), TryOut::No);
    assert_eq!(policy.next(RIVAL, (1 << 20) - at), None);
}

/// A sample of a millisecond says what the first unit can do; one that woke threads does not.
#[test]
fn samples_grow_until_they_say_enough() {
    let (mut policy, at) = sampled(Vec::new(), &[10, 100, 100]);
    let before = policy.samples.last.unwrap().0 as u64;
    assert_eq!(policy.next(HOST, (1 << 20) - at), Some(before * 10));
    assert_eq!(policy.try_out(Duration::from_millis(1)), TryOut::Later);
    let (mut policy, _) = sampled(Vec::new(), &[10, 100, 700]);
    let least = (1 << 20) / 64 - 1000;
    match policy.try_out(Duration::from_millis(1)) {
        TryOut::Now { unit: RIVAL, items } => assert!(items >= least, "{items}"),
        other => panic!("{other:?}"),
    }
}

/// The policy after a trial that went well: it is the rival's turn.
fn in_turns() -> (Opening, u64) {
    let (mut policy, at) = sampled(Vec::new(), &[10, 100, 700]);
    policy.try_out(Duration::from_millis(1));
    let trial = Package::new(0..1000, RIVAL, 0);
    let times = [1000, 1000, 1001, 1001].map(Duration::from_micros);
    policy.tried(RIVAL, Some(&Computed::new(&trial, times[0], times[1], times[2], times[3])));
    assert_eq!(policy.call_up(), [RIVAL]);
    (policy, (1 << 20) - at)
}

fn computes(policy: &mut Opening, unit: UnitId, remaining: u64, micros: std::ops::Range<u64>) -> u64 {
    let items = policy.next(unit, remaining).expect("it is its turn");
    let package = Package::new(0..items, unit, micros.start);
    policy.handed(&package, Duration::from_micros(micros.start));
    let [begun, end] = [micros.start, micros.end].map(Duration::from_micros);
    policy.computed(&Computed::new(&package, begun, begun, end, end));
    items
}

#[test]
fn each_has_its_turn_and_no_more() {
    for (rival_micros, is_replaced) in [(1000, true), (1090, true), (1110, false), (5000, false)] {
        let (mut policy, remaining) = in_turns();
        assert_eq!(policy.next(HOST, remaining), None, "it is the rival's turn");
        let items = computes(&mut policy, RIVAL, remaining, 2000..2000 + rival_micros);
        assert_eq!(policy.next(RIVAL, remaining - items), None, "it is the host's turn");
        assert_eq!(computes(&mut policy, HOST, remaining - items, 8000..9200), items, "as many items");
        let rest = remaining - 2 * items;
        let (host, rival) = (policy.next(HOST, rest), policy.next(RIVAL, rest));
        assert_eq!((host.is_none(), rival.is_some()), (is_replaced, is_replaced), "{rival_micros} us");
        assert!(is_replaced || host == Some(rest), "{host:?} of {rest}");
    }
}

/// The first unit may have a package from before under way, and the rival what was claimed from its trial.
#[test]
fn a_turn_begins_when_the_other_has_ended() {
    let (mut policy, remaining) = in_turns();
    let times = |micros: std::ops::Range<u64>| [micros.start, micros.end].map(Duration::from_micros);
    let before = Package::new(0..7, HOST, 90);
    policy.handed(&before, Duration::from_micros(900));
    let claimed = Package::new(8..1000, RIVAL, 91);
    policy.handed(&claimed, Duration::from_micros(1001));
    assert_eq!(policy.next(RIVAL, remaining), None, "the first unit has a package");
    let [begun, end] = times(900..1100);
    policy.computed(&Computed::new(&before, begun, begun, end, end));
    let items = policy.next(RIVAL, remaining).expect("its own package is of the trial");
    assert_eq!(policy.next(RIVAL, remaining), None, "it has its package");
    let turn = Package::new(1000..1000 + items, RIVAL, 92);
    policy.handed(&turn, Duration::from_micros(1100));
    // That of the trial says nothing.
    let [begun, end] = times(999..1200);
    policy.computed(&Computed::new(&claimed, begun, begun, end, end));
    assert_eq!(policy.next(HOST, remaining), None);
    let [begun, end] = times(1100..2100);
    policy.computed(&Computed::new(&turn, begun, begun, end, end));
    assert_eq!(computes(&mut policy, HOST, remaining, 8000..9200), items);
    // In its turn it was faster, and in its trial a sixth as fast.
    assert_eq!(policy.next(HOST, remaining - items), None);
}

#[test]
fn a_turn_that_came_back_is_taken_again_and_who_is_gone_has_none() {
    let (mut policy, remaining) = in_turns();
    let items = policy.next(RIVAL, remaining).unwrap();
    let package = Package::new(0..items, RIVAL, 9);
    policy.handed(&package, Duration::from_millis(2));
    policy.given_back(&package);
    assert_eq!(policy.next(RIVAL, remaining), Some(items));
    policy.retire(RIVAL);
    assert_eq!(policy.next(HOST, remaining), Some(remaining), "all of it");

    let (mut policy, remaining) = in_turns();
    policy.next(RIVAL, remaining).unwrap();
    policy.retire(HOST);
    assert_eq!(policy.call_up(), [RIVAL]);
    assert!(policy.next(RIVAL, remaining).is_some());
    // In the trial as well.
    let (mut policy, at) = sampled(Vec::new(), &[10, 100, 700]);
    policy.try_out(Duration::from_millis(1));
    policy.retire(RIVAL);
    assert_eq!(policy.next(HOST, (1 << 20) - at), Some((1 << 20) - at));
}

/// What was claimed from its trial may come back when its turn has begun.
#[test]
fn a_trial_that_came_back_is_nobodys_turn() {
    let (mut policy, remaining) = in_turns();
    let claimed = Package::new(8..1000, RIVAL, 91);
    policy.handed(&claimed, Duration::from_micros(1001));
    let items = policy.next(RIVAL, remaining).unwrap();
    let turn = Package::new(1000..1000 + items, RIVAL, 92);
    policy.handed(&turn, Duration::from_micros(1100));
    policy.given_back(&claimed);
    assert_eq!(policy.next(RIVAL, remaining), None, "it has its package");
    let [begun, end] = [1100, 2100].map(Duration::from_micros);
    policy.computed(&Computed::new(&turn, begun, begun, end, end));
    assert_eq!(policy.next(HOST, remaining), Some(items));
}

/// Nothing computes on the cores that move a rival's data.
#[test]
fn a_rivals_data_takes_the_time_that_it_takes() {
    for (per_item, is_replaced) in [(0.0, true), (8e-9, true), (13e-9, false)] {
        let (mut policy, remaining) = in_turns();
        policy.rival = Some((RIVAL, Freight { per_item, ..NEAR }));
        // A millisecond of 32,000 items, of which 1.2 ms are the host's.
        let items = computes(&mut policy, RIVAL, remaining, 2000..2800);
        assert!((30_000..33_000).contains(&items), "{items}");
        computes(&mut policy, HOST, remaining - items, 8000..9200);
        let rest = remaining - 2 * items;
        assert_eq!(policy.next(HOST, rest).is_none(), is_replaced, "{per_item}");
    }
    // 16 items a microsecond, 65 ms in sum: what moves in 40 takes too long, though less than that.
    let helps = |per_item: f64| Freight { per_item, ..NEAR }.could_replace(1e6, 1.6e7);
    assert!(helps(3.6e-8) && !helps(3.8e-8));
    assert!(!Freight { setup: 40e-3, per_item: 0.0 }.could_replace(1e6, 1.6e7));
}

#[test]
fn without_a_thread_for_it_there_is_no_comparison() {
    let inner = Calibrated::new(1 << 20, 1, &[None, None]).unwrap();
    let mut policy = Opening::new(inner, 1 << 20, HOST, Vec::new()).rival(Some((RIVAL, NEAR)));
    policy.tried(RIVAL, None);
    computes(&mut policy, HOST, 1 << 20, 0..700);
    assert_eq!(policy.next(HOST, 1 << 19), Some(1 << 19));
    assert_eq!(policy.try_out(Duration::from_millis(1)), TryOut::No);
}
