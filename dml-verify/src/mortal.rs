//! An arena whose device dies: at once, at a certain call, or while a certain call's work is under way.
//!
//! ```text
//!   alive ──die──▶ dead: every call answers that the device is lost, and so does is_lost()
//!         ──the n-th call begins (Death::Before)──▶ dead
//!         ──the work of the n-th call ends (Death::During)──▶ dead: it moved its bytes, and says that it is lost
//! ```
//! Calls that free storage still reach the wrapped arena, so that its counts of blocks stay correct.

use dml_arenas::faulty::{Around, CallKind, Piece, Wrapped};
use dml_core::MapState;
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{AllocError, Arena, ArenaDesc, Fence, MapReport, TransferError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The moment at which a device dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The device dies when the n-th call from now begins. That call fails.
    Before(u64),
    /// The device dies while the work of the n-th call from now is under way. A call that starts no work
    /// fails.
    During(u64),
}

/// An arena of any type, on a device that may die.
pub type Mortal<A> = Wrapped<A, Mortality>;

/// The hooks that simulate the death of a device.
#[derive(Debug, Default)]
pub struct Mortality {
    death: Mutex<Option<Death>>,
    is_dead: Arc<AtomicBool>,
    calls: AtomicU64,
}

/// Wraps `arena` on a device that is alive.
pub fn mortal<A: Arena>(arena: A) -> Mortal<A> {
    Wrapped::around(arena, Mortality::default())
}

impl Mortality {
    /// Returns the number of calls so far that fail on a dead device.
    pub fn calls_made(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Makes the device dead at once.
    pub fn die(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
    }

    /// Schedules the death of the device, and replaces an earlier schedule.
    pub fn die_at(&self, death: Death) {
        *self.death.lock() = Some(death);
    }

    /// Cancels the scheduled death. A dead device stays dead.
    pub fn spare(&self) {
        *self.death.lock() = None;
    }

    /// Counts a call, and returns whether the device dies while the work of the call is under way.
    fn call(&self) -> Result<bool, TransferError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut death = self.death.lock();
        let dies_now = match &mut *death {
            Some(Death::Before(left) | Death::During(left)) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            None => false,
        };
        let during = matches!(*death, Some(Death::During(_)));
        if dies_now {
            *death = None;
            if !during {
                self.die();
            }
        }
        if self.is_lost() { Err(TransferError::DeviceLost { loss: None }) } else { Ok(dies_now && during) }
    }

    /// Makes a call whose work is complete when the call returns.
    fn answered<R>(&self, call: impl FnOnce() -> Result<R, TransferError>) -> Result<R, TransferError> {
        if self.call()? {
            self.die();
            return Err(TransferError::DeviceLost { loss: None });
        }
        call()
    }
}

impl Around for Mortality {
    fn stored<R>(
        &self,
        arena: &ArenaDesc,
        _kind: CallKind,
        bytes: u64,
        make: impl FnOnce(u64) -> Result<R, AllocError>,
    ) -> Result<R, AllocError> {
        let lost = || AllocError::DeviceLost { arena: arena.name.clone(), loss: None };
        self.answered(|| Ok(make(bytes))).unwrap_or_else(|_| Err(lost()))
    }

    fn remapped(
        &self,
        _arena: &ArenaDesc,
        _kind: CallKind,
        change: impl FnOnce() -> Result<MapReport, TransferError>,
    ) -> Result<MapReport, TransferError> {
        self.answered(change)
    }

    fn moved<T: Piece>(&self, arena: &Arc<dyn Arena>, piece: T) -> Result<Fence, TransferError> {
        let dies = self.call()?;
        let fence = piece.start(&**arena)?;
        if !dies {
            return Ok(fence);
        }
        let is_dead = self.is_dead.clone();
        Ok(Fence::running(move || {
            fence.wait()?;
            is_dead.store(true, Ordering::SeqCst);
            Err(TransferError::DeviceLost { loss: None })
        }))
    }

    fn map_state(&self, found: Option<MapState>) -> Option<MapState> {
        found.filter(|_| !self.is_lost())
    }

    fn is_lost(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }
}
