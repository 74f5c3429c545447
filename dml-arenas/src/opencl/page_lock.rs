//! Page-locking of host memory by OpenCL, and the model of when it pays.
//!
//! OpenCL has no call to lock pages, but a buffer created over host memory (`CL_MEM_USE_HOST_PTR`) locks them
//! while it lives. Transfers between that memory and any other buffer are then fast. The buffer has no other
//! purpose, and no command names it.
//!
//! A block's pages are locked once the time that its transfers would have saved reaches the cost of locking.
//! Other copies are staged, if enough cores copy to be faster than the driver: see `locked`.

use super::handle::Mem;
use super::session::Session;
use crate::locked::{PageLocker, time_ns};
use dml_core::HostSpan;
use opencl3::memory::{CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, create_buffer};
use std::any::Any;

/// Fixed time to lock and unlock memory of any size, in nanoseconds.
const ONCE_NS: u64 = 150_000;
/// Rate of locking and unlocking, in bytes per second. This file's rates and times were measured on an H200
/// with its driver (docs/results/opencl.md).
const LOCKED_BYTES_PER_S: u64 = 22_000_000_000;
/// Rate of transfers of pageable memory, in bytes per second.
const ORDINARY_BYTES_PER_S: u64 = 13_000_000_000;
/// Rate of transfers of locked memory, in bytes per second.
const LINK_BYTES_PER_S: u64 = 54_000_000_000;

/// Rate at which one core copies memory, in bytes per second.
const COPIED_BYTES_PER_S: u64 = 11_000_000_000;
/// Fixed time of a staged copy, in nanoseconds: threads start, and the first and last parts overlap nothing.
const STAGED_ONCE_NS: u64 = 150_000;
/// Maximum number of threads that copy for one transfer. Four reach about 80 % of the link's rate.
pub(super) const MAX_COPIERS: usize = 4;

/// Returns whether `copiers` threads stage a copy of pageable memory in less time than the driver needs.
pub(super) fn staging_pays(bytes: u64, copiers: usize) -> bool {
    let copied_bytes_per_s = COPIED_BYTES_PER_S.saturating_mul(copiers as u64).min(LINK_BYTES_PER_S);
    copied_bytes_per_s > 0
        && u128::from(STAGED_ONCE_NS) + time_ns(bytes, copied_bytes_per_s)
            < time_ns(bytes, ORDINARY_BYTES_PER_S)
}

/// Returns whether a locked block would have saved at least the cost of locking for `moved_bytes` bytes.
pub(super) fn pays(block_bytes: u64, moved_bytes: u64) -> bool {
    let lock = u128::from(ONCE_NS) + time_ns(block_bytes, LOCKED_BYTES_PER_S);
    time_ns(moved_bytes, ORDINARY_BYTES_PER_S) - time_ns(moved_bytes, LINK_BYTES_PER_S) >= lock
}

impl PageLocker for Session {
    fn holder(&self) -> u64 {
        self.id()
    }

    fn lock(&self, memory: &HostSpan) -> Option<Box<dyn Any + Send>> {
        let size = usize::try_from(memory.len()).ok().filter(|size| *size > 0)?;
        let (context, address) = (self.context().ok()?, memory.as_ptr().cast());
        // SAFETY: a live context, and memory of this size that outlives the buffer: its block or scratch
        // piece drops the buffer first. The device does not access the memory through the buffer, because no
        // command names it.
        let made = unsafe { create_buffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, size, address) };
        let made = made.inspect_err(|code| self.note(*code)).ok()?;
        // SAFETY: the buffer was just created, and its only reference is taken over here.
        Some(Box::new(unsafe { Mem::own(made) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::arena::OpenClArena;
    use super::super::cross::{Side, join};
    use super::super::testing::{found, open};
    use super::*;
    use crate::locked::ScratchPool;
    use crate::main_mem::{self, PageLockBudget};
    use crate::options::DiscoverOptions;
    use dml_core::internal::sync::Arc;
    use dml_core::{DeviceDesc, DeviceId, DeviceKind, Platform};

    const CPU: DeviceId = DeviceId(0);

    /// Returns a platform whose first OpenCL device, of any sort, page-locks the memory that it transfers.
    fn locking(budget: &Arc<PageLockBudget>) -> Option<(Platform, DeviceId, Arc<Session>)> {
        let found = found()?;
        let mut builder = Platform::builder();
        let main = main_mem::discover::discover(&mut builder, &DiscoverOptions::default()).unwrap();
        let session = open(found);
        let native = builder.add_device(DeviceDesc::new("opencl:0", DeviceKind::Accelerator));
        let arena = OpenClArena::new(session.clone(), "opencl:0", native, builder.native(main));
        let arena = builder.add_arena(Arc::new(arena));
        let scratch = ScratchPool::new(0, budget);
        let locking = Some((budget, &scratch));
        let side = Side { arena, sort: found.sort, session: &session, locking };
        join(&mut builder, main, &side, crate::options::Mechanisms::All);
        Some((builder.build().unwrap(), native, session))
    }

    /// Returns whether the buffer's storage in main memory is locked.
    fn is_locked(platform: &Platform, data: &dml_core::Buffer<u32>, session: &Session) -> bool {
        let grants = platform.acquire(CPU).read(data).wait().unwrap();
        let locked = {
            let block = grants.block(data).unwrap().expect("main memory has blocks");
            main_mem::page_locks(block).expect("a block of main memory").0.is_held(session.id())
        };
        grants.release().unwrap();
        locked
    }

    #[test]
    fn locked_memory_is_transferred_both_ways_and_given_back() {
        const ITEMS: u32 = 6 << 20;
        let budget = PageLockBudget::new(64 << 20);
        let Some((platform, device, session)) = locking(&budget) else { return };
        let data = platform.buffer_from((0..ITEMS).collect::<Vec<_>>()).unwrap();
        let small = platform.buffer_from(vec![3_u32; 100]).unwrap();
        for buffer in [&data, &small] {
            platform.acquire(device).read_write(buffer).wait().unwrap().release().unwrap();
        }
        // The device has the only valid copy, so `read` transfers from it into locked memory.
        assert!(is_locked(&platform, &data, &session) && !is_locked(&platform, &small, &session));
        assert!(data.read().unwrap().iter().copied().eq(0..ITEMS));
        let mut view = data.read_write().unwrap();
        view.iter_mut().for_each(|word| *word = word.wrapping_mul(3));
        view.release().unwrap();
        platform.acquire(device).read_write(&data).wait().unwrap().release().unwrap();
        let back = data.into_vec().unwrap();
        assert!(back.iter().copied().eq((0..ITEMS).map(|word| word.wrapping_mul(3))));
        // The application owns the storage again, and its pages are unlocked.
        assert!(budget.is_unused());
    }

    #[test]
    fn without_a_budget_nothing_is_locked() {
        let Some((platform, device, session)) = locking(&PageLockBudget::new(0)) else { return };
        let data = platform.buffer_from((0..6 << 20).collect::<Vec<u32>>()).unwrap();
        platform.acquire(device).read_write(&data).wait().unwrap().release().unwrap();
        assert!(!is_locked(&platform, &data, &session));
        assert!(data.read().unwrap().iter().copied().eq(0..6 << 20));
    }

    #[test]
    fn large_memory_is_locked_at_once_and_small_memory_when_it_is_used_again() {
        const MIB: u64 = 1 << 20;
        assert!(pays(256 * MIB, 256 * MIB) && pays(64 * MIB, 64 * MIB));
        assert!(!pays(256 * MIB, 64 * MIB), "a range of a large block does not pay for all of it");
        assert!(!pays(4 * MIB, 4 * MIB) && pays(4 * MIB, 8 * MIB));
        assert!(!pays(1000, 100_000) && pays(1000, 3 * MIB));
        assert!(!pays(0, 0) && pays(u64::MAX, u64::MAX));
    }

    #[test]
    fn staging_pays_from_some_megabytes_on_where_several_cores_copy() {
        const MIB: u64 = 1 << 20;
        assert!(
            (0..2).all(|copiers| !staging_pays(u64::MAX, copiers)),
            "one core is no faster than the driver"
        );
        assert!(staging_pays(8 * MIB, 2) && !staging_pays(2 * MIB, 2));
        assert!(staging_pays(4 * MIB, 4) && !staging_pays(MIB, 4));
        assert!(!staging_pays(0, 4) && staging_pays(u64::MAX, usize::MAX));
    }
}
