//! Binds memories to the shared one: each uses its storage in place of storage of its own, wherever it can.
//!
//! The copies to main memory and back remain for buffers whose storage is elsewhere: the application's own vectors.

use crate::kit::join_staged;
use dml_core::sync::Arc;
use dml_core::{Allocation, ArenaId, Binding, Concurrency, Link, LinkSpeed, PlatformBuilder};

/// A guess in the right order of magnitude, for a copy in memory by this process.
const COPY: LinkSpeed = LinkSpeed { latency_ns: 500, bytes_per_s: 8_000_000_000, remap_ns: 0 };
/// Making a block over the storage is a few instructions; nothing is moved and nothing is told to the worker.
const BIND: LinkSpeed = LinkSpeed { latency_ns: 500, bytes_per_s: u64::MAX, remap_ns: 0 };

/// Joins the shared memory with main memory by copies.
pub(super) fn join(builder: &mut PlatformBuilder, main: ArenaId, shared: ArenaId) {
    join_staged(builder, main, shared, COPY);
}

/// Lets `member` use the shared storage beside all others that are bound in this way.
pub(crate) fn bind(builder: &mut PlatformBuilder, shared: ArenaId, member: ArenaId) {
    let allocation = Allocation::Bound(Concurrency::BimapFull);
    let (source_via, target_via) = (builder.native(shared), builder.native(member));
    let link = Link { from: shared, to: member, source_via, target_via, allocation };
    builder.add_link(link, Arc::new(Binding::new(BIND)));
    builder.prefer_binding(shared, member);
}
