//! A block: some pages of a worker's memory.

use super::device::OffloadDevice;
use dml_core::sync::Arc;
use dml_core::{Block, BlockRef, NativeHandle, Span};

/// Pages of a worker's memory, given back when the last reference is dropped.
#[derive(Debug)]
pub(super) struct OffloadBlock {
    device: Arc<OffloadDevice>,
    /// The pages, by their offset in bytes in the worker's memory.
    pages: Span,
    len: u64,
}

impl OffloadBlock {
    /// Makes a block over pages taken from the device's heap.
    pub(super) fn new(device: Arc<OffloadDevice>, pages: Span, len: u64) -> Self {
        Self { device, pages, len }
    }

    /// Returns the place of some bytes of a block in the memory of a device's worker.
    ///
    /// # Errors
    /// The reason why the bytes have no place there.
    pub(super) fn find(block: &BlockRef, device: &Arc<OffloadDevice>, span: Span) -> Result<Span, String> {
        let own = block.downcast_ref::<Self>().filter(|own| Arc::ptr_eq(&own.device, device));
        let own = own.ok_or("the block belongs to another arena")?;
        let start = own.pages.start();
        match span.end() <= own.len {
            true => Ok(Span::new(start + span.start(), start + span.end())),
            false => Err(format!("bytes {span} of a block of {} bytes", own.len)),
        }
    }
}

impl Drop for OffloadBlock {
    fn drop(&mut self) {
        self.device.give_back(self.pages);
    }
}

impl Block for OffloadBlock {
    fn len(&self) -> u64 {
        self.len
    }

    /// The address in the worker's memory, counted from its start.
    fn native(&self) -> NativeHandle {
        NativeHandle(self.pages.start() as usize)
    }
}
