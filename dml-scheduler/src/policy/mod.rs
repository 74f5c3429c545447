//! Load-balancing policies: they decide how many items each unit gets next.
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
//! A policy proposes lengths. The [`Splitter`] cuts the packages, and reports to the policy what it cut and
//! how long each package took. A unit may have several packages in flight, and may request the next one
//! before they end. Whatever a policy returns, no item is lost or handed out twice, and every run ends:
//!
//! - **P-1** At every moment, each item of the work is either completed, in flight or unassigned, and never
//!   two of these. A unit's packages in flight may be completed in any order.
//!   (`p1_p2_p3_unruly_policies_compute_every_item_once`)
//! - **P-2** Every piece of unassigned work starts at a multiple of the local work size, and ends at one or
//!   at the end of the work. So does every package. (`p1_p2_p3_unruly_policies_compute_every_item_once`,
//!   `hguided_through_the_splitter_rounds_up_to_work_groups`)
//! - **P-3** A request gets work, whatever the policy returns, if nothing is in flight and every remaining
//!   unit was refused. The package is the first piece of all remaining work, work set aside for others
//!   included, however long. Only refusals since the last package was completed or came back count. A refusal
//!   with packages in flight only means "nothing in advance yet", so every completed package lets all units
//!   ask again. (`p3_a_policy_that_refuses_everybody_does_not_strand_the_work`,
//!   `p3_a_unit_with_work_in_flight_is_asked_again_before_anybody_is_forced`)
//! - **P-4** Work that came back is handed out before work that was never handed out, also to units that have
//!   other packages in flight. (`p4_work_that_came_back_goes_out_first_and_in_pieces`,
//!   `p4_work_that_came_back_for_all_goes_out_before_what_is_set_aside`)
//!
//! This module implements three published policies: [`Static`], [`Dynamic`] and [`HGuided`]. The default is
//! [`Calibrated`], which learns the speed of the units. [`PolicySpec`] names policies on the command line. An
//! application plugs in its own with [`PolicySpec::custom`]. A [`RecordedDecisions`] replays the decisions of
//! a run.

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
pub use recording::{ParseDecisionsError, RecordedDecisions, ReplayError};
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
/// A policy depends only on its construction and on the calls made to it: no clock, no randomness, no device.
/// Times reach it as arguments. The same calls get the same answers, so that a run can be replayed from its
/// trace.
///
/// Only [`next`](Policy::next) is required. It need not be careful: the [`Splitter`] clamps and rounds every
/// answer, and hands out all work in any case.
///
/// ```
/// use dml_scheduler::{UnitId, policy::{Assignment, Policy, Splitter}};
///
/// /// Gives each unit half of the remaining items.
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
/// # Ok::<(), dml_scheduler::policy::PolicyError>(())
/// ```
///
/// # What a policy owes
/// - **D-1** A policy may panic. The run then hands out no further package, and ends with
///   [`RunError::PolicyFailed`](crate::RunError::PolicyFailed). (`started`
///   `a_policy_that_panics_ends_its_run`)
/// - **D-2** A run calls the policy on any of its threads, with the lock of its packages held. The policy may
///   call core and the scheduler, and may inspect or cancel a started run. It must not wait for the run, nor
///   for buffers that the run writes. (`started` `a_policy_may_look_at_its_run_and_cancel_it`)
/// - **D-3** Whatever the policy returns, P-1 to P-4 hold. (`started`
///   `a_policy_that_lies_computes_every_item_once`)
pub trait Policy: Send + Debug {
    /// Returns the length of the unit's next package, or `None` if the unit gets nothing for now.
    ///
    /// `None` is not final: the splitter calls again at the unit's next request. A unit may request work
    /// while it has packages in flight, up to the engine's limit. `None` then means that it gets no further
    /// package in advance yet.
    ///
    /// # Shape and units
    /// `remaining` counts the unassigned items that this unit may get, at least 1. Without
    /// [work set aside](Policy::set_aside), these are all unassigned items. With it, they are the items set
    /// aside for the unit and those set aside for no unit. The returned length counts items. It is raised to
    /// at least 1, rounded up to a multiple of the local work size, and then cut off at the end of its piece
    /// of work.
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64>;

    /// Returns how many items of a stretch of work are set aside for each unit. With `None` (the default),
    /// all items go to the unit that asks first.
    ///
    /// The splitter calls this once for the whole work, before any package, with the units that
    /// [begin](Self::begins). Nothing is set aside later for a unit that is called up. It calls this again,
    /// with the units that then take part, for every stretch that comes back from a failed or lost package or
    /// a retired unit. Shares are laid out in the order of `units`, so that it does not matter which unit
    /// asks first.
    ///
    /// # Shape and units
    /// `units` is not empty and ascends. Element i of the result counts the items of `units[i]`. Each is
    /// rounded up to a multiple of the local work size and cut off at the stretch's end. The rest is set
    /// aside for no unit.
    fn set_aside(&mut self, items: u64, units: &[UnitId]) -> Option<Vec<u64>> {
        let _ = (items, units);
        None
    }

    /// Receives each package that was cut. Its length is that of [`next`](Policy::next), rounded and cut off.
    /// The splitter may also have forced the package on the unit (P-3).
    ///
    /// # Shape and units
    /// `now` is the time of the unit's request, from the start of the run.
    fn handed(&mut self, package: &Package, now: Duration) {
        let _ = (package, now);
    }

    /// Receives a package when its device has computed it and its results are still in transit.
    ///
    /// [`computed`](Self::computed) follows when they have arrived, unless the package comes back. A package
    /// whose results are already in place is not reported here. `computed.done` carries no information beyond
    /// `computed.ended`.
    fn ended(&mut self, computed: &Computed) {
        let _ = computed;
    }

    /// Receives a completed package, with its times: it is computed, and its results are in place.
    ///
    /// The packages of a unit need not be reported in the order in which they were handed out.
    fn computed(&mut self, computed: &Computed) {
        let _ = computed;
    }

    /// Receives a package that came back uncomputed from a unit that stays in the run.
    fn given_back(&mut self, package: &Package) {
        let _ = package;
    }

    /// Returns the units that did not [begin](Self::begins) and take part from now on. The run calls this
    /// before the first package, and a few times in its first 300 microseconds. It also calls this after each
    /// computed package, and after a unit was retired. No timer calls it between these.
    ///
    /// # Shape and units
    /// `now` is a time from the start of the run.
    fn call_up(&mut self, now: Duration) -> Vec<UnitId> {
        let _ = now;
        Vec::new()
    }

    /// Returns whether a unit takes part from the start. Otherwise, it gets no package before it is [called
    /// up](Self::call_up).
    ///
    /// If the other units cannot finish the work, the run calls it up in any case. The splitter calls this
    /// once for each unit, before any other method.
    fn begins(&self, unit: UnitId) -> bool {
        let _ = unit;
        true
    }

    /// Returns the cause if the policy has failed and cannot decide any more. The run then hands out no
    /// further package, and ends with [`RunError::PolicyFailed`](crate::RunError::PolicyFailed).
    ///
    /// The run calls this after each of its other calls. The first cause counts.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Removes a unit, with all its packages in flight. From now on, the splitter asks only about the other
    /// units.
    ///
    /// A unit that was left out for lack of a thread counts as retired, too. If the other units fail, it
    /// computes the rest without asking the policy.
    fn retire(&mut self, unit: UnitId) {
        let _ = unit;
    }
}

/// The times of a package that a unit has computed, from the start of the run.
///
/// Policies estimate a unit's speed from it. The times are measured, and the clock may stand still or go
/// back. A policy must not rely on their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Computed {
    /// The unit that computed the package.
    pub unit: UnitId,
    /// The number of items of the package.
    pub items: u64,
    /// When the unit was handed the package.
    pub handed: Duration,
    /// When the device could begin: the inputs were in place, the package was launched, and the device's
    /// previous package had ended.
    pub begun: Duration,
    /// When the device had computed the package.
    pub ended: Duration,
    /// When the results were in place.
    pub done: Duration,
}

impl Computed {
    /// Creates the record of a package that was handed out, begun, ended and done at these times.
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

/// Why a policy or its splitter could not be created.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// There are no units.
    #[error("no units: a policy needs at least one unit")]
    NoUnits,
    /// A relative power is zero, negative, infinite or not a number.
    #[error("bad power: {unit} has relative power {power}, which is not positive and finite")]
    BadPower {
        /// The unit with the bad power.
        unit: UnitId,
        /// The given power.
        power: f64,
    },
    /// The number of packages is zero.
    #[error("bad number of packages: dynamic was given 0, needs at least 1")]
    ZeroPackages,
    /// The divisor of HGuided is below 1, infinite or not a number.
    #[error("bad divisor: hguided was given k = {k}, needs a finite number of at least 1")]
    BadDivisor {
        /// The given divisor.
        k: f64,
    },
    /// The number of minimum package sizes differs from the number of units.
    #[error("bad minimums: hguided was given {minimums} minimum package sizes for {units} units")]
    MinimumCount {
        /// The number of minimum package sizes.
        minimums: usize,
        /// The number of units.
        units: usize,
    },
    /// The application's code did not build its custom policy.
    #[error("policy {policy} cannot be built: {cause}")]
    Custom {
        /// The policy's name.
        policy: String,
        /// The application's error or panic message.
        cause: String,
    },
    /// The local work size is zero.
    #[error("bad local work size: 0 items, needs at least 1")]
    ZeroLocalSize,
}

/// Checks that a local work size is at least 1.
const fn checked_local_size(local_size: u64) -> Result<u64, PolicyError> {
    if local_size == 0 { Err(PolicyError::ZeroLocalSize) } else { Ok(local_size) }
}
