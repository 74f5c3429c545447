//! The report of a run: what every device did, and why a run could not be done.

mod error;
pub mod metrics;
mod reason;

pub use error::RunError;
pub use reason::Reason;

use crate::base::package::Package;
use crate::policy::{PolicySpec, Recording};
use dml_core::record::Event;
use dml_core::{DeviceId, PlatformId};
use metrics::Overlap;
use std::ops::Range;
use std::time::Duration;

/// One package that was computed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackageRecord {
    /// The computed package.
    pub package: Package,
    /// The device that computed it.
    pub device: DeviceId,
    /// The time from the start of the run until the unit had the package, and asked for its sub-buffers.
    pub start: Duration,
    /// The time from the start of the run until the device could begin: the sub-buffers were there, and the package before
    /// was computed.
    pub begun: Duration,
    /// The time from the start of the run until the device had computed it.
    pub computed: Duration,
    /// Whether its unit prepared another package when the device ended this one, or the one before it. The device may have
    /// computed it sooner then, or begun it sooner: nobody looked.
    pub noticed_late: bool,
    /// The time from the start of the run until its results were where they belong.
    pub end: Duration,
}

/// The work of one device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The device's id.
    pub device: DeviceId,
    /// The number of packages computed, without those whose results were lost with the device.
    pub packages: u64,
    /// The number of items computed, counted in the same way.
    pub items: u64,
    /// The time in which at least one package was under way, from its start to its end, lost packages included.
    pub busy: Duration,
    /// The time from the start of the run until its last package was done; zero if it had none.
    pub end: Duration,
    /// The items per second that earlier runs promised, if the policy knew them.
    pub known_rate: Option<f64>,
}

/// A unit that gave up, or whose device was lost with results that no other device had. Other units computed the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitFailure {
    /// The device of the unit.
    pub device: DeviceId,
    /// The device's name.
    pub device_name: String,
    /// The package on which the unit failed, or the last package whose results were lost.
    pub package: Package,
    /// Why the unit failed. The message says so if the device is lost.
    pub message: String,
    /// The time from the start of the run until the unit gave up, or the loss was noticed.
    pub at: Duration,
}

/// A device that was not needed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LeftOut {
    /// The device's id.
    pub device: DeviceId,
    /// Why the run is better without it.
    pub reason: Reason,
}

/// A device that did not begin with the others: they called it up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CalledUp {
    /// The device's id.
    pub device: DeviceId,
    /// The time from the start of the run until its unit began.
    pub at: Duration,
}

/// A finished run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The platform that it ran on, which its devices are of.
    pub platform: PlatformId,
    /// The kernel's name.
    pub kernel: String,
    /// The policy that split the work.
    pub policy: PolicySpec,
    /// When the run began, on the [clock of the platform](dml_core::Platform::elapsed). All other times count from here.
    pub begun: Duration,
    /// The time from the first package asked for to the last one done.
    pub duration: Duration,
    /// Every device, in the order given to the run.
    pub devices: Vec<DeviceReport>,
    /// Every package, by device and time. A package that had to be computed again appears once, as computed last.
    pub packages: Vec<PackageRecord>,
    /// The units that gave up during the run.
    pub failures: Vec<UnitFailure>,
    /// The devices that were left out to the end, with the reasons. They are among [`devices`](Report::devices) too. A device
    /// that was called up because the others could not finish the run is not among them.
    pub left_out: Vec<LeftOut>,
    /// The devices that began later, because those that had begun called them up, or failed while there was no thread for these.
    pub called_up: Vec<CalledUp>,
    /// What the policy decided, if the co-executor [records it](crate::Coexecutor::record_decisions).
    pub decisions: Option<Recording>,
}

impl Report {
    /// How evenly the devices ended that were not left out: the earliest end over the latest.
    #[must_use]
    pub fn balance(&self) -> f64 {
        let is_in = |device: DeviceId| self.left_out.iter().all(|left_out| left_out.device != device);
        let members = self.devices.iter().filter(|report| is_in(report.device));
        let ends: Vec<f64> = members.map(|report| report.end.as_secs_f64()).collect();
        metrics::balance(&ends)
    }

    /// The time in which each package was computed, on the clock of the platform's events, in the order of the packages. A package
    /// counts from the moment at which its device could begin.
    pub fn computing(&self) -> impl Iterator<Item = Range<Duration>> {
        self.packages.iter().map(|record| self.begun + record.begun..self.begun + record.computed)
    }

    /// How much of the transfers that a recording of the platform shows lay under compute of this run. All transfers of the recording
    /// count, those of other work on the platform too: let it last as long as the run.
    ///
    /// Transfer time is that in which at least one copy was under way ([`metrics::transfers`]); of it counts what lies where at least one
    /// device, the host among them, computed a package ([`computing`](Self::computing)).
    #[must_use]
    pub fn overlap(&self, events: &[Event]) -> Overlap {
        Overlap::of(metrics::transfers(events), self.computing())
    }
}
