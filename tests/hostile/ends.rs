//! Ends that two callers race for, and ways out of what should not have happened.

use crate::vault::{CPU, Call, Deed, GPU, Join, Lie, Plan, platform};
use dml::arenas::{MainMem, Null};
use dml::core::{
    AcquireError, Allocation, Arena, ArenaDesc, ArenaId, ArenaKind, Buffer, ConfigError, CopyJob, CopyQuery,
    Cost, CrossArena, DeviceDesc, DeviceId, DeviceKind, Fence, HostStaged, Link, Platform, PlatformBuilder,
    TransferError,
};
use dml_verify::watched;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn plain() -> Platform {
    platform(Join::Staged, &Plan::none(), Lie::None)
}

/// At most one of the calls that ask for the application's vector gets it, while another thread closes the
/// buffer.
#[test]
fn of_those_who_end_a_buffer_one_gets_its_vector() {
    let platform = plain();
    for round in 0..800_u32 {
        let data = vec![round; 300];
        let address = data.as_ptr() as usize;
        let buffer = platform.buffer_from(data).unwrap();
        // A held grant makes all three wait for the same end.
        let holder = platform.acquire(CPU).read(&buffer).wait().unwrap().hand_over();
        let start = Arc::new(Barrier::new(3));
        let taker = |buffer: Buffer<u32>, start: Arc<Barrier>| {
            std::thread::spawn(move || {
                start.wait();
                buffer.into_vec().map(|data| (data.as_ptr() as usize, data))
            })
        };
        let takers = [taker(buffer.clone(), start.clone()), taker(buffer.clone(), start.clone())];
        let (closed, begun) = (buffer.clone(), start.clone());
        let closer = std::thread::spawn(move || {
            begun.wait();
            std::thread::yield_now();
            closed.raw().close();
        });
        drop(buffer);
        std::thread::yield_now();
        drop(holder);
        closer.join().unwrap();
        let ended = takers.map(|taker| taker.join().unwrap());
        let got: Vec<_> = ended.iter().filter_map(|ended| ended.as_ref().ok()).collect();
        for error in ended.iter().filter_map(|ended| ended.as_ref().err()) {
            assert!(matches!(error, AcquireError::Closed { .. }), "{error}");
        }
        assert!(got.len() <= 1, "the vector was given twice");
        if let Some((at, data)) = got.first() {
            assert_eq!((*at, data.as_slice()), (address, &[round; 300][..]));
        }
    }
}

/// As above, where the one who asks has read the buffer before the other closes it: then it always gets the
/// vector.
#[test]
fn who_has_begun_to_take_the_vector_gets_it() {
    let platform = plain();
    for round in 0..400_u32 {
        let buffer = platform.buffer_from(vec![round; 300]).unwrap();
        let holder = platform.acquire(CPU).read(&buffer).wait().unwrap().hand_over();
        let taken = buffer.clone();
        let taker = watched("into_vec", move || taken.into_vec());
        // It has its own grant, and waits for the holder's: the buffer is closing.
        while platform.acquire(CPU).read(&buffer).try_now().is_ok() {
            std::thread::yield_now();
        }
        let closed = buffer.clone();
        let closer = watched("close", move || closed.raw().close());
        drop(holder);
        closer.join();
        assert_eq!(taker.join().unwrap(), [round; 300]);
    }
}

#[test]
fn a_forgotten_grant_is_found_and_does_not_hold_the_application() {
    let platform = plain();
    let buffer = platform.buffer::<u32>(8).label("weights").build().unwrap();
    let recording = platform.record();
    let grants = platform.acquire(CPU).write(&buffer.range(2..4)).wait().unwrap();
    let line = line!() - 1;
    std::mem::forget(grants);
    let leaked = platform.leaked_grants();
    assert_eq!(leaked, buffer.raw().leaked_grants());
    let [outstanding] = &leaked[..] else { panic!("{leaked:?}") };
    let (at, thread) = outstanding.acquired_at.expect("events are recorded");
    assert_eq!((at.file(), at.line(), thread), (file!(), line, std::thread::current().id()));
    let text = outstanding.to_string();
    for part in ["\"weights\"", "8..16", "WriteInvalidate", "main_mem", "ends.rs"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    drop(recording);
    let waited = Duration::from_millis(10);
    let told = buffer.raw().close_timeout(waited);
    let Err(error @ AcquireError::StillHeld { .. }) = &told else { panic!("{told:?}") };
    let text = error.to_string();
    assert!(text.contains("\"weights\"") && text.contains("ends.rs") && text.contains("10ms"), "{text}");
    // The buffer refuses requests as closed.
    assert!(matches!(buffer.read().map(drop), Err(AcquireError::Closed { .. })));
    assert!(buffer.raw().close_timeout(Duration::ZERO).is_err());
    // Without recording, everything but the place is known.
    let other = platform.buffer::<u32>(8).build().unwrap();
    std::mem::forget(platform.acquire(CPU).write(&other).wait().unwrap());
    assert_eq!(other.raw().leaked_grants()[0].acquired_at, None);
    // Where all ended, there is nothing.
    let sound = platform.buffer::<u32>(8).build().unwrap();
    platform.acquire(CPU).write(&sound).wait().unwrap().release().unwrap();
    assert!(sound.raw().leaked_grants().is_empty());
    assert_eq!(sound.raw().close_timeout(Duration::from_secs(10)), Ok(()));
    assert_eq!(sound.raw().close_timeout(Duration::ZERO), Ok(()), "it stays closed");
}

#[test]
fn grants_that_another_thread_has_are_not_held_here() {
    let platform = plain();
    let [low, high] = [(); 2].map(|()| platform.buffer_from(vec![1_u32; 8]).unwrap());
    let others = platform.acquire(CPU).write(&low).wait().unwrap().hand_over();
    let zero = Duration::ZERO;
    let ask = || platform.acquire(CPU).read(&low).wait_timeout(zero).map(drop);
    let held = platform.acquire(CPU).read(&high).wait().unwrap();
    let told = ask();
    let Err(AcquireError::OrderViolation { buffer, held: theirs }) = &told else { panic!("{told:?}") };
    assert_eq!((buffer.id(), theirs.id()), (low.raw().id(), high.raw().id()));
    // Another thread uses them, and so has them.
    let (give_back, given_back) = std::sync::mpsc::channel();
    let (used, is_used) = std::sync::mpsc::channel();
    let (there, view) = (platform.clone(), high.clone());
    let (first, waits_for) = (low.clone(), zero);
    let thread = std::thread::spawn(move || {
        assert_eq!(held.slice::<u32>(&view).unwrap(), [1; 8]);
        let asked = there.acquire(CPU).read(&first).wait_timeout(waits_for).map(drop);
        assert!(matches!(asked, Err(AcquireError::OrderViolation { .. })), "it holds it now: {asked:?}");
        used.send(()).unwrap();
        given_back.recv().unwrap();
        drop(held);
    });
    is_used.recv().unwrap();
    assert!(matches!(ask(), Err(AcquireError::Timeout { .. })), "this thread holds nothing");
    give_back.send(()).unwrap();
    thread.join().unwrap();
    // Grants that were handed over belong to no thread.
    let held = platform.acquire(CPU).read(&high).wait().unwrap().hand_over();
    assert!(matches!(ask(), Err(AcquireError::Timeout { .. })));
    drop((held, others));
    assert_eq!(ask(), Ok(()));
}

/// Two reads on one thread, in any order, and of one buffer.
#[test]
fn host_reads_of_one_thread_are_no_violation() {
    let platform = plain();
    let [low, high] = [(); 2].map(|()| platform.buffer_from(vec![1_u32; 8]).unwrap());
    let (b, a, again) = (high.read().unwrap(), low.read().unwrap(), high.read().unwrap());
    assert_eq!((a[0], b[0], again[0]), (1, 1, 1));
    // With a writer waiting it could deadlock, and is told so, by name.
    let labelled = platform.buffer::<u32>(4).label("gradients").zeroed().build().unwrap();
    let first = labelled.read().unwrap();
    let theirs = labelled.clone();
    let writer = watched("the writer", move || theirs.write().map(drop));
    while labelled.raw().snapshot().queue().len() == 0 {
        std::thread::yield_now();
    }
    let told = labelled.read().map(drop).unwrap_err();
    assert!(matches!(told, AcquireError::OrderViolation { .. }), "{told}");
    assert!(told.to_string().starts_with("waiting for \"gradients\" ("), "{told}");
    assert!(told.to_string().contains("while this thread holds it"), "{told}");
    drop(first);
    assert_eq!(writer.join(), Ok(()));
}

#[test]
fn an_empty_grant_holds_nothing() {
    let platform = plain();
    let [low, high] = [(); 2].map(|()| platform.buffer_from(vec![1_u32; 8]).unwrap());
    let others = platform.acquire(GPU).write(&low).wait().unwrap().hand_over();
    let _empty = platform.acquire(CPU).write(&high.range(3..3)).wait().unwrap();
    let told = platform.acquire(CPU).read(&low).wait_timeout(Duration::ZERO).map(drop);
    assert!(matches!(told, Err(AcquireError::Timeout { .. })), "{told:?}");
    // An empty request waits for no other request, not even behind a waiter.
    let mut waiting = std::future::IntoFuture::into_future(platform.acquire(CPU).write(&low));
    assert!(dml_verify::poll_once(&mut waiting).is_pending());
    assert!(platform.acquire(CPU).read(&low.range(2..2)).wait().is_ok());
    drop((waiting, others));
}

#[test]
fn errors_name_labels_and_elements() {
    let platform = plain();
    let buffer = platform.buffer::<u64>(8).label("weights").build().unwrap();
    let id = buffer.raw().id();
    let told = platform.acquire(CPU).read(&buffer.range(2..4)).try_now().map(drop).unwrap_err();
    assert_eq!(
        told.to_string(),
        format!("\"weights\" ({id}) bytes 16..32 (elements 2..4) were never written")
    );
    let raw = platform.raw_buffer(8).build().unwrap();
    let told = platform.acquire(CPU).read(&raw).try_now().map(drop).unwrap_err();
    assert_eq!(told.to_string(), format!("{} bytes 0..8 were never written", raw.id()));
    assert_eq!((buffer.raw().name().label(), raw.name().label()), (Some("weights"), None));
}

/// Whatever names bytes names their elements, and the buffer by its label.
#[test]
fn errors_about_ranges_and_views_name_labels_and_elements() {
    let platform = plain();
    let buffer = platform.buffer::<u64>(8).label("weights").zeroed().build().unwrap();
    let other = platform.buffer::<u64>(8).label("biases").zeroed().build().unwrap();
    let (raw, id) = (buffer.raw(), buffer.raw().id());
    let named = |text: &str, parts: &[&str]| {
        for part in parts.iter().chain(&[format!("\"weights\" ({id})").as_str()]) {
            assert!(text.contains(part), "{part} in {text}");
        }
    };
    let told = platform.acquire(CPU).read(&buffer.range(6..9)).wait().map(drop).unwrap_err();
    assert!(matches!(told, AcquireError::OutOfRange { start: 48, end: 72, .. }), "{told:?}");
    named(&told.to_string(), &["48..72 (elements 6..9)", "64 bytes"]);
    let told = raw.prefetch(GPU, 0..65).wait().unwrap_err();
    named(&told.to_string(), &["0..65 (elements 0..9)", "64 bytes"]);

    let mut grants = platform.acquire(CPU).read(&buffer.range(2..4)).wait().unwrap();
    let told = grants.slice::<u64>(&buffer.range(3..5)).unwrap_err();
    named(&told.to_string(), &["24..40 (elements 3..5)", "not granted"]);
    let told = grants.slice_mut::<u64>(&buffer.range(2..3)).unwrap_err();
    named(&told.to_string(), &["16..24 (elements 2..3)", "for writing"]);
    let told = grants.views().unwrap()[0].slice_mut::<u64>().unwrap_err();
    named(&told.to_string(), &["16..32 (elements 2..4)", "for writing"]);
    let told = grants.slice::<[u64; 3]>(&buffer.range(2..4)).unwrap_err();
    named(&told.to_string(), &["16..32 (elements 2..4)", "elements of 24 bytes"]);
    let told = grants.slice::<u64>(&raw.range(20..28)).unwrap_err();
    named(&told.to_string(), &["20..28 (elements 2..4)", "aligned to 8"]);
    let outstanding = platform.leaked_grants();
    named(&outstanding[0].to_string(), &["16..32 (elements 2..4) ReadOnly"]);
    drop(grants);

    let grants = platform.acquire(CPU).read(&other).wait().unwrap();
    named(&grants.slice::<u64>(&buffer).unwrap_err().to_string(), &["is not part of these grants"]);
    // As the cause of another error, too.
    let told = grants.read_bytes(&buffer.range(1..2)).unwrap_err();
    assert!(matches!(told, AcquireError::View { .. }), "{told:?}");
    named(&told.to_string(), &["is not part of these grants"]);
    let mut grants =
        platform.acquire(CPU).read(&buffer.range(0..4)).read_write(&buffer.range(2..6)).wait().unwrap();
    named(&grants.views().unwrap_err().to_string(), &["16..32 (elements 2..4)", "twice"]);
    drop(grants);
    let grants = platform.acquire(GPU).read(&buffer).wait().unwrap();
    named(&grants.slice::<u64>(&buffer).unwrap_err().to_string(), &["the host cannot see it"]);
}

/// A panic in the destructor of an arena or a mechanism stops there. It reaches neither the thread that drops
/// the platform, nor the next destructor, nor a program that is panicking already.
#[test]
fn an_arena_that_panics_as_it_goes_is_gone_all_the_same() {
    for (call, times) in [(Call::ArenaDrop, 1), (Call::LinkDrop, 2)] {
        for is_panicking in [false, true] {
            let plan = Plan::always_at(call, Deed::Panic);
            let platform = platform(Join::Staged, &plan, Lie::None);
            let buffer = platform.buffer_from(vec![1_u8; 8]).unwrap();
            platform.acquire(GPU).read(&buffer).wait().unwrap().release().unwrap();
            let dropped = catch_unwind(AssertUnwindSafe(move || {
                let _last = (buffer, platform);
                if is_panicking {
                    resume_unwind(Box::new("already"));
                }
            }));
            assert_eq!(dropped.is_err(), is_panicking, "{call:?}: {dropped:?}");
            assert_eq!(plan.met.load(Ordering::SeqCst), times, "{call:?}");
        }
    }
}

/// A mechanism or an arena that counts how often one of its kind goes, and panics as it goes.
#[derive(Debug)]
struct Dying<T> {
    inner: T,
    gone: Arc<AtomicUsize>,
    /// Whether its description panics as well.
    has_no_desc: bool,
}

impl<T> Dying<T> {
    fn new(inner: T, gone: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self { inner, gone: gone.clone(), has_no_desc: false })
    }
}

impl<T> Drop for Dying<T> {
    fn drop(&mut self) {
        self.gone.fetch_add(1, Ordering::SeqCst);
        resume_unwind(Box::new("a stranger panics as it goes"));
    }
}

impl CrossArena for Dying<HostStaged> {
    fn name(&self) -> &str {
        "dying"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.inner.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        self.inner.copy(job)
    }
}

impl Arena for Dying<MainMem> {
    fn desc(&self) -> &ArenaDesc {
        if self.has_no_desc {
            resume_unwind(Box::new("a stranger's description panics"));
        }
        self.inner.desc()
    }

    passes_on!(alloc, map, unmap, copy_in, copy_out, fill);
}

fn two_devices() -> PlatformBuilder {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    builder.add_device(DeviceDesc::new("other", DeviceKind::Gpu));
    builder
}

/// The copy that core adds between two devices holds the mechanisms of both ways, to price it. They go one
/// after the other.
#[test]
fn two_mechanisms_that_panic_as_they_go_leave_the_process_alone() {
    let gone = Arc::new(AtomicUsize::new(0));
    let mut builder = two_devices();
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    for (name, device) in [("one", 1), ("two", 2)] {
        let desc = ArenaDesc::new(name, ArenaKind("null"), DeviceId(device));
        builder.add_arena(Arc::new(Null::new(desc)));
    }
    for (from, to) in [(1, 0), (0, 2)] {
        let link = Link {
            from: ArenaId(from),
            to: ArenaId(to),
            source_via: DeviceId(from.into()),
            target_via: DeviceId(to.into()),
            allocation: Allocation::Internal,
        };
        builder.add_link(link, Dying::new(HostStaged::default(), &gone));
    }
    let platform = builder.build().expect("a sound platform");
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(platform)));
    assert!(dropped.is_ok());
    assert_eq!(gone.load(Ordering::SeqCst), 2);
    // So do those of a mechanism that an application prices itself.
    let half = || Dying::new(HostStaged::default(), &gone);
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(HostStaged::of_halves(half(), half()))));
    assert!(dropped.is_ok());
    assert_eq!(gone.load(Ordering::SeqCst), 4);
}

/// What was added to a platform that is never built goes as what was built.
#[test]
fn a_builder_survives_arenas_that_panic_as_they_go() {
    let gone = Arc::new(AtomicUsize::new(0));
    let full = || {
        let mut builder = two_devices();
        for _ in 0..2 {
            builder.add_arena(Dying::new(MainMem::new(CPU), &gone));
        }
        let link = Link {
            from: ArenaId(0),
            to: ArenaId(1),
            source_via: CPU,
            target_via: CPU,
            allocation: Allocation::Internal,
        };
        (0..2).for_each(|_| builder.add_link(link, Dying::new(HostStaged::default(), &gone)));
        builder
    };
    // Two arenas of one name make no platform.
    let built = catch_unwind(AssertUnwindSafe(|| full().build().map(drop)));
    assert!(matches!(built, Ok(Err(ConfigError::Topology(_)))), "{built:?}");
    assert_eq!(gone.load(Ordering::SeqCst), 4);
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(full())));
    assert!(dropped.is_ok());
    assert_eq!(gone.load(Ordering::SeqCst), 8);
    // One that panics when it is added panics once more as it goes: the first panic is the caller's.
    let arena = Arc::new(Dying { inner: MainMem::new(CPU), gone: gone.clone(), has_no_desc: true });
    let mut builder = two_devices();
    let added = catch_unwind(AssertUnwindSafe(|| builder.add_arena(arena)));
    assert_eq!(added.unwrap_err().downcast_ref(), Some(&"a stranger's description panics"));
    assert_eq!((gone.load(Ordering::SeqCst), builder.arenas().len()), (9, 0));
}

/// A forgotten view costs the program a copy of the vector, not the vector.
#[test]
fn a_forgotten_view_costs_a_copy() {
    let platform = plain();
    let given = vec![7_u8; 64];
    let address = given.as_ptr().addr();
    let buffer = platform.buffer_from(given).unwrap();
    let mut grants = platform.acquire(CPU).read_write(&buffer).wait().unwrap();
    grants.slice_mut::<u8>(&buffer).unwrap()[0] = 8;
    std::mem::forget(grants.views().unwrap());
    grants.release().unwrap();
    let back = buffer.into_vec().unwrap();
    assert_eq!((back[0], &back[1..]), (8, &[7; 63][..]));
    assert_ne!(back.as_ptr().addr(), address, "what was forgotten is still there");
}
