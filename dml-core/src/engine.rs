//! Carries plans out on the arenas. The only caller of allocations, map changes and copies.
//!
//! Runs without the buffer's lock; what it may touch is reserved by the plan. Copies are started in order and waited
//! for once, except where a later step depends on an earlier copy; a future awaits them where their arena can tell. A failure, a short copy or a panic in arena code
//! ends the plan: the bytes that were to arrive stay invalid, everything completed stays, reservations are undone. The
//! arenas are then asked whether a device is gone, which is declared before the requester hears of the failure.

use crate::arena::{BlockRef, Concurrency, Fence};
use crate::buffer::{BufferInner, Core, FreeOrder, RawBuffer, Storage};
use crate::cross_arena::{CopyEnd, CopyJob};
use crate::error::{AcquireError, AllocError, BusyReason, TransferError, panic_text};
use crate::host::HostSpan;
use crate::id::{ArenaId, DeviceId, GrantId, KernelId};
use crate::platform::Platform;
use crate::record::{EventKind, Operation};
use crate::state::{CopyKind, CopyOp, MapState, Step, SyncPlan};
use crate::sync::Arc;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, Waker};
use std::time::Instant;

/// A plan being carried out. One that is dropped half way is given up: what is under way ends first.
pub(crate) struct Run {
    buffer: RawBuffer,
    plan: SyncPlan,
    /// The step to come.
    next: usize,
    pending: VecDeque<Pending>,
    /// The first thing that went wrong.
    failed: Option<AcquireError>,
    /// Whether the machine knows how it ended.
    is_over: bool,
}

struct Pending {
    copy: CopyOp,
    fence: Fence,
    begun: Instant,
}

/// What a copy needs of the buffer's storage, taken under the lock.
struct End {
    block: BlockRef,
    host: Option<HostSpan>,
}

impl Run {
    pub(crate) fn new(buffer: &RawBuffer, plan: SyncPlan) -> Self {
        let (buffer, pending) = (buffer.clone(), VecDeque::new());
        Self { buffer, plan, next: 0, pending, failed: None, is_over: false }
    }

    /// Carries the plan out on this thread; on an error it has been aborted.
    pub(crate) fn wait(mut self) -> Result<(), AcquireError> {
        match self.advance(None) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("without a waker every copy is waited for"),
        }
    }

    /// Goes on until a copy has to be awaited, of whose end `waker` is told; on an error the plan has been aborted. Without
    /// a waker copies are waited for.
    pub(crate) fn advance(&mut self, waker: Option<&Waker>) -> Poll<Result<(), AcquireError>> {
        loop {
            let step = self.plan.steps.get(self.next).copied().filter(|_| self.failed.is_none());
            if self.waits_for_copies(step)
                && let Some(pending) = self.pending.front_mut()
            {
                // Copies already under way end before their arenas are unpinned; those that succeed count.
                let ended = guard(|| pending.end(waker));
                let ended = match ended
                    .unwrap_or_else(|message| Poll::Ready(Err(TransferError::Panicked { message })))
                {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ended) => ended,
                };
                if let Some(Pending { copy, begun, fence }) = self.pending.pop_front() {
                    // One that panicked when it was polled may do so again.
                    let _ = guard(|| drop(fence));
                    self.ended(&copy, begun, ended);
                }
                continue;
            }
            let Some(step) = step else { break };
            self.next += 1;
            if let Err(error) = self.step(&step) {
                self.fail(error);
            }
        }
        self.is_over = true;
        match self.failed.take() {
            None => Poll::Ready(Ok(())),
            Some(error) => {
                drop(GivenUp(self.buffer.clone(), self.plan.owner));
                Poll::Ready(Err(error))
            }
        }
    }

    /// Whether the copies under way have to end before `step`; before the end of the plan, and once something has failed,
    /// they have to.
    fn waits_for_copies(&self, step: Option<Step>) -> bool {
        match step {
            // A copy still running may need the access that is about to change, or may not be allowed beside others under
            // the rules that come with a binding.
            None | Some(Step::Map { .. } | Step::Bind { .. }) => true,
            Some(Step::Copy(copy)) => self
                .pending
                .iter()
                .any(|pending| Some(pending.copy.to) == copy.from() && pending.copy.span.overlaps(copy.span)),
            Some(Step::Allocate { .. }) => false,
        }
    }

    fn core(&self) -> &BufferInner {
        &self.buffer.0
    }

    fn step(&mut self, step: &Step) -> Result<(), AcquireError> {
        match *step {
            Step::Allocate { arena } => self.allocate(arena),
            Step::Bind { arena, root, concurrency } => self.bind(arena, root, concurrency),
            Step::Map { arena, device, target } => self.map(arena, device, target),
            Step::Copy(copy) => self.copy(copy),
        }
    }

    fn allocate(&mut self, arena: ArenaId) -> Result<(), AcquireError> {
        let object = self.core().platform.arena(arena);
        self.core().platform.counters().count(Operation::Alloc);
        let allocated = guard(|| object.alloc(self.core().len));
        let block = self.storage_result(arena, allocated)?;
        self.core().change(|core, _| {
            core.put(arena, block, FreeOrder::Root);
            core.state.allocated(arena);
            self.core().record(|| EventKind::Allocated { arena, root: None });
        });
        Ok(())
    }

    fn bind(&mut self, arena: ArenaId, root: ArenaId, concurrency: Concurrency) -> Result<(), AcquireError> {
        let root_block = self.end(root).block;
        let object = self.core().platform.arena(arena);
        self.core().platform.counters().count(Operation::Bind);
        let bound = guard(|| object.bind(&root_block));
        let block = self.storage_result(arena, bound)?;
        self.core().change(|core, routes| {
            core.put(arena, block, FreeOrder::Member);
            core.state.bound(routes, arena, root, concurrency);
            self.core().record(|| EventKind::Allocated { arena, root: Some(root) });
        });
        Ok(())
    }

    fn storage_result(
        &self,
        arena: ArenaId,
        result: Result<Result<BlockRef, AllocError>, Arc<str>>,
    ) -> Result<BlockRef, AcquireError> {
        let name = self.core().arena_name(arena);
        let panicked = |message| Err(AllocError::Panicked { arena: name.name.clone(), message });
        let result = result.unwrap_or_else(panicked).and_then(|block| {
            let bytes = block.len();
            if bytes >= self.core().len {
                return Ok(block);
            }
            free(&self.core().platform, arena, block);
            Err(AllocError::OutOfMemory { arena: name.name.clone(), bytes: self.core().len })
        });
        result.map_err(|cause| AcquireError::Alloc { buffer: self.core().id, arena: name, cause })
    }

    fn map(&mut self, arena: ArenaId, device: DeviceId, target: MapState) -> Result<(), AcquireError> {
        let platform = &self.core().platform;
        let object = platform.arena(arena);
        let block = self.end(arena).block;
        let native = device == object.desc().native;
        platform.counters().count(if native { Operation::Unmap } else { Operation::Map });
        let report =
            guard(|| if native { object.unmap(&block, target) } else { object.map(&block, device, target) });
        let report =
            report.unwrap_or_else(|message| Err(TransferError::Panicked { message })).map_err(|cause| {
                let (buffer, arena) = (self.core().id, self.core().arena_name(arena));
                AcquireError::MapFailed { buffer, arena, device, cause }
            })?;
        let accepted = self.core().change(|core, routes| {
            let accepted = core.state.mapped(routes, self.plan.owner, (arena, device, target), report.state);
            if let Some(storage) = core.storage(arena) {
                storage.mapped = report.host;
            }
            self.core().record(|| EventKind::Mapped { arena, device });
            accepted
        });
        accepted.map_err(|breach| AcquireError::ArenaContract {
            buffer: self.core().id,
            arena: self.core().arena_name(breach.arena),
            device: breach.device,
        })
    }

    fn copy(&mut self, copy: CopyOp) -> Result<(), AcquireError> {
        let (platform, span) = (&self.core().platform, copy.span);
        let refresh = matches!(copy.kind, CopyKind::Refresh { .. });
        let ends = self.core().change(|core, routes| {
            core.state.started(copy.id)?;
            self.record_copy(&copy, false);
            if refresh {
                core.state.copied(routes, copy.id);
                self.record_copy(&copy, true);
            }
            Ok((copy.from().map(|from| core.end(from)), core.end(copy.to)))
        });
        let (from, to) = ends.map_err(|refusal| {
            self.core().refused(refusal, Some((KernelId::default(), self.lost_end(&copy))))
        })?;
        if refresh {
            return Ok(());
        }
        let begun = Instant::now();
        let target = platform.arena(copy.to);
        let started = guard(|| match (copy.kind, &from) {
            (CopyKind::Bytes { from: source, link, .. }, Some(from)) => {
                let ends = |arena: ArenaId, end: &End| (platform.arena(arena).clone(), end.block.clone());
                let (source_arena, source_block) = ends(source, from);
                let job = CopyJob::new(
                    CopyEnd { arena: &*source_arena, block: &source_block, host: from.host.as_ref() },
                    CopyEnd { arena: &**target, block: &to.block, host: to.host.as_ref() },
                    span,
                    platform.counters(),
                );
                platform.cross_arena(link).copy(&job)
            }
            _ => {
                platform.counters().count(Operation::Fill);
                target.fill(&to.block, span, 0)
            }
        });
        let fence = started.unwrap_or_else(|message| Err(TransferError::Panicked { message }));
        self.pending.push_back(Pending {
            copy,
            fence: fence.map_err(|cause| self.failure(&copy, cause))?,
            begun,
        });
        Ok(())
    }

    /// The end of a copy that is lost, for people to read; the destination where none is.
    fn lost_end(&self, copy: &CopyOp) -> ArenaId {
        let is_lost = |arena: &ArenaId| self.core().change(|core, _| core.state.arena(*arena).is_lost());
        copy.from().filter(is_lost).unwrap_or(copy.to)
    }

    /// A copy has ended, well or not.
    fn ended(&mut self, copy: &CopyOp, begun: Instant, ended: Result<u64, TransferError>) {
        let requested_bytes = copy.span.len();
        let arrived = ended.and_then(|done_bytes| {
            let short = TransferError::Short { requested_bytes, done_bytes };
            if done_bytes < requested_bytes { Err(short) } else { Ok(()) }
        });
        match arrived {
            Ok(()) => {
                if let CopyKind::Bytes { link, .. } = copy.kind {
                    let counters = self.core().platform.counters();
                    counters.count_transfer(link, requested_bytes, begun.elapsed());
                }
                self.core().change(|core, routes| {
                    core.state.copied(routes, copy.id);
                    self.record_copy(copy, true);
                });
            }
            Err(cause) => {
                let error = self.failure(copy, cause);
                self.fail(error);
            }
        }
    }

    /// Something went wrong. Where that is because a device is gone, every buffer knows before anybody hears of it, and
    /// before the plan is given up: who waits behind it is not let in to a memory that is gone.
    fn fail(&mut self, error: AcquireError) {
        self.core().platform.notice_losses();
        self.failed.get_or_insert(error);
    }

    fn failure(&self, copy: &CopyOp, cause: TransferError) -> AcquireError {
        let buffer = self.core().id;
        if cause == TransferError::Infeasible {
            return AcquireError::Busy { buffer, reason: BusyReason::ArenaInUse };
        }
        let to = self.core().arena_name(copy.to);
        let from = copy.from().map_or_else(|| to.clone(), |from| self.core().arena_name(from));
        AcquireError::CopyFailed { buffer, from, to, span: copy.span, cause }
    }

    fn record_copy(&self, copy: &CopyOp, done: bool) {
        let (owner, from, to, span) = (copy.id.owner, copy.from(), copy.to, copy.span);
        self.core().record(|| match done {
            true => EventKind::CopyDone { owner, from, to, span },
            false => EventKind::CopyStarted { owner, from, to, span },
        });
    }

    fn end(&self, arena: ArenaId) -> End {
        self.core().change(|core, _| core.end(arena))
    }
}

impl Pending {
    fn end(&mut self, waker: Option<&Waker>) -> Poll<Result<u64, TransferError>> {
        match waker {
            Some(waker) => self.fence.poll(waker),
            None => Poll::Ready(std::mem::replace(&mut self.fence, Fence::done(0)).wait()),
        }
    }
}

/// Gives a plan up when it is dropped, whatever panics before.
struct GivenUp(RawBuffer, GrantId);

impl Drop for GivenUp {
    fn drop(&mut self) {
        let Self(buffer, owner) = self;
        buffer.0.change(|core, routes| {
            core.state.abort(routes, *owner);
            buffer.0.record(|| EventKind::Aborted { owner: *owner });
        });
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let _given_up = GivenUp(self.buffer.clone(), self.plan.owner);
        for Pending { copy, fence, begun } in std::mem::take(&mut self.pending) {
            let ended = guard(|| fence.wait());
            self.ended(
                &copy,
                begun,
                ended.unwrap_or_else(|message| Err(TransferError::Panicked { message })),
            );
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} of {}", self.next, self.plan)
    }
}

impl Core {
    /// The storage of an arena that a plan uses.
    fn end(&mut self, arena: ArenaId) -> End {
        let storage = self.storage(arena).expect("a plan uses only arenas with storage (I-5)");
        let Storage { block, mapped, .. } = storage;
        End { block: block.clone(), host: mapped.clone().or_else(|| block.host()) }
    }
}

/// Returns a block to its arena. One that panics over it has lost the block; the buffer goes on without it, and whoever
/// released the last grant is not to blame.
pub(crate) fn free(platform: &Platform, arena: ArenaId, block: BlockRef) {
    let _ = guard(|| platform.arena(arena).free(block));
}

/// Runs code of an arena; a panic becomes its message.
pub(crate) fn guard<R>(call: impl FnOnce() -> R) -> Result<R, Arc<str>> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| panic_text(&*panic).into())
}
