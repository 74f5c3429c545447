//! Every interleaving of small models, on the real lock, queue, grant and acquire code.
//!
//! Run with `cargo xtask loom`. Each test is a process of its own: a deadlock that loom finds ends the process.

#![cfg(dml_loom)]

use dml::arenas::faulty::{CallKind, Fault};
use dml::arenas::{Faulty, Null, Script, null};
use dml::core::sync::Arc;
use dml::core::{
    Arena, ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet,
    LinkSpeed, Operation, Platform, RawBuffer, Span,
};
use loom::thread;
use std::sync::atomic::Ordering;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const MAIN: ArenaId = ArenaId(0);
const VIDEO: ArenaId = ArenaId(1);

/// Main memory and one device, joined by read and write calls.
fn platform() -> Platform {
    let mut builder = Platform::builder().without_path_cache();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapFull);
    let video = ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(DeviceSet::of(CPU));
    builder.add_arena(Arc::new(Null::backed(main)));
    builder.add_arena(Arc::new(Null::backed(video)));
    null::join_staged(&mut builder, MAIN, VIDEO, LinkSpeed::default());
    builder.build().expect("a sound platform")
}

fn written(platform: &Platform) -> RawBuffer {
    let buffer = platform.raw_buffer(8).build().expect("a small buffer");
    platform
        .acquire(CPU)
        .write(&buffer)
        .wait()
        .expect("nobody else is there")
        .release()
        .expect("no device is lost");
    buffer
}

/// Counts who is inside; more than one is a failure of exclusion.
#[derive(Default)]
struct Room(std::sync::atomic::AtomicUsize);

impl Room {
    /// Comes in, gives others a chance to as well, and leaves.
    fn visit(&self) {
        assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0, "two at once where only one may be");
        thread::yield_now();
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn i01_two_writers_exclude_each_other() {
    loom::model(|| {
        let platform = platform();
        let buffer = written(&platform);
        let room = Arc::new(Room::default());
        let write = |platform: &Platform, buffer: &RawBuffer, room: &Room| {
            let grants = platform.acquire(CPU).write(buffer).wait().expect("granted in the end");
            room.visit();
            grants.release().expect("no device is lost");
        };
        let theirs = (platform.clone(), buffer.clone(), room.clone());
        let other = thread::spawn(move || write(&theirs.0, &theirs.1, &theirs.2));
        write(&platform, &buffer, &room);
        other.join().expect("the other writer ends");
        assert_eq!(buffer.snapshot().commit_seq().0, 3);
    });
}

#[test]
fn o2_two_cold_readers_of_one_arena_make_one_copy() {
    loom::model(|| {
        let platform = platform();
        let buffer = written(&platform);
        let read = |platform: &Platform, buffer: &RawBuffer| {
            platform
                .acquire(GPU)
                .read(buffer)
                .wait()
                .expect("granted in the end")
                .release()
                .expect("nothing is lost");
        };
        let theirs = (platform.clone(), buffer.clone());
        let other = thread::spawn(move || read(&theirs.0, &theirs.1));
        read(&platform, &buffer);
        other.join().expect("the other reader ends");
        assert_eq!(platform.counters().operation(Operation::Write), 1);
    });
}

#[test]
fn l04_three_waiters_are_all_woken() {
    loom::model(|| {
        let platform = platform();
        let buffer = written(&platform);
        let spawn = |writes: bool| {
            let (platform, buffer) = (platform.clone(), buffer.clone());
            thread::spawn(move || {
                let acquire = platform.acquire(CPU);
                let acquire = if writes { acquire.read_write(&buffer) } else { acquire.read(&buffer) };
                acquire.wait().expect("granted in the end").release().expect("nothing is lost");
            })
        };
        let threads = [spawn(true), spawn(true), spawn(false)];
        threads.into_iter().for_each(|thread| thread.join().expect("everybody ends"));
        assert_eq!(buffer.snapshot().commit_seq().0, 3);
        assert!(buffer.snapshot().is_idle());
    });
}

#[test]
fn l01_two_buffers_in_opposite_order_do_not_deadlock() {
    loom::model(|| {
        let platform = platform();
        let (a, b) = (written(&platform), written(&platform));
        let theirs = (platform.clone(), b.clone(), a.clone());
        let take = |platform: &Platform, first: &RawBuffer, second: &RawBuffer| {
            let grants = platform.acquire(CPU).read_write(first).read_write(second).wait();
            grants.expect("granted in the end").release().expect("nothing is lost");
        };
        let other = thread::spawn(move || take(&theirs.0, &theirs.1, &theirs.2));
        take(&platform, &a, &b);
        other.join().expect("the other one ends");
        assert_eq!((a.snapshot().commit_seq().0, b.snapshot().commit_seq().0), (3, 3));
    });
}

#[test]
fn i17_writers_of_disjoint_halves_both_count() {
    loom::model(|| {
        let platform = platform();
        let buffer = written(&platform);
        let write = |platform: &Platform, buffer: &RawBuffer, device: DeviceId, start: u64| {
            let region = buffer.range(start..start + 4);
            let grants = platform.acquire(device).write(&region).wait().expect("granted in the end");
            grants.release().expect("nothing is lost");
        };
        let theirs = (platform.clone(), buffer.clone());
        let other = thread::spawn(move || write(&theirs.0, &theirs.1, GPU, 4));
        write(&platform, &buffer, CPU, 0);
        other.join().expect("the other writer ends");
        let state = buffer.snapshot();
        let valid: Vec<_> = state.segments().iter().map(|(span, content)| (span, content.valid)).collect();
        let only = |arena| std::iter::once(arena).collect();
        assert_eq!(valid, [(Span::new(0, 4), only(MAIN)), (Span::new(4, 8), only(VIDEO))]);
    });
}

#[test]
fn two_threads_keep_the_books_of_a_faulty_null_straight() {
    loom::model(|| {
        let desc =
            ArenaDesc::new("gpu", ArenaKind("test"), DeviceId(1)).with_remotes(DeviceSet::of(DeviceId(0)));
        let script = Script::new().at_kind(CallKind::Fill, 2, Fault::Short(1));
        let arena = Arc::new(Faulty::new(Null::backed(desc), script));
        let work = |arena: &Faulty<Null>| {
            let block = arena.alloc(4).unwrap();
            let done = arena.fill(&block, Span::new(0, 4), 7).unwrap().wait().unwrap();
            arena.free(block);
            done
        };
        let other = arena.clone();
        let thread = loom::thread::spawn(move || work(&other));
        let mine = work(&arena);
        let theirs = thread.join().unwrap();
        // Exactly one of the two fills is the second.
        assert_eq!(mine + theirs, 5);
        assert_eq!(arena.inner().live_blocks(), 0);
        assert_eq!((arena.calls_made(), arena.inner().calls().len()), (6, 6));
    });
}
