//! Kernels of programs whose parts are derived from their sources.

use crate::derive::{ANY, Cache, DeriveError, check_length, integer, is_derivable, of_all, samples};
use dml_analysis::{Analysis, Language, Launch, Launched, ParameterKind};
use dml_core::{Access, BufferName, ItemShape, LaunchArg, Scalar};
use dml_scheduler::{Argument, Footprint, Kernel};
use std::iter::once;
use std::sync::Arc;
use thiserror::Error;

/// Why a kernel is not analysed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("kernel {kernel}, argument {argument} ({buffer}): {cause}{}", hint(.cause))]
#[non_exhaustive]
pub struct AnalysedError {
    /// The kernel's name.
    pub kernel: String,
    /// The position among all arguments of the kernel, from 0.
    pub argument: usize,
    /// The argument's buffer, with its label.
    pub buffer: BufferName,
    /// Why its part is unknown.
    pub cause: Box<DeriveError>,
}

/// Returns what a program can do about it.
fn hint(cause: &DeriveError) -> &'static str {
    match cause {
        DeriveError::Refused { .. } => {
            "; expected `Kernel::read_all` for a buffer that is only read, or a declared part"
        }
        DeriveError::Atomic { .. } => " (`Kernel::reduce`)",
        _ => "",
    }
}

/// Returns a kernel whose arguments have the accesses and footprints that its source gives.
///
/// `items` are those of the run, and `analysis` is that of the source of its launchers. The parts follow
/// scalars that are set later ([`Kernel::set_scalar`]). Reductions stay. So does an argument that is declared
/// as read completely, if an index of it depends on data and the kernel does not change it.
///
/// ```
/// use dml_analysis::{Language, Source};
/// use dml_core::{Access, Platform};
/// use dml_scheduler::Kernel;
/// # fn example(platform: &Platform) -> Result<(), Box<dyn std::error::Error>> {
/// let source = "kernel void look(global uint *at, global float *table, global float *to, ulong end) {
///     size_t i = get_global_id(0);
///     if (i < end) to[i] = table[at[i]];
/// }";
/// let at = platform.buffer::<u32>(1 << 20).build()?;
/// let (table, to) = (platform.buffer::<f32>(256).build()?, platform.buffer::<f32>(1 << 20).build()?);
/// // The source does not say what of the table is read: all of it. The other parts need not be right.
/// let look = Kernel::new("look", 64).read_all(&at).read_all(&table).read_write_all(&to).end();
/// let analysis = Source::new(source, Language::OpenCl, &[]).kernel("look")?;
/// let look = dml_app::analysed(look, 1 << 20, &analysis)?;
/// assert_eq!(look.arguments()[0].ranges(64..128)?, [256..512]);
/// assert_eq!(look.arguments()[2].access(), Access::WriteInvalidate);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`AnalysedError`] for the first argument whose part is unknown, or which work-items change atomically.
///
/// A package fails if a scalar that is set later makes the kernel leave elements unwritten.
pub fn analysed(mut kernel: Kernel, items: u64, analysis: &Analysis) -> Result<Kernel, AnalysedError> {
    let launches = Arc::new(Launches::of(&kernel, items, analysis));
    let signature = kernel.signature();
    let positions =
        (0..signature.len()).filter(|index| matches!(signature[*index], LaunchArg::Buffer { .. }));
    let buffers: Vec<_> = positions.zip(kernel.arguments().to_vec()).collect();
    for (argument, of) in buffers.into_iter().filter(|(_, of)| !of.is_reduced()) {
        let part = launches.part(&kernel, argument, &of).map_err(|cause| {
            let (kernel, buffer) = (kernel.name().to_owned(), of.buffer().name());
            AnalysedError { kernel, argument, buffer, cause: Box::new(cause) }
        })?;
        if let Some((access, footprint)) = part {
            let set = kernel.set_footprint(argument, access, footprint);
            debug_assert!(set.is_ok(), "it is a buffer, and no reduction");
        }
    }
    Ok(kernel)
}

/// The launches of a kernel.
struct Launches {
    analysis: Analysis,
    shape: ItemShape,
    items: u64,
    /// For each parameter of the source, the position of its argument, and which integers that is.
    parameters: Vec<(usize, Passed)>,
}

/// The integers of an argument.
enum Passed {
    /// One, at this position among the scalars.
    Scalar(usize),
    /// Those of a value.
    Fixed(Vec<i128>),
}

impl Launches {
    fn of(kernel: &Kernel, items: u64, analysis: &Analysis) -> Self {
        let mut scalars = 0;
        let mut parameters = Vec::new();
        for (index, argument) in kernel.signature().iter().enumerate() {
            let kind = analysis.parameters().get(parameters.len()).map(|of| of.kind);
            let passed = match (argument, kind) {
                (LaunchArg::Scalar(_), _) => {
                    scalars += 1;
                    Passed::Scalar(scalars - 1)
                }
                // Local memory is no parameter in CUDA C.
                (LaunchArg::Local(_), _) if analysis.language() == Language::Cuda => continue,
                (LaunchArg::Bytes(value), Some(ParameterKind::Integers { bytes, is_signed, .. })) => {
                    let each = value.chunks_exact(bytes.clamp(1, 8) as usize);
                    Passed::Fixed(each.map(|bytes| number(bytes, is_signed)).collect())
                }
                _ => Passed::Fixed(Vec::new()),
            };
            parameters.push((index, passed));
        }
        Self { analysis: analysis.clone(), shape: kernel.shape(), items, parameters }
    }

    /// Returns the integers among the parameters.
    fn integers(&self, scalars: &[Scalar]) -> Vec<Vec<i128>> {
        let passed = |(_, passed): &(usize, Passed)| match passed {
            Passed::Scalar(at) => scalars.get(*at).and_then(|scalar| integer(*scalar)).into_iter().collect(),
            Passed::Fixed(integers) => integers.clone(),
        };
        self.parameters.iter().map(passed).collect()
    }

    fn with(&self, integers: Vec<Vec<i128>>) -> Launched {
        let (group, axis) = (self.shape.local(), self.shape.axis());
        self.analysis.launch(&Launch { sizes: self.shape.global(&(0..self.items)), group, axis, integers })
    }

    /// Returns the access to a buffer, and its footprint; `None` if they stay as declared.
    fn part(
        self: &Arc<Self>,
        kernel: &Kernel,
        argument: usize,
        of: &Argument,
    ) -> Result<Option<(Access, Footprint)>, DeriveError> {
        let (parameters, arguments) = (self.analysis.parameters().len(), self.parameters.len());
        // In CUDA C, `DmlItems` may follow.
        if parameters < arguments || parameters > arguments && self.analysis.language() == Language::OpenCl {
            let function = kernel.name().to_owned();
            return Err(DeriveError::Parameters { function, parameters, arguments });
        }
        let local = &self.shape.local()[..self.shape.dimensions()];
        if self.analysis.depends_on_groups() && local.contains(&0) {
            return Err(DeriveError::Groups);
        }
        let parameter = self.parameters.iter().position(|(at, _)| *at == argument).unwrap_or(argument);
        // One package may change what it wants to.
        if kernel.is_undivided() && self.analysis.is_atomic(parameter) {
            return Ok(None);
        }
        is_derivable(&self.analysis, parameter)?;
        let is_whole = of.access() == Access::ReadOnly && matches!(of.footprint(), Footprint::Whole);
        if self.analysis.refusal(parameter).is_some() && is_whole && !self.analysis.writes(parameter) {
            return Ok(None);
        }
        let (len, mut found) = (of.buffer().len(), Vec::new());
        for package in samples(self.items, kernel.local_size().max(1)).into_iter().chain(once(0..self.items))
        {
            let integers = self.integers(&kernel.scalars(package.clone())?);
            let part = self.with(integers).part(parameter, package, len);
            let part = part.map_err(|refusal| DeriveError::Refused { place: String::new(), refusal })?;
            found.push(part.access);
        }
        let access = of_all(found).ok_or(DeriveError::Untouched)?;
        let all = self.with(self.integers(&kernel.scalars(0..self.items)?));
        if let Ok(part) = all.part(parameter, 0..self.items, ANY) {
            check_length(&part, len)?;
        }
        let (launches, cache) = (self.clone(), Cache::default());
        let footprint = Footprint::of_launch_ranges(move |items, scalars| {
            let integers = launches.integers(scalars);
            cache.get((items.clone(), integers.clone()), || {
                let part = launches.with(integers).part(parameter, items, len);
                let part = part.expect("indices depend on data whatever the scalars are");
                let is_kept = access != Access::WriteInvalidate || of_all([part.access]) == Some(access);
                assert!(
                    is_kept,
                    "the kernel leaves elements unwritten; with these scalars, analyse it again"
                );
                part.bytes
            })
        });
        Ok(Some((access, footprint)))
    }
}

/// Returns the integer of these bytes, at most eight.
fn number(bytes: &[u8], is_signed: bool) -> i128 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    let bits = 64 - 8 * bytes.len() as u32;
    match is_signed {
        true => (i64::from_le_bytes(all) << bits >> bits).into(),
        false => u64::from_le_bytes(all).into(),
    }
}
