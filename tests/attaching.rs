//! Storage of the application that is given to a buffer which exists.

#![cfg(not(dml_loom))]

use dml::arenas::Script;
use dml::arenas::faulty::{CallKind, Fault};
use dml::core::{
    AcquireError, AllocError, AttachRefusal, Buffer, Concurrency, Unattached, record::EventKind,
};
use dml_verify::{
    Audited, CPU, GPU, GPU_ARENA, GPU2_ARENA, MAIN_ARENA, Rig, bound_pair, byte_copies, bytes, check, pair,
    put, read, star, test_arena, watched, write,
};

const LEN: u64 = 100;

fn bytes_of(platform: &Audited) -> Buffer<u8> {
    platform.buffer::<u8>(LEN).label("field").build().expect("a small buffer")
}

fn refusal<S: std::fmt::Debug>(refused: Result<(), Unattached<S>>) -> (AttachRefusal, S) {
    let Unattached { cause, storage } = refused.expect_err("refused");
    let text = cause.to_string();
    assert!(text.contains("main") && text.contains("field"), "{text}");
    let AcquireError::NotAttachable { reason, .. } = cause else { panic!("{cause:?}") };
    (reason, storage)
}

#[test]
fn i24_the_contents_of_a_vector_become_those_of_the_buffer() {
    let platform = star();
    let buffer = bytes_of(&platform);
    write(buffer.raw(), GPU_ARENA, 0..LEN, 1);
    let mine = bytes(2, 0..LEN);
    let at = mine.as_ptr();
    let recording = platform.record();
    buffer.attach_external(mine).unwrap();
    let attached = EventKind::Attached { arena: MAIN_ARENA, commit: Some(check(buffer.raw()).commit_seq()) };
    assert!(recording.finish().iter().any(|event| event.kind == attached));
    assert_eq!(byte_copies(&platform), 0, "nothing is copied");
    assert_eq!(read(buffer.raw(), GPU_ARENA, 0..LEN), bytes(2, 0..LEN), "i02: the gpu's copy is old");
    write(buffer.raw(), GPU2_ARENA, 10..20, 3);
    let vector = buffer.into_vec().unwrap();
    assert_eq!(vector.as_ptr(), at, "the object that was moved in");
    assert_eq!(vector, [bytes(2, 0..10), bytes(3, 10..20), bytes(2, 20..LEN)].concat());
}

#[test]
fn i24_a_vector_serves_as_storage_of_what_is_there() {
    let platform = star();
    let buffer = bytes_of(&platform);
    write(buffer.raw(), GPU_ARENA, 0..LEN, 1);
    let kernel = platform.acquire(GPU).read(&buffer).try_now().unwrap();
    let mine = vec![0xaa; LEN as usize].into_boxed_slice();
    let at = mine.as_ptr();
    buffer.attach_external_storage(mine).expect("a kernel elsewhere is not in the way");
    assert_eq!(byte_copies(&platform), 0, "the bytes come at the next use");
    assert_eq!(read(buffer.raw(), MAIN_ARENA, 30..40), bytes(1, 30..40));
    drop(kernel);
    let vector = buffer.into_vec().unwrap();
    assert_eq!(vector.as_ptr(), at);
    assert_eq!(vector, bytes(1, 0..LEN));
}

#[test]
fn storage_alone_makes_nothing_readable() {
    let platform = pair();
    let buffer = bytes_of(&platform);
    buffer.attach_external_storage(bytes(1, 0..LEN)).unwrap();
    let error = buffer.read().unwrap_err();
    assert!(matches!(error, AcquireError::Uninitialized { .. }), "{error:?}");
    let zeros = platform.buffer::<u8>(LEN).zeroed().build().unwrap();
    zeros.attach_external_storage(bytes(1, 0..LEN)).unwrap();
    assert_eq!(zeros.into_vec().unwrap(), vec![0; LEN as usize], "they are filled in");
}

#[test]
fn contents_end_what_a_failed_writer_left_behind() {
    let platform = star();
    let buffer = bytes_of(&platform);
    let mut writer = platform.acquire(GPU).write(&buffer).try_now().unwrap();
    put(&mut writer, buffer.raw(), 0, &bytes(1, 0..LEN));
    drop(writer);
    buffer.attach_external_storage(bytes(2, 0..LEN)).expect("poisoned bytes stay poisoned");
    assert!(matches!(buffer.read(), Err(AcquireError::Poisoned { .. })));
    let other = bytes_of(&platform);
    let mut writer = platform.acquire(GPU).write(&other).try_now().unwrap();
    put(&mut writer, other.raw(), 0, &bytes(1, 0..LEN));
    drop(writer);
    other.attach_external(bytes(3, 0..LEN)).unwrap();
    assert_eq!(other.into_vec().unwrap(), bytes(3, 0..LEN));
}

#[test]
fn what_does_not_fit_comes_back() {
    let platform = star();
    let buffer = bytes_of(&platform);
    for len in [0, LEN - 1, LEN + 1] {
        let (reason, mine) = refusal(buffer.attach_external(bytes(5, 0..len)));
        assert_eq!(reason, AttachRefusal::Length { bytes: len, len: LEN });
        assert_eq!(mine, bytes(5, 0..len));
    }
    let mine = bytes(6, 0..LEN);
    let at = mine.as_ptr();
    write(buffer.raw(), MAIN_ARENA, 0..LEN, 1);
    let (reason, mine) = refusal(buffer.attach_external(mine));
    assert_eq!((reason, mine.as_ptr()), (AttachRefusal::AlreadyAllocated, at));
    // Main memory can give its own storage up first.
    assert_eq!(read(buffer.raw(), GPU_ARENA, 0..LEN), bytes(1, 0..LEN));
    buffer.will_not_use(MAIN_ARENA).unwrap();
    buffer.attach_external_storage(mine).unwrap();
    let (reason, _) = refusal(buffer.attach_external(bytes(7, 0..LEN)));
    assert_eq!(reason, AttachRefusal::AlreadyAllocated);
    let vector = buffer.clone().into_vec().unwrap();
    assert_eq!((vector.as_ptr(), &vector), (at, &bytes(1, 0..LEN)));
    let (reason, _) = refusal(buffer.attach_external(bytes(8, 0..LEN)));
    assert_eq!(reason, AttachRefusal::NotOpen, "the buffer is closed");
}

#[test]
fn i01_contents_are_not_replaced_under_a_kernel_or_before_those_who_wait() {
    let platform = star();
    let buffer = bytes_of(&platform);
    write(buffer.raw(), GPU_ARENA, 0..LEN, 1);
    let reader = platform.acquire(GPU).read(&buffer.range(40..41)).try_now().unwrap();
    assert_eq!(refusal(buffer.attach_external(bytes(2, 0..LEN))).0, AttachRefusal::InUse);
    let (writes, wrote) = (platform.clone(), buffer.clone());
    let waiting = watched("the writer", move || writes.acquire(GPU).write(&wrote).wait().map(drop));
    while check(buffer.raw()).queue().len() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(refusal(buffer.attach_external(bytes(2, 0..LEN))).0, AttachRefusal::InUse);
    buffer.attach_external_storage(bytes(2, 0..LEN)).expect("room is welcome at any time");
    drop(reader);
    waiting.join().unwrap();
    assert_eq!(buffer.into_vec().unwrap(), bytes(1, 0..LEN));
}

#[test]
fn i18_storage_that_is_being_made_is_not_made_twice() {
    let platform = pair();
    let buffer = bytes_of(&platform);
    let gate = test_arena(&platform, MAIN_ARENA).gate(CallKind::Alloc);
    let writes = buffer.clone();
    let writer = watched("a writer", move || writes.write().map(|view| view.release()).unwrap());
    gate.arrived();
    let (reason, mine) = refusal(buffer.attach_external_storage(bytes(9, 0..LEN)));
    assert_eq!((reason, mine), (AttachRefusal::InTransition, bytes(9, 0..LEN)));
    assert_eq!(refusal(buffer.attach_external(bytes(9, 0..LEN))).0, AttachRefusal::InTransition);
    gate.open();
    writer.join().unwrap();
}

#[test]
fn i10_who_must_share_does_not_get_storage_of_its_own() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapFull] {
        let platform = bound_pair(concurrency);
        let buffer = bytes_of(&platform);
        write(buffer.raw(), GPU_ARENA, 0..LEN, 1);
        let (reason, _) = refusal(buffer.attach_external(bytes(2, 0..LEN)));
        assert_eq!(reason, AttachRefusal::MustShare { root: GPU_ARENA });
        assert_eq!(read(buffer.raw(), MAIN_ARENA, 0..LEN), bytes(1, 0..LEN), "nothing is cut off");
        // Where the vector comes first, the gpu shares it.
        let first = bytes_of(&platform);
        first.attach_external(bytes(2, 0..LEN)).unwrap();
        write(first.raw(), GPU_ARENA, 0..50, 3);
        assert_eq!(byte_copies(&platform), 0);
        assert_eq!(first.into_vec().unwrap(), [bytes(3, 0..50), bytes(2, 50..LEN)].concat());
    }
}

#[test]
fn i15_an_arena_that_does_not_take_the_storage_changes_nothing() {
    let script = Script::new().at_kind(CallKind::Attach, 1, Fault::fail());
    let platform = Rig::new()
        .gpu(Concurrency::Exclusive)
        .staged(MAIN_ARENA, GPU_ARENA)
        .scripted(dml_verify::Place::Arena(MAIN_ARENA), script)
        .build();
    let buffer = bytes_of(&platform);
    let Unattached { cause, storage } = buffer.attach_external(bytes(4, 0..LEN)).unwrap_err();
    assert!(matches!(cause, AcquireError::Alloc { cause: AllocError::OutOfMemory { .. }, .. }), "{cause:?}");
    assert!(!check(buffer.raw()).arena(MAIN_ARENA).alloc.is_allocated());
    buffer.attach_external(storage).expect("the second time");
    assert_eq!(buffer.into_vec().unwrap(), bytes(4, 0..LEN));
}

#[test]
fn a_lost_host_takes_nothing_and_an_empty_vector_is_taken() {
    let platform = pair();
    let empty = platform.buffer::<u8>(0).build().unwrap();
    empty.attach_external(Vec::with_capacity(7)).unwrap();
    assert_eq!(empty.into_vec().unwrap().capacity(), 7, "the object that was moved in");
    let buffer = bytes_of(&platform);
    platform.device_lost(CPU);
    assert_eq!(refusal(buffer.attach_external(bytes(1, 0..LEN))).0, AttachRefusal::NotOpen);
}

/// Of two threads one gives its vector away, and the other has it back.
#[test]
fn i24_one_of_two_vectors_is_taken() {
    for round in 0..50 {
        let platform = pair();
        let buffer = bytes_of(&platform);
        let attach = |seed| {
            let buffer = buffer.clone();
            watched("attach_external()", move || {
                let mine = bytes(seed, 0..LEN);
                let at = mine.as_ptr().addr();
                (seed, at, buffer.attach_external(mine))
            })
        };
        let results = [attach(2 * round + 1), attach(2 * round + 2)].map(dml_verify::Watched::join);
        let (taken, refused): (Vec<_>, Vec<_>) =
            results.into_iter().partition(|(_, _, attached)| attached.is_ok());
        assert_eq!((taken.len(), refused.len()), (1, 1));
        let (seed, at, attached) = refused.into_iter().next().expect("one");
        let (reason, mine) = refusal(attached);
        assert_eq!(
            (reason, mine.as_ptr().addr(), mine),
            (AttachRefusal::AlreadyAllocated, at, bytes(seed, 0..LEN))
        );
        let (seed, at, _) = taken.into_iter().next().expect("one");
        let vector = buffer.into_vec().unwrap();
        assert_eq!((vector.as_ptr().addr(), vector), (at, bytes(seed, 0..LEN)));
    }
}
