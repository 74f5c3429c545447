//! The independent reference: a separated blur in double precision, band by band.

use super::Problem;
use rayon::prelude::*;

/// Rows of output per parallel task.
const ROWS_PER_BAND: usize = 64;

/// The first wrong pixel.
pub(super) struct Difference {
    /// Its number, row-major.
    pub(super) pixel: usize,
    /// Its expected colour.
    pub(super) expected: [u8; 4],
}

/// Finds the first pixel with a channel that differs by more than one.
pub(super) fn first_difference(problem: &Problem, out: &[[u8; 4]]) -> Option<Difference> {
    let width = problem.width() as usize;
    if out.is_empty() {
        return None;
    }
    let profile = profile(problem.radius());
    out.par_chunks(ROWS_PER_BAND * width).enumerate().find_map_first(|(band, out)| {
        let expected = blur_band(problem, &profile, band * ROWS_PER_BAND, out.len() / width);
        let differs = |(left, right): (&u8, &u8)| left.abs_diff(*right) > 1;
        let position = out
            .iter()
            .zip(&expected)
            .position(|(found, expected)| found.iter().zip(expected).any(differs))?;
        Some(Difference { pixel: band * ROWS_PER_BAND * width + position, expected: expected[position] })
    })
}

/// Returns the weights along one axis, from the centre outwards.
fn profile(radius: u32) -> Vec<f64> {
    let sigma = f64::from(2 * radius + 1) / 6.0;
    let densities: Vec<f64> =
        (0..=radius).map(|distance| (-0.5 * (f64::from(distance) / sigma).powi(2)).exp()).collect();
    let sum = densities[0] + 2.0 * densities[1..].iter().sum::<f64>();
    densities.into_iter().map(|density| density / sum).collect()
}

/// Blurs `rows` rows from `first_row` on: along columns first, then along rows.
fn blur_band(problem: &Problem, profile: &[f64], first_row: usize, rows: usize) -> Vec<[u8; 4]> {
    let (width, height) = (problem.width() as usize, problem.height() as usize);
    let image = problem.image();
    let row = |number: usize| &image[number * width..][..width];
    let mut blurred = Vec::with_capacity(rows * width);
    let mut vertical = vec![[0.0_f64; 4]; width];
    for middle in first_row..first_row + rows {
        for (sum, pixel) in vertical.iter_mut().zip(row(middle)) {
            *sum = pixel.map(|channel| profile[0] * f64::from(channel));
        }
        for (distance, weight) in profile.iter().enumerate().skip(1) {
            let above = row(middle.saturating_sub(distance));
            let below = row((middle + distance).min(height - 1));
            for ((sum, above), below) in vertical.iter_mut().zip(above).zip(below) {
                for channel in 0..4 {
                    sum[channel] += weight * (f64::from(above[channel]) + f64::from(below[channel]));
                }
            }
        }
        for column in 0..width {
            let mut sum = vertical[column].map(|channel| channel * profile[0]);
            for (distance, weight) in profile.iter().enumerate().skip(1) {
                let left = vertical[column.saturating_sub(distance)];
                let right = vertical[(column + distance).min(width - 1)];
                for channel in 0..4 {
                    sum[channel] += weight * (left[channel] + right[channel]);
                }
            }
            blurred.push(sum.map(|channel| channel.round() as u8));
        }
    }
    blurred
}
