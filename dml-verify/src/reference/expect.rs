//! Which answers to a request are allowed, as exactly as the knowledge of a user determines them.
//!
//! The machine asks its questions in a fixed order (docs/spec.md, section 4): closed, already held, queue,
//! conflict, lost device, unreadable bytes, reachable. `Model::expect` collects the facts that decide them;
//! each stands for sure, perhaps or not at all. [`Expect::first_obstacle`] is the first question that surely
//! ends in a refusal or in waiting. An answer to an earlier question is allowed if its facts perhaps stand,
//! and an answer to a later one never is. `judge.rs` holds answers against this.

use super::ask::{Ask, AskId, Momentary, Part};
use super::cell::{Standing, Sure};
use super::model::Model;
use dml_core::{Access, ArenaId, BusyReason};
use std::ops::Range;

/// The facts that decide which answers must or may be given to each question.
#[derive(Clone, Debug)]
pub(super) struct Expect {
    pub(super) arena: ArenaId,
    pub(super) kernel: u64,
    pub(super) is_closed: bool,
    /// The wanted bytes that other requests of the same kernel hold.
    pub(super) held: Vec<(Range<u64>, Sure)>,
    /// Whether an earlier waiting request conflicts; `Perhaps` where requests wait and none conflicts.
    queue: Sure,
    conflict: Sure,
    /// Whether the part names no byte.
    is_empty: bool,
    writes: bool,
    /// Whether other requests hold part of the buffer.
    has_users: bool,
    /// Whether the plan of an admitted request may be under way.
    is_admitting: bool,
    /// Whether the device of the arena is lost.
    is_arena_lost: bool,
    is_any_lost: bool,
    /// The runs of bytes that the part reads, each byte with its standing.
    pub(super) reads: Vec<Vec<Byte>>,
    pub(super) wants: Vec<Range<u64>>,
    /// Whether nothing that the arenas do can be in the way.
    is_clear: bool,
    /// Whether a device was lost after the answer was given.
    pub(super) is_stale: bool,
}

/// A byte that is to be read, and what a reader finds there.
pub(super) type Byte = (u64, Standing);

/// The questions, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Question {
    Closed,
    Held,
    Queue,
    Conflict,
    Lost,
    Unreadable,
    Way,
    Granted,
}

/// The facts, taken from what the model knows.
impl Model {
    /// Collects the facts that decide the answer to one part of an acquire. `during` lists what other
    /// requests may have held for a moment.
    pub(super) fn expect(&self, id: AskId, part: &Part, during: &[Momentary]) -> Expect {
        let ask = &self.asks[&id];
        let to_bring = self.to_bring(id, part);
        Expect {
            arena: ask.arena,
            kernel: ask.kernel,
            is_closed: self.buffers[part.buffer].is_closed,
            held: self.held_by_kernel(id, part, during),
            queue: self.passes_queue(id, part),
            conflict: self.conflict(id, part),
            is_empty: part.is_empty(),
            writes: part.writes(),
            has_users: self.others(id, part).next().is_some(),
            is_admitting: self.is_admitting(part.buffer),
            is_arena_lost: self.lost.contains(ask.arena),
            is_any_lost: !self.lost.is_empty(),
            reads: self.reads(&to_bring),
            wants: part.runs().into_iter().map(|(run, _)| run).collect(),
            is_clear: self.is_clear(id, &to_bring),
            is_stale: false,
        }
    }

    /// Returns the other requests that hold part of the buffer.
    fn others(&self, id: AskId, part: &Part) -> impl Iterator<Item = (&Ask, &Part, Sure)> {
        let others = self.users(part.buffer).filter(move |(other, ..)| *other != id);
        others.map(|(_, ask, part, sure)| (ask, part, sure))
    }

    /// Returns the wanted bytes that other requests of the same kernel hold, or held for a moment.
    fn held_by_kernel(&self, id: AskId, part: &Part, during: &[Momentary]) -> Vec<(Range<u64>, Sure)> {
        let kernel = self.asks[&id].kernel;
        let holds = self.others(id, part).filter(|(other, ..)| other.kernel == kernel);
        let holds = holds.map(|(_, theirs, sure)| (theirs, sure));
        let held = during.iter().filter(|other| other.kernel == kernel);
        let held = held.map(|other| (&other.part, Sure::Perhaps));
        let overlaps = |(theirs, sure)| part.overlaps(theirs).into_iter().map(move |both| (both, sure));
        holds.chain(held).flat_map(overlaps).collect()
    }

    /// Returns whether requests that wait before this one are in its way. A request that is not in the queue
    /// comes last.
    fn passes_queue(&self, id: AskId, part: &Part) -> Sure {
        let queue = &self.buffers[part.buffer].queue;
        let mut earlier = queue.iter().take_while(|earlier| **earlier != id).peekable();
        let is_empty = earlier.peek().is_none();
        match earlier.any(|earlier| self.asks[earlier].waiting_part().conflicts(part)) {
            true => Sure::Yes,
            false if is_empty => Sure::No,
            false => Sure::Perhaps,
        }
    }

    fn conflict(&self, id: AskId, part: &Part) -> Sure {
        let ask = &self.asks[&id];
        let conflicts =
            self.others(id, part).filter(|(other, theirs, _)| !ask.follows(other) && theirs.conflicts(part));
        conflicts.map(|(.., sure)| sure).max().unwrap_or(Sure::No)
    }

    fn reads(&self, part: &Part) -> Vec<Vec<Byte>> {
        let cells = &self.buffers[part.buffer].cells;
        let reads = part.runs().into_iter().filter(|(_, access)| access.reads());
        reads.map(|(run, _)| run.map(|at| (at, cells[at as usize].standing())).collect()).collect()
    }

    /// Returns whether no work of the arenas can be in the way: there is no other request, or all requests
    /// are in one arena, which has the bytes.
    fn is_clear(&self, id: AskId, part: &Part) -> bool {
        let arena = self.asks[&id].arena;
        let cells = &self.buffers[part.buffer].cells;
        let is_there = part.at(Access::reads).all(|at| cells[at].is_sure_in(arena));
        let is_kin_lost = !self.kin(arena).intersection(self.lost).is_empty();
        let is_alone = self.others(id, part).next().is_none() && self.lost.is_empty();
        let is_beside =
            self.others(id, part).all(|(other, ..)| other.arena == arena) && is_there && !is_kin_lost;
        (is_alone || is_beside) && !self.is_admitting(part.buffer)
    }
}

/// What the facts allow.
impl Expect {
    /// Returns the first question whose answer must be a refusal or waiting.
    pub(super) fn first_obstacle(&self) -> Question {
        let unreadable = |(_, standing): &Byte| !matches!(standing, Standing::Readable | Standing::Unsure);
        let obstacles = [
            (Question::Closed, self.is_closed),
            (Question::Held, self.held.iter().any(|(_, sure)| *sure == Sure::Yes)),
            (Question::Queue, self.queue == Sure::Yes),
            (Question::Conflict, self.conflict == Sure::Yes),
            (Question::Lost, self.is_lost()),
            (Question::Unreadable, self.reads.iter().flatten().any(unreadable)),
        ];
        obstacles.into_iter().find(|(_, stands)| *stands).map_or(Question::Granted, |(question, _)| question)
    }

    /// Returns whether an answer to this question is allowed.
    pub(super) fn comes_to(&self, question: Question) -> bool {
        question <= self.first_obstacle()
    }

    /// Returns whether the request may be answered with busy for this reason.
    pub(super) fn may_be_busy(&self, reason: BusyReason) -> bool {
        match reason {
            BusyReason::Queue => self.queue != Sure::No && self.comes_to(Question::Queue),
            BusyReason::Conflict => self.conflict != Sure::No && self.comes_to(Question::Conflict),
            BusyReason::Copying => {
                let question = if self.writes { Question::Conflict } else { Question::Way };
                self.is_admitting && self.comes_to(question)
            }
            BusyReason::InTransition => {
                (self.is_admitting || (self.is_any_lost && self.has_users)) && self.comes_to(Question::Lost)
            }
            BusyReason::ArenaInUse => self.has_users && !self.is_clear && self.comes_to(Question::Way),
            _ => false,
        }
    }

    /// Returns whether the request may have to wait.
    pub(super) fn may_wait(&self) -> bool {
        let reasons = [
            BusyReason::Queue,
            BusyReason::Conflict,
            BusyReason::Copying,
            BusyReason::InTransition,
            BusyReason::ArenaInUse,
        ];
        reasons.into_iter().any(|reason| self.may_be_busy(reason))
    }

    /// Returns whether the arena of the request is lost to its bytes.
    pub(super) fn is_lost(&self) -> bool {
        self.is_arena_lost && !self.is_empty
    }

    /// Returns whether a lost device may have taken every way to the bytes.
    pub(super) fn may_be_unreachable(&self) -> bool {
        (self.is_any_lost && !self.is_clear) || self.is_stale
    }

    /// Checks that a waiting request may have been answered. Returns whether it then holds its bytes.
    pub(super) fn woken(&self) -> Result<Sure, String> {
        match self.first_obstacle() {
            Question::Queue => Err("it passed one that came earlier and is in its way".to_owned()),
            // The same kernel may hold the bytes. That is reported before a conflict.
            Question::Conflict if !self.held.is_empty() => Ok(Sure::No),
            Question::Conflict => Err("it was let in beside somebody who is in its way".to_owned()),
            Question::Granted => {
                let is_unsure = |(_, standing): &Byte| *standing == Standing::Unsure;
                let unsure = self.reads.iter().flatten().any(is_unsure);
                let may_fail = unsure || self.is_any_lost || !self.held.is_empty();
                Ok(if may_fail { Sure::Perhaps } else { Sure::Yes })
            }
            _ => Ok(Sure::No),
        }
    }

    /// Returns whether a request at the head of the queue must have been answered, because nothing is in its
    /// way.
    pub(super) fn must_be_answered(&self) -> bool {
        self.conflict == Sure::No && self.is_clear
    }

    /// Notes that a device was lost after the answer was given and before the request was polled.
    pub(super) fn device_was_lost(&mut self) {
        self.is_stale = true;
    }
}
