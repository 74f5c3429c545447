//! What every backend may use: memory to hand out, fences, a thread that copies, links, and the way into discovery.
//!
//! ```text
//!   Arena::alloc ──▶ Heap ──▶ HeapBlock            which bytes of the memory a block has
//!   Arena::copy_in, copy_out, fill ──▶ Worker ──▶ Fence      for frameworks that can only block
//!                                  └─▶ Signal ──▶ Fence      for frameworks that tell when work has ended
//!   join_staged, join_mapped, join_bound, join_both_ways     links, in both directions
//!   Backend                                                  what discovery asks for devices and memories
//! ```
//! A backend may live in this crate or in the application: [`DiscoverOptions::backend`](crate::DiscoverOptions::backend)
//! adds it. The page `docs/backends.md` leads through writing one.
//!
//! # What holds here
//! 1. Nothing waits for ever: work that is given up, that panics, or that a fork cannot do ends its fence with an error.
//! 2. No foreign code runs under a lock of the kit, and a panic of one waker keeps no other one asleep.
//! 3. No code here is unsafe, and none is needed to use it.

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
