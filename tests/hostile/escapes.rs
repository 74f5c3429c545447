//! Safe code around an honest arena, which tries to come by an access that core did not give. It answers with
//! a block that is not new, keeps a transfer, names another buffer each time it is asked. And code that
//! others call for it.

use dml::arenas::MainMem;
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    Access, AcquireError, AllocError, Allocation, Arena, ArenaDesc, ArenaId, ArenaKind, BlockRef, Breach,
    Concurrency, CopyIn, CopyJob, CopyQuery, Cost, CrossArena, DeviceDesc, DeviceId, DeviceKind, DeviceSet,
    Fence, Grants, HostMemory, Link, MapReport, MapRequest, NewBlock, OwnBlock, Platform, RawBuffer, Region,
    TransferError, UnmapRequest,
};
use dml::scheduler::{Argument, Coexecutor, Footprint, Kernel, KernelError, Package};
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Well,
    SameBlock,
    KeepsCopies,
    /// It has lost its device once it is told so, and panics when it is asked why.
    PanicsAtItsLoss,
}

/// Main memory in the hands of safe code.
#[derive(Debug)]
struct Wrap {
    desc: ArenaDesc,
    inner: MainMem,
    how: How,
    block: Mutex<Option<BlockRef>>,
    kept: Mutex<Vec<CopyIn>>,
    is_lost: AtomicBool,
}

impl Wrap {
    fn new(device: DeviceId, how: How) -> Arc<Self> {
        let name = if device == CPU { "wrap" } else { "device" };
        let mut desc = ArenaDesc::new(name, ArenaKind("wrap"), device);
        if device == CPU {
            desc = desc.with_remotes(DeviceSet::of(CPU)).with_concurrency(Concurrency::BimapFull);
        }
        let (block, kept, is_lost) = (Mutex::new(None), Mutex::new(Vec::new()), AtomicBool::new(false));
        Arc::new(Self { desc, inner: MainMem::new(device), how, block, kept, is_lost })
    }

    /// Carries out what it has kept.
    fn go_on(&self) {
        let copy = self.kept.lock().pop().expect("it has kept one");
        let _ = self.inner.copy_in(copy).map(Fence::wait);
    }
}

impl Arena for Wrap {
    passes_on!(copy_out, fill);

    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let before = self.block.lock().clone();
        if let (How::SameBlock, Some(block)) = (self.how, before) {
            return Ok(NewBlock::new(block));
        }
        if self.how != How::SameBlock {
            return self.inner.alloc(len);
        }
        let block = self.inner.alloc(len)?.into_block();
        *self.block.lock() = Some(block.clone());
        Ok(NewBlock::new(block))
    }

    fn attach(&self, storage: &dml::core::Backing) -> Result<BlockRef, AllocError> {
        self.inner.attach(storage)
    }

    fn map(&self, _: MapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!("always accessible")
    }

    fn unmap(&self, _: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!("always accessible")
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        if self.how != How::KeepsCopies {
            return self.inner.copy_in(copy);
        }
        let bytes = copy.len();
        self.kept.lock().push(copy);
        Ok(Fence::done(bytes))
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    fn loss(&self) -> Option<Arc<str>> {
        panic!("why, indeed")
    }
}

/// A platform of these arenas, in which the device's contents come to the host by `mechanism`.
fn platform_of(arenas: &[&Arc<Wrap>], mechanism: Option<Arc<dyn CrossArena>>) -> Platform {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    for &arena in arenas {
        builder.add_arena(arena.clone());
    }
    if let Some(mechanism) = mechanism {
        let (from, to, allocation) = (ArenaId(1), ArenaId(0), Allocation::Internal);
        builder.add_link(Link { from, to, source_via: GPU, target_via: CPU, allocation }, mechanism);
    }
    builder.build().unwrap()
}

fn raw(platform: &Platform) -> RawBuffer {
    platform.raw_buffer(64).zeroed().build().unwrap()
}

fn is_kept<T: fmt::Debug>(told: Result<T, AcquireError>) -> bool {
    matches!(told, Err(AcquireError::ArenaContract { breach: Breach::StillLent, .. }))
}

/// One block for two buffers would show each what is written to the other.
#[test]
fn a_block_serves_one_buffer() {
    let wrap = Wrap::new(CPU, How::SameBlock);
    let arena: Arc<dyn Arena> = wrap.clone();
    let told = OwnBlock::alloc(&arena, 64).unwrap_err();
    assert_eq!(told, AllocError::NotNew { arena: "wrap".into() });
    let told = platform_of(&[&wrap], None).acquire(CPU).read(&raw(&platform_of(&[&wrap], None))).wait();
    assert!(told.is_err());
    let platform = platform_of(&[&wrap], None);
    let told = platform.acquire(CPU).write(&raw(&platform)).wait().unwrap_err();
    assert!(matches!(told, AcquireError::Alloc { cause: AllocError::NotNew { .. }, .. }), "{told}");
}

/// A grant whose transfer the arena has kept shows nothing any more: the transfer may still be carried out.
#[test]
fn a_grant_ends_with_the_contract() {
    let wrap = Wrap::new(CPU, How::KeepsCopies);
    let platform = platform_of(&[&wrap], None);
    let buffer = raw(&platform);
    let mut grants = platform.acquire(CPU).write(&buffer).wait().unwrap();
    assert!(is_kept(grants.write_bytes(&buffer, &[9; 64])));
    assert!(grants.slice::<u8>(&buffer).is_err() && grants.slice_mut::<u8>(&buffer).is_err());
    assert!(grants.views().is_err() && grants.block(&buffer).is_err());
    assert!(grants.granted(&buffer, Access::ReadOnly).is_err() && grants.read_bytes(&buffer).is_err());
    wrap.go_on();
}

/// A region that names two buffers in turn.
struct Liar(Mutex<u32>, RawBuffer, RawBuffer);

impl Region for Liar {
    fn buffer(&self) -> &RawBuffer {
        let mut asked = self.0.lock();
        *asked += 1;
        if *asked == 1 { &self.1 } else { &self.2 }
    }

    fn bytes(&self) -> Range<u64> {
        0..64
    }
}

/// What is written, told of and given up is one buffer, whatever the region says later.
#[test]
fn a_region_is_asked_once_for_its_buffer() {
    let wrap = Wrap::new(CPU, How::KeepsCopies);
    let platform = platform_of(&[&wrap], None);
    let (first, second) = (raw(&platform), raw(&platform));
    let mut grants = platform.acquire(CPU).write(&first).write(&second).wait().unwrap();
    grants.slice_mut::<u8>(&second).unwrap().fill(1);
    assert!(is_kept(grants.write_bytes(&Liar(Mutex::new(0), first.clone(), second.clone()), &[9; 64])));
    assert!(grants.slice::<u8>(&first).is_err(), "the buffer asked for is the one given up");
    wrap.go_on();
    assert_eq!(grants.slice::<u8>(&second).unwrap(), [1; 64]);
}

/// An application's vector is not freed while an arena may still write to it; what is left is a leak. (A
/// sanitizer sees more.)
#[test]
fn storage_outlives_a_kept_transfer() {
    let wrap = Wrap::new(CPU, How::KeepsCopies);
    let platform = platform_of(&[&wrap], None);
    let buffer = platform.buffer_from(vec![0_u8; 1 << 12]).unwrap();
    let mut grants = platform.acquire(CPU).write(&buffer).wait().unwrap();
    let address = grants.slice::<u8>(&buffer).unwrap().as_ptr().addr();
    assert!(is_kept(grants.write_bytes(&buffer, &[9; 1 << 12])));
    drop(grants);
    drop((buffer, platform));
    let others: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 1 << 12]).collect();
    assert!(others.iter().all(|other| other.as_ptr().addr() != address), "it was freed");
    wrap.go_on();
    assert!(others.iter().flatten().all(|&byte| byte == 1));
}

/// A mechanism that hides what came of staging.
#[derive(Debug)]
enum Hides {
    /// Through scratch memory of core.
    Stage,
    /// Through scratch memory of its own.
    Own,
}

impl CrossArena for Hides {
    fn name(&self) -> &'static str {
        "hides"
    }

    fn can_copy(&self, _: &CopyQuery) -> Option<Cost> {
        Some(Cost::from_ns(1))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let bytes = job.len();
        let _ = match self {
            Self::Stage => job.stage().map(drop),
            Self::Own => {
                let mut scratch = HostMemory::zeroed(bytes)?;
                let read = job.read_into(&mut scratch).and_then(Fence::wait);
                let written =
                    if scratch.is_lent() { read } else { job.write_from(&scratch).and_then(Fence::wait) };
                written.map(drop)
            }
        };
        Ok(Fence::done(bytes))
    }
}

/// A piece of a staged copy counts as the copy: who keeps it has kept that.
#[test]
fn a_staged_piece_that_is_kept_is_noticed_past_the_mechanism() {
    for by in [|| Hides::Stage, || Hides::Own] {
        let (main, device) = (Wrap::new(CPU, How::KeepsCopies), Wrap::new(GPU, How::Well));
        let platform = platform_of(&[&main, &device], Some(Arc::new(by())));
        let buffer = raw(&platform);
        let mut grants = platform.acquire(GPU).write(&buffer).wait().unwrap();
        grants.write_bytes(&buffer, &[5; 64]).unwrap();
        grants.release().unwrap();
        assert!(is_kept(platform.acquire(CPU).read(&buffer).wait()), "{:?}", by());
        main.go_on();
    }
}

type Flight = Pin<Box<dyn Future<Output = ()> + Send>>;

struct DropsAnother(Mutex<Option<Flight>>);

impl Wake for DropsAnother {
    fn wake(self: Arc<Self>) {
        let another = self.0.lock().take();
        drop(another);
    }
}

fn pending(platform: &Platform, buffer: &RawBuffer, waker: &Waker) -> Flight {
    let acquire = platform.acquire(CPU).read(buffer).into_future();
    let mut flight: Flight = Box::pin(async move { drop(acquire.await) });
    assert!(flight.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    flight
}

/// Of two who are let in at once, the waker of one drops the other, whose answer must be there by then.
#[test]
fn a_waker_may_drop_another_who_is_let_in() {
    let platform = platform_of(&[&Wrap::new(CPU, How::Well)], None);
    let buffer = raw(&platform);
    // Its zeros are there, so that both readers are let in by one change.
    platform.acquire(CPU).read(&buffer).wait().unwrap().release().unwrap();
    let writer = platform.acquire(CPU).write(&buffer).wait().unwrap();
    let drops = Arc::new(DropsAnother(Mutex::new(None)));
    let _first = pending(&platform, &buffer, &drops.clone().into());
    let second = pending(&platform, &buffer, Waker::noop());
    *drops.0.lock() = Some(second);
    drop(writer);
    assert!(drops.0.lock().is_none(), "the waker was called");
}

#[derive(Debug)]
struct Rude {
    panics_when_shown: bool,
    panics_when_dropped: bool,
}

impl fmt::Display for Rude {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(!self.panics_when_shown, "no words");
        f.write_str("rude")
    }
}

impl Error for Rude {}

impl Drop for Rude {
    fn drop(&mut self) {
        if self.panics_when_dropped {
            std::panic::resume_unwind(Box::new("dropped"));
        }
    }
}

/// A unit whose error, or whose arena, panics when it is asked what is wrong hands its work to the others.
#[test]
fn what_panics_when_it_is_asked_what_is_wrong_ends_its_unit_alone() {
    let ways = [How::Well, How::PanicsAtItsLoss];
    let panics = [(true, false), (false, true), (true, true)];
    for (how, (panics_when_shown, panics_when_dropped)) in
        ways.into_iter().flat_map(|how| panics.map(|panics| (how, panics)))
    {
        let device = Wrap::new(GPU, how);
        let platform = platform_of(&[&Wrap::new(CPU, How::Well), &device], None);
        let buffer = raw(&platform);
        let kernel = Kernel::new("rude", 1)
            .argument(Argument::part(&buffer, Access::WriteInvalidate, Footprint::PerItem { bytes: 1 }))
            .variant(GPU, move |_: &Package, _: &mut Grants| {
                device.is_lost.store(device.how == How::PanicsAtItsLoss, Ordering::SeqCst);
                Err(KernelError::from(Rude { panics_when_shown, panics_when_dropped }))
            })
            .variant(CPU, |_: &Package, grants: &mut Grants| {
                let _ = grants.views()?;
                Ok(Fence::done(0))
            });
        let alone = Coexecutor::new(&platform).devices([GPU]).run(&kernel, 64);
        assert!(alone.is_err(), "{alone:?}");
        let beside = Coexecutor::new(&platform).run(&kernel, 64);
        assert!(beside.is_ok(), "{how:?}, {panics_when_shown}, {panics_when_dropped}: {beside:?}");
    }
}
