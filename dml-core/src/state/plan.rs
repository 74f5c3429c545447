//! Planning: which allocations, map-state changes and copies bring the latest contents to where they are needed.
//!
//! A plan is a value: it can be printed (`{:#}` draws it), compared and replayed. It is computed on the state as it
//! will be at each step, so that a copy's source need not be valid yet when the plan is made. The path of every run of
//! missing bytes is the cheapest of those feasible now (O-1), nothing is copied that is valid already, and nothing at
//! all for bytes that will be overwritten (O-2).

use super::{
    Alloc, ArenaState, BufferState, Content, CopyId, CopyKind, CopyOp, CopyPhase, MapState, Refusal, Remains,
    Routes, Status,
};
use crate::access::Claim;
use crate::arena::Concurrency;
use crate::cost::Cost;
use crate::cross_arena::{Allocation, CopyQuery};
use crate::error::BusyReason;
use crate::id::{ArenaId, ArenaSet, DeviceId, GrantId, LinkId};
use crate::range::Span;
use smallvec::SmallVec;
use std::fmt;

/// One step of a plan, carried out by the engine in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Allocate storage.
    Allocate {
        /// Where.
        arena: ArenaId,
    },
    /// Make the storage of `root` that of `arena` too.
    Bind {
        /// The arena without storage.
        arena: ArenaId,
        /// The arena that has it.
        root: ArenaId,
        /// Who may use it at the same time through the binding.
        concurrency: Concurrency,
    },
    /// Change a map state so that `device` has access.
    Map {
        /// The arena.
        arena: ArenaId,
        /// Who needs access.
        device: DeviceId,
        /// The state to ask for.
        target: MapState,
    },
    /// Make bytes valid in another arena.
    Copy(CopyOp),
}

/// A path over links, from an arena that is valid to the one that needs to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The links in order.
    pub links: SmallVec<[LinkId; 4]>,
    /// The sum of their costs, allocations included.
    pub cost: Cost,
}

/// Everything the cheapest path of an idle buffer depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathKey {
    /// The arenas that are valid.
    pub sources: ArenaSet,
    /// The arena that needs to be.
    pub to: ArenaId,
    /// The size class: bytes rounded up to a power of two. Costs are those of the class.
    pub class_bytes: u64,
    /// The arenas that have storage.
    pub allocated: ArenaSet,
    /// Every arena's map state.
    pub maps: SmallVec<[MapState; 4]>,
}

/// What the engine is to do for one request, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPlan {
    /// The grant or prefetch it belongs to.
    pub owner: GrantId,
    /// The arena that will be valid.
    pub arena: ArenaId,
    /// The steps.
    pub steps: Vec<Step>,
    /// The estimated time of its copies.
    pub cost: Cost,
}

impl fmt::Display for SyncPlan {
    /// One line, or with `{:#}` a line per step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} ({}):", self.owner, self.arena, self.cost)?;
        for step in &self.steps {
            f.write_str(if f.alternate() { "\n  " } else { " " })?;
            match step {
                Step::Allocate { arena } => write!(f, "allocate {arena}")?,
                Step::Bind { arena, root, .. } => write!(f, "bind {arena} = {root}")?,
                Step::Map { arena, device, .. } => write!(f, "map {arena} for {device}")?,
                Step::Copy(CopyOp { kind, to, span, .. }) => match kind {
                    CopyKind::Bytes { from, link, .. } => {
                        write!(f, "copy {from} =={span}==> {to} by {link}")?
                    }
                    CopyKind::Refresh { from } => write!(f, "refresh {from} ~~{span}~~> {to}")?,
                    CopyKind::Fill => write!(f, "fill 0 =={span}==> {to}")?,
                },
            }
            if !f.alternate() {
                f.write_str(";")?;
            }
        }
        Ok(())
    }
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlan {
    /// There will be one when others are done; it needs these arenas idle.
    Busy(BusyReason, ArenaSet),
    /// There never will be.
    Refused(Refusal),
}

/// A plan being made: the map and allocation states as they will be after the steps so far.
pub(super) struct Planner<'a> {
    state: &'a BufferState,
    routes: &'a dyn Routes,
    owner: GrantId,
    to: ArenaId,
    arenas: SmallVec<[ArenaState; 4]>,
    steps: Vec<Step>,
    copies: u32,
    cost: Cost,
}

impl<'a> Planner<'a> {
    pub(super) fn new(state: &'a BufferState, routes: &'a dyn Routes, owner: GrantId, to: ArenaId) -> Self {
        Self {
            state,
            routes,
            owner,
            to,
            arenas: state.arenas.iter().copied().collect(),
            steps: Vec::new(),
            copies: 0,
            cost: Cost::ZERO,
        }
    }

    pub(super) fn finish(self) -> SyncPlan {
        SyncPlan { owner: self.owner, arena: self.to, steps: self.steps, cost: self.cost }
    }

    /// Plans what `claim` needs to be valid in the destination before its kernel starts.
    pub(super) fn bring(&mut self, claim: &Claim) -> Result<(), NoPlan> {
        if !claim.access.reads() {
            return Ok(());
        }
        let state = self.state;
        for (span, content) in state.segments.in_span(claim.span) {
            if !content.valid.contains(self.to) {
                self.bring_run(span, content)?;
            }
        }
        Ok(())
    }

    fn bring_run(&mut self, span: Span, content: Content) -> Result<(), NoPlan> {
        if self.being_filled(self.to, span) {
            return Err(NoPlan::Busy(BusyReason::Copying, self.state.group(self.to)));
        }
        let group = self.state.group(self.to);
        if content.status == Status::Zeroed && content.valid.intersection(group).is_empty() {
            let native = self.routes.arena(self.to).native;
            self.allocate(self.to)?;
            self.give_access(self.to, native, true)?;
            self.copy(CopyKind::Fill, self.to, span);
            return Ok(());
        }
        let path = self.path(span, content, false).ok_or_else(|| self.no_path(span, content))?;
        self.cost = self.cost + path.cost;
        for link in path.links {
            self.hop(link, span)?;
        }
        Ok(())
    }

    fn no_path(&self, span: Span, content: Content) -> NoPlan {
        match self.path(span, content, true) {
            Some(path) => {
                let on_path = path.links.iter().flat_map(|&link| {
                    let link = self.routes.link(link);
                    [link.from, link.to]
                });
                let needs =
                    on_path.fold(self.state.group(self.to), |set, arena| set.union(self.state.group(arena)));
                let moving = needs.iter().any(|arena| self.in_transition(arena));
                NoPlan::Busy(if moving { BusyReason::InTransition } else { BusyReason::ArenaInUse }, needs)
            }
            None => NoPlan::Refused(Refusal::Unreachable { span }),
        }
    }

    /// The cheapest path for a run of missing bytes; with `assume_idle`, as if every user were gone.
    fn path(&self, span: Span, content: Content, assume_idle: bool) -> Option<Path> {
        let class_bytes = span.len().checked_next_power_of_two().unwrap_or(u64::MAX);
        let state = self.state;
        let quiet = state.requestors.is_empty() && state.copies.is_empty();
        let simple = self.arenas.iter().all(|arena| {
            !arena.lost && arena.transition.is_none() && !matches!(arena.alloc, Alloc::Bound { .. })
        });
        let mut edge = |link| self.edge(link, span, class_bytes, content.valid, assume_idle);
        if (quiet || assume_idle) && simple {
            let ids = state.arena_ids();
            let key = PathKey {
                sources: content.valid,
                to: self.to,
                class_bytes,
                allocated: ids.filter(|&id| self.arenas[usize::from(id.0)].alloc.is_allocated()).collect(),
                maps: self.arenas.iter().map(|arena| arena.map).collect(),
            };
            self.routes.cheapest_idle(key, &mut edge)
        } else {
            self.routes.cheapest(content.valid, self.to, &mut edge)
        }
    }

    /// What a link would cost for these bytes in the state as it will be; `None` where it is not feasible.
    fn edge(&self, id: LinkId, span: Span, bytes: u64, valid: ArenaSet, assume_idle: bool) -> Option<Cost> {
        let link = self.routes.link(id);
        let (from, to) = (self.at(link.from), self.at(link.to));
        if from.lost || to.lost || valid.contains(link.to) {
            return None;
        }
        let busy = |arena| !assume_idle && self.in_transition(arena);
        if busy(link.from) || busy(link.to) {
            return None;
        }
        let group = self.state.group(link.to);
        let refresh = group.contains(link.from) && link.from != link.to;
        let binds = match link.allocation {
            Allocation::Bound(_) => {
                // A root never becomes a member: the source must own its storage.
                let can_bind = !to.alloc.is_allocated() && !matches!(from.alloc, Alloc::Bound { .. });
                if !refresh && !can_bind {
                    return None;
                }
                !refresh
            }
            Allocation::Internal if refresh => return None,
            Allocation::Internal => false,
        };
        if !refresh && !binds && !valid.intersection(group).is_empty() {
            // A byte copy over a valid peer's storage would shrink the valid-set if it failed: only a refresh is legal.
            return None;
        }
        if !assume_idle && !self.destination_free(link.to, span, refresh) {
            return None;
        }
        let native = self.routes.arena(link.to).native;
        if let (Allocation::Bound(concurrency), true, false) = (link.allocation, binds, assume_idle) {
            let shared = concurrency.min(self.state.group_concurrency(self.routes, link.from));
            if !self.state.coexists_under(self.routes, link.from, shared, native, false, self.owner) {
                return None;
            }
        }
        let (source_via, target_via) =
            if refresh || binds { (None, native) } else { (Some(link.source_via), link.target_via) };
        let reachable = |arena, device, writes| assume_idle || self.reachable(arena, device, writes);
        if source_via.is_some_and(|via| !reachable(link.from, via, false))
            || !reachable(link.to, target_via, !refresh)
        {
            return None;
        }
        let served = |arena: ArenaId, device, writes| {
            let desc = self.routes.arena(arena);
            self.at(arena).map.serves(desc, self.state.group_concurrency(self.routes, arena), device, writes)
        };
        let allocates = !to.alloc.is_allocated();
        let query = CopyQuery {
            bytes,
            remap_source: source_via.is_some_and(|via| !served(link.from, via, false)),
            remap_target: !served(link.to, target_via, !refresh),
            allocates,
        };
        let cost = self.routes.cost(id, &query).filter(|cost| cost.is_feasible())?;
        Some(if allocates { cost + self.routes.arena(link.to).alloc_cost } else { cost })
    }

    /// Whether no other kernel's bytes and no other copy's destination in the group of `to` overlap `span`. A refresh
    /// moves no bytes, so peers may go on reading them.
    fn destination_free(&self, to: ArenaId, span: Span, refresh: bool) -> bool {
        let group = self.state.group(to);
        let clear_of_kernels = refresh
            || !self.state.requestors.iter().any(|entry| {
                group.contains(entry.arena) && entry.claims.iter().any(|claim| claim.span.overlaps(span))
            });
        clear_of_kernels && !self.being_filled(to, span)
    }

    fn being_filled(&self, to: ArenaId, span: Span) -> bool {
        let state = self.state;
        state.copies.iter().any(|copy| copy.span.overlaps(span) && state.root(copy.to) == state.root(to))
    }

    fn in_transition(&self, arena: ArenaId) -> bool {
        self.at(arena).transition.is_some_and(|transition| transition.owner != self.owner)
    }

    /// Whether `device` can be given the access it needs to `arena` and its group beside all other users.
    fn reachable(&self, arena: ArenaId, device: DeviceId, writes: bool) -> bool {
        self.state.coexists(self.routes, arena, device, writes, self.owner)
            && self.access_changes(arena, device, writes).is_ok()
    }

    /// The map-state changes that give `device` access to `arena`'s storage, in the arena itself and in the peers
    /// that share it.
    fn access_changes(
        &self,
        arena: ArenaId,
        device: DeviceId,
        writes: bool,
    ) -> Result<SmallVec<[(ArenaId, DeviceId, MapState); 2]>, BusyReason> {
        let group = self.state.group(arena);
        let concurrency = self.state.group_concurrency(self.routes, arena);
        let mut changes = SmallVec::new();
        for member in group.iter() {
            let desc = self.routes.arena(member);
            if desc.is_always_bimapped() || (member != arena && concurrency == Concurrency::BimapFull) {
                continue;
            }
            // A peer through which the device has no way in only has to let go of its own device's access.
            let root_device = self.routes.arena(self.state.root(arena)).native;
            let reaches = |candidate: DeviceId| candidate == desc.native || desc.remotes.contains(candidate);
            let via = if member == arena || reaches(device) {
                device
            } else if desc.remotes.contains(root_device) {
                root_device
            } else {
                desc.remotes.iter().next().ok_or(BusyReason::ArenaInUse)?
            };
            let now = self.at(member).map;
            if now.serves(desc, concurrency, via, writes) {
                continue;
            }
            if self.in_transition(member) {
                return Err(BusyReason::InTransition);
            }
            let target = now.serving(desc, concurrency, via, writes);
            if !self.state.map_ok(self.routes, member, now, target, Some(self.owner)) {
                return Err(BusyReason::ArenaInUse);
            }
            changes.push((member, via, target));
        }
        Ok(changes)
    }

    fn hop(&mut self, id: LinkId, span: Span) -> Result<(), NoPlan> {
        let link = *self.routes.link(id);
        if let Allocation::Bound(concurrency) = link.allocation {
            if !self.at(link.to).alloc.is_allocated() {
                self.steps.push(Step::Bind { arena: link.to, root: link.from, concurrency });
                self.at_mut(link.to).alloc = Alloc::Bound { root: link.from, concurrency };
            }
            let native = self.routes.arena(link.to).native;
            self.give_bound_access(link.from, link.to, native, concurrency)?;
            self.copy(CopyKind::Refresh { from: link.from }, link.to, span);
            return Ok(());
        }
        self.allocate(link.to)?;
        self.give_access(link.from, link.source_via, false)?;
        self.give_access(link.to, link.target_via, true)?;
        let kind = CopyKind::Bytes {
            from: link.from,
            link: id,
            source_via: link.source_via,
            target_via: link.target_via,
        };
        self.copy(kind, link.to, span);
        Ok(())
    }

    /// Access through a binding that the state may not know yet: the member is mapped for the other end's device, or
    /// handed back to its own.
    fn give_bound_access(
        &mut self,
        from: ArenaId,
        to: ArenaId,
        device: DeviceId,
        concurrency: Concurrency,
    ) -> Result<(), NoPlan> {
        if self.state.group(to).contains(from) {
            return self.give_access(to, device, false);
        }
        for member in [from, to] {
            let desc = self.routes.arena(member);
            let reaches = device == desc.native || desc.remotes.contains(device);
            let now = self.at(member).map;
            if desc.is_always_bimapped() || !reaches || now.serves(desc, concurrency, device, false) {
                continue;
            }
            let target = now.serving(desc, concurrency, device, false);
            if !self.state.map_ok(self.routes, member, now, target, Some(self.owner)) {
                return Err(self.busy(BusyReason::ArenaInUse, member));
            }
            self.change_map(member, device, target);
        }
        Ok(())
    }

    /// Plans storage for `arena` if it has none.
    pub(super) fn allocate(&mut self, arena: ArenaId) -> Result<(), NoPlan> {
        if self.at(arena).alloc.is_allocated() {
            return Ok(());
        }
        if self.in_transition(arena) {
            return Err(self.busy(BusyReason::InTransition, arena));
        }
        self.steps.push(Step::Allocate { arena });
        self.at_mut(arena).alloc = Alloc::Internal;
        Ok(())
    }

    /// Plans the map-state changes that let `device` work in `arena` beside everyone else, or says why it cannot.
    pub(super) fn give_access(
        &mut self,
        arena: ArenaId,
        device: DeviceId,
        writes: bool,
    ) -> Result<(), NoPlan> {
        if !self.state.coexists(self.routes, arena, device, writes, self.owner) {
            return Err(self.busy(BusyReason::ArenaInUse, arena));
        }
        let changes =
            self.access_changes(arena, device, writes).map_err(|reason| self.busy(reason, arena))?;
        for (member, via, target) in changes {
            self.change_map(member, via, target);
        }
        Ok(())
    }

    fn change_map(&mut self, arena: ArenaId, device: DeviceId, target: MapState) {
        self.steps.push(Step::Map { arena, device, target });
        self.at_mut(arena).map = target;
    }

    fn copy(&mut self, kind: CopyKind, to: ArenaId, span: Span) {
        let id = CopyId { owner: self.owner, index: self.copies };
        self.copies += 1;
        self.steps.push(Step::Copy(CopyOp { id, kind, to, span, phase: CopyPhase::Reserved }));
    }

    fn busy(&self, reason: BusyReason, arena: ArenaId) -> NoPlan {
        NoPlan::Busy(reason, self.state.group(arena).union(self.state.group(self.to)))
    }

    fn at(&self, arena: ArenaId) -> &ArenaState {
        &self.arenas[usize::from(arena.0)]
    }

    fn at_mut(&mut self, arena: ArenaId) -> &mut ArenaState {
        &mut self.arenas[usize::from(arena.0)]
    }
}

impl Content {
    /// Why a reader cannot have these bytes, whatever is copied.
    pub(super) fn unreadable(&self, span: Span) -> Option<Refusal> {
        match self.status {
            Status::Undefined => Some(Refusal::Uninitialized { span }),
            Status::Poisoned(remains) => {
                Some(Refusal::Poisoned { span, restorable: remains != Remains::Lost })
            }
            Status::Zeroed | Status::Defined => None,
        }
    }
}
