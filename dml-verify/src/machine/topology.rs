//! Random platforms, and random operations on them.
//!
//! [`shapes`](super::shapes) holds the platforms chosen by hand. This module joins arenas at random. A platform has up
//! to six arenas of any concurrency. One device may have several arenas, and one arena several remote devices. A memory
//! may be accessible to its own device in every map state. Links of both styles and bindings in either direction occur
//! side by side. Their costs include zero and infeasible. The seed determines everything: the platform, the buffer's
//! first contents and the operations.

use super::op::{Mix, drawn};
use super::runner::{Runner, Tally};
use crate::random::Random;
use dml_arenas::Null;
use dml_core::state::Initial;
use dml_core::sync::Arc;
use dml_core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Binding, Concurrency, Cost, CrossArena, DeviceDesc, DeviceId,
    DeviceKind, DeviceSet, HostStaged, Link, LinkSpeed, Platform, PlatformBuilder,
};

/// The largest number of operations in one run.
const MOST_OPS: u64 = 70;

/// The random choices of one run.
#[derive(Debug)]
struct Scene {
    random: Random,
    devices: u16,
    arenas: Vec<ArenaDesc>,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let devices = 1 + random.below(4) as u16;
        Self { random, devices, arenas: Vec::new() }
    }

    /// Draws a device.
    fn device(&mut self) -> DeviceId {
        DeviceId(self.random.below(u64::from(self.devices)) as u16)
    }

    fn concurrency(&mut self) -> Concurrency {
        [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull]
            [self.random.below(3) as usize]
    }

    /// Draws a time in nanoseconds: often zero, or equal to another time.
    fn ns(&mut self) -> u64 {
        [0, 0, 10, 10, 1_000, 50_000][self.random.below(6) as usize]
    }

    /// Draws a memory: the host's own, or one of any kind.
    fn arena(&mut self, index: usize) -> ArenaDesc {
        let name = format!("arena{index}");
        let is_main = index == 0 && !self.random.once_in(8);
        let (native, mut remotes) = if is_main {
            (DeviceId(0), DeviceSet::of(DeviceId(0)))
        } else {
            (self.device(), DeviceSet::EMPTY)
        };
        for device in (0..self.devices).map(DeviceId) {
            let rarity = if device == native { 8 } else { 3 };
            if self.random.once_in(rarity) || (device.0 == 0 && device != native && self.random.once_in(2)) {
                remotes = remotes.with(device);
            }
        }
        let concurrency = if is_main { Concurrency::BimapFull } else { self.concurrency() };
        let alloc = self.ns();
        ArenaDesc::new(&name, ArenaKind("test"), native)
            .with_remotes(remotes)
            .with_concurrency(concurrency)
            .with_alloc_cost(Cost::from_ns(alloc))
    }

    /// Draws a device that can reach an arena.
    fn via(&mut self, arena: usize) -> DeviceId {
        let desc = &self.arenas[arena];
        let ways: Vec<DeviceId> = std::iter::once(desc.native).chain(desc.remotes.iter()).collect();
        ways[self.random.below(ways.len() as u64) as usize]
    }

    /// Draws a link speed; one in twelve cannot move a byte.
    fn speed(&mut self) -> LinkSpeed {
        let (latency_ns, remap_ns) = (self.ns(), self.ns());
        let moves = !self.random.once_in(12);
        let bytes_per_s = if moves { [1_000_000, u64::MAX][self.random.below(2) as usize] } else { 0 };
        LinkSpeed { latency_ns, bytes_per_s, remap_ns }
    }

    /// Draws a link from one arena to another, of any sort that the two permit.
    fn link(&mut self, from: usize, to: usize) -> Option<(Link, Arc<dyn CrossArena>)> {
        let (mut source_via, mut target_via) = (self.arenas[from].native, self.arenas[to].native);
        let speed = self.speed();
        let ends = (ArenaId(from as u8), ArenaId(to as u8));
        let (allocation, mechanism): (_, Arc<dyn CrossArena>) = match self.random.below(4) {
            0 => (Allocation::Internal, Arc::new(HostStaged::new(speed))),
            1 => {
                (source_via, target_via) = (self.via(from), self.via(to));
                (Allocation::Internal, Arc::new(HostStaged::new(speed)))
            }
            _ => {
                let widest = self.arenas[from].concurrency.min(self.arenas[to].concurrency);
                let concurrency = self.concurrency().min(widest);
                let stuck = [from, to].iter().any(|&end| self.arenas[end].remotes.is_empty());
                if stuck && concurrency != Concurrency::BimapFull {
                    return None;
                }
                (Allocation::Bound(concurrency), Arc::new(Binding::new(speed)))
            }
        };
        Some((Link { from: ends.0, to: ends.1, source_via, target_via, allocation }, mechanism))
    }

    fn platform(&mut self) -> Platform {
        let mut builder = PlatformBuilder::default();
        if !self.random.once_in(3) {
            builder = builder.without_default_links();
        }
        for device in 0..self.devices {
            let kind = if device == 0 { DeviceKind::Cpu } else { DeviceKind::Gpu };
            builder.add_device(DeviceDesc::new(&format!("device{device}"), kind));
        }
        let arenas = 2 + self.random.below(5) as usize;
        for index in 0..arenas {
            let desc = self.arena(index);
            builder.add_arena(Arc::new(Null::new(desc.clone())));
            self.arenas.push(desc);
        }
        let rarity = 1 + self.random.below(3);
        for (from, to) in (0..arenas).flat_map(|from| (0..arenas).map(move |to| (from, to))) {
            while from != to && self.random.once_in(1 + rarity) {
                if let Some((link, mechanism)) = self.link(from, to) {
                    builder.add_link(link, mechanism);
                }
            }
        }
        builder.build().expect("a platform without problems")
    }

    fn initial(&mut self) -> Initial {
        match self.random.below(6) {
            0..3 => Initial::Undefined,
            3..5 => Initial::Zeroed,
            _ => Initial::External(ArenaId(self.random.below(self.arenas.len() as u64) as u8)),
        }
    }
}

/// Runs everything that follows from a seed, and calls [`Machine::check`](super::Machine::check) after each operation.
///
/// # Panics
/// When the machine contradicts the specification.
pub fn run(seed: u64) -> Tally {
    let mut scene = Scene::new(seed);
    let platform = scene.platform();
    let initial = scene.initial();
    let mut random = scene.random;
    let mix = Mix { binds: random.below(4) as u32, losses: u32::from(random.once_in(3)) };
    let mut runner = Runner::new(platform.routes(), initial);
    for _ in 0..1 + random.below(MOST_OPS) {
        runner.step(&drawn(mix, &mut random));
    }
    runner.finish()
}

/// Describes the platform of a seed and its buffer's first contents, for human readers.
#[must_use]
pub fn describe(seed: u64) -> String {
    let mut scene = Scene::new(seed);
    let platform = scene.platform();
    let initial = scene.initial();
    format!("{initial:?}\n{:#?}\n{:#?}", scene.arenas, platform.links())
}
