//! Random operations on random platforms. The seed determines everything: the platform, the buffer's hints
//! and first contents, and the operations.

use super::op::{Mix, drawn};
use super::runner::{Runner, Tally};
use crate::platforms::drawn::{anything, hints};
use crate::random::Random;
use dml_core::internal::state::Initial;
use dml_core::{ArenaId, Hints, Platform};

/// The largest number of operations in one run.
const MOST_OPS: u64 = 70;

/// Runs everything that follows from a seed, and calls [`Machine::check`](super::Machine::check) after each
/// operation.
///
/// # Panics
/// When the machine contradicts the specification.
pub fn run(seed: u64) -> Tally {
    let mut random = Random::new(seed);
    let (platform, hints, initial) = scene(&mut random);
    let routes = platform.routes_for(&hints).expect("hints that name the platform's devices");
    let mix = Mix { binds: random.below(4) as u32, losses: u32::from(random.once_in(3)) };
    let mut runner = Runner::new(&routes, initial);
    for _ in 0..1 + random.below(MOST_OPS) {
        runner.step(&drawn(mix, &mut random));
    }
    runner.finish()
}

/// Describes the platform of a seed and its buffer's first contents, for human readers.
#[must_use]
pub fn describe(seed: u64) -> String {
    let (platform, hints, initial) = scene(&mut Random::new(seed));
    let arenas: Vec<_> = platform.arenas().iter().map(|arena| arena.desc()).collect();
    format!("{initial:?}\n{hints:?}\n{arenas:#?}\n{:#?}", platform.links())
}

/// Draws a platform, and the hints and first contents of a buffer on it.
fn scene(random: &mut Random) -> (Platform, Hints, Initial) {
    let platform = anything(random).plain();
    let initial = match random.below(6) {
        0..3 => Initial::Undefined,
        3..5 => Initial::Zeroed,
        _ => Initial::External(ArenaId(random.below(platform.arenas().len() as u64) as u8)),
    };
    let hints = hints(random, platform.devices().len());
    (platform, hints, initial)
}
