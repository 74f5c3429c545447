//! A Coexecution Unit: one device. It takes packages, acquires their sub-buffers in canonical order, launches
//! them, and has their results collected on the collecting device.
//!
//! ```text
//!  pipeline  next ─▶ acquire, launch ─▶ (a few packages in flight) ─▶ wait, release ─▶ collect ─▶ complete
//!                          │ fails                                        │ fails         │ fails
//!  recovery                └──────▶ packages in flight end, then the failed one alone ◀──────┘
//!              notice losses ─┬─ results readable ──▶ complete; results stay where they are
//!                             └─ restore old contents ─┬─ another device was lost ──▶ retry, alone
//!                                                      └─ else ──▶ retire: its packages go to the others
//! ```
//! A package whose results can be read is never computed again: that would change its read-write arguments
//! twice. A package with read-write arguments is not computed again either if only a part of its results can
//! be read: the readable part may already be changed. The director gives it up.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | how a unit processes one package |
//! | `pipeline.rs` | the order of these steps with several packages in flight |
//! | `desk.rs` | computed packages whose results are in transfer, and the thread that collects them |

mod desk;
mod pipeline;
#[cfg(test)]
mod tests;

pub(crate) use desk::Desk;
pub(crate) use pipeline::{DEPTH, PUBLISHED_DEPTH};

use crate::base::cancel::Interrupted;
use crate::base::guard::{Quiet, guarded};
use crate::base::package::{Package, UnitId};
use crate::kernel::{Kernel, KernelError, NotStarted};
use crate::policy::Computed;
use crate::report::{PackageRecord, UnitFailure};
use crate::run::commander::Commander;
use crate::run::hooks::Hooks;
use dml_core::internal::TraceSpan;
use dml_core::{
    Access, AcquireError, DeviceId, DeviceSet, Grants, InFlight, Platform, RawBuffer, record::Operation, span,
};
use std::cell::Cell;
use std::error::Error;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The context in which a unit works.
#[derive(Clone, Copy)]
pub(crate) struct Unit<'a> {
    pub(crate) id: UnitId,
    pub(crate) device: DeviceId,
    pub(crate) platform: &'a Platform,
    pub(crate) kernel: &'a Kernel,
    pub(crate) commander: &'a Commander,
    pub(crate) hooks: &'a dyn Hooks,
    /// The span of the run.
    pub(crate) span: &'a TraceSpan,
    pub(crate) collect_on: Option<DeviceId>,
    pub(crate) begun: Instant,
    /// Maximum number of packages that the unit has launched and not yet waited for.
    pub(crate) depth: usize,
}

/// The record of a unit's work.
#[derive(Debug, Default)]
pub(crate) struct UnitRun {
    pub(crate) packages: Vec<PackageRecord>,
    /// Total time during which at least one package was in progress.
    pub(crate) busy: Duration,
    /// Time from the start of the run until the last package was complete.
    pub(crate) end: Duration,
    pub(crate) failure: Option<UnitFailure>,
    /// Time from the start of the run until the unit first began.
    pub(crate) joined: Option<Duration>,
}

/// Starts other threads for a unit.
pub(crate) trait Start: Sync {
    /// Starts units that join a round late, each on a thread of its own.
    fn start(&self, units: &[UnitId]);

    /// Has another thread collect a unit's results. Returns whether there is such a thread.
    fn collect(&self, unit: UnitId) -> bool;
}

/// A launched package.
enum Launched {
    /// The package was computed when the launch returned.
    Done(Grants),
    /// The package is in flight on the device.
    Running {
        flight: InFlight,
        /// Whether its results come to the collecting device by themselves.
        brings: bool,
    },
}

impl Launched {
    /// Returns whether the package is known to be computed, so that waiting takes no time.
    fn has_ended(&self) -> bool {
        match self {
            Self::Done(_) => true,
            Self::Running { flight, .. } => flight.has_ended(),
        }
    }

    /// Returns whether the results are on the collecting device once the grants are released.
    fn brings_results(&self) -> bool {
        matches!(self, Self::Running { brings: true, .. })
    }

    /// Waits for the copies that bring the inputs. Returns whether they had not ended.
    fn wait_for_inputs(&mut self) -> bool {
        match self {
            Self::Done(_) => false,
            Self::Running { flight, .. } => flight.wait_for_inputs(),
        }
    }
}

/// A package on its way through a unit. All times count from the start of the run.
#[derive(Debug)]
struct Journey {
    package: Package,
    handed: Duration,
    /// Time at which the device could begin.
    begun: Duration,
    /// Time at which the device had computed the package.
    computed: Duration,
    /// Whether the unit was preparing another package when the device ended this one, or when it could begin
    /// it.
    noticed_late: bool,
    /// Position of the package among those that the unit has begun, from 1.
    number: u64,
    /// Ends when the package is complete.
    span: TraceSpan,
}

/// A failed package, with its error and its progress.
struct Trouble {
    journey: Journey,
    /// Kept in a guard: an error whose `Display` panics may panic again when it is dropped.
    error: Quiet<KernelError>,
    is_computed: bool,
}

/// The outcome of the recovery of a failed package.
struct Ending {
    /// Whether the package's items are computed.
    is_computed: bool,
    /// Why the unit cannot continue; `None` if it can.
    failure: Option<String>,
}

/// Returns the total time during which at least one of these packages was in progress.
fn under_way(packages: &[PackageRecord]) -> Duration {
    let mut spans: Vec<_> = packages.iter().map(|record| (record.start, record.end)).collect();
    spans.sort_unstable();
    let ends = spans.iter().scan(Duration::ZERO, |until, &(start, end)| {
        let more = end.saturating_sub(start.max(*until));
        *until = (*until).max(end);
        Some(more)
    });
    ends.sum()
}

impl UnitRun {
    /// Adds packages that a unit has completed, and the time during which at least one of them was in
    /// progress.
    pub(crate) fn extend(&mut self, mut packages: Vec<PackageRecord>) {
        packages.sort_by_key(|record| record.package.index());
        let before = under_way(&self.packages);
        self.end = self.end.max(packages.iter().map(|record| record.end).max().unwrap_or_default());
        self.packages.append(&mut packages);
        self.busy += under_way(&self.packages).saturating_sub(before);
    }
}

impl Unit<'_> {
    /// Returns the time since the start of the run.
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Begins the tracing span of a package.
    fn package_span(&self, package: &Package) -> TraceSpan {
        span!(
            DEBUG,
            "package",
            kernel = self.kernel.name(),
            device = self.name(),
            index = package.index(),
            first_item = package.start(),
            items = package.items(),
        )
    }

    /// Acquires the package's part of every argument in the device's memory.
    ///
    /// Without `waits`, fails if the parts are not available at once.
    fn acquire(&self, package: &Package, waits: bool) -> Result<Grants, KernelError> {
        caught(|| {
            let acquire = self.kernel.acquire(self.platform, self.device, package)?.ahead();
            if waits { self.commander.wait_for(acquire) } else { Ok(acquire.try_now()?) }
        })
    }

    /// Launches the kernel on the package's grants.
    fn launch(&self, package: &Package, grants: Grants) -> Result<Launched, KernelError> {
        caught(move || {
            let mut grants = grants;
            let variant =
                self.kernel.variant_for(self.device).ok_or("no variant of the kernel for this device")?;
            let own: Vec<_> = grants.ids().collect();
            self.platform.counters().count(Operation::Kernel);
            let launched = variant.launch(package, &mut grants);
            if !grants.ids().eq(own) {
                // Dropping the fence waits for the work; then the foreign grants roll back. The package's own
                // grants end wherever the variant has moved them.
                drop(launched);
                drop(grants);
                return Err("the variant exchanged the grants of its package for others (K-5)".into());
            }
            match launched {
                Ok(fence) if fence.is_done() => Ok(Launched::Done(grants)),
                // This thread continues with other packages. Until it waits for this one, no thread counts as
                // the holder.
                Ok(fence) => {
                    let mut flight = grants.hand_over().in_flight(fence);
                    let brings = self.collects_on().is_some_and(|device| flight.bring_results(device));
                    Ok(Launched::Running { flight, brings })
                }
                Err(error) => {
                    self.end_failed_launch(grants, &*error);
                    Err(error)
                }
            }
        })
    }

    /// Ends the grants of a launch that failed.
    fn end_failed_launch(&self, grants: Grants, error: &(dyn Error + Send + Sync + 'static)) {
        // Notice losses before the grants end, so that no waiting request is granted lost memory.
        self.platform.notice_losses();
        if error.is::<NotStarted>() {
            // The error of the launch is more informative than the error of the release.
            drop(grants.not_started());
        } else {
            // Poisons bytes that were handed out for writing; all other bytes stay as they were.
            grants.roll_back();
        }
    }

    /// Waits until a package is computed.
    fn computed(launched: Launched) -> Result<Grants, KernelError> {
        caught(move || match launched {
            Launched::Done(grants) => Ok(grants),
            Launched::Running { flight, .. } => Ok(flight.wait()?),
        })
    }

    /// Commits the results of a computed package, and waits for those that come by themselves.
    fn release(grants: Grants) -> Result<(), KernelError> {
        caught(move || Ok(grants.release()?))
    }

    /// Returns the device that collects the results, if its memory is not that of the unit's device.
    fn collects_on(&self) -> Option<DeviceId> {
        self.collect_on.filter(|&device| self.platform.home(device) != self.platform.home(self.device))
    }

    /// Brings the package's results to the collecting device, if there is another one.
    fn collect(&self, package: &Package) -> Result<(), KernelError> {
        let Some(device) = self.collects_on() else { return Ok(()) };
        caught(|| bring(self.platform, self.commander, device, self.kernel.results(package)?))
    }

    /// Reports a computed package to the commander while its results are still in transfer.
    ///
    /// The policy can use its measured times for the device's next package.
    fn ended(&self, journey: &Journey, starter: &dyn Start) {
        let Journey { package, handed, begun, computed, .. } = journey;
        let computed = Computed::new(package, *handed, *begun, *computed, *computed);
        starter.start(&self.commander.ended(package, computed));
    }

    /// Reports a computed package to the application and the commander, and records it in `run`.
    fn complete(&self, journey: Journey, run: &mut UnitRun, starter: &dyn Start) {
        let Journey { package, handed, begun, computed, noticed_late, number: _, span } = journey;
        let end = self.now();
        drop(span);
        self.hooks.package_done(&package, self.device);
        let called = self.commander.complete(&package, Computed::new(&package, handed, begun, computed, end));
        starter.start(&called);
        run.packages.push(PackageRecord {
            package,
            device: self.device,
            start: handed,
            begun,
            computed,
            noticed_late,
            end,
        });
    }

    /// Recovers a failed package while no other package of the unit is in flight.
    ///
    /// If another device is lost, retries the package at most once per lost device: inputs that were to come
    /// from that device may be available elsewhere.
    fn recover(&self, trouble: Trouble) -> (Journey, Ending) {
        let Trouble { mut journey, error, is_computed } = trouble;
        let is_computed = Cell::new(is_computed);
        let outcome = guarded(|| self.try_again(&mut journey, error, &is_computed))
            .unwrap_or_else(|message| Err(format!("panic: {message}")));
        (journey, Ending { is_computed: is_computed.get(), failure: outcome.err() })
    }

    /// As [`Unit::recover`]. `is_computed` tracks whether the items are computed, even if this call fails or
    /// panics.
    ///
    /// A stopped run retries nothing.
    ///
    /// # Errors
    /// Why the unit cannot continue.
    fn try_again(
        &self,
        journey: &mut Journey,
        mut error: Quiet<KernelError>,
        is_computed: &Cell<bool>,
    ) -> Result<(), String> {
        let mut tries = 1;
        loop {
            self.platform.notice_losses();
            let lost = self.platform.lost_devices();
            let why = self.explain(&**error, lost);
            let package = &journey.package;
            if is_computed.get() && self.kernel.has_results(package) {
                // The director handles results that stay on their device.
                return if self.stays(&**error) { Ok(()) } else { Err(why) };
            }
            if is_computed.get() && !self.kernel.is_repeatable(package) {
                return Err(why);
            }
            self.undo(package);
            is_computed.set(false);
            if self.commander.is_stopped() {
                return if error.is::<Interrupted>() { Ok(()) } else { Err(why) };
            }
            // All losses count, not only those since the last try: a loss may be known before it affects a
            // buffer.
            if lost.contains(self.device) || tries > lost.len() {
                return Err(why);
            }
            tries += 1;
            match self.alone(journey, is_computed) {
                Ok(()) => return Ok(()),
                Err(again) => error = Quiet::new(again),
            }
        }
    }

    /// Computes and collects one package while no other package is in flight.
    fn alone(&self, journey: &mut Journey, is_computed: &Cell<bool>) -> Result<(), KernelError> {
        let grants = self.acquire(&journey.package, true)?;
        journey.begun = self.now();
        let grants = Self::computed(self.launch(&journey.package, grants)?)?;
        journey.computed = self.now();
        Self::release(grants)?;
        is_computed.set(true);
        self.collect(&journey.package)
    }

    /// Returns why a package failed: its error, or the loss of the unit's own device.
    fn explain(&self, error: &dyn Error, lost: DeviceSet) -> String {
        let error = guarded(|| error.to_string()).unwrap_or_else(|message| format!("panic: {message}"));
        if lost.contains(self.device) {
            format!("device {} was lost: {}", self.name(), self.loss().unwrap_or(error))
        } else {
            error
        }
    }

    /// Returns whether results that could not be collected may stay where they were computed.
    ///
    /// They may if the collecting device is lost, the collection failed as busy, or the run was cancelled
    /// during the wait. A later reader then fetches them. They may not stay if the unit's own device is lost.
    fn stays(&self, error: &(dyn Error + 'static)) -> bool {
        let is_busy = error.downcast_ref::<AcquireError>().is_some_and(AcquireError::is_busy);
        let lost = self.platform.lost_devices();
        let has_lost_its_goal = self.collect_on.is_some_and(|device| lost.contains(device));
        !lost.contains(self.device) && (is_busy || has_lost_its_goal || error.is::<Interrupted>())
    }

    /// Restores the old contents of a failed package's read-write arguments, so that another unit can compute
    /// it.
    ///
    /// Losses are noticed before, so the restored contents come from a memory that is not lost.
    fn undo(&self, package: &Package) {
        for (buffer, bytes) in self.kernel.changed(package) {
            // If the old contents are lost, the next unit's acquire reports it.
            _ = buffer.restore(bytes);
        }
    }

    /// Returns why the device was lost, if its arena knows.
    pub(crate) fn loss(&self) -> Option<String> {
        let home = self.platform.home(self.device)?;
        guarded(|| self.platform.arena(home).loss().map(|loss| loss.to_string())).unwrap_or_default()
    }

    /// Returns the record of the unit's failure on a package.
    pub(crate) fn failure(&self, package: Package, message: String, at: Duration) -> UnitFailure {
        UnitFailure { device: self.device, device_name: self.name().to_owned(), package, message, at }
    }

    /// Returns the device's name.
    pub(crate) fn name(&self) -> &str {
        &self.platform.device_desc(self.device).name
    }
}

/// Brings results to the memory of a device.
pub(crate) fn bring<'a>(
    platform: &Platform,
    commander: &Commander,
    goal: DeviceId,
    results: impl IntoIterator<Item = (&'a RawBuffer, Range<u64>)>,
) -> Result<(), KernelError> {
    for (buffer, bytes) in results {
        match buffer.prefetch(goal, bytes.clone()).wait() {
            // Another request uses the buffer, so this thread queues as a reader. Until the results arrive,
            // only the device that computed them has them.
            Err(AcquireError::Busy { .. }) => {
                let acquire = platform.acquire(goal).access_range(buffer, bytes, Access::ReadOnly);
                commander.wait_for(acquire)?.release()?;
            }
            brought => brought?,
        }
    }
    Ok(())
}

/// Runs code of the kernel or of an arena, and turns a panic into an error.
pub(crate) fn caught<R>(run: impl FnOnce() -> Result<R, KernelError>) -> Result<R, KernelError> {
    guarded(run).unwrap_or_else(|message| Err(format!("the kernel panicked: {message}").into()))
}
