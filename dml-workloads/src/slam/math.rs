//! Rigid motions, the camera, and the step of the tracking that the host solves.

/// A point or a direction, in metres.
pub(super) type Vector = [f64; 3];

/// A rigid motion: a rotation, then a translation in metres.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pose {
    rotation: [Vector; 3],
    translation: Vector,
}

/// A pinhole camera: focal lengths and the centre of the image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Camera {
    /// Focal length along columns and rows.
    pub focal: [f64; 2],
    /// Column and row of the optical axis.
    pub centre: [f64; 2],
}

pub(super) fn dot(a: Vector, b: Vector) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

pub(super) fn plus(a: Vector, b: Vector) -> Vector {
    std::array::from_fn(|axis| a[axis] + b[axis])
}

pub(super) fn minus(a: Vector, b: Vector) -> Vector {
    std::array::from_fn(|axis| a[axis] - b[axis])
}

pub(super) fn times(a: Vector, factor: f64) -> Vector {
    a.map(|value| value * factor)
}

pub(super) fn length(a: Vector) -> f64 {
    dot(a, a).sqrt()
}

fn cross(a: Vector, b: Vector) -> Vector {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

impl Pose {
    /// The motion that moves nothing.
    pub const IDENTITY: Self =
        Self { rotation: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], translation: [0.0; 3] };

    /// Returns the pose of a camera at a place, turned by `yaw` about the vertical axis after `pitch` about
    /// the horizontal one, in radians.
    #[must_use]
    pub fn at(place: [f64; 3], yaw: f64, pitch: f64) -> Self {
        let turned = Self::exp([0.0, 0.0, 0.0, 0.0, yaw, 0.0]);
        Self { translation: place, ..turned.after(&Self::exp([0.0, 0.0, 0.0, pitch, 0.0, 0.0])) }
    }

    /// Returns where the origin moves, in metres.
    #[must_use]
    pub fn place(&self) -> [f64; 3] {
        self.translation
    }

    /// Returns the motion of a constant velocity after one unit of time: three components of the velocity in
    /// metres, and three of the angular velocity in radians.
    #[must_use]
    pub fn exp(twist: [f64; 6]) -> Self {
        let (velocity, turn) = ([twist[0], twist[1], twist[2]], [twist[3], twist[4], twist[5]]);
        let angle = length(turn);
        let squared = angle * angle;
        // Series where the quotients cancel.
        let (sine, cosine, rest) = if angle < 1e-4 {
            (1.0 - squared / 6.0, 0.5 - squared / 24.0, 1.0 / 6.0 - squared / 120.0)
        } else {
            let (sine, cosine) = angle.sin_cos();
            (sine / angle, (1.0 - cosine) / squared, (angle - sine) / (squared * angle))
        };
        let turned = |vector: Vector, [zeroth, first, second]: [f64; 3]| {
            let once = cross(turn, vector);
            let twice = cross(turn, once);
            plus(times(vector, zeroth), plus(times(once, first), times(twice, second)))
        };
        let axes = Self::IDENTITY.rotation.map(|axis| turned(axis, [1.0, sine, cosine]));
        let rotation = std::array::from_fn(|row| std::array::from_fn(|column| axes[column][row]));
        Self { rotation, translation: turned(velocity, [1.0, cosine, rest]) }
    }

    /// Returns the motion that does `first`, then this one.
    #[must_use]
    pub fn after(&self, first: &Self) -> Self {
        let columns: [Vector; 3] = std::array::from_fn(|column| first.rotation.map(|row| row[column]));
        let rotation = self.rotation.map(|row| columns.map(|column| dot(row, column)));
        Self { rotation, translation: self.apply(first.translation) }
    }

    /// Returns the motion back.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let rotation: [Vector; 3] = std::array::from_fn(|column| self.rotation.map(|row| row[column]));
        let translation = rotation.map(|row| -dot(row, self.translation));
        Self { rotation, translation }
    }

    /// Moves a point.
    #[must_use]
    pub fn apply(&self, point: [f64; 3]) -> [f64; 3] {
        plus(self.rotate(point), self.translation)
    }

    /// Turns a direction.
    #[must_use]
    pub fn rotate(&self, direction: [f64; 3]) -> [f64; 3] {
        self.rotation.map(|row| dot(row, direction))
    }

    /// Returns the angle of the rotation, in radians.
    #[cfg(test)]
    pub(super) fn angle(&self) -> f64 {
        let [x, y, z] = [[2, 1], [0, 2], [1, 0]]
            .map(|[row, column]| self.rotation[row][column] - self.rotation[column][row]);
        let trace = self.rotation[0][0] + self.rotation[1][1] + self.rotation[2][2];
        length([x, y, z]).atan2(trace - 1.0)
    }

    /// Returns the rotation as a quaternion: x, y, z and w.
    #[must_use]
    pub fn quaternion(&self) -> [f64; 4] {
        let [[xx, xy, xz], [yx, yy, yz], [zx, zy, zz]] = self.rotation;
        let [x, y, z] = [[xx, yy, zz], [yy, zz, xx], [zz, xx, yy]]
            .map(|[plus, minus, less]| (1.0 + plus - minus - less).max(0.0).sqrt() / 2.0);
        let w = (1.0 + xx + yy + zz).max(0.0).sqrt() / 2.0;
        [x.copysign(zy - yz), y.copysign(xz - zx), z.copysign(yx - xy), w]
    }

    /// Returns the rows of the matrix, as kernels take them.
    pub(super) fn matrix(&self) -> [f32; 12] {
        matrix(&self.rotation, self.translation)
    }
}

fn matrix(rows: &[Vector; 3], last: Vector) -> [f32; 12] {
    let mut values = [0.0; 12];
    for ((to, row), last) in values.chunks_exact_mut(4).zip(rows).zip(last) {
        to.copy_from_slice(&[row[0] as f32, row[1] as f32, row[2] as f32, last as f32]);
    }
    values
}

impl Camera {
    /// Returns the camera of an image with half the columns and rows, `level` times.
    #[must_use]
    pub fn halved(&self, level: u32) -> Self {
        let halve = |value: f64| value / f64::from(1_u32 << level);
        Self { focal: self.focal.map(halve), centre: self.centre.map(halve) }
    }

    /// Returns the direction of a pixel, whose third component is 1.
    #[must_use]
    pub fn direction(&self, [column, row]: [f64; 2]) -> [f64; 3] {
        [(column - self.centre[0]) / self.focal[0], (row - self.centre[1]) / self.focal[1], 1.0]
    }

    /// Returns the values that kernels take: both focal lengths, then the centre.
    pub(super) fn values(&self) -> [f32; 4] {
        [self.focal[0], self.focal[1], self.centre[0], self.centre[1]].map(|value| value as f32)
    }

    /// Returns the matrix that takes a point of the world to its column and row, times its depth, and its
    /// depth.
    pub(super) fn projection(&self, to_camera: &Pose) -> [f32; 12] {
        let Pose { rotation: [x, y, z], translation } = *to_camera;
        let [fx, fy] = self.focal;
        let [cx, cy] = self.centre;
        let rows = [plus(times(x, fx), times(z, cx)), plus(times(y, fy), times(z, cy)), z];
        let [right, down, depth] = translation;
        matrix(&rows, [right * fx + depth * cx, down * fy + depth * cy, depth])
    }
}

/// Solves the normal equations of the sums that a reduction returns: the motion that lessens the error, as
/// [`Pose::exp`] takes it. Returns zeros if the pixels do not determine it.
///
/// # Shape and units
/// - 0: the squared error.
/// - 1 to 6: the products of the error and the derivatives.
/// - 7 to 27: the upper triangle of the products of derivatives, by rows.
/// - 28: the number of pixels.
pub(super) fn solve(sums: &[f64; 32]) -> [f64; 6] {
    // The upper triangle has 6 elements in its first row, 5 in the next, and so on.
    let product = |row: usize, column: usize| sums[7 + row * (13 - row) / 2 + column - row];
    let mut matrix: [[f64; 6]; 6] =
        std::array::from_fn(|row| std::array::from_fn(|column| product(row.min(column), row.max(column))));
    // Cholesky: the lower triangle replaces the matrix.
    let largest = (0..6).map(|at| matrix[at][at]).fold(0.0, f64::max);
    for column in 0..6 {
        for row in column..6 {
            let known: f64 = (0..column).map(|at| matrix[row][at] * matrix[column][at]).sum();
            let rest = matrix[row][column] - known;
            if row > column {
                matrix[row][column] = rest / matrix[column][column];
            } else if rest > largest * f64::from(f32::EPSILON) {
                matrix[row][column] = rest.sqrt();
            } else {
                return [0.0; 6];
            }
        }
    }
    let mut values = [0.0; 6];
    for row in 0..6 {
        let known: f64 = (0..row).map(|at| matrix[row][at] * values[at]).sum();
        values[row] = (sums[row + 1] - known) / matrix[row][row];
    }
    for row in (0..6).rev() {
        let known: f64 = (row + 1..6).map(|at| matrix[at][row] * values[at]).sum();
        values[row] = (values[row] - known) / matrix[row][row];
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWIST: [f64; 6] = [0.3, -0.2, 0.5, 0.1, 0.4, -0.25];

    fn close(a: &[f64], b: &[f64]) {
        let off = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-9, "{a:?} is not {b:?}");
    }

    #[test]
    fn a_motion_and_its_inverse_cancel() {
        let motion = Pose::exp(TWIST);
        let back = motion.inverse().after(&motion);
        close(back.rotation.as_flattened(), Pose::IDENTITY.rotation.as_flattened());
        close(&back.place(), &[0.0; 3]);
        let point = [1.0, 2.0, 3.0];
        close(&motion.inverse().apply(motion.apply(point)), &point);
    }

    #[test]
    fn a_velocity_for_twice_the_time_is_the_motion_twice() {
        for scale in [1.0, 1e-3, 1e-6] {
            let half = Pose::exp(TWIST.map(|value| value * scale / 2.0));
            let (once, twice) = (Pose::exp(TWIST.map(|value| value * scale)), half.after(&half));
            close(once.rotation.as_flattened(), twice.rotation.as_flattened());
            close(&once.place(), &twice.place());
            let angle = length([TWIST[3], TWIST[4], TWIST[5]]) * scale;
            close(&[once.angle()], &[angle]);
        }
    }

    #[test]
    fn quaternion_has_the_axis_and_half_the_angle() {
        let turn = [TWIST[3], TWIST[4], TWIST[5]];
        let (angle, [x, y, z, w]) = (length(turn), Pose::exp(TWIST).quaternion());
        close(&[w], &[(angle / 2.0).cos()]);
        close(&[x, y, z], &times(turn, (angle / 2.0).sin() / angle));
    }

    #[test]
    fn yaw_turns_the_view_to_the_right_and_pitch_up() {
        let pose = Pose::at([1.0, 2.0, 3.0], 0.5, 0.0);
        close(&pose.rotate([0.0, 0.0, 1.0]), &[0.5_f64.sin(), 0.0, 0.5_f64.cos()]);
        let pose = Pose::at([0.0; 3], 0.0, 0.5);
        close(&pose.rotate([0.0, 0.0, 1.0]), &[0.0, -0.5_f64.sin(), 0.5_f64.cos()]);
    }

    #[test]
    fn projection_finds_the_pixel_of_a_direction() {
        let camera = Camera { focal: [481.2, 480.0], centre: [320.0, 240.0] };
        let pose = Pose::exp(TWIST);
        let point = pose.apply(times(camera.direction([100.0, 50.0]), 2.5));
        let [x, y, z]: Vector = std::array::from_fn(|row| {
            let projection = camera.projection(&pose.inverse()).map(f64::from);
            dot([projection[4 * row], projection[4 * row + 1], projection[4 * row + 2]], point)
                + projection[4 * row + 3]
        });
        assert!((x / z - 100.0).abs() < 1e-3 && (y / z - 50.0).abs() < 1e-3 && (z - 2.5).abs() < 1e-5);
    }

    #[test]
    fn equations_are_solved_and_undetermined_ones_move_nothing() {
        let value = |index| f64::from(crate::random::signed_unit(5, index));
        let derivatives: Vec<[f64; 6]> =
            (0..20).map(|row| std::array::from_fn(|column| value(6 * row + column as u64))).collect();
        let sums = |rows: &[[f64; 6]]| {
            let mut sums = [0.0; 32];
            for row in rows {
                let error: f64 = row.iter().zip(TWIST).map(|(value, twist)| value * twist).sum();
                let mut next = 7;
                for first in 0..6 {
                    sums[first + 1] += row[first] * error;
                    for second in first..6 {
                        sums[next] += row[first] * row[second];
                        next += 1;
                    }
                }
            }
            sums
        };
        close(&solve(&sums(&derivatives)), &TWIST);
        assert_eq!(solve(&sums(&derivatives[..5])), [0.0; 6]);
        assert_eq!(solve(&sums(&[])), [0.0; 6]);
    }
}
