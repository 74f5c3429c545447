//! Grants: access that lasts until it is released, and slices of it.
//!
//! Dropping a grant releases it: as not started where nothing was taken from it, as done otherwise, as failed where the
//! thread is panicking and the grant writes.

use crate::access::{Access, Claim, Claims, normalise};
use crate::acquire::{Region, held, span_of};
use crate::arena::{BlockRef, Fence, NativeHandle};
use crate::buffer::RawBuffer;
use crate::error::{AcquireError, TransferError, ViewError};
use crate::host::{CastError, Lease};
use crate::id::{ArenaId, BufferId, GrantId, KernelId};
use crate::range::Span;
use crate::record::EventKind;
use crate::state::Outcome;
use crate::typed::Buffer;
use bytemuck::Pod;
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

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
    started: AtomicBool,
    held_by: held::Holder,
    open: bool,
}

impl Grant {
    pub(crate) fn new(
        buffer: RawBuffer,
        id: GrantId,
        arena: ArenaId,
        claims: Claims,
        block: Option<BlockRef>,
    ) -> Self {
        let held_by = held::add(buffer.id(), id);
        let lease = block.as_ref().and_then(|block| block.host()).map(Lease::new);
        Self { buffer, id, arena, claims, block, lease, started: AtomicBool::new(false), held_by, open: true }
    }

    fn start(&self) {
        self.started.store(true, Ordering::Relaxed);
    }

    fn release(&mut self, outcome: Outcome) -> Result<(), AcquireError> {
        // The storage must be the buffer's alone again before the machine says so: closing hands it on (I-24).
        self.lease = None;
        self.block = None;
        let released = self.buffer.0.release(self.id, outcome);
        if !matches!(released, Err(AcquireError::NotClean { .. })) {
            self.open = false;
            held::remove(self.buffer.id(), self.id, self.held_by);
        }
        released
    }

    fn downgrade(&mut self) -> Result<(), AcquireError> {
        let downgraded = self.buffer.0.change(|core, routes| {
            let downgraded = core.state.downgrade(routes, self.id);
            let wrote = self.claims.iter().any(|claim| claim.access.writes());
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

    /// The bytes of a region, all of which must be granted.
    fn granted_span(&self, region: &impl Region) -> Result<Span, ViewError> {
        let buffer = self.buffer.id();
        let span = span_of(region).ok_or(ViewError::OutsideGrant { buffer, span: Span::default() })?;
        if covers(self.claims.iter(), span) {
            Ok(span)
        } else {
            Err(ViewError::OutsideGrant { buffer, span })
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let started = self.started.load(Ordering::Relaxed);
        let outcome = match started {
            true if std::thread::panicking() && self.claims.iter().any(|claim| claim.access.writes()) => {
                Outcome::Failed
            }
            true => Outcome::Done,
            false => Outcome::NotStarted,
        };
        // Nobody is left to hear of a lost device; the poisoned bytes tell the next reader.
        let _ = self.release(outcome);
    }
}

/// What one call of the builder asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) buffer: BufferId,
    pub(crate) claim: Claim,
}

/// Access to every buffer of one request, until released or dropped.
#[derive(Debug)]
#[must_use = "access ends when this is dropped"]
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
        self.grants.iter().find(|grant| grant.buffer.id() == buffer).ok_or(ViewError::NotGranted { buffer })
    }

    /// The storage granted for a buffer, as the arena's own block. `None` where no bytes were asked for.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`].
    pub fn block(&self, region: &impl Region) -> Result<Option<&BlockRef>, ViewError> {
        let grant = self.of(region.buffer().id())?;
        grant.start();
        Ok(grant.block.as_ref())
    }

    /// The framework's own handle of the whole storage: an address, a `cl_mem`, a device pointer. Offsets in it are
    /// those of the buffer. `None` where no bytes were asked for.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`].
    pub fn native(&self, region: &impl Region) -> Result<Option<NativeHandle>, ViewError> {
        Ok(self.block(region)?.map(|block| block.native()))
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
        grant.start();
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
        let found = self.grants.iter_mut().find(|grant| grant.buffer.id() == buffer);
        let grant = found.ok_or(ViewError::NotGranted { buffer })?;
        let span = grant.granted_span(region)?;
        grant.start();
        if span.is_empty() {
            return Ok(&mut []);
        }
        if !covers(grant.claims.iter().filter(|claim| claim.access.writes()), span) {
            return Err(ViewError::NotWritable { buffer, span });
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
        let mut views = Vec::with_capacity(self.items.len());
        for (index, item) in self.items.iter().enumerate() {
            let rival = |other: &&Item| other.buffer == item.buffer && other.claim.conflicts(&item.claim);
            if let Some(other) = self.items[..index].iter().find(rival) {
                let span = other.claim.span.intersection(item.claim.span).unwrap_or_default();
                return Err(ViewError::Aliased { buffer: item.buffer, span });
            }
            let grant = self.of(item.buffer)?;
            grant.start();
            let host = grant.block.as_ref().and_then(|block| block.host());
            if host.is_none() && !item.claim.span.is_empty() {
                return Err(ViewError::NotHost { buffer: item.buffer });
            }
            views.push(View { item: *item, lease: host.map(Lease::new), _grants: PhantomData });
        }
        Ok(views)
    }

    /// Ties the grants to a kernel that has been launched: they cannot be released before it ends.
    pub fn in_flight(self, kernel: Fence) -> InFlight {
        for grant in &self.grants {
            grant.start();
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

    /// Ends access after a kernel that failed: what it was to write is poisoned.
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
        Ok(self)
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        // In reverse canonical order.
        while let Some(grant) = self.grants.pop() {
            drop(grant);
        }
    }
}

fn covers<'a>(claims: impl Iterator<Item = &'a Claim>, span: Span) -> bool {
    let mut next = span.start();
    for claim in claims {
        if claim.span.start() <= next && next < claim.span.end() {
            next = claim.span.end();
        }
    }
    next >= span.end()
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

/// Grants whose kernel runs. Dropping them waits for it.
#[derive(Debug)]
#[must_use = "dropping it waits for the kernel and hides whether it worked"]
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
        let ended = self.kernel.take().map_or(Ok(0), Fence::wait);
        let grants = self.grants.take().unwrap_or_else(|| Grants::new(Vec::new(), SmallVec::new()));
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

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(kernel) = self.kernel.take() {
            let ended = kernel.wait();
            if let Some(grants) = self.grants.take() {
                if ended.is_err() {
                    grants.notice_losses();
                }
                let _ = grants.end(if ended.is_ok() { Outcome::Done } else { Outcome::Failed });
            }
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
        .map_err(|cause| AcquireError::View { buffer: buffer.raw().id(), cause })
}

impl<T: Pod> Deref for ReadView<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.grants.slice(&self.buffer).unwrap_or_default()
    }
}

/// The contents of a buffer, on the host, to be changed. Dropping it commits them.
#[derive(Debug)]
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
