//! Main memory: the first arena of every platform.
//!
//! ```text
//!   alloc ──▶ heap, 64-byte aligned              (up to 4 MiB)
//!         ──▶ pages of their own, 2 MiB aligned, huge where the kernel agrees   (above)
//!   attach ─▶ the application's Vec<T> or Box<[T]>, which detach gives back
//! ```
//! The native device and the remote device are both the processor. So the memory is accessible in every map
//! state, and core never asks to map or unmap it. Copies and fills are done when the call returns.
//!
//! The memory is private to the process. A fork has a copy, and nothing that the fork does to the copy
//! affects its parent. Attached storage behaves in a fork as the application made it.
//!
//! Main memory can be bound to storage of another arena that has an address in this process, such as shared
//! memory. Then host kernels work there.
//!
//! Main memory adds no links: there is only one main memory, and the other backends add links to it.

pub(crate) mod arena;
mod block;
pub(crate) mod discover;
#[cfg(any(feature = "cuda", feature = "opencl", all(feature = "offload", target_os = "linux")))]
pub(crate) mod host_arena;
mod memory;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod page_locks;

#[cfg(any(feature = "cuda", feature = "opencl", all(feature = "offload", target_os = "linux")))]
pub(crate) use block::Keeps;
#[cfg(any(feature = "cuda", feature = "opencl"))]
pub(crate) use block::page_locks;
#[cfg(any(feature = "cuda", feature = "opencl", all(feature = "offload", target_os = "linux")))]
#[cfg(any(feature = "cuda", feature = "opencl", all(feature = "offload", target_os = "linux")))]
pub(crate) use host_arena::HostStore;
#[cfg(feature = "opencl")]
pub(crate) use memory::MAX_BYTES;
#[cfg(any(feature = "opencl", all(feature = "offload", target_os = "linux")))]
pub(crate) use memory::host_span;
#[cfg(all(test, feature = "offload", target_os = "linux"))]
pub(crate) use memory::testing;
pub(crate) use memory::{Memory, copy, fill, shown};
#[cfg(any(feature = "cuda", feature = "opencl"))]
pub(crate) use page_locks::{PageLockBudget, PageLocks, Share as PageLockShare};
