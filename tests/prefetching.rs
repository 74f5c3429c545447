//! Prefetches that are awaited, waited for and cancelled.

#![cfg(not(dml_loom))]

use dml::arenas::Null;
use dml::core::internal::state::Lifecycle;
use dml::core::internal::sync::Arc;
use dml::core::{
    AcquireError, Allocation, ArenaDesc, ArenaKind, BusyReason, Completion, Concurrency, CopyJob, CopyQuery,
    Cost, CrossArena, DeviceDesc, DeviceKind, DeviceSet, Fence, HostStaged, Link, Platform, Prefetch,
    RawBuffer, TransferError, record::EventKind,
};
use dml_verify::held::{HeldCopies, held_star};
use dml_verify::{
    Audited, CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, MAIN_ARENA, Watched, bytes, poll_once, put, raw, read,
    star, watched, write,
};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const LEN: u64 = 100;

/// A buffer whose contents the first gpu has written. The second gpu is two copies away.
fn written_on_gpu(platform: &Audited) -> RawBuffer {
    let buffer = raw(platform, LEN);
    let writer = platform.acquire(GPU).write(&buffer).try_now().expect("nobody is there");
    writer.release().expect("a healthy device");
    buffer
}

fn is_valid(buffer: &RawBuffer, arena: dml::core::ArenaId) -> bool {
    buffer.snapshot().segments().iter().all(|(_, content)| content.valid.contains(arena))
}

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_prefetch_runs_while_its_thread_does_something_else() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let mut coming = buffer.prefetch(CPU, ..);
    assert_eq!(held.begun().len(), 1, "the copy begins in the call");
    // A reader of the source goes on beside it, and a writer does not.
    platform.acquire(GPU).read(&buffer).try_now().unwrap().release().unwrap();
    let writer = platform.acquire(GPU).write(&buffer).try_now();
    assert!(matches!(writer, Err(AcquireError::Busy { reason: BusyReason::Copying, .. })), "{writer:?}");
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(counter.clone());
    assert!(Pin::new(&mut coming).poll(&mut Context::from_waker(&waker)).is_pending());
    held.begun()[0].end(Ok(LEN));
    assert_eq!(counter.0.load(Ordering::Relaxed), 1, "nobody was told");
    assert_eq!(poll_once(&mut coming), Poll::Ready(Ok(())));
    assert_eq!(poll_once(&mut coming), Poll::Ready(Ok(())), "the answer stays");
    assert_eq!(held.begun()[0].waiting(), 0, "nobody blocked");
    platform.acquire(CPU).read(&buffer).try_now().unwrap().release().unwrap();
    assert_eq!(held.begun().len(), 1, "o02: the reader finds its bytes");
}

#[test]
fn a_wait_with_a_limit_leaves_the_prefetch_going() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let mut coming = buffer.prefetch(GPU2, ..);
    let limit = Duration::from_millis(1);
    let expected = AcquireError::Timeout { buffer: buffer.name(), waited: limit };
    assert_eq!(coming.wait_timeout(limit), Err(expected.clone()));
    assert_eq!(coming.wait_timeout(limit), Err(expected));
    held.begun()[0].end(Ok(LEN));
    let asked = coming.wait_timeout(Duration::ZERO);
    assert!(asked.is_err_and(|error| error.is_busy()), "the second copy is under way");
    assert_eq!(held.begun().len(), 2);
    let second = held.begun()[1].clone();
    let ends = std::thread::spawn(move || second.end(Ok(LEN)));
    let waited = watched("a wait with a limit", move || coming.wait_timeout(Duration::from_secs(3600)));
    assert_eq!(waited.join(), Ok(()), "the end of the copy wakes the thread");
    ends.join().unwrap();
    assert!(is_valid(&buffer, GPU2_ARENA));
}

#[test]
fn i15_a_prefetch_dropped_or_cancelled_keeps_what_arrives_and_begins_nothing_more() {
    for end in [Prefetch::cancel, drop] {
        let (platform, held) = held_star();
        let buffer = written_on_gpu(&platform);
        let recording = platform.record();
        let mut coming = buffer.prefetch(GPU2, ..);
        assert!(poll_once(&mut coming).is_pending());
        let ending = watched("a cancellation", move || end(coming));
        let first = held.begun()[0].clone();
        while first.waiting() == 0 {
            std::thread::yield_now();
        }
        assert!(!buffer.snapshot().is_idle(), "the copy under way still uses the memory");
        first.end(Ok(LEN));
        ending.join();
        assert_eq!(held.begun().len(), 1, "the second hop does not begin");
        assert!(buffer.snapshot().is_idle(), "{:#?}", buffer.snapshot());
        assert!(is_valid(&buffer, MAIN_ARENA), "what has arrived counts");
        assert!(is_valid(&buffer, GPU_ARENA), "nothing is lost");
        let events = recording.finish();
        assert!(events.iter().any(|event| matches!(event.kind, EventKind::GivenUp { .. })));
        platform.acquire(GPU).write(&buffer).try_now().expect("nobody is in the way").release().unwrap();
    }
}

#[test]
fn i15_another_thread_cancels_a_prefetch_that_somebody_waits_for() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let coming = buffer.prefetch(GPU2, ..);
    let canceller = coming.canceller();
    let waiter = watched("wait()", move || coming.wait());
    let first = held.begun()[0].clone();
    while first.waiting() == 0 {
        std::thread::yield_now();
    }
    canceller.cancel();
    canceller.clone().cancel();
    first.end(Ok(LEN));
    assert_eq!(waiter.join(), Err(AcquireError::Cancelled { buffer: buffer.name() }));
    assert_eq!(held.begun().len(), 1, "the second hop does not begin");
    assert!(buffer.snapshot().is_idle());
    assert!(is_valid(&buffer, MAIN_ARENA));
}

#[test]
fn i15_a_cancelled_future_ends_when_its_copies_have_ended() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let mut coming = buffer.prefetch(GPU2, ..);
    assert!(poll_once(&mut coming).is_pending());
    coming.canceller().cancel();
    assert!(poll_once(&mut coming).is_pending(), "a copy is under way");
    held.begun()[0].end(Ok(LEN));
    let cancelled = Poll::Ready(Err(AcquireError::Cancelled { buffer: buffer.name() }));
    assert_eq!(poll_once(&mut coming), cancelled);
    assert_eq!(poll_once(&mut coming), cancelled, "the answer stays");
    assert_eq!(held.begun().len(), 1);
}

/// The failed copy is the answer, even if the prefetch was cancelled as well.
#[test]
fn i15_a_copy_that_fails_under_a_cancelled_prefetch_is_told() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let mut coming = buffer.prefetch(GPU2, ..);
    coming.canceller().cancel();
    held.begun()[0].end(Ok(LEN - 1));
    let Poll::Ready(Err(AcquireError::CopyFailed { cause, .. })) = poll_once(&mut coming) else {
        panic!("the copy was short")
    };
    assert_eq!(cause, TransferError::Short { requested_bytes: LEN, done_bytes: LEN - 1 });
    assert!(!is_valid(&buffer, MAIN_ARENA));
    assert!(buffer.snapshot().is_idle());
}

#[test]
fn to_cancel_after_the_end_changes_nothing() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    let coming = buffer.prefetch(GPU2, 3..77);
    let canceller = coming.canceller();
    canceller.cancel();
    // These copies are made in the call, which has ended before.
    assert_eq!(coming.wait(), Ok(()));
    canceller.cancel();
    assert_eq!(buffer.prefetch(GPU2, ..).wait(), Ok(()), "a later one is another");
    buffer.prefetch(CPU, ..).cancel();
    assert_eq!(read(&buffer, GPU2_ARENA, 0..LEN), bytes(1, 0..LEN));
}

#[test]
fn a_cancelled_prefetch_lets_the_writer_in_that_waits_for_it() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let coming = buffer.prefetch(GPU2, ..);
    let writer = waiting_writer(&platform, &buffer);
    coming.canceller().cancel();
    held.begun()[0].end(Ok(LEN));
    writer.join();
    assert_eq!(coming.wait(), Err(AcquireError::Cancelled { buffer: buffer.name() }), "the writer ended it");
    assert_eq!(held.begun().len(), 1, "the second hop does not begin");
    assert!(!is_valid(&buffer, MAIN_ARENA), "i02: the writer's bytes are the latest");
}

#[test]
fn l06_a_close_waits_for_a_prefetch_and_ends_when_that_is_cancelled() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let coming = buffer.prefetch(GPU2, ..);
    let closed = buffer.clone();
    let closer = watched("close()", move || closed.close());
    while buffer.snapshot().lifecycle() == Lifecycle::Open {
        std::thread::yield_now();
    }
    let canceller = watched("cancel()", move || coming.cancel());
    while held.begun()[0].waiting() == 0 {
        std::thread::yield_now();
    }
    held.begun()[0].end(Ok(LEN));
    canceller.join();
    closer.join();
    assert_eq!(held.begun().len(), 1, "the second hop does not begin");
    let late = buffer.prefetch(GPU2, ..).wait();
    assert_eq!(late, Err(AcquireError::Closed { buffer: buffer.name() }));
}

/// A thread that waits to write all bytes.
fn waiting_writer(platform: &Audited, buffer: &RawBuffer) -> Watched<()> {
    let (writes, wrote) = (Platform::clone(platform), buffer.clone());
    let writer = watched("the writer", move || {
        writes.acquire(GPU).write(&wrote).wait().expect("let in").release().expect("a healthy device");
    });
    while buffer.snapshot().queue().len() == 0 {
        std::thread::yield_now();
    }
    writer
}

/// Ends the copies of a prefetch over two links, as soon as they have begun.
fn end_both(held: Arc<HeldCopies>) -> Watched<()> {
    watched("the device", move || {
        for index in 0..2 {
            while held.begun().len() == index {
                std::thread::yield_now();
            }
            held.begun()[index].end(Ok(LEN));
        }
    })
}

/// The prefetch's owner does not poll it, and both of its copies are made all the same.
#[test]
fn l03_a_writer_carries_a_prefetch_on_that_is_kept() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let recording = platform.record();
    let coming = buffer.prefetch(GPU2, ..);
    let writer = waiting_writer(&platform, &buffer);
    let ends = end_both(held.clone());
    writer.join();
    ends.join();
    assert_eq!(
        held.begun().iter().map(|copy| copy.waiting()).sum::<usize>(),
        0,
        "nobody blocks for one copy"
    );
    let events = recording.finish();
    assert!(events.iter().any(|event| matches!(event.kind, EventKind::Prefetched { .. })), "{events:?}");
    assert_eq!(coming.wait(), Ok(()), "the result is kept for whoever asked");
}

/// The thread that keeps the prefetch writes its bytes.
#[test]
fn l03_a_thread_does_not_wait_for_its_own_prefetch() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let coming = buffer.prefetch(CPU, ..);
    held.begun()[0].end(Ok(LEN));
    let writes = platform.clone();
    let (wrote, seen) = (buffer.clone(), buffer.clone());
    let writer = watched("the writer", move || {
        writes.acquire(GPU).write(&wrote).wait().expect("let in").release().expect("a healthy device");
        coming
    });
    let coming = writer.join();
    assert!(seen.snapshot().is_idle());
    assert_eq!(coming.wait(), Ok(()));
}

/// A request that only tries notices the end of a prefetch, and fails while the copy is in flight.
#[test]
fn a_request_that_only_tries_finds_a_kept_prefetch_ended() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let mut coming = buffer.prefetch(CPU, ..);
    let early = platform.acquire(GPU).write(&buffer).try_now();
    assert!(matches!(early, Err(AcquireError::Busy { reason: BusyReason::Copying, .. })), "{early:?}");
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(counter.clone());
    assert!(Pin::new(&mut coming).poll(&mut Context::from_waker(&waker)).is_pending());
    let early = platform.acquire(GPU).write(&buffer).try_now();
    assert!(early.is_err(), "the copy is under way");
    held.begun()[0].end(Ok(LEN));
    assert_eq!(counter.0.load(Ordering::Relaxed), 1, "a try takes nobody's waker away");
    platform.acquire(GPU).write(&buffer).try_now().expect("the copy has ended").release().unwrap();
    assert_eq!(poll_once(&mut coming), Poll::Ready(Ok(())));
}

/// A future that waits behind a kept prefetch is woken by the end of its copy. So is the task that awaits the
/// prefetch.
#[test]
fn l04_the_end_of_a_copy_wakes_the_asker_and_those_behind() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let mut coming = buffer.prefetch(CPU, ..);
    let (asker, behind) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    let (asks, waits) = (Waker::from(asker.clone()), Waker::from(behind.clone()));
    assert!(Pin::new(&mut coming).poll(&mut Context::from_waker(&asks)).is_pending());
    let mut writer = platform.acquire(GPU).write(&buffer).into_future();
    assert!(Pin::new(&mut writer).poll(&mut Context::from_waker(&waits)).is_pending());
    held.begun()[0].end(Ok(LEN));
    let counts = [&asker, &behind].map(|counter| counter.0.load(Ordering::Relaxed));
    assert_eq!(counts, [1, 1], "each is told once");
    let Poll::Ready(Ok(granted)) = poll_once(&mut writer) else { panic!("nobody is in the way") };
    granted.release().unwrap();
    assert_eq!(poll_once(&mut coming), Poll::Ready(Ok(())));
}

/// Waiters behind one prefetch do not take each other's places, however often each polls.
#[test]
fn l04_the_end_of_a_copy_wakes_all_who_wait_behind_it() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let coming = buffer.prefetch(CPU, ..);
    let counters = [(); 3].map(|()| Arc::new(Counter::default()));
    let mut writers = [(); 3].map(|()| platform.acquire(GPU).write(&buffer).into_future());
    for _ in 0..3 {
        for (writer, counter) in writers.iter_mut().zip(&counters) {
            let waker = Waker::from(counter.clone());
            assert!(Pin::new(writer).poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    held.begun()[0].end(Ok(LEN));
    let counts = counters.each_ref().map(|counter| counter.0.load(Ordering::Relaxed));
    assert_eq!(counts, [1; 3], "each is told once");
    for writer in &mut writers {
        let Poll::Ready(Ok(granted)) = poll_once(writer) else { panic!("one after the other") };
        granted.release().unwrap();
    }
    assert_eq!(coming.wait(), Ok(()));
}

/// A writer whose time is over leaves the prefetch as it is, for the next.
#[test]
fn l04_a_writer_that_gives_up_leaves_the_prefetch_to_the_next() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let coming = buffer.prefetch(GPU2, ..);
    let early = platform.acquire(GPU).write(&buffer).wait_timeout(Duration::from_millis(1));
    assert!(matches!(early, Err(AcquireError::Timeout { .. })), "{early:?}");
    let writer = waiting_writer(&platform, &buffer);
    let ends = end_both(held.clone());
    writer.join();
    ends.join();
    assert_eq!(coming.wait(), Ok(()));
}

#[test]
fn l06_a_close_carries_a_prefetch_on_that_is_kept() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let coming = buffer.prefetch(GPU2, ..);
    let early = buffer.close_timeout(Duration::from_millis(1));
    assert!(matches!(early, Err(AcquireError::StillHeld { .. })), "{early:?}");
    let ends = end_both(held.clone());
    let closed = buffer.clone();
    watched("close()", move || closed.close()).join();
    ends.join();
    assert_eq!(coming.wait(), Ok(()), "what has arrived has gone with the buffer, and nothing failed");
}

#[test]
fn a_device_lost_under_a_prefetch_ends_it_and_loses_nothing_else() {
    let (platform, held) = held_star();
    let buffer = written_on_gpu(&platform);
    let mut coming = buffer.prefetch(GPU2, ..);
    platform.device_lost(GPU2);
    held.begun()[0].end(Ok(LEN));
    let Poll::Ready(Err(error)) = poll_once(&mut coming) else { panic!("there is nowhere to bring it") };
    assert!(error.is_device_lost(), "{error}");
    assert!(buffer.snapshot().is_idle());
    assert!(is_valid(&buffer, MAIN_ARENA));
}

#[test]
fn a_prefetch_names_what_is_in_its_way() {
    let platform = star();
    let buffer = platform.buffer::<u32>(25).label("field").build().unwrap();
    let unwritten = buffer.prefetch(GPU, ..).wait().unwrap_err();
    assert!(matches!(unwritten, AcquireError::Uninitialized { .. }), "{unwritten:?}");
    assert!(unwritten.to_string().contains("field"), "{unwritten}");
    let mut writer = platform.acquire(CPU).write(&buffer).try_now().unwrap();
    put(&mut writer, buffer.raw(), 0, &bytes(1, 0..LEN));
    let busy = buffer.prefetch(GPU, 3..=4).wait().unwrap_err();
    assert_eq!(busy, AcquireError::Busy { buffer: buffer.raw().name(), reason: BusyReason::Conflict });
    writer.release().unwrap();
    let (late, early) = (9, 8);
    for outside in
        [buffer.prefetch(GPU, 3..26), buffer.prefetch(GPU, ..=u64::MAX), buffer.prefetch(GPU, late..early)]
    {
        let error = outside.wait().unwrap_err();
        assert!(matches!(error, AcquireError::OutOfRange { len: LEN, .. }), "{error:?}");
    }
    let nowhere = dml::core::DeviceId(9);
    assert_eq!(buffer.prefetch(nowhere, ..).wait(), Err(AcquireError::NoArena { device: nowhere }));
    // Elements are brought, not bytes: the range is exactly these.
    buffer.prefetch(GPU, 3..=4).wait().unwrap();
    let there: Vec<_> = buffer
        .raw()
        .snapshot()
        .segments()
        .iter()
        .map(|(span, content)| (span.to_range(), content.valid.contains(GPU_ARENA)))
        .collect();
    assert_eq!(there, [(0..12, false), (12..20, true), (20..100, false)]);
    assert_eq!(read(buffer.raw(), GPU_ARENA, 0..LEN), bytes(1, 0..LEN));
}

/// The second poll of a copy blocks here until the test opens the gate. The copy ends when a thread waits for
/// it, and calls no waker.
#[derive(Debug, Default)]
struct Gate {
    polls: AtomicU64,
    opens: AtomicBool,
}

struct Gated(Arc<Gate>, u64);

impl Completion for Gated {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        Ok(self.1)
    }

    fn poll(&mut self, _waker: &Waker) -> Poll<Result<u64, TransferError>> {
        if self.0.polls.fetch_add(1, Ordering::SeqCst) == 1 {
            while !self.0.opens.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        Poll::Pending
    }
}

#[derive(Debug)]
struct GatedCopies(Arc<Gate>);

impl CrossArena for GatedCopies {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        HostStaged::default().can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let bytes = HostStaged::default().copy(job)?.wait()?;
        Ok(Fence::awaited(Gated(self.0.clone(), bytes)))
    }
}

/// A request that only tries looks at the prefetch while its owner comes to wait for it. Nothing else wakes
/// the owner: the copy ends when it is waited for.
#[test]
fn l04_whoever_waits_for_a_prefetch_hears_that_nobody_drives_it_any_more() {
    let gate = Arc::<Gate>::default();
    let mut builder = Platform::builder().without_default_links();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu", DeviceKind::Gpu)] {
        let device = builder.add_device(DeviceDesc::new(name, kind));
        let desc = ArenaDesc::new(name, ArenaKind("test"), device).with_remotes(DeviceSet::of(CPU));
        let width = if device == CPU { Concurrency::BimapFull } else { Concurrency::Exclusive };
        builder.add_arena(Arc::new(Null::backed(desc.with_concurrency(width))));
    }
    let (from, to, allocation) = (MAIN_ARENA, GPU_ARENA, Allocation::Internal);
    let link = Link { from, to, source_via: CPU, target_via: GPU, allocation };
    builder.add_link(link, Arc::new(GatedCopies(gate.clone())));
    let platform = Audited::new(builder.build().expect("a sound platform"));
    let buffer = platform.raw_buffer(LEN).build().expect("a small buffer");
    platform.acquire(CPU).write(&buffer).wait().expect("nobody else is there").release().expect("committed");
    let coming = buffer.prefetch(GPU, ..);
    assert_eq!(gate.polls.load(Ordering::SeqCst), 1);
    let (asked, on) = (buffer.clone(), platform.clone());
    let tries = watched("the one that tries", move || on.acquire(CPU).write(&asked).try_now().map(drop));
    while gate.polls.load(Ordering::SeqCst) < 2 {
        std::thread::yield_now();
    }
    let waits = watched("the one that waits", move || coming.wait());
    // Long enough for it to fall asleep; where it is not, it finds the prefetch by itself.
    std::thread::sleep(Duration::from_millis(50));
    gate.opens.store(true, Ordering::SeqCst);
    assert!(tries.join().is_err_and(|error| error.is_busy()), "the copy is under way");
    assert_eq!(waits.join(), Ok(()));
    assert!(buffer.snapshot().is_idle());
}
