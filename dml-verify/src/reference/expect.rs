//! Which answers to a request are allowed, as exactly as the knowledge of a user determines them.
//!
//! The machine asks its questions in a fixed order (docs/spec.md, section 4): closed, already held, queue, conflict,
//! lost device, unreadable bytes, reachable. An answer is right if its own condition holds and no earlier question
//! requires another answer.

use super::model::{AskId, Model, Part, Standing, Sure};
use dml_core::{AcquireError, ArenaId, BufferId, BusyReason, KernelId, Span};
use std::ops::Range;

/// The answer to a request.
#[derive(Debug)]
pub(super) enum Outcome<'a> {
    /// Every part is granted.
    Granted,
    /// The request waits for this buffer.
    Waits(BufferId),
    /// The request was refused.
    Error(&'a AcquireError),
    /// The request failed at this buffer by a scripted fault.
    Fault(BufferId),
}

impl Outcome<'_> {
    /// Returns whether the answer is about this buffer, and not about a later one.
    pub(super) fn ends_at(&self, buffer: BufferId) -> bool {
        match self {
            Self::Granted => false,
            Self::Waits(at) | Self::Fault(at) => *at == buffer,
            Self::Error(error) => about(error) == Some(buffer),
        }
    }

    /// Returns whether copies may have been made for the request.
    pub(super) fn reached_a_plan(&self) -> bool {
        match self {
            Self::Granted | Self::Fault(_) => true,
            Self::Waits(_) => false,
            Self::Error(error) => !matches!(
                error,
                AcquireError::Closed { .. } | AcquireError::AlreadyHeld { .. } | AcquireError::Busy { .. }
            ),
        }
    }
}

/// Returns the buffer that an error names.
pub(super) fn about(error: &AcquireError) -> Option<BufferId> {
    match error {
        AcquireError::Busy { buffer, .. }
        | AcquireError::Timeout { buffer, .. }
        | AcquireError::Unreachable { buffer, .. }
        | AcquireError::CopyFailed { buffer, .. }
        | AcquireError::MapFailed { buffer, .. }
        | AcquireError::Alloc { buffer, .. }
        | AcquireError::Uninitialized { buffer, .. }
        | AcquireError::Poisoned { buffer, .. }
        | AcquireError::Closed { buffer }
        | AcquireError::Wedged { buffer }
        | AcquireError::AlreadyHeld { buffer, .. }
        | AcquireError::OutOfRange { buffer, .. }
        | AcquireError::DeviceLost { buffer, .. }
        | AcquireError::ForeignBuffer { buffer }
        | AcquireError::NotClean { buffer }
        | AcquireError::NotRestorable { buffer, .. }
        | AcquireError::NotFreeable { buffer, .. }
        | AcquireError::NotBindable { buffer, .. } => Some(buffer.id()),
        _ => None,
    }
}

/// Whether a span of bytes is kept, as an answer shows it for bytes that may have been lost.
#[derive(Clone, Debug)]
pub(super) struct Lesson {
    pub(super) span: Range<u64>,
    pub(super) is_kept: bool,
}

/// The facts that decide which answers must or may be given to each question.
#[derive(Clone, Debug)]
pub(super) struct Expect {
    arena: ArenaId,
    kernel: u64,
    closed: bool,
    /// The wanted bytes that other requests of the same kernel hold.
    held: Vec<(Range<u64>, Sure)>,
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
    arena_lost: bool,
    any_lost: bool,
    /// The runs of bytes that the part reads, each byte with its standing.
    reads: Vec<Vec<(u64, Standing)>>,
    wants: Vec<Range<u64>>,
    /// Whether nothing that the arenas do can be in the way.
    is_clear: bool,
    /// Whether a device was lost after the answer was given.
    is_stale: bool,
}

/// The questions, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Closed,
    Held,
    Queue,
    Conflict,
    Lost,
    Unreadable,
    Way,
    Granted,
}

impl Model {
    /// Returns the allowed answers to one part of a request. Where `was_queued`, only the requests ahead of it in the
    /// queue count as waiting.
    pub(super) fn expect(&self, id: AskId, part: &Part, was_queued: bool, during: &[(u64, Part)]) -> Expect {
        let ask = &self.asks[&id];
        let buffer = &self.buffers[part.buffer];
        let waiting = buffer.queue.iter().take_while(|earlier| !was_queued || **earlier != id);
        let waiting: Vec<&Part> =
            waiting.map(|id| &self.asks[id]).map(|ask| &ask.parts[ask.granted]).collect();
        let others = || self.users(part.buffer).filter(move |(other, ..)| *other != id);
        let mut held = Vec::new();
        let same_kernel = others().filter(|(_, other, ..)| other.kernel == ask.kernel);
        let for_a_moment = during.iter().filter(|(kernel, _)| *kernel == ask.kernel);
        let holdings = same_kernel.map(|(_, _, theirs, sure)| (theirs, sure));
        for (theirs, sure) in holdings.chain(for_a_moment.map(|(_, theirs)| (theirs, Sure::Perhaps))) {
            for (theirs, _) in theirs.runs().into_iter().filter(|_| theirs.buffer == part.buffer) {
                for (ours, _) in part.runs() {
                    let both = ours.start.max(theirs.start)..ours.end.min(theirs.end);
                    if !both.is_empty() {
                        held.push((both, sure));
                    }
                }
            }
        }
        let conflict =
            others().filter(|(_, _, theirs, _)| theirs.conflicts(part)).map(|(.., sure)| sure).max();
        let reads: Vec<Vec<(u64, Standing)>> = part
            .runs()
            .into_iter()
            .filter(|(_, access)| access.reads())
            .map(|(run, _)| run.map(|at| (at, buffer.cells[at as usize].standing())).collect())
            .collect();
        let there = |(at, _): &(u64, Standing)| buffer.cells[*at as usize].is_sure_in(ask.arena);
        let all_there = reads.iter().flatten().all(there);
        let kin_lost = !self.kin(ask.arena).intersection(self.lost).is_empty();
        let alone = others().next().is_none() && self.lost.is_empty();
        let beside = others().all(|(_, other, ..)| other.arena == ask.arena) && all_there && !kin_lost;
        Expect {
            arena: ask.arena,
            kernel: ask.kernel,
            closed: buffer.is_closed,
            held,
            queue: match waiting.iter().any(|earlier| earlier.conflicts(part)) {
                true => Sure::Yes,
                false if waiting.is_empty() => Sure::No,
                false => Sure::Perhaps,
            },
            conflict: conflict.unwrap_or(Sure::No),
            is_empty: part.is_empty(),
            writes: part.runs().iter().any(|(_, access)| access.writes()),
            has_users: others().next().is_some(),
            is_admitting: self.is_admitting(part.buffer),
            arena_lost: self.lost.contains(ask.arena),
            any_lost: !self.lost.is_empty(),
            reads,
            wants: part.runs().into_iter().map(|(run, _)| run).collect(),
            is_clear: (alone || beside) && !self.is_admitting(part.buffer),
            is_stale: false,
        }
    }
}

impl Expect {
    /// Returns the first question whose answer must be a refusal or waiting.
    fn first_obstacle(&self) -> Question {
        let unreadable =
            |(_, standing): &(u64, Standing)| !matches!(standing, Standing::Readable | Standing::Unsure);
        let obstacles = [
            (Question::Closed, self.closed),
            (Question::Held, self.held.iter().any(|(_, sure)| *sure == Sure::Yes)),
            (Question::Queue, self.queue == Sure::Yes),
            (Question::Conflict, self.conflict == Sure::Yes),
            (Question::Lost, self.arena_lost && !self.is_empty),
            (Question::Unreadable, self.reads.iter().flatten().any(unreadable)),
        ];
        obstacles.into_iter().find(|(_, stands)| *stands).map_or(Question::Granted, |(question, _)| question)
    }

    /// Returns whether an answer to this question is allowed.
    fn comes_to(&self, question: Question) -> bool {
        question <= self.first_obstacle()
    }

    /// Checks that an answer is allowed, and returns what the answer shows about lost bytes.
    pub(super) fn judge(&self, outcome: &Outcome<'_>) -> Result<Vec<Lesson>, String> {
        match outcome {
            Outcome::Granted if self.is_stale => Ok(Vec::new()),
            Outcome::Granted if self.comes_to(Question::Granted) => Ok(self.all_kept()),
            Outcome::Granted => Err(format!("granted in spite of {:?}", self.first_obstacle())),
            Outcome::Fault(_) if self.comes_to(Question::Granted) => Ok(Vec::new()),
            Outcome::Fault(_) => Err(format!("tried in spite of {:?}", self.first_obstacle())),
            Outcome::Waits(_) => {
                let reasons = [
                    BusyReason::Queue,
                    BusyReason::Conflict,
                    BusyReason::Copying,
                    BusyReason::InTransition,
                    BusyReason::ArenaInUse,
                ];
                let busy = reasons.into_iter().any(|reason| self.may_be_busy(reason));
                busy.then(Vec::new).ok_or_else(|| "nothing to wait for".to_owned())
            }
            Outcome::Error(error) => self.judge_error(error),
        }
    }

    fn may_be_busy(&self, reason: BusyReason) -> bool {
        match reason {
            BusyReason::Queue => self.queue != Sure::No && self.comes_to(Question::Queue),
            BusyReason::Conflict => self.conflict != Sure::No && self.comes_to(Question::Conflict),
            BusyReason::Copying => {
                let question = if self.writes { Question::Conflict } else { Question::Way };
                self.is_admitting && self.comes_to(question)
            }
            BusyReason::InTransition => {
                (self.is_admitting || (self.any_lost && self.has_users)) && self.comes_to(Question::Lost)
            }
            BusyReason::ArenaInUse => self.has_users && !self.is_clear && self.comes_to(Question::Way),
            _ => false,
        }
    }

    fn judge_error(&self, error: &AcquireError) -> Result<Vec<Lesson>, String> {
        let wrong = |why: &str| Err(why.to_owned());
        match error {
            AcquireError::Closed { .. } if self.closed => Ok(Vec::new()),
            AcquireError::AlreadyHeld { kernel, span, .. } if self.comes_to(Question::Held) => {
                let named = self.kernel >= 1 << 32 || *kernel == KernelId(self.kernel);
                let is_held = self.held.iter().any(|(held, _)| *held == span.to_range());
                if named && is_held { Ok(Vec::new()) } else { wrong("it does not hold that") }
            }
            AcquireError::Busy { reason, .. } if self.may_be_busy(*reason) => Ok(Vec::new()),
            // A plan made before the loss may have used the lost memory at any step.
            AcquireError::DeviceLost { .. } if self.is_stale => Ok(Vec::new()),
            AcquireError::DeviceLost { arena, .. } => {
                let lost = self.arena_lost && !self.is_empty && self.comes_to(Question::Lost);
                if lost && arena.id == self.arena { Ok(Vec::new()) } else { wrong("no device of it is lost") }
            }
            AcquireError::Uninitialized { span, .. } if self.comes_to(Question::Unreadable) => {
                self.first_unreadable(*span, Standing::Unwritten)
            }
            AcquireError::Poisoned { .. } if self.is_stale => Ok(Vec::new()),
            AcquireError::Poisoned { span, restorable, .. } if self.comes_to(Question::Unreadable) => {
                let restorable = if *restorable { Sure::Yes } else { Sure::No };
                self.first_unreadable(*span, Standing::Poisoned(restorable))
            }
            AcquireError::Unreachable { arena, span, .. } if self.comes_to(Question::Way) => {
                let asked =
                    self.wants.iter().any(|want| want.start <= span.start() && span.end() <= want.end);
                let may = (self.any_lost && !self.is_clear) || self.is_stale;
                if may && asked && arena.id == self.arena && !span.is_empty() {
                    Ok(Vec::new())
                } else {
                    wrong("there is a way")
                }
            }
            AcquireError::Unreachable { .. } if self.is_stale => Ok(Vec::new()),
            _ => Err(format!("wrong before {:?}", self.first_obstacle())),
        }
    }

    /// Checks that `span` is the first that cannot be read, for this reason.
    fn first_unreadable(&self, span: Span, reason: Standing) -> Result<Vec<Lesson>, String> {
        let mut lessons = Vec::new();
        for run in &self.reads {
            let inside = |at: u64| span.start() <= at && at < span.end();
            let Some(first) = run.iter().position(|(at, _)| inside(*at)) else {
                // The whole run precedes the span, so it must be readable.
                for (at, standing) in run {
                    self.passed_over(*at, *standing)?;
                    lessons.push(Lesson { span: *at..at + 1, is_kept: true });
                }
                continue;
            };
            for (at, standing) in &run[..first] {
                self.passed_over(*at, *standing)?;
                lessons.push(Lesson { span: *at..at + 1, is_kept: true });
            }
            let named: Vec<_> = run[first..].iter().take_while(|(at, _)| inside(*at)).collect();
            if named.len() as u64 != span.len() {
                return Err(format!("{span} is not one of the ranges to be read"));
            }
            for (at, standing) in named {
                let fits = match (*standing, reason) {
                    (Standing::Unsure, Standing::Poisoned(restorable)) => restorable == Sure::No,
                    (Standing::Poisoned(Sure::Perhaps), Standing::Poisoned(_)) => true,
                    (standing, reason) => standing == reason,
                };
                if !fits {
                    return Err(format!("byte {at} is {standing:?}"));
                }
            }
            let is_kept = reason == Standing::Poisoned(Sure::Yes);
            lessons.push(Lesson { span: span.to_range(), is_kept });
            // Bytes that no arena holds are all alike, so the span ends only where their standing changes.
            let next = run.iter().find(|(at, _)| *at == span.end());
            if !is_kept && next.is_some_and(|(_, standing)| *standing == reason) {
                return Err(format!("what is wrong with {span} does not end there"));
            }
            return Ok(lessons);
        }
        Err(format!("{span} was not to be read"))
    }

    fn passed_over(&self, at: u64, standing: Standing) -> Result<(), String> {
        match standing {
            Standing::Readable | Standing::Unsure => Ok(()),
            other => Err(format!("byte {at} comes first and is {other:?}")),
        }
    }

    fn all_kept(&self) -> Vec<Lesson> {
        let reads = self.reads.iter().flatten();
        reads.map(|(at, _)| Lesson { span: *at..at + 1, is_kept: true }).collect()
    }

    /// Checks that a waiting request may have been answered. Returns whether it then holds its bytes.
    pub(super) fn woken(&self) -> Result<Sure, String> {
        match self.first_obstacle() {
            Question::Queue => Err("it passed one that came earlier and is in its way".to_owned()),
            // The same kernel may hold the bytes. That is reported before a conflict.
            Question::Conflict if !self.held.is_empty() => Ok(Sure::No),
            Question::Conflict => Err("it was let in beside somebody who is in its way".to_owned()),
            Question::Granted => {
                let unsure = self.reads.iter().flatten().any(|(_, standing)| *standing == Standing::Unsure);
                let may_fail = unsure || self.any_lost || !self.held.is_empty();
                Ok(if may_fail { Sure::Perhaps } else { Sure::Yes })
            }
            _ => Ok(Sure::No),
        }
    }

    /// Returns whether a request at the head of the queue must have been answered, because nothing is in its way.
    pub(super) fn must_be_answered(&self) -> bool {
        self.conflict == Sure::No && self.is_clear
    }

    /// Notes that a device was lost after the answer was given and before the request was polled.
    pub(super) fn device_was_lost(&mut self) {
        self.is_stale = true;
    }
}
