//! Requests on a real platform: before they are made, while they wait, and once they are granted.

use super::ask::{AskId, Part};
use super::fault::Scope;
use super::model::{Model, Written};
use super::op::Way;
use crate::{byte, bytes, get, put};
use dml_core::internal::state::CopyPhase;
use dml_core::{
    Access, Acquire, AcquireError, AcquireFuture, ArenaId, BufferId, Grants, KernelId, Platform, RawBuffer,
    Ticket,
};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// One range of one buffer.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The index of the buffer in the model; `None` for a buffer of another platform.
    pub(super) index: Option<usize>,
    pub(super) raw: RawBuffer,
    pub(super) range: Range<u64>,
    pub(super) access: Access,
}

/// A request with everything needed to make it again.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) way: Way,
    pub(super) kernel: Option<u64>,
    pub(super) arena: ArenaId,
    pub(super) items: Vec<Item>,
    pub(super) looks: bool,
}

impl Request {
    /// Returns the request as the interface takes it.
    pub(super) fn ask(&self, platform: &Platform) -> Acquire<'_> {
        let asked = platform.acquire_in(self.arena);
        let asked = match self.kernel {
            Some(kernel) => asked.kernel(KernelId(kernel)),
            None => asked,
        };
        self.items.iter().fold(asked, |asked, Item { raw, range, access, .. }| {
            asked.access_range(raw, range.clone(), *access)
        })
    }

    /// Returns the error that the request must get if it names something that does not exist: the first such
    /// error.
    pub(super) fn refused(&self, arenas: u8) -> Option<AcquireError> {
        if self.arena.0 >= arenas {
            return Some(AcquireError::NoSuchArena { arena: self.arena });
        }
        self.items.iter().find_map(|Item { index, raw, range, .. }| {
            if index.is_none() {
                return Some(AcquireError::ForeignBuffer { buffer: raw.name() });
            }
            out_of_range(raw, range)
        })
    }

    /// Returns what the request wants of each buffer, sorted by buffer.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for item in &self.items {
            let Some(index) = item.index else { continue };
            let known = parts.iter().position(|part| part.buffer == index);
            let at = known.unwrap_or_else(|| {
                parts.push(Part::new(index, item.raw.len()));
                parts.len() - 1
            });
            parts[at].add(item.range.clone(), item.access);
        }
        parts.sort_by_key(|part| part.buffer);
        parts
    }

    /// Reads as a kernel does, and checks what it finds.
    pub(super) fn look(&self, grants: &Grants, expected: &[Found]) {
        for (buffer, run, bytes) in expected {
            let seen = get(grants, self.raw(*buffer), run.clone());
            assert_eq!(seen, *bytes, "buffer {buffer} bytes {run:?} of {self:?}");
        }
    }

    /// Writes as a kernel does.
    pub(super) fn scribble(&self, grants: &mut Grants, written: &[Written]) {
        for Written { buffer, range, version } in written {
            put(grants, self.raw(*buffer), range.start, &bytes(*version, range.clone()));
        }
    }

    pub(super) fn raw(&self, index: usize) -> &RawBuffer {
        let item = self.items.iter().find(|item| item.index == Some(index));
        &item.expect("it was asked for").raw
    }

    /// Returns what the errors of copies for the request may name.
    pub(super) fn scope(&self) -> Scope {
        let parts = self.parts();
        let id = |part: &Part| self.raw(part.buffer).id();
        let reads = parts.iter().flat_map(|part| {
            let runs = part.runs().into_iter().filter(|(_, access)| access.reads());
            runs.map(move |(run, _)| (id(part), run))
        });
        Scope {
            kernel: self.kernel.map(KernelId),
            reads: reads.collect(),
            buffers: parts.iter().map(|part| (id(part), self.raw(part.buffer).len())).collect(),
        }
    }
}

/// Whether a future was woken.
#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A request that waits.
pub(super) struct Waiting {
    pub(super) id: AskId,
    pub(super) future: AcquireFuture,
    pub(super) request: Request,
    /// The buffer that the request waits for.
    pub(super) at: Option<BufferId>,
    /// The last place of the request in a queue.
    place: Option<(RawBuffer, Ticket)>,
    /// Whether the waker of the last poll was called.
    flag: Arc<Flag>,
}

impl Waiting {
    pub(super) fn new(id: AskId, future: AcquireFuture, request: Request) -> Self {
        Self { id, future, request, at: None, place: None, flag: Arc::default() }
    }

    fn poll(&mut self) -> Poll<Result<Grants, AcquireError>> {
        self.flag = Arc::default();
        let waker = Waker::from(self.flag.clone());
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }

    /// Polls until the request is answered or waits for a buffer. Where transfers take time, it waits for the
    /// copies that run: the model knows of no moment between their beginning and their end. Copies of earlier
    /// buffers may run while the request is in the queue of a later one. `tickets` are those before the call.
    pub(super) fn poll_past_copies(
        &mut self,
        tickets: &[Option<Ticket>],
    ) -> Poll<Result<Grants, AcquireError>> {
        let mut is_again = false;
        loop {
            match self.poll() {
                Poll::Pending if !self.is_queued(tickets) || self.is_copying() => {
                    self.wait_until_woken();
                    is_again = false;
                }
                Poll::Pending if !is_again && self.is_lent() => is_again = true,
                answered => return answered,
            }
        }
    }

    /// Returns whether a copy runs on one of the request's buffers. It is one of the request's: others have
    /// waited for theirs.
    fn is_copying(&self) -> bool {
        let is_running =
            |raw: &RawBuffer| raw.snapshot().copies().iter().any(|copy| copy.phase == CopyPhase::Running);
        self.request.items.iter().any(|item| is_running(&item.raw))
    }

    /// Returns whether the waker of the last poll has a holder beside the queue, or was called.
    ///
    /// The holder is a copy for an earlier buffer of the request, which ended in that poll, so its call means
    /// nothing any more. A further poll gives the queue a waker that no copy has, so that only the machine
    /// calls it.
    fn is_lent(&self) -> bool {
        const OWN_AND_QUEUE: usize = 2;
        Arc::strong_count(&self.flag) > OWN_AND_QUEUE || self.flag.0.load(Ordering::SeqCst)
    }

    /// Returns whether the request is in the queue of a buffer.
    fn is_queued(&mut self, tickets: &[Option<Ticket>]) -> bool {
        let items = self.request.items.iter().zip(tickets);
        let news =
            items.filter_map(|(item, before)| Some((item.raw.clone(), last_ticket(&item.raw)?, *before)));
        if let Some((raw, ticket, _)) = { news }.find(|(_, ticket, before)| Some(*ticket) > *before) {
            self.place = Some((raw, ticket));
        }
        let is_there = |(raw, ticket): &(RawBuffer, Ticket)| {
            raw.snapshot().queue().any(|waiting| waiting.ticket == *ticket)
        };
        self.place.as_ref().is_some_and(is_there)
    }

    /// Returns the id of the request if it was woken since the last call.
    pub(super) fn has_been_woken(&mut self) -> Option<AskId> {
        self.flag.0.swap(false, Ordering::SeqCst).then_some(self.id)
    }

    /// Waits until another thread wakes the request.
    pub(super) fn wait_until_woken(&self) {
        for _ in 0..20_000_000 {
            if self.flag.0.load(Ordering::SeqCst) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{:?} was not told that its buffer is closed, or that its copies have ended", self.request);
    }

    /// Returns the last ticket in the queue of each item's buffer.
    pub(super) fn tickets(&self) -> Vec<Option<Ticket>> {
        self.request.items.iter().map(|item| last_ticket(&item.raw)).collect()
    }

    /// Returns the buffer in whose queue the request was when it was last looked for. Asking the queue again
    /// would miss a request that the end of a copy, which may come at any moment, has admitted since.
    pub(super) fn queued_at(&self) -> Option<BufferId> {
        self.place.as_ref().map(|(raw, _)| raw.id())
    }
}

fn last_ticket(raw: &RawBuffer) -> Option<Ticket> {
    raw.snapshot().queue().last().map(|waiting| waiting.ticket)
}

/// A granted request.
pub(super) struct Held {
    pub(super) id: AskId,
    pub(super) grants: Grants,
    pub(super) request: Request,
}

impl Held {
    /// Runs a kernel that reads all its readable bytes, and compares them with the model.
    pub(super) fn look(&self, model: &Model) {
        let version = |buffer, at| model.version_at(buffer, at).expect("granted, so written");
        self.request.look(&self.grants, &expected(&model.asks[&self.id].parts, version));
    }

    /// Runs a kernel that writes. It writes all bytes that it overwrites, and skips the first bytes of every
    /// read-write range.
    pub(super) fn scribble(&mut self, model: &mut Model, skip: u8) -> Vec<Written> {
        let parts = model.asks[&self.id].parts.clone();
        let written = to_write(&parts, model, skip);
        self.request.scribble(&mut self.grants, &written);
        written
    }
}

/// A range of a buffer, and the bytes that a kernel must find there.
pub(super) type Found = (usize, Range<u64>, Vec<u8>);

/// Returns what a kernel finds that reads all its readable bytes.
pub(super) fn expected(parts: &[Part], version: impl Fn(usize, u64) -> u64) -> Vec<Found> {
    let runs = |part: &Part| part.runs().into_iter().filter(|(_, access)| access.reads());
    let runs = parts.iter().flat_map(|part| runs(part).map(|(run, _)| (part.buffer, run)));
    let found = |(buffer, run): (usize, Range<u64>)| {
        let bytes = run.clone().map(|at| value(version(buffer, at), at)).collect();
        (buffer, run, bytes)
    };
    runs.map(found).collect()
}

/// Returns what a kernel writes: all bytes that it overwrites, and every read-write range without the first
/// bytes.
pub(super) fn to_write(parts: &[Part], model: &mut Model, skip: u8) -> Vec<Written> {
    let runs = |part: &Part| part.runs().into_iter().filter(|(_, access)| access.writes());
    let runs = parts.iter().flat_map(|part| runs(part).map(|(run, access)| (part.buffer, run, access)));
    let written = |(buffer, run, access): (usize, Range<u64>, Access)| {
        let skip = if access == Access::ReadWrite { u64::from(skip) % (run.end - run.start) } else { 0 };
        Written { buffer, range: run.start + skip..run.end, version: model.new_version() }
    };
    runs.map(written).collect()
}

/// Returns the value of a byte in a version. Version zero is zeros.
fn value(version: u64, at: u64) -> u8 {
    if version == 0 { 0 } else { byte(version, at) }
}

/// Returns the error for a range that does not lie in its buffer.
pub(super) fn out_of_range(raw: &RawBuffer, range: &Range<u64>) -> Option<AcquireError> {
    let inside = range.start <= range.end && range.end <= raw.len();
    (!inside).then(|| AcquireError::OutOfRange {
        buffer: raw.name(),
        start: range.start,
        end: range.end,
        len: raw.len(),
    })
}
