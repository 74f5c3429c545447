//! Blocks in host memory, and the operations that main memory and shared memory have in common.

use super::memory::{self, Memory};
use dml_core::internal::sync::Arc;
use dml_core::{
    ArenaDesc, Backing, Block, BlockRef, CopyIn, CopyOut, Fence, Fill, HostSpan, NativeHandle, Span,
};
use std::any::Any;
use std::fmt;

/// A block of host memory. The page locks are dropped before the memory.
#[derive(Debug)]
pub(crate) struct HostBlock {
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    page_locks: super::PageLocks,
    span: HostSpan,
    keeps: Keeps,
    /// The name of the arena that made the block. It is compared by pointer, which distinguishes arenas of
    /// the same name.
    arena: Arc<str>,
}

/// The owner of a block's memory.
pub(crate) enum Keeps {
    /// The arena allocated the memory.
    Own { _memory: Box<dyn Any + Send + Sync> },
    /// The application, or another arena's block, owns the memory.
    Over(Backing),
}

impl Keeps {
    pub(crate) fn memory(memory: Memory) -> Self {
        Self::Own { _memory: Box::new(memory) }
    }
}

impl fmt::Debug for Keeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own { .. } => f.write_str("Own"),
            Self::Over(backing) => backing.fmt(f),
        }
    }
}

impl HostBlock {
    /// Creates a block of the arena that `desc` describes.
    pub(crate) fn of(desc: &ArenaDesc, span: &HostSpan, keeps: Keeps) -> BlockRef {
        Arc::new(Self {
            #[cfg(any(feature = "cuda", feature = "opencl"))]
            page_locks: super::PageLocks::default(),
            span: span.clone(),
            keeps,
            arena: desc.name.clone(),
        })
    }

    /// Returns some bytes of a block that the arena made.
    ///
    /// # Panics
    /// When another arena made the block, or the bytes reach past its end: a bug of core.
    fn bytes(desc: &ArenaDesc, block: &BlockRef, span: Span) -> HostSpan {
        let name = &desc.name;
        let is_own = |block: &&Self| Arc::ptr_eq(&block.arena, name);
        let own = block.downcast_ref::<Self>().filter(is_own);
        let host = &own
            .unwrap_or_else(|| panic!("core bug: {name} was handed a block of another arena: {block:?}"))
            .span;
        let len = host.len();
        assert!(span.end() <= len, "core bug: {name} was asked for bytes {span} of a block of {len} bytes");
        host.slice(span)
    }

    pub(crate) fn copy_in(desc: &ArenaDesc, copy: &CopyIn) -> Fence {
        // SAFETY: core has lent the source and the block's bytes until `copy` is dropped.
        unsafe { memory::copy(copy.from().span(), &Self::bytes(desc, copy.block(), copy.span())) };
        Fence::done(copy.len())
    }

    pub(crate) fn copy_out(desc: &ArenaDesc, copy: &CopyOut) -> Fence {
        // SAFETY: as in `copy_in`.
        unsafe { memory::copy(&Self::bytes(desc, copy.block(), copy.span()), copy.to().span()) };
        Fence::done(copy.len())
    }

    pub(crate) fn fill(desc: &ArenaDesc, fill: &Fill) -> Fence {
        // SAFETY: core has lent the block's bytes until `fill` is dropped.
        unsafe { memory::fill(&Self::bytes(desc, fill.block(), fill.span()), fill.byte()) };
        Fence::done(fill.len())
    }
}

/// Returns the page locks of a block of host memory, and its span; `None` for a block of another arena.
#[cfg(any(feature = "cuda", feature = "opencl"))]
pub(crate) fn page_locks(block: &BlockRef) -> Option<(&super::PageLocks, &HostSpan)> {
    block.downcast_ref::<HostBlock>().map(|block| (&block.page_locks, &block.span))
}

impl Block for HostBlock {
    fn len(&self) -> u64 {
        self.span.len()
    }

    fn native(&self) -> NativeHandle {
        NativeHandle(self.span.as_ptr().addr())
    }

    fn backing(&self) -> Option<&Backing> {
        match &self.keeps {
            Keeps::Own { .. } => None,
            Keeps::Over(backing) => Some(backing),
        }
    }
}
