//! The arena of a worker's memory: implements core's [`Arena`] for it.

use super::block::OffloadBlock;
use super::device::OffloadDevice;
use super::error::OffloadError;
use super::function::{Argument, Function};
use super::pipeline::Pipeline;
use super::transfer::{Place, Transfer};
use crate::kit::PAGE_BYTES;
use dml_core::internal::sync::Arc;
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaKind, Backing, BlockRef, Completion, Concurrency, CopyIn, CopyOut,
    Cost, DeviceId, Fence, Fill, MapReport, MapRequest, NewBlock, Scalar, Span, TransferError, UnmapRequest,
};
use std::ops::Range;
use std::task::{Poll, Waker};

const KIND: ArenaKind = ArenaKind("offload");

/// Largest transfer that the calling thread makes at once, in bytes. Handing a shorter one to another thread
/// would take longer.
const AT_ONCE_BYTES: u64 = 64 << 10;

/// The memory of one coprocessor.
///
/// No other device reaches this memory. Transfers bring bytes in and out, each with a single copy. A block
/// that is bound to shared memory ([`HostArena`](crate::HostArena)) lies there instead, and its bytes
/// need no transfer.
///
/// # Examples
/// ```no_run
/// # use dml_arenas::OffloadArena;
/// # use dml_core::Platform;
/// # fn example(platform: &Platform) -> Result<(), Box<dyn std::error::Error>> {
/// let worker = platform.device("offload:0")?;
/// let arena = platform.home_as::<OffloadArena>(worker).ok_or("not a device of this kind")?;
/// arena.device().load("libkernels.so")?;
/// let prepare = arena.device().function("prepare")?;
/// arena.call(&prepare, 0..1, &[])?.wait()?;
/// # Ok(())
/// # }
/// ```
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.1, for the arena;
/// "Algorithmic scheme for hybrid computing with CPU, Xeon-Phi/MIC and GPU devices on a single machine",
/// section 3.2, for the offload model.
#[derive(Debug)]
pub struct OffloadArena {
    desc: ArenaDesc,
    device: Arc<OffloadDevice>,
    /// Runs the launched functions. The other two pipelines make long polled transfers, one per direction.
    runs: Pipeline,
    inward: Arc<Pipeline>,
    outward: Arc<Pipeline>,
}

impl OffloadArena {
    /// Makes the arena of `device`, which the platform knows as `native`. The arena stops the device when it
    /// is dropped, even if other references to the device remain.
    #[must_use]
    pub fn new(device: Arc<OffloadDevice>, native: DeviceId) -> Self {
        // Only the worker's functions use its own memory. Shared memory is coherent.
        let concurrency = match device.shared() {
            Some(_) => Concurrency::BimapFull,
            None => Concurrency::Exclusive,
        };
        let desc = ArenaDesc::new(device.name(), KIND, native)
            .with_concurrency(concurrency)
            .with_alloc_align(PAGE_BYTES)
            .with_alloc_cost(Cost::from_ns(5_000));
        let (runs, inward, outward) = (device.pipeline(), device.pipeline().into(), device.pipeline().into());
        Self { desc, device, runs, inward, outward }
    }

    /// Returns the device, which has the functions, the pipelines and the cause of a loss.
    #[must_use]
    pub fn device(&self) -> &Arc<OffloadDevice> {
        &self.device
    }

    /// Runs a function over the items, after all functions launched earlier. The fence ends with the function
    /// and reports zero bytes.
    ///
    /// # Safety
    /// 1. Until the fence has ended, the caller holds a grant of the parts, for writing where the function
    ///    may write them. The worker passes them to the function as slices.
    /// 2. If the worker shares memory with this process, the function accesses no bytes of that memory
    ///    outside the parts.
    ///
    /// # Errors
    /// [`OffloadError`] for an invalid call, or for a lost device. A fence reports it as a [`TransferError`].
    pub unsafe fn launch(
        &self,
        function: &Function,
        items: Range<u64>,
        arguments: &[Argument<'_>],
    ) -> Result<Fence, OffloadError> {
        Ok(self.runs.begin(function, items, arguments, &[])?.fence())
    }

    /// Runs a function that needs no memory, as [`launch`](Self::launch) does.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn call(
        &self,
        function: &Function,
        items: Range<u64>,
        scalars: &[Scalar],
    ) -> Result<Fence, OffloadError> {
        let arguments: Vec<_> = scalars.iter().map(|scalar| Argument::Scalar(*scalar)).collect();
        Ok(self.runs.begin(function, items, &arguments, &[])?.fence())
    }

    /// Returns the place of a request's bytes in a memory that the worker maps.
    fn place(&self, block: &BlockRef, span: Span) -> Place {
        let place = OffloadBlock::find(block, &self.device, span);
        place.unwrap_or_else(|reason| panic!("core bug: {}: {reason}: {block:?}", self.desc.name))
    }

    /// Makes a short transfer at once, and a long one when its fence is waited for or polled.
    fn transfer(
        &self,
        pipeline: &Arc<Pipeline>,
        transfer: Transfer,
        bytes: u64,
        block: BlockRef,
    ) -> Result<Fence, TransferError> {
        self.device.expect_there()?;
        if bytes <= AT_ONCE_BYTES {
            return Ok(Fence::done(self.device.transfer(&transfer)?));
        }
        let pipeline = pipeline.clone();
        Ok(Fence::awaited(Long::Asked(Asked { pipeline, transfer, block })))
    }
}

/// A long transfer. A thread that waits for it makes the transfer itself, because waking another thread would
/// take longer. If it is polled instead, a pipeline makes the transfer.
enum Long {
    Asked(Asked),
    Begun(Box<dyn Completion>),
    /// The transfer could not begin, and a poll has reported the error.
    Over,
}

struct Asked {
    pipeline: Arc<Pipeline>,
    transfer: Transfer,
    /// Keeps the pages of the transfer allocated.
    block: BlockRef,
}

impl Completion for Long {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        match *self {
            Self::Asked(Asked { pipeline, transfer, block: _block }) => {
                Ok(pipeline.device().transfer(&transfer)?)
            }
            Self::Begun(completion) => completion.wait(),
            Self::Over => Err(TransferError::Finished),
        }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        if let Self::Asked(_) = self
            && let Self::Asked(Asked { pipeline, transfer, block }) = std::mem::replace(self, Self::Over)
        {
            match pipeline.transfer(transfer, block) {
                Ok(signal) => *self = Self::Begun(Box::new(signal.awaited())),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        match self {
            Self::Begun(completion) => completion.poll(waker),
            Self::Asked(_) | Self::Over => Poll::Ready(Err(TransferError::Finished)),
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            // The transfer begins only when it is waited for or polled.
            Self::Asked(_) => false,
            Self::Begun(completion) => completion.has_ended(),
            Self::Over => true,
        }
    }
}

impl Drop for OffloadArena {
    fn drop(&mut self) {
        // All blocks are dropped before their platform, but a pipeline of the application may still hold a
        // reference to the device.
        self.device.stop();
    }
}

impl Arena for OffloadArena {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let arena = &self.desc.name;
        self.device.expect_there().map_err(|error| error.of_alloc(arena))?;
        let limit_bytes = self.device.memory_bytes();
        if len > limit_bytes {
            return Err(AllocError::TooLarge { arena: arena.clone(), bytes: len, limit_bytes });
        }
        let out_of_memory = || AllocError::OutOfMemory { arena: arena.clone(), bytes: len };
        let pages = self.device.heap().take(len).ok_or_else(out_of_memory)?;
        let block = OffloadBlock::new(self.device.clone(), pages, len);
        // If this fails, dropping the block frees the pages.
        self.device.transport().reserve(pages).map_err(|_| out_of_memory())?;
        Ok(NewBlock::new(Arc::new(block)))
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        self.device.expect_there().map_err(|error| error.of_alloc(&self.desc.name))?;
        let block = OffloadBlock::bind(&self.device, root);
        let block = block.ok_or_else(|| {
            AllocError::unsupported(&self.desc, "sharing storage that its worker does not map")
        })?;
        Ok(NewBlock::new(Arc::new(block)))
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        let device = request.device();
        panic!("core bug: map of {} for device {device}: no other device reaches it", self.desc.name)
    }

    fn unmap(&self, _request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!("core bug: unmap of {}: no other device reaches it", self.desc.name)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        let (block, span, from) = copy.into_parts();
        let place = self.place(&block, span);
        self.transfer(&self.inward, Transfer::In { place, from }, span.len(), block)
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        let (block, span, to) = copy.into_parts();
        let place = self.place(&block, span);
        self.transfer(&self.outward, Transfer::Out { place, to }, span.len(), block)
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        let (block, bytes) = (fill.block().clone(), fill.len());
        let (place, byte) = (self.place(&block, fill.span()), fill.byte());
        self.transfer(&self.inward, Transfer::Fill { place, byte, _request: Some(fill) }, bytes, block)
    }

    fn tail(&self) -> Result<Fence, TransferError> {
        self.device.expect_there()?;
        Ok(self.runs.tail()?.fence())
    }

    fn is_lost(&self) -> bool {
        self.device.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.device.loss().map(|loss| loss.to_string().into())
    }
}
