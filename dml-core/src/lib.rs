//! The core of DML: buffers whose contents may live in several memories, and access to them by acquire and
//! release.
//!
//! ```text
//! request ─▶ state::plan ─▶ SyncPlan ─▶ engine (arenas) ─▶ state::commit ─▶ Grant ─▶ kernel ─▶ release ─▶ wake
//!    │           pure          value       no lock held          pure         RAII                 pure
//! canonical order, FIFO queue
//! ```
//!
//! A kernel on any device *acquires* a buffer, or a range of one, for reading, overwriting or both. The layer
//! finds where the latest contents are, brings them to the memory of the kernel's device by the cheapest
//! chain of copies, makes that memory accessible to the device, and keeps every conflicting kernel out until
//! the grant is *released*.
//!
//! # What it guarantees
//! - A granted reader sees the latest committed contents of every byte, and they do not change under it.
//! - A granted writer has exclusive access to its bytes. No other kernel sees them before the release.
//! - A failed copy, a failed kernel or a lost device never makes wrong bytes valid; lost bytes are reported,
//!   not replaced.
//! - Waiting requests are served first come, first served. They never deadlock, whatever buffers they name,
//!   in whatever order.
//!
//! # What it does not
//! - It does not check kernels: if one writes outside its grant, or through a released handle, no guarantee
//!   holds for these bytes.
//! - It does not schedule: `dml-scheduler` does, through this crate's public interface.
//! - It does not order kernels beyond mutual exclusion. Of two requests that conflict on a buffer, the one
//!   that was made first is granted first. Requests on different buffers have no order.
//!
//! # Source
//! Tushar Kumar et al., "Abstract Representation of Shared Data for Heterogeneous Computing"; where the paper
//! is ambiguous or wrong, docs/spec.md of the project says what holds here and why.

#![deny(unsafe_code)]

/// Begins a [`TraceSpan`](crate::internal::TraceSpan): `span!(INFO, "run", items = 3, policy = %policy)`.
///
/// A field is `name = value` or `name = %value`, and is not computed without the feature `tracing`.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! span {
    ($level:ident, $name:literal, $($fields:tt)*) => {
        $crate::internal::TraceSpan::new(|| {
            $crate::internal::tracing::span!(
                target: "dml", $crate::internal::tracing::Level::$level, $name, $($fields)*
            )
        })
    };
}

/// Begins a [`TraceSpan`](crate::internal::TraceSpan): `span!(INFO, "run", items = 3, policy = %policy)`.
///
/// A field is `name = value` or `name = %value`, and is not computed without the feature `tracing`.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! span {
    ($level:ident, $name:literal, $($field:ident = $(%)? $value:expr),* $(,)?) => {{
        // The closure is never called, so it computes nothing, but the values count as used.
        let _ = || ($(_ = &$value),*);
        $crate::internal::TraceSpan::none()
    }};
}

mod base;
mod buffer;
mod memory;
mod platform;
mod request;
mod state;

/// Parts that the other crates of DML and their tests share: the machine of one buffer, locks that a model
/// checker can drive, guards for foreign code, helper threads. They may change in any version.
#[doc(hidden)]
pub mod internal {
    pub use crate::base::forks::forked;
    pub use crate::base::gate::Gate;
    pub use crate::base::guard::{Quiet, guard, panic_text, quietly};
    pub use crate::base::helpers::Helpers;
    pub use crate::base::spans::TraceSpan;
    pub use crate::base::sync;
    pub use crate::platform::stream::as_here;
    pub mod state {
        pub use crate::state::*;
    }
    #[cfg(feature = "tracing")]
    pub use tracing;
}

pub mod record {
    //! What the layer does: counters that always run, an event stream that runs on request, and the plans of
    //! acquires that were not made.

    pub use crate::base::counters::{Counters, OPERATIONS, Operation, Transfer};
    pub use crate::platform::copies::{RecordedCopy, copies};
    pub use crate::platform::explain::{ExplainedPlan, Explanation, RejectedPath};
    pub use crate::platform::record::{Event, Recording};
    pub use crate::state::EventKind;
}

pub use base::access::{Access, Claim, Claims};
pub use base::cost::Cost;
pub use base::id::{
    ArenaId, ArenaSet, BufferId, DeviceId, DeviceSet, KernelId, LinkId, MAX_ARENAS, OwnerId, PlatformId, Seq,
    Ticket,
};
pub use base::names::{ArenaName, BufferName};
pub use base::range::Span;
pub use buffer::RawBuffer;
pub use buffer::error::{AcquireError, PoisonedEnd, Poisoner, Unattached, ViewError};
/// Elements of buffers may be of any of its `Pod` types.
pub use bytemuck;
pub use memory::arena::{Arena, MapReport};
pub use memory::block::{Block, BlockRef, ExternalBlock, NativeHandle, NewBlock};
pub use memory::cross_arena::{CopyEnd, CopyJob, CrossArena};
pub use memory::desc::{ArenaDesc, ArenaKind, Concurrency};
pub use memory::error::{AllocError, Breach, DeviceLoss, TransferError};
pub use memory::fence::{Completion, Fence};
pub use memory::foreign::Foreign;
pub use memory::host::{HostMemory, HostSource, HostSpan, HostTarget, Storage};
pub use memory::link::{Allocation, CopyQuery, Link, LinkSpeed};
pub use memory::map_state::MapState;
pub use memory::request::{Backing, CopyIn, CopyOut, Fill, MapRequest, UnmapRequest};
pub use memory::staged::{Binding, HostMapped, HostStaged};
pub use platform::Platform;
pub use platform::builder::PlatformBuilder;
pub use platform::desc::{DeviceDesc, DeviceKind, Unavailable};
pub use platform::error::{ConfigError, TopologyError, Unstored};
pub use platform::hints::{HintedRoutes, Hints, Pattern};
pub use platform::outstanding::Outstanding;
pub use platform::own_block::OwnBlock;
pub use request::acquire::{Acquire, AcquireFuture};
pub use request::course::Submission;
pub use request::flight::InFlight;
pub use request::grants::Grants;
pub use request::kernels::{GrantArg, bytes, local};
pub use request::launch::{
    ItemShape, Launch, LaunchArg, LaunchError, Launcher, Misfit, Ranges, Scalar, SharedLauncher, WrongScalar,
};
pub use request::prefetch::{Prefetch, PrefetchCanceller};
pub use request::region::{RangeOf, RawRange, Region};
pub use request::submit::{Items, Submit, SubmitError, SubmitFuture};
pub use request::typed::{Buffer, BufferBuilder, RawBufferBuilder};
pub use request::view::{ReadView, View, WriteView};
pub use state::{AttachRefusal, BindRefusal, BusyReason, FreeRefusal, SyncPlan};

/// Makes the arguments of [`Grants::launch`](crate::Grants::launch), in the order of the kernel's signature.
///
/// An argument is `&buffer`, `&buffer.range(..)`, a scalar, [`local`](crate::local), [`bytes`](crate::bytes)
/// or [`GrantArg::read`](crate::GrantArg::read).
#[macro_export]
macro_rules! args {
    ($($argument:expr),* $(,)?) => {
        [$(::core::convert::Into::<$crate::GrantArg<'_>>::into($argument)),*]
    };
}
