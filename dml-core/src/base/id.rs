//! Identities: small copyable newtypes, and two bit sets of them.
//!
//! Ids of buffers, grants and commits are never reused (I-23). They come from 64-bit counters that only grow,
//! so an id never names a second object.

use std::fmt;

/// The largest number of arenas, and of devices, that one platform can hold.
pub const MAX_ARENAS: usize = 64;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

id!(
    /// A buffer, unique in the process and never reused. Its order is the canonical acquire order.
    BufferId(u64), "b");
id!(
    /// A platform, unique in the process and never reused.
    PlatformId(u64), "p");
id!(
    /// An arena (one memory) of a platform; the index in [`Platform::arenas`](crate::Platform::arenas).
    ArenaId(u8), "a");
id!(
    /// A device of a platform; the index in [`Platform::devices`](crate::Platform::devices).
    DeviceId(u16), "d");
id!(
    /// A grant, prefetch or binding: the owner of reservations on a buffer.
    OwnerId(u64), "g");
id!(
    /// A kernel: the party that asks for access. Overlapping requests of one kernel are refused: see
    /// [`AcquireError::AlreadyHeld`](crate::AcquireError::AlreadyHeld).
    KernelId(u64), "k");
id!(
    /// A place in a buffer's queue; strictly increasing along the queue (I-21).
    Ticket(u64), "t");
id!(
    /// The number of a commit to one buffer. Zero is the state before any commit.
    Seq(u64), "s");
id!(
    /// A registered directed copy mechanism between two arenas; the index in
    /// [`Platform::links`](crate::Platform::links).
    LinkId(u16), "l");

macro_rules! id_set {
    ($(#[$doc:meta])* $name:ident of $id:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u64);

        impl $name {
            /// The empty set.
            pub const EMPTY: Self = Self(0);

            /// Returns the set of one element.
            ///
            /// # Panics
            /// When the id is 64 or more; a platform never hands out such an id.
            #[must_use]
            pub const fn of(id: $id) -> Self {
                assert!((id.0 as usize) < MAX_ARENAS);
                Self(1 << id.0)
            }

            /// Returns whether `id` is in the set.
            #[must_use]
            pub const fn contains(self, id: $id) -> bool {
                (id.0 as usize) < MAX_ARENAS && self.0 & (1 << id.0) != 0
            }

            /// Returns whether the set is empty.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Returns the number of elements.
            #[must_use]
            pub const fn len(self) -> usize {
                self.0.count_ones() as usize
            }

            /// Returns this set with `id` added.
            #[must_use]
            pub const fn with(self, id: $id) -> Self {
                Self(self.0 | Self::of(id).0)
            }

            /// Returns this set without `id`.
            #[must_use]
            pub const fn without(self, id: $id) -> Self {
                Self(self.0 & !Self::of(id).0)
            }

            /// Returns the elements of either set.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Returns the elements that are in both sets.
            #[must_use]
            pub const fn intersection(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }

            /// Returns the elements of this set that are not in `other`.
            #[must_use]
            pub const fn minus(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Returns whether every element of this set is in `other`.
            #[must_use]
            pub const fn is_subset(self, other: Self) -> bool {
                self.0 & !other.0 == 0
            }

            /// Returns the elements, in increasing order.
            pub fn iter(self) -> impl Iterator<Item = $id> + Clone {
                let mut bits = self.0;
                std::iter::from_fn(move || {
                    (bits != 0).then(|| {
                        let low = bits.trailing_zeros();
                        bits &= bits - 1;
                        $id(low as $inner)
                    })
                })
            }
        }

        impl FromIterator<$id> for $name {
            fn from_iter<I: IntoIterator<Item = $id>>(ids: I) -> Self {
                ids.into_iter().fold(Self::EMPTY, Self::with)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_set().entries(self.iter()).finish()
            }
        }
    };
}

id_set!(
    /// A set of arenas, one bit each.
    ArenaSet of ArenaId(u8));
id_set!(
    /// A set of devices, one bit each.
    DeviceSet of DeviceId(u16));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_behave_like_sets() {
        let set: ArenaSet = [ArenaId(3), ArenaId(0), ArenaId(63)].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [ArenaId(0), ArenaId(3), ArenaId(63)]);
        assert_eq!(set.len(), 3);
        assert!(set.contains(ArenaId(63)) && !set.contains(ArenaId(1)));
        assert_eq!(set.without(ArenaId(3)).union(ArenaSet::of(ArenaId(1))).len(), 3);
        assert!(set.intersection(ArenaSet::of(ArenaId(3))).is_subset(set));
        assert_eq!(set.minus(set), ArenaSet::EMPTY);
        assert_eq!(format!("{set:?}"), "{a0, a3, a63}");
    }

    #[test]
    fn an_id_beyond_the_set_is_in_no_set() {
        assert!(!DeviceSet::of(DeviceId(0)).contains(DeviceId(64)));
    }
}
