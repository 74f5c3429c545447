//! The results of a running kernel, copied to another arena behind it.
//!
//! ```text
//!   granted ──results──▶ copies begin, behind the kernel ──release──▶ committed ──copies end──▶ valid there
//! ```
//! 1. The copies are those that a prefetch after the release would make, if each comes from the kernel's own
//!    arena and no map state changes. They begin on the device behind the kernel, and end after the release.
//! 2. They have the owner of the grant, which keeps all others from these bytes (I-3). Their arenas are
//!    pinned as for any copy.
//! 3. What they overwrite is not valid any more from the start, also if the kernel fails (I-30). So only
//!    bytes that the kernel overwrites come back: to compute them again needs no old contents.

use super::{Begin, BufferState, CopyKind, CopyOp, Outcome, Phase, Remains, Routes, Status, Step, SyncPlan};
use crate::base::access::{Access, Claims};
use crate::base::id::{ArenaId, OwnerId};

impl BufferState {
    /// Plans the copies of what a kernel overwrites to another arena, and gives up what they overwrite there.
    /// `None` if nothing was changed, because they cannot follow the kernel or other requests wait.
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
        // Where the copies write, with what shares that storage.
        let mut group = self.group(goal);
        for step in &plan.steps {
            match step {
                Step::Allocate { .. } | Step::Bind { .. } => {}
                Step::Copy(CopyOp { kind: CopyKind::Refresh { from }, .. }) if *from != arena => {}
                Step::Copy(CopyOp { kind: CopyKind::Bytes { from, .. }, to, .. }) if *from == arena => {
                    group = group.union(self.group(*to));
                }
                _ => return None,
            }
        }
        for claim in claims.iter() {
            self.segments.update(claim.span, |mut content| {
                content.valid = content.valid.minus(group);
                match content.status {
                    Status::Defined | Status::Poisoned(Remains::Committed) if content.valid.is_empty() => {
                        content.status = Status::Poisoned(Remains::Lost);
                    }
                    _ => {}
                }
                content
            });
        }
        self.arena_mut(goal).is_retired = false;
        self.reserve(&plan);
        Some(plan)
    }
}

#[cfg(test)]
mod tests;
