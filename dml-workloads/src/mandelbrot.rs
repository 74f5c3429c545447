//! Mandelbrot: an escape-time picture, an irregular workload without input buffers.
//!
//! ```text
//!   item i ──▶ pixels 4i .. 4i+4 of the row ──▶ iterations each (f32) ──▶ palette ──▶ out[4i .. 4i+4]
//! ```
//!
//! Invariants:
//!
//! 1. **Counts are bit-identical everywhere.** Host and devices execute the same single-precision operations
//!    in the same order, without contraction.
//! 2. **Kernels compute colours from counts by integer arithmetic alone**, so the check compares whole
//!    pictures byte by byte.
//! 3. **The width is a multiple of four**, so the pixels of an item lie in one row.
//!
//! # Source
//! The irregular benchmark of the co-execution papers, which ported it from the AMD APP SDK.

use crate::check::{Mismatch, Value};
use crate::jobs;
use crate::picture::Picture;
use crate::prepare::{Arguments, Groups, Input, Kind, Outputs, PrepareError, Program, Recipe, memory_for};
use dml_arenas::launch::{Call, ComputeError, Team};
use dml_scheduler::Footprint;
use rayon::prelude::*;
use std::ops::Range;
use thiserror::Error;

mod reference;

/// Work-items of one OpenCL work-group.
pub const LOCAL_SIZE: u64 = 256;

/// Horizontally adjacent pixels of one item.
pub const PIXELS_PER_ITEM: u64 = 4;

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `global uchar4* out`, `uint width`, `uint height`, `uint max_iterations`, `float left`,
/// `float top`, `float step`, `ulong end` (the kernel skips items from `end` on). The buffer is whole. The
/// global offset is the first item of the package.
pub const OPENCL_SOURCE: &str = include_str!("kernels/mandelbrot.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/mandelbrot.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "mandelbrot";

/// Maximum number of iterations of [`Problem::of_items`]. The papers do not publish theirs.
pub const MAX_ITERATIONS: u32 = 1024;

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Work-items of four pixels each.
    pub items: u64,
    /// Iterations after which a point counts as inside.
    pub max_iterations: u32,
}

/// Size for tests: takes milliseconds, and is no multiple of the local size.
pub const TINY: Size = Size { items: 1_201, max_iterations: 100 };
/// Takes about a second on one core.
pub const SMALL: Size = Size { items: 2_430_000, max_iterations: MAX_ITERATIONS };
/// The published 70.3 million items: 19360 x 14525 pixels.
pub const PAPER: Size = Size { items: 70_301_000, max_iterations: MAX_ITERATIONS };

/// Pixels that the host kernel iterates in parallel lanes.
///
/// Without AVX these are two vectors of four, because there are only sixteen registers. With wider vectors,
/// sixteen lanes hide the latency of one chain of operations.
const LANES: usize = if cfg!(target_feature = "avx") { 16 } else { 8 };

/// Iterations between two checks for an active lane.
const BURST: u32 = 8;

/// Maximum number of pixels per job of the host kernel: so few that no straggler delays the package.
const PIXELS_PER_JOB: usize = 512;

/// The colours that counts cycle through, sixteen steps between two of them.
const PALETTE: [[u8; 3]; 16] = [
    [66, 30, 15],
    [25, 7, 26],
    [9, 1, 47],
    [4, 4, 73],
    [0, 7, 100],
    [12, 44, 138],
    [24, 82, 177],
    [57, 125, 209],
    [134, 181, 229],
    [211, 236, 248],
    [241, 233, 191],
    [248, 201, 95],
    [255, 170, 0],
    [204, 128, 0],
    [153, 87, 0],
    [106, 52, 3],
];

/// Colour of points inside, and of pixels that no item covers.
const BLACK: [u8; 4] = [0, 0, 0, 255];

/// Why a problem cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MandelbrotError {
    /// The pixels of an item would lie in two rows.
    #[error("a mandelbrot picture {width} pixels wide cannot be cut into items of 4 pixels")]
    WidthNotMultipleOfFour {
        /// The width in pixels.
        width: u32,
    },
    /// An edge has more pixels than single precision can number exactly.
    #[error(
        "a mandelbrot picture of {width} x {height} pixels is too large: at most {largest_edge} each way"
    )]
    PictureTooLarge {
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
        /// The limit, [`Problem::LARGEST_EDGE`].
        largest_edge: u32,
    },
    /// There are more items than a picture may have.
    #[error("{items} mandelbrot items are too many: at most {largest_items}")]
    TooManyItems {
        /// The requested number of items.
        items: u64,
        /// The limit, [`Problem::LARGEST_ITEMS`].
        largest_items: u64,
    },
}

/// The view that a run computes, its only input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    items: u64,
    width: u32,
    height: u32,
    max_iterations: u32,
    left: f32,
    top: f32,
    step: f32,
}

impl Problem {
    /// Maximum edge in pixels. Numbers of pixels are then exact in single precision.
    pub const LARGEST_EDGE: u32 = 1 << 24;
    /// Maximum number of items of [`Problem::of_items`]: 64 GiB of pixels.
    pub const LARGEST_ITEMS: u64 = 1 << 32;

    /// Makes the classic view of the whole set, on a full picture.
    ///
    /// # Errors
    /// [`MandelbrotError::WidthNotMultipleOfFour`] and [`MandelbrotError::PictureTooLarge`].
    pub fn new(width: u32, height: u32, max_iterations: u32) -> Result<Self, MandelbrotError> {
        if !u64::from(width).is_multiple_of(PIXELS_PER_ITEM) {
            return Err(MandelbrotError::WidthNotMultipleOfFour { width });
        }
        if width.max(height) > Self::LARGEST_EDGE {
            let largest_edge = Self::LARGEST_EDGE;
            return Err(MandelbrotError::PictureTooLarge { width, height, largest_edge });
        }
        // 3.2 x 2.4 around -0.7. One of them is larger if the picture is not 4:3.
        let step = (3.2 / f64::from(width.max(1))).max(2.4 / f64::from(height.max(1)));
        let half = |pixels: u32| (f64::from(pixels) - 1.0) / 2.0 * step;
        Ok(Self {
            items: u64::from(width) / PIXELS_PER_ITEM * u64::from(height),
            width,
            height,
            max_iterations,
            left: (-0.7 - half(width)) as f32,
            top: half(height) as f32,
            step: step as f32,
        })
    }

    /// Makes the classic view with exactly `items` items and [`MAX_ITERATIONS`], near 4:3.
    ///
    /// If `items` divides into full rows of a picture near 4:3, the picture is full. Otherwise its last row
    /// is covered in part.
    ///
    /// ```
    /// use dml_workloads::mandelbrot::Problem;
    ///
    /// let problem = Problem::of_items(1_000_003)?;
    /// assert_eq!(problem.items(), 1_000_003);
    /// assert_eq!((problem.width(), problem.height()), (2308, 1734));
    /// # Ok::<(), dml_workloads::mandelbrot::MandelbrotError>(())
    /// ```
    ///
    /// # Errors
    /// [`MandelbrotError::TooManyItems`].
    ///
    /// # Complexity
    /// O(sqrt(items)), to search for a divisor.
    pub fn of_items(items: u64) -> Result<Self, MandelbrotError> {
        let largest_items = Self::LARGEST_ITEMS;
        if items > largest_items {
            return Err(MandelbrotError::TooManyItems { items, largest_items });
        }
        let items_per_row = items_per_row(items);
        let width = (items_per_row * PIXELS_PER_ITEM) as u32;
        let height = if items == 0 { 0 } else { items.div_ceil(items_per_row) as u32 };
        Ok(Self { items, ..Self::new(width, height, MAX_ITERATIONS)? })
    }

    /// Makes the classic view in a given size.
    ///
    /// # Errors
    /// The errors of [`Problem::of_items`].
    pub fn of_size(size: Size) -> Result<Self, MandelbrotError> {
        Ok(Self { max_iterations: size.max_iterations, ..Self::of_items(size.items)? })
    }

    /// Makes a view from the arguments of a kernel: width and height in pixels, the iterations after which a
    /// point counts as inside, the real part of the leftmost and the imaginary part of the topmost points,
    /// and the distance between adjacent points.
    ///
    /// # Errors
    /// The errors of [`Problem::new`].
    pub fn of_view(
        (width, height): (u32, u32),
        max_iterations: u32,
        (left, top): (f32, f32),
        step: f32,
    ) -> Result<Self, MandelbrotError> {
        Ok(Self { left, top, step, ..Self::new(width, height, max_iterations)? })
    }

    /// Returns the number of items, four pixels each.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Returns the number of pixels that items cover. An output has as many elements.
    #[must_use]
    pub fn pixels(&self) -> u64 {
        self.items * PIXELS_PER_ITEM
    }

    /// Returns the width of the picture in pixels, a multiple of four.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the height of the picture in pixels. Its last row may be covered in part.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the iterations after which a point counts as inside.
    #[must_use]
    pub fn max_iterations(&self) -> u32 {
        self.max_iterations
    }

    /// Returns the real part of the leftmost points.
    #[must_use]
    pub fn left(&self) -> f32 {
        self.left
    }

    /// Returns the imaginary part of the topmost points.
    #[must_use]
    pub fn top(&self) -> f32 {
        self.top
    }

    /// Returns the distance between adjacent points.
    #[must_use]
    pub fn step(&self) -> f32 {
        self.step
    }

    /// Compares a whole output byte by byte with a reference, in the current rayon pool.
    ///
    /// The reference computes one point at a time and detects early that an orbit repeats. So it is much
    /// faster than the kernels, and equally exact.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong item, or with the lengths if they differ.
    pub fn check(&self, out: &[[u8; 4]]) -> Result<(), Mismatch> {
        Mismatch::of_length(
            "length of the mandelbrot output",
            self.pixels() as usize,
            out.len(),
            PIXELS_PER_ITEM,
        )?;
        let colours = reference::cycle_of_colours();
        let wrong = out.par_iter().with_min_len(64).enumerate().find_map_first(|(pixel, found)| {
            let expected = reference::pixel(self, pixel as u64, &colours);
            (expected != *found).then_some((pixel, expected, *found))
        });
        wrong.map_or(Ok(()), |(pixel, expected, found)| {
            Err(Mismatch {
                item: pixel as u64 / PIXELS_PER_ITEM,
                expected: Value::Pixel(expected),
                found: Value::Pixel(found),
                what: [
                    "first pixel of a mandelbrot item",
                    "second pixel of a mandelbrot item",
                    "third pixel of a mandelbrot item",
                    "fourth pixel of a mandelbrot item",
                ][pixel % PIXELS_PER_ITEM as usize],
            })
        })
    }

    /// Returns the picture of a whole output. Pixels that no item covers are black.
    ///
    /// # Panics
    /// When `out` does not have four pixels per item.
    #[must_use]
    pub fn picture(&self, out: &[[u8; 4]]) -> Picture {
        assert!(
            out.len() as u64 == self.pixels(),
            "a mandelbrot output of {} items has {} pixels, not {}",
            self.items,
            out.len(),
            self.pixels()
        );
        let mut pixels = Vec::with_capacity(self.width as usize * self.height as usize);
        pixels.extend_from_slice(out);
        pixels.resize(self.width as usize * self.height as usize, BLACK);
        Picture::new(self.width, self.height, pixels).expect("the pixels were just counted")
    }
}

/// Returns the row length, in items, of a picture near 4:3. The picture is full if a length within a quarter
/// of the ideal one allows it.
fn items_per_row(items: u64) -> u64 {
    // width = sqrt(pixels * 4/3) = sqrt(items * 16/3) in pixels, and a quarter of that in items.
    let ideal = (items as f64 / 3.0).sqrt().round() as u64;
    (0..=ideal / 4)
        .flat_map(|offset| [ideal - offset, ideal + offset])
        .find(|candidate| *candidate > 0 && items.is_multiple_of(*candidate))
        .unwrap_or(ideal)
        .max(u64::from(items > 0))
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are global item numbers; `out` holds exactly the four pixels of each of these items.
///
/// # Panics
/// When `out` does not have four pixels per item, or `items` ends beyond the problem.
pub fn host(team: &Team, items: Range<u64>, problem: &Problem, out: &mut [[u8; 4]]) {
    let count = items.end.saturating_sub(items.start);
    assert!(
        out.len() as u64 == count * PIXELS_PER_ITEM && (count == 0 || items.end <= problem.items),
        "mandelbrot of items {items:?} out of {}: out has {} pixels, not {}",
        problem.items,
        out.len(),
        count * PIXELS_PER_ITEM
    );
    let first_pixel = items.start * PIXELS_PER_ITEM;
    let pixels_per_job = jobs::length(team, out.len(), PIXELS_PER_JOB, LANES);
    team.for_each(out.chunks_mut(pixels_per_job).enumerate(), |(job, out)| {
        let pixel = first_pixel + (job * pixels_per_job) as u64;
        let mut row = (pixel / u64::from(problem.width)) as u32;
        let mut column = (pixel % u64::from(problem.width)) as u32;
        for block in out.chunks_mut(LANES) {
            let mut point_x = [0.0; LANES];
            let mut point_y = [0.0; LANES];
            for lane in 0..LANES {
                // Surplus lanes repeat the last pixel, so they take no longer than it does.
                let lane_of_pixel = lane.min(block.len() - 1);
                if lane == lane_of_pixel {
                    point_x[lane] = problem.left + problem.step * column as f32;
                    point_y[lane] = problem.top - problem.step * row as f32;
                    column += 1;
                    if column == problem.width {
                        column = 0;
                        row += 1;
                    }
                } else {
                    point_x[lane] = point_x[lane_of_pixel];
                    point_y[lane] = point_y[lane_of_pixel];
                }
            }
            let iterations = iterate(&point_x, &point_y, problem.max_iterations);
            for (pixel, iterations) in block.iter_mut().zip(iterations) {
                *pixel = colour_of(iterations, problem.max_iterations);
            }
        }
    });
}

/// Returns the iterations of [`LANES`] points before they leave the circle of radius two, at most
/// `max_iterations`.
fn iterate(point_x: &[f32; LANES], point_y: &[f32; LANES], max_iterations: u32) -> [u32; LANES] {
    let mut x = [0.0_f32; LANES];
    let mut y = [0.0_f32; LANES];
    // All ones until a lane leaves the circle. Then it stays zero, even if rounding brings the point back.
    let mut active = [u32::MAX; LANES];
    let mut iterations = [0_u32; LANES];
    let mut done = 0;
    while done < max_iterations {
        let burst = BURST.min(max_iterations - done);
        for _ in 0..burst {
            for lane in 0..LANES {
                let x_squared = x[lane] * x[lane];
                let y_squared = y[lane] * y[lane];
                active[lane] &= u32::from(x_squared + y_squared <= 4.0).wrapping_neg();
                iterations[lane] = iterations[lane].wrapping_sub(active[lane]);
                y[lane] = (x[lane] + x[lane]) * y[lane] + point_y[lane];
                x[lane] = (x_squared - y_squared) + point_x[lane];
            }
        }
        done += burst;
        if active.iter().all(|mask| *mask == 0) {
            break;
        }
    }
    iterations
}

/// Returns the colour of a count, by integer arithmetic.
fn colour_of(iterations: u32, max_iterations: u32) -> [u8; 4] {
    if iterations >= max_iterations {
        return BLACK;
    }
    let phase = (iterations.wrapping_mul(4).wrapping_add(56)) & 255;
    let from = PALETTE[(phase >> 4) as usize];
    let to = PALETTE[((phase >> 4) + 1) as usize & 15];
    let share = phase & 15;
    let channel =
        |from: u8, to: u8| ((u32::from(from) * (16 - share) + u32::from(to) * share + 8) >> 4) as u8;
    [channel(from[0], to[0]), channel(from[1], to[1]), channel(from[2], to[2]), 255]
}

/// Size of an item's pixels, in bytes.
const ITEM_BYTES: u64 = PIXELS_PER_ITEM * 4;

impl Recipe for Problem {
    const NAME: &'static str = "mandelbrot";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const KIND: Kind = Kind::Irregular;
    const LARGEST_PUBLISHED: u64 = 70_300_000;
    const MAKES_PICTURE: bool = true;

    fn of(input: &Input<'_>) -> Result<Self, PrepareError> {
        let of_items = |items| Size { items, max_iterations: MAX_ITERATIONS };
        // No limit here: `of_size` has its own error for too many items.
        let problem = Self::of_size(input.pick::<Self, _>([TINY, SMALL, PAPER], u64::MAX, of_items)?)?;
        memory_for::<Self>(problem.items().saturating_mul(ITEM_BYTES * 2))?;
        Ok(problem)
    }

    fn items(&self) -> u64 {
        self.items()
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("items", self.items()),
            ("width", self.width().into()),
            ("height", self.height().into()),
            ("max_iterations", self.max_iterations().into()),
        ]
    }

    fn groups(&self) -> Groups {
        Groups::Line(LOCAL_SIZE)
    }

    fn arguments(&self) -> Arguments<'_> {
        Arguments::default()
            .write_part::<[u8; 4]>(self.pixels(), Footprint::one_to_one(ITEM_BYTES))
            .scalar(self.width())
            .scalar(self.height())
            .scalar(self.max_iterations())
            .scalar(self.left())
            .scalar(self.top())
            .scalar(self.step())
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let (size, corner) = ((call.scalar(1)?, call.scalar(2)?), (call.scalar(4)?, call.scalar(5)?));
        let view = Self::of_view(size, call.scalar(3)?, corner, call.scalar(6)?)?;
        host(team, items, &view, call.part(0)?.slice_mut()?);
        Ok(())
    }

    fn judge(&self, outputs: &Outputs<'_>) -> Result<(), Mismatch> {
        self.check(&outputs.of(0))
    }

    fn draw(&self, outputs: &Outputs<'_>) -> Option<Picture> {
        Some(self.picture(&outputs.of(0)))
    }
}

#[cfg(test)]
mod tests;
