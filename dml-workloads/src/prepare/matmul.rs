//! matmul over buffers: an item is a row of the product.

use super::variants::{self, Code};
use super::{Input, Plain, PlainArgument, PrepareError, Prepared, VerifyError, Workload, filled};
use crate::check::Mismatch;
use crate::matmul::{
    CUDA_SOURCE, LOCAL_SIZE, OPENCL_KERNEL, OPENCL_SOURCE, PAPER, Problem, SMALL, Size, TINY, host,
};
use dml_arenas::launch::{self, ComputeError, HostView};
use dml_core::{Access, Buffer, DeviceId, Platform, RawBuffer, Scalar};
use dml_scheduler::{Argument, Footprint, Kernel};
use std::ops::Range;

/// The seed of the inputs; any other would do.
const SEED: u64 = 0x3A7;

/// A prepared product.
#[derive(Debug)]
pub(super) struct Matmul {
    problem: Problem,
    a: Buffer<f32>,
    b: Buffer<f32>,
    out: Buffer<f32>,
    kernel: Kernel,
}

/// The kernel on buffers, in the host's memory or in a worker's.
pub(super) fn compute<V: HostView>(
    items: Range<u64>,
    views: &mut [V],
    scalars: &[Scalar],
) -> Result<(), ComputeError> {
    let count = views.len();
    let [a, b, out] = views else { return Err(variants::wrong_buffers(Workload::Matmul, count)) };
    let edge = launch::scalar::<u32>(scalars, 0)?;
    host(items, edge.into(), a.slice()?, b.slice()?, out.slice_mut()?);
    Ok(())
}

impl Matmul {
    pub(super) fn prepare(
        platform: &Platform,
        devices: &[DeviceId],
        input: &Input<'_>,
    ) -> Result<Self, PrepareError> {
        let workload = Workload::Matmul;
        let size = match *input {
            Input::Tiny => TINY,
            Input::Small => SMALL,
            Input::Paper => PAPER,
            Input::Size(edge) if edge > Problem::LARGEST_EDGE => {
                return Err(PrepareError::Size { workload, size: edge, limit: Problem::LARGEST_EDGE });
            }
            Input::Size(edge) => Size { edge },
            Input::Picture(_) => return Err(PrepareError::NoPicture { workload }),
        };
        let edge = size.edge;
        super::memory_for(workload, edge * edge * 5 * size_of::<f32>() as u64)?;
        let problem = Problem::generate(size, SEED).expect("the size has been checked");
        let a = filled(platform, problem.a())?;
        let b = filled(platform, problem.b())?;
        let out = platform.buffer::<f32>(edge * edge).build()?;
        let row = || Footprint::one_to_one(edge * size_of::<f32>() as u64);
        let kernel = Kernel::new(workload.name(), LOCAL_SIZE[1])
            .rows(edge, LOCAL_SIZE[0])
            .argument(Argument::part(&a, Access::ReadOnly, row()))
            .read_all(&b)
            .argument(Argument::part(&out, Access::WriteInvalidate, row()))
            .scalar(edge as u32)
            .end();
        let code = Code {
            workload,
            host: |items, views, scalars| compute(items, views, scalars),
            source: OPENCL_SOURCE,
            cuda_source: CUDA_SOURCE,
            name: OPENCL_KERNEL,
        };
        let kernel = variants::add(kernel, platform, devices, &code)?;
        Ok(Self { problem, a, b, out, kernel })
    }
}

impl Prepared for Matmul {
    fn workload(&self) -> Workload {
        Workload::Matmul
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![("items", self.problem.items()), ("edge", self.problem.items())]
    }

    fn items(&self) -> u64 {
        self.problem.items()
    }

    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn inputs(&self) -> Vec<&RawBuffer> {
        vec![self.a.raw(), self.b.raw()]
    }

    fn output(&self) -> &RawBuffer {
        self.out.raw()
    }

    fn verify(&self) -> Result<(), VerifyError> {
        Ok(self.problem.check(&self.out.read()?)?)
    }

    fn plain(&self) -> Plain {
        let bytes = |values: &[f32]| PlainArgument::Input(bytemuck::cast_slice(values).to_vec());
        Plain {
            source: OPENCL_SOURCE,
            kernel: OPENCL_KERNEL,
            arguments: vec![
                bytes(self.problem.a()),
                bytes(self.problem.b()),
                PlainArgument::Output(self.out.raw().len()),
                PlainArgument::U32(self.problem.items() as u32),
                PlainArgument::U64(self.problem.items()),
            ],
            items: [self.problem.items(); 2],
            local_size: LOCAL_SIZE,
        }
    }

    fn verify_plain(&self, output: &[u8]) -> Result<(), Mismatch> {
        self.problem.check(&bytemuck::pod_collect_to_vec::<u8, f32>(output))
    }
}
