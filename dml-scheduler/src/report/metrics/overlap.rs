//! The overlap of a run's transfers with its compute.
//!
//! ```text
//!   transfers   ====    =====  ==             the union is the transfer time
//!                 ===                ====
//!   computing      ##########                 the union over all devices
//!                        #####
//!   under          ==   =====  =
//! ```

use dml_core::record::Event;
use dml_core::record::copies;
use std::ops::Range;
use std::time::Duration;

/// The transfer time of a run, and the part of it that overlaps with compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overlap {
    /// The time during which at least one transfer was in progress.
    pub transfer: Duration,
    /// The time during which at least one transfer was in progress and at least one device computed.
    pub under_compute: Duration,
}

impl Overlap {
    /// Compares two lists of intervals in any order. Intervals of one list may overlap.
    ///
    /// Intervals that end before they start are empty.
    ///
    /// ```
    /// use dml_scheduler::metrics::Overlap;
    /// use std::time::Duration;
    ///
    /// let ms = Duration::from_millis;
    /// let transfers = [ms(0)..ms(4), ms(2)..ms(6), ms(10)..ms(14)];
    /// let computing = [ms(3)..ms(11)];
    /// let overlap = Overlap::of(transfers, computing);
    /// assert_eq!((overlap.transfer, overlap.under_compute), (ms(10), ms(4)));
    /// assert_eq!(overlap.part(), Some(0.4));
    /// ```
    #[must_use]
    pub fn of(
        transfers: impl IntoIterator<Item = Range<Duration>>,
        computing: impl IntoIterator<Item = Range<Duration>>,
    ) -> Self {
        let (transfers, computing) = (joined(transfers), joined(computing));
        let mut overlap = Self::default();
        let mut rest = &computing[..];
        for transfer in &transfers {
            overlap.transfer += transfer.end - transfer.start;
            // Intervals that ended before this transfer cannot overlap with later transfers.
            rest = &rest[rest.partition_point(|interval| interval.end <= transfer.start)..];
            for interval in rest.iter().take_while(|interval| interval.start < transfer.end) {
                overlap.under_compute += interval.end.min(transfer.end) - interval.start.max(transfer.start);
            }
        }
        overlap
    }

    /// Returns the fraction of the transfer time that overlaps with compute, in 0..=1; `None` if nothing was
    /// transferred.
    #[must_use]
    pub fn part(&self) -> Option<f64> {
        let seconds = self.transfer.as_secs_f64();
        (seconds > 0.0).then(|| self.under_compute.as_secs_f64() / seconds)
    }
}

/// Returns the intervals in which bytes were copied from one arena to another, from the events of a
/// recording.
///
/// Times are on the events' clock: since the platform was built.
///
/// A copy counts from its start event to its end event, which is when core noticed the end. A copy whose plan
/// was given up counts until then. Fills with zeros and copies that move nothing are no transfers. A copy
/// that has not ended does not count.
#[must_use]
pub fn transfers(events: &[Event]) -> Vec<Range<Duration>> {
    let transfers = copies(events).into_iter().filter(|copy| copy.from.is_some());
    transfers.filter_map(|copy| Some(copy.begun..copy.ended?)).collect()
}

/// Sorts intervals, joins overlapping or adjacent ones, and drops empty ones.
fn joined(intervals: impl IntoIterator<Item = Range<Duration>>) -> Vec<Range<Duration>> {
    let mut intervals: Vec<_> = intervals.into_iter().filter(|interval| !interval.is_empty()).collect();
    intervals.sort_by_key(|interval| interval.start);
    let mut joined: Vec<Range<Duration>> = Vec::with_capacity(intervals.len());
    for interval in intervals {
        match joined.last_mut() {
            Some(last) if interval.start <= last.end => last.end = last.end.max(interval.end),
            _ => joined.push(interval),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use dml_core::record::EventKind;
    use dml_core::{ArenaId, BufferId, LinkId, OwnerId, Span};

    fn ms(from: u64, to: u64) -> Range<Duration> {
        Duration::from_millis(from)..Duration::from_millis(to)
    }

    fn overlap(transfers: &[Range<Duration>], computing: &[Range<Duration>]) -> (u64, u64) {
        let overlap = Overlap::of(transfers.to_vec(), computing.to_vec());
        (overlap.transfer.as_millis() as u64, overlap.under_compute.as_millis() as u64)
    }

    #[test]
    fn what_overlaps_counts_once_on_both_sides() {
        assert_eq!(overlap(&[ms(0, 10), ms(3, 12), ms(3, 5)], &[ms(2, 6), ms(4, 9), ms(20, 30)]), (12, 7));
        // In any order, with adjacent intervals.
        assert_eq!(overlap(&[ms(7, 9), ms(1, 4), ms(4, 5)], &[ms(8, 30), ms(0, 2)]), (6, 2));
        // One package spans several transfers, and one transfer spans several packages.
        assert_eq!(overlap(&[ms(1, 2), ms(3, 5), ms(8, 11)], &[ms(0, 10)]), (6, 5));
        assert_eq!(overlap(&[ms(0, 10)], &[ms(1, 2), ms(3, 5), ms(8, 11)]), (10, 5));
    }

    #[test]
    fn without_transfers_there_is_no_part_and_without_compute_it_is_zero() {
        assert_eq!(Overlap::of([], [ms(0, 5)]).part(), None);
        assert_eq!(Overlap::of([ms(3, 3)], [ms(0, 5)]).part(), None);
        assert_eq!(Overlap::of([ms(0, 5)], []).part(), Some(0.0));
        assert_eq!(Overlap::of([ms(0, 5)], [ms(5, 9)]).part(), Some(0.0));
        assert_eq!(Overlap::of([ms(2, 4)], [ms(1, 5)]).part(), Some(1.0));
    }

    fn event(at: u64, buffer: u64, kind: EventKind) -> Event {
        Event { at: Duration::from_millis(at), buffer: BufferId(buffer), kind }
    }

    const MAIN: ArenaId = ArenaId(0);
    const VIDEO: ArenaId = ArenaId(1);

    fn copy(owner: u64, from: Option<ArenaId>, bytes: u64) -> [EventKind; 2] {
        let (owner, to, span) = (OwnerId(owner), VIDEO, Span::new(0, bytes));
        let link = from.map(|_| LinkId(0));
        [
            EventKind::CopyStarted { owner, from, to, span, link },
            EventKind::CopyDone { owner, from, to, span },
        ]
    }

    #[test]
    fn a_copy_lasts_from_its_start_to_its_own_end() {
        let [one, one_ends] = copy(1, Some(MAIN), 8);
        let [two, two_ends] = copy(2, Some(MAIN), 8);
        let [fill, fill_ends] = copy(3, None, 8);
        let [lost, _] = copy(4, Some(MAIN), 8);
        let events = [
            event(1, 7, one.clone()),
            event(2, 7, two),
            event(3, 8, one),
            event(4, 7, fill),
            event(5, 8, one_ends.clone()),
            event(6, 7, two_ends),
            event(7, 7, lost.clone()),
            event(8, 7, fill_ends),
            event(9, 8, EventKind::GivenUp { owner: OwnerId(4) }),
            event(10, 7, EventKind::GivenUp { owner: OwnerId(4) }),
            event(11, 7, one_ends),
            event(12, 8, lost),
        ];
        let mut found = transfers(&events);
        found.sort_by_key(|interval| interval.start);
        assert_eq!(found, [ms(1, 11), ms(2, 6), ms(3, 5), ms(7, 10)]);
    }

    /// Events do not distinguish two identical copies. The first to begin counts as the first to end, because
    /// a link carries copies in order.
    #[test]
    fn of_two_copies_alike_the_first_to_begin_is_the_first_to_end() {
        let [begins, ends] = copy(1, Some(MAIN), 8);
        let events = [
            event(1, 7, begins.clone()),
            event(2, 7, begins.clone()),
            event(3, 7, begins),
            event(4, 7, ends.clone()),
            event(6, 7, ends.clone()),
            event(9, 7, ends),
        ];
        assert_eq!(transfers(&events), [ms(1, 4), ms(2, 6), ms(3, 9)]);
    }
}
