//! A recipe with its buffers on a platform.

use super::recipe::{Argument, Groups, Outputs, Program, Recipe};
use super::variants::Source;
use super::{
    Language, Plain, PlainArgument, PrepareError, Prepared, VerifyError, Workload, on_host, variants,
};
#[cfg(any(feature = "cuda", feature = "opencl"))]
use crate::by_hand::{self, ByHandError, HostMemory};
use crate::check::Mismatch;
use dml_core::{Access, AcquireError, DeviceId, Platform, RawBuffer, Scalar};
use dml_scheduler::Kernel;
use std::path::Path;

/// A workload that is ready to run.
#[derive(Debug)]
pub(super) struct Ready<R> {
    recipe: R,
    kernel: Kernel,
    inputs: Vec<RawBuffer>,
    outputs: Vec<RawBuffer>,
}

impl<R: Recipe> Ready<R> {
    pub(super) fn new(platform: &Platform, devices: &[DeviceId], recipe: R) -> Result<Self, PrepareError> {
        let mut kernel = match recipe.groups() {
            Groups::Line(local) => Kernel::new(R::NAME, local),
            Groups::Rows { columns, local: [across, down] } => {
                Kernel::new(R::NAME, down).rows(columns, across)
            }
        };
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for argument in recipe.arguments().0 {
            kernel = match argument {
                Argument::Input { contents, make, footprint } => {
                    let buffer = make.0(platform, contents)?;
                    inputs.push(buffer.clone());
                    kernel.argument(dml_scheduler::Argument::part(&buffer, Access::ReadOnly, footprint))
                }
                Argument::Output { elements, make, footprint, .. } => {
                    let buffer = make.0(platform, elements)?;
                    outputs.push(buffer.clone());
                    kernel.argument(dml_scheduler::Argument::part(
                        &buffer,
                        Access::WriteInvalidate,
                        footprint,
                    ))
                }
                Argument::Scalar(value) => kernel.scalar(value),
            };
        }
        let source =
            Source { name: R::NAME, opencl: R::OPENCL, cuda: R::CUDA, cuda_options: "", compute: R::compute };
        let kernel = variants::add(kernel.end(), platform, devices, &source)?;
        Ok(Self { recipe, kernel, inputs, outputs })
    }

    /// Calls a function with the outputs, as the host sees them.
    fn with_outputs<T>(
        &self,
        use_them: impl FnOnce(&Outputs<'_>) -> Result<T, VerifyError>,
    ) -> Result<T, VerifyError> {
        let Some(first) = self.outputs.first() else { return use_them(&Outputs(Vec::new())) };
        let grants = self.outputs.iter().fold(on_host(first)?, |acquire, output| acquire.read(output));
        let grants = grants.wait()?;
        let viewed = |buffer: &RawBuffer, cause| AcquireError::View { buffer: buffer.name(), cause };
        let bytes = |buffer| grants.slice::<u8>(buffer).map_err(|cause| viewed(buffer, cause));
        let bytes = self.outputs.iter().map(bytes).collect::<Result<_, _>>()?;
        let result = use_them(&Outputs(bytes))?;
        grants.release()?;
        Ok(result)
    }
}

impl<R: Recipe> Prepared for Ready<R> {
    fn workload(&self) -> Workload {
        R::WORKLOAD
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        self.recipe.size()
    }

    fn items(&self) -> u64 {
        self.recipe.items()
    }

    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn inputs(&self) -> Vec<&RawBuffer> {
        self.inputs.iter().collect()
    }

    fn outputs(&self) -> Vec<&RawBuffer> {
        self.outputs.iter().collect()
    }

    fn verify(&self) -> Result<(), VerifyError> {
        self.with_outputs(|outputs| Ok(self.recipe.judge(outputs)?))
    }

    fn write_picture(&self, path: &Path) -> Result<(), VerifyError> {
        let no_picture = VerifyError::NoPicture { workload: R::WORKLOAD };
        let picture = self.with_outputs(|outputs| self.recipe.draw(outputs).ok_or(no_picture))?;
        Ok(picture.write(path)?)
    }

    #[cfg(any(feature = "cuda", feature = "opencl"))]
    fn by_hand(
        &self,
        platform: &Platform,
        device: DeviceId,
        memory: HostMemory,
    ) -> Result<Option<by_hand::Program>, ByHandError> {
        by_hand::Program::of(&self.recipe, platform, device, memory)
    }

    fn verify_plain(&self, outputs: &[&[u8]]) -> Result<(), Mismatch> {
        self.recipe.judge(&Outputs(outputs.to_vec()))
    }
}

/// Returns the kernel of a recipe with its data for a program by hand; `None` if there is no kernel in the
/// language.
#[cfg_attr(
    not(any(feature = "cuda", feature = "opencl")),
    allow(dead_code, reason = "without a framework there are no programs by hand")
)]
pub(crate) fn plain<R: Recipe>(recipe: &R, language: Language) -> Option<Plain> {
    let Program { source, kernel } = match language {
        Language::OpenClC => R::OPENCL,
        Language::CudaC => R::CUDA?,
    };
    let plain = |argument: Argument<'_>| match argument {
        Argument::Input { contents, .. } => PlainArgument::Input(contents.to_vec()),
        Argument::Output { bytes, .. } => PlainArgument::Output(bytes),
        Argument::Scalar(Scalar::U32(value)) => PlainArgument::U32(value),
        Argument::Scalar(Scalar::U64(value)) => PlainArgument::U64(value),
        Argument::Scalar(Scalar::F32(value)) => PlainArgument::F32(value),
        Argument::Scalar(other) => unreachable!("no workload has a scalar like {other:?}"),
    };
    let mut arguments: Vec<_> = recipe.arguments().0.into_iter().map(plain).collect();
    arguments.push(PlainArgument::U64(recipe.items()));
    let (items, local_size) = match recipe.groups() {
        Groups::Line(local) => ([recipe.items(), 1], [local, 1]),
        Groups::Rows { columns, local } => ([columns, recipe.items()], local),
    };
    Some(Plain { source, kernel, arguments, items, local_size })
}
