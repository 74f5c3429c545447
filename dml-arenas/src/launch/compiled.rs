//! Launchers of kernels that a framework compiles, for each device of the framework.

use crate::compiled::{BuildCause, BuildError, CompiledKernel, CompiledLauncher};
use dml_core::internal::sync::Arc;
use dml_core::{DeviceId, Launcher, Platform};

/// Builds a kernel for one device: OpenCL C for an OpenCL device, CUDA C or PTX for a GPU of CUDA. A kernel
/// is a value that is cheap to clone, to be [submitted](Platform::submit) as often as one likes. Each device
/// compiles a source once. For the co-executor, whose launches are parts of a run, there are [`opencl`] and
/// [`cuda`].
///
/// # Examples
/// ```no_run
/// # fn example(platform: &dml_core::Platform) -> Result<(), Box<dyn std::error::Error>> {
/// # use dml_arenas::launch;
/// let device = platform.device("opencl:0")?;
/// let source = "kernel void scale(global const float* from, global float* to, float by, ulong end) {
///     size_t i = get_global_id(0);
///     if (i < end) to[i] = from[i] * by;
/// }";
/// // SAFETY: the kernel touches only the elements of its items, and nothing past the end.
/// let scale = unsafe { launch::kernel(platform, device, source, "scale") }?;
/// let a = platform.buffer_from(vec![1.5_f32; 1000])?;
/// let b = platform.buffer::<f32>(1000).build()?;
/// let n = a.len();
/// platform.submit(device, &scale).read(&a).write(&b).scalar(2.0_f32).scalar(n).items(n)?; // returns at once
/// platform.submit(device, &scale).read(&b).write(&a).scalar(0.5_f32).scalar(n).items(n)?; // behind it
/// assert_eq!(a.read()?[0], 1.5); // waits for both
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// As [`CompiledLauncher::new`]: source is trusted like the program itself.
///
/// # Errors
/// [`BuildError`]. Its cause is [`BuildCause::NoCompiler`] for a device of another framework.
pub unsafe fn kernel(
    platform: &Platform,
    device: DeviceId,
    source: &str,
    name: &str,
) -> Result<Arc<dyn Launcher>, BuildError> {
    #[cfg(feature = "opencl")]
    if let Some(arena) = platform.home_as::<crate::OpenClArena>(device) {
        // SAFETY: as the caller guarantees.
        return Ok(unsafe { launcher(arena.kernel(source, name, "")?, name) });
    }
    #[cfg(feature = "cuda")]
    if let Some(arena) = platform.home_as::<crate::CudaArena>(device) {
        // SAFETY: as the caller guarantees.
        return Ok(unsafe { launcher(arena.kernel(source, name, "")?, name) });
    }
    let (device, missing) = match platform.devices().get(usize::from(device.0)) {
        Some(known) => (
            known.name.clone(),
            "only devices of OpenCL and CUDA compile kernels; others run functions (`launch::host`)",
        ),
        None => (device.to_string().into(), "the platform has no such device"),
    };
    Err(BuildError::new(&device, name, BuildCause::NoCompiler(missing.to_owned())))
}

/// # Safety
/// As [`CompiledLauncher::new`].
unsafe fn launcher(kernel: impl CompiledKernel, name: &str) -> Arc<dyn Launcher> {
    // SAFETY: as the caller guarantees.
    Arc::new(unsafe { CompiledLauncher::new(kernel) }.labelled(name))
}

/// Builds a kernel in OpenCL C for every OpenCL device of a platform, and returns a launcher for each.
///
/// # Safety
/// As [`CompiledLauncher::new`]: source is trusted like the program itself.
///
/// # Errors
/// As [`OpenClArena::package_kernel`](crate::OpenClArena::package_kernel).
#[cfg(feature = "opencl")]
pub unsafe fn opencl(
    platform: &Platform,
    source: &str,
    name: &str,
    options: &str,
) -> Result<Vec<(DeviceId, CompiledLauncher<crate::opencl::OpenClKernel>)>, BuildError> {
    // SAFETY: as the caller guarantees.
    unsafe { launchers(platform, source, name, options) }
}

/// Builds a kernel in CUDA C or PTX for every GPU of a platform, and returns a launcher for each. A thread is
/// a work-item. The last parameter of the kernel may be a `DmlItems`, which receives the items of the
/// package.
///
/// # Safety
/// As [`CompiledLauncher::new`]: source is trusted like the program itself.
///
/// # Errors
/// As [`CudaArena::package_kernel`](crate::CudaArena::package_kernel).
#[cfg(feature = "cuda")]
pub unsafe fn cuda(
    platform: &Platform,
    source: &str,
    name: &str,
    options: &str,
) -> Result<Vec<(DeviceId, CompiledLauncher<crate::cuda::CudaKernel>)>, BuildError> {
    // SAFETY: as the caller guarantees.
    unsafe { launchers(platform, source, name, options) }
}

/// # Safety
/// As [`CompiledLauncher::new`].
unsafe fn launchers<K: CompiledKernel>(
    platform: &Platform,
    source: &str,
    name: &str,
    options: &str,
) -> Result<Vec<(DeviceId, CompiledLauncher<K>)>, BuildError> {
    let mut launchers = Vec::new();
    for device in platform.device_ids() {
        if let Some(arena) = platform.home_as::<K::Arena>(device) {
            let kernel = K::build(arena, source, name, options)?;
            // SAFETY: as the caller guarantees.
            launchers.push((device, unsafe { CompiledLauncher::new(kernel) }.labelled(name)));
        }
    }
    Ok(launchers)
}
