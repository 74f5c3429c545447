//! An open GPU: its context, its streams and its memory pool.
//!
//! ```text
//!   kernels   launches, and commands of frameworks; two further streams for concurrent launches
//!   inward    host memory ──▶ device, fills         each in order, all at once: core keeps commands on the
//!   outward   device ──▶ host memory                same bytes apart
//!   results   device ──▶ host memory, behind a kernel
//!   peers     device ──▶ another GPU
//!   aside     allocations and frees
//! ```

use super::completion::{Command, Event, Lane};
use super::device::Found;
use super::error::{FORKED, Failure, check, is_lost, transfer_error, words};
use super::idle::Idle;
use super::kernel::Program;
use super::marks::{Marks, Submitted};
use super::together::{LAUNCH, Ready, Together};
use crate::compiled::Beside;
use crate::fork::Origin;
use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUevent, CUevent_flags, CUfunction, CUgraph, CUgraphExec, CUgraphNode,
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUmodule, CUresult, CUstream,
    CUstream_flags, cuCtxEnablePeerAccess, cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, cuCtxSynchronize,
    cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRetain, cuEventCreate, cuEventDestroy_v2, cuEventRecord,
    cuMemAlloc_v2, cuMemAllocFromPoolAsync, cuMemFree_v2, cuMemFreeAsync, cuMemPoolCreate, cuMemPoolDestroy,
    cuMemPoolSetAccess, cuMemPoolSetAttribute, cuMemPoolTrimTo, cuStreamCreate, cuStreamDestroy_v2,
    cuStreamSynchronize, cuStreamWaitEvent,
};
use dml_core::internal::sync::{Arc, Mutex, MutexGuard};
use dml_core::{BlockRef, Fence, NativeHandle, TransferError};
use std::any::Any;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The call that records the event at the end of a command.
pub(super) const RECORD: &str = "cuEventRecord";
const WAIT: &str = "cuStreamWaitEvent";
/// [`RECORD`] for earlier launches. If it fails, the current launch has not begun.
const RECORD_BEFORE: &str = "cuEventRecord before a launch";
/// Divisor of the device's memory. The result is the release threshold of the pool, and the limit of idle
/// memory.
const KEPT: u64 = 16;
/// The driver's handle of the calling thread's default stream (`CU_STREAM_PER_THREAD`).
const STREAM_PER_THREAD: usize = 2;
/// The number of streams for commands, one for each [`Way`].
const LANES: usize = 7;
/// Maximum number of events that are kept for later commands.
const MOST_EVENTS: usize = 256;

/// A handle of the driver that any thread may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raw<T>(pub(super) T);

/// A type of driver handles.
///
/// # Safety
/// 1. Any thread may use such a handle, at the same time as others; a graph's, while no other thread does.
pub(super) unsafe trait Handle {}

macro_rules! handles {
    ($($handle:ty),*) => {
        // SAFETY: driver handles are not tied to threads, and driver calls on them are thread-safe (CUDA
        // driver API, "API synchronization behavior" and "stream synchronization behavior"). Graphs are used
        // under a lock ("graph object thread safety").
        $(unsafe impl Handle for $handle {})*
    };
}

handles!(CUcontext, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmemoryPool, CUmodule, CUstream);

// SAFETY: guaranteed by `Handle` (1).
unsafe impl<T: Handle> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T: Handle> Sync for Raw<T> {}

/// The streams of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Kernels in the order of their launches.
    Kernels,
    /// Kernels that may run concurrently with those, and with each other.
    Beside,
    FurtherBeside,
    Inward,
    Outward,
    /// Device to host, behind a kernel that may still be running.
    Results,
    Peers,
}

/// The ways of kernels. Only the stream of the first one is public.
pub(super) const KERNELS: [Way; 3] = [Way::Kernels, Way::Beside, Way::FurtherBeside];

/// A GPU's context, streams and pool. Blocks, kernels and fences hold the session, so it outlives them.
///
/// In a fork of the process that opened it, the device is lost.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) found: Found,
    context: Raw<CUcontext>,
    lanes: [Arc<Lane>; LANES],
    /// The lanes of streams of the application.
    lanes_of_others: Mutex<Vec<Arc<Lane>>>,
    /// Counts the kernels that may run concurrently.
    beside: Beside,
    /// The kernels that were submitted.
    pub(super) marks: Marks,
    /// Submitted kernels that wait for the next ones. Locked by a thread that keeps others from enqueueing.
    together: Mutex<Together>,
    aside: Raw<CUstream>,
    pool: Option<Raw<CUmemoryPool>>,
    idle: Mutex<Idle>,
    events: Mutex<Vec<Raw<CUevent>>>,
    /// The total size of all live blocks, in bytes.
    reserved_bytes: AtomicU64,
    /// Why the device is lost; empty while it is not.
    loss: OnceLock<Arc<str>>,
    origin: Origin,
}

/// Keeps the device's context current on the calling thread until it is dropped.
pub(super) struct Entered<'a> {
    /// A context is current on one thread, so this is not `Send`.
    _on_thread: PhantomData<(&'a Session, *const ())>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: pops the context that `enter` pushed on this thread.
        let _ = unsafe { cuCtxPopCurrent_v2(&raw mut context) };
    }
}

/// A reservation of device memory for one block, released on drop.
#[derive(Debug)]
pub(super) struct Reservation {
    session: Arc<Session>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.session.reserved_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Makes a context current on this thread.
///
/// # Errors
/// The failed call.
fn enter<'a>(context: Raw<CUcontext>) -> Result<Entered<'a>, Failure> {
    push(context.0)?;
    Ok(Entered { _on_thread: PhantomData })
}

fn push(context: CUcontext) -> Result<(), Failure> {
    // SAFETY: the context is retained while it may be used.
    check("cuCtxPushCurrent", unsafe { cuCtxPushCurrent_v2(context) })
}

fn pop() {
    drop(Entered { _on_thread: PhantomData });
}

/// Creates a stream in the current context.
fn stream() -> Result<Raw<CUstream>, Failure> {
    let mut stream = std::ptr::null_mut();
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: a context is current, and the call writes a handle.
    check("cuStreamCreate", unsafe { cuStreamCreate(&raw mut stream, flags) })?;
    Ok(Raw(stream))
}

/// Creates the streams of a session: one for each lane, and `aside`. If one fails, the earlier ones are
/// destroyed.
fn streams() -> Result<([Raw<CUstream>; LANES], Raw<CUstream>), Failure> {
    let mut lanes: Vec<Raw<CUstream>> = Vec::new();
    let next = |made: &[Raw<CUstream>]| {
        stream().inspect_err(|_| {
            for stream in made {
                // SAFETY: an unused stream of this context. Other code may retain the context, so releasing
                // it would not destroy the stream.
                let _ = unsafe { cuStreamDestroy_v2(stream.0) };
            }
        })
    };
    while lanes.len() < LANES {
        lanes.push(next(&lanes)?);
    }
    let aside = next(&lanes)?;
    Ok((std::array::from_fn(|lane| lanes[lane]), aside))
}

/// Creates a pool of the device's memory. Returns `None` if the driver has no pools, or creating one fails.
fn pool(found: &Found) -> Option<Raw<CUmemoryPool>> {
    if !found.has_pools {
        return None;
    }
    // SAFETY: zero is a value of every field, and the driver requires zeros in reserved fields.
    let mut properties: CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    properties.location = on_device(found);
    let mut pool = std::ptr::null_mut();
    // SAFETY: a context is current; the call reads the properties and writes a handle.
    check("cuMemPoolCreate", unsafe { cuMemPoolCreate(&raw mut pool, &raw const properties) }).ok()?;
    let mut kept = found.memory_bytes / KEPT;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: a live pool, and the address of a 64-bit number, as this attribute requires.
    let _ = unsafe { cuMemPoolSetAttribute(pool, attribute, (&raw mut kept).cast()) };
    Some(Raw(pool))
}

fn on_device(found: &Found) -> CUmemLocation {
    // SAFETY: zero is a value of every field.
    let mut location: CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = found.device;
    location
}

impl Session {
    /// Opens a device.
    ///
    /// # Errors
    /// A sentence that names the failed call and its error.
    pub(super) fn open(found: &Found) -> Result<Arc<Self>, String> {
        let said = |failure: Failure| format!("{} failed: {}", failure.call, words(failure.code));
        let mut context = std::ptr::null_mut();
        // SAFETY: a device of the driver; the call writes a handle, which `Drop` releases.
        check("cuDevicePrimaryCtxRetain", unsafe {
            cuDevicePrimaryCtxRetain(&raw mut context, found.device)
        })
        .map_err(said)?;
        let streams = || -> Result<_, Failure> {
            push(context)?;
            let made = streams().map(|streams| (streams, pool(found)));
            pop();
            made
        };
        let ((lanes, aside), pool) = streams().map_err(|failure| {
            // SAFETY: retained above.
            let _ = unsafe { cuDevicePrimaryCtxRelease_v2(found.device) };
            said(failure)
        })?;
        Ok(Arc::new(Self {
            found: found.clone(),
            context: Raw(context),
            lanes: lanes.map(Lane::new),
            lanes_of_others: Mutex::default(),
            beside: Beside::default(),
            marks: Marks::default(),
            together: Mutex::default(),
            aside,
            pool,
            // Without a pool, other code can only get memory that is back in the driver, so nothing is kept
            // idle.
            idle: Mutex::new(Idle::new(pool.map_or(0, |_| found.memory_bytes / KEPT))),
            events: Mutex::new(Vec::new()),
            reserved_bytes: AtomicU64::new(0),
            loss: OnceLock::new(),
            origin: Origin::here(),
        }))
    }

    fn lane(&self, way: Way) -> &Arc<Lane> {
        &self.lanes[way as usize]
    }

    /// Keeps other threads from enqueueing on a stream until the result is dropped. What waits to be enqueued
    /// there is. The context must be current.
    fn in_order(&self, way: Way) -> MutexGuard<'_, ()> {
        let in_order = self.lane(way).in_order();
        if way == Way::Kernels {
            self.launch_waiting();
        }
        in_order
    }

    /// Launches the submitted kernels that wait for others. The context must be current, and no other thread
    /// may enqueue.
    fn launch_waiting(&self) {
        let mut together = self.together.lock();
        if together.is_empty() {
            return;
        }
        // SAFETY: live functions with their arguments, and blocks that live until their kernels have ended
        // (`submit_one`).
        let launched = unsafe { together.launch(self.lane(Way::Kernels).stream()) };
        drop(together);
        if let Err((first, failure)) = launched {
            self.marks.fail_from(first, &self.failed(failure));
        }
    }

    /// Forgets the functions of a program that is to be unloaded. The context must be current.
    pub(super) fn forget_functions(&self) {
        let _in_order = self.lane(Way::Kernels).in_order();
        self.together.lock().forget();
    }

    /// Launches a kernel that may run concurrently with others, on the kernel streams in turn.
    pub(super) fn beside<T>(&self, launch: impl FnOnce(Way) -> T) -> T {
        self.beside.launch(KERNELS.len(), |turn| launch(KERNELS[turn]))
    }

    /// Makes the context current on this thread.
    ///
    /// # Errors
    /// [`TransferError::DeviceLost`] if the device is lost, or in a fork.
    pub(super) fn enter(&self) -> Result<Entered<'_>, TransferError> {
        if self.is_lost() { Err(TransferError::DeviceLost { loss: None }) } else { self.enter_lost() }
    }

    /// Makes the context current like [`enter`](Self::enter), also if the device is lost. For waiting and
    /// cleanup.
    pub(super) fn enter_lost(&self) -> Result<Entered<'_>, TransferError> {
        if !self.is_here() {
            return Err(TransferError::DeviceLost { loss: None });
        }
        enter(self.context).map_err(|failure| self.failed(failure))
    }

    /// Returns the handles of a stream and of the context.
    pub(super) fn native(&self, way: Way) -> (NativeHandle, NativeHandle) {
        (NativeHandle(self.lane(way).stream().addr()), NativeHandle(self.context.0.addr()))
    }

    /// Returns the context for a call.
    pub(super) fn context(&self) -> CUcontext {
        self.context.0
    }

    /// Returns whether this process opened the session, so that it may call the driver.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Returns whether the device is lost. A loss is final.
    pub(super) fn is_lost(&self) -> bool {
        self.loss.get().is_some() || !self.is_here()
    }

    /// Returns why the device is lost, if it is.
    pub(super) fn loss(&self) -> Option<Arc<str>> {
        if self.is_here() { self.loss.get().cloned() } else { Some(FORKED.into()) }
    }

    /// Marks the device as lost. The first reason counts.
    pub(super) fn lose(&self, reason: &str) {
        let _ = self.loss.set(reason.into());
    }

    /// Marks the device as lost if the failure means that.
    pub(super) fn note(&self, failure: Failure) {
        if is_lost(failure.code) {
            self.lose(&format!("{} failed: {}", failure.call, words(failure.code)));
        }
    }

    /// Returns the error of a failed call on this device. Marks the device as lost if the failure means that.
    pub(super) fn failed(&self, failure: Failure) -> TransferError {
        self.note(failure);
        transfer_error(failure)
    }

    /// Reserves `bytes` bytes, or returns `None` if the device has less memory left.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let add = |reserved: u64| reserved.checked_add(bytes).filter(|&sum| sum <= self.found.memory_bytes);
        // The count orders no other access: the driver decides about the memory itself.
        self.reserved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Reservation { session: self.clone(), bytes })
    }

    /// Takes idle memory of this size, usable on every stream.
    pub(super) fn idle(&self, size: usize) -> Option<CUdeviceptr> {
        if self.is_lost() { None } else { self.idle.lock().take(size) }
    }

    /// Allocates memory that is usable on every stream. The context must be current.
    pub(super) fn alloc(&self, bytes: usize) -> Result<CUdeviceptr, Failure> {
        let mut address = 0;
        let Some(pool) = self.pool else {
            // SAFETY: the context is current, and the call writes an address.
            let mut take = || check("cuMemAlloc", unsafe { cuMemAlloc_v2(&raw mut address, bytes) });
            take().or_else(|failure| {
                self.expect_full(failure)?;
                self.give_idle_back();
                take()
            })?;
            return Ok(address);
        };
        let aside = self.aside.0;
        let mut take = || {
            // SAFETY: the session's own pool and stream; the call writes an address.
            let taken = unsafe { cuMemAllocFromPoolAsync(&raw mut address, bytes, pool.0, aside) };
            check("cuMemAllocFromPoolAsync", taken)
        };
        // SAFETY: a live stream.
        let settle = || check("cuStreamSynchronize", unsafe { cuStreamSynchronize(aside) });
        take().or_else(|failure| {
            self.expect_full(failure)?;
            // Freed memory may be idle, not yet be back in the pool, or be too fragmented.
            self.give_idle_back();
            settle()?;
            // SAFETY: the session's own pool. No freed memory is in use.
            let _ = unsafe { cuMemPoolTrimTo(pool.0, 0) };
            take()
        })?;
        settle()?;
        Ok(address)
    }

    /// Returns a failure as an error, unless it is a lack of memory.
    fn expect_full(&self, failure: Failure) -> Result<(), Failure> {
        if failure.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY { Ok(()) } else { Err(failure) }
    }

    /// Frees memory that no command uses any more: keeps it for the next block of this size, or gives it to
    /// the driver.
    pub(super) fn free(&self, size: usize, address: CUdeviceptr) {
        if !self.is_here() {
            return;
        }
        let gone = if self.is_lost() { vec![address] } else { self.idle.lock().keep(size, address) };
        self.give_back(&gone);
    }

    /// Gives all idle memory back to the driver.
    fn give_idle_back(&self) {
        let idle = self.idle.lock().drain();
        self.give_back(&idle);
    }

    /// Gives memory back to the driver.
    fn give_back(&self, addresses: &[CUdeviceptr]) {
        if addresses.is_empty() {
            return;
        }
        let Ok(_entered) = self.enter_lost() else { return };
        for &address in addresses {
            // SAFETY: memory from `alloc`, freed once: its block is dropped, and it is no longer idle.
            let _ = unsafe {
                match self.pool {
                    Some(_) => cuMemFreeAsync(address, self.aside.0),
                    None => cuMemFree_v2(address),
                }
            };
        }
    }

    /// Gives another GPU access to this one's memory. Returns whether that succeeds.
    pub(super) fn open_to(&self, other: &Self) -> bool {
        let (Ok(_entered), flags) = (other.enter(), 0) else { return false };
        // SAFETY: two live contexts. The current one, the other GPU's, gets access to this one.
        let enabled = unsafe { cuCtxEnablePeerAccess(self.context.0, flags) };
        let open = [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED];
        if !open.contains(&enabled) {
            return false;
        }
        let Some(pool) = self.pool else { return true };
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location: on_device(&other.found), flags };
        // SAFETY: a live pool, and one description.
        unsafe { cuMemPoolSetAccess(pool.0, &raw const access, 1) == CUresult::CUDA_SUCCESS }
    }

    /// Takes an unused event. The context must be current.
    fn event(self: &Arc<Self>) -> Result<Event, Failure> {
        Ok(Event::new(self.raw_event()?, self.clone()))
    }

    /// Takes an unused event that does not return by itself. The context must be current.
    fn raw_event(&self) -> Result<Raw<CUevent>, Failure> {
        let kept = self.events.lock().pop();
        if let Some(event) = kept {
            return Ok(event);
        }
        let mut event = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the context is current, and the call writes a handle.
        check("cuEventCreate", unsafe { cuEventCreate(&raw mut event, flags) })?;
        Ok(Raw(event))
    }

    /// Takes an event back for later commands, or destroys it.
    pub(super) fn take_back(&self, event: Raw<CUevent>) {
        if !self.is_here() {
            return;
        }
        let mut events = self.events.lock();
        if events.len() < MOST_EVENTS {
            events.push(event);
            return;
        }
        drop(events);
        if let Ok(_entered) = self.enter_lost() {
            // SAFETY: an unused event of this context.
            let _ = unsafe { cuEventDestroy_v2(event.0) };
        }
    }

    /// Enqueues a command that moves `bytes` bytes, and returns its fence.
    ///
    /// `keep` is dropped after the command has ended.
    ///
    /// # Safety
    /// 1. `enqueue` enqueues commands only on the given stream. They use nothing that is dropped before
    ///    `keep`.
    pub(super) unsafe fn command(
        self: &Arc<Self>,
        (way, call): (Way, &'static str),
        bytes: u64,
        keep: impl Any + Send,
        enqueue: impl FnOnce(CUstream) -> CUresult,
    ) -> Result<Fence, TransferError> {
        let _entered = self.enter()?;
        let lane = self.lane(way);
        let event = self.event().map_err(|failure| self.failed(failure))?;
        let in_order = self.in_order(way);
        check(call, enqueue(lane.stream())).map_err(|failure| self.failed(failure))?;
        // SAFETY: an unused event, and a stream of its context.
        let recorded = check(RECORD, unsafe { cuEventRecord(event.raw(), lane.stream()) });
        if let Err(failure) = recorded {
            drop(in_order);
            // The command may still run, so wait for it while `keep` is alive.
            // SAFETY: a live stream.
            let _ = unsafe { cuStreamSynchronize(lane.stream()) };
            drop(keep);
            return Err(self.failed(failure));
        }
        let keep = Some(Box::new(keep) as Box<dyn Any + Send>);
        Ok(Fence::awaited(Command::new(call, lane, event, bytes, keep)))
    }

    /// Enqueues a kernel like [`command`](Self::command), in the order of launches. Its fence may end with a
    /// later kernel.
    ///
    /// # Safety
    /// 1. `enqueue` enqueues commands only on the given stream. They use only the blocks and the program.
    pub(super) unsafe fn submit<'a>(
        self: &Arc<Self>,
        used: (impl Iterator<Item = &'a BlockRef>, &Arc<Program>),
        enqueue: impl FnOnce(CUstream) -> CUresult,
    ) -> Result<Fence, TransferError> {
        let _entered = self.enter()?;
        let in_order = self.in_order(Way::Kernels);
        let launched = check(LAUNCH, enqueue(self.lane(Way::Kernels).stream()));
        launched.map_err(|failure| self.failed(failure))?;
        let counted = self.marks.launched(used);
        Ok(self.submitted(counted, in_order))
    }

    /// As [`submit`](Self::submit), for a kernel that is launched together with the next ones, if one follows
    /// at once. Its fence then reports that it could not be launched.
    ///
    /// # Safety
    /// 1. The function is one of the program, and has a parameter for each argument. The kernel touches only
    ///    the blocks.
    pub(super) unsafe fn submit_one<'a>(
        self: &Arc<Self>,
        used: (impl Iterator<Item = &'a BlockRef>, &Arc<Program>),
        mut ready: Ready,
        is_followed: bool,
    ) -> Result<Fence, TransferError> {
        let _entered = self.enter()?;
        let lane = self.lane(Way::Kernels);
        let in_order = lane.in_order();
        if !is_followed && self.together.lock().is_empty() {
            // SAFETY: as the caller guarantees.
            let launched = check(LAUNCH, unsafe { ready.launch(lane.stream()) });
            launched.map_err(|failure| self.failed(failure))?;
            let counted = self.marks.launched(used);
            return Ok(self.submitted(counted, in_order));
        }
        let (number, is_due) = self.marks.launched(used);
        let is_last = self.together.lock().wait(number, ready) || !is_followed;
        if is_last {
            self.launch_waiting();
        }
        Ok(self.submitted((number, is_last && is_due), in_order))
    }

    /// Returns the fence of a submitted kernel. A mark that is due is made.
    fn submitted(self: &Arc<Self>, (number, is_due): (u64, bool), in_order: MutexGuard<'_, ()>) -> Fence {
        if is_due {
            // Without this mark, a waiter makes one.
            let _ = self.mark_now();
        }
        drop(in_order);
        Fence::awaited(Submitted::new(self, LAUNCH, number))
    }

    /// Marks all kernels that were submitted so far.
    pub(super) fn mark(&self) -> Result<(), TransferError> {
        let _entered = self.enter_lost()?;
        let _in_order = self.in_order(Way::Kernels);
        self.mark_now().map_err(|failure| self.failed(failure))
    }

    /// Waits for the submitted kernels after a failure, and drops what they use.
    pub(super) fn drain(&self) {
        if let Ok(_entered) = self.enter_lost() {
            let in_order = self.in_order(Way::Kernels);
            // SAFETY: a live stream.
            let _ = unsafe { cuStreamSynchronize(self.lane(Way::Kernels).stream()) };
            let kept = self.marks.take_kept();
            drop(in_order);
            drop(kept);
        }
    }

    /// Records a mark behind all kernels. The context must be current, no other thread may enqueue, and no
    /// kernel waits.
    fn mark_now(&self) -> Result<(), Failure> {
        let event = self.raw_event()?;
        // SAFETY: an unused event, and a stream of its context.
        let recorded = check(RECORD, unsafe { cuEventRecord(event.0, self.lane(Way::Kernels).stream()) });
        match recorded {
            Ok(()) => self.marks.mark(event),
            Err(_) => self.take_back(event),
        }
        recorded
    }

    /// Returns a fence for the end of all commands enqueued so far on a stream of the application.
    ///
    /// # Safety
    /// 1. `stream` is a live stream of the context, or null for the context's default stream.
    pub(super) unsafe fn recorded(self: &Arc<Self>, stream: CUstream) -> Result<Fence, TransferError> {
        let _entered = self.enter()?;
        let event = self.event().map_err(|failure| self.failed(failure))?;
        let lane = self.lane_of(Raw(stream));
        let _in_order = lane.in_order();
        // SAFETY: an unused event, and a stream of its context, as the caller guarantees.
        let recorded = check(RECORD, unsafe { cuEventRecord(event.raw(), stream) });
        recorded.map_err(|failure| self.failed(failure))?;
        Ok(Fence::awaited(Command::new(RECORD, &lane, event, 0, None)))
    }

    /// Returns the lane of a stream of the application, and closes the application's other idle lanes.
    ///
    /// The handle `CU_STREAM_PER_THREAD` names a different stream in each thread, so each fence of it gets
    /// its own lane.
    fn lane_of(&self, stream: Raw<CUstream>) -> Arc<Lane> {
        if stream.0.addr() == STREAM_PER_THREAD {
            let alone = Lane::new(stream);
            alone.close();
            return alone;
        }
        let mut lanes = self.lanes_of_others.lock();
        let is_needed = |lane: &mut Arc<Lane>| lane.stream() == stream.0 || !lane.is_idle();
        let gone: Vec<_> = lanes.extract_if(.., |lane| !is_needed(lane)).collect();
        let lane = match lanes.iter().find(|lane| lane.stream() == stream.0) {
            Some(lane) => lane.clone(),
            None => {
                lanes.push(Lane::new(stream));
                lanes[lanes.len() - 1].clone()
            }
        };
        drop(lanes);
        gone.iter().for_each(|lane| lane.close());
        lane
    }

    /// Waits for all work enqueued in the context so far.
    pub(super) fn settle(&self) -> Result<(), TransferError> {
        let _entered = self.enter_lost()?;
        drop(self.in_order(Way::Kernels));
        // SAFETY: the context is current.
        check("cuCtxSynchronize", unsafe { cuCtxSynchronize() }).map_err(|failure| self.failed(failure))
    }

    /// Makes the kernels' stream wait for the kernels launched concurrently so far.
    pub(super) fn await_beside(self: &Arc<Self>) -> Result<(), TransferError> {
        self.beside.settle(|| {
            let _entered = self.enter()?;
            let [kernels, beside @ ..] = KERNELS;
            let _in_order = self.in_order(kernels);
            let waits = beside.into_iter().try_for_each(|way| {
                let event = self.recorded_on(way)?;
                // SAFETY: a recorded event, and a live stream of its context. Recording the event again does
                // not affect this wait.
                check(WAIT, unsafe { cuStreamWaitEvent(self.lane(kernels).stream(), event.raw(), 0) })
            });
            waits.map_err(|failure| self.failed(failure))
        })
    }

    /// Makes streams wait for commands of this session, given by their fences. Returns whether they do: not
    /// for a fence of other work, nor after a failed call.
    pub(super) fn waits_for(self: &Arc<Self>, ways: &[Way], commands: &[&Fence]) -> bool {
        commands.iter().filter(|fence| !fence.is_done()).all(|fence| {
            if let Some(command) = fence.completion::<Command>() {
                return command.event_of(self).is_some_and(|event| self.all_wait_for(ways, event));
            }
            match fence.completion::<Submitted>().and_then(|kernel| kernel.event_of(self)) {
                Some(Some(event)) => {
                    let wait = self.all_wait_for(ways, event.0);
                    if let Some(event) = Arc::into_inner(event) {
                        self.take_back(event);
                    }
                    wait
                }
                Some(None) => true,
                None => false,
            }
        })
    }

    fn all_wait_for(&self, ways: &[Way], event: CUevent) -> bool {
        let Ok(_entered) = self.enter() else { return false };
        ways.iter().all(|&way| {
            let _in_order = self.in_order(way);
            // SAFETY: a recorded event, and a live stream of its context.
            let waits = unsafe { cuStreamWaitEvent(self.lane(way).stream(), event, 0) };
            check(WAIT, waits).map_err(|failure| self.note(failure)).is_ok()
        })
    }

    /// Returns a fence for the end of all kernels launched so far.
    pub(super) fn tail(self: &Arc<Self>) -> Result<Fence, TransferError> {
        self.await_beside()?;
        // SAFETY: only the event is enqueued.
        unsafe { self.command((Way::Kernels, RECORD), 0, (), |_| CUresult::CUDA_SUCCESS) }
    }

    /// Records an event on a stream. The context must be current.
    fn recorded_on(self: &Arc<Self>, way: Way) -> Result<Event, Failure> {
        let event = self.event()?;
        // SAFETY: an unused event, and a stream of its context.
        check(RECORD_BEFORE, unsafe { cuEventRecord(event.raw(), self.lane(way).stream()) })?;
        Ok(event)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        let lanes_of_others = std::mem::take(self.lanes_of_others.get_mut());
        self.lanes.iter().chain(&lanes_of_others).for_each(|lane| lane.close());
        self.give_idle_back();
        if push(self.context.0).is_ok() {
            self.together.get_mut().forget();
            let mut events = std::mem::take(self.events.get_mut());
            events.extend(self.marks.take());
            // SAFETY: objects of this context, each destroyed once, here. No command uses them, because its
            // fence holds the session.
            unsafe {
                for event in events {
                    let _ = cuEventDestroy_v2(event.0);
                }
                let _ = cuStreamSynchronize(self.aside.0);
                let streams = self.lanes.iter().map(|lane| lane.stream()).chain([self.aside.0]);
                for stream in streams {
                    let _ = cuStreamDestroy_v2(stream);
                }
                if let Some(pool) = self.pool {
                    let _ = cuMemPoolDestroy(pool.0);
                }
            }
            pop();
        }
        // SAFETY: retained in `open`, released once.
        let _ = unsafe { cuDevicePrimaryCtxRelease_v2(self.found.device) };
    }
}
