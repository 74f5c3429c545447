//! Links a worker's memory with main memory: the owner copies once, between its own memory and its window into the
//! worker's.

use crate::kit::join_staged;
use dml_core::{ArenaId, LinkSpeed, PlatformBuilder};

/// A guess in the right order of magnitude, for a copy in memory.
const SPEED: LinkSpeed = LinkSpeed { latency_ns: 1_000, bytes_per_s: 8_000_000_000, remap_ns: 0 };

/// Joins the arena of a worker with main memory, both ways.
pub(super) fn join(builder: &mut PlatformBuilder, main: ArenaId, device: ArenaId) {
    join_staged(builder, main, device, SPEED);
}
