//! The mapping of a memory file in one process: a worker's own memory, or the memory that workers share.
//!
//! 1. The owner creates the file at its full size, and seals the size before a worker sees it. So no worker
//!    can shrink the file, and every address in the mapping stays valid.
//! 2. Pages are reserved when a block is allocated, so that a lack of memory is an error at the allocation
//!    and not a signal later. A worker can release pages of its memory without the owner's notice. The next
//!    access allocates such a page again. That fails only if the machine has no free memory and the kernel
//!    does not overcommit.
//! 3. A fork of either process does not inherit the mapping. Its destructor does not unmap newer mappings at
//!    these addresses.

use crate::fork::Origin;
use dml_core::{HostSpan, Span};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Size of one reservation step, in bytes. A signal interrupts only the current step, which is then retried.
const PIECE_BYTES: u64 = 64 << 20;
/// The seals that fix the size of the file.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Creates a memory file with a sealed size.
///
/// # Errors
/// The error of the operating system. A size above the limit on files is an error too, because the system
/// would send a signal.
pub(crate) fn memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| limit < bytes) {
        return Err(io::Error::other(format!("files are limited to {limit} bytes (ulimit -f)")));
    }
    let file = above_standard_streams(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Returns the descriptor, or a duplicate if it has the number of a standard stream. A program that has
/// closed its standard streams may still write to them.
pub(crate) fn above_standard_streams(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    match descriptor.as_raw_fd() {
        0..=2 => Ok(rustix::io::fcntl_dupfd_cloexec(&descriptor, 3)?),
        _ => Ok(descriptor),
    }
}

/// A mapping of the whole file.
#[derive(Debug)]
pub(crate) struct Window {
    file: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    origin: Origin,
}

// SAFETY: the mapping is accessed only by address. Core decides in the owner which accesses may happen, and
// the call that is served decides in a worker. Neither depends on the thread that holds this value.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps the file.
    ///
    /// # Errors
    /// An error if the file's size is not sealed, is zero or is not `bytes`. Otherwise, the error of the
    /// operating system.
    pub(crate) fn map(file: OwnedFd, bytes: u64) -> io::Result<Self> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let seals = fcntl_get_seals(&file)?;
        if !seals.contains(SEALS) {
            return Err(invalid(format!("memory whose size is not sealed: {seals:?}")));
        }
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let len = usize::try_from(bytes).ok().filter(|&len| size == bytes && len > 0);
        let len = len.ok_or_else(|| invalid(format!("memory of {size} bytes, not of {bytes}")))?;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no existing mapping.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED | MapFlags::NORESERVE, &file, 0)
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // SAFETY: the mapping just made. A core file need not contain another process's memory. A refusal is
        // harmless.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontDump) };
        let window = Self { file, base, bytes: len, origin: Origin::here() };
        // SAFETY: the same mapping. A fork does not inherit it. If this fails, dropping `window` unmaps it.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        Ok(window)
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Returns the address of a span, or `None` if it reaches past the end.
    pub(crate) fn at(&self, span: Span) -> Option<NonNull<u8>> {
        // SAFETY: within the mapping, as just checked.
        (span.end() <= self.bytes()).then(|| unsafe { self.base.add(span.start() as usize) })
    }

    /// Returns the address of the bytes of a transfer.
    ///
    /// # Panics
    /// If the bytes are not within the window. The device must have checked them.
    pub(crate) fn place(&self, span: Span) -> NonNull<u8> {
        self.at(span)
            .unwrap_or_else(|| panic!("device bug: bytes {span} are not in a memory of {} bytes", self.bytes))
    }

    /// Returns the part of the file at a host address, or `None` if it is not in this mapping.
    pub(crate) fn part_of(&self, host: &HostSpan) -> Option<Span> {
        let start = host.as_ptr().addr().checked_sub(self.base.as_ptr().addr())? as u64;
        let end = start.checked_add(host.len())?;
        (start < self.bytes() && end <= self.bytes()).then(|| Span::new(start, end))
    }

    /// Copies host memory into the window, starting at `offset`.
    ///
    /// # Safety
    /// 1. Until this returns, the host memory is lent to the caller, and the caller may write the bytes of
    ///    the window. The two do not overlap.
    pub(crate) unsafe fn copy_in(&self, offset: u64, from: &HostSpan) {
        let to = self.place(Span::new(offset, offset + from.len()));
        // SAFETY: both are valid for the length. The caller guarantees the rest (1).
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len() as usize) };
    }

    /// Copies bytes of the window, starting at `offset`, into host memory.
    ///
    /// # Safety
    /// 1. As [`copy_in`](Self::copy_in), but the host memory is written and the window is only read.
    pub(crate) unsafe fn copy_out(&self, offset: u64, to: &HostSpan) {
        let from = self.place(Span::new(offset, offset + to.len()));
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), to.len() as usize) };
    }

    /// Sets every byte of a span.
    ///
    /// # Safety
    /// 1. The caller may write the bytes until this returns.
    pub(crate) unsafe fn fill(&self, span: Span, byte: u8) {
        let to = self.place(span);
        // SAFETY: the bytes are within the window. The caller guarantees the access (1).
        unsafe { std::ptr::write_bytes(to.as_ptr(), byte, span.len() as usize) };
    }

    /// Returns whether this process made the mapping, and is not a fork of that process.
    pub(crate) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    pub(crate) fn reserve(&self, span: Span) -> io::Result<()> {
        let mut start = span.start();
        while start < span.end() {
            let len = (span.end() - start).min(PIECE_BYTES);
            match fallocate(&self.file, FallocateFlags::empty(), start, len) {
                Ok(()) => start += len,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn give_back(&self, span: Span) {
        if !span.is_empty() {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If the kernel refuses, the window keeps the pages for a later block.
            while fallocate(&self.file, hole, span.start(), span.len()) == Err(Errno::INTR) {}
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        // SAFETY: exactly the mapping made in `map`, unmapped only here.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::main_mem::testing::mapped_bytes;

    #[test]
    fn two_windows_show_one_memory() {
        let file = memory("dml-test", 1 << 20).unwrap();
        let other = file.try_clone().unwrap();
        let (one, two) = (Window::map(file, 1 << 20).unwrap(), Window::map(other, 1 << 20).unwrap());
        let span = Span::new(4096, 4100);
        one.reserve(span).unwrap();
        // SAFETY: within the windows, which this test alone uses.
        let seen = unsafe {
            one.place(span).as_ptr().write_bytes(0x5A, 4);
            two.place(span).cast::<[u8; 4]>().read()
        };
        assert_eq!(seen, [0x5A; 4]);
        assert!(one.at(Span::new(0, (1 << 20) + 1)).is_none());
    }

    #[test]
    fn a_window_of_nothing_is_none() {
        let error = Window::map(memory("dml-test", 0).unwrap(), 0).unwrap_err();
        assert!(error.to_string().contains("of 0 bytes"), "{error}");
    }

    #[test]
    fn what_is_dropped_is_no_more_mapped() {
        const BYTES: usize = 1 << 30;
        const TIMES: usize = 1024;
        let before = mapped_bytes();
        for _ in 0..TIMES {
            drop(Window::map(memory("dml-test", BYTES as u64).unwrap(), BYTES as u64).unwrap());
        }
        // Other tests may map memory meanwhile, but much less than this.
        let now = mapped_bytes();
        assert!(now < before + TIMES / 8 * BYTES, "{now} bytes are mapped, {before} before");
    }

    #[test]
    fn the_size_is_out_of_the_workers_hands() {
        let file = memory("dml-test", 8192).unwrap();
        assert!(ftruncate(&file, 0).is_err() && ftruncate(&file, 1 << 20).is_err());
        let unsealed = memfd_create("dml-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 8192).unwrap();
        assert!(Window::map(unsealed, 8192).unwrap_err().to_string().contains("not sealed"));
        assert!(Window::map(file, 4096).unwrap_err().to_string().contains("of 8192 bytes, not of 4096"));
    }

    #[test]
    fn memory_given_back_is_zero_when_it_is_had_again() {
        let window = Window::map(memory("dml-test", 1 << 20).unwrap(), 1 << 20).unwrap();
        let span = Span::new(8192, 16384);
        let blocks = |window: &Window| fstat(window.file()).unwrap().st_blocks;
        window.reserve(span).unwrap();
        assert_eq!(blocks(&window), 16);
        // SAFETY: within the window, which this test alone uses.
        unsafe { window.place(span).as_ptr().write_bytes(1, span.len() as usize) };
        window.give_back(span);
        assert_eq!(blocks(&window), 0);
        window.reserve(span).unwrap();
        // SAFETY: within the window, which this test alone uses.
        assert_eq!(unsafe { *window.at(span).unwrap().as_ptr() }, 0);
    }

    #[test]
    fn only_addresses_of_a_window_are_parts_of_it() {
        use crate::main_mem::host_span;
        let window = Window::map(memory("dml-test", 8192).unwrap(), 8192).unwrap();
        let part = |start, len| {
            let at = window.place(Span::new(start, start));
            window.part_of(&host_span(at, len))
        };
        assert_eq!(part(100, 300), Some(Span::new(100, 400)));
        assert_eq!(part(0, 8192), Some(Span::new(0, 8192)));
        assert_eq!(part(4096, 4097), None, "a byte is past the end");
        assert_eq!(part(8192, 0), None);
    }
}
