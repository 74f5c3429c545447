//! How a plan is carried out: which step begins when, what is waited for, and how it ends.
//!
//! ```text
//!            ┌──────────── report ◀──── an arena is called ─────┐
//!   plan ──▶ next ──▶ Do(step) ─────────────────────────────────┘
//!              │ ├──▶ Wait ──▶ one of the copies under way ends ──▶ report
//!              │ ├──▶ Finish ──▶ granted, prefetched, bound
//!              └─┴──▶ GiveUp ──▶ reservations are gone, what was done stays
//! ```
//! An [`Execution`] calls nobody. The engine asks it what comes next, does that on the arenas, and reports; the model
//! checker, the fuzzer and the tests do the same without arenas. This is the one place that decides the order of a
//! plan's steps:
//!
//! - Steps begin in the order of the plan. A copy whose source is still on its way is passed over, and begins when the
//!   source has arrived; copies that do not depend on each other are all under way before any is waited for.
//! - A change of map state, or a binding, waits until no copy of the plan uses the storage that it is about. Nothing
//!   behind it begins before it.
//! - Once something has failed nothing more begins, and the plan is given up when the copies under way have ended.
//!   Those that succeed count.

use super::{BufferState, ContractBreach, CopyOp, EventKind, MapState, Refusal, Requestor, Routes};
use super::{Purpose, Step, SyncPlan};
use crate::base::id::{ArenaId, ArenaSet, GrantId};
use crate::base::range::Span;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// A plan being carried out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a plan that is neither finished nor given up keeps its reservations"]
pub struct Execution {
    owner: GrantId,
    arena: ArenaId,
    purpose: Purpose,
    /// Steps that have not been looked at, in the order of the plan.
    to_come: VecDeque<Step>,
    /// Copies that were passed over, by where and from which byte they read.
    held_up: BTreeMap<(ArenaId, u64, u32), CopyOp>,
    /// Copies that were passed over and whose source has arrived.
    freed: VecDeque<CopyOp>,
    /// Copies that have begun and not ended, in the order in which they began.
    under_way: VecDeque<CopyOp>,
    /// The bytes that are still to arrive by the copies looked at: where they go and where they begin, and where they
    /// end. Those of one arena are disjoint (I-18).
    arriving: BTreeMap<(ArenaId, u64), u64>,
    /// How many of the copies looked at that have not ended use each arena.
    uses: SmallVec<[u32; 8]>,
    /// The step that an arena was called for and that was not reported yet.
    doing: Option<Step>,
    failed: bool,
}

/// What comes next for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// To do this step, which has begun, and to report how it went. The report of a copy may come later than others.
    Do(Step),
    /// Nothing can begin: a copy was to, and the machine refuses it. The plan has failed.
    Refused(Refusal),
    /// To wait for one of the copies [under way](Execution::under_way), whichever, and to report how it ended.
    Wait,
    /// To finish: everything is done.
    Finish,
    /// To give up: something has failed, and nothing is under way any more.
    GiveUp,
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It did what it was to do.
    Done,
    /// A map state was changed, and this is what the arena says it is now.
    Mapped(MapState),
    /// It failed, and did nothing that counts.
    Failed,
    /// It failed because an arena broke its contract: the buffer refuses service.
    Broken,
}

/// How a plan that was carried out has ended.
#[derive(Debug)]
#[must_use]
pub enum Finished<'a> {
    /// Its kernel has access.
    Granted(&'a Requestor),
    /// The bytes are in the arena.
    Prefetched {
        /// The prefetch.
        owner: GrantId,
        /// The arena.
        arena: ArenaId,
    },
    /// The arena shares the storage.
    Bound,
}

impl Finished<'_> {
    /// The event to be recorded, if there is one.
    #[must_use]
    pub fn event(&self) -> Option<EventKind> {
        match *self {
            Self::Granted(entry) => Some(entry.into()),
            Self::Prefetched { owner, arena } => Some(EventKind::Prefetched { owner, arena }),
            Self::Bound => None,
        }
    }
}

impl Execution {
    /// A plan of which nothing has begun.
    pub fn new(plan: SyncPlan) -> Self {
        Self {
            owner: plan.owner,
            arena: plan.arena,
            purpose: plan.purpose,
            to_come: plan.steps.into(),
            held_up: BTreeMap::new(),
            freed: VecDeque::new(),
            under_way: VecDeque::new(),
            arriving: BTreeMap::new(),
            uses: SmallVec::new(),
            doing: None,
            failed: false,
        }
    }

    /// The grant, prefetch or binding that the plan belongs to.
    #[must_use]
    pub fn owner(&self) -> GrantId {
        self.owner
    }

    /// What the plan is for.
    #[must_use]
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The copies that have begun and not ended, in the order in which they began.
    #[must_use]
    pub fn under_way(&self) -> impl ExactSizeIterator<Item = &CopyOp> {
        self.under_way.iter()
    }

    /// The step other than a copy that has begun and was not reported yet.
    #[must_use]
    pub fn doing(&self) -> Option<Step> {
        self.doing
    }

    /// Returns whether [`next`](Self::next) says to wait, whatever the state of the buffer.
    #[must_use]
    pub fn must_wait(&self) -> bool {
        let begins = !self.to_come.is_empty() || !self.freed.is_empty();
        !self.under_way.is_empty() && (self.failed || !begins)
    }

    /// Begins what can begin, and says what the caller is to do.
    pub fn next(&mut self, state: &mut BufferState) -> Next {
        if let Some(step) = self.doing {
            return Next::Do(step);
        }
        if self.failed {
            return if self.under_way.is_empty() { Next::GiveUp } else { Next::Wait };
        }
        if let Some(copy) = self.freed.pop_front() {
            return self.begin(state, copy);
        }
        while let Some(&step) = self.to_come.front() {
            let about = match step {
                Step::Copy(_) | Step::Allocate { .. } => ArenaSet::EMPTY,
                Step::Map { arena, .. } => state.group(arena),
                Step::Bind { arena, root, .. } => state.group(arena).union(state.group(root)),
            };
            if about.iter().any(|arena| self.is_used(arena)) {
                break;
            }
            self.to_come.pop_front();
            let Step::Copy(copy) = step else {
                self.doing = Some(step);
                return Next::Do(step);
            };
            let source = copy.from().filter(|from| self.is_arriving(*from, copy.span));
            self.add(&copy);
            match source {
                Some(from) => _ = self.held_up.insert((from, copy.span.start(), copy.id.index), copy),
                None => return self.begin(state, copy),
            }
        }
        if self.under_way.is_empty() { Next::Finish } else { Next::Wait }
    }

    fn begin(&mut self, state: &mut BufferState, copy: CopyOp) -> Next {
        match state.started(copy.id) {
            Ok(()) => {
                self.under_way.push_back(copy);
                Next::Do(Step::Copy(copy))
            }
            Err(refusal) => {
                self.failed = true;
                Next::Refused(refusal)
            }
        }
    }

    /// Takes the report of a step that has begun; the event to be recorded, if it counts.
    ///
    /// # Errors
    /// [`ContractBreach`] where the map state that an arena reports is not one that it may have. The buffer is wedged then,
    /// and the plan has failed.
    ///
    /// # Panics
    /// When the step has not begun, or was reported already.
    pub fn report(
        &mut self,
        routes: &dyn Routes,
        state: &mut BufferState,
        step: Step,
        report: Report,
    ) -> Result<Option<EventKind>, ContractBreach> {
        match step {
            Step::Copy(copy) => self.ended(&copy),
            _ => assert_eq!(self.doing.take(), Some(step), "a step is reported once, after it has begun"),
        }
        let reported = match report {
            Report::Failed => {
                self.failed = true;
                return Ok(None);
            }
            Report::Broken => {
                self.failed = true;
                state.wedge();
                return Ok(None);
            }
            Report::Mapped(reported) => Some(reported),
            Report::Done => None,
        };
        Ok(Some(match step {
            Step::Allocate { arena } => {
                state.allocated(arena);
                EventKind::Allocated { arena, root: None }
            }
            Step::Bind { arena, root, concurrency } => {
                state.bound(routes, arena, root, concurrency);
                EventKind::Allocated { arena, root: Some(root) }
            }
            Step::Map { arena, device, target } => {
                let change = (arena, device, target);
                let accepted = state.mapped(routes, self.owner, change, reported.unwrap_or(target));
                self.failed |= accepted.is_err();
                accepted?;
                EventKind::Mapped { arena, device }
            }
            Step::Copy(copy) => {
                state.copied(routes, copy.id);
                self.free(&copy);
                copy.arrived()
            }
        }))
    }

    /// Lets nothing more begin: the plan is given up when what is under way has ended.
    pub fn stop(&mut self) {
        self.failed = true;
        self.doing = None;
    }

    /// Ends a plan of which everything is done.
    ///
    /// # Errors
    /// What has befallen the buffer meanwhile; the plan is given up then, and [aborted](EventKind::Aborted) is to be
    /// recorded.
    pub fn finish<'a>(
        &mut self,
        routes: &dyn Routes,
        state: &'a mut BufferState,
    ) -> Result<Finished<'a>, Refusal> {
        let Self { owner, arena, .. } = *self;
        match self.purpose {
            Purpose::Kernel => state.finish(routes, owner).map(Finished::Granted),
            Purpose::Prefetch => {
                state.abort(routes, owner);
                Ok(Finished::Prefetched { owner, arena })
            }
            Purpose::Binding => {
                state.abort(routes, owner);
                Ok(Finished::Bound)
            }
        }
    }

    /// Ends a plan half way: its reservations are gone, what was done stays (I-15). The event to be recorded.
    pub fn give_up(&mut self, routes: &dyn Routes, state: &mut BufferState) -> EventKind {
        state.abort(routes, self.owner);
        EventKind::Aborted { owner: self.owner }
    }

    /// Returns whether some of the bytes are on their way to an arena.
    fn is_arriving(&self, arena: ArenaId, span: Span) -> bool {
        let before = self.arriving.range((arena, 0)..(arena, span.end())).next_back();
        before.is_some_and(|(_, end)| *end > span.start())
    }

    fn is_used(&self, arena: ArenaId) -> bool {
        self.uses.get(usize::from(arena.0)).is_some_and(|uses| *uses > 0)
    }

    /// Counts a copy among those looked at.
    fn add(&mut self, copy: &CopyOp) {
        self.arriving.insert((copy.to, copy.span.start()), copy.span.end());
        for end in copy.from().into_iter().chain([copy.to]).map(|end| usize::from(end.0)) {
            self.uses.resize(self.uses.len().max(end + 1), 0);
            self.uses[end] += 1;
        }
    }

    /// Takes a copy from those under way, well or not.
    fn ended(&mut self, copy: &CopyOp) {
        let index = self.under_way.iter().position(|other| other.id == copy.id);
        self.under_way.remove(index.expect("a copy is reported once, after it has begun"));
        self.arriving.remove(&(copy.to, copy.span.start()));
        for end in copy.from().into_iter().chain([copy.to]) {
            self.uses[usize::from(end.0)] -= 1;
        }
    }

    /// Lets those begin that have waited for the bytes of a copy.
    fn free(&mut self, arrived: &CopyOp) {
        let Self { held_up, arriving, freed, .. } = self;
        if held_up.is_empty() {
            return;
        }
        // Those held up read disjoint bytes: of the ones that begin before these, only the last can need some of them.
        let (to, start) = (arrived.to, arrived.span.start());
        let before = held_up.range((to, 0, 0)..=(to, start, u32::MAX)).next_back();
        let from = before.map_or((to, start, 0), |(key, _)| *key);
        let waits = |copy: &CopyOp| {
            let before = arriving.range((to, 0)..(to, copy.span.end())).next_back();
            before.is_some_and(|(_, end)| *end > copy.span.start())
        };
        let readers = held_up.extract_if(from..(to, arrived.span.end(), 0), |_, copy| {
            copy.span.overlaps(arrived.span) && !waits(copy)
        });
        freed.extend(readers.map(|(_, copy)| copy));
    }
}

#[cfg(test)]
mod tests;
