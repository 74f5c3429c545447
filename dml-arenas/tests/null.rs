//! The test arena: it records, it moves bytes, and it catches what a driver would suffer in silence.

#![cfg(not(dml_loom))]

mod common;

use common::{host, pattern, read, write};
use dml_arenas::Null;
use dml_arenas::null::Call;
use dml_core::host::Owned;
use dml_core::state::MapState;
use dml_core::{Arena, ArenaDesc, ArenaKind, Concurrency, DeviceId, DeviceSet, HostSpan, Span};
use std::panic::{AssertUnwindSafe, catch_unwind};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);

fn desc(concurrency: Concurrency) -> ArenaDesc {
    ArenaDesc::new("gpu", ArenaKind("test"), GPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(concurrency)
}

fn main_desc() -> ArenaDesc {
    ArenaDesc::new("main", ArenaKind("test"), CPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapFull)
}

/// What a panic says.
fn bug(call: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("a panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

fn mapped() -> MapState {
    MapState::Mapped(DeviceSet::of(CPU))
}

#[test]
fn calls_are_recorded_in_order() {
    let arena = Null::new(desc(Concurrency::Exclusive));
    let (a, b) = (arena.alloc(10).unwrap(), arena.alloc(20).unwrap());
    assert_eq!(arena.copy_in(&b, 3, &host(&[1, 2])).unwrap().wait(), Ok(2));
    arena.map(&b, CPU, mapped()).unwrap();
    arena.unmap(&b, MapState::Unmapped).unwrap();
    arena.touch(&b, GPU);
    assert_eq!(arena.number_of(&a), 0);
    arena.free(a);
    assert_eq!(arena.live_blocks(), 1);
    drop(b);
    assert_eq!(arena.live_blocks(), 0);
    let expected = [
        Call::Alloc { block: 0, len: 10 },
        Call::Alloc { block: 1, len: 20 },
        Call::CopyIn { block: 1, span: Span::new(3, 5) },
        Call::Map { block: 1, device: CPU },
        Call::Unmap { block: 1 },
        Call::Touch { block: 1, device: GPU },
        Call::Free { block: 0 },
    ];
    assert_eq!(arena.calls(), expected);
    assert_eq!(arena.take_calls().len(), 7);
    assert!(arena.calls().is_empty());
}

#[test]
fn a_backed_arena_moves_bytes() {
    let arena = Null::backed(desc(Concurrency::Exclusive));
    let block = arena.alloc(100).unwrap();
    assert!(block.host().is_none());
    let mut expected = pattern(100, 4);
    assert_eq!(arena.copy_in(&block, 0, &host(&expected)).unwrap().wait(), Ok(100));
    assert_eq!(arena.fill(&block, Span::new(9, 13), 7).unwrap().wait(), Ok(4));
    expected[9..13].fill(7);
    let span = arena.map(&block, CPU, mapped()).unwrap().host.unwrap();
    assert_eq!(read(&span), expected);
    write(&span, &[0xAB]);
    expected[0] = 0xAB;
    arena.unmap(&block, MapState::Unmapped).unwrap();
    let to = HostSpan::scratch(50).unwrap();
    assert_eq!(arena.copy_out(&block, 0, &to).unwrap().wait(), Ok(50));
    assert_eq!(read(&to), expected[..50]);
}

#[test]
fn i19_the_state_asked_for_is_the_state_reported() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull] {
        let desc = desc(concurrency);
        let arena = Null::new(desc.clone());
        let block = arena.alloc(8).unwrap();
        let target = MapState::Unmapped.serving(&desc, concurrency, CPU, false);
        let mapped = arena.map(&block, CPU, target).unwrap().state;
        assert_eq!(mapped, target);
        assert!(mapped.is_well_formed(&desc) && mapped.serves(&desc, concurrency, CPU, false));
        assert_eq!(arena.unmap(&block, MapState::Unmapped).unwrap().state, MapState::Unmapped);
    }
}

#[test]
fn a_remote_writer_is_alone_where_only_reading_is_shared() {
    let arena = Null::new(desc(Concurrency::BimapRead));
    let block = arena.alloc(8).unwrap();
    let (both, alone) = (MapState::Bimapped(DeviceSet::of(CPU)), MapState::Mapped(DeviceSet::of(CPU)));
    arena.map(&block, CPU, both).unwrap();
    assert_eq!(arena.map(&block, CPU, alone).unwrap().state, alone);
    assert!(bug(|| arena.touch(&block, GPU)).contains("has no access"));
    assert_eq!(arena.unmap(&block, both).unwrap().state, both);
}

#[test]
fn what_the_contract_rules_out_is_a_panic() {
    let arena = Null::backed(desc(Concurrency::Exclusive)).refusing_mapped_free();
    let block = arena.alloc(8).unwrap();
    assert!(bug(|| drop(arena.copy_in(&block, 5, &host(&[0; 4])))).contains("the block has 8 bytes"));
    assert!(bug(|| drop(arena.unmap(&block, MapState::Unmapped))).contains("Unmapped already"));
    assert!(bug(|| drop(arena.map(&block, DeviceId(7), mapped()))).contains("the remote devices are {d0}"));
    assert!(bug(|| arena.touch(&block, CPU)).contains("has no access"));
    arena.map(&block, CPU, mapped()).unwrap();
    assert!(bug(|| drop(arena.map(&block, CPU, mapped()))).contains("already"));
    assert!(
        bug(|| drop(arena.fill(&block, Span::new(0, 1), 0)))
            .contains("has no access in map state Mapped({d0})")
    );
    assert!(bug(|| arena.touch(&block, GPU)).contains("has no access"));
    assert!(bug(|| arena.free(block.clone())).contains("its map state is"));
    arena.unmap(&block, MapState::Unmapped).unwrap();
    arena.free(block.clone());
    assert!(bug(|| arena.free(block.clone())).contains("the block was freed before"));
    assert!(bug(|| arena.touch(&block, GPU)).contains("the block was freed before"));
    let other = Null::new(desc(Concurrency::Exclusive));
    assert!(bug(|| other.free(block)).contains("a block of another arena"));
    let main = Null::new(main_desc());
    let block = main.alloc(8).unwrap();
    assert!(bug(|| drop(main.map(&block, CPU, mapped()))).contains("always bimapped"));
}

#[test]
fn i10_bound_blocks_share_bytes_and_go_first() {
    let (main, gpu) = (Null::backed(main_desc()), Null::backed(desc(Concurrency::Exclusive)));
    let root = main.alloc(16).unwrap();
    let bound = gpu.bind(&root).unwrap();
    let bytes = pattern(16, 6);
    assert_eq!(gpu.copy_in(&bound, 0, &host(&bytes)).unwrap().wait(), Ok(16));
    assert_eq!(read(&root.host().unwrap()), bytes);
    assert!(bug(|| drop(main.bind(&bound))).contains("the root is itself bound"));
    assert!(bug(|| main.free(root.clone())).contains("1 blocks are bound to it"));
    gpu.free(bound);
    main.free(root.clone());
    assert!(bug(|| drop(gpu.bind(&root))).contains("the root was freed before"));
    assert_eq!((main.live_blocks(), gpu.live_blocks()), (0, 0));
}

#[test]
fn i24_external_storage_is_taken_and_given_back_by_a_host_arena() {
    let main = Null::backed(main_desc());
    let block = main.attach(Box::new(Owned::new(vec![1_u16, 2, 3]))).unwrap();
    assert_eq!(read(&block.host().unwrap()).len(), 6);
    let storage = main.detach(block).unwrap();
    let data = storage.into_any().downcast::<Owned<u16, Vec<u16>>>().unwrap().into_inner();
    assert_eq!((data, main.live_blocks()), (vec![1, 2, 3], 0));
    let own = main.alloc(6).unwrap();
    let own = main.detach(own).unwrap_err();
    main.free(own);
    let gpu = Null::backed(desc(Concurrency::Exclusive));
    let error = gpu.attach(Box::new(Owned::new(vec![1_u16]))).unwrap_err();
    assert!(error.to_string().contains("does not offer external storage"));
}
