//! A copy mechanism that follows a script.

use super::script::{CallKind, Player, Script, transfer};
use dml_core::internal::sync::Arc;
use dml_core::{CopyJob, CopyQuery, Cost, CrossArena, Fence, TransferError};

/// A wrapper of a copy mechanism that makes some of its copies fail. A query for a price does not count as a
/// call, and returns the price of the wrapped mechanism.
#[derive(Debug)]
pub struct FaultyCross<C> {
    inner: C,
    name: Arc<str>,
    player: Player,
}

impl<C: CrossArena> FaultyCross<C> {
    /// Wraps `mechanism`, whose copies fail as `script` says. Its calls are of the kind [`CallKind::Copy`].
    #[must_use]
    pub fn new(mechanism: C, script: Script) -> Self {
        let name = mechanism.name().into();
        Self { inner: mechanism, name, player: Player::new(script) }
    }

    /// Returns the wrapped mechanism.
    #[must_use]
    pub fn inner(&self) -> &C {
        &self.inner
    }

    /// Returns the number of copies requested so far.
    #[must_use]
    pub fn calls_made(&self) -> u64 {
        self.player.calls_made()
    }
}

impl<C: CrossArena> CrossArena for FaultyCross<C> {
    fn name(&self) -> &str {
        &self.name
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.inner.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        transfer(self.player.next(CallKind::Copy), &self.name, CallKind::Copy, |bytes| match bytes {
            Some(bytes) => copy_first(job, bytes),
            None => self.inner.copy(job),
        })
    }
}

/// Copies only the first `bytes` bytes of a job, in the way that its ends allow.
fn copy_first(job: CopyJob, bytes: u64) -> Result<Fence, TransferError> {
    let job = job.first(bytes);
    match (job.source_host().is_some(), job.target_host().is_some()) {
        (true, true) => job.memcpy(),
        (true, false) => job.write(),
        (false, true) => job.read(),
        (false, false) => job.stage(),
    }
}
