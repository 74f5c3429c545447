//! The queue of one buffer: first come, first served, with readers let in together.
//!
//! The head is granted as soon as it can be. A later request is granted before it only if it disturbs nobody who came
//! earlier: it conflicts with no earlier waiting request (so a stream of readers does not starve a writer), and it adds
//! no users to an arena that an earlier request needs idle (so map states are not starved either).

use super::{Begin, BufferState, Refusal, Request, Routes};
use crate::error::BusyReason;
use crate::id::{ArenaSet, Ticket};

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// Its place.
    pub ticket: Ticket,
    /// What it asks for.
    pub request: Request,
}

/// A request that waits no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Its place, now free.
    pub ticket: Ticket,
    /// What it asked for.
    pub request: Request,
    /// What became of it; never [`Begin::Busy`].
    pub begin: Begin,
}

/// What requests still waiting keep others from.
#[derive(Debug, Default)]
struct Earlier<'a> {
    waiting: Vec<&'a Request>,
    needs_idle: ArenaSet,
}

impl Earlier<'_> {
    /// Whether letting `request` go first would disturb any of them.
    fn bars(&self, state: &BufferState, request: &Request) -> bool {
        let conflicts = self.waiting.iter().any(|earlier| {
            earlier.claims.iter().any(|theirs| request.claims.iter().any(|ours| ours.conflicts(theirs)))
        });
        conflicts || !state.group(request.arena).intersection(self.needs_idle).is_empty()
    }
}

impl BufferState {
    /// Asks for access on behalf of someone who has not waited: those who wait already come first.
    pub fn begin(&mut self, routes: &dyn Routes, request: &Request) -> Begin {
        if !self.queue.is_empty() {
            let queue = std::mem::take(&mut self.queue);
            let mut earlier = Earlier::default();
            for waiting in &queue {
                if let Begin::Busy { reason, needs_idle } = self.probe(routes, &waiting.request) {
                    if reason == BusyReason::ArenaInUse {
                        earlier.needs_idle = earlier.needs_idle.union(needs_idle);
                    }
                }
                earlier.waiting.push(&waiting.request);
            }
            let barred = earlier.bars(self, request);
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
    /// When `ticket` is not larger than every ticket in the queue: the caller numbers them.
    pub fn enqueue(&mut self, ticket: Ticket, request: Request) {
        assert!(
            self.queue.back().is_none_or(|last| last.ticket < ticket),
            "tickets grow along the queue (I-21)"
        );
        self.queue.push_back(Waiting { ticket, request });
    }

    /// Takes a request out of the queue; whether it was still there.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let found = self.queue.iter().position(|waiting| waiting.ticket == ticket);
        found.is_some_and(|index| self.queue.remove(index).is_some())
    }

    /// Re-evaluates the queue from its head after any change that could let someone in, and lets in whom it can.
    ///
    /// # Complexity
    /// O(1) for an empty queue.
    #[must_use = "those let in wait to be told"]
    pub fn pump(&mut self, routes: &dyn Routes) -> Vec<Admission> {
        if self.queue.is_empty() {
            return Vec::new();
        }
        let queue = std::mem::take(&mut self.queue);
        let mut admitted = Vec::new();
        let mut stays = vec![false; queue.len()];
        let mut earlier = Earlier::default();
        for (waiting, stays) in queue.iter().zip(&mut stays) {
            if earlier.bars(self, &waiting.request) {
                earlier.waiting.push(&waiting.request);
                *stays = true;
                continue;
            }
            match self.begin_now(routes, &waiting.request) {
                Begin::Busy { reason, needs_idle } => {
                    if reason == BusyReason::ArenaInUse {
                        earlier.needs_idle = earlier.needs_idle.union(needs_idle);
                    }
                    earlier.waiting.push(&waiting.request);
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
        admitted
    }

    /// What a request would meet now, without a change.
    fn probe(&self, routes: &dyn Routes, request: &Request) -> Begin {
        match self.examine(routes, request) {
            Ok(plan) => plan.map_or(Begin::Granted(self.commit_seq), Begin::Plan),
            Err(begin) => begin,
        }
    }

    /// Refuses everyone who waits.
    pub(super) fn refuse_all(&mut self, refusal: Refusal) -> Vec<Admission> {
        let queue = std::mem::take(&mut self.queue);
        queue
            .into_iter()
            .map(|Waiting { ticket, request }| Admission { ticket, request, begin: Begin::Refused(refusal) })
            .collect()
    }
}
