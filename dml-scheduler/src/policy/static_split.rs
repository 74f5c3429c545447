//! Static: one package per unit, cut before the run.

use super::powers::{Powers, portion};
use super::{Policy, PolicyError, checked_local_size};
use crate::base::package::UnitId;

/// One package per unit, in proportion to its power.
///
/// This policy makes the fewest packages that use every unit, but cannot adapt. It suits regular work on
/// units of known power.
///
/// # Shape and units
/// Of `W` items, unit i gets `W * P_i / sum(P)`, rounded down to a multiple of the local work size; the last
/// unit gets the rest. The shares lie in unit order, whichever unit asks first. A share can be empty. The
/// last share can exceed its unit's proportion by up to one local work size per other unit.
///
/// Work that comes back (a failed package, the share of a retired unit) is split among the remaining units by
/// the same rule. Each of them gets one more package for it.
///
/// # Source
/// Papers 000 (section 4.3) and 001 (section 3.3).
#[derive(Debug, Clone)]
pub struct Static {
    powers: Powers,
    local_size: u64,
}

impl Static {
    /// Creates the policy for these relative powers, one per unit, with shares in multiples of `local_size`
    /// items.
    ///
    /// # Errors
    /// [`NoUnits`](PolicyError::NoUnits) without a power, [`BadPower`](PolicyError::BadPower) when a power is
    /// not positive and finite, [`ZeroLocalSize`](PolicyError::ZeroLocalSize).
    pub fn new(powers: &[f64], local_size: u64) -> Result<Self, PolicyError> {
        Ok(Self { powers: Powers::new(powers)?, local_size: checked_local_size(local_size)? })
    }
}

impl Policy for Static {
    fn next(&mut self, _unit: UnitId, remaining: u64) -> Option<u64> {
        Some(remaining)
    }

    fn set_aside(&mut self, items: u64, units: &[UnitId]) -> Option<Vec<u64>> {
        let (_, others) = units.split_last()?;
        let mut left = items;
        let mut lengths = Vec::with_capacity(units.len());
        for share in &self.powers.shares(units)[..others.len()] {
            let length = portion(items, *share).min(left) / self.local_size * self.local_size;
            lengths.push(length);
            left -= length;
        }
        lengths.push(left);
        Some(lengths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(powers: &[f64], work: u64, local_size: u64) -> Vec<u64> {
        let units: Vec<UnitId> = (0..powers.len()).map(UnitId).collect();
        Static::new(powers, local_size).unwrap().set_aside(work, &units).unwrap()
    }

    #[test]
    fn shares_follow_the_formula_and_the_last_takes_the_remainder() {
        assert_eq!(shares(&[1.0, 0.5], 300, 1), [200, 100]);
        assert_eq!(shares(&[1.0, 0.5, 0.25], 1000, 1), [571, 285, 144]); // 571.4, 285.7, 142.9 + the rest
        assert_eq!(shares(&[1.0, 0.5, 0.25], 1000, 64), [512, 256, 232]);
        assert_eq!(shares(&[1.0, 0.1], 1100, 1), [1000, 100]);
        assert_eq!(shares(&[0.35, 1.0], 70_300_000, 256), [18_225_920, 52_074_080]);
        assert_eq!(shares(&[2.0, 1.0], 300, 1), [200, 100]); // only proportions count
    }

    #[test]
    fn shares_of_little_work_can_be_empty() {
        assert_eq!(shares(&[1.0, 1.0, 1.0], 0, 8), [0, 0, 0]);
        assert_eq!(shares(&[1.0, 1.0, 1.0], 1, 8), [0, 0, 1]);
        assert_eq!(shares(&[1.0, 1e-12], 100, 1), [99, 1]);
        assert_eq!(shares(&[1.0], 100, 64), [100]);
    }

    #[test]
    fn shares_of_huge_work_lose_nothing() {
        let work = u64::MAX / 2;
        assert_eq!(shares(&[1.0, 1.0], work, 1), [work / 2, work - work / 2]);
        assert_eq!(shares(&[1.0, 0.5, 0.5], u64::MAX, 1), [u64::MAX / 2, u64::MAX / 4, (1 << 62) + 1]);
        assert_eq!(shares(&[1e12, 1e-12], work, 1).iter().sum::<u64>(), work);
        assert_eq!(shares(&[1.0, 1.0], work, u64::MAX), [0, work]);
    }
}
