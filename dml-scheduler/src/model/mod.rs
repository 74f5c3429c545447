//! Performance model from earlier runs: compute times per kernel and device, transfer times, and mutual
//! slowdowns.
//!
//! ```text
//!   Report of a run ──learn──▶ Knowledge ──▶ plan: members, and the rates that the policy assumes
//!                                 │  ▲
//!                              save  load      one JSON file per machine
//! ```
//! A kernel is identified by its name, a device by its name and number of units. Measurements at one size
//! yield estimates at every size ([`curve`]). A set of devices needs no measurement of its own: the model
//! learns only how much each device slows down beside another one.

mod curve;
mod store;

pub(crate) use curve::{Interval, KEPT, Width};
pub use store::KnowledgeError;

use crate::report::{CalledUp, PackageRecord};
use curve::{Curve, Growth, Samples};
use dml_core::internal::sync::Mutex;
use dml_core::{DeviceDesc, DeviceId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Exploration budget, as a fraction of the time of all runs.
///
/// Exploration costs the extra time of a little-known device over the best one. With less, a better device is
/// found later; with more, users notice. (`exploring_costs_a_tenth_of_all_runs`)
pub(crate) const EXPLORES: f64 = 0.1;
/// Initial exploration budget of a new kernel, in seconds. Without it, a short kernel would be explored only
/// after many runs. (`dml bench never-loses`, rows below 1 ms)
const NEW_KERNEL_SECONDS: f64 = 300e-6;
/// Maximum number of kernels that are kept; it limits the file's size.
const MOST_KERNELS: usize = 4096;
/// Maximum number of sizes and sets of devices with strips of a kernel; it limits the file's size.
const MOST_STRIPS: usize = 64;
/// Upper bound of the slowdown that one run can show for a device beside another one.
const MOST_SLOWDOWN: f64 = 4.0;

/// Performance model of kernels on devices, learned from earlier runs. Clones share it.
///
/// Its keys are the kernel's name, and the device's name and number of units. So kernels with different times
/// need different names. For each device it has curves of measured times: of packages by their items, and of
/// data movement by its bytes. [`PolicySpec::Calibrated`](crate::policy::PolicySpec) adds to it, and uses it to
/// select the devices of a run.
///
/// ```no_run
/// # use dml_core::Platform;
/// # use dml_scheduler::{Coexecutor, Knowledge};
/// # fn made(platform: &Platform) -> Coexecutor {
/// // Read once, and saved when the last clone is dropped.
/// Coexecutor::new(platform).knowledge(&Knowledge::of_this_machine())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Knowledge(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    book: Mutex<Book>,
    /// The file that the book is saved to, if any.
    file: Option<store::File>,
}

/// The models of all kernels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Book {
    kernels: BTreeMap<String, KernelModel>,
}

/// Model of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct KernelModel {
    /// Models by device name.
    devices: BTreeMap<String, DeviceModel>,
    /// Ratios of strips by the number of items and the names of the devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    strips: Vec<Strips>,
    /// Remaining exploration budget, in seconds. Not saved: each process has its own.
    #[serde(skip)]
    pub(crate) credit: f64,
}

impl Default for KernelModel {
    fn default() -> Self {
        Self { devices: BTreeMap::new(), strips: Vec::new(), credit: NEW_KERNEL_SECONDS }
    }
}

/// Ratios of strips with which devices ended together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Strips {
    items: u64,
    /// The ratios by device name.
    ratios: BTreeMap<String, f64>,
}

impl Strips {
    fn is_of(&self, items: u64, names: &[String]) -> bool {
        let is_known = |name| self.ratios.contains_key(name);
        self.items == items && self.ratios.len() == names.len() && names.iter().all(is_known)
    }

    fn is_valid(&self) -> bool {
        let ratios = || self.ratios.values();
        ratios().all(|ratio| ratio.is_finite() && *ratio >= 0.0) && ratios().any(|ratio| *ratio > 0.0)
    }
}

/// Model of a kernel on a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DeviceModel {
    /// Compute time of a package by its items, in seconds, from runs on this device alone.
    alone: Curve,
    /// The same, from runs in which other devices computed too.
    beside: Curve,
    /// Time of a run in which the device did not compute, in seconds, by the bytes that moved: launches,
    /// waits and transfers that did not overlap with computing.
    moving: Curve,
    /// Duration of a run on this device alone by its items, in seconds.
    runs: Curve,
    /// Bytes that moved in such a run, by its items.
    moved: Curve,
    /// Slowdown beside another device, by the other's name and the power of two of this device's items.
    slowdowns: BTreeMap<String, BTreeMap<u32, Samples>>,
    /// Compute time of a process's first package, in seconds. It may include driver loading and compilation,
    /// so it predicts later packages poorly.
    cold: Curve,
    /// Whether this process has already added a run.
    #[serde(skip)]
    is_warm: bool,
    /// Whether the last run on the device failed. Not saved: the cause may be gone in a later process.
    #[serde(skip)]
    pub(crate) has_failed: bool,
}

impl DeviceModel {
    /// Returns whether any time is known.
    pub(crate) fn is_known(&self) -> bool {
        self.is_measured() || !self.cold.is_empty()
    }

    /// Returns whether a time other than a first package's is known.
    pub(crate) fn is_measured(&self) -> bool {
        !self.alone.is_empty() || !self.beside.is_empty()
    }

    /// Returns the compute time of `items` items in `packages` packages, in seconds, on a device of this
    /// width.
    pub(crate) fn computing(&self, items: f64, packages: f64, width: Width) -> Option<Interval> {
        let length = (items / packages).max(1.0);
        let growth = Growth::Items(width);
        let beside = || {
            // Alone, no other device slows it down, so it may take less.
            let beside = self.beside.at(length, growth)?;
            Some(Interval { least: beside.least / MOST_SLOWDOWN.sqrt(), ..beside })
        };
        let cold = || Some(Interval { least: 0.0, ..self.cold.at(length, Growth::By(0.0))? });
        let one = self.alone.at(length, growth).or_else(beside).or_else(cold)?;
        Some(one.times(packages))
    }

    /// Returns the duration of a run of `items` items on this device alone, in seconds.
    ///
    /// A measured run of about this size is preferred to the sum of compute and transfer times. It is
    /// corrected for the difference between the bytes that moved then and those that move now.
    pub(crate) fn alone(
        &self,
        items: f64,
        packages: f64,
        bytes: f64,
        per_byte: f64,
        width: Width,
    ) -> Option<Interval> {
        let moving = self.moving(bytes, per_byte)?;
        if self.runs.samples_at(items) == 0 {
            return Some(self.computing(items, packages, width)?.plus(moving));
        }
        let (run, moved) = (self.runs.at(items, Growth::By(0.0))?, self.moved.at(items, Growth::By(0.0))?);
        let then = self.moving(moved.expected, per_byte)?;
        let shift = |seconds: f64| (seconds + moving.expected - then.expected).max(moving.expected);
        Some(Interval { least: shift(run.least), expected: shift(run.expected), most: shift(run.most) })
    }

    /// Returns the time of a run in which the device moves `bytes` bytes and does not compute, in seconds.
    ///
    /// Beyond measured sizes, each byte takes `per_byte` seconds.
    pub(crate) fn moving(&self, bytes: f64, per_byte: f64) -> Option<Interval> {
        self.moving.at(bytes, Growth::By(per_byte))
    }

    /// Returns the number of samples of runs of this size on this device alone.
    pub(crate) fn runs_alone(&self, items: f64) -> usize {
        self.runs.samples_at(items)
    }

    /// Returns the slowdown for `items` items beside another device, as measured at the nearest size.
    pub(crate) fn slowdown(&self, other: &str, items: f64) -> Option<f64> {
        let class = (items as u64).max(1).ilog2();
        let sizes = self.slowdowns.get(other)?;
        sizes.iter().min_by_key(|(size, _)| size.abs_diff(class))?.1.median()
    }

    fn is_valid(&self) -> bool {
        let curves = [&self.alone, &self.beside, &self.moving, &self.runs, &self.moved, &self.cold];
        curves.into_iter().all(Curve::is_valid)
            && self
                .slowdowns
                .values()
                .flat_map(BTreeMap::values)
                .all(|samples| samples.is_valid() && samples.len() > 0)
    }
}

impl KernelModel {
    fn has_valid_strips(&self) -> bool {
        self.strips.iter().all(Strips::is_valid)
    }

    /// Returns the model of the kernel on a device.
    pub(crate) fn device(&self, name: &str) -> Option<&DeviceModel> {
        self.devices.get(name)
    }
}

/// A device of a run, with the data to learn from it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) device: DeviceId,
    /// The device's name in the model.
    pub(crate) name: String,
    /// Bytes that every package needs, and bytes that move for all items.
    pub(crate) bytes: [f64; 2],
    /// Transfer time per byte over the links, in seconds.
    pub(crate) per_byte: f64,
    /// The device's parallelism.
    pub(crate) width: Width,
    pub(crate) is_host: bool,
    /// Whether this process has launched the kernel on the device before the run.
    pub(crate) has_launched: bool,
}

impl Member {
    /// Returns the bytes that move for `items` of `all` items.
    pub(crate) fn moved(&self, items: u64, all: u64) -> f64 {
        let [whole, parts] = self.bytes;
        whole + parts * (items as f64 / all.max(1) as f64)
    }
}

/// Returns a device's name in the model.
///
/// The name differs with the number of compute units, and for a device that uses the buffers in place: each
/// computes at another speed.
pub(crate) fn name_of(desc: &DeviceDesc, is_in_place: bool) -> String {
    let place = if is_in_place { " in place" } else { "" };
    format!("{}*{}{place}", desc.name, desc.compute_units)
}

impl Knowledge {
    /// Creates empty knowledge that is not saved.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an independent copy of the current knowledge that is not saved.
    #[must_use]
    pub fn detached(&self) -> Self {
        let book = self.0.book.lock().clone();
        Self(Arc::new(Shared { book: Mutex::new(book), file: None }))
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let old = std::mem::take(&mut *self.0.book.lock());
        drop(old);
    }

    /// Forgets a kernel. Returns whether it was known.
    pub fn forget(&self, kernel: &str) -> bool {
        self.0.book.lock().kernels.remove(kernel).is_some()
    }

    /// Returns the known kernels in order, each with the names of the devices of which something is known.
    #[must_use]
    pub fn kernels(&self) -> Vec<(String, Vec<String>)> {
        let known = |model: &KernelModel| {
            let devices = model.devices.iter().filter(|(_, device)| device.is_known());
            let strips = model.strips.iter().flat_map(|strips| strips.ratios.keys());
            let mut names: Vec<String> = devices.map(|(name, _)| name).chain(strips).cloned().collect();
            names.sort();
            names.dedup();
            names
        };
        self.0.book.lock().kernels.iter().map(|(name, model)| (name.clone(), known(model))).collect()
    }

    /// Returns the kept ratios of the strips of a kernel with so many items, one for each device. `None` if
    /// no run with these devices has kept any: see [`Iterate::knowledge`](crate::Iterate::knowledge).
    #[must_use]
    pub fn strips<'a>(
        &self,
        kernel: &str,
        items: u64,
        devices: impl IntoIterator<Item = &'a DeviceDesc>,
    ) -> Option<Vec<f64>> {
        let names: Vec<String> = devices.into_iter().map(|desc| name_of(desc, false)).collect();
        self.with(kernel, |model| {
            let found = model.strips.iter().find(|strips| strips.is_of(items, &names))?;
            Some(names.iter().map(|name| found.ratios[name]).collect())
        })
    }

    /// Keeps the ratios of the strips of a kernel, one for each device. Those that are no valid ratios are
    /// ignored.
    pub fn keep_strips<'a>(
        &self,
        kernel: &str,
        items: u64,
        devices: impl IntoIterator<Item = &'a DeviceDesc>,
        ratios: &[f64],
    ) {
        let names: Vec<String> = devices.into_iter().map(|desc| name_of(desc, false)).collect();
        let strips = Strips { items, ratios: names.iter().cloned().zip(ratios.iter().copied()).collect() };
        if !strips.is_of(items, &names) || !strips.is_valid() {
            return;
        }
        self.change(kernel, |model| {
            model.strips.retain(|strips| !strips.is_of(items, &names));
            if model.strips.len() >= MOST_STRIPS {
                model.strips.remove(0);
            }
            model.strips.push(strips);
        });
    }

    /// Calls `look` with the model of a kernel, which is empty for an unknown kernel.
    pub(crate) fn with<R>(&self, kernel: &str, look: impl FnOnce(&KernelModel) -> R) -> R {
        let book = self.0.book.lock();
        match book.kernels.get(kernel) {
            Some(model) => look(model),
            None => look(&KernelModel::default()),
        }
    }

    fn change<R>(&self, kernel: &str, change: impl FnOnce(&mut KernelModel) -> R) -> R {
        let mut book = self.0.book.lock();
        if book.kernels.len() >= MOST_KERNELS && !book.kernels.contains_key(kernel) {
            book.kernels.pop_first();
        }
        if !book.kernels.contains_key(kernel) {
            book.kernels.insert(kernel.to_owned(), KernelModel::default());
        }
        change(book.kernels.get_mut(kernel).expect("the model was inserted"))
    }

    /// Records whether a kernel failed on a device.
    pub(crate) fn note_failure(&self, kernel: &str, device: &str, has_failed: bool) {
        self.change(kernel, |model| {
            model.devices.entry(device.to_owned()).or_default().has_failed = has_failed
        });
    }

    /// Learns from a run in which nothing failed.
    pub(crate) fn learn(&self, members: &[Member], run: &Ran<'_>) {
        let Ran { kernel, items, duration, packages, .. } = *run;
        let seconds = duration.as_secs_f64();
        if items == 0 || seconds <= 0.0 {
            return;
        }
        let mut worked = Vec::with_capacity(members.len());
        for member in members {
            let turns = in_turn(packages, member.device);
            if let Some(last) = turns.iter().map(|turn| turn.record.end).max() {
                let done = turns.iter().map(|turn| turn.record.package.items()).sum::<u64>();
                let joined = run.called_up.iter().find(|called| called.device == member.device);
                let joined = joined.map_or(Duration::ZERO, |called| called.at);
                worked.push(Worked { member, done, joined, last, turns });
            }
        }
        self.change(kernel, |model| {
            let explored = run.without_exploring.map_or(0.0, |without| (seconds - without).max(0.0));
            model.credit += EXPLORES * seconds - explored;
            let is_alone = worked.len() == 1;
            let idle = members.iter().filter(|member| {
                run.chosen.contains(&member.device)
                    && worked.iter().all(|other| other.member.device != member.device)
            });
            for member in idle {
                // No work was left for this device: it cannot help the devices that worked.
                let device = model.devices.entry(member.name.clone()).or_default();
                let size = (items / run.chosen.len() as u64).max(1).ilog2();
                for other in &worked {
                    let sizes = device.slowdowns.entry(other.member.name.clone()).or_default();
                    sizes.entry(size).or_default().add(MOST_SLOWDOWN);
                }
            }
            for Worked { member, done, joined, last, turns } in &worked {
                let span = last.saturating_sub(*joined).as_secs_f64();
                let others = worked.iter().filter(|other| other.member.device != member.device);
                let others: Vec<&str> = others.map(|other| other.member.name.as_str()).collect();
                let device = model.devices.entry(member.name.clone()).or_default();
                device.learn_packages(turns, is_alone, member);
                let computing: f64 = turns.iter().map(|turn| turn.seconds).sum();
                let is_undisturbed = is_alone && run.is_alone;
                let not_computing =
                    if is_undisturbed { span - computing } else { at_the_ends(turns, *joined) };
                let moved = member.moved(*done, items);
                if is_undisturbed || device.moving.is_empty() {
                    device.moving.add(moved, not_computing.max(1e-9));
                }
                if is_undisturbed && *done == items {
                    device.runs.add(items as f64, span);
                    device.moved.add(items as f64, moved.max(1.0));
                }
                if !is_alone {
                    // A device's wait for the others at the end is part of its slowdown.
                    let until_the_end = duration.saturating_sub(*joined).as_secs_f64();
                    device.learn_slowdown(member, (*done, items), turns.len(), until_the_end, &others);
                }
            }
        });
    }
}

/// A run to learn from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran<'a> {
    pub(crate) kernel: &'a str,
    pub(crate) items: u64,
    pub(crate) duration: Duration,
    pub(crate) packages: &'a [PackageRecord],
    pub(crate) called_up: &'a [CalledUp],
    /// Devices that were planned to share the run from the start.
    pub(crate) chosen: &'a [DeviceId],
    /// Whether one device was planned to compute all items. Otherwise, other devices' threads may have been
    /// called up in vain.
    pub(crate) is_alone: bool,
    /// Predicted duration without exploration, in seconds; `None` if the run did not explore.
    pub(crate) without_exploring: Option<f64>,
}

/// The work of a device in a run.
struct Worked<'a> {
    member: &'a Member,
    done: u64,
    joined: Duration,
    /// End of the device's last package.
    last: Duration,
    turns: Vec<Turn<'a>>,
}

impl DeviceModel {
    /// Adds the compute time of all packages as one sample, at their item-weighted mean length.
    ///
    /// Items of one part of the work may cost many times those of another, so single packages say little
    /// about a length.
    fn learn_packages(&mut self, turns: &[Turn<'_>], is_alone: bool, member: &Member) {
        // A processor's threads sleep before any kernel's first package.
        let is_cold = !std::mem::replace(&mut self.is_warm, true) && (member.is_host || !member.has_launched);
        let turns = match turns.split_first() {
            Some((first, rest)) if is_cold => {
                self.cold.add(first.record.package.items() as f64, first.seconds);
                rest
            }
            _ => turns,
        };
        let lengths = || turns.iter().map(|turn| turn.record.package.items() as f64);
        let items: f64 = lengths().sum();
        let length = lengths().map(|length| length * length).sum::<f64>() / items;
        let seconds: f64 = turns.iter().map(|turn| turn.seconds).sum();
        let curve = if is_alone { &mut self.alone } else { &mut self.beside };
        curve.add(length, seconds * (length / items));
    }

    /// Learns the slowdown beside others: the measured time over the estimate for the device alone.
    fn learn_slowdown(
        &mut self,
        member: &Member,
        (done, items): (u64, u64),
        packages: usize,
        span: f64,
        others: &[&str],
    ) {
        let (done_f, packages) = (done as f64, packages.max(1) as f64);
        let bytes = member.moved(done, items);
        let alone = self.computing(done_f, packages, member.width).zip(self.moving(bytes, member.per_byte));
        let Some((computing, moving)) = alone else { return };
        let slowdown = (span / computing.plus(moving).expected).clamp(1.0, MOST_SLOWDOWN);
        let each = slowdown.powf(1.0 / others.len().max(1) as f64);
        for other in others {
            let sizes = self.slowdowns.entry((*other).to_owned()).or_default();
            sizes.entry(done.max(1).ilog2()).or_default().add(each);
        }
    }
}

/// A package with the time in which its device computed only this package, in seconds.
#[derive(Clone, Copy, Debug)]
struct Turn<'a> {
    record: &'a PackageRecord,
    seconds: f64,
}

/// Returns the time before a device's first package began and after its last one was computed, in seconds.
///
/// Between these packages the device may have waited for others.
fn at_the_ends(turns: &[Turn<'_>], joined: Duration) -> f64 {
    let (Some(first), Some(last)) = (turns.first(), turns.last()) else { return 0.0 };
    let before = first.record.begun.saturating_sub(joined);
    before.saturating_add(last.record.end.saturating_sub(last.record.computed)).as_secs_f64()
}

/// Returns the packages of a device in the order in which they were computed.
fn in_turn(packages: &[PackageRecord], device: DeviceId) -> Vec<Turn<'_>> {
    let mut records: Vec<&PackageRecord> = packages.iter().filter(|record| record.device == device).collect();
    records.sort_by_key(|record| record.computed);
    let mut before = Duration::ZERO;
    let mut turns = Vec::with_capacity(records.len());
    for record in records {
        let seconds = record.computed.saturating_sub(record.begun.max(before)).as_secs_f64();
        before = record.computed;
        turns.push(Turn { record, seconds });
    }
    turns
}

#[cfg(test)]
mod tests;
