//! Any arena, with one thing wrong.

use crate::common::read;
use dml_arenas::MainMem;
use dml_core::host::{HostOwner, Owned};
use dml_core::state::MapState;
use dml_core::sync::Mutex;
use dml_core::{
    AllocError, Arena, ArenaDesc, AttachError, BlockRef, DeviceId, Fence, HostSpan, MapReport, Span,
    TransferError,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// Blocks of other arenas of the host are touched.
    TakesForeign,
    /// Storage that is attached is copied.
    AttachCopies,
    /// Storage is given back though it is in use.
    DetachTakes,
    /// Storage is declined and another given back.
    DeclineSwaps,
}

/// The arena.
#[derive(Debug)]
pub(crate) struct Broken {
    desc: ArenaDesc,
    inner: Arc<dyn Arena>,
    defect: Defect,
    first: ThreadId,
    /// Host memory of its own.
    host: Arc<MainMem>,
    late: Mutex<Vec<Late>>,
    staged: Arc<Mutex<Option<BlockRef>>>,
    shared: Mutex<Option<BlockRef>>,
    /// Mapped blocks, and what their mappings show instead.
    shown: Mutex<Vec<(BlockRef, BlockRef)>>,
}

/// A copy in that was said to be done.
#[derive(Debug)]
struct Late {
    block: BlockRef,
    offset: u64,
    bytes: BlockRef,
    calls_to_go: u32,
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
            host: Arc::new(MainMem::new(DeviceId(0))),
            late: Mutex::new(Vec::new()),
            staged: Arc::new(Mutex::new(None)),
            shared: Mutex::new(None),
            shown: Mutex::new(Vec::new()),
        }
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn is_elsewhere(&self) -> bool {
        std::thread::current().id() != self.first
    }

    /// A copy of host memory.
    fn copy_of(&self, from: &HostSpan) -> BlockRef {
        let copy = self.host.alloc(from.len()).expect("memory for a test");
        let _ = self.host.copy_in(&copy, 0, from).expect("a copy by the host").wait();
        copy
    }

    /// Counts a transfer, and carries out what is due.
    fn catch_up(&self) {
        let mut late = std::mem::take(&mut *self.late.lock());
        late.retain_mut(|copy| {
            copy.calls_to_go -= 1;
            if copy.calls_to_go == 0 {
                let from = seen(&copy.bytes);
                let _ = self.inner.copy_in(&copy.block, copy.offset, &from).expect("a copy starts").wait();
            }
            copy.calls_to_go > 0
        });
        self.late.lock().extend(late);
    }

    /// The part of a transfer that lies in the block, if that is what is wrong.
    fn clipped(&self, block: &BlockRef, span: Span) -> Span {
        if !self.is(Defect::Clips) {
            return span;
        }
        Span::new(span.start().min(block.len()), span.end().min(block.len()))
    }

    /// Host memory of another arena's block, if that is what is wrong.
    fn foreign(&self, block: &BlockRef) -> Option<HostSpan> {
        // The arena inside is not the host's.
        block.host().filter(|_| self.is(Defect::TakesForeign))
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

    fn mapping(&self, block: &BlockRef, report: MapReport) -> MapReport {
        match self.defect {
            Defect::MapMisreported => MapReport { state: MapState::initial(&self.desc), ..report },
            Defect::MapHidden => MapReport { host: None, ..report },
            Defect::MapStale | Defect::MapLosesWrites => {
                let Some(host) = &report.host else { return report };
                let mut shown = self.shown.lock();
                let before =
                    shown.iter().find(|(of, _)| Arc::ptr_eq(of, block)).map(|(_, copy)| copy.clone());
                let copy = match before.filter(|_| self.is(Defect::MapStale)) {
                    Some(copy) => copy,
                    None => {
                        let copy = self.copy_of(host);
                        shown.push((block.clone(), copy.clone()));
                        copy
                    }
                };
                MapReport { host: Some(seen(&copy)), ..report }
            }
            _ => report,
        }
    }
}

fn seen(block: &BlockRef) -> HostSpan {
    block.host().expect("host memory")
}

/// Storage of the same contents somewhere else.
fn another(span: &HostSpan) -> Box<dyn HostOwner> {
    Box::new(Owned::new(read(span)))
}

impl Arena for Broken {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<BlockRef, AllocError> {
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
                    *shared = Some(self.inner.alloc(1 << 20)?);
                }
                Ok(shared.clone().expect("made before"))
            }
            _ => self.inner.alloc(len),
        }
    }

    fn attach(&self, storage: Box<dyn HostOwner>) -> Result<BlockRef, AttachError> {
        match self.defect {
            Defect::AttachCopies => self.inner.attach(another(&storage.span())),
            Defect::DeclineSwaps => self.inner.attach(another(&storage.span())),
            _ => self.inner.attach(storage),
        }
    }

    fn detach(&self, block: BlockRef) -> Result<Box<dyn HostOwner>, BlockRef> {
        match block.host() {
            Some(host) if self.is(Defect::DetachTakes) => Ok(another(&host)),
            _ => self.inner.detach(block),
        }
    }

    fn free(&self, block: BlockRef) {
        let is_shared = self.shared.lock().as_ref().is_some_and(|shared| Arc::ptr_eq(shared, &block));
        if !is_shared {
            self.inner.free(block);
        }
    }

    fn map(&self, block: &BlockRef, device: DeviceId, target: MapState) -> Result<MapReport, TransferError> {
        let map = || self.inner.map(block, device, target);
        let report = match self.defect {
            Defect::MapsAnything => {
                catch_unwind(AssertUnwindSafe(map)).unwrap_or(Ok(MapReport { state: target, host: None }))
            }
            _ => map(),
        };
        Ok(self.mapping(block, report?))
    }

    fn unmap(&self, block: &BlockRef, target: MapState) -> Result<MapReport, TransferError> {
        let unmap = || self.inner.unmap(block, target);
        match self.defect {
            Defect::MapsAnything => {
                catch_unwind(AssertUnwindSafe(unmap)).unwrap_or(Ok(MapReport { state: target, host: None }))
            }
            _ => unmap(),
        }
    }

    fn copy_in(&self, block: &BlockRef, offset: u64, from: &HostSpan) -> Result<Fence, TransferError> {
        self.catch_up();
        let len = from.len();
        if let Some(host) = self.foreign(block) {
            let target = host.slice(Span::new(offset, offset + len));
            return self.host.copy_out(&self.copy_of(from), 0, &target);
        }
        let first = |bytes: u64| from.slice(Span::new(0, bytes));
        let start = |offset, from: &HostSpan| self.inner.copy_in(block, offset, from);
        let fence = match self.defect {
            Defect::InShifted if offset + len < block.len() => start(offset + 1, from)?,
            Defect::InSplit if len > 1 << 20 => {
                let _ = start(offset, &first(1 << 20))?.wait();
                Fence::done(len)
            }
            Defect::InLate => {
                let bytes = self.copy_of(from);
                self.late.lock().push(Late { block: block.clone(), offset, bytes, calls_to_go: 2 });
                Fence::done(len)
            }
            Defect::InStagedOnce => {
                *self.staged.lock() = Some(self.copy_of(from));
                let (staged, inner, block) = (self.staged.clone(), self.inner.clone(), block.clone());
                Fence::running(move || {
                    let bytes = staged.lock().clone().expect("something was staged");
                    let part = Span::new(0, len.min(bytes.len()));
                    inner.copy_in(&block, offset, &seen(&bytes).slice(part))?.wait().map(|_| len)
                })
            }
            Defect::BoundToThread if self.is_elsewhere() => Fence::done(len),
            Defect::Clips => {
                let span = self.clipped(block, Span::new(offset, offset + len));
                let _ = start(span.start(), &first(span.len()))?.wait();
                Fence::done(len)
            }
            Defect::PanicsNameless => catch_unwind(AssertUnwindSafe(|| start(offset, from)))
                .unwrap_or_else(|_| panic!("core bug: it cannot be"))?,
            _ => start(offset, from)?,
        };
        Ok(self.fence_of(fence, len))
    }

    fn copy_out(&self, block: &BlockRef, offset: u64, to: &HostSpan) -> Result<Fence, TransferError> {
        self.catch_up();
        let len = to.len();
        if let Some(host) = self.foreign(block) {
            let source = self.copy_of(&host.slice(Span::new(offset, offset + len)));
            return self.host.copy_out(&source, 0, to);
        }
        let start = |offset, to: &HostSpan| self.inner.copy_out(block, offset, to);
        let fence = match self.defect {
            Defect::OutShort => {
                let _ = start(offset, &to.slice(Span::new(0, len.saturating_sub(1))))?.wait();
                Fence::done(len)
            }
            Defect::OutMiscounted => {
                let _ = start(offset, to)?.wait();
                Fence::done(len.saturating_sub(1))
            }
            Defect::BoundToThread if self.is_elsewhere() => Fence::done(len),
            Defect::Clips => {
                let span = self.clipped(block, Span::new(offset, offset + len));
                let _ = start(span.start(), &to.slice(Span::new(0, span.len())))?.wait();
                Fence::done(len)
            }
            _ => start(offset, to)?,
        };
        Ok(self.fence_of(fence, len))
    }

    fn fill(&self, block: &BlockRef, span: Span, byte: u8) -> Result<Fence, TransferError> {
        self.catch_up();
        if let Some(host) = self.foreign(block) {
            let bytes = self.host.alloc(span.len()).expect("memory for a test");
            return self.host.copy_out(&bytes, 0, &host.slice(span));
        }
        let start = |span, byte| self.inner.fill(block, span, byte);
        let fence = match self.defect {
            Defect::FillWide if span.end() < block.len() => {
                let _ = start(Span::new(span.start(), span.end() + 1), byte)?.wait();
                Fence::done(span.len())
            }
            Defect::FillZero => start(span, 0)?,
            Defect::BoundToThread if self.is_elsewhere() => Fence::done(span.len()),
            Defect::Clips => {
                let _ = start(self.clipped(block, span), byte)?.wait();
                Fence::done(span.len())
            }
            _ => start(span, byte)?,
        };
        Ok(self.fence_of(fence, span.len()))
    }
}
