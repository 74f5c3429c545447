//! Platforms drawn at random. The random numbers determine everything.

use super::rig::{End, Mechanism};
use super::{CONCURRENCIES, MAIN_ARENA, Rig};
use crate::random::Random;
use dml_core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Binding, Concurrency, Cost, DeviceId, DeviceSet, Hints,
    HostStaged, LinkSpeed, Pattern,
};

/// Draws main memory and one to three devices, each with its own memory. Transfers, mapping, sharing, or
/// several of these join it to main memory; some also join it to the device before.
#[must_use]
pub fn gpus(random: &mut Random) -> Rig {
    (0..1 + random.below(3)).fold(Rig::new(), |rig, _| gpu(rig, random))
}

fn gpu(rig: Rig, random: &mut Random) -> Rig {
    let (before, arena) = (ArenaId(rig.next_arena().0 - 1), rig.next_arena());
    let concurrency = concurrency(random);
    let mut rig = rig.gpu(concurrency);
    let way = random.below(6);
    if way != 1 {
        rig = rig.staged(MAIN_ARENA, arena);
    }
    if way == 1 || way == 2 {
        rig = rig.mapped(arena);
    }
    if way == 3 || way == 4 {
        // The binding's concurrency is at most that of the arena.
        let width = random.below(concurrency as u64 + 1) as usize;
        rig = rig.bound(MAIN_ARENA, arena, CONCURRENCIES[width]);
    }
    if before != MAIN_ARENA && random.once_in(3) {
        rig = rig.staged(before, arena);
    }
    rig
}

/// Draws one to four devices and two to six arenas of any concurrency, joined in any way. One device may have
/// several arenas, and one arena several remote devices. A memory may be accessible to its own device in
/// every map state. Links of both styles and bindings in either direction occur side by side: preferred, on
/// request alone, or neither. Their costs include zero and infeasible.
#[must_use]
pub fn anything(random: &mut Random) -> Rig {
    let devices = 1 + random.below(4) as u16;
    let mut rig = Rig::without_arenas(devices, random.once_in(3));
    let arenas = 2 + random.below(5) as usize;
    for index in 0..arenas {
        rig.arenas.push(arena(devices, random, index));
    }
    let rarity = 1 + random.below(3);
    for (from, to) in (0..arenas).flat_map(|from| (0..arenas).map(move |to| (from, to))) {
        while from != to && random.once_in(1 + rarity) {
            rig = link(rig, random, from, to);
        }
    }
    rig
}

/// Draws hints for a buffer: none, devices, a pattern, or both.
#[must_use]
pub fn hints(random: &mut Random, devices: usize) -> Hints {
    let hints = match random.below(8) {
        0 => Hints::default().pattern(Pattern::StreamedOnce),
        1 => Hints::default().pattern(Pattern::ReadMostly),
        2 | 3 => Hints::default().pattern(Pattern::ToAndFro),
        _ => Hints::default(),
    };
    if random.once_in(2) {
        return hints;
    }
    let named = (0..devices as u16).map(DeviceId).filter(|_| !random.once_in(3));
    hints.used_by(named.collect::<Vec<_>>())
}

/// Draws a memory: the host's own, or one of any kind.
fn arena(devices: u16, random: &mut Random, index: usize) -> ArenaDesc {
    let is_main = index == 0 && !random.once_in(8);
    let (native, mut remotes) = if is_main {
        (DeviceId(0), DeviceSet::of(DeviceId(0)))
    } else {
        (DeviceId(random.below(u64::from(devices)) as u16), DeviceSet::EMPTY)
    };
    for device in (0..devices).map(DeviceId) {
        let rarity = if device == native { 8 } else { 3 };
        if random.once_in(rarity) || (device.0 == 0 && device != native && random.once_in(2)) {
            remotes = remotes.with(device);
        }
    }
    let concurrency = if is_main { Concurrency::BimapFull } else { concurrency(random) };
    ArenaDesc::new(&format!("arena{index}"), ArenaKind("test"), native)
        .with_remotes(remotes)
        .with_concurrency(concurrency)
        .with_alloc_cost(Cost::from_ns(ns(random)))
}

/// Adds a link from one arena to another, of any sort that the two permit.
fn link(rig: Rig, random: &mut Random, from: usize, to: usize) -> Rig {
    let descs = [from, to].map(|end| &rig.arenas[end]);
    let ids = [ArenaId(from as u8), ArenaId(to as u8)];
    let natives = [(ids[0], descs[0].native), (ids[1], descs[1].native)];
    let speed = speed(random);
    match random.below(4) {
        0 => rig.link(natives, Allocation::Internal, Mechanism::Staged(HostStaged::new(speed))),
        1 => {
            let ends: [End; 2] = [(ids[0], via(descs[0], random)), (ids[1], via(descs[1], random))];
            rig.link(ends, Allocation::Internal, Mechanism::Staged(HostStaged::new(speed)))
        }
        _ => {
            let widest = descs[0].concurrency.min(descs[1].concurrency);
            let concurrency = concurrency(random).min(widest);
            let is_stuck = descs.iter().any(|desc| desc.remotes.is_empty());
            if is_stuck && concurrency != Concurrency::BimapFull {
                return rig;
            }
            let bound = Mechanism::Bound(Binding::new(speed));
            let rig = rig.link(natives, Allocation::Bound(concurrency), bound);
            match random.below(6) {
                0 | 1 => rig.preferring(ids[0], ids[1]),
                2 => rig.allowing(ids[0], ids[1]),
                _ => rig,
            }
        }
    }
}

fn concurrency(random: &mut Random) -> Concurrency {
    CONCURRENCIES[random.below(3) as usize]
}

/// Draws a time in nanoseconds: often zero, or equal to another time.
fn ns(random: &mut Random) -> u64 {
    [0, 0, 10, 10, 1_000, 50_000][random.below(6) as usize]
}

/// Draws a device that can reach an arena.
fn via(desc: &ArenaDesc, random: &mut Random) -> DeviceId {
    let ways: Vec<DeviceId> = std::iter::once(desc.native).chain(desc.remotes.iter()).collect();
    ways[random.below(ways.len() as u64) as usize]
}

/// Draws a link speed; one in twelve cannot move a byte.
fn speed(random: &mut Random) -> LinkSpeed {
    let (latency_ns, remap_ns) = (ns(random), ns(random));
    let moves = !random.once_in(12);
    let bytes_per_s = if moves { [1_000_000, u64::MAX][random.below(2) as usize] } else { 0 };
    LinkSpeed { latency_ns, bytes_per_s, remap_ns }
}
