//! A prefetch behind kernels in flight: a request for reading that waits in the buffer's queue.
//!
//! ```text
//!   kernel ends ──wake──▶ poll: its copies begin ──copy ends──▶ wake ──▶ poll: granted, released, ended
//! ```
//! Each wake polls the request on the thread that wakes it, so no thread waits for the kernels.

use crate::base::guard::{guard, quietly};
use crate::base::names::BufferName;
use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::buffer::error::AcquireError;
use crate::platform::stream::is_on_stream;
use crate::request::acquire::{Acquire, AcquireFuture};
use crate::request::grants::Grants;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// The request, shared by the prefetch, its cancellers and those that wake it.
pub(super) struct Behind {
    buffer: BufferName,
    state: Mutex<State>,
    has_ended: Condvar,
}

#[derive(Default)]
struct State {
    /// The request; `None` while a thread uses it, and after its end.
    asked: Option<AcquireFuture>,
    /// Whether a thread polls or drops the request.
    is_used: bool,
    is_woken: bool,
    is_cancelled: bool,
    ended: Option<Result<(), AcquireError>>,
    wakers: Vec<Waker>,
}

impl Behind {
    /// Begins the request.
    #[track_caller]
    pub(super) fn begin(buffer: BufferName, acquire: Acquire<'_>) -> Arc<Self> {
        let state = State { asked: Some(acquire.into_future()), ..State::default() };
        let behind = Arc::new(Self { buffer, state: Mutex::new(state), has_ended: Condvar::new() });
        behind.advance();
        behind
    }

    /// Polls the request, unless another thread does, which then polls it once more.
    fn advance(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.is_woken = true;
        while state.is_woken
            && !state.is_used
            && let Some(mut asked) = state.asked.take()
        {
            (state.is_woken, state.is_used) = (false, true);
            drop(state);
            let waker = Waker::from(self.clone());
            let polled = guard(|| Pin::new(&mut asked).poll(&mut Context::from_waker(&waker)));
            let ended = match polled {
                Ok(Poll::Pending) => None,
                Ok(Poll::Ready(granted)) => Some(granted.and_then(Grants::release)),
                Err(_) => Some(Err(AcquireError::Cancelled { buffer: self.buffer.clone() })),
            };
            state = self.state.lock();
            match ended {
                Some(ended) => state = self.end(state, ended),
                None if state.is_cancelled => state = self.drop_request(state, asked),
                None => (state.asked, state.is_used) = (Some(asked), false),
            }
        }
    }

    fn drop_request<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        asked: AcquireFuture,
    ) -> MutexGuard<'a, State> {
        state.is_used = true;
        drop(state);
        // Waits for its copies in flight.
        quietly(asked);
        self.end(self.state.lock(), Err(AcquireError::Cancelled { buffer: self.buffer.clone() }))
    }

    fn end<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        ended: Result<(), AcquireError>,
    ) -> MutexGuard<'a, State> {
        // A waker may give the prefetch up.
        state.is_used = false;
        state.ended.get_or_insert(ended);
        let wakers = std::mem::take(&mut state.wakers);
        self.has_ended.notify_all();
        drop(state);
        for waker in wakers {
            let _ = guard(|| waker.wake_by_ref());
            quietly(waker);
        }
        self.state.lock()
    }

    /// Waits for the end, unless a stream called the code that would wait. Returns `None` after the deadline.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Option<Result<(), AcquireError>> {
        let mut state = self.state.lock();
        while state.ended.is_none() {
            if is_on_stream() {
                return Some(Err(AcquireError::OnStream { buffer: self.buffer.clone() }));
            }
            match deadline {
                None => state = self.has_ended.wait(state),
                Some(deadline) => {
                    let (woken, is_late) = self.has_ended.wait_until(state, deadline);
                    state = woken;
                    if is_late {
                        break;
                    }
                }
            }
        }
        state.ended.clone()
    }

    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        // The waker is foreign code.
        let waker = waker.clone();
        let mut state = self.state.lock();
        if let Some(ended) = state.ended.clone() {
            drop(state);
            quietly(waker);
            return Poll::Ready(ended);
        }
        state.wakers.push(waker);
        Poll::Pending
    }

    /// Gives the request up. A request whose copies are in flight ends with them.
    pub(super) fn cancel(&self) {
        let mut state = self.state.lock();
        state.is_cancelled = true;
        if let Some(asked) = state.asked.take_if(|asked| asked.is_queued()) {
            drop(self.drop_request(state, asked));
        }
    }

    /// Gives the request up, and waits for its copies in flight.
    pub(super) fn give_up(&self) {
        let mut state = self.state.lock();
        state.is_cancelled = true;
        if let Some(asked) = state.asked.take() {
            state = self.drop_request(state, asked);
        }
        while state.is_used {
            state = self.has_ended.wait(state);
        }
    }
}

impl Wake for Behind {
    fn wake(self: Arc<Self>) {
        self.advance();
    }
}

impl fmt::Debug for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Behind({})", self.buffer)
    }
}
