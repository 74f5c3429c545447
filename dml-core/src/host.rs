//! Host memory, borrowed and owned: the one module of this crate with unsafe code.
//!
//! What makes it sound: a [`HostSpan`] is made only by an arena that promises the memory is live and that nobody but
//! holders of grants (and copies the machine has scheduled) touches it; the abstract machine then guarantees that a
//! writer is alone on its bytes (I-1, I-3, I-9) and that a reader's bytes stay constant (I-4). Typed views are handed
//! out only by grants.

#![allow(unsafe_code)]

use crate::error::TransferError;
use crate::range::Span;
use crate::sync::{Arc, Lent, Tracker};
use bytemuck::Pod;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A stretch of host memory that someone else keeps alive.
///
/// Whoever makes one promises that it stays live until its last use; whoever uses one for a transfer is the engine,
/// which holds the block it belongs to until the transfer's fence was waited for.
#[derive(Clone)]
pub struct HostSpan {
    ptr: NonNull<u8>,
    len: usize,
    /// Scratch memory is owned by its spans; everything else by its block.
    _scratch: Option<Arc<Scratch>>,
    /// In a model, who touches the bytes.
    tracker: Tracker,
}

// SAFETY: a span is an address and a length. Reading and writing through it is governed by the machine's grants and
// scheduled copies (I-1, I-3, I-4, I-9), not by which thread holds the address.
unsafe impl Send for HostSpan {}
// SAFETY: as above; no method of `&HostSpan` touches the memory except `copy_from`, which the engine calls only for
// copies the machine has scheduled.
unsafe impl Sync for HostSpan {}

struct Scratch(Box<[std::cell::UnsafeCell<u8>]>);

// SAFETY: only one copy at a time uses a scratch area: it is made for that copy and shared with nobody.
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

impl HostSpan {
    /// Names `len` bytes at `ptr`.
    ///
    /// # Safety
    /// 1. `ptr` is valid for reads and writes of `len` initialised bytes for as long as the block that returns this
    ///    span, or the mapping it was returned for, lives.
    /// 2. Nobody reads or writes these bytes except through spans and views that core hands out.
    #[must_use]
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len, _scratch: None, tracker: Tracker::default() }
    }

    /// The same bytes, tracked: in a model, every access through the span and its clones and parts is checked against
    /// all others of the same tracker. Whoever makes storage for a model calls it once, before the span is cloned.
    #[must_use]
    pub fn tracked_by(self, tracker: &Tracker) -> Self {
        Self { tracker: tracker.clone(), ..self }
    }

    /// Says that all bytes are about to be read by other means than a view, for models.
    pub fn note_read(&self) {
        self.tracker.read(self.len);
    }

    /// Says that all bytes are about to be written by other means than a view, for models.
    pub fn note_write(&self) {
        self.tracker.write(self.len);
    }

    /// Fresh zeroed memory, freed with its last span.
    ///
    /// # Errors
    /// [`TransferError::NoScratch`] where the host has no `len` bytes left.
    pub fn scratch(len: u64) -> Result<Self, TransferError> {
        let no_scratch = |_| TransferError::NoScratch { bytes: len };
        let len_usize = usize::try_from(len).map_err(|_| TransferError::NoScratch { bytes: len })?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len_usize).map_err(no_scratch)?;
        bytes.resize_with(len_usize, || std::cell::UnsafeCell::new(0));
        let owner = Arc::new(Scratch(bytes.into_boxed_slice()));
        // An `UnsafeCell<u8>` has the layout of a `u8` and lets its content change behind a shared reference.
        let ptr = NonNull::from(&*owner.0).cast();
        Ok(Self { ptr, len: len_usize, _scratch: Some(owner), tracker: Tracker::new(len_usize) })
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte. Dereferencing it is up to the caller's own unsafe code.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The part of it that `span` names, counted from its start.
    ///
    /// # Panics
    /// When `span` reaches past its end.
    #[must_use]
    pub fn slice(&self, span: Span) -> Self {
        assert!(span.end() <= self.len(), "span {span} of host memory of {} bytes", self.len);
        // SAFETY: the offset is within the allocation, as just checked.
        let ptr = unsafe { self.ptr.add(span.start() as usize) };
        let tracker = self.tracker.part(span.start() as usize);
        Self { ptr, len: span.len() as usize, _scratch: self._scratch.clone(), tracker }
    }

    /// Copies all bytes of `from` to the start of this span.
    ///
    /// Only the engine's scheduled copies call this, through [`CopyJob::memcpy`](crate::CopyJob::memcpy).
    pub(crate) fn copy_from(&self, from: &Self) {
        assert!(from.len <= self.len, "copy of {} bytes into {}", from.len, self.len);
        from.note_read();
        self.tracker.write(from.len);
        // SAFETY: both are live for their lengths (contract of `from_raw`); the machine scheduled this copy, so nobody
        // writes the source and nobody touches the destination's bytes (I-3, I-9). `copy` allows an overlap.
        unsafe { std::ptr::copy(from.ptr.as_ptr(), self.ptr.as_ptr(), from.len) }
    }

    /// The bytes as values of `T`.
    ///
    /// # Safety
    /// For the lifetime chosen, nobody writes these bytes.
    unsafe fn as_slice<'a, T: Pod>(&self) -> Result<&'a [T], CastError> {
        let count = self.cast_len::<T>()?;
        if count == 0 {
            return Ok(&[]);
        }
        self.note_read();
        // SAFETY: the span is live and initialised (contract of `from_raw`), aligned for T and long enough (cast_len),
        // and not written meanwhile (this function's contract); T is Pod.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.cast::<T>().as_ptr(), count) })
    }

    /// The bytes as changeable values of `T`.
    ///
    /// # Safety
    /// For the lifetime chosen, nobody else reads or writes these bytes.
    unsafe fn as_mut_slice<'a, T: Pod>(&self) -> Result<&'a mut [T], CastError> {
        let count = self.cast_len::<T>()?;
        if count == 0 {
            return Ok(&mut []);
        }
        self.note_write();
        // SAFETY: as in `as_slice`, and alone on the bytes (this function's contract).
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

/// Host bytes that a grant lends out: the bridge from a grant to slices.
///
/// A lease is made only by a grant, for bytes the machine has granted to it, and lives no longer than the grant. Its
/// bytes are lent as shared slices through `&self` and as changeable ones through `&mut self`, so Rust's own rules keep
/// the views of one lease apart; the machine keeps those of different grants apart (I-1).
#[derive(Debug)]
pub(crate) struct Lease {
    span: HostSpan,
    /// In a model, the bytes of which there are views.
    lent: Lent<HostSpan>,
}

impl Lease {
    /// A lease of `span`, which must be granted to the caller for as long as the lease lives: shared slices may be
    /// taken of bytes granted for reading or writing, changeable ones only of bytes granted for writing.
    pub(crate) fn new(span: HostSpan) -> Self {
        Self { span, lent: Lent::default() }
    }

    pub(crate) fn slice<T: Pod>(&self, span: Span) -> Result<&[T], CastError> {
        self.lent.add(|| self.span.slice(span));
        // SAFETY: the bytes are granted to the holder of this lease (contract of `new`), so nobody else writes them
        // (I-1, I-4), and the holder cannot while `self` is borrowed.
        unsafe { self.span.slice(span).as_slice() }
    }

    pub(crate) fn slice_mut<T: Pod>(&mut self, span: Span) -> Result<&mut [T], CastError> {
        self.lent.add(|| self.span.slice(span));
        // SAFETY: the bytes are granted to the holder of this lease for writing (contract of `new`), so nobody else
        // touches them (I-1), and the holder cannot while `self` is borrowed.
        unsafe { self.span.slice(span).as_mut_slice() }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A view for writing may have become one for reading (downgrade), so that is all that is known of its end.
        self.lent.end(HostSpan::note_read);
    }
}

/// Why bytes cannot be seen as values of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CastError {
    Size { bytes: usize, element_bytes: usize },
    Alignment { element_align: usize },
}

/// Host storage of an application, moved into a buffer and given back: `Vec<T>`, `Box<[T]>`.
///
/// Sealed by its constructor: [`Owned::new`] is the only implementation, so that the address is known to be stable.
pub trait HostOwner: Any + Send + Sync + fmt::Debug {
    /// The storage as a span, live as long as this owner.
    fn span(&self) -> HostSpan;

    /// The alignment the storage is known to have, in bytes.
    fn align(&self) -> u64;

    /// As [`Any`], to get the concrete owner back.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for Vec<T> {}
    impl<T> Sealed for Box<[T]> {}
}

/// A container whose elements stay at one address while it is moved.
///
/// # Safety
/// 1. `parts` returns the address and number of live, initialised elements, exclusively owned by the container.
/// 2. Moving the container does not move the elements.
pub unsafe trait Storage<T: Pod>: sealed::Sealed + fmt::Debug + Send + Sync + 'static {
    /// Address and number of the elements.
    fn parts(&mut self) -> (NonNull<T>, usize);
}

// SAFETY: a vector owns its elements in a heap allocation that does not move with the vector.
unsafe impl<T: Pod + fmt::Debug + Send + Sync> Storage<T> for Vec<T> {
    fn parts(&mut self) -> (NonNull<T>, usize) {
        let len = self.len();
        (NonNull::from(self.as_mut_slice()).cast(), len)
    }
}

// SAFETY: a boxed slice owns its elements in a heap allocation that does not move with the box.
unsafe impl<T: Pod + fmt::Debug + Send + Sync> Storage<T> for Box<[T]> {
    fn parts(&mut self) -> (NonNull<T>, usize) {
        let len = self.len();
        (NonNull::from(&mut **self).cast(), len)
    }
}

/// An application's container, owned by a buffer for a while.
pub struct Owned<T: Pod, S: Storage<T>> {
    container: std::mem::ManuallyDrop<S>,
    ptr: NonNull<T>,
    len: usize,
    _element: PhantomData<T>,
}

// SAFETY: it owns the container, which is Send and Sync; the address is only that of the container's elements.
unsafe impl<T: Pod, S: Storage<T>> Send for Owned<T, S> {}
// SAFETY: as above.
unsafe impl<T: Pod, S: Storage<T>> Sync for Owned<T, S> {}

impl<T: Pod, S: Storage<T>> Owned<T, S> {
    /// Takes the container over.
    #[must_use]
    pub fn new(mut container: S) -> Self {
        let (ptr, len) = container.parts();
        Self { container: std::mem::ManuallyDrop::new(container), ptr, len, _element: PhantomData }
    }

    /// Gives the container back.
    #[must_use]
    pub fn into_inner(self) -> S {
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

impl<T: Pod + Send + Sync, S: Storage<T>> HostOwner for Owned<T, S> {
    fn span(&self) -> HostSpan {
        // SAFETY: the container owns `len` initialised elements at `ptr` and does not move them (contract of
        // `Storage`); it is reachable only through this owner, which hands out nothing else.
        unsafe { HostSpan::from_raw(self.ptr.cast(), self.len * size_of::<T>()) }
    }

    fn align(&self) -> u64 {
        align_of::<T>() as u64
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i24_external_storage_comes_back_as_it_was() {
        let data: Vec<u32> = (0..100).map(|i| i * 7 + 1).collect();
        let address = data.as_ptr();
        let owner = Owned::new(data);
        assert_eq!(owner.span().len(), 400);
        let back = owner.into_inner();
        assert_eq!(back.as_ptr(), address);
        assert_eq!(back[99], 694);
        let boxed = Owned::new(back.into_boxed_slice());
        assert_eq!(boxed.into_inner().len(), 100);
    }

    #[test]
    fn scratch_copies_and_slices() {
        let from = HostSpan::scratch(16).unwrap();
        let to = HostSpan::scratch(16).unwrap();
        // SAFETY: the scratch is this test's alone.
        unsafe { from.as_mut_slice::<u8>().unwrap() }
            .copy_from_slice(&std::array::from_fn::<u8, 16, _>(|i| i as u8));
        to.slice(Span::new(4, 8)).copy_from(&from.slice(Span::new(8, 12)));
        // SAFETY: as above.
        let bytes = unsafe { to.as_slice::<u8>().unwrap() };
        assert_eq!(bytes, [0, 0, 0, 0, 8, 9, 10, 11, 0, 0, 0, 0, 0, 0, 0, 0]);
        // SAFETY: as above.
        let misaligned = unsafe { from.slice(Span::new(1, 9)).as_slice::<u32>() };
        assert_eq!(misaligned.unwrap_err(), CastError::Alignment { element_align: 4 });
        // SAFETY: as above.
        let ragged = unsafe { from.slice(Span::new(0, 7)).as_slice::<u32>() };
        assert_eq!(ragged.unwrap_err(), CastError::Size { bytes: 7, element_bytes: 4 });
    }
}
