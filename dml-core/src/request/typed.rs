//! Buffers of elements, and the builders of buffers.

use crate::base::id::{ArenaId, DeviceId};
use crate::base::sync::Arc;
use crate::buffer::error::AcquireError;
use crate::buffer::{Made, RawBuffer};
use crate::memory::link::{Allocation, Link};
use crate::platform::Platform;
use crate::platform::error::ConfigError;
use crate::platform::hints::{Hints, Pattern};
use crate::request::acquire::Acquire;
use crate::request::region::RangeOf;
use crate::request::view::{ReadView, WriteView};
use crate::state::Initial;
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// A buffer of elements of `T`. Ranges are in elements.
///
/// A buffer is cheap to clone: clones name the same buffer.
pub struct Buffer<T: Pod> {
    raw: RawBuffer,
    elements: u64,
    _element: PhantomData<fn() -> T>,
}

impl<T: Pod> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), ..*self }
    }
}

impl<T: Pod> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} x {})", self.raw.id(), self.elements, std::any::type_name::<T>())
    }
}

impl<T: Pod> Buffer<T> {
    /// Returns the buffer as a buffer of bytes.
    #[must_use]
    pub fn raw(&self) -> &RawBuffer {
        &self.raw
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.elements
    }

    /// Returns whether the buffer has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Returns a part of the buffer, for an acquire. The acquire checks the range.
    #[must_use]
    pub fn range(&self, elements: Range<u64>) -> RangeOf<T> {
        RangeOf::new(self.clone(), elements)
    }

    /// Wraps a buffer of bytes that has the size of `elements` elements.
    pub(crate) fn of(raw: RawBuffer, elements: u64) -> Self {
        Self { raw, elements, _element: PhantomData }
    }

    /// Converts a range of elements to bytes. An overflow saturates outside the buffer, where the acquire's
    /// check finds it.
    pub(crate) fn bytes(elements: &Range<u64>) -> Range<u64> {
        let size = size_of::<T>() as u64;
        elements.start.saturating_mul(size)..elements.end.saturating_mul(size)
    }

    /// Waits for the latest contents and returns a host view of them.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait).
    #[track_caller]
    pub fn read(&self) -> Result<ReadView<T>, AcquireError> {
        let grants = self.host_acquire()?.read(self).wait()?;
        ReadView::new(grants)
    }

    /// Gives poisoned elements their last committed contents back. See [`RawBuffer::restore`] for a part.
    ///
    /// # Errors
    /// As [`RawBuffer::restore`].
    pub fn restore(&self) -> Result<(), AcquireError> {
        self.raw.restore(0..self.raw.len())
    }

    /// Waits until the buffer has no users, and lets the host overwrite all of it. The old contents are not
    /// copied.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait).
    #[track_caller]
    pub fn write(&self) -> Result<WriteView<T>, AcquireError> {
        let grants = self.host_acquire()?.write(self).wait()?;
        WriteView::new(grants)
    }

    /// Waits for the latest contents and lets the host change them.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait).
    #[track_caller]
    pub fn read_write(&self) -> Result<WriteView<T>, AcquireError> {
        let grants = self.host_acquire()?.read_write(self).wait()?;
        WriteView::new(grants)
    }

    /// Overwrites the buffer with these elements.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait), and [`ViewError::Length`](crate::ViewError::Length) if the
    /// number of elements differs from the buffer's. Nothing is written then.
    ///
    /// # Examples
    /// ```
    /// # use dml_core::{AcquireError, Buffer};
    /// # fn example(buffer: &Buffer<f32>) -> Result<(), AcquireError> {
    /// let mut values = vec![1.0; buffer.len() as usize];
    /// buffer.store(&values)?;
    /// buffer.load_into(&mut values)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn store(&self, elements: &[T]) -> Result<(), AcquireError> {
        self.range(0..self.elements).store(elements)
    }

    /// Waits for the latest contents and copies them into a slice.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait), and [`ViewError::Length`](crate::ViewError::Length) if the
    /// number of elements differs from the buffer's.
    #[track_caller]
    pub fn load_into(&self, elements: &mut [T]) -> Result<(), AcquireError> {
        self.range(0..self.elements).load_into(elements)
    }

    /// Declares that no kernel will use the buffer in `arena` until it is acquired there again, so that its
    /// storage can be freed: see [`RawBuffer::will_not_use`].
    ///
    /// # Errors
    /// As [`RawBuffer::will_not_use`].
    #[track_caller]
    pub fn will_not_use(&self, arena: ArenaId) -> Result<(), AcquireError> {
        self.raw.will_not_use(arena)
    }

    pub(super) fn host_acquire<'a>(&self) -> Result<Acquire<'a>, AcquireError> {
        let platform = self.raw.platform();
        let host = platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })?;
        Ok(platform.acquire(host))
    }
}

/// The initial contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Undefined,
    Zeroed,
}

impl From<Contents> for Initial {
    fn from(contents: Contents) -> Self {
        match contents {
            Contents::Undefined => Self::Undefined,
            Contents::Zeroed => Self::Zeroed,
        }
    }
}

/// Builds a [`RawBuffer`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RawBufferBuilder {
    platform: Platform,
    len: u64,
    contents: Contents,
    label: Option<Arc<str>>,
    hints: Hints,
}

impl RawBufferBuilder {
    pub(crate) fn new(platform: Platform, len: u64) -> Self {
        Self { platform, len, contents: Contents::Undefined, label: None, hints: Hints::default() }
    }

    /// Makes the buffer start as zeros, which are written in the arena that first needs them. Without this
    /// call, reading before writing is an error.
    pub fn zeroed(mut self) -> Self {
        self.contents = Contents::Zeroed;
        self
    }

    /// Sets a label, which errors show.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Adds devices that will use the buffer, so that its storage is made in the right arena first: see
    /// [`Hints::used_by`]. A preferred binding is not made if it serves a device that is not among them.
    pub fn used_by(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        self.hints = self.hints.used_by(devices);
        self
    }

    /// Sets how the devices will use the buffer, which selects shared storage or copies: see [`Pattern`].
    pub fn pattern(mut self, pattern: Pattern) -> Self {
        self.hints = self.hints.pattern(pattern);
        self
    }

    /// Makes the buffer. Storage is allocated later, in the arenas that use it.
    ///
    /// # Errors
    /// [`ConfigError::TooLarge`] if the size exceeds the address space; [`ConfigError::NoSuchDevice`] for a
    /// hint that names a device which the platform does not have.
    pub fn build(self) -> Result<RawBuffer, ConfigError> {
        let made = Made { len: self.len, label: self.label, element_bytes: 0, hints: self.hints };
        RawBuffer::create(&self.platform, made, self.contents.into())
    }
}

/// Builds a [`Buffer<T>`].
#[derive(Debug)]
#[must_use]
pub struct BufferBuilder<T: Pod> {
    platform: Platform,
    elements: u64,
    contents: Contents,
    label: Option<Arc<str>>,
    hints: Hints,
    _element: PhantomData<fn() -> T>,
}

impl<T: Pod> BufferBuilder<T> {
    pub(crate) fn new(platform: Platform, elements: u64) -> Self {
        Self {
            platform,
            elements,
            contents: Contents::Undefined,
            label: None,
            hints: Hints::default(),
            _element: PhantomData,
        }
    }

    /// Makes the buffer start as zeros, which are written in the arena that first needs them. Without this
    /// call, reading before writing is an error.
    pub fn zeroed(mut self) -> Self {
        self.contents = Contents::Zeroed;
        self
    }

    /// Sets a label, which errors show.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Adds devices that will use the buffer, so that its storage is made in the right arena first: see
    /// [`Hints::used_by`]. A preferred binding is not made if it serves a device that is not among them.
    pub fn used_by(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        self.hints = self.hints.used_by(devices);
        self
    }

    /// Sets how the devices will use the buffer, which selects shared storage or copies: see [`Pattern`].
    pub fn pattern(mut self, pattern: Pattern) -> Self {
        self.hints = self.hints.pattern(pattern);
        self
    }

    /// Makes the buffer. Storage is allocated later, in the arenas that use it.
    ///
    /// # Errors
    /// [`ConfigError::TooLarge`] if the size exceeds the address space; [`ConfigError::ZeroSized`] for
    /// elements of zero bytes; [`ConfigError::OverAligned`] for elements that need more alignment than the
    /// host's memory has; [`ConfigError::NoSuchDevice`] for a hint that names a device which the platform
    /// does not have.
    pub fn build(self) -> Result<Buffer<T>, ConfigError> {
        let element_bytes = size_of::<T>() as u64;
        if element_bytes == 0 {
            return Err(ConfigError::ZeroSized);
        }
        let too_large = ConfigError::TooLarge { elements: self.elements, element_bytes };
        let len = self.elements.checked_mul(element_bytes).filter(|&len| isize::try_from(len).is_ok());
        let len = len.ok_or(too_large)?;
        self.expect_visible()?;
        let made = Made { len, label: self.label, element_bytes, hints: self.hints };
        let raw = RawBuffer::create(&self.platform, made, self.contents.into())?;
        Ok(Buffer { raw, elements: self.elements, _element: PhantomData })
    }

    /// Checks that the host's memory is aligned for the elements, so that the host can view them.
    fn expect_visible(&self) -> Result<(), ConfigError> {
        let Some(home) = self.platform.host().and_then(|host| self.platform.home(host)) else {
            return Ok(());
        };
        // The host's memory may be bound to the storage of another arena, and then has that storage's
        // alignment.
        let binds = |link: &&Link| link.to == home && matches!(link.allocation, Allocation::Bound(_));
        let roots = self.platform.links().iter().filter(binds).map(|link| link.from);
        let element_align = align_of::<T>() as u64;
        let descs = std::iter::once(home).chain(roots).map(|arena| self.platform.desc(arena));
        match descs.min_by_key(|desc| desc.alloc_align).filter(|desc| desc.alloc_align < element_align) {
            Some(desc) => {
                let (arena, arena_align) = (desc.name.clone(), desc.alloc_align);
                Err(ConfigError::OverAligned { element_align, arena, arena_align })
            }
            None => Ok(()),
        }
    }
}
