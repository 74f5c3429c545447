//! What several threads do together, with as many of them as come in time.
//!
//! ```text
//!   the thread that leads  ─▶ opens, asks helpers ▏ shares ▏ closes, waits for those inside ─▶
//!   helper 1                        └─▶ wakes, comes in ▏ shares ▏ leaves
//!   helper 2                                         └─▶ wakes ... finds it closed, and is not waited for
//! ```
//! A scope waits until every helper has begun and ended, also those that wake when there is nothing left to do.

#![allow(unsafe_code)]

use crate::base::sync::atomic::AtomicUsize;
use crate::base::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::base::sync::{Arc, Condvar, Mutex};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// How long a thread that waits for helpers does so without giving its core away.
const SPINNING: Duration = Duration::from_micros(20);
/// How long it does so without sleeping. They are at their last jobs, and a sleeping thread would take longer to wake up than these take.
const AWAKE: Duration = Duration::from_micros(300);

/// Where helpers come in, to do what the thread that has opened it lends them. Once it is closed nobody does.
///
/// ```
/// use dml_core::helpers::{Gate, Helpers};
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
///     // Without a thread this one does all of it.
///     _ = Helpers::shared().call(move || gate.help(|| ()));
///     share();
/// });
/// assert_eq!(done.into_inner(), 1000);
/// ```
pub struct Gate {
    state: Mutex<State>,
    /// Nobody is inside any more.
    is_left: Condvar,
    /// How many helpers are inside. Written under the lock.
    inside: AtomicUsize,
}

struct State {
    /// What helpers do; `None` once the gate is closed.
    share: Option<&'static (dyn Fn() + Sync)>,
    /// With what the first one panicked.
    panic: Option<Panic>,
}

type Panic = Box<dyn Any + Send>;

impl Gate {
    /// Opens a gate for those who help with `share`, while the caller does `lead`. Waits for those who came in. A helper that keeps the gate can ask later
    /// on, and does nothing then.
    ///
    /// `share` may run on several threads at once, and again and again. It must not wait for the thread that leads, which waits for it. Who leads calls `share`
    /// as well, if all of it is to be done whoever comes.
    ///
    /// # Panics
    /// With the panic of `lead`, or else the first one of a helper.
    pub fn open(share: &(dyn Fn() + Sync), lead: impl FnOnce(&Arc<Self>)) {
        // SAFETY: only who is inside uses it. `close` lets nobody in any more and waits until nobody is inside, before this call ends, which has
        // borrowed it: nothing in between unwinds.
        let share = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(share) };
        let state = Mutex::new(State { share: Some(share), panic: None });
        let gate = Arc::new(Self { state, is_left: Condvar::new(), inside: AtomicUsize::new(0) });
        let led = catch_unwind(AssertUnwindSafe(|| lead(&gate)));
        let helped = gate.close();
        match (led, helped) {
            (Ok(()), None) => {}
            (Ok(()), Some(panic)) => resume_unwind(panic),
            (Err(panic), other) => {
                // One is heard. Another one's destructor could panic, which would end the process while this one unwinds.
                std::mem::forget(other);
                resume_unwind(panic);
            }
        }
    }

    /// Comes in and shares, after `first`; unless the gate is closed. Panics of both are the leading thread's.
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
            // As above.
            match state.panic {
                None => state.panic = Some(panic),
                Some(_) => std::mem::forget(panic),
            }
        }
        if self.inside.fetch_sub(1, Release) == 1 {
            self.is_left.notify_all();
        }
    }

    /// Returns soon after nobody is inside, or after a while.
    fn spin(&self) {
        let begun = Instant::now();
        while self.inside.load(Acquire) > 0 {
            match begun.elapsed() {
                waited if waited < SPINNING => std::hint::spin_loop(),
                // One of them may have no core.
                waited if waited < AWAKE => std::thread::yield_now(),
                _ => break,
            }
        }
    }

    /// Lets nobody in any more, and waits for those inside. Returns the first one's panic.
    fn close(&self) -> Option<Panic> {
        self.state.lock().share = None;
        // A model knows no time.
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
