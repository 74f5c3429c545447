//! Operations beside one that is half way: an arena call is stopped at a gate, another call comes, the gate
//! opens.

#![cfg(not(dml_loom))]

use dml::arenas::Script;
use dml::arenas::faulty::{CallKind, Fault};
use dml::arenas::null::Call;
use dml::core::internal::state::Lifecycle;
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{AcquireError, ArenaId, Concurrency, Platform, RawBuffer, record::EventKind};
use dml_verify::history::assert_history;
use dml_verify::{
    Audited, CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, GPU3, GPU3_ARENA, MAIN_ARENA, Rig, arenas, bound_pair,
    bytes, check, get, live_blocks, null, pair, poll_once, put, raw, read, star, test_arena, watched, write,
};
use std::future::IntoFuture;
use std::task::Poll;

/// Reads all of a buffer in an arena, on a thread of its own.
fn reader(buffer: &RawBuffer, arena: ArenaId) -> dml_verify::Watched<Result<Vec<u8>, AcquireError>> {
    let buffer = buffer.clone();
    watched("reader", move || {
        let grants = buffer.platform().acquire_in(arena).read(&buffer).try_now()?;
        check(&buffer);
        let bytes = get(&grants, &buffer, 0..buffer.len());
        grants.release()?;
        Ok(bytes)
    })
}

#[test]
fn i13_a_source_lost_during_its_copy_leaves_no_bytes_that_are_lost_and_valid() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::CopyOut);
    let reader = reader(&buffer, MAIN_ARENA);
    gate.arrived();
    platform.device_lost(GPU);
    gate.open();
    let result = reader.join();
    check(&buffer);
    // Either the copy came in time and its bytes are the contents now, or they are lost and no request is
    // granted them.
    match result {
        Ok(seen) => {
            assert_eq!((seen, read(&buffer, MAIN_ARENA, 0..100)), (bytes(1, 0..100), bytes(1, 0..100)))
        }
        Err(error) => {
            let again = platform.acquire(CPU).read(&buffer).try_now();
            assert!(matches!(again, Err(AcquireError::Poisoned { .. })), "{error}, then {again:?}");
        }
    }
}

#[test]
fn i02_bytes_do_not_pass_through_a_memory_that_is_lost() {
    let platform = star();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::CopyOut);
    let reader = reader(&buffer, GPU2_ARENA);
    // On the way to main memory, from where the second gpu would get them.
    gate.arrived();
    platform.device_lost(CPU);
    gate.open();
    let result = reader.join();
    assert!(matches!(result, Err(AcquireError::DeviceLost { .. })), "{result:?}");
    let state = check(&buffer);
    assert!(state.segments().iter().all(|(_, content)| content.valid == arenas([GPU_ARENA])));
}

#[test]
fn i13_a_root_lost_while_it_is_bound_leaves_no_bytes_that_are_lost_and_valid() {
    let platform = bound_pair(Concurrency::BimapFull);
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let gate = test_arena(&platform, MAIN_ARENA).gate(CallKind::Bind);
    let reader = reader(&buffer, MAIN_ARENA);
    gate.arrived();
    platform.device_lost(GPU);
    gate.open();
    let result = reader.join();
    check(&buffer);
    assert!(result.is_err(), "granted storage of a lost device: {result:?}");
    let again = platform.acquire(CPU).read(&buffer).try_now();
    assert!(matches!(again, Err(AcquireError::Poisoned { .. })), "{again:?}");
}

#[test]
fn i21_who_waits_for_storage_of_a_lost_root_is_let_in_when_its_last_user_leaves() {
    let platform = bound_pair(Concurrency::BimapRead);
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::Map);
    let fetching = buffer.clone();
    let prefetch = watched("prefetch()", move || fetching.prefetch(CPU, 0..100).wait());
    // Main memory is bound to the gpu's storage, and about to be made valid.
    gate.arrived();
    platform.device_lost(GPU);
    let mut waiter = platform.acquire(CPU).write(&buffer).into_future();
    assert!(poll_once(&mut waiter).is_pending());
    gate.open();
    let _ = prefetch.join();
    let Poll::Ready(Ok(mut writer)) = poll_once(&mut waiter) else { panic!("nobody is left to wait for") };
    put(&mut writer, &buffer, 0, &bytes(2, 0..100));
    writer.release().unwrap();
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), bytes(2, 0..100));
}

#[test]
fn i11_nobody_comes_into_a_root_while_a_request_binds_to_it() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapRead] {
        let platform = bound_pair(concurrency);
        let buffer = raw(&platform, 100);
        write(&buffer, MAIN_ARENA, 0..100, 1);
        let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::Bind);
        let reader = reader(&buffer, GPU_ARENA);
        gate.arrived();
        let host = platform.acquire(CPU).read(&buffer).try_now();
        gate.open();
        // The two may share under BimapRead alone.
        assert!(
            host.is_err() || concurrency == Concurrency::BimapRead,
            "{concurrency:?}: the host was let into storage that is about to be the gpu's"
        );
        assert_eq!(reader.join().unwrap(), bytes(1, 0..100));
        check(&buffer);
        drop(host);
    }
}

#[test]
fn i11_a_plan_ends_its_own_copies_before_it_narrows_who_may_share() {
    // The first gpu shares main memory's storage for reading only, the third one coherently; the second has
    // its own.
    let slow = Script::new().from_kind(CallKind::CopyOut, 1, Fault::Slow(std::time::Duration::ZERO));
    let rig = Rig::new().gpu(Concurrency::BimapRead).gpu_with(Concurrency::Exclusive, slow);
    let rig = rig.gpu(Concurrency::BimapFull).bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead);
    let rig = rig.bound(MAIN_ARENA, GPU3_ARENA, Concurrency::BimapFull);
    let platform = rig.staged(MAIN_ARENA, GPU2_ARENA).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    write(&buffer, GPU2_ARENA, 50..100, 2);
    let reader = platform.acquire(GPU3).read(&buffer.range(0..10)).try_now().unwrap();
    // From the second gpu to main memory, where the third one reads, and on to the first by a new binding: a
    // fence that is waited for late is enough.
    let wanted = buffer.range(50..60);
    let kernel = platform.acquire(GPU).read(&wanted).try_now().unwrap();
    check(&buffer);
    assert_eq!(get(&kernel, &buffer, 50..60), bytes(2, 50..60));
    assert_eq!(get(&reader, &buffer, 0..10), bytes(1, 0..10));
}

#[test]
fn i06_a_free_does_not_change_the_rules_for_a_plan_under_way() {
    // Two gpus share main memory's storage: the first exclusively, so that all hand it over; the second
    // coherently.
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::BimapFull);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::Exclusive);
    let platform = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::BimapFull).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    buffer.bind(GPU2_ARENA, MAIN_ARENA).unwrap();
    buffer.bind(GPU_ARENA, MAIN_ARENA).unwrap();
    for arena in [GPU2_ARENA, MAIN_ARENA] {
        assert_eq!(read(&buffer, arena, 0..100), bytes(1, 0..100));
    }
    let gate = test_arena(&platform, GPU2_ARENA).gate(CallKind::Unmap);
    let reader = reader(&buffer, GPU2_ARENA);
    gate.arrived();
    // The second gpu is taking the storage from the host. Without the first one it would not have to.
    let freed = buffer.free(GPU_ARENA);
    let host = platform.acquire(CPU).read(&buffer).try_now();
    gate.open();
    let seen = reader.join();
    assert!(
        matches!(&seen, Ok(bytes) if *bytes == dml_verify::bytes(1, 0..100)),
        "{seen:?}, {freed:?}, {host:?}"
    );
    assert_eq!(buffer.snapshot().lifecycle(), Lifecycle::Open, "wedged, and every arena kept its contract");
}

#[test]
fn i06_nobody_comes_into_a_root_during_an_explicit_binding() {
    let platform = bound_pair(Concurrency::Exclusive);
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::Bind);
    let binding = buffer.clone();
    let binder = watched("bind()", move || binding.bind(GPU_ARENA, MAIN_ARENA));
    gate.arrived();
    let host = platform.acquire(CPU).read_write(&buffer).try_now();
    gate.open();
    let bound = binder.join();
    check(&buffer);
    // At most one of the two succeeds, and then has the storage alone.
    assert!(bound.is_err() || host.is_err(), "both: {bound:?}, {host:?}");
}

#[test]
fn i06_a_binding_given_up_half_way_leaves_the_readers_of_its_root_their_access() {
    // Bound, and then the map state that would let the two read side by side cannot be had.
    let script = Script::new().at_kind(CallKind::Map, 1, Fault::fail());
    let rig = Rig::new().gpu_with(Concurrency::BimapRead, script);
    let platform = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let host = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    let refused = platform.acquire(GPU).read(&buffer).try_now();
    let Err(refused @ AcquireError::MapFailed { .. }) = refused else { panic!("{refused:?}") };
    let name = &platform.device_desc(CPU).name;
    assert!(refused.to_string().starts_with(&format!("giving {name} access to b")), "{refused}");
    check(&buffer);
    assert_eq!(get(&host, &buffer, 0..100), bytes(1, 0..100));
    drop(host);
    assert_eq!(read(&buffer, GPU_ARENA, 0..100), bytes(1, 0..100));
}

#[test]
fn i06_a_binding_given_up_half_way_leaves_coherent_peers_their_access() {
    // The second gpu shares main memory's storage coherently, and both read it. The first one would share it
    // for reading only: then the two must be mapped to go on side by side. That fails, whichever of the three
    // it concerns.
    for failing in 0..3 {
        let script = |arena| match arena == failing {
            true => Script::new().from_kind(CallKind::Map, 1, Fault::fail()),
            false => Script::new(),
        };
        let rig = Rig::new().gpu_with(Concurrency::BimapRead, script(1));
        let rig = rig.gpu_with(Concurrency::BimapFull, script(2));
        let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead);
        let platform = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::BimapFull).build();
        let buffer = raw(&platform, 100);
        write(&buffer, MAIN_ARENA, 0..100, 1);
        let gpu2 = platform.acquire(GPU2).read(&buffer).try_now().unwrap();
        let host = platform.acquire(CPU).read(&buffer).try_now().unwrap();
        let gpu = platform.acquire(GPU).read(&buffer).try_now();
        assert_eq!(gpu.is_err(), failing > 0, "{failing}: {gpu:?}");
        check(&buffer);
        for (grants, device) in [(&host, "host"), (&gpu2, "gpu2")] {
            assert_eq!(get(grants, &buffer, 0..100), bytes(1, 0..100), "{failing}: {device}");
        }
    }
}

/// Main memory, a gpu bound to it, and a second gpu that holds a copy of its own.
fn root_member_and_copy() -> (Audited, RawBuffer) {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::Exclusive);
    let platform = rig.staged(MAIN_ARENA, GPU2_ARENA).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let _ = read(&buffer, GPU_ARENA, 0..100);
    let _ = read(&buffer, GPU2_ARENA, 0..100);
    (platform, buffer)
}

/// Notes, at every free of main memory's block, how many blocks bound to it were still there.
fn members_at_free(platform: &Platform) -> Arc<Mutex<Vec<usize>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (noted, others) = (seen.clone(), platform.clone());
    test_arena(platform, MAIN_ARENA).hook(move |call| {
        if call == CallKind::Free {
            noted.lock().push(null(&others, GPU_ARENA).live_blocks());
        }
    });
    seen
}

#[test]
fn i10_a_root_is_freed_after_a_member_that_another_thread_frees() {
    let (platform, buffer) = root_member_and_copy();
    let seen = members_at_free(&platform);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::Free);
    let freeing = buffer.clone();
    let member = watched("free of the member", move || freeing.free(GPU_ARENA));
    gate.arrived();
    // Refusing is as good as waiting; handing the root back while a block is bound to it is neither.
    let freeing = buffer.clone();
    let root = watched("free of the root", move || freeing.free(MAIN_ARENA));
    (0..20_000).for_each(|_| std::thread::yield_now());
    gate.open();
    member.join().unwrap();
    let _ = root.join();
    assert!(seen.lock().iter().all(|&bound| bound == 0), "freed with {:?} blocks bound to it", seen.lock());
}

#[test]
fn i25_close_returns_after_storage_that_another_thread_frees() {
    let (platform, buffer) = root_member_and_copy();
    let seen = members_at_free(&platform);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::Free);
    let (freeing, closing) = (buffer.clone(), buffer.clone());
    let member = watched("free of the member", move || freeing.free(GPU_ARENA));
    gate.arrived();
    let closer = watched("close()", move || {
        closing.close();
        live_blocks(closing.platform())
    });
    (0..20_000).for_each(|_| std::thread::yield_now());
    gate.open();
    member.join().unwrap();
    let left = closer.join();
    assert!(seen.lock().iter().all(|&bound| bound == 0), "freed with {:?} blocks bound to it", seen.lock());
    assert_eq!(left, 0, "close() returned before all storage was free");
}

#[test]
fn i24_the_application_gets_its_vector_after_every_block_bound_to_it_is_gone() {
    let platform = bound_pair(Concurrency::Exclusive);
    let vector = bytes(1, 0..100);
    let address = vector.as_ptr().addr();
    let buffer = platform.buffer_from(vector).unwrap();
    let _ = read(buffer.raw(), GPU_ARENA, 0..100);
    let _ = read(buffer.raw(), MAIN_ARENA, 0..100);
    let seen = members_at_free(&platform);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::Free);
    let freeing = buffer.raw().clone();
    let member = watched("free of the member", move || freeing.free(GPU_ARENA));
    gate.arrived();
    let taker = watched("into_vec()", move || buffer.into_vec());
    (0..20_000).for_each(|_| std::thread::yield_now());
    gate.open();
    member.join().unwrap();
    let vector = taker.join().unwrap();
    assert_eq!(vector, bytes(1, 0..100));
    assert_eq!(vector.as_ptr().addr(), address, "a copy came back, not the vector that was moved in");
    assert_eq!(*seen.lock(), [0], "blocks still bound to the vector when it was given back");
}

#[test]
fn events_of_a_free_come_before_those_of_the_next_allocation() {
    // Main memory and the second gpu are bound to the first one: when it is lost, both are freed, one after
    // the other.
    let rig = Rig::new().gpu(Concurrency::BimapFull).gpu(Concurrency::BimapFull);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapFull);
    let platform = rig.bound(GPU_ARENA, GPU2_ARENA, Concurrency::BimapFull).build();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let _ = read(&buffer, MAIN_ARENA, 0..100);
    let _ = read(&buffer, GPU2_ARENA, 0..100);
    let recording = platform.record();
    let gates = [MAIN_ARENA, GPU2_ARENA].map(|arena| test_arena(&platform, arena).gate(CallKind::Free));
    let losing = platform.clone();
    let loser = watched("device_lost()", move || losing.device_lost(GPU));
    // One of the two is being freed; both are free as far as the state is concerned.
    let [main, gpu2] = gates;
    main.arrived();
    write(&buffer, GPU2_ARENA, 0..100, 2);
    main.open();
    gpu2.arrived();
    gpu2.open();
    loser.join();
    assert_eq!(read(&buffer, GPU2_ARENA, 0..100), bytes(2, 0..100));
    let of_gpu2 = recording.finish().into_iter().filter_map(|event| match event.kind {
        EventKind::Allocated { arena: GPU2_ARENA, .. } => Some("allocated"),
        EventKind::Freed { arena: GPU2_ARENA } => Some("freed"),
        _ => None,
    });
    assert_eq!(of_gpu2.collect::<Vec<_>>(), ["freed", "allocated"]);
}

#[test]
fn a_grant_is_numbered_when_it_is_complete() {
    let platform = pair();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::CopyOut);
    let reading = buffer.clone();
    let reader = watched("reader", move || {
        reading.platform().acquire(CPU).read(&reading.range(0..50)).try_now().map(drop)
    });
    gate.arrived();
    write(&buffer, GPU_ARENA, 50..100, 2);
    gate.open();
    reader.join().unwrap();
    drop(buffer);
    assert_history(&platform, &recording.finish());
}

#[test]
fn a_call_is_made_once() {
    // The gates above rely on it: the state is asked again, the arena is not.
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::CopyOut);
    let first = reader(&buffer, MAIN_ARENA);
    gate.arrived();
    let second = platform.acquire(CPU).read(&buffer).try_now();
    assert!(matches!(second, Err(AcquireError::Busy { .. })), "{second:?}");
    gate.open();
    assert_eq!(first.join().unwrap(), bytes(1, 0..100));
    let copies = null(&platform, GPU_ARENA).calls();
    assert_eq!(copies.iter().filter(|call| matches!(call, Call::CopyOut { .. })).count(), 1);
}
