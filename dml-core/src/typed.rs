//! Buffers of elements, and how buffers are made.

use crate::acquire::{Acquire, RangeOf};
use crate::buffer::RawBuffer;
use crate::error::{AcquireError, ConfigError, Unstored};
use crate::grant::{ReadView, WriteView};
use crate::host::{HostOwner, HostSpan, Lease, Owned, Storage};
use crate::id::{ArenaId, DeviceId};
use crate::platform::Platform;
use crate::range::Span;
use crate::state::{Alloc, Initial};
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// A buffer of elements of `T`. Ranges are in elements.
///
/// Cheap to clone: clones name the same buffer.
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
    /// The buffer as bytes.
    #[must_use]
    pub fn raw(&self) -> &RawBuffer {
        &self.raw
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.elements
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Part of the buffer, for an acquire. The range is checked there.
    #[must_use]
    pub fn range(&self, elements: Range<u64>) -> RangeOf<T> {
        RangeOf::new(self.clone(), elements)
    }

    /// Where elements lie, in bytes; an overflow lands outside the buffer, where the acquire's check finds it.
    pub(crate) fn bytes(elements: &Range<u64>) -> Range<u64> {
        let size = size_of::<T>() as u64;
        elements.start.saturating_mul(size)..elements.end.saturating_mul(size)
    }

    /// Waits for the latest contents and shows them to the host.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait).
    pub fn read(&self) -> Result<ReadView<T>, AcquireError> {
        self.host_acquire()?.read(self).wait().and_then(|grants| ReadView::new(grants, self.clone()))
    }

    /// Waits until nobody uses the buffer and lets the host overwrite all of it; the old contents are not brought.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait).
    pub fn write(&self) -> Result<WriteView<T>, AcquireError> {
        self.host_acquire()?.write(self).wait().and_then(|grants| WriteView::new(grants, self.clone()))
    }

    /// Waits for the latest contents and lets the host change them.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait).
    pub fn read_write(&self) -> Result<WriteView<T>, AcquireError> {
        self.host_acquire()?.read_write(self).wait().and_then(|grants| WriteView::new(grants, self.clone()))
    }

    fn host_acquire(&self) -> Result<Acquire, AcquireError> {
        let platform = self.raw.platform();
        let host = platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })?;
        Ok(platform.acquire(host))
    }
}

impl<T: Pod + fmt::Debug + Send + Sync> Buffer<T> {
    /// Closes the buffer and returns its latest contents: the application's own vector where the buffer was made from
    /// one, a copy otherwise. Waits until every other grant is gone.
    ///
    /// # Errors
    /// As [`Buffer::read`]; the buffer is then as it was.
    pub fn into_vec(self) -> Result<Vec<T>, AcquireError> {
        let view = self.read()?;
        let Some(home) = self.external_home() else {
            let contents = view.to_vec();
            self.raw.close_after(view.into_grants());
            return Ok(contents);
        };
        match self.raw.close_keeping(home, view.into_grants()) {
            Ok(owner) => Ok(vec_of(owner)),
            Err(Some(block)) => Ok(block.host().map(|host| copy_of(host)).unwrap_or_default()),
            Err(None) => Err(AcquireError::Closed { buffer: self.raw.id() }),
        }
    }

    /// The host's arena, where it holds storage of the application.
    fn external_home(&self) -> Option<ArenaId> {
        let platform = self.raw.platform();
        let home = platform.home(platform.host()?)?;
        (self.raw.snapshot().arena(home).alloc == Alloc::External).then_some(home)
    }

    pub(crate) fn from_storage<S: Storage<T>>(platform: &Platform, storage: S) -> Result<Self, Unstored<S>> {
        if size_of::<T>() == 0 {
            return Err(Unstored { cause: ConfigError::ZeroSized, storage });
        }
        let Some(home) = platform.host().and_then(|host| platform.home(host)) else {
            return Err(Unstored { cause: ConfigError::NoHostArena, storage });
        };
        let owner = Box::new(Owned::<T, S>::new(storage));
        let len = owner.span().len();
        let block = platform.arena(home).attach(owner).map_err(|error| {
            let owned = error.storage.into_any().downcast::<Owned<T, S>>();
            let owned =
                owned.unwrap_or_else(|_| unreachable!("an arena gives back the storage it was given"));
            Unstored { cause: error.cause.into(), storage: (*owned).into_inner() }
        })?;
        let raw = RawBuffer::with_storage(platform, len, home, block);
        Ok(Self { raw, elements: len / size_of::<T>() as u64, _element: PhantomData })
    }
}

/// The application's container as a vector, without a copy.
fn vec_of<T: Pod + fmt::Debug + Send + Sync>(owner: Box<dyn HostOwner>) -> Vec<T> {
    let span = owner.span();
    match owner.into_any().downcast::<Owned<T, Vec<T>>>() {
        Ok(owned) => (*owned).into_inner(),
        Err(any) => match any.downcast::<Owned<T, Box<[T]>>>() {
            Ok(owned) => (*owned).into_inner().into_vec(),
            Err(_) => unreachable!("{span:?} was moved in as a Vec<T> or a Box<[T]>"),
        },
    }
}

/// A copy of storage that nobody else uses any more.
fn copy_of<T: Pod>(host: HostSpan) -> Vec<T> {
    let whole = Span::new(0, host.len());
    Lease::new(host).slice(whole).map(<[T]>::to_vec).unwrap_or_default()
}

/// How a buffer begins.
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

/// Makes a [`RawBuffer`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RawBufferBuilder {
    platform: Platform,
    len: u64,
    contents: Contents,
}

impl RawBufferBuilder {
    pub(crate) fn new(platform: Platform, len: u64) -> Self {
        Self { platform, len, contents: Contents::Undefined }
    }

    /// The buffer begins as zeros, made in whatever arena first needs them. Otherwise reading before writing is an
    /// error.
    pub fn zeroed(mut self) -> Self {
        self.contents = Contents::Zeroed;
        self
    }

    /// Makes the buffer. No storage is allocated: that happens in the arenas that come to use it.
    ///
    /// # Errors
    /// [`ConfigError::TooLarge`] beyond what an address can reach.
    pub fn build(self) -> Result<RawBuffer, ConfigError> {
        RawBuffer::create(&self.platform, self.len, self.contents.into())
    }
}

/// Makes a [`Buffer<T>`].
#[derive(Debug)]
#[must_use]
pub struct BufferBuilder<T: Pod> {
    platform: Platform,
    elements: u64,
    contents: Contents,
    _element: PhantomData<fn() -> T>,
}

impl<T: Pod> BufferBuilder<T> {
    pub(crate) fn new(platform: Platform, elements: u64) -> Self {
        Self { platform, elements, contents: Contents::Undefined, _element: PhantomData }
    }

    /// The buffer begins as zeros, made in whatever arena first needs them. Otherwise reading before writing is an
    /// error.
    pub fn zeroed(mut self) -> Self {
        self.contents = Contents::Zeroed;
        self
    }

    /// Makes the buffer. No storage is allocated: that happens in the arenas that come to use it.
    ///
    /// # Errors
    /// [`ConfigError::TooLarge`] beyond what an address can reach, [`ConfigError::ZeroSized`] for elements without a
    /// size.
    pub fn build(self) -> Result<Buffer<T>, ConfigError> {
        let element_bytes = size_of::<T>() as u64;
        if element_bytes == 0 {
            return Err(ConfigError::ZeroSized);
        }
        let too_large = ConfigError::TooLarge { elements: self.elements, element_bytes };
        let len = self.elements.checked_mul(element_bytes).filter(|&len| isize::try_from(len).is_ok());
        let raw = RawBuffer::create(&self.platform, len.ok_or(too_large)?, self.contents.into())?;
        Ok(Buffer { raw, elements: self.elements, _element: PhantomData })
    }
}
