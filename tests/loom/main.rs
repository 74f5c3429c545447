//! Every interleaving of small models, on the real lock, queue, grant and acquire code.
//!
//! ```text
//!   exclusion   views of the bytes: writers alone, readers together, commits seen whole
//!   copies      the bytes between memories: made once, beside whom they may be, given up
//!   queue       order of waiters: several waiters, several buffers
//!   waiting     futures: polled, dropped, woken
//!   awaited     copies that end in a thread of their own
//!   helpers     threads of a kernel on the host: what they were lent, and who is waited for
//!   signals     work of an offload device, waited for and awaited
//!   arenas      a worker's thread, page locks, and pieces that are lent
//!   shipping    main memory itself, and heaps
//!   streams     submitted kernels, beside threads that submit, settle, view and go
//!   lifetime    storage and devices that go while others come
//! ```
//! The bytes themselves are in the models: every view, copy and kernel is an access that loom checks, so that
//! two that nothing orders fail a model even where the values come out right. Reference counts are not: where
//! they decide, the threads [meet](rig::Meeting) at a lock first.
//!
//! Run with `cargo xtask loom`. Each test is a process of its own: a deadlock that loom finds ends the
//! process. Each says on stderr how many interleavings there were.

#![cfg(dml_loom)]

mod arenas;
mod awaited;
mod copies;
mod exclusion;
mod helpers;
mod lifetime;
mod queue;
mod rig;
mod shipping;
mod signals;
mod streams;
mod waiting;
