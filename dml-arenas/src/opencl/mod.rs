//! OpenCL devices: each one an arena of its own, with its own context and one in-order queue.
//!
//! ```text
//!                      ┌── copy_in / copy_out / fill ── enqueued, flushed; the fence waits on the event
//!   host memory ◀──────┤
//!                      └── map ──▶ the host reaches the whole block ──▶ unmap
//!   block (cl_mem) ◀── OpenClKernel::launch ── the same queue, so after every transfer asked for before
//! ```
//! The OpenCL loader is opened at run time. Where it is missing, or knows no driver, discovery notes an
//! [`Unavailable`](dml_core::Unavailable) and goes on.
//!
//! # What holds here
//! 1. The queue is in order: a kernel launched after a transfer was started sees its bytes.
//! 2. A block is used by the device or by the host, never by both (OpenCL calls the rest undefined); a block knows
//!    whether it is mapped, and a request that does not fit is a bug of core.
//! 3. A block's memory is there once `alloc` returns: OpenCL allocates lazily, so the arena touches it, and a lack of
//!    memory is an error of `alloc` rather than of a kernel later.
//! 4. Nothing is released while the queue may still use it: blocks keep the queue, and finish it before they go.
//! 5. In a fork of the process no driver is called, by anything: devices are lost, discovery finds none, and what a fork
//!    drops is left to its parent. What the parent had mapped for the host is not taken from a fork's address space.
//! 6. Kernel source is trusted like the program itself: a kernel may write anywhere its device lets it.

mod arena;
mod block;
mod cross;
mod device;
pub(crate) mod discover;
mod error;
mod handle;
mod kernel;
pub mod native;
mod session;

pub use arena::OpenClArena;
pub use error::BuildError;
pub use kernel::{KernelArg, Launch, OpenClKernel, may_have_begun};
