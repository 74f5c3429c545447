//! The grant of one buffer, with the copies in flight that belong to it.

use crate::base::access::{Access, Claim, Claims};
use crate::base::guard::quietly;
use crate::base::id::{ArenaId, OwnerId};
use crate::base::names::BufferName;
use crate::base::range::Span;
use crate::base::sync::{Arc, Mutex};
use crate::buffer::RawBuffer;
use crate::buffer::engine::Run;
use crate::buffer::error::{AcquireError, PoisonedEnd, Poisoner, ViewError};
use crate::buffer::handle::Pin;
use crate::buffer::storage::Handout;
use crate::memory::block::BlockRef;
use crate::memory::host::{CastError, Lease};
use crate::request::held;
use crate::request::region::Region;
use crate::state::{EventKind, Outcome};
use bytemuck::Pod;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// The grant of one buffer.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(super) buffer: Pin,
    pub(super) id: OwnerId,
    pub(super) claims: Claims,
    /// The storage; `None` if no bytes were requested.
    pub(super) lease: Option<Lease>,
    pub(super) marks: Marks,
    pub(super) held_by: held::Holding,
    pub(super) acquired_at: &'static Location<'static>,
    pub(super) moving: Moving,
    /// The label of the submitted kernel that has the grant.
    pub(super) kernel: Option<Arc<str>>,
}

/// The arena of a grant, and what is known of the grant, in one word: a value of several small fields is slow
/// to move.
#[derive(Debug)]
pub(super) struct Marks(AtomicU64);

/// What is known of a grant.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(super) enum Mark {
    /// The grant has not ended.
    Open = 1 << 8,
    /// Storage was handed out for writing.
    Written = 1 << 9,
    /// The block was handed out, so that work may have been launched on it.
    LaunchedOn = 1 << 10,
    /// The arena kept a transfer of the granted bytes, and may still carry it out.
    Broken = 1 << 11,
}

impl Marks {
    #[inline(always)]
    const fn closed() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline(always)]
    fn open(arena: ArenaId) -> Self {
        Self(AtomicU64::new(u64::from(arena.0) | Mark::Open as u64))
    }

    pub(super) fn arena(&self) -> ArenaId {
        ArenaId(self.0.load(Ordering::Relaxed) as u8)
    }

    #[inline(always)]
    pub(super) fn has(&self, mark: Mark) -> bool {
        self.0.load(Ordering::Relaxed) & mark as u64 != 0
    }

    pub(super) fn set(&self, mark: Mark) {
        if !self.has(mark) {
            self.0.fetch_or(mark as u64, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(super) fn clear(&mut self, mark: Mark) {
        *self.0.get_mut() &= !(mark as u64);
    }
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
        buffer: RawBuffer,
        (id, arena): (OwnerId, ArenaId),
        claims: Claims,
        run: Run,
        acquired_at: &'static Location<'static>,
    ) -> Self {
        let handout = buffer.0.change(|locked, _| locked.hand_out(arena));
        let mut grant = Self::new(buffer.into(), (id, arena), claims, handout, acquired_at);
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
                if let Some(handout) = handout {
                    quietly(self.lease.replace(Lease::new(handout)));
                }
                if has_started {
                    self.buffer.start(self.id);
                }
                Ok(())
            }
            Err(error) => {
                quietly(self.give_up());
                Err(error)
            }
        }
    }

    /// Gives the holder up, before the machine learns of the end. Returns what the grant was handed.
    #[inline(always)]
    fn give_up(&mut self) -> Option<Handout> {
        self.marks.clear(Mark::Open);
        // This comes before any request is woken, because a waker may acquire.
        self.held_by.ended(self.buffer.id(), self.id);
        self.lease.take().map(Lease::into_stored)
    }

    pub(super) fn new(
        buffer: Pin,
        of: (OwnerId, ArenaId),
        claims: Claims,
        handout: Option<Handout>,
        acquired_at: &'static Location<'static>,
    ) -> Self {
        let mut grant = Self::closed();
        grant.open(buffer, of, claims, handout, acquired_at);
        grant
    }

    /// Makes the value of a grant to be [opened](Self::open) in place.
    #[inline(always)]
    pub(super) fn closed() -> Self {
        Self {
            buffer: Pin::none(),
            id: OwnerId(0),
            claims: Claims::default(),
            lease: None,
            marks: Marks::closed(),
            held_by: held::Holding::nobodys(),
            acquired_at: Location::caller(),
            moving: Moving::Nothing,
            kernel: None,
        }
    }

    #[inline(always)]
    pub(super) fn open(
        &mut self,
        buffer: Pin,
        (id, arena): (OwnerId, ArenaId),
        claims: Claims,
        handout: Option<Handout>,
        acquired_at: &'static Location<'static>,
    ) {
        // A grant without bytes makes no other request wait.
        if !claims.is_empty() {
            self.held_by = held::Holding::new(buffer.id, id);
        }
        self.claims = claims;
        self.buffer = buffer;
        self.lease = handout.map(Lease::new);
        self.id = id;
        self.marks = Marks::open(arena);
        self.acquired_at = acquired_at;
    }

    pub(super) fn arena(&self) -> ArenaId {
        self.marks.arena()
    }

    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.marks.has(Mark::Open)
    }

    /// Returns the block; `None` if no bytes were requested.
    pub(super) fn block(&self) -> Option<&BlockRef> {
        self.lease.as_ref().map(Lease::block)
    }

    /// Returns the storage if it is host memory. The host sees nothing before it is there.
    pub(super) fn on_host(&self) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.is_host() && !self.is_arriving())
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
        self.marks.set(Mark::Written);
    }

    /// Records that the holder may launch work on its storage from now on.
    pub(super) fn launched_on(&self) {
        self.used();
        self.marks.set(Mark::LaunchedOn);
    }

    pub(super) fn is_launched_on(&self) -> bool {
        self.marks.has(Mark::LaunchedOn)
    }

    /// Returns the outcome of a grant that is dropped without a release.
    pub(super) fn roll_back(&self) -> Outcome {
        match self.marks.has(Mark::Written) && self.writes() {
            true => Outcome::Failed,
            false => Outcome::NotStarted,
        }
    }

    /// Returns whether bytes were granted for overwriting, so that they cannot be clean.
    pub(super) fn overwrites(&self) -> bool {
        self.claims.iter().any(|claim| claim.access == Access::WriteInvalidate)
    }

    /// Returns whether no copies are in flight with the grant.
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self.moving, Moving::Nothing)
    }

    pub(super) fn release(&mut self, outcome: Outcome) -> Result<(), AcquireError> {
        self.end(outcome, PoisonedEnd::Failed)
    }

    /// Ends the grant, with which no copies are in flight, in the common case. Returns whether it has ended.
    #[inline(always)]
    pub(super) fn release_at_once(&mut self, outcome: Outcome) -> bool {
        let (buffer, handout) = (self.buffer.id, self.lease.take().map(Lease::into_stored));
        match self.buffer.release_at_once(
            (self.id, self.marks.arena(), &self.claims),
            outcome,
            (handout, self.buffer.is_counted()),
        ) {
            Ok(kept) => {
                self.buffer.ended();
                self.held_by.ended(buffer, self.id);
                self.marks = Marks::closed();
                if self.kernel.is_some() {
                    self.kernel = None;
                }
                drop(kept);
                true
            }
            Err(handout) => {
                self.lease = handout.map(Lease::new);
                false
            }
        }
    }

    /// Ends the grant. `end` is the recorded cause if this poisons its bytes.
    pub(super) fn end(&mut self, outcome: Outcome, end: PoisonedEnd) -> Result<(), AcquireError> {
        if outcome == Outcome::Clean && self.overwrites() {
            return Err(AcquireError::NotClean { buffer: self.buffer.name() });
        }
        self.arrive(false)?;
        let handout = self.give_up().map(|handout| (self.arena(), handout));
        let device = || {
            let platform = self.buffer.platform();
            platform.device_desc(platform.desc(self.arena()).native).name.clone()
        };
        let kernel = self.kernel.clone().map(|label| (label, device()));
        let poisoner = Poisoner { end, acquired_at: self.acquired_at, kernel };
        let (writer, unpins) = (Some((self.arena(), &self.claims, poisoner)), self.buffer.is_counted());
        let strong = self.buffer.strong();
        let (kept, released) = self.buffer.release(self.id, outcome, writer, handout, unpins);
        self.buffer.ended();
        drop((kept, strong));
        released
    }

    pub(super) fn downgrade(&mut self) -> Result<(), AcquireError> {
        let downgraded = self.buffer.change(|locked, routes| {
            let downgraded = locked.state.downgrade(routes, self.id);
            if let Ok(Some(commit)) = downgraded {
                self.buffer.record(|| EventKind::Downgraded { grant: self.id, commit });
            }
            downgraded
        });
        downgraded.map_err(|refusal| self.buffer.refused(refusal))?;
        self.claims = self.claims.reading();
        Ok(())
    }

    /// Returns granted bytes as elements, on the host.
    pub(super) fn slice<T: Pod>(&self, span: Span) -> Result<&[T], ViewError> {
        self.expect_whole()?;
        self.used();
        if span.is_empty() {
            return Ok(&[]);
        }
        let slice = self.on_host().and_then(|lease| lease.slice(span));
        let slice = slice.ok_or_else(|| ViewError::NotHost { buffer: self.buffer.name() })?;
        slice.map_err(|error| cast_error(self.buffer.name(), span, error))
    }

    /// As [`slice`](Self::slice), for changing.
    pub(super) fn slice_mut<T: Pod>(&mut self, span: Span) -> Result<&mut [T], ViewError> {
        self.expect_whole()?;
        self.used();
        if span.is_empty() {
            return Ok(&mut []);
        }
        if !covers(&self.claims, span, Access::writes) {
            return Err(ViewError::NotWritable { buffer: self.buffer.name(), span });
        }
        if self.on_host().is_none() {
            return Err(ViewError::NotHost { buffer: self.buffer.name() });
        }
        self.written();
        let buffer = &self.buffer;
        let slice = self.lease.as_mut().and_then(|lease| lease.slice_mut(span));
        let slice = slice.ok_or_else(|| ViewError::NotHost { buffer: buffer.name() })?;
        slice.map_err(|error| cast_error(buffer.name(), span, error))
    }

    /// Returns an error if an arena may still touch the bytes.
    pub(super) fn expect_whole(&self) -> Result<(), ViewError> {
        match self.marks.has(Mark::Broken) {
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
        Ok((self.block(), span))
    }

    /// Returns the bytes of a region, all of which must be granted.
    pub(super) fn granted_span(&self, region: &impl Region) -> Result<Span, ViewError> {
        let asked = region.bytes();
        let span = Span::checked(&asked, self.buffer.len);
        span.filter(|span| covers(&self.claims, *span, |_| true)).ok_or_else(|| ViewError::OutsideGrant {
            buffer: self.buffer.name(),
            start: asked.start,
            end: asked.end,
        })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.is_open() {
            // A drop cannot report a lost device; the poisoned bytes report it to the next reader.
            let _ = self.end(self.roll_back(), PoisonedEnd::Dropped);
        }
    }
}

/// Returns the error of a view of a buffer's bytes.
pub(crate) fn cast_error(buffer: BufferName, span: Span, error: CastError) -> ViewError {
    match error {
        CastError::Size { element_bytes, .. } => {
            ViewError::Size { buffer, span, element_bytes: element_bytes as u64 }
        }
        CastError::Alignment { element_align } => {
            ViewError::Alignment { buffer, span, element_align: element_align as u64 }
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
