//! A block: some pages of a worker's memory.

use super::device::OffloadDevice;
use dml_core::sync::Arc;
use dml_core::{Block, NativeHandle, Span};

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

    /// Returns whether the block is in this device's memory.
    pub(super) fn is_of(&self, device: &Arc<OffloadDevice>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Returns the place of a span in the worker's memory; `None` where the span reaches past the block's end.
    pub(super) fn place(&self, span: Span) -> Option<Span> {
        let start = self.pages.start();
        (span.end() <= self.len).then(|| Span::new(start + span.start(), start + span.end()))
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
