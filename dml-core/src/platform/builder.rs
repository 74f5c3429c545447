//! The parts of a platform, checked when it is built.

use crate::base::counters::Counters;
use crate::base::forks;
use crate::base::guard::{Quiet, quietly};
use crate::base::id::{ArenaId, DeviceId, MAX_ARENAS};
use crate::base::sync::Arc;
use crate::base::sync::atomic::AtomicU64;
use crate::memory::arena::Arena;
use crate::memory::cross_arena::CrossArena;
use crate::memory::desc::{ArenaDesc, Concurrency};
use crate::memory::link::{Allocation, Link};
use crate::memory::staged::HostStaged;
use crate::platform::desc::{DeviceDesc, DeviceKind, Unavailable};
use crate::platform::error::{ConfigError, TopologyError};
use crate::platform::record::Recorder;
use crate::platform::registry::Registry;
use crate::platform::stream::Streams;
use crate::platform::topology::{Topology, Wishes};
use crate::platform::{Platform, PlatformInner};
use std::collections::BTreeSet;
use std::mem::take;

/// Collects devices, arenas and links. [`build`](Self::build) checks all of them.
///
/// # Examples
/// ```
/// # use dml_core::{Arena, ConfigError, DeviceDesc, DeviceId, DeviceKind, Platform};
/// # use std::sync::Arc;
/// # fn example(arena_of: impl Fn(DeviceId) -> Arc<dyn Arena>) -> Result<(), ConfigError> {
/// let mut builder = Platform::builder();
/// let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu).with_compute_units(8));
/// let gpu = builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
/// builder.add_arena(arena_of(cpu)); // an `Arc<dyn Arena>` whose native device is `cpu`
/// builder.add_arena(arena_of(gpu));
/// let platform = builder.build()?; // links the two by copies through the host
/// assert_eq!(platform.links().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PlatformBuilder {
    devices: Vec<DeviceDesc>,
    arenas: Vec<Arc<dyn Arena>>,
    /// The descriptions that the arenas gave when they were added (A-7).
    descs: Vec<ArenaDesc>,
    links: Vec<(Link, Arc<dyn CrossArena>)>,
    unavailable: Vec<Unavailable>,
    wishes: Wishes,
    /// Arenas that get no default links.
    apart: BTreeSet<ArenaId>,
    no_default_links: bool,
    no_path_cache: bool,
}

impl PlatformBuilder {
    /// Adds a device and returns its id. Ids follow the order of addition.
    pub fn add_device(&mut self, desc: DeviceDesc) -> DeviceId {
        self.devices.push(desc);
        DeviceId(u16::try_from(self.devices.len() - 1).unwrap_or(u16::MAX))
    }

    /// Adds an arena and returns its id. The first arena added for a native device is that device's home,
    /// which its kernels use by default. A [store](ArenaDesc::store) gets an internal device of its own.
    pub fn add_arena(&mut self, arena: Arc<dyn Arena>) -> ArenaId {
        // An arena that panics here may panic again when it is dropped.
        let arena = Quiet::new(arena);
        let mut desc = arena.desc().clone();
        if desc.is_store() {
            // Internal devices are numbered from the largest id down, so that ids can be assigned before all
            // devices are added.
            let number = MAX_ARENAS.saturating_sub(1 + self.stores());
            desc.native = DeviceId(number as u16);
        }
        self.descs.push(desc);
        self.arenas.push(arena.into_inner());
        ArenaId(u8::try_from(self.arenas.len() - 1).unwrap_or(u8::MAX))
    }

    /// Adds a copy mechanism between two arenas. A pair of arenas may have several.
    pub fn add_link(&mut self, link: Link, cross_arena: Arc<dyn CrossArena>) {
        self.links.push((link, cross_arena));
    }

    /// Makes `member` share the storage of `root` wherever a link can bind it. By default, core binds an
    /// arena at its first use only if no copies lead to the root and back. Otherwise each arena has storage
    /// of its own.
    ///
    /// [`build`](Self::build) refuses a preference that no link can follow
    /// ([`TopologyError::NoBinding`]).
    ///
    /// A request then waits for users of the root that the binding's concurrency excludes. The preference has
    /// no effect on an arena that takes part in a needed binding.
    pub fn prefer_binding(&mut self, root: ArenaId, member: ArenaId) {
        self.wishes.preferred.insert((root, member));
    }

    /// Restricts the binding of `member` to `root` to buffers whose [hints](crate::Hints) request it. Without
    /// this call, core also uses a link that binds the two when it is cheaper than a copy. Bindings that are
    /// needed, [preferred](Self::prefer_binding) or made by the application are not affected.
    ///
    /// [`build`](Self::build) refuses a pair that no link can bind
    /// ([`TopologyError::NoBinding`]).
    pub fn allow_binding(&mut self, root: ArenaId, member: ArenaId) {
        self.wishes.allowed.insert((root, member));
    }

    /// Replaces the mechanism of each link added so far, in the order of addition. `replace` gets each link
    /// with its mechanism, and returns the new mechanism.
    pub fn replace_mechanisms(
        &mut self,
        mut replace: impl FnMut(&Link, Arc<dyn CrossArena>) -> Arc<dyn CrossArena>,
    ) {
        for (link, mechanism) in &mut self.links {
            *mechanism = replace(link, mechanism.clone());
        }
    }

    /// Records a backend that is unavailable on this machine, for display.
    pub fn add_unavailable(&mut self, unavailable: Unavailable) {
        self.unavailable.push(unavailable);
    }

    /// Returns the devices added so far.
    #[must_use]
    pub fn devices(&self) -> &[DeviceDesc] {
        &self.devices
    }

    /// Returns the arenas added so far.
    #[must_use]
    pub fn arenas(&self) -> &[Arc<dyn Arena>] {
        &self.arenas
    }

    /// Returns the descriptions of the arenas added so far.
    #[must_use]
    pub fn descs(&self) -> &[ArenaDesc] {
        &self.descs
    }

    /// Returns the device through which a link reaches an arena without a mapping: its native device, or the
    /// internal one of a [store](ArenaDesc::store).
    ///
    /// # Panics
    /// When no arena with this id was added.
    #[must_use]
    pub fn native(&self, arena: ArenaId) -> DeviceId {
        self.descs[usize::from(arena.0)].native
    }

    /// Disables default links to and from one arena. Use this for a memory that the host cannot access
    /// directly.
    pub fn without_default_links_of(&mut self, arena: ArenaId) {
        self.apart.insert(arena);
    }

    /// Disables all default links. By default, [`HostStaged`] copies connect each pair of arenas without a
    /// copying link.
    #[must_use]
    pub fn without_default_links(mut self) -> Self {
        self.no_default_links = true;
        self
    }

    /// Disables the path cache, for tests that compare plans and for models that count interleavings.
    #[must_use]
    pub fn without_path_cache(mut self) -> Self {
        self.no_path_cache = true;
        self
    }

    /// Checks all parts and makes the platform.
    ///
    /// # Errors
    /// [`ConfigError::Topology`] with all problems, not only the first.
    pub fn build(mut self) -> Result<Platform, ConfigError> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(ConfigError::Topology(problems));
        }
        if !self.no_default_links {
            self.add_default_links();
        }
        self.add_ways_back();
        // The limit includes the links added here: beyond it, an id would name another link.
        if let Some(problem) = too_many("links", self.links.len(), MAX_LINKS) {
            return Err(ConfigError::Topology(vec![problem]));
        }
        let counters = Arc::new(Counters::new(self.links.len()));
        let registry = Arc::new(Registry::default());
        let streams = Streams::new(self.arenas.len(), &registry);
        let (arenas, descs) = (take(&mut self.arenas), take(&mut self.descs));
        let (links, wishes) = (take(&mut self.links), take(&mut self.wishes));
        let topology = Topology::new(arenas, descs, links, &wishes, !self.no_path_cache);
        Ok(Platform(Arc::new(PlatformInner {
            id: crate::platform::fresh_id(),
            devices: take(&mut self.devices),
            topology,
            unavailable: take(&mut self.unavailable),
            counters,
            recorder: Arc::new(Recorder::new()),
            registry,
            streams,
            lost: AtomicU64::new(0),
            forks: std::sync::atomic::AtomicU64::new(forks::count()),
        })))
    }

    /// Adds staged copies through the host for every pair of arenas without a copying link.
    fn add_default_links(&mut self) {
        let ids = || (0..self.arenas.len() as u8).map(ArenaId);
        let mut pairs: Vec<_> = ids().flat_map(|from| ids().map(move |to| (from, to))).collect();
        let is_apart = |arena: ArenaId| self.apart.contains(&arena);
        pairs.retain(|&(from, to)| from != to && !is_apart(from) && !is_apart(to) && !self.copies(from, to));
        // Pairs with a processor's memory come first, because their links price the others.
        let is_cpu = |arena| self.is_cpu(self.native(arena));
        pairs.sort_by_key(|&(from, to)| (!is_cpu(from) && !is_cpu(to), from, to));
        for (from, to) in pairs {
            let (source_via, target_via) = (self.native(from), self.native(to));
            let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
            let staged = self.staged(from, to);
            self.links.push((link, Arc::new(staged)));
        }
    }

    /// Creates a staged copy between two arenas. Its price comes from the links to and from the host, if both
    /// are known.
    fn staged(&self, from: ArenaId, to: ArenaId) -> HostStaged {
        let host = self.descs.iter().position(|desc| self.is_cpu(desc.native));
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

    /// Returns whether the device is a processor. The internal device of a store is not.
    fn is_cpu(&self, device: DeviceId) -> bool {
        self.devices.get(usize::from(device.0)).is_some_and(|desc| desc.kind == DeviceKind::Cpu)
    }

    /// Returns how many arenas are stores, each with an internal device.
    fn stores(&self) -> usize {
        self.descs.iter().filter(|desc| desc.is_store()).count()
    }

    /// Adds the reverse link of every binding whose pair has none. Data then returns by a change of map state
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

    /// Returns whether a link moves bytes between the two arenas. A link that only binds them does not.
    fn copies(&self, from: ArenaId, to: ArenaId) -> bool {
        let moves = |link: &Link| link.allocation == Allocation::Internal;
        self.links.iter().any(|(link, _)| link.from == from && link.to == to && moves(link))
    }

    fn problems(&self) -> Vec<TopologyError> {
        let mut problems = Vec::new();
        let limits = [
            ("devices and stores", self.devices.len() + self.stores(), MAX_ARENAS),
            ("arenas", self.arenas.len(), MAX_ARENAS),
            ("links", self.links.len(), MAX_LINKS),
        ];
        problems.extend(limits.into_iter().filter_map(|(what, count, limit)| too_many(what, count, limit)));
        let device_names = self.devices.iter().map(|device| &device.name);
        let arena_names = self.descs.iter().map(|desc| &desc.name);
        problems.extend(duplicates("devices", device_names).chain(duplicates("arenas", arena_names)));
        for desc in &self.descs {
            let known = |device: DeviceId| usize::from(device.0) < self.devices.len();
            let native = (!desc.is_store()).then_some(desc.native);
            for device in native.into_iter().chain(desc.remotes.iter()) {
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
        let binds = |link: &Link| matches!(link.allocation, Allocation::Bound(_));
        for &(root, member) in self.wishes.preferred.union(&self.wishes.allowed) {
            if !self.links.iter().any(|(link, _)| binds(link) && (link.from, link.to) == (root, member)) {
                problems.push(TopologyError::NoBinding { root, member });
            }
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
            // Each end must be able to take the storage back from the other's device.
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

/// Maximum number of links that ids can distinguish.
const MAX_LINKS: usize = u16::MAX as usize;

/// Drops mechanisms and arenas one by one, as a platform does.
impl Drop for PlatformBuilder {
    fn drop(&mut self) {
        take(&mut self.links).into_iter().for_each(quietly);
        take(&mut self.arenas).into_iter().for_each(quietly);
    }
}

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
