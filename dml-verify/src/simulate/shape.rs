//! Random platforms for simulations: some arenas, joined in some ways.

use super::arena::{SimCross, Sky, sim_arena};
use crate::history::Audited;
use crate::random::Random;
use dml_arenas::null::join_bound;
use dml_core::sync::Arc;
use dml_core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet,
    HostMapped, HostStaged, Link, LinkSpeed, Platform, PlatformBuilder,
};

const HOST: DeviceId = DeviceId(0);
const MAIN: ArenaId = ArenaId(0);

/// Makes main memory and one to three devices, each with its own memory. Transfers, mapping, sharing, or several of
/// these join it to main memory; some also join it to the device before.
pub(super) fn platform(random: &mut Random, sky: &Arc<Sky>) -> Audited {
    let mut builder = Platform::builder().without_default_links();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let main = ArenaDesc::new("main", ArenaKind("main"), HOST)
        .with_remotes(DeviceSet::of(HOST))
        .with_concurrency(Concurrency::BimapFull);
    builder.add_arena(Arc::new(sim_arena(main, sky.clone())));
    for index in 1..2 + random.below(3) as u16 {
        device(&mut builder, random, sky, index);
    }
    Audited::new(builder.build().expect("a platform without problems"))
}

fn device(builder: &mut PlatformBuilder, random: &mut Random, sky: &Arc<Sky>, index: u16) {
    let device = builder.add_device(DeviceDesc::new(&format!("gpu{index}"), DeviceKind::Gpu));
    let kinds = [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull];
    let concurrency = kinds[random.below(3) as usize];
    let desc = ArenaDesc::new(&format!("gpu{index}"), ArenaKind("gpu"), device)
        .with_remotes(DeviceSet::of(HOST))
        .with_concurrency(concurrency);
    let arena = builder.add_arena(Arc::new(sim_arena(desc, sky.clone())));
    let way = random.below(6);
    if way != 1 {
        staged(builder, sky, (MAIN, HOST), (arena, device));
    }
    if way == 1 || way == 2 {
        mapped(builder, sky, (arena, device));
    }
    if way == 3 || way == 4 {
        let speed = LinkSpeed::default();
        // The binding's concurrency is at most that of the arena.
        let width = random.below(concurrency as u64 + 1) as usize;
        join_bound(builder, MAIN, arena, kinds[width], speed);
    }
    if index > 1 && random.once_in(3) {
        staged(builder, sky, (ArenaId(index as u8 - 1), DeviceId(index - 1)), (arena, device));
    }
}

type End = (ArenaId, DeviceId);

/// Adds read and write calls in both directions.
fn staged(builder: &mut PlatformBuilder, sky: &Arc<Sky>, one: End, other: End) {
    for (from, to) in [(one, other), (other, one)] {
        let link = Link {
            from: from.0,
            to: to.0,
            source_via: from.1,
            target_via: to.1,
            allocation: Allocation::Internal,
        };
        builder.add_link(link, Arc::new(SimCross { inner: HostStaged::default(), sky: sky.clone() }));
    }
}

/// Adds copies by the processor, for which the device's memory is mapped.
fn mapped(builder: &mut PlatformBuilder, sky: &Arc<Sky>, device: End) {
    for (from, to) in [(MAIN, device.0), (device.0, MAIN)] {
        let link = Link { from, to, source_via: HOST, target_via: HOST, allocation: Allocation::Internal };
        builder.add_link(link, Arc::new(SimCross { inner: HostMapped::default(), sky: sky.clone() }));
    }
}
