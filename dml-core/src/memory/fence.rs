//! Work that an arena has started, and the way to wait for its end.

use crate::base::guard::guard;
use crate::memory::error::TransferError;
use std::any::Any;
use std::fmt;
use std::task::{Poll, Waker};

/// The end of work that an arena has started, for frameworks that can notify a waiter.
///
/// # What a completion owes
/// - **F-1** It ends when the work does, and no earlier. (`hostile`
///   `a_dropped_flight_waits_lets_nobody_in_and_commits_nothing`)
/// - **F-2** It reports the number of bytes that were moved (A-2). (`hostile`
///   `every_lie_is_told_for_what_it_is`; `awaiting`
///   `i15_an_awaited_copy_that_fails_or_is_short_is_an_error_as_any`)
/// - **F-3** It calls the waker of the last poll, once the work has ended. (`awaiting`
///   `the_last_waker_is_the_one_that_is_called`)
/// - **F-4** Calls and the destructor may panic and call back into core, as an arena's may (A-6). A panic
///   counts as failed work. A panic of [`has_ended`](Completion::has_ended) only counts as `false`.
///   (`awaiting` `i15_a_completion_that_panics_is_a_failed_copy`; `hostile`
///   `any_call_may_call_back_into_core`)
/// - **F-5** It reports that it has ended only when waiting for it does not block. The caller may then wait
///   for it. (`hostile` `a_flight_that_has_ended_says_so`; `fences_wake_whoever_polls_last` of `dml-verify`)
pub trait Completion: Send {
    /// Blocks until the work ends and returns how many bytes it moved.
    ///
    /// # Errors
    /// The framework's error of the transfer.
    fn wait(self: Box<Self>) -> Result<u64, TransferError>;

    /// Returns the result of the work, if it has ended. Otherwise it stores `waker` and calls the last one
    /// stored when the work ends. The waker is foreign code: if it blocks, it delays other waiters of the
    /// same framework. Core does not poll again after the end. It may call [`wait`](Completion::wait) before
    /// the end.
    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>>;

    /// Returns whether the work is known to have ended, with or without an error. The call must be cheap and
    /// have no effect, such as the query of an event or a flag. By default, only [`wait`](Completion::wait)
    /// and [`poll`](Completion::poll) report the end.
    fn has_ended(&self) -> bool {
        false
    }

    /// Returns the value for [`Fence::completion`], by which the arena finds its own event, to order further
    /// work behind this one on the device.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

type Blocking = Box<dyn FnOnce() -> Result<u64, TransferError> + Send>;

/// Work that an arena has started and that the engine waits for.
///
/// Dropping a fence waits for the work too, so the memory under a transfer stays alive until its end.
///
/// # Examples
/// ```
/// use dml_core::{Fence, TransferError};
/// use std::thread;
///
/// assert_eq!(Fence::done(64).wait(), Ok(64)); // of a copy that has ended
///
/// let copy = thread::spawn(|| 4096); // the number of bytes that it moves
/// let fence = Fence::running(move || copy.join().map_err(|_| TransferError::DeviceLost { loss: None }));
/// assert_eq!(fence.wait(), Ok(4096));
/// ```
#[must_use = "an unwaited fence hides whether the transfer worked"]
pub struct Fence(Option<Pending>);

enum Pending {
    Done(u64),
    Running(Blocking),
    Awaited(Box<dyn Completion>),
}

impl Pending {
    fn wait(self) -> Result<u64, TransferError> {
        match self {
            Self::Done(bytes) => Ok(bytes),
            Self::Running(wait) => wait(),
            Self::Awaited(completion) => completion.wait(),
        }
    }
}

impl Fence {
    /// Creates a fence of finished work that moved `bytes` bytes.
    pub const fn done(bytes: u64) -> Self {
        Self(Some(Pending::Done(bytes)))
    }

    /// Creates a fence of running work whose framework can only be waited for. `wait` blocks until the work
    /// ends and returns how many bytes it moved. A future that polls such a fence blocks its thread for that
    /// time.
    pub fn running(wait: impl FnOnce() -> Result<u64, TransferError> + Send + 'static) -> Self {
        Self(Some(Pending::Running(Box::new(wait))))
    }

    /// Creates a fence of running work that wakes its waiter at the end.
    pub fn awaited(completion: impl Completion + 'static) -> Self {
        Self(Some(Pending::Awaited(Box::new(completion))))
    }

    /// Returns whether the work had ended when the fence was made, or has been polled to its end.
    /// [`has_ended`](Self::has_ended) also asks the framework.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self.0, Some(Pending::Done(_)) | None)
    }

    /// Returns whether the work is known to have ended, without any effect. The answer is also `false` if the
    /// framework cannot be asked.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match &self.0 {
            Some(Pending::Done(_)) | None => true,
            Some(Pending::Running(_)) => false,
            Some(Pending::Awaited(completion)) => completion.has_ended(),
        }
    }

    /// Returns whether the only way to learn the end of the work is to block.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self.0, Some(Pending::Running(_)))
    }

    /// Returns what [`Completion::as_any`] returns for work that may be running, if it is of this type.
    #[must_use]
    pub fn completion<T: Any>(&self) -> Option<&T> {
        match &self.0 {
            Some(Pending::Awaited(completion)) => guard(|| completion.as_any()).ok()??.downcast_ref(),
            _ => None,
        }
    }

    /// Blocks until the work ends and returns how many bytes it moved.
    ///
    /// # Errors
    /// The framework's error of the transfer.
    pub fn wait(mut self) -> Result<u64, TransferError> {
        self.0.take().map_or(Ok(0), Pending::wait)
    }

    /// Returns the result of the work, if it has ended. Otherwise, `waker` is called at the end. Work that
    /// can only be waited for blocks the call. The fence must not be polled again after the end.
    ///
    /// # Errors
    /// The framework's error of the transfer.
    pub fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        let ended = match &mut self.0 {
            Some(Pending::Awaited(completion)) => completion.poll(waker),
            _ => return Poll::Ready(self.0.take().map_or(Ok(0), Pending::wait)),
        };
        if ended.is_ready() {
            self.0 = None;
        }
        ended
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Some(pending) = self.0.take() {
            // The result has no receiver any more, but the memory under the transfer must outlive it.
            let _ = pending.wait();
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(Pending::Running(_) | Pending::Awaited(_)) => "Fence(running)",
            _ => "Fence(done)",
        })
    }
}
