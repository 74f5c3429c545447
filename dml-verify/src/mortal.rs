//! An arena whose device dies: at once, at a certain call, or while a certain call's work is under way.
//!
//! ```text
//!   alive ──die──▶ dead: every call answers that the device is lost, and so does is_lost()
//!         ──the n-th call begins (Death::Before)──▶ dead
//!         ──the work of the n-th call ends (Death::During)──▶ dead: it moved its bytes, and says that it is lost
//! ```
//! What frees storage is passed on: the books of the arena inside must come out even.

use dml_arenas::faulty::{Around, CallKind, Piece, Wrapped};
use dml_core::state::MapState;
use dml_core::sync::{Arc, Mutex};
use dml_core::{AllocError, Arena, ArenaDesc, Fence, MapReport, TransferError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// When a device dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// When the n-th call from now comes, which fails.
    Before(u64),
    /// While the work of the n-th call from now is under way; a call that starts no work fails.
    During(u64),
}

/// Any arena, on a device that may die.
pub type Mortal<A> = Wrapped<A, Mortality>;

/// The life of a device.
#[derive(Debug, Default)]
pub struct Mortality {
    death: Mutex<Option<Death>>,
    is_dead: Arc<AtomicBool>,
    calls: AtomicU64,
}

/// `arena`, on a device that is alive.
pub fn mortal<A: Arena>(arena: A) -> Mortal<A> {
    Wrapped::around(arena, Mortality::default())
}

impl Mortality {
    /// How many calls were made that a dead device would not have answered.
    pub fn calls_made(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// The device dies.
    pub fn die(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
    }

    /// The device will die.
    pub fn die_at(&self, death: Death) {
        *self.death.lock() = Some(death);
    }

    /// What the device was to die of does not come; one that is dead stays so.
    pub fn spare(&self) {
        *self.death.lock() = None;
    }

    /// A call comes: whether the device dies while its work is under way.
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
        if self.is_lost() { Err(TransferError::DeviceLost) } else { Ok(dies_now && during) }
    }

    /// A call that ends before it returns.
    fn answered<R>(&self, call: impl FnOnce() -> Result<R, TransferError>) -> Result<R, TransferError> {
        if self.call()? {
            self.die();
            return Err(TransferError::DeviceLost);
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
        let lost = || AllocError::DeviceLost { arena: arena.name.clone() };
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
            Err(TransferError::DeviceLost)
        }))
    }

    fn map_state(&self, found: Option<MapState>) -> Option<MapState> {
        found.filter(|_| !self.is_lost())
    }

    fn is_lost(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }
}
