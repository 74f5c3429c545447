//! The ways between arenas, as the planner sees them.
//!
//! A [`Link`] is the pure description of one directed mechanism, which the abstract machine plans with. Several links may
//! join the same two arenas: the planner takes the cheapest that is feasible now. `read`/`write` style transfers reach an
//! end through its own device and leave the map state alone; `map` style ones reach it through a remote device and need it
//! mapped first.

use crate::base::cost::Cost;
use crate::base::id::{ArenaId, DeviceId};
use crate::memory::desc::Concurrency;

/// How a link's destination gets its storage when it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allocation {
    /// The destination allocates its own.
    Internal,
    /// The destination is bound to the source's storage, which both then share under this concurrency; data moves
    /// by a change of map state alone.
    Bound(Concurrency),
    /// None: the link serves only while the two share their storage, through a binding the other way round.
    Shared,
}

/// One directed way to bring data from one arena to another; pure data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Where the data comes from.
    pub from: ArenaId,
    /// Where it goes.
    pub to: ArenaId,
    /// The device through which the source is read: its native one, or a remote one for which it is mapped first.
    pub source_via: DeviceId,
    /// The device through which the destination is written.
    pub target_via: DeviceId,
    /// How the destination gets storage.
    pub allocation: Allocation,
}

/// What a mechanism is asked to price. It describes the two ends as they will be when the copy starts: the source
/// is then valid, whatever it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyQuery {
    /// The bytes to move; rounded up to the size class the path is cached for.
    pub bytes: u64,
    /// Whether the source's map state has to change first.
    pub remap_source: bool,
    /// Whether the destination's map state has to change first.
    pub remap_target: bool,
    /// Whether the destination has no storage yet. Its [`alloc_cost`](crate::ArenaDesc::alloc_cost) is added by
    /// core.
    pub allocates: bool,
}

/// Latency and bandwidth of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkSpeed {
    /// The time of an empty copy, in nanoseconds.
    pub latency_ns: u64,
    /// The rate of a long copy, in bytes a second.
    pub bytes_per_s: u64,
    /// What a change of map state adds, in nanoseconds.
    pub remap_ns: u64,
}

impl LinkSpeed {
    /// The cost of a query at this speed.
    #[must_use]
    pub fn cost(&self, query: &CopyQuery) -> Cost {
        let remaps = u64::from(query.remap_source) + u64::from(query.remap_target);
        Cost::of_transfer(
            self.latency_ns.saturating_add(self.remap_ns.saturating_mul(remaps)),
            query.bytes,
            self.bytes_per_s,
        )
    }
}

impl Default for LinkSpeed {
    /// A guess for a link that was never measured: 10 µs and 4 GB/s, 5 µs a remap.
    fn default() -> Self {
        Self { latency_ns: 10_000, bytes_per_s: 4_000_000_000, remap_ns: 5_000 }
    }
}
