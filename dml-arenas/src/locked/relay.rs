//! Copies between two devices with memory of their own, through scratch memory that is locked for both.

use super::{Here, PIECE_BYTES, PageLocker, ScratchPool, Staging};
use dml_core::sync::Arc;
use dml_core::{
    Allocation, ArenaId, CopyJob, CopyQuery, Cost, CrossArena, Fence, Link, LinkSpeed, PlatformBuilder,
    TransferError,
};

/// One of two devices.
#[derive(Clone, Debug)]
pub(crate) struct RelayEnd {
    pub(crate) arena: ArenaId,
    /// The speed of copies between the device and locked memory.
    pub(crate) speed: LinkSpeed,
    pub(crate) locker: Arc<dyn PageLocker>,
}

/// Links two devices with memory of their own, in both directions, through scratch memory that is locked for both.
pub(crate) fn relay(builder: &mut PlatformBuilder, ends: [&RelayEnd; 2], pool: &Arc<ScratchPool>) {
    for [from, to] in [ends, [ends[1], ends[0]]] {
        let relayed = Relayed {
            speeds: [from, to].map(|end| end.speed),
            lockers: [from, to].map(|end| end.locker.clone()),
            staging: Staging::new(pool, 1, |_, _| true),
        };
        let (source_via, target_via) = (builder.native(from.arena), builder.native(to.arena));
        let allocation = Allocation::Internal;
        let link = Link { from: from.arena, to: to.arena, source_via, target_via, allocation };
        builder.add_link(link, Arc::new(Here::new(relayed)));
    }
}

/// Copies between two devices: each part is read into scratch memory by one and written from there by the other, while the
/// next part is read.
#[derive(Debug)]
pub(crate) struct Relayed {
    /// The speeds of the copies out of the source and into the destination.
    speeds: [LinkSpeed; 2],
    lockers: [Arc<dyn PageLocker>; 2],
    staging: Staging,
}

impl CrossArena for Relayed {
    fn name(&self) -> &'static str {
        "relayed"
    }

    /// The slower of the two copies hides the other, but for a piece of it.
    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        let out = CopyQuery { remap_target: false, allocates: false, ..*query };
        let back = CopyQuery { remap_source: false, ..*query };
        let piece = |query: &CopyQuery| CopyQuery { bytes: query.bytes.min(PIECE_BYTES), ..*query };
        let [read, write] = &self.speeds;
        let read_longer = read.cost(&out) + write.cost(&piece(&back));
        let write_longer = write.cost(&back) + read.cost(&piece(&out));
        Some(read_longer.max(write_longer))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let [from, to] = &self.lockers;
        match self.staging.take_between([from, to]) {
            Some(taken) => Ok(self.staging.copy(job, taken)),
            None => job.stage(),
        }
    }
}
