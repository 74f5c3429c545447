//! An arena that follows a script.

use super::script::{CallKind, Fault, Player, Script, meet, transfer};
use dml_core::state::MapState;
use dml_core::sync::Arc;
use dml_core::{
    AllocError, Arena, ArenaDesc, Backing, BlockRef, CopyIn, CopyOut, Fence, Fill, MapReport, MapRequest,
    NewBlock, TransferError, UnmapRequest,
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

impl<A: Arena> Arena for Faulty<A> {
    fn desc(&self) -> &ArenaDesc {
        self.inner.desc()
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        match self.meet(CallKind::Alloc) {
            Some(Fault::Fail(error) | Fault::FailInFence(error)) => Err(self.no_storage(&error, len)),
            Some(Fault::Short(bytes)) => self.inner.alloc(bytes.min(len)),
            _ => self.inner.alloc(len),
        }
    }

    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        match self.meet(CallKind::Attach) {
            Some(Fault::Fail(error) | Fault::FailInFence(error)) => {
                Err(self.no_storage(&error, storage.len()))
            }
            _ => self.inner.attach(storage),
        }
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        match self.meet(CallKind::Bind) {
            Some(Fault::Fail(error) | Fault::FailInFence(error)) => Err(self.no_storage(&error, root.len())),
            _ => self.inner.bind(root),
        }
    }

    fn free(&self, block: BlockRef) {
        self.meet(CallKind::Free);
        self.inner.free(block);
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        self.remap(CallKind::Map, || self.inner.map(request))
    }

    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.remap(CallKind::Unmap, || self.inner.unmap(request))
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        self.inner.map_state(block)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.transfer(CallKind::CopyIn, |bytes| match bytes {
            Some(bytes) => self.inner.copy_in(copy.first(bytes)),
            None => self.inner.copy_in(copy),
        })
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.transfer(CallKind::CopyOut, |bytes| match bytes {
            Some(bytes) => self.inner.copy_out(copy.first(bytes)),
            None => self.inner.copy_out(copy),
        })
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.transfer(CallKind::Fill, |bytes| match bytes {
            Some(bytes) => self.inner.fill(fill.first(bytes)),
            None => self.inner.fill(fill),
        })
    }

    fn tail(&self) -> Result<Fence, TransferError> {
        self.inner.tail()
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.inner.loss()
    }
}
