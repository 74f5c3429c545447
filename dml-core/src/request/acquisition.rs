//! The execution of an acquire, buffer by buffer.
//!
//! ```text
//!   to_come ──ask──▶ granted                             ──▶ granted, in canonical order
//!                    plan: what can begin has begun ──▶ preparing ──carried out──▶ granted
//!                    busy ──▶ waiting ──answered──▶ granted, or a plan
//! ```
//! 1. The next buffer is requested while copies for earlier ones are in flight. So all copies that do not
//!    depend on each other overlap.
//! 2. The outcome is that of one buffer after the other. If several fail, the error is that of the first one
//!    in canonical order. No step begins for a buffer behind a known failure.
//! 3. The acquire does not sleep in a queue while one of its plans is unfinished. Such a plan needs this
//!    thread to advance, and may exclude other requests from its buffer meanwhile.
//! 4. A submission leaves the copies of what it only reads to its stream, once nothing else remains to be
//!    done. They depend on no other request, so the stream can wait for them before it launches.
//! 5. Each poll of a future polls its first [`MOST_POLLED`] plans. A sleeping thread waits for one plan after
//!    the other. It notices the copies for later buffers last, and these stay reserved until then.

use crate::base::id::{ArenaId, BufferId, KernelId, OwnerId};
use crate::base::spans::TraceSpan;
use crate::buffer::engine::Run;
use crate::buffer::error::AcquireError;
use crate::buffer::lock::Asked;
use crate::buffer::storage::Handout;
use crate::buffer::wait::{Place, Wait};
use crate::platform::stream::is_on_stream;
use crate::request::acquire::Purpose;
use crate::request::docket::{Docket, Part};
use crate::request::grant::Grant;
use crate::request::grants::Grants;
use crate::request::held::{self, Carried};
use crate::state::{Begin, OneClaim, Request};
use std::collections::VecDeque;
use std::panic::Location;
use std::task::Poll;
use std::time::Duration;

/// Maximum number of plans that a future polls at once, those of the first buffers. It bounds the cost of a
/// poll, because the end of each copy may cause one.
const MOST_POLLED: usize = 64;

/// A part that waits in its buffer's queue.
#[derive(Debug)]
struct Queued {
    part: Part,
    place: Place,
}

/// An acquire in progress: its granted, prepared, waiting and remaining parts. Dropping the value undoes all
/// of them.
#[derive(Debug)]
pub(super) struct Acquisition {
    kernel: KernelId,
    arena: ArenaId,
    purpose: Purpose,
    /// The source location of the acquire.
    origin: &'static Location<'static>,
    /// The grants so far.
    docket: Docket,
    /// The remaining parts; the next one comes last.
    to_come: Vec<Part>,
    waiting: Option<Queued>,
    /// The parts whose plans are being carried out, in canonical order.
    preparing: VecDeque<Preparing>,
    /// The error of a part that is not granted. The plans of the parts before it are still carried out,
    /// because they may fail as well.
    refused: Option<AcquireError>,
    /// The first failed plan in canonical order, with its error. Plans behind it begin no further step.
    failed: Option<(BufferId, AcquireError)>,
    /// Whether the polling thread sleeps while the acquire is pending.
    sleeps: bool,
    /// The tracing span. It is the last field, so that it ends after all others are dropped.
    span: TraceSpan,
}

/// A part whose plan is being carried out.
#[derive(Debug)]
struct Preparing {
    part: Part,
    run: Run,
    grant: OwnerId,
    /// `None` in a polled future, whose task may wait elsewhere meanwhile.
    _carried: Option<Carried>,
}

impl Acquisition {
    /// Makes the value of a request, of which the first parts may be granted. `to_come` are the others, in
    /// descending order.
    pub(super) fn new(
        (kernel, arena, origin): (KernelId, ArenaId, &'static Location<'static>),
        purpose: Purpose,
        (to_come, docket): (Vec<Part>, Docket),
        span: TraceSpan,
    ) -> Self {
        Self {
            kernel,
            arena,
            purpose,
            origin,
            docket,
            to_come,
            waiting: None,
            preparing: VecDeque::new(),
            refused: None,
            failed: None,
            sleeps: false,
            span,
        }
    }

    /// Marks the polling thread as one that sleeps while the acquire is pending, so that the order of its
    /// buffers is checked.
    pub(super) fn of_a_sleeper(mut self) -> Self {
        self.sleeps = true;
        self
    }

    /// Returns whether a part waits in its queue, and none is being prepared.
    pub(super) fn is_queued(&self) -> bool {
        self.waiting.is_some() && self.preparing.is_empty()
    }

    /// Runs the acquire to its end on this thread, or to the copies that may be in flight with the grants.
    pub(super) fn complete(mut self, wait: Wait<'_>) -> Result<Grants, AcquireError> {
        loop {
            match self.advance(wait) {
                Poll::Ready(granted) => return granted,
                Poll::Pending if self.leaves_copies() => return Ok(self.take_copies()),
                Poll::Pending => {}
            }
        }
    }

    /// Returns whether all that remains are copies that may be in flight with the grants.
    pub(super) fn leaves_copies(&self) -> bool {
        let only_copies = |Preparing { part, run, .. }: &Preparing| {
            !run.has_failed() && part.claims.iter().all(|claim| !claim.access.writes())
        };
        self.purpose.leaves_copies()
            && self.to_come.is_empty()
            && self.may_ask()
            && !self.preparing.is_empty()
            && self.preparing.iter().all(only_copies)
    }

    /// Takes the grants, with the copies that remain.
    pub(super) fn take_copies(&mut self) -> Grants {
        for Preparing { part, run, grant, .. } in std::mem::take(&mut self.preparing) {
            let of = (grant, self.arena);
            self.docket.push(Grant::arriving(part.buffer, of, part.claims, run, self.origin));
        }
        self.take_grants()
    }

    /// Advances as far as possible. The result is pending only if `wait` has a waker, or if the remaining
    /// copies may be in flight with the grants.
    pub(super) fn advance(&mut self, wait: Wait<'_>) -> Poll<Result<Grants, AcquireError>> {
        let span = std::mem::take(&mut self.span);
        let advanced = span.within(|| self.go_on(wait));
        self.span = span;
        advanced
    }

    fn go_on(&mut self, wait: Wait<'_>) -> Poll<Result<Grants, AcquireError>> {
        loop {
            if self.may_ask()
                && let Some(part) = self.to_come.pop()
            {
                self.refused = self.ask(part, wait).err();
            } else if self.leaves_copies() {
                return Poll::Pending;
            } else if !self.preparing.is_empty() {
                let Poll::Ready(()) = self.prepare(wait) else { return Poll::Pending };
            } else if let Some((_, error)) = self.failed.take() {
                return Poll::Ready(Err(error));
            } else if let Some(error) = self.refused.take() {
                return Poll::Ready(Err(error));
            } else if let Some(Queued { part, place }) = &self.waiting {
                self.refused = match place.wait(wait) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(begin)) => self.answered(begin, wait).err(),
                    Poll::Ready(None) => {
                        let (buffer, waited) = (part.buffer.name(), Duration::ZERO);
                        Some(AcquireError::Timeout { buffer, waited })
                    }
                };
            } else {
                return Poll::Ready(Ok(self.take_grants()));
            }
        }
    }

    /// Submits the request for one buffer.
    fn ask(&mut self, part: Part, wait: Wait<'_>) -> Result<(), AcquireError> {
        let buffer = &part.buffer;
        let is_submission = self.purpose.is_submission();
        if let [claim] = part.claims[..] {
            let request =
                OneClaim { kernel: self.kernel, grant: OwnerId(0), arena: self.arena, claim, is_submission };
            if let Some((pin, grant, handout)) = buffer.0.grant_at_once(request, self.origin) {
                let grant = (grant, self.arena);
                self.docket.add().open(pin, grant, part.claims, handout, self.origin);
                return Ok(());
            }
        }
        let (mut later, mut is_refused) = (None, false);
        let queues = || {
            if self.sleeps || matches!(wait, Wait::Until(_)) {
                // The holder of this buffer may be waiting for a buffer that this thread holds.
                (later, is_refused) = (held::at_or_after(buffer.id()), is_on_stream());
            }
            !matches!(wait, Wait::Try) && later.is_none() && !is_refused
        };
        let request = Request {
            kernel: self.kernel,
            grant: OwnerId(0), // the buffer sets it
            arena: self.arena,
            claims: part.claims.clone(),
            is_submission,
        };
        let asked = buffer.0.ask(request, queues, self.origin);
        match (asked, later) {
            (Asked::Granted(grant, handout), _) => self.granted(part, grant, handout),
            (Asked::Answered(Begin::Busy { .. }, _), Some(later)) => {
                let held = buffer.platform().name_of(later);
                return Err(AcquireError::OrderViolation { buffer: buffer.name(), held });
            }
            (Asked::Answered(Begin::Busy { .. }, _), None) if is_refused => {
                return Err(AcquireError::OnStream { buffer: buffer.name() });
            }
            (Asked::Answered(begin, grant), _) => return self.act_on(part, begin, grant, wait),
            (Asked::Queued(place), _) => {
                let ends_here = matches!(wait, Wait::Until(None)) && buffer.0.ends_kernels(&place);
                if !ends_here {
                    buffer.platform().0.streams.hurry();
                }
                self.waiting = Some(Queued { part, place });
            }
        }
        Ok(())
    }

    /// Processes the answer of the waiting part.
    fn answered(&mut self, begin: Begin, wait: Wait<'_>) -> Result<(), AcquireError> {
        match self.waiting.take() {
            Some(Queued { part, place }) => self.act_on(part, begin, place.grant, wait),
            None => Ok(()),
        }
    }

    /// Returns whether the next buffer may be requested. Of the plans in progress, only the last one can have
    /// failed at its start.
    fn may_ask(&self) -> bool {
        let has_failed = self.preparing.back().is_some_and(|last| last.run.has_failed());
        self.waiting.is_none() && self.refused.is_none() && self.failed.is_none() && !has_failed
    }

    /// Advances the plans. Pending if one has copies in flight, which happens only if `wait` has a waker.
    fn prepare(&mut self, wait: Wait<'_>) -> Poll<()> {
        let mut pending = 0;
        while pending < MOST_POLLED
            && let Some(Preparing { run, .. }) = self.preparing.get_mut(pending)
        {
            let Poll::Ready(ended) = run.advance(wait) else {
                pending += 1;
                continue;
            };
            let Some(Preparing { part, grant, .. }) = self.preparing.remove(pending) else { break };
            match ended {
                Ok(handout) => self.granted(part, grant, handout),
                Err(error) => self.plan_failed(part.buffer.id(), error),
            }
        }
        if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Records that a plan failed.
    fn plan_failed(&mut self, buffer: BufferId, error: AcquireError) {
        if self.failed.as_ref().is_some_and(|(first, _)| *first < buffer) {
            return;
        }
        self.failed = Some((buffer, error));
        let behind = self.preparing.iter_mut().filter(|preparing| preparing.part.buffer.id() > buffer);
        behind.for_each(|preparing| preparing.run.stop());
    }

    /// Acts on the machine's answer to a part.
    fn act_on(
        &mut self,
        part: Part,
        begin: Begin,
        grant: OwnerId,
        wait: Wait<'_>,
    ) -> Result<(), AcquireError> {
        let buffer = &part.buffer;
        match begin {
            Begin::Granted(_) => {
                let storage = Some(self.arena).filter(|_| !part.claims.is_empty());
                let handout =
                    buffer.0.change(|locked, _| buffer.0.hand_out(locked, grant, storage, self.origin));
                self.granted(part, grant, handout);
            }
            Begin::Plan(plan) => {
                let mut run = Run::new(buffer.clone().into(), plan, self.origin);
                match run.start() {
                    Poll::Ready(ended) => self.granted(part, grant, ended?),
                    Poll::Pending => {
                        let is_call = self.sleeps || !matches!(wait, Wait::Awaken(_));
                        let carried = is_call.then(|| Carried::new(buffer.id(), grant));
                        self.preparing.push_back(Preparing { part, run, grant, _carried: carried });
                    }
                }
            }
            Begin::Busy { reason, .. } => return Err(AcquireError::Busy { buffer: buffer.name(), reason }),
            Begin::Refused(refusal) => return Err(buffer.0.refused(refusal)),
        }
        Ok(())
    }

    fn granted(&mut self, Part { buffer, claims }: Part, grant: OwnerId, handout: Option<Handout>) {
        let of = (grant, self.arena);
        self.docket.push(Grant::new(buffer.into(), of, claims, handout, self.origin));
    }

    /// Returns the grants in canonical order. They may have been made in another order, because copies end in
    /// any order.
    fn take_grants(&mut self) -> Grants {
        let mut docket = self.docket.take();
        if !docket.grants().is_sorted_by_key(|grant| grant.buffer.id()) {
            docket.grants_mut().sort_by_key(|grant| grant.buffer.id());
        }
        Grants::new(docket)
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if let Some(queued) = self.waiting.take() {
            queued.part.buffer.0.cancel(queued.place);
        }
        self.preparing.clear();
        if let Some(docket) = self.docket.get_mut() {
            docket.roll_back();
        }
    }
}
