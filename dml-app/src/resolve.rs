//! Checks of an application file.
//!
//! ```text
//!   text ──serde──▶ Description ──Resolver──▶ Plan
//!                                    └── all mistakes, each with its place
//! ```

use crate::application::Changes;
use crate::data::{self, Contents};
use crate::derive;
use crate::element::{Element, with_type};
use crate::error::ApplicationError;
use crate::expression::{Number, Values, evaluate, is_name};
use crate::fault::{Checked, Faults, Span};
use crate::part::{self, Part};
use crate::plan::{
    ArgumentPlan, ArrayPlan, Code, KernelPlan, Plan, Source, StepPlan, Until, VariantPlan, gcd,
};
use crate::schema::{self, Axes, Description, ElementType, Expression};
use dml_arenas::files;
use dml_core::{Access, DeviceKind};
use indexmap::IndexMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;

/// Most bytes of a source file.
const MOST_SOURCE_BYTES: u64 = 64 << 20;
/// The names of the axes of items.
const AXES: [&str; 3] = ["x", "y", "z"];
/// Work-items of a group by the number of dimensions.
const GROUPS: [[u64; 3]; 3] = [[64, 1, 1], [64, 4, 1], [64, 4, 1]];

impl Plan {
    /// Reads an application from the text of its file.
    pub(crate) fn read(path: &Path, text: &str, changes: &Changes) -> Result<Self, ApplicationError> {
        let mut checked = Checked::new(path, text);
        let description: Description = match toml::from_str(text) {
            Ok(description) => description,
            Err(error) => {
                let message = error.message().lines().collect::<Vec<_>>().join(": ");
                // In the words of TOML.
                let message = message.replace("invalid type: map", "invalid type: table");
                let message = message.replace("a sequence", "an array: [...], or [[...]] for one of tables");
                checked.wrong(&error.span().unwrap_or(0..0), message);
                return Err(checked.end().expect_err("there is a mistake").into());
            }
        };
        let name = description.name.clone().unwrap_or_else(|| {
            path.file_stem()
                .map_or_else(|| "application".to_owned(), |stem| stem.to_string_lossy().into_owned())
        });
        let values = Values::new();
        check_known(&name, &description, changes)?;
        let mut numbers = IndexMap::new();
        for (name, value) in &changes.parameters {
            let value = evaluate(value, &Values::new())
                .map_err(|reason| ApplicationError::Value { name: name.clone(), reason })?;
            numbers.insert(&**name, value);
        }
        let files = Vec::new();
        let resolver = Resolver { checked, values, numbers, changes, description: &description, files };
        Ok(resolver.plan(name)?)
    }
}

struct Resolver<'a> {
    checked: Checked<'a>,
    values: Values,
    /// The changed parameters.
    numbers: IndexMap<&'a str, Number>,
    changes: &'a Changes,
    description: &'a Description,
    /// The sources and the inputs.
    files: Vec<PathBuf>,
}

/// Checks that the application has what is changed.
fn check_known(
    application: &str,
    description: &Description,
    changes: &Changes,
) -> Result<(), ApplicationError> {
    let arrays = || changes.inputs.keys().chain(changes.outputs.keys());
    let unknown = |kind, name: &String, known| {
        let (application, name) = (application.to_owned(), name.clone());
        Err(ApplicationError::Unknown { application, kind, name, known })
    };
    if let Some(name) =
        changes.parameters.keys().find(|name| position(&description.parameters, name).is_none())
    {
        return unknown("parameter", name, names(&description.parameters));
    }
    if let Some(name) = arrays().find(|name| position(&description.arrays, name).is_none()) {
        return unknown("array", name, names(&description.arrays));
    }
    Ok(())
}

/// An item of a map, with the places of its name and of its value.
fn names<T>(named: &schema::Named<T>) -> String {
    match named.is_empty() {
        true => "none".to_owned(),
        false => named.keys().map(|name| name.get_ref().as_str()).collect::<Vec<_>>().join(", "),
    }
}

/// Returns the position of a name.
fn position<T>(named: &schema::Named<T>, name: &str) -> Option<usize> {
    named.keys().position(|known| known.get_ref() == name)
}

impl<'a> Resolver<'a> {
    fn plan(mut self, name: String) -> Result<Plan, Faults> {
        self.parameters();
        let arrays: Vec<Option<ArrayPlan>> =
            self.description.arrays.iter().map(|(name, array)| self.array(name, array)).collect();
        // What follows needs the shapes.
        let Some(arrays) = arrays.into_iter().collect::<Option<Vec<_>>>() else {
            return Err(self.checked.end().expect_err("an array is wrong"));
        };
        let kernels: Vec<Option<KernelPlan>> = self
            .description
            .kernels
            .iter()
            .map(|(name, kernel)| self.kernel(name, kernel, &arrays))
            .collect();
        let Some(kernels) = kernels.into_iter().collect::<Option<Vec<_>>>() else {
            return Err(self.checked.end().expect_err("a kernel is wrong"));
        };
        let steps = &self.description.run;
        let run = self.steps(steps, &arrays, &kernels, false);
        if steps.get_ref().is_empty() {
            self.checked.wrong(&steps.span(), "expected a kernel to run, found nothing");
        }
        self.checked.end()?;
        Ok(Plan { name, values: self.values, arrays, kernels, run, files: self.files })
    }

    /// Checks that names are those of C, so that expressions can name them.
    fn check_name(&mut self, name: &Spanned<String>) {
        if !is_name(name.get_ref()) {
            let what = format!("expected a name of letters, digits and `_`, found `{}`", name.get_ref());
            self.checked.wrong(&name.span(), what);
        }
    }

    fn parameters(&mut self) {
        for (name, value) in &self.description.parameters {
            self.check_name(name);
            let set = self.numbers.get(&**name.get_ref()).copied();
            let value = set.map_or_else(|| value.get_ref().value(&self.values), Ok);
            let span = self.description.parameters[name].span();
            // A wrong one has a value, so that its uses are no further mistakes.
            let value = self.checked.or_wrong(&span, value).unwrap_or(Number::Integer(1));
            self.values.insert(name.get_ref().clone(), value);
        }
    }

    fn number(&mut self, expression: &Spanned<Expression>) -> Option<Number> {
        let value = expression.get_ref().value(&self.values);
        self.checked.or_wrong(&expression.span(), value)
    }

    fn count(&mut self, expression: &Spanned<Expression>, least: u64) -> Option<u64> {
        let value = self.number(expression)?.count(least);
        self.checked.or_wrong(&expression.span(), value)
    }

    fn array(&mut self, name: &Spanned<String>, array: &Spanned<schema::Array>) -> Option<ArrayPlan> {
        self.check_name(name);
        let (name, span) = (name.get_ref(), array.span());
        let array = array.get_ref();
        let element = *array.element.get_ref();
        let input = self.changes.inputs.get(name);
        let from = match (input, &array.from) {
            (Some(path), _) => Some((Source::File(path.clone()), span.clone())),
            (None, Some(from)) => self.source(from, element).map(|source| (source, from.span())),
            (None, None) => Some((Source::Zeros, span.clone())),
        };
        let axes = array.shape.get_ref().len();
        if !(1..=3).contains(&axes) {
            self.checked.wrong(&array.shape.span(), format!("expected one to three axes, found {axes}"));
            return None;
        }
        let (from, from_span) = from?;
        let found = match &from {
            Source::File(path) => {
                let contents = data::contents(path).map_err(|cause| format!("{}: {cause}", path.display()));
                self.checked
                    .or_wrong(&from_span, contents)
                    .map(|contents| (contents, path.display().to_string()))
            }
            _ => None,
        };
        if matches!(from, Source::File(_)) && found.is_none() {
            return None;
        }
        let of_file = match &found {
            Some((Contents::Array(_, shape) | Contents::Picture(shape), _)) if shape.len() == axes => {
                Some(shape)
            }
            _ => None,
        };
        if let (Some((contents, path)), None) = (&found, of_file)
            && array
                .shape
                .get_ref()
                .iter()
                .any(|length| length.get_ref().name().is_some_and(|name| !self.values.contains_key(name)))
        {
            let why = match contents {
                Contents::Array(_, shape) | Contents::Picture(shape) => {
                    format!("its shape is {shape:?}, and the array has {axes} axes")
                }
                Contents::Bytes(_) => "it has no shape; only .npy and .png have one".to_owned(),
            };
            self.checked.wrong(&from_span, format!("{path}: {why}"));
            return None;
        }
        if let Source::File(path) = &from {
            self.files.push(path.clone());
        }
        let mut shape = Vec::new();
        for (axis, length) in array.shape.get_ref().iter().enumerate() {
            // An unknown name takes its value from the file.
            if let (Some(name), Some(of_file)) = (length.get_ref().name(), of_file)
                && !self.values.contains_key(name)
            {
                let value = i64::try_from(of_file[axis]).map(Number::Integer);
                self.values.insert(name.to_owned(), value.unwrap_or(Number::Integer(0)));
            }
            shape.push(self.count(length, 1));
        }
        let shape: Vec<u64> = shape.into_iter().collect::<Option<_>>()?;
        let bytes = shape.iter().try_fold(element.bytes(), |bytes, length| bytes.checked_mul(*length));
        let Some(bytes) = bytes.filter(|bytes| *bytes < 1 << 60) else {
            self.checked.wrong(&array.shape.span(), format!("an array of {shape:?} is too large"));
            return None;
        };
        if let Some((contents, path)) = &found
            && let Some(why) = misfit(contents, element, &shape, bytes)
        {
            self.checked.wrong(&from_span, format!("{path}: {why}"));
        }
        let output = self.changes.outputs.get(name).cloned();
        let to = output.or_else(|| array.to.as_ref().map(|to| PathBuf::from(to.get_ref())));
        if let Some(why) = to.as_deref().and_then(|path| data::unwritable(path, &shape)) {
            let span = array.to.as_ref().map_or(span, Spanned::span);
            self.checked.wrong(&span, why);
        }
        Some(ArrayPlan { name: name.clone(), element, shape, from, to })
    }

    fn source(&mut self, from: &Spanned<schema::Input>, element: ElementType) -> Option<Source> {
        let input = from.get_ref();
        if let (None, Some(bound)) = (&input.random, input.low.as_ref().or(input.high.as_ref())) {
            self.checked.wrong(&bound.span(), "only `random` has `low` and `high`");
            return None;
        }
        match (&input.file, &input.random, &input.value) {
            (Some(file), None, None) => Some(Source::File(self.checked.beside(file.get_ref()))),
            (None, Some(seed), None) => {
                let seed = self.count(seed, 0)?;
                let is_real = matches!(element, ElementType::Float | ElementType::Double);
                let default = Number::Integer(if is_real { 1 } else { 256 });
                let [low, high] =
                    [(&input.low, Number::Integer(0)), (&input.high, default)].map(|(bound, default)| {
                        let Some(bound) = bound else { return Some(default) };
                        let value = self.number(bound)?;
                        self.element(value, element, &bound.span())
                    });
                let (low, high) = (low?, high?);
                if low.real() >= high.real() {
                    self.checked.wrong(&from.span(), format!("there is no number from {low} up to {high}"));
                }
                Some(Source::Random { seed, low, high })
            }
            (None, None, Some(value)) => {
                let number = self.number(value)?;
                self.element(number, element, &value.span()).map(Source::Value)
            }
            _ => {
                self.checked.wrong(&from.span(), "expected one of `file`, `random` and `value`");
                None
            }
        }
    }

    /// Checks that an element can have this value. The end of a range may be one more than the greatest.
    fn element(&mut self, value: Number, element: ElementType, span: &Span) -> Option<Number> {
        let is_end = matches!((value, element), (Number::Integer(256), ElementType::Uchar))
            || matches!((value, element), (Number::Integer(128 | 256), ElementType::Char));
        if is_end {
            return Some(value);
        }
        let checked = with_type!(element, T => T::from_number(value).map(drop));
        self.checked.or_wrong(span, checked).map(|()| value)
    }

    fn axes(&mut self, axes: &Spanned<Axes>, dimensions: Option<usize>) -> Option<([u64; 3], usize)> {
        let given = [&axes.get_ref().x, &axes.get_ref().y, &axes.get_ref().z];
        let count = given.iter().take_while(|axis| axis.is_some()).count();
        if dimensions.is_none() && (count == 0 || given[count..].iter().any(|axis| axis.is_some())) {
            self.checked.wrong(&axes.span(), "expected `x`, or `x` and `y`, or all of `x`, `y` and `z`");
            return None;
        }
        let dimensions = dimensions.unwrap_or(count);
        let mut numbers = [1; 3];
        let mut is_right = true;
        for (axis, given) in given.into_iter().enumerate() {
            let Some(given) = given else { continue };
            if axis >= dimensions {
                let what = format!(
                    "the items have no axis {}: there are {}",
                    AXES[axis],
                    AXES[..dimensions].join(", ")
                );
                self.checked.wrong(&given.span(), what);
                is_right = false;
            } else {
                match self.count(given, 1) {
                    Some(number) => numbers[axis] = number,
                    None => is_right = false,
                }
            }
        }
        is_right.then_some((numbers, dimensions))
    }

    fn kernel(
        &mut self,
        name: &Spanned<String>,
        kernel: &Spanned<schema::Kernel>,
        arrays: &[ArrayPlan],
    ) -> Option<KernelPlan> {
        self.check_name(name);
        let place = self.checked.fault(&name.span(), "");
        let (name, span, kernel) = (name.get_ref(), name.span(), kernel.get_ref());
        let (items, dimensions) = self.axes(&kernel.items, None)?;
        if items.iter().try_fold(1_u64, |all, axis| all.checked_mul(*axis)).is_none_or(|all| all >= 1 << 62) {
            self.checked.wrong(&kernel.items.span(), format!("{items:?} items are too many"));
        }
        let axis = match &kernel.split {
            None => dimensions - 1,
            Some(split) => {
                let axis = *split.get_ref() as usize;
                if axis >= dimensions {
                    let what = format!(
                        "the items have no axis {}: there are {}",
                        AXES[axis],
                        AXES[..dimensions].join(", ")
                    );
                    self.checked.wrong(&split.span(), what);
                    return None;
                }
                axis
            }
        };
        let own = schema::Variant {
            opencl: kernel.opencl.clone(),
            cuda: kernel.cuda.clone(),
            function: kernel.function.clone(),
            group: None,
            tile: None,
            define: schema::Named::new(),
            opencl_options: None,
            cuda_options: None,
        };
        let default = self.variant(name, kernel, &own, dimensions);
        let mut variants = Vec::new();
        for (kind, variant) in [
            (DeviceKind::Cpu, &kernel.cpu),
            (DeviceKind::Gpu, &kernel.gpu),
            (DeviceKind::Accelerator, &kernel.accelerator),
        ] {
            if let Some(variant) = variant {
                variants.push((kind, self.variant(name, kernel, variant.get_ref(), dimensions)));
            }
        }
        let all = || std::iter::once(&default).chain(variants.iter().map(|(_, variant)| variant));
        let has_source = |variant: &VariantPlan| variant.opencl.is_some() || variant.cuda.is_some();
        let names_source = |variant: &schema::Variant| variant.opencl.is_some() || variant.cuda.is_some();
        let named = [&kernel.cpu, &kernel.gpu, &kernel.accelerator];
        if !all().any(has_source)
            && !names_source(&own)
            && !named.iter().any(|variant| variant.as_ref().is_some_and(|it| names_source(it.get_ref())))
        {
            self.checked.wrong(&span, format!("kernel {name} has no source: expected `opencl` or `cuda`"));
        }
        let mut arguments = Vec::new();
        let mut is_right = true;
        for argument in kernel.arguments.get_ref() {
            let place = self.checked.fault(&argument.span(), "");
            match self.argument(argument, kernel, (items[axis], axis), arrays) {
                Some(plan) => arguments.push((plan, place)),
                None => is_right = false,
            }
        }
        if !is_right {
            return None;
        }
        let mut plan = KernelPlan {
            name: name.clone(),
            place,
            items,
            dimensions,
            axis,
            is_undivided: kernel.undivided,
            arguments,
            default,
            variants,
        };
        self.derive(kernel, &mut plan, arrays);
        self.check_shared(kernel, &plan, arrays);
        Some(plan)
    }

    /// Derives the parts that the file does not declare.
    fn derive(&mut self, kernel: &schema::Kernel, plan: &mut KernelPlan, arrays: &[ArrayPlan]) {
        for (index, part) in derive::undeclared(plan, arrays) {
            let span = kernel.arguments.get_ref()[index].span();
            let Some(part) = self.checked.or_wrong(&span, part) else { continue };
            if let ArgumentPlan::Array { access, part: own, .. } = &mut plan.arguments[index].0 {
                (*access, *own) = (part.access(), Part::Derived(Arc::new(part)));
            }
        }
    }

    /// Checks that no array is two arguments of which one changes it.
    fn check_shared(&mut self, kernel: &schema::Kernel, plan: &KernelPlan, arrays: &[ArrayPlan]) {
        let arguments = plan.arguments.iter().zip(kernel.arguments.get_ref());
        let mut seen: IndexMap<usize, bool> = IndexMap::new();
        for ((argument, _), schema) in arguments {
            let (array, changes) = match argument {
                ArgumentPlan::Array { array, access, .. } => (*array, access.writes()),
                ArgumentPlan::Reduction { array, .. } => (*array, true),
                ArgumentPlan::Scalar(_) | ArgumentPlan::Local(_) => continue,
            };
            if seen.insert(array, changes).is_some_and(|earlier| earlier || changes) {
                let name = &arrays[array].name;
                let what = format!(
                    "array {name} is an argument twice, and one of them changes it: expected one argument with `updates`"
                );
                self.checked.wrong(&schema.span(), what);
            }
        }
    }

    fn variant(
        &mut self,
        name: &str,
        kernel: &schema::Kernel,
        variant: &schema::Variant,
        dimensions: usize,
    ) -> VariantPlan {
        let mut sizes = |axes: Option<&Spanned<Axes>>, default: [u64; 3]| match axes {
            Some(axes) => self.axes(axes, Some(dimensions)).map_or(default, |(sizes, _)| sizes),
            None => default,
        };
        let group = sizes(variant.group.as_ref().or(kernel.group.as_ref()), GROUPS[dimensions - 1]);
        let tile = sizes(variant.tile.as_ref().or(kernel.tile.as_ref()), [1; 3]);
        let mut defines = String::new();
        for (macro_name, value) in kernel.define.iter().chain(&variant.define) {
            self.check_name(macro_name);
            let text = match (value.get_ref(), value.get_ref().value(&self.values)) {
                (_, Ok(number)) => number.to_string(),
                // Text that is no expression, such as a type.
                (Expression::Text(text), Err(_)) => text.clone(),
                (_, Err(_)) => String::new(),
            };
            if text.contains(char::is_whitespace) || text.is_empty() {
                let what =
                    format!("expected a number, an expression, or text without spaces, found \"{text}\"");
                self.checked.wrong(&value.span(), what);
            }
            defines += &format!("-D{}={text} ", macro_name.get_ref());
        }
        let function = variant.function.as_ref().or(kernel.function.as_ref());
        if let Some(function) = function
            && !is_name(function.get_ref())
        {
            let what = format!("expected the name of a function, found `{}`", function.get_ref());
            self.checked.wrong(&function.span(), what);
        }
        let function = function.map_or_else(|| name.to_owned(), |function| function.get_ref().clone());
        let options = |of_variant: &Option<String>, of_kernel: &Option<String>| {
            let options = of_variant.as_ref().or(of_kernel.as_ref());
            format!("{defines}{}", options.map_or("", String::as_str))
        };
        let opencl_options = options(&variant.opencl_options, &kernel.opencl_options);
        let cuda_options = options(&variant.cuda_options, &kernel.cuda_options);
        let mut code = |file: Option<&Spanned<String>>, options: String| {
            let file = file?;
            let path = self.checked.beside(file.get_ref());
            let text = files::read(&path, files::Source::File, MOST_SOURCE_BYTES)
                .map_err(|cause| format!("{}: {cause}", path.display()))
                .and_then(|bytes| {
                    String::from_utf8(bytes).map_err(|_| format!("{}: it is no text", path.display()))
                });
            let text = self.checked.or_wrong(&file.span(), text)?;
            let place = self.checked.fault(&file.span(), path.display().to_string());
            self.files.push(path);
            Some(Code { place, text: text.into(), options })
        };
        let opencl = code(variant.opencl.as_ref().or(kernel.opencl.as_ref()), opencl_options);
        let cuda = code(variant.cuda.as_ref().or(kernel.cuda.as_ref()), cuda_options);
        VariantPlan { opencl, cuda, function, group, tile }
    }

    fn argument(
        &mut self,
        argument: &Spanned<schema::Argument>,
        kernel: &schema::Kernel,
        (items, axis): (u64, usize),
        arrays: &[ArrayPlan],
    ) -> Option<ArgumentPlan> {
        let (span, argument) = (argument.span(), argument.get_ref());
        let scalars = [
            (ElementType::Char, &argument.char),
            (ElementType::Uchar, &argument.uchar),
            (ElementType::Short, &argument.short),
            (ElementType::Ushort, &argument.ushort),
            (ElementType::Int, &argument.int),
            (ElementType::Uint, &argument.uint),
            (ElementType::Long, &argument.long),
            (ElementType::Ulong, &argument.ulong),
            (ElementType::Float, &argument.float),
            (ElementType::Double, &argument.double),
        ];
        let mut scalars = scalars.into_iter().filter_map(|(element, value)| Some((element, value.as_ref()?)));
        let (scalar, further) = (scalars.next(), scalars.next());
        let parts = [
            (Some(Access::ReadOnly), &argument.reads),
            (Some(Access::WriteInvalidate), &argument.writes),
            (Some(Access::ReadWrite), &argument.updates),
        ];
        let mut parts = parts.into_iter().filter_map(|(access, part)| Some((access?, part.as_ref()?)));
        let (part, further_part) = (parts.next(), parts.next());
        let has_part = part.is_some() || argument.reduces.is_some();
        let one = [argument.array.is_some(), argument.local.is_some(), scalar.is_some()];
        if one.iter().filter(|is_given| **is_given).count() != 1 || further.is_some() {
            let what = "expected one of `array`, a type of a scalar such as `uint`, and `local`";
            self.checked.wrong(&span, what);
            return None;
        }
        if has_part && argument.array.is_none() {
            self.checked.wrong(&span, "only an `array` is read, written, updated or reduced");
            return None;
        }
        if let Some((element, value)) = scalar {
            let number = self.number(value)?;
            let scalar = self.checked.or_wrong(&value.span(), element.scalar(number))?;
            return Some(ArgumentPlan::Scalar(scalar));
        }
        if let Some(local) = &argument.local {
            return self.count(local, 1).map(ArgumentPlan::Local);
        }
        let array = argument.array.as_ref()?;
        let index = self.array_named(array)?;
        match (part, further_part, &argument.reduces) {
            (None, None, Some(operation)) => {
                Some(ArgumentPlan::Reduction { array: index, operation: *operation.get_ref() })
            }
            (Some((access, text)), None, None) => {
                let part = self.part(&arrays[index], (access, text), kernel, (items, axis))?;
                Some(ArgumentPlan::Array { array: index, access, part })
            }
            // Derived when all arguments are known.
            (None, None, None) => {
                Some(ArgumentPlan::Array { array: index, access: Access::ReadOnly, part: Part::Undeclared })
            }
            _ => {
                self.checked.wrong(&span, "expected one of `reads`, `writes`, `updates` and `reduces`");
                None
            }
        }
    }

    fn array_named(&mut self, name: &Spanned<String>) -> Option<usize> {
        let arrays = &self.description.arrays;
        let index = position(arrays, name.get_ref());
        let index = index
            .ok_or_else(|| format!("there is no array `{}`: there are {}", name.get_ref(), names(arrays)));
        self.checked.or_wrong(&name.span(), index)
    }

    /// Reads the part of an array, and checks that the array has it for all items.
    fn part(
        &mut self,
        array: &ArrayPlan,
        (access, text): (Access, &Spanned<String>),
        kernel: &schema::Kernel,
        (items, axis): (u64, usize),
    ) -> Option<Part> {
        let part = part::parse(text.get_ref(), array.shape.len(), &self.values);
        let part = self.checked.or_wrong(&text.span(), part)?;
        if kernel.undivided {
            return Some(part);
        }
        let changes = access.writes();
        if changes && matches!(part, Part::Whole) {
            let what = "devices cannot all change the whole array: expected a part of it, `reduces`, or `undivided = true`";
            self.checked.wrong(&text.span(), what);
        }
        if changes && part.has_margins() {
            let what = "devices change parts without margins, which do not overlap";
            self.checked.wrong(&text.span(), what);
        }
        if let Part::Along(along) = &part {
            let (length, name) = (array.shape[along.axis], part::AXES[array.shape.len() - 1][along.axis]);
            let needed = items.checked_mul(along.count).and_then(|needed| needed.checked_add(along.offset));
            if needed.is_none_or(|needed| needed > length) {
                let axis = AXES[axis];
                let needed = needed.map_or_else(|| "more".to_owned(), |needed| needed.to_string());
                let what = format!(
                    "{items} items along {axis} need {needed} {name}, and array {} has {length}",
                    array.name
                );
                self.checked.wrong(&text.span(), what);
            }
        }
        Some(part)
    }

    fn steps(
        &mut self,
        steps: &Spanned<Vec<Spanned<schema::Step>>>,
        arrays: &[ArrayPlan],
        kernels: &[KernelPlan],
        is_repeated: bool,
    ) -> Vec<StepPlan> {
        let step = |step| self.step(step, arrays, kernels, is_repeated);
        steps.get_ref().iter().filter_map(step).collect()
    }

    fn step(
        &mut self,
        step: &Spanned<schema::Step>,
        arrays: &[ArrayPlan],
        kernels: &[KernelPlan],
        is_repeated: bool,
    ) -> Option<StepPlan> {
        let (span, step) = (step.span(), step.get_ref());
        match step {
            schema::Step {
                kernel: Some(kernel),
                every,
                swap: None,
                repeat: None,
                until: None,
                run: None,
            } => {
                let index = kernels.iter().position(|known| &known.name == kernel.get_ref());
                let index = index.ok_or_else(|| {
                    let known = names(&self.description.kernels);
                    format!("there is no kernel `{}`: there are {known}", kernel.get_ref())
                });
                let index = self.checked.or_wrong(&kernel.span(), index)?;
                let every = match every {
                    Some(every) if !is_repeated => {
                        self.checked.wrong(&every.span(), "only a kernel that is repeated has `every`");
                        None
                    }
                    Some(every) => self.count(every, 1),
                    None => Some(1),
                };
                Some(StepPlan::Kernel { kernel: index, every: every? })
            }
            schema::Step {
                kernel: None,
                every: None,
                swap: Some(swap),
                repeat: None,
                until: None,
                run: None,
            } => {
                let [one, other] = &swap.get_ref()[..] else {
                    let what = format!("expected two arrays, found {}", swap.get_ref().len());
                    self.checked.wrong(&swap.span(), what);
                    return None;
                };
                let (one, other) = (self.array_named(one)?, self.array_named(other)?);
                let like = |array: &ArrayPlan| (array.element, array.shape.clone());
                let describe =
                    |array: &ArrayPlan| format!("{} is {:?} of {}", array.name, array.shape, array.element);
                if one == other {
                    let what = format!("array {} cannot change places with itself", arrays[one].name);
                    self.checked.wrong(&swap.span(), what);
                } else if like(&arrays[one]) != like(&arrays[other]) {
                    let [one, other] = [one, other].map(|array| describe(&arrays[array]));
                    let what = format!("expected two arrays of the same type and shape: {one}, {other}");
                    self.checked.wrong(&swap.span(), what);
                }
                let is_reduced = |array: usize| {
                    kernels.iter().flat_map(|kernel| &kernel.arguments).any(
                        |(argument, _)| matches!(argument, ArgumentPlan::Reduction { array: of, .. } if *of == array),
                    )
                };
                if let Some(reduced) = [one, other].into_iter().find(|array| is_reduced(*array)) {
                    let what = format!("array {} is reduced, and cannot change places", arrays[reduced].name);
                    self.checked.wrong(&swap.span(), what);
                }
                Some(StepPlan::Swap(one, other))
            }
            schema::Step {
                kernel: None,
                every: None,
                swap: None,
                repeat: Some(count),
                until,
                run: Some(run),
            } => {
                let count = self.count(count, 0);
                let given = run.get_ref().len();
                let run = self.steps(run, arrays, kernels, true);
                if run.len() < given {
                    return None;
                }
                let until = match until {
                    Some(until) => Some(self.until(until, &run, kernels)?),
                    None => None,
                };
                Some(StepPlan::Repeat { count: count?, until, run })
            }
            _ => {
                let what = "expected `kernel`, or `swap`, or `repeat` and `run`; `every` belongs to `kernel`, `until` to `repeat`";
                self.checked.wrong(&span, what);
                None
            }
        }
    }

    fn until(&mut self, until: &Spanned<String>, run: &[StepPlan], kernels: &[KernelPlan]) -> Option<Until> {
        let text = until.get_ref();
        let parts = text.find(['<', '>']).map(|at| (text[..at].trim(), &text[at..=at], &text[at + 1..]));
        let parts = parts.filter(|(.., limit)| !limit.starts_with('='));
        let parts = parts.ok_or_else(|| {
            format!(
                "expected an array, `<` or `>`, and a number, such as \"change < 1e-3\", found \"{text}\""
            )
        });
        let (name, sign, limit) = self.checked.or_wrong(&until.span(), parts)?;
        let array = self.array_named(&Spanned::new(until.span(), name.to_owned()))?;
        let limit = evaluate(limit, &self.values);
        let limit = self.checked.or_wrong(&until.span(), limit)?.real();
        let mut every: Option<u64> = None;
        for step in run {
            step.kernels(&mut |kernel, of_kernel| {
                if kernels[kernel].arrays().any(|(changed, changes)| changes && changed == array) {
                    every = Some(every.map_or(of_kernel, |every| gcd(every, of_kernel)));
                }
            });
        }
        let every = every.ok_or_else(|| format!("no repeated kernel changes array {name}"));
        let every = self.checked.or_wrong(&until.span(), every)?;
        Some(Until { array, is_below: sign == "<", limit, every })
    }
}

/// Returns why a file's contents are not those of an array.
fn misfit(contents: &Contents, element: ElementType, shape: &[u64], bytes: u64) -> Option<String> {
    match contents {
        Contents::Array(found, _) if *found != element => {
            let (found, wanted) = (found.numpy(), element.numpy());
            Some(format!(
                "its elements are {found}, and {element} is {wanted}: save numpy.astype(\"{wanted}\") of it"
            ))
        }
        Contents::Array(_, found) if found != shape => Some(format!("its shape is {found:?}, not {shape:?}")),
        Contents::Picture(found) if found != shape => {
            Some(format!("the picture's shape is {found:?} (rows, columns, channels), not {shape:?}"))
        }
        Contents::Bytes(found) if *found != bytes => {
            Some(format!("it has {found} bytes, and {shape:?} of {element} have {bytes}"))
        }
        _ => None,
    }
}
