//! The arena of a GPU's memory.

use super::block::CudaBlock;
use super::error::alloc_error;
use super::kernel::Program;
use super::session::{KERNELS, Session, Way};
use crate::compiled::{BuildCause, Programs};
use cudarc::driver::sys::{CUresult, cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2, cuMemsetD8Async};
use dml_core::internal::sync::Arc;
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaKind, Backing, BlockRef, Concurrency, CopyIn, CopyOut, Cost, DeviceId,
    Fence, Fill, MapReport, MapRequest, NativeHandle, NewBlock, Span, TransferError, UnmapRequest,
};

const KIND: ArenaKind = ArenaKind("cuda");
/// The alignment of all device memory, in bytes.
const ALIGN_BYTES: u64 = 256;

/// The memory of one NVIDIA GPU.
///
/// # Examples
/// ```no_run
/// # use dml_arenas::CudaArena;
/// # use dml_core::Platform;
/// # fn example(platform: &Platform) -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = platform.device("cuda:0")?;
/// let arena = platform.home_as::<CudaArena>(gpu).ok_or("not a device of this kind")?;
/// let (major, minor) = arena.capability();
/// println!("compute capability {major}.{minor}, {} MiB", arena.capacity_bytes() >> 20);
/// let stream = arena.stream(); // for launches of the application's own
/// # Ok(())
/// # }
/// ```
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 4: the CUDA arena, whose
/// remote devices are the other GPUs that reach its memory. Here the other GPUs copy from it, and map none of
/// its blocks.
#[derive(Debug)]
pub struct CudaArena {
    pub(super) desc: ArenaDesc,
    pub(super) session: Arc<Session>,
    pub(super) programs: Programs<Program, BuildCause>,
}

impl CudaArena {
    /// Creates the arena named `name` of the device `native`.
    pub(super) fn new(session: Arc<Session>, name: &str, native: DeviceId) -> Self {
        let desc = ArenaDesc::new(name, KIND, native)
            .with_alloc_align(ALIGN_BYTES)
            .with_alloc_cost(Cost::from_ns(5_000));
        Self { desc, session, programs: Programs::new() }
    }

    /// Allows binding the arena to page-locked memory, which other devices use at the same time.
    pub(super) fn in_place(mut self) -> Self {
        self.desc = self.desc.with_concurrency(Concurrency::BimapFull);
        self
    }

    /// The `CUcontext`, the device's primary one, valid while the arena lives.
    #[must_use]
    pub fn context(&self) -> NativeHandle {
        self.session.native(Way::Kernels).1
    }

    /// The `CUstream` of the kernels, valid while the arena lives.
    ///
    /// A command enqueued here on granted bytes runs after the transfers that brought them. It must have
    /// ended before its grant is released: transfers use other streams, and do not wait for it.
    #[must_use]
    pub fn stream(&self) -> NativeHandle {
        self.session.native(Way::Kernels).0
    }

    /// The `CUstream`s of transfers to the device and from it, valid while the arena lives.
    #[must_use]
    pub fn transfer_streams(&self) -> [NativeHandle; 2] {
        [Way::Inward, Way::Outward].map(|way| self.session.native(way).0)
    }

    /// The maximum total size of all blocks, in bytes. Other programs may use part of this memory.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.session.found.memory_bytes
    }

    /// The compute capability of the device, major and minor.
    #[must_use]
    pub fn capability(&self) -> (u32, u32) {
        self.session.found.capability
    }

    /// Marks the device as lost, for this reason.
    ///
    /// A program calls this when its own CUDA calls have met an error that makes the context unusable.
    /// Running commands are still waited for, and later requests are refused.
    pub fn declare_lost(&self, reason: &str) {
        self.session.lose(reason);
    }

    fn own<'a>(&self, block: &'a BlockRef) -> &'a CudaBlock {
        block.downcast_ref::<CudaBlock>().filter(|block| block.is_of(&self.session)).unwrap_or_else(|| {
            panic!("core bug: {} was handed a block of another arena: {block:?}", self.desc.name)
        })
    }

    /// Returns the block as the arena's own.
    ///
    /// # Panics
    /// If the block belongs to another arena or does not contain the span, which is a bug of core.
    fn ready<'a>(&self, block: &'a BlockRef, span: Span) -> &'a CudaBlock {
        let name = &self.desc.name;
        assert!(
            span.end() <= block.len(),
            "core bug: {name} was asked for bytes {span} of a block of {} bytes",
            block.len()
        );
        self.own(block)
    }

    fn copy_out_on(&self, way: Way, copy: CopyOut) -> Result<Fence, TransferError> {
        let own = self.ready(copy.block(), copy.span());
        if copy.is_empty() {
            return Ok(Fence::done(0));
        }
        let (from, bytes) = (own.at(copy.span().start()), copy.len());
        let to = copy.to().span().as_ptr().cast();
        // SAFETY: as in `copy_in`, with a loan of the target.
        unsafe {
            self.session.command((way, "cuMemcpyDtoHAsync"), bytes, copy, |stream| {
                cuMemcpyDtoHAsync_v2(to, from, bytes as usize, stream)
            })
        }
    }
}

impl Arena for CudaArena {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let arena = &self.desc.name;
        let limit_bytes = self.capacity_bytes();
        let size = usize::try_from(len).ok().filter(|_| len <= limit_bytes);
        let size =
            size.ok_or_else(|| AllocError::TooLarge { arena: arena.clone(), bytes: len, limit_bytes })?;
        let block =
            CudaBlock::alloc(&self.session, size).map_err(|failure| alloc_error(arena, failure, len))?;
        Ok(NewBlock::new(Arc::new(block)))
    }

    fn admit(&self, block: &BlockRef) -> Result<(), AllocError> {
        let own = block.downcast_ref::<CudaBlock>().filter(|block| block.is_of(&self.session));
        own.map(|_| ()).ok_or_else(|| AllocError::unsupported(&self.desc, "a block of another arena"))
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        let arena = &self.desc.name;
        if self.is_lost() {
            return Err(AllocError::DeviceLost { arena: arena.clone(), loss: None });
        }
        let Some(host) = root.host() else {
            return Err(AllocError::unsupported(&self.desc, "sharing storage that is no host memory"));
        };
        let bound = CudaBlock::bind(&self.session, root, host).map_err(|failure| {
            let unlocked =
                [CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED];
            if unlocked.contains(&failure.code) {
                return AllocError::unsupported(&self.desc, "sharing host memory that is not page-locked");
            }
            alloc_error(arena, failure, root.len())
        })?;
        Ok(NewBlock::new(Arc::new(bound)))
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!(
            "core bug: map of {} for device {}: it has no remote devices",
            self.desc.name,
            request.device()
        )
    }

    fn unmap(&self, _request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!("core bug: unmap of {}: it has no remote devices", self.desc.name)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        let own = self.ready(copy.block(), copy.span());
        if copy.is_empty() {
            return Ok(Fence::done(0));
        }
        let (to, bytes) = (own.at(copy.span().start()), copy.len());
        let from = copy.from().span().as_ptr().cast_const().cast();
        let way = (Way::Inward, "cuMemcpyHtoDAsync");
        // SAFETY: the bytes lie within the block (`ready`). The fence keeps the block and the loan of the
        // source until it has been waited for.
        unsafe {
            self.session
                .command(way, bytes, copy, |stream| cuMemcpyHtoDAsync_v2(to, from, bytes as usize, stream))
        }
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.copy_out_on(Way::Outward, copy)
    }

    fn orders_work(&self) -> bool {
        true
    }

    fn launch_behind(&self, transfers: &[&Fence]) -> bool {
        self.session.waits_for(&KERNELS, transfers)
    }

    fn copy_out_behind(&self, copy: CopyOut, kernel: &Fence) -> Result<Fence, TransferError> {
        // No other copy waits for this kernel, because those to host memory have a stream of their own.
        match self.session.waits_for(&[Way::Results], &[kernel]) {
            true => self.copy_out_on(Way::Results, copy),
            false => Err(TransferError::Infeasible),
        }
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        let (span, byte) = (fill.span(), fill.byte());
        let own = self.ready(fill.block(), span);
        if span.is_empty() {
            return Ok(Fence::done(0));
        }
        let (to, bytes) = (own.at(span.start()), span.len());
        let way = (Way::Inward, "cuMemsetD8Async");
        // SAFETY: the bytes lie within the block (`ready`), which the fence keeps.
        unsafe {
            self.session.command(way, bytes, fill, |stream| cuMemsetD8Async(to, byte, bytes as usize, stream))
        }
    }

    fn tail(&self) -> Result<Fence, TransferError> {
        self.session.tail()
    }

    fn is_lost(&self) -> bool {
        self.session.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.session.loss()
    }
}
