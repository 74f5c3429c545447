//! An arena whose device dies: at once, at a certain call, or while a certain call's work is under way.
//!
//! ```text
//!   alive ──die──▶ dead: every call answers that the device is lost, and so does is_lost()
//!         ──the n-th call begins (Death::Before)──▶ dead
//!         ──the work of the n-th call ends (Death::During)──▶ dead: it moved its bytes, and says that it is lost
//! ```
//! What frees storage is passed on: the books of the arena inside must come out even.

use dml_core::state::MapState;
use dml_core::sync::{Arc, Mutex};
use dml_core::{
    AllocError, Arena, ArenaDesc, Backing, BlockRef, CopyIn, CopyOut, Fence, Fill, MapReport, MapRequest,
    NewBlock, TransferError, UnmapRequest,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// When a device dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// When the n-th call from now comes, which fails.
    Before(u64),
    /// While the work of the n-th call from now is under way; a call that starts no work fails.
    During(u64),
}

/// Any arena, on a device that may die.
#[derive(Debug)]
pub struct Mortal<A> {
    inner: A,
    death: Mutex<Option<Death>>,
    is_dead: Arc<AtomicBool>,
    calls: AtomicU64,
}

impl<A: Arena> Mortal<A> {
    /// `arena`, alive.
    pub fn new(arena: A) -> Self {
        let (death, calls) = (Mutex::new(None), AtomicU64::new(0));
        Self { inner: arena, death, is_dead: Arc::new(AtomicBool::new(false)), calls }
    }

    /// The arena inside.
    pub fn inner(&self) -> &A {
        &self.inner
    }

    /// How many calls were made that a dead device would not have answered.
    pub fn calls_made(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// The device dies.
    pub fn die(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
    }

    /// The device will die.
    pub fn die_at(&self, death: Death) {
        *self.death.lock() = Some(death);
    }

    /// What the device was to die of does not come; one that is dead stays so.
    pub fn spare(&self) {
        *self.death.lock() = None;
    }

    /// A call comes: whether the device dies while its work is under way.
    fn call(&self) -> Result<bool, TransferError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut death = self.death.lock();
        let dies_now = match &mut *death {
            Some(Death::Before(left) | Death::During(left)) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            None => false,
        };
        let during = matches!(*death, Some(Death::During(_)));
        if dies_now {
            *death = None;
            if !during {
                self.die();
            }
        }
        if self.is_lost() { Err(TransferError::DeviceLost) } else { Ok(dies_now && during) }
    }

    /// A call that ends before it returns.
    fn answered<R>(&self, call: impl FnOnce() -> Result<R, TransferError>) -> Result<R, TransferError> {
        if self.call()? {
            self.die();
            return Err(TransferError::DeviceLost);
        }
        call()
    }

    /// A call that starts work.
    fn started(&self, call: impl FnOnce() -> Result<Fence, TransferError>) -> Result<Fence, TransferError> {
        let dies = self.call()?;
        let fence = call()?;
        if !dies {
            return Ok(fence);
        }
        let is_dead = self.is_dead.clone();
        Ok(Fence::running(move || {
            fence.wait()?;
            is_dead.store(true, Ordering::SeqCst);
            Err(TransferError::DeviceLost)
        }))
    }

    fn stored<R>(&self, call: impl FnOnce() -> Result<R, AllocError>) -> Result<R, AllocError> {
        let lost = || AllocError::DeviceLost { arena: self.inner.desc().name.clone() };
        self.answered(|| Ok(call())).unwrap_or_else(|_| Err(lost()))
    }
}

impl<A: Arena> Arena for Mortal<A> {
    fn desc(&self) -> &ArenaDesc {
        self.inner.desc()
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        self.stored(|| self.inner.alloc(len))
    }

    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        self.stored(|| self.inner.attach(storage))
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        self.stored(|| self.inner.bind(root))
    }

    fn free(&self, block: BlockRef) {
        self.inner.free(block);
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        self.answered(|| self.inner.map(request))
    }

    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.answered(|| self.inner.unmap(request))
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.started(|| self.inner.copy_in(copy))
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.started(|| self.inner.copy_out(copy))
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.started(|| self.inner.fill(fill))
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        self.inner.map_state(block).filter(|_| !self.is_lost())
    }

    fn tail(&self) -> Result<Fence, TransferError> {
        self.inner.tail()
    }

    fn is_lost(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }
}
