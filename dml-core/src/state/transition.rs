//! The transitions of the machine. Each names in its result what the caller does next.
//!
//! A plan is carried out by an [`Execution`](super::Execution), which makes the transitions of its steps: storage
//! allocated or bound, a map state changed, a copy started and arrived; then the plan is finished, or aborted at any
//! point. An aborted plan leaves no trace but the allocations and copies it had completed (I-15).

use super::plan::{NoPlan, Planner};
use super::requestors::writes;
use super::{
    Alloc, BufferState, Content, CopyId, CopyOp, CopyPhase, Lifecycle, Loss, MapState, Phase, Purpose,
    Remains, Requestor, Routes, Status, Step, SyncPlan, Transition,
};
use crate::access::{Access, Claim, Claims, meeting, normalise, touching};
use crate::error::BusyReason;
use crate::id::{ArenaId, ArenaSet, DeviceId, GrantId, KernelId, Seq};
use crate::range::Span;

/// A request of one kernel on one buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Who asks.
    pub kernel: KernelId,
    /// The grant it will be.
    pub grant: GrantId,
    /// The arena it will use.
    pub arena: ArenaId,
    /// The bytes and accesses, [normalised](crate::normalise) and within the buffer.
    pub claims: Claims,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Begin {
    /// It has access now, to the contents of this commit.
    Granted(Seq),
    /// It will have access once this plan has been carried out; its place is reserved.
    Plan(SyncPlan),
    /// Not now. Nothing changed.
    Busy {
        /// Who stands in the way.
        reason: BusyReason,
        /// The arenas that must lose users first, where that is the reason.
        needs_idle: ArenaSet,
    },
    /// Never, or not before something other than a release happens. Nothing changed.
    Refused(Refusal),
}

/// Why a request is refused rather than made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The buffer is closed or closing.
    Closed,
    /// An arena broke its contract.
    Wedged,
    /// The kernel has these bytes already.
    AlreadyHeld {
        /// Which.
        span: Span,
    },
    /// These bytes were never written.
    Uninitialized {
        /// Which.
        span: Span,
    },
    /// A writer failed on these bytes.
    Poisoned {
        /// Which.
        span: Span,
        /// Whether the last committed contents survive.
        restorable: bool,
    },
    /// No path leads there, even if every user were gone.
    Unreachable {
        /// Which bytes cannot be brought.
        span: Span,
    },
    /// More grants than can be counted.
    TooManyGrants,
    /// The arena's device is gone.
    DeviceLost,
    /// Bytes granted for overwriting cannot be released as clean.
    NotClean,
    /// These bytes cannot be restored.
    NotRestorable {
        /// Which.
        span: Span,
    },
}

/// An arena reported a map state that it must not have: the buffer is wedged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContractBreach {
    /// The arena.
    pub arena: ArenaId,
    /// A device that needs access and does not have it.
    pub device: DeviceId,
}

impl BufferState {
    /// What a request would meet: access at once (`Ok(None)`), a plan, or a reason why not.
    pub(super) fn examine(&self, routes: &dyn Routes, request: &Request) -> Result<Option<SyncPlan>, Begin> {
        self.refuses(request)?;
        self.conflicts(&request.claims)?;
        let arena = self.arena(request.arena);
        if request.claims.is_empty() {
            return Ok(None);
        }
        self.has_arena(request.arena)?;
        if arena.native_refs == u32::MAX {
            return Err(Begin::Refused(Refusal::TooManyGrants));
        }
        let writes = writes(&request.claims);
        if self.is_ready(routes, request, writes) {
            return Ok(None);
        }
        for claim in &request.claims {
            if claim.access.reads() {
                let mut parts = self.segments.in_span(claim.span);
                if let Some(refusal) = parts.find_map(|(span, content)| content.unreadable(span)) {
                    return Err(Begin::Refused(refusal));
                }
            }
        }
        let mut planner = Planner::new(self, routes, request.grant, request.arena, writes);
        let native = routes.arena(request.arena).native;
        request
            .claims
            .iter()
            .try_for_each(|claim| planner.bring(claim))
            .and_then(|()| planner.allocate(request.arena))
            .and_then(|()| planner.give_access(request.arena, native, writes))
            .map_err(|none| self.without_plan(none, request.claims[0].span))?;
        let plan = planner.finish(Purpose::Kernel);
        Ok(Some(plan).filter(|plan| !plan.steps.is_empty()))
    }

    /// Whether the kernel could begin at once: the common case, found without planning. It is sufficient, not
    /// necessary: a plan without steps says the same.
    fn is_ready(&self, routes: &dyn Routes, request: &Request, writes: bool) -> bool {
        let (arena, desc) = (self.arena(request.arena), routes.arena(request.arena));
        let shared = |other: &super::ArenaState| matches!(other.alloc, Alloc::Bound { .. });
        let alone =
            self.copies.is_empty() && self.requestors.iter().all(|entry| entry.arena == request.arena);
        alone
            && arena.alloc.is_allocated()
            && arena.transition.is_none()
            && arena.map.serves(desc, desc.concurrency, desc.native, writes)
            && !self.arenas.iter().any(shared)
            && request.claims.iter().filter(|claim| claim.access.reads()).all(|claim| {
                self.segments.in_span(claim.span).all(|(span, content)| {
                    content.valid.contains(request.arena) && content.unreadable(span).is_none()
                })
            })
    }

    /// Whether waiting could not help: the buffer is closed, or the kernel would wait for itself.
    pub(super) fn refuses(&self, request: &Request) -> Result<(), Begin> {
        self.is_open()?;
        for entry in self.requestors.iter().filter(|entry| entry.kernel == request.kernel) {
            let mut pairs = meeting(&entry.claims, &request.claims);
            if let Some(span) = pairs.find_map(|(held, new)| held.span.intersection(new.span)) {
                return Err(Begin::Refused(Refusal::AlreadyHeld { span }));
            }
        }
        Ok(())
    }

    /// Whether the buffer takes requests.
    fn is_open(&self) -> Result<(), Begin> {
        match self.lifecycle {
            Lifecycle::Open => Ok(()),
            Lifecycle::Closing | Lifecycle::Closed => Err(Begin::Refused(Refusal::Closed)),
            Lifecycle::Wedged => Err(Begin::Refused(Refusal::Wedged)),
        }
    }

    /// Whether anybody is in the way.
    fn conflicts(&self, claims: &[Claim]) -> Result<(), Begin> {
        let busy = |reason| Begin::Busy { reason, needs_idle: ArenaSet::EMPTY };
        if self.requestors.iter().any(|entry| entry.conflicts(claims)) {
            return Err(busy(BusyReason::Conflict));
        }
        let is_torn = |copy: &CopyOp| touching(claims, copy.span).iter().any(|claim| claim.access.writes());
        if self.copies.iter().any(is_torn) {
            return Err(busy(BusyReason::Copying));
        }
        Ok(())
    }

    /// Whether the arena can have storage, and it is known who shares it.
    fn has_arena(&self, arena: ArenaId) -> Result<(), Begin> {
        let binds = |member| self.arena(member).transition.is_some_and(|transition| transition.binds);
        match self.arena(arena).loss {
            Loss::Device => Err(Begin::Refused(Refusal::DeviceLost)),
            Loss::None if !self.group(arena).iter().any(binds) => Ok(()),
            // The binding is on its way, or the users of the lost storage are on their way out.
            Loss::None | Loss::Storage => {
                Err(Begin::Busy { reason: BusyReason::InTransition, needs_idle: ArenaSet::EMPTY })
            }
        }
    }

    fn without_plan(&self, none: NoPlan, span: Span) -> Begin {
        match none {
            NoPlan::Refused(refusal) => Begin::Refused(refusal),
            // Nobody is there to wait for: waiting would never end.
            NoPlan::Busy(..) if self.is_idle() => Begin::Refused(Refusal::Unreachable { span }),
            NoPlan::Busy(reason, needs_idle) => Begin::Busy { reason, needs_idle },
        }
    }

    /// Whether nobody uses the buffer and nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requestors.is_empty()
            && self.copies.is_empty()
            && self.arenas.iter().all(|arena| arena.transition.is_none())
    }

    /// Asks for access regardless of who waits; [`BufferState::begin`] minds the queue.
    pub(super) fn begin_now(&mut self, routes: &dyn Routes, request: &Request) -> Begin {
        let plan = match self.examine(routes, request) {
            Ok(plan) => plan,
            Err(begin) => return begin,
        };
        let mut entry = Requestor::new(request, self.commit_seq);
        match plan {
            None => {
                entry.phase = Phase::Granted;
                self.requestors.push(entry);
                self.arena_mut(request.arena).native_refs += 1;
                Begin::Granted(self.commit_seq)
            }
            Some(plan) => {
                self.requestors.push(entry);
                self.reserve(&plan);
                Begin::Plan(plan)
            }
        }
    }

    /// Pins what a plan will use: its copies' ends, and the arenas it will allocate or map.
    pub(super) fn reserve(&mut self, plan: &SyncPlan) {
        for step in &plan.steps {
            match *step {
                Step::Copy(copy) => {
                    for end in copy.from().into_iter().chain([copy.to]) {
                        self.arena_mut(end).remote_refs += 1;
                    }
                    self.copies.insert(copy);
                }
                Step::Allocate { arena } | Step::Map { arena, .. } => self.mark(arena, plan.owner, false),
                Step::Bind { arena, root, .. } => {
                    self.mark(arena, plan.owner, true);
                    self.mark(root, plan.owner, true);
                }
            }
        }
    }

    fn mark(&mut self, arena: ArenaId, owner: GrantId, binds: bool) {
        let transition = &mut self.arena_mut(arena).transition;
        let before = transition.unwrap_or(Transition { owner, steps: 0, binds: false });
        *transition = Some(Transition { owner, steps: before.steps + 1, binds: before.binds || binds });
    }

    pub(super) fn unmark(&mut self, arena: ArenaId) {
        let transition = &mut self.arena_mut(arena).transition;
        *transition = transition
            .filter(|transition| transition.steps > 1)
            .map(|transition| Transition { steps: transition.steps - 1, ..transition });
    }

    /// A step allocated storage in `arena`.
    pub(super) fn allocated(&mut self, arena: ArenaId) {
        self.arena_mut(arena).alloc = Alloc::Internal;
        self.unmark(arena);
    }

    /// A step asked for a change of an arena's map state for a device, to a target; the arena reports `state`.
    ///
    /// # Errors
    /// [`ContractBreach`] when that state cuts off the device or anyone still using the storage, or lets others in whom
    /// the target shuts out; the buffer is then wedged.
    pub(super) fn mapped(
        &mut self,
        routes: &dyn Routes,
        owner: GrantId,
        (arena, device, target): (ArenaId, DeviceId, MapState),
        state: MapState,
    ) -> Result<(), ContractBreach> {
        let desc = routes.arena(arena);
        let before = self.arena(arena).map;
        let group = self.group(arena);
        let users = self.users(routes);
        // Others keep what they have; its own kernel and copies get what the target promises.
        let cut_off = users
            .iter()
            .filter(|user| group.contains(user.arena))
            .filter(|user| {
                let had = if user.owner == owner { target } else { before };
                had.gives(desc, user.device) && !state.gives(desc, user.device)
            })
            .map(|user| user.device)
            .next();
        let unserved = Some(device).filter(|&device| !state.gives(desc, device));
        let shared = matches!(state, MapState::Bimapped(_)) && !matches!(target, MapState::Bimapped(_));
        let malformed = Some(device).filter(|_| shared || !state.is_well_formed(desc));
        let breach = cut_off.or(unserved).or(malformed);
        self.unmark(arena);
        if let Some(device) = breach {
            // A closing buffer refuses service already, and still has to come to its end.
            if self.lifecycle == Lifecycle::Open {
                self.lifecycle = Lifecycle::Wedged;
            }
            return Err(ContractBreach { arena, device });
        }
        self.arena_mut(arena).map = state;
        Ok(())
    }

    /// A copy begins.
    ///
    /// # Errors
    /// [`Refusal::DeviceLost`] where one of its ends is lost by now, [`Refusal::Poisoned`] where the contents are, and
    /// [`Refusal::Unreachable`] where its source has not got them, [`Refusal::Wedged`] where an arena took somebody's access
    /// away: nothing is fetched, and the plan is to be aborted. [`Refusal::Closed`] when there is no such copy.
    pub(super) fn started(&mut self, id: CopyId) -> Result<(), Refusal> {
        let copy = *self.copies.find(id).ok_or(Refusal::Closed)?;
        if self.lifecycle == Lifecycle::Wedged {
            return Err(Refusal::Wedged);
        }
        if copy.from().into_iter().chain([copy.to]).any(|end| self.arena(end).is_lost()) {
            return Err(Refusal::DeviceLost);
        }
        let missing = self.segments.in_span(copy.span).find_map(|(span, content)| {
            let there = match copy.from() {
                Some(from) => content.valid.contains(from),
                None => content.status == Status::Zeroed,
            };
            content.unreadable(span).or((!there).then_some(Refusal::Unreachable { span }))
        });
        if let Some(refusal) = missing {
            return Err(refusal);
        }
        if let Some(copy) = self.copies.find_mut(id) {
            copy.phase = CopyPhase::Running;
        }
        Ok(())
    }

    /// A copy has moved all of its bytes: its destination is valid there.
    pub(super) fn copied(&mut self, routes: &dyn Routes, id: CopyId) {
        let Some(copy) = self.copies.remove(id) else { return };
        for end in copy.from().into_iter().chain([copy.to]) {
            self.arena_mut(end).remote_refs -= 1;
        }
        if !self.arena(copy.to).is_lost() {
            let mirrors = self.tenancy(routes).mirrors(copy.to);
            self.segments.update(copy.span, |content| match content.status {
                // The contents were lost while they were on their way: what arrived is nobody's.
                Status::Undefined | Status::Poisoned(Remains::Lost) => content,
                _ => Content { valid: content.valid.union(mirrors), ..content },
            });
        }
        self.settle(routes);
    }

    /// A plan is complete: its kernel has access, to the contents of the last commit.
    ///
    /// # Errors
    /// [`Refusal::Wedged`] or [`Refusal::DeviceLost`] where that happened meanwhile, [`Refusal::Poisoned`] where the
    /// contents were lost on their way; the request is then aborted.
    pub(super) fn finish(&mut self, routes: &dyn Routes, grant: GrantId) -> Result<&Requestor, Refusal> {
        let seq = self.commit_seq;
        let index = self.requestors.iter().position(|entry| entry.grant == grant).ok_or(Refusal::Closed)?;
        let arena = self.requestors[index].arena;
        let missing = self.missing(&self.requestors[index].claims, arena);
        let served = self.arena(arena).map.gives(routes.arena(arena), routes.arena(arena).native);
        let refused = match self.lifecycle {
            _ if !served => Some(Refusal::Wedged),
            Lifecycle::Wedged => Some(Refusal::Wedged),
            _ if self.arena(arena).is_lost() => Some(Refusal::DeviceLost),
            _ => missing,
        };
        if !served {
            self.lifecycle = self.lifecycle.max(Lifecycle::Wedged);
        }
        if let Some(refusal) = refused {
            self.abort(routes, grant);
            return Err(refusal);
        }
        self.arena_mut(arena).native_refs += 1;
        let entry = &mut self.requestors[index];
        entry.phase = Phase::Granted;
        entry.seq_at_grant = seq;
        Ok(entry)
    }

    /// Why a kernel cannot read its bytes in `arena` after all: they were lost while they were being brought.
    fn missing(&self, claims: &[Claim], arena: ArenaId) -> Option<Refusal> {
        let reading = claims.iter().filter(|claim| claim.access.reads());
        reading.flat_map(|claim| self.segments.in_span(claim.span)).find_map(|(span, content)| {
            let valid = content.valid.contains(arena);
            content.unreadable(span).or((!valid).then_some(Refusal::Unreachable { span }))
        })
    }

    /// A plan is given up: its entry, reservations and marks are gone. What its completed steps allocated or copied
    /// stays (I-15).
    pub(super) fn abort(&mut self, routes: &dyn Routes, owner: GrantId) {
        for copy in self.copies.take_of(owner) {
            for end in copy.from().into_iter().chain([copy.to]) {
                self.arenas[usize::from(end.0)].remote_refs -= 1;
            }
        }
        for arena in &mut self.arenas {
            arena.transition = arena.transition.filter(|transition| transition.owner != owner);
        }
        self.requestors.retain(|entry| entry.grant != owner);
        self.settle(routes);
    }

    /// Makes bytes valid in an arena before anybody asks, without a grant. [`Begin::Granted`] means that they are
    /// already.
    pub fn prefetch(&mut self, routes: &dyn Routes, owner: GrantId, arena: ArenaId, span: Span) -> Begin {
        let claims = normalise([Claim { span, access: Access::ReadOnly }]);
        if !self.queue.is_empty() {
            return Begin::Busy { reason: BusyReason::Queue, needs_idle: ArenaSet::EMPTY };
        }
        // A prefetch belongs to no kernel, so there is nobody who could hold the bytes already.
        let admitted = self.is_open().and_then(|()| self.conflicts(&claims));
        if let Err(begin) = admitted.and_then(|()| self.has_arena(arena)) {
            return begin;
        }
        let unreadable = self.segments.in_span(span).find_map(|(span, content)| content.unreadable(span));
        if let Some(refusal) = unreadable {
            return Begin::Refused(refusal);
        }
        let mut planner = Planner::new(self, routes, owner, arena, false);
        if let Err(none) = claims.iter().try_for_each(|claim| planner.bring(claim)) {
            return self.without_plan(none, span);
        }
        let plan = planner.finish(Purpose::Prefetch);
        if plan.steps.is_empty() {
            return Begin::Granted(self.commit_seq);
        }
        self.reserve(&plan);
        Begin::Plan(plan)
    }
}

#[cfg(test)]
mod tests;
