//! How CUDA locks pages of host memory, and when that pays.
//!
//! ```text
//!   the first transfers of a block     staged by several cores, or by the driver's call if there are too few
//!   when registering would have paid   pages are registered; transfers then run at link speed, without cores
//! ```
//! Registering pages takes three to four times as long as moving them. Other driver calls wait meanwhile, so
//! a background thread does not help. A copy staged by eight cores takes little longer than the link.
//!
//! So a block's pages are registered when its staged copies have lost as much time against the link as
//! registering takes. A vector that is sent a few times is not registered, and the total time is at most
//! twice the optimum. The driver's own copy is so slow that, without staging cores, registering pays at once.

use super::error::{Failure, check};
use super::session::Session;
use crate::fork::Origin;
use crate::locked::{PageLocker, next_holder, time_ns};
use cudarc::driver::sys::{CUresult, cuMemHostRegister_v2, cuMemHostUnregister};
use dml_core::HostSpan;
use dml_core::internal::sync::Arc;
use std::any::Any;
use std::ffi::c_void;
use std::sync::OnceLock;

/// Fixed cost of registering, in nanoseconds.
const ONCE_NS: u64 = 100_000;
/// Rate of registering, in bytes per second. This and the other figures were measured on an H200 beside 16
/// cores (docs/results/cuda.md).
const LOCKED_BYTES_PER_S: u64 = 16_000_000_000;
/// Rates of the driver's copies of ordinary and of page-locked memory, in bytes per second.
const ORDINARY_BYTES_PER_S: u64 = 8_400_000_000;
const LINK_BYTES_PER_S: u64 = 54_000_000_000;
/// Rate at which one core stages beside others, in bytes per second.
const STAGED_BYTES_PER_S: u64 = 5_600_000_000;
/// Fixed cost of a staged copy, in nanoseconds: starting threads, and first pieces that overlap with nothing.
const STAGED_ONCE_NS: u64 = 500_000;
/// Maximum number of threads that copy for one transfer. Eight threads reach the speed of the link.
pub(super) const MAX_COPIERS: usize = 8;
/// Flags of memory that is locked for all contexts and that kernels may use in place
/// (`CU_MEMHOSTREGISTER_PORTABLE`, `CU_MEMHOSTREGISTER_DEVICEMAP`).
const FOR_ALL: u32 = 1 | 2;

/// Returns the rate at which `copiers` threads stage, in bytes per second.
fn staged_bytes_per_s(copiers: usize) -> u64 {
    STAGED_BYTES_PER_S.saturating_mul(copiers as u64).min(LINK_BYTES_PER_S)
}

/// Returns whether `copiers` threads stage a copy of ordinary memory faster than the driver copies it.
pub(super) fn staging_pays(bytes: u64, copiers: usize) -> bool {
    let rate = staged_bytes_per_s(copiers);
    rate > ORDINARY_BYTES_PER_S
        && u128::from(STAGED_ONCE_NS) + time_ns(bytes, rate) < time_ns(bytes, ORDINARY_BYTES_PER_S)
}

/// Returns the time that a transfer of unregistered memory loses against the link, in nanoseconds, if
/// `copiers` threads can stage it.
pub(super) fn lost_ns(bytes: u64, copiers: usize) -> u64 {
    let time = match staging_pays(bytes, copiers) {
        true => u128::from(STAGED_ONCE_NS) + time_ns(bytes, staged_bytes_per_s(copiers)),
        false => time_ns(bytes, ORDINARY_BYTES_PER_S),
    };
    u64::try_from(time - time_ns(bytes, LINK_BYTES_PER_S)).unwrap_or(u64::MAX)
}

/// Returns whether to register a block's pages, given the time that its transfers so far have lost.
pub(super) fn pays(block_bytes: u64, lost_ns: u64) -> bool {
    u128::from(lost_ns) >= u128::from(ONCE_NS) + time_ns(block_bytes, LOCKED_BYTES_PER_S)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    const MIB: u64 = 1 << 20;

    #[test]
    fn pages_are_registered_when_the_copies_so_far_would_have_paid_for_it() {
        // Returns the index of the transfer of `bytes` bytes at which a block is registered, from 1.
        let first = |copiers, block_bytes, bytes| {
            let lost = lost_ns(bytes, copiers);
            (1..10_000).find(|times| pays(block_bytes, times * lost)).unwrap()
        };
        let gib = 1024 * MIB;
        assert_eq!(first(0, gib, gib), 1, "no threads stage, and the driver's copies are slow");
        assert!((2..6).contains(&first(4, gib, gib)) && (10..20).contains(&first(8, gib, gib)));
        assert!(first(0, gib, 64 * MIB) > 4, "a range of the block");
        assert!((4..20).contains(&first(8, 40 * MIB, 2 * MIB)), "packages are too small to be staged");
        assert_eq!(first(8, MIB, MIB), 2);
        assert!(!pays(0, 0) && !pays(u64::MAX, 1_000_000) && lost_ns(0, 4) == 0);
    }

    #[test]
    fn staging_pays_from_some_megabytes_on_where_several_cores_copy() {
        assert!(staging_pays(64 * MIB, 2) && !staging_pays(4 * MIB, 2));
        assert!(staging_pays(8 * MIB, 8) && !staging_pays(2 * MIB, 8));
        assert!(!staging_pays(u64::MAX, 0) && staging_pays(u64::MAX, usize::MAX));
        assert!(!staging_pays(0, 4));
    }
}
