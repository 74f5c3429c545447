//! Implements core's [`Arena`] trait for the memory of an OpenCL device.

use super::block::{Mapping, OpenClBlock};
use super::error::alloc_error;
use super::handle::Program;
use super::session::{Enqueued, Session};
use crate::compiled::{BuildCause, Programs};
use dml_core::MapState;
use dml_core::internal::sync::{Arc, MutexGuard};
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaKind, Backing, BlockRef, Concurrency, CopyIn, CopyOut, Cost, DeviceId,
    DeviceSet, Fence, Fill, MapReport, MapRequest, NativeHandle, NewBlock, Span, TransferError, UnmapRequest,
};
use opencl3::command_queue::{enqueue_fill_buffer, enqueue_read_buffer, enqueue_write_buffer};
use opencl3::types::CL_NON_BLOCKING;

const KIND: ArenaKind = ArenaKind("opencl");

/// The memory of one OpenCL device, or of a part of one.
///
/// # Examples
/// ```no_run
/// # use dml_arenas::OpenClArena;
/// # use dml_core::Platform;
/// # fn example(platform: &Platform) -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = platform.device("opencl:0")?;
/// let arena = platform.home_as::<OpenClArena>(gpu).ok_or("not a device of this kind")?;
/// println!("{} MiB", arena.capacity_bytes() >> 20);
/// let (context, queue) = (arena.context(), arena.queue()); // for launches of the application's own
/// # Ok(())
/// # }
/// ```
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 4: the OpenCL arena. It is
/// exclusive because OpenCL leaves concurrent use of a buffer by host and device undefined.
#[derive(Debug)]
pub struct OpenClArena {
    desc: ArenaDesc,
    host: DeviceId,
    pub(super) session: Arc<Session>,
    pub(super) programs: Programs<Program, BuildCause>,
}

impl OpenClArena {
    /// Creates the arena `name` of the device `native`, which can be mapped for the processor `host`.
    pub(super) fn new(session: Arc<Session>, name: &str, native: DeviceId, host: DeviceId) -> Self {
        let desc = ArenaDesc::new(name, KIND, native)
            .with_remotes(DeviceSet::of(host))
            .with_concurrency(Concurrency::Exclusive)
            .with_alloc_align(session.facts.align_bytes)
            .with_alloc_cost(Cost::from_ns(20_000));
        Self { desc, host, session, programs: Programs::new() }
    }

    /// Configures the arena for a binding to shared virtual memory, which the host uses without a mapping.
    /// The arena's own blocks are never mapped: transfers read and write them.
    pub(super) fn fine_grained(mut self) -> Self {
        self.desc = self.desc.with_remotes(DeviceSet::EMPTY).with_concurrency(Concurrency::BimapFull);
        self
    }

    /// Returns the `cl_device_id`, valid while the arena lives. It is a sub-device if the device is limited
    /// to some of its compute units.
    #[must_use]
    pub fn device(&self) -> NativeHandle {
        NativeHandle(self.session.part.id().addr())
    }

    /// Returns the `cl_context`, valid while the arena lives.
    #[must_use]
    pub fn context(&self) -> NativeHandle {
        self.session.native().1
    }

    /// Returns the in-order `cl_command_queue` of the kernels, valid while the arena lives.
    ///
    /// A command enqueued here on granted bytes runs after the transfers that brought them, and after the
    /// kernels that wrote them. It must have ended before its grant is released: transfers use other queues,
    /// and do not wait for it.
    #[must_use]
    pub fn queue(&self) -> NativeHandle {
        self.session.native().0[0]
    }

    /// Returns the in-order `cl_command_queue`s of transfers to the device and from it, valid while the arena
    /// lives.
    ///
    /// Both are [`queue`](Self::queue) on a device of OpenCL 1, which leaves concurrent use of one buffer
    /// undefined.
    #[must_use]
    pub fn transfer_queues(&self) -> [NativeHandle; 2] {
        let [_, inward, outward] = self.session.native().0;
        [inward, outward]
    }

    /// Returns the maximum size of one block, in bytes.
    #[must_use]
    pub fn max_alloc_bytes(&self) -> u64 {
        self.session.facts.max_alloc_bytes
    }

    /// Returns the maximum total size of all blocks, in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.session.facts.memory_bytes
    }

    /// Checks the size, and creates a block of `len` bytes.
    fn block(
        &self,
        len: u64,
        make: impl FnOnce(usize) -> Result<OpenClBlock, (&'static str, i32)>,
    ) -> Result<NewBlock, AllocError> {
        let limit_bytes = self.max_alloc_bytes();
        let too_large = || AllocError::TooLarge { arena: self.desc.name.clone(), bytes: len, limit_bytes };
        let size = usize::try_from(len).ok().filter(|_| len <= limit_bytes).ok_or_else(too_large)?;
        let block = make(size).map_err(|(call, code)| {
            self.session.note(code);
            alloc_error(&self.desc.name, call, code, len, limit_bytes)
        })?;
        Ok(NewBlock::new(Arc::new(block)))
    }

    fn own<'a>(&self, block: &'a BlockRef) -> &'a OpenClBlock {
        block.downcast_ref::<OpenClBlock>().filter(|block| block.is_of(&self.session)).unwrap_or_else(|| {
            panic!("core bug: {} was handed a block of another arena: {block:?}", self.desc.name)
        })
    }

    /// Checks that the block belongs to the device, contains `span` and is unmapped while the guard lives.
    fn ready<'a>(&self, block: &'a BlockRef, span: Span) -> (&'a OpenClBlock, MutexGuard<'a, Mapping>) {
        let name = &self.desc.name;
        assert!(
            span.end() <= block.len(),
            "core bug: {name} was asked for bytes {span} of a block of {} bytes",
            block.len()
        );
        let own = self.own(block);
        let mapping = own.mapping();
        assert!(
            !mapping.is_mapped(),
            "core bug: {name} was asked to touch bytes {span} of a block mapped for the host"
        );
        (own, mapping)
    }
}

impl Arena for OpenClArena {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        self.block(len, |size| OpenClBlock::alloc(&self.session, size))
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        if root.host().is_none() {
            return Err(AllocError::unsupported(&self.desc, "sharing storage that is no host memory"));
        }
        self.block(root.len(), |size| OpenClBlock::bind(&self.session, size, root))
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        let (block, device) = (request.block(), request.device());
        let is_remote = self.desc.remotes.contains(device);
        assert!(is_remote, "core bug: {} cannot be mapped for device {device}", self.desc.name);
        let memory = self.own(block).map(block, &self.desc.name)?;
        Ok(MapReport { state: MapState::Mapped(DeviceSet::of(device)), host: Some(memory) })
    }

    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.own(request.block()).unmap(request, &self.desc.name)?;
        Ok(MapReport { state: MapState::Unmapped, host: None })
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        let is_mapped = self.own(block).mapping().is_mapped();
        Some(if is_mapped { MapState::Mapped(DeviceSet::of(self.host)) } else { MapState::Unmapped })
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        let (own, unmapped) = self.ready(copy.block(), copy.span());
        let bytes = copy.len();
        if copy.is_empty() {
            return Ok(Fence::done(0));
        }
        let queue = self.session.inward()?;
        let after = unmapped.after();
        let (count, events) = after.parts();
        let (start, size) = (copy.span().start() as usize, bytes as usize);
        let source = copy.from().span().as_ptr().cast_const().cast();
        // SAFETY: a live queue, a buffer of its context and a span within it (`ready`). The fence keeps the
        // block and the loan of the source until the command has ended.
        let enqueued = unsafe {
            enqueue_write_buffer(queue, own.mem(), CL_NON_BLOCKING, start, size, source, count, events)
        };
        drop(unmapped);
        self.session.fence("clEnqueueWriteBuffer", Enqueued::on(queue, enqueued), bytes, copy)
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        let (own, unmapped) = self.ready(copy.block(), copy.span());
        let bytes = copy.len();
        if copy.is_empty() {
            return Ok(Fence::done(0));
        }
        let queue = self.session.outward()?;
        let after = unmapped.after();
        let (count, events) = after.parts();
        let (start, size) = (copy.span().start() as usize, bytes as usize);
        let target = copy.to().span().as_ptr().cast();
        // SAFETY: as in `copy_in`, with a lent target.
        let enqueued = unsafe {
            enqueue_read_buffer(queue, own.mem(), CL_NON_BLOCKING, start, size, target, count, events)
        };
        drop(unmapped);
        self.session.fence("clEnqueueReadBuffer", Enqueued::on(queue, enqueued), bytes, copy)
    }

    fn orders_work(&self) -> bool {
        true
    }

    fn launch_behind(&self, transfers: &[&Fence]) -> bool {
        self.session.launches_behind(transfers)
    }

    fn copy_out_behind(&self, copy: CopyOut, kernel: &Fence) -> Result<Fence, TransferError> {
        let (own, unmapped) = self.ready(copy.block(), copy.span());
        let Some(mut events) = self.session.events_of(&[kernel]) else {
            return Err(TransferError::Infeasible);
        };
        let bytes = copy.len();
        if copy.is_empty() {
            return Ok(Fence::done(0));
        }
        // A wait in another queue does not submit the kernel.
        self.session.submit_all();
        let queue = self.session.results()?;
        events.extend(unmapped.after().event());
        let (start, size) = (copy.span().start() as usize, bytes as usize);
        let (count, list) = (events.len() as u32, events.as_ptr());
        let list = if events.is_empty() { std::ptr::null() } else { list };
        let target = copy.to().span().as_ptr().cast();
        // SAFETY: as in `copy_out`; the events are of this context, and live in this call.
        let enqueued = unsafe {
            enqueue_read_buffer(queue, own.mem(), CL_NON_BLOCKING, start, size, target, count, list)
        };
        drop(unmapped);
        self.session.fence("clEnqueueReadBuffer", Enqueued::on(queue, enqueued), bytes, copy)
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        let (span, byte) = (fill.span(), fill.byte());
        let (own, unmapped) = self.ready(fill.block(), span);
        if span.is_empty() {
            return Ok(Fence::done(0));
        }
        let queue = self.session.inward()?;
        let after = unmapped.after();
        let (count, events) = after.parts();
        let pattern = (&raw const byte).cast();
        let (start, size) = (span.start() as usize, span.len() as usize);
        // SAFETY: a live queue, its context's buffer and a span within it (`ready`); the pattern is copied.
        let enqueued =
            unsafe { enqueue_fill_buffer(queue, own.mem(), pattern, 1, start, size, count, events) };
        drop(unmapped);
        self.session.fence("clEnqueueFillBuffer", Enqueued::on(queue, enqueued), span.len(), fill)
    }

    fn tail(&self) -> Result<Fence, TransferError> {
        let session = self.session.clone();
        Ok(Fence::running(move || session.finish().map(|()| 0)))
    }

    fn is_lost(&self) -> bool {
        self.session.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.session.loss()
    }
}
