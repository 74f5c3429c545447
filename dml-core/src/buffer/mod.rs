//! Buffers, and the execution of their plans.

pub(crate) mod engine;
pub(crate) mod error;
pub(crate) mod handle;
pub(crate) mod lock;
pub(crate) mod locked;
pub(crate) mod shared_run;
pub(crate) mod storage;
pub(crate) mod wait;

use crate::base::id::{ArenaId, ArenaSet, BufferId, LinkId};
use crate::base::names::BufferName;
use crate::base::range::Span;
use crate::base::sync::Arc;
use crate::buffer::error::AcquireError;
use crate::buffer::handle::Handle;
use crate::buffer::lock::BufferInner;
use crate::buffer::locked::{External, Locked};
use crate::buffer::storage::{ArenaStorage, FreeOrder};
use crate::memory::block::BlockRef;
use crate::memory::host::HostMemory;
use crate::platform::Platform;
use crate::platform::error::ConfigError;
use crate::platform::hints::{Bindings, Hints};
use crate::platform::registry::Resident;
use crate::state::{Alloc, BufferState, EventKind, Initial, Routes as _};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The parameters of a new buffer.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) len: u64,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) element_bytes: u64,
    pub(crate) hints: Hints,
}

/// A buffer of bytes whose contents may be replicated in several arenas. Ranges are in bytes.
///
/// A buffer is cheap to clone: clones name the same buffer. Its storage is freed when the last clone, grant
/// and copy are gone.
///
/// # Examples
/// ```
/// # use dml_core::{DeviceId, Platform};
/// # fn example(platform: &Platform, cpu: DeviceId) -> Result<(), Box<dyn std::error::Error>> {
/// let buffer = platform.raw_buffer(4096).build()?;
/// let header = buffer.range(0..64);
/// let mut grants = platform.acquire(cpu).write(&header).wait()?;
/// grants.slice_mut::<u64>(&header)?.fill(7);
/// grants.release()?;
/// assert!(buffer.is_readable(0..64)? && !buffer.is_readable(64..4096)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RawBuffer(pub(crate) Handle);

impl RawBuffer {
    pub(crate) fn create(platform: &Platform, made: Made, initial: Initial) -> Result<Self, ConfigError> {
        if isize::try_from(made.len).is_err() {
            return Err(ConfigError::TooLarge { elements: made.len, element_bytes: 1 });
        }
        let bindings = platform.bindings_for(&made.hints)?;
        Ok(Self::make(platform, made, (initial, bindings), None))
    }

    /// Creates a buffer over the application's storage, which holds its first contents. The storage consists
    /// of the container and its memory as an arena's block.
    pub(crate) fn with_storage(
        platform: &Platform,
        made: Made,
        arena: ArenaId,
        (container, memory, block): (External, HostMemory, BlockRef),
    ) -> Self {
        let storage = ArenaStorage::new(block, Some(memory), FreeOrder::External);
        Self::make(platform, made, (Initial::External(arena), None), Some((container, storage)))
    }

    fn make(
        platform: &Platform,
        made: Made,
        (initial, bindings): (Initial, Option<Bindings>),
        external: Option<(External, ArenaStorage)>,
    ) -> Self {
        let len = made.len;
        platform.0.topology.price_up_to(len);
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let state = BufferState::new(&platform.0.topology, len, initial);
        let data_in = match initial {
            Initial::External(arena) => Some(arena),
            Initial::Undefined | Initial::Zeroed => None,
        };
        let external = data_in.zip(external).map(|(arena, (container, storage))| (arena, container, storage));
        let id = BufferId(NEXT.fetch_add(1, Ordering::Relaxed));
        let inner = Arc::new(BufferInner::new(id, made, platform, bindings, Locked::new(state, external)));
        inner.record(|| EventKind::Created { len, data_in, zeroed: initial == Initial::Zeroed });
        let resident: Arc<dyn Resident> = inner.clone();
        inner.slot.store(platform.0.registry.add(Arc::downgrade(&resident)), Ordering::Relaxed);
        // A loss declared before the registration did not reach this buffer.
        for device in platform.lost_devices().iter() {
            inner.device_lost(device);
        }
        Self(Handle::new(inner))
    }

    /// Returns the buffer's id. The order of ids is the canonical acquire order.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.0.id
    }

    /// Returns the buffer's name in errors: its id, and its label if it has one.
    #[must_use]
    pub fn name(&self) -> BufferName {
        self.0.name()
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Returns whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns the platform that the buffer belongs to.
    #[must_use]
    pub fn platform(&self) -> &Platform {
        &self.0.platform
    }

    /// Returns a copy of the present state, for diagnostics and tests.
    #[must_use]
    pub fn snapshot(&self) -> BufferState {
        self.0.read(|locked| locked.state.clone())
    }

    /// Returns whether all of these bytes are readable. They were written, or are zeros from the start, and
    /// no loss or failed writer has invalidated them since. The result does not depend on the present users.
    ///
    /// # Errors
    /// [`AcquireError::OutOfRange`].
    pub fn is_readable(&self, bytes: Range<u64>) -> Result<bool, AcquireError> {
        let span = self.span(&bytes)?;
        Ok(self.0.read(|locked| locked.state.is_readable(span)))
    }

    /// Calls `each` for the parts of these bytes, in order: with the length of the part, and the arenas that
    /// hold its latest contents. The set may be empty for zeros, for unwritten and for lost bytes. Bytes
    /// beyond the buffer are left out.
    ///
    /// `each` runs without the buffer's lock, so its arguments may be stale.
    pub fn valid_in(&self, bytes: Range<u64>, mut each: impl FnMut(u64, ArenaSet)) {
        let span =
            Span::new(bytes.start.min(self.0.len), bytes.end.clamp(bytes.start.min(self.0.len), self.0.len));
        let parts: SmallVec<[(u64, ArenaSet); 4]> = self.0.read(|locked| {
            let parts = locked.state.segments().in_span(span);
            parts.map(|(part, content)| (part.len(), content.valid)).collect()
        });
        parts.into_iter().for_each(|(length, valid)| each(length, valid));
    }

    /// Returns whether two arenas use one storage of the buffer, so that no bytes move between them. For an
    /// arena without storage, the result assumes the binding that its first use would make, as the links and
    /// the buffer's hints require. Returns `false` for an arena that the platform does not have.
    #[must_use]
    pub fn shares_storage(&self, one: ArenaId, other: ArenaId) -> bool {
        let platform = &self.0.platform;
        let is_there = |arena: ArenaId| usize::from(arena.0) < platform.arenas().len();
        is_there(one) && is_there(other) && {
            let allocs = self.0.read(|locked| [one, other].map(|arena| locked.state.arena(arena).alloc));
            let routes = self.0.routes();
            let root = |arena: ArenaId, alloc: Alloc| match alloc {
                Alloc::Bound { root, .. } => root,
                Alloc::Internal | Alloc::External => arena,
                Alloc::Unallocated => {
                    let mut links = (0..).map(LinkId).zip(routes.links());
                    links
                        .find(|(id, link)| link.to == arena && routes.is_needed(*id))
                        .map_or(arena, |(_, link)| link.from)
                }
            };
            root(one, allocs[0]) == root(other, allocs[1])
        }
    }

    /// Returns the arena of an application's storage whose container satisfies `is_it`. An arena that is not
    /// lost comes first, because a lost one cannot be read.
    ///
    /// # Errors
    /// [`AcquireError::NoContainer`], or [`AcquireError::Wedged`] if the containers were leaked.
    pub(crate) fn external(&self, is_it: impl Fn(&External) -> bool) -> Result<ArenaId, AcquireError> {
        let buffer = self.0.name();
        self.0.read(|locked| {
            let those = locked.external().iter().filter(|(_, container)| is_it(container));
            match those.map(|(arena, _)| *arena).min_by_key(|arena| locked.state.arena(*arena).is_lost()) {
                Some(arena) => Ok(arena),
                None if locked.is_leaked => Err(AcquireError::Wedged { buffer }),
                None => Err(AcquireError::NoContainer { buffer }),
            }
        })
    }

    pub(crate) fn span(&self, bytes: &Range<u64>) -> Result<Span, AcquireError> {
        let out = || AcquireError::OutOfRange {
            buffer: self.0.name(),
            start: bytes.start,
            end: bytes.end,
            len: self.0.len,
        };
        Span::checked(bytes, self.0.len).ok_or_else(out)
    }
}

impl PartialEq for RawBuffer {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for RawBuffer {}
