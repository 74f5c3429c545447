//! Why a run failed.

#[cfg(any(feature = "cuda", feature = "opencl"))]
use crate::by_hand::ByHandError;
use dml_arenas::DiscoverError;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use dml_arenas::launch::BuildError;
use dml_arenas::launch::HostError;
use dml_core::{AcquireError, ConfigError, SubmitError, TransferError};
use thiserror::Error;

/// Why a run failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SlamError {
    /// The hand-written program failed.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    #[error("the hand-written program failed: {0}")]
    Hand(#[from] ByHandError),
    /// A device has no kernels: it is neither the host, nor one of OpenCL or CUDA.
    #[error("slam has no kernels for {device}: it runs on the host and on devices of OpenCL and CUDA")]
    NoKernels {
        /// The device's name.
        device: String,
    },
    /// A kernel could not be built.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The devices could not be opened.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// A buffer could not be made.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] HostError),
    /// A buffer could not be acquired.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// A kernel could not be submitted.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A kernel or a copy failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}
