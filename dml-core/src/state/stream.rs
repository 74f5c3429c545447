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
use smallvec::SmallVec;

/// Spans of one request.
pub(super) type Parts = SmallVec<[Span; 2]>;

impl BufferState {
    /// Returns whether a kernel on a stream writes any byte of a span.
    pub(crate) fn streams_write(&self, span: Span) -> bool {
        self.requestors.streams_write(span)
    }

    /// Returns the bytes that a request reads as the last commit left them, without those that a kernel on
    /// the stream it follows will have written.
    pub(super) fn read_as_committed(&self, claims: &[Claim], stream: Option<ArenaId>) -> Parts {
        let mut parts = Parts::new();
        for claim in claims.iter().filter(|claim| claim.access.reads()) {
            match stream {
                Some(stream) => self.requestors.add_not_written_on(stream, claim.span, &mut parts),
                None => parts.push(claim.span),
            }
        }
        parts
    }
}

/// Removes from the parts after the first `kept` the bytes that an entry writes.
pub(super) fn cut_written(parts: &mut Parts, kept: usize, entry: &Requestor) {
    for claim in entry.claims.iter().filter(|claim| claim.access.writes()) {
        let mut place = kept;
        while let Some(part) = parts.get(place).copied() {
            let common = part.intersection(claim.span).filter(|common| !common.is_empty());
            let Some(common) = common else {
                place += 1;
                continue;
            };
            let sides = [Span::new(part.start(), common.start()), Span::new(common.end(), part.end())];
            let mut sides = sides.into_iter().filter(|side| !side.is_empty());
            match sides.next() {
                Some(side) => parts[place] = side,
                None => {
                    parts.remove(place);
                    continue;
                }
            }
            place += 1;
            if let Some(side) = sides.next() {
                parts.insert(place, side);
                place += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
