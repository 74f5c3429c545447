//! The grid of a launch: blocks of threads, and the driver launches that cover them.
//!
//! The driver accepts 2^31 - 1 blocks along the first axis, and 65,535 along the others. A larger launch
//! becomes several driver launches, each of which receives its own items.

use crate::compiled::{Grid, Limits};
use smallvec::SmallVec;

/// Maximum number of threads of a block along each axis, on every GPU.
const MOST_THREADS: [u64; 3] = [1024, 1024, 64];
/// Maximum number of blocks of a driver launch along each axis.
const MOST_BLOCKS: [u64; 3] = [(1 << 31) - 1, 65_535, 65_535];
/// Maximum number of driver launches of one launch.
const MOST_PARTS: usize = 1 << 16;

/// A driver launch: a whole launch, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The first item along each axis, and the end.
    pub(super) items: [[u64; 3]; 2],
    /// The number of blocks of threads along each axis.
    pub(super) grid: [u32; 3],
}

/// Returns the limits of a kernel with at most `max_local` threads in a block.
pub(super) const fn limits(max_local: u64) -> Limits {
    Limits { total: max_local, axes: MOST_THREADS, required: None }
}

/// Returns the number of threads of a block along each axis, and the driver launches in order.
///
/// There are several driver launches if one of them cannot hold all blocks along an axis. Returns `None` if
/// the threads or parts exceed what can be counted.
pub(super) fn parts(grid: &Grid, limits: &Limits) -> Option<([u32; 3], SmallVec<[Part; 1]>)> {
    let local = limits.choose(grid.local);
    let (mut counts, mut blocks, mut threads) = ([1; 3], [1; 3], [1; 3]);
    let mut all: usize = 1;
    for axis in 0..3 {
        blocks[axis] = grid.items[axis].div_ceil(local[axis]);
        // The padded end of each part is at most this.
        blocks[axis].checked_mul(local[axis])?.checked_add(grid.offset[axis])?;
        counts[axis] = usize::try_from(blocks[axis].div_ceil(MOST_BLOCKS[axis])).ok()?;
        all = all.checked_mul(counts[axis]).filter(|all| *all <= MOST_PARTS)?;
        threads[axis] = u32::try_from(local[axis]).ok()?;
    }
    let mut parts = SmallVec::with_capacity(all);
    for x in 0..counts[0] {
        for y in 0..counts[1] {
            for z in 0..counts[2] {
                let mut part = Part { items: [grid.offset; 2], grid: [1; 3] };
                for (axis, index) in [x, y, z].into_iter().enumerate() {
                    let (first, size) = (grid.offset[axis], local[axis]);
                    let start = index as u64 * MOST_BLOCKS[axis];
                    let most = (blocks[axis] - start).min(MOST_BLOCKS[axis]);
                    part.items[0][axis] = first + start * size;
                    part.items[1][axis] = (first + grid.items[axis]).min(first + (start + most) * size);
                    part.grid[axis] = most as u32; // At most 2^31 - 1.
                }
                parts.push(part);
            }
        }
    }
    Some((threads, parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_that_the_driver_takes_is_one_part() {
        let (threads, found) = parts(&Grid::line(7, 1000, 0), &limits(1024)).unwrap();
        assert_eq!(threads, [256, 1, 1], "the default size");
        assert_eq!(found[..], [Part { items: [[7, 0, 0], [1007, 1, 1]], grid: [4, 1, 1] }]);
        let (threads, _) = parts(&Grid::line(0, 1000, 0), &limits(128)).unwrap();
        assert_eq!(threads, [128, 1, 1], "the kernel's limit");
        let (threads, found) = parts(&Grid::new([0, 5, 0], [100, 30, 1], [64, 4, 1]), &limits(128)).unwrap();
        assert_eq!(threads, [64, 4, 1], "the requested sizes along several axes");
        assert_eq!(found[..], [Part { items: [[0, 5, 0], [100, 35, 1]], grid: [2, 8, 1] }]);
        let (threads, _) = parts(&Grid::new([0; 3], [100, 30, 2], [64, 0, 0]), &limits(1024)).unwrap();
        assert_eq!(threads, [64, 4, 1], "the default number of threads along the open axes");
        let (_, found) = parts(&Grid::new([0; 3], [255, 65_535, 1], [255, 1, 1]), &limits(255)).unwrap();
        assert_eq!(found[..], [Part { items: [[0; 3], [255, 65_535, 1]], grid: [1, 65_535, 1] }]);
        let (_, found) = parts(&Grid::new([0; 3], [1, 1, 2 * 65_535], [1, 1, 2]), &limits(1024)).unwrap();
        assert_eq!(found.len(), 1, "the maximum number of planes of blocks");
    }

    /// The binomial kernel has a row of threads for each item, so a package can exceed 65,535 rows of blocks.
    #[test]
    fn more_rows_of_blocks_than_the_driver_takes_are_several_parts() {
        let (threads, found) =
            parts(&Grid::new([0, 9, 0], [255, 2 * 65_535 + 1, 1], [255, 1, 1]), &limits(255)).unwrap();
        assert_eq!(threads, [255, 1, 1]);
        let part = |first: u64, end: u64| Part {
            items: [[0, first, 0], [255, end, 1]],
            grid: [1, (end - first) as u32, 1],
        };
        assert_eq!(found[..], [part(9, 65_544), part(65_544, 131_079), part(131_079, 131_080)]);
        // Only the last block of the last part is not full.
        let (_, found) =
            parts(&Grid::new([0, 9, 0], [10, 8 * 65_535 + 3, 1], [16, 8, 1]), &limits(128)).unwrap();
        let ends: Vec<_> = found.iter().map(|part| (part.items[0][1], part.items[1][1], part.grid)).collect();
        assert_eq!(ends, [(9, 524_289, [1, 65_535, 1]), (524_289, 524_292, [1, 1, 1])]);
    }

    #[test]
    fn the_parts_along_several_axes_cover_every_item_once() {
        let whole = Grid::new([3, 50, 7], [5, 65_536 * 2, 65_535 * 3 - 1], [2, 2, 1]);
        let (_, found) = parts(&whole, &limits(1024)).unwrap();
        assert_eq!(found.len(), 2 * 3);
        let count =
            |part: &Part| (0..3).map(|axis| part.items[1][axis] - part.items[0][axis]).product::<u64>();
        assert_eq!(found.iter().map(count).sum::<u64>(), whole.items.iter().product::<u64>());
        for (index, one) in found.iter().enumerate() {
            assert!(one.grid[1..].iter().all(|blocks| (1..=65_535).contains(blocks)), "{one:?}");
            let is_apart = |other: &Part| {
                (0..3).any(|axis| {
                    one.items[1][axis] <= other.items[0][axis] || other.items[1][axis] <= one.items[0][axis]
                })
            };
            assert!(found[..index].iter().all(is_apart), "{one:?}");
        }
    }

    #[test]
    fn what_cannot_be_counted_has_no_parts() {
        assert_eq!(parts(&Grid::line(0, u64::MAX, 2), &limits(1024)), None, "its padded end");
        assert_eq!(parts(&Grid::line(u64::MAX - 10, 11, 1), &limits(1024)), None, "its end");
        assert_eq!(
            parts(&Grid::new([0; 3], [1, 1 << 40, 1], [1, 1, 1]), &limits(1024)),
            None,
            "too many parts"
        );
        let most = Grid::new([0; 3], [1, 65_535 << 16, 1], [1, 1, 1]);
        assert_eq!(parts(&most, &limits(1024)).expect("the maximum number of parts").1.len(), 1 << 16);
        assert_eq!(
            parts(&Grid::new([0; 3], [1, 1, 1], [1, 1 << 33, 1]), &limits(1024)),
            None,
            "a block of too many threads"
        );
    }
}
