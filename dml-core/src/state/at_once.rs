//! The common case of a request and of a release: the bytes are valid there, no other kernel conflicts, and
//! nothing waits, moves or ends.
//!
//! Both transitions are those of the general case, found without a plan. With debug assertions each is
//! compared with the general one: in every test, model and simulation.

use super::{Alloc, ArenaState, BufferState, Content, Lifecycle, Loss, Outcome, Phase, Release};
use super::{OneClaim, Requestor, Routes, Segments, Seq, Status};
use crate::base::access::{Claim, Claims};
use crate::base::id::{ArenaId, ArenaSet, OwnerId};

impl ArenaState {
    /// Returns whether the storage, if any, is the arena's own, and stays.
    fn is_plain(&self) -> bool {
        !matches!(self.alloc, Alloc::Bound { .. })
            && self.transition.is_none()
            && self.loss == Loss::None
            && !self.is_retired
    }
}

/// What is known of a buffer in which nothing waits, moves or ends, and which shares no storage. It holds
/// until a transition of the general case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The arena that is meant. It has storage.
    arena: ArenaId,
    facts: u8,
}

/// The native device of the arena has the access of a reader.
const SERVES_READERS: u8 = 1;
/// The native device of the arena has the access of a writer.
const SERVES_WRITERS: u8 = 2;
/// All bytes can be read in the arena.
const HAS_ALL: u8 = 4;
/// All bytes are committed in the arena and nowhere else, as after a writer.
const HAS_ALONE: u8 = 8;

impl Known {
    /// Returns whether an arena is meant.
    #[inline(always)]
    pub(crate) fn is_of(self, arena: ArenaId) -> bool {
        self.arena == arena
    }

    #[inline(always)]
    fn says(self, fact: u8) -> bool {
        self.facts & fact != 0
    }

    /// Learns where the bytes are.
    #[inline(always)]
    fn learn(&mut self, segments: &Segments) {
        let whole = segments.whole();
        let has_all = whole.is_some_and(|whole| whole.is_readable_in(self.arena));
        let has_alone = whole == Some(Content::written_in(self.arena));
        let facts = [(HAS_ALL, has_all), (HAS_ALONE, has_alone)];
        let facts = facts.into_iter().filter(|(_, is_so)| *is_so).map(|(fact, _)| fact).sum::<u8>();
        self.facts = self.facts & (SERVES_READERS | SERVES_WRITERS) | facts;
    }
}

impl BufferState {
    /// Returns what requests and releases in an arena need to know in the common case, if this is one.
    #[inline(never)]
    pub(crate) fn known(&self, routes: &dyn Routes, arena: ArenaId) -> Option<Known> {
        let is_calm = self.lifecycle == Lifecycle::Open
            && self.queue.is_empty()
            && self.copies.is_empty()
            && self.arenas.iter().all(ArenaState::is_plain);
        let (state, desc) = (self.arena(arena), routes.arena(arena));
        if !is_calm || !state.alloc.is_allocated() {
            return None;
        }
        let serves = |writes, fact| {
            let is_served = state.map.serves(desc, desc.concurrency, desc.native, writes);
            if is_served { fact } else { 0 }
        };
        let facts = serves(false, SERVES_READERS) | serves(true, SERVES_WRITERS);
        let mut known = Known { arena, facts };
        known.learn(&self.segments);
        Some(known)
    }

    /// Grants a request in the common case. Otherwise nothing changes.
    #[inline(always)]
    pub(crate) fn begin_at_once(
        &mut self,
        routes: &dyn Routes,
        known: Known,
        request: OneClaim,
    ) -> Option<Seq> {
        let OneClaim { arena, claim: Claim { span, access }, .. } = request;
        let is_served = known.says(if access.writes() { SERVES_WRITERS } else { SERVES_READERS });
        let is_there = || known.says(HAS_ALL) || self.segments.are_readable_in(span, arena);
        if arena != known.arena || !is_served || span.is_empty() || (access.reads() && !is_there()) {
            return None;
        }
        let is_alone = match self.requestors.few() {
            Some([]) => true,
            Some(users) => coexists(users, request),
            None => false,
        };
        if !is_alone || self.arena(arena).native_refs == u32::MAX {
            return None;
        }
        #[cfg(debug_assertions)]
        let general = self.is_comparable().then(|| {
            let mut general = self.clone();
            (general.begin_in_general(routes, &request.to_request()), general)
        });
        let (_, seq) = (routes, self.commit_seq);
        self.requestors.push_to_few(Requestor::of_one(request, Phase::Granted, seq));
        self.arena_mut(arena).native_refs += 1;
        #[cfg(debug_assertions)]
        if let Some((begun, general)) = general {
            assert_eq!((&super::Begin::Granted(seq), &*self), (&begun, &general), "{request:?}");
        }
        Some(seq)
    }

    /// Ends a grant in the common case. Otherwise nothing changes.
    #[inline(always)]
    pub(crate) fn release_at_once(
        &mut self,
        routes: &dyn Routes,
        known: &mut Known,
        (grant, on_stream): (OwnerId, Option<(ArenaId, &Claims)>),
        outcome: Outcome,
    ) -> Option<Release> {
        let users = self.requestors.few()?;
        let place = match users {
            [only] if only.grant == grant => 0,
            _ => {
                let on_stream =
                    || on_stream.and_then(|(arena, claims)| self.requestors.on_stream(arena, claims));
                users.iter().position(|entry| entry.grant == grant).or_else(on_stream)?
            }
        };
        let entry = &users[place];
        let is_known = entry.arena == known.arena && entry.phase != Phase::Preparing;
        if !is_known || !matches!(outcome, Outcome::Done | Outcome::NotStarted) {
            return None;
        }
        #[cfg(debug_assertions)]
        let general = self.is_comparable().then(|| {
            let mut general = self.clone();
            (general.release_in_general(routes, (grant, on_stream), outcome), general)
        });
        let _ = routes;
        let commit = (outcome == Outcome::Done && entry.writes()).then(|| Seq(self.commit_seq.0 + 1));
        if let Some(seq) = commit {
            self.commit_seq = seq;
            if !known.says(HAS_ALONE) {
                let written = entry.claims.iter().filter(|claim| claim.access.writes());
                written.for_each(|claim| self.segments.set(claim.span, Content::written_in(known.arena)));
                known.learn(&self.segments);
            }
        }
        if !self.requestors.ends_one(place) {
            self.requestors.remove_of_few(place);
            self.arena_mut(known.arena).native_refs -= 1;
        }
        let release = Release { outcome, commit, lost: None };
        #[cfg(debug_assertions)]
        if let Some((released, general)) = general {
            assert_eq!((&Ok(release), &*self), (&released, &general), "{grant:?} ends as {outcome:?}");
        }
        Some(release)
    }

    /// Returns whether a comparison with the general case takes no longer than a check of the invariants.
    #[cfg(debug_assertions)]
    fn is_comparable(&self) -> bool {
        self.size() < 64
    }
}

/// Returns whether a request waits for none of the users, all of which use its arena.
#[inline(never)]
fn coexists(users: &[Requestor], request: OneClaim) -> bool {
    let OneClaim { kernel, arena, claim, is_submission, .. } = request;
    let claims = Claims::of(claim);
    users.iter().all(|entry| {
        let follows = is_submission && entry.on_stream() == Some(arena);
        entry.kernel != kernel && entry.arena == arena && (follows || !entry.conflicts(&claims))
    })
}

impl Content {
    /// Returns the content of bytes that a kernel wrote in an arena that shares no storage.
    fn written_in(arena: ArenaId) -> Self {
        Self { valid: ArenaSet::of(arena), status: Status::Defined }
    }
}

#[cfg(test)]
mod tests;
