//! The storages of a buffer, and their life cycle.
//!
//! 1. An arena makes a block: [`Run::allocate`](super::engine::Run), or [`Run::bind`](super::engine::Run)
//!    over the block of another arena ([`Locked::backing`]). An application's storage is made a block before
//!    the buffer exists ([`RawBuffer::with_storage`](crate::RawBuffer)), or before it is attached to one
//!    (`request/external.rs`).
//! 2. [`Locked::put`] stores it, in the same critical section in which the step is reported to the machine.
//! 3. Grants lease its memory ([`Locked::hand_out`], [`Locked::take_back`]) and copies borrow it
//!    ([`Locked::end_via`]). A map
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
use crate::base::sync::Arc;
use crate::buffer::lock::BufferInner;
use crate::buffer::locked::Locked;
use crate::memory::block::BlockRef;
use crate::memory::error::Breach;
use crate::memory::host::Owner;
use crate::memory::host::{HostMemory, Shared, Stored};
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
    /// The block and its memory, as grants are handed them.
    stored: Handout,
    /// What an ended grant gave back, for the next one, which then changes no reference count.
    spare: Option<Handout>,
    /// The memory of the present mapping, if there is one.
    mapping: Option<Box<Mapping>>,
    order: FreeOrder,
}

/// The memory of a mapping.
#[derive(Debug, Default)]
struct Mapping {
    /// The memory while the block is mapped for the host.
    mapped: Option<HostMemory>,
    /// The memory while the arena has it back for a map change, if the host keeps its access.
    shown: Option<Shared>,
}

impl ArenaStorage {
    /// Makes the value of a block with its host memory, if it is host memory.
    pub(crate) fn new(block: BlockRef, host: Option<HostMemory>, order: FreeOrder) -> Self {
        let host = host.map(HostMemory::into_shared);
        Self { stored: Arc::new(Stored { block, host }), spare: None, mapping: None, order }
    }

    /// Makes the value of a block over the storage of another arena, whose host memory it may have.
    pub(crate) fn member(block: BlockRef, host: Option<Shared>) -> Self {
        let stored = Arc::new(Stored { block, host });
        Self { stored, spare: None, mapping: None, order: FreeOrder::Member }
    }

    /// Keeps the block alive for ever, because an arena may still touch its memory.
    pub(crate) fn keep_for_ever(&self) {
        std::mem::forget(self.stored.block.clone());
    }

    /// Returns the block as memory of its own device, if that device is the host.
    pub(crate) fn native_host(&self) -> Option<Shared> {
        self.stored.host.clone()
    }

    /// Returns the block as the host sees it now.
    pub(crate) fn host_view(&self) -> Option<Shared> {
        let mapping = self.mapping.as_ref();
        let mapped = mapping.and_then(|mapping| mapping.mapped.as_ref().map(HostMemory::share));
        let shown = || mapping.and_then(|mapping| mapping.shown.clone());
        mapped.or_else(shown).or_else(|| self.native_host())
    }
}

/// The storage that a grant hands out.
pub(crate) type Handout = Arc<Stored>;

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
    #[inline(always)]
    pub(crate) fn hand_out(&mut self, arena: ArenaId) -> Option<Handout> {
        let storage = self.storage(arena)?;
        match storage.spare.take() {
            Some(spare) => Some(spare),
            None => Some(storage.stored.clone()),
        }
    }

    /// Takes back what a grant was handed. Returns it if the storage is not there any more. It is then
    /// dropped without the lock.
    #[inline(always)]
    pub(super) fn take_back(&mut self, arena: ArenaId, handout: Handout) -> Option<Handout> {
        match self.storage(arena) {
            Some(storage) if Arc::ptr_eq(&storage.stored, &handout) => {
                // Otherwise this is not the last reference, so its drop runs no foreign code.
                let _ = storage.spare.get_or_insert(handout);
                None
            }
            _ => Some(handout),
        }
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
        self.rare().to_free.extend(unused);
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
        (Backing::root(&storage.stored.block, len, host.as_ref()), host)
    }

    /// Returns the storage of an arena that a plan uses, as the host sees it through a mapping if
    /// `is_mapped`. Otherwise the result holds no memory of the mapping, so the mapping may end meanwhile.
    pub(super) fn end_via(&mut self, arena: ArenaId, is_mapped: bool) -> CopyEnd {
        let storage = self.storage(arena).expect("a plan uses only arenas with storage (I-5)");
        let host = if is_mapped { storage.host_view() } else { storage.native_host() };
        CopyEnd { block: storage.stored.block.clone(), host }
    }

    /// Returns an arena's block and the memory of its mapping, which the arena may need back. If the host
    /// keeps its access, running copies still see that memory.
    pub(super) fn lend_mapping(
        &mut self,
        arena: ArenaId,
        host_stays: bool,
    ) -> (BlockRef, Option<HostMemory>) {
        self.map_changes = self.map_changes.wrapping_add(1);
        let storage = self.storage(arena).expect("a plan uses only arenas with storage (I-5)");
        let mapped = storage.mapping.take().and_then(|mapping| mapping.mapped);
        let shown = mapped.as_ref().filter(|_| host_stays).map(HostMemory::share);
        storage.mapping = shown.map(|shown| Box::new(Mapping { mapped: None, shown: Some(shown) }));
        (storage.stored.block.clone(), mapped)
    }

    /// Stores the memory of a mapping. Returns memory that is not needed any more, to be dropped without the
    /// lock.
    pub(super) fn take_mapping(
        &mut self,
        arena: ArenaId,
        host: Option<HostMemory>,
    ) -> (Option<HostMemory>, Option<Owner>) {
        self.map_changes = self.map_changes.wrapping_add(1);
        match self.storage(arena) {
            // Core's own share ends here, because the next map change may start as soon as the lock is free.
            Some(storage) => {
                let new = host.map(|host| Box::new(Mapping { mapped: Some(host), shown: None }));
                let before = std::mem::replace(&mut storage.mapping, new).map(|mapping| *mapping);
                let Mapping { mapped, shown } = before.unwrap_or_default();
                (mapped, shown.map(|shown| shown.owner()))
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
        map_changes: u32,
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
    pub(crate) fn map_changes(&self) -> u32 {
        self.read(|locked| locked.map_changes)
    }

    /// Asks an arena for the map state of a block after a transfer, and wedges the buffer if the transfer
    /// changed it.
    ///
    /// # Errors
    /// The broken rule.
    pub(crate) fn check_map(&self, arena: ArenaId, block: &BlockRef, map_changes: u32) -> Result<(), Breach> {
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
            let storages = Locked::in_order(std::mem::take(&mut locked.rare().to_free));
            if storages.is_empty() {
                locked.tidy();
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
        let ArenaStorage { stored, spare, mapping, order } = storage;
        if let (FreeOrder::External, Some(host)) = (order, &stored.host) {
            // The application may use its bytes freely from now on.
            host.span().note_write();
        }
        // The memory goes first, because dropping a block may end its mapping.
        let block = stored.block.clone();
        [Some(stored), spare].into_iter().for_each(quietly);
        let Mapping { mapped, shown } = mapping.map_or_else(Mapping::default, |mapping| *mapping);
        quietly(mapped);
        quietly(shown);
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
