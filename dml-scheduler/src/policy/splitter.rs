//! The splitter: cuts packages of the lengths that a policy proposes, and tracks the state of every item.
//!
//! ```text
//!                 assign                  complete
//!   unassigned -----------> in flight --------------> completed
//!       ^                       |                         |
//!       +-----------------------+                         |
//!       | give_back, retire                               |
//!       +-------------------------------------------------+
//!                              reopen
//! ```
//!
//! The splitter upholds P-1 to P-4 of the [module above](super).

use super::{Computed, Policy, PolicyError, checked_local_size};
use crate::base::package::{Package, UnitId};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// The answer to a unit's request for work.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assignment {
    /// Compute this package, then [`complete`](Splitter::complete) it or
    /// [`give it back`](Splitter::give_back).
    Package(Package),
    /// No package for now: ask again when a package was completed or given back, or a unit retired. A unit
    /// with packages in flight can wait for those.
    Wait,
    /// Stop: the work is finished, or this unit is retired or was never part of the run.
    NoMore,
}

/// A package that was to be completed or given back is not in flight. It was completed or given back before,
/// its unit was retired, or it belongs to another run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not in flight: {package}")]
pub struct NotInFlight {
    /// The package that is not in flight.
    pub package: Package,
}

/// A package that was to be reopened is not completed. It never was, it was reopened before, or it belongs to
/// another run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not completed: {package}")]
pub struct NotCompleted {
    /// The package that is not completed.
    pub package: Package,
}

/// Hands out every item of the work exactly once, in packages of the lengths that a policy proposes. Items
/// whose results were lost ([`reopen`](Splitter::reopen)) are handed out again.
///
/// Only the splitter tracks which items are unassigned, in flight and completed. It takes no lock and reads
/// no clock. The commander drives it, one call at a time, and passes the time to it.
///
/// # Shape and units
/// Work and lengths count items. Packages start at multiples of the local work size. Only the package at the
/// end of the work can have a length that is no multiple of it. Any work size is legal, including 0.
///
/// # Complexity
/// Assigning costs one call of the policy and O(units + pieces that came back). Completing and reopening cost
/// O(log packages).
///
/// ```
/// use dml_scheduler::{UnitId, policy::{Assignment, PolicySpec}};
///
/// let mut splitter = PolicySpec::Static.splitter(&[1.0, 0.5], 300, 1)?;
/// let Assignment::Package(second) = splitter.assign(UnitId(1)) else { unreachable!() };
/// assert_eq!(second.range(), 200..300); // unit 0 asks later, and still gets 0..200
/// splitter.give_back(&second)?; // it failed: both units share its items
/// let Assignment::Package(again) = splitter.assign(UnitId(0)) else { unreachable!() };
/// assert_eq!(again.range(), 200..266);
/// splitter.complete(&again)?;
/// assert_eq!((splitter.completed(), splitter.is_finished()), (66, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Splitter {
    policy: Box<dyn Policy>,
    work: u64,
    local_size: u64,
    units: Vec<Unit>,
    /// Unassigned work that is set aside for no unit.
    common: Pool,
    /// The packages in flight, by index.
    in_flight: BTreeMap<u64, Package>,
    /// The completed packages, by index.
    completed: BTreeMap<u64, Package>,
    /// The number of items in completed packages.
    completed_items: u64,
    /// The number of packages handed out, which is the index of the next one.
    handed_out: u64,
    /// The latest time that a call passed, from the start of the run.
    latest: Duration,
}

/// The state of one unit.
#[derive(Debug, Default)]
struct Unit {
    set_aside: Pool,
    standing: Standing,
    /// The numbers of packages and items that it has completed.
    completed: (u64, u64),
    /// Whether it is retired for the policy.
    is_spare: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Standing {
    /// The unit has work, or has not asked for any since the last change.
    #[default]
    Willing,
    /// The unit asked and was refused.
    TurnedAway,
    /// The unit is left out until it is called up.
    Benched,
    Retired,
}

impl Splitter {
    /// Creates a splitter of `work` items among `units` units by a policy; `local_size` is the local work
    /// size in items.
    ///
    /// # Errors
    /// [`NoUnits`](PolicyError::NoUnits), [`ZeroLocalSize`](PolicyError::ZeroLocalSize).
    pub fn new(
        policy: Box<dyn Policy>,
        units: usize,
        work: u64,
        local_size: u64,
    ) -> Result<Self, PolicyError> {
        if units == 0 {
            return Err(PolicyError::NoUnits);
        }
        let mut splitter = Self {
            policy,
            work,
            local_size: checked_local_size(local_size)?,
            units: std::iter::repeat_with(Unit::default).take(units).collect(),
            common: Pool::default(),
            in_flight: BTreeMap::new(),
            completed: BTreeMap::new(),
            completed_items: 0,
            handed_out: 0,
            latest: Duration::ZERO,
        };
        for (index, unit) in splitter.units.iter_mut().enumerate() {
            if !splitter.policy.begins(UnitId(index)) {
                unit.standing = Standing::Benched;
            }
        }
        splitter.share_out(0..work, Origin::Fresh);
        Ok(splitter)
    }

    /// Sets which items have their data only in the memory of one unit. Call this before the first package.
    ///
    /// The unit gets these items first. Another unit gets some of them only if nothing else is left for it.
    /// It takes them from the end, and leaves the last package to the unit that has the data. Work that the
    /// policy sets aside is not affected.
    ///
    /// # Shape and units
    /// The ranges ascend and do not overlap. Bounds within a work-group are rounded up.
    pub(crate) fn place(&mut self, homes: &[(Range<u64>, UnitId)]) {
        let mut pieces = VecDeque::new();
        for mut piece in std::mem::take(&mut self.common.fresh) {
            for (range, unit) in homes {
                let end = |at: u64| at.div_ceil(self.local_size).saturating_mul(self.local_size);
                let (start, end) =
                    (end(range.start).max(piece.range.start), end(range.end).min(piece.range.end));
                if start < end {
                    pieces.push_back(Piece { range: piece.range.start..start, home: None });
                    pieces.push_back(Piece { range: start..end, home: Some(*unit) });
                    piece.range.start = end;
                }
            }
            pieces.push_back(piece);
        }
        pieces.retain(|piece| !piece.range.is_empty());
        self.common.fresh = pieces;
    }

    /// Hands the unit its next package, if it gets one, at the latest time that any call passed.
    pub fn assign(&mut self, unit: UnitId) -> Assignment {
        self.assign_at(unit, self.latest)
    }

    /// Hands the unit its next package, if it gets one. The unit may have packages in flight.
    ///
    /// # Shape and units
    /// `now` is a time from the start of the run. A time before that of an earlier call counts as the earlier
    /// call's.
    pub fn assign_at(&mut self, unit: UnitId, now: Duration) -> Assignment {
        self.latest = self.latest.max(now);
        if self.is_finished() || !self.is_active(unit) {
            return Assignment::NoMore;
        }
        if self.is_benched(unit) {
            return Assignment::Wait;
        }
        let available = self.units[unit.0].set_aside.items() + self.common.items();
        let is_asked = available > 0 && !self.units[unit.0].is_spare;
        let length = if is_asked { self.policy.next(unit, available) } else { None };
        match length.and_then(|length| self.cut(unit, length, Forced::No)) {
            Some(package) => Assignment::Package(package),
            None => self.turn_away(unit),
        }
    }

    /// Records that a package's items are computed, without measured times: the policy learns no speed from
    /// it.
    ///
    /// Waiting units should ask again.
    ///
    /// # Errors
    /// [`NotInFlight`] when no unit has this package; nothing changes.
    pub fn complete(&mut self, package: &Package) -> Result<(), NotInFlight> {
        let now = self.latest;
        self.complete_with(package, Computed::new(package, now, now, now, now))
    }

    /// Reports to the policy that a device has computed a package whose results are still in transit. The
    /// package stays in flight.
    ///
    /// Waiting units should ask again, because the policy knows more. The unit and the number of items are
    /// taken from the package, not from `computed`.
    ///
    /// # Errors
    /// [`NotInFlight`] when no unit has this package; nothing changes.
    pub fn ended(&mut self, package: &Package, computed: Computed) -> Result<(), NotInFlight> {
        if self.in_flight.get(&package.index()) != Some(package) {
            return Err(NotInFlight { package: package.clone() });
        }
        let computed = Computed { unit: package.unit(), items: package.items(), ..computed };
        self.latest = self.latest.max(computed.ended);
        self.policy.ended(&computed);
        Ok(())
    }

    /// Records that a package's items are computed, and reports its times to the policy.
    ///
    /// Waiting units should ask again. The unit and the number of items are taken from the package, not from
    /// `computed`.
    ///
    /// # Errors
    /// [`NotInFlight`] when no unit has this package; nothing changes.
    pub fn complete_with(&mut self, package: &Package, computed: Computed) -> Result<(), NotInFlight> {
        let package = self.take_in_flight(package)?;
        let computed = Computed { unit: package.unit(), items: package.items(), ..computed };
        self.latest = self.latest.max(computed.done);
        self.completed_items += package.items();
        let (packages, items) = &mut self.units[package.unit().0].completed;
        *packages += 1;
        *items += package.items();
        self.completed.insert(package.index(), package);
        // The policy will know more than when it turned them away.
        self.let_all_ask_again();
        self.policy.computed(&computed);
        Ok(())
    }

    /// Takes back a failed package: its items are handed out again, before work that was never handed out.
    ///
    /// The package's unit stays in the run, and can get the same items again unless it is
    /// [retired](Self::retire). Waiting units should ask again.
    ///
    /// # Errors
    /// [`NotInFlight`] when no unit has this package; nothing changes.
    pub fn give_back(&mut self, package: &Package) -> Result<(), NotInFlight> {
        let package = self.take_in_flight(package)?;
        self.policy.given_back(&package);
        self.share_out(package.range(), Origin::Returned);
        Ok(())
    }

    /// Takes back a completed package whose results were lost. Its items no longer count as computed, and are
    /// handed out again like those of a failed package.
    ///
    /// Waiting units should ask again, and so should units that stopped because the work was finished.
    ///
    /// # Errors
    /// [`NotCompleted`] when this package is not completed; nothing changes.
    pub fn reopen(&mut self, package: &Package) -> Result<(), NotCompleted> {
        let package =
            take(&mut self.completed, package).ok_or_else(|| NotCompleted { package: package.clone() })?;
        self.completed_items -= package.items();
        let (packages, items) = &mut self.units[package.unit().0].completed;
        *packages -= 1;
        *items -= package.items();
        self.share_out(package.range(), Origin::Returned);
        Ok(())
    }

    /// Takes a unit out of the run. The other units get its packages in flight and the work set aside for it.
    ///
    /// The unit's packages in flight cannot be completed after this, so complete those that are computed
    /// first. Retiring a unit again changes nothing. Waiting units should ask again.
    pub fn retire(&mut self, unit: UnitId) {
        self.take_out(unit, Standing::Retired);
    }

    /// Takes a unit out of the run as [`retire`](Self::retire) does, but keeps it in reserve. If the others
    /// cannot finish the work, it can be [called up](Self::call_up_all).
    pub(crate) fn spare(&mut self, unit: UnitId) {
        self.take_out(unit, Standing::Benched);
    }

    fn take_out(&mut self, unit: UnitId, standing: Standing) {
        if !self.is_active(unit) {
            return;
        }
        self.units[unit.0].standing = standing;
        if !std::mem::replace(&mut self.units[unit.0].is_spare, true) {
            self.policy.retire(unit);
        }
        for piece in self.common.fresh.iter_mut().filter(|piece| piece.home == Some(unit)) {
            piece.home = None;
        }
        for piece in self.take_work_of(unit) {
            self.share_out(piece, Origin::Returned);
        }
    }

    /// Leaves a unit out of the run, before it has had any work. Until it is called up, it gets no package,
    /// and P-3 does not wait for its requests.
    pub(crate) fn bench(&mut self, unit: UnitId) {
        if self.is_active(unit) {
            self.units[unit.0].standing = Standing::Benched;
        }
    }

    /// Adds the left-out units that the policy [calls up](Policy::call_up), and returns them. They should ask
    /// for work from now on.
    ///
    /// # Shape and units
    /// `now` is a time from the start of the run. A time before that of an earlier call counts as the earlier
    /// call's.
    pub fn called_up(&mut self, now: Duration) -> Vec<UnitId> {
        self.latest = self.latest.max(now);
        let mut called = self.policy.call_up(self.latest);
        called.retain(|unit| self.is_benched(*unit));
        called.iter().for_each(|unit| self.units[unit.0].standing = Standing::Willing);
        called
    }

    /// Adds all units that were left out, and returns whether there were any. They get the work that the
    /// policy hands to no unit (P-3).
    pub(crate) fn call_up_all(&mut self) -> bool {
        let benched: Vec<UnitId> =
            (0..self.units.len()).map(UnitId).filter(|unit| self.is_benched(*unit)).collect();
        benched.iter().for_each(|unit| self.units[unit.0].standing = Standing::Willing);
        !benched.is_empty()
    }

    /// Returns whether the unit is left out.
    pub(crate) fn is_benched(&self, unit: UnitId) -> bool {
        self.units.get(unit.0).is_some_and(|unit| unit.standing == Standing::Benched)
    }

    /// Returns the number of items that no unit will compute: all uncompleted items once every unit is
    /// retired, otherwise 0.
    #[must_use]
    pub fn stranded(&self) -> u64 {
        let is_left = self.units.iter().any(|unit| unit.standing != Standing::Retired);
        if is_left { 0 } else { self.work - self.completed_items }
    }

    /// Returns whether every item is computed.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.completed_items == self.work
    }

    /// Returns whether the unit takes part and is not retired.
    #[must_use]
    pub fn is_active(&self, unit: UnitId) -> bool {
        self.units.get(unit.0).is_some_and(|unit| unit.standing != Standing::Retired)
    }

    /// Returns the number of items of the whole work.
    #[must_use]
    pub const fn work(&self) -> u64 {
        self.work
    }

    /// Returns the local work size, in items.
    #[must_use]
    pub const fn local_size(&self) -> u64 {
        self.local_size
    }

    /// Returns the number of computed items.
    #[must_use]
    pub const fn completed(&self) -> u64 {
        self.completed_items
    }

    /// Returns the numbers of packages and items that each unit has completed. Reopened packages do not
    /// count.
    pub fn completed_by_unit(&self) -> impl Iterator<Item = (u64, u64)> {
        self.units.iter().map(|unit| unit.completed)
    }

    /// Returns the number of items that are neither in flight nor computed.
    #[must_use]
    pub fn unassigned(&self) -> u64 {
        self.common.items() + self.units.iter().map(|unit| unit.set_aside.items()).sum::<u64>()
    }

    /// Returns the packages in flight, in the order in which they were handed out.
    pub fn in_flight(&self) -> impl Iterator<Item = &Package> {
        self.in_flight.values()
    }

    /// Returns the number of packages handed out so far, including those that came back.
    #[must_use]
    pub const fn handed_out(&self) -> u64 {
        self.handed_out
    }

    /// Returns the policy that proposes the lengths.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Cuts a package of about this length off the first piece of work that the unit may get (P-2, P-4).
    fn cut(&mut self, unit: UnitId, length: u64, forced: Forced) -> Option<Package> {
        // Saturation is harmless: the cut ends with the piece.
        let length = length.max(1).div_ceil(self.local_size).saturating_mul(self.local_size);
        let Unit { set_aside, standing, .. } = &mut self.units[unit.0];
        let range = set_aside
            .cut_returned(length)
            .or_else(|| self.common.cut_returned(length))
            .or_else(|| set_aside.cut_fresh(unit, length, self.local_size, forced))
            .or_else(|| self.common.cut_fresh(unit, length, self.local_size, forced))?;
        *standing = Standing::Willing;
        Some(self.hand(range, unit))
    }

    /// Hands unassigned items to a unit.
    fn hand(&mut self, range: Range<u64>, unit: UnitId) -> Package {
        let package = Package::new(range, unit, self.handed_out);
        self.handed_out += 1;
        self.in_flight.insert(package.index(), package.clone());
        self.policy.handed(&package, self.latest);
        package
    }

    /// Refuses the unit, unless no unit would then ever get work again (P-3).
    fn turn_away(&mut self, unit: UnitId) -> Assignment {
        self.units[unit.0].standing = Standing::TurnedAway;
        if self.some_unit_asks_again() {
            return Assignment::Wait;
        }
        // The policy gives the rest to no unit, but it must be computed. So the asking unit gets it,
        // including the work set aside for other units, which were refused, too.
        for owner in &mut self.units {
            let set_aside = std::mem::take(&mut owner.set_aside);
            self.common.absorb(set_aside);
        }
        match self.cut(unit, u64::MAX, Forced::Yes) {
            Some(package) => Assignment::Package(package),
            None => unreachable!("P-1: unfinished work that is not in flight is unassigned"),
        }
    }

    /// Marks all refused units as willing: their next request may get a package.
    fn let_all_ask_again(&mut self) {
        for unit in &mut self.units {
            if unit.standing == Standing::TurnedAway {
                unit.standing = Standing::Willing;
            }
        }
    }

    /// Returns whether some unit will ask for work again. All units do when a package in flight is finished.
    fn some_unit_asks_again(&self) -> bool {
        !self.in_flight.is_empty() || self.units.iter().any(|unit| unit.standing == Standing::Willing)
    }

    /// Removes a package from those in flight, and returns the splitter's own copy.
    fn take_in_flight(&mut self, package: &Package) -> Result<Package, NotInFlight> {
        take(&mut self.in_flight, package).ok_or_else(|| NotInFlight { package: package.clone() })
    }

    /// Removes the unit's packages in flight and the work set aside for it. Returns both in ascending order
    /// and in the fewest pieces.
    fn take_work_of(&mut self, unit: UnitId) -> Vec<Range<u64>> {
        let mut pieces = std::mem::take(&mut self.units[unit.0].set_aside).into_pieces();
        let failed = self.in_flight.extract_if(.., |_, package| package.unit() == unit);
        pieces.extend(failed.map(|(_, package)| package.range()));
        joined(pieces)
    }

    /// Makes a piece of work available to the units for which the policy sets it aside, otherwise to all
    /// units.
    fn share_out(&mut self, piece: Range<u64>, origin: Origin) {
        let active: Vec<UnitId> = (0..self.units.len())
            .map(UnitId)
            .filter(|unit| self.is_active(*unit) && !self.is_benched(*unit))
            .collect();
        self.let_all_ask_again();
        let items = piece.end - piece.start;
        let lengths =
            if items == 0 || active.is_empty() { None } else { self.policy.set_aside(items, &active) };
        let mut rest = piece;
        for (unit, length) in active.iter().zip(lengths.unwrap_or_default()) {
            let length = length.div_ceil(self.local_size).saturating_mul(self.local_size);
            if let Some(share) = cut_front(&mut rest, length) {
                self.units[unit.0].set_aside.put(share, origin);
            }
        }
        self.common.put(rest, origin);
    }
}

/// Removes a package from a stage, and returns the splitter's own copy; `None` if the package is not in this
/// stage.
fn take(stage: &mut BTreeMap<u64, Package>, package: &Package) -> Option<Package> {
    let known = stage.get(&package.index())?;
    if known == package { stage.remove(&package.index()) } else { None }
}

/// Whether a piece of work was handed out before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Fresh,
    Returned,
}

/// Unassigned pieces of work, none of them empty.
#[derive(Debug, Default)]
struct Pool {
    returned: VecDeque<Range<u64>>,
    fresh: VecDeque<Piece>,
}

/// Whether a unit gets the rest although another unit has its data (P-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forced {
    No,
    Yes,
}

/// A piece of work that was never handed out.
#[derive(Debug)]
struct Piece {
    range: Range<u64>,
    /// The only unit that has its data, if there is one.
    home: Option<UnitId>,
}

impl Pool {
    fn items(&self) -> u64 {
        let fresh = self.fresh.iter().map(|piece| &piece.range);
        self.returned.iter().chain(fresh).map(|piece| piece.end - piece.start).sum()
    }

    fn put(&mut self, piece: Range<u64>, origin: Origin) {
        if !piece.is_empty() {
            match origin {
                Origin::Fresh => self.fresh.push_back(Piece { range: piece, home: None }),
                Origin::Returned => self.returned.push_back(piece),
            }
        }
    }

    fn cut_returned(&mut self, length: u64) -> Option<Range<u64>> {
        let first = self.returned.front_mut()?;
        let cut = cut_front(first, length);
        if first.is_empty() {
            self.returned.pop_front();
        }
        cut
    }

    /// Cuts at most `length` items: first from pieces whose data the unit has, then from pieces without a
    /// home, then from the end of the largest piece of another unit.
    fn cut_fresh(
        &mut self,
        unit: UnitId,
        length: u64,
        local_size: u64,
        forced: Forced,
    ) -> Option<Range<u64>> {
        let first_of = |home| self.fresh.iter().position(|piece| piece.home == home);
        let place = first_of(Some(unit)).or_else(|| first_of(None));
        let (place, cut) = match place {
            Some(place) => (place, cut_front(&mut self.fresh[place].range, length)),
            None => {
                let items = |piece: &Piece| piece.range.end - piece.range.start;
                let (place, largest) =
                    self.fresh.iter_mut().enumerate().max_by_key(|(_, piece)| items(piece))?;
                if forced == Forced::No && items(largest) <= length {
                    return None;
                }
                (place, cut_back(&mut largest.range, length, local_size))
            }
        };
        if self.fresh[place].range.is_empty() {
            self.fresh.remove(place);
        }
        cut
    }

    fn absorb(&mut self, other: Self) {
        self.returned.extend(other.returned);
        self.fresh.extend(other.fresh);
    }

    fn into_pieces(self) -> Vec<Range<u64>> {
        self.returned.into_iter().chain(self.fresh.into_iter().map(|piece| piece.range)).collect()
    }
}

/// Cuts at most `length` items off the front of a piece.
fn cut_front(piece: &mut Range<u64>, length: u64) -> Option<Range<u64>> {
    let start = piece.start;
    piece.start = start.saturating_add(length).min(piece.end);
    (piece.start > start).then_some(start..piece.start)
}

/// Cuts at most `length` items off the end of a piece, and leaves whole work-groups.
fn cut_back(piece: &mut Range<u64>, length: u64, local_size: u64) -> Option<Range<u64>> {
    let items = piece.end - piece.start;
    let kept = items.saturating_sub(length).div_ceil(local_size) * local_size;
    let end = std::mem::replace(&mut piece.end, piece.start + kept);
    (items > 0).then_some(piece.end..end)
}

/// Returns the same items in ascending order and in the fewest pieces.
fn joined(mut pieces: Vec<Range<u64>>) -> Vec<Range<u64>> {
    pieces.sort_unstable_by_key(|piece| piece.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => joined.push(piece),
        }
    }
    joined
}

#[cfg(test)]
mod tests;
