//! Dynamic: equal packages, on demand.

use super::{Policy, PolicyError, checked_local_size};
use crate::base::package::UnitId;

/// A fixed number of equal packages, each handed to an idle unit.
///
/// This policy needs no powers and adapts to irregular work, but costs one launch and one synchronisation per
/// package.
///
/// # Shape and units
/// Packages are whole work-groups of `local_size` items. There are exactly `N` of them, or one per work-group
/// if there are fewer work-groups. If `N` does not divide the work-groups, the first packages are one
/// work-group larger than the others. If the local work size does not divide the work, the last package is
/// shorter.
///
/// Work that comes back is handed out in packages no larger than the first one, in addition to the `N`.
///
/// # Source
/// Papers 000 (section 4.3) and 001 (section 3.3).
#[derive(Debug, Clone)]
pub struct Dynamic {
    local_size: u64,
    packages_left: u64,
    largest_groups: u64,
}

impl Dynamic {
    /// Splits `work` items into `packages` packages of whole work-groups of `local_size` items.
    ///
    /// # Errors
    /// [`ZeroPackages`](PolicyError::ZeroPackages), [`ZeroLocalSize`](PolicyError::ZeroLocalSize).
    pub fn new(packages: u64, work: u64, local_size: u64) -> Result<Self, PolicyError> {
        checked_packages(packages)?;
        let groups = work.div_ceil(checked_local_size(local_size)?);
        let packages = packages.min(groups);
        Ok(Self { local_size, packages_left: packages, largest_groups: groups.div_ceil(packages.max(1)) })
    }
}

impl Policy for Dynamic {
    fn next(&mut self, _unit: UnitId, remaining: u64) -> Option<u64> {
        let groups = remaining.div_ceil(self.local_size);
        let length = groups.div_ceil(self.packages_left.max(1)).min(self.largest_groups);
        self.packages_left = self.packages_left.saturating_sub(1);
        Some(length.saturating_mul(self.local_size))
    }
}

/// Checks that a number of packages is at least 1.
pub(super) const fn checked_packages(packages: u64) -> Result<u64, PolicyError> {
    if packages == 0 { Err(PolicyError::ZeroPackages) } else { Ok(packages) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lengths of all packages for a work.
    fn lengths(packages: u64, work: u64, local_size: u64) -> Vec<u64> {
        let mut policy = Dynamic::new(packages, work, local_size).unwrap();
        let mut remaining = work;
        let mut lengths = Vec::new();
        while remaining > 0 {
            let length = policy.next(UnitId(0), remaining).unwrap().min(remaining);
            lengths.push(length);
            remaining -= length;
        }
        lengths
    }

    #[test]
    fn n_packages_that_divide_the_work_are_equal() {
        assert_eq!(lengths(4, 1024, 64), [256; 4]);
        assert_eq!(lengths(200, 1_024_000, 128), [5120; 200]);
        assert_eq!(lengths(1, 1000, 64), [1000]);
    }

    #[test]
    fn n_packages_that_do_not_differ_by_one_work_group() {
        assert_eq!(lengths(3, 10, 1), [4, 3, 3]);
        assert_eq!(lengths(6, 10, 1), [2, 2, 2, 2, 1, 1]);
        assert_eq!(lengths(3, 1000, 64), [384, 320, 296]); // 16 groups: 6 + 5 + 5, the last one short by 24
    }

    #[test]
    fn more_packages_than_work_groups_give_one_each() {
        assert_eq!(lengths(200, 5, 1), [1; 5]);
        assert_eq!(lengths(200, 130, 64), [64, 64, 2]);
        assert_eq!(lengths(u64::MAX, 1, 64), [1]);
        assert!(lengths(7, 0, 64).is_empty());
    }

    #[test]
    fn work_that_comes_back_never_makes_a_larger_package() {
        let mut policy = Dynamic::new(4, 1024, 64).unwrap();
        for _ in 0..4 {
            policy.next(UnitId(0), 1024);
        }
        assert_eq!(policy.next(UnitId(0), 1024), Some(256));
    }
}
