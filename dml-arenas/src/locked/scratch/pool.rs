//! A generic pool, which lends pieces and reuses them. It frees idle pieces when none was used for a while.
//!
//! ```text
//!   take ──▶ an idle piece, or room for a new one ──▶ Lent ──drop──▶ idle ──none used for a while──▶ freed
//!        ──▶ none: all pieces are lent                          └──empty──▶ room for a new one
//! ```
//! 1. No more pieces exist than the pool has room for. A piece's room becomes free once the piece has been
//!    dropped.
//! 2. Pieces are dropped without the lock.
//! 3. A thread watches while any piece is idle, so idle pieces are freed in the end. Closing the pool frees
//!    them at once.

use dml_core::internal::sync::{Arc, Condvar, Mutex, thread};
use std::time::{Duration, Instant};

/// Pieces of one kind.
pub(super) struct Pool<P>(Arc<Shared<P>>);

struct Shared<P> {
    /// The maximum number of pieces.
    most: u64,
    /// The idle time after which pieces are freed.
    idle: Duration,
    state: Mutex<State<P>>,
    changed: Condvar,
}

struct State<P> {
    idle: Vec<P>,
    /// The number of pieces, idle or lent.
    pieces: u64,
    /// When a piece was last taken or returned.
    used: Option<Instant>,
    /// Whether a thread waits to free the idle pieces.
    is_watched: bool,
    is_closed: bool,
}

/// A piece, or room for one, which returns to the pool when it is dropped.
pub(super) struct Lent<P: Send + 'static> {
    /// The piece; `None` until it is created.
    pub(super) piece: Option<P>,
    pool: Arc<Shared<P>>,
}

impl<P: Send + 'static> Pool<P> {
    /// Creates a pool with room for `most` pieces. Idle pieces are freed when none was used for `idle`.
    pub(super) fn new(most: u64, idle: Duration) -> Self {
        let state = State { idle: Vec::new(), pieces: 0, used: None, is_watched: false, is_closed: false };
        Self(Arc::new(Shared { most, idle, state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Takes an idle piece or room for a new one, or returns `None` if there is neither.
    pub(super) fn take(&self) -> Option<Lent<P>> {
        let mut state = self.0.state.lock();
        state.used = Some(Instant::now());
        let piece = state.idle.pop();
        if piece.is_none() {
            if state.pieces >= self.0.most {
                return None;
            }
            state.pieces += 1;
        }
        drop(state);
        Some(Lent { piece, pool: self.0.clone() })
    }

    /// Frees the idle pieces. Lent pieces are freed when they return.
    pub(super) fn close(&self) {
        let mut state = self.0.state.lock();
        state.is_closed = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        self.0.changed.notify_all();
        self.0.free(idle);
    }

    /// Returns the number of pieces, idle or lent.
    #[cfg(test)]
    pub(super) fn pieces(&self) -> u64 {
        self.0.state.lock().pieces
    }

    /// Runs `act` while this thread holds the lock.
    #[cfg(all(test, not(dml_loom)))]
    pub(super) fn while_locked<R>(&self, act: impl FnOnce() -> R) -> R {
        let _held = self.0.state.lock();
        act()
    }
}

impl<P> Clone for Pool<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P> Shared<P> {
    /// Drops pieces that were removed from the list, and then frees their room.
    fn free(&self, pieces: Vec<P>) {
        let count = pieces.len() as u64;
        drop(pieces);
        self.state.lock().pieces -= count;
    }

    /// Waits until no piece was used for the idle time, and frees the idle pieces.
    fn free_idle(&self) {
        let mut state = self.state.lock();
        loop {
            let due = state.used.map_or_else(Instant::now, |used| used + self.idle);
            if state.is_closed || Instant::now() >= due {
                break;
            }
            state = self.changed.wait_until(state, due).0;
        }
        // A thread that returns a piece from here on starts the next watching thread.
        state.is_watched = false;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        self.free(idle);
    }
}

impl<P: Send + 'static> Shared<P> {
    fn put(self: &Arc<Self>, piece: Option<P>) {
        let mut state = self.state.lock();
        state.used = Some(Instant::now());
        let spare = match piece {
            Some(piece) if !state.is_closed => {
                state.idle.push(piece);
                None
            }
            Some(piece) => Some(piece),
            None => {
                state.pieces -= 1;
                None
            }
        };
        let watches = !state.is_watched && !state.idle.is_empty();
        state.is_watched |= watches;
        drop(state);
        if let Some(spare) = spare {
            self.free(vec![spare]);
        }
        if watches {
            let this = self.clone();
            let thread = thread::Builder::new().name("locked scratch".to_owned());
            if thread.spawn(move || this.free_idle()).is_err() {
                // The pieces stay until the pool closes, or until a later return starts the thread.
                self.state.lock().is_watched = false;
            }
        }
    }
}

impl<P: Send + 'static> Drop for Lent<P> {
    fn drop(&mut self) {
        self.pool.put(self.piece.take());
    }
}
