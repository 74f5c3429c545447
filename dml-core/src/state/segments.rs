//! The segments of a buffer: an interval map over `[0, len)` that says where each byte is valid.
//!
//! The segments cover the buffer exactly, in order, and none is empty (I-12). Neighbours of equal content
//! form one segment. Neighbours of different content are never merged: the intersection of their valid-sets
//! could be empty, and data would be lost.

use crate::base::id::{ArenaId, ArenaSet};
use crate::base::range::Span;
use rangemap::RangeMap;
use smallvec::SmallVec;

/// What is left of bytes after their writer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Remains {
    /// Nothing is left. The bytes become usable only by overwriting them.
    Lost,
    /// The valid-set still holds the last committed contents.
    Committed,
    /// The bytes still count as the zeros that the buffer began with.
    Zeros,
}

/// The kind of contents that a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// The bytes were never written. They have no contents and no valid arena.
    Undefined,
    /// The bytes are zeros since creation. Any arena can be filled with them, even if no arena is valid.
    Zeroed,
    /// The valid-set holds committed contents.
    Defined,
    /// A writer failed on the segment.
    Poisoned(Remains),
}

/// The content of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Content {
    /// The arenas that hold the latest contents.
    pub valid: ArenaSet,
    /// The kind of these contents.
    pub status: Status,
}

impl Content {
    /// Returns whether the bytes can be read in `arena` as they are.
    pub(super) fn is_readable_in(&self, arena: ArenaId) -> bool {
        self.valid.contains(arena) && matches!(self.status, Status::Zeroed | Status::Defined)
    }
}

/// The segments of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Segments {
    len: u64,
    map: Map,
}

/// The content by byte. Most buffers have one segment, and only the others pay for a tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Map {
    One(Content),
    Many(Box<RangeMap<u64, Content>>),
}

impl Segments {
    /// Creates one segment of `len` bytes, or none if `len` is zero.
    #[must_use]
    pub fn new(len: u64, content: Content) -> Self {
        Self { len, map: Map::One(content) }
    }

    /// Returns the size of the buffer in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of segments.
    #[must_use]
    pub fn count(&self) -> usize {
        match &self.map {
            Map::One(_) => usize::from(self.len > 0),
            Map::Many(map) => map.len(),
        }
    }

    /// Returns all segments in order.
    pub fn iter(&self) -> impl Iterator<Item = (Span, Content)> + '_ {
        self.in_span(Span::new(0, self.len))
    }

    /// Returns the content of the whole buffer, if it is the same everywhere.
    pub(super) fn whole(&self) -> Option<Content> {
        match self.map {
            Map::One(content) => Some(content),
            Map::Many(_) => None,
        }
    }

    /// Returns whether all bytes of `span` can be read in `arena` as they are.
    #[inline(never)]
    pub(super) fn are_readable_in(&self, span: Span, arena: ArenaId) -> bool {
        match &self.map {
            Map::One(content) => content.is_readable_in(arena),
            Map::Many(map) => {
                map.overlapping(span.to_range()).all(|(_, content)| content.is_readable_in(arena))
            }
        }
    }

    /// Returns the parts of segments that lie in `span`, in order.
    ///
    /// # Complexity
    /// O(log n) to the first part, O(1) from each part to the next, for n segments.
    pub fn in_span(&self, span: Span) -> impl Iterator<Item = (Span, Content)> + '_ {
        let (one, many) = match &self.map {
            Map::One(content) => (Some((span, *content)).filter(|_| !span.is_empty()), None),
            Map::Many(map) if span.is_empty() => {
                let _ = map;
                (None, None)
            }
            Map::Many(map) => (None, Some(map.overlapping(span.to_range()))),
        };
        one.into_iter().chain(many.into_iter().flatten().filter_map(move |(range, content)| {
            Span::new(range.start, range.end).intersection(span).map(|part| (part, *content))
        }))
    }

    /// Replaces the content of all bytes of `span`.
    #[inline]
    pub(super) fn set(&mut self, span: Span, content: Content) {
        match &mut self.map {
            Map::One(whole) if *whole == content || span == Span::new(0, self.len) => *whole = content,
            _ => self.update(span, |_| content),
        }
    }

    /// Replaces the content of every part of `span` with the result of `change`.
    ///
    /// # Complexity
    /// O(k log n), where k of the n segments overlap `span`.
    pub fn update(&mut self, span: Span, mut change: impl FnMut(Content) -> Content) {
        if span.is_empty() {
            return;
        }
        match &mut self.map {
            Map::One(content) => {
                let new = change(*content);
                if new == *content {
                    return;
                }
                if span == Span::new(0, self.len) {
                    *content = new;
                } else {
                    let mut map = RangeMap::new();
                    map.insert(0..self.len, *content);
                    map.insert(span.to_range(), new);
                    self.map = Map::Many(Box::new(map));
                }
            }
            Map::Many(_) => {
                let parts: SmallVec<[(Span, Content); 4]> = self.in_span(span).collect();
                let Map::Many(map) = &mut self.map else { unreachable!("just matched") };
                for (part, content) in parts {
                    let new = change(content);
                    if new != content {
                        map.insert(part.to_range(), new);
                    }
                }
                if map.len() == 1 {
                    let content = *map.iter().next().expect("there is one").1;
                    self.map = Map::One(content);
                }
            }
        }
    }
}

#[cfg(test)]
impl Segments {
    /// Removes the segments of some bytes, for the test of the invariant that forbids such gaps.
    pub(super) fn punch(&mut self, span: Span) {
        let mut map: RangeMap<u64, Content> =
            self.iter().map(|(part, content)| (part.to_range(), content)).collect();
        map.remove(span.to_range());
        self.map = Map::Many(Box::new(map));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(arena: u8) -> Content {
        Content { valid: ArenaSet::of(ArenaId(arena)), status: Status::Defined }
    }

    #[test]
    fn i12_no_bytes_no_segments() {
        let segments = Segments::new(0, content(0));
        assert_eq!((segments.count(), segments.iter().count()), (0, 0));
    }

    #[test]
    fn segments_are_counted_and_an_empty_span_has_none() {
        let mut segments = Segments::new(10, content(0));
        assert_eq!((segments.len(), segments.is_empty(), segments.count()), (10, false, 1));
        segments.update(Span::new(3, 6), |_| content(1));
        assert_eq!((segments.count(), segments.iter().count()), (3, 3));
        for at in [0, 3, 4, 10] {
            assert_eq!(segments.in_span(Span::new(at, at)).count(), 0);
        }
    }

    #[test]
    fn equal_neighbours_become_one_again() {
        let mut segments = Segments::new(10, content(0));
        segments.update(Span::new(3, 6), |_| content(1));
        assert_eq!(segments.count(), 3);
        segments.update(Span::new(3, 6), |_| content(0));
        assert_eq!(segments, Segments::new(10, content(0)));
    }

    proptest! {
        #[test]
        fn i12_segments_partition_the_buffer_and_hold_what_was_put_there(
            len in 1u64..40,
            edits in prop::collection::vec((0u64..40, 0u64..40, 0u8..3), 0..30),
        ) {
            let mut segments = Segments::new(len, content(9));
            let mut model = vec![9u8; len as usize];
            for (a, b, arena) in edits {
                let (start, end) = (a.min(b).min(len), a.max(b).min(len));
                segments.update(Span::new(start, end), |_| content(arena));
                model[start as usize..end as usize].fill(arena);
                let mut next = 0;
                let mut last = None;
                for (span, value) in segments.iter() {
                    prop_assert_eq!(span.start(), next);
                    prop_assert!(!span.is_empty());
                    prop_assert_ne!(last, Some(value));
                    for byte in span.to_range() {
                        prop_assert_eq!(value, content(model[byte as usize]));
                    }
                    next = span.end();
                    last = Some(value);
                }
                prop_assert_eq!(next, len);
            }
        }
    }
}
