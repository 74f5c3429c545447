//! Hints: the expected use of a buffer, so that its storage is made in the right arena first.
//!
//! ```text
//!   needed ──────────────────────────────▶ always made
//!   preferred by the platform ──┬─ hints ──▶ made at the first touch, as if needed
//!   allowed by the platform ────┘      └───▶ barred: each arena has storage of its own, and bytes are copied
//! ```
//! Hints choose among bindings that copies could replace. They change which storage is made, never the
//! contents.

use crate::base::cost::Cost;
use crate::base::id::{ArenaId, ArenaSet, DeviceId, LinkId};
use crate::memory::desc::ArenaDesc;
use crate::memory::link::{CopyQuery, Link};
use crate::platform::Platform;
use crate::platform::error::ConfigError;
use crate::platform::topology::Topology;
use crate::state::{Path, PathKey, Routes};
use std::collections::HashSet;

/// The access pattern of the devices that use a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Pattern {
    /// The contents pass through each device once. Each device has its own copy, so that one device computes
    /// while the copy of the next is filled.
    StreamedOnce,
    /// Most uses read, often several devices at once. Each device has its own copy, so that none waits for
    /// another.
    ReadMostly,
    /// The contents alternate between devices, one at a time. If a link can bind their memories, the devices
    /// share one storage, and nothing is copied.
    ToAndFro,
}

/// The expected use of a buffer. By default, the use is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    devices: Option<Vec<DeviceId>>,
    pattern: Option<Pattern>,
}

impl Hints {
    /// Adds devices that will use the buffer. Without this call, any device may use it.
    #[must_use]
    pub fn used_by(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        self.devices.get_or_insert_default().extend(devices);
        self
    }

    /// Sets how the devices will use the buffer.
    #[must_use]
    pub fn pattern(mut self, pattern: Pattern) -> Self {
        self.pattern = Some(pattern);
        self
    }

    fn names(&self, device: DeviceId) -> bool {
        self.devices.as_ref().is_none_or(|devices| devices.contains(&device))
    }

    /// Returns whether to bind memories of these two devices. `is_preferred` is the platform's own
    /// preference.
    fn wants(&self, ends: [DeviceId; 2], is_preferred: bool) -> bool {
        let by_pattern = match self.pattern {
            Some(Pattern::StreamedOnce | Pattern::ReadMostly) => false,
            Some(Pattern::ToAndFro) => true,
            None => is_preferred,
        };
        by_pattern && ends.into_iter().all(|end| self.names(end))
    }
}

/// The bindings that a buffer makes at an arena's first use, and the barred ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings {
    /// The links whose binding is needed or counts as needed.
    pub(crate) made: HashSet<LinkId>,
    /// The destinations of these links.
    pub(crate) members: ArenaSet,
    /// The links that never bind an arena of the buffer.
    pub(crate) barred: HashSet<LinkId>,
}

impl Bindings {
    pub(crate) fn new(topology: &Topology, made: HashSet<LinkId>, barred: HashSet<LinkId>) -> Self {
        let members = made.iter().map(|link| topology.link(*link).to).collect();
        Self { made, members, barred }
    }
}

/// The links of a platform, with the bindings that hints select: see [`Platform::routes_for`].
#[derive(Debug)]
pub struct HintedRoutes<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) bindings: Option<std::borrow::Cow<'a, Bindings>>,
}

impl HintedRoutes<'_> {
    fn bindings(&self) -> &Bindings {
        self.bindings.as_deref().unwrap_or(self.topology.bindings())
    }
}

impl Routes for HintedRoutes<'_> {
    fn arenas(&self) -> &[ArenaDesc] {
        self.topology.arenas()
    }

    fn links(&self) -> &[Link] {
        self.topology.links()
    }

    fn cost(&self, link: LinkId, query: &CopyQuery) -> Option<Cost> {
        self.topology.cost(link, query)
    }

    fn cheapest(
        &self,
        sources: ArenaSet,
        to: ArenaId,
        edge: &mut dyn FnMut(LinkId) -> Option<Cost>,
    ) -> Option<Path> {
        self.topology.cheapest(sources, to, edge)
    }

    fn cheapest_idle(&self, key: PathKey, edge: &mut dyn FnMut(LinkId) -> Option<Cost>) -> Option<Path> {
        // Cached paths are valid only for the platform's own bindings.
        match self.bindings {
            Some(_) => self.topology.cheapest(key.sources, key.to, edge),
            None => self.topology.cheapest_idle(key, edge),
        }
    }

    fn is_needed(&self, link: LinkId) -> bool {
        self.bindings().made.contains(&link)
    }

    fn bound_by_need(&self) -> ArenaSet {
        self.bindings().members
    }

    fn may_bind(&self, link: LinkId) -> bool {
        !self.bindings().barred.contains(&link)
    }
}

impl Platform {
    /// Returns the arenas and links as the pure machine sees them for a buffer with these hints.
    ///
    /// # Errors
    /// [`ConfigError::NoSuchDevice`] if the hints name a device that the platform does not have.
    pub fn routes_for(&self, hints: &Hints) -> Result<HintedRoutes<'_>, ConfigError> {
        let bindings = self.bindings_for(hints)?.map(std::borrow::Cow::Owned);
        Ok(HintedRoutes { topology: &self.0.topology, bindings })
    }

    /// Returns the bindings of a buffer with these hints; `None` if they are the platform's own.
    pub(crate) fn bindings_for(&self, hints: &Hints) -> Result<Option<Bindings>, ConfigError> {
        let devices = self.devices().len();
        let unknown = |device: &&DeviceId| usize::from(device.0) >= devices;
        if let Some(&device) = hints.devices.iter().flatten().find(unknown) {
            return Err(ConfigError::NoSuchDevice { device, devices });
        }
        if *hints == Hints::default() {
            return Ok(None);
        }
        let topology = &self.0.topology;
        Ok(Some(topology.bindings_where(|link, is_preferred| {
            let ends = [link.from, link.to].map(|arena| self.desc(arena).native);
            hints.wants(ends, is_preferred)
        })))
    }
}
