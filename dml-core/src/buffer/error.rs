//! Errors of buffers, one enum per family of operations.
//!
//! Every message reads "what failed: on which object, with which sizes". Values are fields, so that callers
//! can act on them. Predicates answer the common questions.

use crate::base::id::ArenaId;
use crate::base::id::{DeviceId, KernelId};
use crate::base::names::{ArenaName, BufferName};
use crate::base::range::Span;
use crate::base::sync::Arc;
use crate::memory::error::{AllocError, Breach, TransferError, of_cause};
use crate::platform::outstanding::Outstanding;
use crate::state::BusyReason;
use crate::state::{AttachRefusal, BindRefusal, FreeRefusal};
use std::fmt;
use std::panic::Location;
use std::time::Duration;
use thiserror::Error;

/// Describes the ends of a copy.
fn between(from: &ArenaName, to: &ArenaName) -> String {
    if from == to { format!("in {to}") } else { format!("from {from} to {to}") }
}

/// A grant that ended without a commit, after its bytes may have been written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Poisoner {
    /// How the grant ended.
    pub end: PoisonedEnd,
    /// Where the grant was acquired.
    pub acquired_at: &'static Location<'static>,
    /// The label of the submitted kernel that had the grant, and its device.
    /// [`Submission::wait`](crate::Submission::wait) and [`Platform::settle`](crate::Platform::settle) return
    /// the cause of its failure, which may be that of a kernel before it.
    pub kernel: Option<(Arc<str>, Arc<str>)>,
}

/// How a grant ended that poisoned its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoisonedEnd {
    /// It was dropped without a release.
    Dropped,
    /// It was released as failed.
    Failed,
    /// Its device was lost before its release.
    DeviceLost,
}

impl fmt::Display for Poisoner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.end {
            PoisonedEnd::Dropped => "was dropped without release",
            PoisonedEnd::Failed => "was released as failed",
            PoisonedEnd::DeviceLost => "lost its device",
        };
        match &self.kernel {
            None => write!(f, "the grant acquired at {} {end}", self.acquired_at),
            Some((kernel, device)) => {
                let end = if self.end == PoisonedEnd::Failed { "failed" } else { end };
                write!(f, "{kernel}, submitted to {device} at {}, {end}", self.acquired_at)
            }
        }
    }
}

/// Why access was not granted, or not released as requested.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Another user is in the way. Trying again after a release can help.
    #[error("{buffer} is busy: {reason}")]
    Busy {
        /// The buffer that could not be acquired. The call has released everything that it had acquired.
        buffer: BufferName,
        /// The obstacle.
        reason: BusyReason,
    },
    /// Access was not granted within the time allowed.
    #[error("{buffer} was not granted within {waited:?}")]
    Timeout {
        /// The buffer that was waited for.
        buffer: BufferName,
        /// The time allowed.
        waited: Duration,
    },
    /// No chain of copies leads to the arena, even if every user released its grant.
    #[error("{} cannot reach {arena}: no sync path", buffer.bytes(*span))]
    Unreachable {
        /// The buffer whose bytes were to be copied.
        buffer: BufferName,
        /// The requested arena.
        arena: ArenaName,
        /// The bytes that have no path to the arena.
        span: Span,
    },
    /// A copy of the plan failed. The buffer's contents did not change.
    #[error("copy of {} {} failed: {cause}", buffer.bytes(*span), between(from, to))]
    CopyFailed {
        /// The buffer whose bytes were copied.
        buffer: BufferName,
        /// The source of the copy. The same arena as `to` for a fill with zeros, and for
        /// [`Grants::write_bytes`](crate::Grants::write_bytes) and
        /// [`Grants::read_bytes`](crate::Grants::read_bytes).
        from: ArenaName,
        /// The destination of the copy, where the bytes remain invalid.
        to: ArenaName,
        /// The bytes of the copy.
        span: Span,
        /// The error of the transfer.
        cause: TransferError,
    },
    /// A kernel that was launched under the grants failed ([`Grants::launch`](crate::Grants::launch)). The
    /// bytes granted for writing are poisoned.
    #[error("a kernel launched under the grants failed: {cause}")]
    KernelFailed {
        /// The framework's error of the first kernel that failed.
        cause: TransferError,
    },
    /// A change of map state failed. The buffer's contents did not change.
    #[error("giving {device_name} access to {buffer} in {arena} failed: {cause}")]
    MapFailed {
        /// The buffer whose block was to be mapped.
        buffer: BufferName,
        /// The arena that failed.
        arena: ArenaName,
        /// The device that was to have access.
        device: DeviceId,
        /// The name of that device.
        device_name: Arc<str>,
        /// What the arena reported.
        cause: TransferError,
    },
    /// An arena could not provide storage. The buffer's contents did not change.
    #[error("allocation for {buffer} failed: {cause}")]
    Alloc {
        /// The buffer that needed storage.
        buffer: BufferName,
        /// The arena that could not provide it.
        arena: ArenaName,
        /// What the arena reported.
        cause: AllocError,
    },
    /// Some of the bytes were never written.
    #[error("{} were never written", buffer.bytes(*span))]
    Uninitialized {
        /// The buffer that was to be read.
        buffer: BufferName,
        /// The first bytes that were never written.
        span: Span,
    },
    /// A grant of the bytes for writing ended without a commit, or a device was lost with their only copy.
    #[error(
        "{} are poisoned: {} ({})",
        buffer.bytes(*span),
        by.as_ref().map_or_else(|| "a device was lost with their only copy".to_owned(), Poisoner::to_string),
        if *restorable { "restore() brings the last committed contents back" } else { "overwrite them to go on" }
    )]
    Poisoned {
        /// The buffer that holds the poisoned bytes.
        buffer: BufferName,
        /// The first poisoned bytes.
        span: Span,
        /// Whether the last committed contents can be restored.
        restorable: bool,
        /// The grant that poisoned them; `None` if they were lost with a device.
        by: Option<Poisoner>,
    },
    /// The buffer is closed or closing.
    #[error("{buffer} is closed")]
    Closed {
        /// The closed buffer.
        buffer: BufferName,
    },
    /// An arena broke its contract earlier. The buffer refuses service because its bytes might be wrong.
    #[error("{buffer} is wedged: an arena broke its contract")]
    Wedged {
        /// The wedged buffer.
        buffer: BufferName,
    },
    /// An arena broke its contract during this call.
    #[error("{arena} broke its contract on {buffer}: {breach}")]
    ArenaContract {
        /// The buffer, which is now wedged.
        buffer: BufferName,
        /// The arena that broke its contract.
        arena: ArenaName,
        /// The rule that the arena broke.
        breach: Breach,
    },
    /// The same kernel already holds an overlapping range. Grants cannot be nested or upgraded.
    #[error("kernel {kernel} already holds {}", buffer.bytes(*span))]
    AlreadyHeld {
        /// The requested buffer.
        buffer: BufferName,
        /// The kernel that asked twice.
        kernel: KernelId,
        /// The bytes that the kernel already holds.
        span: Span,
    },
    /// The range does not lie within the buffer.
    #[error("bytes {} of {buffer} are outside its {len} bytes", buffer.range(*start, *end))]
    OutOfRange {
        /// The requested buffer.
        buffer: BufferName,
        /// The first requested byte.
        start: u64,
        /// The byte after the last requested one.
        end: u64,
        /// The buffer's size in bytes.
        len: u64,
    },
    /// The count of grants in the arena would overflow.
    #[error("too many grants on {buffer} in {arena}")]
    TooManyGrants {
        /// The requested buffer.
        buffer: BufferName,
        /// The arena with too many grants.
        arena: ArenaName,
    },
    /// The request would have to wait while the thread holds the same buffer, or one later in the canonical
    /// order. The holder of the requested buffer may in turn be waiting for the held one.
    #[error(
        "waiting for {buffer} while {}",
        if buffer == held {
            "this thread holds it: release that grant or view first".to_owned()
        } else {
            format!("holding {held} could deadlock: release that first, acquire both at once, or try without waiting")
        }
    )]
    OrderViolation {
        /// The buffer that would have to be waited for.
        buffer: BufferName,
        /// A held buffer that is the same one, or comes later in the canonical order.
        held: BufferName,
    },
    /// The request would have to wait in code that a stream calls, such as the launcher of a submitted kernel
    /// or a waker. The holder of the buffer may in turn wait for that code.
    #[error(
        "code that a stream calls, such as a launcher or a waker, cannot wait for {buffer}: wait on another thread"
    )]
    OnStream {
        /// The buffer that would have to be waited for.
        buffer: BufferName,
    },
    /// The device of the requested arena, or of an arena on the path to it, is lost. A retry may find another
    /// path.
    #[error("the device of {arena} is lost{}", of_cause(loss.as_ref()))]
    DeviceLost {
        /// The requested buffer.
        buffer: BufferName,
        /// The arena whose device is lost.
        arena: ArenaName,
        /// The cause of the loss in words, if the arena knows it.
        loss: Option<Arc<str>>,
    },
    /// A prefetch was cancelled before its end. Its completed copies stay.
    #[error("a prefetch of {buffer} was cancelled")]
    Cancelled {
        /// The buffer whose bytes were to be copied.
        buffer: BufferName,
    },
    /// The future has already completed and returned its grant.
    #[error("future polled again after its acquire had ended")]
    Finished,
    /// The buffer was closed, but grants on it still exist after the time allowed.
    #[error(
        "{buffer} is still in use after {waited:?}: {}",
        outstanding.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    StillHeld {
        /// The buffer, which accepts no new requests.
        buffer: BufferName,
        /// The time allowed.
        waited: Duration,
        /// The grants that have not ended.
        outstanding: Vec<Outstanding>,
    },
    /// No arena of the platform belongs to the device.
    #[error("device {device} has no arena on this platform")]
    NoArena {
        /// The requested device.
        device: DeviceId,
    },
    /// The device is the internal one of a [store](crate::ArenaDesc::store), for which nothing can be
    /// acquired.
    #[error(
        "{arena} is a store: no kernels run on it, so nothing can be acquired for its internal device {device}"
    )]
    NoKernels {
        /// The internal device.
        device: DeviceId,
        /// The store's name.
        arena: Arc<str>,
    },
    /// The platform has no such arena.
    #[error("the platform has no arena {arena}")]
    NoSuchArena {
        /// The requested arena.
        arena: ArenaId,
    },
    /// The buffer belongs to another platform.
    #[error("{buffer} belongs to another platform")]
    ForeignBuffer {
        /// The buffer of the other platform.
        buffer: BufferName,
    },
    /// The release does not fit the grant: bytes granted for overwriting cannot be released as `clean`.
    #[error("{buffer} was granted for overwriting: it cannot be released as clean")]
    NotClean {
        /// The buffer whose grant was to be released.
        buffer: BufferName,
    },
    /// Bytes to be restored are not poisoned, or their last committed contents are lost.
    #[error("{} cannot be restored", buffer.bytes(*span))]
    NotRestorable {
        /// The buffer that was to be restored.
        buffer: BufferName,
        /// The first bytes that cannot be restored.
        span: Span,
    },
    /// The arena's storage cannot be freed in its present state.
    #[error("{arena} of {buffer} cannot be freed: {reason}")]
    NotFreeable {
        /// The buffer whose storage was to be freed.
        buffer: BufferName,
        /// The arena whose storage was to be freed.
        arena: ArenaName,
        /// The reason for the refusal.
        reason: FreeRefusal,
    },
    /// The arenas cannot share storage in their present state.
    #[error("{arena} of {buffer} cannot be bound to {root}: {reason}")]
    NotBindable {
        /// The buffer whose arenas were to share storage.
        buffer: BufferName,
        /// The arena that was to share the storage.
        arena: ArenaName,
        /// The arena whose storage was to be shared.
        root: ArenaName,
        /// The reason for the refusal.
        reason: BindRefusal,
    },
    /// The application's storage cannot serve the buffer in its present state.
    #[error("{arena} of {buffer} cannot take the application's storage: {reason}")]
    NotAttachable {
        /// The buffer that was to use the storage.
        buffer: BufferName,
        /// The arena that was to use the storage.
        arena: ArenaName,
        /// The reason for the refusal.
        reason: AttachRefusal,
    },
    /// The buffer holds no container of the requested type.
    #[error("{buffer} holds no container of the requested type")]
    NoContainer {
        /// The buffer, which is unchanged.
        buffer: BufferName,
    },
    /// The buffer is closed, but a block over the application's container is still in use. The container is
    /// dropped with that block.
    #[error("the container of {buffer} cannot be returned: a block over it is still in use")]
    ContainerKept {
        /// The closed buffer.
        buffer: BufferName,
    },
    /// Access was granted, but the bytes cannot be viewed as elements.
    #[error("{cause}")]
    View {
        /// The buffer that was granted.
        buffer: BufferName,
        /// The reason why the view failed.
        cause: ViewError,
    },
}

impl AcquireError {
    /// Returns whether waiting, or trying again after a release, can help.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Timeout { .. })
    }

    /// Returns whether no chain of copies leads to the arena.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Returns whether a memory was full or could never hold the size.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Alloc { cause, .. } if cause.is_out_of_memory())
    }

    /// Returns whether a device is lost.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        match self {
            Self::DeviceLost { .. } => true,
            Self::CopyFailed { cause, .. } | Self::MapFailed { cause, .. } | Self::KernelFailed { cause } => {
                cause.is_device_lost()
            }
            Self::Alloc { cause, .. } => cause.is_device_lost(),
            _ => false,
        }
    }
}

/// A buffer could not take an application's storage. The error returns that storage.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{cause}")]
pub struct Unattached<S: std::fmt::Debug> {
    /// The cause of the failure.
    pub cause: AcquireError,
    /// The storage that the caller passed in.
    pub storage: S,
}

/// Why the bytes of a grant cannot be viewed as a slice.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The buffer is not part of the grants.
    #[error("{buffer} is not part of these grants")]
    NotGranted {
        /// The requested buffer.
        buffer: BufferName,
    },
    /// The arena kept a transfer of the granted bytes, and may touch them at any time.
    #[error("{buffer} is wedged: an arena kept memory that was lent for a transfer")]
    Wedged {
        /// The wedged buffer.
        buffer: BufferName,
    },
    /// The arena's block panicked when core asked for its handle.
    #[error("the block of {buffer} has no handle: its arena panicked")]
    NoHandle {
        /// The buffer of that block.
        buffer: BufferName,
    },
    /// The bytes are in memory that the host cannot access.
    #[error("{buffer} was granted to a device: the host cannot see it")]
    NotHost {
        /// The granted buffer.
        buffer: BufferName,
    },
    /// The grant does not permit writing all of the bytes.
    #[error("{} were not granted for writing", buffer.bytes(*span))]
    NotWritable {
        /// The granted buffer.
        buffer: BufferName,
        /// The bytes that were to be viewed.
        span: Span,
    },
    /// Two items of the same grants name the same bytes, and at least one of them writes.
    #[error("{} are named twice by one kernel, once for writing", buffer.bytes(*span))]
    Aliased {
        /// The buffer named twice.
        buffer: BufferName,
        /// The bytes that both items name.
        span: Span,
    },
    /// The grant does not cover all of the requested bytes.
    #[error("{buffer} bytes {} were not granted", buffer.range(*start, *end))]
    OutsideGrant {
        /// The granted buffer.
        buffer: BufferName,
        /// The first requested byte.
        start: u64,
        /// The byte after the last requested one, which may be outside the buffer or before the first.
        end: u64,
    },
    /// The number of bytes to be written differs from the number of granted bytes.
    #[error("{} take {} bytes, and {given_bytes} were given", buffer.bytes(*span), span.len())]
    Length {
        /// The granted buffer.
        buffer: BufferName,
        /// The bytes that were to be written.
        span: Span,
        /// The number of bytes given.
        given_bytes: u64,
    },
    /// The number of bytes is not a multiple of the element's size.
    #[error("{} are not a whole number of elements of {element_bytes} bytes", buffer.bytes(*span))]
    Size {
        /// The granted buffer.
        buffer: BufferName,
        /// The bytes that were to be viewed.
        span: Span,
        /// The element's size in bytes.
        element_bytes: u64,
    },
    /// The bytes are not aligned for the element type.
    #[error("{} are not aligned to {element_align}", buffer.bytes(*span))]
    Alignment {
        /// The granted buffer.
        buffer: BufferName,
        /// The misaligned bytes.
        span: Span,
        /// The element's alignment in bytes.
        element_align: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::BufferId;
    use crate::memory::error::DeviceLoss;

    fn arena(id: u8, name: &str) -> ArenaName {
        ArenaName { id: ArenaId(id), name: name.into() }
    }

    fn copy_failed(to: &ArenaName, cause: TransferError) -> AcquireError {
        let (buffer, from) = (BufferName::from(BufferId(3)), arena(1, "left"));
        AcquireError::CopyFailed { buffer, from, to: to.clone(), span: Span::new(8, 24), cause }
    }

    #[test]
    fn a_loss_names_the_device_and_the_cause_where_they_are_known() {
        let loss = DeviceLoss { device: "offload:0".into(), cause: "it was killed".into() };
        let known = TransferError::DeviceLost { loss: Some(loss) };
        assert_eq!(known.to_string(), "device lost: offload:0: it was killed");
        assert_eq!(TransferError::DeviceLost { loss: None }.to_string(), "device lost");
        let alloc = |loss| AllocError::DeviceLost { arena: "left".into(), loss };
        assert_eq!(alloc(Some("gone".into())).to_string(), "device lost: left: gone");
        assert_eq!(alloc(None).to_string(), "device lost: left");
    }

    /// Each row names the one question that its errors answer with yes.
    #[test]
    fn errors_answer_the_common_questions_with_one_yes_at_most() {
        let (buffer, left) = (BufferName::from(BufferId(3)), arena(1, "left"));
        let lost = AllocError::DeviceLost { arena: "left".into(), loss: Some("gone".into()) };
        let full = AllocError::OutOfMemory { arena: "left".into(), bytes: 8 };
        let large = AllocError::TooLarge { arena: "left".into(), bytes: 8, limit_bytes: 4 };
        let alloc = |cause| AcquireError::Alloc { buffer: buffer.clone(), arena: left.clone(), cause };
        let map = |cause| AcquireError::MapFailed {
            buffer: buffer.clone(),
            arena: left.clone(),
            device: DeviceId(1),
            device_name: "gpu".into(),
            cause,
        };
        let waited = Duration::from_secs(1);
        let table = [
            (
                "busy",
                vec![
                    AcquireError::Busy { buffer: buffer.clone(), reason: BusyReason::ArenaInUse },
                    AcquireError::Timeout { buffer: buffer.clone(), waited },
                ],
            ),
            (
                "unreachable",
                vec![AcquireError::Unreachable {
                    buffer: buffer.clone(),
                    arena: left.clone(),
                    span: Span::new(0, 1),
                }],
            ),
            ("full", vec![alloc(full), alloc(large)]),
            (
                "lost",
                vec![
                    AcquireError::DeviceLost { buffer: buffer.clone(), arena: left.clone(), loss: None },
                    copy_failed(&left, TransferError::DeviceLost { loss: None }),
                    map(TransferError::DeviceLost {
                        loss: Some(DeviceLoss { device: "left".into(), cause: "gone".into() }),
                    }),
                    alloc(lost),
                ],
            ),
            (
                "nothing",
                vec![
                    AcquireError::Closed { buffer: buffer.clone() },
                    AcquireError::Finished,
                    copy_failed(&left, TransferError::Infeasible),
                    map(TransferError::StillLent),
                    alloc(AllocError::NotNew { arena: "left".into() }),
                ],
            ),
        ];
        for (expected, errors) in table {
            for error in errors {
                let answers = [
                    ("busy", error.is_busy()),
                    ("unreachable", error.is_unreachable()),
                    ("full", error.is_out_of_memory()),
                    ("lost", error.is_device_lost()),
                ];
                for (question, answer) in answers {
                    assert_eq!(answer, question == expected, "{question}: {error}");
                }
            }
        }
    }

    #[test]
    fn a_failed_copy_says_where_it_went() {
        let between = |to| copy_failed(&to, TransferError::Infeasible).to_string();
        let (within, across) = (between(arena(1, "left")), between(arena(2, "right")));
        assert!(within.contains("bytes 8..24 in left failed"), "{within}");
        assert!(across.contains("bytes 8..24 from left to right failed"), "{across}");
    }
}
