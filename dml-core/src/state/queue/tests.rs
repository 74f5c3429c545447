//! The order in which waiting requests are admitted.

use super::super::Outcome;
use super::super::testbed::{Bench, CPU, Driver, GPU_ARENA, GPU2_ARENA, LEN, MAIN_ARENA, claim};
use super::*;
use crate::base::access::Access::{ReadOnly, ReadWrite, WriteInvalidate};
use crate::base::id::{OwnerId, Seq};
use crate::base::range::Span;
use crate::memory::desc::Concurrency::Exclusive;
use crate::memory::link::Allocation;
use std::cell::Cell;

thread_local! {
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// Counts an examination of a waiting request.
pub(super) fn count_look() {
    LOOKS.set(LOOKS.get() + 1);
}

/// Creates a buffer whose bytes are all valid in main memory and in the first GPU.
fn written() -> Driver {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    driver.read(GPU_ARENA, (0, LEN));
    driver
}

/// Ends a grant, and returns the tickets of the admitted requests.
fn leave(driver: &mut Driver, grant: OwnerId) -> Vec<Ticket> {
    driver.act(|state, bench| {
        assert!(state.release(bench, grant, Outcome::NotStarted).is_ok());
        state.pump(bench).into_iter().map(|admission| admission.ticket).collect()
    })
}

fn tickets(driver: &Driver) -> Vec<Ticket> {
    driver.state.queue().map(|waiting| waiting.ticket).collect()
}

#[test]
fn l03_nobody_passes_whom_he_would_keep_waiting() {
    let mut driver = written();
    let reader = driver.acquire(MAIN_ARENA, (0, 10), ReadOnly);
    let writer = driver.wait(MAIN_ARENA, (5, 15), ReadWrite);
    let queue = Begin::Busy { reason: BusyReason::Queue, needs_idle: ArenaSet::EMPTY };
    // Requests for the writer's bytes queue behind it; requests for other bytes are granted.
    for (span, access, expected) in [
        ((5, 6), ReadOnly, queue.clone()),
        ((10, 15), WriteInvalidate, queue.clone()),
        ((0, 5), ReadOnly, Begin::Granted(Seq(1))),
        ((15, 20), WriteInvalidate, Begin::Granted(Seq(1))),
        ((14, 20), ReadOnly, queue),
    ] {
        assert_eq!(driver.clone().ask(GPU_ARENA, span, access).1, expected, "{span:?} {access:?}");
    }
    // The same holds for requests that wait behind the writer.
    let request = driver.request(MAIN_ARENA, &[claim(14, 20, ReadOnly)]);
    let behind = Ticket(request.grant.0);
    driver.act(|state, _| state.enqueue(behind, request));
    assert_eq!(driver.act(|state, bench| state.pump(bench)), []);
    assert_eq!(tickets(&driver), [writer, behind]);
    assert_eq!(leave(&mut driver, reader), [writer]);
    assert_eq!(tickets(&driver), [behind]);
    let grant = driver.state.requestors()[0].grant;
    assert_eq!(leave(&mut driver, grant), [behind]);
}

#[test]
fn readers_are_let_in_together() {
    let mut driver = written();
    let writer = driver.acquire(MAIN_ARENA, (0, 10), ReadWrite);
    let first = driver.wait(MAIN_ARENA, (0, 5), ReadOnly);
    let second = driver.wait(MAIN_ARENA, (3, 10), ReadOnly);
    let third = driver.wait(MAIN_ARENA, (9, 10), WriteInvalidate);
    let fourth = driver.wait(MAIN_ARENA, (9, 10), ReadOnly);
    assert_eq!(leave(&mut driver, writer), [first, second]);
    assert_eq!(tickets(&driver), [third, fourth]);
    let begun = driver.state.requestors().len();
    assert_eq!(begun, 2);
}

#[test]
fn l03_nobody_takes_an_arena_that_an_earlier_one_needs_idle() {
    let bench = Bench::new().gpu(Exclusive).gpu(Exclusive).link(MAIN_ARENA, GPU_ARENA, 10);
    let bench = bench.link_via((GPU_ARENA, CPU), (MAIN_ARENA, CPU), Allocation::Internal, 10);
    let bench = bench.link(GPU_ARENA, GPU2_ARENA, 10);
    let mut driver = Driver::new(bench);
    driver.write(GPU_ARENA, (0, LEN));
    driver.read(GPU2_ARENA, (20, LEN));
    let kernel = driver.acquire(GPU_ARENA, (0, 5), ReadOnly);
    // The host must map the GPU's storage, which a kernel uses.
    let host = driver.wait(MAIN_ARENA, (10, 15), ReadOnly);
    let queue = Begin::Busy { reason: BusyReason::Queue, needs_idle: ArenaSet::EMPTY };
    assert_eq!(driver.clone().ask(GPU_ARENA, (0, 5), ReadOnly).1, queue);
    // Requests that conflict with it, or copy from that arena, queue. Other requests are granted.
    assert_eq!(driver.clone().ask(GPU2_ARENA, (10, 15), WriteInvalidate).1, queue);
    assert_eq!(driver.clone().ask(GPU2_ARENA, (0, 5), ReadOnly).1, queue);
    assert!(matches!(driver.clone().ask(GPU2_ARENA, (20, 25), ReadOnly).1, Begin::Granted(_)));
    let request = driver.request(GPU_ARENA, &[claim(0, 5, ReadOnly)]);
    let behind = Ticket(request.grant.0);
    driver.act(|state, _| state.enqueue(behind, request));
    assert_eq!(driver.act(|state, bench| state.pump(bench)), []);
    let admitted = driver.act(|state, bench| {
        assert!(state.release(bench, kernel, Outcome::Done).is_ok());
        state.pump(bench)
    });
    assert_eq!(admitted.iter().map(|admission| admission.ticket).collect::<Vec<_>>(), [host]);
    assert!(matches!(admitted[0].begin, Begin::Plan(_)));
    assert_eq!(tickets(&driver), [behind]);
}

#[test]
fn i21_a_ticket_leaves_the_queue_once() {
    let mut driver = written();
    let _ = driver.acquire(MAIN_ARENA, (0, 10), ReadWrite);
    let waiting = [0, 1, 2].map(|start| driver.wait(MAIN_ARENA, (start, 5), ReadOnly));
    assert!(driver.act(|state, _| state.cancel(waiting[1])));
    assert_eq!(tickets(&driver), [waiting[0], waiting[2]]);
    driver.refuses(false, |state, _| state.cancel(waiting[1]));
    assert!(driver.act(|state, _| state.cancel(waiting[0])));
    assert_eq!(tickets(&driver), [waiting[2]]);
}

#[test]
#[should_panic(expected = "I-21")]
fn i21_tickets_do_not_come_twice() {
    let mut driver = written();
    let _ = driver.acquire(MAIN_ARENA, (0, 10), ReadWrite);
    let ticket = driver.wait(MAIN_ARENA, (0, 5), ReadOnly);
    let request = driver.request(MAIN_ARENA, &[claim(0, 5, ReadOnly)]);
    driver.state.enqueue(ticket, request);
}

#[test]
fn who_waits_for_what_can_never_be_is_told() {
    let mut driver = written();
    let writer = driver.acquire(MAIN_ARENA, (0, 10), ReadWrite);
    let ticket = driver.wait(GPU2_ARENA, (0, 10), ReadOnly);
    let admitted = driver.act(|state, bench| {
        assert!(state.release(bench, writer, Outcome::Failed).is_ok());
        state.pump(bench)
    });
    let refusal = Refusal::Poisoned { span: Span::new(0, 10), restorable: true };
    assert_eq!((admitted[0].ticket, &admitted[0].begin), (ticket, &Begin::Refused(refusal)));
    assert_eq!(admitted[0].request.arena, GPU2_ARENA);
}

/// A kernel has two waiting requests for the same bytes. When the later one is granted, the earlier one is
/// refused at once, because it can never be granted.
#[test]
fn l03_a_kernel_let_in_twice_is_told_the_first_time() {
    let mut driver = written();
    let writer = driver.acquire(MAIN_ARENA, (0, 10), WriteInvalidate);
    let other = driver.acquire(MAIN_ARENA, (20, LEN), WriteInvalidate);
    let both = driver.request(MAIN_ARENA, &[claim(0, LEN, ReadOnly)]);
    let (first, kernel) = (Ticket(both.grant.0), both.kernel);
    driver.act(|state, _| state.enqueue(first, both));
    let some = Request { kernel, ..driver.request(MAIN_ARENA, &[claim(5, 10, ReadOnly)]) };
    let second = Ticket(some.grant.0);
    driver.act(|state, _| state.enqueue(second, some));
    let admitted = driver.act(|state, bench| {
        assert!(state.release(bench, writer, Outcome::NotStarted).is_ok());
        state.pump(bench)
    });
    let held = Refusal::AlreadyHeld { kernel, span: Span::new(5, 10) };
    let told: Vec<_> = admitted.into_iter().map(|admission| (admission.ticket, admission.begin)).collect();
    assert_eq!(told, [(second, Begin::Granted(Seq(1))), (first, Begin::Refused(held))]);
    driver.end(other, Outcome::NotStarted);
}

#[test]
fn bytes_of_many_claims_are_one_set() {
    let mut spans = Spans::default();
    let mut model = [false; 40];
    for (start, end) in [(10, 12), (20, 25), (12, 14), (0, 1), (24, 30), (5, 35), (36, 40), (35, 36), (1, 2)]
    {
        spans.add(Span::new(start, end));
        model[start as usize..end as usize].fill(true);
        for from in 0..40 {
            for to in from + 1..=40 {
                let is_met = model[from..to].contains(&true);
                assert_eq!(
                    spans.overlap(Span::new(from as u64, to as u64)),
                    is_met,
                    "{from}..{to} of {spans:?}"
                );
            }
        }
    }
    assert_eq!(spans.ends.clone().into_iter().collect::<Vec<_>>(), [(0, 2), (5, 40)]);
    assert_eq!(spans.len, 37);
}

/// Serving a long queue takes a bounded time for each request.
#[test]
fn those_behind_a_writer_of_all_bytes_are_not_looked_at() {
    const REQUESTS: usize = 500;
    for access in [ReadWrite, WriteInvalidate] {
        let mut driver = written();
        let mut grant = driver.acquire(MAIN_ARENA, (0, LEN), ReadWrite);
        LOOKS.set(0);
        (0..REQUESTS).for_each(|_| _ = driver.wait(MAIN_ARENA, (0, LEN), access));
        for served in 1..=REQUESTS {
            assert_eq!(leave(&mut driver, grant).len(), 1);
            assert_eq!(tickets(&driver).len(), REQUESTS - served);
            grant = driver.state.requestors()[0].grant;
        }
        // Each release examines the admitted request and the next one, which must wait.
        assert!(LOOKS.get() <= 4 * REQUESTS, "{} looks", LOOKS.get());
    }
}

/// Bytes claimed only by requests that have left do not hide that the first request bars all others.
#[test]
fn the_queue_forgets_bytes_that_no_request_claims() {
    let mut driver = written();
    let grant = driver.acquire(MAIN_ARENA, (0, LEN), ReadWrite);
    let first = driver.wait(GPU_ARENA, (0, LEN), ReadOnly);
    driver.act(|state, _| assert!(state.cancel(first)));
    (0..3).for_each(|_| _ = driver.wait(MAIN_ARENA, (0, 10), ReadWrite));
    assert_eq!(driver.act(|state, bench| state.pump(bench)), []);
    LOOKS.set(0);
    assert_eq!(driver.act(|state, bench| state.pump(bench)), []);
    assert_eq!(LOOKS.get(), 1);
    assert_eq!(leave(&mut driver, grant).len(), 1);
}
