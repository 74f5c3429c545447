//! Where the time of each device went, and what each link carried.
//!
//! ```text
//!   package     start ──────── begun ═══════ computed ─────── end
//!              fetching data     computing    returning results
//!   the device at each moment: computing, else fetching, else returning, else idle
//! ```
//! Packages overlap: a device fetches data of the next package while it computes one. That time counts as
//! computing.

use super::{Trace, TracePackage};
use dml_scheduler::metrics;
use serde::Serialize;
use std::collections::BTreeMap;

/// The figures of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The speedup over the fastest device alone; `None` unless the time alone is known for every device.
    pub speedup: Option<f64>,
    /// The largest possible speedup of these devices, or `None` under the same condition.
    pub s_max: Option<f64>,
    /// The ratio of `speedup` to `s_max`, or `None` under the same condition.
    pub efficiency: Option<f64>,
    /// The ratio of the earliest to the latest end among the devices that were not left out.
    pub balance: f64,
    /// The number of bytes that arrived, over all transfers.
    pub bytes: u64,
    /// One entry for each device, in the order of [`Trace::devices`].
    pub devices: Vec<DeviceFigures>,
    /// One entry for each mechanism from one arena to another that has transfers, failed ones included.
    pub links: Vec<LinkFigures>,
}

/// Where the time of a device went. Its four parts add up to the duration of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceFigures {
    /// The device's name.
    pub name: String,
    /// Whether the device was left out to the end of the run.
    pub left_out: bool,
    /// The number of its packages in the trace.
    pub packages: u64,
    /// The number of items in these packages.
    pub items: u64,
    /// Its share of all items, from 0 to 1.
    pub share: f64,
    /// The time in which the device computed at least one package.
    pub computing_ns: u64,
    /// The time in which the device fetched data of a package and did not compute.
    pub fetching_ns: u64,
    /// The time in which the device returned results and neither computed nor fetched.
    pub returning_ns: u64,
    /// The time in which the device had no package.
    pub idle_ns: u64,
    /// The idle time before its first package; all idle time if it had none.
    pub idle_before_ns: u64,
    /// The idle time after its last package.
    pub idle_after_ns: u64,
    /// The rate over the computing time, in items per second; 0 if the device did not compute.
    pub computing_items_per_s: f64,
    /// The rate over the time with a package, in items per second; 0 if the device had none.
    pub items_per_s: f64,
    /// The share of the run in which the device had a package, from 0 to 1.
    pub busy_part: f64,
}

/// What one mechanism carried from one arena to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LinkFigures {
    /// The name of the source; `zeros` for fills.
    pub from: String,
    /// The name of the destination.
    pub to: String,
    /// The mechanism of the link; `fill` for fills.
    pub mechanism: String,
    /// The number of copies that arrived.
    pub copies: u64,
    /// The number of copies that did not arrive.
    pub failed: u64,
    /// The number of bytes that arrived.
    pub bytes: u64,
    /// The time with at least one copy in flight.
    pub moving_ns: u64,
    /// The throughput over that time, in bytes per second; 0 if the time is too short to measure.
    pub bytes_per_s: f64,
}

impl Trace {
    /// Computes the figures of the trace.
    ///
    /// # Complexity
    /// O(n log n) in packages and transfers.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let alone: Option<Vec<f64>> =
            self.devices.iter().map(|device| device.alone_ns.map(|time| time as f64 / 1e9)).collect();
        let alone = alone.filter(|alone| !alone.is_empty());
        let speedup = alone.as_ref().map(|alone| {
            let fastest = alone.iter().copied().fold(f64::INFINITY, f64::min);
            metrics::speedup(fastest, self.total_ns as f64 / 1e9)
        });
        let s_max = alone.as_ref().map(|alone| metrics::s_max(&metrics::powers(alone)));
        let members = (0..self.devices.len()).filter(|&device| !self.is_left_out(device));
        let ends: Vec<f64> = members.map(|device| self.devices[device].end_ns as f64).collect();
        let arrived = self.transfers.iter().filter(|transfer| transfer.arrived);
        Summary {
            speedup,
            s_max,
            efficiency: speedup.zip(s_max).map(|(speedup, s_max)| metrics::efficiency(speedup, s_max)),
            balance: metrics::balance(&ends),
            bytes: arrived.map(|transfer| transfer.bytes).fold(0, u64::saturating_add),
            devices: self.device_figures(),
            links: self.link_figures(),
        }
    }

    fn device_figures(&self) -> Vec<DeviceFigures> {
        let mut of_devices: Vec<Vec<&TracePackage>> = vec![Vec::new(); self.devices.len()];
        for package in &self.packages {
            if let Some(of_device) = of_devices.get_mut(package.device) {
                of_device.push(package);
            }
        }
        let figures = |(device, packages): (usize, &Vec<&TracePackage>)| {
            let items = packages.iter().map(|package| package.items).fold(0, u64::saturating_add);
            let parts = Parts::of(packages, self.duration_ns);
            let busy_ns = self.duration_ns.saturating_sub(parts.idle);
            DeviceFigures {
                name: self.device_name(device).to_owned(),
                left_out: self.is_left_out(device),
                packages: packages.len() as u64,
                items,
                share: ratio(items as f64, self.items as f64),
                computing_ns: parts.computing,
                fetching_ns: parts.fetching,
                returning_ns: parts.returning,
                idle_ns: parts.idle,
                idle_before_ns: parts.idle_before,
                idle_after_ns: parts.idle_after,
                computing_items_per_s: per_second(items, parts.computing),
                items_per_s: per_second(items, busy_ns),
                busy_part: ratio(busy_ns as f64, self.duration_ns as f64),
            }
        };
        of_devices.iter().enumerate().map(figures).collect()
    }

    fn link_figures(&self) -> Vec<LinkFigures> {
        let mut links: BTreeMap<(Option<usize>, usize, &str), Vec<usize>> = BTreeMap::new();
        for (place, transfer) in self.transfers.iter().enumerate() {
            links.entry((transfer.from, transfer.to, &transfer.mechanism)).or_default().push(place);
        }
        let figures = |((from, to, mechanism), places): ((Option<usize>, usize, &str), Vec<usize>)| {
            let transfers = || places.iter().map(|&place| &self.transfers[place]);
            let arrived = || transfers().filter(|transfer| transfer.arrived);
            let bytes = arrived().map(|transfer| transfer.bytes).fold(0, u64::saturating_add);
            let moving_ns = union(transfers().map(|transfer| (transfer.begin_ns, transfer.end_ns)));
            LinkFigures {
                from: self.arena_name(from).to_owned(),
                to: self.arena_name(Some(to)).to_owned(),
                mechanism: mechanism.to_owned(),
                copies: arrived().count() as u64,
                failed: (places.len() - arrived().count()) as u64,
                bytes,
                moving_ns,
                bytes_per_s: per_second(bytes, moving_ns),
            }
        };
        links.into_iter().map(figures).collect()
    }

    /// Returns whether a device was left out to the end of the run.
    pub(super) fn is_left_out(&self, device: usize) -> bool {
        let of_device = |decision: &&super::TraceDecision| decision.device == device;
        self.decisions.iter().filter(of_device).any(|decision| decision.kind == super::DecisionKind::LeftOut)
    }
}

/// The parts of a device's time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parts {
    computing: u64,
    fetching: u64,
    returning: u64,
    idle: u64,
    idle_before: u64,
    idle_after: u64,
}

impl Parts {
    fn of(packages: &[&TracePackage], duration: u64) -> Self {
        // The starts and ends of the three phases: the time, the phase, and the change in its number of
        // packages. At each time the device counts as in the first phase that has a package.
        let mut changes: Vec<(u64, usize, i64)> = Vec::with_capacity(packages.len() * 6);
        for package in packages {
            let turns = [
                (package.begun_ns, package.computed_ns),
                (package.start_ns, package.begun_ns),
                (package.computed_ns, package.end_ns),
            ];
            for (turn, (from, to)) in turns.into_iter().enumerate() {
                changes.push((from.min(duration), turn, 1));
                changes.push((to.max(from).min(duration), turn, -1));
            }
        }
        changes.sort_unstable();
        let mut within = [0_i64; 3];
        // Computing, fetching, returning, idle.
        let mut parts = [0_u64; 4];
        let mut until = 0;
        for (at, turn, change) in changes {
            let now = within.iter().position(|count| *count > 0).unwrap_or(3);
            parts[now] += at - until;
            until = at;
            within[turn] += change;
        }
        let [computing, fetching, returning, idle] = parts;
        let first = packages.iter().map(|package| package.start_ns).min().unwrap_or(duration);
        let last = packages.iter().map(|package| package.end_ns).max();
        let idle_after = last.map_or(0, |last| duration.saturating_sub(last));
        Self {
            computing,
            fetching,
            returning,
            idle: idle + (duration - until),
            idle_before: first.min(duration),
            idle_after,
        }
    }
}

/// Returns the time that at least one of these spans covers.
fn union(spans: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut spans: Vec<_> = spans.collect();
    spans.sort_unstable();
    let (mut covered, mut until) = (0, 0);
    for (from, to) in spans {
        covered += to.saturating_sub(from.max(until));
        until = until.max(to);
    }
    covered
}

fn per_second(count: u64, ns: u64) -> f64 {
    ratio(count as f64 * 1e9, ns as f64)
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
