//! Prefetches: bytes brought to an arena ahead of their use.
//!
//! ```text
//!   prefetch ──▶ plan, copies begun ──▶ Prefetch ──wait · await · wait_timeout──▶ the bytes are there
//!                                          └── cancel · drop ──▶ copies in flight end, no other begins
//! ```
//! A prefetch holds no grant, waits for no other user, and is never queued. Its completed copies stay,
//! however it ends (I-15). Its run is shared with the requests that wait behind it ([`SharedRun`]). Only a
//! prefetch of what submitted kernels are writing waits for them, as a request for reading ([`Behind`]).

use crate::base::id::{ArenaId, DeviceId};
use crate::base::names::BufferName;
use crate::base::sync::Arc;
use crate::buffer::RawBuffer;
use crate::buffer::engine::{Run, Stop};
use crate::buffer::error::AcquireError;
use crate::buffer::shared_run::{Listener, Pace, SharedRun};
use crate::request::behind::Behind;
use crate::request::typed::Buffer;
use crate::state::Begin;
use bytemuck::Pod;
use std::future::Future;
use std::ops::{Bound, Range, RangeBounds};
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A prefetch in progress, begun by [`RawBuffer::prefetch`] or [`Buffer::prefetch`].
///
/// Wait for the end with [`wait`](Self::wait), [`wait_timeout`](Self::wait_timeout) or `.await`. A copy runs
/// meanwhile if its arena can notify its end; otherwise a waiting thread makes it. Dropping the value
/// [cancels](Self::cancel) the prefetch.
///
/// A program may keep the value without waiting for it. A thread that waits behind the prefetch, for the same
/// bytes or in [`RawBuffer::close`], notices the ends of its copies and makes the remaining ones. This may be
/// the thread that keeps the value. An arena deadlocks if it drops the value within a call for the same
/// prefetch.
#[derive(Debug)]
#[must_use = "a prefetch that is dropped is cancelled: wait for it, await it, or keep it"]
pub struct Prefetch {
    course: Course,
    stop: Stop,
}

#[derive(Debug)]
enum Course {
    Running {
        run: Arc<SharedRun>,
        buffer: BufferName,
    },
    /// The prefetch waits for kernels in flight, and goes on by itself.
    Behind(std::sync::Arc<Behind>, BufferName),
    /// The prefetch ended in the call that began it.
    Ended(Result<(), AcquireError>),
}

/// A handle that cancels a prefetch from anywhere, also while another thread waits for it.
#[derive(Clone, Debug)]
pub struct PrefetchCanceller {
    stop: Stop,
    behind: Option<std::sync::Arc<Behind>>,
}

impl PrefetchCanceller {
    /// Stops the prefetch: no further step begins. A thread that waits for it gets
    /// [`AcquireError::Cancelled`] when the copies in flight have ended. This call does not wait. It has no
    /// effect on a prefetch that has ended.
    pub fn cancel(&self) {
        self.stop.stop();
        if let Some(behind) = &self.behind {
            behind.cancel();
        }
    }
}

impl Prefetch {
    /// Requests the bytes, and begins every copy that does not depend on another.
    fn begin(
        buffer: &RawBuffer,
        arena: Result<ArenaId, AcquireError>,
        bytes: &Range<u64>,
        origin: &'static Location<'static>,
    ) -> Self {
        let stop = Stop::default();
        let ended = match arena.and_then(|arena| plan(buffer, arena, bytes, &stop, origin)) {
            Ok(Planned::Run(run)) => match run.carry_on(Pace::Notice, Listener::Nobody) {
                Poll::Pending => {
                    return Self { course: Course::Running { run, buffer: buffer.name() }, stop };
                }
                Poll::Ready(ended) => ended,
            },
            Ok(Planned::Behind(arena)) => {
                let region = buffer.range(bytes.clone());
                let acquire = buffer.platform().acquire_in(arena).read(&region).located_at(origin);
                let behind = Behind::begin(buffer.name(), acquire);
                return Self { course: Course::Behind(behind, buffer.name()), stop };
            }
            Ok(Planned::Answered(Begin::Busy { reason, .. })) => {
                Err(AcquireError::Busy { buffer: buffer.name(), reason })
            }
            Ok(Planned::Answered(Begin::Refused(refusal))) => Err(buffer.0.refused(refusal)),
            Ok(Planned::Answered(Begin::Granted(_) | Begin::Plan(_))) => Ok(()),
            Err(error) => Err(error),
        };
        Self { course: Course::Ended(ended), stop }
    }

    /// Waits until the bytes are in the arena.
    ///
    /// # Errors
    /// [`AcquireError::Busy`] if a writer held some of the bytes when the prefetch began, if other requests
    /// waited, or if the users of an arena on the path excluded the copy. [`AcquireError::Cancelled`] after
    /// [`PrefetchCanceller::cancel`]. All others as of an acquire for reading: see [`AcquireError`].
    pub fn wait(self) -> Result<(), AcquireError> {
        match &self.course {
            Course::Running { run, .. } => run.complete(),
            Course::Behind(behind, buffer) => {
                behind.wait(None).unwrap_or_else(|| Err(AcquireError::Cancelled { buffer: buffer.clone() }))
            }
            Course::Ended(result) => result.clone(),
        }
    }

    /// As [`wait`](Self::wait), for a limited time. The prefetch goes on after a timeout: wait for it again,
    /// or cancel it. The call waits past the deadline for a copy whose arena cannot notify its end. A timeout
    /// of zero checks whether the prefetch has ended.
    ///
    /// # Errors
    /// [`AcquireError::Timeout`] if the bytes are not there in time; otherwise as [`wait`](Self::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<(), AcquireError> {
        let deadline = Instant::now().checked_add(timeout);
        let (ended, buffer) = match &self.course {
            Course::Running { run, buffer } => (run.finish(deadline), buffer),
            Course::Behind(behind, buffer) => (behind.wait(deadline), buffer),
            Course::Ended(result) => return result.clone(),
        };
        ended.unwrap_or_else(|| Err(AcquireError::Timeout { buffer: buffer.clone(), waited: timeout }))
    }

    /// Gives the prefetch up, as dropping it does. No further step begins. The call returns after the copies
    /// in flight have ended, because the memory under a copy must outlive it. Completed copies stay valid. It
    /// has no effect on a prefetch that has ended.
    pub fn cancel(self) {
        drop(self);
    }

    /// Returns a handle that cancels the prefetch while another thread waits for it.
    #[must_use]
    pub fn canceller(&self) -> PrefetchCanceller {
        let behind = match &self.course {
            Course::Behind(behind, _) => Some(behind.clone()),
            Course::Running { .. } | Course::Ended(_) => None,
        };
        PrefetchCanceller { stop: self.stop.clone(), behind }
    }
}

/// A poll begins the steps that can begin, and blocks only for a copy whose arena cannot notify its end. A
/// poll after the end returns the same result again.
impl Future for Prefetch {
    type Output = Result<(), AcquireError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.course {
            Course::Running { run, .. } => run.carry_on(Pace::Await, Listener::Asker(context.waker())),
            Course::Behind(behind, _) => behind.poll(context.waker()),
            Course::Ended(result) => Poll::Ready(result.clone()),
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        match &self.course {
            Course::Running { run, .. } => run.give_up(),
            Course::Behind(behind, _) => behind.give_up(),
            Course::Ended(_) => {}
        }
    }
}

/// The machine's answer to a prefetch.
enum Planned {
    Run(Arc<SharedRun>),
    /// Kernels in flight write some of the bytes.
    Behind(ArenaId),
    Answered(Begin),
}

/// Requests the plan of a prefetch from the machine. Requests that begin to wait afterwards find its run.
fn plan(
    buffer: &RawBuffer,
    arena: ArenaId,
    bytes: &Range<u64>,
    stop: &Stop,
    origin: &'static Location<'static>,
) -> Result<Planned, AcquireError> {
    let span = buffer.span(bytes)?;
    Ok(buffer.0.change(|locked, routes| {
        let owner = locked.new_grant();
        match locked.state.prefetch(routes, owner, arena, span) {
            Begin::Plan(plan) => {
                let run = SharedRun::new(Run::new(buffer.clone().into(), plan, origin), stop.clone());
                locked.add_prefetch(&run);
                Planned::Run(run)
            }
            Begin::Busy { .. } if locked.state.streams_write(span) => Planned::Behind(arena),
            answer => Planned::Answered(answer),
        }
    }))
}

/// Returns a range with both ends. An end outside of every buffer stays outside after saturation.
fn range_of(range: &impl RangeBounds<u64>, len: u64) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    start..end
}

impl RawBuffer {
    /// Brings bytes (`..` for all) to a device's arena ahead of their use. It grants nothing.
    ///
    /// Copies that do not depend on another begin in this call. If their mechanism moves the bytes before it
    /// returns, they also end in it. A prefetch does not wait for other users; its [`wait`](Prefetch::wait)
    /// reports the obstacle. A later writer waits until the [`Prefetch`] has ended or is dropped.
    ///
    /// [Submitted](crate::Platform::submit) kernels that write the bytes are no obstacle. The prefetch waits
    /// in the queue behind them. It brings what they wrote once they have ended, even if it is not polled.
    #[track_caller]
    pub fn prefetch(&self, device: DeviceId, bytes: impl RangeBounds<u64>) -> Prefetch {
        let home = self.0.platform.home_of(device);
        Prefetch::begin(self, home, &range_of(&bytes, self.len()), Location::caller())
    }

    /// Brings bytes (`..` for all) to an arena ahead of their use, as [`prefetch`](Self::prefetch) does for a
    /// device's. This brings a buffer to a [store](crate::ArenaDesc::store), after which [`free`](Self::free)
    /// makes room elsewhere. The result is [`AcquireError::NoSuchArena`] if the platform does not have the
    /// arena.
    #[track_caller]
    pub fn prefetch_in(&self, arena: ArenaId, bytes: impl RangeBounds<u64>) -> Prefetch {
        let known = self.0.platform.knows(arena).map(|()| arena);
        Prefetch::begin(self, known, &range_of(&bytes, self.len()), Location::caller())
    }
}

impl<T: Pod> Buffer<T> {
    /// Brings elements (`..` for all) to a device's arena ahead of their use: see [`RawBuffer::prefetch`]. It
    /// also brings the result of a [submitted](crate::Platform::submit) kernel, once that has ended.
    ///
    /// ```
    /// # use dml_core::{AcquireError, Buffer, DeviceId};
    /// # fn ahead(buffer: &Buffer<f32>, gpu: DeviceId) -> Result<(), AcquireError> {
    /// let coming = buffer.prefetch(gpu, ..1000);
    /// // Something else goes on here, while the copies run.
    /// coming.wait()
    /// # }
    /// ```
    #[track_caller]
    pub fn prefetch(&self, device: DeviceId, elements: impl RangeBounds<u64>) -> Prefetch {
        let bytes = Self::bytes(&range_of(&elements, self.len()));
        let home = self.raw().0.platform.home_of(device);
        Prefetch::begin(self.raw(), home, &bytes, Location::caller())
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_range_names_its_bytes() {
        assert_eq!(range_of(&(3..7), 100), 3..7);
        assert_eq!(range_of(&(3..=7), 100), 3..8);
        assert_eq!(range_of(&(..7), 100), 0..7);
        assert_eq!(range_of(&(..=7), 100), 0..8);
        assert_eq!(range_of(&(3..), 100), 3..100);
        assert_eq!(range_of(&.., 100), 0..100);
        assert_eq!(range_of(&(Bound::Excluded(3), Bound::Included(7)), 100), 4..8);
        // Nothing overflows, so a range that is too long is refused as such.
        assert_eq!(
            range_of(&(Bound::Excluded(u64::MAX), Bound::Included(u64::MAX)), 100),
            u64::MAX..u64::MAX
        );
    }
}
