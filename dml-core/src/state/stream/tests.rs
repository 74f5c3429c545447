//! Kernels that follow each other on a stream, and everybody who waits for them.

use super::super::testbed::{Bench, Driver, GPU_ARENA, GPU2_ARENA, LEN, MAIN_ARENA, claim};
use super::super::{Begin, BusyReason, Outcome, Refusal, Remains, Request, Status, Step};
use crate::base::access::Access::{self, ReadOnly, ReadWrite, WriteInvalidate};
use crate::base::id::{ArenaId, ArenaSet, OwnerId, Seq};
use crate::base::range::Span;

/// Creates a buffer whose bytes were written in main memory.
fn written() -> Driver {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    driver
}

fn begins(
    driver: &mut Driver,
    arena: ArenaId,
    span: (u64, u64),
    access: Access,
    is_submission: bool,
) -> (OwnerId, Begin) {
    let request = driver.request(arena, &[claim(span.0, span.1, access)]);
    let request = Request { is_submission, ..request };
    (request.grant, driver.act(|state, bench| state.begin(bench, &request)))
}

/// Acquires bytes for a submission, without starting its kernel.
fn granted(driver: &mut Driver, arena: ArenaId, span: (u64, u64), access: Access) -> OwnerId {
    match begins(driver, arena, span, access, true) {
        (grant, Begin::Granted(_)) => grant,
        (grant, Begin::Plan(plan)) => {
            driver.carry_out(plan).expect("the buffer stays intact");
            grant
        }
        (_, other) => panic!("{other:?}"),
    }
}

fn submit(driver: &mut Driver, arena: ArenaId, span: (u64, u64), access: Access) -> OwnerId {
    let grant = granted(driver, arena, span, access);
    driver.act(|state, _| state.start(grant)).unwrap();
    grant
}

fn ends(driver: &mut Driver, grant: OwnerId, outcome: Outcome) {
    let released = driver.release(grant, outcome).expect("it is held");
    assert_eq!(released.outcome, outcome);
}

const CONFLICT: Begin = Begin::Busy { reason: BusyReason::Conflict, needs_idle: ArenaSet::EMPTY };

#[test]
fn i29_a_submission_follows_those_that_have_started_on_its_stream_and_no_others() {
    for (before, after) in [(ReadWrite, ReadOnly), (ReadOnly, ReadWrite), (WriteInvalidate, ReadWrite)] {
        let mut driver = written();
        let first = granted(&mut driver, GPU_ARENA, (0, LEN), before);
        let (_, waits) = begins(&mut driver, GPU_ARENA, (3, 5), after, true);
        assert_eq!(waits, CONFLICT, "its kernel has not started");
        driver.act(|state, _| state.start(first)).unwrap();
        for (arena, is_submission) in [(GPU_ARENA, false), (MAIN_ARENA, false), (GPU2_ARENA, true)] {
            let (_, waits) = begins(&mut driver, arena, (3, 5), after, is_submission);
            assert_eq!(waits, CONFLICT, "{arena} {is_submission}");
        }
        let second = match begins(&mut driver, GPU_ARENA, (3, 5), after, true) {
            (second, Begin::Granted(seq)) => {
                assert_eq!(seq, Seq(1));
                second
            }
            (_, other) => panic!("{other:?}"),
        };
        driver.act(|state, _| state.start(second)).unwrap();
        ends(&mut driver, first, Outcome::Done);
        ends(&mut driver, second, Outcome::Done);
    }
}

#[test]
fn i29_it_brings_only_what_no_kernel_before_it_writes() {
    let mut driver = written();
    let first = submit(&mut driver, GPU_ARENA, (4, 8), WriteInvalidate);
    let second = submit(&mut driver, GPU_ARENA, (12, 16), WriteInvalidate);
    let (third, begin) = begins(&mut driver, GPU_ARENA, (2, 20), ReadOnly, true);
    let Begin::Plan(plan) = begin else { panic!("{begin:?}") };
    let brought = plan.steps.iter().filter_map(|step| match step {
        Step::Copy(copy) => Some((copy.span.start(), copy.span.end())),
        _ => None,
    });
    let brought: Vec<_> = brought.collect();
    assert_eq!(brought, [(2, 4), (8, 12), (16, 20)]);
    driver.carry_out(plan).unwrap();
    driver.act(|state, _| state.start(third)).unwrap();
    for grant in [first, second, third] {
        ends(&mut driver, grant, Outcome::Done);
    }
    let valid = |driver: &Driver, at| driver.segments().into_iter().find(|(end, ..)| *end > at).unwrap().1;
    assert_eq!((valid(&driver, 2), valid(&driver, 4), valid(&driver, 12)), (vec![0, 1], vec![1], vec![1]));
}

#[test]
fn i29_what_a_failed_kernel_and_those_behind_it_write_is_poisoned() {
    let mut driver = written();
    let [first, second, third] =
        [(0, 4), (2, 6), (8, 10)].map(|span| submit(&mut driver, GPU_ARENA, span, ReadWrite));
    ends(&mut driver, first, Outcome::Done);
    ends(&mut driver, second, Outcome::Failed);
    ends(&mut driver, third, Outcome::Failed);
    let poisoned = Status::Poisoned;
    let expected = [
        (2, vec![1], Status::Defined),
        // The first kernel has overwritten what main memory holds.
        (4, vec![], poisoned(Remains::Lost)),
        (6, vec![0], poisoned(Remains::Committed)),
        (8, vec![0], Status::Defined),
        (10, vec![0], poisoned(Remains::Committed)),
        (LEN, vec![0], Status::Defined),
    ];
    assert_eq!(driver.segments(), expected);
    let (_, refused) = begins(&mut driver, GPU_ARENA, (4, 5), ReadOnly, true);
    let refusal = Refusal::Poisoned { span: Span::new(4, 5), restorable: true };
    assert_eq!(refused, Begin::Refused(refusal));
}

#[test]
fn i29_a_submission_does_not_start_on_what_a_failed_kernel_should_have_written() {
    for outcome in [Outcome::Failed, Outcome::NotStarted] {
        let mut driver = written();
        let first = submit(&mut driver, GPU_ARENA, (0, 4), WriteInvalidate);
        let reader = granted(&mut driver, GPU_ARENA, (2, 3), ReadOnly);
        let other = granted(&mut driver, GPU_ARENA, (3, 6), WriteInvalidate);
        ends(&mut driver, first, outcome);
        let refusal = match outcome {
            Outcome::Failed => Refusal::Poisoned { span: Span::new(2, 3), restorable: true },
            _ => Refusal::Unreachable { arena: GPU_ARENA, span: Span::new(2, 3) },
        };
        assert_eq!(driver.act(|state, _| state.start(reader)), Err(refusal));
        assert_eq!(driver.act(|state, _| state.start(other)), Ok(()), "it reads nothing");
        ends(&mut driver, reader, Outcome::NotStarted);
        ends(&mut driver, other, Outcome::Done);
    }
}

#[test]
fn l03_who_waits_for_a_stream_is_not_passed_by_later_submissions() {
    let mut driver = written();
    let first = submit(&mut driver, GPU_ARENA, (0, LEN), ReadWrite);
    driver.wait(MAIN_ARENA, (0, 4), ReadOnly);
    let (_, waits) = begins(&mut driver, GPU_ARENA, (3, 5), ReadWrite, true);
    assert_eq!(waits, Begin::Busy { reason: BusyReason::Queue, needs_idle: ArenaSet::EMPTY });
    let beside = submit(&mut driver, GPU_ARENA, (4, 8), ReadWrite);
    driver.act(|state, bench| {
        let _ = state.release(bench, first, Outcome::Done).unwrap();
        assert_eq!(state.pump(bench).len(), 1, "it no longer waits");
    });
    ends(&mut driver, beside, Outcome::Done);
}

#[test]
fn i29_more_kernels_than_a_small_set_holds_follow_each_other() {
    let mut driver = written();
    let all: Vec<_> = (0..100).map(|_| submit(&mut driver, GPU_ARENA, (0, LEN), ReadWrite)).collect();
    assert_eq!(begins(&mut driver, MAIN_ARENA, (1, 2), ReadOnly, false).1, CONFLICT);
    let beside: Vec<_> = (0..20).map(|at| submit(&mut driver, GPU_ARENA, (at, at + 1), ReadOnly)).collect();
    for grant in all.into_iter().chain(beside) {
        ends(&mut driver, grant, Outcome::Done);
    }
    assert_eq!(driver.segments(), [(LEN, vec![1], Status::Defined)]);
}
