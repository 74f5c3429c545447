//! The buffers that the current thread holds, to detect an
//! [`AcquireError::OrderViolation`](crate::AcquireError).
//!
//! The holder of a grant is the thread that used it last, initially the thread that acquired it. A grant that
//! was [handed over](crate::Grants::hand_over) has no holder until its next use. If another thread uses or
//! releases a grant, the old holder's list still contains it. The other thread then leaves a note, and the
//! list is checked against these notes before a violation is reported. A thread that has ended has no list
//! and holds nothing.

use crate::base::id::{BufferId, OwnerId};
use crate::base::sync::{StaticMutex, thread_local};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};

type Entry = (BufferId, OwnerId);

/// The number of occurrences of each entry. A thread that loses a grant and uses it again lists it twice,
/// until it reads the note of the loss.
type Entries = BTreeMap<Entry, u32>;

/// Number of entries that a list holds without a tree.
const FEW: usize = 16;

/// Notes per living thread: grants on its list that other threads have taken over or ended.
static GONE: StaticMutex<BTreeMap<u64, Entries>> = StaticMutex::new(BTreeMap::new());

static NEXT_HOLDER: AtomicU64 = AtomicU64::new(NOBODY + 1);

/// The holder id of a grant without a holder.
const NOBODY: u64 = 0;

/// Minimum list length at which a thread reads the notes of other threads.
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

    /// Removes the holder of the grant, which gets no other one.
    pub(crate) fn left(&self, buffer: BufferId, grant: OwnerId) {
        self.ended(buffer, grant);
        self.0.store(u64::MAX, Ordering::Relaxed);
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

/// A buffer whose plan a thread carries out in a call. Foreign code that the call runs must not wait for this
/// buffer on the same thread.
#[derive(Debug)]
pub(crate) struct Carried {
    buffer: BufferId,
    grant: OwnerId,
    by: u64,
}

impl Carried {
    pub(crate) fn new(buffer: BufferId, grant: OwnerId) -> Self {
        Self { buffer, grant, by: add((buffer, grant)) }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        remove((self.buffer, self.grant), self.by);
    }
}

struct Held {
    holder: u64,
    list: RefCell<List>,
}

struct List {
    /// The entries, one for each occurrence, while there are few: the first `few_len`.
    few: [Entry; FEW],
    few_len: usize,
    /// The entries in the canonical order of their buffers, once there were more.
    many: Entries,
    tidy_at: usize,
}

impl List {
    fn len(&self) -> usize {
        self.few_len + self.many.len()
    }

    /// Adds one occurrence of an entry.
    #[inline(always)]
    fn add(&mut self, entry: Entry) {
        if self.many.is_empty()
            && let Some(free) = self.few.get_mut(self.few_len)
        {
            *free = entry;
            self.few_len += 1;
            return;
        }
        self.add_to_many(entry);
    }

    #[inline(never)]
    fn add_to_many(&mut self, entry: Entry) {
        for entry in self.few[..take(&mut self.few_len)].iter().copied().chain([entry]) {
            *self.many.entry(entry).or_default() += 1;
        }
    }

    /// Removes up to `times` occurrences of an entry.
    #[inline(always)]
    fn remove(&mut self, entry: Entry, times: u32) {
        if self.many.is_empty() {
            for _ in 0..times {
                let few = &mut self.few[..self.few_len];
                let Some(place) = few.iter().rposition(|few| *few == entry) else { break };
                few[place] = few[few.len() - 1];
                self.few_len -= 1;
            }
        } else if let MapEntry::Occupied(mut there) = self.many.entry(entry) {
            match there.get().saturating_sub(times) {
                0 => drop(there.remove()),
                left => *there.get_mut() = left,
            }
        }
    }

    /// Returns the last buffer in canonical order.
    fn last(&self) -> Option<BufferId> {
        let many = self.many.last_key_value().map(|(&(buffer, _), _)| buffer);
        many.or_else(|| self.few[..self.few_len].iter().map(|&(buffer, _)| buffer).max())
    }

    /// Returns the grants of a buffer.
    fn of(&self, buffer: BufferId) -> Vec<OwnerId> {
        let many = self.many.range((buffer, OwnerId(0))..=(buffer, OwnerId(u64::MAX)));
        let few = self.few[..self.few_len].iter().filter(|(few, _)| *few == buffer);
        many.map(|(&(_, grant), _)| grant).chain(few.map(|&(_, grant)| grant)).collect()
    }
}

impl Held {
    fn new() -> Self {
        let holder = NEXT_HOLDER.fetch_add(1, Ordering::Relaxed);
        GONE.with(|notes| notes.insert(holder, Entries::new()));
        let nothing = (BufferId(0), OwnerId(0));
        let list = List { few: [nothing; FEW], few_len: 0, many: Entries::new(), tidy_at: TIDY_AT };
        Self { holder, list: RefCell::new(list) }
    }

    /// Removes the entries that other threads have noted as gone.
    ///
    /// # Complexity
    /// O(g log n) for g notes and n entries.
    fn tidy(&self, list: &mut List) {
        let gone = GONE.with(|notes| take(notes.entry(self.holder).or_default()));
        for (entry, times) in gone {
            list.remove(entry, times);
        }
        list.tidy_at = TIDY_AT.max(list.len() * 2);
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

/// Adds a grant to this thread's list and returns the thread's id. A thread that is ending has no list, and
/// returns the id of a grant without a holder.
#[inline(always)]
fn add(entry: Entry) -> u64 {
    let added = HELD.try_with(|held| {
        let mut list = held.list.borrow_mut();
        if list.len() >= list.tidy_at {
            held.tidy(&mut list);
        }
        list.add(entry);
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
        held.list.borrow_mut().remove(entry, 1);
        true
    });
    if !matches!(here, Ok(true)) {
        GONE.with(|notes| {
            // A thread that has ended has no notes, and waits for nothing.
            if let Some(gone) = notes.get_mut(&by) {
                *gone.entry(entry).or_default() += 1;
            }
        });
    }
}

/// Returns whether this thread holds a buffer.
pub(crate) fn holds(buffer: BufferId) -> bool {
    !grants(buffer).is_empty()
}

/// Returns the grants of a buffer that this thread holds.
pub(crate) fn grants(buffer: BufferId) -> Vec<OwnerId> {
    let found = HELD.try_with(|held| {
        let mut list = held.list.borrow_mut();
        if list.of(buffer).is_empty() {
            return Vec::new();
        }
        held.tidy(&mut list);
        list.of(buffer)
    });
    found.unwrap_or_default()
}

/// Returns a buffer that this thread holds and that comes at or after `buffer` in the canonical order.
pub(crate) fn at_or_after(buffer: BufferId) -> Option<BufferId> {
    let highest = |list: &List| list.last().filter(|held| *held >= buffer);
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

    /// A thread that hands all of its grants to others is never notified of their release.
    #[test]
    fn the_list_does_not_outgrow_what_is_held() {
        let length = || HELD.with(|held| held.list.borrow().len());
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

    #[test]
    fn a_buffer_counts_as_held_while_its_plan_is_carried_out() {
        let buffer = BufferId(3);
        let carried = Carried::new(buffer, OwnerId(1));
        assert_eq!(at_or_after(buffer), Some(buffer));
        let holding = Holding::new(buffer, OwnerId(1));
        drop(carried);
        assert_eq!(at_or_after(buffer), Some(buffer), "the grant that it became");
        holding.ended(buffer, OwnerId(1));
        assert_eq!(at_or_after(buffer), None);
    }

    /// The old entry and the new one are of the same grant: the other thread's note is about the old one.
    #[test]
    fn a_grant_that_comes_and_goes_is_held_as_often_as_it_came() {
        let (low, high) = (BufferId(1), BufferId(7));
        let holding = Holding::new(high, OwnerId(1));
        for _ in 0..3 {
            elsewhere(|| holding.used_here(high, OwnerId(1)));
            holding.used_here(high, OwnerId(1));
        }
        assert_eq!(at_or_after(low), Some(high));
        elsewhere(|| holding.used_here(high, OwnerId(1)));
        assert_eq!(at_or_after(low), None, "each hand-over ended one occurrence");
    }

    /// Ends grants in the order of their acquires, and checks the list before each end. A cost per step that
    /// grows with the list makes the test take minutes.
    #[test]
    fn very_many_grants_end_in_the_order_of_their_acquires() {
        const MANY: u64 = 500_000;
        let holdings: Vec<_> = (1..=MANY).map(|id| (id, Holding::new(BufferId(9), OwnerId(id)))).collect();
        for (id, holding) in &holdings {
            assert_eq!(at_or_after(BufferId(8)), Some(BufferId(9)));
            holding.ended(BufferId(9), OwnerId(*id));
        }
        assert_eq!(at_or_after(BufferId(0)), None);
    }
}
