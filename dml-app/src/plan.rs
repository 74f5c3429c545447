//! A checked application: every name resolved, every expression evaluated.

use crate::expression::{Number, Values};
use crate::fault::Fault;
use crate::part::Part;
use crate::schema::{ElementType, Operation};
use dml_core::{Access, DeviceKind, Scalar};
use std::path::PathBuf;
use std::sync::Arc;

/// A checked application.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) values: Values,
    pub(crate) arrays: Vec<ArrayPlan>,
    pub(crate) kernels: Vec<KernelPlan>,
    pub(crate) run: Vec<StepPlan>,
    /// The sources and the inputs.
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct ArrayPlan {
    pub(crate) name: String,
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<u64>,
    pub(crate) from: Source,
    pub(crate) to: Option<PathBuf>,
}

/// The first contents of an array.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    Zeros,
    File(PathBuf),
    Random { seed: u64, low: Number, high: Number },
    Value(Number),
}

#[derive(Debug)]
pub(crate) struct KernelPlan {
    pub(crate) name: String,
    pub(crate) place: Fault,
    /// The points along each axis, and the number of axes.
    pub(crate) items: [u64; 3],
    pub(crate) dimensions: usize,
    /// The axis along which devices divide the items.
    pub(crate) axis: usize,
    pub(crate) is_undivided: bool,
    pub(crate) arguments: Vec<(ArgumentPlan, Fault)>,
    pub(crate) default: VariantPlan,
    pub(crate) variants: Vec<(DeviceKind, VariantPlan)>,
}

/// How a kind of device runs a kernel.
#[derive(Clone, Debug)]
pub(crate) struct VariantPlan {
    pub(crate) opencl: Option<Code>,
    pub(crate) cuda: Option<Code>,
    pub(crate) function: String,
    pub(crate) group: [u64; 3],
    pub(crate) tile: [u64; 3],
}

/// A source with the options of its compiler.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    /// The place of the file's name, with that name as the message.
    pub(crate) place: Fault,
    pub(crate) text: Arc<str>,
    pub(crate) options: String,
}

#[derive(Clone, Debug)]
pub(crate) enum ArgumentPlan {
    Array { array: usize, access: Access, part: Part },
    Reduction { array: usize, operation: Operation },
    Scalar(Scalar),
    Local(u64),
}

#[derive(Debug)]
pub(crate) enum StepPlan {
    Kernel { kernel: usize, every: u64 },
    Swap(usize, usize),
    Repeat { count: u64, until: Option<Until>, run: Vec<StepPlan> },
}

/// Ends repetitions when the first element of an array passes a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    pub(crate) array: usize,
    pub(crate) is_below: bool,
    pub(crate) limit: f64,
    /// The array changes after every so many repetitions.
    pub(crate) every: u64,
}

impl Until {
    pub(crate) fn holds(&self, value: f64) -> bool {
        if self.is_below { value < self.limit } else { value > self.limit }
    }
}

impl ArrayPlan {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

impl KernelPlan {
    pub(crate) fn variant(&self, kind: DeviceKind) -> &VariantPlan {
        self.variants.iter().find(|(of, _)| *of == kind).map_or(&self.default, |(_, variant)| variant)
    }

    /// Returns the arrays that a kernel uses, each with whether it changes it.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.arguments.iter().filter_map(|(argument, _)| match argument {
            ArgumentPlan::Array { array, access, .. } => Some((*array, access.writes())),
            ArgumentPlan::Reduction { array, .. } => Some((*array, true)),
            ArgumentPlan::Scalar(_) | ArgumentPlan::Local(_) => None,
        })
    }

    pub(crate) fn has_reductions(&self) -> bool {
        self.arguments.iter().any(|(argument, _)| matches!(argument, ArgumentPlan::Reduction { .. }))
    }
}

impl StepPlan {
    /// Calls a function with each kernel's position, and that of its repetitions in `every`.
    pub(crate) fn kernels(&self, each: &mut dyn FnMut(usize, u64)) {
        match self {
            Self::Kernel { kernel, every } => each(*kernel, *every),
            Self::Swap(..) => {}
            Self::Repeat { run, .. } => {
                run.iter().for_each(|step| step.kernels(&mut |kernel, _| each(kernel, 1)))
            }
        }
    }
}

pub(crate) fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}
