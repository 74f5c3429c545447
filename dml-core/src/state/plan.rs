//! Planning: which allocations, map changes and copies bring the latest contents to the arena that needs
//! them.
//!
//! A plan is a value: it can be printed (`{:#}` prints one step per line), compared and replayed. It is
//! computed on the state that will exist at each step, so a copy's source need not be valid yet. `path.rs`
//! chooses the path of every run of missing bytes (O-1). Valid bytes are not copied again, and bytes that
//! will be overwritten are not copied at all (O-2).

use super::BusyReason;
use super::path::{Disturbed, Missing, Traffic};
use super::users::{Tenancy, Users};
use super::{
    Alloc, ArenaState, BufferState, Content, CopyId, CopyKind, CopyOp, CopyPhase, Loss, MapState, Refusal,
    Remains, Routes, Status,
};
use crate::base::cost::Cost;
use crate::base::id::{ArenaId, ArenaSet, DeviceId, LinkId, OwnerId};
use crate::base::range::Span;
use crate::memory::desc::Concurrency;
use crate::memory::link::{Allocation, CopyQuery, Link};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::fmt;
use std::iter;

/// One step of a plan, carried out by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Allocates storage.
    Allocate {
        /// The arena that gets storage.
        arena: ArenaId,
    },
    /// Lets `arena` share the storage of `root`.
    Bind {
        /// The arena that has no storage yet.
        arena: ArenaId,
        /// The arena that owns the storage.
        root: ArenaId,
        /// The concurrency that the binding permits.
        concurrency: Concurrency,
    },
    /// Changes a map state so that `device` has access.
    Map {
        /// The arena whose map state changes.
        arena: ArenaId,
        /// The device that needs access.
        device: DeviceId,
        /// The map state to request.
        target: MapState,
    },
    /// Makes bytes valid in another arena.
    Copy(CopyOp),
}

/// A path over links, from a valid arena to the arena that needs the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The links in the order of travel.
    pub links: SmallVec<[LinkId; 4]>,
    /// The sum of their costs, allocations included.
    pub cost: Cost,
}

/// All inputs that determine the cheapest path of an idle buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathKey {
    /// The arenas where the bytes are valid.
    pub sources: ArenaSet,
    /// The arena that needs the bytes.
    pub to: ArenaId,
    /// The size class: the number of bytes, rounded up to a power of two. Costs are computed for the class.
    pub class_bytes: u64,
    /// Whether the kernel will write the bytes that it receives.
    pub writes: bool,
    /// The arenas that have storage.
    pub allocated: ArenaSet,
    /// The map state of every arena.
    pub maps: SmallVec<[MapState; 4]>,
}

/// The purpose of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// A kernel will be granted access.
    Kernel,
    /// Bytes are brought ahead of their use.
    Prefetch,
    /// An arena is bound to another arena's storage.
    Binding,
}

/// The work that the engine does for one request. An [`Execution`](super::Execution) determines the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPlan {
    /// The grant, prefetch or binding it belongs to.
    pub owner: OwnerId,
    /// The purpose of the plan.
    pub purpose: Purpose,
    /// The arena in which the bytes will be valid.
    pub arena: ArenaId,
    /// The steps in their order of planning.
    pub steps: Vec<Step>,
    /// The estimated time of its copies.
    pub cost: Cost,
}

impl fmt::Display for SyncPlan {
    /// Writes one line, or with `{:#}` one line per step.
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

/// The reason why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlan {
    /// A plan becomes possible after others finish. The set names the arenas that must be idle first.
    Busy(BusyReason, ArenaSet),
    /// No plan will ever be possible.
    Refused(Refusal),
}

/// A storage that could be shared: whether it is allocated, how many arenas it would join, the cost, the
/// link, the root arena, and the concurrency.
type Root = (Reverse<bool>, Reverse<usize>, Cost, LinkId, ArenaId, Concurrency);

/// Map changes to be made: the arena, the device, and the requested state.
type MapChanges = SmallVec<[(ArenaId, DeviceId, MapState); 2]>;

/// A plan under construction. Its draft holds the arenas as they will be after the steps so far.
pub(super) struct Planner<'a> {
    pub(super) state: &'a BufferState,
    pub(super) routes: &'a dyn Routes,
    pub(super) owner: OwnerId,
    pub(super) to: ArenaId,
    /// Whether the kernel will write the bytes that it receives.
    pub(super) writes: bool,
    /// All present uses of the buffer.
    pub(super) users: Users,
    pub(super) traffic: Traffic<'a>,
    pub(super) draft: Draft,
    /// The last paths found on the draft's arenas.
    pub(super) known: SmallVec<[(Missing, Path); 1]>,
}

/// The contents of a plan so far. The planner tries paths on it and can take them back.
#[derive(Clone, Default)]
pub(super) struct Draft {
    arenas: SmallVec<[ArenaState; 4]>,
    steps: Vec<Step>,
    copies: u32,
    pub(super) cost: Cost,
}

/// A saved draft, to undo a path. It stores only the number of steps, because later steps are only appended.
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
        owner: OwnerId,
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

    /// Returns the arenas as they will be after the steps so far.
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

    /// Undoes everything planned since the mark, and returns it.
    pub(super) fn take_back(&mut self, mark: &Mark) -> Draft {
        let arenas = std::mem::replace(&mut self.draft.arenas, mark.arenas.clone());
        let steps = self.draft.steps.split_off(mark.steps);
        let copies = std::mem::replace(&mut self.draft.copies, mark.copies);
        let cost = std::mem::replace(&mut self.draft.cost, mark.cost);
        self.known.clear();
        Draft { arenas, steps, copies, cost }
    }

    /// Restores a draft that was taken back.
    pub(super) fn put_back(&mut self, taken: Draft) {
        let Draft { arenas, steps, copies, cost } = taken;
        self.draft.steps.extend(steps);
        (self.draft.arenas, self.draft.copies, self.draft.cost) = (arenas, copies, cost);
        self.known.clear();
    }

    /// Plans the steps that make bytes valid in the destination before the kernel starts.
    pub(super) fn bring(&mut self, span: Span) -> Result<(), NoPlan> {
        let state = self.state;
        for (span, content) in state.segments.in_span(span) {
            let valid = self.will_be_valid(content.valid);
            if !valid.contains(self.to) {
                self.bring_run(span, content.status, valid)?;
            }
        }
        Ok(())
    }

    /// Returns the arenas where the contents will be valid, including arenas that share storage coherently.
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
        let mut missing = Missing { valid, class_bytes, disturbed };
        if self.being_filled(self.to, &disturbed) {
            return Err(NoPlan::Busy(BusyReason::Copying, self.group(self.to)));
        }
        if status == Status::Zeroed && valid.intersection(self.group(self.to)).is_empty() {
            self.is_free_to_fill(&disturbed)?;
            self.allocate(self.to)?;
            // The storage may belong to a root whose group already holds the zeros.
            missing.valid = self.will_be_valid(valid);
            if missing.valid.contains(self.to) {
                return Ok(());
            }
            if missing.valid.intersection(self.group(self.to)).is_empty() {
                self.is_free_to_fill(&disturbed)?;
                self.give_access(self.to, self.routes.arena(self.to).native, true)?;
                self.copy(CopyKind::Fill, self.to, span);
                return Ok(());
            }
        }
        self.lead(span, missing)
    }

    /// Checks that no other user works on, or fills, the destination's bytes that zeros are to fill.
    fn is_free_to_fill(&self, disturbed: &Disturbed) -> Result<(), NoPlan> {
        if self.being_filled(self.to, disturbed) {
            return Err(NoPlan::Busy(BusyReason::Copying, self.group(self.to)));
        }
        let is_free = self.destination_free(self.to, disturbed, false);
        if is_free { Ok(()) } else { Err(self.busy(BusyReason::ArenaInUse, self.to)) }
    }

    /// Returns whether another plan is changing the storage or map state of `arena`, or the set of arenas
    /// that share its storage.
    pub(super) fn in_transition(&self, arena: ArenaId) -> bool {
        self.group(arena).iter().any(|member| {
            let by_others = self.at(member).transition.filter(|transition| transition.owner != self.owner);
            by_others.is_some_and(|transition| transition.binds || member == arena)
        })
    }

    /// Returns whether `device` can get the access it needs to `arena` and its group beside all other users.
    pub(super) fn reachable(&self, arena: ArenaId, device: DeviceId, writes: bool) -> bool {
        self.access_changes(arena, device, writes).is_ok()
    }

    /// Returns the map changes that give `device` access to `arena`'s storage beside all other users. They
    /// cover the arena and the peers that share its storage, for the device and for the users already there.
    fn access_changes(
        &self,
        arena: ArenaId,
        device: DeviceId,
        writes: bool,
    ) -> Result<MapChanges, BusyReason> {
        let (group, concurrency) = (self.group(arena), self.tenancy().concurrency(arena));
        if !self.users.coexists(group, concurrency, device, writes, self.owner) {
            return Err(BusyReason::ArenaInUse);
        }
        let mut changes = MapChanges::new();
        // The arena itself comes last: its peers give up or share their access first.
        for peer in group.without(arena).iter() {
            if let Some(via) = self.handed_over_to(peer, device, concurrency)? {
                self.serve(peer, (via, writes), concurrency, &mut changes)?;
            }
        }
        if !self.routes.arena(arena).is_always_bimapped() {
            self.serve(arena, (device, writes), concurrency, &mut changes)?;
        }
        Ok(changes)
    }

    /// Returns the device for which a peer must be mapped before `device` uses the storage that they share,
    /// or `None` if the peer needs no change. A peer that `device` cannot reach only has to give up its own
    /// device's access.
    fn handed_over_to(
        &self,
        peer: ArenaId,
        device: DeviceId,
        concurrency: Concurrency,
    ) -> Result<Option<DeviceId>, BusyReason> {
        let (state, desc) = (self.at(peer), self.routes.arena(peer));
        // A lost device has no access to hand over, and its arena cannot be asked.
        if concurrency == Concurrency::BimapFull || state.is_lost() || desc.is_always_bimapped() {
            return Ok(None);
        }
        if device == desc.native {
            return Ok(Some(device));
        }
        let root_device = self.routes.arena(self.tenancy().root(peer)).native;
        let preferred = [device, root_device].into_iter().find(|device| desc.remotes.contains(*device));
        match preferred.or_else(|| desc.remotes.iter().next()) {
            Some(via) => Ok(Some(via)),
            // The peer is coherent with its root; another binding of the group narrows the concurrency.
            None if matches!(state.alloc, Alloc::Bound { concurrency: Concurrency::BimapFull, .. }) => {
                Ok(None)
            }
            None => Err(BusyReason::ArenaInUse),
        }
    }

    /// Adds the map changes by which one arena serves a device beside the present users of its storage.
    fn serve(
        &self,
        arena: ArenaId,
        (device, writes): (DeviceId, bool),
        concurrency: Concurrency,
        changes: &mut MapChanges,
    ) -> Result<(), BusyReason> {
        let (desc, group, before) = (self.routes.arena(arena), self.group(arena), self.at(arena).map);
        let reaches = |device: DeviceId| device == desc.native || desc.remotes.contains(device);
        let others = self.users.others(group, self.owner).map(|user| (user.device, user.writes));
        let others = others.filter(|(other, _)| *other != device && reaches(*other));
        let mut now = before;
        for (served, writes) in iter::once((device, writes)).chain(others) {
            if now.serves(desc, concurrency, served, writes) {
                continue;
            }
            if self.in_transition(arena) {
                return Err(BusyReason::InTransition);
            }
            now = now.serving(desc, concurrency, served, writes);
            changes.push((arena, served, now));
        }
        let is_kept = self.users.map_ok((desc, group), before, now, self.owner);
        if now.gives(desc, device) && is_kept { Ok(()) } else { Err(BusyReason::ArenaInUse) }
    }

    /// Returns whether the destination of a hop must be bound to a root first. Only then are the needs of the
    /// hop known.
    pub(super) fn shares_before(&self, id: LinkId) -> bool {
        let Link { to, allocation, .. } = *self.routes.link(id);
        let is_needed = || self.routes.bound_by_need().contains(to) && !self.better_roots(to).is_empty();
        allocation == Allocation::Internal && !self.at(to).alloc.is_allocated() && is_needed()
    }

    /// Plans that binding, if it is needed.
    pub(super) fn share_before(&mut self, id: LinkId) -> Result<(), NoPlan> {
        if self.shares_before(id) { self.allocate(self.routes.link(id).to) } else { Ok(()) }
    }

    /// Plans one hop of a path. The hop must be feasible on the arenas as they will be. Bytes are copied in
    /// pieces of `piece_bytes`.
    pub(super) fn hop(&mut self, id: LinkId, span: Span, piece_bytes: u64) -> Result<(), NoPlan> {
        let link = *self.routes.link(id);
        let writes = self.writes && link.to == self.to;
        match link.allocation {
            Allocation::Internal => {
                self.allocate_own(link.to)?;
                self.give_access(link.from, link.source_via, false)?;
                self.give_access(link.to, link.target_via, true)?;
                let Link { from, source_via, target_via, .. } = link;
                let mut start = span.start();
                while start < span.end() {
                    let end = span.end().min(start.saturating_add(piece_bytes));
                    let kind = CopyKind::Bytes { from, link: id, source_via, target_via };
                    self.copy(kind, link.to, Span::new(start, end));
                    start = end;
                }
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

    /// Plans that `arena`, which has no storage, shares the storage of `root`, and that its own device gets
    /// access.
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
        // Present users of the storage get the access that the new rules require before those rules apply. If
        // the plan is given up in between, every user keeps its access (I-6).
        let steps = &mut self.draft.steps;
        let own = |step: &Step| matches!(step, Step::Map { arena: mapped, .. } if *mapped == arena);
        let at = steps[planned..].iter().position(own).map_or(steps.len(), |own| planned + own);
        steps.insert(at, Step::Bind { arena, root, concurrency });
        Ok(())
    }

    /// Plans storage for `arena` if it has none. The storage is its own, unless a binding is needed to
    /// exchange contents with other arenas.
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

    /// Returns the links that `arena` needs for its binding and that could bind it if there were no users,
    /// with their costs.
    fn roots_for(&self, arena: ArenaId) -> impl Iterator<Item = (Cost, LinkId, Concurrency)> {
        (0..).map(LinkId).zip(self.routes.links()).filter_map(move |(id, link)| {
            let Allocation::Bound(concurrency) = link.allocation else { return None };
            let root = self.at(link.from);
            // A bound arena never becomes a root (I-10).
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

    /// Returns the arenas that needed bindings connect to `arena`, directly or indirectly, including `arena`
    /// itself.
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

    /// Returns how many of `joined` use the storage of `root`, or could still be bound to it.
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

    /// Returns the roots that serve `arena` better than storage of its own would. These are the roots that
    /// already have storage, and those that would join it to more arenas. Allocated roots come first, then
    /// those that join the most arenas, then the cheapest.
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

    /// Returns an arena whose storage `arena` must share, because nothing else joins the two. That storage
    /// exists already.
    pub(super) fn must_share(&self, arena: ArenaId) -> Option<ArenaId> {
        if !self.routes.bound_by_need().contains(arena) {
            return None;
        }
        let mut roots = self.better_roots(arena).into_iter();
        roots.find(|(is_there, ..)| is_there.0).map(|(.., root, _)| root)
    }

    /// Returns the root that `arena` must share storage with, if any: the best one that the present users
    /// permit.
    fn root_for(&self, arena: ArenaId) -> Result<Option<(ArenaId, Concurrency)>, NoPlan> {
        if !self.routes.bound_by_need().contains(arena) {
            return Ok(None);
        }
        let (native, writes) = (self.routes.arena(arena).native, self.writes && arena == self.to);
        let roots = self.better_roots(arena);
        let permitted = |&&(.., root, concurrency): &&Root| {
            let shared = concurrency.min(self.tenancy().concurrency(root));
            let admitted = self.users.admit_binding(self.group(root), shared, (native, writes), self.owner);
            admitted && !self.in_transition(root) && !self.in_transition(arena)
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

    /// Plans the map changes that let `device` work in `arena` beside all other users, or reports why it
    /// cannot.
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
        // The known paths were computed for the arenas before this change.
        self.known.clear();
        &mut self.draft.arenas[usize::from(arena.0)]
    }
}

impl Content {
    /// Returns the reason why a reader cannot get these bytes, regardless of copies.
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
