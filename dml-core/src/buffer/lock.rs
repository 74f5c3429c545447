//! A buffer of bytes: one lock, one state, one queue.
//!
//! No arena call and no user code runs under the lock (I-22). Work that follows a change of state, such as
//! waking and freeing, is collected under the lock and done after it is released.

use crate::base::access::{Claim, Claims};
use crate::base::guard::{guard, quietly};
use crate::base::id::{ArenaId, BufferId, DeviceId, OwnerId, Ticket};
use crate::base::names::{ArenaName, BufferName};
use crate::base::range::Span;
use crate::base::rank::{Rank, Ranked};
use crate::base::sync::{Arc, Condvar};
use crate::buffer::error::{AcquireError, PoisonedEnd, Poisoner};
use crate::buffer::shared_run::{Listener, Pace, SharedRun};
use crate::buffer::storage::{ArenaStorage, Handout};
use crate::buffer::wait::{Place, Waiters, Wakes};
use crate::platform::Platform;
use crate::platform::hints::{Bindings, HintedRoutes};
use crate::platform::outstanding::Outstanding;
use crate::platform::registry::Resident;
use crate::platform::stream::Held;
use crate::state::{
    Begin, BufferState, EventKind, Execution, Lifecycle, Outcome, Refusal, Release, Request, Requestor,
    Routes, Status,
};
use smallvec::SmallVec;
use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Weak;
use std::thread::ThreadId;
use std::time::Instant;

/// The data behind the buffer's lock.
///
/// | field | changed by |
/// |---|---|
/// | `state` | requests, prefetches, bindings, releases, closes, losses; a [`Run`](super::engine::Run) |
/// | `storages` | a `Run`; the work after every change ([`Locked::drop_unused`]) |
/// | `to_free`, `is_freeing` | the work after every change; the freeing thread ([`BufferInner::free_all`]) |
/// | `is_ended` | the freeing thread, once |
/// | `waiters`, `next_ticket` | queueing and cancelling of requests, `close`; the work after every change |
/// | `next_grant` | every request, prefetch and binding |
/// | `external` | attaching and taking back the application's storage; a copy whose arena kept its loan |
/// | `is_leaked` | a copy whose arena kept its loan |
/// | `map_changes` | a `Run` that changes a mapping |
/// | `prefetches` | the start of a prefetch |
/// | `poisoners` | the end of a grant that poisons its bytes |
/// | `origins` | the start and the end of a grant, while events are recorded |
///
/// All these changes go through [`BufferInner::change`], which then examines the queue. [`BufferInner::read`]
/// changes nothing. The freeing thread, and a thread that waits for a buffer to end, take the lock directly.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) state: BufferState,
    pub(super) storages: SmallVec<[(ArenaId, ArenaStorage); 1]>,
    /// Blocks that the state no longer refers to, to be freed. Members are freed before their roots.
    pub(super) to_free: Vec<(ArenaId, ArenaStorage)>,
    /// Whether a thread is freeing blocks of this buffer.
    pub(super) is_freeing: bool,
    /// Whether the buffer is closed and all of its storage free.
    pub(super) is_ended: bool,
    waiters: Waiters,
    /// The number of changes since the last check of the invariants.
    #[cfg(debug_assertions)]
    unchecked: usize,
    /// Whether the current change cannot admit a waiting request.
    admits_nobody: bool,
    next_ticket: u64,
    next_grant: u64,
    /// The application's storages, with their arenas. The call that closes the buffer takes one after the
    /// end.
    pub(crate) external: SmallVec<[(ArenaId, External); 1]>,
    /// Whether storage was leaked because an arena kept part of it.
    pub(crate) is_leaked: bool,
    /// The number of map changes that have started, plus the number that have ended.
    pub(super) map_changes: u64,
    /// The prefetches that may not have ended.
    prefetches: Vec<Weak<SharedRun>>,
    /// The places where grants were acquired.
    origins: Origins,
    /// The grants that poisoned bytes. The spans are disjoint.
    poisoners: Vec<(Span, Poisoner)>,
}

/// An application's container, type-erased.
pub(crate) type External = Arc<dyn Any + Send + Sync>;

type Origins = BTreeMap<OwnerId, (&'static Location<'static>, ThreadId)>;

/// Number of elements of the state that debug builds check per change: segments, claims, copies, waiting
/// requests, pairs of kernels. With 64, an acquire of 10,000 ranges takes 0.7 s; with 256, it takes 2.1 s.
#[cfg(debug_assertions)]
const CHECKED_PER_CHANGE: usize = 64;

impl Locked {
    /// Creates the data of a buffer. The application's storage, if any, is present from the start.
    pub(crate) fn new(state: BufferState, external: Option<(ArenaId, External, ArenaStorage)>) -> Self {
        let mut locked = Self {
            state,
            storages: SmallVec::new(),
            waiters: Waiters::default(),
            #[cfg(debug_assertions)]
            unchecked: 0,
            admits_nobody: false,
            next_ticket: 0,
            next_grant: 0,
            external: SmallVec::new(),
            to_free: Vec::new(),
            map_changes: 0,
            is_freeing: false,
            is_leaked: false,
            is_ended: false,
            prefetches: Vec::new(),
            origins: Origins::new(),
            poisoners: Vec::new(),
        };
        if let Some((arena, container, storage)) = external {
            locked.put(arena, storage);
            locked.external.push((arena, container));
        }
        locked
    }

    pub(crate) fn new_grant(&mut self) -> OwnerId {
        self.next_grant += 1;
        OwnerId(self.next_grant)
    }

    /// Registers a prefetch, so that requests that wait behind it advance it.
    pub(crate) fn add_prefetch(&mut self, run: &Arc<SharedRun>) {
        if self.prefetches.len() == self.prefetches.capacity() {
            self.prefetches.retain(|run| run.strong_count() > 0);
        }
        self.prefetches.push(Arc::downgrade(run));
    }

    /// Records the grant that poisoned bytes, in place of earlier ones. Removes records of bytes that are no
    /// longer poisoned.
    fn add_poisoner(&mut self, claims: &Claims, poisoner: Poisoner) {
        let written = |claim: &&Claim| claim.access.writes();
        for (span, before) in std::mem::take(&mut self.poisoners) {
            let mut start = span.start();
            for claim in claims.touching(span).iter().filter(written) {
                let end = claim.span.start().max(start);
                self.poisoners.push((Span::new(start, end), before.clone()));
                start = claim.span.end().max(start);
            }
            self.poisoners.push((Span::new(start.min(span.end()), span.end()), before));
        }
        let parts = self.state.segments();
        let is_poisoned = |span: Span| {
            parts.in_span(span).any(|(_, content)| matches!(content.status, Status::Poisoned(_)))
        };
        self.poisoners.retain(|(span, _)| is_poisoned(*span));
        self.poisoners.extend(claims.iter().filter(written).map(|claim| (claim.span, poisoner.clone())));
    }

    /// Returns the grant that poisoned the first poisoned bytes of a span, if one did.
    fn poisoner(&self, span: Span) -> Option<Poisoner> {
        let poisoned = self.poisoners.iter().filter(|(poisoned, _)| poisoned.overlaps(span));
        poisoned.min_by_key(|(poisoned, _)| poisoned.start()).map(|(_, poisoner)| poisoner.clone())
    }

    fn prefetches(&self) -> Vec<Arc<SharedRun>> {
        self.prefetches.iter().filter_map(Weak::upgrade).collect()
    }
}

pub(crate) struct BufferInner {
    pub(crate) id: BufferId,
    name: BufferName,
    pub(crate) len: u64,
    pub(crate) platform: Platform,
    /// The bindings that the buffer's hints select, if it has hints.
    bindings: Option<Bindings>,
    pub(super) locked: Ranked<Locked>,
    pub(super) closed: Condvar,
}

/// The work to be done after the lock is released.
#[derive(Default)]
struct Aftermath {
    wakes: Wakes,
    /// Whether this thread must free the blocks in `to_free`.
    frees: bool,
}

/// The answer of a buffer to a request.
pub(crate) enum Asked {
    /// The request has access now.
    Granted(OwnerId, Option<Handout>),
    /// Any other answer of the machine. It is [`Begin::Busy`] only if the request must not wait.
    Answered(Begin, OwnerId),
    /// The request waits in the queue.
    Queued(Place),
}

impl Held for BufferInner {
    fn lose(&self, grant: OwnerId) {
        self.change(|locked, routes| locked.state.fail_streams(routes));
        let _ = self.release(grant, Outcome::Failed, None);
    }
}

impl BufferInner {
    pub(crate) fn new(
        (id, name, len): (BufferId, BufferName, u64),
        platform: &Platform,
        bindings: Option<Bindings>,
        locked: Locked,
    ) -> Self {
        let platform = platform.clone();
        Self {
            id,
            name,
            len,
            platform,
            bindings,
            locked: Ranked::new(Rank::Buffer, locked),
            closed: Condvar::new(),
        }
    }

    /// Changes the state under the lock, and admits the requests that can now be granted. After the lock is
    /// released, it wakes them and frees the storage that the state no longer refers to.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Locked, &dyn Routes) -> R) -> R {
        let routes: &dyn Routes = &self.routes();
        let mut locked = self.locked.lock();
        let result = change(&mut locked, routes);
        let aftermath = self.aftermath(&mut locked, routes);
        drop(locked);
        self.act(aftermath);
        result
    }

    /// Returns the platform's arenas and links, with the bindings that the buffer's hints select.
    pub(crate) fn routes(&self) -> HintedRoutes<'_> {
        let bindings = self.bindings.as_ref().map(Cow::Borrowed);
        HintedRoutes { topology: &self.platform.0.topology, bindings }
    }

    /// Reads the state under the lock.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&Locked) -> R) -> R {
        read(&self.locked.lock())
    }

    fn aftermath(&self, locked: &mut Locked, routes: &dyn Routes) -> Aftermath {
        let mut aftermath = Aftermath::default();
        // The freed arenas are recorded before the requests that their freeing admits.
        for arena in locked.drop_unused().iter() {
            self.record(|| EventKind::Freed { arena });
        }
        let unchanged = std::mem::take(&mut locked.admits_nobody);
        let admitted = if unchanged { Vec::new() } else { locked.state.pump(routes) };
        for admission in &admitted {
            self.record_begin(&admission.request, &admission.begin);
        }
        locked.waiters.admit(admitted, &mut aftermath.wakes);
        let ends = locked.state.lifecycle() == Lifecycle::Closed && !locked.is_ended;
        if (ends || !locked.to_free.is_empty()) && !locked.is_freeing {
            locked.is_freeing = true;
            aftermath.frees = true;
        }
        #[cfg(debug_assertions)]
        self.check(locked, routes);
        aftermath
    }

    /// Checks the invariants; for a large state, only after several changes. This bounds the cost per change.
    /// A request of n ranges makes more than n changes, so its checks cost O(n) in total.
    #[cfg(debug_assertions)]
    fn check(&self, locked: &mut Locked, routes: &dyn Routes) {
        locked.unchecked += 1;
        if locked.unchecked * CHECKED_PER_CHANGE < locked.state.size() {
            return;
        }
        locked.unchecked = 0;
        if let (Err(violation), false) = (locked.state.check_invariants(routes), std::thread::panicking()) {
            panic!("{}: {violation}\n{:#?}", self.id, locked.state);
        }
    }

    fn act(&self, aftermath: Aftermath) {
        // The answers come first, because foreign code that is called below may wait for one of them.
        let calls = aftermath.wakes.deliver();
        if aftermath.frees {
            self.free_all();
        }
        calls.call();
    }

    /// Submits a request. With `queue`, it enters the queue if it cannot be granted now. Otherwise, if a
    /// prefetch can be ended, the request is submitted again.
    pub(crate) fn ask(&self, request: Request, queue: bool, origin: &'static Location<'static>) -> Asked {
        let asked = self.ask_once(request.clone(), queue, origin);
        if matches!(asked, Asked::Answered(Begin::Busy { .. }, _)) && self.end_prefetches() {
            return self.ask_once(request, queue, origin);
        }
        asked
    }

    /// Advances the prefetches until one of them ends. Returns whether one did.
    fn end_prefetches(&self) -> bool {
        let prefetches = self.read(Locked::prefetches);
        let mut running = prefetches.iter().filter(|run| !run.is_ended());
        running.any(|run| run.carry_on(Pace::Notice, Listener::Nobody).is_ready())
    }

    fn ask_once(&self, mut request: Request, queue: bool, origin: &'static Location<'static>) -> Asked {
        self.change(|locked, routes| {
            let grant = locked.new_grant();
            request.grant = grant;
            let (kernel, arena) = (request.kernel, request.arena);
            match locked.state.begin(routes, &request) {
                Begin::Busy { .. } if queue => {
                    locked.next_ticket += 1;
                    let ticket = Ticket(locked.next_ticket);
                    self.record(|| EventKind::Queued { ticket, kernel });
                    locked.state.enqueue(ticket, request);
                    locked.admits_nobody = true;
                    let (waiter, ahead) = (locked.waiters.add(ticket), locked.prefetches());
                    Asked::Queued(Place { ticket, grant, waiter, ahead })
                }
                begin => {
                    self.record_begin(&request, &begin);
                    match begin {
                        Begin::Granted(_) => {
                            let storage = Some(arena).filter(|_| !request.claims.is_empty());
                            Asked::Granted(grant, self.hand_out(locked, grant, storage, origin))
                        }
                        begin => Asked::Answered(begin, grant),
                    }
                }
            }
        })
    }

    /// Cancels a waiting request. A grant that was already made for it is given back.
    pub(crate) fn cancel(&self, Place { ticket, grant, waiter, .. }: Place) {
        let waiting = self.change(|locked, _| {
            locked.waiters.remove(ticket);
            let waiting = locked.state.cancel(ticket);
            if waiting {
                self.record(|| EventKind::Cancelled { ticket });
            }
            waiting
        });
        if waiting {
            return;
        }
        // The request was admitted. The admitting thread delivers the answer right after it releases the
        // lock, before it runs any foreign code.
        match waiter.answer() {
            Begin::Granted(_) => drop(self.release(grant, Outcome::NotStarted, None)),
            Begin::Plan(plan) => self.change(|locked, routes| {
                let aborted = Execution::new(plan).give_up(routes, &mut locked.state);
                self.record(|| aborted);
            }),
            _ => {}
        }
    }

    /// Ends a grant. `writer` holds its arena, its claims and its origin, for errors about bytes that it
    /// poisons.
    pub(crate) fn release(
        &self,
        grant: OwnerId,
        outcome: Outcome,
        writer: Option<(ArenaId, &Claims, Poisoner)>,
    ) -> Result<(), AcquireError> {
        let released = self.change(|locked, routes| {
            let released = match &writer {
                Some((arena, claims, _)) => {
                    locked.state.release_kernel(routes, (grant, *arena, claims), outcome)
                }
                None => locked.state.release(routes, grant, outcome),
            };
            locked.origins.remove(&grant);
            if let Ok(release) = released {
                if let (Outcome::Failed, Some((_, claims, mut poisoner))) = (release.outcome, writer) {
                    if release.lost.is_some() {
                        poisoner.end = PoisonedEnd::DeviceLost;
                    }
                    locked.add_poisoner(claims, poisoner);
                }
                self.record(|| EventKind::Released {
                    grant,
                    outcome: release.outcome,
                    commit: release.commit,
                });
            }
            released
        });
        let Release { lost, .. } = released.map_err(|refusal| self.refused(refusal))?;
        lost.map_or(Ok(()), |arena| Err(self.lost(arena)))
    }

    /// Records that the kernel of a grant has started. What it reads may be missing: then its stream ends it
    /// as failed.
    pub(crate) fn start(&self, grant: OwnerId) {
        self.change(|locked, _| _ = locked.state.start(grant));
    }

    /// Converts a refusal of the machine into the caller's error.
    pub(crate) fn refused(&self, refusal: Refusal) -> AcquireError {
        let buffer = self.name();
        match refusal {
            Refusal::Closed => AcquireError::Closed { buffer },
            Refusal::Wedged => AcquireError::Wedged { buffer },
            Refusal::AlreadyHeld { kernel, span } => AcquireError::AlreadyHeld { buffer, kernel, span },
            Refusal::Uninitialized { span } => AcquireError::Uninitialized { buffer, span },
            Refusal::Poisoned { span, restorable } => {
                let by = self.read(|locked| locked.poisoner(span));
                AcquireError::Poisoned { buffer, span, restorable, by }
            }
            Refusal::Unreachable { arena, span } => {
                AcquireError::Unreachable { buffer, arena: self.arena_name(arena), span }
            }
            Refusal::TooManyGrants { arena } => {
                AcquireError::TooManyGrants { buffer, arena: self.arena_name(arena) }
            }
            Refusal::DeviceLost { arena } => self.lost(arena),
            Refusal::NotClean => AcquireError::NotClean { buffer },
            Refusal::NotRestorable { span } => AcquireError::NotRestorable { buffer, span },
        }
    }

    fn record_begin(&self, request: &Request, begin: &Begin) {
        if let Begin::Granted(seq) = *begin {
            self.record(|| EventKind::Granted {
                grant: request.grant,
                kernel: request.kernel,
                arena: request.arena,
                claims: request.claims.clone(),
                seq,
            });
        }
    }

    pub(crate) fn record<E: Into<Option<EventKind>>>(&self, kind: impl FnOnce() -> E) {
        self.platform.0.recorder.record(self.id, kind);
    }

    pub(crate) fn arena_name(&self, id: ArenaId) -> ArenaName {
        ArenaName { id, name: self.platform.desc(id).name.clone() }
    }

    /// Returns the buffer's name, for display.
    pub(crate) fn name(&self) -> BufferName {
        self.name.clone()
    }

    /// Declares a device lost. Has no effect if the buffer already knows of the loss.
    pub(crate) fn device_lost(&self, device: DeviceId) {
        self.change(|locked, routes| {
            if locked.state.device_lost(routes, device) {
                self.record(|| EventKind::DeviceLost { device });
            }
        });
    }

    /// Returns the grants that have not ended.
    pub(crate) fn outstanding(&self) -> Vec<Outstanding> {
        let name = self.name();
        let entries = self.read(|locked| {
            let with_origin = |entry: &Requestor| (entry.clone(), locked.origins.get(&entry.grant).copied());
            locked.state.requestors().iter().map(with_origin).collect::<Vec<_>>()
        });
        let told = entries.into_iter().map(|(entry, origin)| Outstanding {
            buffer: name.clone(),
            grant: entry.grant,
            kernel: entry.kernel,
            arena: self.arena_name(entry.arena),
            claims: entry.claims,
            acquired_at: origin,
        });
        told.collect()
    }

    /// Returns the error for an arena whose device is lost.
    fn lost(&self, arena: ArenaId) -> AcquireError {
        let loss = guard(|| self.platform.arena(arena).loss()).unwrap_or_default();
        AcquireError::DeviceLost { buffer: self.name(), arena: self.arena_name(arena), loss }
    }

    /// Wedges the buffer after an arena kept lent memory. The arena may touch the storage at any time, so the
    /// storage is never freed.
    pub(crate) fn wedge_lent(&self) {
        self.change(|locked, _| {
            locked.state.wedge();
            locked.is_leaked = true;
            locked.external.drain(..).for_each(std::mem::forget);
            locked.storages.iter().for_each(|(_, storage)| storage.keep_for_ever());
        });
    }

    /// Ends the kernels for which a request waits, if no other users are in its way. Returns whether it is
    /// answered.
    pub(crate) fn ends_kernels(&self, place: &Place) -> bool {
        let only_stream = || self.read(|locked| locked.state.only_stream());
        if let Some(arena) = only_stream() {
            let is_done = || place.waiter.is_answered() || only_stream() != Some(arena);
            let stream = self.platform.0.streams.of(arena);
            stream.end_here(stream.given(), is_done);
        }
        place.waiter.is_answered()
    }

    /// Refuses new requests, and waits until all storage is freed, or until `deadline`. Returns whether it is
    /// freed.
    pub(crate) fn close(&self, deadline: Option<Instant>, before_waiting: impl FnOnce()) -> bool {
        let (refused, prefetches) = self.change(|locked, routes| {
            self.record(|| EventKind::Closed);
            let refused = locked.state.close(routes);
            let mut wakes = Wakes::default();
            locked.waiters.admit(refused, &mut wakes);
            (wakes, locked.prefetches())
        });
        refused.deliver().call();
        before_waiting();
        self.platform.0.streams.hurry();
        // No other thread may be polling a prefetch that the program keeps.
        if prefetches.iter().any(|run| run.finish(deadline).is_none()) {
            return self.read(|locked| locked.is_ended);
        }
        drop(prefetches);
        let mut locked = self.locked.lock();
        while !locked.is_ended {
            match deadline {
                None => locked = locked.wait(&self.closed),
                Some(deadline) => {
                    let (guard, timed_out) = locked.wait_until(&self.closed, deadline);
                    locked = guard;
                    if timed_out {
                        return locked.is_ended;
                    }
                }
            }
        }
        true
    }

    /// Returns the storage that a grant hands out; `None` if no bytes were requested. Records the location of
    /// the acquire if a recording is running.
    pub(crate) fn hand_out(
        &self,
        locked: &mut Locked,
        grant: OwnerId,
        storage: Option<ArenaId>,
        origin: &'static Location<'static>,
    ) -> Option<Handout> {
        if self.platform.0.recorder.is_on() {
            locked.origins.insert(grant, (origin, std::thread::current().id()));
        }
        locked.to_hand_out(storage?)
    }
}

impl Resident for BufferInner {
    fn id(&self) -> BufferId {
        self.id
    }

    fn name(&self) -> BufferName {
        self.name()
    }

    fn device_lost(&self, device: DeviceId) {
        self.device_lost(device);
    }

    fn outstanding(&self) -> Vec<Outstanding> {
        self.outstanding()
    }
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        self.platform.0.registry.forget(self.id);
        let locked = self.locked.get_mut();
        let storages: Vec<_> =
            std::mem::take(&mut locked.storages).into_iter().chain(locked.to_free.drain(..)).collect();
        let external = std::mem::take(&mut locked.external);
        for (arena, storage) in Locked::in_order(storages) {
            self.platform.0.recorder.record(self.id, || EventKind::Freed { arena });
            self.free(arena, storage);
        }
        // The application's container may panic when it is dropped.
        external.into_iter().for_each(|(_, container)| quietly(container));
    }
}

impl fmt::Debug for BufferInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.id, self.len)
    }
}
