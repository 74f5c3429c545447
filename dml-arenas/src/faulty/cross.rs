//! A copy mechanism that follows a script.

use super::script::{CallKind, Player, Script, transfer};
use dml_core::sync::Arc;
use dml_core::{CopyJob, CopyQuery, Cost, CrossArena, Fence, HostSpan, Span, TransferError};

/// Any copy mechanism, with faults. Prices are not calls: they are those of the mechanism inside.
#[derive(Debug)]
pub struct FaultyCross<C> {
    inner: C,
    name: Arc<str>,
    player: Player,
}

impl<C: CrossArena> FaultyCross<C> {
    /// `mechanism`, going wrong where `script` says; its calls are of the kind [`CallKind::Copy`].
    #[must_use]
    pub fn new(mechanism: C, script: Script) -> Self {
        let name = mechanism.name().into();
        Self { inner: mechanism, name, player: Player::new(script) }
    }

    /// The mechanism inside.
    #[must_use]
    pub fn inner(&self) -> &C {
        &self.inner
    }

    /// How many copies were asked for so far.
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

    fn copy(&self, job: &CopyJob<'_>) -> Result<Fence, TransferError> {
        transfer(self.player.next(CallKind::Copy), &self.name, CallKind::Copy, |bytes| match bytes {
            Some(bytes) => copy_first(job, bytes),
            None => self.inner.copy(job),
        })
    }
}

/// Copies the first `bytes` bytes of a job and no more, by whatever way the ends allow.
fn copy_first(job: &CopyJob<'_>, bytes: u64) -> Result<Fence, TransferError> {
    let len = bytes.min(job.span().len());
    let (start, part) = (job.span().start(), Span::new(0, len));
    match (job.source_host(), job.target_host()) {
        (Some(from), Some(to)) => Ok(job.memcpy(&from.slice(part), &to.slice(part))),
        (Some(from), None) => job.write(start, &from.slice(part)),
        (None, Some(to)) => job.read(start, &to.slice(part)),
        (None, None) => {
            let scratch = HostSpan::scratch(len)?;
            job.read(start, &scratch)?.wait()?;
            job.write(start, &scratch)
        }
    }
}
