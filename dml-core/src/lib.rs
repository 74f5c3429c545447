//! The heart of DML: buffers whose contents may live in several memories, and access to them by acquire and release.
//!
//! ```text
//! request ─▶ state::plan ─▶ SyncPlan ─▶ engine (arenas) ─▶ state::commit ─▶ Grant ─▶ kernel ─▶ release ─▶ wake
//!    │           pure          value       no lock held          pure         RAII                 pure
//! canonical order, FIFO queue
//! ```
//!
//! A kernel on any device *acquires* a buffer, or a range of one, for reading, overwriting or both. The layer finds
//! where the latest contents are, brings them to the memory of the kernel's device by the cheapest chain of copies,
//! makes that memory accessible to the device, and keeps every conflicting kernel out until the grant is *released*.
//!
//! # What it guarantees
//! - A granted reader sees the latest committed contents of every byte, and they do not change under it.
//! - A granted writer is alone on its bytes. Nobody sees them before it releases them.
//! - A failed copy, a failed kernel or a lost device never makes wrong bytes valid; what is lost is reported, not
//!   replaced.
//! - Requests that wait are served first come, first served, without deadlock, whatever buffers they name in whatever
//!   order.
//!
//! # What it does not
//! - It does not look inside kernels: one that writes outside its grant, or through a handle it has released, is on its
//!   own.
//! - It does not schedule: `dml-scheduler` does, through this crate's public interface.
//! - It does not order kernels beyond mutual exclusion; who needs an order acquires in that order.
//!
//! # Source
//! Tushar Kumar et al., "Abstract Representation of Shared Data for Heterogeneous Computing"; where the paper is
//! ambiguous or wrong, docs/spec.md of the project says what holds here and why.

#![deny(unsafe_code)]

mod access;
mod acquire;
mod arena;
mod buffer;
mod cost;
mod cross_arena;
mod engine;
mod error;
mod grant;
pub mod host;
mod id;
mod outstanding;
mod own_block;
mod platform;
mod range;
pub mod record;
mod request;
pub mod state;
mod storage;
pub mod sync;
mod topology;
mod typed;
mod wait;

pub use access::{Access, Claim, Claims, normalise};
pub use acquire::{Acquire, AcquireFuture, RangeOf, RawRange, Region};
pub use arena::{
    Arena, ArenaDesc, ArenaKind, Block, BlockRef, Completion, Concurrency, Fence, MapReport, NativeHandle,
    NewBlock,
};
pub use buffer::RawBuffer;
pub use cost::Cost;
pub use cross_arena::{
    Allocation, Binding, CopyEnd, CopyJob, CopyQuery, CrossArena, HostMapped, HostStaged, Link, LinkSpeed,
};
pub use error::{
    AcquireError, AllocError, ArenaName, BindRefusal, Breach, BufferName, BusyReason, ConfigError,
    FreeRefusal, TopologyError, TransferError, Unstored, ViewError, panic_text,
};
pub use grant::{Grants, InFlight, ReadView, View, WriteView};
pub use host::{HostMemory, HostSource, HostSpan, HostTarget};
pub use id::{
    ArenaId, ArenaSet, BufferId, DeviceId, DeviceSet, GrantId, KernelId, LinkId, MAX_ARENAS, Seq, Ticket,
};
pub use outstanding::Outstanding;
pub use own_block::OwnBlock;
pub use platform::{DeviceDesc, DeviceKind, Platform, PlatformBuilder, Unavailable};
pub use range::Span;
pub use record::{Counters, Event, EventKind, Operation, Recording, Transfer};
pub use request::{Backing, CopyIn, CopyOut, Fill, MapRequest, UnmapRequest};
pub use state::SyncPlan;
pub use typed::{Buffer, BufferBuilder, RawBufferBuilder};
