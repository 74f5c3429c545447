//! Blocks: the allocations of arenas.

use crate::base::guard::Quiet;
use crate::base::sync::Arc;
use crate::memory::host::{HostMemory, HostSpan};
use crate::memory::request::Backing;
use std::any::Any;
use std::fmt;

/// A framework's own handle for storage: a `cl_mem`, a CUDA device pointer, or the address of host memory.
///
/// Core passes the handle on and never interprets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeHandle(pub usize);

/// One contiguous allocation of an arena, owned through a [`BlockRef`]. Dropping the last reference frees the
/// block.
///
/// Kernels receive references to blocks and may keep them, so a block by itself gives no access to bytes.
///
/// # What a block owes
/// - **B-1** Its size is the one it was made with, and at least the requested size. (`hostile`
///   `every_lie_is_told_for_what_it_is`)
/// - **B-2** It shows the storage that it is made over, always the same one, or none if it has its own.
///   (`hostile` `a_block_over_other_storage_is_refused`, `a_block_bound_to_another_root_is_refused`)
/// - **B-3** Calls and the destructor may panic and call back into core, as an arena's may. A panic
///   fails the requested operation. (`hostile` `a_panic_of_any_call_is_the_failure_of_what_was_asked_alone`,
///   `any_call_may_call_back_into_core`, `a_block_that_panics_over_its_storage_is_refused`)
pub trait Block: Any + Send + Sync + fmt::Debug {
    /// Returns the size in bytes.
    fn len(&self) -> u64;

    /// Returns whether the block has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the framework's own handle.
    fn native(&self) -> NativeHandle;

    /// Returns the storage that the block is made over, or `None` if the block has storage of its own. A
    /// block over such storage holds the [`Backing`] and always returns the same one.
    fn backing(&self) -> Option<&Backing> {
        None
    }
}

/// A shared reference to a block.
pub type BlockRef = Arc<dyn Block>;

impl dyn Block {
    /// Returns the block as its concrete type, or `None` if it is of another type.
    #[must_use]
    pub fn downcast_ref<B: Block>(&self) -> Option<&B> {
        (self as &dyn Any).downcast_ref()
    }
}

/// A new block, to which no other reference exists, and its host memory.
///
/// A wrapping arena passes both on together, because the wrapped arena writes the memory through the block.
#[derive(Debug)]
pub struct NewBlock {
    pub(crate) block: BlockRef,
    pub(crate) host: Option<HostMemory>,
}

impl NewBlock {
    /// Wraps a block that the host cannot address.
    #[must_use]
    pub fn new(block: BlockRef) -> Self {
        Self { block, host: None }
    }

    /// Returns the block.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.block
    }

    /// Returns the block and drops its host memory.
    #[must_use]
    pub fn into_block(self) -> BlockRef {
        self.block
    }

    /// Returns the location of the block in host memory, or `None` if the block is not host memory.
    #[must_use]
    pub fn host(&self) -> Option<&HostSpan> {
        self.host.as_ref().map(HostMemory::span)
    }

    /// Returns whether no other reference to the block exists. A reference from its own host memory does not
    /// count.
    pub(crate) fn is_new(&mut self) -> bool {
        let Self { block, host } = self;
        // Only `Arc::get_mut` checks the strong and the weak count at once.
        let is_new = |block: &mut BlockRef| Arc::get_mut(block).is_some();
        match host {
            Some(host) if host.is_kept_by(block) => host.without_share(block, is_new),
            _ => is_new(block),
        }
    }

    /// Returns whether the block shows exactly the expected backing, and its host memory belongs to it. The
    /// expected backing is `None` for a block with storage of its own.
    pub(crate) fn is_over(&self, backing: Option<&Backing>) -> bool {
        let is_own = self.host.as_ref().is_none_or(|host| host.is_for(&self.block));
        let is_over = match (self.block.backing(), backing) {
            (None, None) => true,
            (Some(shown), Some(asked)) => shown.is(asked),
            _ => false,
        };
        is_own && is_over
    }

    /// Attaches the host memory of a block that lies completely in host memory.
    #[must_use]
    pub fn with_host(mut self, memory: HostMemory) -> Self {
        self.host = Some(memory);
        self
    }
}

/// A block that a backend made over memory of the application, with the container that owns the memory.
///
/// [`RawBuffer::attach_block`](crate::RawBuffer::attach_block) makes it the storage of a buffer, and
/// [`RawBuffer::into_container`](crate::RawBuffer::into_container) gives the container back.
pub struct ExternalBlock<C> {
    /// The block's destructor may panic, and so may the container's (B-3).
    pub(crate) new: Quiet<NewBlock>,
    pub(crate) container: Arc<C>,
}

impl<C: Any + Send + Sync> ExternalBlock<C> {
    /// Joins a new block and its container. If dropping the container frees the memory, the block keeps a
    /// reference to the container. The container comes back only after that reference is dropped.
    #[must_use]
    pub fn new(new: NewBlock, container: Arc<C>) -> Self {
        Self { new: Quiet::new(new), container }
    }

    /// Returns the size of the memory in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.new.block.len()
    }

    /// Returns whether the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the framework's handle of the memory.
    #[must_use]
    pub fn native(&self) -> NativeHandle {
        self.new.block.native()
    }

    /// Drops the block and returns the container. A panic of the block's destructor is ignored.
    ///
    /// # Errors
    /// The shared container, if the backend keeps a reference to it.
    pub fn into_container(self) -> Result<C, Arc<C>> {
        let Self { new, container } = self;
        drop(new);
        Arc::try_unwrap(container)
    }
}

impl<C> fmt::Debug for ExternalBlock<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExternalBlock({:?})", self.new.block)
    }
}
