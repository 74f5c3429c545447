//! Why an application cannot be read or run.

use crate::fault::{Fault, Faults};
use dml_core::{AcquireError, ConfigError};
use dml_scheduler::{CheckError, IterateError, RunError};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why an application cannot be read or run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ApplicationError {
    /// The application file cannot be read.
    #[error("cannot read the application {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The application file has mistakes.
    #[error(transparent)]
    Invalid(#[from] Faults),
    /// A value was set for a name that the application does not have.
    #[error("application {application} has no {kind} {name}: there are {known}")]
    Unknown {
        /// The application.
        application: String,
        /// `parameter`, `array` or `array with a file`.
        kind: &'static str,
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A value that was set is no number.
    #[error("parameter {name}: {reason}")]
    Value {
        /// The parameter.
        name: String,
        /// What was expected.
        reason: String,
    },
    /// No device can run all kernels.
    #[error("no device can run application {application}: {reason}")]
    NoDevice {
        /// The application.
        application: String,
        /// What each device lacks.
        reason: String,
    },
    /// A requested device cannot run a kernel.
    #[error("device {device} cannot run kernel {kernel}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// The kernel.
        kernel: String,
        /// Why.
        reason: String,
    },
    /// A kernel cannot be compiled. The message has the source and the compiler's output.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    #[error("{place}")]
    Build {
        /// The place of the source's name.
        place: Fault,
        /// The error of the compiler.
        cause: Box<dml_arenas::launch::BuildError>,
    },
    /// The arguments or the work-groups of a kernel do not fit its function.
    #[error("{0}")]
    Misfit(Fault),
    /// A kernel does not keep to the declared part of an array, or this cannot be checked.
    #[error("{place}")]
    Parts {
        /// The place of the argument or of the kernel, with the message.
        place: Fault,
        /// The error of the check.
        cause: Box<CheckError>,
    },
    /// An array cannot be allocated.
    #[error("array {array}: {cause}")]
    Allocate {
        /// The array.
        array: String,
        /// The error of the platform.
        cause: ConfigError,
    },
    /// An array cannot be read or written on the host.
    #[error("array {array}: {cause}")]
    Access {
        /// The array.
        array: String,
        /// The error of the buffer.
        cause: Box<AcquireError>,
    },
    /// The file of an array cannot be read or written.
    #[error("array {array}: {}: {cause}", path.display())]
    File {
        /// The array.
        array: String,
        /// The file.
        path: PathBuf,
        /// The error of the format or of the operating system.
        cause: io::Error,
    },
    /// A kernel failed or was refused.
    #[error("kernel {kernel}: {cause}")]
    Run {
        /// The kernel.
        kernel: String,
        /// The error of the run.
        cause: Box<RunError>,
    },
    /// Repeated steps failed or were refused.
    #[error(transparent)]
    Steps(#[from] Box<IterateError>),
}
