//! A device dies, and the application need not report it: when a call on its memory fails, every buffer knows
//! of the loss before the caller gets the error.

#![cfg(not(dml_loom))]

use dml::arenas::faulty::{CallKind, Fault};
use dml::arenas::{Faulty, Null, Script};
use dml::core::internal::sync::Arc;
use dml::core::{
    AcquireError, AllocError, Arena, ArenaDesc, ArenaKind, Concurrency, CopyIn, CopyOut, DeviceDesc,
    DeviceKind, DeviceSet, Fence, Fill, MapReport, MapRequest, NewBlock, Platform, RawBuffer, Span,
    TransferError, UnmapRequest,
    record::{Event, EventKind},
};
use dml_verify::{
    Audited, CPU, Death, GPU, GPU_ARENA, GPU2, GPU2_ARENA, MAIN_ARENA, Rig, bytes, change, check,
    mapped_pair, mortal, poll_once, put, raw, read, test_arena, watched, write,
};
use std::future::IntoFuture;
use std::task::Poll;

const LEN: u64 = 61;

/// Main memory and two devices, each joined to main memory by read and write calls.
fn star() -> Audited {
    dml_verify::star()
}

/// A buffer that no call touches while the device dies: the first half is valid in main memory too, the rest
/// only on the first device.
fn bystander(platform: &Platform) -> RawBuffer {
    let buffer = raw(platform, LEN);
    write(&buffer, MAIN_ARENA, 0..LEN, 7);
    write(&buffer, GPU_ARENA, 30..LEN, 8);
    let _ = read(&buffer, GPU_ARENA, 0..30);
    buffer
}

/// What everybody knows once the first device is gone.
fn everybody_knows(platform: &Platform, bystander: &RawBuffer) {
    assert_eq!(platform.lost_devices(), DeviceSet::of(GPU));
    assert!(platform.notice_losses().is_empty(), "a loss is new once");
    // The first half goes on.
    for arena in [MAIN_ARENA, GPU2_ARENA] {
        if usize::from(arena.0) < platform.arenas().len() {
            assert_eq!(read(bystander, arena, 0..30), bytes(7, 0..30));
        }
    }
    // The rest is gone, and says so until it is overwritten.
    let read_rest = platform.acquire(CPU).read(&bystander.range(25..LEN)).try_now();
    let Err(AcquireError::Poisoned { span, restorable: false, .. }) = read_rest else {
        panic!("{read_rest:?}")
    };
    assert_eq!(span, Span::new(30, LEN));
    assert_eq!(bystander.is_readable(0..30), Ok(true));
    assert_eq!(bystander.is_readable(29..31), Ok(false));
    write(bystander, MAIN_ARENA, 30..LEN, 9);
    assert_eq!(bystander.is_readable(0..LEN), Ok(true));
    // A buffer made now knows of it from the start.
    let later = raw(platform, LEN);
    let refused = platform.acquire(GPU).write(&later).try_now();
    assert!(matches!(refused, Err(AcquireError::DeviceLost { .. })), "{refused:?}");
    check(bystander);
}

fn lost_while(platform: &Audited, act: impl FnOnce() -> Result<(), AcquireError>) {
    let bystander = bystander(platform);
    test_arena(platform, GPU_ARENA).inner().die();
    let error = act().expect_err("its device is dead");
    assert!(error.is_device_lost(), "{error}");
    everybody_knows(platform, &bystander);
}

#[test]
fn i16_a_loss_met_by_an_allocation_is_known_to_all() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    lost_while(&platform, || platform.acquire(GPU).write(&buffer).try_now().map(drop));
    write(&buffer, GPU2_ARENA, 0..LEN, 1);
}

#[test]
fn i16_a_loss_met_by_a_binding_is_known_to_all() {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    let rig = rig.staged(MAIN_ARENA, GPU_ARENA).staged(MAIN_ARENA, GPU2_ARENA);
    let platform = rig.bound(GPU_ARENA, GPU2_ARENA, Concurrency::Exclusive).build();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU2_ARENA, 0..LEN, 1);
    // The pair binds both ways round, in the rig.
    lost_while(&platform, || buffer.bind(GPU_ARENA, GPU2_ARENA));
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(1, 0..LEN));
}

#[test]
fn i16_a_loss_met_by_a_copy_to_the_device_is_known_to_all() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..10, 1);
    write(&buffer, MAIN_ARENA, 0..LEN, 2);
    lost_while(&platform, || buffer.prefetch(GPU, 5..LEN).wait());
    assert_eq!(read(&buffer, GPU2_ARENA, 0..LEN), bytes(2, 0..LEN));
}

#[test]
fn i16_a_loss_met_by_a_copy_from_the_device_is_known_to_all() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    let region = buffer.range(3..40);
    lost_while(&platform, || platform.acquire(CPU).read(&region).try_now().map(drop));
    // The same request has the honest answer now.
    let again = platform.acquire(CPU).read(&region).try_now();
    assert!(matches!(again, Err(AcquireError::Poisoned { restorable: false, .. })), "{again:?}");
}

#[test]
fn i16_a_loss_met_by_a_fill_is_known_to_all() {
    let platform = star();
    let buffer = platform.raw_buffer(LEN).zeroed().build().unwrap();
    write(&buffer, GPU_ARENA, 0..1, 1);
    lost_while(&platform, || buffer.prefetch(GPU, 1..LEN).wait());
    assert_eq!(read(&buffer, GPU2_ARENA, 1..LEN), [0; LEN as usize - 1]);
}

#[test]
fn i16_a_loss_met_by_a_change_of_map_state_is_known_to_all() {
    let platform = mapped_pair(Concurrency::Exclusive);
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    lost_while(&platform, || platform.acquire(CPU).read(&buffer).try_now().map(drop));
    // And by one that takes the storage back.
    let platform = mapped_pair(Concurrency::Exclusive);
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    let _ = read(&buffer, MAIN_ARENA, 0..LEN);
    lost_while(&platform, || platform.acquire(GPU).read(&buffer).try_now().map(drop));
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(1, 0..LEN));
}

#[test]
fn i16_a_loss_met_while_a_copy_runs_is_known_to_all() {
    // Tried, waited for and awaited.
    for how in 0..3 {
        let platform = star();
        let bystander = bystander(&platform);
        let buffer = raw(&platform, LEN);
        write(&buffer, MAIN_ARENA, 0..LEN, 2);
        write(&buffer, GPU_ARENA, 0..1, 1);
        test_arena(&platform, GPU_ARENA).inner().die_at(Death::During(1));
        let range = buffer.range(1..LEN);
        let acquire = platform.acquire(GPU).read(&range);
        let failed = match how {
            0 => acquire.try_now(),
            1 => acquire.wait(),
            _ => match poll_once(&mut acquire.into_future()) {
                Poll::Ready(failed) => failed,
                Poll::Pending => panic!("its copies can only be waited for"),
            },
        };
        assert!(matches!(
            failed,
            Err(AcquireError::CopyFailed { cause: TransferError::DeviceLost { loss: None }, .. })
        ));
        everybody_knows(&platform, &bystander);
        assert_eq!(read(&buffer, GPU2_ARENA, 1..LEN), bytes(2, 1..LEN));
    }
}

#[test]
fn i16_a_loss_met_by_a_kernel_is_known_to_all_before_its_grants_end() {
    for waits in [true, false] {
        let platform = star();
        let bystander = bystander(&platform);
        let buffer = raw(&platform, LEN);
        write(&buffer, MAIN_ARENA, 0..LEN, 1);
        let mut grants = platform.acquire(GPU).read_write(&buffer).try_now().unwrap();
        put(&mut grants, &buffer, 0, &bytes(2, 0..9));
        let mut next = platform.acquire(GPU).write(&buffer).into_future();
        let mut elsewhere = platform.acquire(GPU2).write(&buffer.range(50..LEN)).into_future();
        assert!(poll_once(&mut next).is_pending() && poll_once(&mut elsewhere).is_pending());
        let platform_of_kernel = platform.clone();
        let kernel = Fence::running(move || {
            test_arena(&platform_of_kernel, GPU_ARENA).inner().die();
            Err(TransferError::DeviceLost { loss: None })
        });
        let running = grants.in_flight(kernel);
        if waits {
            assert_eq!(running.wait().map(drop), Err(TransferError::DeviceLost { loss: None }));
        } else {
            drop(running);
        }
        // Who waited for the dead device is told; who waited for another is let in.
        let told = poll_once(&mut next);
        assert!(matches!(told, Poll::Ready(Err(AcquireError::DeviceLost { .. }))), "{told:?}");
        assert!(matches!(poll_once(&mut elsewhere), Poll::Ready(Ok(_))));
        drop(elsewhere);
        everybody_knows(&platform, &bystander);
        // What the kernel was to change survives in main memory.
        buffer.restore(0..50).unwrap();
        assert_eq!(read(&buffer, GPU2_ARENA, 0..50), bytes(1, 0..50));
    }
}

#[test]
fn l04_who_waits_behind_a_request_that_meets_the_loss_is_told() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::CopyOut);
    let (theirs, copied) = (platform.clone(), buffer.clone());
    let reader = watched("the reader", move || theirs.acquire(CPU).read(&copied).wait().map(drop));
    gate.arrived();
    let (theirs, wanted) = (platform.clone(), buffer.clone());
    let writer = watched("the writer", move || theirs.acquire(GPU).read_write(&wanted).wait().map(drop));
    while buffer.snapshot().queue().len() == 0 {
        std::thread::yield_now();
    }
    test_arena(&platform, GPU_ARENA).inner().die();
    gate.open();
    assert!(reader.join().unwrap_err().is_device_lost());
    // It hears of the loss itself, not of a memory that fails it too.
    assert!(matches!(writer.join(), Err(AcquireError::DeviceLost { .. })));
    assert!(check(&buffer).is_idle());
}

#[test]
fn i15_a_request_whose_source_is_lost_finds_another_when_it_is_made_again() {
    // From the first device straight to the second, and from main memory at a higher price.
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    let rig = rig.staged(GPU_ARENA, GPU2_ARENA).staged(MAIN_ARENA, GPU_ARENA).staged(MAIN_ARENA, GPU2_ARENA);
    let platform = rig.build();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    let _ = read(&buffer, GPU2_ARENA, 0..LEN);
    write(&buffer, GPU_ARENA, 20..30, 2);
    let _ = read(&buffer, GPU2_ARENA, 0..LEN);
    test_arena(&platform, GPU_ARENA).inner().die();
    // Of two sources of equal price the smaller is asked first.
    let region = buffer.range(15..35);
    let failed = platform.acquire(CPU).read(&region).try_now();
    let Err(AcquireError::CopyFailed { from, cause: TransferError::DeviceLost { loss: None }, .. }) = failed
    else {
        panic!("{failed:?}")
    };
    assert_eq!(from.id, GPU_ARENA);
    let expected = [bytes(1, 15..20), bytes(2, 20..30), bytes(1, 30..35)].concat();
    assert_eq!(read(&buffer, MAIN_ARENA, 15..35), expected);
    change(&buffer, GPU2_ARENA, 0..LEN, 3);
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(3, 0..LEN));
}

#[test]
fn a_device_that_died_idle_is_noticed_when_somebody_asks() {
    let platform = star();
    let bystander = bystander(&platform);
    assert!(platform.notice_losses().is_empty() && platform.lost_devices().is_empty());
    let recording = platform.record();
    test_arena(&platform, GPU_ARENA).inner().die();
    assert_eq!(platform.notice_losses(), DeviceSet::of(GPU));
    everybody_knows(&platform, &bystander);
    platform.device_lost(GPU);
    let told =
        |event: &&Event| event.buffer == bystander.id() && matches!(event.kind, EventKind::DeviceLost { .. });
    assert_eq!(recording.finish().iter().filter(told).count(), 1, "a buffer is told once");
}

#[test]
fn an_arena_in_another_answers_for_both() {
    let desc = ArenaDesc::new("video", ArenaKind("test"), GPU);
    let arena = Faulty::new(mortal(Null::backed(desc)), Script::new());
    assert!(!arena.is_lost() && !arena.inner().inner().is_lost());
    arena.inner().die();
    assert!(arena.is_lost());
}

#[test]
fn a_failure_of_a_device_that_is_there_declares_nothing_lost() {
    // The arena has the last word: an error alone takes nothing away.
    let script = Script::new().at_kind(
        CallKind::CopyOut,
        1,
        Fault::FailInFence(TransferError::DeviceLost { loss: None }),
    );
    let rig = Rig::new().gpu_with(Concurrency::Exclusive, script).staged(MAIN_ARENA, GPU_ARENA);
    let platform = rig.build();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    assert!(platform.acquire(CPU).read(&buffer).try_now().unwrap_err().is_device_lost());
    assert!(platform.lost_devices().is_empty());
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(1, 0..LEN));
}

/// An arena that answers every call that its device is lost, and cannot even be asked whether it is.
#[derive(Debug)]
struct Speechless(Null);

impl Arena for Speechless {
    fn desc(&self) -> &ArenaDesc {
        self.0.desc()
    }

    fn alloc(&self, _: u64) -> Result<NewBlock, AllocError> {
        Err(AllocError::DeviceLost { arena: self.desc().name.clone(), loss: None })
    }

    fn map(&self, _: MapRequest<'_>) -> Result<MapReport, TransferError> {
        Err(TransferError::DeviceLost { loss: None })
    }

    fn unmap(&self, _: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        Err(TransferError::DeviceLost { loss: None })
    }

    fn copy_in(&self, _: CopyIn) -> Result<Fence, TransferError> {
        Err(TransferError::DeviceLost { loss: None })
    }

    fn copy_out(&self, _: CopyOut) -> Result<Fence, TransferError> {
        Err(TransferError::DeviceLost { loss: None })
    }

    fn fill(&self, _: Fill) -> Result<Fence, TransferError> {
        Err(TransferError::DeviceLost { loss: None })
    }

    fn is_lost(&self) -> bool {
        panic!("who knows")
    }
}

#[test]
fn a_panic_over_the_question_is_the_arenas_own() {
    let mut builder = Platform::builder();
    let gpu = builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let desc = ArenaDesc::new("video", ArenaKind("test"), gpu);
    let arena = builder.add_arena(Arc::new(Speechless(Null::backed(desc))));
    let platform = builder.build().unwrap();
    let buffer = raw(&platform, LEN);
    let failed = platform.acquire_in(arena).write(&buffer).try_now();
    assert!(
        matches!(&failed, Err(AcquireError::Alloc { cause, .. }) if cause.is_device_lost()),
        "{failed:?}"
    );
    assert!(platform.notice_losses().is_empty());
    assert!(check(&buffer).is_idle());
}

#[test]
fn losses_of_both_devices_are_noticed_together() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..20, 1);
    write(&buffer, GPU2_ARENA, 20..40, 2);
    write(&buffer, MAIN_ARENA, 40..LEN, 3);
    for arena in [GPU_ARENA, GPU2_ARENA] {
        test_arena(&platform, arena).inner().die();
    }
    assert!(platform.acquire(CPU).read(&buffer.range(0..5)).try_now().unwrap_err().is_device_lost());
    assert_eq!(platform.lost_devices(), DeviceSet::of(GPU).with(GPU2));
    let readable: Vec<_> =
        [0..20, 20..40, 40..LEN].into_iter().map(|range| buffer.is_readable(range)).collect();
    assert_eq!(readable, [Ok(false), Ok(false), Ok(true)]);
    assert!(matches!(buffer.is_readable(0..LEN + 1), Err(AcquireError::OutOfRange { .. })));
}

/// A device that has no memory here can be told of, once; a number that names nothing cannot.
#[test]
fn a_device_without_a_memory_is_lost_and_no_device_is_not() {
    let mut builder = Platform::builder();
    for name in ["cpu", "gpu", "bare"] {
        builder
            .add_device(DeviceDesc::new(name, if name == "cpu" { DeviceKind::Cpu } else { DeviceKind::Gpu }));
    }
    for (name, device) in [("main", CPU), ("memory", GPU)] {
        builder.add_arena(Arc::new(Null::new(ArenaDesc::new(name, ArenaKind("test"), device))));
    }
    let platform = builder.build().unwrap();
    let bare = dml::core::DeviceId(2);
    for nobody in [3, 4, 63] {
        platform.device_lost(dml::core::DeviceId(nobody));
        assert!(platform.lost_devices().is_empty(), "device {nobody}");
    }
    platform.device_lost(bare);
    assert_eq!(platform.lost_devices(), DeviceSet::of(bare));
}
