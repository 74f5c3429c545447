//! Core's requests to an arena's memory, as values that only core makes.
//!
//! ```text
//!   CopyIn   host memory, lent ──▶ bytes of a block
//!   CopyOut  bytes of a block ──▶ host memory, lent
//!   Fill     a byte ──▶ bytes of a block
//!   MapRequest, UnmapRequest     change of the devices with access to a block
//!   Backing  storage of the application or of another block, under a block
//! ```
//! 1. Safe code cannot make a request: every request comes from core, which has asked the machine. An arena
//!    may wrap another and pass requests on, but it cannot make requests of its own.
//! 2. No transfer and no map change is `Clone`, so each is carried out once. A transfer may be split.
//! 3. A transfer has its bytes on loan until it is dropped, and it must be dropped before its fence ends: see
//!    [`HostSource`].
//! 4. A block over foreign storage holds the [`Backing`] that core made for it. The backing keeps the storage
//!    alive, and lets core recognise the storage.
//!
//! Code that drives an arena directly makes requests in unsafe code:
//! ```
//! # use dml_core::*;
//! fn made(block: &BlockRef, from: HostSource, to: HostTarget, host: &mut Option<HostMemory>) {
//!     // SAFETY: none needed, because this is never called.
//!     unsafe {
//!         let _ = (CopyIn::new(block, 0, from), CopyOut::new(block, 0, to));
//!         let _ = (Fill::new(block, Span::new(0, 1), 7), Backing::new(None, 1, None));
//!         let _ = MapRequest::new(block, DeviceId(0), MapState::Unmapped, host);
//!         let _ = UnmapRequest::new(block, MapState::Unmapped, host);
//!     }
//! }
//! ```
//! Safe code cannot:
//! ```compile_fail
//! # use dml_core::*;
//! fn made(block: &BlockRef, from: HostSource) -> CopyIn {
//!     CopyIn::new(block, 0, from)
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! fn made(block: &BlockRef, to: HostTarget) -> CopyOut {
//!     CopyOut::new(block, 0, to)
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! fn made(block: &BlockRef) -> Fill {
//!     Fill::new(block, Span::new(0, 1), 7)
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! fn made() -> Backing {
//!     Backing::new(None, 1, None)
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! # use dml_core::MapState;
//! fn made<'a>(block: &'a BlockRef, host: &'a mut Option<HostMemory>) -> MapRequest<'a> {
//!     MapRequest::new(block, DeviceId(0), MapState::Unmapped, host)
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! # use dml_core::MapState;
//! fn made<'a>(block: &'a BlockRef, host: &'a mut Option<HostMemory>) -> UnmapRequest<'a> {
//!     UnmapRequest::new(block, MapState::Unmapped, host)
//! }
//! ```
//! Nor can it duplicate one:
//! ```compile_fail
//! # use dml_core::*;
//! fn is_clone<T: Clone>(_: &T) {}
//! fn twice(one: &CopyIn) {
//!     is_clone(one);
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! fn is_clone<T: Clone>(_: &T) {}
//! fn twice(one: &CopyOut) {
//!     is_clone(one);
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! fn is_clone<T: Clone>(_: &T) {}
//! fn twice(one: &Fill) {
//!     is_clone(one);
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! fn is_clone<T: Clone>(_: &T) {}
//! fn twice(one: &MapRequest<'_>) {
//!     is_clone(one);
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! fn is_clone<T: Clone>(_: &T) {}
//! fn twice(one: &UnmapRequest<'_>) {
//!     is_clone(one);
//! }
//! ```
//! ```compile_fail
//! # use dml_core::*;
//! fn is_clone<T: Clone>(_: &T) {}
//! fn twice(one: &CopyJob) {
//!     is_clone(one);
//! }
//! ```

#![allow(unsafe_code)]

use crate::base::id::DeviceId;
use crate::base::range::Span;
use crate::base::sync::Arc;
use crate::memory::block::BlockRef;
use crate::memory::host::{HostMemory, HostSource, HostSpan, HostTarget, Loan, Owner, Shared};
use crate::memory::map_state::MapState;
use std::fmt;

/// Storage that a block is to be made over: the application's, or another block's.
///
/// A block over it holds it and shows it ([`Block::backing`](crate::Block::backing)). Holding it keeps the
/// storage alive, so a kept block never outlives its storage. Showing it tells core which storage the block
/// is over, and core accepts the block only for the buffer of that storage. A clone names the same storage,
/// and may be passed on to a wrapped arena.
#[derive(Clone)]
pub struct Backing(Arc<Under>);

struct Under {
    len: u64,
    root: Option<BlockRef>,
    host: Option<HostSpan>,
    /// The reference that keeps the host memory alive.
    _owner: Option<Owner>,
}

impl Backing {
    /// Creates the backing of the application's storage.
    pub(crate) fn external(memory: &HostMemory) -> Self {
        let (host, owner) = (Some(memory.span().clone()), Some(memory.share().owner()));
        Self(Arc::new(Under { len: memory.len(), root: None, host, _owner: owner }))
    }

    /// Creates the backing of the first `len` bytes of a block, with their host memory, if the host can
    /// address them.
    pub(crate) fn root(block: &BlockRef, len: u64, host: Option<&Shared>) -> Self {
        let (owner, host) = (host.map(Shared::owner), host.map(|host| host.span().clone()));
        Self(Arc::new(Under { len, root: Some(block.clone()), host, _owner: owner }))
    }

    /// Creates the backing of the caller's own storage, for code that drives an arena directly.
    ///
    /// # Safety
    /// 1. The block, if there is one, has at least `len` bytes. The host memory, if there is any, has at
    ///    least `len` bytes and lives until this value and its clones are gone.
    /// 2. Until then the storage is touched only for requests for its root or for one block made over it, as
    ///    core would schedule them.
    #[must_use]
    pub unsafe fn new(root: Option<BlockRef>, len: u64, host: Option<HostSpan>) -> Self {
        Self(Arc::new(Under { len, root, host, _owner: None }))
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Returns whether the storage is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the block that the storage belongs to; `None` if it is the application's.
    #[must_use]
    pub fn block(&self) -> Option<&BlockRef> {
        self.0.root.as_ref()
    }

    /// Returns the storage's location in host memory, if the host can address it without a mapping. Unsafe
    /// code may touch it for requests for a block that holds this backing.
    #[must_use]
    pub fn host(&self) -> Option<&HostSpan> {
        self.0.host.as_ref()
    }

    /// Returns whether both are the same backing.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Under { len, root, host, .. } = &*self.0;
        write!(f, "Backing({len} bytes")?;
        root.iter().try_for_each(|root| write!(f, " of {root:?}"))?;
        host.iter().try_for_each(|host| write!(f, " at {:p}", host.as_ptr()))?;
        f.write_str(")")
    }
}

/// A request to copy host memory into a block.
#[derive(Debug)]
pub struct CopyIn {
    block: BlockRef,
    offset: u64,
    from: HostSource,
}

impl CopyIn {
    pub(crate) fn scheduled(block: &BlockRef, offset: u64, from: HostSource) -> Self {
        Self { block: block.clone(), offset, from }
    }

    /// Creates a request, for code that drives an arena directly.
    ///
    /// # Safety
    /// 1. Until the request is dropped, no other code touches these bytes of the block.
    #[must_use]
    pub unsafe fn new(block: &BlockRef, offset: u64, from: HostSource) -> Self {
        Self::scheduled(block, offset, from)
    }

    /// Returns the block, which belongs to the arena that gets the request.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.block
    }

    /// Returns the bytes of the block to be written.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::new(self.offset, self.offset + self.from.len())
    }

    /// Returns the host memory, which is as long as [`span`](Self::span).
    #[must_use]
    pub fn from(&self) -> &HostSource {
        &self.from
    }

    /// Returns the block, the bytes and the host memory. The bytes of the block are lent for as long as the
    /// host memory is.
    #[must_use]
    pub fn into_parts(self) -> (BlockRef, Span, HostSource) {
        let span = self.span();
        (self.block, span, self.from)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.from.len()
    }

    /// Returns whether the request has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from.is_empty()
    }

    /// Splits the request into the first `at` bytes and the rest.
    ///
    /// # Panics
    /// When the request has fewer than `at` bytes.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        let (first, second) = self.from.split_at(at);
        let rest = Self { block: self.block.clone(), offset: self.offset + at, from: second };
        (Self { from: first, ..self }, rest)
    }

    /// Keeps the first `at` bytes, or all if there are fewer. The other bytes are not touched.
    #[must_use]
    pub fn first(self, at: u64) -> Self {
        let at = at.min(self.len());
        self.split_at(at).0
    }
}

/// A request to copy bytes of a block to host memory.
#[derive(Debug)]
pub struct CopyOut {
    block: BlockRef,
    offset: u64,
    to: HostTarget,
}

impl CopyOut {
    pub(crate) fn scheduled(block: &BlockRef, offset: u64, to: HostTarget) -> Self {
        Self { block: block.clone(), offset, to }
    }

    /// Creates a request, for code that drives an arena directly.
    ///
    /// # Safety
    /// 1. Until the request is dropped, no code writes these bytes of the block.
    #[must_use]
    pub unsafe fn new(block: &BlockRef, offset: u64, to: HostTarget) -> Self {
        Self::scheduled(block, offset, to)
    }

    /// Returns the block, which belongs to the arena that gets the request.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.block
    }

    /// Returns the bytes of the block to be read.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::new(self.offset, self.offset + self.to.len())
    }

    /// Returns the host memory, which is as long as [`span`](Self::span).
    #[must_use]
    pub fn to(&self) -> &HostTarget {
        &self.to
    }

    /// Returns the block, the bytes and the host memory. The bytes of the block are lent for as long as the
    /// host memory is.
    #[must_use]
    pub fn into_parts(self) -> (BlockRef, Span, HostTarget) {
        let span = self.span();
        (self.block, span, self.to)
    }

    /// Copies `bytes` into the host memory from `at` on. The loan stays in the request: code that could
    /// exchange it would hold a request for bytes that core has not scheduled.
    ///
    /// # Panics
    /// When `bytes` reaches past the end of the host memory.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.to.write(at, bytes);
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.to.len()
    }

    /// Returns whether the request has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.to.is_empty()
    }

    /// Splits the request into the first `at` bytes and the rest.
    ///
    /// # Panics
    /// When the request has fewer than `at` bytes.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        let (first, second) = self.to.split_at(at);
        let rest = Self { block: self.block.clone(), offset: self.offset + at, to: second };
        (Self { to: first, ..self }, rest)
    }

    /// Keeps the first `at` bytes, or all if there are fewer. The other bytes are not touched.
    #[must_use]
    pub fn first(self, at: u64) -> Self {
        let at = at.min(self.len());
        self.split_at(at).0
    }
}

/// A request to set bytes of a block to one value.
#[derive(Debug)]
pub struct Fill {
    block: BlockRef,
    span: Span,
    byte: u8,
    loan: Loan,
}

impl Fill {
    pub(crate) fn scheduled(block: &BlockRef, span: Span, byte: u8, transfer: &Loan) -> Self {
        Self { block: block.clone(), span, byte, loan: transfer.clone() }
    }

    /// Creates a request, for code that drives an arena directly.
    ///
    /// # Safety
    /// 1. Until the request is dropped, no other code touches these bytes of the block.
    #[must_use]
    pub unsafe fn new(block: &BlockRef, span: Span, byte: u8) -> Self {
        Self::scheduled(block, span, byte, &Loan::default())
    }

    /// Returns the block, which belongs to the arena that gets the request.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.block
    }

    /// Returns the bytes of the block to be set.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Returns the value to be set.
    #[must_use]
    pub fn byte(&self) -> u8 {
        self.byte
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.span.len()
    }

    /// Returns whether the request has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// Splits the request into the first `at` bytes and the rest.
    ///
    /// # Panics
    /// When the request has fewer than `at` bytes.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        assert!(at <= self.len(), "byte {at} of {}", self.len());
        let cut = self.span.start() + at;
        let (first, second) = (Span::new(self.span.start(), cut), Span::new(cut, self.span.end()));
        let rest = Self { block: self.block.clone(), span: second, byte: self.byte, loan: self.loan.clone() };
        (Self { span: first, ..self }, rest)
    }

    /// Keeps the first `at` bytes, or all if there are fewer. The other bytes are not touched.
    #[must_use]
    pub fn first(self, at: u64) -> Self {
        let at = at.min(self.len());
        self.split_at(at).0
    }
}

/// A request to give a remote device access to a block.
#[derive(Debug)]
pub struct MapRequest<'a> {
    change: Change<'a>,
    device: DeviceId,
}

/// A request to give the native device access to a block again.
#[derive(Debug)]
pub struct UnmapRequest<'a> {
    change: Change<'a>,
}

#[derive(Debug)]
struct Change<'a> {
    block: &'a BlockRef,
    target: MapState,
    /// The memory of the present mapping for the host, if the arena has reported one.
    host: &'a mut Option<HostMemory>,
}

impl<'a> MapRequest<'a> {
    pub(crate) fn scheduled(
        block: &'a BlockRef,
        device: DeviceId,
        target: MapState,
        host: &'a mut Option<HostMemory>,
    ) -> Self {
        Self { change: Change { block, target, host }, device }
    }

    /// Creates a request, for code that drives an arena directly.
    ///
    /// # Safety
    /// 1. No user of the block loses access by the change.
    #[must_use]
    pub unsafe fn new(
        block: &'a BlockRef,
        device: DeviceId,
        target: MapState,
        host: &'a mut Option<HostMemory>,
    ) -> Self {
        Self::scheduled(block, device, target, host)
    }

    /// Returns the device that is to have access, one of the remotes.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the same request with other host memory, for an arena that shows core other memory than the
    /// arena it wraps.
    #[must_use]
    pub fn with_host<'b>(self, host: &'b mut Option<HostMemory>) -> MapRequest<'b>
    where
        'a: 'b,
    {
        MapRequest { change: self.change.with_host(host), device: self.device }
    }
}

impl<'a> UnmapRequest<'a> {
    pub(crate) fn scheduled(block: &'a BlockRef, target: MapState, host: &'a mut Option<HostMemory>) -> Self {
        Self { change: Change { block, target, host } }
    }

    /// Creates a request, for code that drives an arena directly.
    ///
    /// # Safety
    /// 1. No user of the block loses access by the change.
    #[must_use]
    pub unsafe fn new(block: &'a BlockRef, target: MapState, host: &'a mut Option<HostMemory>) -> Self {
        Self::scheduled(block, target, host)
    }

    /// As [`MapRequest::with_host`].
    #[must_use]
    pub fn with_host<'b>(self, host: &'b mut Option<HostMemory>) -> UnmapRequest<'b>
    where
        'a: 'b,
    {
        UnmapRequest { change: self.change.with_host(host) }
    }
}

impl<'a> Change<'a> {
    fn with_host<'b>(self, host: &'b mut Option<HostMemory>) -> Change<'b>
    where
        'a: 'b,
    {
        Change { block: self.block, target: self.target, host }
    }
}

macro_rules! change_of_map_state {
    ($request:ident) => {
        impl<'a> $request<'a> {
            /// Returns the block, which belongs to the arena that gets the request.
            #[must_use]
            pub fn block(&self) -> &'a BlockRef {
                self.change.block
            }

            /// Returns the map state to change to.
            #[must_use]
            pub fn target(&self) -> MapState {
                self.change.target
            }

            /// Returns whether core has memory of a mapping for the host, from an earlier report. A wrapping
            /// arena may change the answer ([`with_host`](Self::with_host)), so an arena whose mappings end
            /// must track itself what it has handed out.
            #[must_use]
            pub fn has_host(&self) -> bool {
                self.change.host.is_some()
            }

            /// Takes back the memory of the mapping at `expected`, so that the mapping can be ended. Returns
            /// `None` if core has other memory, has none, or has lent part of it. An arena whose mapping
            /// would end before its memory does must then fail.
            #[must_use = "the mapping must not end before its memory is back"]
            pub fn take_back(&mut self, expected: &HostSpan) -> Option<HostMemory> {
                let is_it = |memory: &mut HostMemory| {
                    let span = memory.span();
                    span.as_ptr() == expected.as_ptr() && span.len() == expected.len() && !memory.is_lent()
                };
                self.change.host.take_if(is_it)
            }

            /// Gives memory that was [taken back](Self::take_back) to core again, if the mapping could not be
            /// ended.
            ///
            /// # Panics
            /// If part of the memory is lent, because that part could be touched without core's knowledge.
            pub fn put_back(&mut self, memory: HostMemory) {
                assert!(!memory.is_lent(), "{memory:?} is lent");
                *self.change.host = Some(memory);
            }
        }
    };
}

change_of_map_state!(MapRequest);

change_of_map_state!(UnmapRequest);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::block::{Block, NativeHandle};

    #[derive(Debug)]
    struct Nothing;

    impl Block for Nothing {
        fn len(&self) -> u64 {
            0
        }

        fn native(&self) -> NativeHandle {
            NativeHandle(0)
        }
    }

    /// Checks the sizes and spans that a request and its two parts report.
    fn told<T>(request: T, of: fn(&T) -> (u64, bool, Span), at: u64, split: fn(T, u64) -> (T, T)) {
        let (len, is_empty, span) = of(&request);
        assert_eq!((len, is_empty), (span.len(), span.is_empty()));
        let parts = split(request, at);
        assert_eq!(of(&parts.0), (at, at == 0, Span::new(span.start(), span.start() + at)));
        assert_eq!(of(&parts.1), (len - at, len == at, Span::new(span.start() + at, span.end())));
    }

    #[test]
    fn requests_split_where_they_are_told_and_know_when_they_are_empty() {
        let (block, loan): (BlockRef, _) = (Arc::new(Nothing), Loan::default());
        for (len, at) in [(16, 5), (16, 0), (16, 16), (0, 0)] {
            let mut memory = HostMemory::zeroed(len).unwrap();
            let of = |request: &CopyIn| (request.len(), request.is_empty(), request.span());
            told(CopyIn::scheduled(&block, 7, memory.source(Span::new(0, len))), of, at, CopyIn::split_at);
            let of = |request: &CopyOut| (request.len(), request.is_empty(), request.span());
            told(CopyOut::scheduled(&block, 7, memory.target(Span::new(0, len))), of, at, CopyOut::split_at);
            let of = |request: &Fill| (request.len(), request.is_empty(), request.span());
            told(Fill::scheduled(&block, Span::new(7, 7 + len), 1, &loan), of, at, Fill::split_at);
        }
    }

    #[test]
    fn storage_is_empty_where_it_has_no_byte() {
        let under = |len| {
            let memory = HostMemory::zeroed(len).unwrap();
            let backing = Backing::external(&memory);
            let answers = [backing.is_empty(), memory.is_empty(), memory.span().is_empty()];
            (answers, [backing.len(), memory.len(), memory.span().len()])
        };
        assert_eq!(under(0), ([true; 3], [0; 3]));
        assert_eq!(under(3), ([false; 3], [3; 3]));
    }

    #[test]
    fn a_mapping_is_taken_back_once_and_put_back_whole() {
        let (block, memory): (BlockRef, _) = (Arc::new(Nothing), HostMemory::zeroed(16).unwrap());
        let (span, mut host) = (memory.span().clone(), Some(memory));
        let mut request = UnmapRequest::scheduled(&block, MapState::Unmapped, &mut host);
        assert!(request.take_back(&span.slice(Span::new(0, 8))).is_none());
        let memory = request.take_back(&span).unwrap();
        assert!(!request.has_host() && request.take_back(&span).is_none());
        request.put_back(memory);
        let lent = host.as_ref().unwrap().source(Span::new(0, 8));
        assert!(UnmapRequest::scheduled(&block, MapState::Unmapped, &mut host).take_back(&span).is_none());
        drop(lent);
        assert!(UnmapRequest::scheduled(&block, MapState::Unmapped, &mut host).take_back(&span).is_some());
    }

    #[test]
    #[should_panic(expected = "is lent")]
    fn nothing_of_a_mapping_put_back_is_kept() {
        let (block, memory): (BlockRef, _) = (Arc::new(Nothing), HostMemory::zeroed(16).unwrap());
        let (span, mut host) = (memory.span().clone(), Some(memory));
        let mut request = UnmapRequest::scheduled(&block, MapState::Unmapped, &mut host);
        let mut memory = request.take_back(&span).unwrap();
        let _kept = memory.target(Span::new(0, 8));
        request.put_back(memory);
    }
}
