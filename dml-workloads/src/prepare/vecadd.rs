//! vecadd over buffers.

use super::variants::{self, Code};
use super::{Input, Plain, PlainArgument, PrepareError, Prepared, VerifyError, Workload, filled};
use crate::check::Mismatch;
use crate::vecadd::{
    CUDA_SOURCE, LOCAL_SIZE, OPENCL_KERNEL, OPENCL_SOURCE, PAPER, Problem, SMALL, Size, TINY, host,
};
use dml_arenas::launch::{ComputeError, HostView};
use dml_core::{Buffer, DeviceId, Platform, RawBuffer, Scalar};
use dml_scheduler::Kernel;
use std::ops::Range;

/// The seed of the inputs; any other would do.
const SEED: u64 = 0xADD;
/// The most items: three vectors of them still fit an address.
const LARGEST_ITEMS: u64 = 1 << 40;

/// A prepared addition.
#[derive(Debug)]
pub(super) struct Vecadd {
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
    _scalars: &[Scalar],
) -> Result<(), ComputeError> {
    let count = views.len();
    let [a, b, out] = views else { return Err(variants::wrong_buffers(Workload::Vecadd, count)) };
    host(items, a.slice()?, b.slice()?, out.slice_mut()?);
    Ok(())
}

impl Vecadd {
    pub(super) fn prepare(
        platform: &Platform,
        devices: &[DeviceId],
        input: &Input<'_>,
    ) -> Result<Self, PrepareError> {
        let workload = Workload::Vecadd;
        let size = match *input {
            Input::Tiny => TINY,
            Input::Small => SMALL,
            Input::Paper => PAPER,
            Input::Size(items) if items > LARGEST_ITEMS => {
                return Err(PrepareError::Size { workload, size: items, limit: LARGEST_ITEMS });
            }
            Input::Size(items) => Size { items },
            Input::Picture(_) => return Err(PrepareError::NoPicture { workload }),
        };
        super::memory_for(workload, size.items.saturating_mul(5 * size_of::<f32>() as u64))?;
        let problem = Problem::generate(size, SEED);
        let a = filled(platform, problem.a())?;
        let b = filled(platform, problem.b())?;
        let out = platform.buffer::<f32>(problem.items()).build()?;
        let kernel = Kernel::new(workload.name(), LOCAL_SIZE).read(&a).read(&b).write(&out).end();
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

impl Prepared for Vecadd {
    fn workload(&self) -> Workload {
        Workload::Vecadd
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
                PlainArgument::U64(self.problem.items()),
            ],
            items: [self.items(), 1],
            local_size: [LOCAL_SIZE, 1],
        }
    }

    fn verify_plain(&self, output: &[u8]) -> Result<(), Mismatch> {
        self.problem.check(&bytemuck::pod_collect_to_vec::<u8, f32>(output))
    }
}
