//! The product of two matrices without DML.

use super::SingleError;
use crate::matmul::{self, Problem};
use crate::prepare::{Input, Recipe};
#[cfg(feature = "cuda")]
use dml_arenas::cuda;
use dml_arenas::launch::Team;
use dml_arenas::native::{BaselineArg, BaselineSpec, HandWritten};
use dml_arenas::opencl;
use std::time::{Duration, Instant};

/// The form of a hand-written program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A call of the host's kernel, on this number of threads.
    Threads(u32),
    /// Plain OpenCL, on the device of this number.
    OpenCl(usize),
    /// The plain CUDA driver, on the device of this number.
    #[cfg(feature = "cuda")]
    Cuda(usize),
}

/// A program and its data, ready to run.
#[derive(Debug)]
pub(super) enum Hand {
    Threads { team: Team, problem: Problem, out: Vec<f32> },
    Device(Box<dyn HandWritten>),
}

impl Hand {
    /// Makes the matrices that [`Workload::Matmul`](crate::prepare::Workload::Matmul) has for this edge,
    /// opens the device and builds the kernel.
    pub(super) fn new(form: Form, edge: u64) -> Result<Self, SingleError> {
        let problem = Problem::of(&Input::Size(edge))?;
        match form {
            Form::Threads(threads) => {
                let team = Team::new(threads)
                    .map_err(|error| SingleError::Threads { threads, cause: error.cause })?;
                Ok(Self::Threads { team, out: vec![f32::NAN; problem.a().len()], problem })
            }
            Form::OpenCl(device) => {
                let spec = spec(device, matmul::OPENCL_SOURCE, &problem);
                Ok(Self::Device(Box::new(opencl::native::Baseline::suited(spec)?)))
            }
            #[cfg(feature = "cuda")]
            Form::Cuda(device) => {
                let spec = spec(device, matmul::CUDA_SOURCE, &problem);
                Ok(Self::Device(Box::new(cuda::native::Baseline::suited(spec)?)))
            }
        }
    }

    /// Runs once, from inputs in the host's memory to a result that the host can read. Returns the duration.
    pub(super) fn run(&mut self) -> Result<Duration, SingleError> {
        match self {
            Self::Threads { team, problem, out } => {
                // Freshly written and wrong, like the output before a run on DML.
                out.fill(f32::NAN);
                let (edge, a, b) = (problem.items(), problem.a(), problem.b());
                let begun = Instant::now();
                matmul::host(team, 0..edge, edge, a, b, out);
                Ok(begun.elapsed())
            }
            Self::Device(program) => Ok(program.run()?),
        }
    }

    /// Returns the result of the last run.
    pub(super) fn output(&self) -> &[f32] {
        match self {
            Self::Threads { out, .. } => out,
            Self::Device(program) => bytemuck::cast_slice(program.output(0)),
        }
    }
}

/// Describes the product on the device of this number, with the kernel in the language of its framework.
fn spec(device: usize, source: &'static str, problem: &Problem) -> BaselineSpec<'static> {
    let input = |matrix: &[f32]| BaselineArg::Input(bytemuck::cast_slice(matrix).to_vec());
    let edge = problem.items();
    BaselineSpec {
        device,
        limit: None,
        source,
        kernel: matmul::OPENCL_KERNEL,
        options: "",
        args: vec![
            input(problem.a()),
            input(problem.b()),
            BaselineArg::Output(size_of_val(problem.a())),
            BaselineArg::U32(edge as u32),
            BaselineArg::U64(edge),
        ],
        items: [edge as usize; 2],
        local: matmul::LOCAL_SIZE.map(|size| size as usize),
    }
}
