//! Blocks of the test arena.

use super::books::Books;
use crate::main_mem::{Memory, shown};
use dml_core::internal::sync::Arc;
use dml_core::{Backing, Block, HostMemory, HostSpan, NativeHandle};

/// The storage of a block's bytes.
#[derive(Debug)]
pub(super) enum Storage {
    /// The block has no bytes: the arena is not backed.
    Nowhere,
    /// The block owns memory.
    Own { _memory: Memory },
    /// The block uses storage of the application.
    External(Backing),
    /// The block uses the storage of the block that it is bound to.
    Bound(Backing),
}

/// A block of the test arena.
#[derive(Debug)]
pub(super) struct NullBlock {
    pub(super) number: u64,
    pub(super) len: u64,
    /// The bytes, if the arena is backed.
    pub(super) span: Option<HostSpan>,
    /// Whether the host is the native device, which sees the bytes without a mapping.
    pub(super) is_host: bool,
    pub(super) storage: Storage,
    pub(super) books: Arc<Books>,
}

impl NullBlock {
    /// Returns the block's bytes as memory for core, if the arena is backed.
    pub(super) fn memory(self: &Arc<Self>) -> Option<HostMemory> {
        let span = self.span.as_ref()?;
        // SAFETY: the block keeps its memory alive, or the storage that it uses (1). The arena accesses that
        // only for requests of core and for kernels under grants (2). It hands out only the bytes of this
        // block (3).
        Some(unsafe { shown(span, self.clone()) })
    }

    /// Changes the count of bound blocks of the block that this one is bound to, if it is bound.
    pub(super) fn count_as_bound(&self, change: i32) {
        if let Storage::Bound(backing) = &self.storage
            && let Some(root) = backing.block().and_then(|root| root.downcast_ref::<Self>())
        {
            root.books.count_bound(root.number, change);
        }
    }
}

impl Block for NullBlock {
    fn len(&self) -> u64 {
        self.len
    }

    fn native(&self) -> NativeHandle {
        let address = self.span.as_ref().filter(|_| self.is_host).map(|span| span.as_ptr().addr());
        NativeHandle(address.unwrap_or(self.number as usize + 1))
    }

    fn backing(&self) -> Option<&Backing> {
        match &self.storage {
            Storage::External(backing) | Storage::Bound(backing) => Some(backing),
            Storage::Nowhere | Storage::Own { .. } => None,
        }
    }
}

impl Drop for NullBlock {
    fn drop(&mut self) {
        // A thread must not take a lock of a loom model while it unwinds.
        if !std::thread::panicking() && self.books.strike(self.number).is_some() {
            self.count_as_bound(-1);
        }
    }
}
