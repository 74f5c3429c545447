//! An arena that follows a script.

use super::script::{CallKind, Fault, Player, Script, meet, transfer};
use super::wrapped::{Around, Piece, Wrapped};
use dml_core::internal::sync::Arc;
use dml_core::{AllocError, Arena, ArenaDesc, Fence, MapReport, TransferError};

/// An arena of any type with scripted faults. [`Faulty::new`] takes the script.
pub type Faulty<A> = Wrapped<A, Faults>;

/// The hooks that make an arena fail as its script says.
#[derive(Debug)]
pub struct Faults(Player);

impl<A: Arena> Wrapped<A, Faults> {
    /// Wraps `arena`, whose calls fail as `script` says.
    #[must_use]
    pub fn new(arena: A, script: Script) -> Self {
        Self::around(arena, Faults(Player::new(script)))
    }
}

impl Faults {
    /// Returns the number of calls so far.
    #[must_use]
    pub fn calls_made(&self) -> u64 {
        self.0.calls_made()
    }

    /// Returns the number of calls of one kind so far.
    #[must_use]
    pub fn calls_of(&self, kind: CallKind) -> u64 {
        self.0.calls_of(kind)
    }

    /// Counts a call, and plays the part of its fault that comes before the call. Returns the rest of the
    /// fault.
    fn meet(&self, arena: &ArenaDesc, kind: CallKind) -> Option<Fault> {
        meet(self.0.next(kind), &arena.name, kind)
    }
}

impl Around for Faults {
    fn stored<R>(
        &self,
        arena: &ArenaDesc,
        kind: CallKind,
        bytes: u64,
        make: impl FnOnce(u64) -> Result<R, AllocError>,
    ) -> Result<R, AllocError> {
        let name = || arena.name.clone();
        match self.meet(arena, kind) {
            Some(
                Fault::Fail(TransferError::DeviceLost { loss })
                | Fault::FailInFence(TransferError::DeviceLost { loss }),
            ) => Err(AllocError::DeviceLost { arena: name(), loss: loss.map(|loss| loss.cause) }),
            Some(Fault::Fail(_) | Fault::FailInFence(_)) => {
                Err(AllocError::OutOfMemory { arena: name(), bytes })
            }
            Some(Fault::Short(less)) => make(less.min(bytes)),
            _ => make(bytes),
        }
    }

    fn freed(&self, arena: &ArenaDesc) {
        self.meet(arena, CallKind::Free);
    }

    fn remapped(
        &self,
        arena: &ArenaDesc,
        kind: CallKind,
        change: impl FnOnce() -> Result<MapReport, TransferError>,
    ) -> Result<MapReport, TransferError> {
        match self.meet(arena, kind) {
            Some(Fault::Fail(error) | Fault::FailInFence(error)) => Err(error),
            Some(Fault::Report(state)) => change().map(|report| MapReport { state, ..report }),
            _ => change(),
        }
    }

    fn moved<T: Piece>(&self, arena: &Arc<dyn Arena>, piece: T) -> Result<Fence, TransferError> {
        transfer(self.0.next(T::KIND), &arena.desc().name, T::KIND, |bytes| match bytes {
            Some(bytes) => {
                let bytes = bytes.min(piece.bytes());
                piece.cut(bytes).0.start(&**arena)
            }
            None => piece.start(&**arena),
        })
    }
}
