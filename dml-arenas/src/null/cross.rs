//! Links for test platforms: one call each for the three ways to join a pair of arenas.

use crate::join::{self, End};
use dml_core::{ArenaId, Concurrency, LinkSpeed, PlatformBuilder};

/// Joins two arenas in both directions by read and write calls, through their own devices.
///
/// # Panics
/// When the builder lacks one of the arenas.
pub fn join_staged(builder: &mut PlatformBuilder, host: ArenaId, device: ArenaId, speed: LinkSpeed) {
    let (host, device) = (End::of(builder, host), End::of(builder, device));
    join::staged(builder, host, device, speed);
}

/// Joins two arenas in both directions by mapping `device` for the native device of `host`.
///
/// # Panics
/// When the builder lacks one of the arenas.
pub fn join_mapped(builder: &mut PlatformBuilder, host: ArenaId, device: ArenaId, speed: LinkSpeed) {
    let (host, device) = (End::of(builder, host), End::of(builder, device));
    join::mapped(builder, host, device, speed);
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
    let (a, b) = (End::of(builder, a), End::of(builder, b));
    join::bound(builder, a, b, concurrency, speed);
}
