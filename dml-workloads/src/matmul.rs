//! Matmul: the product of two square matrices, tile by tile.
//!
//! ```text
//!   package of items (= rows of out)
//!   a[rows] ──┐
//!   b (all) ──┴─▶ a * b ──▶ out[rows]        one item = one row of `edge` elements
//! ```
//!
//! Invariants:
//!
//! 1. **Every sum is exact.** The elements are integers so small that sums of all products have at most 24
//!    bits, which single precision represents exactly. So neither the order of the sums nor contraction
//!    changes a bit, and the check requires the exact value.
//! 2. **Any edge is legal.** Tiles are padded with zeros beyond the matrix.
//!
//! # Source
//! "Abstract Representation of Shared Data for Heterogeneous Computing", table 1: 512 x 512 elements.

use crate::check::{Mismatch, Value};
use crate::jobs;
use crate::prepare::{Arguments, Groups, Input, Outputs, PrepareError, Program, Recipe, memory_for};
use crate::random;
use dml_arenas::launch::{Call, ComputeError, Team};
use dml_scheduler::Footprint;
use rayon::prelude::*;
use std::ops::Range;
use thiserror::Error;

/// Work-items of one OpenCL work-group: columns and rows of a tile.
pub const LOCAL_SIZE: [u64; 2] = [16, 16];

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `global const float* a`, `global const float* b`, `global float* out`, `uint edge`,
/// `ulong end` (the kernel skips rows from `end` on). Work-items have two dimensions: columns, and rows from
/// the first of the package on. The buffers are whole.
pub const OPENCL_SOURCE: &str = include_str!("kernels/matmul.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/matmul.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "matmul";

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Rows and columns of each matrix.
    pub edge: u64,
}

/// Size for tests: takes milliseconds, and is no multiple of a tile.
pub const TINY: Size = Size { edge: 61 };
/// Takes about a second on one core.
pub const SMALL: Size = Size { edge: 1536 };
/// The published size.
pub const PAPER: Size = Size { edge: 512 };

/// Columns of a strip, and of the block of `out` that the host kernel sums in registers.
const STRIP: usize = 8;
/// Rows of that block.
const BLOCK: usize = 4;
/// Rows of `b` packed at a time for one strip: 8 KiB, which stay in the L1 cache.
const DEPTH: usize = 256;
/// Maximum number of rows of `out` per task. A task packs all of `b` for its rows.
const ROWS_PER_TASK: usize = 64;

/// Bits of the integers that single precision represents exactly.
const EXACT_BITS: u32 = f32::MANTISSA_DIGITS;

/// The matrices are too large for exact sums in single precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a matrix of edge {edge} is too large: at most {}", Problem::LARGEST_EDGE)]
pub struct TooLarge {
    /// The requested edge.
    pub edge: u64,
}

/// The inputs of one product.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    edge: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Problem {
    /// Maximum number of rows and columns. Elements are then integers from -16 to 16.
    pub const LARGEST_EDGE: u64 = 1 << 15;

    /// Draws two matrices, in parallel.
    ///
    /// ```
    /// use dml_arenas::launch::Team;
    /// use dml_workloads::matmul::{self, Problem};
    ///
    /// let problem = Problem::generate(matmul::TINY, 42)?;
    /// let mut out = vec![0.0; problem.a().len()];
    /// matmul::host(Team::global(), 0..problem.items(), problem.items(), problem.a(), problem.b(), &mut out);
    /// problem.check(&out)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TooLarge`] above [`LARGEST_EDGE`](Self::LARGEST_EDGE).
    pub fn generate(size: Size, seed: u64) -> Result<Self, TooLarge> {
        let Size { edge } = size;
        if edge > Self::LARGEST_EDGE {
            return Err(TooLarge { edge });
        }
        let largest = largest_element(edge);
        let matrix = |stream| {
            let seed = random::stream(seed, stream);
            let element = |index| (random::word(seed, index) % (2 * largest + 1)) as f32 - largest as f32;
            (0..edge * edge).into_par_iter().map(element).collect()
        };
        Ok(Self { edge: edge as usize, a: matrix(1), b: matrix(2) })
    }

    /// Returns the number of items: one per row of the product, which has as many columns.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.edge as u64
    }

    /// Returns the first matrix, row-major.
    #[must_use]
    pub fn a(&self) -> &[f32] {
        &self.a
    }

    /// Returns the second matrix, row-major.
    #[must_use]
    pub fn b(&self) -> &[f32] {
        &self.b
    }

    /// Compares a whole product exactly with dot products of integers.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first row that has a wrong element, or with the lengths if they differ.
    pub fn check(&self, out: &[f32]) -> Result<(), Mismatch> {
        let edge = self.edge;
        Mismatch::of_length("length of the matmul output", self.a.len(), out.len(), edge.max(1) as u64)?;
        if edge == 0 {
            return Ok(());
        }
        // The transpose of b, so that a dot product reads both operands sequentially.
        let columns: Vec<i16> =
            (0..edge * edge).map(|index| self.b[index % edge * edge + index / edge] as i16).collect();
        let wrong = out.par_chunks(edge).enumerate().find_map_first(|(row, out)| {
            let a: Vec<i16> = self.a[row * edge..][..edge].iter().map(|element| *element as i16).collect();
            let dot = |column: &[i16]| -> i32 {
                a.iter().zip(column).map(|(left, right)| i32::from(*left) * i32::from(*right)).sum()
            };
            let mut pairs = out.iter().zip(columns.chunks_exact(edge));
            let differs = |(found, column): (&f32, &[i16])| {
                let (expected, found) = (f64::from(dot(column)), f64::from(*found));
                (found != expected).then_some((row, expected, found))
            };
            pairs.find_map(differs)
        });
        wrong.map_or(Ok(()), |(row, expected, found)| {
            let (expected, found) = (Value::Real(expected), Value::Real(found));
            Err(Mismatch { item: row as u64, expected, found, what: "row of the matmul output" })
        })
    }
}

/// Returns the largest element: a power of two that limits a sum of `edge` products to [`EXACT_BITS`] bits.
fn largest_element(edge: u64) -> u64 {
    let edge_bits = edge.max(1).next_power_of_two().trailing_zeros();
    1 << ((EXACT_BITS - edge_bits) / 2)
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are rows. `a` and `out` hold exactly these rows, and `b` is whole. All rows have `edge` elements.
///
/// # Panics
/// When the length of a slice differs from the one above.
pub fn host(team: &Team, items: Range<u64>, edge: u64, a: &[f32], b: &[f32], out: &mut [f32]) {
    let count = items.end.saturating_sub(items.start);
    let (part, whole) = (count * edge, edge * edge);
    assert!(
        a.len() as u64 == part && out.len() as u64 == part && b.len() as u64 == whole,
        "matmul of rows {items:?} of {edge}: a has {}, b {} and out {} elements, not {part}, {whole} and {part}",
        a.len(),
        b.len(),
        out.len()
    );
    let edge = edge as usize;
    if part == 0 {
        return;
    }
    if count as usize >= team.threads() * ROWS_PER_TASK {
        let tasks = out.chunks_mut(ROWS_PER_TASK * edge).zip(a.chunks(ROWS_PER_TASK * edge));
        team.for_each(tasks, |(out, a)| tile(a, b, edge, 0..edge, out));
        return;
    }
    // With so few rows, packing would be most of the work. So each job takes some columns of them and
    // computes these in a tile of its own, which is copied to `out` afterwards.
    let tasks = a.len().div_ceil(ROWS_PER_TASK * edge);
    let columns = jobs::length(team, edge * tasks, edge.next_multiple_of(STRIP), STRIP);
    let tiles: Vec<(&[f32], Range<usize>)> = a
        .chunks(ROWS_PER_TASK * edge)
        .flat_map(|a| (0..edge).step_by(columns).map(move |from| (a, from..edge.min(from + columns))))
        .collect();
    let mut parts: Vec<Vec<f32>> =
        tiles.iter().map(|(a, columns)| vec![0.0; a.len() / edge * columns.len()]).collect();
    team.for_each(tiles.iter().zip(&mut parts), |((a, columns), part)| {
        tile(a, b, edge, columns.clone(), part)
    });
    let across = edge.div_ceil(columns);
    team.for_each(out.chunks_mut(edge).enumerate(), |(row, out)| {
        let of_row = row / ROWS_PER_TASK * across..;
        for ((_, columns), part) in tiles[of_row.clone()].iter().zip(&parts[of_row]).take(across) {
            let width = columns.len();
            out[columns.clone()].copy_from_slice(&part[row % ROWS_PER_TASK * width..][..width]);
        }
    });
}

/// Computes some rows and columns of the product, strip by strip. `out` holds exactly these.
///
/// The rows of a strip of `b` lie a whole row of the matrix apart, and a large matrix fits in no cache. A
/// packed strip is read sequentially. It is packed once for all rows of the tile.
fn tile(a: &[f32], b: &[f32], edge: usize, columns: Range<usize>, out: &mut [f32]) {
    let mut packed = [[0.0; STRIP]; DEPTH];
    let across = columns.len();
    out.fill(0.0);
    for first in (0..edge).step_by(DEPTH) {
        let depth = DEPTH.min(edge - first);
        for column in columns.clone().step_by(STRIP) {
            let width = STRIP.min(columns.end - column);
            for (packed, row) in packed.iter_mut().zip(b[first * edge..].chunks_exact(edge)) {
                packed[..width].copy_from_slice(&row[column..][..width]);
            }
            let place = column - columns.start;
            for (out, a) in out.chunks_mut(BLOCK * across).zip(a.chunks(BLOCK * edge)) {
                // A block of fewer rows computes its last one repeatedly.
                let last = out.len() / across - 1;
                let a = std::array::from_fn(|row| &a[row.min(last) * edge + first..][..depth]);
                for (row, sums) in out.chunks_exact_mut(across).zip(block(a, &packed[..depth])) {
                    row[place..][..width].iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
                }
            }
        }
    }
}

/// Returns the products of segments of rows of `a` with a packed strip of `b`.
fn block(a: [&[f32]; BLOCK], packed: &[[f32; STRIP]]) -> [[f32; STRIP]; BLOCK] {
    let mut sums = [[0.0; STRIP]; BLOCK];
    let [first, second, third, fourth] = a;
    for ((((row, first), second), third), fourth) in
        packed.iter().zip(first).zip(second).zip(third).zip(fourth)
    {
        for (sums, element) in sums.iter_mut().zip([first, second, third, fourth]) {
            sums.iter_mut().zip(row).for_each(|(sum, factor)| *sum += element * factor);
        }
    }
    sums
}

/// Seed of the co-executed inputs. Its value is arbitrary.
const SEED: u64 = 0x3A7;

impl Recipe for Problem {
    const NAME: &'static str = "matmul";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const LARGEST_PUBLISHED: u64 = 4868;

    fn of(input: &Input<'_>) -> Result<Self, PrepareError> {
        let sizes = [TINY, SMALL, PAPER];
        let size = input.pick::<Self, _>(sizes, Self::LARGEST_EDGE, |edge| Size { edge })?;
        memory_for::<Self>(size.edge * size.edge * 5 * size_of::<f32>() as u64)?;
        Ok(Self::generate(size, SEED).expect("the size has been checked"))
    }

    fn items(&self) -> u64 {
        self.items()
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![("items", self.items()), ("edge", self.items())]
    }

    fn groups(&self) -> Groups {
        Groups::Rows { columns: self.items(), local: LOCAL_SIZE }
    }

    fn arguments(&self) -> Arguments<'_> {
        let row = || Footprint::one_to_one(self.items() * size_of::<f32>() as u64);
        Arguments::default()
            .read_part(&self.a, row())
            .read_all(&self.b)
            .write_part::<f32>(self.a.len() as u64, row())
            .scalar(self.edge as u32)
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let edge: u32 = call.scalar(3)?;
        let [a, b, out] = call.parts([0, 1, 2])?;
        host(team, items, edge.into(), a.slice()?, b.slice()?, out.slice_mut()?);
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

    fn problem(edge: u64, seed: u64) -> Problem {
        Problem::generate(Size { edge }, seed).unwrap()
    }

    fn solve(problem: &Problem) -> Vec<f32> {
        let mut out = vec![f32::NAN; problem.a.len()];
        host(Team::global(), 0..problem.items(), problem.items(), &problem.a, &problem.b, &mut out);
        out
    }

    #[test]
    fn host_output_passes_the_check_at_every_awkward_size() {
        for edge in [0, 1, 15, 16, 17, TINY.edge, 257] {
            let problem = problem(edge, edge);
            problem.check(&solve(&problem)).unwrap();
        }
    }

    #[test]
    fn sums_of_the_largest_elements_are_exact() {
        for edge in [1, 2, 61, 512, 513, Problem::LARGEST_EDGE] {
            let largest = largest_element(edge);
            assert!(edge * largest * largest <= 1 << EXACT_BITS, "{edge}");
            assert!(largest >= 16, "{edge}: elements up to {largest} are too small");
        }
        let too_large = Problem::generate(Size { edge: Problem::LARGEST_EDGE + 1 }, 1);
        assert_eq!(too_large, Err(TooLarge { edge: Problem::LARGEST_EDGE + 1 }));
    }

    #[test]
    fn check_rejects_the_smallest_error_of_any_one_element() {
        let problem = problem(TINY.edge, 5);
        let right = solve(&problem);
        let last = right.len() - 1;
        for index in [0, 1, last / 2, last - 1, last] {
            let value = right[index];
            for wrong in [value.next_up(), value.next_down(), value + 1.0, f32::NAN, f32::INFINITY] {
                let mut out = right.clone();
                out[index] = wrong;
                let row = index as u64 / TINY.edge;
                assert_eq!(problem.check(&out).unwrap_err().item, row, "{index} {wrong}");
            }
        }
    }

    #[test]
    fn check_rejects_shifted_transposed_missing_and_foreign_items() {
        let small = problem(TINY.edge, 6);
        let right = solve(&small);
        let edge = TINY.edge as usize;
        let mut shifted = right.clone();
        shifted.rotate_left(1);
        assert_eq!(small.check(&shifted).unwrap_err().item, 0);
        let transposed: Vec<f32> =
            (0..edge * edge).map(|index| right[index % edge * edge + index / edge]).collect();
        assert!(small.check(&transposed).is_err());
        assert_eq!(small.check(&right[1..]).unwrap_err().item, TINY.edge - 1);
        assert!(small.check(&solve(&problem(TINY.edge, 7))).is_err());
    }

    #[test]
    fn seeds_and_matrices_differ() {
        let small = problem(TINY.edge, 1);
        assert_ne!(small.a, small.b);
        assert_ne!(small, problem(TINY.edge, 2));
        assert_eq!(small, problem(TINY.edge, 1));
    }

    proptest! {
        #[test]
        fn packages_give_the_bytes_of_the_whole(edge in 0_u64..70, seed: u64, cuts in packages::cuts()) {
            let problem = problem(edge, seed);
            let whole = solve(&problem);
            problem.check(&whole).unwrap();
            let mut out = vec![f32::NAN; whole.len()];
            for package in packages::split(edge, &cuts) {
                let elements = (package.start * edge) as usize..(package.end * edge) as usize;
                let out = packages::part(&mut out, &package, edge as usize);
                host(Team::global(), package, edge, &problem.a[elements], &problem.b, out);
            }
            prop_assert!(out.iter().zip(&whole).all(|(left, right)| left.to_bits() == right.to_bits()));
        }
    }
}
