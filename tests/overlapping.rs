//! An acquire of several buffers: their copies overlap, and everything else is as if one buffer came after the other.

#![cfg(not(dml_loom))]

use dml::core::{AcquireError, DeviceId, RawBuffer, TransferError};
use dml_verify::held::held_star;
use dml_verify::{Audited, poll_once};
use std::future::IntoFuture;
use std::task::Poll;
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const LEN: u64 = 48;

/// A buffer that the processor has written.
fn written(platform: &Audited) -> RawBuffer {
    let buffer = platform.raw_buffer(LEN).build().unwrap();
    platform.acquire(CPU).write(&buffer).try_now().unwrap().release().unwrap();
    buffer
}

#[test]
fn copies_of_several_buffers_are_under_way_at_once() {
    let (platform, held) = held_star();
    let buffers = [(); 3].map(|()| written(&platform));
    let acquire = || buffers.iter().fold(platform.acquire(GPU), |acquire, buffer| acquire.read(buffer));
    let mut future = acquire().into_future();
    assert!(poll_once(&mut future).is_pending());
    assert_eq!(held.begun().len(), 3, "none waits for another");
    // They end in any order.
    for (index, still) in [(1, true), (0, true), (2, false)] {
        held.begun()[index].end(Ok(LEN));
        let polled = poll_once(&mut future);
        assert_eq!(polled.is_pending(), still);
        if let Poll::Ready(granted) = polled {
            granted.unwrap().release().unwrap();
        }
    }
    // A thread that sleeps has begun all of them, too.
    buffers.iter().for_each(|buffer| {
        platform.acquire(CPU).write(buffer).try_now().unwrap().release().unwrap();
    });
    std::thread::scope(|scope| {
        scope.spawn(|| acquire().wait().unwrap().release().unwrap());
        while held.begun().len() < 6 {
            std::thread::yield_now();
        }
        held.begun()[3..].iter().rev().for_each(|copy| copy.end(Ok(LEN)));
    });
    assert!(buffers.iter().all(|buffer| buffer.snapshot().is_idle()));
}

/// Who is granted at once, before another whose copy is under way, has his place among the grants all the same.
#[test]
fn what_is_granted_between_copies_is_found() {
    let (platform, held) = held_star();
    let buffers = [(); 4].map(|()| written(&platform));
    let mut bring = platform.acquire(GPU).read(&buffers[1]).read(&buffers[3]).into_future();
    assert!(poll_once(&mut bring).is_pending());
    held.begun().iter().for_each(|copy| copy.end(Ok(LEN)));
    let Poll::Ready(Ok(there)) = poll_once(&mut bring) else { panic!("both copies have ended") };
    there.release().unwrap();
    let acquire = buffers.iter().rev().fold(platform.acquire(GPU), |acquire, buffer| acquire.read(buffer));
    let mut future = acquire.into_future();
    assert!(poll_once(&mut future).is_pending());
    held.begun()[2..].iter().for_each(|copy| copy.end(Ok(LEN)));
    let Poll::Ready(Ok(grants)) = poll_once(&mut future) else { panic!("all copies have ended") };
    for buffer in &buffers {
        assert!(grants.block(buffer).unwrap().is_some_and(|block| block.len() == LEN), "{buffer:?}");
    }
    grants.release().unwrap();
}

/// A plan goes on only while somebody carries it on, and nobody does in his sleep.
#[test]
fn l03_who_waits_for_a_buffer_has_ended_the_plans_of_those_before() {
    let (platform, held) = held_star();
    let [first, second] = [(); 2].map(|()| written(&platform));
    let writer = platform.acquire(CPU).write(&second).try_now().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| platform.acquire(GPU).read(&first).read(&second).wait());
        while held.begun().is_empty() {
            std::thread::yield_now();
        }
        held.begun()[0].end(Ok(LEN));
        // A writer is let in behind the reader alone: the plan is over when that one is the reason.
        let begun = std::time::Instant::now();
        while platform.acquire(GPU).read(&first).try_now().is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:#?}", first.snapshot());
            std::thread::yield_now();
        }
        assert!(!waiting.is_finished(), "the second buffer is written");
        writer.release().unwrap();
        while held.begun().len() < 2 {
            std::thread::yield_now();
        }
        held.begun()[1].end(Ok(LEN));
        waiting.join().unwrap().unwrap().release().unwrap();
    });
}

/// What a later buffer answers is told after what became of the copies of earlier ones.
#[test]
fn i15_of_several_failures_the_first_in_order_is_told() {
    for fails in [true, false] {
        let (platform, held) = held_star();
        let first = written(&platform);
        let unwritten = platform.raw_buffer(LEN).build().unwrap();
        let third = written(&platform);
        let mut future = platform.acquire(GPU).read(&third).read(&unwritten).read(&first).into_future();
        assert!(poll_once(&mut future).is_pending(), "a copy is under way");
        assert_eq!(held.begun().len(), 1, "nothing is begun behind what is refused");
        held.begun()[0].end(if fails { Err(TransferError::DeviceLost) } else { Ok(LEN) });
        let Poll::Ready(Err(error)) = poll_once(&mut future) else { panic!("it is refused") };
        match (&error, fails) {
            (AcquireError::CopyFailed { buffer, .. }, true) => assert_eq!(*buffer, first.name()),
            (AcquireError::Uninitialized { buffer, .. }, false) => assert_eq!(*buffer, unwritten.name()),
            _ => panic!("{error}"),
        }
        assert!([&first, &unwritten, &third].iter().all(|buffer| buffer.snapshot().is_idle()));
        if !fails {
            // What has arrived stays.
            platform.acquire(GPU).read(&first).try_now().unwrap().release().unwrap();
            assert_eq!(held.begun().len(), 1);
        }
    }
}

/// A future that is dropped has given every plan up, and none of its copies runs on.
#[test]
fn i15_an_acquire_dropped_during_several_copies_leaves_nothing() {
    let (platform, held) = held_star();
    let buffers = [(); 3].map(|()| written(&platform));
    let acquire = buffers.iter().fold(platform.acquire(GPU), |acquire, buffer| acquire.read(buffer));
    let mut future = acquire.into_future();
    assert!(poll_once(&mut future).is_pending());
    std::thread::scope(|scope| {
        let dropping = scope.spawn(move || drop(future));
        for copy in held.begun() {
            assert!(!dropping.is_finished(), "the memory under a copy outlives it");
            copy.end(Ok(LEN));
        }
        dropping.join().unwrap();
    });
    assert!(buffers.iter().all(|buffer| buffer.snapshot().is_idle()));
    assert_eq!(held.begun().len(), 3);
    for buffer in &buffers {
        platform.acquire(GPU).read(buffer).try_now().unwrap().release().unwrap();
    }
    assert_eq!(held.begun().len(), 3, "what has arrived stays");
}
