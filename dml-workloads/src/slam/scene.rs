//! Generated frames: what a depth camera sees on its way through a room, and the way itself.
//!
//! ```text
//!   room of planes, boxes, spheres ─┐
//!                                   ├─▶ depth of each pixel ─ noise, rounding ─▶ frame, in millimetres
//!   closed way of the camera ───────┘
//! ```
//! Axes are those of the volume: x to the right, y down, z forward. The camera starts at the middle of the
//! volume's front, and looks forward.

use super::math::{Camera, Pose, Vector, length, minus, plus};
use crate::random;
use rayon::prelude::*;

/// Edge of the volume, in metres.
pub(super) const VOLUME_M: f64 = 4.8;
/// Where the camera starts, in metres.
const START: Vector = [VOLUME_M / 2.0, VOLUME_M / 2.0, 0.0];
/// The inside of the room: the least and the greatest coordinates. It has no front wall within sight.
const ROOM: [Vector; 2] = [[0.4, 0.9, -2.0], [4.4, 3.7, 3.7]];
/// Boxes: the least and the greatest coordinates.
const BOXES: [[Vector; 2]; 5] = [
    [[0.9, 2.9, 2.3], [1.9, 3.7, 3.2]],
    [[2.6, 3.2, 1.9], [3.1, 3.7, 2.4]],
    [[3.6, 1.7, 2.7], [4.4, 3.7, 3.7]],
    [[1.2, 1.2, 3.4], [2.2, 2.0, 3.7]],
    [[0.4, 2.1, 2.0], [0.7, 2.3, 3.4]],
];
/// Spheres: centre and radius.
const SPHERES: [(Vector, f64); 4] =
    [([1.4, 2.65, 2.7], 0.25), ([2.85, 3.0, 2.15], 0.2), ([2.4, 3.3, 3.1], 0.4), ([2.9, 1.3, 3.3], 0.3)];
/// Mean way of the camera from frame to frame, in metres. The greatest is about twice as long.
const WAY_M: f64 = 0.003;
/// Maximum radius of the way, in metres.
const RADIUS_M: f64 = 0.45;
/// Angle to which the camera turns on a way of the maximum radius, in radians.
const TURN: f64 = 0.25;
/// Standard deviation of a depth, in metres: at 0.4 metres, and for each square metre of distance from there.
/// Source: Nguyen, Izadi and Lovell, "Modeling Kinect Sensor Noise for Improved 3D Reconstruction and
/// Tracking", 2012.
const NOISE_M: [f64; 2] = [0.0012, 0.0019];

/// Returns the pose of the camera in a frame: on a closed way, at rest at its beginning and its end.
pub(super) fn pose(frame: u32, frames: u32) -> Pose {
    use std::f64::consts::TAU;

    let part = f64::from(frame) / f64::from(frames.max(1));
    let phase = TAU * part - (TAU * part).sin();
    let radius = (f64::from(frames) * WAY_M / TAU).min(RADIUS_M);
    let turn = TURN * radius / RADIUS_M;
    let (sine, cosine) = phase.sin_cos();
    let off = [radius * sine, 0.4 * radius * (2.0 * phase).sin(), radius * (1.0 - cosine)];
    Pose::at(plus(START, off), turn * sine, 0.5 * turn * (2.0 * phase).sin())
}

/// Returns the depths that the camera sees, in millimetres and row-major, with noise of this seed. A pixel
/// without a surface is 0.
pub(super) fn depths(camera: &Camera, pose: &Pose, [width, height]: [u32; 2], seed: u64) -> Vec<u16> {
    let mut depths = vec![0; width as usize * height as usize];
    let rows = depths.par_chunks_mut(width.max(1) as usize).zip(0..height);
    rows.for_each(|(depths, row)| {
        for (depth, column) in depths.iter_mut().zip(0..width) {
            let direction = pose.rotate(camera.direction([f64::from(column), f64::from(row)]));
            // The third component of the camera's direction is 1, so this is a depth and not a distance.
            let seen = hit(pose.place(), direction);
            let off = (seen - 0.4).max(0.0);
            let deviation = NOISE_M[0] + NOISE_M[1] * off * off;
            let pixel = u64::from(row) * u64::from(width) + u64::from(column);
            *depth = ((seen + deviation * normal(random::word(seed, pixel))) * 1000.0).round() as u16;
        }
    });
    depths
}

/// Returns a value of about the normal distribution, from the four parts of a random word.
fn normal(word: u64) -> f64 {
    let sum: u32 = [0, 16, 32, 48].iter().map(|shift| (word >> shift) as u32 & 0xFFFF).sum();
    // Each part has a mean of 1/2 and a variance of 1/12.
    (f64::from(sum) / 65_536.0 - 2.0) * 3.0_f64.sqrt()
}

/// Returns the multiple of a direction after which a ray meets the first surface.
fn hit(from: Vector, direction: Vector) -> f64 {
    let [_, leave] = slab(from, direction, ROOM);
    let boxes = BOXES.iter().filter_map(|bounds| {
        let [enter, leave] = slab(from, direction, *bounds);
        (0.0 < enter && enter < leave).then_some(enter)
    });
    let spheres = SPHERES.iter().filter_map(|&(centre, radius)| {
        let off = minus(centre, from);
        let [square, along] = [direction, off].map(|other| super::math::dot(direction, other));
        let root = along * along - square * (super::math::dot(off, off) - radius * radius);
        (root > 0.0 && along > 0.0).then(|| (along - root.sqrt()) / square)
    });
    boxes.chain(spheres).fold(leave, f64::min)
}

/// Returns where a ray enters a box and leaves it.
fn slab(from: Vector, direction: Vector, [least, most]: [Vector; 2]) -> [f64; 2] {
    (0..3).fold([f64::NEG_INFINITY, f64::INFINITY], |[enter, leave], axis| {
        let ends = [least, most].map(|bound| (bound[axis] - from[axis]) / direction[axis]);
        [enter.max(ends[0].min(ends[1])), leave.min(ends[0].max(ends[1]))]
    })
}

/// Returns the distance of a point to the nearest surface, in metres.
pub(super) fn distance(point: Vector) -> f64 {
    let outside = |[least, most]: [Vector; 2]| {
        let off: Vector = std::array::from_fn(|axis| {
            let centre = (least[axis] + most[axis]) / 2.0;
            (point[axis] - centre).abs() - (most[axis] - least[axis]) / 2.0
        });
        let inside = off.into_iter().fold(f64::NEG_INFINITY, f64::max).min(0.0);
        length(off.map(|value| value.max(0.0))) + inside
    };
    let spheres = SPHERES.iter().map(|&(centre, radius)| length(minus(point, centre)) - radius);
    let surfaces = spheres.chain(BOXES.map(outside)).chain([outside(ROOM)]);
    surfaces.map(f64::abs).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::super::math::times;
    use super::*;

    const CAMERA: Camera = Camera { focal: [481.2, 480.0], centre: [320.0, 240.0] };

    #[test]
    fn way_is_closed_and_smooth() {
        let place = |frame| pose(frame, 880).place();
        assert!(length(minus(place(0), START)) < 1e-12 && length(minus(place(880), START)) < 1e-9);
        let ways: Vec<f64> = (0..880).map(|frame| length(minus(place(frame + 1), place(frame)))).collect();
        let (mean, most) = (ways.iter().sum::<f64>() / 880.0, ways.iter().copied().fold(0.0, f64::max));
        assert!((0.002..0.004).contains(&mean) && most < 0.009, "{mean} {most}");
        let turns = (0..880).map(|frame| pose(frame, 880).inverse().after(&pose(frame + 1, 880)).angle());
        assert!(turns.fold(0.0, f64::max) < 0.006);
    }

    #[test]
    fn depths_are_those_of_surfaces() {
        for frame in [0, 10, 35, 80] {
            let pose = pose(frame, 100);
            let depths = depths(&CAMERA, &pose, [640, 480], 1);
            let mut far = 0;
            for (pixel, depth) in depths.iter().enumerate() {
                let direction = CAMERA.direction([(pixel % 640) as f64, (pixel / 640) as f64]);
                let point = pose.apply(times(direction, f64::from(*depth) / 1000.0));
                // Four deviations and the rounding at the far wall. The noise is below four.
                far += usize::from(distance(point) > 0.1);
                assert!((600..4_000).contains(depth), "{depth}");
            }
            assert_eq!(far, 0);
        }
    }

    #[test]
    fn noise_depends_on_the_seed_and_has_its_deviation() {
        let pose = pose(0, 100);
        let [one, same, other] = [1, 1, 2].map(|seed| depths(&CAMERA, &pose, [64, 48], seed));
        assert!(one == same && one != other);
        let values: Vec<f64> = (0..10_000).map(|index| normal(random::word(3, index))).collect();
        let mean = values.iter().sum::<f64>() / 1e4;
        let variance = values.iter().map(|value| value * value).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
