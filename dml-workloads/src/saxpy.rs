//! Saxpy: `out[i] = alpha * x[i] + y[i]`, a regular, memory-bound workload.
//!
//! ```text
//!   x[items] ─┐
//!   y[items] ─┴─▶ alpha * x + y ──▶ out[items]        one item = one element
//! ```
//!
//! # Source
//! Level 1 of the Basic Linear Algebra Subprograms; the published sizes are 1e7 and 1e8 elements.

use crate::check::{Mismatch, Value};
use crate::prepare::{Arguments, Groups, Input, Outputs, PrepareError, Program, Recipe, memory_for};
use crate::random;
use dml_arenas::launch::{Call, ComputeError, Team};
use rayon::prelude::*;
use std::ops::Range;

/// Work-items of one OpenCL work-group.
pub const LOCAL_SIZE: u64 = 128;

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `float alpha`, `global const float* x`, `global const float* y`, `global float* out`,
/// `ulong end` (the kernel skips items from `end` on). The buffers are whole. The global offset is the first
/// item of the package.
pub const OPENCL_SOURCE: &str = include_str!("kernels/saxpy.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/saxpy.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "saxpy";

/// Elements of one job of the host kernel: three slices of 64 KiB.
const ELEMENTS_PER_JOB: usize = 16 * 1024;

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Elements of each vector.
    pub items: u64,
}

/// Size for tests: takes milliseconds, and is no multiple of the local size.
pub const TINY: Size = Size { items: 10_007 };
/// The smaller published size, 120 MB in three vectors.
///
/// A second of saxpy on one core would need vectors of several gigabytes. So this size stays far below a
/// second.
pub const SMALL: Size = Size { items: 10_000_000 };
/// The larger published size, 1.2 GB in three vectors.
pub const PAPER: Size = Size { items: 100_000_000 };

/// The inputs of one saxpy.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    alpha: f32,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Problem {
    /// Draws `alpha` and two vectors of `size.items` elements in `-1.0..1.0`, in parallel.
    ///
    /// ```
    /// use dml_arenas::launch::Team;
    /// use dml_workloads::saxpy::{self, Problem};
    ///
    /// let problem = Problem::generate(saxpy::TINY, 42);
    /// let mut out = vec![0.0; problem.x().len()];
    /// saxpy::host(Team::global(), 0..problem.items(), problem.alpha(), problem.x(), problem.y(), &mut out);
    /// problem.check(&out)?;
    /// # Ok::<(), dml_workloads::check::Mismatch>(())
    /// ```
    #[must_use]
    pub fn generate(size: Size, seed: u64) -> Self {
        let vector = |stream| {
            let seed = random::stream(seed, stream);
            (0..size.items).into_par_iter().map(|index| random::signed_unit(seed, index)).collect()
        };
        Self { alpha: 1.25 + random::unit(seed, 0), x: vector(1), y: vector(2) }
    }

    /// Returns the number of items: one per element.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.x.len() as u64
    }

    /// Returns the factor.
    #[must_use]
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// Returns the vector that is scaled.
    #[must_use]
    pub fn x(&self) -> &[f32] {
        &self.x
    }

    /// Returns the vector that is added.
    #[must_use]
    pub fn y(&self) -> &[f32] {
        &self.y
    }

    /// Compares a whole output with a reference in double precision.
    ///
    /// The error bound covers the rounding of one product and one sum in single precision, with or without
    /// contraction. It includes the smallest normal number, for devices without subnormal numbers.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong element, or with the lengths if they differ.
    pub fn check(&self, out: &[f32]) -> Result<(), Mismatch> {
        Mismatch::of_length("length of the saxpy output", self.x.len(), out.len(), 1)?;
        let wrong = (0..out.len()).into_par_iter().with_min_len(ELEMENTS_PER_JOB).find_map_first(|index| {
            let product = f64::from(self.alpha) * f64::from(self.x[index]);
            let expected = product + f64::from(self.y[index]);
            let found = f64::from(out[index]);
            let is_right = (found - expected).abs() <= rounding_bound(product, expected);
            (!is_right).then_some((index, expected, found))
        });
        wrong.map_or(Ok(()), |(index, expected, found)| {
            Err(Mismatch {
                item: index as u64,
                expected: Value::Real(expected),
                found: Value::Real(found),
                what: "saxpy output",
            })
        })
    }
}

/// Returns the error bound of a single-precision `product + y`, whose exact value is `sum`.
fn rounding_bound(product: f64, sum: f64) -> f64 {
    // The unit roundoff. The factor covers second-order terms and the error of the reference.
    let unit = f64::from(f32::EPSILON) / 2.0;
    let smallest_normal = f64::from(f32::MIN_POSITIVE);
    1.000_001 * unit * (product.abs() + sum.abs()) + smallest_normal
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are global item numbers; `x`, `y` and `out` hold exactly the elements of these items.
///
/// # Panics
/// When a slice does not have one element per item.
pub fn host(team: &Team, items: Range<u64>, alpha: f32, x: &[f32], y: &[f32], out: &mut [f32]) {
    let count = items.end.saturating_sub(items.start);
    assert!(
        [x.len(), y.len(), out.len()].iter().all(|length| *length as u64 == count),
        "saxpy of items {items:?}: x has {}, y {} and out {} elements, not {count}",
        x.len(),
        y.len(),
        out.len()
    );
    let inputs = x.chunks(ELEMENTS_PER_JOB).zip(y.chunks(ELEMENTS_PER_JOB));
    team.for_each(out.chunks_mut(ELEMENTS_PER_JOB).zip(inputs), |(out, (x, y))| {
        for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
            *out = alpha * x + y;
        }
    });
}

/// Seed of the co-executed inputs. Its value is arbitrary.
const SEED: u64 = 0x5A_C9;
/// Maximum number of items. Three vectors of them still fit in a 64-bit address space.
const LARGEST_ITEMS: u64 = 1 << 40;

impl Recipe for Problem {
    const NAME: &'static str = "saxpy";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const LARGEST_PUBLISHED: u64 = 100_000_000;

    fn of(input: &Input<'_>) -> Result<Self, PrepareError> {
        let size = input.pick::<Self, _>([TINY, SMALL, PAPER], LARGEST_ITEMS, |items| Size { items })?;
        memory_for::<Self>(size.items.saturating_mul(5 * size_of::<f32>() as u64))?;
        Ok(Self::generate(size, SEED))
    }

    fn items(&self) -> u64 {
        self.items()
    }

    fn groups(&self) -> Groups {
        Groups::Line(LOCAL_SIZE)
    }

    fn arguments(&self) -> Arguments<'_> {
        Arguments::default().scalar(self.alpha).read(&self.x).read(&self.y).write::<f32>(self.items())
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let alpha = call.scalar(0)?;
        let [x, y, out] = call.parts([1, 2, 3])?;
        host(team, items, alpha, x.slice()?, y.slice()?, out.slice_mut()?);
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

    fn solve(problem: &Problem) -> Vec<f32> {
        let mut out = vec![f32::NAN; problem.x.len()];
        host(Team::global(), 0..problem.items(), problem.alpha, &problem.x, &problem.y, &mut out);
        out
    }

    #[test]
    fn host_output_passes_the_check_at_every_awkward_size() {
        for items in [0, 1, 127, 128, 129, 16 * 1024 + 1, TINY.items] {
            let problem = Problem::generate(Size { items }, items);
            problem.check(&solve(&problem)).unwrap();
        }
    }

    /// The bound is a unit roundoff of the product, one of the sum, and the smallest normal number.
    #[test]
    fn every_rounding_counts_once() {
        let unit = 2.0_f64.powi(-24);
        let near = |found: f64, computed: f64| {
            assert!((found / computed - 1.0).abs() < 1e-5, "{found:e}, not {computed:e}");
        };
        near(rounding_bound(3.0, 0.0), 3.0 * unit);
        near(rounding_bound(0.0, -5.0), 5.0 * unit);
        near(rounding_bound(-3.0, 5.0), 8.0 * unit);
        near(rounding_bound(0.0, 0.0), 2.0_f64.powi(-126));
    }

    #[test]
    fn contracted_output_passes_the_check() {
        let problem = Problem::generate(TINY, 3);
        let out: Vec<f32> =
            problem.x.iter().zip(&problem.y).map(|(x, y)| problem.alpha.mul_add(*x, *y)).collect();
        problem.check(&out).unwrap();
    }

    #[test]
    fn check_names_the_first_wrong_item() {
        let problem = Problem::generate(TINY, 5);
        let right = solve(&problem);
        for broken in [f32::NAN, f32::INFINITY, right[77] + 1e-5, 0.0] {
            let mut out = right.clone();
            out[9_000] = 10.0;
            out[77] = broken;
            assert_eq!(problem.check(&out).unwrap_err().item, 77, "{broken}");
        }
        let mut shifted = right.clone();
        shifted.rotate_left(1);
        assert_eq!(problem.check(&shifted).unwrap_err().item, 0);
        assert_eq!(problem.check(&right[1..]).unwrap_err().item, TINY.items - 1);
    }

    #[test]
    fn seeds_and_vectors_differ() {
        let problem = Problem::generate(TINY, 1);
        assert_ne!(problem.x, problem.y);
        assert_ne!(problem, Problem::generate(TINY, 2));
        assert_eq!(problem, Problem::generate(TINY, 1));
    }

    proptest! {
        #[test]
        fn packages_give_the_bytes_of_the_whole(items in 0_u64..50_000, seed: u64, cuts in packages::cuts()) {
            let problem = Problem::generate(Size { items }, seed);
            let whole = solve(&problem);
            problem.check(&whole).unwrap();
            let mut out = vec![f32::NAN; whole.len()];
            for package in packages::split(items, &cuts) {
                let elements = package.start as usize..package.end as usize;
                host(
                    Team::global(),
                    package.clone(),
                    problem.alpha,
                    &problem.x[elements.clone()],
                    &problem.y[elements],
                    packages::part(&mut out, &package, 1),
                );
            }
            prop_assert!(out.iter().zip(&whole).all(|(left, right)| left.to_bits() == right.to_bits()));
        }
    }
}
