//! Access analysis: which bytes of its buffers a package of a kernel touches, proven from the source.
//!
//! ```text
//!   OpenCL C or CUDA C ──token──▶ tokens ──syntax──▶ functions ──interpret──▶ accesses: polynomials, conditions
//!                                                                                │
//!   sizes, scalars, items of a package ───────────────────────────region─────────┴──▶ bytes of each buffer
//! ```
//! 1. The result contains every byte that a package can touch. It may contain more.
//! 2. What is not understood refuses the kernel, and says where: an index that depends on data, a function
//!    that the source does not define and that gets a buffer, a statement outside the subset of C.
//! 3. Signed integers are followed as if none overflowed its type. Unsigned ones may be less than 0 on the
//!    way, as in `x - 1 < n`; with an argument beyond a signed type, each part is the whole buffer.
//!
//! # Source
//! PIPS finds the regions that a loop nest touches in this way: "Interprocedural Array Region Analyses",
//! Creusillet and Irigoin. "Automatic OpenCL code generation for multi-device heterogeneous architectures"
//! divides kernels by them.

mod bound;
mod interpret;
mod poly;
mod region;
mod syntax;
mod token;
mod types;
mod value;

use bound::{Bound, Sizes};
use interpret::Trace;
use poly::{Condition, Kind, Poly, Symbol, Term};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use syntax::{Function, Unit};
use token::Assumed;
use types::{Space, Type};

/// How deeply the operations of a formula are shown.
const SHOWN: usize = 4;

/// The language of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// OpenCL C.
    OpenCl,
    /// CUDA C, as far as it is C.
    Cuda,
}

/// Why a kernel is not analysed, and where in its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    at: usize,
    what: String,
    cause: Option<(usize, &'static str)>,
    places: [(usize, usize); 2],
}

impl Refusal {
    pub(crate) fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into(), cause: None, places: Default::default() }
    }

    pub(crate) fn caused(at: usize, what: &str, why: &value::Why) -> Self {
        Self { cause: Some((why.at, why.what)), ..Self::new(at, what) }
    }

    /// Adds lines and columns.
    fn within(mut self, text: &str) -> Self {
        let place = |at: usize| {
            let before = text.get(..at).unwrap_or(text);
            let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            (line, column)
        };
        self.places = [place(self.at), place(self.cause.map_or(self.at, |(at, _)| at))];
        self
    }

    /// Returns the line and the column in characters, both from 1.
    #[must_use]
    pub const fn place(&self) -> (usize, usize) {
        self.places[0]
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [(line, column), (of_cause, column_of_cause)] = self.places;
        write!(f, "{line}:{column}: {}", self.what)?;
        match self.cause {
            Some((at, cause)) if at != self.at && at > 0 => {
                write!(f, ": {cause} at {of_cause}:{column_of_cause}")
            }
            Some((_, cause)) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}

/// The source of kernels.
#[derive(Debug)]
pub struct Source {
    text: String,
    language: Language,
    /// What the source is with each of some assumptions on the compiler.
    units: Vec<(Assumed, Result<Unit, Refusal>)>,
}

impl Source {
    /// Reads a source, with these macros defined first, each as `NAME` or `NAME=VALUE`.
    #[must_use]
    pub fn new(text: &str, language: Language, defines: &[String]) -> Self {
        let readings = token::readings(text, defines, language).into_iter();
        let parsed = readings
            .map(|(assumed, tokens)| (assumed, tokens.map(|tokens| syntax::parse(&tokens, language))));
        Self { text: text.to_owned(), language, units: parsed.collect() }
    }

    /// Returns the names of the kernels that the source defines, in alphabetical order.
    #[must_use]
    pub fn kernels(&self) -> Vec<&str> {
        let units = self.units.iter().filter_map(|(_, unit)| unit.as_ref().ok());
        let kernels: BTreeSet<_> = units.flat_map(|unit| &unit.kernels).map(|name| &**name).collect();
        kernels.into_iter().collect()
    }

    /// Returns whether the source defines a function of this name, as far as it is understood.
    #[must_use]
    pub fn may_define(&self, name: &str) -> bool {
        let may = |unit: &Unit| unit.functions.contains_key(name) || unit.skipped.is_some();
        self.units.iter().any(|(_, unit)| unit.as_ref().map_or(true, may))
    }

    /// Returns why the first declaration that is not understood is skipped, if there is one.
    #[must_use]
    pub fn skipped(&self) -> Option<Refusal> {
        let skipped = self.units.iter().find_map(|(_, unit)| match unit {
            Ok(unit) => unit.skipped.clone(),
            Err(refusal) => Some(refusal.clone()),
        });
        skipped.map(|refusal| refusal.within(&self.text))
    }

    /// Analyses a kernel.
    ///
    /// # Errors
    /// [`Refusal`], if a part of the kernel or of a function that it calls is not understood, or if an index
    /// depends on data.
    pub fn kernel(&self, name: &str) -> Result<Analysis, Refusal> {
        self.analysed(name).map_err(|refusal| refusal.within(&self.text))
    }

    fn analysed(&self, name: &str) -> Result<Analysis, Refusal> {
        let mut known: Option<(&Assumed, Analysis)> = None;
        let mut missing = Refusal::new(0, format!("no function {name}"));
        for (assumed, unit) in &self.units {
            // With other macros the source is no program, or has no such kernel.
            let function = match unit {
                Ok(unit) => unit.functions.get(name).ok_or(&unit.skipped),
                Err(refusal) => {
                    missing = refusal.clone();
                    continue;
                }
            };
            let (Ok(unit), Ok(function)) = (unit, function) else {
                missing = function.err().and_then(Clone::clone).unwrap_or(missing);
                continue;
            };
            let own = self.of_function(unit, function.as_ref().map_err(Clone::clone)?, name)?;
            match &known {
                Some((other, known))
                    if (&known.0.parameters, &known.0.trace) != (&own.0.parameters, &own.0.trace) =>
                {
                    let differs = assumed.iter().find(|one| !other.contains(one));
                    let differs = differs.map_or("", |(condition, _)| condition);
                    let what = format!(
                        "`{differs}`, which the compiler or an included file decides, changes what {name} accesses"
                    );
                    return Err(Refusal::new(function.as_ref().map_or(0, |function| function.at), what));
                }
                Some(_) => {}
                None => known = Some((assumed, own)),
            }
        }
        known.map(|(_, analysis)| analysis).ok_or(missing)
    }

    fn of_function(&self, unit: &Unit, function: &Function, name: &str) -> Result<Analysis, Refusal> {
        if !function.is_kernel {
            return Err(Refusal::new(function.at, format!("{name}, which is no kernel")));
        }
        let trace = interpret::run(unit, function, self.language)?;
        let parameter = |(name, of): &(Rc<str>, Type)| {
            let kind = match of {
                Type::Pointer(of, Space::Global) => ParameterKind::Buffer { element_bytes: of.size() },
                Type::Pointer(_, Space::Own) => ParameterKind::Local,
                Type::Integer { bytes, .. } => ParameterKind::Integer { bytes: *bytes },
                of if let Some((Type::Integer { bytes, is_signed }, count)) = of.integers() => {
                    ParameterKind::Integers { count, bytes: *bytes, is_signed: *is_signed }
                }
                Type::Bool => ParameterKind::Integer { bytes: 1 },
                _ => ParameterKind::Other,
            };
            Parameter { name: (**name).to_owned(), kind }
        };
        let parameters = function.parameters.iter().map(parameter).collect();
        Ok(Analysis(Arc::new(Known { text: self.text.clone(), language: self.language, parameters, trace })))
    }
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// The name.
    pub name: String,
    /// What is passed.
    pub kind: ParameterKind,
}

/// What is passed for a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParameterKind {
    /// A buffer of elements of so many bytes, if their size is known.
    Buffer {
        /// The size of an element.
        element_bytes: Option<u64>,
    },
    /// An integer of so many bytes.
    Integer {
        /// The size.
        bytes: u64,
    },
    /// A vector of integers.
    Integers {
        /// How many there are.
        count: u64,
        /// The size of each.
        bytes: u64,
        /// Whether they can be less than 0.
        is_signed: bool,
    },
    /// The size of local memory.
    Local,
    /// Something else, such as a real number.
    Other,
}

/// How a kernel accesses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It does not.
    None,
    /// It reads elements.
    Reads,
    /// It writes every element of the bytes, and reads none before.
    Overwrites,
    /// It reads and writes elements, or writes some of them.
    Updates,
}

/// A launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The work-items of the run along x, y and z; 1 for an axis that is not used.
    pub sizes: [u64; 3],
    /// The work-items of a group along x, y and z.
    pub group: [u64; 3],
    /// The axis along which packages divide the work-items: 0 for x, 1 for y, 2 for z.
    pub axis: usize,
    /// The integers of the arguments, by the positions of the parameters: one for a scalar, those of a
    /// vector, and none for another argument.
    pub integers: Vec<Vec<i128>>,
}

/// What a package does with a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// How it accesses the bytes.
    pub access: Access,
    /// The bytes, in ascending and disjoint ranges.
    pub bytes: Vec<Range<u64>>,
    /// Whether every byte is touched.
    pub is_exact: bool,
}

/// The accesses of a kernel.
#[derive(Clone, Debug)]
pub struct Analysis(Arc<Known>);

#[derive(Debug)]
struct Known {
    text: String,
    language: Language,
    parameters: Vec<Parameter>,
    trace: Trace,
}

impl Analysis {
    /// Returns the parameters of the kernel.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.0.parameters
    }

    /// Returns whether the kernel changes a buffer atomically, so that packages change the same elements.
    #[must_use]
    pub fn is_atomic(&self, parameter: usize) -> bool {
        self.0.trace.accesses.iter().any(|access| access.argument == parameter && access.is_atomic)
    }

    /// Returns the language of the source.
    #[must_use]
    pub fn language(&self) -> Language {
        self.0.language
    }

    /// Returns whether the kernel changes a buffer, as far as it is understood.
    #[must_use]
    pub fn writes(&self, parameter: usize) -> bool {
        let Trace { accesses, changed, .. } = &self.0.trace;
        let is_written = |access: &interpret::Access| access.argument == parameter && access.writes;
        changed.contains(&parameter) || accesses.iter().any(is_written)
    }

    /// Returns whether what the kernel accesses depends on its work-groups: on their sizes or numbers, or on
    /// the places of work-items in them.
    #[must_use]
    pub fn depends_on_groups(&self) -> bool {
        let Trace { accesses, terms, facts, .. } = &self.0.trace;
        let of = |poly: &Poly| {
            let mut symbols = poly.products().flat_map(|(symbols, _)| symbols);
            symbols.any(|of| matches!(of, Symbol::Group(_) | Symbol::Local(_) | Symbol::GroupSize(_)))
        };
        let mut depends = terms.iter().any(|term| of(&term.one) || of(&term.other));
        let mut conditions = |all: &[Condition]| {
            all.iter().for_each(|condition| condition.each(&mut |poly| depends |= of(poly)));
        };
        conditions(facts);
        accesses.iter().for_each(|access| conditions(&access.conditions));
        depends || accesses.iter().any(|access| of(&access.offset))
    }

    /// Returns the accesses in a launch.
    #[must_use]
    pub fn launch(&self, launch: &Launch) -> Launched {
        let sizes = Sizes {
            sizes: launch.sizes,
            group: launch.group.map(|size| size.max(1)),
            axis: launch.axis.min(2),
            scalars: launch.integers.clone(),
        };
        Launched { known: self.0.clone(), bound: Arc::new(Bound::new(&self.0.trace, sizes)) }
    }

    /// Returns the accesses of statements, in the order of the kernel.
    #[must_use]
    pub fn accesses(&self) -> Vec<StatementAccess> {
        self.0.accesses()
    }

    /// Returns why the accesses to a buffer are unknown, if an index of it depends on data.
    #[must_use]
    pub fn refusal(&self, parameter: usize) -> Option<Refusal> {
        let refusal = self.0.trace.refused.get(&parameter)?;
        Some(refusal.clone().within(&self.0.text))
    }
}

/// A statement's access to a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatementAccess {
    /// The line, from 1.
    pub line: usize,
    /// The position of the buffer among the parameters.
    pub parameter: usize,
    /// How it is accessed: [`Reads`](Access::Reads), [`Overwrites`](Access::Overwrites) or
    /// [`Updates`](Access::Updates).
    pub access: Access,
    /// The first byte, as a formula of arguments and of numbers of work-items (`item.x`), groups (`group.x`)
    /// and turns of loops (`turn1`).
    pub offset: String,
    /// How many bytes.
    pub bytes: u64,
}

impl Known {
    fn accesses(&self) -> Vec<StatementAccess> {
        let line = |at: usize| self.text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
        let one = |access: &interpret::Access| StatementAccess {
            line: line(access.at),
            parameter: access.argument,
            access: match (access.reads, access.writes) {
                (true, true) => Access::Updates,
                (true, false) => Access::Reads,
                _ => Access::Overwrites,
            },
            offset: self.formula(&access.offset, 0),
            bytes: access.bytes,
        };
        self.trace.accesses.iter().map(one).collect()
    }

    fn formula(&self, poly: &Poly, depth: usize) -> String {
        let product = |(symbols, factor): (&[Symbol], i128)| {
            let names = symbols.iter().map(|symbol| self.name(*symbol, depth));
            let factor = (factor != 1 || symbols.is_empty()).then(|| factor.to_string());
            factor.into_iter().chain(names).collect::<Vec<_>>().join(" * ")
        };
        let products: Vec<_> = poly.products().map(product).collect();
        if products.is_empty() { "0".to_owned() } else { products.join(" + ").replace("+ -", "- ") }
    }

    fn name(&self, symbol: Symbol, depth: usize) -> String {
        let axis = |axis: usize| ["x", "y", "z"][axis.min(2)];
        match symbol {
            Symbol::Argument(number) | Symbol::Unsigned(number) => {
                let (position, place) = self.trace.numbers[number];
                let Parameter { name, kind } = &self.parameters[position];
                match kind {
                    ParameterKind::Integers { .. } => format!("{name}.s{place:x}"),
                    _ => name.clone(),
                }
            }
            Symbol::Item(of) => format!("item.{}", axis(of)),
            Symbol::Group(of) => format!("group.{}", axis(of)),
            Symbol::Local(of) => format!("local.{}", axis(of)),
            Symbol::GroupSize(of) => format!("group_size.{}", axis(of)),
            Symbol::Size(of) => format!("size.{}", axis(of)),
            Symbol::Turn(number) => format!("turn{number}"),
            Symbol::Some(number) => format!("some{number}"),
            Symbol::Term(term) => {
                let Term { kind, one, other, .. } = &self.trace.terms[term];
                let name = match kind {
                    Kind::Quotient => "quotient",
                    Kind::Remainder => "remainder",
                    Kind::Min => "min",
                    Kind::Max => "max",
                    Kind::Either => "either",
                };
                if depth >= SHOWN {
                    return format!("{name}(...)");
                }
                format!("{name}({}, {})", self.formula(one, depth + 1), self.formula(other, depth + 1))
            }
        }
    }
}

/// The accesses of a kernel in a launch.
#[derive(Clone, Debug)]
pub struct Launched {
    known: Arc<Known>,
    bound: Arc<Bound>,
}

impl Launched {
    /// Returns the analysis.
    #[must_use]
    pub fn analysis(&self) -> Analysis {
        Analysis(self.known.clone())
    }

    /// Returns the work-items of a group along the axis of the packages.
    #[must_use]
    pub fn group(&self) -> u64 {
        self.bound.sizes.group[self.bound.sizes.axis]
    }

    /// Returns the work-items of the run along the axis of the packages.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.bound.sizes.sizes[self.bound.sizes.axis]
    }

    /// Returns which bytes of the buffer at this position, which has `len` of them, a package of these
    /// work-items touches.
    ///
    /// # Errors
    /// [`Refusal`], if an index of the buffer depends on data.
    pub fn part(&self, parameter: usize, items: Range<u64>, len: u64) -> Result<Part, Refusal> {
        let Known { text, trace, .. } = &*self.known;
        if let Some(refusal) = trace.refused.get(&parameter) {
            return Err(refusal.clone().within(text));
        }
        let all = match trace.has_large(&self.bound.sizes.scalars) {
            true => region::Touched::whole(len),
            false => self.bound.touched(parameter, &items, len),
        };
        let mut own = trace.accesses.iter().filter(|access| access.argument == parameter);
        let reads = own.clone().any(|access| access.reads);
        let writes = own.any(|access| access.writes);
        let access = match (reads, writes) {
            (false, false) => Access::None,
            (true, false) => Access::Reads,
            (false, true) if all.is_exact => Access::Overwrites,
            _ => Access::Updates,
        };
        Ok(Part { access, bytes: all.ranges, is_exact: all.is_exact })
    }
}
