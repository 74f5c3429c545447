//! Carries plans out on the arenas. The only caller of allocations, map changes and copies.
//!
//! Runs without the buffer's lock; what it may touch is reserved by the plan. Copies are started in order and waited
//! for once, except where a later step depends on an earlier copy; a future awaits them where their arena can tell. A failure, a short copy or a panic in arena code
//! ends the plan: the bytes that were to arrive stay invalid, everything completed stays, reservations are undone. The
//! arenas are then asked whether a device is gone, which is declared before the requester hears of the failure.

use crate::arena::{BlockRef, Concurrency, Fence, MapReport, NewBlock};
use crate::buffer::{BufferInner, Core, RawBuffer};
use crate::cross_arena::{CopyJob, JobEnd, moved_all};
use crate::error::{AcquireError, AllocError, Breach, BusyReason, TransferError, panic_text};
use crate::host::{HostMemory, Loan, Owner, Shared};
use crate::id::{ArenaId, DeviceId, GrantId, KernelId};
use crate::platform::Platform;
use crate::range::Span;
use crate::record::{EventKind, Operation};
use crate::request::{Backing, Fill, MapRequest, UnmapRequest};
use crate::state::{CopyKind, CopyOp, MapState, Step, SyncPlan};
use crate::storage::{FreeOrder, Storage};
use crate::sync::Arc;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
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
    /// The bytes that are on their way, by where they go and where they begin; those of one arena are disjoint (I-18).
    arriving: BTreeMap<(ArenaId, u64), u64>,
    /// The first thing that went wrong.
    failed: Option<AcquireError>,
    /// Whether the machine knows how it ended.
    is_over: bool,
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
    pub(crate) fn new(buffer: &RawBuffer, plan: SyncPlan) -> Self {
        let (buffer, pending, arriving) = (buffer.clone(), VecDeque::new(), BTreeMap::new());
        Self { buffer, plan, next: 0, pending, arriving, failed: None, is_over: false }
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
                if let Some(Pending { fence, rest }) = self.pending.pop_front() {
                    // One that panicked when it was polled may do so again.
                    quietly(fence);
                    self.arriving.remove(&(rest.copy.to, rest.copy.span.start()));
                    self.ended(rest, ended);
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
            Some(Step::Copy(copy)) => copy.from().is_some_and(|from| self.is_arriving(from, copy.span)),
            Some(Step::Allocate { .. }) => false,
        }
    }

    /// Whether some of the bytes are on their way to an arena.
    fn is_arriving(&self, arena: ArenaId, span: Span) -> bool {
        let before = self.arriving.range((arena, 0)..(arena, span.end())).next_back();
        before.is_some_and(|(_, end)| *end > span.start())
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
        let NewBlock { block, host } = self.storage_result(arena, None, allocated)?;
        self.core().change(|core, _| {
            core.put(arena, Storage::new(block, host, FreeOrder::Root));
            core.state.allocated(arena);
            self.core().record(|| EventKind::Allocated { arena, root: None });
        });
        Ok(())
    }

    fn bind(&mut self, arena: ArenaId, root: ArenaId, concurrency: Concurrency) -> Result<(), AcquireError> {
        let (backing, root_host) = self.core().change(|core, _| core.backing(root, self.core().len));
        let platform = &self.core().platform;
        let object = platform.arena(arena);
        platform.counters().count(Operation::Bind);
        let bound = guard(|| object.bind(&backing));
        let bound = self.storage_result(arena, Some(&backing), bound);
        quietly(backing);
        let NewBlock { block, host } = bound?;
        let mut storage = Storage::new(block, host, FreeOrder::Member);
        if platform.desc(arena).native == platform.desc(root).native {
            storage.root_host = root_host;
        }
        self.core().change(|core, routes| {
            core.put(arena, storage);
            core.state.bound(routes, arena, root, concurrency);
            self.core().record(|| EventKind::Allocated { arena, root: Some(root) });
        });
        Ok(())
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

    fn map(&mut self, arena: ArenaId, device: DeviceId, target: MapState) -> Result<(), AcquireError> {
        let platform = &self.core().platform;
        let (object, native) = (platform.arena(arena), device == platform.desc(arena).native);
        let is_host_in = |state: MapState| platform.host().is_some_and(|host| state.remotes().contains(host));
        let (block, mut host) = self.core().change(|core, _| core.lend_mapping(arena, is_host_in(target)));
        platform.counters().count(if native { Operation::Unmap } else { Operation::Map });
        let report = guard(|| match native {
            true => object.unmap(UnmapRequest::scheduled(&block, target, &mut host)),
            false => object.map(MapRequest::scheduled(&block, device, target, &mut host)),
        });
        let report = report.unwrap_or_else(|message| Err(TransferError::Panicked { message }));
        let (state, error) = match report {
            Ok(MapReport { host: Some(shown), .. }) if shown.is_lent() => {
                quietly(shown);
                (None, Some(TransferError::StillLent))
            }
            Ok(MapReport { state, host: shown }) => {
                if shown.is_some() {
                    quietly(std::mem::replace(&mut host, shown));
                }
                (Some(state), None)
            }
            Err(cause) => (None, Some(cause)),
        };
        if state.is_some_and(|state| !is_host_in(state)) {
            quietly(host.take());
        }
        let is_other = host.as_ref().is_some_and(|host| !host.is_for(&block));
        if is_other {
            quietly(host.take());
        }
        quietly(block);
        let bytes = host.as_ref().map_or(u64::MAX, HostMemory::len);
        let (accepted, left_over) = self.core().change(|core, routes| {
            let left_over = core.take_mapping(arena, host);
            let accepted = state.map(|state| {
                self.core().record(|| EventKind::Mapped { arena, device });
                core.state.mapped(routes, self.plan.owner, (arena, device, target), state)
            });
            (accepted, left_over)
        });
        quietly(left_over);
        let broken = |arena, breach| AcquireError::ArenaContract {
            buffer: self.core().name(),
            arena: self.core().arena_name(arena),
            breach,
        };
        match (accepted, error) {
            (Some(Ok(())) | None, _) if is_other => {
                self.core().wedge();
                Err(broken(arena, Breach::OtherMemory))
            }
            (Some(Ok(())) | None, _) if bytes < self.core().len => {
                let breach = Breach::HostMemory { bytes, needed_bytes: self.core().len };
                self.core().wedge();
                Err(broken(arena, breach))
            }
            (Some(Ok(())), _) => Ok(()),
            (Some(Err(breach)), _) => Err(broken(breach.arena, Breach::Access { device: breach.device })),
            (None, Some(TransferError::StillLent)) => {
                self.core().wedge_lent();
                Err(broken(arena, Breach::StillLent))
            }
            (None, cause) => Err(AcquireError::MapFailed {
                buffer: self.core().name(),
                arena: self.core().arena_name(arena),
                device,
                cause: cause.unwrap_or(TransferError::Infeasible),
            }),
        }
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
            let (source_via, target_via) = match copy.kind {
                CopyKind::Bytes { source_via, target_via, .. } => (Some(source_via), Some(target_via)),
                CopyKind::Refresh { .. } | CopyKind::Fill => (None, None),
            };
            let end = |core: &mut Core, arena, via| core.end_via(arena, self.reaches_as_host(arena, via));
            let from = copy.from().map(|from| end(core, from, source_via));
            Ok((from, end(core, copy.to, target_via), core.map_changes))
        });
        let (from, to, map_changes) = ends.map_err(|refusal| {
            self.core().refused(refusal, Some((KernelId::default(), self.lost_end(&copy))))
        })?;
        if refresh {
            return Ok(());
        }
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
                self.arriving.insert((copy.to, span.start()), span.end());
                self.pending
                    .push_back(Pending { fence, rest: Ended { copy, loan, begun, ends, map_changes } });
                Ok(())
            }
            Err(cause) => {
                let cause = if loan.is_out() { TransferError::StillLent } else { cause };
                Err(self.failure(&copy, cause))
            }
        }
    }

    /// Whether a copy reaches an arena through the host, as one of its remote devices.
    fn reaches_as_host(&self, arena: ArenaId, via: Option<DeviceId>) -> bool {
        let platform = &self.core().platform;
        via.is_some_and(|via| via != platform.desc(arena).native && platform.host() == Some(via))
    }

    /// The end of a copy that is lost, for people to read; the destination where none is.
    fn lost_end(&self, copy: &CopyOp) -> ArenaId {
        let is_lost = |arena: &ArenaId| self.core().read(|core| core.state.arena(*arena).is_lost());
        copy.from().filter(is_lost).unwrap_or(copy.to)
    }

    /// A copy has ended, well or not.
    fn ended(&mut self, pending: Ended, ended: Result<u64, TransferError>) {
        let Ended { copy, begun, loan, ends, map_changes } = pending;
        let (copy, requested_bytes) = (&copy, copy.span.len());
        let mut arrived = ended.and_then(|done_bytes| moved_all(requested_bytes, done_bytes));
        if loan.is_out() {
            arrived = Err(TransferError::StillLent);
        }
        let arrived = arrived.map_err(|cause| self.failure(copy, cause));
        let arrived = arrived.and_then(|()| self.arrived(copy, &self.map_states(ends), map_changes));
        match arrived {
            Ok(()) => {
                if let CopyKind::Bytes { link, .. } = copy.kind {
                    let counters = self.core().platform.counters();
                    counters.count_transfer(link, requested_bytes, begun.elapsed());
                }
            }
            Err(error) => self.fail(error),
        }
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

    /// The bytes of a copy are there, unless it has changed a map state on the way.
    fn arrived(
        &self,
        copy: &CopyOp,
        found: &[(ArenaId, MapState)],
        map_changes: u64,
    ) -> Result<(), AcquireError> {
        let changed = self.core().change(|core, routes| {
            // Another plan may be changing one now, or have done so since the arenas were asked, by right.
            let is_telling = core.map_changes == map_changes;
            let changed = found.iter().filter(|_| is_telling).find_map(|&(arena, found)| {
                core.settled_map(arena).filter(|known| *known != found).map(|known| (arena, known, found))
            });
            if changed.is_none() {
                core.state.copied(routes, copy.id);
                self.record_copy(copy, true);
            }
            changed
        });
        let Some((arena, known, found)) = changed else { return Ok(()) };
        self.core().wedge();
        let (buffer, arena) = (self.core().name(), self.core().arena_name(arena));
        Err(AcquireError::ArenaContract { buffer, arena, breach: Breach::MapChanged { known, found } })
    }

    /// Something went wrong. Where that is because a device is gone, every buffer knows before anybody hears of it, and
    /// before the plan is given up: who waits behind it is not let in to a memory that is gone.
    fn fail(&mut self, error: AcquireError) {
        self.core().platform.notice_losses();
        self.failed.get_or_insert(error);
    }

    /// The error of a copy that failed. What breaks a contract wedges the buffer.
    fn failure(&self, copy: &CopyOp, cause: TransferError) -> AcquireError {
        let buffer = self.core().name();
        let to = self.core().arena_name(copy.to);
        let from = copy.from().map_or_else(|| to.clone(), |from| self.core().arena_name(from));
        let breach = match &cause {
            TransferError::Infeasible => {
                return AcquireError::Busy { buffer, reason: BusyReason::ArenaInUse };
            }
            // The host's own memory is copied by core: it is the other end that was asked.
            TransferError::StillLent => {
                let is_hosts = self.core().platform.host() == Some(self.core().platform.desc(copy.to).native);
                Some((if is_hosts { from.clone() } else { to.clone() }, Breach::StillLent))
            }
            TransferError::NoAddress { arena } if *arena == from.name => {
                Some((from.clone(), Breach::NoAddress))
            }
            TransferError::NoAddress { .. } => Some((to.clone(), Breach::NoAddress)),
            _ => None,
        };
        if let Some((arena, breach)) = breach {
            match breach {
                Breach::StillLent => self.core().wedge_lent(),
                _ => self.core().wedge(),
            }
            return AcquireError::ArenaContract { buffer, arena, breach };
        }
        AcquireError::CopyFailed { buffer, from, to, span: copy.span, cause }
    }

    fn record_copy(&self, copy: &CopyOp, done: bool) {
        let (owner, from, to, span) = (copy.id.owner, copy.from(), copy.to, copy.span);
        self.core().record(|| match done {
            true => EventKind::CopyDone { owner, from, to, span },
            false => EventKind::CopyStarted { owner, from, to, span },
        });
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
        for Pending { fence, rest } in std::mem::take(&mut self.pending) {
            let ended = guard(|| fence.wait());
            let ended = ended.unwrap_or_else(|message| Err(TransferError::Panicked { message }));
            self.ended(rest, ended);
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} of {}", self.next, self.plan)
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
