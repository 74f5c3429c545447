//! What the storages really hold, kept beside the machine and without asking it.
//!
//! For every byte the *fresh* set: whose storage holds the last committed contents. Kernels, copies and fills change it
//! by what they physically do; the machine's valid-set must always be a part of it (I-2). Arenas that share a storage
//! may see it late: until it is refreshed, a peer of the writer is *stale*.

use dml_core::state::{Alloc, BufferState, CopyKind, CopyOp, Initial};
use dml_core::{ArenaId, ArenaSet, Claim, Span};

/// One byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cell {
    /// Arenas that own a storage with the last committed contents.
    fresh: ArenaSet,
    /// Arenas that share a storage in which others wrote since they last looked.
    stale: ArenaSet,
    /// Whether the last committed contents are the zeros of the beginning.
    zeros: bool,
}

/// What every storage holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ghost(Vec<Cell>);

/// A copy under way, and of which of its bytes the source was fresh when it began.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Underway {
    pub(super) copy: CopyOp,
    fresh: Vec<bool>,
}

/// The arena that owns the storage of another.
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

    /// New storage holds anything but what it should.
    pub(super) fn allocated(&mut self, arena: ArenaId) {
        for cell in &mut self.0 {
            cell.fresh = cell.fresh.without(arena);
            cell.stale = cell.stale.without(arena);
        }
    }

    /// Who shares a storage from now on has not looked at it yet.
    pub(super) fn bound(&mut self, arena: ArenaId) {
        self.allocated(arena);
        self.0.iter_mut().for_each(|cell| cell.stale = cell.stale.with(arena));
    }

    /// Those who share a storage coherently see it as it is.
    pub(super) fn coherent(&mut self, group: ArenaSet) {
        self.0.iter_mut().for_each(|cell| cell.stale = cell.stale.minus(group));
    }

    /// What is left of a storage is nobody's.
    pub(super) fn lost(&mut self, arenas: ArenaSet) {
        self.0.iter_mut().for_each(|cell| cell.fresh = cell.fresh.minus(arenas));
    }

    /// A copy begins: the destination holds neither its old bytes nor the new ones.
    pub(super) fn started(&mut self, state: &BufferState, copy: CopyOp) -> Underway {
        let fresh = self.source(state, copy);
        if !matches!(copy.kind, CopyKind::Refresh { .. }) {
            let to = owner(state, copy.to);
            self.at(copy.span).iter_mut().for_each(|cell| cell.fresh = cell.fresh.without(to));
        }
        Underway { copy, fresh }
    }

    /// Of which bytes the copy would bring the last committed contents now.
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

    /// A copy has moved its bytes.
    pub(super) fn copied(&mut self, state: &BufferState, underway: &Underway) {
        let Underway { copy, fresh } = underway;
        let now = self.source(state, *copy);
        let (to, group) = (owner(state, copy.to), state.group(copy.to));
        let moves = !matches!(copy.kind, CopyKind::Refresh { .. });
        // Bytes that were read before their storage was lost have arrived.
        let lost = copy.from().is_some_and(|from| state.arena(from).is_lost());
        for ((cell, before), now) in self.at(copy.span).iter_mut().zip(fresh).zip(now) {
            if moves && *before && (now || lost) {
                cell.fresh = cell.fresh.with(to);
            }
            // What was moved into a storage is seen by who moved it; its peers have to look again.
            cell.stale = if moves { cell.stale.union(group) } else { cell.stale }.without(copy.to);
        }
    }

    /// A kernel has written, successfully or not. What it wrote is in its storage and nowhere else.
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

    /// An arena that the machine says is valid and that is not, with the byte.
    pub(super) fn contradiction(&self, state: &BufferState) -> Option<String> {
        // While a writer is at work nobody can say what its bytes are (I-2).
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

    /// A byte that a granted reader is about to read and that is not the last committed one.
    pub(super) fn unfit(&self, state: &BufferState, arena: ArenaId, claims: &[Claim]) -> Option<u64> {
        let owner = owner(state, arena);
        let reads = claims.iter().filter(|claim| claim.access.reads());
        reads.flat_map(|claim| claim.span.to_range()).find(|&at| {
            let cell = &self.0[at as usize];
            !cell.fresh.contains(owner) || cell.stale.contains(arena)
        })
    }
}
