//! The end of a buffer: what is freed before `close` returns, and what a closed buffer refuses.

#![cfg(not(dml_loom))]

use dml::arenas::Script;
use dml::arenas::faulty::{CallKind, Fault};
use dml::core::internal::state::{Lifecycle, MapState};
use dml::core::{AcquireError, Concurrency, Grants};
use dml_verify::{
    CPU, GPU, GPU_ARENA, MAIN_ARENA, Place, Rig, bytes, live_blocks, null, pair, raw, read, star, test_arena,
    watched, write,
};

#[test]
fn i25_into_vec_closes_a_buffer_of_internal_storage_too() {
    let platform = pair();
    let buffer = platform.buffer::<u8>(10).build().unwrap();
    let mut view = buffer.write().unwrap();
    view.copy_from_slice(&bytes(1, 0..10));
    view.release().unwrap();
    let clone = buffer.clone();
    assert_eq!(buffer.into_vec().unwrap(), bytes(1, 0..10));
    assert!(matches!(clone.read(), Err(AcquireError::Closed { .. })));
}

#[test]
fn l06_close_ends_though_an_arena_breaks_its_contract_meanwhile() {
    let script = Script::new().at_kind(CallKind::Map, 1, Fault::Report(MapState::Unmapped));
    let platform = Rig::new().gpu_with(Concurrency::Exclusive, script).mapped(GPU_ARENA).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::Map);
    let (reading, closing) = (buffer.clone(), buffer.clone());
    let reader =
        watched("reader", move || reading.platform().acquire(GPU).read(&reading).try_now().map(drop));
    gate.arrived();
    let closer = watched("close()", move || closing.close());
    while buffer.snapshot().lifecycle() == Lifecycle::Open {
        std::thread::yield_now();
    }
    gate.open();
    let broken = reader.join();
    assert!(matches!(broken, Err(AcquireError::ArenaContract { .. })), "{broken:?}");
    assert_eq!(buffer.snapshot().lifecycle(), Lifecycle::Closed);
    closer.join();
}

#[test]
fn l06_close_ends_though_an_arena_panics_while_freeing() {
    let script = Script::new().at_kind(CallKind::Free, 1, Fault::Panic);
    let platform = Rig::new()
        .scripted(Place::Arena(MAIN_ARENA), script)
        .gpu(Concurrency::Exclusive)
        .staged(MAIN_ARENA, GPU_ARENA)
        .build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let _ = read(&buffer, GPU_ARENA, 0..100);
    let grants = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    let closing = buffer.clone();
    let closer = watched("close()", move || closing.close());
    while buffer.snapshot().lifecycle() == Lifecycle::Open {
        std::thread::yield_now();
    }
    // The last release frees the storage, and must not fail because the arena panics.
    let released = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| grants.release()));
    closer.join();
    assert!(released.is_ok(), "release panicked");
    assert_eq!(null(&platform, GPU_ARENA).live_blocks(), 0);
}

#[test]
fn i25_close_returns_after_the_storage_is_freed() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let grants = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    let gate = test_arena(&platform, MAIN_ARENA).gate(CallKind::Free);
    let (first, second) = (buffer.clone(), buffer.clone());
    let waits = watched("the first close()", move || first.close());
    while buffer.snapshot().lifecycle() == Lifecycle::Open {
        std::thread::yield_now();
    }
    let releases = watched("release", move || drop(grants));
    gate.arrived();
    // The last release is about to free the storage: a close that comes now has to wait for it.
    let closes = watched("the second close()", move || {
        second.close();
        live_blocks(second.platform())
    });
    (0..20_000).for_each(|_| std::thread::yield_now());
    gate.open();
    assert_eq!(closes.join(), 0);
    releases.join();
    waits.join();
}

#[test]
fn i25_a_closed_buffer_restores_nothing() {
    let platform = star();
    let buffer = raw(&platform, 8);
    write(&buffer, GPU_ARENA, 0..8, 1);
    platform.acquire_in(GPU_ARENA).write(&buffer).try_now().unwrap().failed().unwrap();
    buffer.close();
    let restored = buffer.restore(0..8);
    assert!(matches!(restored, Err(AcquireError::Closed { .. })), "{restored:?}");
}

/// Whether a buffer without handles is still there shows in its storage, which is freed with it.
#[test]
fn i24_a_buffer_lives_as_long_as_its_last_handle_and_grant() {
    let platform = pair();
    let of = live_blocks;
    let ends: [fn(Grants); 4] = [
        |grants| grants.release().unwrap(),
        |grants| grants.failed().unwrap(),
        drop,
        |grants| grants.downgrade().unwrap().release().unwrap(),
    ];
    for end in ends {
        let buffer = raw(&platform, 100);
        write(&buffer, MAIN_ARENA, 0..100, 1);
        assert_eq!(of(&platform), 1);
        let first = platform.acquire(CPU).read(&buffer.range(0..40)).wait().unwrap();
        let second = platform.acquire(CPU).read_write(&buffer.range(40..100)).wait().unwrap();
        drop(buffer);
        assert_eq!(of(&platform), 1, "two grants are left");
        end(first);
        assert_eq!(of(&platform), 1, "one grant is left");
        end(second);
        assert_eq!(of(&platform), 0, "nothing is left");
    }
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    platform.acquire(CPU).read(&buffer).wait().unwrap().release().unwrap();
    let clone = buffer.clone();
    drop(buffer);
    assert_eq!(of(&platform), 1, "a handle is left");
    drop(clone);
    assert_eq!(of(&platform), 0, "nothing is left");
}
