//! The description of a workload, from which its buffers, kernels, launchers and baselines follow.
//!
//! ```text
//!   Recipe::of(input) ──▶ problem ──arguments()──▶ buffers, kernel, launchers     the co-executed run
//!                           │    └─────────────▶ Plain                            the hand-written baseline
//!                           └─ judge(outputs), draw(outputs)
//! ```
//! The page `docs/adding-a-workload.md` leads through writing one.

use super::{Input, Kind, PrepareError, Workload, filled};
use crate::check::Mismatch;
use crate::picture::Picture;
use bytemuck::Pod;
use dml_arenas::launch::{Call, ComputeError};
use dml_core::{Platform, RawBuffer, Scalar};
use dml_scheduler::Footprint;
use std::borrow::Cow;
use std::fmt;

/// The workload of the suite that a recipe describes. The registration implements it.
pub(crate) trait Listed {
    const WORKLOAD: Workload;
}

/// A workload: its problem, the arguments of its kernel, the kernel on the host, and the check of a result.
pub(crate) trait Recipe: Listed + Sized + fmt::Debug + Send + Sync + 'static {
    /// Name on the command line, and of the function that offload workers run.
    const NAME: &'static str;
    /// The kernel for OpenCL devices.
    const OPENCL: Program;
    /// The kernel for CUDA devices: it takes the arguments of the OpenCL kernel, then its items. `None` if
    /// there is none.
    const CUDA: Option<Program> = None;
    /// The relative cost of its items.
    const KIND: Kind = Kind::Regular;
    /// The largest published size, in the unit of [`Input::Size`].
    const LARGEST_PUBLISHED: u64;
    /// Whether [`Input::Size`] is the edge of a picture, so that the work grows with its square.
    const SIZE_IS_EDGE: bool = false;
    /// Whether it can process a picture of the user.
    const TAKES_PICTURE: bool = false;
    /// Whether its result is a picture.
    const MAKES_PICTURE: bool = false;

    /// Makes the problem. Only a workload with [`TAKES_PICTURE`](Self::TAKES_PICTURE) receives a picture.
    fn of(input: &Input<'_>) -> Result<Self, PrepareError>;

    /// Returns the number of items.
    fn items(&self) -> u64;

    /// Returns the sizes that describe the problem, by name.
    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![("items", self.items())]
    }

    /// Returns the work-items of one item and of one work-group.
    fn groups(&self) -> Groups;

    /// Returns the arguments of the kernel in order. The end of the package is added as the last one.
    fn arguments(&self) -> Arguments<'_>;

    /// Computes a package on the host or in an offload worker.
    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError>;

    /// Compares every item of the outputs with an independent computation.
    fn judge(&self, outputs: &Outputs<'_>) -> Result<(), Mismatch>;

    /// Returns the picture of the outputs, for workloads that make one.
    fn draw(&self, outputs: &Outputs<'_>) -> Option<Picture> {
        let _ = outputs;
        None
    }
}

/// A kernel in a language that a device compiles.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "opencl"),
    allow(dead_code, reason = "without OpenCL the host's kernel is all there is")
)]
pub(crate) struct Program {
    pub(crate) source: &'static str,
    pub(crate) kernel: &'static str,
}

/// The mapping from items to work-items.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Groups {
    /// An item is one work-item. The number is the size of a work-group.
    Line(u64),
    /// An item is a row of `columns` work-items. A work-group has `local` columns and rows.
    Rows { columns: u64, local: [u64; 2] },
}

/// The arguments of a kernel, in their order.
#[derive(Debug, Default)]
pub(crate) struct Arguments<'a>(pub(super) Vec<Argument<'a>>);

#[derive(Debug)]
pub(super) enum Argument<'a> {
    Input { contents: &'a [u8], make: Make<&'a [u8]>, footprint: Footprint },
    Output { elements: u64, bytes: u64, make: Make<u64>, footprint: Footprint },
    Scalar(Scalar),
}

/// A function that makes a buffer, and hides the type of the buffer's elements.
pub(super) struct Make<T>(pub(super) fn(&Platform, T) -> Result<RawBuffer, PrepareError>);

impl<T> fmt::Debug for Make<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Make")
    }
}

impl<'a> Arguments<'a> {
    /// Adds an input with one element per item.
    pub(crate) fn read<T: Pod>(self, values: &'a [T]) -> Self {
        self.read_part(values, Footprint::one_to_one(size_of::<T>() as u64))
    }

    /// Adds an input that every package reads completely.
    pub(crate) fn read_all<T: Pod>(self, values: &'a [T]) -> Self {
        self.read_part(values, Footprint::Whole)
    }

    /// Adds an input. A package reads the part that the footprint names.
    pub(crate) fn read_part<T: Pod>(mut self, values: &'a [T], footprint: Footprint) -> Self {
        let make: Make<&'a [u8]> = Make(|platform, contents| {
            let buffer = filled::<T>(platform, bytemuck::cast_slice(contents))?;
            Ok(buffer.raw().clone())
        });
        self.0.push(Argument::Input { contents: bytemuck::cast_slice(values), make, footprint });
        self
    }

    /// Adds an output of `elements` elements, one per item.
    pub(crate) fn write<T: Pod>(self, elements: u64) -> Self {
        self.write_part::<T>(elements, Footprint::one_to_one(size_of::<T>() as u64))
    }

    /// Adds an output of `elements` elements. A package overwrites the part that the footprint names.
    pub(crate) fn write_part<T: Pod>(mut self, elements: u64, footprint: Footprint) -> Self {
        let make =
            Make(|platform: &Platform, elements| Ok(platform.buffer::<T>(elements).build()?.raw().clone()));
        let bytes = elements.saturating_mul(size_of::<T>() as u64);
        self.0.push(Argument::Output { elements, bytes, make, footprint });
        self
    }

    /// Adds a scalar.
    pub(crate) fn scalar(mut self, value: impl Into<Scalar>) -> Self {
        self.0.push(Argument::Scalar(value.into()));
        self
    }
}

/// The bytes of the outputs, in the order of the arguments.
#[derive(Debug)]
pub(crate) struct Outputs<'a>(pub(super) Vec<&'a [u8]>);

impl<'a> Outputs<'a> {
    /// Returns an output as elements.
    ///
    /// # Panics
    /// When there is no such output, or its bytes are no whole number of elements. [`Recipe::arguments`]
    /// rules out both.
    pub(crate) fn of<T: Pod>(&self, index: usize) -> Cow<'a, [T]> {
        let bytes = self.0[index];
        bytemuck::try_cast_slice(bytes)
            .map_or_else(|_| Cow::Owned(bytemuck::pod_collect_to_vec(bytes)), Cow::Borrowed)
    }
}

impl Input<'_> {
    /// Returns the size of a workload that has three named sizes, and accepts any number up to a limit.
    ///
    /// # Errors
    /// [`PrepareError::Size`] beyond the limit, [`PrepareError::NoPicture`] for a picture.
    pub(crate) fn pick<R: Recipe, S>(
        &self,
        [tiny, small, paper]: [S; 3],
        limit: u64,
        of_number: impl FnOnce(u64) -> S,
    ) -> Result<S, PrepareError> {
        let workload = R::NAME;
        match *self {
            Self::Tiny => Ok(tiny),
            Self::Small => Ok(small),
            Self::Paper => Ok(paper),
            Self::Size(size) if size > limit => Err(PrepareError::Size { workload, size, limit }),
            Self::Size(size) => Ok(of_number(size)),
            Self::Picture(_) => Err(PrepareError::NoPicture { workload: R::WORKLOAD }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vecadd::Problem;

    /// The limit itself is a possible size.
    #[test]
    fn sizes_are_taken_up_to_their_limit() {
        let pick = |input: Input<'_>| input.pick::<Problem, _>([1, 2, 3], 1000, |size| 10 * size);
        let of_names = [Input::Tiny, Input::Small, Input::Paper].map(|input| pick(input).ok());
        assert_eq!(of_names, [Some(1), Some(2), Some(3)]);
        assert_eq!(
            [0, 1, 999, 1000].map(|size| pick(Input::Size(size)).ok()),
            [0, 10, 9990, 10_000].map(Some)
        );
        for size in [1001, u64::MAX] {
            let refused = pick(Input::Size(size)).unwrap_err().to_string();
            assert_eq!(refused, format!("impossible size {size} for vecadd: at most 1000"));
        }
        let picture = Input::Picture(std::path::Path::new("a.png"));
        assert_eq!(pick(picture).unwrap_err().to_string(), "vecadd does not take a picture");
    }
}
