//! Files of arrays: `.npy`, `.png`, and the bytes alone.
//!
//! ```text
//!   file ──Header::read──▶ element type, shape ──▶ checked against the description
//!        ──read────────▶ bytes of the array ──▶ ... ──▶ bytes ──write──▶ file
//! ```
//! The name's ending chooses the format. Bytes are little-endian. A picture has the shape rows, columns, and
//! channels if there are several: grey, grey and alpha, RGB, or RGBA, of 8 bits.

use crate::element::Element;
use crate::npy::Header;
use crate::schema::ElementType;
use dml_arenas::files;
use png::{BitDepth, ColorType, Compression, Decoder, Encoder, Transformations};
use std::fs::File;
use std::io::{self, BufReader, Error, Read, Seek};
use std::path::Path;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Npy,
    Png,
    Raw,
}

impl Format {
    fn of(path: &Path) -> Self {
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        match ending.to_str() {
            Some("npy") => Self::Npy,
            Some("png") => Self::Png,
            _ => Self::Raw,
        }
    }
}

/// What a file says of its contents.
#[derive(Debug)]
pub(crate) enum Contents {
    /// An array of this type and shape.
    Array(ElementType, Vec<u64>),
    /// A picture of this shape.
    Picture(Vec<u64>),
    /// So many bytes.
    Bytes(u64),
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(io::ErrorKind::InvalidData, message.into())
}

/// Returns what a file contains.
pub(crate) fn contents(path: &Path) -> io::Result<Contents> {
    match Format::of(path) {
        Format::Npy => npy(path).map(|(element, shape, _)| Contents::Array(element, shape)),
        Format::Png => picture(path).map(|(shape, _)| Contents::Picture(shape)),
        Format::Raw => Ok(Contents::Bytes(files::open(path)?.metadata()?.len())),
    }
}

/// Reads a file into an array for which its contents are right.
pub(crate) fn read<T: Element>(path: &Path, into: &mut [T]) -> io::Result<()> {
    match Format::of(path) {
        Format::Npy => npy(path)?.2.read_exact(bytemuck::cast_slice_mut(into)),
        Format::Raw => files::open(path)?.read_exact(bytemuck::cast_slice_mut(into)),
        Format::Png => {
            let (_, mut reader) = picture(path)?;
            let mut pixels = vec![0; into.len()];
            reader.next_frame(&mut pixels)?;
            for (element, pixel) in into.iter_mut().zip(pixels) {
                *element = T::from_intensity(pixel);
            }
            Ok(())
        }
    }
}

/// Returns type and shape of an array, and a reader of its bytes.
fn npy(path: &Path) -> io::Result<(ElementType, Vec<u64>, BufReader<File>)> {
    let file = files::open(path)?;
    let length = file.metadata()?.len();
    let mut reader = BufReader::new(file);
    let header = Header::read(&mut reader)?;
    let found = header.descr.trim_start_matches(['<', '|', '=']);
    let element = ALL.into_iter().find(|element| code(*element) == found);
    let names = || ALL.map(ElementType::numpy).join(", ");
    let element = element.ok_or_else(|| {
        invalid(format!("its elements are {found}; those of an array are little-endian {}", names()))
    })?;
    let shape = header.shape;
    if header.fortran_order && shape.iter().filter(|length| **length > 1).count() > 1 {
        return Err(invalid("it is in Fortran order: save numpy.ascontiguousarray of it"));
    }
    let bytes = shape.iter().try_fold(element.bytes(), |bytes, length| bytes.checked_mul(*length));
    if bytes != length.checked_sub(reader.stream_position()?) {
        return Err(invalid(format!("it is truncated, or longer than its shape {shape:?}")));
    }
    Ok((element, shape, reader))
}

const ALL: [ElementType; 10] = [
    ElementType::Char,
    ElementType::Uchar,
    ElementType::Short,
    ElementType::Ushort,
    ElementType::Int,
    ElementType::Uint,
    ElementType::Long,
    ElementType::Ulong,
    ElementType::Float,
    ElementType::Double,
];

/// Returns the type's code in a `.npy` file, without the order of bytes.
const fn code(element: ElementType) -> &'static str {
    match element {
        ElementType::Char => "i1",
        ElementType::Uchar => "u1",
        ElementType::Short => "i2",
        ElementType::Ushort => "u2",
        ElementType::Int => "i4",
        ElementType::Uint => "u4",
        ElementType::Long => "i8",
        ElementType::Ulong => "u8",
        ElementType::Float => "f4",
        ElementType::Double => "f8",
    }
}

/// Returns the shape of a picture, and its decoder.
fn picture(path: &Path) -> io::Result<(Vec<u64>, png::Reader<BufReader<File>>)> {
    let mut decoder = Decoder::new(BufReader::new(files::open(path)?));
    decoder.set_transformations(Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    let reader = decoder.read_info()?;
    let (height, width) = (u64::from(reader.info().height), u64::from(reader.info().width));
    let channels = reader.output_color_type().0.samples() as u64;
    let shape = if channels == 1 { vec![height, width] } else { vec![height, width, channels] };
    Ok((shape, reader))
}

/// Returns why no file of this name can hold an array of this shape.
pub(crate) fn unwritable(path: &Path, shape: &[u64]) -> Option<String> {
    match Format::of(path) {
        Format::Png if color(shape).is_none() => {
            Some("a picture has rows and columns, and 2 to 4 channels if there are several".to_owned())
        }
        _ => None,
    }
}

fn color(shape: &[u64]) -> Option<(ColorType, u32, u32)> {
    let color = match shape {
        [_, _] => ColorType::Grayscale,
        [_, _, 2] => ColorType::GrayscaleAlpha,
        [_, _, 3] => ColorType::Rgb,
        [_, _, 4] => ColorType::Rgba,
        _ => return None,
    };
    Some((color, u32::try_from(shape[1]).ok()?, u32::try_from(shape[0]).ok()?))
}

/// Writes an array. The file is complete, or unchanged.
pub(crate) fn write<T: Element>(path: &Path, shape: &[u64], elements: &[T]) -> io::Result<()> {
    files::write(path, |file| match Format::of(path) {
        Format::Npy => {
            let order = if T::TYPE.bytes() == 1 { '|' } else { '<' };
            let descr = format!("{order}{}", code(T::TYPE));
            let header = Header { descr, fortran_order: false, shape: shape.to_vec() };
            file.write_all(&header.bytes())?;
            file.write_all(bytemuck::cast_slice(elements))
        }
        Format::Raw => file.write_all(bytemuck::cast_slice(elements)),
        Format::Png => {
            let (color, width, height) = color(shape).ok_or_else(|| invalid("it is no picture"))?;
            let mut encoder = Encoder::new(file, width, height);
            encoder.set_color(color);
            encoder.set_depth(BitDepth::Eight);
            encoder.set_compression(Compression::Fast);
            let pixels: Vec<u8> = elements.iter().map(|element| element.intensity()).collect();
            let mut writer = encoder.write_header()?;
            writer.write_image_data(&pixels)?;
            Ok(writer.finish()?)
        }
    })
}
