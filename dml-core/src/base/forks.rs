//! How often this process has become another one.
//!
//! A fork inherits platforms, buffers and contents, but not what its parent shares with others. What is valid in such memory is
//! granted without a call of any arena, so that nobody would notice. Whoever makes such memory has [`forked`] called in
//! each child, and the first request after it asks all arenas whether their devices are still there.

use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Says that this process is a fork, and that arenas may have lost their devices by that. It may be called where nearly nothing may
/// be: it takes no lock and makes no call.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How often that was said, by this process and by those that it descends from.
pub(crate) fn count() -> u64 {
    FORKS.load(Ordering::Relaxed)
}
