//! Device memory as a block.

use super::error::Failure;
use super::session::{Reservation, Session};
use cudarc::driver::sys::{CUdeviceptr, CUresult};
use dml_core::sync::Arc;
use dml_core::{Block, NativeHandle};

/// Memory of one GPU. Its native handle is the `CUdeviceptr`.
#[derive(Debug)]
pub(super) struct CudaBlock {
    address: CUdeviceptr,
    len: u64,
    session: Arc<Session>,
    _reservation: Reservation,
}

impl CudaBlock {
    /// Allocates `len` bytes.
    ///
    /// # Errors
    /// The call that failed, and its code.
    pub(super) fn alloc(session: &Arc<Session>, len: usize) -> Result<Self, Failure> {
        // The driver has no memory without bytes.
        let size = len.max(1);
        let call = "cuMemAlloc";
        let full = Failure { call, code: CUresult::CUDA_ERROR_OUT_OF_MEMORY };
        let lost = Failure { call, code: CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED };
        let reservation = session.reserve(size as u64).ok_or(full)?;
        let _entered = session.enter().map_err(|_| lost)?;
        let address = session.alloc(size).inspect_err(|failure| session.note(*failure))?;
        Ok(Self { address, len: len as u64, session: session.clone(), _reservation: reservation })
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
        // No command uses the memory: their fences hold the block.
        self.session.free(self.address);
    }
}

impl Block for CudaBlock {
    fn len(&self) -> u64 {
        self.len
    }

    fn native(&self) -> NativeHandle {
        NativeHandle(self.address as usize)
    }
}
