//! Whole histories: what threads did together, checked from the recorded events alone; and that the checker
//! sees faults.

#![cfg(not(dml_loom))]

use dml::core::internal::state::Outcome;
use dml::core::{
    Concurrency, DeviceId, Platform, Seq,
    record::{Event, EventKind},
};
use dml_verify::history::{assert_history, violations};
use dml_verify::stress::{Mix, run};
use dml_verify::{
    Audited, CPU, GPU, GPU_ARENA, GPU2_ARENA, MAIN_ARENA, Rig, Shape, bytes, change, get, live_blocks, pair,
    poll_once, put, raw, read, star, write,
};
use std::future::IntoFuture;
use std::sync::atomic::Ordering;
use std::task::Poll;

fn stressed(platform: &Platform) {
    let recording = platform.record();
    let tally = run(platform, Mix { threads: 4, rounds: 300, failures: true });
    let events = recording.finish();
    assert_history(platform, &events);
    let granted =
        events.iter().filter(|event| matches!(event.kind, EventKind::Granted { .. })).count() as u64;
    assert!(granted >= tally.granted.load(Ordering::Relaxed), "every grant is recorded");
    assert!(
        tally.failed.load(Ordering::Relaxed) > 0 && tally.repaired.load(Ordering::Relaxed) > 0,
        "{tally:?}"
    );
    assert_eq!(live_blocks(platform), 0);
}

#[test]
fn i02_threads_over_staged_copies() {
    stressed(&star());
}

#[test]
fn i02_threads_over_mapped_copies() {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::BimapRead);
    stressed(&rig.mapped(GPU_ARENA).mapped(GPU2_ARENA).staged(MAIN_ARENA, GPU2_ARENA).build());
}

#[test]
fn i02_threads_over_coherent_storage() {
    stressed(&Shape::Bound(Concurrency::BimapFull).build());
}

#[test]
fn i11_threads_over_storage_that_is_handed_over() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapRead] {
        stressed(&Shape::Bound(concurrency).build());
    }
}

/// A storage that is freed may have kept the others of its group from sharing coherently: who is let in for
/// that is told of after it.
#[test]
fn i11_a_free_is_told_before_who_is_let_in_by_it() {
    let rig = Rig::new().gpu(Concurrency::BimapFull).gpu(Concurrency::Exclusive);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapFull);
    let platform = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::Exclusive).build();
    let buffer = raw(&platform, 10);
    write(&buffer, MAIN_ARENA, 0..10, 1);
    buffer.bind(GPU_ARENA, MAIN_ARENA).unwrap();
    buffer.bind(GPU2_ARENA, MAIN_ARENA).unwrap();
    write(&buffer, GPU_ARENA, 0..10, 2);
    let kernel = platform.acquire(GPU).read(&buffer.range(0..2)).try_now().unwrap();
    let mut host = platform.acquire(CPU).read_write(&buffer.range(5..7)).into_future();
    assert!(poll_once(&mut host).is_pending());
    buffer.free(GPU2_ARENA).unwrap();
    let Poll::Ready(Ok(host)) = poll_once(&mut host) else { panic!("nobody is in its way") };
    assert_eq!(get(&host, &buffer, 5..7), bytes(2, 5..7));
    drop((kernel, host));
}

/// A history with every sort of event: copies over two hops, commits, a failed kernel, a restore, a prefetch.
fn story() -> (Audited, Vec<Event>) {
    let platform = star();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    let zeros = platform.raw_buffer(40).zeroed().build().unwrap();
    write(&buffer, GPU_ARENA, 0..100, 1);
    assert_eq!(read(&buffer, GPU2_ARENA, 3..97), bytes(1, 3..97));
    change(&buffer, GPU2_ARENA, 10..20, 2);
    assert_eq!(read(&zeros, GPU_ARENA, 5..17), [0; 12]);
    buffer.prefetch(CPU, 0..100).wait().unwrap();
    let mut kernel = platform.acquire(CPU).read_write(&buffer.range(30..50)).try_now().unwrap();
    put(&mut kernel, &buffer, 30, &bytes(3, 30..50));
    kernel.failed().unwrap();
    buffer.restore(0..100).unwrap();
    let mut kernel = platform.acquire(GPU).read_write(&buffer).read(&zeros).try_now().unwrap();
    put(&mut kernel, &buffer, 0, &bytes(4, 0..100));
    let kernel = kernel.downgrade().unwrap();
    assert_eq!(get(&kernel, &buffer, 0..100), bytes(4, 0..100));
    kernel.release().unwrap();
    buffer.free(GPU2_ARENA).unwrap();
    assert_eq!(read(&buffer, GPU2_ARENA, 0..100), bytes(4, 0..100));
    platform.device_lost(DeviceId(2));
    buffer.close();
    drop((buffer, zeros));
    (platform, recording.finish())
}

#[test]
fn the_checker_accepts_what_happened() {
    let (platform, events) = story();
    assert_history(&platform, &events);
}

/// Every history made by one change to an event that `sort` picks; the checker must object to each.
fn objects_to(sort: impl Fn(&EventKind) -> bool, tamper: impl Fn(&mut Vec<Event>, usize)) {
    let (platform, events) = story();
    let picked: Vec<usize> =
        events.iter().enumerate().filter(|(_, event)| sort(&event.kind)).map(|(index, _)| index).collect();
    assert!(!picked.is_empty(), "the story has no such event");
    for index in picked {
        let mut tampered = events.clone();
        tamper(&mut tampered, index);
        assert!(!violations(&platform, &tampered).is_empty(), "{index}: {:?}", events[index].kind);
    }
}

fn drop_it(events: &mut Vec<Event>, index: usize) {
    events.remove(index);
}

#[test]
fn the_checker_misses_a_copy_that_did_not_arrive() {
    objects_to(|kind| matches!(kind, EventKind::CopyDone { .. }), drop_it);
}

#[test]
fn the_checker_sees_a_copy_made_twice() {
    objects_to(
        |kind| matches!(kind, EventKind::CopyDone { .. }),
        |events, index| {
            // Its start is the event before it: both again.
            let again = [events[index - 1].clone(), events[index].clone()];
            events.splice(index + 1..index + 1, again);
        },
    );
}

#[test]
fn the_checker_sees_a_copy_of_too_much() {
    objects_to(
        |kind| matches!(kind, EventKind::CopyStarted { from: Some(_), span, .. } if span.len() == 94),
        |events, index| {
            for event in &mut events[index..index + 2] {
                if let EventKind::CopyStarted { span, .. } | EventKind::CopyDone { span, .. } =
                    &mut event.kind
                {
                    *span = dml::core::Span::new(span.start() - 1, span.end());
                }
            }
        },
    );
}

#[test]
fn the_checker_sees_a_reader_of_another_commit() {
    for by in [1, u64::MAX] {
        objects_to(
            |kind| kind.is_reading_grant(),
            move |events, index| {
                if let EventKind::Granted { seq, .. } = &mut events[index].kind {
                    *seq = Seq(seq.0.wrapping_add(by));
                }
            },
        );
    }
}

#[test]
fn the_checker_misses_a_release() {
    objects_to(|kind| matches!(kind, EventKind::Released { .. }), drop_it);
}

#[test]
fn the_checker_sees_a_release_of_nothing() {
    objects_to(|kind| matches!(kind, EventKind::Granted { .. }), drop_it);
}

#[test]
fn the_checker_sees_storage_that_is_not_there() {
    objects_to(|kind| matches!(kind, EventKind::Allocated { .. }), drop_it);
}

#[test]
fn the_checker_sees_two_writers_at_once() {
    objects_to(
        |kind| matches!(kind, EventKind::Released { outcome: Outcome::Done, commit: Some(_), .. }),
        |events, index| {
            // The release comes after the next grant of the same buffer.
            let buffer = events[index].buffer;
            let next = events[index + 1..]
                .iter()
                .position(|event| event.buffer == buffer && matches!(event.kind, EventKind::Granted { .. }));
            let release = events.remove(index);
            events.insert(index + 1 + next.expect("there is another grant"), release);
        },
    );
}

#[test]
fn the_checker_misses_a_restore_and_a_failure() {
    objects_to(|kind| matches!(kind, EventKind::Restored { .. }), drop_it);
    objects_to(
        |kind| matches!(kind, EventKind::Released { outcome: Outcome::Failed, .. }),
        |events, index| {
            if let EventKind::Released { outcome, .. } = &mut events[index].kind {
                *outcome = Outcome::Done;
            }
        },
    );
}

#[test]
fn a_second_recording_outlives_the_first() {
    let platform = pair();
    let first = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let second = platform.record();
    drop(first);
    let _ = read(&buffer, MAIN_ARENA, 0..100);
    let events = second.finish();
    assert!(events.iter().any(|event| event.kind.is_reading_grant()), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event.kind, EventKind::Created { .. })));
}

#[test]
fn recordings_that_overlap_have_their_own_events() {
    let platform = pair();
    let first = platform.record();
    let buffer = raw(&platform, 100);
    let second = platform.record();
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let outer = first.finish();
    let _ = read(&buffer, GPU_ARENA, 0..100);
    let inner = second.finish();
    let kinds = |events: &[dml::core::record::Event]| -> Vec<EventKind> {
        events.iter().map(|event| event.kind.clone()).collect()
    };
    assert!(matches!(kinds(&outer)[0], EventKind::Created { .. }));
    // What both saw is the same; only the second saw the copy.
    assert_eq!(kinds(&outer)[1..], kinds(&inner)[..outer.len() - 1]);
    assert!(dml_verify::copies(&outer).is_empty() && dml_verify::copies(&inner).len() == 1);
}
