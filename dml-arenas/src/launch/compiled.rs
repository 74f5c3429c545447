//! Launchers of kernels that a framework compiles, for each device of the framework.

use crate::compiled::{BuildError, CompiledKernel, CompiledLauncher};
use dml_core::{DeviceId, Platform};

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
    for device in (0..platform.devices().len() as u16).map(DeviceId) {
        if let Some(arena) = platform.home_as::<K::Arena>(device) {
            let kernel = K::build(arena, source, name, options)?;
            // SAFETY: as the caller guarantees.
            launchers.push((device, unsafe { CompiledLauncher::new(kernel) }));
        }
    }
    Ok(launchers)
}
