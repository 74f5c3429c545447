//! Policies of the application's own.

use super::{CPU, GPU, ITEMS, Slot, Turn, Work};
use dml::core::internal::sync::{Arc, Mutex};
use dml::prelude::*;
use dml::scheduler::policy::{RecordedDecisions, replay};
use dml::scheduler::{
    LeftOut, Package, Reason, Report, RunCanceller, RunError, UnitId,
    policy::{Computed, Policy},
};
use dml_verify::watched;
use proptest::prelude::*;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Trapezoid self-scheduling: lengths fall linearly, from a quarter of the work to one item.
#[derive(Debug)]
struct Trapezoid {
    next: u64,
}

impl Policy for Trapezoid {
    fn next(&mut self, _: UnitId, _: u64) -> Option<u64> {
        let length = self.next;
        self.next = length.saturating_sub(20).max(1);
        Some(length)
    }
}

fn trapezoid() -> PolicySpec {
    PolicySpec::custom("trapezoid", |input| Ok(Box::new(Trapezoid { next: input.items / 4 })))
}

fn lengths(report: &Report) -> Vec<u64> {
    let mut packages: Vec<_> = report.packages.iter().map(|record| &record.package).collect();
    packages.sort_by_key(|package| package.index());
    packages.into_iter().map(Package::items).collect()
}

#[test]
fn a_run_follows_a_policy_from_outside() {
    let work = Work::new(Access::ReadWrite, |_| Ok(()));
    let coexecutor = work.coexecutor().policy(trapezoid()).record_decisions();
    let report = coexecutor.run(&work.kernel, ITEMS).unwrap();
    work.assert_computed();
    assert_eq!(lengths(&report), [100, 80, 60, 40, 20, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10]);
    assert_eq!(report.policy.to_string(), "trapezoid");
    // Its decisions replay by the policy itself, and not from the text alone.
    let recording = report.decisions.unwrap();
    replay(&mut Trapezoid { next: 100 }, recording.decisions()).unwrap();
    recording.replay().unwrap();
    let read: RecordedDecisions = recording.to_string().parse().unwrap();
    assert_eq!(read, recording);
    assert_eq!(
        read.replay().unwrap_err().to_string(),
        "the policy cannot be rebuilt: policy trapezoid cannot be built: only its name was recorded; \
         replay its decisions with policy::replay"
    );
}

/// It begins with one unit, and calls the other one up after some packages.
#[derive(Debug)]
struct Alone {
    first: UnitId,
    /// After how many packages the other one is called up.
    calls_after: usize,
    computed: usize,
}

impl Policy for Alone {
    fn next(&mut self, _: UnitId, _: u64) -> Option<u64> {
        Some(20)
    }

    fn begins(&self, unit: UnitId) -> bool {
        unit == self.first
    }

    fn computed(&mut self, _: &Computed) {
        self.computed += 1;
    }

    fn call_up(&mut self, _: Duration) -> Vec<UnitId> {
        if self.computed < self.calls_after { Vec::new() } else { vec![UnitId(0), UnitId(1)] }
    }
}

#[test]
fn a_unit_that_does_not_begin_is_called_up_or_left_out() {
    for (calls_after, is_left_out) in [(3, false), (usize::MAX, true)] {
        let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
        let policy = PolicySpec::custom("alone", move |_| {
            Ok(Box::new(Alone { first: UnitId(1), calls_after, computed: 0 }))
        });
        let report = work.coexecutor().policy(policy).run(&work.kernel, ITEMS).unwrap();
        work.assert_computed();
        let cpu = report.called_up.iter().any(|called| called.device == CPU);
        let left_out = report.left_out.iter().find(|left_out| left_out.device == CPU);
        assert!(report.left_out.iter().chain(left_out).all(|LeftOut { device, .. }| *device == CPU));
        if is_left_out {
            assert!(!cpu && matches!(left_out.unwrap().reason, Reason::NotCalledUp { .. }));
        } else {
            // On a busy machine it may come too late.
            let is_late = matches!(left_out.map(|out| &out.reason), Some(Reason::TooLate { .. }));
            assert!(cpu || is_late, "{report:?}");
        }
        assert!(!is_left_out || report.packages.iter().all(|record| record.device == GPU));
    }
}

/// No unit begins, and none is called up: the work is done all the same.
#[derive(Debug)]
struct Nobody;

impl Policy for Nobody {
    fn next(&mut self, _: UnitId, _: u64) -> Option<u64> {
        None
    }

    fn begins(&self, _: UnitId) -> bool {
        false
    }
}

#[test]
fn a_policy_that_lets_nobody_begin_does_not_strand_the_work() {
    let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
    let policy = PolicySpec::custom("nobody", |_| Ok(Box::new(Nobody)));
    work.coexecutor().policy(policy).run(&work.kernel, ITEMS).unwrap();
    work.assert_computed();
}

/// The calls of a policy, in one of which it panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Make,
    Begins,
    SetAside,
    Next,
    Handed,
    Computed,
    LookUp,
    Failure,
    Drop,
}

const CALLS: [Call; 9] = {
    use Call::*;
    [Make, Begins, SetAside, Next, Handed, Computed, LookUp, Failure, Drop]
};

#[derive(Debug)]
struct Panics(Call);

impl Panics {
    fn at(&self, call: Call) {
        assert!(self.0 != call, "the policy's own bug");
    }
}

impl Policy for Panics {
    fn next(&mut self, _: UnitId, _: u64) -> Option<u64> {
        self.at(Call::Next);
        Some(20)
    }

    fn set_aside(&mut self, _: u64, _: &[UnitId]) -> Option<Vec<u64>> {
        self.at(Call::SetAside);
        None
    }

    fn handed(&mut self, _: &Package, _: Duration) {
        self.at(Call::Handed);
    }

    fn computed(&mut self, _: &Computed) {
        self.at(Call::Computed);
    }

    fn call_up(&mut self, _: Duration) -> Vec<UnitId> {
        self.at(Call::LookUp);
        Vec::new()
    }

    fn begins(&self, _: UnitId) -> bool {
        self.at(Call::Begins);
        true
    }

    fn failure(&self) -> Option<String> {
        self.at(Call::Failure);
        None
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.at(Call::Drop);
    }
}

#[test]
fn a_policy_that_panics_ends_its_run() {
    for (call, starts) in CALLS.into_iter().flat_map(|call| [(call, false), (call, true)]) {
        let work = Work::new(Access::ReadWrite, |_| Ok(()));
        let policy = PolicySpec::custom("own", move |_| {
            Panics(Call::Next).at(call_of_make(call));
            Ok(Box::new(Panics(call)))
        });
        let coexecutor = work.coexecutor().policy(policy);
        let ended = match starts {
            false => coexecutor.run(&work.kernel, ITEMS),
            true => coexecutor.start(&work.kernel, ITEMS).and_then(|mut running| running.wait()),
        };
        match (call, ended) {
            (Call::Drop, ended) => assert!(ended.is_ok(), "{ended:?}"),
            (Call::Make, Err(RunError::Policy(error))) => {
                assert_eq!(error.to_string(), "policy own cannot be built: it panicked: the policy's own bug")
            }
            (_, Err(RunError::PolicyFailed { policy, cause, missing, .. })) => {
                assert_eq!((&*policy, &*cause), ("own", "it panicked: the policy's own bug"));
                assert_eq!(work.left(), missing, "{call:?}");
            }
            (_, ended) => panic!("{call:?}: {ended:?}"),
        }
        assert!(work.target.raw().leaked_grants().is_empty());
    }
}

/// `Panics(Call::Next)` panics at this where the policy is to panic when it is made.
fn call_of_make(call: Call) -> Call {
    if call == Call::Make { Call::Next } else { Call::Make }
}

#[test]
fn a_policy_that_cannot_be_made_refuses_the_run() {
    let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
    let policy =
        PolicySpec::custom("own", |input| Err(format!("no rule for {} units", input.powers.len()).into()));
    let error = work.coexecutor().policy(policy).run(&work.kernel, ITEMS).unwrap_err();
    assert_eq!(error.to_string(), "policy own cannot be built: no rule for 2 units");
}

/// It looks at its run with each decision, and cancels it in the fifth.
struct Looks {
    run: Arc<Slot<Arc<Running>>>,
    seen: Arc<Mutex<Vec<u64>>>,
}

impl fmt::Debug for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Looks")
    }
}

impl Policy for Looks {
    fn next(&mut self, _: UnitId, _: u64) -> Option<u64> {
        let run = self.run.wait();
        let mut seen = self.seen.lock();
        seen.push(run.progress().computed);
        if seen.len() == 5 {
            run.cancel();
        }
        Some(10)
    }
}

#[test]
fn a_policy_may_look_at_its_run_and_cancel_it() {
    let (run, seen) = (Arc::new(Slot::default()), Arc::new(Mutex::new(Vec::new())));
    let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
    let policy = {
        let (run, seen) = (run.clone(), seen.clone());
        PolicySpec::custom("looks", move |_| Ok(Box::new(Looks { run: run.clone(), seen: seen.clone() })))
    };
    let running = Arc::new(work.coexecutor().policy(policy).start(&work.kernel, ITEMS).unwrap());
    run.set(running.clone());
    while !running.is_ended() {
        std::thread::yield_now();
    }
    // The policy has a handle of the run that has the policy.
    drop(run.0.lock().take());
    let ended = Arc::into_inner(running).expect("nobody else has it").wait();
    let Err(RunError::Cancelled { missing, .. }) = ended else { panic!("not cancelled: {ended:?}") };
    assert!(missing >= 300, "{missing}");
    assert_eq!(work.left(), missing);
    let seen = seen.lock();
    assert!(seen.len() >= 5 && seen.is_sorted(), "{seen:?}");
}

/// Answers of every kind.
#[derive(Clone, Debug)]
struct Lies {
    lengths: Vec<Option<u64>>,
    shares: Option<Vec<u64>>,
    begin: u8,
    calls: Vec<usize>,
    asked: usize,
}

impl Policy for Lies {
    fn next(&mut self, _: UnitId, _: u64) -> Option<u64> {
        self.asked += 1;
        self.lengths[self.asked % self.lengths.len()]
    }

    fn set_aside(&mut self, _: u64, _: &[UnitId]) -> Option<Vec<u64>> {
        self.shares.clone()
    }

    fn begins(&self, unit: UnitId) -> bool {
        self.begin & (1 << unit.0) != 0
    }

    fn call_up(&mut self, _: Duration) -> Vec<UnitId> {
        self.calls.pop().map(UnitId).into_iter().collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_policy_that_lies_computes_every_item_once(
        lengths in prop::collection::vec(prop::option::of(prop_oneof![0u64..50, Just(u64::MAX)]), 1..5),
        shares in prop::option::of(prop::collection::vec(prop_oneof![0u64..500, Just(u64::MAX)], 0..5)),
        begin in 0u8..4,
        calls in prop::collection::vec(prop_oneof![0usize..3, Just(usize::MAX)], 0..5),
    ) {
        let work = Work::new(Access::ReadWrite, |_| Ok(()));
        let lies = Lies { lengths, shares, begin, calls, asked: 0 };
        let policy = PolicySpec::custom("lies", move |_| Ok(Box::new(lies.clone())));
        let report = work.coexecutor().policy(policy).run(&work.kernel, ITEMS).unwrap();
        work.assert_computed();
        // Packages begin at work-groups of ten items.
        prop_assert!(report.packages.iter().all(|record| record.package.start() % 10 == 0), "{report:?}");
        prop_assert_eq!(report.packages.iter().map(|record| record.package.items()).sum::<u64>(), ITEMS);
    }
}

#[test]
fn what_a_policy_gives_up_with_is_in_the_error() {
    /// It gives up after two packages, and says so once.
    #[derive(Debug, Default)]
    struct GivesUp(u64, AtomicBool);

    impl Policy for GivesUp {
        fn next(&mut self, _: UnitId, _: u64) -> Option<u64> {
            self.0 += 1;
            Some(50)
        }

        fn failure(&self) -> Option<String> {
            let is_over = self.0 > 2 && !self.1.swap(true, Ordering::SeqCst);
            is_over.then(|| "no more ideas".to_owned())
        }
    }
    let work = Work::new(Access::ReadWrite, |_| Ok(()));
    let policy = PolicySpec::custom("own", |_| Ok(Box::new(GivesUp::default())));
    let error = work.coexecutor().policy(policy).run(&work.kernel, ITEMS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel triple: policy own failed with 300 items to compute: no more ideas"
    );
    assert_eq!(work.left(), 300);
}

/// The first unit gets half of the work. The other unit is called up by the clock and gets the rest.
#[derive(Debug, Default)]
struct ByTheClock {
    has_begun: bool,
}

impl Policy for ByTheClock {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        let begins = !std::mem::replace(&mut self.has_begun, true);
        (begins || unit == UnitId(1)).then_some(if begins { remaining / 2 } else { remaining })
    }

    fn begins(&self, unit: UnitId) -> bool {
        unit == UnitId(0)
    }

    fn call_up(&mut self, now: Duration) -> Vec<UnitId> {
        // It also names a unit that does not exist.
        if now < Duration::from_micros(60) { Vec::new() } else { vec![UnitId(9), UnitId(1)] }
    }
}

#[test]
fn a_policy_calls_a_unit_up_during_the_first_package() {
    let has_second = Arc::new(Slot::default());
    let work = {
        let has_second = has_second.clone();
        // The first package ends when the other unit has one.
        Work::new(Access::WriteInvalidate, move |turn| {
            match turn {
                Turn::Launch(1) => has_second.set(()),
                Turn::Computing(0) => has_second.wait(),
                _ => {}
            }
            Ok(())
        })
    };
    let policy = PolicySpec::custom("clock", |_| Ok(Box::new(ByTheClock::default())));
    let coexecutor = work.coexecutor().policy(policy).record_decisions();
    let kernel = work.kernel.clone();
    let report = watched("a unit is called up", move || coexecutor.run(&kernel, ITEMS).unwrap()).join();
    work.assert_computed();
    assert_eq!(report.called_up.len(), 1);
    // The answer that names an unknown unit reads back.
    let recording = report.decisions.unwrap();
    let read: RecordedDecisions = recording.to_string().parse().unwrap();
    assert_eq!(read, recording);
    replay(&mut ByTheClock::default(), read.decisions()).unwrap();
}

/// It cancels its run and hands out all that is left in one answer.
struct CancelsAndHandsOut(Arc<Slot<RunCanceller>>);

impl fmt::Debug for CancelsAndHandsOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CancelsAndHandsOut")
    }
}

impl Policy for CancelsAndHandsOut {
    fn next(&mut self, _: UnitId, remaining: u64) -> Option<u64> {
        self.0.wait().cancel();
        Some(remaining)
    }
}

#[test]
fn a_package_that_a_policy_hands_out_while_it_cancels_is_not_begun() {
    let run = Arc::new(Slot::default());
    let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
    let policy = {
        let run = run.clone();
        PolicySpec::custom("cancels", move |_| Ok(Box::new(CancelsAndHandsOut(run.clone()))))
    };
    let mut running = work.coexecutor().policy(policy).start(&work.kernel, ITEMS).unwrap();
    run.set(running.canceller());
    let ended = running.wait();
    assert!(matches!(ended, Err(RunError::Cancelled { missing: ITEMS, .. })), "{ended:?}");
    assert_eq!(work.left(), ITEMS);
}
