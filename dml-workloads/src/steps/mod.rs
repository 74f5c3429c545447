//! Programs of repeated steps: stencils, and bodies that attract each other.
//!
//! ```text
//!   Steps::prepare ──▶ Program ──iterate()──▶ Iterate::run(n) ──▶ verify(n), picture(n)
//!                        └── reset: the first grids again
//! ```
//! A result is checked by its last step: the grids before it, which are still there, give every element once
//! more, by formulas that are written apart from the kernels. `prk`, which changes its grids in place, has a
//! norm that is known. So an error of an earlier step is found by comparing runs on different devices, whose
//! grids are equal bit by bit for all programs but `nbody`.
//!
//! # Source
//! - `jacobi`: "Algorithmic scheme for hybrid computing with CPU, Xeon-Phi/MIC and GPU devices on a single
//!   machine", 20,000 x 10,000 doubles.
//! - `stencil2d`, `stencil3d`, `nbody`: "Automatic OpenCL code generation for multi-device heterogeneous
//!   architectures", with 5 and 7 points.
//! - `prk`: the kernel Stencil of the Parallel Research Kernels, a star of radius 2.
//! - `gray-scott`: "Complex patterns in a simple system".

pub(crate) mod host;
pub(crate) mod reference;

use crate::check::Mismatch;
use crate::nbody;
use crate::picture::Picture;
use crate::prepare::{self, PrepareError, Source, VerifyError, filled, needs_memory};
use crate::random;
use bytemuck::Pod;
use dml_arenas::launch::{Call, ComputeError, Team};
use dml_core::{Access, AcquireError, Buffer, DeviceId, Platform};
use dml_scheduler::{Argument, Footprint, Iterate, Kernel};
use rayon::prelude::*;
use reference::{Element, Formula};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The seed of the first grids.
const SEED: u64 = 42;
/// Columns and rows, or rows and planes, of a work-group.
pub(crate) const LOCAL: [u64; 2] = [64, 4];
/// Least number of elements along an axis.
const LEAST: u64 = 5;
/// What a Gray-Scott system gains of the first substance, and loses of the second one, in a step.
const FEED: f32 = 0.0545;
const KILL: f32 = 0.062;

pub(crate) const OPENCL: &str =
    concat!(include_str!("../kernels/steps.cl"), include_str!("../kernels/steps.c"));
pub(crate) const CUDA: &str =
    concat!(include_str!("../kernels/steps.cu"), include_str!("../kernels/steps.c"));

const fn source(kernel: &'static str, compute: fn(&mut Call<'_>) -> Result<(), ComputeError>) -> Source {
    Source {
        name: kernel,
        opencl: prepare::Program { source: OPENCL, kernel },
        cuda: Some(prepare::Program { source: CUDA, kernel }),
        cuda_options: "--fmad=false",
        compute,
    }
}

/// The kernels, whose functions on the host offload workers run by name.
pub(crate) const SOURCES: [Source; 6] = [
    source("jacobi", host::jacobi),
    source("stencil2d", host::stencil2d),
    source("stencil3d", host::stencil3d),
    source("prk_star", host::prk_star),
    source("prk_add", host::prk_add),
    source("gray_scott", host::gray_scott),
];

/// A program of repeated steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Steps {
    /// The mean of five points, in double precision.
    Jacobi,
    /// A weighted mean of five points.
    Stencil2d,
    /// A weighted mean of seven points of a volume.
    Stencil3d,
    /// A star of radius 2 that is added to a grid, in double precision; then 1 is added to the other one.
    Prk,
    /// Bodies that attract each other.
    Nbody,
    /// Two substances that react and spread.
    GrayScott,
}

/// The size of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Size {
    /// Elements of a row, or bodies.
    pub columns: u64,
    /// Rows of a grid, or of a plane.
    pub rows: u64,
    /// Planes of a volume; 1 for the others.
    pub planes: u64,
    /// Steps.
    pub steps: u64,
}

/// No program has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown program {name}: there are {}", Steps::ALL.map(Steps::name).join(", "))]
pub struct UnknownSteps {
    /// The requested name.
    pub name: String,
}

impl Steps {
    /// Every program.
    pub const ALL: [Self; 6] =
        [Self::Jacobi, Self::Stencil2d, Self::Stencil3d, Self::Prk, Self::Nbody, Self::GrayScott];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jacobi => "jacobi",
            Self::Stencil2d => "stencil2d",
            Self::Stencil3d => "stencil3d",
            Self::Prk => "prk",
            Self::Nbody => "nbody-steps",
            Self::GrayScott => "gray-scott",
        }
    }

    /// Returns a size for tests, which takes milliseconds, and has no whole number of work-groups.
    #[must_use]
    pub const fn tiny(self) -> Size {
        match self {
            Self::Stencil3d => Size { columns: 19, rows: 17, planes: 23, steps: 12 },
            Self::Nbody => Size { columns: 701, rows: 1, planes: 1, steps: 5 },
            _ => Size { columns: 45, rows: 67, planes: 1, steps: 21 },
        }
    }

    /// Returns a size that takes about a second on two cores.
    #[must_use]
    pub const fn small(self) -> Size {
        match self {
            Self::Stencil3d => self.sized(192),
            Self::Nbody => Size { columns: 8192, rows: 1, planes: 1, steps: 20 },
            _ => Size { columns: 2000, rows: 2000, planes: 1, steps: 200 },
        }
    }

    /// Returns the published size.
    #[must_use]
    pub const fn paper(self) -> Size {
        match self {
            Self::Jacobi => Size { columns: 10_000, rows: 20_000, planes: 1, steps: 5000 },
            Self::Stencil2d => Size { columns: 4096, rows: 4096, planes: 1, steps: 10 },
            Self::Stencil3d => self.sized(512),
            Self::Prk => Size { columns: 10_000, rows: 10_000, planes: 1, steps: 10 },
            Self::Nbody => Size { columns: 32_768, rows: 1, planes: 1, steps: 10 },
            Self::GrayScott => Size { columns: 2048, rows: 2048, planes: 1, steps: 10_000 },
        }
    }

    /// Returns the size with so many elements along each axis, or bodies.
    #[must_use]
    pub const fn sized(self, edge: u64) -> Size {
        let (planes, rows) = match self {
            Self::Stencil3d => (edge, edge),
            Self::Nbody => (1, 1),
            _ => (1, edge),
        };
        Size { columns: edge, rows, planes, steps: 100 }
    }

    /// Returns whether the result is equal bit by bit on any devices.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        !matches!(self, Self::Nbody)
    }

    /// Makes the first grids, and kernels for these devices.
    ///
    /// # Errors
    /// [`PrepareError`] for an impossible size, or a device that cannot run the kernels.
    pub fn prepare(
        self,
        platform: &Platform,
        devices: &[DeviceId],
        size: Size,
    ) -> Result<Program, PrepareError> {
        Team::start_global()?;
        let elements = size.elements();
        // The kernels number rows and columns by 32 bits.
        let limit = 1 << 40;
        let longest = size.columns.max(size.rows).max(size.planes);
        if elements > limit || longest >= 1 << 31 {
            let size = elements.max(longest);
            return Err(PrepareError::Size { workload: self.name(), size, limit });
        }
        let shortest = match self {
            Self::Nbody => size.columns,
            Self::Stencil3d => size.columns.min(size.rows).min(size.planes),
            _ => size.columns.min(size.rows),
        };
        if shortest < LEAST {
            return Err(PrepareError::TooSmall { workload: self.name(), size: shortest, least: LEAST });
        }
        let bytes = if matches!(self, Self::Nbody) { 64 } else { 16 };
        // The grids, and their first contents.
        needs_memory(self.name(), elements.saturating_mul(2 * bytes))?;
        let builder = Builder { platform, devices, size };
        let (kernels, grids): (_, Box<dyn Grids>) = match self {
            Self::Jacobi => builder.star("jacobi", reference::jacobi)?,
            Self::Stencil2d => builder.star("stencil2d", reference::stencil2d)?,
            Self::Stencil3d => builder.star("stencil3d", reference::stencil3d)?,
            Self::Prk => builder.prk()?,
            Self::Nbody => builder.nbody()?,
            Self::GrayScott => builder.gray_scott()?,
        };
        Ok(Program { steps: self, size, kernels, grids })
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Steps {
    type Err = UnknownSteps;

    fn from_str(name: &str) -> Result<Self, UnknownSteps> {
        let found = Self::ALL.into_iter().find(|steps| steps.name() == name);
        found.ok_or_else(|| UnknownSteps { name: name.to_owned() })
    }
}

impl Size {
    /// Returns the number of elements of a grid.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.columns.saturating_mul(self.rows).saturating_mul(self.planes)
    }

    /// Returns the elements of an item of which strips consist.
    fn item(&self) -> u64 {
        if self.planes > 1 { self.columns * self.rows } else { self.columns }
    }

    fn items(&self) -> u64 {
        if self.planes > 1 { self.planes } else { self.rows }
    }
}

/// A program that is ready to run.
#[derive(Debug)]
pub struct Program {
    steps: Steps,
    size: Size,
    kernels: Vec<(Kernel, u64)>,
    grids: Box<dyn Grids>,
}

impl Program {
    /// Returns which program it is.
    #[must_use]
    pub fn steps(&self) -> Steps {
        self.steps
    }

    /// Returns its size.
    #[must_use]
    pub fn size(&self) -> Size {
        self.size
    }

    /// Returns the kernels of a step, each with its number of items.
    #[must_use]
    pub fn kernels(&self) -> &[(Kernel, u64)] {
        &self.kernels
    }

    /// Returns the steps, to be run on some devices.
    #[must_use]
    pub fn iterate<'a>(&'a self, platform: &'a Platform) -> Iterate<'a> {
        let iterate = Iterate::new(platform);
        let iterate =
            self.kernels.iter().fold(iterate, |iterate, (kernel, items)| iterate.step(kernel, *items));
        self.grids.swap(iterate)
    }

    /// Makes the first grids once more, valid on the host alone.
    ///
    /// # Errors
    /// The error that keeps the host from writing.
    pub fn reset(&self) -> Result<(), AcquireError> {
        self.grids.reset()
    }

    /// Checks the grids after some steps.
    ///
    /// # Errors
    /// [`VerifyError`] with the first wrong element.
    pub fn verify(&self, steps: u64) -> Result<(), VerifyError> {
        self.grids.verify(&self.size, steps)
    }

    /// Returns a number that depends on every bit of the grids after some steps.
    ///
    /// # Errors
    /// The error that keeps the host from reading.
    pub fn digest(&self, steps: u64) -> Result<u64, AcquireError> {
        self.grids.digest(steps)
    }

    /// Returns a picture of `gray-scott` after some steps; `None` for the others.
    ///
    /// # Errors
    /// The error that keeps the host from reading.
    pub fn picture(&self, steps: u64) -> Result<Option<Picture>, VerifyError> {
        match self.steps {
            Steps::GrayScott => Ok(Some(self.grids.picture(&self.size, steps)?)),
            _ => Ok(None),
        }
    }
}

/// The grids of a program.
trait Grids: fmt::Debug + Send + Sync {
    fn swap<'a>(&self, iterate: Iterate<'a>) -> Iterate<'a>;
    fn reset(&self) -> Result<(), AcquireError>;
    fn verify(&self, size: &Size, steps: u64) -> Result<(), VerifyError>;
    fn digest(&self, steps: u64) -> Result<u64, AcquireError>;
    fn picture(&self, size: &Size, steps: u64) -> Result<Picture, VerifyError>;
}

/// A function that checks grids after some steps: the newer ones of each pair, and the older ones.
type Check<T> = dyn Fn(&Size, u64, &[&[T]], &[&[T]]) -> Result<(), Mismatch> + Send + Sync;

/// Pairs of grids.
struct Pairs<T: Pod> {
    pairs: Vec<[Buffer<T>; 2]>,
    /// The first contents of the first grid of each pair. The other one begins with zeros.
    first: Vec<Vec<T>>,
    /// Whether the grids of a pair change places after each step.
    are_swapped: bool,
    check: Box<Check<T>>,
}

impl<T: Pod> fmt::Debug for Pairs<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pairs").field("pairs", &self.pairs).finish_non_exhaustive()
    }
}

impl<T: Pod + Send + Sync> Pairs<T> {
    fn new(
        platform: &Platform,
        first: Vec<Vec<T>>,
        are_swapped: bool,
        check: impl Fn(&Size, u64, &[&[T]], &[&[T]]) -> Result<(), Mismatch> + Send + Sync + 'static,
    ) -> Result<Self, PrepareError> {
        let pair = |first: &Vec<T>| {
            let other = vec![T::zeroed(); first.len()];
            Ok::<_, PrepareError>([filled(platform, first)?, filled(platform, &other)?])
        };
        let pairs = first.iter().map(pair).collect::<Result<_, _>>()?;
        Ok(Self { pairs, first, are_swapped, check: Box::new(check) })
    }

    /// Calls a function with the newer and the older grid of each pair.
    fn with<R>(&self, steps: u64, with: impl FnOnce(&[&[T]], &[&[T]]) -> R) -> Result<R, AcquireError> {
        let newer = usize::from(self.are_swapped && !steps.is_multiple_of(2));
        let views =
            |place: usize| self.pairs.iter().map(|pair| pair[place].read()).collect::<Result<Vec<_>, _>>();
        let (new, old) = (views(newer)?, views(1 - newer)?);
        let new: Vec<&[T]> = new.iter().map(|view| &**view).collect();
        let old: Vec<&[T]> = old.iter().map(|view| &**view).collect();
        Ok(with(&new, &old))
    }
}

/// Returns a number that depends on every bit of some grids.
pub(crate) fn digest<T: Pod>(grids: &[&[T]]) -> u64 {
    let of_grid = |(number, grid): (usize, &&[T])| {
        let bytes: &[u8] = bytemuck::cast_slice(grid);
        let of_word = |(at, bytes): (usize, &[u8])| {
            let word = bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            random::word(word, (at as u64) << 2 | number as u64)
        };
        bytes.par_chunks(4).enumerate().map(of_word).reduce(|| 0, u64::wrapping_add)
    };
    grids.iter().enumerate().map(of_grid).fold(0, u64::wrapping_add)
}

impl<T: Pod + Send + Sync> Grids for Pairs<T> {
    fn swap<'a>(&self, iterate: Iterate<'a>) -> Iterate<'a> {
        let swapped = self.pairs.iter().filter(|_| self.are_swapped);
        swapped.fold(iterate, |iterate, [one, other]| iterate.swap(one, other))
    }

    fn reset(&self) -> Result<(), AcquireError> {
        for ([one, other], first) in self.pairs.iter().zip(&self.first) {
            let mut grid = one.write()?;
            grid.copy_from_slice(first);
            grid.release()?;
            let mut grid = other.write()?;
            grid.fill(T::zeroed());
            grid.release()?;
        }
        Ok(())
    }

    fn verify(&self, size: &Size, steps: u64) -> Result<(), VerifyError> {
        Ok(self.with(steps, |new, old| (self.check)(size, steps, new, old))??)
    }

    fn digest(&self, steps: u64) -> Result<u64, AcquireError> {
        self.with(steps, |new, _| digest(new))
    }

    fn picture(&self, size: &Size, steps: u64) -> Result<Picture, VerifyError> {
        self.with(steps, |new, _| {
            let grid = new.last().expect("there are pairs");
            let pixel = |value: &T| {
                let value =
                    bytemuck::bytes_of(value).first_chunk().map_or(0.0, |bytes| f32::from_ne_bytes(*bytes));
                let bright = (value * 600.0).clamp(0.0, 255.0) as u8;
                [bright, bright, 255 - bright, 255]
            };
            let pixels = grid.par_iter().map(pixel).collect();
            Ok(Picture::new(size.columns as u32, size.rows as u32, pixels)?)
        })?
    }
}

/// What a program is made from.
struct Builder<'a> {
    platform: &'a Platform,
    devices: &'a [DeviceId],
    size: Size,
}

type Built = (Vec<(Kernel, u64)>, Box<dyn Grids>);

impl Builder<'_> {
    /// Adds the launchers and the number of items to a kernel.
    fn finish(&self, kernel: Kernel, name: &str) -> Result<(Kernel, u64), PrepareError> {
        let source = SOURCES.iter().find(|source| source.name == name).expect("it is listed");
        Ok((prepare::add(kernel.end(), self.platform, self.devices, source)?, self.size.items()))
    }

    /// Begins a kernel whose items are rows or planes.
    fn kernel(&self, name: &str) -> Kernel {
        let Size { columns, rows, planes, .. } = self.size;
        match planes {
            1 => Kernel::new(name, LOCAL[1]).rows(columns, LOCAL[0]),
            _ => Kernel::new(name, 1).planes([columns, rows], LOCAL),
        }
    }

    /// Adds the numbers of elements along each axis.
    fn sized(&self, kernel: Kernel) -> Kernel {
        let Size { columns, rows, planes, .. } = self.size;
        let kernel = kernel.scalar(columns as u32).scalar(rows as u32);
        if planes > 1 { kernel.scalar(planes as u32) } else { kernel }
    }

    fn around<T>(&self, margin: u64) -> Footprint {
        Footprint::neighbourhood(self.size.item() * size_of::<T>() as u64, margin)
    }

    /// A stencil from one grid to another one.
    fn star<T: Element>(&self, name: &str, formula: Formula<T>) -> Result<Built, PrepareError> {
        let first = (0..self.size.elements()).into_par_iter().map(T::drawn).collect();
        let grids = Pairs::new(self.platform, vec![first], true, move |size, steps, new, old| {
            let expected = |at: &dyn Fn(usize, [i64; 3]) -> T| [formula(&|offset| at(0, offset))];
            if steps == 0 { Ok(()) } else { reference::compare(size, new, old, &expected) }
        })?;
        let [from, to] = &grids.pairs[0];
        let kernel = self.kernel(name);
        let kernel = kernel.argument(Argument::part(from, Access::ReadOnly, self.around::<T>(1)));
        let kernel = kernel.argument(Argument::part(to, Access::WriteInvalidate, self.around::<T>(0)));
        Ok((vec![self.finish(self.sized(kernel), name)?], Box::new(grids)))
    }

    fn prk(&self) -> Result<Built, PrepareError> {
        let columns = self.size.columns;
        let first = (0..self.size.elements()).into_par_iter().map(|at| (at % columns + at / columns) as f64);
        let grids = Pairs::new(self.platform, vec![first.collect()], false, reference::prk)?;
        let [grid, sums] = &grids.pairs[0];
        let own = || self.around::<f64>(0);
        let star = self.kernel("prk_star");
        let star = star.argument(Argument::part(grid, Access::ReadOnly, self.around::<f64>(2)));
        let star = star.argument(Argument::part(sums, Access::ReadWrite, own()));
        let add = self.kernel("prk_add").argument(Argument::part(grid, Access::ReadWrite, own()));
        let kernels =
            vec![self.finish(self.sized(star), "prk_star")?, self.finish(self.sized(add), "prk_add")?];
        Ok((kernels, Box::new(grids)))
    }

    fn nbody(&self) -> Result<Built, PrepareError> {
        let problem = nbody::Problem::generate(nbody::Size { items: self.size.columns }, SEED);
        let first = vec![problem.positions().to_vec(), problem.velocities().to_vec()];
        let grids = Pairs::new(self.platform, first, true, |_, steps, new, old| {
            let before = nbody::Problem::of(old[0].to_vec(), old[1].to_vec());
            if steps == 0 { Ok(()) } else { before.check(new[0], new[1]) }
        })?;
        let ([positions, moved], [velocities, faster]) = (&grids.pairs[0], &grids.pairs[1]);
        let kernel = Kernel::new("nbody", nbody::LOCAL_SIZE)
            .read_all(positions)
            .read(velocities)
            .write(moved)
            .write(faster)
            .scalar(self.size.columns as u32)
            .scalar(nbody::SOFTENING)
            .scalar(nbody::STEP);
        let kernel = prepare::add(kernel.end(), self.platform, self.devices, &nbody::SOURCE)?;
        Ok((vec![(kernel, self.size.columns)], Box::new(grids)))
    }

    fn gray_scott(&self) -> Result<Built, PrepareError> {
        let Size { columns, rows, .. } = self.size;
        // The second substance is in a square in the middle.
        let is_within = |at: u64, of: u64| at > of * 2 / 5 && at < of * 3 / 5;
        let drawn = |at: u64, within: f32, without: f32| {
            let value = if is_within(at % columns, columns) && is_within(at / columns, rows) {
                within
            } else {
                without
            };
            value + 0.02 * random::unit(SEED, at)
        };
        let grid = |within, without| {
            (0..columns * rows).into_par_iter().map(|at| drawn(at, within, without)).collect()
        };
        let first = vec![grid(0.5, 1.0), grid(0.25, 0.0)];
        let grids = Pairs::new(self.platform, first, true, |size, steps, new, old| {
            if steps == 0 { Ok(()) } else { reference::compare(size, new, old, &reference::gray_scott) }
        })?;
        let ([u, new_u], [v, new_v]) = (&grids.pairs[0], &grids.pairs[1]);
        let around = || self.around::<f32>(1);
        let own = || self.around::<f32>(0);
        let kernel = self
            .kernel("gray_scott")
            .argument(Argument::part(u, Access::ReadOnly, around()))
            .argument(Argument::part(v, Access::ReadOnly, around()))
            .argument(Argument::part(new_u, Access::WriteInvalidate, own()))
            .argument(Argument::part(new_v, Access::WriteInvalidate, own()));
        let kernel = self.sized(kernel).scalar(FEED).scalar(KILL);
        Ok((vec![self.finish(kernel, "gray_scott")?], Box::new(grids)))
    }
}
