//! Steps of bodies that attract each other, written against OpenCL.

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

/// Makes steps of bodies, whose positions and velocities have four floats each. Returns the time of each of
/// `runs` runs with the last positions.
///
/// # Errors
/// That of OpenCL.
pub fn nbody(
    device: &Device,
    source: &str,
    steps: u64,
    [softening, dt]: [f32; 2],
    [positions, velocities]: [&[f32]; 2],
    runs: u32,
) -> Result<Vec<Timed>, ByHandError> {
    let context = Context::from_device(device)?;
    // SAFETY: a live context and its own device.
    let queue = unsafe { CommandQueue::create(&context, device.id(), 0) }?;
    let program = Program::create_and_build_from_source(&context, source, "")
        .map_err(|log| ByHandError::Build { kernel: "nbody".to_owned(), log })?;
    let is_gpu = device.dev_type()? & CL_DEVICE_TYPE_GPU != 0;
    let (name, tile, local) = if is_gpu { ("nbody_local", 1, 256) } else { ("nbody_tiled", 16, 4) };
    let bodies = positions.len() / 4;
    let global = bodies.div_ceil(tile).next_multiple_of(local);
    let kernel = Kernel::create(&program, name)?;
    let allocate = || {
        // SAFETY: a live context, and no memory of the host.
        unsafe { Buffer::<f32>::create(&context, CL_MEM_READ_WRITE, 4 * bodies, null_mut()) }
    };
    let (mut at, mut next_at) = (allocate()?, allocate()?);
    let (mut moving, mut next_moving) = (allocate()?, allocate()?);
    let mut timed = Vec::new();
    for _ in 0..runs {
        let mut result = vec![f32::NAN; 4 * bodies];
        let begun = Instant::now();
        // SAFETY: both calls block until the bodies are copied.
        unsafe {
            queue.enqueue_write_buffer(&mut at, CL_BLOCKING, 0, positions, &[])?;
            queue.enqueue_write_buffer(&mut moving, CL_BLOCKING, 0, velocities, &[])?;
        }
        for _ in 0..steps {
            // SAFETY: the arguments are those of the kernel, which stays within the bodies.
            unsafe {
                ExecuteKernel::new(&kernel)
                    .set_arg(&at)
                    .set_arg(&moving)
                    .set_arg(&next_at)
                    .set_arg(&next_moving)
                    .set_arg(&(bodies as u32))
                    .set_arg(&softening)
                    .set_arg(&dt)
                    .set_global_work_size(global)
                    .set_local_work_size(local)
                    .enqueue_nd_range(&queue)?;
            }
            std::mem::swap(&mut at, &mut next_at);
            std::mem::swap(&mut moving, &mut next_moving);
        }
        // SAFETY: the call blocks until `result` is filled.
        unsafe { queue.enqueue_read_buffer(&at, CL_BLOCKING, 0, &mut result, &[]) }?;
        timed.push((begun.elapsed(), result));
    }
    Ok(timed)
}
