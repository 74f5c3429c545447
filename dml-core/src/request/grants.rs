//! Grants: access to bytes until the grant ends, and slices of those bytes.
//!
//! A grant is a transaction. [`release`](Grants::release) commits it. A drop without release rolls it back:
//!
//! | taken from the grant | effect of a drop |
//! |---|---|
//! | nothing, views, or slices for reading only | nothing: the contents stay as they were |
//! | storage for writing | waits for launched work, then poisons the bytes granted for writing |
//!
//! Poisoned bytes can be [restored](crate::RawBuffer::restore) if the old contents survive.

use crate::base::access::{Access, Claim};
use crate::base::counters::Operation;
use crate::base::guard::guard;
use crate::base::id::{ArenaId, BufferId, DeviceId, OwnerId};
use crate::base::range::Span;
use crate::base::sync::{Arc, Mutex};
use crate::buffer::RawBuffer;
use crate::buffer::engine::Run;
use crate::buffer::error::{AcquireError, PoisonedEnd, ViewError};
use crate::memory::arena::Arena;
use crate::memory::block::{BlockRef, NativeHandle};
use crate::memory::cross_arena::moved_all;
use crate::memory::error::{Breach, TransferError};
use crate::memory::fence::Fence;
use crate::memory::host::{HostMemory, Lease, Loan};
use crate::memory::request::{CopyIn, CopyOut};
use crate::request::docket::{Docket, Item};
use crate::request::flight::InFlight;
use crate::request::region::Region;
use crate::request::view::View;
use crate::state::{BusyReason, EventKind, Outcome};
use bytemuck::Pod;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

use crate::request::grant::{Grant, Mark, Moving};

/// Access to all buffers of one request, as a transaction that is [committed](Self::release) or rolled back.
///
/// A drop without [`release`](Self::release), [`clean`](Self::clean) or [`failed`](Self::failed) commits
/// nothing, so an early return is safe. If storage was taken for writing, the drop counts as a failure, after
/// launched work can no longer touch the storage. Otherwise the contents stay as they were.
///
/// # Examples
/// ```
/// # use dml_core::{Buffer, DeviceId, Platform};
/// # use std::error::Error;
/// # fn example(platform: &Platform, cpu: DeviceId, values: &Buffer<f32>) -> Result<(), Box<dyn Error>> {
/// let mut grants = platform.acquire(cpu).read_write(values).wait()?;
/// let part = grants.slice_mut::<f32>(&values.range(0..100))?; // an early return rolls back
/// part.iter_mut().for_each(|value| *value *= 2.0);
/// grants.release()?; // commits
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it rolls back: nothing is committed without release()"]
pub struct Grants {
    pub(super) docket: Docket,
}

impl Grants {
    /// Makes the value of a request that is granted. The grants are in canonical order.
    pub(super) fn new(docket: Docket) -> Self {
        Self { docket }
    }

    /// Records a launch under these grants, and returns whether it is the first one. Only the first one may
    /// run concurrently with earlier launches, because later ones may depend on it: see
    /// [`Launch::is_independent`](crate::Launch::is_independent).
    pub fn launches_first(&mut self) -> bool {
        !std::mem::replace(&mut self.docket.has_launched, true)
    }

    fn place(&self, buffer: &RawBuffer) -> Result<usize, ViewError> {
        let found = self.docket.grants().binary_search_by_key(&buffer.id(), |grant| grant.buffer.id());
        found.map_err(|_| ViewError::NotGranted { buffer: buffer.name() })
    }

    fn of(&self, buffer: &RawBuffer) -> Result<&Grant, ViewError> {
        let grant = &self.docket.grants()[self.place(buffer)?];
        grant.expect_whole()?;
        Ok(grant)
    }

    /// Returns the grant of an item.
    fn of_item(&self, buffer: BufferId) -> &Grant {
        let found = self.docket.grants().binary_search_by_key(&buffer, |grant| grant.buffer.id());
        &self.docket.grants()[found.expect("every item has a grant")]
    }

    /// Returns the buffers with the ids of their grants, in canonical order. No two grants of a buffer have
    /// the same id, so a caller that lends grants can check that it got the same ones back.
    pub fn ids(&self) -> impl Iterator<Item = (BufferId, OwnerId)> + '_ {
        self.docket.grants().iter().map(|grant| (grant.buffer.id(), grant.id))
    }

    /// Returns the block and the bytes of a region, for code that launches work on the storage. The region
    /// must be granted, and for writing if `access` writes. The block is `None` if no bytes were requested.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`], [`ViewError::OutsideGrant`], [`ViewError::NotWritable`].
    pub fn granted(
        &self,
        region: &impl Region,
        access: Access,
    ) -> Result<(Option<&BlockRef>, Span), ViewError> {
        let grant = self.of(region.buffer())?;
        let granted = grant.moved(region, access, None)?;
        grant.launched_on();
        Ok(granted)
    }

    /// Prepares the grants for another thread, which becomes their holder when it uses them. Until then no
    /// thread counts as the holder, so this thread may wait for any buffer.
    pub fn hand_over(self) -> Self {
        self.docket.grants().iter().for_each(|grant| grant.held_by.ended(grant.buffer.id(), grant.id));
        self
    }

    /// Returns the storage granted for a buffer, as the arena's own block; `None` if no bytes were requested.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`].
    pub fn block(&self, region: &impl Region) -> Result<Option<&BlockRef>, ViewError> {
        let grant = self.of(region.buffer())?;
        grant.launched_on();
        grant.written();
        Ok(grant.block())
    }

    /// Returns the framework's own handle of the whole storage: an address, a `cl_mem`, a device pointer.
    /// Offsets in it are those of the buffer. The handle is `None` if no bytes were requested.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`]; [`ViewError::NoHandle`] if the arena's block panics.
    pub fn native(&self, region: &impl Region) -> Result<Option<NativeHandle>, ViewError> {
        let no_handle = |_| ViewError::NoHandle { buffer: region.buffer().name() };
        self.block(region)?.map(|block| guard(|| block.native()).map_err(no_handle)).transpose()
    }

    /// Returns the arena through which a buffer was granted.
    ///
    /// # Errors
    /// [`ViewError::NotGranted`].
    pub fn arena(&self, region: &impl Region) -> Result<ArenaId, ViewError> {
        Ok(self.of(region.buffer())?.arena())
    }

    /// Returns granted bytes as elements, on the host.
    ///
    /// # Errors
    /// [`ViewError`] if the bytes are not granted, are not on the host, or are no whole number of aligned
    /// elements.
    pub fn slice<T: Pod>(&self, region: &impl Region) -> Result<&[T], ViewError> {
        let grant = self.of(region.buffer())?;
        grant.slice(grant.granted_span(region)?)
    }

    /// Returns granted bytes as mutable elements, on the host. For several buffers at once see
    /// [`Grants::views`].
    ///
    /// # Errors
    /// As [`Grants::slice`], and [`ViewError::NotWritable`].
    pub fn slice_mut<T: Pod>(&mut self, region: &impl Region) -> Result<&mut [T], ViewError> {
        let place = self.place(region.buffer())?;
        let grant = &mut self.docket.grants_mut()[place];
        let span = grant.granted_span(region)?;
        grant.slice_mut(span)
    }

    /// Returns the grant of a request for one buffer.
    pub(super) fn only(&self) -> &Grant {
        &self.docket.grants()[0]
    }

    /// As [`only`](Self::only), to change what is granted.
    pub(super) fn only_mut(&mut self) -> &mut Grant {
        &mut self.docket.grants_mut()[0]
    }

    /// Returns one view per requested item, in the order of the request. A kernel can then read some items
    /// while it writes others.
    ///
    /// # Errors
    /// [`ViewError::Aliased`] if two items share bytes and one of them writes; [`ViewError::NotHost`].
    pub fn views(&mut self) -> Result<Vec<View<'_>>, ViewError> {
        let items = self.docket.items();
        if let Some((buffer, span)) = aliased(&items) {
            return Err(ViewError::Aliased { buffer: self.of_item(buffer).buffer.name(), span });
        }
        let mut views = Vec::with_capacity(items.len());
        for item in &items {
            let grant = self.of_item(item.buffer);
            grant.expect_whole()?;
            let lease = grant.on_host().map(Lease::another);
            if lease.is_none() && !item.claim.span.is_empty() {
                return Err(ViewError::NotHost { buffer: grant.buffer.name() });
            }
            views.push(View::new(&grant.buffer, item.claim, lease, &grant.marks));
            grant.used();
        }
        Ok(views)
    }

    /// Copies `bytes` into granted bytes of any device through its arena, and waits for the copy.
    ///
    /// # Errors
    /// [`AcquireError::View`] if the bytes are not granted for writing, or `bytes` has another length, and
    /// nothing is written then. After [`AcquireError::CopyFailed`] and [`AcquireError::ArenaContract`], the
    /// bytes are unknown. Drop the grants or end them as [failed](Self::failed), which poisons the bytes.
    pub fn write_bytes(&mut self, region: &impl Region, bytes: &[u8]) -> Result<(), AcquireError> {
        let memory = HostMemory::holding(bytes.to_vec());
        self.by_arena(region, Access::WriteInvalidate, Some(memory.len()), |arena, block, span, loan| {
            let source = memory.share().source(Span::new(0, span.len()), loan);
            arena.copy_in(CopyIn::scheduled(block, span.start(), source))
        })
    }

    /// Copies granted bytes of any device to the host through its arena, and returns them.
    ///
    /// # Errors
    /// [`AcquireError::View`] if the bytes are not granted; [`AcquireError::CopyFailed`];
    /// [`AcquireError::ArenaContract`].
    pub fn read_bytes(&self, region: &impl Region) -> Result<Vec<u8>, AcquireError> {
        let mut read = None;
        self.by_arena(region, Access::ReadOnly, None, |arena, block, span, loan| {
            let memory = read.insert(HostMemory::zeroed(span.len())?);
            let target = memory.share().target(Span::new(0, span.len()), loan);
            arena.copy_out(CopyOut::scheduled(block, span.start(), target))
        })?;
        Ok(read.map_or_else(Vec::new, |memory| memory.bytes().to_vec()))
    }

    /// Copies granted bytes of any device through its arena into granted bytes on the host, of `to`, and
    /// waits for the copy.
    ///
    /// # Errors
    /// [`AcquireError::View`] if the bytes are not granted, or if `target` is not granted for writing, is not
    /// on the host or has another length. Nothing is written then. After [`AcquireError::CopyFailed`] and
    /// [`AcquireError::ArenaContract`], the contents of `target` are unknown. Drop `to` or end it as
    /// [failed](Self::failed), which poisons `target`. An arena that keeps the request wedges both buffers.
    pub fn read_bytes_to(
        &self,
        region: &impl Region,
        to: &mut Self,
        target: &impl Region,
    ) -> Result<(), AcquireError> {
        // A foreign region may return another buffer at each call.
        let (from, into) = (region.buffer(), target.buffer());
        let viewed = |buffer: &RawBuffer| {
            let buffer = buffer.name();
            move |cause| AcquireError::View { buffer, cause }
        };
        let part = self.of(from).and_then(|grant| grant.granted_span(region)).map_err(viewed(from))?;
        let region = from.range(part.start()..part.end());
        let place = to.place(into).map_err(viewed(into))?;
        let grant = &mut to.docket.grants_mut()[place];
        let span = grant.expect_whole().and_then(|()| grant.granted_span(target)).map_err(viewed(into))?;
        let target = into.range(span.start()..span.end());
        if grant.on_host().is_none() && !span.is_empty() {
            let not_host = ViewError::NotHost { buffer: into.name() };
            return Err(viewed(into)(not_host));
        }
        let given = Some(part.len());
        let (_, span) = grant.moved(&target, Access::WriteInvalidate, given).map_err(viewed(into))?;
        let Some(lease) = grant.on_host() else { return Ok(()) };
        let mut copied = self.by_arena(&region, Access::ReadOnly, given, |arena, block, part, loan| {
            let target = lease.target(span, loan).expect("host memory, as just seen");
            arena.copy_out(CopyOut::scheduled(block, part.start(), target))
        });
        if let Err(AcquireError::CopyFailed { to, .. }) = &mut copied {
            *to = grant.buffer.arena_name(grant.arena());
        }
        if let Err(AcquireError::ArenaContract { breach: Breach::StillLent, .. }) = copied {
            // The arena may write there at any time.
            grant.marks.set(Mark::Broken);
            grant.buffer.wedge_lent();
        }
        copied
    }

    /// Transfers granted bytes through their arena, and waits for the transfer.
    fn by_arena(
        &self,
        region: &impl Region,
        access: Access,
        given_bytes: Option<u64>,
        transfer: impl FnOnce(&dyn Arena, &BlockRef, Span, &Loan) -> Result<Fence, TransferError>,
    ) -> Result<(), AcquireError> {
        // A foreign region may name another buffer at each call.
        let asked = region.buffer();
        let viewed = |cause| AcquireError::View { buffer: asked.name(), cause };
        let grant = self.of(asked).map_err(viewed)?;
        if grant.is_arriving() {
            return Err(AcquireError::Busy { buffer: grant.buffer.name(), reason: BusyReason::Copying });
        }
        let (block, span) = grant.moved(region, access, given_bytes).map_err(viewed)?;
        let Some(block) = block.filter(|_| !span.is_empty()) else { return Ok(()) };
        let (buffer, loan) = (&grant.buffer, Loan::default());
        let arena = buffer.platform().arena(grant.arena());
        let map_changes = buffer.map_changes();
        let done = guard(|| transfer(&**arena, block, span, &loan).and_then(Fence::wait))
            .unwrap_or_else(|message| Err(TransferError::Panicked { message }));
        let done = match loan.is_out() {
            true => Err(TransferError::StillLent),
            false => done.and_then(|bytes| moved_all(span.len(), bytes)),
        };
        if done.is_err() {
            // The arena may not have ended the transfer.
            grant.launched_on();
            buffer.platform().notice_losses();
        }
        let (name, arena) = (buffer.name(), buffer.arena_name(grant.arena()));
        let breach = if done == Err(TransferError::StillLent) {
            grant.marks.set(Mark::Broken);
            buffer.wedge_lent();
            Err(Breach::StillLent)
        } else {
            buffer.check_map(grant.arena(), block, map_changes)
        };
        let broken =
            |breach| AcquireError::ArenaContract { buffer: name.clone(), arena: arena.clone(), breach };
        breach.map_err(broken)?;
        let failed =
            |cause| AcquireError::CopyFailed { buffer: name, from: arena.clone(), to: arena, span, cause };
        done.map_err(failed)
    }

    /// Waits for the copies in flight of what the kernel only reads.
    ///
    /// # Errors
    /// The first failure of such a copy. That buffer is not granted then.
    pub(super) fn arrive(&mut self) -> Result<(), AcquireError> {
        let has_started = self.docket.has_started;
        let mut arrived = Ok(());
        for grant in self.docket.grants_mut() {
            arrived = arrived.and(grant.arrive(has_started));
        }
        if arrived.is_err() {
            let known = &mut self.docket.launched().arrived;
            *known = std::mem::replace(known, Ok(())).and(arrived);
        }
        self.docket.launched.as_ref().map_or(Ok(()), |launched| launched.arrived.clone())
    }

    /// Prepares a launch while copies of what the kernel only reads are in flight. With `follows_copies`, the
    /// kernel begins on the device behind them, if the arena can order that. The launch must then be as
    /// [`Launcher::follows_copies`](crate::Launcher::follows_copies) says. Otherwise this call waits for the
    /// copies.
    ///
    /// # Errors
    /// The failure of such a copy.
    pub fn before_launch(&mut self, follows_copies: bool) -> Result<(), AcquireError> {
        if follows_copies && self.launches_behind() { Ok(()) } else { self.arrive() }
    }

    /// Returns whether copies of what the kernel only reads are in flight.
    pub(super) fn is_arriving(&self) -> bool {
        self.docket.grants().iter().any(Grant::is_arriving)
    }

    /// Has the next kernel begin behind the copies in flight. Returns whether it will.
    pub(super) fn launches_behind(&mut self) -> bool {
        let Some(grant) = self.docket.grants().iter().find(|grant| grant.is_arriving()) else { return true };
        let arena = grant.buffer.platform().arena(grant.arena()).clone();
        let mut fences: SmallVec<[&Fence; 4]> = SmallVec::new();
        for grant in self.docket.grants_mut() {
            if let Moving::Inputs(run) = &mut grant.moving {
                let Some(last) = run.get_mut().last_fences() else { return false };
                fences.extend(last);
            }
        }
        guard(|| arena.launch_behind(&fences)).unwrap_or(false)
    }

    /// Records that a kernel is launched on the granted storage by a stream, so that no thread is the holder.
    pub(super) fn launched(&mut self, label: &Arc<str>) {
        self.docket.has_started = true;
        for grant in self.docket.grants_mut() {
            grant.kernel = grant.writes().then(|| label.clone());
            grant.marks.set(Mark::LaunchedOn);
            grant.marks.set(Mark::Written);
            grant.held_by.left(grant.buffer.id(), grant.id);
            grant.buffer.record(|| EventKind::Launched { grant: grant.id });
        }
    }

    /// Counts an operation on the platform of the buffers.
    pub(super) fn count(&self, operation: Operation) {
        if let Some(grant) = self.docket.grants().first() {
            grant.buffer.platform.counters().count(operation);
        }
    }

    /// Ties the grants to a launched kernel, so that they do not end before it does.
    pub fn in_flight(mut self, kernel: Fence) -> InFlight {
        self.started();
        InFlight::of(self, smallvec![kernel])
    }

    /// Records that a kernel has started whose end ends the grants.
    pub(super) fn started(&mut self) {
        if std::mem::replace(&mut self.docket.has_started, true) {
            return;
        }
        for grant in self.docket.grants() {
            grant.launched_on();
            grant.written();
            if !grant.is_arriving() {
                grant.buffer.start(grant.id);
            }
        }
    }

    /// Returns the claims on a range of a buffer, all of whose bytes must be granted.
    pub(super) fn claims_within(
        &self,
        buffer: &RawBuffer,
        bytes: &Range<u64>,
    ) -> Result<SmallVec<[Claim; 1]>, ViewError> {
        let grant = self.of(buffer)?;
        let span = grant.granted_span(&buffer.range(bytes.clone()))?;
        let within = |claim: &Claim| Some(Claim { span: claim.span.intersection(span)?, ..*claim });
        Ok(grant.claims.touching(span).iter().filter_map(within).collect())
    }

    /// Begins to copy what the kernel overwrites to a device, behind the kernel. Returns whether all that the
    /// kernel writes will be there.
    pub(super) fn bring_results(&mut self, device: DeviceId, kernel: &Fence) -> bool {
        let Some(grant) = self.docket.grants().first() else { return false };
        let platform = grant.buffer.platform();
        let arena = platform.arena(grant.arena());
        let goal = platform.home(device).filter(|_| guard(|| arena.orders_work()).unwrap_or(false));
        let Some(goal) = goal else { return false };
        let mut all_come = true;
        for grant in self.docket.grants_mut().iter_mut().filter(|grant| grant.writes()) {
            let run = match grant.moving {
                Moving::Nothing if grant.overwrites() => {
                    Run::behind(&grant.buffer, (grant.id, goal), kernel, grant.acquired_at)
                }
                _ => None,
            };
            all_come &= run.is_some() && !grant.claims.iter().any(|claim| claim.access == Access::ReadWrite);
            if let Some(run) = run {
                grant.moving = Moving::Results(Box::new(Mutex::new(run)));
            }
        }
        all_come
    }

    /// Returns whether copies of what the kernel only reads are not known to have ended.
    pub(super) fn are_arriving(&mut self) -> bool {
        let mut grants = self.docket.grants_mut().iter_mut();
        grants.any(|grant| match &mut grant.moving {
            Moving::Inputs(run) => !run.get_mut().have_copies_ended(),
            _ => false,
        })
    }

    /// Takes the copies of results in flight.
    fn take_results(&mut self) -> SmallVec<[Box<Mutex<Run>>; 1]> {
        let taken =
            self.docket.grants_mut().iter_mut().filter_map(|grant| match std::mem::take(&mut grant.moving) {
                Moving::Results(run) => Some(run),
                other => {
                    grant.moving = other;
                    None
                }
            });
        taken.collect()
    }

    /// Ends access and commits the bytes granted for writing.
    ///
    /// # Errors
    /// [`AcquireError::DeviceLost`] if a device was lost meanwhile; the bytes granted for writing are then
    /// poisoned.
    pub fn release(mut self) -> Result<(), AcquireError> {
        if self.release_at_once(Outcome::Done) { Ok(()) } else { self.end(Outcome::Done) }
    }

    /// Releases the grants in the common case. Returns whether none is left.
    #[inline(always)]
    fn release_at_once(&mut self, outcome: Outcome) -> bool {
        if !self.docket.is_quiet() {
            return false;
        }
        // What is written comes last: after a commit, no loss fails the release.
        let (grants, mut writers) = (self.docket.grants_mut(), 0);
        let mut readers_end = grants.iter_mut().rev().map(|grant| match grant.writes() {
            true => {
                writers += 1;
                true
            }
            false => grant.release_at_once(outcome),
        });
        let have_ended = readers_end.all(|has_ended| has_ended)
            && (writers == 0
                || grants.iter_mut().rev().all(|grant| !grant.is_open() || grant.release_at_once(outcome)));
        match have_ended {
            true => self.docket.have_ended(),
            false => self.docket.drop_ended(),
        }
        have_ended
    }

    /// Ends access of a kernel that never started, although its storage was handed out. The contents stay as
    /// they were.
    ///
    /// # Errors
    /// None that a caller could act on. The return type is that of the sibling methods.
    pub fn not_started(self) -> Result<(), AcquireError> {
        self.end(Outcome::NotStarted)
    }

    /// Ends access after a failed kernel. The bytes granted for writing are poisoned, after launched work can
    /// no longer touch them.
    ///
    /// # Errors
    /// None that a caller could act on. The return type is that of the sibling methods.
    pub fn failed(self) -> Result<(), AcquireError> {
        self.end(Outcome::Failed)
    }

    /// Ends access of a kernel that wrote nothing, although it was permitted to. The contents stay as they
    /// were.
    ///
    /// # Errors
    /// [`AcquireError::NotClean`] if bytes were granted for overwriting. They then count as failed, because
    /// their contents are unknown. The other buffers are released as clean.
    pub fn clean(self) -> Result<(), AcquireError> {
        self.end(Outcome::Clean)
    }

    /// Declares lost devices after a kernel failed, before the grants end. No waiting request is then
    /// admitted to a lost memory.
    pub(super) fn notice_losses(&self) {
        if let Some(grant) = self.docket.grants().first() {
            grant.buffer.platform().notice_losses();
        }
    }

    fn end(self, outcome: Outcome) -> Result<(), AcquireError> {
        self.end_all(outcome, false)
    }

    /// Releases the grants of a submission. After an error, nothing more is committed.
    pub(super) fn release_whole(mut self) -> Result<(), AcquireError> {
        if self.release_at_once(Outcome::Done) { Ok(()) } else { self.end_all(Outcome::Done, true) }
    }

    fn end_all(mut self, mut outcome: Outcome, is_whole: bool) -> Result<(), AcquireError> {
        let ended = self.finish_kernels();
        if ended.is_err() {
            self.notice_losses();
            outcome = Outcome::Failed;
        }
        let is_refused = outcome == Outcome::Clean && self.docket.grants().iter().any(Grant::overwrites);
        if outcome == Outcome::Failed || is_refused {
            self.wait_for_tail();
        }
        let mut result = self.arrive();
        let is_whole = is_whole || result.is_err();
        let results = self.take_results();
        // What is written comes last: after a commit, no loss fails the release.
        for writes in [false, true] {
            let ends = |grant: &&mut Grant| grant.is_open() && grant.writes() == writes;
            for grant in self.docket.grants_mut().iter_mut().rev().filter(ends) {
                let fails = is_whole && result.is_err();
                let mut released = grant.release(if fails { Outcome::Failed } else { outcome });
                if matches!(released, Err(AcquireError::NotClean { .. })) {
                    released = released.and(grant.release(Outcome::Failed));
                }
                result = result.and(released);
            }
        }
        self.docket.roll_back();
        if let Err(cause) = ended {
            return Err(AcquireError::KernelFailed { cause });
        }
        if result.is_ok() && outcome == Outcome::Done {
            // A copy that fails is made again by those that need the bytes.
            results.into_iter().for_each(|run| _ = run.into_inner().complete_behind());
        }
        result
    }

    /// Ends access after a failed use, as a drop does. The contents stay as they were, or are poisoned where
    /// storage was taken for writing. Later errors report the poisoning grant as failed, not as dropped.
    pub fn roll_back(mut self) {
        let _ = self.finish_kernels();
        self.wait_for_tail();
        while let Some(mut grant) = self.docket.pop() {
            let _ = grant.end(grant.roll_back(), PoisonedEnd::Failed);
        }
    }

    /// Waits until launched work can no longer touch the storage. If the arena fails to report the end, there
    /// is nothing more to wait for.
    fn wait_for_tail(&self) {
        if let Some(grant) = self.docket.grants().iter().find(|grant| grant.is_launched_on()) {
            let arena = grant.buffer.platform().arena(grant.arena());
            let _ = guard(|| arena.tail().and_then(Fence::wait));
        }
    }

    /// Commits the writes now and keeps the grants for reading, so that other readers are admitted.
    ///
    /// # Errors
    /// [`AcquireError::DeviceLost`]; all grants are then released as failed.
    pub fn downgrade(mut self) -> Result<Self, AcquireError> {
        let ended = self.finish_kernels().map_err(|cause| AcquireError::KernelFailed { cause });
        if let Err(error) = ended.and_then(|_| self.arrive()) {
            let _ = self.end(Outcome::Failed);
            return Err(error);
        }
        for index in 0..self.docket.grants().len() {
            if let Err(error) = self.docket.grants_mut()[index].downgrade() {
                let _ = self.end(Outcome::Failed);
                return Err(error);
            }
        }
        for item in self.docket.listed.iter_mut().flatten() {
            item.claim.access = Access::ReadOnly;
        }
        self.docket.grants_mut().iter_mut().for_each(|grant| grant.marks.clear(Mark::Written));
        self.take_results().into_iter().for_each(|run| _ = run.into_inner().complete_behind());
        Ok(self)
    }

    /// Ends grants that are dropped. Readers end alike, by a release and by a drop.
    #[inline(never)]
    fn end_unreleased(&mut self) {
        let reads = |grant: &Grant| !grant.writes() && !grant.is_launched_on();
        if !self.docket.grants().iter().all(reads) || !self.release_at_once(Outcome::NotStarted) {
            let _ = self.finish_kernels();
            self.wait_for_tail();
            self.docket.roll_back();
        }
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        let is_over = self
            .docket
            .get_mut()
            .is_none_or(|contents| !contents.grants().iter().any(|grant| grant.is_open()));
        if !is_over {
            self.end_unreleased();
        }
    }
}

/// Returns bytes that two items name, if one of the two writes.
fn aliased(items: &[Item]) -> Option<(BufferId, Span)> {
    let mut sorted: SmallVec<[&Item; 3]> = items.iter().filter(|item| !item.claim.span.is_empty()).collect();
    sorted.sort_by_key(|item| (item.buffer, item.claim.span));
    // The earlier item that ends last, and the earlier writer that ends last.
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

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    /// Compares every three items of a four-byte buffer with the result for each pair of them.
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
            // Items of another buffer share no bytes with them.
            let elsewhere = Item { buffer: BufferId(2), ..second };
            let apart = aliased(&[first, elsewhere, third]);
            assert_eq!(apart.is_some(), pairs[1].is_some(), "{first:?} {elsewhere:?} {third:?}");
        }
    }
}
