//! The queue of one buffer: first come, first served, and compatible requests are admitted together.
//!
//! The head is granted as soon as possible. A later request overtakes it only if that disturbs no earlier request. It
//! must not conflict with an earlier waiting request, so a stream of readers does not starve a writer. It must not add
//! users to an arena that an earlier request needs idle, so map changes are not starved either.

use super::BusyReason;
use super::{Begin, BufferState, Refusal, Request, Routes, Step};
use crate::base::id::{ArenaSet, Ticket};
use crate::base::range::Span;
use std::collections::BTreeMap;

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

/// What the requests that are still waiting claim, and the arenas that they need idle.
#[derive(Debug, Default)]
struct Earlier {
    read: Spans,
    written: Spans,
    needs_idle: ArenaSet,
}

/// A set of bytes, as the end of each span by its start. The spans are disjoint.
#[derive(Debug, Default)]
struct Spans(BTreeMap<u64, u64>);

impl Spans {
    fn add(&mut self, span: Span) {
        let (mut start, mut end) = (span.start(), span.end());
        while let Some((&other, &other_end)) = self.0.range(..=end).next_back()
            && other_end >= start
        {
            (start, end) = (start.min(other), end.max(other_end));
            self.0.remove(&other);
        }
        self.0.insert(start, end);
    }

    fn overlap(&self, span: Span) -> bool {
        self.0.range(..span.end()).next_back().is_some_and(|(_, end)| *end > span.start())
    }
}

impl Earlier {
    /// Adds a waiting request, and the answer it got if it was examined.
    fn add(&mut self, request: &Request, met: Option<&Begin>) {
        if let Some(Begin::Busy { reason: BusyReason::ArenaInUse, needs_idle }) = met {
            self.needs_idle = self.needs_idle.union(*needs_idle);
        }
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
        if conflicts || self.needs_idle.is_empty() {
            return conflicts;
        }
        let mut uses = state.group(request.arena);
        if let Ok(Some(plan)) = state.examine(routes, request) {
            for step in &plan.steps {
                if let Step::Copy(copy) = step {
                    uses =
                        copy.from().into_iter().chain([copy.to]).fold(uses, |uses, arena| uses.with(arena));
                }
            }
        }
        !uses.intersection(self.needs_idle).is_empty()
    }
}

impl BufferState {
    /// Submits a new request. Requests that already wait have priority.
    pub fn begin(&mut self, routes: &dyn Routes, request: &Request) -> Begin {
        if let Err(refused) = self.refuses(request) {
            return refused;
        }
        if !self.queue.is_empty() {
            let queue = std::mem::take(&mut self.queue);
            let mut earlier = Earlier::default();
            for waiting in &queue {
                let met = self.examine(routes, &waiting.request);
                earlier.add(&waiting.request, met.err().as_ref());
            }
            let barred = earlier.bars(self, routes, request);
            self.queue = queue;
            if barred {
                return Begin::Busy { reason: BusyReason::Queue, needs_idle: ArenaSet::EMPTY };
            }
        }
        self.begin_now(routes, request)
    }

    /// Puts a request at the end of the queue.
    ///
    /// # Panics
    /// When `ticket` is not larger than every ticket in the queue. The caller assigns the tickets.
    pub fn enqueue(&mut self, ticket: Ticket, request: Request) {
        assert!(
            self.queue.back().is_none_or(|last| last.ticket < ticket),
            "tickets grow along the queue (I-21)"
        );
        self.queue.push_back(Waiting { ticket, request });
    }

    /// Removes a request from the queue, and returns whether it was still there.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let found = self.queue.iter().position(|waiting| waiting.ticket == ticket);
        found.is_some_and(|index| self.queue.remove(index).is_some())
    }

    /// Re-evaluates the queue from its head after a change, and admits the requests that can be granted now. A second
    /// call without a change in between admits nothing.
    ///
    /// # Complexity
    /// O(1) for an empty queue, and O(n log n) for n waiting claims if none is admitted.
    #[must_use = "those admitted wait to be told"]
    pub fn pump(&mut self, routes: &dyn Routes) -> Vec<Admission> {
        let mut admitted = Vec::new();
        while !self.queue.is_empty() {
            let before = admitted.len();
            let needs_idle = self.pump_once(routes, &mut admitted);
            let now = &admitted[before..];
            // A kernel that was just admitted may have another request in the queue, which must now be refused.
            let is_told =
                |waiting: &Waiting| now.iter().any(|now| now.request.kernel == waiting.request.kernel);
            // Those just admitted may have changed for what an earlier request waits, so that it bars others no more.
            let is_changed = !now.is_empty() && !needs_idle.is_empty();
            if !is_changed && !self.queue.iter().any(is_told) {
                break;
            }
        }
        admitted
    }

    /// Examines every waiting request once, in order. Returns the arenas that those who still wait need idle.
    fn pump_once(&mut self, routes: &dyn Routes, admitted: &mut Vec<Admission>) -> ArenaSet {
        let queue = std::mem::take(&mut self.queue);
        let mut stays = vec![false; queue.len()];
        let mut earlier = Earlier::default();
        for (waiting, stays) in queue.iter().zip(&mut stays) {
            if earlier.bars(self, routes, &waiting.request) {
                earlier.add(&waiting.request, None);
                *stays = true;
                continue;
            }
            match self.begin_now(routes, &waiting.request) {
                busy @ Begin::Busy { .. } => {
                    earlier.add(&waiting.request, Some(&busy));
                    *stays = true;
                }
                begin => admitted.push(Admission {
                    ticket: waiting.ticket,
                    request: waiting.request.clone(),
                    begin,
                }),
            }
        }
        let mut stays = stays.into_iter();
        self.queue = queue.into_iter().filter(|_| stays.next() == Some(true)).collect();
        earlier.needs_idle
    }

    /// Refuses every waiting request.
    pub(super) fn refuse_all(&mut self, refusal: Refusal) -> Vec<Admission> {
        let queue = std::mem::take(&mut self.queue);
        queue
            .into_iter()
            .map(|Waiting { ticket, request }| Admission { ticket, request, begin: Begin::Refused(refusal) })
            .collect()
    }
}

#[cfg(test)]
mod tests;
