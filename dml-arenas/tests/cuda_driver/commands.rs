//! Commands: how their ends are waited for and awaited, and what they hold meanwhile.

use super::{MIB, alloc, arena, fill, nothing_is_left, platform};
use crate::common::{pattern, put, take};
use crate::driver::{code, stand_in};
use crate::stand_in::Says;
use dml_core::{HostMemory, Span, TransferError};
use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

#[test]
fn whoever_waits_looks_all_the_time_at_first() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let block = alloc(&arena(&platform, "cuda:0"), 100);
    // Who sleeps between two looks sleeps for 20 us at the least.
    let never_sleeps = |_| {
        let held = driver.hold();
        let fence = fill(&block, 7);
        let begun = Instant::now();
        let (looks, waiting) = driver.made_by("cuEventQuery", || {
            let waiting = std::thread::spawn(move || fence.wait());
            std::thread::sleep(Duration::from_millis(5));
            waiting
        });
        let took = begun.elapsed();
        drop(held);
        assert_eq!(waiting.join().unwrap(), Ok(100));
        Duration::from_micros(20) * u32::try_from(looks).unwrap() > took
    };
    // On a busy machine others have the core.
    assert!((0..100).any(never_sleeps));
}

#[test]
fn whoever_waits_longer_looks_now_and_then() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let block = alloc(&arena(&platform, "cuda:0"), 100);
    // After an eighth of a second each sleep takes a millisecond at the least, and not much more. A busy
    // machine may take longer to get there.
    let is_now_and_then = |_| {
        let begun = Instant::now();
        let (looks, ()) = driver.made_by("cuEventQuery", || std::thread::sleep(Duration::from_millis(50)));
        (10..=begun.elapsed().as_millis() as i64 + 2).contains(&looks)
    };
    // Once a thread blocks, and once the thread that calls wakers looks at the event.
    for is_told in [false, true] {
        let held = driver.hold();
        let mut awaited = Some(fill(&block, 7));
        let waiting = match &mut awaited {
            Some(fence) if is_told => {
                assert!(fence.poll(Waker::noop()).is_pending());
                None
            }
            fence => fence.take().map(|fence| std::thread::spawn(move || fence.wait())),
        };
        assert!((0..100).any(is_now_and_then), "told {is_told}");
        drop(held);
        let ended = match (waiting, awaited) {
            (Some(waiting), _) => waiting.join().unwrap(),
            (None, fence) => fence.unwrap().wait(),
        };
        assert_eq!(ended, Ok(100));
    }
    // The thread that tells others may have one look to come.
    let looks_on = || driver.made_by("cuEventQuery", || std::thread::sleep(Duration::from_millis(20))).0 > 0;
    assert!((0..500).any(|_| !looks_on()), "it looks at what has ended");
    // To ask is one look.
    let held = driver.hold();
    let fence = fill(&block, 8);
    let ask = || driver.made_by("cuEventQuery", || fence.has_ended());
    assert_eq!(ask(), (1, false));
    // What has ended is looked at once.
    drop(held);
    driver.until("queued", 0);
    assert_eq!(ask(), (1, true));
    let (sleeps, (looks, moved)) =
        driver.made_by("cuEventSynchronize", || driver.made_by("cuEventQuery", || fence.wait()));
    assert_eq!((sleeps, looks, moved), (0, 1, Ok(100)));
}

#[test]
fn futures_are_pending_until_their_own_commands_end() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let arena = arena(&platform, "cuda:0");
    let blocks = [1, 2, 3].map(|len| alloc(&arena, len * 1000));
    let held = driver.hold();
    let mut fences = blocks.each_ref().map(|block| fill(block, 9));
    let told: [_; 3] = std::array::from_fn(|_| mpsc::channel());
    let wakers = told.each_ref().map(|(says, _)| Waker::from(std::sync::Arc::new(Says(says.clone()))));
    // The second and the third are asked about, the last one first.
    for index in [2, 1] {
        assert!(fences[index].poll(&wakers[index]).is_pending());
    }
    for (_, told) in &told {
        assert!(told.recv_timeout(Duration::from_millis(20)).is_err(), "it was woken too soon");
    }
    drop(held);
    for index in [1, 2] {
        told[index].1.recv_timeout(Duration::from_secs(20)).expect("it is woken");
        let Poll::Ready(moved) = fences[index].poll(&wakers[index]) else { panic!("woken too soon") };
        assert_eq!(moved, Ok((index as u64 + 1) * 1000));
    }
    let [first, ..] = fences;
    assert_eq!(first.wait(), Ok(1000));
    drop((blocks, arena, platform));
    nothing_is_left(driver);
}

#[test]
fn an_event_serves_one_command_after_the_other() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let block = alloc(&arena(&platform, "cuda:0"), 100);
    let (made, ()) = driver.made_by("cuEventCreate", || {
        for round in 0..500 {
            let fence = fill(&block, round as u8);
            match round % 3 {
                0 => drop(fence),
                _ => assert_eq!(fence.wait(), Ok(100)),
            }
        }
    });
    assert!(made <= 3, "{made} events for commands of which none runs beside another");
    // Of those that were needed at once, so many are kept.
    let block = alloc(&arena(&platform, "cuda:0"), 300);
    let held = driver.hold();
    let byte = |at| block.fill(Span::new(at, at + 1), 1).unwrap();
    let fences: Vec<_> = (0..300).map(byte).collect();
    assert_eq!(driver.count("events"), 300);
    drop(held);
    for fence in fences {
        assert_eq!(fence.wait(), Ok(1));
    }
    assert_eq!(driver.count("events"), 256);
    let (made, _) = driver.made_by("cuEventCreate", || fill(&block, 2).wait());
    assert_eq!(made, 0);
}

#[test]
fn what_a_command_uses_is_held_until_it_has_ended() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let arena = arena(&platform, "cuda:0");
    let block = alloc(&arena, 1000);
    let held = driver.hold();
    let fence = fill(&block, 7);
    // The block goes, the memory stays: the stand-in would end the process at a command on memory that is
    // gone.
    drop((block, arena, platform));
    assert_eq!(driver.count("blocks"), 1);
    drop(held);
    assert_eq!(fence.wait(), Ok(1000));
    nothing_is_left(driver);
}

#[test]
fn a_command_whose_end_cannot_be_marked_has_ended_when_the_error_is_told() {
    let driver = stand_in();
    let platform = platform(&["cuda:2"]);
    let block = alloc(&arena(&platform, "cuda:2"), 4 * MIB);
    let source = HostMemory::holding(pattern(4 << 20, 3));
    driver.fail("cuEventRecord", 0, code::INVALID_VALUE);
    let refused = block.copy_in(0, &source, Span::new(0, 4 * MIB)).map(drop).unwrap_err();
    assert!(matches!(&refused, TransferError::Framework { call: "cuEventRecord", code: 1, .. }), "{refused}");
    assert_eq!(driver.count("queued"), 0);
    assert!(!source.is_lent());
    assert!(!arena(&platform, "cuda:2").is_lost());
    assert_eq!(take(&block, Span::new(0, 4 * MIB)), pattern(4 << 20, 3));
}

#[test]
fn a_command_that_is_refused_says_which_call_it_was_and_the_next_one_works() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let block = alloc(&arena(&platform, "cuda:0"), 1000);
    let calls = ["cuEventCreate", "cuMemcpyHtoDAsync_v2", "cuCtxPushCurrent_v2"];
    for (call, said) in calls.into_iter().zip(["cuEventCreate", "cuMemcpyHtoDAsync", "cuCtxPushCurrent"]) {
        driver.fail(call, 0, code::INVALID_VALUE);
        let from = HostMemory::holding(vec![5_u8; 1000]);
        let refused = block.copy_in(0, &from, Span::new(0, 1000)).map(drop).unwrap_err();
        assert!(matches!(&refused, TransferError::Framework { call, .. } if *call == said), "{refused}");
        assert!(refused.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{refused}");
        put(&block, 0, &pattern(1000, 1));
        assert_eq!(take(&block, Span::new(0, 1000)), pattern(1000, 1));
    }
    assert_eq!(driver.count("pushed"), 0);
}

#[test]
fn a_device_that_fails_is_lost_with_its_reason_and_gives_everything_back() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let arena = arena(&platform, "cuda:0");
    let blocks = [1000, 2000].map(|len| alloc(&arena, len));
    let idle = alloc(&arena, 3000);
    drop(idle);
    let held = driver.hold();
    let [fence, other] = blocks.each_ref().map(|block| fill(block, 7));
    assert!(arena.loss().is_none());
    driver.lose(0, code::LAUNCH_FAILED);
    drop(held);
    assert_eq!(fence.wait(), Err(TransferError::DeviceLost { loss: None }));
    assert!(arena.is_lost());
    let loss = arena.loss().expect("it is known why");
    assert!(loss.contains("cuMemsetD8Async") && loss.contains("CUDA_ERROR_LAUNCH_FAILED"), "{loss}");
    assert!(loss.contains("unspecified launch failure"), "{loss}");
    assert_eq!(other.wait(), Err(TransferError::DeviceLost { loss: None }));
    // Nothing is asked of the driver any more.
    let (asked, refused) =
        driver.made_by("cuMemsetD8Async", || blocks[0].fill(Span::new(0, 1000), 1).map(drop));
    assert_eq!((asked, refused), (0, Err(TransferError::DeviceLost { loss: None })));
    // Not even for what is idle.
    let refused = dml_core::OwnBlock::alloc(&arena, 3000).map(drop).unwrap_err();
    assert!(refused.is_device_lost(), "{refused}");
    drop((blocks, arena, platform));
    driver.lose(0, 0);
    nothing_is_left(driver);
}

/// Its events tell nothing any more, but the thread that waited for one does.
#[test]
fn a_command_of_a_lost_device_has_ended_once_that_is_told() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let block = alloc(&arena(&platform, "cuda:0"), 100);
    let held = driver.hold();
    let mut fence = fill(&block, 8);
    let (says, told) = mpsc::channel();
    assert!(fence.poll(&Waker::from(std::sync::Arc::new(Says(says)))).is_pending());
    driver.lose(0, code::LAUNCH_FAILED);
    drop(held);
    told.recv_timeout(Duration::from_secs(20)).expect("it is woken");
    assert!(fence.has_ended());
    assert_eq!(fence.wait(), Err(TransferError::DeviceLost { loss: None }));
    drop((block, platform));
    driver.lose(0, 0);
    nothing_is_left(driver);
}

/// A caller that is told that a command has ended waits for it, so a failed query must not count as its end.
#[test]
fn a_command_that_cannot_be_asked_has_not_ended() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let block = alloc(&arena(&platform, "cuda:0"), 100);
    let held = driver.hold();
    let mut fence = fill(&block, 8);
    driver.fail("cuEventQuery", 0, 900);
    assert!(!fence.has_ended());
    driver.fail("cuEventQuery", 0, 900);
    assert!(fence.poll(Waker::noop()).is_pending(), "nor does a poll wait");
    drop(held);
    assert_eq!(fence.wait(), Ok(100));
    drop((block, platform));
    nothing_is_left(driver);
}
