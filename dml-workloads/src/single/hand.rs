//! The product of two matrices without DML.

use super::SingleError;
use crate::by_hand::{HostMemory, Program};
use crate::matmul::{self, Problem};
use crate::prepare::{Input, Recipe};
use dml_arenas::launch::Team;
use dml_core::{DeviceId, Platform};
use std::time::{Duration, Instant};

/// The form of a hand-written program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A call of the host's kernel, on this number of threads.
    Threads(u32),
    /// Plain OpenCL or CUDA, on this device.
    Device(DeviceId),
}

/// A program and its data, ready to run.
#[derive(Debug)]
pub(super) enum Hand {
    Threads { team: Team, problem: Problem, out: Vec<f32> },
    Device(Program),
}

impl Hand {
    /// Makes the matrices that [`Workload::Matmul`](crate::prepare::Workload::Matmul) has for this edge,
    /// opens the device and builds the kernel.
    pub(super) fn new(platform: &Platform, form: Form, edge: u64) -> Result<Self, SingleError> {
        let problem = Problem::of(&Input::Size(edge))?;
        match form {
            Form::Threads(threads) => {
                let team = Team::new(threads)
                    .map_err(|error| SingleError::Threads { threads, cause: error.cause })?;
                Ok(Self::Threads { team, out: vec![f32::NAN; problem.a().len()], problem })
            }
            Form::Device(device) => {
                let program = Program::of(&problem, platform, device, HostMemory::Suited)?;
                Ok(Self::Device(program.expect("the product has a kernel in both languages")))
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
