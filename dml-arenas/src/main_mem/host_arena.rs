//! Arenas of host memory to which main memory can be bound: shared, page-locked, or of an OpenCL context.

use super::block::{HostBlock, Keeps};
use super::memory::shown;
use dml_core::internal::sync::Arc;
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaKind, Concurrency, CopyIn, CopyOut, Cost, DeviceId, DeviceSet, Fence,
    Fill, HostSpan, MapReport, MapRequest, NewBlock, TransferError, UnmapRequest,
};
use std::any::Any;
use std::fmt;

/// The memory of a [`HostArena`].
///
/// # Safety
/// 1. The memory that `allocate` returns is initialised, and stays so until its owner is dropped.
/// 2. Only core's requests, and kernels and workers under grants, access it.
/// 3. No other block has the memory, except blocks that are bound to it.
pub(crate) unsafe trait HostStore: Any + fmt::Debug + Send + Sync {
    /// Allocates `len` bytes. Returns the memory and its owner.
    fn allocate(&self, arena: &Arc<str>, len: u64) -> Result<(HostSpan, Keeps), AllocError>;

    /// Returns the maximum total size of all blocks, in bytes.
    fn capacity_bytes(&self) -> u64;

    fn is_lost(&self) -> bool;

    /// Returns why the memory is lost, if it is.
    fn loss(&self) -> Option<Arc<str>>;
}

/// An arena of host memory beside main memory, such as `shared`, `svm` or `cuda_pinned`.
///
/// Its native device is the processor, as for main memory. Kernels on the processor use it through main
/// memory, which is bound to it. It is accessible in every map state.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 4: the roles of the ION
/// arena, and of the pinned memory of the CUDA arena.
#[derive(Debug)]
pub struct HostArena {
    desc: ArenaDesc,
    store: Arc<dyn HostStore>,
}

impl HostArena {
    /// Creates the arena `name` of the processor `cpu`.
    pub(crate) fn new(
        name: &'static str,
        cpu: DeviceId,
        (align_bytes, alloc_ns): (u64, u64),
        store: Arc<dyn HostStore>,
    ) -> Self {
        let desc = ArenaDesc::new(name, ArenaKind(name), cpu)
            .with_remotes(DeviceSet::of(cpu))
            .with_concurrency(Concurrency::BimapFull)
            .with_alloc_align(align_bytes)
            .with_alloc_cost(Cost::from_ns(alloc_ns));
        Self { desc, store }
    }

    /// Returns the maximum total size of all blocks, in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.store.capacity_bytes()
    }

    /// Returns the memory, if it is of this type.
    #[cfg(any(feature = "cuda", all(feature = "offload", target_os = "linux")))]
    pub(crate) fn store<S: HostStore>(&self) -> Option<&S> {
        (&*self.store as &dyn Any).downcast_ref()
    }

    fn expect_there(&self) -> Result<(), TransferError> {
        if self.store.is_lost() { Err(TransferError::DeviceLost { loss: None }) } else { Ok(()) }
    }
}

impl Arena for HostArena {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let (span, keeps) = self.store.allocate(&self.desc.name, len)?;
        let block = HostBlock::of(&self.desc, &span, keeps);
        // SAFETY: the block keeps the memory, for which the store guarantees what core demands (1 to 3).
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
        self.store.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.store.loss()
    }
}
