//! Coprocessors as worker processes: the offload model, available on every machine.
//!
//! ```text
//!   this process (the owner)                              the worker
//!   OffloadArena ── alloc, copy ──▶ window ═══ one memory, mapped in both ═══ window ◀── views
//!        │                                                                                 │
//!        └─ launch ──▶ Pipeline ── Unix socket: Run ──▶ thread per pipeline ──▶ Function ──┘
//!                        ▲                                   │
//!                Signal ─┴──────────── Ended ◀───────────────┘
//! ```
//! A device owns a worker: a process with its own memory, which runs functions by name. The functions are
//! built in or come from a loaded shared library. Buffers live in the worker's memory, and transfers bring
//! bytes in and out. Runs and transfers are asynchronous, and one can wait for another. The Xeon Phi worked
//! in this way. Here a process takes the place of the card.
//!
//! # Invariants
//! 1. Payload never passes through the socket. A transfer is one copy, to or from memory that both processes
//!    map.
//! 2. Nothing that a worker sends or does can make the owner touch memory out of bounds. Replies carry no
//!    addresses, the size of the shared memory is sealed, and the mapping stays until the owner removes it.
//! 3. A worker that ends, hangs or breaks the protocol is a lost device, and every waiter gets an error. The
//!    worker is never trusted again; a new worker is a new device.
//! 4. No worker outlives its owner, however the owner ends. An idle worker uses no processor time.
//! 5. Functions are trusted with all memory that the worker maps, and with nothing else of the owner's.
//! 6. In a fork of the owner the device is lost. Nothing in the fork, destructors included, reaches the
//!    worker, its memory or its channels. A fork may start its own workers.

pub(crate) mod arena;
mod block;
mod cross;
mod device;
pub(crate) mod discover;
mod error;
mod function;
mod message;
mod pipeline;
mod process;
mod transfer;
mod transport;
mod unix;
mod worker;

#[cfg(test)]
mod tests;

pub use device::{OffloadDevice, TIME_LIMIT, WorkerOptions};
pub use error::{Loss, OffloadError};
pub use function::{Argument, Function};
pub use pipeline::Pipeline;
pub use transport::{Channel, ChannelError, Transport};
pub use worker::{CCall, CScalar, CScalarValue, CValue, CView, Registry, hook, serve};

/// The end of a run or a transfer, which any number of threads can wait for.
pub type Signal = crate::kit::Signal<OffloadError>;
/// The right to end a [`Signal`], held by the code that does the work.
pub type Signaller = crate::kit::Signaller<OffloadError>;
