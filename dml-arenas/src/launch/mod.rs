//! Launchers: one kernel in one framework, given the arguments of each launch as plain data.
//!
//! ```text
//!                  ┌─ host     threads of this process; a `Call`: views of each buffer's ranges, scalars and values by position
//!   Launch, Grants ┼─ cuda     the whole storage of each buffer; scalars and values by position, and the items
//!                  ├─ opencl   the whole storage of each buffer; scalars, values and local memory by position
//!                  └─ offload  a worker; the same `Call`
//! ```
//! The functions [`host`] (or [`host_by_team`]), `cuda`, [`opencl`] and [`offload`] make a launcher for each device of a platform that the framework has,
//! and none where it has no device. So a program names all frameworks that it has code for, whatever the machine has.
//!
//! | argument | host, offload | OpenCL | CUDA |
//! |---|---|---|---|
//! | buffer | [`Call::part`]: one view per range | `global` or `constant` pointer to the whole storage | pointer to the whole storage |
//! | scalar | [`Call::scalar`] | by value, of the same type | by value, of the same size |
//! | value as bytes | [`Call::value`] | by value, of the same size | by value, of the same size |
//! | local memory | nothing | `local` pointer | `extern __shared__` memory; no parameter |
//! | buffer of which the package has no byte | an empty view | a null pointer | a null pointer |
//!
//! A package is a part of a run. Kernels in OpenCL C and CUDA C have their work-groups numbered within the whole run, so one that was
//! written for a single launch is right in parts. A kernel that needs the framework's own numbers, such as one whose scratch memory is
//! indexed by the group within its package, defines `DML_PACKAGE_GROUPS`.

#[cfg(feature = "cuda")]
mod cuda;
mod host;
#[cfg(all(feature = "offload", target_os = "linux"))]
mod offload;
#[cfg(feature = "opencl")]
mod opencl;

pub use crate::function::{Call, ComputeError, Elements, ElementsMut, HostError, Part, Team, View};
#[cfg(feature = "cuda")]
pub use cuda::{CudaLauncher, cuda};
pub use host::{HostLauncher, host, host_by_team};
#[cfg(all(feature = "offload", target_os = "linux"))]
pub use offload::{OffloadLauncher, offload};
#[cfg(feature = "opencl")]
pub use opencl::{OpenClLauncher, opencl};
