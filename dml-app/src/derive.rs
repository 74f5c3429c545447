//! Parts of arrays that the file does not declare, derived from the kernels' sources.
//!
//! ```text
//!   arguments without a part ──▶ analysis of each variant's source ──▶ for each package: the elements of all
//! ```
//! Devices run different variants, so a part contains what each of them touches. A part that cannot be
//! derived is a mistake, whose message names the place in the source.

use crate::part::{AXES, Along};
use crate::plan::{ArgumentPlan, ArrayPlan, Code, KernelPlan, VariantPlan, gcd};
use dml_analysis::{Access as Found, Analysis, Language, Launch, Launched, ParameterKind, Source};
use dml_core::{Access, DeviceKind, Scalar};
use dml_scheduler::Footprint;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The most packages whose parts are kept.
const KEPT: usize = 4096;
/// The most packages whose parts are compared with a name for them.
const NAMED: usize = 64;
/// Packages for which a written part is compared with that of the next one.
const COMPARED: u64 = 16;

/// The part of an array that items touch, by the analysis of the kernel's variants.
pub(crate) struct Derived {
    variants: Vec<Arc<OfVariant>>,
    /// The bytes of the array.
    bytes: u64,
    access: Access,
    known: Mutex<HashMap<Range<u64>, Vec<Range<u64>>>>,
}

/// A variant's source in a language.
#[derive(Debug)]
struct OfVariant {
    /// The kind of device that has a variant of its own.
    kind: Option<DeviceKind>,
    language: Language,
    /// The source's file.
    file: String,
    launched: Launched,
    /// The position of the array among the parameters.
    parameter: usize,
    /// The work-items of a group along the axis.
    group: u64,
    /// The items of a work-item along the axis.
    tile: u64,
}

impl fmt::Debug for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Derived")
            .field("bytes", &self.bytes)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl OfVariant {
    fn part(&self, items: &Range<u64>, bytes: u64) -> Result<dml_analysis::Part, String> {
        let items = items.start / self.tile..items.end.div_ceil(self.tile);
        let part = self.launched.part(self.parameter, items, bytes);
        part.map_err(|refusal| format!("{}:{refusal}", self.file))
    }
}

impl Derived {
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns the footprint of the variants that such devices run.
    pub(crate) fn footprint(&self, devices: &[(DeviceKind, Language)]) -> Footprint {
        let variants = self.variants.iter().filter(|variant| {
            devices.iter().any(|(kind, language)| {
                let has_own = self.variants.iter().any(|variant| variant.kind == Some(*kind));
                variant.language == *language && variant.kind == has_own.then_some(*kind)
            })
        });
        let variants = variants.cloned().collect();
        let own = Self { variants, bytes: self.bytes, access: self.access, known: Mutex::default() };
        Footprint::of_ranges(move |items| own.ranges(&items))
    }

    /// Returns the part as a file would declare it, if it is the same for packages everywhere.
    pub(crate) fn name(&self, shape: &[u64], element_bytes: u64, items: u64) -> Option<String> {
        let grain = self.grain();
        let packages: Vec<_> =
            (0..items.div_ceil(grain)).map(|at| at * grain..((at + 1) * grain).min(items)).collect();
        let step = packages.len().div_ceil(NAMED);
        let packages: Vec<_> = packages.into_iter().step_by(step.max(1)).collect();
        let parts: Vec<_> = packages.iter().map(|package| self.ranges(package)).collect();
        if parts.iter().all(|part| part.len() == 1 && part[0] == (0..self.bytes)) {
            return Some("whole".to_owned());
        }
        (0..shape.len()).find_map(|axis| {
            let bytes = shape[axis + 1..].iter().product::<u64>() * element_bytes;
            let layers = shape[..axis].iter().product::<u64>();
            let of_layers = |part: &Vec<Range<u64>>| {
                along(part, bytes, shape[axis]).filter(|_| part.len() as u64 == layers)
            };
            let found: Option<Vec<_>> = parts.iter().map(of_layers).collect();
            let along = fitted(&packages, &found?, (axis, shape[axis], items))?;
            Some(along.name(AXES[shape.len() - 1][axis]))
        })
    }

    /// Returns the bytes that items touch.
    pub(crate) fn ranges(&self, items: &Range<u64>) -> Vec<Range<u64>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ranges) = known.get(items) {
            return ranges.clone();
        }
        let parts = self.variants.iter().filter_map(|variant| variant.part(items, self.bytes).ok());
        let ranges = joined(parts.flat_map(|part| part.bytes).collect());
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(items.clone(), ranges.clone());
        ranges
    }
}

/// Returns the positions along an axis that ranges touch, if those are the same in each layer. A position has
/// so many bytes, and a layer so many positions.
fn along(ranges: &[Range<u64>], bytes: u64, length: u64) -> Option<Range<u64>> {
    let layer = bytes * length;
    let of_one = |range: &Range<u64>| {
        let first = range.start / layer * layer;
        (range.end <= first + layer)
            .then(|| (range.start - first) / bytes..(range.end - first).div_ceil(bytes))
    };
    ranges.iter().map(of_one).try_fold(None, |all: Option<Range<u64>>, one| {
        let one = one?;
        Some(Some(all.map_or(one.clone(), |all| all.start.min(one.start)..all.end.max(one.end))))
    })?
}

/// Returns the part that packages have of an axis, from what each has, if there is one.
fn fitted(
    packages: &[Range<u64>],
    found: &[Range<u64>],
    (axis, length, items): (usize, u64, u64),
) -> Option<Along> {
    // The ends of the array cut off margins.
    let inner = packages.iter().zip(found).filter(|(_, found)| found.start > 0 && found.end < length);
    let (package, part) = inner.clone().next().or_else(|| packages.iter().zip(found).next())?;
    let count = match inner.clone().next_back().filter(|(other, _)| other.start > package.start) {
        Some((other, last)) => last.start.checked_sub(part.start)? / (other.start - package.start),
        None => length / items,
    };
    let shift = |end: u64, item: u64| i128::from(end) - i128::from(item) * i128::from(count);
    let (first, last) = (shift(part.start, package.start), shift(part.end, package.end));
    let (before, offset) = (u64::try_from(-first).unwrap_or(0), u64::try_from(first).unwrap_or(0));
    let after = u64::try_from(last - i128::from(offset)).ok()?;
    let along = Along { axis, count: Some(count).filter(|count| *count > 0)?, before, after, offset };
    let is_it = packages.iter().zip(found).all(|(package, found)| along.part(package, length) == *found);
    is_it.then_some(along)
}

/// Sorts ranges, and joins those that touch.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// Returns the integer that a scalar is, if it is one.
fn integer(scalar: Scalar) -> Option<i128> {
    macro_rules! of_any {
        ($($of:ty),*) => { None$(.or_else(|| <$of>::try_from(scalar).ok().map(i128::from)))* };
    }
    of_any!(i8, u8, i16, u16, i32, u32, i64, u64)
}

/// The analyses of a kernel's variants.
pub(crate) struct Analyses<'a> {
    kernel: &'a KernelPlan,
    variants: Vec<Analysed<'a>>,
}

/// A variant with its kind of device and a language, and the analysis of its source.
type Analysed<'a> = (Option<DeviceKind>, &'a VariantPlan, Language, Result<Analysis, String>);

impl<'a> Analyses<'a> {
    pub(crate) fn of(kernel: &'a KernelPlan) -> Self {
        let own = kernel.variants.iter().map(|(kind, variant)| (Some(*kind), variant));
        let codes = std::iter::once((None, &kernel.default)).chain(own).flat_map(|(kind, variant)| {
            let codes = [(Language::OpenCl, &variant.opencl), (Language::Cuda, &variant.cuda)];
            codes
                .into_iter()
                .filter_map(move |(language, code)| Some((kind, variant, language, code.as_ref()?)))
        });
        // A device whose source lacks the function does not run the kernel.
        let analysed = codes.filter_map(|(kind, variant, language, code)| {
            Some((kind, variant, language, analysis(code, language, &variant.function)?))
        });
        Self { kernel, variants: analysed.collect() }
    }

    /// Derives the part of the array that is the argument at this position.
    ///
    /// # Errors
    /// Why it cannot be derived.
    pub(crate) fn part(&self, argument: usize, array: &ArrayPlan) -> Result<Derived, String> {
        let bytes = array.elements() * array.element.bytes();
        let variants: Vec<_> = self
            .variants
            .iter()
            .map(|variant| self.of_variant(variant, argument).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let items = self.kernel.items[self.kernel.axis];
        let mut access = None;
        for variant in &variants {
            let found = match variant.part(&(0..items), bytes)?.access {
                Found::None => continue,
                Found::Reads => Access::ReadOnly,
                Found::Overwrites => Access::WriteInvalidate,
                Found::Updates => Access::ReadWrite,
            };
            access = Some(match access {
                Some(known) if known != found => Access::ReadWrite,
                _ => found,
            });
        }
        let access = access.ok_or("no variant touches it")?;
        let derived = Derived { variants, bytes, access, known: Mutex::default() };
        if access.writes() && !self.kernel.is_undivided {
            derived.check_divisible(items)?;
        }
        Ok(derived)
    }

    fn of_variant(
        &self,
        (kind, variant, language, analysis): &Analysed<'_>,
        argument: usize,
    ) -> Result<OfVariant, String> {
        let function = &variant.function;
        let analysis = analysis.as_ref().map_err(|refusal| format!("{function}: {refusal}"))?;
        // Local memory is no parameter in CUDA C.
        let is_parameter =
            |plan: &ArgumentPlan| *language == Language::OpenCl || !matches!(plan, ArgumentPlan::Local(_));
        let arguments = self.kernel.arguments.iter().map(|(plan, _)| plan);
        let parameter = arguments.clone().take(argument).filter(|plan| is_parameter(plan)).count();
        let integers = arguments.filter(|plan| is_parameter(plan)).map(|plan| match plan {
            ArgumentPlan::Scalar(scalar) => integer(*scalar),
            _ => None,
        });
        let integers: Vec<_> = integers.collect();
        let parameters = analysis.parameters();
        // `DmlItems` may follow.
        if parameters.len() < integers.len() {
            return Err(format!("{function} has {} parameters, not {}", parameters.len(), integers.len()));
        }
        if !matches!(parameters[parameter].kind, ParameterKind::Buffer { .. }) {
            return Err(format!("parameter {} of {function} is no buffer", parameters[parameter].name));
        }
        if analysis.is_atomic(parameter) {
            return Err(format!("{function} changes it atomically: expected `reduces`"));
        }
        let axis = self.kernel.axis;
        let sizes = [0, 1, 2].map(|axis| self.kernel.items[axis].div_ceil(variant.tile[axis]));
        let launch = Launch { sizes, group: variant.group, axis, integers };
        let (launched, tile, group) = (analysis.launch(&launch), variant.tile[axis], variant.group[axis]);
        let code = if *language == Language::OpenCl { &variant.opencl } else { &variant.cuda };
        let file = code.as_ref().map_or_else(String::new, |code| code.place.message.clone());
        Ok(OfVariant { kind: *kind, language: *language, file, launched, parameter, group, tile })
    }
}

/// Analyses a function; none if the source does not define it.
fn analysis(code: &Code, language: Language, function: &str) -> Option<Result<Analysis, String>> {
    let mut defines = Vec::new();
    let mut options = code.options.split_whitespace();
    while let Some(option) = options.next() {
        match option.strip_prefix("-D") {
            Some("") => defines.extend(options.next().map(str::to_owned)),
            Some(define) => defines.push(define.to_owned()),
            None => {}
        }
    }
    let source = Source::new(&code.text, language, &defines);
    let analysed = source.kernel(function);
    source
        .may_define(function)
        .then(|| analysed.map_err(|refusal| format!("{}:{refusal}", code.place.message)))
}

impl Derived {
    /// Returns of how many items packages are multiples: of whole tiles and groups of every variant.
    fn grain(&self) -> u64 {
        self.variants.iter().fold(1, |grain, variant| {
            let own = variant.tile.saturating_mul(variant.group).max(1);
            (grain / gcd(grain, own)).saturating_mul(own)
        })
    }

    /// Checks that neighbouring packages write different elements.
    fn check_divisible(&self, items: u64) -> Result<(), String> {
        let step = items.div_ceil(COMPARED).max(1).next_multiple_of(self.grain());
        let mut last: Option<Range<u64>> = None;
        let mut at = 0;
        while at < items {
            let package = at..(at + step).min(items);
            if let Some(last) = &last {
                let (one, other) = (self.ranges(last), self.ranges(&package));
                let common = one.iter().find_map(|one| {
                    other
                        .iter()
                        .map(|other| one.start.max(other.start)..one.end.min(other.end))
                        .find(|both| !both.is_empty())
                });
                if let Some(common) = common {
                    return Err(format!(
                        "items {} to {} and items {} to {} both change its byte {}: expected `reduces`, or `undivided = true`",
                        last.start,
                        last.end - 1,
                        package.start,
                        package.end - 1,
                        common.start
                    ));
                }
            }
            at = package.end;
            last = Some(package);
        }
        Ok(())
    }
}
