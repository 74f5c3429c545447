//! When locking pages pays, and when staging does.
//!
//! Locking pages takes several times as long as moving them. So a block's pages are locked when its transfers
//! without a lock have lost as much time against the link as locking takes. A vector that is sent a few times
//! is not locked, and the total time is at most twice the optimum.

/// The times and rates of a framework's transfers, for one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// Fixed time of locking memory, in nanoseconds.
    pub(crate) locking_once_ns: u64,
    /// Rate of locking, in bytes per second.
    pub(crate) locking_bytes_per_s: u64,
    /// Rate of the driver's copies of unlocked memory, in bytes per second.
    pub(crate) ordinary_bytes_per_s: u64,
    /// Rate of copies of locked memory, in bytes per second.
    pub(crate) link_bytes_per_s: u64,
    /// Fixed time of a staged copy, in nanoseconds: starting threads, and first pieces that overlap with
    /// nothing.
    pub(crate) staging_once_ns: u64,
    /// Rate at which one thread stages beside others, in bytes per second.
    pub(crate) staging_bytes_per_s: u64,
}

impl Rates {
    /// Returns these rates on a link whose rate was measured.
    pub(crate) fn on_link(self, measured_bytes_per_s: Option<u64>) -> Self {
        let link = measured_bytes_per_s.unwrap_or(self.link_bytes_per_s);
        Self { link_bytes_per_s: link.max(self.ordinary_bytes_per_s), ..self }
    }

    /// Returns the time of a staged copy by `copiers` threads, in nanoseconds, if the driver needs more.
    fn staged_ns(&self, bytes: u64, copiers: usize) -> Option<u128> {
        let rate = self.staging_bytes_per_s.saturating_mul(copiers as u64).min(self.link_bytes_per_s);
        if rate == 0 {
            return None;
        }
        let staged = u128::from(self.staging_once_ns) + time_ns(bytes, rate);
        (staged < time_ns(bytes, self.ordinary_bytes_per_s)).then_some(staged)
    }

    /// Returns whether `copiers` threads stage a copy of unlocked memory in less time than the driver needs.
    pub(crate) fn staging_pays(&self, bytes: u64, copiers: usize) -> bool {
        self.staged_ns(bytes, copiers).is_some()
    }

    /// Returns the time that a transfer of unlocked memory loses against the link, in nanoseconds, if
    /// `copiers` threads can stage it.
    pub(crate) fn lost_ns(&self, bytes: u64, copiers: usize) -> u64 {
        let ordinary = || time_ns(bytes, self.ordinary_bytes_per_s);
        let time = self.staged_ns(bytes, copiers).unwrap_or_else(ordinary);
        u64::try_from(time - time_ns(bytes, self.link_bytes_per_s)).unwrap_or(u64::MAX)
    }

    /// Returns whether to lock a block's pages, given the time that its transfers so far have lost.
    pub(crate) fn locking_pays(&self, block_bytes: u64, lost_ns: u64) -> bool {
        let locking = u128::from(self.locking_once_ns) + time_ns(block_bytes, self.locking_bytes_per_s);
        u128::from(lost_ns) >= locking
    }
}

/// Returns the time that `bytes` bytes take at this rate, in nanoseconds.
fn time_ns(bytes: u64, bytes_per_s: u64) -> u128 {
    u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const RATES: Rates = Rates {
        locking_once_ns: 100_000,
        locking_bytes_per_s: 16_000_000_000,
        ordinary_bytes_per_s: 8_000_000_000,
        link_bytes_per_s: 54_000_000_000,
        staging_once_ns: 500_000,
        staging_bytes_per_s: 5_600_000_000,
    };

    /// Returns the index of the transfer of `bytes` bytes at which a block is locked, from 1.
    fn first(rates: Rates, copiers: usize, block_bytes: u64, bytes: u64) -> u64 {
        let lost = rates.lost_ns(bytes, copiers);
        (1..10_000).find(|times| rates.locking_pays(block_bytes, times * lost)).unwrap()
    }

    #[test]
    fn pages_are_locked_when_the_copies_so_far_would_have_paid_for_it() {
        let (first, gib) = (|copiers, block, bytes| first(RATES, copiers, block, bytes), 1024 * MIB);
        assert_eq!(first(0, gib, gib), 1, "no threads stage, and the driver's copies are slow");
        assert!((2..6).contains(&first(4, gib, gib)) && (10..20).contains(&first(8, gib, gib)));
        assert!(first(0, gib, 64 * MIB) > 4, "a range of the block");
        assert!((4..20).contains(&first(8, 40 * MIB, 2 * MIB)), "packages are too small to be staged");
        assert_eq!(first(8, MIB, MIB), 2);
        assert!(!RATES.locking_pays(0, 0) && !RATES.locking_pays(u64::MAX, 1_000_000));
        assert_eq!(RATES.lost_ns(0, 4), 0);
    }

    #[test]
    fn staging_pays_from_some_megabytes_on_where_several_threads_copy() {
        assert!(RATES.staging_pays(64 * MIB, 2) && !RATES.staging_pays(4 * MIB, 2));
        assert!(RATES.staging_pays(8 * MIB, 8) && !RATES.staging_pays(2 * MIB, 8));
        assert!(!RATES.staging_pays(u64::MAX, 0) && RATES.staging_pays(u64::MAX, usize::MAX));
        assert!(
            !RATES.staging_pays(0, 4) && !RATES.staging_pays(u64::MAX, 1),
            "one is slower than the driver"
        );
    }

    /// On a slow link, ordinary copies lose little, and locks pay later or never.
    #[test]
    fn the_measured_rate_of_the_link_decides() {
        let of =
            |gigabytes: u64| first(RATES.on_link(Some(gigabytes * 1_000_000_000)), 0, 64 * MIB, 64 * MIB);
        assert!(of(54) == 1 && of(16) == 2 && of(10) == 3 && of(9) > 4);
        assert_eq!(RATES.on_link(None).link_bytes_per_s, RATES.link_bytes_per_s);
        let slow = RATES.on_link(Some(1));
        assert_eq!((slow.lost_ns(MIB, 0), slow.staging_pays(64 * MIB, 8)), (0, false));
    }
}
