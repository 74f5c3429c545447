//! The queue of one buffer: first come, first served, and compatible requests are admitted together.
//!
//! The head is granted as soon as possible. A later request overtakes it only if that disturbs no earlier
//! request. It must not conflict with an earlier waiting request, so a stream of readers does not starve a
//! writer. It must not add users to an arena that an earlier request needs idle, so map changes are not
//! starved either.

use super::BusyReason;
use super::{Begin, BufferState, Refusal, Request, Routes, Step};
use crate::base::id::{ArenaSet, Ticket};
use crate::base::range::Span;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// The place of the request in the queue.
    pub ticket: Ticket,
    /// The waiting request.
    pub request: Request,
}

/// A request that has left the queue with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The ticket that the request had.
    pub ticket: Ticket,
    /// The request that was answered.
    pub request: Request,
    /// The answer; never [`Begin::Busy`].
    pub begin: Begin,
}

/// The waiting requests in order of arrival.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue(Option<Box<Filled>>);

/// A queue in which requests wait.
#[derive(Clone, Debug, Default)]
struct Filled {
    waiting: VecDeque<Waiting>,
    /// All bytes that they claim, and perhaps bytes of requests that have left. Comparisons ignore it.
    claimed: Spans,
}

impl Queue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn waiting(&self) -> &VecDeque<Waiting> {
        static NONE: VecDeque<Waiting> = VecDeque::new();
        self.0.as_ref().map_or(&NONE, |filled| &filled.waiting)
    }

    pub(super) fn front(&self) -> Option<&Waiting> {
        self.waiting().front()
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.waiting().iter()
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        let filled = self.0.get_or_insert_default();
        waiting.request.claims.iter().for_each(|claim| filled.claimed.add(claim.span));
        filled.waiting.push_back(waiting);
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Waiting> {
        let filled = self.0.as_mut()?;
        let index = filled.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()?;
        let removed = filled.waiting.remove(index);
        self.0.take_if(|filled| filled.waiting.is_empty());
        removed
    }

    fn take(&mut self) -> Filled {
        self.0.take().map_or_else(Filled::default, |filled| *filled)
    }

    fn fill(&mut self, filled: Filled) {
        self.0 = (!filled.waiting.is_empty()).then(|| Box::new(filled));
    }

    /// Returns whether `claimed` covers the claims of all waiting requests.
    pub(super) fn knows_its_claims(&self) -> bool {
        let mut claims = self.iter().flat_map(|waiting| &waiting.request.claims);
        claims.all(|claim| self.0.as_ref().is_some_and(|filled| filled.claimed.contain(claim.span)))
    }

    /// Renumbers the tickets from 1.
    pub(super) fn make_canonical(&mut self) {
        let waiting = self.0.iter_mut().flat_map(|filled| &mut filled.waiting);
        for (waiting, ticket) in waiting.zip(1..) {
            waiting.ticket = Ticket(ticket);
        }
    }
}

impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        self.waiting() == other.waiting()
    }
}

impl Eq for Queue {}

impl Hash for Queue {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.waiting().hash(hasher);
    }
}

/// The claims of the requests that still wait, and the arenas that they need idle.
#[derive(Debug, Default)]
struct Earlier {
    read: Spans,
    written: Spans,
    needs_idle: ArenaSet,
    /// Whether one of them waits for more than the end of a kernel, so that its plan depends on the others.
    has_plans: bool,
}

/// A set of bytes.
#[derive(Clone, Debug, Default)]
struct Spans {
    /// The end of each span by its start. The spans are disjoint.
    ends: BTreeMap<u64, u64>,
    /// The number of bytes.
    len: u64,
}

impl Spans {
    fn add(&mut self, span: Span) {
        let (mut start, mut end) = (span.start(), span.end());
        while let Some((&other, &other_end)) = self.ends.range(..=end).next_back()
            && other_end >= start
        {
            (start, end) = (start.min(other), end.max(other_end));
            self.ends.remove(&other);
            self.len -= other_end - other;
        }
        self.ends.insert(start, end);
        self.len += end - start;
    }

    fn contain(&self, span: Span) -> bool {
        self.ends.range(..=span.start()).next_back().is_some_and(|(_, end)| *end >= span.end())
    }

    fn overlap(&self, span: Span) -> bool {
        self.ends.range(..span.end()).next_back().is_some_and(|(_, end)| *end > span.start())
    }
}

impl Earlier {
    /// Adds a waiting request, and the answer it got if it was examined.
    fn add(&mut self, request: &Request, met: Option<&Begin>) {
        if let Some(Begin::Busy { reason: BusyReason::ArenaInUse, needs_idle }) = met {
            self.needs_idle = self.needs_idle.union(*needs_idle);
        }
        self.has_plans |= matches!(met, Some(Begin::Busy { reason, .. }) if *reason != BusyReason::Conflict);
        for claim in &request.claims {
            let spans = if claim.access.writes() { &mut self.written } else { &mut self.read };
            spans.add(claim.span);
        }
    }

    /// Returns whether granting `request` first would disturb any of the earlier requests.
    fn bars(&self, state: &BufferState, routes: &dyn Routes, request: &Request) -> bool {
        let conflicts = request.claims.iter().any(|claim| {
            self.written.overlap(claim.span) || (claim.access.writes() && self.read.overlap(claim.span))
        });
        conflicts || (!self.needs_idle.is_empty() && self.needs_one_of(state.would_use(routes, request)))
    }

    /// Returns whether the earlier requests bar every request that claims some of these bytes and no others.
    fn bars_all(&self, claimed: &Spans) -> bool {
        // `written` is a subset of `claimed`, so the two are equal if their sizes are.
        self.written.len == claimed.len
    }

    fn needs_one_of(&self, arenas: ArenaSet) -> bool {
        !self.needs_idle.intersection(arenas).is_empty()
    }
}

impl BufferState {
    /// Submits a new request. Requests that already wait have priority.
    pub fn begin(&mut self, routes: &dyn Routes, request: &Request) -> Begin {
        let one = request.of_one_claim();
        let known = one.and_then(|one| Some((self.known(routes, one.arena)?, one)));
        match known.and_then(|(known, one)| self.begin_at_once(routes, known, one)) {
            Some(seq) => Begin::Granted(seq),
            None => self.begin_in_general(routes, request),
        }
    }

    pub(super) fn begin_in_general(&mut self, routes: &dyn Routes, request: &Request) -> Begin {
        if let Err(refused) = self.refuses(request) {
            return refused;
        }
        if !self.queue.is_empty() && !request.claims.is_empty() {
            let conflicts = |waiting: &Waiting| waiting.request.claims.conflict(&request.claims);
            let barred = self.queue.iter().any(conflicts);
            // A request that conflicts with a grant waits anyway.
            if !barred && let Err(busy) = self.conflicts(&request.claims, request.stream()) {
                return busy;
            }
            if barred || self.takes_a_needed_arena(routes, request) {
                return Begin::Busy { reason: BusyReason::Queue, needs_idle: ArenaSet::EMPTY };
            }
        }
        self.begin_now(routes, request)
    }

    /// Returns whether a request would use an arena that a waiting request needs idle. It must conflict with
    /// no waiting request.
    fn takes_a_needed_arena(&self, routes: &dyn Routes, request: &Request) -> bool {
        let uses = self.would_use(routes, request);
        let mut earlier = Earlier::default();
        let Some(filled) = &self.queue.0 else { return false };
        for Waiting { request, .. } in &filled.waiting {
            #[cfg(test)]
            tests::count_look();
            if earlier.needs_one_of(uses) || earlier.bars_all(&filled.claimed) {
                break;
            }
            let barred = earlier.bars(self, routes, request);
            let met = if barred { None } else { self.examine(routes, request).err() };
            earlier.add(request, met.as_ref());
        }
        earlier.needs_one_of(uses)
    }

    /// Returns the arenas whose storage a request would use, including those of its copies.
    fn would_use(&self, routes: &dyn Routes, request: &Request) -> ArenaSet {
        if request.claims.is_empty() {
            return ArenaSet::EMPTY;
        }
        let mut uses = self.group(request.arena);
        if let Ok(Some(plan)) = self.examine(routes, request) {
            for step in &plan.steps {
                if let Step::Copy(copy) = step {
                    uses =
                        copy.from().into_iter().chain([copy.to]).fold(uses, |uses, arena| uses.with(arena));
                }
            }
        }
        uses
    }

    /// Puts a request at the end of the queue.
    ///
    /// # Panics
    /// When `ticket` is not larger than every ticket in the queue. The caller assigns the tickets.
    pub fn enqueue(&mut self, ticket: Ticket, request: Request) {
        assert!(
            self.queue.waiting().back().is_none_or(|last| last.ticket < ticket),
            "tickets grow along the queue (I-21)"
        );
        self.queue.push(Waiting { ticket, request });
    }

    /// Removes a request from the queue, and returns whether it was still there.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.queue.remove(ticket).is_some()
    }

    /// Re-evaluates the queue from its head after a change, and admits the requests that can be granted now.
    /// A second call without a change in between admits nothing.
    ///
    /// # Complexity
    /// O(1) for an empty queue. O(n log n) for n waiting claims if none is admitted. Claims behind requests
    /// that write all bytes claimed in the queue do not count.
    #[must_use = "admitted requests wait for their answers"]
    pub fn pump(&mut self, routes: &dyn Routes) -> Vec<Admission> {
        let mut admitted = Vec::new();
        while !self.queue.is_empty() {
            let before = admitted.len();
            let has_plans = self.pump_once(routes, &mut admitted);
            let now = &admitted[before..];
            // A kernel that was just admitted may have another request in the queue, which must now be
            // refused.
            let is_told =
                |waiting: &Waiting| now.iter().any(|now| now.request.kernel == waiting.request.kernel);
            // An admission may have changed the plan of an earlier request, which may now be admitted, or no
            // longer bar others.
            let is_changed = !now.is_empty() && has_plans;
            if !is_changed && !self.queue.iter().any(is_told) {
                break;
            }
        }
        admitted
    }

    /// Examines the waiting requests in order, and stops where no later one can be admitted. Returns whether
    /// the plan of one that still waits depends on the others.
    fn pump_once(&mut self, routes: &dyn Routes, admitted: &mut Vec<Admission>) -> bool {
        let Filled { mut waiting, mut claimed } = self.queue.take();
        let (mut earlier, mut stay) = (Earlier::default(), Vec::new());
        while !earlier.bars_all(&claimed)
            && let Some(next) = waiting.pop_front()
        {
            #[cfg(test)]
            tests::count_look();
            if earlier.bars(self, routes, &next.request) {
                earlier.add(&next.request, None);
                stay.push(next);
                continue;
            }
            match self.begin_now(routes, &next.request) {
                busy @ Begin::Busy { .. } => {
                    earlier.add(&next.request, Some(&busy));
                    stay.push(next);
                }
                begin => {
                    let Waiting { ticket, request } = next;
                    admitted.push(Admission { ticket, request, begin });
                }
            }
        }
        let Earlier { read, written, has_plans, .. } = earlier;
        if waiting.is_empty() {
            claimed = written;
            read.ends.iter().for_each(|(start, end)| claimed.add(Span::new(*start, *end)));
        }
        stay.into_iter().rev().for_each(|next| waiting.push_front(next));
        self.queue.fill(Filled { waiting, claimed });
        has_plans
    }

    /// Refuses every waiting request.
    pub(super) fn refuse_all(&mut self, refusal: Refusal) -> Vec<Admission> {
        let waiting = self.queue.take().waiting;
        waiting
            .into_iter()
            .map(|Waiting { ticket, request }| Admission { ticket, request, begin: Begin::Refused(refusal) })
            .collect()
    }
}

#[cfg(test)]
mod tests;
