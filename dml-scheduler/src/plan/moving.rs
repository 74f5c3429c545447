//! The bytes that move if a device computes a run, their transfer times, and the locations of the items'
//! data.

use crate::base::package::UnitId;
use crate::kernel::{Argument, Footprint, Kernel};
use crate::plan::setup::Setup;
use dml_core::internal::state::Routes;
use dml_core::{Allocation, ArenaId, ArenaSet, Concurrency, CopyQuery, DeviceId, Link, Platform, RawBuffer};
use std::ops::Range;

/// Transfers if a device computes all items.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moving {
    /// Inputs that every package reads completely.
    pub(crate) whole: Moved,
    /// Inputs of which each item reads a part.
    pub(crate) inward: Moved,
    /// Results that move to the collecting device.
    pub(crate) outward: Moved,
    /// Whether the device computes in the memory of the host.
    pub(crate) is_host: bool,
    /// Whether every argument lies in storage that the device shares with the host, although its memory is
    /// another.
    pub(crate) is_in_place: bool,
}

/// Bytes that are not where they are needed, and their transfer time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moved {
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
}

impl Moved {
    fn add(&mut self, bytes: u64, seconds: f64) {
        self.bytes += bytes as f64;
        self.seconds += seconds;
    }
}

impl Moving {
    pub(crate) fn of(setup: &Setup, kernel: &Kernel, items: u64, device: DeviceId) -> Self {
        let platform = &setup.platform;
        let Some(home) = platform.home(device) else { return Self::default() };
        let host = platform.host().and_then(|host| platform.home(host));
        let collector = setup.collect_on.and_then(|device| platform.home(device));
        let is_host = host == Some(home);
        let mut moving = Self { is_host, is_in_place: !is_host, ..Self::default() };
        for argument in kernel.arguments() {
            let buffer = argument.buffer();
            let shares = |arena: ArenaId| arena == home || buffer.shares_storage(arena, home);
            moving.is_in_place &= host.is_some_and(shares);
            // The package of an invalid footprint reports the fault.
            let Ok(ranges) = argument.ranges(0..items) else { continue };
            if argument.access().reads() {
                let is_whole = matches!(argument.footprint(), Footprint::Whole);
                let moved = if is_whole { &mut moving.whole } else { &mut moving.inward };
                for bytes in &ranges {
                    buffer.valid_in(bytes.clone(), |part, valid| {
                        let is_there = valid.is_empty() || valid.iter().any(|arena| arena == home);
                        if !is_there && !valid.iter().any(shares) {
                            moved.add(part, seconds(platform, valid, home, part));
                        }
                    });
                }
            }
            if let Some(collector) = collector.filter(|_| argument.access().writes())
                && !shares(collector)
            {
                let bytes = ranges.iter().map(|bytes| bytes.end - bytes.start).sum();
                moving.outward.add(bytes, seconds(platform, ArenaSet::of(home), collector, bytes));
            }
        }
        moving
    }

    /// Returns the minimum transfer time per item, in seconds. Both directions move at once.
    pub(crate) fn per_item(&self, items: u64) -> f64 {
        self.inward.seconds.max(self.outward.seconds) / items.max(1) as f64
    }

    /// Returns the mean transfer time per byte, in seconds.
    pub(crate) fn per_byte(&self) -> f64 {
        let all = [self.whole, self.inward, self.outward];
        let bytes: f64 = all.iter().map(|moved| moved.bytes).sum();
        if bytes > 0.0 { all.iter().map(|moved| moved.seconds).sum::<f64>() / bytes } else { 0.0 }
    }
}

/// Returns the cost of moving bytes to an allocated memory, in seconds; 0 if there is no path, or its cost is
/// unknown.
fn seconds(platform: &Platform, from: ArenaSet, to: ArenaId, bytes: u64) -> f64 {
    let routes: &dyn Routes = platform.routes();
    let query = CopyQuery { bytes, remap_source: false, remap_target: false, allocates: false };
    let path = routes.cheapest(from, to, &mut |link| routes.cost(link, &query));
    path.and_then(|path| path.cost.as_ns()).map_or(0.0, |ns| ns as f64 * 1e-9)
}

/// Returns whether a device's results already lie in the memory of `goal`, so that collecting them moves
/// nothing.
pub(crate) fn are_results_there(
    platform: &Platform,
    kernel: &Kernel,
    device: DeviceId,
    goal: DeviceId,
) -> bool {
    let (Some(home), Some(goal)) = (platform.home(device), platform.home(goal)) else { return false };
    // Handing over storage that only one memory can use at a time may move all of it.
    let is_exclusive = |link: &Link| {
        link.allocation == Allocation::Bound(Concurrency::Exclusive) && [home, goal].contains(&link.to)
    };
    let mut written = kernel.arguments().iter().filter(|argument| argument.access().writes());
    !platform.routes().links().iter().any(is_exclusive)
        && written.all(|argument| argument.buffer().shares_storage(goal, home))
}

/// Returns the items whose data is in the memory of only one unit, by the argument of which packages read the
/// most bytes.
///
/// It is empty if one unit or every unit has all the data, or if packages read parts that are not contiguous.
pub(crate) fn homes(
    platform: &Platform,
    kernel: &Kernel,
    items: u64,
    devices: &[DeviceId],
) -> Vec<(Range<u64>, UnitId)> {
    let arenas: Vec<Option<ArenaId>> = devices.iter().map(|&device| platform.home(device)).collect();
    let divided = kernel.arguments().iter().filter_map(|argument| {
        let is_divided = argument.access().reads() && !matches!(argument.footprint(), Footprint::Whole);
        let [bytes] = &argument.ranges(0..items).ok().filter(|_| is_divided)?[..] else { return None };
        (bytes.end > bytes.start).then(|| (argument, bytes.clone()))
    });
    match divided.max_by_key(|(_, bytes)| bytes.end - bytes.start) {
        Some((argument, bytes)) => homes_of(argument, bytes, items, &arenas),
        None => Vec::new(),
    }
}

fn homes_of(
    argument: &Argument,
    bytes: Range<u64>,
    items: u64,
    arenas: &[Option<ArenaId>],
) -> Vec<(Range<u64>, UnitId)> {
    let buffer: &RawBuffer = argument.buffer();
    let (mut homes, mut at): (Vec<(Range<u64>, UnitId)>, _) = (Vec::new(), bytes.start);
    let item = |at: u64| {
        (u128::from(at - bytes.start) * u128::from(items) / u128::from(bytes.end - bytes.start)) as u64
    };
    buffer.valid_in(bytes.clone(), |part, valid| {
        let range = item(at)..item(at + part);
        at += part;
        let has =
            |arena: ArenaId| valid.iter().any(|valid| valid == arena || buffer.shares_storage(valid, arena));
        let mut those = (0..arenas.len()).filter(|&unit| arenas[unit].is_some_and(has)).map(UnitId);
        // Copied borders belong to the part before them.
        if let Some((last, unit)) = homes.last_mut().filter(|(last, _)| last.end == range.start)
            && those.clone().any(|other| other == *unit)
        {
            last.end = range.end;
        } else if let (Some(unit), None) = (those.next(), those.next()) {
            homes.push((range, unit));
        }
    });
    match &homes[..] {
        // If one unit has all the data, the transfer cost decides whether other units take part.
        [(range, _)] if *range == (0..items) => Vec::new(),
        _ => homes,
    }
}
