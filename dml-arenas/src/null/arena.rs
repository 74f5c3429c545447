//! The test arena.

use super::block::{NullBlock, Storage};
use super::books::{Books, Call, Entry};
use crate::main_mem::{Memory, copy, fill};
use dml_core::MapState;
use dml_core::internal::sync::Arc;
use dml_core::{
    Access, AllocError, Arena, ArenaDesc, Backing, BlockRef, CopyIn, CopyOut, DeviceId, Fence, Fill, Grants,
    HostMemory, HostSpan, MapReport, MapRequest, NewBlock, Region, Span, TransferError, UnmapRequest,
    ViewError,
};

/// An arena that records every call and checks that core may make it. If backed, it carries the call out in
/// host memory.
///
/// # Panics
/// Every method of its [`Arena`] implementation panics when the contract forbids the call.
///
/// # Examples
/// ```
/// # use dml_arenas::{Null, null::Call};
/// # use dml_core::{ArenaDesc, ArenaKind, DeviceDesc, DeviceKind, Platform};
/// # use std::sync::Arc;
/// let mut builder = Platform::builder();
/// let gpu = builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
/// let arena = Arc::new(Null::backed(ArenaDesc::new("gpu", ArenaKind("test"), gpu)));
/// builder.add_arena(arena.clone());
/// let platform = builder.build()?;
/// let buffer = platform.raw_buffer(16).build()?;
/// let mut grants = platform.acquire(gpu).write(&buffer).wait()?;
/// arena.write(&mut grants, &buffer, &[7; 16])?; // as a kernel of the device would
/// grants.release()?;
/// assert_eq!(arena.calls(), [Call::Alloc { block: 0, len: 16 }, Call::Touch { block: 0, device: gpu }]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Null {
    desc: ArenaDesc,
    host: DeviceId,
    is_backed: bool,
    refuses_mapped_free: bool,
    books: Arc<Books>,
}

impl Null {
    /// Creates an arena without bytes: copies succeed and move nothing.
    #[must_use]
    pub fn new(desc: ArenaDesc) -> Self {
        let books = Arc::new(Books::new(desc.name.clone()));
        Self { desc, host: DeviceId(0), is_backed: false, refuses_mapped_free: false, books }
    }

    /// Creates an arena whose blocks are host memory, so that data really moves.
    #[must_use]
    pub fn backed(desc: ArenaDesc) -> Self {
        Self { is_backed: true, ..Self::new(desc) }
    }

    /// Sets which device is the host; device 0 by default.
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

    /// Returns every call so far, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.books.calls()
    }

    /// Removes and returns the recorded calls, in order.
    #[must_use]
    pub fn take_calls(&self) -> Vec<Call> {
        self.books.take_calls()
    }

    /// Returns the number of blocks that were made and neither freed nor dropped.
    #[must_use]
    pub fn live_blocks(&self) -> usize {
        self.books.live_blocks()
    }

    /// Returns the number of a block in this arena's [`Call`]s.
    ///
    /// # Panics
    /// When the block belongs to another arena.
    #[must_use]
    pub fn number_of(&self, block: &BlockRef) -> u64 {
        self.own(block).number
    }

    /// Declares that a kernel of `device` uses the block, as the launch of a kernel would.
    ///
    /// # Panics
    /// When the device has no access, or the block was freed.
    pub fn touch(&self, block: &BlockRef, device: DeviceId) {
        let number = self.own(block).number;
        self.books.on(number, Call::Touch { block: number, device }, |entry| self.needs(entry, device));
    }

    /// Reads granted bytes of a backed block, as a kernel of the native device would.
    ///
    /// # Errors
    /// [`ViewError`] if the bytes are not granted.
    ///
    /// # Panics
    /// As [`Null::touch`], and when the arena is not backed.
    pub fn read(&self, grants: &Grants, region: &impl Region) -> Result<Vec<u8>, ViewError> {
        let (block, span) = grants.granted(region, Access::ReadOnly)?;
        let mut out = vec![0; span.len() as usize];
        let Some(block) = block else { return Ok(out) };
        let bytes = self.granted(block, span);
        bytes.note_read();
        // SAFETY: the block's bytes are live and initialised, `slice` has checked their number, and `out` is
        // as long. They are granted, so no other code writes them (I-1, I-4). The holder's own views of them
        // are read-only while `grants` is borrowed shared.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(out)
    }

    /// Writes all granted bytes of a backed block, as a kernel of the native device would.
    ///
    /// # Errors
    /// [`ViewError`] if the bytes are not granted for writing, or their number differs.
    ///
    /// # Panics
    /// As [`Null::read`].
    pub fn write(&self, grants: &mut Grants, region: &impl Region, bytes: &[u8]) -> Result<(), ViewError> {
        let (block, span) = grants.granted(region, Access::WriteInvalidate)?;
        if span.len() != bytes.len() as u64 {
            let (buffer, element_bytes) = (region.buffer().name(), bytes.len() as u64);
            return Err(ViewError::Size { buffer, span, element_bytes });
        }
        let Some(block) = block else { return Ok(()) };
        let target = self.granted(block, span);
        target.note_write();
        // SAFETY: the block's bytes are live, `slice` has checked their number, and `bytes` is as long. They
        // are granted for writing, so no other code accesses them (I-1). The holder has no view of them while
        // `grants` is borrowed exclusively.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Returns the bytes of a block for a kernel of the native device.
    fn granted(&self, block: &BlockRef, span: Span) -> HostSpan {
        self.touch(block, self.desc.native);
        self.own(block).span.as_ref().expect("the arena is backed").slice(span)
    }

    fn own<'a>(&self, block: &'a BlockRef) -> &'a NullBlock {
        block
            .downcast_ref::<NullBlock>()
            .filter(|block| Arc::ptr_eq(&block.books, &self.books))
            .unwrap_or_else(|| {
                panic!("core bug: {} was handed a block of another arena: {block:?}", self.desc.name)
            })
    }

    /// Checks that `device` has access in the state of `entry`.
    fn needs(&self, entry: &Entry, device: DeviceId) -> Result<(), String> {
        let ok = entry.map.gives(&self.desc, device);
        ok.then_some(()).ok_or_else(|| format!("device {device} has no access in map state {:?}", entry.map))
    }

    /// Records a call by which the native device touches bytes. Returns the bytes if the arena is backed.
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
    ) -> NewBlock {
        let is_bound = matches!(storage, Storage::Bound(_));
        let number = self.books.enter(MapState::initial(&self.desc), is_bound, call);
        let is_host = self.desc.native == self.host;
        let block = NullBlock { number, len, span, is_host, storage, books: self.books.clone() };
        block.count_as_bound(1);
        let block = Arc::new(block);
        let memory = block.memory().filter(|_| is_host && !matches!(block.storage, Storage::External(_)));
        let new = NewBlock::new(block);
        match memory {
            Some(memory) => new.with_host(memory),
            None => new,
        }
    }

    /// Records a change of map state for `device`, and checks that core may request it.
    fn remap(&self, own: &NullBlock, device: DeviceId, target: MapState, call: Call) -> MapState {
        self.books.on(own.number, call, |entry| {
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
        })
    }

    /// Returns the report of a change, with the memory if the host gets access.
    fn report(&self, block: &BlockRef, state: MapState, is_shown: bool) -> MapReport {
        let is_let_in = state.remotes().contains(self.host) && !is_shown;
        let own = (block.clone() as Arc<dyn std::any::Any + Send + Sync>).downcast::<NullBlock>();
        let host = own.ok().filter(|_| is_let_in).and_then(|own| own.memory());
        MapReport { state, host }
    }

    /// Returns whether core still has the host's memory after a change. If the host's mapping ends, checks
    /// that core gave the memory back.
    fn take_back(
        &self,
        own: &NullBlock,
        target: MapState,
        take_back: impl FnOnce(&HostSpan) -> Option<HostMemory>,
        is_shown: bool,
    ) -> Result<bool, TransferError> {
        let goes_on = target.remotes().contains(self.host);
        if goes_on || !is_shown {
            return Ok(is_shown);
        }
        match own.span.as_ref().map(take_back) {
            None | Some(Some(_)) => Ok(false),
            Some(None) => Err(TransferError::StillLent),
        }
    }
}

impl Arena for Null {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let call = |block| Call::Alloc { block, len };
        if !self.is_backed {
            return Ok(self.enter(len, None, Storage::Nowhere, call));
        }
        let memory = usize::try_from(len).ok().and_then(Memory::zeroed);
        let memory =
            memory.ok_or_else(|| AllocError::OutOfMemory { arena: self.desc.name.clone(), bytes: len })?;
        Ok(self.enter(len, Some(memory.span()), Storage::Own { _memory: memory }, call))
    }

    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        if self.desc.native != self.host {
            return Err(AllocError::unsupported(&self.desc, "external storage"));
        }
        let len = storage.len();
        let call = |block| Call::Attach { block, len };
        Ok(self.enter(len, storage.host().cloned(), Storage::External(storage.clone()), call).into_block())
    }

    fn admit(&self, block: &BlockRef) -> Result<(), AllocError> {
        let own = block.downcast_ref::<NullBlock>().filter(|block| Arc::ptr_eq(&block.books, &self.books));
        own.map(|_| ()).ok_or_else(|| AllocError::unsupported(&self.desc, "a block of another arena"))
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        let (len, mut span) = (root.len(), root.host().cloned());
        if let Some(null) = root.block().and_then(|root| root.downcast_ref::<NullBlock>()) {
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

    fn map(&self, mut request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        let (block, device, target) = (request.block(), request.device(), request.target());
        let (own, is_shown) = (self.own(block), request.has_host());
        let is_shown = self.take_back(own, target, |span| request.take_back(span), is_shown)?;
        let state = self.remap(own, device, target, Call::Map { block: own.number, device });
        Ok(self.report(block, state, is_shown))
    }

    fn unmap(&self, mut request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        let (block, target) = (request.block(), request.target());
        let (own, is_shown) = (self.own(block), request.has_host());
        let is_shown = self.take_back(own, target, |span| request.take_back(span), is_shown)?;
        let state = self.remap(own, self.desc.native, target, Call::Unmap { block: own.number });
        Ok(self.report(block, state, is_shown))
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        // The lock of the books would add interleavings to the loom models of core.
        if cfg!(dml_loom) { None } else { self.books.map_state(self.own(block).number) }
    }

    fn copy_in(&self, request: CopyIn) -> Result<Fence, TransferError> {
        let span = request.span();
        if let Some(bytes) = self.bytes(request.block(), span, |block| Call::CopyIn { block, span }) {
            // SAFETY: core has lent the source and the block's bytes until `request` is dropped.
            unsafe { copy(request.from().span(), &bytes) };
        }
        Ok(Fence::done(request.len()))
    }

    fn copy_out(&self, request: CopyOut) -> Result<Fence, TransferError> {
        let span = request.span();
        if let Some(bytes) = self.bytes(request.block(), span, |block| Call::CopyOut { block, span }) {
            // SAFETY: as in `copy_in`.
            unsafe { copy(&bytes, request.to().span()) };
        }
        Ok(Fence::done(request.len()))
    }

    fn fill(&self, request: Fill) -> Result<Fence, TransferError> {
        let (span, byte) = (request.span(), request.byte());
        if let Some(bytes) = self.bytes(request.block(), span, |block| Call::Fill { block, span, byte }) {
            // SAFETY: core has lent the block's bytes until `request` is dropped.
            unsafe { fill(&bytes, byte) };
        }
        Ok(Fence::done(request.len()))
    }
}
