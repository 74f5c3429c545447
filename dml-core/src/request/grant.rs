//! The grant of one buffer, with the copies in flight that belong to it.

use crate::base::access::{Access, Claim, Claims};
use crate::base::guard::quietly;
use crate::base::id::{ArenaId, OwnerId};
use crate::base::range::Span;
use crate::base::sync::{Arc, Mutex};
use crate::buffer::RawBuffer;
use crate::buffer::engine::Run;
use crate::buffer::error::{AcquireError, PoisonedEnd, Poisoner, ViewError};
use crate::buffer::storage::Handout;
use crate::memory::block::BlockRef;
use crate::memory::host::Lease;
use crate::request::held;
use crate::request::region::Region;
use crate::state::{EventKind, Outcome};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

/// The grant of one buffer.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(super) buffer: RawBuffer,
    pub(super) id: OwnerId,
    pub(super) arena: ArenaId,
    pub(super) claims: Claims,
    pub(super) block: Option<BlockRef>,
    /// The block as host memory, if the block is host memory.
    pub(super) lease: Option<Lease>,
    /// Whether storage was handed out for writing.
    pub(super) is_written: AtomicBool,
    /// Whether the block was handed out, so that work may have been launched on it.
    pub(super) is_launched_on: AtomicBool,
    /// Whether the arena kept a transfer of the granted bytes, and may still carry it out.
    pub(super) is_broken: AtomicBool,
    pub(super) held_by: held::Holding,
    pub(super) acquired_at: &'static Location<'static>,
    pub(super) open: bool,
    pub(super) moving: Moving,
    /// The label of the submitted kernel that has the grant.
    pub(super) kernel: Option<Arc<str>>,
}

/// The copies in flight of a grant. Their locks are never contended: they make the value `Sync`.
#[derive(Debug, Default)]
pub(super) enum Moving {
    #[default]
    Nothing,
    /// The grant's own plan, so that there is no grant yet.
    Inputs(Box<Mutex<Run>>),
    /// The results of its kernel, behind that.
    Results(Box<Mutex<Run>>),
}

impl Grant {
    /// Makes the value for a plan whose copies are in flight.
    pub(super) fn arriving(
        (buffer, id, arena): (RawBuffer, OwnerId, ArenaId),
        claims: Claims,
        run: Run,
        acquired_at: &'static Location<'static>,
    ) -> Self {
        let handout = buffer.0.read(|locked| locked.to_hand_out(arena));
        // The host sees nothing before it is there.
        let handout = handout.map(|handout| Handout { host: None, ..handout });
        let mut grant = Self::new(buffer, id, arena, claims, handout, acquired_at);
        grant.moving = Moving::Inputs(Box::new(Mutex::new(run)));
        grant
    }

    pub(super) fn is_arriving(&self) -> bool {
        matches!(self.moving, Moving::Inputs(_))
    }

    /// Waits for the copies in flight of a plan.
    pub(super) fn arrive(&mut self, has_started: bool) -> Result<(), AcquireError> {
        let run = match std::mem::take(&mut self.moving) {
            Moving::Inputs(run) => run.into_inner(),
            other => {
                self.moving = other;
                return Ok(());
            }
        };
        match run.wait() {
            Ok(handout) => {
                if let Some(Handout { block, host }) = handout {
                    quietly(self.block.replace(block));
                    self.lease = host.map(Lease::new);
                }
                if has_started {
                    self.buffer.0.start(self.id);
                }
                Ok(())
            }
            Err(error) => {
                self.give_up();
                Err(error)
            }
        }
    }

    /// Gives storage and holder up, before the machine learns of the end.
    pub(super) fn give_up(&mut self) {
        self.open = false;
        // The storage must be unshared before the release is reported to the machine, because closing the
        // buffer returns it to the application (I-24).
        self.lease = None;
        quietly(self.block.take());
        // This comes before any request is woken, because a waker may acquire.
        self.held_by.ended(self.buffer.id(), self.id);
    }

    pub(crate) fn new(
        buffer: RawBuffer,
        id: OwnerId,
        arena: ArenaId,
        claims: Claims,
        handout: Option<Handout>,
        acquired_at: &'static Location<'static>,
    ) -> Self {
        let held_by = match claims.is_empty() {
            // A grant without bytes makes no other request wait.
            true => held::Holding::nobodys(),
            false => held::Holding::new(buffer.id(), id),
        };
        let (block, host) = handout.map_or((None, None), |handout| (Some(handout.block), handout.host));
        let lease = host.map(Lease::new);
        let no = || AtomicBool::new(false);
        let (is_written, is_launched_on, is_broken) = (no(), no(), no());
        Self {
            buffer,
            id,
            arena,
            claims,
            block,
            lease,
            is_written,
            is_launched_on,
            is_broken,
            held_by,
            acquired_at,
            open: true,
            moving: Moving::default(),
            kernel: None,
        }
    }

    pub(super) fn writes(&self) -> bool {
        self.claims.iter().any(|claim| claim.access.writes())
    }

    /// Records that the holder uses its storage on this thread.
    pub(super) fn used(&self) {
        self.held_by.used_here(self.buffer.id(), self.id);
    }

    /// Records that the holder may write its storage from now on.
    pub(super) fn written(&self) {
        self.used();
        self.is_written.store(true, Ordering::Relaxed);
    }

    /// Records that the holder may launch work on its storage from now on.
    pub(super) fn launched_on(&self) {
        self.used();
        self.is_launched_on.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_launched_on(&self) -> bool {
        self.is_launched_on.load(Ordering::Relaxed)
    }

    /// Returns the outcome of a grant that is dropped without a release.
    pub(super) fn roll_back(&self) -> Outcome {
        match self.is_written.load(Ordering::Relaxed) && self.writes() {
            true => Outcome::Failed,
            false => Outcome::NotStarted,
        }
    }

    /// Returns whether bytes were granted for overwriting, so that they cannot be clean.
    pub(super) fn overwrites(&self) -> bool {
        self.claims.iter().any(|claim| claim.access == Access::WriteInvalidate)
    }

    pub(super) fn release(&mut self, outcome: Outcome) -> Result<(), AcquireError> {
        self.end(outcome, PoisonedEnd::Failed)
    }

    /// Ends the grant. `end` is the recorded cause if this poisons its bytes.
    pub(super) fn end(&mut self, outcome: Outcome, end: PoisonedEnd) -> Result<(), AcquireError> {
        if outcome == Outcome::Clean && self.overwrites() {
            return Err(AcquireError::NotClean { buffer: self.buffer.name() });
        }
        self.arrive(false)?;
        self.give_up();
        let device = || {
            let platform = self.buffer.platform();
            platform.device_desc(platform.desc(self.arena).native).name.clone()
        };
        let kernel = self.kernel.take().map(|label| (label, device()));
        let poisoner = Poisoner { end, acquired_at: self.acquired_at, kernel };
        self.buffer.0.release(self.id, outcome, Some((self.arena, &self.claims, poisoner)))
    }

    pub(super) fn downgrade(&mut self) -> Result<(), AcquireError> {
        let downgraded = self.buffer.0.change(|locked, routes| {
            let downgraded = locked.state.downgrade(routes, self.id);
            if let Ok(Some(commit)) = downgraded {
                self.buffer.0.record(|| EventKind::Downgraded { grant: self.id, commit });
            }
            downgraded
        });
        downgraded.map_err(|refusal| self.buffer.0.refused(refusal))?;
        self.claims = self.claims.reading();
        Ok(())
    }

    /// Returns an error if an arena may still touch the bytes.
    pub(super) fn expect_whole(&self) -> Result<(), ViewError> {
        match self.is_broken.load(Ordering::Relaxed) {
            true => Err(ViewError::Wedged { buffer: self.buffer.name() }),
            false => Ok(()),
        }
    }

    /// Returns the block and the bytes of a region, for a transfer that this thread waits for. This does not
    /// count as a launch.
    pub(super) fn moved(
        &self,
        region: &impl Region,
        access: Access,
        given_bytes: Option<u64>,
    ) -> Result<(Option<&BlockRef>, Span), ViewError> {
        let span = self.granted_span(region)?;
        if let Some(given_bytes) = given_bytes.filter(|bytes| *bytes != span.len()) {
            return Err(ViewError::Length { buffer: self.buffer.name(), span, given_bytes });
        }
        if access.writes() && !covers(&self.claims, span, Access::writes) {
            return Err(ViewError::NotWritable { buffer: self.buffer.name(), span });
        }
        self.used();
        // An empty region writes nothing.
        if access.writes() && !span.is_empty() {
            self.written();
        }
        Ok((self.block.as_ref(), span))
    }

    /// Returns the bytes of a region, all of which must be granted.
    pub(super) fn granted_span(&self, region: &impl Region) -> Result<Span, ViewError> {
        let asked = region.bytes();
        let span = Span::checked(&asked, self.buffer.len());
        span.filter(|span| covers(&self.claims, *span, |_| true)).ok_or_else(|| ViewError::OutsideGrant {
            buffer: self.buffer.name(),
            start: asked.start,
            end: asked.end,
        })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.open {
            // A drop cannot report a lost device; the poisoned bytes report it to the next reader.
            let _ = self.end(self.roll_back(), PoisonedEnd::Dropped);
        }
    }
}

/// Returns whether claims whose access satisfies `serves` cover every byte of a span. Claims are sorted and
/// disjoint.
pub(super) fn covers(claims: &[Claim], span: Span, serves: impl Fn(Access) -> bool) -> bool {
    let mut next = span.start();
    let first = claims.partition_point(|claim| claim.span.end() <= next);
    for claim in &claims[first..] {
        if next >= span.end() || claim.span.start() > next || !serves(claim.access) {
            break;
        }
        next = claim.span.end();
    }
    next >= span.end()
}
