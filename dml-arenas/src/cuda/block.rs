//! Blocks of a GPU: device memory, or page-locked host memory that the device reaches.

use super::error::{Failure, check};
use super::idle;
use super::session::{Reservation, Session};
use cudarc::driver::sys::{CUdeviceptr, CUresult, cuMemHostGetDevicePointer_v2};
use dml_core::internal::sync::Arc;
use dml_core::{Backing, Block, HostSpan, NativeHandle};
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;

/// The call that returns the device address of host memory.
const HOST_ADDRESS: &str = "cuMemHostGetDevicePointer";

/// Memory that one GPU uses. Its native handle is the `CUdeviceptr`.
#[derive(Debug)]
pub(super) struct CudaBlock {
    address: CUdeviceptr,
    len: u64,
    session: Arc<Session>,
    kept: Kept,
}

/// The owner of the memory.
enum Kept {
    /// The arena: memory from its pool.
    Own { size: usize, _reservation: Reservation },
    /// The application, whose container keeps the memory.
    Lent(ManuallyDrop<Arc<dyn Any + Send + Sync>>),
    /// Another arena's block, in host memory.
    Bound(Backing),
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own { .. } => "Own",
            Self::Lent(_) => "Lent",
            Self::Bound(_) => "Bound",
        })
    }
}

impl CudaBlock {
    /// Allocates `len` bytes.
    ///
    /// # Errors
    /// The call that failed, and its code.
    pub(super) fn alloc(session: &Arc<Session>, len: usize) -> Result<Self, Failure> {
        let call = "cuMemAlloc";
        let full = Failure { call, code: CUresult::CUDA_ERROR_OUT_OF_MEMORY };
        let lost = Failure { call, code: CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED };
        let size = idle::size_of(len).ok_or(full)?;
        let reservation = session.reserve(size as u64).ok_or(full)?;
        let address = match session.idle(size) {
            Some(address) => address,
            None => {
                let _entered = session.enter().map_err(|_| lost)?;
                session.alloc(size).inspect_err(|failure| session.note(*failure))?
            }
        };
        let kept = Kept::Own { size, _reservation: reservation };
        Ok(Self { address, len: len as u64, session: session.clone(), kept })
    }

    /// Creates a block over memory of the application.
    ///
    /// # Safety
    /// 1. The memory has `len` bytes and is usable in the session's context until the container is dropped.
    /// 2. Until then, only commands on this block use it.
    pub(super) unsafe fn over(
        session: &Arc<Session>,
        address: CUdeviceptr,
        len: u64,
        container: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { address, len, session: session.clone(), kept: Kept::Lent(ManuallyDrop::new(container)) }
    }

    /// Creates a block over another arena's block in page-locked host memory. Kernels reach it across the
    /// link.
    ///
    /// # Errors
    /// The call that failed, and its code.
    pub(super) fn bind(session: &Arc<Session>, root: &Backing, host: &HostSpan) -> Result<Self, Failure> {
        let lost = Failure { call: HOST_ADDRESS, code: CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED };
        let mut address = 0;
        if !root.is_empty() {
            let _entered = session.enter().map_err(|_| lost)?;
            // SAFETY: the context is current, and the call writes an address.
            let found = unsafe { cuMemHostGetDevicePointer_v2(&raw mut address, host.as_ptr().cast(), 0) };
            check(HOST_ADDRESS, found).inspect_err(|failure| session.note(*failure))?;
        }
        let kept = Kept::Bound(root.clone());
        Ok(Self { address, len: root.len(), session: session.clone(), kept })
    }

    /// Returns whether the memory comes from the arena's pool, and not from the application or the host.
    pub(super) fn is_of_pool(&self) -> bool {
        matches!(self.kept, Kept::Own { .. })
    }

    /// Returns whether the memory is the host's.
    pub(super) fn is_of_host(&self) -> bool {
        matches!(self.kept, Kept::Bound(_))
    }

    /// Returns the address of a byte of the block.
    pub(super) fn at(&self, offset: u64) -> CUdeviceptr {
        self.address + offset
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns whether the memory belongs to this session.
    pub(super) fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }
}

impl Drop for CudaBlock {
    fn drop(&mut self) {
        // No command uses the memory, because fences hold the blocks of their commands.
        match &mut self.kept {
            Kept::Own { size, .. } => self.session.free(*size, self.address),
            // SAFETY: dropped once, here.
            Kept::Lent(container) if self.session.is_here() => unsafe { ManuallyDrop::drop(container) },
            // In a fork, the container's destructor would call the driver.
            Kept::Lent(_) => {}
            Kept::Bound(_) => {}
        }
    }
}

impl Block for CudaBlock {
    fn len(&self) -> u64 {
        self.len
    }

    fn native(&self) -> NativeHandle {
        NativeHandle(self.address as usize)
    }

    fn backing(&self) -> Option<&Backing> {
        match &self.kept {
            Kept::Bound(root) => Some(root),
            Kept::Own { .. } | Kept::Lent(_) => None,
        }
    }
}
