//! The test arena: it records, it moves bytes, and it catches what a driver would suffer in silence.

#![cfg(not(dml_loom))]

mod common;

use common::{copy_in, host, pattern, put, take, whole};
use dml_arenas::Null;
use dml_arenas::null::Call;
use dml_core::MapState;
use dml_core::{
    Arena, ArenaDesc, ArenaKind, Backing, BlockRef, Concurrency, CopyIn, DeviceDesc, DeviceId, DeviceKind,
    DeviceSet, HostMemory, MapRequest, OwnBlock, Platform, Span, UnmapRequest, ViewError,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

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

/// A block of an arena that a test also asks what it has recorded.
fn alloc(arena: &Arc<Null>, len: u64) -> OwnBlock {
    let arena: Arc<dyn Arena> = arena.clone();
    OwnBlock::alloc(&arena, len).unwrap()
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
    let arena = Arc::new(Null::new(desc(Concurrency::Exclusive)));
    let (a, b) = (alloc(&arena, 10), alloc(&arena, 20));
    put(&b, 3, &[1, 2]);
    b.map(CPU, mapped()).unwrap();
    b.unmap(MapState::Unmapped).unwrap();
    arena.touch(b.block(), GPU);
    assert_eq!(arena.number_of(a.block()), 0);
    a.free();
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
    let arena = Arc::new(Null::backed(desc(Concurrency::Exclusive)));
    let block = alloc(&arena, 100);
    assert!(block.seen().is_none());
    let mut expected = pattern(100, 4);
    put(&block, 0, &expected);
    assert_eq!(block.fill(Span::new(9, 13), 7).unwrap().wait(), Ok(4));
    expected[9..13].fill(7);
    block.map(CPU, mapped()).unwrap();
    assert_eq!(block.seen().unwrap(), expected);
    block.overwrite(0, &[0xAB]);
    expected[0] = 0xAB;
    block.unmap(MapState::Unmapped).unwrap();
    assert!(block.seen().is_none());
    assert_eq!(take(&block, Span::new(0, 50)), expected[..50]);
}

#[test]
fn i19_the_state_asked_for_is_the_state_reported() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull] {
        let desc = desc(concurrency);
        let arena = Arc::new(Null::new(desc.clone()));
        let block = alloc(&arena, 8);
        let target = MapState::Unmapped.serving(&desc, concurrency, CPU, false);
        let mapped = block.map(CPU, target).unwrap();
        assert_eq!(mapped, target);
        assert!(mapped.is_well_formed(&desc) && mapped.serves(&desc, concurrency, CPU, false));
        assert_eq!(arena.map_state(block.block()), Some(mapped));
        assert_eq!(block.unmap(MapState::Unmapped).unwrap(), MapState::Unmapped);
        assert_eq!(arena.map_state(block.block()), Some(MapState::Unmapped));
    }
}

#[test]
fn a_remote_writer_is_alone_where_only_reading_is_shared() {
    let arena = Arc::new(Null::new(desc(Concurrency::BimapRead)));
    let block = alloc(&arena, 8);
    let (both, alone) = (MapState::Bimapped(DeviceSet::of(CPU)), MapState::Mapped(DeviceSet::of(CPU)));
    block.map(CPU, both).unwrap();
    assert_eq!(block.map(CPU, alone).unwrap(), alone);
    assert!(bug(|| arena.touch(block.block(), GPU)).contains("has no access"));
    assert_eq!(block.unmap(both).unwrap(), both);
}

#[test]
fn what_the_contract_rules_out_is_a_panic() {
    let arena = Arc::new(Null::backed(desc(Concurrency::Exclusive)).refusing_mapped_free());
    let block = alloc(&arena, 8);
    let free = |arena: &Null| arena.free(block.block().clone());
    assert!(bug(|| drop(copy_in(&block, 5, &[0; 4]))).contains("the block has 8 bytes"));
    assert!(bug(|| drop(block.unmap(MapState::Unmapped))).contains("Unmapped already"));
    assert!(bug(|| drop(block.map(DeviceId(7), mapped()))).contains("the remote devices are {d0}"));
    assert!(bug(|| arena.touch(block.block(), CPU)).contains("has no access"));
    block.map(CPU, mapped()).unwrap();
    assert!(bug(|| drop(block.map(CPU, mapped()))).contains("already"));
    assert!(bug(|| drop(block.fill(Span::new(0, 1), 0))).contains("has no access in map state Mapped({d0})"));
    assert!(bug(|| arena.touch(block.block(), GPU)).contains("has no access"));
    assert!(bug(|| free(&arena)).contains("its map state is"));
    block.unmap(MapState::Unmapped).unwrap();
    free(&arena);
    assert!(bug(|| free(&arena)).contains("the block was freed before"));
    assert!(bug(|| arena.touch(block.block(), GPU)).contains("the block was freed before"));
    let other = Null::new(desc(Concurrency::Exclusive));
    assert!(bug(|| free(&other)).contains("a block of another arena"));
    let main = Arc::new(Null::new(main_desc()));
    let block = alloc(&main, 8);
    assert!(bug(|| drop(block.map(CPU, mapped()))).contains("always bimapped"));
}

#[test]
fn i10_bound_blocks_share_bytes_and_go_first() {
    let (main, gpu) = (Null::backed(main_desc()), Null::backed(desc(Concurrency::Exclusive)));
    let root = main.alloc(16).unwrap();
    let seen = root.host().expect("the host's own").clone();
    // SAFETY: this test alone uses the root, for as long as it keeps it, and what is bound to it.
    let over = |root: &BlockRef, host| unsafe { Backing::new(Some(root.clone()), 16, host) };
    let bound = gpu.bind(&over(root.block(), Some(seen.clone()))).unwrap().into_block();
    let bytes = pattern(16, 6);
    let from = host(&bytes);
    // SAFETY: this test alone uses the block and its root, and nothing else is under way.
    let copy = unsafe { CopyIn::new(&bound, 0, from.source(whole(&from))) };
    assert_eq!(gpu.copy_in(copy).unwrap().wait(), Ok(16));
    // SAFETY: as above; the root is alive.
    assert_eq!(unsafe { std::slice::from_raw_parts(seen.as_ptr(), 16) }, bytes);
    assert!(bug(|| drop(main.bind(&over(&bound, None)))).contains("the root is itself bound"));
    assert!(bug(|| main.free(root.block().clone())).contains("1 blocks are bound to it"));
    gpu.free(bound);
    main.free(root.block().clone());
    assert!(bug(|| drop(gpu.bind(&over(root.block(), None)))).contains("the root was freed before"));
    assert_eq!((main.live_blocks(), gpu.live_blocks()), (0, 0));
}

#[test]
fn i24_external_storage_is_used_in_place_by_a_host_arena() {
    let main = Null::backed(main_desc());
    let main = Arc::new(main);
    let arena: Arc<dyn Arena> = main.clone();
    let memory = HostMemory::holding(vec![1_u16, 2, 3]);
    let address = memory.span().as_ptr().addr();
    let block = OwnBlock::attach(&arena, memory).unwrap();
    assert_eq!((block.block().len(), block.block().native().0), (6, address));
    let from = host(&[4_u16, 5].map(u16::to_ne_bytes).concat());
    assert_eq!(block.copy_in(2, &from, whole(&from)).unwrap().wait(), Ok(4));
    assert_eq!(block.seen().unwrap(), [1_u16, 4, 5].map(u16::to_ne_bytes).concat());
    block.free();
    assert_eq!(main.take_calls().last(), Some(&Call::Free { block: 0 }));
    assert_eq!(main.live_blocks(), 0);
    let gpu: Arc<dyn Arena> = Arc::new(Null::backed(desc(Concurrency::Exclusive)));
    let error = OwnBlock::attach(&gpu, HostMemory::holding(vec![1_u16, 2, 3])).unwrap_err();
    assert_eq!(error.storage.bytes(), [1_u16, 2, 3].map(u16::to_ne_bytes).concat());
    assert!(error.to_string().contains("does not offer external storage"));
}

#[test]
fn i24_external_storage_comes_back_and_the_arenas_own_does_not() {
    let main = Arc::new(Null::backed(main_desc()));
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_arena(main.clone());
    let platform = builder.build().unwrap();
    let data = vec![1_u16, 2, 3];
    let address = data.as_ptr();
    let buffer = platform.buffer_from(data).unwrap();
    assert_eq!(main.live_blocks(), 1);
    let back = buffer.into_vec().unwrap();
    assert_eq!((back.as_ptr(), &back[..], main.live_blocks()), (address, &[1_u16, 2, 3][..], 0));
    // What the arena has allocated is its own: the application gets a copy.
    let own = platform.buffer::<u16>(3).zeroed().build().unwrap();
    let mut view = own.read_write().unwrap();
    let seen = view.as_ptr();
    view.copy_from_slice(&[7, 8, 9]);
    view.release().unwrap();
    let copy = own.into_vec().unwrap();
    assert_ne!(copy.as_ptr(), seen);
    assert_eq!((copy, main.live_blocks()), (vec![7, 8, 9], 0));
}

/// A platform of main memory and one device with a memory of its own, both recorded, and the device's memory.
fn recorded(gpu: Null) -> (Platform, Arc<Null>, DeviceId) {
    let (main, gpu) = (Arc::new(Null::backed(main_desc())), Arc::new(gpu));
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let device = builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    builder.add_arena(main);
    builder.add_arena(gpu.clone());
    (builder.build().unwrap(), gpu, device)
}

#[test]
fn a_kernel_of_the_test_reads_and_writes_what_was_granted() {
    let (platform, gpu, device) = recorded(Null::backed(desc(Concurrency::Exclusive)));
    let buffer = platform.buffer_from(pattern(10, 1)).unwrap();
    let part = buffer.range(2..6);
    let mut grants = platform.acquire(device).read_write(&part).wait().unwrap();
    assert_eq!(gpu.read(&grants, &part).unwrap(), pattern(10, 1)[2..6]);
    for wrong in [3, 5] {
        let refused = gpu.write(&mut grants, &part, &vec![7; wrong]).unwrap_err();
        assert!(matches!(refused, ViewError::Size { element_bytes, .. } if element_bytes == wrong as u64));
    }
    gpu.write(&mut grants, &part, &[7, 8, 9, 10]).unwrap();
    assert_eq!(gpu.read(&grants, &part).unwrap(), [7, 8, 9, 10]);
    assert!(gpu.read(&grants, &buffer.range(6..7)).is_err(), "it is not granted");
    let block = grants.block(&part).unwrap().unwrap().clone();
    assert!(gpu.calls().contains(&Call::Touch { block: gpu.number_of(&block), device }));
    grants.release().unwrap();
    let mut expected = pattern(10, 1);
    expected[2..6].copy_from_slice(&[7, 8, 9, 10]);
    assert_eq!(*buffer.read().unwrap(), expected);
}

#[test]
fn blocks_are_told_apart_by_their_numbers() {
    let gpu = Arc::new(Null::new(desc(Concurrency::Exclusive)));
    let blocks = [4, 4, 4].map(|len| alloc(&gpu, len));
    assert_eq!(blocks.each_ref().map(|block| gpu.number_of(block.block())), [0, 1, 2]);
    // No handle is zero.
    assert_eq!(blocks.each_ref().map(|block| block.block().native().0), [1, 2, 3]);
}

#[test]
fn a_map_state_must_serve_whoever_asks_and_be_one_of_the_arenas() {
    let gpu = Arc::new(Null::new(desc(Concurrency::Exclusive)));
    let block = alloc(&gpu, 4);
    // The state serves the host, but the arena has no such state.
    let bimapped = MapState::Bimapped(DeviceSet::of(CPU));
    assert!(bug(|| drop(block.map(CPU, bimapped))).contains("does not serve device d0"));
    // The state is one of the arena's, but does not serve the host.
    block.map(CPU, mapped()).unwrap();
    assert!(bug(|| drop(block.map(CPU, MapState::Unmapped))).contains("does not serve device d0"));
    assert_eq!(gpu.map_state(block.block()), Some(mapped()));
}

#[test]
fn memory_is_shown_with_the_mapping_that_lets_the_host_in() {
    let gpu = Arc::new(Null::backed(desc(Concurrency::BimapFull)));
    let block = alloc(&gpu, 4);
    let both = MapState::Bimapped(DeviceSet::of(CPU));
    let mut host = None;
    // SAFETY: this test alone uses the block.
    let report = gpu.map(unsafe { MapRequest::new(block.block(), CPU, both, &mut host) }).unwrap();
    let shown = report.host.expect("the host is let in");
    assert_eq!(shown.len(), 4);
    host = Some(shown);
    // SAFETY: as above.
    let report = gpu.map(unsafe { MapRequest::new(block.block(), CPU, mapped(), &mut host) }).unwrap();
    assert!(report.host.is_none() && host.is_some(), "it has been shown");
    // SAFETY: as above.
    let unmap = unsafe { UnmapRequest::new(block.block(), MapState::Unmapped, &mut host) };
    assert!(gpu.unmap(unmap).unwrap().host.is_none(), "the host is let out");
    assert!(host.is_none());
}

#[test]
fn a_bound_block_that_is_dropped_lets_its_root_go() {
    let (main, gpu) = (Null::backed(main_desc()), Null::backed(desc(Concurrency::Exclusive)));
    let root = main.alloc(16).unwrap();
    let seen = root.host().expect("the host's own").clone();
    // SAFETY: this test alone uses the root and what is bound to it.
    let over = unsafe { Backing::new(Some(root.block().clone()), 16, Some(seen)) };
    for _ in 0..2 {
        let bound = gpu.bind(&over).unwrap().into_block();
        assert!(bug(|| main.free(root.block().clone())).contains("1 blocks are bound to it"));
        drop(bound);
    }
    main.free(root.block().clone());
    assert_eq!((main.live_blocks(), gpu.live_blocks()), (0, 0));
}
