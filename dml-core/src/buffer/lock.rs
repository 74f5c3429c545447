//! A buffer of bytes: one lock, one state, one queue.
//!
//! No arena call and no user code runs under the lock (I-22). Work that follows a change of state, such as
//! waking and freeing, is collected under the lock and done after it is released.

use crate::base::access::Claims;
use crate::base::guard::{guard, quietly};
use crate::base::id::{ArenaId, BufferId, DeviceId, OwnerId, Ticket};
use crate::base::names::{ArenaName, BufferName};
use crate::base::rank::{Rank, Ranked};
use crate::base::sync::{Arc, Condvar};
use crate::buffer::Made;
use crate::buffer::error::{AcquireError, PoisonedEnd, Poisoner};
use crate::buffer::handle::Kept;
#[cfg(debug_assertions)]
use crate::buffer::locked::CHECKED_PER_CHANGE;
use crate::buffer::locked::{Locked, Rare};
use crate::buffer::shared_run::{Listener, Pace};
use crate::buffer::storage::Handout;
use crate::buffer::wait::{Place, Wakes};
use crate::platform::Platform;
use crate::platform::hints::{Bindings, HintedRoutes};
use crate::platform::outstanding::Outstanding;
use crate::platform::registry::{Resident, Slot};
use crate::state::{
    Begin, EventKind, Execution, Lifecycle, OneClaim, Outcome, Refusal, Release, Request, Requestor, Routes,
};
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

/// What an application may give a new buffer.
struct About {
    label: Option<Arc<str>>,
    /// The bindings that the buffer's hints select, if it has hints.
    bindings: Option<Bindings>,
}

pub(crate) struct BufferInner {
    pub(crate) id: BufferId,
    /// What most buffers do not have.
    about: Option<Box<About>>,
    /// Size of an element, in bytes; 0 for a buffer without an element type.
    element_bytes: u32,
    pub(crate) len: u64,
    pub(crate) platform: Platform,
    /// Its place in the platform's registry.
    pub(super) slot: AtomicU32,
    /// The number of the program's handles.
    pub(super) handles: AtomicU32,
    pub(super) locked: Ranked<Locked>,
    pub(super) closed: Condvar,
}

/// The work to be done after the lock is released.
#[derive(Default)]
#[must_use = "an admitted waiter that is not woken sleeps for ever"]
pub(crate) struct Aftermath {
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

impl BufferInner {
    pub(crate) fn new(
        id: BufferId,
        Made { len, label, element_bytes, .. }: Made,
        platform: &Platform,
        bindings: Option<Bindings>,
        locked: Locked,
    ) -> Self {
        let has_more = label.is_some() || bindings.is_some();
        Self {
            id,
            about: has_more.then(|| Box::new(About { label, bindings })),
            element_bytes: u32::try_from(element_bytes).unwrap_or(u32::MAX),
            len,
            platform: platform.clone(),
            slot: AtomicU32::new(Slot::MAX),
            handles: AtomicU32::new(0),
            locked: Ranked::new(Rank::Buffer, locked),
            closed: Condvar::new(),
        }
    }

    /// Changes the state under the lock, and admits the requests that can now be granted. After the lock is
    /// released, it wakes them and frees the storage that the state no longer refers to.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Locked, &dyn Routes) -> R) -> R {
        let routes: &dyn Routes = &self.routes();
        let mut locked = self.locked.lock();
        locked.known = None;
        let result = change(&mut locked, routes);
        let aftermath = self.aftermath(&mut locked, routes);
        drop(locked);
        if let Some(aftermath) = aftermath {
            self.act(aftermath);
        }
        result
    }

    /// Returns the platform's arenas and links, with the bindings that the buffer's hints select.
    pub(crate) fn routes(&self) -> HintedRoutes<'_> {
        let bindings = self.about.as_ref().and_then(|about| about.bindings.as_ref()).map(Cow::Borrowed);
        HintedRoutes { topology: &self.platform.0.topology, bindings }
    }

    /// Reads the state under the lock.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&Locked) -> R) -> R {
        read(&self.locked.lock())
    }

    #[inline]
    fn aftermath(&self, locked: &mut Locked, routes: &dyn Routes) -> Option<Aftermath> {
        if !locked.is_settled() {
            return Some(self.settled(locked, routes));
        }
        #[cfg(debug_assertions)]
        self.check(locked, routes);
        None
    }

    /// Does what follows a change under the lock, and returns what is to be done without it.
    #[inline(never)]
    fn settled(&self, locked: &mut Locked, routes: &dyn Routes) -> Aftermath {
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
        if !admitted.is_empty() {
            locked.rare().waiters.admit(admitted, &mut aftermath.wakes);
        }
        let ends = locked.state.lifecycle() == Lifecycle::Closed && !locked.is_ended;
        let frees = locked.rare.as_ref().is_some_and(|rare| !rare.to_free.is_empty());
        if (ends || frees) && !locked.is_freeing {
            locked.is_freeing = true;
            aftermath.frees = true;
        }
        locked.tidy();
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

    pub(crate) fn act(&self, aftermath: Aftermath) {
        // The answers come first, because foreign code that is called below may wait for one of them.
        let calls = aftermath.wakes.deliver();
        if aftermath.frees {
            self.free_all();
        }
        calls.call();
    }

    /// Grants a request in the common case and pins the buffer. Returns the grant with what it is handed.
    /// Otherwise nothing changes. Neither case admits another request.
    #[inline(always)]
    pub(super) fn grant_at_once(
        &self,
        request: OneClaim,
        origin: &'static Location<'static>,
    ) -> Option<(OwnerId, Option<Handout>)> {
        let routes = self.routes();
        let mut locked = self.locked.lock();
        let grant = OwnerId(locked.next_grant + 1);
        let request = OneClaim { grant, ..request };
        let known = locked.know(&routes, request.arena)?;
        let seq = locked.state.begin_at_once(&routes, known, request)?;
        locked.next_grant = grant.0;
        locked.pins += 1;
        if self.platform.0.recorder.is_on() {
            self.record_begin(&request.to_request(), &Begin::Granted(seq));
        }
        let handout = self.hand_out(&mut locked, grant, Some(request.arena), origin);
        #[cfg(debug_assertions)]
        self.check(&mut locked, &routes);
        Some((grant, handout))
    }

    /// Ends a grant and its pin, if it has one, in the common case, and takes back what it was handed.
    /// Otherwise nothing changes, and that is returned.
    #[inline(always)]
    pub(crate) fn release_at_once(
        &self,
        (grant, arena, claims): (OwnerId, ArenaId, &Claims),
        outcome: Outcome,
        (handout, is_pinned): (Option<Handout>, bool),
    ) -> Result<Kept, Option<Handout>> {
        let routes = self.routes();
        let mut locked = self.locked.lock();
        let Locked { state, known, .. } = &mut *locked;
        let released = match known {
            Some(known) => state.release_at_once(&routes, known, (grant, Some((arena, claims))), outcome),
            None => None,
        };
        let Some(release) = released else { return Err(handout) };
        let left = handout.and_then(|handout| locked.take_back(arena, handout));
        if self.platform.0.recorder.is_on() || locked.rare.is_some() {
            self.record_release(&mut locked, grant, release);
        }
        #[cfg(debug_assertions)]
        self.check(&mut locked, &routes);
        let kept = if is_pinned { locked.unpin() } else { None };
        drop(locked);
        if left.is_some() {
            quietly(left);
        }
        Ok(kept)
    }

    #[inline(never)]
    fn record_release(&self, locked: &mut Locked, grant: OwnerId, release: Release) {
        if let Some(rare) = &mut locked.rare {
            rare.origins.remove(&grant);
        }
        let Release { outcome, commit, .. } = release;
        self.record(|| EventKind::Released { grant, outcome, commit });
    }

    /// Submits a request. If it cannot be granted now and `queues` returns true, it enters the queue.
    /// Otherwise, if a prefetch can be ended, the request is submitted again.
    #[inline]
    pub(crate) fn ask(
        &self,
        mut request: Request,
        mut queues: impl FnMut() -> bool,
        origin: &'static Location<'static>,
    ) -> Asked {
        let asked = self.ask_once(&mut request, &mut queues, origin);
        if matches!(asked, Asked::Answered(Begin::Busy { .. }, _)) && self.end_prefetches() {
            return self.ask_once(&mut request, &mut queues, origin);
        }
        asked
    }

    /// Advances the prefetches until one of them ends. Returns whether one did.
    fn end_prefetches(&self) -> bool {
        let prefetches = self.read(Locked::prefetches);
        let mut running = prefetches.iter().filter(|run| !run.is_ended());
        running.any(|run| run.carry_on(Pace::Notice, Listener::Nobody).is_ready())
    }

    fn ask_once(
        &self,
        request: &mut Request,
        queues: &mut dyn FnMut() -> bool,
        origin: &'static Location<'static>,
    ) -> Asked {
        self.change(|locked, routes| {
            let grant = locked.new_grant();
            request.grant = grant;
            let (kernel, arena) = (request.kernel, request.arena);
            match locked.state.begin(routes, request) {
                Begin::Busy { .. } if queues() => {
                    // Both grow with every request.
                    let ticket = Ticket(grant.0);
                    self.record(|| EventKind::Queued { ticket, kernel });
                    locked.state.enqueue(ticket, request.clone());
                    locked.admits_nobody = true;
                    let (waiter, ahead) = (locked.rare().waiters.add(ticket), locked.prefetches());
                    Asked::Queued(Place { ticket, grant, waiter, ahead })
                }
                begin => {
                    self.record_begin(request, &begin);
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
            locked.rare().waiters.remove(ticket);
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
            Begin::Granted(_) => drop(self.release(grant, Outcome::NotStarted, None, None, false)),
            Begin::Plan(plan) => self.change(|locked, routes| {
                let aborted = Execution::new(plan).give_up(routes, &mut locked.state);
                self.record(|| aborted);
            }),
            _ => {}
        }
    }

    /// Ends a grant. `writer` holds its arena, its claims and its origin, for errors about bytes that it
    /// poisons. `handout` is what it was handed. With `unpins`, its pin ends as well, so the caller must have
    /// another reference; what the buffer kept of itself is returned.
    #[inline]
    pub(crate) fn release(
        &self,
        grant: OwnerId,
        outcome: Outcome,
        writer: Option<(ArenaId, &Claims, Poisoner)>,
        handout: Option<(ArenaId, Handout)>,
        unpins: bool,
    ) -> (Kept, Result<(), AcquireError>) {
        let (mut left, mut kept) = (None, None);
        let released = self.change(|locked, routes| {
            // The storage must be unshared before the release is reported to the machine, because closing the
            // buffer returns it to the application (I-24).
            left = handout.and_then(|(arena, handout)| locked.take_back(arena, handout));
            kept = if unpins { locked.unpin() } else { None };
            let released = match &writer {
                Some((arena, claims, _)) => {
                    locked.state.release_kernel(routes, (grant, *arena, claims), outcome)
                }
                None => locked.state.release(routes, grant, outcome),
            };
            if let Ok(release) = released {
                if let (Outcome::Failed, Some((_, claims, mut poisoner))) = (release.outcome, writer) {
                    if release.lost.is_some() {
                        poisoner.end = PoisonedEnd::DeviceLost;
                    }
                    locked.add_poisoner(claims, poisoner);
                }
                self.record_release(locked, grant, release);
            }
            released
        });
        if left.is_some() {
            quietly(left);
        }
        let released = released.map_err(|refusal| self.refused(refusal));
        let released = released.and_then(|Release { lost, .. }| match lost {
            None => Ok(()),
            Some(arena) => Err(self.lost(arena)),
        });
        (kept, released)
    }

    /// Records that the kernel of a grant has started. What it reads may be missing: then its stream ends it
    /// as failed.
    pub(crate) fn start(&self, grant: OwnerId) {
        if let Some(aftermath) = self.start_within(grant) {
            self.act(aftermath);
        }
    }

    /// As [`start`](Self::start), and leaves what follows to the caller, to be [done](Self::act) without locks.
    pub(crate) fn start_within(&self, grant: OwnerId) -> Option<Aftermath> {
        let routes = self.routes();
        let mut locked = self.locked.lock();
        // `known` does not depend on which kernels have started, and is `None` if requests wait that a start
        // may let in.
        let _ = locked.state.start(grant);
        self.aftermath(&mut locked, &routes)
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

    pub(crate) fn id(&self) -> BufferId {
        self.id
    }

    pub(crate) fn platform(&self) -> &Platform {
        &self.platform
    }

    pub(crate) fn record<E: Into<Option<EventKind>>>(&self, kind: impl FnOnce() -> E) {
        self.platform.0.recorder.record(self.id, kind);
    }

    pub(crate) fn arena_name(&self, id: ArenaId) -> ArenaName {
        ArenaName { id, name: self.platform.desc(id).name.clone() }
    }

    /// Returns the buffer's name, for display.
    pub(crate) fn name(&self) -> BufferName {
        let label = self.about.as_ref().and_then(|about| about.label.clone());
        BufferName::new(self.id, label, self.element_bytes.into())
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
            let origins = locked.rare.as_ref().map(|rare| &rare.origins);
            let origin = |grant| origins.and_then(|origins| origins.get(&grant).copied());
            let with_origin = |entry: &Requestor| (entry.clone(), origin(entry.grant));
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
            locked.rare().external.drain(..).for_each(std::mem::forget);
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
            locked.rare().waiters.admit(refused, &mut wakes);
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
            locked.rare().origins.insert(grant, (origin, std::thread::current().id()));
        }
        locked.hand_out(storage?)
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

    fn lose(&self, grant: OwnerId) {
        self.change(|locked, routes| locked.state.fail_streams(routes));
        let _ = self.release(grant, Outcome::Failed, None, None, false);
    }

    fn outstanding(&self) -> Vec<Outstanding> {
        self.outstanding()
    }
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        self.platform.0.registry.forget(*self.slot.get_mut());
        let locked = self.locked.get_mut();
        let Rare { to_free, external, .. } = locked.rare.take().map_or_else(Rare::default, |rare| *rare);
        let storages: Vec<_> = std::mem::take(&mut locked.storages).into_iter().chain(to_free).collect();
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
