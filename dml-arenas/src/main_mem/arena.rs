//! The arena and its blocks.

use super::memory::{self, ALIGN_BYTES, MAX_BYTES, Memory};
use dml_core::host::HostOwner;
use dml_core::state::MapState;
use dml_core::sync::Arc;
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaKind, AttachError, Block, BlockRef, Concurrency, Cost, DeviceId,
    DeviceSet, Fence, HostSpan, MapReport, NativeHandle, Span, TransferError,
};

/// The name of the one main memory of a platform.
pub(crate) const NAME: &str = "main_mem";
const KIND: ArenaKind = ArenaKind("main_mem");

/// Main memory: everything the processor sees.
///
/// It is the arena of host kernels and of the application's own storage, and the one every transfer of another backend
/// begins or ends in.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.1: the arena whose native and remote
/// devices are the same is always bimapped.
#[derive(Debug)]
pub struct MainMem {
    desc: ArenaDesc,
}

impl MainMem {
    /// The main memory of the processor `cpu`.
    #[must_use]
    pub fn new(cpu: DeviceId) -> Self {
        let desc = ArenaDesc::new(NAME, KIND, cpu)
            .with_remotes(DeviceSet::of(cpu))
            .with_concurrency(Concurrency::BimapFull)
            .with_alloc_align(ALIGN_BYTES)
            .with_alloc_cost(Cost::from_ns(2_000));
        Self { desc }
    }

    fn span_of(&self, block: &BlockRef, span: Span) -> HostSpan {
        let host = &self.own(block).span;
        assert!(
            span.end() <= host.len(),
            "core bug: {} was asked for bytes {span} of a block of {} bytes",
            self.desc.name,
            host.len()
        );
        host.slice(span)
    }

    fn own<'a>(&self, block: &'a BlockRef) -> &'a MainMemBlock {
        let is_own = |block: &&MainMemBlock| Arc::ptr_eq(&block.arena, &self.desc.name);
        block.downcast_ref::<MainMemBlock>().filter(is_own).unwrap_or_else(|| {
            panic!("core bug: {} was handed a block of another arena: {block:?}", self.desc.name)
        })
    }

    fn block(&self, span: HostSpan, storage: Storage) -> BlockRef {
        Arc::new(MainMemBlock { span, storage, arena: self.desc.name.clone() })
    }
}

/// A block of main memory.
#[derive(Debug)]
struct MainMemBlock {
    span: HostSpan,
    storage: Storage,
    /// The name of the arena that made it: the very same, so that it tells arenas of one name apart.
    arena: Arc<str>,
}

#[derive(Debug)]
enum Storage {
    /// Allocated by the arena; held for its release alone.
    Internal { _memory: Memory },
    /// The application's. Empty once it was given back.
    External(Option<Box<dyn HostOwner>>),
}

impl Block for MainMemBlock {
    fn len(&self) -> u64 {
        self.span.len()
    }

    fn host(&self) -> Option<HostSpan> {
        Some(self.span.clone())
    }

    fn native(&self) -> NativeHandle {
        NativeHandle(self.span.as_ptr().addr())
    }
}

impl Arena for MainMem {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<BlockRef, AllocError> {
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
        Ok(self.block(memory.span(), Storage::Internal { _memory: memory }))
    }

    fn attach(&self, storage: Box<dyn HostOwner>) -> Result<BlockRef, AttachError> {
        Ok(self.block(storage.span(), Storage::External(Some(storage))))
    }

    fn detach(&self, mut block: BlockRef) -> Result<Box<dyn HostOwner>, BlockRef> {
        let storage = Arc::get_mut(&mut block).and_then(|block| {
            let block = (block as &mut dyn std::any::Any).downcast_mut::<MainMemBlock>()?;
            match &mut block.storage {
                Storage::External(storage) => storage.take(),
                Storage::Internal { .. } => None,
            }
        });
        storage.ok_or(block)
    }

    fn map(
        &self,
        _block: &BlockRef,
        device: DeviceId,
        _target: MapState,
    ) -> Result<MapReport, TransferError> {
        panic!(
            "core bug: map of {} for device {device}: main memory is accessible in every map state",
            self.desc.name
        )
    }

    fn unmap(&self, _block: &BlockRef, _target: MapState) -> Result<MapReport, TransferError> {
        panic!("core bug: unmap of {}: main memory is accessible in every map state", self.desc.name)
    }

    fn copy_in(&self, block: &BlockRef, offset: u64, from: &HostSpan) -> Result<Fence, TransferError> {
        memory::copy(from, &self.span_of(block, Span::new(offset, offset + from.len())));
        Ok(Fence::done(from.len()))
    }

    fn copy_out(&self, block: &BlockRef, offset: u64, to: &HostSpan) -> Result<Fence, TransferError> {
        memory::copy(&self.span_of(block, Span::new(offset, offset + to.len())), to);
        Ok(Fence::done(to.len()))
    }

    fn fill(&self, block: &BlockRef, span: Span, byte: u8) -> Result<Fence, TransferError> {
        memory::fill(&self.span_of(block, span), byte);
        Ok(Fence::done(span.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dml_core::host::Owned;

    fn arena() -> MainMem {
        MainMem::new(DeviceId(0))
    }

    fn pattern(len: u64) -> HostSpan {
        let span = HostSpan::scratch(len).unwrap();
        for index in 0..len {
            // SAFETY: in range, of scratch memory that this test alone owns.
            unsafe { *span.as_ptr().add(index as usize) = (index * 31 + 7) as u8 };
        }
        span
    }

    fn bytes(span: &HostSpan) -> Vec<u8> {
        // SAFETY: live for its length (its block or scratch outlives this call) and written by nobody meanwhile.
        unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len() as usize) }.to_vec()
    }

    #[test]
    fn copies_hit_their_bytes_and_no_others() {
        let arena = arena();
        let block = arena.alloc(100).unwrap();
        assert_eq!(block.native().0, block.host().unwrap().as_ptr().addr());
        let from = pattern(37);
        assert_eq!(arena.copy_in(&block, 13, &from).unwrap().wait(), Ok(37));
        assert_eq!(arena.fill(&block, Span::new(50, 60), 0xEE).unwrap().wait(), Ok(10));
        let mut expected = vec![0; 100];
        expected[13..50].copy_from_slice(&bytes(&from));
        expected[50..60].fill(0xEE);
        assert_eq!(bytes(&block.host().unwrap()), expected);
        let to = HostSpan::scratch(20).unwrap();
        assert_eq!(arena.copy_out(&block, 31, &to).unwrap().wait(), Ok(20));
        assert_eq!(bytes(&to), expected[31..51]);
    }

    #[test]
    fn a_block_without_bytes_is_legal() {
        let arena = arena();
        let block = arena.alloc(0).unwrap();
        assert!(block.is_empty());
        assert_eq!(arena.copy_in(&block, 0, &pattern(0)).unwrap().wait(), Ok(0));
        assert_eq!(arena.fill(&block, Span::new(0, 0), 1).unwrap().wait(), Ok(0));
    }

    #[test]
    fn lack_of_memory_is_an_error() {
        let arena = arena();
        assert!(matches!(arena.alloc(u64::MAX).unwrap_err(), AllocError::TooLarge { bytes: u64::MAX, .. }));
        let error = arena.alloc(1 << 60).unwrap_err();
        assert_eq!(error, AllocError::OutOfMemory { arena: NAME.into(), bytes: 1 << 60 });
    }

    #[test]
    fn i24_external_storage_comes_back_when_nobody_else_holds_it() {
        let arena = arena();
        let data: Vec<u32> = (0..1000).map(|i| i * i).collect();
        let address = data.as_ptr();
        let block = arena.attach(Box::new(Owned::new(data))).unwrap();
        assert_eq!((block.len(), block.native().0), (4000, address.addr()));
        let other = block.clone();
        let block = arena.detach(block).unwrap_err();
        drop(other);
        let owner = arena.detach(block).unwrap();
        let data = owner.into_any().downcast::<Owned<u32, Vec<u32>>>().unwrap().into_inner();
        assert_eq!((data.as_ptr(), data[999]), (address, 998_001));
    }

    #[test]
    fn internal_storage_is_not_given_away() {
        let arena = arena();
        let block = arena.alloc(8).unwrap();
        assert_eq!(arena.detach(block).unwrap_err().len(), 8);
    }

    #[test]
    #[should_panic(expected = "core bug: map of main_mem")]
    fn a_map_is_never_asked_for() {
        let arena = arena();
        let block = arena.alloc(8).unwrap();
        let _ = arena.map(&block, DeviceId(0), MapState::Unmapped);
    }

    #[test]
    #[should_panic(expected = "core bug: main_mem was handed a block of another arena")]
    fn a_block_of_another_main_memory_is_a_bug_of_core() {
        let foreign = arena().alloc(8).unwrap();
        let _ = arena().copy_in(&foreign, 0, &pattern(5));
    }

    #[test]
    #[should_panic(expected = "core bug")]
    fn a_copy_past_the_end_is_a_bug_of_core() {
        let arena = arena();
        let block = arena.alloc(8).unwrap();
        let _ = arena.copy_in(&block, 4, &pattern(5));
    }
}
