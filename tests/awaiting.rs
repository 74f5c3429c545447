//! An acquire that is awaited gives its thread back while copies run.

#![cfg(not(dml_loom))]

use dml::arenas::Null;
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    AcquireError, Allocation, Arena, ArenaDesc, ArenaId, ArenaKind, Completion, Concurrency, CopyJob,
    CopyQuery, Cost, CrossArena, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, HostStaged, Link,
    Platform, RawBuffer, TransferError, record::EventKind,
};
use dml_verify::{Audited, poll_once};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);

/// Copies that end when they are told to.
#[derive(Debug, Default)]
struct Held {
    ends: Mutex<Ends>,
}

#[derive(Debug, Default)]
struct Ends {
    result: Option<Result<u64, TransferError>>,
    wakers: Vec<Waker>,
    begun: usize,
    waited_for: usize,
    /// Whether the completions of further copies panic.
    breaks: bool,
}

impl Held {
    fn end(&self, result: Result<u64, TransferError>) {
        let wakers = {
            let mut ends = self.ends.lock();
            ends.result = Some(result);
            std::mem::take(&mut ends.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

struct Ending(Arc<Held>);

impl Completion for Ending {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        // A waiter does not block here: its wait ends the copy.
        let mut ends = self.0.ends.lock();
        ends.waited_for += 1;
        ends.result.clone().unwrap_or(Ok(0))
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        let mut ends = self.0.ends.lock();
        match ends.result.clone() {
            Some(result) => Poll::Ready(result),
            None => {
                ends.wakers = vec![waker.clone()];
                Poll::Pending
            }
        }
    }
}

/// Staged copies whose ends are held back.
#[derive(Debug)]
struct Slow {
    held: Arc<Held>,
    inner: HostStaged,
}

impl CrossArena for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.inner.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        self.inner.copy(job)?.wait()?;
        let mut ends = self.held.ends.lock();
        ends.begun += 1;
        Ok(if ends.breaks { Fence::awaited(Broken) } else { Fence::awaited(Ending(self.held.clone())) })
    }
}

/// Main memory with 100 bytes in it, and a gpu whose copies are held back.
fn held_back() -> (Audited, Arc<Held>, RawBuffer) {
    let mut builder = Platform::builder().without_default_links();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapFull);
    let arenas: [Arc<dyn Arena>; 2] =
        [Arc::new(Null::backed(main)), Arc::new(Null::backed(ArenaDesc::new("gpu", ArenaKind("test"), GPU)))];
    let ids = arenas.map(|arena| builder.add_arena(arena));
    let held = Arc::new(Held::default());
    for (from, to) in [(ids[0], ids[1]), (ids[1], ids[0])] {
        let native = |id: ArenaId| if id == ids[0] { CPU } else { GPU };
        let (source_via, target_via) = (native(from), native(to));
        let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
        builder.add_link(link, Arc::new(Slow { held: held.clone(), inner: HostStaged::default() }));
    }
    let platform = Audited::new(builder.build().expect("a sound platform"));
    let buffer = platform.raw_buffer(100).build().expect("a small buffer");
    platform.acquire(CPU).write(&buffer).try_now().unwrap().release().unwrap();
    (platform, held, buffer)
}

/// Counts how often it was woken.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_poll_does_not_wait_for_a_copy() {
    let (platform, held, buffer) = held_back();
    let mut reading = platform.acquire(GPU).read(&buffer).into_future();
    let counter = std::sync::Arc::new(Counter::default());
    let waker = Waker::from(counter.clone());
    for _ in 0..3 {
        assert!(Pin::new(&mut reading).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    // Begun once; others go on meanwhile, on this very thread.
    assert_eq!((held.ends.lock().begun, counter.0.load(Ordering::Relaxed)), (1, 0));
    let host = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    assert!(matches!(platform.acquire(CPU).write(&buffer).try_now(), Err(AcquireError::Busy { .. })));
    held.end(Ok(100));
    assert!(counter.0.load(Ordering::Relaxed) > 0, "nobody was told");
    let Poll::Ready(Ok(grants)) = poll_once(&mut reading) else { panic!("the copy has ended") };
    grants.release().unwrap();
    drop(host);
    assert_eq!(held.ends.lock().waited_for, 0, "nobody blocked");
}

#[test]
fn i15_an_awaited_copy_that_fails_or_is_short_is_an_error_as_any() {
    for result in [Err(TransferError::DeviceLost { loss: None }), Ok(99)] {
        let (platform, held, buffer) = held_back();
        let mut reading = platform.acquire(GPU).read(&buffer).into_future();
        assert!(poll_once(&mut reading).is_pending());
        held.end(result.clone());
        let Poll::Ready(Err(AcquireError::CopyFailed { cause, .. })) = poll_once(&mut reading) else {
            panic!("{result:?}")
        };
        let short = TransferError::Short { requested_bytes: 100, done_bytes: 99 };
        assert_eq!(cause, result.err().unwrap_or(short));
        assert!(buffer.snapshot().is_idle());
        platform.acquire(CPU).write(&buffer).try_now().expect("nothing is left of it").release().unwrap();
    }
}

#[test]
fn i15_an_acquire_dropped_during_a_copy_waits_for_it_and_leaves_nothing() {
    let (platform, held, buffer) = held_back();
    let recording = platform.record();
    let mut reading = platform.acquire(GPU).read(&buffer).into_future();
    assert!(poll_once(&mut reading).is_pending());
    held.end(Ok(100));
    drop(reading);
    assert_eq!(held.ends.lock().waited_for, 1, "the memory under a copy outlives it");
    assert!(buffer.snapshot().is_idle());
    let events = recording.finish();
    let has = |of: fn(&EventKind) -> bool| events.iter().any(|event| of(&event.kind));
    assert!(has(|kind| matches!(kind, EventKind::CopyDone { .. })), "what has arrived counts");
    assert!(has(|kind| matches!(kind, EventKind::GivenUp { .. })), "nobody is granted anything");
    // The bytes are there already.
    let again = platform.acquire(GPU).read(&buffer).try_now().unwrap();
    assert_eq!(held.ends.lock().begun, 1);
    drop(again);
}

/// A waker that breaks.
struct Breaks;

impl Wake for Breaks {
    fn wake(self: std::sync::Arc<Self>) {
        panic!("this waker breaks");
    }
}

#[test]
fn i15_an_acquire_dropped_during_a_copy_is_given_up_though_a_waker_panics() {
    let (platform, held, buffer) = held_back();
    let mut fetching = platform.acquire(GPU).read(&buffer).into_future();
    assert!(poll_once(&mut fetching).is_pending());
    // Waits for the same bytes, and is let in when they have come.
    let mut waiting = platform.acquire(GPU).read(&buffer).into_future();
    let waker = Waker::from(std::sync::Arc::new(Breaks));
    assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
    held.end(Ok(100));
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(fetching)));
    assert!(dropped.is_ok(), "the waker's panic is its owner's, not that of whoever lets it in");
    drop(waiting);
    assert!(buffer.snapshot().is_idle(), "{:#?}", buffer.snapshot());
    buffer.close();
}

#[test]
fn the_last_waker_is_the_one_that_is_called() {
    let (platform, held, buffer) = held_back();
    let mut reading = platform.acquire(GPU).read(&buffer).into_future();
    let counters = [(); 2].map(|()| std::sync::Arc::new(Counter::default()));
    for counter in &counters {
        let waker = Waker::from(counter.clone());
        assert!(Pin::new(&mut reading).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    held.end(Ok(100));
    let woken = counters.each_ref().map(|counter| counter.0.load(Ordering::Relaxed));
    assert_eq!(woken, [0, 1], "tasks move between executors");
}

/// Work whose end cannot be learnt.
struct Broken;

impl Completion for Broken {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        panic!("waiting breaks too");
    }

    fn poll(&mut self, _: &Waker) -> Poll<Result<u64, TransferError>> {
        panic!("polling breaks");
    }
}

#[test]
fn i15_a_completion_that_panics_is_a_failed_copy() {
    let (platform, held, buffer) = held_back();
    held.ends.lock().breaks = true;
    let mut reading = platform.acquire(GPU).read(&buffer).into_future();
    let Poll::Ready(Err(AcquireError::CopyFailed { cause, .. })) = poll_once(&mut reading) else {
        panic!("a panic in arena code is a failure of that copy")
    };
    assert!(matches!(cause, TransferError::Panicked { .. }), "{cause:?}");
    assert!(buffer.snapshot().is_idle());
}

/// What happens in a poll of a copy's end, before it is answered.
type Deed = Box<dyn Fn() + Send>;

/// One copy, whose end is held back, and what polling it does.
struct Doing(Arc<Held>, Arc<Mutex<Option<Deed>>>);

impl Completion for Doing {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        Box::new(Ending(self.0.clone())).wait()
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        if let Some(deed) = self.1.lock().take() {
            deed();
        }
        Ending(self.0.clone()).poll(waker)
    }
}

/// Staged copies that end one by one, when they are told to.
#[derive(Default)]
struct Each {
    inner: HostStaged,
    begun: Mutex<Vec<Arc<Held>>>,
    /// What the first poll of the second copy does.
    deed: Arc<Mutex<Option<Deed>>>,
}

impl std::fmt::Debug for Each {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Each")
    }
}

impl CrossArena for Each {
    fn name(&self) -> &str {
        "each"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.inner.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        self.inner.copy(job)?.wait()?;
        let (held, mut begun) = (Arc::<Held>::default(), self.begun.lock());
        begun.push(held.clone());
        let deed = if begun.len() == 2 { self.deed.clone() } else { Arc::default() };
        Ok(Fence::awaited(Doing(held, deed)))
    }
}

/// Two gpus joined to main memory. The first 50 bytes are on the first gpu, the next 50 in main memory.
fn in_two_places() -> (Audited, Arc<Each>, RawBuffer) {
    let mut builder = Platform::builder().without_default_links();
    let each = Arc::new(Each::default());
    let names = [("cpu", DeviceKind::Cpu), ("gpu", DeviceKind::Gpu), ("gpu2", DeviceKind::Gpu)];
    for (name, kind) in names {
        let device = builder.add_device(DeviceDesc::new(name, kind));
        let remotes = if device == CPU { DeviceSet::of(CPU) } else { DeviceSet::EMPTY };
        let width = if device == CPU { Concurrency::BimapFull } else { Concurrency::Exclusive };
        let desc = ArenaDesc::new(name, ArenaKind("test"), device);
        let desc = desc.with_remotes(remotes).with_concurrency(width);
        builder.add_arena(Arc::new(Null::backed(desc)));
    }
    for (from, to) in [(1, 0), (0, 1), (0, 2), (2, 0)] {
        let link = Link {
            from: ArenaId(from),
            to: ArenaId(to),
            source_via: DeviceId(from.into()),
            target_via: DeviceId(to.into()),
            allocation: Allocation::Internal,
        };
        builder.add_link(link, each.clone());
    }
    let platform = Audited::new(builder.build().unwrap());
    let buffer = platform.raw_buffer(100).build().unwrap();
    platform.acquire(GPU).write(&buffer).try_now().unwrap().release().unwrap();
    platform.acquire(CPU).write(&buffer.range(50..100)).try_now().unwrap().release().unwrap();
    (platform, each, buffer)
}

#[test]
fn copies_of_one_plan_overlap_and_end_in_any_order() {
    let (platform, each, buffer) = in_two_places();
    let begun = || each.begun.lock().clone();
    // A completion may call back: no lock is held while it is polled.
    let looked_at = buffer.clone();
    *each.deed.lock() = Some(Box::new(move || assert_eq!(looked_at.snapshot().copies().len(), 3)));
    let mut reader = platform.acquire(DeviceId(2)).read(&buffer).into_future();
    assert!(poll_once(&mut reader).is_pending());
    assert_eq!(begun().len(), 2, "the second copy does not wait for the first");
    begun()[1].end(Ok(50));
    assert!(poll_once(&mut reader).is_pending());
    assert_eq!(buffer.snapshot().copies().len(), 2, "the later copy is heard first");
    begun()[0].end(Ok(50));
    assert!(poll_once(&mut reader).is_pending());
    assert_eq!(begun().len(), 3, "the second hop begins when the first has ended");
    begun()[2].end(Ok(50));
    assert!(matches!(poll_once(&mut reader), Poll::Ready(Ok(_))));
}

#[test]
fn i15_a_later_copy_that_panics_when_it_is_polled_ends_the_plan_after_the_others() {
    let (platform, each, buffer) = in_two_places();
    *each.deed.lock() = Some(Box::new(|| panic!("a completion's own fault")));
    let mut reader = platform.acquire(DeviceId(2)).read(&buffer).into_future();
    assert!(poll_once(&mut reader).is_pending(), "the first copy is under way");
    let first = each.begun.lock()[0].clone();
    first.end(Ok(50));
    let Poll::Ready(Err(error)) = poll_once(&mut reader) else { panic!("nothing is under way any more") };
    assert!(
        matches!(error, AcquireError::CopyFailed { cause: TransferError::Panicked { .. }, .. }),
        "{error:?}"
    );
    assert_eq!(each.begun.lock().len(), 2, "the second hop does not begin");
    assert!(buffer.snapshot().is_idle());
    // What arrived counts, what panicked does not.
    let valid: Vec<_> = buffer.snapshot().segments().iter().map(|(_, content)| content.valid.len()).collect();
    assert_eq!(valid, [2, 1]);
}
