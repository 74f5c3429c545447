//! Memory of the crate `cust`: on a GPU, and page-locked on the host.

use super::arena::CudaArena;
use super::error::{Failure, check};
use super::external::{ExternalError, Refused};
use super::session::Session;
use bytemuck::Pod;
use cudarc::driver::sys::cuCtxSynchronize;
use cust::memory::{DeviceBuffer, DeviceCopy, LockedBuffer};
use dml_core::Foreign;
use dml_core::internal::sync::Arc;
use dml_core::{ExternalBlock, NativeHandle};
use std::fmt;
use std::ptr::NonNull;

/// Storage made of memory of `cust`, or an error that returns the memory.
pub type Taken<S, B> = Result<S, Box<Refused<B>>>;

/// Memory of `cust`, which frees its memory in the current context. This makes the right context current
/// before it drops the memory, on any thread.
pub struct InContext<B> {
    memory: Option<B>,
    session: Arc<Session>,
}

impl<B> InContext<B> {
    fn new(memory: B, session: &Arc<Session>) -> Self {
        Self { memory: Some(memory), session: session.clone() }
    }

    /// Returns the memory. The caller must drop it while the context of its device is current.
    #[must_use]
    pub fn into_inner(mut self) -> B {
        self.memory.take().expect("it is there until it is dropped")
    }
}

impl<B> Drop for InContext<B> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            match self.session.enter_lost() {
                Ok(_entered) => drop(memory),
                // Without a usable context, or in a fork, the memory is leaked.
                Err(_) => std::mem::forget(memory),
            }
        }
    }
}

impl<B> fmt::Debug for InContext<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InContext").finish_non_exhaustive()
    }
}

impl CudaArena {
    /// Creates a block over a buffer of `cust`.
    ///
    /// [`RawBuffer::into_container`](dml_core::RawBuffer::into_container) returns the buffer as an
    /// [`InContext`]; otherwise it is freed with the buffer of this library. This waits for all work of the
    /// device's primary context. When the buffer is returned, all commands of this library have ended.
    ///
    /// # Errors
    /// [`Refused`] with the buffer, for the errors of [`external`](Self::external), such as a buffer of
    /// another device or of a context that is not the primary one. [`ExternalError::Framework`] if the work
    /// of the context has failed.
    ///
    /// ```no_run
    /// # use cust::memory::DeviceBuffer;
    /// # use dml_arenas::cuda::{CudaArena, InContext};
    /// # use dml_arenas::Discover;
    /// # use dml_core::Platform;
    /// # let platform = Platform::builder().discover()?.build()?;
    /// let gpu = platform.device("cuda:0")?;
    /// let cuda = platform.home_as::<CudaArena>(gpu).expect("a GPU has a CUDA arena");
    /// let _context = cust::quick_init()?;
    /// let theirs = DeviceBuffer::from_slice(&[1.0_f32; 1000])?;
    /// let buffer = platform.buffer::<f32>(1000).build()?;
    /// buffer.raw().attach_block(platform.home(gpu).expect("a GPU has an arena"), cuda.external_cust(theirs)?)?;
    /// let theirs = buffer.raw().clone().into_container::<InContext<DeviceBuffer<f32>>>()?.into_inner();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn external_cust<T: DeviceCopy + Pod + Send + Sync>(
        &self,
        buffer: DeviceBuffer<T>,
    ) -> Taken<ExternalBlock<InContext<DeviceBuffer<T>>>, DeviceBuffer<T>> {
        if let Err(cause) = self.settled_context() {
            return Err(Box::new(Refused { cause, container: buffer }));
        }
        let address = NativeHandle(buffer.as_device_ptr().as_raw() as usize);
        let bytes = (buffer.len() * size_of::<T>()) as u64;
        let buffer = InContext::new(buffer, &self.session);
        // SAFETY: the buffer owns its bytes (1) and is owned by the block (2). All work of its context, which
        // must be this one, has ended (3). Its allocations are aligned for every type (4), and `InContext`
        // enters the context to drop it (5).
        unsafe { self.external(address, bytes, buffer) }.map_err(|refused| {
            let Refused { cause, container } = *refused;
            Box::new(Refused { cause, container: container.into_inner() })
        })
    }

    /// Creates storage in main memory from a page-locked buffer of `cust`.
    ///
    /// [`Platform::buffer_from`](dml_core::Platform::buffer_from) and
    /// [`Buffer::attach_external`](dml_core::Buffer::attach_external) take it, and
    /// [`Buffer::into_storage`](dml_core::Buffer::into_storage) returns it. This waits for all work of the
    /// device's primary context.
    ///
    /// # Errors
    /// [`Refused`] with the buffer: [`ExternalError::DeviceLost`], [`ExternalError::Framework`].
    ///
    /// ```no_run
    /// # use cust::memory::LockedBuffer;
    /// # use dml_arenas::{CudaArena, Discover};
    /// # use dml_core::Platform;
    /// # let platform = Platform::builder().discover()?.build()?;
    /// let gpu = platform.device("cuda:0")?;
    /// let cuda = platform.home_as::<CudaArena>(gpu).expect("a GPU has a CUDA arena");
    /// let _context = cust::quick_init()?;
    /// let buffer = platform.buffer_from(cuda.external_locked(LockedBuffer::new(&0.5_f32, 1000)?)?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn external_locked<T: DeviceCopy + Pod + Send + Sync>(
        &self,
        mut buffer: LockedBuffer<T>,
    ) -> Taken<Foreign<T, InContext<LockedBuffer<T>>>, LockedBuffer<T>> {
        if let Err(cause) = self.settled_context() {
            return Err(Box::new(Refused { cause, container: buffer }));
        }
        let (elements, len) = (NonNull::from(&mut buffer[..]).cast(), buffer.len());
        // SAFETY: the buffer owns its elements, outside of itself (1, 2). It is moved into the storage, and
        // devices have finished with it (3).
        Ok(unsafe { Foreign::new(elements, len, InContext::new(buffer, &self.session)) })
    }

    /// Waits for all work of the primary context.
    fn settled_context(&self) -> Result<(), ExternalError> {
        let _entered = self.enter()?;
        // SAFETY: the context is current.
        let settled = check("cuCtxSynchronize", unsafe { cuCtxSynchronize() });
        settled.map_err(|failure: Failure| self.failure(failure))
    }
}
