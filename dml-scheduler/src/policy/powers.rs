//! Relative powers, and exact portions of 64-bit item counts.

use super::PolicyError;
use crate::base::package::UnitId;

/// Relative powers, one per unit: each positive and finite.
///
/// The fastest unit's power is 1 by convention. Only proportions are used, so the scale does not matter.
#[derive(Debug, Clone)]
pub(super) struct Powers(Vec<f64>);

impl Powers {
    pub(super) fn new(powers: &[f64]) -> Result<Self, PolicyError> {
        if powers.is_empty() {
            return Err(PolicyError::NoUnits);
        }
        match powers.iter().position(|power| !(power.is_finite() && *power > 0.0)) {
            Some(bad) => Err(PolicyError::BadPower { unit: UnitId(bad), power: powers[bad] }),
            None => Ok(Self(powers.to_vec())),
        }
    }

    /// Returns the number of units.
    pub(super) const fn units(&self) -> usize {
        self.0.len()
    }

    /// Returns `P_i / sum(P)` for each of `units`, where the sum covers only these units. A unit without a
    /// power has share 0.
    pub(super) fn shares(&self, units: &[UnitId]) -> Vec<f64> {
        let powers: Vec<f64> = units.iter().map(|unit| self.0.get(unit.0).copied().unwrap_or(0.0)).collect();
        shares(&powers)
    }
}

/// Returns `P_i / sum(P)` for finite, non-negative powers; 0 for all if no power is above 0.
pub(super) fn shares(powers: &[f64]) -> Vec<f64> {
    // Scaling to the fastest of these units keeps the sum from overflowing. It also keeps the shares from
    // vanishing beside a much faster unit that is retired.
    let fastest = powers.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let scaled: Vec<f64> = powers.iter().map(|power| power / fastest).collect();
    let sum: f64 = scaled.iter().sum();
    scaled.iter().map(|power| if sum > 0.0 { power / sum } else { 0.0 }).collect()
}

/// Returns `floor(items * ratio)` for a ratio in 0..=1, without converting `items` to a float.
///
/// The product is exact for any `items`. The ratio is not: it comes from decimals such as 0.1 that have no
/// exact binary form, and 1100 * (1 / 1.1) must be 1000, not 999. Such errors reach one part in 2^44, and
/// less than a thousandth of an item. A product that is closer than that below a whole number is rounded up
/// to it.
pub(super) fn portion(items: u64, ratio: f64) -> u64 {
    if ratio.is_nan() || ratio <= 0.0 {
        return 0;
    }
    if ratio >= 1.0 {
        return items;
    }
    // ratio = mantissa * 2^-shift, by the layout of a normal double; the product has at most 64 + 53 bits.
    const FRACTION_BITS: u32 = 52;
    let exponent = (ratio.to_bits() >> FRACTION_BITS) as u32;
    let mantissa = (ratio.to_bits() & ((1 << FRACTION_BITS) - 1)) | (1 << FRACTION_BITS);
    let shift = 1023 + FRACTION_BITS - exponent;
    if shift >= 117 {
        return 0; // below one item for any number of them; this includes the subnormal ratios
    }
    let product = u128::from(items) * u128::from(mantissa);
    let rounding = (product >> 44).min(1 << (shift - 10));
    // A ratio of at most 1 makes this at most `items`, which the type does not show.
    u64::try_from((product + rounding) >> shift).unwrap_or(items).min(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn portions_are_exact_for_counts_that_a_float_cannot_hold() {
        assert_eq!(portion(u64::MAX, 0.5), u64::MAX / 2);
        assert_eq!(portion(u64::MAX, 0.25), u64::MAX / 4);
        assert_eq!(portion((1 << 53) + 3, 0.5), (1 << 52) + 1);
        assert_eq!(portion(u64::MAX, 1.0), u64::MAX);
        assert_eq!(portion(0, 1.0), 0);
    }

    #[test]
    fn a_decimal_ratio_gives_the_decimal_answer() {
        assert_eq!(portion(1100, 1.0 / 1.1), 1000);
        assert_eq!(portion(10, 0.3), 3);
        assert_eq!(portion(1000, 0.001), 1);
        assert_eq!(portion(999, 0.001), 0);
        assert_eq!(portion(1_000_000_000_000, 0.999_999_999_999), 999_999_999_999);
    }

    #[test]
    fn senseless_ratios_give_nothing_and_never_more_than_everything() {
        for nothing in [0.0, -1.0, f64::NAN, f64::MIN_POSITIVE, f64::MIN_POSITIVE / 4.0, f64::NEG_INFINITY] {
            assert_eq!(portion(u64::MAX, nothing), 0, "{nothing}");
        }
        assert_eq!(portion(7, 2.0), 7);
        assert_eq!(portion(7, f64::INFINITY), 7);
    }

    #[test]
    fn shares_survive_any_scale() {
        let units = [UnitId(0), UnitId(1), UnitId(2)];
        for scale in [f64::MIN_POSITIVE * 8.0, 1e-12, 1.0, 1e12, f64::MAX / 4.0] {
            let shares = Powers::new(&[scale, scale / 2.0, scale / 2.0]).unwrap().shares(&units);
            assert_eq!(shares, [0.5, 0.25, 0.25], "{scale}");
        }
        let far_apart = Powers::new(&[f64::MAX, 3e-300, 1e-300]).unwrap();
        assert_eq!(far_apart.shares(&units), [1.0, 0.0, 0.0]);
        assert_eq!(far_apart.shares(&units[1..]), [0.75, 0.25]);
        assert_eq!(far_apart.shares(&[UnitId(9)]), [0.0]);
    }

    #[test]
    fn the_bad_power_is_named() {
        assert_eq!(Powers::new(&[]).unwrap_err(), PolicyError::NoUnits);
        for bad in [0.0, -0.5, f64::INFINITY] {
            let error = Powers::new(&[1.0, bad]).unwrap_err();
            assert_eq!(error, PolicyError::BadPower { unit: UnitId(1), power: bad });
        }
        assert!(matches!(
            Powers::new(&[f64::NAN]).unwrap_err(),
            PolicyError::BadPower { unit: UnitId(0), power } if power.is_nan()
        ));
    }

    proptest! {
        #[test]
        fn portions_grow_with_the_items(items in 0..u64::MAX, more in 0..u64::MAX, ratio in 0.0..1.0f64) {
            prop_assert!(portion(items, ratio) <= portion(items.saturating_add(more), ratio));
            prop_assert!(portion(items, ratio) <= items);
        }

        // A product within a thousandth below a whole number is rounded up, so denominators must stay below
        // about 1000.
        #[test]
        fn portions_of_rationals_are_the_floor(items in 0..1u64 << 40, part in 1..800u64, whole in 1..800u64) {
            prop_assume!(part <= whole);
            prop_assert_eq!(portion(items, part as f64 / whole as f64), items * part / whole);
        }
    }
}
