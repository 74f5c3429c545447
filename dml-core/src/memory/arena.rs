//! The interface between core and a memory: the [`Arena`] trait and the values that cross it.
//!
//! ```text
//!   engine ──alloc / bind──▶ Arena ──▶ Block (storage, native handle)
//!          ──map / unmap───▶       ──▶ MapReport (who may touch it now; authoritative)
//!          ──copy_in / copy_out / fill──▶ Fence (waited for by the engine)
//! ```
//!
//! An arena validates nothing: core never asks for what the abstract machine forbids. A request for something
//! impossible is a bug in core, and the arena panics with a message that says so. It reports as errors only
//! what core cannot foresee: out of memory, a lost device, a failed copy.

use crate::base::sync::Arc;
use crate::memory::block::{BlockRef, NewBlock};
use crate::memory::desc::ArenaDesc;
use crate::memory::error::{AllocError, TransferError};
use crate::memory::fence::Fence;
use crate::memory::host::HostMemory;
use crate::memory::map_state::MapState;
use crate::memory::request::{Backing, CopyIn, CopyOut, Fill, MapRequest, UnmapRequest};
use std::any::Any;
use std::fmt;

/// An arena's answer to a change of map state: the state that now holds, whatever was requested.
#[derive(Debug)]
pub struct MapReport {
    /// The present map state, which core checks. A report that denies access to a device still using the
    /// storage wedges the buffer ([`AcquireError::ArenaContract`](crate::AcquireError::ArenaContract)).
    pub state: MapState,
    /// The host's view of the whole block, if the change gave the host access. `None` where the memory from
    /// an earlier report is still correct.
    pub host: Option<HostMemory>,
}

/// One memory, or one memory framework.
///
/// Core calls every method from any thread, without holding a lock, and never for something that the abstract
/// machine forbids. It maps a block only when no user loses access by it. It copies only while the device
/// that does the copy has access. It frees a block once, after its last user.
///
/// # The arena's obligations
/// An arena may be safe code, and then nothing that it does, keeps or returns causes undefined behaviour.
/// Only core makes requests that touch bytes or mappings ([`CopyIn`] and its siblings). Host memory is handed
/// over once ([`HostMemory`]), and so is the storage under a block ([`Backing`]). The other obligations, and
/// the consequences of breaking them, are:
///
/// - **A-1** A block is new: no other reference to it exists until core lends some. The block and its host
///   memory have at least the requested size, and the host memory is aligned as described. The block is over
///   the storage that core passed in, or over its own if core passed none. Otherwise the allocation fails, as
///   out of memory or as a broken contract. (`hostile` `every_lie_is_told_for_what_it_is`,
///   `host_memory_of_safe_code_is_the_grants_alone`, `a_block_over_other_storage_is_refused`,
///   `a_block_serves_one_buffer`, `a_block_that_another_thread_has_is_refused`)
/// - **A-2** A fence reports the number of bytes that were moved. Fewer or more bytes than requested mean a
///   failed copy. (`hostile` `every_lie_is_told_for_what_it_is`)
/// - **A-3** A transfer is dropped before its fence ends. Keeping one breaks the contract, and the buffer
///   then refuses all requests. (`hostile` `every_lie_is_told_for_what_it_is`,
///   `a_fill_that_is_kept_breaks_the_contract`)
/// - **A-4** A map report is true, and gives the requested device its access. It takes access from no present
///   user, and names the block's memory if the host gets access. A mapping ends only after its memory is
///   back. Otherwise the contract is broken. (`hostile` `every_lie_is_told_for_what_it_is`,
///   `the_memory_of_one_block_is_not_anothers`; `faults` `i19_a_wrong_map_state_wedges_the_buffer`;
///   `requests` `i06_a_plan_whose_arena_reports_less_access_than_planned_is_not_granted`)
/// - **A-5** Map states change only when core asks. An arena that can tell reports them through
///   [`map_state`](Self::map_state), and core checks after every copy, whether it succeeded or not.
///   (`hostile` `every_lie_is_told_for_what_it_is`,
///   `a_map_state_that_a_copy_changes_is_noticed_wherever_it_is_copied`)
/// - **A-6** Calls may panic, call back into core, and take a long time, because core makes none under a
///   lock. A panic fails only the operation that was requested. (`hostile`
///   `a_panic_of_any_call_is_the_failure_of_what_was_asked_alone`, `any_call_may_call_back_into_core`,
///   `a_call_that_hangs_keeps_those_alone_who_need_its_end`)
/// - **A-7** Core uses the description as it was when the arena was added to a platform. (`hostile`
///   `a_description_counts_as_it_was_first`)
/// - **A-8** [`tail`](Self::tail) ends no earlier than the work launched before it. (`hostile`
///   `what_was_launched_ends_before_anybody_is_let_in`)
///
/// Unsafe code in an arena must keep the contract of [`HostMemory::new`]. It touches host memory only while
/// it holds the request that lends that memory. It touches storage under a block only for requests for that
/// block, which holds its [`Backing`] and shows it.
///
/// # Panics
/// An implementation may panic when asked for the impossible. Core turns a panic into a failed operation.
pub trait Arena: Any + Send + Sync + fmt::Debug {
    /// Returns the arena's fixed properties. Core asks once, when the arena is added to a platform.
    fn desc(&self) -> &ArenaDesc;

    /// Allocates `len` bytes aligned to [`ArenaDesc::alloc_align`]. The contents are unspecified but
    /// readable.
    ///
    /// # Errors
    /// [`AllocError`] if the memory cannot be allocated.
    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError>;

    /// Makes a block over storage of the application, which has an address in host memory. Core returns the
    /// storage to the application when the buffer closes. The block reports its storage through
    /// [`Block::backing`](crate::Block::backing).
    ///
    /// # Errors
    /// [`AllocError`] if this arena cannot use the storage.
    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        let _ = storage;
        Err(AllocError::unsupported(self.desc(), "external storage"))
    }

    /// Checks that a block over the application's device memory belongs to this arena. The arena's own
    /// backend made the block, called by unsafe code of the application, and the host cannot address the
    /// memory. Core then uses the block like one from [`alloc`](Self::alloc). The default refuses.
    ///
    /// # Errors
    /// [`AllocError::Unsupported`] if the block is not this arena's, or the arena takes no such memory.
    fn admit(&self, block: &BlockRef) -> Result<(), AllocError> {
        let _ = block;
        Err(AllocError::unsupported(self.desc(), "memory of the application"))
    }

    /// Makes a block of this arena over the storage of another arena's block, the root, which outlives the
    /// new block. The block reports its storage through [`Block::backing`](crate::Block::backing). If both
    /// arenas are native to one device, core keeps using the root's host memory unless the new block comes
    /// with its own.
    ///
    /// # Errors
    /// [`AllocError`] if the framework refuses the storage.
    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        let _ = root;
        Err(AllocError::unsupported(self.desc(), "bound storage"))
    }

    /// Returns a block to the memory it came from. By default the last reference frees it. No arena may free
    /// it earlier, because kernels may still hold references.
    fn free(&self, block: BlockRef) {
        drop(block);
    }

    /// Changes the map state of a block so that a remote device has access. Unless the target is bimapped,
    /// devices outside it must lose their access. The requested device may write then, and the others must
    /// map again to see what it wrote.
    ///
    /// Core never calls this for an arena without remote devices. The default panics.
    ///
    /// # Errors
    /// [`TransferError`] if the framework fails. The map state then stays as it was.
    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        never_mapped(self.desc(), &request)
    }

    /// Changes the map state of a block so that the native device has access again. As with
    /// [`map`](Self::map), the default is for arenas without remote devices.
    ///
    /// # Errors
    /// [`TransferError`] if the framework fails. The map state then stays as it was.
    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        never_mapped(self.desc(), &request)
    }

    /// Returns the map state of a block, if the arena can tell without asking the framework.
    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        let _ = block;
        None
    }

    /// Starts copying host memory into a block, without a change of map state.
    ///
    /// # Errors
    /// [`TransferError`] if the copy could not be started.
    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError>;

    /// Starts copying from a block into host memory, without a change of map state.
    ///
    /// # Errors
    /// [`TransferError`] if the copy could not be started.
    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError>;

    /// Starts setting bytes of a block to one value.
    ///
    /// # Errors
    /// [`TransferError`] if the fill could not be started.
    fn fill(&self, fill: Fill) -> Result<Fence, TransferError>;

    /// Returns whether [`launch_behind`](Self::launch_behind) and [`copy_out_behind`](Self::copy_out_behind)
    /// may succeed. If not, the default, core does not try.
    fn orders_work(&self) -> bool {
        false
    }

    /// Has every kernel that is launched from now on begin on the device behind these transfers to the arena.
    /// Returns whether it will; if not, core waits for the transfers before the launch.
    ///
    /// Core calls this before it launches a kernel on blocks that the transfers fill, if the launcher
    /// [follows copies](crate::Launcher::follows_copies). The default returns `false`.
    fn launch_behind(&self, transfers: &[&Fence]) -> bool {
        let _ = transfers;
        false
    }

    /// As [`copy_out`](Self::copy_out), but the copy begins on the device behind a kernel that was launched.
    ///
    /// # Errors
    /// [`TransferError::Infeasible`], the default, if the arena cannot order the two. Core then begins the
    /// copy after it has waited for the kernel.
    fn copy_out_behind(&self, copy: CopyOut, kernel: &Fence) -> Result<Fence, TransferError> {
        let _ = (copy, kernel);
        Err(TransferError::Infeasible)
    }

    /// Returns a fence for the end of all work launched on the arena so far. Core waits for it before it
    /// takes back storage that was handed out for writing and is not released normally.
    ///
    /// # Errors
    /// [`TransferError`] if the framework fails, which ends the wait.
    fn tail(&self) -> Result<Fence, TransferError> {
        Ok(Fence::done(0))
    }

    /// Returns whether the native device is permanently lost, as far as the arena knows. The arena decides
    /// this, because a copy has two ends and its error does not say which one failed.
    ///
    /// Core asks after every failure, so the call must be cheap: it reports what earlier calls found, without
    /// calling the framework. Once `true`, the answer stays `true`. See
    /// [`Platform::notice_losses`](crate::Platform::notice_losses).
    fn is_lost(&self) -> bool {
        false
    }

    /// Returns the cause of the loss as text for messages, if the arena knows it.
    fn loss(&self) -> Option<Arc<str>> {
        None
    }
}

/// Panics because an arena without remote devices was asked to change a map state.
fn never_mapped(desc: &ArenaDesc, request: &dyn fmt::Debug) -> ! {
    panic!("core bug: {} has no map states and was asked for {request:?}", desc.name)
}

impl dyn Arena {
    /// Returns the arena as `A`, if it is of that type.
    #[must_use]
    pub fn downcast_ref<A: Arena>(&self) -> Option<&A> {
        (self as &dyn Any).downcast_ref()
    }
}
