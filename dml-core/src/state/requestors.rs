//! Who uses the buffer: kernels with a grant, and copies.

use crate::access::{Claim, Claims};
use crate::id::{ArenaId, DeviceId, GrantId, KernelId, LinkId, Seq};
use crate::range::Span;

/// How far a requestor has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Its plan is being carried out; nobody can conflict with it any more.
    Preparing,
    /// It has access and has not begun to use it.
    Granted,
    /// Its kernel runs.
    InFlight,
}

/// One entry of the requestor-set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requestor {
    /// The grant.
    pub grant: GrantId,
    /// The kernel.
    pub kernel: KernelId,
    /// The arena it uses.
    pub arena: ArenaId,
    /// The bytes and accesses: sorted, disjoint, non-empty.
    pub claims: Claims,
    /// How far it has come.
    pub phase: Phase,
    /// The last commit when it was granted.
    pub seq_at_grant: Seq,
}

impl Requestor {
    /// Whether any claim of this entry conflicts with any of `claims`.
    #[must_use]
    pub fn conflicts(&self, claims: &[Claim]) -> bool {
        claims.iter().any(|claim| self.claims.iter().any(|held| held.conflicts(claim)))
    }

    /// Whether it writes anything.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.claims.iter().any(|claim| claim.access.writes())
    }
}

/// A copy within one buffer: the plan it belongs to and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId {
    /// The grant or prefetch.
    pub owner: GrantId,
    /// Its place among the plan's copies.
    pub index: u32,
}

/// What a copy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyKind {
    /// Moves bytes over a link.
    Bytes {
        /// The source.
        from: ArenaId,
        /// The link.
        link: LinkId,
        /// The device that reads the source.
        source_via: DeviceId,
        /// The device that writes the destination.
        target_via: DeviceId,
    },
    /// Moves nothing: the ends share their storage, and the map state has been changed.
    Refresh {
        /// The source.
        from: ArenaId,
    },
    /// Sets every byte to zero.
    Fill,
}

/// Whether a copy has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyPhase {
    /// Its arenas are pinned, and it has not begun.
    Reserved,
    /// It runs: both ends are accessible to its devices (I-7).
    Running,
}

/// A copy that is reserved or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyOp {
    /// Which.
    pub id: CopyId,
    /// What it does.
    pub kind: CopyKind,
    /// The destination.
    pub to: ArenaId,
    /// The bytes.
    pub span: Span,
    /// Whether it has begun.
    pub phase: CopyPhase,
}

impl CopyOp {
    /// The source arena; `None` for a fill.
    #[must_use]
    pub fn from(&self) -> Option<ArenaId> {
        match self.kind {
            CopyKind::Bytes { from, .. } | CopyKind::Refresh { from } => Some(from),
            CopyKind::Fill => None,
        }
    }
}
