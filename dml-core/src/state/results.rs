//! The results of a running kernel, copied to another arena behind it.
//!
//! ```text
//!   granted ──results──▶ copies enqueued ──release──▶ committed ──copies end──▶ valid there
//! ```
//! 1. The copies are those that a prefetch after the release would make, if each comes from the kernel's own
//!    arena and no map state changes. They begin on the device behind the kernel, and end after the release.
//! 2. They have the owner of the grant, which keeps all others from these bytes (I-3). Their arenas are
//!    pinned as for any copy.
//! 3. What a copy overwrites is not valid any more once it is enqueued, also if the kernel fails (I-30). So
//!    only bytes that the kernel overwrites come back: to compute them again needs no old contents.

use super::{
    Begin, BufferState, Content, CopyKind, CopyOp, Outcome, Phase, Remains, Routes, Status, Step, SyncPlan,
};
use crate::base::access::{Access, Claims};
use crate::base::id::{ArenaId, OwnerId};

impl BufferState {
    /// Plans the copies of what a kernel overwrites to another arena, and reserves what they need. `None` if
    /// they cannot follow the kernel, or other requests wait.
    pub fn results(&mut self, routes: &dyn Routes, grant: OwnerId, goal: ArenaId) -> Option<SyncPlan> {
        let entry = &self.requestors[self.requestors.place(grant)?];
        let overwritten = entry.claims.iter().filter(|claim| claim.access == Access::WriteInvalidate);
        let claims = Claims::new(overwritten.copied()).reading();
        if claims.is_empty() || entry.phase == Phase::Preparing || entry.kernels > 1 {
            return None;
        }
        let arena = entry.arena;
        if self.group(goal).contains(arena) {
            return None;
        }
        let mut ended = self.clone();
        let _ = ended.release(routes, grant, Outcome::Done);
        let Begin::Plan(plan) = ended.fetch(routes, grant, goal, &claims) else { return None };
        let can_follow = |step: &Step| match step {
            Step::Allocate { .. } | Step::Bind { .. } => true,
            Step::Copy(CopyOp { kind: CopyKind::Refresh { from }, .. }) => *from != arena,
            Step::Copy(CopyOp { kind: CopyKind::Bytes { from, .. }, .. }) => *from == arena,
            Step::Map { .. } | Step::Copy(_) => false,
        };
        if !plan.steps.iter().all(can_follow) {
            return None;
        }
        self.arena_mut(goal).is_retired = false;
        self.reserve(&plan);
        Some(plan)
    }

    /// Records that a copy of results has begun: the storage that it fills holds its bytes no more.
    pub fn result_begun(&mut self, copy: &CopyOp) {
        let group = self.group(copy.to);
        self.segments.update(copy.span, |content| {
            let valid = content.valid.minus(group);
            let status = match content.status {
                Status::Defined | Status::Poisoned(Remains::Committed) if valid.is_empty() => {
                    Status::Poisoned(Remains::Lost)
                }
                status => status,
            };
            Content { valid, status }
        });
    }
}

#[cfg(test)]
mod tests;
