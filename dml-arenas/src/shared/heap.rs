//! Keeps track of the taken and free parts of a memory file.

use dml_core::Span;
use dml_core::sync::Mutex;
use range_alloc::RangeAllocator;

/// Blocks begin and end at page boundaries, so that each has its own pages to reserve and give back.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// The pages of one memory file.
#[derive(Debug)]
pub(crate) struct Heap {
    free_pages: Mutex<RangeAllocator<u64>>,
}

impl Heap {
    /// Makes a heap of `bytes` free bytes, rounded down to whole pages.
    pub(crate) fn new(bytes: u64) -> Self {
        Self { free_pages: Mutex::new(RangeAllocator::new(0..bytes / PAGE_BYTES)) }
    }

    /// Takes a span for `bytes` bytes, in whole pages; `None` where no free stretch is long enough.
    pub(crate) fn take(&self, bytes: u64) -> Option<Span> {
        if bytes == 0 {
            return Some(Span::default());
        }
        let pages = self.free_pages.lock().allocate_range(bytes.div_ceil(PAGE_BYTES)).ok()?;
        Some(Span::new(pages.start * PAGE_BYTES, pages.end * PAGE_BYTES))
    }

    /// Takes back what [`take`](Self::take) gave.
    pub(crate) fn give_back(&self, span: Span) {
        if !span.is_empty() {
            self.free_pages.lock().free_range(span.start() / PAGE_BYTES..span.end() / PAGE_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_joined() {
        let heap = Heap::new(10 * PAGE_BYTES + 1);
        let spans: Vec<_> = (0..10).map(|_| heap.take(1).unwrap()).collect();
        assert!(heap.take(1).is_none());
        for span in spans.iter().step_by(2).chain(spans.iter().skip(1).step_by(2)) {
            heap.give_back(*span);
        }
        assert_eq!(heap.take(10 * PAGE_BYTES).unwrap(), Span::new(0, 10 * PAGE_BYTES));
        assert_eq!(heap.take(0), Some(Span::default()));
    }
}
