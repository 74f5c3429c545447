//! HGuided: large packages first, smaller ones towards the end, in proportion to power.

use super::powers::{Powers, portion};
use super::{Policy, PolicyError};
use crate::base::package::UnitId;

/// Packages handed out on demand, which shrink with the remaining work, in proportion to each unit's power.
///
/// This policy needs far fewer packages than [`Dynamic`](super::Dynamic) for the same balance. The large
/// packages at the start cost few launches; the small ones at the end let all units finish together.
///
/// # Shape and units
/// With `G` items left, unit i gets `floor(G * P_i / (k * n * sum(P)))` items, but at least its minimum. `n`
/// and `sum(P)` count the units that are not retired. A unit's packages never grow unless work comes back or
/// a unit retires.
///
/// # Source
/// Paper 001 (section 3.3); 000 (section 4.3).
#[derive(Debug, Clone)]
pub struct HGuided {
    powers: Powers,
    k: f64,
    minimums: Vec<u64>,
    active: Vec<UnitId>,
    /// `P_i / (k * n * sum(P))` for each of `active`.
    ratios: Vec<f64>,
}

impl HGuided {
    /// The best divisor in the papers' experiments; the papers also use 3.
    pub const DEFAULT_K: f64 = 2.0;

    /// Creates the policy for these relative powers, one per unit, with the same minimum package, in items,
    /// for every unit.
    ///
    /// A larger `k` starts with smaller packages and makes more of them.
    ///
    /// # Errors
    /// [`NoUnits`](PolicyError::NoUnits) without a power, [`BadPower`](PolicyError::BadPower) when a power is
    /// not positive and finite, [`BadDivisor`](PolicyError::BadDivisor) when `k` is not a finite number of at
    /// least 1.
    pub fn new(powers: &[f64], k: f64, minimum: u64) -> Result<Self, PolicyError> {
        Self::with_minimums(powers, k, &vec![minimum; powers.len()])
    }

    /// Creates the policy like [`new`](Self::new), with a minimum package, in items, for each unit. It is
    /// usually larger for faster units.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new), and [`MinimumCount`](PolicyError::MinimumCount) when the numbers of
    /// minimums and powers differ.
    pub fn with_minimums(powers: &[f64], k: f64, minimums: &[u64]) -> Result<Self, PolicyError> {
        let powers = Powers::new(powers)?;
        let k = checked_divisor(k)?;
        if minimums.len() != powers.units() {
            return Err(PolicyError::MinimumCount { minimums: minimums.len(), units: powers.units() });
        }
        let active = (0..powers.units()).map(UnitId).collect();
        let mut policy = Self { powers, k, minimums: minimums.to_vec(), active, ratios: Vec::new() };
        policy.update_ratios();
        Ok(policy)
    }

    fn update_ratios(&mut self) {
        let divisor = self.k * self.active.len() as f64;
        self.ratios = self.powers.shares(&self.active).iter().map(|share| share / divisor).collect();
    }
}

impl Policy for HGuided {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        let place = self.active.binary_search(&unit).ok()?;
        Some(portion(remaining, self.ratios[place]).max(self.minimums[unit.0]).max(1))
    }

    fn retire(&mut self, unit: UnitId) {
        self.active.retain(|active| *active != unit);
        self.update_ratios();
    }
}

/// Checks that a divisor is a finite number of at least 1.
pub(super) fn checked_divisor(k: f64) -> Result<f64, PolicyError> {
    if k.is_finite() && k >= 1.0 { Ok(k) } else { Err(PolicyError::BadDivisor { k }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_formula() {
        let mut policy = HGuided::new(&[1.0, 0.5], 2.0, 1).unwrap(); // k n sum(P) = 2 * 2 * 1.5 = 6
        assert_eq!(policy.next(UnitId(0), 1000), Some(166)); // 1000 / 6 = 166.7
        assert_eq!(policy.next(UnitId(1), 834), Some(69)); // 834 / 12 = 69.5
        assert_eq!(policy.next(UnitId(0), 765), Some(127)); // 765 / 6 = 127.5
        assert_eq!(policy.next(UnitId(0), 600), Some(100)); // 600 / 6 is exact

        let mut policy = HGuided::new(&[0.35, 1.0, 0.2], 3.0, 1).unwrap(); // 3 * 3 * 1.55 = 13.95
        assert_eq!(policy.next(UnitId(0), 70_300_000), Some(1_763_799)); // 24605000 / 13.95 = 1763799.28
        assert_eq!(policy.next(UnitId(1), 70_300_000), Some(5_039_426)); // 5039426.52
        assert_eq!(policy.next(UnitId(2), 70_300_000), Some(1_007_885)); // 1007885.30
    }

    #[test]
    fn sizes_are_not_below_the_minimum() {
        let mut policy = HGuided::with_minimums(&[1.0, 0.5], 2.0, &[100, 50]).unwrap();
        assert_eq!(policy.next(UnitId(0), 606), Some(101));
        assert_eq!(policy.next(UnitId(0), 599), Some(100));
        assert_eq!(policy.next(UnitId(1), 599), Some(50));
        assert_eq!(policy.next(UnitId(0), 3), Some(100)); // cut off by the splitter
        assert_eq!(HGuided::new(&[1.0], 2.0, 0).unwrap().next(UnitId(0), 1), Some(1));
    }

    #[test]
    fn a_retired_unit_counts_no_longer() {
        let mut policy = HGuided::new(&[1.0, 1e-12, 1e-12], 2.0, 1).unwrap();
        assert_eq!(policy.next(UnitId(1), 1000), Some(1));
        policy.retire(UnitId(0));
        assert_eq!(policy.next(UnitId(1), 1000), Some(125)); // n = 2, P_i / sum(P) = 1/2: 1000 / 8
        assert_eq!(policy.next(UnitId(0), 1000), None);
        policy.retire(UnitId(1));
        policy.retire(UnitId(2));
        assert_eq!(policy.next(UnitId(2), 1000), None);
    }

    #[test]
    fn errors_name_the_value() {
        for k in [0.0, 0.99, -2.0, f64::INFINITY] {
            assert_eq!(HGuided::new(&[1.0], k, 1).unwrap_err(), PolicyError::BadDivisor { k });
        }
        assert!(HGuided::new(&[1.0], f64::NAN, 1).is_err());
        assert_eq!(
            HGuided::with_minimums(&[1.0, 0.5], 2.0, &[1]).unwrap_err(),
            PolicyError::MinimumCount { minimums: 1, units: 2 }
        );
    }
}
