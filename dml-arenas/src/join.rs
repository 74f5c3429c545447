//! The ways to join two arenas, written once for every backend.

use dml_core::sync::Arc;
use dml_core::{
    Allocation, ArenaId, Binding, Concurrency, CrossArena, DeviceId, HostMapped, HostStaged, Link, LinkSpeed,
    PlatformBuilder,
};

/// One end of a pair of arenas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// The arena's id.
    pub(crate) arena: ArenaId,
    /// The device that runs the arena's kernels.
    pub(crate) native: DeviceId,
}

impl End {
    /// Returns the end for an arena of the builder.
    ///
    /// # Panics
    /// When the builder has no such arena.
    pub(crate) fn of(builder: &PlatformBuilder, arena: ArenaId) -> Self {
        Self { arena, native: builder.arenas()[usize::from(arena.0)].desc().native }
    }
}

/// Joins `device` with main memory in both directions by the framework's read and write calls, which leave the map
/// state alone: each end is reached through its own device.
pub(crate) fn staged(builder: &mut PlatformBuilder, host: End, device: End, speed: LinkSpeed) {
    both_ways(
        builder,
        (host, host.native),
        (device, device.native),
        Allocation::Internal,
        HostStaged::new(speed),
    );
}

/// Joins `device` with main memory in both directions by mapping: the host reaches the device's memory itself, and the
/// processor copies.
pub(crate) fn mapped(builder: &mut PlatformBuilder, host: End, device: End, speed: LinkSpeed) {
    both_ways(
        builder,
        (host, host.native),
        (device, host.native),
        Allocation::Internal,
        HostMapped::new(speed),
    );
}

/// Lets two arenas share storage under a concurrency, in both directions.
pub(crate) fn bound(
    builder: &mut PlatformBuilder,
    a: End,
    b: End,
    concurrency: Concurrency,
    speed: LinkSpeed,
) {
    both_ways(builder, (a, a.native), (b, b.native), Allocation::Bound(concurrency), Binding::new(speed));
}

/// Adds a mechanism in both directions, each end reached through the device beside it.
pub(crate) fn both_ways(
    builder: &mut PlatformBuilder,
    a: (End, DeviceId),
    b: (End, DeviceId),
    allocation: Allocation,
    mechanism: impl CrossArena + 'static,
) {
    let mechanism: Arc<dyn CrossArena> = Arc::new(mechanism);
    for ((from, source_via), (to, target_via)) in [(a, b), (b, a)] {
        let link = Link { from: from.arena, to: to.arena, source_via, target_via, allocation };
        builder.add_link(link, mechanism.clone());
    }
}
