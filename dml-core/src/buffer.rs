//! A buffer of bytes: one lock, one state, one queue.
//!
//! Lock ranks (I-22): the registry of buffers, then one buffer, then the path cache, the recorder or a waiter's slot.
//! No arena call and no user code runs under any of them: what a change of state makes necessary (waking, freeing) is
//! collected under the lock and done after it.

use crate::access::Claims;
use crate::acquire;
use crate::arena::BlockRef;
use crate::engine;
use crate::error::{AcquireError, ArenaName, BindRefusal, BufferName, BusyReason, ConfigError};
use crate::grant::Grants;
use crate::host::HostMemory;
use crate::id::{ArenaId, ArenaSet, BufferId, DeviceId, GrantId, KernelId, Ticket};
use crate::outstanding::Outstanding;
use crate::platform::Platform;
use crate::range::Span;
use crate::record::EventKind;
use crate::state::{
    Begin, BufferState, Execution, Initial, Lifecycle, Outcome, Refusal, Request, Requestor, Routes,
};
use crate::storage::{FreeOrder, Handout, Storage};
use crate::sync::{Arc, Condvar, Mutex};
use crate::wait::{Waiter, Waiters, Wakes};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Everything behind the buffer's lock.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) state: BufferState,
    storages: SmallVec<[(ArenaId, Storage); 1]>,
    waiters: Waiters,
    next_ticket: u64,
    next_grant: u64,
    /// The application's storage, which whoever asked for it takes when the buffer has ended.
    external: Option<External>,
    /// Blocks to be freed by whoever frees some already, so that members go before their roots.
    to_free: Vec<(ArenaId, Storage)>,
    /// How many changes of map states have begun, and how many have ended.
    pub(crate) map_changes: u64,
    /// Whether somebody is freeing blocks of this buffer.
    is_freeing: bool,
    /// Whether storage was given up because something of it was kept.
    is_leaked: bool,
    /// Whether the buffer is closed and all of its storage free.
    is_ended: bool,
    /// Where grants were acquired, while events are recorded.
    origins: Origins,
}

/// An application's container.
pub(crate) type External = Arc<dyn Any + Send + Sync>;

type Origins = BTreeMap<GrantId, (&'static Location<'static>, ThreadId)>;

impl Core {
    pub(crate) fn storage(&mut self, arena: ArenaId) -> Option<&mut Storage> {
        self.storages.iter_mut().find(|(id, _)| *id == arena).map(|(_, storage)| storage)
    }

    pub(crate) fn put(&mut self, arena: ArenaId, storage: Storage) {
        self.storages.push((arena, storage));
    }

    pub(crate) fn new_grant(&mut self) -> GrantId {
        self.next_grant += 1;
        GrantId(self.next_grant)
    }

    /// What a grant hands out of an arena's storage.
    fn handout(&self, arena: ArenaId) -> Option<Handout> {
        let (_, storage) = self.storages.iter().find(|(id, _)| *id == arena)?;
        Some(Handout { block: storage.block.clone(), host: storage.native_host() })
    }

    /// Moves storages that the state does not know of any more to those to be freed; which arenas' they were.
    fn drop_unused(&mut self) -> ArenaSet {
        let state = &self.state;
        let unused = |(id, _): &(ArenaId, Storage)| !state.arena(*id).alloc.is_allocated();
        if !self.storages.iter().any(unused) {
            return ArenaSet::EMPTY;
        }
        let (unused, used): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.storages).into_iter().partition(unused);
        self.storages = used.into();
        let arenas = unused.iter().map(|(arena, _)| *arena).collect();
        self.to_free.extend(unused);
        arenas
    }

    fn in_order(mut storages: Vec<(ArenaId, Storage)>) -> Vec<(ArenaId, Storage)> {
        storages.sort_by_key(|(_, storage)| storage.order);
        storages
    }
}

pub(crate) struct BufferInner {
    pub(crate) id: BufferId,
    name: BufferName,
    pub(crate) len: u64,
    pub(crate) platform: Platform,
    core: Mutex<Core>,
    closed: Condvar,
}

/// What has to happen once the lock is given up.
#[derive(Default)]
struct Aftermath {
    wakes: Wakes,
    /// Whether this thread is to free what is to be freed.
    frees: bool,
}

/// What became of a request put to a buffer.
pub(crate) enum Asked {
    /// It has access now.
    Granted(GrantId, Option<Handout>),
    /// Any other answer of the machine; [`Begin::Busy`] only if nobody was to wait.
    Answered(Begin, GrantId),
    /// It waits.
    Queued(Ticket, Arc<Waiter>, GrantId),
}

impl BufferInner {
    /// Changes the state under the lock, lets in whom the change lets in, and tells them after the lock is given up.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Core, &dyn Routes) -> R) -> R {
        let routes: &dyn Routes = &self.platform.0.topology;
        let mut core = self.core.lock();
        let result = change(&mut core, routes);
        let aftermath = self.aftermath(&mut core, routes);
        drop(core);
        self.act(aftermath);
        result
    }

    /// Looks at the state under the lock, and changes nothing.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&Core) -> R) -> R {
        read(&self.core.lock())
    }

    fn aftermath(&self, core: &mut Core, routes: &dyn Routes) -> Aftermath {
        let mut aftermath = Aftermath::default();
        // What is gone is told before who is let in for that.
        for arena in core.drop_unused().iter() {
            self.record(|| EventKind::Freed { arena });
        }
        let admitted = core.state.pump(routes);
        for admission in &admitted {
            self.record_begin(&admission.request, &admission.begin);
        }
        core.waiters.admit(admitted, &mut aftermath.wakes);
        let ends = core.state.lifecycle() == Lifecycle::Closed && !core.is_ended;
        if (ends || !core.to_free.is_empty()) && !core.is_freeing {
            core.is_freeing = true;
            aftermath.frees = true;
        }
        #[cfg(debug_assertions)]
        if let (Err(violation), false) = (core.state.check_invariants(routes), std::thread::panicking()) {
            panic!("{}: {violation}\n{:#?}", self.id, core.state);
        }
        aftermath
    }

    fn act(&self, aftermath: Aftermath) {
        // First, because whoever is called below may wait for an answer that this thread has.
        let calls = aftermath.wakes.deliver();
        if aftermath.frees {
            self.free_all();
        }
        calls.call();
    }

    /// Frees blocks until there are none left to free, those that other threads add meanwhile too.
    fn free_all(&self) {
        loop {
            let mut core = self.core.lock();
            let storages = Core::in_order(std::mem::take(&mut core.to_free));
            if storages.is_empty() {
                core.is_freeing = false;
                core.is_ended = core.state.lifecycle() == Lifecycle::Closed;
                drop(core);
                self.closed.notify_all();
                return;
            }
            drop(core);
            for (arena, storage) in storages {
                self.free(arena, storage);
            }
        }
    }

    fn free(&self, arena: ArenaId, storage: Storage) {
        let Storage { block, host, root_host, mapped, shown, order } = storage;
        if let (FreeOrder::External, Some(host)) = (order, &host) {
            // The application may do with its bytes what it likes.
            host.span().note_write();
        }
        // The memory first: a block may end a mapping when it goes.
        [host, mapped].into_iter().for_each(engine::quietly);
        [root_host, shown].into_iter().for_each(engine::quietly);
        engine::free(&self.platform, arena, block);
    }

    /// Puts a request; with `queue`, it waits where it cannot be granted now.
    pub(crate) fn ask(
        &self,
        (kernel, arena, claims): (KernelId, ArenaId, Claims),
        queue: bool,
        origin: &'static Location<'static>,
    ) -> Asked {
        self.change(|core, routes| {
            let grant = core.new_grant();
            let request = Request { kernel, grant, arena, claims };
            match core.state.begin(routes, &request) {
                Begin::Busy { .. } if queue => {
                    core.next_ticket += 1;
                    let ticket = Ticket(core.next_ticket);
                    self.record(|| EventKind::Queued { ticket, kernel });
                    core.state.enqueue(ticket, request);
                    Asked::Queued(ticket, core.waiters.add(ticket), grant)
                }
                begin => {
                    self.record_begin(&request, &begin);
                    match begin {
                        Begin::Granted(_) => {
                            let storage = Some(arena).filter(|_| !request.claims.is_empty());
                            Asked::Granted(grant, self.hand_out(core, grant, storage, origin))
                        }
                        begin => Asked::Answered(begin, grant),
                    }
                }
            }
        })
    }

    /// Gives a waiting request up; what it had been granted already and had not heard of is given back.
    pub(crate) fn cancel(&self, ticket: Ticket, waiter: &Waiter, grant: GrantId) {
        let waiting = self.change(|core, _| {
            core.waiters.remove(ticket);
            let waiting = core.state.cancel(ticket);
            self.record(|| EventKind::Cancelled { ticket });
            waiting
        });
        if waiting {
            return;
        }
        // It was let in: whoever did it delivers the answer right after giving the lock up, before it
        // runs any code but core's.
        match waiter.sleep(None) {
            Some(Begin::Granted(_)) => drop(self.release(grant, Outcome::NotStarted)),
            Some(Begin::Plan(plan)) => self.change(|core, routes| {
                let aborted = Execution::new(plan).give_up(routes, &mut core.state);
                self.record(|| aborted);
            }),
            _ => {}
        }
    }

    /// Ends a grant.
    pub(crate) fn release(&self, grant: GrantId, outcome: Outcome) -> Result<(), AcquireError> {
        let released = self.change(|core, routes| {
            let arena =
                core.state.requestors().iter().find(|entry| entry.grant == grant).map(|entry| entry.arena);
            let released = core.state.release(routes, grant, outcome);
            core.origins.remove(&grant);
            if let Ok(release) = released {
                self.record(|| EventKind::Released {
                    grant,
                    outcome: release.outcome,
                    commit: release.commit,
                });
            }
            released.map(|release| (release, arena))
        });
        match released {
            Ok((release, Some(arena))) if release.outcome != outcome => Err(self.lost(arena)),
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.refused(refusal, None)),
        }
    }

    /// What a refusal of the machine means to a caller.
    pub(crate) fn refused(&self, refusal: Refusal, asker: Option<(KernelId, ArenaId)>) -> AcquireError {
        let buffer = self.name();
        let (kernel, arena) = asker.unwrap_or_default();
        match refusal {
            Refusal::Closed => AcquireError::Closed { buffer },
            Refusal::Wedged => AcquireError::Wedged { buffer },
            Refusal::AlreadyHeld { span } => AcquireError::AlreadyHeld { buffer, kernel, span },
            Refusal::Uninitialized { span } => AcquireError::Uninitialized { buffer, span },
            Refusal::Poisoned { span, restorable } => AcquireError::Poisoned { buffer, span, restorable },
            Refusal::Unreachable { span } => {
                AcquireError::Unreachable { buffer, arena: self.arena_name(arena), span }
            }
            Refusal::TooManyGrants => AcquireError::TooManyGrants { buffer, arena: self.arena_name(arena) },
            Refusal::DeviceLost => self.lost(arena),
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

    /// The buffer's name, for people.
    pub(crate) fn name(&self) -> BufferName {
        self.name.clone()
    }

    /// The error of an arena whose device is gone.
    fn lost(&self, arena: ArenaId) -> AcquireError {
        let loss = engine::guard(|| self.platform.arena(arena).loss()).unwrap_or_default();
        AcquireError::DeviceLost { buffer: self.name(), arena: self.arena_name(arena), loss }
    }

    /// An arena kept what it was lent, and may touch the storage whenever it likes: the storage is never given back.
    pub(crate) fn wedge_lent(&self) {
        self.change(|core, _| {
            core.state.wedge();
            core.is_leaked = true;
            std::mem::forget(core.external.take());
            core.storages.iter().for_each(|(_, storage)| storage.keep_for_ever());
        });
    }

    /// A device is gone. A buffer that knows it already stays as it is: losses are declared by whoever meets them.
    pub(crate) fn device_lost(&self, device: DeviceId) {
        self.change(|core, routes| {
            if core.state.knows_lost(routes, device) {
                return;
            }
            core.state.device_lost(routes, device);
            self.record(|| EventKind::DeviceLost { device });
        });
    }

    /// Refuses new requests and waits until the last grant and copy is gone, or until `deadline`; whether they are.
    fn close(&self, deadline: Option<Instant>, before_waiting: impl FnOnce()) -> bool {
        let refused = self.change(|core, routes| {
            self.record(|| EventKind::Closed);
            let refused = core.state.close(routes);
            let mut wakes = Wakes::default();
            core.waiters.admit(refused, &mut wakes);
            wakes
        });
        refused.deliver().call();
        before_waiting();
        let mut core = self.core.lock();
        while !core.is_ended {
            match deadline {
                None => core = self.closed.wait(core),
                Some(deadline) => {
                    let (guard, timed_out) = self.closed.wait_until(core, deadline);
                    core = guard;
                    if timed_out {
                        return core.is_ended;
                    }
                }
            }
        }
        true
    }

    /// The grants that have not ended.
    pub(crate) fn outstanding(&self) -> Vec<Outstanding> {
        let name = self.name();
        let entries = self.read(|core| {
            let with_origin = |entry: &Requestor| (entry.clone(), core.origins.get(&entry.grant).copied());
            core.state.requestors().iter().map(with_origin).collect::<Vec<_>>()
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

    /// What a grant hands out: an arena's storage, or nothing where no bytes were asked for. Where it was acquired is
    /// noted, if anybody records.
    pub(crate) fn hand_out(
        &self,
        core: &mut Core,
        grant: GrantId,
        storage: Option<ArenaId>,
        origin: &'static Location<'static>,
    ) -> Option<Handout> {
        if self.platform.0.recorder.is_on() {
            core.origins.insert(grant, (origin, std::thread::current().id()));
        }
        core.handout(storage?)
    }
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        self.platform.0.registry.forget(self.id);
        let core = self.core.get_mut();
        let storages: Vec<_> =
            std::mem::take(&mut core.storages).into_iter().chain(core.to_free.drain(..)).collect();
        let external = core.external.take();
        for (arena, storage) in Core::in_order(storages) {
            self.platform.0.recorder.record(self.id, || EventKind::Freed { arena });
            self.free(arena, storage);
        }
        drop(external);
    }
}

impl fmt::Debug for BufferInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.id, self.len)
    }
}

/// The buffers of a platform that are alive, for what concerns them all.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<BTreeMap<BufferId, Weak<BufferInner>>>);

impl Registry {
    pub(crate) fn live(&self) -> Vec<Arc<BufferInner>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }

    fn add(&self, buffer: &Arc<BufferInner>) {
        self.0.lock().insert(buffer.id, Arc::downgrade(buffer));
    }

    fn forget(&self, id: BufferId) {
        self.0.lock().remove(&id);
    }
}

/// How a buffer is made.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) len: u64,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) element_bytes: u64,
}

/// A buffer of bytes whose contents may be replicated in several arenas. Ranges are in bytes.
///
/// Cheap to clone: clones name the same buffer. Its storage is freed when the last clone, grant and copy are gone.
#[derive(Clone, Debug)]
pub struct RawBuffer(pub(crate) Arc<BufferInner>);

impl RawBuffer {
    pub(crate) fn create(platform: &Platform, made: Made, initial: Initial) -> Result<Self, ConfigError> {
        if isize::try_from(made.len).is_err() {
            return Err(ConfigError::TooLarge { elements: made.len, element_bytes: 1 });
        }
        Ok(Self::make(platform, made, initial, None))
    }

    /// A buffer over storage of the application's, which holds its first contents: the container, and its memory as an
    /// arena's block.
    pub(crate) fn with_storage(
        platform: &Platform,
        made: Made,
        arena: ArenaId,
        (container, memory, block): (External, HostMemory, BlockRef),
    ) -> Self {
        let storage = Storage::new(block, Some(memory), FreeOrder::External);
        Self::make(platform, made, Initial::External(arena), Some((container, storage)))
    }

    fn make(
        platform: &Platform,
        made: Made,
        initial: Initial,
        external: Option<(External, Storage)>,
    ) -> Self {
        let Made { len, label, element_bytes } = made;
        platform.0.topology.price_up_to(len);
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut core = Core {
            state: BufferState::new(&platform.0.topology, len, initial),
            storages: SmallVec::new(),
            waiters: Waiters::default(),
            next_ticket: 0,
            next_grant: 0,
            external: None,
            to_free: Vec::new(),
            map_changes: 0,
            is_freeing: false,
            is_leaked: false,
            is_ended: false,
            origins: Origins::new(),
        };
        let data_in = match initial {
            Initial::External(arena) => Some(arena),
            _ => None,
        };
        if let (Some(arena), Some((container, storage))) = (data_in, external) {
            core.put(arena, storage);
            core.external = Some(container);
        }
        let id = BufferId(NEXT.fetch_add(1, Ordering::Relaxed));
        let inner = Arc::new(BufferInner {
            id,
            name: BufferName::new(id, label, element_bytes),
            len,
            platform: platform.clone(),
            core: Mutex::new(core),
            closed: Condvar::new(),
        });
        inner.record(|| EventKind::Created { len, data_in, zeroed: initial == Initial::Zeroed });
        platform.0.registry.add(&inner);
        // A loss declared before the buffer was registered has passed it by.
        for device in platform.lost_devices().iter() {
            inner.device_lost(device);
        }
        Self(inner)
    }

    /// The buffer's id; its order is the canonical acquire order.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.0.id
    }

    /// The buffer's name in errors: its id, and its label if it has one.
    #[must_use]
    pub fn name(&self) -> BufferName {
        self.0.name()
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The platform it belongs to.
    #[must_use]
    pub fn platform(&self) -> &Platform {
        &self.0.platform
    }

    /// Part of the buffer, for an acquire. The range is checked there.
    #[must_use]
    pub fn range(&self, bytes: Range<u64>) -> acquire::RawRange {
        acquire::RawRange::new(self.clone(), bytes)
    }

    /// The state as it is now, for diagnostics and tests.
    #[must_use]
    pub fn snapshot(&self) -> BufferState {
        self.0.read(|core| core.state.clone())
    }

    /// Whether all of these bytes could be read by somebody: they were written, or are zeros from the start, and no loss or
    /// failed writer has taken them since. It says nothing of who holds them now.
    ///
    /// # Errors
    /// [`AcquireError::OutOfRange`].
    pub fn is_readable(&self, bytes: Range<u64>) -> Result<bool, AcquireError> {
        let span = self.span(&bytes)?;
        Ok(self.0.read(|core| core.state.is_readable(span)))
    }

    /// Makes bytes valid in a device's arena ahead of their use, on the calling thread, without granting anything.
    ///
    /// # Errors
    /// As an acquire for reading that does not wait; [`AcquireError::Busy`] also while other requests wait.
    pub fn prefetch(&self, device: DeviceId, bytes: Range<u64>) -> Result<(), AcquireError> {
        let arena = self.0.platform.home(device).ok_or(AcquireError::NoArena { device })?;
        let span = self.span(&bytes)?;
        let begin = self.0.change(|core, routes| {
            let owner = core.new_grant();
            core.state.prefetch(routes, owner, arena, span)
        });
        match begin {
            Begin::Granted(_) => Ok(()),
            Begin::Plan(plan) => engine::Run::new(self, plan, Location::caller()).wait().map(|_| ()),
            Begin::Busy { reason, .. } => Err(AcquireError::Busy { buffer: self.0.name(), reason }),
            Begin::Refused(refusal) => Err(self.0.refused(refusal, Some((KernelId::default(), arena)))),
        }
    }

    /// Gives poisoned bytes their last committed contents back.
    ///
    /// # Errors
    /// [`AcquireError::Closed`], [`AcquireError::NotRestorable`] where they are lost, [`AcquireError::Busy`] while a kernel holds some of the
    /// bytes, [`AcquireError::OutOfRange`].
    pub fn restore(&self, bytes: Range<u64>) -> Result<(), AcquireError> {
        let span = self.span(&bytes)?;
        let restored = self.0.change(|core, _| {
            let restored = core.state.restore(span);
            if restored == Ok(true) {
                self.0.record(|| EventKind::Restored { span });
            }
            restored
        });
        match restored {
            Ok(true) => Ok(()),
            Ok(false) => Err(AcquireError::Busy { buffer: self.0.name(), reason: BusyReason::Conflict }),
            Err(refusal) => Err(self.0.refused(refusal, None)),
        }
    }

    /// Frees an arena's storage for this buffer.
    ///
    /// # Errors
    /// [`AcquireError::NotFreeable`] while it is used, shared, or the only holder of some contents;
    /// [`AcquireError::NoSuchArena`].
    pub fn free(&self, arena: ArenaId) -> Result<(), AcquireError> {
        self.0.platform.knows(arena)?;
        // The block goes with what follows every change: storage that the state does not know of is freed.
        let freed = self.0.change(|core, routes| core.state.free(routes, arena));
        freed.map_err(|reason| {
            let (buffer, arena) = (self.0.name(), self.0.arena_name(arena));
            AcquireError::NotFreeable { buffer, arena, reason }
        })
    }

    /// Lets `arena`, which has no storage, share that of `root`: data then moves between the two by a change of map
    /// state alone.
    ///
    /// # Errors
    /// [`AcquireError::NotBindable`] where no link binds the two or their state does not allow it,
    /// [`AcquireError::Alloc`] where the arena refuses the storage.
    pub fn bind(&self, arena: ArenaId, root: ArenaId) -> Result<(), AcquireError> {
        self.0.platform.knows(arena)?;
        self.0.platform.knows(root)?;
        let refused = |reason| AcquireError::NotBindable {
            buffer: self.0.name(),
            arena: self.0.arena_name(arena),
            root: self.0.arena_name(root),
            reason,
        };
        let concurrency = self.0.platform.binding(arena, root).ok_or_else(|| refused(BindRefusal::NoLink))?;
        let plan = self.0.change(|core, _| {
            let owner = core.new_grant();
            core.state.bind(owner, arena, root, concurrency)
        });
        engine::Run::new(self, plan.map_err(refused)?, Location::caller()).wait().map(|_| ())
    }

    /// Refuses new requests and those that wait, waits until the last grant and copy is gone, and frees all storage.
    /// Dropping the last clone of a buffer does the same without waiting.
    ///
    /// A thread that closes a buffer of which it holds a grant, or a future that has begun to fetch it, waits for itself, and
    /// one that closes a buffer of which a grant was forgotten waits for ever, as does an arena that closes a buffer while it
    /// frees storage of it: see [`close_timeout`](Self::close_timeout).
    pub fn close(&self) {
        self.0.close(None, || {});
    }

    /// As [`close`](Self::close), for a limited time. The buffer takes nobody any more, whether the time was enough or not.
    ///
    /// # Errors
    /// [`AcquireError::StillHeld`] with the grants that have not ended.
    pub fn close_timeout(&self, timeout: Duration) -> Result<(), AcquireError> {
        if self.0.close(Instant::now().checked_add(timeout), || {}) {
            return Ok(());
        }
        let (buffer, outstanding) = (self.0.name(), self.0.outstanding());
        Err(AcquireError::StillHeld { buffer, waited: timeout, outstanding })
    }

    /// The grants of the buffer that have not ended: by whom, of which bytes, and, where events are
    /// [recorded](Platform::record), where they were acquired. What is still here when it should not be was forgotten.
    #[must_use]
    pub fn leaked_grants(&self) -> Vec<Outstanding> {
        self.0.outstanding()
    }

    /// Closes the buffer while `reading` still holds it, so that nobody comes in between.
    pub(crate) fn close_after(&self, reading: Grants) {
        self.0.close(None, || drop(reading));
    }

    /// Whether the buffer holds storage of the application.
    pub(crate) fn has_external(&self) -> bool {
        self.0.read(|core| core.external.is_some())
    }

    /// Closes the buffer and gives the application's container back, the latest contents in it: `reading` keeps them
    /// there until everybody else has gone. Of several who ask, one gets it.
    pub(crate) fn close_taking(&self, reading: Grants) -> Result<External, AcquireError> {
        self.0.close(None, || drop(reading));
        let (container, is_leaked) = self.0.change(|core, _| (core.external.take(), core.is_leaked));
        let buffer = self.0.name();
        container.ok_or(if is_leaked {
            AcquireError::Wedged { buffer }
        } else {
            AcquireError::Closed { buffer }
        })
    }

    pub(crate) fn span(&self, bytes: &Range<u64>) -> Result<Span, AcquireError> {
        let out = || AcquireError::OutOfRange {
            buffer: self.0.name(),
            start: bytes.start,
            end: bytes.end,
            len: self.0.len,
        };
        Span::checked(bytes, self.0.len).ok_or_else(out)
    }
}

impl PartialEq for RawBuffer {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for RawBuffer {}
