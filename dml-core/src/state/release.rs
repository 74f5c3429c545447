//! The ends of grants (committed, unchanged or poisoned), and the restoring of poisoned bytes.
//!
//! A commit, a failure or a restore changes exactly the bytes of its claims (I-16, I-17).

use super::{BufferState, Content, Lifecycle, Refusal, Remains, Routes, Status};
use crate::base::access::{Access, Claim, Claims};
use crate::base::id::{ArenaId, OwnerId, Seq};
use crate::base::range::Span;

/// The way in which a grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The kernel ran. The bytes it was granted for writing are committed.
    Done,
    /// The kernel never started, and wrote nothing.
    NotStarted,
    /// The kernel ran and asserts that it wrote nothing. Not allowed for bytes granted for overwriting.
    Clean,
    /// The kernel failed. The bytes it was granted for writing are poisoned.
    Failed,
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Release {
    /// The outcome that counted.
    pub outcome: Outcome,
    /// The commit that the release made, if any.
    pub commit: Option<Seq>,
    /// The arena whose device was lost during the grant, if that made the outcome [failed](Outcome::Failed).
    pub lost: Option<ArenaId>,
}

impl BufferState {
    /// Records that the kernel of a grant starts.
    ///
    /// # Errors
    /// For a submission that waited for its start: [`Refusal::Poisoned`], [`Refusal::Uninitialized`] or
    /// [`Refusal::Unreachable`] if a kernel before it on its stream did not write what it reads. It must then
    /// end as not started.
    pub fn start(&mut self, grant: OwnerId) -> Result<(), Refusal> {
        let Some(place) = self.requestors.place(grant) else { return Ok(()) };
        let (arena, is_submission) = (self.requestors[place].arena, self.requestors[place].is_submission);
        if is_submission
            && let Some(refusal) = self.missing(&self.requestors[place])
            && !self.arena(arena).is_lost()
        {
            return Err(refusal);
        }
        if self.requestors.start(place) {
            self.arena_mut(arena).native_refs -= 1;
        }
        Ok(())
    }

    /// Ends a grant.
    ///
    /// # Errors
    /// [`Refusal::NotClean`] for [`Outcome::Clean`] on bytes granted for overwriting; nothing changed then.
    /// [`Refusal::Closed`] when there is no such grant.
    pub fn release(
        &mut self,
        routes: &dyn Routes,
        grant: OwnerId,
        outcome: Outcome,
    ) -> Result<Release, Refusal> {
        self.release_as(routes, (grant, None), outcome)
    }

    /// Ends the grant of a kernel with these claims. On a stream, it may share its entry with other kernels.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn release_kernel(
        &mut self,
        routes: &dyn Routes,
        (grant, arena, claims): (OwnerId, ArenaId, &Claims),
        outcome: Outcome,
    ) -> Result<Release, Refusal> {
        self.release_as(routes, (grant, Some((arena, claims))), outcome)
    }

    fn release_as(
        &mut self,
        routes: &dyn Routes,
        of: (OwnerId, Option<(ArenaId, &Claims)>),
        outcome: Outcome,
    ) -> Result<Release, Refusal> {
        let arena = self.requestors.place(of.0).map(|place| self.requestors[place].arena);
        let known = arena.and_then(|arena| self.known(routes, arena));
        match known.and_then(|mut known| self.release_at_once(routes, &mut known, of, outcome)) {
            Some(release) => Ok(release),
            None => self.release_in_general(routes, of, outcome),
        }
    }

    pub(super) fn release_in_general(
        &mut self,
        routes: &dyn Routes,
        (grant, on_stream): (OwnerId, Option<(ArenaId, &Claims)>),
        outcome: Outcome,
    ) -> Result<Release, Refusal> {
        let on_stream = || on_stream.and_then(|(arena, claims)| self.requestors.on_stream(arena, claims));
        let place = self.requestors.place(grant).or_else(on_stream).ok_or(Refusal::Closed)?;
        self.release_at(routes, place, outcome)
    }

    /// Ends all kernels on streams as failed, because their streams are lost.
    pub fn fail_streams(&mut self, routes: &dyn Routes) {
        while let Some(place) = self.requestors.iter().position(|entry| entry.on_stream().is_some()) {
            let _ = self.release_at(routes, place, Outcome::Failed);
        }
    }

    fn release_at(
        &mut self,
        routes: &dyn Routes,
        place: usize,
        outcome: Outcome,
    ) -> Result<Release, Refusal> {
        let overwrites = |claim: &Claim| claim.access == Access::WriteInvalidate;
        if outcome == Outcome::Clean && self.requestors[place].claims.iter().any(overwrites) {
            return Err(Refusal::NotClean);
        }
        let entry = match self.requestors.ends_one(place) {
            true => self.requestors[place].clone(),
            false => {
                let entry = self.requestors.swap_remove(place);
                self.arena_mut(entry.arena).native_refs -= 1;
                entry
            }
        };
        let arena = self.arena(entry.arena);
        let lost = Some(entry.arena).filter(|_| arena.is_lost() && outcome == Outcome::Done);
        let outcome = if lost.is_some() { Outcome::Failed } else { outcome };
        let commit = match outcome {
            Outcome::Done if entry.writes() => Some(self.commit(routes, entry.arena, &entry.claims)),
            Outcome::Failed => {
                self.poison(entry.arena, &entry.claims);
                None
            }
            Outcome::Done | Outcome::NotStarted | Outcome::Clean => None,
        };
        self.settle(routes);
        Ok(Release { outcome, commit, lost })
    }

    /// Makes the bytes written through `arena` the latest contents, for exactly the claims that write (I-17).
    pub(super) fn commit(&mut self, routes: &dyn Routes, arena: ArenaId, claims: &[Claim]) -> Seq {
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

    /// Turns a writing grant into a reading grant: commits what it wrote, and keeps its read access. Returns
    /// the commit, if one was made.
    ///
    /// # Errors
    /// [`Refusal::DeviceLost`] if the arena's device is lost, [`Refusal::Closed`] when there is no such
    /// grant.
    pub fn downgrade(&mut self, routes: &dyn Routes, grant: OwnerId) -> Result<Option<Seq>, Refusal> {
        let index = self.requestors.place(grant).ok_or(Refusal::Closed)?;
        let entry = &self.requestors[index];
        let (arena, claims) = (entry.arena, entry.claims.clone());
        if self.arena(arena).is_lost() {
            return Err(Refusal::DeviceLost { arena });
        }
        let commit = entry.writes().then(|| self.commit(routes, arena, &claims));
        let seq = self.commit_seq;
        self.requestors.set_claims(index, claims.reading());
        if let Some(entry) = self.requestors.find_mut(grant) {
            entry.seq_at_grant = seq;
        }
        self.settle(routes);
        Ok(commit)
    }

    /// Gives poisoned bytes their last committed contents back. Bytes that are not poisoned do not change.
    ///
    /// # Errors
    /// [`Refusal::Closed`] if the buffer is closing or closed. [`Refusal::NotRestorable`] if those contents
    /// are lost. Nothing changed then. `Ok(false)` while a kernel holds some of the bytes.
    pub fn restore(&mut self, span: Span) -> Result<bool, Refusal> {
        if matches!(self.lifecycle, Lifecycle::Closing | Lifecycle::Closed) {
            return Err(Refusal::Closed);
        }
        if self.requestors.claim(span) {
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
