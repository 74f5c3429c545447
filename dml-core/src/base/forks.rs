//! The count of the forks by which this process came about.
//!
//! A fork inherits platforms, buffers and contents, but not memory that its parent shares with a device or
//! another process. Contents that are valid in such memory are granted without a call to any arena, so the
//! loss would go unnoticed. The owner of such memory therefore has [`forked`] called in each child. The first
//! request after that asks all arenas whether their devices are lost.

use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Records that this process is a fork, so that arenas may have lost their devices.
///
/// It is async-signal-safe: it takes no lock and makes no call.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns how often [`forked`] was called in this process and its ancestors.
pub(crate) fn count() -> u64 {
    FORKS.load(Ordering::Relaxed)
}
