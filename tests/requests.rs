//! What a caller may ask for, what it is told otherwise, and what it sees of what it was granted.

#![cfg(not(dml_loom))]

use dml::arenas::Script;
use dml::arenas::faulty::{CallKind, Fault};
use dml::core::internal::state::{Lifecycle, MapState, Status};
use dml::core::{
    Access, AcquireError, ArenaId, BusyReason, Concurrency, ConfigError, DeviceId, DeviceSet, KernelId,
    LinkId, RawBuffer, Region, Span, TopologyError, TransferError, ViewError, record::EventKind,
};
use dml_verify::{
    CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, MAIN_ARENA, Place, Rig, arenas, bytes, change, check, copies, get,
    null, pair, poll_once, put, raw, read, segments, star, test_arena, watched, write,
};
use std::future::IntoFuture;
use std::task::Poll;

fn written(platform: &dml::core::Platform, seed: u64) -> RawBuffer {
    let buffer = raw(platform, 96);
    write(&buffer, MAIN_ARENA, 0..96, seed);
    buffer
}

#[test]
fn i01_a_kernel_does_not_come_in_twice() {
    let platform = star();
    let buffer = written(&platform, 1);
    let me = KernelId(42);
    let held = platform.acquire(CPU).kernel(me).read(&buffer.range(10..20)).try_now().unwrap();
    for (device, access) in
        [(CPU, Access::ReadOnly), (GPU, Access::ReadWrite), (CPU, Access::WriteInvalidate)]
    {
        let region = buffer.range(19..30);
        let again = platform.acquire(device).kernel(me).access(&region, access);
        let told = again.try_now();
        let expected =
            AcquireError::AlreadyHeld { buffer: buffer.name(), kernel: me, span: Span::new(19, 20) };
        assert_eq!(told.map(drop), Err(expected));
    }
    // Waiting for oneself would be for ever: another thread, another order, the same answer.
    let other = buffer.clone();
    let told = watched("a kernel that waits for itself", move || {
        other.platform().acquire(CPU).kernel(me).write(&other).wait().map(drop)
    });
    assert!(matches!(told.join(), Err(AcquireError::AlreadyHeld { .. })));
    // Beside what it has it may have more, and others may read what it reads.
    let beside = platform.acquire(CPU).kernel(me).write(&buffer.range(20..30)).try_now().unwrap();
    let reader = platform.acquire(GPU).kernel(KernelId(43)).read(&buffer.range(10..20)).try_now().unwrap();
    drop((held, beside, reader));
}

#[test]
fn ranges_are_checked_before_anything_is_acquired() {
    let platform = pair();
    let (first, second) = (written(&platform, 1), written(&platform, 2));
    for (start, end) in [(0, 97), (97, 97), (5, 4), (u64::MAX, u64::MAX), (0, u64::MAX)] {
        let told = platform.acquire(GPU).read(&first).write(&second.range(start..end)).try_now();
        let expected = AcquireError::OutOfRange { buffer: second.name(), start, end, len: 96 };
        assert_eq!(told.map(drop), Err(expected.clone()));
        assert_eq!(second.prefetch(GPU, start..end).wait(), Err(expected.clone()));
        assert_eq!(second.restore(start..end), Err(expected));
    }
    // A range of elements that overflows in bytes lies outside as well.
    let typed = platform.buffer::<u32>(24).build().unwrap();
    for elements in [0..25, 0..u64::MAX / 2, u64::MAX / 4..u64::MAX / 4 + 2] {
        let told = platform.acquire(CPU).write(&typed.range(elements)).try_now();
        assert!(matches!(told, Err(AcquireError::OutOfRange { .. })), "{told:?}");
    }
    assert!(check(&first).requestors().is_empty());
}

#[test]
fn a_buffer_of_another_platform_is_refused() {
    let (here, there) = (pair(), pair());
    let foreign = written(&there, 1);
    let told = here.acquire(CPU).read(&foreign).try_now();
    assert_eq!(told.map(drop), Err(AcquireError::ForeignBuffer { buffer: foreign.name() }));
    let told = here.acquire(DeviceId(9)).read(&foreign).try_now();
    assert_eq!(told.map(drop), Err(AcquireError::NoArena { device: DeviceId(9) }));
}

#[test]
fn buffers_that_cannot_be_are_refused() {
    let platform = pair();
    for len in [u64::MAX, 1 << 63] {
        assert!(matches!(platform.raw_buffer(len).build(), Err(ConfigError::TooLarge { .. })));
    }
    assert!(matches!(platform.buffer::<u64>(1 << 60).build(), Err(ConfigError::TooLarge { .. })));
    assert!(matches!(platform.buffer::<u64>(u64::MAX).build(), Err(ConfigError::TooLarge { .. })));
    assert!(matches!(platform.buffer::<()>(3).build(), Err(ConfigError::ZeroSized)));
    let refused = platform.buffer_from(vec![(); 3]).unwrap_err();
    assert_eq!((refused.cause, refused.storage.len()), (ConfigError::ZeroSized, 3));
}

#[test]
fn l01_waiting_against_the_order_is_refused_and_trying_is_not() {
    let platform = star();
    let (low, high) = (written(&platform, 1), written(&platform, 2));
    let held = platform.acquire(CPU).read(&high.range(0..1)).wait().unwrap();
    // Writers that no thread holds are in the way of both.
    let writer = |buffer: &RawBuffer, range| {
        platform.acquire(GPU).write(&buffer.range(range)).wait().unwrap().hand_over()
    };
    let in_the_way = (writer(&low, 0..1), writer(&high, 1..2));
    let expected = AcquireError::OrderViolation { buffer: low.name(), held: high.name() };
    let ask = || platform.acquire(GPU).read(&low);
    assert_eq!(ask().wait().map(drop), Err(expected.clone()));
    assert_eq!(ask().wait_timeout(std::time::Duration::MAX).map(drop), Err(expected));
    assert!(ask().try_now().is_err_and(|error| error.is_busy()));
    // The same buffer counts too: the holder of another range of it may be waiting for this thread.
    let same = platform.acquire(CPU).read(&high.range(1..2)).wait();
    assert!(matches!(same, Err(AcquireError::OrderViolation { .. })), "{same:?}");
    // A future is not checked.
    let mut future = ask().into_future();
    assert!(poll_once(&mut future).is_pending());
    drop(in_the_way);
    assert!(matches!(poll_once(&mut future), Poll::Ready(Ok(_))));
    // Without a conflict the requests need not wait, so their order does not matter.
    let again = platform.acquire(CPU).read(&high.range(0..9)).wait().unwrap();
    let first = ask().wait().unwrap();
    drop((again, first));
    // What another thread has released for this one does not count.
    let in_the_way = writer(&low, 0..1);
    std::thread::spawn(move || drop(held)).join().unwrap();
    let told = ask().wait_timeout(std::time::Duration::ZERO);
    assert!(matches!(told, Err(AcquireError::Timeout { .. })), "{told:?}");
    drop(in_the_way);
}

#[test]
fn l02_trying_is_all_or_nothing_and_names_the_busy_buffer() {
    let platform = star();
    let buffers = [written(&platform, 1), written(&platform, 2), written(&platform, 3)];
    let writer = platform.acquire(GPU).write(&buffers[1].range(95..96)).try_now().unwrap();
    let [a, b, c] = &buffers;
    let told = platform.acquire(CPU).write(c).read(b).read_write(a).try_now();
    let expected = AcquireError::Busy { buffer: b.name(), reason: BusyReason::Conflict };
    assert!(told.as_ref().is_err_and(AcquireError::is_busy));
    assert_eq!(told.map(drop), Err(expected));
    assert!(check(a).requestors().is_empty() && check(c).requestors().is_empty());
    assert_eq!(read(a, GPU_ARENA, 0..96), bytes(1, 0..96));
    drop(writer);
    let all = platform.acquire(CPU).write(c).read(b).read_write(a).try_now().unwrap();
    assert!(buffers.iter().all(|buffer| check(buffer).requestors().len() == 1));
    drop(all);
}

#[test]
fn i04_a_byte_named_for_reading_and_for_overwriting_is_brought() {
    let platform = pair();
    let recording = platform.record();
    let buffer = written(&platform, 1);
    let (reads, writes) = (buffer.range(10..41), buffer.range(31..60));
    let mut kernel = platform.acquire(GPU).write(&writes).read(&reads).try_now().unwrap();
    assert_eq!(get(&kernel, &buffer, 10..41), bytes(1, 10..41));
    let accesses: Vec<_> = check(&buffer).requestors()[0]
        .claims
        .iter()
        .map(|claim| (claim.span.to_range(), claim.access))
        .collect();
    let expected =
        [(10..31, Access::ReadOnly), (31..41, Access::ReadWrite), (41..60, Access::WriteInvalidate)];
    assert_eq!(accesses, expected);
    put(&mut kernel, &buffer, 31, &bytes(2, 31..60));
    kernel.release().unwrap();
    let brought: Vec<_> = copies(&recording.finish()).into_iter().map(|(_, _, range)| range).collect();
    assert_eq!(brought.iter().map(|range| range.end - range.start).sum::<u64>(), 31, "{brought:?}");
    let whole = [bytes(1, 0..31), bytes(2, 31..60), bytes(1, 60..96)].concat();
    assert_eq!(read(&buffer, MAIN_ARENA, 0..96), whole);
}

#[test]
fn views_are_in_the_order_in_which_they_were_asked_for() {
    let platform = pair();
    let (a, b) = (written(&platform, 1), written(&platform, 2));
    let (first, second, third) = (b.range(8..24), a.range(3..19), b.range(40..41));
    let asked = platform.acquire(CPU).write(&first).read(&second).read(&third);
    let mut kernel = asked.try_now().unwrap();
    let mut views = kernel.views().unwrap();
    let spans: Vec<_> = views.iter().map(|view| view.span().to_range()).collect();
    assert_eq!(spans, [8..24, 3..19, 40..41]);
    let [target, source, last] = &mut views[..] else { unreachable!("three were asked for") };
    target.slice_mut::<u8>().unwrap().copy_from_slice(source.slice::<u8>().unwrap());
    assert_eq!(last.slice::<u8>().unwrap(), bytes(2, 40..41));
    assert_eq!(
        last.slice_mut::<u8>().unwrap_err(),
        ViewError::NotWritable { buffer: b.name(), span: Span::new(40, 41) }
    );
    drop(views);
    kernel.release().unwrap();
    assert_eq!(read(&b, GPU_ARENA, 8..24), bytes(1, 3..19));
}

#[test]
fn i01_views_that_would_alias_are_refused() {
    let platform = pair();
    let buffer = written(&platform, 1);
    let both = |first: Access, second: Access| {
        let asked = platform.acquire(CPU).access_range(&buffer, 0..20, first);
        let mut kernel = asked.access_range(&buffer, 12..30, second).try_now().unwrap();
        kernel.views().map(|views| views.len())
    };
    let aliased = Err(ViewError::Aliased { buffer: buffer.name(), span: Span::new(12, 20) });
    assert_eq!(both(Access::ReadOnly, Access::ReadOnly), Ok(2));
    assert_eq!(both(Access::ReadOnly, Access::WriteInvalidate), aliased.clone());
    assert_eq!(both(Access::ReadWrite, Access::ReadOnly), aliased.clone());
    assert_eq!(both(Access::WriteInvalidate, Access::WriteInvalidate), aliased);
}

#[test]
fn slices_are_of_granted_aligned_whole_elements() {
    let platform = pair();
    let (buffer, other) = (written(&platform, 1), written(&platform, 2));
    let name = buffer.name();
    let (reads, writes) = (buffer.range(0..32), buffer.range(32..64));
    let mut kernel = platform.acquire(CPU).read(&reads).read_write(&writes).try_now().unwrap();
    // What was granted in pieces is seen in one.
    assert_eq!(kernel.slice::<u8>(&buffer.range(5..60)).unwrap(), bytes(1, 5..60));
    assert_eq!(kernel.slice::<u64>(&buffer.range(8..40)).unwrap().len(), 4);
    assert_eq!(kernel.slice::<u8>(&buffer.range(64..64)).unwrap(), [0u8; 0]);
    let size = ViewError::Size { buffer: name.clone(), span: Span::new(8, 38), element_bytes: 8 };
    assert_eq!(kernel.slice::<u64>(&buffer.range(8..38)).unwrap_err(), size);
    let align = ViewError::Alignment { buffer: name.clone(), span: Span::new(4, 12), element_align: 8 };
    assert_eq!(kernel.slice::<u64>(&buffer.range(4..12)).unwrap_err(), align);
    let zero = ViewError::Size { buffer: name.clone(), span: Span::new(0, 8), element_bytes: 0 };
    assert_eq!(kernel.slice::<()>(&buffer.range(0..8)).unwrap_err(), zero);
    let outside = |start, end| ViewError::OutsideGrant { buffer: name.clone(), start, end };
    assert_eq!(kernel.slice::<u8>(&buffer).unwrap_err(), outside(0, 96));
    assert_eq!(kernel.slice::<u8>(&buffer.range(63..65)).unwrap_err(), outside(63, 65));
    let past = kernel.slice::<u8>(&buffer.range(1..97)).unwrap_err();
    assert_eq!(past, outside(1, 97));
    assert!(past.to_string().contains("bytes 1..97 were not granted"), "{past}");
    let (late, early) = (9, 8);
    assert_eq!(kernel.slice::<u8>(&buffer.range(late..early)).unwrap_err(), outside(9, 8));
    let short = kernel.write_bytes(&writes, &bytes(3, 0..31)).unwrap_err();
    let cause = ViewError::Length { buffer: name.clone(), span: Span::new(32, 64), given_bytes: 31 };
    assert_eq!(short, AcquireError::View { buffer: name.clone(), cause });
    assert!(short.to_string().contains("bytes 32..64 take 32 bytes, and 31 were given"), "{short}");
    assert_eq!(kernel.slice::<u8>(&other).unwrap_err(), ViewError::NotGranted { buffer: other.name() });
    let fixed = ViewError::NotWritable { buffer: name.clone(), span: Span::new(31, 33) };
    assert_eq!(kernel.slice_mut::<u8>(&buffer.range(31..33)).unwrap_err(), fixed);
    kernel.slice_mut::<u16>(&writes).unwrap()[3] = 0xABCD;
    assert_eq!(kernel.slice::<u16>(&buffer.range(38..40)).unwrap(), [0xABCD]);
    kernel.release().unwrap();
    let far = platform.acquire(GPU).read(&buffer).try_now().unwrap();
    assert_eq!(far.slice::<u8>(&buffer).unwrap_err(), ViewError::NotHost { buffer: name.clone() });
    assert_eq!(far.slice::<u8>(&buffer.range(7..7)).unwrap(), [0u8; 0]);
}

#[test]
fn views_of_a_device_are_refused() {
    let platform = pair();
    let buffer = written(&platform, 1);
    let mut far = platform.acquire(GPU).read(&buffer).read(&buffer.range(3..3)).try_now().unwrap();
    assert_eq!(far.views().unwrap_err(), ViewError::NotHost { buffer: buffer.name() });
    drop(far);
    // A region names bytes and keeps no access.
    let region = buffer.range(3..9);
    assert_eq!((region.bytes(), region.buffer().id()), (3..9, buffer.id()));
    change(&buffer, GPU_ARENA, 3..9, 2);
}

#[test]
fn typed_views_commit_when_they_are_released() {
    let platform = pair();
    let buffer = platform.buffer::<[u8; 3]>(11).build().unwrap();
    let write = || {
        let mut view = buffer.write().unwrap();
        view.iter_mut().zip(0..).for_each(|(element, i)| *element = [i, i + 1, i + 2]);
        view
    };
    drop(write());
    assert!(matches!(buffer.read().map(drop), Err(AcquireError::Poisoned { restorable: false, .. })));
    write().release().unwrap();
    assert_eq!(read(buffer.raw(), GPU_ARENA, 30..33), [10, 11, 12]);
    change(buffer.raw(), GPU_ARENA, 3..6, 1);
    let mut view = buffer.read_write().unwrap();
    assert_eq!(view[1], bytes(1, 3..6)[..]);
    view[0] = [7; 3];
    view.release().unwrap();
    assert_eq!(buffer.read().unwrap()[..2], [[7; 3], bytes(1, 3..6).try_into().unwrap()]);
}

#[test]
fn i19_a_binding_wider_than_one_of_its_arenas_is_refused() {
    for (own, link) in [
        (Concurrency::Exclusive, Concurrency::BimapRead),
        (Concurrency::Exclusive, Concurrency::BimapFull),
        (Concurrency::BimapRead, Concurrency::BimapFull),
    ] {
        let refused = Rig::new().gpu(own).bound(MAIN_ARENA, GPU_ARENA, link).try_plain();
        let Err(ConfigError::Topology(problems)) = refused else { panic!("{own:?} as {link:?}") };
        // Once for each direction.
        assert_eq!(problems.len(), 2);
        for problem in &problems {
            let TopologyError::WiderBinding { arena, own: theirs, link: of_link, .. } = problem else {
                panic!("{problem}")
            };
            assert_eq!((&**arena, *theirs, *of_link), ("gpu1", own, link));
        }
        assert!(Rig::new().gpu(link).bound(MAIN_ARENA, GPU_ARENA, own).try_plain().is_ok());
    }
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
    // Waiting behind the writer would be a deadlock: the writer waits for this very kernel.
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
    assert_eq!(test_arena(&platform, GPU_ARENA).inner().inner().calls_of(CallKind::Free), 1);
    assert_eq!(null(&platform, GPU_ARENA).live_blocks(), 0);
}

#[test]
fn a_mechanism_that_refuses_what_it_offered_is_busy_and_leaves_nothing() {
    let script = Script::new().at(1, Fault::Fail(TransferError::Infeasible));
    let rig = Rig::new().gpu(Concurrency::Exclusive).scripted(Place::Link(LinkId(0)), script);
    let platform = rig.staged(MAIN_ARENA, GPU_ARENA).build();
    let buffer = raw(&platform, 50);
    write(&buffer, MAIN_ARENA, 0..50, 1);
    let refused = platform.acquire_in(GPU_ARENA).read(&buffer).try_now();
    assert!(matches!(refused, Err(AcquireError::Busy { .. })), "{refused:?}");
    assert_eq!(segments(&buffer), [(0..50, arenas([MAIN_ARENA]), Status::Defined)]);
    assert_eq!(read(&buffer, GPU_ARENA, 0..50), bytes(1, 0..50));
}

#[test]
fn a_range_is_shown_with_its_buffer_and_its_elements() {
    let platform = pair();
    let buffer = platform.buffer::<u32>(24).build().unwrap();
    assert_eq!(format!("{:?}", buffer.range(3..7)), format!("{buffer:?}[3..7]"));
    assert_eq!(format!("{buffer:?}"), format!("{} (24 x u32)", buffer.raw().id()));
    assert_eq!(buffer.range(3..7).bytes(), 12..28);
}

#[test]
fn a_buffer_says_how_long_and_whose_it_is() {
    let (platform, other) = (pair(), pair());
    for elements in [0, 1, 7] {
        let buffer = platform.buffer::<u32>(elements).build().unwrap();
        assert_eq!((buffer.len(), buffer.is_empty()), (elements, elements == 0));
        assert_eq!((buffer.raw().len(), buffer.raw().is_empty()), (4 * elements, elements == 0));
        assert_eq!(buffer.range(0..elements).elements(), 0..elements);
        assert!(platform.owns(buffer.raw()) && !other.owns(buffer.raw()));
    }
    assert_eq!(platform.buffer::<u32>(9).build().unwrap().range(3..8).elements(), 3..8);
}

#[test]
fn a_kernel_gets_the_frameworks_own_handle() {
    let platform = pair();
    let buffer = raw(&platform, 40);
    let grants = platform.acquire_in(GPU_ARENA).write(&buffer).try_now().unwrap();
    let block = grants.block(&buffer).unwrap().expect("bytes were asked for");
    assert_eq!(grants.native(&buffer).unwrap(), Some(block.native()));
    grants.release().unwrap();
    // No bytes, no storage.
    let nothing = platform.acquire_in(GPU_ARENA).read(&buffer.range(7..7)).try_now().unwrap();
    assert_eq!(nothing.native(&buffer).unwrap(), None);
}

#[test]
fn what_is_not_on_the_host_cannot_be_seen_there_unless_it_is_nothing() {
    let platform = pair();
    let buffer = raw(&platform, 40);
    write(&buffer, MAIN_ARENA, 0..40, 1);
    let mut there = platform.acquire(GPU).read(&buffer.range(5..9)).try_now().unwrap();
    let told = there.views().map(drop);
    assert_eq!(told, Err(ViewError::NotHost { buffer: buffer.name() }));
    drop(there);
    let mut nothing = platform.acquire(GPU).read(&buffer.range(5..5)).try_now().unwrap();
    let views = nothing.views().unwrap();
    assert!(views[0].slice::<u32>().unwrap().is_empty());
}

/// No bytes have no alignment either.
#[test]
fn nothing_is_aligned_for_everything() {
    let platform = pair();
    let buffer = raw(&platform, 40);
    write(&buffer, MAIN_ARENA, 0..40, 1);
    let (some, none, odd) = (buffer.range(8..16), buffer.range(21..21), buffer.range(25..29));
    let mut grants = platform.acquire(CPU).read(&some).write(&none).read(&odd).try_now().unwrap();
    let mut views = grants.views().unwrap();
    assert_eq!(bytemuck::cast_slice::<u32, u8>(views[0].slice().unwrap()), bytes(1, 8..16));
    assert!(views[1].slice::<u32>().unwrap().is_empty());
    assert!(views[1].slice_mut::<u32>().unwrap().is_empty());
    assert!(matches!(views[2].slice::<u32>(), Err(ViewError::Alignment { .. })));
    drop(views);
    assert!(grants.slice::<u32>(&none).unwrap().is_empty());
}

#[test]
fn grants_that_are_dropped_go_in_the_reverse_of_the_order_in_which_they_came() {
    let platform = pair();
    let (first, second) = (raw(&platform, 16), raw(&platform, 16));
    let recording = platform.record();
    drop(platform.acquire(CPU).write(&second).write(&first).try_now().unwrap());
    let events = recording.finish();
    let went = |wanted: fn(&EventKind) -> bool| {
        events.iter().filter(|event| wanted(&event.kind)).map(|event| event.buffer).collect::<Vec<_>>()
    };
    assert_eq!(went(|kind| matches!(kind, EventKind::Granted { .. })), [first.id(), second.id()]);
    assert_eq!(went(|kind| matches!(kind, EventKind::Released { .. })), [second.id(), first.id()]);
}

/// A mechanism may reject a copy when it begins or when it ends. Nothing is valid then, and the same request
/// may be made again.
#[test]
fn i02_a_copy_that_turns_out_infeasible_brings_nothing() {
    for fault in [Fault::Fail, Fault::FailInFence] {
        let script = Script::new().at_kind(CallKind::CopyIn, 1, fault(TransferError::Infeasible));
        let rig = Rig::new().gpu_with(Concurrency::Exclusive, script);
        let platform = rig.staged(MAIN_ARENA, GPU_ARENA).build();
        let buffer = raw(&platform, 40);
        write(&buffer, MAIN_ARENA, 0..40, 1);
        let told = platform.acquire(GPU).read(&buffer).try_now().map(drop);
        let busy = AcquireError::Busy { buffer: buffer.name(), reason: BusyReason::ArenaInUse };
        assert_eq!(told, Err(busy));
        assert_eq!(segments(&buffer), [(0..40, arenas([MAIN_ARENA]), Status::Defined)]);
        assert_eq!(read(&buffer, GPU_ARENA, 0..40), bytes(1, 0..40));
    }
}

#[test]
fn the_end_of_a_view_says_what_became_of_it() {
    let platform = pair();
    let buffer = platform.buffer::<u32>(4).build().unwrap();
    let mut view = buffer.write().unwrap();
    view.copy_from_slice(&[1, 2, 3, 4]);
    platform.device_lost(CPU);
    assert!(matches!(view.release(), Err(AcquireError::DeviceLost { .. })));
}

#[test]
fn bytes_of_a_device_are_copied_into_granted_bytes_of_the_host() {
    let platform = pair();
    let (buffer, target) = (written(&platform, 1), written(&platform, 2));
    let (from, to) = (buffer.range(3..20), target.range(40..57));
    let far = platform.acquire(GPU).read(&from).try_now().unwrap();
    let mut near = platform.acquire(CPU).read(&target.range(0..40)).write(&to).try_now().unwrap();
    let view = |of: &RawBuffer, cause| AcquireError::View { buffer: of.name(), cause };
    let not_granted = ViewError::NotGranted { buffer: target.name() };
    assert_eq!(far.read_bytes_to(&target, &mut near, &to).unwrap_err(), view(&target, not_granted));
    let outside = ViewError::OutsideGrant { buffer: buffer.name(), start: 2, end: 19 };
    let wider = far.read_bytes_to(&buffer.range(2..19), &mut near, &to).unwrap_err();
    assert_eq!(wider, view(&buffer, outside));
    let not_granted = ViewError::NotGranted { buffer: buffer.name() };
    assert_eq!(far.read_bytes_to(&from, &mut near, &from).unwrap_err(), view(&buffer, not_granted));
    let outside = ViewError::OutsideGrant { buffer: target.name(), start: 41, end: 58 };
    let wider = far.read_bytes_to(&from, &mut near, &target.range(41..58)).unwrap_err();
    assert_eq!(wider, view(&target, outside));
    let fixed = ViewError::NotWritable { buffer: target.name(), span: Span::new(39, 56) };
    assert_eq!(far.read_bytes_to(&from, &mut near, &target.range(39..56)).unwrap_err(), view(&target, fixed));
    let span = Span::new(40, 56);
    let length = ViewError::Length { buffer: target.name(), span, given_bytes: 17 };
    assert_eq!(
        far.read_bytes_to(&from, &mut near, &target.range(40..56)).unwrap_err(),
        view(&target, length)
    );
    let mut device = platform.acquire(GPU).write(&target.range(60..77)).try_now().unwrap();
    let not_host = ViewError::NotHost { buffer: target.name() };
    assert_eq!(
        far.read_bytes_to(&from, &mut device, &target.range(60..77)).unwrap_err(),
        view(&target, not_host)
    );
    device.not_started().unwrap();
    // Nothing was written so far, and what is copied is all that is.
    far.read_bytes_to(&from, &mut near, &to).unwrap();
    far.read_bytes_to(&buffer.range(9..9), &mut near, &target.range(50..50)).unwrap();
    assert_eq!(near.slice::<u8>(&to).unwrap(), bytes(1, 3..20));
    near.release().unwrap();
    far.release().unwrap();
    let near = platform.acquire(CPU).read(&target).try_now().unwrap();
    let expected = [bytes(2, 0..40), bytes(1, 3..20), bytes(2, 57..96)].concat();
    assert_eq!(near.slice::<u8>(&target).unwrap(), expected);
}

#[test]
fn the_arenas_that_hold_the_latest_contents_are_named_part_by_part() {
    let platform = pair();
    let buffer = raw(&platform, 40);
    write(&buffer, MAIN_ARENA, 0..16, 1);
    write(&buffer, GPU_ARENA, 16..24, 2);
    let valid_in = |bytes| {
        let mut parts = Vec::new();
        buffer.valid_in(bytes, |len, valid| parts.push((len, valid)));
        parts
    };
    let (main, gpu, none) = (arenas([MAIN_ARENA]), arenas([GPU_ARENA]), arenas([]));
    assert_eq!(valid_in(0..40), [(16, main), (8, gpu), (16, none)]);
    assert_eq!(valid_in(10..20), [(6, main), (4, gpu)]);
    assert_eq!(valid_in(20..900), [(4, gpu), (16, none)]);
    assert_eq!(valid_in(40..50), []);
}
