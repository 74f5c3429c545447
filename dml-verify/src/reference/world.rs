//! Carries operations out on a real platform, and checks every answer against the model.

use super::ask::{Ask, AskId, Momentary, Part, Waits};
use super::cell::Sure;
use super::fault::{Armed, Scope, no_trace};
use super::judge::{Answer, about};
use super::model::Model;
use super::op::{Beginning, Does, End, Make, NONE, Op, Want, Way};
use super::request::{Held, Item, Request, Waiting, out_of_range};
use super::submit::Stream;
use crate::history::Audited;
use crate::{CPU, MAIN_ARENA, Rig, Watched, byte, check, live_blocks, poll_once, watched};
use dml_core::internal::state::{BufferState, Lifecycle};
use dml_core::{
    Access, Acquire, AcquireError, ArenaId, ArenaSet, BufferId, DeviceId, Fence, Grants, Pattern, Platform,
    RawBuffer, TransferError,
};
use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;
use std::time::Duration;

/// Counts what happened in a sequence, to show whether the sequence was worth running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations carried out, including those of [`World::finish`].
    pub operations: u64,
    /// Requests granted.
    pub granted: u64,
    /// Requests refused for good, and other operations refused.
    pub refused: u64,
    /// Requests answered with busy, or left waiting.
    pub busy: u64,
    /// Requests that waited and were granted.
    pub let_in: u64,
    /// Requests that were cancelled while they waited.
    pub given_up: u64,
    /// Operations that failed by a scripted fault.
    pub faults: u64,
    /// Requests that waited while a fault struck.
    pub waited_through_faults: u64,
    /// Submitted kernels that ended well.
    pub computed: u64,
    /// Submitted kernels that failed, or ended with one that failed.
    pub failed: u64,
}

impl Tally {
    /// Adds the counts of another tally.
    pub fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.granted += other.granted;
        self.refused += other.refused;
        self.busy += other.busy;
        self.let_in += other.let_in;
        self.given_up += other.given_up;
        self.faults += other.faults;
        self.waited_through_faults += other.waited_through_faults;
        self.computed += other.computed;
        self.failed += other.failed;
    }
}

/// A platform with its buffers, grants and waiting requests, and the model of all of them.
pub struct World {
    pub(super) platform: Audited,
    pub(super) model: Model,
    /// The buffers that operations name, by their index in the model.
    slots: Vec<(usize, RawBuffer)>,
    foreign: Option<RawBuffer>,
    held: Vec<Held>,
    waiting: Vec<Waiting>,
    /// The submitted kernels of each arena.
    pub(super) streams: BTreeMap<ArenaId, Stream>,
    closing: Vec<(usize, Watched<()>)>,
    pub(super) armed: Option<Armed>,
    /// Whether the fault has struck.
    is_spent: bool,
    /// Whether the operation that the fault struck is to be repeated.
    again: bool,
    /// The kernel and parts of every request answered during this operation, because each may have held bytes
    /// briefly.
    during: Vec<Momentary>,
    pub(super) tally: Tally,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("model", &self.model)
            .field("tally", &self.tally)
            .finish_non_exhaustive()
    }
}

fn must<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|why| panic!("{why}"))
}

impl World {
    /// Makes the buffers. With `armed`, one call of the platform fails as the fault says.
    #[must_use]
    pub fn new(platform: Audited, buffers: &[Make], armed: Option<Armed>) -> Self {
        let model = Model::new(&platform);
        let mut world = Self {
            platform,
            model,
            slots: Vec::new(),
            foreign: None,
            held: Vec::new(),
            waiting: Vec::new(),
            streams: BTreeMap::new(),
            closing: Vec::new(),
            armed,
            is_spent: false,
            again: false,
            during: Vec::new(),
            tally: Tally::default(),
        };
        for make in buffers {
            let made = world.make(*make);
            world.slots.push(made);
        }
        world
    }

    fn make(&mut self, make: Make) -> (usize, RawBuffer) {
        let version = self.model.new_version();
        // Hints decide where storage is made first, and change no answer.
        let builder = self.platform.raw_buffer(make.len);
        let builder = match make.len % 7 {
            1 | 2 => builder.pattern(Pattern::ToAndFro),
            3 => builder.pattern(Pattern::ReadMostly),
            4 => builder.used_by([CPU]),
            _ => builder,
        };
        let buffer = match make.beginning {
            Beginning::Unwritten => builder.build().expect("a small buffer"),
            Beginning::Zeros => builder.zeroed().build().expect("a small buffer"),
            Beginning::External => self.attach((0..make.len).map(|at| byte(version, at)).collect()),
        };
        (self.model.add_buffer(buffer.id(), make, version, MAIN_ARENA), buffer)
    }

    /// Makes a buffer over storage of the application. After a fault, checks that the storage came back, and
    /// tries again.
    fn attach(&mut self, storage: Vec<u8>) -> RawBuffer {
        let kept = storage.clone();
        let made = catch_unwind(AssertUnwindSafe(|| self.platform.buffer_from(storage)));
        let again = match made {
            Ok(Ok(buffer)) => return buffer.raw().clone(),
            Ok(Err(unstored)) => unstored.storage,
            // A panicking arena drops the storage that it was given.
            Err(_) => kept.clone(),
        };
        assert!(self.armed.is_some() && !self.is_spent, "the storage was refused without a reason");
        assert_eq!(again, kept, "the storage comes back as it was");
        self.strike();
        self.platform.buffer_from(again).expect("works the second time").raw().clone()
    }

    fn strike(&mut self) {
        self.is_spent = true;
        self.tally.faults += 1;
        self.tally.waited_through_faults += u64::from(!self.waiting.is_empty());
    }

    /// Carries an operation out. An operation that fails by a scripted fault is repeated, and must then
    /// succeed.
    ///
    /// # Panics
    /// When an answer, or the state left behind, contradicts the model.
    pub fn step(&mut self, op: &Op) {
        self.tally.operations += 1;
        self.apply(op);
        self.settle();
        if std::mem::take(&mut self.again) {
            self.apply(op);
            self.settle();
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Acquire { way, kernel, arena, ref wants, looks } => {
                let items = self.items(wants);
                let kernel = (kernel < super::op::KERNELS).then_some(u64::from(kernel));
                self.request(Request { way, kernel, arena: self.arena(arena), items, looks });
            }
            Op::Submit { arena, ref wants, does, is_in_order, skip, times } => {
                let device = self.device(self.arena(arena));
                let items = self.items(wants);
                for left in (0..times).rev() {
                    let does = if left == 0 { does } else { Does::Computes };
                    if !self.submit(device, &items, (does, is_in_order, skip)) {
                        break;
                    }
                }
            }
            Op::Settle { arena } => self.settle_device(self.device(self.arena(arena))),
            Op::Wait { which } => self.wait_for(which),
            Op::Poll { which } => {
                if let Some(index) = around(which, self.waiting.len()) {
                    self.poll(index);
                }
            }
            Op::Cancel { which } => {
                if let Some(waiting) = taken(&mut self.waiting, which) {
                    drop(waiting.future);
                    self.model.give_up(waiting.id);
                    self.tally.given_up += 1;
                }
            }
            Op::Release { which, end, skip } => {
                if let Some(held) = taken(&mut self.held, which) {
                    self.release(held, end, skip);
                }
            }
            Op::Downgrade { which } => {
                if let Some(held) = taken(&mut self.held, which) {
                    self.downgrade(held);
                }
            }
            Op::Prefetch { buffer, arena, bytes } => {
                let (index, raw) = self.slot(buffer);
                self.prefetch(index, &raw, self.arena(arena), &bytes.of(raw.len()));
            }
            Op::Restore { buffer, bytes } => {
                let (index, raw) = self.slot(buffer);
                let range = bytes.of(raw.len());
                let result = raw.restore(range.clone());
                if let Some(expected) = out_of_range(&raw, &range) {
                    assert_eq!(result, Err(expected));
                } else {
                    must(self.model.judge_restore(index, &range, &result));
                }
            }
            Op::Free { buffer, arena } => {
                let (index, raw) = self.slot(buffer);
                let arena = self.arena(arena);
                let result = raw.free(arena);
                if arena.0 >= self.model.arenas {
                    assert_eq!(result, Err(AcquireError::NoSuchArena { arena }));
                } else {
                    must(self.model.judge_free(index, arena, &result));
                }
            }
            Op::Bind { buffer, arena, root } => {
                let (index, raw) = self.slot(buffer);
                self.bind(index, &raw, self.arena(arena), self.arena(root));
            }
            Op::Close { buffer } => {
                let (index, raw) = self.slot(buffer);
                self.close(index, &raw);
            }
            Op::Renew { buffer, make } => {
                let slot = around(buffer, self.slots.len()).expect("there are buffers");
                let made = self.make(make);
                self.slots[slot] = made;
            }
            Op::Lose { arena } => self.lose(self.arena(arena)),
        }
    }

    fn arena(&self, drawn: u8) -> ArenaId {
        if drawn == NONE { ArenaId(self.model.arenas) } else { ArenaId(drawn % self.model.arenas) }
    }

    /// Returns the device of an arena, or one that no arena belongs to.
    fn device(&self, arena: ArenaId) -> DeviceId {
        let known = arena.0 < self.model.arenas;
        if known { self.platform.desc(arena).native } else { DeviceId(63) }
    }

    fn slot(&self, drawn: u8) -> (usize, RawBuffer) {
        self.slots[around(drawn, self.slots.len()).expect("there are buffers")].clone()
    }

    fn items(&mut self, wants: &[Want]) -> Vec<Item> {
        wants.iter().map(|want| self.item(want.buffer, want.bytes, want.access)).collect()
    }

    fn item(&mut self, drawn: u8, bytes: super::op::Bytes, access: Access) -> Item {
        let (index, raw) = if drawn == NONE {
            let foreign = || {
                let platform: Platform = Rig::new().plain();
                platform.raw_buffer(9).build().expect("a small buffer")
            };
            (None, self.foreign.get_or_insert_with(foreign).clone())
        } else {
            let (index, raw) = self.slot(drawn);
            (Some(index), raw)
        };
        let range = bytes.of(raw.len());
        Item { index, raw, range, access }
    }

    /// Passes an answer to the model. Returns whether the answer is the error of the scripted fault.
    pub(super) fn answered(
        &mut self,
        id: AskId,
        request: &Request,
        before: &Before,
        answer: Answer<'_>,
    ) -> bool {
        let ask = &self.model.asks[&id];
        let momentary = ask.parts.iter().map(|part| Momentary { kernel: ask.kernel, part: part.clone() });
        self.during.extend(momentary);
        let mut is_fault = false;
        let answer = match answer {
            Answer::Error(error) if Armed::is_fault(error) => {
                is_fault = true;
                Answer::Fault(self.explained(&request.scope(), before, error))
            }
            other => other,
        };
        match &answer {
            Answer::Granted => self.tally.granted += 1,
            Answer::Error(error) if error.is_busy() => self.tally.busy += 1,
            Answer::Waits(_) => self.tally.busy += 1,
            Answer::Error(_) => self.tally.refused += 1,
            Answer::Fault(_) => {}
        }
        must(self.model.answered(id, &answer).map_err(|why| format!("{request:?}: {why}")));
        is_fault
    }

    /// Checks that an error is that of the armed fault, and that the failed operation left no trace in the
    /// states.
    fn explained(&mut self, scope: &Scope, before: &Before, error: &AcquireError) -> BufferId {
        let armed = self.armed.clone().unwrap_or_else(|| panic!("nothing was to fail: {error:?}"));
        assert!(!self.is_spent, "the fault has struck already: {error:?}");
        must(armed.explains(&self.platform, scope, error));
        self.strike();
        self.again = true;
        for (raw, before) in before {
            let trace = no_trace(before, &raw.snapshot(), scope);
            must(trace.map_err(|why| format!("{why}: call {}, {error}", armed.calls(&self.platform))));
        }
        about(error).expect("such errors name a buffer")
    }

    /// Snapshots of the buffers before an operation, as long as a fault may still strike.
    pub(super) fn before(&self) -> Before {
        let raws = self.slots.iter().filter(|_| self.armed.is_some() && !self.is_spent);
        raws.map(|(_, raw)| (raw.clone(), raw.snapshot())).collect()
    }

    pub(super) fn request(&mut self, request: Request) {
        let before = self.before();
        let asked = request.ask(&self.platform);
        let refused = request.refused(self.model.arenas);
        if let Some(expected) = refused {
            self.tally.refused += 1;
            assert_eq!(at_once(request.way, asked).err(), Some(expected), "{request:?}");
            return;
        }
        let highest = self.highest_held();
        let id = self.model.ask(request.kernel, request.arena, request.parts());
        if matches!(request.way, Way::Lazy | Way::Eager) {
            self.waiting.push(Waiting::new(id, asked.into_future(), request));
            self.poll(self.waiting.len() - 1);
            return;
        }
        let result = at_once(request.way, asked);
        // A request may wait only if every buffer that this thread holds comes before the one it waits for.
        let waited_for = match &result {
            Err(AcquireError::Timeout { buffer, .. } | AcquireError::OrderViolation { buffer, .. }) => {
                Some(buffer.id())
            }
            _ => None,
        };
        let later = highest.map(|index| self.model.buffers[index].id);
        let later = later.filter(|later| waited_for.is_some_and(|waited_for| *later >= waited_for));
        match result {
            Ok(grants) => {
                self.answered(id, &request, &before, Answer::Granted);
                self.hold(id, request, grants);
            }
            Err(AcquireError::Timeout { buffer, waited }) if request.way == Way::Timeout => {
                assert_eq!(waited, Duration::ZERO);
                assert_eq!(later, None, "{request:?} may deadlock, and waited for {buffer}");
                self.answered(id, &request, &before, Answer::Waits(buffer.id()));
                self.model.give_up(id);
            }
            // The request would have had to wait while this thread holds a later buffer.
            Err(AcquireError::OrderViolation { buffer, held }) if request.way == Way::Timeout => {
                assert!(
                    later.is_some_and(|later| later == held.id() && held.id() >= buffer.id()),
                    "{buffer} {held}"
                );
                self.answered(id, &request, &before, Answer::Waits(buffer.id()));
                self.model.give_up(id);
            }
            Err(error) => {
                assert!(request.way == Way::Try || !error.is_busy(), "{error} of one that would have waited");
                self.answered(id, &request, &before, Answer::Error(&error));
            }
        }
    }

    /// The highest buffer of which this thread holds some bytes. Submitted kernels belong to no thread.
    fn highest_held(&self) -> Option<usize> {
        let holds = |part: &&Part| part.bytes.iter().any(Option::is_some);
        let granted = |ask: &Ask| ask.parts[..ask.granted].iter().filter(holds).map(|part| part.buffer).max();
        let asks = self.model.asks.iter().filter(|(id, _)| !self.is_submitted(**id));
        asks.filter_map(|(_, ask)| granted(ask)).max()
    }

    fn hold(&mut self, id: AskId, request: Request, grants: Grants) {
        let held = Held { id, grants, request };
        if held.request.looks {
            held.look(&self.model);
        }
        self.held.push(held);
    }

    fn poll(&mut self, index: usize) {
        let before = self.before();
        let mut waiting = self.waiting.swap_remove(index);
        let tickets = waiting.tickets();
        let was_new = self.model.asks[&waiting.id].waits.is_none();
        match waiting.poll_past_copies(&tickets) {
            Poll::Pending => {
                let at = match self.model.asks[&waiting.id].waits {
                    Some(Waits::Queued) => waiting.at,
                    _ => waiting.queued_at(),
                };
                let at = at.expect("it waits for one of its buffers");
                waiting.at = Some(at);
                let request = waiting.request.clone();
                self.answered(waiting.id, &request, &before, Answer::Waits(at));
                self.waiting.push(waiting);
            }
            Poll::Ready(Ok(grants)) => {
                let Waiting { id, request, .. } = waiting;
                self.answered(id, &request, &before, Answer::Granted);
                self.tally.let_in += u64::from(!was_new);
                self.hold(id, request, grants);
            }
            Poll::Ready(Err(error)) => {
                let Waiting { id, request, future, .. } = waiting;
                let is_fault = self.answered(id, &request, &before, Answer::Error(&error));
                drop(future);
                if is_fault {
                    // The request is made again at once: the fault strikes only once.
                    self.again = false;
                    self.settle();
                    self.request(request);
                }
            }
        }
    }

    /// Tells the model which requests were woken, and polls the eager ones, until no request is woken.
    fn settle(&mut self) {
        loop {
            for (_, raw) in &self.slots {
                check(raw);
            }
            let woken: Vec<AskId> =
                self.waiting.iter_mut().filter_map(|waiting| waiting.has_been_woken()).collect();
            let during = std::mem::take(&mut self.during);
            must(self.model.woken(&woken, &during));
            must(self.model.stuck());
            let eager = self.waiting.iter().position(|waiting| {
                let is_woken = matches!(self.model.asks[&waiting.id].waits, Some(Waits::Woken(..)));
                is_woken && waiting.request.way == Way::Eager
            });
            match eager {
                Some(index) => self.poll(index),
                None if woken.is_empty() => break,
                None => {}
            }
        }
        let model = &self.model;
        let is_over = |(index, _): &mut (usize, Watched<()>)| model.is_quiet(*index);
        self.closing.extract_if(.., is_over).for_each(|(_, closing)| closing.join());
    }

    fn release(&mut self, mut held: Held, end: End, skip: u8) {
        let id = held.id;
        let ask = self.model.asks[&id].clone();
        if held.request.looks {
            // I-4: the bytes are still what they were when granted.
            held.look(&self.model);
        }
        match end {
            End::Done | End::Flown => {
                let written = held.scribble(&mut self.model, skip);
                let grants = match end {
                    End::Flown => held.grants.in_flight(Fence::done(0)).wait().expect("the kernel ends"),
                    _ => held.grants,
                };
                self.heard(&ask, ask.releases(), &grants.release());
                self.model.commit(id, &written, |_| true);
            }
            // A grant dropped after its kernel wrote commits nothing: the kernel counts as failed.
            End::Drop if skip % 2 == 1 => {
                let written = held.scribble(&mut self.model, skip / 2);
                drop(held.grants);
                self.model.fail(id, |part| written.iter().any(|by| by.buffer == part.buffer));
            }
            End::Drop => drop(held.grants),
            End::Failed => {
                let _ = held.scribble(&mut self.model, skip);
                assert_eq!(held.grants.failed(), Ok(()));
                self.model.fail(id, |_| true);
            }
            End::Crashed => {
                let _ = held.scribble(&mut self.model, skip);
                let fence = Fence::running(|| Err(TransferError::DeviceLost { loss: None }));
                let ended = held.grants.in_flight(fence).wait();
                assert_eq!(ended.err(), Some(TransferError::DeviceLost { loss: None }));
                self.model.fail(id, |_| true);
            }
            End::Clean => {
                let overwrites = |part: &Part| part.bytes.contains(&Some(Access::WriteInvalidate));
                let last = ask.parts.iter().rev().find(|part| overwrites(part));
                let refused = last
                    .map(|part| AcquireError::NotClean { buffer: self.model.buffers[part.buffer].id.into() });
                assert_eq!(held.grants.clean(), refused.map_or(Ok(()), Err));
                self.model.fail(id, overwrites);
            }
        }
        self.model.give_up(id);
    }

    fn downgrade(&mut self, mut held: Held) {
        let ask = self.model.asks[&held.id].clone();
        let written = held.scribble(&mut self.model, 0);
        let result = held.grants.downgrade();
        let first = self.heard(&ask, ask.parts.iter(), &result);
        match (result, first) {
            (Ok(grants), _) => {
                self.model.commit(held.id, &written, |_| true);
                self.model.downgrade(held.id);
                held.grants = grants;
                held.request.looks = true;
                held.look(&self.model);
                self.held.push(held);
            }
            (Err(_), first) => {
                let first = first.expect("an error names a buffer");
                self.model.commit(held.id, &written, |part| part.buffer < first);
                self.model.fail(held.id, |part| part.buffer >= first);
                self.model.give_up(held.id);
            }
        }
    }

    /// Checks that the result of ending a grant agrees with the model on lost devices. The parts end in the
    /// order of `parts`. Returns the buffer whose loss the result reports, if it reports one.
    pub(super) fn heard<'a, T>(
        &self,
        ask: &Ask,
        parts: impl Iterator<Item = &'a Part>,
        result: &Result<T, AcquireError>,
    ) -> Option<usize> {
        let hears = self.model.hears_of_loss(ask);
        for part in parts {
            let Some((index, sure)) = hears.iter().find(|(index, _)| *index == part.buffer) else { continue };
            let heard = match result {
                Err(AcquireError::DeviceLost { buffer, arena, .. }) => {
                    *buffer == self.model.buffers[*index].id && arena.id == ask.arena
                }
                _ => false,
            };
            if heard {
                return Some(*index);
            }
            assert!(*sure != Sure::Yes, "{ask:?} did not hear of a lost device: {:?}", result.as_ref().err());
        }
        assert!(result.is_ok(), "{:?} of {ask:?}", result.as_ref().err());
        None
    }

    fn prefetch(&mut self, index: usize, raw: &RawBuffer, arena: ArenaId, range: &Range<u64>) {
        let before = self.before();
        let device = self.device(arena);
        let mut coming = raw.prefetch(device, range.clone());
        let result = match self.model.streams_write(index, range) {
            // The kernels in flight end later.
            true => coming.wait_timeout(Duration::ZERO),
            false => coming.wait(),
        };
        // A prefetch names a device, which has one arena as its home.
        let Some(arena) = self.platform.home(device) else {
            assert_eq!(result, Err(AcquireError::NoArena { device }));
            return;
        };
        if let Some(expected) = out_of_range(raw, range) {
            assert_eq!(result, Err(expected));
            return;
        }
        let scope = Scope {
            kernel: None,
            reads: vec![(raw.id(), range.clone())],
            buffers: vec![(raw.id(), raw.len())],
        };
        let answer = self.answer(&scope, &before, &result);
        must(self.model.prefetched(index, arena, range, &answer));
    }

    fn bind(&mut self, index: usize, raw: &RawBuffer, arena: ArenaId, root: ArenaId) {
        let before = self.before();
        let result = raw.bind(arena, root);
        if let Some(&unknown) = [arena, root].iter().find(|arena| arena.0 >= self.model.arenas) {
            assert_eq!(result, Err(AcquireError::NoSuchArena { arena: unknown }));
            return;
        }
        let scope = Scope { buffers: vec![(raw.id(), raw.len())], ..Scope::default() };
        let answer = self.answer(&scope, &before, &result);
        must(self.model.judge_bind(index, (arena, root), &answer));
    }

    fn answer<'a>(
        &mut self,
        scope: &Scope,
        before: &Before,
        result: &'a Result<(), AcquireError>,
    ) -> Answer<'a> {
        match result {
            Ok(()) => Answer::Granted,
            Err(error) if Armed::is_fault(error) => Answer::Fault(self.explained(scope, before, error)),
            Err(AcquireError::Timeout { buffer, .. }) => Answer::Waits(buffer.id()),
            Err(error) => Answer::Error(error),
        }
    }

    /// Closes a buffer. While grants hold the buffer, a thread of its own makes the blocking call.
    fn close(&mut self, index: usize, raw: &RawBuffer) {
        if self.closing.iter().any(|(closing, _)| *closing == index) {
            return;
        }
        let is_used = self.model.users(index).next().is_some() || self.model.is_admitting(index);
        self.model.buffers[index].is_closed = true;
        if !is_used {
            raw.close();
            assert_eq!(raw.snapshot().lifecycle(), Lifecycle::Closed);
            return;
        }
        let closing = raw.clone();
        self.closing.push((index, watched("close()", move || closing.close())));
        // All waiting requests are told before the next operation, as with a single thread.
        while raw.snapshot().lifecycle() == Lifecycle::Open {
            std::thread::yield_now();
        }
        for waiting in
            self.waiting.iter().filter(|waiting| self.model.buffers[index].queue.contains(&waiting.id))
        {
            waiting.wait_until_woken();
        }
    }

    fn lose(&mut self, arena: ArenaId) {
        if arena.0 >= self.model.arenas {
            // The device does not exist: nothing happens.
            self.platform.device_lost(DeviceId(u16::from(arena.0)));
            return;
        }
        let native = |arena: ArenaId| self.platform.desc(arena).native;
        self.platform.device_lost(native(arena));
        let mut storage = BTreeMap::new();
        let arenas = self.model.arenas;
        let gone = (0..arenas).map(ArenaId).filter(|&other| native(other) == native(arena)).collect();
        let mut note = |index: usize, raw: &RawBuffer| {
            let state = raw.snapshot();
            let lost = (0..arenas).map(ArenaId).filter(|arena| state.arena(*arena).is_lost());
            storage.insert(index, lost.collect::<ArenaSet>());
        };
        self.slots.iter().for_each(|(index, raw)| note(*index, raw));
        let requests = self.held.iter().map(|held| &held.request);
        let requests = requests.chain(self.waiting.iter().map(|waiting| &waiting.request));
        for request in requests.chain(self.streams.values().flat_map(Stream::requests)) {
            request.items.iter().for_each(|item| note(item.index.expect("it was not refused"), &item.raw));
        }
        must(self.model.lose(gone, &storage));
    }

    /// Settles every stream, releases every grant, serves every waiting request, and reads every readable
    /// byte in every arena.
    ///
    /// # Panics
    /// When an answer or a byte contradicts the model, a request waits for ever, or a block is left.
    pub fn finish(mut self) -> Tally {
        for arena in (0..self.model.arenas).map(ArenaId) {
            self.settle_stream(arena);
            self.settle();
        }
        while !(self.held.is_empty() && self.waiting.is_empty()) {
            for held in std::mem::take(&mut self.held) {
                self.release(held, End::Done, 0);
                self.settle();
            }
            let lazy = self
                .waiting
                .iter()
                .position(|waiting| matches!(self.model.asks[&waiting.id].waits, Some(Waits::Woken(..))));
            if let Some(index) = lazy {
                self.poll(index);
                self.settle();
            }
            assert!(
                lazy.is_some() || !self.held.is_empty() || self.waiting.is_empty(),
                "nobody holds anything, and {} wait for ever",
                self.waiting.len()
            );
        }
        for (index, raw) in self.slots.clone().iter().filter(|(_, raw)| !raw.is_empty()) {
            for arena in (0..self.model.arenas).map(ArenaId) {
                for range in self.model.alike(*index) {
                    self.read(*index, raw, arena, range);
                }
            }
        }
        let Self { platform, slots, closing, foreign, tally, armed, .. } = self;
        assert!(closing.is_empty(), "close() has not returned");
        drop((slots, foreign));
        let left = live_blocks(&platform);
        let may_leak = armed.is_some_and(|armed| armed.may_leak());
        assert!(left == 0 || may_leak, "{left} blocks are left");
        tally
    }

    /// Reads some bytes and releases them. With a lost device, the model expects the request to be refused.
    fn read(&mut self, index: usize, raw: &RawBuffer, arena: ArenaId, range: Range<u64>) {
        self.tally.operations += 1;
        let item =
            Item { index: Some(index), raw: raw.clone(), range: range.clone(), access: Access::ReadOnly };
        self.request(Request { way: Way::Try, kernel: None, arena, items: vec![item], looks: true });
        self.settle();
        if let Some(held) = self.held.pop() {
            self.release(held, End::Done, 0);
            self.settle();
        } else if std::mem::take(&mut self.again) {
            self.read(index, raw, arena, range);
        }
    }
}

/// Returns the answer to a request that does not wait.
fn at_once(way: Way, asked: Acquire) -> Result<Grants, AcquireError> {
    match way {
        Way::Try => asked.try_now(),
        Way::Timeout => asked.wait_timeout(Duration::ZERO),
        Way::Lazy | Way::Eager => match poll_once(&mut asked.into_future()) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("the request waits"),
        },
    }
}

/// The state of each buffer before an operation.
pub(super) type Before = Vec<(RawBuffer, BufferState)>;

fn taken<T>(all: &mut Vec<T>, which: u8) -> Option<T> {
    around(which, all.len()).map(|index| all.swap_remove(index))
}

pub(super) fn around(drawn: u8, count: usize) -> Option<usize> {
    (count > 0).then(|| usize::from(drawn) % count.max(1))
}
