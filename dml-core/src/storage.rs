//! One arena's storage for one buffer, and what is handed out of it.

use crate::arena::BlockRef;
use crate::host::{HostMemory, Shared};

/// When a storage is freed among those of its buffer (I-10, I-24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FreeOrder {
    /// First: it uses the storage of another.
    Member,
    /// Then: its own.
    Root,
    /// Last: the application's.
    External,
}

/// One arena's storage.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) block: BlockRef,
    /// The block as host memory, where it is.
    pub(crate) host: Option<HostMemory>,
    /// The root's host memory, for a member that belongs to the same device.
    pub(crate) root_host: Option<Shared>,
    /// Where the host sees it while it is mapped for the host.
    pub(crate) mapped: Option<HostMemory>,
    /// The same while the arena has the mapping's memory to change it.
    pub(crate) shown: Option<Shared>,
    pub(crate) order: FreeOrder,
}

impl Storage {
    pub(crate) fn new(block: BlockRef, host: Option<HostMemory>, order: FreeOrder) -> Self {
        Self { block, host, root_host: None, mapped: None, shown: None, order }
    }

    /// Sees to it that the block is never an arena's own again, because something may still touch it.
    pub(crate) fn keep_for_ever(&self) {
        std::mem::forget(self.block.clone());
    }

    /// The block as memory of its own device, where that is the host.
    pub(crate) fn native_host(&self) -> Option<Shared> {
        self.host.as_ref().map(HostMemory::share).or_else(|| self.root_host.clone())
    }

    /// The block as the host sees it now.
    pub(crate) fn host_view(&self) -> Option<Shared> {
        let mapped = self.mapped.as_ref().map(HostMemory::share);
        mapped.or_else(|| self.shown.clone()).or_else(|| self.native_host())
    }
}

/// What a grant hands out.
#[derive(Debug)]
pub(crate) struct Handout {
    pub(crate) block: BlockRef,
    /// The block as host memory, where its own device is the host.
    pub(crate) host: Option<Shared>,
}
