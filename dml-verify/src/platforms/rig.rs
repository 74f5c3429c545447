//! The description of a test platform, and the one place that builds platforms from descriptions.

use super::test_arena::Scripts;
use super::{CPU, MAIN_ARENA};
use crate::history::Audited;
use dml_arenas::Script;
use dml_core::internal::sync::Arc;
use dml_core::{
    Allocation, Arena, ArenaDesc, ArenaId, ArenaKind, Binding, Concurrency, ConfigError, CrossArena,
    DeviceDesc, DeviceId, DeviceKind, DeviceSet, HostMapped, HostStaged, Link, LinkId, Platform,
    PlatformBuilder,
};

/// One end of a link: an arena, and the device through which it is reached.
pub type End = (ArenaId, DeviceId);

/// The arena or link whose calls follow a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Every call of one arena.
    Arena(ArenaId),
    /// Every copy over one link.
    Link(LinkId),
}

/// The description of a test platform. Devices, arenas and links are numbered in the order in which they are
/// added; a pair that is joined in both directions takes two links.
#[derive(Clone, Debug)]
pub struct Rig {
    pub(super) devices: u16,
    pub(super) arenas: Vec<ArenaDesc>,
    has_default_links: bool,
    links: Vec<(Link, Mechanism)>,
    /// The roots and members that are to share storage wherever they can.
    preferred: Vec<(ArenaId, ArenaId)>,
    /// The roots and members that are to share storage only for buffers that ask for it.
    allowed: Vec<(ArenaId, ArenaId)>,
    scripts: Scripts,
}

/// What carries out the copies of a link.
#[derive(Clone, Debug)]
pub(super) enum Mechanism {
    Staged(HostStaged),
    Mapped(HostMapped),
    Bound(Binding),
}

/// Makes the arenas and mechanisms of a described platform.
pub trait Layers {
    /// Makes an arena.
    fn arena(&self, id: ArenaId, desc: ArenaDesc) -> Arc<dyn Arena>;
    /// Makes the mechanism of a link from the mechanism that moves its bytes.
    fn mechanism<C: CrossArena + 'static>(&self, id: LinkId, inner: C) -> Arc<dyn CrossArena>;
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// Starts with the host and its main memory: device 0 and arena 0.
    pub fn new() -> Self {
        let main = ArenaDesc::new("main", ArenaKind("main"), CPU)
            .with_remotes(DeviceSet::of(CPU))
            .with_concurrency(Concurrency::BimapFull);
        Self { arenas: vec![main], ..Self::without_arenas(1, false) }
    }

    /// Starts with the host and other devices, `devices` together.
    pub(super) fn without_arenas(devices: u16, has_default_links: bool) -> Self {
        let (arenas, links) = (Vec::new(), Vec::new());
        let (preferred, allowed) = (Vec::new(), Vec::new());
        Self { devices, arenas, has_default_links, links, preferred, allowed, scripts: Scripts::default() }
    }

    /// Adds a device with a memory that the host can map.
    pub fn gpu(mut self, concurrency: Concurrency) -> Self {
        self.devices += 1;
        let device = DeviceId(self.devices - 1);
        self.memory(device, concurrency)
    }

    /// Does the same as [`Rig::gpu`], with a script for the memory.
    pub fn gpu_with(self, concurrency: Concurrency, script: Script) -> Self {
        let place = Place::Arena(self.next_arena());
        self.gpu(concurrency).scripted(place, script)
    }

    /// Adds a memory that the host can map to a device that is there already.
    pub fn memory(mut self, device: DeviceId, concurrency: Concurrency) -> Self {
        let name = format!("gpu{}", self.arenas.len());
        let desc = ArenaDesc::new(&name, ArenaKind("gpu"), device);
        self.arenas.push(desc.with_remotes(DeviceSet::of(CPU)).with_concurrency(concurrency));
        self
    }

    /// Makes a device reach an arena that is not its own.
    pub fn reached(mut self, arena: ArenaId, by: DeviceId) -> Self {
        let remotes = &mut self.arenas[usize::from(arena.0)].remotes;
        *remotes = remotes.with(by);
        self
    }

    /// Makes the calls of one arena or link fail as `script` says.
    pub fn scripted(mut self, place: Place, script: Script) -> Self {
        self.scripts.0.push((place, script));
        self
    }

    /// Adds copies by read and write calls in both directions. They do not change the map state.
    pub fn staged(self, a: ArenaId, b: ArenaId) -> Self {
        let ends = [self.native(a), self.native(b)];
        self.staged_through(ends)
    }

    /// Does the same as [`Rig::staged`], with each arena reached through the device beside it.
    pub fn staged_through(self, ends: [End; 2]) -> Self {
        self.both_ways(ends, Allocation::Internal, &Mechanism::Staged(HostStaged::default()))
    }

    /// Adds copies between main memory and `device`, which is mapped for the host.
    pub fn mapped(self, device: ArenaId) -> Self {
        let mapped = Mechanism::Mapped(HostMapped::default());
        self.both_ways([(MAIN_ARENA, CPU), (device, CPU)], Allocation::Internal, &mapped)
    }

    /// Adds a binding, by which both arenas can share one storage.
    pub fn bound(self, a: ArenaId, b: ArenaId, concurrency: Concurrency) -> Self {
        let ends = [self.native(a), self.native(b)];
        self.both_ways(ends, Allocation::Bound(concurrency), &Mechanism::Bound(Binding::default()))
    }

    /// Adds copies by read and write calls in one direction only.
    pub fn one_way(self, from: ArenaId, to: ArenaId) -> Self {
        let ends = [self.native(from), self.native(to)];
        self.link(ends, Allocation::Internal, Mechanism::Staged(HostStaged::default()))
    }

    /// Adds a binding of `member` to the storage of `root`, and none of `root` to that of `member`.
    pub fn bound_one_way(self, root: ArenaId, member: ArenaId, concurrency: Concurrency) -> Self {
        let ends = [self.native(root), self.native(member)];
        self.link(ends, Allocation::Bound(concurrency), Mechanism::Bound(Binding::default()))
    }

    /// Prefers a binding that was added to copies.
    pub fn preferring(mut self, root: ArenaId, member: ArenaId) -> Self {
        self.preferred.push((root, member));
        self
    }

    /// Keeps a binding that was added for buffers that ask for it.
    pub fn allowing(mut self, root: ArenaId, member: ArenaId) -> Self {
        self.allowed.push((root, member));
        self
    }

    fn native(&self, arena: ArenaId) -> End {
        (arena, self.arenas[usize::from(arena.0)].native)
    }

    fn both_ways(self, [a, b]: [End; 2], allocation: Allocation, mechanism: &Mechanism) -> Self {
        self.link([a, b], allocation, mechanism.clone()).link([b, a], allocation, mechanism.clone())
    }

    /// Adds a link from the first end to the second.
    pub(super) fn link(
        mut self,
        [(from, source_via), (to, target_via)]: [End; 2],
        allocation: Allocation,
        mechanism: Mechanism,
    ) -> Self {
        self.links.push((Link { from, to, source_via, target_via, allocation }, mechanism));
        self
    }

    /// Returns the id of the arena that is added next.
    pub(super) fn next_arena(&self) -> ArenaId {
        ArenaId(self.arenas.len() as u8)
    }

    /// Builds the platform under the history checker.
    ///
    /// # Panics
    /// When a link or an arena does not fit the others.
    #[must_use]
    pub fn build(&self) -> Audited {
        Audited::new(self.plain())
    }

    /// Builds the platform without recording. It serves tests that drive the pure machine or do their own
    /// checks.
    ///
    /// # Panics
    /// Under the same conditions as [`Rig::build`].
    #[must_use]
    pub fn plain(&self) -> Platform {
        self.try_plain().expect("a platform without problems")
    }

    /// Does the same as [`Rig::plain`], but returns problems instead of panicking.
    ///
    /// # Errors
    /// [`ConfigError`] when a link or an arena does not fit the others.
    pub fn try_plain(&self) -> Result<Platform, ConfigError> {
        self.assemble(&self.scripts)
    }

    /// Builds the platform from arenas and mechanisms that `layers` makes.
    ///
    /// # Errors
    /// [`ConfigError`] when a link or an arena does not fit the others.
    pub fn assemble(&self, layers: &impl Layers) -> Result<Platform, ConfigError> {
        let mut builder = PlatformBuilder::default();
        if !self.has_default_links {
            builder = builder.without_default_links();
        }
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        for device in 1..self.devices {
            builder.add_device(DeviceDesc::new(&format!("gpu{device}"), DeviceKind::Gpu));
        }
        for (desc, id) in self.arenas.iter().zip(0..) {
            builder.add_arena(layers.arena(ArenaId(id), desc.clone()));
        }
        for ((link, mechanism), id) in self.links.iter().zip(0..) {
            let id = LinkId(id);
            let mechanism = match mechanism.clone() {
                Mechanism::Staged(staged) => layers.mechanism(id, staged),
                Mechanism::Mapped(mapped) => layers.mechanism(id, mapped),
                Mechanism::Bound(binding) => layers.mechanism(id, binding),
            };
            builder.add_link(*link, mechanism);
        }
        self.preferred.iter().for_each(|&(root, member)| builder.prefer_binding(root, member));
        self.allowed.iter().for_each(|&(root, member)| builder.allow_binding(root, member));
        builder.build()
    }
}
