//! Tests of a unit's record over its packages and rounds.

use super::UnitRun;
use crate::base::package::{Package, UnitId};
use crate::report::PackageRecord;
use dml_core::DeviceId;
use std::time::Duration;

/// Returns the record of a package that was in progress from `start` to `end`, in milliseconds.
fn record(index: u64, start: u64, end: u64) -> PackageRecord {
    let at = Duration::from_millis;
    PackageRecord {
        package: Package::new(index * 10..index * 10 + 10, UnitId(0), index),
        device: DeviceId(0),
        start: at(start),
        begun: at(start),
        computed: at(end),
        noticed_late: false,
        end: at(end),
    }
}

fn indices(run: &UnitRun) -> Vec<u64> {
    run.packages.iter().map(|record| record.package.index()).collect()
}

#[test]
fn time_in_which_several_packages_are_under_way_counts_once() {
    let mut run = UnitRun::default();
    // The second package begins before the first has ended, the third lies within both, and 30 to 50 is idle.
    run.extend(vec![record(0, 2, 20), record(1, 10, 30), record(2, 12, 15), record(3, 50, 57)]);
    assert_eq!(run.busy, Duration::from_millis(28 + 7));
    assert_eq!(run.end, Duration::from_millis(57));
}

#[test]
fn packages_are_in_the_order_in_which_they_were_handed_out() {
    let mut run = UnitRun::default();
    // Packages that the desk has collected come after those of the unit's own thread.
    run.extend(vec![record(3, 30, 40), record(0, 0, 10), record(1, 5, 20)]);
    assert_eq!(indices(&run), [0, 1, 3]);
    assert_eq!(run.busy, Duration::from_millis(20 + 10));
}

#[test]
fn a_round_without_work_leaves_the_end_and_the_time_of_those_before() {
    let mut run = UnitRun::default();
    run.extend(vec![record(0, 1, 9)]);
    run.extend(Vec::new());
    assert_eq!((run.busy, run.end), (Duration::from_millis(8), Duration::from_millis(9)));
    run.extend(vec![record(4, 20, 25)]);
    assert_eq!((run.busy, run.end), (Duration::from_millis(13), Duration::from_millis(25)));
    assert_eq!(indices(&run), [0, 4]);
}
