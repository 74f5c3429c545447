//! The abstract machine of one buffer: pure transitions on a value.
//!
//! ```text
//!            begin                     Execution: next, report (per step)    finish
//!   Request ──────▶ Granted                                            ┌──────────▶ Granted ──release──▶ gone
//!           ──────▶ Plan(SyncPlan) ──▶ Preparing, resources reserved ──┤
//!           ──────▶ Busy / Refused                                     └─give up─▶ gone, copies stay valid
//! ```
//! Nothing in this module does I/O, takes a lock, reads a clock or calls an arena. Production code, property
//! tests, the fuzzer and the model checker all drive this one implementation. [`Routes`] tells the machine
//! which links exist and what they cost; its answers must be deterministic.
//!
//! # Invariants
//! [`BufferState::check_invariants`] checks what must hold after every transition: I-1, I-3 to I-14, I-18,
//! I-19, I-21, I-23, I-25 and I-28 of docs/spec.md. It recomputes each of them from scratch.

mod arena_state;
mod at_once;
mod crowd;
mod event;
mod execution;
mod invariant;
mod path;
mod plan;
mod queue;
mod refusal;
mod release;
mod requestors;
mod results;
mod segments;
mod storage;
mod stream;
mod transition;
mod users;

pub use crate::memory::map_state::MapState;
pub use arena_state::{Alloc, ArenaState, Loss, Transition};
pub(crate) use at_once::Known;
pub use event::EventKind;
pub use execution::{Execution, Finished, Next, Report};
pub use invariant::Violation;
pub use plan::{Path, PathKey, Purpose, Step, SyncPlan};
use queue::Queue;
pub use queue::{Admission, Waiting};
pub use refusal::{AttachRefusal, BindRefusal, BusyReason, ContractBreach, FreeRefusal, Refusal};
pub use release::{Outcome, Release};
pub use requestors::{Copies, CopyId, CopyKind, CopyOp, CopyPhase, Phase, Requestor};
pub use segments::{Content, Remains, Segments, Status};
pub use storage::Brings;
pub(crate) use transition::OneClaim;
pub use transition::{Begin, Request};

use crate::base::cost::Cost;
use crate::base::id::{ArenaId, ArenaSet, LinkId, Seq};
use crate::base::range::Span;
use crate::memory::desc::ArenaDesc;
use crate::memory::link::{Allocation, CopyQuery, Link};
use crowd::Requestors;
use smallvec::SmallVec;

/// The facts about the platform that the machine needs. Every answer must be deterministic.
pub trait Routes {
    /// Returns the descriptions of the arenas, indexed by id.
    fn arenas(&self) -> &[ArenaDesc];

    /// Returns the links, indexed by id.
    fn links(&self) -> &[Link];

    /// Returns the cost of a query on a link, or `None` if the mechanism of the link cannot do it.
    fn cost(&self, link: LinkId, query: &CopyQuery) -> Option<Cost>;

    /// Returns the cheapest path from any of `sources` to `to` over the links for which `edge` gives a cost.
    /// Ties are broken by the number of hops, then by the arena ids along the path.
    fn cheapest(
        &self,
        sources: ArenaSet,
        to: ArenaId,
        edge: &mut dyn FnMut(LinkId) -> Option<Cost>,
    ) -> Option<Path>;

    /// Does the same as [`Routes::cheapest`] for a state in which `key` determines every answer of `edge`. An
    /// implementation may therefore cache the path by its key.
    fn cheapest_idle(&self, key: PathKey, edge: &mut dyn FnMut(LinkId) -> Option<Cost>) -> Option<Path> {
        self.cheapest(key.sources, key.to, edge)
    }

    /// Returns whether a link is a binding that its two arenas need. They need it if the links that move
    /// bytes do not connect them in both directions. With separate storage, the contents of one could then
    /// never reach the other.
    fn is_needed(&self, link: LinkId) -> bool {
        let Link { from, to, allocation, .. } = *self.link(link);
        matches!(allocation, Allocation::Bound(_))
            && !(reach(self, from).contains(to) && reach(self, to).contains(from))
    }

    /// Returns whether a link may bind an arena that has no storage. A needed binding always may.
    fn may_bind(&self, _link: LinkId) -> bool {
        true
    }

    /// Returns the destination arenas of the needed bindings.
    fn bound_by_need(&self) -> ArenaSet {
        let links = (0..).map(LinkId).zip(self.links());
        links.filter(|(id, _)| self.is_needed(*id)).map(|(_, link)| link.to).collect()
    }

    /// Returns the description of one arena.
    fn arena(&self, id: ArenaId) -> &ArenaDesc {
        &self.arenas()[usize::from(id.0)]
    }

    /// Returns one link.
    fn link(&self, id: LinkId) -> &Link {
        &self.links()[usize::from(id.0)]
    }
}

/// Returns the arenas that bytes of `from` can reach over links that move bytes, at any cost and in any
/// number of hops.
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

/// The stages in the life of a buffer. They determine whether it accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifecycle {
    /// The buffer accepts requests.
    Open,
    /// An arena broke its contract. The buffer refuses every request, and existing grants can still be
    /// released.
    Wedged,
    /// The buffer refuses new requests, while existing grants and plans run to their end.
    Closing,
    /// The buffer has no users and no storage left (I-25).
    Closed,
}

/// The initial contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initial {
    /// The buffer has no contents. Reading a byte is an error until it has been written.
    Undefined,
    /// The buffer holds zeros, which are written where they are first needed.
    Zeroed,
    /// The buffer holds the contents of the application's own storage in this arena.
    External(ArenaId),
}

/// The state of one buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BufferState {
    segments: Segments,
    arenas: SmallVec<[ArenaState; 2]>,
    requestors: Requestors,
    copies: Copies,
    queue: Queue,
    commit_seq: Seq,
    lifecycle: Lifecycle,
}

impl BufferState {
    /// Creates a buffer of `len` bytes without users. Only the arena of [`Initial::External`] has storage.
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
            requestors: Requestors::default(),
            copies: Copies::default(),
            queue: Queue::default(),
            commit_seq: Seq(0),
            lifecycle: Lifecycle::Open,
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.segments.len()
    }

    /// Returns whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the segments, which say where each byte is valid.
    #[must_use]
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Returns the state of one arena.
    ///
    /// # Panics
    /// When the platform has no such arena.
    #[must_use]
    pub fn arena(&self, id: ArenaId) -> &ArenaState {
        &self.arenas[usize::from(id.0)]
    }

    /// Returns the requestor-set.
    #[must_use]
    pub fn requestors(&self) -> &[Requestor] {
        &self.requestors
    }

    /// Returns the stream on which the kernels of all requestors are.
    pub(crate) fn only_stream(&self) -> Option<ArenaId> {
        self.requestors.only_stream()
    }

    /// Returns the copies that are reserved or running.
    #[must_use]
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Returns the waiting requests in order of arrival.
    pub fn queue(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.queue.iter()
    }

    /// Returns whether requests wait.
    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns the number of the last commit.
    #[must_use]
    pub fn commit_seq(&self) -> Seq {
        self.commit_seq
    }

    /// Returns the stage of the buffer, which determines whether it accepts requests.
    #[must_use]
    pub fn lifecycle(&self) -> Lifecycle {
        self.lifecycle
    }

    /// Returns whether every byte of the span has contents that can be read.
    #[must_use]
    pub fn is_readable(&self, span: Span) -> bool {
        self.segments.in_span(span).all(|(part, content)| content.unreadable(part).is_none())
    }

    /// Returns the same state with commits and tickets counted from the start, and requestors in the order of
    /// their grants.
    ///
    /// Two states that differ only in these behave alike. A model checker that explores canonical states
    /// therefore terminates, although commits and tickets grow without bound.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        self.commit_seq = Seq(0);
        self.requestors.make_canonical();
        self.queue.make_canonical();
        self
    }

    /// Wedges the buffer because an arena broke its contract in a way that the machine cannot see.
    pub fn wedge(&mut self) {
        // A closing buffer already refuses requests, and must still reach `Closed`.
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
