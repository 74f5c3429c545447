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

use crate::access::{Access, Claim, Claims, normalise};
use crate::buffer::{Asked, RawBuffer};
use crate::engine;
use crate::error::AcquireError;
use crate::grant::{Grant, Grants, Item};
use crate::id::{ArenaId, BufferId, KernelId, Ticket};
use crate::platform::Platform;
use crate::range::Span;
use crate::state::Begin;
use crate::sync::Arc;
use crate::typed::Buffer;
use crate::wait::Waiter;
use bytemuck::Pod;
use smallvec::SmallVec;
use std::cell::Cell;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Range;
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
    pub fn try_now(self) -> Result<Grants, AcquireError> {
        let mut steps = self.steps()?;
        match steps.advance(false, None)? {
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
    /// [`AcquireError::OrderViolation`] where waiting could deadlock with what this thread holds already; every other
    /// error is final: see [`AcquireError`].
    pub fn wait(self) -> Result<Grants, AcquireError> {
        self.block(None)
    }

    /// As [`Acquire::wait`], for a limited time. Copies under way when it is over are completed first.
    ///
    /// # Errors
    /// [`AcquireError::Timeout`] naming the buffer that was waited for; nothing is held then.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Grants, AcquireError> {
        self.block(Some(timeout))
    }

    fn block(self, timeout: Option<Duration>) -> Result<Grants, AcquireError> {
        let mut steps = self.steps()?;
        steps.check_order()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match steps.advance(true, None)? {
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
    fn steps(self) -> Result<Steps, AcquireError> {
        let arena = self.arena?;
        let kernel = self.kernel.unwrap_or_else(fresh_kernel);
        let mut items = SmallVec::new();
        let mut steps: SmallVec<[Step; 3]> = SmallVec::new();
        for wanted in self.items {
            if !self.platform.owns(&wanted.buffer) {
                return Err(AcquireError::ForeignBuffer { buffer: wanted.buffer.id() });
            }
            let span = wanted.buffer.span(&wanted.bytes)?;
            let claim = Claim { span, access: wanted.access };
            items.push(Item { buffer: wanted.buffer.id(), claim });
            match steps.iter_mut().find(|step| step.buffer == wanted.buffer) {
                Some(step) => step.claims.push(claim),
                None => {
                    let claims = std::iter::once(claim).collect();
                    steps.push(Step { buffer: wanted.buffer, claims });
                }
            }
        }
        steps.sort_by_key(|step| step.buffer.id());
        steps.reverse();
        for step in &mut steps {
            step.claims = normalise(step.claims.drain(..));
        }
        let count = steps.len();
        Ok(Steps {
            kernel,
            arena,
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
            let answered = match steps.advance(true, Some(context.waker())) {
                Ok(Progress::Granted) => return Poll::Ready(Ok(steps.take_grants())),
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
    grant: crate::GrantId,
}

/// The steps of an acquire: those granted, the one that waits, those to come. Dropping it undoes all.
#[derive(Debug)]
struct Steps {
    kernel: KernelId,
    arena: ArenaId,
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
    grant: crate::GrantId,
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
    fn advance(&mut self, queue: bool, waker: Option<&Waker>) -> Result<Progress, AcquireError> {
        loop {
            if let Some(copying) = &mut self.copying {
                let Poll::Ready(ended) = copying.run.advance(waker) else { return Ok(Progress::Copying) };
                let Some(Copying { buffer, claims, grant, .. }) = self.copying.take() else { continue };
                ended?;
                let block = buffer.0.finish(grant, self.arena)?;
                self.granted.push(Grant::new(buffer, grant, self.arena, claims, block));
            }
            if let Some(queued) = &self.waiting {
                return Ok(Progress::Waiting(queued.waiter.clone()));
            }
            let Some(step) = self.steps.pop() else { return Ok(Progress::Granted) };
            match step.buffer.0.ask(self.kernel, self.arena, step.claims.clone(), queue) {
                Asked::Granted(grant, block) => {
                    self.granted.push(Grant::new(step.buffer, grant, self.arena, step.claims, block));
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
        grant: crate::GrantId,
    ) -> Result<(), AcquireError> {
        let block = match begin {
            Begin::Granted(_) => buffer.0.change(|core, _| core.block(self.arena, &claims)),
            Begin::Plan(plan) => {
                let run = engine::Run::new(&buffer, plan);
                self.copying = Some(Copying { run, buffer, claims, grant });
                return Ok(());
            }
            Begin::Busy { reason, .. } => return Err(AcquireError::Busy { buffer: buffer.id(), reason }),
            Begin::Refused(refusal) => {
                return Err(buffer.0.refused(refusal, Some((self.kernel, self.arena))));
            }
        };
        self.granted.push(Grant::new(buffer, grant, self.arena, claims, block));
        Ok(())
    }

    fn waiting_for(&self) -> Option<BufferId> {
        self.waiting.as_ref().map(|queued| queued.buffer.id())
    }

    /// Whether waiting could close a circle with what this thread holds.
    fn check_order(&self) -> Result<(), AcquireError> {
        let Some(first) = self.steps.last() else { return Ok(()) };
        match held::highest() {
            Some(held) if held >= first.buffer.id() => {
                Err(AcquireError::OrderViolation { buffer: first.buffer.id(), held })
            }
            _ => Ok(()),
        }
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

pub(crate) mod held {
    //! Which buffers the current thread holds: the ranks for [`AcquireError::OrderViolation`](super::AcquireError).
    //!
    //! A grant released by another thread than the one that acquired it cannot take itself off that thread's list; it
    //! leaves a note, which the list is checked against before a violation is reported.

    use crate::id::{BufferId, GrantId};
    use crate::sync::{StaticMutex, thread_local};
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A thread that has acquired something.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Holder(u64);

    type Entry = (BufferId, GrantId);

    /// Notes for each living thread that holds something: what others have released of it.
    static RELEASED_ELSEWHERE: StaticMutex<BTreeMap<u64, BTreeSet<Entry>>> =
        StaticMutex::new(BTreeMap::new());
    static NEXT_HOLDER: AtomicU64 = AtomicU64::new(0);
    /// A list shorter than this is not worth tidying.
    const TIDY_AT: usize = 64;

    struct Held {
        holder: Holder,
        list: RefCell<List>,
    }

    #[derive(Default)]
    struct List {
        entries: Vec<Entry>,
        tidy_at: usize,
    }

    impl Held {
        fn new() -> Self {
            let holder = Holder(NEXT_HOLDER.fetch_add(1, Ordering::Relaxed));
            RELEASED_ELSEWHERE.with(|notes| notes.insert(holder.0, BTreeSet::new()));
            Self { holder, list: RefCell::new(List { entries: Vec::new(), tidy_at: TIDY_AT }) }
        }

        /// Strikes off what others have released.
        fn tidy(&self, list: &mut List) {
            RELEASED_ELSEWHERE.with(|notes| {
                let released = notes.entry(self.holder.0).or_default();
                list.entries.retain(|entry| !released.remove(entry));
                released.clear();
            });
            list.tidy_at = TIDY_AT.max(list.entries.len() * 2);
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            RELEASED_ELSEWHERE.with(|notes| notes.remove(&self.holder.0));
        }
    }

    thread_local! {
        static HELD: Held = Held::new();
    }

    /// Notes that this thread holds a grant.
    pub(crate) fn add(buffer: BufferId, grant: GrantId) -> Holder {
        HELD.with(|held| {
            let mut list = held.list.borrow_mut();
            if list.entries.len() >= list.tidy_at {
                held.tidy(&mut list);
            }
            list.entries.push((buffer, grant));
            held.holder
        })
    }

    /// Notes that a grant acquired by `by` is gone.
    pub(crate) fn remove(buffer: BufferId, grant: GrantId, by: Holder) {
        // While a thread ends, its list may be gone already.
        let here = HELD.try_with(|held| {
            if held.holder != by {
                return false;
            }
            let entries = &mut held.list.borrow_mut().entries;
            if let Some(index) = entries.iter().rposition(|entry| *entry == (buffer, grant)) {
                entries.swap_remove(index);
            }
            true
        });
        if !matches!(here, Ok(true)) {
            RELEASED_ELSEWHERE.with(|notes| {
                // A thread that has ended waits for nothing any more.
                if let Some(released) = notes.get_mut(&by.0) {
                    released.insert((buffer, grant));
                }
            });
        }
    }

    /// The highest buffer this thread holds.
    pub(crate) fn highest() -> Option<BufferId> {
        HELD.with(|held| {
            let mut list = held.list.borrow_mut();
            if list.entries.is_empty() {
                return None;
            }
            held.tidy(&mut list);
            list.entries.iter().map(|(buffer, _)| *buffer).max()
        })
    }

    #[cfg(all(test, not(dml_loom)))]
    mod tests {
        use super::*;

        #[test]
        fn a_thread_that_has_ended_leaves_nothing_behind() {
            let entry = (BufferId(1), GrantId(1));
            let holder = std::thread::spawn(move || add(entry.0, entry.1)).join().expect("it ends");
            let noted = || RELEASED_ELSEWHERE.with(|notes| notes.contains_key(&holder.0));
            assert!(!noted());
            remove(entry.0, entry.1, holder);
            assert!(!noted());
        }

        /// A thread that hands all of its grants to others never hears of their release.
        #[test]
        fn the_list_does_not_outgrow_what_is_held() {
            let elsewhere = |buffer: u64, holder| {
                std::thread::spawn(move || remove(BufferId(buffer), GrantId(1), holder))
                    .join()
                    .expect("it ends");
            };
            let length = || HELD.with(|held| held.list.borrow().entries.len());
            let holders: Vec<_> =
                (0..200).map(|buffer| (buffer, add(BufferId(buffer), GrantId(1)))).collect();
            assert_eq!(length(), 200);
            holders.into_iter().for_each(|(buffer, holder)| elsewhere(buffer, holder));
            (200..300).for_each(|buffer| _ = add(BufferId(buffer), GrantId(1)));
            assert_eq!(length(), 100);
            assert_eq!(highest(), Some(BufferId(299)));
        }
    }
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
