//! The pictures that workloads take or make, as PNG files.
//!
//! ```text
//!   any PNG ──read──▶ Picture (RGBA, 8 bits per channel, row-major) ──write──▶ RGBA PNG
//! ```
//!
//! Reading converts to RGBA. Grey becomes three equal channels, and a palette index becomes its colour. Of 16
//! bits the upper 8 are kept, and fewer than 8 bits are scaled to the full range. Without transparency the
//! alpha channel is 255.

use dml_arenas::files;
use png::{
    BitDepth, ColorType, Compression, Decoder, DecodingError, Encoder, EncodingError, Transformations,
};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The eight bytes that every PNG file starts with.
const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// An RGBA picture with 8 bits per channel.
///
/// # Shape and units
/// Row-major from the top left; pixel (x, y) is element `y * width + x`; channels are red, green, blue,
/// alpha.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Picture {
    width: u32,
    height: u32,
    pixels: Vec<[u8; 4]>,
}

/// Why a picture could not be made, read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PictureError {
    /// There is no such file.
    #[error("no picture at {path}: the file does not exist", path = path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be opened or read.
    #[error("cannot access the picture {path}", path = path.display())]
    Access {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file does not start like a PNG.
    #[error("{path} is not a PNG file", path = path.display())]
    NotPng {
        /// The file.
        path: PathBuf,
    },
    /// The file ends before the picture does.
    #[error("the picture {path} is truncated", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// The file is a PNG, but its contents contradict the format.
    #[error("the picture {path} is damaged", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Error of the decoder.
        source: DecodingError,
    },
    /// The picture has more pixels than [`Picture::read`] accepts.
    #[error(
        "the picture {path} is too large: {width} x {height} pixels, at most {largest_pixels}",
        path = path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
        /// The limit, [`Picture::LARGEST_PIXELS`].
        largest_pixels: u64,
    },
    /// The picture has no pixels, and a PNG needs at least one.
    #[error("cannot write {path}: a PNG cannot hold {width} x {height} pixels", path = path.display())]
    Empty {
        /// The file that was to be written.
        path: PathBuf,
        /// The picture's width in pixels.
        width: u32,
        /// The picture's height in pixels.
        height: u32,
    },
    /// Writing the file failed.
    #[error("cannot write the picture {path}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the encoder or of the operating system.
        source: EncodingError,
    },
    /// The number of pixels is not width times height.
    #[error("a picture of {width} x {height} pixels cannot be made of {pixels} pixels")]
    PixelCount {
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
        /// Number of pixels given.
        pixels: usize,
    },
}

impl Picture {
    /// Maximum number of pixels that [`Picture::read`] accepts (2 GiB of them). It limits the memory that a
    /// hostile header can request with a few bytes.
    pub const LARGEST_PIXELS: u64 = 1 << 29;

    /// Makes a picture of the given pixels.
    ///
    /// # Errors
    /// [`PictureError::PixelCount`] when there are not `width * height` pixels.
    pub fn new(width: u32, height: u32, pixels: Vec<[u8; 4]>) -> Result<Self, PictureError> {
        if pixels.len() as u64 == u64::from(width) * u64::from(height) {
            Ok(Self { width, height, pixels })
        } else {
            Err(PictureError::PixelCount { width, height, pixels: pixels.len() })
        }
    }

    /// Returns the width in pixels.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the height in pixels.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the pixels, row-major.
    #[must_use]
    pub fn pixels(&self) -> &[[u8; 4]] {
        &self.pixels
    }

    /// Reads a PNG of any colour type and depth, interlaced or not. Of an animation it reads the first frame.
    /// `path` must name a regular file.
    ///
    /// # Errors
    /// [`PictureError::NotFound`], [`PictureError::Access`], [`PictureError::NotPng`],
    /// [`PictureError::Truncated`], [`PictureError::Damaged`] and [`PictureError::TooLarge`], each naming the
    /// file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PictureError> {
        let path = path.as_ref();
        let file = files::open(path).map_err(|source| access(path, source))?;
        let mut file = BufReader::new(file);
        expect_signature(path, &mut file)?;
        let mut decoder = Decoder::new(file);
        decoder.set_limits(png::Limits { bytes: usize::MAX });
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        // Every colour type becomes grey with alpha or RGBA, 8 bits each.
        decoder.set_transformations(Transformations::ALPHA | Transformations::STRIP_16);

        let header = decoder.read_header_info().map_err(|source| undecodable(path, source))?;
        let (width, height) = (header.width, header.height);
        let count = u64::from(width) * u64::from(height);
        if count > Self::LARGEST_PIXELS {
            return Err(PictureError::TooLarge {
                path: path.to_owned(),
                width,
                height,
                largest_pixels: Self::LARGEST_PIXELS,
            });
        }
        let mut reader = decoder.read_info().map_err(|source| undecodable(path, source))?;
        let mut pixels = vec![[0; 4]; count as usize];
        if reader.output_color_type().0 == ColorType::GrayscaleAlpha {
            let mut grey = vec![[0_u8; 2]; pixels.len()];
            reader
                .next_frame(bytemuck::cast_slice_mut(&mut grey))
                .map_err(|source| undecodable(path, source))?;
            for (pixel, [grey, alpha]) in pixels.iter_mut().zip(grey) {
                *pixel = [grey, grey, grey, alpha];
            }
        } else {
            reader
                .next_frame(bytemuck::cast_slice_mut(&mut pixels))
                .map_err(|source| undecodable(path, source))?;
        }
        reader.finish().map_err(|source| undecodable(path, source))?;
        Ok(Self { width, height, pixels })
    }

    /// Writes the picture as an RGBA PNG. It replaces an existing file only when it is complete.
    ///
    /// # Errors
    /// [`PictureError::Empty`] for a picture without pixels, [`PictureError::Write`] when the file cannot be
    /// written. An existing file stays unchanged then.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), PictureError> {
        let path = path.as_ref();
        if self.pixels.is_empty() {
            return Err(PictureError::Empty {
                path: path.to_owned(),
                width: self.width,
                height: self.height,
            });
        }
        files::write(path, |file| self.encode(file))
            .map_err(|source| PictureError::Write { path: path.to_owned(), source })
    }

    fn encode(&self, file: impl Write) -> Result<(), EncodingError> {
        let mut encoder = Encoder::new(file, self.width, self.height);
        encoder.set_color(ColorType::Rgba);
        encoder.set_depth(BitDepth::Eight);
        encoder.set_compression(Compression::Fast);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(bytemuck::cast_slice(&self.pixels))?;
        writer.finish()
    }
}

/// Checks for the signature of a PNG, and rewinds.
fn expect_signature(path: &Path, file: &mut BufReader<File>) -> Result<(), PictureError> {
    use io::Read;

    let mut start = Vec::with_capacity(SIGNATURE.len());
    file.by_ref()
        .take(SIGNATURE.len() as u64)
        .read_to_end(&mut start)
        .and_then(|_| file.rewind())
        .map_err(|source| access(path, source))?;
    if start == SIGNATURE {
        Ok(())
    } else if !start.is_empty() && SIGNATURE.starts_with(&start) {
        Err(PictureError::Truncated { path: path.to_owned() })
    } else {
        Err(PictureError::NotPng { path: path.to_owned() })
    }
}

fn access(path: &Path, source: io::Error) -> PictureError {
    let path = path.to_owned();
    if source.kind() == ErrorKind::NotFound {
        PictureError::NotFound { path }
    } else {
        PictureError::Access { path, source }
    }
}

fn undecodable(path: &Path, source: DecodingError) -> PictureError {
    let path = path.to_owned();
    match source {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            PictureError::Truncated { path }
        }
        DecodingError::IoError(source) => PictureError::Access { path, source },
        source => PictureError::Damaged { path, source },
    }
}

#[cfg(test)]
mod tests;
