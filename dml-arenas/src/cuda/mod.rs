//! CUDA devices: each GPU of NVIDIA's driver is an arena with its own memory and its own streams.
//!
//! ```text
//!                      ┌── copy_in, fill / copy_out ── a stream each way; the fence is an event
//!   host memory ◀──────┤   its pages are locked, or it is staged, where that pays
//!   block (CUdeviceptr) ◀── CudaKernel::launch ── a stream of the kernels' own, and two for those that may run beside others
//!   page-locked memory ◀── asked for: main memory's buffers are made of it (`pinned.rs`)
//!   memory of the application ◀── addresses, slices of cudarc, tensors (`external.rs`, `tensor.rs`)
//!   block of another GPU ◀── peer copies, where the two reach each other
//! ```
//! The driver and the compiler (NVRTC) are opened at run time. If the driver is missing or too old, discovery notes an
//! [`Unavailable`](dml_core::Unavailable) and goes on. Without NVRTC, kernels in PTX alone can be made.
//!
//! # What holds here
//! 1. Kernels and transfers overlap, also on one buffer in different bytes. Core waits for the fence of a command before the
//!    next on the same bytes, so no stream waits for another.
//! 2. Memory comes from a pool of the arena's own, in the order of a stream. It exists once `alloc` returns. Without pools
//!    in the driver it is allocated and freed one by one. What was freed is kept for the next block of its size, up to a sixteenth of the
//!    device's memory (`idle.rs`).
//! 3. No memory is freed while a command may still use it. Fences keep the blocks of their commands.
//! 4. A call that meets an error after which the context cannot be used (a kernel that faults, a GPU that fell off the bus)
//!    loses the device. What runs there fails, and later calls are refused without the driver.
//! 5. In a fork of the process no code calls the driver: devices are lost, and discovery finds none.
//! 6. A fence can be awaited: each stream has a thread, started when first needed, that sleeps in the driver until the
//!    next event.
//! 7. The context is the device's primary one, which other CUDA code in the process shares. Each call makes it current and
//!    puts back what was current before.
//! 8. Memory of the application is freed by its container alone, after the last command that uses it. Peers do not
//!    copy it, because only who allocated it knows whom it lets reach it: it goes through main memory.
//! 9. Kernel source is trusted like the program itself: a kernel may write wherever its device allows.

mod arena;
mod block;
mod compile;
mod completion;
mod cross;
#[cfg(feature = "cust")]
mod cust_memory;
mod device;
pub(crate) mod discover;
mod error;
mod external;
mod grid;
mod idle;
mod kernel;
mod kernel_cache;
pub mod native;
mod numbering;
mod page_lock;
mod pinned;
mod session;
mod tensor;

pub use arena::CudaArena;
#[cfg(feature = "cust")]
pub use cust_memory::{InContext, Taken};
pub use error::BuildError;
pub use external::{ExternalError, Refused};
pub use grid::Launch;
pub use kernel::{CudaKernel, KernelArg, may_have_begun};
pub use pinned::CudaPinnedArena;
