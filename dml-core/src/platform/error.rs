//! Errors of a platform and of the configuration of buffers.

use crate::base::id::{ArenaId, DeviceId};
use crate::base::sync::Arc;
use crate::memory::desc::Concurrency;
use crate::memory::error::AllocError;
use crate::platform::desc::Unavailable;
use thiserror::Error;

/// A problem with the arenas and links of a platform.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The platform has too many arenas, devices or links.
    #[error("too many {what}: {count}, at most {limit}")]
    TooMany {
        /// `arenas`, `devices and stores` or `links`.
        what: &'static str,
        /// The number in the platform.
        count: usize,
        /// The maximum number.
        limit: usize,
    },
    /// Two arenas or two devices have the same name.
    #[error("two {what} are named {name}")]
    DuplicateName {
        /// `arenas` or `devices`.
        what: &'static str,
        /// The name used twice.
        name: Arc<str>,
    },
    /// An arena names a device that the platform does not have.
    #[error("arena {arena} names device {device}, which was not added")]
    UnknownDevice {
        /// The arena's name.
        arena: Arc<str>,
        /// The device that was not added.
        device: DeviceId,
    },
    /// A link names an arena that the platform does not have, or joins an arena with itself.
    #[error("a link from {from} to {to} does not join two different arenas of the platform")]
    BadLink {
        /// The source of the link.
        from: ArenaId,
        /// The destination of the link.
        to: ArenaId,
    },
    /// A link reaches an end through a device that has no access to that arena.
    #[error(
        "a link from {from} to {to} reaches arena {arena} through device {device}, which has no access to it"
    )]
    LinkDevice {
        /// The source's name.
        from: Arc<str>,
        /// The destination's name.
        to: Arc<str>,
        /// The name of the arena at that end.
        arena: Arc<str>,
        /// The device that has no access to the arena.
        device: DeviceId,
    },
    /// A link binds two arenas, one of which has no remote device that could take its storage back.
    #[error("a link binds {to} to {from}, but no other device has access to {arena}")]
    Unbindable {
        /// The root's name.
        from: Arc<str>,
        /// The member's name.
        to: Arc<str>,
        /// The name of the arena without remote devices.
        arena: Arc<str>,
    },
    /// A link permits more devices to share storage at once than one of its arenas does.
    #[error("a link binds {to} to {from} as {link:?}, but {arena} itself is {own:?}")]
    WiderBinding {
        /// The root's name.
        from: Arc<str>,
        /// The member's name.
        to: Arc<str>,
        /// The name of the arena that permits less.
        arena: Arc<str>,
        /// The concurrency that the link permits.
        link: Concurrency,
        /// The concurrency that the arena permits.
        own: Concurrency,
    },
    /// No link can make a binding that was preferred or allowed.
    #[error("{member} cannot be bound to {root}: no link binds them")]
    NoBinding {
        /// The arena whose storage was to be shared.
        root: ArenaId,
        /// The arena that was to share it.
        member: ArenaId,
    },
    /// The alignment is not a power of two.
    #[error("arena {arena} allocates with alignment {align}, which is not a power of two")]
    BadAlign {
        /// The arena's name.
        arena: Arc<str>,
        /// The alignment in bytes.
        align: u64,
    },
}

/// A problem in the configuration of a platform or a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// All problems of the platform's arenas and links.
    #[error("platform: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Topology(Vec<TopologyError>),
    /// The buffer's size in bytes overflows.
    #[error("buffer too large: {elements} elements of {element_bytes} bytes")]
    TooLarge {
        /// The requested number of elements.
        elements: u64,
        /// The size of one element, in bytes.
        element_bytes: u64,
    },
    /// The element type has a size of zero bytes.
    #[error("a buffer cannot have elements of zero bytes")]
    ZeroSized,
    /// No arena of the platform accepts the application's storage.
    #[error("the platform has no host arena that could hold the application's storage")]
    NoHostArena,
    /// An arena refused the application's storage.
    #[error("{0}")]
    Storage(#[from] AllocError),
    /// The elements need a larger alignment than the host's arena provides, so the host could not view them.
    #[error(
        "elements aligned to {element_align} bytes cannot be viewed in {arena}, which aligns to {arena_align} bytes"
    )]
    OverAligned {
        /// The alignment of an element, in bytes.
        element_align: u64,
        /// The name of the host's arena.
        arena: Arc<str>,
        /// The alignment of that arena, in bytes.
        arena_align: u64,
    },
    /// The platform has no device of this name.
    #[error(
        "unknown device {name}: there are {}{}",
        known.join(", "),
        missing.as_ref().map_or_else(String::new, |missing| format!("; {missing}"))
    )]
    UnknownDevice {
        /// The requested name.
        name: String,
        /// The names of the platform's devices.
        known: Vec<String>,
        /// The reason why the backend in that name is unavailable, if it was added as unavailable.
        missing: Option<Box<Unavailable>>,
    },
    /// The platform has no arena of this name.
    #[error("unknown arena {name}: there are {}", known.join(", "))]
    UnknownArena {
        /// The requested name.
        name: String,
        /// The names of the platform's arenas.
        known: Vec<String>,
    },
    /// A hint names a device that the platform does not have.
    #[error("a hint names device {device}, but the platform has only {devices} devices")]
    NoSuchDevice {
        /// The device that the hint names.
        device: DeviceId,
        /// The number of devices of the platform.
        devices: usize,
    },
}

/// A buffer could not be made over an application's storage. The error returns that storage.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{cause}")]
pub struct Unstored<S: std::fmt::Debug> {
    /// The cause of the failure.
    pub cause: ConfigError,
    /// The storage that the caller passed in.
    pub storage: S,
}
