//! Links: the ways between arenas, as the planner sees them.
//!
//! A [`Link`] describes one directed mechanism, and the abstract machine plans with it. Several links may
//! join the same two arenas; the planner takes the cheapest one that is currently feasible. Transfers in the
//! style of `read` and `write` reach an end through its native device and leave the map state unchanged.
//! Transfers in the style of `map` reach an end through a remote device, for which the end must be mapped
//! first.

use crate::base::cost::Cost;
use crate::base::id::{ArenaId, DeviceId};
use crate::memory::desc::Concurrency;

/// How the destination of a link gets storage if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allocation {
    /// The destination allocates storage of its own.
    Internal,
    /// The destination is bound to the storage of the source, and both then share it under this concurrency.
    /// Data moves only by changes of map state.
    Bound(Concurrency),
    /// The destination gets no storage. The link works only while a binding in the other direction lets both
    /// share storage.
    Shared,
}

/// One directed way to bring data from one arena to another. It is pure data.
///
/// # Examples
/// ```
/// # use dml_core::{Allocation, ArenaId, HostStaged, Link, LinkSpeed, PlatformBuilder};
/// # use std::sync::Arc;
/// # fn example(builder: &mut PlatformBuilder, host: ArenaId, gpu: ArenaId) {
/// let link = Link {
///     from: host,
///     to: gpu,
///     source_via: builder.native(host),
///     target_via: builder.native(gpu),
///     allocation: Allocation::Internal,
/// };
/// let speed = LinkSpeed { latency_ns: 8_000, bytes_per_s: 25_000_000_000, ..LinkSpeed::default() };
/// builder.add_link(link, Arc::new(HostStaged::new(speed)));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The arena that the data comes from.
    pub from: ArenaId,
    /// The arena that the data goes to.
    pub to: ArenaId,
    /// The device through which the source is read: the native one, or a remote one for which the source is
    /// mapped.
    pub source_via: DeviceId,
    /// The device through which the destination is written; the same rules apply as for `source_via`.
    pub target_via: DeviceId,
    /// How the destination gets storage if it has none.
    pub allocation: Allocation,
}

/// A copy that a mechanism is asked to price. It describes both ends as they will be when the copy starts.
/// The source is valid then, even if it is not valid now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyQuery {
    /// The number of bytes to move, rounded up to the size class for which the path is cached.
    pub bytes: u64,
    /// Whether the map state of the source must change first.
    pub remap_source: bool,
    /// Whether the map state of the destination must change first.
    pub remap_target: bool,
    /// Whether the destination has no storage yet. Core adds its [`alloc_cost`](crate::ArenaDesc::alloc_cost)
    /// to the price.
    pub allocates: bool,
}

/// The latency and the bandwidth of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkSpeed {
    /// The time of an empty copy, in nanoseconds.
    pub latency_ns: u64,
    /// The rate of a long copy, in bytes per second.
    pub bytes_per_s: u64,
    /// The time that each change of map state adds, in nanoseconds.
    pub remap_ns: u64,
}

impl LinkSpeed {
    /// Returns the cost of a query at this speed.
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
    /// Returns a guess for a link that was never measured: 10 µs latency, 4 GB/s and 5 µs for each remap.
    fn default() -> Self {
        Self { latency_ns: 10_000, bytes_per_s: 4_000_000_000, remap_ns: 5_000 }
    }
}
