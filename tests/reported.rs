//! One test per fault that was found in core by reading it: each was red when it was written.

use dml::arenas::Script;
use dml::arenas::faulty::{CallKind, Fault};
use dml::core::state::{
    Begin, BufferState, Execution, Initial, Lifecycle, MapState, Next, Report, Request, Status,
};
use dml::core::{
    Access, AcquireError, ArenaId, BusyReason, Claim, Concurrency, DeviceDesc, DeviceKind, DeviceSet,
    EventKind, GrantId, KernelId, Platform, Span, normalise,
};
use dml_verify::{
    CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, GPU3_ARENA, MAIN_ARENA, Rig, arenas, bound_pair, byte_copies,
    bytes, change, check, copies, get, live_blocks, null, pair, poll_once, raw, read, segments, test_arena,
    watched, write,
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
    let claims = normalise([Claim { span: Span::new(0, 100), access: Access::WriteInvalidate }]);
    let request = Request { kernel: KernelId(1), grant: GrantId(1), arena: MAIN_ARENA, claims };
    let Begin::Plan(plan) = state.begin(routes, &request) else { panic!("it has no storage") };
    let mut kernel = Execution::new(plan);
    let Next::Do(step) = kernel.next(&mut state) else { panic!("it has no storage") };
    kernel.report(routes, &mut state, step, Report::Done).unwrap();
    // The plan is done and its grant is not complete.
    if let Ok(plan) = state.bind(GrantId(2), GPU_ARENA, MAIN_ARENA, Concurrency::Exclusive) {
        let mut binding = Execution::new(plan);
        let Next::Do(step) = binding.next(&mut state) else { panic!("it is to be bound") };
        binding.report(routes, &mut state, step, Report::Done).unwrap();
        let _ = binding.finish(routes, &mut state).unwrap();
    }
    let _ = kernel.finish(routes, &mut state).unwrap();
    assert_eq!(state.check_invariants(routes), Ok(()));
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
fn i06_a_plan_whose_arena_reports_less_access_than_planned_is_not_granted() {
    let mapped_only = MapState::Mapped(DeviceSet::of(CPU));
    let script = Script::new().at_kind(CallKind::Map, 1, Fault::Report(mapped_only));
    let platform = Rig::new().gpu_with(Concurrency::BimapFull, script).mapped(GPU_ARENA).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let grants = platform.acquire(GPU).read(&buffer).try_now();
    assert!(matches!(grants, Err(AcquireError::ArenaContract { .. })), "{grants:?}");
    assert_eq!(buffer.snapshot().lifecycle(), Lifecycle::Wedged);
}

#[test]
fn already_held_comes_before_the_queue() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let held = platform.acquire(CPU).kernel(KernelId(7)).read(&buffer).try_now().unwrap();
    let mut writer = platform.acquire(CPU).write(&buffer).into_future();
    assert!(poll_once(&mut writer).is_pending());
    // To wait behind the writer, who waits for this very kernel, would be to wait for ever.
    let mut again = platform.acquire(CPU).kernel(KernelId(7)).read(&buffer).into_future();
    let polled = poll_once(&mut again);
    assert!(matches!(polled, Poll::Ready(Err(AcquireError::AlreadyHeld { .. }))), "{polled:?}");
    drop(held);
}

#[test]
fn i15_a_future_that_failed_holds_nothing() {
    let platform = pair();
    let (written, never_written) = (raw(&platform, 100), raw(&platform, 100));
    write(&written, MAIN_ARENA, 0..100, 1);
    let mut both = platform.acquire(CPU).read(&written).read(&never_written).into_future();
    let polled = poll_once(&mut both);
    assert!(matches!(polled, Poll::Ready(Err(AcquireError::Uninitialized { .. }))), "{polled:?}");
    // The future is still there; what it had been granted is not.
    assert!(written.snapshot().requestors().is_empty());
    drop(both);
}

#[test]
fn l03_nobody_adds_users_to_an_arena_that_the_head_needs_idle() {
    // The host reaches the gpu by mapping alone; the second gpu copies from it without.
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    let platform = rig.mapped(GPU_ARENA).staged(GPU_ARENA, GPU2_ARENA).build();
    let buffer = raw(&platform, 300);
    write(&buffer, GPU_ARENA, 0..300, 1);
    let kernel = platform.acquire(GPU).read(&buffer.range(200..300)).try_now().unwrap();
    let mut head = platform.acquire(CPU).read(&buffer.range(0..100)).into_future();
    assert!(poll_once(&mut head).is_pending());
    let bypass = platform.acquire(GPU2).read(&buffer.range(100..200)).try_now();
    assert!(matches!(bypass, Err(AcquireError::Busy { reason: BusyReason::Queue, .. })), "{bypass:?}");
    drop(kernel);
}

#[test]
fn a_second_recording_outlives_the_first() {
    let platform = pair();
    let first = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let second = platform.record();
    drop(first);
    let _ = read(&buffer, MAIN_ARENA, 0..100);
    let events = second.finish();
    assert!(events.iter().any(|event| event.kind.is_reading_grant()), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event.kind, EventKind::Created { .. })));
}

#[test]
fn recordings_that_overlap_have_their_own_events() {
    let platform = pair();
    let first = platform.record();
    let buffer = raw(&platform, 100);
    let second = platform.record();
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let outer = first.finish();
    let _ = read(&buffer, GPU_ARENA, 0..100);
    let inner = second.finish();
    let kinds = |events: &[dml::core::Event]| -> Vec<EventKind> {
        events.iter().map(|event| event.kind.clone()).collect()
    };
    assert!(matches!(kinds(&outer)[0], EventKind::Created { .. }));
    // What both saw is the same; only the second saw the copy.
    assert_eq!(kinds(&outer)[1..], kinds(&inner)[..outer.len() - 1]);
    assert!(dml_verify::copies(&outer).is_empty() && dml_verify::copies(&inner).len() == 1);
}

#[test]
fn an_unknown_arena_is_an_error() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    for arena in [ArenaId(2), ArenaId(63), ArenaId(255)] {
        assert!(matches!(buffer.free(arena), Err(AcquireError::NoSuchArena { .. })));
        assert!(matches!(buffer.bind(arena, MAIN_ARENA), Err(AcquireError::NoSuchArena { .. })));
        assert!(matches!(buffer.bind(GPU_ARENA, arena), Err(AcquireError::NoSuchArena { .. })));
    }
}

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
    let platform = Rig::with_main(script).gpu(Concurrency::Exclusive).staged(MAIN_ARENA, GPU_ARENA).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let _ = read(&buffer, GPU_ARENA, 0..100);
    let grants = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    let closing = buffer.clone();
    let closer = watched("close()", move || closing.close());
    while buffer.snapshot().lifecycle() == Lifecycle::Open {
        std::thread::yield_now();
    }
    // Whoever releases last frees, and must not suffer for it.
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
fn i15_a_failed_allocation_leaves_no_storage() {
    let script = Script::new().at_kind(CallKind::Alloc, 1, Fault::Short(7));
    let platform = Rig::new().gpu_with(Concurrency::Exclusive, script).staged(MAIN_ARENA, GPU_ARENA).build();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let recording = platform.record();
    let refused = platform.acquire(GPU).read(&buffer).try_now();
    assert!(refused.is_err_and(|error| error.is_out_of_memory()));
    assert_eq!(copies(&recording.finish()), []);
    // A block that was made must go back through the arena, which may do more than drop it.
    assert_eq!(test_arena(&platform, GPU_ARENA).faulty().calls_of(CallKind::Free), 1);
    assert_eq!(null(&platform, GPU_ARENA).live_blocks(), 0);
}
