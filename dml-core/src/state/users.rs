//! Who uses which storage through which device, and what that permits.
//!
//! Storage may be shared by a *group* of arenas (one root and those bound to it), so every question about users is
//! asked of the group: a change of map state in one member can cut off a kernel that works through another. The
//! questions are asked of the arenas as they are, by the transitions, and of the arenas as they will be, by the planner.

use super::{Alloc, ArenaState, BufferState, CopyKind, CopyOp, MapState, Requestor, Routes};
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

/// The arenas, and those who use them.
#[derive(Clone, Copy)]
pub(super) struct Tenancy<'a> {
    pub(super) routes: &'a dyn Routes,
    pub(super) arenas: &'a [ArenaState],
    pub(super) requestors: &'a [Requestor],
    pub(super) copies: &'a [CopyOp],
}

impl BufferState {
    /// The arenas as they are.
    pub(super) fn tenancy<'a>(&'a self, routes: &'a dyn Routes) -> Tenancy<'a> {
        Tenancy { routes, arenas: &self.arenas, requestors: &self.requestors, copies: &self.copies }
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

    /// Every use of the buffer: by kernels (in any phase) and by copies (reserved or running).
    pub(super) fn users(self) -> impl Iterator<Item = User> + 'a {
        let routes = self.routes;
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
            let (from, target_via, writes) = match copy.kind {
                CopyKind::Bytes { from, source_via, target_via, .. } => {
                    (Some((from, source_via)), target_via, true)
                }
                // A refresh hands the storage over to the destination's own device.
                CopyKind::Refresh { from } => (Some((from, native(copy.to))), native(copy.to), false),
                CopyKind::Fill => (None, native(copy.to), true),
            };
            let user = |arena, device, writes| User { owner: copy.id.owner, arena, device, writes };
            let source = from.map(|(arena, device)| user(arena, device, false));
            source.into_iter().chain([user(copy.to, target_via, writes)])
        });
        kernels.chain(copies)
    }

    /// Uses of the storage of `arena`'s group by others than `owner`.
    pub(super) fn others(self, arena: ArenaId, owner: GrantId) -> impl Iterator<Item = User> + 'a {
        let group = self.group(arena);
        self.users().filter(move |user| user.owner != owner && group.contains(user.arena))
    }

    /// Whether a use by `device` could go on beside everything others do with the storage of `arena`'s group, were its
    /// concurrency this.
    pub(super) fn coexists(
        self,
        arena: ArenaId,
        concurrency: Concurrency,
        device: DeviceId,
        writes: bool,
        owner: GrantId,
    ) -> bool {
        if self.requestors.is_empty() && self.copies.is_empty() {
            return true;
        }
        self.others(arena, owner).filter(|user| user.device != device).all(|user| match concurrency {
            Concurrency::Exclusive => false,
            Concurrency::BimapRead => !writes && !user.writes,
            Concurrency::BimapFull => true,
        })
    }

    /// Whether taking `arena` from map state `now` to `target` leaves access to every device with users in its group,
    /// those of `owner` excepted: it changes map states only between its own copies. A second line of defence: whoever asks
    /// has made room for everyone already.
    pub(super) fn map_ok(self, arena: ArenaId, now: MapState, target: MapState, owner: GrantId) -> bool {
        let desc = self.routes.arena(arena);
        now == target
            || self
                .others(arena, owner)
                .all(|user| !now.gives(desc, user.device) || target.gives(desc, user.device))
    }
}
