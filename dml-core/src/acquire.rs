//! Acquiring: one buffer or many, in canonical order, all or nothing.
//!
//! ```text
//!   read(&a).write(&b.range(..))        claims per buffer, merged byte by byte
//!            │
//!   sorted by BufferId: one step per buffer, all its ranges at once
//!            │  step granted ──▶ next step, holding what is granted
//!            │  step busy    ──▶ try: release all │ wait: queue, sleep, go on
//!            ▼
//!          Grants
//! ```
//! Holding while waiting cannot deadlock (L-1): every wait is for a buffer that comes later in the one order that all
//! requests follow, or for an earlier place in the same queue. All ranges of one buffer are one step: as separate steps
//! they could deadlock.

pub(crate) mod held;

use crate::access::{Access, Claim, Claims, normalise};
use crate::buffer::{Asked, RawBuffer};
use crate::engine;
use crate::error::{AcquireError, BufferName};
use crate::grant::{Grant, Grants, Item};
use crate::id::{ArenaId, GrantId, KernelId, Ticket};
use crate::platform::Platform;
use crate::range::Span;
use crate::state::Begin;
use crate::storage::Handout;
use crate::sync::Arc;
use crate::typed::Buffer;
use crate::wait::Waiter;
use bytemuck::Pod;
use smallvec::SmallVec;
use std::cell::Cell;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A buffer, or a part of one, that an acquire can name.
pub trait Region {
    /// The buffer.
    fn buffer(&self) -> &RawBuffer;

    /// The bytes; checked when they are acquired.
    fn bytes(&self) -> Range<u64>;
}

impl Region for RawBuffer {
    fn buffer(&self) -> &RawBuffer {
        self
    }

    fn bytes(&self) -> Range<u64> {
        0..self.len()
    }
}

impl<T: Pod> Region for Buffer<T> {
    fn buffer(&self) -> &RawBuffer {
        self.raw()
    }

    fn bytes(&self) -> Range<u64> {
        0..self.raw().len()
    }
}

/// A range of bytes of a buffer.
#[derive(Clone, Debug)]
pub struct RawRange {
    buffer: RawBuffer,
    bytes: Range<u64>,
}

impl RawRange {
    pub(crate) fn new(buffer: RawBuffer, bytes: Range<u64>) -> Self {
        Self { buffer, bytes }
    }
}

impl Region for RawRange {
    fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    fn bytes(&self) -> Range<u64> {
        self.bytes.clone()
    }
}

/// A range of elements of a buffer.
pub struct RangeOf<T: Pod> {
    buffer: Buffer<T>,
    elements: Range<u64>,
}

impl<T: Pod> RangeOf<T> {
    pub(crate) fn new(buffer: Buffer<T>, elements: Range<u64>) -> Self {
        Self { buffer, elements }
    }

    /// The elements.
    #[must_use]
    pub fn elements(&self) -> Range<u64> {
        self.elements.clone()
    }
}

impl<T: Pod> Region for RangeOf<T> {
    fn buffer(&self) -> &RawBuffer {
        self.buffer.raw()
    }

    fn bytes(&self) -> Range<u64> {
        Buffer::<T>::bytes(&self.elements)
    }
}

impl<T: Pod> fmt::Debug for RangeOf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{:?}]", self.buffer, self.elements)
    }
}

/// A request for several buffers at once, all in one arena.
///
/// Finish it with [`try_now`](Self::try_now), [`wait`](Self::wait), [`wait_timeout`](Self::wait_timeout), or `.await`.
#[derive(Debug)]
#[must_use = "nothing is acquired until try_now, wait or await"]
pub struct Acquire {
    platform: Platform,
    arena: Result<ArenaId, AcquireError>,
    kernel: Option<KernelId>,
    items: SmallVec<[Wanted; 3]>,
}

#[derive(Debug)]
struct Wanted {
    buffer: RawBuffer,
    bytes: Range<u64>,
    access: Access,
}

impl Acquire {
    pub(crate) fn new(platform: Platform, arena: Result<ArenaId, AcquireError>) -> Self {
        Self { platform, arena, kernel: None, items: SmallVec::new() }
    }

    /// Says who asks. Without it, every acquire is a kernel of its own.
    pub fn kernel(mut self, kernel: KernelId) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// Asks for the latest contents, to read.
    pub fn read(self, region: &impl Region) -> Self {
        self.access(region, Access::ReadOnly)
    }

    /// Asks to overwrite every byte; the old contents are not brought.
    pub fn write(self, region: &impl Region) -> Self {
        self.access(region, Access::WriteInvalidate)
    }

    /// Asks for the latest contents, to read and change.
    pub fn read_write(self, region: &impl Region) -> Self {
        self.access(region, Access::ReadWrite)
    }

    /// Asks for a certain access.
    pub fn access(mut self, region: &impl Region, access: Access) -> Self {
        self.items.push(Wanted { buffer: region.buffer().clone(), bytes: region.bytes(), access });
        self
    }

    /// Acquires everything now or nothing.
    ///
    /// # Errors
    /// [`AcquireError::Busy`] naming the buffer that could not be had at once; every other error is final: see
    /// [`AcquireError`].
    #[track_caller]
    pub fn try_now(self) -> Result<Grants, AcquireError> {
        let mut steps = self.steps(Manner::Try)?;
        match steps.advance(None)? {
            Progress::Granted => Ok(steps.into_grants()),
            Progress::Waiting(_) | Progress::Copying => {
                unreachable!("nothing was queued, copies were waited for")
            }
        }
    }

    /// Waits until everything is granted, first come, first served.
    ///
    /// # Errors
    /// Never [`AcquireError::Busy`], save where a mechanism refuses a copy it had offered.
    /// [`AcquireError::OrderViolation`] where it would have to wait for a buffer while the thread holds the same or a later one,
    /// so that it could deadlock; what can be had at once is granted in any order. Every other error is final: see
    /// [`AcquireError`].
    #[track_caller]
    pub fn wait(self) -> Result<Grants, AcquireError> {
        self.block(None)
    }

    /// As [`Acquire::wait`], for a limited time. Copies under way when it is over are completed first.
    ///
    /// # Errors
    /// [`AcquireError::Timeout`] naming the buffer that was waited for; nothing is held then.
    #[track_caller]
    pub fn wait_timeout(self, timeout: Duration) -> Result<Grants, AcquireError> {
        self.block(Some(timeout))
    }

    #[track_caller]
    fn block(self, timeout: Option<Duration>) -> Result<Grants, AcquireError> {
        let mut steps = self.steps(Manner::Block)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match steps.advance(None)? {
                Progress::Granted => return Ok(steps.into_grants()),
                Progress::Copying => unreachable!("copies were waited for"),
                Progress::Waiting(waiter) => match waiter.wait(deadline) {
                    Some(begin) => steps.answered(begin)?,
                    None => {
                        let buffer = steps.waiting_for().unwrap_or_default();
                        return Err(AcquireError::Timeout { buffer, waited: timeout.unwrap_or_default() });
                    }
                },
            }
        }
    }

    /// Groups what is wanted into one step per buffer, in canonical order.
    #[track_caller]
    fn steps(self, manner: Manner) -> Result<Steps, AcquireError> {
        let arena = self.arena?;
        let kernel = self.kernel.unwrap_or_else(fresh_kernel);
        let mut items: SmallVec<[Item; 3]> = SmallVec::with_capacity(self.items.len());
        let mut wanted: SmallVec<[(RawBuffer, Claim); 3]> = SmallVec::with_capacity(self.items.len());
        for Wanted { buffer, bytes, access } in self.items {
            if !self.platform.owns(&buffer) {
                return Err(AcquireError::ForeignBuffer { buffer: buffer.name() });
            }
            let claim = Claim { span: buffer.span(&bytes)?, access };
            items.push(Item { buffer: buffer.id(), claim });
            wanted.push((buffer, claim));
        }
        // The next step last.
        wanted.sort_by_key(|(buffer, _)| std::cmp::Reverse(buffer.id()));
        let mut steps: SmallVec<[Step; 3]> = SmallVec::new();
        for (buffer, claim) in wanted {
            match steps.last_mut().filter(|step| step.buffer == buffer) {
                Some(step) => step.claims.push(claim),
                None => steps.push(Step { buffer, claims: std::iter::once(claim).collect() }),
            }
        }
        for step in &mut steps {
            step.claims = normalise(step.claims.drain(..));
        }
        let count = steps.len();
        Ok(Steps {
            kernel,
            arena,
            manner,
            origin: Location::caller(),
            steps,
            granted: Vec::with_capacity(count),
            waiting: None,
            copying: None,
            items,
        })
    }
}

/// What a request does where it cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It gives up.
    Try,
    /// It waits, and its thread with it, unless that could deadlock.
    Block,
    /// It waits as a future.
    Await,
}

impl IntoFuture for Acquire {
    type Output = Result<Grants, AcquireError>;
    type IntoFuture = AcquireFuture;

    #[track_caller]
    fn into_future(self) -> AcquireFuture {
        AcquireFuture(self.steps(Manner::Await))
    }
}

/// An acquire in progress, for any executor. Dropping it gives everything back; while a copy runs, that waits for its end,
/// because the memory under a copy must outlive it.
///
/// Copies are awaited where their arena can tell of their end ([`Fence::awaited`](crate::Fence::awaited)); where it can only
/// be waited for, a poll takes as long. What the thread holds already is not checked for order: a task may hold nothing
/// while it awaits buffers of lower ids.
///
/// Polled after its end, it answers [`AcquireError::Finished`], or the error that it ended with.
#[derive(Debug)]
pub struct AcquireFuture(Result<Steps, AcquireError>);

impl Future for AcquireFuture {
    type Output = Result<Grants, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let steps = match &mut self.0 {
            Ok(steps) => steps,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        let error = loop {
            let answered = match steps.advance(Some(context.waker())) {
                Ok(Progress::Granted) => {
                    let grants = steps.take_grants();
                    self.0 = Err(AcquireError::Finished);
                    return Poll::Ready(Ok(grants));
                }
                Ok(Progress::Copying) => return Poll::Pending,
                Ok(Progress::Waiting(waiter)) => match waiter.poll(context.waker()) {
                    Poll::Ready(begin) => steps.answered(begin),
                    Poll::Pending => return Poll::Pending,
                },
                Err(error) => Err(error),
            };
            if let Err(error) = answered {
                break error;
            }
        };
        // What was granted on the way is given back now, not when the future is dropped.
        self.0 = Err(error.clone());
        Poll::Ready(Err(error))
    }
}

#[derive(Debug)]
struct Step {
    buffer: RawBuffer,
    claims: Claims,
}

#[derive(Debug)]
struct Queued {
    buffer: RawBuffer,
    claims: Claims,
    ticket: Ticket,
    waiter: Arc<Waiter>,
    grant: GrantId,
}

/// The steps of an acquire: those granted, the one that waits, those to come. Dropping it undoes all.
#[derive(Debug)]
struct Steps {
    kernel: KernelId,
    arena: ArenaId,
    manner: Manner,
    /// Where in the program it was asked for.
    origin: &'static Location<'static>,
    /// To come, the next one last.
    steps: SmallVec<[Step; 3]>,
    granted: Vec<Grant>,
    waiting: Option<Queued>,
    copying: Option<Copying>,
    items: SmallVec<[Item; 3]>,
}

/// A step whose plan is being carried out.
#[derive(Debug)]
struct Copying {
    run: engine::Run,
    buffer: RawBuffer,
    claims: Claims,
    grant: GrantId,
}

#[must_use]
enum Progress {
    Granted,
    Waiting(Arc<Waiter>),
    /// The waker is told when to go on.
    Copying,
}

impl Steps {
    /// Goes as far as it can without sleeping: with `waker`, copies are awaited.
    fn advance(&mut self, waker: Option<&Waker>) -> Result<Progress, AcquireError> {
        loop {
            if let Some(copying) = &mut self.copying {
                let Poll::Ready(ended) = copying.run.advance(waker) else { return Ok(Progress::Copying) };
                let Some(Copying { buffer, claims, grant, .. }) = self.copying.take() else { continue };
                ended?;
                let handout = buffer.0.finish(grant, self.arena, self.origin)?;
                self.granted(buffer, grant, claims, handout);
            }
            if let Some(queued) = &self.waiting {
                return Ok(Progress::Waiting(queued.waiter.clone()));
            }
            let Some(step) = self.steps.pop() else { return Ok(Progress::Granted) };
            let later = match self.manner {
                // Who holds it may be waited for by whoever is waited for here.
                Manner::Block => held::at_or_after(step.buffer.id()),
                Manner::Try | Manner::Await => None,
            };
            let queue = self.manner != Manner::Try && later.is_none();
            match step.buffer.0.ask((self.kernel, self.arena, step.claims.clone()), queue, self.origin) {
                Asked::Granted(grant, handout) => self.granted(step.buffer, grant, step.claims, handout),
                Asked::Answered(Begin::Busy { .. }, _) if later.is_some() => {
                    let held = step.buffer.platform().name_of(later.unwrap_or_default());
                    return Err(AcquireError::OrderViolation { buffer: step.buffer.name(), held });
                }
                Asked::Answered(begin, grant) => self.settle(step.buffer, step.claims, begin, grant)?,
                Asked::Queued(ticket, waiter, grant) => {
                    let Step { buffer, claims } = step;
                    self.waiting = Some(Queued { buffer, claims, ticket, waiter, grant });
                }
            }
        }
    }

    /// The step that waited has been answered.
    fn answered(&mut self, begin: Begin) -> Result<(), AcquireError> {
        match self.waiting.take() {
            Some(queued) => self.settle(queued.buffer, queued.claims, begin, queued.grant),
            None => Ok(()),
        }
    }

    fn settle(
        &mut self,
        buffer: RawBuffer,
        claims: Claims,
        begin: Begin,
        grant: GrantId,
    ) -> Result<(), AcquireError> {
        let handout = match begin {
            Begin::Granted(_) => {
                let granted = (grant, self.arena, &*claims);
                buffer.0.change(|core, _| buffer.0.hand_out(core, granted, self.origin))
            }
            Begin::Plan(plan) => {
                let run = engine::Run::new(&buffer, plan);
                self.copying = Some(Copying { run, buffer, claims, grant });
                return Ok(());
            }
            Begin::Busy { reason, .. } => return Err(AcquireError::Busy { buffer: buffer.name(), reason }),
            Begin::Refused(refusal) => {
                return Err(buffer.0.refused(refusal, Some((self.kernel, self.arena))));
            }
        };
        self.granted(buffer, grant, claims, handout);
        Ok(())
    }

    fn granted(&mut self, buffer: RawBuffer, grant: GrantId, claims: Claims, handout: Option<Handout>) {
        self.granted.push(Grant::new(buffer, grant, self.arena, claims, handout));
    }

    fn waiting_for(&self) -> Option<BufferName> {
        self.waiting.as_ref().map(|queued| queued.buffer.name())
    }

    fn take_grants(&mut self) -> Grants {
        Grants::new(std::mem::take(&mut self.granted), std::mem::take(&mut self.items))
    }

    fn into_grants(mut self) -> Grants {
        self.take_grants()
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(queued) = self.waiting.take() {
            queued.buffer.0.cancel(queued.ticket, &queued.waiter, queued.grant);
        }
        self.copying = None;
        while let Some(grant) = self.granted.pop() {
            drop(grant);
        }
    }
}

/// A kernel that is nobody else: numbers are taken in blocks, so that threads do not meet at one counter.
fn fresh_kernel() -> KernelId {
    const BLOCK: u64 = 1 << 16;
    // Numbers below are left to applications that name their kernels.
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

/// The part of a region that `Span` names, for views.
pub(crate) fn span_of(region: &impl Region) -> Option<Span> {
    Span::checked(&region.bytes(), region.buffer().len())
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
        assert!(ids.iter().all(|&id| id >= 1 << 47), "those below are the application's");
    }
}
