//! Arenas that fail on cue.

#![cfg(not(dml_loom))]

mod common;

use common::{host, pattern, read};
use dml_arenas::faulty::{CallKind, Fault};
use dml_arenas::{Faulty, FaultyCross, MainMem, Null, Script};
use dml_core::host::Owned;
use dml_core::state::MapState;
use dml_core::{
    Arena, ArenaDesc, ArenaKind, Concurrency, CopyQuery, CrossArena, DeviceId, DeviceSet, HostStaged, Span,
    TransferError,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);

fn faulty(script: Script) -> Faulty<MainMem> {
    Faulty::new(MainMem::new(CPU), script)
}

#[test]
fn an_empty_script_changes_nothing() {
    let arena = faulty(Script::new());
    let block = arena.alloc(16).unwrap();
    let bytes = pattern(16, 1);
    assert_eq!(arena.copy_in(&block, 0, &host(&bytes)).unwrap().wait(), Ok(16));
    assert_eq!(read(&block.host().unwrap()), bytes);
    let back = arena.attach(Box::new(Owned::new(vec![7_u8]))).map(|block| arena.detach(block));
    assert!(back.unwrap().is_ok());
    arena.free(block);
    assert_eq!((arena.calls_made(), arena.calls_of(CallKind::CopyIn)), (5, 1));
    assert_eq!(&*arena.inner().desc().name, "main_mem");
}

#[test]
fn the_named_call_fails_and_the_next_does_not() {
    let arena = faulty(
        Script::new()
            .at_kind(CallKind::Alloc, 2, Fault::fail())
            .at(4, Fault::Fail(TransferError::DeviceLost)),
    );
    let block = arena.alloc(8).unwrap();
    assert!(arena.alloc(8).unwrap_err().is_out_of_memory());
    assert!(arena.alloc(8).is_ok());
    assert_eq!(arena.copy_in(&block, 0, &host(&[9])).unwrap_err(), TransferError::DeviceLost);
    assert_eq!(read(&block.host().unwrap()), [0; 8]);
}

#[test]
fn a_short_transfer_moves_its_part_and_says_so() {
    let arena = faulty(
        Script::new()
            .at_kind(CallKind::CopyIn, 1, Fault::Short(5))
            .at_kind(CallKind::CopyOut, 1, Fault::Short(2))
            .at_kind(CallKind::Fill, 1, Fault::Short(1)),
    );
    let block = arena.alloc(12).unwrap();
    let bytes = pattern(10, 3);
    assert_eq!(arena.copy_in(&block, 1, &host(&bytes)).unwrap().wait(), Ok(5));
    let mut expected = vec![0; 12];
    expected[1..6].copy_from_slice(&bytes[..5]);
    assert_eq!(read(&block.host().unwrap()), expected);
    let to = host(&[0xEE; 4]);
    assert_eq!(arena.copy_out(&block, 1, &to).unwrap().wait(), Ok(2));
    assert_eq!(read(&to), [bytes[0], bytes[1], 0xEE, 0xEE]);
    assert_eq!(arena.fill(&block, Span::new(8, 12), 1).unwrap().wait(), Ok(1));
    assert_eq!(read(&block.host().unwrap())[8..], [1, 0, 0, 0]);
}

#[test]
fn faults_can_come_with_the_fence() {
    let arena = faulty(
        Script::new()
            .at(2, Fault::FailInFence(TransferError::DeviceLost))
            .at(3, Fault::PanicInFence)
            .at(4, Fault::Slow(Duration::from_millis(30)))
            .at(5, Fault::Panic),
    );
    let block = arena.alloc(4).unwrap();
    assert_eq!(arena.fill(&block, Span::new(0, 4), 1).unwrap().wait(), Err(TransferError::DeviceLost));
    let fence = arena.fill(&block, Span::new(0, 4), 2).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| fence.wait())).is_err());
    let begun = Instant::now();
    let fence = arena.fill(&block, Span::new(0, 4), 3).unwrap();
    assert_eq!(fence.wait(), Ok(4));
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert!(catch_unwind(AssertUnwindSafe(|| arena.fill(&block, Span::new(0, 4), 4))).is_err());
    assert_eq!(read(&block.host().unwrap()), [3; 4]);
}

#[test]
fn a_map_state_can_be_misreported() {
    let desc = ArenaDesc::new("gpu", ArenaKind("test"), DeviceId(1))
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::Exclusive);
    let script = Script::new().at_kind(CallKind::Map, 1, Fault::Report(MapState::Unmapped)).at_kind(
        CallKind::Unmap,
        1,
        Fault::fail(),
    );
    let arena = Faulty::new(Null::backed(desc), script);
    let block = arena.alloc(4).unwrap();
    let report = arena.map(&block, CPU, MapState::Mapped(DeviceSet::of(CPU))).unwrap();
    assert_eq!((report.state, report.host.map(|span| span.len())), (MapState::Unmapped, Some(4)));
    assert!(arena.unmap(&block, MapState::Unmapped).is_err());
    assert_eq!(arena.unmap(&block, MapState::Unmapped).unwrap().state, MapState::Unmapped);
}

#[test]
fn a_mechanism_keeps_its_price() {
    let cross = FaultyCross::new(HostStaged::default(), Script::new().at(1, Fault::Panic));
    let query = CopyQuery { bytes: 100, remap_source: false, remap_target: false, allocates: false };
    assert_eq!(cross.can_copy(&query), cross.inner().can_copy(&query));
    assert_eq!((cross.name(), cross.calls_made()), ("staged", 0));
}
