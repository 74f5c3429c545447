//! Errors that an arena reports, and breaches of its contract.

use crate::base::id::DeviceId;
use crate::base::sync::Arc;
use crate::memory::desc::ArenaDesc;
use crate::memory::map_state::MapState;
use std::fmt;
use thiserror::Error;

/// Why an arena could not provide storage.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The memory has no room for the block.
    #[error("out of memory: {bytes} bytes in {arena}")]
    OutOfMemory {
        /// The arena's name.
        arena: Arc<str>,
        /// The size of the block asked for, in bytes.
        bytes: u64,
    },
    /// The size exceeds what the framework can express, so no memory of this kind could hold the block.
    #[error("allocation too large: {bytes} bytes in {arena}, at most {limit_bytes}")]
    TooLarge {
        /// The arena's name.
        arena: Arc<str>,
        /// The size of the block asked for, in bytes.
        bytes: u64,
        /// The largest block that the arena can be asked for, in bytes.
        limit_bytes: u64,
    },
    /// The arena returned a block that something else refers to as well.
    #[error("{arena} returned a block that is not new")]
    NotNew {
        /// The arena's name.
        arena: Arc<str>,
    },
    /// The arena returned a block over storage other than the requested one: another buffer's, or foreign
    /// storage instead of its own. The same error reports a block that comes with the host memory of another
    /// block.
    #[error("{arena} returned a block over other storage than requested")]
    OtherStorage {
        /// The arena's name.
        arena: Arc<str>,
    },
    /// The arena does not offer this kind of allocation.
    #[error("{arena} does not offer {what}")]
    Unsupported {
        /// The arena's name.
        arena: Arc<str>,
        /// The operation that was asked for.
        what: &'static str,
    },
    /// The device is lost.
    #[error("device lost: {arena}{}", of_cause(loss.as_ref()))]
    DeviceLost {
        /// The arena's name.
        arena: Arc<str>,
        /// The cause of the loss, in words, if it is known.
        loss: Option<Arc<str>>,
    },
    /// A call of the framework failed for a reason that has no variant of its own.
    #[error("{call} failed in {arena}: {message} (code {code})")]
    Framework {
        /// The arena's name.
        arena: Arc<str>,
        /// The name of the framework's call.
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
        /// The message of the panic.
        message: Arc<str>,
    },
}

impl AllocError {
    /// Returns the error of an arena that does not offer `what`.
    #[must_use]
    pub fn unsupported(desc: &ArenaDesc, what: &'static str) -> Self {
        Self::Unsupported { arena: desc.name.clone(), what }
    }

    /// Returns whether the memory was full or could never hold the size.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::TooLarge { .. })
    }

    /// Returns whether the device is lost.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        matches!(self, Self::DeviceLost { .. })
    }
}

/// Why bytes could not be moved, or a map state could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The framework's call failed.
    #[error("{call} failed: {message} (code {code})")]
    Framework {
        /// The name of the framework's call.
        call: &'static str,
        /// The framework's error code.
        code: i64,
        /// The code in words.
        message: Arc<str>,
    },
    /// Fewer bytes arrived than were sent.
    #[error("short copy: {done_bytes} of {requested_bytes} bytes")]
    Short {
        /// The number of bytes requested.
        requested_bytes: u64,
        /// The number of bytes that were moved.
        done_bytes: u64,
    },
    /// The arena reports more bytes than were requested. Which other bytes it overwrote is unknown.
    #[error("overrun copy: {done_bytes} bytes where {requested_bytes} were requested")]
    Overrun {
        /// The number of bytes requested.
        requested_bytes: u64,
        /// The number of bytes that the arena reports as moved.
        done_bytes: u64,
    },
    /// The device is lost.
    #[error("device lost{}", of_cause(loss.as_ref()))]
    DeviceLost {
        /// The device and the cause of its loss, if they are known.
        loss: Option<DeviceLoss>,
    },
    /// One end of the copy is mapped for the host, but its arena did not report the address.
    #[error("{arena} reported no host address for its bytes")]
    NoAddress {
        /// The arena's name.
        arena: Arc<str>,
    },
    /// The future has already completed and returned its result.
    #[error("future polled again after its work had ended")]
    Finished,
    /// The arena reports that the transfer has ended, but still holds memory that was lent for it.
    #[error("memory lent for the transfer was not returned")]
    StillLent,
    /// The mechanism was feasible when the copy was planned, and is not feasible now.
    #[error("the copy is not possible in the present state")]
    Infeasible,
    /// No host memory is available for the staging area.
    #[error("no host memory for a staging area of {bytes} bytes")]
    NoScratch {
        /// The size of the staging area, in bytes.
        bytes: u64,
    },
    /// The arena's code panicked.
    #[error("panic in arena code: {message}")]
    Panicked {
        /// The message of the panic.
        message: Arc<str>,
    },
}

impl TransferError {
    /// Returns whether the device is lost.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        matches!(self, Self::DeviceLost { .. })
    }
}

/// Which device is lost, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLoss {
    /// The device's name.
    pub device: Arc<str>,
    /// The cause of the loss, in words.
    pub cause: Arc<str>,
}

impl fmt::Display for DeviceLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.device, self.cause)
    }
}

/// Returns the end of the message of a loss, with the cause if it is known.
pub(crate) fn of_cause(loss: Option<&impl fmt::Display>) -> String {
    loss.map_or_else(String::new, |loss| format!(": {loss}"))
}

/// How an arena broke its contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breach {
    /// The arena reported a map state that denies a device access it needs, or grants access that was not
    /// asked for.
    Access {
        /// The device whose access is wrong.
        device: DeviceId,
    },
    /// The arena reported that the host has access, but did not report the address of the bytes.
    NoAddress,
    /// The arena returned the memory of another block.
    OtherMemory,
    /// The host memory of a block is too short, or else misaligned.
    HostMemory {
        /// The size of the host memory, in bytes.
        bytes: u64,
        /// The size that the block requires, in bytes.
        needed_bytes: u64,
    },
    /// The arena keeps memory lent for a transfer after it reported the end of that transfer.
    StillLent,
    /// The arena changed a map state without being asked.
    MapChanged {
        /// The state that core has recorded.
        known: MapState,
        /// The state that the arena reports.
        found: MapState,
    },
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Access { device } => {
                write!(f, "it reported a map state that does not fit the access of device {device}")
            }
            Self::NoAddress => f.write_str("it gave the host access without reporting the address"),
            Self::OtherMemory => f.write_str("it returned the memory of another block"),
            Self::HostMemory { bytes, needed_bytes } if bytes < needed_bytes => {
                write!(f, "its host memory of {bytes} bytes is too short: {needed_bytes} are needed")
            }
            Self::HostMemory { bytes, .. } => write!(f, "its host memory of {bytes} bytes is misaligned"),
            Self::StillLent => f.write_str("it keeps memory that was lent for a transfer reported as ended"),
            Self::MapChanged { known, found } => {
                write!(f, "it changed a map state from {known:?} to {found:?} without being asked")
            }
        }
    }
}
