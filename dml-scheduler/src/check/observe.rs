//! Finds footprints of a kernel without its source, by running packages on modified copies of the buffers.
//!
//! ```text
//!   package ──▶ run with the latest contents ──▶ bytes that change: written
//!           ──▶ run with moved values below a byte, and from it on ──bisection──▶ first and last element read
//!   several packages ──▶ first = per_item * begin - before, end = per_item * end + after ──▶ confirmed on others
//! ```
//! 1. A part is one range. A kernel that touches layers touches the whole range between them.
//! 2. What has no effect on the results is not seen: see [`check_footprints`](super::check_footprints).
//! 3. A part that no line describes, or that further packages do not confirm, is unknown.

use super::runs::{Check, Run, differences};
use super::values::{Outside, WAYS};
use super::{CheckError, check_footprints, prepared};
use crate::base::package::{Package, UnitId};
use crate::kernel::{Argument, Footprint, Kernel};
use dml_core::{Access, DeviceId, LaunchArg, Platform};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// A part of a buffer, as observed: an item touches `per_item` bytes from `per_item * item` on, and more
/// before and behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObservedPart {
    /// The same bytes for every package.
    Fixed(Range<u64>),
    /// Bytes `per_item * begin - before .. per_item * end + after`, within the buffer.
    PerItem {
        /// The bytes of an item.
        per_item: u64,
        /// Further bytes before those of the first item; less than 0 for a part that begins later.
        before: i64,
        /// Further bytes behind those of the last item.
        after: i64,
    },
}

impl ObservedPart {
    /// Returns the part of `per_item` bytes for an item, and more before and behind.
    #[must_use]
    pub const fn per_item(per_item: u64, before: i64, after: i64) -> Self {
        Self::PerItem { per_item, before, after }
    }

    /// Returns the bytes that items touch in a buffer of `len` bytes.
    #[must_use]
    pub fn bytes(&self, items: &Range<u64>, len: u64) -> Range<u64> {
        match *self {
            Self::Fixed(ref bytes) => bytes.clone(),
            Self::PerItem { per_item, before, after } => {
                let at = |item: u64, shift: i128| {
                    (i128::from(item) * i128::from(per_item) + shift).clamp(0, len.into()) as u64
                };
                let start = at(items.start, -i128::from(before));
                start..at(items.end, after.into()).max(start)
            }
        }
    }

    /// Returns the footprint of the part in a buffer of `len` bytes.
    #[must_use]
    pub fn footprint(&self, len: u64) -> Footprint {
        match *self {
            Self::Fixed(ref bytes) if *bytes == (0..len) => Footprint::Whole,
            Self::PerItem { per_item, before: 0, after: 0 } => Footprint::one_to_one(per_item),
            _ => {
                let part = self.clone();
                Footprint::of(move |items| part.bytes(&items, len))
            }
        }
    }
}

/// What packages do with a buffer, as observed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observed {
    /// The position of the argument among all arguments of the kernel, from 0.
    pub argument: usize,
    /// The part that has an effect on results; `None` if none has one.
    pub reads: Option<Observation>,
    /// The part that is written; `None` if none is.
    pub writes: Option<Observation>,
    /// Whether packages write every element of that part, and none of the buffer has an effect.
    pub overwrites: bool,
}

impl Observed {
    /// Returns access and footprint for a buffer of `len` bytes: the whole buffer for reads that no line
    /// describes, `None` for such writes.
    ///
    /// A buffer without any effect is read completely: it may have one with other contents.
    #[must_use]
    pub fn part(&self, len: u64) -> Option<(Access, Footprint)> {
        let part = match (&self.reads, &self.writes) {
            (None | Some(Observation::Unknown { .. }), None) => {
                return Some((Access::ReadOnly, Footprint::Whole));
            }
            (Some(Observation::Part(reads)), None) => return Some((Access::ReadOnly, reads.footprint(len))),
            (None, Some(Observation::Part(writes))) => writes.footprint(len),
            (Some(Observation::Part(reads)), Some(Observation::Part(writes))) => {
                let both = (reads.clone(), writes.clone());
                Footprint::of_ranges(move |items| vec![both.0.bytes(&items, len), both.1.bytes(&items, len)])
            }
            _ => return None,
        };
        Some((if self.overwrites { Access::WriteInvalidate } else { Access::ReadWrite }, part))
    }
}

impl Kernel {
    /// Returns the kernel with the accesses and footprints that [`observe_footprints`] sees and
    /// [`check_footprints`](super::check_footprints) confirms: for a function without a source, or one whose
    /// indices depend on data. Reductions stay.
    ///
    /// ```no_run
    /// # use dml_core::{Buffer, DeviceId, Launcher, Platform};
    /// # use dml_scheduler::Kernel;
    /// # fn example(platform: &Platform, launcher: impl Launcher + 'static, [from, to]: [&Buffer<f32>; 2])
    /// # -> Result<Kernel, Box<dyn std::error::Error>> {
    /// let gpu = platform.device("gpu:0")?;
    /// // The declared parts do not matter.
    /// let blur = Kernel::new("blur", 64).read_all(from).read_write_all(to).launchers([(gpu, launcher)])?;
    /// Ok(blur.observed(platform, 1 << 20, gpu)?)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CheckError::Unknown`] for a part that is written and not understood; otherwise as
    /// [`check_footprints`](super::check_footprints).
    pub fn observed(mut self, platform: &Platform, items: u64, device: DeviceId) -> Result<Self, CheckError> {
        for seen in observe_footprints(platform, &self, items, device)? {
            let index = seen.argument;
            let of = self.signature();
            let Some(LaunchArg::Buffer { buffer, .. }) = of.get(index) else { continue };
            let (access, footprint) = seen.part(buffer.len()).ok_or_else(|| CheckError::Unknown {
                kernel: self.name().to_owned(),
                argument: index,
                buffer: buffer.name(),
                seen: Box::new(seen.clone()),
            })?;
            let set = self.set_footprint(index, access, footprint);
            debug_assert!(set.is_ok(), "it is a buffer, and no reduction");
        }
        check_footprints(platform, &self, items, device)?;
        Ok(self)
    }
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said =
            |seen: &Option<Observation>| seen.as_ref().map_or("nothing".to_owned(), ToString::to_string);
        write!(f, "reads {}; writes {}", said(&self.reads), said(&self.writes))
    }
}

/// A part that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observation {
    /// A part that all packages have that were run.
    Part(ObservedPart),
    /// Packages touch parts that no line describes. What one of them touched.
    Unknown {
        /// The items of the package.
        items: Range<u64>,
        /// The bytes that it touched.
        bytes: Range<u64>,
    },
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(ObservedPart::Fixed(bytes)) => write!(f, "bytes {bytes:?} for every package"),
            Self::Part(ObservedPart::PerItem { per_item, before, after }) => {
                write!(f, "{per_item} bytes per item, {before} before and {after} behind")
            }
            Self::Unknown { items, bytes } => {
                write!(f, "no part that grows with the items, such as bytes {bytes:?} for items {items:?}")
            }
        }
    }
}

/// Runs packages of a kernel on modified copies of its buffers, and returns what they touch.
///
/// The footprints of the kernel's arguments do not matter: a package gets whole buffers, and its items. The
/// kernel's own buffers are read, and not changed. They should hold the contents of a real run, in which
/// neighbouring elements differ. Reductions are left out.
///
/// A kernel whose results depend on an element only with other contents, or that reads without any effect, is
/// seen wrongly. So confirm the footprints by [`check_footprints`](super::check_footprints) on other contents
/// where these are at hand.
///
/// # Errors
/// As [`check_footprints`](super::check_footprints), without [`CheckError::Wrong`].
pub fn observe_footprints(
    platform: &Platform,
    kernel: &Kernel,
    items: u64,
    device: DeviceId,
) -> Result<Vec<Observed>, CheckError> {
    let (kernel, launcher, host, copies, arguments) = prepared(platform, kernel, items, device)?;
    let arguments = arguments.into_iter().map(|argument| argument.with_footprint(Footprint::Whole)).collect();
    let check = Check { platform, kernel: &kernel, launcher: &*launcher, device, host, copies, arguments };
    let packages = places(kernel.grain(), items);
    let mut seen = Vec::new();
    for package in &packages {
        seen.push(of_package(&check, package)?);
    }
    let buffers = kernel.arguments().iter().enumerate().filter(|(_, argument)| !argument.is_reduced());
    let observed = buffers.map(|(index, argument)| {
        let len = argument.buffer().len();
        let copy = check.copies.iter().position(|copied| &copied.of == argument.buffer()).unwrap_or_default();
        let of = |which: fn(&Touched) -> &Option<Range<u64>>| {
            let parts: Vec<_> = seen.iter().map(|touched| which(&touched[copy]).clone()).collect();
            fitted(&packages, &parts, len)
        };
        let (reads, writes) = (of(|touched| &touched.reads), of(|touched| &touched.writes));
        let overwrites =
            reads.is_none() && writes.is_some() && seen.iter().all(|touched| touched[copy].is_full);
        Observed { argument: kernel.position(index), reads, writes, overwrites }
    });
    Ok(observed.collect())
}

/// What a package touches of a copy: the range from the first to the last byte.
#[derive(Clone, Debug, Default)]
struct Touched {
    reads: Option<Range<u64>>,
    writes: Option<Range<u64>>,
    /// Whether every element of the written range changes in some run.
    is_full: bool,
}

/// Returns packages of several sizes at several places, of which the first ones are in the middle.
fn places(grain: u64, items: u64) -> Vec<Range<u64>> {
    let groups = items.div_ceil(grain);
    let package = |first: u64, count: u64| {
        (first * grain).min(items)..(first.saturating_add(count)).saturating_mul(grain).min(items)
    };
    let mut packages = vec![
        package(groups / 2, 1),
        package(groups / 2 + 1, 1),
        package(groups / 3, 2),
        package(groups / 4, 1),
        package(groups / 2, groups.div_ceil(5)),
        package(0, 1),
        package(groups.saturating_sub(1), 1),
        package(0, groups),
    ];
    packages.retain(|package| !package.is_empty());
    packages
}

/// Returns what a package touches of each copy.
fn of_package(check: &Check<'_>, items: &Range<u64>) -> Result<Vec<Touched>, CheckError> {
    let package = Package::new(items.clone(), UnitId(0), 0);
    let whole_of = |argument: &Argument| std::iter::once(0..argument.buffer().len()).collect();
    let whole: Vec<_> = check.arguments.iter().map(whole_of).collect();
    let run = |outside| check.run_from(&package, &check.arguments, &whole, check.moved(outside));
    let first = run(Outside::Latest)?;
    let mut all = Vec::new();
    for (copy, copied) in check.copies.iter().enumerate() {
        // With other contents in one buffer alone, what is overwritten with the value that it had changes.
        let byte = copied.copy.len();
        let moved = (0..WAYS).map(|way| run(Outside::Below { way, copy, byte }));
        let moved: Vec<Run> = moved.collect::<Result<_, _>>()?;
        let runs = std::iter::once(&first).chain(&moved);
        let changed: BTreeSet<u64> =
            runs.flat_map(|run| differences(&run.before[copy], &run.after[copy])).collect();
        let writes = changed.first().zip(changed.last()).map(|(first, last)| *first..*last + 1);
        let reads = check.read(copy, &first, &moved, &run)?;
        let unit = copied.unit;
        let whole = |bytes: Range<u64>| bytes.start / unit * unit..bytes.end.next_multiple_of(unit).min(byte);
        let writes = writes.map(whole);
        let elements = changed.iter().map(|byte| byte / unit).collect::<BTreeSet<_>>().len() as u64;
        let is_full = writes.as_ref().is_none_or(|of| (of.end - of.start).div_ceil(unit) == elements);
        all.push(Touched { reads, writes, is_full });
    }
    Ok(all)
}

/// Returns the part that packages have in common, if there is one that describes all.
fn fitted(packages: &[Range<u64>], parts: &[Option<Range<u64>>], len: u64) -> Option<Observation> {
    let seen: Vec<_> =
        packages.iter().zip(parts).filter_map(|(items, part)| Some((items, part.as_ref()?))).collect();
    let (items, first) = seen.first()?;
    let unknown = || Observation::Unknown { items: (*items).clone(), bytes: (*first).clone() };
    if seen.iter().all(|(_, part)| part == first) && seen.len() == packages.len() && packages.len() > 1 {
        return Some(Observation::Part(ObservedPart::Fixed((*first).clone())));
    }
    // The ends of the buffer cut off borders.
    let inner = seen.iter().find(|(other, part)| other.start != items.start && part.start > 0);
    let per_item = inner.or(seen.get(1)).and_then(|(other, part)| {
        let (distance, shift) = (other.start.abs_diff(items.start), part.start.abs_diff(first.start));
        (distance > 0 && shift % distance == 0).then(|| shift / distance)
    });
    let Some(per_item) = per_item.filter(|per_item| *per_item > 0) else { return Some(unknown()) };
    let border =
        |end: u64, item: u64| i64::try_from(i128::from(end) - i128::from(item) * i128::from(per_item)).ok();
    let (Some(start), Some(after)) = (border(first.start, items.start), border(first.end, items.end)) else {
        return Some(unknown());
    };
    let part = ObservedPart::PerItem { per_item, before: -start, after };
    let is_it = packages.iter().zip(parts).all(|(items, found)| {
        let expected = part.bytes(items, len);
        found.as_ref().map_or(expected.is_empty(), |found| *found == expected)
    });
    Some(if is_it { Observation::Part(part) } else { unknown() })
}
