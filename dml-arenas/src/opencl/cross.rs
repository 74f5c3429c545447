//! Links an OpenCL arena with main memory.
//!
//! Each direction has two mechanisms. Read/write uses the driver's calls, which leave the map state alone, so other
//! readers of the block go on. Map lets the host reach the block itself, and the processor copies. Mapping is cheap
//! where device and host share their memory, but it excludes the device meanwhile.
//!
//! The mapped memory may belong to the driver and be shared with its device. The processor copies to and from it
//! without asking the arena, so the mechanisms themselves refuse to copy in a fork.

use super::device::Sort;
use crate::fork::Origin;
use crate::join::{self, End};
use dml_core::{
    Allocation, CopyJob, CopyQuery, Cost, CrossArena, Fence, HostMapped, HostStaged, LinkSpeed,
    PlatformBuilder, TransferError,
};

/// The speeds of the two mechanisms for one sort of device. They are guesses in the right order of magnitude, until
/// `calibrate` has measured the machine.
struct Speeds {
    staged: LinkSpeed,
    mapped: LinkSpeed,
}

impl Speeds {
    fn of(sort: Sort) -> Self {
        let speed = |latency_ns, bytes_per_s, remap_ns| LinkSpeed { latency_ns, bytes_per_s, remap_ns };
        match sort {
            // The device is the processor. A read or write is a copy in memory by the driver's thread, which must be
            // woken. Mapping costs nothing, and the caller makes the copy.
            Sort::Cpu => Self {
                staged: speed(60_000, 13_500_000_000, 10_000),
                mapped: speed(15_000, 12_000_000_000, 10_000),
            },
            // Transfers cross PCI Express. A map moves the whole block there and back, so its rate includes both.
            Sort::Gpu => Self {
                staged: speed(20_000, 8_000_000_000, 20_000),
                mapped: speed(30_000, 4_000_000_000, 20_000),
            },
            Sort::Other => Self {
                staged: speed(30_000, 4_000_000_000, 30_000),
                mapped: speed(40_000, 2_000_000_000, 30_000),
            },
        }
    }
}

/// Links an OpenCL arena with main memory: both mechanisms, both directions.
pub(super) fn join(builder: &mut PlatformBuilder, host: End, device: End, sort: Sort) {
    let speeds = Speeds::of(sort);
    let (staged, mapped) =
        (Here::new(HostStaged::new(speeds.staged)), Here::new(HostMapped::new(speeds.mapped)));
    join::both_ways(builder, (host, host.native), (device, device.native), Allocation::Internal, staged);
    // The host reaches the device's memory itself.
    join::both_ways(builder, (host, host.native), (device, host.native), Allocation::Internal, mapped);
}

/// A mechanism that copies in the process that made it, but not in its forks.
#[derive(Debug)]
struct Here<M> {
    mechanism: M,
    origin: Origin,
}

impl<M: CrossArena> Here<M> {
    fn new(mechanism: M) -> Self {
        Self { mechanism, origin: Origin::here() }
    }
}

impl<M: CrossArena> CrossArena for Here<M> {
    fn name(&self) -> &str {
        self.mechanism.name()
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.mechanism.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        if self.origin.is_here() { self.mechanism.copy(job) } else { Err(TransferError::DeviceLost) }
    }
}
