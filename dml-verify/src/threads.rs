//! Ways to wait in tests: futures polled by hand, and threads that must end.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Polls a future once, with a waker that does nothing.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a future to its end on this thread, which sleeps between wake-ups.
pub fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// Runs `act` on a separate thread, so that a hang becomes a failure. Nothing else depends on time.
pub fn watched<R: Send + 'static>(what: &str, act: impl FnOnce() -> R + Send + 'static) -> Watched<R> {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        let _ = done.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)));
    });
    Watched { what: what.to_owned(), ended }
}

/// A thread that must end within a time limit.
#[derive(Debug)]
pub struct Watched<R> {
    what: String,
    ended: Receiver<std::thread::Result<R>>,
}

impl<R> Watched<R> {
    /// Waits for the thread, and returns its result.
    ///
    /// # Panics
    /// When the thread panicked, or does not end within 20 seconds.
    pub fn join(self) -> R {
        self.join_within(Duration::from_secs(20))
    }

    /// Does the same as [`Watched::join`], with another limit.
    ///
    /// # Panics
    /// When the thread panicked, or does not end within `limit`.
    pub fn join_within(self, limit: Duration) -> R {
        match self.ended.recv_timeout(limit) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => panic!("{} hangs", self.what),
        }
    }
}
