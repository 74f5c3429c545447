//! Launchers: each runs one kernel in one framework, given the arguments of each launch as plain data.
//!
//! ```text
//!                  ┌─ host     threads of this process; a `Call`: views, scalars and values by position
//!   Launch, Grants ┼─ cuda     the whole storage of each buffer; scalars and values by position, the items
//!                  ├─ opencl   the whole storage of each buffer; scalars, values, local memory by position
//!                  └─ offload  a worker; the same `Call`
//! ```
//! The functions [`host`] (or [`host_by_team`]), `cuda`, [`opencl`] and [`offload`] create a launcher for
//! each device of their framework on a platform, and none if there is no such device. So a program can name
//! all frameworks that it has code for, whatever the machine has.
//!
//! | argument | host, offload | OpenCL | CUDA |
//! |---|---|---|---|
//! | buffer | [`Call::part`]: one view per range | `global` or `constant` pointer to the whole storage | pointer to the whole storage |
//! | scalar | [`Call::scalar`] | by value, of the same type | by value, of the same size |
//! | value as bytes | [`Call::value`] | by value, of the same size | by value, of the same size |
//! | local memory | nothing | `local` pointer | `extern __shared__` memory; no parameter |
//! | buffer of which the package has no byte | an empty view | a null pointer | a null pointer |
//!
//! A package is a part of a run. In OpenCL C and CUDA C, work-groups are numbered within the whole run, so a
//! kernel that was written for a single launch is correct in parts. A kernel that needs the framework's own
//! numbers defines `DML_PACKAGE_GROUPS`. An example is a kernel that indexes scratch memory by the group
//! within its package.

#[cfg(any(feature = "cuda", feature = "opencl"))]
mod compiled;
mod host;
#[cfg(all(feature = "offload", target_os = "linux"))]
mod offload;

#[cfg(any(feature = "cuda", feature = "opencl"))]
pub use crate::compiled::{BuildCause, BuildError, CompiledKernel, CompiledLauncher, Grid, KernelArg};
pub use crate::function::{Call, ComputeError, Elements, ElementsMut, HostError, Part, Team, View};
#[cfg(feature = "cuda")]
pub use compiled::cuda;
#[cfg(any(feature = "cuda", feature = "opencl"))]
pub use compiled::kernel;
#[cfg(feature = "opencl")]
pub use compiled::opencl;
pub use host::{HostLauncher, host, host_by_team};
#[cfg(all(feature = "offload", target_os = "linux"))]
pub use offload::{OffloadLauncher, offload};
