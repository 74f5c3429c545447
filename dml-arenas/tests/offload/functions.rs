//! Functions, their arguments, and the order in which they run.

use crate::common::{host, pattern, whole as all_of};
use crate::rig::{Rig, u32s, whole};
use dml_arenas::OffloadArena;
use dml_arenas::offload::{Argument, OffloadError, Signal};
use dml_core::Scalar;
use dml_core::{Access, Arena, DeviceId, Span, TransferError};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_function_of_a_library_works_on_parts_of_buffers() {
    let rig = Rig::new();
    let input: Vec<f32> = (0..1000).map(|i| (i * i % 997) as f32).collect();
    let bytes: Vec<u8> = input.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let (from, to) = (rig.block(&bytes), rig.block(&pattern(4000, 9)));
    let part = Span::new(400, 2400);
    let arguments =
        [Argument::Write(&to, part), Argument::Scalar(Scalar::F32(2.5)), Argument::Read(&from, part)];
    assert_eq!(rig.launch(&rig.function("scale"), 100..600, &arguments).unwrap().wait(), Ok(0));
    let mut expected = pattern(4000, 9);
    for item in 100..600 {
        let value = input[item] * 2.5 + item as f32;
        expected[item * 4..item * 4 + 4].copy_from_slice(&value.to_ne_bytes());
    }
    assert!(rig.take(&to, whole(&to)) == expected);
    assert!(rig.take(&from, whole(&from)) == bytes);
}

#[test]
fn every_kind_of_scalar_arrives() {
    let scalars = [
        Scalar::U32(u32::MAX),
        Scalar::I32(-7),
        Scalar::U64(u64::MAX),
        Scalar::I64(i64::MIN),
        Scalar::F32(0.5),
        Scalar::F64(-1e300),
        Scalar::U8(200),
        Scalar::I8(-100),
        Scalar::U16(60_000),
        Scalar::I16(-30_000),
        Scalar::F16(0x3C01),
    ];
    let said = Rig::new().text("describe", 5..u64::MAX, &scalars);
    let values =
        "4294967295 -7 18446744073709551615 -9223372036854775808 0.5 -1e+300 200 -100 60000 -30000 half 3c01";
    assert_eq!(said, format!("5..18446744073709551615 threads=1 start=100 bytes=500 {values}"));
}

/// In C, views, scalars and values come in lists of their own, and each says its position.
#[test]
fn arguments_say_their_positions() {
    let rig = Rig::new();
    let (text, data) = (rig.block(&[0; 200]), rig.block(&[1; 100]));
    let span = Span::new;
    let parts = vec![(Some(&data), span(0, 4)), (Some(&data), span(8, 16)), (None, span(20, 20))];
    let arguments = [
        Argument::Scalar(Scalar::U8(1)),
        Argument::Nothing,
        Argument::Write(&text, span(0, 200)),
        Argument::Bytes(&[7, 0, 255]),
        Argument::Parts(parts, Access::ReadOnly),
        Argument::Scalar(Scalar::I64(-1)),
    ];
    rig.launch(&rig.function("positions"), 0..1, &arguments).unwrap().wait().unwrap();
    let said = rig.take(&text, span(0, 200));
    let said = String::from_utf8(said.into_iter().take_while(|byte| *byte > 0).collect()).unwrap();
    let views = "view 2: 0+200, view 4: 0+4, view 4: 8+8, view 4: 20+0";
    assert_eq!(said, format!("{views}, scalar 0, scalar 5, value 3: 7 0 255"));
    let nowhere = [Argument::Parts(vec![(None, span(0, 1))], Access::ReadOnly)];
    let refused = rig.launch(&rig.function("positions"), 0..1, &nowhere).unwrap_err().to_string();
    assert!(refused.contains("argument 0") && refused.contains("0..1 without a block"), "{refused}");
}

/// A function counts from the start of the buffer, wherever its block lies in the memory of the worker.
#[test]
fn a_part_is_named_by_its_place_in_the_buffer() {
    let rig = Rig::new();
    let _in_front = rig.block(&[1; 5000]);
    let said = rig.text("describe", 0..1, &[]);
    assert!(said.starts_with("0..1 threads=1 start=100 bytes=500"), "{said}");
}

#[test]
fn what_is_not_there_is_named() {
    let rig = Rig::new();
    let error = rig.device().function("no_such_function").unwrap_err();
    assert_eq!(error.to_string(), "offload:0 has no function no_such_function");
    let error = rig.device().load("/no/such/library.so").unwrap_err().to_string();
    assert!(error.contains("offload:0") && error.contains("/no/such/library.so"), "{error}");
    assert!(rig.device().load(env!("CARGO_MANIFEST_PATH")).unwrap_err().to_string().contains("invalid ELF"));
    assert!(matches!(rig.device().function("nul\0inside"), Err(OffloadError::UnknownFunction { .. })));
    let long = "x".repeat(100_000);
    assert!(matches!(rig.device().function(&long), Err(OffloadError::TooLong { bytes: 100_001.., .. })));
    // None of that has harmed it.
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_anything_runs() {
    let (rig, other) = (Rig::new(), Rig::new());
    let (block, foreign) = (rig.block(&[1; 100]), other.block(&[2; 100]));
    let main = rig.main.alloc(100).unwrap().into_block();
    let scale = rig.function("scale");
    let refused = |arguments: &[Argument<'_>]| match rig.launch(&scale, 0..1, arguments).unwrap_err() {
        OffloadError::Argument { index, reason, .. } => (index, reason.to_string()),
        error => panic!("{error}"),
    };
    let scalar = Argument::Scalar(Scalar::U32(0));
    assert_eq!(refused(&[scalar.clone(), Argument::Read(&foreign, Span::new(0, 1))]).0, 1);
    assert!(refused(&[Argument::Read(&main, Span::new(0, 1))]).1.contains("another arena"));
    assert!(refused(&[Argument::Read(&block, Span::new(1, 101))]).1.contains("1..101 of a block of 100"));
    let (left, right) = (Span::new(0, 51), Span::new(50, 60));
    let [reads, writes] = [Argument::Read(&block, left), Argument::Write(&block, right)];
    assert!(refused(&[reads.clone(), writes.clone()]).1.contains("argument 0"));
    // Whichever comes first.
    let (index, reason) = refused(&[writes, scalar.clone(), reads]);
    assert!(index == 2 && reason.contains("shares bytes with argument 0"), "{index}: {reason}");
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let backwards = rig.launch(&scale, 9..3, &[]).unwrap_err();
    assert_eq!(backwards.to_string(), "bad items for scale on offload:0: 9..3 begins after its end");
    let many: Vec<_> = (0..20_000).map(|_| Argument::Scalar(Scalar::U64(u64::MAX))).collect();
    assert!(matches!(rig.launch(&scale, 0..1, &many), Err(OffloadError::TooLong { .. })));
    let of_other = other.function("scale");
    assert!(matches!(rig.launch(&of_other, 0..1, &[]), Err(OffloadError::UnknownFunction { .. })));
}

#[test]
fn a_function_that_fails_is_an_answer_and_the_worker_goes_on() {
    let rig = Rig::new();
    let seven = [Argument::Scalar(Scalar::U32(7))];
    let pipeline = rig.line();
    let failed = pipeline.run(&rig.function("fail"), 0..1, &seven, &[]).unwrap().wait().unwrap_err();
    assert_eq!(failed.to_string(), "fail failed on offload:0: no luck with 7");
    assert!(matches!(failed, OffloadError::Function { code: -42, .. }));
    let fence = rig.launch(&rig.function("fail_silently"), 0..1, &[]).unwrap();
    match fence.wait().unwrap_err() {
        TransferError::Framework { code: 7, message, .. } => {
            assert!(message.contains("it returned 7"), "{message}")
        }
        error => panic!("{error}"),
    }
    assert!(rig.device().loss().is_none());
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
}

#[test]
fn a_pipeline_keeps_its_order() {
    let rig = Rig::new();
    let (block, mut main) = (rig.block(&u32s(&[1; 64])), host(&[0; 256]));
    let add = rig.function("add_late");
    let pipeline = rig.line();
    let run = |value: u32, late_ms: u32| {
        let scalars = [Scalar::U32(value), Scalar::U32(late_ms)].map(Argument::Scalar);
        let arguments = [&[Argument::Write(&block, Span::new(0, 256))], &scalars[..]].concat();
        pipeline.run(&add, 0..64, &arguments, &[]).unwrap()
    };
    // Each ends later if it is begun too early: the slow ones come first.
    let mut signals = vec![run(5, 30), run(7, 20), run(11, 0)];
    signals.push(pipeline.copy_out((&block, 0), main.target(Span::new(0, 256)), &[]).unwrap());
    signals.push(run(13, 10));
    signals.push(pipeline.fill((&block, Span::new(0, 128)), 0xEE, &[]).unwrap());
    signals.push(run(17, 0));
    assert_eq!(signals.last().unwrap().wait(), Ok(0));
    assert!(signals.iter().all(Signal::is_ended), "{signals:?}");
    let until_copy = ((3 + 5) * 3 + 7) * 3 + 11;
    assert_eq!(main.bytes(), u32s(&[until_copy; 64]));
    let filled = 0xEEEE_EEEE_u32.wrapping_mul(3).wrapping_add(17);
    let kept = (until_copy * 3 + 13) * 3 + 17;
    assert_eq!(rig.take(&block, Span::new(0, 256)), [u32s(&[filled; 32]), u32s(&[kept; 32])].concat());
}

#[test]
fn pipelines_run_side_by_side() {
    let rig = Rig::new();
    let block = rig.block(&[0; 4]);
    let meet = rig.function("meet");
    let arguments = [Argument::Write(&block, Span::new(0, 4)), Argument::Scalar(Scalar::U32(3))];
    let pipelines: Vec<_> = (0..3).map(|_| rig.line()).collect();
    let signals: Vec<_> =
        pipelines.iter().map(|pipeline| pipeline.run(&meet, 0..1, &arguments, &[]).unwrap()).collect();
    // Were one not begun before another has ended, none would ever end.
    assert!(signals.iter().all(|signal| signal.wait() == Ok(0)));
}

#[test]
fn a_run_waits_for_transfers_and_runs_of_other_pipelines() {
    let rig = Rig::new();
    let (block, from, mut to) =
        (rig.arena.alloc(8 << 20).unwrap().into_block(), host(&[1; 8 << 20]), host(&[0; 8 << 20]));
    let span = whole(&block);
    let add = rig.function("add_late");
    let [one, two, three] = std::array::from_fn(|_| rig.line());
    let late = |late_ms: u32| {
        [
            Argument::Write(&block, span),
            Argument::Scalar(Scalar::U32(9)),
            Argument::Scalar(Scalar::U32(late_ms)),
        ]
    };
    let gate = rig.block(&[0; 4]);
    let gate_arguments = [Argument::Write(&gate, Span::new(0, 4)), Argument::Scalar(Scalar::U32(2))];
    // The copy cannot begin before this has ended, and this not before the gate is opened below.
    let held = three.run(&rig.function("meet"), 0..1, &gate_arguments, &[]).unwrap();
    let copied = one.copy_in((&block, 0), from.source(all_of(&from)), &[held]).unwrap();
    let ran = two.run(&add, 0..1, &late(20), std::slice::from_ref(&copied)).unwrap();
    let again = three.run(&add, 0..1, &late(0), std::slice::from_ref(&ran)).unwrap();
    let back = one.copy_out((&block, 0), to.target(span), std::slice::from_ref(&again)).unwrap();
    assert!(!copied.is_ended() && !ran.is_ended() && !again.is_ended() && !back.is_ended());
    let opened = rig.line().run(&rig.function("meet"), 0..1, &gate_arguments, &[]).unwrap();
    assert_eq!(opened.wait(), Ok(0));
    assert_eq!(back.wait(), Ok(8 << 20));
    let value = (0x0101_0101_u32 * 3 + 9) * 3 + 9;
    assert!(to.bytes() == u32s(&vec![value; 2 << 20]));
}

#[test]
fn what_waits_for_a_failure_is_not_begun() {
    let rig = Rig::new();
    let block = rig.block(&pattern(64, 3));
    let pipeline = rig.line();
    let arguments = [Argument::Scalar(Scalar::U32(1))];
    let failed = pipeline.run(&rig.function("fail"), 0..1, &arguments, &[]).unwrap();
    let filled = rig.line().fill((&block, whole(&block)), 0, &[failed]).unwrap();
    match filled.wait().unwrap_err() {
        OffloadError::Dependency { cause, .. } => assert!(cause.to_string().contains("no luck"), "{cause}"),
        error => panic!("{error}"),
    }
    assert_eq!(rig.take(&block, whole(&block)), pattern(64, 3));
}

#[test]
fn memory_is_limited_and_comes_back() {
    let rig = Rig::with(|options| options.memory_bytes = 1 << 20);
    let blocks: Vec<_> = (0..16).map(|_| rig.arena.alloc(64 << 10).unwrap()).collect();
    let error = rig.arena.alloc(1).unwrap_err();
    assert_eq!(error.to_string(), "out of memory: 1 bytes in offload:0");
    assert!(rig.arena.alloc((1 << 20) + 1).unwrap_err().is_out_of_memory());
    drop(blocks);
    assert_eq!(rig.arena.alloc(1 << 20).unwrap().into_block().len(), 1 << 20);
}

#[test]
fn a_runs_blocks_are_free_when_it_has_ended() {
    let rig = Rig::with(|options| options.memory_bytes = 1 << 20);
    let (describe, line) = (rig.function("describe"), rig.line());
    for _ in 0..300 {
        let block =
            rig.arena.alloc(1 << 20).expect("whoever has heard of the end can have the memory").into_block();
        let run = line.run(&describe, 0..1, &[Argument::Write(&block, Span::new(0, 1000))], &[]).unwrap();
        drop(block);
        assert_eq!(run.wait(), Ok(0));
    }
}

#[test]
fn arenas_of_one_device_share_its_memory_and_no_page() {
    let rig = Rig::with(|options| options.memory_bytes = 1 << 20);
    let other = OffloadArena::new(rig.device().clone(), DeviceId(2));
    let (one, two) = (rig.arena.alloc(512 << 10).unwrap(), other.alloc(512 << 10).unwrap());
    assert_ne!(one.block().native(), two.block().native());
    assert!(other.alloc(1).unwrap_err().is_out_of_memory());
}

#[test]
fn a_library_may_take_its_time_to_load() {
    let rig = Rig::with(|options| options.time_limit = Some(Duration::from_secs(120)));
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("slow-{}.c", std::process::id()));
    let library = source.with_extension("so");
    std::fs::write(
        &source,
        "#include <unistd.h>\n__attribute__((constructor)) static void begin(void) { sleep(11); }\n",
    )
    .unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
    assert!(built.success());
    assert_eq!(rig.device().load(&library), Ok(()));
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
}
