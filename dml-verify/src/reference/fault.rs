//! A fault in one call and its allowed effects: an error that names the fault, and no trace in the state.

use crate::{Place, test_arena};
use dml_arenas::faulty::{CallKind, Fault};
use dml_core::internal::state::BufferState;
use dml_core::{AcquireError, AllocError, ArenaName, BufferId, KernelId, Platform, TransferError};
use std::ops::Range;

/// A fault that strikes once, and the call that it strikes.
#[derive(Clone, Debug)]
pub struct Armed {
    /// The arena or link whose call fails.
    pub place: Place,
    /// How the call fails.
    pub fault: Fault,
    /// The kind of call that fails.
    pub kind: CallKind,
}

/// What an operation used, as far as errors can name it.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    pub(super) kernel: Option<KernelId>,
    /// The bytes that may be copied for it.
    pub(super) reads: Vec<(BufferId, Range<u64>)>,
    pub(super) buffers: Vec<(BufferId, u64)>,
}

impl Armed {
    /// Returns whether the error comes from a fault, and not from the machine itself.
    pub(super) fn is_fault(error: &AcquireError) -> bool {
        matches!(
            error,
            AcquireError::CopyFailed { .. } | AcquireError::MapFailed { .. } | AcquireError::Alloc { .. }
        )
    }

    /// Checks that an error names the failed arena, the bytes and the cause.
    pub(super) fn explains(
        &self,
        platform: &Platform,
        scope: &Scope,
        error: &AcquireError,
    ) -> Result<(), String> {
        let is_here = |name: &ArenaName| {
            *name.name == *platform.arena(name.id).desc().name && self.place == Place::Arena(name.id)
        };
        let len = |id: &BufferId| scope.buffers.iter().find(|(buffer, _)| buffer == id).map(|(_, len)| *len);
        let explained = match error {
            AcquireError::CopyFailed { buffer, from, to, span, cause } => {
                let reads = |(of, range): &(BufferId, Range<u64>)| {
                    *of == buffer.id() && range.start <= span.start() && span.end() <= range.end
                };
                let here = match self.place {
                    Place::Arena(_) => is_here(from) || is_here(to),
                    Place::Link(link) => {
                        let link = &platform.links()[usize::from(link.0)];
                        (from.id, to.id) == (link.from, link.to)
                    }
                };
                !span.is_empty() && scope.reads.iter().any(reads) && here && is_told(&self.fault, cause)
            }
            AcquireError::MapFailed { buffer, arena, cause, .. } => {
                len(&buffer.id()).is_some() && is_here(arena) && is_told(&self.fault, cause)
            }
            AcquireError::Alloc { buffer, arena, cause } => {
                let cause = match (cause, &self.fault) {
                    (AllocError::OutOfMemory { bytes, .. }, Fault::Fail(_) | Fault::Short(_)) => {
                        Some(*bytes) == len(&buffer.id())
                    }
                    (AllocError::DeviceLost { .. }, Fault::FailInFence(_)) => true,
                    (AllocError::Panicked { message, .. }, Fault::Panic | Fault::PanicInFence) => {
                        message.contains("scripted panic")
                    }
                    _ => false,
                };
                is_here(arena) && cause
            }
            _ => false,
        };
        if explained { Ok(()) } else { Err(format!("{self:?} is not what this says: {error:?}")) }
    }

    /// Returns whether a block may be left. An arena that panics in a free keeps the block, and the blocks
    /// that share it.
    pub(super) fn may_leak(&self) -> bool {
        self.kind == CallKind::Free && matches!(self.fault, Fault::Panic | Fault::PanicInFence)
    }

    /// Returns the number of calls made to the arena, for messages; 0 for a link.
    pub(super) fn calls(&self, platform: &Platform) -> u64 {
        match self.place {
            Place::Arena(arena) => test_arena(platform, arena).inner().inner().calls_made(),
            Place::Link(_) => 0,
        }
    }
}

/// Returns whether an arena's error is that of a scripted fault.
#[must_use]
pub fn is_told(fault: &Fault, cause: &TransferError) -> bool {
    match (fault, cause) {
        (Fault::Fail(told) | Fault::FailInFence(told), _) => told == cause,
        (Fault::Short(bytes), TransferError::Short { done_bytes, requested_bytes }) => {
            done_bytes == bytes && bytes < requested_bytes
        }
        (Fault::Panic | Fault::PanicInFence, TransferError::Panicked { message }) => {
            message.contains("scripted panic")
        }
        _ => false,
    }
}

/// Checks that a failed operation changed only what I-15 allows: storage, bindings, map states, and more
/// valid arenas. The operation's own entry is gone. Requests that waited may have been granted meanwhile.
pub(super) fn no_trace(before: &BufferState, after: &BufferState, scope: &Scope) -> Result<(), String> {
    let queued = |grant| before.queue().any(|waiting| waiting.request.grant == grant);
    for entry in after.requestors() {
        if !before.requestors().contains(entry) && !queued(entry.grant) {
            return Err(format!("{entry:?} is left of it"));
        }
    }
    for entry in before.requestors().iter().filter(|entry| !after.requestors().contains(entry)) {
        let is_own = scope.kernel.map_or(entry.kernel.0 >= 1 << 47, |kernel| entry.kernel == kernel);
        if !is_own {
            return Err(format!("{entry:?} is gone with it"));
        }
    }
    for copy in after.copies() {
        if !after.requestors().iter().any(|entry| entry.grant == copy.id.owner) {
            return Err(format!("{copy:?} is left of it"));
        }
    }
    if after.queue().any(|waiting| !before.queue().any(|before| before == waiting)) {
        return Err("a place in the queue is left of it".to_owned());
    }
    if (before.commit_seq(), before.lifecycle()) != (after.commit_seq(), after.lifecycle()) {
        return Err(format!("{:?} became {:?}", before.commit_seq(), after.commit_seq()));
    }
    for (span, then) in before.segments().iter() {
        for (part, now) in after.segments().in_span(span) {
            if !then.valid.is_subset(now.valid) || then.status != now.status {
                return Err(format!("{part}: {then:?} became {now:?}"));
            }
        }
    }
    Ok(())
}
