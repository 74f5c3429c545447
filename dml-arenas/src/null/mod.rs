//! An arena for tests: it records every call of core, and checks each one.
//!
//! ```text
//!   core ──any call──▶ Null ──▶ recorded, in order        calls() -> [Call]
//!                           ──▶ checked                   panics on what a real driver would let pass
//!                           ──▶ carried out, if backed    the bytes really move, in host memory
//! ```
//! # What it checks
//! 1. Copies and fills only while the native device has access; kernels only on devices that have it.
//! 2. Mapping only for remote devices that lack access; unmapping only what is mapped.
//! 3. No block of another arena, no byte out of range, no use after a free, no second free.
//! 4. No free of a block that others are bound to, and no binding to a bound block.
//!
//! The arena reports map states as its concurrency says: an exclusive arena is mapped or not; a bimapped one
//! stays accessible to its own device. `unmap` cannot distinguish a reader from a writer. So under
//! [`Concurrency::BimapRead`](dml_core::Concurrency::BimapRead) the first change shares, and a second one
//! excludes.

pub(crate) mod arena;
mod block;
mod books;

pub use books::Call;
