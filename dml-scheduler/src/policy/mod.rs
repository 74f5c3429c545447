//! Load-balancing policies: they decide how much work each unit gets next.
//!
//! ```text
//!          assign_at(unit, now)       next(unit, remaining)
//!   unit ------------------> Splitter ------------------> Policy
//!        <------------------          <------------------
//!             Package                  Some(length) | None
//!                                      handed(package, now)
//!        ------------------>          ------------------>
//!     ended(package, times)            ended(times)
//!     complete_with(package, times)    computed(times)
//! ```
//!
//! A policy proposes lengths; the [`Splitter`] decides, and tells the policy what was cut and how long it took. A unit may
//! have several packages in flight, and asks for the next one while it has some. Whatever a policy answers, no item is
//! lost or handed out twice, and every run ends:
//!
//! - **P-1** The work is, at every moment, exactly the completed items, the items in flight and the items not yet
//!   assigned; no item is in two of them. A unit's packages in flight may be completed in any order.
//!   (`p1_p2_p3_unruly_policies_compute_every_item_once`)
//! - **P-2** Every piece of unassigned work starts at a multiple of the local work size, and ends at one or at the end
//!   of the work. So does every package. (`p1_p2_p3_unruly_policies_compute_every_item_once`,
//!   `hguided_through_the_splitter_rounds_up_to_work_groups`)
//! - **P-3** A unit that asks while nothing is in flight gets work, whatever the policy says, if every remaining unit was
//!   turned away since the last package was completed or came back. Being turned away with packages in flight only means
//!   "not ahead yet", so every completed package lets all units ask again.
//!   (`p3_a_policy_that_refuses_everybody_does_not_strand_the_work`,
//!   `p3_a_unit_with_work_in_flight_is_asked_again_before_anybody_is_forced`)
//! - **P-4** Work that came back is handed out before work that was never handed out, also to units that have other
//!   packages in flight.
//!   (`p4_work_that_came_back_goes_out_first_and_in_pieces`,
//!   `p4_work_that_came_back_for_all_goes_out_before_what_is_set_aside`)
//!
//! This module implements three published policies: [`Static`], [`Dynamic`] and [`HGuided`]. [`Calibrated`] is the default:
//! it learns what the units can do. [`PolicySpec`] names them on the command line. An application
//! runs its own by [`PolicySpec::custom`]. A [`Recording`] of a run is decided again.

mod blueprint;
mod calibrated;
mod custom;
mod dynamic;
mod explore;
mod hguided;
mod powers;
mod rates;
mod recording;
mod replay;
mod spec;
mod splitter;
mod static_split;
#[cfg(test)]
mod tests;

pub use blueprint::Blueprint;
pub(crate) use blueprint::{Learned, Plan};
pub use calibrated::{Calibrated, Prior};
pub use custom::{CustomPolicy, PolicyInput};
pub use dynamic::Dynamic;
pub(crate) use explore::{Begins, CALLING_SECONDS, CAUTION, Explorer, Exploring, First};
pub use hguided::HGuided;
pub use recording::{ParseRecordingError, Recording, ReplayError};
pub use replay::{Decision, Different, Log, Recorded, replay};
pub use spec::{ParsePolicyError, PolicySpec};
pub use splitter::{Assignment, NotCompleted, NotInFlight, Splitter};
pub use static_split::Static;

use crate::base::package::{Package, UnitId};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::time::Duration;
use thiserror::Error;

/// Decides how many items a unit gets next.
///
/// A policy depends only on its construction and on the calls made to it: no clock, no randomness, no device. Times reach
/// it as arguments. The same calls get the same answers, so that a run can be replayed from its trace.
///
/// Only [`next`](Policy::next) must be written. It need not be careful: the [`Splitter`] clamps and rounds every
/// answer, and hands out all work in any case.
///
/// ```
/// use dml_scheduler::{Assignment, Policy, Splitter, UnitId};
///
/// /// Half of what is left, to whoever asks.
/// #[derive(Debug)]
/// struct Halves;
///
/// impl Policy for Halves {
///     fn next(&mut self, _unit: UnitId, remaining: u64) -> Option<u64> {
///         Some(remaining / 2)
///     }
/// }
///
/// let mut splitter = Splitter::new(Box::new(Halves), 2, 1000, 64)?;
/// let Assignment::Package(package) = splitter.assign(UnitId(1)) else { unreachable!() };
/// assert_eq!(package.range(), 0..512); // 500, rounded up to a multiple of 64
/// # Ok::<(), dml_scheduler::PolicyError>(())
/// ```
///
/// # What a policy owes
/// - **D-1** It may panic: the run hands out no further package, and ends with [`RunError::PolicyFailed`](crate::RunError::PolicyFailed).
///   (`started` `a_policy_that_panics_ends_its_run`)
/// - **D-2** A run calls it under the lock of its packages, on any of its threads. It may call core and the scheduler, and look at a started
///   run or cancel it. It must not wait for the run, nor for buffers that the run writes. (`started` `a_policy_may_look_at_its_run_and_cancel_it`)
/// - **D-3** Whatever it answers, P-1 to P-4 hold. (`started` `a_policy_that_lies_computes_every_item_once`)
pub trait Policy: Send + Debug {
    /// Returns the length of the unit's next package, or `None` if the unit gets nothing for now.
    ///
    /// `None` is not final: the policy is asked again when the unit next wants work. A unit asks while it has packages in
    /// flight, as many as the engine lets it have; `None` then means that it gets no further one ahead yet.
    ///
    /// # Shape and units
    /// `remaining` counts the unassigned items that this unit could be given, at least 1. Without [work set
    /// aside](Policy::set_aside), these are all unassigned items. With it, they are the items set aside for the unit
    /// and those set aside for no unit. The answer counts items. It is raised to at least 1 and rounded up to a
    /// multiple of the local work size. It is then cut off at the end of its piece of work.
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64>;

    /// Returns how many items of a stretch of work are set aside for each unit. With `None` (the default), all items go
    /// to the unit that asks first.
    ///
    /// The splitter calls this once for the whole work, before any package. It calls it again, with the remaining
    /// units, for every stretch that comes back from a failed or lost package or a retired unit. Shares are laid out in
    /// the order of `units`, so that it does not matter which unit asks first.
    ///
    /// # Shape and units
    /// `units` is not empty and ascends. Element i of the answer counts the items of `units[i]`. Each is rounded up to
    /// a multiple of the local work size and cut off at the stretch's end. The rest is set aside for no unit.
    fn set_aside(&mut self, items: u64, units: &[UnitId]) -> Option<Vec<u64>> {
        let _ = (items, units);
        None
    }

    /// Learns which package was cut for the answer of [`next`](Policy::next), and when. Its length is the answer, rounded
    /// and cut off. It may also be a package that the splitter forced on the unit (P-3).
    ///
    /// # Shape and units
    /// `now` is a time from the start of the run: the one that the unit's request brought along.
    fn handed(&mut self, package: &Package, now: Duration) {
        let _ = (package, now);
    }

    /// Learns that a device has computed a package whose results still travel, as soon as that is so. [`computed`](Self::computed) follows
    /// when they have arrived, unless the package comes back. Of a package whose results lie where they belong it is told nothing
    /// here. `computed.done` says no more than `computed.ended`.
    fn ended(&mut self, computed: &Computed) {
        let _ = computed;
    }

    /// Learns that a package was computed, its results are where they belong, and when.
    ///
    /// The packages of a unit need not be reported in the order in which they were handed out.
    fn computed(&mut self, computed: &Computed) {
        let _ = computed;
    }

    /// Learns that a package came back uncomputed from a unit that stays in the run.
    fn given_back(&mut self, package: &Package) {
        let _ = package;
    }

    /// Returns the units that did not [begin](Self::begins) and are to take part from now on. It is asked after each package that was
    /// computed, after a unit was retired, and a few times while the first package is under way.
    ///
    /// # Shape and units
    /// `now` is a time from the start of the run.
    fn call_up(&mut self, now: Duration) -> Vec<UnitId> {
        let _ = now;
        Vec::new()
    }

    /// Returns whether a unit takes part from the start. One that does not gets no package before it is [called up](Self::call_up). If the
    /// others cannot finish the work, it is called up in any case. The splitter asks once for each unit, before anything else.
    fn begins(&mut self, unit: UnitId) -> bool {
        let _ = unit;
        true
    }

    /// Returns why the policy can decide no more, if so. A run then hands out no further package, and ends with
    /// [`RunError::PolicyFailed`](crate::RunError::PolicyFailed).
    fn failure(&self) -> Option<String> {
        None
    }

    /// Learns that a unit is retired for good, with all packages that it has. From now on the policy is asked only about
    /// the other units. If these fail, a unit that was left out for lack of a thread computes the rest all the same.
    fn retire(&mut self, unit: UnitId) {
        let _ = unit;
    }
}

/// A package that a unit has computed, in times from the start of the run.
///
/// Policies learn from it how fast a unit is. The times are measured, so a policy believes none of them: they may stand
/// still, or go back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Computed {
    /// The unit that computed the package.
    pub unit: UnitId,
    /// The number of items of the package.
    pub items: u64,
    /// When the unit was handed the package.
    pub handed: Duration,
    /// When the device could begin: its inputs were there, it was launched, and the device's package before it had ended.
    pub begun: Duration,
    /// When the device had computed it.
    pub ended: Duration,
    /// When its results were where they belong.
    pub done: Duration,
}

impl Computed {
    /// Makes the record of a package that was handed out, begun, ended and done at these times.
    #[must_use]
    pub const fn new(
        package: &Package,
        handed: Duration,
        begun: Duration,
        ended: Duration,
        done: Duration,
    ) -> Self {
        Self { unit: package.unit(), items: package.items(), handed, begun, ended, done }
    }
}

/// Why a policy, or the splitting of work by it, could not be set up.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// There are no units.
    #[error("no units: a policy needs at least one unit to give work to")]
    NoUnits,
    /// A relative power is zero, negative, infinite or not a number.
    #[error("bad power: {unit} has relative power {power}, which is not positive and finite")]
    BadPower {
        /// The unit with the bad power.
        unit: UnitId,
        /// The power it was given.
        power: f64,
    },
    /// The number of packages is zero.
    #[error("bad number of packages: dynamic was given 0, needs at least 1")]
    ZeroPackages,
    /// The divisor of HGuided is below 1, infinite or not a number.
    #[error("bad divisor: hguided was given k = {k}, needs a finite number of at least 1")]
    BadDivisor {
        /// The divisor it was given.
        k: f64,
    },
    /// There is not one minimum package size per unit.
    #[error("bad minimums: hguided was given {minimums} minimum package sizes for {units} units")]
    MinimumCount {
        /// The number of minimum package sizes.
        minimums: usize,
        /// The number of units.
        units: usize,
    },
    /// A policy of the application's could not be made.
    #[error("policy {policy} cannot be made: {cause}")]
    Custom {
        /// The policy's name.
        policy: String,
        /// What the application says, or panicked with.
        cause: String,
    },
    /// A kernel's work-groups cannot be empty.
    #[error("bad local work size: 0 items, needs at least 1")]
    ZeroLocalSize,
}

/// Checks that a local work size is at least 1.
const fn checked_local_size(local_size: u64) -> Result<u64, PolicyError> {
    if local_size == 0 { Err(PolicyError::ZeroLocalSize) } else { Ok(local_size) }
}
