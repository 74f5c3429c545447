//! The shared memory: a memory file, its pages and its loss.

use super::window::{Window, memory};
use crate::kit::Heap;
use dml_core::internal::sync::Arc;
use dml_core::{HostSpan, Span};
use rustix::fs::fstat;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// A memory file that this process and its workers map
/// ([`OffloadDevice::start_sharing`](crate::offload::OffloadDevice::start_sharing)).
///
/// The memory is freed when the last reference is dropped and the last sharing worker has ended.
#[derive(Debug)]
pub struct SharedMemory {
    window: Window,
    heap: Heap,
    /// Why the memory must no longer be used.
    spoiled: OnceLock<Arc<str>>,
}

impl SharedMemory {
    /// Creates a memory of `bytes` bytes. Pages are reserved when blocks are allocated.
    ///
    /// # Errors
    /// An error if the name is too long or contains a zero character. Also if the size is zero, exceeds the
    /// address space or exceeds the limit on files (`ulimit -f`). Otherwise, the error of the operating
    /// system.
    pub fn new(name: &str, bytes: u64) -> io::Result<Arc<Self>> {
        let window = Window::map(memory(name, bytes)?, bytes)?;
        Ok(Arc::new(Self { window, heap: Heap::new(bytes), spoiled: OnceLock::new() }))
    }

    /// Returns the size, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.window.bytes()
    }

    /// Returns the memory that is reserved on the machine: the pages of all blocks, in bytes.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn reserved_bytes(&self) -> io::Result<u64> {
        // `st_blocks` counts units of 512 bytes.
        Ok(u64::try_from(fstat(self.file())?.st_blocks).unwrap_or(0) * 512)
    }

    /// Returns why the memory is lost, if it is. It is lost in a fork of the process that created it, and
    /// after a sharing worker was killed and did not end.
    #[must_use]
    pub fn loss(&self) -> Option<Arc<str>> {
        if !self.window.is_here() {
            return Some("this process is a fork of the one that made the memory".into());
        }
        self.spoiled.get().cloned()
    }

    /// Returns whether the memory is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.window.is_here() || self.spoiled.get().is_some()
    }

    /// Declares the memory lost.
    pub(crate) fn spoil(&self, why: String) {
        let _ = self.spoiled.set(why.into());
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.window.file()
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Returns the part of the memory at a host address, or `None` if it is not in this memory.
    pub(crate) fn part_of(&self, host: &HostSpan) -> Option<Span> {
        self.window.part_of(host)
    }

    /// Allocates pages for `bytes` bytes. Returns `None` if the file or the machine lacks free memory.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Option<Pages> {
        let span = self.heap.take(bytes)?;
        // If the reservation fails, dropping the pages releases them.
        let pages = Pages { memory: self.clone(), span };
        self.window.reserve(span).is_ok().then_some(pages)
    }
}

/// Pages of the memory, released when dropped.
#[derive(Debug)]
pub(super) struct Pages {
    memory: Arc<SharedMemory>,
    span: Span,
}

impl Pages {
    /// Returns the address of the first byte. For an empty span, it is that of the memory itself.
    pub(super) fn address(&self) -> NonNull<u8> {
        self.memory.window.place(self.span)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // In a fork, the pages are still the parent's. Pages that a worker could still write are not reused.
        if !self.memory.is_lost() {
            self.memory.window.give_back(self.span);
            self.memory.heap.give_back(self.span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn pages_are_the_machines_again_when_they_are_dropped() {
        let memory = SharedMemory::new("dml-test", 64 * KIB).unwrap();
        assert_eq!(memory.reserved_bytes().unwrap(), 0);
        let (one, two) = (memory.take(5_000).unwrap(), memory.take(1).unwrap());
        assert_eq!(memory.reserved_bytes().unwrap(), 12 * KIB);
        assert!(memory.take(56 * KIB).is_none() && memory.take(52 * KIB).is_some());
        drop(one);
        assert_eq!(memory.reserved_bytes().unwrap(), 4 * KIB);
        drop(two);
        assert_eq!(memory.reserved_bytes().unwrap(), 0);
        assert!(memory.take(64 * KIB).is_some());
    }

    #[test]
    fn pages_of_a_spoiled_memory_are_never_had_again() {
        let memory = SharedMemory::new("dml-test", 8 * KIB).unwrap();
        let pages = memory.take(4 * KIB).unwrap();
        memory.spoil("a worker does not end".to_owned());
        memory.spoil("another does not end".to_owned());
        drop(pages);
        assert_eq!(memory.reserved_bytes().unwrap(), 4 * KIB);
        assert_eq!(memory.loss().as_deref(), Some("a worker does not end"));
    }

    #[test]
    fn impossible_memories_are_errors() {
        assert!(SharedMemory::new("dml-test", 0).is_err());
        assert!(SharedMemory::new("dml-test", u64::MAX).is_err());
        assert!(SharedMemory::new("zero\0inside", 4096).is_err());
    }
}
