//! Bindings, made on the way and by hand: beside users, in groups of several rules, and when memories are
//! lost.

#![cfg(not(dml_loom))]

use dml::core::internal::state::{Begin, BufferState, Execution, Initial, Next, Report, Request, Status};
use dml::core::{
    Access, AcquireError, Claim, Claims, Concurrency, DeviceDesc, DeviceKind, KernelId, OwnerId, Platform,
    Span,
};
use dml_verify::{
    CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, GPU3_ARENA, MAIN_ARENA, Rig, arenas, bound_pair, byte_copies,
    bytes, change, check, get, poll_once, raw, read, segments, write,
};
use std::future::IntoFuture;
use std::task::Poll;

#[test]
fn o02_two_ranges_through_one_fresh_binding() {
    let platform = bound_pair(Concurrency::Exclusive);
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let wanted = platform.acquire(GPU).read(&buffer.range(3..11)).read(&buffer.range(40..61)).try_now();
    assert_eq!(get(&wanted.unwrap(), &buffer, 40..61), bytes(1, 40..61));
}

#[test]
fn o02_shared_storage_is_never_copied_onto_itself() {
    let rig = Rig::new().gpu(Concurrency::Exclusive).staged(MAIN_ARENA, GPU_ARENA);
    let platform = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::Exclusive).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let wanted = platform.acquire(GPU).read(&buffer.range(3..11)).read(&buffer.range(40..61)).try_now();
    assert_eq!(get(&wanted.unwrap(), &buffer, 40..61), bytes(1, 40..61));
    assert_eq!(byte_copies(&platform), 0);
}

#[test]
fn i09_a_fresh_binding_is_not_filled_under_a_reader() {
    let rig = Rig::new().gpu(Concurrency::BimapFull).staged(MAIN_ARENA, GPU_ARENA);
    let platform = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapFull).build();
    let buffer = platform.raw_buffer(100).zeroed().build().unwrap();
    write(&buffer, MAIN_ARENA, 0..50, 1);
    let reader = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    let other = platform.acquire(GPU).read(&buffer).try_now();
    check(&buffer);
    drop((reader, other));
}

#[test]
fn i11_a_writer_gets_no_fresh_binding_to_storage_that_others_read() {
    let platform = bound_pair(Concurrency::BimapRead);
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let reader = platform.acquire(CPU).read(&buffer.range(0..50)).try_now().unwrap();
    let writer = platform.acquire(GPU).read_write(&buffer.range(50..100)).try_now();
    assert!(matches!(writer, Err(AcquireError::Busy { .. })), "{writer:?}");
    drop(reader);
}

#[test]
fn i06_a_reader_gets_a_fresh_binding_to_storage_that_others_read() {
    let platform = bound_pair(Concurrency::BimapRead);
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let host = platform.acquire(CPU).read(&buffer.range(0..50)).try_now().unwrap();
    let gpu = platform.acquire(GPU).read(&buffer).try_now().unwrap();
    check(&buffer);
    assert_eq!(get(&gpu, &buffer, 0..100), bytes(1, 0..100));
    drop(host);
}

#[test]
fn i10_bindings_do_not_chain() {
    // The gpu's own storage; main memory binds to it; a second gpu would bind to main memory.
    let rig = Rig::new().gpu(Concurrency::BimapRead).gpu(Concurrency::BimapRead);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead).staged(MAIN_ARENA, GPU2_ARENA);
    let platform = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::BimapRead).build();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let grants = platform.acquire(GPU2).read(&buffer).try_now().unwrap();
    check(&buffer);
    assert_eq!(get(&grants, &buffer, 0..100), bytes(1, 0..100));
}

#[test]
fn i11_an_explicit_binding_leaves_the_users_of_the_group_alone() {
    let rig = Rig::new().gpu(Concurrency::BimapFull).gpu(Concurrency::BimapFull).gpu(Concurrency::Exclusive);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapFull);
    let rig = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::BimapFull);
    let platform = rig.bound(MAIN_ARENA, GPU3_ARENA, Concurrency::Exclusive).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    buffer.bind(GPU_ARENA, MAIN_ARENA).unwrap();
    buffer.bind(GPU2_ARENA, MAIN_ARENA).unwrap();
    let first = platform.acquire(GPU).read_write(&buffer.range(0..50)).try_now().unwrap();
    let second = platform.acquire(GPU2).read_write(&buffer.range(50..100)).try_now().unwrap();
    assert!(matches!(buffer.bind(GPU3_ARENA, MAIN_ARENA), Err(AcquireError::NotBindable { .. })));
    check(&buffer);
    drop((first, second));
}

#[test]
fn i06_an_explicit_binding_waits_for_a_root_being_prepared() {
    let platform = bound_pair(Concurrency::Exclusive);
    let routes = platform.routes();
    let mut state = BufferState::new(routes, 100, Initial::Undefined);
    let claims = Claims::new([Claim { span: Span::new(0, 100), access: Access::WriteInvalidate }]);
    let request =
        Request { kernel: KernelId(1), grant: OwnerId(1), arena: MAIN_ARENA, claims, is_submission: false };
    let Begin::Plan(plan) = state.begin(routes, &request) else { panic!("it has no storage") };
    let mut kernel = Execution::new(plan);
    let Next::Do(step) = kernel.next(&mut state) else { panic!("it has no storage") };
    kernel.report(routes, &mut state, step, Report::Done).unwrap();
    // The plan is done and its grant is not complete.
    if let Ok(plan) = state.bind(OwnerId(2), GPU_ARENA, MAIN_ARENA, Concurrency::Exclusive) {
        let mut binding = Execution::new(plan);
        let Next::Do(step) = binding.next(&mut state) else { panic!("it is to be bound") };
        binding.report(routes, &mut state, step, Report::Done).unwrap();
        let _ = binding.finish(routes, &mut state).unwrap();
    }
    let _ = kernel.finish(routes, &mut state).unwrap();
    assert_eq!(state.check_invariants(routes), Ok(()));
}

#[test]
fn a_pair_joined_by_a_binding_alone_gets_a_copy_as_well() {
    // Both ends have storage of their own: a binding no longer helps.
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let template = bound_pair(Concurrency::BimapFull);
    for arena in template.arenas() {
        builder.add_arena(arena.clone());
    }
    for (index, link) in template.links().iter().enumerate() {
        builder.add_link(*link, template.cross_arena(dml::core::LinkId(index as u16)).clone());
    }
    let platform = builder.build().unwrap();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..50, 1);
    write(&buffer, GPU_ARENA, 50..100, 2);
    assert_eq!(read(&buffer, MAIN_ARENA, 50..100), bytes(2, 50..100));
}

#[test]
fn i05_a_member_does_not_outlive_its_lost_root() {
    let rig = Rig::new().gpu(Concurrency::BimapRead).gpu(Concurrency::Exclusive);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead);
    let platform = rig.staged(MAIN_ARENA, GPU2_ARENA).build();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let reader = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    let _ = read(&buffer, GPU2_ARENA, 0..100);
    platform.device_lost(GPU);
    drop(reader);
    check(&buffer);
    // The second gpu has the contents: they come back into storage that is not on the lost device.
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), bytes(1, 0..100));
}

#[test]
fn i13_a_lost_arena_is_never_valid_again() {
    let platform = bound_pair(Concurrency::BimapFull);
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let _ = read(&buffer, GPU_ARENA, 0..100);
    platform.device_lost(GPU);
    change(&buffer, MAIN_ARENA, 0..100, 2);
    assert_eq!(segments(&buffer), [(0..100, arenas([MAIN_ARENA]), Status::Defined)]);
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
    // All three share one storage, and only one of them at a time has access.
    assert_eq!(segments(&buffer)[0].1, arenas([MAIN_ARENA]));
}

/// A reader in the second gpu is let in with a plan over two hops, and the device between them is lost before
/// it is carried out.
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
