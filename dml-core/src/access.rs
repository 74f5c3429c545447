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

/// The claims of one request on one buffer: sorted, disjoint, non-empty, merged ([`normalise`]).
pub type Claims = SmallVec<[Claim; 1]>;

/// Brings claims into canonical form: empty ranges dropped, sorted, each byte named once with the merged access of
/// all claims that name it, and neighbours of equal access joined.
///
/// # Complexity
/// O(n log n) for disjoint claims, O(n²) at worst for heavily overlapping ones.
#[must_use]
pub fn normalise(claims: impl IntoIterator<Item = Claim>) -> Claims {
    let mut claims: Claims = claims.into_iter().filter(|c| !c.span.is_empty()).collect();
    if claims.len() < 2 {
        return claims;
    }
    claims.sort();
    let mut cuts: Vec<u64> = claims.iter().flat_map(|c| [c.span.start(), c.span.end()]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut merged = Claims::new();
    let mut first = 0;
    for pair in cuts.windows(2) {
        let span = Span::new(pair[0], pair[1]);
        while first < claims.len() && claims[first].span.end() <= span.start() {
            first += 1;
        }
        let access = claims[first..]
            .iter()
            .take_while(|c| c.span.start() < span.end())
            .filter(|c| c.span.overlaps(span))
            .map(|c| c.access)
            .reduce(Access::merge);
        match (access, merged.last_mut()) {
            (None, _) => {}
            (Some(access), Some(last)) if last.access == access && last.span.end() == span.start() => {
                last.span = Span::new(last.span.start(), span.end());
            }
            (Some(access), _) => merged.push(Claim { span, access }),
        }
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
