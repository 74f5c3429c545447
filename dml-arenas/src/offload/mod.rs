//! Coprocessors that are processes: the offload model, on every machine.
//!
//! ```text
//!   this process (the owner)                              the worker
//!   OffloadArena ── alloc, copy ──▶ window ═══ one memory, mapped in both ═══ window ◀── views
//!        │                                                                                 │
//!        └─ launch ──▶ Pipeline ── Unix socket: Run ──▶ thread per pipeline ──▶ Function ──┘
//!                        ▲                                   │
//!                Signal ─┴──────────── Ended ◀───────────────┘
//! ```
//! A device owns a worker: a process with a memory of its own, which runs functions by name, its own or those of a
//! shared library it was told to load. Buffers live in the worker's memory and are brought in and out by transfers; runs
//! and transfers are asynchronous, and one can wait for another. So it was with the Xeon Phi, whose driver is gone: here
//! the card is a process, and the rest is the same.
//!
//! # What holds here
//! 1. Payload never passes through the socket. A transfer is one copy, into the memory that both processes see.
//! 2. Nothing that a worker sends or does can make the owner touch memory out of bounds: replies carry no addresses, the
//!    size of the shared memory is sealed, and what is mapped stays mapped until the owner lets it go.
//! 3. A worker that ends, hangs or breaks the protocol is a lost device: everybody who waits hears so, and nobody is
//!    left waiting. It is never trusted again; a new one is a new device.
//! 4. No worker outlives its owner, however that ends, and none uses the processor while it has nothing to do.
//! 5. Functions are trusted with the worker's memory, all of it, and with nothing of the owner's.
//! 6. What an owner made is its own: to a fork of it the device is lost, and nothing that the fork does, or that its
//!    destructors do, reaches the worker, its memory or its channels. A fork may start workers of its own.

mod arena;
mod block;
mod cross;
mod device;
pub(crate) mod discover;
mod error;
mod function;
mod heap;
mod message;
mod pipeline;
mod process;
mod signal;
mod transport;
mod unix;
mod window;
mod worker;

#[cfg(test)]
mod tests;

pub use arena::OffloadArena;
pub use device::{OffloadDevice, TIME_LIMIT, WorkerOptions};
pub use error::{Loss, OffloadError};
pub use function::{Argument, Function};
pub use message::Scalar;
pub use pipeline::Pipeline;
pub use signal::{Signal, Signaller};
pub use transport::{Channel, ChannelError, Transport};
pub use worker::{CCall, CScalar, CScalarValue, CView, Call, CallError, Registry, View, hook, serve};
