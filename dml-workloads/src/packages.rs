//! Test support of every workload: splits items into packages.

use proptest::prelude::*;
use std::ops::Range;

/// Returns disjoint packages that cover `0..items`. Some are empty, and their order is not ascending.
pub(crate) fn split(items: u64, cuts: &[u64]) -> Vec<Range<u64>> {
    let mut bounds: Vec<u64> = cuts.iter().map(|cut| cut % (items + 1)).chain([0, items]).collect();
    bounds.sort_unstable();
    let mut packages: Vec<Range<u64>> = bounds.windows(2).map(|pair| pair[0]..pair[1]).collect();
    packages.reverse();
    let middle = packages.len() / 2;
    packages.rotate_left(middle);
    packages
}

/// Returns a strategy for the cut points of [`split`].
pub(crate) fn cuts() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(any::<u64>(), 0..8)
}

/// Returns the part of `whole` that holds `items`, of `per_item` elements each.
pub(crate) fn part<'a, T>(whole: &'a mut [T], items: &Range<u64>, per_item: usize) -> &'a mut [T] {
    &mut whole[items.start as usize * per_item..items.end as usize * per_item]
}
