//! The users of a buffer: kernels with a grant, and copies.

use super::{OneClaim, Request};
use crate::base::access::{Claim, Claims};
use crate::base::id::{ArenaId, DeviceId, KernelId, LinkId, OwnerId, Seq};
use crate::base::range::Span;
use std::collections::BTreeMap;

/// How far the request of a requestor has progressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Its plan is being carried out. The entry already excludes conflicting requests.
    Preparing,
    /// It has access, but its kernel has not started.
    Granted,
    /// Its kernel is running.
    InFlight,
}

/// One entry of the requestor-set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requestor {
    /// The grant of this entry.
    pub grant: OwnerId,
    /// The kernel that holds the grant.
    pub kernel: KernelId,
    /// The arena that the kernel uses.
    pub arena: ArenaId,
    /// The bytes and accesses: sorted, disjoint, non-empty.
    pub claims: Claims,
    /// How far the request has progressed.
    pub phase: Phase,
    /// The number of the last commit when access was granted.
    pub seq_at_grant: Seq,
    /// Whether the kernel runs on the stream of its arena, behind the kernels submitted before it.
    pub is_submission: bool,
    /// The number of kernels that this entry stands for: 1, or as many as are on a stream with equal claims.
    /// The grant is then that of the last one.
    pub kernels: u32,
    /// Whether any claim writes.
    writes: bool,
}

/// Returns whether any of these claims writes.
pub(super) fn writes(claims: &[Claim]) -> bool {
    claims.iter().any(|claim| claim.access.writes())
}

impl Requestor {
    /// Creates an entry.
    pub(super) fn new(request: &Request, phase: Phase, seq: Seq) -> Self {
        let Request { kernel, grant, arena, ref claims, is_submission } = *request;
        let of = (kernel, grant, arena, is_submission);
        Self::of(of, (claims.clone(), writes(claims)), phase, seq)
    }

    /// Creates an entry of one claim, which is not empty.
    #[inline(always)]
    pub(super) fn of_one(request: OneClaim, phase: Phase, seq: Seq) -> Self {
        let OneClaim { kernel, grant, arena, claim, is_submission } = request;
        let of = (kernel, grant, arena, is_submission);
        Self::of(of, (Claims::one(claim), claim.access.writes()), phase, seq)
    }

    #[inline(always)]
    fn of(
        (kernel, grant, arena, is_submission): (KernelId, OwnerId, ArenaId, bool),
        (claims, writes): (Claims, bool),
        phase: Phase,
        seq: Seq,
    ) -> Self {
        Self { grant, kernel, arena, claims, phase, seq_at_grant: seq, is_submission, kernels: 1, writes }
    }

    /// Returns whether any claim of this entry conflicts with any of `claims`.
    #[must_use]
    pub fn conflicts(&self, claims: &Claims) -> bool {
        self.claims.conflict(claims)
    }

    /// Returns the arena on whose stream the kernel is, if it is on one.
    #[must_use]
    pub fn on_stream(&self) -> Option<ArenaId> {
        Some(self.arena).filter(|_| self.is_submission && self.phase == Phase::InFlight)
    }

    /// Returns whether any claim of this entry writes.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// Replaces the claims of this entry.
    pub(super) fn set_claims(&mut self, claims: Claims) {
        self.writes = writes(&claims);
        self.claims = claims;
    }
}

/// The identity of a copy within one buffer: its plan, and its number in that plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId {
    /// The grant or prefetch whose plan contains the copy.
    pub owner: OwnerId,
    /// The index of the copy among the plan's copies, from 0.
    pub index: u32,
}

/// What a copy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyKind {
    /// The copy moves bytes over a link.
    Bytes {
        /// The source arena.
        from: ArenaId,
        /// The link that is used.
        link: LinkId,
        /// The device that reads the source.
        source_via: DeviceId,
        /// The device that writes the destination.
        target_via: DeviceId,
    },
    /// The copy moves no bytes: source and destination share storage, and the map state has already changed.
    Refresh {
        /// The source arena.
        from: ArenaId,
    },
    /// The copy sets every byte to zero.
    Fill,
}

/// Whether a copy has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyPhase {
    /// The copy has not started, but its arenas are pinned.
    Reserved,
    /// The copy is running, and its devices have access to both ends (I-7).
    Running,
}

/// A copy that is reserved or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyOp {
    /// The identity of the copy.
    pub id: CopyId,
    /// What the copy does.
    pub kind: CopyKind,
    /// The destination arena.
    pub to: ArenaId,
    /// The bytes of the copy.
    pub span: Span,
    /// Whether the copy has started.
    pub phase: CopyPhase,
}

impl CopyOp {
    /// Returns the source arena; `None` for a fill.
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
#[allow(clippy::box_collection, reason = "a box is one word, and most buffers have no copies")]
pub struct Copies(Option<Box<BTreeMap<CopyId, CopyOp>>>);

impl Copies {
    fn map(&self) -> &BTreeMap<CopyId, CopyOp> {
        static NONE: BTreeMap<CopyId, CopyOp> = BTreeMap::new();
        self.0.as_deref().unwrap_or(&NONE)
    }

    /// Returns the number of copies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// Returns whether there are no copies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns all copies, ordered by plan and by their index in it.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &CopyOp> + Clone {
        self.map().values()
    }

    /// Returns the copy with this id.
    #[must_use]
    pub fn find(&self, id: CopyId) -> Option<&CopyOp> {
        self.map().get(&id)
    }

    pub(super) fn find_mut(&mut self, id: CopyId) -> Option<&mut CopyOp> {
        self.0.as_mut()?.get_mut(&id)
    }

    pub(super) fn insert(&mut self, copy: CopyOp) {
        self.0.get_or_insert_default().insert(copy.id, copy);
    }

    pub(super) fn remove(&mut self, id: CopyId) -> Option<CopyOp> {
        let copy = self.0.as_mut()?.remove(&id);
        self.0.take_if(|map| map.is_empty());
        copy
    }

    /// Removes the copies of one plan and returns them.
    pub(super) fn take_of(&mut self, owner: OwnerId) -> Vec<CopyOp> {
        let Some(map) = &mut self.0 else { return Vec::new() };
        let of = |index| CopyId { owner, index };
        let copies = map.extract_if(of(0)..=of(u32::MAX), |_, _| true).map(|(_, copy)| copy).collect();
        self.0.take_if(|map| map.is_empty());
        copies
    }
}

impl<'a> IntoIterator for &'a Copies {
    type Item = &'a CopyOp;
    type IntoIter = std::collections::btree_map::Values<'a, CopyId, CopyOp>;

    fn into_iter(self) -> Self::IntoIter {
        self.map().values()
    }
}
