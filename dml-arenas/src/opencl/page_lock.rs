//! How OpenCL locks pages of host memory.
//!
//! OpenCL has no call to lock pages, but a buffer created over host memory (`CL_MEM_USE_HOST_PTR`) locks them
//! while it lives. Transfers between that memory and any other buffer are then fast. The buffer has no other
//! purpose, and no command names it.

use super::handle::Mem;
use super::session::Session;
use crate::locked::{PageLocker, Rates};
use dml_core::HostSpan;
use opencl3::memory::{CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, create_buffer};
use std::any::Any;

/// Measured on an H200 with its driver (docs/results/opencl.md).
pub(super) const RATES: Rates = Rates {
    locking_once_ns: 150_000,
    locking_bytes_per_s: 22_000_000_000,
    ordinary_bytes_per_s: 13_000_000_000,
    link_bytes_per_s: 54_000_000_000,
    staging_once_ns: 150_000,
    staging_bytes_per_s: 11_000_000_000,
};
/// Maximum number of threads that copy for one transfer. Four reach about 80 % of the link's rate.
pub(super) const MAX_COPIERS: usize = 4;

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
        join(&mut builder, main, &side, (crate::options::Mechanisms::All, None));
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
}
