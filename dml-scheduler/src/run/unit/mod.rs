//! A Coexecution Unit: one device. It takes packages, acquires their sub-buffers in canonical order, launches them, and
//! has their results brought to the collecting device.
//!
//! ```text
//!  pipeline  next ─▶ acquire, launch ─▶ (a few packages in flight) ─▶ wait, release ─▶ collect ─▶ complete
//!                          │ fails                                        │ fails         │ fails
//!  recovery                └────────▶ the rest of the flight ends, then the package alone ◀──┘
//!              losses noticed ─┬─ results readable ──▶ complete; they stay where they are
//!                              └─ old contents back ─┬─ another device is gone ──▶ tried again, alone
//!                                                    └─ else ──▶ retire: its packages go to the others
//! ```
//! A package whose results can be read is never computed again: its read-write arguments would be changed twice. Nor is one of which only a part
//! can be read, if it has read-write arguments: what it changed may be the part that is left. The director gives it up.
//!
//! | file | what is in it |
//! |---|---|
//! | this one | what a unit does with one package |
//! | `pipeline.rs` | in what order, with several packages under way |
//! | `desk.rs` | computed packages whose results are on their way, and the thread that brings them |

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
use dml_core::spans::Span;
use dml_core::{AcquireError, DeviceId, DeviceSet, Grants, InFlight, Operation, Platform, RawBuffer, span};
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
    pub(crate) span: &'a Span,
    pub(crate) collect_on: Option<DeviceId>,
    pub(crate) begun: Instant,
    /// The most packages that it has launched and not waited for.
    pub(crate) depth: usize,
}

/// The record of what a unit did.
#[derive(Debug, Default)]
pub(crate) struct UnitRun {
    pub(crate) packages: Vec<PackageRecord>,
    /// The time in which at least one package was under way.
    pub(crate) busy: Duration,
    /// When the last package was done.
    pub(crate) end: Duration,
    pub(crate) failure: Option<UnitFailure>,
    /// When the unit began.
    pub(crate) joined: Option<Duration>,
}

/// Gets threads for what a unit does not do on its own.
pub(crate) trait Start: Sync {
    /// Starts units that join a round later, each on a thread of its own.
    fn start(&self, units: &[UnitId]);

    /// Lets another thread collect what a unit has computed. Returns whether there is one.
    fn collect(&self, unit: UnitId) -> bool;
}

/// A package that was launched.
enum Launched {
    /// It is computed: its launch returned only then.
    Done(Grants),
    /// The device computes it, or will.
    Running(InFlight),
}

impl Launched {
    /// Whether it is known that the device has computed it, so that waiting takes no time.
    fn has_ended(&self) -> bool {
        match self {
            Self::Done(_) => true,
            Self::Running(flight) => flight.has_ended(),
        }
    }
}

/// A package that is on its way through a unit, with the times of its turns from the start of the run.
#[derive(Debug)]
struct Journey {
    package: Package,
    handed: Duration,
    /// When the device could begin.
    begun: Duration,
    /// When the device had computed it.
    computed: Duration,
    /// Whether the unit prepared another package when the device had, or when it could begin.
    noticed_late: bool,
    /// How many packages the unit had begun with this one.
    number: u64,
    /// Ends when the package is done.
    span: Span,
}

/// A package that failed, and how far it had come.
struct Trouble {
    journey: Journey,
    /// An error that panics when it is shown may panic once more as it goes.
    error: Quiet<KernelError>,
    is_computed: bool,
}

/// How a package in trouble ended.
struct Ending {
    /// Whether its items are computed.
    is_computed: bool,
    /// Why the unit cannot go on, if it cannot.
    failure: Option<String>,
}

/// The time in which at least one of some packages was under way.
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
    /// Adds packages that a unit has completed, and the time in which at least one of them was under way.
    pub(crate) fn extend(&mut self, mut packages: Vec<PackageRecord>) {
        packages.sort_by_key(|record| record.package.index());
        let before = under_way(&self.packages);
        self.end = self.end.max(packages.iter().map(|record| record.end).max().unwrap_or_default());
        self.packages.append(&mut packages);
        self.busy += under_way(&self.packages).saturating_sub(before);
    }
}

impl Unit<'_> {
    /// The time since the start of the run.
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Begins the span of a package.
    fn package_span(&self, package: &Package) -> Span {
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

    /// Returns the package's part of every argument in the device's memory. Without `waits`, only if it is to be had now.
    fn acquire(&self, package: &Package, waits: bool) -> Result<Grants, KernelError> {
        caught(|| {
            let acquire = self.kernel.acquire(self.platform, self.device, package)?;
            if waits { self.commander.wait_for(acquire) } else { Ok(acquire.try_now()?) }
        })
    }

    /// Starts the kernel on what was acquired for it.
    fn launch(&self, package: &Package, grants: Grants) -> Result<Launched, KernelError> {
        caught(move || {
            let mut grants = grants;
            let variant =
                self.kernel.variant_for(self.device).ok_or("no variant of the kernel for this device")?;
            let own: Vec<_> = grants.ids().collect();
            self.platform.counters().count(Operation::Kernel);
            let launched = variant.launch(package, &mut grants);
            if !grants.ids().eq(own) {
                // These roll back, after the work has ended. The package's own grants end where the variant has put them.
                drop(launched);
                drop(grants);
                return Err("the variant exchanged the grants of its package for others (K-5)".into());
            }
            match launched {
                Ok(fence) if fence.is_done() => Ok(Launched::Done(grants)),
                // This thread goes on to other packages. Until it waits for this one, nobody counts as the holder.
                Ok(fence) => Ok(Launched::Running(grants.hand_over().in_flight(fence))),
                Err(error) => {
                    self.end_failed_launch(grants, &*error);
                    Err(error)
                }
            }
        })
    }

    /// Ends the grants of a launch that failed.
    fn end_failed_launch(&self, grants: Grants, error: &(dyn Error + Send + Sync + 'static)) {
        // Losses are noticed before the grants end, so that no waiting request is granted a lost memory.
        self.platform.notice_losses();
        if error.is::<NotStarted>() {
            // The launch's own error says more than that of the release.
            drop(grants.not_started());
        } else {
            // Bytes that were handed out for writing are poisoned; all others stay as they were.
            grants.roll_back();
        }
    }

    /// Waits until a package is computed, and commits its results.
    fn finish(launched: Launched) -> Result<(), KernelError> {
        caught(move || {
            let grants = match launched {
                Launched::Done(grants) => grants,
                Launched::Running(flight) => flight.wait()?,
            };
            Ok(grants.release()?)
        })
    }

    /// Returns the device that the results are to be brought to, if that is another.
    fn collects_on(&self) -> Option<DeviceId> {
        self.collect_on.filter(|&device| self.platform.home(device) != self.platform.home(self.device))
    }

    /// Brings what the package wrote to the collecting device while other packages compute.
    fn collect(&self, package: &Package) -> Result<(), KernelError> {
        let Some(device) = self.collects_on() else { return Ok(()) };
        caught(|| bring(self.platform, self.commander, device, self.kernel.results(package)?))
    }

    /// Tells the commander of a computed package whose results still travel: what it shows decides what the device computes meanwhile.
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

    /// Deals with a package in trouble while nothing else of the unit is under way. If another device is lost, the package is
    /// tried again, at most once per lost device: inputs that were to come from that device may be available elsewhere.
    fn recover(&self, trouble: Trouble) -> (Journey, Ending) {
        let Trouble { mut journey, error, is_computed } = trouble;
        let is_computed = Cell::new(is_computed);
        let outcome = guarded(|| self.try_again(&mut journey, error, &is_computed))
            .unwrap_or_else(|message| Err(format!("panic: {message}")));
        (journey, Ending { is_computed: is_computed.get(), failure: outcome.err() })
    }

    /// As [`Unit::recover`]. `is_computed` says whether the items are computed, also when this fails or panics. In a cancelled run
    /// nothing is tried again.
    ///
    /// # Errors
    /// Why the unit cannot go on.
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
            // All losses count, not only those since the last try: a loss may be known before a buffer meets it.
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

    /// Computes and collects one package while nothing else is under way.
    fn alone(&self, journey: &mut Journey, is_computed: &Cell<bool>) -> Result<(), KernelError> {
        let grants = self.acquire(&journey.package, true)?;
        journey.begun = self.now();
        Self::finish(self.launch(&journey.package, grants)?)?;
        journey.computed = self.now();
        is_computed.set(true);
        self.collect(&journey.package)
    }

    /// Says why a package failed: its error, or the loss of the unit's own device.
    fn explain(&self, error: &dyn Error, lost: DeviceSet) -> String {
        let error = guarded(|| error.to_string()).unwrap_or_else(|message| format!("panic: {message}"));
        if lost.contains(self.device) {
            format!("device {} was lost: {}", self.name(), self.loss().unwrap_or(error))
        } else {
            error
        }
    }

    /// Returns whether results that were to be collected may stay where they were computed. That is so where the
    /// collecting device is lost, the collection was refused as busy, or the run was cancelled while it waited. The final reader then
    /// brings them.
    fn stays(&self, error: &(dyn Error + 'static)) -> bool {
        let is_busy = error.downcast_ref::<AcquireError>().is_some_and(AcquireError::is_busy);
        let lost = self.platform.lost_devices();
        let has_lost_its_goal = self.collect_on.is_some_and(|device| lost.contains(device));
        !lost.contains(self.device) && (is_busy || has_lost_its_goal || error.is::<Interrupted>())
    }

    /// Restores the old contents of a failed package's read-write arguments, so that another unit finds them. Losses
    /// are declared before, so the restored contents are those that a surviving memory holds.
    fn undo(&self, package: &Package) {
        for (buffer, bytes) in self.kernel.changed(package) {
            // Where the old contents are lost, the acquire of the next unit reports that.
            _ = buffer.restore(bytes);
        }
    }

    /// Returns why the device is lost, where its arena knows.
    pub(crate) fn loss(&self) -> Option<String> {
        let home = self.platform.home(self.device)?;
        guarded(|| self.platform.arena(home).loss().map(|loss| loss.to_string())).unwrap_or_default()
    }

    /// The device's name.
    /// The unit's failure on a package.
    pub(crate) fn failure(&self, package: Package, message: String, at: Duration) -> UnitFailure {
        UnitFailure { device: self.device, device_name: self.name().to_owned(), package, message, at }
    }

    pub(crate) fn name(&self) -> &str {
        &self.platform.devices()[usize::from(self.device.0)].name
    }
}

/// Brings results to a device.
pub(crate) fn bring<'a>(
    platform: &Platform,
    commander: &Commander,
    goal: DeviceId,
    results: impl IntoIterator<Item = (&'a RawBuffer, Range<u64>)>,
) -> Result<(), KernelError> {
    for (buffer, bytes) in results {
        match buffer.prefetch(goal, bytes.clone()).wait() {
            // Another request uses the buffer, so this thread waits as a reader. Until the results arrive, only the device that
            // computed them has them.
            Err(AcquireError::Busy { .. }) => {
                let acquire = platform.acquire(goal).read(&buffer.range(bytes));
                commander.wait_for(acquire)?.release()?;
            }
            brought => brought?,
        }
    }
    Ok(())
}

/// Runs code of the kernel, or of an arena, and turns a panic into an error.
pub(crate) fn caught<R>(run: impl FnOnce() -> Result<R, KernelError>) -> Result<R, KernelError> {
    guarded(run).unwrap_or_else(|message| Err(format!("the kernel panicked: {message}").into()))
}
