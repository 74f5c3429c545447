//! The choice of a path for missing bytes, and the planning of its hops one after the other.
//!
//! ```text
//!   search on the arenas before the path ─▶ path ─hop─▶ arenas after the hop ─hop─▶ ... ─▶ destination valid
//!        ▲                                          judged again on each
//!        └────────── without the hop that turned out dearer, or impossible
//! ```
//! The needs of a hop depend on storage, bindings and map states, and earlier hops change these. One hop may
//! bind an arena to another's storage, and then bytes cannot be copied between the two any more. Each hop is
//! therefore judged on the arenas as they will be at its turn. A path that turns out dearer competes at its
//! real cost.

use super::BusyReason;
use super::crowd::Requestors;
use super::plan::{Draft, Mark, NoPlan, Planner};
use super::{Alloc, BufferState, Path, PathKey, Refusal};
use crate::base::cost::Cost;
use crate::base::id::{ArenaId, ArenaSet, DeviceId, LinkId};
use crate::base::range::Span;
use crate::memory::desc::Concurrency;
use crate::memory::link::{Allocation, CopyQuery, Link};
use smallvec::SmallVec;

/// Missing bytes, reduced to the properties that its path depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// The arenas where the bytes are valid, and the destinations of the hops so far. Arenas that share
    /// storage coherently with such a destination are left out: the execution waits for a copy to exactly the
    /// arena that the next copy reads.
    pub(super) valid: ArenaSet,
    /// The size class: the number of bytes, rounded up to a power of two.
    pub(super) class_bytes: u64,
    pub(super) disturbed: Disturbed,
}

/// The arenas in which others use a run of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Disturbed {
    /// The arenas in which kernels hold some of the bytes.
    pub(super) held: ArenaSet,
    /// The arenas into which other copies bring some of the bytes.
    pub(super) filled: ArenaSet,
}

/// Maximum number of paths that one plan remembers. They are searched linearly.
const KNOWN_PATHS: usize = 64;

/// Minimum size of a piece of a copy in several hops, in bytes. Copying a piece should take much longer than
/// starting it.
const LEAST_PIECE_BYTES: u64 = 8 << 20;
/// Maximum number of pieces of such a copy. The first and the last piece overlap with nothing, and should be
/// a small part of the whole.
const MOST_PIECES: u64 = 16;
/// Alignment of the boundaries of pieces, in bytes: a page.
const PIECE_ALIGN_BYTES: u64 = 4096;

/// Returns the size of the pieces in which a run of bytes crosses a path of several hops.
fn piece_bytes(span: Span) -> u64 {
    let even = span.len().div_ceil(MOST_PIECES).max(LEAST_PIECE_BYTES);
    even.checked_next_multiple_of(PIECE_ALIGN_BYTES).unwrap_or(u64::MAX)
}

/// The bytes in use: those held by kernels, and those written by copies.
pub(super) struct Traffic<'a> {
    held: &'a Requestors,
    /// The spans being filled, per destination, ordered by start. Each entry stores the greatest end so far.
    filled: SmallVec<[Filled; 2]>,
}

/// A destination of copies, with the starts and ends of their spans.
type Filled = (ArenaId, Vec<(u64, u64)>);

impl<'a> Traffic<'a> {
    pub(super) fn new(state: &'a BufferState) -> Self {
        let mut filled: SmallVec<[Filled; 2]> = SmallVec::new();
        for copy in &state.copies {
            let ends = (copy.span.start(), copy.span.end());
            match filled.iter_mut().find(|(to, _)| *to == copy.to) {
                Some((_, spans)) => spans.push(ends),
                None => filled.push((copy.to, vec![ends])),
            }
        }
        for (_, spans) in &mut filled {
            spans.sort_unstable();
            let mut reach = 0;
            for (_, end) in spans {
                reach = reach.max(*end);
                *end = reach;
            }
        }
        Self { held: &state.requestors, filled }
    }

    /// Returns the arenas in which others use `span`, which must not be empty.
    pub(super) fn on(&self, span: Span) -> Disturbed {
        let fills = |spans: &[(u64, u64)]| {
            let before = spans.partition_point(|(start, _)| *start < span.end());
            before > 0 && spans[before - 1].1 > span.start()
        };
        let filled = self.filled.iter().filter(|(_, spans)| fills(spans));
        Disturbed { held: self.held.arenas_claiming(span), filled: filled.map(|(to, _)| *to).collect() }
    }
}

/// The way in which data crosses a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossing {
    /// Bytes are copied into the destination's own storage.
    Bytes,
    /// No bytes move: the ends share their storage, and the map state changes.
    Refresh,
    /// No bytes move, after the destination has been bound to the source's storage.
    Bind(Concurrency),
}

/// The result of planning the hops of a path one after the other.
enum Walked {
    /// The path costs no more than the search had computed.
    AsPlanned,
    /// The path is feasible, but dearer. These are the real costs of its hops.
    Dearer(SmallVec<[(LinkId, Cost); 4]>),
    /// This hop is infeasible at its turn.
    Impassable(LinkId),
}

impl Planner<'_> {
    /// Plans how a run of bytes becomes valid in the destination, by the cheapest path.
    pub(super) fn lead(&mut self, span: Span, missing: Missing) -> Result<(), NoPlan> {
        let Some(path) = self.path(&missing, &[]) else { return self.follow(span, missing) };
        if let [link] = path.links[..]
            && !self.shares_before(link)
        {
            self.draft.cost = self.draft.cost + path.cost;
            return self.hop(link, span, span.len());
        }
        let before = self.mark();
        match self.walk(&path, span, missing) {
            Walked::AsPlanned => Ok(()),
            walked => self.detour(&before, walked, span, missing),
        }
    }

    /// Searches another path after one turned out dearer or infeasible. The draft still contains the path
    /// `walked`.
    fn detour(&mut self, before: &Mark, walked: Walked, span: Span, missing: Missing) -> Result<(), NoPlan> {
        let mut barred: SmallVec<[LinkId; 4]> = SmallVec::new();
        let mut best: Option<(Cost, Draft)> = None;
        let mut next = Some(walked);
        while let Some(walked) = next {
            let draft = self.take_back(before);
            barred.push(match walked {
                Walked::AsPlanned => {
                    self.put_back(draft);
                    return Ok(());
                }
                Walked::Impassable(link) => link,
                Walked::Dearer(prices) => {
                    let cost = prices.iter().fold(Cost::ZERO, |sum, (_, price)| sum + *price);
                    if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        best = Some((cost, draft));
                    }
                    let dearer = |(link, price): &&(LinkId, Cost)| {
                        self.edge(*link, &missing, false).is_some_and(|seemed| seemed < *price)
                    };
                    prices.iter().find(dearer).map_or(prices[0].0, |(link, _)| *link)
                }
            });
            let path = self.path(&missing, &barred);
            // A remaining path is useful only if its estimate is below the best real cost.
            let path = path.filter(|path| best.as_ref().is_none_or(|(least, _)| path.cost < *least));
            next = path.map(|path| self.walk(&path, span, missing));
        }
        match best {
            Some((_, draft)) => {
                self.put_back(draft);
                Ok(())
            }
            None => self.follow(span, missing),
        }
    }

    /// Plans the hops of a path, each judged on the arenas as the earlier hops leave them.
    fn walk(&mut self, path: &Path, span: Span, mut missing: Missing) -> Walked {
        let mut prices = SmallVec::new();
        // A hop copies a piece while the hop before it copies the next one.
        let piece_bytes = if path.links.len() > 1 { piece_bytes(span) } else { span.len() };
        for &link in &path.links {
            let is_ready = self.share_before(link).is_ok();
            let price = if is_ready { self.edge(link, &missing, false) } else { None };
            let Some(price) = price.filter(|_| self.hop(link, span, piece_bytes).is_ok()) else {
                return Walked::Impassable(link);
            };
            prices.push((link, price));
            self.draft.cost = self.draft.cost + price;
            missing.valid = missing.valid.with(self.routes.link(link).to);
        }
        let cost = prices.iter().fold(Cost::ZERO, |sum, (_, price)| sum + *price);
        if cost > path.cost { Walked::Dearer(prices) } else { Walked::AsPlanned }
    }

    /// Plans hop by hop while a path exists, and repeats the search after each hop. This covers cases that no
    /// single path can solve. Every hop makes another arena valid, so the loop ends.
    fn follow(&mut self, span: Span, mut missing: Missing) -> Result<(), NoPlan> {
        let before = missing.valid;
        while !missing.valid.contains(self.to) {
            let Some(path) = self.path(&missing, &[]) else { return Err(self.no_path(span, &missing)) };
            let Some(&link) = path.links.first() else { return Ok(()) };
            if self.shares_before(link) {
                self.share_before(link)?;
                // The shared storage may already be valid, and bytes are never copied within it.
                missing.valid = missing.valid.union(self.will_be_valid(before));
                continue;
            }
            if let Some(price) = self.edge(link, &missing, false) {
                self.draft.cost = self.draft.cost + price;
            }
            self.hop(link, span, span.len())?;
            missing.valid = missing.valid.with(self.routes.link(link).to);
        }
        Ok(())
    }

    fn no_path(&self, span: Span, missing: &Missing) -> NoPlan {
        let Some(path) = self.search(missing, &[], true) else {
            return NoPlan::Refused(Refusal::Unreachable { arena: self.to, span });
        };
        let on_path = path.links.iter().flat_map(|&link| {
            let link = self.routes.link(link);
            [link.from, link.to]
        });
        let needs = on_path.fold(self.group(self.to), |set, arena| set.union(self.group(arena)));
        let moving = needs.iter().any(|arena| self.in_transition(arena));
        NoPlan::Busy(if moving { BusyReason::InTransition } else { BusyReason::ArenaInUse }, needs)
    }

    /// Returns the cheapest path for a run of missing bytes that avoids the links in `barred`. Equal runs
    /// have equal paths as long as the draft's arenas do not change.
    fn path(&mut self, missing: &Missing, barred: &[LinkId]) -> Option<Path> {
        if barred.is_empty()
            && let Some((_, path)) = self.known.iter().find(|(known, _)| known == missing)
        {
            return Some(path.clone());
        }
        let path = self.search(missing, barred, false)?;
        if barred.is_empty() {
            if self.known.len() == KNOWN_PATHS {
                self.known.clear();
            }
            self.known.push((*missing, path.clone()));
        }
        Some(path)
    }

    /// Searches the cheapest path; with `assume_idle`, as if there were no users.
    fn search(&self, missing: &Missing, barred: &[LinkId], assume_idle: bool) -> Option<Path> {
        let state = self.state;
        let quiet = state.requestors.is_empty() && state.copies.is_empty();
        let simple = barred.is_empty()
            && self.arenas().all(|arena| {
                let arena = self.at(arena);
                let binds = matches!(arena.alloc, Alloc::Bound { .. });
                !arena.is_lost() && arena.transition.is_none() && !binds
            });
        let mut edge =
            |link| if barred.contains(&link) { None } else { self.edge(link, missing, assume_idle) };
        if (quiet || assume_idle) && simple {
            let key = PathKey {
                sources: missing.valid,
                to: self.to,
                class_bytes: missing.class_bytes,
                writes: self.writes,
                allocated: self.arenas().filter(|&arena| self.at(arena).alloc.is_allocated()).collect(),
                maps: self.arenas().map(|arena| self.at(arena).map).collect(),
            };
            self.routes.cheapest_idle(key, &mut edge)
        } else {
            self.routes.cheapest(missing.valid, self.to, &mut edge)
        }
    }

    fn arenas(&self) -> impl Iterator<Item = ArenaId> + use<> {
        self.state.arena_ids()
    }

    /// Returns how data would cross a link now, or `None` where its storage does not allow that.
    fn crossing(&self, id: LinkId, valid: ArenaSet) -> Option<Crossing> {
        let link = self.routes.link(id);
        let (from, to) = (self.at(link.from), self.at(link.to));
        let group = self.group(link.to);
        let shared = group.contains(link.from);
        match link.allocation {
            Allocation::Bound(_) | Allocation::Shared if shared => Some(Crossing::Refresh),
            Allocation::Bound(concurrency) if !to.alloc.is_allocated() && self.routes.may_bind(id) => {
                let is_root = match from.alloc {
                    Alloc::Internal | Alloc::External => true,
                    // The earlier hop that leads to the root allocates its storage.
                    Alloc::Unallocated => self.routes.is_needed(id),
                    // A bound arena never becomes a root (I-10).
                    Alloc::Bound { .. } => false,
                };
                is_root.then_some(Crossing::Bind(concurrency))
            }
            Allocation::Bound(_) | Allocation::Shared => None,
            Allocation::Internal if shared => None,
            // A failed byte copy over a valid peer's storage would shrink the valid-set, so only a refresh is
            // legal.
            Allocation::Internal => valid.intersection(group).is_empty().then_some(Crossing::Bytes),
        }
    }

    /// Returns the cost of a link for a run of bytes on the draft's arenas, or `None` where the link is
    /// infeasible.
    fn edge(&self, id: LinkId, missing: &Missing, assume_idle: bool) -> Option<Cost> {
        let link = self.routes.link(id);
        if self.at(link.from).is_lost() || self.at(link.to).is_lost() || missing.valid.contains(link.to) {
            return None;
        }
        let crossing = self.crossing(id, missing.valid)?;
        let writes = crossing == Crossing::Bytes || (self.writes && link.to == self.to);
        let native = self.routes.arena(link.to).native;
        let (source_via, target_via) = match crossing {
            Crossing::Bytes => (Some(link.source_via), link.target_via),
            Crossing::Refresh | Crossing::Bind(_) => (None, native),
        };
        if !assume_idle {
            let free = self.destination_free(link.to, &missing.disturbed, crossing != Crossing::Bytes);
            let still = !self.in_transition(link.from) && !self.in_transition(link.to);
            if !(free && still && self.accessible(link, crossing, native, writes)) {
                return None;
            }
        }
        let served = |arena: ArenaId, device, writes| {
            let desc = self.routes.arena(arena);
            self.at(arena).map.serves(desc, self.tenancy().concurrency(arena), device, writes)
        };
        let allocates = !self.at(link.to).alloc.is_allocated();
        let query = CopyQuery {
            bytes: missing.class_bytes,
            remap_source: source_via.is_some_and(|via| !served(link.from, via, false)),
            remap_target: !served(link.to, target_via, writes),
            allocates,
        };
        let cost = self.routes.cost(id, &query).filter(|cost| cost.is_feasible())?;
        Some(if allocates { cost + self.routes.arena(link.to).alloc_cost } else { cost })
    }

    /// Returns whether the devices that would do the work can get access beside all other users.
    fn accessible(&self, link: &Link, crossing: Crossing, native: DeviceId, writes: bool) -> bool {
        match crossing {
            Crossing::Bytes => {
                self.reachable(link.from, link.source_via, false)
                    && self.reachable(link.to, link.target_via, true)
            }
            Crossing::Refresh => self.reachable(link.to, native, writes),
            Crossing::Bind(concurrency) => {
                let shared = concurrency.min(self.tenancy().concurrency(link.from));
                self.users.admit_binding(self.group(link.from), shared, (native, writes), self.owner)
            }
        }
    }

    /// Returns whether the missing bytes are free of other kernels' bytes and other copies' destinations in
    /// the group of `to`. With `moves_nothing` the check ignores kernels, because a change without copying
    /// does not disturb peers that read.
    pub(super) fn destination_free(&self, to: ArenaId, disturbed: &Disturbed, moves_nothing: bool) -> bool {
        let clear_of_kernels = moves_nothing || disturbed.held.intersection(self.group(to)).is_empty();
        clear_of_kernels && !self.being_filled(to, disturbed)
    }

    pub(super) fn being_filled(&self, to: ArenaId, disturbed: &Disturbed) -> bool {
        !disturbed.filled.intersection(self.group(to)).is_empty()
    }
}
