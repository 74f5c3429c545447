//! Fixtures for the tests of this folder: a session on the first device, and a pool of small pieces.

use super::device::{Found, list};
use super::session::Session;
use crate::locked::{ScratchPool, Sizes};
use crate::main_mem::PageLockBudget;
use dml_core::internal::sync::Arc;
use std::time::Duration;

/// The size of the pieces of [`pool`], in bytes.
pub(super) const PIECE: u64 = 16 << 10;

/// Returns the first device of this machine. Without one, it prints that the test is skipped.
///
/// # Panics
/// If there is no device, although `DML_EXPECT` names opencl.
pub(super) fn found() -> Option<&'static Found> {
    let found = list().ok().and_then(|listing| listing.found.first());
    if found.is_none() {
        let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("opencl"));
        assert!(!expected, "DML_EXPECT names opencl, and there is no device");
        eprintln!("SKIPPED: no OpenCL device");
    }
    found
}

/// Opens a session on [`found`].
pub(super) fn session() -> Option<Arc<Session>> {
    found().map(open)
}

/// Opens a session on the whole device.
pub(super) fn open(found: &Found) -> Arc<Session> {
    Arc::new(Session::open(found.part(None).unwrap()).unwrap())
}

/// Creates a pool that frees no idle pieces during a test.
pub(super) fn pool(limit_bytes: u64, budget: &Arc<PageLockBudget>) -> Arc<ScratchPool> {
    let idle = Duration::from_secs(3600);
    ScratchPool::with(Sizes { piece_bytes: PIECE, limit_bytes, idle }, budget)
}
