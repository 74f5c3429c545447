//! Vecadd: `out[i] = a[i] + b[i]`, two vectors in and one out.
//!
//! ```text
//!   a[items] ─┐
//!   b[items] ─┴─▶ a + b ──▶ out[items]        one item = one element
//! ```
//!
//! The elements are multiples of 2^-23 in `-1.0..1.0`. So every sum is exact in single precision on every
//! device, and the check requires the exact value.
//!
//! # Source
//! "Abstract Representation of Shared Data for Heterogeneous Computing", table 1: two vectors of a million
//! elements.

use crate::check::{Mismatch, Value};
use crate::prepare::{Arguments, Groups, Input, Outputs, PrepareError, Program, Recipe, memory_for};
use crate::random;
use dml_arenas::launch::{Call, ComputeError, Team};
use rayon::prelude::*;
use std::ops::Range;

/// Work-items of one OpenCL work-group.
pub const LOCAL_SIZE: u64 = 64;

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `global const float* a`, `global const float* b`, `global float* out`, `ulong end` (the
/// kernel skips items from `end` on). The buffers are whole. The global offset is the first item of the
/// package.
pub const OPENCL_SOURCE: &str = include_str!("kernels/vecadd.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/vecadd.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "vecadd";

/// Elements of one job of the host kernel: three slices of 64 KiB.
const ELEMENTS_PER_JOB: usize = 16 * 1024;

/// Reciprocal of the step between elements: every element is a multiple of `1.0 / UNITS_PER_ONE`.
const UNITS_PER_ONE: f32 = (1 << 23) as f32;

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Elements of each vector.
    pub items: u64,
}

/// Size for tests: takes milliseconds, and is no multiple of the local size.
pub const TINY: Size = Size { items: 10_007 };
/// Ten times the published size, 120 MB in three vectors.
pub const SMALL: Size = Size { items: 10_000_000 };
/// The published size, 12 MB in three vectors.
pub const PAPER: Size = Size { items: 1_000_000 };

/// The inputs of one addition.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Problem {
    /// Draws two vectors of `size.items` elements, in parallel.
    ///
    /// ```
    /// use dml_arenas::launch::Team;
    /// use dml_workloads::vecadd::{self, Problem};
    ///
    /// let problem = Problem::generate(vecadd::TINY, 42);
    /// let mut out = vec![0.0; problem.a().len()];
    /// vecadd::host(Team::global(), 0..problem.items(), problem.a(), problem.b(), &mut out);
    /// problem.check(&out)?;
    /// # Ok::<(), dml_workloads::check::Mismatch>(())
    /// ```
    #[must_use]
    pub fn generate(size: Size, seed: u64) -> Self {
        let vector = |stream| {
            let seed = random::stream(seed, stream);
            (0..size.items).into_par_iter().map(|index| random::signed_unit(seed, index)).collect()
        };
        Self { a: vector(1), b: vector(2) }
    }

    /// Returns the number of items: one per element.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.a.len() as u64
    }

    /// Returns the first vector.
    #[must_use]
    pub fn a(&self) -> &[f32] {
        &self.a
    }

    /// Returns the second vector.
    #[must_use]
    pub fn b(&self) -> &[f32] {
        &self.b
    }

    /// Compares a whole output exactly with sums of integers.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong element, or with the lengths if they differ.
    pub fn check(&self, out: &[f32]) -> Result<(), Mismatch> {
        Mismatch::of_length("length of the vecadd output", self.a.len(), out.len(), 1)?;
        let units = |value: f32| (value * UNITS_PER_ONE) as i32;
        let wrong = (0..out.len()).into_par_iter().with_min_len(ELEMENTS_PER_JOB).find_map_first(|index| {
            let sum = units(self.a[index]) + units(self.b[index]);
            let expected = f64::from(sum) / f64::from(UNITS_PER_ONE);
            let found = f64::from(out[index]);
            (found != expected).then_some((index, expected, found))
        });
        wrong.map_or(Ok(()), |(index, expected, found)| {
            let (expected, found) = (Value::Real(expected), Value::Real(found));
            Err(Mismatch { item: index as u64, expected, found, what: "vecadd output" })
        })
    }
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are global item numbers; `a`, `b` and `out` hold exactly the elements of these items.
///
/// # Panics
/// When a slice does not have one element per item.
pub fn host(team: &Team, items: Range<u64>, a: &[f32], b: &[f32], out: &mut [f32]) {
    let count = items.end.saturating_sub(items.start);
    assert!(
        [a.len(), b.len(), out.len()].iter().all(|length| *length as u64 == count),
        "vecadd of items {items:?}: a has {}, b {} and out {} elements, not {count}",
        a.len(),
        b.len(),
        out.len()
    );
    let inputs = a.chunks(ELEMENTS_PER_JOB).zip(b.chunks(ELEMENTS_PER_JOB));
    team.for_each(out.chunks_mut(ELEMENTS_PER_JOB).zip(inputs), |(out, (a, b))| {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a + b;
        }
    });
}

/// Seed of the co-executed inputs. Its value is arbitrary.
const SEED: u64 = 0xADD;
/// Maximum number of items. Three vectors of them still fit in a 64-bit address space.
const LARGEST_ITEMS: u64 = 1 << 40;

impl Recipe for Problem {
    const NAME: &'static str = "vecadd";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const LARGEST_PUBLISHED: u64 = 1 << 20;

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
        Arguments::default().read(&self.a).read(&self.b).write::<f32>(self.items())
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let [a, b, out] = call.parts([0, 1, 2])?;
        host(team, items, a.slice()?, b.slice()?, out.slice_mut()?);
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
        let mut out = vec![f32::NAN; problem.a.len()];
        host(Team::global(), 0..problem.items(), &problem.a, &problem.b, &mut out);
        out
    }

    #[test]
    fn host_output_passes_the_check_at_every_awkward_size() {
        for items in [0, 1, 63, 64, 65, 16 * 1024 + 1, TINY.items] {
            let problem = Problem::generate(Size { items }, items);
            problem.check(&solve(&problem)).unwrap();
        }
    }

    #[test]
    fn check_rejects_the_smallest_error_of_any_one_item() {
        let problem = Problem::generate(TINY, 5);
        let right = solve(&problem);
        let last = right.len() - 1;
        for item in [0, 1, last / 2, last - 1, last] {
            let value = right[item];
            for wrong in [value.next_up(), value.next_down(), f32::NAN, f32::INFINITY, problem.a[item]] {
                let mut out = right.clone();
                out[item] = wrong;
                assert_eq!(problem.check(&out).unwrap_err().item, item as u64, "{wrong}");
            }
        }
    }

    #[test]
    fn check_rejects_shifted_missing_and_foreign_items() {
        let problem = Problem::generate(TINY, 6);
        let right = solve(&problem);
        let mut shifted = right.clone();
        shifted.rotate_left(1);
        assert_eq!(problem.check(&shifted).unwrap_err().item, 0);
        assert_eq!(problem.check(&right[1..]).unwrap_err().item, TINY.items - 1);
        assert_eq!(problem.check(&solve(&Problem::generate(TINY, 7))).unwrap_err().item, 0);
    }

    #[test]
    fn seeds_and_vectors_differ() {
        let problem = Problem::generate(TINY, 1);
        assert_ne!(problem.a, problem.b);
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
                let (a, b) = (&problem.a[elements.clone()], &problem.b[elements]);
                host(Team::global(), package.clone(), a, b, packages::part(&mut out, &package, 1));
            }
            prop_assert!(out.iter().zip(&whole).all(|(left, right)| left.to_bits() == right.to_bits()));
        }
    }
}
