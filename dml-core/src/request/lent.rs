//! Memory of the application in any arena: moved into a buffer as a block, and handed back when the buffer
//! closes.

use crate::base::guard::guard;
use crate::base::id::ArenaId;
use crate::base::sync::Arc;
use crate::buffer::RawBuffer;
use crate::buffer::error::{AcquireError, Unattached};
use crate::buffer::locked::External;
use crate::buffer::storage::{ArenaStorage, FreeOrder};
use crate::memory::block::{ExternalBlock, NewBlock};
use crate::memory::error::{AllocError, Breach};
use crate::platform::Platform;
use crate::state::{AttachRefusal, Brings, EventKind};
use std::any::Any;

impl RawBuffer {
    /// Moves memory of the application into the buffer, as its storage in `arena`, which has none yet. The
    /// bytes there become the contents of the whole buffer, as if a kernel had overwritten it. Nothing is
    /// copied. [`into_container`](Self::into_container) hands the memory back with the latest contents.
    ///
    /// This is [`Buffer::attach_external`](crate::Buffer::attach_external) for memory that the host does not
    /// address: an arena's backend makes the block. It does not wait, and fails while a kernel holds some of
    /// the bytes or a request waits.
    ///
    /// # Errors
    /// [`Unattached`] with the block. Its cause is [`AcquireError::NotAttachable`] with an [`AttachRefusal`],
    /// [`AcquireError::Alloc`] if the block is not new or not of that arena, [`AcquireError::ArenaContract`]
    /// if its host memory is too short or partly lent, or [`AcquireError::NoSuchArena`].
    pub fn attach_block<C: Any + Send + Sync>(
        &self,
        arena: ArenaId,
        block: ExternalBlock<C>,
    ) -> Result<(), Box<Unattached<ExternalBlock<C>>>> {
        self.attach_lent(arena, block, Brings::Contents)
    }

    /// As [`attach_block`](Self::attach_block), but the memory only serves as storage. The contents of the
    /// buffer stay as they are, and are copied into the memory when they are next needed there.
    ///
    /// # Errors
    /// As [`attach_block`](Self::attach_block).
    pub fn attach_block_storage<C: Any + Send + Sync>(
        &self,
        arena: ArenaId,
        block: ExternalBlock<C>,
    ) -> Result<(), Box<Unattached<ExternalBlock<C>>>> {
        self.attach_lent(arena, block, Brings::Room)
    }

    fn attach_lent<C: Any + Send + Sync>(
        &self,
        arena: ArenaId,
        mut external: ExternalBlock<C>,
        brings: Brings,
    ) -> Result<(), Box<Unattached<ExternalBlock<C>>>> {
        let bytes = match self.admitted(arena, &mut external) {
            Ok(bytes) => bytes,
            Err(cause) => return Err(Box::new(Unattached { cause, storage: external })),
        };
        let len = self.len();
        let mut offered = Some(external);
        let attached = self.0.change(|locked, routes| {
            if bytes != len {
                return Err(AttachRefusal::Length { bytes, len });
            }
            let commit = locked.state.attach(routes, arena, brings)?;
            let ExternalBlock { new, container } = offered.take().expect("attached once");
            let NewBlock { block, host } = new.into_inner();
            locked.put(arena, ArenaStorage::new(block, host, FreeOrder::External));
            locked.rare().external.push((arena, container as External));
            self.0.record(|| EventKind::Attached { arena, commit });
            Ok(())
        });
        match (attached, offered) {
            (Err(reason), Some(storage)) => {
                let (buffer, arena) = (self.name(), self.0.arena_name(arena));
                let cause = AcquireError::NotAttachable { buffer, arena, reason };
                Err(Box::new(Unattached { cause, storage }))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the block is new and belongs to the arena, and that no part of its host memory is lent
    /// . Returns its size.
    fn admitted<C>(&self, arena: ArenaId, external: &mut ExternalBlock<C>) -> Result<u64, AcquireError> {
        let platform = self.platform();
        platform.knows(arena)?;
        let (buffer, name) = (self.name(), self.0.arena_name(arena));
        let bytes = match checked(platform, arena, &mut external.new) {
            Ok(bytes) => bytes,
            Err(cause) => return Err(AcquireError::Alloc { buffer, arena: name, cause }),
        };
        // Safe code may have paired the block with any host memory of its own, and may write a part that it
        // has lent.
        let breach = match &external.new.host {
            Some(host) if host.is_lent() => Breach::StillLent,
            Some(host) if host.len() < bytes => Breach::HostMemory { bytes: host.len(), needed_bytes: bytes },
            _ => return Ok(bytes),
        };
        Err(AcquireError::ArenaContract { buffer, arena: name, breach })
    }

    /// Closes the buffer and returns the container of the memory that was moved in, with the latest contents
    /// of the buffer, after all other grants and prefetches have ended. The kernels and transfers of this
    /// library that used the memory have ended, too, so it can be used at once without further
    /// synchronization.
    ///
    /// As with [`Buffer::into_vec`](crate::Buffer::into_vec), the call never returns if a grant or view was
    /// leaked. If the buffer holds several such containers, it returns the first one whose device is not
    /// lost. All other storages of the application are dropped with its last handle.
    ///
    /// # Errors
    /// [`AcquireError::NoContainer`] if the buffer holds no container of this type, and errors of an acquire
    /// for reading all of the buffer in that arena: the buffer is then unchanged. [`AcquireError::Closed`] or
    /// `NoContainer` if another caller was first. [`AcquireError::ContainerKept`] if a block over the memory
    /// is still in use; the container is dropped with that block. [`AcquireError::Wedged`] if an arena broke
    /// its contract meanwhile; the container is then leaked.
    #[track_caller]
    pub fn into_container<C: Any + Send + Sync>(self) -> Result<C, AcquireError> {
        let arena = self.external(|container| container.is::<C>())?;
        let reading = self.platform().acquire_in(arena).read(&self).wait()?;
        let container = self.close_taking(reading, arena)?.downcast::<C>();
        let container = container.expect("a container of this type, as just seen");
        Arc::try_unwrap(container).map_err(|_| AcquireError::ContainerKept { buffer: self.name() })
    }
}

/// Checks that a block belongs to this arena, and returns its size. This runs the code of the block and its
/// arena, which may panic or lie.
fn checked(platform: &Platform, arena: ArenaId, new: &mut NewBlock) -> Result<u64, AllocError> {
    let name = platform.desc(arena).name.clone();
    if !new.is_new() {
        return Err(AllocError::NotNew { arena: name });
    }
    let asked = guard(|| {
        platform.arena(arena).admit(&new.block)?;
        Ok((new.is_over(None), new.block.len()))
    });
    let panicked = |message| Err(AllocError::Panicked { arena: name.clone(), message });
    match asked.unwrap_or_else(panicked)? {
        // The arena may have kept a clone of the block.
        _ if !new.is_new() => Err(AllocError::NotNew { arena: name }),
        (false, _) => Err(AllocError::OtherStorage { arena: name }),
        (true, bytes) => Ok(bytes),
    }
}
