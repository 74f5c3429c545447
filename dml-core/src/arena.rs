//! What core asks of a memory: the [`Arena`] trait and the values that cross it.
//!
//! ```text
//!   engine ──alloc / bind──▶ Arena ──▶ Block (storage, native handle)
//!          ──map / unmap───▶       ──▶ MapReport (who may touch it now; authoritative)
//!          ──copy_in / copy_out / fill──▶ Fence (waited for by the engine)
//! ```
//!
//! An arena validates nothing: core never asks it for what the abstract machine forbids. An arena that is asked for
//! something impossible has found a bug in core and panics saying so; it reports as errors only what core cannot
//! foresee (out of memory, device lost, a copy that failed).

use crate::error::{AllocError, TransferError};
use crate::host::{HostMemory, HostSpan};
use crate::id::{DeviceId, DeviceSet};
use crate::request::{Backing, CopyIn, CopyOut, Fill, MapRequest, UnmapRequest};
use crate::state::MapState;
use crate::{Cost, sync::Arc};
use std::any::Any;
use std::fmt;
use std::task::{Poll, Waker};

/// The sort of memory an arena wraps, such as `main_mem` or `opencl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArenaKind(pub &'static str);

impl fmt::Display for ArenaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Who may touch one storage at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Concurrency {
    /// The native device or remote devices, never both (a plain OpenCL buffer).
    Exclusive,
    /// The native device and remote devices may all read at once.
    BimapRead,
    /// Fully coherent: everyone at once, as far as their ranges do not conflict (main memory).
    BimapFull,
}

/// The fixed facts about an arena.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaDesc {
    /// The name shown to people, unique in a platform (`main_mem`, `opencl:0`).
    pub name: Arc<str>,
    /// The sort of memory.
    pub kind: ArenaKind,
    /// The device whose kernels run on this memory.
    pub native: DeviceId,
    /// The devices that can reach this memory without another device's help; may include the native one, which
    /// makes the arena always bimapped.
    pub remotes: DeviceSet,
    /// Who may touch one storage at the same time.
    pub concurrency: Concurrency,
    /// The alignment of every internal allocation, in bytes; a power of two.
    pub alloc_align: u64,
    /// What an allocation is estimated to take, counted when a path would allocate here.
    pub alloc_cost: Cost,
}

impl ArenaDesc {
    /// An exclusive arena of `native`'s own memory, reachable by no other device.
    #[must_use]
    pub fn new(name: &str, kind: ArenaKind, native: DeviceId) -> Self {
        Self {
            name: name.into(),
            kind,
            native,
            remotes: DeviceSet::EMPTY,
            concurrency: Concurrency::Exclusive,
            alloc_align: 64,
            alloc_cost: Cost::from_ns(1_000),
        }
    }

    /// Sets the remote devices.
    #[must_use]
    pub fn with_remotes(mut self, remotes: DeviceSet) -> Self {
        self.remotes = remotes;
        self
    }

    /// Sets who may touch one storage at the same time.
    #[must_use]
    pub fn with_concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets the alignment of internal allocations.
    #[must_use]
    pub fn with_alloc_align(mut self, bytes: u64) -> Self {
        self.alloc_align = bytes;
        self
    }

    /// Sets the estimated time of one allocation.
    #[must_use]
    pub fn with_alloc_cost(mut self, cost: Cost) -> Self {
        self.alloc_cost = cost;
        self
    }

    /// Whether native and remote device are the same, so that the storage is accessible to it in every map state.
    #[must_use]
    pub fn is_always_bimapped(&self) -> bool {
        self.remotes.contains(self.native)
    }
}

/// A framework's own handle for a storage: `cl_mem`, a CUDA device pointer, the address of host memory.
///
/// Core carries it and never interprets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeHandle(pub usize);

/// One contiguous allocation of an arena, owned through a [`BlockRef`]; dropping the last reference frees it.
///
/// References to it are lent to kernels, which may keep them: a block gives access to nothing by itself. Its methods and its
/// destructor are called as an arena's are (A-6).
pub trait Block: Any + Send + Sync + fmt::Debug {
    /// The size in bytes.
    fn len(&self) -> u64;

    /// Whether the block has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The framework's own handle.
    fn native(&self) -> NativeHandle;

    /// What the block is made over, where that is not storage of its own. A block whose author touches such storage holds the
    /// [`Backing`] and shows it here, always the same one.
    fn backing(&self) -> Option<&Backing> {
        None
    }
}

/// A shared reference to a block.
pub type BlockRef = Arc<dyn Block>;

impl dyn Block {
    /// The block as its concrete type, where it is of that type.
    #[must_use]
    pub fn downcast_ref<B: Block>(&self) -> Option<&B> {
        (self as &dyn Any).downcast_ref()
    }
}

/// A block just made, to which nobody else has a reference, and its host memory. Whoever passes one on cannot part the two:
/// the arena inside writes the memory by the block.
#[derive(Debug)]
pub struct NewBlock {
    pub(crate) block: BlockRef,
    pub(crate) host: Option<HostMemory>,
}

impl NewBlock {
    /// A block that the host does not see.
    #[must_use]
    pub fn new(block: BlockRef) -> Self {
        Self { block, host: None }
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> &BlockRef {
        &self.block
    }

    /// The block alone; its host memory goes.
    #[must_use]
    pub fn into_block(self) -> BlockRef {
        self.block
    }

    /// Where the block is host memory.
    #[must_use]
    pub fn host(&self) -> Option<&HostSpan> {
        self.host.as_ref().map(HostMemory::span)
    }

    /// Whether nobody else has the block; its own host memory may.
    pub(crate) fn is_new(&mut self) -> bool {
        let Self { block, host } = self;
        // Nothing but this asks for both counts at once.
        let is_new = |block: &mut BlockRef| Arc::get_mut(block).is_some();
        match host {
            Some(host) if host.is_kept_by(block) => host.without_share(block, is_new),
            _ => is_new(block),
        }
    }

    /// Whether the block says that it is over this storage, or over none but its own, and its host memory is its own.
    pub(crate) fn is_over(&self, backing: Option<&Backing>) -> bool {
        let is_own = self.host.as_ref().is_none_or(|host| host.is_for(&self.block));
        let is_over = match (self.block.backing(), backing) {
            (None, None) => true,
            (Some(shown), Some(asked)) => shown.is(asked),
            _ => false,
        };
        is_own && is_over
    }

    /// A block that is host memory, all of it.
    #[must_use]
    pub fn with_host(mut self, memory: HostMemory) -> Self {
        self.host = Some(memory);
        self
    }
}

/// What an arena answers to a map-state change: the state that now holds, whatever was asked.
#[derive(Debug)]
pub struct MapReport {
    /// The map state now. Core checks it: a report that takes the storage from a device still using it wedges the
    /// buffer ([`AcquireError::ArenaContract`](crate::AcquireError::ArenaContract)).
    pub state: MapState,
    /// Where the host now sees the whole block, if the change gave the host access. Nothing where the memory that core has
    /// from an earlier report is still right.
    pub host: Option<HostMemory>,
}

/// The end of work that an arena has started, for those who can be told of it.
///
/// Its methods and its destructor are called as an arena's are (A-6); one that panics counts as work that failed. (`hostile`
/// `a_dropped_flight_waits_lets_nobody_in_and_commits_nothing`; `awaiting` `i15_a_completion_that_panics_is_a_failed_copy`)
pub trait Completion: Send {
    /// Blocks until the work ends and returns how many bytes it moved.
    ///
    /// # Errors
    /// Whatever the framework reports of the transfer.
    fn wait(self: Box<Self>) -> Result<u64, TransferError>;

    /// Whether the work has ended, and how; if it has not, the `waker` of the last call is called when it has. Not called
    /// again once it has ended; [`wait`](Completion::wait) may follow where it has not.
    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>>;
}

type Blocking = Box<dyn FnOnce() -> Result<u64, TransferError> + Send>;

/// Work an arena has started and the engine will wait for.
///
/// Dropping a fence without waiting still waits, so the memory under a transfer stays alive until it is done.
#[must_use = "an unwaited fence hides whether the transfer worked"]
pub struct Fence(Option<Pending>);

enum Pending {
    Done(u64),
    Running(Blocking),
    Awaited(Box<dyn Completion>),
}

impl Pending {
    fn wait(self) -> Result<u64, TransferError> {
        match self {
            Self::Done(bytes) => Ok(bytes),
            Self::Running(wait) => wait(),
            Self::Awaited(completion) => completion.wait(),
        }
    }
}

impl Fence {
    /// Work that is already done and moved `bytes` bytes.
    pub const fn done(bytes: u64) -> Self {
        Self(Some(Pending::Done(bytes)))
    }

    /// Work still under way, of a framework that can only be waited for: `wait` blocks until it ends and returns how many
    /// bytes it moved. A future that meets such a fence blocks its thread as long.
    pub fn running(wait: impl FnOnce() -> Result<u64, TransferError> + Send + 'static) -> Self {
        Self(Some(Pending::Running(Box::new(wait))))
    }

    /// Work still under way whose end wakes whoever awaits it.
    pub fn awaited(completion: impl Completion + 'static) -> Self {
        Self(Some(Pending::Awaited(Box::new(completion))))
    }

    /// Returns whether the work can only be waited for.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self.0, Some(Pending::Running(_)))
    }

    /// Blocks until the work ends and returns how many bytes it moved.
    ///
    /// # Errors
    /// Whatever the framework reports of the transfer.
    pub fn wait(mut self) -> Result<u64, TransferError> {
        self.0.take().map_or(Ok(0), Pending::wait)
    }

    /// Whether the work has ended, and how; if it has not, `waker` is called when it has. Work that can only be waited for
    /// is waited for. Not to be polled again once it has ended.
    ///
    /// # Errors
    /// Whatever the framework reports of the transfer.
    pub fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        let ended = match &mut self.0 {
            Some(Pending::Awaited(completion)) => completion.poll(waker),
            _ => return Poll::Ready(self.0.take().map_or(Ok(0), Pending::wait)),
        };
        if ended.is_ready() {
            self.0 = None;
        }
        ended
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Some(pending) = self.0.take() {
            // Nobody is left to hear the outcome; the memory under the transfer must still outlive it.
            let _ = pending.wait();
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(Pending::Running(_) | Pending::Awaited(_)) => "Fence(running)",
            _ => "Fence(done)",
        })
    }
}

/// One memory, or one memory framework.
///
/// Every method is called without any lock of core held, from any thread, and never for something the abstract
/// machine forbids: a block is mapped only when nobody loses access by it, copied only while the device that does it
/// has access, and freed once, after its last user.
///
/// # What an arena owes
/// An arena may be safe code, and nothing that it does, keeps or answers then makes for undefined behaviour: requests that
/// touch bytes or mappings are made by core alone ([`CopyIn`] and its siblings), and host memory is handed over once
/// ([`HostMemory`]), and so is the storage that a block is made over ([`Backing`]). What it owes beyond that, and what comes of
/// it otherwise:
///
/// - **A-1** A block is new: nobody else has a reference to it, until core lends some. It has the bytes asked for, and so has the
///   host memory that comes with it, aligned as the description says. It is over the storage that it was asked for over, or over
///   its own. Otherwise the allocation fails, as out of memory or as a broken contract. (`hostile`
///   `every_lie_is_told_for_what_it_is`, `host_memory_of_safe_code_is_the_grants_alone`,
///   `a_block_over_other_storage_is_refused`)
/// - **A-2** A fence reports the bytes that were moved. Fewer than asked for is a failed copy, and so is more. (`hostile`
///   `every_lie_is_told_for_what_it_is`)
/// - **A-3** A transfer is dropped before its fence ends. One that is kept breaks the contract, and the buffer serves nobody any
///   more. (`hostile` `every_lie_is_told_for_what_it_is`, `a_fill_that_is_kept_breaks_the_contract`)
/// - **A-4** A map report is true, serves the device that it was asked for, takes access from nobody who has it, and names the
///   block's memory where the host is let in. A mapping ends only when its memory is back. Otherwise the contract is broken.
///   (`hostile` `every_lie_is_told_for_what_it_is`, `the_memory_of_one_block_is_not_anothers`; `faults`, `reported`)
/// - **A-5** Map states change when core asks, and not otherwise. An arena that can tell says what they are
///   ([`map_state`](Self::map_state)), and core looks after every copy. (`hostile` `every_lie_is_told_for_what_it_is`)
/// - **A-6** Calls may panic, call back into core, and take their time: none is made under a lock of core. A panic is the failure
///   of what was asked and of nothing else. (`hostile` `a_panic_of_any_call_is_the_failure_of_what_was_asked_alone`,
///   `any_call_may_call_back_into_core`, `a_call_that_hangs_keeps_those_alone_who_need_its_end`)
/// - **A-7** The description counts as it was when the arena was added to a platform. (`hostile`
///   `a_description_counts_as_it_was_first`)
/// - **A-8** [`tail`](Self::tail) ends no earlier than what was launched before. (`hostile`
///   `what_was_launched_ends_before_anybody_is_let_in`)
///
/// Unsafe code in an arena owes what [`HostMemory::new`] says, and touches host memory only as long as it holds the request
/// that lends it, and storage that a block is over only for requests for that block, which holds its [`Backing`] and shows it.
///
/// # Panics
/// An implementation may panic when asked for the impossible; core turns a panic into a failed operation.
pub trait Arena: Any + Send + Sync + fmt::Debug {
    /// The fixed facts. Asked once, when the arena is added to a platform.
    fn desc(&self) -> &ArenaDesc;

    /// Allocates `len` bytes aligned to [`ArenaDesc::alloc_align`]. The contents are unspecified but readable.
    ///
    /// # Errors
    /// [`AllocError`] where the memory cannot be had.
    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError>;

    /// Makes a block over storage of the application, which has an address in host memory. Core gives the storage back to the
    /// application when the buffer closes. The block says what it is over ([`Block::backing`]).
    ///
    /// # Errors
    /// [`AllocError`] where this arena cannot use it.
    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        let _ = storage;
        Err(AllocError::unsupported(self.desc(), "external storage"))
    }

    /// Makes a block of this arena over the storage of a block of another arena, the root, which is used for longer. The block
    /// says what it is over ([`Block::backing`]). Where both arenas are native to one device, core goes on using the root's
    /// host memory unless other is named.
    ///
    /// # Errors
    /// [`AllocError`] where the framework refuses the storage.
    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        let _ = root;
        Err(AllocError::unsupported(self.desc(), "bound storage"))
    }

    /// Returns a block to the memory it came from. By default the last reference frees it, and no arena may free it before:
    /// kernels may have kept theirs.
    fn free(&self, block: BlockRef) {
        drop(block);
    }

    /// Takes a block to a map state in which a remote device has access. Who is not in the target must not keep access where
    /// it is not bimapped: the device is to write then, and the others must ask again to see what it wrote.
    ///
    /// # Errors
    /// [`TransferError`] where the framework fails; the map state is then as before.
    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError>;

    /// Takes a block to a map state in which the native device has access again.
    ///
    /// # Errors
    /// [`TransferError`] where the framework fails; the map state is then as before.
    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError>;

    /// The map state of a block, as far as the arena can tell without asking the framework.
    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        let _ = block;
        None
    }

    /// Starts copying host memory into a block, without a change of map state.
    ///
    /// # Errors
    /// [`TransferError`] where the copy could not be started.
    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError>;

    /// Starts copying from a block into host memory, without a change of map state.
    ///
    /// # Errors
    /// [`TransferError`] where the copy could not be started.
    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError>;

    /// Starts setting bytes of a block.
    ///
    /// # Errors
    /// [`TransferError`] where it could not be started.
    fn fill(&self, fill: Fill) -> Result<Fence, TransferError>;

    /// The end of everything that has been launched on the arena so far. Core waits for it before it takes storage back
    /// that was handed out for writing and is not released in the regular way.
    ///
    /// # Errors
    /// [`TransferError`] where the framework fails, which ends the wait.
    fn tail(&self) -> Result<Fence, TransferError> {
        Ok(Fence::done(0))
    }

    /// Whether the native device is gone for good, as far as the arena knows. The arena has the last word on it: a copy
    /// has two ends, and an error does not say which of them is gone.
    ///
    /// Asked whenever something failed, so it must be cheap: what earlier calls found out, not a call of the framework.
    /// Once it is true it stays true. See [`Platform::notice_losses`](crate::Platform::notice_losses).
    fn is_lost(&self) -> bool {
        false
    }

    /// Why the device is gone, in words for people, where the arena knows more than that it is.
    fn loss(&self) -> Option<Arc<str>> {
        None
    }
}

impl dyn Arena {
    /// The arena as its concrete type, where it is of that type.
    #[must_use]
    pub fn downcast_ref<A: Arena>(&self) -> Option<&A> {
        (self as &dyn Any).downcast_ref()
    }
}
