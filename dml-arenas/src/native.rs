//! Types shared by the hand-written programs of all frameworks: their arguments, call counts and errors. The
//! programs themselves are in `opencl::native` and `cuda::native`, next to the arenas they are compared with.

pub(crate) mod host_pages;

use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// An argument of the kernel, with its data.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BaselineArg {
    /// A buffer written before every run.
    Input(Vec<u8>),
    /// A buffer of this many bytes, read after every run.
    Output(usize),
    /// A 32-bit unsigned integer.
    U32(u32),
    /// A 64-bit unsigned integer.
    U64(u64),
    /// A `float`.
    F32(f32),
}

/// The kernel that a baseline runs, with its arguments and device.
#[derive(Clone, Debug)]
pub struct BaselineSpec<'a> {
    /// The index of the device in its framework: the N of `opencl:N` or `cuda:N`.
    pub device: usize,
    /// The number of compute units to use; `None` for all. A CUDA device allows only the number that it has.
    pub limit: Option<u32>,
    /// The source, in the framework's language.
    pub source: &'a str,
    /// The kernel's name in the source.
    pub kernel: &'a str,
    /// The compiler's options.
    pub options: &'a str,
    /// The arguments in order. In CUDA C, a `DmlItems` with all items is appended.
    pub args: Vec<BaselineArg>,
    /// The number of work-items along two dimensions; 1 along the second one for a one-dimensional kernel.
    /// Both are padded to a multiple of `local`, so the kernel must check its bounds.
    pub items: [usize; 2],
    /// The size of a work-group along two dimensions; zero leaves it open. The driver then chooses in OpenCL.
    /// CUDA's blocks then have up to 256 threads.
    pub local: [usize; 2],
}

/// A kernel with its buffers, ready to run and be timed.
pub trait HandWritten: fmt::Debug {
    /// Transfers the inputs to the device, runs the kernel over all work-items, transfers the outputs back,
    /// and waits once for all of it. Returns the elapsed time.
    ///
    /// # Errors
    /// [`BaselineError::Call`] if a call fails, and in a fork.
    fn run(&mut self) -> Result<Duration, BaselineError>;

    /// Returns the bytes of the `index`-th output buffer, as of the last successful run.
    ///
    /// # Panics
    /// If the arguments have fewer outputs.
    fn output(&self, index: usize) -> &[u8];
}

/// The number of calls that a program made, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calls {
    /// Buffers created with storage of their own.
    pub alloc: u64,
    /// Buffers created over the program's memory.
    pub bind: u64,
    /// Buffers mapped for the host.
    pub map: u64,
    /// Buffers unmapped.
    pub unmap: u64,
    /// Reads, device to host.
    pub read: u64,
    /// Writes, host to device.
    pub write: u64,
    /// Kernels launched.
    pub kernel: u64,
}

/// Why a hand-written program could not be created or run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BaselineError {
    /// The device cannot be used.
    #[error("{device} cannot be used: {reason}")]
    Device {
        /// The device's name.
        device: String,
        /// The reason.
        reason: String,
    },
    /// The kernel could not be built: the compiler rejected the source, or there is no compiler.
    #[error("building kernel {kernel} failed:\n{log}")]
    Build {
        /// The kernel's name.
        kernel: String,
        /// The compiler's log.
        log: String,
    },
    /// A call failed.
    #[error("{framework} failed: {message} (code {code})")]
    Call {
        /// The framework's name.
        framework: &'static str,
        /// The framework's error code.
        code: i64,
        /// A description of the code.
        message: String,
    },
}
