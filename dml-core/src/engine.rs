//! Carries plans out on the arenas. The only caller of allocations, map changes and copies.
//!
//! What comes when is said by the plan's [`Execution`]; a [`Run`] does it and reports. Arenas are called without the
//! buffer's lock: what they may touch is reserved by the plan. A copy is waited for when nothing else of the plan can
//! begin; a future awaits it where its arena can tell. A failure, a short copy or a panic in arena code
//! ends the plan: the bytes that were to arrive stay invalid, everything completed stays, reservations are undone. The
//! arenas are then asked whether a device is gone, which is declared before the requester hears of the failure.

use crate::arena::{BlockRef, Concurrency, Fence, MapReport, NewBlock};
use crate::buffer::{BufferInner, Core, RawBuffer};
use crate::cross_arena::{CopyJob, JobEnd, moved_all};
use crate::error::{AcquireError, AllocError, Breach, BusyReason, TransferError, panic_text};
use crate::host::{HostMemory, Loan, Owner, Shared};
use crate::id::{ArenaId, DeviceId, KernelId};
use crate::platform::Platform;
use crate::record::{EventKind, Operation};
use crate::request::{Backing, Fill, MapRequest, UnmapRequest};
use crate::state::{
    ContractBreach, CopyKind, CopyOp, Execution, Finished, MapState, Next, Refusal, Report, Routes, Step,
    SyncPlan,
};
use crate::storage::{FreeOrder, Handout, Storage};
use crate::sync::Arc;
use crate::wait::Wait;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::task::Poll;
use std::time::Instant;

/// How many of the copies under way a future asks for their end each time it is polled, the oldest first.
const MOST_POLLED: usize = 64;

/// A plan being carried out. One that is dropped half way is given up: what is under way ends first.
pub(crate) struct Run {
    buffer: RawBuffer,
    execution: Execution,
    /// Copies under way, in the order in which they began.
    pending: VecDeque<Pending>,
    /// The first thing that went wrong.
    failed: Option<AcquireError>,
    /// Where in the program the plan was asked for.
    origin: &'static Location<'static>,
    /// Whether the machine knows how it ended.
    is_over: bool,
}

/// What is to be done next, with what it takes of the buffer's storage.
enum Task {
    Allocate(ArenaId),
    Bind((ArenaId, ArenaId, Concurrency), Backing, Option<Shared>),
    Map((ArenaId, DeviceId, MapState), BlockRef, Option<HostMemory>),
    Copy(CopyOp, CopyEnds),
    Refused(CopyOp, Refusal),
    Wait,
    Finished(Result<Option<Handout>, Refusal>),
    GiveUp,
}

/// The storages that a copy is between; none to read from for a fill.
struct CopyEnds {
    from: Option<End>,
    to: End,
    /// What [`Core::map_changes`] was when it began.
    map_changes: u64,
}

struct Pending {
    fence: Fence,
    rest: Ended,
}

/// A copy whose fence has ended, or will.
struct Ended {
    copy: CopyOp,
    /// Out as long as somebody works on the copy, whatever the fence says.
    loan: Loan,
    begun: Instant,
    ends: Ends,
    /// What [`Core::map_changes`] was when it began.
    map_changes: u64,
}

/// The blocks that a copy is between.
type Ends = SmallVec<[(ArenaId, BlockRef); 2]>;

/// What a copy needs of the buffer's storage, taken under the lock.
struct End {
    block: BlockRef,
    host: Option<Shared>,
}

impl Run {
    pub(crate) fn new(buffer: &RawBuffer, plan: SyncPlan, origin: &'static Location<'static>) -> Self {
        let (buffer, execution, pending) = (buffer.clone(), Execution::new(plan), VecDeque::new());
        Self { buffer, execution, pending, failed: None, origin, is_over: false }
    }

    /// Carries the plan out on this thread; on an error it has been given up.
    pub(crate) fn wait(mut self) -> Result<Option<Handout>, AcquireError> {
        loop {
            if let Poll::Ready(ended) = self.advance(Wait::Try) {
                return ended;
            }
        }
    }

    /// Goes on until a copy has to be awaited, of whose end the waker is told: only where `wait` has one. At the end of a
    /// kernel's plan, what its grant hands out; on an error the plan has been given up.
    pub(crate) fn advance(&mut self, wait: Wait<'_>) -> Poll<Result<Option<Handout>, AcquireError>> {
        let mut task = self.next();
        loop {
            task = match task {
                Task::Allocate(arena) => self.allocate(arena),
                Task::Bind(binding, backing, root_host) => self.bind(binding, backing, root_host),
                Task::Map(change, block, host) => self.map(change, block, host),
                Task::Copy(copy, ends) => self.copy(copy, ends),
                Task::Refused(copy, refusal) => {
                    let arena = self.lost_end(&copy);
                    self.failed(self.core().refused(refusal, Some((KernelId::default(), arena))));
                    self.next()
                }
                Task::Wait => match self.wait_for_copy(wait) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(task) => task,
                },
                Task::Finished(finished) => {
                    self.is_over = true;
                    let asker = Some((KernelId::default(), self.execution.arena()));
                    return Poll::Ready(finished.map_err(|refusal| self.core().refused(refusal, asker)));
                }
                Task::GiveUp => {
                    self.give_up();
                    let error = self.failed.take();
                    return Poll::Ready(Err(error.unwrap_or(AcquireError::Finished)));
                }
            };
        }
    }

    /// What comes next.
    fn next(&mut self) -> Task {
        if self.execution.must_wait() { Task::Wait } else { self.turn(|_| ()).1 }
    }

    /// Changes the buffer, and begins what comes next.
    fn turn<R>(&mut self, act: impl FnOnce(&mut Turn<'_>) -> R) -> (R, Task) {
        let Self { buffer, execution, origin, .. } = self;
        buffer.0.change(|core, routes| {
            let mut turn = Turn { buffer: &buffer.0, core, routes, execution, origin };
            let result = act(&mut turn);
            (result, turn.next())
        })
    }

    /// Waits until a copy has ended, the oldest unless there is a waker to be told.
    fn wait_for_copy(&mut self, wait: Wait<'_>) -> Poll<Task> {
        let ended = match wait {
            Wait::Awaken(waker) => {
                let polled = self.pending.iter_mut().take(MOST_POLLED).enumerate();
                // One that can only be waited for keeps nobody else from being heard.
                let mut polled = polled.filter(|(index, pending)| *index == 0 || !pending.fence.blocks());
                polled.find_map(|(index, pending)| {
                    let polled = guard(|| pending.fence.poll(waker)).unwrap_or_else(panicked);
                    match polled {
                        Poll::Pending => None,
                        Poll::Ready(ended) => Some((index, ended)),
                    }
                })
            }
            Wait::Try | Wait::Until(_) => self.pending.front_mut().map(|pending| {
                let fence = std::mem::replace(&mut pending.fence, Fence::done(0));
                (0, guard(|| fence.wait()).unwrap_or_else(|message| Err(TransferError::Panicked { message })))
            }),
        };
        let Some((index, ended)) = ended else { return Poll::Pending };
        let Pending { fence, rest } = self.pending.remove(index).expect("just found");
        // One that panicked when it was polled may do so again.
        quietly(fence);
        Poll::Ready(self.ended(rest, ended))
    }

    /// A step has failed. Where that is because a device is gone, every buffer knows before anybody hears of it, and
    /// before the plan is given up: who waits behind it is not let in to a memory that is gone.
    fn failed(&mut self, error: AcquireError) {
        self.core().platform.notice_losses();
        self.failed.get_or_insert(error);
    }

    /// A step has failed, and is reported as that.
    fn step_failed(&mut self, step: Step, (error, report): (AcquireError, Report)) -> Task {
        self.failed(error);
        let (reported, task) = self.turn(|turn| turn.report(step, report));
        debug_assert_eq!(reported, Ok(()), "what has failed changes no map state");
        task
    }

    fn give_up(&mut self) {
        let Self { buffer, execution, .. } = self;
        self.is_over = true;
        buffer.0.change(|core, routes| {
            let aborted = execution.give_up(routes, &mut core.state);
            buffer.0.record(|| aborted);
        });
    }

    fn core(&self) -> &BufferInner {
        &self.buffer.0
    }

    fn allocate(&mut self, arena: ArenaId) -> Task {
        let step = Step::Allocate { arena };
        let object = self.core().platform.arena(arena);
        self.core().platform.counters().count(Operation::Alloc);
        let allocated = guard(|| object.alloc(self.core().len));
        match self.storage_result(arena, None, allocated) {
            Ok(NewBlock { block, host }) => {
                self.stored(step, arena, Storage::new(block, host, FreeOrder::Root))
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
        let platform = &self.core().platform;
        let object = platform.arena(arena);
        platform.counters().count(Operation::Bind);
        let bound = guard(|| object.bind(&backing));
        let bound = self.storage_result(arena, Some(&backing), bound);
        quietly(backing);
        match bound {
            Ok(NewBlock { block, host }) => {
                let mut storage = Storage::new(block, host, FreeOrder::Member);
                let platform = &self.core().platform;
                if platform.desc(arena).native == platform.desc(root).native {
                    storage.root_host = root_host;
                }
                self.stored(step, arena, storage)
            }
            Err(error) => self.step_failed(step, (error, Report::Failed)),
        }
    }

    /// A step has made storage.
    fn stored(&mut self, step: Step, arena: ArenaId, storage: Storage) -> Task {
        let (reported, task) = self.turn(|turn| {
            turn.core.put(arena, storage);
            turn.report(step, Report::Done)
        });
        debug_assert_eq!(reported, Ok(()), "storage changes no map state");
        task
    }

    /// The block that an arena has made, if it is what was asked for.
    fn storage_result(
        &self,
        arena: ArenaId,
        backing: Option<&Backing>,
        result: Result<Result<NewBlock, AllocError>, Arc<str>>,
    ) -> Result<NewBlock, AcquireError> {
        let name = self.core().arena_name(arena);
        let (needed_bytes, align) = (self.core().len, self.core().platform.desc(arena).alloc_align);
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
            // The length is the arena's word, and asking for it its code.
            if guard(|| new.block.len()).is_ok_and(|bytes| bytes >= needed_bytes) {
                return Ok(new);
            }
            self.give_back(arena, new);
            Err(AllocError::OutOfMemory { arena: name.name.clone(), bytes: needed_bytes })
        });
        let (buffer, arena_name) = (self.core().name(), name.clone());
        let new = result.map_err(|cause| AcquireError::Alloc { buffer, arena: arena_name, cause })?;
        // Whoever keeps something of the memory could write under somebody's view.
        if new.host.as_ref().is_some_and(HostMemory::is_lent) {
            self.give_back(arena, new);
            let buffer = self.core().name();
            return Err(AcquireError::ArenaContract { buffer, arena: name, breach: Breach::StillLent });
        }
        let bytes = new.host.as_ref().map_or(needed_bytes, HostMemory::len);
        let is_aligned =
            new.host.as_ref().is_none_or(|host| (host.span().as_ptr().addr() as u64).is_multiple_of(align));
        // Bound storage is aligned as the root's is.
        if bytes < needed_bytes || (!is_aligned && needed_bytes > 0 && backing.is_none()) {
            self.give_back(arena, new);
            let (buffer, breach) = (self.core().name(), Breach::HostMemory { bytes, needed_bytes });
            return Err(AcquireError::ArenaContract { buffer, arena: name, breach });
        }
        Ok(new)
    }

    fn give_back(&self, arena: ArenaId, NewBlock { block, host }: NewBlock) {
        quietly(host);
        free(&self.core().platform, arena, block);
    }

    fn map(
        &mut self,
        (arena, device, target): (ArenaId, DeviceId, MapState),
        block: BlockRef,
        mut host: Option<HostMemory>,
    ) -> Task {
        let step = Step::Map { arena, device, target };
        let platform = &self.core().platform;
        let (object, native) = (platform.arena(arena), device == platform.desc(arena).native);
        platform.counters().count(if native { Operation::Unmap } else { Operation::Map });
        let report = guard(|| match native {
            true => object.unmap(UnmapRequest::scheduled(&block, target, &mut host)),
            false => object.map(MapRequest::scheduled(&block, device, target, &mut host)),
        });
        let report = report.unwrap_or_else(|message| Err(TransferError::Panicked { message }));
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
        let (bytes, needed_bytes) = (host.as_ref().map_or(u64::MAX, HostMemory::len), self.core().len);
        let (buffer, name) = (self.core().name(), self.core().arena_name(arena));
        let contract =
            |breach| AcquireError::ArenaContract { buffer: buffer.clone(), arena: name.clone(), breach };
        let (report, error) = match mapped {
            Err(TransferError::StillLent) => {
                self.core().wedge_lent();
                (Report::Broken, Some(contract(Breach::StillLent)))
            }
            _ if is_other => (Report::Broken, Some(contract(Breach::OtherMemory))),
            _ if bytes < needed_bytes => {
                (Report::Broken, Some(contract(Breach::HostMemory { bytes, needed_bytes })))
            }
            Err(cause) => {
                let (buffer, arena) = (buffer.clone(), name.clone());
                (Report::Failed, Some(AcquireError::MapFailed { buffer, arena, device, cause }))
            }
            Ok(state) => (Report::Mapped(state), None),
        };
        if let Some(error) = error {
            self.failed(error);
        }
        let ((reported, left_over), task) = self.turn(|turn| {
            let left_over = turn.core.take_mapping(arena, host);
            (turn.report(step, report), left_over)
        });
        quietly(left_over);
        if let Err(breach) = reported {
            let (buffer, arena) = (self.core().name(), self.core().arena_name(breach.arena));
            let breach = Breach::Access { device: breach.device };
            self.failed(AcquireError::ArenaContract { buffer, arena, breach });
        }
        task
    }

    fn copy(&mut self, copy: CopyOp, CopyEnds { from, to, map_changes }: CopyEnds) -> Task {
        let (platform, span) = (&self.core().platform, copy.span);
        let (begun, loan) = (Instant::now(), Loan::default());
        let source = copy.from().zip(from.as_ref()).map(|(arena, end)| (arena, end.block.clone()));
        let ends: Ends = source.into_iter().chain([(copy.to, to.block.clone())]).collect();
        let job_end = |arena: ArenaId, end: End| JobEnd {
            arena: platform.arena(arena).clone(),
            name: platform.desc(arena).name.clone(),
            block: end.block,
            host: end.host,
        };
        let started = match (copy.kind, from) {
            (CopyKind::Bytes { from: source, link, .. }, Some(from)) => {
                let (from, to) = (job_end(source, from), job_end(copy.to, to));
                let job = CopyJob::new(from, to, span, platform, &loan);
                guard(|| platform.cross_arena(link).copy(job))
            }
            _ => {
                platform.counters().count(Operation::Fill);
                let fill = Fill::scheduled(&to.block, span, 0, &loan);
                drop(to);
                guard(|| platform.arena(copy.to).fill(fill))
            }
        };
        match started.unwrap_or_else(|message| Err(TransferError::Panicked { message })) {
            Ok(fence) => {
                self.pending
                    .push_back(Pending { fence, rest: Ended { copy, loan, begun, ends, map_changes } });
                self.next()
            }
            Err(cause) => {
                let cause = if loan.is_out() { TransferError::StillLent } else { cause };
                self.step_failed(Step::Copy(copy), self.failure(&copy, cause))
            }
        }
    }

    /// The end of a copy that is lost, for people to read; the destination where none is.
    fn lost_end(&self, copy: &CopyOp) -> ArenaId {
        let is_lost = |arena: &ArenaId| self.core().read(|core| core.state.arena(*arena).is_lost());
        copy.from().filter(is_lost).unwrap_or(copy.to)
    }

    /// A copy has ended, well or not.
    fn ended(&mut self, ended: Ended, result: Result<u64, TransferError>) -> Task {
        let Ended { copy, begun, loan, ends, map_changes } = ended;
        let (step, requested_bytes) = (Step::Copy(copy), copy.span.len());
        let mut moved = result.and_then(|done_bytes| moved_all(requested_bytes, done_bytes));
        if loan.is_out() {
            moved = Err(TransferError::StillLent);
        }
        if let Err(cause) = moved {
            return self.step_failed(step, self.failure(&copy, cause));
        }
        let found = self.map_states(ends);
        // The bytes are there, unless the copy has changed a map state on the way.
        let (changed, task) = self.turn(|turn| {
            // Another plan may be changing one now, or have done so since the arenas were asked, by right.
            let is_telling = turn.core.map_changes == map_changes;
            let changed = found.iter().filter(|_| is_telling).find_map(|&(arena, found)| {
                let known = turn.core.settled_map(arena).filter(|known| *known != found)?;
                Some((arena, known, found))
            });
            let report = if changed.is_none() { Report::Done } else { Report::Broken };
            let reported = turn.report(step, report);
            debug_assert_eq!(reported, Ok(()), "a copy changes no map state");
            changed
        });
        match changed {
            None => {
                if let CopyKind::Bytes { link, .. } = copy.kind {
                    let counters = self.core().platform.counters();
                    counters.count_transfer(link, requested_bytes, begun.elapsed());
                }
            }
            Some((arena, known, found)) => {
                let (buffer, arena) = (self.core().name(), self.core().arena_name(arena));
                let breach = Breach::MapChanged { known, found };
                self.failed(AcquireError::ArenaContract { buffer, arena, breach });
            }
        }
        task
    }

    /// What the arenas of a copy say of their map states, as far as they can tell.
    fn map_states(&self, ends: Ends) -> SmallVec<[(ArenaId, MapState); 2]> {
        let platform = &self.core().platform;
        let told = ends.into_iter().filter_map(|(arena, block)| {
            let found = guard(|| platform.arena(arena).map_state(&block)).unwrap_or_default();
            quietly(block);
            Some((arena, found?))
        });
        told.collect()
    }

    /// The error of a copy that failed, and what is to be reported of it.
    fn failure(&self, copy: &CopyOp, cause: TransferError) -> (AcquireError, Report) {
        let buffer = self.core().name();
        let to = self.core().arena_name(copy.to);
        let from = copy.from().map_or_else(|| to.clone(), |from| self.core().arena_name(from));
        let (arena, breach) = match &cause {
            TransferError::Infeasible => {
                return (AcquireError::Busy { buffer, reason: BusyReason::ArenaInUse }, Report::Failed);
            }
            // The host's own memory is copied by core: it is the other end that was asked.
            TransferError::StillLent => {
                self.core().wedge_lent();
                let is_hosts = self.core().platform.host() == Some(self.core().platform.desc(copy.to).native);
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

/// The buffer, locked, on behalf of a plan.
struct Turn<'a> {
    buffer: &'a BufferInner,
    core: &'a mut Core,
    routes: &'a dyn Routes,
    execution: &'a mut Execution,
    origin: &'static Location<'static>,
}

impl Turn<'_> {
    fn report(&mut self, step: Step, report: Report) -> Result<(), ContractBreach> {
        let Self { buffer, core, routes, execution, .. } = self;
        let event = execution.report(*routes, &mut core.state, step, report)?;
        buffer.record(|| event);
        Ok(())
    }

    /// Begins what comes next, and takes what it needs of the buffer's storage.
    fn next(&mut self) -> Task {
        loop {
            return match self.execution.next(&mut self.core.state) {
                Next::Do(Step::Allocate { arena }) => Task::Allocate(arena),
                Next::Do(Step::Bind { arena, root, concurrency }) => {
                    let (backing, root_host) = self.core.backing(root, self.buffer.len);
                    Task::Bind((arena, root, concurrency), backing, root_host)
                }
                Next::Do(Step::Map { arena, device, target }) => {
                    let stays = is_host_in(&self.buffer.platform, target);
                    let (block, host) = self.core.lend_mapping(arena, stays);
                    Task::Map((arena, device, target), block, host)
                }
                Next::Do(Step::Copy(copy)) => {
                    self.buffer.record(|| copy.begun());
                    if let CopyKind::Refresh { .. } = copy.kind {
                        // The map state has changed: the bytes are there.
                        let reported = self.report(Step::Copy(copy), Report::Done);
                        debug_assert_eq!(reported, Ok(()), "a copy changes no map state");
                        continue;
                    }
                    Task::Copy(copy, self.ends(&copy))
                }
                Next::Refused(copy, refusal) => Task::Refused(copy, refusal),
                Next::Wait => Task::Wait,
                Next::Finish => Task::Finished(self.finish()),
                Next::GiveUp => Task::GiveUp,
            };
        }
    }

    fn finish(&mut self) -> Result<Option<Handout>, Refusal> {
        let grant = self.execution.owner();
        match self.execution.finish(self.routes, &mut self.core.state) {
            Ok(finished) => {
                self.buffer.record(|| finished.event());
                let Finished::Granted(entry) = finished else { return Ok(None) };
                let storage = Some(entry.arena).filter(|_| !entry.claims.is_empty());
                Ok(self.buffer.hand_out(self.core, grant, storage, self.origin))
            }
            Err(refusal) => {
                self.buffer.record(|| EventKind::Aborted { owner: grant });
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
        CopyEnds { from, to: self.end(copy.to, target_via), map_changes: self.core.map_changes }
    }

    /// The storage of an arena that is reached through a device. As one of its remote devices, the host sees a mapping.
    fn end(&mut self, arena: ArenaId, via: Option<DeviceId>) -> End {
        let platform = &self.buffer.platform;
        let is_mapped =
            via.is_some_and(|via| via != platform.desc(arena).native && platform.host() == Some(via));
        self.core.end_via(arena, is_mapped)
    }
}

fn is_host_in(platform: &Platform, state: MapState) -> bool {
    platform.host().is_some_and(|host| state.remotes().contains(host))
}

/// A poll that panicked has ended in failure.
fn panicked(message: Arc<str>) -> Poll<Result<u64, TransferError>> {
    Poll::Ready(Err(TransferError::Panicked { message }))
}

/// Gives a plan up when it is dropped, whatever panics before.
struct GivenUp<'a>(&'a mut Run);

impl Drop for GivenUp<'_> {
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
        let given_up = GivenUp(self);
        for Pending { fence, rest } in std::mem::take(&mut given_up.0.pending) {
            let ended = guard(|| fence.wait());
            let ended = ended.unwrap_or_else(|message| Err(TransferError::Panicked { message }));
            let _: Task = given_up.0.ended(rest, ended);
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Run").field(&self.execution).finish()
    }
}

impl Core {
    /// The storage of an arena for a block of another, and the same as its own device sees it.
    fn backing(&mut self, root: ArenaId, len: u64) -> (Backing, Option<Shared>) {
        let storage = self.storage(root).expect("a plan uses only arenas with storage (I-5)");
        let host = storage.native_host();
        (Backing::root(&storage.block, len, host.as_ref()), host)
    }

    /// The storage of an arena that a plan uses, as the host sees it by a mapping where `is_mapped`. Who does not need the
    /// mapping has none of its memory: it may end beside them.
    fn end_via(&mut self, arena: ArenaId, is_mapped: bool) -> End {
        let storage = self.storage(arena).expect("a plan uses only arenas with storage (I-5)");
        let host = if is_mapped { storage.host_view() } else { storage.native_host() };
        End { block: storage.block.clone(), host }
    }

    /// An arena's block, and the memory of its mapping, which the arena may need back. Where the host keeps its access, copies
    /// that are under way go on seeing it.
    fn lend_mapping(&mut self, arena: ArenaId, host_stays: bool) -> (BlockRef, Option<HostMemory>) {
        self.map_changes += 1;
        let storage = self.storage(arena).expect("a plan uses only arenas with storage (I-5)");
        let mapped = storage.mapped.take();
        storage.shown = mapped.as_ref().filter(|_| host_stays).map(HostMemory::share);
        (storage.block.clone(), mapped)
    }

    /// Takes the memory of a mapping over; what is not needed any more, to be dropped without the lock.
    fn take_mapping(
        &mut self,
        arena: ArenaId,
        host: Option<HostMemory>,
    ) -> (Option<HostMemory>, Option<Owner>) {
        self.map_changes += 1;
        match self.storage(arena) {
            // What core has lent itself ends here: the next to change the map state may come as soon as the lock is free.
            Some(storage) => {
                let shown = storage.shown.take().map(|shown| shown.owner());
                (std::mem::replace(&mut storage.mapped, host), shown)
            }
            None => (host, None),
        }
    }

    /// The map state of an arena, unless somebody changes it now.
    fn settled_map(&self, arena: ArenaId) -> Option<MapState> {
        let state = self.state.arena(arena);
        (state.transition.is_none() && state.alloc.is_allocated() && !state.is_lost()).then_some(state.map)
    }
}

/// Returns a block to its arena. One that panics over it has lost the block; the buffer goes on without it, and whoever
/// released the last grant is not to blame.
pub(crate) fn free(platform: &Platform, arena: ArenaId, block: BlockRef) {
    let _ = guard(|| platform.arena(arena).free(block));
}

/// Drops what belongs to somebody else: a destructor that panics is its own failure and nobody's here.
pub(crate) fn quietly<T>(theirs: T) {
    let _ = guard(|| drop(theirs));
}

/// Runs code of somebody else; a panic becomes its message.
pub(crate) fn guard<R>(call: impl FnOnce() -> R) -> Result<R, Arc<str>> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic_text(&*panic).into();
        // What was panicked with may panic when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
        text
    })
}
