//! Memory that this program and its workers map: one storage that host kernels, workers and OpenCL devices use in place.
//!
//! ```text
//!   this process                                                          each worker that shares it
//!   SharedArena ── alloc ──▶ SharedMemory ═══ one sealed memory file ═══▶ window ◀── views
//!     ▲    ▲    ▲
//!     │    │    └─ bound: opencl, a buffer over the host address           one at a time
//!     │    └────── bound: offload, a range of the worker's second window   all at once
//!     └─────────── bound: main_mem, the host address                       all at once
//! ```
//! The program chooses who shares ([`DiscoverOptions::share`](crate::DiscoverOptions::share)). Storage that any of them
//! touches first is then made here, and the others are bound to it. Between the host and the workers no byte is moved,
//! and all of them may hold ranges at once that do not conflict. A vector that the application moves in
//! ([`Platform::buffer_from`](dml_core::Platform::buffer_from)) stays in main memory where it is. It is copied here
//! once, for all workers that share.
//!
//! # What holds here
//! 1. The size of the file is sealed before any worker sees it. Pages are reserved when a block is allocated, and given
//!    back when the block goes.
//! 2. Nobody is granted bytes that a lost worker could still write: the loss of a worker that shares is declared after
//!    its process has ended. If the process does not end, the whole memory is lost ([`SharedMemory::loss`]).
//! 3. The end of a worker takes nothing from the others. What it was writing is poisoned, all else stays.
//! 4. A fork of this process lacks the mapping and has lost the memory. It reaches nothing of its parent's. A child
//!    that reads a view from before the fork is ended by a signal.
//! 5. A worker that shares is trusted with all of this memory: see [`DiscoverOptions::share`](crate::DiscoverOptions::share).
//!
//! # Source
//! "Abstract Representation of Shared Data for Heterogeneous Computing", section 4: the ION arena, whose allocations the
//! CPU, the GPU and the DSP of a phone use in place.

mod arena;
mod cross;
pub(crate) mod discover;
mod memory;
pub(crate) mod window;

pub use arena::SharedArena;
pub use memory::SharedMemory;
