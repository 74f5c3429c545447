//! Finds footprints of a kernel without its source, by running packages on modified copies of the buffers.
//!
//! ```text
//!   package ──▶ run with the latest contents ──▶ bytes that change: written
//!           ──▶ run with moved values below a byte, and from it on ──bisection──▶ first and last element read
//!   several packages ──▶ first = bytes * begin - before, end = bytes * end + after ──▶ confirmed on others
//! ```
//! 1. What is read is one range: a kernel that reads layers reads the whole range between them.
//! 2. What has no effect on the results is not seen: see [`check_footprints`](super::check_footprints).
//! 3. A part that no line describes, or that further packages do not confirm, is unknown.

use super::runs::{Check, Run, differences, joined};
use super::values::{Outside, WAYS};
use super::{CheckError, check_footprints, prepared};
use crate::base::package::{Package, UnitId};
use crate::kernel::{Argument, Footprint, Kernel};
use dml_core::{Access, DeviceId, LaunchArg, Platform};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// A part of a buffer, as observed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObservedPart {
    /// The same bytes for every package.
    Fixed(Range<u64>),
    /// The same number of bytes for each group of `items` items: `bytes * first - before .. bytes * end +
    /// after` for the groups `first..end`, within the buffer.
    PerItem {
        /// The items of a group: 1, or as many as in a work-group.
        items: u64,
        /// The bytes of a group.
        bytes: u64,
        /// Further bytes before those of the first group; less than 0 for a part that begins later.
        before: i64,
        /// Further bytes behind those of the last group.
        after: i64,
    },
    /// `bytes` bytes for an item in each layer, such as those of a column in each row.
    PerLayer {
        /// The bytes of an item in a layer.
        bytes: u64,
        /// The bytes of a layer.
        layer_bytes: u64,
    },
}

impl ObservedPart {
    /// Returns the part of `bytes` bytes for an item, and more before and behind.
    #[must_use]
    pub const fn per_item(bytes: u64, before: i64, after: i64) -> Self {
        Self::PerItem { items: 1, bytes, before, after }
    }

    /// Returns the bytes that items touch in a buffer of `len` bytes: ascending, disjoint ranges.
    #[must_use]
    pub fn ranges(&self, items: &Range<u64>, len: u64) -> Vec<Range<u64>> {
        let ranges = match *self {
            Self::Fixed(ref bytes) => vec![bytes.clone()],
            Self::PerItem { items: of_group, bytes, before, after } => {
                let at = |group: u64, shift: i128| {
                    (i128::from(group) * i128::from(bytes) + shift).clamp(0, len.into()) as u64
                };
                let start = at(items.start / of_group, -i128::from(before));
                let end = at(items.end.div_ceil(of_group), after.into()).max(start);
                std::iter::once(start..end).collect()
            }
            Self::PerLayer { bytes, layer_bytes } => {
                Footprint::layers(bytes, layer_bytes, 0).ranges(items.clone(), len).unwrap_or_default()
            }
        };
        ranges.into_iter().filter(|range| !range.is_empty()).collect()
    }

    /// Returns the footprint of the part in a buffer of `len` bytes.
    #[must_use]
    pub fn footprint(&self, len: u64) -> Footprint {
        match *self {
            Self::Fixed(ref bytes) if *bytes == (0..len) => Footprint::Whole,
            Self::PerItem { items: 1, bytes, before: 0, after: 0 } => Footprint::one_to_one(bytes),
            Self::PerLayer { bytes, layer_bytes } => Footprint::layers(bytes, layer_bytes, 0),
            _ => {
                let part = self.clone();
                Footprint::of_ranges(move |items| part.ranges(&items, len))
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
                let both = [reads.clone(), writes.clone()];
                Footprint::of_ranges(move |items| {
                    both.iter().flat_map(|part| part.ranges(&items, len)).collect()
                })
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
    /// A function must compute the items that it is given ([`Items`](dml_core::Items)). The parts are those
    /// with the kernel's scalars: observe it again after [`set_scalar`](Self::set_scalar).
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
    /// [`CheckError::Unknown`] for a part that is written and not understood, as by a function that ignores
    /// its items, or if nothing is seen of a buffer that is declared as changed; otherwise as
    /// [`check_footprints`](super::check_footprints).
    pub fn observed(mut self, platform: &Platform, items: u64, device: DeviceId) -> Result<Self, CheckError> {
        for seen in observe_footprints(platform, &self, items, device)? {
            let index = seen.argument;
            let of = self.signature();
            let Some(LaunchArg::Buffer { buffer, access, .. }) = of.get(index) else { continue };
            let is_idle = seen.reads.is_none() && seen.writes.is_none();
            let part = seen.part(buffer.len()).filter(|_| !(is_idle && access.writes()));
            let (access, footprint) = part.ok_or_else(|| CheckError::Unknown {
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
            Self::Part(ObservedPart::PerItem { items, bytes, before, after }) => {
                let each = if *items == 1 { "item".to_owned() } else { format!("{items} items") };
                write!(f, "{bytes} bytes per {each}, {before} before and {after} behind")
            }
            Self::Part(ObservedPart::PerLayer { bytes, layer_bytes }) => {
                write!(f, "{bytes} bytes per item in each {layer_bytes} bytes")
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
        let copy = check.copies.iter().position(|copied| &copied.of == argument.buffer()).unwrap_or_default();
        let of = |which: fn(&Touched) -> &[Range<u64>]| Seen {
            packages: &packages,
            parts: seen.iter().map(|touched| which(&touched[copy])).collect(),
            grain: kernel.grain(),
            items,
            len: argument.buffer().len(),
        };
        let (reads, writes) = (of(|touched| touched.reads.as_slice()), of(|touched| &touched.writes));
        let (read, written) = (reads.part(), writes.disjoint_part());
        let overwrites = match &written {
            Some(Observation::Part(part)) => read.is_none() && writes.are(part),
            _ => false,
        };
        Observed { argument: kernel.position(index), reads: read, writes: written, overwrites }
    });
    Ok(observed.collect())
}

/// What a package touches of a copy.
#[derive(Clone, Debug, Default)]
struct Touched {
    /// From the first to the last element.
    reads: Option<Range<u64>>,
    /// All elements that change in some run.
    writes: Vec<Range<u64>>,
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
        let changed = runs.flat_map(|run| differences(&run.before[copy], &run.after[copy]));
        let changed: BTreeSet<u64> = changed.map(|byte| byte / copied.unit).collect();
        let elements =
            changed.into_iter().map(|element| element * copied.unit..((element + 1) * copied.unit).min(byte));
        let writes = joined(elements.collect());
        let reads = check.read(copy, &first, &moved, &run)?;
        all.push(Touched { reads, writes });
    }
    Ok(all)
}

/// What packages touch of a buffer.
struct Seen<'a> {
    packages: &'a [Range<u64>],
    parts: Vec<&'a [Range<u64>]>,
    grain: u64,
    items: u64,
    len: u64,
}

impl Seen<'_> {
    /// Returns the part that packages have in common, if there is one that describes all.
    fn part(&self) -> Option<Observation> {
        let (items, parts) = self.packages.iter().zip(&self.parts).find(|(_, parts)| !parts.is_empty())?;
        let part = self.fixed().or_else(|| self.per_layer()).or_else(|| self.per_item());
        let unknown = || Observation::Unknown { items: items.clone(), bytes: hull(parts) };
        Some(part.map_or_else(unknown, Observation::Part))
    }

    /// As [`part`](Self::part), for packages that must not touch the same bytes.
    fn disjoint_part(&self) -> Option<Observation> {
        let part = self.part()?;
        let is_shared = match &part {
            Observation::Part(ObservedPart::PerItem { before, after, .. }) => *before + *after > 0,
            Observation::Part(ObservedPart::Fixed(_)) => self.grain < self.items,
            _ => false,
        };
        let items = self.packages[0].clone();
        Some(if is_shared { Observation::Unknown { items, bytes: hull(self.parts[0]) } } else { part })
    }

    /// Returns whether all packages touch exactly a part.
    fn are(&self, part: &ObservedPart) -> bool {
        self.packages.iter().zip(&self.parts).all(|(items, found)| part.ranges(items, self.len) == *found)
    }

    fn fixed(&self) -> Option<ObservedPart> {
        let is_same = self.parts.len() > 1 && self.parts.windows(2).all(|two| two[0] == two[1]);
        is_same.then(|| ObservedPart::Fixed(hull(self.parts[0])))
    }

    fn per_layer(&self) -> Option<ObservedPart> {
        let [first, second, ..] = self.parts[0] else { return None };
        let items = self.packages[0].end - self.packages[0].start;
        let part = ObservedPart::PerLayer {
            bytes: (first.end - first.start) / items,
            layer_bytes: second.start - first.start,
        };
        self.are(&part).then_some(part)
    }

    fn per_item(&self) -> Option<ObservedPart> {
        let seen = || self.packages.iter().zip(&self.parts).filter(|(_, parts)| !parts.is_empty());
        let (items, first) = seen().next().map(|(items, parts)| (items, hull(parts)))?;
        // The ends of the buffer cut off borders.
        let inner = seen().find(|(other, parts)| other.start != items.start && parts[0].start > 0);
        let (other, second) = inner.or(seen().nth(1)).map(|(items, parts)| (items, hull(parts)))?;
        let (distance, shift) = (other.start.abs_diff(items.start), second.start.abs_diff(first.start));
        let of_group = if distance > 0 && shift % distance == 0 { 1 } else { self.grain };
        let groups = distance / of_group;
        let bytes = (groups > 0 && shift % groups == 0).then(|| shift / groups).filter(|bytes| *bytes > 0)?;
        let border = |end: u64, group: u64| {
            i64::try_from(i128::from(end) - i128::from(group) * i128::from(bytes)).ok()
        };
        let before = -border(first.start, items.start / of_group)?;
        let after = border(first.end, items.end.div_ceil(of_group))?;
        let part = ObservedPart::PerItem { items: of_group, bytes, before, after };
        let is_it = self.packages.iter().zip(&self.parts).all(|(items, found)| {
            let (found, expected) = (hull(found), hull(&part.ranges(items, self.len)));
            // The first and the last items may do less, as those of a border that stays.
            let is_end = items.start < self.grain || items.end + self.grain > self.items;
            found == expected
                || is_end && (found.is_empty() || expected.start <= found.start && found.end <= expected.end)
        });
        // Elements between those of two packages belong to one of them.
        let (before, after) = match before + after {
            0.. => (before, after),
            _ if before <= 0 && after <= 0 => (0, 0),
            _ => (before, -before),
        };
        is_it.then_some(ObservedPart::PerItem { items: of_group, bytes, before, after })
    }
}

fn hull(ranges: &[Range<u64>]) -> Range<u64> {
    ranges.first().map_or(0..0, |first| first.start..ranges[ranges.len() - 1].end)
}
