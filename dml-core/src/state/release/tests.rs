//! The ends of grants, checked by the segments: the end, the valid-set and the status of each.

use super::super::testbed::{Bench, Driver, GPU, GPU_ARENA, GPU2, GPU2_ARENA, LEN, MAIN_ARENA, claim};
use super::super::{ArenaState, Begin, Phase, Request};
use super::*;
use crate::base::access::Claims;
use Access::{ReadOnly, ReadWrite, WriteInvalidate};
use Remains::{Committed, Lost, Zeros};
use Status::{Defined, Poisoned, Undefined, Zeroed};

const NOBODY: OwnerId = OwnerId(999);

/// Creates a buffer whose bytes were written in main memory and then brought to the GPU.
fn held_twice() -> Driver {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    driver.read(GPU_ARENA, (0, LEN));
    driver
}

#[test]
fn i17_a_commit_is_of_what_was_written_and_no_more() {
    let mut driver = held_twice();
    let request = driver.request(GPU_ARENA, &[claim(0, 5, ReadOnly), claim(5, 9, ReadWrite)]);
    let request = Request {
        claims: Claims::new(request.claims.iter().copied().chain([claim(20, 22, WriteInvalidate)])),
        ..request
    };
    let begin = driver.act(|state, bench| state.begin(bench, &request));
    assert_eq!(begin, Begin::Granted(Seq(1)));
    let released = driver.release(request.grant, Outcome::Done);
    assert_eq!(released, Ok(Release { outcome: Outcome::Done, commit: Some(Seq(2)), lost: None }));
    let (both, there) = (vec![0, 1], vec![1]);
    let expected = [(5, &both), (9, &there), (20, &both), (22, &there), (LEN, &both)];
    assert_eq!(driver.segments(), expected.map(|(end, valid)| (end, valid.clone(), Defined)));
    assert_eq!(driver.state.commit_seq(), Seq(2));
}

#[test]
fn i16_only_a_writer_that_is_done_commits() {
    for (access, outcome) in [
        (ReadOnly, Outcome::Done),
        (ReadOnly, Outcome::Clean),
        (ReadOnly, Outcome::Failed),
        (ReadWrite, Outcome::Clean),
        (ReadWrite, Outcome::NotStarted),
        (WriteInvalidate, Outcome::NotStarted),
    ] {
        let mut driver = held_twice();
        let grant = driver.acquire(GPU_ARENA, (5, 9), access);
        assert_eq!(driver.release(grant, outcome), Ok(Release { outcome, commit: None, lost: None }));
        assert_eq!(driver.segments(), [(LEN, vec![0, 1], Defined)], "{access:?} {outcome:?}");
        assert_eq!(driver.state.commit_seq(), Seq(1));
    }
}

#[test]
fn what_was_to_be_overwritten_cannot_have_stayed_clean() {
    let mut driver = held_twice();
    let grant = driver.acquire(GPU_ARENA, (5, 9), WriteInvalidate);
    driver.refuses(Err(Refusal::NotClean), |state, bench| state.release(bench, grant, Outcome::Clean));
    assert!(driver.release(grant, Outcome::Done).is_ok());
}

#[test]
fn i15_a_grant_ends_once_and_alone() {
    let mut driver = held_twice();
    let first = driver.acquire(GPU_ARENA, (0, 5), ReadWrite);
    let second = driver.acquire(GPU_ARENA, (5, 9), ReadWrite);
    driver.refuses(Err(Refusal::Closed), |state, bench| state.release(bench, NOBODY, Outcome::Done));
    driver.refuses(Err(Refusal::Closed), |state, bench| state.downgrade(bench, NOBODY));
    driver.act(|state, _| state.start(second)).unwrap();
    let phases = |driver: &Driver| {
        driver.state.requestors().iter().map(|entry| (entry.grant, entry.phase)).collect::<Vec<_>>()
    };
    assert_eq!(phases(&driver), [(first, Phase::Granted), (second, Phase::InFlight)]);
    driver.act(|state, _| state.start(NOBODY)).unwrap();
    driver.end(second, Outcome::Done);
    assert_eq!(phases(&driver), [(first, Phase::Granted)]);
    assert_eq!(driver.state.arena(GPU_ARENA).native_refs, 1);
    assert_eq!(driver.segments()[0], (5, vec![0, 1], Defined));
    driver.refuses(Err(Refusal::Closed), |state, bench| state.release(bench, second, Outcome::Done));
}

#[test]
fn i02_a_failed_writer_leaves_what_others_hold() {
    // Valid in both arenas, then in the GPU alone.
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, 10));
    driver.write(GPU_ARENA, (5, LEN));
    let grant = driver.acquire(GPU_ARENA, (0, 10), ReadWrite);
    assert_eq!(driver.segments()[0], (5, vec![0, 1], Defined));
    let released = driver.release(grant, Outcome::Failed);
    assert_eq!(released, Ok(Release { outcome: Outcome::Failed, commit: None, lost: None }));
    let expected = [(5, vec![0], Poisoned(Committed)), (10, vec![], Poisoned(Lost)), (LEN, vec![1], Defined)];
    assert_eq!(driver.segments(), expected);
    // A commit replaces poisoned bytes, a failed writer does not. Bytes outside the claim do not change.
    let grant = driver.acquire(GPU_ARENA, (3, 8), WriteInvalidate);
    driver.end(grant, Outcome::Failed);
    assert_eq!(driver.segments(), expected);
    driver.write(GPU2_ARENA, (3, 8));
    let expected = [
        (3, vec![0], Poisoned(Committed)),
        (8, vec![2], Defined),
        (10, vec![], Poisoned(Lost)),
        (LEN, vec![1], Defined),
    ];
    assert_eq!(driver.segments(), expected);
}

#[test]
fn i02_what_shares_the_storage_of_a_failed_writer_fails_with_it() {
    let mut driver = Driver::new(Bench::bound(crate::Concurrency::BimapFull));
    driver.write(MAIN_ARENA, (0, LEN));
    driver.read(GPU2_ARENA, (0, 10));
    driver.bind(GPU_ARENA, MAIN_ARENA, crate::Concurrency::BimapFull);
    let grant = driver.acquire(GPU_ARENA, (5, 20), ReadWrite);
    driver.end(grant, Outcome::Failed);
    let expected = [
        (5, vec![0, 1, 2], Defined),
        (10, vec![2], Poisoned(Committed)),
        (20, vec![], Poisoned(Lost)),
        (LEN, vec![0, 1], Defined),
    ];
    assert_eq!(driver.segments(), expected);
}

#[test]
fn first_zeros_come_back_after_any_number_of_failures() {
    let mut driver = Driver::zeroed(Bench::star());
    for access in [ReadWrite, WriteInvalidate] {
        let grant = driver.acquire(GPU_ARENA, (5, 10), access);
        driver.end(grant, Outcome::Failed);
        assert_eq!(
            driver.segments(),
            [(5, vec![], Zeroed), (10, vec![], Poisoned(Zeros)), (LEN, vec![], Zeroed)]
        );
    }
    assert_eq!(driver.act(|state, _| state.restore(Span::new(0, LEN))), Ok(true));
    assert_eq!(driver.segments(), [(LEN, vec![], Zeroed)]);
}

#[test]
fn a_lost_device_has_not_done_anything() {
    for (outcome, counts) in [(Outcome::Done, Outcome::Failed), (Outcome::NotStarted, Outcome::NotStarted)] {
        let mut driver = held_twice();
        let grant = driver.acquire(GPU_ARENA, (5, 9), ReadWrite);
        driver.act(|state, bench| state.device_lost(bench, GPU));
        driver.refuses(Err(Refusal::DeviceLost { arena: GPU_ARENA }), |state, bench| {
            state.downgrade(bench, grant)
        });
        let lost = Some(GPU_ARENA).filter(|_| outcome != counts);
        assert_eq!(driver.release(grant, outcome), Ok(Release { outcome: counts, commit: None, lost }));
        let poisoned = driver.segments().iter().any(|(_, _, status)| *status == Poisoned(Committed));
        assert_eq!(poisoned, counts == Outcome::Failed);
    }
    // The loss of another device does not fail the grant.
    let mut driver = held_twice();
    let grant = driver.acquire(GPU_ARENA, (5, 9), ReadWrite);
    driver.act(|state, bench| state.device_lost(bench, GPU2));
    assert_eq!(driver.release(grant, Outcome::Done).map(|release| release.outcome), Ok(Outcome::Done));
}

#[test]
fn i04_a_downgraded_grant_reads_its_own_commit() {
    let mut driver = held_twice();
    let first = driver.acquire(GPU_ARENA, (0, 3), ReadOnly);
    let grant = driver.acquire(GPU_ARENA, (5, 9), ReadWrite);
    assert_eq!(driver.act(|state, bench| state.downgrade(bench, grant)), Ok(Some(Seq(2))));
    let expected = [(5, vec![0, 1], Defined), (9, vec![1], Defined), (LEN, vec![0, 1], Defined)];
    assert_eq!(driver.segments(), expected);
    let entry = driver.state.requestors()[1].clone();
    assert_eq!((entry.grant, entry.seq_at_grant, entry.phase), (grant, Seq(2), Phase::Granted));
    assert_eq!(entry.claims[..], [claim(5, 9, ReadOnly)]);
    // Downgrading a reading grant changes nothing and commits nothing.
    assert_eq!(driver.act(|state, bench| state.downgrade(bench, first)), Ok(None));
    assert_eq!(driver.act(|state, bench| state.downgrade(bench, grant)), Ok(None));
    assert_eq!(driver.release(grant, Outcome::Done).map(|release| release.commit), Ok(None));
}

#[test]
fn restore_gives_back_what_is_left_of_free_bytes() {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, 10));
    driver.write(GPU_ARENA, (10, 20));
    let grant = driver.acquire(GPU_ARENA, (5, 15), ReadWrite);
    driver.end(grant, Outcome::Failed);
    let poisoned = [
        (5, vec![0], Defined),
        (10, vec![0], Poisoned(Committed)),
        (15, vec![], Poisoned(Lost)),
        (20, vec![1], Defined),
        (LEN, vec![], Undefined),
    ];
    assert_eq!(driver.segments(), poisoned);
    let not = |start, end| Err(Refusal::NotRestorable { span: Span::new(start, end) });
    driver.refuses(not(10, 15), |state, _| state.restore(Span::new(0, LEN)));
    driver.refuses(not(14, 15), |state, _| state.restore(Span::new(14, 18)));
    // A kernel holds some of the bytes in order to overwrite them.
    let holder = driver.acquire(GPU2_ARENA, (8, 12), WriteInvalidate);
    driver.refuses(Ok(false), |state, _| state.restore(Span::new(5, 9)));
    assert_eq!(driver.act(|state, _| state.restore(Span::new(3, 8))), Ok(true));
    driver.end(holder, Outcome::NotStarted);
    let restored = [
        (8, vec![0], Defined),
        (10, vec![0], Poisoned(Committed)),
        (15, vec![], Poisoned(Lost)),
        (20, vec![1], Defined),
    ];
    assert_eq!(driver.segments()[..4], restored);
    driver.refuses(Ok(true), |state, _| state.restore(Span::new(15, LEN)));
}

#[test]
fn the_map_state_stays_as_it_is() {
    let mut driver = held_twice();
    let maps = |driver: &Driver| {
        [MAIN_ARENA, GPU_ARENA].map(|id| ArenaState { native_refs: 0, ..*driver.state.arena(id) })
    };
    let grant = driver.acquire(GPU_ARENA, (5, 9), ReadWrite);
    let before = maps(&driver);
    driver.end(grant, Outcome::Done);
    assert_eq!(maps(&driver), before);
}

#[test]
fn a_buffer_that_closes_restores_nothing() {
    let mut driver = held_twice();
    let failed = driver.acquire(GPU_ARENA, (5, 9), ReadWrite);
    driver.end(failed, Outcome::Failed);
    let holder = driver.acquire(MAIN_ARENA, (20, 25), ReadOnly);
    let _ = driver.act(|state, bench| state.close(bench));
    driver.refuses(Err(Refusal::Closed), |state, _| state.restore(Span::new(5, 9)));
    driver.end(holder, Outcome::Done);
    driver.refuses(Err(Refusal::Closed), |state, _| state.restore(Span::new(5, 9)));
}
