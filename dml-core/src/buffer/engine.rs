//! The execution of plans on the arenas. Only this module calls arenas for the allocations, map changes and
//! copies of plans.
//!
//! The plan's [`Execution`] decides the order; a [`Run`] does the work and reports. The engine calls arenas
//! without the buffer's lock, because the plan has reserved what they touch. It waits for a copy when no
//! other step of the plan can start. A future awaits the copy if the arena can notify it. A failure, a short
//! copy or a panic in arena code ends the plan. The bytes that did not arrive stay invalid, completed steps
//! stay, and reservations are undone. The engine then asks the arenas whether a device is lost, and declares
//! the loss before the requester learns of the failure.

use crate::base::counters::Operation;
use crate::base::guard::{guard, quietly};
use crate::base::id::{ArenaId, DeviceId, OwnerId};
use crate::base::names::BufferName;
use crate::base::spans::TraceSpan;
use crate::base::sync::Arc;
use crate::buffer::error::AcquireError;
use crate::buffer::handle::Pin;
use crate::buffer::lock::BufferInner;
use crate::buffer::locked::Locked;
use crate::buffer::storage::{ArenaStorage, FreeOrder, Handout};
use crate::buffer::storage::{CopyEnd, free, map_state};
use crate::buffer::wait::Wait;
use crate::memory::arena::MapReport;
use crate::memory::block::{BlockRef, NewBlock};
use crate::memory::cross_arena::{CopyJob, JobEnd, moved_all};
use crate::memory::desc::Concurrency;
use crate::memory::error::{AllocError, Breach, TransferError};
use crate::memory::fence::Fence;
use crate::memory::host::{HostMemory, Loan, Shared};
use crate::memory::map_state::MapState;
use crate::memory::request::{Backing, Fill, MapRequest, UnmapRequest};
use crate::platform::Platform;
use crate::state::{
    BusyReason, ContractBreach, CopyKind, CopyOp, EventKind, Execution, Finished, Next, Refusal, Report,
    Routes, Step, SyncPlan,
};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Instant;

/// Maximum number of running copies that a future polls at once, oldest first.
const MOST_POLLED: usize = 64;

/// A plan that is being carried out. Dropping it early waits for its running copies and then gives the plan
/// up.
pub(crate) struct Run {
    buffer: Pin,
    execution: Execution,
    /// The running copies, in the order of their start.
    pending: VecDeque<RunningCopy>,
    /// The first error.
    failed: Option<AcquireError>,
    /// The source location that requested the plan.
    origin: &'static Location<'static>,
    /// Whether the end of the plan was reported to the machine.
    is_over: bool,
    /// The signal that stops the run, if it can be stopped.
    stop: Option<Stop>,
    /// Whether the copies are those of a kernel whose grant has not been released.
    is_behind: bool,
}

/// A signal to a run to begin no further step. All clones are one signal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_said(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What a run does when no step can begin before a copy ends.
#[derive(Clone, Copy)]
enum Pause<'a> {
    Wait(Wait<'a>),
    /// Returns as pending. The waker is called when a copy ends.
    Leave(&'a Waker),
    /// Returns as pending, without polling a fence.
    Stay,
    /// As `Stay`. Copies begin behind this kernel.
    Behind(&'a Fence),
}

/// The next task, with the parts of the buffer's storage that it needs.
enum Task {
    Allocate(ArenaId),
    Bind((ArenaId, ArenaId, Concurrency), Backing, Option<Shared>),
    Map((ArenaId, DeviceId, MapState), BlockRef, Option<HostMemory>),
    Copy(CopyOp, CopyEnds),
    /// Requests the next task. A plan of many refreshes releases the lock after each one.
    Next,
    Refused(Refusal),
    Wait,
    Finished(Result<Option<Handout>, Refusal>),
    GiveUp,
}

/// The storages at both ends of a copy. A fill has no source.
struct CopyEnds {
    from: Option<CopyEnd>,
    to: CopyEnd,
    /// The value of [`Locked::map_changes`] at the start of the copy.
    map_changes: u32,
}

struct RunningCopy {
    fence: Fence,
    copy: Begun,
}

/// A started copy, with the data needed at its end.
struct Begun {
    copy: CopyOp,
    /// The loan is out while any code still works on the copy, regardless of the fence.
    loan: Loan,
    begun: Instant,
    ends: Ends,
    /// The value of [`Locked::map_changes`] at the start of the copy.
    map_changes: u32,
    /// The tracing span, which ends when the run notices the copy's end.
    span: TraceSpan,
}

/// The blocks at both ends of a copy.
type Ends = SmallVec<[(ArenaId, BlockRef); 2]>;

impl Run {
    pub(crate) fn new(buffer: Pin, plan: SyncPlan, origin: &'static Location<'static>) -> Self {
        let (execution, pending) = (Execution::new(plan), VecDeque::new());
        Self {
            buffer,
            execution,
            pending,
            failed: None,
            origin,
            is_over: false,
            stop: None,
            is_behind: false,
        }
    }

    /// Begins the copies of a kernel's results to an arena, behind the kernel. `None` if they cannot begin
    /// yet.
    pub(crate) fn behind(
        buffer: &Pin,
        (grant, goal): (OwnerId, ArenaId),
        kernel: &Fence,
        origin: &'static Location<'static>,
    ) -> Option<Self> {
        let plan = buffer.change(|locked, routes| locked.state.results(routes, grant, goal))?;
        let mut run = Self::new(buffer.clone(), plan, origin);
        run.is_behind = true;
        run.go_on(Pause::Behind(kernel)).is_pending().then_some(run)
    }

    /// Completes the copies of a kernel's results, whose grant has been released.
    pub(crate) fn complete_behind(mut self) -> Result<(), AcquireError> {
        self.is_behind = false;
        for RunningCopy { copy, .. } in &mut self.pending {
            copy.begun = Instant::now();
            self.buffer.record(|| copy.copy.begun());
        }
        self.wait().map(drop)
    }

    /// Returns whether the copies in flight are known to have ended.
    pub(crate) fn have_copies_ended(&self) -> bool {
        self.pending.iter().all(|pending| guard(|| pending.fence.has_ended()).unwrap_or(false))
    }

    /// Returns the fences of the copies in flight, if they are all that remains to be done.
    pub(crate) fn last_fences(&self) -> Option<impl Iterator<Item = &Fence>> {
        let is_last = self.failed.is_none() && self.execution.has_begun_all();
        is_last.then(|| self.pending.iter().map(|pending| &pending.fence))
    }

    /// Sets the signal that stops the run before its next step.
    pub(crate) fn stopped_by(mut self, stop: Stop) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Returns the name of the buffer, for errors.
    pub(crate) fn buffer_name(&self) -> BufferName {
        self.buffer().name()
    }

    /// Carries the plan out on this thread. After an error the plan has been given up.
    pub(crate) fn wait(mut self) -> Result<Option<Handout>, AcquireError> {
        loop {
            if let Poll::Ready(ended) = self.advance(Wait::Try) {
                return ended;
            }
        }
    }

    /// Continues until a copy must be awaited, which happens only if `wait` has a waker. At the end of a
    /// kernel's plan, returns what its grant hands out. After an error the plan has been given up.
    pub(crate) fn advance(&mut self, wait: Wait<'_>) -> Poll<Result<Option<Handout>, AcquireError>> {
        self.go_on(Pause::Wait(wait))
    }

    /// Begins every step that can begin now, without waiting for a copy. Completes the copies that have
    /// already ended. The waker is called when another copy ends, if its arena can notify it.
    pub(crate) fn begin(&mut self, waker: &Waker) -> Poll<Result<Option<Handout>, AcquireError>> {
        self.go_on(Pause::Leave(waker))
    }

    /// Stops the run: no further step begins. [`advance`](Self::advance) returns an error after the copies in
    /// flight have ended.
    pub(crate) fn stop(&mut self) {
        self.execution.stop();
    }

    /// Returns whether a step has failed. Copies may still be in flight.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Begins every step that can begin now, without polling a copy. No waker is registered before
    /// [`advance`](Self::advance).
    pub(crate) fn start(&mut self) -> Poll<Result<Option<Handout>, AcquireError>> {
        self.go_on(Pause::Stay)
    }

    fn go_on(&mut self, pause: Pause<'_>) -> Poll<Result<Option<Handout>, AcquireError>> {
        let mut task = self.next();
        loop {
            task = match task {
                Task::Allocate(arena) => self.allocate(arena),
                Task::Bind(binding, backing, root_host) => self.bind(binding, backing, root_host),
                Task::Map(change, block, host) => self.map(change, block, host),
                Task::Copy(copy, ends) => self.copy(copy, ends, pause),
                Task::Next => self.next(),
                Task::Refused(refusal) => {
                    self.failed(self.buffer().refused(refusal));
                    self.next()
                }
                Task::Wait => match self.wait_for_copy(pause) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(task) => task,
                },
                Task::Finished(finished) => {
                    self.is_over = true;
                    return Poll::Ready(finished.map_err(|refusal| self.buffer().refused(refusal)));
                }
                Task::GiveUp => {
                    self.give_up();
                    let failed = self.failed.take();
                    let cancelled = || AcquireError::Cancelled { buffer: self.buffer_name() };
                    return Poll::Ready(Err(failed.unwrap_or_else(cancelled)));
                }
            };
        }
    }

    /// Returns the next task.
    fn next(&mut self) -> Task {
        if self.execution.must_wait() { Task::Wait } else { self.turn(|_| ()).1 }
    }

    /// Changes the buffer under its lock, and starts the next task.
    fn turn<R>(&mut self, act: impl FnOnce(&mut Turn<'_>) -> R) -> (R, Task) {
        let Self { buffer, execution, origin, stop, is_behind, .. } = self;
        let (stops, is_behind) = (stop.as_ref().is_some_and(Stop::is_said), *is_behind);
        buffer.change(|locked, routes| {
            let mut turn = Turn { buffer, locked, routes, execution, origin, stops, is_behind };
            let result = act(&mut turn);
            (result, turn.next())
        })
    }

    /// Waits until a copy has ended: the oldest one, or any one if there is a waker. With `Pause::Leave`,
    /// only completes a copy that has already ended.
    fn wait_for_copy(&mut self, pause: Pause<'_>) -> Poll<Task> {
        let ended = match pause {
            // A fence whose poll blocks is polled only when it is the oldest, so that it does not delay the
            // others.
            Pause::Wait(Wait::Awaken(waker)) => self.poll_copies(waker, 0),
            Pause::Leave(waker) => self.poll_copies(waker, usize::MAX),
            Pause::Stay | Pause::Behind(_) => None,
            Pause::Wait(Wait::Try | Wait::Until(_)) => self.pending.front_mut().map(|pending| {
                let fence = std::mem::replace(&mut pending.fence, Fence::done(0));
                (0, called(|| fence.wait()))
            }),
        };
        let Some((index, ended)) = ended else { return Poll::Pending };
        let RunningCopy { fence, copy } = self.pending.remove(index).expect("just found");
        // A fence that panicked in a poll may panic again in its destructor.
        quietly(fence);
        Poll::Ready(self.ended(copy, ended))
    }

    /// Returns the index and the result of a copy that has ended. Of the fences whose poll blocks, only the
    /// one at `blocking` is polled.
    fn poll_copies(&mut self, waker: &Waker, blocking: usize) -> Option<(usize, Result<u64, TransferError>)> {
        let polled = self.pending.iter_mut().take(MOST_POLLED).enumerate();
        let mut polled = polled.filter(|(index, pending)| *index == blocking || !pending.fence.blocks());
        polled.find_map(|(index, pending)| match guard(|| pending.fence.poll(waker)) {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(ended)) => Some((index, ended)),
            Err(message) => Some((index, Err(TransferError::Panicked { message }))),
        })
    }

    /// Records that a step failed. Declares lost devices before the plan is given up and before the requester
    /// gets the error, so that no waiting request is admitted to a lost memory.
    fn failed(&mut self, error: AcquireError) {
        self.buffer().platform.notice_losses();
        self.failed.get_or_insert(error);
    }

    /// Records that a step failed, and reports it to the machine.
    fn step_failed(&mut self, step: Step, (error, report): (AcquireError, Report)) -> Task {
        self.failed(error);
        let (reported, task) = self.turn(|turn| turn.report(step, report));
        debug_assert_eq!(reported, Ok(()), "a failed step changes no map state");
        task
    }

    fn give_up(&mut self) {
        let Self { buffer, execution, .. } = self;
        self.is_over = true;
        buffer.change(|locked, routes| {
            let aborted = execution.give_up(routes, &mut locked.state);
            buffer.record(|| aborted);
        });
    }

    fn buffer(&self) -> &BufferInner {
        &self.buffer
    }

    fn allocate(&mut self, arena: ArenaId) -> Task {
        let step = Step::Allocate { arena };
        let object = self.buffer().platform.arena(arena);
        self.buffer().platform.counters().count(Operation::Alloc);
        let allocated = guard(|| object.alloc(self.buffer().len));
        match self.storage_result(arena, None, allocated) {
            Ok(NewBlock { block, host }) => {
                self.stored(step, arena, ArenaStorage::new(block, host, FreeOrder::Root))
            }
            Err(error) => self.step_failed(step, (error, Report::Failed)),
        }
    }

    fn bind(
        &mut self,
        (arena, root, concurrency): (ArenaId, ArenaId, Concurrency),
        backing: Backing,
        root_host: Option<Shared>,
    ) -> Task {
        let step = Step::Bind { arena, root, concurrency };
        let platform = &self.buffer().platform;
        let object = platform.arena(arena);
        platform.counters().count(Operation::Bind);
        let bound = guard(|| object.bind(&backing));
        let bound = self.storage_result(arena, Some(&backing), bound);
        quietly(backing);
        match bound {
            Ok(NewBlock { block, host }) => {
                let platform = &self.buffer().platform;
                let is_of_root = platform.desc(arena).native == platform.desc(root).native;
                let host = host.map(HostMemory::into_shared).or(root_host.filter(|_| is_of_root));
                self.stored(step, arena, ArenaStorage::member(block, host))
            }
            Err(error) => self.step_failed(step, (error, Report::Failed)),
        }
    }

    /// Records that a step made storage.
    fn stored(&mut self, step: Step, arena: ArenaId, storage: ArenaStorage) -> Task {
        let (reported, task) = self.turn(|turn| {
            turn.locked.put(arena, storage);
            turn.report(step, Report::Done)
        });
        debug_assert_eq!(reported, Ok(()), "storage changes no map state");
        task
    }

    /// Returns the block that an arena made, if the block keeps the contract.
    fn storage_result(
        &self,
        arena: ArenaId,
        backing: Option<&Backing>,
        result: Result<Result<NewBlock, AllocError>, Arc<str>>,
    ) -> Result<NewBlock, AcquireError> {
        let name = self.buffer().arena_name(arena);
        let (needed_bytes, align) = (self.buffer().len, self.buffer().platform.desc(arena).alloc_align);
        let panicked = |message| Err(AllocError::Panicked { arena: name.name.clone(), message });
        let result = result.unwrap_or_else(panicked).and_then(|mut new| {
            if !new.is_new() {
                self.give_back(arena, new);
                return Err(AllocError::NotNew { arena: name.name.clone() });
            }
            if !guard(|| new.is_over(backing)).unwrap_or_default() {
                self.give_back(arena, new);
                return Err(AllocError::OtherStorage { arena: name.name.clone() });
            }
            // Asking for the length runs the arena's code, which may panic or lie.
            if guard(|| new.block.len()).is_ok_and(|bytes| bytes >= needed_bytes) {
                return Ok(new);
            }
            self.give_back(arena, new);
            Err(AllocError::OutOfMemory { arena: name.name.clone(), bytes: needed_bytes })
        });
        let (buffer, arena_name) = (self.buffer().name(), name.clone());
        let new = result.map_err(|cause| AcquireError::Alloc { buffer, arena: arena_name, cause })?;
        // An arena that keeps part of the memory could write it during a view.
        if new.host.as_ref().is_some_and(HostMemory::is_lent) {
            self.give_back(arena, new);
            let buffer = self.buffer().name();
            return Err(AcquireError::ArenaContract { buffer, arena: name, breach: Breach::StillLent });
        }
        let bytes = new.host.as_ref().map_or(needed_bytes, HostMemory::len);
        let is_aligned =
            new.host.as_ref().is_none_or(|host| (host.span().as_ptr().addr() as u64).is_multiple_of(align));
        // Bound storage has the alignment of its root.
        if bytes < needed_bytes || (!is_aligned && needed_bytes > 0 && backing.is_none()) {
            self.give_back(arena, new);
            let (buffer, breach) = (self.buffer().name(), Breach::HostMemory { bytes, needed_bytes });
            return Err(AcquireError::ArenaContract { buffer, arena: name, breach });
        }
        Ok(new)
    }

    fn give_back(&self, arena: ArenaId, NewBlock { block, host }: NewBlock) {
        quietly(host);
        free(&self.buffer().platform, arena, block);
    }

    fn map(
        &mut self,
        (arena, device, target): (ArenaId, DeviceId, MapState),
        block: BlockRef,
        mut host: Option<HostMemory>,
    ) -> Task {
        let step = Step::Map { arena, device, target };
        let platform = &self.buffer().platform;
        let (object, native) = (platform.arena(arena), device == platform.desc(arena).native);
        platform.counters().count(if native { Operation::Unmap } else { Operation::Map });
        let report = called(|| match native {
            true => object.unmap(UnmapRequest::scheduled(&block, target, &mut host)),
            false => object.map(MapRequest::scheduled(&block, device, target, &mut host)),
        });
        let mapped = match report {
            Ok(MapReport { host: Some(shown), .. }) if shown.is_lent() => {
                quietly(shown);
                Err(TransferError::StillLent)
            }
            Ok(MapReport { state, host: shown }) => {
                if shown.is_some() {
                    quietly(std::mem::replace(&mut host, shown));
                }
                Ok(state)
            }
            Err(cause) => Err(cause),
        };
        if mapped.as_ref().is_ok_and(|state| !is_host_in(platform, *state)) {
            quietly(host.take());
        }
        let is_other = host.as_ref().is_some_and(|host| !host.is_for(&block));
        if is_other {
            quietly(host.take());
        }
        quietly(block);
        let needed_bytes = self.buffer().len;
        let breach = match (&mapped, host.as_ref().map(HostMemory::len)) {
            (Err(TransferError::StillLent), _) => Some(Breach::StillLent),
            _ if is_other => Some(Breach::OtherMemory),
            (_, Some(bytes)) if bytes < needed_bytes => Some(Breach::HostMemory { bytes, needed_bytes }),
            _ => None,
        };
        let (buffer, name) = (self.buffer().name(), self.buffer().arena_name(arena));
        let report = match (breach, mapped) {
            (Some(breach), _) => {
                if breach == Breach::StillLent {
                    self.buffer().wedge_lent();
                }
                self.failed(AcquireError::ArenaContract { buffer, arena: name, breach });
                Report::Broken
            }
            (None, Err(cause)) => {
                let known = self.buffer().platform.devices().get(usize::from(device.0));
                let device_name = known.map_or_else(|| device.to_string().into(), |known| known.name.clone());
                self.failed(AcquireError::MapFailed { buffer, arena: name, device, device_name, cause });
                Report::Failed
            }
            (None, Ok(state)) => Report::Mapped(state),
        };
        let ((reported, left_over), task) = self.turn(|turn| {
            let left_over = turn.locked.take_mapping(arena, host);
            (turn.report(step, report), left_over)
        });
        quietly(left_over);
        if let Err(breach) = reported {
            let (buffer, arena) = (self.buffer().name(), self.buffer().arena_name(breach.arena));
            let breach = Breach::Access { device: breach.device };
            self.failed(AcquireError::ArenaContract { buffer, arena, breach });
        }
        task
    }

    fn copy(&mut self, copy: CopyOp, CopyEnds { from, to, map_changes }: CopyEnds, pause: Pause<'_>) -> Task {
        let (platform, span) = (&self.buffer().platform, copy.span);
        let (begun, loan) = (Instant::now(), Loan::default());
        let source = copy.from().zip(from.as_ref()).map(|(arena, end)| (arena, end.block.clone()));
        let ends: Ends = source.into_iter().chain([(copy.to, to.block.clone())]).collect();
        let told = self.transfer_span(&copy);
        let job_end = |arena: ArenaId, end: CopyEnd| JobEnd {
            arena: platform.arena(arena).clone(),
            name: platform.desc(arena).name.clone(),
            block: end.block,
            host: end.host,
        };
        let started = match (copy.kind, from) {
            (CopyKind::Bytes { from: source, link, .. }, Some(from)) => {
                let (from, to) = (job_end(source, from), job_end(copy.to, to));
                let job = CopyJob::new(from, to, span, &platform.0.counters, &loan);
                let mechanism = platform.cross_arena(link);
                told.within(|| {
                    called(|| match pause {
                        Pause::Behind(kernel) => mechanism.copy_behind(job, kernel),
                        _ => mechanism.copy(job),
                    })
                })
            }
            _ => {
                platform.counters().count(Operation::Fill);
                let fill = Fill::scheduled(&to.block, span, 0, &loan);
                drop(to);
                told.within(|| called(|| platform.arena(copy.to).fill(fill)))
            }
        };
        let copy = Begun { copy, loan, begun, ends, map_changes, span: told };
        match started {
            Ok(fence) => {
                let op = copy.copy;
                self.pending.push_back(RunningCopy { fence, copy });
                match pause {
                    Pause::Behind(_) => self.turn(|turn| turn.result_begun(&op)).1,
                    _ => self.next(),
                }
            }
            Err(cause) => self.ended(copy, Err(cause)),
        }
    }

    /// Begins the tracing span of a copy or a fill. The source of a fill is named `zeros`.
    fn transfer_span(&self, copy: &CopyOp) -> TraceSpan {
        let platform = &self.buffer().platform;
        span!(
            TRACE,
            "transfer",
            from = copy.from().map_or("zeros", |arena| &*platform.desc(arena).name),
            to = &*platform.desc(copy.to).name,
            bytes = copy.span.len(),
            buffer = self.buffer().id.0,
        )
    }

    /// Completes a copy whose fence has ended, with or without an error, or that could not be started.
    fn ended(&mut self, copy: Begun, result: Result<u64, TransferError>) -> Task {
        let Begun { copy, begun, loan, ends, map_changes, span } = copy;
        let (step, requested_bytes) = (Step::Copy(copy), copy.span.len());
        let mut moved = result.and_then(|done_bytes| moved_all(requested_bytes, done_bytes));
        if loan.is_out() {
            moved = Err(TransferError::StillLent);
        } else if self.is_behind {
            // What came is not the contents of a commit.
            moved = moved.and(Err(TransferError::Infeasible));
        }
        let found = self.map_states(ends);
        drop(span);
        if let Err(cause) = moved {
            // The map state of an arena whose device is lost is ignored.
            self.buffer().platform.notice_losses();
            let changed = self.buffer().read(|locked| locked.changed_unasked(map_changes, &found));
            let failed = match changed.filter(|_| cause != TransferError::StillLent) {
                Some((arena, breach)) => (self.broken(arena, breach), Report::Broken),
                None => self.failure(&copy, cause),
            };
            return self.step_failed(step, failed);
        }
        // The bytes have arrived, unless the copy changed a map state on the way.
        let (changed, task) = self.turn(|turn| {
            let changed = turn.locked.changed_unasked(map_changes, &found);
            let report = if changed.is_none() { Report::Done } else { Report::Broken };
            let reported = turn.report(step, report);
            debug_assert_eq!(reported, Ok(()), "a copy changes no map state");
            changed
        });
        match changed {
            None => {
                if let CopyKind::Bytes { link, .. } = copy.kind {
                    let counters = self.buffer().platform.counters();
                    counters.count_transfer(link, requested_bytes, begun.elapsed());
                }
            }
            Some((arena, breach)) => self.failed(self.broken(arena, breach)),
        }
        task
    }

    /// Returns the map states of the arenas of a copy that report them.
    fn map_states(&self, ends: Ends) -> SmallVec<[(ArenaId, MapState); 2]> {
        let platform = &self.buffer().platform;
        let told = ends.into_iter().filter_map(|(arena, block)| {
            let found = map_state(platform, arena, &block);
            quietly(block);
            Some((arena, found?))
        });
        told.collect()
    }

    /// Returns the error of an arena that broke its contract.
    fn broken(&self, arena: ArenaId, breach: Breach) -> AcquireError {
        let (buffer, arena) = (self.buffer().name(), self.buffer().arena_name(arena));
        AcquireError::ArenaContract { buffer, arena, breach }
    }

    /// Returns the error of a failed copy, and the report for the machine.
    fn failure(&self, copy: &CopyOp, cause: TransferError) -> (AcquireError, Report) {
        let buffer = self.buffer().name();
        let to = self.buffer().arena_name(copy.to);
        let from = copy.from().map_or_else(|| to.clone(), |from| self.buffer().arena_name(from));
        let (arena, breach) = match &cause {
            TransferError::Infeasible => {
                return (AcquireError::Busy { buffer, reason: BusyReason::ArenaInUse }, Report::Failed);
            }
            // Core itself copies the host's memory, so the arena at the other end is the one that failed.
            TransferError::StillLent => {
                self.buffer().wedge_lent();
                let is_hosts =
                    self.buffer().platform.host() == Some(self.buffer().platform.desc(copy.to).native);
                (if is_hosts { from } else { to }, Breach::StillLent)
            }
            TransferError::NoAddress { arena } if *arena == from.name => (from, Breach::NoAddress),
            TransferError::NoAddress { .. } => (to, Breach::NoAddress),
            _ => {
                let error = AcquireError::CopyFailed { buffer, from, to, span: copy.span, cause };
                return (error, Report::Failed);
            }
        };
        (AcquireError::ArenaContract { buffer, arena, breach }, Report::Broken)
    }
}

/// The locked buffer, on behalf of a plan.
struct Turn<'a> {
    buffer: &'a BufferInner,
    locked: &'a mut Locked,
    routes: &'a dyn Routes,
    execution: &'a mut Execution,
    origin: &'static Location<'static>,
    /// Whether the run has been stopped.
    stops: bool,
    is_behind: bool,
}

impl Turn<'_> {
    fn report(&mut self, step: Step, report: Report) -> Result<(), ContractBreach> {
        let Self { buffer, locked, routes, execution, .. } = self;
        let event = execution.report(*routes, &mut locked.state, step, report)?;
        buffer.record(|| event);
        Ok(())
    }

    fn result_begun(&mut self, copy: &CopyOp) {
        self.locked.state.result_begun(copy);
        self.buffer.record(|| EventKind::ResultBegun {
            grant: copy.id.owner,
            arena: copy.to,
            span: copy.span,
        });
    }

    /// Starts the next task, with the parts of the buffer's storage that it needs.
    fn next(&mut self) -> Task {
        if self.stops {
            self.execution.stop();
        }
        match self.execution.next(&mut self.locked.state) {
            Next::Do(Step::Allocate { arena }) => Task::Allocate(arena),
            Next::Do(Step::Bind { arena, root, concurrency }) => {
                let (backing, root_host) = self.locked.backing(root, self.buffer.len);
                Task::Bind((arena, root, concurrency), backing, root_host)
            }
            Next::Do(Step::Map { arena, device, target }) => {
                let stays = is_host_in(&self.buffer.platform, target);
                let (block, host) = self.locked.lend_mapping(arena, stays);
                Task::Map((arena, device, target), block, host)
            }
            Next::Do(Step::Copy(copy)) => {
                // A copy behind a kernel moves no byte before that has ended.
                if !self.is_behind {
                    self.buffer.record(|| copy.begun());
                }
                if let CopyKind::Refresh { .. } = copy.kind {
                    // The map state has already changed, so the bytes are valid.
                    let reported = self.report(Step::Copy(copy), Report::Done);
                    debug_assert_eq!(reported, Ok(()), "a copy changes no map state");
                    return Task::Next;
                }
                Task::Copy(copy, self.ends(&copy))
            }
            Next::Refused(refusal) => Task::Refused(refusal),
            Next::Wait => Task::Wait,
            Next::Finish => Task::Finished(self.finish()),
            Next::GiveUp => Task::GiveUp,
        }
    }

    fn finish(&mut self) -> Result<Option<Handout>, Refusal> {
        let grant = self.execution.owner();
        match self.execution.finish(self.routes, &mut self.locked.state) {
            Ok(finished) => {
                self.buffer.record(|| finished.event());
                let Finished::Granted(entry) = finished else { return Ok(None) };
                let storage = Some(entry.arena).filter(|_| !entry.claims.is_empty());
                Ok(self.buffer.hand_out(self.locked, grant, storage, self.origin))
            }
            Err(refusal) => {
                self.buffer.record(|| EventKind::GivenUp { owner: grant });
                Err(refusal)
            }
        }
    }

    fn ends(&mut self, copy: &CopyOp) -> CopyEnds {
        let (source_via, target_via) = match copy.kind {
            CopyKind::Bytes { source_via, target_via, .. } => (Some(source_via), Some(target_via)),
            CopyKind::Refresh { .. } | CopyKind::Fill => (None, None),
        };
        let from = copy.from().map(|from| self.end(from, source_via));
        CopyEnds { from, to: self.end(copy.to, target_via), map_changes: self.locked.map_changes }
    }

    /// Returns the storage of an arena, for access through a device. The host as a remote device uses the
    /// mapping.
    fn end(&mut self, arena: ArenaId, via: Option<DeviceId>) -> CopyEnd {
        let platform = &self.buffer.platform;
        let is_mapped =
            via.is_some_and(|via| via != platform.desc(arena).native && platform.host() == Some(via));
        self.locked.end_via(arena, is_mapped)
    }
}

fn is_host_in(platform: &Platform, state: MapState) -> bool {
    platform.host().is_some_and(|host| state.remotes().contains(host))
}

/// Calls an arena or a mechanism. A panic becomes an error of the call.
fn called<R>(call: impl FnOnce() -> Result<R, TransferError>) -> Result<R, TransferError> {
    guard(call).unwrap_or_else(|message| Err(TransferError::Panicked { message }))
}

/// Gives a plan up when it is dropped, even if an earlier step panics.
struct OnDrop<'a>(&'a mut Run);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.execution.stop();
        let given_up = OnDrop(self);
        for RunningCopy { fence, copy } in std::mem::take(&mut given_up.0.pending) {
            let ended = called(|| fence.wait());
            let _: Task = given_up.0.ended(copy, ended);
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Run").field(&self.execution).finish()
    }
}
