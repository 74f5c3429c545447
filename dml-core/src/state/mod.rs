//! The abstract machine of one buffer: pure transitions on a value.
//!
//! ```text
//!            begin                     Execution: next, report (per step)         finish
//!   Request ──────▶ Granted                                            ┌───────────────▶ Granted ──release──▶ gone
//!           ──────▶ Plan(SyncPlan) ──▶ Preparing, resources reserved ──┤
//!           ──────▶ Busy / Refused                                     └─give up─▶ gone, copies made stay valid
//! ```
//! Nothing in this module does I/O, takes a lock, reads a clock or calls an arena. Production code, property tests,
//! the fuzzer and the model checker all drive this one implementation. Which links exist and what they cost comes in
//! through [`Routes`], which must answer deterministically.
//!
//! # Invariants
//! [`BufferState::check_invariants`] recomputes from scratch what holds after every transition: I-1, I-3 to I-14,
//! I-18, I-19, I-21, I-23 and I-25 of docs/spec.md.

mod arena_state;
mod event;
mod execution;
mod invariant;
mod plan;
mod queue;
mod refusal;
mod release;
mod requestors;
mod segments;
mod storage;
mod transition;
mod users;
mod way;

pub use crate::memory::map_state::MapState;
pub use arena_state::{Alloc, ArenaState, Loss, Transition};
pub use event::EventKind;
pub use execution::{Execution, Finished, Next, Report};
pub use invariant::Violation;
pub use plan::{Path, PathKey, Purpose, Step, SyncPlan};
pub use queue::{Admission, Waiting};
pub use refusal::{BindRefusal, BusyReason, ContractBreach, FreeRefusal, Refusal};
pub use release::{Outcome, Release};
pub use requestors::{Copies, CopyId, CopyKind, CopyOp, CopyPhase, Phase, Requestor};
pub use segments::{Content, Remains, Segments, Status};
pub use transition::{Begin, Request};

use crate::base::cost::Cost;
use crate::base::id::{ArenaId, ArenaSet, LinkId, Seq, Ticket};
use crate::base::range::Span;
use crate::memory::desc::ArenaDesc;
use crate::memory::link::{Allocation, CopyQuery, Link};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// What the machine needs to know of the platform. Every answer is deterministic.
pub trait Routes {
    /// The arenas, by id.
    fn arenas(&self) -> &[ArenaDesc];

    /// The links, by id.
    fn links(&self) -> &[Link];

    /// What a link would take for a query; `None` where its mechanism cannot do it.
    fn cost(&self, link: LinkId, query: &CopyQuery) -> Option<Cost>;

    /// The cheapest path from any of `sources` to `to` over the links for which `edge` gives a cost. Ties are broken
    /// by the number of hops, then by the arena ids along the path.
    fn cheapest(
        &self,
        sources: ArenaSet,
        to: ArenaId,
        edge: &mut dyn FnMut(LinkId) -> Option<Cost>,
    ) -> Option<Path>;

    /// As [`Routes::cheapest`], for a state in which every answer of `edge` is determined by `key`: an implementation
    /// may remember it.
    fn cheapest_idle(&self, key: PathKey, edge: &mut dyn FnMut(LinkId) -> Option<Cost>) -> Option<Path> {
        self.cheapest(key.sources, key.to, edge)
    }

    /// Whether a link binds two arenas that need it: by the links that move bytes, those of one of them would not reach the
    /// other. Storage of its own would keep the contents of the bound one apart for good.
    fn is_needed(&self, link: LinkId) -> bool {
        let Link { from, to, allocation, .. } = *self.link(link);
        matches!(allocation, Allocation::Bound(_))
            && !(reach(self, from).contains(to) && reach(self, to).contains(from))
    }

    /// The arenas that a link which is needed binds.
    fn bound_by_need(&self) -> ArenaSet {
        let links = (0..).map(LinkId).zip(self.links());
        links.filter(|(id, _)| self.is_needed(*id)).map(|(_, link)| link.to).collect()
    }

    /// One arena's description.
    fn arena(&self, id: ArenaId) -> &ArenaDesc {
        &self.arenas()[usize::from(id.0)]
    }

    /// One link.
    fn link(&self, id: LinkId) -> &Link {
        &self.links()[usize::from(id.0)]
    }
}

/// Where the bytes of an arena can be brought over links that move bytes, at any price and however many.
///
/// # Complexity
/// O(arenas · links).
pub(crate) fn reach(routes: &(impl Routes + ?Sized), from: ArenaId) -> ArenaSet {
    let query = CopyQuery { bytes: 1, remap_source: false, remap_target: false, allocates: false };
    let moves = |id: LinkId, link: &Link| {
        link.allocation == Allocation::Internal
            && routes.cost(id, &query).is_some_and(|cost| cost.is_feasible())
    };
    let mut reached = ArenaSet::of(from);
    loop {
        let before = reached;
        for (id, link) in (0..).map(LinkId).zip(routes.links()) {
            if reached.contains(link.from) && !reached.contains(link.to) && moves(id, link) {
                reached = reached.with(link.to);
            }
        }
        if reached == before {
            return reached;
        }
    }
}

/// Whether a buffer takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifecycle {
    /// It does.
    Open,
    /// An arena broke its contract: every request is refused, what is granted can be released.
    Wedged,
    /// It takes none, and what is granted or under way comes to its end.
    Closing,
    /// Nothing is left (I-25).
    Closed,
}

/// How the contents of a buffer begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initial {
    /// With none: reading is an error until something was written.
    Undefined,
    /// With zeros, made where they are first needed.
    Zeroed,
    /// With the application's own storage in this arena.
    External(ArenaId),
}

/// The state of one buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BufferState {
    segments: Segments,
    arenas: SmallVec<[ArenaState; 2]>,
    requestors: SmallVec<[Requestor; 1]>,
    copies: Copies,
    queue: VecDeque<Waiting>,
    commit_seq: Seq,
    lifecycle: Lifecycle,
}

impl BufferState {
    /// A buffer of `len` bytes without users. No arena has storage, except the one of [`Initial::External`].
    #[must_use]
    pub fn new(routes: &dyn Routes, len: u64, initial: Initial) -> Self {
        let mut arenas: SmallVec<[ArenaState; 2]> = routes.arenas().iter().map(ArenaState::new).collect();
        let content = match initial {
            Initial::Undefined => Content { valid: ArenaSet::EMPTY, status: Status::Undefined },
            Initial::Zeroed => Content { valid: ArenaSet::EMPTY, status: Status::Zeroed },
            Initial::External(arena) => {
                arenas[usize::from(arena.0)].alloc = Alloc::External;
                Content { valid: ArenaSet::of(arena), status: Status::Defined }
            }
        };
        Self {
            segments: Segments::new(len, content),
            arenas,
            requestors: SmallVec::new(),
            copies: Copies::default(),
            queue: VecDeque::new(),
            commit_seq: Seq(0),
            lifecycle: Lifecycle::Open,
        }
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.segments.len()
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Which bytes are valid where.
    #[must_use]
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The state of one arena.
    ///
    /// # Panics
    /// When the platform has no such arena.
    #[must_use]
    pub fn arena(&self, id: ArenaId) -> &ArenaState {
        &self.arenas[usize::from(id.0)]
    }

    /// The requestor-set.
    #[must_use]
    pub fn requestors(&self) -> &[Requestor] {
        &self.requestors
    }

    /// Copies reserved or running.
    #[must_use]
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Requests that wait, first come first.
    pub fn queue(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.queue.iter()
    }

    /// The number of the last commit.
    #[must_use]
    pub fn commit_seq(&self) -> Seq {
        self.commit_seq
    }

    /// Whether the buffer takes requests.
    #[must_use]
    pub fn lifecycle(&self) -> Lifecycle {
        self.lifecycle
    }

    /// Whether all of these bytes have contents that somebody could read.
    #[must_use]
    pub fn is_readable(&self, span: Span) -> bool {
        self.segments.in_span(span).all(|(part, content)| content.unreadable(part).is_none())
    }

    /// The same state with commits and tickets counted from the start, and users in the order of their grants.
    ///
    /// Two states that differ only in these behave alike: a model checker that explores canonical states ends, though
    /// buffers are written without end.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        self.commit_seq = Seq(0);
        self.requestors.sort_by_key(|entry| entry.grant);
        self.requestors.iter_mut().for_each(|entry| entry.seq_at_grant = Seq(0));
        for (waiting, ticket) in self.queue.iter_mut().zip(1..) {
            waiting.ticket = Ticket(ticket);
        }
        self
    }

    /// An arena broke its contract outside what the machine sees: it serves nobody any more.
    pub fn wedge(&mut self) {
        // A closing buffer refuses service already, and still has to come to its end.
        if self.lifecycle == Lifecycle::Open {
            self.lifecycle = Lifecycle::Wedged;
        }
    }

    fn arena_mut(&mut self, id: ArenaId) -> &mut ArenaState {
        &mut self.arenas[usize::from(id.0)]
    }

    fn arena_ids(&self) -> impl Iterator<Item = ArenaId> + use<> {
        (0..self.arenas.len() as u8).map(ArenaId)
    }
}

#[cfg(test)]
mod testbed;
