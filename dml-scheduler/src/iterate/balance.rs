//! Corrections of the strips by the durations of a step.
//!
//! # Source
//! "Automatic OpenCL code generation for multi-device heterogeneous architectures": a device's ratio `r`
//! becomes `r * (1 + (mean(d) / d - 1) / Q)`, where `d` is its duration. `Q` begins at 1 and grows by 1 each
//! time that the ratio turns, so that it does not swing.

use std::time::Duration;

/// Standard deviation of the durations, over their mean, below which strips are balanced.
const BALANCED: f64 = 0.05;
/// Maximum number of corrections. Durations that vary more than [`BALANCED`] would be followed for ever.
const MOST: u32 = 8;

/// The ratios of the strips, which change with what is measured.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    shares: Vec<f64>,
    /// `Q` of each device, and whether its ratio last grew.
    damping: Vec<(f64, Option<bool>)>,
    corrections: u32,
    is_balanced: bool,
}

impl Balance {
    /// Begins with these ratios.
    pub(super) fn new(shares: Vec<f64>) -> Self {
        let is_balanced = shares.len() < 2;
        Self { damping: vec![(1.0, None); shares.len()], shares, corrections: 0, is_balanced }
    }

    /// Begins and ends with these ratios.
    pub(super) fn fixed(shares: Vec<f64>) -> Self {
        Self { is_balanced: true, ..Self::new(shares) }
    }

    pub(super) fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// Gives the devices other ratios; 0 for one that is left out.
    pub(super) fn set(&mut self, shares: Vec<f64>) {
        self.shares = shares;
    }

    /// Returns the number of devices that are not left out.
    pub(super) fn devices(&self) -> usize {
        self.shares.iter().filter(|share| **share > 0.0).count()
    }

    /// Returns the number of corrections so far.
    pub(super) fn corrections(&self) -> u32 {
        self.corrections
    }

    /// Returns whether further steps should be measured.
    pub(super) fn measures(&self) -> bool {
        !self.is_balanced && self.corrections < MOST
    }

    /// Returns whether the devices ended together, or there is but one.
    pub(super) fn is_balanced(&self) -> bool {
        self.is_balanced || self.devices() < 2
    }

    /// Notes that another correction would move no item.
    pub(super) fn rest(&mut self) {
        self.is_balanced = true;
    }

    /// Corrects the ratios by the durations of a step; `None` for a device without a strip, whose ratio
    /// stays. Returns whether they changed.
    pub(super) fn correct(&mut self, durations: &[Option<Duration>]) -> bool {
        let known: Vec<f64> = durations.iter().flatten().map(Duration::as_secs_f64).collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let variance = known.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / known.len() as f64;
        if known.len() < 2 || variance.sqrt() <= BALANCED * mean {
            self.is_balanced = true;
            return false;
        }
        self.corrections += 1;
        for ((share, (damping, grew)), duration) in
            self.shares.iter_mut().zip(&mut self.damping).zip(durations)
        {
            let Some(duration) = duration.map(|duration| duration.as_secs_f64().max(1e-9)) else { continue };
            let grows = duration < mean;
            if grew.replace(grows).is_some_and(|grew| grew != grows) {
                *damping += 1.0;
            }
            *share *= 1.0 + (mean / duration - 1.0) / *damping;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::strips::cut;
    use super::*;

    /// Corrects strips of devices with a rate in items per second, and a fixed time for each step. Returns
    /// the shortest duration over the longest after each correction.
    fn corrected(items: u64, rates: &[f64], fixed: f64, shares: &[f64]) -> Vec<f64> {
        let mut balance = Balance::new(shares.to_vec());
        let mut seen = Vec::new();
        while balance.measures() {
            let strips = cut(items, 1, balance.shares());
            let seconds: Vec<f64> = strips
                .iter()
                .zip(rates)
                .map(|(strip, rate)| fixed + (strip.end - strip.start) as f64 / rate)
                .collect();
            let (least, most) = (
                seconds.iter().copied().fold(f64::MAX, f64::min),
                seconds.iter().copied().fold(0.0, f64::max),
            );
            seen.push(least / most);
            balance.correct(
                &seconds.iter().map(|seconds| Some(Duration::from_secs_f64(*seconds))).collect::<Vec<_>>(),
            );
        }
        seen
    }

    #[test]
    fn any_start_is_balanced_within_four_corrections() {
        for (rates, shares) in [
            (&[1e4, 1e4][..], &[99.0, 1.0][..]),
            (&[1e6, 1e4], &[1.0, 1.0]),
            (&[1e4, 1e6], &[99.0, 1.0]),
            (&[1e5, 1e4, 3e4], &[1.0, 1.0, 1.0]),
        ] {
            let seen = corrected(1_000_000, rates, 0.0, shares);
            assert!(seen.len() <= 5 && seen[seen.len() - 1] > 0.9, "{rates:?} from {shares:?}: {seen:?}");
        }
    }

    #[test]
    fn a_fixed_time_of_each_step_is_no_reason_to_swing() {
        let seen = corrected(10_000, &[1e6, 1e5], 0.002, &[1.0, 1.0]);
        assert!(seen.len() <= MOST as usize && seen[seen.len() - 1] > 0.8, "{seen:?}");
    }

    #[test]
    fn equal_durations_change_nothing_and_one_device_needs_none() {
        let mut balance = Balance::new(vec![1.0; 2]);
        assert!(balance.measures());
        assert!(!balance.correct(&[Some(Duration::from_millis(10)), Some(Duration::from_millis(10))]));
        assert!(!balance.measures());
        assert!(!Balance::new(vec![1.0]).measures() && !Balance::fixed(vec![1.0, 3.0]).measures());
    }
}
