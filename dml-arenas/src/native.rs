//! What programs that are written by hand against a framework have in common, whichever it is: what they are given, what is
//! counted of them, and why they fail. The programs themselves are beside the arenas that they are compared with:
//! `opencl::native` and `cuda::native`.

pub(crate) mod host_pages;

use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// One argument of the kernel, with its data.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BaselineArg {
    /// A buffer written before every run.
    Input(Vec<u8>),
    /// A buffer of this many bytes, read after every run.
    Output(usize),
    /// An unsigned number of 32 bits.
    U32(u32),
    /// An unsigned number of 64 bits.
    U64(u64),
    /// A `float`.
    F32(f32),
}

/// What a baseline runs, and on which device.
#[derive(Clone, Debug)]
pub struct BaselineSpec<'a> {
    /// The number of the device among those of its framework: the N of `opencl:N` or `cuda:N`.
    pub device: usize,
    /// The number of compute units to use; `None` for all. A CUDA device has all of its own or is refused.
    pub limit: Option<u32>,
    /// The source, in the framework's language.
    pub source: &'a str,
    /// The kernel's name in the source.
    pub kernel: &'a str,
    /// The compiler's options.
    pub options: &'a str,
    /// The arguments in order. In CUDA C the items follow as the last one.
    pub args: Vec<BaselineArg>,
    /// The number of work-items, along one or two dimensions; one along the second if there is one dimension only. It is
    /// padded to a multiple of `local`, so the kernel must check its bound.
    pub items: [usize; 2],
    /// The size of a work-group; zero leaves it to the driver. Along one dimension it is cut to what the kernel allows.
    pub local: [usize; 2],
}

/// A kernel with its buffers, ready to be run and timed.
pub trait HandWritten: fmt::Debug {
    /// Hands the inputs to the device, runs the kernel over all work-items, brings the outputs back, and waits once for all of
    /// these. Returns how long that took.
    ///
    /// # Errors
    /// [`BaselineError::Call`] if a call fails, and in a fork.
    fn run(&mut self) -> Result<Duration, BaselineError>;

    /// The bytes of the `index`-th output buffer, as of the last run that succeeded.
    ///
    /// # Panics
    /// When the arguments have fewer outputs.
    fn output(&self, index: usize) -> &[u8];
}

/// The number of calls that a program made, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calls {
    /// Buffers with storage of their own.
    pub alloc: u64,
    /// Buffers over the program's memory.
    pub bind: u64,
    /// Buffers mapped for the host.
    pub map: u64,
    /// Mappings ended.
    pub unmap: u64,
    /// Reads, device to host.
    pub read: u64,
    /// Writes, host to device.
    pub write: u64,
    /// Kernels launched.
    pub kernel: u64,
}

/// Why a hand-written program could not be made or run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BaselineError {
    /// The device cannot be used.
    #[error("{device} cannot be used: {reason}")]
    Device {
        /// The device's name.
        device: String,
        /// Why the device cannot be used.
        reason: String,
    },
    /// There is no code of the kernel: the compiler refused the source, or there is no compiler.
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
        /// The code in words.
        message: String,
    },
}
