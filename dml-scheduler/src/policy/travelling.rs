//! Packages whose results travel: of these a policy is told twice, when they are computed and when they are done.

use super::Computed;
use crate::{Package, UnitId};
use std::time::Duration;

/// The packages that are computed and not done, and what those before them took to travel.
#[derive(Debug, Clone, Default)]
pub(super) struct Travelling {
    /// The units and items of the packages, and when they were handed out.
    packages: Vec<(UnitId, u64, Duration)>,
    links: Vec<Link>,
}

/// What of a unit's results is home.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    items: f64,
    /// The seconds in which at least one package of them travelled.
    seconds: f64,
    /// When the last of them came.
    home: Duration,
}

impl Travelling {
    /// A package is computed, and its results travel.
    pub(super) fn depart(&mut self, computed: &Computed) {
        self.packages.push((computed.unit, computed.items, computed.handed));
    }

    /// A package is done. Returns whether its results travelled, so that everybody knew that it was computed.
    pub(super) fn arrive(&mut self, computed: &Computed) -> bool {
        let this = (computed.unit, computed.items, computed.handed);
        let has_travelled = self.take(|travelling| *travelling == this);
        if has_travelled {
            let UnitId(index) = computed.unit;
            if index >= self.links.len() {
                self.links.resize(index + 1, Link::default());
            }
            let link = &mut self.links[index];
            let began = computed.ended.max(link.home);
            link.home = link.home.max(computed.done);
            link.items += computed.items as f64;
            link.seconds += computed.done.saturating_sub(began).as_secs_f64();
        }
        has_travelled
    }

    /// A package came back. Returns whether its results travelled.
    pub(super) fn come_back(&mut self, package: &Package) -> bool {
        self.take(|(unit, items, _)| (*unit, *items) == (package.unit(), package.items()))
    }

    /// How many packages of a unit travel.
    pub(super) fn of(&self, unit: UnitId) -> u64 {
        self.packages.iter().filter(|(other, ..)| *other == unit).count() as u64
    }

    /// The seconds that results of an item travel, if some of the unit's are home.
    pub(super) fn per_item(&self, unit: UnitId) -> Option<f64> {
        let link = self.links.get(unit.0).filter(|link| link.items > 0.0)?;
        Some(link.seconds / link.items)
    }

    fn take(&mut self, is_this: impl FnMut(&(UnitId, u64, Duration)) -> bool) -> bool {
        self.packages.iter().position(is_this).map(|place| self.packages.swap_remove(place)).is_some()
    }
}
