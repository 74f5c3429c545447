//! Measures the links of a platform, and prices them by the measured times.
//!
//! ```text
//!   Platform ──measure──▶ [Measured] ──▶ LinkTable  per link and mechanism: size class ─▶ time of one copy
//!                                            │
//!                     Priced ◀───────────────┤  prices a mechanism by its table
//!                Calibration ◀───────────────┘  the tables of a machine, and the file that keeps them
//! ```
//!
//! # What is measured
//! All links between devices' home arenas and [stores](dml_core::ArenaDesc::store) are measured through DML
//! itself, on a platform of the same arenas. So are the links of an arena that one of them is bound to, such
//! as page-locked memory that holds main memory's buffers. A figure is the time from a read request at the
//! destination until its grant. That is how long a kernel there waits, or a caller that moves bytes to a
//! store.
//!
//! 1. Only the measured link leads away from the source, and no other arena holds the bytes.
//! 2. The source bytes are written before each copy, with data that depends on the position. The host writes
//!    its own memory through a view. DML copies bytes to a device over other links. If no other links lead
//!    from the host to the device, its bytes are only declared written.
//! 3. Copies of 1 MiB and more cycle through several buffers, at most 64. The sources alone are larger than
//!    the processor's last-level cache, and all of them are written before the first copy of a cycle. So
//!    neither end of such a copy is cached, and the rate is that of memory.
//! 4. A shorter copy uses one buffer, which has just been written. Its source may be cached, like that of a
//!    message that was just produced.
//! 5. The figure of a size class is the median of several copies. Untimed copies come first: they allocate
//!    and touch the storage, and let a driver lock its pages where that pays.
//! 6. Each figure includes the changes of map state that the mechanism needs, see [`MapChanges`].
//!
//! A platform of a few links is measured in about two seconds. The buffers take at most a quarter of the free
//! memory. The longer classes are left out if time or memory is short.

#[cfg(feature = "calibration")]
mod cache;
#[cfg(feature = "calibration")]
mod fingerprint;
mod machine;
mod priced;
mod ruler;
mod table;

#[cfg(feature = "calibration")]
pub use cache::{CacheError, Calibration, CalibrationSource, FORMAT};
#[cfg(feature = "calibration")]
pub use fingerprint::{CalibratedLink, DeviceFingerprint, LinkEnd, MachineFingerprint};
pub use priced::{MapChanges, Priced};
pub use table::{LinkTable, SizeClass, TableError};

use dml_core::{AcquireError, Allocation, ArenaId, ConfigError, Link, LinkId, LinkSpeed, Platform};
use ruler::Ruler;
use thiserror::Error;

/// The measurement of one link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measured {
    /// The link, as the platform numbers it.
    pub link: LinkId,
    /// The source arena.
    pub from: ArenaId,
    /// The destination arena.
    pub to: ArenaId,
    /// The mechanism's name.
    pub mechanism: String,
    /// The time of a copy of each size class, or why the link could not be measured.
    pub table: Result<LinkTable, CalibrateError>,
}

impl Measured {
    /// Creates the measurement of a link of a platform from figures that were measured elsewhere.
    ///
    /// # Panics
    /// When the platform has no link with this id.
    #[must_use]
    pub fn new(platform: &Platform, link: LinkId, table: Result<LinkTable, CalibrateError>) -> Self {
        let Link { from, to, .. } = platform.links()[usize::from(link.0)];
        Self { link, from, to, mechanism: platform.cross_arena(link).name().to_owned(), table }
    }

    /// Returns the latency and the rate of long copies.
    ///
    /// # Errors
    /// Why the link could not be measured.
    pub fn speed(&self) -> Result<LinkSpeed, &CalibrateError> {
        self.table.as_ref().map(LinkTable::speed)
    }
}

/// Why a link could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// A platform with only this link cannot be built.
    #[error(transparent)]
    Platform(#[from] ConfigError),
    /// Copying over the link failed, or moving bytes to its source.
    #[error(transparent)]
    Copy(#[from] AcquireError),
    /// The times do not form a table.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Measures every link of a platform that [`links`] returns, in that order.
///
/// # Shape and units
/// See the [module](self) for what the figures contain.
///
/// # Complexity
/// About two seconds, and at most a quarter of the free memory. The time for each link is at least 400 ms. A
/// link takes longer if one copy of each of the two smallest size classes does.
#[must_use]
pub fn measure(platform: &Platform) -> Vec<Measured> {
    let begun = std::time::Instant::now();
    Ruler::of_this_machine(&|| begun.elapsed()).measure(platform)
}

/// Returns the links that [`measure`] measures, in order: those between home arenas of devices, stores and
/// *roots*.
///
/// A root is another arena that a home arena or a store is bound to, such as page-locked memory. Copies
/// between a root and an arena bound to it are left out, because both share their bytes.
/// [`Allocation::Shared`] links are left out too, because they move nothing by themselves.
#[must_use]
pub fn links(platform: &Platform) -> Vec<LinkId> {
    let is_own = |arena: ArenaId| {
        let desc = platform.desc(arena);
        desc.is_store() || platform.home(desc.native) == Some(arena)
    };
    let bindings = || platform.links().iter().filter(|link| matches!(link.allocation, Allocation::Bound(_)));
    let is_end = |arena| is_own(arena) || bindings().any(|link| link.from == arena && is_own(link.to));
    let share =
        |ends: [ArenaId; 2]| bindings().any(|link| ends.contains(&link.from) && ends.contains(&link.to));
    let is_measured = |link: &Link| {
        let ends = [link.from, link.to];
        let is_way = ends.into_iter().all(is_own) || (ends.into_iter().all(is_end) && !share(ends));
        is_way && link.allocation != Allocation::Shared
    };
    let links = platform.links().iter().enumerate().filter(|(_, link)| is_measured(link));
    links.map(|(index, _)| LinkId(index as u16)).collect()
}
