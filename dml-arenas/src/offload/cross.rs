//! Links between a worker's memory and main memory. The owner makes each copy, between main memory and its
//! window into the worker's memory.

use crate::kit::join_staged;
use dml_core::{ArenaId, LinkSpeed, PlatformBuilder};

/// Guess of the price: the order of magnitude of a copy in main memory.
const SPEED: LinkSpeed = LinkSpeed { latency_ns: 1_000, bytes_per_s: 8_000_000_000, remap_ns: 0 };

/// Links a worker's arena with main memory, in both directions.
pub(super) fn join(builder: &mut PlatformBuilder, main: ArenaId, device: ArenaId) {
    join_staged(builder, main, device, SPEED);
}
