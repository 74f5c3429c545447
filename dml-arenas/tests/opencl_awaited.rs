//! Awaited OpenCL commands: a future that waits for the device leaves its thread to others.
//!
//! A gate holds the transfers to the device back until the test opens it. A poll that blocks waits for the
//! gate, which opens by itself only after the test has failed. Without a device the tests say so and pass,
//! unless `DML_EXPECT=opencl`.

#![cfg(all(feature = "opencl", not(dml_loom)))]

mod common;

use common::gate::{Gate, LONG};
use common::{copy_in, pattern, put, take, with_opencl};
use dml_core::internal::sync::Arc;
use dml_core::{Arena, DeviceId, Fence, OwnBlock, Platform, Span};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// So many that the driver's write call is cheaper than mapping, which blocks.
const ITEMS: u32 = 4 << 20;

/// Counts how often it is woken, and panics afterwards if it is to.
#[derive(Default)]
struct Woken {
    times: AtomicUsize,
    panics: bool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, Ordering::SeqCst);
        if self.panics {
            resume_unwind(Box::new("a waker panics"));
        }
    }
}

impl Woken {
    fn new(panics: bool) -> (Arc<Self>, Waker) {
        let woken = Arc::new(Self { times: AtomicUsize::new(0), panics });
        (woken.clone(), woken.into())
    }

    fn times(&self) -> usize {
        self.times.load(Ordering::SeqCst)
    }

    /// Waits until it was woken.
    #[track_caller]
    fn wait(&self) {
        let begun = Instant::now();
        while self.times() == 0 {
            assert!(begun.elapsed() < LONG, "nobody was woken");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn opencl(test: &str) -> Option<(Platform, DeviceId, Arc<dyn Arena>)> {
    let (platform, device) = with_opencl(test)?;
    let arena = platform.home(device).map(|arena| platform.arena(arena).clone())?;
    Some((platform, device, arena))
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

#[test]
fn a_poll_leaves_the_thread_and_the_end_wakes() {
    let Some((_platform, _, arena)) = opencl("a_poll_leaves_the_thread_and_the_end_wakes") else { return };
    let block = OwnBlock::alloc(&arena, 10_000).unwrap();
    let bytes = pattern(10_000, 3);
    let gate = Gate::inward(&arena);
    let mut fence = copy_in(&block, 0, &bytes).unwrap();
    let ((old, old_waker), (new, new_waker)) = (Woken::new(false), Woken::new(false));
    assert_eq!(fence.poll(&old_waker), Poll::Pending);
    assert_eq!(fence.poll(&new_waker), Poll::Pending);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((old.times(), new.times()), (0, 0), "woken before the end");
    gate.open();
    new.wait();
    assert_eq!(fence.poll(&new_waker), Poll::Ready(Ok(10_000)));
    drop(fence);
    assert_eq!((old.times(), new.times()), (0, 1), "the last waker is called, once");
    assert_eq!(take(&block, Span::new(0, 10_000)), bytes);
}

#[test]
fn a_command_that_has_ended_needs_no_waker() {
    let Some((_platform, _, arena)) = opencl("a_command_that_has_ended_needs_no_waker") else { return };
    let block = OwnBlock::alloc(&arena, 5_000).unwrap();
    let mut fence = copy_in(&block, 1, &pattern(4_000, 1)).unwrap();
    // The queue is in order: when this has ended, so has the other.
    put(&block, 4_001, &[7]);
    let (woken, waker) = Woken::new(false);
    assert_eq!(fence.poll(&waker), Poll::Ready(Ok(4_000)));
    assert_eq!(woken.times(), 0);
}

#[test]
fn a_waker_that_panics_leaves_the_others_awake() {
    let Some((_platform, _, arena)) = opencl("a_waker_that_panics_leaves_the_others_awake") else { return };
    let block = OwnBlock::alloc(&arena, 3_000).unwrap();
    let gate = Gate::inward(&arena);
    let mut fences: Vec<(Fence, Arc<Woken>)> = Vec::new();
    for number in 0..3_u8 {
        let mut fence = copy_in(&block, u64::from(number) * 1_000, &pattern(1_000, number)).unwrap();
        let (woken, waker) = Woken::new(number < 2);
        assert_eq!(fence.poll(&waker), Poll::Pending);
        fences.push((fence, woken));
    }
    gate.open();
    for (mut fence, woken) in fences {
        woken.wait();
        assert_eq!(fence.poll(Waker::noop()), Poll::Ready(Ok(1_000)));
    }
}

/// A waker that calls back: it moves bytes on the device, and waits for them.
struct CallsBack {
    block: OwnBlock,
    moved: AtomicUsize,
}

impl Wake for CallsBack {
    fn wake(self: Arc<Self>) {
        put(&self.block, 0, &pattern(500, 7));
        self.moved.store(take(&self.block, Span::new(0, 500)).len(), Ordering::SeqCst);
    }
}

#[test]
fn a_waker_may_use_the_device_and_wait_for_it() {
    let Some((_platform, _, arena)) = opencl("a_waker_may_use_the_device_and_wait_for_it") else { return };
    let block = OwnBlock::alloc(&arena, 1_000).unwrap();
    let calls_back =
        Arc::new(CallsBack { block: OwnBlock::alloc(&arena, 500).unwrap(), moved: AtomicUsize::new(0) });
    let gate = Gate::inward(&arena);
    let mut fence = copy_in(&block, 0, &pattern(1_000, 2)).unwrap();
    assert_eq!(fence.poll(&calls_back.clone().into()), Poll::Pending);
    gate.open();
    let begun = Instant::now();
    while calls_back.moved.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < LONG, "the waker hangs, or nobody was woken");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fence.poll(Waker::noop()), Poll::Ready(Ok(1_000)));
    assert_eq!(calls_back.moved.load(Ordering::SeqCst), 500);
}

/// A waker whose destructor panics.
struct PanicsInTheEnd;

impl Wake for PanicsInTheEnd {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsInTheEnd {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            resume_unwind(Box::new("the destructor of a waker panics"));
        }
    }
}

#[test]
fn a_waker_whose_destructor_panics_ends_no_wait_early() {
    let Some((_platform, _, arena)) = opencl("a_waker_whose_destructor_panics_ends_no_wait_early") else {
        return;
    };
    let block = OwnBlock::alloc(&arena, 1_000).unwrap();
    let gate = Gate::inward(&arena);
    let mut fence = copy_in(&block, 0, &pattern(1_000, 4)).unwrap();
    assert!(fence.poll(&Arc::new(PanicsInTheEnd).into()).is_pending());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| catch_unwind(AssertUnwindSafe(|| fence.wait())).is_ok());
        std::thread::sleep(Duration::from_millis(50));
        // What the transfer was lent would be free now, while the device writes it.
        assert!(!waiting.is_finished(), "the wait is over before the transfer");
        gate.open();
        let _ = waiting.join().unwrap();
    });
    assert_eq!(take(&block, Span::new(0, 1_000)), pattern(1_000, 4));
}

#[test]
fn what_was_polled_can_be_waited_for_and_dropped() {
    let Some((_platform, _, arena)) = opencl("what_was_polled_can_be_waited_for_and_dropped") else { return };
    let block = OwnBlock::alloc(&arena, 2_000).unwrap();
    let bytes = pattern(2_000, 9);
    let gate = Gate::inward(&arena);
    let mut waited = copy_in(&block, 0, &bytes[..1_000]).unwrap();
    let mut dropped = copy_in(&block, 1_000, &bytes[1_000..]).unwrap();
    let (woken, waker) = Woken::new(false);
    assert!(waited.poll(&waker).is_pending() && dropped.poll(&waker).is_pending());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            gate.open();
        });
        assert_eq!(waited.wait(), Ok(1_000));
        drop(dropped);
    });
    assert_eq!(take(&block, Span::new(0, 2_000)), bytes);
    // The wait has taken the waker back, and the driver does not keep it.
    drop(waker);
    let begun = Instant::now();
    while Arc::strong_count(&woken) > 1 && begun.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(Arc::strong_count(&woken), 1, "a waker is kept");
}

#[test]
fn an_awaited_acquire_goes_on_beside_others_on_one_thread() {
    let test = "an_awaited_acquire_goes_on_beside_others_on_one_thread";
    let Some((platform, device, arena)) = opencl(test) else { return };
    let data = platform.buffer_from((0..ITEMS).collect::<Vec<_>>()).unwrap();
    let other = platform.buffer_from(vec![1_u32, 2, 3]).unwrap();
    let gate = Gate::inward(&arena);
    let (woken, waker) = Woken::new(false);
    let mut acquire = pin!(platform.acquire(device).read(&data).into_future());
    assert!(poll_once(acquire.as_mut(), &waker).is_pending());
    // The same thread uses another buffer meanwhile.
    assert_eq!(other.read().unwrap()[2], 3);
    assert!(poll_once(acquire.as_mut(), &waker).is_pending());
    gate.open();
    woken.wait();
    let Poll::Ready(granted) = poll_once(acquire.as_mut(), &waker) else {
        panic!("woken, and the copy has not ended")
    };
    granted.unwrap().release().unwrap();
}

#[test]
fn a_future_given_up_during_its_copy_leaves_nothing() {
    let Some((platform, device, arena)) = opencl("a_future_given_up_during_its_copy_leaves_nothing") else {
        return;
    };
    let data = platform.buffer_from((0..ITEMS).collect::<Vec<_>>()).unwrap();
    let gate = Gate::inward(&arena);
    let (_woken, waker) = Woken::new(false);
    std::thread::scope(|scope| {
        let mut acquire = Box::pin(platform.acquire(device).read(&data).into_future());
        assert!(poll_once(acquire.as_mut(), &waker).is_pending());
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            gate.open();
        });
        // The memory under the copy must outlive it, so this waits for the gate.
        drop(acquire);
    });
    assert_eq!(data.read().unwrap()[ITEMS as usize - 1], ITEMS - 1);
    data.into_vec().unwrap();
}
