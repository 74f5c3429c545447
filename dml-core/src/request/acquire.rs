//! Acquiring one buffer or many, in canonical order, all or nothing.
//!
//! ```text
//!   read(&a).write(&b.range(..))        claims per buffer, merged byte by byte
//!            │
//!   sorted by BufferId: one step per buffer, all its ranges at once
//!            │  step granted ──▶ next step, holding what is granted
//!            │  step planned ──▶ next step, while its copies run
//!            │  step busy    ──▶ try: release all │ wait: queue, sleep, go on
//!            ▼
//!          Grants
//! ```
//! Holding buffers while waiting cannot deadlock (L-1). Every wait is for a buffer that comes later in the
//! canonical order, or for an earlier place in the same queue. All ranges of one buffer form one part,
//! because separate parts could deadlock.

use crate::base::access::{Access, Claim, Claims};
use crate::base::id::{ArenaId, KernelId, OwnerId};
use crate::base::range::Span;
use crate::base::spans::TraceSpan;
use crate::buffer::RawBuffer;
use crate::buffer::error::AcquireError;
use crate::buffer::wait::Wait;
use crate::platform::Platform;
use crate::request::acquisition::Acquisition;
use crate::request::docket::{Docket, Head, Wanted, items, parts};
use crate::request::grants::Grants;
use crate::request::region::Region;
use crate::state::OneClaim;
use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A request for one or more buffers, all in one arena.
///
/// The copies for all of its buffers run concurrently, unless one depends on another.
///
/// Requests are served in order per buffer. One that waits for its first buffer is not yet in the queue of
/// its second, so a later request for the second buffer alone may be granted first.
///
/// It borrows the regions that it names, so that it changes no reference count. A part that is made in
/// passing must outlive it, in the same statement or in a variable, or is named by
/// [`access_range`](Self::access_range).
///
/// Finish it with [`try_now`](Self::try_now), [`wait`](Self::wait), [`wait_timeout`](Self::wait_timeout), or
/// `.await`. The future owns its buffers.
#[derive(Debug)]
#[must_use = "nothing is acquired until try_now, wait or await"]
pub struct Acquire<'a> {
    docket: Docket,
    wanted: Vec<Wanted<'a>>,
}

/// What an acquire is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Purpose {
    /// A use by the caller.
    Use,
    /// A kernel on the stream of its arena.
    Submission,
    /// A kernel on the stream of its arena, which can also wait for copies and then launch the kernel.
    SharedSubmission,
    /// A kernel that is launched while copies are in flight.
    Ahead,
}

impl Purpose {
    pub(super) fn is_submission(self) -> bool {
        matches!(self, Self::Submission | Self::SharedSubmission)
    }

    /// Returns whether copies of what is only read may be in flight with the grants.
    pub(super) fn leaves_copies(self) -> bool {
        matches!(self, Self::SharedSubmission | Self::Ahead)
    }
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(platform: &Platform, arena: Result<ArenaId, AcquireError>) -> Self {
        let mut docket = Docket::new();
        let wanted = docket.allocation();
        let head = &mut docket.head;
        head.platform = platform.id();
        match arena {
            Ok(arena) => head.arena = arena,
            Err(error) => head.no_arena = Some(Box::new(error)),
        }
        Self { docket, wanted }
    }

    /// Sets what the acquire is for.
    pub(super) fn with_purpose(mut self, purpose: Purpose) -> Self {
        self.docket.head.purpose = purpose;
        self
    }

    /// Sets the requesting kernel. By default, every acquire is a new kernel.
    pub fn kernel(mut self, kernel: KernelId) -> Self {
        self.docket.head.kernel = Some(kernel);
        self
    }

    /// Sets the source location that errors report, for code that acquires on behalf of its caller. By
    /// default, it is the location of the call that finishes the acquire.
    pub fn located_at(mut self, origin: &'static Location<'static>) -> Self {
        self.docket.head.origin = Some(origin);
        self
    }

    /// Grants access while copies of what is only read are in flight. A kernel can then begin on the device
    /// behind these copies.
    ///
    /// Before a launch, [`Grants::before_launch`] orders the kernel or waits; [`Grants::launch`] calls it
    /// itself. Until the copies have ended, [`Grants::read_bytes`] of these bytes is
    /// [`Busy`](AcquireError::Busy), and other requests for them wait. If a copy fails, the
    /// [release](Grants::release) returns its error and commits nothing.
    pub fn ahead(self) -> Self {
        self.with_purpose(Purpose::Ahead)
    }

    /// Requests the latest contents for reading.
    pub fn read(self, region: &'a impl Region) -> Self {
        self.access(region, Access::ReadOnly)
    }

    /// Requests to overwrite every byte. The old contents are not copied.
    pub fn write(self, region: &'a impl Region) -> Self {
        self.access(region, Access::WriteInvalidate)
    }

    /// Requests the latest contents for reading and changing.
    pub fn read_write(self, region: &'a impl Region) -> Self {
        self.access(region, Access::ReadWrite)
    }

    /// Requests the given access.
    #[inline]
    pub fn access(mut self, region: &'a impl Region, access: Access) -> Self {
        self.want(region.buffer(), region.bytes(), access);
        self
    }

    /// Requests the given access to a range of bytes, as
    /// [`access`](Self::access)`(&buffer.`[`range`](RawBuffer::range)`(bytes), access)` does.
    pub fn access_range(mut self, buffer: &'a RawBuffer, bytes: Range<u64>, access: Access) -> Self {
        self.want(buffer, bytes, access);
        self
    }

    /// Returns a request for the same buffers, made as another one is.
    pub(super) fn made_as(mut self, other: &Self) -> Self {
        let (head, other) = (&mut self.docket.head, &other.docket.head);
        let foreign = self.wanted.first().filter(|_| head.platform != other.platform);
        let foreign = foreign.map(|wanted| AcquireError::ForeignBuffer { buffer: wanted.buffer.name() });
        let misfit = foreign.map(Box::new).or(head.misfit.take());
        *head = Head { misfit, ..other.clone() };
        self
    }

    #[inline]
    pub(super) fn want(&mut self, buffer: &'a RawBuffer, bytes: Range<u64>, access: Access) {
        match Span::checked(&bytes, buffer.len()) {
            Some(span) if buffer.platform().id() == self.docket.head.platform => {
                self.wanted.push(Wanted { buffer, claim: Claim { span, access } });
            }
            _ => self.does_not_fit(buffer, &bytes),
        }
    }

    #[cold]
    fn does_not_fit(&mut self, buffer: &RawBuffer, bytes: &Range<u64>) {
        let foreign = || AcquireError::ForeignBuffer { buffer: buffer.name() };
        let is_foreign = buffer.platform().id() != self.docket.head.platform;
        let error = if is_foreign { Some(foreign()) } else { buffer.span(bytes).err() };
        let misfit = &mut self.docket.head.misfit;
        *misfit = misfit.take().or(error.map(Box::new));
    }

    /// Acquires everything at once, or nothing.
    ///
    /// # Errors
    /// [`AcquireError::Busy`] names the buffer that is not available now. Every other error is final: see
    /// [`AcquireError`].
    #[track_caller]
    pub fn try_now(self) -> Result<Grants, AcquireError> {
        self.complete(Wait::Try)
    }

    /// Waits until everything is granted, first come, first served.
    ///
    /// # Errors
    /// [`AcquireError::Busy`] only if a mechanism refuses a copy that it had priced.
    /// [`AcquireError::OrderViolation`] if the thread would have to wait while it holds the same buffer or a
    /// later one, because that could deadlock. Buffers that are available at once are granted in any order.
    /// Every other error is final: see [`AcquireError`].
    #[track_caller]
    pub fn wait(self) -> Result<Grants, AcquireError> {
        self.complete(Wait::Until(None))
    }

    /// As [`Acquire::wait`], for a limited time. Copies that run at the deadline are completed first.
    ///
    /// # Errors
    /// [`AcquireError::Timeout`] names the buffer that was waited for; nothing is held then.
    #[track_caller]
    pub fn wait_timeout(self, timeout: Duration) -> Result<Grants, AcquireError> {
        let deadline = Instant::now().checked_add(timeout);
        self.complete(Wait::Until(deadline)).map_err(|error| match error {
            AcquireError::Timeout { buffer, .. } => AcquireError::Timeout { buffer, waited: timeout },
            error => error,
        })
    }

    /// Returns a future for an executor that blocks its thread while the future is pending, such as
    /// `block_on`. The order of the buffers that the thread holds is checked as in [`wait`](Self::wait). Poll
    /// it on one thread only.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait), as the future's output.
    #[track_caller]
    pub fn into_blocking_future(self) -> AcquireFuture {
        AcquireFuture(self.acquisition().map(Acquisition::of_a_sleeper))
    }

    /// Acquires what can be granted at once, buffer by buffer, and the rest as an [`Acquisition`].
    #[track_caller]
    #[inline]
    fn complete(mut self, wait: Wait<'_>) -> Result<Grants, AcquireError> {
        let kernel = self.prepare()?;
        let origin = match self.docket.head.origin {
            Some(origin) => origin,
            None => Location::caller(),
        };
        let span = self.span(kernel);
        if (is_canonical(&self.wanted) || self.sort()) && span.within(|| self.grant_at_once(kernel, origin)) {
            let Self { mut docket, wanted } = self;
            docket.keep_allocation(wanted);
            return Ok(Grants::new(docket));
        }
        self.rest(kernel, origin, span).complete(wait)
    }

    #[track_caller]
    fn acquisition(mut self) -> Result<Acquisition, AcquireError> {
        let kernel = self.prepare()?;
        let origin = self.docket.head.origin.unwrap_or(Location::caller());
        let span = self.span(kernel);
        Ok(self.rest(kernel, origin, span))
    }

    /// Brings what is wanted into canonical order, without repetitions. Returns whether no buffer is left
    /// that is named twice.
    #[inline(never)]
    fn sort(&mut self) -> bool {
        self.docket.listed = Some(items(&self.wanted));
        self.wanted.sort_by_key(|wanted| wanted.buffer.id());
        self.wanted.dedup_by(|next, one| next.buffer == one.buffer && next.claim == one.claim);
        is_canonical(&self.wanted)
    }

    /// Checks the request. Returns the kernel.
    #[inline(always)]
    fn prepare(&mut self) -> Result<KernelId, AcquireError> {
        let head = &mut self.docket.head;
        if let Some(error) = head.no_arena.take().or_else(|| head.misfit.take()) {
            return Err(*error);
        }
        if let Some(Wanted { buffer, .. }) = self.wanted.first() {
            buffer.platform().notice_fork();
        }
        Ok(self.docket.head.kernel.unwrap_or_else(fresh_kernel))
    }

    fn span(&self, kernel: KernelId) -> TraceSpan {
        let Some(Wanted { buffer, .. }) = self.wanted.first() else { return TraceSpan::none() };
        span!(
            TRACE,
            "acquire",
            kernel = kernel.0,
            arena = &*buffer.platform().desc(self.docket.head.arena).name,
            buffers = self.wanted.len(),
            bytes = self.wanted.iter().map(|wanted| wanted.claim.span.len()).sum::<u64>(),
        )
    }

    /// Acquires the first buffers, up to one that cannot be granted at once. Returns whether there is none.
    #[inline(always)]
    fn grant_at_once(&mut self, kernel: KernelId, origin: &'static Location<'static>) -> bool {
        let docket = &mut *self.docket;
        let (arena, is_submission) = (docket.head.arena, docket.head.purpose.is_submission());
        self.wanted.iter().all(|&Wanted { buffer, claim }| {
            let request = OneClaim { kernel, grant: OwnerId(0), arena, claim, is_submission };
            match buffer.0.grant_at_once(request, origin) {
                Some((pin, grant, handout)) => {
                    docket.add().open(pin, (grant, arena), Claims::one(claim), handout, origin);
                    true
                }
                None => false,
            }
        })
    }

    /// Returns the acquire of what is not granted.
    #[inline(never)]
    fn rest(mut self, kernel: KernelId, origin: &'static Location<'static>, span: TraceSpan) -> Acquisition {
        self.docket.listed.get_or_insert_with(|| items(&self.wanted));
        let granted = self.docket.grants().len();
        let parts = parts(&mut self.wanted[granted..]);
        let Self { docket, .. } = self;
        let (arena, purpose) = (docket.head.arena, docket.head.purpose);
        Acquisition::new((kernel, arena, origin), purpose, (parts, docket), span)
    }
}

impl Clone for Acquire<'_> {
    fn clone(&self) -> Self {
        let mut docket = Docket::new();
        let mut wanted = docket.allocation();
        wanted.clone_from(&self.wanted);
        docket.head.clone_from(&self.docket.head);
        Self { docket, wanted }
    }
}

impl IntoFuture for Acquire<'_> {
    type Output = Result<Grants, AcquireError>;
    type IntoFuture = AcquireFuture;

    #[track_caller]
    fn into_future(self) -> AcquireFuture {
        AcquireFuture(self.acquisition())
    }
}

/// An acquire in progress, for any executor. Dropping it releases everything. If a copy is running, the drop
/// waits for its end, because the memory under a copy must outlive it.
///
/// An admitted future keeps its place, but its copies begin only when it is polled again. Requests behind it
/// wait until then. So a task that has started several futures must poll all of them, and not await one that
/// waits behind another.
///
/// Copies are awaited if their arena can notify the future ([`Fence::awaited`](crate::Fence::awaited));
/// otherwise a poll blocks until the copy ends. The order of the buffers that the thread holds is not checked
/// ([`Acquire::into_blocking_future`] does). A task must hold nothing while it awaits buffers of lower ids.
///
/// A poll after the end returns [`AcquireError::Finished`], or the error that the acquire ended with.
#[derive(Debug)]
pub struct AcquireFuture(Result<Acquisition, AcquireError>);

impl AcquireFuture {
    /// Returns whether the acquire waits for other users, so that none of its copies is in flight.
    pub(super) fn is_queued(&self) -> bool {
        self.0.as_ref().is_ok_and(Acquisition::is_queued)
    }
}

impl Future for AcquireFuture {
    type Output = Result<Grants, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let acquisition = match &mut self.0 {
            Ok(acquisition) => acquisition,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        let granted = acquisition.advance(Wait::Awaken(context.waker()));
        match granted {
            Poll::Pending if acquisition.leaves_copies() => {
                let left = std::mem::replace(&mut self.0, Err(AcquireError::Finished));
                return Poll::Ready(left.map(|mut left| left.take_copies()));
            }
            Poll::Pending => {}
            Poll::Ready(Ok(_)) => self.0 = Err(AcquireError::Finished),
            // Buffers granted so far are released now, not when the future is dropped.
            Poll::Ready(Err(ref error)) => self.0 = Err(error.clone()),
        }
        granted
    }
}

/// Returns whether the buffers are in canonical order, and none is named twice.
fn is_canonical(wanted: &[Wanted<'_>]) -> bool {
    wanted.is_sorted_by(|one, next| one.buffer.id() < next.buffer.id())
}

/// Returns a new kernel id. Each thread takes ids in blocks, so that threads rarely contend for the counter.
fn fresh_kernel() -> KernelId {
    const BLOCK: u64 = 1 << 16;
    // Smaller ids are reserved for applications that name their kernels.
    static NEXT_BLOCK: AtomicU64 = AtomicU64::new(1 << 47);
    thread_local! {
        static NEXT: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }
    NEXT.with(|next| {
        let (mut id, mut end) = next.get();
        if id == end {
            id = NEXT_BLOCK.fetch_add(BLOCK, Ordering::Relaxed);
            end = id + BLOCK;
        }
        next.set((id + 1, end));
        KernelId(id)
    })
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn i01_no_two_threads_are_one_kernel() {
        // More than one block each.
        let many = || (0..70_000).map(|_| fresh_kernel().0).collect::<Vec<_>>();
        let ids: Vec<_> = (0..3).flat_map(|_| std::thread::spawn(many).join().expect("it ends")).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        assert!(ids.iter().all(|&id| id >= 1 << 47), "smaller ids are the application's");
    }
}
