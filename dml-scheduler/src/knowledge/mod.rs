//! What earlier runs taught: how fast each device computes a kernel, and which devices are best together.
//!
//! ```text
//!   Report of a run ──learn──▶ Knowledge ──decide──▶ who takes part, and what the policy may assume of each
//!                                 │  ▲
//!                           Display  parse      a text, for whoever keeps it in a file
//! ```
//! A page is kept for each kernel (by name) and size class (items, to a power of two). It has the last few rates of each
//! device, and the times of runs by the set of devices that took part. Medians count, so that one run on a busy machine
//! changes nothing.
//!
//! What was measured is believed before what is computed from it: devices that share memory or cores are slower together
//! than each alone, and no sum of rates knows that.

#[cfg(test)]
mod alone_tests;
mod decide;
#[cfg(test)]
mod opens_tests;
#[cfg(test)]
mod rival_tests;
#[cfg(test)]
mod tests;
mod text;

pub use decide::Reason;
pub(crate) use decide::{Candidate, SHORT_SECONDS, Selection, fits};
pub use text::KnowledgeError;

use crate::haul::PACKAGE_SECONDS;
use crate::package::Package;
use crate::policy;
use crate::report::{PackageRecord, Report};
use dml_core::sync::{Arc, Mutex};
use dml_core::{DeviceId, DeviceKind, Platform};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of samples that are kept of anything. The oldest go first.
const KEPT: usize = 9;
/// What a package costs besides its items, in seconds, at most: on the host, and on a device that is launched and waited for.
/// So little of a package's time counts as computing at least.
const HOST_PACKAGE_SECONDS: f64 = 30e-6;
const DEVICE_PACKAGE_SECONDS: f64 = 120e-6;
const LEAST_NET: f64 = 0.02;
/// Runs that are so many times as fast as all before them, of which there were so many at least, are of another kernel, or of
/// another machine.
const ANOTHER: f64 = 1.5;
const BELIEVED: usize = 3;
/// The most pages that are kept.
const MOST_PAGES: usize = 4096;

/// What runs taught about kernels on devices. Clones share it.
///
/// It is kept by the kernel's name and the power of two of its items, and by the device's name and number of units: kernels that
/// take different times need different names. Of each device it has the last rates and set-up times, and of each set of devices that
/// took part the last times of whole runs. [`PolicySpec::Calibrated`](crate::PolicySpec) adds to it, and decides by it who takes part.
///
/// As text it has one line for each thing that is known, below a line `page CLASS KERNEL`: `device NAME rate R.. peak R.. setup S.. latency S.. kernel R..`
/// in items per second and seconds (the last two where there is such a time or rate; `device NAME tried rate` where trials alone say so), `set NAME.. seconds S..` in seconds per item.
///
/// ```
/// use dml_scheduler::Knowledge;
///
/// let knowledge = Knowledge::new();
/// let text = knowledge.to_string();
/// assert_eq!(Knowledge::parse(&text)?.to_string(), text);
/// # Ok::<(), dml_scheduler::KnowledgeError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Knowledge(Arc<Mutex<Book>>);

/// All pages.
#[derive(Clone, Debug, Default, PartialEq)]
struct Book(BTreeMap<Topic, Page>);

/// What a page is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Topic {
    kernel: String,
    class: u32,
}

/// What is known of a kernel at a size.
#[derive(Clone, Debug, Default, PartialEq)]
struct Page {
    /// By the name of the device.
    devices: BTreeMap<String, Notes>,
    /// Seconds per item, by the sorted names of the devices that took part.
    sets: BTreeMap<Vec<String>, Samples>,
    /// How many runs there were.
    runs: u64,
}

/// What is known of a device.
#[derive(Clone, Debug, Default, PartialEq)]
struct Notes {
    /// Items per second, from the first package begun to the last one computed.
    rate: Samples,
    /// Items per second of the best package of a run, without what a package costs besides its items.
    peak: Samples,
    /// Seconds before the first package began and after the last one was computed.
    setup: Samples,
    /// Seconds of any package, however small, of runs that showed such a time.
    latency: Samples,
    /// Items per second of packages whose ends were waited for, without what a package costs besides its items.
    kernel: Samples,
    /// Whether the rates are those of trials from which nothing was claimed. They may be of launches and little else, so they count for runs
    /// of this size alone, and until the device has computed in one.
    is_only_tried: bool,
    /// Whether a trial or a run in this process has launched the kernel there. Not of the text: drivers load kernels anew in each process.
    is_warm: bool,
    /// Whether the last run there failed, of an undivided kernel. Not of the text: a later process may find the cause gone.
    has_failed: bool,
}

/// What a trial says of its device, see [`Weight::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Next to nothing: it is the first one, and nobody took its results. The driver may have compiled the kernel, or loaded it.
    First,
    /// What the device does in runs of that size: it is not the first one.
    Again,
    /// As much as a package: its results were taken. Not if it ran on the cores of those who computed meanwhile.
    Claimed,
}

impl Weight {
    /// Returns what a trial says whose results were taken, or not, of a device on the cores of those who compute, or of another one.
    pub(crate) fn of(is_taken: bool, is_rival: bool, is_first: bool) -> Self {
        match (is_taken && !is_rival, is_first) {
            (true, _) => Self::Claimed,
            (false, true) => Self::First,
            (false, false) => Self::Again,
        }
    }
}

/// What of a run is not as in later ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Odd {
    /// The packages that were claimed from a trial. If its device has no other one, the trial teaches more.
    pub(crate) claimed: Vec<Package>,
    /// Whether those who began and the one that was tried out compute on the same cores: if both did, then one after the other.
    pub(crate) are_rivals: bool,
    /// Who was to compute from the start, if nobody was to be called up later. Some of them may have got nothing.
    pub(crate) chosen: Vec<DeviceId>,
    /// Who gave a package up that a trial had computed: with its items, and how long it had computed it.
    pub(crate) overtaken: Vec<(DeviceId, u64, Duration)>,
}

/// The last few measurements of one thing, each positive and finite.
#[derive(Clone, Debug, Default, PartialEq)]
struct Samples(VecDeque<f64>);

impl Samples {
    fn add(&mut self, sample: f64) {
        if sample.is_finite() && sample > 0.0 {
            self.0.push_back(sample);
            if self.0.len() > KEPT {
                self.0.pop_front();
            }
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted
    }

    fn least(&self) -> Option<f64> {
        self.0.iter().copied().reduce(f64::min)
    }

    fn last(&self) -> Option<f64> {
        self.0.back().copied()
    }

    fn greatest(&self) -> Option<f64> {
        self.0.iter().copied().reduce(f64::max)
    }

    /// The lower median; `None` without a sample.
    fn median(&self) -> Option<f64> {
        let sorted = self.sorted();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }

    /// Returns whether the last two times are far below all others.
    fn fell(&self) -> bool {
        let earlier = self.len().saturating_sub(2);
        let times = || self.0.iter().copied();
        let least_before = times().take(earlier).fold(f64::INFINITY, f64::min);
        earlier >= BELIEVED && times().skip(earlier).fold(0.0, f64::max) * ANOTHER < least_before
    }

    fn forget_all_but(&mut self, last: usize) {
        self.0.drain(..self.len().saturating_sub(last));
    }

    /// A time to expect. The first runs pay for compilation and first touch, so the least of few samples counts.
    fn expected_seconds(&self) -> Option<f64> {
        match self.len() {
            0..=3 => self.least(),
            _ => self.median(),
        }
    }
}

/// What a device is called here. With more or fewer compute units it is another device, and so is one that uses the buffers where they
/// are: it computes at another speed, and disturbs others differently.
pub(crate) fn name_of(platform: &Platform, device: DeviceId, is_in_place: bool) -> String {
    let desc = &platform.devices()[usize::from(device.0)];
    let place = if is_in_place { " in place" } else { "" };
    format!("{}*{}{place}", desc.name, desc.units)
}

/// The packages of a device in the order of their ends, each with the seconds in which the device computed it and no other one.
fn in_turn<'a>(packages: impl Iterator<Item = &'a PackageRecord>) -> Vec<(&'a PackageRecord, f64)> {
    let mut records: Vec<&PackageRecord> = packages.collect();
    records.sort_by_key(|record| record.computed);
    let mut before = Duration::ZERO;
    let own = |record: &'a PackageRecord| {
        let own = record.computed.saturating_sub(record.begun.max(before)).as_secs_f64();
        before = record.computed;
        (record, own)
    };
    records.into_iter().map(own).collect()
}

/// The items per second of the best package, without the seconds that a package costs besides its items. Those that end soon after
/// another were computed beside it, so they count as one with it.
fn peak<'a>(packages: impl Iterator<Item = &'a PackageRecord>, cost: f64) -> f64 {
    let net = |items: f64, seconds: f64| items / (seconds - cost).max(seconds * LEAST_NET);
    let (mut items, mut seconds, mut best) = (0.0, 0.0, 0.0_f64);
    for (record, own) in in_turn(packages) {
        if seconds > cost && own > cost / 2.0 {
            best = best.max(net(items, seconds));
            (items, seconds) = (0.0, 0.0);
        }
        items += record.package.items() as f64;
        seconds += own;
    }
    // What is left may be the end of the run and little else.
    if seconds > cost || best == 0.0 { best.max(net(items, seconds)) } else { best }
}

/// The items per second of a device's kernels, without the seconds that a package costs besides its items; 0 where no end was waited for.
/// A package that was noticed late may have been computed while the inputs of another one travelled.
fn kernel_rate<'a>(packages: impl Iterator<Item = &'a PackageRecord>, cost: f64) -> f64 {
    let (mut items, mut seconds) = (0.0, 0.0);
    for (record, own) in in_turn(packages) {
        if !record.noticed_late {
            items += record.package.items() as f64;
            seconds += (own - cost).max(own * LEAST_NET);
        }
    }
    if seconds > 0.0 { items / seconds } else { 0.0 }
}

/// What a device takes for any package, by those that it computed in a run, one after the other; 0 where these do not say so.
fn latency<'a>(packages: impl Iterator<Item = &'a PackageRecord>) -> f64 {
    let computed = in_turn(packages);
    policy::latency(computed.iter().map(|(record, seconds)| (record.package.items() as f64, *seconds)))
}

/// The size class of a number of items: the exponent of the power of two at or below it.
fn class_of(items: u64) -> u32 {
    items.max(1).ilog2()
}

impl Knowledge {
    /// Makes knowledge of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let old = std::mem::take(&mut *self.0.lock());
        drop(old);
    }

    /// Returns the number of kernels and size classes of which something is known.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.0.lock().0.len()
    }

    /// Returns whether a trial of a device is the first one at that size. A device on the cores of those who compute disturbs them, so it is not
    /// tried out for ever: it has one first trial. Any other has one in each process.
    pub(crate) fn is_first_trial(&self, (kernel, items): (&str, u64), device: &str, is_rival: bool) -> bool {
        let topic = Topic { kernel: kernel.to_owned(), class: class_of(items) };
        let book = self.0.lock();
        let notes = book.0.get(&topic).and_then(|page| page.devices.get(device));
        !notes.is_some_and(|notes| notes.is_warm || is_rival && notes.setup.len() > 0)
    }

    /// Notes that an undivided kernel failed on a device, or did not.
    pub(crate) fn note_failure(&self, (kernel, items): (&str, u64), device: &str, has_failed: bool) {
        self.0.lock().page(kernel, items).devices.entry(device.to_owned()).or_default().has_failed =
            has_failed;
    }

    /// Returns whether an undivided kernel failed on a device the last time.
    pub(crate) fn has_failed(&self, (kernel, items): (&str, u64), device: &str) -> bool {
        let topic = Topic { kernel: kernel.to_owned(), class: class_of(items) };
        let book = self.0.lock();
        book.0.get(&topic).and_then(|page| page.devices.get(device)).is_some_and(|notes| notes.has_failed)
    }

    /// Learns from a trial of a device: of so many items, and how long it took until they were launched, and from then on. What its set
    /// takes it does not show.
    pub(crate) fn learn_trial(
        &self,
        (kernel, items): (&str, u64),
        device: &str,
        done: u64,
        [setup, took]: [Duration; 2],
        weight: Weight,
    ) {
        let seconds = took.as_secs_f64();
        let mut book = self.0.lock();
        let notes = book.page(kernel, items).devices.entry(device.to_owned()).or_default();
        notes.setup.add(setup.max(Duration::from_nanos(1)).as_secs_f64());
        notes.is_warm = true;
        match weight {
            Weight::First => return,
            Weight::Again => notes.is_only_tried |= notes.rate.len() == 0,
            Weight::Claimed => notes.forget_trials(),
        }
        notes.rate.add(done as f64 / seconds);
        notes.peak.add(done as f64 / (seconds - DEVICE_PACKAGE_SECONDS).max(seconds * LEAST_NET));
    }

    /// Learns from a run. A run with failures teaches nothing. `name` says what a device is called here.
    pub(crate) fn learn(
        &self,
        platform: &Platform,
        (kernel, items): (&str, u64),
        name: impl Fn(DeviceId) -> String,
        report: &Report,
        odd: Odd,
    ) {
        let seconds = report.duration.as_secs_f64();
        if items == 0 || seconds <= 0.0 || !report.failures.is_empty() {
            return;
        }
        // Who was there and got nothing is not to blame for the time.
        let worked = report.devices.iter().filter(|device| device.items > 0);
        let members: Vec<DeviceId> = worked.map(|device| device.device).collect();
        let mut set: Vec<String> = members.iter().map(|&device| name(device)).collect();
        set.sort_unstable();
        let mut chosen: Vec<String> = odd.chosen.iter().map(|&device| name(device)).collect();
        chosen.sort_unstable();
        let mut book = self.0.lock();
        let page = book.page(kernel, items);
        let took_turns = odd.are_rivals && members.len() > 1;
        if took_turns {
            // No later run is like this one.
            page.runs = page.runs.saturating_add(1);
        } else {
            if chosen.len() > set.len() {
                // Whoever is chosen again would get nothing again.
                page.sets.entry(chosen).or_default().add(seconds / items as f64);
            }
            page.add_run(set, seconds / items as f64);
        }
        for (device, items, took) in odd.overtaken {
            // It would have taken longer: but that it is slower than another one its runs are to say.
            if !members.contains(&device) && !took.is_zero() {
                let notes = page.devices.entry(name(device)).or_default();
                notes.rate.add(items as f64 / took.as_secs_f64());
                notes.peak.add(items as f64 / took.as_secs_f64());
            }
        }
        for device in members {
            let all = || report.packages.iter().filter(move |record| record.device == device);
            let is_claimed = |record: &&PackageRecord| odd.claimed.contains(&record.package);
            let is_left = odd.are_rivals || all().all(|record| is_claimed(&record));
            let turns = || all().filter(move |record| !(is_left && is_claimed(record)));
            let begun = turns().map(|record| record.begun).min();
            let computed = turns().map(|record| record.computed).max();
            let end = turns().map(|record| record.end).max();
            let (Some(begun), Some(computed), Some(end)) = (begun, computed, end) else { continue };
            let done: u64 = turns().map(|record| record.package.items()).sum();
            let notes = page.devices.entry(name(device)).or_default();
            notes.forget_trials();
            notes.is_warm = true;
            let busy: Duration = turns().map(|record| record.computed.saturating_sub(record.begun)).sum();
            let took = if took_turns { busy } else { computed.saturating_sub(begun) };
            notes.rate.add(done as f64 / took.as_secs_f64());
            let is_host = platform.host().is_some_and(|host| platform.home(host) == platform.home(device));
            let cost = if is_host { HOST_PACKAGE_SECONDS } else { DEVICE_PACKAGE_SECONDS };
            notes.peak.add(peak(turns(), cost));
            notes.setup.add((begun + end.saturating_sub(computed)).as_secs_f64());
            if !is_host {
                notes.kernel.add(kernel_rate(turns(), PACKAGE_SECONDS));
            }
            // Of cores it would be a chance: they compute one item after the other.
            if platform.devices()[usize::from(device.0)].kind == DeviceKind::Gpu {
                notes.latency.add(latency(turns()));
            }
        }
    }
}

impl Notes {
    /// Forgets rates that are those of trials alone.
    fn forget_trials(&mut self) {
        if std::mem::take(&mut self.is_only_tried) {
            (self.rate, self.peak) = (Samples::default(), Samples::default());
        }
    }
}

impl Page {
    /// Adds the time of a run of the set, in seconds per item. What its devices did in it is added afterwards.
    fn add_run(&mut self, set: Vec<String>, seconds: f64) {
        let times = self.sets.entry(set.clone()).or_default();
        times.add(seconds);
        if times.fell() {
            self.keep_the_last_of(&set);
        }
        self.runs = self.runs.saturating_add(1);
    }

    /// Forgets all but the last two runs, which were of this set. What is known of others is of a kernel that is gone: nobody would
    /// try them again, because they cannot be as fast as this set now is.
    fn keep_the_last_of(&mut self, set: &[String]) {
        const LAST: usize = 2;
        self.sets.retain(|other, _| other == set);
        self.sets.values_mut().for_each(|times| times.forget_all_but(LAST));
        self.devices.retain(|device, _| set.contains(device));
        for notes in self.devices.values_mut() {
            // The run's own samples are still to come.
            let Notes { rate, peak, setup, latency, kernel, is_only_tried: _, is_warm: _, has_failed: _ } =
                notes;
            for samples in [rate, peak, setup, latency, kernel] {
                samples.forget_all_but(LAST - 1);
            }
        }
        self.runs = LAST as u64 - 1;
    }
}

impl Book {
    /// The page of a kernel at a size. Where there are too many, that of the first in order goes.
    fn page(&mut self, kernel: &str, items: u64) -> &mut Page {
        let topic = Topic { kernel: kernel.to_owned(), class: class_of(items) };
        if self.0.len() >= MOST_PAGES && !self.0.contains_key(&topic) {
            self.0.pop_first();
        }
        self.0.entry(topic).or_default()
    }

    /// What is known of a device's speed at a size: from the page of that size, or from that of the nearest size.
    fn notes(&self, kernel: &str, items: u64, device: &str) -> Option<&Notes> {
        let class = class_of(items);
        let pages = self.0.range(Topic { kernel: kernel.to_owned(), class: 0 }..);
        let of_kernel = pages.take_while(|(topic, _)| topic.kernel == kernel);
        let with_device =
            of_kernel.filter_map(|(topic, page)| Some((topic.class, page.devices.get(device)?)));
        let counts = |other: u32, notes: &Notes| other == class || !notes.is_only_tried;
        let known = with_device.filter(|(other, notes)| notes.rate.len() > 0 && counts(*other, notes));
        known.min_by_key(|(other, _)| other.abs_diff(class)).map(|(_, notes)| notes)
    }
}
