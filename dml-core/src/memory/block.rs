//! Allocations of arenas.

use crate::base::sync::Arc;
use crate::memory::host::{HostMemory, HostSpan};
use crate::memory::request::Backing;
use std::any::Any;
use std::fmt;

/// A framework's own handle for a storage: `cl_mem`, a CUDA device pointer, the address of host memory.
///
/// Core carries it and never interprets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeHandle(pub usize);

/// One contiguous allocation of an arena, owned through a [`BlockRef`]; dropping the last reference frees it.
///
/// References to it are lent to kernels, which may keep them: a block gives access to nothing by itself. Its methods and its
/// destructor are called as an arena's are.
pub trait Block: Any + Send + Sync + fmt::Debug {
    /// The size in bytes.
    fn len(&self) -> u64;

    /// Whether the block has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The framework's own handle.
    fn native(&self) -> NativeHandle;

    /// What the block is made over, where that is not storage of its own. A block whose author touches such storage holds the
    /// [`Backing`] and shows it here, always the same one.
    fn backing(&self) -> Option<&Backing> {
        None
    }
}

/// A shared reference to a block.
pub type BlockRef = Arc<dyn Block>;

impl dyn Block {
    /// The block as its concrete type, where it is of that type.
    #[must_use]
    pub fn downcast_ref<B: Block>(&self) -> Option<&B> {
        (self as &dyn Any).downcast_ref()
    }
}

/// A block just made, to which nobody else has a reference, and its host memory. Whoever passes one on cannot part the two:
/// the arena inside writes the memory by the block.
#[derive(Debug)]
pub struct NewBlock {
    pub(crate) block: BlockRef,
    pub(crate) host: Option<HostMemory>,
}

impl NewBlock {
    /// A block that the host does not see.
    #[must_use]
    pub fn new(block: BlockRef) -> Self {
        Self { block, host: None }
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.block
    }

    /// The block alone; its host memory goes.
    #[must_use]
    pub fn into_block(self) -> BlockRef {
        self.block
    }

    /// Where the block is host memory.
    #[must_use]
    pub fn host(&self) -> Option<&HostSpan> {
        self.host.as_ref().map(HostMemory::span)
    }

    /// Whether nobody else has the block; its own host memory may.
    pub(crate) fn is_new(&mut self) -> bool {
        let Self { block, host } = self;
        // Nothing but this asks for both counts at once.
        let is_new = |block: &mut BlockRef| Arc::get_mut(block).is_some();
        match host {
            Some(host) if host.is_kept_by(block) => host.without_share(block, is_new),
            _ => is_new(block),
        }
    }

    /// Whether the block says that it is over this storage, or over none but its own, and its host memory is its own.
    pub(crate) fn is_over(&self, backing: Option<&Backing>) -> bool {
        let is_own = self.host.as_ref().is_none_or(|host| host.is_for(&self.block));
        let is_over = match (self.block.backing(), backing) {
            (None, None) => true,
            (Some(shown), Some(asked)) => shown.is(asked),
            _ => false,
        };
        is_own && is_over
    }

    /// A block that is host memory, all of it.
    #[must_use]
    pub fn with_host(mut self, memory: HostMemory) -> Self {
        self.host = Some(memory);
        self
    }
}
