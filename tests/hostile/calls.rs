//! Every call of core into foreign code, driven both ways: it panics, and it calls back into core. No lock is
//! held there, a panic is the failure of what was asked and of nothing else, and nothing is left behind.
//!
//! | foreign code | called by core in |
//! |---|---|
//! | `Arena::desc` | `PlatformBuilder::add_arena`, once: a panic is the caller's own |
//! | `Arena::{alloc, attach, bind, map, unmap, map_state, copy_in, copy_out, fill}` | plans: acquire, prefetch, bind; `write_bytes`, `read_bytes` |
//! | `Arena::free`, destructors of blocks | after every change that frees, and in the last handle's drop |
//! | `Arena::{is_lost, loss}` | after a failure, `notice_losses`, errors |
//! | `Arena::tail` | grants dropped or failed after their block was handed out |
//! | `Block::{len, backing}` | after an allocation |
//! | `Block::native` | `Grants::native` |
//! | `Fence`, `Completion::{wait, poll, has_ended}`, their destructors | plans; kernels in flight |
//! | `CrossArena::can_copy` | when a buffer is made: prices are asked for once |
//! | `CrossArena::copy` | plans |
//! | destructors of arenas and mechanisms | when the last of a platform goes, or a builder (`ends.rs`) |
//! | `Waker::{wake, clone, drop}` | after a change that admits a request; polls (`wakers.rs`) |
//! | `Region::{buffer, bytes}` | on the caller's own thread, before anything is asked |
//! | `Variant`, `Footprint::Of`, `Hooks` | the scheduler's units (`kernels.rs`) |
//! | `Launcher::check`, values computed for a package | when the launcher is added; the scheduler's units (`kernels.rs`) |
//! | `Launcher::launch` | the scheduler's units (`kernels.rs`) |
//! | what combines the partials of a reduction | the caller's thread, when all items are computed (`kernels.rs`) |
//! | `Display` and destructors of a `KernelError` | the unit whose package failed (`escapes.rs`) |
//! | a subscriber of `tracing` (with that feature) | spans of acquires, transfers, runs and packages (`spans.rs`) |
//! | destructors of variants, launchers and footprints | when a kernel goes (`kernels.rs`) |

use crate::vault::{CPU, Call, Deed, GPU, Join, Later, Lie, Plan, failing, kernel, platform, sharing};
use dml::core::internal::sync::Arc;
use dml::core::{Access, AcquireError, Buffer, Grants, Platform, RawBuffer, Region};
use dml_verify::{block_on, poll_once, watched};
use std::future::IntoFuture;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const CALLS: &[Call] = &[
    Call::Alloc,
    Call::Attach,
    Call::Bind,
    Call::Free,
    Call::Map,
    Call::Unmap,
    Call::MapState,
    Call::CopyIn,
    Call::CopyOut,
    Call::Fill,
    Call::Tail,
    Call::IsLost,
    Call::Loss,
    Call::BlockLen,
    Call::BlockNative,
    Call::BlockBacking,
    Call::BlockDrop,
    Call::ArenaDrop,
    Call::FenceWait,
    Call::FencePoll,
    Call::FenceHasEnded,
    Call::FenceDrop,
    Call::CanCopy,
    Call::LinkCopy,
    Call::LinkDrop,
];

/// Returns whether a call is made when its platform is gone, so that it can only call back into another one.
fn is_last(call: Call) -> bool {
    matches!(call, Call::ArenaDrop | Call::LinkDrop)
}

/// What is called back into.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) platform: Platform,
    pub(crate) buffer: RawBuffer,
    pub(crate) other: Buffer<u32>,
}

pub(crate) fn world(platform: Platform) -> World {
    let other = platform.buffer::<u32>(10).build().expect("a small buffer");
    let mut sevens = other.write().expect("main memory is sound");
    sevens.fill(7);
    sevens.release().expect("main memory is sound");
    let buffer = platform.raw_buffer(100).build().expect("a small buffer");
    World { platform, buffer, other }
}

/// Uses everything there is, whatever fails. What each step answers is its own affair; that it answers is
/// not.
pub(crate) fn use_it_all(platform: &Platform, buffer: &RawBuffer) {
    let host = |value: u8| -> Result<(), AcquireError> {
        let mut grants = platform.acquire(CPU).write(buffer).wait()?;
        if let Ok(bytes) = grants.slice_mut::<u8>(buffer) {
            bytes.fill(value);
        }
        grants.release()
    };
    let _ = host(1);
    let device = || -> Result<(), AcquireError> {
        let mut grants = platform.acquire(GPU).read_write(buffer).wait()?;
        let _ = grants.native(buffer);
        grants.write_bytes(&buffer.range(3..9), &[2; 6])?;
        let _ = grants.read_bytes(buffer)?;
        grants.release()
    };
    let _ = device();
    let straight_home = || -> Result<(), AcquireError> {
        let Ok(home) = platform.raw_buffer(buffer.len()).zeroed().build() else { return Ok(()) };
        let from = platform.acquire(GPU).read(buffer).wait()?;
        let mut to = platform.acquire(CPU).write(&home).wait()?;
        from.read_bytes_to(&buffer.range(3..9), &mut to, &home.range(1..7))?;
        to.release()
    };
    let _ = straight_home();
    let in_flight = || -> Result<(), AcquireError> {
        let grants = platform.acquire(GPU).read(buffer).wait()?;
        let Some(kernel) = kernel(platform) else { return grants.release() };
        let flight = grants.in_flight(kernel);
        let _ = flight.has_ended();
        flight.wait().map_or(Ok(()), Grants::release)
    };
    let _ = in_flight();
    let _ = platform.acquire(CPU).read(buffer).wait().map(drop);
    // As a future, there and back.
    let _ = host(3);
    let _ = block_on(platform.acquire(GPU).read(buffer).into_future()).map(drop);
    let _ = device();
    let _ = block_on(platform.acquire(CPU).read(buffer).into_future()).map(drop);
    // One given up half way.
    let _ = host(4);
    let mut future = platform.acquire(GPU).read(buffer).into_future();
    drop(poll_once(&mut future));
    drop(future);
    // One that is dropped with its block handed out.
    if let Ok(grants) = platform.acquire(GPU).read_write(buffer).try_now() {
        let _ = grants.block(buffer);
    }
    let _ = buffer.restore(0..buffer.len());
    if let Ok(zeros) = platform.raw_buffer(50).zeroed().build() {
        let _ = zeros.prefetch(GPU, 0..50).wait();
        let _ = platform.acquire(GPU).read(&zeros).wait().map(drop);
    }
    // The application's own storage, which a device may share.
    if let Ok(own) = platform.buffer_from(vec![3_u8; 50]) {
        let _ = own.raw().bind(crate::vault::VAULT, crate::vault::MAIN);
        let _ = platform.acquire(GPU).read(&own).wait().map(drop);
    }
    platform.notice_losses();
    let _ = buffer.free(crate::vault::VAULT);
    let _ = host(5);
    let _ = buffer.prefetch(GPU, 0..10).wait();
}

/// Checks that core is idle again: no request holds anything, and the buffer can be closed.
pub(crate) fn is_sound(world: &World, what: &str) {
    let state = world.buffer.snapshot();
    assert!(state.is_idle(), "{what}: {state:#?}");
    assert_eq!(state.check_invariants(world.platform.routes()), Ok(()), "{what}");
    assert!(world.platform.leaked_grants().is_empty(), "{what}");
    assert_eq!(*world.other.read().expect("nobody touched it"), [7; 10], "{what}");
    world.buffer.close_timeout(Duration::from_secs(10)).unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Runs everything with one deed at one call, on both sorts of platforms.
fn drive(call: Call, deed: impl Fn(&Later<World>) -> Deed) -> usize {
    let mut met = 0;
    for sort in ["staged", "mapped", "failing", "sharing"] {
        let later: Later<World> = Arc::new(OnceLock::new());
        let plan = Plan::always_at(call, deed(&later));
        let what = format!("{call:?}, {sort}");
        let (counted, told) = (plan.clone(), what.clone());
        watched(&what, move || {
            let platform = match sort {
                "staged" => platform(Join::Staged, &plan, Lie::None),
                "mapped" => platform(Join::Mapped, &plan, Lie::None),
                "sharing" => sharing(&plan),
                _ => failing(&plan, Lie::None),
            };
            let world = world(platform);
            let World { platform, buffer, .. } = world.clone();
            let called_back = match is_last(call) {
                true => self::world(self::platform(Join::Staged, &Plan::none(), Lie::None)),
                false => world.clone(),
            };
            assert!(later.set(called_back).is_ok());
            let used = catch_unwind(AssertUnwindSafe(|| use_it_all(&platform, &buffer)));
            assert!(used.is_ok(), "{told}: a panic of foreign code reached the application");
            platform.device_lost(GPU);
            let lost = catch_unwind(AssertUnwindSafe(|| use_it_all(&platform, &buffer)));
            assert!(lost.is_ok(), "{told}: a panic of foreign code reached the application");
            is_sound(&world, &told);
            let dropped = catch_unwind(AssertUnwindSafe(|| drop((world, buffer, platform))));
            assert!(dropped.is_ok(), "{told}: a panic of foreign code reached the application");
            is_sound(later.get().expect("just set"), &told);
        })
        .join();
        met += counted.met.load(Ordering::SeqCst);
    }
    met
}

#[test]
fn a_panic_of_any_call_is_the_failure_of_what_was_asked_alone() {
    for &call in CALLS {
        let met = drive(call, |_| Deed::Panic);
        assert!(met > 0, "{call:?} is never called");
    }
}

#[test]
fn any_call_may_call_back_into_core() {
    for &call in CALLS {
        let answered = Arc::new(AtomicUsize::new(0));
        let count = answered.clone();
        let met = drive(call, |later| {
            let (later, count) = (later.clone(), count.clone());
            Deed::First(Arc::new(move || {
                let Some(World { platform, buffer, other }) = later.get() else { return };
                // Each of these takes the lock of the buffer that the call is about, or of all.
                let _ = buffer.snapshot();
                let _ = buffer.is_readable(0..100);
                let _ = buffer.leaked_grants();
                let _ = platform.leaked_grants();
                let _ = platform.lost_devices();
                let _ = platform.raw_buffer(3).build();
                drop(platform.acquire(CPU).read(other).try_now());
                drop(platform.acquire(CPU).read(buffer).try_now());
                count.fetch_add(1, Ordering::SeqCst);
            }))
        });
        assert!(met > 0, "{call:?} is never called");
        // Prices are asked for when the first buffer is made, before there is anything to call back to.
        assert!(call == Call::CanCopy || answered.load(Ordering::SeqCst) > 0, "{call:?} never came back");
    }
}

/// A region that panics when it is asked, or calls back.
struct Odd {
    inner: RawBuffer,
    at: &'static str,
    deed: Deed,
}

impl Odd {
    fn meet(&self, at: &str) {
        match &self.deed {
            Deed::Panic if at == self.at => resume_unwind(Box::new("a stranger's region")),
            Deed::First(act) if at == self.at => act(),
            _ => {}
        }
    }
}

impl Region for Odd {
    fn buffer(&self) -> &RawBuffer {
        self.meet("buffer");
        &self.inner
    }

    fn bytes(&self) -> Range<u64> {
        self.meet("bytes");
        0..self.inner.len()
    }
}

/// A region is called on the caller's own thread, which gets its panic. No other thread is affected.
#[test]
fn a_region_may_panic_and_call_back() {
    type Use = fn(&Platform, &mut Grants, &Odd);
    let uses: [(&str, Use); 9] = [
        ("acquire", |platform, _, odd| drop(platform.acquire(CPU).read(odd).try_now())),
        ("slice", |_, grants, odd| _ = grants.slice::<u8>(odd).map(drop)),
        ("slice_mut", |_, grants, odd| _ = grants.slice_mut::<u8>(odd).map(drop)),
        ("block", |_, grants, odd| _ = grants.block(odd).map(drop)),
        ("granted", |_, grants, odd| _ = grants.granted(odd, Access::ReadOnly).map(drop)),
        ("read_bytes", |_, grants, odd| _ = grants.read_bytes(odd).map(drop)),
        ("write_bytes", |_, grants, odd| _ = grants.write_bytes(odd, &[8; 100])),
        ("read_bytes_to, from it", |platform, grants, odd| {
            let home = platform.raw_buffer(100).build().unwrap();
            let mut to = platform.acquire(CPU).write(&home).wait().unwrap();
            let _ = grants.read_bytes_to(odd, &mut to, &home);
        }),
        ("read_bytes_to, into it", |platform, grants, odd| {
            let source = platform.raw_buffer(100).zeroed().build().unwrap();
            let from = platform.acquire(CPU).read(&source).wait().unwrap();
            let _ = from.read_bytes_to(&source, grants, odd);
        }),
    ];
    for ((what, used), at) in uses.into_iter().flat_map(|used| ["buffer", "bytes"].map(|at| (used, at))) {
        let World { platform, buffer, other } = world(platform(Join::Staged, &Plan::none(), Lie::None));
        let back = (platform.clone(), buffer.clone(), other.clone());
        let calls_back = Deed::First(Arc::new(move || {
            let (platform, buffer, other) = &back;
            let _ = (buffer.snapshot(), platform.leaked_grants(), platform.raw_buffer(3).build());
            drop(platform.acquire(CPU).read(other).try_now());
            drop(platform.acquire(CPU).read(buffer).try_now());
        }));
        for (deed, panics) in [(Deed::Panic, true), (calls_back, false)] {
            let odd = Odd { inner: buffer.clone(), at, deed };
            let mut grants = platform.acquire(CPU).write(&buffer).wait().unwrap();
            let ended = catch_unwind(AssertUnwindSafe(|| used(&platform, &mut grants, &odd)));
            // A block is the whole buffer's: no bytes are asked for.
            let is_asked = (what, at) != ("block", "bytes");
            assert_eq!(ended.is_err(), panics && is_asked, "{what} at {at}");
            grants.slice_mut::<u8>(&buffer).unwrap().fill(9);
            grants.release().unwrap();
            assert!(platform.leaked_grants().is_empty(), "{what} at {at}");
            let read = platform.acquire(CPU).read(&buffer).wait().unwrap();
            assert_eq!(read.slice::<u8>(&buffer).unwrap(), [9; 100], "{what} at {at}");
        }
        is_sound(&World { platform, buffer, other }, what);
    }
}

/// A call that hangs blocks the callers that need its end, and no others.
#[test]
fn a_call_that_hangs_keeps_those_alone_who_need_its_end() {
    for call in [Call::Alloc, Call::CopyIn, Call::LinkCopy, Call::FenceWait] {
        let (open, opened) = std::sync::mpsc::channel::<()>();
        let opened = dml::core::internal::sync::Mutex::new(Some(opened));
        let plan = Plan::at(
            call,
            Deed::First(Arc::new(move || {
                let taken = opened.lock().take();
                if let Some(opened) = taken {
                    let _ = opened.recv();
                }
            })),
        );
        let platform = platform(Join::Staged, &plan, Lie::None);
        let buffer = platform.raw_buffer(100).build().expect("a small buffer");
        platform.acquire(CPU).write(&buffer).wait().unwrap().release().unwrap();
        let (there, hung) = (platform.clone(), buffer.clone());
        let stuck = watched("the stuck reader", move || there.acquire(GPU).read(&hung).wait().map(drop));
        while plan.met.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // Readers elsewhere go on. A writer reports what it waits for, and a close with a timeout reports
        // what is in the way.
        assert!(platform.acquire(CPU).read(&buffer).try_now().is_ok());
        let writer = platform.acquire(CPU).write(&buffer).wait_timeout(Duration::from_millis(20));
        assert!(writer.is_err_and(|error| error.is_busy()));
        let closed = buffer.close_timeout(Duration::from_millis(20));
        assert!(
            matches!(&closed, Err(AcquireError::StillHeld { outstanding, .. }) if outstanding.len() == 1),
            "{closed:?}"
        );
        open.send(()).expect("it hangs");
        let _ = stuck.join();
        buffer.close();
    }
}
