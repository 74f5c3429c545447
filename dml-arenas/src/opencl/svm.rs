//! Fine-grained shared virtual memory, which the host and one OpenCL device use concurrently.
//!
//! ```text
//!   clSVMAlloc ──▶ block of `svm` ──┬── main memory is bound to it: host kernels work there
//!                                   └── the device is bound to it: a buffer over it (CL_MEM_USE_HOST_PTR)
//! ```
//! 1. No map or unmap is needed. The host sees a kernel's writes when the kernel ends, and the device sees
//!    the host's writes at the next launch. Meanwhile both use one buffer, in different bytes.
//! 2. A binding to main memory does not allow that. There OpenCL leaves concurrent use of one buffer object
//!    by host and device undefined, even in different bytes, so they take turns.
//! 3. The memory belongs to the context. A block that is bound to it keeps it, and drops its buffer first.
//! 4. In a fork the memory stays in the address space as a copy. A fork neither allocates nor frees any.

use super::error::alloc_error;
use super::session::{Reservation, Session};
use crate::HostArena;
use crate::main_mem::{HostStore, Keeps, MAX_BYTES, Memory as Ordinary, host_span};
use dml_core::internal::sync::Arc;
use dml_core::{AllocError, DeviceId, HostSpan};
use opencl3::error_codes::{CL_DEVICE_NOT_AVAILABLE, CL_MEM_OBJECT_ALLOCATION_FAILURE};
use opencl3::memory::{CL_MEM_READ_WRITE, CL_MEM_SVM_FINE_GRAIN_BUFFER, svm_alloc, svm_free};
use std::ptr::NonNull;

/// The name of the arena.
pub(super) const NAME: &str = "svm";
const ALLOC: &str = "clSVMAlloc";
/// Alignment of every block, in bytes: that of OpenCL's widest vector type.
const ALIGN_BYTES: u32 = 128;

/// Fine-grained shared virtual memory of one OpenCL device.
#[derive(Debug)]
struct Store(Arc<Session>);

/// Creates the arena of a session whose device offers such memory, for the processor `cpu`.
pub(super) fn arena(session: Arc<Session>, cpu: DeviceId) -> HostArena {
    HostArena::new(NAME, cpu, (ALIGN_BYTES.into(), 5_000), Arc::new(Store(session)))
}

impl Store {
    /// Allocates `size` zero bytes: shared virtual memory, or ordinary memory above the driver's limit. The
    /// device refuses a binding to a block of that size, so only the processor uses it.
    ///
    /// # Errors
    /// The error code of the failed call.
    fn storage(&self, size: usize) -> Result<(HostSpan, Keeps), i32> {
        if size as u64 <= self.0.facts.max_alloc_bytes {
            let memory = Memory::zeroed(&self.0, size)?;
            return Ok((host_span(memory.ptr, size), Keeps::Own { _memory: Box::new(memory) }));
        }
        self.0.context().map_err(|_| CL_DEVICE_NOT_AVAILABLE)?;
        let memory = Ordinary::zeroed(size).ok_or(CL_MEM_OBJECT_ALLOCATION_FAILURE)?;
        Ok((memory.span(), Keeps::memory(memory)))
    }
}

// SAFETY: an allocation keeps its memory, whose bytes are all zero (1). The device's kernels access it under
// grants (2). Each allocation is new memory (3).
unsafe impl HostStore for Store {
    fn allocate(&self, arena: &Arc<str>, len: u64) -> Result<(HostSpan, Keeps), AllocError> {
        let max_alloc_bytes = self.0.facts.max_alloc_bytes;
        let limit_bytes = if len > max_alloc_bytes { MAX_BYTES } else { max_alloc_bytes };
        let too_large = || AllocError::TooLarge { arena: arena.clone(), bytes: len, limit_bytes };
        let size = usize::try_from(len).ok().filter(|_| len <= limit_bytes).ok_or_else(too_large)?;
        self.storage(size).map_err(|code| {
            self.0.note(code);
            alloc_error(arena, ALLOC, code, len, limit_bytes)
        })
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.facts.memory_bytes
    }

    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.0.loss()
    }
}

/// Zeroed memory of a context.
struct Memory {
    ptr: NonNull<u8>,
    session: Arc<Session>,
    _reservation: Reservation,
}

// SAFETY: the struct owns the memory and exposes only its address. Core decides which thread uses the bytes.
unsafe impl Send for Memory {}
// SAFETY: as above; no method reads or writes the bytes.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `len` zero bytes.
    ///
    /// # Errors
    /// The error code of the failed call.
    fn zeroed(session: &Arc<Session>, len: usize) -> Result<Self, i32> {
        let context = session.context().map_err(|_| CL_DEVICE_NOT_AVAILABLE)?;
        // OpenCL cannot allocate zero bytes.
        let size = len.max(1);
        let reservation = session.reserve(size as u64).ok_or(CL_MEM_OBJECT_ALLOCATION_FAILURE)?;
        let flags = CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER;
        // SAFETY: a live context of a device that offers such memory.
        let address = unsafe { svm_alloc(context, flags, size, ALIGN_BYTES) };
        // The call reports no reason. Its arguments are valid, so no memory is left.
        let ptr = address.ok().and_then(|address| NonNull::new(address.cast::<u8>()));
        let ptr = ptr.ok_or(CL_MEM_OBJECT_ALLOCATION_FAILURE)?;
        // SAFETY: `size` bytes just allocated, which the host may write without a mapping.
        unsafe { ptr.as_ptr().write_bytes(0, size) };
        Ok(Self { ptr, session: session.clone(), _reservation: reservation })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A fork gets no context: the memory belongs to its parent.
        if let Ok(context) = self.session.context() {
            // SAFETY: allocated in this context and freed only here. All blocks over it are gone, and their
            // commands have ended.
            let _ = unsafe { svm_free(context, self.ptr.as_ptr().cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{found, open};
    use super::*;
    use dml_core::{Arena, HostMemory, OwnBlock, Span, TransferError};

    const LEN: u64 = 9_000;

    fn svm() -> Option<(Arc<dyn Arena>, Arc<Session>)> {
        let session = open(found().filter(|found| found.is_fine_grained)?);
        Some((Arc::new(arena(session.clone(), DeviceId(0))), session))
    }

    #[test]
    fn what_a_block_has_counts_as_the_devices_memory() {
        let Some((arena, session)) = svm() else { return };
        let all_bytes = session.facts.memory_bytes;
        let block = OwnBlock::alloc(&arena, LEN).unwrap();
        assert!(session.reserve(all_bytes).is_none() && session.reserve(all_bytes - LEN).is_some());
        drop(block);
        assert!(session.reserve(all_bytes).is_some());
    }

    #[test]
    fn a_block_shows_nothing_of_what_was_there_before() {
        let Some((arena, _session)) = svm() else { return };
        for _ in 0..20 {
            let block = OwnBlock::alloc(&arena, LEN).unwrap();
            assert!(block.seen().expect("the host sees it").iter().all(|byte| *byte == 0));
            block.fill(Span::new(0, LEN), 0x5A).unwrap().wait().unwrap();
        }
    }

    #[test]
    fn memory_of_a_lost_device_is_lost() {
        let Some((arena, session)) = svm() else { return };
        let block = OwnBlock::alloc(&arena, LEN).unwrap();
        assert!(!arena.is_lost());
        session.note(CL_DEVICE_NOT_AVAILABLE);
        assert!(arena.is_lost());
        let mut memory = HostMemory::zeroed(LEN).unwrap();
        let all = Span::new(0, LEN);
        let refused = [
            block.copy_in(0, &memory, all).err(),
            block.copy_out(0, &mut memory, all).err(),
            block.fill(all, 1).err(),
        ];
        assert_eq!(refused, [(); 3].map(|()| Some(TransferError::DeviceLost { loss: None })));
    }
}
