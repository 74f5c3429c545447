//! The generated input picture: a lake under mountains at dusk.
//!
//! ```text
//!   sky gradient, stars, sun ─▶ three ridges ─▶ lake that mirrors them ─▶ hatched frame ─▶ grain
//! ```
//!
//! Smooth gradients expose banding, and outlines expose shifts. Hatching and grain make the effect of a blur
//! visible. Neighbouring pixels almost always differ, so a stale or misplaced pixel shows. The picture uses
//! only operations that every machine rounds alike, such as sums, products, divisions and square roots. So a
//! seed gives the same picture on every machine.

use crate::random;
use rayon::prelude::*;

/// Red, green and blue as fractions of full brightness.
type Colour = [f32; 3];

/// Upper edge of the lake, as a fraction of the height from the top.
const SHORE: f32 = 0.68;

/// Ridges from the farthest to the nearest: height of the base line, roughness, number of hills, colour.
const RIDGES: [(f32, f32, f32, Colour); 3] = [
    (0.50, 0.22, 3.0, [0.42, 0.33, 0.52]),
    (0.58, 0.20, 5.0, [0.25, 0.20, 0.38]),
    (0.66, 0.16, 8.0, [0.10, 0.10, 0.20]),
];

/// Draws the scene, row-major, in the current rayon pool.
pub(crate) fn draw(width: u32, height: u32, seed: u64) -> Vec<[u8; 4]> {
    let scene = Scene::new(width, height, seed);
    let mut pixels = vec![[0; 4]; width as usize * height as usize];
    if !pixels.is_empty() {
        pixels.par_chunks_mut(width as usize).zip(0..height).for_each(|(pixels, row)| {
            for (pixel, column) in pixels.iter_mut().zip(0..width) {
                *pixel = scene.pixel(column, row);
            }
        });
    }
    pixels
}

struct Scene {
    width: u32,
    height: u32,
    seed: u64,
    /// Upper edge of each ridge in each column, as a fraction of the height from the top.
    ridges: [Vec<f32>; 3],
    sun: (f32, f32),
}

impl Scene {
    fn new(width: u32, height: u32, seed: u64) -> Self {
        let ridges = std::array::from_fn(|number| {
            let (base, roughness, hills, _) = RIDGES[number];
            let stream = random::stream(seed, number as u64);
            (0..width)
                .map(|column| {
                    let across = (column as f32 + 0.5) / width as f32;
                    base - roughness * (fractal_noise(stream, across * hills) - 0.35)
                })
                .collect()
        });
        let sun = (0.25 + 0.5 * random::unit(seed, 0), 0.30 + 0.08 * random::unit(seed, 1));
        Self { width, height, seed, ridges, sun }
    }

    fn pixel(&self, column: u32, row: u32) -> [u8; 4] {
        let across = (column as f32 + 0.5) / self.width as f32;
        let down = (row as f32 + 0.5) / self.height as f32;
        let mut colour =
            if down < SHORE { self.land(column, across, down) } else { self.lake(column, row, across, down) };
        let from_edge = across.min(1.0 - across).min(down).min(1.0 - down);
        if from_edge < 0.02 {
            // Diagonals one pixel high: the finest possible texture.
            let stripe = (column + 2 * row) % 6;
            colour = mix(colour, [0.95, 0.90, 0.78], if stripe < 2 { 0.9 } else { 0.45 });
        }
        let index = u64::from(row) * u64::from(self.width) + u64::from(column);
        let grain = random::word(self.seed, index).to_le_bytes();
        let byte = |channel: usize| {
            // Sixteen levels of grain, centred on the colour. The offset is 7.5 and not 8 to round to the
            // nearest level.
            (colour[channel] * 255.0 + f32::from(grain[channel]) / 16.0 - 7.5) as u8
        };
        [byte(0), byte(1), byte(2), 255 - grain[3] / 16]
    }

    fn land(&self, column: u32, across: f32, down: f32) -> Colour {
        let mut colour = self.sky(across, down);
        for (number, (_, _, _, ridge)) in RIDGES.iter().enumerate() {
            let top = self.ridges[number][column as usize];
            if down >= top {
                // Haze gathers in the valleys.
                let depth = ((down - top) / 0.25).min(1.0);
                colour = mix(*ridge, [0.86, 0.56, 0.48], 0.35 * depth * (1.0 - number as f32 / 3.0));
            }
        }
        colour
    }

    fn sky(&self, across: f32, down: f32) -> Colour {
        let dusk = (down / SHORE).min(1.0);
        let mut colour = if dusk < 0.55 {
            mix([0.05, 0.07, 0.22], [0.45, 0.28, 0.52], dusk / 0.55)
        } else {
            mix([0.45, 0.28, 0.52], [1.00, 0.68, 0.38], (dusk - 0.55) / 0.45)
        };
        let aspect = self.width as f32 / self.height as f32;
        let (right, below) = ((across - self.sun.0) * aspect, down - self.sun.1);
        let from_sun = (right * right + below * below).sqrt();
        let halo = 1.0 / (1.0 + 60.0 * from_sun * from_sun);
        colour = mix(colour, [1.0, 0.80, 0.50], 0.7 * halo);
        if from_sun < 0.075 {
            colour = mix([1.0, 0.97, 0.80], [1.0, 0.78, 0.45], from_sun / 0.075);
        }
        // A star in one of ten cells of a grid, fading towards the horizon.
        let (cell_x, cell_y) = (across * aspect * 60.0, down * 60.0);
        let cell = cell_x as u64 + (cell_y as u64) * 100_000;
        let star = random::stream(self.seed ^ 0x57A5, cell);
        if random::unit(star, 0) < 0.10 {
            let (right, below) = (
                cell_x.fract() - 0.2 - 0.6 * random::unit(star, 1),
                cell_y.fract() - 0.2 - 0.6 * random::unit(star, 2),
            );
            let glow = (1.0 - (right * right + below * below).sqrt() / 0.16).max(0.0);
            colour = mix(colour, [1.0, 1.0, 0.95], glow * (1.0 - dusk / 0.7).max(0.0));
        }
        colour
    }

    fn lake(&self, column: u32, row: u32, across: f32, down: f32) -> Colour {
        let depth = (down - SHORE) / (1.0 - SHORE);
        // Ripples grow towards the viewer and shift the reflection.
        let ripple =
            noise(self.seed ^ 0x1A4E, 3.0 / (0.03 + depth) * 8.0 + 2.0 * noise(self.seed, across * 14.0))
                - 0.5;
        let mirrored = SHORE - (down - SHORE) * 1.6 + ripple * 0.10 * depth;
        let shift = (ripple * 0.03 * self.width as f32) as i64;
        let column = (i64::from(column) + shift).clamp(0, i64::from(self.width) - 1) as u32;
        let colour = self.land(column, across, mirrored.clamp(0.0, SHORE));
        let glint = if random::unit(self.seed ^ 0x611, u64::from(row / 2)) > 0.8 { 0.10 } else { 0.0 };
        mix(
            mix(colour, [0.05, 0.10, 0.20], 0.30 + 0.25 * depth),
            [1.0, 0.85, 0.65],
            glint + 0.12 * ripple.max(0.0),
        )
    }
}

fn mix(from: Colour, to: Colour, share: f32) -> Colour {
    std::array::from_fn(|channel| from[channel] + (to[channel] - from[channel]) * share)
}

/// Returns smooth noise in `0.0..1.0` along a line, with a new random value at every integer.
fn noise(seed: u64, position: f32) -> f32 {
    let (cell, share) = (position.floor(), position - position.floor());
    let (from, to) = (random::unit(seed, cell as u64), random::unit(seed, cell as u64 + 1));
    from + (to - from) * share * share * (3.0 - 2.0 * share)
}

/// Returns noise in `0.0..1.0` with detail at seven scales.
fn fractal_noise(seed: u64, position: f32) -> f32 {
    let (mut sum, mut weight, mut scale) = (0.0, 0.5, 1.0);
    for octave in 0..7 {
        sum += weight * noise(random::stream(seed, octave), position * scale);
        weight *= 0.48;
        scale *= 2.1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scene_depends_on_seed_and_position() {
        let scene = draw(160, 100, 1);
        assert_eq!(scene, draw(160, 100, 1));
        assert_ne!(scene, draw(160, 100, 2));
        let equal_to_next = scene.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(equal_to_next < scene.len() / 100, "{equal_to_next} pixels equal the next one");
        for (width, height) in [(0, 0), (0, 3), (3, 0), (1, 1), (1, 9), (9, 1)] {
            assert_eq!(draw(width, height, 3).len(), (width * height) as usize);
        }
    }
}
