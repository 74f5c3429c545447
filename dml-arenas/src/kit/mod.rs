//! Building blocks of backends: memory to hand out, fences, a worker thread, links, and the interface to
//! discovery.
//!
//! ```text
//!   Arena::alloc ──▶ Heap ──▶ HeapBlock            which bytes of the memory a block has
//!   Arena::copy_in, copy_out, fill ──▶ Worker ──▶ Fence      for frameworks that can only block
//!                                  └─▶ Signal ──▶ Fence      for frameworks that report the end of work
//!   join_staged, join_mapped, join_bound, join_both_ways     links, in both directions
//!   Backend                                                  from which discovery gets devices and memories
//! ```
//! A backend may live in this crate or in the application:
//! [`DiscoverOptions::backend`](crate::DiscoverOptions::backend) adds it. The page `docs/backends.md`
//! explains how to write one.
//!
//! # What holds here
//! 1. Nothing waits for ever: work that is abandoned, that panics, or that a fork cannot do ends its fence
//!    with an error.
//! 2. No foreign code runs under a lock of the kit. A waker that panics does not keep other waiters asleep.
//! 3. The kit has no unsafe code, and using it needs none.

mod backend;
mod heap;
mod links;
mod signal;
mod worker;

pub use backend::Backend;
pub use heap::{Heap, HeapBlock, PAGE_BYTES};
#[cfg(feature = "opencl")]
pub(crate) use links::join_via;
pub use links::{join_both_ways, join_bound, join_mapped, join_staged};
pub use signal::{Awaited, NoResult, Signal, Signaller};
pub use worker::Worker;
