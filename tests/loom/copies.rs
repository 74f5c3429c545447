//! The bytes between memories: copied once, beside those they may be beside, and given up without a trace
//! (I-3, I-9, I-11, I-15, I-18, O-2).

use crate::rig::{
    ALL, AcquireError, BYTES, CPU, GPU, GPU2, LEFT, MAIN, Machine, RIGHT, Shared, VIDEO, builder,
    device_desc, explore, explore_all, main_desc, thread,
};
use dml::arenas::faulty::{CallKind, Fault};
use dml::arenas::{Faulty, Null, Script, kit};
use dml::core::internal::sync::Arc;
use dml::core::{AllocError, DeviceDesc, DeviceKind, LinkSpeed, OwnBlock, Span, record::Operation};
use dml::core::{Arena, ArenaDesc, ArenaKind, Concurrency, DeviceId, DeviceSet};

const MOVES: [Operation; 4] = [Operation::Read, Operation::Write, Operation::Copy, Operation::Fill];

/// The storage is there already: the copy under way is all that keeps the second reader from making its own.
#[test]
fn o02_two_cold_readers_of_one_arena_make_one_copy() {
    explore_all(|| {
        let mine = Shared::raw(&Machine::staged());
        mine.write(GPU, ALL, 1);
        mine.write(CPU, ALL, 0);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.read(GPU, ALL));
        assert_eq!(mine.read(GPU, ALL), 0);
        assert_eq!(other.join().expect("the other reader ends"), 0);
        assert_eq!(mine.machine.counted(&MOVES), 1);
        mine.end();
    });
}

/// Whichever comes first brings the bytes; the other waits for them, or finds the arena taken and leaves.
#[test]
fn o02_a_prefetch_and_a_reader_make_one_copy() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.read(GPU, ALL));
        mine.prefetch(GPU);
        assert_eq!(other.join().expect("the reader ends"), 0);
        assert_eq!(mine.machine.counted(&MOVES), 1);
        mine.end();
    });
}

/// Neither is in the other's way: both copies are made at once, from the same source.
#[test]
fn o02_cold_readers_of_two_arenas_fill_them_at_once() {
    explore_all(|| {
        let mine = Shared::new(&Machine::star(2));
        let theirs = mine.clone();
        let read = |shared: &Shared, device: DeviceId| {
            let grants = shared.ask(device).read(&shared.buffer).try_now().expect("nobody is in the way");
            assert_eq!(shared.seen(&grants, device, &shared.buffer), 0);
        };
        let other = thread::spawn(move || read(&theirs, GPU2));
        read(&mine, GPU);
        other.join().expect("the other reader ends");
        assert_eq!(mine.machine.counted(&MOVES), 2);
        mine.end();
    });
}

/// The second copy arrives beside the kernel that reads what the first has brought, in the same storage.
#[test]
fn i09_a_copy_beside_a_reader_touches_other_bytes() {
    explore(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.read(GPU, RIGHT));
        assert_eq!(mine.read(GPU, LEFT), 0);
        assert_eq!(other.join().expect("the other reader ends"), 0);
        assert_eq!(mine.machine.counted(&MOVES), 2);
        mine.end();
    });
}

/// As before: the storage is there, of a writer that never began.
#[test]
fn i18_zeros_are_made_once() {
    explore_all(|| {
        let machine = Machine::staged();
        let buffer = machine.platform.raw_buffer(BYTES).zeroed().build().expect("a small buffer");
        let mine = Shared { machine, buffer };
        drop(mine.ask(GPU).write(&mine.buffer).wait().expect("nobody else is there yet"));
        let read = |shared: &Shared| {
            let grants = shared.ask(GPU).read(&shared.buffer).wait().expect("granted in the end");
            let zeros = shared.machine.null(VIDEO).read(&grants, &shared.buffer).expect("granted");
            assert_eq!(zeros, [0; BYTES as usize]);
        };
        let theirs = mine.clone();
        let other = thread::spawn(move || read(&theirs));
        read(&mine);
        other.join().expect("the other reader ends");
        assert_eq!(mine.machine.counted(&MOVES), 1);
        mine.end();
    });
}

#[test]
fn i03_a_writer_waits_for_the_copy_of_a_reader() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.read(GPU, ALL));
        mine.write(CPU, ALL, 1);
        assert!([0, 1].contains(&other.join().expect("the reader ends")));
        assert_eq!(mine.read(GPU, ALL), 1);
        mine.end();
    });
}

/// A prefetch has no entry among the requestors: its copies alone keep the writer off.
#[test]
fn i03_a_writer_waits_for_the_copy_of_a_prefetch() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.write(CPU, ALL, 1));
        mine.prefetch(GPU);
        other.join().expect("the writer ends");
        assert_eq!(mine.read(GPU, ALL), 1);
        mine.end();
    });
}

/// The copy's reader goes, and nothing of it stays in the writer's way.
#[test]
fn i15_a_failed_copy_lets_a_waiting_writer_in() {
    explore_all(|| {
        let fails_once = Script::new().at_kind(CallKind::CopyIn, 1, Fault::fail());
        let mut builder = builder();
        for (desc, kind, script) in
            [(main_desc(), DeviceKind::Cpu, Script::new()), (device_desc(GPU), DeviceKind::Gpu, fails_once)]
        {
            builder.add_device(DeviceDesc::new(&desc.name, kind));
            builder.add_arena(Arc::new(Faulty::new(Null::backed(desc), script)));
        }
        kit::join_staged(&mut builder, MAIN, VIDEO, LinkSpeed::default());
        let platform = builder.build().expect("a sound platform");
        let buffer = platform.raw_buffer(BYTES).build().expect("a small buffer");
        platform
            .acquire(CPU)
            .write(&buffer)
            .wait()
            .expect("nobody is there")
            .release()
            .expect("nothing is lost");
        let theirs = (platform.clone(), buffer.clone());
        let other = thread::spawn(move || theirs.0.acquire(GPU).read(&theirs.1).wait().map(drop));
        let grants = platform.acquire(CPU).write(&buffer).wait().expect("granted in the end");
        grants.release().expect("no device is lost");
        let failed = other.join().expect("the reader ends");
        assert!(matches!(failed, Err(AcquireError::CopyFailed { .. })), "{failed:?}");
        let state = buffer.snapshot();
        assert!(state.is_idle(), "{state:#?}");
        assert_eq!(state.check_invariants(platform.routes()), Ok(()));
        assert!(platform.acquire(GPU).read(&buffer).try_now().is_ok(), "the next copy works");
    });
}

/// Nothing moves: access to the one storage is handed over.
#[test]
fn o02_writers_of_a_bound_pair_hand_the_storage_over() {
    explore_all(|| {
        let mine = Shared::new(&Machine::bound(Concurrency::Exclusive));
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.bump(GPU));
        mine.bump(CPU);
        other.join().expect("the other writer ends");
        assert_eq!((mine.read(GPU, ALL), mine.read(CPU, ALL)), (2, 2));
        assert_eq!(mine.machine.counted(&MOVES), 0);
        mine.end();
    });
}

/// Exclusive storage is one device's at a time, whatever bytes it uses.
#[test]
fn i11_writers_of_an_exclusive_pair_wait_for_each_other() {
    explore_all(|| {
        let mine = Shared::new(&Machine::bound(Concurrency::Exclusive));
        assert_eq!((mine.read(GPU, ALL), mine.read(CPU, ALL)), (0, 0));
        let write = |shared: &Shared, device, range, version| {
            let region = shared.buffer.range(range);
            let mut grants = shared.ask(device).write(&region).wait().expect("granted in the end");
            shared.check();
            shared.put(&mut grants, device, &region, version);
            grants.release().expect("no device is lost");
        };
        let theirs = mine.clone();
        let other = thread::spawn(move || write(&theirs, GPU, RIGHT, 2));
        write(&mine, CPU, LEFT, 1);
        other.join().expect("the other writer ends");
        assert_eq!((mine.read(CPU, LEFT), mine.read(GPU, RIGHT)), (1, 2));
        mine.end();
    });
}

/// Through two arenas, but in one storage: who has the bytes in one of them has them in both.
#[test]
fn i11_a_coherent_pair_keeps_a_reader_and_a_writer_apart() {
    explore_all(|| {
        let mine = Shared::new(&Machine::bound(Concurrency::BimapFull));
        assert_eq!(mine.read(GPU, ALL), 0);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.bump(GPU));
        assert!([0, 1].contains(&mine.read(CPU, ALL)));
        other.join().expect("the writer ends");
        assert_eq!(mine.read(CPU, ALL), 1);
        assert_eq!(mine.machine.counted(&MOVES), 0);
        mine.end();
    });
}

/// Coherent storage serves both devices at once, each on its bytes.
#[test]
fn i11_writers_of_a_coherent_pair_never_wait_for_each_other() {
    explore_all(|| {
        let mine = Shared::new(&Machine::bound(Concurrency::BimapFull));
        assert_eq!((mine.read(GPU, ALL), mine.read(CPU, ALL)), (0, 0));
        let write = |shared: &Shared, device, range, version| {
            let region = shared.buffer.range(range);
            let mut grants =
                shared.ask(device).read_write(&region).try_now().expect("nobody holds this half");
            shared.put(&mut grants, device, &region, version);
            grants.release().expect("no device is lost");
        };
        let theirs = mine.clone();
        let other = thread::spawn(move || write(&theirs, GPU, RIGHT, 2));
        write(&mine, CPU, LEFT, 1);
        other.join().expect("the other writer ends");
        assert_eq!((mine.read(CPU, LEFT), mine.read(CPU, RIGHT)), (1, 2));
        mine.end();
    });
}

#[test]
fn two_threads_keep_the_books_of_a_faulty_null_straight() {
    explore_all(|| {
        let desc =
            ArenaDesc::new("gpu", ArenaKind("test"), DeviceId(1)).with_remotes(DeviceSet::of(DeviceId(0)));
        let script = Script::new().at_kind(CallKind::Fill, 2, Fault::Short(1));
        let arena = Arc::new(Faulty::new(Null::backed(desc), script));
        let work = |arena: &Arc<Faulty<Null>>| -> Result<u64, AllocError> {
            let asked: Arc<dyn Arena> = arena.clone();
            let block = OwnBlock::alloc(&asked, 4)?;
            let done = block.fill(Span::new(0, 4), 7).expect("started").wait().expect("done");
            block.free();
            Ok(done)
        };
        let other = arena.clone();
        let thread = thread::spawn(move || work(&other).expect("memory for four bytes"));
        let mine = work(&arena).expect("memory for four bytes");
        let theirs = thread.join().expect("the other thread ends");
        // Exactly one of the two fills is the second.
        assert_eq!(mine + theirs, 5);
        assert_eq!(arena.inner().live_blocks(), 0);
        assert_eq!((arena.calls_made(), arena.inner().calls().len()), (6, 6));
    });
}
