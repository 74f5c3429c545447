//! The frames of a run, generated or from a file.
//!
//! ```text
//!   generate(size, count, seed) ─┐
//!                                ├─▶ Frames ─write─▶ file, which SLAMBench reads too
//!   read(file, edge) ────────────┘
//! ```
//! The file has for each frame columns and rows (32 bits each), depths in millimetres (16 bits), columns and
//! rows again, and a picture of three bytes per pixel. All numbers are little-endian.

use super::math::{Pose, length, minus};
use super::{Size, scene};
use crate::random;
use dml_arenas::files;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Maximum number of columns and of rows of a file.
const MOST_EDGE: u32 = 4096;

/// Depths in millimetres, and the way of the camera if it is known.
#[derive(Clone, Debug)]
pub struct Frames {
    size: Size,
    depths: Vec<Vec<u16>>,
    way: Option<Vec<Pose>>,
}

/// Why frames could not be read, written or made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FramesError {
    /// The file could not be opened, read or written.
    #[error("cannot access the frames {path}: {source}", path = path.display())]
    Access {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file ends within a frame.
    #[error("the frames {path} end within frame {frame}", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The number of the frame.
        frame: usize,
    },
    /// A frame has another size than the first one.
    #[error(
        "frame {frame} of {path} has {found:?} columns and rows, not {expected:?}: is it a file of SLAMBench?",
        path = path.display()
    )]
    Sizes {
        /// The file.
        path: PathBuf,
        /// The number of the frame.
        frame: usize,
        /// Its columns and rows.
        found: [u32; 2],
        /// Those of the frames before it.
        expected: [u32; 2],
    },
    /// The file has no frames, or none were asked for.
    #[error("no frames were read from {path}", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The frames of a file cannot be used.
    #[error("{path}: {cause}", path = path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// [`FramesError::Shape`] or [`FramesError::Volume`].
        cause: Box<Self>,
    },
    /// The pyramid cannot be made of frames of this size.
    #[error(
        "frames of {width} x {height} pixels have no pyramid: both must be multiples of 4 from 4 to 4096"
    )]
    Shape {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// The volume cannot have this size.
    #[error("a volume of {edge} voxels along each edge: it can have 8 to 1024")]
    Volume {
        /// Voxels along an edge.
        edge: u32,
    },
}

impl Frames {
    /// Generates what a camera sees on a closed way through a room.
    ///
    /// # Errors
    /// [`FramesError::Shape`] and [`FramesError::Volume`].
    pub fn generate(size: Size, count: u32, seed: u64) -> Result<Self, FramesError> {
        checked(size)?;
        let way: Vec<_> = (0..count).map(|frame| scene::pose(frame, count)).collect();
        let noise = |frame| random::stream(seed, frame);
        let shape = [size.width, size.height];
        let depths =
            (0..).zip(&way).map(|(frame, pose)| scene::depths(&size.camera(), pose, shape, noise(frame)));
        Ok(Self { size, depths: depths.collect(), way: Some(way) })
    }

    /// Reads at most `count` frames of a file, for a volume with this edge. The camera's way is not known.
    ///
    /// # Errors
    /// [`FramesError`].
    pub fn read(path: impl AsRef<Path>, edge: u32, count: u32) -> Result<Self, FramesError> {
        let path = path.as_ref();
        let access = |source| FramesError::Access { path: path.to_owned(), source };
        let mut file = BufReader::new(files::open(path).map_err(access)?);
        let mut frames: Option<Self> = None;
        for frame in 0..count as usize {
            let expected = frames.as_ref().map(|frames| [frames.size.width, frames.size.height]);
            let truncated = |source: io::Error| match source.kind() {
                ErrorKind::UnexpectedEof => FramesError::Truncated { path: path.to_owned(), frame },
                _ => access(source),
            };
            let Some(found) = header(&mut file).map_err(truncated)? else {
                break;
            };
            let sizes =
                |found, expected| FramesError::Sizes { path: path.to_owned(), frame, found, expected };
            if let Some(expected) = expected.filter(|expected| *expected != found) {
                return Err(sizes(found, expected));
            }
            let [width, height] = found;
            let size = Size { width, height, edge };
            checked(size)
                .map_err(|cause| FramesError::Unfit { path: path.to_owned(), cause: cause.into() })?;
            let mut depths = vec![0_u16; size.pixels(0)];
            file.read_exact(bytemuck::cast_slice_mut(&mut depths)).map_err(truncated)?;
            depths.iter_mut().for_each(|depth| *depth = u16::from_le(*depth));
            let picture = header(&mut file).map_err(truncated)?;
            let bytes = match picture {
                Some(picture) if picture == found => 3 * size.pixels(0) as u64,
                Some(picture) => return Err(sizes(picture, found)),
                None => return Err(FramesError::Truncated { path: path.to_owned(), frame }),
            };
            let skipped = io::copy(&mut file.by_ref().take(bytes), &mut io::sink()).map_err(access)?;
            if skipped < bytes {
                return Err(FramesError::Truncated { path: path.to_owned(), frame });
            }
            frames.get_or_insert(Self { size, depths: Vec::new(), way: None }).depths.push(depths);
        }
        frames.ok_or_else(|| FramesError::Empty { path: path.to_owned() })
    }

    /// Writes the frames, with the depths as a grey picture. Replaces an existing file once all is written.
    ///
    /// # Errors
    /// [`FramesError::Access`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), FramesError> {
        let path = path.as_ref();
        let written = files::write(path, |file| {
            let mut file = io::BufWriter::new(file);
            let header = [self.size.width.to_le_bytes(), self.size.height.to_le_bytes()].concat();
            for depths in &self.depths {
                file.write_all(&header)?;
                depths.iter().try_for_each(|depth| file.write_all(&depth.to_le_bytes()))?;
                file.write_all(&header)?;
                depths.iter().try_for_each(|depth| file.write_all(&[(depth >> 4).min(255) as u8; 3]))?;
            }
            file.flush()
        });
        written.map_err(|source| FramesError::Access { path: path.to_owned(), source })
    }

    /// Returns where the camera was, if that is known, in the format of the TUM benchmark.
    ///
    /// A line has the number of the frame, three coordinates in metres, and a quaternion. Its real part is
    /// last.
    #[must_use]
    pub fn way_text(&self) -> Option<String> {
        let line = |(frame, pose): (usize, &Pose)| {
            let values = pose.place().into_iter().chain(pose.quaternion());
            let values: Vec<_> = values.map(|value| format!("{value:.9}")).collect();
            format!("{frame} {}\n", values.join(" "))
        };
        Some(self.way.as_ref()?.iter().enumerate().map(line).collect())
    }

    /// Returns the mean error of the camera above which a result counts as wrong, in metres: a tenth of a
    /// voxel, and a thousandth of the way. That is at least half more than runs have.
    #[must_use]
    pub fn most_error_m(&self) -> f64 {
        let steps = self.way.iter().flat_map(|way| way.windows(2));
        let way_m: f64 = steps.map(|pair| length(minus(pair[1].place(), pair[0].place()))).sum();
        f64::from(self.size.voxel()) / 10.0 + way_m / 1000.0
    }

    /// Returns the mean error of surfaces above which a result counts as wrong, in metres: half a voxel.
    #[must_use]
    pub fn most_surface_error_m(&self) -> f64 {
        f64::from(self.size.voxel()) / 2.0
    }

    /// Returns the first frames, at most `count`.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let count = count.min(self.len());
        let way = self.way.as_ref().map(|way| way[..count].to_vec());
        Self { size: self.size, depths: self.depths[..count].to_vec(), way }
    }

    /// Returns the size of the frames and the volume.
    #[must_use]
    pub fn size(&self) -> Size {
        self.size
    }

    /// Returns the number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.depths.len()
    }

    /// Returns whether there are no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.depths.is_empty()
    }

    /// Returns the depths of a frame, in millimetres and row-major.
    ///
    /// # Panics
    /// If there are fewer frames.
    #[must_use]
    pub fn depths(&self, frame: usize) -> &[u16] {
        &self.depths[frame]
    }

    /// Returns where the camera was in each frame, if that is known.
    #[must_use]
    pub fn way(&self) -> Option<&[Pose]> {
        self.way.as_deref()
    }
}

/// Reads columns and rows; `None` at the end of the file.
fn header(file: &mut BufReader<File>) -> io::Result<Option<[u32; 2]>> {
    let mut bytes = [0; 8];
    match file.read(&mut bytes)? {
        0 => return Ok(None),
        read => file.read_exact(&mut bytes[read..])?,
    }
    let [a, b, c, d, rows @ ..] = bytes;
    Ok(Some([u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(rows)]))
}

fn checked(size: Size) -> Result<(), FramesError> {
    let Size { width, height, edge } = size;
    if [width, height].iter().any(|edge| !edge.is_multiple_of(4) || !(4..=MOST_EDGE).contains(edge)) {
        return Err(FramesError::Shape { width, height });
    }
    if !(8..=1024).contains(&edge) {
        return Err(FramesError::Volume { edge });
    }
    Ok(())
}
