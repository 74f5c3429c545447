//! The kernels on the host and in offload workers, with the operations of `kernels/steps.c` in their order.
//!
//! A part that is read with a margin begins with the margin, which is cut at the ends of the grid.

use bytemuck::Pod;
use dml_arenas::launch::{Call, ComputeError, Part};
use std::ops::Range;

/// Rows of a job.
const ROWS: usize = 8;

/// The rows that a part has.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    values: &'a [T],
    first: u64,
    columns: usize,
}

impl<'a, T: Pod> Rows<'a, T> {
    /// Takes a part that begins `margin` rows before the first item.
    fn new(
        part: &'a Part<'_>,
        items: &Range<u64>,
        margin: u64,
        columns: usize,
    ) -> Result<Self, ComputeError> {
        Ok(Self { values: part.slice()?, first: items.start.saturating_sub(margin), columns })
    }

    fn row(&self, row: u64) -> &'a [T] {
        let at = (row - self.first) as usize * self.columns;
        &self.values[at..at + self.columns]
    }
}

/// Computes rows of which those at the edge of the grid stay, and so do the elements at the ends of a row.
fn five_points<T: Pod + Send + Sync>(
    call: &mut Call<'_>,
    inner: impl Fn([T; 5]) -> T + Sync,
) -> Result<(), ComputeError> {
    let (team, items) = (call.team(), call.items());
    let (columns, rows): (u32, u32) = (call.scalar(2)?, call.scalar(3)?);
    let (columns, last) = (columns as usize, u64::from(rows) - 1);
    let [from, to] = call.parts([0, 1])?;
    let from = Rows::<T>::new(from, &items, 1, columns)?;
    let jobs = to.slice_mut::<T>()?.chunks_mut(ROWS * columns);
    team.for_each(jobs.enumerate(), |(job, to)| {
        for (y, to) in (items.start + (job * ROWS) as u64..).zip(to.chunks_mut(columns)) {
            let here = from.row(y);
            to.copy_from_slice(here);
            if y == 0 || y == last || columns < 3 {
                continue;
            }
            let (north, south) = (from.row(y - 1), from.row(y + 1));
            let sides = here.windows(3).zip(&north[1..]).zip(&south[1..]);
            for (to, ((here, north), south)) in to[1..].iter_mut().zip(sides) {
                *to = inner([*north, here[0], here[1], here[2], *south]);
            }
        }
    });
    Ok(())
}

pub(super) fn jacobi(call: &mut Call<'_>) -> Result<(), ComputeError> {
    five_points(call, |[n, w, c, e, s]: [f64; 5]| (n + w + c + e + s) / 5.0)
}

pub(super) fn stencil2d(call: &mut Call<'_>) -> Result<(), ComputeError> {
    five_points(call, |[n, w, c, e, s]: [f32; 5]| 0.5 * c + 0.125 * (n + w + e + s))
}

pub(super) fn stencil3d(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (team, items) = (call.team(), call.items());
    let (columns, rows, planes): (u32, u32, u32) = (call.scalar(2)?, call.scalar(3)?, call.scalar(4)?);
    let (columns, last, last_plane) = (columns as usize, rows as usize - 1, u64::from(planes) - 1);
    let plane = columns * rows as usize;
    let [from, to] = call.parts([0, 1])?;
    let from = Rows::<f32>::new(from, &items, 1, plane)?;
    let jobs = to.slice_mut::<f32>()?.chunks_mut(columns).enumerate();
    team.for_each(jobs, |(at, to)| {
        let (z, y) = (items.start + (at / rows as usize) as u64, at % rows as usize);
        let row = |z: u64, y: usize| &from.row(z)[y * columns..(y + 1) * columns];
        let here = row(z, y);
        to.copy_from_slice(here);
        if z == 0 || z == last_plane || y == 0 || y == last || columns < 3 {
            return;
        }
        let sides =
            [row(z - 1, y), row(z, y - 1), row(z, y + 1), row(z + 1, y)].map(|row| &row[1..columns - 1]);
        for (x, to) in to[1..columns - 1].iter_mut().enumerate() {
            let [above, north, south, below] = sides.map(|row| row[x]);
            *to = 0.4 * here[x + 1] + 0.1 * (above + north + here[x] + here[x + 2] + south + below);
        }
    });
    Ok(())
}

pub(super) fn prk_star(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (team, items) = (call.team(), call.items());
    let (columns, rows): (u32, u32) = (call.scalar(2)?, call.scalar(3)?);
    let (columns, rows) = (columns as usize, u64::from(rows));
    let [from, to] = call.parts([0, 1])?;
    let from = Rows::<f64>::new(from, &items, 2, columns)?;
    let jobs = to.slice_mut::<f64>()?.chunks_mut(ROWS * columns);
    team.for_each(jobs.enumerate(), |(job, to)| {
        for (y, to) in (items.start + (job * ROWS) as u64..).zip(to.chunks_mut(columns)) {
            if y < 2 || y + 2 >= rows || columns < 5 {
                continue;
            }
            let here = from.row(y);
            let around = [y - 2, y - 1, y + 1, y + 2].map(|y| &from.row(y)[2..columns - 2]);
            for (x, to) in to[2..columns - 2].iter_mut().enumerate() {
                let [far_north, north, south, far_south] = around.map(|row| row[x]);
                let mut sum = *to;
                sum += 0.25 * (here[x + 3] - here[x + 1]);
                sum += 0.25 * (south - north);
                sum += 0.125 * (here[x + 4] - here[x]);
                sum += 0.125 * (far_south - far_north);
                *to = sum;
            }
        }
    });
    Ok(())
}

pub(super) fn prk_add(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (team, columns): (_, u32) = (call.team(), call.scalar(1)?);
    let jobs = call.part(0)?.slice_mut::<f64>()?.chunks_mut(ROWS * columns as usize);
    team.for_each(jobs, |values| values.iter_mut().for_each(|value| *value += 1.0));
    Ok(())
}

pub(super) fn gray_scott(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (team, items) = (call.team(), call.items());
    let (columns, rows): (u32, u32) = (call.scalar(4)?, call.scalar(5)?);
    let (feed, kill): (f32, f32) = (call.scalar(6)?, call.scalar(7)?);
    let (columns, last) = (columns as usize, u64::from(rows) - 1);
    let [u, v, new_u, new_v] = call.parts([0, 1, 2, 3])?;
    let (u, v) = (Rows::<f32>::new(u, &items, 1, columns)?, Rows::<f32>::new(v, &items, 1, columns)?);
    let jobs = new_u.slice_mut::<f32>()?.chunks_mut(ROWS * columns);
    let jobs = jobs.zip(new_v.slice_mut::<f32>()?.chunks_mut(ROWS * columns));
    team.for_each(jobs.enumerate(), |(job, (new_u, new_v))| {
        let first = items.start + (job * ROWS) as u64;
        for (y, (new_u, new_v)) in (first..).zip(new_u.chunks_mut(columns).zip(new_v.chunks_mut(columns))) {
            let (here_u, here_v) = (u.row(y), v.row(y));
            new_u.copy_from_slice(here_u);
            new_v.copy_from_slice(here_v);
            if y == 0 || y == last || columns < 3 {
                continue;
            }
            let inner = 1..columns - 1;
            let sides =
                [u.row(y - 1), u.row(y + 1), v.row(y - 1), v.row(y + 1)].map(|row| &row[inner.clone()]);
            let new = new_u[inner.clone()].iter_mut().zip(&mut new_v[inner.clone()]);
            for (x, (new_u, new_v)) in new.enumerate() {
                let [north_u, south_u, north_v, south_v] = sides.map(|row| row[x]);
                let (u, v) = (here_u[x + 1], here_v[x + 1]);
                let spread_u = north_u + here_u[x] + here_u[x + 2] + south_u - 4.0 * u;
                let spread_v = north_v + here_v[x] + here_v[x + 2] + south_v - 4.0 * v;
                let reaction = u * v * v;
                *new_u = u + (0.16 * spread_u - reaction + feed * (1.0 - u));
                *new_v = v + (0.08 * spread_v + reaction - (feed + kill) * v);
            }
        }
    });
    Ok(())
}
