//! Where the time of each device went, and what each link carried.
//!
//! ```text
//!   package     start ──────── begun ═══════ computed ─────── end
//!                 data comes        it computes      results go
//!   the device at each moment: computing, else fetching, else returning, else idle
//! ```
//! Packages overlap: while one computes, the data of the next one comes, and that time counts as computing.

use super::{Trace, TracePackage};
use dml_scheduler::metrics;
use serde::Serialize;
use std::collections::BTreeMap;

/// The figures of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// How many times faster the run was than the fastest device alone; `None` where the times alone are not known of every device.
    pub speedup: Option<f64>,
    /// The greatest speedup that these devices could give, with the same exception.
    pub s_max: Option<f64>,
    /// The speedup over the greatest one, with the same exception.
    pub efficiency: Option<f64>,
    /// The earliest end over the latest, of the devices that were not left out.
    pub balance: f64,
    /// The bytes that arrived, over all transfers.
    pub bytes: u64,
    /// One entry for each device, in their order.
    pub devices: Vec<DeviceFigures>,
    /// One entry for each directed pair of memories and mechanism that carried something.
    pub links: Vec<LinkFigures>,
}

/// Where the time of a device went. The four parts add up to the time of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceFigures {
    /// The device's name.
    pub name: String,
    /// Whether it was left out to the end.
    pub left_out: bool,
    /// Its packages in the trace.
    pub packages: u64,
    /// The items in them.
    pub items: u64,
    /// The part of all items that these are, from 0 to 1.
    pub share: f64,
    /// The time in which it computed a package.
    pub computing_ns: u64,
    /// The time in which it did not compute, and the data of a package was on its way.
    pub fetching_ns: u64,
    /// The time in which it did neither, and results were on their way.
    pub returning_ns: u64,
    /// The time in which it had no package.
    pub idle_ns: u64,
    /// The part of the idle time before its first package; all of it without one.
    pub idle_before_ns: u64,
    /// The part of the idle time after its last package.
    pub idle_after_ns: u64,
    /// The items per second of the time in which it computed; 0 without that.
    pub computing_items_per_s: f64,
    /// The items per second of the time in which it had a package; 0 without that.
    pub items_per_s: f64,
    /// The part of the run in which it had a package, from 0 to 1.
    pub busy_part: f64,
}

/// What one mechanism carried between two memories.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LinkFigures {
    /// The source's name; `zeros` for fills.
    pub from: String,
    /// The destination's name.
    pub to: String,
    /// The mechanism.
    pub mechanism: String,
    /// The copies that arrived.
    pub copies: u64,
    /// The copies that did not.
    pub failed: u64,
    /// The bytes that arrived.
    pub bytes: u64,
    /// The time in which at least one copy was under way.
    pub moving_ns: u64,
    /// The bytes per second of that time; 0 where it is too short to be measured.
    pub bytes_per_s: f64,
}

impl Trace {
    /// Computes the figures.
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

    /// Returns whether a device was left out to the end.
    pub(super) fn is_left_out(&self, device: usize) -> bool {
        let of_device = |decision: &&super::TraceDecision| decision.device == device;
        self.decisions.iter().filter(of_device).any(|decision| decision.kind == super::DecisionKind::LeftOut)
    }
}

/// How the time of a device divides, in nanoseconds.
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
        // The beginnings and ends of the three turns: the time, which turn, and how many packages more or fewer are in it.
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

/// The time covered by any of these spans.
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
