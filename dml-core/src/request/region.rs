//! Buffers and parts of them, as arguments of an acquire.

use crate::buffer::RawBuffer;
use crate::buffer::error::{AcquireError, ViewError};
use crate::request::typed::Buffer;
use bytemuck::Pod;
use std::fmt;
use std::ops::Range;

/// A buffer, or a part of one, that an acquire can name.
///
/// # What a region may do
/// - **R-1** It may return different values each time. A call uses the buffer that it returns first, and
///   checks its bytes against the granted ones. (`hostile` `a_region_is_asked_once_for_its_buffer`)
/// - **R-2** It may panic, which affects only its caller, and it may call back into core. (`hostile`
///   `a_region_may_panic_and_call_back`)
pub trait Region {
    /// Returns the buffer.
    fn buffer(&self) -> &RawBuffer;

    /// Returns the range of bytes. The acquire checks it.
    fn bytes(&self) -> Range<u64>;
}

impl Region for RawBuffer {
    fn buffer(&self) -> &RawBuffer {
        self
    }

    fn bytes(&self) -> Range<u64> {
        0..self.len()
    }
}

impl<T: Pod> Region for Buffer<T> {
    fn buffer(&self) -> &RawBuffer {
        self.raw()
    }

    fn bytes(&self) -> Range<u64> {
        0..self.raw().len()
    }
}

/// A range of bytes of a buffer.
#[derive(Clone, Debug)]
pub struct RawRange {
    buffer: RawBuffer,
    bytes: Range<u64>,
}

impl RawRange {
    pub(crate) fn new(buffer: RawBuffer, bytes: Range<u64>) -> Self {
        Self { buffer, bytes }
    }
}

impl Region for RawRange {
    fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    fn bytes(&self) -> Range<u64> {
        self.bytes.clone()
    }
}

/// A range of elements of a buffer.
pub struct RangeOf<T: Pod> {
    buffer: Buffer<T>,
    elements: Range<u64>,
}

impl<T: Pod> RangeOf<T> {
    pub(crate) fn new(buffer: Buffer<T>, elements: Range<u64>) -> Self {
        Self { buffer, elements }
    }

    /// Returns the range of elements.
    #[must_use]
    pub fn elements(&self) -> Range<u64> {
        self.elements.clone()
    }

    /// Overwrites the range with these elements.
    ///
    /// # Errors
    /// As [`Buffer::store`], and [`AcquireError::OutOfRange`] for a range outside the buffer.
    #[track_caller]
    pub fn store(&self, elements: &[T]) -> Result<(), AcquireError> {
        self.expect_len(elements)?;
        let mut grants = self.buffer.host_acquire()?.write(self).wait()?;
        let viewed = grants.slice_mut(self).map(|granted| granted.copy_from_slice(elements));
        viewed.map_err(|cause| self.viewed(cause))?;
        grants.release()
    }

    /// Waits for the latest contents of the range and copies them into a slice.
    ///
    /// # Errors
    /// As [`Buffer::load_into`], and [`AcquireError::OutOfRange`] for a range outside the buffer.
    #[track_caller]
    pub fn load_into(&self, elements: &mut [T]) -> Result<(), AcquireError> {
        self.expect_len(elements)?;
        let grants = self.buffer.host_acquire()?.read(self).wait()?;
        let viewed = grants.slice(self).map(|granted| elements.copy_from_slice(granted));
        viewed.map_err(|cause| self.viewed(cause))
    }

    fn viewed(&self, cause: ViewError) -> AcquireError {
        AcquireError::View { buffer: self.buffer.raw().name(), cause }
    }

    /// Returns an error if a slice has another length than the range.
    fn expect_len(&self, elements: &[T]) -> Result<(), AcquireError> {
        let span = self.buffer.raw().span(&self.bytes())?;
        let given_bytes = size_of_val(elements) as u64;
        if given_bytes == span.len() {
            return Ok(());
        }
        Err(self.viewed(ViewError::Length { buffer: self.buffer.raw().name(), span, given_bytes }))
    }
}

impl<T: Pod> Region for RangeOf<T> {
    fn buffer(&self) -> &RawBuffer {
        self.buffer.raw()
    }

    fn bytes(&self) -> Range<u64> {
        Buffer::<T>::bytes(&self.elements)
    }
}

impl<T: Pod> fmt::Debug for RangeOf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{:?}]", self.buffer, self.elements)
    }
}
