//! Submissions: kernels that follow each other on the stream of an arena.
//!
//! A submission is a grant whose kernel runs behind the kernels submitted before it through the same arena,
//! in the order in which they started. Its request therefore does not wait for them: it is granted beside
//! them, and reads what they will have written. All others wait until its grant has ended, as for any grant.
//! The caller ends the grants of one stream in the order of their kernels. When a kernel fails, it ends those
//! behind it as failed too.

use super::{BufferState, Requestor};
use crate::base::access::Claim;
use crate::base::id::ArenaId;
use crate::base::range::Span;
use smallvec::{SmallVec, smallvec};

/// Spans of one request.
pub(super) type Parts = SmallVec<[Span; 2]>;

impl BufferState {
    /// Returns the bytes that a request reads as the last commit left them, without those that a kernel on
    /// the stream it follows will have written.
    pub(super) fn read_as_committed(&self, claims: &[Claim], stream: Option<ArenaId>) -> Parts {
        let reading = claims.iter().filter(|claim| claim.access.reads()).map(|claim| claim.span);
        match stream {
            Some(stream) => reading.flat_map(|span| self.requestors.not_written_on(stream, span)).collect(),
            None => reading.collect(),
        }
    }
}

/// Removes from `parts` the bytes that an entry writes.
pub(super) fn without_written(parts: &mut Parts, entry: &Requestor) {
    for claim in entry.claims.iter().filter(|claim| claim.access.writes()) {
        let cut = |part: Span| -> Parts {
            let Some(common) = part.intersection(claim.span).filter(|common| !common.is_empty()) else {
                return smallvec![part];
            };
            let sides = [Span::new(part.start(), common.start()), Span::new(common.end(), part.end())];
            sides.into_iter().filter(|side| !side.is_empty()).collect()
        };
        *parts = parts.iter().flat_map(|part| cut(*part)).collect();
    }
}

#[cfg(test)]
mod tests;
