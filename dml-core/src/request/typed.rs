//! Buffers of elements, and the builders of buffers.

use crate::base::guard::guard;
use crate::base::id::{ArenaId, DeviceId};
use crate::base::sync::Arc;
use crate::buffer::error::AcquireError;
use crate::buffer::lock::External;
use crate::buffer::storage::free;
use crate::buffer::{Made, RawBuffer};
use crate::memory::block::{BlockRef, NewBlock};
use crate::memory::error::AllocError;
use crate::memory::host::{HostMemory, Owned, Storage};
use crate::memory::link::{Allocation, Link};
use crate::memory::request::Backing;
use crate::platform::Platform;
use crate::platform::error::ConfigError;
use crate::platform::error::Unstored;
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

    /// Converts a range of elements to bytes. An overflow saturates outside the buffer, where the acquire's check finds
    /// it.
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
        ReadView::new(grants, self.clone())
    }

    /// Waits until the buffer has no users, and lets the host overwrite all of it. The old contents are not brought.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait).
    #[track_caller]
    pub fn write(&self) -> Result<WriteView<T>, AcquireError> {
        let grants = self.host_acquire()?.write(self).wait()?;
        WriteView::new(grants, self.clone())
    }

    /// Waits for the latest contents and lets the host change them.
    ///
    /// # Errors
    /// As [`Acquire::wait`](crate::Acquire::wait).
    #[track_caller]
    pub fn read_write(&self) -> Result<WriteView<T>, AcquireError> {
        let grants = self.host_acquire()?.read_write(self).wait()?;
        WriteView::new(grants, self.clone())
    }

    fn host_acquire(&self) -> Result<Acquire, AcquireError> {
        let platform = self.raw.platform();
        let host = platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })?;
        Ok(platform.acquire(host))
    }
}

impl<T: Pod + fmt::Debug + Send + Sync> Buffer<T> {
    /// Closes the buffer and returns its latest contents, after all other grants have ended. The result is the
    /// application's own vector if the buffer was made from one, and a copy otherwise. It is also a copy if someone keeps a
    /// block of it ([`Grants::block`](crate::Grants::block)). A grant or view that was leaked never ends, so the call never
    /// returns; [`RawBuffer::close_timeout`](crate::RawBuffer::close_timeout) says what is held.
    ///
    /// # Errors
    /// As [`Buffer::read`]; the buffer is then unchanged. [`AcquireError::Closed`] if another caller got the vector
    /// first. [`AcquireError::Wedged`] if an arena broke its contract meanwhile; the vector is then leaked.
    #[track_caller]
    pub fn into_vec(self) -> Result<Vec<T>, AcquireError> {
        let view = self.read()?;
        if !self.raw.has_external() {
            let contents = view.to_vec();
            self.raw.close_after(view.into_grants());
            return Ok(contents);
        }
        let container = self.raw.close_taking(view.into_grants())?;
        Ok(vec_of(container).expect("a buffer of this type was made of such a container"))
    }

    pub(crate) fn from_storage<S: Storage<T>>(platform: &Platform, storage: S) -> Result<Self, Unstored<S>> {
        if size_of::<T>() == 0 {
            return Err(Unstored { cause: ConfigError::ZeroSized, storage });
        }
        let Some(home) = platform.host().and_then(|host| platform.home(host)) else {
            return Err(Unstored { cause: ConfigError::NoHostArena, storage });
        };
        let container = Arc::new(Owned::<T, S>::new(storage));
        let memory = HostMemory::of(container.clone());
        let (len, backing) = (memory.len(), Backing::external(&memory));
        let block = match attached(platform, home, &backing) {
            Ok(block) => block,
            Err(cause) => {
                drop(memory);
                drop(backing);
                return Err(Unstored { cause: cause.into(), storage: Owned::take_back(container) });
            }
        };
        let made = Made { len, label: None, element_bytes: size_of::<T>() as u64 };
        let raw = RawBuffer::with_storage(platform, made, home, (container, memory, block));
        Ok(Self { raw, elements: len / size_of::<T>() as u64, _element: PhantomData })
    }
}

/// Returns an arena's block over storage of the application, if the block keeps the contract.
fn attached(platform: &Platform, home: ArenaId, storage: &Backing) -> Result<BlockRef, AllocError> {
    let arena = platform.desc(home).name.clone();
    let attached = guard(|| platform.arena(home).attach(storage));
    let block =
        attached.unwrap_or_else(|message| Err(AllocError::Panicked { arena: arena.clone(), message }))?;
    let mut new = NewBlock::new(block);
    // Asking the block runs the arena's code, which may panic or lie.
    let wrong = if !new.is_new() {
        AllocError::NotNew { arena }
    } else if !guard(|| new.is_over(Some(storage))).unwrap_or_default() {
        AllocError::OtherStorage { arena }
    } else if !guard(|| new.block.len()).is_ok_and(|bytes| bytes >= storage.len()) {
        AllocError::OutOfMemory { arena, bytes: storage.len() }
    } else {
        return Ok(new.block);
    };
    free(platform, home, new.block);
    Err(wrong)
}

/// Returns the application's container as a vector, or a copy of it if other references exist.
fn vec_of<T: Pod + fmt::Debug + Send + Sync>(container: External) -> Option<Vec<T>> {
    match container.downcast::<Owned<T, Vec<T>>>() {
        Ok(owned) => Some(Owned::take_back(owned)),
        Err(other) => {
            let owned = other.downcast::<Owned<T, Box<[T]>>>().ok()?;
            Some(Owned::take_back(owned).into_vec())
        }
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
}

impl RawBufferBuilder {
    pub(crate) fn new(platform: Platform, len: u64) -> Self {
        Self { platform, len, contents: Contents::Undefined, label: None }
    }

    /// Makes the buffer start as zeros, which are written in the arena that first needs them. Without this call,
    /// reading before writing is an error.
    pub fn zeroed(mut self) -> Self {
        self.contents = Contents::Zeroed;
        self
    }

    /// Gives the buffer a label, which errors show.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Makes the buffer. Storage is allocated later, in the arenas that use it.
    ///
    /// # Errors
    /// [`ConfigError::TooLarge`] if the size exceeds the address space.
    pub fn build(self) -> Result<RawBuffer, ConfigError> {
        let made = Made { len: self.len, label: self.label, element_bytes: 1 };
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
    _element: PhantomData<fn() -> T>,
}

impl<T: Pod> BufferBuilder<T> {
    pub(crate) fn new(platform: Platform, elements: u64) -> Self {
        Self { platform, elements, contents: Contents::Undefined, label: None, _element: PhantomData }
    }

    /// Makes the buffer start as zeros, which are written in the arena that first needs them. Without this call,
    /// reading before writing is an error.
    pub fn zeroed(mut self) -> Self {
        self.contents = Contents::Zeroed;
        self
    }

    /// Gives the buffer a label, which errors show.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Makes the buffer. Storage is allocated later, in the arenas that use it.
    ///
    /// # Errors
    /// [`ConfigError::TooLarge`] if the size exceeds the address space; [`ConfigError::ZeroSized`] for elements of zero
    /// bytes; [`ConfigError::OverAligned`] for elements that need more alignment than the host's memory has.
    pub fn build(self) -> Result<Buffer<T>, ConfigError> {
        let element_bytes = size_of::<T>() as u64;
        if element_bytes == 0 {
            return Err(ConfigError::ZeroSized);
        }
        let too_large = ConfigError::TooLarge { elements: self.elements, element_bytes };
        let len = self.elements.checked_mul(element_bytes).filter(|&len| isize::try_from(len).is_ok());
        let len = len.ok_or(too_large)?;
        self.expect_visible()?;
        let made = Made { len, label: self.label, element_bytes };
        let raw = RawBuffer::create(&self.platform, made, self.contents.into())?;
        Ok(Buffer { raw, elements: self.elements, _element: PhantomData })
    }

    /// Checks that the host's memory is aligned for the elements, so that the host can view them.
    fn expect_visible(&self) -> Result<(), ConfigError> {
        let Some(home) = self.platform.host().and_then(|host| self.platform.home(host)) else {
            return Ok(());
        };
        // The host's memory may come to share the storage of another arena, with the alignment of that one.
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
