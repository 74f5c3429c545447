//! Who sees what: readers get the latest bytes wherever they are, by no more copies than that takes.

#![cfg(not(dml_loom))]

use dml::arenas::null::Call;
use dml::core::internal::state::{Begin, Phase, Request, Status, Step};
use dml::core::{
    Access, AcquireError, BusyReason, Claim, Claims, Concurrency, KernelId, OwnerId, Seq, Span,
    record::{EventKind, Operation},
};
use dml_verify::history::assert_history;
use dml_verify::{
    CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, GPU3_ARENA, MAIN_ARENA, Rig, arenas, byte_copies, bytes, change,
    check, copies, get, live_blocks, mapped_pair, null, pair, put, raw, read, segments, star, write,
};

#[test]
fn i02_bytes_pass_through_a_third_memory_where_no_link_leads_directly() {
    let platform = star();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    // The plan, asked of a copy of the state.
    let claims = Claims::new([Claim { span: Span::new(13, 57), access: Access::ReadOnly }]);
    let request =
        Request { kernel: KernelId(1), grant: OwnerId(77), arena: GPU2_ARENA, claims, is_submission: false };
    let Begin::Plan(plan) = buffer.snapshot().begin(platform.routes(), &request) else {
        panic!("bytes have to be brought")
    };
    let hops = plan.steps.iter().filter_map(|step| match step {
        Step::Copy(copy) => Some((copy.from(), copy.to, copy.span.to_range())),
        _ => None,
    });
    let expected = [(Some(GPU_ARENA), MAIN_ARENA, 13..57), (Some(MAIN_ARENA), GPU2_ARENA, 13..57)];
    assert_eq!(hops.collect::<Vec<_>>(), expected);
    let drawn = format!("{plan:#}");
    assert!(drawn.contains("copy a1 ==13..57==> a0") && drawn.contains("copy a0 ==13..57==> a2"), "{drawn}");
    // What is done.
    assert_eq!(read(&buffer, GPU2_ARENA, 13..57), bytes(1, 13..57));
    let everyone = arenas([MAIN_ARENA, GPU_ARENA, GPU2_ARENA]);
    let rest = |range| (range, arenas([GPU_ARENA]), Status::Defined);
    assert_eq!(segments(&buffer), [rest(0..13), (13..57, everyone, Status::Defined), rest(57..100)]);
    drop(buffer);
    let events = recording.finish();
    assert_eq!(copies(&events), expected);
    assert_history(&platform, &events);
}

#[test]
fn o01_three_gpus_in_a_row_are_passed_in_order() {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    let rig =
        rig.staged(MAIN_ARENA, GPU_ARENA).one_way(GPU_ARENA, GPU2_ARENA).one_way(GPU2_ARENA, GPU3_ARENA);
    let platform = rig.build();
    let buffer = raw(&platform, 31);
    write(&buffer, MAIN_ARENA, 0..31, 1);
    assert_eq!(read(&buffer, GPU3_ARENA, 7..30), bytes(1, 7..30));
    assert_eq!(byte_copies(&platform), 3);
    // There is no way back from the last one.
    write(&buffer, GPU3_ARENA, 3..5, 2);
    let refused = platform.acquire(CPU).read(&buffer.range(0..31)).try_now().unwrap_err();
    assert!(refused.is_unreachable(), "{refused}");
    assert!(
        matches!(refused, AcquireError::Unreachable { span, .. } if span == Span::new(3, 5)),
        "{refused}"
    );
    assert_eq!(read(&buffer, MAIN_ARENA, 5..7), bytes(1, 5..7));
}

#[test]
fn i01_two_writers_of_disjoint_halves_are_granted_at_once() {
    for other in [GPU_ARENA, GPU2_ARENA, MAIN_ARENA] {
        let platform = star();
        let recording = platform.record();
        let buffer = raw(&platform, 101);
        write(&buffer, MAIN_ARENA, 0..101, 1);
        let (left, right) = (buffer.range(0..51), buffer.range(51..101));
        let mut first = platform.acquire(GPU).write(&left).try_now().unwrap();
        let mut second = platform.acquire_in(other).read_write(&right).try_now().unwrap();
        assert_eq!(check(&buffer).requestors().len(), 2);
        put(&mut second, &buffer, 51, &bytes(3, 51..101));
        put(&mut first, &buffer, 0, &bytes(2, 0..51));
        // One byte of the other half is too much.
        let greedy = platform.acquire(CPU).read(&buffer.range(50..51)).try_now();
        assert!(matches!(greedy, Err(AcquireError::Busy { reason: BusyReason::Conflict, .. })), "{greedy:?}");
        second.release().unwrap();
        first.release().unwrap();
        let whole = [bytes(2, 0..51), bytes(3, 51..101)].concat();
        for arena in [MAIN_ARENA, GPU_ARENA, GPU2_ARENA] {
            assert_eq!(read(&buffer, arena, 0..101), whole, "{other} {arena}");
        }
        drop((left, right, buffer));
        assert_history(&platform, &recording.finish());
    }
}

#[test]
fn i02_half_written_on_a_device_and_read_whole() {
    let platform = pair();
    let buffer = raw(&platform, 103);
    write(&buffer, MAIN_ARENA, 0..103, 1);
    write(&buffer, GPU_ARENA, 17..68, 2);
    let whole = [bytes(1, 0..17), bytes(2, 17..68), bytes(1, 68..103)].concat();
    assert_eq!(read(&buffer, MAIN_ARENA, 0..103), whole);
    // The gpu lacks what is around its own bytes: two copies, of exactly that.
    let _ = null(&platform, GPU_ARENA).take_calls();
    assert_eq!(read(&buffer, GPU_ARENA, 0..103), whole);
    let brought: Vec<_> = null(&platform, GPU_ARENA)
        .calls()
        .into_iter()
        .filter_map(|call| match call {
            Call::CopyIn { span, .. } => Some(span.to_range()),
            _ => None,
        })
        .collect();
    assert_eq!(brought, [0..17, 68..103]);
    assert_eq!(segments(&buffer), [(0..103, arenas([MAIN_ARENA, GPU_ARENA]), Status::Defined)]);
}

#[test]
fn o02_overwriting_copies_nothing() {
    for platform in [star(), mapped_pair(Concurrency::Exclusive)] {
        let buffer = raw(&platform, 100);
        write(&buffer, MAIN_ARENA, 0..100, 1);
        write(&buffer, GPU_ARENA, 20..31, 2);
        write(&buffer, MAIN_ARENA, 25..30, 3);
        assert_eq!((byte_copies(&platform), platform.counters().operation(Operation::Fill)), (0, 0));
        let whole =
            [bytes(1, 0..20), bytes(2, 20..25), bytes(3, 25..30), bytes(2, 30..31), bytes(1, 31..100)];
        assert_eq!(read(&buffer, MAIN_ARENA, 0..100), whole.concat());
    }
}

#[test]
fn o02_what_is_valid_is_not_copied_again() {
    let platform = star();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    for _ in 0..3 {
        for arena in [GPU_ARENA, MAIN_ARENA, GPU2_ARENA] {
            assert_eq!(read(&buffer, arena, 0..100), bytes(1, 0..100));
        }
    }
    assert_eq!(byte_copies(&platform), 2);
    // A reader of part of it brings nothing, a writer elsewhere takes nothing away.
    write(&buffer, GPU2_ARENA, 40..50, 2);
    assert_eq!(read(&buffer, GPU_ARENA, 10..40), bytes(1, 10..40));
    assert_eq!(byte_copies(&platform), 2);
}

#[test]
fn i17_a_commit_changes_its_range_alone() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let _ = read(&buffer, GPU_ARENA, 0..100);
    // One kernel reads some bytes, changes others, overwrites others.
    let (reads, changes, overwrites) = (buffer.range(3..21), buffer.range(33..35), buffer.range(60..99));
    let mut kernel =
        platform.acquire(GPU).read(&reads).read_write(&changes).write(&overwrites).try_now().unwrap();
    put(&mut kernel, &buffer, 33, &bytes(2, 33..35));
    put(&mut kernel, &buffer, 60, &bytes(2, 60..99));
    let before = buffer.snapshot().commit_seq();
    kernel.release().unwrap();
    let (both, gpu) = (arenas([MAIN_ARENA, GPU_ARENA]), arenas([GPU_ARENA]));
    let expected = [(0..33, both), (33..35, gpu), (35..60, both), (60..99, gpu), (99..100, both)];
    assert_eq!(segments(&buffer), expected.map(|(range, valid)| (range, valid, Status::Defined)));
    assert_eq!(buffer.snapshot().commit_seq(), Seq(before.0 + 1), "one commit for all of them");
}

#[test]
fn i04_readers_on_different_arenas_at_once_keep_their_bytes() {
    let platform = star();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let readers = [CPU, GPU, GPU2].map(|device| platform.acquire(device).read(&buffer).try_now().unwrap());
    assert_eq!(check(&buffer).requestors().len(), 3);
    let writer = platform.acquire(CPU).write(&buffer.range(99..100)).try_now();
    assert!(matches!(writer, Err(AcquireError::Busy { .. })));
    for reader in &readers {
        assert_eq!(get(reader, &buffer, 0..100), bytes(1, 0..100));
    }
    drop(readers);
    drop(buffer);
    assert_history(&platform, &recording.finish());
}

#[test]
fn i16_other_copies_stay_valid_until_the_commit() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let mut writer = platform.acquire(GPU).write(&buffer.range(0..50)).try_now().unwrap();
    put(&mut writer, &buffer, 0, &bytes(2, 0..50));
    assert_eq!(segments(&buffer), [(0..100, arenas([MAIN_ARENA]), Status::Defined)]);
    writer.release().unwrap();
    assert_eq!(segments(&buffer)[0], (0..50, arenas([GPU_ARENA]), Status::Defined));
}

#[test]
fn nothing_is_asked_of_an_arena_for_no_bytes() {
    let platform = star();
    let empty = raw(&platform, 0);
    let some = raw(&platform, 10);
    write(&some, MAIN_ARENA, 0..10, 1);
    let calls = || [MAIN_ARENA, GPU_ARENA, GPU2_ARENA].map(|arena| null(&platform, arena).calls().len());
    let before = calls();
    for device in [CPU, GPU, GPU2] {
        let all = platform.acquire(device).read(&empty).try_now().unwrap();
        // No bytes, no conflict, whatever the access and the device.
        let more = platform.acquire(device).write(&empty).read_write(&some.range(10..10)).try_now().unwrap();
        assert!(more.block(&empty).unwrap().is_none() && more.native(&some).unwrap().is_none());
        assert_eq!(more.slice::<u64>(&empty).unwrap(), [0u64; 0]);
        more.release().unwrap();
        all.downgrade().unwrap().release().unwrap();
        empty.prefetch(device, 0..0).wait().unwrap();
    }
    assert_eq!(calls(), before);
    assert_eq!(empty.snapshot().segments().count(), 0);
    let nothing = platform.buffer::<u32>(0).build().unwrap();
    assert!(nothing.read().unwrap().is_empty() && nothing.write().unwrap().is_empty());
    assert_eq!(nothing.into_vec().unwrap(), [0u32; 0]);
    empty.close();
    assert!(matches!(platform.acquire(CPU).read(&empty).try_now(), Err(AcquireError::Closed { .. })));
}

#[test]
fn o02_zeros_are_made_where_they_are_needed_and_never_copied() {
    let platform = pair();
    let buffer = platform.raw_buffer(100).zeroed().build().unwrap();
    assert_eq!(live_blocks(&platform), 0, "nothing is allocated before it is needed");
    assert_eq!(read(&buffer, GPU_ARENA, 11..31), [0; 20]);
    write(&buffer, GPU_ARENA, 40..60, 1);
    let filled: Vec<_> = null(&platform, GPU_ARENA)
        .calls()
        .into_iter()
        .filter_map(|call| match call {
            Call::Fill { span, byte, .. } => Some((span.to_range(), byte)),
            _ => None,
        })
        .collect();
    assert_eq!(filled, [(11..31, 0)], "only what was read, and nothing to be overwritten");
    let whole = [vec![0; 40], bytes(1, 40..60), vec![0; 40]].concat();
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), whole);
    assert_eq!(byte_copies(&platform), 1, "the written bytes alone are copied");
    assert_eq!(null(&platform, MAIN_ARENA).live_blocks(), 1);
}

#[test]
fn i13_bytes_never_written_are_not_readable() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 30..60, 1);
    let none = platform.acquire(CPU).read(&buffer.range(20..40)).try_now();
    assert!(
        matches!(none, Err(AcquireError::Uninitialized { span, .. }) if span == Span::new(20, 30)),
        "{none:?}"
    );
    let none = platform.acquire(CPU).read_write(&buffer.range(59..61)).try_now();
    assert!(
        matches!(none, Err(AcquireError::Uninitialized { span, .. }) if span == Span::new(60, 61)),
        "{none:?}"
    );
    assert!(matches!(buffer.prefetch(CPU, 0..100).wait(), Err(AcquireError::Uninitialized { .. })));
    assert_eq!(byte_copies(&platform), 0);
    assert_eq!(read(&buffer, MAIN_ARENA, 30..60), bytes(1, 30..60));
}

#[test]
fn o02_a_prefetch_saves_the_reader_its_copy() {
    let platform = star();
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    buffer.prefetch(GPU2, 7..77).wait().unwrap();
    let copied = byte_copies(&platform);
    assert_eq!(copied, 2);
    assert!(buffer.snapshot().requestors().is_empty());
    assert_eq!(read(&buffer, GPU2_ARENA, 7..77), bytes(1, 7..77));
    buffer.prefetch(GPU2, 7..77).wait().unwrap();
    assert_eq!(byte_copies(&platform), copied);
    // A prefetch goes on beside a reader and is refused beside a writer.
    let reader = platform.acquire(GPU).read(&buffer).try_now().unwrap();
    buffer.prefetch(CPU, 0..100).wait().unwrap();
    drop(reader);
    let writer = platform.acquire(GPU).write(&buffer.range(50..51)).try_now().unwrap();
    assert!(matches!(buffer.prefetch(GPU2, 40..60).wait(), Err(AcquireError::Busy { .. })));
    buffer.prefetch(GPU2, 77..100).wait().unwrap();
    drop(writer);
    drop(buffer);
    let events = recording.finish();
    assert_history(&platform, &events);
    let ended = events.iter().filter(|event| matches!(event.kind, EventKind::Prefetched { .. })).count();
    assert_eq!(ended, 3, "one for each that had something to do");
}

#[test]
fn i05_storage_is_allocated_once_for_each_arena() {
    let platform = star();
    let buffer = raw(&platform, 100);
    for round in 0..4 {
        write(&buffer, GPU_ARENA, 0..100, round);
        change(&buffer, GPU2_ARENA, 3..50, round + 10);
        assert_eq!(read(&buffer, MAIN_ARENA, 3..50), bytes(round + 10, 3..50));
    }
    assert_eq!(platform.counters().operation(Operation::Alloc), 3);
    drop(buffer);
    assert_eq!(live_blocks(&platform), 0);
    for arena in [MAIN_ARENA, GPU_ARENA, GPU2_ARENA] {
        let freed = null(&platform, arena).calls();
        assert_eq!(freed.iter().filter(|call| matches!(call, Call::Free { .. })).count(), 1, "{arena}");
    }
}

#[test]
fn i06_a_kernel_in_flight_keeps_others_out_until_its_fence() {
    let platform = pair();
    let buffer = raw(&platform, 100);
    let mut kernel = platform.acquire(GPU).write(&buffer).try_now().unwrap();
    put(&mut kernel, &buffer, 0, &bytes(1, 0..100));
    let running = kernel.in_flight(dml::core::Fence::running(|| Ok(0)));
    assert_eq!(check(&buffer).requestors()[0].phase, Phase::InFlight);
    assert!(platform.acquire(CPU).read(&buffer).try_now().is_err());
    running.wait().unwrap().release().unwrap();
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), bytes(1, 0..100));
    // Dropped, it waits and commits nothing.
    let mut kernel = platform.acquire(GPU).write(&buffer).try_now().unwrap();
    put(&mut kernel, &buffer, 0, &bytes(2, 0..100));
    let others = platform.clone();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (told, looked_at) = (asked.clone(), buffer.clone());
    drop(kernel.in_flight(dml::core::Fence::running(move || {
        let refused = others.acquire(CPU).read(&looked_at).try_now();
        told.store(refused.is_err_and(|error| error.is_busy()), std::sync::atomic::Ordering::Relaxed);
        Ok(0)
    })));
    assert!(asked.load(std::sync::atomic::Ordering::Relaxed), "nobody is let in before the kernel ends");
    buffer.restore(0..100).unwrap();
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), bytes(1, 0..100));
}
