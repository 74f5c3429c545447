//! The requestor-set, and an index of it for buffers that very many kernels use at once.
//!
//! A small set is searched linearly, as in the specification. Beyond [`INDEXED`] entries, an index gives the
//! same answers in O(log n). The index is derived from the entries, so comparisons of states ignore it.

use super::requestors::{Phase, Requestor, writes};
use super::stream::{Parts, cut_written};
use super::users::User;
use crate::base::access::{Claim, Claims};
use crate::base::id::{ArenaId, ArenaSet, KernelId, OwnerId};
use crate::base::range::Span;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Number of entries beyond which the set has an index.
const INDEXED: usize = 32;
/// Number of entries up to which a request looks at each of them before it asks for a plan.
const FEW: usize = 8;

/// The entries of a buffer's requestor-set.
#[derive(Debug, Default)]
pub(super) struct Requestors {
    entries: SmallVec<[Requestor; 1]>,
    index: Option<Box<Index>>,
}

/// The number of entries on each stream, and of those that write.
#[derive(Clone, Debug, Default)]
struct Streamed(SmallVec<[(ArenaId, usize, usize); 1]>);

impl Streamed {
    fn add(&mut self, entry: &Requestor) {
        let Some(stream) = entry.on_stream() else { return };
        let writers = usize::from(entry.writes());
        match self.0.iter_mut().find(|(arena, ..)| *arena == stream) {
            Some((_, all, writing)) => (*all, *writing) = (*all + 1, *writing + writers),
            None => self.0.push((stream, 1, writers)),
        }
    }

    fn remove(&mut self, entry: &Requestor) {
        let Some(stream) = entry.on_stream() else { return };
        if let Some((_, all, writing)) = self.0.iter_mut().find(|(arena, ..)| *arena == stream) {
            (*all, *writing) = (*all - 1, *writing - usize::from(entry.writes()));
        }
        self.0.retain(|(_, all, _)| *all > 0);
    }

    /// Returns the number of entries on a stream, and of those that write.
    fn on(&self, stream: ArenaId) -> (usize, usize) {
        let known = self.0.iter().find(|(arena, ..)| *arena == stream);
        known.map_or((0, 0), |(_, all, writing)| (*all, *writing))
    }
}

/// An index of the entries, by grant, bytes and arena.
#[derive(Debug, Default)]
struct Index {
    /// The position of each grant's entry.
    places: BTreeMap<OwnerId, usize>,
    read: Intervals<()>,
    written: Intervals<()>,
    claimed: Intervals<KernelId>,
    /// The grants with bytes, by their arena and by whether they write.
    users: BTreeMap<(ArenaId, bool), BTreeSet<OwnerId>>,
    /// The number of entries of each arena.
    requested: BTreeMap<ArenaId, usize>,
    /// The entries on streams.
    streamed: Streamed,
}

/// Spans of grants, by key; they may overlap. Within one size class, spans are ordered by their starts. A
/// span that meets given bytes begins at most one class length before them.
#[derive(Debug, Default)]
struct Intervals<K> {
    /// The end of each span, by key, size class, start and grant.
    ends: BTreeMap<(K, u32, u64, OwnerId), u64>,
    /// The number of spans of each size class.
    classes: BTreeMap<u32, usize>,
}

impl<K: Copy + Ord> Intervals<K> {
    /// The number of bits of a length: a span of class c is shorter than 2^c bytes.
    fn class(span: Span) -> u32 {
        u64::BITS - span.len().leading_zeros()
    }

    fn insert(&mut self, key: K, span: Span, grant: OwnerId) {
        let class = Self::class(span);
        self.ends.insert((key, class, span.start(), grant), span.end());
        *self.classes.entry(class).or_default() += 1;
    }

    fn remove(&mut self, key: K, span: Span, grant: OwnerId) {
        let class = Self::class(span);
        if self.ends.remove(&(key, class, span.start(), grant)).is_some()
            && let Some(count) = self.classes.get_mut(&class)
        {
            *count -= 1;
            if *count == 0 {
                self.classes.remove(&class);
            }
        }
    }

    /// Returns the grants of the spans under `key` that share a byte with `span`, once per span.
    fn meeting(&self, key: K, span: Span) -> impl Iterator<Item = OwnerId> + '_ {
        let (start, end) = (span.start(), span.end());
        self.classes.keys().flat_map(move |&class| {
            let longest = 1_u64.checked_shl(class).map_or(u64::MAX, |bound| bound - 1);
            let first = start.saturating_sub(longest);
            let begun = self.ends.range((key, class, first, OwnerId(0))..(key, class, end, OwnerId(0)));
            begun.filter(move |(_, ends)| **ends > start).map(|(&(.., grant), _)| grant)
        })
    }
}

impl Index {
    fn new(entries: &[Requestor]) -> Self {
        let mut index = Self::default();
        for (place, entry) in entries.iter().enumerate() {
            index.add(place, entry);
        }
        index
    }

    fn add(&mut self, place: usize, entry: &Requestor) {
        self.places.insert(entry.grant, place);
        *self.requested.entry(entry.arena).or_default() += 1;
        self.streamed.add(entry);
        self.add_claims(entry);
    }

    fn add_claims(&mut self, entry: &Requestor) {
        for claim in &entry.claims {
            let side = if claim.access.writes() { &mut self.written } else { &mut self.read };
            side.insert((), claim.span, entry.grant);
            self.claimed.insert(entry.kernel, claim.span, entry.grant);
        }
        if !entry.claims.is_empty() {
            self.users.entry((entry.arena, entry.writes())).or_default().insert(entry.grant);
        }
    }

    fn remove(&mut self, entry: &Requestor) {
        self.places.remove(&entry.grant);
        self.streamed.remove(entry);
        if let Some(count) = self.requested.get_mut(&entry.arena) {
            *count -= 1;
            if *count == 0 {
                self.requested.remove(&entry.arena);
            }
        }
        self.remove_claims(entry);
    }

    fn remove_claims(&mut self, entry: &Requestor) {
        for claim in &entry.claims {
            let side = if claim.access.writes() { &mut self.written } else { &mut self.read };
            side.remove((), claim.span, entry.grant);
            self.claimed.remove(entry.kernel, claim.span, entry.grant);
        }
        if let Some(users) = self.users.get_mut(&(entry.arena, entry.writes())) {
            users.remove(&entry.grant);
        }
    }

    fn meeting(&self, span: Span) -> impl Iterator<Item = OwnerId> + '_ {
        self.written.meeting((), span).chain(self.read.meeting((), span))
    }
}

impl Requestors {
    /// Returns the position of a grant's entry.
    pub(super) fn place(&self, grant: OwnerId) -> Option<usize> {
        match &self.index {
            Some(index) => index.places.get(&grant).copied(),
            None => self.entries.iter().position(|entry| entry.grant == grant),
        }
    }

    /// Records that the kernel of the entry at a position has started. If an equal kernel is on its stream,
    /// one entry stands for both, so that many equal kernels cost no more than one. Returns whether there is
    /// one.
    pub(super) fn start(&mut self, place: usize) -> bool {
        if let Some(index) = &mut self.index {
            let entry = &mut self.entries[place];
            index.streamed.remove(entry);
            entry.phase = Phase::InFlight;
            index.streamed.add(entry);
            return false;
        }
        let Requestor { grant, kernel, arena, seq_at_grant, .. } = self.entries[place];
        let entry = &self.entries[place];
        let equal = if entry.is_submission { self.on_stream(arena, &entry.claims) } else { None };
        let Some(equal) = equal else {
            self.entries[place].phase = Phase::InFlight;
            return false;
        };
        let equal = &mut self.entries[equal];
        (equal.grant, equal.kernel, equal.seq_at_grant) = (grant, kernel, seq_at_grant);
        equal.kernels += 1;
        self.remove_of_few(place);
        true
    }

    /// Returns the position of the first entry on a stream with these claims.
    pub(super) fn on_stream(&self, arena: ArenaId, claims: &Claims) -> Option<usize> {
        let is_it = |entry: &Requestor| entry.on_stream() == Some(arena) && entry.claims == *claims;
        self.entries.iter().position(is_it)
    }

    /// Returns the number of entries on a stream, and of those that write.
    fn on(&self, stream: ArenaId) -> (usize, usize) {
        match &self.index {
            Some(index) => index.streamed.on(stream),
            None => {
                let there = self.entries.iter().filter(|entry| entry.on_stream() == Some(stream));
                there.fold((0, 0), |(all, writing), entry| (all + 1, writing + usize::from(entry.writes())))
            }
        }
    }

    /// Returns the stream on which all entries are.
    pub(super) fn only_stream(&self) -> Option<ArenaId> {
        let stream = self.entries.first()?.on_stream()?;
        (self.on(stream).0 == self.entries.len()).then_some(stream)
    }

    /// Returns whether a kernel on a stream writes any byte of a span.
    pub(super) fn streams_write(&self, span: Span) -> bool {
        let writes =
            |entry: &Requestor| entry.claims.touching(span).iter().any(|claim| claim.access.writes());
        self.entries.iter().any(|entry| entry.on_stream().is_some() && writes(entry))
    }

    /// Removes one of several kernels of the entry at a position. Returns whether others are left.
    pub(super) fn ends_one(&mut self, place: usize) -> bool {
        let entry = &mut self.entries[place];
        if entry.kernels > 1 {
            entry.kernels -= 1;
            return true;
        }
        false
    }

    /// Returns the entry of a grant. The caller may change its phase until it starts, and its commit number,
    /// and nothing else.
    pub(super) fn find_mut(&mut self, grant: OwnerId) -> Option<&mut Requestor> {
        let place = self.place(grant)?;
        Some(&mut self.entries[place])
    }

    pub(super) fn push(&mut self, entry: Requestor) {
        if let Some(index) = &mut self.index {
            index.add(self.entries.len(), &entry);
        }
        self.entries.push(entry);
        if self.index.is_none() && self.entries.len() > INDEXED {
            self.index = Some(Box::new(Index::new(&self.entries)));
        }
    }

    /// Returns the entries, if there are few: then they have no index.
    #[inline(always)]
    pub(super) fn few(&self) -> Option<&[Requestor]> {
        (self.entries.len() <= FEW && self.index.is_none()).then_some(&self.entries)
    }

    /// Adds a granted entry to few.
    #[inline(always)]
    pub(super) fn push_to_few(&mut self, entry: Requestor) {
        debug_assert!(self.few().is_some() && entry.on_stream().is_none());
        self.entries.push(entry);
    }

    /// Removes the entry at a position, without an index. The last entry moves there.
    #[inline(always)]
    pub(super) fn remove_of_few(&mut self, place: usize) {
        let last = self.entries.len() - 1;
        if place != last {
            self.entries.swap(place, last);
        }
        self.entries.truncate(last);
        if last == 0 && self.entries.spilled() {
            self.entries.shrink_to_fit();
        }
    }

    /// Removes the entry at a position. The last entry moves there.
    pub(super) fn swap_remove(&mut self, place: usize) -> Requestor {
        let entry = self.entries.swap_remove(place);
        if let Some(index) = &mut self.index {
            index.remove(&entry);
            if let Some(moved) = self.entries.get(place) {
                index.places.insert(moved.grant, place);
            }
        }
        if self.entries.len() <= INDEXED / 2 {
            self.index = None;
        }
        entry
    }

    /// Removes the entry of a grant whose plan was given up. Without an index, the entries keep their order.
    pub(super) fn forget(&mut self, grant: OwnerId) {
        let place = self.place(grant).filter(|place| self[*place].phase == Phase::Preparing);
        match (place, self.index.is_some()) {
            (Some(place), true) => drop(self.swap_remove(place)),
            (Some(place), false) => drop(self.entries.remove(place)),
            (None, _) => {}
        }
    }

    /// Replaces the claims of the entry at a position.
    pub(super) fn set_claims(&mut self, place: usize, claims: Claims) {
        let Self { entries, index } = self;
        if let Some(index) = index {
            index.remove_claims(&entries[place]);
            index.streamed.remove(&entries[place]);
        }
        entries[place].set_claims(claims);
        if let Some(index) = index {
            index.streamed.add(&entries[place]);
            index.add_claims(&entries[place]);
        }
    }

    /// Sorts the entries by grant, and resets their commit numbers.
    pub(super) fn make_canonical(&mut self) {
        self.entries.sort_by_key(|entry| entry.grant);
        self.entries.iter_mut().for_each(|entry| entry.seq_at_grant = crate::base::id::Seq(0));
        self.index = self.index.take().map(|_| Box::new(Index::new(&self.entries)));
    }

    /// Returns whether a claim of any entry conflicts with any of `claims`, apart from the entries on a
    /// stream that the request follows.
    pub(super) fn conflict(&self, claims: &Claims, stream: Option<ArenaId>) -> bool {
        if stream.is_some_and(|stream| self.on(stream).0 == self.entries.len()) {
            return false;
        }
        let follows = |entry: &Requestor| stream.is_some() && entry.on_stream() == stream;
        let Some(index) = &self.index else {
            return self.entries.iter().any(|entry| !follows(entry) && entry.conflicts(claims));
        };
        let bars = |grant| index.places.get(&grant).is_some_and(|place| !follows(&self.entries[*place]));
        let meets = |claim: &Claim| match claim.access.writes() {
            true => index.meeting(claim.span).any(bars),
            false => index.written.meeting((), claim.span).any(bars),
        };
        claims.iter().any(meets)
    }

    /// Adds the parts of a span that no entry on a stream writes.
    pub(super) fn add_not_written_on(&self, stream: ArenaId, span: Span, parts: &mut Parts) {
        let kept = parts.len();
        parts.push(span);
        if self.on(stream).1 == 0 {
            return;
        }
        let mut cut = |entry: &Requestor| {
            if entry.on_stream() == Some(stream) {
                cut_written(parts, kept, entry);
            }
            parts.len() == kept
        };
        match &self.index {
            Some(index) => {
                let mut places = index.written.meeting((), span).filter_map(|grant| index.places.get(&grant));
                places.any(|place| cut(&self.entries[*place]));
            }
            None => {
                self.entries.iter().rev().any(cut);
            }
        }
    }

    /// Returns the first bytes that the first entry of `kernel` has in common with `claims`.
    pub(super) fn held_by(&self, kernel: KernelId, claims: &Claims) -> Option<Span> {
        let shared = |entry: &Requestor| {
            let mut pairs = entry.claims.meeting(claims);
            pairs.find_map(|(held, new)| held.span.intersection(new.span))
        };
        let Some(index) = &self.index else {
            return self.entries.iter().filter(|entry| entry.kernel == kernel).find_map(shared);
        };
        let meeting = claims.iter().flat_map(|claim| index.claimed.meeting(kernel, claim.span));
        let first = meeting.filter_map(|grant| index.places.get(&grant)).min()?;
        shared(&self.entries[*first])
    }

    /// Returns whether an entry claims any byte of `span`.
    pub(super) fn claim(&self, span: Span) -> bool {
        match &self.index {
            _ if span.is_empty() => false,
            Some(index) => index.meeting(span).next().is_some(),
            None => self.entries.iter().any(|entry| !entry.claims.touching(span).is_empty()),
        }
    }

    /// Returns the arenas of the entries that claim any byte of `span`, which must not be empty.
    pub(super) fn arenas_claiming(&self, span: Span) -> ArenaSet {
        match &self.index {
            Some(index) => {
                let places = index.meeting(span).filter_map(|grant| index.places.get(&grant));
                places.map(|place| self.entries[*place].arena).collect()
            }
            None => {
                let held = self.entries.iter().filter(|entry| !entry.claims.touching(span).is_empty());
                held.map(|entry| entry.arena).collect()
            }
        }
    }

    /// Returns the arenas of all entries.
    pub(super) fn arenas(&self) -> ArenaSet {
        match &self.index {
            Some(index) => index.requested.keys().copied().collect(),
            None => self.entries.iter().map(|entry| entry.arena).collect(),
        }
    }

    /// Returns the uses of storage by the entries with bytes, through the native devices of their arenas.
    ///
    /// With an index, two entries represent all entries of one arena and access. For every owner, one of the
    /// two belongs to another owner, if any entry does.
    pub(super) fn users(&self, native: impl Fn(ArenaId) -> crate::base::id::DeviceId) -> SmallVec<[User; 4]> {
        let user = |owner, arena, writes| User { owner, arena, device: native(arena), writes };
        match &self.index {
            Some(index) => {
                let two = |(&(arena, writes), grants): (&(ArenaId, bool), &BTreeSet<OwnerId>)| {
                    let owners: SmallVec<[OwnerId; 2]> = grants.iter().take(2).copied().collect();
                    owners.into_iter().map(move |owner| (owner, arena, writes))
                };
                let all = index.users.iter().flat_map(two);
                all.map(|(owner, arena, writes)| user(owner, arena, writes)).collect()
            }
            None => {
                let with_bytes = self.entries.iter().filter(|entry| !entry.claims.is_empty());
                with_bytes.map(|entry| user(entry.grant, entry.arena, writes(&entry.claims))).collect()
            }
        }
    }

    /// Returns the entries for arbitrary changes, and drops the index.
    #[cfg(test)]
    pub(super) fn entries_mut(&mut self) -> &mut [Requestor] {
        self.index = None;
        &mut self.entries
    }
}

impl Deref for Requestors {
    type Target = [Requestor];

    fn deref(&self) -> &[Requestor] {
        &self.entries
    }
}

/// A clone has no index until an entry is added: most clones are only inspected.
impl Clone for Requestors {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), index: None }
    }
}

impl PartialEq for Requestors {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Eq for Requestors {}

impl Hash for Requestors {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries.hash(state);
    }
}

#[cfg(test)]
mod tests;
