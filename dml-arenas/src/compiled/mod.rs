//! What kernels that a framework compiles have in common: their arguments and work-items, why one cannot be
//! built, and the caches and limits behind them.
//!
//! ```text
//!   source ──▶ source (what it includes, defines) ──▶ programs (compiled once) ──▶ a kernel
//!   KernelArg, Grid ──▶ groups (sizes of groups) ──▶ its launch ──▶ beside (queues for concurrent kernels)
//! ```

mod beside;
mod error;
mod grid;
mod groups;
mod programs;
mod source;

pub(crate) use beside::Beside;
pub use error::{BuildCause, BuildError};
pub use grid::Grid;
pub(crate) use groups::Limits;
pub(crate) use programs::Programs;
#[cfg(feature = "opencl")]
pub(crate) use source::has_procedure;
pub(crate) use source::{defines, includes, opts_out};

use dml_core::internal::sync::Arc;
use dml_core::{
    Arena, BlockRef, Fence, Grants, ItemShape, Launch, LaunchArg, LaunchError, Launcher, Misfit, Scalar,
    TransferError,
};
use smallvec::SmallVec;
use std::fmt;

/// One argument of a compiled kernel.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum KernelArg<'a> {
    /// A pointer to a whole block of the kernel's arena: in OpenCL C `__global` or `__constant`.
    Block(&'a BlockRef),
    /// A pointer to no bytes: the null pointer.
    Nothing,
    /// A scalar of any width.
    Scalar(Scalar),
    /// A value of any type, as its bytes.
    Bytes(&'a [u8]),
    /// Local memory of this many bytes for each group. In OpenCL C it is a `__local` pointer. In CUDA C it is
    /// `extern __shared__` memory and no parameter of the kernel; the sizes of several add up.
    Local(u64),
}

/// A kernel that a framework compiled for one arena.
pub trait CompiledKernel: fmt::Debug + Send + Sync + Sized + 'static {
    /// The arena that builds the kernel.
    type Arena: Arena;
    /// The framework's name.
    const FRAMEWORK: &'static str;

    /// Builds a kernel for launches that are parts of a run.
    ///
    /// # Errors
    /// [`BuildError`].
    fn build(arena: &Self::Arena, source: &str, name: &str, options: &str) -> Result<Self, BuildError>;

    /// Checks arguments against the kernel's signature.
    ///
    /// # Errors
    /// [`Misfit`], with what the kernel takes and what was given.
    fn fits(&self, arguments: &[LaunchArg]) -> Result<(), Misfit>;

    /// Checks the size of a work-group.
    ///
    /// # Errors
    /// [`Misfit::Groups`], with the reason.
    fn check_groups(&self, shape: &ItemShape) -> Result<(), Misfit>;

    /// Starts the kernel on a part of a run.
    ///
    /// # Safety
    /// With these arguments and items, the kernel touches only the bytes of its arguments' blocks.
    ///
    /// # Errors
    /// [`TransferError`] of the framework.
    unsafe fn launch_part(&self, args: &[KernelArg<'_>], part: &Launch<'_>) -> Result<Fence, TransferError>;

    /// Returns whether a kernel may have run although its launch failed with this error.
    fn may_have_begun(error: &TransferError) -> bool;
}

/// A launcher of a compiled kernel.
///
/// The kernel receives the whole storage of each buffer. Its work-items and groups are numbered within the
/// whole run.
///
/// # Examples
/// ```no_run
/// # #[cfg(feature = "opencl")]
/// # fn example(platform: &dml_core::Platform) -> Result<(), Box<dyn std::error::Error>> {
/// # use dml_arenas::launch;
/// # use dml_scheduler::{Coexecutor, Kernel};
/// let source = "kernel void twice(global float* a, ulong end) {
///     if (get_global_id(0) < end) a[get_global_id(0)] *= 2;
/// }";
/// // SAFETY: the kernel touches only the elements of its items, and nothing past the end.
/// let opencl = unsafe { launch::opencl(platform, source, "twice", "") }?; // one for each OpenCL device
/// let data = platform.buffer_from(vec![1.5_f32; 1000])?;
/// let kernel = Kernel::new("twice", 64).read_write(&data).end().launchers(opencl)?;
/// Coexecutor::new(platform).run(&kernel, data.len())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CompiledLauncher<K> {
    kernel: K,
    label: Arc<str>,
}

impl<K: CompiledKernel> CompiledLauncher<K> {
    /// Creates a launcher of a kernel.
    ///
    /// # Safety
    /// 1. With the arguments and items of its launches, the kernel touches only the bytes of its buffers,
    ///    whatever their contents at that time. Bytes that it reads were written by the program, other
    ///    kernels or its own packages. Bytes that it only overwrites have arbitrary contents. So the kernel
    ///    need not check an index from a buffer if the program writes only indices that are in bounds. A
    ///    launch is padded to whole work-groups, so work-items past the last item must touch nothing. The
    ///    scheduler requests no more items than the named footprints have bytes for.
    /// 2. `check_footprints` of dml-scheduler also launches the kernel with the values of each buffer at
    ///    other places of that buffer. A kernel that is checked stays within its buffers then, too.
    #[must_use]
    pub unsafe fn new(kernel: K) -> Self {
        Self { kernel, label: "a kernel".into() }
    }

    /// Sets the name of the kernel, for errors.
    #[must_use]
    pub fn labelled(self, label: &str) -> Self {
        Self { label: label.into(), ..self }
    }
}

impl<K: CompiledKernel> Launcher for CompiledLauncher<K> {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        self.kernel.fits(arguments)
    }

    fn check_groups(&self, shape: &ItemShape) -> Result<(), Misfit> {
        self.kernel.check_groups(shape)
    }

    fn label(&self) -> Arc<str> {
        self.label.clone()
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn follows_copies(&self) -> bool {
        true
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let mut part = *launch;
        part.is_independent &= grants.launches_first();
        let mut args = SmallVec::<[KernelArg<'_>; 8]>::new();
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
                    let (framework, other) = (K::FRAMEWORK, other.describe());
                    return Err(LaunchError::not_started(format!("{framework} takes no {other}")));
                }
            });
        }
        // SAFETY: the creator of the launcher guarantees what the kernel touches (1 of `new`).
        let launched = unsafe { self.kernel.launch_part(&args, &part) };
        launched.map_err(|error| match K::may_have_begun(&error) {
            true => LaunchError::failed(error),
            false => LaunchError::not_started(error),
        })
    }
}
