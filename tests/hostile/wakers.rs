//! Wakers: foreign code that runs when a request is admitted, on the thread that admits it.

use crate::vault::CPU;
use dml::core::internal::sync::Arc;
use dml::core::{AcquireError, AcquireFuture, DeviceDesc, DeviceKind, Platform, RawBuffer};
use dml_verify::{poll_once, watched};
use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

fn host() -> Platform {
    let mut builder = Platform::builder();
    let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_arena(Arc::new(dml::arenas::MainMem::new(cpu)));
    builder.build().expect("a sound platform")
}

fn buffers(platform: &Platform) -> [RawBuffer; 2] {
    [(); 2].map(|()| {
        let buffer = platform.raw_buffer(16).build().expect("a small buffer");
        platform.acquire(CPU).write(&buffer).wait().unwrap().release().unwrap();
        buffer
    })
}

struct Act<F>(F, AtomicUsize);

impl<F: Fn() + Send + Sync + 'static> Wake for Act<F> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        (self.0)();
    }
}

impl<F> Drop for Act<F> {
    fn drop(&mut self) {
        // The last reference to a broken waker panics as well when it is dropped.
        if std::any::type_name::<F>().contains("breaks") && !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("a waker's destructor"));
        }
    }
}

fn poll(future: &mut AcquireFuture, waker: &Waker) -> Poll<Result<dml::core::Grants, AcquireError>> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// A release of two buffers commits both, whatever the wakers of the first buffer's waiters do.
#[test]
fn a_waker_that_panics_spoils_nobodys_commit() {
    let platform = host();
    let [a, b] = buffers(&platform);
    let mut grants = platform.acquire(CPU).write(&a).write(&b).wait().unwrap();
    grants.slice_mut::<u8>(&a).unwrap().fill(1);
    grants.slice_mut::<u8>(&b).unwrap().fill(2);
    let broken = Waker::from(Arc::new(Act(
        || std::panic::resume_unwind(Box::new("a waker's own fault")),
        AtomicUsize::new(0),
    )));
    // Both are waited for, so both releases wake.
    let mut waiting = [&a, &b].map(|buffer| platform.acquire(CPU).read(buffer).into_future());
    for future in &mut waiting {
        assert!(poll(future, &broken).is_pending());
    }
    let released = catch_unwind(AssertUnwindSafe(|| grants.release()));
    assert!(matches!(released, Ok(Ok(()))), "the panic is its owner's");
    for (future, (buffer, value)) in waiting.iter_mut().zip([(&a, 1), (&b, 2)]) {
        let Poll::Ready(Ok(seen)) = poll_once(future) else { panic!("let in") };
        assert_eq!(seen.slice::<u8>(buffer).unwrap(), [value; 16]);
    }
}

#[test]
fn a_waker_whose_destructor_panics_disturbs_nobody() {
    fn breaks() {}
    let platform = host();
    let [a, _] = buffers(&platform);
    let writer = platform.acquire(CPU).write(&a).wait().unwrap();
    let mut waiting = platform.acquire(CPU).read(&a).into_future();
    {
        fn act() -> impl Fn() + Send + Sync + 'static {
            breaks
        }
        let waker = Waker::from(Arc::new(Act(act(), AtomicUsize::new(0))));
        assert!(poll(&mut waiting, &waker).is_pending());
        // The slot has the last reference from here on.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(waker)));
    }
    // Replaced by another, and dropped.
    assert!(poll_once(&mut waiting).is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| writer.release())).is_ok_and(|released| released.is_ok()));
    assert!(matches!(poll_once(&mut waiting), Poll::Ready(Ok(_))));
}

/// A waker may do whatever a thread may that holds nothing: the release that runs it has ended by then.
#[test]
fn a_waker_may_acquire_what_its_release_has_given_up() {
    let platform = host();
    let [a, b] = buffers(&platform);
    let (there, low, high) = (platform.clone(), a.clone(), b.clone());
    watched("a waker that acquires", move || {
        // No thread holds `low`, so the waker really has to ask for it in the wrong order.
        let writer = there.acquire(CPU).write(&high).wait().unwrap();
        let reader = there.acquire(CPU).write(&low).wait().unwrap().hand_over();
        let (inner, first) = (there.clone(), low.clone());
        let result = Arc::new(dml::core::internal::sync::Mutex::new(None));
        let told = result.clone();
        let act = move || {
            let asked = inner.acquire(CPU).read(&first).wait_timeout(std::time::Duration::ZERO).map(drop);
            *told.lock() = Some(asked);
        };
        let waker = Waker::from(Arc::new(Act(act, AtomicUsize::new(0))));
        let mut waiting = there.acquire(CPU).read(&high).into_future();
        assert!(poll(&mut waiting, &waker).is_pending());
        writer.release().unwrap();
        // It had to wait, and the thread held nothing later: it is told that time was up, not that it could
        // deadlock.
        let heard = result.lock().take().expect("the waker was called");
        assert!(matches!(heard, Err(AcquireError::Timeout { .. })), "{heard:?}");
        drop(reader);
    })
    .join();
}

#[test]
fn a_future_that_has_ended_hands_nothing_out_again() {
    let platform = host();
    let [a, _] = buffers(&platform);
    let mut future = platform.acquire(CPU).read(&a).into_future();
    let Poll::Ready(Ok(grants)) = poll_once(&mut future) else { panic!("free to be read") };
    for _ in 0..2 {
        assert!(matches!(poll_once(&mut future), Poll::Ready(Err(AcquireError::Finished))));
    }
    drop(grants);
    let mut refused = platform.acquire(CPU).read(&a.range(0..17)).into_future();
    for _ in 0..2 {
        assert!(matches!(poll_once(&mut refused), Poll::Ready(Err(AcquireError::OutOfRange { .. }))));
    }
}

/// Nothing but the downgrade itself tells the reader.
#[test]
fn l04_a_downgrade_lets_a_waiting_reader_in() {
    let platform = host();
    let [a, _] = buffers(&platform);
    let mut grants = platform.acquire(CPU).write(&a).wait().unwrap();
    grants.slice_mut::<u8>(&a).unwrap().fill(3);
    let mut waiting = platform.acquire(CPU).read(&a).into_future();
    assert!(poll_once(&mut waiting).is_pending());
    let reading = grants.downgrade().unwrap();
    let Poll::Ready(Ok(seen)) = poll_once(&mut waiting) else { panic!("let in") };
    assert_eq!(seen.slice::<u8>(&a).unwrap(), [3; 16]);
    drop((reading, seen));
}
