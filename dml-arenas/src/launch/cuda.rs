//! Kernels of NVIDIA GPUs.

use crate::CudaArena;
use crate::cuda::{BuildError, CudaKernel, KernelArg, may_have_begun};
use dml_core::{
    DeviceId, Fence, Grants, ItemShape, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform,
};

/// Launches a kernel of CUDA C or PTX with the whole storage of each buffer. A thread is an item. `blockIdx` and `gridDim` are those of
/// the whole run ([`CudaArena::package_kernel`]), and a kernel whose last parameter is a `DmlItems` is told its items.
#[derive(Debug)]
pub struct CudaLauncher {
    kernel: CudaKernel,
}

impl CudaLauncher {
    /// Makes a launcher of a kernel.
    ///
    /// # Safety
    /// 1. With the arguments and items that it will be launched with, the kernel touches only the bytes of its buffers, whatever
    ///    contents these have by then. Bytes that it reads hold what the program, other kernels or its own packages wrote there. Bytes
    ///    that it only overwrites hold anything. So an index that is read from a buffer needs no check in the kernel if the program
    ///    writes only indices that are in bounds. A launch is padded to whole blocks of threads, so threads past the last item touch nothing.
    ///    The scheduler asks for no more items than the named footprints have bytes for.
    /// 2. `check_footprints` of dml-scheduler launches it also with the values of each buffer at other places of that
    ///    buffer. A kernel that is checked stays within its buffers then too.
    #[must_use]
    pub const unsafe fn new(kernel: CudaKernel) -> Self {
        Self { kernel }
    }
}

/// Makes a kernel for every CUDA device of a platform, and a launcher of each.
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
            // SAFETY: the caller answers for the source (1).
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
                    // Without a byte that was asked for there is no storage.
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
        // SAFETY: whoever made the launcher answers for what the kernel touches (1 of `new`).
        let launched = unsafe { self.kernel.launch_part(&args, &part) };
        launched.map_err(|error| match may_have_begun(&error) {
            true => LaunchError::failed(error),
            false => LaunchError::not_started(error),
        })
    }
}
