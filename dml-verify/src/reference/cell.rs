//! What the model knows of one byte: what it holds, and which arenas hold that.
//!
//! A user cannot tell, for example, which arenas a copy passed on its way. A [`Cell`] keeps two bounds for
//! that: the arenas that hold the byte for sure, and those that perhaps do. The answers narrow the bounds.

use dml_core::{ArenaId, ArenaSet};

/// How sure something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sure {
    No,
    Perhaps,
    Yes,
}

/// What a request to read a byte finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Readable,
    /// Either readable, or poisoned and lost: the answers have not shown which.
    Unsure,
    Unwritten,
    /// Poisoned; the value says whether the contents can be restored.
    Poisoned(Sure),
}

/// What a byte holds, or what it held before a writer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    Unwritten,
    Zeros,
    /// Written by the commit of this number; number zero wrote zeros.
    Version(u64),
}

/// One byte of a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    contents: Contents,
    is_poisoned: bool,
    /// The arenas that hold the contents for sure.
    sure: ArenaSet,
    perhaps: ArenaSet,
    /// Whether any arena still holds the contents of a written byte.
    kept: Sure,
}

impl Cell {
    /// Makes a byte with `contents` that the arenas in `sure` hold.
    pub(super) fn new(contents: Contents, sure: ArenaSet) -> Self {
        let is_lost = matches!(contents, Contents::Version(_)) && sure.is_empty();
        let kept = if is_lost { Sure::No } else { Sure::Yes };
        Self { contents, is_poisoned: false, sure, perhaps: sure, kept }
    }

    pub(super) fn standing(&self) -> Standing {
        match (self.contents, self.is_poisoned, self.kept) {
            (Contents::Unwritten, false, _) => Standing::Unwritten,
            (Contents::Unwritten, true, _) | (Contents::Version(_), _, Sure::No) => {
                Standing::Poisoned(Sure::No)
            }
            (Contents::Zeros, true, _) => Standing::Poisoned(Sure::Yes),
            (Contents::Version(_), true, kept) => Standing::Poisoned(kept),
            (Contents::Version(_), false, Sure::Perhaps) => Standing::Unsure,
            (Contents::Zeros, false, _) | (Contents::Version(_), false, Sure::Yes) => Standing::Readable,
        }
    }

    /// Returns the version that the byte holds: zero for zeros, `None` for an unwritten byte.
    pub(super) fn version(&self) -> Option<u64> {
        match self.contents {
            Contents::Unwritten => None,
            Contents::Zeros => Some(0),
            Contents::Version(version) => Some(version),
        }
    }

    pub(super) fn is_sure_in(&self, arena: ArenaId) -> bool {
        self.sure.contains(arena)
    }

    /// Returns whether freeing an arena could lose the contents.
    pub(super) fn may_be_last_in(&self, arena: ArenaId) -> bool {
        self.is_written()
            && self.kept != Sure::No
            && self.sure.without(arena).is_empty()
            && self.perhaps.contains(arena)
    }

    /// Returns whether freeing an arena loses the contents for certain.
    pub(super) fn is_last_in(&self, arena: ArenaId) -> bool {
        self.is_written() && self.kept == Sure::Yes && self.perhaps == ArenaSet::of(arena)
    }

    fn is_written(&self) -> bool {
        matches!(self.contents, Contents::Version(_))
    }

    /// Notes that an arena holds the byte now.
    pub(super) fn brought(&mut self, arena: ArenaId) {
        self.sure = self.sure.with(arena);
        self.perhaps = self.perhaps.with(arena);
        self.kept = Sure::Yes;
    }

    /// Notes that the byte may have come to more arenas: to those that `wider` makes of the arenas that
    /// perhaps hold it.
    pub(super) fn widened(&mut self, wider: impl FnOnce(ArenaSet) -> ArenaSet) {
        if self.kept != Sure::No {
            self.perhaps = wider(self.perhaps);
        }
    }

    /// Notes whether the contents are kept or lost, where that was not known.
    pub(super) fn know(&mut self, is_kept: bool) {
        if self.is_written() && self.kept == Sure::Perhaps {
            self.kept = if is_kept { Sure::Yes } else { Sure::No };
        }
    }

    /// Notes the commit of a writer, and in which arenas it is valid. `written` is the version that its
    /// kernel wrote, if the kernel wrote the byte.
    pub(super) fn committed(&mut self, written: Option<u64>, sure: ArenaSet, perhaps: ArenaSet) {
        let contents = match (written, self.contents) {
            (Some(version), _) => Contents::Version(version),
            // Zeros that a kernel left unchanged count as written from now on.
            (None, Contents::Zeros) => Contents::Version(0),
            (None, contents) => contents,
        };
        *self = Self { contents, is_poisoned: false, sure, perhaps, kept: Sure::Yes };
    }

    /// Notes that a writer failed in an arena. Its kin may hold the byte no more.
    pub(super) fn poisoned(&mut self, arena: ArenaId, kin: ArenaSet) {
        self.is_poisoned = true;
        self.shrink(kin, ArenaSet::of(arena));
    }

    /// Notes that a poisoned byte has its contents back.
    pub(super) fn restored(&mut self) {
        self.is_poisoned = false;
        if self.is_written() {
            self.kept = Sure::Yes;
        }
    }

    /// Notes that the storage of an arena was freed.
    pub(super) fn freed(&mut self, arena: ArenaId) {
        self.sure = self.sure.without(arena);
        self.perhaps = self.perhaps.without(arena);
    }

    /// Notes that the device of some arenas was lost. The kin of all lost arenas may hold the byte no more.
    pub(super) fn lost(&mut self, arenas: ArenaSet, kin: ArenaSet) {
        let kept = self.kept;
        self.shrink(kin, arenas);
        if !self.is_written() {
            // Lost zeros can be filled in again, so the byte itself is not lost.
            self.kept = kept;
        }
    }

    /// Removes `gone` from the arenas that hold the byte. Those in `not_sure` hold it no more for sure.
    fn shrink(&mut self, not_sure: ArenaSet, gone: ArenaSet) {
        self.sure = self.sure.minus(not_sure).minus(gone);
        self.perhaps = self.perhaps.minus(gone);
        self.kept = match self.kept {
            _ if !self.sure.is_empty() => Sure::Yes,
            _ if self.perhaps.is_empty() => Sure::No,
            Sure::Yes => Sure::Perhaps,
            kept => kept,
        };
    }
}
