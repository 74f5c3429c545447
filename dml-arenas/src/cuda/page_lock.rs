//! How CUDA locks pages of host memory, and when that pays.
//!
//! ```text
//!   the first transfers of a block     staged by several cores, or by the driver's call where there are too few
//!   when registering would have paid   its pages are registered; from then on it goes at the link's speed with no core's help
//! ```
//! To register pages takes three to four times as long as to move them, and meanwhile other calls of the driver wait, so it is
//! no use to have another thread do it. A staged copy takes little longer than the link where eight cores copy. So pages are registered
//! when the staged copies of a block have taken as much longer than the link as registering takes: whoever sends a vector a few
//! times does not pay for it, and whoever sends it for ever pays at most twice what was best. Where no cores stage, the
//! driver's own copy is so slow that registering pays at once.

use super::error::{Failure, check};
use super::session::Session;
use crate::fork::Origin;
use crate::locked::{PageLocker, next_holder, time_ns};
use cudarc::driver::sys::{CUresult, cuMemHostRegister_v2, cuMemHostUnregister};
use dml_core::HostSpan;
use dml_core::sync::Arc;
use std::any::Any;
use std::ffi::c_void;
use std::sync::OnceLock;

/// What registering takes, whatever the size, in nanoseconds.
const ONCE_NS: u64 = 100_000;
/// How much memory is registered in a second, in bytes. Together with the other figures: measured on an H200 beside 16 cores
/// (docs/results/cuda.md).
const LOCKED_BYTES_PER_S: u64 = 16_000_000_000;
/// The rates of the driver's copies of ordinary memory, and of locked memory, in bytes per second.
const ORDINARY_BYTES_PER_S: u64 = 8_400_000_000;
const LINK_BYTES_PER_S: u64 = 54_000_000_000;
/// How much memory one core stages in a second beside others, in bytes.
const STAGED_BYTES_PER_S: u64 = 5_600_000_000;
/// What a staged copy takes beyond the time of its bytes: threads are started, and the first pieces have nothing beside them.
const STAGED_ONCE_NS: u64 = 500_000;
/// The most threads that copy for one transfer. More would not be faster than the link.
pub(super) const MAX_COPIERS: usize = 8;
/// The flags of memory that is locked for all contexts, and that kernels may use in place (`CU_MEMHOSTREGISTER_PORTABLE`, `CU_MEMHOSTREGISTER_DEVICEMAP`).
const FOR_ALL: u32 = 1 | 2;

/// Returns the rate at which so many threads stage, in bytes per second.
fn staged_bytes_per_s(copiers: usize) -> u64 {
    STAGED_BYTES_PER_S.saturating_mul(copiers as u64).min(LINK_BYTES_PER_S)
}

/// Returns whether `copiers` threads stage a copy of ordinary memory in less time than the driver takes for it.
pub(super) fn staging_pays(bytes: u64, copiers: usize) -> bool {
    let rate = staged_bytes_per_s(copiers);
    rate > ORDINARY_BYTES_PER_S
        && u128::from(STAGED_ONCE_NS) + time_ns(bytes, rate) < time_ns(bytes, ORDINARY_BYTES_PER_S)
}

/// Returns how much longer a transfer of so many bytes takes if they are not registered and so many threads stage, in nanoseconds.
pub(super) fn lost_ns(bytes: u64, copiers: usize) -> u64 {
    let time = match staging_pays(bytes, copiers) {
        true => u128::from(STAGED_ONCE_NS) + time_ns(bytes, staged_bytes_per_s(copiers)),
        false => time_ns(bytes, ORDINARY_BYTES_PER_S),
    };
    u64::try_from(time - time_ns(bytes, LINK_BYTES_PER_S)).unwrap_or(u64::MAX)
}

/// Returns whether a block's pages are to be registered, whose transfers so far would have lost so much time.
pub(super) fn pays(block_bytes: u64, lost_ns: u64) -> bool {
    u128::from(lost_ns) >= u128::from(ONCE_NS) + time_ns(block_bytes, LOCKED_BYTES_PER_S)
}

/// Registers pages for all contexts of the process, through one device's.
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
    /// What is registered serves all GPUs, and cannot be registered again.
    fn holder(&self) -> u64 {
        static HOLDER: OnceLock<u64> = OnceLock::new();
        *HOLDER.get_or_init(next_holder)
    }

    fn lock(&self, memory: &HostSpan) -> Option<Box<dyn Any + Send>> {
        let size = usize::try_from(memory.len()).ok().filter(|size| *size > 0)?;
        let pointer = memory.as_ptr().cast::<c_void>();
        let _entered = self.session.enter().ok()?;
        // SAFETY: memory of this size, which outlives the registration: the block, or the scratch, drops it first.
        match check("cuMemHostRegister", unsafe { cuMemHostRegister_v2(pointer, size, FOR_ALL) }) {
            Ok(()) => {
                let (address, session) = (pointer.expose_provenance(), self.session.clone());
                Some(Box::new(Registered { address, session, origin: Origin::here() }))
            }
            // The program has registered it, and gives it back itself.
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

/// Pages that are registered, until it is dropped.
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
            // SAFETY: registered before, given back once, while the memory lives. The driver only looks the address up.
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
        // The first of several transfers, of so many bytes each, at which a block is registered.
        let first = |copiers, block_bytes, bytes| {
            let lost = lost_ns(bytes, copiers);
            (1..10_000).find(|times| pays(block_bytes, times * lost)).unwrap()
        };
        let gib = 1024 * MIB;
        assert_eq!(first(0, gib, gib), 1, "nobody stages, and the driver's copies are slow");
        assert!((2..6).contains(&first(4, gib, gib)) && (10..20).contains(&first(8, gib, gib)));
        assert!(first(0, gib, 64 * MIB) > 4, "a range of it");
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
