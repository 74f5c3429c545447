//! The allocator of the addresses of one memory.

use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{Block, BlockRef, NativeHandle, Span};
use range_alloc::RangeAllocator;

/// Allocation unit of a [`Heap`], in bytes. Blocks begin and end at page boundaries, so that the pages of
/// each are reserved and given back separately.
pub const PAGE_BYTES: u64 = 4096;

/// An allocator of the addresses of one memory, from 0 on: a file, a device's memory, a window of shared
/// memory. It accesses no byte of the memory.
#[derive(Debug)]
pub struct Heap {
    free_pages: Mutex<RangeAllocator<u64>>,
}

impl Heap {
    /// Creates a heap of `bytes` free bytes, rounded down to whole pages.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { free_pages: Mutex::new(RangeAllocator::new(0..bytes / PAGE_BYTES)) }
    }

    /// Takes a span for `bytes` bytes, in whole pages. Returns `None` if no free stretch is long enough. An
    /// empty span is always free.
    #[must_use]
    pub fn take(&self, bytes: u64) -> Option<Span> {
        if bytes == 0 {
            return Some(Span::default());
        }
        let pages = self.free_pages.lock().allocate_range(bytes.div_ceil(PAGE_BYTES)).ok()?;
        Some(Span::new(pages.start * PAGE_BYTES, pages.end * PAGE_BYTES))
    }

    /// Gives back a span that [`take`](Self::take) returned.
    ///
    /// # Panics
    /// When the span does not consist of whole, taken pages: `take` did not return it, or it was given back
    /// before. The heap is then unchanged.
    pub fn give_back(&self, span: Span) {
        if span.is_empty() {
            return;
        }
        let pages = span.start() / PAGE_BYTES..span.end() / PAGE_BYTES;
        let is_whole = [span.start(), span.end()].iter().all(|end| end.is_multiple_of(PAGE_BYTES));
        let mut free_pages = self.free_pages.lock();
        let is_taken = is_whole
            && pages.end <= free_pages.initial_range().end
            && free_pages
                .allocated_ranges()
                .any(|taken| taken.start <= pages.start && pages.end <= taken.end);
        if is_taken {
            free_pages.free_range(pages);
        }
        drop(free_pages);
        assert!(is_taken, "bytes {span} are given back to a heap that has not handed them out");
    }
}

/// A block of pages of a [`Heap`]. Dropping the last reference gives the pages back.
///
/// # Examples
/// ```
/// use dml_arenas::kit::{Heap, HeapBlock};
/// use dml_core::{BlockRef, Span};
/// use std::sync::Arc;
///
/// let heap = Arc::new(Heap::new(1 << 20));
/// let first: BlockRef = Arc::new(HeapBlock::take(&heap, 5000).expect("enough free pages"));
/// let second: BlockRef = Arc::new(HeapBlock::take(&heap, 100).expect("enough free pages"));
/// assert_eq!(HeapBlock::place(&second, &heap, Span::new(3, 10)), Ok(Span::new(8195, 8202)));
/// assert!(HeapBlock::place(&second, &heap, Span::new(3, 101)).is_err());
/// # drop(first);
/// ```
#[derive(Debug)]
pub struct HeapBlock {
    heap: Arc<Heap>,
    pages: Span,
    len: u64,
}

impl HeapBlock {
    /// Takes pages for a block of `len` bytes. Returns `None` if no free stretch is long enough.
    #[must_use]
    pub fn take(heap: &Arc<Heap>, len: u64) -> Option<Self> {
        heap.take(len).map(|pages| Self { heap: heap.clone(), pages, len })
    }

    /// Returns where bytes of a block lie in the heap's memory.
    ///
    /// # Errors
    /// A message if the block belongs to another heap, or has fewer bytes. Core requests neither, so an arena
    /// panics with the message and its name.
    pub fn place(block: &BlockRef, heap: &Arc<Heap>, span: Span) -> Result<Span, String> {
        let own = block.downcast_ref::<Self>().filter(|own| Arc::ptr_eq(&own.heap, heap));
        let own = own.ok_or_else(|| format!("a block of {} bytes belongs to another arena", block.len()))?;
        let start = own.pages.start();
        match span.end() <= own.len {
            true => Ok(Span::new(start + span.start(), start + span.end())),
            false => Err(format!("bytes {span} of a block of {} bytes", own.len)),
        }
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        self.heap.give_back(self.pages);
    }
}

impl Block for HeapBlock {
    fn len(&self) -> u64 {
        self.len
    }

    /// Returns the offset of the block in the heap's memory.
    fn native(&self) -> NativeHandle {
        NativeHandle(self.pages.start() as usize)
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

    #[test]
    fn only_what_was_taken_is_given_back() {
        let heap = Heap::new(4 * PAGE_BYTES);
        let (first, second) = (heap.take(1).unwrap(), heap.take(PAGE_BYTES + 1).unwrap());
        heap.give_back(first);
        let foreign = [
            first,
            Span::new(0, 2 * PAGE_BYTES),
            Span::new(PAGE_BYTES, PAGE_BYTES + 1),
            Span::new(PAGE_BYTES + 1, 2 * PAGE_BYTES),
            Span::new(3 * PAGE_BYTES, 4 * PAGE_BYTES),
            Span::new(4 * PAGE_BYTES, 5 * PAGE_BYTES),
        ];
        for span in foreign {
            let given = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| heap.give_back(span)));
            let message = dml_core::internal::panic_text(&*given.expect_err("it was not taken"));
            assert!(message.contains(&format!("bytes {span} are given back")), "{message}");
        }
        heap.give_back(second);
        assert_eq!(heap.take(4 * PAGE_BYTES), Some(Span::new(0, 4 * PAGE_BYTES)));
    }

    #[test]
    fn a_block_gives_its_pages_back_with_its_last_reference() {
        let heap = Arc::new(Heap::new(2 * PAGE_BYTES));
        let block: BlockRef = Arc::new(HeapBlock::take(&heap, PAGE_BYTES + 1).unwrap());
        let kept = block.clone();
        drop(block);
        assert!(HeapBlock::take(&heap, 1).is_none());
        drop(kept);
        assert!(HeapBlock::take(&heap, 2 * PAGE_BYTES).is_some());
    }

    #[test]
    fn bytes_of_other_heaps_have_no_place() {
        let (heap, other) = (Arc::new(Heap::new(1 << 20)), Arc::new(Heap::new(1 << 20)));
        let block: BlockRef = Arc::new(HeapBlock::take(&heap, 100).unwrap());
        assert_eq!(HeapBlock::place(&block, &heap, Span::new(7, 100)), Ok(Span::new(7, 100)));
        let foreign = HeapBlock::place(&block, &other, Span::new(7, 100)).unwrap_err();
        assert_eq!(foreign, "a block of 100 bytes belongs to another arena");
        assert!(HeapBlock::place(&block, &heap, Span::new(7, 101)).unwrap_err().contains("of 100 bytes"));
    }
}
