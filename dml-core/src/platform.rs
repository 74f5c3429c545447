//! A platform: the devices, arenas and links of one machine, fixed once built.

use crate::acquire::Acquire;
use crate::arena::{Arena, ArenaDesc, Concurrency};
use crate::buffer::{RawBuffer, Registry};
use crate::cross_arena::{Allocation, CrossArena, HostStaged, Link};
use crate::engine::guard;
use crate::error::{AcquireError, BufferName, ConfigError, TopologyError, Unstored};
use crate::id::{ArenaId, BufferId, DeviceId, DeviceSet, LinkId, MAX_ARENAS};
use crate::outstanding::Outstanding;
use crate::record::{Counters, Recorder, Recording};
use crate::state::Routes;
use crate::sync::Arc;
use crate::topology::Topology;
use crate::typed::{Buffer, BufferBuilder, RawBufferBuilder};
use bytemuck::Pod;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sort of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A processor: the host's own, which is the first device of this kind, or its cores behind another framework.
    Cpu,
    /// A graphics processor.
    Gpu,
    /// Anything else that runs kernels.
    Accelerator,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Accelerator => "accelerator",
        })
    }
}

/// A device as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceDesc {
    /// The name used on command lines, unique in a platform (`cpu`, `opencl:0`).
    pub name: Arc<str>,
    /// The sort of device.
    pub kind: DeviceKind,
    /// What the vendor calls it.
    pub description: String,
    /// How many compute units (threads, multiprocessors) it may use.
    pub units: u32,
}

impl DeviceDesc {
    /// A device of one compute unit.
    #[must_use]
    pub fn new(name: &str, kind: DeviceKind) -> Self {
        Self { name: name.into(), kind, description: String::new(), units: 1 }
    }

    /// Sets the vendor's description.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Sets the number of compute units.
    #[must_use]
    pub fn with_units(mut self, units: u32) -> Self {
        self.units = units;
        self
    }
}

/// A backend that this machine lacks, and why: an ordinary value, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The backend, such as `opencl`.
    pub backend: &'static str,
    /// Why it cannot be used.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.reason)
    }
}

/// Collects devices, arenas and links; everything is checked in [`build`](Self::build).
#[derive(Debug, Default)]
pub struct PlatformBuilder {
    devices: Vec<DeviceDesc>,
    arenas: Vec<Arc<dyn Arena>>,
    /// What the arenas said of themselves when they were added.
    descs: Vec<ArenaDesc>,
    links: Vec<(Link, Arc<dyn CrossArena>)>,
    unavailable: Vec<Unavailable>,
    no_default_links: bool,
    no_path_cache: bool,
}

impl PlatformBuilder {
    /// Adds a device and returns its id: devices are numbered in the order in which they are added.
    pub fn add_device(&mut self, desc: DeviceDesc) -> DeviceId {
        self.devices.push(desc);
        DeviceId(u16::try_from(self.devices.len() - 1).unwrap_or(u16::MAX))
    }

    /// Adds an arena and returns its id. The first arena added for a native device is that device's home: the one
    /// its kernels use unless another is named.
    pub fn add_arena(&mut self, arena: Arc<dyn Arena>) -> ArenaId {
        self.descs.push(arena.desc().clone());
        self.arenas.push(arena);
        ArenaId(u8::try_from(self.arenas.len() - 1).unwrap_or(u8::MAX))
    }

    /// Adds a copy mechanism between two arenas. A pair may have several.
    pub fn add_link(&mut self, link: Link, cross_arena: Arc<dyn CrossArena>) {
        self.links.push((link, cross_arena));
    }

    /// Notes a backend that is missing on this machine, for people to see.
    pub fn add_unavailable(&mut self, unavailable: Unavailable) {
        self.unavailable.push(unavailable);
    }

    /// The devices added so far.
    #[must_use]
    pub fn devices(&self) -> &[DeviceDesc] {
        &self.devices
    }

    /// The arenas added so far.
    #[must_use]
    pub fn arenas(&self) -> &[Arc<dyn Arena>] {
        &self.arenas
    }

    /// What the arenas added so far said of themselves.
    #[must_use]
    pub fn descs(&self) -> &[ArenaDesc] {
        &self.descs
    }

    /// Leaves pairs of arenas without a link unconnected, instead of joining them by [`HostStaged`] copies.
    #[must_use]
    pub fn without_default_links(mut self) -> Self {
        self.no_default_links = true;
        self
    }

    /// Plans every path afresh. For tests that compare plans, and for models that count interleavings.
    #[must_use]
    pub fn without_path_cache(mut self) -> Self {
        self.no_path_cache = true;
        self
    }

    /// Checks everything and makes the platform.
    ///
    /// # Errors
    /// [`ConfigError::Topology`] with every problem there is, not only the first.
    pub fn build(mut self) -> Result<Platform, ConfigError> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(ConfigError::Topology(problems));
        }
        if !self.no_default_links {
            self.add_default_links();
        }
        self.add_ways_back();
        // Those added here count as well: beyond the limit an id would name another link.
        if let Some(problem) = too_many("links", self.links.len(), MAX_LINKS) {
            return Err(ConfigError::Topology(vec![problem]));
        }
        let counters = Counters::new(self.links.len());
        let topology = Topology::new(self.arenas, self.descs, self.links, !self.no_path_cache);
        Ok(Platform(Arc::new(PlatformInner {
            devices: self.devices,
            topology,
            unavailable: self.unavailable,
            counters,
            recorder: Arc::new(Recorder::new()),
            registry: Registry::default(),
            lost: AtomicU64::new(0),
        })))
    }

    /// Joins every pair that has no link of its own by staged copies through the host.
    fn add_default_links(&mut self) {
        let ids = || (0..self.arenas.len() as u8).map(ArenaId);
        let mut pairs: Vec<_> = ids().flat_map(|from| ids().map(move |to| (from, to))).collect();
        pairs.retain(|&(from, to)| from != to && !self.copies(from, to));
        // Pairs with a processor's memory first: the others are priced by them.
        let is_cpu = |arena| self.devices[usize::from(self.native(arena).0)].kind == DeviceKind::Cpu;
        pairs.sort_by_key(|&(from, to)| (!is_cpu(from) && !is_cpu(to), from, to));
        for (from, to) in pairs {
            let (source_via, target_via) = (self.native(from), self.native(to));
            let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
            let staged = self.staged(from, to);
            self.links.push((link, Arc::new(staged)));
        }
    }

    /// A staged copy between two arenas, priced by the ways to the host and from it where both are known.
    fn staged(&self, from: ArenaId, to: ArenaId) -> HostStaged {
        let is_cpu = |device: DeviceId| self.devices[usize::from(device.0)].kind == DeviceKind::Cpu;
        let host = self.descs.iter().position(|desc| is_cpu(desc.native));
        let host = host.map(|index| ArenaId(index as u8)).filter(|&host| host != from && host != to);
        let way = |from: ArenaId, to: ArenaId| {
            let moves =
                |link: &Link| link.from == from && link.to == to && link.allocation == Allocation::Internal;
            let direct = |link: &Link| {
                moves(link) && link.source_via == self.native(from) && link.target_via == self.native(to)
            };
            self.links.iter().find(|(link, _)| direct(link)).map(|(_, cross_arena)| cross_arena.clone())
        };
        match host.and_then(|host| Some((way(from, host)?, way(host, to)?))) {
            Some((to_host, from_host)) => HostStaged::of_halves(to_host, from_host),
            None => HostStaged::default(),
        }
    }

    fn native(&self, arena: ArenaId) -> DeviceId {
        self.descs[usize::from(arena.0)].native
    }

    /// Lets data come back from every binding: where the pair has none the other way round, by a change of map state
    /// alone.
    fn add_ways_back(&mut self) {
        let shares = |link: &Link| link.allocation != Allocation::Internal;
        for (link, cross_arena) in self.links.clone() {
            let back = |other: &Link| other.from == link.to && other.to == link.from && shares(other);
            if shares(&link) && !self.links.iter().any(|(other, _)| back(other)) {
                let back = Link {
                    from: link.to,
                    to: link.from,
                    source_via: link.target_via,
                    target_via: link.source_via,
                    allocation: Allocation::Shared,
                };
                self.links.push((back, cross_arena));
            }
        }
    }

    /// Whether a link moves bytes between the two; one that only binds them does not.
    fn copies(&self, from: ArenaId, to: ArenaId) -> bool {
        let moves = |link: &Link| link.allocation == Allocation::Internal;
        self.links.iter().any(|(link, _)| link.from == from && link.to == to && moves(link))
    }

    fn problems(&self) -> Vec<TopologyError> {
        let mut problems = Vec::new();
        let limits = [
            ("devices", self.devices.len(), MAX_ARENAS),
            ("arenas", self.arenas.len(), MAX_ARENAS),
            ("links", self.links.len(), MAX_LINKS),
        ];
        problems.extend(limits.into_iter().filter_map(|(what, count, limit)| too_many(what, count, limit)));
        let device_names = self.devices.iter().map(|device| &device.name);
        let arena_names = self.descs.iter().map(|desc| &desc.name);
        problems.extend(duplicates("devices", device_names).chain(duplicates("arenas", arena_names)));
        for desc in &self.descs {
            let known = |device: DeviceId| usize::from(device.0) < self.devices.len();
            for device in std::iter::once(desc.native).chain(desc.remotes.iter()) {
                if !known(device) {
                    problems.push(TopologyError::UnknownDevice { arena: desc.name.clone(), device });
                }
            }
            if !desc.alloc_align.is_power_of_two() {
                problems.push(TopologyError::BadAlign { arena: desc.name.clone(), align: desc.alloc_align });
            }
        }
        for (link, _) in &self.links {
            problems.extend(self.link_problem(link));
        }
        problems
    }

    fn link_problem(&self, link: &Link) -> Option<TopologyError> {
        let arena = |id: ArenaId| self.descs.get(usize::from(id.0));
        let (Some(from), Some(to)) = (arena(link.from), arena(link.to)) else {
            return Some(TopologyError::BadLink { from: link.from, to: link.to });
        };
        if link.from == link.to {
            return Some(TopologyError::BadLink { from: link.from, to: link.to });
        }
        if let Allocation::Bound(concurrency) = link.allocation {
            // Either end must be able to take the storage from the other's device.
            let stuck = |end: &ArenaDesc| end.remotes.is_empty() && concurrency != Concurrency::BimapFull;
            if let Some(end) = [from, to].into_iter().find(|end| stuck(end)) {
                return Some(TopologyError::Unbindable {
                    from: from.name.clone(),
                    to: to.name.clone(),
                    arena: end.name.clone(),
                });
            }
            // An arena whose map states cannot express the sharing cannot take part in it.
            if let Some(end) = [from, to].into_iter().find(|end| end.concurrency < concurrency) {
                return Some(TopologyError::WiderBinding {
                    from: from.name.clone(),
                    to: to.name.clone(),
                    arena: end.name.clone(),
                    link: concurrency,
                    own: end.concurrency,
                });
            }
        }
        [(from, link.source_via), (to, link.target_via)]
            .into_iter()
            .find(|(end, via)| *via != end.native && !end.remotes.contains(*via))
            .map(|(end, device)| TopologyError::LinkDevice {
                from: from.name.clone(),
                to: to.name.clone(),
                arena: end.name.clone(),
                device,
            })
    }
}

/// The most links that ids can tell apart.
const MAX_LINKS: usize = u16::MAX as usize;

fn too_many(what: &'static str, count: usize, limit: usize) -> Option<TopologyError> {
    (count > limit).then_some(TopologyError::TooMany { what, count, limit })
}

fn duplicates<'a>(
    what: &'static str,
    names: impl Iterator<Item = &'a Arc<str>>,
) -> impl Iterator<Item = TopologyError> {
    let mut seen = std::collections::BTreeSet::new();
    names
        .filter(move |name| !seen.insert(name.to_string()))
        .map(move |name| TopologyError::DuplicateName { what, name: name.clone() })
        .collect::<Vec<_>>()
        .into_iter()
}

pub(crate) struct PlatformInner {
    pub(crate) devices: Vec<DeviceDesc>,
    pub(crate) topology: Topology,
    pub(crate) unavailable: Vec<Unavailable>,
    pub(crate) counters: Counters,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) registry: Registry,
    /// Devices declared lost, one bit each.
    lost: AtomicU64,
}

/// The memories and devices of one machine. Immutable, cheap to clone, shared by its buffers.
#[derive(Clone)]
pub struct Platform(pub(crate) Arc<PlatformInner>);

impl Platform {
    /// An empty builder.
    #[must_use]
    pub fn builder() -> PlatformBuilder {
        PlatformBuilder::default()
    }

    /// The devices; a [`DeviceId`] is an index here.
    #[must_use]
    pub fn devices(&self) -> &[DeviceDesc] {
        &self.0.devices
    }

    /// The device of a name.
    ///
    /// # Errors
    /// [`ConfigError::UnknownDevice`] with the names there are.
    pub fn device(&self, name: &str) -> Result<DeviceId, ConfigError> {
        let found = self.0.devices.iter().position(|device| &*device.name == name);
        found.map(|index| DeviceId(index as u16)).ok_or_else(|| ConfigError::UnknownDevice {
            name: name.to_owned(),
            known: self.0.devices.iter().map(|device| device.name.to_string()).collect(),
        })
    }

    /// The arenas; an [`ArenaId`] is an index here.
    #[must_use]
    pub fn arenas(&self) -> &[Arc<dyn Arena>] {
        self.0.topology.arena_objects()
    }

    /// One arena.
    ///
    /// # Panics
    /// When the id is not of this platform.
    #[must_use]
    pub fn arena(&self, id: ArenaId) -> &Arc<dyn Arena> {
        &self.arenas()[usize::from(id.0)]
    }

    /// What an arena said of itself when it was added.
    ///
    /// # Panics
    /// When the id is not of this platform.
    #[must_use]
    pub fn desc(&self, id: ArenaId) -> &ArenaDesc {
        self.routes().arena(id)
    }

    /// The arena that the kernels of a device use unless another is named: the first one added for it.
    #[must_use]
    pub fn home(&self, device: DeviceId) -> Option<ArenaId> {
        self.routes().arenas().iter().position(|desc| desc.native == device).map(|index| ArenaId(index as u8))
    }

    /// The links; a [`LinkId`] is an index here.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        self.0.topology.links()
    }

    /// The mechanism of a link.
    ///
    /// # Panics
    /// When the id is not of this platform.
    #[must_use]
    pub fn cross_arena(&self, link: LinkId) -> &Arc<dyn CrossArena> {
        self.0.topology.cross_arena(link)
    }

    /// The arenas and links as the pure machine sees them: for those who drive [`state`](crate::state) themselves.
    #[must_use]
    pub fn routes(&self) -> &dyn Routes {
        &self.0.topology
    }

    /// Backends this machine lacks, and why.
    #[must_use]
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.0.unavailable
    }

    /// The platform's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Starts recording the events of every buffer of the platform. Several recordings may run at once.
    pub fn record(&self) -> Recording {
        Recording::start(self.0.recorder.clone())
    }

    /// Starts a buffer of `elements` elements of `T`, with no storage yet.
    pub fn buffer<T: Pod>(&self, elements: u64) -> BufferBuilder<T> {
        BufferBuilder::new(self.clone(), elements)
    }

    /// Starts a buffer of `len` bytes, with no storage yet.
    pub fn raw_buffer(&self, len: u64) -> RawBufferBuilder {
        RawBufferBuilder::new(self.clone(), len)
    }

    /// A buffer over the application's own storage, moved in. Nothing is copied.
    ///
    /// # Errors
    /// [`Unstored`] with the storage inside, where no arena of the platform takes it.
    pub fn buffer_from<T: Pod + fmt::Debug + Send + Sync, S: crate::host::Storage<T>>(
        &self,
        storage: S,
    ) -> Result<Buffer<T>, Unstored<S>> {
        Buffer::from_storage(self, storage)
    }

    /// Whether a buffer belongs to this platform.
    #[must_use]
    pub fn owns(&self, buffer: &RawBuffer) -> bool {
        Arc::ptr_eq(&self.0, &buffer.platform().0)
    }

    /// Declares a device gone, for every buffer of the platform: its memories hold nothing valid any more, bytes
    /// that lived only there are poisoned, and its outstanding grants will count as failed.
    pub fn device_lost(&self, device: DeviceId) {
        self.declare_lost(device);
    }

    /// Declares the device gone, to those buffers that do not know of it yet; whether nobody had declared it before.
    fn declare_lost(&self, device: DeviceId) -> bool {
        if usize::from(device.0) >= self.devices().len() {
            return false;
        }
        let before = self.0.lost.fetch_or(1 << device.0, Ordering::SeqCst);
        for buffer in self.0.registry.live() {
            buffer.device_lost(device);
        }
        before & (1 << device.0) == 0
    }

    /// Asks every arena whether its device is gone, and [declares](Self::device_lost) those devices lost that are; which
    /// of them nobody had declared before. An arena that panics over the question counts as being there.
    ///
    /// Core asks by itself whenever an allocation, a change of map state, a copy or a kernel has failed. Others ask where
    /// a device may have gone while nobody used it.
    pub fn notice_losses(&self) -> DeviceSet {
        let arenas = self.arenas().iter().zip(self.routes().arenas());
        let gone = arenas.filter(|(arena, _)| guard(|| arena.is_lost()).unwrap_or(false));
        let gone: DeviceSet = gone.map(|(_, desc)| desc.native).collect();
        // Those declared already are declared again: whoever did it first may be half way, and on return all must know.
        gone.iter().filter(|&device| self.declare_lost(device)).collect()
    }

    /// The devices declared lost so far.
    #[must_use]
    pub fn lost_devices(&self) -> DeviceSet {
        let lost = self.0.lost.load(Ordering::SeqCst);
        (0..MAX_ARENAS as u16).filter(|bit| lost & (1 << bit) != 0).map(DeviceId).collect()
    }

    /// The grants of all buffers that have not ended: see [`RawBuffer::leaked_grants`].
    #[must_use]
    pub fn leaked_grants(&self) -> Vec<Outstanding> {
        self.0.registry.live().iter().flat_map(|buffer| buffer.outstanding()).collect()
    }

    /// The name of a buffer, as far as it is one of this platform's.
    pub(crate) fn name_of(&self, id: BufferId) -> BufferName {
        let found = self.0.registry.live().into_iter().find(|buffer| buffer.id == id);
        found.map_or_else(|| BufferName::new(id, None, 1), |buffer| buffer.name())
    }

    /// The host processor: the first device of kind [`DeviceKind::Cpu`].
    #[must_use]
    pub fn host(&self) -> Option<DeviceId> {
        let found = self.0.devices.iter().position(|device| device.kind == DeviceKind::Cpu);
        found.map(|index| DeviceId(index as u16))
    }

    /// Starts an acquire for kernels of a device.
    pub fn acquire(&self, device: DeviceId) -> Acquire {
        Acquire::new(self.clone(), self.home(device).ok_or(AcquireError::NoArena { device }))
    }

    /// Starts an acquire through a certain arena, where a device has several.
    pub fn acquire_in(&self, arena: ArenaId) -> Acquire {
        Acquire::new(self.clone(), self.knows(arena).map(|()| arena))
    }

    /// Checks an arena's id that came from outside.
    pub(crate) fn knows(&self, arena: ArenaId) -> Result<(), AcquireError> {
        let known = usize::from(arena.0) < self.arenas().len();
        if known { Ok(()) } else { Err(AcquireError::NoSuchArena { arena }) }
    }

    /// Links that bind `arena` to the storage of `root`.
    pub(crate) fn binding(&self, arena: ArenaId, root: ArenaId) -> Option<Concurrency> {
        self.links().iter().find_map(|link| match link.allocation {
            Allocation::Bound(concurrency) if link.from == root && link.to == arena => Some(concurrency),
            _ => None,
        })
    }
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
