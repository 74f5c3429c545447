//! The check of the invariants that hold in every state. It recomputes them from scratch.

use super::{
    Alloc, BufferState, CopyKind, CopyOp, CopyPhase, Lifecycle, Loss, Phase, Remains, Routes, Status,
};
use crate::base::id::{ArenaId, ArenaSet};
use crate::memory::desc::Concurrency;
use smallvec::{SmallVec, smallvec};
use std::fmt;

/// An invariant that does not hold, and the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The number of the invariant in docs/spec.md.
    pub invariant: u8,
    /// A description of what contradicts the invariant.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I-{}: {}", self.invariant, self.what)
    }
}

macro_rules! hold {
    ($number:literal, $condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(Violation { invariant: $number, what: format!($($what)+) });
        }
    };
}

impl BufferState {
    /// Checks every state invariant.
    ///
    /// # Errors
    /// The first [`Violation`] that the check finds.
    ///
    /// # Complexity
    /// O((n + kernels²) log n) for n segments, claims and copies. Only tests, models and debug builds should
    /// call it.
    pub fn check_invariants(&self, routes: &dyn Routes) -> Result<(), Violation> {
        self.check_requestors()?;
        self.check_copies()?;
        self.check_arenas(routes)?;
        self.check_access(routes)?;
        self.check_segments()?;
        self.check_queue()
    }

    /// Returns the approximate number of steps of [`check_invariants`](Self::check_invariants).
    #[cfg(debug_assertions)]
    pub(crate) fn size(&self) -> usize {
        let claims: usize = self.requestors.iter().map(|entry| entry.claims.len()).sum();
        let kernels = self.requestors.len();
        self.segments.count() + self.copies.len() + claims + kernels * kernels + self.queue.iter().len()
    }

    fn check_requestors(&self) -> Result<(), Violation> {
        for (index, entry) in self.requestors.iter().enumerate() {
            for other in &self.requestors[index + 1..] {
                let is_behind = entry.is_submission
                    && other.is_submission
                    && entry.arena == other.arena
                    && (entry.on_stream().is_some() || other.on_stream().is_some());
                let apart = is_behind || !entry.conflicts(&other.claims);
                hold!(1, apart, "{} and {} conflict", entry.grant, other.grant);
                hold!(23, entry.grant != other.grant, "{} has two entries", entry.grant);
            }
            if entry.phase == Phase::Preparing || entry.claims.is_empty() {
                continue;
            }
            let arena = self.arena(entry.arena);
            hold!(
                5,
                arena.alloc.is_allocated(),
                "{} uses {}, which has no storage",
                entry.grant,
                entry.arena
            );
            let root = self.arena(super::users::root(&self.arenas, entry.arena));
            hold!(
                5,
                root.alloc.is_allocated(),
                "{} uses {}, whose root has no storage",
                entry.grant,
                entry.arena
            );
            let stream = Some(entry.arena).filter(|_| entry.is_submission);
            for read in self.read_as_committed(&entry.claims, stream) {
                for (span, content) in self.segments.in_span(read).filter(|_| !arena.is_lost()) {
                    // What a submission reads may have been poisoned by a kernel before it on its stream.
                    let poisoned = match content.status {
                        Status::Poisoned(remains) => entry.is_submission || remains == Remains::Lost,
                        _ => false,
                    };
                    let valid = content.valid.contains(entry.arena) || poisoned;
                    hold!(4, valid, "{} reads {span} in {}, not valid there", entry.grant, entry.arena);
                }
            }
        }
        Ok(())
    }

    fn check_copies(&self) -> Result<(), Violation> {
        let mut by_start: SmallVec<[&CopyOp; 8]> = self.copies.iter().collect();
        by_start.sort_unstable_by_key(|copy| copy.span.start());
        for (index, copy) in by_start.iter().enumerate() {
            let group = self.group(copy.to);
            for entry in self.requestors.iter().filter(|entry| entry.grant != copy.id.owner) {
                for claim in entry.claims.touching(copy.span) {
                    let (id, grant) = (copy.id, entry.grant);
                    hold!(3, !claim.access.writes(), "{id:?} touches bytes that {grant} writes");
                    let rewrites =
                        !matches!(copy.kind, CopyKind::Refresh { .. }) && group.contains(entry.arena);
                    hold!(9, !rewrites, "{id:?} writes storage that {grant} uses");
                }
            }
            let later = by_start[index + 1..].iter().take_while(|later| later.span.start() < copy.span.end());
            for other in later {
                // Refreshes of two different members do not compete: they change no byte of the shared
                // storage.
                let fills = |copy: &CopyOp| !matches!(copy.kind, CopyKind::Refresh { .. });
                let fills = other.to == copy.to || fills(copy) || fills(other);
                let same_bytes = fills && other.span.overlaps(copy.span) && group.contains(other.to);
                let rival = same_bytes && other.id.owner != copy.id.owner;
                hold!(18, !rival, "{:?} and {:?} fill the same bytes", copy.id, other.id);
            }
        }
        Ok(())
    }

    fn check_arenas(&self, routes: &dyn Routes) -> Result<(), Violation> {
        let mut ends: SmallVec<[u64; 8]> = smallvec![0; self.arenas.len()];
        for end in self.copies.iter().flat_map(|copy| copy.from().into_iter().chain([copy.to])) {
            ends[usize::from(end.0)] += 1;
        }
        for id in self.arena_ids() {
            let (arena, desc) = (self.arena(id), routes.arena(id));
            let granted = |entry: &&super::Requestor| entry.arena == id && entry.phase != Phase::Preparing;
            let native = self.requestors.iter().filter(granted).count() as u64;
            hold!(
                8,
                u64::from(arena.native_refs) == native,
                "{id} counts {} kernels of {native}",
                arena.native_refs
            );
            let remote = ends[usize::from(id.0)];
            hold!(
                8,
                u64::from(arena.copy_refs) == remote,
                "{id} counts {} copies of {remote}",
                arena.copy_refs
            );
            hold!(19, arena.map.is_well_formed(desc), "{id} is {:?}", arena.map);
            if let Alloc::Bound { root, .. } = arena.alloc {
                let owner = self.arena(root).alloc;
                let sound = matches!(owner, Alloc::Internal | Alloc::External);
                hold!(10, sound, "{id} is bound to {root}, which is {owner:?}");
            }
        }
        Ok(())
    }

    fn check_access(&self, routes: &dyn Routes) -> Result<(), Violation> {
        if self.lifecycle == Lifecycle::Wedged {
            return Ok(());
        }
        let users = self.users(routes);
        for entry in self.requestors.iter().filter(|entry| entry.phase != Phase::Preparing) {
            if entry.claims.is_empty() {
                continue;
            }
            let (group, concurrency) =
                (self.group(entry.arena), self.tenancy(routes).concurrency(entry.arena));
            for member in group.iter() {
                let (desc, device) = (routes.arena(member), routes.arena(entry.arena).native);
                // A peer counts only while its own device uses it: a newly bound peer may not be mapped yet.
                let mut others = users.others(ArenaSet::of(member), entry.grant);
                let used = others.any(|user| user.device == desc.native);
                // The map state of a lost peer does not count, nor that of a peer in transition.
                let state = self.arena(member);
                let settled = state.transition.is_none() && !state.is_lost();
                let shares = concurrency != Concurrency::BimapFull && desc.remotes.contains(device);
                let concerns = member == entry.arena || (shares && settled && used);
                let map = state.map;
                hold!(
                    6,
                    !concerns || map.gives(desc, device),
                    "{} lost {device}'s access to {member}",
                    entry.grant
                );
            }
        }
        for copy in self.copies.iter().filter(|copy| copy.phase == CopyPhase::Running) {
            if let CopyKind::Bytes { from, source_via, target_via, .. } = copy.kind {
                for (end, via) in [(from, source_via), (copy.to, target_via)] {
                    let gives = self.arena(end).map.gives(routes.arena(end), via);
                    hold!(7, gives, "{:?} runs without {via}'s access to {end}", copy.id);
                }
            }
        }
        for (index, user) in users.iter().enumerate() {
            for other in users.iter().skip(index + 1) {
                if user.owner == other.owner || user.device == other.device {
                    continue;
                }
                if !self.group(user.arena).contains(other.arena) {
                    continue;
                }
                let allowed = match self.tenancy(routes).concurrency(user.arena) {
                    Concurrency::Exclusive => false,
                    Concurrency::BimapRead => !user.writes && !other.writes,
                    Concurrency::BimapFull => true,
                };
                hold!(11, allowed, "{user:?} and {other:?} use one storage at once");
            }
        }
        Ok(())
    }

    fn check_segments(&self) -> Result<(), Violation> {
        let mut next = 0;
        for (span, content) in self.segments.iter() {
            hold!(12, span.start() == next && !span.is_empty(), "segment {span} after byte {next}");
            next = span.end();
            let nobody = content.valid.is_empty();
            match content.status {
                Status::Defined => hold!(13, !nobody, "{span} is defined and valid nowhere"),
                Status::Undefined => {
                    hold!(13, nobody, "{span} is undefined and valid in {:?}", content.valid)
                }
                Status::Poisoned(Remains::Lost) => {
                    hold!(13, nobody, "{span} is lost, valid in {:?}", content.valid)
                }
                Status::Poisoned(Remains::Committed) => {
                    hold!(13, !nobody, "{span} is restorable and valid nowhere")
                }
                Status::Zeroed | Status::Poisoned(Remains::Zeros) => {}
            }
            for arena in content.valid.iter() {
                hold!(14, self.has_storage(arena), "{span} is valid in {arena}, which has no storage");
                hold!(16, !self.arena(arena).is_lost(), "{span} is valid in {arena}, which is lost");
            }
        }
        hold!(12, next == self.len(), "the segments end at {next} of {}", self.len());
        Ok(())
    }

    fn has_storage(&self, arena: ArenaId) -> bool {
        self.arena(arena).alloc.is_allocated()
    }

    fn check_queue(&self) -> Result<(), Violation> {
        for (first, second) in self.queue.iter().zip(self.queue.iter().skip(1)) {
            hold!(21, first.ticket < second.ticket, "{} before {}", first.ticket, second.ticket);
        }
        hold!(21, self.queue.knows_its_claims(), "the queue's set of claimed bytes lacks a claim");
        if self.lifecycle == Lifecycle::Closed {
            hold!(25, self.is_idle() && self.queue.is_empty(), "closed with users");
            hold!(25, self.arenas.iter().all(|arena| !arena.alloc.is_allocated()), "closed with storage");
        }
        let lets_go = |id: &ArenaId| self.arena(*id).loss == Loss::Storage && !self.is_wanted(*id);
        let kept = self.arena_ids().find(lets_go);
        hold!(5, kept.is_none(), "{kept:?} keeps unused storage of a lost root");
        let kept = self.retiring();
        hold!(28, kept.is_none(), "{kept:?} is retired and keeps storage that can be freed");
        let lasts = self.lifecycle == Lifecycle::Closing && self.is_idle();
        hold!(25, !lasts, "closing without users, and not closed");
        // A request that waits while the buffer has no users would wait for ever.
        hold!(21, self.queue.is_empty() || !self.is_idle(), "{:?} waits for no user", self.queue.front());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
