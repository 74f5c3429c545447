//! An acquire of several buffers: their copies overlap, and everything else is as if one buffer came after
//! the other.

#![cfg(not(dml_loom))]

use dml::core::internal::sync::{Arc, Condvar, Mutex};
use dml::core::{
    AcquireError, CopyJob, CopyQuery, Cost, CrossArena, DeviceId, Fence, HostStaged, Platform, RawBuffer,
    TransferError,
};
use dml_verify::held::{HeldCopies, held_star, star_of};
use dml_verify::{Audited, poll_once};
use std::fmt;
use std::future::IntoFuture;
use std::task::Poll;
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const GPU2: DeviceId = DeviceId(2);
const LEN: u64 = 48;

/// A buffer that a device has written.
fn written_by(platform: &Audited, device: DeviceId) -> RawBuffer {
    let buffer = platform.raw_buffer(LEN).build().unwrap();
    platform.acquire(device).write(&buffer).try_now().unwrap().release().unwrap();
    buffer
}

/// A buffer that the processor has written.
fn written(platform: &Audited) -> RawBuffer {
    written_by(platform, CPU)
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
    assert!(held.begun()[3..].iter().all(|copy| copy.polled() == 0), "to be told of an end is not for free");
    assert!(buffers.iter().all(|buffer| buffer.snapshot().is_idle()));
}

/// Who is granted at once, before another whose copy is under way, has his place among the grants all the
/// same.
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

/// A plan advances only while a thread drives it, and a sleeping waiter drives none.
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
        held.begun()[0].end(if fails { Err(TransferError::DeviceLost { loss: None }) } else { Ok(LEN) });
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

/// Of plans that fail in any order, the first one's error is reported, and the poll that gets it does not
/// block.
#[test]
fn i15_of_several_plans_that_fail_the_first_in_order_is_told() {
    // Which copies fail, in which order they end, and whose error is told.
    let lost = || Err(TransferError::DeviceLost { loss: None });
    for (ends, told) in [
        ([(0, lost()), (1, Ok(LEN)), (2, lost())], 0),
        ([(2, lost()), (1, lost()), (0, Ok(LEN))], 1),
        ([(1, lost()), (2, Ok(LEN)), (0, lost())], 0),
        ([(2, lost()), (0, Ok(LEN)), (1, Ok(LEN))], 2),
    ] {
        let (platform, held) = held_star();
        let buffers = [(); 3].map(|()| written(&platform));
        let acquire = buffers.iter().fold(platform.acquire(GPU), |acquire, buffer| acquire.read(buffer));
        let mut future = acquire.into_future();
        for (copy, result) in ends {
            assert!(poll_once(&mut future).is_pending(), "copies are under way");
            assert!(held.begun().iter().all(|copy| copy.waiting() == 0), "nobody blocks");
            held.begun()[copy].end(result);
        }
        let Poll::Ready(Err(AcquireError::CopyFailed { buffer, .. })) = poll_once(&mut future) else {
            panic!("a copy failed")
        };
        assert_eq!(buffer, buffers[told].name());
        assert!(buffers.iter().all(|buffer| buffer.snapshot().is_idle()));
    }
}

/// What is done is seen to be done, whatever becomes of the buffers before.
#[test]
fn a_future_carries_all_its_plans_on() {
    let (platform, held) = held_star();
    let [first, second] = [(); 2].map(|()| written_by(&platform, GPU));
    let mut future = platform.acquire(GPU2).read(&first).read(&second).into_future();
    assert!(poll_once(&mut future).is_pending());
    assert_eq!(held.begun().len(), 2, "to main memory");
    held.begun()[1].end(Ok(LEN));
    assert!(poll_once(&mut future).is_pending());
    assert_eq!(held.begun().len(), 3, "the second half of its way");
    held.begun()[2].end(Ok(LEN));
    assert!(poll_once(&mut future).is_pending());
    platform.acquire(GPU2).read(&second).try_now().unwrap().release().unwrap();
    held.begun()[0].end(Ok(LEN));
    assert!(poll_once(&mut future).is_pending());
    held.begun()[3].end(Ok(LEN));
    let Poll::Ready(Ok(grants)) = poll_once(&mut future) else { panic!("all copies have ended") };
    grants.release().unwrap();
}

/// Copies under way behind a plan that has failed are waited for. Further ones would be for nothing.
#[test]
fn plans_behind_one_that_failed_begin_nothing_more() {
    let (platform, held) = held_star();
    let [first, second] = [(); 2].map(|()| written_by(&platform, GPU));
    let mut future = platform.acquire(GPU2).read(&first).read(&second).into_future();
    assert!(poll_once(&mut future).is_pending());
    held.begun()[0].end(Err(TransferError::DeviceLost { loss: None }));
    assert!(poll_once(&mut future).is_pending(), "a copy is under way");
    held.begun()[1].end(Ok(LEN));
    let Poll::Ready(Err(AcquireError::CopyFailed { buffer, .. })) = poll_once(&mut future) else {
        panic!("a copy failed")
    };
    assert_eq!((buffer, held.begun().len()), (first.name(), 2));
}

/// Copies that begin or fail as they are told, and whose ends are only to be waited for.
struct Scripted<F: Fn(&CopyJob) -> Result<Fence, TransferError> + Send + Sync>(F);

impl<F: Fn(&CopyJob) -> Result<Fence, TransferError> + Send + Sync> fmt::Debug for Scripted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl<F: Fn(&CopyJob) -> Result<Fence, TransferError> + Send + Sync> CrossArena for Scripted<F> {
    fn name(&self) -> &str {
        "scripted"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        HostStaged::default().can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let fence = (self.0)(&job)?;
        HostStaged::default().copy(job)?.wait()?;
        Ok(fence)
    }
}

#[test]
fn nothing_begins_behind_a_plan_that_has_failed() {
    let held = Arc::<HeldCopies>::default();
    let fails = Arc::new(Scripted(|_: &CopyJob| Err(TransferError::DeviceLost { loss: None })));
    let platform = star_of([held.clone(), held.clone(), held.clone(), fails]);
    let [first, second] = [(); 2].map(|()| written(&platform));
    // Half of the first buffer comes from where nothing can be had.
    platform.acquire(GPU2).write(&first.range(24..LEN)).try_now().unwrap().release().unwrap();
    let mut future = platform.acquire(GPU).read(&first).read(&second).into_future();
    assert!(poll_once(&mut future).is_pending());
    assert_eq!(held.begun().len(), 1);
    held.begun()[0].end(Ok(24));
    let Poll::Ready(Err(AcquireError::CopyFailed { buffer, .. })) = poll_once(&mut future) else {
        panic!("a copy failed")
    };
    assert_eq!((buffer, held.begun().len()), (first.name(), 1));
}

/// A mechanism that panics as the second copy begins leaves the first one as it was.
#[test]
fn i15_a_copy_that_panics_beside_another_is_a_failed_copy() {
    let held = Arc::<HeldCopies>::default();
    let (first_copy, count) = (held.clone(), Mutex::new(0));
    #[derive(Debug)]
    struct PanicsSecond(Arc<HeldCopies>, Mutex<u32>);
    impl CrossArena for PanicsSecond {
        fn name(&self) -> &str {
            "panics second"
        }

        fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
            self.0.can_copy(query)
        }

        fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
            let mut count = self.1.lock();
            *count += 1;
            let is_second = *count == 2;
            drop(count);
            assert!(!is_second, "this mechanism breaks");
            self.0.copy(job)
        }
    }
    let panics = Arc::new(PanicsSecond(first_copy, count));
    let platform = star_of([held.clone(), panics, held.clone(), held.clone()]);
    let [first, second] = [(); 2].map(|()| written(&platform));
    let mut future = platform.acquire(GPU).read(&first).read(&second).into_future();
    assert!(poll_once(&mut future).is_pending(), "the first copy is under way");
    held.begun()[0].end(Ok(LEN));
    let Poll::Ready(Err(AcquireError::CopyFailed { buffer, cause, .. })) = poll_once(&mut future) else {
        panic!("a copy panicked")
    };
    assert_eq!(buffer, second.name());
    assert!(matches!(cause, TransferError::Panicked { .. }), "{cause}");
    assert!([&first, &second].iter().all(|buffer| buffer.snapshot().is_idle()));
    platform.acquire(GPU).read(&first).try_now().expect("it has arrived").release().unwrap();
}

/// A framework whose work can only be waited for has as much of it at once.
#[test]
fn copies_that_can_only_be_waited_for_overlap_as_well() {
    #[derive(Default)]
    struct Begun {
        count: Mutex<usize>,
        changed: Condvar,
    }
    let begun = Arc::<Begun>::default();
    let shared = begun.clone();
    let waited = Arc::new(Scripted(move |job: &CopyJob| {
        *shared.count.lock() += 1;
        shared.changed.notify_all();
        let (begun, bytes) = (shared.clone(), job.len());
        // It ends when both have begun.
        Ok(Fence::running(move || {
            let mut count = begun.count.lock();
            while *count < 2 {
                count = begun.changed.wait(count);
            }
            Ok(bytes)
        }))
    }));
    let held = Arc::<HeldCopies>::default();
    let platform = star_of([held.clone(), waited, held.clone(), held]);
    let [first, second] = [(); 2].map(|()| written(&platform));
    let acquire = || platform.acquire(GPU).read(&first).read(&second);
    acquire().wait().unwrap().release().unwrap();
    assert_eq!(*begun.count.lock(), 2);
}

/// A copy may call back, and find a buffer reserved by the acquire that waits for it.
#[test]
fn l01_a_copy_that_calls_back_waits_for_no_buffer_of_its_own_acquire() {
    type Shared = (Platform, RawBuffer);
    let there = Arc::new(Mutex::new(None::<Shared>));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (found, told) = (there.clone(), heard.clone());
    let calls_back = Arc::new(Scripted(move |job: &CopyJob| {
        let (bytes, found, told) = (job.len(), found.clone(), told.clone());
        Ok(Fence::running(move || {
            let shared = found.lock().clone();
            if let Some((platform, second)) = shared {
                let written = platform.acquire(CPU).write(&second).wait();
                told.lock().push(written.map(drop));
            }
            Ok(bytes)
        }))
    }));
    let held = Arc::<HeldCopies>::default();
    let platform = star_of([held.clone(), calls_back, held.clone(), held]);
    let [first, second] = [(); 2].map(|()| written(&platform));
    *there.lock() = Some(((*platform).clone(), second.clone()));
    platform.acquire(GPU).read(&first).read(&second).wait().unwrap().release().unwrap();
    let heard = std::mem::take(&mut *heard.lock());
    assert!(matches!(heard[0], Err(AcquireError::OrderViolation { .. })), "{heard:?}");
    *there.lock() = None;
}
