//! Blocks without a buffer, for code that measures or checks an arena.

use crate::base::guard::guard;
use crate::base::id::DeviceId;
use crate::base::range::Span;
use crate::base::sync::{Arc, Mutex};
use crate::memory::arena::{Arena, MapReport};
use crate::memory::block::{BlockRef, NewBlock};
use crate::memory::error::{AllocError, TransferError};
use crate::memory::fence::Fence;
use crate::memory::host::{HostMemory, Loan};
use crate::memory::map_state::MapState;
use crate::memory::request::{Backing, CopyIn, CopyOut, Fill, MapRequest, UnmapRequest};
use crate::platform::error::Unstored;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A block of an arena that belongs to no buffer.
///
/// It tracks the transfers in flight, and panics if two of them touch the same bytes unless both only read.
/// It also panics if the bytes are viewed during a transfer. Unlike core, it may request operations that the
/// abstract machine forbids.
#[derive(Clone)]
pub struct OwnBlock {
    arena: Arc<dyn Arena>,
    inner: Arc<Inner>,
}

struct Inner {
    block: BlockRef,
    state: Mutex<State>,
}

struct State {
    /// The block as host memory, if the block is host memory.
    host: Option<HostMemory>,
    /// The memory of the mapping while the block is mapped for the host.
    mapped: Option<HostMemory>,
    under_way: Vec<(Span, bool, Loan)>,
}

impl State {
    /// Records a transfer.
    fn enter(&mut self, span: Span, writes: bool) -> Loan {
        self.under_way.retain(|(.., loan)| loan.is_out());
        let rival = |(other, theirs, _): &&(Span, bool, Loan)| other.overlaps(span) && (writes || *theirs);
        if let Some((other, ..)) = self.under_way.iter().find(rival) {
            panic!("transfer of bytes {span} requested while a transfer of bytes {other} is in flight");
        }
        let loan = Loan::default();
        self.under_way.push((span, writes, loan.clone()));
        loan
    }

    fn expect_idle(&mut self) {
        self.under_way.retain(|(.., loan)| loan.is_out());
        assert!(self.under_way.is_empty(), "{} transfers of the block are in flight", self.under_way.len());
    }

    fn host(&mut self) -> Option<&mut HostMemory> {
        self.expect_idle();
        self.mapped.as_mut().or(self.host.as_mut())
    }
}

impl OwnBlock {
    /// Allocates a fresh block.
    ///
    /// # Errors
    /// The arena's error; [`AllocError::NotNew`], [`AllocError::OtherStorage`].
    pub fn alloc(arena: &Arc<dyn Arena>, len: u64) -> Result<Self, AllocError> {
        Self::of(arena, arena.alloc(len)?, None)
    }

    /// Makes a block over the caller's own storage.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); the error returns the storage.
    ///
    /// # Panics
    /// If part of the storage is lent, or if the storage belongs to a block.
    pub fn attach(arena: &Arc<dyn Arena>, storage: HostMemory) -> Result<Self, Unstored<HostMemory>> {
        storage.expect_own();
        let backing = Backing::external(&storage);
        let made = guard(|| {
            arena.attach(&backing).and_then(|block| Self::of(arena, NewBlock::new(block), Some(&backing)))
        });
        let panicked = |message| Err(AllocError::Panicked { arena: arena.desc().name.clone(), message });
        let made = made.unwrap_or_else(panicked);
        match made {
            Ok(own) => {
                own.inner.state.lock().host = Some(storage);
                Ok(own)
            }
            Err(cause) => Err(Unstored { cause: cause.into(), storage }),
        }
    }

    fn of(arena: &Arc<dyn Arena>, mut new: NewBlock, backing: Option<&Backing>) -> Result<Self, AllocError> {
        let name = || arena.desc().name.clone();
        if !new.is_new() {
            return Err(AllocError::NotNew { arena: name() });
        }
        if !new.is_over(backing) {
            return Err(AllocError::OtherStorage { arena: name() });
        }
        let NewBlock { block, host } = new;
        let state = Mutex::new(State { host, mapped: None, under_way: Vec::new() });
        Ok(Self { arena: arena.clone(), inner: Arc::new(Inner { block, state }) })
    }

    /// Returns a handle of the same block that sends its requests to another arena.
    #[must_use]
    pub fn asked_of(&self, arena: &Arc<dyn Arena>) -> Self {
        Self { arena: arena.clone(), inner: self.inner.clone() }
    }

    /// Returns the block.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.inner.block
    }

    /// Returns the bytes that the host sees: those of the mapping if the block is mapped, or its own if it is
    /// host memory.
    ///
    /// # Panics
    /// While a transfer is in flight.
    #[must_use]
    pub fn seen(&self) -> Option<Vec<u8>> {
        self.inner.state.lock().host().map(|host| host.seen().to_vec())
    }

    /// Returns the host's address of the block, if it has one.
    ///
    /// # Panics
    /// As [`seen`](Self::seen).
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        self.inner.state.lock().host().map(|host| host.span().as_ptr().addr())
    }

    /// Writes `bytes` at `offset` through the host.
    ///
    /// # Panics
    /// As [`seen`](Self::seen); also if the host does not see the block, or if `bytes` reaches past its end.
    pub fn overwrite(&self, offset: usize, bytes: &[u8]) {
        let mut state = self.inner.state.lock();
        let host = state.host().expect("the host sees the block");
        host.seen_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Starts copying `part` of the host memory into the block at `offset`.
    ///
    /// # Errors
    /// The arena's error.
    ///
    /// # Panics
    /// If a conflicting transfer of the bytes is in flight, or if part of the memory is lent.
    pub fn copy_in(&self, offset: u64, from: &HostMemory, part: Span) -> Result<Fence, TransferError> {
        let end = offset.saturating_add(part.len());
        let loan = self.inner.state.lock().enter(Span::new(offset, end), true);
        let source = from.source(part).with(&loan);
        drop(loan);
        self.arena.copy_in(CopyIn::scheduled(&self.inner.block, offset, source))
    }

    /// Starts copying from the block at `offset` into `part` of the host memory.
    ///
    /// # Errors
    /// The arena's error.
    ///
    /// # Panics
    /// As [`copy_in`](Self::copy_in).
    pub fn copy_out(&self, offset: u64, to: &mut HostMemory, part: Span) -> Result<Fence, TransferError> {
        let end = offset.saturating_add(part.len());
        let loan = self.inner.state.lock().enter(Span::new(offset, end), false);
        let target = to.target(part).with(&loan);
        drop(loan);
        self.arena.copy_out(CopyOut::scheduled(&self.inner.block, offset, target))
    }

    /// Starts setting bytes of the block to one value.
    ///
    /// # Errors
    /// The arena's error.
    ///
    /// # Panics
    /// As [`copy_in`](Self::copy_in).
    pub fn fill(&self, span: Span, byte: u8) -> Result<Fence, TransferError> {
        let loan = self.inner.state.lock().enter(span, true);
        let fill = Fill::scheduled(&self.inner.block, span, byte, &loan);
        drop(loan);
        self.arena.fill(fill)
    }

    /// Requests access for a remote device, and returns the reported map state.
    ///
    /// # Errors
    /// The arena's error.
    ///
    /// # Panics
    /// While a transfer is in flight.
    pub fn map(&self, device: DeviceId, target: MapState) -> Result<MapState, TransferError> {
        self.change(|block, host| self.arena.map(MapRequest::scheduled(block, device, target, host)))
    }

    /// Requests access for the native device, and returns the reported map state.
    ///
    /// # Errors
    /// The arena's error.
    ///
    /// # Panics
    /// While a transfer is in flight.
    pub fn unmap(&self, target: MapState) -> Result<MapState, TransferError> {
        self.change(|block, host| self.arena.unmap(UnmapRequest::scheduled(block, target, host)))
    }

    fn change(
        &self,
        ask: impl FnOnce(&BlockRef, &mut Option<HostMemory>) -> Result<MapReport, TransferError>,
    ) -> Result<MapState, TransferError> {
        // No other transfer can start until the arena has answered.
        let (mut mapped, _whole) = {
            let mut state = self.inner.state.lock();
            state.expect_idle();
            (state.mapped.take(), state.enter(Span::new(0, u64::MAX), true))
        };
        // An arena that panics has changed nothing, so the mapping remains.
        let report = catch_unwind(AssertUnwindSafe(|| ask(&self.inner.block, &mut mapped)));
        let report = report.map(|report| {
            report.map(|MapReport { state, host }| {
                mapped = host.or(mapped.take()).filter(|_| !state.remotes().is_empty());
                state
            })
        });
        // Memory of another block must not be viewed, so it is dropped.
        let mapped = mapped.filter(|mapped| mapped.is_for(&self.inner.block));
        self.inner.state.lock().mapped = mapped;
        report.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Gives the block back to its arena, even if other references exist.
    pub fn free(self) {
        let mut state = self.inner.state.lock();
        let memory = (state.host.take(), state.mapped.take());
        drop(state);
        drop(memory);
        self.arena.free(self.inner.block.clone());
    }
}

impl fmt::Debug for OwnBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnBlock({:?})", self.inner.block)
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;
    use crate::base::guard::guard;

    /// Two transfers that share a byte are refused, unless both only read.
    #[test]
    fn i01_no_byte_is_asked_for_beside_its_writer() {
        let state = || State { host: None, mapped: None, under_way: Vec::new() };
        for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut state = state();
            let _under_way = state.enter(Span::new(8, 16), first);
            for apart in [Span::new(0, 8), Span::new(16, 20), Span::new(12, 12)] {
                drop(state.enter(apart, second));
            }
            for shared in [Span::new(15, 16), Span::new(0, 9), Span::new(0, 20)] {
                let entered = guard(|| drop(state.enter(shared, second)));
                assert_eq!(entered.is_ok(), !first && !second, "{first}, then {second} at {shared}");
            }
        }
        let mut state = state();
        let ended = state.enter(Span::new(8, 16), true);
        drop(ended);
        drop(state.enter(Span::new(8, 16), true));
        state.expect_idle();
    }
}
