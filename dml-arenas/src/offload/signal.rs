//! Signals: they report the end of a run or a transfer to its waiters.
//!
//! ```text
//!   Signaller ──end(result)──▶ Signal ──▶ wait, poll, is_ended       any number of clones, any number of waiters
//! ```
//! 1. A signal ends once. Dropping a signaller ends its signal with an error, so no waiter waits for ever.
//! 2. The end wakes every waiting thread and every registered waker.
//! 3. In a fork of the process that made it, a signal has ended with an error, because its signaller's thread does not
//!    exist there. A fork does not touch the signal's state: a missing thread may hold its lock.

use super::error::OffloadError;
use crate::fork::Origin;
use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{Completion, Fence, TransferError};
use std::fmt;
use std::task::{Poll, Waker};

/// The end of a run or a transfer, which any number of threads can wait for. Clones stand for the same end.
#[derive(Clone)]
pub struct Signal(Arc<State>);

/// The right to end a signal, held by the code that does the work.
#[must_use = "dropping it reports a failure"]
pub struct Signaller(Arc<State>);

struct State {
    origin: Origin,
    progress: Mutex<Progress>,
    changed: Condvar,
}

enum Progress {
    /// The wakers of those that polled, by number.
    Running {
        wakers: Vec<(u64, Waker)>,
        next_number: u64,
    },
    Ended(Result<u64, OffloadError>),
}

impl Signal {
    /// Makes a signal and its signaller.
    pub fn new() -> (Self, Signaller) {
        let progress = Mutex::new(Progress::Running { wakers: Vec::new(), next_number: 0 });
        let state = Arc::new(State { origin: Origin::here(), progress, changed: Condvar::new() });
        (Self(state.clone()), Signaller(state))
    }

    /// Makes a signal that has ended.
    #[must_use]
    pub fn ended(result: Result<u64, OffloadError>) -> Self {
        let (signal, signaller) = Self::new();
        signaller.end(result);
        signal
    }

    /// Blocks until the work ends. Returns the bytes that a transfer moved; a run returns zero.
    ///
    /// # Errors
    /// The error of the work; [`OffloadError::Forked`] in a fork of the process that made the signal.
    pub fn wait(&self) -> Result<u64, OffloadError> {
        if !self.0.origin.is_here() {
            return Err(OffloadError::Forked);
        }
        let mut progress = self.0.progress.lock();
        loop {
            match &*progress {
                Progress::Ended(result) => return result.clone(),
                Progress::Running { .. } => progress = self.0.changed.wait(progress),
            }
        }
    }

    /// Returns whether the work has ended, successfully or not.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        !self.0.origin.is_here() || matches!(&*self.0.progress.lock(), Progress::Ended(_))
    }

    /// Turns the signal into a fence.
    pub fn fence(self) -> Fence {
        Fence::awaited(self.awaited())
    }

    /// Turns the signal into the completion of a fence.
    pub(super) fn awaited(self) -> Awaited {
        Awaited { signal: self, number: None }
    }

    /// Returns how the work ended. While the work runs, `waker` replaces the waker registered under `number`.
    pub(super) fn poll(&self, number: &mut Option<u64>, waker: &Waker) -> Poll<Result<u64, OffloadError>> {
        if !self.0.origin.is_here() {
            return Poll::Ready(Err(OffloadError::Forked));
        }
        match &mut *self.0.progress.lock() {
            Progress::Ended(result) => Poll::Ready(result.clone()),
            Progress::Running { wakers, next_number } => {
                let number = *number.get_or_insert_with(|| {
                    *next_number += 1;
                    *next_number
                });
                match wakers.iter_mut().find(|(other, _)| *other == number) {
                    Some((_, old)) => old.clone_from(waker),
                    None => wakers.push((number, waker.clone())),
                }
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0.progress.lock() {
            Progress::Running { .. } => f.write_str("Signal(running)"),
            Progress::Ended(result) => write!(f, "Signal({result:?})"),
        }
    }
}

impl Signaller {
    /// Ends the signal with the result of the work, and wakes every waiter.
    pub fn end(self, result: Result<u64, OffloadError>) {
        self.finish(result);
    }

    fn finish(&self, result: Result<u64, OffloadError>) {
        if !self.0.origin.is_here() {
            return;
        }
        let mut progress = self.0.progress.lock();
        let Progress::Running { wakers, .. } = &mut *progress else { return };
        let wakers = std::mem::take(wakers);
        *progress = Progress::Ended(result);
        drop(progress);
        self.0.changed.notify_all();
        // The lock is released first: a waker is foreign code.
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        self.finish(Err(OffloadError::GivenUp));
    }
}

impl fmt::Debug for Signaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signaller")
    }
}

/// A signal that a fence waits for.
pub(super) struct Awaited {
    signal: Signal,
    /// The number under which its waker is registered.
    number: Option<u64>,
}

impl Completion for Awaited {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        self.signal.wait().map_err(TransferError::from)
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        self.signal.poll(&mut self.number, waker).map_err(TransferError::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{RawWaker, RawWakerVTable, Wake};

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn every_waiter_hears_the_same_end() {
        let (signal, signaller) = Signal::new();
        assert!(!signal.is_ended());
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let signal = signal.clone();
                std::thread::spawn(move || signal.wait())
            })
            .collect();
        signaller.end(Ok(7));
        assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap() == Ok(7)));
        assert!(signal.is_ended());
        assert_eq!(signal.wait(), Ok(7));
    }

    #[test]
    fn the_last_waker_of_each_fence_is_woken_once() {
        let (signal, signaller) = Signal::new();
        let (old, new, other) =
            (Arc::new(Count::default()), Arc::new(Count::default()), Arc::new(Count::default()));
        let (mut one, mut two) = (signal.clone().fence(), signal.fence());
        assert!(one.poll(&old.clone().into()).is_pending());
        assert!(one.poll(&new.clone().into()).is_pending());
        assert!(two.poll(&other.clone().into()).is_pending());
        signaller.end(Ok(3));
        let woken = |count: &Count| count.0.load(Ordering::SeqCst);
        assert_eq!((woken(&old), woken(&new), woken(&other)), (0, 1, 1));
        assert_eq!(one.poll(&new.into()), Poll::Ready(Ok(3)));
        assert_eq!(two.wait(), Ok(3));
    }

    /// A waker whose clone is a while in coming, under the signal's lock.
    fn slow_waker() -> Waker {
        fn clone(_: *const ()) -> RawWaker {
            std::thread::sleep(std::time::Duration::from_millis(300));
            RawWaker::new(std::ptr::null(), &TABLE)
        }
        fn nothing(_: *const ()) {}
        static TABLE: RawWakerVTable = RawWakerVTable::new(clone, nothing, nothing, nothing);
        // SAFETY: no function of the table uses the pointer.
        unsafe { Waker::new(std::ptr::null(), &TABLE) }
    }

    #[test]
    fn a_fork_touches_no_signal_of_its_parents() {
        use crate::fork::testing::{child_says, fork};
        let (signal, signaller) = Signal::new();
        std::thread::scope(|scope| {
            let other = signal.clone();
            scope.spawn(move || other.poll(&mut None, &slow_waker()).is_pending());
            std::thread::sleep(std::time::Duration::from_millis(100));
            // The other thread has the lock, and a child has it for ever.
            let forked = || matches!(signal.wait(), Err(OffloadError::Forked));
            assert!(child_says(fork, || forked() && signal.is_ended()));
            let poll = || signal.poll(&mut None, Waker::noop());
            assert!(child_says(fork, || poll() == Poll::Ready(Err(OffloadError::Forked))));
            assert!(child_says(fork, || {
                // The child's copy of it, dropped there.
                drop(Signaller(signaller.0.clone()));
                true
            }));
        });
        assert!(!signal.is_ended());
        signaller.end(Ok(1));
        assert_eq!(signal.wait(), Ok(1));
    }

    #[test]
    fn work_that_nobody_ends_has_failed() {
        let (signal, signaller) = Signal::new();
        drop(signaller);
        assert!(matches!(signal.wait(), Err(OffloadError::GivenUp)));
    }
}
