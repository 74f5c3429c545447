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
use crate::error::AcquireError;
use crate::grant::{Grant, Grants, Item};
use crate::id::{ArenaId, GrantId, KernelId, Ticket};
use crate::platform::Platform;
use crate::range::Span;
use crate::state::Begin;
use crate::storage::Handout;
use crate::sync::Arc;
use crate::typed::Buffer;
use crate::wait::{Wait, Waiter};
use bytemuck::Pod;
use smallvec::SmallVec;
use std::cell::Cell;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
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
        self.steps()?.complete(Wait::Try)
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
        self.steps()?.complete(Wait::Until(None))
    }

    /// As [`Acquire::wait`], for a limited time. Copies under way when it is over are completed first.
    ///
    /// # Errors
    /// [`AcquireError::Timeout`] naming the buffer that was waited for; nothing is held then.
    #[track_caller]
    pub fn wait_timeout(self, timeout: Duration) -> Result<Grants, AcquireError> {
        let deadline = Instant::now().checked_add(timeout);
        self.steps()?.complete(Wait::Until(deadline)).map_err(|error| match error {
            AcquireError::Timeout { buffer, .. } => AcquireError::Timeout { buffer, waited: timeout },
            error => error,
        })
    }

    /// Groups what is wanted into one step per buffer, in canonical order.
    #[track_caller]
    fn steps(self) -> Result<Steps, AcquireError> {
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
            origin: Location::caller(),
            steps,
            granted: Vec::with_capacity(count),
            waiting: None,
            copying: None,
            items,
        })
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Grants, AcquireError>;
    type IntoFuture = AcquireFuture;

    #[track_caller]
    fn into_future(self) -> AcquireFuture {
        AcquireFuture(self.steps())
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
        let granted = match &mut self.0 {
            Ok(steps) => steps.advance(Wait::Awaken(context.waker())),
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        match granted {
            Poll::Pending => {}
            Poll::Ready(Ok(_)) => self.0 = Err(AcquireError::Finished),
            // What was granted on the way is given back now, not when the future is dropped.
            Poll::Ready(Err(ref error)) => self.0 = Err(error.clone()),
        }
        granted
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

impl Steps {
    /// Goes on to the end, on this thread.
    fn complete(mut self, wait: Wait<'_>) -> Result<Grants, AcquireError> {
        loop {
            if let Poll::Ready(granted) = self.advance(wait) {
                return granted;
            }
        }
    }

    /// Goes as far as it can: only with a waker to something pending.
    fn advance(&mut self, wait: Wait<'_>) -> Poll<Result<Grants, AcquireError>> {
        loop {
            let went_on = if let Some(copying) = &mut self.copying {
                let Poll::Ready(ended) = copying.run.advance(wait) else { return Poll::Pending };
                ended.map(|handout| self.copied(handout))
            } else if let Some(queued) = &self.waiting {
                match queued.waiter.wait(wait) {
                    Poll::Ready(Some(begin)) => self.answered(begin),
                    Poll::Ready(None) => {
                        let (buffer, waited) = (queued.buffer.name(), Duration::ZERO);
                        Err(AcquireError::Timeout { buffer, waited })
                    }
                    Poll::Pending => return Poll::Pending,
                }
            } else if let Some(step) = self.steps.pop() {
                self.ask(step, wait)
            } else {
                return Poll::Ready(Ok(self.take_grants()));
            };
            if let Err(error) = went_on {
                return Poll::Ready(Err(error));
            }
        }
    }

    /// Puts the request for one buffer.
    fn ask(&mut self, Step { buffer, claims }: Step, wait: Wait<'_>) -> Result<(), AcquireError> {
        let later = match wait {
            // Who holds it may be waited for by whoever is waited for here.
            Wait::Until(_) => held::at_or_after(buffer.id()),
            Wait::Try | Wait::Awaken(_) => None,
        };
        let queue = !matches!(wait, Wait::Try) && later.is_none();
        match (buffer.0.ask((self.kernel, self.arena, claims.clone()), queue, self.origin), later) {
            (Asked::Granted(grant, handout), _) => self.granted(buffer, grant, claims, handout),
            (Asked::Answered(Begin::Busy { .. }, _), Some(later)) => {
                let held = buffer.platform().name_of(later);
                return Err(AcquireError::OrderViolation { buffer: buffer.name(), held });
            }
            (Asked::Answered(begin, grant), _) => return self.settle(buffer, claims, begin, grant),
            (Asked::Queued(ticket, waiter, grant), _) => {
                self.waiting = Some(Queued { buffer, claims, ticket, waiter, grant });
            }
        }
        Ok(())
    }

    /// The step that waited has been answered.
    fn answered(&mut self, begin: Begin) -> Result<(), AcquireError> {
        match self.waiting.take() {
            Some(queued) => self.settle(queued.buffer, queued.claims, begin, queued.grant),
            None => Ok(()),
        }
    }

    /// The step whose plan was carried out is granted.
    fn copied(&mut self, handout: Option<Handout>) {
        if let Some(Copying { buffer, claims, grant, .. }) = self.copying.take() {
            self.granted(buffer, grant, claims, handout);
        }
    }

    fn settle(
        &mut self,
        buffer: RawBuffer,
        claims: Claims,
        begin: Begin,
        grant: GrantId,
    ) -> Result<(), AcquireError> {
        match begin {
            Begin::Granted(_) => {
                let storage = Some(self.arena).filter(|_| !claims.is_empty());
                let handout = buffer.0.change(|core, _| buffer.0.hand_out(core, grant, storage, self.origin));
                self.granted(buffer, grant, claims, handout);
            }
            Begin::Plan(plan) => {
                let run = engine::Run::new(&buffer, plan, self.origin);
                self.copying = Some(Copying { run, buffer, claims, grant });
            }
            Begin::Busy { reason, .. } => return Err(AcquireError::Busy { buffer: buffer.name(), reason }),
            Begin::Refused(refusal) => {
                return Err(buffer.0.refused(refusal, Some((self.kernel, self.arena))));
            }
        }
        Ok(())
    }

    fn granted(&mut self, buffer: RawBuffer, grant: GrantId, claims: Claims, handout: Option<Handout>) {
        self.granted.push(Grant::new(buffer, grant, self.arena, claims, handout));
    }

    fn take_grants(&mut self) -> Grants {
        Grants::new(std::mem::take(&mut self.granted), std::mem::take(&mut self.items))
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
