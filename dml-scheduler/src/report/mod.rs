//! The report of a run: the work of every device, or why the run failed.

mod error;
pub mod metrics;
mod reason;

pub use error::RunError;
pub use reason::Reason;

use crate::base::package::Package;
use crate::policy::{PolicySpec, RecordedDecisions};
use dml_core::record::Event;
use dml_core::{DeviceId, PlatformId};
use metrics::Overlap;
use std::ops::Range;
use std::time::Duration;

/// One computed package.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackageRecord {
    /// The computed package.
    pub package: Package,
    /// The device that computed it.
    pub device: DeviceId,
    /// The time from the start of the run until the unit received the package and requested its sub-buffers.
    pub start: Duration,
    /// The time from the start of the run until the device could begin: the sub-buffers were available, and
    /// the previous package was computed.
    pub begun: Duration,
    /// The time from the start of the run until the device had computed the package.
    pub computed: Duration,
    /// Whether the unit was preparing another package when the device ended this package or the previous one.
    ///
    /// The device may then have ended or begun this package earlier than recorded.
    pub noticed_late: bool,
    /// The time from the start of the run until the results were at their destination.
    pub end: Duration,
}

/// The work of one device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The device's id.
    pub device: DeviceId,
    /// The number of packages computed, without packages whose results were lost with the device.
    pub packages: u64,
    /// The number of items in these packages.
    pub items: u64,
    /// The total time during which at least one package was in progress, from its start to its end. Lost
    /// packages count.
    pub busy: Duration,
    /// The time from the start of the run until the device's last package was complete; zero if it had none.
    pub end: Duration,
    /// The device's rate in items per second as estimated from earlier runs, if the policy knew it.
    pub known_rate: Option<f64>,
}

/// A unit that gave up, or whose device was lost with results that no other device had.
///
/// The other units then compute the rest, if they can.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitFailure {
    /// The device of the unit.
    pub device: DeviceId,
    /// The device's name.
    pub device_name: String,
    /// The package on which the unit failed, or the last package whose results were lost.
    pub package: Package,
    /// Why the unit failed. If its device was lost, the message contains that.
    pub message: String,
    /// The time from the start of the run until the unit gave up, or the loss was noticed.
    pub at: Duration,
}

/// A device that was left out of a run, with the reason.
///
/// A device that took part and got no package is not left out.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LeftOut {
    /// The device's id.
    pub device: DeviceId,
    /// Why the device was left out.
    pub reason: Reason,
}

/// A device that joined a run after its start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CalledUp {
    /// The device's id.
    pub device: DeviceId,
    /// The time from the start of the run until its unit began.
    pub at: Duration,
}

/// A finished run.
///
/// # Examples
/// ```
/// # use dml_core::Platform;
/// # use dml_scheduler::{Coexecutor, Kernel, RunError};
/// # fn example(platform: &Platform, kernel: &Kernel) -> Result<(), RunError> {
/// let report = Coexecutor::new(platform).run(kernel, 1_000_000)?;
/// println!("{:?}, balance {:.2}", report.duration, report.balance());
/// for device in &report.devices {
///     let name = &platform.device_desc(device.device).name;
///     println!("{name}: {} items in {} packages", device.items, device.packages);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The platform of the run and of its devices.
    pub platform: PlatformId,
    /// The kernel's name.
    pub kernel: String,
    /// The policy that split the work.
    pub policy: PolicySpec,
    /// The start of the run, on the [clock of the platform](dml_core::Platform::elapsed). All other times
    /// count from here.
    pub begun: Duration,
    /// The time from the start of the run until its last package was complete.
    pub duration: Duration,
    /// Every device, in the order given to the run.
    pub devices: Vec<DeviceReport>,
    /// Every package, by device and time. Items that had to be computed again appear once, in the package
    /// that computed them last.
    pub packages: Vec<PackageRecord>,
    /// The units that gave up during the run, or whose devices were lost with results.
    pub failures: Vec<UnitFailure>,
    /// The devices that were left out until the end, with the reasons.
    ///
    /// [`devices`](Report::devices) contains them too. A device that was called up because the others could
    /// not finish the run is not left out.
    pub left_out: Vec<LeftOut>,
    /// The devices that joined after the start, because the policy called them up or the other devices could
    /// not finish the run.
    pub called_up: Vec<CalledUp>,
    /// The policy's decisions, if the co-executor [records them](crate::Coexecutor::record_decisions).
    pub decisions: Option<RecordedDecisions>,
}

impl Report {
    /// Returns how evenly the devices finished: the earliest end divided by the latest. Devices that were
    /// left out do not count.
    #[must_use]
    pub fn balance(&self) -> f64 {
        let is_in = |device: DeviceId| self.left_out.iter().all(|left_out| left_out.device != device);
        let members = self.devices.iter().filter(|report| is_in(report.device));
        let ends: Vec<f64> = members.map(|report| report.end.as_secs_f64()).collect();
        metrics::balance(&ends)
    }

    /// Returns the interval in which each package was computed, in the order of
    /// [`packages`](Report::packages).
    ///
    /// The times are on the clock of the platform's events. An interval starts when the device could begin
    /// the package.
    pub fn computing(&self) -> impl Iterator<Item = Range<Duration>> {
        self.packages.iter().map(|record| self.begun + record.begun..self.begun + record.computed)
    }

    /// Returns how much of the transfer time in a recording of the platform overlaps with compute of this
    /// run.
    ///
    /// All transfers of the recording count, including those of other work on the platform. So record exactly
    /// for the duration of the run.
    ///
    /// Transfer time is the time during which at least one copy was in progress ([`metrics::transfers`]). It
    /// overlaps while at least one device, including the host, computed a package
    /// ([`computing`](Self::computing)).
    #[must_use]
    pub fn overlap(&self, events: &[Event]) -> Overlap {
        Overlap::of(metrics::transfers(events), self.computing())
    }
}
