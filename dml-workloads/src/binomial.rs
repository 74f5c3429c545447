//! Binomial: options priced by a binomial tree of 254 steps, a regular workload with local memory and
//! barriers.
//!
//! ```text
//!   options[items] ──▶ 255 leaves ──▶ 254 levels, each node from two of the level after it ──▶ values[items]
//! ```
//!
//! An item is four European call options, which can be exercised only at expiry. A step changes the price by
//! the factor `exp(s)` or `exp(-s)`. The value of a node is `up` times the value after a rise plus `down`
//! times the value after a fall. On OpenCL a work-group of 255 work-items computes an item, and each
//! work-item computes a vector of four options.
//!
//! Invariants:
//!
//! 1. **The weights are inputs**: `s`, `up` and `down` are rounded once, in the input. Otherwise their
//!    rounding errors, compounded over 254 steps, would exceed those of the tree.
//! 2. **No value is negative**, so no sum suffers from cancellation.
//!
//! # Error bound
//! With `u` the unit roundoff, half a unit in the last place:
//!
//! - A leaf is `max(price * exp(a) - strike, 0)` with `a` up to `254 s`. The error of the argument is
//!   `u |a|`, that of `exp` is 3 units or `6u` (OpenCL's limit), and that of the product is `u`. The
//!   difference adds `u` of itself. So the error of a leaf is `u` times its price times `|a| + 7`, plus `u`
//!   times its value.
//! - A level rounds two products and a sum, so each path to a leaf accumulates `2u` per level: `508u` of the
//!   value.
//! - Values below the normal numbers of single precision may be lost, once per level.
//!
//! The reference sums the errors of the leaves with the same weights as their values. A contracted operation
//! has one rounding less.
//!
//! # Source
//! Cox, Ross and Rubinstein, "Option pricing: a simplified approach", 1979. The regular benchmark of the
//! co-execution papers: 254 steps, groups of 255, one buffer read and one written; four options a group, as
//! in the AMD APP SDK. The number of options is not published.

use crate::check::{Mismatch, Value};
use crate::prepare::{Arguments, Groups, Input, Outputs, PrepareError, Program, Recipe, memory_for};
use crate::random;
use dml_arenas::launch::{Call, ComputeError, Team};
use rayon::prelude::*;
use std::ops::Range;

/// Work-items of one OpenCL work-group: the leaves of a tree, and one item.
pub const LOCAL_SIZE: [u64; 2] = [STEPS as u64 + 1, 1];

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `global const float4* options` ([`FIELDS`] per item), `global float4* values`,
/// `ulong end` (the kernel skips items from `end` on). Work-items have two dimensions: leaves, and items from
/// the first of the package on. The buffers are whole.
pub const OPENCL_SOURCE: &str = include_str!("kernels/binomial.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/binomial.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "binomial";

/// The published number of steps.
pub const STEPS: usize = 254;
/// Fields of an option: current price, strike, logarithm of a rise, weight of a rise, weight of a fall.
pub const FIELDS: usize = 5;
/// Options of an item.
pub const LANES: usize = 4;
/// The options of an item. Each field holds the values of all four options.
pub type Options = [[f32; LANES]; FIELDS];

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Items of four options.
    pub items: u64,
}

/// Size for tests: takes milliseconds.
pub const TINY: Size = Size { items: 103 };
/// Takes about a second on one core.
pub const SMALL: Size = Size { items: 20_000 };
/// Takes some seconds on all cores. The papers publish only the number of steps.
pub const PAPER: Size = Size { items: 1 << 18 };

/// Risk-free interest rate per year.
const INTEREST: f64 = 0.02;
/// Unit roundoff of single precision: half a unit in the last place, relative.
const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// The inputs of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    options: Vec<Options>,
}

impl Problem {
    /// Draws options, in parallel: prices from 5 to 100, strikes from 0.5 to 1.5 times the price, times to
    /// expiry from 0.25 to 10 years, and volatilities from 10% to 50% per year.
    ///
    /// ```
    /// use dml_arenas::launch::Team;
    /// use dml_workloads::binomial::{self, Problem};
    ///
    /// let problem = Problem::generate(binomial::TINY, 42);
    /// let mut values = vec![[0.0; 4]; problem.options().len()];
    /// binomial::host(Team::global(), 0..problem.items(), problem.options(), &mut values);
    /// problem.check(&values)?;
    /// # Ok::<(), dml_workloads::check::Mismatch>(())
    /// ```
    #[must_use]
    pub fn generate(size: Size, seed: u64) -> Self {
        let option = |index| {
            let drawn = |stream, from, to| {
                from + (to - from) * f64::from(random::unit(random::stream(seed, stream), index))
            };
            let price = drawn(1, 5.0, 100.0);
            option(price, price * drawn(2, 0.5, 1.5), drawn(3, 0.25, 10.0), drawn(4, 0.1, 0.5))
        };
        let item = |index| together([0, 1, 2, 3].map(|lane| option(index * LANES as u64 + lane)));
        Self { options: (0..size.items).into_par_iter().map(item).collect() }
    }

    /// Returns the number of items, four options each.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.options.len() as u64
    }

    /// Returns the options in groups of four.
    #[must_use]
    pub fn options(&self) -> &[Options] {
        &self.options
    }

    /// Compares a whole output with the binomial sum over the leaves, in double precision.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong item, or with the lengths if they differ.
    pub fn check(&self, values: &[[f32; LANES]]) -> Result<(), Mismatch> {
        Mismatch::of_length("length of the binomial output", self.options.len(), values.len(), 1)?;
        let wrong = values.par_iter().with_min_len(4).enumerate().find_map_first(|(item, found)| {
            let mut lanes = (0..LANES).zip(found);
            lanes.find_map(|(lane, found)| {
                let (expected, most) = expected(&self.options[item].map(|numbers| numbers[lane]));
                let found = f64::from(*found);
                let is_right = (found - expected).abs() <= most;
                (!is_right).then_some((item, expected, found))
            })
        });
        wrong.map_or(Ok(()), |(item, expected, found)| {
            let (expected, found) = (Value::Real(expected), Value::Real(found));
            Err(Mismatch { item: item as u64, expected, found, what: "binomial output" })
        })
    }
}

/// Groups the fields of four options.
fn together(options: [[f32; FIELDS]; LANES]) -> Options {
    std::array::from_fn(|field| options.map(|option| option[field]))
}

/// Computes the fields of an option. `price` and `strike` are in units of money, `years` is the time to
/// expiry, and `volatility` is per year.
fn option(price: f64, strike: f64, years: f64, volatility: f64) -> [f32; FIELDS] {
    let step = years / STEPS as f64;
    let rise = volatility * step.sqrt();
    let discount = (-INTEREST * step).exp();
    // The risk-neutral probability of a rise.
    let likely = ((INTEREST * step).exp() - (-rise).exp()) / (rise.exp() - (-rise).exp());
    [price, strike, rise, discount * likely, discount * (1.0 - likely)].map(|value| value as f32)
}

/// Returns the value of an option and its error bound. Both are sums over the leaves, each weighted by the
/// number and the weight of the paths to it.
fn expected(option: &[f32; FIELDS]) -> (f64, f64) {
    let [price, strike, rise, up, down] = option.map(f64::from);
    let steps = STEPS as i32;
    let (mut worth, mut off) = (0.0, 0.0);
    let mut weight = down.powi(steps);
    for rises in 0..=steps {
        let exponent = rise * f64::from(2 * rises - steps);
        let at_leaf = price * exponent.exp();
        let gain = (at_leaf - strike).max(0.0);
        worth += weight * gain;
        // The error of a leaf on the wrong side of the strike is no larger than that of its price.
        off += weight * ((exponent.abs() + 7.0) * at_leaf + gain);
        weight *= f64::from(steps - rises) / f64::from(rises + 1) * up / down;
    }
    let levels = 2.0 * f64::from(steps) * worth;
    // The factor covers rounding errors of higher order.
    (worth, 1.01 * UNIT * (off + levels) + f64::from(f32::MIN_POSITIVE) * f64::from(2 * steps))
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are global item numbers; `options` and `values` hold exactly the elements of these items.
///
/// # Panics
/// When a slice does not have one element per item.
pub fn host(team: &Team, items: Range<u64>, options: &[Options], values: &mut [[f32; LANES]]) {
    let count = items.end.saturating_sub(items.start);
    assert!(
        options.len() as u64 == count && values.len() as u64 == count,
        "binomial of items {items:?}: options has {} and values {} elements, not {count}",
        options.len(),
        values.len()
    );
    team.for_each(options.iter().zip(values), |(option, value)| *value = values_of(option));
}

/// Returns the present values of the options of an item.
fn values_of(&[price, strike, rise, up, down]: &Options) -> [f32; LANES] {
    let mut level = [[0.0_f32; LANES]; STEPS + 1];
    for (rises, leaf) in level.iter_mut().enumerate() {
        for lane in 0..LANES {
            let exponent = rise[lane] * (2 * rises as i32 - STEPS as i32) as f32;
            leaf[lane] = (price[lane] * exponent.exp() - strike[lane]).max(0.0);
        }
    }
    for nodes in (1..=STEPS).rev() {
        for node in 0..nodes {
            for lane in 0..LANES {
                level[node][lane] = up[lane] * level[node + 1][lane] + down[lane] * level[node][lane];
            }
        }
    }
    level[0]
}

/// Seed of the co-executed inputs. Its value is arbitrary.
const SEED: u64 = 0xB1_40;
/// Maximum number of items. Their buffers still fit in a 64-bit address space.
const LARGEST_ITEMS: u64 = 1 << 40;

impl Recipe for Problem {
    const NAME: &'static str = "binomial";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const LARGEST_PUBLISHED: u64 = PAPER.items;

    fn of(input: &Input<'_>) -> Result<Self, PrepareError> {
        let size = input.pick::<Self, _>([TINY, SMALL, PAPER], LARGEST_ITEMS, |items| Size { items })?;
        // The options, and both buffers.
        memory_for::<Self>(size.items.saturating_mul(3 * size_of::<Options>() as u64))?;
        Ok(Self::generate(size, SEED))
    }

    fn items(&self) -> u64 {
        self.items()
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![("items", self.items()), ("steps", STEPS as u64)]
    }

    fn groups(&self) -> Groups {
        Groups::Rows { columns: LOCAL_SIZE[0], local: LOCAL_SIZE }
    }

    fn arguments(&self) -> Arguments<'_> {
        Arguments::default().read(&self.options).write::<[f32; LANES]>(self.items())
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let [options, values] = call.parts([0, 1])?;
        host(team, items, options.slice()?, values.slice_mut()?);
        Ok(())
    }

    fn judge(&self, outputs: &Outputs<'_>) -> Result<(), Mismatch> {
        self.check(&outputs.of(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages;
    use proptest::prelude::*;

    fn solve(problem: &Problem) -> Vec<[f32; LANES]> {
        let mut values = vec![[f32::NAN; LANES]; problem.options.len()];
        host(Team::global(), 0..problem.items(), problem.options(), &mut values);
        values
    }

    #[test]
    fn host_output_passes_the_check_at_every_awkward_size() {
        for items in [0, 1, 2, 3, 5, TINY.items] {
            let problem = Problem::generate(Size { items }, items);
            problem.check(&solve(&problem)).unwrap();
        }
    }

    /// The Black-Scholes formula, the limit for many steps: price and strike 100, one year, volatility 20%
    /// per year.
    #[test]
    fn value_is_near_the_one_of_endlessly_many_steps() {
        let option = option(100.0, 100.0, 1.0, 0.2);
        let (expected, most) = expected(&option);
        assert!((expected - 8.916).abs() < 0.02, "{expected}");
        let [value, ..] = values_of(&together([option; LANES]));
        assert!((f64::from(value) - expected).abs() <= most);
        assert!(most < 1e-3, "{most} is too loose");
    }

    /// The expected values and bounds were computed with the same formula in another program.
    #[test]
    fn how_far_a_value_may_be_off_is_known_to_the_last_term() {
        let near = |found: f64, computed: f64| {
            assert!((found / computed - 1.0).abs() < 1e-6, "{found:e}, not {computed:e}");
        };
        for (of_option, worth, off) in [
            (option(100.0, 100.0, 1.0, 0.2), 8.908_242_024_7, 3.160_870_317_6e-4),
            (option(5.0, 8.0, 0.25, 0.5), 0.018_991_003_060_5, 2.749_553_483_6e-6),
        ] {
            let (value, most) = expected(&of_option);
            near(value, worth);
            near(most, off);
        }
    }

    /// The value of an option with strike zero is the price.
    #[test]
    fn weights_keep_the_price() {
        for (price, years, volatility) in [(5.0, 0.25, 0.5), (100.0, 10.0, 0.1), (42.0, 3.0, 0.3)] {
            let option = option(price, 0.0, years, volatility);
            let ((expected, most), of_rounded_weights) = (expected(&option), 255.0 * 2.0 * UNIT * price);
            assert!((expected - price).abs() < of_rounded_weights, "{expected}, not {price}");
            assert!(most < 1e-4 * price, "{most} is too loose");
        }
    }

    /// Returns the options of a problem one by one.
    fn one_by_one(problem: &Problem) -> impl Iterator<Item = [f32; FIELDS]> {
        problem.options.iter().flat_map(|four| (0..LANES).map(|lane| four.map(|numbers| numbers[lane])))
    }

    #[test]
    fn contracted_output_passes_the_check() {
        let problem = Problem::generate(TINY, 3);
        let of_option = |[price, strike, rise, up, down]: [f32; FIELDS]| {
            let leaf = |rises: usize| {
                let exponent = rise * (2 * rises as i32 - STEPS as i32) as f32;
                price.mul_add(exponent.exp(), -strike).max(0.0)
            };
            let mut level: Vec<f32> = (0..=STEPS).map(leaf).collect();
            while level.len() > 1 {
                level = level.windows(2).map(|pair| up.mul_add(pair[1], down * pair[0])).collect();
            }
            level[0]
        };
        let values: Vec<f32> = one_by_one(&problem).map(of_option).collect();
        problem.check(bytemuck::cast_slice(&values)).unwrap();
    }

    #[test]
    fn check_rejects_one_wrong_item_first_last_and_between() {
        let problem = Problem::generate(TINY, 5);
        let right: Vec<f32> = bytemuck::cast_slice(&solve(&problem)).to_vec();
        let last = right.len() - 1;
        for index in [0, 1, last / 2, last - 1, last] {
            let off = 2.1 * expected(&one_by_one(&problem).nth(index).unwrap()).1 as f32;
            for wrong in [right[index] + off, right[index] - off, right[(index + 1) % right.len()], f32::NAN]
            {
                let mut values = right.clone();
                values[index] = wrong;
                let told = problem.check(bytemuck::cast_slice(&values)).unwrap_err();
                assert_eq!(told.item, (index / LANES) as u64, "{wrong}");
            }
        }
        let mut shifted = right.clone();
        shifted.rotate_left(LANES);
        assert_eq!(problem.check(bytemuck::cast_slice(&shifted)).unwrap_err().item, 0);
        assert_eq!(problem.check(bytemuck::cast_slice(&right[LANES..])).unwrap_err().item, TINY.items - 1);
    }

    /// The smallest errors of a tree: a level too few or too many, the two weights swapped, the leaves
    /// shifted by one. The check rejects each of them for every option.
    #[test]
    fn check_rejects_one_level_too_few_or_too_many() {
        let problem = Problem::generate(TINY, 8);
        for option in one_by_one(&problem) {
            let one = Problem { options: vec![together([option; LANES])] };
            let check = |value: f32| {
                let right = values_of(&one.options[0])[0];
                one.check(&[[right, right, value, right]])
            };
            let [price, strike, rise, up, down] = option;
            let tree = |levels: usize, aside: i32, [up, down]: [f32; 2]| {
                let leaf = |rises: usize| {
                    let exponent = rise * (2 * rises as i32 - levels as i32 + aside) as f32;
                    (price * exponent.exp() - strike).max(0.0)
                };
                let mut level: Vec<f32> = (0..=levels).map(leaf).collect();
                while level.len() > 1 {
                    level = level.windows(2).map(|pair| up * pair[1] + down * pair[0]).collect();
                }
                level[0]
            };
            let weights = [up, down];
            check(tree(STEPS, 0, weights)).unwrap();
            for wrong in [(STEPS - 1, 0), (STEPS + 1, 0), (STEPS, 1), (STEPS, -1)] {
                assert!(check(tree(wrong.0, wrong.1, weights)).is_err(), "{option:?}: {wrong:?} passes");
            }
            assert!(check(tree(STEPS, 0, [down, up])).is_err(), "{option:?}");
        }
    }

    #[test]
    fn sources_have_the_sizes_of_the_tree() {
        for source in [OPENCL_SOURCE, CUDA_SOURCE] {
            assert!(source.contains(&format!("#define STEPS {STEPS}\n")));
            assert!(source.contains(&format!("#define FIELDS {FIELDS}\n")));
        }
    }

    #[test]
    fn seeds_and_options_differ() {
        let problem = Problem::generate(TINY, 1);
        assert_eq!(problem, Problem::generate(TINY, 1));
        assert_ne!(problem, Problem::generate(TINY, 2));
        let options: Vec<_> = one_by_one(&problem).collect();
        assert!(options.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(solve(&problem).as_flattened().iter().all(|value| *value > 1e-3));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn packages_give_the_bytes_of_the_whole(items in 0_u64..60, seed: u64, cuts in packages::cuts()) {
            let problem = Problem::generate(Size { items }, seed);
            let whole = solve(&problem);
            problem.check(&whole).unwrap();
            let mut values = vec![[f32::NAN; LANES]; whole.len()];
            for package in packages::split(items, &cuts) {
                let options = &problem.options[package.start as usize..package.end as usize];
                host(Team::global(), package.clone(), options, packages::part(&mut values, &package, 1));
            }
            prop_assert!(values == whole);
        }
    }
}
