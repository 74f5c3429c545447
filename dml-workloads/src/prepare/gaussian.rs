//! gaussian over buffers.

use super::variants::{self, Code};
use super::{Input, Plain, PlainArgument, PrepareError, Prepared, VerifyError, Workload, filled};
use crate::check::Mismatch;
use crate::gaussian::{
    CUDA_SOURCE, LOCAL_SIZE, OPENCL_KERNEL, OPENCL_SOURCE, PAPER, Problem, SMALL, TINY, host,
};
use crate::picture::Picture;
use dml_arenas::launch::{self, ComputeError, HostView};
use dml_core::{Access, Buffer, DeviceId, Platform, RawBuffer, Scalar};
use dml_scheduler::{Argument, Footprint, Kernel};
use std::ops::Range;
use std::path::Path;

/// The seed of the drawn picture; any other would do.
const SEED: u64 = 0x6A_55;
/// The published filter's edge.
const FILTER: u32 = 61;
const PIXEL_BYTES: u64 = 4;

/// A prepared blur.
#[derive(Debug)]
pub(super) struct Gaussian {
    problem: Problem,
    image: Buffer<[u8; 4]>,
    weights: Buffer<f32>,
    out: Buffer<[u8; 4]>,
    kernel: Kernel,
}

fn problem(input: &Input<'_>) -> Result<Problem, PrepareError> {
    Ok(match *input {
        Input::Tiny => Problem::of_size(TINY, SEED)?,
        Input::Small => Problem::of_size(SMALL, SEED)?,
        Input::Paper => Problem::of_size(PAPER, SEED)?,
        Input::Size(edge) => {
            let workload = Workload::Gaussian;
            let limit = (Picture::LARGEST_PIXELS as f64).sqrt() as u64;
            if edge > limit {
                return Err(PrepareError::Size { workload, size: edge, limit });
            }
            super::memory_for(workload, edge * edge * PIXEL_BYTES * 4)?;
            Problem::generate(edge as u32, edge as u32, FILTER, SEED)?
        }
        Input::Picture(path) => Problem::from_picture(Picture::read(path)?, FILTER)?,
    })
}

/// The kernel on buffers, in the host's memory or in a worker's.
pub(super) fn compute<V: HostView>(
    items: Range<u64>,
    views: &mut [V],
    scalars: &[Scalar],
) -> Result<(), ComputeError> {
    let count = views.len();
    let [image, weights, out] = views else {
        return Err(variants::wrong_buffers(Workload::Gaussian, count));
    };
    let scalar = |index| launch::scalar::<u32>(scalars, index);
    let (width, height, radius) = (scalar(0)?, scalar(1)?, scalar(2)?);
    let first_pixel = image.span().start() / PIXEL_BYTES;
    let (weights, image) = (weights.slice()?, image.slice()?);
    host(items, width, height, radius, weights, image, first_pixel, out.slice_mut()?);
    Ok(())
}

impl Gaussian {
    pub(super) fn prepare(
        platform: &Platform,
        devices: &[DeviceId],
        input: &Input<'_>,
    ) -> Result<Self, PrepareError> {
        let problem = problem(input)?;
        let (width, height, radius) = (problem.width(), problem.height(), problem.radius());
        let image = filled(platform, problem.image())?;
        let weights = filled(platform, problem.weights())?;
        let out = platform.buffer::<[u8; 4]>(problem.items()).build()?;
        // A package reads its own rows and those the filter reaches above and below.
        let rows = Footprint::rows(width.into(), u64::from(width) * PIXEL_BYTES, radius.into());
        let kernel = Kernel::new(Workload::Gaussian.name(), LOCAL_SIZE)
            .argument(Argument::part(&image, Access::ReadOnly, rows))
            .read_all(&weights)
            .write(&out)
            .scalar(width)
            .scalar(height)
            .scalar(radius)
            .end();
        let code = Code {
            workload: Workload::Gaussian,
            host: |items, views, scalars| compute(items, views, scalars),
            source: OPENCL_SOURCE,
            cuda_source: CUDA_SOURCE,
            name: OPENCL_KERNEL,
        };
        let kernel = variants::add(kernel, platform, devices, &code)?;
        Ok(Self { problem, image, weights, out, kernel })
    }
}

impl Prepared for Gaussian {
    fn workload(&self) -> Workload {
        Workload::Gaussian
    }

    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("items", self.problem.items()),
            ("width", self.problem.width().into()),
            ("height", self.problem.height().into()),
            ("filter", u64::from(self.problem.radius()) * 2 + 1),
        ]
    }

    fn items(&self) -> u64 {
        self.problem.items()
    }

    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn inputs(&self) -> Vec<&RawBuffer> {
        vec![self.image.raw(), self.weights.raw()]
    }

    fn output(&self) -> &RawBuffer {
        self.out.raw()
    }

    fn verify(&self) -> Result<(), VerifyError> {
        Ok(self.problem.check(&self.out.read()?)?)
    }

    fn write_picture(&self, path: &Path) -> Result<(), VerifyError> {
        let pixels = self.out.read()?.to_vec();
        Ok(Picture::new(self.problem.width(), self.problem.height(), pixels)?.write(path)?)
    }

    fn plain(&self) -> Plain {
        let problem = &self.problem;
        Plain {
            source: OPENCL_SOURCE,
            kernel: OPENCL_KERNEL,
            arguments: vec![
                PlainArgument::Input(bytemuck::cast_slice(problem.image()).to_vec()),
                PlainArgument::Input(bytemuck::cast_slice(problem.weights()).to_vec()),
                PlainArgument::Output(self.out.raw().len()),
                PlainArgument::U32(problem.width()),
                PlainArgument::U32(problem.height()),
                PlainArgument::U32(problem.radius()),
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
