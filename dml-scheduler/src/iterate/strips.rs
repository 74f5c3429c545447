//! Strips: the items of a kernel that each device computes in every step.

use crate::kernel::{Argument, FootprintError, Kernel};
use dml_core::BufferId;
use std::ops::Range;

/// The parts of a device's strip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Items whose results another device reads.
    pub(super) borders: Vec<Range<u64>>,
    /// Items whose results no other device reads.
    pub(super) interior: Range<u64>,
}

/// Bytes of a buffer.
pub(super) type Bytes = (BufferId, Range<u64>);

/// Cuts items into one strip per device, in the ratios of `shares`, at multiples of `grain`. Strips may be
/// empty, and those of devices with a share of 0 are.
pub(super) fn cut(items: u64, grain: u64, shares: &[f64]) -> Vec<Range<u64>> {
    let total: f64 = shares.iter().sum();
    let (mut start, mut sum) = (0, 0.0);
    let strip = |share: &f64| {
        sum += share;
        let grains = (items as f64 * (sum / total) / grain as f64).round() as u64;
        // The same sum in the same order: the last one with a share has the rest.
        let end = if sum >= total { items } else { grains.saturating_mul(grain) };
        let strip = start..end.clamp(start, items);
        start = strip.end;
        strip
    };
    shares.iter().map(strip).collect()
}

/// Returns the bytes that a kernel reads for some items.
pub(super) fn read(kernel: &Kernel, items: &Range<u64>) -> Result<Vec<Bytes>, FootprintError> {
    touched(kernel, items, |argument| argument.access().reads())
}

fn touched(
    kernel: &Kernel,
    items: &Range<u64>,
    counts: impl Fn(&Argument) -> bool,
) -> Result<Vec<Bytes>, FootprintError> {
    let touched = kernel.ranges(items.clone())?.into_iter().filter(|(argument, _)| counts(argument));
    let bytes = touched.flat_map(|(argument, ranges)| {
        ranges.into_iter().map(|range| (argument.buffer().id(), range)).collect::<Vec<_>>()
    });
    Ok(bytes.collect())
}

impl Parts {
    /// Divides a strip by what others read of the bytes that the kernel writes.
    ///
    /// Footprints of items in ascending order are taken to write ascending bytes, so that the interior is one
    /// range. If they do not, the borders are larger than they need be.
    pub(super) fn new(
        kernel: &Kernel,
        strip: &Range<u64>,
        others: &[&Bytes],
    ) -> Result<Self, FootprintError> {
        let grain = kernel.grain();
        let is_read = |items: Range<u64>| -> Result<bool, FootprintError> {
            let written = touched(kernel, &items, |argument| argument.access().writes())?;
            Ok(written.iter().any(|(buffer, bytes)| {
                let meets = |other: &Range<u64>| other.start < bytes.end && bytes.start < other.end;
                others.iter().any(|(other, range)| other == buffer && meets(range))
            }))
        };
        let (first, grains) = (strip.start / grain, (strip.end - strip.start).div_ceil(grain));
        let end_of = |grains: u64| ((first + grains) * grain).min(strip.end);
        let middle = grains / 2;
        let nothing = strip.end..strip.end;
        if grains == 0 || is_read(end_of(middle)..end_of(middle + 1))? {
            return Ok(Self { borders: Vec::from([strip.clone()]), interior: nothing });
        }
        // The grains before `low` belong to the first border, and those from `high` on to the last one.
        let (mut low, mut most) = (0, middle);
        while low < most {
            let half = low + (most - low) / 2;
            if is_read(end_of(half)..end_of(middle))? { low = half + 1 } else { most = half }
        }
        let (mut least, mut high) = (middle + 1, grains);
        while least < high {
            let half = least + (high - least).div_ceil(2);
            if is_read(end_of(middle)..end_of(half))? { high = half - 1 } else { least = half }
        }
        let interior = end_of(low)..end_of(high);
        let borders = [strip.start..interior.start, interior.end..strip.end];
        Ok(Self { borders: borders.into_iter().filter(|border| !border.is_empty()).collect(), interior })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_cover_all_items_in_the_ratios_of_the_shares() {
        for (items, grain, shares) in [
            (100, 1, vec![1.0, 1.0]),
            (1000, 16, vec![0.3, 2.0, 1.0]),
            (10, 16, vec![1.0; 3]),
            (7, 1, vec![1.0]),
            (100, 1, vec![0.1, 0.2, 0.0]),
            (100, 1, vec![0.0, 0.7, 0.0, 0.1, 0.2, 0.0]),
        ] {
            let strips = cut(items, grain, &shares);
            assert_eq!((strips[0].start, strips[strips.len() - 1].end), (0, items));
            assert!(strips.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(strips.iter().all(|strip| strip.start % grain == 0 || strip.start == items));
            let total: f64 = shares.iter().sum();
            for (strip, share) in strips.iter().zip(&shares) {
                let wanted = items as f64 * share / total;
                assert!((wanted - (strip.end - strip.start) as f64).abs() <= grain as f64, "{strips:?}");
                assert!(*share > 0.0 || strip.is_empty(), "{strips:?}");
            }
        }
    }
}
