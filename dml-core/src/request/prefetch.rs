//! Prefetches: bytes brought to an arena ahead of their use.
//!
//! ```text
//!   prefetch ──▶ plan, copies begun ──▶ Prefetch ──wait · await · wait_timeout──▶ the bytes are there
//!                                          └── cancel · drop ──▶ copies under way end, no other begins
//! ```
//! A prefetch holds no grant, waits for no other user, and never stands in a queue. What it has completed stays,
//! however it ends (I-15).

use crate::base::id::{ArenaId, DeviceId};
use crate::base::rank::{Rank, Ranked};
use crate::base::sync::{Arc, Condvar};
use crate::buffer::RawBuffer;
use crate::buffer::engine::{Run, Stop};
use crate::buffer::error::AcquireError;
use crate::buffer::storage::Handout;
use crate::buffer::wait::Wait;
use crate::request::typed::Buffer;
use crate::state::Begin;
use bytemuck::Pod;
use std::future::Future;
use std::ops::{Bound, Range, RangeBounds};
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Bytes on their way to an arena, begun by [`RawBuffer::prefetch`] or [`Buffer::prefetch`].
///
/// Wait for the end with [`wait`](Self::wait), [`wait_timeout`](Self::wait_timeout) or `.await`. Copies whose arena can
/// tell of their end run meanwhile; the others are made by whoever waits. Dropping the value
/// [cancels](Self::cancel) the prefetch.
///
/// The prefetch uses its bytes and storages until it is waited for, polled to its end, or dropped, even if its copies have
/// ended before: nobody else looks at them. Until then, writers of these bytes and [`RawBuffer::close`] wait, and a thread
/// that holds the value and writes the same bytes waits for itself.
#[derive(Debug)]
#[must_use = "a prefetch that is dropped is cancelled: wait for it, await it, or keep it"]
pub struct Prefetch {
    course: Course,
    stop: Stop,
}

#[derive(Debug)]
enum Course {
    Running(Box<Run>),
    Ended(Result<(), AcquireError>),
}

/// A handle that cancels a prefetch from anywhere, also while another thread waits for it.
#[derive(Clone, Debug)]
pub struct PrefetchCanceller(Stop);

impl PrefetchCanceller {
    /// Tells the prefetch to begin no further step. Whoever waits for it gets [`AcquireError::Cancelled`] when the
    /// copies under way have ended. This call waits for nothing. It has no effect on a prefetch that has ended.
    pub fn cancel(&self) {
        self.0.stop();
    }
}

impl Prefetch {
    /// Asks for the bytes, and begins every copy that waits for no other.
    fn begin(
        buffer: &RawBuffer,
        arena: Result<ArenaId, AcquireError>,
        bytes: &Range<u64>,
        origin: &'static Location<'static>,
    ) -> Self {
        let stop = Stop::default();
        let mut prefetch = match arena.and_then(|arena| plan(buffer, arena, bytes)) {
            Ok(Begin::Plan(plan)) => {
                let run = Run::new(buffer, plan, origin).stopped_by(stop.clone());
                Self { course: Course::Running(Box::new(run)), stop }
            }
            Ok(Begin::Granted(_)) => Self { course: Course::Ended(Ok(())), stop },
            Ok(Begin::Busy { reason, .. }) => {
                let busy = AcquireError::Busy { buffer: buffer.name(), reason };
                Self { course: Course::Ended(Err(busy)), stop }
            }
            Ok(Begin::Refused(refusal)) => {
                Self { course: Course::Ended(Err(buffer.0.refused(refusal))), stop }
            }
            Err(error) => Self { course: Course::Ended(Err(error)), stop },
        };
        let _begun = prefetch.go_on(Run::begin);
        prefetch
    }

    /// Continues a prefetch that has not ended, and keeps its result.
    fn go_on(
        &mut self,
        go_on: impl FnOnce(&mut Run) -> Poll<Result<Option<Handout>, AcquireError>>,
    ) -> Poll<Result<(), AcquireError>> {
        if let Course::Running(run) = &mut self.course {
            let Poll::Ready(ended) = go_on(run) else { return Poll::Pending };
            // The run ends here, and not when the value is dropped.
            self.course = Course::Ended(ended.map(|_| ()));
        }
        match &self.course {
            Course::Ended(result) => Poll::Ready(result.clone()),
            Course::Running(_) => Poll::Pending,
        }
    }

    /// Waits until the bytes are in the arena.
    ///
    /// # Errors
    /// [`AcquireError::Busy`] if a writer held some of the bytes when the prefetch began, if other requests waited, or if
    /// an arena on the way could not be used beside its users. [`AcquireError::Cancelled`] after
    /// [`PrefetchCanceller::cancel`]. All others as of an acquire for reading: see [`AcquireError`].
    pub fn wait(mut self) -> Result<(), AcquireError> {
        loop {
            if let Poll::Ready(ended) = self.go_on(|run| run.advance(Wait::Try)) {
                return ended;
            }
        }
    }

    /// As [`wait`](Self::wait), for a limited time. The prefetch goes on after a timeout: wait for it again, or cancel
    /// it. A copy whose arena cannot tell of its end is waited for even past the deadline. A time of zero asks whether
    /// the prefetch has ended.
    ///
    /// # Errors
    /// [`AcquireError::Timeout`] if the bytes are not there in time; otherwise as [`wait`](Self::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<(), AcquireError> {
        let deadline = Instant::now().checked_add(timeout);
        let bell = Arc::new(Bell { rung: Ranked::new(Rank::Leaf, false), rings: Condvar::new() });
        let waker = Waker::from(bell.clone());
        loop {
            if let Poll::Ready(ended) = self.go_on(|run| run.advance(Wait::Awaken(&waker))) {
                return ended;
            }
            if !bell.wait(deadline)
                && let Course::Running(run) = &self.course
            {
                return Err(AcquireError::Timeout { buffer: run.buffer_name(), waited: timeout });
            }
        }
    }

    /// Gives the prefetch up, as dropping it does. No further step begins, copies under way end and keep their effect,
    /// and the call returns after that: the memory under a copy must outlive it. Bytes that did not arrive stay where
    /// they were. A prefetch that has ended is not changed.
    pub fn cancel(self) {
        drop(self);
    }

    /// Returns a handle that cancels the prefetch while somebody waits for it.
    #[must_use]
    pub fn canceller(&self) -> PrefetchCanceller {
        PrefetchCanceller(self.stop.clone())
    }
}

/// A poll begins the steps that can begin, and blocks only for a copy whose arena cannot tell of its end. A poll after
/// the end answers the same again.
impl Future for Prefetch {
    type Output = Result<(), AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.go_on(|run| run.advance(Wait::Awaken(context.waker())))
    }
}

/// What a thread sleeps on until a copy wakes it.
struct Bell {
    rung: Ranked<bool>,
    rings: Condvar,
}

impl Bell {
    /// Sleeps until the bell is rung. Returns whether that was before the deadline.
    fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut rung = self.rung.lock();
        while !*rung {
            match deadline {
                None => rung = rung.wait(&self.rings),
                Some(deadline) => {
                    let (guard, timed_out) = rung.wait_until(&self.rings, deadline);
                    rung = guard;
                    if timed_out && !*rung {
                        return false;
                    }
                }
            }
        }
        *rung = false;
        true
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock() = true;
        self.rings.notify_all();
    }
}

/// Asks the machine for the plan of a prefetch.
fn plan(buffer: &RawBuffer, arena: ArenaId, bytes: &Range<u64>) -> Result<Begin, AcquireError> {
    let span = buffer.span(bytes)?;
    Ok(buffer.0.change(|locked, routes| {
        let owner = locked.new_grant();
        locked.state.prefetch(routes, owner, arena, span)
    }))
}

/// Returns a range with both ends. An end outside of every buffer stays outside.
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
    /// The copies begin in this call, as far as they wait for no other. Those whose mechanism moves the bytes before it
    /// returns are made in this call. A prefetch waits for no other user: its [`wait`](Prefetch::wait) says what was
    /// in the way. A writer that comes meanwhile waits until the [`Prefetch`] has ended or is dropped.
    #[track_caller]
    pub fn prefetch(&self, device: DeviceId, bytes: impl RangeBounds<u64>) -> Prefetch {
        let home = self.0.platform.home_of(device);
        Prefetch::begin(self, home, &range_of(&bytes, self.len()), Location::caller())
    }

    /// Brings bytes (`..` for all) to an arena ahead of their use, as [`prefetch`](Self::prefetch) does for a device's. This
    /// brings a buffer to a [store](crate::ArenaDesc::store), after which [`free`](Self::free) makes room elsewhere.
    /// An arena that the platform does not have is [`AcquireError::NoSuchArena`].
    #[track_caller]
    pub fn prefetch_in(&self, arena: ArenaId, bytes: impl RangeBounds<u64>) -> Prefetch {
        let known = self.0.platform.knows(arena).map(|()| arena);
        Prefetch::begin(self, known, &range_of(&bytes, self.len()), Location::caller())
    }
}

impl<T: Pod> Buffer<T> {
    /// Brings elements (`..` for all) to a device's arena ahead of their use: see [`RawBuffer::prefetch`].
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
