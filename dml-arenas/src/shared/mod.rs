//! Shared memory of this program and its workers: one storage that host kernels, workers and OpenCL devices
//! use in place.
//!
//! ```text
//!   this process                                                          each worker that shares it
//!   HostArena ─── alloc ──▶ SharedMemory ═══ one sealed memory file ═══▶ window ◀── views
//!     ▲    ▲    ▲
//!     │    │    └─ bound: opencl, a buffer over the host address           one at a time
//!     │    └────── bound: offload, a range of the worker's second window   all at once
//!     └─────────── bound: main_mem, the host address                       all at once
//! ```
//! The program selects the devices that share
//! ([`Sharing::memory`](crate::Sharing::memory)). The storage of a buffer that one of them uses
//! first is allocated here, and the others are bound to it. No bytes move between the host and the workers,
//! which may hold ranges at the same time if these do not conflict. A vector that the application moves in
//! ([`Platform::buffer_from`](dml_core::Platform::buffer_from)) stays where it is, in main memory. It is
//! copied here once, for all sharing workers.
//!
//! # Invariants
//! 1. The size of the file is sealed before any worker sees it. Pages are reserved when a block is allocated,
//!    and released when the block is dropped.
//! 2. No bytes are granted that a lost worker could still write. The loss of a sharing worker is declared
//!    only after its process has ended. If the process does not end, the whole memory is lost
//!    ([`SharedMemory::loss`]).
//! 3. The end of a worker does not affect the others. The bytes that it was writing are poisoned. All other
//!    bytes keep their contents.
//! 4. A fork of this process does not inherit the mapping, and its memory is lost. It cannot access its
//!    parent's bytes. If it reads a view from before the fork, a signal ends it.
//! 5. A sharing worker is trusted with all of this memory: see
//!    [`Sharing::memory`](crate::Sharing::memory).
//!
//! # Source
//! "Abstract Representation of Shared Data for Heterogeneous Computing", section 4: the ION arena, whose
//! allocations the CPU, the GPU and the DSP of a phone use in place.

mod arena;
mod cross;
pub(crate) mod discover;
mod memory;
pub(crate) mod window;

pub use memory::SharedMemory;
