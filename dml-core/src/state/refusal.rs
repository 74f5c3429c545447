//! Why the machine refuses a request or makes it wait.

use crate::base::id::{ArenaId, DeviceId, KernelId};
use crate::base::range::Span;
use thiserror::Error;

/// Why a request is refused rather than made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The buffer is closed or closing.
    Closed,
    /// An arena broke its contract, so the buffer is wedged.
    Wedged,
    /// The same kernel already holds some of the bytes.
    AlreadyHeld {
        /// The kernel that asked twice.
        kernel: KernelId,
        /// The bytes that the kernel already holds.
        span: Span,
    },
    /// Some of the bytes were never written.
    Uninitialized {
        /// The bytes that were never written.
        span: Span,
    },
    /// A writer of some of the bytes failed.
    Poisoned {
        /// The poisoned bytes.
        span: Span,
        /// Whether the last committed contents can be restored.
        restorable: bool,
    },
    /// No path leads to the arena, even if every user were gone.
    Unreachable {
        /// The arena that was to receive the bytes.
        arena: ArenaId,
        /// The bytes that have no path.
        span: Span,
    },
    /// The count of grants in an arena would overflow.
    TooManyGrants {
        /// The arena with too many grants.
        arena: ArenaId,
    },
    /// The device of an arena is lost.
    DeviceLost {
        /// The arena of the lost device.
        arena: ArenaId,
    },
    /// Bytes that were granted for overwriting cannot be released as clean.
    NotClean,
    /// The last committed contents of some bytes are lost.
    NotRestorable {
        /// The bytes that cannot be restored.
        span: Span,
    },
}

/// An arena reported a map state that breaks its contract. The buffer is then wedged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContractBreach {
    /// The arena that reported the state.
    pub arena: ArenaId,
    /// The device that lacks access, or the device that the malformed state was reported for.
    pub device: DeviceId,
}

/// Why a request cannot be granted now, though it may be granted later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BusyReason {
    /// Another kernel holds some of the bytes with an access that excludes this one.
    Conflict,
    /// A copy of some of the bytes is reserved or running.
    Copying,
    /// The required change of map state would cut off users of the arena, or of an arena on the path to it.
    ArenaInUse,
    /// The arena, or one on the path to it, is about to be allocated, mapped or bound, or its lost storage
    /// still has users.
    InTransition,
    /// An earlier request is waiting, and this one would overtake it.
    Queue,
}

impl std::fmt::Display for BusyReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Conflict => "another kernel holds the range",
            Self::Copying => "the range is being copied",
            Self::ArenaInUse => "its arena is in use by another device",
            Self::InTransition => "its arena is being allocated or mapped",
            Self::Queue => "an earlier request is waiting",
        })
    }
}

/// Why an arena's storage cannot be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum FreeRefusal {
    /// A kernel or a copy uses the storage, or a plan depends on it.
    #[error("it is in use")]
    InUse,
    /// Another arena shares its storage.
    #[error("another arena is bound to it")]
    StillBound,
    /// The storage belongs to the application, which takes it back by `into_vec`.
    #[error("it is the application's own")]
    External,
    /// The storage holds the only valid copy of some bytes.
    #[error("it holds the only valid copy")]
    WouldLoseData,
}

/// Why the application's storage cannot serve a buffer that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum AttachRefusal {
    /// The storage has another size than the buffer.
    #[error("the storage has {bytes} bytes, and the buffer has {len}")]
    Length {
        /// The size of the storage.
        bytes: u64,
        /// The size of the buffer.
        len: u64,
    },
    /// The arena has storage already.
    #[error("it already has storage")]
    AlreadyAllocated,
    /// A plan is about to give the arena storage.
    #[error("it is about to get storage")]
    InTransition,
    /// A kernel holds some of the bytes, or they are being copied, so their contents cannot be replaced.
    #[error("a kernel or a copy uses some of the bytes")]
    InUse,
    /// Requests wait for the buffer, and new contents would overtake them.
    #[error("earlier requests are waiting")]
    Queue,
    /// Only shared storage joins the arena to another one, which has storage already.
    #[error("it can only share the storage of {root}")]
    MustShare {
        /// The arena whose storage is to be shared.
        root: ArenaId,
    },
    /// The buffer is closed or wedged, or the arena's device is lost.
    #[error("the buffer is closed or wedged, or the arena's device is lost")]
    NotOpen,
}

/// Why two arenas cannot share storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum BindRefusal {
    /// No link of the platform binds the two arenas.
    #[error("no link binds the two")]
    NoLink,
    /// The arena has storage of its own already.
    #[error("it already has storage")]
    AlreadyAllocated,
    /// The root has no storage of its own.
    #[error("the root has no storage of its own")]
    RootNotAllocated,
    /// A plan is about to change the storage or map state of one of the arenas.
    #[error("one of them is in transition")]
    InTransition,
    /// A kernel or a copy uses the storage.
    #[error("the storage is in use")]
    InUse,
    /// The buffer is closed or wedged, or one of the arenas is lost.
    #[error("the buffer is closed or wedged, or the device of one of them is lost")]
    NotOpen,
}
