//! CUDA devices: each GPU of NVIDIA's driver is an arena with its own memory and its own streams.
//!
//! ```text
//!                      ┌── copy_in, fill / copy_out ── one stream per direction; the fence is an event
//!   host memory ◀──────┤   page-locked or staged, where that pays
//!   block (CUdeviceptr) ◀── CudaKernel::launch ── the stream of the kernels, and two for concurrent kernels
//!   page-locked memory ◀── on request: storage of main memory's buffers (`pinned.rs`)
//!   memory of the application ◀── addresses, slices of cudarc, tensors (`external.rs`, `tensor.rs`)
//!   block of another GPU ◀── peer copies, where the two reach each other
//! ```
//! The driver and the compiler (NVRTC) are opened at run time. If the driver is missing or too old, discovery
//! notes an [`Unavailable`](dml_core::Unavailable) and goes on. Without NVRTC, only kernels in PTX can be
//! built.
//!
//! # Invariants
//! 1. Kernels and transfers overlap, also on different bytes of one buffer. Core waits for a command's fence
//!    before the next command on the same bytes, so kernels and transfers need no ordering between their
//!    streams.
//! 2. Memory comes from the arena's own pool, whose allocations are ordered by one stream. It is usable once
//!    `alloc` returns. Freed memory is kept for the next block of its size, up to a sixteenth of the device's
//!    memory (`idle.rs`). Without pools in the driver, each block is allocated and freed separately.
//! 3. No memory is freed while a command may still use it. Fences keep the blocks of their commands.
//! 4. The device is lost after an error that makes its context unusable: a kernel fault, a GPU that fell off
//!    the bus. Running commands fail, and later calls are refused without calling the driver.
//! 5. In a fork of the process no code calls the driver: devices are lost, and discovery finds none.
//! 6. A fence can be awaited: each stream has a thread, started when first needed, that waits for the
//!    stream's events in order.
//! 7. The context is the device's primary one, which other CUDA code in the process shares. Each call makes
//!    it current, and restores the previous one.
//! 8. Memory of the application is freed by its container alone, after the last command that uses it. It is
//!    copied to other GPUs through main memory, because peer access to it is unknown.
//! 9. Kernel source is trusted like the program itself: a kernel may write wherever its device allows.

pub(crate) mod arena;
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
mod marks;
mod numbering;
mod page_lock;
mod pinned;
mod session;
mod tensor;
mod together;

#[cfg(feature = "cust")]
pub use cust_memory::{InContext, Taken};
pub use external::{ExternalError, Refused};
pub use kernel::CudaKernel;
