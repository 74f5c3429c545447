//! The storages of a buffer, and their life cycle.
//!
//! 1. An arena makes a block: [`Run::allocate`](super::engine::Run), or [`Run::bind`](super::engine::Run)
//!    over the block of another arena ([`Locked::backing`]). An application's storage is made a block before
//!    the buffer exists ([`RawBuffer::with_storage`](crate::RawBuffer)), or before it is attached to one
//!    (`request/external.rs`).
//! 2. [`Locked::put`] stores it, in the same critical section in which the step is reported to the machine.
//! 3. Grants lease its memory ([`Locked::to_hand_out`]) and copies borrow it ([`Locked::end_via`]). A map
//!    change takes the memory of a mapping and returns it ([`Locked::lend_mapping`],
//!    [`Locked::take_mapping`]).
//! 4. The machine drops the storage: it was freed explicitly, it was lost and its last user left, or the
//!    buffer closed. After every change of the state [`Locked::drop_unused`] moves such storages to
//!    `to_free`.
//! 5. One thread frees them, in the order of [`FreeOrder`], without the lock: [`BufferInner::free_all`]. It
//!    also frees those that other threads add meanwhile. When a closed buffer has none left, the buffer has
//!    ended.
//! 6. [`BufferInner::free`] drops the memory and gives the block to its arena ([`free`]).
//!
//! A buffer that is dropped goes from step 3 to 6 at once (`Drop for BufferInner`). If an arena kept part of
//! a storage, that storage is never freed ([`ArenaStorage::keep_for_ever`]).

use crate::base::guard::{guard, quietly};
use crate::base::id::{ArenaId, ArenaSet};
use crate::buffer::lock::{BufferInner, Locked};
use crate::memory::block::BlockRef;
use crate::memory::error::Breach;
use crate::memory::host::Owner;
use crate::memory::host::{HostMemory, Shared};
use crate::memory::map_state::MapState;
use crate::memory::request::Backing;
use crate::platform::Platform;
use crate::state::Lifecycle;

/// The position of a storage in the order of freeing (I-10, I-24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FreeOrder {
    /// Freed first: the arena uses the storage of another.
    Member,
    /// Freed next: the arena owns its storage.
    Root,
    /// Freed last: the application owns the storage.
    External,
}

/// The storage of one arena.
#[derive(Debug)]
pub(crate) struct ArenaStorage {
    pub(crate) block: BlockRef,
    /// The block as host memory, if the block is host memory.
    pub(crate) host: Option<HostMemory>,
    /// The root's host memory, for a member that belongs to the same device.
    pub(crate) root_host: Option<Shared>,
    /// The memory of the mapping while the block is mapped for the host.
    pub(crate) mapped: Option<HostMemory>,
    /// The memory of that mapping while the arena has it back for a map change, if the host keeps its access.
    pub(crate) shown: Option<Shared>,
    pub(crate) order: FreeOrder,
}

impl ArenaStorage {
    pub(crate) fn new(block: BlockRef, host: Option<HostMemory>, order: FreeOrder) -> Self {
        Self { block, host, root_host: None, mapped: None, shown: None, order }
    }

    /// Keeps the block alive for ever, because an arena may still touch its memory.
    pub(crate) fn keep_for_ever(&self) {
        std::mem::forget(self.block.clone());
    }

    /// Returns the block as memory of its own device, if that device is the host.
    pub(crate) fn native_host(&self) -> Option<Shared> {
        self.host.as_ref().map(HostMemory::share).or_else(|| self.root_host.clone())
    }

    /// Returns the block as the host sees it now.
    pub(crate) fn host_view(&self) -> Option<Shared> {
        let mapped = self.mapped.as_ref().map(HostMemory::share);
        mapped.or_else(|| self.shown.clone()).or_else(|| self.native_host())
    }
}

/// The storage that a grant hands out.
#[derive(Debug)]
pub(crate) struct Handout {
    pub(crate) block: BlockRef,
    /// The block as host memory, if its own device is the host.
    pub(crate) host: Option<Shared>,
}

/// The part of the buffer's storage that a copy needs, taken under the lock.
pub(super) struct CopyEnd {
    pub(super) block: BlockRef,
    pub(super) host: Option<Shared>,
}

impl Locked {
    pub(crate) fn storage(&mut self, arena: ArenaId) -> Option<&mut ArenaStorage> {
        self.storages.iter_mut().find(|(id, _)| *id == arena).map(|(_, storage)| storage)
    }

    pub(crate) fn put(&mut self, arena: ArenaId, storage: ArenaStorage) {
        self.storages.push((arena, storage));
    }

    /// Returns the part of an arena's storage that a grant hands out.
    pub(crate) fn to_hand_out(&self, arena: ArenaId) -> Option<Handout> {
        let (_, storage) = self.storages.iter().find(|(id, _)| *id == arena)?;
        Some(Handout { block: storage.block.clone(), host: storage.native_host() })
    }

    /// Moves storages that the state has dropped to `to_free`. Returns their arenas.
    pub(super) fn drop_unused(&mut self) -> ArenaSet {
        let state = &self.state;
        let unused = |(id, _): &(ArenaId, ArenaStorage)| !state.arena(*id).alloc.is_allocated();
        if !self.storages.iter().any(unused) {
            return ArenaSet::EMPTY;
        }
        let (unused, used): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.storages).into_iter().partition(unused);
        self.storages = used.into();
        let arenas = unused.iter().map(|(arena, _)| *arena).collect();
        self.to_free.extend(unused);
        arenas
    }

    pub(super) fn in_order(mut storages: Vec<(ArenaId, ArenaStorage)>) -> Vec<(ArenaId, ArenaStorage)> {
        storages.sort_by_key(|(_, storage)| storage.order);
        storages
    }

    /// Returns the storage of an arena as backing for another arena's block, and the root's memory as its own
    /// device sees it.
    pub(super) fn backing(&mut self, root: ArenaId, len: u64) -> (Backing, Option<Shared>) {
        let storage = self.storage(root).expect("a plan uses only arenas with storage (I-5)");
        let host = storage.native_host();
        (Backing::root(&storage.block, len, host.as_ref()), host)
    }

    /// Returns the storage of an arena that a plan uses, as the host sees it through a mapping if
    /// `is_mapped`. Otherwise the result holds no memory of the mapping, so the mapping may end meanwhile.
    pub(super) fn end_via(&mut self, arena: ArenaId, is_mapped: bool) -> CopyEnd {
        let storage = self.storage(arena).expect("a plan uses only arenas with storage (I-5)");
        let host = if is_mapped { storage.host_view() } else { storage.native_host() };
        CopyEnd { block: storage.block.clone(), host }
    }

    /// Returns an arena's block and the memory of its mapping, which the arena may need back. If the host
    /// keeps its access, running copies still see that memory.
    pub(super) fn lend_mapping(
        &mut self,
        arena: ArenaId,
        host_stays: bool,
    ) -> (BlockRef, Option<HostMemory>) {
        self.map_changes += 1;
        let storage = self.storage(arena).expect("a plan uses only arenas with storage (I-5)");
        let mapped = storage.mapped.take();
        storage.shown = mapped.as_ref().filter(|_| host_stays).map(HostMemory::share);
        (storage.block.clone(), mapped)
    }

    /// Stores the memory of a mapping. Returns memory that is not needed any more, to be dropped without the
    /// lock.
    pub(super) fn take_mapping(
        &mut self,
        arena: ArenaId,
        host: Option<HostMemory>,
    ) -> (Option<HostMemory>, Option<Owner>) {
        self.map_changes += 1;
        match self.storage(arena) {
            // Core's own share ends here, because the next map change may start as soon as the lock is free.
            Some(storage) => {
                let shown = storage.shown.take().map(|shown| shown.owner());
                (std::mem::replace(&mut storage.mapped, host), shown)
            }
            None => (host, None),
        }
    }

    /// Returns the map state of an arena, unless a plan is about to change it or the arena has no storage.
    pub(super) fn stable_map(&self, arena: ArenaId) -> Option<MapState> {
        let state = self.state.arena(arena);
        (state.transition.is_none() && state.alloc.is_allocated() && !state.is_lost()).then_some(state.map)
    }

    /// Returns the first arena that reports another map state than the recorded one. Returns `None` if
    /// a map change has started or ended since the count was `map_changes`, because the states are then not
    /// comparable.
    pub(super) fn changed_unasked(
        &self,
        map_changes: u64,
        found: &[(ArenaId, MapState)],
    ) -> Option<(ArenaId, Breach)> {
        let is_telling = self.map_changes == map_changes;
        found.iter().filter(|_| is_telling).find_map(|&(arena, found)| {
            let known = self.stable_map(arena).filter(|known| *known != found)?;
            Some((arena, Breach::MapChanged { known, found }))
        })
    }
}

impl BufferInner {
    /// Returns the number of map changes so far, for [`check_map`](Self::check_map).
    pub(crate) fn map_changes(&self) -> u64 {
        self.read(|locked| locked.map_changes)
    }

    /// Asks an arena for the map state of a block after a transfer, and wedges the buffer if the transfer
    /// changed it.
    ///
    /// # Errors
    /// The broken rule.
    pub(crate) fn check_map(&self, arena: ArenaId, block: &BlockRef, map_changes: u64) -> Result<(), Breach> {
        let Some(found) = map_state(&self.platform, arena, block) else { return Ok(()) };
        let changed = self.change(|locked, _| {
            let changed = locked.changed_unasked(map_changes, &[(arena, found)]);
            if changed.is_some() {
                locked.state.wedge();
            }
            changed
        });
        changed.map_or(Ok(()), |(_, breach)| Err(breach))
    }

    /// Frees blocks until none are left, including those that other threads add meanwhile.
    pub(super) fn free_all(&self) {
        loop {
            let mut locked = self.locked.lock();
            let storages = Locked::in_order(std::mem::take(&mut locked.to_free));
            if storages.is_empty() {
                locked.is_freeing = false;
                locked.is_ended = locked.state.lifecycle() == Lifecycle::Closed;
                drop(locked);
                self.closed.notify_all();
                return;
            }
            drop(locked);
            for (arena, storage) in storages {
                self.free(arena, storage);
            }
        }
    }

    pub(crate) fn free(&self, arena: ArenaId, storage: ArenaStorage) {
        let ArenaStorage { block, host, root_host, mapped, shown, order } = storage;
        if let (FreeOrder::External, Some(host)) = (order, &host) {
            // The application may use its bytes freely from now on.
            host.span().note_write();
        }
        // The memory goes first, because dropping a block may end its mapping.
        [host, mapped].into_iter().for_each(quietly);
        [root_host, shown].into_iter().for_each(quietly);
        free(&self.platform, arena, block);
    }
}

/// Returns the map state that an arena reports for a block; `None` if it reports none.
pub(super) fn map_state(platform: &Platform, arena: ArenaId, block: &BlockRef) -> Option<MapState> {
    guard(|| platform.arena(arena).map_state(block)).unwrap_or_default()
}

/// Gives a block back to its arena. If the arena panics, the block is lost. The buffer continues, and the
/// caller that released the last grant sees no error.
pub(crate) fn free(platform: &Platform, arena: ArenaId, block: BlockRef) {
    let _ = guard(|| platform.arena(arena).free(block));
}
