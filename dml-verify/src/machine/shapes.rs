//! The platforms on which the pure machine is checked. Together they join arenas in every possible way.

use crate::rig::{GPU_ARENA, GPU2_ARENA, GPU3_ARENA, MAIN_ARENA, Rig};
use dml_arenas::Null;
use dml_core::sync::Arc;
use dml_core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Binding, Concurrency, DeviceDesc, DeviceId, DeviceKind,
    HostStaged, Link, Platform, PlatformBuilder,
};

/// Main memory and two gpus joined to it by read and write calls. Between the gpus there are two hops.
#[must_use]
pub fn star() -> Platform {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
    rig.staged(MAIN_ARENA, GPU_ARENA).staged(MAIN_ARENA, GPU2_ARENA).plain()
}

/// Three gpus of different concurrency whose memories the host maps; one of them can also be read and written.
#[must_use]
pub fn every_way() -> Platform {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::BimapRead).gpu(Concurrency::BimapFull);
    rig.mapped(GPU_ARENA).mapped(GPU2_ARENA).staged(MAIN_ARENA, GPU_ARENA).mapped(GPU3_ARENA).plain()
}

/// A gpu that shares storage with the host, whichever of the two allocates first, and another gpu joined by copies.
#[must_use]
pub fn bound(concurrency: Concurrency) -> Platform {
    let rig = Rig::new().gpu(concurrency).gpu(Concurrency::Exclusive);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, concurrency).staged(MAIN_ARENA, GPU_ARENA);
    rig.staged(MAIN_ARENA, GPU2_ARENA).plain()
}

/// Three gpus that can share main memory's storage, each with its own concurrency. One of them can also be mapped.
#[must_use]
pub fn two_members() -> Platform {
    let rig = Rig::new().gpu(Concurrency::BimapRead).gpu(Concurrency::Exclusive).gpu(Concurrency::BimapFull);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead).staged(MAIN_ARENA, GPU_ARENA);
    let rig = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::Exclusive).mapped(GPU2_ARENA);
    rig.bound(MAIN_ARENA, GPU3_ARENA, Concurrency::BimapFull).plain()
}

/// Builds a platform from single arenas and links.
struct Parts(PlatformBuilder);

/// A device of [`Parts`]. Its first arena has the same number; a second arena of a device has a later number.
const HOST: DeviceId = DeviceId(0);
const ONE: DeviceId = DeviceId(1);
const TWO: DeviceId = DeviceId(2);

impl Parts {
    /// Starts with the host and two more devices. Main memory can be reached by the devices in `reached_by`.
    fn new(reached_by: &[DeviceId]) -> Self {
        let mut builder = PlatformBuilder::default().without_default_links();
        for (name, kind) in [("cpu", DeviceKind::Cpu), ("one", DeviceKind::Gpu), ("two", DeviceKind::Gpu)] {
            builder.add_device(DeviceDesc::new(name, kind));
        }
        Self(builder).arena("main", HOST, reached_by, Concurrency::BimapFull)
    }

    fn arena(mut self, name: &str, native: DeviceId, remotes: &[DeviceId], concurrency: Concurrency) -> Self {
        let desc = ArenaDesc::new(name, ArenaKind("test"), native)
            .with_remotes(remotes.iter().copied().collect())
            .with_concurrency(concurrency);
        self.0.add_arena(Arc::new(Null::backed(desc)));
        self
    }

    /// Adds copies in both directions. Each end is reached through the device named with it.
    fn copies(mut self, one: (ArenaId, DeviceId), other: (ArenaId, DeviceId)) -> Self {
        for ((from, source_via), (to, target_via)) in [(one, other), (other, one)] {
            let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
            self.0.add_link(link, Arc::new(HostStaged::default()));
        }
        self
    }

    /// Adds a link that can bind `member` to the storage of `root`, in this direction only.
    fn binds(
        mut self,
        root: (ArenaId, DeviceId),
        member: (ArenaId, DeviceId),
        concurrency: Concurrency,
    ) -> Self {
        let ((from, source_via), (to, target_via)) = (root, member);
        let link = Link { from, to, source_via, target_via, allocation: Allocation::Bound(concurrency) };
        self.0.add_link(link, Arc::new(Binding::default()));
        self
    }

    fn build(self) -> Platform {
        self.0.build().expect("a platform without problems")
    }
}

/// A device that reaches main memory itself and copies to and from its own: the host takes no part.
#[must_use]
pub fn direct() -> Platform {
    let parts = Parts::new(&[HOST, ONE]).arena("one", ONE, &[HOST], Concurrency::Exclusive);
    parts.copies((MAIN_ARENA, ONE), (GPU_ARENA, ONE)).build()
}

/// Two devices that reach each other's memory, where one of them makes the copies between the two. With `bound`, they
/// can also share storage.
#[must_use]
pub fn peers(concurrency: Concurrency, bound: bool) -> Platform {
    let parts = Parts::new(&[HOST])
        .arena("one", ONE, &[HOST, TWO], concurrency)
        .arena("two", TWO, &[HOST, ONE], concurrency)
        .copies((GPU_ARENA, TWO), (GPU2_ARENA, TWO))
        .copies((MAIN_ARENA, HOST), (GPU_ARENA, HOST))
        .copies((MAIN_ARENA, HOST), (GPU2_ARENA, TWO));
    let (one, two) = ((GPU_ARENA, ONE), (GPU2_ARENA, TWO));
    let parts = if bound { parts.binds(one, two, concurrency).binds(two, one, concurrency) } else { parts };
    parts.build()
}

/// A gpu that may be bound to main memory, while main memory may never be bound to the gpu. The way back is only a
/// change of map state.
#[must_use]
pub fn bound_one_way(concurrency: Concurrency) -> Platform {
    let parts = Parts::new(&[HOST])
        .arena("one", ONE, &[HOST], concurrency)
        .arena("two", TWO, &[HOST], Concurrency::Exclusive)
        .copies((MAIN_ARENA, HOST), (GPU2_ARENA, TWO));
    parts.binds((MAIN_ARENA, HOST), (GPU_ARENA, ONE), concurrency).build()
}

/// Two arenas of one device, one of which shares storage with the host.
#[must_use]
pub fn two_homes(concurrency: Concurrency) -> Platform {
    let (main, first, second) = ((MAIN_ARENA, HOST), (GPU_ARENA, ONE), (GPU2_ARENA, ONE));
    Parts::new(&[HOST])
        .arena("one", ONE, &[HOST], concurrency)
        .arena("another", ONE, &[HOST], Concurrency::BimapFull)
        .binds(main, first, concurrency)
        .binds(first, main, concurrency)
        .copies(main, second)
        .copies(first, second)
        .build()
}

/// Returns all these platforms, with names.
#[must_use]
pub fn all() -> Vec<(&'static str, Platform)> {
    vec![
        ("star", star()),
        ("every_way", every_way()),
        ("bound_exclusive", bound(Concurrency::Exclusive)),
        ("bound_for_reading", bound(Concurrency::BimapRead)),
        ("bound_coherently", bound(Concurrency::BimapFull)),
        ("two_members", two_members()),
        ("direct", direct()),
        ("peers", peers(Concurrency::BimapRead, false)),
        ("peers_bound", peers(Concurrency::Exclusive, true)),
        ("bound_one_way", bound_one_way(Concurrency::BimapRead)),
        ("two_homes", two_homes(Concurrency::Exclusive)),
    ]
}
