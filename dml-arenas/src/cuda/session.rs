//! One GPU ready for use: its context, its streams, its pool of memory.
//!
//! ```text
//!   kernels   launches, and what frameworks enqueue; two more for launches that may run beside those
//!   inward    host memory ──▶ device, fills         each in order, all at once: core keeps commands on the same
//!   outward   device ──▶ host memory                bytes apart
//!   peers     device ──▶ another GPU
//!   aside     new memory, and memory that goes
//! ```

use super::completion::{Command, Event, Lane};
use super::device::Found;
use super::error::{FORKED, Failure, check, is_lost, transfer_error, words};
use super::idle::Idle;
use crate::beside::Beside;
use crate::fork::Origin;
use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUevent, CUevent_flags, CUfunction, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool, CUmodule, CUresult, CUstream, CUstream_flags, cuCtxEnablePeerAccess,
    cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, cuCtxSynchronize, cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxRetain, cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuMemAlloc_v2,
    cuMemAllocFromPoolAsync, cuMemFree_v2, cuMemFreeAsync, cuMemPoolCreate, cuMemPoolDestroy,
    cuMemPoolSetAccess, cuMemPoolSetAttribute, cuMemPoolTrimTo, cuStreamCreate, cuStreamDestroy_v2,
    cuStreamSynchronize, cuStreamWaitEvent,
};
use dml_core::sync::{Arc, Mutex};
use dml_core::{Fence, NativeHandle, TransferError};
use std::any::Any;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The call that marks the end of a command.
pub(super) const RECORD: &str = "cuEventRecord";
const WAIT: &str = "cuStreamWaitEvent";
/// [`RECORD`], of what was launched before: what is to be launched now has not begun.
const RECORD_BEFORE: &str = "cuEventRecord before a launch";
/// The part of the device's memory that is kept although no block needs it, by its pool and as idle memory: one of so many.
const KEPT: u64 = 16;
/// What the driver calls the default stream of the calling thread (`CU_STREAM_PER_THREAD`).
const STREAM_PER_THREAD: usize = 2;
/// The number of streams that commands run on, one for each [`Way`].
const LANES: usize = 6;
/// The most events that are kept for later commands.
const MOST_EVENTS: usize = 256;

/// A handle of the driver, which any thread may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raw<T>(pub(super) T);

/// A type of handles of the driver.
///
/// # Safety
/// 1. Any thread may use such a handle, at the same time as others.
pub(super) unsafe trait Handle {}

macro_rules! handles {
    ($($handle:ty),*) => {
        // SAFETY: handles of the driver are not tied to threads, and its calls on them are thread-safe (CUDA driver API, "API
        // synchronization behavior" and "stream synchronization behavior").
        $(unsafe impl Handle for $handle {})*
    };
}

handles!(CUcontext, CUevent, CUfunction, CUmemoryPool, CUmodule, CUstream);

// SAFETY: as `Handle` says (1).
unsafe impl<T: Handle> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T: Handle> Sync for Raw<T> {}

/// The streams of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Kernels in the order of their launches.
    Kernels,
    /// Kernels that may run beside those, and beside each other.
    Beside,
    FurtherBeside,
    Inward,
    Outward,
    Peers,
}

/// The ways of kernels. The first one's stream is the one that others know of.
const KERNELS: [Way; 3] = [Way::Kernels, Way::Beside, Way::FurtherBeside];

/// A GPU's context, streams and pool. Blocks, kernels and fences hold the session, so it is dropped last.
///
/// In a fork of the process that opened it, the device is lost.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) found: Found,
    context: Raw<CUcontext>,
    lanes: [Arc<Lane>; LANES],
    /// The lanes of streams of the application.
    lanes_of_others: Mutex<Vec<Arc<Lane>>>,
    /// The kernels that may run beside others.
    beside: Beside,
    aside: Raw<CUstream>,
    pool: Option<Raw<CUmemoryPool>>,
    idle: Mutex<Idle>,
    events: Mutex<Vec<Raw<CUevent>>>,
    /// The bytes of all live blocks.
    reserved_bytes: AtomicU64,
    /// Why the device is lost, once it is.
    loss: OnceLock<Arc<str>>,
    origin: Origin,
}

/// The device's context on the calling thread, until it is dropped.
pub(super) struct Entered<'a> {
    /// A context is current on one thread.
    _on_thread: PhantomData<(&'a Session, *const ())>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: takes off the context that `enter` put on this thread.
        let _ = unsafe { cuCtxPopCurrent_v2(&raw mut context) };
    }
}

/// A reservation of device memory for one block, until it is dropped.
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
pub(super) fn enter<'a>(context: Raw<CUcontext>) -> Result<Entered<'a>, Failure> {
    push(context.0)?;
    Ok(Entered { _on_thread: PhantomData })
}

fn push(context: CUcontext) -> Result<(), Failure> {
    // SAFETY: a context that is retained while anything uses it.
    check("cuCtxPushCurrent", unsafe { cuCtxPushCurrent_v2(context) })
}

fn pop() {
    drop(Entered { _on_thread: PhantomData });
}

/// Makes a stream of the current context.
pub(super) fn stream() -> Result<Raw<CUstream>, Failure> {
    let mut stream = std::ptr::null_mut();
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: a context is current, and the call writes a handle.
    check("cuStreamCreate", unsafe { cuStreamCreate(&raw mut stream, flags) })?;
    Ok(Raw(stream))
}

/// Makes the streams of a session: one for each lane, and the one aside. Where one cannot be made, those before it are destroyed.
fn streams() -> Result<([Raw<CUstream>; LANES], Raw<CUstream>), Failure> {
    let mut lanes: Vec<Raw<CUstream>> = Vec::new();
    let next = |made: &[Raw<CUstream>]| {
        stream().inspect_err(|_| {
            for stream in made {
                // SAFETY: a stream of this context that nobody uses. Others may hold the context, so it would not go with that.
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

/// Makes a pool of the device's memory, or returns `None` where the driver has none.
pub(super) fn pool(found: &Found) -> Option<Raw<CUmemoryPool>> {
    if !found.has_pools {
        return None;
    }
    // SAFETY: the driver asks that what it does not know be zero, and zero is a value of every field.
    let mut properties: CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    properties.location = on_device(found);
    let mut pool = std::ptr::null_mut();
    // SAFETY: a context is current; the call reads the properties and writes a handle.
    check("cuMemPoolCreate", unsafe { cuMemPoolCreate(&raw mut pool, &raw const properties) }).ok()?;
    let mut kept = found.memory_bytes / KEPT;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool just made, and the address of a number of 64 bits, as this attribute is.
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
        // SAFETY: a device of the driver; the call writes a handle, which `Drop` gives back.
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
            aside,
            pool,
            // Without a pool, whoever else needs memory has it from the driver alone.
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

    /// Launches a kernel that may run beside others, on each stream of kernels in turn.
    pub(super) fn beside<T>(&self, launch: impl FnOnce(Way) -> T) -> T {
        self.beside.launch(KERNELS.len(), |turn| launch(KERNELS[turn]))
    }

    /// Makes the context current on this thread.
    ///
    /// # Errors
    /// [`TransferError::DeviceLost`] if the device is lost, or in a fork.
    pub(super) fn enter(&self) -> Result<Entered<'_>, TransferError> {
        if self.is_lost() { Err(TransferError::DeviceLost) } else { self.enter_lost() }
    }

    /// As [`enter`](Self::enter), also of a lost device, to wait for what runs and to give things back.
    pub(super) fn enter_lost(&self) -> Result<Entered<'_>, TransferError> {
        if !self.is_here() {
            return Err(TransferError::DeviceLost);
        }
        enter(self.context).map_err(|failure| self.failed(failure))
    }

    /// Returns a stream and the context as numbers.
    pub(super) fn native(&self, way: Way) -> (NativeHandle, NativeHandle) {
        (NativeHandle(self.lane(way).stream().addr()), NativeHandle(self.context.0.addr()))
    }

    /// Returns the context, for one call.
    pub(super) fn context(&self) -> CUcontext {
        self.context.0
    }

    /// Returns whether this is no fork, so that calls of the driver may be made.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Returns whether the device is lost. A loss is final.
    pub(super) fn is_lost(&self) -> bool {
        self.loss.get().is_some() || !self.is_here()
    }

    /// Returns why the device is lost.
    pub(super) fn loss(&self) -> Option<Arc<str>> {
        if self.is_here() { self.loss.get().cloned() } else { Some(FORKED.into()) }
    }

    /// Counts the device as lost from now on.
    pub(super) fn lose(&self, reason: &str) {
        let _ = self.loss.set(reason.into());
    }

    /// Marks the device as lost if the failure says so.
    pub(super) fn note(&self, failure: Failure) {
        if is_lost(failure.code) {
            self.lose(&format!("{} failed: {}", failure.call, words(failure.code)));
        }
    }

    /// Returns the error of a call on this device, and notes a lost device.
    pub(super) fn failed(&self, failure: Failure) -> TransferError {
        self.note(failure);
        transfer_error(failure)
    }

    /// Reserves `bytes` bytes, or returns `None` if the device has less memory left.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let add = |reserved: u64| reserved.checked_add(bytes).filter(|&sum| sum <= self.found.memory_bytes);
        // The count orders no other access: the driver finally decides about the memory itself.
        self.reserved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Reservation { session: self.clone(), bytes })
    }

    /// Returns memory of this size that every stream may use, if some is idle.
    pub(super) fn idle(&self, size: usize) -> Option<CUdeviceptr> {
        if self.is_lost() { None } else { self.idle.lock().take(size) }
    }

    /// Allocates memory that every stream may use from now on. The context is current.
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
            // What was freed may be idle, not have reached the pool yet, or be kept in pieces that are too small.
            self.give_idle_back();
            settle()?;
            // SAFETY: the session's own pool, in which no freed memory is in use.
            let _ = unsafe { cuMemPoolTrimTo(pool.0, 0) };
            take()
        })?;
        settle()?;
        Ok(address)
    }

    /// Returns a failure that is no lack of memory.
    fn expect_full(&self, failure: Failure) -> Result<(), Failure> {
        if failure.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY { Ok(()) } else { Err(failure) }
    }

    /// Takes memory back that no command uses any more: for the next block of this size, or for the driver.
    pub(super) fn free(&self, size: usize, address: CUdeviceptr) {
        if !self.is_here() {
            return;
        }
        let gone = if self.is_lost() { vec![address] } else { self.idle.lock().keep(size, address) };
        self.give_back(&gone);
    }

    /// Gives idle memory back to the driver.
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
            // SAFETY: memory from `alloc`, freed once: its block is dropped, and it is not idle any more.
            let _ = unsafe {
                match self.pool {
                    Some(_) => cuMemFreeAsync(address, self.aside.0),
                    None => cuMemFree_v2(address),
                }
            };
        }
    }

    /// Lets another GPU reach this one's memory. Returns whether it can.
    pub(super) fn open_to(&self, other: &Self) -> bool {
        let (Ok(_entered), flags) = (other.enter(), 0) else { return false };
        // SAFETY: two live contexts; the other one is current, which gets access to this one.
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

    /// Takes an event that is used by nobody. The context is current.
    fn event(self: &Arc<Self>) -> Result<Event, Failure> {
        let kept = self.events.lock().pop();
        let raw = match kept {
            Some(raw) => raw,
            None => {
                let mut event = std::ptr::null_mut();
                let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
                // SAFETY: the context is current, and the call writes a handle.
                check("cuEventCreate", unsafe { cuEventCreate(&raw mut event, flags) })?;
                Raw(event)
            }
        };
        Ok(Event::new(raw, self.clone()))
    }

    /// Takes an event back.
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
            // SAFETY: an event of this context that nobody uses.
            let _ = unsafe { cuEventDestroy_v2(event.0) };
        }
    }

    /// Enqueues a command that moves `bytes` bytes, and returns its fence. `keep` lives until the command has ended.
    ///
    /// # Safety
    /// 1. `enqueue` enqueues on the stream that it is given, commands that use nothing which goes before `keep`.
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
        let in_order = lane.in_order();
        check(call, enqueue(lane.stream())).map_err(|failure| self.failed(failure))?;
        // SAFETY: an event that nobody uses, and a stream of its context.
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

    /// Returns a fence for the end of what a stream of the application was told to do so far.
    ///
    /// # Safety
    /// 1. It is a live stream of the context, or null, which names the context's default stream.
    pub(super) unsafe fn recorded(self: &Arc<Self>, stream: CUstream) -> Result<Fence, TransferError> {
        let _entered = self.enter()?;
        let event = self.event().map_err(|failure| self.failed(failure))?;
        let lane = self.lane_of(Raw(stream));
        let _in_order = lane.in_order();
        // SAFETY: an event that nobody uses, and a stream of its context, by the caller's word.
        let recorded = check(RECORD, unsafe { cuEventRecord(event.raw(), stream) });
        recorded.map_err(|failure| self.failed(failure))?;
        Ok(Fence::awaited(Command::new(RECORD, &lane, event, 0, None)))
    }

    /// Returns the lane of a stream of the application. Lanes of others that have nothing to come go. The stream that each thread
    /// has of its own has one name for all of them, so every fence of it has a lane, which goes with it.
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

    /// Waits for all that anybody told the context to do so far.
    pub(super) fn settle(&self) -> Result<(), TransferError> {
        let _entered = self.enter_lost()?;
        // SAFETY: the context is current.
        check("cuCtxSynchronize", unsafe { cuCtxSynchronize() }).map_err(|failure| self.failed(failure))
    }

    /// Has the kernels' stream wait for those that were launched beside it so far.
    pub(super) fn await_beside(self: &Arc<Self>) -> Result<(), TransferError> {
        self.beside.settle(|| {
            let _entered = self.enter()?;
            let [kernels, beside @ ..] = KERNELS;
            let _in_order = self.lane(kernels).in_order();
            let waits = beside.into_iter().try_for_each(|way| {
                let event = self.recorded_on(way)?;
                // SAFETY: a recorded event, and a live stream of its context. What waits for it has been told when it is recorded again.
                check(WAIT, unsafe { cuStreamWaitEvent(self.lane(kernels).stream(), event.raw(), 0) })
            });
            waits.map_err(|failure| self.failed(failure))
        })
    }

    /// Returns a fence for the end of all kernels so far.
    pub(super) fn tail(self: &Arc<Self>) -> Result<Fence, TransferError> {
        self.await_beside()?;
        // SAFETY: nothing is enqueued but the event.
        unsafe { self.command((Way::Kernels, RECORD), 0, (), |_| CUresult::CUDA_SUCCESS) }
    }

    /// Returns an event that is recorded on a stream of the current context.
    fn recorded_on(self: &Arc<Self>, way: Way) -> Result<Event, Failure> {
        let event = self.event()?;
        // SAFETY: an event that nobody uses, and a stream of its context.
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
            let events = std::mem::take(self.events.get_mut());
            // SAFETY: objects of this context, each destroyed once, here. No command uses them: its fence held the session.
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
        // SAFETY: retained in `open`, given back once.
        let _ = unsafe { cuDevicePrimaryCtxRelease_v2(self.found.device) };
    }
}
