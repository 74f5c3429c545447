//! The execution of a plan: the order in which its steps begin, the waits, and the end.
//!
//! ```text
//!            ┌──────────── report ◀──── an arena is called ─────┐
//!   plan ──▶ next ──▶ Do(step) ─────────────────────────────────┘
//!              │ ├──▶ Wait ──▶ one of the copies under way ends ──▶ report
//!              │ ├──▶ Finish ──▶ granted, prefetched, bound
//!              └─┴──▶ GiveUp ──▶ reservations are gone, completed steps stay
//! ```
//! An [`Execution`] makes no calls to arenas. The engine asks it for the next step, does that step on the
//! arenas, and reports the result. The model checker, the fuzzer and the tests do the same without arenas.
//! This module alone decides the order of a plan's steps:
//!
//! - Steps begin in the order of the plan. A copy whose source bytes have not arrived yet is passed over, and
//!   begins when they have arrived. All copies that do not depend on each other begin before the caller waits
//!   for any.
//! - A change of map state, or a binding, waits until no copy of the plan uses the storage that it affects.
//!   No later step begins before it.
//! - After a failure no further step begins, and the plan is given up when the copies under way have ended.
//!   Copies that succeed still count.

use super::{BufferState, ContractBreach, CopyOp, EventKind, MapState, Refusal, Requestor, Routes};
use super::{Purpose, Step, SyncPlan};
use crate::base::id::{ArenaId, ArenaSet, OwnerId};
use crate::base::range::Span;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// A plan that is being carried out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a plan that is neither finished nor given up keeps its reservations"]
pub struct Execution {
    owner: OwnerId,
    arena: ArenaId,
    purpose: Purpose,
    /// The steps that have not been examined, in the order of the plan.
    to_come: VecDeque<Step>,
    /// The copies that were passed over, by source arena, first byte and index in the plan.
    held_up: BTreeMap<(ArenaId, u64, u32), CopyOp>,
    /// The copies that were passed over and whose source bytes have since arrived.
    ready: VecDeque<CopyOp>,
    /// The copies that have begun and not ended, in the order in which they began.
    under_way: VecDeque<CopyOp>,
    /// The bytes that examined copies have not delivered yet. The key is the destination and the first byte;
    /// the value is the end. The ranges of one arena are disjoint (I-18).
    arriving: BTreeMap<(ArenaId, u64), u64>,
    /// The number of examined and unfinished copies that use each arena, indexed by arena id.
    uses: SmallVec<[u32; 8]>,
    /// The step other than a copy that has begun and was not reported yet.
    doing: Option<Step>,
    failed: bool,
}

/// What the caller does next for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Do this step, which has begun, and report its result. The report of a copy may come after those of
    /// later steps.
    Do(Step),
    /// The machine refused the copy that was to begin next. The plan has failed.
    Refused(Refusal),
    /// Wait for any one of the copies [under way](Execution::under_way), and report how it ended.
    Wait,
    /// Finish the plan: every step is done.
    Finish,
    /// Give the plan up: a step has failed, and no copy is under way any more.
    GiveUp,
}

/// The result of a step, as the caller reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The step succeeded.
    Done,
    /// The map state was changed, and the arena reports this as the new state.
    Mapped(MapState),
    /// The step failed, and has no effect on the state.
    Failed,
    /// The step failed because an arena broke its contract. The buffer is wedged.
    Broken,
}

/// The result of a plan that was carried out completely.
#[derive(Debug)]
#[must_use]
pub enum Finished<'a> {
    /// The kernel of the plan has access.
    Granted(&'a Requestor),
    /// The prefetched bytes are in the arena.
    Prefetched {
        /// The id of the prefetch.
        owner: OwnerId,
        /// The arena that now holds the bytes.
        arena: ArenaId,
    },
    /// The arena now shares the storage of its root.
    Bound,
}

impl Finished<'_> {
    /// Returns the event to record, if there is one.
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
    /// Creates the execution of a plan of which no step has begun.
    pub fn new(plan: SyncPlan) -> Self {
        Self {
            owner: plan.owner,
            arena: plan.arena,
            purpose: plan.purpose,
            to_come: plan.steps.into(),
            held_up: BTreeMap::new(),
            ready: VecDeque::new(),
            under_way: VecDeque::new(),
            arriving: BTreeMap::new(),
            uses: SmallVec::new(),
            doing: None,
            failed: false,
        }
    }

    /// Returns the id of the grant, prefetch or binding that the plan belongs to.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Returns the purpose of the plan.
    #[must_use]
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Returns the copies that have begun and not ended, in the order in which they began.
    #[must_use]
    pub fn under_way(&self) -> impl ExactSizeIterator<Item = &CopyOp> {
        self.under_way.iter()
    }

    /// Returns the step other than a copy that has begun and was not reported yet.
    #[must_use]
    pub fn doing(&self) -> Option<Step> {
        self.doing
    }

    /// Returns whether every step has begun, and only copies have not ended.
    #[must_use]
    pub fn has_begun_all(&self) -> bool {
        let remains = !self.to_come.is_empty() || !self.ready.is_empty() || !self.held_up.is_empty();
        self.doing.is_none() && !self.failed && !remains
    }

    /// Returns whether [`next`](Self::next) answers [`Next::Wait`] regardless of the state of the buffer.
    #[must_use]
    pub fn must_wait(&self) -> bool {
        let begins = !self.to_come.is_empty() || !self.ready.is_empty();
        self.doing.is_none() && !self.under_way.is_empty() && (self.failed || !begins)
    }

    /// Begins the next step that can begin, and returns what the caller must do.
    pub fn next(&mut self, state: &mut BufferState) -> Next {
        if let Some(step) = self.doing {
            return Next::Do(step);
        }
        if self.failed {
            return if self.under_way.is_empty() { Next::GiveUp } else { Next::Wait };
        }
        if let Some(copy) = self.ready.pop_front() {
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

    /// Accepts the report of a step that has begun. Returns the event to record if the step succeeded.
    ///
    /// # Errors
    /// [`ContractBreach`] if an arena reports a map state that its contract does not allow. The buffer is
    /// then wedged, and the plan has failed.
    ///
    /// # Panics
    /// When the step has not begun, or was already reported.
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
                state.allocated(routes, arena);
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
                self.let_readers_begin(&copy);
                copy.arrived()
            }
        }))
    }

    /// Stops the plan: no further step begins, and the plan is given up when the copies under way have ended.
    /// A step other than a copy needs no report any more.
    pub fn stop(&mut self) {
        self.failed = true;
        self.doing = None;
    }

    /// Ends a plan of which every step is done.
    ///
    /// # Errors
    /// The [`Refusal`] that says what happened to the buffer meanwhile. The plan is then given up, and the
    /// caller records [`EventKind::GivenUp`].
    pub fn finish<'a>(
        &mut self,
        routes: &dyn Routes,
        state: &'a mut BufferState,
    ) -> Result<Finished<'a>, Refusal> {
        let Self { owner, arena, .. } = *self;
        match self.purpose {
            Purpose::Kernel => state.finish(routes, owner).map(Finished::Granted),
            Purpose::Prefetch => {
                state.unreserve(routes, owner);
                Ok(Finished::Prefetched { owner, arena })
            }
            Purpose::Binding => {
                state.unreserve(routes, owner);
                Ok(Finished::Bound)
            }
        }
    }

    /// Ends an unfinished plan. Its reservations are removed, and completed steps keep their effect (I-15).
    /// Returns the event to record.
    pub fn give_up(&mut self, routes: &dyn Routes, state: &mut BufferState) -> EventKind {
        state.unreserve(routes, self.owner);
        EventKind::GivenUp { owner: self.owner }
    }

    /// Returns whether an examined copy still has to deliver some of these bytes to an arena.
    fn is_arriving(&self, arena: ArenaId, span: Span) -> bool {
        let before = self.arriving.range((arena, 0)..(arena, span.end())).next_back();
        before.is_some_and(|(_, end)| *end > span.start())
    }

    fn is_used(&self, arena: ArenaId) -> bool {
        self.uses.get(usize::from(arena.0)).is_some_and(|uses| *uses > 0)
    }

    /// Adds a copy to the examined ones.
    fn add(&mut self, copy: &CopyOp) {
        self.arriving.insert((copy.to, copy.span.start()), copy.span.end());
        for end in copy.from().into_iter().chain([copy.to]).map(|end| usize::from(end.0)) {
            self.uses.resize(self.uses.len().max(end + 1), 0);
            self.uses[end] += 1;
        }
    }

    /// Removes a copy that has ended, whether it succeeded or failed.
    fn ended(&mut self, copy: &CopyOp) {
        let index = self.under_way.iter().position(|other| other.id == copy.id);
        self.under_way.remove(index.expect("a copy is reported once, after it has begun"));
        self.arriving.remove(&(copy.to, copy.span.start()));
        for end in copy.from().into_iter().chain([copy.to]) {
            self.uses[usize::from(end.0)] -= 1;
        }
    }

    /// Frees the held-up copies whose source bytes are complete now that a copy has arrived.
    fn let_readers_begin(&mut self, arrived: &CopyOp) {
        let Self { held_up, arriving, ready, .. } = self;
        if held_up.is_empty() {
            return;
        }
        // Held-up copies read disjoint bytes. Of those that start at or before `arrived`, only the last can
        // overlap it.
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
        ready.extend(readers.map(|(_, copy)| copy));
    }
}

#[cfg(test)]
mod tests;
