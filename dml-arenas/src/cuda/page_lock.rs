//! How CUDA locks pages of host memory.
//!
//! Registering pages takes three to four times as long as moving them. Other driver calls wait meanwhile, so
//! a background thread does not help. A copy staged by eight cores takes little longer than the link. The
//! driver's own copy is so slow that, without staging cores, registering pays at once.

use super::error::{Failure, check};
use super::session::Session;
use crate::fork::Origin;
use crate::locked::{PageLocker, Rates, next_holder};
use cudarc::driver::sys::{CUresult, cuMemHostRegister_v2, cuMemHostUnregister};
use dml_core::HostSpan;
use dml_core::internal::sync::Arc;
use std::any::Any;
use std::ffi::c_void;
use std::sync::OnceLock;

/// Measured on an H200 beside 16 cores (docs/results/cuda.md).
pub(super) const RATES: Rates = Rates {
    locking_once_ns: 100_000,
    locking_bytes_per_s: 16_000_000_000,
    ordinary_bytes_per_s: 8_400_000_000,
    link_bytes_per_s: 54_000_000_000,
    staging_once_ns: 500_000,
    staging_bytes_per_s: 5_600_000_000,
};
/// Maximum number of threads that copy for one transfer. Eight threads reach the speed of the link.
pub(super) const MAX_COPIERS: usize = 8;
/// Flags of memory that is locked for all contexts and that kernels may use in place
/// (`CU_MEMHOSTREGISTER_PORTABLE`, `CU_MEMHOSTREGISTER_DEVICEMAP`).
const FOR_ALL: u32 = 1 | 2;

/// Registers pages for all contexts of the process, through the context of one device.
#[derive(Debug)]
pub(super) struct Registrar {
    session: Arc<Session>,
}

impl Registrar {
    pub(super) fn new(session: &Arc<Session>) -> Arc<Self> {
        Arc::new(Self { session: session.clone() })
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl PageLocker for Registrar {
    /// Returns the same holder for all GPUs: registered pages serve each of them, and cannot be registered
    /// twice.
    fn holder(&self) -> u64 {
        static HOLDER: OnceLock<u64> = OnceLock::new();
        *HOLDER.get_or_init(next_holder)
    }

    fn lock(&self, memory: &HostSpan) -> Option<Box<dyn Any + Send>> {
        let size = usize::try_from(memory.len()).ok().filter(|size| *size > 0)?;
        let pointer = memory.as_ptr().cast::<c_void>();
        let _entered = self.session.enter().ok()?;
        // SAFETY: memory of this size, which outlives the registration: its block or scratch memory drops the
        // registration first.
        match check("cuMemHostRegister", unsafe { cuMemHostRegister_v2(pointer, size, FOR_ALL) }) {
            Ok(()) => {
                let (address, session) = (pointer.expose_provenance(), self.session.clone());
                Some(Box::new(Registered { address, session, origin: Origin::here() }))
            }
            // The program has registered the pages, and unregisters them itself.
            Err(Failure { code: CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, .. }) => {
                Some(Box::new(()))
            }
            Err(failure) => {
                self.session.note(failure);
                None
            }
        }
    }
}

/// Registered pages, unregistered on drop.
struct Registered {
    address: usize,
    session: Arc<Session>,
    origin: Origin,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        if let Ok(_entered) = self.session.enter_lost() {
            let address = std::ptr::with_exposed_provenance_mut::<c_void>(self.address);
            // SAFETY: registered before, unregistered once, while the memory lives. The driver only looks the
            // address up.
            let _ = unsafe { cuMemHostUnregister(address) };
        }
    }
}
