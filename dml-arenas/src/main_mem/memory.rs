//! Zeroed host memory that reports a lack of memory instead of aborting. The test arenas use it too.

use dml_core::internal::sync::{Arc, Tracker};
use dml_core::{HostMemory, HostSpan};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;

/// The alignment of every allocation, in bytes: that of a cache line, and of the widest vector register.
pub(crate) const ALIGN_BYTES: u64 = 64;
/// Size above which an allocation gets its own pages, in bytes.
const OWN_PAGES_ABOVE_BYTES: usize = 4 << 20;
/// The size and alignment of a huge page, in bytes.
#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Maximum size of one allocation, in bytes: the largest pointer offset, less room to align.
pub(crate) const MAX_BYTES: u64 = isize::MAX as u64 - (4 << 20);

/// Owned zeroed host memory at a fixed address.
#[derive(Debug)]
pub(crate) struct Memory {
    ptr: NonNull<u8>,
    len: usize,
    origin: Origin,
    /// Tracks the accesses to the bytes in a model.
    tracker: Tracker,
}

#[derive(Debug)]
enum Origin {
    /// Nothing was allocated, because the length is zero.
    Nothing,
    /// The global allocator, with this layout.
    Heap(Layout),
    /// A mapping of its own.
    #[cfg(target_os = "linux")]
    Pages { base: NonNull<u8>, mapped_bytes: usize },
}

// SAFETY: the value owns the memory and gives out only its address. Core decides which code may access which
// bytes, whatever thread owns this value.
unsafe impl Send for Memory {}
// SAFETY: as above; no method of `&Memory` reads or writes the bytes.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `len` zero bytes; `None` if that fails. The operating system zeroes large memory on first
    /// touch.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self::new(dangling(), len, Origin::Nothing));
        }
        if len as u64 > MAX_BYTES {
            return None;
        }
        if len > OWN_PAGES_ABOVE_BYTES {
            return Self::pages(len);
        }
        Self::heap(len)
    }

    fn new(ptr: NonNull<u8>, len: usize, origin: Origin) -> Self {
        Self { ptr, len, origin, tracker: Tracker::new(len) }
    }

    fn heap(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len, ALIGN_BYTES as usize).ok()?;
        // SAFETY: the layout is of `len` bytes, and `zeroed` handled a length of zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self::new(ptr, len, Origin::Heap(layout)))
    }

    #[cfg(target_os = "linux")]
    fn pages(len: usize) -> Option<Self> {
        // The address space includes room for the alignment. Untouched pages cost no memory.
        let mapped_bytes = len.checked_add(HUGE_PAGE_BYTES)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice affects no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped_bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = NonNull::new(base.cast::<u8>())?;
        let padding = base.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: the padding is less than a huge page, by which the mapping is longer than `len`.
        let ptr = unsafe { base.add(padding) };
        // SAFETY: the range lies in the new mapping and begins at a page. A kernel without huge pages may
        // refuse the advice, which only affects the speed.
        let _ = unsafe { libc::madvise(ptr.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        Some(Self::new(ptr, len, Origin::Pages { base, mapped_bytes }))
    }

    #[cfg(not(target_os = "linux"))]
    fn pages(len: usize) -> Option<Self> {
        Self::heap(len)
    }

    /// Returns the address and length of the memory.
    pub(crate) fn span(&self) -> HostSpan {
        tracked_span(self.ptr, self.len, &self.tracker)
    }
}

/// Returns the span of `len` bytes at an address.
#[cfg(any(feature = "opencl", all(feature = "offload", target_os = "linux")))]
pub(crate) fn host_span(ptr: NonNull<u8>, len: usize) -> HostSpan {
    tracked_span(ptr, len, &Tracker::default())
}

fn tracked_span(ptr: NonNull<u8>, len: usize, tracker: &Tracker) -> HostSpan {
    // SAFETY: a span gives no access, and the temporary memory is dropped before this function returns.
    let memory = unsafe { HostMemory::new(ptr, len, Arc::new(())) };
    memory.tracked_by(tracker).span().clone()
}

/// Creates core's handle to the memory of a block.
///
/// # Safety
/// 1. The obligations of [`HostMemory::new`] hold for the bytes of the span.
pub(crate) unsafe fn shown(span: &HostSpan, block: Arc<dyn Any + Send + Sync>) -> HostMemory {
    let ptr = NonNull::new(span.as_ptr()).unwrap_or(dangling());
    // SAFETY: guaranteed by the caller (1).
    unsafe { HostMemory::new(ptr, span.len() as usize, block) }.tracked_by(&span.tracker())
}

/// Returns an aligned address for memory without bytes.
fn dangling() -> NonNull<u8> {
    #[repr(align(64))]
    struct Line;
    NonNull::<Line>::dangling().cast()
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.tracker.free();
        match self.origin {
            Origin::Nothing => {}
            // SAFETY: allocated with this layout in `heap`, and freed only here.
            Origin::Heap(layout) => unsafe { dealloc(self.ptr.as_ptr(), layout) },
            #[cfg(target_os = "linux")]
            Origin::Pages { base, mapped_bytes } => {
                // SAFETY: exactly the mapping made in `pages`, unmapped only here.
                let _ = unsafe { libc::munmap(base.as_ptr().cast(), mapped_bytes) };
            }
        }
    }
}

/// Copies all of `from` to the start of `to`.
///
/// # Safety
/// 1. Both are live. During the call, nothing writes `from`, and nothing else accesses `to`. Both hold for
///    memory that core lends.
///
/// # Panics
/// When `to` is shorter than `from`.
pub(crate) unsafe fn copy(from: &HostSpan, to: &HostSpan) {
    assert!(from.len() <= to.len(), "copy of {} bytes into {}", from.len(), to.len());
    from.note_read();
    to.note_write();
    // SAFETY: live for their lengths, and exclusive as far as needed (1). `ptr::copy` allows an overlap.
    unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), from.len() as usize) }
}

/// Sets every byte of `to` to `byte`.
///
/// # Safety
/// 1. `to` is live, and nothing else accesses it during the call.
pub(crate) unsafe fn fill(to: &HostSpan, byte: u8) {
    to.note_write();
    // SAFETY: live for its length, and exclusive (1).
    unsafe { std::ptr::write_bytes(to.as_ptr(), byte, to.len() as usize) }
}

/// The size of this process's mappings, for tests that memory is returned.
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod testing {
    /// Returns the size of the address space in use, in bytes.
    pub(crate) fn mapped_bytes() -> usize {
        let figures = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
        let pages: usize = figures.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number");
        // SAFETY: the call reads a value of the system.
        pages * usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a size")
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    use super::testing::mapped_bytes;
    use super::*;

    #[test]
    fn memory_of_every_size_class_is_aligned_and_zero() {
        for len in [0, 1, 63, 65, 4096, OWN_PAGES_ABOVE_BYTES, OWN_PAGES_ABOVE_BYTES + 1, 33 << 20] {
            let memory = Memory::zeroed(len).unwrap();
            let span = memory.span();
            assert_eq!(span.len(), len as u64);
            assert!((span.as_ptr() as u64).is_multiple_of(ALIGN_BYTES), "{len} bytes");
            // SAFETY: only this test uses the memory, which is live.
            let byte = |index| unsafe { *span.as_ptr().add(index) };
            for index in (0..len).step_by(4093).chain(len.checked_sub(1)) {
                assert_eq!(byte(index), 0, "byte {index} of {len}");
            }
            // SAFETY: as above.
            unsafe { fill(&span, 0xA5) };
            assert!(len == 0 || byte(len - 1) == 0xA5);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn large_memory_begins_at_a_huge_page() {
        let small = Memory::zeroed(OWN_PAGES_ABOVE_BYTES).unwrap();
        assert!(matches!(small.origin, Origin::Heap(_)), "it is not larger");
        let memory = Memory::zeroed(OWN_PAGES_ABOVE_BYTES + 1).unwrap();
        assert!((memory.span().as_ptr() as usize).is_multiple_of(HUGE_PAGE_BYTES));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_dropped_is_given_back() {
        /// Never touched, so it takes only address space.
        const EACH_BYTES: usize = 1 << 30;
        const TIMES: usize = 4096;
        let before = mapped_bytes();
        // Other tests may map memory concurrently, but far less than this.
        for _ in 0..TIMES {
            drop(Memory::zeroed(EACH_BYTES).expect("nothing of it is touched"));
        }
        let now = mapped_bytes();
        assert!(now < before + TIMES / 8 * EACH_BYTES, "{now} bytes are mapped, {before} before");
    }

    #[test]
    fn what_cannot_be_had_is_none() {
        assert!(Memory::zeroed(usize::MAX).is_none());
        assert!(Memory::zeroed(MAX_BYTES as usize).is_none());
    }
}
