//! OpenCL devices: each is an arena with its own context and its own in-order queues.
//!
//! ```text
//!                      ┌── copy_in, fill / copy_out ── a queue each way; the fence is the event
//!   host memory ◀──────┤
//!                      └── map ──▶ the host reaches the whole block ──▶ unmap
//!   block (cl_mem) ◀── OpenClKernel::launch ── the kernels' queues
//! ```
//! The OpenCL loader is opened at run time. If it is missing or finds no driver, discovery adds an
//! [`Unavailable`](dml_core::Unavailable) and continues.
//!
//! # What holds here
//! 1. Kernels and transfers overlap, also on one buffer in different bytes. Core waits for the fence of a
//!    command before the next command on the same bytes. An unmap has no fence, so commands in other queues
//!    wait for its event.
//! 2. Either the device or the host uses a block, never both, because OpenCL leaves that undefined. A block
//!    records whether it is mapped. A request that contradicts the record is a bug of core, and panics.
//! 3. A block's memory exists once `alloc` returns. OpenCL allocates lazily, so the arena writes to the new
//!    block. Running out of memory is then an error of `alloc`, not of a later kernel. The write has a queue
//!    of its own, so it does not wait for running kernels.
//! 4. No object is released while a command may still use it. Fences keep the blocks of their commands. The
//!    driver keeps a released buffer until its commands end. It does not keep host memory, so a bound block
//!    first finishes the kernels' queues, and with them its unmap.
//! 5. In a fork of the process no code calls a driver: devices are lost, and discovery finds none. Dropping
//!    an object in a fork does not release it. Memory that the parent had mapped for the host stays in the
//!    fork's address space.
//! 6. A fence can be awaited: the driver calls back at the end of the command, and a thread of the session
//!    wakes the future. A map blocks, because the host needs the address.
//! 7. Main memory that a discrete device transfers is page-locked (pinned) where that pays (`page_lock.rs`).
//!    Other copies to or from such a device, and copies between two of them, can pass through locked scratch
//!    memory (the folder `locked`).
//! 8. A device can be bound to host memory, and then takes turns with the host. It can also be bound to
//!    shared virtual memory (`svm.rs`), which it uses concurrently with the host.
//! 9. Kernel source is trusted like the program itself: a kernel may write wherever its device allows.

pub(crate) mod arena;
mod block;
mod completion;
mod cross;
mod device;
pub(crate) mod discover;
mod error;
mod handle;
mod kernel;
mod numbering;
mod page_lock;
mod parameters;
mod session;
#[cfg(test)]
mod staging_tests;
mod svm;
#[cfg(test)]
mod testing;

pub use kernel::OpenClKernel;
