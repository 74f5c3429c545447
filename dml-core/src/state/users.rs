//! Who uses which storage through which device, and what that permits.
//!
//! Storage may be shared by a *group* of arenas (one root and those bound to it), so every question about users is
//! asked of the group: a change of map state in one member can cut off a kernel that works through another.

use super::{Alloc, BufferState, CopyKind, MapState, Routes};
use crate::arena::Concurrency;
use crate::id::{ArenaId, ArenaSet, DeviceId, GrantId};

/// One use of an arena's storage through a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub(super) owner: GrantId,
    pub(super) arena: ArenaId,
    pub(super) device: DeviceId,
    pub(super) writes: bool,
}

impl BufferState {
    /// The arena whose storage `arena` uses: itself unless bound.
    pub(super) fn root(&self, arena: ArenaId) -> ArenaId {
        match self.arena(arena).alloc {
            Alloc::Bound { root, .. } => root,
            _ => arena,
        }
    }

    /// The arenas that share storage with `arena`, itself included.
    #[must_use]
    pub fn group(&self, arena: ArenaId) -> ArenaSet {
        let root = self.root(arena);
        self.arena_ids().filter(|&other| self.root(other) == root).collect()
    }

    /// Who may use the storage of `arena`'s group at the same time: what the root allows, narrowed by each binding.
    pub(super) fn group_concurrency(&self, routes: &dyn Routes, arena: ArenaId) -> Concurrency {
        let root = self.root(arena);
        self.arenas
            .iter()
            .filter_map(|state| match state.alloc {
                Alloc::Bound { root: bound_to, concurrency } if bound_to == root => Some(concurrency),
                _ => None,
            })
            .fold(routes.arena(root).concurrency, Ord::min)
    }

    /// The arenas whose bytes are those of `arena` without any refresh: itself, and its group where coherent.
    pub(super) fn mirrors(&self, routes: &dyn Routes, arena: ArenaId) -> ArenaSet {
        let group = self.group(arena);
        if group.len() > 1 && self.group_concurrency(routes, arena) == Concurrency::BimapFull {
            group
        } else {
            ArenaSet::of(arena)
        }
    }

    /// Every use of the buffer: by kernels (in any phase) and by copies (reserved or running).
    pub(super) fn users<'a>(&'a self, routes: &'a dyn Routes) -> impl Iterator<Item = User> + 'a {
        let kernels = self.requestors.iter().flat_map(move |entry| {
            entry.claims.iter().map(move |claim| User {
                owner: entry.grant,
                arena: entry.arena,
                device: routes.arena(entry.arena).native,
                writes: claim.access.writes(),
            })
        });
        let copies = self.copies.iter().flat_map(move |copy| {
            let native = |arena: ArenaId| routes.arena(arena).native;
            let (from, target_via) = match copy.kind {
                CopyKind::Bytes { from, source_via, target_via, .. } => {
                    (Some((from, source_via)), target_via)
                }
                // A refresh hands the storage over to the destination's own device.
                CopyKind::Refresh { from } => (Some((from, native(copy.to))), native(copy.to)),
                CopyKind::Fill => (None, native(copy.to)),
            };
            let user = |arena, device, writes| User { owner: copy.id.owner, arena, device, writes };
            from.map(|(arena, device)| user(arena, device, false)).into_iter().chain([user(
                copy.to,
                target_via,
                !matches!(copy.kind, CopyKind::Refresh { .. }),
            )])
        });
        kernels.chain(copies)
    }

    /// Whether a use by `device` could go on beside everything others do with the storage of `arena`'s group.
    pub(super) fn coexists(
        &self,
        routes: &dyn Routes,
        arena: ArenaId,
        device: DeviceId,
        writes: bool,
        owner: GrantId,
    ) -> bool {
        if self.requestors.is_empty() && self.copies.is_empty() {
            return true;
        }
        let concurrency = self.group_concurrency(routes, arena);
        self.coexists_under(routes, arena, concurrency, device, writes, owner)
    }

    /// As [`coexists`](Self::coexists), under a concurrency that the group does not have yet.
    pub(super) fn coexists_under(
        &self,
        routes: &dyn Routes,
        arena: ArenaId,
        concurrency: Concurrency,
        device: DeviceId,
        writes: bool,
        owner: GrantId,
    ) -> bool {
        let group = self.group(arena);
        self.users(routes)
            .filter(|user| user.owner != owner && group.contains(user.arena) && user.device != device)
            .all(|user| match concurrency {
                Concurrency::Exclusive => false,
                Concurrency::BimapRead => !writes && !user.writes,
                Concurrency::BimapFull => true,
            })
    }

    /// Whether taking `arena` from map state `now` to `target` leaves access to every device with users in its group,
    /// those of `owner` excepted: it changes map states only between its own copies.
    pub(super) fn map_ok(
        &self,
        routes: &dyn Routes,
        arena: ArenaId,
        now: MapState,
        target: MapState,
        owner: Option<GrantId>,
    ) -> bool {
        if now == target || (self.requestors.is_empty() && self.copies.is_empty()) {
            return true;
        }
        let desc = routes.arena(arena);
        let group = self.group(arena);
        self.users(routes)
            .filter(|user| Some(user.owner) != owner && group.contains(user.arena))
            .all(|user| !now.gives(desc, user.device) || target.gives(desc, user.device))
    }
}
