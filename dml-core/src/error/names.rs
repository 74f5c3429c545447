//! What errors call things by: arenas, buffers, and how an arena broke its contract.

use crate::id::{ArenaId, BufferId, DeviceId};
use crate::range::Span;
use crate::state::MapState;
use crate::sync::Arc;

/// An arena in an error: its id and the name people know it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaName {
    /// The arena.
    pub id: ArenaId,
    /// Its name, such as `opencl:0`.
    pub name: Arc<str>,
}

impl std::fmt::Display for ArenaName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// A buffer in an error: its id, and what the application said of it. One word, so that errors stay small.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BufferName(Arc<About>);

#[derive(Debug, PartialEq, Eq, Default)]
struct About {
    id: BufferId,
    label: Option<Arc<str>>,
    element_bytes: u64,
}

impl BufferName {
    pub(crate) fn new(id: BufferId, label: Option<Arc<str>>, element_bytes: u64) -> Self {
        Self(Arc::new(About { id, label, element_bytes }))
    }

    /// The buffer.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.0.id
    }

    /// The label, where the buffer has one.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.0.label.as_deref()
    }

    /// The size of the elements, in bytes; 1 for a buffer of bytes.
    #[must_use]
    pub fn element_bytes(&self) -> u64 {
        self.0.element_bytes.max(1)
    }

    /// Bytes of the buffer as people read them: as elements too, where it has any.
    #[must_use]
    pub fn bytes(&self, span: Span) -> String {
        match self.element_bytes() {
            0 | 1 => format!("{self} bytes {span}"),
            size => {
                let (first, last) = (span.start() / size, span.end().div_ceil(size));
                format!("{self} bytes {span} (elements {first}..{last})")
            }
        }
    }
}

impl PartialEq<BufferId> for BufferName {
    fn eq(&self, id: &BufferId) -> bool {
        self.id() == *id
    }
}

impl PartialEq<BufferName> for BufferId {
    fn eq(&self, name: &BufferName) -> bool {
        *self == name.id()
    }
}

impl From<BufferId> for BufferName {
    /// The name of a buffer of bytes without a label.
    fn from(id: BufferId) -> Self {
        Self::new(id, None, 1)
    }
}

impl std::fmt::Display for BufferName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.label() {
            Some(label) => write!(f, "{label:?} ({})", self.id()),
            None => self.id().fmt(f),
        }
    }
}

/// How an arena broke its contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breach {
    /// It reported a map state that does not give a device the access that it needs, or gives access to others.
    Access {
        /// The device.
        device: DeviceId,
    },
    /// It reported that the host has access and not where the bytes are.
    NoAddress,
    /// It gave the memory of another block.
    OtherMemory,
    /// The host memory of a block is shorter than the block has to be, or misaligned.
    HostMemory {
        /// The bytes that there are.
        bytes: u64,
        /// The bytes that there have to be.
        needed_bytes: u64,
    },
    /// It keeps what it was lent for a transfer that it says has ended.
    StillLent,
    /// It changed a map state unasked.
    MapChanged {
        /// The state as core knows it.
        known: MapState,
        /// The state as the arena has it.
        found: MapState,
    },
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Access { device } => {
                write!(f, "it reported a map state that does not fit the access of device {device}")
            }
            Self::NoAddress => f.write_str("it let the host in and did not say where the bytes are"),
            Self::OtherMemory => f.write_str("it gave the memory of another block"),
            Self::HostMemory { bytes, needed_bytes } => {
                write!(
                    f,
                    "its host memory of {bytes} bytes is too short or misaligned: {needed_bytes} are needed"
                )
            }
            Self::StillLent => f.write_str("it keeps what it was lent for a transfer that it says has ended"),
            Self::MapChanged { known, found } => {
                write!(f, "it changed a map state from {known:?} to {found:?} unasked")
            }
        }
    }
}
