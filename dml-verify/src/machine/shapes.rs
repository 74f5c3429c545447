//! The platforms on which the pure machine is checked: every way in which arenas can be joined.

use crate::rig::{GPU_ARENA, GPU2_ARENA, GPU3_ARENA, MAIN_ARENA, Rig};
use dml_core::{Concurrency, Platform};

/// Main memory and two gpus joined to it by read and write calls: between the gpus there are two hops.
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

/// One gpu shares storage with the host, whichever of them has it first; another is joined by copies.
#[must_use]
pub fn bound(concurrency: Concurrency) -> Platform {
    let rig = Rig::new().gpu(concurrency).gpu(Concurrency::Exclusive);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, concurrency).staged(MAIN_ARENA, GPU_ARENA);
    rig.staged(MAIN_ARENA, GPU2_ARENA).plain()
}

/// Three gpus that can share main memory's storage, each under rules of its own; one of them can also be mapped.
#[must_use]
pub fn two_members() -> Platform {
    let rig = Rig::new().gpu(Concurrency::BimapRead).gpu(Concurrency::Exclusive).gpu(Concurrency::BimapFull);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead).staged(MAIN_ARENA, GPU_ARENA);
    let rig = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::Exclusive).mapped(GPU2_ARENA);
    rig.bound(MAIN_ARENA, GPU3_ARENA, Concurrency::BimapFull).plain()
}

/// All of them, with names.
#[must_use]
pub fn all() -> Vec<(&'static str, Platform)> {
    vec![
        ("star", star()),
        ("every_way", every_way()),
        ("bound_exclusive", bound(Concurrency::Exclusive)),
        ("bound_for_reading", bound(Concurrency::BimapRead)),
        ("bound_coherently", bound(Concurrency::BimapFull)),
        ("two_members", two_members()),
    ]
}
