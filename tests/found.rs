//! What the reference model has found, each as small as it can be.

#![cfg(not(dml_loom))]

use dml::arenas::Script;
use dml::arenas::faulty::Fault;
use dml::core::state::Status;
use dml::core::{AcquireError, Concurrency, LinkId, TransferError};
use dml_verify::{
    GPU_ARENA, GPU2, GPU2_ARENA, MAIN_ARENA, Rig, arenas, bytes, get, poll_once, raw, read, segments, star,
    write,
};
use std::future::IntoFuture;
use std::task::Poll;

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

#[test]
fn i16_a_coherent_binding_in_a_narrower_group_makes_nobody_valid() {
    let rig = Rig::new().gpu(Concurrency::BimapFull).gpu(Concurrency::Exclusive);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapFull);
    let platform = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::Exclusive).build();
    let buffer = raw(&platform, 8);
    write(&buffer, MAIN_ARENA, 0..8, 1);
    buffer.bind(GPU2_ARENA, MAIN_ARENA).unwrap();
    buffer.bind(GPU_ARENA, MAIN_ARENA).unwrap();
    // All three share one storage, and of those who do only one at a time has access.
    assert_eq!(segments(&buffer)[0].1, arenas([MAIN_ARENA]));
}

/// A reader in the second gpu is let in with a plan over two hops, and the device between them is lost before it is
/// carried out.
fn lost_on_the_way(rig: Rig) {
    let platform = rig.staged(MAIN_ARENA, GPU2_ARENA).build();
    let buffer = raw(&platform, 8);
    write(&buffer, GPU_ARENA, 0..8, 1);
    let writer = platform.acquire_in(GPU_ARENA).write(&buffer).try_now().unwrap();
    let mut reader = platform.acquire(GPU2).read(&buffer).into_future();
    assert!(poll_once(&mut reader).is_pending());
    drop(writer);
    platform.device_lost(platform.arena(MAIN_ARENA).desc().native);
    match poll_once(&mut reader) {
        Poll::Ready(Ok(grants)) => panic!("granted over a lost memory: {:?}", get(&grants, &buffer, 0..8)),
        Poll::Ready(Err(AcquireError::DeviceLost { arena, .. })) => assert_eq!(arena.id, MAIN_ARENA),
        Poll::Ready(Err(error)) => panic!("{error}"),
        Poll::Pending => panic!("it was let in"),
    }
    // The contents are where they were, and nowhere else.
    assert_eq!(segments(&buffer)[0].1, arenas([GPU_ARENA]));
    let again = platform.acquire_in(GPU_ARENA).read(&buffer).try_now().unwrap();
    assert_eq!(get(&again, &buffer, 0..8), bytes(1, 0..8));
}

#[test]
fn i02_what_passed_a_lost_memory_is_valid_nowhere() {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    lost_on_the_way(rig.staged(MAIN_ARENA, GPU_ARENA));
}

#[test]
fn i16_a_lost_arena_is_not_made_valid_by_a_binding() {
    let rig = Rig::new().gpu(Concurrency::BimapFull).gpu(Concurrency::Exclusive);
    lost_on_the_way(rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapFull));
}

#[test]
fn a_mechanism_that_refuses_what_it_offered_is_busy_and_leaves_nothing() {
    let script = Script::new().at(1, Fault::Fail(TransferError::Infeasible));
    let rig = Rig::new().gpu(Concurrency::Exclusive).with_link_script(LinkId(0), script);
    let platform = rig.staged(MAIN_ARENA, GPU_ARENA).build();
    let buffer = raw(&platform, 50);
    write(&buffer, MAIN_ARENA, 0..50, 1);
    let refused = platform.acquire_in(GPU_ARENA).read(&buffer).try_now();
    assert!(matches!(refused, Err(AcquireError::Busy { .. })), "{refused:?}");
    assert_eq!(segments(&buffer), [(0..50, arenas([MAIN_ARENA]), Status::Defined)]);
    assert_eq!(read(&buffer, GPU_ARENA, 0..50), bytes(1, 0..50));
}
