//! Carries plans out on the arenas. The only caller of allocations, map changes and copies.
//!
//! Runs without the buffer's lock; what it may touch is reserved by the plan. Copies are started in order and waited
//! for once, except where a later step depends on an earlier copy. A failure, a short copy or a panic in arena code
//! ends the plan: the bytes that were to arrive stay invalid, everything completed stays, reservations are undone.

use crate::arena::{BlockRef, Fence};
use crate::buffer::{BufferInner, Core, FreeOrder, Storage};
use crate::cross_arena::{CopyEnd, CopyJob};
use crate::error::{AcquireError, AllocError, BusyReason, TransferError};
use crate::host::HostSpan;
use crate::id::{ArenaId, DeviceId};
use crate::platform::Platform;
use crate::record::{EventKind, Operation};
use crate::state::{CopyKind, CopyOp, MapState, Step, SyncPlan};
use crate::sync::Arc;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Carries out `plan`; on an error the plan has been aborted.
pub(crate) fn run(buffer: &BufferInner, plan: &SyncPlan) -> Result<(), AcquireError> {
    let mut run = Run { buffer, plan, pending: Vec::new() };
    let outcome = plan.steps.iter().try_for_each(|step| run.step(step)).and_then(|()| run.wait_all());
    outcome.inspect_err(|_| {
        // Copies already under way must end before their arenas are unpinned; those that succeed count.
        while !run.pending.is_empty() {
            let _ = run.wait_all();
        }
        buffer.change(|core, routes| {
            core.state.abort(routes, plan.owner);
            buffer.record(|| EventKind::Aborted { owner: plan.owner });
        });
    })
}

struct Run<'a> {
    buffer: &'a BufferInner,
    plan: &'a SyncPlan,
    pending: Vec<Pending>,
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

impl Run<'_> {
    fn step(&mut self, step: &Step) -> Result<(), AcquireError> {
        match *step {
            Step::Allocate { arena } => self.allocate(arena),
            Step::Bind { arena, root, .. } => {
                // A copy still running may not be allowed beside others under the rules that come with the binding.
                self.wait_all()?;
                self.bind(arena, root, step)
            }
            Step::Map { arena, device, target } => {
                // A copy still running may need the access that is about to change.
                self.wait_all()?;
                self.map(arena, device, target)
            }
            Step::Copy(copy) => {
                let depends = |pending: &Pending| {
                    Some(pending.copy.to) == copy.from() && pending.copy.span.overlaps(copy.span)
                };
                if self.pending.iter().any(depends) {
                    self.wait_all()?;
                }
                self.copy(copy)
            }
        }
    }

    fn allocate(&mut self, arena: ArenaId) -> Result<(), AcquireError> {
        let object = self.buffer.platform.arena(arena);
        self.buffer.platform.counters().count(Operation::Alloc);
        let allocated = guard(|| object.alloc(self.buffer.len));
        let block = self.storage_result(arena, allocated)?;
        self.buffer.change(|core, _| {
            core.put(arena, block, FreeOrder::Root);
            core.state.allocated(arena);
            self.buffer.record(|| EventKind::Allocated { arena, root: None });
        });
        Ok(())
    }

    fn bind(&mut self, arena: ArenaId, root: ArenaId, step: &Step) -> Result<(), AcquireError> {
        let Step::Bind { concurrency, .. } = *step else { unreachable!("called for a bind step") };
        let root_block = self.end(root).block;
        let object = self.buffer.platform.arena(arena);
        self.buffer.platform.counters().count(Operation::Bind);
        let bound = guard(|| object.bind(&root_block));
        let block = self.storage_result(arena, bound)?;
        self.buffer.change(|core, routes| {
            core.put(arena, block, FreeOrder::Member);
            core.state.bound(routes, arena, root, concurrency);
            self.buffer.record(|| EventKind::Allocated { arena, root: Some(root) });
        });
        Ok(())
    }

    fn storage_result(
        &self,
        arena: ArenaId,
        result: Result<Result<BlockRef, AllocError>, Arc<str>>,
    ) -> Result<BlockRef, AcquireError> {
        let name = self.buffer.arena_name(arena);
        let panicked = |message| Err(AllocError::Panicked { arena: name.name.clone(), message });
        let result = result.unwrap_or_else(panicked).and_then(|block| {
            let bytes = block.len();
            if bytes >= self.buffer.len {
                return Ok(block);
            }
            free(&self.buffer.platform, arena, block);
            Err(AllocError::OutOfMemory { arena: name.name.clone(), bytes: self.buffer.len })
        });
        result.map_err(|cause| AcquireError::Alloc { buffer: self.buffer.id, arena: name, cause })
    }

    fn map(&mut self, arena: ArenaId, device: DeviceId, target: MapState) -> Result<(), AcquireError> {
        let platform = &self.buffer.platform;
        let object = platform.arena(arena);
        let block = self.end(arena).block;
        let native = device == object.desc().native;
        platform.counters().count(if native { Operation::Unmap } else { Operation::Map });
        let report =
            guard(|| if native { object.unmap(&block, target) } else { object.map(&block, device, target) });
        let report =
            report.unwrap_or_else(|message| Err(TransferError::Panicked { message })).map_err(|cause| {
                let (buffer, arena) = (self.buffer.id, self.buffer.arena_name(arena));
                AcquireError::MapFailed { buffer, arena, device, cause }
            })?;
        let accepted = self.buffer.change(|core, routes| {
            let accepted = core.state.mapped(routes, self.plan.owner, (arena, device, target), report.state);
            if let Some(storage) = core.storage(arena) {
                storage.mapped = report.host;
            }
            self.buffer.record(|| EventKind::Mapped { arena, device });
            accepted
        });
        accepted.map_err(|breach| AcquireError::ArenaContract {
            buffer: self.buffer.id,
            arena: self.buffer.arena_name(breach.arena),
            device: breach.device,
        })
    }

    fn copy(&mut self, copy: CopyOp) -> Result<(), AcquireError> {
        let (platform, span) = (&self.buffer.platform, copy.span);
        if matches!(copy.kind, CopyKind::Refresh { .. }) {
            self.buffer.change(|core, routes| {
                core.state.started(copy.id);
                core.state.copied(routes, copy.id);
                self.record_copy(&copy, false);
                self.record_copy(&copy, true);
            });
            return Ok(());
        }
        let (from, to) = self.buffer.change(|core, _| {
            core.state.started(copy.id);
            self.record_copy(&copy, false);
            (copy.from().map(|from| core.end(from)), core.end(copy.to))
        });
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
        self.pending.push(Pending { copy, fence: fence.map_err(|cause| self.failure(&copy, cause))?, begun });
        Ok(())
    }

    /// Waits for every copy under way; the first failure is the result, the others still count.
    fn wait_all(&mut self) -> Result<(), AcquireError> {
        let mut result = Ok(());
        for Pending { copy, fence, begun } in std::mem::take(&mut self.pending) {
            let waited =
                guard(|| fence.wait()).unwrap_or_else(|message| Err(TransferError::Panicked { message }));
            let requested_bytes = copy.span.len();
            let arrived = waited.and_then(|done_bytes| {
                let short = TransferError::Short { requested_bytes, done_bytes };
                if done_bytes < requested_bytes { Err(short) } else { Ok(()) }
            });
            match arrived {
                Ok(()) => {
                    if let CopyKind::Bytes { link, .. } = copy.kind {
                        let counters = self.buffer.platform.counters();
                        counters.count_transfer(link, requested_bytes, begun.elapsed());
                    }
                    self.buffer.change(|core, routes| {
                        core.state.copied(routes, copy.id);
                        self.record_copy(&copy, true);
                    });
                }
                Err(cause) => result = result.and(Err(self.failure(&copy, cause))),
            }
        }
        result
    }

    fn failure(&self, copy: &CopyOp, cause: TransferError) -> AcquireError {
        let buffer = self.buffer.id;
        if cause == TransferError::Infeasible {
            return AcquireError::Busy { buffer, reason: BusyReason::ArenaInUse };
        }
        let to = self.buffer.arena_name(copy.to);
        let from = copy.from().map_or_else(|| to.clone(), |from| self.buffer.arena_name(from));
        AcquireError::CopyFailed { buffer, from, to, span: copy.span, cause }
    }

    fn record_copy(&self, copy: &CopyOp, done: bool) {
        let (owner, from, to, span) = (copy.id.owner, copy.from(), copy.to, copy.span);
        self.buffer.record(|| match done {
            true => EventKind::CopyDone { owner, from, to, span },
            false => EventKind::CopyStarted { owner, from, to, span },
        });
    }

    fn end(&self, arena: ArenaId) -> End {
        self.buffer.change(|core, _| core.end(arena))
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
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "a panic without a message".to_owned()).into()
    })
}
