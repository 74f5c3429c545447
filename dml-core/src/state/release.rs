//! How grants end: committed, left as they were, or poisoned; and what becomes of poisoned bytes.
//!
//! A commit, a failure and a restore change exactly the claims they are about (I-16, I-17).

use super::{BufferState, Content, Lifecycle, Phase, Refusal, Remains, Routes, Status};
use crate::access::{Access, Claim, normalise, touching};
use crate::id::{ArenaId, GrantId, Seq};
use crate::range::Span;

/// How a grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The kernel ran; what it wrote is committed.
    Done,
    /// The kernel never began; nothing was written.
    NotStarted,
    /// The kernel ran and asserts that it wrote nothing. Not for bytes granted for overwriting.
    Clean,
    /// The kernel failed; what it was to write is poisoned.
    Failed,
}

/// What a release did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Release {
    /// The outcome that counted: that of a lost device is always [`Outcome::Failed`].
    pub outcome: Outcome,
    /// The commit it made, if it made one.
    pub commit: Option<Seq>,
}

impl BufferState {
    /// The kernel of a grant begins to run.
    pub fn start(&mut self, grant: GrantId) {
        if let Some(entry) = self.requestors.iter_mut().find(|entry| entry.grant == grant) {
            entry.phase = Phase::InFlight;
        }
    }

    /// A grant ends.
    ///
    /// # Errors
    /// [`Refusal::NotClean`] for [`Outcome::Clean`] on bytes granted for overwriting; nothing changed then.
    /// [`Refusal::Closed`] when there is no such grant.
    pub fn release(
        &mut self,
        routes: &dyn Routes,
        grant: GrantId,
        outcome: Outcome,
    ) -> Result<Release, Refusal> {
        let index = self.requestors.iter().position(|entry| entry.grant == grant).ok_or(Refusal::Closed)?;
        let overwrites = |claim: &Claim| claim.access == Access::WriteInvalidate;
        if outcome == Outcome::Clean && self.requestors[index].claims.iter().any(overwrites) {
            return Err(Refusal::NotClean);
        }
        let entry = self.requestors.swap_remove(index);
        let arena = self.arena_mut(entry.arena);
        arena.native_refs -= 1;
        let outcome = if arena.is_lost() && outcome == Outcome::Done { Outcome::Failed } else { outcome };
        let commit = match outcome {
            Outcome::Done if entry.writes() => Some(self.commit(routes, entry.arena, &entry.claims)),
            Outcome::Failed => {
                self.poison(entry.arena, &entry.claims);
                None
            }
            Outcome::Done | Outcome::NotStarted | Outcome::Clean => None,
        };
        self.settle(routes);
        Ok(Release { outcome, commit })
    }

    /// Makes what was written through `arena` the latest contents, of exactly the claims that write (I-17).
    fn commit(&mut self, routes: &dyn Routes, arena: ArenaId, claims: &[Claim]) -> Seq {
        let content = Content { valid: self.tenancy(routes).mirrors(arena), status: Status::Defined };
        for claim in claims.iter().filter(|claim| claim.access.writes()) {
            self.segments.update(claim.span, |_| content);
        }
        self.commit_seq = Seq(self.commit_seq.0 + 1);
        self.commit_seq
    }

    fn poison(&mut self, arena: ArenaId, claims: &[Claim]) {
        let group = self.group(arena);
        for claim in claims.iter().filter(|claim| claim.access.writes()) {
            self.segments.update(claim.span, |content| {
                let valid = content.valid.minus(group);
                let remains = match content.status {
                    Status::Zeroed | Status::Poisoned(Remains::Zeros) => Remains::Zeros,
                    _ if valid.is_empty() => Remains::Lost,
                    _ => Remains::Committed,
                };
                Content { valid, status: Status::Poisoned(remains) }
            });
        }
    }

    /// A writing grant becomes a reading one: what it wrote is committed, and it goes on reading it.
    ///
    /// # Errors
    /// [`Refusal::DeviceLost`] where the arena's device is gone, [`Refusal::Closed`] when there is no such grant.
    pub fn downgrade(&mut self, routes: &dyn Routes, grant: GrantId) -> Result<Seq, Refusal> {
        let index = self.requestors.iter().position(|entry| entry.grant == grant).ok_or(Refusal::Closed)?;
        let entry = &self.requestors[index];
        let (arena, claims) = (entry.arena, entry.claims.clone());
        if self.arena(arena).is_lost() {
            return Err(Refusal::DeviceLost);
        }
        let seq = if entry.writes() { self.commit(routes, arena, &claims) } else { self.commit_seq };
        let reading = claims.iter().map(|claim| Claim { access: Access::ReadOnly, ..*claim });
        let entry = &mut self.requestors[index];
        entry.set_claims(normalise(reading));
        entry.seq_at_grant = seq;
        Ok(seq)
    }

    /// Gives poisoned bytes their last committed contents back. Bytes that are not poisoned stay as they are.
    ///
    /// # Errors
    /// [`Refusal::Closed`] once nobody can read them again, [`Refusal::NotRestorable`] where those contents are lost;
    /// nothing changed then. `Ok(false)` while a kernel holds some of the bytes.
    pub fn restore(&mut self, span: Span) -> Result<bool, Refusal> {
        if matches!(self.lifecycle, Lifecycle::Closing | Lifecycle::Closed) {
            return Err(Refusal::Closed);
        }
        if self.requestors.iter().any(|entry| !touching(&entry.claims, span).is_empty()) {
            return Ok(false);
        }
        let lost = |(part, content): (Span, Content)| {
            (content.status == Status::Poisoned(Remains::Lost)).then_some(part)
        };
        if let Some(span) = self.segments.in_span(span).find_map(lost) {
            return Err(Refusal::NotRestorable { span });
        }
        self.segments.update(span, |content| match content.status {
            Status::Poisoned(Remains::Committed) => Content { status: Status::Defined, ..content },
            Status::Poisoned(Remains::Zeros) => Content { status: Status::Zeroed, ..content },
            _ => content,
        });
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
