//! Changes of storage: bindings, frees, lost devices, and the end of the buffer.

use super::{
    Admission, Alloc, ArenaState, BufferState, Content, Lifecycle, Loss, MapState, Phase, Purpose, Refusal,
    Remains, Requestor, Routes, Status, Step, SyncPlan,
};
use super::{BindRefusal, FreeRefusal};
use crate::base::cost::Cost;
use crate::base::id::{ArenaId, ArenaSet, DeviceId, OwnerId};
use crate::base::range::Span;
use crate::memory::desc::Concurrency;

impl BufferState {
    /// Records that a step bound `arena` to the storage of `root`.
    pub(super) fn bound(
        &mut self,
        routes: &dyn Routes,
        arena: ArenaId,
        root: ArenaId,
        concurrency: Concurrency,
    ) {
        self.arena_mut(arena).alloc = Alloc::Bound { root, concurrency };
        if self.arena(root).is_lost() {
            let loss = &mut self.arena_mut(arena).loss;
            *loss = (*loss).max(Loss::Storage);
        } else if self.tenancy(routes).mirrors(root).contains(arena) {
            // The group is coherent, so the arena is valid wherever its root is, as long as the binding lasts.
            self.update_all(|content| match content.valid.contains(root) {
                true => Content { valid: content.valid.with(arena), ..content },
                false => content,
            });
        }
        self.unmark(arena);
        self.unmark(root);
        self.settle(routes);
    }

    /// Starts to bind `arena` to the storage of `root`. The plan consists of that one step.
    ///
    /// # Errors
    /// [`BindRefusal`]; nothing changed then.
    pub fn bind(
        &mut self,
        owner: OwnerId,
        arena: ArenaId,
        root: ArenaId,
        concurrency: Concurrency,
    ) -> Result<SyncPlan, BindRefusal> {
        let (member, host) = (self.arena(arena), self.arena(root));
        if self.lifecycle != Lifecycle::Open || member.is_lost() || host.is_lost() {
            return Err(BindRefusal::NotOpen);
        }
        if member.alloc.is_allocated() {
            return Err(BindRefusal::AlreadyAllocated);
        }
        if !matches!(host.alloc, Alloc::Internal | Alloc::External) {
            return Err(BindRefusal::RootNotAllocated);
        }
        if member.transition.is_some() || host.transition.is_some() {
            return Err(BindRefusal::InTransition);
        }
        // The binding may narrow the concurrency, so the storage must have no users.
        let in_use = |member| self.arena(member).users() > 0 || self.is_requested(member);
        if self.group(root).iter().any(in_use) {
            return Err(BindRefusal::InUse);
        }
        let steps = vec![Step::Bind { arena, root, concurrency }];
        let purpose = Purpose::Binding;
        let plan = SyncPlan { owner, purpose, arena, steps, cost: Cost::ZERO };
        self.reserve(&plan);
        Ok(plan)
    }

    /// Removes the storage of `arena`. The caller returns it to the memory it came from.
    ///
    /// # Errors
    /// [`FreeRefusal`]; nothing changed then.
    pub fn free(&mut self, routes: &dyn Routes, arena: ArenaId) -> Result<(), FreeRefusal> {
        if self.is_wanted(arena) {
            return Err(FreeRefusal::InUse);
        }
        // The group may have other rules without this member, so no plan made under the present rules may be pending.
        let group = self.group(arena).without(arena);
        let planned = |member| self.arena(member).transition.is_some() || self.arena(member).copy_refs > 0;
        let awaited = |entry: &Requestor| entry.phase == Phase::Preparing && group.contains(entry.arena);
        if group.iter().any(planned) || self.requestors.iter().any(awaited) {
            return Err(FreeRefusal::InUse);
        }
        if self.arena(arena).alloc == Alloc::External {
            return Err(FreeRefusal::External);
        }
        let bound_to_it =
            |other: ArenaId| matches!(self.arena(other).alloc, Alloc::Bound { root, .. } if root == arena);
        if self.arena_ids().any(bound_to_it) {
            return Err(FreeRefusal::StillBound);
        }
        let holds_last = |(_, content): (Span, Content)| {
            content.valid == ArenaSet::of(arena)
                && matches!(content.status, Status::Defined | Status::Poisoned(Remains::Committed))
        };
        if self.segments.iter().any(holds_last) {
            return Err(FreeRefusal::WouldLoseData);
        }
        self.update_all(|content| Content { valid: content.valid.without(arena), ..content });
        let state = self.arena_mut(arena);
        state.alloc = Alloc::Unallocated;
        state.map = MapState::initial(routes.arena(arena));
        // The remaining group may have become coherent. Then all of its arenas are valid where one is.
        if let Some(mirrors) = group.iter().next().map(|member| self.tenancy(routes).mirrors(member)) {
            self.update_all(|content| match content.valid.intersection(mirrors).is_empty() {
                true => content,
                false => Content { valid: content.valid.union(mirrors), ..content },
            });
        }
        Ok(())
    }

    /// Returns whether a kernel or a copy uses the arena, or a plan will.
    pub(super) fn is_wanted(&self, arena: ArenaId) -> bool {
        let state = self.arena(arena);
        state.users() > 0 || state.transition.is_some() || self.is_requested(arena)
    }

    /// Returns whether a kernel uses the arena, or will use it after its plan has been carried out.
    pub(super) fn is_requested(&self, arena: ArenaId) -> bool {
        self.requestors.arenas().contains(arena)
    }

    /// Records that a device is lost, with all storage of its native arenas. Returns whether this was new; otherwise
    /// nothing changed.
    pub fn device_lost(&mut self, routes: &dyn Routes, device: DeviceId) -> bool {
        let native = |arena: &ArenaId| routes.arena(*arena).native == device;
        if self.arena_ids().filter(native).all(|arena| self.arena(arena).loss == Loss::Device) {
            return false;
        }
        let mut gone = ArenaSet::EMPTY;
        for arena in self.arena_ids().filter(|&arena| routes.arena(arena).native == device) {
            let owns_storage = !matches!(self.arena(arena).alloc, Alloc::Bound { .. });
            if owns_storage {
                for member in self.group(arena).without(arena).iter() {
                    let loss = &mut self.arena_mut(member).loss;
                    *loss = (*loss).max(Loss::Storage);
                    gone = gone.with(member);
                }
            }
            self.arena_mut(arena).loss = Loss::Device;
            gone = gone.with(arena);
        }
        self.update_all(|content| {
            let valid = content.valid.minus(gone);
            let status = match content.status {
                Status::Defined | Status::Poisoned(Remains::Committed) if valid.is_empty() => {
                    Status::Poisoned(Remains::Lost)
                }
                status => status,
            };
            Content { valid, status }
        });
        self.settle(routes);
        true
    }

    /// Stops accepting requests, and refuses those that wait. The buffer is closed as soon as it has no grants and no
    /// pending work.
    #[must_use = "those refused wait to be told"]
    pub fn close(&mut self, routes: &dyn Routes) -> Vec<Admission> {
        if self.lifecycle == Lifecycle::Open || self.lifecycle == Lifecycle::Wedged {
            self.lifecycle = Lifecycle::Closing;
        }
        let refused = self.refuse_all(Refusal::Closed);
        self.settle(routes);
        refused
    }

    /// Completes what becomes possible when users leave. Storage of a lost root is dropped after its last user, and a
    /// closing buffer without users becomes closed. The caller frees the storage of every arena that has none here any
    /// more (I-25).
    pub(super) fn settle(&mut self, routes: &dyn Routes) {
        for id in self.arena_ids() {
            if self.arena(id).loss == Loss::Storage && !self.is_wanted(id) {
                *self.arena_mut(id) = ArenaState::new(routes.arena(id));
            }
        }
        if self.lifecycle == Lifecycle::Closing && self.is_idle() {
            self.lifecycle = Lifecycle::Closed;
            self.update_all(|_| Content { valid: ArenaSet::EMPTY, status: Status::Undefined });
            for arena in &mut self.arenas {
                arena.alloc = Alloc::Unallocated;
            }
        }
    }

    pub(super) fn update_all(&mut self, change: impl FnMut(Content) -> Content) {
        self.segments.update(Span::new(0, self.segments.len()), change);
    }
}

#[cfg(test)]
mod tests;
