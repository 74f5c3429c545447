//! Views of granted bytes as slices.

use crate::base::access::Claim;
use crate::base::range::Span;
use crate::buffer::error::{AcquireError, ViewError};
use crate::buffer::lock::BufferInner;
use crate::memory::host::Lease;
use crate::request::grant::{Mark, Marks, cast_error};
use crate::request::grants::Grants;
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// One item of [`Grants`], viewed as slices.
#[derive(Debug)]
pub struct View<'a> {
    buffer: &'a BufferInner,
    claim: Claim,
    lease: Option<Lease>,
    /// The marks of the grant.
    marks: &'a Marks,
    _grants: PhantomData<&'a mut Grants>,
}

impl<'a> View<'a> {
    pub(super) fn new(buffer: &'a BufferInner, claim: Claim, lease: Option<Lease>, marks: &'a Marks) -> Self {
        Self { buffer, claim, lease, marks, _grants: PhantomData }
    }

    /// Returns the bytes of the buffer that the view shows.
    #[must_use]
    pub fn span(&self) -> Span {
        self.claim.span
    }

    /// Returns whether the item was requested for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.claim.access.writes()
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// [`ViewError::Size`], [`ViewError::Alignment`].
    pub fn slice<T: Pod>(&self) -> Result<&[T], ViewError> {
        let slice = self.lease.as_ref().filter(|_| !self.span().is_empty());
        match slice.and_then(|lease| lease.slice(self.span())) {
            Some(slice) => slice.map_err(|error| cast_error(self.buffer.name(), self.span(), error)),
            None => Ok(&[]),
        }
    }

    /// Returns the elements for changing.
    ///
    /// # Errors
    /// [`ViewError::NotWritable`] for an item that was requested for reading, [`ViewError::Size`],
    /// [`ViewError::Alignment`].
    pub fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], ViewError> {
        let (buffer, span) = (self.buffer, self.claim.span);
        if !self.is_writable() {
            return Err(ViewError::NotWritable { buffer: buffer.name(), span });
        }
        let Some(lease) = self.lease.as_mut().filter(|_| !span.is_empty()) else { return Ok(&mut []) };
        self.marks.set(Mark::Written);
        match lease.slice_mut(span) {
            Some(slice) => slice.map_err(|error| cast_error(buffer.name(), span, error)),
            None => Ok(&mut []),
        }
    }
}

/// The latest contents of a buffer, as a slice on the host.
///
/// # Examples
/// ```
/// # use dml_core::{AcquireError, Buffer};
/// # fn example(buffer: &Buffer<f32>) -> Result<(), AcquireError> {
/// let values = buffer.read()?; // waits for the latest contents
/// let sum: f32 = values.iter().sum();
/// drop(values); // ends access, so that this thread can change the buffer
///
/// let mut values = buffer.read_write()?; // a `WriteView`
/// values[0] = sum;
/// values.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ReadView<T: Pod> {
    /// One grant, of the whole buffer.
    grants: Grants,
    _element: PhantomData<fn() -> T>,
}

impl<T: Pod> ReadView<T> {
    /// Checks once that the contents can be viewed, so that later views cannot fail.
    pub(crate) fn new(grants: Grants) -> Result<Self, AcquireError> {
        visible::<T>(&grants)?;
        Ok(Self { grants, _element: PhantomData })
    }

    pub(crate) fn into_grants(self) -> Grants {
        self.grants
    }
}

/// Checks that a whole buffer can be viewed as elements. Its arena belongs to the host, so its storage can at
/// most be misaligned for `T`. [`Buffer`](crate::Buffer) rules that out when it is built.
fn visible<T: Pod>(grants: &Grants) -> Result<(), AcquireError> {
    let seen = grants.only().slice::<T>(whole(grants)).map(|_| ());
    seen.map_err(|cause| AcquireError::View { buffer: grants.only().buffer.name(), cause })
}

/// Returns the bytes of the only buffer.
fn whole(grants: &Grants) -> Span {
    Span::new(0, grants.only().buffer.len)
}

impl<T: Pod> Deref for ReadView<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.grants.only().slice(whole(&self.grants)).expect("checked when the view was made")
    }
}

/// The contents of a buffer on the host, to be changed and then [committed](Self::release).
///
/// A drop without release leaves the buffer unchanged if nothing was changed through the view, and poisoned
/// otherwise.
#[derive(Debug)]
#[must_use = "dropping it rolls back: nothing is committed without release()"]
pub struct WriteView<T: Pod> {
    /// One grant, of the whole buffer.
    grants: Grants,
    _element: PhantomData<fn() -> T>,
}

impl<T: Pod> WriteView<T> {
    pub(crate) fn new(grants: Grants) -> Result<Self, AcquireError> {
        visible::<T>(&grants)?;
        Ok(Self { grants, _element: PhantomData })
    }

    /// Ends access and commits what was written.
    ///
    /// # Errors
    /// As [`Grants::release`].
    pub fn release(self) -> Result<(), AcquireError> {
        self.grants.release()
    }
}

impl<T: Pod> Deref for WriteView<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.grants.only().slice(whole(&self.grants)).expect("checked when the view was made")
    }
}

impl<T: Pod> DerefMut for WriteView<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let whole = whole(&self.grants);
        self.grants.only_mut().slice_mut(whole).expect("checked when the view was made")
    }
}
