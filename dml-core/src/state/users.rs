//! Who uses which storage through which device, and what that permits.
//!
//! Storage may be shared by a *group* of arenas (one root and those bound to it), so every question about users is
//! asked of the group: a change of map state in one member can cut off a kernel that works through another. The
//! questions are asked of the arenas as they are, by the transitions, and of the arenas as they will be, by the planner.

use super::{Alloc, ArenaState, BufferState, CopyKind, MapState, Routes};
use crate::arena::{ArenaDesc, Concurrency};
use crate::id::{ArenaId, ArenaSet, DeviceId, GrantId};
use smallvec::SmallVec;

/// One use of an arena's storage through a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) owner: GrantId,
    pub(super) arena: ArenaId,
    pub(super) device: DeviceId,
    pub(super) writes: bool,
}

/// Which arenas share storage, and by which rules.
#[derive(Clone, Copy)]
pub(super) struct Tenancy<'a> {
    pub(super) routes: &'a dyn Routes,
    pub(super) arenas: &'a [ArenaState],
}

/// Those who use a buffer: one for each storage, device and kernel or plan, however many ranges it has.
#[derive(Debug)]
pub(super) struct Users(SmallVec<[User; 4]>);

impl BufferState {
    /// The arenas as they are.
    pub(super) fn tenancy<'a>(&'a self, routes: &'a dyn Routes) -> Tenancy<'a> {
        Tenancy { routes, arenas: &self.arenas }
    }

    /// Every use of the buffer: by kernels (in any phase) and by copies (reserved or running).
    pub(super) fn users(&self, routes: &dyn Routes) -> Users {
        let native = |arena: ArenaId| routes.arena(arena).native;
        let kernels = self.requestors.iter().filter(|entry| !entry.claims.is_empty());
        let mut users: SmallVec<[User; 4]> = kernels
            .map(|entry| {
                let (owner, arena, writes) = (entry.grant, entry.arena, entry.writes());
                User { owner, arena, device: native(arena), writes }
            })
            .collect();
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

    /// The arenas that share storage with `arena`, itself included.
    #[must_use]
    pub fn group(&self, arena: ArenaId) -> ArenaSet {
        group(&self.arenas, arena)
    }
}

/// The arena whose storage `arena` uses: itself unless bound.
pub(super) fn root(arenas: &[ArenaState], arena: ArenaId) -> ArenaId {
    match arenas[usize::from(arena.0)].alloc {
        Alloc::Bound { root, .. } => root,
        _ => arena,
    }
}

/// The arenas that share storage with `arena`, itself included.
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

    /// Who may use the storage of `arena`'s group at the same time: what the root allows, narrowed by each binding.
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

    /// The arenas whose bytes are those of `arena` without any refresh: itself, and its group where coherent.
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

    /// Uses of the storage of a group by others than `owner`.
    pub(super) fn others(&self, group: ArenaSet, owner: GrantId) -> impl Iterator<Item = &User> {
        self.0.iter().filter(move |user| user.owner != owner && group.contains(user.arena))
    }

    /// Whether a use by `device` could go on beside everything others do with the storage of a group, were its
    /// concurrency this.
    pub(super) fn coexists(
        &self,
        group: ArenaSet,
        concurrency: Concurrency,
        device: DeviceId,
        writes: bool,
        owner: GrantId,
    ) -> bool {
        self.others(group, owner).filter(|user| user.device != device).all(|user| match concurrency {
            Concurrency::Exclusive => false,
            Concurrency::BimapRead => !writes && !user.writes,
            Concurrency::BimapFull => true,
        })
    }

    /// Whether taking an arena of a group from map state `now` to `target` leaves access to every device with users in the
    /// group, those of `owner` excepted: it changes map states only between its own copies. A second line of defence:
    /// whoever asks has made room for everyone already.
    pub(super) fn map_ok(
        &self,
        (desc, group): (&ArenaDesc, ArenaSet),
        now: MapState,
        target: MapState,
        owner: GrantId,
    ) -> bool {
        now == target
            || self
                .others(group, owner)
                .all(|user| !now.gives(desc, user.device) || target.gives(desc, user.device))
    }
}
