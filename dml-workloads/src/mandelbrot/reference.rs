//! The independent reference: one point at a time, with detection of repeated orbits.

use super::{BLACK, PALETTE, Problem};

/// Period of the colours, in iterations.
const CYCLE: usize = 64;

/// Returns the colours of the counts `0..CYCLE`, by interpolation in double precision.
pub(super) fn cycle_of_colours() -> [[u8; 4]; CYCLE] {
    std::array::from_fn(|iterations| {
        let position = (iterations as f64 / 4.0 + 3.5) % PALETTE.len() as f64;
        let from = PALETTE[position.floor() as usize];
        let to = PALETTE[(position.floor() as usize + 1) % PALETTE.len()];
        let channel = |number: usize| {
            let (from, to) = (f64::from(from[number]), f64::from(to[number]));
            (from + (to - from) * position.fract() + 0.5).floor() as u8
        };
        [channel(0), channel(1), channel(2), u8::MAX]
    })
}

/// Returns the expected colour of a pixel of the row-major picture.
pub(super) fn pixel(problem: &Problem, pixel: u64, colours: &[[u8; 4]; CYCLE]) -> [u8; 4] {
    let (row, column) = (pixel / u64::from(problem.width), pixel % u64::from(problem.width));
    let x = problem.left + column as f32 * problem.step;
    let y = problem.top - row as f32 * problem.step;
    escape_time(x, y, problem.max_iterations).map_or(BLACK, |iterations| colours[iterations as usize % CYCLE])
}

/// Returns the iterations until a point leaves the circle of radius two; `None` if it stays for all of them.
///
/// In floating point the next value of an orbit depends only on the last one. So an orbit that returns to an
/// earlier value repeats for ever. Values are remembered at the powers of two (Brent's cycle detection).
fn escape_time(real: f32, imaginary: f32, max_iterations: u32) -> Option<u32> {
    let (mut x, mut y) = (0.0_f32, 0.0_f32);
    let (mut remembered, mut remember_at) = ((f32::NAN, f32::NAN), 1);
    for iterations in 0..max_iterations {
        if x * x + y * y > 4.0 {
            return Some(iterations);
        }
        (x, y) = (x * x - y * y + real, 2.0 * x * y + imaginary);
        if (x, y) == remembered {
            return None;
        }
        if iterations == remember_at {
            (remembered, remember_at) = ((x, y), remember_at * 2);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_found_only_where_orbits_stay() {
        assert_eq!(escape_time(0.0, 0.0, u32::MAX), None);
        assert_eq!(escape_time(-1.0, 0.0, u32::MAX), None);
        assert_eq!(escape_time(-0.1, 0.7, u32::MAX), None);
        assert_eq!(escape_time(2.5, 0.0, 100), Some(1));
        assert_eq!(escape_time(1.0, 0.0, 100), Some(3));
        assert_eq!(escape_time(1.0, 0.0, 3), None);
        assert_eq!(escape_time(2.5, 0.0, 0), None);
    }
}
