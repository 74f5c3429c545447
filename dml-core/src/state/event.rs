//! What the machine tells of its changes, in the words of the event stream.

use super::{CopyOp, Outcome, Requestor};
use crate::access::{Access, Claims};
use crate::id::{ArenaId, DeviceId, GrantId, KernelId, Seq, Ticket};
use crate::range::Span;

/// One thing that happened to one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The buffer was made.
    Created {
        /// Its size in bytes.
        len: u64,
        /// Where its first contents are: an arena, or nowhere.
        data_in: Option<ArenaId>,
        /// Whether it begins as zeros.
        zeroed: bool,
    },
    /// A request has to wait.
    Queued {
        /// Its place.
        ticket: Ticket,
        /// Who asks.
        kernel: KernelId,
    },
    /// A waiting request was given up.
    Cancelled {
        /// Its place.
        ticket: Ticket,
    },
    /// A kernel has access.
    Granted {
        /// The grant.
        grant: GrantId,
        /// Whose it is.
        kernel: KernelId,
        /// The arena it uses.
        arena: ArenaId,
        /// The bytes, and what it does with them.
        claims: Claims,
        /// The last commit it sees.
        seq: Seq,
    },
    /// A grant ended.
    Released {
        /// The grant.
        grant: GrantId,
        /// How.
        outcome: Outcome,
        /// The commit this made, if it made one.
        commit: Option<Seq>,
    },
    /// A writing grant became a reading one.
    Downgraded {
        /// The grant.
        grant: GrantId,
        /// The commit this made.
        commit: Seq,
    },
    /// A prefetch ended, having made all the copies it was to make.
    Prefetched {
        /// The prefetch.
        owner: GrantId,
        /// The arena.
        arena: ArenaId,
    },
    /// An arena has storage now.
    Allocated {
        /// The arena.
        arena: ArenaId,
        /// The arena whose storage it shares, if it shares one.
        root: Option<ArenaId>,
    },
    /// An arena has no storage any more.
    Freed {
        /// The arena.
        arena: ArenaId,
    },
    /// The map state changed for a device.
    Mapped {
        /// The arena.
        arena: ArenaId,
        /// Who has access now.
        device: DeviceId,
    },
    /// Bytes are on their way.
    CopyStarted {
        /// For which grant or prefetch.
        owner: GrantId,
        /// From where; `None` is the source of zeros.
        from: Option<ArenaId>,
        /// To where.
        to: ArenaId,
        /// Which.
        span: Span,
    },
    /// Bytes have arrived: the destination is valid.
    CopyDone {
        /// For which grant or prefetch.
        owner: GrantId,
        /// From where; `None` is the source of zeros.
        from: Option<ArenaId>,
        /// To where.
        to: ArenaId,
        /// Which.
        span: Span,
    },
    /// A grant or prefetch was given up before it was complete; its reservations are gone.
    Aborted {
        /// Which.
        owner: GrantId,
    },
    /// Poisoned bytes have their last committed contents back.
    Restored {
        /// Which bytes.
        span: Span,
    },
    /// A device is gone.
    DeviceLost {
        /// Which device.
        device: DeviceId,
    },
    /// The buffer is closed.
    Closed,
}

impl EventKind {
    /// Whether this granted access that reads.
    #[must_use]
    pub fn is_reading_grant(&self) -> bool {
        matches!(self, Self::Granted { claims, .. } if claims.iter().any(|c| c.access != Access::WriteInvalidate))
    }
}

impl From<&Requestor> for EventKind {
    /// A kernel was granted access.
    fn from(entry: &Requestor) -> Self {
        Self::Granted {
            grant: entry.grant,
            kernel: entry.kernel,
            arena: entry.arena,
            claims: entry.claims.clone(),
            seq: entry.seq_at_grant,
        }
    }
}

impl CopyOp {
    /// The event of its beginning.
    pub(crate) fn begun(&self) -> EventKind {
        EventKind::CopyStarted { owner: self.id.owner, from: self.from(), to: self.to, span: self.span }
    }

    /// The event of its arrival.
    pub(super) fn arrived(&self) -> EventKind {
        EventKind::CopyDone { owner: self.id.owner, from: self.from(), to: self.to, span: self.span }
    }
}
