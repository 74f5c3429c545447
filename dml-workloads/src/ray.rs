//! Ray: a ray-traced picture of reflective spheres, an irregular workload.
//!
//! ```text
//!   scene (all) ──▶ item i: the ray of pixel i, from mirror to mirror ──▶ pixels[i]
//! ```
//!
//! The scene has 20 spheres on a ground of dark and light cells, under two lamps that cast shadows. A ray is
//! traced over at most five reflections.
//!
//! Invariants:
//!
//! 1. **Pixels are bit-identical everywhere.** Host and devices execute the same additions and products in
//!    single precision in the same order, without contraction. They use neither divisions nor the device's
//!    own roots: roots come from [`inverse_root`], which needs neither. So the check compares whole pictures
//!    byte by byte, although the smallest rounding decides whether a ray hits a sphere.
//! 2. **Every pixel terminates, for any contents of the scene**: the number of reflections is limited.
//!
//! # Source
//! The irregular benchmark of the co-execution papers, with one buffer read and one written: 3072 x 3072
//! pixels, 17 primitives and more, depth 5, groups of 128. Their scenes are not published.

use crate::check::{Mismatch, Value};
use crate::jobs;
use crate::picture::Picture;
use crate::prepare::{Arguments, Groups, Input, Kind, Outputs, PrepareError, Program, Recipe, memory_for};
use crate::random;
use dml_arenas::launch::{Call, ComputeError, Team};
use rayon::prelude::*;
use std::ops::Range;

mod reference;

/// Work-items of one OpenCL work-group.
pub const LOCAL_SIZE: u64 = 128;

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `global const float4* scene` (two vectors for each [`Thing`]), `global uchar4* pixels`,
/// `uint things`, `uint width`, `uint depth`, `float half_width`, `float half_height`, `float step`,
/// `ulong end` (the kernel skips items from `end` on). The buffers are whole. The global offset is the first
/// item of the package.
pub const OPENCL_SOURCE: &str = include_str!("kernels/ray.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/ray.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "ray";

/// Published maximum number of reflections of a ray.
pub const DEPTH: u32 = 5;

/// One thing of a scene: x, y, z and radius; red, green, blue and the share of the light that it reflects.
///
/// The first thing of a scene is the camera, with the tilt of its view in place of a radius, and with the
/// colour of the sky. A negative radius marks a lamp, and a radius of zero marks the ground, at height y.
pub type Thing = [f32; 8];

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Pixels of an approximately square picture, row by row.
    pub items: u64,
}

/// Size for tests: takes milliseconds, is no multiple of the local size, and has a last row that is not full.
pub const TINY: Size = Size { items: 2_503 };
/// Takes about a second on one core.
pub const SMALL: Size = Size { items: 1024 * 1024 };
/// The published size.
pub const PAPER: Size = Size { items: 3072 * 3072 };

/// Distance between a surface and the origin of a ray that leaves it. Also the minimum distance of a hit.
const NEAR: f32 = 0.002;
/// Maximum distance of a visible thing.
const FAR: f32 = 200.0;
/// Minimum downward component of a direction that hits the ground.
const LEAST_FALL: f32 = 0.0001;
/// Ambient light, the only light in a shadow.
const AMBIENT: f32 = 0.12;
/// Share of the light that the dark cells of the ground reflect.
const DARK: f32 = 0.35;
/// Minimum weight of a ray in its pixel. A channel has 255 steps.
const LEAST_WEIGHT: f32 = 0.004;
/// Columns and rows of spheres.
const SPHERES: [u64; 2] = [5, 4];
/// Maximum number of pixels per job of the host kernel: so few that no straggler delays the package.
const PIXELS_PER_JOB: usize = 128;

/// A view of a scene.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    items: u64,
    view: View,
    scene: Vec<Thing>,
}

/// The mapping from pixels to rays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Pixels per row.
    pub width: u32,
    /// Maximum number of reflections of a ray.
    pub depth: u32,
    /// Column and row of the picture's centre.
    pub middle: [f32; 2],
    /// Distance between adjacent pixels on a plane at distance 1.
    pub step: f32,
}

impl Problem {
    /// Maximum number of items. A picture of this many pixels can be read back.
    pub const LARGEST_ITEMS: u64 = Picture::LARGEST_PIXELS;

    /// Draws a scene with a view of exactly `size.items` pixels.
    ///
    /// ```
    /// use dml_arenas::launch::Team;
    /// use dml_workloads::ray::{self, Problem};
    ///
    /// let problem = Problem::generate(ray::TINY, 42);
    /// let mut pixels = vec![[0; 4]; problem.items() as usize];
    /// ray::host(Team::global(), 0..problem.items(), problem.scene(), problem.view(), &mut pixels);
    /// problem.check(&pixels)?;
    /// # Ok::<(), dml_workloads::check::Mismatch>(())
    /// ```
    ///
    /// # Panics
    /// When there are more than [`LARGEST_ITEMS`](Self::LARGEST_ITEMS).
    #[must_use]
    pub fn generate(size: Size, seed: u64) -> Self {
        let items = size.items;
        assert!(items <= Self::LARGEST_ITEMS, "a ray picture of {items} pixels is too large");
        let width = ((items as f64).sqrt().ceil() as u64).max(1);
        let height = items.div_ceil(width);
        let middle = [width, height].map(|edge| (edge.saturating_sub(1) as f64 / 2.0) as f32);
        let view = View { width: width as u32, depth: DEPTH, middle, step: (1.5 / width as f64) as f32 };
        Self { items, view, scene: scene(seed) }
    }

    /// Returns the number of items: one per pixel.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Returns the view.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the height of the picture in pixels. Its last row may be covered in part.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.items.div_ceil(self.view.width.into()) as u32
    }

    /// Returns the scene, with the camera first.
    #[must_use]
    pub fn scene(&self) -> &[Thing] {
        &self.scene
    }

    /// Compares a whole output byte by byte with a reference, in the current rayon pool.
    ///
    /// The reference traces a ray recursively, and finds all hits before it takes the nearest one. It is
    /// generic over the number type. A test compares pictures with the reference in double precision, with
    /// true roots.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong item, or with the lengths if they differ.
    pub fn check(&self, pixels: &[[u8; 4]]) -> Result<(), Mismatch> {
        Mismatch::of_length("length of the ray output", self.items as usize, pixels.len(), 1)?;
        let scene = reference::Scene::<f32>::of(&self.scene);
        let wrong = pixels.par_iter().with_min_len(64).enumerate().find_map_first(|(item, found)| {
            let expected = scene.pixel(&self.view, item as u64);
            (expected != *found).then_some((item, expected, *found))
        });
        wrong.map_or(Ok(()), |(item, expected, found)| {
            let (expected, found) = (Value::Pixel(expected), Value::Pixel(found));
            Err(Mismatch { item: item as u64, expected, found, what: "pixel of ray" })
        })
    }

    /// Returns the picture of a whole output. Pixels that no item covers are black.
    ///
    /// # Panics
    /// When `pixels` does not have one pixel per item.
    #[must_use]
    pub fn picture(&self, pixels: &[[u8; 4]]) -> Picture {
        let count = pixels.len() as u64;
        assert!(count == self.items, "a ray output of {} items has {count} pixels", self.items);
        let mut all = pixels.to_vec();
        all.resize(self.view.width as usize * self.height() as usize, [0, 0, 0, 255]);
        Picture::new(self.view.width, self.height(), all).expect("the pixels were just counted")
    }
}

/// Draws a scene: a camera, two lamps, the ground, and spheres on it or above it.
fn scene(seed: u64) -> Vec<Thing> {
    let mut scene = vec![
        [0.0, 2.4, -7.0, 0.16, 0.30, 0.50, 0.85, 0.0],
        [-6.0 + random::signed_unit(seed, 1), 9.0, -5.0, -1.0, 0.75, 0.72, 0.65, 0.0],
        [7.0 + random::signed_unit(seed, 2), 6.0, -3.0, -1.0, 0.28, 0.32, 0.40, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.85, 0.83, 0.78, 0.15],
    ];
    for number in 0..SPHERES[0] * SPHERES[1] {
        let drawn = |stream, from: f32, to: f32| {
            from + (to - from) * random::unit(random::stream(seed, stream), number)
        };
        let (column, row) = (number % SPHERES[0], number / SPHERES[0]);
        let radius = drawn(1, 0.35, 0.85);
        let above = if number % 3 == 0 { drawn(2, 0.2, 1.2) } else { 0.0 };
        let x = (column as f32 - (SPHERES[0] - 1) as f32 / 2.0) * 2.0 + drawn(3, -0.5, 0.5);
        let z = row as f32 * 2.1 + drawn(4, -0.5, 0.5);
        let [red, green, blue] = [5, 6, 7].map(|stream| drawn(stream, 0.15, 1.0));
        scene.push([x, radius + above, z, radius, red, green, blue, drawn(8, 0.1, 0.8)]);
    }
    scene
}

type Vector = [f32; 3];

fn inner(a: Vector, b: Vector) -> f32 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

/// Returns `a + b * by` for each component.
fn along(a: Vector, b: Vector, by: f32) -> Vector {
    [a[0] + b[0] * by, a[1] + b[1] * by, a[2] + b[2] * by]
}

fn difference(a: Vector, b: Vector) -> Vector {
    [a[0] - b[0], a[1] - b[1], a[2] - b[2]]
}

fn scaled(a: Vector, by: f32) -> Vector {
    [a[0] * by, a[1] * by, a[2] * by]
}

fn place(thing: &Thing) -> Vector {
    [thing[0], thing[1], thing[2]]
}

fn look(thing: &Thing) -> Vector {
    [thing[4], thing[5], thing[6]]
}

/// Returns the reciprocal square root of a positive number, to about 22 bits. It takes four Newton steps from
/// an initial guess, which it derives from the number's bits.
///
/// It uses only additions and products, so every device computes the same bits.
#[must_use]
pub fn inverse_root(value: f32) -> f32 {
    let half_of_it = 0.5 * value;
    let mut guess = f32::from_bits(0x5F37_59DF_u32.wrapping_sub(value.to_bits() >> 1));
    for _ in 0..4 {
        guess *= 1.5 - half_of_it * guess * guess;
    }
    guess
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are global item numbers; `pixels` holds exactly these items. `scene` is whole.
///
/// # Panics
/// When `pixels` does not have one pixel per item, or there are items but no camera, or no width.
pub fn host(team: &Team, items: Range<u64>, scene: &[Thing], view: &View, pixels: &mut [[u8; 4]]) {
    let count = items.end.saturating_sub(items.start);
    assert!(
        pixels.len() as u64 == count && (count == 0 || !scene.is_empty() && view.width > 0),
        "ray of items {items:?}: {} pixels, not {count}, of a scene of {} things, {} pixels a row",
        pixels.len(),
        scene.len(),
        view.width
    );
    let pixels_per_job = jobs::length(team, pixels.len(), PIXELS_PER_JOB, 1);
    team.for_each(pixels.chunks_mut(pixels_per_job).enumerate(), |(job, pixels)| {
        let first = items.start + (job * pixels_per_job) as u64;
        for (item, pixel) in (first..).zip(pixels) {
            *pixel = pixel_of(item, scene, view);
        }
    });
}

/// Returns the nearest thing in a direction and its distance, if that is less than `limit`.
fn first_on(scene: &[Thing], from: Vector, way: Vector, limit: f32) -> Option<(usize, f32)> {
    let (mut first, mut nearest) = (None, limit);
    for (index, thing) in scene.iter().enumerate().skip(1) {
        let radius = thing[3];
        let distance = if radius < 0.0 {
            continue;
        } else if radius == 0.0 {
            let fall = -way[1];
            let root = inverse_root(fall);
            if fall > LEAST_FALL { (from[1] - thing[1]) * root * root } else { continue }
        } else {
            let away = difference(from, place(thing));
            let along = inner(away, way);
            let rest = inner(away, away) - radius * radius;
            let square = along * along - rest;
            let root = square * inverse_root(square);
            let entry = -along - root;
            match square > 0.0 {
                true if entry > NEAR => entry,
                true => root - along,
                false => continue,
            }
        };
        if distance > NEAR && distance < nearest {
            nearest = distance;
            first = Some(index);
        }
    }
    first.map(|first| (first, nearest))
}

/// Traces the ray of a pixel, and returns its colour.
fn pixel_of(item: u64, scene: &[Thing], view: &View) -> [u8; 4] {
    let camera = &scene[0];
    let column = (item % u64::from(view.width)) as u32 as f32;
    let row = (item / u64::from(view.width)) as u32 as f32;
    let [across, down] = [(column - view.middle[0]) * view.step, (view.middle[1] - row) * view.step];
    let mut from = place(camera);
    let mut way = [across, down - camera[3], 1.0];
    way = scaled(way, inverse_root(inner(way, way)));
    let mut colour = [0.0_f32; 3];
    let mut weight = 1.0_f32;
    for _ in 0..=view.depth {
        let Some((met, distance)) = first_on(scene, from, way, FAR) else {
            let haze = 1.0 - way[1].max(0.0);
            for (channel, sky) in colour.iter_mut().zip(look(camera)) {
                *channel += weight * (sky + (1.0 - sky) * (haze * haze));
            }
            break;
        };
        let thing = &scene[met];
        let point = along(from, way, distance);
        let (normal, shade) = surface(thing, point);
        let outside = along(point, normal, NEAR);
        let (light, gleam) = lit(scene, point, outside, normal, way);
        let mirror = thing[7];
        for (channel, (look, light)) in colour.iter_mut().zip(look(thing).into_iter().zip(light)) {
            *channel += weight * (1.0 - mirror) * (look * shade * light);
            *channel += weight * gleam;
        }
        weight *= mirror;
        if weight < LEAST_WEIGHT {
            break;
        }
        way = difference(way, scaled(normal, 2.0 * inner(way, normal)));
        way = scaled(way, inverse_root(inner(way, way)));
        from = outside;
    }
    let [red, green, blue] = colour.map(|channel| (channel.clamp(0.0, 1.0) * 255.0 + 0.5) as u32 as u8);
    [red, green, blue, 255]
}

/// Returns the surface normal of a thing at a point, and the share of the light that the surface reflects
/// there.
fn surface(thing: &Thing, point: Vector) -> (Vector, f32) {
    if thing[3] == 0.0 {
        let cell = (point[0].floor() as i32).wrapping_add(point[2].floor() as i32);
        return ([0.0, 1.0, 0.0], if cell & 1 != 0 { DARK } else { 1.0 });
    }
    let normal = difference(point, place(thing));
    (scaled(normal, inverse_root(inner(normal, normal))), 1.0)
}

/// Returns the light at a point in each colour, and the specular highlights of the lamps there.
fn lit(scene: &[Thing], point: Vector, outside: Vector, normal: Vector, way: Vector) -> (Vector, f32) {
    let (mut light, mut gleam) = ([AMBIENT; 3], 0.0);
    for lamp in scene.iter().skip(1).filter(|thing| thing[3] < 0.0) {
        let mut to_lamp = difference(place(lamp), point);
        let square = inner(to_lamp, to_lamp);
        let inverse = inverse_root(square);
        to_lamp = scaled(to_lamp, inverse);
        let facing = inner(normal, to_lamp);
        if facing > 0.0 && first_on(scene, outside, to_lamp, square * inverse).is_none() {
            light = along(light, look(lamp), facing);
            let mirrored = difference(scaled(normal, 2.0 * facing), to_lamp);
            let mut shine = (-inner(mirrored, way)).max(0.0);
            // The specular exponent is 32.
            for _ in 0..5 {
                shine *= shine;
            }
            gleam += shine * lamp[4];
        }
    }
    (light, gleam)
}

/// Seed of the co-executed scene. Its value is arbitrary.
const SEED: u64 = 0x5CE1E;

impl Recipe for Problem {
    const NAME: &'static str = "ray";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const KIND: Kind = Kind::Irregular;
    const LARGEST_PUBLISHED: u64 = PAPER.items;
    const MAKES_PICTURE: bool = true;

    fn of(input: &Input<'_>) -> Result<Self, PrepareError> {
        let size =
            input.pick::<Self, _>([TINY, SMALL, PAPER], Self::LARGEST_ITEMS, |items| Size { items })?;
        // The pixels, and the picture made from them.
        memory_for::<Self>(size.items * 2 * size_of::<[u8; 4]>() as u64)?;
        Ok(Self::generate(size, SEED))
    }

    fn items(&self) -> u64 {
        self.items
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("items", self.items),
            ("width", self.view.width.into()),
            ("height", self.height().into()),
            ("depth", self.view.depth.into()),
            ("things", self.scene.len() as u64),
        ]
    }

    fn groups(&self) -> Groups {
        Groups::Line(LOCAL_SIZE)
    }

    fn arguments(&self) -> Arguments<'_> {
        Arguments::default()
            .read_all(&self.scene)
            .write::<[u8; 4]>(self.items)
            .scalar(self.scene.len() as u32)
            .scalar(self.view.width)
            .scalar(self.view.depth)
            .scalar(self.view.middle[0])
            .scalar(self.view.middle[1])
            .scalar(self.view.step)
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let middle = [call.scalar(5)?, call.scalar(6)?];
        let view = View { width: call.scalar(3)?, depth: call.scalar(4)?, middle, step: call.scalar(7)? };
        let [scene, pixels] = call.parts([0, 1])?;
        host(team, items, scene.slice()?, &view, pixels.slice_mut()?);
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
