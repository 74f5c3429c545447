//! mandelbrot over a buffer.

use super::variants::{self, Code};
use super::{Input, Plain, PlainArgument, PrepareError, Prepared, VerifyError, Workload};
use crate::check::Mismatch;
use crate::mandelbrot::{
    CUDA_SOURCE, LOCAL_SIZE, OPENCL_KERNEL, OPENCL_SOURCE, PAPER, PIXELS_PER_ITEM, Problem, SMALL, TINY, host,
};
use dml_arenas::launch::{self, ComputeError, HostView};
use dml_core::{Access, Buffer, DeviceId, Platform, RawBuffer, Scalar};
use dml_scheduler::{Argument, Footprint, Kernel};
use std::ops::Range;
use std::path::Path;

const ITEM_BYTES: u64 = PIXELS_PER_ITEM * 4;

/// A prepared drawing.
#[derive(Debug)]
pub(super) struct Mandelbrot {
    problem: Problem,
    out: Buffer<[u8; 4]>,
    kernel: Kernel,
}

/// The kernel on buffers, in the host's memory or in a worker's.
pub(super) fn compute<V: HostView>(
    items: Range<u64>,
    views: &mut [V],
    scalars: &[Scalar],
) -> Result<(), ComputeError> {
    let count = views.len();
    let [out] = views else { return Err(variants::wrong_buffers(Workload::Mandelbrot, count)) };
    let size = |index| launch::scalar::<u32>(scalars, index);
    let place = |index| launch::scalar::<f32>(scalars, index);
    let problem = Problem::of_view((size(0)?, size(1)?), size(2)?, (place(3)?, place(4)?), place(5)?)?;
    host(items, &problem, out.slice_mut()?);
    Ok(())
}

impl Mandelbrot {
    pub(super) fn prepare(
        platform: &Platform,
        devices: &[DeviceId],
        input: &Input<'_>,
    ) -> Result<Self, PrepareError> {
        let workload = Workload::Mandelbrot;
        let problem = match *input {
            Input::Tiny => Problem::of_size(TINY)?,
            Input::Small => Problem::of_size(SMALL)?,
            Input::Paper => Problem::of_size(PAPER)?,
            Input::Size(items) => Problem::of_items(items)?,
            Input::Picture(_) => return Err(PrepareError::NoPicture { workload }),
        };
        super::memory_for(workload, problem.items().saturating_mul(ITEM_BYTES * 2))?;
        let out = platform.buffer::<[u8; 4]>(problem.items() * PIXELS_PER_ITEM).build()?;
        let kernel = Kernel::new(workload.name(), LOCAL_SIZE)
            .argument(Argument::part(&out, Access::WriteInvalidate, Footprint::one_to_one(ITEM_BYTES)))
            .scalar(problem.width())
            .scalar(problem.height())
            .scalar(problem.max_iterations())
            .scalar(problem.left())
            .scalar(problem.top())
            .scalar(problem.step())
            .end();
        let code = Code {
            workload,
            host: |items, views, scalars| compute(items, views, scalars),
            source: OPENCL_SOURCE,
            cuda_source: CUDA_SOURCE,
            name: OPENCL_KERNEL,
        };
        let kernel = variants::add(kernel, platform, devices, &code)?;
        Ok(Self { problem, out, kernel })
    }
}

impl Prepared for Mandelbrot {
    fn workload(&self) -> Workload {
        Workload::Mandelbrot
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("items", self.problem.items()),
            ("width", self.problem.width().into()),
            ("height", self.problem.height().into()),
            ("max_iterations", self.problem.max_iterations().into()),
        ]
    }

    fn items(&self) -> u64 {
        self.problem.items()
    }

    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn inputs(&self) -> Vec<&RawBuffer> {
        vec![]
    }

    fn output(&self) -> &RawBuffer {
        self.out.raw()
    }

    fn verify(&self) -> Result<(), VerifyError> {
        Ok(self.problem.check(&self.out.read()?)?)
    }

    fn write_picture(&self, path: &Path) -> Result<(), VerifyError> {
        Ok(self.problem.picture(&self.out.read()?).write(path)?)
    }

    fn plain(&self) -> Plain {
        let problem = &self.problem;
        Plain {
            source: OPENCL_SOURCE,
            kernel: OPENCL_KERNEL,
            arguments: vec![
                PlainArgument::Output(self.out.raw().len()),
                PlainArgument::U32(problem.width()),
                PlainArgument::U32(problem.height()),
                PlainArgument::U32(problem.max_iterations()),
                PlainArgument::F32(problem.left()),
                PlainArgument::F32(problem.top()),
                PlainArgument::F32(problem.step()),
                PlainArgument::U64(problem.items()),
            ],
            items: [self.items(), 1],
            local_size: [LOCAL_SIZE, 1],
        }
    }

    fn verify_plain(&self, output: &[u8]) -> Result<(), Mismatch> {
        self.problem.check(bytemuck::cast_slice(output))
    }
}
