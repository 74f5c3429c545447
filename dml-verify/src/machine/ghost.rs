//! What the storages really hold, tracked beside the machine and independently of it.
//!
//! For every byte the ghost keeps the *fresh* set: the arenas whose storage holds the last committed
//! contents. Kernels, copies and fills change this set by what they physically do. The machine's valid-set
//! must always be a subset of it (I-2). Arenas that share a storage may see a write late: a peer of the
//! writer is *stale* until it is refreshed.

use dml_core::internal::state::{Alloc, BufferState, CopyKind, CopyOp, Initial};
use dml_core::{ArenaId, ArenaSet, Claim, Span};

/// What the ghost knows about one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cell {
    /// The arenas that own a storage with the last committed contents.
    fresh: ArenaSet,
    /// The arenas that share a storage and have not seen its latest writes.
    stale: ArenaSet,
    /// Whether the last committed contents are the initial zeros.
    zeros: bool,
}

/// The ghost of one buffer, byte by byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ghost(Vec<Cell>);

/// A copy under way. `fresh` tells for each of its bytes whether the source was fresh when the copy began.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Underway {
    pub(super) copy: CopyOp,
    fresh: Vec<bool>,
}

/// Returns the arena that owns the storage which `arena` uses.
fn owner(state: &BufferState, arena: ArenaId) -> ArenaId {
    match state.arena(arena).alloc {
        Alloc::Bound { root, .. } => root,
        _ => arena,
    }
}

impl Ghost {
    pub(super) fn new(len: u64, initial: Initial) -> Self {
        let fresh = match initial {
            Initial::External(arena) => ArenaSet::of(arena),
            Initial::Undefined | Initial::Zeroed => ArenaSet::EMPTY,
        };
        let zeros = initial == Initial::Zeroed;
        Self(vec![Cell { fresh, stale: ArenaSet::EMPTY, zeros }; len as usize])
    }

    fn at(&mut self, span: Span) -> &mut [Cell] {
        &mut self.0[span.start() as usize..span.end() as usize]
    }

    /// Notes that an arena's storage is new or freed: it holds no committed bytes.
    pub(super) fn allocated(&mut self, arena: ArenaId) {
        for cell in &mut self.0 {
            cell.fresh = cell.fresh.without(arena);
            cell.stale = cell.stale.without(arena);
        }
    }

    /// Notes that an arena now shares a storage, and has not seen its contents yet.
    pub(super) fn bound(&mut self, arena: ArenaId) {
        self.allocated(arena);
        self.0.iter_mut().for_each(|cell| cell.stale = cell.stale.with(arena));
    }

    /// Notes that these arenas share coherently: each sees the storage as it is.
    pub(super) fn coherent(&mut self, group: ArenaSet) {
        self.0.iter_mut().for_each(|cell| cell.stale = cell.stale.minus(group));
    }

    /// Notes that these arenas are lost: their storage holds no committed bytes.
    pub(super) fn lost(&mut self, arenas: ArenaSet) {
        self.0.iter_mut().for_each(|cell| cell.fresh = cell.fresh.minus(arenas));
    }

    /// Begins a copy: the destination holds neither its old bytes nor the new ones.
    pub(super) fn started(&mut self, state: &BufferState, copy: CopyOp) -> Underway {
        let fresh = self.source(state, copy);
        if !matches!(copy.kind, CopyKind::Refresh { .. }) {
            let to = owner(state, copy.to);
            self.at(copy.span).iter_mut().for_each(|cell| cell.fresh = cell.fresh.without(to));
        }
        Underway { copy, fresh }
    }

    /// Returns, for each byte of the copy, whether its source now holds the last committed contents.
    fn source(&mut self, state: &BufferState, copy: CopyOp) -> Vec<bool> {
        let from = match copy.kind {
            CopyKind::Bytes { from, .. } | CopyKind::Refresh { from } => Some((from, owner(state, from))),
            CopyKind::Fill => None,
        };
        let brings = |cell: &mut Cell| match from {
            Some((from, owner)) => cell.fresh.contains(owner) && !cell.stale.contains(from),
            None => cell.zeros,
        };
        self.at(copy.span).iter_mut().map(brings).collect()
    }

    /// Ends a copy that has moved its bytes.
    pub(super) fn copied(&mut self, state: &BufferState, underway: &Underway) {
        let Underway { copy, fresh } = underway;
        let now = self.source(state, *copy);
        let (to, group) = (owner(state, copy.to), state.group(copy.to));
        let moves = !matches!(copy.kind, CopyKind::Refresh { .. });
        // Bytes that were read before their storage was lost have still arrived.
        let lost = copy.from().is_some_and(|from| state.arena(from).is_lost());
        for ((cell, before), now) in self.at(copy.span).iter_mut().zip(fresh).zip(now) {
            if moves && *before && (now || lost) {
                cell.fresh = cell.fresh.with(to);
            }
            // The arena that moved bytes into a storage sees them; its peers must be refreshed.
            cell.stale = if moves { cell.stale.union(group) } else { cell.stale }.without(copy.to);
        }
    }

    /// Notes what a kernel wrote, successfully or not. The new bytes are in its storage and nowhere else.
    pub(super) fn wrote(&mut self, state: &BufferState, arena: ArenaId, claims: &[Claim], done: bool) {
        let (owner, group) = (owner(state, arena), state.group(arena));
        for claim in claims.iter().filter(|claim| claim.access.writes()) {
            for cell in self.at(claim.span) {
                if done {
                    *cell = Cell { fresh: ArenaSet::of(owner), stale: cell.stale, zeros: false };
                } else {
                    cell.fresh = cell.fresh.without(owner);
                }
                cell.stale = cell.stale.union(group).without(arena);
            }
        }
    }

    /// Returns a message about a byte that the machine says is valid in an arena where it is not.
    pub(super) fn contradiction(&self, state: &BufferState) -> Option<String> {
        // While a writer runs, its bytes are undetermined (I-2).
        let written = |span: Span| {
            state.requestors().iter().any(|entry| {
                entry.claims.iter().any(|claim| claim.access.writes() && claim.span.overlaps(span))
            })
        };
        for (span, content) in state.segments().iter().filter(|(span, _)| !written(*span)) {
            for (at, cell) in span.to_range().zip(&self.0[span.start() as usize..]) {
                for arena in content.valid.iter() {
                    if !cell.fresh.contains(owner(state, arena)) {
                        return Some(format!(
                            "I-2: byte {at} is valid in {arena}, which holds something else"
                        ));
                    }
                    if cell.stale.contains(arena) {
                        return Some(format!(
                            "I-2: byte {at} is valid in {arena}, which has not been refreshed"
                        ));
                    }
                }
            }
        }
        None
    }

    /// Returns a byte that a granted reader is about to read and that is not the last committed one.
    pub(super) fn unfit(&self, state: &BufferState, arena: ArenaId, claims: &[Claim]) -> Option<u64> {
        let owner = owner(state, arena);
        let reads = claims.iter().filter(|claim| claim.access.reads());
        reads.flat_map(|claim| claim.span.to_range()).find(|&at| {
            let cell = &self.0[at as usize];
            !cell.fresh.contains(owner) || cell.stale.contains(arena)
        })
    }
}
