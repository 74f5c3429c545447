//! How much an item costs, by its place in the work.

use crate::random::Random;
use std::ops::Range;

/// The shapes of work that policies are compared on. Each costs 1 per item on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profile {
    /// Every item costs the same.
    Constant,
    /// From nearly nothing up to nearly twice the average.
    Rising,
    /// The other way round.
    Falling,
    /// A steep hill in the middle, as in a picture of one object.
    Peak,
    /// Eight blocks of random cost, some many times as dear as others.
    Blocks,
    /// One wave.
    Sine,
    /// Even, but for five short pieces of half a percent of the items, each with a twentieth of all cost.
    Spikes,
}

/// The number of places between which a cost can change.
const PLACES: usize = 4096;

/// The places of one spike.
const SPIKE: usize = 22;

/// What the random profiles depend on.
const SEED: u64 = 7;

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 7] =
        [Self::Constant, Self::Rising, Self::Falling, Self::Peak, Self::Blocks, Self::Sine, Self::Spikes];

    /// The cost of all items.
    #[must_use]
    pub fn costs(self) -> Costs {
        self.costs_of(SEED)
    }

    /// The same, with other blocks and spikes.
    #[must_use]
    pub fn costs_of(self, seed: u64) -> Costs {
        let mut random = Random::new(seed);
        let blocks: Vec<f64> = (0..8).map(|_| 1.0 + random.below(11) as f64).collect();
        let spikes: Vec<usize> = (0..5).map(|_| random.below((PLACES - SPIKE) as u64) as usize).collect();
        let cost = |place: usize| {
            let at = (place as f64 + 0.5) / PLACES as f64;
            match self {
                Self::Constant => 1.0,
                Self::Rising => 0.03 + at,
                Self::Falling => 1.03 - at,
                Self::Peak => 0.06 + (-((at - 0.5) / 0.05).powi(2)).exp(),
                Self::Blocks => blocks[place * blocks.len() / PLACES],
                Self::Sine => 1.0 + 0.88 * (at * std::f64::consts::TAU).sin(),
                Self::Spikes if spikes.iter().any(|spike| (*spike..*spike + SPIKE).contains(&place)) => 14.0,
                Self::Spikes => 1.0,
            }
        };
        Costs::new((0..PLACES).map(cost))
    }

    /// A short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Rising => "rising",
            Self::Falling => "falling",
            Self::Peak => "peak",
            Self::Blocks => "blocks",
            Self::Sine => "sine",
            Self::Spikes => "spikes",
        }
    }
}

/// The cost of every stretch of some work, 1 per item on average.
#[derive(Clone, Debug)]
pub struct Costs {
    /// The part of all cost before each place, and 1 at the end.
    before: Vec<f64>,
}

impl Costs {
    /// Makes it of the cost at equally distant places, each positive.
    #[must_use]
    pub fn new(costs: impl Iterator<Item = f64>) -> Self {
        let mut before = vec![0.0];
        let mut sum = 0.0;
        for cost in costs {
            sum += cost;
            before.push(sum);
        }
        before.iter_mut().for_each(|part| *part /= sum);
        Self { before }
    }

    /// What these of `work` items cost together.
    #[must_use]
    pub fn of(&self, items: Range<u64>, work: u64) -> f64 {
        (self.before(items.end, work) - self.before(items.start, work)) * work as f64
    }

    fn before(&self, item: u64, work: u64) -> f64 {
        let places = self.before.len() - 1;
        let at = item as f64 / work as f64 * places as f64;
        let place = (at as usize).min(places - 1);
        let (from, to) = (self.before[place], self.before[place + 1]);
        from + (to - from) * (at - place as f64)
    }
}
