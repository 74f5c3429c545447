//! Taylor: sine, cosine and tangent from their Taylor series, a regular, compute-bound workload.
//!
//! ```text
//!   x[items] ──────────────────┐                  ┌─▶ circle[items]     (sin x, cos x)
//!   circle factors (all) ──────┼─▶ three series ──┤
//!   tangent factors (all) ─────┘                  └─▶ tangents[items]   tan x
//! ```
//!
//! Term `k + 1` of a series is term `k` times the square of x times a factor that depends on `k` alone. So a
//! series is `1 + f0 s (1 + f1 s (1 + ...))` with `s = x * x`, and is summed from its last term.
//!
//! Invariants:
//!
//! 1. **The result is the sum of a fixed number of terms**, not the function. The check subtracts the omitted
//!    terms of the tangent.
//! 2. **Nothing overflows or underflows**: partial sums from the end stay between 0 and 13.
//!
//! # Error bound
//! Let `u` be the unit roundoff, half a unit in the last place. A step `1 + f s r` adds at most `4u` of the
//! product (the rounding of the factor, of the square, and of two products) and `u` of the sum. The error of
//! step `k` reaches the result multiplied by the terms before it. With the magnitudes `|t|` of the terms, all
//! steps together add less than `5u` times the sum of `(k + 1)|t[k]|`. These sums have closed forms:
//!
//! | series | sum of `(k + 1)`\|`t[k]`\| | additional error |
//! |---|---|---|
//! | sine | (sinh x + x cosh x) / 2 | `u` sin x, the last product |
//! | cosine | cosh x + (x sinh x) / 2 | |
//! | tangent | (tan x + x / cos² x) / 2 | `u` tan x, the last product |
//!
//! A contracted operation has one rounding less. The results of host and devices are each within this bound
//! of the exact value.
//!
//! # Source
//! The regular benchmark of the co-execution papers with three buffers read and two written; 1.0 million
//! items, groups of 64. The papers do not publish the number of terms.

use crate::check::{Mismatch, Value};
use crate::jobs;
use crate::prepare::{Arguments, Groups, Input, Outputs, PrepareError, Program, Recipe, memory_for};
use crate::random;
use dml_arenas::launch::{Call, ComputeError, Team};
use rayon::prelude::*;
use std::f64::consts::PI;
use std::ops::Range;

/// Work-items of one OpenCL work-group.
pub const LOCAL_SIZE: u64 = 64;

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `global const float* x`, `global const float2* circle_factors`,
/// `global const float* tangent_factors`, `global float2* circle`, `global float* tangents`, `uint terms`,
/// `ulong end` (the kernel skips items from `end` on). The buffers are whole. The global offset is the first
/// item of the package. `terms` is the number of factors plus one.
pub const OPENCL_SOURCE: &str = include_str!("kernels/taylor.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/taylor.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "taylor";

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Angles.
    pub items: u64,
    /// Terms of each series, at least [`Problem::FEWEST_TERMS`].
    pub terms: u32,
}

/// Size for tests: takes milliseconds, and is no multiple of the local size. It has so few terms that the
/// last one is significant.
pub const TINY: Size = Size { items: 5_003, terms: 64 };
/// Takes about a second on one core.
pub const SMALL: Size = Size { items: 1_000_000, terms: TERMS };
/// The published number of items.
pub const PAPER: Size = Size { items: 1_000_000, terms: TERMS };

/// Default number of terms.
const TERMS: u32 = 1024;
/// Maximum number of angles per job of the host kernel.
const ANGLES_PER_JOB: usize = 1024;
/// Angles that the host kernel processes in parallel lanes.
const LANES: usize = 16;
/// Unit roundoff of single precision: half a unit in the last place, relative.
const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// The inputs of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    x: Vec<f32>,
    circle_factors: Vec<[f32; 2]>,
    tangent_factors: Vec<f32>,
}

impl Problem {
    /// Minimum number of terms. The omitted terms of sine and cosine are then below their rounding error.
    pub const FEWEST_TERMS: u32 = 12;
    /// Maximum number of terms. Rounding errors of higher order are still negligible.
    pub const MOST_TERMS: u32 = 4096;

    /// Draws angles of either sign with magnitudes from 0.25 to 1.5, in parallel, and computes the factors of
    /// the series.
    ///
    /// ```
    /// use dml_arenas::launch::Team;
    /// use dml_workloads::taylor::{self, Problem};
    ///
    /// let problem = Problem::generate(taylor::TINY, 42);
    /// let (mut circle, mut tangents) = (vec![[0.0; 2]; problem.x().len()], vec![0.0; problem.x().len()]);
    /// let (of_circle, of_tangent) = (problem.circle_factors(), problem.tangent_factors());
    /// let (items, x) = (0..problem.items(), problem.x());
    /// taylor::host(Team::global(), items, x, of_circle, of_tangent, &mut circle, &mut tangents);
    /// problem.check(&circle, &tangents)?;
    /// # Ok::<(), dml_workloads::check::Mismatch>(())
    /// ```
    ///
    /// # Panics
    /// When `size.terms` is not from [`FEWEST_TERMS`](Self::FEWEST_TERMS) to
    /// [`MOST_TERMS`](Self::MOST_TERMS).
    #[must_use]
    pub fn generate(size: Size, seed: u64) -> Self {
        let terms = size.terms;
        assert!((Self::FEWEST_TERMS..=Self::MOST_TERMS).contains(&terms), "taylor with {terms} terms");
        let angle = |index| {
            let value = random::signed_unit(random::stream(seed, 1), index);
            value * 1.25 + 0.25_f32.copysign(value)
        };
        let factors = 1..terms;
        Self {
            x: (0..size.items).into_par_iter().map(angle).collect(),
            circle_factors: factors.clone().map(circle_factors).collect(),
            tangent_factors: factors.map(tangent_factor).collect(),
        }
    }

    /// Returns the number of items: one per angle.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.x.len() as u64
    }

    /// Returns the number of terms of each series.
    #[must_use]
    pub fn terms(&self) -> u32 {
        self.tangent_factors.len() as u32 + 1
    }

    /// Returns the angles.
    #[must_use]
    pub fn x(&self) -> &[f32] {
        &self.x
    }

    /// Returns the factors of the terms of sine and cosine.
    #[must_use]
    pub fn circle_factors(&self) -> &[[f32; 2]] {
        &self.circle_factors
    }

    /// Returns the factors of the terms of the tangent.
    #[must_use]
    pub fn tangent_factors(&self) -> &[f32] {
        &self.tangent_factors
    }

    /// Compares whole outputs with the functions of the standard library in double precision. From the
    /// tangent it subtracts the omitted terms, which are geometric series.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong item, or with the lengths if they differ.
    pub fn check(&self, circle: &[[f32; 2]], tangents: &[f32]) -> Result<(), Mismatch> {
        Mismatch::of_length("length of the taylor circle", self.x.len(), circle.len(), 1)?;
        Mismatch::of_length("length of the taylor tangents", self.x.len(), tangents.len(), 1)?;
        let terms = self.terms();
        let wrong = (0..self.x.len()).into_par_iter().with_min_len(64).find_map_first(|item| {
            let found = [circle[item][0], circle[item][1], tangents[item]];
            let expected = expected(f64::from(self.x[item]), terms);
            let names = ["sine of taylor", "cosine of taylor", "tangent of taylor"];
            let mut all = expected.into_iter().zip(found).zip(names);
            all.find_map(|(((expected, most), found), what)| {
                let (expected, found) = (expected, f64::from(found));
                // Written so that NaN is wrong.
                let is_right = (found - expected).abs() <= most;
                let (expected, found) = (Value::Real(expected), Value::Real(found));
                (!is_right).then_some(Mismatch { item: item as u64, expected, found, what })
            })
        });
        wrong.map_or(Ok(()), Err)
    }
}

/// Returns the factors that lead from term `k - 1` to term `k` of sine and cosine, without the square of x.
fn circle_factors(k: u32) -> [f32; 2] {
    let twice = 2.0 * f64::from(k);
    [(-1.0 / (twice * (twice + 1.0))) as f32, (-1.0 / (twice * (twice - 1.0))) as f32]
}

/// Returns the factor that leads from term `k - 1` to term `k` of the tangent, without the square of x.
///
/// The coefficient of `x^(2n-1)` is `2 (2/pi)^(2n)` times the sum of `m^(-2n)` over the odd `m`.
fn tangent_factor(k: u32) -> f32 {
    // The largest m of the sum. Terms of m^-6 and higher powers are negligible beyond it.
    const LAST: i32 = 1_001;
    let sum = |n: u32| match n {
        1 => PI.powi(2) / 8.0,
        2 => PI.powi(4) / 96.0,
        n => (0..LAST).rev().step_by(2).map(|m| f64::from(m + 1).powi(-2 * n as i32)).sum(),
    };
    (4.0 / PI.powi(2) * sum(k + 1) / sum(k)) as f32
}

/// Returns sine, cosine and the sum of `terms` terms of the tangent, each with its error bound.
fn expected(x: f64, terms: u32) -> [(f64, f64); 3] {
    let (sine, cosine) = x.sin_cos();
    let tangent = sine / cosine;
    // The omitted terms of the tangent: for each pole at m pi / 2, the remainder of a geometric series.
    let left_out: f64 = (1..=9)
        .step_by(2)
        .map(|m| {
            let ratio = (2.0 * x / (f64::from(m) * PI)).powi(2);
            2.0 / x * ratio.powi(terms as i32 + 1) / (1.0 - ratio)
        })
        .sum();
    let a = x.abs();
    // The factor covers rounding errors of higher order, and those of the reference.
    let off = |sum: f64, last: f64| 1.01 * UNIT * (5.0 * sum + last.abs());
    [
        (sine, off((a.sinh() + a * a.cosh()) / 2.0, sine)),
        (cosine, off(a.cosh() + a * a.sinh() / 2.0, 0.0)),
        (tangent - left_out, off((tangent.abs() + a / cosine.powi(2)) / 2.0, tangent)),
    ]
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are global item numbers; `x`, `circle` and `tangents` hold exactly the elements of these items.
/// The factors are whole.
///
/// # Panics
/// When the length of a slice differs from the one above, or the two series have different numbers of
/// factors.
pub fn host(
    team: &Team,
    items: Range<u64>,
    x: &[f32],
    circle_factors: &[[f32; 2]],
    tangent_factors: &[f32],
    circle: &mut [[f32; 2]],
    tangents: &mut [f32],
) {
    let count = items.end.saturating_sub(items.start);
    assert!(
        [x.len(), circle.len(), tangents.len()].iter().all(|length| *length as u64 == count)
            && circle_factors.len() == tangent_factors.len(),
        "taylor of items {items:?}: x has {}, circle {} and tangents {} elements, not {count}; there are {} and {} factors",
        x.len(),
        circle.len(),
        tangents.len(),
        circle_factors.len(),
        tangent_factors.len()
    );
    let per_job = jobs::length(team, x.len(), ANGLES_PER_JOB, LANES);
    let jobs = x.chunks(per_job).zip(circle.chunks_mut(per_job)).zip(tangents.chunks_mut(per_job));
    team.for_each(jobs, |((x, circle), tangents)| {
        for ((x, circle), tangents) in
            x.chunks(LANES).zip(circle.chunks_mut(LANES)).zip(tangents.chunks_mut(LANES))
        {
            // Surplus lanes compute with zero.
            let mut square = [0.0; LANES];
            for (square, x) in square.iter_mut().zip(x) {
                *square = x * x;
            }
            let [mut sine, mut cosine, mut tangent] = [[1.0_f32; LANES]; 3];
            for ([of_sine, of_cosine], of_tangent) in circle_factors.iter().zip(tangent_factors).rev() {
                for lane in 0..LANES {
                    sine[lane] = 1.0 + of_sine * square[lane] * sine[lane];
                    cosine[lane] = 1.0 + of_cosine * square[lane] * cosine[lane];
                    tangent[lane] = 1.0 + of_tangent * square[lane] * tangent[lane];
                }
            }
            for (lane, x) in x.iter().enumerate() {
                circle[lane] = [x * sine[lane], cosine[lane]];
                tangents[lane] = x * tangent[lane];
            }
        }
    });
}

/// Seed of the co-executed inputs. Its value is arbitrary.
const SEED: u64 = 0x7A1;
/// Maximum number of items. Their buffers still fit in a 64-bit address space.
const LARGEST_ITEMS: u64 = 1 << 40;

impl Recipe for Problem {
    const NAME: &'static str = "taylor";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const LARGEST_PUBLISHED: u64 = PAPER.items;

    fn of(input: &Input<'_>) -> Result<Self, PrepareError> {
        let of_items = |items| Size { items, terms: TERMS };
        let size = input.pick::<Self, _>([TINY, SMALL, PAPER], LARGEST_ITEMS, of_items)?;
        // The problem's angles, and every buffer.
        memory_for::<Self>(size.items.saturating_mul(5 * size_of::<f32>() as u64))?;
        Ok(Self::generate(size, SEED))
    }

    fn items(&self) -> u64 {
        self.items()
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![("items", self.items()), ("terms", self.terms().into())]
    }

    fn groups(&self) -> Groups {
        Groups::Line(LOCAL_SIZE)
    }

    fn arguments(&self) -> Arguments<'_> {
        Arguments::default()
            .read(&self.x)
            .read_all(&self.circle_factors)
            .read_all(&self.tangent_factors)
            .write::<[f32; 2]>(self.items())
            .write::<f32>(self.items())
            .scalar(self.terms())
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let factors = call.scalar::<u32>(5)?.saturating_sub(1) as usize;
        let [x, of_circle, of_tangent, circle, tangents] = call.parts([0, 1, 2, 3, 4])?;
        let (of_circle, of_tangent) = (of_circle.slice::<[f32; 2]>()?, of_tangent.slice::<f32>()?);
        let few = || format!("{} terms need {factors} factors", factors + 1);
        let of_circle = of_circle.get(..factors).ok_or_else(few)?;
        let of_tangent = of_tangent.get(..factors).ok_or_else(few)?;
        host(team, items, x.slice()?, of_circle, of_tangent, circle.slice_mut()?, tangents.slice_mut()?);
        Ok(())
    }

    fn judge(&self, outputs: &Outputs<'_>) -> Result<(), Mismatch> {
        self.check(&outputs.of(0), &outputs.of(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages;
    use proptest::prelude::*;

    type Solved = (Vec<[f32; 2]>, Vec<f32>);

    fn solve(problem: &Problem) -> Solved {
        let mut circle = vec![[f32::NAN; 2]; problem.x.len()];
        let mut tangents = vec![f32::NAN; problem.x.len()];
        let (of_circle, of_tangent) = (&problem.circle_factors, &problem.tangent_factors);
        host(
            Team::global(),
            0..problem.items(),
            &problem.x,
            of_circle,
            of_tangent,
            &mut circle,
            &mut tangents,
        );
        (circle, tangents)
    }

    #[test]
    fn host_output_passes_the_check_at_every_awkward_size() {
        for items in [0, 1, 15, 16, 17, 1023, 1025, TINY.items] {
            for terms in [Problem::FEWEST_TERMS, 13, TINY.terms, TERMS, Problem::MOST_TERMS] {
                let problem = Problem::generate(Size { items, terms }, items);
                let (circle, tangents) = solve(&problem);
                problem.check(&circle, &tangents).unwrap();
            }
        }
    }

    /// The known coefficients of the tangent: 1, 1/3, 2/15, 17/315, 62/2835.
    #[test]
    fn factors_are_those_of_the_series() {
        let known = [1.0, 1.0 / 3.0, 2.0 / 15.0, 17.0 / 315.0, 62.0 / 2835.0];
        for (k, pair) in (1..).zip(known.windows(2)) {
            assert_eq!(tangent_factor(k), (pair[1] / pair[0]) as f32, "{k}");
        }
        assert_eq!(circle_factors(1), [-1.0 / 6.0, -1.0 / 2.0]);
        assert_eq!(circle_factors(2), [-1.0 / 20.0, -1.0 / 12.0]);
    }

    /// The closed forms of the tangent agree with sums over its terms, and the bound stays tight.
    #[test]
    fn expected_is_the_sum_of_the_terms_and_of_what_they_may_be_off() {
        for (x, terms) in [(1.5_f64, 12), (1.5, 64), (-1.2, 30), (0.25, 12)] {
            let (mut term, mut sum, mut off) = (x, 0.0, 0.0);
            for k in 1..=terms {
                sum += term;
                off += f64::from(k) * term.abs();
                term *= f64::from(tangent_factor(k)) * x * x;
            }
            let (expected, most) = expected(x, terms)[2];
            assert!((expected / sum - 1.0).abs() < 1e-5, "{x}, {terms}: {expected}, not {sum}");
            // The closed form also covers the omitted terms, so it is a little larger.
            assert!(most >= UNIT * (5.0 * off + sum.abs()), "{x}, {terms}");
            assert!(most < 600.0 * UNIT * expected.abs(), "{x}, {terms}: {most} is too loose");
        }
    }

    /// The expected bounds were computed with the same formulas in another program.
    #[test]
    fn how_far_results_may_be_off_is_known_to_the_last_term() {
        let near = |found: f64, computed: f64| {
            assert!((found / computed - 1.0).abs() < 1e-6, "{found:e}, not {computed:e}");
        };
        for (x, off) in [
            (1.5, [9.115_726_934_9e-7, 1.188_773_780_7e-6, 4.808_786_887_9e-5]),
            (-1.25, [6.534_849_408_6e-7, 8.697_866_008_8e-7, 2.526_214_333_8e-6]),
        ] {
            for ((_, most), computed) in expected(x, 12).into_iter().zip(off) {
                near(most, computed);
            }
        }
    }

    #[test]
    fn contracted_output_passes_the_check() {
        let problem = Problem::generate(TINY, 3);
        let added_up = |square: f32, factors: &mut dyn Iterator<Item = f32>| {
            factors.fold(1.0, |sum: f32, factor| (factor * square).mul_add(sum, 1.0))
        };
        let (mut circle, mut tangents) = (Vec::new(), Vec::new());
        for x in &problem.x {
            let of_circle = |which: usize| problem.circle_factors.iter().rev().map(move |pair| pair[which]);
            let sine = x * added_up(x * x, &mut of_circle(0));
            circle.push([sine, added_up(x * x, &mut of_circle(1))]);
            tangents.push(x * added_up(x * x, &mut problem.tangent_factors.iter().rev().copied()));
        }
        problem.check(&circle, &tangents).unwrap();
    }

    #[test]
    fn check_rejects_one_wrong_item_first_last_and_between() {
        let problem = Problem::generate(TINY, 5);
        let (circle, tangents) = solve(&problem);
        let last = TINY.items as usize - 1;
        for item in [0, 1, last / 2, last - 1, last] {
            let off = expected(f64::from(problem.x[item]), TINY.terms).map(|(_, most)| 2.1 * most as f32);
            let neighbour = if item == last { 0 } else { item + 1 };
            for wrong in [circle[item][0] + off[0], circle[item][0] - off[0], f32::NAN, circle[neighbour][0]]
            {
                let mut circle = circle.clone();
                circle[item][0] = wrong;
                assert_eq!(problem.check(&circle, &tangents).unwrap_err().item, item as u64, "{wrong}");
            }
            for wrong in [circle[item][1] + off[1], circle[item][1] - off[1], f32::INFINITY, 0.0] {
                let mut circle = circle.clone();
                circle[item][1] = wrong;
                assert_eq!(problem.check(&circle, &tangents).unwrap_err().item, item as u64, "{wrong}");
            }
            for wrong in [tangents[item] + off[2], tangents[item] - off[2], f32::NAN, tangents[neighbour]] {
                let mut tangents = tangents.clone();
                tangents[item] = wrong;
                assert_eq!(problem.check(&circle, &tangents).unwrap_err().item, item as u64, "{wrong}");
            }
        }
        assert_eq!(problem.check(&circle[1..], &tangents).unwrap_err().item, TINY.items - 1);
        assert_eq!(problem.check(&circle, &tangents[1..]).unwrap_err().item, TINY.items - 1);
    }

    /// One term is the smallest possible error of a series.
    #[test]
    fn check_rejects_one_term_too_few_or_too_many() {
        let problem = Problem::generate(TINY, 7);
        for terms in [TINY.terms - 1, TINY.terms + 1] {
            let (circle, tangents) = solve(&Problem::generate(Size { terms, ..TINY }, 7));
            let told = problem.check(&circle, &tangents).unwrap_err();
            assert_eq!(told.what, "tangent of taylor");
            assert!(problem.x[told.item as usize].abs() > 1.2, "{told}");
        }
        // The same for one term of the sine, where it exceeds the rounding error.
        let (mut circle, tangents) = solve(&problem);
        let steepest = (0..circle.len()).max_by(|a, b| problem.x[*a].abs().total_cmp(&problem.x[*b].abs()));
        let steepest = steepest.unwrap();
        circle[steepest][0] += problem.x[steepest].powi(9) / 362_880.0;
        assert_eq!(problem.check(&circle, &tangents).unwrap_err().item, steepest as u64);
    }

    #[test]
    fn seeds_and_angles_differ() {
        let problem = Problem::generate(TINY, 1);
        assert_ne!(problem, Problem::generate(TINY, 2));
        assert_eq!(problem, Problem::generate(TINY, 1));
        assert!(problem.x.iter().all(|x| (0.25..=1.5).contains(&x.abs())));
        assert!(problem.x.windows(2).all(|pair| pair[0] != pair[1]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn packages_give_the_bytes_of_the_whole(items in 0_u64..5_000, seed: u64, cuts in packages::cuts()) {
            let problem = Problem::generate(Size { items, terms: 20 }, seed);
            let whole = solve(&problem);
            problem.check(&whole.0, &whole.1).unwrap();
            let mut parts = (vec![[f32::NAN; 2]; whole.0.len()], vec![f32::NAN; whole.1.len()]);
            for package in packages::split(items, &cuts) {
                host(
                    Team::global(),
                    package.clone(),
                    &problem.x[package.start as usize..package.end as usize],
                    &problem.circle_factors,
                    &problem.tangent_factors,
                    packages::part(&mut parts.0, &package, 1),
                    packages::part(&mut parts.1, &package, 1),
                );
            }
            prop_assert!(parts == whole);
        }
    }
}
