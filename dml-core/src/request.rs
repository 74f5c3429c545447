//! What core asks of an arena's memory, as values that only core makes.
//!
//! ```text
//!   CopyIn   host memory, lent ──▶ bytes of a block
//!   CopyOut  bytes of a block ──▶ host memory, lent
//!   Fill     a byte ──▶ bytes of a block
//!   MapRequest, UnmapRequest     who may touch a block
//!   Backing  storage of somebody else, under a block
//! ```
//! 1. Safe code cannot make one: whoever holds one has it from core, which has asked the machine. So an arena that is
//!    somebody's own may wrap another and pass requests on, but it cannot ask for something of its own.
//! 2. No transfer and no change is `Clone`: what was asked once is done once. A transfer may be split.
//! 3. A transfer is lent the bytes that it touches until it is dropped, which is before its fence ends: see
//!    [`HostSource`].
//! 4. A block over somebody's storage holds the [`Backing`] that core made for it, so that it keeps the storage alive and core
//!    knows it again wherever it turns up.

#![allow(unsafe_code)]

use crate::arena::BlockRef;
use crate::host::{HostMemory, HostSource, HostSpan, HostTarget, Loan, Owner, Shared};
use crate::id::DeviceId;
use crate::range::Span;
use crate::state::MapState;
use crate::sync::Arc;
use std::fmt;

/// Storage of somebody else, which a block is to be made over: the application's, or that of another block.
///
/// A block that is made over it holds it and shows it ([`Block::backing`](crate::Block::backing)). Holding it keeps the storage
/// alive, so that a block which a kernel or an arena keeps never outlives what it names. Showing it tells core what the block
/// is over: core takes the block for the buffer that the storage belongs to and for no other. A clone is the same storage and
/// may be passed on to an arena inside.
#[derive(Clone)]
pub struct Backing(Arc<Under>);

struct Under {
    len: u64,
    root: Option<BlockRef>,
    host: Option<HostSpan>,
    /// What keeps the host memory alive.
    _owner: Option<Owner>,
}

impl Backing {
    /// The application's storage.
    pub(crate) fn external(memory: &HostMemory) -> Self {
        let (host, owner) = (Some(memory.span().clone()), Some(memory.share().owner()));
        Self(Arc::new(Under { len: memory.len(), root: None, host, _owner: owner }))
    }

    /// The first `len` bytes of a block, which the host sees there if it does.
    pub(crate) fn root(block: &BlockRef, len: u64, host: Option<&Shared>) -> Self {
        let (owner, host) = (host.map(Shared::owner), host.map(|host| host.span().clone()));
        Self(Arc::new(Under { len, root: Some(block.clone()), host, _owner: owner }))
    }

    /// Storage of one's own, for those who drive an arena by hand.
    ///
    /// # Safety
    /// 1. The block, where there is one, has `len` bytes, and so has the host memory, which lives until the value and its
    ///    clones have gone.
    /// 2. Until then nobody touches the storage, but for requests for one block made over it, or for its root, as core would
    ///    schedule them.
    #[must_use]
    pub unsafe fn new(root: Option<BlockRef>, len: u64, host: Option<HostSpan>) -> Self {
        Self(Arc::new(Under { len, root, host, _owner: None }))
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The block that the storage belongs to. Nothing where it is the application's.
    #[must_use]
    pub fn block(&self) -> Option<&BlockRef> {
        self.0.root.as_ref()
    }

    /// Where the host sees the storage, if it does without a mapping. Unsafe code may touch it for requests for a block that
    /// holds this.
    #[must_use]
    pub fn host(&self) -> Option<&HostSpan> {
        self.0.host.as_ref()
    }

    /// Whether it is the same storage, for the same purpose.
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

/// Bytes of host memory to be copied into a block.
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

    /// A request of one's own, for those who drive an arena by hand.
    ///
    /// # Safety
    /// 1. Until the request is dropped, nobody else touches these bytes of the block.
    #[must_use]
    pub unsafe fn new(block: &BlockRef, offset: u64, from: HostSource) -> Self {
        Self::scheduled(block, offset, from)
    }

    /// The block, one of the arena that is asked.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.block
    }

    /// The bytes of the block that are to be written.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::new(self.offset, self.offset + self.from.len())
    }

    /// The host memory, as long as [`span`](Self::span).
    #[must_use]
    pub fn from(&self) -> &HostSource {
        &self.from
    }

    /// The block, the bytes and the host memory. The memory is lent for as long as the bytes of the block are.
    #[must_use]
    pub fn into_parts(self) -> (BlockRef, Span, HostSource) {
        let span = self.span();
        (self.block, span, self.from)
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.from.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from.is_empty()
    }

    /// The first `at` bytes and the others.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        let (first, second) = self.from.split_at(at);
        let rest = Self { block: self.block.clone(), offset: self.offset + at, from: second };
        (Self { from: first, ..self }, rest)
    }

    /// The first `at` bytes, or all where there are fewer; the others are not touched.
    #[must_use]
    pub fn first(self, at: u64) -> Self {
        let at = at.min(self.len());
        self.split_at(at).0
    }
}

/// Bytes of a block to be copied to host memory.
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

    /// A request of one's own, for those who drive an arena by hand.
    ///
    /// # Safety
    /// 1. Until the request is dropped, nobody writes these bytes of the block.
    #[must_use]
    pub unsafe fn new(block: &BlockRef, offset: u64, to: HostTarget) -> Self {
        Self::scheduled(block, offset, to)
    }

    /// The block, one of the arena that is asked.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.block
    }

    /// The bytes of the block that are to be read.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::new(self.offset, self.offset + self.to.len())
    }

    /// The host memory, as long as [`span`](Self::span).
    #[must_use]
    pub fn to(&self) -> &HostTarget {
        &self.to
    }

    /// The block, the bytes and the host memory. The memory is lent for as long as the bytes of the block are.
    #[must_use]
    pub fn into_parts(self) -> (BlockRef, Span, HostTarget) {
        let span = self.span();
        (self.block, span, self.to)
    }

    /// Copies `bytes` into the host memory from `at` on. What is lent stays in the request: whoever could exchange it would hold
    /// one for other bytes than core has scheduled.
    ///
    /// # Panics
    /// When there is not enough room.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.to.write(at, bytes);
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.to.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.to.is_empty()
    }

    /// The first `at` bytes and the others.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        let (first, second) = self.to.split_at(at);
        let rest = Self { block: self.block.clone(), offset: self.offset + at, to: second };
        (Self { to: first, ..self }, rest)
    }

    /// The first `at` bytes, or all where there are fewer; the others are not touched.
    #[must_use]
    pub fn first(self, at: u64) -> Self {
        let at = at.min(self.len());
        self.split_at(at).0
    }
}

/// Bytes of a block to be set.
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

    /// A request of one's own, for those who drive an arena by hand.
    ///
    /// # Safety
    /// 1. Until the request is dropped, nobody else touches these bytes of the block.
    #[must_use]
    pub unsafe fn new(block: &BlockRef, span: Span, byte: u8) -> Self {
        Self::scheduled(block, span, byte, &Loan::default())
    }

    /// The block, one of the arena that is asked.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.block
    }

    /// The bytes to be set.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// What they are to be.
    #[must_use]
    pub fn byte(&self) -> u8 {
        self.byte
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.span.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// The first `at` bytes and the others.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        assert!(at <= self.len(), "byte {at} of {}", self.len());
        let cut = self.span.start() + at;
        let (first, second) = (Span::new(self.span.start(), cut), Span::new(cut, self.span.end()));
        let rest = Self { block: self.block.clone(), span: second, byte: self.byte, loan: self.loan.clone() };
        (Self { span: first, ..self }, rest)
    }

    /// The first `at` bytes, or all where there are fewer; the others are not touched.
    #[must_use]
    pub fn first(self, at: u64) -> Self {
        let at = at.min(self.len());
        self.split_at(at).0
    }
}

/// A remote device is to have access to a block.
#[derive(Debug)]
pub struct MapRequest<'a> {
    change: Change<'a>,
    device: DeviceId,
}

/// The native device is to have access to a block again.
#[derive(Debug)]
pub struct UnmapRequest<'a> {
    change: Change<'a>,
}

#[derive(Debug)]
struct Change<'a> {
    block: &'a BlockRef,
    target: MapState,
    /// What the arena has reported of the present mapping for the host, if it has.
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

    /// A request of one's own, for those who drive an arena by hand.
    ///
    /// # Safety
    /// 1. Nobody uses the block who would lose access by it.
    #[must_use]
    pub unsafe fn new(
        block: &'a BlockRef,
        device: DeviceId,
        target: MapState,
        host: &'a mut Option<HostMemory>,
    ) -> Self {
        Self::scheduled(block, device, target, host)
    }

    /// Who is to have access, one of the remotes.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The same request with other memory, for an arena that shows core something else than the arena inside it does.
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

    /// A request of one's own, for those who drive an arena by hand.
    ///
    /// # Safety
    /// 1. Nobody uses the block who would lose access by it.
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
            /// The block, one of the arena that is asked.
            #[must_use]
            pub fn block(&self) -> &'a BlockRef {
                self.change.block
            }

            /// The map state to go to.
            #[must_use]
            pub fn target(&self) -> MapState {
                self.change.target
            }

            /// Whether core has memory of a mapping for the host, from an earlier report. An arena that somebody wraps may be
            /// told otherwise ([`with_host`](Self::with_host)): one whose mappings end knows itself what it has handed out.
            #[must_use]
            pub fn has_host(&self) -> bool {
                self.change.host.is_some()
            }

            /// Takes the memory of the mapping at `expected` back, so that the mapping can be ended. Nothing where core has
            /// another, or none, or something of it is lent: an arena whose mapping would end before its memory does must
            /// then fail.
            #[must_use = "the mapping must not end before its memory is back"]
            pub fn take_back(&mut self, expected: &HostSpan) -> Option<HostMemory> {
                let is_it = |memory: &mut HostMemory| {
                    let span = memory.span();
                    span.as_ptr() == expected.as_ptr() && span.len() == expected.len() && !memory.is_lent()
                };
                self.change.host.take_if(is_it)
            }

            /// Gives memory that was [taken back](Self::take_back) to core again: the mapping could not be ended.
            ///
            /// # Panics
            /// Where something of it is lent, by which it could be touched behind core's back.
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
    use crate::arena::{Block, NativeHandle};

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
