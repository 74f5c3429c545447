//! Strips: the items of a kernel that each device computes in every step.

use crate::kernel::{FootprintError, Kernel};
use dml_core::BufferId;
use std::ops::Range;

/// The parts of a device's strip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Items that write what another device reads, or read what it writes.
    pub(super) borders: Vec<Range<u64>>,
    /// The other items.
    pub(super) interior: Range<u64>,
}

/// What a device reads and writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Touched {
    reads: Vec<(BufferId, Range<u64>)>,
    writes: Vec<(BufferId, Range<u64>)>,
}

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

impl Touched {
    /// Adds what a kernel touches for some items.
    pub(super) fn add(&mut self, kernel: &Kernel, items: &Range<u64>) -> Result<(), FootprintError> {
        for (argument, ranges) in kernel.ranges(items.clone())? {
            let (buffer, access) = (argument.buffer().id(), argument.access());
            for bytes in ranges {
                if access.reads() {
                    self.reads.push((buffer, bytes.clone()));
                }
                if access.writes() {
                    self.writes.push((buffer, bytes));
                }
            }
        }
        Ok(())
    }

    /// Returns whether one writes what the other one reads.
    fn meets(&self, other: &Self) -> bool {
        let meet = |writes: &[(BufferId, Range<u64>)], reads: &[(BufferId, Range<u64>)]| {
            writes.iter().any(|(buffer, written)| {
                let is_in = |read: &Range<u64>| read.start < written.end && written.start < read.end;
                reads.iter().any(|(other, read)| other == buffer && is_in(read))
            })
        };
        meet(&self.writes, &other.reads) || meet(&other.writes, &self.reads)
    }
}

impl Parts {
    /// Divides a strip by what others touch.
    ///
    /// Footprints of items in ascending order are taken to touch ascending bytes, so that the interior is one
    /// range. If they do not, the borders are larger than they need be.
    pub(super) fn new(
        kernel: &Kernel,
        strip: &Range<u64>,
        others: &[&Touched],
    ) -> Result<Self, FootprintError> {
        let grain = kernel.grain();
        let is_met = |items: Range<u64>| -> Result<bool, FootprintError> {
            let mut touched = Touched::default();
            touched.add(kernel, &items)?;
            Ok(others.iter().any(|other| other.meets(&touched)))
        };
        let (first, grains) = (strip.start / grain, (strip.end - strip.start).div_ceil(grain));
        let end_of = |grains: u64| ((first + grains) * grain).min(strip.end);
        let middle = grains / 2;
        let nothing = strip.end..strip.end;
        if grains == 0 || is_met(end_of(middle)..end_of(middle + 1))? {
            return Ok(Self { borders: Vec::from([strip.clone()]), interior: nothing });
        }
        // The grains before `low` belong to the first border, and those from `high` on to the last one.
        let (mut low, mut most) = (0, middle);
        while low < most {
            let half = low + (most - low) / 2;
            if is_met(end_of(half)..end_of(middle))? { low = half + 1 } else { most = half }
        }
        let (mut least, mut high) = (middle + 1, grains);
        while least < high {
            let half = least + (high - least).div_ceil(2);
            if is_met(end_of(middle)..end_of(half))? { high = half - 1 } else { least = half }
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
