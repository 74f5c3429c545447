//! Checks of copies in, copies out and fills, one at a time.

use super::Subject;
use super::desk::{Known, Sheet, pattern};
use crate::random::Random;

/// Copies of every length at odd offsets move their bytes and no others, in the block and in host memory.
///
/// # Panics
/// When the arena breaks this rule.
pub fn copies_hit_their_bytes_alone(subject: &Subject) {
    let len = 10_007;
    let mut known = Known::new(subject, len, 1);
    known.check();
    let parts = [(0, 1), (1, 2), (3, 64), (61, 67), (1021, 2055), (4095, 4098), (len - 1, len), (0, len)];
    for (seed, (start, end)) in parts.into_iter().enumerate() {
        known.put(start, &pattern(seed as u64 + 2, end - start));
        known.check();
        known.check_part(start, end);
    }
    for (start, end) in parts {
        known.check_part(start, end);
    }
    for at in [0, 5003, len] {
        known.put(at, &[]);
        known.check_part(at, at);
    }
    known.check();
    let empty = Known::new(subject, 0, 1);
    empty.check();
}

/// Fills set their bytes to the given value, and no other bytes.
///
/// # Panics
/// When the arena breaks this rule.
pub fn fills_hit_their_bytes_alone(subject: &Subject) {
    let len = 9_001;
    let mut known = Known::new(subject, len, 3);
    let parts =
        [(0, 1), (1, 4), (7, 8), (63, 129), (333, 999), (4095, 8193), (len - 1, len), (0, 0), (len, len)];
    for (index, (start, end)) in parts.into_iter().enumerate() {
        for byte in [0xC3, 0x00, 0x01, 0xFF, index as u8 + 0x10] {
            known.fill(start, end, byte);
            known.check();
        }
    }
    known.fill(0, len, 0x5A);
    known.check();
}

/// A random sequence of copies and fills leaves the same bytes in a block as in a vector. The sizes run from
/// one byte to several megabytes.
///
/// # Panics
/// When the arena breaks this rule.
pub fn transfers_agree_with_a_model(subject: &Subject) {
    let sizes = [(1, 40), (7, 60), (257, 150), (65_537, 150), ((5 << 20) + 11, 24)];
    for (seed, (len, rounds)) in (1..).zip(sizes) {
        if !subject.fits_twice(len as u64) {
            continue;
        }
        let mut random = Random::new(seed);
        let mut known = Known::new(subject, len, seed);
        for round in 0..rounds {
            let (start, end) = part(&mut random, len);
            match random.below(3) {
                0 => known.put(start, &pattern(seed << 32 | round, end - start)),
                1 => known.fill(start, end, random.below(256) as u8),
                _ => known.check_part(start, end),
            }
        }
        known.check();
        // A source or target may be dropped as soon as it is no longer read or written.
        let sheet = Sheet::of(&pattern(seed, len));
        drop(sheet.copy_into(&known.block, 0).expect("a copy starts").wait());
        drop(sheet);
        known.model = pattern(seed, len);
        known.check();
    }
}

/// Draws a part of `len` bytes: any part, a short one, or one that reaches an end.
pub(super) fn part(random: &mut Random, len: usize) -> (usize, usize) {
    let mut at = || random.below(len as u64 + 1) as usize;
    let (a, b) = (at(), at());
    let (start, end) = (a.min(b), a.max(b));
    match random.below(4) {
        0 => (start, (start + 67).min(len)),
        1 => (0, end),
        2 => (start, len),
        _ => (start, end),
    }
}
