//! The kernels on the host and in offload workers, with the operations of `kernels/steps.c` in their order.
//!
//! A part that is read with a margin begins with the margin, which is cut at the ends of the grid. Rows of a
//! volume are numbered through all planes. Loops go over slices of one length, which compilers vectorize.

use bytemuck::Pod;
use dml_arenas::launch::{Call, ComputeError, Part, Team};
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
    /// Takes a part that begins `margin` items of `per_item` rows before the first item.
    fn new(
        part: &'a Part<'_>,
        items: &Range<u64>,
        margin: u64,
        (per_item, columns): (u64, usize),
    ) -> Result<Self, ComputeError> {
        Ok(Self { values: part.slice()?, first: items.start.saturating_sub(margin) * per_item, columns })
    }

    /// Returns the elements at these offsets in rows and columns from the inner elements of a row.
    fn around<const N: usize>(&self, row: u64, margin: usize, offsets: [(i64, i64); N]) -> [&'a [T]; N] {
        let count = self.columns - 2 * margin;
        offsets.map(|(down, along)| {
            let start = (row.saturating_add_signed(down) - self.first) as usize * self.columns;
            let start = (start + margin).saturating_add_signed(along as isize);
            &self.values[start..start + count]
        })
    }
}

/// Computes rows of a grid. Elements within `margin` of an edge stay, if `keeps` is false by a copy.
struct Star<'a> {
    team: &'a Team,
    items: Range<u64>,
    columns: usize,
    /// The rows of a plane, and the planes; one plane if the grid has no third axis.
    rows: u64,
    planes: u64,
    margin: usize,
    keeps: bool,
}

impl Star<'_> {
    fn per_item(&self) -> (u64, usize) {
        (if self.planes > 1 { self.rows } else { 1 }, self.columns)
    }

    /// Returns whether a row has inner elements.
    fn is_inner(&self, row: u64) -> bool {
        let within = |place: u64, length: u64| {
            let margin = self.margin as u64;
            place >= margin && place + margin < length
        };
        within(row % self.rows, self.rows)
            && (self.planes == 1 || within(row / self.rows, self.planes))
            && self.columns > 2 * self.margin
    }

    /// Computes the rows of the parts of a call.
    fn compute<T: Pod + Send + Sync>(
        &self,
        from: &Part<'_>,
        to: &mut Part<'_>,
        inner: impl Fn(u64, Rows<'_, T>, &mut [T]) + Sync,
    ) -> Result<(), ComputeError> {
        let from = Rows::<T>::new(from, &self.items, self.margin as u64, self.per_item())?;
        self.rows(from, to.slice_mut::<T>()?, inner);
        Ok(())
    }

    /// Calls `inner` with the number of each row that has inner elements, its margin's rows, and these
    /// elements of `to`.
    fn rows<T: Pod + Send + Sync>(
        &self,
        from: Rows<'_, T>,
        to: &mut [T],
        inner: impl Fn(u64, Rows<'_, T>, &mut [T]) + Sync,
    ) {
        let (margin, columns) = (self.margin, self.columns);
        let begin = self.items.start * self.per_item().0;
        let jobs = to.chunks_mut(ROWS * columns);
        self.team.for_each(jobs.enumerate(), |(job, to)| {
            for (row, to) in (begin + (job * ROWS) as u64..).zip(to.chunks_mut(columns)) {
                if !self.keeps {
                    let [here] = from.around(row, 0, [HERE]);
                    to.copy_from_slice(here);
                }
                if self.is_inner(row) {
                    inner(row, from, &mut to[margin..columns - margin]);
                }
            }
        });
    }
}

/// Loops over the inner elements of a row. Each name is the element at its offset.
macro_rules! each {
    ($to:ident, $from:ident, $row:ident, $margin:expr, [$($name:ident: $offset:expr),*], $new:expr) => {
        let count = $to.len();
        let [$($name),*] = $from.around($row, $margin, [$($offset),*]);
        $(let $name = &$name[..count];)*
        for (x, $to) in $to.iter_mut().enumerate() {
            $(let $name = $name[x];)*
            *$to = $new;
        }
    };
}

const NORTH: (i64, i64) = (-1, 0);
const WEST: (i64, i64) = (0, -1);
const HERE: (i64, i64) = (0, 0);
const EAST: (i64, i64) = (0, 1);
const SOUTH: (i64, i64) = (1, 0);

/// Takes the grid's axes from the scalars that begin at an argument.
fn star<'a>(call: &Call<'a>, axes: usize, margin: usize, has_planes: bool) -> Result<Star<'a>, ComputeError> {
    let (columns, rows): (u32, u32) = (call.scalar(axes)?, call.scalar(axes + 1)?);
    let planes: u32 = if has_planes { call.scalar(axes + 2)? } else { 1 };
    let (team, items) = (call.team(), call.items());
    let (columns, rows, planes) = (columns as usize, u64::from(rows), u64::from(planes));
    Ok(Star { team, items, columns, rows, planes, margin, keeps: false })
}

fn jacobi_row(row: u64, from: Rows<'_, f64>, to: &mut [f64]) {
    each!(to, from, row, 1, [n: NORTH, w: WEST, c: HERE, e: EAST, s: SOUTH], (n + w + c + e + s) / 5.0);
}

fn stencil2d_row(row: u64, from: Rows<'_, f32>, to: &mut [f32]) {
    let weighted = |n: f32, w: f32, c: f32, e: f32, s: f32| 0.5 * c + 0.125 * (n + w + e + s);
    each!(to, from, row, 1, [n: NORTH, w: WEST, c: HERE, e: EAST, s: SOUTH], weighted(n, w, c, e, s));
}

/// The elements of a stencil of five points, for a program without DML.
#[cfg(any(feature = "cuda", feature = "opencl"))]
pub(crate) trait FivePoints: Pod + Send + Sync {
    const KERNEL: &'static str;

    /// Computes rows of a grid with `[rows, columns]` on one thread. `from` begins with row `first`.
    fn compute(team: &Team, items: Range<u64>, grid: [u64; 2], from: &[Self], first: u64, to: &mut [Self]);
}

#[cfg(any(feature = "cuda", feature = "opencl"))]
macro_rules! five_points {
    ($($type:ty, $kernel:literal, $row:expr;)*) => {
        $(impl FivePoints for $type {
            const KERNEL: &'static str = $kernel;

            fn compute(
                team: &Team,
                items: Range<u64>,
                [rows, columns]: [u64; 2],
                values: &[Self],
                first: u64,
                to: &mut [Self],
            ) {
                let columns = columns as usize;
                let star = Star { team, items, columns, rows, planes: 1, margin: 1, keeps: false };
                star.rows(Rows { values, first, columns }, to, $row);
            }
        })*
    };
}

#[cfg(any(feature = "cuda", feature = "opencl"))]
five_points! {
    f64, "jacobi", jacobi_row;
    f32, "stencil2d", stencil2d_row;
}

pub(super) fn jacobi(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let star = star(call, 2, 1, false)?;
    let [from, to] = call.parts([0, 1])?;
    star.compute::<f64>(from, to, jacobi_row)
}

pub(super) fn stencil2d(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let star = star(call, 2, 1, false)?;
    let [from, to] = call.parts([0, 1])?;
    star.compute::<f32>(from, to, stencil2d_row)
}

pub(super) fn stencil3d(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let star = star(call, 2, 1, true)?;
    let [from, to] = call.parts([0, 1])?;
    let plane = star.rows as i64;
    let (above, below) = ((-plane, 0), (plane, 0));
    star.compute::<f32>(from, to, |row, from, to| {
        each!(
            to,
            from,
            row,
            1,
            [a: above, n: NORTH, w: WEST, c: HERE, e: EAST, s: SOUTH, b: below],
            0.4 * c + 0.1 * (a + n + w + e + s + b)
        );
    })
}

pub(super) fn prk_star(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let star = Star { keeps: true, ..star(call, 2, 2, false)? };
    let [from, to] = call.parts([0, 1])?;
    star.compute::<f64>(from, to, |row, from, to| {
        each!(
            to,
            from,
            row,
            2,
            [e: EAST, w: WEST, s: SOUTH, n: NORTH, ee: (0, 2), ww: (0, -2), ss: (2, 0), nn: (-2, 0)],
            *to + 0.25 * (e - w) + 0.25 * (s - n) + 0.125 * (ee - ww) + 0.125 * (ss - nn)
        );
    })
}

pub(super) fn prk_add(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let (team, columns): (_, u32) = (call.team(), call.scalar(1)?);
    let jobs = call.part(0)?.slice_mut::<f64>()?.chunks_mut(ROWS * columns as usize);
    team.for_each(jobs, |values| values.iter_mut().for_each(|value| *value += 1.0));
    Ok(())
}

pub(super) fn gray_scott(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let star = star(call, 4, 1, false)?;
    let (feed, kill): (f32, f32) = (call.scalar(6)?, call.scalar(7)?);
    let [u, v, new_u, new_v] = call.parts([0, 1, 2, 3])?;
    let (items, columns) = (star.items.clone(), star.columns);
    let [u, v] = [u, v].map(|part| Rows::<f32>::new(part, &items, 1, (1, columns)));
    let (u, v) = (u?, v?);
    let jobs = new_u.slice_mut::<f32>()?.chunks_mut(ROWS * columns);
    let jobs = jobs.zip(new_v.slice_mut::<f32>()?.chunks_mut(ROWS * columns));
    star.team.for_each(jobs.enumerate(), |(job, (new_u, new_v))| {
        let first = items.start + (job * ROWS) as u64;
        for (row, (new_u, new_v)) in (first..).zip(new_u.chunks_mut(columns).zip(new_v.chunks_mut(columns))) {
            new_u.copy_from_slice(u.around(row, 0, [HERE])[0]);
            new_v.copy_from_slice(v.around(row, 0, [HERE])[0]);
            if !star.is_inner(row) {
                continue;
            }
            let (new_u, new_v) = (&mut new_u[1..columns - 1], &mut new_v[1..columns - 1]);
            let count = new_u.len();
            let new_v = &mut new_v[..count];
            let offsets = [NORTH, WEST, HERE, EAST, SOUTH];
            let [nu, wu, u, eu, su] = u.around(row, 1, offsets).map(|slice| &slice[..count]);
            let [nv, wv, v, ev, sv] = v.around(row, 1, offsets).map(|slice| &slice[..count]);
            for x in 0..count {
                let (u, v) = (u[x], v[x]);
                let spread_u = nu[x] + wu[x] + eu[x] + su[x] - 4.0 * u;
                let spread_v = nv[x] + wv[x] + ev[x] + sv[x] - 4.0 * v;
                let reaction = u * v * v;
                new_u[x] = u + (0.16 * spread_u - reaction + feed * (1.0 - u));
                new_v[x] = v + (0.08 * spread_v + reaction - (feed + kill) * v);
            }
        }
    });
    Ok(())
}
