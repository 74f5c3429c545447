//! What a kernel does with the bytes it asks for.

use crate::range::Span;
use smallvec::SmallVec;

/// How a kernel uses a range of a buffer.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.3 (access types).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// The kernel reads the latest contents and changes nothing.
    ReadOnly,
    /// The kernel overwrites every byte of the range and reads none: nothing is copied in.
    WriteInvalidate,
    /// The kernel reads the latest contents and may change them.
    ReadWrite,
}

/// Every access.
const ACCESSES: [Access; 3] = [Access::ReadOnly, Access::WriteInvalidate, Access::ReadWrite];

impl Access {
    /// Whether the latest contents must be there when the access is granted.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::ReadOnly | Self::ReadWrite)
    }

    /// Whether a successful release commits new contents.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::WriteInvalidate | Self::ReadWrite)
    }

    /// The one access that serves both, for bytes that one kernel names twice.
    ///
    /// Reading what is also overwritten needs the old bytes, so `ReadOnly` with `WriteInvalidate` is `ReadWrite`.
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
    /// The bytes.
    pub span: Span,
    /// What is done with them.
    pub access: Access,
}

impl Claim {
    /// Whether two kernels holding these claims would disturb each other.
    #[must_use]
    pub fn conflicts(&self, other: &Self) -> bool {
        (self.access.writes() || other.access.writes()) && self.span.overlaps(other.span)
    }
}

/// The claims among `claims`, [normalised](normalise), that share a byte with `span`.
///
/// # Complexity
/// O(log n).
#[must_use]
pub(crate) fn touching(claims: &[Claim], span: Span) -> &[Claim] {
    if span.is_empty() {
        return &[];
    }
    let claims = &claims[claims.partition_point(|claim| claim.span.end() <= span.start())..];
    &claims[..claims.partition_point(|claim| claim.span.start() < span.end())]
}

/// The pairs of a claim of `ours` and one of `theirs` that share a byte, in order. Both lists are [normalised](normalise).
///
/// # Complexity
/// O(n log m) for n claims in the shorter list and m in the longer one.
pub(crate) fn meeting<'a>(
    ours: &'a [Claim],
    theirs: &'a [Claim],
) -> impl Iterator<Item = (&'a Claim, &'a Claim)> {
    let is_longer = ours.len() > theirs.len();
    let (few, many) = if is_longer { (theirs, ours) } else { (ours, theirs) };
    few.iter().flat_map(move |one| {
        let pair = move |other| if is_longer { (other, one) } else { (one, other) };
        touching(many, one.span).iter().map(pair)
    })
}

/// The claims of one request on one buffer: sorted, disjoint, non-empty, merged ([`normalise`]).
pub type Claims = SmallVec<[Claim; 1]>;

/// Brings claims into canonical form: empty ranges dropped, sorted, each byte named once with the merged access of
/// all claims that name it, and neighbours of equal access joined.
///
/// # Complexity
/// O(n log n).
#[must_use]
pub fn normalise(claims: impl IntoIterator<Item = Claim>) -> Claims {
    let mut claims: Claims = claims.into_iter().filter(|c| !c.span.is_empty()).collect();
    if claims.len() < 2 {
        return claims;
    }
    claims.sort_unstable();
    if claims.windows(2).all(|pair| pair[0].span.end() < pair[1].span.start()) {
        return claims;
    }
    // Where a claim begins or ends, and how many of each access name the bytes between two such places.
    let ends =
        |claim: &Claim| [(claim.span.start(), claim.access, true), (claim.span.end(), claim.access, false)];
    let mut cuts: Vec<(u64, Access, bool)> = claims.iter().flat_map(ends).collect();
    cuts.sort_unstable_by_key(|&(at, ..)| at);
    let (mut merged, mut open, mut from) = (Claims::new(), [0_usize; ACCESSES.len()], 0);
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
    merged
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
            normalise([claim(0, 10, ReadOnly), claim(5, 15, WriteInvalidate), claim(20, 20, ReadOnly)]);
        assert_eq!(
            merged.as_slice(),
            [claim(0, 5, ReadOnly), claim(5, 10, ReadWrite), claim(10, 15, WriteInvalidate)]
        );
    }

    #[test]
    fn claims_are_found_by_their_bytes() {
        use Access::{ReadOnly, ReadWrite};
        let held = [claim(0, 4, ReadOnly), claim(4, 6, ReadWrite), claim(9, 12, ReadOnly)];
        let found = |start, end| touching(&held, Span::new(start, end)).len();
        assert_eq!([found(0, 1), found(3, 5), found(6, 9), found(5, 10), found(12, 99)], [1, 2, 0, 2, 0]);
        assert_eq!([found(0, 0), found(2, 2), found(4, 4)], [0, 0, 0]);
        let asked = [claim(1, 2, ReadOnly), claim(3, 10, ReadOnly)];
        for (ours, theirs) in [(&held[..], &asked[..]), (&asked[..], &held[..])] {
            let pairs: Vec<_> = meeting(ours, theirs).map(|(ours, theirs)| (*ours, *theirs)).collect();
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
            let merged = normalise(claims.iter().copied());
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
