//! Any arena, with one thing wrong.

use dml_core::MapState;
use dml_core::internal::sync::Mutex;
use dml_core::{
    AllocError, Arena, ArenaDesc, Backing, Block, BlockRef, CopyIn, CopyOut, Fence, Fill, HostMemory,
    HostSource, HostSpan, MapReport, MapRequest, NativeHandle, NewBlock, Span, TransferError, UnmapRequest,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::ThreadId;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Nothing.
    None,
    /// Copies in land a byte further on, where there is one.
    InShifted,
    /// Copies out leave their last byte and do not say so.
    OutShort,
    /// Copies out are carried out and said to be a byte shorter.
    OutMiscounted,
    /// Fills set one byte more, where there is one.
    FillWide,
    /// Fills set all bytes to zero.
    FillZero,
    /// Copies in of more than a megabyte leave what is past it.
    InSplit,
    /// Copies in are said to be done, and are when another transfer but one is asked for.
    InLate,
    /// Copies in pass through one place, from which they are taken when they are waited for.
    InStagedOnce,
    /// Fences report nothing on another thread than that of the call.
    FenceBoundToThread,
    /// Transfers of other threads than the first do nothing.
    BoundToThread,
    /// Other threads than the first get one block, all of them.
    BlocksShared,
    /// Blocks of more than a page are a byte shorter.
    AllocShort,
    /// Blocks without bytes are refused.
    AllocNotEmpty,
    /// Lack of memory is said of another arena.
    AllocMisnamed,
    /// It has no name.
    Nameless,
    /// It says that it aligns to two megabytes.
    Misaligned,
    /// A mapping shows what the block held when it was made.
    MapStale,
    /// What the host writes through a mapping is lost.
    MapLosesWrites,
    /// The map state reported is that before.
    MapMisreported,
    /// A mapping does not show the host anything.
    MapHidden,
    /// Whatever map state is asked for is said to hold.
    MapsAnything,
    /// A panic does not say which arena's it is.
    PanicsNameless,
    /// Bytes past the end are left out.
    Clips,
    /// Blocks of other arenas are taken, and what is asked for is said to be done.
    TakesForeign,
    /// Storage that is attached is copied.
    AttachCopies,
    /// Storage that is attached is not what the block is over.
    AttachIsElsewhere,
    /// Storage that is attached is written to.
    AttachWrites,
    /// Storage is declined in the name of another arena.
    DeclineMisnamed,
    /// Storage that is bound is not what the block is over.
    BindIsElsewhere,
    /// What copies in were lent is kept when they have ended.
    KeepsTheLoan,
    /// What copies out were lent is kept when they have ended.
    KeepsTheTarget,
    /// Fills are kept when they have ended.
    KeepsTheFill,
    /// Blocks are said to be as they were before any change of map state.
    MapStateLies,
}

/// The arena.
#[derive(Debug)]
pub(crate) struct Broken {
    desc: ArenaDesc,
    inner: Arc<dyn Arena>,
    defect: Defect,
    first: ThreadId,
    late: Mutex<Vec<Late>>,
    staged: Arc<Mutex<Option<Vec<u8>>>>,
    shared: Mutex<Option<BlockRef>>,
    /// Mapped blocks, and what their mappings show instead.
    shown: Mutex<Vec<Shown>>,
    /// What ought to be back.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

/// A copy in that was said to be done.
#[derive(Debug)]
struct Late {
    block: BlockRef,
    offset: u64,
    bytes: HostMemory,
    calls_to_go: u32,
}

/// A block whose mapping shows something else than its bytes.
#[derive(Debug)]
struct Shown {
    block: BlockRef,
    /// What it held when it was mapped first.
    first: Vec<u8>,
    /// The mapping of the arena inside.
    real: Option<HostMemory>,
    /// What is shown of it.
    span: HostSpan,
}

impl Broken {
    /// `inner`, with a defect.
    pub(crate) fn new(inner: Arc<dyn Arena>, defect: Defect) -> Self {
        let mut desc = inner.desc().clone();
        match defect {
            Defect::Nameless => desc.name = "".into(),
            Defect::Misaligned => desc.alloc_align = 2 << 20,
            _ => {}
        }
        Self {
            desc,
            inner,
            defect,
            first: std::thread::current().id(),
            late: Mutex::new(Vec::new()),
            staged: Arc::new(Mutex::new(None)),
            shared: Mutex::new(None),
            shown: Mutex::new(Vec::new()),
            kept: Mutex::new(Vec::new()),
        }
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn is_elsewhere(&self) -> bool {
        std::thread::current().id() != self.first
    }

    /// Counts a transfer, and carries out what is due.
    fn catch_up(&self) {
        let mut late = std::mem::take(&mut *self.late.lock());
        late.retain_mut(|copy| {
            copy.calls_to_go -= 1;
            if copy.calls_to_go == 0 {
                let source = copy.bytes.source(whole(&copy.bytes));
                // SAFETY: the checks that meet this defect have one transfer under way at a time, and this
                // one ends here, before the one that is being asked for begins.
                let request = unsafe { CopyIn::new(&copy.block, copy.offset, source) };
                let _ = self.inner.copy_in(request).expect("a copy starts").wait();
            }
            copy.calls_to_go > 0
        });
        self.late.lock().extend(late);
    }

    /// How many bytes of a transfer lie in the block.
    fn bytes_within(block: &BlockRef, span: Span) -> u64 {
        span.end().min(block.len()).saturating_sub(span.start())
    }

    /// A transfer of the arena inside, which says that it is done where the block is another's, if that is
    /// what is wrong.
    fn foreign_or(
        &self,
        len: u64,
        start: impl FnOnce() -> Result<Fence, TransferError>,
    ) -> Result<Fence, TransferError> {
        if !self.is(Defect::TakesForeign) {
            return start();
        }
        catch_unwind(AssertUnwindSafe(start)).unwrap_or_else(|panic| {
            match panic.downcast_ref::<String>().is_some_and(|text| text.contains("another arena")) {
                true => Ok(Fence::done(len)),
                false => resume_unwind(panic),
            }
        })
    }

    fn fence_of(&self, fence: Fence, bytes: u64) -> Fence {
        if !self.is(Defect::FenceBoundToThread) {
            return fence;
        }
        let thread = std::thread::current().id();
        Fence::running(move || {
            let _ = fence.wait();
            Ok(if std::thread::current().id() == thread { bytes } else { 0 })
        })
    }

    /// What is reported of a mapping.
    fn mapping(&self, block: &BlockRef, report: MapReport) -> MapReport {
        match (self.defect, report) {
            (Defect::MapMisreported, report) => MapReport { state: MapState::initial(&self.desc), ..report },
            (Defect::MapHidden, report) => MapReport { host: None, ..report },
            (Defect::MapStale | Defect::MapLosesWrites, MapReport { state, host: Some(real) }) => {
                let mut shown = self.shown.lock();
                let known = shown.iter().position(|shown| Arc::ptr_eq(&shown.block, block));
                let before = known.map(|known| shown.swap_remove(known).first);
                let span = real.span();
                // SAFETY: the arena inside has just shown the bytes, and core asks it for nothing before this
                // answer.
                let now = unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len() as usize) }.to_vec();
                let first = before.unwrap_or_else(|| now.clone());
                let memory = HostMemory::holding(if self.is(Defect::MapStale) { first.clone() } else { now });
                let span = memory.span().clone();
                shown.push(Shown { block: block.clone(), first, real: Some(real), span });
                MapReport { state, host: Some(memory) }
            }
            (_, report) => report,
        }
    }

    /// The mapping of the arena inside that ends, and where it was shown.
    fn shown(&self, block: &BlockRef) -> Option<(HostMemory, HostSpan)> {
        let mut shown = self.shown.lock();
        let shown = shown.iter_mut().find(|shown| Arc::ptr_eq(&shown.block, block))?;
        Some((shown.real.take()?, shown.span.clone()))
    }
}

/// A block that reports given storage as its backing, although its bytes are a copy.
#[derive(Debug)]
struct Copied {
    copy: BlockRef,
    storage: Backing,
}

impl Block for Copied {
    fn len(&self) -> u64 {
        self.copy.len()
    }

    fn native(&self) -> NativeHandle {
        self.copy.native()
    }

    fn backing(&self) -> Option<&Backing> {
        Some(&self.storage)
    }
}

fn whole(memory: &HostMemory) -> Span {
    Span::new(0, memory.len())
}

/// All bytes of a source.
fn read(from: &HostSource) -> Vec<u8> {
    let mut bytes = vec![0; from.len() as usize];
    from.read(0, &mut bytes);
    bytes
}

impl Arena for Broken {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        match self.defect {
            Defect::AllocShort if len > 4096 => self.inner.alloc(len - 1),
            Defect::AllocNotEmpty if len == 0 => {
                Err(AllocError::OutOfMemory { arena: self.desc.name.clone(), bytes: 0 })
            }
            Defect::AllocMisnamed => self
                .inner
                .alloc(len)
                .map_err(|_| AllocError::OutOfMemory { arena: "another".into(), bytes: len }),
            Defect::BlocksShared if self.is_elsewhere() => {
                let mut shared = self.shared.lock();
                if shared.is_none() {
                    *shared = Some(self.inner.alloc(1 << 20)?.into_block());
                }
                Ok(NewBlock::new(shared.clone().expect("made before")))
            }
            _ => self.inner.alloc(len),
        }
    }

    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        match self.defect {
            Defect::AttachCopies => {
                let copy = self.inner.alloc(storage.len())?.into_block();
                Ok(Arc::new(Copied { copy, storage: storage.clone() }))
            }
            Defect::AttachIsElsewhere => Ok(self.inner.alloc(storage.len())?.into_block()),
            Defect::AttachWrites if !storage.is_empty() => {
                // SAFETY: the byte is in the storage. The check looks at it before and after this call, and
                // core grants no access while it attaches the storage.
                unsafe { *storage.host().expect("an address").as_ptr() ^= 0xFF };
                self.inner.attach(storage)
            }
            Defect::DeclineMisnamed => {
                Err(AllocError::Unsupported { arena: "another".into(), what: "external storage" })
            }
            _ => self.inner.attach(storage),
        }
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        match self.defect {
            Defect::BindIsElsewhere => self.inner.alloc(root.len()),
            Defect::DeclineMisnamed => {
                Err(AllocError::Unsupported { arena: "another".into(), what: "bound storage" })
            }
            _ => self.inner.bind(root),
        }
    }

    fn free(&self, block: BlockRef) {
        let is_shared = self.shared.lock().as_ref().is_some_and(|shared| Arc::ptr_eq(shared, &block));
        if !is_shared {
            self.inner.free(block);
        }
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        let (block, target) = (request.block().clone(), request.target());
        let map = || self.inner.map(request);
        let report = match self.defect {
            Defect::MapsAnything => {
                catch_unwind(AssertUnwindSafe(map)).unwrap_or(Ok(MapReport { state: target, host: None }))
            }
            _ => map(),
        };
        Ok(self.mapping(&block, report?))
    }

    fn unmap(&self, mut request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        let target = request.target();
        if let Some((real, span)) = self.shown(request.block()) {
            let shown = request.take_back(&span).ok_or(TransferError::StillLent)?;
            drop(shown);
            return self.inner.unmap(request.with_host(&mut Some(real)));
        }
        let unmap = || self.inner.unmap(request);
        match self.defect {
            Defect::MapsAnything => {
                catch_unwind(AssertUnwindSafe(unmap)).unwrap_or(Ok(MapReport { state: target, host: None }))
            }
            _ => unmap(),
        }
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        match self.defect {
            Defect::MapStateLies => Some(MapState::initial(&self.desc)),
            _ => self.inner.map_state(block),
        }
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.catch_up();
        let (block, span, len) = (copy.block().clone(), copy.span(), copy.len());
        let start = |copy| self.inner.copy_in(copy);
        let fence = match self.defect {
            Defect::InShifted if span.end() < block.len() => {
                let (_, _, from) = copy.into_parts();
                // SAFETY: the checks that meet this defect have one transfer of a block under way at a time.
                start(unsafe { CopyIn::new(&block, span.start() + 1, from) })?
            }
            Defect::InSplit if len > 1 << 20 => {
                let _ = start(copy.first(1 << 20))?.wait();
                Fence::done(len)
            }
            Defect::InLate => {
                let bytes = HostMemory::holding(read(copy.from()));
                self.late.lock().push(Late { block, offset: span.start(), bytes, calls_to_go: 2 });
                Fence::done(len)
            }
            Defect::InStagedOnce => {
                *self.staged.lock() = Some(read(copy.from()));
                let (staged, inner) = (self.staged.clone(), self.inner.clone());
                Fence::running(move || {
                    let bytes = staged.lock().clone().expect("something was staged");
                    let part = Span::new(0, len.min(bytes.len() as u64));
                    let source = HostMemory::holding(bytes).source(part);
                    // SAFETY: the bytes of the block are those of `copy`, which is kept until this has ended.
                    let staged = unsafe { CopyIn::new(copy.block(), copy.span().start(), source) };
                    let done = inner.copy_in(staged)?.wait().map(|_| len);
                    drop(copy);
                    done
                })
            }
            Defect::BoundToThread if self.is_elsewhere() => Fence::done(len),
            Defect::Clips => {
                let within = Self::bytes_within(&block, span);
                if within > 0 {
                    let _ = start(copy.first(within))?.wait();
                }
                Fence::done(len)
            }
            Defect::PanicsNameless => catch_unwind(AssertUnwindSafe(|| start(copy)))
                .unwrap_or_else(|_| panic!("core bug: it cannot be"))?,
            Defect::KeepsTheLoan => {
                let (copy, nothing) = copy.split_at(len);
                self.kept.lock().push(Box::new(nothing));
                start(copy)?
            }
            _ => self.foreign_or(len, || start(copy))?,
        };
        Ok(self.fence_of(fence, len))
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.catch_up();
        let (span, len) = (copy.span(), copy.len());
        let start = |copy| self.inner.copy_out(copy);
        let fence = match self.defect {
            Defect::OutShort => {
                let _ = start(copy.first(len.saturating_sub(1)))?.wait();
                Fence::done(len)
            }
            Defect::OutMiscounted => {
                let _ = start(copy)?.wait();
                Fence::done(len.saturating_sub(1))
            }
            Defect::BoundToThread if self.is_elsewhere() => Fence::done(len),
            Defect::Clips => {
                let within = Self::bytes_within(copy.block(), span);
                if within > 0 {
                    let _ = start(copy.first(within))?.wait();
                }
                Fence::done(len)
            }
            Defect::KeepsTheTarget => {
                let (copy, nothing) = copy.split_at(len);
                self.kept.lock().push(Box::new(nothing));
                start(copy)?
            }
            _ => self.foreign_or(len, || start(copy))?,
        };
        Ok(self.fence_of(fence, len))
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.catch_up();
        let (block, span, len) = (fill.block().clone(), fill.span(), fill.len());
        let start = |fill| self.inner.fill(fill);
        let fence = match self.defect {
            Defect::FillWide if span.end() < block.len() => {
                let wide = Span::new(span.start(), span.end() + 1);
                // SAFETY: the checks that meet this defect have one transfer of a block under way at a time.
                let _ = start(unsafe { Fill::new(&block, wide, fill.byte()) })?.wait();
                Fence::done(len)
            }
            Defect::FillZero => {
                // SAFETY: the bytes are those of `fill`, which is kept until this has ended.
                let zeroed = start(unsafe { Fill::new(&block, span, 0) })?.wait();
                drop(fill);
                Fence::done(zeroed?)
            }
            Defect::BoundToThread if self.is_elsewhere() => Fence::done(len),
            Defect::Clips => {
                let within = Self::bytes_within(&block, span);
                if within > 0 {
                    let _ = start(fill.first(within))?.wait();
                }
                Fence::done(len)
            }
            Defect::KeepsTheFill => {
                let (fill, nothing) = fill.split_at(len);
                self.kept.lock().push(Box::new(nothing));
                start(fill)?
            }
            _ => self.foreign_or(len, || start(fill))?,
        };
        Ok(self.fence_of(fence, len))
    }
}
