//! Parts of arrays that the file does not declare, derived from the kernels' sources.
//!
//! ```text
//!   arguments without a part ──▶ analysis of each variant's source ──▶ for each package: the elements of all
//! ```
//! Devices run different variants, so a part contains what each of them touches. A part that cannot be
//! derived is a mistake, whose message names the place in the source.

use crate::fault::Fault;
use crate::part::{AXES, Along, Part};
use crate::plan::{ArgumentPlan, ArrayPlan, Code, KernelPlan, VariantPlan, gcd};
use dml_analysis::{Access as Found, Analysis, Language, Launch, Launched, ParameterKind, Refusal, Source};
use dml_core::{Access, DeviceKind, Scalar};
use dml_scheduler::{Footprint, FootprintFault};
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// Why a part of a buffer is not derived from a kernel's source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeriveError {
    /// The kernel or the buffer is refused.
    #[error("{place}{refusal}")]
    Refused {
        /// The file and a colon, if the source is a file.
        place: String,
        /// Why, with line and column.
        refusal: Refusal,
    },
    /// The kernel has other parameters than the arguments.
    #[error("{function} has {parameters} parameters, not {arguments}")]
    Parameters {
        /// The function.
        function: String,
        /// How many parameters it has.
        parameters: usize,
        /// How many arguments it gets.
        arguments: usize,
    },
    /// The parameter is no buffer.
    #[error("parameter {parameter} is no buffer")]
    NoBuffer {
        /// The parameter's name, or its position if there is none.
        parameter: String,
    },
    /// Work-items change the buffer atomically, so that packages change the same elements.
    #[error("parameter {parameter} is changed atomically: expected `reduces`")]
    Atomic {
        /// The parameter's name.
        parameter: String,
    },
    /// Packages may touch the same byte of a buffer that the kernel changes.
    #[error(
        "it is changed, and by the source both items {first:?} and items {second:?} may touch its byte {byte}: \
         expected a declared part, `reduces`, or `undivided = true`"
    )]
    Shared {
        /// The items of a package.
        first: Range<u64>,
        /// The items of the next one.
        second: Range<u64>,
        /// A byte that both may touch.
        byte: u64,
    },
    /// No source defines the function.
    #[error("no source defines a kernel {function}")]
    NoFunction {
        /// The function.
        function: String,
    },
    /// Work-items touch bytes beyond the end of the buffer.
    #[error(
        "work-items touch its bytes up to {end}, and it has {len} (a group may be longer than its items)"
    )]
    Short {
        /// The end of what they touch.
        end: u64,
        /// The size of the buffer.
        len: u64,
    },
    /// The kernel asks for its work-groups, whose size each framework chooses.
    #[error("the kernel asks for its work-groups, which have no size: expected a local size")]
    Groups,
    /// A scalar cannot be computed.
    #[error(transparent)]
    Scalar(#[from] FootprintFault),
    /// The kernel does not touch the buffer.
    #[error("the kernel does not touch it")]
    Untouched,
}

impl DeriveError {
    /// Returns the mistake in a file, with what is expected.
    fn told(&self, array: &str, is_only_read: bool) -> String {
        let told = format!("what items touch of {array} is not derived: {self}");
        match self {
            Self::Atomic { .. } | Self::Shared { .. } | Self::Short { .. } => told,
            Self::Refused { .. } if is_only_read => {
                told + "; expected a part that is read, such as `reads = \"whole\"`"
            }
            _ => told + "; expected one of `reads`, `writes`, `updates` and `reduces`",
        }
    }
}

/// Checks that a parameter is a buffer that packages change without atomics.
pub(crate) fn is_derivable(analysis: &Analysis, parameter: usize) -> Result<(), DeriveError> {
    let found = analysis.parameters().get(parameter);
    let name = found.map_or_else(|| parameter.to_string(), |found| found.name.clone());
    if !found.is_some_and(|found| matches!(found.kind, ParameterKind::Buffer { .. })) {
        return Err(DeriveError::NoBuffer { parameter: name });
    }
    if analysis.is_atomic(parameter) {
        return Err(DeriveError::Atomic { parameter: name });
    }
    Ok(())
}

/// Whether several packages run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Divided {
    ByPackages,
    Never,
}

/// More bytes than any buffer has.
pub(crate) const ANY: u64 = u64::MAX >> 16;
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
    known: Cache<Range<u64>>,
}

/// A variant's source in a language.
#[derive(Debug)]
struct OfVariant {
    /// The kind of device that has a variant of its own.
    kind: Option<DeviceKind>,
    language: Language,
    /// The source's file and a colon.
    place: String,
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
    fn part(&self, items: &Range<u64>, bytes: u64) -> Result<dml_analysis::Part, DeriveError> {
        let items = items.start / self.tile..items.end.div_ceil(self.tile);
        let part = self.launched.part(self.parameter, items, bytes);
        part.map_err(|refusal| DeriveError::Refused { place: self.place.clone(), refusal })
    }
}

impl Derived {
    fn new(
        variants: Vec<Arc<OfVariant>>,
        bytes: u64,
        items: u64,
        divided: Divided,
    ) -> Result<Self, DeriveError> {
        let mut derived = Self { variants, bytes, access: Access::ReadOnly, known: Cache::default() };
        let mut found = Vec::new();
        for package in derived.packages(items).iter().chain([&(0..items)]) {
            for variant in &derived.variants {
                found.push(variant.part(package, bytes)?.access);
            }
        }
        let access = of_all(found).ok_or(DeriveError::Untouched)?;
        for variant in &derived.variants {
            check_length(&variant.part(&(0..items), ANY)?, bytes)?;
        }
        derived.access = access;
        if access.writes() && divided == Divided::ByPackages {
            derived.check_divisible(items)?;
        }
        Ok(derived)
    }

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
        let own = Self { variants, bytes: self.bytes, access: self.access, known: Cache::default() };
        Footprint::of_ranges(move |items| own.ranges(&items))
    }

    /// Returns packages of as few items as possible.
    fn packages(&self, items: u64) -> Vec<Range<u64>> {
        samples(items, self.grain())
    }

    /// Returns how a declared part contradicts the source, if it does.
    fn contradiction(&self, declared: (Access, &Part), array: &ArrayPlan, items: u64) -> Option<String> {
        let (access, part) = declared;
        let (shape, element) = (&array.shape, array.element.bytes());
        let footprint = part.footprint(shape, element, &[]);
        let outside = self.packages(items).into_iter().find_map(|package| {
            let within = footprint.ranges(package.clone(), self.bytes).ok()?;
            let is_inside =
                |range: &Range<u64>| within.iter().any(|of| of.start <= range.start && range.end <= of.end);
            let outside = self.ranges(&package).into_iter().find(|range| !is_inside(range))?;
            let first =
                within.iter().find(|of| of.contains(&outside.start)).map_or(outside.start, |of| of.end);
            Some((package, first / element))
        });
        if let Some((package, element_index)) = outside {
            let derived = self.name(shape, element, items);
            let derived = derived.map_or_else(String::new, |part| format!("; derived: \"{part}\""));
            return Some(format!("items {package:?} touch element {element_index} outside of it{derived}"));
        }
        match (access, self.access) {
            (Access::ReadOnly, derived) if derived.writes() => Some("the kernel changes it".to_owned()),
            (Access::WriteInvalidate, Access::ReadOnly) => Some("the kernel only reads it".to_owned()),
            (Access::WriteInvalidate, Access::ReadWrite) => {
                Some("the kernel reads it, or leaves elements unwritten: `updates`".to_owned())
            }
            _ => None,
        }
    }

    /// Returns the part as a file would declare it, if it is the same for packages everywhere.
    pub(crate) fn name(&self, shape: &[u64], element_bytes: u64, items: u64) -> Option<String> {
        let packages = self.packages(items);
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
        self.known.get(items.clone(), || {
            let parts = self.variants.iter().filter_map(|variant| variant.part(items, self.bytes).ok());
            joined(parts.flat_map(|part| part.bytes).collect())
        })
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

/// Returns up to [`NAMED`] packages of `grain` items, and the last one.
pub(crate) fn samples(items: u64, grain: u64) -> Vec<Range<u64>> {
    let count = items.div_ceil(grain);
    let step = count.div_ceil(NAMED as u64).max(1) as usize;
    let ends = (0..count).step_by(step).chain(count.checked_sub(1));
    let mut packages: Vec<_> = ends.map(|at| at * grain..((at + 1) * grain).min(items)).collect();
    packages.dedup();
    packages
}

/// Checks that all of what a run certainly touches is within a buffer of `len` bytes. `part` is for a buffer
/// of [`ANY`] bytes.
pub(crate) fn check_length(part: &dml_analysis::Part, len: u64) -> Result<(), DeriveError> {
    match part.bytes.last() {
        Some(last) if part.is_exact && last.end > len => Err(DeriveError::Short { end: last.end, len }),
        _ => Ok(()),
    }
}

/// Returns the access of all packages, or `None` if they touch nothing.
pub(crate) fn of_all(found: impl IntoIterator<Item = Found>) -> Option<Access> {
    let accesses = found.into_iter().filter_map(|found| match found {
        Found::None => None,
        Found::Reads => Some(Access::ReadOnly),
        Found::Overwrites => Some(Access::WriteInvalidate),
        Found::Updates => Some(Access::ReadWrite),
    });
    accesses.reduce(|one, other| if one == other { one } else { Access::ReadWrite })
}

/// Ranges that are computed once.
#[derive(Debug)]
pub(crate) struct Cache<K>(Mutex<HashMap<K, Vec<Range<u64>>>>);

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Cache<K> {
    pub(crate) fn get(&self, key: K, ranges: impl FnOnce() -> Vec<Range<u64>>) -> Vec<Range<u64>> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ranges) = known().get(&key) {
            return ranges.clone();
        }
        let ranges = ranges();
        let mut known = known();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(key, ranges.clone());
        ranges
    }
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
pub(crate) fn integer(scalar: Scalar) -> Option<i128> {
    macro_rules! of_any {
        ($($of:ty),*) => { None$(.or_else(|| <$of>::try_from(scalar).ok().map(i128::from)))* };
    }
    of_any!(i8, u8, i16, u16, i32, u32, i64, u64)
}

/// The analyses of a kernel's variants.
struct Analyses<'a> {
    kernel: &'a KernelPlan,
    variants: Vec<Analysed<'a>>,
}

/// A variant with its kind of device and a language, and the analysis of its source.
type Analysed<'a> = (Option<DeviceKind>, &'a VariantPlan, Language, Result<Analysis, DeriveError>);

impl<'a> Analyses<'a> {
    fn of(kernel: &'a KernelPlan) -> Self {
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
    fn part(&self, argument: usize, array: &ArrayPlan) -> Result<Derived, DeriveError> {
        let divided = if self.kernel.is_undivided { Divided::Never } else { Divided::ByPackages };
        self.derived(argument, array, divided)
    }

    fn derived(&self, argument: usize, array: &ArrayPlan, divided: Divided) -> Result<Derived, DeriveError> {
        let bytes = array.elements() * array.element.bytes();
        let variants: Vec<_> = self
            .variants
            .iter()
            .map(|variant| self.of_variant(variant, argument).map(Arc::new))
            .collect::<Result<_, _>>()?;
        if variants.is_empty() {
            return Err(DeriveError::NoFunction { function: self.kernel.default.function.clone() });
        }
        let items = self.kernel.items[self.kernel.axis];
        Derived::new(variants, bytes, items, divided)
    }

    /// Returns whether no variant changes the argument at this position, as far as they are understood.
    fn is_only_read(&self, argument: usize) -> bool {
        self.variants.iter().all(|(_, _, language, analysis)| {
            let parameter = self.parameters(*language, argument).count();
            analysis.as_ref().is_ok_and(|analysis| !analysis.writes(parameter))
        })
    }

    /// Returns the first arguments, without those that are no parameters in this language.
    fn parameters(&self, language: Language, count: usize) -> impl Iterator<Item = &ArgumentPlan> {
        let arguments = self.kernel.arguments[..count].iter().map(|(plan, _)| plan);
        // Local memory is no parameter in CUDA C.
        arguments.filter(move |plan| language == Language::OpenCl || !matches!(plan, ArgumentPlan::Local(_)))
    }

    fn of_variant(
        &self,
        (kind, variant, language, analysis): &Analysed<'_>,
        argument: usize,
    ) -> Result<OfVariant, DeriveError> {
        let analysis = analysis.as_ref().map_err(Clone::clone)?;
        let parameter = self.parameters(*language, argument).count();
        let arguments = self.kernel.arguments.len();
        let integers = self.parameters(*language, arguments).map(|plan| match plan {
            ArgumentPlan::Scalar(scalar) => Vec::from_iter(integer(*scalar)),
            _ => Vec::new(),
        });
        let integers: Vec<_> = integers.collect();
        let parameters = analysis.parameters();
        // `DmlItems` may follow.
        if parameters.len() < integers.len() {
            let (parameters, arguments) = (parameters.len(), integers.len());
            return Err(DeriveError::Parameters {
                function: variant.function.clone(),
                parameters,
                arguments,
            });
        }
        is_derivable(analysis, parameter)?;
        let axis = self.kernel.axis;
        let sizes = [0, 1, 2].map(|axis| self.kernel.items[axis].div_ceil(variant.tile[axis]));
        let launch = Launch { sizes, group: variant.group, axis, integers };
        let (launched, tile, group) = (analysis.launch(&launch), variant.tile[axis], variant.group[axis]);
        let code = if *language == Language::OpenCl { &variant.opencl } else { &variant.cuda };
        let place = code.as_ref().map_or_else(String::new, |code| format!("{}:", code.place.message));
        Ok(OfVariant { kind: *kind, language: *language, place, launched, parameter, group, tile })
    }
}

/// Derives the parts of arguments without one, by the positions of the arguments. An error is the mistake in
/// a file; one that refuses the whole kernel is that of its first argument.
pub(crate) fn undeclared(kernel: &KernelPlan, arrays: &[ArrayPlan]) -> Vec<(usize, Result<Derived, String>)> {
    let arguments = kernel.arguments.iter().enumerate();
    let undeclared = arguments.filter_map(|(index, (argument, _))| match argument {
        ArgumentPlan::Array { array, part: Part::Undeclared, .. } => Some((index, &arrays[*array])),
        _ => None,
    });
    let undeclared: Vec<_> = undeclared.collect();
    let Some((first, _)) = undeclared.first() else { return Vec::new() };
    let analyses = Analyses::of(kernel);
    if let Some(why) = analyses.variants.iter().find_map(|(.., analysis)| analysis.as_ref().err()) {
        let names: Vec<_> = undeclared.iter().map(|(_, array)| &*array.name).collect();
        return vec![(*first, Err(why.told(&names.join(", "), false)))];
    }
    let part = |(index, array): (usize, &ArrayPlan)| {
        let part = analyses.part(index, array);
        (index, part.map_err(|why| why.told(&array.name, analyses.is_only_read(index))))
    };
    undeclared.into_iter().map(part).collect()
}

/// Returns the declared parts of a kernel that its source does not prove, by the positions of the arguments:
/// for each, what contradicts it.
pub(crate) fn doubts(kernel: &KernelPlan, arrays: &[ArrayPlan]) -> Vec<(usize, Option<Fault>)> {
    let analyses = Analyses::of(kernel);
    let items = kernel.items[kernel.axis];
    let declared =
        kernel.arguments.iter().enumerate().filter_map(|(index, (argument, place))| match argument {
            ArgumentPlan::Array { array, access, part } if !matches!(part, Part::Derived(_)) => {
                Some((index, &arrays[*array], (*access, part), place))
            }
            _ => None,
        });
    let doubts = declared.filter_map(|(index, array, declared, place)| {
        let doubt = match analyses.derived(index, array, Divided::Never) {
            Err(DeriveError::Untouched) => None,
            // All of it may be read.
            Err(_) if matches!(declared, (Access::ReadOnly, Part::Whole)) && analyses.is_only_read(index) => {
                None
            }
            Err(_) => Some(None),
            Ok(derived) => derived.contradiction(declared, array, items).map(|why| {
                let message = format!(
                    "what items touch of {} is declared otherwise than the source says: {why}",
                    array.name
                );
                Some(Fault { message, ..place.clone() })
            }),
        };
        Some((index, doubt?))
    });
    doubts.collect()
}

/// Analyses a function; none if the source does not define it.
fn analysis(code: &Code, language: Language, function: &str) -> Option<Result<Analysis, DeriveError>> {
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
    let refused = |refusal| DeriveError::Refused { place: format!("{}:", code.place.message), refusal };
    source.may_define(function).then(|| analysed.map_err(refused))
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
    fn check_divisible(&self, items: u64) -> Result<(), DeriveError> {
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
                    return Err(DeriveError::Shared {
                        first: last.clone(),
                        second: package,
                        byte: common.start,
                    });
                }
            }
            at = package.end;
            last = Some(package);
        }
        Ok(())
    }
}
