//! Writes files of every colour type, whole and damaged, and reads them back.

use super::*;
use crate::random;
use std::sync::atomic::{AtomicU64, Ordering};

/// A unique file name in the temporary directory. Dropping it removes the file.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("dml-picture-{}-{number}.png", std::process::id())))
    }

    fn holding(bytes: &[u8]) -> Self {
        let scratch = Self::new();
        std::fs::write(&scratch.0, bytes).unwrap();
        scratch
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns image data that depends on the position and has every sample value of a small depth.
fn samples(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| random::word(11, index) as u8).collect()
}

/// Returns the raw sample at `index` of a row.
fn sample(row: &[u8], depth: usize, index: usize) -> u32 {
    if depth == 16 {
        u32::from(row[2 * index]) << 8 | u32::from(row[2 * index + 1])
    } else {
        let bit = index * depth;
        u32::from(row[bit / 8]) >> (8 - depth - bit % 8) & ((1 << depth) - 1)
    }
}

/// Converts a raw sample to 8 bits: the upper 8 of 16, or fewer scaled to the full range.
fn to_byte(sample: u32, depth: usize) -> u8 {
    if depth == 16 { (sample >> 8) as u8 } else { (sample * 255 / ((1 << depth) - 1)) as u8 }
}

#[test]
fn every_colour_type_and_depth_becomes_rgba() {
    const WIDTH: usize = 13;
    const HEIGHT: usize = 7;
    let cases = [
        (ColorType::Grayscale, 1, &[1, 2, 4, 8, 16][..]),
        (ColorType::Rgb, 3, &[8, 16]),
        (ColorType::Indexed, 1, &[1, 2, 4, 8]),
        (ColorType::GrayscaleAlpha, 2, &[8, 16]),
        (ColorType::Rgba, 4, &[8, 16]),
    ];
    for (colour, channels, depths) in cases {
        for &depth in depths {
            for transparent in [false, true] {
                if transparent && matches!(colour, ColorType::GrayscaleAlpha | ColorType::Rgba) {
                    continue;
                }
                let row_bytes = (WIDTH * channels * depth).div_ceil(8);
                let mut data = samples(row_bytes * HEIGHT);
                let palette: Vec<u8> = samples(3 * 256)[..3 << depth.min(8)].to_vec();
                let palette_alpha = samples(1 << depth.min(8));
                // The first pixel has the transparent colour.
                let first: Vec<u32> = (0..channels).map(|channel| sample(&data, depth, channel)).collect();
                if transparent && depth == 16 {
                    // The second pixel differs from the transparent colour in a lower byte only.
                    data.copy_within(0..2 * channels, 2 * channels);
                    data[2 * channels + 1] ^= 1;
                }

                let mut bytes = Vec::new();
                let mut encoder = Encoder::new(&mut bytes, WIDTH as u32, HEIGHT as u32);
                encoder.set_color(colour);
                encoder.set_depth(BitDepth::from_u8(depth as u8).unwrap());
                if colour == ColorType::Indexed {
                    encoder.set_palette(palette.clone());
                }
                if transparent {
                    encoder.set_trns(if colour == ColorType::Indexed {
                        palette_alpha.clone()
                    } else {
                        first.iter().flat_map(|sample| (*sample as u16).to_be_bytes()).collect()
                    });
                }
                let mut writer = encoder.write_header().unwrap();
                writer.write_image_data(&data).unwrap();
                writer.finish().unwrap();

                let expected: Vec<[u8; 4]> = (0..WIDTH * HEIGHT)
                    .map(|pixel| {
                        let row = &data[pixel / WIDTH * row_bytes..][..row_bytes];
                        let raw: Vec<u32> = (0..channels)
                            .map(|channel| sample(row, depth, pixel % WIDTH * channels + channel))
                            .collect();
                        let byte = |channel: usize| to_byte(raw[channel], depth);
                        let alpha = if transparent && raw == first { 0 } else { 255 };
                        match colour {
                            ColorType::Grayscale => [byte(0), byte(0), byte(0), alpha],
                            ColorType::Rgb => [byte(0), byte(1), byte(2), alpha],
                            ColorType::GrayscaleAlpha => [byte(0), byte(0), byte(0), byte(1)],
                            ColorType::Rgba => [byte(0), byte(1), byte(2), byte(3)],
                            ColorType::Indexed => {
                                let entry = raw[0] as usize;
                                let alpha = if transparent { palette_alpha[entry] } else { 255 };
                                [palette[3 * entry], palette[3 * entry + 1], palette[3 * entry + 2], alpha]
                            }
                        }
                    })
                    .collect();
                let file = Scratch::holding(&bytes);
                let picture = Picture::read(&file.0).unwrap();
                assert_eq!((picture.width, picture.height), (WIDTH as u32, HEIGHT as u32));
                assert_eq!(picture.pixels, expected, "{colour:?}, {depth} bits, transparent: {transparent}");
            }
        }
    }
}

/// Returns a 5 x 5 grey picture of 8 bits with Adam7 interlacing. Its pixel (x, y) is `x * 40 + y * 7`.
///
/// The encoder does not interlace, so the passes are laid out here.
fn interlaced() -> Vec<u8> {
    let passes =
        [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)];
    let mut rows = Vec::new();
    for (left, top, across, down) in passes {
        for y in (top..5_u8).step_by(down) {
            let row: Vec<u8> = (left..5_u8).step_by(across).map(|x| x * 40 + y * 7).collect();
            if !row.is_empty() {
                rows.push(0);
                rows.extend(row);
            }
        }
    }
    let mut data = vec![0x78, 0x01, 0x01];
    data.extend((rows.len() as u16).to_le_bytes());
    data.extend((!(rows.len() as u16)).to_le_bytes());
    data.extend(&rows);
    let (low, high) = rows.iter().fold((1_u32, 0_u32), |(low, high), byte| {
        let low = (low + u32::from(*byte)) % 65_521;
        (low, (high + low) % 65_521)
    });
    data.extend((high << 16 | low).to_be_bytes());

    let mut file = SIGNATURE.to_vec();
    for (name, contents) in
        [(b"IHDR", &[0, 0, 0, 5, 0, 0, 0, 5, 8, 0, 0, 0, 1][..]), (b"IDAT", &data), (b"IEND", &[])]
    {
        file.extend((contents.len() as u32).to_be_bytes());
        file.extend(name);
        file.extend(contents);
        file.extend(cyclic_redundancy_check(&[&name[..], contents].concat()).to_be_bytes());
    }
    file
}

fn cyclic_redundancy_check(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| sum >> 1 ^ (0xEDB8_8320 & (sum & 1).wrapping_neg()))
    })
}

#[test]
fn interlaced_files_are_put_together() {
    let file = Scratch::holding(&interlaced());
    let picture = Picture::read(&file.0).unwrap();
    let expected: Vec<[u8; 4]> = (0..25_u8)
        .map(|pixel| {
            let grey = pixel % 5 * 40 + pixel / 5 * 7;
            [grey, grey, grey, 255]
        })
        .collect();
    assert_eq!(picture.pixels, expected);
}

fn sample_picture() -> Picture {
    let pixels = (0..37 * 11).map(|index| (random::word(5, index) as u32).to_le_bytes()).collect();
    Picture::new(37, 11, pixels).unwrap()
}

#[test]
fn written_pictures_read_back_as_they_were() {
    let file = Scratch::new();
    for picture in [sample_picture(), Picture::new(1, 1, vec![[1, 2, 3, 4]]).unwrap()] {
        picture.write(&file.0).unwrap();
        assert_eq!(Picture::read(&file.0).unwrap(), picture);
    }
}

#[test]
fn every_truncation_is_an_error_that_says_so() {
    let file = Scratch::new();
    sample_picture().write(&file.0).unwrap();
    for bytes in [std::fs::read(&file.0).unwrap(), interlaced()] {
        for length in 0..bytes.len() {
            std::fs::write(&file.0, &bytes[..length]).unwrap();
            let error = Picture::read(&file.0).unwrap_err();
            match (length, &error) {
                (0, PictureError::NotPng { path }) | (1.., PictureError::Truncated { path }) => {
                    assert_eq!(*path, file.0);
                }
                _ => panic!("{length} of {} bytes: {error:?}", bytes.len()),
            }
        }
    }
}

#[test]
fn damage_never_panics_and_checksums_are_kept() {
    let file = Scratch::new();
    sample_picture().write(&file.0).unwrap();
    for bytes in [std::fs::read(&file.0).unwrap(), interlaced()] {
        for position in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[position] ^= 0x41;
            std::fs::write(&file.0, &damaged).unwrap();
            let _ = Picture::read(&file.0);
        }
        let mut damaged = bytes.clone();
        damaged[30] ^= 1; // part of the header's checksum
        std::fs::write(&file.0, &damaged).unwrap();
        assert!(matches!(Picture::read(&file.0), Err(PictureError::Damaged { .. })));
    }
}

#[test]
fn missing_foreign_and_huge_files_have_their_own_errors() {
    let missing = Scratch::new();
    let error = Picture::read(&missing.0).unwrap_err();
    assert!(matches!(&error, PictureError::NotFound { path } if *path == missing.0), "{error:?}");
    assert!(error.to_string().contains("dml-picture"));

    let foreign = Scratch::holding(b"GIF89a and so on, long enough to be anything");
    assert!(matches!(Picture::read(&foreign.0), Err(PictureError::NotPng { .. })));

    assert!(matches!(Picture::read(std::env::temp_dir()), Err(PictureError::Access { .. })));

    let mut huge = interlaced();
    huge[16..24].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF, 0, 1, 0, 0]);
    let check = cyclic_redundancy_check(&huge[12..29]).to_be_bytes();
    huge[29..33].copy_from_slice(&check);
    let huge = Scratch::holding(&huge);
    assert!(matches!(
        Picture::read(&huge.0),
        Err(PictureError::TooLarge { width: 0x7FFF_FFFF, height: 0x1_0000, .. })
    ));
}

#[test]
fn impossible_pictures_are_refused() {
    assert!(matches!(
        Picture::new(3, 2, vec![[0; 4]; 5]),
        Err(PictureError::PixelCount { width: 3, height: 2, pixels: 5 })
    ));
    let file = Scratch::new();
    let empty = Picture::new(0, 4, Vec::new()).unwrap();
    assert!(matches!(empty.write(&file.0), Err(PictureError::Empty { height: 4, .. })));
    let nowhere = file.0.join("no-such-directory/picture.png");
    assert!(matches!(sample_picture().write(nowhere), Err(PictureError::Write { .. })));
}
