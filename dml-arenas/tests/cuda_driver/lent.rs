//! Memory of others as blocks.

use super::{arena, cuda, fill, home, nothing_is_left, platform};
use crate::common::pattern;
use crate::driver::stand_in;
use crate::stand_in::{Says, threads};
use dml_arenas::cuda::ExternalError;
use dml_core::{Arena, Block, NativeHandle};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

#[test]
fn memory_that_was_mapped_piece_by_piece_is_one() {
    let driver = stand_in();
    let platform = platform(&["cuda:0", "cuda:1"]);
    let gpu = arena(&platform, "cuda:0");
    let start = driver.pieces(0, 3, 4096, true);
    // SAFETY: memory of the stand-in, which is never freed, or refused.
    let external =
        |from: usize, bytes: u64| unsafe { cuda(&gpu).external(NativeHandle(start + from), bytes, ()) };
    for (from, bytes) in
        [(0, 1), (0, 4096), (0, 4097), (0, 3 * 4096), (4095, 4098), (8192, 4096), (5000, 7000)]
    {
        assert_eq!(external(from, bytes).unwrap().len(), bytes, "{bytes} from {from}");
    }
    for (from, bytes) in [(0, 3 * 4096 + 1), (4096, 8193), (12_287, 2), (1, u64::MAX), (1, 1 << 63)] {
        let refused = external(from, bytes).unwrap_err();
        let ExternalError::TooShort { address, bytes: asked, start: found, size } = refused.cause else {
            panic!("{refused}")
        };
        assert_eq!((address, asked), ((start + from) as u64, bytes));
        let first = from / 4096 * 4096;
        assert_eq!((found, size), ((start + first) as u64, 3 * 4096 - first as u64));
    }
    let other = arena(&platform, "cuda:1");
    // SAFETY: refused.
    let refused = unsafe { cuda(&other).external(NativeHandle(start), 8, ()) }.unwrap_err();
    assert!(matches!(refused.cause, ExternalError::OtherDevice { found: 0, own: 1, .. }), "{refused}");
    let unknown = Box::new(0_u64);
    let nowhere = NativeHandle(std::ptr::from_ref(&*unknown).addr());
    // SAFETY: refused.
    let refused = unsafe { cuda(&gpu).external(nowhere, 8, ()) }.unwrap_err();
    assert!(matches!(refused.cause, ExternalError::NotDeviceMemory { .. }), "{refused}");
    assert!(refused.to_string().contains("does not know"), "{refused}");
    let locked = pattern(4096, 1);
    driver.register(cuda(&gpu).context().0, &locked);
    // SAFETY: refused.
    let refused = unsafe { cuda(&gpu).external(NativeHandle(locked.as_ptr().addr()), 8, ()) }.unwrap_err();
    assert!(refused.to_string().contains("memory of the host"), "{refused}");
}

#[test]
fn memory_of_a_block_is_no_piece_of_the_next() {
    let driver = stand_in();
    let platform = platform(&["cuda:2"]);
    let gpu = arena(&platform, "cuda:2");
    let block = super::alloc(&gpu, 1000);
    let address = Block::native(&**block.block());
    // SAFETY: memory of the block, which lives and is not used otherwise; or refused.
    let external = |bytes| unsafe { cuda(&gpu).external(address, bytes, ()) };
    assert_eq!(external(1000).unwrap().len(), 1000);
    let refused = external(100_000).unwrap_err();
    assert!(matches!(refused.cause, ExternalError::TooShort { size: 1024, .. }), "{refused}");
    // Nor is what another allocation of the same context has behind it.
    let start = driver.pieces(2, 2, 4096, false) as u64;
    // SAFETY: as above.
    let neighbour = |bytes| unsafe { cuda(&gpu).external(NativeHandle(start as usize), bytes, ()) };
    assert_eq!(neighbour(4096).unwrap().len(), 4096);
    let refused = neighbour(4097).unwrap_err();
    assert!(matches!(refused.cause, ExternalError::TooShort { size: 4096, .. }), "{refused}");
    // What was lent comes back to whom it is of, and not to the arena.
    let before = driver.count("blocks");
    drop(external(1000));
    assert_eq!(driver.count("blocks"), before);
    drop((block, gpu, platform));
    nothing_is_left(driver);
}

#[test]
fn lent_memory_is_used_in_place_and_let_go_when_its_commands_have_ended() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let start = driver.pieces(0, 2, 4096, true);
    let container = std::sync::Arc::new(());
    // SAFETY: memory of the stand-in, which is never freed.
    let block = unsafe { cuda(&gpu).external(NativeHandle(start), 8192, container.clone()) }.unwrap();
    let buffer = platform.buffer::<u8>(8192).build().unwrap();
    buffer.raw().attach_block(home(&platform, "cuda:0"), block).unwrap();
    let bytes = pattern(8192, 3);
    let mut view = buffer.write().unwrap();
    view.copy_from_slice(&bytes);
    view.release().unwrap();
    let device = platform.device("cuda:0").unwrap();
    let grants = platform.acquire(device).read(&buffer).wait().unwrap();
    assert_eq!(grants.native(&buffer).unwrap(), Some(NativeHandle(start)));
    grants.release().unwrap();
    assert_eq!(std::sync::Arc::strong_count(&container), 2);
    drop(buffer);
    assert_eq!(std::sync::Arc::strong_count(&container), 1);
    assert_eq!(fill(&super::alloc(&gpu, 10), 1).wait(), Ok(10));
}

/// Counts when it goes.
struct Counted;

static GONE: AtomicUsize = AtomicUsize::new(0);

impl Drop for Counted {
    fn drop(&mut self) {
        GONE.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_fork_keeps_what_its_parent_was_lent() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let start = driver.pieces(0, 1, 4096, true);
    // SAFETY: memory of the stand-in, which is never freed.
    let block = unsafe { cuda(&gpu).external(NativeHandle(start), 4096, Counted) }.unwrap();
    let buffer = platform.buffer::<u8>(4096).build().unwrap();
    buffer.raw().attach_block(home(&platform, "cuda:0"), block).unwrap();
    let mut buffer = Some(buffer);
    crate::forks::child(|| {
        // Its destructor would call a driver that does not follow into a fork.
        drop(buffer.take());
        assert_eq!(GONE.load(Ordering::Relaxed), 0);
    })
    .ends_well();
    drop(buffer);
    assert_eq!(GONE.load(Ordering::Relaxed), 1);
}

/// What streams of the application have been told is asked about and awaited as the arena's own commands are.
#[test]
fn streams_of_the_application_are_asked_and_awaited() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let context = cuda(&gpu).context().0;
    let [one, other] = [(); 2].map(|()| driver.stream(context));
    // SAFETY: a stream that lives.
    let fence_of = |stream: usize| unsafe { cuda(&gpu).fence_of(NativeHandle(stream)) }.unwrap();
    let held = driver.hold();
    let mut fences = [one, other, one, other].map(fence_of);
    let told: [_; 4] = std::array::from_fn(|_| mpsc::channel());
    for (fence, (says, told)) in fences.iter_mut().zip(&told) {
        assert!(!fence.has_ended());
        assert!(fence.poll(&Waker::from(std::sync::Arc::new(Says(says.clone())))).is_pending());
        assert!(told.recv_timeout(Duration::from_millis(20)).is_err(), "it was woken too soon");
    }
    drop(held);
    for (fence, (_, told)) in fences.iter_mut().zip(&told) {
        told.recv_timeout(Duration::from_secs(20)).expect("it is woken");
        assert!(fence.has_ended());
        assert_eq!(fence.poll(Waker::noop()), Poll::Ready(Ok(0)));
    }
    // One that is dropped is waited for.
    let held = driver.hold();
    let fence = fence_of(one);
    let dropped = std::thread::spawn(move || drop(fence));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!dropped.is_finished());
    drop(held);
    dropped.join().unwrap();
    for stream in [one, other] {
        driver.destroy(context, stream);
    }
    drop((gpu, platform));
    nothing_is_left(driver);
}

/// A waker that panics or calls back runs on the thread that watches its stream. Other waiters on the stream
/// are still woken.
#[test]
fn a_waker_that_panics_or_calls_back_holds_up_no_stream() {
    struct Hostile(std::sync::Arc<dyn Arena>, usize, AtomicUsize);
    impl Wake for Hostile {
        fn wake(self: std::sync::Arc<Self>) {
            // SAFETY: the stream lives.
            let fence = unsafe { cuda(&self.0).fence_of(NativeHandle(self.1)) }.unwrap();
            assert_eq!(fence.wait(), Ok(0));
            self.2.fetch_add(1, Ordering::Relaxed);
            panic!("so it is told");
        }
    }
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let context = cuda(&gpu).context().0;
    let stream = driver.stream(context);
    // SAFETY: the stream lives.
    let fence_of = || unsafe { cuda(&gpu).fence_of(NativeHandle(stream)) }.unwrap();
    let hostile = std::sync::Arc::new(Hostile(gpu.clone(), stream, AtomicUsize::new(0)));
    let (says, told) = mpsc::channel();
    let held = driver.hold();
    let [mut first, mut second] = [fence_of(), fence_of()];
    assert!(first.poll(&Waker::from(hostile.clone())).is_pending());
    assert!(second.poll(&Waker::from(std::sync::Arc::new(Says(says)))).is_pending());
    drop(held);
    told.recv_timeout(Duration::from_secs(20)).expect("it is woken");
    assert_eq!((first.wait(), second.wait(), hostile.2.load(Ordering::Relaxed)), (Ok(0), Ok(0), 1));
    driver.destroy(context, stream);
    drop((hostile, gpu, platform));
    nothing_is_left(driver);
}

/// Streams come and go, and the threads that tell of them go as well.
#[test]
fn of_streams_that_are_gone_nothing_is_left() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let context = cuda(&gpu).context().0;
    for _ in 0..60 {
        let stream = driver.stream(context);
        let held = driver.hold();
        // SAFETY: the stream lives.
        let fences = [(); 3].map(|()| unsafe { cuda(&gpu).fence_of(NativeHandle(stream)) }.unwrap());
        let [mut awaited, waited, dropped] = fences;
        assert!(awaited.poll(Waker::noop()).is_pending());
        drop(held);
        assert_eq!(waited.wait(), Ok(0));
        drop((awaited, dropped));
        driver.destroy(context, stream);
    }
    // Threads need a moment to end. One may wait for the stream that was the last.
    let begun = Instant::now();
    let tellers = || threads().iter().filter(|thread| *thread == "cuda events").count();
    while tellers() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} threads are left", tellers());
        std::thread::yield_now();
    }
    drop((gpu, platform));
    nothing_is_left(driver);
}
