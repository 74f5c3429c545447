//! Main memory: the arena every platform begins with.
//!
//! ```text
//!   alloc ──▶ heap, 64-byte aligned              (up to 4 MiB)
//!         ──▶ pages of their own, 2 MiB aligned, huge where the kernel agrees   (above)
//!   attach ─▶ the application's Vec<T> or Box<[T]>, which detach gives back
//! ```
//! Native device and remote device are both the processor, so the memory is accessible in every map state and core
//! never asks to map or unmap it. Copies and fills are done when the call returns.
//!
//! The memory is private to the process: a fork has a copy, and what it does to that, or drops of it, its parent never sees.
//! Attached storage is whatever the application made it.
//!
//! Main memory has no links of its own (there is one main memory); the other backends join themselves to it.

mod arena;
pub(crate) mod discover;
mod memory;

pub use arena::MainMem;
pub(crate) use memory::{Memory, copy, fill, shown};
