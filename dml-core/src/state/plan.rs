//! Planning: which allocations, map-state changes and copies bring the latest contents to where they are needed.
//!
//! A plan is a value: it can be printed (`{:#}` draws it), compared and replayed. It is computed on the state as it
//! will be at each step, so that a copy's source need not be valid yet when the plan is made. The path of every run of
//! missing bytes is the cheapest of those feasible now (O-1), nothing is copied that is valid already, and nothing at
//! all for bytes that will be overwritten (O-2).

use super::users::Tenancy;
use super::{
    Alloc, ArenaState, BufferState, Content, CopyId, CopyKind, CopyOp, CopyPhase, MapState, Refusal, Remains,
    Routes, Status,
};
use crate::access::Claim;
use crate::arena::Concurrency;
use crate::cost::Cost;
use crate::cross_arena::{Allocation, CopyQuery, Link};
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
    /// Whether the kernel will write what it is brought.
    pub writes: bool,
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

/// Map-state changes to be made: of which arena, for which device, to which state.
type MapChanges = SmallVec<[(ArenaId, DeviceId, MapState); 2]>;

/// A plan being made: the arenas as they will be after the steps so far.
pub(super) struct Planner<'a> {
    state: &'a BufferState,
    routes: &'a dyn Routes,
    owner: GrantId,
    to: ArenaId,
    /// Whether the kernel will write what it is brought.
    writes: bool,
    arenas: SmallVec<[ArenaState; 4]>,
    steps: Vec<Step>,
    copies: u32,
    cost: Cost,
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        state: &'a BufferState,
        routes: &'a dyn Routes,
        owner: GrantId,
        to: ArenaId,
        writes: bool,
    ) -> Self {
        Self {
            state,
            routes,
            owner,
            to,
            writes,
            arenas: state.arenas.iter().copied().collect(),
            steps: Vec::new(),
            copies: 0,
            cost: Cost::ZERO,
        }
    }

    pub(super) fn finish(self) -> SyncPlan {
        SyncPlan { owner: self.owner, arena: self.to, steps: self.steps, cost: self.cost }
    }

    /// Those who use the arenas as they will be.
    fn tenancy(&self) -> Tenancy<'_> {
        let BufferState { requestors, copies, .. } = self.state;
        Tenancy { routes: self.routes, arenas: &self.arenas, requestors, copies }
    }

    /// Plans what `claim` needs to be valid in the destination before its kernel starts.
    pub(super) fn bring(&mut self, claim: &Claim) -> Result<(), NoPlan> {
        if !claim.access.reads() {
            return Ok(());
        }
        let state = self.state;
        for (span, content) in state.segments.in_span(claim.span) {
            if !self.will_be_valid(content).contains(self.to) {
                self.bring_run(span, content)?;
            }
        }
        Ok(())
    }

    /// Where a segment's contents will be valid, coherent bindings of this plan included.
    fn will_be_valid(&self, content: Content) -> ArenaSet {
        content.valid.iter().fold(content.valid, |valid, arena| valid.union(self.tenancy().mirrors(arena)))
    }

    fn bring_run(&mut self, span: Span, content: Content) -> Result<(), NoPlan> {
        let group = self.tenancy().group(self.to);
        if self.being_filled(self.to, span) {
            return Err(NoPlan::Busy(BusyReason::Copying, group));
        }
        let valid = self.will_be_valid(content);
        if content.status == Status::Zeroed && valid.intersection(group).is_empty() {
            if !self.destination_free(self.to, span, false) {
                return Err(self.busy(BusyReason::ArenaInUse, self.to));
            }
            let native = self.routes.arena(self.to).native;
            self.allocate(self.to)?;
            self.give_access(self.to, native, true)?;
            self.copy(CopyKind::Fill, self.to, span);
            return Ok(());
        }
        let path = self.path(span, valid, false).ok_or_else(|| self.no_path(span, valid))?;
        self.cost = self.cost + path.cost;
        for link in path.links {
            self.hop(link, span)?;
        }
        Ok(())
    }

    fn no_path(&self, span: Span, valid: ArenaSet) -> NoPlan {
        let Some(path) = self.path(span, valid, true) else {
            return NoPlan::Refused(Refusal::Unreachable { span });
        };
        let tenancy = self.tenancy();
        let on_path = path.links.iter().flat_map(|&link| {
            let link = self.routes.link(link);
            [link.from, link.to]
        });
        let needs = on_path.fold(tenancy.group(self.to), |set, arena| set.union(tenancy.group(arena)));
        let moving = needs.iter().any(|arena| self.in_transition(arena));
        NoPlan::Busy(if moving { BusyReason::InTransition } else { BusyReason::ArenaInUse }, needs)
    }

    /// The cheapest path for a run of missing bytes; with `assume_idle`, as if every user were gone.
    fn path(&self, span: Span, valid: ArenaSet, assume_idle: bool) -> Option<Path> {
        let class_bytes = span.len().checked_next_power_of_two().unwrap_or(u64::MAX);
        let state = self.state;
        let quiet = state.requestors.is_empty() && state.copies.is_empty();
        let simple = self.arenas.iter().all(|arena| {
            !arena.is_lost() && arena.transition.is_none() && !matches!(arena.alloc, Alloc::Bound { .. })
        });
        let mut edge = |link| self.edge(link, span, class_bytes, valid, assume_idle);
        if (quiet || assume_idle) && simple {
            let ids = state.arena_ids();
            let key = PathKey {
                sources: valid,
                to: self.to,
                class_bytes,
                writes: self.writes,
                allocated: ids.filter(|&id| self.at(id).alloc.is_allocated()).collect(),
                maps: self.arenas.iter().map(|arena| arena.map).collect(),
            };
            self.routes.cheapest_idle(key, &mut edge)
        } else {
            self.routes.cheapest(valid, self.to, &mut edge)
        }
    }

    /// How data would cross a link now; `None` where its storage does not allow it.
    fn crossing(&self, link: &Link, valid: ArenaSet) -> Option<Crossing> {
        let tenancy = self.tenancy();
        let (from, to) = (self.at(link.from), self.at(link.to));
        let group = tenancy.group(link.to);
        let shared = group.contains(link.from);
        match link.allocation {
            Allocation::Bound(_) | Allocation::Shared if shared => Some(Crossing::Refresh),
            // A member never becomes a root: the source must own its storage already (I-10).
            Allocation::Bound(concurrency)
                if !to.alloc.is_allocated() && matches!(from.alloc, Alloc::Internal | Alloc::External) =>
            {
                Some(Crossing::Bind(concurrency))
            }
            Allocation::Bound(_) | Allocation::Shared => None,
            Allocation::Internal if shared => None,
            // A byte copy over a valid peer's storage would shrink the valid-set if it failed: only a refresh is legal.
            Allocation::Internal => valid.intersection(group).is_empty().then_some(Crossing::Bytes),
        }
    }

    /// What a link would cost for these bytes in the state as it will be; `None` where it is not feasible.
    fn edge(&self, id: LinkId, span: Span, bytes: u64, valid: ArenaSet, assume_idle: bool) -> Option<Cost> {
        let link = self.routes.link(id);
        if self.at(link.from).is_lost() || self.at(link.to).is_lost() || valid.contains(link.to) {
            return None;
        }
        let crossing = self.crossing(link, valid)?;
        let writes = crossing == Crossing::Bytes || (self.writes && link.to == self.to);
        let native = self.routes.arena(link.to).native;
        let (source_via, target_via) = match crossing {
            Crossing::Bytes => (Some(link.source_via), link.target_via),
            Crossing::Refresh | Crossing::Bind(_) => (None, native),
        };
        if !assume_idle {
            let free = self.destination_free(link.to, span, crossing != Crossing::Bytes);
            let still = !self.in_transition(link.from) && !self.in_transition(link.to);
            let reachable = match crossing {
                Crossing::Bytes => {
                    self.reachable(link.from, link.source_via, false)
                        && self.reachable(link.to, link.target_via, true)
                }
                Crossing::Refresh => self.reachable(link.to, native, writes),
                Crossing::Bind(concurrency) => {
                    let tenancy = self.tenancy();
                    let shared = concurrency.min(tenancy.concurrency(link.from));
                    tenancy.coexists(link.from, shared, native, writes, self.owner)
                }
            };
            if !(free && still && reachable) {
                return None;
            }
        }
        let served = |arena: ArenaId, device, writes| {
            let desc = self.routes.arena(arena);
            self.at(arena).map.serves(desc, self.tenancy().concurrency(arena), device, writes)
        };
        let allocates = !self.at(link.to).alloc.is_allocated();
        let query = CopyQuery {
            bytes,
            remap_source: source_via.is_some_and(|via| !served(link.from, via, false)),
            remap_target: !served(link.to, target_via, writes),
            allocates,
        };
        let cost = self.routes.cost(id, &query).filter(|cost| cost.is_feasible())?;
        Some(if allocates { cost + self.routes.arena(link.to).alloc_cost } else { cost })
    }

    /// Whether no other kernel's bytes and no other copy's destination in the group of `to` overlap `span`. What moves no
    /// bytes does not disturb peers that read them.
    fn destination_free(&self, to: ArenaId, span: Span, moves_nothing: bool) -> bool {
        let group = self.tenancy().group(to);
        let clear_of_kernels = moves_nothing
            || !self.state.requestors.iter().any(|entry| {
                group.contains(entry.arena) && entry.claims.iter().any(|claim| claim.span.overlaps(span))
            });
        clear_of_kernels && !self.being_filled(to, span)
    }

    fn being_filled(&self, to: ArenaId, span: Span) -> bool {
        let group = self.tenancy().group(to);
        self.state.copies.iter().any(|copy| copy.span.overlaps(span) && group.contains(copy.to))
    }

    fn in_transition(&self, arena: ArenaId) -> bool {
        self.at(arena).transition.is_some_and(|transition| transition.owner != self.owner)
    }

    /// Whether `device` can be given the access it needs to `arena` and its group beside all other users.
    fn reachable(&self, arena: ArenaId, device: DeviceId, writes: bool) -> bool {
        self.access_changes(arena, device, writes).is_ok()
    }

    /// The map-state changes that give `device` access to `arena`'s storage beside everyone else: in the arena itself
    /// and in the peers that share it, for the device and for those who work there already.
    fn access_changes(
        &self,
        arena: ArenaId,
        device: DeviceId,
        writes: bool,
    ) -> Result<MapChanges, BusyReason> {
        let tenancy = self.tenancy();
        let concurrency = tenancy.concurrency(arena);
        if !tenancy.coexists(arena, concurrency, device, writes, self.owner) {
            return Err(BusyReason::ArenaInUse);
        }
        let root_device = self.routes.arena(tenancy.root(arena)).native;
        let mut changes = MapChanges::new();
        // The arena itself last: its peers let go, or share, before it is taken over.
        for member in tenancy.group(arena).without(arena).iter().chain([arena]) {
            let desc = self.routes.arena(member);
            if desc.is_always_bimapped() || (member != arena && concurrency == Concurrency::BimapFull) {
                continue;
            }
            let reaches = |candidate: DeviceId| candidate == desc.native || desc.remotes.contains(candidate);
            // A peer through which the device has no way in only has to let go of its own device's access.
            let via = if member == arena || reaches(device) {
                device
            } else if desc.remotes.contains(root_device) {
                root_device
            } else {
                desc.remotes.iter().next().ok_or(BusyReason::ArenaInUse)?
            };
            let before = self.at(member).map;
            let mut now = before;
            let others = tenancy.others(arena, self.owner).map(|user| (user.device, user.writes));
            let others = others.filter(|(other, _)| *other != via && reaches(*other));
            for (served, serves_writer) in std::iter::once((via, writes)).chain(others) {
                if now.serves(desc, concurrency, served, serves_writer) {
                    continue;
                }
                if self.in_transition(member) {
                    return Err(BusyReason::InTransition);
                }
                now = now.serving(desc, concurrency, served, serves_writer);
                changes.push((member, served, now));
            }
            if !now.gives(desc, via) || !tenancy.map_ok(member, before, now, self.owner) {
                return Err(BusyReason::ArenaInUse);
            }
        }
        Ok(changes)
    }

    fn hop(&mut self, id: LinkId, span: Span) -> Result<(), NoPlan> {
        let link = *self.routes.link(id);
        if link.allocation != Allocation::Internal {
            let binding = match link.allocation {
                Allocation::Bound(concurrency) if !self.at(link.to).alloc.is_allocated() => Some(concurrency),
                _ => None,
            };
            if let Some(concurrency) = binding {
                self.at_mut(link.to).alloc = Alloc::Bound { root: link.from, concurrency };
            }
            let (native, planned) = (self.routes.arena(link.to).native, self.steps.len());
            self.give_access(link.to, native, self.writes && link.to == self.to)?;
            if let Some(concurrency) = binding {
                // Those who use the storage already get the access that the new rules ask for before these hold: a plan
                // that is given up in between leaves everybody theirs (I-6).
                let own = |step: &Step| matches!(step, Step::Map { arena, .. } if *arena == link.to);
                let at =
                    self.steps[planned..].iter().position(own).map_or(self.steps.len(), |own| planned + own);
                self.steps.insert(at, Step::Bind { arena: link.to, root: link.from, concurrency });
            }
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
        let changes =
            self.access_changes(arena, device, writes).map_err(|reason| self.busy(reason, arena))?;
        for (arena, device, target) in changes {
            self.steps.push(Step::Map { arena, device, target });
            self.at_mut(arena).map = target;
        }
        Ok(())
    }

    fn copy(&mut self, kind: CopyKind, to: ArenaId, span: Span) {
        let id = CopyId { owner: self.owner, index: self.copies };
        self.copies += 1;
        self.steps.push(Step::Copy(CopyOp { id, kind, to, span, phase: CopyPhase::Reserved }));
    }

    fn busy(&self, reason: BusyReason, arena: ArenaId) -> NoPlan {
        NoPlan::Busy(reason, self.tenancy().group(arena).union(self.tenancy().group(self.to)))
    }

    fn at(&self, arena: ArenaId) -> &ArenaState {
        &self.arenas[usize::from(arena.0)]
    }

    fn at_mut(&mut self, arena: ArenaId) -> &mut ArenaState {
        &mut self.arenas[usize::from(arena.0)]
    }
}

/// How data crosses a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossing {
    /// As bytes, into storage of the destination's own.
    Bytes,
    /// Not at all: the ends share their storage, and its map state changes.
    Refresh,
    /// Not at all, once the destination shares the source's storage.
    Bind(Concurrency),
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

#[cfg(test)]
mod tests;
