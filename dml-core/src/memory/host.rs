//! Host memory: its ownership, the right to access it, and its loans to transfers. This is the crate's main
//! module of unsafe code.
//!
//! ```text
//!   arena ──alloc, map──▶ HostMemory ──moved into core──▶ leases of grants (slices), loans of transfers
//!                         not Clone: its owner has exclusive access to the bytes
//! ```
//! No safe code of an arena or a mechanism can make it unsound, because:
//!
//! 1. [`HostMemory`] is unique. Safe code makes fresh memory, and only it may access that memory until it
//!    hands it over. Unsafe code makes memory of a block, and names the block ([`HostMemory::new`] states its
//!    obligations). No safe code may access a block's memory, and core accepts it for that block only. So two
//!    blocks never show the same bytes.
//! 2. After an arena has handed it over, only core derives access from it: slices under grants (I-1, I-4),
//!    and loans ([`HostSource`], [`HostTarget`]) for transfers that the machine has scheduled (I-3, I-9).
//! 3. A loan keeps the memory alive. Core checks that every loan of a transfer came back before it accepts
//!    the transfer's end. If one did not, the buffer refuses all further requests.

#![allow(unsafe_code)]

use crate::base::range::Span;
use crate::base::sync::{Arc, Lent, Tracker};
use crate::memory::block::BlockRef;
use crate::memory::error::TransferError;
use bytemuck::{Pod, Zeroable};
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// The location of host memory: an address and a length. They give no access by themselves.
///
/// Only unsafe code can dereference the address. That code must know that the memory is live and not accessed
/// by others; the source of the span states how long this holds.
#[derive(Clone)]
pub struct HostSpan {
    ptr: NonNull<u8>,
    len: usize,
    /// The tracker of accesses to the bytes, in models.
    tracker: Tracker,
}

// SAFETY: the type holds an address and a length. No safe method touches the memory.
unsafe impl Send for HostSpan {}

// SAFETY: as above.
unsafe impl Sync for HostSpan {}

impl HostSpan {
    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether the span is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Returns the part of the memory that `span` names, counted from its start.
    ///
    /// # Panics
    /// When `span` reaches past the end of the memory.
    #[must_use]
    pub fn slice(&self, span: Span) -> Self {
        assert!(span.end() <= self.len(), "span {span} of host memory of {} bytes", self.len);
        // SAFETY: the offset is within the allocation, as just checked.
        let ptr = unsafe { self.ptr.add(span.start() as usize) };
        Self { ptr, len: span.len() as usize, tracker: self.tracker.part(span.start() as usize) }
    }

    /// Returns the tracker of accesses to the bytes, in models.
    #[must_use]
    pub fn tracker(&self) -> Tracker {
        self.tracker.clone()
    }

    /// Records in models that all bytes are about to be read without a view.
    pub fn note_read(&self) {
        self.tracker.read(self.len);
    }

    /// Records in models that all bytes are about to be written without a view.
    pub fn note_write(&self) {
        self.tracker.write(self.len);
    }

    /// Returns the bytes as values of `T`.
    ///
    /// # Safety
    /// For the chosen lifetime, the bytes are live and initialised, and no code writes them.
    unsafe fn as_slice<'a, T: Pod>(&self) -> Result<&'a [T], CastError> {
        let count = self.cast_len::<T>()?;
        if count == 0 {
            return Ok(&[]);
        }
        self.note_read();
        // SAFETY: live, initialised and not written (this function's contract), aligned for T and long enough
        // (`cast_len`); T is Pod.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.cast::<T>().as_ptr(), count) })
    }

    /// Returns the bytes as mutable values of `T`.
    ///
    /// # Safety
    /// For the chosen lifetime, the bytes are live and initialised, and no other code reads or writes them.
    unsafe fn as_mut_slice<'a, T: Pod>(&self) -> Result<&'a mut [T], CastError> {
        let count = self.cast_len::<T>()?;
        if count == 0 {
            return Ok(&mut []);
        }
        self.note_write();
        // SAFETY: as in `as_slice`, and no other code accesses the bytes (this function's contract).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<T>().as_ptr(), count) })
    }

    fn cast_len<T: Pod>(&self) -> Result<usize, CastError> {
        let size = size_of::<T>();
        if size == 0 || !self.len.is_multiple_of(size) {
            return Err(CastError::Size { bytes: self.len, element_bytes: size });
        }
        if self.len != 0 && !self.ptr.cast::<T>().is_aligned() {
            return Err(CastError::Alignment { element_align: align_of::<T>() });
        }
        Ok(self.len / size)
    }
}

impl fmt::Debug for HostSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostSpan({:p}, {} bytes)", self.ptr, self.len)
    }
}

/// A cache line. Fresh memory consists of cache lines, so that it is aligned for every view.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A reference that keeps host memory alive.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// Host memory together with the right to all of its bytes.
///
/// An arena hands it to core with a block that is host memory ([`NewBlock`](crate::NewBlock)), or with the
/// report of a mapping ([`MapReport`](crate::MapReport)). Before that, safe code may access the bytes of
/// memory that it made itself ([`zeroed`](Self::zeroed), [`holding`](Self::holding)). Memory of a block
/// ([`new`](Self::new)) is for core only. The type is not `Clone`, so memory can be handed over only once.
pub struct HostMemory {
    shared: Shared,
    /// Whether a block keeps the memory alive, and may also touch it for requests of core.
    is_of_block: bool,
}

impl HostMemory {
    /// Names `len` bytes at `ptr`: the memory of `block`, or of a mapping of it. Core accepts it for this
    /// block only.
    ///
    /// # Safety
    /// 1. `ptr` is valid for reads and writes of `len` initialised bytes until `block` is dropped. Memory of
    ///    a mapping may become invalid earlier: after the arena has taken this value back.
    /// 2. While this memory lives, the bytes are accessed only through it, or by the arena that hands it to
    ///    core, for core's requests for the block.
    /// 3. No living `HostMemory` of another block names any of the bytes. Blocks bound to each other's
    ///    storage are exempt, if each names the same bytes.
    #[must_use]
    pub unsafe fn new(ptr: NonNull<u8>, len: usize, block: Arc<dyn Any + Send + Sync>) -> Self {
        let span = HostSpan { ptr, len, tracker: Tracker::default() };
        Self { shared: Shared { span, owner: block, loan: Loan::default() }, is_of_block: true }
    }

    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// [`TransferError::NoScratch`] if the host cannot allocate `len` bytes.
    pub fn zeroed(len: u64) -> Result<Self, TransferError> {
        let no_scratch = |_| TransferError::NoScratch { bytes: len };
        let len_usize = usize::try_from(len).map_err(|_| TransferError::NoScratch { bytes: len })?;
        let lines_needed = len_usize.div_ceil(size_of::<Line>());
        let mut lines = Vec::new();
        lines.try_reserve_exact(lines_needed).map_err(no_scratch)?;
        lines.resize(lines_needed, Line::zeroed());
        let mut memory = Self::holding(lines);
        memory.shared.span.len = len_usize;
        Ok(memory)
    }

    /// Makes memory of the elements of an application's container. The elements stay in place.
    pub fn holding<T: Pod + Send + Sync, S: Storage<T>>(container: S) -> Self {
        Self::of(Arc::new(Owned::new(container)))
    }

    /// Makes memory of the elements of a container that core keeps for the application.
    pub(crate) fn of<T: Pod + Send + Sync, S: Storage<T>>(owned: Arc<Owned<T, S>>) -> Self {
        let len = owned.len * size_of::<T>();
        // SAFETY: the container owns `len` initialised bytes there and does not move them while `owned` lives
        // (contract of `Storage`) (1). No other code reaches a container that an `Owned` holds (2). Only the
        // two callers call this, each with a new `Owned` (3).
        let memory = unsafe { Self::new(owned.ptr.cast(), len, owned) }.tracked_by(&Tracker::new(len));
        Self { is_of_block: false, ..memory }
    }

    /// Replaces the tracker. In a model, every access is checked against all other accesses of the same
    /// tracker.
    #[must_use]
    pub fn tracked_by(mut self, tracker: &Tracker) -> Self {
        self.shared.span.tracker = tracker.clone();
        self
    }

    /// Returns the location of the memory.
    #[must_use]
    pub fn span(&self) -> &HostSpan {
        &self.shared.span
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shared.span.len()
    }

    /// Returns whether the memory is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.span.is_empty()
    }

    /// Returns whether part of the memory is still lent. An arena that ends a mapping checks this first.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.shared.loan.is_out()
    }

    /// Returns the bytes of memory that the caller made itself.
    ///
    /// # Panics
    /// While part of the memory is lent, or if the memory belongs to a block.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.expect_own();
        self.seen()
    }

    /// Returns the bytes of memory that the caller made itself, for changing.
    ///
    /// # Panics
    /// As [`bytes`](Self::bytes).
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.expect_own();
        self.seen_mut()
    }

    pub(crate) fn expect_own(&self) {
        assert!(!self.is_of_block, "{self:?} belongs to a block, so only core may access it");
        assert!(!self.is_lent(), "{self:?} is lent");
    }

    /// Returns the bytes, of which no part may be lent.
    pub(crate) fn seen(&self) -> &[u8] {
        assert!(!self.is_lent(), "{self:?} is lent");
        // SAFETY: live and initialised (contract of `new`). `self` is the only access: no part is lent, and
        // every other access that core derives counts as a loan. No code writes while `self` is borrowed.
        unsafe { self.shared.span.as_slice() }.unwrap_or_default()
    }

    /// Returns the bytes for changing, as [`seen`](Self::seen).
    pub(crate) fn seen_mut(&mut self) -> &mut [u8] {
        assert!(!self.is_lent(), "{self:?} is lent");
        // SAFETY: as in `seen`, borrowed exclusively.
        unsafe { self.shared.span.as_mut_slice() }.unwrap_or_default()
    }

    /// Lends a part of the caller's own memory for a transfer out of it. The memory cannot be viewed until
    /// the loan is back.
    ///
    /// # Panics
    /// If the memory is too short, or part of it is already lent, or it belongs to a block.
    #[must_use]
    pub fn source(&self, part: Span) -> HostSource {
        self.expect_own();
        HostSource(self.shared.lend(part, &Loan::default()))
    }

    /// Lends a part of the caller's own memory for a transfer into it. The memory cannot be viewed until the
    /// loan is back.
    ///
    /// # Panics
    /// As [`source`](Self::source).
    #[must_use]
    pub fn target(&mut self, part: Span) -> HostTarget {
        self.expect_own();
        HostTarget(self.shared.lend(part, &Loan::default()))
    }

    /// Returns whether the memory may be accepted for `block`: it belongs to this block, or to no block.
    pub(crate) fn is_for<T: ?Sized>(&self, block: &Arc<T>) -> bool {
        !self.is_of_block || self.is_kept_by(block)
    }

    /// Returns whether `owner` keeps the memory alive.
    pub(crate) fn is_kept_by<T: ?Sized>(&self, owner: &Arc<T>) -> bool {
        Arc::as_ptr(&self.shared.owner).addr() == Arc::as_ptr(owner).addr()
    }

    /// Runs `act` without the memory's own reference to the block. The caller's reference keeps the block
    /// alive meanwhile.
    pub(crate) fn without_share<R>(
        &mut self,
        block: &mut BlockRef,
        act: impl FnOnce(&mut BlockRef) -> R,
    ) -> R {
        let share = std::mem::replace(&mut self.shared.owner, Arc::new(()));
        drop(share);
        let result = act(block);
        self.shared.owner = block.clone();
        result
    }

    /// Converts the memory into a shared handle, from which core derives access.
    pub(crate) fn into_shared(self) -> Shared {
        self.shared
    }

    /// Returns a shared handle, from which core derives access.
    pub(crate) fn share(&self) -> Shared {
        self.shared.clone()
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({:p}, {} bytes)", self.shared.span.ptr, self.shared.span.len)
    }
}

/// A shared handle of host memory, which keeps it alive. Only grants and scheduled copies access bytes
/// through it.
#[derive(Clone)]
pub(crate) struct Shared {
    span: HostSpan,
    owner: Owner,
    /// The loan that is out while any part of the memory is lent.
    loan: Loan,
}

impl Shared {
    pub(crate) fn len(&self) -> u64 {
        self.span.len()
    }

    pub(crate) fn span(&self) -> &HostSpan {
        &self.span
    }

    /// Returns the reference that keeps the memory alive.
    pub(crate) fn owner(&self) -> Owner {
        self.owner.clone()
    }

    /// Lends a part. It is out until both its loan of the memory and its loan of the transfer have ended.
    fn lend(&self, part: Span, transfer: &Loan) -> LentPart {
        LentPart { part: Self { span: self.span.slice(part), ..self.clone() }, transfer: transfer.clone() }
    }

    /// Lends a part for a scheduled copy out of the memory.
    pub(crate) fn source(&self, part: Span, transfer: &Loan) -> HostSource {
        HostSource(self.lend(part, transfer))
    }

    /// Lends a part for a scheduled copy into the memory.
    pub(crate) fn target(&self, part: Span, transfer: &Loan) -> HostTarget {
        HostTarget(self.lend(part, transfer))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.span.fmt(f)
    }
}

/// A loan, which ends when its last clone is dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loan(Arc<Option<Loan>>);

impl Loan {
    /// Returns a new loan that keeps this one out for as long as it lives.
    pub(crate) fn part(&self) -> Self {
        Self(Arc::new(Some(self.clone())))
    }

    /// Returns whether the loan is still out. If `false`, everything that its holders did before dropping it
    /// has happened before.
    pub(crate) fn is_out(&self) -> bool {
        let is_out = Arc::strong_count(&self.0) > 1;
        if !is_out {
            // The count is read without ordering, while dropping a reference releases. The fence completes
            // the pair.
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        }
        is_out
    }
}

/// A lent part of host memory.
struct LentPart {
    part: Shared,
    transfer: Loan,
}

impl LentPart {
    fn split_at(self, at: u64) -> (Self, Self) {
        let (first, second) = (Span::new(0, at), Span::new(at, self.part.len()));
        let part = |span| Self {
            part: Shared { span: self.part.span.slice(span), ..self.part.clone() },
            transfer: self.transfer.clone(),
        };
        (part(first), part(second))
    }

    fn checked(&self, at: u64, bytes: usize) -> HostSpan {
        let end = at.saturating_add(bytes as u64);
        assert!(end <= self.part.len(), "bytes {at}..{end} of {} lent", self.part.len());
        self.part.span.slice(Span::new(at, end))
    }
}

/// Host memory lent for a transfer out of it. No code writes the memory until this is dropped.
///
/// Dropping it declares that the transfer does not read the memory any more. It must be dropped before the
/// transfer's fence ends; otherwise core wedges the buffer.
pub struct HostSource(LentPart);

impl HostSource {
    /// Returns the same loan, as part of the loan `transfer`.
    pub(crate) fn with(self, transfer: &Loan) -> Self {
        Self(LentPart { transfer: transfer.clone(), ..self.0 })
    }

    /// Returns the location of the memory. Unsafe code may read there while it holds this value.
    #[must_use]
    pub fn span(&self) -> &HostSpan {
        &self.0.part.span
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.part.len()
    }

    /// Returns whether the memory is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes that start at `at` into `to`.
    ///
    /// # Panics
    /// When fewer than `to.len()` bytes follow `at`.
    pub fn read(&self, at: u64, to: &mut [u8]) {
        let from = self.0.checked(at, to.len());
        from.note_read();
        // SAFETY: the source is lent, so live and not written; `checked` has compared the lengths, and `to`
        // is the caller's exclusively.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) }
    }

    /// Splits the memory into the first `at` bytes and the rest.
    ///
    /// # Panics
    /// When the memory has fewer than `at` bytes.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        let (first, second) = self.0.split_at(at);
        (Self(first), Self(second))
    }
}

impl fmt::Debug for HostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostSource({:?})", self.span())
    }
}

/// Host memory lent for a transfer into it. No other code touches the memory until this is dropped.
///
/// As with [`HostSource`], dropping it declares that the transfer does not use the memory any more.
pub struct HostTarget(LentPart);

impl HostTarget {
    /// Returns the same loan, as part of the loan `transfer`.
    pub(crate) fn with(self, transfer: &Loan) -> Self {
        Self(LentPart { transfer: transfer.clone(), ..self.0 })
    }

    /// Returns the location of the memory. Unsafe code may write there while it holds this value.
    #[must_use]
    pub fn span(&self) -> &HostSpan {
        &self.0.part.span
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.part.len()
    }

    /// Returns whether the memory is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `from` to the bytes that start at `at`.
    ///
    /// # Panics
    /// When `from` reaches past the end of the memory.
    pub fn write(&mut self, at: u64, from: &[u8]) {
        let to = self.0.checked(at, from.len());
        to.note_write();
        // SAFETY: the target is lent for writing, so live and not touched by other code; `checked` has
        // compared the lengths.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) }
    }

    /// Splits the memory into the first `at` bytes and the rest.
    ///
    /// # Panics
    /// When the memory has fewer than `at` bytes.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        let (first, second) = self.0.split_at(at);
        (Self(first), Self(second))
    }

    /// Copies all bytes of `from` to the start of this memory, by the processor.
    ///
    /// # Panics
    /// When `from` is longer than this memory.
    pub fn copy_from(&mut self, from: &HostSource) {
        let to = self.0.checked(0, from.0.part.span.len);
        from.span().note_read();
        to.note_write();
        // SAFETY: both are lent, so live; no code writes the source and no other code touches the target.
        // `copy` would also allow an overlap, but there is none.
        unsafe { std::ptr::copy(from.span().as_ptr(), to.as_ptr(), to.len) }
    }
}

impl fmt::Debug for HostTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostTarget({:?})", self.span())
    }
}

/// A block as grants hold it, and its memory if the native device of its arena is the host.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) block: BlockRef,
    pub(crate) host: Option<Shared>,
}

/// The storage of a grant, whose bytes it lends to its holder as slices if they are host memory.
///
/// Only a grant makes a lease, for bytes that the machine has granted, and the lease lives no longer than the
/// grant. It lends shared slices through `&self` and mutable ones through `&mut self`, so Rust's rules keep
/// the views of one lease apart. The machine keeps the views of different grants apart (I-1).
#[derive(Debug)]
pub(crate) struct Lease {
    viewed: Viewed,
    stored: Arc<Stored>,
}

/// The bytes that have been viewed, in models. They end as such when this is dropped.
#[derive(Debug, Default)]
struct Viewed(Lent<HostSpan>);

impl Lease {
    /// Creates a lease of storage that must be granted to the caller for as long as the lease lives. Shared
    /// slices may be taken of bytes granted for reading or writing, mutable slices only of bytes granted for
    /// writing.
    #[inline]
    pub(crate) fn new(stored: Arc<Stored>) -> Self {
        Self { viewed: Viewed::default(), stored }
    }

    /// Returns another lease of the same storage. The caller must not write bytes that it also takes from
    /// this lease.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.stored.clone())
    }

    /// Ends the lease, and returns what it was made of.
    #[inline]
    pub(crate) fn into_stored(self) -> Arc<Stored> {
        let Self { viewed, stored } = self;
        drop(viewed);
        stored
    }

    pub(crate) fn block(&self) -> &BlockRef {
        &self.stored.block
    }

    pub(crate) fn is_host(&self) -> bool {
        self.stored.host.is_some()
    }

    /// Lends a part of host memory for a scheduled copy into it, which must be granted for writing.
    pub(crate) fn target(&self, part: Span, transfer: &Loan) -> Option<HostTarget> {
        self.stored.host.as_ref().map(|memory| memory.target(part, transfer))
    }

    /// Returns bytes of host memory as values of `T`; `None` if the storage is not host memory.
    pub(crate) fn slice<T: Pod>(&self, span: Span) -> Option<Result<&[T], CastError>> {
        let memory = self.stored.host.as_ref()?;
        self.viewed.0.add(|| memory.span.slice(span));
        // SAFETY: kept alive by the lease, initialised (contract of `HostMemory::new`), and granted to the
        // holder of this lease (contract of `new`), so no other code writes them (I-1, I-4), and the holder
        // cannot while `self` is borrowed.
        Some(unsafe { memory.span.slice(span).as_slice() })
    }

    /// As [`slice`](Self::slice), for changing.
    pub(crate) fn slice_mut<T: Pod>(&mut self, span: Span) -> Option<Result<&mut [T], CastError>> {
        let memory = self.stored.host.as_ref()?;
        self.viewed.0.add(|| memory.span.slice(span));
        // SAFETY: as above, and granted to the holder of this lease for writing (contract of `new`), so no
        // other code touches them (I-1), and the holder cannot while `self` is borrowed.
        Some(unsafe { memory.span.slice(span).as_mut_slice() })
    }
}

impl Drop for Viewed {
    fn drop(&mut self) {
        // A writing view may have become a reading one by a downgrade, so only a read is certain at its end.
        self.0.end(HostSpan::note_read);
    }
}

/// The reason why bytes cannot be viewed as values of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CastError {
    Size { bytes: usize, element_bytes: usize },
    Alignment { element_align: usize },
}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for Vec<T> {}
    impl<T> Sealed for Box<[T]> {}
}

/// A container whose elements keep their address when it is moved: `Vec<T>`, `Box<[T]>`,
/// [`Foreign`](crate::Foreign).
///
/// # Safety
/// 1. `parts` returns the address and number of live, initialised elements, exclusively owned by the
///    container.
/// 2. Moving the container does not move the elements.
pub unsafe trait Storage<T: Pod>: sealed::Sealed + fmt::Debug + Send + Sync + Sized + 'static {
    /// Returns the address and the number of the elements.
    fn parts(&mut self) -> (NonNull<T>, usize);

    /// Creates a container of these elements.
    fn of(elements: Vec<T>) -> Self;
}

// SAFETY: a vector owns its elements in a heap allocation that does not move with the vector.
unsafe impl<T: Pod + fmt::Debug + Send + Sync> Storage<T> for Vec<T> {
    fn parts(&mut self) -> (NonNull<T>, usize) {
        let len = self.len();
        (NonNull::from(self.as_mut_slice()).cast(), len)
    }

    fn of(elements: Vec<T>) -> Self {
        elements
    }
}

// SAFETY: a boxed slice owns its elements in a heap allocation that does not move with the box.
unsafe impl<T: Pod + fmt::Debug + Send + Sync> Storage<T> for Box<[T]> {
    fn parts(&mut self) -> (NonNull<T>, usize) {
        let len = self.len();
        (NonNull::from(&mut **self).cast(), len)
    }

    fn of(elements: Vec<T>) -> Self {
        elements.into_boxed_slice()
    }
}

/// An application's container that core keeps until the buffer closes.
pub(crate) struct Owned<T: Pod, S: Storage<T>> {
    container: std::mem::ManuallyDrop<S>,
    ptr: NonNull<T>,
    len: usize,
    _element: PhantomData<T>,
}

// SAFETY: it owns the container, which is Send and Sync; the address is only that of the container's
// elements.
unsafe impl<T: Pod, S: Storage<T>> Send for Owned<T, S> {}

// SAFETY: as above.
unsafe impl<T: Pod, S: Storage<T>> Sync for Owned<T, S> {}

impl<T: Pod, S: Storage<T>> Owned<T, S> {
    /// Takes ownership of the container.
    pub(crate) fn new(mut container: S) -> Self {
        let (ptr, len) = container.parts();
        Self { container: std::mem::ManuallyDrop::new(container), ptr, len, _element: PhantomData }
    }

    /// Returns the container, or a copy if other references exist, such as a kept block or a leaked view. The
    /// caller guarantees that no code writes through those references: all grants and loans have ended.
    pub(crate) fn take_back(this: Arc<Self>) -> S {
        Arc::try_unwrap(this).map_or_else(|shared| shared.copied(), Self::into_inner)
    }

    /// Returns a container with a copy of the elements.
    fn copied(&self) -> S {
        // SAFETY: live and initialised (contract of `Storage`). No code writes them (guaranteed by the only
        // caller): storage under a block is touched only for requests of core (contract of `Arena`), and
        // leaked views are out of reach.
        S::of(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }.to_vec())
    }

    /// Returns the container.
    fn into_inner(self) -> S {
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the container is taken exactly once.
        unsafe { std::mem::ManuallyDrop::take(&mut this.container) }
    }
}

impl<T: Pod, S: Storage<T>> Drop for Owned<T, S> {
    fn drop(&mut self) {
        // SAFETY: dropped once, here; `into_inner` forgets `self` before it could get here.
        unsafe { std::mem::ManuallyDrop::drop(&mut self.container) }
    }
}

impl<T: Pod, S: Storage<T>> fmt::Debug for Owned<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owned({} x {} bytes)", self.len, size_of::<T>())
    }
}

#[cfg(test)]
mod tests;
