//! The product of two square matrices, written against OpenCL.

use super::{ByHandError, Timed};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_GPU, Device};
use opencl3::kernel::{ExecuteKernel, Kernel};
use opencl3::memory::{Buffer, CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY};
use opencl3::program::Program;
use opencl3::types::CL_BLOCKING;
use std::ptr::null_mut;
use std::time::Instant;

/// Multiplies matrices of `n * n` floats. Returns the time of each of `runs` runs with the product.
///
/// # Errors
/// That of OpenCL.
pub fn matmul(
    device: &Device,
    source: &str,
    n: usize,
    [a, b]: [&[f32]; 2],
    runs: u32,
) -> Result<Vec<Timed>, ByHandError> {
    let context = Context::from_device(device)?;
    // SAFETY: a live context and its own device.
    let queue = unsafe { CommandQueue::create(&context, device.id(), 0) }?;
    let program = Program::create_and_build_from_source(&context, source, "")
        .map_err(|log| ByHandError::Build { kernel: "matmul".to_owned(), log })?;
    let is_gpu = device.dev_type()? & CL_DEVICE_TYPE_GPU != 0;
    let (name, tile, local) =
        if is_gpu { ("matmul_local", [4, 4], [16, 16]) } else { ("matmul_tiled", [16, 8], [1, 1]) };
    let global = [0, 1].map(|axis| n.div_ceil(tile[axis]).next_multiple_of(local[axis]));
    let kernel = Kernel::create(&program, name)?;
    // SAFETY: a live context, and no memory of the host.
    let (mut on_a, mut on_b, on_c) = unsafe {
        (
            Buffer::<f32>::create(&context, CL_MEM_READ_ONLY, n * n, null_mut())?,
            Buffer::<f32>::create(&context, CL_MEM_READ_ONLY, n * n, null_mut())?,
            Buffer::<f32>::create(&context, CL_MEM_WRITE_ONLY, n * n, null_mut())?,
        )
    };
    let mut timed = Vec::new();
    for _ in 0..runs {
        let mut c = vec![f32::NAN; n * n];
        let begun = Instant::now();
        // SAFETY: both calls block until the matrices are copied.
        unsafe {
            queue.enqueue_write_buffer(&mut on_a, CL_BLOCKING, 0, a, &[])?;
            queue.enqueue_write_buffer(&mut on_b, CL_BLOCKING, 0, b, &[])?;
        }
        // SAFETY: the arguments are those of the kernel, which stays within the matrices.
        unsafe {
            ExecuteKernel::new(&kernel)
                .set_arg(&on_a)
                .set_arg(&on_b)
                .set_arg(&on_c)
                .set_arg(&(n as u32))
                .set_global_work_sizes(&global)
                .set_local_work_sizes(&local)
                .enqueue_nd_range(&queue)?;
        }
        // SAFETY: the call blocks until `c` is filled.
        unsafe { queue.enqueue_read_buffer(&on_c, CL_BLOCKING, 0, &mut c, &[]) }?;
        timed.push((begun.elapsed(), c));
    }
    Ok(timed)
}
