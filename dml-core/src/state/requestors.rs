//! Who uses the buffer: kernels with a grant, and copies.

use super::Request;
use crate::access::{Claim, Claims, meeting};
use crate::id::{ArenaId, DeviceId, GrantId, KernelId, LinkId, Seq};
use crate::range::Span;
use std::collections::BTreeMap;

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
    /// Whether any claim writes.
    writes: bool,
}

/// Whether any of these claims writes.
pub(super) fn writes(claims: &[Claim]) -> bool {
    claims.iter().any(|claim| claim.access.writes())
}

impl Requestor {
    /// An entry whose plan is still to be carried out.
    pub(super) fn new(request: &Request, seq: Seq) -> Self {
        Self {
            grant: request.grant,
            kernel: request.kernel,
            arena: request.arena,
            claims: request.claims.clone(),
            phase: Phase::Preparing,
            seq_at_grant: seq,
            writes: writes(&request.claims),
        }
    }

    /// Whether any claim of this entry conflicts with any of `claims`, which are [normalised](crate::normalise).
    #[must_use]
    pub fn conflicts(&self, claims: &[Claim]) -> bool {
        meeting(&self.claims, claims).any(|(held, claim)| held.conflicts(claim))
    }

    /// Whether it writes anything.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// Changes what it holds.
    pub(super) fn set_claims(&mut self, claims: Claims) {
        self.writes = writes(&claims);
        self.claims = claims;
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

/// The copies of a buffer that are reserved or running, in the order of their plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Copies(BTreeMap<CopyId, CopyOp>);

impl Copies {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by plan and by their place in it.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &CopyOp> + Clone {
        self.0.values()
    }

    /// One of them.
    #[must_use]
    pub fn find(&self, id: CopyId) -> Option<&CopyOp> {
        self.0.get(&id)
    }

    pub(super) fn find_mut(&mut self, id: CopyId) -> Option<&mut CopyOp> {
        self.0.get_mut(&id)
    }

    pub(super) fn insert(&mut self, copy: CopyOp) {
        self.0.insert(copy.id, copy);
    }

    pub(super) fn remove(&mut self, id: CopyId) -> Option<CopyOp> {
        self.0.remove(&id)
    }

    /// Takes out the copies of one plan.
    pub(super) fn take_of(&mut self, owner: GrantId) -> impl Iterator<Item = CopyOp> {
        let of = |index| CopyId { owner, index };
        self.0.extract_if(of(0)..=of(u32::MAX), |_, _| true).map(|(_, copy)| copy)
    }
}

impl<'a> IntoIterator for &'a Copies {
    type Item = &'a CopyOp;
    type IntoIter = std::collections::btree_map::Values<'a, CopyId, CopyOp>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.values()
    }
}
