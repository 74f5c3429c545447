//! Kernels that follow each other on a stream, and the requests that wait for them.

use super::super::testbed::{Bench, Driver, GPU_ARENA, GPU2_ARENA, LEN, MAIN_ARENA, claim};
use super::super::{Begin, BusyReason, Outcome, Refusal, Remains, Request, Status, Step};
use crate::base::access::Access::{self, ReadOnly, ReadWrite, WriteInvalidate};
use crate::base::access::Claims;
use crate::base::id::{ArenaId, ArenaSet, OwnerId};
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

/// The grant of a submission.
struct Submitted {
    grant: OwnerId,
    arena: ArenaId,
    claims: Claims,
}

/// Acquires bytes for a submission, without starting its kernel.
fn granted(driver: &mut Driver, arena: ArenaId, span: (u64, u64), access: Access) -> Submitted {
    let claims = Claims::new([claim(span.0, span.1, access)]);
    match begins(driver, arena, span, access, true) {
        (grant, Begin::Granted(_)) => Submitted { grant, arena, claims },
        (grant, Begin::Plan(plan)) => {
            driver.carry_out(plan).expect("the buffer stays intact");
            Submitted { grant, arena, claims }
        }
        (_, other) => panic!("{other:?}"),
    }
}

fn starts(driver: &mut Driver, submitted: &Submitted) -> Result<(), Refusal> {
    driver.act(|state, _| state.start(submitted.grant))
}

fn submit(driver: &mut Driver, arena: ArenaId, span: (u64, u64), access: Access) -> Submitted {
    let submitted = granted(driver, arena, span, access);
    starts(driver, &submitted).unwrap();
    submitted
}

fn ends(driver: &mut Driver, Submitted { grant, arena, claims }: Submitted, outcome: Outcome) {
    let released = driver.act(|state, bench| state.release_kernel(bench, (grant, arena, &claims), outcome));
    assert_eq!(released.expect("it is held").outcome, outcome);
}

const CONFLICT: Begin = Begin::Busy { reason: BusyReason::Conflict, needs_idle: ArenaSet::EMPTY };

#[test]
fn i29_a_submission_follows_those_that_have_started_on_its_stream_and_no_others() {
    for (before, after) in [(ReadWrite, ReadOnly), (ReadOnly, ReadWrite), (WriteInvalidate, ReadWrite)] {
        let mut driver = written();
        let first = granted(&mut driver, GPU_ARENA, (0, LEN), before);
        let (_, waits) = begins(&mut driver, GPU_ARENA, (3, 5), after, true);
        assert_eq!(waits, CONFLICT, "its kernel has not started");
        starts(&mut driver, &first).unwrap();
        for (arena, is_submission) in [(GPU_ARENA, false), (MAIN_ARENA, false), (GPU2_ARENA, true)] {
            let (_, waits) = begins(&mut driver, arena, (3, 5), after, is_submission);
            assert_eq!(waits, CONFLICT, "{arena} {is_submission}");
        }
        let second = submit(&mut driver, GPU_ARENA, (3, 5), after);
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
    let third = Submitted { grant: third, arena: GPU_ARENA, claims: Claims::new([claim(2, 20, ReadOnly)]) };
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
    let mut driver = written();
    let first = submit(&mut driver, GPU_ARENA, (0, 4), WriteInvalidate);
    let reader = granted(&mut driver, GPU_ARENA, (2, 3), ReadOnly);
    let other = granted(&mut driver, GPU_ARENA, (3, 6), WriteInvalidate);
    ends(&mut driver, first, Outcome::Failed);
    let refusal = Refusal::Poisoned { span: Span::new(2, 3), restorable: true };
    assert_eq!(starts(&mut driver, &reader), Err(refusal));
    assert_eq!(starts(&mut driver, &other), Ok(()), "it reads nothing");
    ends(&mut driver, reader, Outcome::NotStarted);
    ends(&mut driver, other, Outcome::Done);
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
        let _ = state.release(bench, first.grant, Outcome::Done).unwrap();
        assert_eq!(state.pump(bench).len(), 1, "it no longer waits");
    });
    ends(&mut driver, beside, Outcome::Done);
}

#[test]
fn i29_equal_kernels_share_an_entry_and_others_are_as_many_as_there_are() {
    let mut driver = written();
    let all: Vec<_> = (0..100).map(|_| submit(&mut driver, GPU_ARENA, (0, LEN), ReadWrite)).collect();
    assert_eq!(driver.state.requestors().len(), 1);
    assert_eq!(begins(&mut driver, MAIN_ARENA, (1, 2), ReadOnly, false).1, CONFLICT);
    let spans: Vec<_> = (0..LEN - 2).flat_map(|at| [(at, at + 1), (at, at + 2), (at, at + 1)]).collect();
    let others: Vec<_> =
        spans.into_iter().map(|span| submit(&mut driver, GPU_ARENA, span, ReadOnly)).collect();
    assert!(driver.state.requestors().len() > 32);
    for submitted in all.into_iter().chain(others) {
        ends(&mut driver, submitted, Outcome::Done);
    }
    assert_eq!(driver.segments(), [(LEN, vec![1], Status::Defined)]);
}

#[test]
fn i29_one_of_equal_kernels_fails_with_those_behind_it() {
    for fails in 0..4 {
        let mut driver = written();
        let all: Vec<_> = (0..4).map(|_| submit(&mut driver, GPU_ARENA, (0, 4), ReadWrite)).collect();
        for (index, submitted) in all.into_iter().enumerate() {
            ends(&mut driver, submitted, if index < fails { Outcome::Done } else { Outcome::Failed });
        }
        // Once a kernel has ended well, main memory holds something older.
        let (valid, remains) =
            if fails == 0 { (vec![0], Remains::Committed) } else { (vec![], Remains::Lost) };
        let expected = [(4, valid, Status::Poisoned(remains)), (LEN, vec![0], Status::Defined)];
        assert_eq!(driver.segments(), expected, "{fails}");
    }
}
