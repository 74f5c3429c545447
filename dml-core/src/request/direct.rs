//! Operations on one buffer that need no grant: restore, free, will not use, bind, close.

use crate::base::id::ArenaId;
use crate::buffer::RawBuffer;
use crate::buffer::engine::Run;
use crate::buffer::error::AcquireError;
use crate::buffer::locked::External;
use crate::platform::outstanding::Outstanding;
use crate::request::grants::Grants;
use crate::request::held;
use crate::request::region::RawRange;
use crate::state::{Begin, BindRefusal, BusyReason, EventKind, Requestor};
use std::ops::Range;
use std::panic::Location;
use std::time::{Duration, Instant};

impl RawBuffer {
    /// Returns a part of the buffer, for an acquire. The acquire checks the range.
    #[must_use]
    pub fn range(&self, bytes: Range<u64>) -> RawRange {
        RawRange::new(self.clone(), bytes)
    }

    /// Gives poisoned bytes their last committed contents back.
    ///
    /// # Errors
    /// [`AcquireError::Closed`]; [`AcquireError::NotRestorable`] if those contents are lost;
    /// [`AcquireError::Busy`] while a kernel holds some of the bytes; [`AcquireError::OutOfRange`].
    pub fn restore(&self, bytes: Range<u64>) -> Result<(), AcquireError> {
        let span = self.span(&bytes)?;
        let restored = self.0.change(|locked, _| {
            let restored = locked.state.restore(span);
            if restored == Ok(true) {
                self.0.record(|| EventKind::Restored { span });
            }
            restored
        });
        match restored {
            Ok(true) => Ok(()),
            Ok(false) => Err(AcquireError::Busy { buffer: self.0.name(), reason: BusyReason::Conflict }),
            Err(refusal) => Err(self.0.refused(refusal)),
        }
    }

    /// Frees an arena's storage for this buffer.
    ///
    /// # Errors
    /// [`AcquireError::NotFreeable`] while the storage is used, shared, or the only holder of some contents;
    /// [`AcquireError::NoSuchArena`].
    pub fn free(&self, arena: ArenaId) -> Result<(), AcquireError> {
        self.0.platform.knows(arena)?;
        // The block is freed after the change, because the state no longer refers to it.
        let freed = self.0.change(|locked, routes| locked.state.free(routes, arena));
        freed.map_err(|reason| {
            let (buffer, arena) = (self.0.name(), self.0.arena_name(arena));
            AcquireError::NotFreeable { buffer, arena, reason }
        })
    }

    /// Declares that no kernel will use the buffer in `arena` until it is acquired there again. The storage
    /// is freed as soon as it has no users and its contents are valid elsewhere: in this call, or in the
    /// later call that makes this true.
    ///
    /// No contents are lost. Those that are valid nowhere else are copied to main memory, on the calling
    /// thread. Contents that a kernel is using or waiting for are not copied. They keep the storage until a
    /// kernel elsewhere has read or overwritten them. [`free`](Self::free) never copies, but is refused
    /// instead. Main memory itself is freed when its contents are valid elsewhere.
    ///
    /// An arena that shares storage leaves its group; the storage stays for the other members. A second call
    /// changes nothing, and an arena without storage has nothing to free. The storage of a lost arena is
    /// freed in any case.
    ///
    /// # Errors
    /// [`AcquireError::NotFreeable`] for the application's own storage. [`AcquireError::Closed`],
    /// [`AcquireError::Wedged`], [`AcquireError::NoSuchArena`]. [`AcquireError::Unreachable`] or
    /// [`AcquireError::DeviceLost`] if the only copy cannot be brought to main memory; the arena then stays
    /// as it was. Errors of the copy, as of an acquire; the storage then stays until its contents are valid
    /// elsewhere.
    #[track_caller]
    pub fn will_not_use(&self, arena: ArenaId) -> Result<(), AcquireError> {
        self.0.platform.knows(arena)?;
        let home = self.0.platform.host().and_then(|host| self.0.platform.home(host));
        let begin = self.0.change(|locked, routes| {
            let owner = locked.new_grant();
            locked.state.will_not_use(routes, owner, arena, home)
        });
        let external = |reason| {
            let (buffer, arena) = (self.0.name(), self.0.arena_name(arena));
            AcquireError::NotFreeable { buffer, arena, reason }
        };
        match begin.map_err(external)? {
            Begin::Granted(_) | Begin::Busy { .. } => Ok(()),
            Begin::Plan(plan) => Run::new(self.clone().into(), plan, Location::caller()).wait().map(|_| ()),
            Begin::Refused(refusal) => Err(self.0.refused(refusal)),
        }
    }

    /// Makes `arena`, which has no storage, share the storage of `root`. Data then moves between the two by a
    /// change of map state alone.
    ///
    /// # Errors
    /// [`AcquireError::NotBindable`] if no link binds the two, or if their state does not allow it;
    /// [`AcquireError::Alloc`] if the arena refuses the storage.
    pub fn bind(&self, arena: ArenaId, root: ArenaId) -> Result<(), AcquireError> {
        self.0.platform.knows(arena)?;
        self.0.platform.knows(root)?;
        let refused = |reason| AcquireError::NotBindable {
            buffer: self.0.name(),
            arena: self.0.arena_name(arena),
            root: self.0.arena_name(root),
            reason,
        };
        let concurrency = self.0.platform.binding(arena, root).ok_or_else(|| refused(BindRefusal::NoLink))?;
        let plan = self.0.change(|locked, _| {
            let owner = locked.new_grant();
            locked.state.bind(owner, arena, root, concurrency)
        });
        Run::new(self.clone().into(), plan.map_err(refused)?, Location::caller()).wait().map(|_| ())
    }

    /// Refuses new and waiting requests, waits until the last grant and copy have ended, and frees all
    /// storage. Dropping the last clone of a buffer does the same without waiting.
    ///
    /// A thread deadlocks if it closes a buffer on which it holds a grant or an acquire in progress. The call
    /// never returns if one of these was leaked. The call runs each unfinished [`Prefetch`](crate::Prefetch)
    /// to its end. An arena deadlocks if it closes a buffer while freeing storage of that buffer. See
    /// [`close_timeout`](Self::close_timeout).
    pub fn close(&self) {
        self.0.close(None, || {});
    }

    /// As [`close`](Self::close), for a limited time. The buffer refuses new requests even after a timeout.
    ///
    /// # Errors
    /// [`AcquireError::StillHeld`] with the grants that have not ended. Acquires and prefetches in progress
    /// are not among them.
    pub fn close_timeout(&self, timeout: Duration) -> Result<(), AcquireError> {
        if self.0.close(Instant::now().checked_add(timeout), || {}) {
            return Ok(());
        }
        let (buffer, outstanding) = (self.0.name(), self.0.outstanding());
        Err(AcquireError::StillHeld { buffer, waited: timeout, outstanding })
    }

    /// Returns whether the current thread holds a grant or a view of the buffer. Such a thread must not wait
    /// for other threads that need the buffer.
    #[must_use]
    pub fn is_held_here(&self) -> bool {
        held::holds(self.id())
    }

    /// Returns whether the current thread holds a grant or a view of the buffer for writing. Such a thread
    /// must not wait for other threads that read the buffer.
    #[must_use]
    pub fn is_held_for_writing_here(&self) -> bool {
        let held = held::grants(self.id());
        let is_mine = |entry: &Requestor| entry.writes() && held.contains(&entry.grant);
        !held.is_empty() && self.0.read(|locked| locked.state.requestors().iter().any(is_mine))
    }

    /// Returns the grants of the buffer that have not ended: their kernels and bytes, and the source
    /// locations of their acquires if events are [recorded](crate::Platform::record). A grant that remains
    /// unexpectedly was leaked.
    #[must_use]
    pub fn leaked_grants(&self) -> Vec<Outstanding> {
        self.0.outstanding()
    }

    /// Closes the buffer while `reading` still holds it, so that no other request is granted in between.
    pub(crate) fn close_after(&self, reading: Grants) {
        self.0.close(None, || drop(reading));
    }

    /// Closes the buffer and returns the application's container in `arena`, with the latest contents.
    /// `reading` keeps them there until all other users have left. If several callers do this, one of them
    /// gets the container.
    pub(crate) fn close_taking(&self, reading: Grants, arena: ArenaId) -> Result<External, AcquireError> {
        self.0.close(None, || drop(reading));
        let (container, is_leaked) = self.0.change(|locked, _| {
            let place = locked.external().iter().position(|(place, _)| *place == arena);
            (place.map(|place| locked.rare().external.swap_remove(place).1), locked.is_leaked)
        });
        let buffer = self.0.name();
        container.ok_or(if is_leaked {
            AcquireError::Wedged { buffer }
        } else {
            AcquireError::Closed { buffer }
        })
    }
}
