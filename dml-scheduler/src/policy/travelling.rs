//! Packages whose results travel: of these a policy is told twice, when they are computed and when they are done.

use super::Computed;
use crate::{Package, UnitId};
use std::time::Duration;

/// The packages that are computed and not done: their units and items, and when they were handed out.
#[derive(Debug, Clone, Default)]
pub(super) struct Travelling(Vec<(UnitId, u64, Duration)>);

impl Travelling {
    /// A package is computed, and its results travel.
    pub(super) fn depart(&mut self, computed: &Computed) {
        self.0.push((computed.unit, computed.items, computed.handed));
    }

    /// A package is done. Returns whether its results travelled, so that everybody knew that it was computed.
    pub(super) fn arrive(&mut self, computed: &Computed) -> bool {
        let this = (computed.unit, computed.items, computed.handed);
        self.take(|travelling| *travelling == this)
    }

    /// A package came back. Returns whether its results travelled.
    pub(super) fn come_back(&mut self, package: &Package) -> bool {
        self.take(|(unit, items, _)| (*unit, *items) == (package.unit(), package.items()))
    }

    fn take(&mut self, is_this: impl FnMut(&(UnitId, u64, Duration)) -> bool) -> bool {
        self.0.iter().position(is_this).map(|place| self.0.swap_remove(place)).is_some()
    }
}
