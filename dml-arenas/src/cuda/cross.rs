//! Links of a GPU with main memory and with other GPUs.
//!
//! ```text
//!   main memory ◀──▶ cuda:0        copies; page-locked or staged, where that pays
//!   cuda:0 ◀──▶ cuda:1             peer copies, where both reach each other's memory
//!                                  else relayed through page-locked scratch memory, both GPUs at once
//! ```

use super::block::CudaBlock;
use super::page_lock::{MAX_COPIERS, RATES, Registrar};
use super::session::{Session, Way};
use crate::kit::join_both_ways;
use crate::locked::{self, Here, PageLocking, RelayEnd, ScratchPool, Staging, copiers};
use crate::main_mem::PageLockBudget;
use cudarc::driver::sys::{
    CUdevice_P2PAttribute, cuDeviceCanAccessPeer, cuDeviceGetP2PAttribute, cuMemcpyPeerAsync,
};
use dml_core::internal::sync::Arc;
use dml_core::{
    Allocation, ArenaId, CopyJob, CopyQuery, Cost, CrossArena, Fence, HostStaged, Link, LinkSpeed,
    PlatformBuilder, TransferError,
};

/// Default speeds until `calibrate` has measured the machine: transfers over PCI Express, copies between GPUs
/// over NVLink, and copies between GPUs over PCI Express.
const HOST: LinkSpeed = LinkSpeed { latency_ns: 12_000, bytes_per_s: 40_000_000_000, remap_ns: 0 };
const NVLINK: LinkSpeed = LinkSpeed { latency_ns: 12_000, bytes_per_s: 300_000_000_000, remap_ns: 0 };
const PCI: LinkSpeed = LinkSpeed { latency_ns: 15_000, bytes_per_s: 24_000_000_000, remap_ns: 0 };

/// A GPU as the end of a link.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) arena: ArenaId,
    pub(super) session: &'a Arc<Session>,
}

/// Links a GPU with main memory in both directions. The rate of the link may have been measured before.
pub(super) fn join(
    builder: &mut PlatformBuilder,
    main: ArenaId,
    side: &Side<'_>,
    (budget, pool): (&Arc<PageLockBudget>, &Arc<ScratchPool>),
    measured_bytes_per_s: Option<u64>,
) {
    let rates = RATES.on_link(measured_bytes_per_s);
    let locking = PageLocking {
        mechanism: HostStaged::new(HOST),
        locker: Registrar::new(side.session),
        budget: budget.clone(),
        staging: Staging::new(pool, copiers(MAX_COPIERS), Some(rates)),
        rates,
    };
    join_both_ways(builder, main, side.arena, Here::new(locking));
}

/// Links two GPUs in both directions: by peer copies where both reach each other, else through scratch
/// memory.
pub(super) fn join_devices(builder: &mut PlatformBuilder, sides: [&Side<'_>; 2], pool: &Arc<ScratchPool>) {
    let [one, two] = sides;
    match peers(one.session, two.session) {
        Some(speed) => {
            for [from, to] in [[one, two], [two, one]] {
                let (source_via, target_via) = (builder.native(from.arena), builder.native(to.arena));
                let allocation = Allocation::Internal;
                let link = Link { from: from.arena, to: to.arena, source_via, target_via, allocation };
                builder.add_link(link, Arc::new(Here::new(Peer { speed })));
            }
        }
        None => {
            let ends = sides.map(|side| RelayEnd {
                arena: side.arena,
                speed: HOST,
                locker: Registrar::new(side.session),
            });
            locked::relay(builder, [&ends[0], &ends[1]], pool);
        }
    }
}

/// Enables peer access between two GPUs. Returns the speed of copies between them, or `None` if one of them
/// cannot reach the other.
fn peers(one: &Session, two: &Session) -> Option<LinkSpeed> {
    let (a, b) = (one.found.device, two.found.device);
    let reaches = |from, to| {
        let mut can = 0;
        // SAFETY: two devices of the driver; the call writes a number.
        let asked = unsafe { cuDeviceCanAccessPeer(&raw mut can, from, to) };
        asked == cudarc::driver::sys::CUresult::CUDA_SUCCESS && can != 0
    };
    if a == b || !reaches(a, b) || !reaches(b, a) || !one.open_to(two) || !two.open_to(one) {
        return None;
    }
    let mut native = 0;
    let attribute = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    // SAFETY: as above. NVLink carries atomic operations, PCI Express does not.
    let _ = unsafe { cuDeviceGetP2PAttribute(&raw mut native, attribute, a, b) };
    Some(if native != 0 { NVLINK } else { PCI })
}

/// Peer copies from one GPU's memory to another's. The source's session enqueues them.
#[derive(Debug)]
struct Peer {
    speed: LinkSpeed,
}

impl CrossArena for Peer {
    fn name(&self) -> &'static str {
        "peer"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        Some(self.speed.cost(query))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let ends = [job.from().block, job.to().block].map(|block| block.downcast_ref::<CudaBlock>());
        let [Some(from), Some(to)] = ends else { return job.stage() };
        // Peers may have no access to memory that the arena did not allocate.
        if !from.is_of_pool() || !to.is_of_pool() {
            return job.stage();
        }
        if job.is_empty() {
            return Ok(Fence::done(0));
        }
        let (start, bytes) = (job.span().start(), job.len());
        let (source, target) = (from.at(start), to.at(start));
        let (session, other) = (from.session().clone(), to.session().clone());
        if other.is_lost() {
            return Err(TransferError::DeviceLost { loss: None });
        }
        let (here, there) = (session.context(), other.context());
        // SAFETY: the job's bytes lie within both blocks, and are reserved for it until it is dropped. The
        // job keeps the blocks, and the blocks keep their sessions.
        unsafe {
            session.command((Way::Peers, "cuMemcpyPeerAsync"), bytes, job, |stream| {
                cuMemcpyPeerAsync(target, there, source, here, bytes as usize, stream)
            })
        }
    }
}
