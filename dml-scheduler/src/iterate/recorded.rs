//! The ends of submissions, and the parts of recorded steps as packages of a report.

use super::plan::Part;
use crate::base::package::{Package, UnitId};
use crate::policy::PolicySpec;
use crate::report::{DeviceReport, PackageRecord, Report};
use dml_core::{DeviceId, Platform, Submission};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

/// The end of a submission.
#[derive(Default)]
pub(super) struct End(OnceLock<Instant>);

impl Wake for End {
    fn wake(self: Arc<Self>) {
        self.0.get_or_init(Instant::now);
    }
}

impl End {
    /// Notes when a submission ends.
    pub(super) fn of(mut submission: Submission) -> Arc<Self> {
        let end = Arc::new(Self::default());
        let waker = Waker::from(end.clone());
        if Pin::new(&mut submission).poll(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake_by_ref();
        }
        end
    }

    /// Returns when it ended; now if that is unknown.
    pub(super) fn at(&self) -> Instant {
        *self.0.get_or_init(Instant::now)
    }
}

/// Parts of steps, with the times of their submissions and ends.
pub(super) struct Recorded {
    begun: Duration,
    since: Instant,
    parts: Vec<(usize, Range<u64>, Instant, Arc<End>)>,
}

impl Recorded {
    pub(super) fn new(platform: &Platform) -> Self {
        Self { begun: platform.elapsed(), since: Instant::now(), parts: Vec::new() }
    }

    pub(super) fn add(&mut self, part: &Part, submission: Submission) {
        self.parts.push((part.unit, part.items.clone(), Instant::now(), End::of(submission)));
    }

    /// Returns the parts as packages. A part begins when it is submitted and the one before it on its device
    /// has ended.
    pub(super) fn report(self, platform: &Platform, kernel: &str, devices: &[DeviceId]) -> Report {
        let at = |instant: Instant| instant.saturating_duration_since(self.since);
        let (mut packages, mut reports) = (Vec::new(), Vec::new());
        for (unit, &device) in devices.iter().enumerate() {
            let (mut last, mut items, mut busy) = (Duration::ZERO, 0, Duration::ZERO);
            let of_device = self.parts.iter().enumerate().filter(|(_, (of, ..))| *of == unit);
            for (index, (_, range, submitted, end)) in of_device {
                let (start, computed) = (at(*submitted), at(end.at()));
                let begun = start.max(last).min(computed);
                packages.push(PackageRecord {
                    package: Package::new(range.clone(), UnitId(unit), index as u64),
                    device,
                    start,
                    begun,
                    computed,
                    noticed_late: false,
                    end: computed,
                });
                items += range.end - range.start;
                busy += computed - begun;
                last = computed;
            }
            let count = packages.iter().filter(|record| record.device == device).count() as u64;
            reports.push(DeviceReport { device, packages: count, items, busy, end: last, known_rate: None });
        }
        let duration = reports.iter().map(|report| report.end).max().unwrap_or_default();
        Report {
            platform: platform.id(),
            kernel: kernel.to_owned(),
            policy: PolicySpec::Static,
            begun: self.begun,
            duration,
            devices: reports,
            packages,
            failures: Vec::new(),
            left_out: Vec::new(),
            called_up: Vec::new(),
            decisions: None,
        }
    }
}
