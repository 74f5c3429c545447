//! Kernels of OpenCL devices.

use crate::OpenClArena;
use crate::opencl::{BuildError, Grid, KernelArg, OpenClKernel, may_have_begun};
use dml_core::{
    BufferCopy, DeviceId, Fence, Grants, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform,
    TransferError,
};

/// Launches a kernel of OpenCL C with the whole storage of each buffer. The numbers of its work-items are those of the items.
#[derive(Debug)]
pub struct OpenClLauncher {
    kernel: OpenClKernel,
}

impl OpenClLauncher {
    /// Makes a launcher of a kernel.
    ///
    /// # Safety
    /// 1. With the arguments and items that it will be launched with, the kernel touches only the bytes of its buffers, whatever
    ///    these contain. A launch is padded to whole groups, so work-items past the last item touch nothing. The scheduler asks
    ///    for no more items than the named footprints have bytes for.
    #[must_use]
    pub const unsafe fn new(kernel: OpenClKernel) -> Self {
        Self { kernel }
    }
}

/// Builds a kernel for every OpenCL device of a platform, and makes a launcher of each.
///
/// # Safety
/// As [`OpenClLauncher::new`]: source is trusted like the program itself.
///
/// # Errors
/// As [`OpenClArena::kernel`].
pub unsafe fn opencl(
    platform: &Platform,
    source: &str,
    name: &str,
    options: &str,
) -> Result<Vec<(DeviceId, OpenClLauncher)>, BuildError> {
    let mut launchers = Vec::new();
    for device in (0..platform.devices().len() as u16).map(DeviceId) {
        let arena = platform.home(device).map(|home| platform.arena(home));
        if let Some(arena) = arena.and_then(|arena| arena.downcast_ref::<OpenClArena>()) {
            // SAFETY: the caller answers for the source (1).
            launchers.push((device, unsafe { OpenClLauncher::new(arena.kernel(source, name, options)?) }));
        }
    }
    Ok(launchers)
}

impl OpenClLauncher {
    /// # Safety
    /// As [`OpenClKernel::launch`].
    unsafe fn grid<const D: usize>(
        &self,
        args: &[KernelArg<'_>],
        grid: Grid<D>,
        is_beside: bool,
    ) -> Result<Fence, TransferError> {
        // SAFETY: as the caller answers for.
        unsafe {
            match is_beside {
                true => self.kernel.launch_grid_beside(args, grid),
                false => self.kernel.launch_grid(args, grid),
            }
        }
    }
}

impl Launcher for OpenClLauncher {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        self.kernel.fits(arguments)
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let is_beside = grants.launches_first() && launch.is_independent;
        let mut args = Vec::with_capacity(launch.arguments.len());
        for (index, argument) in launch.arguments.iter().enumerate() {
            args.push(match argument {
                LaunchArg::Buffer { buffer, .. } => {
                    let block = grants.block(buffer).map_err(LaunchError::not_started)?;
                    let none = || format!("argument {index} has no storage: no byte of it was asked for");
                    KernelArg::Block(block.ok_or_else(none).map_err(LaunchError::not_started)?)
                }
                LaunchArg::Scalar(scalar) => KernelArg::Scalar(*scalar),
                LaunchArg::Bytes(bytes) => KernelArg::Bytes(bytes),
                LaunchArg::Local(bytes) => KernelArg::Local(*bytes),
                other => {
                    return Err(LaunchError::not_started(format!("OpenCL takes no {}", other.describe())));
                }
            });
        }
        let (offset, items) = (launch.shape.offset(launch.items), launch.shape.global(launch.items));
        let ([x, y, _], local) = (items, launch.shape.local());
        // SAFETY: whoever made the launcher answers for what the kernel touches (1 of `new`).
        let launched = unsafe {
            match launch.shape.dimensions() {
                1 => {
                    let launch = crate::opencl::Launch { offset: offset[0], items: x, local: local[0] };
                    match is_beside {
                        true => self.kernel.launch_beside(&args, launch),
                        false => self.kernel.launch(&args, launch),
                    }
                }
                2 => {
                    let [offset, items, local] = [offset, [x, y, 1], local].map(|[x, y, _]| [x, y]);
                    self.grid(&args, Grid { offset, items, local }, is_beside)
                }
                _ => self.grid(&args, Grid { offset, items, local }, is_beside),
            }
        };
        launched.map_err(|error| match may_have_begun(&error) {
            true => LaunchError::failed(error),
            false => LaunchError::not_started(error),
        })
    }

    fn copies(&self) -> bool {
        true
    }

    fn copy(&self, copies: &[BufferCopy], grants: &mut Grants) -> Result<Fence, LaunchError> {
        let parts = super::blocks_of(copies, grants).map_err(LaunchError::not_started)?;
        // Of several copies, some may have begun.
        self.kernel.copy(&parts).map_err(LaunchError::failed)
    }
}
