//! One storage for several arenas, storage of the application's, and how storage goes.

#![cfg(not(dml_loom))]

use dml::arenas::faulty::CallKind;
use dml::arenas::null::Call;
use dml::core::internal::state::{Alloc, Lifecycle, Status};
use dml::core::{
    AcquireError, ArenaId, BindRefusal, Concurrency, ConfigError, FreeRefusal, Platform, RawBuffer,
    TopologyError, record::Operation,
};
use dml_verify::history::assert_history;
use dml_verify::{
    CPU, GPU, GPU_ARENA, GPU2_ARENA, MAIN_ARENA, Rig, arenas, bound_pair, byte_copies, bytes, change, check,
    copies, get, live_blocks, mapped_pair, null, pair, poll_once, put, raw, read, segments, star, test_arena,
    watched, write,
};
use std::future::IntoFuture;
use std::sync::mpsc::channel;
use std::task::Poll;

const EVERY_WAY: [Concurrency; 3] = [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull];

fn refused(buffer: &RawBuffer, arena: ArenaId) -> FreeRefusal {
    match buffer.free(arena) {
        Err(AcquireError::NotFreeable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn maps(platform: &Platform) -> u64 {
    let counters = platform.counters();
    counters.operation(Operation::Map) + counters.operation(Operation::Unmap)
}

/// How many bytes passed between memories, by whatever call.
fn moved(platform: &Platform) -> usize {
    let moves = |call: &Call| matches!(call, Call::CopyIn { .. } | Call::CopyOut { .. } | Call::Fill { .. });
    [MAIN_ARENA, GPU_ARENA]
        .map(|arena| null(platform, arena).calls().iter().filter(|call| moves(call)).count())[..]
        .iter()
        .sum()
}

#[test]
fn o02_shared_storage_is_handed_over_without_a_copy() {
    for concurrency in EVERY_WAY {
        for (root, member) in [(MAIN_ARENA, GPU_ARENA), (GPU_ARENA, MAIN_ARENA)] {
            let platform = bound_pair(concurrency);
            let recording = platform.record();
            let buffer = raw(&platform, 100);
            write(&buffer, root, 0..100, 1);
            assert_eq!(read(&buffer, member, 0..100), bytes(1, 0..100));
            let state = check(&buffer);
            assert_eq!(state.arena(member).alloc, Alloc::Bound { root, concurrency });
            assert_eq!(state.arena(root).alloc, Alloc::Internal);
            for round in 2..6 {
                change(&buffer, member, 10..71, round);
                assert_eq!(read(&buffer, root, 10..71), bytes(round, 10..71));
                change(&buffer, root, 33..44, round + 10);
                assert_eq!(read(&buffer, member, 33..44), bytes(round + 10, 33..44));
            }
            assert_eq!((byte_copies(&platform), moved(&platform)), (0, 0), "{concurrency:?} {root}");
            let handed_over = maps(&platform);
            match concurrency {
                // The gpu's kernels work in its own storage and in main memory's without the host letting go.
                Concurrency::BimapFull => assert!(handed_over <= 1, "{handed_over}"),
                _ => assert!(handed_over >= 8, "{concurrency:?} {root}: {handed_over}"),
            }
            drop(buffer);
            assert_history(&platform, &recording.finish());
            assert_eq!(live_blocks(&platform), 0);
        }
    }
}

#[test]
fn who_shares_storage_is_told_before_it_is_made_and_after() {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    let rig = rig.staged(MAIN_ARENA, GPU_ARENA).staged(MAIN_ARENA, GPU2_ARENA);
    let rig = rig.bound_one_way(MAIN_ARENA, GPU_ARENA, Concurrency::Exclusive);
    let unasked = rig.build();
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    let rig = rig.staged(MAIN_ARENA, GPU_ARENA).staged(MAIN_ARENA, GPU2_ARENA);
    let rig = rig.bound_one_way(MAIN_ARENA, GPU_ARENA, Concurrency::Exclusive);
    let platform = rig.preferring(MAIN_ARENA, GPU_ARENA).build();
    let buffer = raw(&platform, 100);
    let shares = |one, other| [buffer.shares_storage(one, other), buffer.shares_storage(other, one)];
    for touched in [false, true] {
        assert_eq!(shares(MAIN_ARENA, GPU_ARENA), [true; 2], "touched: {touched}");
        assert_eq!(shares(MAIN_ARENA, GPU2_ARENA), [false; 2], "touched: {touched}");
        assert_eq!(shares(GPU_ARENA, GPU2_ARENA), [false; 2], "touched: {touched}");
        assert_eq!(shares(GPU2_ARENA, GPU2_ARENA), [true; 2]);
        assert_eq!(shares(MAIN_ARENA, ArenaId(3)), [false; 2], "there is none");
        assert_eq!(shares(ArenaId(3), ArenaId(3)), [false; 2], "there is none");
        write(&buffer, GPU_ARENA, 0..100, 1);
        write(&buffer, GPU2_ARENA, 0..100, 1);
    }
    let buffer = raw(&unasked, 100);
    assert!(!buffer.shares_storage(MAIN_ARENA, GPU_ARENA), "nobody asks for it");
    write(&buffer, MAIN_ARENA, 0..100, 1);
    buffer.bind(GPU_ARENA, MAIN_ARENA).unwrap();
    assert!(buffer.shares_storage(MAIN_ARENA, GPU_ARENA));
}

#[test]
fn a_preferred_binding_is_made_at_the_first_touch_of_either_end() {
    let rig = || {
        let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
        let rig = rig.staged(MAIN_ARENA, GPU_ARENA).staged(MAIN_ARENA, GPU2_ARENA);
        rig.bound_one_way(MAIN_ARENA, GPU_ARENA, Concurrency::Exclusive)
    };
    let bound = Alloc::Bound { root: MAIN_ARENA, concurrency: Concurrency::Exclusive };
    for (first, is_preferred) in
        [(MAIN_ARENA, true), (GPU_ARENA, true), (GPU2_ARENA, true), (GPU_ARENA, false)]
    {
        let rig = if is_preferred { rig().preferring(MAIN_ARENA, GPU_ARENA) } else { rig() };
        let platform = rig.build();
        let recording = platform.record();
        let buffer = raw(&platform, 100);
        write(&buffer, first, 0..100, 1);
        assert_eq!(read(&buffer, GPU_ARENA, 0..100), bytes(1, 0..100));
        assert_eq!(read(&buffer, MAIN_ARENA, 0..100), bytes(1, 0..100));
        let alloc = check(&buffer).arena(GPU_ARENA).alloc;
        assert_eq!(alloc, if is_preferred { bound } else { Alloc::Internal }, "first in {first}");
        let copied = byte_copies(&platform);
        assert_eq!(copied, u64::from(!is_preferred || first == GPU2_ARENA), "first in {first}");
        // Others go on by copies, from whichever of the two is cheaper to read.
        assert_eq!(read(&buffer, GPU2_ARENA, 0..100), bytes(1, 0..100));
        drop(buffer);
        assert_history(&platform, &recording.finish());
        assert_eq!(live_blocks(&platform), 0);
    }
}

/// Main memory, a memory of the host's that is the preferred root of all others, and two devices.
fn third_party(narrow: Concurrency) -> Rig {
    let rig = Rig::new().memory(CPU, Concurrency::BimapFull);
    let rig = rig.gpu(Concurrency::BimapFull).gpu(Concurrency::BimapFull).gpu(narrow);
    let (root, members) = (ArenaId(1), [0, 2, 3, 4].map(ArenaId));
    let pairs = (0..5).flat_map(|a| (a + 1..5).map(move |b| (ArenaId(a), ArenaId(b))));
    let rig = pairs.fold(rig, |rig, (a, b)| rig.staged(a, b));
    members.into_iter().fold(rig, |rig, member| {
        let concurrency = if member == ArenaId(4) { narrow } else { Concurrency::BimapFull };
        rig.bound_one_way(root, member, concurrency).preferring(root, member)
    })
}

#[test]
fn o02_a_third_memory_is_the_root_whichever_member_comes_first() {
    let root = ArenaId(1);
    for narrow in EVERY_WAY {
        for first in [0, 1, 2, 3, 4].map(ArenaId) {
            for zeroed in [false, true] {
                let platform = third_party(narrow).build();
                let recording = platform.record();
                let buffer = if zeroed {
                    platform.raw_buffer(100).zeroed().build().unwrap()
                } else {
                    raw(&platform, 100)
                };
                let mut expected = vec![0; 100];
                if zeroed {
                    change(&buffer, first, 10..40, 1);
                    expected[10..40].copy_from_slice(&bytes(1, 10..40));
                } else {
                    write(&buffer, first, 0..100, 1);
                    expected.copy_from_slice(&bytes(1, 0..100));
                }
                for (turn, arena) in (2..).zip([2, 0, 3, 4, 1, 3, 4, 2, 0].map(ArenaId)) {
                    assert_eq!(read(&buffer, arena, 0..100), expected, "{arena} after {first} was first");
                    let part = turn * 7..turn * 7 + 11;
                    change(&buffer, arena, part.clone(), turn);
                    expected[part.start as usize..part.end as usize].copy_from_slice(&bytes(turn, part));
                }
                let state = check(&buffer);
                assert_eq!(state.arena(root).alloc, Alloc::Internal);
                for member in [0, 2, 3, 4].map(ArenaId) {
                    let alloc = state.arena(member).alloc;
                    assert!(
                        matches!(alloc, Alloc::Bound { root: of, .. } if of == root),
                        "{member}: {alloc:?}"
                    );
                }
                assert_eq!(byte_copies(&platform), 0, "{narrow:?}, {first} first, zeroed {zeroed}");
                drop(buffer);
                assert_history(&platform, &recording.finish());
                assert_eq!(live_blocks(&platform), 0);
            }
        }
    }
}

#[test]
fn i11_members_of_a_coherent_root_hold_disjoint_ranges_at_once() {
    let platform = third_party(Concurrency::Exclusive).build();
    let buffer = raw(&platform, 90);
    write(&buffer, MAIN_ARENA, 0..90, 1);
    let parts = [(0, 0..30), (2, 30..60), (3, 60..90)].map(|(arena, part)| (ArenaId(arena), part));
    let held = parts.map(|(arena, part)| {
        platform.acquire_in(arena).read_write(&buffer.range(part)).try_now().expect("the ranges are disjoint")
    });
    // A member that is bound exclusively would narrow the rules of the others, so it waits.
    let late = platform.acquire_in(ArenaId(4)).read(&buffer.range(0..1)).try_now();
    assert!(late.unwrap_err().is_busy());
    held.into_iter().for_each(|grants| grants.release().unwrap());
    assert_eq!(byte_copies(&platform), 0);
}

#[test]
fn a_preferred_binding_takes_no_root_from_an_arena_that_needs_it() {
    // The second gpu has nothing but a binding to the first one's storage, which a preference would bind to
    // main memory.
    let rig =
        Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive).staged(MAIN_ARENA, GPU_ARENA);
    let rig =
        rig.bound_one_way(MAIN_ARENA, GPU_ARENA, Concurrency::Exclusive).preferring(MAIN_ARENA, GPU_ARENA);
    let platform = rig.bound_one_way(GPU_ARENA, GPU2_ARENA, Concurrency::Exclusive).build();
    for is_main_there in [true, false] {
        let buffer = raw(&platform, 100);
        if is_main_there {
            write(&buffer, MAIN_ARENA, 0..100, 1);
        }
        write(&buffer, GPU_ARENA, 0..100, 2);
        assert_eq!(read(&buffer, GPU2_ARENA, 0..100), bytes(2, 0..100));
        assert_eq!(check(&buffer).arena(GPU_ARENA).alloc, Alloc::Internal);
    }
}

#[test]
fn a_binding_that_no_link_can_make_is_not_preferred() {
    let rig = Rig::new().gpu(Concurrency::Exclusive).staged(MAIN_ARENA, GPU_ARENA);
    let error = rig.preferring(MAIN_ARENA, GPU_ARENA).try_plain().unwrap_err();
    let ConfigError::Topology(problems) = &error else { panic!("{error}") };
    assert_eq!(problems[..], [TopologyError::NoBinding { root: MAIN_ARENA, member: GPU_ARENA }]);
    assert_eq!(error.to_string(), "platform: a1 cannot be bound to a0: no link binds them");
}

#[test]
fn i11_who_may_use_shared_storage_at_once() {
    for concurrency in EVERY_WAY {
        for root in [MAIN_ARENA, GPU_ARENA] {
            let platform = bound_pair(concurrency);
            let buffer = raw(&platform, 100);
            write(&buffer, root, 0..100, 1);
            let _ = read(&buffer, ArenaId(1 - root.0), 0..100);
            let (left, right) = (buffer.range(0..50), buffer.range(50..100));
            let host = platform.acquire(CPU).read(&left).try_now().unwrap();
            let reads = platform.acquire(GPU).read(&right).try_now();
            assert_eq!(reads.is_ok(), concurrency != Concurrency::Exclusive, "{concurrency:?}");
            drop(reads);
            let mut writes = platform.acquire(GPU).read_write(&right).try_now();
            assert_eq!(writes.is_ok(), concurrency == Concurrency::BimapFull, "{concurrency:?}");
            if let Ok(kernel) = &mut writes {
                put(kernel, &buffer, 50, &bytes(2, 50..100));
            }
            assert_eq!(get(&host, &buffer, 0..50), bytes(1, 0..50));
            drop((host, writes));
            check(&buffer);
        }
    }
}

#[test]
fn i16_a_coherent_commit_is_valid_in_every_member() {
    let platform = bound_pair(Concurrency::BimapFull);
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let _ = read(&buffer, GPU_ARENA, 0..100);
    change(&buffer, GPU_ARENA, 20..30, 2);
    assert_eq!(segments(&buffer), [(0..100, arenas([MAIN_ARENA, GPU_ARENA]), Status::Defined)]);
    // A failed kernel of one is a failed kernel of all.
    let kernel = platform.acquire(GPU).read_write(&buffer.range(40..50)).try_now().unwrap();
    kernel.failed().unwrap();
    let lost = platform.acquire(CPU).read(&buffer).try_now();
    assert!(matches!(lost, Err(AcquireError::Poisoned { restorable: false, .. })), "{lost:?}");
}

#[test]
fn i10_binding_by_hand_is_refused_where_it_makes_no_sense() {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    let platform =
        rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::Exclusive).staged(MAIN_ARENA, GPU2_ARENA).build();
    let buffer = raw(&platform, 100);
    let why = |arena, root| match buffer.bind(arena, root) {
        Err(AcquireError::NotBindable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(GPU_ARENA, MAIN_ARENA), BindRefusal::RootNotAllocated);
    assert_eq!(why(GPU2_ARENA, MAIN_ARENA), BindRefusal::NoLink);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let host = platform.acquire(CPU).read(&buffer.range(0..1)).try_now().unwrap();
    assert_eq!(why(GPU_ARENA, MAIN_ARENA), BindRefusal::InUse);
    drop(host);
    buffer.bind(GPU_ARENA, MAIN_ARENA).unwrap();
    assert_eq!(segments(&buffer), [(0..100, arenas([MAIN_ARENA]), Status::Defined)], "not before a refresh");
    assert_eq!(why(GPU_ARENA, MAIN_ARENA), BindRefusal::AlreadyAllocated);
    assert_eq!(why(MAIN_ARENA, GPU_ARENA), BindRefusal::AlreadyAllocated);
    assert_eq!(read(&buffer, GPU_ARENA, 0..100), bytes(1, 0..100));
    buffer.close();
    assert_eq!(why(GPU_ARENA, MAIN_ARENA), BindRefusal::NotOpen);
}

#[test]
fn i10_members_are_freed_before_their_root_and_the_only_copy_never() {
    let rig = Rig::new().gpu(Concurrency::BimapRead).gpu(Concurrency::Exclusive);
    let platform =
        rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead).staged(MAIN_ARENA, GPU2_ARENA).build();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let _ = read(&buffer, GPU_ARENA, 0..100);
    assert_eq!(refused(&buffer, MAIN_ARENA), FreeRefusal::StillBound);
    let kernel = platform.acquire(GPU).read(&buffer.range(9..10)).try_now().unwrap();
    assert_eq!(refused(&buffer, GPU_ARENA), FreeRefusal::InUse);
    drop(kernel);
    write(&buffer, GPU_ARENA, 40..41, 2);
    assert_eq!(refused(&buffer, GPU_ARENA), FreeRefusal::WouldLoseData);
    let whole = [bytes(1, 0..40), bytes(2, 40..41), bytes(1, 41..100)].concat();
    assert_eq!(read(&buffer, GPU2_ARENA, 0..100), whole);
    buffer.free(GPU_ARENA).unwrap();
    buffer.free(MAIN_ARENA).unwrap();
    assert_eq!(refused(&buffer, GPU2_ARENA), FreeRefusal::WouldLoseData);
    // What had no storage has none afterwards.
    buffer.free(MAIN_ARENA).unwrap();
    assert_eq!((live_blocks(&platform), null(&platform, GPU2_ARENA).live_blocks()), (1, 1));
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), whole);
    drop(buffer);
    assert_history(&platform, &recording.finish());
}

#[test]
fn i10_a_buffer_that_goes_frees_its_members_first() {
    for (root, member) in [(MAIN_ARENA, GPU_ARENA), (GPU_ARENA, MAIN_ARENA)] {
        for closes in [false, true] {
            let platform = bound_pair(Concurrency::Exclusive);
            let buffer = raw(&platform, 100);
            write(&buffer, root, 0..100, 1);
            let _ = read(&buffer, member, 0..100);
            let (tell, freed) = channel();
            for arena in [root, member] {
                let tell = tell.clone();
                test_arena(&platform, arena).hook(move |call| {
                    if call == CallKind::Free {
                        tell.send(arena).unwrap();
                    }
                });
            }
            if closes {
                buffer.close();
            }
            drop(buffer);
            assert_eq!(freed.try_iter().collect::<Vec<_>>(), [member, root], "closed: {closes}");
            assert_eq!(live_blocks(&platform), 0);
        }
    }
}

#[test]
fn i02_a_coherent_member_of_a_group_that_is_not_is_valid_only_when_refreshed() {
    let rig = Rig::new().gpu(Concurrency::BimapRead).gpu(Concurrency::BimapFull);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead);
    let platform = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::BimapFull).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    buffer.bind(GPU_ARENA, MAIN_ARENA).unwrap();
    buffer.bind(GPU2_ARENA, MAIN_ARENA).unwrap();
    assert_eq!(segments(&buffer), [(0..100, arenas([MAIN_ARENA]), Status::Defined)]);
    assert_eq!(read(&buffer, GPU2_ARENA, 0..100), bytes(1, 0..100));
    assert_eq!(segments(&buffer), [(0..100, arenas([MAIN_ARENA, GPU2_ARENA]), Status::Defined)]);
}

#[test]
fn i04_a_free_that_makes_shared_storage_coherent_makes_nobody_valid_by_itself() {
    // Two gpus share main memory's storage, one of them only for reading together: so all three hand it over.
    let rig = Rig::new().gpu(Concurrency::BimapRead).gpu(Concurrency::BimapFull);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead);
    let platform = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::BimapFull).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    buffer.bind(GPU_ARENA, MAIN_ARENA).unwrap();
    buffer.bind(GPU2_ARENA, MAIN_ARENA).unwrap();
    change(&buffer, GPU2_ARENA, 20..80, 2);
    // Without the first gpu the storage is coherent: main memory is valid at once, or brought up to date when
    // asked.
    buffer.free(GPU_ARENA).unwrap();
    let host = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    check(&buffer);
    assert_eq!(get(&host, &buffer, 20..80), bytes(2, 20..80));
}

#[test]
fn zeros_do_not_count_as_the_only_copy() {
    let platform = pair();
    let buffer = platform.raw_buffer(100).zeroed().build().unwrap();
    let _ = read(&buffer, GPU_ARENA, 0..100);
    buffer.free(GPU_ARENA).unwrap();
    assert_eq!(live_blocks(&platform), 0);
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), [0; 100]);
}

#[test]
fn i24_the_applications_vector_comes_back_with_what_a_device_wrote() {
    for platform in [pair(), mapped_pair(Concurrency::Exclusive), bound_pair(Concurrency::Exclusive)] {
        let recording = platform.record();
        let data: Vec<u32> = (1..=100).map(|i| i * 0x0101_0101).collect();
        let address = data.as_ptr();
        let buffer = platform.buffer_from(data).unwrap();
        assert_eq!(refused(buffer.raw(), MAIN_ARENA), FreeRefusal::External);
        assert_eq!(segments(buffer.raw()), [(0..400, arenas([MAIN_ARENA]), Status::Defined)]);
        assert_eq!(buffer.read().unwrap().as_ptr(), address, "nothing is copied");
        change(buffer.raw(), GPU_ARENA, 40..81, 2);
        let back = buffer.into_vec().unwrap();
        assert_eq!(back.as_ptr(), address);
        let seen: Vec<u8> = back.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(seen[40..81], bytes(2, 40..81));
        assert_eq!((back[9], back[25]), (10 * 0x0101_0101, 26 * 0x0101_0101));
        assert_eq!(live_blocks(&platform), 0);
        assert_history(&platform, &recording.finish());
    }
}

#[test]
fn i24_a_boxed_slice_comes_back_as_a_vector_of_the_same_address() {
    let platform = pair();
    let data: Box<[u8]> = bytes(1, 0..77).into();
    let address = data.as_ptr();
    let buffer = platform.buffer_from(data).unwrap();
    write(buffer.raw(), GPU_ARENA, 0..77, 2);
    let back = buffer.into_vec().unwrap();
    assert_eq!((back.as_ptr(), back), (address, bytes(2, 0..77)));
}

#[test]
fn i24_a_dropped_buffer_drops_the_applications_storage() {
    let platform = pair();
    let buffer = platform.buffer_from(bytes(1, 0..77)).unwrap();
    write(buffer.raw(), GPU_ARENA, 0..77, 2);
    let clone = buffer.clone();
    drop(buffer);
    assert_eq!(live_blocks(&platform), 2);
    drop(clone);
    assert_eq!(live_blocks(&platform), 0);
    assert!(!null(&platform, MAIN_ARENA).calls().iter().any(|call| matches!(call, Call::CopyIn { .. })));
    // An empty vector is a buffer too.
    let none: Vec<u64> = Vec::new();
    assert!(platform.buffer_from(none).unwrap().into_vec().unwrap().is_empty());
}

#[test]
fn into_vec_of_what_cannot_be_read_leaves_the_buffer_as_it_was() {
    let platform = pair();
    let buffer = platform.buffer::<u16>(50).build().unwrap();
    let refused = buffer.clone().into_vec();
    assert!(matches!(refused, Err(AcquireError::Uninitialized { .. })), "{refused:?}");
    let mut view = buffer.write().unwrap();
    view.fill(7);
    view.release().unwrap();
    assert_eq!(buffer.into_vec().unwrap(), [7; 50]);
}

#[test]
fn l06_close_refuses_those_who_wait_and_waits_for_those_who_hold() {
    let platform = star();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let holder = platform.acquire(GPU2_DEVICE).read(&buffer).try_now().unwrap();
    let mut future = platform.acquire(CPU).write(&buffer).into_future();
    assert!(poll_once(&mut future).is_pending());
    let waiting = buffer.clone();
    let waiter = watched("waiter", move || waiting.platform().acquire(GPU).write(&waiting).wait().map(drop));
    while buffer.snapshot().queue().len() < 2 {
        std::thread::yield_now();
    }
    let closing = buffer.clone();
    let closer = watched("close()", move || {
        closing.close();
        live_blocks(closing.platform())
    });
    assert!(matches!(waiter.join(), Err(AcquireError::Closed { .. })));
    assert!(matches!(poll_once(&mut future), Poll::Ready(Err(AcquireError::Closed { .. }))));
    let late = platform.acquire(CPU).read(&buffer).try_now();
    assert!(matches!(late, Err(AcquireError::Closed { .. })));
    assert_eq!(buffer.snapshot().lifecycle(), Lifecycle::Closing);
    assert_eq!(get(&holder, &buffer, 0..100), bytes(1, 0..100));
    holder.release().unwrap();
    assert_eq!(closer.join(), 0, "close() returns when all storage is free");
    assert!(matches!(buffer.prefetch(CPU, 0..1).wait(), Err(AcquireError::Closed { .. })));
    buffer.close();
    drop(future);
    assert_history(&platform, &recording.finish());
}

const GPU2_DEVICE: dml::core::DeviceId = dml_verify::GPU2;

#[test]
fn i25_a_grant_keeps_the_storage_of_a_dropped_buffer() {
    let platform = star();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let reader = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    let whole = buffer.range(0..100);
    drop(buffer);
    assert_eq!(live_blocks(&platform), 2);
    assert_eq!(reader.slice::<u8>(&whole).unwrap(), bytes(1, 0..100));
    drop(whole);
    drop(reader);
    assert_eq!(live_blocks(&platform), 0);
    for arena in [MAIN_ARENA, GPU_ARENA] {
        let calls = null(&platform, arena).calls();
        assert_eq!(calls.iter().filter(|call| matches!(call, Call::Free { .. })).count(), 1, "{arena}");
    }
}

#[test]
fn i06_a_map_only_gpu_serves_the_host_between_its_kernels() {
    let platform = mapped_pair(Concurrency::Exclusive);
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    for round in 0..5 {
        write(&buffer, GPU_ARENA, 0..100, round);
        assert_eq!(read(&buffer, MAIN_ARENA, 13..14), bytes(round, 13..14));
        assert_eq!(read(&buffer, GPU_ARENA, 0..100), bytes(round, 0..100));
    }
    let counters = platform.counters();
    assert_eq!((counters.operation(Operation::Map), counters.operation(Operation::Unmap)), (5, 5));
    drop(buffer);
    let events = recording.finish();
    assert_eq!(copies(&events).len(), 5);
    assert_history(&platform, &events);
}
