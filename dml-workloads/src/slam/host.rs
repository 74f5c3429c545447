//! The kernels on the host, with the operations of `kernels/slam.c`.
//!
//! A launch computes whole images. Its rows are divided among the team.

use super::{GROUPS, Kernel};
use bytemuck::{Pod, Zeroable};
use dml_arenas::launch::{Call, ComputeError, Team};

/// What marks a normal as missing.
const INVALID: f32 = -2.0;
/// Largest distance of a voxel.
const SCALE: f32 = 32766.0;
/// Distance from which on a ray makes short steps.
const NEAR: f32 = 0.8 * SCALE;
/// Rows of a volume that are a job.
const ROWS: usize = 32;

type Vector = [f32; 3];
type Matrix = [f32; 12];
type Voxel = [i16; 2];

/// What a pixel adds to the equations of the tracking, as in `kernels/slam.c`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct Equation {
    result: i32,
    error: f32,
    derivative: [f32; 6],
}

/// Returns the function of a kernel.
pub(super) fn compute(kernel: Kernel) -> fn(&mut Call<'_>) -> Result<(), ComputeError> {
    match kernel {
        Kernel::ClearVolume => clear_volume,
        Kernel::Mm2Meters => mm2meters,
        Kernel::BilateralFilter => bilateral_filter,
        Kernel::HalfSample => half_sample,
        Kernel::Depth2Vertex => depth2vertex,
        Kernel::Vertex2Normal => vertex2normal,
        Kernel::Track => track,
        Kernel::Reduce => reduce,
        Kernel::Integrate => integrate,
        Kernel::Raycast => raycast,
    }
}

/// Calls a function with the number of each row of an image and the row.
fn rows<T: Send>(team: &Team, image: &mut [T], width: usize, row: impl Fn(usize, &mut [T]) + Sync) {
    team.for_each(image.chunks_mut(width).enumerate(), |(number, to)| row(number, to));
}

fn minus(a: Vector, b: Vector) -> Vector {
    [a[0] - b[0], a[1] - b[1], a[2] - b[2]]
}

fn inner(a: Vector, b: Vector) -> f32 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn cross(a: Vector, b: Vector) -> Vector {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

fn turned(by: &Matrix, [x, y, z]: Vector) -> Vector {
    [by[0] * x + by[1] * y + by[2] * z, by[4] * x + by[5] * y + by[6] * z, by[8] * x + by[9] * y + by[10] * z]
}

#[inline(always)]
fn moved(by: &Matrix, a: Vector) -> Vector {
    let to = turned(by, a);
    [to[0] + by[3], to[1] + by[7], to[2] + by[11]]
}

/// Returns a vector of length 1; `None` for zeros.
fn normalized(a: Vector) -> Option<Vector> {
    let square = inner(a, a);
    let inverse = 1.0 / square.sqrt();
    (square > 0.0).then(|| a.map(|value| value * inverse))
}

/// Returns the camera of a launch: focal lengths, and the centre.
fn camera(call: &Call<'_>, first: usize) -> Result<[f32; 4], ComputeError> {
    Ok([call.scalar(first)?, call.scalar(first + 1)?, call.scalar(first + 2)?, call.scalar(first + 3)?])
}

fn width(call: &Call<'_>, argument: usize) -> Result<usize, ComputeError> {
    Ok(call.scalar::<u32>(argument)? as usize)
}

fn clear_volume(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (edge, team) = (width(call, 1)?, call.team());
    let volume = call.part(0)?.slice_mut::<Voxel>()?;
    rows(team, volume, edge * ROWS, |_, to| to.fill([SCALE as i16, 0]));
    Ok(())
}

fn mm2meters(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (width, team) = (width(call, 2)?, call.team());
    let [meters, millimeters] = call.parts([0, 1])?;
    let from = millimeters.slice::<u16>()?;
    rows(team, meters.slice_mut::<f32>()?, width, |y, to| {
        for (to, from) in to.iter_mut().zip(&from[y * width..]) {
            *to = f32::from(*from) / 1000.0;
        }
    });
    Ok(())
}

fn bilateral_filter(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let weights = [1.0, call.scalar::<f32>(2)?, call.scalar::<f32>(3)?];
    let (inverse_square, width, team) = (call.scalar::<f32>(4)?, width(call, 5)?, call.team());
    let [to, from] = call.parts([0, 1])?;
    let from = from.slice::<f32>()?;
    let last = [width as isize - 1, (from.len() / width) as isize - 1];
    rows(team, to.slice_mut::<f32>()?, width, |y, to| {
        for (x, to) in to.iter_mut().enumerate() {
            let centre = from[y * width + x];
            let (mut sum, mut total) = (0.0, 0.0);
            if centre > 0.0 {
                for down in -2_isize..=2 {
                    let row = (y as isize + down).clamp(0, last[1]) as usize * width;
                    for right in -2_isize..=2 {
                        let depth = from[row + (x as isize + right).clamp(0, last[0]) as usize];
                        if depth > 0.0 {
                            let off = depth - centre;
                            let by_place = weights[down.unsigned_abs()] * weights[right.unsigned_abs()];
                            let weight = by_place * (-off * off * inverse_square).exp();
                            sum += weight * depth;
                            total += weight;
                        }
                    }
                }
            }
            *to = if centre > 0.0 { sum / total } else { 0.0 };
        }
    });
    Ok(())
}

fn half_sample(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (near, width, team) = (call.scalar::<f32>(2)?, width(call, 3)?, call.team());
    let [to, from] = call.parts([0, 1])?;
    let from = from.slice::<f32>()?;
    rows(team, to.slice_mut::<f32>()?, width, |y, to| {
        for (x, to) in to.iter_mut().enumerate() {
            let at = 4 * y * width + 2 * x;
            let (mut sum, mut count) = (0.0, 0.0);
            for depth in [from[at], from[at + 1], from[at + 2 * width], from[at + 2 * width + 1]] {
                if (depth - from[at]).abs() < near {
                    sum += depth;
                    count += 1.0;
                }
            }
            *to = sum / count;
        }
    });
    Ok(())
}

fn depth2vertex(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let ([focal_x, focal_y, centre_x, centre_y], width) = (camera(call, 2)?, width(call, 6)?);
    let team = call.team();
    let [vertices, depths] = call.parts([0, 1])?;
    let depths = depths.slice::<f32>()?;
    rows(team, vertices.slice_mut::<Vector>()?, width, |y, to| {
        for (x, (to, &depth)) in to.iter_mut().zip(&depths[y * width..]).enumerate() {
            let (right, down) = ((x as f32 - centre_x) / focal_x, (y as f32 - centre_y) / focal_y);
            *to = [depth * right, depth * down, depth];
        }
    });
    Ok(())
}

fn vertex2normal(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (width, team) = (width(call, 2)?, call.team());
    let [normals, vertices] = call.parts([0, 1])?;
    let vertices = vertices.slice::<Vector>()?;
    let height = vertices.len() / width;
    rows(team, normals.slice_mut::<Vector>()?, width, |y, to| {
        let (above, below) = (y.saturating_sub(1) * width, (y + 1).min(height - 1) * width);
        for (x, to) in to.iter_mut().enumerate() {
            let left = vertices[y * width + x.saturating_sub(1)];
            let right = vertices[y * width + (x + 1).min(width - 1)];
            let (above, below) = (vertices[above + x], vertices[below + x]);
            let is_seen = [left, right, above, below].iter().all(|vertex| vertex[2] != 0.0);
            let normal = normalized(cross(minus(below, above), minus(right, left))).filter(|_| is_seen);
            *to = normal.unwrap_or([INVALID, 0.0, 0.0]);
        }
    });
    Ok(())
}

fn track(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (pose, projection) = (call.value::<Matrix>(5)?, call.value::<Matrix>(6)?);
    let (distance, cosine) = (call.scalar::<f32>(7)?, call.scalar::<f32>(8)?);
    let reference_width = width(call, 9)?;
    let last = [reference_width as f32 - 1.0, width(call, 10)? as f32 - 1.0];
    let (width, team) = (width(call, 11)?, call.team());
    let [equations, vertices, normals, reference_vertices, reference_normals] =
        call.parts([0, 1, 2, 3, 4])?;
    let (vertices, normals) = (vertices.slice::<Vector>()?, normals.slice::<Vector>()?);
    let reference_vertices = reference_vertices.slice::<Vector>()?;
    let reference_normals = reference_normals.slice::<Vector>()?;
    let compared = |vertex: Vector, normal: Vector| {
        if normal[0] == INVALID {
            return Err(-1);
        }
        let vertex = moved(&pose, vertex);
        let [x, y, z] = moved(&projection, vertex);
        let (column, row) = (x / z + 0.5, y / z + 0.5);
        if !(z > 0.0 && (0.0..=last[0]).contains(&column) && (0.0..=last[1]).contains(&row)) {
            return Err(-2);
        }
        let at = row as usize * reference_width + column as usize;
        let reference_normal = reference_normals[at];
        let off = minus(reference_vertices[at], vertex);
        if reference_normal[0] == INVALID {
            Err(-3)
        } else if inner(off, off).sqrt() > distance {
            Err(-4)
        } else if inner(turned(&pose, normal), reference_normal) < cosine {
            Err(-5)
        } else {
            let ([a, b, c], [d, e, f]) = (reference_normal, cross(vertex, reference_normal));
            let error = inner(reference_normal, off);
            Ok(Equation { result: 1, error, derivative: [a, b, c, d, e, f] })
        }
    };
    let used = vertices.len();
    rows(team, &mut equations.slice_mut::<Equation>()?[..used], width, |y, to| {
        let from = vertices[y * width..].iter().zip(&normals[y * width..]);
        for (to, (vertex, normal)) in to.iter_mut().zip(from) {
            let none = |result| Equation { result, ..Equation::default() };
            *to = compared(*vertex, *normal).unwrap_or_else(none);
        }
    });
    Ok(())
}

fn reduce(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (width, height, team) = (width(call, 2)?, width(call, 3)?, call.team());
    let [sums, equations] = call.parts([0, 1])?;
    let equations = equations.slice::<Equation>()?;
    rows(team, sums.slice_mut::<f32>()?, GROUPS[1], |group, to| {
        // In double precision, as few places add up many pixels.
        let mut own = [0.0_f64; GROUPS[1]];
        for y in (group..height).step_by(GROUPS[0]) {
            for equation in &equations[y * width..(y + 1) * width] {
                let Equation { result, error, derivative } = *equation;
                if result < 1 {
                    let kind = if result > -4 { 31 } else { 29 + usize::from(result == -5) };
                    own[kind] += 1.0;
                    continue;
                }
                own[0] += f64::from(error * error);
                own[28] += 1.0;
                let mut next = 7;
                for row in 0..6 {
                    own[row + 1] += f64::from(error * derivative[row]);
                    for column in row..6 {
                        own[next] += f64::from(derivative[row] * derivative[column]);
                        next += 1;
                    }
                }
            }
        }
        to.iter_mut().zip(own).for_each(|(to, sum)| *to = sum as f32);
    });
    Ok(())
}

fn integrate(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (to_camera, [focal_x, focal_y, centre_x, centre_y]) = (call.value::<Matrix>(2)?, camera(call, 3)?);
    let (voxel, mu, most) = (call.scalar::<f32>(7)?, call.scalar::<f32>(8)?, call.scalar::<f32>(9)?);
    let (columns, height, edge) = (width(call, 10)?, width(call, 11)?, width(call, 12)?);
    let team = call.team();
    let [volume, depths] = call.parts([0, 1])?;
    let depths = depths.slice::<f32>()?;
    let last = [columns as f32 - 1.0, height as f32 - 1.0];
    let seen = |[x, y, z]: Vector| {
        if z < 0.0001 {
            return None;
        }
        let (right, down) = (x / z, y / z);
        let (column, row) = (focal_x * right + centre_x + 0.5, focal_y * down + centre_y + 0.5);
        if !((0.0..=last[0]).contains(&column) && (0.0..=last[1]).contains(&row)) {
            return None;
        }
        let depth = depths[row as usize * columns + column as usize];
        let distance = (depth - z) * (1.0 + right * right + down * down).sqrt();
        (depth != 0.0 && distance > -mu).then_some(distance)
    };
    rows(team, volume.slice_mut::<Voxel>()?, edge * ROWS, |job, to| {
        for (number, to) in (job * ROWS..).zip(to.chunks_mut(edge)) {
            let centre = |index: usize| (index as f32 + 0.5) * voxel;
            let first = moved(&to_camera, [centre(0), centre(number % edge), centre(number / edge)]);
            for (x, to) in to.iter_mut().enumerate() {
                let along = x as f32 * voxel;
                let place = [
                    first[0] + to_camera[0] * along,
                    first[1] + to_camera[4] * along,
                    first[2] + to_camera[8] * along,
                ];
                if let Some(distance) = seen(place) {
                    let [old, count] = to.map(f32::from);
                    let now = (count * (old / SCALE) + (distance / mu).min(1.0)) / (count + 1.0);
                    *to = [(now.clamp(-1.0, 1.0) * SCALE) as i16, (count + 1.0).min(most) as i16];
                }
            }
        }
    });
    Ok(())
}

/// Splits a number into the integer below it and the rest. An integer may also give the one before it and 1,
/// which is the same to an interpolation. `f32::floor` would be a call without SSE 4.1, and `as i32`
/// saturates.
#[inline(always)]
fn split(value: f32) -> (i32, f32) {
    // In this binade, the last bit of a float counts integers.
    const INTEGERS: f32 = 12_582_912.0;
    let rounded = (value - 0.5) + INTEGERS;
    (rounded.to_bits().wrapping_sub(INTEGERS.to_bits()) as i32, value - (rounded - INTEGERS))
}

/// Returns the distance at a place, which is in voxels, between the eight nearest voxels. It is in units of
/// the voxels. Outside of the volume are the voxels of its surface.
#[inline(always)]
fn between(volume: &[Voxel], edge: usize, [x, y, z]: Vector) -> f32 {
    let ((x, right), (y, down), (z, away)) = (split(x), split(y), split(z));
    let last = edge as u32 - 1;
    let (x0, y0, z0, step) = if (x as u32) < last && (y as u32) < last && (z as u32) < last {
        (x as usize, y as usize, z as usize, [1, edge, edge * edge])
    } else {
        let near = |at: i32| at.clamp(0, last as i32) as usize;
        let step = |at: i32, step: usize| if (at as u32) < last { step } else { 0 };
        (near(x), near(y), near(z), [step(x, 1), step(y, edge), step(z, edge * edge)])
    };
    let at = (z0 * edge + y0) * edge + x0;
    let [across, row, plane] = step;
    // All eight are within the volume if the last one is.
    let all = &volume[at..=at + plane + row + across];
    let value = |off: usize| f32::from(all[off][0]);
    let line = |off: usize| value(off) * (1.0 - right) + value(off + across) * right;
    let near = line(0) * (1.0 - down) + line(row) * down;
    let far = line(plane) * (1.0 - down) + line(plane + row) * down;
    near * (1.0 - away) + far * away
}

/// The rays of a raycast.
struct Rays<'a> {
    volume: &'a [Voxel],
    edge: usize,
    view: Matrix,
    voxel: f32,
    planes: [f32; 2],
    steps: [f32; 2],
}

impl Rays<'_> {
    /// Follows a ray to where the distance becomes negative. Returns that place and the normal there.
    fn cast(&self, forward: Vector) -> (Vector, Vector) {
        let Self { volume, edge, view, voxel, planes: [near, far], steps: [short, long] } = self;
        let (turn, from) = (turned(view, forward), [view[3], view[7], view[11]]);
        let size = voxel * *edge as f32;
        let (mut enter, mut leave) = (*near, *far);
        for axis in 0..3 {
            let ends = [-from[axis] / turn[axis], (size - from[axis]) / turn[axis]];
            enter = enter.max(ends[0].min(ends[1]));
            leave = leave.min(ends[0].max(ends[1]));
        }
        let nothing = ([0.0; 3], [INVALID, 0.0, 0.0]);
        // Both in voxels, whose centres have integral coordinates.
        let (origin, direction) = (from.map(|at| at / voxel - 0.5), turn.map(|way| way / voxel));
        let at = |depth: f32| {
            [
                origin[0] + direction[0] * depth,
                origin[1] + direction[1] * depth,
                origin[2] + direction[2] * depth,
            ]
        };
        let distance = |place| between(volume, *edge, place);
        let (mut depth, mut step) = (enter, *long);
        if enter >= leave {
            return nothing;
        }
        let mut before = distance(at(depth));
        if before <= 0.0 {
            return nothing;
        }
        while depth < leave {
            let now = distance(at(depth));
            if now < 0.0 {
                let hit: Vector = at(depth + step * now / (before - now));
                let slope: Vector = std::array::from_fn(|axis| {
                    let beside = |off: f32| {
                        let mut place = hit;
                        place[axis] += off;
                        distance(place)
                    };
                    beside(1.0) - beside(-1.0)
                });
                return (hit.map(|at| (at + 0.5) * voxel), normalized(slope).unwrap_or(nothing.1));
            }
            if now < NEAR {
                step = *short;
            }
            before = now;
            depth += step;
        }
        nothing
    }
}

fn raycast(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (view, [focal_x, focal_y, centre_x, centre_y]) = (call.value::<Matrix>(3)?, camera(call, 4)?);
    let (voxel, planes) = (call.scalar::<f32>(8)?, [call.scalar::<f32>(9)?, call.scalar::<f32>(10)?]);
    let steps = [call.scalar::<f32>(11)?, call.scalar::<f32>(12)?];
    let (edge, width, team) = (width(call, 13)?, width(call, 14)?, call.team());
    let [vertices, normals, volume] = call.parts([0, 1, 2])?;
    let rays = Rays { volume: volume.slice()?, edge, view, voxel, planes, steps };
    let vertices = vertices.slice_mut::<Vector>()?.chunks_mut(width);
    let images = vertices.zip(normals.slice_mut::<Vector>()?.chunks_mut(width));
    team.for_each(images.enumerate(), |(y, (vertices, normals))| {
        for (x, (vertex, normal)) in vertices.iter_mut().zip(normals).enumerate() {
            let forward = [(x as f32 - centre_x) / focal_x, (y as f32 - centre_y) / focal_y, 1.0];
            (*vertex, *normal) = rays.cast(forward);
        }
    });
    Ok(())
}
