//! Grants: access that lasts until it ends, and slices of it.
//!
//! A grant is a transaction. [`release`](Grants::release) commits it. Dropped without that, it is rolled back:
//!
//! | of what it gives, was taken | what a drop does |
//! |---|---|
//! | nothing, or only for reading | nothing: the contents stay as they were |
//! | storage for writing | once what was launched on it can no longer touch it, what it was to write is poisoned, and can be [restored](crate::RawBuffer::restore) where the old contents survive |

use crate::access::{Access, Claim, Claims, normalise};
use crate::acquire::{Region, held, span_of};
use crate::arena::{Arena, BlockRef, Fence, NativeHandle};
use crate::buffer::RawBuffer;
use crate::cross_arena::moved_all;
use crate::engine::{guard, quietly};
use crate::error::{AcquireError, Breach, TransferError, ViewError};
use crate::host::{CastError, HostMemory, Lease, Loan};
use crate::id::{ArenaId, BufferId, GrantId, KernelId};
use crate::range::Span;
use crate::record::EventKind;
use crate::request::{CopyIn, CopyOut};
use crate::state::Outcome;
use crate::storage::Handout;
use crate::typed::Buffer;
use bytemuck::Pod;
use smallvec::SmallVec;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// One buffer's grant.
#[derive(Debug)]
pub(crate) struct Grant {
    buffer: RawBuffer,
    id: GrantId,
    arena: ArenaId,
    claims: Claims,
    block: Option<BlockRef>,
    /// The block as host memory, where it is.
    lease: Option<Lease>,
    /// Whether storage was handed out that the holder may write.
    is_written: AtomicBool,
    /// Whether the block was handed out, so that something may have been launched on it.
    is_launched_on: AtomicBool,
    /// Whether the arena has kept a transfer of the granted bytes, which it could still carry out.
    is_broken: AtomicBool,
    held_by: held::Holding,
    open: bool,
}

impl Grant {
    pub(crate) fn new(
        buffer: RawBuffer,
        id: GrantId,
        arena: ArenaId,
        claims: Claims,
        handout: Option<Handout>,
    ) -> Self {
        let held_by = match claims.is_empty() {
            // Who holds no bytes keeps nobody waiting.
            true => held::Holding::nobodys(),
            false => held::Holding::new(buffer.id(), id),
        };
        let (block, host) = handout.map_or((None, None), |handout| (Some(handout.block), handout.host));
        let lease = host.map(Lease::new);
        let no = || AtomicBool::new(false);
        let (is_written, is_launched_on, is_broken) = (no(), no(), no());
        Self {
            buffer,
            id,
            arena,
            claims,
            block,
            lease,
            is_written,
            is_launched_on,
            is_broken,
            held_by,
            open: true,
        }
    }

    fn writes(&self) -> bool {
        self.claims.iter().any(|claim| claim.access.writes())
    }

    /// The holder looks at its storage.
    fn used(&self) {
        self.held_by.used_here(self.buffer.id(), self.id);
    }

    /// The holder may write its storage from now on.
    fn written(&self) {
        self.used();
        self.is_written.store(true, Ordering::Relaxed);
    }

    /// The holder may launch something on its storage from now on.
    fn launched_on(&self) {
        self.used();
        self.is_launched_on.store(true, Ordering::Relaxed);
    }

    fn is_launched_on(&self) -> bool {
        self.is_launched_on.load(Ordering::Relaxed)
    }

    /// What becomes of it where nobody says so.
    fn roll_back(&self) -> Outcome {
        match self.is_written.load(Ordering::Relaxed) && self.writes() {
            true => Outcome::Failed,
            false => Outcome::NotStarted,
        }
    }

    fn release(&mut self, outcome: Outcome) -> Result<(), AcquireError> {
        let overwrites = |claim: &Claim| claim.access == Access::WriteInvalidate;
        if outcome == Outcome::Clean && self.claims.iter().any(overwrites) {
            return Err(AcquireError::NotClean { buffer: self.buffer.name() });
        }
        self.open = false;
        // The storage must be the buffer's alone again before the machine says so: closing hands it on (I-24).
        self.lease = None;
        quietly(self.block.take());
        // Before anybody is woken: a waker may acquire.
        self.held_by.ended(self.buffer.id(), self.id);
        self.buffer.0.release(self.id, outcome)
    }

    fn downgrade(&mut self) -> Result<(), AcquireError> {
        let downgraded = self.buffer.0.change(|core, routes| {
            let downgraded = core.state.downgrade(routes, self.id);
            let wrote = self.writes();
            if let (Ok(commit), true) = (downgraded, wrote) {
                self.buffer.0.record(|| EventKind::Downgraded { grant: self.id, commit });
            }
            downgraded
        });
        downgraded
            .map_err(|refusal| self.buffer.0.refused(refusal, Some((KernelId::default(), self.arena))))?;
        let reading = self.claims.iter().map(|claim| Claim { access: Access::ReadOnly, ..*claim });
        self.claims = normalise(reading);
        Ok(())
    }

    /// Refuses where somebody else may touch the bytes.
    fn expect_whole(&self) -> Result<(), ViewError> {
        match self.is_broken.load(Ordering::Relaxed) {
            true => Err(ViewError::Wedged { buffer: self.buffer.id() }),
            false => Ok(()),
        }
    }

    /// The block and the bytes of a region, as [`Grants::granted`] gives them.
    fn granted(&self, region: &impl Region, access: Access) -> Result<(Option<&BlockRef>, Span), ViewError> {
        let span = self.granted_span(region)?;
        if access.writes() && !covers(&self.claims, span, Access::writes) {
            return Err(ViewError::NotWritable { buffer: self.buffer.id(), span });
        }
        self.launched_on();
        if access.writes() {
            self.written();
        }
        Ok((self.block.as_ref(), span))
    }

    /// The bytes of a region, all of which must be granted.
    fn granted_span(&self, region: &impl Region) -> Result<Span, ViewError> {
        let buffer = self.buffer.id();
        let span = span_of(region).ok_or(ViewError::OutsideGrant { buffer, span: Span::default() })?;
        if covers(&self.claims, span, |_| true) {
            Ok(span)
        } else {
            Err(ViewError::OutsideGrant { buffer, span })
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.open {
            // Nobody is left to hear of a lost device; the poisoned bytes tell the next reader.
            let _ = self.release(self.roll_back());
        }
    }
}

/// What one call of the builder asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) buffer: BufferId,
    pub(crate) claim: Claim,
}

/// Access to every buffer of one request: a transaction, [committed](Self::release) or rolled back.
///
/// Dropped without [`release`](Self::release), [`clean`](Self::clean) or [`failed`](Self::failed), it leaves everything as it
/// was where nothing was taken from it for writing, and otherwise counts as failed, once whatever was launched on its storage
/// can no longer touch it. So an early return commits nothing.
#[derive(Debug)]
#[must_use = "dropping it rolls back: nothing is committed without release()"]
pub struct Grants {
    /// In canonical order.
    grants: Vec<Grant>,
    /// In the order in which they were asked for.
    items: SmallVec<[Item; 3]>,
}

impl Grants {
    pub(crate) fn new(grants: Vec<Grant>, items: SmallVec<[Item; 3]>) -> Self {
        Self { grants, items }
    }

    fn of(&self, buffer: BufferId) -> Result<&Grant, ViewError> {
        let found = self.grants.binary_search_by_key(&buffer, |grant| grant.buffer.id());
        let grant = &self.grants[found.map_err(|_| ViewError::NotGranted { buffer })?];
        grant.expect_whole()?;
        Ok(grant)
    }

    /// The block and the bytes of a region, if they are granted, for writing where `access` writes: for those who launch work
    /// on the storage. The block is `None` where no bytes were asked for.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`], [`ViewError::OutsideGrant`], [`ViewError::NotWritable`].
    pub fn granted(
        &self,
        region: &impl Region,
        access: Access,
    ) -> Result<(Option<&BlockRef>, Span), ViewError> {
        self.of(region.buffer().id())?.granted(region, access)
    }

    /// Says that another thread will hold the grants from now on: whoever uses them next does. Until then no thread counts as
    /// holding them, so the one that hands them over may wait for any buffer.
    pub fn hand_over(self) -> Self {
        self.grants.iter().for_each(|grant| grant.held_by.ended(grant.buffer.id(), grant.id));
        self
    }

    /// The storage granted for a buffer, as the arena's own block. `None` where no bytes were asked for.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`].
    pub fn block(&self, region: &impl Region) -> Result<Option<&BlockRef>, ViewError> {
        let grant = self.of(region.buffer().id())?;
        grant.launched_on();
        grant.written();
        Ok(grant.block.as_ref())
    }

    /// The framework's own handle of the whole storage: an address, a `cl_mem`, a device pointer. Offsets in it are
    /// those of the buffer. `None` where no bytes were asked for.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`], [`ViewError::NoHandle`] where the arena's block panics.
    pub fn native(&self, region: &impl Region) -> Result<Option<NativeHandle>, ViewError> {
        let no_handle = |_| ViewError::NoHandle { buffer: region.buffer().id() };
        self.block(region)?.map(|block| guard(|| block.native()).map_err(no_handle)).transpose()
    }

    /// The arena through which a buffer was granted.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`].
    pub fn arena(&self, region: &impl Region) -> Result<ArenaId, ViewError> {
        Ok(self.of(region.buffer().id())?.arena)
    }

    /// Granted bytes as elements, on the host.
    ///
    /// # Errors
    /// [`ViewError`] where they are not granted, not on the host, or do not make whole aligned elements.
    pub fn slice<T: Pod>(&self, region: &impl Region) -> Result<&[T], ViewError> {
        let grant = self.of(region.buffer().id())?;
        let span = grant.granted_span(region)?;
        grant.used();
        if span.is_empty() {
            return Ok(&[]);
        }
        let lease = grant.lease.as_ref().ok_or(ViewError::NotHost { buffer: grant.buffer.id() })?;
        lease.slice(span).map_err(|error| cast_error(grant.buffer.id(), span, error))
    }

    /// Granted bytes as changeable elements, on the host. For several at once see [`Grants::views`].
    ///
    /// # Errors
    /// As [`Grants::slice`], and [`ViewError::NotWritable`].
    pub fn slice_mut<T: Pod>(&mut self, region: &impl Region) -> Result<&mut [T], ViewError> {
        let buffer = region.buffer().id();
        let found = self.grants.binary_search_by_key(&buffer, |grant| grant.buffer.id());
        let grant = &mut self.grants[found.map_err(|_| ViewError::NotGranted { buffer })?];
        grant.expect_whole()?;
        let span = grant.granted_span(region)?;
        grant.used();
        if span.is_empty() {
            return Ok(&mut []);
        }
        if !covers(&grant.claims, span, Access::writes) {
            return Err(ViewError::NotWritable { buffer, span });
        }
        if grant.lease.is_some() {
            grant.written();
        }
        let lease = grant.lease.as_mut().ok_or(ViewError::NotHost { buffer })?;
        lease.slice_mut(span).map_err(|error| cast_error(buffer, span, error))
    }

    /// Everything that was asked for, in that order, each with a view of its own: so a kernel can read some while it
    /// writes others.
    ///
    /// # Errors
    /// [`ViewError::Aliased`] where two items share bytes and one of them writes, [`ViewError::NotHost`].
    pub fn views(&mut self) -> Result<Vec<View<'_>>, ViewError> {
        if let Some((buffer, span)) = aliased(&self.items) {
            return Err(ViewError::Aliased { buffer, span });
        }
        let mut views = Vec::with_capacity(self.items.len());
        for item in &self.items {
            let grant = self.of(item.buffer)?;
            let lease = grant.lease.as_ref().map(Lease::another);
            if lease.is_none() && !item.claim.span.is_empty() {
                return Err(ViewError::NotHost { buffer: item.buffer });
            }
            views.push(View { item: *item, lease, _grants: PhantomData });
        }
        for item in &self.items {
            let grant = self.of(item.buffer)?;
            if item.claim.access.writes() { grant.written() } else { grant.used() }
        }
        Ok(views)
    }

    /// Copies `bytes` into granted bytes of any device, by its arena's own copy, and waits.
    ///
    /// # Errors
    /// [`AcquireError::View`] where they are not granted for writing, or are not as many; [`AcquireError::CopyFailed`].
    pub fn write_bytes(&mut self, region: &impl Region, bytes: &[u8]) -> Result<(), AcquireError> {
        let memory = HostMemory::holding(bytes.to_vec());
        self.by_arena(region, Access::WriteInvalidate, |arena, block, span, loan| {
            if span.len() != memory.len() {
                let (requested_bytes, done_bytes) = (span.len(), memory.len());
                return Err(TransferError::Short { requested_bytes, done_bytes });
            }
            let source = memory.share().source(Span::new(0, span.len()), loan);
            arena.copy_in(CopyIn::scheduled(block, span.start(), source))
        })
    }

    /// What is in granted bytes of any device, by its arena's own copy.
    ///
    /// # Errors
    /// [`AcquireError::View`] where they are not granted; [`AcquireError::CopyFailed`].
    pub fn read_bytes(&self, region: &impl Region) -> Result<Vec<u8>, AcquireError> {
        let mut read = None;
        self.by_arena(region, Access::ReadOnly, |arena, block, span, loan| {
            let memory = read.insert(HostMemory::zeroed(span.len())?);
            let target = memory.share().target(Span::new(0, span.len()), loan);
            arena.copy_out(CopyOut::scheduled(block, span.start(), target))
        })?;
        Ok(read.map_or_else(Vec::new, |memory| memory.bytes().to_vec()))
    }

    /// Has the arena transfer granted bytes, and waits.
    fn by_arena(
        &self,
        region: &impl Region,
        access: Access,
        transfer: impl FnOnce(&dyn Arena, &BlockRef, Span, &Loan) -> Result<Fence, TransferError>,
    ) -> Result<(), AcquireError> {
        let id = region.buffer().id();
        let viewed = |cause| AcquireError::View { buffer: region.buffer().name(), cause };
        let grant = self.of(id).map_err(viewed)?;
        // Of this very grant: a region of strangers may name another buffer each time that it is asked.
        let (block, span) = grant.granted(region, access).map_err(viewed)?;
        let Some(block) = block.filter(|_| !span.is_empty()) else { return Ok(()) };
        let (buffer, loan) = (&grant.buffer, Loan::default());
        let arena = buffer.platform().arena(grant.arena);
        let done = guard(|| transfer(&**arena, block, span, &loan).and_then(Fence::wait))
            .unwrap_or_else(|message| Err(TransferError::Panicked { message }));
        let done = match loan.is_out() {
            true => Err(TransferError::StillLent),
            false => done.and_then(|bytes| moved_all(span.len(), bytes)),
        };
        done.map_err(|cause| {
            buffer.platform().notice_losses();
            let arena = buffer.0.arena_name(grant.arena);
            if cause == TransferError::StillLent {
                grant.is_broken.store(true, Ordering::Relaxed);
                buffer.0.wedge_lent();
                return AcquireError::ArenaContract {
                    buffer: buffer.name(),
                    arena,
                    breach: Breach::StillLent,
                };
            }
            AcquireError::CopyFailed { buffer: buffer.name(), from: arena.clone(), to: arena, span, cause }
        })
    }

    /// Ties the grants to a kernel that has been launched: they do not end before it does.
    pub fn in_flight(self, kernel: Fence) -> InFlight {
        for grant in &self.grants {
            grant.launched_on();
            grant.written();
            grant.buffer.0.change(|core, _| core.state.start(grant.id));
        }
        InFlight { grants: Some(self), kernel: Some(kernel) }
    }

    /// Ends access; what was granted for writing is committed.
    ///
    /// # Errors
    /// [`AcquireError::DeviceLost`] where a device was lost meanwhile: what it was to write is poisoned.
    pub fn release(self) -> Result<(), AcquireError> {
        self.end(Outcome::Done)
    }

    /// Ends access of a kernel that never began, though its storage was handed out: the contents stay as they were.
    ///
    /// # Errors
    /// None that a caller could act on; the type is that of its siblings.
    pub fn not_started(self) -> Result<(), AcquireError> {
        self.end(Outcome::NotStarted)
    }

    /// Ends access after a kernel that failed: what it was to write is poisoned, once nothing that was launched on it can touch
    /// it any more.
    ///
    /// # Errors
    /// None that a caller could act on; the type is that of its siblings.
    pub fn failed(self) -> Result<(), AcquireError> {
        self.end(Outcome::Failed)
    }

    /// Ends access of a kernel that wrote nothing, though it might have: the contents stay as they were.
    ///
    /// # Errors
    /// [`AcquireError::NotClean`] where bytes were granted for overwriting. They then count as failed, because nobody
    /// knows what they hold; the other buffers are released as clean.
    pub fn clean(self) -> Result<(), AcquireError> {
        self.end(Outcome::Clean)
    }

    /// A kernel failed: where that is because its device is gone, every buffer knows before the grants end. Those who wait
    /// for them are then not let in to a memory that is gone.
    fn notice_losses(&self) {
        if let Some(grant) = self.grants.first() {
            grant.buffer.platform().notice_losses();
        }
    }

    fn end(mut self, outcome: Outcome) -> Result<(), AcquireError> {
        if outcome == Outcome::Failed {
            self.wait_for_tail();
        }
        let mut result = Ok(());
        while let Some(mut grant) = self.grants.pop() {
            let mut released = grant.release(outcome);
            if matches!(released, Err(AcquireError::NotClean { .. })) {
                released = released.and(grant.release(Outcome::Failed));
            }
            result = result.and(released);
        }
        result
    }

    /// Waits until nothing that was launched on the storage can touch it any more. The arena knows; what it fails with says
    /// that it ends nothing later.
    fn wait_for_tail(&self) {
        if let Some(grant) = self.grants.iter().find(|grant| grant.is_launched_on()) {
            let arena = grant.buffer.platform().arena(grant.arena);
            let _ = guard(|| arena.tail().and_then(Fence::wait));
        }
    }

    /// Goes on reading what was written: writes are committed now, and other readers are let in.
    ///
    /// # Errors
    /// [`AcquireError::DeviceLost`]; everything is then released as failed.
    pub fn downgrade(mut self) -> Result<Self, AcquireError> {
        for index in 0..self.grants.len() {
            if let Err(error) = self.grants[index].downgrade() {
                let _ = self.end(Outcome::Failed);
                return Err(error);
            }
        }
        for item in &mut self.items {
            item.claim.access = Access::ReadOnly;
        }
        self.grants.iter_mut().for_each(|grant| *grant.is_written.get_mut() = false);
        Ok(self)
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        self.wait_for_tail();
        // In reverse canonical order.
        while let Some(grant) = self.grants.pop() {
            drop(grant);
        }
    }
}

/// Whether claims whose access `serves` name every byte of a span. Claims are sorted and disjoint.
fn covers(claims: &[Claim], span: Span, serves: impl Fn(Access) -> bool) -> bool {
    let mut next = span.start();
    let first = claims.partition_point(|claim| claim.span.end() <= next);
    for claim in &claims[first..] {
        if next >= span.end() || claim.span.start() > next || !serves(claim.access) {
            break;
        }
        next = claim.span.end();
    }
    next >= span.end()
}

/// Bytes that two items name, of which one writes.
fn aliased(items: &[Item]) -> Option<(BufferId, Span)> {
    let mut sorted: SmallVec<[&Item; 3]> = items.iter().filter(|item| !item.claim.span.is_empty()).collect();
    sorted.sort_by_key(|item| (item.buffer, item.claim.span));
    // Of the items before, the one that reaches furthest, and of those that write, likewise.
    let (mut any, mut writer): (Option<&Item>, Option<&Item>) = (None, None);
    for item in sorted {
        let rival = if item.claim.access.writes() { any } else { writer };
        if let Some(rival) = rival.filter(|rival| rival.buffer == item.buffer)
            && let Some(span) = rival.claim.span.intersection(item.claim.span)
        {
            return Some((item.buffer, span));
        }
        let further = |best: Option<&Item>| {
            best.is_none_or(|best| {
                best.buffer != item.buffer || best.claim.span.end() < item.claim.span.end()
            })
        };
        if further(any) {
            any = Some(item);
        }
        if item.claim.access.writes() && further(writer) {
            writer = Some(item);
        }
    }
    None
}

fn cast_error(buffer: BufferId, span: Span, error: CastError) -> ViewError {
    match error {
        CastError::Size { bytes, element_bytes } => {
            ViewError::Size { buffer, bytes: bytes as u64, element_bytes: element_bytes as u64 }
        }
        CastError::Alignment { element_align } => {
            ViewError::Alignment { buffer, span, element_align: element_align as u64 }
        }
    }
}

/// One item of [`Grants`] as slices.
#[derive(Debug)]
pub struct View<'a> {
    item: Item,
    lease: Option<Lease>,
    _grants: PhantomData<&'a mut Grants>,
}

impl View<'_> {
    /// The bytes of the buffer it shows.
    #[must_use]
    pub fn span(&self) -> Span {
        self.item.claim.span
    }

    /// The elements.
    ///
    /// # Errors
    /// [`ViewError::Size`], [`ViewError::Alignment`].
    pub fn slice<T: Pod>(&self) -> Result<&[T], ViewError> {
        match &self.lease {
            Some(lease) if !self.span().is_empty() => {
                lease.slice(self.span()).map_err(|error| cast_error(self.item.buffer, self.span(), error))
            }
            _ => Ok(&[]),
        }
    }

    /// The elements, to be changed.
    ///
    /// # Errors
    /// [`ViewError::NotWritable`] for an item that was asked for to read, [`ViewError::Size`],
    /// [`ViewError::Alignment`].
    pub fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], ViewError> {
        let (buffer, span) = (self.item.buffer, self.item.claim.span);
        if !self.item.claim.access.writes() {
            return Err(ViewError::NotWritable { buffer, span });
        }
        match &mut self.lease {
            Some(lease) if !span.is_empty() => {
                lease.slice_mut(span).map_err(|error| cast_error(buffer, span, error))
            }
            _ => Ok(&mut []),
        }
    }
}

/// Grants whose kernel runs.
///
/// It is a future of the kernel's end, which gives the grants back, to be released. Dropping it waits for the kernel, so that
/// nobody is let in before, and commits nothing: what the kernel was to write counts as failed.
#[derive(Debug)]
#[must_use = "dropping it waits for the kernel and commits nothing"]
pub struct InFlight {
    grants: Option<Grants>,
    kernel: Option<Fence>,
}

impl InFlight {
    /// Waits for the kernel and gives the grants back, to be released.
    ///
    /// # Errors
    /// What the framework reports of the kernel; the grants are then released as failed.
    pub fn wait(mut self) -> Result<Grants, TransferError> {
        let ended = self.kernel.take().map_or(Ok(0), waited);
        self.ended(ended)
    }

    fn ended(&mut self, ended: Result<u64, TransferError>) -> Result<Grants, TransferError> {
        let grants = self.grants.take().ok_or(TransferError::Finished)?;
        match ended {
            Ok(_) => Ok(grants),
            Err(error) => {
                grants.notice_losses();
                // The kernel's own error says more than that of the release.
                let _ = grants.failed();
                Err(error)
            }
        }
    }
}

/// Waits for work of somebody else.
fn waited(fence: Fence) -> Result<u64, TransferError> {
    guard(|| fence.wait()).unwrap_or_else(|message| Err(TransferError::Panicked { message }))
}

impl Future for InFlight {
    type Output = Result<Grants, TransferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = match &mut self.kernel {
            Some(kernel) => guard(|| kernel.poll(context.waker()))
                .unwrap_or_else(|message| Poll::Ready(Err(TransferError::Panicked { message }))),
            None => Poll::Ready(Ok(0)),
        };
        ended.map(|ended| {
            quietly(self.kernel.take());
            self.ended(ended)
        })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(kernel) = self.kernel.take()
            && waited(kernel).is_err()
            && let Some(grants) = &self.grants
        {
            grants.notice_losses();
        }
    }
}

/// The latest contents of a buffer, on the host.
#[derive(Debug)]
pub struct ReadView<T: Pod> {
    grants: Grants,
    buffer: Buffer<T>,
}

impl<T: Pod> ReadView<T> {
    /// Checks once that the contents can be seen, so that they always can.
    pub(crate) fn new(grants: Grants, buffer: Buffer<T>) -> Result<Self, AcquireError> {
        visible(&grants, &buffer)?;
        Ok(Self { grants, buffer })
    }

    pub(crate) fn into_grants(self) -> Grants {
        self.grants
    }
}

/// Whether a whole buffer can be seen as elements; its arena belongs to the host, so its storage can at most be
/// misaligned for `T`, which [`Buffer`] rules out by allocating for it.
fn visible<T: Pod>(grants: &Grants, buffer: &Buffer<T>) -> Result<(), AcquireError> {
    grants
        .slice::<T>(buffer)
        .map(|_| ())
        .map_err(|cause| AcquireError::View { buffer: buffer.raw().name(), cause })
}

impl<T: Pod> Deref for ReadView<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.grants.slice(&self.buffer).unwrap_or_default()
    }
}

/// The contents of a buffer, on the host, to be changed, and [committed](Self::release).
///
/// Dropped without that, it leaves the buffer as it was where nothing was changed through it, and poisoned otherwise.
#[derive(Debug)]
#[must_use = "dropping it rolls back: nothing is committed without release()"]
pub struct WriteView<T: Pod> {
    grants: Grants,
    buffer: Buffer<T>,
}

impl<T: Pod> WriteView<T> {
    pub(crate) fn new(grants: Grants, buffer: Buffer<T>) -> Result<Self, AcquireError> {
        visible(&grants, &buffer)?;
        Ok(Self { grants, buffer })
    }

    /// Ends access and commits what was written.
    ///
    /// # Errors
    /// As [`Grants::release`].
    pub fn release(self) -> Result<(), AcquireError> {
        self.grants.release()
    }
}

impl<T: Pod> Deref for WriteView<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.grants.slice(&self.buffer).unwrap_or_default()
    }
}

impl<T: Pod> DerefMut for WriteView<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.grants.slice_mut(&self.buffer).unwrap_or_default()
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    /// Every three items of four bytes, against every pair of them.
    #[test]
    fn i01_views_alias_where_two_items_share_bytes_and_one_writes() {
        let spans = (0..4).flat_map(|start| (start..=4).map(move |end| Span::new(start, end)));
        let accesses = [Access::ReadOnly, Access::ReadWrite];
        let claims = spans.flat_map(|span| accesses.map(|access| Claim { span, access }));
        let all: Vec<Item> = claims.map(|claim| Item { buffer: BufferId(1), claim }).collect();
        let shared = |one: &Item, other: &Item| {
            let writes = one.claim.access.writes() || other.claim.access.writes();
            one.claim.span.intersection(other.claim.span).filter(|span| writes && !span.is_empty())
        };
        let triples = (0..all.len().pow(3)).map(|index| {
            let places = [index, index / all.len(), index / all.len().pow(2)];
            places.map(|place| all[place % all.len()])
        });
        for [first, second, third] in triples {
            let pairs = [shared(&first, &second), shared(&first, &third), shared(&second, &third)];
            let found = aliased(&[first, second, third]);
            assert_eq!(found.is_some(), pairs.iter().any(Option::is_some), "{first:?} {second:?} {third:?}");
            assert!(found.is_none_or(|(_, span)| pairs.contains(&Some(span))), "{found:?} of {pairs:?}");
            // Those of another buffer share nothing with them.
            let elsewhere = Item { buffer: BufferId(2), ..second };
            let apart = aliased(&[first, elsewhere, third]);
            assert_eq!(apart.is_some(), pairs[1].is_some(), "{first:?} {elsewhere:?} {third:?}");
        }
    }
}
