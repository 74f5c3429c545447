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

    /// Joins the reports of runs that followed each other on the same devices. All times count from the start
    /// of the first run.
    ///
    /// The kernels' names are listed, each once. A device is left out if it was left out of every run. The
    /// policy and its decisions are those of the first run.
    pub fn joined(reports: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut reports = reports.into_iter();
        let mut all = reports.next()?;
        for report in reports {
            all.append(report);
        }
        // Stable: the packages of a run keep their order.
        all.packages.sort_by_key(|record| (record.device, record.start));
        Some(all)
    }

    fn append(&mut self, mut next: Self) {
        let shift = next.begun.saturating_sub(self.begun);
        let packages = next
            .packages
            .iter_mut()
            .flat_map(|record| [&mut record.start, &mut record.begun, &mut record.computed, &mut record.end]);
        let failures = next.failures.iter_mut().map(|failure| &mut failure.at);
        let called_up = next.called_up.iter_mut().map(|called_up| &mut called_up.at);
        let ends = next.devices.iter_mut().filter(|device| device.packages > 0).map(|device| &mut device.end);
        packages.chain(failures).chain(called_up).chain(ends).for_each(|time| *time += shift);

        if !self.kernel.split(", ").any(|kernel| kernel == next.kernel) {
            self.kernel = format!("{}, {}", self.kernel, next.kernel);
        }
        self.duration = self.duration.max(shift + next.duration);
        for device in next.devices {
            match self.devices.iter_mut().find(|known| known.device == device.device) {
                Some(known) => {
                    known.packages += device.packages;
                    known.items += device.items;
                    known.busy += device.busy;
                    known.end = known.end.max(device.end);
                }
                None => self.devices.push(device),
            }
        }
        self.packages.append(&mut next.packages);
        self.failures.append(&mut next.failures);
        self.left_out.retain(|left_out| next.left_out.iter().any(|other| other.device == left_out.device));
        self.called_up.append(&mut next.called_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::package::UnitId;

    const ONE: DeviceId = DeviceId(0);
    const OTHER: DeviceId = DeviceId(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A run of `kernel` that begins at 100 ms and later: ten items on `device`, which gives up at its end.
    fn ran(kernel: &str, begun: Duration, device: DeviceId) -> Report {
        let package = Package::new(0..10, UnitId(0), 0);
        let of_device = |of| {
            let (packages, items, end) = if of == device { (1, 10, ms(9)) } else { (0, 0, ms(0)) };
            DeviceReport { device: of, packages, items, busy: end, end, known_rate: None }
        };
        Report {
            platform: PlatformId(1),
            kernel: kernel.to_owned(),
            policy: PolicySpec::Static,
            begun,
            duration: ms(10),
            devices: vec![of_device(ONE), of_device(OTHER)],
            packages: vec![PackageRecord {
                package: package.clone(),
                device,
                start: ms(0),
                begun: ms(1),
                computed: ms(8),
                noticed_late: false,
                end: ms(9),
            }],
            failures: vec![UnitFailure {
                device,
                device_name: "a device".to_owned(),
                package,
                message: "lost".to_owned(),
                at: ms(9),
            }],
            left_out: vec![LeftOut { device: OTHER, reason: Reason::Undivided }],
            called_up: vec![CalledUp { device, at: ms(2) }],
            decisions: None,
        }
    }

    #[test]
    fn all_times_of_joined_reports_count_from_the_first_run() {
        let mut last = ran("add", ms(140), ONE);
        last.left_out.clear();
        let runs = [ran("add", ms(100), ONE), ran("scale", ms(120), OTHER), last];
        let all = Report::joined(runs).unwrap();
        assert_eq!((all.kernel.as_str(), all.begun, all.duration), ("add, scale", ms(100), ms(50)));
        let of = |report: &DeviceReport| (report.packages, report.items, report.busy, report.end);
        assert_eq!(
            [of(&all.devices[0]), of(&all.devices[1])],
            [(2, 20, ms(18), ms(49)), (1, 10, ms(9), ms(29))]
        );
        let times = |record: &PackageRecord| [record.start, record.begun, record.computed, record.end];
        let found: Vec<_> = all.packages.iter().map(|record| (record.device, times(record))).collect();
        let at = |shift: u64| [0, 1, 8, 9].map(|time| ms(shift + time));
        assert_eq!(found, [(ONE, at(0)), (ONE, at(40)), (OTHER, at(20))]);
        assert_eq!(
            all.failures.iter().map(|failure| failure.at).collect::<Vec<_>>(),
            [ms(9), ms(29), ms(49)]
        );
        assert_eq!(all.called_up.iter().map(|one| one.at).collect::<Vec<_>>(), [ms(2), ms(22), ms(42)]);
        assert!(all.left_out.is_empty(), "it was left out of some runs only");
        assert_eq!(Report::joined([]), None);
    }
}
