//! Links between an OpenCL arena and main memory.
//!
//! Each direction has two mechanisms:
//! - *Read/write* uses the driver's transfer calls. They leave the map state alone, so other readers of the
//!   block continue.
//! - *Map* maps the block for the host, and the processor copies. Meanwhile the device cannot use the block.
//!   Mapping is cheap where device and host share their memory. On other devices it moves the whole block, so
//!   they use this mechanism only on request.
//!
//! A device can also be bound to main memory or to shared memory. Both then use one storage, and map and
//! unmap calls pass it between host and device.
//!
//! Mapped memory may belong to the driver. The processor copies to and from it without a call of the arena,
//! so the mechanisms themselves refuse to copy in a fork.

use super::device::Sort;
use super::page_lock::{MAX_COPIERS, RATES};
use super::session::Session;
use crate::kit::{join_both_ways, join_staged, join_via};
use crate::locked::{self, Here, PageLocking, RelayEnd, ScratchPool, Staging, copiers};
use crate::main_mem::PageLockBudget;
use crate::options::Mechanisms;
use dml_core::internal::sync::Arc;
use dml_core::{
    Allocation, ArenaId, Binding, Concurrency, CopyJob, CopyQuery, Cost, CrossArena, Fence, HostMapped,
    HostStaged, Link, LinkSpeed, PlatformBuilder, TransferError,
};

/// The default speeds of the two mechanisms for one sort of device.
///
/// They are order-of-magnitude guesses, which count until `calibrate` has measured the machine.
struct Speeds {
    staged: LinkSpeed,
    mapped: LinkSpeed,
}

impl Speeds {
    fn of(sort: Sort) -> Self {
        let speed = |latency_ns, bytes_per_s, remap_ns| LinkSpeed { latency_ns, bytes_per_s, remap_ns };
        match sort {
            // The device is the processor. A read or write is a memory copy by the driver's thread, which
            // must be woken. Mapping moves nothing, and the calling thread copies.
            Sort::Cpu => Self {
                staged: speed(60_000, 13_500_000_000, 10_000),
                mapped: speed(15_000, 12_000_000_000, 10_000),
            },
            // Transfers cross PCI Express, from and to page-locked memory. A map moves the whole block there
            // and back, so its rate covers both directions.
            Sort::Gpu => Self {
                staged: speed(20_000, 25_000_000_000, 20_000),
                mapped: speed(30_000, 4_000_000_000, 20_000),
            },
            Sort::Other => Self {
                staged: speed(30_000, 4_000_000_000, 30_000),
                mapped: speed(40_000, 2_000_000_000, 30_000),
            },
        }
    }
}

/// The budget for page locks, and the pool of locked scratch memory.
pub(super) type Locking<'a> = (&'a Arc<PageLockBudget>, &'a Arc<ScratchPool>);

/// The device end of the links.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) arena: ArenaId,
    pub(super) sort: Sort,
    pub(super) session: &'a Arc<Session>,
    /// The page-locking resources; `None` for a device that shares the host's memory.
    pub(super) locking: Option<Locking<'a>>,
}

/// Links an OpenCL arena with main memory in both directions, by the selected mechanisms. The rate of the
/// link may have been measured before.
pub(super) fn join(
    builder: &mut PlatformBuilder,
    main: ArenaId,
    side: &Side<'_>,
    (mechanisms, measured_bytes_per_s): (Mechanisms, Option<u64>),
) {
    let (device, speeds) = (side.arena, Speeds::of(side.sort));
    if mechanisms != Mechanisms::Mapped {
        let mechanism = HostStaged::new(speeds.staged);
        match side.locking {
            Some((budget, pool)) => {
                let (locker, budget) = (side.session.clone(), budget.clone());
                let rates = RATES.on_link(measured_bytes_per_s);
                let staging = Staging::new(pool, copiers(MAX_COPIERS), Some(rates));
                let locking = PageLocking { mechanism, locker, budget, staging, rates };
                join_both_ways(builder, main, device, Here::new(locking));
            }
            None => join_both_ways(builder, main, device, Here::new(mechanism)),
        }
    }
    // A map of a discrete device's block moves all of it there and back, even for a copy of a few bytes. So
    // such a device has map links only on request.
    let maps = match mechanisms {
        Mechanisms::Staged => false,
        Mechanisms::Mapped => true,
        _ => side.locking.is_none(),
    };
    if maps {
        let mapped = Here::new(HostMapped::new(speeds.mapped));
        // The host accesses the mapped block itself.
        let host = builder.native(main);
        join_via(builder, (main, host), (device, host), Allocation::Internal, mapped);
    }
}

/// Links two discrete devices in both directions, through scratch memory that is locked for both.
pub(super) fn relay(builder: &mut PlatformBuilder, sides: [&Side<'_>; 2], pool: &Arc<ScratchPool>) {
    let ends = sides.map(|side| RelayEnd {
        arena: side.arena,
        speed: Speeds::of(side.sort).staged,
        locker: side.session.clone(),
    });
    locked::relay(builder, [&ends[0], &ends[1]], pool);
}

/// The buffers for which a device is bound to the storage of another arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// No buffers.
    Never,
    /// Buffers whose hints request it, bound to this root.
    OnRequest(ArenaId),
    /// All buffers that can be bound to this root.
    Preferred(ArenaId),
}

/// Links the device to a root, main memory or shared memory, whose storage it can be bound to.
///
/// The copy links remain for buffers of which the device already has storage, and for unbound buffers.
pub(super) fn share(builder: &mut PlatformBuilder, side: &Side<'_>, sharing: Sharing) {
    let (root, device) = match sharing {
        Sharing::Never => return,
        Sharing::OnRequest(root) | Sharing::Preferred(root) => (root, side.arena),
    };
    let allocation = Allocation::Bound(Concurrency::Exclusive);
    let (source_via, target_via) = (builder.native(root), builder.native(device));
    let link = Link { from: root, to: device, source_via, target_via, allocation };
    builder.add_link(link, Arc::new(HostPointer::of(side.sort)));
    match sharing {
        Sharing::Preferred(_) => builder.prefer_binding(root, device),
        Sharing::Never | Sharing::OnRequest(_) => builder.allow_binding(root, device),
    }
}

/// Binds main memory and the device to shared virtual memory, which both use concurrently.
///
/// Copies to main memory remain for buffers with storage elsewhere, such as vectors of the application.
pub(super) fn unify(builder: &mut PlatformBuilder, main: ArenaId, svm: ArenaId, device: ArenaId) {
    // A memory copy by this process.
    join_staged(builder, main, svm, LinkSpeed { latency_ns: 500, bytes_per_s: 8_000_000_000, remap_ns: 0 });
    let binding = LinkSpeed { latency_ns: 10_000, bytes_per_s: u64::MAX, remap_ns: 0 };
    for member in [main, device] {
        let allocation = Allocation::Bound(Concurrency::BimapFull);
        let (source_via, target_via) = (builder.native(svm), builder.native(member));
        let link = Link { from: svm, to: member, source_via, target_via, allocation };
        builder.add_link(link, Arc::new(Binding::new(binding)));
        builder.prefer_binding(svm, member);
    }
}

/// A binding to host memory: the buffer is created over it, and map and unmap calls hand it over.
#[derive(Debug)]
struct HostPointer {
    /// The one-time cost of creating the buffer.
    once: LinkSpeed,
    /// The cost of each handover of the storage.
    each: LinkSpeed,
}

impl HostPointer {
    fn of(sort: Sort) -> Self {
        let speed = |latency_ns, bytes_per_s, remap_ns| LinkSpeed { latency_ns, bytes_per_s, remap_ns };
        match sort {
            // The device works on the host's memory, so no bytes move.
            Sort::Cpu => Self { once: speed(10_000, u64::MAX, 0), each: speed(5_000, u64::MAX, 10_000) },
            // The driver locks the pages once, and then mirrors them in the device's memory.
            Sort::Gpu => {
                Self { once: speed(50_000, 25_000_000_000, 0), each: speed(20_000, 50_000_000_000, 20_000) }
            }
            Sort::Other => {
                Self { once: speed(50_000, 10_000_000_000, 0), each: speed(30_000, 4_000_000_000, 30_000) }
            }
        }
    }
}

impl CrossArena for HostPointer {
    fn name(&self) -> &'static str {
        "bound"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        let each = self.each.cost(query);
        Some(if query.allocates { each + self.once.cost(query) } else { each })
    }

    fn copy(&self, _job: CopyJob) -> Result<Fence, TransferError> {
        unreachable!("core refreshes a bound pair by its map state; it never copies between the two")
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    /// The buffer is created once, and each use is a handover.
    #[test]
    fn a_binding_is_paid_for_once_and_its_use_each_time() {
        for sort in [Sort::Cpu, Sort::Gpu, Sort::Other] {
            let pointer = HostPointer::of(sort);
            for (bytes, remap_source, remap_target) in
                [(0, false, false), (1 << 20, true, false), (7, false, true)]
            {
                let query = CopyQuery { bytes, remap_source, remap_target, allocates: false };
                let (once, each) = (pointer.once.cost(&query), pointer.each.cost(&query));
                assert!(once > Cost::ZERO && each > Cost::ZERO);
                assert_eq!(pointer.can_copy(&query), Some(each), "{sort:?}: {query:?}");
                let binding = CopyQuery { allocates: true, ..query };
                assert_eq!(pointer.can_copy(&binding), Some(each + once), "{sort:?}: {query:?}");
            }
        }
    }
}
