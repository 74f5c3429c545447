//! Work whose data is in the memory of one unit.

use super::*;
use crate::policy::{Dynamic, HGuided};

/// A unit gets the items whose data it has, in order. Then it gets items without a home, and last the end of
/// another unit's items.
#[test]
fn units_are_handed_the_items_that_have_their_data_first() {
    let policy = Dynamic::new(10, 1000, 10).unwrap();
    // The third unit never asks, so no unit is forced to take what it is refused (P-3).
    let mut splitter = Splitter::new(Box::new(policy), 3, 1000, 10).unwrap();
    splitter.place(&[(0..395, UnitId(1)), (600..1000, UnitId(0))]);
    let mut starts = |unit: usize, count: usize| -> Vec<u64> {
        (0..count)
            .map(|_| match splitter.assign(UnitId(unit)) {
                Assignment::Package(package) if package.items() == 100 => package.start(),
                other => panic!("{other:?}"),
            })
            .collect()
    };
    assert_eq!(starts(0, 5), [600, 700, 800, 900, 400]);
    assert_eq!(starts(1, 1), [0]);
    assert_eq!(starts(0, 3), [500, 300, 200]);
    // The last package is left to the unit that has the data.
    assert_eq!(splitter.assign(UnitId(0)), Assignment::Wait);
    splitter.retire(UnitId(1));
    // First what the retired unit had in flight, then what had its home there.
    for start in [0, 100] {
        let Assignment::Package(package) = splitter.assign(UnitId(0)) else {
            panic!("no package at {start}")
        };
        assert_eq!(package.start(), start);
    }
}

/// With any homes, every item is handed out once (P-1), in whole work-groups except at the end (P-2).
#[test]
fn homes_lose_no_item() {
    for homes in [
        Vec::from([(0..1003, UnitId(0))]),
        vec![(5..17, UnitId(1)), (17..18, UnitId(0)), (900..5000, UnitId(2))],
        vec![(0..1, UnitId(2)), (1..2, UnitId(1)), (2..3, UnitId(0))],
        Vec::from([(1003..2000, UnitId(1))]),
    ] {
        let mut splitter =
            Splitter::new(Box::new(HGuided::new(&[1.0; 3], 2.0, 8).unwrap()), 3, 1003, 8).unwrap();
        splitter.place(&homes);
        let mut seen = vec![0; 1003];
        for turn in 0.. {
            if splitter.is_finished() {
                break;
            }
            assert!(turn < 10_000, "{homes:?}");
            let Assignment::Package(package) = splitter.assign(UnitId(turn % 3)) else { continue };
            assert!(
                package.start() % 8 == 0 && (package.end() % 8 == 0 || package.end() == 1003),
                "{package}"
            );
            package.range().for_each(|item| seen[item as usize] += 1);
            splitter.complete(&package).unwrap();
        }
        assert!(seen.iter().all(|times| *times == 1), "{homes:?}");
    }
}
