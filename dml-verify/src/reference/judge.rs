//! Answers, and whether an expectation allows them.

use super::cell::{Standing, Sure};
use super::expect::{Byte, Expect, Question};
use dml_core::{AcquireError, ArenaId, BufferId, KernelId, Span};
use std::ops::Range;

/// The answer to a request.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// Every part is granted.
    Granted,
    /// The request waits for this buffer.
    Waits(BufferId),
    /// The request was refused.
    Error(&'a AcquireError),
    /// The request failed at this buffer by a scripted fault.
    Fault(BufferId),
}

/// What an answer shows about bytes that may have been lost.
#[derive(Clone, Debug)]
pub(super) struct Lesson {
    pub(super) span: Range<u64>,
    pub(super) is_kept: bool,
}

/// What an answer that is allowed shows, or why the answer is not allowed.
type Verdict = Result<Vec<Lesson>, String>;

impl Expect {
    /// Checks that an answer is allowed, and returns what the answer shows about lost bytes.
    pub(super) fn judge(&self, answer: &Answer<'_>) -> Verdict {
        match answer {
            Answer::Granted if self.is_stale => Ok(Vec::new()),
            Answer::Granted if self.comes_to(Question::Granted) => {
                Ok(self.reads.iter().flat_map(|run| all_kept(run)).collect())
            }
            Answer::Granted => Err(format!("granted in spite of {:?}", self.first_obstacle())),
            Answer::Fault(_) if self.comes_to(Question::Granted) => Ok(Vec::new()),
            Answer::Fault(_) => Err(format!("tried in spite of {:?}", self.first_obstacle())),
            Answer::Waits(_) => allowed(self.may_wait(), "nothing to wait for"),
            Answer::Error(error) => self.judge_error(error),
        }
    }

    fn judge_error(&self, error: &AcquireError) -> Verdict {
        match error {
            // A plan made before the loss may have used the lost memory at any step.
            AcquireError::DeviceLost { .. } | AcquireError::Poisoned { .. } if self.is_stale => {
                Ok(Vec::new())
            }
            AcquireError::Closed { .. } if self.is_closed => Ok(Vec::new()),
            AcquireError::AlreadyHeld { kernel, span, .. } if self.comes_to(Question::Held) => {
                allowed(self.is_held(*kernel, *span), "it does not hold that")
            }
            AcquireError::Busy { reason, .. } if self.may_be_busy(*reason) => Ok(Vec::new()),
            AcquireError::DeviceLost { arena, .. } => {
                let is_lost = self.is_lost() && self.comes_to(Question::Lost);
                allowed(is_lost && arena.id == self.arena, "no device of it is lost")
            }
            AcquireError::Uninitialized { span, .. } if self.comes_to(Question::Unreadable) => {
                self.first_unreadable(*span, Standing::Unwritten)
            }
            AcquireError::Poisoned { span, restorable, .. } if self.comes_to(Question::Unreadable) => {
                let restorable = if *restorable { Sure::Yes } else { Sure::No };
                self.first_unreadable(*span, Standing::Poisoned(restorable))
            }
            AcquireError::Unreachable { arena, span, .. } if self.comes_to(Question::Way) => {
                allowed(self.is_unreachable(arena.id, *span), "there is a way")
            }
            AcquireError::Unreachable { .. } if self.is_stale => Ok(Vec::new()),
            _ => Err(format!("wrong before {:?}", self.first_obstacle())),
        }
    }

    /// Returns whether the kernel of the request, under this name, may hold just this span of the wanted
    /// bytes.
    fn is_held(&self, kernel: KernelId, span: Span) -> bool {
        let is_named = self.kernel >= 1 << 32 || kernel == KernelId(self.kernel);
        is_named && self.held.iter().any(|(held, _)| *held == span.to_range())
    }

    fn is_unreachable(&self, arena: ArenaId, span: Span) -> bool {
        let holds = |want: &Range<u64>| want.start <= span.start() && span.end() <= want.end;
        let is_wanted = !span.is_empty() && self.wants.iter().any(holds);
        self.may_be_unreachable() && is_wanted && arena == self.arena
    }

    /// Checks that `span` is the first that cannot be read, for this reason.
    fn first_unreadable(&self, span: Span, reason: Standing) -> Verdict {
        let mut lessons = Vec::new();
        for run in &self.reads {
            let first = run.iter().position(|byte| is_in(span, byte));
            let (before, rest) = run.split_at(first.unwrap_or(run.len()));
            passed_over(before)?;
            lessons.extend(all_kept(before));
            if !rest.is_empty() {
                lessons.push(unreadable(rest, span, reason)?);
                return Ok(lessons);
            }
        }
        Err(format!("{span} was not to be read"))
    }
}

/// Checks that a refusal for `reason` that names `span` is about the first bytes of `rest`, and about all
/// that are alike.
fn unreadable(rest: &[Byte], span: Span, reason: Standing) -> Result<Lesson, String> {
    let (named, after) = rest.split_at(rest.iter().take_while(|byte| is_in(span, byte)).count());
    if named.len() as u64 != span.len() {
        return Err(format!("{span} is not one of the ranges to be read"));
    }
    if let Some((at, standing)) = named.iter().find(|(_, standing)| !may_be_refused(*standing, reason)) {
        return Err(format!("byte {at} is {standing:?}"));
    }
    let is_kept = reason == Standing::Poisoned(Sure::Yes);
    // Bytes that no arena holds are all alike, so the span ends only where their standing changes.
    if !is_kept && after.first().is_some_and(|(_, standing)| *standing == reason) {
        return Err(format!("what is wrong with {span} does not end there"));
    }
    Ok(Lesson { span: span.to_range(), is_kept })
}

/// Returns whether a byte of this standing may be refused for `reason`.
fn may_be_refused(standing: Standing, reason: Standing) -> bool {
    match (standing, reason) {
        (Standing::Unsure, Standing::Poisoned(restorable)) => restorable == Sure::No,
        (Standing::Poisoned(Sure::Perhaps), Standing::Poisoned(_)) => true,
        (standing, reason) => standing == reason,
    }
}

/// Checks that bytes before those that a refusal names can be read.
fn passed_over(bytes: &[Byte]) -> Result<(), String> {
    let is_readable = |standing| matches!(standing, Standing::Readable | Standing::Unsure);
    match bytes.iter().find(|(_, standing)| !is_readable(*standing)) {
        Some((at, standing)) => Err(format!("byte {at} comes first and is {standing:?}")),
        None => Ok(()),
    }
}

fn all_kept(bytes: &[Byte]) -> impl Iterator<Item = Lesson> {
    bytes.iter().map(|(at, _)| Lesson { span: *at..at + 1, is_kept: true })
}

fn is_in(span: Span, (at, _): &Byte) -> bool {
    span.start() <= *at && *at < span.end()
}

fn allowed(is_allowed: bool, why_not: &str) -> Verdict {
    if is_allowed { Ok(Vec::new()) } else { Err(why_not.to_owned()) }
}

impl Answer<'_> {
    /// Returns whether the answer is about this buffer, and not about a later one.
    pub(super) fn is_about(&self, buffer: BufferId) -> bool {
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
