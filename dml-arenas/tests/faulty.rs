//! Arenas that fail on cue.

#![cfg(not(dml_loom))]

mod common;

use common::{copy_in, copy_out, host, pattern, put};
use dml_arenas::faulty::{CallKind, Fault};
use dml_arenas::{Faulty, FaultyCross, MainMem, Null, Script};
use dml_core::MapState;
use dml_core::{
    AllocError, Allocation, Arena, ArenaDesc, ArenaKind, Concurrency, CopyIn, CopyOut, CopyQuery, CrossArena,
    DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, Fill, HostMemory, HostStaged, Link, MapReport,
    MapRequest, NewBlock, OwnBlock, Platform, Span, TransferError, UnmapRequest,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);

fn faulty(script: Script) -> Arc<Faulty<MainMem>> {
    Arc::new(Faulty::new(MainMem::new(CPU), script))
}

/// A block of an arena that a test also asks how often it was called.
fn alloc<A: Arena>(arena: &Arc<A>, len: u64) -> OwnBlock {
    let arena: Arc<dyn Arena> = arena.clone();
    OwnBlock::alloc(&arena, len).unwrap()
}

#[test]
fn an_empty_script_changes_nothing() {
    let arena = faulty(Script::new());
    let block = alloc(&arena, 16);
    let bytes = pattern(16, 1);
    put(&block, 0, &bytes);
    assert_eq!(block.seen().unwrap(), bytes);
    let storage = host(&[7]);
    let address = storage.span().as_ptr().addr();
    let outside: Arc<dyn Arena> = arena.clone();
    let attached = OwnBlock::attach(&outside, storage).unwrap();
    assert_eq!((attached.block().native().0, attached.seen()), (address, Some(vec![7])));
    attached.free();
    block.free();
    assert_eq!((arena.calls_made(), arena.calls_of(CallKind::CopyIn)), (5, 1));
    assert_eq!(&*arena.inner().desc().name, "main_mem");
}

#[test]
fn the_arena_inside_admits_its_own_blocks() {
    let null = |name| Null::new(ArenaDesc::new(name, ArenaKind("test"), DeviceId(1)));
    let arena = Faulty::new(null("gpu"), Script::new());
    let [own, other] = [arena.alloc(8), null("other").alloc(8)].map(|made| made.unwrap().into_block());
    assert_eq!(arena.admit(&own), Ok(()));
    assert!(arena.admit(&other).is_err());
    arena.free(own);
}

#[test]
fn the_named_call_fails_and_the_next_does_not() {
    let arena = faulty(
        Script::new()
            .at_kind(CallKind::Alloc, 2, Fault::fail())
            .at(4, Fault::Fail(TransferError::DeviceLost { loss: None })),
    );
    let block = alloc(&arena, 8);
    assert!(arena.alloc(8).unwrap_err().is_out_of_memory());
    assert!(arena.alloc(8).is_ok());
    assert_eq!(copy_in(&block, 0, &[9]).unwrap_err(), TransferError::DeviceLost { loss: None });
    assert_eq!(block.seen().unwrap(), [0; 8]);
}

#[test]
fn a_short_transfer_moves_its_part_and_says_so() {
    let arena = faulty(
        Script::new()
            .at_kind(CallKind::CopyIn, 1, Fault::Short(5))
            .at_kind(CallKind::CopyOut, 1, Fault::Short(2))
            .at_kind(CallKind::Fill, 1, Fault::Short(1)),
    );
    let block = alloc(&arena, 12);
    let bytes = pattern(10, 3);
    assert_eq!(copy_in(&block, 1, &bytes).unwrap().wait(), Ok(5));
    let mut expected = vec![0; 12];
    expected[1..6].copy_from_slice(&bytes[..5]);
    assert_eq!(block.seen().unwrap(), expected);
    let mut to = host(&[0xEE; 4]);
    assert_eq!(copy_out(&block, 1, &mut to).unwrap().wait(), Ok(2));
    assert_eq!(to.bytes(), [bytes[0], bytes[1], 0xEE, 0xEE]);
    assert_eq!(block.fill(Span::new(8, 12), 1).unwrap().wait(), Ok(1));
    assert_eq!(block.seen().unwrap()[8..], [1, 0, 0, 0]);
}

#[test]
fn faults_can_come_with_the_fence() {
    let arena = faulty(
        Script::new()
            .at(2, Fault::FailInFence(TransferError::DeviceLost { loss: None }))
            .at(3, Fault::PanicInFence)
            .at(4, Fault::Slow(Duration::from_millis(30)))
            .at(5, Fault::Panic),
    );
    let block = alloc(&arena, 4);
    let fill = |byte| block.fill(Span::new(0, 4), byte);
    assert_eq!(fill(1).unwrap().wait(), Err(TransferError::DeviceLost { loss: None }));
    let fence = fill(2).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| fence.wait())).is_err());
    let begun = Instant::now();
    let fence = fill(3).unwrap();
    assert_eq!(fence.wait(), Ok(4));
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert!(catch_unwind(AssertUnwindSafe(|| fill(4))).is_err());
    assert_eq!(block.seen().unwrap(), [3; 4]);
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
    let arena = Arc::new(Faulty::new(Null::backed(desc), script));
    let (block, mapped) = (arena.alloc(4).unwrap().into_block(), MapState::Mapped(DeviceSet::of(CPU)));
    let mut host = None;
    // SAFETY: this test alone uses the block.
    let request = unsafe { MapRequest::new(&block, CPU, mapped, &mut host) };
    let report = arena.map(request).unwrap();
    assert_eq!((report.state, report.host.as_ref().map(HostMemory::len)), (MapState::Unmapped, Some(4)));
    assert_eq!(arena.map_state(&block), Some(mapped));
    host = report.host;
    let mut unmap = || {
        // SAFETY: as above.
        arena.unmap(unsafe { UnmapRequest::new(&block, MapState::Unmapped, &mut host) })
    };
    assert!(unmap().is_err());
    assert_eq!(unmap().unwrap().state, MapState::Unmapped);
    assert!(host.is_none());
}

#[test]
fn a_mechanism_keeps_its_price() {
    let cross = FaultyCross::new(HostStaged::default(), Script::new().at(1, Fault::Panic));
    let query = CopyQuery { bytes: 100, remap_source: false, remap_target: false, allocates: false };
    assert_eq!(cross.can_copy(&query), cross.inner().can_copy(&query));
    assert_eq!((cross.name(), cross.calls_made()), ("staged", 0));
}

#[test]
fn storage_fails_as_the_script_says() {
    let script = Script::new()
        .at_kind(CallKind::Alloc, 1, Fault::Fail(TransferError::DeviceLost { loss: None }))
        .at_kind(CallKind::Alloc, 2, Fault::FailInFence(TransferError::DeviceLost { loss: None }))
        .at_kind(CallKind::Alloc, 3, Fault::FailInFence(TransferError::StillLent))
        .at_kind(CallKind::Alloc, 4, Fault::Short(3))
        .at_kind(CallKind::Alloc, 5, Fault::Short(9))
        .at_kind(CallKind::Alloc, 6, Fault::Slow(Duration::from_millis(30)));
    let arena = faulty(script);
    let name = arena.desc().name.clone();
    let lost = || AllocError::DeviceLost { arena: name.clone(), loss: None };
    assert_eq!([(); 2].map(|()| arena.alloc(8).map(drop)), [Err(lost()), Err(lost())]);
    let full = AllocError::OutOfMemory { arena: name.clone(), bytes: 8 };
    assert_eq!(arena.alloc(8).map(drop), Err(full));
    assert_eq!([3, 8].map(|_| arena.alloc(8).unwrap().into_block().len()), [3, 8]);
    let begun = Instant::now();
    assert_eq!(arena.alloc(8).unwrap().into_block().len(), 8);
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert_eq!(
        (arena.calls_made(), arena.calls_of(CallKind::Alloc), arena.calls_of(CallKind::Free)),
        (6, 6, 0)
    );
    let Fault::Fail(error) = Fault::fail() else { panic!("it fails") };
    assert_eq!(error.to_string(), "scripted failed: the script says so (code -1)");
}

#[test]
fn copies_of_a_mechanism_are_counted() {
    let script = Script::new().at(2, Fault::fail());
    let cross = Arc::new(FaultyCross::new(HostStaged::default(), script));
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let gpu = builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let main = builder.add_arena(Arc::new(MainMem::new(CPU)));
    let own = builder.add_arena(Arc::new(Null::backed(ArenaDesc::new("gpu", ArenaKind("test"), gpu))));
    for (from, to, [source_via, target_via]) in [(main, own, [CPU, gpu]), (own, main, [gpu, CPU])] {
        let allocation = Allocation::Internal;
        builder.add_link(Link { from, to, source_via, target_via, allocation }, cross.clone());
    }
    let platform = builder.build().unwrap();
    let buffer = platform.buffer_from(pattern(100, 3)).unwrap();
    platform.acquire(gpu).read_write(&buffer).wait().unwrap().release().unwrap();
    assert_eq!(cross.calls_made(), 1);
    assert!(buffer.read().is_err());
    assert_eq!(cross.calls_made(), 2);
    assert_eq!(*buffer.read().unwrap(), pattern(100, 3));
    assert_eq!(cross.calls_made(), 3);
}

/// Main memory that is gone, and says why.
#[derive(Debug)]
struct Gone(MainMem);

impl Arena for Gone {
    fn desc(&self) -> &ArenaDesc {
        self.0.desc()
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        self.0.alloc(len)
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        self.0.map(request)
    }

    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.0.unmap(request)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.0.copy_in(copy)
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.0.copy_out(copy)
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.0.fill(fill)
    }

    fn is_lost(&self) -> bool {
        true
    }

    fn loss(&self) -> Option<Arc<str>> {
        Some("it was pulled out".into())
    }
}

#[test]
fn a_loss_is_told_as_the_arena_inside_tells_it() {
    let gone = Faulty::new(Gone(MainMem::new(CPU)), Script::new());
    assert_eq!((gone.is_lost(), gone.loss().as_deref()), (true, Some("it was pulled out")));
    let there = faulty(Script::new());
    assert_eq!((there.is_lost(), there.loss()), (false, None));
}
