//! The order in which the steps of a plan are carried out.

use super::super::testbed::{Bench, CPU, Driver, GPU, GPU_ARENA, GPU2_ARENA, LEN, MAIN_ARENA, claim};
use super::super::{Begin, Lifecycle};
use super::*;
use crate::base::access::Access::{ReadOnly, WriteInvalidate};
use crate::base::id::DeviceSet;
use crate::memory::desc::Concurrency::Exclusive;
use crate::memory::link::Allocation;

/// Creates the execution of the plan for a kernel that reads a range.
#[track_caller]
fn reading(driver: &mut Driver, arena: ArenaId, span: (u64, u64)) -> Execution {
    Execution::new(driver.plan(arena, span, ReadOnly))
}

/// Begins steps until the execution must wait or end. Returns the copies (source, destination, first byte)
/// and what comes next. Other steps are reported as done at once.
#[track_caller]
fn begun(driver: &mut Driver, execution: &mut Execution) -> (Vec<(u8, u8, u64)>, Next) {
    let mut copies = Vec::new();
    loop {
        match driver.act(|state, _| execution.next(state)) {
            Next::Do(Step::Copy(copy)) => {
                let from = copy.from().map_or(99, |from| from.0);
                copies.push((from, copy.to.0, copy.span.start()));
            }
            Next::Do(step) => report(driver, execution, step, Report::Done),
            next => return (copies, next),
        }
    }
}

#[track_caller]
fn report(driver: &mut Driver, execution: &mut Execution, step: Step, report: Report) {
    let reported = driver.act(|state, bench| execution.report(bench, state, step, report));
    assert!(reported.is_ok(), "{reported:?}");
}

/// Ends the copy under way that goes to `to` and begins at byte `start`.
#[track_caller]
fn ends(driver: &mut Driver, execution: &mut Execution, to: ArenaId, start: u64, how: Report) {
    let copy = execution.under_way().find(|copy| copy.to == to && copy.span.start() == start).copied();
    report(driver, execution, Step::Copy(copy.expect("it is under way")), how);
}

/// Creates a buffer whose middle ten bytes are valid in main memory, and the others in the first GPU.
fn in_pieces() -> Driver {
    let mut driver = Driver::new(Bench::star());
    driver.write(GPU_ARENA, (0, LEN));
    driver.write(MAIN_ARENA, (10, 20));
    driver
}

#[test]
fn copies_that_do_not_depend_on_each_other_are_all_under_way_before_any_is_waited_for() {
    for first in [0, 20] {
        let mut driver = in_pieces();
        let mut execution = reading(&mut driver, GPU2_ARENA, (0, LEN));
        let (copies, next) = begun(&mut driver, &mut execution);
        assert_eq!((copies, next), (vec![(1, 0, 0), (0, 2, 10), (1, 0, 20)], Next::Wait));
        // A copy that depends on another one begins when that one has ended, in any order.
        for start in [first, 20 - first] {
            ends(&mut driver, &mut execution, MAIN_ARENA, start, Report::Done);
            assert_eq!(begun(&mut driver, &mut execution), (vec![(0, 2, start)], Next::Wait));
        }
        for start in [20, 10, 0] {
            assert_eq!(begun(&mut driver, &mut execution).1, Next::Wait);
            ends(&mut driver, &mut execution, GPU2_ARENA, start, Report::Done);
        }
        assert_eq!(begun(&mut driver, &mut execution), (vec![], Next::Finish));
        let grant = execution.owner();
        driver.act(|state, bench| match execution.finish(bench, state) {
            Ok(Finished::Granted(entry)) => assert_eq!(entry.grant, grant),
            other => panic!("{other:?}"),
        });
        assert_eq!(driver.segments().last().map(|(.., status)| *status), Some(super::super::Status::Defined));
    }
}

#[test]
fn a_chain_of_copies_goes_one_after_the_other() {
    let bench = Bench::new().gpu(Exclusive).gpu(Exclusive).gpu(Exclusive);
    let bench = bench.link(GPU_ARENA, MAIN_ARENA, 10).link(MAIN_ARENA, GPU2_ARENA, 10);
    let mut driver = Driver::new(bench.link(GPU2_ARENA, ArenaId(3), 10));
    driver.write(GPU_ARENA, (0, LEN));
    let mut execution = reading(&mut driver, ArenaId(3), (5, 9));
    for (from, to) in [(1, 0), (0, 2), (2, 3)] {
        assert_eq!(begun(&mut driver, &mut execution), (vec![(from, to, 5)], Next::Wait));
        assert!(execution.must_wait());
        ends(&mut driver, &mut execution, ArenaId(to), 5, Report::Done);
    }
    assert_eq!(begun(&mut driver, &mut execution).1, Next::Finish);
}

#[test]
fn a_map_state_waits_for_the_copies_of_its_own_storage_alone() {
    // The host copies from both GPUs, which must be mapped for it.
    let mapped = |arena| ((arena, CPU), (MAIN_ARENA, CPU), Allocation::Internal, 10);
    let bench = Bench::new().gpu(Exclusive).gpu(Exclusive);
    let bench = [GPU_ARENA, GPU2_ARENA].into_iter().fold(bench, |bench, arena| {
        let (from, to, allocation, price) = mapped(arena);
        bench.link_via(from, to, allocation, price)
    });
    let mut driver = Driver::new(bench);
    driver.write(GPU_ARENA, (0, 10));
    driver.write(GPU2_ARENA, (10, 20));
    let mut execution = reading(&mut driver, MAIN_ARENA, (0, 20));
    let (copies, next) = begun(&mut driver, &mut execution);
    assert_eq!((copies, next), (vec![(1, 0, 0), (2, 0, 10)], Next::Wait), "side by side");
    // The GPU is mapped for the host's copy, and mapped back only after that copy has ended.
    let bench = Bench::new().gpu(Exclusive);
    let there = ((MAIN_ARENA, CPU), (GPU_ARENA, CPU));
    let mut driver = Driver::new(bench.link_via(there.0, there.1, Allocation::Internal, 10));
    driver.write(MAIN_ARENA, (0, LEN));
    let mut execution = reading(&mut driver, GPU_ARENA, (0, 5));
    let (copies, next) = begun(&mut driver, &mut execution);
    assert_eq!((copies, next), (vec![(0, 1, 0)], Next::Wait));
    let host = MapState::Mapped(DeviceSet::of(CPU));
    assert_eq!(driver.state.arena(GPU_ARENA).map, host, "not mapped back while the host writes there");
    ends(&mut driver, &mut execution, GPU_ARENA, 0, Report::Done);
    assert_eq!(begun(&mut driver, &mut execution), (vec![], Next::Finish));
    assert_eq!(driver.state.arena(GPU_ARENA).map, MapState::Unmapped);
}

#[test]
fn i15_what_is_under_way_ends_before_a_plan_is_given_up_and_counts() {
    for how in [Report::Failed, Report::Broken] {
        let mut driver = in_pieces();
        let mut execution = reading(&mut driver, GPU2_ARENA, (0, LEN));
        let _ = begun(&mut driver, &mut execution);
        ends(&mut driver, &mut execution, MAIN_ARENA, 0, how);
        // No further copy begins, although one that waited could.
        assert_eq!(begun(&mut driver, &mut execution), (vec![], Next::Wait));
        ends(&mut driver, &mut execution, MAIN_ARENA, 20, Report::Done);
        assert_eq!(begun(&mut driver, &mut execution), (vec![], Next::Wait));
        ends(&mut driver, &mut execution, GPU2_ARENA, 10, Report::Done);
        assert_eq!(begun(&mut driver, &mut execution), (vec![], Next::GiveUp));
        let aborted = driver.act(|state, bench| execution.give_up(bench, state));
        assert_eq!(aborted, EventKind::GivenUp { owner: execution.owner() });
        assert!(driver.state.is_idle());
        let valid: Vec<_> = driver.segments().into_iter().map(|(end, valid, _)| (end, valid)).collect();
        assert_eq!(valid, [(10, vec![1]), (20, vec![0, 2]), (LEN, vec![0, 1])]);
        let open = if how == Report::Broken { Lifecycle::Wedged } else { Lifecycle::Open };
        assert_eq!(driver.state.lifecycle(), open);
    }
}

#[test]
fn a_plan_that_is_stopped_begins_nothing_more() {
    let mut driver = in_pieces();
    let mut before = reading(&mut driver, GPU2_ARENA, (0, LEN));
    before.stop();
    assert_eq!(begun(&mut driver, &mut before), (vec![], Next::GiveUp));
    driver.act(|state, bench| before.give_up(bench, state));
    let mut execution = reading(&mut driver, GPU2_ARENA, (0, LEN));
    let _ = begun(&mut driver, &mut execution);
    execution.stop();
    for (to, start) in [(MAIN_ARENA, 0), (MAIN_ARENA, 20), (GPU2_ARENA, 10)] {
        assert_eq!(begun(&mut driver, &mut execution), (vec![], Next::Wait));
        assert!(execution.must_wait());
        ends(&mut driver, &mut execution, to, start, Report::Done);
    }
    assert_eq!(begun(&mut driver, &mut execution), (vec![], Next::GiveUp));
}

#[test]
fn a_copy_that_the_machine_refuses_ends_the_plan() {
    let mut driver = Driver::new(Bench::star());
    driver.write(GPU_ARENA, (0, LEN));
    let mut execution = reading(&mut driver, GPU2_ARENA, (0, 10));
    // The first hop has its storage.
    let Next::Do(step) = driver.act(|state, _| execution.next(state)) else { panic!("a first hop") };
    report(&mut driver, &mut execution, step, Report::Done);
    driver.act(|state, bench| state.device_lost(bench, GPU));
    let (copies, next) = begun(&mut driver, &mut execution);
    assert!(
        matches!(next, Next::Refused(Refusal::DeviceLost { arena: GPU_ARENA })) && copies.is_empty(),
        "{next:?}"
    );
    assert_eq!(begun(&mut driver, &mut execution).1, Next::GiveUp);
}

#[test]
fn a_step_that_is_not_reported_is_what_comes_next() {
    let mut driver = Driver::new(Bench::star());
    let mut execution = Execution::new(driver.plan(GPU_ARENA, (0, 5), WriteInvalidate));
    let allocate = Step::Allocate { arena: GPU_ARENA };
    for _ in 0..2 {
        assert_eq!(driver.act(|state, _| execution.next(state)), Next::Do(allocate));
        assert_eq!(execution.doing(), Some(allocate));
    }
    report(&mut driver, &mut execution, allocate, Report::Failed);
    assert_eq!((begun(&mut driver, &mut execution).1, execution.doing()), (Next::GiveUp, None));
    assert!(!driver.state.arena(GPU_ARENA).alloc.is_allocated());
}

#[test]
#[should_panic = "a copy is reported once"]
fn a_copy_is_reported_once() {
    let mut driver = in_pieces();
    let mut execution = reading(&mut driver, MAIN_ARENA, (0, 10));
    let _ = begun(&mut driver, &mut execution);
    let copy = Step::Copy(*execution.under_way().next().expect("a copy"));
    report(&mut driver, &mut execution, copy, Report::Done);
    report(&mut driver, &mut execution, copy, Report::Done);
}

#[test]
fn each_purpose_ends_in_its_own_way() {
    let mut driver = Driver::new(Bench::bound(Exclusive));
    driver.write(MAIN_ARENA, (0, LEN));
    let owner = driver.next();
    let prefetch = driver.act(|state, bench| state.prefetch(bench, owner, GPU2_ARENA, Span::new(0, 5)));
    let Begin::Plan(plan) = prefetch else { panic!("the bytes are already valid") };
    let mut execution = Execution::new(plan);
    let _ = begun(&mut driver, &mut execution);
    ends(&mut driver, &mut execution, GPU2_ARENA, 0, Report::Done);
    let finished = driver.act(|state, bench| execution.finish(bench, state).map(|finished| finished.event()));
    assert_eq!(finished, Ok(Some(EventKind::Prefetched { owner, arena: GPU2_ARENA })));
    assert!(driver.state.is_idle());
    let owner = driver.next();
    let plan = driver.act(|state, _| state.bind(owner, GPU_ARENA, MAIN_ARENA, Exclusive)).expect("bindable");
    let mut execution = Execution::new(plan);
    assert_eq!((begun(&mut driver, &mut execution).1, execution.purpose()), (Next::Finish, Purpose::Binding));
    let finished = driver.act(|state, bench| execution.finish(bench, state).map(|finished| finished.event()));
    assert_eq!((finished, driver.state.is_idle()), (Ok(None), true));
    // A plan that was given up cannot be finished.
    let request = driver.request(GPU2_ARENA, &[claim(5, 10, ReadOnly)]);
    let Begin::Plan(plan) = driver.act(|state, bench| state.begin(bench, &request)) else { panic!("a plan") };
    let mut execution = Execution::new(plan);
    driver.act(|state, bench| execution.give_up(bench, state));
    let finished = driver.act(|state, bench| execution.finish(bench, state).map(|_| ()));
    assert_eq!(finished, Err(Refusal::Closed));
}

#[test]
fn a_long_copy_in_several_hops_goes_in_pieces_that_overlap() {
    const PIECE: u64 = 8 << 20;
    let of = |len: u64| {
        let mut driver = Driver::new(Bench::star());
        driver.state = driver.bench.buffer(len);
        driver.write(GPU_ARENA, (0, len));
        driver
    };
    let len = 5 * PIECE + 1;
    let mut driver = of(len);
    let mut execution = reading(&mut driver, GPU2_ARENA, (0, len));
    let (copies, next) = begun(&mut driver, &mut execution);
    assert_eq!((copies, next), ((0..6).map(|piece| (1, 0, piece * PIECE)).collect(), Next::Wait));
    // A piece begins its second hop while others are still in their first one.
    for piece in [3, 0, 5] {
        ends(&mut driver, &mut execution, MAIN_ARENA, piece * PIECE, Report::Done);
        assert_eq!(begun(&mut driver, &mut execution), (vec![(0, 2, piece * PIECE)], Next::Wait));
    }
    for piece in [1, 2, 4] {
        ends(&mut driver, &mut execution, MAIN_ARENA, piece * PIECE, Report::Done);
    }
    assert_eq!(begun(&mut driver, &mut execution).0.len(), 3);
    for piece in 0..6 {
        ends(&mut driver, &mut execution, GPU2_ARENA, piece * PIECE, Report::Done);
    }
    assert_eq!(begun(&mut driver, &mut execution), (vec![], Next::Finish));
    driver.act(|state, bench| execution.finish(bench, state).map(drop)).expect("every piece has arrived");
    assert_eq!(driver.segments().len(), 1, "the pieces are one segment again: {:?}", driver.segments());

    let copies = |len: u64, to: ArenaId| {
        let mut driver = of(len);
        driver.plan(to, (0, len), ReadOnly).steps.iter().filter(|step| matches!(step, Step::Copy(_))).count()
    };
    assert_eq!(copies(PIECE, GPU2_ARENA), 2, "a short copy is whole");
    assert_eq!(copies(100 * PIECE, GPU2_ARENA), 2 * 16, "a very long one has larger pieces");
    assert_eq!(copies(100 * PIECE, MAIN_ARENA), 1, "a copy in one hop overlaps with nothing");
    assert_eq!(copies(1 << 62, GPU2_ARENA), 2 * 16);
}
