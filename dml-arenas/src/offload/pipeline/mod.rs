//! Pipelines: each executes its runs and transfers in order; several pipelines run concurrently.
//!
//! ```text
//!   run ─────────┐ nothing to wait for: sent at once, by the calling thread
//!                ▼
//!   copy_in ──▶ waiting ──▶ thread: waits for `after`, copies ──▶ signal
//!   copy_out       └─run──▶ thread: sends ──▶ running ──▶ thread: receives ──▶ signal
//! ```
//! 1. In each pipeline the actions (runs and transfers) end in the order in which they were added.
//! 2. Several runs may be sent to the worker before the first has ended. A transfer waits until all earlier
//!    runs have ended.
//! 3. Every action ends, successfully or not, also when the pipeline is dropped or the device is lost.
//! 4. The first action starts the thread. An idle thread sleeps.
//! 5. A fork of the process lacks the thread, and may find its locks held for ever. In a fork no action is
//!    accepted, and dropping the pipeline touches nothing.

mod queue;
mod thread;

use self::queue::Run;
use self::thread::Shared;
use super::Signal;
use super::block::OffloadBlock;
use super::device::OffloadDevice;
use super::error::OffloadError;
use super::function::{Argument, Function};
use super::transfer::{Place, Transfer};
use dml_core::internal::sync::Arc;
use dml_core::{BlockRef, HostSource, HostTarget, Span};
use std::fmt;
use std::ops::Range;

/// An ordered sequence of runs and transfers on one device.
///
/// # Examples
/// ```no_run
/// # use dml_arenas::OffloadArena;
/// # use dml_arenas::offload::{Argument, OffloadDevice, WorkerOptions};
/// # use dml_core::{Arena, DeviceId, HostMemory, Span};
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let device = OffloadDevice::start("offload:0", &WorkerOptions::new("dml-offload-worker"))?;
/// device.load("libkernels.so")?;
/// let scale = device.function("scale")?;
/// let (transfers, runs) = (device.pipeline(), device.pipeline());
/// let there = OffloadArena::new(device, DeviceId(1));
/// let (mut host, block, whole) = (HostMemory::zeroed(4096)?, there.alloc(4096)?.into_block(), Span::new(0, 4096));
/// // SAFETY: block and memory are this function's own, and each step waits for the one before.
/// let back = unsafe {
///     let copied = transfers.copy_in((&block, 0), host.source(whole), &[])?;
///     let ran = runs.run(&scale, 0..1024, &[Argument::Write(&block, whole)], &[copied])?;
///     transfers.copy_out((&block, 0), host.target(whole), &[ran])?
/// };
/// back.wait()?;
/// # Ok(())
/// # }
/// ```
pub struct Pipeline {
    shared: Arc<Shared>,
}

impl OffloadDevice {
    /// Makes a pipeline. Its actions are executed in order, and concurrently with those of other pipelines.
    #[must_use]
    pub fn pipeline(self: &Arc<Self>) -> Pipeline {
        Pipeline::new(self.clone(), self.next_pipeline_number())
    }
}

impl Pipeline {
    fn new(device: Arc<OffloadDevice>, number: u64) -> Self {
        // A thread name must not contain a zero byte.
        let name = format!("{}-{number}", device.name().replace('\0', " "));
        Self { shared: Shared::new(device, name) }
    }

    /// Returns the device of the pipeline.
    #[must_use]
    pub fn device(&self) -> &Arc<OffloadDevice> {
        self.shared.device()
    }

    /// Runs a function over the items, after all earlier actions, and after every signal in `after` has ended
    /// successfully.
    ///
    /// The function finds each argument at its position in `arguments`. A C function receives parts, scalars
    /// and values in three lists, each entry with the position of its argument.
    ///
    /// # Safety
    /// 1. Until the signal has ended, only the function writes the parts, and nothing else reads the parts
    ///    that it may write. Runs and transfers that this one waits for, or that wait for it, are excepted. A
    ///    grant of the blocks guarantees this.
    /// 2. If the worker shares memory with this process, the function accesses no bytes of that memory
    ///    outside the parts.
    ///
    /// # Errors
    /// [`OffloadError::Argument`], [`OffloadError::Items`] and [`OffloadError::TooLong`] for an invalid call,
    /// [`OffloadError::UnknownFunction`] for a function of another device, [`OffloadError::DeviceLost`],
    /// [`OffloadError::Resource`]. The signal reports later errors: [`OffloadError::Function`],
    /// [`OffloadError::Dependency`], [`OffloadError::DeviceLost`].
    pub unsafe fn run(
        &self,
        function: &Function,
        items: Range<u64>,
        arguments: &[Argument<'_>],
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        self.begin(function, items, arguments, after)
    }

    /// Does the same as [`run`](Self::run), for callers that uphold its safety conditions.
    pub(super) fn begin(
        &self,
        function: &Function,
        items: Range<u64>,
        arguments: &[Argument<'_>],
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let ticket = self.shared.next_ticket();
        if !Arc::ptr_eq(function.device(), self.device()) {
            return Err(OffloadError::UnknownFunction {
                device: self.device().name().clone(),
                function: function.name().clone(),
            });
        }
        let (message, blocks) = function.message(ticket, &items, arguments)?;
        let run = Run { ticket, function: function.name().clone(), message };
        self.shared.put_run(run, after, Box::new(blocks))
    }

    /// Copies host memory into a block of the device, starting at byte `to.1` of the block.
    ///
    /// # Safety
    /// 1. Until the signal has ended, nothing else touches these bytes of the block. Runs and transfers that
    ///    this one waits for, or that wait for it, are excepted.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub unsafe fn copy_in(
        &self,
        to: (&BlockRef, u64),
        from: HostSource,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let place = self.place(to.0, Span::new(to.1, to.1.saturating_add(from.len())))?;
        let transfer = Transfer::In { place, from };
        self.shared.put_transfer(transfer, after, Box::new(to.0.clone()))
    }

    /// Copies from a block of the device into host memory, starting at byte `from.1` of the block.
    ///
    /// # Safety
    /// 1. Until the signal has ended, nothing writes these bytes of the block. Runs and transfers that this
    ///    one waits for, or that wait for it, are excepted.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub unsafe fn copy_out(
        &self,
        from: (&BlockRef, u64),
        to: HostTarget,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let place = self.place(from.0, Span::new(from.1, from.1.saturating_add(to.len())))?;
        let transfer = Transfer::Out { place, to };
        self.shared.put_transfer(transfer, after, Box::new(from.0.clone()))
    }

    /// Sets every byte of a span of a block to `byte`.
    ///
    /// # Safety
    /// 1. Until the signal has ended, nothing else touches these bytes. Runs and transfers that this one
    ///    waits for, or that wait for it, are excepted.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub unsafe fn fill(
        &self,
        (block, span): (&BlockRef, Span),
        byte: u8,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        let place = self.place(block, span)?;
        let transfer = Transfer::Fill { place, byte, _request: None };
        self.shared.put_transfer(transfer, after, Box::new(block.clone()))
    }

    /// Adds a transfer for core, which upholds the safety conditions. `keep` is its block, which lives until
    /// the transfer has ended.
    pub(super) fn transfer(&self, transfer: Transfer, keep: BlockRef) -> Result<Signal, OffloadError> {
        self.shared.put_transfer(transfer, &[], Box::new(keep))
    }

    /// Returns a signal that ends after all actions added so far.
    pub(super) fn tail(&self) -> Result<Signal, OffloadError> {
        let nothing = Transfer::Fill { place: Place::NOTHING, byte: 0, _request: None };
        self.shared.put_transfer(nothing, &[], Box::new(()))
    }

    /// Returns the place of a transfer's bytes in a memory that the worker maps.
    fn place(&self, block: &BlockRef, span: Span) -> Result<Place, OffloadError> {
        OffloadBlock::find(block, self.device(), span).map_err(|reason| self.misfit(&reason))
    }

    /// Returns the error of a transfer with an invalid block. The block counts as argument 0.
    fn misfit(&self, reason: &str) -> OffloadError {
        let (device, function) = (self.device().name().clone(), "a transfer".into());
        OffloadError::Argument { device, function, index: 0, reason: reason.into() }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if !self.device().is_here() {
            return;
        }
        self.shared.close();
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, running) = self.shared.lengths();
        write!(f, "Pipeline({}, {waiting} waiting, {running} running)", self.shared.name())
    }
}
