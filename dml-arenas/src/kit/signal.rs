//! Signals, which report the end of work to its waiters.
//!
//! ```text
//!   Signaller ──end(result)──▶ Signal ──▶ wait, fence, is_ended     any number of clones and waiters
//! ```
//! 1. A signal ends once. Dropping a signaller ends its signal with an error, so no waiter waits for ever.
//! 2. The end wakes every waiting thread and every registered waker. A waker that panics does not keep others
//!    asleep.
//! 3. The lock is not held while wakers are cloned, called and dropped, and errors cloned and formatted: they
//!    are foreign code.
//! 4. In a fork of the process that made it, a signal has ended with an error, because its signaller's thread
//!    does not exist there. A fork does not touch the signal's state: a missing thread may hold its lock.

use crate::fork::Origin;
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use dml_core::internal::{guard, quietly};
use dml_core::{Completion, Fence, TransferError};
use std::fmt;
use std::task::{Poll, Waker};
use thiserror::Error;

/// Why a signal ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoResult {
    /// The signaller was dropped without a result, most likely by a panic.
    #[error("signaller dropped without a result")]
    GivenUp,
    /// This process is a fork of the process for which the work is done.
    #[error("this process is a fork of the one that the work is done for")]
    Forked,
}

impl From<NoResult> for TransferError {
    fn from(no_result: NoResult) -> Self {
        match no_result {
            NoResult::GivenUp => {
                Self::Framework { call: "signal", code: -1, message: no_result.to_string().into() }
            }
            NoResult::Forked => Self::DeviceLost { loss: None },
        }
    }
}

/// The end of some work, which any number of threads can wait for. Clones share the same end.
///
/// The error type is the backend's own. It must convert from a [`NoResult`], and into a [`TransferError`] if
/// the signal is turned into a fence. Each waiter does these conversions itself, so one that panics does so
/// on the waiter's thread.
///
/// # Examples
/// ```
/// use dml_arenas::kit::Signal;
/// use dml_core::TransferError;
///
/// let (signal, signaller) = Signal::<TransferError>::new();
/// let fence = signal.fence();
/// std::thread::spawn(move || signaller.end(Ok(4096)));
/// assert_eq!(fence.wait(), Ok(4096));
/// ```
pub struct Signal<E = TransferError>(Arc<State<E>>);

/// The right to end a signal, held by the code that does the work.
#[must_use = "dropping it reports a failure"]
pub struct Signaller<E: From<NoResult> = TransferError>(Arc<State<E>>);

struct State<E> {
    origin: Origin,
    progress: Mutex<Progress<E>>,
    changed: Condvar,
}

enum Progress<E> {
    /// The wakers of the latest polls, by number.
    Running {
        wakers: Vec<(u64, Waker)>,
        next_number: u64,
    },
    Ended(Arc<Result<u64, E>>),
    /// The signaller was dropped. Each waiter creates its own error, because the conversion is foreign code.
    GivenUp,
}

impl<E: Clone + From<NoResult>> Progress<E> {
    /// Returns a function that makes the result, if there is one. The caller runs it without the lock.
    fn end(&self) -> Option<impl FnOnce() -> Result<u64, E> + use<E>> {
        let ended = match self {
            Self::Running { .. } => return None,
            Self::Ended(result) => Some(result.clone()),
            Self::GivenUp => None,
        };
        // Cloning the error and converting to it are foreign code.
        Some(move || ended.map_or_else(|| Err(NoResult::GivenUp.into()), |result| (*result).clone()))
    }
}

impl<E> Clone for Signal<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E: Clone + From<NoResult>> Signal<E> {
    /// Creates a signal and its signaller.
    pub fn new() -> (Self, Signaller<E>) {
        let progress = Mutex::new(Progress::Running { wakers: Vec::new(), next_number: 0 });
        let state = Arc::new(State { origin: Origin::here(), progress, changed: Condvar::new() });
        (Self(state.clone()), Signaller(state))
    }

    /// Creates a signal that has ended.
    #[must_use]
    pub fn ended(result: Result<u64, E>) -> Self {
        let (signal, signaller) = Self::new();
        signaller.end(result);
        signal
    }

    /// Blocks until the work ends. Returns the number of bytes that a transfer moved, or zero for other work.
    ///
    /// # Errors
    /// The error of the work; [`NoResult`] if the signaller was dropped, or in a fork of the process that
    /// made the signal.
    pub fn wait(&self) -> Result<u64, E> {
        if !self.0.origin.is_here() {
            return Err(NoResult::Forked.into());
        }
        let mut progress = self.0.progress.lock();
        let end = loop {
            match progress.end() {
                Some(end) => break end,
                None => progress = self.0.changed.wait(progress),
            }
        };
        drop(progress);
        end()
    }

    /// Returns whether the work has ended, successfully or not.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        !self.0.origin.is_here() || !matches!(&*self.0.progress.lock(), Progress::Running { .. })
    }

    /// Turns the signal into a value that one waiter polls.
    #[must_use]
    pub fn awaited(self) -> Awaited<E> {
        Awaited { signal: self, number: None }
    }
}

impl<E: Clone + From<NoResult> + Into<TransferError> + Send + Sync + 'static> Signal<E> {
    /// Turns the signal into a fence.
    pub fn fence(self) -> Fence {
        Fence::awaited(self.awaited())
    }
}

impl<E: fmt::Debug> fmt::Debug for Signal<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = match &*self.0.progress.lock() {
            Progress::Running { .. } => None,
            Progress::Ended(result) => Some(result.clone()),
            Progress::GivenUp => return f.write_str("Signal(given up)"),
        };
        match ended {
            None => f.write_str("Signal(running)"),
            Some(result) => write!(f, "Signal({result:?})"),
        }
    }
}

impl<E: From<NoResult>> Signaller<E> {
    /// Ends the signal with the result of the work, and wakes every waiter.
    pub fn end(self, result: Result<u64, E>) {
        self.finish(Progress::Ended(Arc::new(result)));
    }

    fn finish(&self, end: Progress<E>) {
        if !self.0.origin.is_here() {
            return;
        }
        let mut progress = self.0.progress.lock();
        let Progress::Running { wakers, .. } = &mut *progress else { return };
        let wakers = std::mem::take(wakers);
        *progress = end;
        drop(progress);
        self.0.changed.notify_all();
        for (_, waker) in wakers {
            // Called by reference, so that a waker that panics is then dropped under its own guard.
            let _ = guard(|| waker.wake_by_ref());
            quietly(waker);
        }
    }
}

impl<E: From<NoResult>> Drop for Signaller<E> {
    fn drop(&mut self) {
        self.finish(Progress::GivenUp);
    }
}

impl<E: From<NoResult>> fmt::Debug for Signaller<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signaller")
    }
}

/// A signal that one waiter polls: the completion of a fence. Dropping it drops the registered waker.
pub struct Awaited<E: From<NoResult> = TransferError> {
    signal: Signal<E>,
    /// The number under which its waker is registered.
    number: Option<u64>,
}

impl<E: Clone + From<NoResult>> Awaited<E> {
    /// Returns the result of the work. While the work runs, `waker` replaces the waker of the last poll.
    ///
    /// # Errors
    /// As [`Signal::wait`].
    pub fn poll_end(&mut self, waker: &Waker) -> Poll<Result<u64, E>> {
        let state = &self.signal.0;
        if !state.origin.is_here() {
            return Poll::Ready(Err(NoResult::Forked.into()));
        }
        let mut fresh = waker.clone();
        let mut progress = state.progress.lock();
        let end = progress.end();
        match &mut *progress {
            Progress::Ended(_) | Progress::GivenUp => {}
            Progress::Running { wakers, next_number } => {
                let number = *self.number.get_or_insert_with(|| {
                    *next_number += 1;
                    *next_number
                });
                match wakers.iter_mut().find(|(other, _)| *other == number) {
                    Some((_, old)) => std::mem::swap(old, &mut fresh),
                    None => wakers.push((number, std::mem::replace(&mut fresh, Waker::noop().clone()))),
                }
            }
        }
        drop(progress);
        // Dropping a waker is foreign code. It is that of the last poll, or this one after the end.
        drop(fresh);
        end.map_or(Poll::Pending, |end| Poll::Ready(end()))
    }
}

impl<E: From<NoResult>> Drop for Awaited<E> {
    fn drop(&mut self) {
        let state = &self.signal.0;
        let Some(number) = self.number.filter(|_| state.origin.is_here()) else { return };
        let mut progress = state.progress.lock();
        let left = match &mut *progress {
            Progress::Running { wakers, .. } => {
                wakers.iter().position(|(other, _)| *other == number).map(|at| wakers.swap_remove(at))
            }
            Progress::Ended(_) | Progress::GivenUp => None,
        };
        drop(progress);
        drop(left);
    }
}

impl<E: From<NoResult>> fmt::Debug for Awaited<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Awaited")
    }
}

impl<E: Clone + From<NoResult> + Into<TransferError> + Send + Sync> Completion for Awaited<E> {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        self.signal.wait().map_err(Into::into)
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        self.poll_end(waker).map_err(Into::into)
    }

    fn has_ended(&self) -> bool {
        self.signal.is_ended()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    /// An error that calls its signal when it is cloned or formatted.
    struct Curious;

    static KNOWN: std::sync::OnceLock<Signal<Curious>> = std::sync::OnceLock::new();

    fn ask() {
        assert!(KNOWN.get().expect("it was set before the end").is_ended());
    }

    impl From<NoResult> for Curious {
        fn from(_: NoResult) -> Self {
            Self
        }
    }

    impl Clone for Curious {
        fn clone(&self) -> Self {
            ask();
            Self
        }
    }

    impl fmt::Debug for Curious {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            ask();
            f.write_str("Curious")
        }
    }

    #[test]
    fn who_gives_up_has_no_code_of_a_framework() {
        let told = TransferError::from(NoResult::GivenUp);
        assert!(matches!(&told, TransferError::Framework { call: "signal", code: -1, .. }), "{told:?}");
        assert_eq!(TransferError::from(NoResult::Forked), TransferError::DeviceLost { loss: None });
    }

    #[test]
    fn an_error_may_ask_the_signal_that_it_ended() {
        let (signal, signaller) = Signal::<Curious>::new();
        KNOWN.set(signal.clone()).unwrap();
        signaller.end(Err(Curious));
        assert!(signal.wait().is_err());
        assert_eq!(format!("{signal:?}"), "Signal(Err(Curious))");
        assert!(matches!(signal.awaited().poll_end(Waker::noop()), Poll::Ready(Err(Curious))));
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Count {
        fn woken(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics")
        }
    }

    fn signal() -> (Signal, Signaller) {
        Signal::new()
    }

    #[test]
    fn every_waiter_hears_the_same_end() {
        let (signal, signaller) = signal();
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
        let (signal, signaller) = signal();
        let [old, new, other] = [0; 3].map(|_| Arc::new(Count::default()));
        let (mut one, mut two) = (signal.clone().fence(), signal.fence());
        assert!(!one.has_ended() && !two.has_ended());
        assert!(one.poll(&old.clone().into()).is_pending());
        assert!(one.poll(&new.clone().into()).is_pending());
        assert!(two.poll(&other.clone().into()).is_pending());
        signaller.end(Ok(3));
        assert_eq!((old.woken(), new.woken(), other.woken()), (0, 1, 1));
        assert!(one.has_ended() && two.has_ended());
        assert_eq!(one.poll(&new.into()), Poll::Ready(Ok(3)));
        assert_eq!(two.wait(), Ok(3));
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_asleep() {
        let (signal, signaller) = signal();
        let count = Arc::new(Count::default());
        let (mut one, mut two) = (signal.clone().fence(), signal.fence());
        assert!(one.poll(&Arc::new(Panics).into()).is_pending());
        assert!(two.poll(&count.clone().into()).is_pending());
        signaller.end(Ok(3));
        assert_eq!(count.woken(), 1);
        assert_eq!((one.wait(), two.wait()), (Ok(3), Ok(3)));
    }

    #[test]
    fn a_poller_that_goes_takes_its_waker_along() {
        let (signal, signaller) = signal();
        let [gone, stays] = [0; 2].map(|_| Arc::new(Count::default()));
        let (mut one, mut two) = (signal.clone().awaited(), signal.awaited());
        assert!(one.poll_end(&gone.clone().into()).is_pending());
        assert!(two.poll_end(&stays.clone().into()).is_pending());
        drop(one);
        assert_eq!(Arc::strong_count(&gone), 1);
        signaller.end(Ok(3));
        assert_eq!((gone.woken(), stays.woken()), (0, 1));
        assert_eq!(two.poll_end(Waker::noop()), Poll::Ready(Ok(3)));
    }

    /// A waker that uses its signal when it is dropped.
    struct Asks(Signal);

    impl Wake for Asks {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Asks {
        fn drop(&mut self) {
            let _ = self.0.is_ended();
        }
    }

    #[test]
    fn no_waker_is_dropped_under_the_lock() {
        let (signal, signaller) = signal();
        let mut awaited = signal.clone().awaited();
        for _ in 0..2 {
            assert!(awaited.poll_end(&Arc::new(Asks(signal.clone())).into()).is_pending());
        }
        signaller.end(Ok(1));
        assert_eq!(awaited.poll_end(&Arc::new(Asks(signal)).into()), Poll::Ready(Ok(1)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_fork_touches_no_signal_of_its_parents() {
        use crate::fork::testing::{child_says, fork};
        let (signal, signaller) = signal();
        let (locked, go_on) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        let mut polled = signal.clone().awaited();
        assert!(polled.poll_end(Waker::noop()).is_pending());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let progress = signal.0.progress.lock();
                locked.wait();
                go_on.wait();
                drop(progress);
            });
            // The other thread holds the lock, so it stays locked for ever in a child.
            locked.wait();
            let forked = || signal.wait() == Err(NoResult::Forked.into());
            assert!(child_says(fork, || forked() && signal.is_ended()));
            let poll = || signal.clone().awaited().poll_end(Waker::noop());
            assert!(child_says(fork, || poll() == Poll::Ready(Err(NoResult::Forked.into()))));
            assert!(child_says(fork, || {
                // The child drops its copies of the signaller and the poller.
                drop(Signaller(signaller.0.clone()));
                drop(Awaited { signal: signal.clone(), number: polled.number });
                true
            }));
            go_on.wait();
        });
        assert!(!signal.is_ended());
        signaller.end(Ok(1));
        assert_eq!(signal.wait(), Ok(1));
    }

    /// An error whose construction panics.
    #[derive(Clone, Debug)]
    struct Unmade;

    impl From<NoResult> for Unmade {
        fn from(_: NoResult) -> Self {
            panic!("an error that panics")
        }
    }

    impl From<Unmade> for TransferError {
        fn from(_: Unmade) -> Self {
            Self::DeviceLost { loss: None }
        }
    }

    #[test]
    fn an_error_that_panics_keeps_nobody_asleep() {
        let (signal, signaller) = Signal::<Unmade>::new();
        let count = Arc::new(Count::default());
        let mut polled = signal.clone().fence();
        assert!(polled.poll(&count.clone().into()).is_pending());
        let waits = signal.clone();
        let waiter = std::thread::spawn(move || waits.wait());
        drop(signaller);
        assert!(waiter.join().is_err(), "the panic is the waiter's own");
        assert_eq!((count.woken(), signal.is_ended()), (1, true));
        assert_eq!(format!("{signal:?}"), "Signal(given up)");
        assert!(guard(|| polled.poll(Waker::noop())).is_err());
        std::mem::forget(polled);
    }

    #[test]
    fn work_that_nobody_ends_has_failed() {
        let (signal, signaller) = signal();
        drop(signaller);
        assert_eq!(signal.wait(), Err(NoResult::GivenUp.into()));
    }

    /// A waker that panics when it is dropped.
    struct Falls;

    impl Wake for Falls {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Falls {
        fn drop(&mut self) {
            panic!("a waker that panics as it goes")
        }
    }

    #[test]
    fn a_waker_that_panics_as_it_goes_keeps_no_other_asleep() {
        let (signal, signaller) = signal();
        let count = Arc::new(Count::default());
        let (mut one, mut two) = (signal.clone().fence(), signal.fence());
        assert!(one.poll(&Arc::new(Falls).into()).is_pending());
        assert!(two.poll(&count.clone().into()).is_pending());
        signaller.end(Ok(3));
        assert_eq!(count.woken(), 1);
        assert_eq!((one.wait(), two.wait()), (Ok(3), Ok(3)));
    }
}
