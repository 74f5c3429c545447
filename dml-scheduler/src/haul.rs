//! What moving a device's data takes, and what follows from that for a device of which nothing else is known.

use crate::director::Setup;
use crate::kernel::{Argument, Footprint, Kernel};
use crate::policy::Freight;
use dml_core::state::Routes;
use dml_core::{Allocation, ArenaId, ArenaSet, Concurrency, CopyQuery, DeviceId, Link, Platform};

/// What a package costs a device besides its computing and its transfers, in seconds: a launch, a wait, and the device's
/// idle units at both ends.
pub(crate) const PACKAGE_SECONDS: f64 = 25e-6;
/// What it costs, once, that a device alone has more than one: another thread brings its results, and it may take so long to run.
pub(crate) const COLLECTOR_SECONDS: f64 = 100e-6;
/// What it takes at least to begin on the host, and on another device: a thread, a launch and a wait.
const HOST_SETUP_SECONDS: f64 = 10e-6;
pub(crate) const DEVICE_SETUP_SECONDS: f64 = 150e-6;
/// What a short run takes at least that a device other than the host computes alone, besides its transfers: a launch and a wait, by the thread
/// that the run has anyway, while nobody else computes.
const ALONE_SECONDS: f64 = 40e-6;

/// Results of a trial travel when it has ended, and nothing computes meanwhile. Where those of all items take longer than the first, the trial is
/// of fewer, whose results take the second: the device computes the others while they travel. But it begins with them later, and in
/// packages, so that this saves little where they do not take long.
const TRIED_OUTWARD_SECONDS: [f64; 2] = [2e-3, 500e-6];
/// Where the results of a trial take so long to travel, it has one more part, and so on, up to so many.
const PART_OUTWARD_SECONDS: f64 = 100e-6;
const MOST_PARTS: u64 = 6;
/// How long the inputs of a trial travel at most: they disturb those who compute.
const TRIED_INWARD_SECONDS: f64 = 500e-6;

/// A trial begins when the run has taken this part of what moving all its data takes. Who computes meanwhile may be done by then, if that is all that it has
/// to do with the data as well. Trials without much data begin at once.
const TRIED_AFTER: f64 = 0.25;

/// The bytes per second of new memory that a core makes and clears, and which part of a run that may take for a comparison.
pub(crate) const OWN_BYTES_PER_SECOND: f64 = 4e9;
const OWN_PART: f64 = 0.1;

/// What moving a device's data takes, in seconds, if it computes all items.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Haul {
    /// For what every package reads.
    pub(crate) whole: f64,
    /// For the inputs and for the results of all items.
    pub(crate) inward: f64,
    pub(crate) outward: f64,
    pub(crate) is_host: bool,
    /// Whether every argument lies in storage that the device shares with the host, though its memory is another.
    pub(crate) is_in_place: bool,
    /// Whether it reads an argument in storage that the host cannot read meanwhile.
    pub(crate) is_exclusive: bool,
    /// For making memory for results of its own, on the processor's cores.
    pub(crate) own: f64,
}

impl Haul {
    /// As it is known of devices that were never tried.
    pub(crate) fn freight(self, items: u64) -> Freight {
        let launch = if self.is_host { HOST_SETUP_SECONDS } else { DEVICE_SETUP_SECONDS };
        Freight { setup: launch + self.whole, per_item: self.inward.max(self.outward) / items.max(1) as f64 }
    }

    /// The least that a run takes which the device computes alone. Its data travels there and back, and nothing hides that.
    pub(crate) fn alone(self, items: u64) -> Freight {
        let per_item = (self.inward + self.outward) / items.max(1) as f64;
        Freight { setup: ALONE_SECONDS + self.whole, per_item }
    }

    /// As [`freight`](Self::freight), of a device on the host's cores that is compared with the host. The memory for its trial is made on these cores, so
    /// that is to be a small part of the run. These cores move its data, there and back.
    pub(crate) fn compared(self, items: u64) -> Freight {
        let freight = self.freight(items);
        let per_item = (self.inward + self.outward) / items.max(1) as f64;
        Freight { setup: freight.setup + self.own / OWN_PART, per_item }
    }

    /// What a package costs at least, in seconds, of a device with this latency. The run will show more of it.
    pub(crate) fn launch(self, latency: f64) -> f64 {
        if self.is_host { latency } else { latency.max(PACKAGE_SECONDS) }
    }

    /// Whether a device can compute beside those who compute the same, in memory of its own.
    pub(crate) fn can_be_tried(self, kernel: &Kernel, device: DeviceId) -> bool {
        !self.is_exclusive && kernel.can_be_tried_on(device)
    }

    /// On how many of all items the device is tried out.
    pub(crate) fn tried(self, items: u64) -> u64 {
        let [undivided, outward] = TRIED_OUTWARD_SECONDS;
        let outward = if self.outward > undivided { outward / self.outward } else { 1.0 };
        let inward = (TRIED_INWARD_SECONDS / self.inward).min(1.0);
        ((items as f64 * outward.min(inward)) as u64).max(1)
    }

    /// In how many parts it is, if it is of so many of all items.
    pub(crate) fn parts(self, tried: u64, items: u64) -> u64 {
        let outward = self.outward * tried.min(items) as f64 / items.max(1) as f64;
        ((outward / PART_OUTWARD_SECONDS) as u64).clamp(1, MOST_PARTS) // The cast saturates.
    }

    /// How many seconds it takes at least.
    pub(crate) fn tried_takes(self, items: u64) -> f64 {
        let part = self.tried(items) as f64 / items.max(1) as f64;
        DEVICE_SETUP_SECONDS + self.whole + self.inward * part
    }

    /// After how many seconds it is.
    pub(crate) fn tried_after(self) -> f64 {
        (self.whole + self.inward.max(self.outward)) * TRIED_AFTER
    }
}

/// What moving a device's data takes, by the prices of the links between its memory and the one where data begins and ends. `bytes`
/// are those that all items touch of each argument.
pub(crate) fn haul(setup: &Setup, kernel: &Kernel, bytes: &[u64], device: DeviceId) -> Haul {
    let platform = &setup.platform;
    let (Some(home), Some(host)) =
        (platform.home(device), platform.host().and_then(|host| platform.home(host)))
    else {
        return Haul::default();
    };
    if home == host {
        return Haul { is_host: true, ..Haul::default() };
    }
    let shares = |argument: &Argument| argument.buffer().shares_storage(host, home);
    let mut read = kernel.arguments().iter().filter(|argument| argument.access().reads());
    let mut haul = Haul {
        is_in_place: kernel.arguments().iter().all(shares),
        is_exclusive: is_exclusive(platform, [host, home]) && read.any(shares),
        ..Haul::default()
    };
    for (argument, &bytes) in kernel.arguments().iter().zip(bytes).filter(|(argument, _)| !shares(argument)) {
        let (reads, writes) = (argument.access().reads(), argument.access().writes());
        if reads && matches!(argument.footprint(), Footprint::Whole) {
            haul.whole += seconds(platform, host, home, bytes);
        } else if reads {
            haul.inward += seconds(platform, host, home, bytes);
        }
        if writes && setup.collect_on.is_some() {
            haul.outward += seconds(platform, home, host, bytes);
        }
    }
    haul
}

/// Whether one of two memories has storage that only one of them can use at a time: handing it over may move all of it.
fn is_exclusive(platform: &Platform, memories: [ArenaId; 2]) -> bool {
    let is_exclusive = |link: &Link| {
        link.allocation == Allocation::Bound(Concurrency::Exclusive) && memories.contains(&link.to)
    };
    platform.routes().links().iter().any(is_exclusive)
}

/// Whether the results that a device computes are in the memory of another one, so that nothing has to be moved there.
pub(crate) fn are_results_there(
    platform: &Platform,
    kernel: &Kernel,
    device: DeviceId,
    goal: DeviceId,
) -> bool {
    let (Some(home), Some(goal)) = (platform.home(device), platform.home(goal)) else { return false };
    let mut written = kernel.arguments().iter().filter(|argument| argument.access().writes());
    !is_exclusive(platform, [home, goal])
        && written.all(|argument| argument.buffer().shares_storage(goal, home))
}

/// The bytes of an argument that all items touch. A footprint that cannot say it counts as the whole buffer; packages will say what
/// is wrong with it.
pub(crate) fn bytes(argument: &Argument, items: u64) -> u64 {
    if items == 0 {
        return 0;
    }
    let ranges = argument.ranges(0..items);
    ranges.map_or(argument.buffer().len(), |ranges| ranges.iter().map(|bytes| bytes.end - bytes.start).sum())
}

/// The price of moving bytes between two memories that are in use, in seconds; 0 where there is no way, or no price.
fn seconds(platform: &Platform, from: ArenaId, to: ArenaId, bytes: u64) -> f64 {
    let routes: &dyn Routes = platform.routes();
    let query = CopyQuery { bytes, remap_source: false, remap_target: false, allocates: false };
    let path = routes.cheapest(ArenaSet::of(from), to, &mut |link| routes.cost(link, &query));
    path.and_then(|path| path.cost.as_ns()).map_or(0.0, |ns| ns as f64 * 1e-9)
}
