//! The application's interface to a platform: buffers, and acquires of them.

use crate::base::id::{ArenaId, DeviceId};
use crate::base::sync::Arc;
use crate::buffer::RawBuffer;
use crate::buffer::error::AcquireError;
use crate::platform::Platform;
use crate::platform::error::Unstored;
use crate::platform::outstanding::Outstanding;
use crate::request::acquire::Acquire;
use crate::request::typed::{Buffer, BufferBuilder, RawBufferBuilder};
use bytemuck::Pod;
use std::fmt;

impl Platform {
    /// Starts to build a buffer of `elements` elements of `T`, without storage.
    pub fn buffer<T: Pod>(&self, elements: u64) -> BufferBuilder<T> {
        BufferBuilder::new(self.clone(), elements)
    }

    /// Starts to build a buffer of `len` bytes, without storage.
    pub fn raw_buffer(&self, len: u64) -> RawBufferBuilder {
        RawBufferBuilder::new(self.clone(), len)
    }

    /// Makes a buffer over the application's own storage, which is moved in. Nothing is copied.
    ///
    /// # Errors
    /// [`Unstored`] with the storage, if no arena of the platform accepts it.
    pub fn buffer_from<T: Pod + fmt::Debug + Send + Sync, S: crate::memory::host::Storage<T>>(
        &self,
        storage: S,
    ) -> Result<Buffer<T>, Unstored<S>> {
        Buffer::from_storage(self, storage)
    }

    /// Returns whether a buffer belongs to this platform.
    #[must_use]
    pub fn owns(&self, buffer: &RawBuffer) -> bool {
        Arc::ptr_eq(&self.0, &buffer.platform().0)
    }

    /// Starts an acquire for kernels of a device, through the device's home arena.
    pub fn acquire<'a>(&self, device: DeviceId) -> Acquire<'a> {
        Acquire::new(self, self.home_of(device))
    }

    /// Starts an acquire through the given arena, for a device that has several. In a
    /// [store](crate::ArenaDesc::store) no kernel runs, and the grants are for
    /// [`read_bytes`](crate::Grants::read_bytes) and [`write_bytes`](crate::Grants::write_bytes).
    pub fn acquire_in<'a>(&self, arena: ArenaId) -> Acquire<'a> {
        Acquire::new(self, self.knows(arena).map(|()| arena))
    }

    /// Returns the arena that the kernels of a device use.
    pub(crate) fn home_of(&self, device: DeviceId) -> Result<ArenaId, AcquireError> {
        self.home(device).ok_or_else(|| {
            let store = self.routes().arenas().iter().find(|desc| desc.native == device);
            match store {
                Some(desc) => AcquireError::NoKernels { device, arena: desc.name.clone() },
                None => AcquireError::NoArena { device },
            }
        })
    }

    /// Checks an arena id that the application passed in.
    pub(crate) fn knows(&self, arena: ArenaId) -> Result<(), AcquireError> {
        let known = usize::from(arena.0) < self.arenas().len();
        if known { Ok(()) } else { Err(AcquireError::NoSuchArena { arena }) }
    }

    /// Returns the grants of all buffers that have not ended: see [`RawBuffer::leaked_grants`].
    #[must_use]
    pub fn leaked_grants(&self) -> Vec<Outstanding> {
        self.0.registry.live().iter().flat_map(|buffer| buffer.outstanding()).collect()
    }
}
