//! Tests of what a run has of its trial: what is claimed and told, and when it goes on.

use super::trial_tests::{GPU, HOST, Says, TIMES, splitter, trial_of};
use super::*;
use crate::commander::{Commander, GivenUp, Next};
use crate::running::Cancel;
use crate::trial::{Results, TrialEnd, Tried};
use dml_core::sync::Arc;
use dml_core::{DeviceId, Withdrawal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A run whose trial can begin.
fn commander() -> Commander {
    let commander = Commander::new(splitter(100, 10, trial_of(20)), None);
    commander.begin_trial(GPU, true);
    commander
}

#[test]
fn nothing_is_claimed_when_the_run_is_over() {
    let commander = commander();
    let (unit, items) = commander.try_out(Instant::now()).unwrap();
    assert!(commander.settle_trial().is_none());
    assert_eq!(commander.tried(unit, items, TIMES), None);
    assert_eq!(commander.try_out(Instant::now()), None, "and none begins");
}

#[test]
fn what_a_retired_unit_had_claimed_is_not_taken_over() {
    let commander = commander();
    let (unit, items) = commander.try_out(Instant::now()).unwrap();
    let claimed = commander.tried(unit, items, TIMES).unwrap();
    assert!(commander.is_in_flight(&claimed));
    commander.retire(unit);
    assert!(!commander.is_in_flight(&claimed));
    let computed = Computed::new(&claimed, Duration::ZERO, Duration::ZERO, Duration::ZERO, Duration::ZERO);
    assert_eq!(commander.take_over(&claimed, Some(computed)), None);
    assert_eq!(commander.take_over(&claimed, None), None);
    assert_eq!(commander.missing(), 100);
}

#[test]
fn a_trial_that_nobody_conducts_any_more_gives_back_what_it_claimed() {
    let commander = commander();
    let (unit, items) = commander.try_out(Instant::now()).unwrap();
    let claimed = commander.tried(unit, items, TIMES).unwrap();
    commander.give_trial_up();
    assert!(!commander.is_in_flight(&claimed));
    assert!(commander.settle_trial().is_none(), "nobody waits for it");
}

/// A package of a trial that is copied.
fn copied(package: &Package) -> Tried {
    let [handed, begun, computed, end] = [Duration::ZERO; 4];
    Tried { package: package.clone(), is_computed: true, handed, begun, computed, end }
}

/// What was claimed of a trial under way belongs to the run: it is told when it is copied, or it is given back.
#[test]
fn what_is_claimed_is_told_when_it_is_copied_whatever_the_trial_does() {
    let all = || {
        let commander = Commander::new(splitter(100, 10, trial_of(100)), None);
        commander.begin_trial(GPU, true);
        let (unit, items) = commander.try_out(Instant::now()).unwrap();
        let first = commander.claim(unit, 60..100).unwrap();
        assert_eq!(first.range(), 60..100);
        (commander, unit, items, first)
    };
    let told = |end: Option<Box<TrialEnd>>| -> Vec<Package> {
        end.map_or(Vec::new(), |end| end.packages.into_iter().map(|tried| tried.package).collect())
    };
    // It goes on.
    let (commander, unit, items, first) = all();
    commander.bring_home(DeviceId(1), copied(&first));
    let Next::Tried(end) = commander.next_now(HOST, Instant::now()) else { panic!("it is told at once") };
    assert_eq!((end.device, told(Some(end))), (DeviceId(1), vec![first]));
    let second = commander.tried(unit, items, TIMES).unwrap();
    assert_eq!(second.range(), 0..60);
    commander.bring_home(DeviceId(1), copied(&second));
    let Next::Tried(end) = commander.next(GPU, Instant::now(), || false) else { panic!("it is told") };
    assert_eq!(told(Some(end)), [second]);
    // It fails later on.
    let (commander, unit, items, first) = all();
    assert_eq!(commander.tried(unit, items, None), None);
    assert!(commander.is_in_flight(&first));
    commander.bring_home(DeviceId(1), copied(&first));
    assert_eq!(told(commander.settle_trial()), [first]);
    assert_eq!(commander.claim(unit, 0..60), None, "the trial is over");
    // Nobody conducts it any more.
    let (commander, unit, _, first) = all();
    let second = commander.claim(unit, 30..60).unwrap();
    commander.bring_home(DeviceId(1), copied(&first));
    commander.give_trial_up();
    assert_eq!([&first, &second].map(|package| commander.is_in_flight(package)), [true, false]);
    assert_eq!(told(commander.settle_trial()), [first], "nobody waits for the other");
    // It ends well, and both packages are learned of as claimed.
    let (commander, unit, items, first) = all();
    let second = commander.tried(unit, items, TIMES).unwrap();
    for package in [&first, &second] {
        commander.bring_home(DeviceId(1), copied(package));
    }
    assert_eq!(told(commander.settle_trial()), [first.clone(), second.clone()]);
    for package in [&first, &second] {
        let computed = Computed::new(package, Duration::ZERO, Duration::ZERO, Duration::ZERO, Duration::ZERO);
        assert!(commander.take_over(package, Some(computed)).is_some());
    }
    assert_eq!((commander.claimed(), commander.missing()), (vec![first, second], 0));
}

/// The trial's thread may be writing to the run's buffers. For what else the trial does nobody waits.
#[test]
fn a_run_is_not_over_before_what_was_claimed_from_its_trial_is_copied() {
    let commander = Commander::new(splitter(100, 10, trial_of(100)), None);
    commander.begin_trial(GPU, true);
    let (unit, _) = commander.try_out(Instant::now()).unwrap();
    let claimed = commander.claim(unit, 60..100).unwrap();
    std::thread::scope(|scope| {
        let settles = scope.spawn(|| commander.settle_trial().is_some());
        std::thread::sleep(Duration::from_millis(30));
        let is_over = settles.is_finished();
        commander.bring_home(DeviceId(1), copied(&claimed));
        assert_eq!((is_over, settles.join().unwrap()), (false, true));
    });
}

/// While whoever computes has not even done what it had when the trial began, and nobody else asks for anything.
#[test]
fn a_trial_goes_on_where_nobody_else_comes_to_anything() {
    let told = |package: &Package| {
        Computed::new(package, Duration::ZERO, Duration::ZERO, Duration::ZERO, Duration::ZERO)
    };
    let begun = || {
        let commander = Commander::new(splitter(100, 10, trial_of(25)), None);
        commander.begin_trial(GPU, true);
        // What was computed before says nothing.
        let next = || commander.next(HOST, Instant::now(), || false);
        let Next::Package(before) = next() else { panic!("there is work") };
        let _ = commander.complete(&before, told(&before));
        assert!(matches!(next(), Next::Package(package) if package.range() == (10..20)));
        let (unit, items) = commander.try_out(Instant::now()).unwrap();
        assert_eq!(items, 70..100);
        (commander, unit)
    };
    let (commander, unit) = begun();
    assert_eq!(commander.extend_trial(&(70..100), 25), Some(40..70), "whole work-groups");
    assert_eq!(commander.claim(unit, 70..100).map(|package| package.range()), Some(70..100));
    assert_eq!(commander.extend_trial(&(40..100), 25), Some(20..40), "the host has the others");
    assert_eq!(commander.extend_trial(&(20..100), 25), Some(10..20), "which are last");
    assert_eq!(commander.extend_trial(&(10..100), 25), None, "these are computed");
    assert_eq!(commander.tried(unit, 20..100, TIMES).map(|package| package.range()), Some(20..70));
    assert_eq!(commander.extend_trial(&(20..100), 25), None, "it has ended");
    // Somebody has computed a package, with its results or before they have come, or has retired.
    let of_host = Package::new(10..20, HOST, 1);
    let comes: [&dyn Fn(&Commander); 3] = [
        &|commander| drop(commander.complete(&of_host, told(&of_host))),
        &|commander| drop(commander.ended(&of_host, told(&of_host))),
        &|commander| drop(commander.retire(HOST)),
    ];
    for come in comes {
        let (commander, _) = begun();
        come(&commander);
        assert_eq!(commander.extend_trial(&(70..100), 25), None);
    }
    // Who has only asked once more counts for nothing, and who waits for something does.
    let (commander, _) = begun();
    assert!(matches!(commander.next_now(HOST, Instant::now()), Next::Package(_)));
    assert_eq!(commander.extend_trial(&(70..100), 25), Some(40..70));
    let waits = Says { waits: Duration::MAX, ..trial_of(25) };
    let commander = Commander::new(splitter(100, 10, waits), None);
    commander.begin_trial(GPU, true);
    let (_, items) = commander.try_out(Instant::now()).unwrap();
    assert_eq!(commander.extend_trial(&items, 25), Some(40..70));
    let is_called_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = || commander.next(HOST, Instant::now(), || is_called_back.load(Ordering::SeqCst));
        let waiting = scope.spawn(waits);
        while commander.extend_trial(&items, 25).is_some() {
            std::thread::yield_now();
        }
        is_called_back.store(true, Ordering::SeqCst);
        commander.call_back();
        assert!(matches!(waiting.join().unwrap(), Next::CalledBack));
    });
    assert_eq!(commander.extend_trial(&items, 25), Some(40..70), "nobody waits any more");
    // One on the cores of those who compute disturbs them.
    let (commander, _) = begun();
    commander.await_rival();
    assert_eq!(commander.extend_trial(&(70..100), 25), None);
    // The run is over.
    let (commander, _) = begun();
    assert!(commander.settle_trial().is_none());
    assert_eq!(commander.extend_trial(&(70..100), 25), None);
}

/// The host's next package. What else it is told before is of no interest.
fn package_of(commander: &Commander) -> Package {
    loop {
        match commander.next(HOST, Instant::now(), || false) {
            Next::Package(package) => return package,
            Next::NoMore | Next::CalledBack => panic!("there is work"),
            _ => {}
        }
    }
}

/// A run whose host has packages of ten items under way while a trial ends.
struct Overtakes {
    commander: Commander,
    packages: Vec<Package>,
    withdrawals: Vec<Option<Withdrawal>>,
}

fn overtakes(most: u64, packages: usize) -> Overtakes {
    let commander = Commander::new(splitter(100, 10, trial_of(most)), None);
    commander.begin_trial(GPU, true);
    let (unit, items) = commander.try_out(Instant::now()).unwrap();
    let packages: Vec<_> = (0..packages).map(|_| package_of(&commander)).collect();
    let withdrawals = packages.iter().map(|package| commander.withdrawal(package)).collect();
    commander.offer(results());
    let claimed = commander.tried(unit, items, TIMES);
    if let Some(claimed) = claimed {
        commander.bring_home(DeviceId(1), copied(&claimed));
        let none = Duration::ZERO;
        let computed = Computed::new(&claimed, none, none, none, none);
        assert!(commander.take_over(&claimed, Some(computed)).is_some());
    }
    Overtakes { commander, packages, withdrawals }
}

impl Overtakes {
    fn withdrawn(&self) -> Vec<bool> {
        self.withdrawals.iter().map(|it| it.as_ref().is_some_and(Withdrawal::is_withdrawn)).collect()
    }
}

const TOOK: Duration = Duration::from_micros(7);

/// What the trial has computed.
fn results() -> Arc<Results> {
    let times = [Duration::ZERO; 2];
    Arc::new(Results { device: DeviceId(1), own: Arc::default(), handed: Duration::ZERO, part: 10, times })
}

impl Commander {
    /// Gives up a package. Returns whether that is no failure, and under which name it is copied.
    fn gives_up(&self, package: &Package) -> (bool, Option<Package>) {
        match self.give_up(package, TOOK) {
            GivenUp::Never => (false, None),
            GivenUp::ToOthers => (true, None),
            GivenUp::ToTrial(claimed, _) => (true, Some(claimed)),
        }
    }
}

#[test]
fn what_was_given_up_is_copied_from_the_trial() {
    let run = overtakes(100, 2);
    assert_eq!(run.withdrawn(), [true, true]);
    for package in &run.packages {
        let (_, copies) = run.commander.gives_up(package);
        let copies = copies.unwrap();
        assert!(!run.commander.is_in_flight(package));
        assert_eq!(run.commander.gives_up(package), (false, None), "it is given up once");
        assert_eq!((copies.range(), copies.unit()), (package.range(), GPU));
        assert!(run.commander.is_in_flight(&copies));
        run.commander.bring_home(DeviceId(1), copied(&copies));
    }
    assert!(run.commander.await_overtaken(), "nobody waits for anything else");
    let lost = run.commander.lost();
    assert_eq!(
        lost.iter().map(|lost| (lost.unit, lost.items, lost.took)).collect::<Vec<_>>(),
        [(HOST, 10, TOOK), (HOST, 10, TOOK)]
    );
    assert_eq!(run.commander.settle_trial().map(|end| end.packages.len()), Some(3));
}

/// As in a run of a few work-groups, which is one package.
#[test]
fn a_package_of_all_items_is_copied_from_the_trial() {
    let commander = Commander::new(splitter(10, 10, trial_of(100)), None);
    commander.begin_trial(GPU, true);
    let package = package_of(&commander);
    let (unit, items) = commander.try_out(Instant::now()).unwrap();
    let withdrawal = commander.withdrawal(&package).unwrap();
    commander.offer(results());
    assert_eq!(commander.tried(unit, items, TIMES), None, "somebody has all of them");
    assert!(withdrawal.is_withdrawn());
    let (_, copies) = commander.gives_up(&package);
    assert_eq!(copies.map(|copies| (copies.range(), copies.unit())), Some((0..10, GPU)));
}

/// There is something else to do for whoever is at it, or nobody has what the trial has computed.
#[test]
fn a_package_is_not_withdrawn_for_nothing() {
    let under_way = || {
        let commander = Commander::new(splitter(30, 10, trial_of(10)), None);
        commander.begin_trial(GPU, true);
        let (unit, items) = commander.try_out(Instant::now()).unwrap();
        assert_eq!(items, 20..30);
        let packages = [(); 3].map(|()| package_of(&commander));
        let withdrawal = commander.withdrawal(&packages[2]).unwrap();
        (commander, packages, unit, items, withdrawal)
    };
    let (commander, _, unit, items, withdrawal) = under_way();
    commander.tried(unit, items, TIMES);
    assert!(withdrawal.is_withdrawn());
    // The results of another package were lost.
    let (commander, [first, _, last], unit, items, withdrawal) = under_way();
    let none = Duration::ZERO;
    drop(commander.complete(&first, Computed::new(&first, none, none, none, none)));
    commander.reopen(&first);
    commander.tried(unit, items, TIMES);
    assert!(!withdrawal.is_withdrawn() && !commander.gives_up(&last).0);
    // The unit of the trial has retired.
    let (commander, [_, _, last], unit, items, withdrawal) = under_way();
    drop(commander.retire(unit));
    commander.tried(unit, items, TIMES);
    assert!(!withdrawal.is_withdrawn() && !commander.gives_up(&last).0);
}

/// Nothing is awaited that somebody computes, and whose results a trial does not have.
#[test]
fn only_what_a_trial_has_computed_as_well_is_withdrawn() {
    // A part of the items, and something else is left.
    for (most, packages, withdrawn) in
        [(80, 2, vec![false, false]), (90, 1, vec![false]), (80, 3, vec![false, false, true])]
    {
        let run = overtakes(most, packages);
        assert_eq!(run.withdrawn(), withdrawn, "{most} {packages}");
        assert!(!run.commander.gives_up(&run.packages[0]).0);
    }
    // What begins when the trial is over, or none was wanted, or of a device on the same cores.
    let run = overtakes(80, 3);
    assert!(run.commander.withdrawal(&run.packages[0]).is_none());
    assert!(run.commander.withdrawal(&run.packages[2]).unwrap().is_withdrawn(), "it has computed that");
    let commander = Commander::new(splitter(100, 10, trial_of(100)), None);
    let package = package_of(&commander);
    assert!(commander.withdrawal(&package).is_none());
    commander.begin_trial(GPU, true);
    assert!(commander.withdrawal(&package).is_some());
    commander.await_rival();
    assert!(commander.withdrawal(&package).is_none());
}

#[test]
fn a_trial_that_failed_has_computed_nothing() {
    let commander = Commander::new(splitter(10, 10, trial_of(100)), None);
    commander.begin_trial(GPU, true);
    let package = package_of(&commander);
    let (unit, items) = commander.try_out(Instant::now()).unwrap();
    let withdrawal = commander.withdrawal(&package).unwrap();
    assert_eq!(commander.tried(unit, items, None), None);
    assert!(!withdrawal.is_withdrawn() && !commander.gives_up(&package).0);
    assert!(!commander.await_overtaken());
}

/// Its unit, or the trial's, has retired; or nobody conducts the trial any more.
#[test]
fn what_was_given_up_and_nobody_copies_is_computed_again() {
    let retires_of_trial = |run: &Overtakes| drop(run.commander.retire(GPU));
    let is_given_up = |run: &Overtakes| run.commander.give_trial_up();
    let ways: [&dyn Fn(&Overtakes); 2] = [&retires_of_trial, &is_given_up];
    for way in ways {
        let run = overtakes(100, 1);
        way(&run);
        assert_eq!(run.commander.gives_up(&run.packages[0]), (true, None), "it is no failure");
        let again = package_of(&run.commander);
        assert_eq!(again.range(), run.packages[0].range());
        assert!(run.commander.lost().is_empty() && !run.commander.await_overtaken());
        assert!(run.commander.withdrawal(&again).is_none(), "nor is it withdrawn again");
    }
    let run = overtakes(100, 1);
    drop(run.commander.retire(HOST));
    assert!(!run.commander.await_overtaken(), "nobody awaits it");
    // And after it was given up, before it is copied.
    let run = overtakes(100, 1);
    let (_, copies) = run.commander.gives_up(&run.packages[0]);
    run.commander.give_trial_up();
    assert!(run.commander.await_overtaken());
    assert!(!run.commander.is_in_flight(&copies.unwrap()), "who copies it looks");
    assert_eq!(package_of(&run.commander).range(), run.packages[0].range());
}

/// Who conducts the trial waits for the end of such packages, however they end, and no longer than the run takes.
#[test]
fn whoever_waits_for_what_others_compute_hears_of_its_end() {
    let none = Duration::ZERO;
    let ends: [&dyn Fn(&Overtakes); 5] = [
        &|run| {
            drop(
                run.commander
                    .complete(&run.packages[0], Computed::new(&run.packages[0], none, none, none, none)),
            )
        },
        &|run| drop(run.commander.retire(HOST)),
        &|run| assert!(run.commander.settle_trial().is_some()),
        // It is copied, or could not be.
        &|run| {
            let (_, copies) = run.commander.gives_up(&run.packages[0]);
            run.commander.bring_home(DeviceId(1), copied(&copies.unwrap()));
        },
        &|run| {
            let (_, copies) = run.commander.gives_up(&run.packages[0]);
            let tried = Tried { is_computed: false, ..copied(&copies.unwrap()) };
            run.commander.bring_home(DeviceId(1), tried);
        },
    ];
    for (index, end) in ends.into_iter().enumerate() {
        // It is late, or nobody is told to leave it.
        for is_told in [false, true] {
            let mut run = overtakes(100, 1);
            if !is_told {
                run.withdrawals.clear();
            }
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| run.commander.await_overtaken());
                std::thread::sleep(Duration::from_millis(5));
                let has_waited = !waits.is_finished();
                end(&run);
                assert_eq!((has_waited, waits.join().unwrap()), (true, index >= 3), "{index}");
            });
        }
    }
}

#[test]
fn a_cancelled_run_withdraws_nothing() {
    let cancel = Arc::new(Cancel::default());
    let commander = Commander::new(splitter(10, 10, trial_of(100)), Some(cancel.clone()));
    commander.begin_trial(GPU, true);
    let package = package_of(&commander);
    let (unit, items) = commander.try_out(Instant::now()).unwrap();
    let withdrawal = commander.withdrawal(&package).unwrap();
    cancel.cancel();
    assert_eq!(commander.tried(unit, items, TIMES), None);
    assert!(!withdrawal.is_withdrawn() && !commander.await_overtaken());
}

/// The trial's thread frees what the trial has computed, and so it waits for whoever copies that.
#[test]
fn what_is_copied_is_there_until_it_is_copied() {
    let run = overtakes(100, 1);
    let GivenUp::ToTrial(claimed, results) = run.commander.give_up(&run.packages[0], TOOK) else {
        panic!("the trial has it")
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| run.commander.await_overtaken());
        std::thread::sleep(Duration::from_millis(5));
        assert!(!waits.is_finished());
        assert_eq!(Arc::strong_count(&results), 2);
        run.commander.bring_home(DeviceId(1), copied(&claimed));
        assert!(waits.join().unwrap());
        assert_eq!(Arc::strong_count(&results), 1, "nobody else copies it");
    });
}
