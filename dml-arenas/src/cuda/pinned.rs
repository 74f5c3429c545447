//! Page-locked host memory: the storage of main memory's buffers, if the options ask for it.
//!
//! ```text
//!   alloc ──▶ idle memory of about this size ───────────────┐
//!         ──▶ new memory, registered, below the limit ──────┴─▶ a block ──▶ freed ──▶ idle
//! ```
//! GPUs transfer this memory at link speed from the first transfer on. Allocating it takes several times as
//! long as allocating ordinary memory, so freed memory is kept for later blocks.
//!
//! 1. All memory, idle or used, has at most `limit_bytes` bytes. Idle memory is evicted before an allocation
//!    fails.
//! 2. Memory is allocated, registered and freed without the pool's lock, because these steps call the driver.
//! 3. If registering fails through every GPU, the memory is used as ordinary memory. It is not kept when it
//!    is freed, and no GPU is bound to it.
//! 4. A bound GPU uses the memory in place: its kernels read and write across the link, and their writes are
//!    visible when they have ended. The processor may use other bytes of a buffer meanwhile.
//! 5. In a fork the memory counts as lost: a thread that the fork lacks may hold the pool's lock.

use super::page_lock::Registrar;
use super::session::Session;
use crate::HostArena;
use crate::fork::Origin;
use crate::kit::{join_both_ways, join_staged};
use crate::locked::{Here, PageLocker};
use crate::main_mem::{HostStore, Keeps, Memory};
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{
    AllocError, Allocation, ArenaId, Binding, Concurrency, HostSpan, HostStaged, Link, LinkSpeed,
    PlatformBuilder, Span,
};
use std::any::Any;
use std::fmt;

const NAME: &str = "cuda_pinned";
/// Sizes are multiples of this, in bytes.
const UNIT_BYTES: u64 = 64 << 10;
/// Default speed of a copy in memory by this process, to the order of magnitude.
const COPY: LinkSpeed = LinkSpeed { latency_ns: 500, bytes_per_s: 8_000_000_000, remap_ns: 0 };
/// Cost of binding main memory: a block over existing storage.
const BIND: LinkSpeed = LinkSpeed { latency_ns: 500, bytes_per_s: u64::MAX, remap_ns: 0 };
/// Cost of binding a GPU: the driver looks the address up.
const BIND_GPU: LinkSpeed = LinkSpeed { latency_ns: 2_000, bytes_per_s: u64::MAX, remap_ns: 0 };
/// Speed of transfers between this memory and a GPU. They need no staging, so they are cheaper than main
/// memory's.
const LINK: LinkSpeed = LinkSpeed { latency_ns: 10_000, bytes_per_s: 50_000_000_000, remap_ns: 0 };

/// The page-locked memory, and its idle part.
struct Pool {
    /// One per GPU. Memory registered through one of them serves all GPUs, and any GPU may be lost.
    registrars: Vec<Arc<Registrar>>,
    limit_bytes: u64,
    state: Mutex<State>,
    origin: Origin,
}

#[derive(Default)]
struct State {
    idle: Vec<Pinned>,
    /// The size of all memory, idle or used.
    bytes: u64,
}

/// Memory and the lock of its pages, which is dropped first.
struct Pinned {
    lock: Option<Box<dyn Any + Send>>,
    memory: Memory,
    bytes: u64,
}

/// The memory of one block, returned to its pool on drop.
struct Lent {
    span: HostSpan,
    pinned: Mutex<Option<Pinned>>,
    pool: Arc<Pool>,
}

impl Pool {
    /// Returns the smallest fitting piece of idle memory that is at most a quarter larger than `bytes`.
    fn idle(&self, bytes: u64) -> Option<Pinned> {
        let mut state = self.state.lock();
        let fits = |pinned: &Pinned| (bytes..=bytes + bytes / 4).contains(&pinned.bytes);
        let found = state.idle.iter().enumerate().filter(|(_, pinned)| fits(pinned));
        let (index, _) = found.min_by_key(|(_, pinned)| pinned.bytes)?;
        Some(state.idle.swap_remove(index))
    }

    /// Reserves room for new memory, and evicts idle memory if needed. Returns the evicted memory, or `None`
    /// if there is no room.
    fn reserve(&self, bytes: u64) -> Option<Vec<Pinned>> {
        let mut state = self.state.lock();
        let idle: u64 = state.idle.iter().map(|pinned| pinned.bytes).sum();
        (state.bytes - idle).checked_add(bytes).filter(|&sum| sum <= self.limit_bytes)?;
        let mut gone = Vec::new();
        while state.bytes + bytes > self.limit_bytes {
            let Some(pinned) = state.idle.pop() else { break };
            state.bytes -= pinned.bytes;
            gone.push(pinned);
        }
        state.bytes += bytes;
        Some(gone)
    }

    fn take(self: &Arc<Self>, len: u64) -> Option<Lent> {
        let bytes = len.checked_next_multiple_of(UNIT_BYTES)?;
        if let Some(pinned) = self.idle(bytes) {
            return Some(Lent::of(pinned, self));
        }
        drop(self.reserve(bytes)?);
        let made = usize::try_from(bytes).ok().and_then(Memory::zeroed);
        let Some(memory) = made else {
            self.state.lock().bytes -= bytes;
            return None;
        };
        let lock = self.registrars.iter().find_map(|registrar| registrar.lock(&memory.span()));
        Some(Lent::of(Pinned { lock, memory, bytes }, self))
    }
}

impl Lent {
    fn of(pinned: Pinned, pool: &Arc<Pool>) -> Self {
        Self { span: pinned.memory.span(), pinned: Mutex::new(Some(pinned)), pool: pool.clone() }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // In a fork, the lock may be held by a missing thread.
        let Some(pinned) = self.pinned.get_mut().take_if(|_| self.pool.origin.is_here()) else { return };
        let mut state = self.pool.state.lock();
        if pinned.lock.is_some() {
            state.idle.push(pinned);
            return;
        }
        // Memory that is not locked is freed, because the next allocation may be locked.
        state.bytes -= pinned.bytes;
        drop(state);
        drop(pinned);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool(at most {} bytes)", self.limit_bytes)
    }
}

/// The pool as the memory of an arena.
#[derive(Debug)]
pub(super) struct Store(Arc<Pool>);

impl Store {
    /// The memory is registered through one of these GPUs, of which there is at least one.
    fn new<'a>(sessions: impl Iterator<Item = &'a Arc<Session>>, limit_bytes: u64) -> Self {
        let registrars = sessions.map(Registrar::new).collect();
        let (state, origin) = (Mutex::default(), Origin::here());
        Self(Arc::new(Pool { registrars, limit_bytes, state, origin }))
    }

    /// The session of the first GPU.
    pub(super) fn session(&self) -> &Arc<Session> {
        self.0.registrars[0].session()
    }
}

// SAFETY: an allocation keeps its memory, all of whose bytes are initialised (1). GPUs access it for requests
// of core and for kernels under grants (2). The pool lends memory to one block at a time (3).
unsafe impl HostStore for Store {
    fn allocate(&self, arena: &Arc<str>, len: u64) -> Result<(HostSpan, Keeps), AllocError> {
        let (arena, limit_bytes) = (arena.clone(), self.0.limit_bytes);
        if self.is_lost() {
            return Err(AllocError::DeviceLost { arena, loss: None });
        }
        if len > limit_bytes {
            return Err(AllocError::TooLarge { arena, bytes: len, limit_bytes });
        }
        let lent = self.0.take(len).ok_or(AllocError::OutOfMemory { arena, bytes: len })?;
        let span = lent.span.slice(Span::new(0, len));
        Ok((span, Keeps::Own { _memory: Box::new(lent) }))
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.limit_bytes
    }

    fn is_lost(&self) -> bool {
        !self.0.origin.is_here()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.is_lost().then(|| super::error::FORKED.into())
    }
}

/// Which buffers in page-locked memory a GPU uses in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InPlace {
    /// None: the GPU has storage of its own for each buffer.
    Never,
    /// Those whose hints ask for it.
    OnRequest,
    /// All, where possible.
    Preferred,
}

/// Adds the arena, links it with main memory and the GPUs, and binds main memory and the GPUs to it. A GPU is
/// bound as its [`InPlace`] says.
pub(super) fn add(
    builder: &mut PlatformBuilder,
    main: ArenaId,
    gpus: &[(ArenaId, Arc<Session>, InPlace)],
    limit_bytes: u64,
) {
    if gpus.is_empty() {
        return;
    }
    let cpu = builder.native(main);
    let sessions = gpus.iter().map(|(_, session, _)| session);
    let store = Arc::new(Store::new(sessions, limit_bytes));
    let pinned = builder.add_arena(Arc::new(HostArena::new(NAME, cpu, (64, 100_000), store)));
    join_staged(builder, main, pinned, COPY);
    for &(gpu, _, in_place) in gpus {
        join_both_ways(builder, pinned, gpu, Here::new(HostStaged::new(LINK)));
        if in_place != InPlace::Never {
            let (source_via, target_via) = (cpu, builder.native(gpu));
            let allocation = Allocation::Bound(Concurrency::BimapFull);
            let link = Link { from: pinned, to: gpu, source_via, target_via, allocation };
            builder.add_link(link, Arc::new(Binding::new(BIND_GPU)));
        }
        match in_place {
            InPlace::Never => {}
            InPlace::OnRequest => builder.allow_binding(pinned, gpu),
            InPlace::Preferred => builder.prefer_binding(pinned, gpu),
        }
    }
    let allocation = Allocation::Bound(Concurrency::BimapFull);
    let link = Link { from: pinned, to: main, source_via: cpu, target_via: cpu, allocation };
    builder.add_link(link, Arc::new(Binding::new(BIND)));
    builder.prefer_binding(pinned, main);
}
