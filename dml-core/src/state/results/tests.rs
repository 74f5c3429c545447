//! Copies of results behind their kernel.

use super::super::testbed::{Bench, CPU, Driver, GPU_ARENA, GPU2_ARENA, LEN, MAIN_ARENA, claim};
use super::super::{Execution, FreeRefusal, Next, Refusal, Report};
use super::*;
use crate::base::id::DeviceSet;
use crate::base::range::Span;
use crate::memory::desc::Concurrency;
use crate::memory::link::Allocation;
use Access::{ReadOnly, ReadWrite, WriteInvalidate};
use Remains::{Committed, Lost, Zeros};
use Status::{Defined, Poisoned, Zeroed};

/// Begins the copies of a grant's results, which must be possible.
#[track_caller]
fn begun(driver: &mut Driver, grant: OwnerId, goal: ArenaId) -> Execution {
    let plan = driver.act(|state, bench| state.results(bench, grant, goal)).expect("one copy brings them");
    let mut execution = Execution::new(plan);
    while let Next::Do(step) = driver.act(|state, _| execution.next(state)) {
        let Step::Copy(copy) = step else { panic!("{step:?}") };
        driver.act(|state, _| state.result_begun(&copy));
    }
    execution
}

/// Ends the copies, and makes what else the plan needs.
#[track_caller]
fn arrived(driver: &mut Driver, mut execution: Execution) {
    loop {
        let step = match driver.act(|state, _| execution.next(state)) {
            Next::Do(step) => step,
            Next::Wait => Step::Copy(*execution.under_way().next().expect("a copy is under way")),
            Next::Finish => break,
            other => panic!("{other:?}"),
        };
        driver.act(|state, bench| execution.report(bench, state, step, Report::Done)).expect("as planned");
    }
    driver.act(|state, bench| execution.finish(bench, state).map(drop)).expect("the buffer is whole");
}

/// A buffer that was written in main memory, and a grant of the GPU for overwriting some of it.
fn overwritten() -> (Driver, OwnerId) {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    let grant = driver.acquire(GPU_ARENA, (5, 9), WriteInvalidate);
    (driver, grant)
}

#[test]
fn i30_results_are_valid_once_committed_and_copied() {
    let (mut driver, grant) = overwritten();
    let execution = begun(&mut driver, grant, MAIN_ARENA);
    // What was there before is given up, and no other request touches it.
    let main = |end| (end, vec![0], Defined);
    assert_eq!(driver.segments(), [main(5), (9, vec![], Poisoned(Lost)), main(LEN)]);
    let (_, asked) = driver.ask(MAIN_ARENA, (8, 9), ReadOnly);
    assert!(matches!(asked, Begin::Busy { .. }), "{asked:?}");
    assert_eq!(driver.free(MAIN_ARENA), Err(FreeRefusal::InUse));
    driver.end(grant, Outcome::Done);
    assert_eq!(driver.segments(), [main(5), (9, vec![1], Defined), main(LEN)]);
    let (_, asked) = driver.ask(GPU_ARENA, (5, 9), WriteInvalidate);
    assert!(matches!(asked, Begin::Busy { .. }), "the bytes are still being read: {asked:?}");
    arrived(&mut driver, execution);
    assert_eq!(driver.segments(), [main(5), (9, vec![0, 1], Defined), main(LEN)]);
}

#[test]
fn i30_what_a_failed_kernel_sends_is_valid_nowhere() {
    for (elsewhere, remains) in [(false, Lost), (true, Committed)] {
        let mut driver = Driver::new(Bench::star());
        driver.write(MAIN_ARENA, (0, LEN));
        if elsewhere {
            driver.read(GPU2_ARENA, (0, LEN));
        }
        let grant = driver.acquire(GPU_ARENA, (0, LEN), WriteInvalidate);
        let mut execution = begun(&mut driver, grant, MAIN_ARENA);
        driver.end(grant, Outcome::Failed);
        execution.stop();
        let step = Step::Copy(*execution.under_way().next().expect("it runs"));
        let _ = driver.act(|state, bench| execution.report(bench, state, step, Report::Failed));
        driver.act(|state, bench| execution.give_up(bench, state));
        let valid = if elsewhere { vec![2] } else { vec![] };
        assert_eq!(driver.segments(), [(LEN, valid, Poisoned(remains))]);
        let restored = driver.act(|state, _| state.restore(Span::new(0, LEN)));
        let lost = Refusal::NotRestorable { span: Span::new(0, LEN) };
        assert_eq!(restored, if elsewhere { Ok(true) } else { Err(lost) });
    }
}

#[test]
fn i30_zeros_stay_zeros_after_a_failure() {
    let mut driver = Driver::zeroed(Bench::star());
    driver.read(MAIN_ARENA, (0, LEN));
    let grant = driver.acquire(GPU_ARENA, (0, LEN), WriteInvalidate);
    let mut execution = begun(&mut driver, grant, MAIN_ARENA);
    assert_eq!(driver.segments(), [(LEN, vec![], Zeroed)]);
    driver.end(grant, Outcome::Failed);
    execution.stop();
    driver.act(|state, bench| execution.give_up(bench, state));
    assert_eq!(driver.segments(), [(LEN, vec![], Poisoned(Zeros))]);
}

/// A plan that is given up while the kernel runs leaves the kernel its grant, and what no copy overwrites.
#[test]
fn i30_results_that_cannot_come_leave_the_grant() {
    let (mut driver, grant) = overwritten();
    let before = driver.segments();
    let plan = driver.act(|state, bench| state.results(bench, grant, MAIN_ARENA)).expect("one copy");
    let mut execution = Execution::new(plan);
    execution.stop();
    driver.act(|state, bench| execution.give_up(bench, state));
    assert_eq!(driver.segments(), before);
    driver.end(grant, Outcome::Done);
    let main = |end| (end, vec![0], Defined);
    assert_eq!(driver.segments(), [main(5), (9, vec![1], Defined), main(LEN)]);
}

#[test]
fn i30_other_bytes_have_no_results() {
    for access in [ReadOnly, ReadWrite] {
        let mut driver = Driver::new(Bench::star());
        driver.write(MAIN_ARENA, (0, LEN));
        let grant = driver.acquire(GPU_ARENA, (5, 9), access);
        driver.refuses(None, |state, bench| state.results(bench, grant, MAIN_ARENA));
    }
    // A goal without storage, the kernel's own memory, an end that is over, and a request that waits.
    let (mut driver, grant) = overwritten();
    for goal in [GPU_ARENA, GPU2_ARENA] {
        driver.refuses(None, |state, bench| state.results(bench, grant, goal));
    }
    driver.refuses(None, |state, bench| state.results(bench, OwnerId(999), MAIN_ARENA));
    driver.wait(MAIN_ARENA, (0, LEN), ReadOnly);
    driver.refuses(None, |state, bench| state.results(bench, grant, MAIN_ARENA));
}

/// Storage at the goal is made first.
#[test]
fn i30_results_come_to_new_storage() {
    let mut driver = Driver::new(Bench::star());
    let grant = driver.acquire(GPU_ARENA, (0, LEN), WriteInvalidate);
    let plan = driver.act(|state, bench| state.results(bench, grant, MAIN_ARENA)).expect("one copy");
    let mut execution = Execution::new(plan);
    let Next::Do(step) = driver.act(|state, _| execution.next(state)) else { panic!("an allocation") };
    assert_eq!(step, Step::Allocate { arena: MAIN_ARENA });
    driver.act(|state, bench| execution.report(bench, state, step, Report::Done)).expect("as planned");
    assert!(matches!(driver.act(|state, _| execution.next(state)), Next::Do(Step::Copy(_))));
    driver.end(grant, Outcome::Done);
    arrived(&mut driver, execution);
    assert_eq!(driver.segments(), [(LEN, vec![0, 1], Defined)]);
}

/// The copies of what is brought together with what is overwritten are those of the overwritten bytes alone.
#[test]
fn i30_only_overwritten_bytes_come() {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    let request = driver.request(GPU_ARENA, &[claim(0, 5, ReadWrite), claim(7, 9, WriteInvalidate)]);
    let Begin::Plan(plan) = driver.act(|state, bench| state.begin(bench, &request)) else { panic!("a copy") };
    driver.carry_out(plan).expect("the buffer is whole");
    let execution = begun(&mut driver, request.grant, MAIN_ARENA);
    let spans: Vec<Span> = execution.under_way().map(|copy| copy.span).collect();
    assert_eq!(spans, [Span::new(7, 9)]);
    driver.end(request.grant, Outcome::Done);
    arrived(&mut driver, execution);
    let both = |end| (end, vec![0, 1], Defined);
    let expected = [(5, vec![1], Defined), (7, vec![0], Defined), both(9), (LEN, vec![0], Defined)];
    assert_eq!(driver.segments(), expected);
}

/// Main memory that shares page-locked storage gets the results with that.
#[test]
fn i30_results_come_to_shared_storage() {
    let pinned = ArenaId(2);
    let bench = Bench::new().gpu(Concurrency::Exclusive);
    let bench = bench.memory(CPU, DeviceSet::of(CPU), Concurrency::BimapFull);
    let bench = bench.link(pinned, GPU_ARENA, 10).link(GPU_ARENA, pinned, 10);
    let bench =
        bench.link_via((pinned, CPU), (MAIN_ARENA, CPU), Allocation::Bound(Concurrency::BimapFull), 10);
    let mut driver = Driver::new(bench);
    driver.write(pinned, (0, LEN));
    driver.bind(MAIN_ARENA, pinned, Concurrency::BimapFull);
    let grant = driver.acquire(GPU_ARENA, (0, LEN), WriteInvalidate);
    let execution = begun(&mut driver, grant, MAIN_ARENA);
    driver.end(grant, Outcome::Done);
    arrived(&mut driver, execution);
    assert_eq!(driver.segments(), [(LEN, vec![0, 1, 2], Defined)]);
}
