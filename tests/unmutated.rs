//! Rules that the machine's other tests take for granted, each with a caller who would notice it gone.

#![cfg(not(dml_loom))]

use dml::arenas::Script;
use dml::arenas::faulty::{CallKind, Fault};
use dml::core::state::Status;
use dml::core::{AcquireError, BusyReason, Concurrency, EventKind, Region, TransferError, ViewError};
use dml_verify::{CPU, GPU, GPU_ARENA, MAIN_ARENA, Rig, arenas, bytes, pair, raw, read, segments, write};

#[test]
fn a_range_is_shown_with_its_buffer_and_its_elements() {
    let platform = pair();
    let buffer = platform.buffer::<u32>(24).build().unwrap();
    assert_eq!(format!("{:?}", buffer.range(3..7)), format!("{buffer:?}[3..7]"));
    assert_eq!(buffer.range(3..7).bytes(), 12..28);
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
    assert_eq!(told, Err(ViewError::NotHost { buffer: buffer.id() }));
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

/// A mechanism may see at its end that it could not copy. Nothing is valid then, and the same may be asked again.
#[test]
fn i02_a_copy_that_turns_out_infeasible_brings_nothing() {
    let script = Script::new().at_kind(CallKind::CopyIn, 1, Fault::FailInFence(TransferError::Infeasible));
    let rig = Rig::new().gpu_with(Concurrency::Exclusive, script);
    let platform = rig.staged(MAIN_ARENA, GPU_ARENA).build();
    let buffer = raw(&platform, 40);
    write(&buffer, MAIN_ARENA, 0..40, 1);
    let told = platform.acquire(GPU).read(&buffer).try_now().map(drop);
    assert_eq!(told, Err(AcquireError::Busy { buffer: buffer.name(), reason: BusyReason::ArenaInUse }));
    assert_eq!(segments(&buffer), [(0..40, arenas([MAIN_ARENA]), Status::Defined)]);
    assert_eq!(read(&buffer, GPU_ARENA, 0..40), bytes(1, 0..40));
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
