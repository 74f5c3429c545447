//! Steps of a stencil of five points, written against OpenCL.

use super::{ByHandError, Timed};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_GPU, Device};
use opencl3::kernel::{ExecuteKernel, Kernel};
use opencl3::memory::{Buffer, CL_MEM_READ_WRITE};
use opencl3::program::Program;
use opencl3::types::CL_BLOCKING;
use std::ptr::null_mut;
use std::time::Instant;

/// Makes steps on a grid of `n * n` floats. Returns the time of each of `runs` runs with the last grid.
///
/// # Errors
/// That of OpenCL.
pub fn stencil2d(
    device: &Device,
    source: &str,
    n: usize,
    steps: u64,
    first: &[f32],
    runs: u32,
) -> Result<Vec<Timed>, ByHandError> {
    let context = Context::from_device(device)?;
    // SAFETY: a live context and its own device.
    let queue = unsafe { CommandQueue::create(&context, device.id(), 0) }?;
    let program = Program::create_and_build_from_source(&context, source, "")
        .map_err(|log| ByHandError::Build { kernel: "stencil".to_owned(), log })?;
    // The kernels for both compute four rows of a column.
    let is_gpu = device.dev_type()? & CL_DEVICE_TYPE_GPU != 0;
    let (name, local) = if is_gpu { ("stencil_local", [32, 4]) } else { ("stencil_tiled", [256, 1]) };
    let global = [n.next_multiple_of(local[0]), n.div_ceil(4).next_multiple_of(local[1])];
    let kernel = Kernel::create(&program, name)?;
    // SAFETY: a live context, and no memory of the host.
    let [mut one, mut other] = unsafe {
        [
            Buffer::<f32>::create(&context, CL_MEM_READ_WRITE, n * n, null_mut())?,
            Buffer::<f32>::create(&context, CL_MEM_READ_WRITE, n * n, null_mut())?,
        ]
    };
    let mut timed = Vec::new();
    for _ in 0..runs {
        let mut result = vec![f32::NAN; n * n];
        let begun = Instant::now();
        // SAFETY: `first` lives until the queue has ended.
        unsafe { queue.enqueue_write_buffer(&mut one, CL_BLOCKING, 0, first, &[]) }?;
        for _ in 0..steps {
            // SAFETY: the arguments are those of the kernel, which stays within the grids.
            unsafe {
                ExecuteKernel::new(&kernel)
                    .set_arg(&one)
                    .set_arg(&other)
                    .set_arg(&(n as u32))
                    .set_arg(&(n as u32))
                    .set_global_work_sizes(&global)
                    .set_local_work_sizes(&local)
                    .enqueue_nd_range(&queue)?;
            }
            std::mem::swap(&mut one, &mut other);
        }
        // SAFETY: the call blocks until `result` is filled.
        unsafe { queue.enqueue_read_buffer(&one, CL_BLOCKING, 0, &mut result, &[]) }?;
        timed.push((begun.elapsed(), result));
    }
    Ok(timed)
}
