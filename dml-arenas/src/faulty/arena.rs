//! An arena that follows a script.

use super::script::{CallKind, Fault, Player, Script, meet, transfer};
use dml_core::host::HostOwner;
use dml_core::state::MapState;
use dml_core::sync::Arc;
use dml_core::{
    AllocError, Arena, ArenaDesc, AttachError, BlockRef, DeviceId, Fence, HostSpan, MapReport, Span,
    TransferError,
};

/// Any arena, with faults.
#[derive(Debug)]
pub struct Faulty<A> {
    inner: A,
    player: Player,
}

impl<A: Arena> Faulty<A> {
    /// `arena`, going wrong where `script` says.
    #[must_use]
    pub fn new(arena: A, script: Script) -> Self {
        Self { inner: arena, player: Player::new(script) }
    }

    /// The arena inside.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.inner
    }

    /// How many calls were made so far.
    #[must_use]
    pub fn calls_made(&self) -> u64 {
        self.player.calls_made()
    }

    /// How many calls of one kind were made so far.
    #[must_use]
    pub fn calls_of(&self, kind: CallKind) -> u64 {
        self.player.calls_of(kind)
    }

    fn name(&self) -> &Arc<str> {
        &self.inner.desc().name
    }

    /// What is left of the fault that the next call of this kind meets.
    fn meet(&self, kind: CallKind) -> Option<Fault> {
        meet(self.player.next(kind), self.name(), kind)
    }

    fn no_storage(&self, cause: &TransferError, bytes: u64) -> AllocError {
        let arena = self.name().clone();
        match cause {
            TransferError::DeviceLost => AllocError::DeviceLost { arena },
            _ => AllocError::OutOfMemory { arena, bytes },
        }
    }

    fn remap(
        &self,
        kind: CallKind,
        change: impl FnOnce() -> Result<MapReport, TransferError>,
    ) -> Result<MapReport, TransferError> {
        match self.meet(kind) {
            Some(Fault::Fail(error) | Fault::FailInFence(error)) => Err(error),
            Some(Fault::Report(state)) => change().map(|report| MapReport { state, ..report }),
            _ => change(),
        }
    }

    fn transfer(
        &self,
        kind: CallKind,
        start: impl FnOnce(Option<u64>) -> Result<Fence, TransferError>,
    ) -> Result<Fence, TransferError> {
        transfer(self.player.next(kind), self.name(), kind, start)
    }
}

/// The first `bytes` bytes of a transfer of `len`, or all of them.
fn part(bytes: Option<u64>, len: u64) -> Span {
    Span::new(0, bytes.map_or(len, |bytes| bytes.min(len)))
}

impl<A: Arena> Arena for Faulty<A> {
    fn desc(&self) -> &ArenaDesc {
        self.inner.desc()
    }

    fn alloc(&self, len: u64) -> Result<BlockRef, AllocError> {
        match self.meet(CallKind::Alloc) {
            Some(Fault::Fail(error) | Fault::FailInFence(error)) => Err(self.no_storage(&error, len)),
            Some(Fault::Short(bytes)) => self.inner.alloc(bytes.min(len)),
            _ => self.inner.alloc(len),
        }
    }

    fn attach(&self, storage: Box<dyn HostOwner>) -> Result<BlockRef, AttachError> {
        match self.meet(CallKind::Attach) {
            Some(Fault::Fail(error) | Fault::FailInFence(error)) => {
                let cause = self.no_storage(&error, storage.span().len());
                Err(AttachError { cause, storage })
            }
            _ => self.inner.attach(storage),
        }
    }

    fn detach(&self, block: BlockRef) -> Result<Box<dyn HostOwner>, BlockRef> {
        match self.meet(CallKind::Detach) {
            Some(Fault::Fail(_) | Fault::FailInFence(_)) => Err(block),
            _ => self.inner.detach(block),
        }
    }

    fn bind(&self, root: &BlockRef) -> Result<BlockRef, AllocError> {
        match self.meet(CallKind::Bind) {
            Some(Fault::Fail(error) | Fault::FailInFence(error)) => Err(self.no_storage(&error, root.len())),
            _ => self.inner.bind(root),
        }
    }

    fn free(&self, block: BlockRef) {
        self.meet(CallKind::Free);
        self.inner.free(block);
    }

    fn map(&self, block: &BlockRef, device: DeviceId, target: MapState) -> Result<MapReport, TransferError> {
        self.remap(CallKind::Map, || self.inner.map(block, device, target))
    }

    fn unmap(&self, block: &BlockRef, target: MapState) -> Result<MapReport, TransferError> {
        self.remap(CallKind::Unmap, || self.inner.unmap(block, target))
    }

    fn copy_in(&self, block: &BlockRef, offset: u64, from: &HostSpan) -> Result<Fence, TransferError> {
        self.transfer(CallKind::CopyIn, |bytes| {
            self.inner.copy_in(block, offset, &from.slice(part(bytes, from.len())))
        })
    }

    fn copy_out(&self, block: &BlockRef, offset: u64, to: &HostSpan) -> Result<Fence, TransferError> {
        self.transfer(CallKind::CopyOut, |bytes| {
            self.inner.copy_out(block, offset, &to.slice(part(bytes, to.len())))
        })
    }

    fn fill(&self, block: &BlockRef, span: Span, byte: u8) -> Result<Fence, TransferError> {
        self.transfer(CallKind::Fill, |bytes| {
            let len = part(bytes, span.len()).len();
            self.inner.fill(block, Span::new(span.start(), span.start() + len), byte)
        })
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.inner.loss()
    }
}
