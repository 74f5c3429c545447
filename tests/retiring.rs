//! Arenas that will not be used any more: their storage goes as soon as it can, and nothing is lost (I-28).

#![cfg(not(dml_loom))]

use dml::arenas::faulty::CallKind;
use dml::core::{AcquireError, ArenaId, Concurrency, FreeRefusal, RawBuffer, record::EventKind};
use dml_verify::{
    CPU, GPU, GPU_ARENA, GPU2_ARENA, MAIN_ARENA, bound_pair, byte_copies, bytes, check, live_blocks, pair,
    put, raw, read, star, test_arena, watched, write,
};

const LEN: u64 = 100;

fn has_storage(buffer: &RawBuffer, arena: ArenaId) -> bool {
    check(buffer).arena(arena).alloc.is_allocated()
}

#[test]
fn i28_storage_that_nobody_uses_goes_in_the_call() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(1, 0..LEN));
    let before = byte_copies(&platform);
    buffer.will_not_use(GPU_ARENA).unwrap();
    assert!(!has_storage(&buffer, GPU_ARENA));
    assert_eq!(live_blocks(&platform), 1);
    for _ in 0..2 {
        buffer.will_not_use(GPU_ARENA).expect("to say it again changes nothing");
        buffer.will_not_use(GPU2_ARENA).expect("there was never anything");
    }
    assert_eq!(byte_copies(&platform), before, "the contents were elsewhere already");
    // The next acquire there finds all bytes.
    assert_eq!(read(&buffer, GPU_ARENA, 0..LEN), bytes(1, 0..LEN));
    assert!(has_storage(&buffer, GPU_ARENA), "the word holds until the next acquire");
}

#[test]
fn i28_the_only_copy_is_brought_to_main_memory_first() {
    let platform = star();
    let buffer = platform.buffer::<u32>(25).build().unwrap();
    write(buffer.raw(), GPU_ARENA, 0..60, 1);
    write(buffer.raw(), GPU2_ARENA, 60..LEN, 2);
    let before = platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum::<u64>();
    buffer.will_not_use(GPU_ARENA).unwrap();
    let after = platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum::<u64>();
    assert_eq!(after - before, 60, "what others have is not brought");
    assert!(!has_storage(buffer.raw(), GPU_ARENA));
    assert_eq!(read(buffer.raw(), MAIN_ARENA, 0..60), bytes(1, 0..60));
    assert_eq!(read(buffer.raw(), GPU2_ARENA, 60..LEN), bytes(2, 60..LEN));
}

#[test]
fn i28_a_kernel_keeps_its_storage_until_its_bytes_are_elsewhere() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    let mut writer = platform.acquire(GPU).write(&buffer).try_now().unwrap();
    buffer.will_not_use(GPU_ARENA).expect("the kernel goes on");
    buffer.will_not_use(GPU_ARENA).expect("and may be told twice");
    put(&mut writer, &buffer, 0, &bytes(3, 0..LEN));
    writer.release().unwrap();
    assert!(has_storage(&buffer, GPU_ARENA), "it has the only copy");
    assert_eq!(read(&buffer, GPU2_ARENA, 0..40), bytes(3, 0..40));
    assert!(has_storage(&buffer, GPU_ARENA), "it still has the only copy of the rest");
    // The reader's copy passes through main memory, so these bytes are elsewhere now, and the rest is
    // overwritten.
    write(&buffer, MAIN_ARENA, 40..LEN, 4);
    assert!(!has_storage(&buffer, GPU_ARENA));
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), [bytes(3, 0..40), bytes(4, 40..LEN)].concat());
}

#[test]
fn i28_a_reader_keeps_its_bytes_until_its_release() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, MAIN_ARENA, 0..LEN, 1);
    let reader = platform.acquire(GPU).read(&buffer).try_now().unwrap();
    buffer.will_not_use(GPU_ARENA).unwrap();
    assert!(has_storage(&buffer, GPU_ARENA));
    let recording = platform.record();
    reader.release().unwrap();
    assert!(!has_storage(&buffer, GPU_ARENA));
    let events = recording.finish();
    assert!(events.iter().any(|event| event.kind == EventKind::Freed { arena: GPU_ARENA }), "{events:?}");
}

#[test]
fn i28_a_downgrade_makes_old_copies_free() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU2_ARENA, 0..LEN, 1);
    let mut writer = platform.acquire(GPU).write(&buffer).try_now().unwrap();
    // Its contents are about to be overwritten, so they are not brought to main memory.
    buffer.will_not_use(GPU2_ARENA).unwrap();
    assert!(has_storage(&buffer, GPU2_ARENA), "the writer may still fail");
    assert_eq!(byte_copies(&platform), 0);
    put(&mut writer, &buffer, 0, &bytes(2, 0..LEN));
    let reader = writer.downgrade().unwrap();
    assert!(!has_storage(&buffer, GPU2_ARENA));
    drop(reader);
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(2, 0..LEN));
}

#[test]
fn i28_poisoned_bytes_stay_restorable() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU2_ARENA, 0..LEN, 1);
    let mut writer = platform.acquire(GPU).write(&buffer.range(0..50)).try_now().unwrap();
    put(&mut writer, &buffer, 0, &bytes(2, 0..50));
    drop(writer);
    buffer.will_not_use(GPU2_ARENA).expect("what can be read is brought, the rest stays");
    assert!(has_storage(&buffer, GPU2_ARENA), "the last copy of what a failed writer spoilt");
    buffer.restore(0..50).unwrap();
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(1, 0..LEN));
    assert!(!has_storage(&buffer, GPU2_ARENA), "and now there is another");
}

/// The member leaves the storage, which stays with its root.
#[test]
fn i10_a_member_leaves_and_a_root_stays_until_its_members_have_left() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull] {
        let platform = bound_pair(concurrency);
        let buffer = raw(&platform, LEN);
        write(&buffer, MAIN_ARENA, 0..LEN, 1);
        write(&buffer, GPU_ARENA, 0..30, 2);
        let both = [bytes(2, 0..30), bytes(1, 30..LEN)].concat();
        buffer.will_not_use(GPU_ARENA).unwrap();
        assert!(!has_storage(&buffer, GPU_ARENA));
        assert_eq!(byte_copies(&platform), 0, "o02: the root's storage has the bytes");
        assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), both);
        // The other way round: the root cannot go while the member uses its storage.
        assert_eq!(read(&buffer, GPU_ARENA, 0..LEN), both);
        buffer.will_not_use(MAIN_ARENA).unwrap();
        assert!(has_storage(&buffer, MAIN_ARENA));
        assert_eq!(read(&buffer, GPU_ARENA, 0..LEN), both);
    }
}

#[test]
fn to_go_through_an_arena_does_not_keep_it() {
    // Copies between the gpus pass through main memory.
    let platform = star();
    let buffer = raw(&platform, LEN);
    buffer.will_not_use(MAIN_ARENA).unwrap();
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    assert_eq!(read(&buffer, GPU2_ARENA, 0..LEN), bytes(1, 0..LEN));
    assert!(!has_storage(&buffer, MAIN_ARENA), "it served as a step on the way");
    buffer.prefetch(CPU, ..).wait().unwrap();
    assert!(has_storage(&buffer, MAIN_ARENA), "a prefetch is a use to come");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let platform = pair();
    let mine = platform.buffer_from(vec![7u32, 8, 9]).unwrap();
    let error = mine.will_not_use(MAIN_ARENA).unwrap_err();
    let AcquireError::NotFreeable { arena, reason, .. } = &error else { panic!("{error:?}") };
    assert_eq!((arena.id, *reason), (MAIN_ARENA, FreeRefusal::External));
    assert!(error.to_string().contains("main"), "{error}");
    assert_eq!(mine.will_not_use(ArenaId(7)), Err(AcquireError::NoSuchArena { arena: ArenaId(7) }));
    assert_eq!(mine.into_vec().unwrap(), [7, 8, 9]);
    let buffer = raw(&platform, LEN);
    buffer.close();
    assert_eq!(buffer.will_not_use(GPU_ARENA), Err(AcquireError::Closed { buffer: buffer.name() }));
}

#[test]
fn a_lost_device_gives_up_what_it_has() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, MAIN_ARENA, 0..LEN, 1);
    assert_eq!(read(&buffer, GPU_ARENA, 0..LEN), bytes(1, 0..LEN));
    platform.device_lost(GPU);
    buffer.will_not_use(GPU_ARENA).unwrap();
    assert!(!has_storage(&buffer, GPU_ARENA));
    // And where main memory is lost, the only copy stays where it is.
    write(&buffer, GPU2_ARENA, 0..LEN, 2);
    platform.device_lost(CPU);
    let error = buffer.will_not_use(GPU2_ARENA).unwrap_err();
    assert!(error.is_device_lost(), "{error}");
    assert_eq!(read(&buffer, GPU2_ARENA, 0..LEN), bytes(2, 0..LEN));
    assert!(!check(&buffer).arena(GPU2_ARENA).is_retired, "what is refused changes nothing");
}

#[test]
fn i15_a_copy_home_that_fails_loses_nothing() {
    use dml::arenas::Script;
    use dml::arenas::faulty::Fault;
    use dml_verify::Rig;
    let script = Script::new().at_kind(CallKind::CopyOut, 1, Fault::fail());
    let platform = Rig::new().gpu_with(Concurrency::Exclusive, script).staged(MAIN_ARENA, GPU_ARENA).build();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    let error = buffer.will_not_use(GPU_ARENA).unwrap_err();
    assert!(matches!(error, AcquireError::CopyFailed { .. }), "{error:?}");
    assert!(has_storage(&buffer, GPU_ARENA));
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(1, 0..LEN));
    assert!(!has_storage(&buffer, GPU_ARENA), "the reader has brought it home");
}

#[test]
fn i28_two_threads_may_say_it_beside_a_reader_that_arrives() {
    let platform = star();
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    let gate = test_arena(&platform, GPU_ARENA).gate(CallKind::CopyOut);
    let says = |arena| {
        let buffer = buffer.clone();
        watched("will_not_use()", move || buffer.will_not_use(arena))
    };
    let first = says(GPU_ARENA);
    gate.arrived();
    // The copy home is under way, and both arenas are told meanwhile.
    let (second, third) = (says(GPU_ARENA), says(MAIN_ARENA));
    assert_eq!((second.join(), third.join()), (Ok(()), Ok(())));
    gate.open();
    assert_eq!(first.join(), Ok(()));
    assert_eq!(read(&buffer, GPU2_ARENA, 0..LEN), bytes(1, 0..LEN));
    assert_eq!(live_blocks(&platform), 1, "one of them has to keep the bytes until somebody else has them");
    assert!(has_storage(&buffer, GPU2_ARENA));
}
