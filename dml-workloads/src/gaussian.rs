//! Gaussian: a picture blurred with a large square filter, a regular, compute-bound workload.
//!
//! ```text
//!   package of items (= pixels of out, row-major)
//!        │ input_pixels: its rows, and `radius` more above and below
//!        ▼
//!   image part ──┐
//!   weights ─────┴─▶ full square convolution, f32, edges clamped ──▶ out[items]
//! ```
//!
//! Invariants:
//!
//! 1. **The filter has an odd edge**, `2 * radius + 1`, so that it has a centre.
//! 2. **The order of a pixel's sum does not depend on its package.** The host sums row by row, left to right.
//! 3. **The convolution is not separated** into a horizontal and a vertical one, because the workload is
//!    meant to be compute-bound. Only the check separates it.
//!
//! # Source
//! The benchmark of the co-execution papers (RGBA picture 5120 x 5120, filter 61); sigma is a sixth of the
//! filter.

use crate::check::{Mismatch, Value};
use crate::jobs;
use crate::picture::Picture;
use crate::prepare::{Arguments, Groups, Input, Outputs, PrepareError, Program, Recipe, memory_for};
use crate::scene;
use dml_arenas::launch::{Call, ComputeError, Team};
use dml_scheduler::Footprint;
use std::ops::Range;
use thiserror::Error;

mod reference;

/// Work-items of one OpenCL work-group.
pub const LOCAL_SIZE: u64 = 128;

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `global const uchar4* image`, `global const float* weights`, `global uchar4* out`,
/// `uint width`, `uint height`, `uint radius`, `ulong end` (the kernel skips items from `end` on). The
/// buffers are whole. The global offset is the first item of the package.
pub const OPENCL_SOURCE: &str = include_str!("kernels/gaussian.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/gaussian.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "gaussian";

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// The picture's width in pixels.
    pub width: u32,
    /// The picture's height in pixels.
    pub height: u32,
    /// The edge of the filter in pixels, odd.
    pub filter: u32,
}

/// Size for tests: takes milliseconds, and is no multiple of the local size.
pub const TINY: Size = Size { width: 67, height: 45, filter: 9 };
/// Takes about a second on one core.
pub const SMALL: Size = Size { width: 1200, height: 900, filter: 61 };
/// The published size.
pub const PAPER: Size = Size { width: 5120, height: 5120, filter: 61 };

/// Pixels that the host kernel sums in parallel: eight vector registers of sums, of four or eight lanes each.
const TILE: usize = if cfg!(target_feature = "avx") { 16 } else { 8 };

/// Maximum number of pixels per job of the host kernel. A row of them in single precision, with its halo,
/// stays in the L1 cache.
const PIXELS_PER_JOB: usize = 256;

/// Why a problem cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GaussianError {
    /// A filter with an even edge has no centre.
    #[error("a gaussian filter of edge {filter} has no centre: the edge must be odd")]
    EvenFilter {
        /// The edge in pixels.
        filter: u32,
    },
    /// The filter is so large that sums in single precision lose the precision that the check needs.
    #[error("a gaussian filter of edge {filter} is too large: at most {largest_filter}")]
    FilterTooLarge {
        /// The edge in pixels.
        filter: u32,
        /// The limit, [`Problem::LARGEST_FILTER`].
        largest_filter: u32,
    },
    /// The picture has more pixels than can be read or drawn.
    #[error("a gaussian picture of {width} x {height} pixels is too large: at most {largest_pixels} pixels")]
    PictureTooLarge {
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
        /// The limit, [`Picture::LARGEST_PIXELS`].
        largest_pixels: u64,
    },
}

/// The picture and the filter of one blur.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    picture: Picture,
    radius: u32,
    weights: Vec<f32>,
}

impl Problem {
    /// Maximum edge of a filter, in pixels.
    pub const LARGEST_FILTER: u32 = 255;

    /// Makes a problem that blurs a given picture.
    ///
    /// # Errors
    /// [`GaussianError::EvenFilter`], [`GaussianError::FilterTooLarge`] and
    /// [`GaussianError::PictureTooLarge`].
    pub fn from_picture(picture: Picture, filter: u32) -> Result<Self, GaussianError> {
        expect_pixels(picture.width(), picture.height())?;
        Ok(Self { weights: weights(filter)?, radius: filter / 2, picture })
    }

    /// Makes a problem that blurs a picture drawn from a seed.
    ///
    /// ```
    /// use dml_arenas::launch::Team;
    /// use dml_workloads::gaussian::{self, Problem};
    ///
    /// let problem = Problem::generate(64, 48, 7, 42)?;
    /// let mut out = vec![[0; 4]; 10];
    /// let package = 100..110;
    /// let input = gaussian::input_pixels(package.clone(), 64, 48, problem.radius());
    /// gaussian::host(
    ///     Team::global(),
    ///     package,
    ///     problem.width(),
    ///     problem.height(),
    ///     problem.radius(),
    ///     problem.weights(),
    ///     &problem.image()[input.start as usize..input.end as usize],
    ///     input.start,
    ///     &mut out,
    /// );
    /// # Ok::<(), gaussian::GaussianError>(())
    /// ```
    ///
    /// # Errors
    /// [`GaussianError::EvenFilter`], [`GaussianError::FilterTooLarge`] and
    /// [`GaussianError::PictureTooLarge`].
    pub fn generate(width: u32, height: u32, filter: u32, seed: u64) -> Result<Self, GaussianError> {
        expect_pixels(width, height)?;
        let weights = weights(filter)?;
        let picture = Picture::new(width, height, scene::draw(width, height, seed))
            .expect("a scene has `width * height` pixels");
        Ok(Self { picture, radius: filter / 2, weights })
    }

    /// Makes a problem of a given size that blurs a picture drawn from a seed.
    ///
    /// # Errors
    /// The errors of [`Problem::generate`].
    pub fn of_size(size: Size, seed: u64) -> Result<Self, GaussianError> {
        Self::generate(size.width, size.height, size.filter, seed)
    }

    /// Returns the number of items: one per pixel.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.picture.pixels().len() as u64
    }

    /// Returns the picture that is blurred.
    #[must_use]
    pub fn picture(&self) -> &Picture {
        &self.picture
    }

    /// Returns the pixels that are blurred, row-major.
    #[must_use]
    pub fn image(&self) -> &[[u8; 4]] {
        self.picture.pixels()
    }

    /// Returns the picture's width in pixels.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.picture.width()
    }

    /// Returns the picture's height in pixels.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.picture.height()
    }

    /// Returns the number of the filter's pixels on each side of its centre.
    #[must_use]
    pub fn radius(&self) -> u32 {
        self.radius
    }

    /// Returns the weights of the filter, row-major: `(2 * radius + 1)^2` of them, whose sum is one.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Compares a whole output with a separated blur in double precision, in the current rayon pool.
    ///
    /// A channel may be off by one, because each kernel rounds single-precision sums in its own order.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong pixel, or with the lengths if they differ.
    pub fn check(&self, out: &[[u8; 4]]) -> Result<(), Mismatch> {
        Mismatch::of_length("length of the gaussian output", self.image().len(), out.len(), 1)?;
        reference::first_difference(self, out).map_or(Ok(()), |difference| {
            Err(Mismatch {
                item: difference.pixel as u64,
                expected: Value::Pixel(difference.expected),
                found: Value::Pixel(out[difference.pixel]),
                what: "blurred pixel (tolerance 1)",
            })
        })
    }
}

fn expect_pixels(width: u32, height: u32) -> Result<(), GaussianError> {
    let largest_pixels = Picture::LARGEST_PIXELS;
    if u64::from(width) * u64::from(height) > largest_pixels {
        return Err(GaussianError::PictureTooLarge { width, height, largest_pixels });
    }
    Ok(())
}

/// Returns the weights of a square filter, row-major, normalised in double precision.
///
/// # Errors
/// [`GaussianError::EvenFilter`] and [`GaussianError::FilterTooLarge`].
pub fn weights(filter: u32) -> Result<Vec<f32>, GaussianError> {
    if filter.is_multiple_of(2) {
        return Err(GaussianError::EvenFilter { filter });
    }
    let largest_filter = Problem::LARGEST_FILTER;
    if filter > largest_filter {
        return Err(GaussianError::FilterTooLarge { filter, largest_filter });
    }
    let sigma = f64::from(filter) / 6.0;
    let radius = i64::from(filter / 2);
    let densities: Vec<f64> = (-radius..=radius)
        .flat_map(|down| (-radius..=radius).map(move |across| (down * down + across * across) as f64))
        .map(|distance_squared| (-distance_squared / (2.0 * sigma * sigma)).exp())
        .collect();
    let sum: f64 = densities.iter().sum();
    Ok(densities.iter().map(|density| (density / sum) as f32).collect())
}

/// Returns the pixels of the picture that a package reads: the rows of its items, and up to `radius` rows
/// above and below.
///
/// # Shape and units
/// Global pixel numbers, whole rows; empty for a package without items.
#[must_use]
pub fn input_pixels(items: Range<u64>, width: u32, height: u32, radius: u32) -> Range<u64> {
    if items.is_empty() || width == 0 || height == 0 {
        return 0..0;
    }
    let width = u64::from(width);
    let first_row = (items.start / width).saturating_sub(u64::from(radius));
    let last_row = ((items.end - 1) / width + u64::from(radius)).min(u64::from(height) - 1);
    first_row * width..(last_row + 1) * width
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are global item numbers, and `out` holds exactly their pixels. `image` is a part of the picture in
/// whole rows. It begins at pixel `image_first_pixel` and holds at least [`input_pixels`].
///
/// # Panics
/// When the length of a slice differs from the one above, `items` ends beyond the picture, or `image` begins
/// inside a row.
#[allow(
    clippy::too_many_arguments,
    reason = "the argument list of the OpenCL kernel, and where the parts begin"
)]
pub fn host(
    team: &Team,
    items: Range<u64>,
    width: u32,
    height: u32,
    radius: u32,
    weights: &[f32],
    image: &[[u8; 4]],
    image_first_pixel: u64,
    out: &mut [[u8; 4]],
) {
    let count = items.end.saturating_sub(items.start);
    assert!(
        out.len() as u64 == count,
        "gaussian of items {items:?}: out has {} pixels, not {count}",
        out.len()
    );
    if count == 0 {
        return;
    }
    let edge = 2 * radius as usize + 1;
    let input = input_pixels(items.clone(), width, height, radius);
    let image_end = image_first_pixel + image.len() as u64;
    assert!(
        items.end <= u64::from(width) * u64::from(height)
            && weights.len() == edge * edge
            && image_first_pixel.is_multiple_of(u64::from(width))
            && image_first_pixel <= input.start
            && input.end <= image_end,
        "gaussian of items {items:?} of {width} x {height} pixels, radius {radius}: it reads pixels {input:?} and has \
         {image_first_pixel}..{image_end}, and {} weights",
        weights.len()
    );
    let view = View {
        width: width as usize,
        last_row: height as usize - 1,
        radius: radius as usize,
        weights,
        image,
        first_row: (image_first_pixel / u64::from(width)) as usize,
    };
    let pixels_per_job = jobs::length(team, out.len(), PIXELS_PER_JOB, TILE);
    team.for_each_init(
        out.chunks_mut(pixels_per_job).enumerate(),
        Scratch::default,
        |scratch, (job, mut out)| {
            let mut pixel = items.start as usize + job * pixels_per_job;
            while !out.is_empty() {
                let (row, column) = (pixel / view.width, pixel % view.width);
                let (segment, rest) = out.split_at_mut(out.len().min(view.width - column));
                pixel += segment.len();
                view.blur(row, column, segment, scratch);
                out = rest;
            }
        },
    );
}

/// Scratch buffers of a thread, allocated once for all its segments.
#[derive(Default)]
struct Scratch {
    /// The pixels of one row that a segment reads, clamped at the edges.
    row: Vec<[f32; 4]>,
    /// The sums of a segment.
    sums: Vec<[[f32; 4]; TILE]>,
}

/// The part of the picture that a package reads.
struct View<'a> {
    width: usize,
    last_row: usize,
    radius: usize,
    weights: &'a [f32],
    image: &'a [[u8; 4]],
    /// Row of the picture at which `image` begins.
    first_row: usize,
}

impl View<'_> {
    /// Blurs the pixels of one row from `column` on.
    fn blur(&self, row: usize, column: usize, out: &mut [[u8; 4]], scratch: &mut Scratch) {
        let edge = 2 * self.radius + 1;
        let tiles = out.len().div_ceil(TILE);
        let Scratch { row: pixels, sums } = scratch;
        sums.clear();
        sums.resize(tiles, [[0.0; 4]; TILE]);
        for (down, weights) in self.weights.chunks_exact(edge).enumerate() {
            let input_row = (row + down).saturating_sub(self.radius).min(self.last_row);
            self.load(input_row, column, tiles * TILE + edge - 1, pixels);
            for (tile, sums) in sums.iter_mut().enumerate() {
                let mut tile_sums = *sums;
                let window = &pixels[tile * TILE..tile * TILE + TILE + edge - 1];
                for (window, weight) in window.array_windows::<TILE>().zip(weights) {
                    for (sums, pixel) in tile_sums.iter_mut().zip(window) {
                        for (sum, channel) in sums.iter_mut().zip(pixel) {
                            *sum += weight * channel;
                        }
                    }
                }
                *sums = tile_sums;
            }
        }
        for (pixel, sum) in out.iter_mut().zip(sums.as_flattened()) {
            // The conversion saturates.
            *pixel = sum.map(|channel| (channel + 0.5) as u8);
        }
    }

    /// Converts `count` pixels of a row, from `radius` pixels left of `column` on, clamped at the edges.
    fn load(&self, row: usize, column: usize, count: usize, pixels: &mut Vec<[f32; 4]>) {
        let row = &self.image[(row - self.first_row) * self.width..][..self.width];
        let before = self.radius.saturating_sub(column).min(count);
        let first = column.saturating_sub(self.radius);
        let inside = &row[first..self.width.min(first + count - before)];
        let convert = |pixel: &[u8; 4]| pixel.map(f32::from);
        pixels.clear();
        pixels.resize(before, convert(&row[0]));
        pixels.extend(inside.iter().map(convert));
        pixels.resize(count, convert(&row[self.width - 1]));
    }
}

/// Seed of the drawn picture. Its value is arbitrary.
const SEED: u64 = 0x6A_55;
/// Edge of the published filter, in pixels.
const FILTER: u32 = 61;
const PIXEL_BYTES: u64 = 4;

impl Recipe for Problem {
    const NAME: &'static str = "gaussian";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const LARGEST_PUBLISHED: u64 = PAPER.width as u64;
    const SIZE_IS_EDGE: bool = true;
    const TAKES_PICTURE: bool = true;
    const MAKES_PICTURE: bool = true;

    fn of(input: &Input<'_>) -> Result<Self, PrepareError> {
        if let Input::Picture(path) = *input {
            return Ok(Self::from_picture(Picture::read(path)?, FILTER)?);
        }
        let limit = (Picture::LARGEST_PIXELS as f64).sqrt() as u64;
        let of_edge = |edge| Size { width: edge as u32, height: edge as u32, filter: FILTER };
        let size = input.pick::<Self, _>([TINY, SMALL, PAPER], limit, of_edge)?;
        memory_for::<Self>(u64::from(size.width) * u64::from(size.height) * PIXEL_BYTES * 4)?;
        Ok(Self::of_size(size, SEED)?)
    }

    fn items(&self) -> u64 {
        self.items()
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("items", self.items()),
            ("width", self.width().into()),
            ("height", self.height().into()),
            ("filter", u64::from(self.radius()) * 2 + 1),
        ]
    }

    fn groups(&self) -> Groups {
        Groups::Line(LOCAL_SIZE)
    }

    fn arguments(&self) -> Arguments<'_> {
        let (width, height, radius) = (self.width(), self.height(), self.radius());
        // A package reads its own rows, and `radius` rows above and below.
        let rows = Footprint::rows(width.into(), u64::from(width) * PIXEL_BYTES, radius.into());
        Arguments::default()
            .read_part(self.image(), rows)
            .read_all(self.weights())
            .write::<[u8; 4]>(self.items())
            .scalar(width)
            .scalar(height)
            .scalar(radius)
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let (width, height, radius) = (call.scalar(3)?, call.scalar(4)?, call.scalar(5)?);
        let [image, weights, out] = call.parts([0, 1, 2])?;
        let first_pixel = image.span().start() / PIXEL_BYTES;
        let (weights, image) = (weights.slice()?, image.slice()?);
        host(team, items, width, height, radius, weights, image, first_pixel, out.slice_mut()?);
        Ok(())
    }

    fn judge(&self, outputs: &Outputs<'_>) -> Result<(), Mismatch> {
        self.check(&outputs.of(0))
    }

    fn draw(&self, outputs: &Outputs<'_>) -> Option<Picture> {
        Picture::new(self.width(), self.height(), outputs.of(0).to_vec()).ok()
    }
}

#[cfg(test)]
mod tests;
