//! Storage of the application: moved into a buffer when it is made or later, and handed back by `into_vec`.

use crate::base::guard::guard;
use crate::base::id::{ArenaId, DeviceId};
use crate::base::sync::Arc;
use crate::buffer::error::{AcquireError, Unattached};
use crate::buffer::locked::External;
use crate::buffer::storage::{ArenaStorage, FreeOrder, free};
use crate::buffer::{Made, RawBuffer};
use crate::memory::block::{BlockRef, NewBlock};
use crate::memory::error::AllocError;
use crate::memory::host::{HostMemory, Owned, Storage};
use crate::memory::request::Backing;
use crate::platform::Platform;
use crate::platform::error::{ConfigError, Unstored};
use crate::platform::hints::Hints;
use crate::request::typed::Buffer;
use crate::state::{AttachRefusal, Brings, EventKind};
use bytemuck::Pod;
use std::fmt;

impl<T: Pod + fmt::Debug + Send + Sync> Buffer<T> {
    /// Closes the buffer and returns its latest contents, after all other grants and prefetches have ended.
    /// The result is the application's own vector if the buffer was made from one, and a copy otherwise. It
    /// is also a copy if a block over the vector is still in use ([`Grants::block`](crate::Grants::block)).
    /// If a grant or view was leaked, the call never returns;
    /// [`RawBuffer::close_timeout`](crate::RawBuffer::close_timeout) reports the grants.
    ///
    /// # Errors
    /// As [`Buffer::read`]; the buffer is then unchanged. [`AcquireError::Closed`] if another caller got the
    /// vector first. [`AcquireError::Wedged`] if an arena broke its contract meanwhile; the vector is then
    /// leaked.
    #[track_caller]
    pub fn into_vec(self) -> Result<Vec<T>, AcquireError> {
        let view = self.read()?;
        let Ok(arena) = self.raw().external(is_vec_of::<T>) else {
            let contents = view.to_vec();
            self.raw().close_after(view.into_grants());
            return Ok(contents);
        };
        let container = self.raw().close_taking(view.into_grants(), arena)?;
        Ok(vec_of(container).expect("a container of this type, as just seen"))
    }

    /// Closes the buffer and returns the container that was moved in, with the latest contents, as
    /// [`into_vec`](Self::into_vec) does for vectors. If a block over it is still in use, the result is a
    /// copy ([`Storage`]).
    ///
    /// # Errors
    /// [`AcquireError::NoContainer`] if the buffer holds no such container; as [`into_vec`](Self::into_vec)
    /// otherwise.
    #[track_caller]
    pub fn into_storage<S: Storage<T>>(self) -> Result<S, AcquireError> {
        let arena = self.raw().external(|container| container.is::<Owned<T, S>>())?;
        let view = self.read()?;
        let container = self.raw().close_taking(view.into_grants(), arena)?;
        let owned = container.downcast::<Owned<T, S>>();
        Ok(Owned::take_back(owned.expect("a container of this type, as just seen")))
    }

    /// Makes a buffer over the application's storage, which holds its initial contents.
    pub(crate) fn from_storage<S: Storage<T>>(platform: &Platform, storage: S) -> Result<Self, Unstored<S>> {
        if size_of::<T>() == 0 {
            return Err(Unstored { cause: ConfigError::ZeroSized, storage });
        }
        let Some(home) = platform.host().and_then(|host| platform.home(host)) else {
            return Err(Unstored { cause: ConfigError::NoHostArena, storage });
        };
        let (container, memory, block) = blocked(platform, home, storage)
            .map_err(|(cause, storage)| Unstored { cause: cause.into(), storage })?;
        let len = memory.len();
        let made = Made { len, label: None, element_bytes: size_of::<T>() as u64, hints: Hints::default() };
        let raw = RawBuffer::with_storage(platform, made, home, (container, memory, block));
        Ok(Self::of(raw, len / size_of::<T>() as u64))
    }

    /// Moves a vector into a buffer that exists. Its elements become the contents of the whole buffer, as if
    /// a kernel of the host had overwritten it. Main memory must have no storage for the buffer yet. Nothing
    /// is copied, and [`into_vec`](Self::into_vec) returns the same vector with the latest contents.
    ///
    /// The call does not wait. It fails while a kernel holds some of the elements or a request waits.
    ///
    /// # Errors
    /// [`Unattached`] with the storage. Its cause is [`AcquireError::NotAttachable`] with an
    /// [`AttachRefusal`], [`AcquireError::Alloc`] if the arena refuses the storage, or
    /// [`AcquireError::NoArena`] if the platform has no main memory.
    ///
    /// # Source
    /// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.1: external
    /// allocation.
    pub fn attach_external<S: Storage<T>>(&self, storage: S) -> Result<(), Unattached<S>> {
        self.attach(storage, Brings::Contents)
    }

    /// As [`attach_external`](Self::attach_external), but the vector only serves as storage. The contents of
    /// the buffer stay as they are, poisoned and unwritten ones included. They are copied into the vector
    /// when the host next needs them. Kernels on devices and waiting requests do not prevent this call.
    ///
    /// # Errors
    /// As [`attach_external`](Self::attach_external).
    pub fn attach_external_storage<S: Storage<T>>(&self, storage: S) -> Result<(), Unattached<S>> {
        self.attach(storage, Brings::Room)
    }

    fn attach<S: Storage<T>>(&self, storage: S, brings: Brings) -> Result<(), Unattached<S>> {
        let (raw, platform) = (self.raw(), self.raw().platform());
        let Some(home) = platform.host().and_then(|host| platform.home(host)) else {
            return Err(Unattached { cause: AcquireError::NoArena { device: DeviceId(0) }, storage });
        };
        let (buffer, arena) = (raw.name(), raw.0.arena_name(home));
        let (container, memory, block) = match blocked(platform, home, storage) {
            Ok(blocked) => blocked,
            Err((cause, storage)) => {
                return Err(Unattached { cause: AcquireError::Alloc { buffer, arena, cause }, storage });
            }
        };
        let (bytes, len) = (memory.len(), raw.len());
        let kept = ArenaStorage::new(block, Some(memory), FreeOrder::External);
        let mut offered = Some((container.clone() as External, kept));
        let attached = raw.0.change(|locked, routes| {
            if bytes != len {
                return Err(AttachRefusal::Length { bytes, len });
            }
            let commit = locked.state.attach(routes, home, brings)?;
            let (container, storage) = offered.take().expect("attached once");
            locked.put(home, storage);
            locked.rare().external.push((home, container));
            raw.0.record(|| EventKind::Attached { arena: home, commit });
            Ok(())
        });
        let Err(reason) = attached else { return Ok(()) };
        if let Some((container, storage)) = offered {
            drop(container);
            raw.0.free(home, storage);
        }
        let cause = AcquireError::NotAttachable { buffer, arena, reason };
        Err(Unattached { cause, storage: Owned::take_back(container) })
    }
}

/// An application's storage as an arena's block, with the container that owns it.
type Blocked<T, S> = (Arc<Owned<T, S>>, HostMemory, BlockRef);

/// Makes a block over the application's storage. Returns the storage if the arena refuses it.
fn blocked<T: Pod + fmt::Debug + Send + Sync, S: Storage<T>>(
    platform: &Platform,
    home: ArenaId,
    storage: S,
) -> Result<Blocked<T, S>, (AllocError, S)> {
    let container = Arc::new(Owned::<T, S>::new(storage));
    let memory = HostMemory::of(container.clone());
    let backing = Backing::external(&memory);
    match attached(platform, home, &backing) {
        Ok(block) => Ok((container, memory, block)),
        Err(cause) => {
            drop(memory);
            drop(backing);
            Err((cause, Owned::take_back(container)))
        }
    }
}

/// Returns an arena's block over the application's storage, if the block keeps the contract.
fn attached(platform: &Platform, home: ArenaId, storage: &Backing) -> Result<BlockRef, AllocError> {
    let arena = platform.desc(home).name.clone();
    let attached = guard(|| platform.arena(home).attach(storage));
    let block =
        attached.unwrap_or_else(|message| Err(AllocError::Panicked { arena: arena.clone(), message }))?;
    let mut new = NewBlock::new(block);
    // Calls to the block run the arena's code, which may panic or lie.
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

/// Returns whether [`vec_of`] can convert a container.
fn is_vec_of<T: Pod + fmt::Debug + Send + Sync>(container: &External) -> bool {
    container.is::<Owned<T, Vec<T>>>() || container.is::<Owned<T, Box<[T]>>>()
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
