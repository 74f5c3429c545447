//! An arena wrapped in hooks around its calls. Tests use it to watch, delay and break arenas.

use super::script::CallKind;
use dml_core::MapState;
use dml_core::internal::sync::Arc;
use dml_core::{
    AllocError, Arena, ArenaDesc, Backing, BlockRef, CopyIn, CopyOut, Fence, Fill, MapReport, MapRequest,
    NewBlock, TransferError, UnmapRequest,
};
use std::fmt;
use std::ops::Deref;

/// The hooks around the calls of an arena. By default, every hook passes its call on.
pub trait Around: fmt::Debug + Send + Sync + 'static {
    /// Runs before any call that core makes on storage.
    fn called(&self, kind: CallKind) {
        let _ = kind;
    }

    /// Runs around a call that makes storage of `bytes` bytes: [`CallKind::Alloc`], [`CallKind::Attach`] or
    /// [`CallKind::Bind`]. `make` makes the call; only an `Alloc` depends on the number of bytes passed to
    /// it.
    ///
    /// # Errors
    /// Those of the arena, or of the hook.
    fn stored<R>(
        &self,
        arena: &ArenaDesc,
        kind: CallKind,
        bytes: u64,
        make: impl FnOnce(u64) -> Result<R, AllocError>,
    ) -> Result<R, AllocError> {
        let _ = (arena, kind);
        make(bytes)
    }

    /// Runs before storage is freed.
    fn freed(&self, arena: &ArenaDesc) {
        let _ = arena;
    }

    /// Runs around a change of map state by [`CallKind::Map`] or [`CallKind::Unmap`].
    ///
    /// # Errors
    /// Those of the arena, or of the hook.
    fn remapped(
        &self,
        arena: &ArenaDesc,
        kind: CallKind,
        change: impl FnOnce() -> Result<MapReport, TransferError>,
    ) -> Result<MapReport, TransferError> {
        let _ = (arena, kind);
        change()
    }

    /// Runs around a transfer. The hook [starts](Piece::start) the piece, or parts of it, on the arena.
    ///
    /// # Errors
    /// Those of the arena, or of the hook.
    fn moved<T: Piece>(&self, arena: &Arc<dyn Arena>, piece: T) -> Result<Fence, TransferError> {
        piece.start(&**arena)
    }

    /// Returns the map state that core is told when the arena reports `found`.
    fn map_state(&self, found: Option<MapState>) -> Option<MapState> {
        found
    }

    /// Returns whether the hooks declare the device lost, even if the arena does not.
    fn is_lost(&self) -> bool {
        false
    }
}

/// A transfer of bytes of a block, which can be cut into two.
pub trait Piece: Sized + Send + 'static {
    /// The kind of call that starts the transfer.
    const KIND: CallKind;

    /// Returns the number of bytes that the transfer moves.
    fn bytes(&self) -> u64;

    /// Cuts the transfer after its first `at` bytes.
    ///
    /// # Panics
    /// When the transfer has fewer than `at` bytes.
    fn cut(self, at: u64) -> (Self, Self);

    /// Starts the transfer.
    ///
    /// # Errors
    /// Those of the arena.
    fn start(self, arena: &dyn Arena) -> Result<Fence, TransferError>;
}

macro_rules! piece {
    ($piece:ty, $kind:ident, $start:ident) => {
        impl Piece for $piece {
            const KIND: CallKind = CallKind::$kind;

            fn bytes(&self) -> u64 {
                self.len()
            }

            fn cut(self, at: u64) -> (Self, Self) {
                self.split_at(at)
            }

            fn start(self, arena: &dyn Arena) -> Result<Fence, TransferError> {
                arena.$start(self)
            }
        }
    };
}

piece!(CopyIn, CopyIn, copy_in);
piece!(CopyOut, CopyOut, copy_out);
piece!(Fill, Fill, fill);

/// An arena wrapped in hooks around its calls.
///
/// It dereferences to its hooks, so their methods can be called on it.
#[derive(Debug)]
pub struct Wrapped<A, H> {
    inner: Arc<A>,
    hooks: H,
}

impl<A: Arena, H: Around> Wrapped<A, H> {
    /// Wraps `arena` in `hooks`.
    #[must_use]
    pub fn around(arena: A, hooks: H) -> Self {
        Self { inner: Arc::new(arena), hooks }
    }

    /// Returns the wrapped arena.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.inner
    }

    fn moved<T: Piece>(&self, piece: T) -> Result<Fence, TransferError> {
        self.hooks.called(T::KIND);
        let inner: Arc<dyn Arena> = self.inner.clone();
        self.hooks.moved(&inner, piece)
    }
}

impl<A, H> Deref for Wrapped<A, H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.hooks
    }
}

impl<A: Arena, H: Around> Arena for Wrapped<A, H> {
    fn desc(&self) -> &ArenaDesc {
        self.inner.desc()
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        self.hooks.called(CallKind::Alloc);
        self.hooks.stored(self.desc(), CallKind::Alloc, len, |bytes| self.inner.alloc(bytes))
    }

    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        self.hooks.called(CallKind::Attach);
        self.hooks.stored(self.desc(), CallKind::Attach, storage.len(), |_| self.inner.attach(storage))
    }

    fn admit(&self, block: &BlockRef) -> Result<(), AllocError> {
        self.inner.admit(block)
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        self.hooks.called(CallKind::Bind);
        self.hooks.stored(self.desc(), CallKind::Bind, root.len(), |_| self.inner.bind(root))
    }

    fn free(&self, block: BlockRef) {
        self.hooks.called(CallKind::Free);
        self.hooks.freed(self.desc());
        self.inner.free(block);
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        self.hooks.called(CallKind::Map);
        self.hooks.remapped(self.desc(), CallKind::Map, || self.inner.map(request))
    }

    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.hooks.called(CallKind::Unmap);
        self.hooks.remapped(self.desc(), CallKind::Unmap, || self.inner.unmap(request))
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        self.hooks.map_state(self.inner.map_state(block))
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.moved(copy)
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.moved(copy)
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.moved(fill)
    }

    fn tail(&self) -> Result<Fence, TransferError> {
        self.inner.tail()
    }

    fn is_lost(&self) -> bool {
        self.hooks.is_lost() || self.inner.is_lost()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.inner.loss()
    }
}
