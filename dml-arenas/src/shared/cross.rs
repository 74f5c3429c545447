//! Links of the shared memory. Where possible, a bound arena uses the shared storage instead of its own.
//!
//! Copies to and from main memory remain for buffers whose storage is elsewhere: vectors of the application.

use crate::kit::join_staged;
use dml_core::internal::sync::Arc;
use dml_core::{Allocation, ArenaId, Binding, Concurrency, Link, LinkSpeed, PlatformBuilder};

/// Guessed price of a copy in memory by this process, in the right order of magnitude.
const COPY: LinkSpeed = LinkSpeed { latency_ns: 500, bytes_per_s: 8_000_000_000, remap_ns: 0 };
/// Price of binding: creating a block over the storage moves no bytes and sends no message to the worker.
const BIND: LinkSpeed = LinkSpeed { latency_ns: 500, bytes_per_s: u64::MAX, remap_ns: 0 };

/// Adds copies between the shared memory and main memory.
pub(super) fn join(builder: &mut PlatformBuilder, main: ArenaId, shared: ArenaId) {
    join_staged(builder, main, shared, COPY);
}

/// Binds `member` to the shared storage. All arenas bound this way use the storage concurrently.
pub(crate) fn bind(builder: &mut PlatformBuilder, shared: ArenaId, member: ArenaId) {
    let allocation = Allocation::Bound(Concurrency::BimapFull);
    let (source_via, target_via) = (builder.native(shared), builder.native(member));
    let link = Link { from: shared, to: member, source_via, target_via, allocation };
    builder.add_link(link, Arc::new(Binding::new(BIND)));
    builder.prefer_binding(shared, member);
}
