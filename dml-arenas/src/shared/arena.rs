//! The arena of shared memory.

use super::memory::SharedMemory;
use crate::HostArena;
use crate::kit::PAGE_BYTES;
use crate::main_mem::{HostStore, Keeps, host_span};
use dml_core::internal::sync::Arc;
use dml_core::{AllocError, DeviceId, HostSpan};

/// The name of the shared memory of a platform.
pub(crate) const NAME: &str = "shared";

/// The memory as that of an arena.
#[derive(Debug)]
struct Store(Arc<SharedMemory>);

// SAFETY: an allocation keeps its pages, which are reserved and, like all mapped memory, initialised (1).
// Workers access them only for launches under grants (2). No two allocations have the same pages (3).
unsafe impl HostStore for Store {
    fn allocate(&self, arena: &Arc<str>, len: u64) -> Result<(HostSpan, Keeps), AllocError> {
        let arena = || arena.clone();
        if let Some(loss) = self.0.loss() {
            return Err(AllocError::DeviceLost { arena: arena(), loss: Some(loss) });
        }
        let limit_bytes = self.0.bytes();
        if len > limit_bytes {
            return Err(AllocError::TooLarge { arena: arena(), bytes: len, limit_bytes });
        }
        let full = || AllocError::OutOfMemory { arena: arena(), bytes: len };
        let pages = self.0.take(len).ok_or_else(full)?;
        let span = host_span(pages.address(), len as usize);
        Ok((span, Keeps::Own { _memory: Box::new(pages) }))
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.0.loss()
    }
}

impl HostArena {
    /// Creates the arena of a memory that this process and its workers map. `cpu` is the processor.
    #[must_use]
    pub fn shared(memory: Arc<SharedMemory>, cpu: DeviceId) -> Self {
        Self::new(NAME, cpu, (PAGE_BYTES, 5_000), Arc::new(Store(memory)))
    }

    /// Returns the memory that workers map, if this is its arena.
    #[must_use]
    pub fn shared_memory(&self) -> Option<&Arc<SharedMemory>> {
        self.store::<Store>().map(|store| &store.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dml_core::{Arena, HostMemory, OwnBlock, Span, TransferError};

    #[test]
    fn nothing_is_made_or_moved_in_memory_that_is_lost() {
        let memory = SharedMemory::new(NAME, 64 << 10).unwrap();
        let arena: Arc<dyn Arena> = Arc::new(HostArena::shared(memory.clone(), DeviceId(0)));
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
        assert_eq!(refused, [(); 3].map(|()| Some(TransferError::DeviceLost { loss: None })));
        let Err(AllocError::DeviceLost { loss: Some(loss), .. }) = OwnBlock::alloc(&arena, 1) else {
            panic!("a block of lost memory")
        };
        assert_eq!(&*loss, "a worker does not end");
    }
}
