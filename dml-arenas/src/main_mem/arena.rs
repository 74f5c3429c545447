//! The arena of main memory.

use super::block::{HostBlock, Keeps};
use super::memory::{self, ALIGN_BYTES, MAX_BYTES, Memory};
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaKind, Backing, BlockRef, Concurrency, CopyIn, CopyOut, Cost, DeviceId,
    DeviceSet, Fence, Fill, MapReport, MapRequest, NewBlock, TransferError, UnmapRequest,
};

/// The name of a platform's main memory.
pub(crate) const NAME: &str = "main_mem";
const KIND: ArenaKind = ArenaKind("main_mem");

/// Main memory: the memory that the processor addresses.
///
/// Main memory is the arena of host kernels and of the application's own storage. Every transfer of another
/// backend begins or ends in it.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.1: the arena whose native
/// and remote devices are the same is always bimapped.
#[derive(Debug)]
pub struct MainMem {
    desc: ArenaDesc,
}

impl MainMem {
    /// Creates the main memory of the processor `cpu`.
    #[must_use]
    pub fn new(cpu: DeviceId) -> Self {
        let desc = ArenaDesc::new(NAME, KIND, cpu)
            .with_remotes(DeviceSet::of(cpu))
            .with_concurrency(Concurrency::BimapFull)
            .with_alloc_align(ALIGN_BYTES)
            .with_alloc_cost(Cost::from_ns(2_000));
        Self { desc }
    }
}

impl Arena for MainMem {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        if len > MAX_BYTES {
            return Err(AllocError::TooLarge {
                arena: self.desc.name.clone(),
                bytes: len,
                limit_bytes: MAX_BYTES,
            });
        }
        let memory = usize::try_from(len).ok().and_then(Memory::zeroed);
        let memory =
            memory.ok_or_else(|| AllocError::OutOfMemory { arena: self.desc.name.clone(), bytes: len })?;
        let span = memory.span();
        let block = HostBlock::of(&self.desc, &span, Keeps::memory(memory));
        // SAFETY: the block keeps the memory alive, and all its bytes are zero (1). This arena accesses them
        // only for requests of core (2). The memory is new, and no other block names it (3).
        let host = unsafe { memory::shown(&span, block.clone()) };
        Ok(NewBlock::new(block).with_host(host))
    }

    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        let host = storage
            .host()
            .ok_or_else(|| AllocError::unsupported(&self.desc, "storage without an address"))?;
        Ok(HostBlock::of(&self.desc, host, Keeps::Over(storage.clone())))
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        // Memory with an address in this process is accessible as main memory.
        let host = root
            .host()
            .ok_or_else(|| AllocError::unsupported(&self.desc, "sharing storage without an address"))?;
        Ok(NewBlock::new(HostBlock::of(&self.desc, host, Keeps::Over(root.clone()))))
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!(
            "core bug: map of {} for device {}: main memory is accessible in every map state",
            self.desc.name,
            request.device()
        )
    }

    fn unmap(&self, _request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!("core bug: unmap of {}: main memory is accessible in every map state", self.desc.name)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        Ok(HostBlock::copy_in(&self.desc, &copy))
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        Ok(HostBlock::copy_out(&self.desc, &copy))
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        Ok(HostBlock::fill(&self.desc, &fill))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dml_core::internal::sync::Arc;
    use dml_core::{HostMemory, OwnBlock, Span};

    fn arena() -> MainMem {
        MainMem::new(DeviceId(0))
    }

    fn pattern(len: u64) -> HostMemory {
        let mut memory = HostMemory::zeroed(len).unwrap();
        memory
            .bytes_mut()
            .iter_mut()
            .zip(0..)
            .for_each(|(byte, index): (_, u64)| *byte = (index * 31 + 7) as u8);
        memory
    }

    /// Copies all of `from` into a block that only the test uses.
    fn copy_in(arena: &MainMem, block: &BlockRef, offset: u64, from: &HostMemory) -> u64 {
        // SAFETY: the test alone uses the block and the memory, and waits.
        let copy = unsafe { CopyIn::new(block, offset, from.source(Span::new(0, from.len()))) };
        arena.copy_in(copy).unwrap().wait().unwrap()
    }

    #[test]
    fn what_no_memory_has_is_too_large_and_what_this_one_has_not_is_not_there() {
        let memory = MainMem::new(DeviceId(0));
        let told = |bytes| memory.alloc(bytes).err();
        assert!(matches!(told(MAX_BYTES), Some(AllocError::OutOfMemory { bytes: MAX_BYTES, .. })));
        let Some(AllocError::TooLarge { bytes, limit_bytes, .. }) = told(MAX_BYTES + 1) else { panic!() };
        assert_eq!((bytes, limit_bytes), (MAX_BYTES + 1, MAX_BYTES));
    }

    #[test]
    fn copies_hit_their_bytes_and_no_others() {
        let arena: Arc<dyn Arena> = Arc::new(arena());
        let block = OwnBlock::alloc(&arena, 100).unwrap();
        assert_eq!(Some(block.block().native().0), block.address());
        let from = pattern(37);
        assert_eq!(block.copy_in(13, &from, Span::new(0, 37)).unwrap().wait(), Ok(37));
        assert_eq!(block.fill(Span::new(50, 60), 0xEE).unwrap().wait(), Ok(10));
        let mut expected = vec![0; 100];
        expected[13..50].copy_from_slice(from.bytes());
        expected[50..60].fill(0xEE);
        assert_eq!(block.seen().expect("main memory is the host's"), expected);
        let mut to = HostMemory::zeroed(20).unwrap();
        assert_eq!(block.copy_out(31, &mut to, Span::new(0, 20)).unwrap().wait(), Ok(20));
        assert_eq!(to.bytes(), &expected[31..51]);
    }

    #[test]
    fn a_block_without_bytes_is_legal() {
        let arena = arena();
        let block = arena.alloc(0).unwrap().into_block();
        assert!(block.is_empty());
        assert_eq!(copy_in(&arena, &block, 0, &pattern(0)), 0);
        // SAFETY: there are no bytes.
        let fill = unsafe { Fill::new(&block, Span::new(0, 0), 1) };
        assert_eq!(arena.fill(fill).unwrap().wait(), Ok(0));
    }

    #[test]
    fn lack_of_memory_is_an_error() {
        let arena = arena();
        assert!(matches!(arena.alloc(u64::MAX).unwrap_err(), AllocError::TooLarge { bytes: u64::MAX, .. }));
        let error = arena.alloc(1 << 60).unwrap_err();
        assert_eq!(error, AllocError::OutOfMemory { arena: NAME.into(), bytes: 1 << 60 });
    }

    #[test]
    fn i24_external_storage_is_used_in_place() {
        let arena: Arc<dyn Arena> = Arc::new(arena());
        let data: Vec<u32> = (0..1000).map(|i| i * i).collect();
        let address = data.as_ptr();
        let own = OwnBlock::attach(&arena, HostMemory::holding(data)).unwrap();
        let block = own.block();
        assert_eq!((block.len(), block.native().0), (4000, address.addr()));
    }

    #[test]
    #[should_panic(expected = "core bug: map of main_mem")]
    fn a_map_is_never_asked_for() {
        let (arena, mut host) = (arena(), None);
        let block = arena.alloc(8).unwrap().into_block();
        // SAFETY: this test alone uses the block.
        let request =
            unsafe { MapRequest::new(&block, DeviceId(0), dml_core::MapState::Unmapped, &mut host) };
        let _ = arena.map(request);
    }

    #[test]
    #[should_panic(expected = "core bug: main_mem was handed a block of another arena")]
    fn a_block_of_another_main_memory_is_a_bug_of_core() {
        let foreign = arena().alloc(8).unwrap().into_block();
        copy_in(&arena(), &foreign, 0, &pattern(5));
    }

    #[test]
    #[should_panic(expected = "core bug")]
    fn a_copy_past_the_end_is_a_bug_of_core() {
        let arena = arena();
        let block = arena.alloc(8).unwrap().into_block();
        copy_in(&arena, &block, 4, &pattern(5));
    }
}
