//! Safe code that comes by the memory of a block, from the report of a mapping. It may keep the memory and
//! pass it on. It can neither look at it nor have core take it for another block's.

use dml::arenas::{MainMem, Null};
use dml::core::MapState;
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    AcquireError, AllocError, Allocation, Arena, ArenaDesc, ArenaId, ArenaKind, Block, Breach, Concurrency,
    DeviceDesc, DeviceId, DeviceKind, DeviceSet, HostMapped, HostMemory, Link, MapReport, MapRequest,
    NativeHandle, NewBlock, OwnBlock, Platform, Span, TransferError,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const MAIN: ArenaId = ArenaId(0);
const DEVICE: ArenaId = ArenaId(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Well,
    /// It keeps the memory of a mapping and reports none.
    Keeps,
    /// It takes the memory that it kept for that of the block to be mapped.
    Reports,
    /// It puts the memory that it kept back for that of the block to be mapped.
    PutsBack,
    /// It answers an allocation with it.
    Allocates,
}

/// An honest arena in the hands of safe code.
#[derive(Debug)]
struct Thief {
    inner: Null,
    how: Mutex<How>,
    kept: Mutex<Vec<HostMemory>>,
}

/// A block of the thief's own.
#[derive(Debug)]
struct Own;

impl Block for Own {
    fn len(&self) -> u64 {
        64
    }

    fn native(&self) -> NativeHandle {
        NativeHandle(0)
    }
}

impl Thief {
    fn new(concurrency: Concurrency) -> Arc<Self> {
        let desc = ArenaDesc::new("device", ArenaKind("thief"), GPU)
            .with_remotes(DeviceSet::of(CPU))
            .with_concurrency(concurrency);
        Arc::new(Self { inner: Null::backed(desc), how: Mutex::new(How::Well), kept: Mutex::new(Vec::new()) })
    }

    fn turn(&self, how: How) {
        *self.how.lock() = how;
    }
}

impl Arena for Thief {
    passes_on!(desc, unmap, copy_in, copy_out, fill);

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        if *self.how.lock() != How::Allocates {
            return self.inner.alloc(len);
        }
        let kept = self.kept.lock().pop().expect("it has kept some");
        Ok(NewBlock::new(Arc::new(Own)).with_host(kept))
    }

    fn map(&self, mut request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        let how = *self.how.lock();
        if how == How::PutsBack {
            request.put_back(self.kept.lock().pop().expect("it has kept some"));
            return Err(TransferError::DeviceLost { loss: None });
        }
        let mut report = self.inner.map(request)?;
        match how {
            How::Keeps => self.kept.lock().extend(report.host.take()),
            How::Reports => report.host = self.kept.lock().pop(),
            _ => {}
        }
        Ok(report)
    }
}

/// Main memory, and the thief, whose blocks the host maps.
fn platform(thief: &Arc<Thief>) -> Platform {
    let mut builder = Platform::builder().without_default_links();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    builder.add_arena(thief.clone());
    for (from, to) in [(MAIN, DEVICE), (DEVICE, MAIN)] {
        let link = Link { from, to, source_via: CPU, target_via: CPU, allocation: Allocation::Internal };
        builder.add_link(link, Arc::new(HostMapped::default()));
    }
    builder.build().unwrap()
}

/// A plug-in that obtains the memory of a block, in whatever way, cannot access it.
#[test]
fn the_memory_of_a_block_is_for_core_alone() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapFull] {
        let thief = Thief::new(concurrency);
        thief.turn(How::Keeps);
        let arena: Arc<dyn Arena> = thief.clone();
        let own = OwnBlock::alloc(&arena, 64).unwrap();
        let target = match concurrency {
            Concurrency::Exclusive => MapState::Mapped(DeviceSet::of(CPU)),
            _ => MapState::Bimapped(DeviceSet::of(CPU)),
        };
        own.map(CPU, target).unwrap();
        assert_eq!(own.seen(), None, "nothing was reported");
        let mut kept = thief.kept.lock().pop().expect("the thief has it");
        let panics = |act: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(act)).is_err();
        assert!(panics(&mut || drop(kept.bytes().to_vec())));
        assert!(panics(&mut || kept.bytes_mut()[0] = 1));
        assert!(panics(&mut || drop(kept.source(Span::new(0, 8)))));
        assert!(panics(&mut || drop(kept.target(Span::new(0, 8)))));
        // Nor can another block be made over it.
        let (main, mut kept): (Arc<dyn Arena>, _) = (Arc::new(MainMem::new(CPU)), Some(kept));
        assert!(panics(&mut || drop(OwnBlock::attach(&main, kept.take().expect("once")))));
    }
}

/// Of all that core is given for a block, it takes what is that block's.
#[test]
fn the_memory_of_one_block_is_not_anothers() {
    for how in [How::Reports, How::PutsBack, How::Allocates] {
        let thief = Thief::new(Concurrency::Exclusive);
        let platform = platform(&thief);
        // The memory of a mapping of a block that is another buffer's.
        let robbed = platform.raw_buffer(64).build().unwrap();
        platform.acquire(CPU).write(&robbed).wait().unwrap().release().unwrap();
        thief.turn(How::Keeps);
        assert!(platform.acquire(GPU).read(&robbed).wait().is_err(), "the host was not told where");
        thief.turn(how);
        let buffer = platform.raw_buffer(64).build().unwrap();
        platform.acquire(CPU).write(&buffer).wait().unwrap().release().unwrap();
        let told = platform.acquire(GPU).read(&buffer).wait().map(drop).unwrap_err();
        let expected = match how {
            How::Allocates => {
                matches!(told, AcquireError::Alloc { cause: AllocError::OtherStorage { .. }, .. })
            }
            _ => matches!(told, AcquireError::ArenaContract { breach: Breach::OtherMemory, .. }),
        };
        assert!(expected, "{how:?}: {told:?}");
    }
}

/// One's own block shows nothing of another's either.
#[test]
fn a_block_of_ones_own_shows_its_own_memory() {
    let thief = Thief::new(Concurrency::Exclusive);
    let arena: Arc<dyn Arena> = thief.clone();
    let (robbed, own) = (OwnBlock::alloc(&arena, 64).unwrap(), OwnBlock::alloc(&arena, 64).unwrap());
    let target = MapState::Mapped(DeviceSet::of(CPU));
    thief.turn(How::Keeps);
    robbed.map(CPU, target).unwrap();
    thief.turn(How::Reports);
    own.map(CPU, target).unwrap();
    assert_eq!((own.seen(), own.address()), (None, None));
    assert!(catch_unwind(AssertUnwindSafe(|| own.overwrite(0, &[1]))).is_err());
}
