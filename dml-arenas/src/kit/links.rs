//! Functions that join two arenas, shared by all backends.

use dml_core::internal::sync::Arc;
use dml_core::{
    Allocation, ArenaId, Binding, Concurrency, CrossArena, DeviceId, HostMapped, HostStaged, Link, LinkSpeed,
    PlatformBuilder,
};

/// Joins two arenas in both directions by read and write calls, through their own devices. The map states do
/// not change. `host` is main memory, or another memory that the host can address.
///
/// # Panics
/// When the builder lacks one of the arenas.
pub fn join_staged(builder: &mut PlatformBuilder, host: ArenaId, device: ArenaId, speed: LinkSpeed) {
    join_both_ways(builder, host, device, HostStaged::new(speed));
}

/// Joins two arenas in both directions by mapping `device` for the native device of `host`, which does the
/// copies.
///
/// # Panics
/// When the builder lacks one of the arenas.
pub fn join_mapped(builder: &mut PlatformBuilder, host: ArenaId, device: ArenaId, speed: LinkSpeed) {
    let via = builder.native(host);
    join_via(builder, (host, via), (device, via), Allocation::Internal, HostMapped::new(speed));
}

/// Joins two arenas by a binding in both directions: whichever arena has storage first shares it with the
/// other.
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

/// Joins two arenas in both directions by the caller's mechanism, which reaches each end through its own
/// device.
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

/// Adds a mechanism in both directions. Each end comes with the device through which it is reached.
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

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;
    use crate::Null;
    use dml_core::{ArenaDesc, ArenaKind, DeviceDesc, DeviceKind};

    #[test]
    fn each_end_is_reached_by_whom_the_link_says() {
        const ENDS: [ArenaId; 2] = [ArenaId(0), ArenaId(1)];
        let [cpu, gpu] = [0, 1].map(DeviceId);
        let joined = |join: fn(&mut PlatformBuilder, ArenaId, ArenaId, LinkSpeed)| {
            let mut builder = PlatformBuilder::default().without_default_links();
            for (native, kind) in [(cpu, DeviceKind::Cpu), (gpu, DeviceKind::Gpu)] {
                builder.add_device(DeviceDesc::new(&format!("{kind:?}"), kind));
                let desc = ArenaDesc::new(&format!("{kind:?}"), ArenaKind("test"), native);
                builder.add_arena(Arc::new(Null::backed(desc.with_remotes([cpu].into_iter().collect()))));
            }
            join(&mut builder, ENDS[0], ENDS[1], LinkSpeed::default());
            let links = builder.build().unwrap().links().to_vec();
            links.iter().map(|link| (link.from.0, link.source_via, link.target_via)).collect::<Vec<_>>()
        };
        assert_eq!(joined(join_staged), [(0, cpu, gpu), (1, gpu, cpu)]);
        assert_eq!(joined(join_mapped), [(0, cpu, cpu), (1, cpu, cpu)]);
    }
}
