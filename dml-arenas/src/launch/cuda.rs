//! Launchers of kernels on NVIDIA GPUs.

use crate::CudaArena;
use crate::cuda::{BuildError, CudaKernel, KernelArg, may_have_begun};
use dml_core::{
    DeviceId, Fence, Grants, ItemShape, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform,
};

/// A launcher of a kernel in CUDA C or PTX. A thread is a work-item.
///
/// The kernel receives the whole storage of each buffer. `blockIdx` and `gridDim` are those of the whole run:
/// see [`CudaArena::package_kernel`]. A kernel whose last parameter is a `DmlItems` receives its items there.
#[derive(Debug)]
pub struct CudaLauncher {
    kernel: CudaKernel,
}

impl CudaLauncher {
    /// Creates a launcher of a kernel.
    ///
    /// # Safety
    /// 1. With the arguments and items of its launches, the kernel touches only the bytes of its buffers,
    ///    whatever their contents at that time. Bytes that it reads were written by the program, other
    ///    kernels or its own packages. Bytes that it only overwrites have arbitrary contents. So the kernel
    ///    need not check an index from a buffer if the program writes only indices that are in bounds. A
    ///    launch is padded to whole blocks of threads, so threads past the last item must touch nothing. The
    ///    scheduler requests no more items than the named footprints have bytes for.
    /// 2. `check_footprints` of dml-scheduler also launches the kernel with the values of each buffer at
    ///    other places of that buffer. A kernel that is checked stays within its buffers then, too.
    #[must_use]
    pub const unsafe fn new(kernel: CudaKernel) -> Self {
        Self { kernel }
    }
}

/// Builds a kernel for every CUDA device of a platform, and returns a launcher for each.
///
/// # Safety
/// As [`CudaLauncher::new`]: source is trusted like the program itself.
///
/// # Errors
/// As [`CudaArena::package_kernel`].
pub unsafe fn cuda(
    platform: &Platform,
    source: &str,
    name: &str,
    options: &str,
) -> Result<Vec<(DeviceId, CudaLauncher)>, BuildError> {
    let mut launchers = Vec::new();
    for device in (0..platform.devices().len() as u16).map(DeviceId) {
        let arena = platform.home(device).map(|home| platform.arena(home));
        if let Some(arena) = arena.and_then(|arena| arena.downcast_ref::<CudaArena>()) {
            // SAFETY: the caller guarantees what the kernel touches (1 and 2 of `new`).
            launchers
                .push((device, unsafe { CudaLauncher::new(arena.package_kernel(source, name, options)?) }));
        }
    }
    Ok(launchers)
}

impl Launcher for CudaLauncher {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        self.kernel.fits(arguments)
    }

    fn check_groups(&self, shape: &ItemShape) -> Result<(), Misfit> {
        self.kernel.check_groups(shape)
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let mut part = *launch;
        part.is_independent &= grants.launches_first();
        let mut args = Vec::with_capacity(launch.arguments.len());
        for argument in launch.arguments {
            args.push(match argument {
                LaunchArg::Buffer { buffer, .. } => {
                    // A buffer of which no byte was requested has no storage.
                    let block = grants.block(buffer).map_err(LaunchError::not_started)?;
                    block.map_or(KernelArg::Nothing, KernelArg::Block)
                }
                LaunchArg::Scalar(scalar) => KernelArg::Scalar(*scalar),
                LaunchArg::Bytes(bytes) => KernelArg::Bytes(bytes),
                LaunchArg::Local(bytes) => KernelArg::Local(*bytes),
                other => {
                    return Err(LaunchError::not_started(format!("CUDA takes no {}", other.describe())));
                }
            });
        }
        // SAFETY: the creator of the launcher guarantees what the kernel touches (1 of `new`).
        let launched = unsafe { self.kernel.launch_part(&args, &part) };
        launched.map_err(|error| match may_have_begun(&error) {
            true => LaunchError::failed(error),
            false => LaunchError::not_started(error),
        })
    }
}
