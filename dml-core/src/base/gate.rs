//! Work that a leading thread shares with the helper threads that arrive in time.
//!
//! ```text
//!   leading thread  ─▶ opens, calls helpers ▏ works ▏ closes, waits for the helpers inside ─▶
//!   helper 1                  └─▶ wakes, enters ▏ works ▏ leaves
//!   helper 2                                   └─▶ wakes ... finds the gate closed: no thread waits for it
//! ```
//! In contrast, a scope waits until every helper has begun and ended, even a helper that wakes after the work
//! is done.

#![allow(unsafe_code)]

use crate::base::polling::polled;
use crate::base::sync::atomic::AtomicUsize;
use crate::base::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::base::sync::{Arc, Condvar, Mutex};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// Longest time that it waits without sleeping. The helpers are at their last jobs, which end sooner than a
/// sleeping thread would wake.
const AWAKE: Duration = Duration::from_micros(300);

/// Access of helper threads to work that the leading thread lends them. A helper that arrives after the gate
/// has closed does nothing.
///
/// ```
/// use dml_core::internal::{Gate, Helpers};
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
///
/// let left = AtomicU32::new(1000);
/// let done = AtomicU32::new(0);
/// let share = || {
///     while left.try_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
///         done.fetch_add(1, Relaxed);
///     }
/// };
/// Gate::open(&share, |gate| {
///     let gate = gate.clone();
///     // If no helper comes, this thread does all the work.
///     _ = Helpers::shared().call(move || gate.help(|| ()));
///     share();
/// });
/// assert_eq!(done.into_inner(), 1000);
/// ```
pub struct Gate {
    state: Mutex<State>,
    /// Notified when the last helper leaves.
    is_left: Condvar,
    /// Number of helpers inside; written under the lock.
    inside: AtomicUsize,
}

struct State {
    /// The helpers' work; `None` once the gate is closed.
    share: Option<&'static (dyn Fn() + Sync)>,
    /// The payload of the first helper that panicked.
    panic: Option<Panic>,
}

type Panic = Box<dyn Any + Send>;

impl Gate {
    /// Opens a gate for helpers with `share`, runs `lead` on this thread, then closes the gate. Waits for the
    /// helpers inside. A helper that keeps the gate may call [`help`](Self::help) later, and then does
    /// nothing.
    ///
    /// `share` may run on several threads at once, and several times. It must not wait for the leading
    /// thread, which waits for it. If all the work must be done without helpers too, `lead` must call `share`
    /// as well.
    ///
    /// # Panics
    /// With the panic of `lead`, or else with the first panic of a helper.
    pub fn open(share: &(dyn Fn() + Sync), lead: impl FnOnce(&Arc<Self>)) {
        // SAFETY: only helpers inside use the reference. This call borrows `share`, and before it ends,
        // `close` admits no further helper and waits until none is inside. Nothing in between unwinds.
        let share = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(share) };
        let state = Mutex::new(State { share: Some(share), panic: None });
        let gate = Arc::new(Self { state, is_left: Condvar::new(), inside: AtomicUsize::new(0) });
        let led = catch_unwind(AssertUnwindSafe(|| lead(&gate)));
        let helped = gate.close();
        match (led, helped) {
            (Ok(()), None) => {}
            (Ok(()), Some(panic)) => resume_unwind(panic),
            (Err(panic), other) => {
                // Only one panic is resumed. The other payload's destructor could panic too, which would
                // abort the process during the unwinding.
                std::mem::forget(other);
                resume_unwind(panic);
            }
        }
    }

    /// Enters, runs `first` and then the shared work, unless the gate is closed. A panic of either is passed
    /// to the leading thread.
    pub fn help(&self, first: impl FnOnce()) {
        let share = {
            let state = self.state.lock();
            let Some(share) = state.share else { return };
            self.inside.fetch_add(1, Relaxed);
            share
        };
        let helped = catch_unwind(AssertUnwindSafe(|| {
            first();
            share();
        }));
        let mut state = self.state.lock();
        if let Err(panic) = helped {
            // Only the first panic is kept, as in `open`.
            match state.panic {
                None => state.panic = Some(panic),
                Some(_) => std::mem::forget(panic),
            }
        }
        if self.inside.fetch_sub(1, Release) == 1 {
            self.is_left.notify_all();
        }
    }

    /// Waits without sleeping until no helper is inside, for at most `AWAKE`.
    fn spin(&self) {
        let is_empty = || self.inside.load(Acquire) == 0;
        if polled(is_empty) {
            return;
        }
        let begun = Instant::now();
        while !is_empty() && begun.elapsed() < AWAKE {
            // A helper may be waiting for a core.
            std::thread::yield_now();
        }
    }

    /// Closes the gate, and waits for the helpers inside. Returns the first panic of a helper.
    fn close(&self) -> Option<Panic> {
        self.state.lock().share = None;
        // loom does not model time.
        if !cfg!(dml_loom) {
            self.spin();
        }
        let mut state = self.state.lock();
        while self.inside.load(Acquire) > 0 {
            state = self.is_left.wait(state);
        }
        state.panic.take()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate({} inside)", self.inside.load(Relaxed))
    }
}
