//! The machine's record of one arena of one buffer: storage, map state, users.
//!
//! ```text
//!  Unallocated ──alloc──▶ Internal ─┐            Unmapped ◀──unmap── Mapped{devices}     (exclusive)
//!       │  ──attach─────▶ External ─┤── free ─▶
//!       └──── bind ─────▶ Bound{root}            Unmapped ◀────────▶ Bimapped{devices}   (readers together)
//! ```
//! Invariants: I-8 (counts), I-10 (groups), I-19 (map state well-formed).

use crate::base::id::{ArenaId, OwnerId};
use crate::memory::desc::{ArenaDesc, Concurrency};
use crate::memory::map_state::MapState;

/// Where an arena's storage for one buffer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Alloc {
    /// The arena has no storage.
    #[default]
    Unallocated,
    /// The arena allocated it.
    Internal,
    /// The application moved its own storage into the buffer.
    External,
    /// The arena uses the storage of another arena.
    Bound {
        /// The arena that allocated it; never itself bound (I-10).
        root: ArenaId,
        /// The concurrency that this binding permits for the shared storage.
        concurrency: Concurrency,
    },
}

impl Alloc {
    /// Returns whether the arena has storage.
    #[must_use]
    pub const fn is_allocated(self) -> bool {
        !matches!(self, Self::Unallocated)
    }
}

/// A change of storage or map state that one plan has reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transition {
    /// The grant or prefetch whose plan makes the change.
    pub owner: OwnerId,
    /// The number of remaining steps of the plan that change this arena.
    pub steps: u32,
    /// Whether one of these steps binds another arena to the storage. Until it is done, the final concurrency
    /// of the storage is unknown.
    pub binds: bool,
}

/// The part of an arena that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// Nothing is lost.
    None,
    /// The storage is lost, because it belonged to a root whose device is lost. After its last user has left,
    /// the arena can get storage again.
    Storage,
    /// The native device is lost. The arena can never hold valid bytes again.
    Device,
}

/// One arena of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArenaState {
    /// Where the storage comes from.
    pub alloc: Alloc,
    /// The devices that have access to the storage.
    pub map: MapState,
    /// The number of grants of the native device's kernels (the paper's ref-count).
    pub native_refs: u32,
    /// The number of reserved or running copies that have this arena as an end.
    pub copy_refs: u32,
    /// The pending change of storage or map state, if a plan has reserved one.
    pub transition: Option<Transition>,
    /// The part of the arena that is lost.
    pub loss: Loss,
    /// Whether the application will not use the arena any more. Its storage is then freed as soon as that is
    /// possible (I-28). The next request for the arena clears this flag.
    pub is_retired: bool,
}

impl ArenaState {
    /// Creates the state of an arena without storage.
    #[must_use]
    pub fn new(desc: &ArenaDesc) -> Self {
        Self {
            alloc: Alloc::Unallocated,
            map: MapState::initial(desc),
            native_refs: 0,
            copy_refs: 0,
            transition: None,
            loss: Loss::None,
            is_retired: false,
        }
    }

    /// Returns whether the storage or the device is lost, so that nothing here is valid.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss != Loss::None
    }

    /// Returns the number of kernels and copies that use the arena.
    #[must_use]
    pub fn users(&self) -> u64 {
        u64::from(self.native_refs) + u64::from(self.copy_refs)
    }
}
