//! Changes of storage: bindings, frees, arenas that will not be used, lost devices, and the end of the
//! buffer.

use super::plan::Planner;
use super::{
    Admission, Alloc, ArenaState, Begin, BufferState, Content, Lifecycle, Loss, MapState, Phase, Purpose,
    Refusal, Remains, Requestor, Routes, Status, Step, SyncPlan,
};
use super::{AttachRefusal, BindRefusal, FreeRefusal};
use crate::base::access::{Access, Claim, Claims};
use crate::base::cost::Cost;
use crate::base::id::{ArenaId, ArenaSet, DeviceId, OwnerId, Seq};
use crate::base::range::Span;
use crate::memory::desc::Concurrency;

/// What the application's storage brings to an existing buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Brings {
    /// Its contents, which become those of the buffer.
    Contents,
    /// Only room: the contents of the buffer stay as they are.
    Room,
}

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
            // The group is coherent, so the arena is valid wherever its root is, as long as the binding
            // lasts.
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
        self.arena_mut(arena).is_retired = false;
        let steps = vec![Step::Bind { arena, root, concurrency }];
        let purpose = Purpose::Binding;
        let plan = SyncPlan { owner, purpose, arena, steps, cost: Cost::ZERO };
        self.reserve(&plan);
        Ok(plan)
    }

    /// Gives `arena`, which has no storage, storage of the application. Returns the commit of its contents,
    /// if they become those of the buffer.
    ///
    /// # Errors
    /// [`AttachRefusal`]; nothing changed then.
    pub fn attach(
        &mut self,
        routes: &dyn Routes,
        arena: ArenaId,
        brings: Brings,
    ) -> Result<Option<Seq>, AttachRefusal> {
        let state = self.arena(arena);
        if self.lifecycle != Lifecycle::Open || state.is_lost() {
            return Err(AttachRefusal::NotOpen);
        }
        if state.alloc.is_allocated() {
            return Err(AttachRefusal::AlreadyAllocated);
        }
        if state.transition.is_some() {
            return Err(AttachRefusal::InTransition);
        }
        if let Some(root) = Planner::new(self, routes, OwnerId(0), arena, false).must_share(arena) {
            return Err(AttachRefusal::MustShare { root });
        }
        let claim = Claim { span: Span::new(0, self.len()), access: Access::WriteInvalidate };
        let claims = Claims::new([claim]);
        if brings == Brings::Contents {
            if self.conflicts(&claims, None).is_err() {
                return Err(AttachRefusal::InUse);
            }
            if !self.queue.is_empty() {
                return Err(AttachRefusal::Queue);
            }
        }
        let state = self.arena_mut(arena);
        (state.alloc, state.is_retired) = (Alloc::External, false);
        let commits = brings == Brings::Contents && !claims.is_empty();
        let commit = commits.then(|| self.commit(routes, arena, &claims));
        self.settle(routes);
        Ok(commit)
    }

    /// Removes the storage of `arena`. The caller returns it to the memory it came from.
    ///
    /// # Errors
    /// [`FreeRefusal`]; nothing changed then.
    pub fn free(&mut self, routes: &dyn Routes, arena: ArenaId) -> Result<(), FreeRefusal> {
        self.may_free(arena)?;
        self.drop_storage(routes, arena);
        self.settle(routes);
        Ok(())
    }

    /// Checks whether the storage of `arena` can be freed now.
    fn may_free(&self, arena: ArenaId) -> Result<(), FreeRefusal> {
        if self.is_wanted(arena) {
            return Err(FreeRefusal::InUse);
        }
        // The group may have other rules without this member, so no plan made under the present rules may be
        // pending.
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
        Ok(())
    }

    /// Removes storage that may be freed.
    fn drop_storage(&mut self, routes: &dyn Routes, arena: ArenaId) {
        let group = self.group(arena).without(arena);
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
    }

    /// Records that no kernel will use `arena` until it is requested there again. Its storage is freed as
    /// soon as it has no users and its contents are valid elsewhere, which may be at once (I-28).
    ///
    /// Contents that are valid nowhere else are brought to `home`, and the result is that of the prefetch.
    /// [`Begin::Granted`] means that there are no such contents. [`Begin::Busy`] means that they cannot be
    /// brought now, and stay until they are valid elsewhere.
    ///
    /// # Errors
    /// [`FreeRefusal::External`], because such storage is never freed. It and [`Begin::Refused`] change
    /// nothing.
    pub fn will_not_use(
        &mut self,
        routes: &dyn Routes,
        owner: OwnerId,
        arena: ArenaId,
        home: Option<ArenaId>,
    ) -> Result<Begin, FreeRefusal> {
        if let Err(refused) = self.is_open() {
            return Ok(refused);
        }
        if self.arena(arena).alloc == Alloc::External {
            return Err(FreeRefusal::External);
        }
        let before = std::mem::replace(&mut self.arena_mut(arena).is_retired, true);
        self.settle(routes);
        let nothing = Ok(Begin::Granted(self.commit_seq));
        let Some(home) = home.filter(|&home| home != arena) else { return nothing };
        let only_here = self
            .segments
            .iter()
            .filter(|(_, content)| content.valid == ArenaSet::of(arena) && content.status == Status::Defined);
        let claims = only_here.map(|(span, _)| Claim { span, access: Access::ReadOnly });
        // Bytes that a kernel is about to overwrite are not worth a copy.
        let claims = claims.filter(|&claim| self.conflicts(&Claims::new([claim]), None).is_ok());
        let claims = Claims::new(claims);
        if claims.is_empty() {
            return nothing;
        }
        let begin = self.fetch(routes, owner, home, &claims);
        if let Begin::Refused(_) = begin {
            self.arena_mut(arena).is_retired = before;
        }
        Ok(begin)
    }

    /// Returns a retired arena whose storage can be freed now.
    pub(super) fn retiring(&self) -> Option<ArenaId> {
        let retired = |id: &ArenaId| self.arena(*id).is_retired && self.arena(*id).alloc.is_allocated();
        self.arena_ids().filter(retired).find(|id| self.may_free(*id).is_ok())
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

    /// Records that a device is lost, with all storage of its native arenas. Returns whether this was new;
    /// otherwise nothing changed.
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

    /// Stops accepting requests, and refuses those that wait. The buffer is closed as soon as it has no
    /// grants and no pending work.
    #[must_use = "refused requests wait for their answers"]
    pub fn close(&mut self, routes: &dyn Routes) -> Vec<Admission> {
        if self.lifecycle == Lifecycle::Open || self.lifecycle == Lifecycle::Wedged {
            self.lifecycle = Lifecycle::Closing;
        }
        let refused = self.refuse_all(Refusal::Closed);
        self.settle(routes);
        refused
    }

    /// Completes what becomes possible when users leave or contents become valid elsewhere. Storage of a lost
    /// root is dropped after its last user. Storage of a retired arena is dropped as soon as it may be freed.
    /// A closing buffer without users becomes closed. The caller frees the storage of every arena that has
    /// none here any more (I-25).
    pub(super) fn settle(&mut self, routes: &dyn Routes) {
        for id in self.arena_ids() {
            if self.arena(id).loss == Loss::Storage && !self.is_wanted(id) {
                *self.arena_mut(id) = ArenaState::new(routes.arena(id));
            }
        }
        // A member that leaves may be the last one that kept its root.
        while let Some(arena) = self.retiring() {
            self.drop_storage(routes, arena);
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
