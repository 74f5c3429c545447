//! The transitions of the machine. The result of each transition names the caller's next action.
//!
//! An [`Execution`](super::Execution) carries out a plan by making the transitions of its steps: allocate or
//! bind storage, change a map state, start and complete a copy. At the end the plan is finished; it may be
//! given up at any point. A plan that is given up leaves nothing behind except the allocations and copies
//! that it had completed (I-15).

use super::plan::{NoPlan, Planner};
use super::requestors::writes;
use super::{
    Alloc, BufferState, Content, CopyId, CopyOp, CopyPhase, Lifecycle, Loss, MapState, Phase, Purpose,
    Remains, Requestor, Routes, Status, Step, SyncPlan, Transition,
};
use super::{BusyReason, ContractBreach, Refusal};
use crate::base::access::{Access, Claim, Claims};
use crate::base::id::{ArenaId, ArenaSet, DeviceId, KernelId, OwnerId, Seq};
use crate::base::range::Span;

/// A request of one kernel on one buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The kernel that asks.
    pub kernel: KernelId,
    /// The id of the grant that the request will become.
    pub grant: OwnerId,
    /// The arena that the kernel will use.
    pub arena: ArenaId,
    /// The bytes and accesses, canonical and within the buffer.
    pub claims: Claims,
    /// Whether the kernel will run on the stream of its arena, behind the kernels submitted before it.
    pub is_submission: bool,
}

/// A request of one claim, which may be empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneClaim {
    pub(crate) kernel: KernelId,
    pub(crate) grant: OwnerId,
    pub(crate) arena: ArenaId,
    pub(crate) claim: Claim,
    pub(crate) is_submission: bool,
}

impl OneClaim {
    pub(crate) fn to_request(self) -> Request {
        let Self { kernel, grant, arena, claim, is_submission } = self;
        Request { kernel, grant, arena, claims: Claims::of(claim), is_submission }
    }
}

impl Request {
    /// Returns the request as one of one claim, if it is.
    pub(super) fn of_one_claim(&self) -> Option<OneClaim> {
        let Self { kernel, grant, arena, ref claims, is_submission } = *self;
        claims.only().map(|claim| OneClaim { kernel, grant, arena, claim, is_submission })
    }

    /// Returns the arena on whose stream the kernel will be, if it is a submission.
    pub(super) fn stream(&self) -> Option<ArenaId> {
        Some(self.arena).filter(|_| self.is_submission)
    }
}

/// The machine's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Begin {
    /// The kernel has access now, to the contents of this commit.
    Granted(Seq),
    /// The kernel gets access after this plan has been carried out. Its place is reserved.
    Plan(SyncPlan),
    /// The request cannot be granted now. Nothing changed.
    Busy {
        /// The obstacle.
        reason: BusyReason,
        /// The arenas that must lose users first, if that is the reason.
        needs_idle: ArenaSet,
    },
    /// The request cannot be granted, and waiting for a release does not help. Nothing changed.
    Refused(Refusal),
}

impl BufferState {
    /// Examines a request without changing anything. The result is access at once (`Ok(None)`), a plan, or
    /// the reason for neither.
    pub(super) fn examine(&self, routes: &dyn Routes, request: &Request) -> Result<Option<SyncPlan>, Begin> {
        self.refuses(request)?;
        self.conflicts(&request.claims, request.stream())?;
        let arena = self.arena(request.arena);
        if request.claims.is_empty() {
            return Ok(None);
        }
        self.has_arena(request.arena)?;
        if arena.native_refs == u32::MAX {
            return Err(Begin::Refused(Refusal::TooManyGrants { arena: request.arena }));
        }
        let writes = writes(&request.claims);
        let read = self.read_as_committed(&request.claims, request.stream());
        if self.is_ready(routes, request, &read, writes) {
            return Ok(None);
        }
        let mut parts = read.iter().flat_map(|span| self.segments.in_span(*span));
        if let Some(refusal) = parts.find_map(|(span, content)| content.unreadable(span)) {
            return Err(Begin::Refused(refusal));
        }
        let mut planner = Planner::new(self, routes, request.grant, request.arena, writes);
        let native = routes.arena(request.arena).native;
        read.iter()
            .try_for_each(|span| planner.bring(*span))
            .and_then(|()| planner.allocate(request.arena))
            .and_then(|()| planner.give_access(request.arena, native, writes))
            .map_err(|none| self.without_plan(none, request.arena, request.claims[0].span))?;
        let plan = planner.finish(Purpose::Kernel);
        Ok(Some(plan).filter(|plan| !plan.steps.is_empty()))
    }

    /// Returns whether the kernel can start at once. This finds the common case without planning. `false` is
    /// not final: a plan without steps also means that the kernel can start at once.
    fn is_ready(&self, routes: &dyn Routes, request: &Request, read: &[Span], writes: bool) -> bool {
        let (arena, desc) = (self.arena(request.arena), routes.arena(request.arena));
        let shared = |other: &super::ArenaState| matches!(other.alloc, Alloc::Bound { .. });
        let alone = self.copies.is_empty() && self.requestors.arenas().without(request.arena).is_empty();
        alone
            && arena.alloc.is_allocated()
            && arena.transition.is_none()
            && arena.map.serves(desc, desc.concurrency, desc.native, writes)
            && !self.arenas.iter().any(shared)
            && read.iter().all(|span| {
                self.segments.in_span(*span).all(|(span, content)| {
                    content.valid.contains(request.arena) && content.unreadable(span).is_none()
                })
            })
    }

    /// Refuses a request for which waiting is useless: the buffer is closed or wedged, or the kernel would
    /// wait for itself.
    pub(super) fn refuses(&self, request: &Request) -> Result<(), Begin> {
        self.is_open()?;
        match self.requestors.held_by(request.kernel, &request.claims) {
            Some(span) => Err(Begin::Refused(Refusal::AlreadyHeld { kernel: request.kernel, span })),
            None => Ok(()),
        }
    }

    /// Refuses if the buffer does not accept requests.
    pub(super) fn is_open(&self) -> Result<(), Begin> {
        match self.lifecycle {
            Lifecycle::Open => Ok(()),
            Lifecycle::Closing | Lifecycle::Closed => Err(Begin::Refused(Refusal::Closed)),
            Lifecycle::Wedged => Err(Begin::Refused(Refusal::Wedged)),
        }
    }

    /// Reports `Busy` if a kernel or a copy conflicts with the claims. Kernels on the stream that a
    /// submission follows do not.
    pub(super) fn conflicts(&self, claims: &Claims, stream: Option<ArenaId>) -> Result<(), Begin> {
        let busy = |reason| Begin::Busy { reason, needs_idle: ArenaSet::EMPTY };
        if self.requestors.conflict(claims, stream) {
            return Err(busy(BusyReason::Conflict));
        }
        let is_torn = |copy: &CopyOp| claims.touching(copy.span).iter().any(|claim| claim.access.writes());
        if self.copies.iter().any(is_torn) {
            return Err(busy(BusyReason::Copying));
        }
        Ok(())
    }

    /// Checks that the arena can have storage, and that no binding of its group is pending.
    fn has_arena(&self, arena: ArenaId) -> Result<(), Begin> {
        let binds = |member| self.arena(member).transition.is_some_and(|transition| transition.binds);
        match self.arena(arena).loss {
            Loss::Device => Err(Begin::Refused(Refusal::DeviceLost { arena })),
            Loss::None if !self.group(arena).iter().any(binds) => Ok(()),
            // A binding is pending, or the users of the lost storage have not all left.
            Loss::None | Loss::Storage => {
                Err(Begin::Busy { reason: BusyReason::InTransition, needs_idle: ArenaSet::EMPTY })
            }
        }
    }

    fn without_plan(&self, none: NoPlan, arena: ArenaId, span: Span) -> Begin {
        match none {
            NoPlan::Refused(refusal) => Begin::Refused(refusal),
            // No user is present, so waiting would never end.
            NoPlan::Busy(..) if self.is_idle() => Begin::Refused(Refusal::Unreachable { arena, span }),
            NoPlan::Busy(reason, needs_idle) => Begin::Busy { reason, needs_idle },
        }
    }

    /// Returns whether the buffer has no users and no pending work.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requestors.is_empty()
            && self.copies.is_empty()
            && self.arenas.iter().all(|arena| arena.transition.is_none())
    }

    /// Requests access without regard to waiting requests; [`BufferState::begin`] respects the queue.
    pub(super) fn begin_now(&mut self, routes: &dyn Routes, request: &Request) -> Begin {
        let plan = match self.examine(routes, request) {
            Ok(plan) => plan,
            Err(begin) => return begin,
        };
        let phase = if plan.is_none() { Phase::Granted } else { Phase::Preparing };
        let entry = Requestor::new(request, phase, self.commit_seq);
        if !request.claims.is_empty() {
            self.arena_mut(request.arena).is_retired = false;
        }
        match plan {
            None => {
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

    /// Pins what a plan will use: the ends of its copies, and the arenas it will allocate, bind or map.
    pub(super) fn reserve(&mut self, plan: &SyncPlan) {
        for step in &plan.steps {
            match *step {
                Step::Copy(copy) => {
                    for end in copy.from().into_iter().chain([copy.to]) {
                        self.arena_mut(end).copy_refs += 1;
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

    pub(super) fn mark(&mut self, arena: ArenaId, owner: OwnerId, binds: bool) {
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

    /// Records that a step allocated storage in `arena`.
    pub(super) fn allocated(&mut self, routes: &dyn Routes, arena: ArenaId) {
        self.arena_mut(arena).alloc = Alloc::Internal;
        self.unmark(arena);
        self.settle(routes);
    }

    /// Records a change of an arena's map state for a device. The plan asked for the target; the arena
    /// reports `state`.
    ///
    /// # Errors
    /// [`ContractBreach`] when `state` denies access to the device or to a user of the storage, or is
    /// malformed, or is bimapped although the target is not. The buffer is then wedged.
    pub(super) fn mapped(
        &mut self,
        routes: &dyn Routes,
        owner: OwnerId,
        (arena, device, target): (ArenaId, DeviceId, MapState),
        state: MapState,
    ) -> Result<(), ContractBreach> {
        let breach = self.breach(routes, owner, (arena, device, target), state);
        match breach {
            None => self.arena_mut(arena).map = state,
            // A closing buffer already refuses requests, and must still reach `Closed`.
            Some(_) if self.lifecycle == Lifecycle::Open => self.lifecycle = Lifecycle::Wedged,
            Some(_) => {}
        }
        self.unmark(arena);
        self.settle(routes);
        breach.map_or(Ok(()), |device| Err(ContractBreach { arena, device }))
    }

    /// Returns the device for which a reported map state breaks the arena's contract, if there is one.
    fn breach(
        &self,
        routes: &dyn Routes,
        owner: OwnerId,
        (arena, device, target): (ArenaId, DeviceId, MapState),
        state: MapState,
    ) -> Option<DeviceId> {
        let (desc, group, before) = (routes.arena(arena), self.group(arena), self.arena(arena).map);
        let users = self.users(routes);
        // Other owners keep the access they have; the plan's own kernel and copies get the access of the
        // target.
        let mut cut_off = users.iter().filter(|user| group.contains(user.arena)).filter(|user| {
            let had = if user.owner == owner { target } else { before };
            had.gives(desc, user.device) && !state.gives(desc, user.device)
        });
        if let Some(user) = cut_off.next() {
            return Some(user.device);
        }
        let is_shared = |state: MapState| matches!(state, MapState::Bimapped(_));
        let is_served = state.gives(desc, device) && state.is_well_formed(desc);
        let is_wider = is_shared(state) && !is_shared(target);
        Some(device).filter(|_| !is_served || is_wider)
    }

    /// Starts a copy.
    ///
    /// # Errors
    /// [`Refusal::DeviceLost`] if one of its ends is lost. [`Refusal::Poisoned`] or
    /// [`Refusal::Uninitialized`] if its bytes are. [`Refusal::Unreachable`] if its source does not hold
    /// them. [`Refusal::Wedged`] if the buffer is wedged. [`Refusal::Closed`] if there is no such copy. The
    /// copy has not started then, and its plan must be given up.
    pub(super) fn started(&mut self, id: CopyId) -> Result<(), Refusal> {
        let copy = *self.copies.find(id).ok_or(Refusal::Closed)?;
        if self.lifecycle == Lifecycle::Wedged {
            return Err(Refusal::Wedged);
        }
        let mut ends = copy.from().into_iter().chain([copy.to]);
        if let Some(arena) = ends.find(|end| self.arena(*end).is_lost()) {
            return Err(Refusal::DeviceLost { arena });
        }
        // The results of a kernel are valid in its arena once it has ended.
        let is_result = self.requestors.place(id.owner).is_some_and(|place| {
            let entry = &self.requestors[place];
            entry.phase != Phase::Preparing && copy.from() == Some(entry.arena)
        });
        let parts = self.segments.in_span(copy.span).filter(|_| !is_result);
        let missing = parts.into_iter().find_map(|(span, content)| {
            let there = match copy.from() {
                Some(from) => content.valid.contains(from),
                None => content.status == Status::Zeroed,
            };
            content.unreadable(span).or((!there).then_some(Refusal::Unreachable { arena: copy.to, span }))
        });
        if let Some(refusal) = missing {
            return Err(refusal);
        }
        if let Some(copy) = self.copies.find_mut(id) {
            copy.phase = CopyPhase::Running;
        }
        Ok(())
    }

    /// Records that a copy moved all of its bytes, so that they are valid in the destination.
    pub(super) fn copied(&mut self, routes: &dyn Routes, id: CopyId) {
        let Some(copy) = self.copies.remove(id) else { return };
        for end in copy.from().into_iter().chain([copy.to]) {
            self.arena_mut(end).copy_refs -= 1;
        }
        if !self.arena(copy.to).is_lost() {
            let mirrors = self.tenancy(routes).mirrors(copy.to);
            self.segments.update(copy.span, |content| match content.status {
                // The contents were lost during the copy, so the bytes that arrived are not valid.
                Status::Undefined | Status::Poisoned(Remains::Lost) => content,
                _ => Content { valid: content.valid.union(mirrors), ..content },
            });
        }
        self.settle(routes);
    }

    /// Completes a plan: its kernel gets access to the contents of the last commit.
    ///
    /// # Errors
    /// [`Refusal::Wedged`] or [`Refusal::DeviceLost`] if that happened during the plan.
    /// [`Refusal::Poisoned`], [`Refusal::Uninitialized`] or [`Refusal::Unreachable`] if the bytes to be read
    /// are no longer available. The request is then given up. [`Refusal::Closed`] if there is no such grant.
    pub(super) fn finish(&mut self, routes: &dyn Routes, grant: OwnerId) -> Result<&Requestor, Refusal> {
        let seq = self.commit_seq;
        let index = self.requestors.place(grant).ok_or(Refusal::Closed)?;
        let arena = self.requestors[index].arena;
        let missing = self.missing(&self.requestors[index]);
        let served = self.arena(arena).map.gives(routes.arena(arena), routes.arena(arena).native);
        let refused = match self.lifecycle {
            _ if !served => Some(Refusal::Wedged),
            Lifecycle::Wedged => Some(Refusal::Wedged),
            _ if self.arena(arena).is_lost() => Some(Refusal::DeviceLost { arena }),
            _ => missing,
        };
        if !served {
            self.lifecycle = self.lifecycle.max(Lifecycle::Wedged);
        }
        if let Some(refusal) = refused {
            self.unreserve(routes, grant);
            return Err(refusal);
        }
        self.arena_mut(arena).native_refs += 1;
        let entry = self.requestors.find_mut(grant).ok_or(Refusal::Closed)?;
        entry.phase = Phase::Granted;
        entry.seq_at_grant = seq;
        self.settle(routes);
        Ok(&self.requestors[index])
    }

    /// Returns the reason why a kernel cannot read its bytes, if they were lost since it asked for them.
    pub(super) fn missing(&self, entry: &Requestor) -> Option<Refusal> {
        let (arena, stream) = (entry.arena, Some(entry.arena).filter(|_| entry.is_submission));
        if self.segments.whole().is_some_and(|whole| whole.is_readable_in(arena)) {
            return None;
        }
        let read = self.read_as_committed(&entry.claims, stream);
        read.iter().flat_map(|span| self.segments.in_span(*span)).find_map(|(span, content)| {
            let valid = content.valid.contains(arena);
            content.unreadable(span).or((!valid).then_some(Refusal::Unreachable { arena, span }))
        })
    }

    /// Aborts a plan: removes its entry, reservations and marks. Its completed allocations and copies stay
    /// (I-15).
    pub(super) fn unreserve(&mut self, routes: &dyn Routes, owner: OwnerId) {
        for copy in self.copies.take_of(owner) {
            for end in copy.from().into_iter().chain([copy.to]) {
                self.arenas[usize::from(end.0)].copy_refs -= 1;
            }
        }
        for arena in &mut self.arenas {
            arena.transition = arena.transition.filter(|transition| transition.owner != owner);
        }
        self.requestors.forget(owner);
        self.settle(routes);
    }

    /// Makes bytes valid in an arena ahead of their use, without a grant. [`Begin::Granted`] means that they
    /// are already valid.
    pub fn prefetch(&mut self, routes: &dyn Routes, owner: OwnerId, arena: ArenaId, span: Span) -> Begin {
        let claims = Claims::new([Claim { span, access: Access::ReadOnly }]);
        self.fetch(routes, owner, arena, &claims)
    }

    /// Brings bytes to an arena as for a reader, but without a requestor.
    pub(super) fn fetch(
        &mut self,
        routes: &dyn Routes,
        owner: OwnerId,
        arena: ArenaId,
        claims: &Claims,
    ) -> Begin {
        if !self.queue.is_empty() {
            return Begin::Busy { reason: BusyReason::Queue, needs_idle: ArenaSet::EMPTY };
        }
        // A prefetch belongs to no kernel, so the check for bytes held by the same kernel does not apply.
        let admitted = self.is_open().and_then(|()| self.conflicts(claims, None));
        if let Err(begin) = admitted.and_then(|()| self.has_arena(arena)) {
            return begin;
        }
        let unreadable = {
            let mut parts = claims.iter().flat_map(|claim| self.segments.in_span(claim.span));
            parts.find_map(|(span, content)| content.unreadable(span))
        };
        if let Some(refusal) = unreadable {
            return Begin::Refused(refusal);
        }
        let mut planner = Planner::new(self, routes, owner, arena, false);
        if let Err(none) = claims.iter().try_for_each(|claim| planner.bring(claim.span)) {
            let span = claims.first().map_or(Span::new(0, 0), |claim| claim.span);
            return self.without_plan(none, arena, span);
        }
        let plan = planner.finish(Purpose::Prefetch);
        self.arena_mut(arena).is_retired = false;
        if plan.steps.is_empty() {
            return Begin::Granted(self.commit_seq);
        }
        self.reserve(&plan);
        Begin::Plan(plan)
    }
}

#[cfg(test)]
mod tests;
