//! KinectFusion: a camera finds its way through a room, and makes a model of it, from depth alone.
//!
//! ```text
//!   frame ─▶ preprocess ─────────▶ track ──────────────▶ integrate ─▶ raycast
//!            mm2meters             up to 19 times:       every        vertices and normals
//!            bilateral_filter      track, reduce,        second       that the next frame
//!            half_sample  x 2      and a 6 x 6 solve     frame        is tracked against
//!            depth2vertex x 3      of the host
//!            vertex2normal x 3
//! ```
//! The loop is written once, over an `Engine`: straight calls of OpenCL or CUDA (`hand`), or buffers and
//! submissions of the data layer on any devices (`layered`).
//!
//! # Shape and units
//! Frames are planar depths in millimetres, row-major; 0 is no depth. Vertices are in metres. The volume is a
//! cube of voxels with a signed distance and a weight, two 16-bit numbers each.
//!
//! # Invariants
//! 1. **Every engine gets the same launches with the same arguments.** Only sums of floats and the devices'
//!    own functions differ, so poses differ by rounding alone.
//! 2. **A stale result does not pass for a new one**: the error of each frame is compared with the true way.
//!
//! # Source
//! Newcombe et al., "KinectFusion: Real-time dense surface mapping and tracking", 2011, with the schedule and
//! the constants of SLAMBench 1 (Nardi et al., 2015), as in "Abstract Representation of Shared Data for
//! Heterogeneous Computing", section 5 and table 2.

mod check;
mod error;
mod frames;
mod fusion;
#[cfg(any(feature = "cuda", feature = "opencl"))]
#[allow(unsafe_code, reason = "launching a kernel on the machine's own memory is unsafe")]
mod hand;
mod host;
#[allow(unsafe_code, reason = "source of kernels is trusted by the caller of a launcher")]
mod layered;
mod math;
#[cfg(feature = "opencl")]
mod modes;
mod scene;

pub use check::{Accuracy, most_apart, shaded, surface_error, trajectory_svg};
pub use error::SlamError;
pub use frames::{Frames, FramesError};
pub use fusion::{Order, Run, Seen};
#[cfg(any(feature = "cuda", feature = "opencl"))]
pub use hand::Hand;
pub use layered::{Finished, Layered, Placement};
pub use math::{Camera, Pose};
#[cfg(feature = "opencl")]
pub use modes::{Column, Columns};

use crate::operations::Operations;
use dml_core::Access;

/// The kernels in OpenCL C.
pub const OPENCL_SOURCE: &str =
    concat!(include_str!("../kernels/slam.cl"), include_str!("../kernels/slam.c"));
/// The kernels in CUDA C.
pub const CUDA_SOURCE: &str = concat!(include_str!("../kernels/slam.cu"), include_str!("../kernels/slam.c"));
/// Levels of the pyramid.
const LEVELS: usize = 3;
/// Maximum number of iterations at each level, from the finest.
const ITERATIONS: [u32; LEVELS] = [10, 5, 4];
/// Length of a step of the tracking that ends a level.
const STEP_ENDS: f64 = 1e-5;
/// Maximum distance of a pixel to its reference, in metres.
const MOST_DISTANCE_M: f32 = 0.1;
/// Minimum cosine of the angle between the normals of a pixel and its reference.
const LEAST_COSINE: f32 = 0.8;
/// Maximum root of the mean squared error of a frame that counts as tracked, in metres.
const MOST_ERROR_M: f64 = 0.02;
/// Minimum part of the pixels that a frame needs to count as tracked.
const LEAST_PIXELS: f64 = 0.15;
/// Standard deviation of the filter within the image, in pixels.
const FILTER_PIXELS: f32 = 4.0;
/// Standard deviation of the filter in depth, in metres.
const FILTER_M: f32 = 0.1;
/// Distance behind a surface up to which voxels change, in metres.
const MU_M: f32 = 0.1;
/// Maximum weight of a voxel.
const MOST_WEIGHT: f32 = 100.0;
/// The planes between which surfaces are seen, in metres.
const PLANES_M: [f32; 2] = [0.4, 4.0];
/// Number of first frames that are integrated where the camera starts, without tracking.
pub const FIRST: u32 = 4;
/// Every how many frames the volume changes.
const INTEGRATE_EVERY: u32 = 2;
/// Groups of a reduction, sums of a group, and work-items of a group.
const GROUPS: [usize; 3] = [8, 32, 256];

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Columns of a frame, a multiple of 4.
    pub width: u32,
    /// Rows of a frame, a multiple of 4.
    pub height: u32,
    /// Voxels along each edge of the volume.
    pub edge: u32,
}

/// A size for tests.
pub const TINY: Size = Size { width: 160, height: 120, edge: 64 };
/// A quarter of the pixels, and an eighth of the voxels.
pub const SMALL: Size = Size { width: 320, height: 240, edge: 128 };
/// The size of the paper.
pub const PAPER: Size = Size { width: 640, height: 480, edge: 256 };

impl Size {
    /// Returns the camera of frames with this width.
    #[must_use]
    pub fn camera(&self) -> Camera {
        let scale = |value: f64| value * f64::from(self.width) / 640.0;
        Camera { focal: [481.2, 480.0].map(scale), centre: [320.0, 240.0].map(scale) }
    }

    /// Returns the columns and rows of a level.
    fn of_level(&self, level: usize) -> [u32; 2] {
        [self.width >> level, self.height >> level]
    }

    fn pixels(&self, level: usize) -> usize {
        let [width, height] = self.of_level(level);
        width as usize * height as usize
    }

    /// Returns the edge of a voxel, in metres.
    fn voxel(&self) -> f32 {
        scene::VOLUME_M as f32 / self.edge as f32
    }
}

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    ClearVolume,
    Mm2Meters,
    BilateralFilter,
    HalfSample,
    Depth2Vertex,
    Vertex2Normal,
    Track,
    Reduce,
    Integrate,
    Raycast,
}

impl Kernel {
    const ALL: [Self; 10] = [
        Self::ClearVolume,
        Self::Mm2Meters,
        Self::BilateralFilter,
        Self::HalfSample,
        Self::Depth2Vertex,
        Self::Vertex2Normal,
        Self::Track,
        Self::Reduce,
        Self::Integrate,
        Self::Raycast,
    ];

    #[cfg(any(feature = "cuda", feature = "opencl"))]
    const fn name(self) -> &'static str {
        match self {
            Self::ClearVolume => "clear_volume",
            Self::Mm2Meters => "mm2meters",
            Self::BilateralFilter => "bilateral_filter",
            Self::HalfSample => "half_sample",
            Self::Depth2Vertex => "depth2vertex",
            Self::Vertex2Normal => "vertex2normal",
            Self::Track => "track",
            Self::Reduce => "reduce",
            Self::Integrate => "integrate",
            Self::Raycast => "raycast",
        }
    }

    const fn stage(self) -> Stage {
        match self {
            Self::ClearVolume | Self::Integrate | Self::Raycast => Stage::Model,
            Self::Track | Self::Reduce => Stage::Track,
            _ => Stage::Preprocess,
        }
    }

    const fn local_size(self) -> [u64; 2] {
        match self {
            Self::Reduce => [GROUPS[2] as u64, 1],
            _ => [32, 8],
        }
    }
}

/// A part of the work on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// From millimetres to vertices and normals.
    Preprocess,
    /// The tracking and its reductions.
    Track,
    /// The volume: integration and raycast.
    Model,
}

impl Stage {
    /// All stages, in the order of a frame.
    pub const ALL: [Self; 3] = [Self::Preprocess, Self::Track, Self::Model];
}

/// A buffer. Those of a frame exist in two sets, so that the next frame can be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    Volume,
    ReferenceVertices,
    ReferenceNormals,
    Equations,
    Sums,
    Millimeters(usize),
    Meters(usize),
    Depths(usize, usize),
    Vertices(usize, usize),
    Normals(usize, usize),
}

impl Image {
    const SETS: usize = 2;

    /// Returns all images, in the order of their numbers.
    fn all() -> impl Iterator<Item = Self> {
        let of_set = |set| {
            let of_level = move |level| {
                [Self::Depths(set, level), Self::Vertices(set, level), Self::Normals(set, level)]
            };
            [Self::Millimeters(set), Self::Meters(set)].into_iter().chain((0..LEVELS).flat_map(of_level))
        };
        let alone =
            [Self::Volume, Self::ReferenceVertices, Self::ReferenceNormals, Self::Equations, Self::Sums];
        alone.into_iter().chain((0..Self::SETS).flat_map(of_set))
    }

    const fn index(self) -> usize {
        const ALONE: usize = 5;
        const PER_SET: usize = 2 + 3 * LEVELS;
        match self {
            Self::Volume => 0,
            Self::ReferenceVertices => 1,
            Self::ReferenceNormals => 2,
            Self::Equations => 3,
            Self::Sums => 4,
            Self::Millimeters(set) => ALONE + PER_SET * set,
            Self::Meters(set) => ALONE + PER_SET * set + 1,
            Self::Depths(set, level) => ALONE + PER_SET * set + 2 + 3 * level,
            Self::Vertices(set, level) => ALONE + PER_SET * set + 3 + 3 * level,
            Self::Normals(set, level) => ALONE + PER_SET * set + 4 + 3 * level,
        }
    }

    fn bytes(self, size: &Size) -> usize {
        match self {
            Self::Volume => 4 * (size.edge as usize).pow(3),
            Self::ReferenceVertices | Self::ReferenceNormals => 12 * size.pixels(0),
            Self::Equations => 32 * size.pixels(0),
            Self::Sums => 4 * GROUPS[0] * GROUPS[1],
            Self::Millimeters(_) => 2 * size.pixels(0),
            Self::Meters(_) => 4 * size.pixels(0),
            Self::Depths(_, level) => 4 * size.pixels(level),
            Self::Vertices(_, level) | Self::Normals(_, level) => 12 * size.pixels(level),
        }
    }
}

/// An argument of a kernel that is no buffer.
#[derive(Clone, Copy, Debug)]
enum Value {
    U32(u32),
    U64(u64),
    F32(f32),
    Matrix([f32; 12]),
}

/// A launch: the buffers, then the other arguments, in the order of the kernel's parameters.
#[derive(Clone, Copy, Debug)]
struct Launch<'a> {
    kernel: Kernel,
    buffers: &'a [(Image, Access)],
    values: &'a [Value],
    items: [u64; 2],
}

/// What runs the launches.
trait Engine {
    /// Copies a frame to the millimetres of a set.
    fn send(&mut self, set: usize, frame: &[u16]) -> Result<(), SlamError>;
    /// Launches a kernel behind those before it.
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), SlamError>;
    /// Returns what the last reduction has written.
    fn sums(&mut self) -> Result<[f32; GROUPS[0] * GROUPS[1]], SlamError>;
    /// Waits for all launches.
    fn finish(&mut self) -> Result<(), SlamError>;
    /// Returns the number of calls so far.
    fn operations(&self) -> Operations;
}
