//! A memory of vectors, in safe code, that does one thing as a stranger might.

use dml::arenas::{MainMem, Null};
use dml::core::MapState;
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    AllocError, Allocation, Arena, ArenaDesc, ArenaId, ArenaKind, Backing, Binding, Block, BlockRef,
    Completion, Concurrency, CopyIn, CopyJob, CopyOut, CopyQuery, Cost, CrossArena, DeviceDesc, DeviceId,
    DeviceKind, DeviceSet, Fence, Fill, HostMapped, HostMemory, HostSpan, HostStaged, Link, MapReport,
    MapRequest, NativeHandle, NewBlock, Platform, TransferError, UnmapRequest,
};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

pub(crate) const CPU: DeviceId = DeviceId(0);
pub(crate) const GPU: DeviceId = DeviceId(1);
pub(crate) const MAIN: ArenaId = ArenaId(0);
pub(crate) const VAULT: ArenaId = ArenaId(1);

/// Every call of core into an arena, a block, a fence or a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Alloc,
    Attach,
    Bind,
    Free,
    Map,
    Unmap,
    MapState,
    CopyIn,
    CopyOut,
    Fill,
    Tail,
    IsLost,
    Loss,
    BlockLen,
    BlockNative,
    BlockBacking,
    BlockDrop,
    ArenaDrop,
    FenceWait,
    FencePoll,
    FenceHasEnded,
    FenceDrop,
    CanCopy,
    LinkCopy,
    LinkDrop,
}

/// What is done at a call, once.
#[derive(Clone)]
pub(crate) enum Deed {
    /// Nothing of note.
    None,
    /// It panics.
    Panic,
    /// Something is done first: a call back into core, or a wait.
    First(Arc<dyn Fn() + Send + Sync>),
}

/// What a vault is to do, and how often the call came.
pub(crate) struct Plan {
    call: Call,
    deed: Deed,
    pub(crate) met: AtomicUsize,
    /// Whether every such call is meant, not the first alone.
    always: bool,
}

impl Plan {
    pub(crate) fn at(call: Call, deed: Deed) -> Arc<Self> {
        Arc::new(Self { call, deed, met: AtomicUsize::new(0), always: false })
    }

    pub(crate) fn always_at(call: Call, deed: Deed) -> Arc<Self> {
        Arc::new(Self { call, deed, met: AtomicUsize::new(0), always: true })
    }

    pub(crate) fn none() -> Arc<Self> {
        Self::at(Call::Alloc, Deed::None)
    }

    fn meet(&self, call: Call) {
        if call != self.call {
            return;
        }
        let before = self.met.fetch_add(1, Ordering::SeqCst);
        if before > 0 && !self.always {
            return;
        }
        match &self.deed {
            Deed::None => {}
            // Without the hook's message, of which there would be hundreds.
            Deed::Panic => std::panic::resume_unwind(Box::new(format!("a stranger's {call:?} panics"))),
            Deed::First(act) => act(),
        }
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.call)
    }
}

/// One lie of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// None.
    None,
    /// A block is shorter than asked for.
    ShortBlock,
    /// A map report names no memory.
    NoAddress,
    /// A map report names memory that is too short.
    ShortMapping,
    /// A map report names memory of which something is still lent.
    LentMapping,
    /// A map report says that the block is unmapped.
    NobodyMapped,
    /// A copy is said to have moved more than it was asked to.
    Overrun,
    /// A copy is said to have moved less.
    Short,
    /// A copy is said to be done, and is kept.
    KeepsCopyIn,
    /// As before, the other way.
    KeepsCopyOut,
    /// A fill is said to be done, and is kept.
    KeepsFill,
    /// A copy, either way, changes the block's map state.
    MapsInCopy,
    /// It offers no storage of its own.
    NoStorage,
    /// A fence is forgotten, and another says that all is done.
    ForgetsFence,
}

/// The arena.
#[derive(Debug)]
pub(crate) struct Vault {
    desc: ArenaDesc,
    plan: Arc<Plan>,
    lie: Lie,
    fails: bool,
    kept: Mutex<Vec<Box<dyn std::any::Any + Send>>>,
}

#[derive(Debug)]
struct Cell {
    bytes: Mutex<Vec<u8>>,
    /// Where the host sees a copy of the bytes while it is let in.
    shown: Mutex<Option<HostSpan>>,
    /// Whether a copy has changed the map state.
    is_changed: AtomicBool,
    plan: Arc<Plan>,
    len: u64,
}

impl Block for Cell {
    fn len(&self) -> u64 {
        self.plan.meet(Call::BlockLen);
        self.len
    }

    fn native(&self) -> NativeHandle {
        self.plan.meet(Call::BlockNative);
        NativeHandle(1)
    }

    fn backing(&self) -> Option<&Backing> {
        self.plan.meet(Call::BlockBacking);
        None
    }
}

impl Drop for Vault {
    fn drop(&mut self) {
        self.plan.meet(Call::ArenaDrop);
    }
}

impl<C> Drop for Way<C> {
    fn drop(&mut self) {
        self.plan.meet(Call::LinkDrop);
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.plan.meet(Call::BlockDrop);
    }
}

/// A fence that meets its plan when it is waited for, polled, asked and dropped.
struct Ended {
    plan: Arc<Plan>,
    result: Result<u64, TransferError>,
}

impl Completion for Ended {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        self.plan.meet(Call::FenceWait);
        self.result.clone()
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        self.plan.meet(Call::FencePoll);
        waker.wake_by_ref();
        Poll::Ready(self.result.clone())
    }

    fn has_ended(&self) -> bool {
        self.plan.meet(Call::FenceHasEnded);
        true
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.plan.meet(Call::FenceDrop);
    }
}

/// The fence of a kernel of the vault's device.
pub(crate) fn kernel(platform: &Platform) -> Option<Fence> {
    platform.arena(VAULT).downcast_ref::<Vault>()?.ended(0).ok()
}

impl Vault {
    fn new(concurrency: Concurrency, mapped: bool, plan: &Arc<Plan>, lie: Lie) -> Self {
        let mut desc = ArenaDesc::new("vault", ArenaKind("vault"), GPU).with_concurrency(concurrency);
        if mapped {
            desc = desc.with_remotes(DeviceSet::of(CPU));
        }
        Self { desc, plan: plan.clone(), lie, fails: false, kept: Mutex::default() }
    }

    fn cell<'a>(&self, block: &'a BlockRef) -> &'a Cell {
        block.downcast_ref().expect("a block of the vault")
    }

    fn keep(&self, what: impl std::any::Any + Send) {
        self.kept.lock().push(Box::new(what));
    }

    fn ended(&self, bytes: u64) -> Result<Fence, TransferError> {
        let moved = match self.lie {
            Lie::Overrun => bytes + 1,
            Lie::Short => bytes.saturating_sub(1),
            _ => bytes,
        };
        let result = if self.fails { Err(TransferError::DeviceLost { loss: None }) } else { Ok(moved) };
        let fence = Fence::awaited(Ended { plan: self.plan.clone(), result });
        if self.lie == Lie::ForgetsFence {
            std::mem::forget(fence);
            return Ok(Fence::done(bytes));
        }
        Ok(fence)
    }
}

impl Arena for Vault {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        self.plan.meet(Call::Alloc);
        if self.lie == Lie::NoStorage {
            return Err(AllocError::unsupported(&self.desc, "storage of its own"));
        }
        let len = if self.lie == Lie::ShortBlock { len - 1 } else { len };
        let bytes = Mutex::new(vec![0; len as usize]);
        Ok(NewBlock::new(Arc::new(Cell {
            bytes,
            shown: Mutex::default(),
            is_changed: AtomicBool::new(false),
            plan: self.plan.clone(),
            len,
        })))
    }

    fn free(&self, block: BlockRef) {
        self.plan.meet(Call::Free);
        drop(block);
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        self.plan.meet(Call::Map);
        let cell = self.cell(request.block());
        let mut memory = HostMemory::holding(cell.bytes.lock().clone());
        *cell.shown.lock() = Some(memory.span().clone());
        let (state, host) = match self.lie {
            Lie::NoAddress => (request.target(), None),
            Lie::NobodyMapped => (MapState::Unmapped, Some(memory)),
            Lie::ShortMapping => (request.target(), Some(HostMemory::zeroed(1)?)),
            Lie::LentMapping => {
                self.keep(memory.target(dml::core::Span::new(0, 1)));
                (request.target(), Some(memory))
            }
            _ => (request.target(), Some(memory)),
        };
        Ok(MapReport { state, host })
    }

    fn unmap(&self, mut request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.plan.meet(Call::Unmap);
        let cell = self.cell(request.block());
        let shown = cell.shown.lock().take();
        if let Some(memory) = shown.and_then(|shown| request.take_back(&shown)) {
            cell.bytes.lock().copy_from_slice(memory.bytes());
        }
        Ok(MapReport { state: request.target(), host: None })
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        self.plan.meet(Call::MapState);
        let cell = self.cell(block);
        let is_shown = cell.shown.lock().is_some() || cell.is_changed.load(Ordering::SeqCst);
        match self.lie {
            Lie::MapsInCopy => {
                Some(if is_shown { MapState::Mapped(DeviceSet::of(CPU)) } else { MapState::Unmapped })
            }
            _ => None,
        }
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.plan.meet(Call::CopyIn);
        let (len, span, cell) = (copy.len(), copy.span(), self.cell(copy.block()));
        copy.from().read(0, &mut cell.bytes.lock()[span.start() as usize..span.end() as usize]);
        cell.is_changed.store(self.lie == Lie::MapsInCopy, Ordering::SeqCst);
        if self.lie == Lie::KeepsCopyIn {
            self.keep(copy);
        }
        self.ended(len)
    }

    fn copy_out(&self, mut copy: CopyOut) -> Result<Fence, TransferError> {
        self.plan.meet(Call::CopyOut);
        let (len, span, block) = (copy.len(), copy.span(), copy.block().clone());
        let bytes = self.cell(&block).bytes.lock()[span.start() as usize..span.end() as usize].to_vec();
        copy.write(0, &bytes);
        self.cell(&block).is_changed.store(self.lie == Lie::MapsInCopy, Ordering::SeqCst);
        if self.lie == Lie::KeepsCopyOut {
            self.keep(copy);
        }
        self.ended(len)
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.plan.meet(Call::Fill);
        let (len, span) = (fill.len(), fill.span());
        self.cell(fill.block()).bytes.lock()[span.start() as usize..span.end() as usize].fill(fill.byte());
        if self.lie == Lie::KeepsFill {
            self.keep(fill);
        }
        self.ended(len)
    }

    fn tail(&self) -> Result<Fence, TransferError> {
        self.plan.meet(Call::Tail);
        Ok(Fence::done(0))
    }

    fn is_lost(&self) -> bool {
        self.plan.meet(Call::IsLost);
        false
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.plan.meet(Call::Loss);
        Some("gone".into())
    }
}

/// A mechanism that meets its plan and leaves the rest to another.
#[derive(Debug)]
struct Way<C> {
    inner: C,
    plan: Arc<Plan>,
}

impl<C: CrossArena> CrossArena for Way<C> {
    fn name(&self) -> &str {
        "way"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.plan.meet(Call::CanCopy);
        self.inner.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        self.plan.meet(Call::LinkCopy);
        self.inner.copy(job)
    }
}

/// How a vault is joined to main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    Staged,
    Mapped,
}

/// An arena that takes storage of the application or of another arena, and meets its plan there.
#[derive(Debug)]
struct Taker<A> {
    inner: A,
    plan: Arc<Plan>,
}

impl<A: Arena> Arena for Taker<A> {
    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        self.plan.meet(Call::Attach);
        self.inner.attach(storage)
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        self.plan.meet(Call::Bind);
        self.inner.bind(root)
    }

    passes_on!(desc, alloc, map, unmap, copy_in, copy_out, fill);
}

/// Main memory, and a device's that shares its storage. Both are safe to use, but for the plan.
pub(crate) fn sharing(plan: &Arc<Plan>) -> Platform {
    let mut builder = Platform::builder().without_default_links();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let desc = ArenaDesc::new("vault", ArenaKind("vault"), GPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapFull);
    builder.add_arena(Arc::new(Taker { inner: MainMem::new(CPU), plan: plan.clone() }));
    builder.add_arena(Arc::new(Taker { inner: Null::backed(desc), plan: plan.clone() }));
    let allocation = Allocation::Bound(Concurrency::BimapFull);
    let link = Link { from: MAIN, to: VAULT, source_via: CPU, target_via: GPU, allocation };
    builder.add_link(link, Arc::new(Binding::default()));
    builder.build().expect("a sound platform")
}

/// Main memory, and a vault that does what it is to do.
pub(crate) fn platform(join: Join, plan: &Arc<Plan>, lie: Lie) -> Platform {
    built(join, |_| {}, Vault::new(Concurrency::Exclusive, join == Join::Mapped, plan, lie))
}

/// As [`platform`], with a vault whose transfers all fail with the error of a lost device.
pub(crate) fn failing(plan: &Arc<Plan>, lie: Lie) -> Platform {
    let mut vault = Vault::new(Concurrency::Exclusive, false, plan, lie);
    vault.fails = true;
    built(Join::Staged, |_| {}, vault)
}

fn built(join: Join, more: impl FnOnce(&mut dml::core::PlatformBuilder), vault: Vault) -> Platform {
    let mut builder = Platform::builder().without_default_links();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    let plan = vault.plan.clone();
    builder.add_arena(Arc::new(vault));
    for (from, to) in [(MAIN, VAULT), (VAULT, MAIN)] {
        let native = |arena| if arena == MAIN { CPU } else { GPU };
        let via = |arena| if join == Join::Mapped { CPU } else { native(arena) };
        let (source_via, target_via) = (via(from), via(to));
        let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
        let plan = plan.clone();
        let way: Arc<dyn CrossArena> = match join {
            Join::Staged => Arc::new(Way { inner: HostStaged::default(), plan }),
            Join::Mapped => Arc::new(Way { inner: HostMapped::default(), plan }),
        };
        builder.add_link(link, way);
    }
    more(&mut builder);
    builder.build().expect("a sound platform")
}

/// Something that is filled in when there is a platform to call back to.
pub(crate) type Later<T> = Arc<OnceLock<T>>;
