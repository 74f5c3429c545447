//! Copies between two discrete devices, through scratch memory that is locked for both.

use super::{Here, PIECE_BYTES, PageLocker, ScratchPool, Staging};
use dml_core::internal::sync::Arc;
use dml_core::{
    Allocation, ArenaId, CopyJob, CopyQuery, Cost, CrossArena, Fence, Link, LinkSpeed, PlatformBuilder,
    TransferError,
};

/// One of the two devices of a relay.
#[derive(Clone, Debug)]
pub(crate) struct RelayEnd {
    pub(crate) arena: ArenaId,
    /// The speed of copies between the device and locked memory.
    pub(crate) speed: LinkSpeed,
    pub(crate) locker: Arc<dyn PageLocker>,
}

/// Links two discrete devices in both directions, through scratch memory that is locked for both.
pub(crate) fn relay(builder: &mut PlatformBuilder, ends: [&RelayEnd; 2], pool: &Arc<ScratchPool>) {
    for [from, to] in [ends, [ends[1], ends[0]]] {
        let relayed = Relayed {
            speeds: [from, to].map(|end| end.speed),
            lockers: [from, to].map(|end| end.locker.clone()),
            staging: Staging::new(pool, 1, None),
        };
        let (source_via, target_via) = (builder.native(from.arena), builder.native(to.arena));
        let allocation = Allocation::Internal;
        let link = Link { from: from.arena, to: to.arena, source_via, target_via, allocation };
        builder.add_link(link, Arc::new(Here::new(relayed)));
    }
}

/// A mechanism that copies between two devices. The source is read into scratch memory part by part. Each
/// part is written to the destination while the next one is read.
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

    /// Returns the time of the slower of the two copies, plus one piece of the other. The rest overlaps.
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

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;
    use crate::locked::next_holder;
    use crate::main_mem::PageLockBudget;
    use dml_core::HostSpan;
    use std::any::Any;

    #[derive(Debug)]
    struct Unwilling(u64);

    impl PageLocker for Unwilling {
        fn holder(&self) -> u64 {
            self.0
        }

        fn lock(&self, _memory: &HostSpan) -> Option<Box<dyn Any + Send>> {
            None
        }
    }

    /// The slower device takes the whole time, and the other one adds the first or the last piece.
    #[test]
    fn a_relay_costs_what_its_slower_end_takes_and_a_piece_at_the_other() {
        let pool = ScratchPool::new(0, &PageLockBudget::new(0));
        let slow = LinkSpeed { latency_ns: 7_000, bytes_per_s: 2_000_000_000, remap_ns: 300 };
        let fast = LinkSpeed { latency_ns: 1_000, bytes_per_s: 10_000_000_000, remap_ns: 20 };
        let query = |bytes, remap_source, remap_target| {
            let allocates = true;
            CopyQuery { bytes, remap_source, remap_target, allocates }
        };
        let locker = || -> Arc<dyn PageLocker> { Arc::new(Unwilling(next_holder())) };
        let cost = |speeds, query: &CopyQuery| {
            let staging = Staging::new(&pool, 1, None);
            Relayed { speeds, lockers: [locker(), locker()], staging }
                .can_copy(query)
                .unwrap()
                .as_ns()
                .unwrap()
        };
        let (whole, piece) = (50 * PIECE_BYTES, PIECE_BYTES);
        let (slow_ns, fast_ns) = (7_000 + whole / 2, 1_000 + piece / 10);
        for speeds in [[slow, fast], [fast, slow]] {
            assert_eq!(cost(speeds, &query(whole, false, false)), slow_ns + fast_ns, "{speeds:?}");
        }
        // The two transfers of less than a piece do not overlap.
        assert_eq!(cost([slow, fast], &query(1_000, false, false)), 7_000 + 500 + 1_000 + 100);
        // Each end is mapped once, at its own price.
        assert_eq!(cost([slow, fast], &query(whole, true, false)), slow_ns + fast_ns + 300);
        assert_eq!(cost([slow, fast], &query(whole, false, true)), slow_ns + fast_ns + 20);
        assert_eq!(cost([slow, fast], &query(whole, true, true)), slow_ns + fast_ns + 320);
    }
}
