//! Which buffers the current thread holds: the ranks for [`AcquireError::OrderViolation`](crate::AcquireError).
//!
//! A grant is held by the thread that used it last, to begin with by the one that was granted it; or by nobody, once it was
//! [handed over](crate::Grants::hand_over) and until it is used. A thread that loses a grant to another, or has it released by
//! another, is not there to strike it off its list: the other leaves a note, which the list is checked against before a
//! violation is reported. A thread that ends, and so has no list any more, holds nothing.

use crate::id::{BufferId, GrantId};
use crate::sync::{StaticMutex, thread_local};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

type Entry = (BufferId, GrantId);

/// Notes for each living thread that holds something: what it holds no longer, by the doing of others.
static GONE: StaticMutex<BTreeMap<u64, BTreeSet<Entry>>> = StaticMutex::new(BTreeMap::new());
static NEXT_HOLDER: AtomicU64 = AtomicU64::new(NOBODY + 1);
/// The holder of what nobody holds.
const NOBODY: u64 = 0;
/// A list shorter than this is not worth tidying.
const TIDY_AT: usize = 64;

/// Which thread holds a grant.
#[derive(Debug)]
pub(crate) struct Holding(AtomicU64);

impl Holding {
    /// The current thread.
    pub(crate) fn new(buffer: BufferId, grant: GrantId) -> Self {
        Self(AtomicU64::new(add((buffer, grant))))
    }

    /// Nobody, for good: the grant keeps nobody waiting.
    pub(crate) fn nobodys() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// The current thread uses the grant, and so holds it.
    pub(crate) fn used_here(&self, buffer: BufferId, grant: GrantId) {
        let by = self.0.load(Ordering::Relaxed);
        if by == u64::MAX || is_here(by) {
            return;
        }
        let entry = (buffer, grant);
        let here = add(entry);
        // Of two threads that use it at once, one is late.
        if self.0.compare_exchange(by, here, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            remove(entry, by);
        } else {
            remove(entry, here);
        }
    }

    /// Nobody holds the grant any more.
    pub(crate) fn ended(&self, buffer: BufferId, grant: GrantId) {
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
    /// No entry is of a later buffer; it may be of one that is not there any more.
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

    /// Strikes off what is gone.
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

/// Notes that this thread holds a grant. A thread that is ending, whose list is gone already, is nobody.
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

/// Notes that a thread does not hold a grant any more.
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
            // A thread that has ended waits for nothing any more.
            if let Some(gone) = notes.get_mut(&by) {
                gone.insert(entry);
            }
        });
    }
}

/// A buffer that this thread holds and that comes at `buffer` or after it in the canonical order.
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
        let entry = (BufferId(1), GrantId(1));
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
        let holders: Vec<_> = (0..200).map(|buffer| (buffer, add((BufferId(buffer), GrantId(1))))).collect();
        assert_eq!(length(), 200);
        for (buffer, holder) in holders {
            elsewhere(|| remove((BufferId(buffer), GrantId(1)), holder));
        }
        (200..300).for_each(|buffer| _ = add((BufferId(buffer), GrantId(1))));
        assert_eq!(length(), 100);
        assert_eq!(at_or_after(BufferId(299)), Some(BufferId(299)));
        assert_eq!(at_or_after(BufferId(300)), None);
    }

    #[test]
    fn whoever_uses_a_grant_holds_it() {
        let (low, high) = (BufferId(1), BufferId(7));
        let holding = Holding::new(high, GrantId(1));
        assert_eq!(at_or_after(low), Some(high));
        elsewhere(|| {
            holding.used_here(high, GrantId(1));
            assert_eq!(at_or_after(low), Some(high));
        });
        assert_eq!(at_or_after(low), None);
        holding.used_here(high, GrantId(1));
        assert_eq!(at_or_after(low), Some(high));
        holding.ended(high, GrantId(1));
        assert_eq!(at_or_after(low), None);
    }
}
