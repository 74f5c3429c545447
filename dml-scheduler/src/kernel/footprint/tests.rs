//! The named footprints, against a model that tests single items and bytes.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is tested")]

use super::*;
use proptest::prelude::*;

/// The bytes of a list of ranges, one by one.
fn bytes(ranges: &[Range<u64>]) -> Vec<u64> {
    ranges.iter().cloned().flatten().collect()
}

/// Whether an item touches a byte.
type Touches = Box<dyn Fn(u64, u64) -> bool>;

/// Sample footprints, each with its model.
fn cases() -> Vec<(Footprint, Touches)> {
    vec![
        (Footprint::all(), Box::new(|_, _| true)),
        (Footprint::one_to_one(3), Box::new(|item, byte| byte / 3 == item)),
        (Footprint::neighbourhood(2, 3), Box::new(|item, byte| (byte / 2).abs_diff(item) <= 3)),
        (Footprint::rows(5, 7, 2), Box::new(|item, byte| (byte / 7).abs_diff(item / 5) <= 2)),
        (Footprint::columns(2, 11), Box::new(|item, byte| byte % 11 / 2 == item && byte % 11 < 22)),
        (
            Footprint::tiles(4, 3, 2, 13),
            Box::new(|item, byte| byte % 13 < 12 && (byte / 13 / 2) * 4 + byte % 13 / 3 == item),
        ),
    ]
}

proptest! {
    /// A package touches the bytes of its items, and its ranges ascend without touching each other.
    #[test]
    fn a_package_touches_what_its_items_touch(start in 0_u64..40, items in 1_u64..30, len in 0_u64..120) {
        for (footprint, touches) in cases() {
            let ranges = footprint.ranges(start..start + items, len).unwrap();
            let expected: Vec<u64> =
                (0..len).filter(|&byte| (start..start + items).any(|item| touches(item, byte))).collect();
            prop_assert_eq!(bytes(&ranges), expected, "{:?}", footprint);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
            prop_assert!(ranges.iter().all(|range| range.end <= len) && !ranges.is_empty());
        }
    }

    #[test]
    fn shared_bytes_are_found_wherever_they_are(
        one in prop::collection::vec((0_u64..60, 1_u64..6), 0..6),
        other in prop::collection::vec((0_u64..60, 1_u64..6), 0..6),
    ) {
        let list = |of: Vec<(u64, u64)>| in_order(of.into_iter().map(|(at, long)| at..at + long).collect(), 99);
        let (one, other) = (list(one), list(other));
        let first = bytes(&one).into_iter().find(|byte| bytes(&other).contains(byte));
        prop_assert_eq!(shared(&one, &other).map(|range| range.start), first);
    }
}

#[test]
fn a_buffer_has_bytes_for_so_many_items() {
    let holds = |footprint: Footprint| footprint.holds(100);
    assert_eq!(holds(Footprint::one_to_one(3)), Some(34), "the last item is partial");
    assert_eq!(holds(Footprint::neighbourhood(4, 9)), Some(25));
    assert_eq!(holds(Footprint::rows(5, 8, 1)), Some(13 * 5));
    assert_eq!(holds(Footprint::columns(4, 10)), Some(3));
    assert_eq!(holds(Footprint::tiles(4, 3, 2, 12)), Some(5 * 4));
    let any =
        [Footprint::all(), Footprint::of(|_| 0..1), Footprint::one_to_one(0), Footprint::tiles(3, 1, 0, 9)];
    assert!(any.into_iter().all(|footprint| holds(footprint).is_none()));
}

#[test]
fn ranges_of_a_function_are_sorted_and_joined() {
    let footprint = Footprint::of_ranges(|_| vec![20..24, 0..4, 22..30, 4..6, 9..9]);
    assert_eq!(footprint.ranges(0..1, 30).unwrap(), [0..6, 20..30]);
    let nothing = Footprint::of_ranges(|_| Vec::new());
    assert_eq!(nothing.ranges(0..1, 30).unwrap(), [30..30]);
}

#[test]
#[allow(clippy::reversed_empty_ranges, reason = "a reversed range is refused")]
fn what_is_no_footprint_is_told() {
    let told = |footprint: Footprint| footprint.ranges(3..5, 100).unwrap_err().to_string();
    assert!(told(Footprint::of(|_| panic!("not today"))).contains("not today"));
    assert!(told(Footprint::of(|items| 0..items.end * 21)).contains("0..105 of a buffer of 100"));
    assert!(told(Footprint::of(|_| 7..6)).contains("7..6"));
    assert!(told(Footprint::rows(0, 4, 1)).contains("no items"));
    assert!(told(Footprint::columns(4, 0)).contains("no bytes"));
    assert!(told(Footprint::tiles(4, 4, 4, 15)).contains("longer than a row"));
    assert!(told(Footprint::tiles(0, 4, 4, 15)).contains("empty"));
}

#[test]
fn numbers_beyond_what_can_be_counted_end_at_the_buffer() {
    let far = u64::MAX - 4..u64::MAX;
    for (footprint, _) in cases().into_iter().skip(1) {
        assert_eq!(bytes(&footprint.ranges(far.clone(), 50).unwrap()), [0; 0], "{footprint:?}");
    }
}

/// A footprint without items, or without items per row, is invalid itself and limits no number of items.
#[test]
fn a_picture_at_fault_holds_no_number_of_items() {
    assert_eq!(Footprint::rows(0, 7, 1).holds(70), None);
    assert_eq!(Footprint::tiles(0, 3, 2, 13).holds(130), None);
    assert_eq!(
        (Footprint::rows(5, 7, 1).holds(70), Footprint::tiles(4, 3, 2, 13).holds(130)),
        (Some(50), Some(20))
    );
}

#[test]
fn a_package_touches_no_more_rows_than_can_be_acquired() {
    let column = |rows: u64| Footprint::columns(1, 2).ranges(0..1, 2 * rows).map(|ranges| ranges.len());
    assert_eq!(column(65_536).ok(), Some(65_536));
    assert!(column(65_537).is_err() && column(70_000).is_err());
}
