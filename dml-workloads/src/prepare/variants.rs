//! Launchers of a workload's kernel, one for each kind of device.

use super::PrepareError;
use super::recipe::Program;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use dml_arenas::launch::CompiledLauncher;
#[cfg(all(feature = "offload", target_os = "linux"))]
use dml_arenas::launch::OffloadLauncher;
use dml_arenas::launch::{Call, ComputeError, HostLauncher};
use dml_core::{DeviceId, Platform};
use dml_scheduler::Kernel;

/// A kernel in the languages of all devices.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(any(feature = "cuda", feature = "opencl")),
    allow(dead_code, reason = "without a framework the host's kernel is all there is")
)]
pub(crate) struct Source {
    /// The name of the kernel, and of the function that offload workers run.
    pub(crate) name: &'static str,
    pub(crate) opencl: Program,
    pub(crate) cuda: Option<Program>,
    /// The options of the compiler for CUDA C.
    pub(crate) cuda_options: &'static str,
    pub(crate) compute: fn(&mut Call<'_>) -> Result<(), ComputeError>,
}

/// Adds a launcher for every device.
pub(crate) fn add(
    mut kernel: Kernel,
    platform: &Platform,
    devices: &[DeviceId],
    source: &Source,
) -> Result<Kernel, PrepareError> {
    for &device in devices {
        kernel = add_one(kernel, platform, device, source)?;
    }
    Ok(kernel)
}

fn add_one(
    kernel: Kernel,
    platform: &Platform,
    device: DeviceId,
    source: &Source,
) -> Result<Kernel, PrepareError> {
    let (desc, workload) = (platform.device_desc(device), source.name);
    let failed = |cause: String| PrepareError::Build { workload, device: desc.name.to_string(), cause };
    if platform.host() == Some(device) {
        let launcher = HostLauncher::by_team(desc.compute_units, source.compute)?;
        return kernel.launchers([(device, launcher)]).map_err(|misfit| failed(misfit.to_string()));
    }
    #[cfg(any(feature = "cuda", feature = "opencl", all(feature = "offload", target_os = "linux")))]
    if let Some(arena) = platform.home(device).map(|home| platform.arena(home)) {
        #[cfg(all(feature = "offload", target_os = "linux"))]
        #[allow(unsafe_code, reason = "a function in a worker's memory is trusted with it")]
        // SAFETY: the scheduler keeps the grants until the fence has ended. The workers' functions are those
        // of `registry`, in safe Rust.
        let worker = unsafe { OffloadLauncher::new(arena, workload) };
        #[cfg(all(feature = "offload", target_os = "linux"))]
        if let Some(launcher) = worker.map_err(|cause| failed(cause.to_string()))? {
            return kernel.launchers([(device, launcher)]).map_err(|misfit| failed(misfit.to_string()));
        }
        #[cfg(feature = "cuda")]
        if let (Some(arena), Some(program)) = (arena.downcast_ref::<dml_arenas::CudaArena>(), source.cuda) {
            let built = arena
                .kernel(program.source, program.kernel, source.cuda_options)
                .map_err(|cause| failed(cause.to_string()))?;
            #[allow(unsafe_code, reason = "a kernel on the device's memory is trusted with it")]
            // SAFETY: as for the kernels in OpenCL C below.
            let launcher = unsafe { CompiledLauncher::new(built) };
            return kernel.launchers([(device, launcher)]).map_err(|misfit| failed(misfit.to_string()));
        }
        #[cfg(feature = "opencl")]
        if let Some(arena) = arena.downcast_ref::<dml_arenas::OpenClArena>() {
            let built = arena
                .kernel(source.opencl.source, source.opencl.kernel, "")
                .map_err(|cause| failed(cause.to_string()))?;
            #[allow(unsafe_code, reason = "a kernel on the machine's own memory is trusted with it")]
            // SAFETY: the kernels of this crate touch only the elements of their items and of the items'
            // footprints, for any contents of the buffers. They skip items past the package's end, which is
            // their last argument. The blocks hold whole buffers, and `Recipe::arguments` and the builder of
            // `steps` make their sizes and the scalars fit each other. The scheduler refuses items for which
            // these buffers have no elements.
            let launcher = unsafe { CompiledLauncher::new(built) };
            return kernel.launchers([(device, launcher)]).map_err(|misfit| failed(misfit.to_string()));
        }
    }
    Err(PrepareError::NoKernel { workload, device: desc.name.to_string() })
}
