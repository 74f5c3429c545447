//! The ways to join two arenas, written once for every backend.

use dml_core::sync::Arc;
use dml_core::{
    Allocation, ArenaId, Binding, Concurrency, CrossArena, DeviceId, HostMapped, HostStaged, Link, LinkSpeed,
    PlatformBuilder,
};

/// Joins two arenas in both directions by read and write calls, through their own devices. The map states stay as they
/// are. `host` is main memory, or another memory that the host can address.
///
/// # Panics
/// When the builder lacks one of the arenas.
pub fn join_staged(builder: &mut PlatformBuilder, host: ArenaId, device: ArenaId, speed: LinkSpeed) {
    join_both_ways(builder, host, device, HostStaged::new(speed));
}

/// Joins two arenas in both directions by mapping `device` for the native device of `host`, whose processor copies.
///
/// # Panics
/// When the builder lacks one of the arenas.
pub fn join_mapped(builder: &mut PlatformBuilder, host: ArenaId, device: ArenaId, speed: LinkSpeed) {
    let via = builder.native(host);
    join_via(builder, (host, via), (device, via), Allocation::Internal, HostMapped::new(speed));
}

/// Lets two arenas share one storage, whichever of them has it first.
///
/// # Panics
/// When the builder lacks one of the arenas.
pub fn join_bound(
    builder: &mut PlatformBuilder,
    a: ArenaId,
    b: ArenaId,
    concurrency: Concurrency,
    speed: LinkSpeed,
) {
    let ends = [a, b].map(|arena| (arena, builder.native(arena)));
    join_via(builder, ends[0], ends[1], Allocation::Bound(concurrency), Binding::new(speed));
}

/// Joins two arenas in both directions by a mechanism of the caller, which reaches each end through its own device.
///
/// # Panics
/// When the builder lacks one of the arenas.
pub fn join_both_ways(
    builder: &mut PlatformBuilder,
    a: ArenaId,
    b: ArenaId,
    mechanism: impl CrossArena + 'static,
) {
    let ends = [a, b].map(|arena| (arena, builder.native(arena)));
    join_via(builder, ends[0], ends[1], Allocation::Internal, mechanism);
}

/// Adds a mechanism in both directions, each end reached through the device beside it.
pub(crate) fn join_via(
    builder: &mut PlatformBuilder,
    a: (ArenaId, DeviceId),
    b: (ArenaId, DeviceId),
    allocation: Allocation,
    mechanism: impl CrossArena + 'static,
) {
    let mechanism: Arc<dyn CrossArena> = Arc::new(mechanism);
    for ((from, source_via), (to, target_via)) in [(a, b), (b, a)] {
        let link = Link { from, to, source_via, target_via, allocation };
        builder.add_link(link, mechanism.clone());
    }
}
