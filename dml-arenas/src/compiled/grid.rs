//! The work-items of a launch.

use std::fmt;

/// The work-items of a launch, along one to three dimensions. In two dimensions, the first counts columns,
/// the second rows.
///
/// # Shape and units
/// All numbers count work-items (threads, in CUDA). The number of work-items is padded to whole groups
/// (blocks of threads). So a kernel takes its end as an argument, and returns where its index reaches it; a
/// kernel in CUDA C whose last parameter is a `DmlItems` receives the first item and the end.
///
/// - `offset`: the first work-item. In OpenCL, `get_global_id` starts there. A kernel in CUDA C that receives
///   neither its items nor its part accepts only launches that start at zero.
/// - `items`: the number of work-items; zero along one dimension launches nothing.
/// - `local`: the size of a group. Zero leaves it open: the driver chooses in OpenCL if all are zero, and
///   otherwise groups have 256 work-items in all, or the kernel's limit. A size that the kernel or the device
///   does not allow is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub(crate) dimensions: usize,
    pub(crate) offset: [u64; 3],
    pub(crate) items: [u64; 3],
    pub(crate) local: [u64; 3],
}

impl Grid {
    /// Creates the work-items of a launch along `D` dimensions, one to three.
    #[must_use]
    pub const fn new<const D: usize>(offset: [u64; D], items: [u64; D], local: [u64; D]) -> Self {
        const { assert!(1 <= D && D <= 3, "one to three dimensions") };
        let mut grid = Self { dimensions: D, offset: [0; 3], items: [1; 3], local: [1; 3] };
        let mut axis = 0;
        while axis < D {
            (grid.offset[axis], grid.items[axis], grid.local[axis]) =
                (offset[axis], items[axis], local[axis]);
            axis += 1;
        }
        grid
    }

    /// Creates the work-items of a launch along one dimension.
    #[must_use]
    pub const fn line(offset: u64, items: u64, local: u64) -> Self {
        Self::new([offset], [items], [local])
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [items, offset, local] = [self.items, self.offset, self.local].map(|sizes| {
            let sizes = sizes[..self.dimensions].iter().map(u64::to_string);
            sizes.collect::<Vec<_>>().join(" x ")
        });
        write!(f, "{items} work-items from {offset} in groups of {local}")
    }
}
