//! A mechanism whose prices were measured.

use super::table::LinkTable;
use dml_core::{
    Allocation, ArenaDesc, Concurrency, CopyJob, CopyQuery, Cost, CrossArena, Fence, Link, TransferError,
};
use std::sync::Arc;

/// The changes of map state that are included in the measured times of a link.
///
/// A measured copy begins with bytes that a kernel at the source has just written. An end that the link
/// reaches through a device other than its own must first be mapped for that device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MapChanges {
    /// Whether the map state of the source changes.
    pub source: bool,
    /// Whether the map state of the destination changes.
    pub target: bool,
}

impl MapChanges {
    /// Returns the changes that a link between the arenas `from` and `to` needs.
    #[must_use]
    pub fn of(link: &Link, from: &ArenaDesc, to: &ArenaDesc) -> Self {
        match link.allocation {
            Allocation::Internal => Self {
                source: link.source_via != from.native && !from.is_always_bimapped(),
                target: link.target_via != to.native && !to.is_always_bimapped(),
            },
            // Only the map state of the shared storage changes, and core counts that at the destination.
            Allocation::Bound(Concurrency::BimapFull) => Self::default(),
            Allocation::Bound(_) | Allocation::Shared => Self { source: false, target: true },
        }
    }
}

/// A mechanism that is priced by a table of measured times. In all else it behaves as the wrapped mechanism.
///
/// A copy that the wrapped mechanism cannot do stays infeasible. The measured times include the changes of
/// map state that the link needs. A query with the same changes gets the measured time. If the changes
/// differ, the price differs by what the wrapped mechanism charges for them, and is at least half of the
/// measured time. The price never falls as the number of bytes grows, and depends on the query alone (C-1).
///
/// # Examples
/// ```
/// use dml_arenas::calibrate::{LinkTable, MapChanges, Priced, SizeClass};
/// use dml_core::{CopyQuery, Cost, CrossArena, HostStaged};
/// use std::sync::Arc;
///
/// let classes = vec![SizeClass { bytes: 4, copy_ns: 500 }, SizeClass { bytes: 1 << 20, copy_ns: 100_000 }];
/// let table = LinkTable::new(classes)?;
/// let mechanism = Priced::new(Arc::new(HostStaged::default()), table, MapChanges::default());
/// let query = CopyQuery { bytes: 1 << 20, remap_source: false, remap_target: false, allocates: false };
/// assert_eq!(mechanism.can_copy(&query), Some(Cost::from_ns(100_000)));
/// # Ok::<(), dml_arenas::calibrate::TableError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Priced {
    mechanism: Arc<dyn CrossArena>,
    table: LinkTable,
    contained: MapChanges,
}

impl Priced {
    /// Prices `mechanism` by `table`, whose times include the changes `contained`.
    #[must_use]
    pub fn new(mechanism: Arc<dyn CrossArena>, table: LinkTable, contained: MapChanges) -> Self {
        Self { mechanism, table, contained }
    }

    /// Returns what the wrapped mechanism charges for changes of map state, in nanoseconds.
    fn changes_ns(&self, changes: MapChanges) -> u64 {
        // The size is fixed, so that the difference does not depend on the bytes of a query.
        let ask = |changes: MapChanges| {
            let (remap_source, remap_target) = (changes.source, changes.target);
            let query = CopyQuery { bytes: 1, remap_source, remap_target, allocates: false };
            self.mechanism.can_copy(&query).and_then(Cost::as_ns)
        };
        match (ask(changes), ask(MapChanges::default())) {
            (Some(with), Some(without)) => with.saturating_sub(without),
            _ => 0,
        }
    }
}

impl CrossArena for Priced {
    fn name(&self) -> &str {
        self.mechanism.name()
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        let guessed = self.mechanism.can_copy(query)?;
        if !guessed.is_feasible() {
            return Some(guessed);
        }
        let measured_ns = self.table.copy_ns(query.bytes);
        let needed = MapChanges { source: query.remap_source, target: query.remap_target };
        if needed == self.contained {
            return Some(Cost::from_ns(measured_ns));
        }
        let with_needed_ns = measured_ns.saturating_add(self.changes_ns(needed));
        let price_ns = with_needed_ns.saturating_sub(self.changes_ns(self.contained));
        Some(Cost::from_ns(price_ns.max(measured_ns / 2)))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        self.mechanism.copy(job)
    }

    fn copy_behind(&self, job: CopyJob, kernel: &Fence) -> Result<Fence, TransferError> {
        self.mechanism.copy_behind(job, kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::SizeClass;
    use dml_core::{ArenaId, ArenaKind, DeviceId, DeviceSet, HostMapped, LinkSpeed};
    use proptest::prelude::*;

    /// A mechanism that copies up to a size, answers with a price that means infeasible, or refuses.
    #[derive(Debug)]
    struct Picky;

    impl CrossArena for Picky {
        fn name(&self) -> &'static str {
            "picky"
        }

        fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
            match query.bytes {
                0..=64 if query.remap_source => None,
                0..=64 => Some(Cost::from_ns(7)),
                65..=1024 => Some(Cost::INFEASIBLE),
                _ => None,
            }
        }

        fn copy(&self, _job: CopyJob) -> Result<Fence, TransferError> {
            Err(TransferError::Infeasible)
        }
    }

    fn table() -> LinkTable {
        let classes = [(4, 8_000), (1_000, 10_000), (1_001_000, 1_010_000)];
        LinkTable::new(classes.map(|(bytes, copy_ns)| SizeClass { bytes, copy_ns }).to_vec()).unwrap()
    }

    fn query(bytes: u64, remap_source: bool, remap_target: bool) -> CopyQuery {
        CopyQuery { bytes, remap_source, remap_target, allocates: false }
    }

    fn mapped(contained: MapChanges) -> Priced {
        let speed = LinkSpeed { latency_ns: 1, bytes_per_s: 1, remap_ns: 3_000 };
        Priced::new(Arc::new(HostMapped::new(speed)), table(), contained)
    }

    fn price(mechanism: &Priced, bytes: u64, remap_source: bool, remap_target: bool) -> u64 {
        mechanism.can_copy(&query(bytes, remap_source, remap_target)).unwrap().as_ns().unwrap()
    }

    #[test]
    fn changes_contained_in_the_figures_count_once() {
        let target = mapped(MapChanges { source: false, target: true });
        assert_eq!(price(&target, 1_000, false, true), 10_000);
        assert_eq!(price(&target, 1_000, false, false), 7_000);
        assert_eq!(price(&target, 1_000, true, true), 13_000);
        assert_eq!(price(&target, 1_000, true, false), 10_000);
        let none = mapped(MapChanges::default());
        assert_eq!(price(&none, 1_000, false, false), 10_000);
        assert_eq!(price(&none, 1_000, false, true), 13_000);
        let both = mapped(MapChanges { source: true, target: true });
        assert_eq!(price(&both, 4, false, false), 4_000, "not below half");
    }

    #[test]
    fn an_infeasible_copy_stays_infeasible() {
        let mechanism = Priced::new(Arc::new(Picky), table(), MapChanges::default());
        assert_eq!(mechanism.can_copy(&query(64, false, false)), Some(Cost::from_ns(8_120)));
        assert_eq!(mechanism.can_copy(&query(64, true, false)), None);
        assert_eq!(mechanism.can_copy(&query(65, false, false)), Some(Cost::INFEASIBLE));
        assert_eq!(mechanism.can_copy(&query(1 << 20, false, false)), None);
        assert_eq!(mechanism.name(), "picky");
    }

    #[test]
    fn the_contained_changes_are_those_of_the_link() {
        let (cpu, gpu) = (DeviceId(0), DeviceId(1));
        let main = ArenaDesc::new("main", ArenaKind("test"), cpu).with_remotes(DeviceSet::of(cpu));
        let device = ArenaDesc::new("gpu", ArenaKind("test"), gpu).with_remotes(DeviceSet::of(cpu));
        let link = |source_via, target_via, allocation| Link {
            from: ArenaId(0),
            to: ArenaId(1),
            source_via,
            target_via,
            allocation,
        };
        let changes = |source, target| MapChanges { source, target };
        let staged = link(cpu, gpu, Allocation::Internal);
        assert_eq!(MapChanges::of(&staged, &main, &device), changes(false, false));
        let mapped = link(cpu, cpu, Allocation::Internal);
        assert_eq!(MapChanges::of(&mapped, &main, &device), changes(false, true));
        assert_eq!(MapChanges::of(&mapped, &device, &main), changes(true, false));
        let bound = link(cpu, gpu, Allocation::Bound(Concurrency::Exclusive));
        assert_eq!(MapChanges::of(&bound, &main, &device), changes(false, true));
        let coherent = link(cpu, gpu, Allocation::Bound(Concurrency::BimapFull));
        assert_eq!(MapChanges::of(&coherent, &main, &device), changes(false, false));
    }

    proptest! {
        #[test]
        fn prices_grow_with_the_bytes(
            mut sizes in prop::collection::vec(0u64..1 << 34, 2..30),
            contained in any::<(bool, bool)>(),
            needed in any::<(bool, bool)>(),
        ) {
            let mechanism = mapped(MapChanges { source: contained.0, target: contained.1 });
            sizes.sort_unstable();
            let prices: Vec<_> = sizes.iter().map(|&bytes| price(&mechanism, bytes, needed.0, needed.1)).collect();
            prop_assert!(prices.is_sorted(), "{:?}: {:?}", sizes, prices);
        }
    }
}
