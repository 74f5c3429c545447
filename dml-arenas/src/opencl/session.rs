//! An opened device: its context and its queues.
//!
//! ```text
//!   kernels   launches, unmaps, commands of other frameworks; two more queues for launches that may overlap
//!   inward    host memory ──▶ device, fills        ┐ each in order, all three at once:
//!   outward   device ──▶ host memory, maps         ┘ core keeps commands on the same bytes apart
//!   aside     the first write to new storage
//! ```
//! 1. A command on a block waits for the block's last unmap
//!    ([`Mapping::after`](super::block::Mapping::after)), which has no fence. All other earlier commands on
//!    the same bytes have ended: core waits for their fences.
//! 2. Separate queues for transfers need a device whose commands may use one buffer concurrently, in
//!    different bytes: see [`Found::overlaps`](super::device::Found::overlaps). Other devices use the
//!    kernels' queue.
//! 3. Kernels overlap on a device that one kernel may not fill. They do not on a processor, where each kernel
//!    uses all cores.

use super::completion::{Command, Wakers};
use super::device::{Part, Sort};
use super::error::{FORKED, is_lost, transfer_error, words};
use super::handle::{Context, Event, Queue};
use crate::compiled::Beside;
use crate::fork::Origin;
use crate::locked::next_holder;
use crate::machine_memory;
use dml_core::internal::sync::{Arc, Mutex, MutexGuard};
use dml_core::{Fence, NativeHandle, TransferError};
use opencl3::command_queue::{
    create_command_queue, enqueue_barrier_with_wait_list, enqueue_marker_with_wait_list, finish, flush,
};
use opencl3::context::context::create_context;
use opencl3::error_codes::CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
use opencl3::event::{CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, get_event_info, wait_for_events};
use opencl3::types::{cl_command_queue, cl_context, cl_event};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The call that submits commands to the device.
pub(super) const FLUSH: &str = "clFlush";
/// Maximum number of kernels in their queue that no flush has submitted to the device.
const MOST_UNSUBMITTED: usize = 16;
/// A [`FLUSH`] of earlier launches. If it fails, the current launch has not begun.
const FLUSH_BEFORE: &str = "clFlush before a launch";
const MARKER: &str = "clEnqueueMarkerWithWaitList";
const BARRIER: &str = "clEnqueueBarrierWithWaitList";
/// Number of kernel queues of a device on which kernels may overlap.
const KERNEL_QUEUES: usize = 3;

/// A device's context and queues. Blocks and kernels hold the session, so it is dropped last. The fields are
/// released in this order.
///
/// In a fork of the process that opened it, the device is lost, and neither queues nor context are available.
#[derive(Debug)]
pub(super) struct Session {
    /// The session's number, unique in the process.
    id: u64,
    kernels: Queue,
    /// The additional queues for kernels that may overlap; empty on a device where they do not.
    further: Vec<Queue>,
    beside: Beside,
    /// The queues for transfers to the device, from it, and from it behind a running kernel; `None` if the
    /// kernels' queue takes them too.
    transfers: Option<[Queue; 3]>,
    /// The queue for commands on blocks that no other command uses yet. They wait for no other command.
    aside: Queue,
    context: Context,
    pub(super) part: Part,
    pub(super) facts: Facts,
    /// The memory reserved for all live buffers, in bytes.
    reserved_bytes: AtomicU64,
    /// The number of kernels in their queue. Held while one is enqueued.
    order: Mutex<u64>,
    /// The number of the last kernel in their queue that was waited for. Those before it have ended, and what
    /// they wrote is visible.
    awaited: AtomicU64,
    /// The number of kernels in their queue that no flush has submitted to the device.
    unsubmitted: AtomicUsize,
    /// Whether a call has reported that the device is lost.
    lost: AtomicBool,
    wakers: Arc<Wakers>,
    origin: Origin,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.origin.is_here() {
            self.wakers.close();
        }
    }
}

/// A reservation of device memory for one buffer, which ends when it is dropped.
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

/// The properties that the device reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// The maximum size of one buffer, in bytes.
    pub(super) max_alloc_bytes: u64,
    /// The size of the device's memory, in bytes; of host memory, at most what this process may use.
    pub(super) memory_bytes: u64,
    /// The maximum size of a work-group along each dimension, in work-items.
    pub(super) max_sizes: [u64; 3],
    /// The local memory of a work-group, in bytes.
    pub(super) local_bytes: u64,
    /// The alignment of every buffer, in bytes.
    pub(super) align_bytes: u64,
}

/// A command just enqueued.
pub(super) struct Enqueued {
    pub(super) queue: cl_command_queue,
    pub(super) event: Result<cl_event, i32>,
    pub(super) submit: Submit,
    /// Its number in the kernels' queue, if it was enqueued in order.
    pub(super) number: Option<u64>,
}

impl Enqueued {
    /// Describes a command that is no kernel.
    pub(super) const fn on(queue: cl_command_queue, event: Result<cl_event, i32>) -> Self {
        Self { queue, event, submit: Submit::Now, number: None }
    }
}

/// When a command is submitted to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submit {
    Now,
    /// With a command that follows at once.
    WithNext,
}

impl Session {
    /// Opens a device, or a part of one.
    ///
    /// # Errors
    /// A message that names the failed call and its error.
    pub(super) fn open(part: Part) -> Result<Self, String> {
        let failed = |call: &'static str| move |code: i32| format!("{call} failed: {}", words(code));
        let device = part.device();
        let facts = Facts {
            max_alloc_bytes: device
                .max_mem_alloc_size()
                .map_err(|error| failed("clGetDeviceInfo")(error.0))?,
            memory_bytes: device
                .global_mem_size()
                .map_err(|error| failed("clGetDeviceInfo")(error.0))?
                .min(if part.is_discrete { u64::MAX } else { machine_memory::total_bytes() }),
            max_sizes: {
                let told = device.max_work_item_sizes().unwrap_or_default();
                std::array::from_fn(|axis| told.get(axis).map_or(1, |&size| (size as u64).max(1)))
            },
            local_bytes: device.local_mem_size().unwrap_or(u64::MAX),
            align_bytes: device
                .mem_base_addr_align()
                .map_or(64, |bits| u64::from(bits / 8).max(1).next_power_of_two()),
        };
        let context = create_context(&[part.id()], std::ptr::null(), None, std::ptr::null_mut())
            .map_err(failed("clCreateContext"))?;
        // SAFETY: the context was just created, and its only reference is taken over here.
        let context = unsafe { Context::own(context) };
        let open_queue = || {
            // SAFETY: a live context and its own device; no properties, so the queue is in order.
            let queue = unsafe { create_command_queue(context.raw(), part.id(), 0) };
            // SAFETY: the queue was just created, and its only reference is taken over here.
            queue.map(|queue| unsafe { Queue::own(queue) }).map_err(failed("clCreateCommandQueue"))
        };
        let transfers =
            if part.overlaps { Some([open_queue()?, open_queue()?, open_queue()?]) } else { None };
        let has_further = part.overlaps && part.sort != Sort::Cpu;
        let further = (1..if has_further { KERNEL_QUEUES } else { 1 })
            .map(|_| open_queue())
            .collect::<Result<_, _>>()?;
        Ok(Self {
            id: next_holder(),
            kernels: open_queue()?,
            further,
            beside: Beside::default(),
            transfers,
            aside: open_queue()?,
            context,
            part,
            facts,
            reserved_bytes: AtomicU64::new(0),
            order: Mutex::default(),
            awaited: AtomicU64::new(0),
            unsubmitted: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
            wakers: Arc::default(),
            origin: Origin::here(),
        })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the kernels' queue, for use in one call.
    ///
    /// # Errors
    /// [`TransferError::DeviceLost`] in a fork.
    pub(super) fn kernels(&self) -> Result<cl_command_queue, TransferError> {
        self.expect_here().map(|()| self.kernels.raw())
    }

    /// Launches a kernel that may overlap with others, on the next kernel queue in rotation.
    pub(super) fn beside(
        &self,
        launch: impl FnOnce(cl_command_queue) -> Result<Fence, TransferError>,
    ) -> Result<Fence, TransferError> {
        self.expect_here()?;
        let queues = 1 + self.further.len();
        self.beside.launch(queues, |turn| {
            launch(turn.checked_sub(1).map_or(&self.kernels, |further| &self.further[further]).raw())
        })
    }

    /// Makes the kernels' queue wait for all kernels launched so far on the additional queues.
    pub(super) fn await_beside(&self) -> Result<(), TransferError> {
        self.beside.settle(|| {
            self.expect_here()?;
            let ends = self.further.iter().map(|queue| {
                // SAFETY: a live queue; without events the marker waits for all commands enqueued before.
                let marker = unsafe { enqueue_marker_with_wait_list(queue.raw(), 0, std::ptr::null()) };
                let end = self.event(MARKER, marker)?;
                // A wait in another queue does not submit this queue's commands.
                flush(queue.raw()).map_err(|code| self.failed(FLUSH_BEFORE, code))?;
                Ok(end)
            });
            let ends: Vec<Event> = ends.collect::<Result<_, TransferError>>()?;
            let events: Vec<cl_event> = ends.iter().map(Event::raw).collect();
            if events.is_empty() {
                return Ok(());
            }
            // SAFETY: a live queue and events of its context.
            let barrier = unsafe {
                enqueue_barrier_with_wait_list(self.kernels.raw(), events.len() as u32, events.as_ptr())
            };
            self.event(BARRIER, barrier).map(drop)
        })
    }

    /// Returns the queue of transfers to the device, for use in one call.
    ///
    /// # Errors
    /// [`TransferError::DeviceLost`] in a fork.
    pub(super) fn inward(&self) -> Result<cl_command_queue, TransferError> {
        let queue = self.transfers.as_ref().map_or(&self.kernels, |[inward, ..]| inward);
        self.expect_here().map(|()| queue.raw())
    }

    /// Returns the queue of transfers from the device, for use in one call.
    ///
    /// # Errors
    /// [`TransferError::DeviceLost`] in a fork.
    pub(super) fn outward(&self) -> Result<cl_command_queue, TransferError> {
        let queue = self.transfers.as_ref().map_or(&self.kernels, |[_, outward, _]| outward);
        self.expect_here().map(|()| queue.raw())
    }

    /// Returns the queue of transfers from the device behind a kernel, for use in one call.
    ///
    /// # Errors
    /// [`TransferError::DeviceLost`] in a fork.
    pub(super) fn results(&self) -> Result<cl_command_queue, TransferError> {
        let queue = self.transfers.as_ref().map_or(&self.kernels, |[.., results]| results);
        self.expect_here().map(|()| queue.raw())
    }

    /// Returns the events of commands of this session, given by their fences; `None` if one is other work.
    pub(super) fn events_of(&self, commands: &[&Fence]) -> Option<SmallVec<[cl_event; 4]>> {
        let running = commands.iter().filter(|fence| !fence.is_done());
        let events = running.map(|fence| {
            let command = fence.completion::<Command>()?;
            (command.session.id == self.id).then(|| command.event.raw())
        });
        events.collect()
    }

    /// Makes the queues of kernels wait for transfers to the device. Returns whether they do.
    pub(super) fn launches_behind(&self, transfers: &[&Fence]) -> bool {
        let Some(events) = self.events_of(transfers).filter(|_| self.is_here()) else { return false };
        let Some([inward, ..]) = self.transfers.as_ref().filter(|_| !events.is_empty()) else {
            // The kernels' queue has the transfers, and there is no other one.
            return true;
        };
        // A wait in another queue does not submit this queue's commands.
        let begun = flush(inward.raw()).map_err(|code| self.failed(FLUSH_BEFORE, code));
        let mut queues = self.further.iter().chain([&self.kernels]);
        begun.is_ok()
            && queues.all(|queue| {
                // SAFETY: a live queue and events of its context, which the fences keep.
                let barrier = unsafe {
                    enqueue_barrier_with_wait_list(queue.raw(), events.len() as u32, events.as_ptr())
                };
                self.event(BARRIER, barrier).is_ok()
            })
    }

    /// Returns the queue for blocks that no other command uses yet, for use in one call.
    ///
    /// # Errors
    /// [`TransferError::DeviceLost`] in a fork.
    pub(super) fn aside(&self) -> Result<cl_command_queue, TransferError> {
        self.expect_here().map(|()| self.aside.raw())
    }

    /// Returns the context, for use in one call.
    ///
    /// # Errors
    /// [`TransferError::DeviceLost`] in a fork.
    pub(super) fn context(&self) -> Result<cl_context, TransferError> {
        self.expect_here().map(|()| self.context.raw())
    }

    /// Returns the kernels' queue, the queues of transfers to and from the device, and the context as
    /// numbers, also in a fork.
    pub(super) fn native(&self) -> ([NativeHandle; 3], NativeHandle) {
        let (inward, outward) =
            self.transfers.as_ref().map_or((&self.kernels, &self.kernels), |[a, b, _]| (a, b));
        let queues = [&self.kernels, inward, outward].map(|queue| NativeHandle(queue.raw().addr()));
        (queues, NativeHandle(self.context.raw().addr()))
    }

    /// Checks that this process is no fork, so that it may call the driver.
    fn expect_here(&self) -> Result<(), TransferError> {
        if self.is_here() { Ok(()) } else { Err(TransferError::DeviceLost { loss: None }) }
    }

    /// Reserves `bytes` bytes, or returns `None` if the device has less memory left.
    ///
    /// A driver that allocates host memory (PoCL) never refuses, and the operating system would kill the
    /// process when the memory is used.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let add = |reserved: u64| reserved.checked_add(bytes).filter(|&sum| sum <= self.facts.memory_bytes);
        // The count orders no other access: the driver has the last word on the memory itself.
        self.reserved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Reservation { session: self.clone(), bytes })
    }

    /// Returns whether a call has reported that the device is lost, or this is a fork. A loss is final.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) || !self.origin.is_here()
    }

    /// Returns why the device is lost, if that is known.
    pub(super) fn loss(&self) -> Option<Arc<str>> {
        (!self.origin.is_here()).then(|| FORKED.into())
    }

    /// Marks the device as lost if the code says so.
    pub(super) fn note(&self, code: i32) {
        if is_lost(code) {
            // It orders no other access: code that acts on the loss reads it after the call that found it.
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the error of a failed call, and notes a lost device.
    pub(super) fn failed(&self, call: &'static str, code: i32) -> TransferError {
        self.note(code);
        transfer_error(call, code)
    }

    /// Waits until all kernels launched so far have ended.
    pub(super) fn finish(&self) -> Result<(), TransferError> {
        self.expect_here()?;
        let mut queues = self.further.iter().chain([&self.kernels]);
        queues.try_for_each(|queue| finish(queue.raw()).map_err(|code| self.failed("clFinish", code)))
    }

    /// Submits the kernels that were left to a later launch.
    pub(super) fn submit_all(&self) {
        if self.unsubmitted.load(Ordering::Relaxed) > 0
            && let Ok(queue) = self.kernels()
        {
            // The wait for a kernel reports its failure.
            let _ = self.flush(queue);
        }
    }

    /// Submits the commands enqueued so far on a queue to the device.
    pub(super) fn flush(&self, queue: cl_command_queue) -> Result<(), TransferError> {
        self.expect_here()?;
        if queue == self.kernels.raw() {
            // Before the flush: a kernel that comes after it counts.
            self.unsubmitted.store(0, Ordering::Relaxed);
        }
        flush(queue).map_err(|code| self.failed(FLUSH, code))
    }

    /// Submits a command just enqueued on `queue`, which moves `bytes` bytes, and returns its fence. `keep`
    /// lives until the command has ended.
    pub(super) fn fence(
        self: &Arc<Self>,
        call: &'static str,
        Enqueued { queue, event, submit, number }: Enqueued,
        bytes: u64,
        keep: impl Any + Send,
    ) -> Result<Fence, TransferError> {
        let event = self.event(call, event)?;
        let is_left = submit == Submit::WithNext
            && self.unsubmitted.fetch_add(1, Ordering::Relaxed) + 1 < MOST_UNSUBMITTED;
        if is_left {
            // A waiter flushes, if no later launch does.
        } else if let Err(error) = self.flush(queue) {
            // The command may still run, so wait for it while `keep` is alive.
            let _ = self.wait(call, &event);
            return Err(error);
        }
        let (session, keep) = (self.clone(), Some(Box::new(keep) as Box<dyn Any + Send>));
        let event = Arc::new(event);
        Ok(Fence::awaited(Command { call, event, number, bytes, session, keep, told: None }))
    }

    /// Returns the watched commands of the session, or `None` if no waker thread can be started.
    pub(super) fn wakers(&self) -> Option<Arc<Wakers>> {
        self.wakers.start("opencl").then(|| self.wakers.clone())
    }

    /// Returns whether this process is no fork, so that it may call the driver.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Waits for a command just enqueued.
    pub(super) fn complete(
        &self,
        call: &'static str,
        enqueued: Result<cl_event, i32>,
    ) -> Result<(), TransferError> {
        let event = self.event(call, enqueued)?;
        self.wait(call, &event)
    }

    /// Takes ownership of the event of a command just enqueued.
    pub(super) fn event(
        &self,
        call: &'static str,
        enqueued: Result<cl_event, i32>,
    ) -> Result<Event, TransferError> {
        let event = enqueued.map_err(|code| self.failed(call, code))?;
        // SAFETY: the event of a command just enqueued, to which the call hands over one reference.
        Ok(unsafe { Event::own(event) })
    }

    /// Waits for a command like [`wait`](Self::wait). No wait is needed for one before another one in the
    /// kernels' queue that was waited for.
    pub(super) fn wait_in_order(
        &self,
        call: &'static str,
        event: &Event,
        number: Option<u64>,
    ) -> Result<(), TransferError> {
        let Some(number) = number else { return self.wait(call, event) };
        self.expect_here()?;
        if number < self.awaited.load(Ordering::Acquire) {
            let status = get_event_info(event.raw(), CL_EVENT_COMMAND_EXECUTION_STATUS).map(i32::from);
            if status == Ok(CL_COMPLETE) {
                return Ok(());
            }
        }
        self.wait(call, event)?;
        self.awaited.fetch_max(number, Ordering::Release);
        Ok(())
    }

    /// Keeps others from enqueueing in order on the kernels' queue. The value is the number of the last
    /// kernel that was.
    pub(super) fn in_order(&self) -> MutexGuard<'_, u64> {
        self.order.lock()
    }

    /// Waits for a command, then queries its status, because a successful wait does not report how it ended.
    pub(super) fn wait(&self, call: &'static str, event: &Event) -> Result<(), TransferError> {
        self.expect_here()?;
        let waited = wait_for_events(&[event.raw()]);
        let status = get_event_info(event.raw(), CL_EVENT_COMMAND_EXECUTION_STATUS).map(i32::from);
        match (waited, status) {
            (_, Ok(code)) if code < 0 => Err(self.failed(call, code)),
            (Err(code), _) if code == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST => {
                Err(self.failed(call, code))
            }
            (Err(code), _) => Err(self.failed("clWaitForEvents", code)),
            (Ok(()), Err(code)) => Err(self.failed("clGetEventInfo", code)),
            (Ok(()), Ok(_)) => Ok(()),
        }
    }
}
