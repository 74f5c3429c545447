//! The fixed facts about an arena.

use crate::base::cost::Cost;
use crate::base::id::{DeviceId, DeviceSet};
use crate::base::sync::Arc;
use std::fmt;

/// The kind of memory that an arena wraps, such as `main_mem` or `opencl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArenaKind(pub &'static str);

impl fmt::Display for ArenaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The devices that may use one storage at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Concurrency {
    /// Either the native device or remote devices may use the storage, never both (a plain OpenCL buffer).
    Exclusive,
    /// The native device and the remote devices may all read at once.
    BimapRead,
    /// The storage is fully coherent: all devices may use it at once if their ranges do not conflict (main
    /// memory).
    BimapFull,
}

/// The fixed facts about an arena.
///
/// # Examples
/// ```
/// use dml_core::{ArenaDesc, ArenaKind, Concurrency, DeviceId, DeviceSet};
///
/// let (cpu, gpu) = (DeviceId(0), DeviceId(1));
/// // The memory of a GPU, which can be mapped for the host.
/// let desc = ArenaDesc::new("gpu:0", ArenaKind("gpu"), gpu).with_remotes(DeviceSet::of(cpu));
/// assert_eq!(desc.concurrency, Concurrency::Exclusive); // unless `with_concurrency` sets another one
/// assert!(!desc.is_always_bimapped());
/// ```
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaDesc {
    /// The name shown to users; unique in a platform (`main_mem`, `opencl:0`).
    pub name: Arc<str>,
    /// The kind of memory.
    pub kind: ArenaKind,
    /// The device whose kernels run on this memory. A [store](Self::store) has none, and the platform to
    /// which it is added gives it an id that stands for the store itself.
    pub native: DeviceId,
    /// The devices that can reach this memory without the help of another device. If the native device is one
    /// of them, the arena is always bimapped.
    pub remotes: DeviceSet,
    /// The devices that may use one storage at the same time.
    pub concurrency: Concurrency,
    /// The alignment of every internal allocation, in bytes; a power of two.
    pub alloc_align: u64,
    /// The estimated cost of one allocation, added to a path that would allocate here.
    pub alloc_cost: Cost,
    /// The description of a memory that no device describes, such as the disk model or the folder of a
    /// [store](Self::store). Measured speeds apply only to the same description. Empty by default.
    pub description: Arc<str>,
    /// Whether no device runs kernels on this memory.
    is_store: bool,
}

impl ArenaDesc {
    /// Describes an exclusive arena for the memory of `native`, which no other device can reach.
    #[must_use]
    pub fn new(name: &str, kind: ArenaKind, native: DeviceId) -> Self {
        Self {
            name: name.into(),
            kind,
            native,
            remotes: DeviceSet::EMPTY,
            concurrency: Concurrency::Exclusive,
            alloc_align: 64,
            alloc_cost: Cost::from_ns(1_000),
            description: "".into(),
            is_store: false,
        }
    }

    /// Describes memory on which no device runs kernels, such as a disk. Buffers are brought there by
    /// [`prefetch_in`](crate::RawBuffer::prefetch_in), and leave when they are used elsewhere.
    ///
    /// The platform gives the arena an internal device, which stands for the store where links, losses and
    /// errors name a device. [`Platform::devices`](crate::Platform::devices) does not list it, and nothing
    /// can be acquired for it.
    #[must_use]
    pub fn store(name: &str, kind: ArenaKind) -> Self {
        Self { is_store: true, ..Self::new(name, kind, DeviceId(u16::MAX)) }
    }

    /// Sets the remote devices.
    #[must_use]
    pub fn with_remotes(mut self, remotes: DeviceSet) -> Self {
        self.remotes = remotes;
        self
    }

    /// Sets the devices that may use one storage at the same time.
    #[must_use]
    pub fn with_concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets the alignment of internal allocations, in bytes.
    #[must_use]
    pub fn with_alloc_align(mut self, bytes: u64) -> Self {
        self.alloc_align = bytes;
        self
    }

    /// Sets the estimated cost of one allocation.
    #[must_use]
    pub fn with_alloc_cost(mut self, cost: Cost) -> Self {
        self.alloc_cost = cost;
        self
    }

    /// Sets the description of the memory.
    #[must_use]
    pub fn with_description(mut self, description: &str) -> Self {
        self.description = description.into();
        self
    }

    /// Returns whether no device runs kernels on this memory: see [`store`](Self::store).
    #[must_use]
    pub fn is_store(&self) -> bool {
        self.is_store
    }

    /// Returns whether the native device is also a remote one, so that it can access the storage in every map
    /// state.
    #[must_use]
    pub fn is_always_bimapped(&self) -> bool {
        self.remotes.contains(self.native)
    }
}
