//! Planning: which allocations, map-state changes and copies bring the latest contents to where they are needed.
//!
//! A plan is a value: it can be printed (`{:#}` draws it), compared and replayed. It is computed on the state as it
//! will be at each step, so that a copy's source need not be valid yet when the plan is made. `way.rs` chooses the path
//! of every run of missing bytes (O-1); nothing is copied that is valid already, and nothing at all for bytes that will
//! be overwritten (O-2).

use super::users::{Tenancy, Users};
use super::way::{Disturbed, Run, Traffic};
use super::{
    Alloc, ArenaState, BufferState, Content, CopyId, CopyKind, CopyOp, CopyPhase, Loss, MapState, Refusal,
    Remains, Routes, Status,
};
use crate::access::Claim;
use crate::arena::Concurrency;
use crate::cost::Cost;
use crate::cross_arena::{Allocation, CopyQuery, Link};
use crate::error::BusyReason;
use crate::id::{ArenaId, ArenaSet, DeviceId, GrantId, LinkId};
use crate::range::Span;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::fmt;

/// One step of a plan, carried out by the engine.
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

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// A kernel will be granted access.
    Kernel,
    /// Bytes are brought before anybody asks.
    Prefetch,
    /// An arena comes to share another's storage.
    Binding,
}

/// What the engine is to do for one request; an [`Execution`](super::Execution) says in what order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPlan {
    /// The grant, prefetch or binding it belongs to.
    pub owner: GrantId,
    /// What it is for.
    pub purpose: Purpose,
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

/// Storage to share: whether it is there, how many it joins, at what cost, by which link, whose it is, who may use it at
/// once.
type Root = (Reverse<bool>, Reverse<usize>, Cost, LinkId, ArenaId, Concurrency);

/// Map-state changes to be made: of which arena, for which device, to which state.
type MapChanges = SmallVec<[(ArenaId, DeviceId, MapState); 2]>;

/// A plan being made: the arenas as they will be after the steps so far.
pub(super) struct Planner<'a> {
    pub(super) state: &'a BufferState,
    pub(super) routes: &'a dyn Routes,
    pub(super) owner: GrantId,
    pub(super) to: ArenaId,
    /// Whether the kernel will write what it is brought.
    pub(super) writes: bool,
    /// Everybody else.
    pub(super) users: Users,
    pub(super) traffic: Traffic<'a>,
    pub(super) draft: Draft,
    /// The last paths found on the arenas as they are in the draft.
    pub(super) known: SmallVec<[(Run, Path); 1]>,
}

/// What a plan has so far. Paths are tried on it and taken back.
#[derive(Clone, Default)]
pub(super) struct Draft {
    arenas: SmallVec<[ArenaState; 4]>,
    steps: Vec<Step>,
    copies: u32,
    pub(super) cost: Cost,
}

/// What a draft was before a path was tried on it. The steps so far are not copied: others only follow them.
pub(super) struct Mark {
    arenas: SmallVec<[ArenaState; 4]>,
    steps: usize,
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
        let draft = Draft { arenas: state.arenas.iter().copied().collect(), ..Draft::default() };
        let (users, traffic) = (state.users(routes), Traffic::new(state));
        Self { state, routes, owner, to, writes, users, traffic, draft, known: SmallVec::new() }
    }

    pub(super) fn finish(self, purpose: Purpose) -> SyncPlan {
        let Draft { steps, cost, .. } = self.draft;
        SyncPlan { owner: self.owner, purpose, arena: self.to, steps, cost }
    }

    /// The arenas as they will be.
    pub(super) fn tenancy(&self) -> Tenancy<'_> {
        Tenancy { routes: self.routes, arenas: &self.draft.arenas }
    }

    pub(super) fn group(&self, arena: ArenaId) -> ArenaSet {
        self.tenancy().group(arena)
    }

    pub(super) fn mark(&self) -> Mark {
        let Draft { arenas, steps, copies, cost } = &self.draft;
        Mark { arenas: arenas.clone(), steps: steps.len(), copies: *copies, cost: *cost }
    }

    /// Takes back what was planned since the mark, and hands it out.
    pub(super) fn take_back(&mut self, mark: &Mark) -> Draft {
        let arenas = std::mem::replace(&mut self.draft.arenas, mark.arenas.clone());
        let steps = self.draft.steps.split_off(mark.steps);
        let copies = std::mem::replace(&mut self.draft.copies, mark.copies);
        let cost = std::mem::replace(&mut self.draft.cost, mark.cost);
        self.known.clear();
        Draft { arenas, steps, copies, cost }
    }

    /// Plans again what was taken back.
    pub(super) fn put_back(&mut self, taken: Draft) {
        let Draft { arenas, steps, copies, cost } = taken;
        self.draft.steps.extend(steps);
        (self.draft.arenas, self.draft.copies, self.draft.cost) = (arenas, copies, cost);
        self.known.clear();
    }

    /// Plans what `claim` needs to be valid in the destination before its kernel starts.
    pub(super) fn bring(&mut self, claim: &Claim) -> Result<(), NoPlan> {
        if !claim.access.reads() {
            return Ok(());
        }
        let state = self.state;
        for (span, content) in state.segments.in_span(claim.span) {
            let valid = self.will_be_valid(content.valid);
            if !valid.contains(self.to) {
                self.bring_run(span, content.status, valid)?;
            }
        }
        Ok(())
    }

    /// Where contents valid in `valid` will be valid too, since storage is shared coherently.
    pub(super) fn will_be_valid(&self, valid: ArenaSet) -> ArenaSet {
        let binds = |arena: &ArenaState| matches!(arena.alloc, Alloc::Bound { .. });
        if !self.draft.arenas.iter().any(binds) {
            return valid;
        }
        valid.iter().fold(valid, |valid, arena| valid.union(self.tenancy().mirrors(arena)))
    }

    fn bring_run(&mut self, span: Span, status: Status, valid: ArenaSet) -> Result<(), NoPlan> {
        let class_bytes = span.len().checked_next_power_of_two().unwrap_or(u64::MAX);
        let disturbed = self.traffic.on(span);
        let mut run = Run { valid, class_bytes, disturbed };
        if self.being_filled(self.to, &disturbed) {
            return Err(NoPlan::Busy(BusyReason::Copying, self.group(self.to)));
        }
        if status == Status::Zeroed && valid.intersection(self.group(self.to)).is_empty() {
            self.is_free_to_fill(&disturbed)?;
            self.allocate(self.to)?;
            // The storage may be another's, who may hold the zeros already.
            run.valid = self.will_be_valid(valid);
            if run.valid.contains(self.to) {
                return Ok(());
            }
            if run.valid.intersection(self.group(self.to)).is_empty() {
                self.is_free_to_fill(&disturbed)?;
                self.give_access(self.to, self.routes.arena(self.to).native, true)?;
                self.copy(CopyKind::Fill, self.to, span);
                return Ok(());
            }
        }
        self.lead(span, run)
    }

    /// Whether nobody else uses or fills bytes in the storage of the destination that are to be filled with zeros.
    fn is_free_to_fill(&self, disturbed: &Disturbed) -> Result<(), NoPlan> {
        if self.being_filled(self.to, disturbed) {
            return Err(NoPlan::Busy(BusyReason::Copying, self.group(self.to)));
        }
        let is_free = self.destination_free(self.to, disturbed, false);
        if is_free { Ok(()) } else { Err(self.busy(BusyReason::ArenaInUse, self.to)) }
    }

    /// Whether somebody else is changing the storage or the map state of `arena`, or who shares its storage.
    pub(super) fn in_transition(&self, arena: ArenaId) -> bool {
        self.group(arena).iter().any(|member| {
            let by_others = self.at(member).transition.filter(|transition| transition.owner != self.owner);
            by_others.is_some_and(|transition| transition.binds || member == arena)
        })
    }

    /// Whether `device` can be given the access it needs to `arena` and its group beside all other users.
    pub(super) fn reachable(&self, arena: ArenaId, device: DeviceId, writes: bool) -> bool {
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
        let group = tenancy.group(arena);
        if !self.users.coexists(group, concurrency, device, writes, self.owner) {
            return Err(BusyReason::ArenaInUse);
        }
        let root_device = self.routes.arena(tenancy.root(arena)).native;
        let mut changes = MapChanges::new();
        // The arena itself last: its peers let go, or share, before it is taken over.
        for member in group.without(arena).iter().chain([arena]) {
            let desc = self.routes.arena(member);
            // A device that is gone has no access to hand over, and its arena could not be asked to.
            let is_passed_by = concurrency == Concurrency::BimapFull || self.at(member).is_lost();
            if desc.is_always_bimapped() || (member != arena && is_passed_by) {
                continue;
            }
            let reaches = |candidate: DeviceId| candidate == desc.native || desc.remotes.contains(candidate);
            // A peer through which the device has no way in only has to let go of its own device's access.
            let via = if member == arena || reaches(device) {
                device
            } else if desc.remotes.contains(root_device) {
                root_device
            } else if let Some(remote) = desc.remotes.iter().next() {
                remote
            } else if matches!(
                self.at(member).alloc,
                Alloc::Bound { concurrency: Concurrency::BimapFull, .. }
            ) {
                // Coherent with its root by itself: another binding of the group narrows who may use the storage.
                continue;
            } else {
                return Err(BusyReason::ArenaInUse);
            };
            let before = self.at(member).map;
            let mut now = before;
            let others = self.users.others(group, self.owner).map(|user| (user.device, user.writes));
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
            if !now.gives(desc, via) || !self.users.map_ok((desc, group), before, now, self.owner) {
                return Err(BusyReason::ArenaInUse);
            }
        }
        Ok(changes)
    }

    /// Whether the end of a hop has to share another's storage first: only then can it be said what the hop needs.
    pub(super) fn shares_before(&self, id: LinkId) -> bool {
        let Link { to, allocation, .. } = *self.routes.link(id);
        let is_needed = || self.routes.bound_by_need().contains(to) && !self.better_roots(to).is_empty();
        allocation == Allocation::Internal && !self.at(to).alloc.is_allocated() && is_needed()
    }

    /// Plans that sharing, where it has to be.
    pub(super) fn share_before(&mut self, id: LinkId) -> Result<(), NoPlan> {
        if self.shares_before(id) { self.allocate(self.routes.link(id).to) } else { Ok(()) }
    }

    /// Plans one hop of a path, which is feasible on the arenas as they will be.
    pub(super) fn hop(&mut self, id: LinkId, span: Span) -> Result<(), NoPlan> {
        let link = *self.routes.link(id);
        let writes = self.writes && link.to == self.to;
        match link.allocation {
            Allocation::Internal => {
                self.allocate_own(link.to)?;
                self.give_access(link.from, link.source_via, false)?;
                self.give_access(link.to, link.target_via, true)?;
                let Link { from, source_via, target_via, .. } = link;
                self.copy(CopyKind::Bytes { from, link: id, source_via, target_via }, link.to, span);
                return Ok(());
            }
            Allocation::Bound(concurrency) if !self.at(link.to).alloc.is_allocated() => {
                self.share(link.to, link.from, concurrency, writes)?;
            }
            Allocation::Bound(_) | Allocation::Shared => {
                self.give_access(link.to, self.routes.arena(link.to).native, writes)?;
            }
        }
        self.copy(CopyKind::Refresh { from: link.from }, link.to, span);
        Ok(())
    }

    /// Plans that `arena`, which has no storage, shares that of `root`, and access for its own device.
    fn share(
        &mut self,
        arena: ArenaId,
        root: ArenaId,
        concurrency: Concurrency,
        writes: bool,
    ) -> Result<(), NoPlan> {
        self.at_mut(arena).alloc = Alloc::Bound { root, concurrency };
        let planned = self.draft.steps.len();
        self.give_access(arena, self.routes.arena(arena).native, writes)?;
        // Those who use the storage already get the access that the new rules ask for before these hold: a plan that is
        // given up in between leaves everybody theirs (I-6).
        let steps = &mut self.draft.steps;
        let own = |step: &Step| matches!(step, Step::Map { arena: mapped, .. } if *mapped == arena);
        let at = steps[planned..].iter().position(own).map_or(steps.len(), |own| planned + own);
        steps.insert(at, Step::Bind { arena, root, concurrency });
        Ok(())
    }

    /// Plans storage for `arena` if it has none: of its own, or where that would keep its contents from everybody else,
    /// another's.
    pub(super) fn allocate(&mut self, arena: ArenaId) -> Result<(), NoPlan> {
        if self.at(arena).alloc.is_allocated() {
            return Ok(());
        }
        let Some((root, concurrency)) = self.root_for(arena)? else { return self.allocate_own(arena) };
        self.allocate_own(root)?;
        self.share(arena, root, concurrency, self.writes && arena == self.to)
    }

    fn allocate_own(&mut self, arena: ArenaId) -> Result<(), NoPlan> {
        if self.at(arena).alloc.is_allocated() {
            return Ok(());
        }
        if self.in_transition(arena) {
            return Err(self.busy(BusyReason::InTransition, arena));
        }
        self.draft.steps.push(Step::Allocate { arena });
        self.at_mut(arena).alloc = Alloc::Internal;
        Ok(())
    }

    /// The links that `arena` needs to be bound by and that could bind it, were nobody there, with what that would cost.
    fn roots_for(&self, arena: ArenaId) -> impl Iterator<Item = (Cost, LinkId, Concurrency)> {
        (0..).map(LinkId).zip(self.routes.links()).filter_map(move |(id, link)| {
            let Allocation::Bound(concurrency) = link.allocation else { return None };
            let root = self.at(link.from);
            // A member never becomes a root (I-10).
            let is_root = root.loss == Loss::None && !matches!(root.alloc, Alloc::Bound { .. });
            if link.to != arena || !is_root || !self.routes.is_needed(id) {
                return None;
            }
            let bytes = self.state.len().checked_next_power_of_two().unwrap_or(u64::MAX);
            let query = CopyQuery { bytes, remap_source: false, remap_target: false, allocates: true };
            let cost = self.routes.cost(id, &query).filter(|cost| cost.is_feasible())?;
            let allocates = !root.alloc.is_allocated();
            let cost = if allocates { cost + self.routes.arena(link.from).alloc_cost } else { cost };
            Some((cost, id, concurrency))
        })
    }

    /// The arenas that `arena` and those it needs are joined to by bindings that are needed, itself included.
    fn needed_by(&self, arena: ArenaId) -> ArenaSet {
        let mut joined = ArenaSet::of(arena);
        loop {
            let links = (0..).map(LinkId).zip(self.routes.links());
            let needed = links.filter(|(id, link)| {
                joined.contains(link.from) != joined.contains(link.to) && self.routes.is_needed(*id)
            });
            let more = needed.fold(joined, |joined, (_, link)| joined.with(link.from).with(link.to));
            if more == joined {
                return joined;
            }
            joined = more;
        }
    }

    /// How many of `joined` have the storage of `root`, or could be bound to it yet.
    fn serves(&self, root: ArenaId, joined: ArenaSet) -> usize {
        let is_bound = |(id, link): (LinkId, &Link), member| {
            (link.from, link.to) == (root, member) && self.routes.is_needed(id)
        };
        let binds = |member: ArenaId| {
            let (state, mut links) = (self.at(member), (0..).map(LinkId).zip(self.routes.links()));
            let is_free = state.loss == Loss::None && !state.alloc.is_allocated();
            is_free && links.any(|link| is_bound(link, member))
        };
        let group = self.group(root);
        joined.iter().filter(|&member| group.contains(member) || binds(member)).count()
    }

    /// The storages that `arena` is better off with than with its own: those there are, whose contents it needs, and then
    /// those that would join it to more of the others. The ones that join most come first, and of equal ones the cheapest.
    fn better_roots(&self, arena: ArenaId) -> SmallVec<[Root; 2]> {
        let joined = self.needed_by(arena);
        let own = self.serves(arena, joined);
        let roots = self.roots_for(arena).map(|(cost, id, concurrency)| {
            let root = self.routes.link(id).from;
            let (is_there, joins) = (self.at(root).alloc.is_allocated(), self.serves(root, joined));
            (Reverse(is_there), Reverse(joins), cost, id, root, concurrency)
        });
        let is_better = |(is_there, Reverse(joins), ..): &Root| is_there.0 || *joins > own;
        let mut roots: SmallVec<[Root; 2]> = roots.filter(is_better).collect();
        roots.sort_unstable();
        roots
    }

    /// Whose storage `arena` is to share, where it has to share some: the cheapest of those that their users permit.
    fn root_for(&self, arena: ArenaId) -> Result<Option<(ArenaId, Concurrency)>, NoPlan> {
        if !self.routes.bound_by_need().contains(arena) {
            return Ok(None);
        }
        let (native, writes) = (self.routes.arena(arena).native, self.writes && arena == self.to);
        let roots = self.better_roots(arena);
        let permitted = |&&(.., root, concurrency): &&Root| {
            let shared = concurrency.min(self.tenancy().concurrency(root));
            let coexists = self.users.coexists(self.group(root), shared, native, writes, self.owner);
            coexists && !self.in_transition(root) && !self.in_transition(arena)
        };
        match (roots.iter().find(permitted), roots.first()) {
            (Some(&(.., root, concurrency)), _) => Ok(Some((root, concurrency))),
            (None, Some(&(.., root, _))) => {
                let moving = self.in_transition(root) || self.in_transition(arena);
                let reason = if moving { BusyReason::InTransition } else { BusyReason::ArenaInUse };
                Err(self.busy(reason, root))
            }
            (None, None) => Ok(None),
        }
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
            self.draft.steps.push(Step::Map { arena, device, target });
            self.at_mut(arena).map = target;
        }
        Ok(())
    }

    fn copy(&mut self, kind: CopyKind, to: ArenaId, span: Span) {
        let id = CopyId { owner: self.owner, index: self.draft.copies };
        self.draft.copies += 1;
        self.draft.steps.push(Step::Copy(CopyOp { id, kind, to, span, phase: CopyPhase::Reserved }));
    }

    fn busy(&self, reason: BusyReason, arena: ArenaId) -> NoPlan {
        NoPlan::Busy(reason, self.group(arena).union(self.group(self.to)))
    }

    pub(super) fn at(&self, arena: ArenaId) -> &ArenaState {
        &self.draft.arenas[usize::from(arena.0)]
    }

    fn at_mut(&mut self, arena: ArenaId) -> &mut ArenaState {
        // A path is the cheapest for the arenas as they were.
        self.known.clear();
        &mut self.draft.arenas[usize::from(arena.0)]
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

#[cfg(test)]
mod tests;
