//! Accesses and claims: what a kernel does with the bytes it requests.

use crate::base::range::Span;
use smallvec::SmallVec;
use std::ops::Deref;

/// How a kernel uses a range of a buffer.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.3 (access types).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
// A word, because a claim with a smaller field is slow to move.
#[repr(usize)]
pub enum Access {
    /// The kernel reads the latest contents and changes nothing.
    ReadOnly,
    /// The kernel overwrites every byte of the range and reads none, so nothing is copied in.
    WriteInvalidate,
    /// The kernel reads the latest contents and may change them.
    ReadWrite,
}

/// All accesses, in the order of their discriminants.
const ACCESSES: [Access; 3] = [Access::ReadOnly, Access::WriteInvalidate, Access::ReadWrite];

impl Access {
    /// Returns whether the latest contents must be present when the access is granted.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::ReadOnly | Self::ReadWrite)
    }

    /// Returns whether a successful release commits new contents.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::WriteInvalidate | Self::ReadWrite)
    }

    /// Returns the access that serves both, for bytes that one kernel names twice.
    ///
    /// Overwriting bytes that are also read needs the old bytes, so `ReadOnly` with `WriteInvalidate` is
    /// `ReadWrite`.
    #[must_use]
    pub const fn merge(self, other: Self) -> Self {
        match (self, other) {
            (Self::ReadOnly, Self::ReadOnly) => Self::ReadOnly,
            (Self::WriteInvalidate, Self::WriteInvalidate) => Self::WriteInvalidate,
            _ => Self::ReadWrite,
        }
    }
}

/// One range of a buffer together with its access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// The bytes, counted from the start of the buffer.
    pub span: Span,
    /// The access to these bytes.
    pub access: Access,
}

impl Claim {
    /// Returns whether two kernels with these claims would conflict.
    #[must_use]
    pub fn conflicts(&self, other: &Self) -> bool {
        (self.access.writes() || other.access.writes()) && self.span.overlaps(other.span)
    }
}

/// The claims of one request on one buffer: sorted, disjoint and non-empty, and neighbours have different
/// access.
#[derive(Clone, Default)]
pub struct Claims(List);

/// Most requests claim one range.
#[derive(Clone, Default)]
enum List {
    #[default]
    None,
    One(Claim),
    Many(Box<[Claim]>),
}

impl Claims {
    /// Brings claims into canonical form. Each byte has the merged access of all claims that name it,
    /// neighbours of equal access are joined, and empty ranges are left out.
    ///
    /// # Complexity
    /// O(n log n).
    #[must_use]
    pub fn new(claims: impl IntoIterator<Item = Claim>) -> Self {
        let mut claims: SmallVec<[Claim; 4]> =
            claims.into_iter().filter(|claim| !claim.span.is_empty()).collect();
        if claims.len() < 2 {
            return Self::canonical(&claims);
        }
        claims.sort_unstable();
        claims.dedup();
        if claims.windows(2).all(|pair| pair[0].span.end() < pair[1].span.start()) {
            return Self::canonical(&claims);
        }
        // Each cut is a start or an end of a claim. `open` counts, per access, the claims that cover the
        // bytes between two cuts.
        let ends = |claim: &Claim| {
            [(claim.span.start(), claim.access, true), (claim.span.end(), claim.access, false)]
        };
        let mut cuts: Vec<(u64, Access, bool)> = claims.iter().flat_map(ends).collect();
        cuts.sort_unstable_by_key(|&(at, ..)| at);
        let mut merged: SmallVec<[Claim; 4]> = SmallVec::new();
        let (mut open, mut from) = ([0_usize; ACCESSES.len()], 0);
        for (at, access, begins) in cuts {
            if from < at {
                let named = ACCESSES.into_iter().filter(|&access| open[access as usize] > 0);
                match (named.reduce(Access::merge), merged.last_mut()) {
                    (None, _) => {}
                    (Some(access), Some(last)) if last.access == access && last.span.end() == from => {
                        last.span = Span::new(last.span.start(), at);
                    }
                    (Some(access), _) => merged.push(Claim { span: Span::new(from, at), access }),
                }
                from = at;
            }
            let count = &mut open[access as usize];
            *count = if begins { *count + 1 } else { *count - 1 };
        }
        Self::canonical(&merged)
    }

    /// Returns the claims of a request for one range.
    #[must_use]
    #[inline]
    pub fn of(claim: Claim) -> Self {
        Self(if claim.span.is_empty() { List::None } else { List::One(claim) })
    }

    fn canonical(claims: &[Claim]) -> Self {
        Self(match claims {
            [] => List::None,
            [claim] => List::One(*claim),
            _ => List::Many(claims.into()),
        })
    }

    /// Returns the claims of one range, which is not empty.
    #[inline]
    pub(crate) fn one(claim: Claim) -> Self {
        Self(List::One(claim))
    }

    /// Returns the claim, if there is only one.
    #[inline]
    pub(crate) fn only(&self) -> Option<Claim> {
        match self.0 {
            List::One(claim) => Some(claim),
            List::None | List::Many(_) => None,
        }
    }

    /// Returns the claims that share a byte with `span`.
    ///
    /// # Complexity
    /// O(log n).
    #[must_use]
    pub fn touching(&self, span: Span) -> &[Claim] {
        if span.is_empty() {
            return &[];
        }
        let claims = &self[self.partition_point(|claim| claim.span.end() <= span.start())..];
        &claims[..claims.partition_point(|claim| claim.span.start() < span.end())]
    }

    /// Returns the pairs of one of these claims and one of `others` that share a byte, in order.
    ///
    /// # Complexity
    /// O(n log m) for n claims in the shorter list and m in the longer one.
    pub fn meeting<'a>(&'a self, others: &'a Self) -> impl Iterator<Item = (&'a Claim, &'a Claim)> {
        let is_longer = self.len() > others.len();
        let (few, many) = if is_longer { (others, self) } else { (self, others) };
        few.iter().flat_map(move |one| {
            let pair = move |other| if is_longer { (other, one) } else { (one, other) };
            many.touching(one.span).iter().map(pair)
        })
    }

    /// Returns whether one of these claims conflicts with one of `others`.
    ///
    /// # Complexity
    /// As [`meeting`](Self::meeting).
    #[must_use]
    pub fn conflict(&self, others: &Self) -> bool {
        self.meeting(others).any(|(one, other)| one.conflicts(other))
    }

    /// Returns claims to read the same bytes.
    #[must_use]
    pub fn reading(&self) -> Self {
        Self::new(self.iter().map(|claim| Claim { access: Access::ReadOnly, ..*claim }))
    }
}

impl std::fmt::Debug for Claims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Claims").field(&&**self).finish()
    }
}

impl PartialEq for Claims {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Claims {}

impl std::hash::Hash for Claims {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl Deref for Claims {
    type Target = [Claim];

    #[inline]
    fn deref(&self) -> &[Claim] {
        match &self.0 {
            List::None => &[],
            List::One(claim) => std::slice::from_ref(claim),
            List::Many(claims) => claims,
        }
    }
}

impl<'a> IntoIterator for &'a Claims {
    type Item = &'a Claim;
    type IntoIter = std::slice::Iter<'a, Claim>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(start: u64, end: u64, access: Access) -> Claim {
        Claim { span: Span::new(start, end), access }
    }

    #[test]
    fn overwriting_what_is_also_read_becomes_read_write() {
        use Access::{ReadOnly, ReadWrite, WriteInvalidate};
        let merged =
            Claims::new([claim(0, 10, ReadOnly), claim(5, 15, WriteInvalidate), claim(20, 20, ReadOnly)]);
        assert_eq!(
            merged[..],
            [claim(0, 5, ReadOnly), claim(5, 10, ReadWrite), claim(10, 15, WriteInvalidate)]
        );
    }

    #[test]
    fn claims_are_found_by_their_bytes() {
        use Access::{ReadOnly, ReadWrite};
        let held = Claims::new([claim(0, 4, ReadOnly), claim(4, 6, ReadWrite), claim(9, 12, ReadOnly)]);
        let found = |start, end| held.touching(Span::new(start, end)).len();
        assert_eq!([found(0, 1), found(3, 5), found(6, 9), found(5, 10), found(12, 99)], [1, 2, 0, 2, 0]);
        assert_eq!([found(0, 0), found(2, 2), found(4, 4)], [0, 0, 0]);
        let asked = Claims::new([claim(1, 2, ReadOnly), claim(3, 10, ReadOnly)]);
        for (ours, theirs) in [(&held, &asked), (&asked, &held)] {
            let pairs: Vec<_> = ours.meeting(theirs).map(|(ours, theirs)| (*ours, *theirs)).collect();
            let all = ours.iter().flat_map(|one| theirs.iter().map(move |other| (*one, *other)));
            let want: Vec<_> = all.filter(|(one, other)| one.span.overlaps(other.span)).collect();
            assert_eq!(pairs, want);
        }
    }

    fn any_access() -> impl Strategy<Value = Access> {
        prop_oneof![Just(Access::ReadOnly), Just(Access::WriteInvalidate), Just(Access::ReadWrite)]
    }

    proptest! {
        #[test]
        fn every_byte_keeps_the_merge_of_its_claims(
            raw in prop::collection::vec((0u64..30, 0u64..12, any_access()), 0..8),
        ) {
            let claims: Vec<Claim> = raw.iter().map(|&(s, n, a)| claim(s, s + n, a)).collect();
            let merged = Claims::new(claims.iter().copied());
            for byte in 0..48 {
                let at = |c: &&Claim| c.span.start() <= byte && byte < c.span.end();
                let want = claims.iter().filter(at).map(|c| c.access).reduce(Access::merge);
                let got: Vec<_> = merged.iter().filter(at).map(|c| c.access).collect();
                prop_assert_eq!(got, want.into_iter().collect::<Vec<_>>());
            }
            for pair in merged.windows(2) {
                prop_assert!(pair[0].span.end() <= pair[1].span.start());
                prop_assert!(pair[0].access != pair[1].access || pair[0].span.end() < pair[1].span.start());
            }
        }
    }
}
