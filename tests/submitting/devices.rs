//! Submissions on devices with memories of their own.

use crate::random::{Step, platform};
use dml::arenas::kit::{Signal, Signaller};
use dml::core::internal::sync::Mutex;
use dml::core::record::{Event, EventKind, Recording};
use dml::core::{
    Access, AcquireError, Buffer, DeviceId, Fence, Grants, Launch, LaunchArg, LaunchError, Launcher, Misfit,
    Platform, Prefetch, Region, Submission, Submit, SubmitError, TransferError,
};
use dml_verify::held::{HeldCopies, held_star};
use dml_verify::{Audited, block_on, watched};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake};
use std::time::{Duration, Instant};

/// A diamond over two devices: only what crosses from one to the other is copied, once.
#[test]
fn a_diamond_over_two_devices_copies_once_for_each_edge_that_crosses() {
    let (platform, devices) = platform(2);
    let launched = Arc::default();
    let kernels = [0, 1].map(|on| {
        let (platform, device, launched) = (platform.clone(), devices[on], Arc::clone(&launched));
        Arc::new(Step { platform, device, launched })
    });
    let [x, a, b, c] = [1, 0, 0, 0].map(|value| platform.buffer_from(vec![value]).unwrap());
    let recording = platform.record();
    let step = |on: usize, from: &Buffer<u32>, to: &Buffer<u32>, access| {
        let submit = platform.submit(devices[on], &kernels[on]).read(from).access(to, access);
        submit.scalar(10_u32).scalar(0_u32).scalar(0_u32).items(1).unwrap();
    };
    step(0, &x, &a, Access::WriteInvalidate);
    step(0, &a, &b, Access::WriteInvalidate);
    step(1, &a, &c, Access::WriteInvalidate);
    step(0, &c, &b, Access::ReadWrite);
    devices.iter().for_each(|device| platform.settle(*device).unwrap());
    let events = recording.finish();
    let copies: Vec<_> = events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::CopyDone { .. }))
        .map(|event| event.buffer)
        .collect();
    let of = |buffer: &Buffer<u32>| copies.iter().filter(|copied| **copied == buffer.raw().id()).count();
    // Each crossing takes two copies, through main memory.
    assert_eq!([&x, &a, &b, &c].map(of), [1, 2, 0, 2], "{copies:?}");
    assert_eq!(b.read().unwrap()[0], 3 * (3 * (3 + 10) + 10) + 10);
}

/// A kernel whose end is up to the test.
struct Pending(Mutex<Vec<Signaller>>);

impl Launcher for Pending {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn launch(&self, _: &Launch<'_>, _: &mut Grants) -> Result<Fence, LaunchError> {
        let (signal, ends) = Signal::new();
        self.0.lock().push(ends);
        Ok(signal.fence())
    }
}

/// A prefetch of what a kernel in flight writes travels behind it, whether a call waits for it or not.
#[test]
fn i29_a_prefetch_travels_behind_the_kernel_that_writes_its_bytes() {
    let (platform, devices) = platform(1);
    let (device, host) = (devices[0], platform.host().unwrap());
    let kernel = Arc::new(Pending(Mutex::default()));
    let buffer = platform.buffer_from(vec![1_u32]).unwrap();
    let submit = || platform.submit(device, &kernel).read_write(&buffer).items(1).unwrap();
    let end = |result| kernel.0.lock().pop().unwrap().end(result);
    let copies = |recording: Recording| {
        let events = recording.finish();
        events.iter().filter(|event| matches!(event.kind, EventKind::CopyDone { .. })).count()
    };
    // It is forgotten, and comes all the same.
    submit();
    let recording = platform.record();
    let mut coming = buffer.prefetch(host, ..);
    assert!(matches!(coming.wait_timeout(Duration::ZERO), Err(AcquireError::Timeout { .. })));
    end(Ok(0));
    let begun = Instant::now();
    while coming.wait_timeout(Duration::ZERO).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not come by itself");
        std::thread::yield_now();
    }
    assert_eq!(copies(recording), 1);
    let recording = platform.record();
    drop(buffer.read().unwrap());
    assert_eq!(copies(recording), 0, "it was there");
    // One that is awaited, one of two kernels, one that is cancelled, one of a kernel that fails.
    submit();
    let coming = buffer.prefetch(host, ..);
    let awaited = watched("a prefetch", move || block_on(coming));
    end(Ok(0));
    awaited.join().unwrap();
    submit();
    let (cancelled, dropped) = (buffer.prefetch(host, ..), buffer.prefetch(host, ..));
    cancelled.canceller().cancel();
    assert!(matches!(cancelled.wait(), Err(AcquireError::Cancelled { .. })));
    drop(dropped);
    let recording = platform.record();
    end(Ok(0));
    platform.settle(device).unwrap();
    assert_eq!(copies(recording), 0);
    submit();
    let coming = buffer.prefetch(host, ..);
    end(Err(TransferError::Finished));
    let failed = watched("a prefetch behind a kernel that fails", move || coming.wait()).join();
    assert!(matches!(failed, Err(AcquireError::Poisoned { .. })), "{failed:?}");
    assert!(platform.leaked_grants().is_empty());
}

/// A waker that a stream calls cannot wait for a prefetch, which may wait for that stream.
#[test]
fn i29_a_waker_that_a_stream_calls_does_not_wait_for_a_prefetch() {
    struct Waits(Buffer<u32>, DeviceId, Mutex<Option<Result<(), AcquireError>>>);

    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            let waited = self.0.prefetch(self.1, ..).wait();
            *self.2.lock() = Some(waited);
        }
    }

    let (platform, devices) = platform(1);
    let kernel = Arc::new(Pending(Mutex::default()));
    let buffer = platform.buffer_from(vec![1_u32]).unwrap();
    let submit = || platform.submit(devices[0], &kernel).read_write(&buffer).items(1).unwrap();
    let (mut first, second) = (submit(), submit());
    let waits = Arc::new(Waits(buffer.clone(), platform.host().unwrap(), Mutex::default()));
    let waker = waits.clone().into();
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
    let mut ends: Vec<_> = kernel.0.lock().drain(..).collect();
    let (ends_second, ends_first) = (ends.pop().unwrap(), ends.pop().unwrap());
    ends_first.end(Ok(0));
    let begun = Instant::now();
    while waits.2.lock().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the waker waits");
        std::thread::yield_now();
    }
    ends_second.end(Ok(0));
    let waited = waits.2.lock().take();
    assert!(matches!(waited, Some(Err(AcquireError::OnStream { .. }))), "{waited:?}");
    watched("the second kernel", move || second.wait()).join().unwrap();
    assert!(platform.leaked_grants().is_empty());
}

/// A waker that panics, and one that drops the prefetch, are called by the thread that ends the kernel.
#[test]
fn i29_wakers_of_a_prefetch_behind_a_kernel_may_panic_and_drop_it() {
    struct Bad(Mutex<Option<Prefetch>>);

    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().take());
            panic!("a bad waker");
        }
    }

    let (platform, devices) = platform(1);
    let kernel = Arc::new(Pending(Mutex::default()));
    let buffer = platform.buffer_from(vec![1_u32]).unwrap();
    for dropped in [true, false] {
        platform.submit(devices[0], &kernel).read_write(&buffer).items(1).unwrap();
        let bad = Arc::new(Bad(Mutex::default()));
        let waker = bad.clone().into();
        let mut coming = buffer.prefetch(platform.host().unwrap(), ..);
        assert!(Pin::new(&mut coming).poll(&mut Context::from_waker(&waker)).is_pending());
        let kept = if dropped { bad.0.lock().replace(coming) } else { Some(coming) };
        kernel.0.lock().pop().unwrap().end(Ok(0));
        let settles = Platform::clone(&platform);
        let device = devices[0];
        watched("the kernel", move || settles.settle(device)).join().unwrap();
        if let Some(coming) = kept {
            watched("the prefetch", move || coming.wait()).join().unwrap();
        }
        assert_eq!(buffer.read().unwrap()[0], 1);
    }
    assert!(platform.leaked_grants().is_empty());
}

/// A device that is lost while grants end, after a buffer was committed: the release did not fail.
#[test]
fn i17_nothing_is_committed_by_a_release_that_reports_a_loss() {
    struct Loses(Platform, DeviceId);

    impl Wake for Loses {
        fn wake(self: Arc<Self>) {
            self.0.device_lost(self.1);
        }
    }

    let (platform, devices) = platform(1);
    let [read, written] = [1, 2].map(|value| platform.buffer_from(vec![value]).unwrap());
    let grants = platform.acquire(devices[0]).read(&read).read_write(&written).wait().unwrap();
    let mut waits = platform.acquire(platform.host().unwrap()).read(&written).into_future();
    let waker = Arc::new(Loses(platform.clone(), devices[0])).into();
    assert!(Pin::new(&mut waits).poll(&mut Context::from_waker(&waker)).is_pending());
    let recording = platform.record();
    let released = grants.release();
    drop(waits);
    let events = recording.finish();
    let is_commit = |event: &&Event| matches!(event.kind, EventKind::Released { commit: Some(_), .. });
    assert_eq!((released, events.iter().filter(is_commit).count()), (Ok(()), 1));
}

/// Two kernels on a gpu, whose inputs are copied there: `a = 3 x + 1` and `b = 3 y + 2`.
struct Arriving {
    platform: Audited,
    held: Arc<HeldCopies>,
    kernel: Arc<Step>,
    buffers: [Buffer<u32>; 4],
}

impl Arriving {
    fn new() -> Self {
        let (platform, held) = held_star();
        let device = platform.device("gpu").unwrap();
        let kernel = Arc::new(Step { platform: platform.clone(), device, launched: Arc::default() });
        let buffers = [1, 2, 3, 4].map(|value| platform.buffer_from(vec![value]).unwrap());
        Self { platform, held, kernel, buffers }
    }

    fn submit(&self, from: &impl Region, to: &impl Region, number: u32) -> Submit<'_> {
        let submit = self.platform.submit(self.kernel.device, &self.kernel).read(from).write(to);
        submit.scalar(number).scalar(0_u32).scalar(0_u32)
    }

    /// Submits both.
    fn begin(&self) -> [Submission; 2] {
        let [x, y, a, b] = &self.buffers;
        [self.submit(x, a, 1).items(1).unwrap(), self.submit(y, b, 2).items(1).unwrap()]
    }

    /// Returns what a buffer holds, once the copies of the read have ended.
    fn read(&self, at: usize) -> Result<u32, AcquireError> {
        let buffer = self.buffers[at].clone();
        let ended = self.held.begun().len();
        let reads = std::thread::spawn(move || buffer.read().map(|view| view[0]));
        while !reads.is_finished() {
            self.held.begun().iter().skip(ended).for_each(|copy| copy.end(Ok(4)));
            std::thread::yield_now();
        }
        reads.join().expect("it ends")
    }
}

/// The submitter does not wait for the copies of what its kernels read. Writers of that wait meanwhile.
#[test]
fn i29_a_submitter_goes_on_while_its_inputs_are_copied() {
    let arriving = Arriving::new();
    let Arriving { platform, held, buffers: [x, y, a, b], .. } = &arriving;
    let [first, second] = arriving.begin();
    let copies = held.begun();
    assert_eq!((copies.len(), first.has_ended(), second.has_ended()), (2, false, false));
    let host = platform.host().unwrap();
    for taken in [platform.acquire(host).write(x), platform.acquire(host).read(a)] {
        assert!(matches!(taken.try_now(), Err(AcquireError::Busy { .. })));
    }
    // Behind both: what it reads is written on the stream, or comes with the first copy of its bytes.
    let submits = arriving.submit(a, b, 3);
    let third = submits.try_items(1).unwrap();
    copies[1].end(Ok(4));
    assert!(!second.has_ended(), "it is behind the first one");
    copies[0].end(Ok(4));
    third.wait().unwrap();
    assert_eq!((arriving.read(2), arriving.read(3)), (Ok(4), Ok(15)));
    assert_eq!((x.read().unwrap()[0], y.read().unwrap()[0], held.begun().len()), (1, 2, 4));
    assert!(platform.leaked_grants().is_empty());
}

/// A launch that waits for its input holds up none before it, although one thread makes both.
#[test]
fn a_kernel_ends_while_the_next_one_waits_for_its_input() {
    let arriving = Arriving::new();
    let [x, y, a, b] = &arriving.buffers;
    let c = arriving.platform.buffer_from(vec![0_u32]).unwrap();
    arriving.submit(x, a, 1).items(1).unwrap();
    let between = arriving.submit(a, &c, 2).items(1).unwrap();
    let last = arriving.submit(y, b, 3).items(1).unwrap();
    let [first, second] = &arriving.held.begun()[..] else { panic!("two copies") };
    first.end(Ok(4));
    watched("the kernel between", move || between.wait()).join().unwrap();
    assert!(!last.has_ended());
    second.end(Ok(4));
    last.wait().unwrap();
    assert_eq!((arriving.read(2), arriving.read(3)), (Ok(4), Ok(9)));
}

/// The same of two parts of one buffer, by futures.
#[test]
fn i29_a_future_submits_while_its_inputs_are_copied() {
    let arriving = Arriving::new();
    let whole = arriving.platform.buffer_from(vec![5_u32, 6]).unwrap();
    let [.., a, b] = &arriving.buffers;
    let first = block_on(arriving.submit(&whole.range(0..1), a, 1).items_async(1)).unwrap();
    let second = block_on(arriving.submit(&whole.range(1..2), b, 2).items_async(1)).unwrap();
    assert!(!first.has_ended() && !second.has_ended());
    arriving.held.begun().iter().for_each(|copy| copy.end(Ok(4)));
    block_on(second).unwrap();
    assert_eq!((arriving.read(2), arriving.read(3)), (Ok(16), Ok(20)));
}

/// A copy that fails is the failure of its kernel: what is behind it fails too, and what it reads is whole.
#[test]
fn i29_an_input_that_does_not_arrive_fails_its_kernel() {
    let arriving = Arriving::new();
    let [first, second] = arriving.begin();
    let [copy, other] = &arriving.held.begun()[..] else { panic!("two copies") };
    copy.end(Err(TransferError::Finished));
    other.end(Ok(4));
    for submission in [&first, &second] {
        let error = submission.wait().unwrap_err();
        assert!(matches!(&error, SubmitError::Failed { number: 1, .. }), "{error:?}");
        assert!(error.to_string().contains("copy of b"), "{error}");
    }
    assert!(arriving.kernel.launched.lock().is_empty());
    for poisoned in [2, 3] {
        assert!(matches!(arriving.read(poisoned), Err(AcquireError::Poisoned { .. })));
    }
    assert_eq!((arriving.read(0), arriving.read(1)), (Ok(1), Ok(2)));
    let [x, _, a, _] = &arriving.buffers;
    let again = arriving.submit(x, a, 8).items(1).unwrap();
    arriving.held.begun().last().unwrap().end(Ok(4));
    again.wait().expect("the stream is open");
    assert_eq!(arriving.read(2), Ok(11));
    assert!(arriving.platform.leaked_grants().is_empty());
}

/// The submitter waits for the copy of what the kernel also changes: a failure then changes nothing.
#[test]
fn a_submitter_waits_for_the_copy_of_what_its_kernel_changes() {
    let arriving = Arc::new(Arriving::new());
    let submits = arriving.clone();
    let submitted = watched("a submission", move || {
        let [x, ..] = &submits.buffers;
        let submit = submits.platform.submit(submits.kernel.device, &submits.kernel).read_write(x);
        submit.items(1).map(drop)
    });
    while arriving.held.begun().is_empty() {
        std::thread::yield_now();
    }
    arriving.held.begun()[0].end(Err(TransferError::Finished));
    let error = submitted.join().unwrap_err();
    assert!(matches!(error, SubmitError::Acquire(AcquireError::CopyFailed { .. })), "{error:?}");
    assert_eq!(arriving.read(0), Ok(1));
}

/// Everything is dropped, or the device lost, while inputs are on their way.
#[test]
fn i29_inputs_on_their_way_are_dropped_or_lost() {
    let Arriving { platform, held, kernel, buffers } = Arriving::new();
    let [x, y, a, b] = buffers;
    let submit = |from: &Buffer<u32>, to: &Buffer<u32>| {
        let submit = platform.submit(kernel.device, &kernel).read(from).write(to);
        submit.scalar(1_u32).scalar(0_u32).scalar(0_u32).items(1).unwrap()
    };
    submit(&x, &a);
    drop(a);
    let lost = submit(&y, &b);
    held.begun()[0].end(Ok(4));
    platform.device_lost(kernel.device);
    held.begun()[1].end(Ok(4));
    lost.wait().expect_err("its device is lost");
    assert_eq!((x.read().unwrap()[0], y.read().unwrap()[0]), (1, 2));
    assert!(b.read().is_err());
    assert!(platform.leaked_grants().is_empty());
}
