//! The arena of shared memory.

use super::memory::SharedMemory;
use crate::kit::PAGE_BYTES;
use crate::main_mem::{HostBlock, Keeps, host_span, shown};
use dml_core::sync::Arc;
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaKind, Concurrency, CopyIn, CopyOut, Cost, DeviceId, DeviceSet, Fence,
    Fill, MapReport, MapRequest, NewBlock, TransferError, UnmapRequest,
};

/// The name of the shared memory of a platform.
pub(crate) const NAME: &str = "shared";
const KIND: ArenaKind = ArenaKind("shared");

/// An arena whose memory this process and its workers map.
///
/// Its native device is the processor, like that of main memory. Kernels on the processor use it through main
/// memory, which is bound to it.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 4: the role of the ION
/// arena.
#[derive(Debug)]
pub struct SharedArena {
    desc: ArenaDesc,
    memory: Arc<SharedMemory>,
}

impl SharedArena {
    /// Creates the arena of a memory. `cpu` is the processor.
    #[must_use]
    pub fn new(memory: Arc<SharedMemory>, cpu: DeviceId) -> Self {
        let desc = ArenaDesc::new(NAME, KIND, cpu)
            .with_remotes(DeviceSet::of(cpu))
            .with_concurrency(Concurrency::BimapFull)
            .with_alloc_align(PAGE_BYTES)
            .with_alloc_cost(Cost::from_ns(5_000));
        Self { desc, memory }
    }

    /// Returns the memory that workers map.
    #[must_use]
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Checks that the memory is not lost. In a fork, nothing is mapped at its addresses.
    fn expect_there(&self) -> Result<(), TransferError> {
        if self.memory.is_lost() { Err(TransferError::DeviceLost) } else { Ok(()) }
    }
}

impl Arena for SharedArena {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let arena = || self.desc.name.clone();
        if let Some(loss) = self.memory.loss() {
            return Err(AllocError::Lost { arena: arena(), loss });
        }
        let limit_bytes = self.memory.bytes();
        if len > limit_bytes {
            return Err(AllocError::TooLarge { arena: arena(), bytes: len, limit_bytes });
        }
        let pages =
            self.memory.take(len).ok_or_else(|| AllocError::OutOfMemory { arena: arena(), bytes: len })?;
        let span = host_span(pages.address(), len as usize);
        let block = HostBlock::of(&self.desc, &span, Keeps::Own { _memory: Box::new(pages) });
        // SAFETY: the block keeps the pages, which are reserved and, like all mapped memory, initialised (1).
        // This arena accesses them only for requests of core, and workers only for launches under grants (2).
        // No other block has these pages, except blocks bound to this one (3).
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
        self.memory.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.memory.loss()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dml_core::{HostMemory, OwnBlock, Span};

    #[test]
    fn nothing_is_made_or_moved_in_memory_that_is_lost() {
        let memory = SharedMemory::new(NAME, 64 << 10).unwrap();
        let arena: Arc<dyn Arena> = Arc::new(SharedArena::new(memory.clone(), DeviceId(0)));
        let block = OwnBlock::alloc(&arena, 5_000).unwrap();
        let (mut host, all) = (HostMemory::zeroed(5_000).unwrap(), Span::new(0, 5_000));
        assert!(block.copy_in(0, &host, all).is_ok() && !arena.is_lost());
        memory.spoil("a worker does not end".to_owned());
        assert!(arena.is_lost());
        let refused = [
            block.copy_in(0, &host, all).err(),
            block.copy_out(0, &mut host, all).err(),
            block.fill(all, 1).err(),
        ];
        assert_eq!(refused, [(); 3].map(|()| Some(TransferError::DeviceLost)));
        let Err(AllocError::Lost { loss, .. }) = OwnBlock::alloc(&arena, 1) else {
            panic!("a block of lost memory")
        };
        assert_eq!(&*loss, "a worker does not end");
    }
}
