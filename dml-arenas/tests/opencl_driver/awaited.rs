//! Ends of commands that are awaited: who is told, by whom and when.

use super::{alloc, arena, fill, nothing_is_left, platform};
use crate::driver::{code, stand_in};
use crate::stand_in::{Says, no_thread_is_left, threads};
use dml_core::{Span, TransferError};
use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::time::Duration;

const AT_ONCE: Duration = Duration::from_secs(20);

/// Who is woken, and what hears of it.
fn waker() -> (Waker, mpsc::Receiver<()>) {
    let (says, hears) = mpsc::channel();
    (Waker::from(std::sync::Arc::new(Says(says))), hears)
}

#[test]
fn futures_are_pending_until_their_own_commands_end() {
    let driver = stand_in();
    // Of a test before, one may have to end.
    no_thread_is_left("opencl wakers");
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let blocks = [1, 2, 3].map(|len| alloc(&arena, len * 1000));
    let held = driver.hold();
    let mut fences = blocks.each_ref().map(|block| fill(block, 9));
    let told: [_; 3] = std::array::from_fn(|_| waker());
    assert!(threads().iter().all(|name| name != "opencl wakers"), "nobody has asked yet");
    // The second and the third are asked about, the last one first, and more than once.
    let (set, ()) = driver.made_by("clSetEventCallback", || {
        for index in [2, 1, 1, 2] {
            assert!(fences[index].poll(&told[index].0).is_pending());
        }
    });
    assert_eq!(set, 2, "a command is told once");
    for (_, told) in &told {
        assert!(told.recv_timeout(Duration::from_millis(20)).is_err(), "it was woken too soon");
    }
    drop(held);
    for index in [1, 2] {
        told[index].1.recv_timeout(AT_ONCE).expect("it is woken");
        let Poll::Ready(moved) = fences[index].poll(&told[index].0) else { panic!("woken too soon") };
        assert_eq!(moved, Ok((index as u64 + 1) * 1000));
    }
    let [first, ..] = fences;
    assert_eq!(first.wait(), Ok(1000));
    drop((blocks, arena, platform));
    nothing_is_left(driver);
}

#[test]
fn a_command_that_has_ended_tells_so_at_once() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let block = alloc(&arena(&platform, "opencl:0"), 1000);
    let held = driver.hold();
    let mut fence = fill(&block, 7);
    assert!(!fence.has_ended());
    drop(held);
    driver.until("queued", 0);
    let ask = || (fence.has_ended(), fence.poll(Waker::noop()));
    let (set, (has_ended, end)) = driver.made_by("clSetEventCallback", ask);
    assert_eq!((set, has_ended), (0, true));
    assert!(matches!(end, Poll::Ready(Ok(1000))));
    // An error is told as an error.
    driver.fail("end of clEnqueueFillBuffer", 0, code::OUT_OF_RESOURCES);
    let mut fence = fill(&block, 8);
    driver.until("queued", 0);
    let Poll::Ready(Err(TransferError::Framework { call, code, .. })) = fence.poll(Waker::noop()) else {
        panic!("it failed")
    };
    assert_eq!((call, code), ("clEnqueueFillBuffer", -5));
}

#[test]
fn a_command_that_fails_wakes_whoever_awaits_it() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let block = alloc(&arena(&platform, "opencl:0"), 1000);
    let held = driver.hold();
    let mut fence = fill(&block, 7);
    let (waker, told) = waker();
    assert!(fence.poll(&waker).is_pending());
    driver.fail("end of clEnqueueFillBuffer", 0, code::OUT_OF_RESOURCES);
    drop(held);
    told.recv_timeout(AT_ONCE).expect("it is woken");
    assert!(matches!(fence.poll(&waker), Poll::Ready(Err(TransferError::Framework { code: -5, .. }))));
}

#[test]
fn a_driver_that_calls_nobody_keeps_nobody_waiting() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let blocks = [1, 2].map(|len| alloc(&arena(&platform, "opencl:0"), len * 1000));
    let silence = driver.silence();
    let held = driver.hold();
    let mut fences = blocks.each_ref().map(|block| fill(block, 7));
    let told: [_; 2] = std::array::from_fn(|_| waker());
    for (fence, (waker, _)) in fences.iter_mut().zip(&told) {
        assert!(fence.poll(waker).is_pending());
    }
    drop(held);
    for (fence, (waker, told)) in fences.iter_mut().zip(&told) {
        told.recv_timeout(AT_ONCE).expect("it is woken");
        assert!(fence.poll(waker).is_ready());
    }
    assert_eq!(driver.count("kept"), 2);
    // The driver calls when everything is gone.
    drop((fences, blocks, platform));
    drop(silence);
    nothing_is_left(driver);
}

#[test]
fn whoever_is_called_needs_not_look() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let block = alloc(&arena(&platform, "opencl:0"), 1000);
    let held = driver.hold();
    let mut fence = fill(&block, 7);
    let (waker, told) = waker();
    assert!(fence.poll(&waker).is_pending());
    // The driver answers every query that the command still runs.
    driver.set(c"stand_in_stale", 1);
    drop(held);
    told.recv_timeout(AT_ONCE).expect("the driver has called");
    driver.set(c"stand_in_stale", 0);
    assert!(matches!(fence.poll(&waker), Poll::Ready(Ok(1000))));
}

#[test]
fn whoever_the_driver_will_not_call_waits() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let block = alloc(&arena(&platform, "opencl:0"), 1000);
    let held = driver.hold();
    let mut fence = fill(&block, 7);
    driver.fail("clSetEventCallback", 0, code::OUT_OF_RESOURCES);
    let waiting = std::thread::spawn(move || fence.poll(Waker::noop()));
    driver.until("asleep", 1);
    drop(held);
    assert!(matches!(waiting.join().unwrap(), Poll::Ready(Ok(1000))));
    drop((block, platform));
    nothing_is_left(driver);
}

#[test]
fn what_was_polled_can_be_waited_for_or_dropped() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let block = alloc(&arena, 1000);
    let held = driver.hold();
    let byte = |at| block.fill(Span::new(at, at + 1), 1).unwrap();
    let mut fences: Vec<_> = (0..10).map(byte).collect();
    let told: Vec<_> = (0..10).map(|_| waker()).collect();
    for (fence, (waker, _)) in fences.iter_mut().zip(&told) {
        assert!(fence.poll(waker).is_pending());
    }
    let late = fences.split_off(5);
    let dropping = std::thread::spawn(move || drop(fences));
    drop(held);
    for fence in late {
        assert_eq!(fence.wait(), Ok(1));
    }
    dropping.join().unwrap();
    drop((told, block, arena, platform));
    nothing_is_left(driver);
}

/// A caller that is told that a command has ended waits for it, so a failed query must not count as its end.
#[test]
fn a_command_that_cannot_be_asked_has_not_ended() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let block = alloc(&arena(&platform, "opencl:0"), 1000);
    let held = driver.hold();
    let mut fence = fill(&block, 7);
    driver.fail("clGetEventInfo", 0, code::OUT_OF_RESOURCES);
    assert!(!fence.has_ended());
    driver.fail("clGetEventInfo", 0, code::OUT_OF_RESOURCES);
    assert!(fence.poll(Waker::noop()).is_pending(), "nor does a poll wait");
    drop(held);
    assert_eq!(fence.wait(), Ok(1000));
    drop((block, platform));
    nothing_is_left(driver);
}
