//! Blocks: pages of a worker's own memory, or a range of the memory that it shares.

use super::device::OffloadDevice;
use super::message::Memory;
use super::transfer::Place;
use dml_core::internal::sync::Arc;
use dml_core::{Backing, Block, BlockRef, NativeHandle, Span};

/// A block in a memory that a worker maps.
#[derive(Debug)]
pub(super) struct OffloadBlock {
    device: Arc<OffloadDevice>,
    storage: Storage,
    len: u64,
}

/// Where the bytes of a block are.
#[derive(Debug)]
enum Storage {
    /// Pages of the worker's own memory, as a span of byte offsets. They are freed with the block.
    Pages(Span),
    /// A part of the shared memory, which belongs to another block.
    Bound { part: Span, backing: Backing },
}

impl OffloadBlock {
    /// Makes a block over pages taken from the device's heap.
    pub(super) fn new(device: Arc<OffloadDevice>, pages: Span, len: u64) -> Self {
        Self { device, storage: Storage::Pages(pages), len }
    }

    /// Makes a block over storage in the memory that the device's worker shares; `None` for other storage.
    pub(super) fn bind(device: &Arc<OffloadDevice>, root: &Backing) -> Option<Self> {
        let part = device.shared()?.part_of(root.host()?)?;
        let storage = Storage::Bound { part, backing: root.clone() };
        Some(Self { device: device.clone(), storage, len: root.len() })
    }

    /// Returns the place of some bytes of a block in a memory that a device's worker maps.
    ///
    /// # Errors
    /// The reason why the bytes have no place there.
    pub(super) fn find(block: &BlockRef, device: &Arc<OffloadDevice>, span: Span) -> Result<Place, String> {
        let own = block.downcast_ref::<Self>().filter(|own| Arc::ptr_eq(&own.device, device));
        let own = own.ok_or("the block belongs to another arena")?;
        let Place { memory, span: whole } = own.whole();
        let start = whole.start();
        match span.end() <= own.len {
            true => Ok(Place { memory, span: Span::new(start + span.start(), start + span.end()) }),
            false => Err(format!("bytes {span} of a block of {} bytes", own.len)),
        }
    }

    fn whole(&self) -> Place {
        match &self.storage {
            Storage::Pages(span) => Place { memory: Memory::Own, span: *span },
            Storage::Bound { part, .. } => Place { memory: Memory::Shared, span: *part },
        }
    }
}

impl Drop for OffloadBlock {
    fn drop(&mut self) {
        if let Storage::Pages(pages) = self.storage {
            self.device.give_back(pages);
        }
    }
}

impl Block for OffloadBlock {
    fn len(&self) -> u64 {
        self.len
    }

    /// Returns the offset of the block in its memory, in bytes.
    fn native(&self) -> NativeHandle {
        NativeHandle(self.whole().span.start() as usize)
    }

    fn backing(&self) -> Option<&Backing> {
        match &self.storage {
            Storage::Pages(_) => None,
            Storage::Bound { backing, .. } => Some(backing),
        }
    }
}
