//! The uses of storage through devices, and what they permit.
//!
//! Storage may be shared by a *group* of arenas: one root and the arenas bound to it. Questions about users
//! therefore concern the whole group, because a map change in one member can cut off a kernel that works
//! through another. Transitions ask about the arenas as they are; the planner asks about the arenas as they
//! will be.

use super::{Alloc, ArenaState, BufferState, CopyKind, MapState, Routes};
use crate::base::id::{ArenaId, ArenaSet, DeviceId, OwnerId};
use crate::memory::desc::{ArenaDesc, Concurrency};
use smallvec::SmallVec;

/// One use of an arena's storage through a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) owner: OwnerId,
    pub(super) arena: ArenaId,
    pub(super) device: DeviceId,
    pub(super) writes: bool,
}

/// The arenas of a buffer, and the rules by which they share storage.
#[derive(Clone, Copy)]
pub(super) struct Tenancy<'a> {
    pub(super) routes: &'a dyn Routes,
    pub(super) arenas: &'a [ArenaState],
}

/// The uses of a buffer. Ranges with the same owner, arena, device and access count as one use. In a large
/// requestor-set, two kernels represent all kernels of one arena and access.
#[derive(Debug)]
pub(super) struct Users(SmallVec<[User; 4]>);

impl BufferState {
    /// Returns the arenas in their present state.
    pub(super) fn tenancy<'a>(&'a self, routes: &'a dyn Routes) -> Tenancy<'a> {
        Tenancy { routes, arenas: &self.arenas }
    }

    /// Returns every use of the buffer: by kernels (in any phase) and by copies (reserved or running).
    pub(super) fn users(&self, routes: &dyn Routes) -> Users {
        let native = |arena: ArenaId| routes.arena(arena).native;
        let mut users = self.requestors.users(native);
        let mut own = users.len();
        for copy in &self.copies {
            let (from, target_via, writes) = match copy.kind {
                CopyKind::Bytes { from, source_via, target_via, .. } => {
                    (Some((from, source_via)), target_via, true)
                }
                // A refresh hands the storage over to the destination's own device.
                CopyKind::Refresh { from } => (Some((from, native(copy.to))), native(copy.to), false),
                CopyKind::Fill => (None, native(copy.to), true),
            };
            let user = |arena, device, writes| User { owner: copy.id.owner, arena, device, writes };
            // The copies of one plan follow each other.
            if users.last().is_some_and(|last| last.owner != copy.id.owner) {
                own = users.len();
            }
            let source = from.map(|(arena, device)| user(arena, device, false));
            for user in source.into_iter().chain([user(copy.to, target_via, writes)]) {
                if !users[own..].contains(&user) {
                    users.push(user);
                }
            }
        }
        Users(users)
    }

    /// Returns the arenas that share storage with `arena`, including `arena` itself.
    #[must_use]
    pub fn group(&self, arena: ArenaId) -> ArenaSet {
        group(&self.arenas, arena)
    }
}

/// Returns the arena whose storage `arena` uses: the root if `arena` is bound, otherwise `arena` itself.
pub(super) fn root(arenas: &[ArenaState], arena: ArenaId) -> ArenaId {
    match arenas[usize::from(arena.0)].alloc {
        Alloc::Bound { root, .. } => root,
        _ => arena,
    }
}

/// Returns the arenas that share storage with `arena`, including `arena` itself.
pub(super) fn group(arenas: &[ArenaState], arena: ArenaId) -> ArenaSet {
    let shared = root(arenas, arena);
    (0..arenas.len() as u8).map(ArenaId).filter(|&other| root(arenas, other) == shared).collect()
}

impl<'a> Tenancy<'a> {
    pub(super) fn group(self, arena: ArenaId) -> ArenaSet {
        group(self.arenas, arena)
    }

    pub(super) fn root(self, arena: ArenaId) -> ArenaId {
        root(self.arenas, arena)
    }

    /// Returns the concurrency of the storage of `arena`'s group: the root's, narrowed by each binding.
    pub(super) fn concurrency(self, arena: ArenaId) -> Concurrency {
        let shared = self.root(arena);
        self.arenas
            .iter()
            .filter_map(|state| match state.alloc {
                Alloc::Bound { root, concurrency } if root == shared => Some(concurrency),
                _ => None,
            })
            .fold(self.routes.arena(shared).concurrency, Ord::min)
    }

    /// Returns the arenas that hold the bytes of `arena` without a refresh: `arena`, and its group if that is
    /// coherent.
    pub(super) fn mirrors(self, arena: ArenaId) -> ArenaSet {
        let group = self.group(arena);
        if group.len() > 1 && self.concurrency(arena) == Concurrency::BimapFull {
            group.iter().filter(|&member| !self.arenas[usize::from(member.0)].is_lost()).collect()
        } else {
            ArenaSet::of(arena)
        }
    }
}

impl Users {
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &User> {
        self.0.iter()
    }

    /// Returns the uses of a group's storage by other owners than `owner`.
    pub(super) fn others(&self, group: ArenaSet, owner: OwnerId) -> impl Iterator<Item = &User> {
        self.0.iter().filter(move |user| user.owner != owner && group.contains(user.arena))
    }

    /// Returns whether a use by `device` is compatible with all uses of the group's storage by other owners,
    /// under the given concurrency.
    pub(super) fn coexists(
        &self,
        group: ArenaSet,
        concurrency: Concurrency,
        device: DeviceId,
        writes: bool,
        owner: OwnerId,
    ) -> bool {
        self.others(group, owner).filter(|user| user.device != device).all(|user| match concurrency {
            Concurrency::Exclusive => false,
            Concurrency::BimapRead => !writes && !user.writes,
            Concurrency::BimapFull => true,
        })
    }

    /// Returns whether an arena can be bound to the group's storage under the given concurrency, for a use by
    /// its `device`. The binding may narrow the rules of the group. So all uses by other owners must be
    /// compatible with each other as well. This includes the uses of one plan, because its map changes were
    /// planned under the earlier rules.
    pub(super) fn admit_binding(
        &self,
        group: ArenaSet,
        concurrency: Concurrency,
        (device, writes): (DeviceId, bool),
        owner: OwnerId,
    ) -> bool {
        let is_one_device = || self.others(group, owner).all(|user| user.device == device);
        let nobody_writes = || !writes && self.others(group, owner).all(|user| !user.writes);
        match concurrency {
            Concurrency::Exclusive => is_one_device(),
            Concurrency::BimapRead => is_one_device() || nobody_writes(),
            Concurrency::BimapFull => true,
        }
    }

    /// Returns whether a change from map state `now` to `target` keeps the access of every device that other
    /// owners use in the group. Users of `owner` are exempt, because their plan changes map states only
    /// between its own copies. This is a second line of defence: the callers have already checked that all
    /// users can coexist.
    pub(super) fn map_ok(
        &self,
        (desc, group): (&ArenaDesc, ArenaSet),
        now: MapState,
        target: MapState,
        owner: OwnerId,
    ) -> bool {
        now == target
            || self
                .others(group, owner)
                .all(|user| !now.gives(desc, user.device) || target.gives(desc, user.device))
    }
}
