//! The memories that [`dml_core`] keeps coherent, and their discovery. Each kind of memory has a folder.
//!
//! ```text
//!   PlatformBuilder ──discover()──▶
//!     main_mem  device 0 `cpu`,       arena 0 `main_mem`
//!     shared    arena 1 `shared`, of device 0, if devices are to share; bindings
//!     cuda      device n `cuda:k`,    arena n `cuda:k`,    links to and from main_mem, between GPUs
//!     opencl    device n `opencl:k`,  arena n `opencl:k`,  links to and from main_mem
//!     offload   device n `offload:k`, arena n `offload:k`, links to and from main_mem
//!     ...       or a note of what is missing, and why
//! ```
//!
//! | folder | native device | remotes | concurrency | for |
//! |---|---|---|---|---|
//! | `main_mem` | cpu | cpu | all at once | host kernels, the application's own storage |
//! | `cuda` | one NVIDIA GPU | none, by transfer | only kernels there | CUDA kernels |
//! | `cuda` (`cuda_pinned`) | cpu | cpu; bound: main memory | all at once | page-locked memory of the host |
//! | `opencl` | one OpenCL device | cpu, by mapping | one side at a time | OpenCL kernels |
//! | `offload` | one worker process | none, by transfer | only kernels there | host kernels, isolated |
//! | `shared` | cpu | cpu; bound: main memory, workers, OpenCL | all but OpenCL at once | shared storage |
//! | [`null`] | any | any | any | tests: records calls and checks the contract |
//! | [`faulty`] | as the arena inside | | | tests: fails, shortens, delays the n-th call |
//!
//! [`dlpack`] lends tensors of other frameworks to buffers, and buffers to other frameworks. [`kit`] has
//! building blocks for backends, in this crate or outside it. [`launch`] runs kernels on these memories.
//!
//! The folders use the same file names: `arena.rs` implements [`Arena`](dml_core::Arena), `cross.rs`
//! registers or implements copies to and from other arenas, `discover.rs` finds the devices of this machine.
//!
//! # What holds here
//! 1. An arena validates nothing that core guarantees. A request that core must never make ends in a panic
//!    that names the bug. An event that core cannot foresee (out of memory, a lost device, a failed copy) is
//!    an error value.
//! 2. A missing backend is an ordinary value, [`Unavailable`](dml_core::Unavailable), with an actionable
//!    message. Nothing must be installed to compile or to start.
//! 3. In a fork of the process that made it, no object of this crate reaches what that process shares with
//!    others: a worker, its memory, shared memory, a driver. Such a device is lost in the fork. Main memory,
//!    [`null`] and [`faulty`] hold private memory, of which a fork has a copy.
//! 4. `unsafe` is confined to calls into the operating system and the frameworks; each block names the reason
//!    why it is sound.

pub mod calibrate;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod compiled;
#[cfg(feature = "cuda")]
pub mod cuda;
mod discover;
pub mod dlpack;
pub mod faulty;
#[doc(hidden)]
pub mod files;
mod fork;
mod function;
pub mod kit;
pub mod launch;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod locked;
#[doc(hidden)]
pub mod machine_memory;
mod main_mem;
pub mod null;
#[cfg(all(feature = "offload", target_os = "linux"))]
pub mod offload;
#[cfg(feature = "opencl")]
pub mod opencl;
mod options;
#[cfg(all(feature = "offload", target_os = "linux"))]
pub mod shared;
#[cfg(any(feature = "calibration", feature = "cuda"))]
mod user_cache;

#[cfg(feature = "cuda")]
pub use cuda::arena::CudaArena;
pub use discover::{Discover, DiscoverError, DiscoverOptions, Mechanisms, Sharing, Workers};
pub use faulty::{arena::Faulty, cross::FaultyCross, script::Script};
pub use main_mem::arena::MainMem;
#[cfg(any(feature = "cuda", feature = "opencl", all(feature = "offload", target_os = "linux")))]
pub use main_mem::host_arena::HostArena;
pub use null::arena::Null;
#[cfg(all(feature = "offload", target_os = "linux"))]
pub use offload::arena::OffloadArena;
#[cfg(feature = "opencl")]
pub use opencl::arena::OpenClArena;
