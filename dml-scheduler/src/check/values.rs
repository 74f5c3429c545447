//! Values that a check writes into copies of buffers.

use super::CheckError;
use dml_core::{AcquireError, DeviceId, Platform, RawBuffer};
use std::ops::Range;
use std::time::Duration;

/// Longest wait for a buffer that another thread uses.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The copy of a buffer that packages are run on.
pub(super) struct Copied {
    pub(super) of: RawBuffer,
    pub(super) copy: RawBuffer,
    pub(super) latest: Vec<u8>,
    /// The latest contents with elements moved; `None` if the check uses noise.
    pub(super) moved: Option<[Vec<u8>; WAYS]>,
    /// Size of an element, in bytes; 1 for an untyped buffer.
    pub(super) unit: u64,
}

impl Copied {
    /// Copies a buffer. `held` returns the error for a buffer that the calling thread holds.
    pub(super) fn new(
        platform: &Platform,
        host: DeviceId,
        of: &RawBuffer,
        is_read: bool,
        held: impl Fn() -> CheckError,
    ) -> Result<Self, CheckError> {
        let is_known = of.is_readable(0..of.len())?;
        let latest = match is_known {
            true => {
                let grants = match platform.acquire(host).read(of).try_now() {
                    Err(AcquireError::Busy { .. }) if of.is_held_here() => return Err(held()),
                    Err(AcquireError::Busy { .. }) => {
                        platform.acquire(host).read(of).wait_timeout(LONGEST_WAIT)?
                    }
                    granted => granted?,
                };
                let bytes = grants.read_bytes(of)?;
                grants.release()?;
                bytes
            }
            false => (0..of.len()).map(|byte| noise(of.len(), byte)).collect(),
        };
        let name = of.name();
        let unit = name.element_bytes();
        let moved = (is_known && is_read).then(|| moved(&latest, name.is_typed().then_some(unit as usize)));
        let copy = platform.raw_buffer(of.len()).label(format!("copy of {}", of.name())).build()?;
        Ok(Self { of: of.clone(), copy, latest, moved, unit })
    }
}

/// Returns a pseudo-random byte for a position, without a pattern that a kernel could match.
pub(super) fn noise(seed: u64, byte: u64) -> u8 {
    let mixed = (byte ^ seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
}

/// Returns the contents with other elements of the same buffer in each place.
///
/// There are three ways: rotated by the distance at which most bytes differ, the smallest element everywhere,
/// and the largest element everywhere.
fn moved(contents: &[u8], element_bytes: Option<usize>) -> [Vec<u8>; WAYS] {
    // Untyped bytes may hold larger values. They are moved by a multiple of common alignments.
    let unit = element_bytes
        .unwrap_or_else(|| [48, 16, 4].into_iter().find(|unit| 3 * unit <= contents.len()).unwrap_or(1));
    let by = |units: usize| {
        let mut moved = contents.to_vec();
        moved.rotate_left(units * unit % contents.len().max(1));
        moved
    };
    let count = contents.len() / unit;
    let differing = |moved: &Vec<u8>| moved.iter().zip(contents).filter(|(one, other)| one != other).count();
    let best = [count / 2, count / 3, 1, 2, 3].map(by).into_iter().max_by_key(differing);
    let filled = |element: Option<&[u8]>| {
        let element = element.filter(|_| !contents.is_empty()).unwrap_or(&[0]);
        element.iter().copied().cycle().take(contents.len()).collect()
    };
    let elements = || contents.chunks_exact(unit);
    let [smallest, largest] = [
        elements().min_by_key(|element| as_number(element)),
        elements().max_by_key(|element| as_number(element)),
    ];
    [best.unwrap_or_default(), filled(smallest), filled(largest)]
}

/// Returns a number that orders elements: integers by value, floats by their bits, anything else by its first
/// bytes.
fn as_number(element: &[u8]) -> i64 {
    match *element {
        [a] => a.into(),
        [a, b] => i16::from_le_bytes([a, b]).into(),
        [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
        [a, b, c, d, ..] => i32::from_le_bytes([a, b, c, d]).into(),
        [a, ..] => a.into(),
        [] => 0,
    }
}

/// Number of ways in which values are moved.
pub(super) const WAYS: usize = 3;

/// Values outside the ranges that a package reads.
#[derive(Clone, Copy)]
pub(super) enum Outside {
    /// The latest contents, as in a real run.
    Latest,
    /// Moved values in all copies, in one of the ways.
    Moved(usize),
    /// Moved values in one copy below a byte, and the latest contents elsewhere.
    Below { way: usize, copy: usize, byte: u64 },
    /// Moved values in one copy from a byte on, and the latest contents elsewhere.
    From { way: usize, copy: usize, byte: u64 },
}

impl Outside {
    /// Returns the bytes of a copy that are moved, and in which way; `None` if there are none.
    pub(super) fn moved(self, copy: usize, len: usize) -> Option<(usize, Range<usize>)> {
        let at = |byte: u64| len.min(byte as usize);
        match self {
            Self::Moved(way) => Some((way, 0..len)),
            Self::Below { way, copy: of, byte } if of == copy => Some((way, 0..at(byte))),
            Self::From { way, copy: of, byte } if of == copy => Some((way, at(byte)..len)),
            Self::Latest | Self::Below { .. } | Self::From { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_moved_as_a_whole_to_where_they_differ() {
        let contents: Vec<u8> =
            [1_i32, 2, 1, 2, 1, 2, -9].iter().flat_map(|value| value.to_ne_bytes()).collect();
        let elements = |way: &[u8]| -> Vec<i32> {
            way.chunks(4).map(|element| i32::from_ne_bytes(element.try_into().unwrap())).collect()
        };
        let [best, smallest, largest] = moved(&contents, Some(4));
        // A move by two elements would leave most of them unchanged.
        assert_eq!(elements(&best), [2, 1, 2, 1, 2, -9, 1]);
        assert_eq!((elements(&smallest), elements(&largest)), (vec![-9; 7], vec![2; 7]));
        assert!(moved(&[], Some(4)).iter().all(Vec::is_empty));
        // Untyped bytes keep the alignment of larger values.
        let bytes: Vec<u8> = (0..200).collect();
        let [best, smallest, largest] = moved(&bytes, None);
        assert!(best[0] % 8 == 0 && best.iter().zip(&bytes).all(|(one, other)| one != other));
        for filled in [smallest, largest] {
            assert_eq!((filled[0] % 48, filled[47] - filled[0], filled[48]), (0, 47, filled[0]));
        }
        assert_eq!(moved(&[5; 40], Some(4)), [[5; 40]; WAYS]);
    }

    #[test]
    fn noise_depends_on_its_place_and_its_seed() {
        let some = |seed| (0..64).map(|byte| noise(seed, byte)).collect::<Vec<_>>();
        assert_ne!(some(1), some(2));
        assert!(some(1).windows(8).all(|part| part.iter().any(|byte| *byte != part[0])));
    }
}
