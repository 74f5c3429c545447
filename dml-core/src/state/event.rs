//! The events by which the machine reports its changes.

use super::{CopyKind, CopyOp, Outcome, Requestor};
use crate::base::access::{Access, Claims};
use crate::base::id::{ArenaId, DeviceId, KernelId, LinkId, OwnerId, Seq, Ticket};
use crate::base::range::Span;

/// One event of one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The buffer was created.
    Created {
        /// The size of the buffer, in bytes.
        len: u64,
        /// The arena that holds the first contents, if there are any.
        data_in: Option<ArenaId>,
        /// Whether the contents start as zeros.
        zeroed: bool,
    },
    /// A request was put into the queue.
    Queued {
        /// The ticket of the request in the queue.
        ticket: Ticket,
        /// The kernel that asks.
        kernel: KernelId,
    },
    /// A waiting request was withdrawn.
    Cancelled {
        /// The ticket that the request had.
        ticket: Ticket,
    },
    /// A kernel was granted access.
    Granted {
        /// The new grant.
        grant: OwnerId,
        /// The kernel that holds the grant.
        kernel: KernelId,
        /// The arena that the kernel uses.
        arena: ArenaId,
        /// The granted bytes and accesses.
        claims: Claims,
        /// The last commit that the kernel sees.
        seq: Seq,
    },
    /// The kernel of a submission was launched on the stream of its arena. Others on that stream may now be
    /// granted beside it.
    Launched {
        /// The grant of the kernel.
        grant: OwnerId,
    },
    /// A copy of what a kernel overwrites was enqueued behind it. Until it has arrived, its destination does
    /// not hold these bytes.
    ResultBegun {
        /// The grant of the kernel.
        grant: OwnerId,
        /// The arena that the copy fills.
        arena: ArenaId,
        /// The bytes of the copy.
        span: Span,
    },
    /// A grant ended.
    Released {
        /// The grant that ended.
        grant: OwnerId,
        /// The outcome that counted.
        outcome: Outcome,
        /// The commit that this release made, if any.
        commit: Option<Seq>,
    },
    /// A writing grant became a reading grant.
    Downgraded {
        /// The grant that was downgraded.
        grant: OwnerId,
        /// The commit that this made.
        commit: Seq,
    },
    /// A prefetch ended after all of its copies.
    Prefetched {
        /// The prefetch that ended.
        owner: OwnerId,
        /// The arena that now holds the bytes.
        arena: ArenaId,
    },
    /// An arena received storage.
    Allocated {
        /// The arena that received storage.
        arena: ArenaId,
        /// The root whose storage the arena shares, if it shares one.
        root: Option<ArenaId>,
    },
    /// An arena received storage of the application.
    Attached {
        /// The arena that received storage.
        arena: ArenaId,
        /// The commit of its contents, if they became the contents of the buffer.
        commit: Option<Seq>,
    },
    /// The storage of an arena was freed.
    Freed {
        /// The arena whose storage was freed.
        arena: ArenaId,
    },
    /// A map state changed so that a device has access.
    Mapped {
        /// The arena whose map state changed.
        arena: ArenaId,
        /// The device that now has access.
        device: DeviceId,
    },
    /// A copy started.
    CopyStarted {
        /// The grant or prefetch that the copy belongs to.
        owner: OwnerId,
        /// The source; `None` for a fill with zeros.
        from: Option<ArenaId>,
        /// The destination.
        to: ArenaId,
        /// The bytes of the copy.
        span: Span,
        /// The link that carries the bytes; `None` for a fill, and for a refresh, which moves none.
        link: Option<LinkId>,
    },
    /// A copy ended: the bytes are valid in the destination.
    CopyDone {
        /// The grant or prefetch that the copy belongs to.
        owner: OwnerId,
        /// The source; `None` for a fill with zeros.
        from: Option<ArenaId>,
        /// The destination.
        to: ArenaId,
        /// The bytes of the copy.
        span: Span,
    },
    /// A grant or prefetch was abandoned before it was complete, and its reservations were undone.
    GivenUp {
        /// The abandoned grant or prefetch.
        owner: OwnerId,
    },
    /// Poisoned bytes got their last committed contents back.
    Restored {
        /// The bytes that were restored.
        span: Span,
    },
    /// A device is lost.
    DeviceLost {
        /// The lost device.
        device: DeviceId,
    },
    /// The buffer was closed.
    Closed,
}

impl EventKind {
    /// Returns whether this event grants access that reads.
    #[must_use]
    pub fn is_reading_grant(&self) -> bool {
        matches!(self, Self::Granted { claims, .. } if claims.iter().any(|c| c.access != Access::WriteInvalidate))
    }
}

impl From<&Requestor> for EventKind {
    /// Builds the event that grants this entry access.
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
    /// Returns the event of the copy's start.
    pub(crate) fn begun(&self) -> EventKind {
        let link = match self.kind {
            CopyKind::Bytes { link, .. } => Some(link),
            CopyKind::Refresh { .. } | CopyKind::Fill => None,
        };
        EventKind::CopyStarted { owner: self.id.owner, from: self.from(), to: self.to, span: self.span, link }
    }

    /// Returns the event of the copy's end.
    pub(super) fn arrived(&self) -> EventKind {
        EventKind::CopyDone { owner: self.id.owner, from: self.from(), to: self.to, span: self.span }
    }
}
