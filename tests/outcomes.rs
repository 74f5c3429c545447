//! How grants end: committed, not started, clean, failed, downgraded, of a lost device; and what is left
//! then.

#![cfg(not(dml_loom))]

use dml::core::internal::state::{Remains, Status};
use dml::core::{
    AcquireError, ArenaSet, Fence, PoisonedEnd, RawBuffer, Region, Seq, Span, TransferError,
    record::EventKind,
};
use dml_verify::history::assert_history;
use dml_verify::{
    CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, MAIN_ARENA, arenas, bytes, change, check, get, pair, poll_once,
    put, raw, read, segments, star, write,
};
use std::future::IntoFuture;
use std::task::Poll;

fn poisoned(buffer: &RawBuffer, range: std::ops::Range<u64>) -> (Span, bool) {
    match buffer.platform().acquire(CPU).read(&buffer.range(range)).try_now() {
        Err(AcquireError::Poisoned { span, restorable, .. }) => (span, restorable),
        other => panic!("{other:?}"),
    }
}

/// A gpu's kernel that changes a range and fails half way.
fn fail(buffer: &RawBuffer, range: std::ops::Range<u64>) {
    let region = buffer.range(range.clone());
    let mut kernel = buffer.platform().acquire(GPU).write(&region).try_now().unwrap();
    put(&mut kernel, buffer, range.start, &bytes(99, range.start..(range.start + range.end) / 2));
    kernel.failed().unwrap();
}

#[test]
fn i02_a_failed_kernel_poisons_what_it_was_to_write_and_nothing_else() {
    let platform = star();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let (reads, writes) = (buffer.range(0..30), buffer.range(41..59));
    let mut kernel = platform.acquire(GPU).read(&reads).read_write(&writes).try_now().unwrap();
    put(&mut kernel, &buffer, 41, &bytes(2, 41..50));
    kernel.failed().unwrap();
    assert_eq!(poisoned(&buffer, 0..100), (Span::new(41, 59), true));
    assert_eq!(read(&buffer, GPU_ARENA, 0..41), bytes(1, 0..41));
    assert_eq!(read(&buffer, GPU2_ARENA, 59..100), bytes(1, 59..100));
    // Part of it is restored, part is overwritten.
    buffer.restore(0..45).unwrap();
    assert_eq!(read(&buffer, GPU_ARENA, 0..45), bytes(1, 0..45));
    write(&buffer, GPU2_ARENA, 45..59, 3);
    let whole = [bytes(1, 0..45), bytes(3, 45..59), bytes(1, 59..100)].concat();
    assert_eq!(read(&buffer, GPU_ARENA, 0..100), whole);
    drop((reads, writes, buffer));
    assert_history(&platform, &recording.finish());
}

#[test]
fn i13_what_nobody_else_holds_is_lost_with_its_writer() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    fail(&buffer, 10..20);
    assert_eq!(poisoned(&buffer, 0..100), (Span::new(10, 20), false));
    let lost = buffer.restore(0..100);
    assert!(
        matches!(lost, Err(AcquireError::NotRestorable { span, .. }) if span == Span::new(10, 20)),
        "{lost:?}"
    );
    // L-5: overwriting always helps.
    write(&buffer, MAIN_ARENA, 10..20, 2);
    assert_eq!(
        read(&buffer, GPU_ARENA, 0..30),
        [bytes(1, 0..10), bytes(2, 10..20), bytes(1, 20..30)].concat()
    );
}

#[test]
fn i13_first_zeros_can_be_restored_though_nobody_holds_them() {
    let platform = pair();
    let buffer = platform.raw_buffer(100).zeroed().build().unwrap();
    fail(&buffer, 30..70);
    assert_eq!(segments(&buffer)[1], (30..70, ArenaSet::EMPTY, Status::Poisoned(Remains::Zeros)));
    assert_eq!(poisoned(&buffer, 0..100), (Span::new(30, 70), true));
    buffer.restore(40..50).unwrap();
    assert_eq!(read(&buffer, MAIN_ARENA, 40..50), [0; 10]);
    buffer.restore(0..100).unwrap();
    // Nothing of the failed kernel's bytes is seen, not even where it worked.
    assert_eq!(read(&buffer, GPU_ARENA, 0..100), [0; 100]);
}

#[test]
fn restore_waits_for_nobody() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    fail(&buffer, 30..70);
    let writer = platform.acquire(CPU).write(&buffer.range(50..52)).try_now().unwrap();
    assert!(matches!(buffer.restore(0..100), Err(AcquireError::Busy { .. })));
    buffer.restore(30..50).unwrap();
    drop(writer);
    buffer.restore(0..100).unwrap();
    assert_eq!(read(&buffer, GPU_ARENA, 0..100), bytes(1, 0..100));
    assert!(matches!(buffer.restore(99..101), Err(AcquireError::OutOfRange { .. })));
}

#[test]
fn i16_a_grant_dropped_before_it_was_used_changes_nothing() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let before = segments(&buffer);
    drop(platform.acquire(GPU).write(&buffer.range(3..50)).try_now().unwrap());
    assert_eq!((segments(&buffer), buffer.snapshot().commit_seq()), (before, Seq(1)));
    // Looked at to be read, it has not changed either.
    let read_only = platform.acquire(GPU).read_write(&buffer.range(3..50)).try_now().unwrap();
    assert_eq!(get(&read_only, &buffer, 3..50), bytes(1, 3..50));
    drop(read_only);
    assert_eq!(buffer.snapshot().commit_seq(), Seq(1));
    // Once storage was handed out for writing its contents are unknown: the grant counts as failed.
    let mut used = platform.acquire(GPU).write(&buffer.range(3..50)).try_now().unwrap();
    put(&mut used, &buffer, 3, &bytes(2, 3..50));
    drop(used);
    assert_eq!(poisoned(&buffer, 0..100), (Span::new(3, 50), true));
    buffer.restore(0..100).unwrap();
    assert_eq!(read(&buffer, MAIN_ARENA, 0..60), bytes(1, 0..60));
}

#[test]
fn a_panicking_writer_poisons_and_a_panicking_reader_does_not() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let panics = |writes: bool| {
        let buffer = buffer.clone();
        let thread = std::thread::spawn(move || {
            let region = buffer.range(10..20);
            let asked = buffer.platform().acquire(GPU);
            let asked = if writes { asked.read_write(&region) } else { asked.read(&region) };
            let mut kernel = asked.try_now().unwrap();
            if writes {
                put(&mut kernel, &buffer, 10, &bytes(9, 10..15));
            }
            assert_eq!(get(&kernel, &buffer, 10..20), [0u8; 0], "this kernel goes wrong");
        });
        assert!(thread.join().is_err());
    };
    panics(false);
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), bytes(1, 0..100));
    panics(true);
    assert_eq!(poisoned(&buffer, 0..100), (Span::new(10, 20), true));
}

#[test]
fn a_fence_that_fails_poisons() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let launch = |fence| {
        let kernel = platform.acquire(GPU).read_write(&buffer.range(0..9)).try_now().unwrap();
        kernel.in_flight(fence)
    };
    let failing = || Fence::running(|| Err(TransferError::DeviceLost { loss: None }));
    assert_eq!(launch(failing()).wait().map(drop), Err(TransferError::DeviceLost { loss: None }));
    assert_eq!(poisoned(&buffer, 0..100), (Span::new(0, 9), true));
    buffer.restore(0..100).unwrap();
    drop(launch(failing()));
    assert_eq!(poisoned(&buffer, 0..100), (Span::new(0, 9), true));
}

#[test]
fn i16_clean_leaves_the_contents_and_is_refused_to_those_who_overwrite() {
    let platform = star();
    let (buffer, other) = (raw(&platform, 100), raw(&platform, 100));
    write(&buffer, MAIN_ARENA, 0..100, 1);
    write(&other, MAIN_ARENA, 0..100, 2);
    let _ = read(&buffer, GPU2_ARENA, 0..100);
    let kernel = platform.acquire(GPU).read_write(&buffer).try_now().unwrap();
    assert_eq!(get(&kernel, &buffer, 5..9), bytes(1, 5..9));
    kernel.clean().unwrap();
    let everyone = arenas([MAIN_ARENA, GPU_ARENA, GPU2_ARENA]);
    assert_eq!(segments(&buffer), [(0..100, everyone, Status::Defined)]);
    let kernel = platform.acquire(GPU).read_write(&buffer).write(&other.range(0..10)).try_now().unwrap();
    let refused = kernel.clean();
    assert!(
        matches!(refused, Err(AcquireError::NotClean { ref buffer }) if *buffer == other.id()),
        "{refused:?}"
    );
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), bytes(1, 0..100));
    assert_eq!(poisoned(&other, 0..100), (Span::new(0, 10), true));
    assert!(check(&buffer).requestors().is_empty() && check(&other).requestors().is_empty());
}

#[test]
fn i04_downgrade_lets_readers_in_and_they_see_the_commit() {
    let platform = star();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let mut kernel = platform.acquire(GPU).read_write(&buffer.range(20..80)).try_now().unwrap();
    put(&mut kernel, &buffer, 20, &bytes(2, 20..80));
    let mut reader = platform.acquire(GPU2).read(&buffer).into_future();
    let mut writer = platform.acquire(CPU).write(&buffer.range(20..21)).into_future();
    assert!(poll_once(&mut reader).is_pending() && poll_once(&mut writer).is_pending());
    let kernel = kernel.downgrade().unwrap();
    let Poll::Ready(Ok(reader)) = poll_once(&mut reader) else { panic!("readers come in") };
    assert!(poll_once(&mut writer).is_pending(), "writers do not");
    let whole = [bytes(1, 0..20), bytes(2, 20..80), bytes(1, 80..100)].concat();
    assert_eq!(get(&reader, &buffer, 0..100), whole);
    assert_eq!(get(&kernel, &buffer, 20..80), bytes(2, 20..80));
    reader.release().unwrap();
    // What it may write no more, its end does not commit.
    kernel.release().unwrap();
    assert_eq!(buffer.snapshot().commit_seq(), Seq(2));
    let Poll::Ready(Ok(writer)) = poll_once(&mut writer) else { panic!("now they do") };
    drop(writer);
    drop(buffer);
    let events = recording.finish();
    let seen = events.iter().rev().find_map(|event| match event.kind {
        EventKind::Granted { arena: GPU2_ARENA, seq, .. } => Some(seq),
        _ => None,
    });
    assert_eq!(seen, Some(Seq(2)));
    assert_history(&platform, &events);
}

#[test]
fn a_downgraded_view_shows_and_does_not_change() {
    let platform = pair();
    let buffer = raw(&platform, 64);
    let mut kernel = platform.acquire(CPU).write(&buffer).try_now().unwrap();
    kernel.slice_mut::<u8>(&buffer).unwrap().copy_from_slice(&bytes(1, 0..64));
    let mut kernel = kernel.downgrade().unwrap();
    assert_eq!(kernel.slice::<u8>(&buffer).unwrap(), bytes(1, 0..64));
    assert!(kernel.slice_mut::<u8>(&buffer).is_err());
    assert!(kernel.views().unwrap()[0].slice_mut::<u8>().is_err());
}

#[test]
fn i16_a_lost_device_takes_its_bytes_and_no_others() {
    let platform = star();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let _ = read(&buffer, GPU_ARENA, 0..100);
    write(&buffer, GPU_ARENA, 40..60, 2);
    platform.device_lost(GPU);
    assert_eq!(poisoned(&buffer, 0..100), (Span::new(40, 60), false));
    assert_eq!(read(&buffer, GPU2_ARENA, 0..40), bytes(1, 0..40));
    let gone = platform.acquire(GPU).read(&buffer.range(0..10)).try_now().unwrap_err();
    assert!(gone.is_device_lost(), "{gone}");
    write(&buffer, GPU2_ARENA, 40..60, 3);
    assert_eq!(
        read(&buffer, MAIN_ARENA, 30..70),
        [bytes(1, 30..40), bytes(3, 40..60), bytes(1, 60..70)].concat()
    );
    // Buffers made later know of it too.
    let later = raw(&platform, 10);
    assert!(platform.acquire(GPU).write(&later).try_now().unwrap_err().is_device_lost());
    drop((buffer, later));
    assert_history(&platform, &recording.finish());
}

#[test]
fn a_grant_of_a_lost_device_ends_as_failed() {
    let platform = star();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let mut kernel = platform.acquire(GPU).read_write(&buffer.range(10..20)).try_now().unwrap();
    put(&mut kernel, &buffer, 10, &bytes(2, 10..20));
    let reader = platform.acquire(GPU).read(&buffer.range(50..60)).try_now().unwrap();
    let mut waits = platform.acquire(GPU2).read(&buffer).into_future();
    assert!(poll_once(&mut waits).is_pending());
    platform.device_lost(GPU);
    assert!(kernel.release().unwrap_err().is_device_lost());
    assert!(matches!(
        poll_once(&mut waits),
        Poll::Ready(Err(AcquireError::Poisoned { restorable: true, .. }))
    ));
    assert!(reader.release().unwrap_err().is_device_lost());
    buffer.restore(0..100).unwrap();
    change(&buffer, GPU2_ARENA, 0..100, 3);
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), bytes(3, 0..100));
    // And one that would go on reading what it wrote.
    let kernel = platform.acquire(GPU2).write(&buffer).try_now().unwrap();
    platform.device_lost(GPU2);
    assert!(kernel.downgrade().unwrap_err().is_device_lost());
    check(&buffer);
}

#[test]
fn a_waiter_for_a_lost_device_is_told() {
    let platform = star();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let writer = platform.acquire(CPU).write(&buffer).try_now().unwrap();
    let mut waits = platform.acquire(GPU).read(&buffer).into_future();
    assert!(poll_once(&mut waits).is_pending());
    platform.device_lost(GPU);
    drop(writer);
    let Poll::Ready(Err(error)) = poll_once(&mut waits) else { panic!("nothing is left to wait for") };
    assert!(error.is_device_lost(), "{error}");
}

/// Returns what a reader of a byte is told of its poisoner, and the whole sentence.
fn told(buffer: &RawBuffer, at: u64) -> (Option<PoisonedEnd>, u32, String) {
    let error = buffer.platform().acquire(CPU).read(&buffer.range(at..at + 1)).try_now().unwrap_err();
    let AcquireError::Poisoned { by, .. } = &error else { panic!("{error}") };
    (by.as_ref().map(|by| by.end), by.as_ref().map_or(0, |by| by.acquired_at.line()), error.to_string())
}

/// A reader was told of "a failed writer" where its own program had forgotten a release.
#[test]
fn a_reader_is_told_which_grant_poisoned_its_bytes() {
    let platform = star();
    let buffer = platform.buffer::<u8>(100).label("image").build().unwrap();
    buffer.store(&[7; 100]).unwrap();
    let (mut dropped, line) = (buffer.write().unwrap(), line!());
    dropped[3] = 8;
    drop(dropped);
    let (end, at, sentence) = told(buffer.raw(), 3);
    assert_eq!((end, at), (Some(PoisonedEnd::Dropped), line));
    let grant = format!("the grant acquired at tests/outcomes.rs:{line}:");
    assert!(sentence.contains(&grant) && sentence.contains("was dropped without release"), "{sentence}");
    assert!(sentence.contains("image"), "{sentence}");

    // The last one counts, byte by byte.
    let (failed, later) = (platform.acquire(CPU).write(&buffer.range(50..60)).wait().unwrap(), line!());
    failed.failed().unwrap();
    assert_eq!(told(buffer.raw(), 55).0, Some(PoisonedEnd::Failed));
    assert_eq!(
        (told(buffer.raw(), 55).1, told(buffer.raw(), 49).1, told(buffer.raw(), 60).1),
        (later, line, line)
    );
    buffer.store(&[1; 100]).unwrap();
    let (mut dropped, last) =
        (buffer.range(0..10).buffer().platform().acquire(CPU).write(&buffer).wait().unwrap(), line!());
    dropped.slice_mut(&buffer).unwrap()[0] = 1;
    drop(dropped);
    assert_eq!((told(buffer.raw(), 55).1, told(buffer.raw(), 0).1), (last, last));

    // Only the bytes of each count, however often.
    buffer.store(&[1; 100]).unwrap();
    for _ in 0..1000 {
        platform.acquire(CPU).write(&buffer.range(0..60)).wait().unwrap().failed().unwrap();
        platform.acquire(CPU).write(&buffer.range(40..100)).wait().unwrap().failed().unwrap();
    }
    let (middle, line) = (platform.acquire(CPU).write(&buffer.range(30..50)).wait().unwrap(), line!());
    middle.failed().unwrap();
    let lines = [0, 29, 30, 49, 50, 99].map(|at| told(buffer.raw(), at).1);
    assert_eq!(lines, [line - 3, line - 3, line, line, line - 2, line - 2]);

    // A reader's drop poisons nothing, nor that of a writer which did not look.
    buffer.store(&[1; 100]).unwrap();
    drop(buffer.read().unwrap());
    drop(platform.acquire(CPU).write(&buffer).wait().unwrap());
    assert_eq!(buffer.read().unwrap()[..], [1; 100]);
}

#[test]
fn contents_are_stored_and_loaded_with_one_copy() {
    let platform = star();
    let buffer = platform.buffer::<u32>(100).build().unwrap();
    let values: Vec<u32> = (0..100).map(|i| i * i).collect();
    buffer.store(&values).unwrap();
    let mut loaded = vec![0; 100];
    buffer.load_into(&mut loaded).unwrap();
    assert_eq!(loaded, values);
    buffer.range(10..20).store(&values[20..30]).unwrap();
    buffer.range(5..25).load_into(&mut loaded[..20]).unwrap();
    assert_eq!(loaded[..20], [&values[5..10], &values[20..30], &values[20..25]].concat());
    assert!(platform.counters().transfers().is_empty(), "the host's memory is enough");
    write(buffer.raw(), GPU_ARENA, 0..400, 5);
    let moved = || platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum::<u64>();
    let before = moved();
    buffer.load_into(&mut loaded).unwrap();
    assert_eq!((moved() - before, bytemuck::cast_slice(&loaded)), (400, &bytes(5, 0..400)[..]));

    // Nothing is written of what does not fit.
    let refused = buffer.store(&values[1..]).unwrap_err().to_string();
    assert!(refused.contains("take 400 bytes, and 396 were given"), "{refused}");
    assert!(
        buffer.range(0..2).load_into(&mut loaded).unwrap_err().to_string().contains("take 8 bytes, and 400")
    );
    let outside = buffer.range(99..101).store(&values[..2]).unwrap_err();
    assert!(matches!(outside, AcquireError::OutOfRange { .. }), "{outside}");
    assert_eq!(buffer.read().unwrap()[..], loaded[..]);
    platform.buffer::<u32>(0).build().unwrap().store(&[]).unwrap();
}
