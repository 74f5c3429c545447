//! Why devices cannot be had as they are asked for.

use thiserror::Error;

/// Why the requested devices cannot be used. A missing backend is not an error: see
/// [`Platform::unavailable`](dml_core::Platform::unavailable).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// The options name a device that this machine does not have.
    #[error("unknown device {name}: there are {}", known.join(", "))]
    UnknownDevice {
        /// The name that no device has.
        name: String,
        /// The names of the existing devices.
        known: Vec<String>,
    },
    /// The device cannot be limited to this many compute units.
    #[error("{device} cannot be limited to {units} compute units: {reason}")]
    BadLimit {
        /// The device's name.
        device: String,
        /// The requested limit.
        units: u32,
        /// Why the limit cannot be kept.
        reason: String,
    },
    /// The device's threads cannot be pinned to these cores.
    #[error("{device} cannot be kept on cores {cores:?}: {reason}")]
    BadPin {
        /// The device's name.
        device: String,
        /// The requested cores.
        cores: Vec<u32>,
        /// Why its threads cannot be pinned to these cores.
        reason: String,
    },
    /// The device cannot be bound to main memory.
    #[error("{device} cannot be bound to main memory: {reason}")]
    BadBinding {
        /// The device's name.
        device: String,
        /// Why the device cannot be bound.
        reason: String,
    },
    /// The device cannot share memory with others.
    #[error("{device} cannot share memory: {reason}")]
    BadSharing {
        /// The device's name.
        device: String,
        /// Why the device cannot share.
        reason: String,
    },
    /// A device that the options name exists but does not work, or the memory to share cannot be created.
    #[error("{device} cannot be used: {reason}")]
    Unusable {
        /// The device's name.
        device: String,
        /// Why the device does not work.
        reason: String,
    },
    /// The options have several problems: at least two.
    #[error("{}", listed(_0))]
    Several(Vec<Self>),
}

impl DiscoverError {
    /// Returns the error of all these problems, or nothing if there are none.
    pub(crate) fn of(mut problems: Vec<Self>) -> Result<(), Self> {
        match problems.len() {
            0 => Ok(()),
            1 => Err(problems.remove(0)),
            _ => Err(Self::Several(problems)),
        }
    }

    /// Creates the error of a device or a store that does not work.
    #[must_use]
    pub fn unusable(device: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unusable { device: device.into(), reason: reason.into() }
    }
}

/// Returns the problems on a line each.
fn listed(problems: &[DiscoverError]) -> String {
    let lines = problems.iter().map(|problem| format!("\n- {problem}"));
    format!("{} problems:{}", problems.len(), lines.collect::<String>())
}
