//! The times of copies over one link, by size class.

use dml_core::LinkSpeed;
use thiserror::Error;

/// Maximum plausible time of a copy, in nanoseconds: one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Maximum plausible rate of a long copy, in bytes per nanosecond.
const GREATEST_BYTES_PER_NS: u64 = 1_000_000;
/// Size from which the rate is checked, in bytes. A shorter copy may take less than the clock's resolution.
const JUDGED_BYTES: u64 = 1 << 20;

/// The time of a copy of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "calibration", derive(serde::Serialize, serde::Deserialize))]
pub struct SizeClass {
    /// The size of the copy, in bytes.
    pub bytes: u64,
    /// The median time of the copy, in nanoseconds.
    pub copy_ns: u64,
}

/// The times of copies over one link, from the smallest size class to the largest.
///
/// There are at least two classes, in ascending order of size, with plausible times.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "calibration",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "Vec<SizeClass>", into = "Vec<SizeClass>")
)]
pub struct LinkTable {
    classes: Vec<SizeClass>,
}

/// Why figures do not form a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TableError {
    /// There are fewer than two size classes, which a rate needs.
    #[error("a table of {classes} size classes: at least 2 are needed")]
    TooFew {
        /// The number of size classes.
        classes: usize,
    },
    /// The sizes do not ascend.
    #[error("a size class of {bytes} bytes follows one of {before_bytes} bytes")]
    Order {
        /// The size of the earlier class, in bytes.
        before_bytes: u64,
        /// The size of the later class, in bytes.
        bytes: u64,
    },
    /// The time of a copy is implausible.
    #[error("impossible figure: a copy of {bytes} bytes in {copy_ns} ns")]
    Impossible {
        /// The size of the copy, in bytes.
        bytes: u64,
        /// The time of the copy, in nanoseconds.
        copy_ns: u64,
    },
}

impl LinkTable {
    /// Creates a table from figures, after checking them.
    ///
    /// # Errors
    /// - [`TableError::TooFew`] for fewer than two size classes.
    /// - [`TableError::Order`] if the sizes do not ascend.
    /// - [`TableError::Impossible`] for a time of zero or more than an hour, and for a rate above 1 PB/s.
    pub fn new(classes: Vec<SizeClass>) -> Result<Self, TableError> {
        if classes.len() < 2 {
            return Err(TableError::TooFew { classes: classes.len() });
        }
        if let Some(pair) = classes.windows(2).find(|pair| pair[0].bytes >= pair[1].bytes) {
            return Err(TableError::Order { before_bytes: pair[0].bytes, bytes: pair[1].bytes });
        }
        match classes.iter().find(|class| !class.is_possible()) {
            Some(&SizeClass { bytes, copy_ns }) => Err(TableError::Impossible { bytes, copy_ns }),
            None => Ok(Self { classes }),
        }
    }

    /// Returns the size classes, the smallest first.
    #[must_use]
    pub fn classes(&self) -> &[SizeClass] {
        &self.classes
    }

    /// Returns the time of a copy of `bytes` bytes, in nanoseconds.
    ///
    /// The time is interpolated between two classes. Below the smallest class it is that of the smallest.
    /// Above the largest it grows at the rate of [`speed`](Self::speed). It never falls as the size grows,
    /// even if the measured times do.
    #[must_use]
    pub fn copy_ns(&self, bytes: u64) -> u64 {
        let first = self.classes[0];
        let mut before = first;
        for &class in &self.classes {
            let class = SizeClass { copy_ns: class.copy_ns.max(before.copy_ns), ..class };
            if bytes <= class.bytes {
                return before.towards(class, bytes);
            }
            before = class;
        }
        let moving_ns = moving_ns(first.copy_ns, before.copy_ns);
        let beyond_ns = scaled(moving_ns, bytes - before.bytes, before.bytes - first.bytes);
        before.copy_ns.saturating_add(beyond_ns)
    }

    /// Returns the latency and the rate of long copies. The time of map changes is included, and not reported
    /// separately.
    ///
    /// # Shape and units
    /// The latency is the time of the smallest class. The rate is that of the largest class, without the
    /// latency. At least an eighth of that class's time counts as transfer time, because the rate of a class
    /// that is mostly latency is meaningless.
    #[must_use]
    pub fn speed(&self) -> LinkSpeed {
        let (short, long) = (self.classes[0], self.classes[self.classes.len() - 1]);
        let moving_ns = moving_ns(short.copy_ns, long.copy_ns);
        LinkSpeed {
            latency_ns: short.copy_ns,
            bytes_per_s: scaled(long.bytes - short.bytes, 1_000_000_000, moving_ns),
            remap_ns: 0,
        }
    }
}

/// Returns the time of a long copy without the latency, but at least an eighth of it.
fn moving_ns(latency_ns: u64, long_ns: u64) -> u64 {
    long_ns.saturating_sub(latency_ns).max(long_ns / 8).max(1)
}

impl SizeClass {
    fn is_possible(&self) -> bool {
        let is_too_fast = self.bytes >= JUDGED_BYTES && self.bytes / GREATEST_BYTES_PER_NS > self.copy_ns;
        (1..=LONGEST_NS).contains(&self.copy_ns) && !is_too_fast
    }

    /// Returns the time at `bytes` on the line to a larger and slower class, or this class's time below it.
    fn towards(self, larger: Self, bytes: u64) -> u64 {
        if bytes <= self.bytes {
            return self.copy_ns;
        }
        self.copy_ns + scaled(larger.copy_ns - self.copy_ns, bytes - self.bytes, larger.bytes - self.bytes)
    }
}

/// Returns `value * by / of`, at most [`u64::MAX`].
pub(super) fn scaled(value: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(by) / u128::from(of)).unwrap_or(u64::MAX)
}

impl TryFrom<Vec<SizeClass>> for LinkTable {
    type Error = TableError;

    fn try_from(classes: Vec<SizeClass>) -> Result<Self, TableError> {
        Self::new(classes)
    }
}

impl From<LinkTable> for Vec<SizeClass> {
    fn from(table: LinkTable) -> Self {
        table.classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(classes: &[(u64, u64)]) -> Result<LinkTable, TableError> {
        LinkTable::new(classes.iter().map(|&(bytes, copy_ns)| SizeClass { bytes, copy_ns }).collect())
    }

    #[test]
    fn each_class_has_its_time_and_sizes_between_lie_on_the_line() {
        let table = table(&[(4, 100), (104, 300), (1104, 1300)]).unwrap();
        for (bytes, ns) in [(4, 100), (104, 300), (1104, 1300), (54, 200), (604, 800), (0, 100), (1, 100)] {
            assert_eq!(table.copy_ns(bytes), ns, "{bytes}");
        }
        // From 4 to 1104 bytes the time grows by 1200 ns, so another 1100 bytes take 1200 ns more.
        assert_eq!(table.copy_ns(2204), 2500);
        assert_eq!(table.copy_ns(1105), 1301);
    }

    #[test]
    fn a_smaller_class_that_took_longer_does_not_make_larger_copies_cheap() {
        let table = table(&[(4, 500), (1000, 200), (2000, 900)]).unwrap();
        assert_eq!([4, 700, 1000, 1500, 2000].map(|bytes| table.copy_ns(bytes)), [500, 500, 500, 700, 900]);
    }

    #[test]
    fn the_greatest_rate_is_possible_and_no_greater_one() {
        let ns = JUDGED_BYTES / GREATEST_BYTES_PER_NS;
        assert!(table(&[(4, 1), (JUDGED_BYTES, ns)]).is_ok());
        assert!(table(&[(4, 1), (JUDGED_BYTES, ns - 1)]).is_err());
        assert!(table(&[(4, 1), (JUDGED_BYTES - 1, 1)]).is_ok(), "the rate of a short copy is not checked");
    }

    #[test]
    fn huge_sizes_saturate() {
        let table = table(&[(4, 1), (5, LONGEST_NS)]).unwrap();
        assert_eq!(table.copy_ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn the_speed_is_the_shortest_copys_time_and_the_longest_ones_rate() {
        let table = table(&[(4, 1_000), (65_536, 30_000), (4 + (16 << 20), 1_000 + (16 << 20))]).unwrap();
        let speed = table.speed();
        assert_eq!((speed.latency_ns, speed.bytes_per_s, speed.remap_ns), (1_000, 1_000_000_000, 0));
    }

    #[test]
    fn classes_that_are_mostly_latency_do_not_make_long_copies_free() {
        let table = table(&[(4, 46_000), (65_536, 46_000)]).unwrap();
        let rate = table.speed().bytes_per_s;
        assert!((11_000_000_000..12_000_000_000).contains(&rate), "an eighth of 46 us for 64 KiB: {rate}");
        assert!((5_900_000..6_000_000).contains(&table.copy_ns(64 << 20)), "{}", table.copy_ns(64 << 20));
    }

    #[test]
    fn impossible_figures_are_refused() {
        assert_eq!(table(&[]), Err(TableError::TooFew { classes: 0 }));
        assert_eq!(table(&[(4, 1)]), Err(TableError::TooFew { classes: 1 }));
        assert_eq!(table(&[(4, 1), (4, 2)]), Err(TableError::Order { before_bytes: 4, bytes: 4 }));
        assert_eq!(table(&[(8, 1), (4, 2)]), Err(TableError::Order { before_bytes: 8, bytes: 4 }));
        for (bytes, copy_ns) in [(64, 0), (64, u64::MAX), (64, LONGEST_NS + 1), (1 << 40, 1_000)] {
            assert_eq!(table(&[(4, 1), (bytes, copy_ns)]), Err(TableError::Impossible { bytes, copy_ns }));
        }
        assert!(table(&[(4, 1), (64, LONGEST_NS)]).is_ok());
    }

    proptest! {
        #[test]
        fn a_larger_copy_is_never_cheaper(
            classes in prop::collection::btree_map(0u64..1 << 20, 1u64..1 << 30, 2..6),
            mut sizes in prop::collection::vec(prop_oneof![0u64..1 << 21, any::<u64>()], 2..40),
        ) {
            let points: Vec<_> = classes.into_iter().collect();
            let table = table(&points).unwrap();
            sizes.extend(points.iter().flat_map(|&(bytes, _)| [bytes, bytes + 1, bytes.saturating_sub(1)]));
            sizes.sort_unstable();
            let times: Vec<_> = sizes.iter().map(|&bytes| table.copy_ns(bytes)).collect();
            prop_assert!(times.is_sorted(), "{:?}: {:?}", sizes, times);
            // Every class costs its measured time, or that of a slower smaller class.
            let mut slowest = 0;
            for (bytes, ns) in points {
                slowest = slowest.max(ns);
                prop_assert_eq!(table.copy_ns(bytes), slowest);
            }
        }
    }
}
