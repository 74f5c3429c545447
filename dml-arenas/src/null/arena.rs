//! The test arena.

use super::block::{Books, Entry, NullBlock, Storage};
use crate::main_mem::{Memory, copy, fill};
use dml_core::host::HostOwner;
use dml_core::state::MapState;
use dml_core::sync::{Arc, Tracker};
use dml_core::{
    AllocError, Arena, ArenaDesc, AttachError, BlockRef, DeviceId, Fence, HostSpan, MapReport, Span,
    TransferError,
};

/// One call, as recorded. Blocks are numbered from zero in the order in which their arena made them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are the parameters of the arena's methods of the same names")]
pub enum Call {
    /// Storage allocated.
    Alloc { block: u64, len: u64 },
    /// Storage of the application taken over.
    Attach { block: u64, len: u64 },
    /// Storage of the application given back.
    Detach { block: u64 },
    /// Storage of another block shared.
    Bind { block: u64, len: u64 },
    /// A block given up.
    Free { block: u64 },
    /// A remote device given access.
    Map { block: u64, device: DeviceId },
    /// The native device given access.
    Unmap { block: u64 },
    /// Host memory copied in.
    CopyIn { block: u64, span: Span },
    /// Bytes copied to host memory.
    CopyOut { block: u64, span: Span },
    /// Bytes set.
    Fill { block: u64, span: Span, byte: u8 },
    /// A kernel said to run here: see [`Null::touch`].
    Touch { block: u64, device: DeviceId },
}

/// An arena that records every call, checks that core may make it, and, if backed, carries it out in host memory.
///
/// # Panics
/// Every method of its [`Arena`] implementation, when asked for what the contract rules out.
#[derive(Debug)]
pub struct Null {
    desc: ArenaDesc,
    host: DeviceId,
    is_backed: bool,
    refuses_mapped_free: bool,
    books: Arc<Books>,
}

impl Null {
    /// An arena without bytes: copies succeed and move nothing.
    #[must_use]
    pub fn new(desc: ArenaDesc) -> Self {
        let books = Arc::new(Books::new(desc.name.clone()));
        Self { desc, host: DeviceId(0), is_backed: false, refuses_mapped_free: false, books }
    }

    /// An arena whose blocks are host memory, so that data really moves.
    #[must_use]
    pub fn backed(desc: ArenaDesc) -> Self {
        Self { is_backed: true, ..Self::new(desc) }
    }

    /// Says which device is the host; without it, device 0 is.
    #[must_use]
    pub fn with_host(mut self, host: DeviceId) -> Self {
        self.host = host;
        self
    }

    /// Makes it a bug to free a block while a remote device has it mapped. Frameworks differ in this.
    #[must_use]
    pub fn refusing_mapped_free(mut self) -> Self {
        self.refuses_mapped_free = true;
        self
    }

    /// Every call so far, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.books.calls()
    }

    /// Every call since the last time, in order.
    #[must_use]
    pub fn take_calls(&self) -> Vec<Call> {
        self.books.take_calls()
    }

    /// How many blocks were made and neither freed nor dropped.
    #[must_use]
    pub fn live_blocks(&self) -> usize {
        self.books.live_blocks()
    }

    /// The number of a block in this arena's [`Call`]s.
    ///
    /// # Panics
    /// When the block is another arena's.
    #[must_use]
    pub fn number_of(&self, block: &BlockRef) -> u64 {
        self.own(block).number
    }

    /// Says that a kernel of `device` uses the block, as a kernel's launch would.
    ///
    /// # Panics
    /// When the device has no access, or the block is gone.
    pub fn touch(&self, block: &BlockRef, device: DeviceId) {
        let number = self.own(block).number;
        self.books.on(number, Call::Touch { block: number, device }, |entry| self.needs(entry, device));
    }

    /// What a kernel of `device` finds in `span` of a backed block.
    ///
    /// # Panics
    /// As [`Null::touch`], and when the arena is not backed or the block ends before `span` does.
    #[must_use]
    pub fn read(&self, block: &BlockRef, device: DeviceId, span: Span) -> Vec<u8> {
        self.touch(block, device);
        let bytes = self.own(block).span.as_ref().expect("the arena is backed").slice(span);
        let mut out = vec![0; bytes.len() as usize];
        bytes.note_read();
        // SAFETY: the block's bytes are live and initialised, `slice` has checked their number, and `out` is as long. A
        // kernel calls this under a grant, so nobody writes them meanwhile (I-1).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.as_mut_ptr(), out.len()) };
        out
    }

    /// A kernel of `device` writes `bytes` into a backed block at `offset`.
    ///
    /// # Panics
    /// As [`Null::read`].
    pub fn write(&self, block: &BlockRef, device: DeviceId, offset: u64, bytes: &[u8]) {
        self.touch(block, device);
        let span = Span::new(offset, offset + bytes.len() as u64);
        let target = self.own(block).span.as_ref().expect("the arena is backed").slice(span);
        target.note_write();
        // SAFETY: the block's bytes are live, `slice` has checked their number, and `bytes` is as long. A kernel calls
        // this under a grant for writing, so nobody else touches them meanwhile (I-1).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
    }

    fn own<'a>(&self, block: &'a BlockRef) -> &'a NullBlock {
        block
            .downcast_ref::<NullBlock>()
            .filter(|block| Arc::ptr_eq(&block.books, &self.books))
            .unwrap_or_else(|| {
                panic!("core bug: {} was handed a block of another arena: {block:?}", self.desc.name)
            })
    }

    /// Whether `device` has access in the state of `entry`.
    fn needs(&self, entry: &Entry, device: DeviceId) -> Result<(), String> {
        let ok = entry.map.gives(&self.desc, device);
        ok.then_some(()).ok_or_else(|| format!("device {device} has no access in map state {:?}", entry.map))
    }

    /// Notes a call by which the native device touches bytes, and yields the bytes if there are any.
    fn bytes(&self, block: &BlockRef, span: Span, call: impl FnOnce(u64) -> Call) -> Option<HostSpan> {
        let own = self.own(block);
        self.books.on(own.number, call(own.number), |entry| {
            if span.end() > own.len {
                return Err(format!("the block has {} bytes", own.len));
            }
            self.needs(entry, self.desc.native)
        });
        own.span.as_ref().map(|bytes| bytes.slice(span))
    }

    fn enter(
        &self,
        len: u64,
        span: Option<HostSpan>,
        storage: Storage,
        call: impl FnOnce(u64) -> Call,
    ) -> BlockRef {
        let is_bound = matches!(storage, Storage::Bound(_));
        let number = self.books.enter(MapState::initial(&self.desc), is_bound, call);
        let is_host = self.desc.native == self.host;
        let block = NullBlock { number, len, span, is_host, storage, books: self.books.clone() };
        block.count_as_bound(1);
        Arc::new(block)
    }

    /// Notes a change of map state for `device` and checks that core may ask for it.
    fn remap(&self, own: &NullBlock, device: DeviceId, target: MapState, call: Call) -> MapReport {
        let state = self.books.on(own.number, call, |entry| {
            if self.desc.is_always_bimapped() {
                return Err("the arena is always bimapped".to_owned());
            }
            if device != self.desc.native && !self.desc.remotes.contains(device) {
                return Err(format!("the remote devices are {:?}", self.desc.remotes));
            }
            if entry.map == target {
                return Err(format!("the map state is {target:?} already"));
            }
            if !target.is_well_formed(&self.desc) || !target.gives(&self.desc, device) {
                return Err(format!("map state {target:?} does not serve device {device}"));
            }
            entry.map = target;
            Ok(target)
        });
        self.report(own, state)
    }

    fn report(&self, block: &NullBlock, state: MapState) -> MapReport {
        let host = block.span.clone().filter(|_| state.remotes().contains(self.host));
        MapReport { state, host }
    }
}

impl Arena for Null {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<BlockRef, AllocError> {
        let call = |block| Call::Alloc { block, len };
        if !self.is_backed {
            return Ok(self.enter(len, None, Storage::Nowhere, call));
        }
        let memory = usize::try_from(len).ok().and_then(Memory::zeroed);
        let memory =
            memory.ok_or_else(|| AllocError::OutOfMemory { arena: self.desc.name.clone(), bytes: len })?;
        Ok(self.enter(len, Some(memory.span()), Storage::Own { _memory: memory }, call))
    }

    fn attach(&self, storage: Box<dyn HostOwner>) -> Result<BlockRef, AttachError> {
        if self.desc.native != self.host {
            return Err(AttachError {
                cause: AllocError::unsupported(&self.desc, "external storage"),
                storage,
            });
        }
        let len = storage.span().len();
        let span = storage.span().tracked_by(&Tracker::new(len as usize));
        let call = |block| Call::Attach { block, len };
        Ok(self.enter(len, Some(span), Storage::External(Some(storage)), call))
    }

    fn detach(&self, mut block: BlockRef) -> Result<Box<dyn HostOwner>, BlockRef> {
        let number = self.own(&block).number;
        let taken = Arc::get_mut(&mut block).and_then(|block| {
            let block = (block as &mut dyn std::any::Any).downcast_mut::<NullBlock>()?;
            match &mut block.storage {
                Storage::External(storage) => {
                    // The application may do with its bytes what it likes.
                    block.span.iter().for_each(HostSpan::note_write);
                    storage.take()
                }
                _ => None,
            }
        });
        self.books.on(number, Call::Detach { block: number }, |entry| match (&taken, entry.bound) {
            (Some(_), 1..) => Err(format!("{} blocks are bound to it", entry.bound)),
            _ => Ok(()),
        });
        taken.ok_or(block)
    }

    fn bind(&self, root: &BlockRef) -> Result<BlockRef, AllocError> {
        let (len, mut span) = (root.len(), root.host());
        if let Some(null) = root.downcast_ref::<NullBlock>() {
            span = null.span.clone();
            let problem = null.books.bindable(null.number);
            assert!(
                problem.is_none(),
                "core bug: {} cannot be bound: {}",
                self.desc.name,
                problem.unwrap_or_default()
            );
        }
        if span.is_none() && self.is_backed {
            return Err(AllocError::unsupported(&self.desc, "sharing storage that is no host memory"));
        }
        Ok(self.enter(len, span, Storage::Bound(root.clone()), |block| Call::Bind { block, len }))
    }

    fn free(&self, block: BlockRef) {
        let own = self.own(&block);
        self.books.on(own.number, Call::Free { block: own.number }, |entry| {
            if entry.bound > 0 {
                return Err(format!("{} blocks are bound to it", entry.bound));
            }
            let mapped = !entry.map.remotes().is_empty() && !self.desc.is_always_bimapped();
            if mapped && self.refuses_mapped_free {
                return Err(format!("its map state is {:?}", entry.map));
            }
            Ok(())
        });
        self.books.strike(own.number);
        own.count_as_bound(-1);
    }

    fn map(&self, block: &BlockRef, device: DeviceId, target: MapState) -> Result<MapReport, TransferError> {
        let own = self.own(block);
        Ok(self.remap(own, device, target, Call::Map { block: own.number, device }))
    }

    fn unmap(&self, block: &BlockRef, target: MapState) -> Result<MapReport, TransferError> {
        let own = self.own(block);
        Ok(self.remap(own, self.desc.native, target, Call::Unmap { block: own.number }))
    }

    fn copy_in(&self, block: &BlockRef, offset: u64, from: &HostSpan) -> Result<Fence, TransferError> {
        let span = Span::new(offset, offset + from.len());
        if let Some(bytes) = self.bytes(block, span, |block| Call::CopyIn { block, span }) {
            copy(from, &bytes);
        }
        Ok(Fence::done(from.len()))
    }

    fn copy_out(&self, block: &BlockRef, offset: u64, to: &HostSpan) -> Result<Fence, TransferError> {
        let span = Span::new(offset, offset + to.len());
        if let Some(bytes) = self.bytes(block, span, |block| Call::CopyOut { block, span }) {
            copy(&bytes, to);
        }
        Ok(Fence::done(to.len()))
    }

    fn fill(&self, block: &BlockRef, span: Span, byte: u8) -> Result<Fence, TransferError> {
        if let Some(bytes) = self.bytes(block, span, |block| Call::Fill { block, span, byte }) {
            fill(&bytes, byte);
        }
        Ok(Fence::done(span.len()))
    }
}
