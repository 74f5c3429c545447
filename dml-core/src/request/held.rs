//! The buffers that the current thread holds, to detect an [`AcquireError::OrderViolation`](crate::AcquireError).
//!
//! The holder of a grant is the thread that used it last, initially the thread that acquired it. A grant that was
//! [handed over](crate::Grants::hand_over) has no holder until its next use. If another thread uses or releases a
//! grant, the old holder's list still contains it. The other thread then leaves a note, and the list is checked against
//! these notes before a violation is reported. A thread that has ended has no list and holds nothing.

use crate::base::id::{BufferId, OwnerId};
use crate::base::sync::{StaticMutex, thread_local};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

type Entry = (BufferId, OwnerId);

/// Notes per living thread: grants on its list that other threads have taken over or ended.
static GONE: StaticMutex<BTreeMap<u64, BTreeSet<Entry>>> = StaticMutex::new(BTreeMap::new());

static NEXT_HOLDER: AtomicU64 = AtomicU64::new(NOBODY + 1);

/// The holder id of a grant without a holder.
const NOBODY: u64 = 0;

/// The smallest list length at which stale entries are removed.
const TIDY_AT: usize = 64;

/// The id of the thread that holds a grant.
#[derive(Debug)]
pub(crate) struct Holding(AtomicU64);

impl Holding {
    /// Records the current thread as the holder.
    pub(crate) fn new(buffer: BufferId, grant: OwnerId) -> Self {
        Self(AtomicU64::new(add((buffer, grant))))
    }

    /// Creates a holding that never has a holder, for a grant that makes no request wait.
    pub(crate) fn nobodys() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// Makes the current thread the holder, because it uses the grant.
    pub(crate) fn used_here(&self, buffer: BufferId, grant: OwnerId) {
        let by = self.0.load(Ordering::Relaxed);
        if by == u64::MAX || is_here(by) {
            return;
        }
        let entry = (buffer, grant);
        let here = add(entry);
        // If two threads use the grant at once, only one exchange succeeds.
        if self.0.compare_exchange(by, here, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            remove(entry, by);
        } else {
            remove(entry, here);
        }
    }

    /// Removes the holder of the grant.
    pub(crate) fn ended(&self, buffer: BufferId, grant: OwnerId) {
        let by = self.0.load(Ordering::Relaxed);
        if by != u64::MAX {
            self.0.store(NOBODY, Ordering::Relaxed);
            remove((buffer, grant), by);
        }
    }
}

struct Held {
    holder: u64,
    list: RefCell<List>,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// An upper bound of the buffers in `entries`. The buffer itself may be gone already.
    at_most: BufferId,
    tidy_at: usize,
}

impl Held {
    fn new() -> Self {
        let holder = NEXT_HOLDER.fetch_add(1, Ordering::Relaxed);
        GONE.with(|notes| notes.insert(holder, BTreeSet::new()));
        let list = List { entries: Vec::new(), at_most: BufferId(0), tidy_at: TIDY_AT };
        Self { holder, list: RefCell::new(list) }
    }

    /// Removes the entries that other threads have noted as gone.
    fn tidy(&self, list: &mut List) {
        GONE.with(|notes| {
            let gone = notes.entry(self.holder).or_default();
            list.entries.retain(|entry| !gone.remove(entry));
            gone.clear();
        });
        list.tidy_at = TIDY_AT.max(list.entries.len() * 2);
        list.at_most = list.entries.iter().map(|(buffer, _)| *buffer).max().unwrap_or_default();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        GONE.with(|notes| notes.remove(&self.holder));
    }
}

thread_local! {
    static HELD: Held = Held::new();
}

fn is_here(holder: u64) -> bool {
    HELD.try_with(|held| held.holder == holder).unwrap_or(false)
}

/// Adds a grant to this thread's list and returns the thread's id. A thread that is ending has no list and returns
/// `NOBODY`.
fn add(entry: Entry) -> u64 {
    let added = HELD.try_with(|held| {
        let mut list = held.list.borrow_mut();
        if list.entries.len() >= list.tidy_at {
            held.tidy(&mut list);
        }
        list.at_most = list.at_most.max(entry.0);
        list.entries.push(entry);
        held.holder
    });
    added.unwrap_or(NOBODY)
}

/// Removes a grant from a thread's list, or leaves a note for that thread.
fn remove(entry: Entry, by: u64) {
    if by == NOBODY {
        return;
    }
    let here = HELD.try_with(|held| {
        if held.holder != by {
            return false;
        }
        let entries = &mut held.list.borrow_mut().entries;
        if let Some(index) = entries.iter().rposition(|other| *other == entry) {
            entries.swap_remove(index);
        }
        true
    });
    if !matches!(here, Ok(true)) {
        GONE.with(|notes| {
            // A thread that has ended has no notes, and waits for nothing.
            if let Some(gone) = notes.get_mut(&by) {
                gone.insert(entry);
            }
        });
    }
}

/// Returns a buffer that this thread holds and that comes at or after `buffer` in the canonical order.
pub(crate) fn at_or_after(buffer: BufferId) -> Option<BufferId> {
    let highest = |list: &List| Some(list.at_most).filter(|held| *held >= buffer && !list.entries.is_empty());
    let found = HELD.try_with(|held| {
        let mut list = held.list.borrow_mut();
        highest(&list)?;
        held.tidy(&mut list);
        highest(&list)
    });
    found.unwrap_or_default()
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    fn elsewhere<R: Send>(act: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| scope.spawn(act).join().expect("it ends"))
    }

    #[test]
    fn a_thread_that_has_ended_leaves_nothing_behind() {
        let entry = (BufferId(1), OwnerId(1));
        let holder = elsewhere(|| add(entry));
        let noted = || GONE.with(|notes| notes.contains_key(&holder));
        assert!(!noted());
        remove(entry, holder);
        assert!(!noted());
    }

    /// A thread that hands all of its grants to others never hears of their release.
    #[test]
    fn the_list_does_not_outgrow_what_is_held() {
        let length = || HELD.with(|held| held.list.borrow().entries.len());
        let holders: Vec<_> = (0..200).map(|buffer| (buffer, add((BufferId(buffer), OwnerId(1))))).collect();
        assert_eq!(length(), 200);
        for (buffer, holder) in holders {
            elsewhere(|| remove((BufferId(buffer), OwnerId(1)), holder));
        }
        (200..300).for_each(|buffer| _ = add((BufferId(buffer), OwnerId(1))));
        assert_eq!(length(), 100);
        assert_eq!(at_or_after(BufferId(299)), Some(BufferId(299)));
        assert_eq!(at_or_after(BufferId(300)), None);
    }

    #[test]
    fn whoever_uses_a_grant_holds_it() {
        let (low, high) = (BufferId(1), BufferId(7));
        let holding = Holding::new(high, OwnerId(1));
        assert_eq!(at_or_after(low), Some(high));
        elsewhere(|| {
            holding.used_here(high, OwnerId(1));
            assert_eq!(at_or_after(low), Some(high));
        });
        assert_eq!(at_or_after(low), None);
        holding.used_here(high, OwnerId(1));
        assert_eq!(at_or_after(low), Some(high));
        holding.ended(high, OwnerId(1));
        assert_eq!(at_or_after(low), None);
    }
}
