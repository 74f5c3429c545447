//! The progress of an acquire: one buffer after the other.

use crate::base::access::Claims;
use crate::base::id::{ArenaId, GrantId, KernelId, Ticket};
use crate::base::sync::Arc;
use crate::buffer::RawBuffer;
use crate::buffer::engine::Run;
use crate::buffer::error::AcquireError;
use crate::buffer::lock::Asked;
use crate::buffer::storage::Handout;
use crate::buffer::wait::{Wait, Waiter};
use crate::request::grant::{Grant, Grants, Item};
use crate::request::held;
use crate::state::Begin;
use smallvec::SmallVec;
use std::panic::Location;
use std::task::Poll;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Step {
    pub(super) buffer: RawBuffer,
    pub(super) claims: Claims,
}

#[derive(Debug)]
struct Queued {
    buffer: RawBuffer,
    claims: Claims,
    ticket: Ticket,
    waiter: Arc<Waiter>,
    grant: GrantId,
}

/// The steps of an acquire: the granted ones, the waiting one, and the remaining ones. Dropping the value undoes all of
/// them.
#[derive(Debug)]
pub(super) struct Steps {
    kernel: KernelId,
    arena: ArenaId,
    /// The place in the program that asked.
    origin: &'static Location<'static>,
    /// The remaining steps; the next one comes last.
    steps: SmallVec<[Step; 3]>,
    granted: Vec<Grant>,
    waiting: Option<Queued>,
    preparing: Option<Preparing>,
    items: SmallVec<[Item; 3]>,
}

/// A step whose plan is being carried out.
#[derive(Debug)]
struct Preparing {
    run: Run,
    buffer: RawBuffer,
    claims: Claims,
    grant: GrantId,
}

impl Steps {
    /// Creates an acquire that has requested nothing. `steps` are in descending order of their buffers, and `items` in
    /// the order of the request.
    pub(super) fn new(
        (kernel, arena, origin): (KernelId, ArenaId, &'static Location<'static>),
        steps: SmallVec<[Step; 3]>,
        items: SmallVec<[Item; 3]>,
    ) -> Self {
        let granted = Vec::with_capacity(steps.len());
        Self { kernel, arena, origin, steps, granted, waiting: None, preparing: None, items }
    }

    /// Runs the acquire to its end on this thread.
    pub(super) fn complete(mut self, wait: Wait<'_>) -> Result<Grants, AcquireError> {
        loop {
            if let Poll::Ready(granted) = self.advance(wait) {
                return granted;
            }
        }
    }

    /// Advances as far as possible. The result is pending only if `wait` has a waker.
    pub(super) fn advance(&mut self, wait: Wait<'_>) -> Poll<Result<Grants, AcquireError>> {
        loop {
            let went_on = if let Some(preparing) = &mut self.preparing {
                let Poll::Ready(ended) = preparing.run.advance(wait) else { return Poll::Pending };
                ended.map(|handout| self.prepared(handout))
            } else if let Some(queued) = &self.waiting {
                match queued.waiter.wait(wait) {
                    Poll::Ready(Some(begin)) => self.answered(begin),
                    Poll::Ready(None) => {
                        let (buffer, waited) = (queued.buffer.name(), Duration::ZERO);
                        Err(AcquireError::Timeout { buffer, waited })
                    }
                    Poll::Pending => return Poll::Pending,
                }
            } else if let Some(step) = self.steps.pop() {
                self.ask(step, wait)
            } else {
                return Poll::Ready(Ok(self.take_grants()));
            };
            if let Err(error) = went_on {
                return Poll::Ready(Err(error));
            }
        }
    }

    /// Submits the request for one buffer.
    fn ask(&mut self, Step { buffer, claims }: Step, wait: Wait<'_>) -> Result<(), AcquireError> {
        let later = match wait {
            // The holder of this buffer may be waiting for a buffer that this thread holds.
            Wait::Until(_) => held::at_or_after(buffer.id()),
            Wait::Try | Wait::Awaken(_) => None,
        };
        let queue = !matches!(wait, Wait::Try) && later.is_none();
        match (buffer.0.ask((self.kernel, self.arena, claims.clone()), queue, self.origin), later) {
            (Asked::Granted(grant, handout), _) => self.granted(buffer, grant, claims, handout),
            (Asked::Answered(Begin::Busy { .. }, _), Some(later)) => {
                let held = buffer.platform().name_of(later);
                return Err(AcquireError::OrderViolation { buffer: buffer.name(), held });
            }
            (Asked::Answered(begin, grant), _) => return self.settle(buffer, claims, begin, grant),
            (Asked::Queued(ticket, waiter, grant), _) => {
                self.waiting = Some(Queued { buffer, claims, ticket, waiter, grant });
            }
        }
        Ok(())
    }

    /// Processes the answer of the waiting step.
    fn answered(&mut self, begin: Begin) -> Result<(), AcquireError> {
        match self.waiting.take() {
            Some(queued) => self.settle(queued.buffer, queued.claims, begin, queued.grant),
            None => Ok(()),
        }
    }

    /// Records the grant of the step whose plan was carried out.
    fn prepared(&mut self, handout: Option<Handout>) {
        if let Some(Preparing { buffer, claims, grant, .. }) = self.preparing.take() {
            self.granted(buffer, grant, claims, handout);
        }
    }

    fn settle(
        &mut self,
        buffer: RawBuffer,
        claims: Claims,
        begin: Begin,
        grant: GrantId,
    ) -> Result<(), AcquireError> {
        match begin {
            Begin::Granted(_) => {
                let storage = Some(self.arena).filter(|_| !claims.is_empty());
                let handout =
                    buffer.0.change(|locked, _| buffer.0.hand_out(locked, grant, storage, self.origin));
                self.granted(buffer, grant, claims, handout);
            }
            Begin::Plan(plan) => {
                let run = Run::new(&buffer, plan, self.origin);
                self.preparing = Some(Preparing { run, buffer, claims, grant });
            }
            Begin::Busy { reason, .. } => return Err(AcquireError::Busy { buffer: buffer.name(), reason }),
            Begin::Refused(refusal) => {
                return Err(buffer.0.refused(refusal));
            }
        }
        Ok(())
    }

    fn granted(&mut self, buffer: RawBuffer, grant: GrantId, claims: Claims, handout: Option<Handout>) {
        self.granted.push(Grant::new(buffer, grant, self.arena, claims, handout));
    }

    fn take_grants(&mut self) -> Grants {
        Grants::new(std::mem::take(&mut self.granted), std::mem::take(&mut self.items))
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(queued) = self.waiting.take() {
            queued.buffer.0.cancel(queued.ticket, &queued.waiter, queued.grant);
        }
        self.preparing = None;
        while let Some(grant) = self.granted.pop() {
            drop(grant);
        }
    }
}
