//! Which device computes a kernel that is not divided.
//!
//! ```text
//!   moving  = copies of the inputs to the device, and of the results to the collecting device
//!   best    = the known device with the least moving + items / rate
//!   chosen  = an unknown device with less moving than that, the nearest one first; or else the best
//! ```
//! A rate is known after one run on a device. Finding all rates costs at most one run on each.

use crate::director::Setup;
use crate::kernel::Kernel;
use crate::policy::Estimate;
use dml_core::state::Routes;
use dml_core::{ArenaId, ArenaSet, CopyQuery, DeviceId, Span};

/// Returns the index of the device that is to compute all items. `estimates` has what earlier runs say of each device, and `failed`
/// whether the last one failed there: such a device comes last.
pub(crate) fn choose(
    setup: &Setup,
    kernel: &Kernel,
    items: u64,
    devices: &[DeviceId],
    estimates: &[Option<Estimate>],
    failed: &[bool],
) -> usize {
    let of = |(&device, &failed): (&DeviceId, &bool)| match failed {
        true => f64::INFINITY,
        false => moving(setup, kernel, items, device),
    };
    let moving: Vec<f64> = devices.iter().zip(failed).map(of).collect();
    let total = |index: usize| Some(moving[index] + items as f64 / estimates[index]?.rate);
    let least = |indices: &mut dyn Iterator<Item = (usize, f64)>| {
        indices.min_by(|(_, one), (_, other)| one.total_cmp(other))
    };
    let best = least(&mut (0..devices.len()).filter_map(|index| Some((index, total(index)?))));
    let unknown = (0..devices.len()).filter(|&index| estimates[index].is_none());
    let nearest = least(&mut unknown.map(|index| (index, moving[index])));
    match (best, nearest) {
        (Some((_, takes)), Some((unknown, moving))) if moving < takes => unknown,
        (Some((best, _)), _) => best,
        (None, nearest) => nearest.map_or(0, |(unknown, _)| unknown),
    }
}

/// The seconds that moving a kernel's data takes if a device computes it, by the prices of the links.
fn moving(setup: &Setup, kernel: &Kernel, items: u64, device: DeviceId) -> f64 {
    let platform = &setup.platform;
    let home = platform.home(device).filter(|_| !platform.lost_devices().contains(device));
    let Some(home) = home else { return f64::INFINITY };
    let collector = setup.collect_on.and_then(|device| platform.home(device));
    let mut ns = 0.0;
    for argument in kernel.arguments() {
        // What is wrong with a footprint its package says.
        let ranges = argument.ranges(0..items).unwrap_or_default();
        let state = argument.buffer().snapshot();
        for span in ranges.iter().map(|bytes| Span::new(bytes.start, bytes.end)) {
            if argument.access().reads() {
                for (part, content) in state.segments().in_span(span) {
                    ns += price(platform.routes(), content.valid, home, part.len());
                }
            }
            if let Some(collector) = collector.filter(|_| argument.access().writes()) {
                ns += price(platform.routes(), ArenaSet::of(home), collector, span.len());
            }
        }
    }
    ns * 1e-9
}

/// The nanoseconds that bytes take to an arena from the nearest one where they are valid; none where they are there, or nowhere.
fn price(routes: &dyn Routes, valid: ArenaSet, to: ArenaId, bytes: u64) -> f64 {
    if valid.is_empty() || valid.contains(to) {
        return 0.0;
    }
    let query = CopyQuery { bytes, remap_source: false, remap_target: false, allocates: false };
    let path = routes.cheapest(valid, to, &mut |link| routes.cost(link, &query));
    path.and_then(|path| path.cost.as_ns()).map_or(0.0, |ns| ns as f64)
}
