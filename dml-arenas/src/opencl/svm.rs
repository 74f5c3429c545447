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
use crate::main_mem::{HostBlock, Keeps, MAX_BYTES, Memory as Ordinary, host_span, shown};
use dml_core::sync::Arc;
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaKind, Concurrency, CopyIn, CopyOut, Cost, DeviceId, DeviceSet, Fence,
    Fill, HostSpan, MapReport, MapRequest, NewBlock, TransferError, UnmapRequest,
};
use opencl3::error_codes::{CL_DEVICE_NOT_AVAILABLE, CL_MEM_OBJECT_ALLOCATION_FAILURE};
use opencl3::memory::{CL_MEM_READ_WRITE, CL_MEM_SVM_FINE_GRAIN_BUFFER, svm_alloc, svm_free};
use std::ptr::NonNull;

/// The name of the arena.
pub(super) const NAME: &str = "svm";
const KIND: ArenaKind = ArenaKind("svm");
const ALLOC: &str = "clSVMAlloc";
/// Alignment of every block, in bytes: that of OpenCL's widest vector type.
const ALIGN_BYTES: u32 = 128;

/// Fine-grained shared virtual memory of one OpenCL device.
///
/// Its native device is the processor, as for main memory. Kernels on the processor use it through main
/// memory, which is bound to it.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 4: the role of the ION
/// arena.
#[derive(Debug)]
pub struct SvmArena {
    desc: ArenaDesc,
    session: Arc<Session>,
}

impl SvmArena {
    /// Creates the arena of a session whose device offers such memory, for the processor `cpu`.
    pub(super) fn new(session: Arc<Session>, cpu: DeviceId) -> Self {
        let desc = ArenaDesc::new(NAME, KIND, cpu)
            .with_remotes(DeviceSet::of(cpu))
            .with_concurrency(Concurrency::BimapFull)
            .with_alloc_align(ALIGN_BYTES.into())
            .with_alloc_cost(Cost::from_ns(5_000));
        Self { desc, session }
    }

    /// Returns the maximum size of a block that the device can use, in bytes. A larger block is ordinary host
    /// memory.
    #[must_use]
    pub fn max_alloc_bytes(&self) -> u64 {
        self.session.facts.max_alloc_bytes
    }

    /// Returns the maximum total size of all blocks of the device, in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.session.facts.memory_bytes
    }

    /// Allocates `size` zero bytes: shared virtual memory, or ordinary memory above the driver's limit. The
    /// device refuses a binding to a block of that size, so only the processor uses it.
    ///
    /// # Errors
    /// The error code of the failed call.
    fn storage(&self, size: usize) -> Result<(HostSpan, Keeps), i32> {
        if size as u64 <= self.max_alloc_bytes() {
            let memory = Memory::zeroed(&self.session, size)?;
            return Ok((host_span(memory.ptr, size), Keeps::Own { _memory: Box::new(memory) }));
        }
        self.session.context().map_err(|_| CL_DEVICE_NOT_AVAILABLE)?;
        let memory = Ordinary::zeroed(size).ok_or(CL_MEM_OBJECT_ALLOCATION_FAILURE)?;
        Ok((memory.span(), Keeps::memory(memory)))
    }

    fn expect_there(&self) -> Result<(), TransferError> {
        if self.session.is_lost() { Err(TransferError::DeviceLost) } else { Ok(()) }
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

impl Arena for SvmArena {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let name = &self.desc.name;
        let limit_bytes = if len > self.max_alloc_bytes() { MAX_BYTES } else { self.max_alloc_bytes() };
        let too_large = || AllocError::TooLarge { arena: name.clone(), bytes: len, limit_bytes };
        let size = usize::try_from(len).ok().filter(|_| len <= limit_bytes).ok_or_else(too_large)?;
        let (span, keeps) = self.storage(size).map_err(|code| {
            self.session.note(code);
            alloc_error(name, ALLOC, code, len, limit_bytes)
        })?;
        let block = HostBlock::of(&self.desc, &span, keeps);
        // SAFETY: the block keeps the memory, whose bytes are all zero (1). Only this arena accesses them,
        // for core's requests, and the device's kernels, under grants (2). The memory is new, and only blocks
        // bound to this one share it (3).
        let host = unsafe { shown(&span, block.clone()) };
        Ok(NewBlock::new(block).with_host(host))
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        let device = request.device();
        panic!("core bug: map of {} for device {device}: it is accessible in every map state", self.desc.name)
    }

    fn unmap(&self, _request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!("core bug: unmap of {}: it is accessible in every map state", self.desc.name)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.expect_there()?;
        Ok(HostBlock::copy_in(&self.desc, &copy))
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.expect_there()?;
        Ok(HostBlock::copy_out(&self.desc, &copy))
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.expect_there()?;
        Ok(HostBlock::fill(&self.desc, &fill))
    }

    fn is_lost(&self) -> bool {
        self.session.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.session.loss()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{found, open};
    use super::*;
    use dml_core::{HostMemory, OwnBlock, Span};

    const LEN: u64 = 9_000;

    fn arena() -> Option<(Arc<dyn Arena>, Arc<Session>)> {
        let session = open(found().filter(|found| found.is_fine_grained)?);
        Some((Arc::new(SvmArena::new(session.clone(), DeviceId(0))), session))
    }

    #[test]
    fn what_a_block_has_counts_as_the_devices_memory() {
        let Some((arena, session)) = arena() else { return };
        let all_bytes = session.facts.memory_bytes;
        let block = OwnBlock::alloc(&arena, LEN).unwrap();
        assert!(session.reserve(all_bytes).is_none() && session.reserve(all_bytes - LEN).is_some());
        drop(block);
        assert!(session.reserve(all_bytes).is_some());
    }

    #[test]
    fn a_block_shows_nothing_of_what_was_there_before() {
        let Some((arena, _session)) = arena() else { return };
        for _ in 0..20 {
            let block = OwnBlock::alloc(&arena, LEN).unwrap();
            assert!(block.seen().expect("the host sees it").iter().all(|byte| *byte == 0));
            block.fill(Span::new(0, LEN), 0x5A).unwrap().wait().unwrap();
        }
    }

    #[test]
    fn memory_of_a_lost_device_is_lost() {
        let Some((arena, session)) = arena() else { return };
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
        assert_eq!(refused, [(); 3].map(|()| Some(TransferError::DeviceLost)));
    }
}
