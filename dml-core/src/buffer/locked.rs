//! The data behind a buffer's lock.

use crate::base::access::{Claim, Claims};
use crate::base::id::{ArenaId, OwnerId};
use crate::base::range::Span;
use crate::base::sync::Arc;
use crate::buffer::error::Poisoner;
use crate::buffer::handle::Kept;
#[cfg(doc)]
use crate::buffer::lock::BufferInner;
use crate::buffer::shared_run::SharedRun;
use crate::buffer::storage::ArenaStorage;
use crate::buffer::wait::Waiters;
use crate::state::{BufferState, Known, Lifecycle, Routes, Status};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Weak;
use std::thread::ThreadId;

/// The data behind the buffer's lock.
///
/// | field | changed by |
/// |---|---|
/// | `state` | requests, prefetches, bindings, releases, closes, losses; a [`Run`](super::engine::Run) |
/// | `storages` | a `Run`; the work after every change ([`Locked::drop_unused`]) |
/// | `rare.to_free`, `is_freeing` | the work after every change; the freeing thread ([`BufferInner::free_all`]) |
/// | `is_ended` | the freeing thread, once |
/// | `rare.waiters` | queueing and cancelling of requests, `close`; the work after every change |
/// | `next_grant` | every request, prefetch and binding |
/// | `known` | every request; forgotten by every `change` |
/// | `rare.external` | attaching and taking back the application's storage; a copy whose arena kept its loan |
/// | `is_leaked` | a copy whose arena kept its loan |
/// | `map_changes` | a `Run` that changes a mapping |
/// | `rare.prefetches` | the start of a prefetch |
/// | `rare.poisoners` | the end of a grant that poisons its bytes |
/// | `rare.origins` | the start and the end of a grant, while events are recorded |
///
/// All these changes go through [`BufferInner::change`], which then examines the queue. [`BufferInner::read`]
/// changes nothing. The freeing thread, and a thread that waits for a buffer to end, take the lock directly.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) state: BufferState,
    pub(super) storages: SmallVec<[(ArenaId, ArenaStorage); 1]>,
    pub(super) next_grant: u64,
    /// What is known since the last change by [`BufferInner::change`].
    pub(super) known: Option<Known>,
    /// Whether a thread is freeing blocks of this buffer.
    pub(super) is_freeing: bool,
    /// Whether the buffer is closed and all of its storage free.
    pub(super) is_ended: bool,
    /// Whether the current change cannot admit a waiting request.
    pub(super) admits_nobody: bool,
    /// Whether storage was leaked because an arena kept part of it.
    pub(crate) is_leaked: bool,
    /// The number of map changes that have started, plus the number that have ended.
    pub(super) map_changes: u32,
    /// The number of pins.
    pub(super) pins: u32,
    /// What few buffers have.
    pub(super) rare: Option<Box<Rare>>,
    /// The number of changes since the last check of the invariants.
    #[cfg(debug_assertions)]
    pub(super) unchecked: usize,
}

/// What a buffer has while it is busy, and what few buffers have.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// Blocks that the state no longer refers to, to be freed. Members are freed before their roots.
    pub(super) to_free: Vec<(ArenaId, ArenaStorage)>,
    pub(super) waiters: Waiters,
    /// The application's storages, with their arenas. The call that closes the buffer takes one after the
    /// end.
    pub(crate) external: SmallVec<[(ArenaId, External); 1]>,
    /// The prefetches that may not have ended.
    pub(super) prefetches: Vec<Weak<SharedRun>>,
    /// The places where grants were acquired.
    pub(super) origins: Origins,
    /// The grants that poisoned bytes. The spans are disjoint.
    pub(super) poisoners: Vec<(Span, Poisoner)>,
    /// The buffer itself, while it has pins and the program has no handle.
    pub(super) keeper: Kept,
}

impl Rare {
    fn is_empty(&self) -> bool {
        let Self { to_free, waiters, external, prefetches, origins, poisoners, keeper } = self;
        to_free.is_empty()
            && waiters.is_empty()
            && external.is_empty()
            && prefetches.is_empty()
            && origins.is_empty()
            && poisoners.is_empty()
            && keeper.is_none()
    }
}

/// An application's container, type-erased.
pub(crate) type External = Arc<dyn Any + Send + Sync>;

type Origins = BTreeMap<OwnerId, (&'static Location<'static>, ThreadId)>;

/// Number of elements of the state that debug builds check per change: segments, claims, copies, waiting
/// requests, pairs of kernels. With 64, an acquire of 10,000 ranges takes 0.7 s; with 256, it takes 2.1 s.
#[cfg(debug_assertions)]
pub(super) const CHECKED_PER_CHANGE: usize = 64;

impl Locked {
    /// Creates the data of a buffer. The application's storage, if any, is present from the start.
    pub(crate) fn new(state: BufferState, external: Option<(ArenaId, External, ArenaStorage)>) -> Self {
        let mut locked = Self {
            state,
            storages: SmallVec::new(),
            next_grant: 0,
            known: None,
            is_freeing: false,
            is_ended: false,
            admits_nobody: false,
            is_leaked: false,
            map_changes: 0,
            pins: 0,
            rare: None,
            #[cfg(debug_assertions)]
            unchecked: 0,
        };
        if let Some((arena, container, storage)) = external {
            locked.put(arena, storage);
            locked.rare().external.push((arena, container));
        }
        locked
    }

    pub(crate) fn new_grant(&mut self) -> OwnerId {
        self.next_grant += 1;
        OwnerId(self.next_grant)
    }

    /// Returns what few buffers have, to be changed.
    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Counts a pin down. Returns what the buffer kept of itself, if this was the last one.
    #[inline(always)]
    pub(super) fn unpin(&mut self) -> Kept {
        self.pins -= 1;
        match &mut self.rare {
            Some(rare) if self.pins == 0 => rare.keeper.take(),
            _ => None,
        }
    }

    /// Drops the allocation of what few buffers have, once there is nothing of it left.
    pub(super) fn tidy(&mut self) {
        self.rare.take_if(|rare| rare.is_empty());
    }

    /// Returns the application's storages, with their arenas.
    pub(crate) fn external(&self) -> &[(ArenaId, External)] {
        self.rare.as_ref().map_or(&[], |rare| &rare.external)
    }

    /// Returns what is known of an arena in the common case.
    #[inline(always)]
    pub(super) fn know(&mut self, routes: &dyn Routes, arena: ArenaId) -> Option<Known> {
        if self.known.is_none_or(|known| !known.is_of(arena)) {
            self.known = self.state.known(routes, arena);
        }
        debug_assert_eq!(self.known, self.state.known(routes, arena), "nothing else changed the state");
        self.known
    }

    /// Registers a prefetch, so that requests that wait behind it advance it.
    pub(crate) fn add_prefetch(&mut self, run: &Arc<SharedRun>) {
        let prefetches = &mut self.rare().prefetches;
        if prefetches.len() == prefetches.capacity() {
            prefetches.retain(|run| run.strong_count() > 0);
        }
        prefetches.push(Arc::downgrade(run));
    }

    /// Records the grant that poisoned bytes, in place of earlier ones. Removes records of bytes that are no
    /// longer poisoned.
    pub(super) fn add_poisoner(&mut self, claims: &Claims, poisoner: Poisoner) {
        let written = |claim: &&Claim| claim.access.writes();
        let Self { state, rare, .. } = self;
        let poisoners = &mut rare.get_or_insert_default().poisoners;
        for (span, before) in std::mem::take(poisoners) {
            let mut start = span.start();
            for claim in claims.touching(span).iter().filter(written) {
                let end = claim.span.start().max(start);
                poisoners.push((Span::new(start, end), before.clone()));
                start = claim.span.end().max(start);
            }
            poisoners.push((Span::new(start.min(span.end()), span.end()), before));
        }
        let parts = state.segments();
        let is_poisoned = |span: Span| {
            parts.in_span(span).any(|(_, content)| matches!(content.status, Status::Poisoned(_)))
        };
        poisoners.retain(|(span, _)| is_poisoned(*span));
        poisoners.extend(claims.iter().filter(written).map(|claim| (claim.span, poisoner.clone())));
    }

    /// Returns the grant that poisoned the first poisoned bytes of a span, if one did.
    pub(super) fn poisoner(&self, span: Span) -> Option<Poisoner> {
        let poisoners = self.rare.iter().flat_map(|rare| &rare.poisoners);
        let poisoned = poisoners.filter(|(poisoned, _)| poisoned.overlaps(span));
        poisoned.min_by_key(|(poisoned, _)| poisoned.start()).map(|(_, poisoner)| poisoner.clone())
    }

    /// Returns whether nothing follows the last change: nothing waits, and no storage is to be freed.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        let state = &self.state;
        let is_used = |(arena, _): &(ArenaId, ArenaStorage)| state.arena(*arena).alloc.is_allocated();
        !state.has_queue()
            && !self.admits_nobody
            && self.rare.as_ref().is_none_or(|rare| rare.to_free.is_empty() && !rare.is_empty())
            && state.lifecycle() != Lifecycle::Closed
            && self.storages.iter().all(is_used)
    }

    pub(super) fn prefetches(&self) -> Vec<Arc<SharedRun>> {
        self.rare.iter().flat_map(|rare| &rare.prefetches).filter_map(Weak::upgrade).collect()
    }
}
