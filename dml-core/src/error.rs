//! What can go wrong, one enum per family of operations.
//!
//! Every message reads "what failed: on which object, with which sizes". Values are fields, so that a caller can act
//! on them; predicates answer the questions a caller usually has.

mod names;

pub use names::{ArenaName, Breach, BufferName};

use crate::arena::{ArenaDesc, Concurrency};
use crate::id::{ArenaId, BufferId, DeviceId, KernelId};
use crate::outstanding::Outstanding;
use crate::range::Span;
use crate::sync::Arc;
use std::any::Any;
use std::time::Duration;
use thiserror::Error;

/// What a caught panic says, for errors that tell of it.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Why an arena could not provide storage.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The memory has no room.
    #[error("out of memory: {bytes} bytes in {arena}")]
    OutOfMemory {
        /// The arena's name.
        arena: Arc<str>,
        /// The bytes asked for.
        bytes: u64,
    },
    /// No memory of this kind could hold it: more than the framework can express.
    #[error("allocation too large: {bytes} bytes in {arena}, at most {limit_bytes}")]
    TooLarge {
        /// The arena's name.
        arena: Arc<str>,
        /// The bytes asked for.
        bytes: u64,
        /// The most it can be asked for at once.
        limit_bytes: u64,
    },
    /// The block that the arena gave is somebody else's too.
    #[error("{arena} gave a block that is not new")]
    NotNew {
        /// The arena's name.
        arena: Arc<str>,
    },
    /// The block that the arena gave is over other storage than asked for: over somebody's where it was to be the arena's own,
    /// or over another buffer's. Or the host memory beside it is another block's.
    #[error("{arena} gave a block over other storage than asked for")]
    OtherStorage {
        /// The arena's name.
        arena: Arc<str>,
    },
    /// The arena does not offer this kind of allocation.
    #[error("{arena} does not offer {what}")]
    Unsupported {
        /// The arena's name.
        arena: Arc<str>,
        /// What was asked for.
        what: &'static str,
    },
    /// The device is gone.
    #[error("device lost: {arena}")]
    DeviceLost {
        /// The arena's name.
        arena: Arc<str>,
    },
    /// The device is gone, and why is known.
    #[error("device lost: {arena}: {loss}")]
    Lost {
        /// The arena's name.
        arena: Arc<str>,
        /// Why, in words.
        loss: Arc<str>,
    },
    /// The framework refused for a reason of its own.
    #[error("{call} failed in {arena}: {message} (code {code})")]
    Framework {
        /// The arena's name.
        arena: Arc<str>,
        /// The framework's call.
        call: &'static str,
        /// The framework's error code.
        code: i64,
        /// The code in words.
        message: Arc<str>,
    },
    /// The arena's code panicked.
    #[error("panic in {arena} while allocating: {message}")]
    Panicked {
        /// The arena's name.
        arena: Arc<str>,
        /// What the panic said.
        message: Arc<str>,
    },
}

impl AllocError {
    /// The error of an arena that does not offer `what`.
    #[must_use]
    pub fn unsupported(desc: &ArenaDesc, what: &'static str) -> Self {
        Self::Unsupported { arena: desc.name.clone(), what }
    }

    /// Whether the memory was full or the size beyond it.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::TooLarge { .. })
    }

    /// Whether the device is gone.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        matches!(self, Self::DeviceLost { .. } | Self::Lost { .. })
    }
}

/// Why bytes could not be moved, or a map state not be changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The framework's call failed.
    #[error("{call} failed: {message} (code {code})")]
    Framework {
        /// The framework's call.
        call: &'static str,
        /// The framework's error code.
        code: i64,
        /// The code in words.
        message: Arc<str>,
    },
    /// Fewer bytes arrived than were sent.
    #[error("short copy: {done_bytes} of {requested_bytes} bytes")]
    Short {
        /// The bytes of the request.
        requested_bytes: u64,
        /// The bytes that were moved.
        done_bytes: u64,
    },
    /// More bytes are said to have arrived than were sent: what else was overwritten nobody knows.
    #[error("overrun copy: {done_bytes} bytes where {requested_bytes} were asked for")]
    Overrun {
        /// The bytes of the request.
        requested_bytes: u64,
        /// The bytes that are said to have been moved.
        done_bytes: u64,
    },
    /// The device is gone.
    #[error("device lost")]
    DeviceLost,
    /// The device is gone, and why is known.
    #[error("device lost: {device}: {loss}")]
    Lost {
        /// The device's name.
        device: Arc<str>,
        /// Why, in words.
        loss: Arc<str>,
    },
    /// An end of the copy is mapped for the host, and its arena did not say where.
    #[error("{arena} does not show the host its bytes")]
    NoAddress {
        /// The arena's name.
        arena: Arc<str>,
    },
    /// The future of this work has ended already, and what it gave was handed out.
    #[error("this work has ended: its future is polled once more")]
    Finished,
    /// Something of the transfer is still lent to somebody, who says that it has ended.
    #[error("what was lent for the transfer has not come back")]
    StillLent,
    /// The mechanism turned out not to be possible now, though it was when it was planned.
    #[error("the copy is not possible in the present state")]
    Infeasible,
    /// No host memory is left to pass the bytes through.
    #[error("no host memory for a staging area of {bytes} bytes")]
    NoScratch {
        /// The bytes asked for.
        bytes: u64,
    },
    /// The arena's code panicked.
    #[error("panic in arena code: {message}")]
    Panicked {
        /// What the panic said.
        message: Arc<str>,
    },
}

impl TransferError {
    /// Whether the device is gone.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        matches!(self, Self::DeviceLost | Self::Lost { .. })
    }
}

/// Why a request cannot be granted at this moment, though it can be later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BusyReason {
    /// Another kernel holds the bytes in a way that excludes this access.
    Conflict,
    /// The bytes are being copied.
    Copying,
    /// The arena, or one on the way to it, has users that the needed change of map state would cut off.
    ArenaInUse,
    /// The arena, or one on the way to it, is being allocated, mapped or freed.
    InTransition,
    /// An earlier request waits and would be passed.
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

/// Why access was not granted, or not released as asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Somebody else has it now. The only error worth trying again for.
    #[error("{buffer} is busy: {reason}")]
    Busy {
        /// The buffer that could not be had; everything acquired before it was released.
        buffer: BufferName,
        /// Who stands in the way.
        reason: BusyReason,
    },
    /// It was not granted within the time allowed.
    #[error("{buffer} was not granted within {waited:?}")]
    Timeout {
        /// The buffer that was waited for.
        buffer: BufferName,
        /// The time allowed.
        waited: Duration,
    },
    /// No chain of copies leads to the arena, whatever is released.
    #[error("{} cannot reach {arena}: no sync path", buffer.bytes(*span))]
    Unreachable {
        /// The buffer.
        buffer: BufferName,
        /// The arena asked for.
        arena: ArenaName,
        /// The bytes that have no path.
        span: Span,
    },
    /// A copy on the way failed; nothing else changed.
    #[error("copy of {} from {from} to {to} failed: {cause}", buffer.bytes(*span))]
    CopyFailed {
        /// The buffer.
        buffer: BufferName,
        /// The copy's source.
        from: ArenaName,
        /// The copy's destination, which is not valid there.
        to: ArenaName,
        /// The bytes.
        span: Span,
        /// What the arena reported.
        cause: TransferError,
    },
    /// A change of map state on the way failed; nothing else changed.
    #[error("giving device {device} access to {buffer} in {arena} failed: {cause}")]
    MapFailed {
        /// The buffer.
        buffer: BufferName,
        /// The arena.
        arena: ArenaName,
        /// Who was to have access.
        device: DeviceId,
        /// What the arena reported.
        cause: TransferError,
    },
    /// An arena on the way could not provide storage; nothing else changed.
    #[error("allocation for {buffer} failed: {cause}")]
    Alloc {
        /// The buffer.
        buffer: BufferName,
        /// The arena.
        arena: ArenaName,
        /// What the arena reported.
        cause: AllocError,
    },
    /// The bytes were never written.
    #[error("{} were never written", buffer.bytes(*span))]
    Uninitialized {
        /// The buffer.
        buffer: BufferName,
        /// The first such bytes.
        span: Span,
    },
    /// A kernel failed while it was writing the bytes.
    #[error("{} are poisoned by a failed writer ({})", buffer.bytes(*span), if *restorable { "restore() brings the last committed contents back" } else { "overwrite them to go on" })]
    Poisoned {
        /// The buffer.
        buffer: BufferName,
        /// The first such bytes.
        span: Span,
        /// Whether the last committed contents survive elsewhere.
        restorable: bool,
    },
    /// The buffer is closed or closing.
    #[error("{buffer} is closed")]
    Closed {
        /// The buffer.
        buffer: BufferName,
    },
    /// An arena broke its contract earlier; the buffer refuses service rather than return wrong bytes.
    #[error("{buffer} is wedged: an arena broke its contract")]
    Wedged {
        /// The buffer.
        buffer: BufferName,
    },
    /// An arena broke its contract.
    #[error("{arena} broke its contract on {buffer}: {breach}")]
    ArenaContract {
        /// The buffer, now wedged.
        buffer: BufferName,
        /// The arena.
        arena: ArenaName,
        /// How.
        breach: Breach,
    },
    /// The same kernel holds an overlapping range already. There is no re-entry and no upgrade.
    #[error("kernel {kernel} already holds {}", buffer.bytes(*span))]
    AlreadyHeld {
        /// The buffer.
        buffer: BufferName,
        /// The kernel.
        kernel: KernelId,
        /// The bytes it holds already.
        span: Span,
    },
    /// The range does not lie within the buffer.
    #[error("range {start}..{end} of {buffer} is outside its {len} bytes")]
    OutOfRange {
        /// The buffer.
        buffer: BufferName,
        /// First byte asked for.
        start: u64,
        /// Byte after the last one asked for.
        end: u64,
        /// The buffer's size in bytes.
        len: u64,
    },
    /// More grants at once than can be counted.
    #[error("too many grants on {buffer} in {arena}")]
    TooManyGrants {
        /// The buffer.
        buffer: BufferName,
        /// The arena.
        arena: ArenaName,
    },
    /// The request would have to wait, and the thread holds a buffer that comes later in the canonical order, or the same
    /// one: whoever is waited for may in turn wait for that.
    #[error(
        "waiting for {buffer} while holding {held} could deadlock: acquire both at once, in the order of their ids, or try \
         without waiting"
    )]
    OrderViolation {
        /// The buffer that would have to be waited for.
        buffer: BufferName,
        /// A held buffer that comes at or after it.
        held: BufferName,
    },
    /// The device of an arena is gone: of the one asked for, or of one on the way there; asked again, another way may be
    /// found.
    #[error("the device of {arena} is lost{}", loss.as_ref().map_or_else(String::new, |loss| format!(": {loss}")))]
    DeviceLost {
        /// The buffer.
        buffer: BufferName,
        /// The arena.
        arena: ArenaName,
        /// Why, in words, where the arena knows.
        loss: Option<Arc<str>>,
    },
    /// The future has ended already, and what it was granted was handed out.
    #[error("this request has ended: its future is polled once more")]
    Finished,
    /// A buffer was closed, and is still held after the time allowed.
    #[error(
        "{buffer} is still in use after {waited:?}: {}",
        outstanding.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    StillHeld {
        /// The buffer, which takes nobody any more.
        buffer: BufferName,
        /// The time allowed.
        waited: Duration,
        /// The grants that have not ended.
        outstanding: Vec<Outstanding>,
    },
    /// No arena of the platform belongs to the device.
    #[error("device {device} has no arena on this platform")]
    NoArena {
        /// The device.
        device: DeviceId,
    },
    /// The platform has no such arena.
    #[error("the platform has no arena {arena}")]
    NoSuchArena {
        /// The arena asked for.
        arena: ArenaId,
    },
    /// The buffer belongs to another platform.
    #[error("{buffer} belongs to another platform")]
    ForeignBuffer {
        /// The buffer.
        buffer: BufferName,
    },
    /// The release does not fit the grant: a `clean` release of bytes that were granted for overwriting.
    #[error("{buffer} was granted for overwriting: it cannot be released as clean")]
    NotClean {
        /// The buffer.
        buffer: BufferName,
    },
    /// Bytes to be restored are not poisoned, or their last committed contents are lost.
    #[error("{} cannot be restored", buffer.bytes(*span))]
    NotRestorable {
        /// The buffer.
        buffer: BufferName,
        /// The first such bytes.
        span: Span,
    },
    /// The arena has users, or others are bound to it.
    #[error("{arena} of {buffer} cannot be freed: {reason}")]
    NotFreeable {
        /// The buffer.
        buffer: BufferName,
        /// The arena.
        arena: ArenaName,
        /// Why.
        reason: FreeRefusal,
    },
    /// The arenas cannot share storage in their present state.
    #[error("{arena} of {buffer} cannot be bound to {root}: {reason}")]
    NotBindable {
        /// The buffer.
        buffer: BufferName,
        /// The arena that was to share.
        arena: ArenaName,
        /// The arena whose storage was to be shared.
        root: ArenaName,
        /// Why.
        reason: BindRefusal,
    },
    /// The bytes were granted and cannot be seen as elements.
    #[error("{cause}")]
    View {
        /// The buffer.
        buffer: BufferName,
        /// Why.
        cause: ViewError,
    },
}

/// Why an arena's storage cannot be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum FreeRefusal {
    /// A kernel or a copy uses it.
    #[error("it is in use")]
    InUse,
    /// Another arena shares its storage.
    #[error("another arena is bound to it")]
    StillBound,
    /// It is the application's own, which gets it back by `into_vec`.
    #[error("it is the application's own")]
    External,
    /// It holds the only valid copy of some bytes.
    #[error("it holds the only valid copy")]
    WouldLoseData,
}

/// Why two arenas cannot share storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum BindRefusal {
    /// No link of the platform binds the two.
    #[error("no link binds the two")]
    NoLink,
    /// The arena has storage of its own already.
    #[error("it already has storage")]
    AlreadyAllocated,
    /// The root has no storage of its own.
    #[error("the root has no storage of its own")]
    RootNotAllocated,
    /// One of them is being allocated, mapped or freed.
    #[error("one of them is in transition")]
    InTransition,
    /// A kernel or a copy uses the storage.
    #[error("the storage is in use")]
    InUse,
    /// The buffer is closed or wedged, or a device is lost.
    #[error("the buffer does not serve any more")]
    NotOpen,
}

impl AcquireError {
    /// Whether waiting, or trying again after a release, can help.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Timeout { .. })
    }

    /// Whether no chain of copies leads there.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether a memory was full.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Alloc { cause, .. } if cause.is_out_of_memory())
    }

    /// Whether a device is gone.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        match self {
            Self::DeviceLost { .. } => true,
            Self::CopyFailed { cause, .. } | Self::MapFailed { cause, .. } => cause.is_device_lost(),
            Self::Alloc { cause, .. } => cause.is_device_lost(),
            _ => false,
        }
    }
}

/// Why a grant's bytes cannot be seen as a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The buffer is not part of the grants.
    #[error("{buffer} is not part of these grants")]
    NotGranted {
        /// The buffer.
        buffer: BufferId,
    },
    /// The arena has kept a transfer of the granted bytes, and may touch them whenever it likes.
    #[error("{buffer} is wedged: an arena kept what it was lent")]
    Wedged {
        /// The buffer.
        buffer: BufferId,
    },
    /// The arena's block panicked when it was asked for its handle.
    #[error("the block of {buffer} has no handle: its arena panicked")]
    NoHandle {
        /// The buffer.
        buffer: BufferId,
    },
    /// The bytes live where the host cannot see them.
    #[error("{buffer} was granted to a device: the host cannot see it")]
    NotHost {
        /// The buffer.
        buffer: BufferId,
    },
    /// The grant does not allow writing all of the bytes.
    #[error("{buffer} bytes {span} were not granted for writing")]
    NotWritable {
        /// The buffer.
        buffer: BufferId,
        /// The bytes.
        span: Span,
    },
    /// Another item of the same grants names the same bytes, and one of the two writes.
    #[error("{buffer} bytes {span} are named twice by one kernel, once for writing")]
    Aliased {
        /// The buffer.
        buffer: BufferId,
        /// The bytes.
        span: Span,
    },
    /// The bytes asked for are not all granted.
    #[error("{buffer} bytes {span} were not granted")]
    OutsideGrant {
        /// The buffer.
        buffer: BufferId,
        /// The bytes.
        span: Span,
    },
    /// The number of bytes is no multiple of the element's size.
    #[error("{buffer}: {bytes} bytes are no whole number of elements of {element_bytes} bytes")]
    Size {
        /// The buffer.
        buffer: BufferId,
        /// The bytes granted.
        bytes: u64,
        /// The element's size in bytes.
        element_bytes: u64,
    },
    /// The bytes are not aligned for the element.
    #[error("{buffer}: bytes {span} are not aligned to {element_align}")]
    Alignment {
        /// The buffer.
        buffer: BufferId,
        /// The bytes.
        span: Span,
        /// The element's alignment in bytes.
        element_align: u64,
    },
}

/// What is wrong with the arenas and links of a platform.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// More arenas or devices than the sets can hold.
    #[error("{count} {what}: at most {limit}")]
    TooMany {
        /// `arenas`, `devices` or `links`.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Two arenas or devices of one name.
    #[error("two {what} are named {name}")]
    DuplicateName {
        /// `arenas` or `devices`.
        what: &'static str,
        /// The name.
        name: Arc<str>,
    },
    /// An arena names a device that the platform does not have.
    #[error("arena {arena} names device {device}, which was not added")]
    UnknownDevice {
        /// The arena's name.
        arena: Arc<str>,
        /// The device.
        device: DeviceId,
    },
    /// A link names an arena that the platform does not have, or joins one with itself.
    #[error("a link from {from} to {to} joins no two arenas of the platform")]
    BadLink {
        /// The source.
        from: ArenaId,
        /// The destination.
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
        /// The arena's name.
        arena: Arc<str>,
        /// The device.
        device: DeviceId,
    },
    /// A link binds two arenas of which one could never take the storage back.
    #[error("a link binds {to} to {from}, but no other device has access to {arena}")]
    Unbindable {
        /// The root's name.
        from: Arc<str>,
        /// The member's name.
        to: Arc<str>,
        /// The arena without remote devices.
        arena: Arc<str>,
    },
    /// A link lets more devices share a storage at once than one of its arenas can grant access to.
    #[error("a link binds {to} to {from} as {link:?}, but {arena} itself is {own:?}")]
    WiderBinding {
        /// The root's name.
        from: Arc<str>,
        /// The member's name.
        to: Arc<str>,
        /// The arena that allows less.
        arena: Arc<str>,
        /// What the link allows.
        link: Concurrency,
        /// What the arena allows.
        own: Concurrency,
    },
    /// The alignment is no power of two.
    #[error("arena {arena} allocates with alignment {align}, which is no power of two")]
    BadAlign {
        /// The arena's name.
        arena: Arc<str>,
        /// The alignment in bytes.
        align: u64,
    },
}

/// A buffer could not be made of an application's storage; the storage is inside, nothing is lost.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{cause}")]
pub struct Unstored<S: std::fmt::Debug> {
    /// Why.
    pub cause: ConfigError,
    /// The storage as it was given.
    pub storage: S,
}

/// What is wrong with a configuration: a platform's parts or a buffer's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Everything wrong with the platform's arenas and links.
    #[error("platform: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Topology(Vec<TopologyError>),
    /// The buffer's size in bytes overflows.
    #[error("buffer too large: {elements} elements of {element_bytes} bytes")]
    TooLarge {
        /// The number of elements.
        elements: u64,
        /// An element's size in bytes.
        element_bytes: u64,
    },
    /// Elements without a size cannot be stored.
    #[error("elements of zero bytes cannot make a buffer")]
    ZeroSized,
    /// No arena accepts the application's storage.
    #[error("no arena of the platform holds host storage of an application")]
    NoHostArena,
    /// An arena refused the application's storage.
    #[error("{0}")]
    Storage(#[from] AllocError),
    /// Elements need more alignment than the host's memory has: they could not be seen there.
    #[error(
        "elements aligned to {element_align} bytes cannot be seen in {arena}, which aligns to {arena_align}"
    )]
    OverAligned {
        /// The alignment of an element, in bytes.
        element_align: u64,
        /// The host's arena.
        arena: Arc<str>,
        /// Its alignment, in bytes.
        arena_align: u64,
    },
    /// No device has this name.
    #[error("unknown device {name}: there are {}", known.join(", "))]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
}
