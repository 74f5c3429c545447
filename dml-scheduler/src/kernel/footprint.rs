//! Footprints: which bytes of a buffer a package touches.
//!
//! ```text
//!   items 8..16      PerItem        Neighbourhood     Rows, margin 1     Layers             Tiles
//!                    ....####....   ...######...      . . . . . .        . . # # . .        . . # # . .
//!                                                     # # # # # #        . . # # . .        . . # # . .
//!                                                     # # # # # #        . . # # . .        . . . . . .
//!                                                     # # # # # #        . . # # . .        . . . . . .
//! ```
//! A footprint returns ranges that ascend, are disjoint and do not touch. A package that touches no byte has
//! one empty range, so each argument always has at least one.
//!
//! # Source
//! The named kinds are the range mappers of Celerity ("Celerity: High-Level C++ for Accelerator Clusters",
//! section 2).

use crate::base::guard::guarded;
use dml_core::{BufferName, Scalar};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

/// A function from items to one range of bytes.
pub(super) type RangeOf = dyn Fn(Range<u64>) -> Range<u64> + Send + Sync;
/// A function from items to several ranges of bytes.
pub(super) type RangesOf = dyn Fn(Range<u64>) -> Vec<Range<u64>> + Send + Sync;

/// A function from items and the scalars of the kernel to several ranges of bytes.
pub(super) type LaunchOf = dyn Fn(Range<u64>, &[Scalar]) -> Vec<Range<u64>> + Send + Sync;

/// Which bytes of a buffer a package touches.
#[derive(Clone)]
#[non_exhaustive]
pub enum Footprint {
    /// All bytes, for every package. Not for buffers that are written, because packages run concurrently.
    Whole,
    /// A fixed number of bytes per item, item 0 at byte 0; the last item may reach past the buffer's end.
    PerItem {
        /// The number of bytes per item.
        bytes: u64,
    },
    /// As [`PerItem`](Self::PerItem), plus the bytes of the items just before and after, within the buffer.
    Neighbourhood {
        /// The number of bytes per item.
        bytes: u64,
        /// The number of further items on each side.
        margin: u64,
    },
    /// The rows of an image that contain the items, plus rows above and below, within the buffer.
    Rows {
        /// The number of items per row; 1 if an item is a row.
        items_per_row: u64,
        /// The number of bytes per row.
        row_bytes: u64,
        /// The number of further rows on each side.
        margin: u64,
    },
    /// A sequence of layers, in each of which an item has bytes; one range per layer.
    ///
    /// Examples are a column of a row-major matrix, and a row of a volume that is stored by planes.
    Layers {
        /// The number of bytes per item in a layer.
        bytes: u64,
        /// The number of bytes per layer.
        layer_bytes: u64,
        /// The number of further items on each side, within the layer.
        margin: u64,
    },
    /// Overlapping parts, one per group of items.
    ///
    /// Group `g` touches bytes `g * stride - halo .. (g + 1) * stride + halo`, within the buffer.
    Overlapping {
        /// The number of items per group.
        items: u64,
        /// The number of bytes from the start of one group's part to the next.
        stride: u64,
        /// The number of further bytes on each side.
        halo: u64,
    },
    /// The tiles of an image that is stored by rows: an item is a tile, numbered row by row. One range per
    /// row of pixels.
    Tiles {
        /// The number of tiles side by side.
        across: u64,
        /// The width of a tile, in bytes.
        tile_bytes: u64,
        /// The height of a tile, in rows.
        tile_rows: u64,
        /// The number of bytes per row of the image.
        row_bytes: u64,
    },
    /// The bytes that a function returns for a range of items. A function that panics, or returns bytes
    /// outside the buffer, fails its package.
    Of(Arc<RangeOf>),
    /// The ranges that a function returns, in any order; otherwise as [`Of`](Self::Of).
    OfRanges(Arc<RangesOf>),
    /// The ranges that a function of the items and the kernel's scalars returns; otherwise as
    /// [`OfRanges`](Self::OfRanges).
    OfLaunch(Arc<LaunchOf>),
}

impl Footprint {
    /// Returns the footprint of all bytes, for every package.
    #[must_use]
    pub const fn all() -> Self {
        Self::Whole
    }

    /// Returns a footprint in which item `i` touches bytes `i * bytes .. (i + 1) * bytes`.
    #[must_use]
    pub const fn one_to_one(bytes: u64) -> Self {
        Self::PerItem { bytes }
    }

    /// Returns a one-dimensional stencil: each item touches its own bytes, and those of `margin` items on
    /// each side.
    #[must_use]
    pub const fn neighbourhood(bytes: u64, margin: u64) -> Self {
        Self::Neighbourhood { bytes, margin }
    }

    /// Returns a footprint of image rows, in which items are pixels.
    ///
    /// A pixel touches its own row of `row_bytes` bytes, and `margin` rows above and below.
    #[must_use]
    pub const fn rows(items_per_row: u64, row_bytes: u64, margin: u64) -> Self {
        Self::Rows { items_per_row, row_bytes, margin }
    }

    /// Returns a footprint of matrix columns: an item is a column, with rows of `row_bytes` bytes and
    /// elements of `bytes` bytes.
    #[must_use]
    pub const fn columns(bytes: u64, row_bytes: u64) -> Self {
        Self::layers(bytes, row_bytes, 0)
    }

    /// Returns a footprint of layers: an item has `bytes` bytes in each layer of `layer_bytes` bytes.
    ///
    /// It also touches the bytes of `margin` items on each side.
    #[must_use]
    pub const fn layers(bytes: u64, layer_bytes: u64, margin: u64) -> Self {
        Self::Layers { bytes, layer_bytes, margin }
    }

    /// Returns a footprint of overlapping parts, one per group of `items` items, such as a work-group.
    ///
    /// A group touches its own `stride` bytes, and `halo` bytes on each side. It is for kernels that
    /// recompute the border of their neighbours. With a halo it is only for reading.
    ///
    /// ```
    /// use dml_scheduler::Footprint;
    /// // Work-groups of 256 items whose results are 216 floats, with 20 floats of border on each side.
    /// let wall = Footprint::overlapping(256, 216 * 4, 20 * 4);
    /// assert_eq!(wall.ranges(256..768, 4000)?, [(216 - 20) * 4..(3 * 216 + 20) * 4]);
    /// # Ok::<(), dml_scheduler::FootprintFault>(())
    /// ```
    #[must_use]
    pub const fn overlapping(items: u64, stride: u64, halo: u64) -> Self {
        Self::Overlapping { items, stride, halo }
    }

    /// Returns a footprint of image tiles: an item is a tile of `tile_bytes` bytes times `tile_rows` rows.
    ///
    /// A row of tiles has `across` tiles side by side, in image rows of `row_bytes` bytes.
    #[must_use]
    pub const fn tiles(across: u64, tile_bytes: u64, tile_rows: u64, row_bytes: u64) -> Self {
        Self::Tiles { across, tile_bytes, tile_rows, row_bytes }
    }

    /// Returns a footprint of the bytes that `map` returns for a range of items.
    ///
    /// `map` is called several times per package, and must return the same range each time. Packages run
    /// concurrently, so no package may touch bytes that another one writes. A run checks this only for some
    /// pairs of adjacent packages, and within one argument.
    pub fn of(map: impl Fn(Range<u64>) -> Range<u64> + Send + Sync + 'static) -> Self {
        Self::Of(Arc::new(map))
    }

    /// Returns a footprint of the byte ranges that `map` returns for a range of items, as [`of`](Self::of).
    ///
    /// The ranges are sorted and merged. A variant on the host has one view for each merged range.
    pub fn of_ranges(map: impl Fn(Range<u64>) -> Vec<Range<u64>> + Send + Sync + 'static) -> Self {
        Self::OfRanges(Arc::new(map))
    }

    /// Returns a footprint of the bytes that `map` returns for a range of items and the kernel's scalars, as
    /// [`of`](Self::of).
    ///
    /// A scalar that is set between two runs ([`Kernel::set_scalar`](crate::Kernel::set_scalar)) reaches
    /// `map` in the next run.
    ///
    /// The scalars are those of the launch, in the order of the arguments, without buffers and other values.
    /// A scalar that is computed for each package is computed for these items, as if unit 0 had them. So a
    /// footprint must not depend on the unit.
    ///
    /// ```
    /// use dml_scheduler::Footprint;
    /// // A window with a radius in floats, which the kernel's first scalar gives.
    /// let window = Footprint::of_launch(|items, scalars| {
    ///     let radius = u64::from(u32::try_from(scalars[0]).expect("the radius"));
    ///     items.start.saturating_sub(radius) * 4..(items.end + radius).min(1000) * 4
    /// });
    /// assert_eq!(window.ranges_of(8..16, &[3_u32.into()], 4000)?, [20..76]);
    /// # Ok::<(), dml_scheduler::FootprintFault>(())
    /// ```
    pub fn of_launch(map: impl Fn(Range<u64>, &[Scalar]) -> Range<u64> + Send + Sync + 'static) -> Self {
        Self::of_launch_ranges(move |items, scalars| Vec::from([map(items, scalars)]))
    }

    /// Returns a footprint of the byte ranges that `map` returns for a range of items and the kernel's
    /// scalars, as [`of_launch`](Self::of_launch) and [`of_ranges`](Self::of_ranges).
    pub fn of_launch_ranges(
        map: impl Fn(Range<u64>, &[Scalar]) -> Vec<Range<u64>> + Send + Sync + 'static,
    ) -> Self {
        Self::OfLaunch(Arc::new(map))
    }

    /// Returns the bytes that the items touch in a kernel without scalars, as [`ranges_of`](Self::ranges_of)
    /// does.
    ///
    /// # Errors
    /// As [`ranges_of`](Self::ranges_of).
    pub fn ranges(&self, items: Range<u64>, len: u64) -> Result<Vec<Range<u64>>, FootprintFault> {
        self.ranges_of(items, &[], len)
    }

    /// Returns the bytes that the items touch with these scalars, within a buffer of `len` bytes: ascending,
    /// disjoint, at least one range.
    ///
    /// # Errors
    /// [`FootprintFault`] if a function panics or returns bytes outside the buffer, or if the sizes
    /// contradict each other.
    pub fn ranges_of(
        &self,
        items: Range<u64>,
        scalars: &[Scalar],
        len: u64,
    ) -> Result<Vec<Range<u64>>, FootprintFault> {
        let scaled = |range: Range<u64>, bytes: u64| {
            range.start.saturating_mul(bytes).min(len)..range.end.saturating_mul(bytes).min(len)
        };
        let one = |range: Range<u64>| Ok(vec![range]);
        match *self {
            Self::Whole => one(0..len),
            Self::PerItem { bytes } => one(scaled(items, bytes)),
            Self::Neighbourhood { bytes, margin } => one(scaled(widened(items, margin), bytes)),
            Self::Rows { items_per_row: 0, .. } => {
                Err(FootprintFault::NoPicture { what: "a row has no items" })
            }
            Self::Rows { items_per_row, row_bytes, margin } => {
                let rows = items.start / items_per_row..items.end.div_ceil(items_per_row);
                one(scaled(widened(rows, margin), row_bytes))
            }
            Self::Layers { bytes, layer_bytes, margin } => {
                let items = widened(items, margin);
                let part = items.start.saturating_mul(bytes)..items.end.saturating_mul(bytes);
                blocks(0..u64::MAX, layer_bytes, part, len)
            }
            Self::Overlapping { items: 0, .. } => {
                Err(FootprintFault::NoPicture { what: "a group has no items" })
            }
            Self::Overlapping { items: of_group, stride, halo } => {
                let parts = items.start / of_group..items.end.div_ceil(of_group);
                let part = parts.start.saturating_mul(stride)..parts.end.saturating_mul(stride);
                // An empty range has no border.
                let part = if items.is_empty() { part } else { widened(part, halo) };
                one(part.start.min(len)..part.end.min(len))
            }
            Self::Tiles { across, tile_bytes, tile_rows, row_bytes } => {
                if across == 0 || tile_rows == 0 || across.saturating_mul(tile_bytes) > row_bytes {
                    let what = "a row of tiles is empty, or longer than a row of the image";
                    return Err(FootprintFault::NoPicture { what });
                }
                let mut ranges = Vec::new();
                // Each turn covers the tiles of one row of tiles, which are adjacent.
                let mut next = items.start;
                while next < items.end
                    && (next / across).saturating_mul(tile_rows) < len.div_ceil(row_bytes.max(1))
                {
                    let row = next / across;
                    let last = items.end.min(row.saturating_add(1).saturating_mul(across));
                    let columns = next % across..next % across + (last - next);
                    let rows = row.saturating_mul(tile_rows)..row.saturating_add(1).saturating_mul(tile_rows);
                    ranges.extend(blocks(
                        rows,
                        row_bytes,
                        columns.start.saturating_mul(tile_bytes)..columns.end.saturating_mul(tile_bytes),
                        len,
                    )?);
                    next = last;
                }
                Ok(in_order(ranges, len))
            }
            Self::Of(ref map) => within(vec![asked(|| map(items))?], len),
            Self::OfRanges(ref map) => within(asked(|| map(items))?, len),
            Self::OfLaunch(ref map) => within(asked(|| map(items, scalars))?, len),
        }
    }
}

impl Footprint {
    /// Returns the number of items that a buffer of `len` bytes has bytes for; the last item may be partial.
    ///
    /// It is `None` if the footprint sets no limit, or is invalid itself.
    pub(super) fn holds(&self, len: u64) -> Option<u64> {
        let pieces = |len: u64, bytes: u64| (bytes > 0).then(|| len.div_ceil(bytes));
        match *self {
            Self::PerItem { bytes } | Self::Neighbourhood { bytes, .. } => pieces(len, bytes),
            Self::Rows { items_per_row, row_bytes, .. } if items_per_row > 0 => {
                Some(pieces(len, row_bytes)?.saturating_mul(items_per_row))
            }
            Self::Layers { bytes, layer_bytes, .. } if layer_bytes > 0 => pieces(layer_bytes, bytes),
            Self::Overlapping { items, stride, .. } if items > 0 => {
                Some(pieces(len, stride)?.saturating_mul(items))
            }
            Self::Tiles { across, tile_rows, row_bytes, .. } if across > 0 => {
                Some(pieces(pieces(len, row_bytes)?, tile_rows)?.saturating_mul(across))
            }
            Self::Whole
            | Self::Of(_)
            | Self::OfRanges(_)
            | Self::OfLaunch(_)
            | Self::Rows { .. }
            | Self::Layers { .. }
            | Self::Overlapping { .. }
            | Self::Tiles { .. } => None,
        }
    }
}

/// Maximum number of rows in one block of rows. It bounds the number of ranges, each of which is acquired
/// separately.
const MOST_RANGES: u64 = 1 << 16;

/// Runs a foreign function and turns its panic into an error.
pub(super) fn asked<R>(map: impl FnOnce() -> R) -> Result<R, FootprintFault> {
    guarded(map).map_err(|message| FootprintFault::Panicked { message })
}

/// Returns a range with a margin on each side.
fn widened(range: Range<u64>, margin: u64) -> Range<u64> {
    if range.is_empty() {
        range
    } else {
        range.start.saturating_sub(margin)..range.end.saturating_add(margin)
    }
}

/// Returns the bytes `columns` of each row, clipped to the row and to the buffer.
fn blocks(
    rows: Range<u64>,
    row_bytes: u64,
    columns: Range<u64>,
    len: u64,
) -> Result<Vec<Range<u64>>, FootprintFault> {
    if row_bytes == 0 {
        return Err(FootprintFault::NoPicture { what: "a row has no bytes" });
    }
    let columns = columns.start.min(row_bytes)..columns.end.min(row_bytes);
    let part = |row: u64| {
        let start = row.saturating_mul(row_bytes);
        start.saturating_add(columns.start).min(len)..start.saturating_add(columns.end).min(len)
    };
    let rows = rows.start..rows.end.min(len.div_ceil(row_bytes));
    if rows.end.saturating_sub(rows.start) > MOST_RANGES {
        return Err(FootprintFault::NoPicture { what: "a package would touch more than 65,536 rows" });
    }
    Ok(in_order(rows.map(part).collect(), len))
}

/// Checks that the ranges of a function are within the buffer, then sorts and merges them.
fn within(ranges: Vec<Range<u64>>, len: u64) -> Result<Vec<Range<u64>>, FootprintFault> {
    match ranges.iter().find(|range| range.start > range.end || range.end > len) {
        Some(bytes) => Err(FootprintFault::Outside { bytes: bytes.clone(), len }),
        None => Ok(in_order(ranges, len)),
    }
}

/// Sorts ranges, and merges those that overlap or touch. Without any bytes, one empty range remains.
fn in_order(mut ranges: Vec<Range<u64>>, len: u64) -> Vec<Range<u64>> {
    let nothing = ranges.first().map_or(len, |range| range.start);
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len().max(1));
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    if joined.is_empty() {
        joined.push(nothing..nothing);
    }
    joined
}

/// Returns the first bytes that two lists of ranges share. Both ascend.
pub(crate) fn shared(one: &[Range<u64>], other: &[Range<u64>]) -> Option<Range<u64>> {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    loop {
        let (&a, &b) = (one.peek()?, other.peek()?);
        let both = a.start.max(b.start)..a.end.min(b.end);
        if !both.is_empty() {
            return Some(both);
        }
        if a.end <= b.end {
            one.next()
        } else {
            other.next()
        };
    }
}

impl fmt::Debug for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("Whole"),
            Self::PerItem { bytes } => write!(f, "PerItem({bytes} bytes)"),
            Self::Neighbourhood { bytes, margin } => {
                write!(f, "Neighbourhood({bytes} bytes, {margin} items on each side)")
            }
            Self::Rows { items_per_row, row_bytes, margin } => {
                write!(f, "Rows({items_per_row} items in {row_bytes} bytes, {margin} rows on each side)")
            }
            Self::Layers { bytes, layer_bytes, margin } => {
                write!(f, "Layers({bytes} of {layer_bytes} bytes, {margin} items on each side)")
            }
            Self::Overlapping { items, stride, halo } => {
                write!(f, "Overlapping({items} items, {stride} bytes apart, {halo} bytes on each side)")
            }
            Self::Tiles { across, tile_bytes, tile_rows, row_bytes } => {
                write!(f, "Tiles({across} of {tile_bytes} x {tile_rows} in rows of {row_bytes} bytes)")
            }
            Self::Of(_) => f.write_str("Of(function)"),
            Self::OfRanges(_) => f.write_str("OfRanges(function)"),
            Self::OfLaunch(_) => f.write_str("OfLaunch(function)"),
        }
    }
}

/// Fault of a footprint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FootprintFault {
    /// The function panicked.
    #[error("the footprint panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// A range is not within the buffer, or ends before it starts.
    #[error("the footprint names bytes {bytes:?} of a buffer of {len} bytes")]
    Outside {
        /// The range.
        bytes: Range<u64>,
        /// The size of the buffer in bytes.
        len: u64,
    },
    /// The sizes of the footprint contradict each other.
    #[error("invalid footprint: {what}")]
    NoPicture {
        /// The contradiction.
        what: &'static str,
    },
}

/// A footprint that cannot be used, with its kernel, argument and package.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("kernel {kernel}, argument {argument}, {buffer}, items {items:?}: {cause}")]
pub struct FootprintError {
    /// The kernel's name.
    pub kernel: String,
    /// The position among all arguments of the kernel, from 0.
    pub argument: usize,
    /// The buffer of the argument.
    pub buffer: BufferName,
    /// The items of the package.
    pub items: Range<u64>,
    /// The fault.
    pub cause: FootprintFault,
}

#[cfg(test)]
mod tests;
