//! A platform: the devices, arenas and links of one machine, fixed once built.

pub(crate) mod builder;
pub(crate) mod copies;
pub(crate) mod desc;
pub(crate) mod error;
pub(crate) mod explain;
pub(crate) mod hints;
pub(crate) mod outstanding;
pub(crate) mod own_block;
pub(crate) mod record;
pub(crate) mod registry;
pub(crate) mod stream;
pub(crate) mod topology;

use crate::base::counters::Counters;
use crate::base::forks;
use crate::base::guard::guard;
use crate::base::id::{ArenaId, BufferId, DeviceId, DeviceSet, LinkId, MAX_ARENAS, PlatformId};
use crate::base::names::BufferName;
use crate::base::sync::Arc;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::memory::arena::Arena;
use crate::memory::cross_arena::CrossArena;
use crate::memory::desc::{ArenaDesc, Concurrency};
use crate::memory::link::{Allocation, Link};
use crate::platform::builder::PlatformBuilder;
use crate::platform::desc::{DeviceDesc, DeviceKind, Unavailable};
use crate::platform::error::ConfigError;
use crate::platform::record::{Recorder, Recording};
use crate::platform::registry::Registry;
use crate::platform::stream::Streams;
use crate::platform::topology::Topology;
use crate::state::Routes;
use std::fmt;
use std::time::Duration;

pub(crate) struct PlatformInner {
    pub(crate) id: PlatformId,
    pub(crate) devices: Vec<DeviceDesc>,
    pub(crate) topology: Topology,
    pub(crate) unavailable: Vec<Unavailable>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) streams: Streams,
    /// Devices declared lost, one bit each.
    lost: AtomicU64,
    /// The value of [`forks::count`] when the host's arenas were last asked for losses.
    forks: std::sync::atomic::AtomicU64,
}

/// The memories and devices of one machine. A platform is immutable, cheap to clone, and shared by its
/// buffers.
///
/// # Examples
/// ```
/// # fn example(platform: &dml_core::Platform) -> Result<(), Box<dyn std::error::Error>> {
/// for device in platform.devices() {
///     println!("{}: {} ({} compute units)", device.name, device.description, device.compute_units);
/// }
/// let gpu = platform.device("cuda:0")?; // an error lists the names that exist
/// let field = platform.buffer::<f32>(1_000_000).zeroed().build()?;
/// let grants = platform.acquire(gpu).read_write(&field).wait()?; // brings the contents to the GPU
/// let address = grants.native(&field)?; // for a launch of the application's own
/// grants.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Platform(pub(crate) Arc<PlatformInner>);

impl Platform {
    /// Returns an empty builder.
    #[must_use]
    pub fn builder() -> PlatformBuilder {
        PlatformBuilder::default()
    }

    /// Returns the platform's id, which distinguishes it from all other platforms of the process.
    #[must_use]
    pub fn id(&self) -> PlatformId {
        self.0.id
    }

    /// Returns the devices; a [`DeviceId`] is an index into this slice.
    #[must_use]
    pub fn devices(&self) -> &[DeviceDesc] {
        &self.0.devices
    }

    /// Returns the ids of the devices, in the order of [`devices`](Self::devices).
    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.0.devices.len() as u16).map(DeviceId)
    }

    /// Returns the description of one device.
    ///
    /// # Panics
    /// When the platform has no device with this id.
    #[must_use]
    pub fn device_desc(&self, id: DeviceId) -> &DeviceDesc {
        &self.0.devices[usize::from(id.0)]
    }

    /// Returns the device with this name.
    ///
    /// # Errors
    /// [`ConfigError::UnknownDevice`] with the names of all devices. It also has the reason if the backend in
    /// the name is unavailable.
    pub fn device(&self, name: &str) -> Result<DeviceId, ConfigError> {
        let found = self.0.devices.iter().position(|device| &*device.name == name);
        found.map(|index| DeviceId(index as u16)).ok_or_else(|| ConfigError::UnknownDevice {
            name: name.to_owned(),
            known: self.0.devices.iter().map(|device| device.name.to_string()).collect(),
            missing: {
                let backend = name.split(':').next();
                let missing = self.unavailable().iter().find(|missing| Some(missing.backend) == backend);
                missing.cloned().map(Box::new)
            },
        })
    }

    /// Returns the arena with this name, such as a [store](ArenaDesc::store), which is no device's home.
    ///
    /// # Errors
    /// [`ConfigError::UnknownArena`] with the names of all arenas.
    pub fn arena_named(&self, name: &str) -> Result<ArenaId, ConfigError> {
        let descs = self.routes().arenas();
        let found = descs.iter().position(|desc| &*desc.name == name);
        found.map(|index| ArenaId(index as u8)).ok_or_else(|| ConfigError::UnknownArena {
            name: name.to_owned(),
            known: descs.iter().map(|desc| desc.name.to_string()).collect(),
        })
    }

    /// Returns the arenas; an [`ArenaId`] is an index into this slice.
    #[must_use]
    pub fn arenas(&self) -> &[Arc<dyn Arena>] {
        self.0.topology.arena_objects()
    }

    /// Returns one arena.
    ///
    /// # Panics
    /// When the platform has no arena with this id.
    #[must_use]
    pub fn arena(&self, id: ArenaId) -> &Arc<dyn Arena> {
        &self.arenas()[usize::from(id.0)]
    }

    /// Returns the description that an arena gave when it was added.
    ///
    /// # Panics
    /// When the platform has no arena with this id.
    #[must_use]
    pub fn desc(&self, id: ArenaId) -> &ArenaDesc {
        self.routes().arena(id)
    }

    /// Returns the arena that the kernels of a device use by default: the first one added for the device. No
    /// kernels run on the internal device of a [store](ArenaDesc::store), which has no home.
    #[must_use]
    pub fn home(&self, device: DeviceId) -> Option<ArenaId> {
        let is_home = |desc: &ArenaDesc| desc.native == device && !desc.is_store();
        self.routes().arenas().iter().position(is_home).map(|index| ArenaId(index as u8))
    }

    /// Returns the [home](Self::home) of a device if it is of this type, such as `OpenClArena`, which builds
    /// kernels.
    #[must_use]
    pub fn home_as<A: Arena>(&self, device: DeviceId) -> Option<&A> {
        self.arena(self.home(device)?).downcast_ref()
    }

    /// Returns the links; a [`LinkId`] is an index into this slice.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        self.0.topology.links()
    }

    /// Returns the copy mechanism of a link.
    ///
    /// # Panics
    /// When the platform has no link with this id.
    #[must_use]
    pub fn cross_arena(&self, link: LinkId) -> &Arc<dyn CrossArena> {
        self.0.topology.cross_arena(link)
    }

    /// Returns the arenas and links as the pure machine sees them, for code that drives the machine itself.
    #[doc(hidden)]
    #[must_use]
    pub fn routes(&self) -> &dyn Routes {
        &self.0.topology
    }

    /// Returns the backends that are unavailable on this machine, with the reasons.
    #[must_use]
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.0.unavailable
    }

    /// Returns the platform's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Returns the time since the platform was built, which is the clock of its [events](record::Event::at).
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.recorder.now()
    }

    /// Starts a recording of the events of all buffers of the platform. Several recordings may run at once.
    pub fn record(&self) -> Recording {
        Recording::start(self.0.recorder.clone())
    }

    /// Declares a device lost for every buffer of the platform; a store is lost with its internal device.
    /// Nothing in its memories is valid any more, and bytes that were valid only there are poisoned. Its
    /// outstanding grants will count as failed.
    pub fn device_lost(&self, device: DeviceId) {
        self.declare_lost(device);
    }

    /// Declares the device lost to all buffers that do not know it yet. Returns whether this was the first
    /// declaration.
    fn declare_lost(&self, device: DeviceId) -> bool {
        let is_listed = usize::from(device.0) < self.devices().len();
        if !is_listed && !self.routes().arenas().iter().any(|desc| desc.native == device) {
            return false;
        }
        let before = self.0.lost.fetch_or(1 << device.0, Ordering::SeqCst);
        for buffer in self.0.registry.live() {
            buffer.device_lost(device);
        }
        before & (1 << device.0) == 0
    }

    /// Asks every arena whether its device is lost, and [declares](Self::device_lost) those devices lost.
    /// Returns the devices that had not been declared before. An arena that panics counts as not lost.
    ///
    /// Core calls this after every failure of an allocation, a map change, a copy or a kernel. Applications
    /// call it when a device may have failed while it was unused.
    pub fn notice_losses(&self) -> DeviceSet {
        let arenas = self.arenas().iter().zip(self.routes().arenas());
        let gone = arenas.filter(|(arena, _)| guard(|| arena.is_lost()).unwrap_or(false));
        let gone: DeviceSet = gone.map(|(_, desc)| desc.native).collect();
        // Known losses are declared again: the first declaration may still be running, and all buffers must
        // know the loss on return.
        gone.iter().filter(|&device| self.declare_lost(device)).collect()
    }

    /// Declares lost, once in each forked process, the host memories and stores that it did not inherit.
    /// Bytes that are valid there would be granted without a call to any arena. Every other arena reports its
    /// loss when it is called.
    #[inline]
    pub(crate) fn notice_fork(&self) {
        if self.0.forks.load(Ordering::Relaxed) != forks::count() {
            self.notice_memories();
        }
    }

    #[cold]
    fn notice_memories(&self) {
        self.0.forks.store(forks::count(), Ordering::Relaxed);
        let host = self.host();
        let arenas = self.arenas().iter().zip(self.routes().arenas());
        let of_host = arenas.filter(|(_, desc)| desc.is_store() || Some(desc.native) == host);
        let gone = of_host.filter(|(arena, _)| guard(|| arena.is_lost()).unwrap_or(false));
        let gone: DeviceSet = gone.map(|(_, desc)| desc.native).collect();
        gone.iter().for_each(|device| _ = self.declare_lost(device));
    }

    /// Returns the devices declared lost so far, with the internal devices of lost stores.
    #[must_use]
    pub fn lost_devices(&self) -> DeviceSet {
        let lost = self.0.lost.load(Ordering::SeqCst);
        (0..MAX_ARENAS as u16).filter(|bit| lost & (1 << bit) != 0).map(DeviceId).collect()
    }

    /// Returns the name of a buffer. A buffer that the platform does not know gets a name without a label.
    pub(crate) fn name_of(&self, id: BufferId) -> BufferName {
        let found = self.0.registry.live().into_iter().find(|buffer| buffer.id() == id);
        found.map_or_else(|| BufferName::from(id), |buffer| buffer.name())
    }

    /// Returns the host processor: the first device of kind [`DeviceKind::Cpu`].
    #[must_use]
    pub fn host(&self) -> Option<DeviceId> {
        let found = self.0.devices.iter().position(|device| device.kind == DeviceKind::Cpu);
        found.map(|index| DeviceId(index as u16))
    }

    /// Returns the concurrency of the first link that binds `arena` to the storage of `root`.
    pub(crate) fn binding(&self, arena: ArenaId, root: ArenaId) -> Option<Concurrency> {
        self.links().iter().find_map(|link| match link.allocation {
            Allocation::Bound(concurrency) if link.from == root && link.to == arena => Some(concurrency),
            _ => None,
        })
    }
}

/// Returns the id of a new platform.
pub(crate) fn fresh_id() -> PlatformId {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    PlatformId(NEXT.fetch_add(1, Ordering::Relaxed))
}

impl fmt::Debug for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Platform")
            .field("devices", &self.0.devices.iter().map(|device| &*device.name).collect::<Vec<_>>())
            .field("arenas", &self.routes().arenas().iter().map(|desc| &*desc.name).collect::<Vec<_>>())
            .field("links", &self.links().len())
            .finish()
    }
}
