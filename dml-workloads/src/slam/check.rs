//! What a run found, against the room and the way that the frames were made of.

use super::math::{Vector, length, minus};
use super::{Frames, Pose, Run, Size, scene};
use std::fmt::Write;

/// The absolute trajectory error of a run, in metres.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Accuracy {
    /// The mean distance of the camera to where it was.
    pub mean_m: f64,
    /// The largest distance.
    pub max_m: f64,
}

impl Accuracy {
    /// Compares the poses of a run with the way of the camera; `None` if the way is not known or the run has
    /// no frames. Both begin at the same place, so nothing is aligned.
    #[must_use]
    pub fn of(run: &Run, frames: &Frames) -> Option<Self> {
        let seen = &run.seen;
        let off: Vec<f64> =
            seen.iter().zip(frames.way()?).map(|(seen, pose)| apart(&seen.pose, pose)).collect();
        let max_m = off.iter().copied().reduce(f64::max)?;
        Some(Self { mean_m: off.iter().sum::<f64>() / off.len() as f64, max_m })
    }
}

/// Returns the largest distance of the cameras of two runs in one frame, in metres.
#[must_use]
pub fn most_apart(one: &Run, other: &Run) -> f64 {
    let pairs = one.seen.iter().zip(&other.seen);
    pairs.map(|(one, other)| apart(&one.pose, &other.pose)).fold(0.0, f64::max)
}

fn apart(one: &Pose, other: &Pose) -> f64 {
    let off = length(minus(one.place(), other.place()));
    // The greatest of several numbers leaves out what is none.
    if off.is_nan() { f64::INFINITY } else { off }
}

/// Returns the mean distance of the surfaces of a volume to those of the generated room, in metres, and their
/// number; `None` if the volume has none. A surface is where the distance changes its sign between two voxels
/// along an axis, both of which were seen at least twice.
///
/// # Panics
/// If the volume has fewer voxels than its size says.
#[must_use]
pub fn surface_error(volume: &[[i16; 2]], size: &Size) -> Option<(f64, usize)> {
    let edge = size.edge as usize;
    let voxel = f64::from(size.voxel());
    let (mut sum, mut count) = (0.0, 0);
    for (at, [value, weight]) in volume.iter().enumerate() {
        let place = [at % edge, at / edge % edge, at / edge / edge];
        for (axis, step) in [1, edge, edge * edge].into_iter().enumerate() {
            if place[axis] + 1 == edge {
                continue;
            }
            let [next, next_weight] = volume[at + step];
            if *weight < 2 || next_weight < 2 || (*value < 0) == (next < 0) {
                continue;
            }
            let part = f64::from(*value) / (f64::from(*value) - f64::from(next));
            let mut point: Vector = place.map(|index| (index as f64 + 0.5) * voxel);
            point[axis] += part * voxel;
            sum += scene::distance(point);
            count += 1;
        }
    }
    (count > 0).then(|| (sum / count as f64, count))
}

/// Returns a picture of the surfaces that the last raycast has seen, from its normals: red, green, blue and
/// alpha.
#[must_use]
pub fn shaded(normals: &[[f32; 3]]) -> Vec<[u8; 4]> {
    let shade = |normal: &[f32; 3]| {
        if normal[0] == -2.0 {
            return [0, 0, 0, 255];
        }
        // A lamp above the camera on the left, and one on the right with another colour.
        let lit = |lamp: [f32; 3]| normal.iter().zip(lamp).map(|(a, b)| a * b).sum::<f32>().max(0.0);
        let (left, right) = (lit([-0.48, -0.6, -0.64]), lit([0.8, 0.0, -0.6]));
        let channel = |a: f32, b: f32| (30.0 + 170.0 * (a * left + b * right)).min(255.0) as u8;
        [channel(1.0, 0.35), channel(0.9, 0.45), channel(0.75, 0.6), 255]
    };
    normals.iter().map(shade).collect()
}

/// Draws the way of the camera as a run found it, and as it was if that is known, from above and from the
/// side.
#[must_use]
pub fn trajectory_svg(run: &Run, frames: &Frames) -> String {
    const PANEL: f64 = 320.0;
    const MARGIN: f64 = 40.0;

    let found: Vec<Vector> = run.seen.iter().map(|seen| seen.pose.place()).collect();
    let true_way: Vec<Vector> = frames.way().unwrap_or_default().iter().map(Pose::place).collect();
    let bound = |axis: usize, pick: fn(f64, f64) -> f64, start: f64| {
        found.iter().chain(&true_way).map(|place| place[axis]).fold(start, pick)
    };
    let least: Vector = std::array::from_fn(|axis| bound(axis, f64::min, f64::INFINITY));
    let most: Vector = std::array::from_fn(|axis| bound(axis, f64::max, f64::NEG_INFINITY));
    let extent = minus(most, least).into_iter().fold(1e-3, f64::max);
    let (width, height) = (2.0 * PANEL + 3.0 * MARGIN, PANEL + 2.5 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (panel, (title, [across, down])) in
        [("from above: x, z", [0, 2]), ("from the side: z, y", [2, 1])].into_iter().enumerate()
    {
        let left = MARGIN + panel as f64 * (PANEL + MARGIN);
        let _ = writeln!(svg, "<text x=\"{left}\" y=\"24\">{title}, {:.0} mm wide</text>", extent * 1e3);
        for (way, style) in [
            (&true_way, "stroke=\"#999\" stroke-width=\"5\""),
            (&found, "stroke=\"#c33\" stroke-width=\"1.5\""),
        ] {
            let points: Vec<String> = way
                .iter()
                .map(|place| {
                    let to = |axis: usize| (place[axis] - least[axis]) / extent * PANEL;
                    format!("{:.1},{:.1}", left + to(across), MARGIN + to(down))
                })
                .collect();
            let _ = writeln!(svg, "<polyline fill=\"none\" {style} points=\"{}\"/>", points.join(" "));
        }
    }
    let legend = height - 14.0;
    let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{legend}\" fill=\"#c33\">found</text>");
    if !true_way.is_empty() {
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{legend}\" fill=\"#777\">true</text>", MARGIN + 60.0);
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::Operations;
    use crate::slam::{Seen, TINY};
    use std::time::Duration;

    fn run(poses: &[Pose]) -> Run {
        let seen = |pose: &Pose| Seen {
            pose: *pose,
            is_tracked: Some(true),
            iterations: 1,
            is_integrated: true,
            latency: Duration::ZERO,
        };
        let seen = poses.iter().map(seen).collect();
        Run { seen, duration: Duration::ZERO, operations: Operations::default() }
    }

    #[test]
    fn a_camera_that_stands_still_or_is_late_is_wrong() {
        let frames = Frames::generate(TINY, 20, 1).unwrap();
        let way = frames.way().unwrap();
        let off = |poses: &[Pose]| Accuracy::of(&run(poses), &frames).unwrap();
        assert_eq!(off(way), Accuracy { mean_m: 0.0, max_m: 0.0 });
        let still = off(&[way[0]; 20]);
        assert!(still.mean_m > frames.most_error_m() && still.max_m > still.mean_m, "{still:?}");
        assert_eq!(most_apart(&run(way), &run(&[way[0]; 20])), still.max_m);
    }

    #[test]
    fn surfaces_are_found_between_voxels_and_others_are_off() {
        let (size, edge) = (TINY, TINY.edge as usize);
        let voxel = f64::from(size.voxel());
        // The floor of the room, or a plane a fifth of a metre above it.
        let volume = |floor: f64| -> Vec<[i16; 2]> {
            let value = |at: usize| {
                let y = ((at / edge % edge) as f64 + 0.5) * voxel;
                [((floor - y) / voxel * 1000.0).clamp(-30_000.0, 30_000.0) as i16, 2]
            };
            (0..edge.pow(3)).map(value).collect()
        };
        let [on, above] = [3.7, 3.5].map(|floor| surface_error(&volume(floor), &size).unwrap());
        assert_eq!((on.1, above.1), (edge * edge, edge * edge));
        assert!(above.0 > voxel / 2.0 && above.0 > on.0, "{on:?} {above:?}");
        let unseen: Vec<_> = volume(3.7).into_iter().map(|[value, _]| [value, 1]).collect();
        assert_eq!(surface_error(&unseen, &size), None);
    }
}
