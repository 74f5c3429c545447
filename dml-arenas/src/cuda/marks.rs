//! The kernels submitted to a session, and the events that mark some of them.
//!
//! ```text
//!   kernel 1, 2, … 64 ──▶ mark ──▶ 65, … ──▶ mark, for a caller that asks for 70 ──▶ 71, …
//! ```
//! 1. The stream runs in order, so a kernel has ended when a mark behind it has. A fence of a submitted
//!    kernel may therefore end later than the kernel, and never earlier.
//! 2. Errors of CUDA stay, so the result of a mark is that of all kernels before it.
//! 3. Blocks and programs are kept for all kernels up to a mark together, until its event completes. Kernels
//!    of a chain use the same ones, and two threads that change a reference count for each kernel are slow.
//! 4. Marks hold no session: they are in one, and would keep it alive. What they keep may, until no kernel is
//!    in flight.

use super::kernel::Program;
use super::session::{Raw, Session};
use cudarc::driver::sys::CUevent;
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{BlockRef, Completion, DeviceLoss, Fence, TransferError};
use std::any::Any;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::task::{Poll, Waker};

/// Number of kernels from one mark to the next, if no waiter asks.
const EVERY: u64 = 64;

/// Number of things kept last that are not kept again.
const LAST: usize = 8;

/// An event behind all kernels up to this number.
type Mark = (u64, Arc<Raw<CUevent>>);

/// What kernels in flight use: the blocks of their arguments, and their programs.
#[derive(Debug, Default)]
pub(super) struct Kept(Vec<BlockRef>, Vec<Arc<Program>>);

impl Kept {
    fn keep<'a>(&mut self, blocks: impl Iterator<Item = &'a BlockRef>, program: &Arc<Program>) {
        for block in blocks {
            if !self.0.iter().rev().take(LAST).any(|kept| Arc::ptr_eq(kept, block)) {
                self.0.push(block.clone());
            }
        }
        if !self.1.iter().rev().take(LAST).any(|kept| Arc::ptr_eq(kept, program)) {
            self.1.push(program.clone());
        }
    }
}

/// The submitted kernels of a session.
#[derive(Debug, Default)]
pub(super) struct Marks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    launched: u64,
    last_mark: u64,
    ended: u64,
    /// The kernels that were counted and then could not be launched.
    failed: Vec<Failed>,
    /// The numbers of marked kernels that are not known to have ended, with their events and what the kernels
    /// up to there use, ascending.
    marked: VecDeque<(Mark, Kept)>,
    /// What the kernels behind the last mark use.
    kept: Kept,
}

/// Kernels that were counted and then could not be launched.
#[derive(Debug)]
struct Failed {
    numbers: RangeInclusive<u64>,
    /// The number of kernels whose fences have not reported it. They may do so in any order.
    left: u64,
    error: TransferError,
}

/// Whether a kernel has ended, or the event to ask.
enum Asked {
    Ended,
    Mark(Mark),
    Unmarked,
}

impl Marks {
    /// Counts a launched kernel, and keeps what it uses. Returns its number, and whether it is to be marked.
    ///
    /// The caller keeps others from enqueueing on the stream, as for all calls that mark.
    pub(super) fn launched<'a>(
        &self,
        (blocks, program): (impl Iterator<Item = &'a BlockRef>, &Arc<Program>),
    ) -> (u64, bool) {
        let mut state = self.0.lock();
        state.launched += 1;
        state.kept.keep(blocks, program);
        (state.launched, state.launched >= state.last_mark + EVERY)
    }

    /// Has the kernels from a number to the last one fail: they could not be launched.
    pub(super) fn fail_from(&self, first: u64, error: &TransferError) {
        let mut state = self.0.lock();
        let numbers = first..=state.launched;
        let left = state.launched + 1 - first;
        state.failed.push(Failed { numbers, left, error: error.clone() });
    }

    /// Returns whether a kernel was launched. To be called once for each.
    fn was_launched(&self, number: u64) -> Result<(), TransferError> {
        let mut state = self.0.lock();
        let Some(failed) = state.failed.iter_mut().find(|failed| failed.numbers.contains(&number)) else {
            return Ok(());
        };
        failed.left -= 1;
        let error = failed.error.clone();
        state.failed.retain(|failed| failed.left > 0);
        Err(error)
    }

    /// Adds an event recorded behind all kernels that were launched.
    pub(super) fn mark(&self, event: Raw<CUevent>) {
        let mut state = self.0.lock();
        let (last, kept) = (state.launched, std::mem::take(&mut state.kept));
        state.last_mark = last;
        state.marked.push_back(((last, Arc::new(event)), kept));
    }

    fn ask(&self, number: u64) -> Asked {
        let state = self.0.lock();
        if state.ended >= number {
            return Asked::Ended;
        }
        let behind = state.marked.iter().find(|((last, _), _)| *last >= number);
        behind.map_or(Asked::Unmarked, |((last, event), _)| Asked::Mark((*last, event.clone())))
    }

    /// Records that a marked kernel has ended. Returns the events that are not needed any more, and drops
    /// what the kernels used.
    fn ended(&self, number: u64) -> Vec<Arc<Raw<CUevent>>> {
        let mut state = self.0.lock();
        state.ended = state.ended.max(number);
        let ended = state.ended;
        let needless = state.marked.iter().take_while(|((last, _), _)| *last <= ended).count();
        let needless: Vec<_> = state.marked.drain(..needless).collect();
        // Lent memory calls its owner.
        drop(state);
        needless.into_iter().map(|((_, event), _)| event).collect()
    }

    /// Returns what kernels use, none of which runs any more.
    pub(super) fn take_kept(&self) -> Vec<Kept> {
        let mut state = self.0.lock();
        let behind = std::mem::take(&mut state.kept);
        let marked = state.marked.iter_mut().map(|(_, kept)| std::mem::take(kept));
        marked.chain([behind]).collect()
    }

    /// Removes all events.
    pub(super) fn take(&mut self) -> Vec<Raw<CUevent>> {
        let marked = std::mem::take(&mut self.0.get_mut().marked);
        marked.into_iter().filter_map(|((_, event), _)| Arc::into_inner(event)).collect()
    }
}

/// A submitted kernel. Dropping it does not wait; [`Fence`] does.
pub(super) struct Submitted {
    session: Arc<Session>,
    call: &'static str,
    number: u64,
    /// An event of its own, for a future.
    awaited: Option<Fence>,
}

impl Submitted {
    pub(super) fn new(session: &Arc<Session>, call: &'static str, number: u64) -> Self {
        Self { session: session.clone(), call, number, awaited: None }
    }

    /// Returns the mark behind the kernel, made now if there is none; `None` if the kernel has ended.
    fn mark(&self) -> Result<Option<Mark>, TransferError> {
        // In a fork, a thread that does not exist may hold the lock.
        if !self.session.is_here() {
            return Err(TransferError::DeviceLost { loss: None });
        }
        let marks = &self.session.marks;
        loop {
            match marks.ask(self.number) {
                Asked::Ended => return Ok(None),
                Asked::Mark(mark) => return Ok(Some(mark)),
                Asked::Unmarked => self.session.mark()?,
            }
        }
    }

    /// Returns the event behind the kernel, if it is one of this session: `None` within if it has ended.
    pub(super) fn event_of(&self, session: &Arc<Session>) -> Option<Option<Arc<Raw<CUevent>>>> {
        let mark = Arc::ptr_eq(&self.session, session).then(|| self.mark().ok())??;
        Some(mark.map(|(_, event)| event))
    }

    fn ended(&self, (last, event): Mark) {
        let needless = self.session.marks.ended(last);
        for event in needless.into_iter().chain([event]) {
            if let Some(event) = Arc::into_inner(event) {
                self.session.take_back(event);
            }
        }
    }

    /// Adds to a loss that it may be due to one of `behind` later kernels.
    fn shared(&self, error: TransferError, behind: u64) -> TransferError {
        let Some(reason) = self.session.loss().filter(|_| error.is_device_lost() && behind > 0) else {
            return error;
        };
        let cause = format!("{reason}, in this kernel or one of {behind} behind it").into();
        TransferError::DeviceLost {
            loss: Some(DeviceLoss { device: self.session.found.name.as_str().into(), cause }),
        }
    }

    fn result(&mut self) -> Result<u64, TransferError> {
        let result = self.mark().and_then(|mark| {
            let Some(mark) = mark else { return Ok(()) };
            let behind = mark.0 - self.number;
            self.session.wait_for(mark.1.0, self.call).map_err(|error| self.shared(error, behind))?;
            self.ended(mark);
            Ok(())
        });
        if result.is_err() {
            self.session.drain();
        }
        self.awaited = None;
        result.and_then(|()| self.session.marks.was_launched(self.number)).map(|()| 0)
    }
}

impl Completion for Submitted {
    fn wait(mut self: Box<Self>) -> Result<u64, TransferError> {
        self.result()
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        if self.awaited.is_none() && !self.has_ended() {
            self.awaited = self.session.tail().ok();
        }
        if self.awaited.as_mut().is_some_and(|awaited| awaited.poll(waker).is_pending()) {
            return Poll::Pending;
        }
        self.awaited = None;
        Poll::Ready(self.result())
    }

    fn has_ended(&self) -> bool {
        match self.mark() {
            Ok(None) => true,
            Ok(Some(mark)) => {
                // Only the wait reports a driver that cannot be called.
                let Ok(_entered) = self.session.enter_lost() else { return true };
                let has_come = self.session.has_come(mark.1.0);
                if has_come {
                    self.ended(mark);
                }
                has_come
            }
            // The driver reports no events of a lost device.
            Err(_) => true,
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
