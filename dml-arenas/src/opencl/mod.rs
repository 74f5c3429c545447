//! OpenCL devices: each is an arena with its own context and its own in-order queues.
//!
//! ```text
//!                      ┌── copy_in, fill / copy_out ── a queue each way; the fence is the event
//!   host memory ◀──────┤
//!                      └── map ──▶ the host reaches the whole block ──▶ unmap
//!   block (cl_mem) ◀── OpenClKernel::launch ── a queue of the kernels' own
//! ```
//! The OpenCL loader is opened at run time. If it is missing, or knows no driver, discovery notes an
//! [`Unavailable`](dml_core::Unavailable) and goes on.
//!
//! # What holds here
//! 1. Kernels and transfers overlap, also on one buffer in different bytes. Core waits for the fence of a command before
//!    the next on the same bytes. An unmap has no fence, so commands in other queues wait for its event.
//! 2. Either the device or the host uses a block, never both, because OpenCL leaves that undefined. A block knows
//!    whether it is mapped, and a request that does not fit is a bug of core.
//! 3. A block's memory exists once `alloc` returns. OpenCL allocates lazily, so the arena touches the memory, and a
//!    lack of memory is an error of `alloc` rather than of a later kernel. A queue of its own keeps the touch from
//!    waiting for the kernels that run.
//! 4. No object is released while a command may still use it. Fences keep the blocks of their commands. A block
//!    finishes the kernels' queue, and with it its unmap, before it is released.
//! 5. In a fork of the process no code calls a driver: devices are lost, and discovery finds none. Dropping an object
//!    in a fork does not release it. Memory that the parent had mapped for the host stays in the fork's address space.
//! 6. A fence can be awaited: the driver calls back at the end of the command, and a thread of the session wakes the
//!    future. A map blocks, because the host needs the address.
//! 7. The pages of main memory that a device with its own memory transfers are locked where that pays (`page_lock.rs`).
//!    Other memory, and what goes from one such device to another, passes through scratch memory that is locked
//!    (the folder `locked`).
//! 8. A device can be bound to host memory, and then takes turns with the host, or to shared virtual memory (`svm.rs`), and
//!    then uses it beside the host.
//! 9. Kernel source is trusted like the program itself: a kernel may write wherever its device allows.

mod arena;
mod block;
mod completion;
mod cross;
mod device;
pub(crate) mod discover;
mod error;
mod handle;
mod kernel;
pub mod native;
mod numbering;
mod page_lock;
mod parameters;
mod session;
#[cfg(test)]
mod staging_tests;
mod svm;
#[cfg(test)]
mod testing;

pub use arena::OpenClArena;
pub use error::BuildError;
pub use kernel::{Grid, KernelArg, Launch, OpenClKernel, may_have_begun};
pub use svm::SvmArena;
