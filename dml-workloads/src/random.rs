//! The seeded generator behind every input: splitmix64, addressed by position.
//!
//! A value depends on the seed and its index alone, so inputs can be drawn in parallel and in any order.

/// The increment of splitmix64: 2^64 divided by the golden ratio.
const INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns output number `index` of the splitmix64 sequence that starts at `seed`.
pub(crate) const fn word(seed: u64, index: u64) -> u64 {
    let mut word = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(INCREMENT));
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Returns a value in `0.0..1.0` from the upper 24 bits of [`word`].
pub(crate) fn unit(seed: u64, index: u64) -> f32 {
    (word(seed, index) >> 40) as f32 / (1_u32 << 24) as f32
}

/// Returns a value in `-1.0..1.0` from the upper 24 bits of [`word`].
pub(crate) fn signed_unit(seed: u64, index: u64) -> f32 {
    unit(seed, index) * 2.0 - 1.0
}

/// Returns the seed of sequence `number`. The sequences of an input are independent of each other.
pub(crate) const fn stream(seed: u64, number: u64) -> u64 {
    word(seed ^ 0x5EED_5EED_5EED_5EED, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_splitmix64() {
        // The reference sequence for seed 1234567.
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        for (index, expected) in (0..).zip(expected) {
            assert_eq!(word(1_234_567, index), expected);
        }
    }

    #[test]
    fn units_stay_in_their_range_and_spread() {
        let values: Vec<f32> = (0..10_000).map(|index| unit(7, index)).collect();
        assert!(values.iter().all(|value| (0.0..1.0).contains(value)));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!((mean - 0.5).abs() < 0.02, "mean {mean}");
    }
}
