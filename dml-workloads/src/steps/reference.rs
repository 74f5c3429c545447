//! The steps once more: a formula for each element, by the offsets of its neighbours.

use super::{FEED, KILL, SEED, Size};
use crate::check::{Mismatch, Value};
use crate::random;
use bytemuck::Pod;
use rayon::prelude::*;

/// A function from the elements around one, by their offsets in planes, rows and columns, to the new one.
pub(super) type Formula<T> = fn(&dyn Fn([i64; 3]) -> T) -> T;

/// The same for elements of several grids, by the number of the grid.
pub(super) type Formulas<'a, T, const GRIDS: usize> =
    dyn Fn(&dyn Fn(usize, [i64; 3]) -> T) -> [T; GRIDS] + Sync + 'a;

/// An element of a grid.
pub(crate) trait Element: Pod + Send + Sync {
    /// Returns the first value at a position.
    fn drawn(at: u64) -> Self;

    fn value(self) -> f64;
}

impl Element for f32 {
    fn drawn(at: u64) -> Self {
        random::unit(SEED, at)
    }

    fn value(self) -> f64 {
        f64::from(self)
    }
}

impl Element for f64 {
    fn drawn(at: u64) -> Self {
        f64::from(random::unit(SEED, at))
    }

    fn value(self) -> f64 {
        self
    }
}

const NORTH: [i64; 3] = [0, -1, 0];
const WEST: [i64; 3] = [0, 0, -1];
const HERE: [i64; 3] = [0, 0, 0];
const EAST: [i64; 3] = [0, 0, 1];
const SOUTH: [i64; 3] = [0, 1, 0];

fn sum<T: std::ops::Add<Output = T>>(at: &dyn Fn([i64; 3]) -> T, [first, others @ ..]: [[i64; 3]; 4]) -> T {
    others.into_iter().fold(at(first), |sum, offset| sum + at(offset))
}

pub(super) fn jacobi(at: &dyn Fn([i64; 3]) -> f64) -> f64 {
    (sum(at, [NORTH, WEST, HERE, EAST]) + at(SOUTH)) / 5.0
}

pub(super) fn stencil2d(at: &dyn Fn([i64; 3]) -> f32) -> f32 {
    at(HERE) / 2.0 + sum(at, [NORTH, WEST, EAST, SOUTH]) / 8.0
}

pub(super) fn stencil3d(at: &dyn Fn([i64; 3]) -> f32) -> f32 {
    let around = at([-1, 0, 0]) + at(NORTH) + at(WEST) + at(EAST) + at(SOUTH) + at([1, 0, 0]);
    around * 0.1 + at(HERE) * 0.4
}

pub(super) fn gray_scott(at: &dyn Fn(usize, [i64; 3]) -> f32) -> [f32; 2] {
    let around = |grid| sum(&|offset| at(grid, offset), [NORTH, WEST, EAST, SOUTH]);
    let [u, v] = [at(0, HERE), at(1, HERE)];
    let reacted = u * v * v;
    let new_u = 0.16 * (around(0) - u * 4.0) - reacted + (1.0 - u) * FEED;
    let new_v = 0.08 * (around(1) - v * 4.0) + reacted - (KILL + FEED) * v;
    [new_u + u, new_v + v]
}

/// Compares grids with those that a formula gives from the grids before, bit by bit.
pub(super) fn compare<T: Element, const GRIDS: usize>(
    size: &Size,
    new: &[&[T]],
    old: &[&[T]],
    formula: &Formulas<'_, T, GRIDS>,
) -> Result<(), Mismatch> {
    let Size { columns, rows, planes, .. } = *size;
    for grid in new {
        Mismatch::of_length("length of a grid", size.elements() as usize, grid.len(), 1)?;
    }
    let wrong = |at: u64| {
        let place = [at / (columns * rows), at / columns % rows, at % columns];
        let is_edge = |(place, length): (&u64, u64)| length > 1 && (*place == 0 || *place + 1 == length);
        let is_edge = place.iter().zip([planes, rows, columns]).any(is_edge);
        let expected: [T; GRIDS] = if is_edge {
            std::array::from_fn(|grid| old[grid][at as usize])
        } else {
            formula(&|grid, [plane, row, column]| {
                let (row_length, plane_length) = (columns as i64, (columns * rows) as i64);
                old[grid][(at as i64 + plane * plane_length + row * row_length + column) as usize]
            })
        };
        let differs = |(expected, new): (&T, &&[T])| {
            let found = new[at as usize];
            (bytemuck::bytes_of(expected) != bytemuck::bytes_of(&found)).then(|| Mismatch {
                item: at,
                expected: Value::Real(expected.value()),
                found: Value::Real(found.value()),
                what: "element of a grid",
            })
        };
        expected.iter().zip(new).find_map(differs)
    };
    let first = (0..size.elements()).into_par_iter().find_map_first(wrong);
    first.map_or(Ok(()), Err)
}

/// Compares the grids of `prk` with their closed form. The grid grows by 1 along each axis, so its star is 2
/// in every step. The sums of the elements at the edge stay 0.
pub(super) fn prk(size: &Size, steps: u64, grid: &[&[f64]], sums: &[&[f64]]) -> Result<(), Mismatch> {
    let Size { columns, rows, .. } = *size;
    let wrong = |at: u64| {
        let (x, y) = (at % columns, at / columns);
        let is_edge = x < 2 || y < 2 || x + 2 >= columns || y + 2 >= rows;
        let star = if is_edge { 0.0 } else { 2.0 * steps as f64 };
        let both =
            [(grid[0], (x + y + steps) as f64, "element of the grid"), (sums[0], star, "sum of stars")];
        both.into_iter().find_map(|(found, expected, what)| {
            let found = found[at as usize];
            let (expected, found, is_right) = (Value::Real(expected), Value::Real(found), expected == found);
            (!is_right).then_some(Mismatch { item: at, expected, found, what })
        })
    };
    let first = (0..size.elements()).into_par_iter().find_map_first(wrong);
    first.map_or(Ok(()), Err)
}
