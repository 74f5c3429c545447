//! How each kind of device runs a workload's kernel.

use super::{PrepareError, Workload};
#[cfg(feature = "cuda")]
use dml_arenas::launch::CudaLauncher;
#[cfg(feature = "opencl")]
use dml_arenas::launch::OpenClLauncher;
use dml_arenas::launch::{ComputeError, HostLauncher, Part};
#[cfg(all(feature = "offload", target_os = "linux"))]
use dml_arenas::{launch::OffloadLauncher, offload};
use dml_core::{DeviceId, Platform, Scalar};
use dml_scheduler::Kernel;
use std::ops::Range;

/// How the host computes a package's items, given its parts of the buffers and the scalars, each in their order.
pub(super) type HostKernel = fn(Range<u64>, &mut [Part<'_>], &[Scalar]) -> Result<(), ComputeError>;

/// The error of a call with another number of buffers.
pub(super) fn wrong_buffers(workload: Workload, count: usize) -> ComputeError {
    format!("{workload} was called with {count} buffers").into()
}

/// The code of a workload's kernel.
#[cfg_attr(
    not(all(feature = "cuda", feature = "opencl")),
    allow(dead_code, reason = "without a framework its part is of no use")
)]
pub(super) struct Code {
    pub(super) workload: Workload,
    pub(super) host: HostKernel,
    /// In OpenCL C.
    pub(super) source: &'static str,
    /// In CUDA C.
    pub(super) cuda_source: &'static str,
    pub(super) name: &'static str,
}

/// Adds a launcher for every device.
pub(super) fn add(
    mut kernel: Kernel,
    platform: &Platform,
    devices: &[DeviceId],
    code: &Code,
) -> Result<Kernel, PrepareError> {
    for &device in devices {
        kernel = add_one(kernel, platform, device, code)?;
    }
    Ok(kernel)
}

fn add_one(
    kernel: Kernel,
    platform: &Platform,
    device: DeviceId,
    code: &Code,
) -> Result<Kernel, PrepareError> {
    let (desc, workload) = (&platform.devices()[usize::from(device.0)], code.workload);
    let failed = |cause: String| PrepareError::Build { workload, device: desc.name.to_string(), cause };
    if platform.host() == Some(device) {
        let compute = code.host;
        let launcher = HostLauncher::new(desc.units, move |items, parts, values| {
            compute(items, parts, values.scalars())
        });
        let launcher =
            launcher.map_err(|error| PrepareError::Threads { threads: error.threads, cause: error.cause })?;
        return kernel.launchers([(device, launcher)]).map_err(|misfit| failed(misfit.to_string()));
    }
    #[cfg(any(feature = "cuda", feature = "opencl", all(feature = "offload", target_os = "linux")))]
    if let Some(arena) = platform.home(device).map(|home| platform.arena(home)) {
        #[cfg(all(feature = "offload", target_os = "linux"))]
        #[allow(unsafe_code, reason = "a function in a worker's memory is trusted with it")]
        // SAFETY: the scheduler keeps the grants; the workers' functions are those of `registry`, in safe Rust.
        let worker = unsafe { OffloadLauncher::new(arena, workload.name()) };
        #[cfg(all(feature = "offload", target_os = "linux"))]
        if let Some(launcher) = worker.map_err(|cause| failed(cause.to_string()))? {
            return kernel.launchers([(device, launcher)]).map_err(|misfit| failed(misfit.to_string()));
        }
        #[cfg(feature = "cuda")]
        if let Some(arena) = arena.downcast_ref::<dml_arenas::CudaArena>() {
            let built =
                arena.kernel(code.cuda_source, code.name, "").map_err(|cause| failed(cause.to_string()))?;
            #[allow(unsafe_code, reason = "a kernel on the device's memory is trusted with it")]
            // SAFETY: as of those in OpenCL C below.
            let launcher = unsafe { CudaLauncher::new(built) };
            return kernel.launchers([(device, launcher)]).map_err(|misfit| failed(misfit.to_string()));
        }
        #[cfg(feature = "opencl")]
        if let Some(arena) = arena.downcast_ref::<dml_arenas::OpenClArena>() {
            let built =
                arena.kernel(code.source, code.name, "").map_err(|cause| failed(cause.to_string()))?;
            #[allow(unsafe_code, reason = "a kernel on the machine's own memory is trusted with it")]
            // SAFETY: the kernels of this crate touch the elements of their items and of the footprints of these alone, whatever
            // these contain, and return where an item is past the package's end, which is their last argument. The blocks hold
            // whole buffers, whose sizes and scalars `prepare` has made to fit each other. The scheduler refuses items that these
            // buffers have no elements for.
            let launcher = unsafe { OpenClLauncher::new(built) };
            return kernel.launchers([(device, launcher)]).map_err(|misfit| failed(misfit.to_string()));
        }
    }
    Err(PrepareError::NoKernel { workload, device: desc.name.to_string() })
}

/// As [`HostKernel`], in a worker.
#[cfg(all(feature = "offload", target_os = "linux"))]
type WorkerKernel = fn(Range<u64>, &mut [offload::View<'_>], &[Scalar]) -> Result<(), ComputeError>;

/// What a worker runs for a workload: the host's kernel, on the worker's threads.
#[cfg(all(feature = "offload", target_os = "linux"))]
pub(super) fn in_worker(
    compute: WorkerKernel,
) -> impl Fn(&mut offload::Call<'_>) -> Result<(), offload::CallError> + Send + Sync + 'static {
    move |call| {
        let scalars = call.scalars().to_vec();
        compute(call.items(), call.views(), &scalars)
    }
}
