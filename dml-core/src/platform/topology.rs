//! The graph of arenas and links, the cheapest path over it, and the path cache.
//!
//! Nodes are arenas, and edges are links. The caller supplies the price of an edge, because it depends on the
//! state of one buffer. The search runs backwards from the destination, so that one run serves every source.
//! It then walks forwards and picks the smallest arena id among equals, so plans are the same on every run.

use crate::base::cost::Cost;
use crate::base::guard::{guard, quietly};
use crate::base::id::{ArenaId, ArenaSet, LinkId};
use crate::base::rank::{Rank, Ranked};
use crate::base::sync::Arc;
use crate::memory::arena::Arena;
use crate::memory::cross_arena::CrossArena;
use crate::memory::desc::ArenaDesc;
use crate::memory::link::{Allocation, CopyQuery, Link};
use crate::platform::hints::Bindings;
use crate::state::{Path, PathKey, Routes, reach};
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::fmt;
use std::ops::Add;
use std::sync::OnceLock;

/// Maximum number of cached paths. A full cache is cleared, because most of its paths are then no longer
/// used.
const CACHED_PATHS: usize = 4096;

/// The length of a path: its cost, then its hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Length {
    cost: Cost,
    hops: u32,
}

impl Add for Length {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { cost: self.cost + other.cost, hops: self.hops + other.hops }
    }
}

/// The arenas and links of a platform.
pub(crate) struct Topology {
    arenas: Vec<Arc<dyn Arena>>,
    descs: Vec<ArenaDesc>,
    links: Vec<Link>,
    cross_arenas: Vec<Arc<dyn CrossArena>>,
    graph: DiGraph<ArenaId, LinkId>,
    /// The links whose bindings their arenas need to exchange contents.
    needed: HashSet<LinkId>,
    /// The links of preferred bindings. None of them shares an arena with a needed binding.
    preferred: HashSet<LinkId>,
    /// The bindings of a buffer without hints.
    bindings: Bindings,
    cache: Option<Ranked<HashMap<PathKey, Option<Path>>>>,
    prices: Prices,
}

/// Drops mechanisms and arenas one by one, so that a panic in one destructor does not affect the others.
impl Drop for Topology {
    fn drop(&mut self) {
        std::mem::take(&mut self.cross_arenas).into_iter().for_each(quietly);
        std::mem::take(&mut self.arenas).into_iter().for_each(quietly);
    }
}

/// The prices of the mechanisms, by size class, link, and whether ends are remapped or allocated (C-1).
struct Prices([OnceLock<Box<[Option<Cost>]>>; SIZE_CLASSES]);

/// The number of size classes. A size belongs to the class of the next power of two.
const SIZE_CLASSES: usize = 64;

/// The number of combinations of the other price inputs: a remap of either end, and an allocation.
const SORTS: usize = 8;

impl Default for Prices {
    fn default() -> Self {
        Self(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl Prices {
    fn class(bytes: u64) -> usize {
        // Above the largest power of two there is no next one.
        bytes
            .max(1)
            .checked_next_power_of_two()
            .map_or(SIZE_CLASSES - 1, |next| next.trailing_zeros() as usize)
    }

    fn sort(query: &CopyQuery) -> usize {
        usize::from(query.remap_source)
            | usize::from(query.remap_target) << 1
            | usize::from(query.allocates) << 2
    }

    fn ask(&self, bytes: u64, links: usize, ask: impl Fn(LinkId, &CopyQuery) -> Option<Cost>) {
        for (class, prices) in self.0.iter().enumerate().take(Self::class(bytes) + 1) {
            if prices.get().is_some() {
                continue;
            }
            let query = |sort: usize| CopyQuery {
                bytes: 1 << class,
                remap_source: sort & 1 != 0,
                remap_target: sort & 2 != 0,
                allocates: sort & 4 != 0,
            };
            let of_link = |link| (0..SORTS).map(move |sort| (LinkId(link as u16), query(sort)));
            let asked = (0..links).flat_map(of_link).map(|(link, query)| ask(link, &query)).collect();
            // Concurrent callers get the same prices, so the first result is kept.
            let _ = prices.set(asked);
        }
    }

    /// Returns the price, if it is in the table. The inner `None` means that the copy is infeasible.
    fn known(&self, link: LinkId, query: &CopyQuery) -> Option<Option<Cost>> {
        let class = Self::class(query.bytes);
        let is_of_class = query.bytes == 1 << class;
        let prices = self.0[class].get().filter(|_| is_of_class)?;
        Some(prices[usize::from(link.0) * SORTS + Self::sort(query)])
    }
}

impl Topology {
    pub(crate) fn new(
        arenas: Vec<Arc<dyn Arena>>,
        descs: Vec<ArenaDesc>,
        links: Vec<(Link, Arc<dyn CrossArena>)>,
        wishes: &Wishes,
        cache_paths: bool,
    ) -> Self {
        let (links, cross_arenas): (Vec<Link>, Vec<_>) = links.into_iter().unzip();
        let graph = graph(arenas.len(), &links);
        let cache = cache_paths.then(|| Ranked::new(Rank::Leaf, HashMap::new()));
        let (needed, preferred, bindings) = (HashSet::new(), HashSet::new(), Bindings::default());
        let mut topology = Self {
            arenas,
            descs,
            links,
            cross_arenas,
            graph,
            needed,
            preferred,
            bindings,
            cache,
            prices: Prices::default(),
        };
        topology.find_needed(wishes);
        topology
    }

    /// Finds the needed and the preferred bindings, once at construction.
    fn find_needed(&mut self, wishes: &Wishes) {
        let ends = self.links.iter().filter(|link| binds(link)).flat_map(|link| [link.from, link.to]);
        let ends: ArenaSet = ends.collect();
        let reach: HashMap<ArenaId, ArenaSet> =
            ends.iter().map(|arena| (arena, reach(self, arena))).collect();
        let apart =
            |link: &Link| !(reach[&link.from].contains(link.to) && reach[&link.to].contains(link.from));
        let needed = numbered(&self.links).filter(|(_, link)| binds(link) && apart(link)).map(|(id, _)| id);
        self.needed = needed.collect();
        let is_preferred = |link: &Link| wishes.preferred.contains(&(link.from, link.to));
        let preferred = self.replaceable().filter(|(_, link)| is_preferred(link) && self.is_free(link));
        self.preferred = preferred.map(|(id, _)| id).collect();
        let is_allowed = |link: &Link| wishes.allowed.contains(&(link.from, link.to));
        let barred = self.replaceable().filter(|(_, link)| is_allowed(link) && !is_preferred(link));
        let barred = barred.map(|(id, _)| id).collect();
        let made = self.needed.union(&self.preferred).copied().collect();
        self.bindings = Bindings::new(self, made, barred);
    }

    /// Returns the binding links that copies can replace.
    fn replaceable(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        numbered(&self.links).filter(|(id, link)| binds(link) && !self.needed.contains(id))
    }

    /// Returns whether no needed binding uses an end of the link. An arena of a needed binding takes part in
    /// no other one.
    fn is_free(&self, link: &Link) -> bool {
        let mut needed = self.needed.iter().map(|needed| self.link(*needed));
        !needed.any(|other| [other.from, other.to].iter().any(|end| [link.from, link.to].contains(end)))
    }

    /// Returns the bindings of a buffer without hints.
    pub(crate) fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// Returns the bindings of a buffer with hints. `wants` gets each binding link that copies can replace,
    /// and whether the platform prefers it. A link that it rejects is barred, and so is one whose arenas take
    /// part in a needed binding.
    pub(crate) fn bindings_where(&self, wants: impl Fn(&Link, bool) -> bool) -> Bindings {
        let is_made =
            |id: &LinkId, link: &Link| wants(link, self.preferred.contains(id)) && self.is_free(link);
        let (mut made, mut barred) = (self.needed.clone(), HashSet::new());
        for (id, link) in self.replaceable() {
            if is_made(&id, link) {
                made.insert(id)
            } else {
                barred.insert(id)
            };
        }
        Bindings::new(self, made, barred)
    }

    /// Asks every mechanism for its prices up to a size, before planning needs them. Planning runs under a
    /// buffer's lock, where no foreign code may run.
    pub(crate) fn price_up_to(&self, bytes: u64) {
        self.prices.ask(bytes, self.links.len(), |link, query| self.asked(link, query));
    }

    /// Returns the mechanism's own price. A mechanism that panics counts as unable to copy.
    fn asked(&self, link: LinkId, query: &CopyQuery) -> Option<Cost> {
        guard(|| self.cross_arena(link).can_copy(query)).unwrap_or(None)
    }

    pub(crate) fn arena_objects(&self) -> &[Arc<dyn Arena>] {
        &self.arenas
    }

    pub(crate) fn cross_arena(&self, link: LinkId) -> &Arc<dyn CrossArena> {
        &self.cross_arenas[usize::from(link.0)]
    }
}

/// The bindings that a platform's builder requested, as pairs of a root and a member.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// The pairs that share storage wherever a link can bind them.
    pub(crate) preferred: BTreeSet<(ArenaId, ArenaId)>,
    /// The pairs that share storage only for buffers whose hints request it.
    pub(crate) allowed: BTreeSet<(ArenaId, ArenaId)>,
}

fn binds(link: &Link) -> bool {
    matches!(link.allocation, Allocation::Bound(_))
}

fn graph(arenas: usize, links: &[Link]) -> DiGraph<ArenaId, LinkId> {
    let mut graph = DiGraph::with_capacity(arenas, links.len());
    for index in 0..arenas {
        graph.add_node(ArenaId(index as u8));
    }
    for (id, link) in numbered(links) {
        graph.add_edge(node(link.from), node(link.to), id);
    }
    graph
}

/// Returns the links with their ids.
fn numbered(links: &[Link]) -> impl Iterator<Item = (LinkId, &Link)> {
    // A counter that runs past the last link could overflow, because the last id may be the largest number.
    links.iter().enumerate().map(|(index, link)| (LinkId(index as u16), link))
}

fn node(arena: ArenaId) -> NodeIndex {
    NodeIndex::new(usize::from(arena.0))
}

/// Returns the cheapest path in `graph` from any of `sources` to `to`: by cost, then hops, then arena ids.
///
/// # Complexity
/// O(links * (log(links) + hops)). A link is priced only if the search settles its destination before its
/// source. Links into arenas farther away than the nearest source are not priced.
fn cheapest(
    graph: &DiGraph<ArenaId, LinkId>,
    sources: ArenaSet,
    to: ArenaId,
    edge: &mut dyn FnMut(LinkId) -> Option<Cost>,
) -> Option<Path> {
    // The remaining length to the destination per settled arena, and the priced links, in the order of arena
    // distance.
    let mut settled = vec![None; graph.node_count()];
    let mut ways: Vec<Way> = Vec::new();
    let mut open = BinaryHeap::from([Reverse(Open { rest: Length::default(), is_between: true, at: to })]);
    let (total, mut at) = loop {
        let Reverse(Open { rest, is_between, at }) = open.pop()?;
        if !is_between {
            break (rest, at);
        }
        if settled[usize::from(at.0)].is_some() {
            continue;
        }
        settled[usize::from(at.0)] = Some(rest);
        for link in graph.edges_directed(node(at), Direction::Incoming) {
            let from = graph[link.source()];
            if settled[usize::from(from.0)].is_some() {
                continue;
            }
            if let Some(cost) = edge(*link.weight()) {
                let rest = rest + Length { cost, hops: 1 };
                open.push(Reverse(Open { rest, is_between: !sources.contains(from), at: from }));
                ways.push(Way { from, rest, to: at, link: *link.weight() });
            }
        }
    };
    let mut links = SmallVec::new();
    while at != to {
        // Of the links on a shortest path, take the one to the smallest arena id, and of parallel links the
        // first.
        let here = if links.is_empty() { Some(total) } else { settled[usize::from(at.0)] };
        let next = ways
            .iter()
            .filter(|way| way.from == at && Some(way.rest) == here)
            .map(|way| (way.to, way.link))
            .min()
            .expect("an arena at a finite distance has a link on a shortest path");
        links.push(next.1);
        at = next.0;
    }
    Some(Path { links, cost: total.cost })
}

/// A priced link, with the length from its source arena to the destination.
struct Way {
    from: ArenaId,
    rest: Length,
    to: ArenaId,
    link: LinkId,
}

/// An arena whose distance to the destination is known. Among equal distances sources come first, because no
/// nearer source can be found later. Among sources the smallest id comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    rest: Length,
    /// Whether the arena is an intermediate one, not a source.
    is_between: bool,
    at: ArenaId,
}

impl Routes for Topology {
    fn arenas(&self) -> &[ArenaDesc] {
        &self.descs
    }

    fn links(&self) -> &[Link] {
        &self.links
    }

    fn is_needed(&self, link: LinkId) -> bool {
        self.bindings.made.contains(&link)
    }

    fn bound_by_need(&self) -> ArenaSet {
        self.bindings.members
    }

    fn may_bind(&self, link: LinkId) -> bool {
        !self.bindings.barred.contains(&link)
    }

    fn cost(&self, link: LinkId, query: &CopyQuery) -> Option<Cost> {
        // Code that drives the pure machine without a buffer has not filled the price table.
        self.prices.known(link, query).unwrap_or_else(|| self.asked(link, query))
    }

    fn cheapest(
        &self,
        sources: ArenaSet,
        to: ArenaId,
        edge: &mut dyn FnMut(LinkId) -> Option<Cost>,
    ) -> Option<Path> {
        cheapest(&self.graph, sources, to, edge)
    }

    fn cheapest_idle(&self, key: PathKey, edge: &mut dyn FnMut(LinkId) -> Option<Cost>) -> Option<Path> {
        let Some(cache) = &self.cache else {
            return self.cheapest(key.sources, key.to, edge);
        };
        if let Some(path) = cache.lock().get(&key) {
            return path.clone();
        }
        let path = self.cheapest(key.sources, key.to, edge);
        let mut cache = cache.lock();
        if cache.len() >= CACHED_PATHS {
            cache.clear();
        }
        cache.insert(key, path.clone());
        path
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topology")
            .field("arenas", &self.descs)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::DeviceId;
    use crate::memory::link::Allocation;
    use proptest::prelude::*;

    fn link(from: u8, to: u8) -> Link {
        Link {
            from: ArenaId(from),
            to: ArenaId(to),
            source_via: DeviceId(0),
            target_via: DeviceId(0),
            allocation: Allocation::Internal,
        }
    }

    fn find(
        arenas: usize,
        links: &[(u8, u8, u64)],
        sources: &[u8],
        to: u8,
    ) -> Option<(Vec<u16>, Option<u64>)> {
        let graph = graph(arenas, &links.iter().map(|&(from, to, _)| link(from, to)).collect::<Vec<_>>());
        let sources = sources.iter().map(|&source| ArenaId(source)).collect();
        let mut price = |id: LinkId| {
            let ns = links[usize::from(id.0)].2;
            (ns != u64::MAX).then(|| Cost::from_ns(ns))
        };
        let path = cheapest(&graph, sources, ArenaId(to), &mut price)?;
        Some((path.links.iter().map(|link| link.0).collect(), path.cost.as_ns()))
    }

    #[test]
    fn every_size_has_a_class() {
        let sizes = [0, 1, 2, 3, 1 << 40, (1 << 40) + 1, 1 << 63, (1 << 63) + 1, u64::MAX];
        assert_eq!(sizes.map(Prices::class), [0, 0, 1, 2, 40, 41, 63, 63, 63]);
    }

    #[test]
    fn two_hops_where_no_direct_link_exists() {
        assert_eq!(find(3, &[(0, 1, 5), (1, 2, 6)], &[0], 2), Some((vec![0, 1], Some(11))));
        assert_eq!(find(3, &[(0, 1, 5)], &[0], 2), None);
    }

    #[test]
    fn ties_go_to_fewer_hops_then_to_smaller_arenas() {
        let links = [(0, 2, 5), (2, 3, 5), (0, 1, 5), (1, 3, 5)];
        assert_eq!(find(4, &links, &[0], 3), Some((vec![2, 3], Some(10))));
        let direct = [(0, 1, 0), (1, 2, 10), (0, 2, 10)];
        assert_eq!(find(3, &direct, &[0], 2), Some((vec![2], Some(10))));
        assert_eq!(find(3, &[(1, 2, 3), (0, 2, 3)], &[0, 1], 2), Some((vec![1], Some(3))));
    }

    #[test]
    fn zero_cost_cycles_and_saturated_costs_end() {
        let cycle = [(0, 1, 0), (1, 0, 0), (1, 2, 0), (2, 1, 0)];
        assert_eq!(find(3, &cycle, &[0], 2), Some((vec![0, 2], Some(0))));
        let huge = [(0, 1, u64::MAX - 1), (1, 2, u64::MAX - 1)];
        assert_eq!(find(3, &huge, &[0], 2), Some((vec![0, 1], Some(u64::MAX - 1))));
    }

    proptest! {
        #[test]
        fn o1_no_path_is_cheaper(
            links in prop::collection::vec((0u8..6, 0u8..6, 0u64..20), 0..18),
            sources in prop::collection::vec(0u8..6, 1..3),
            to in 0u8..6,
        ) {
            let links: Vec<_> = links.into_iter().filter(|l| l.0 != l.1).collect();
            prop_assume!(!sources.contains(&to));
            // Bellman-Ford, written without the library.
            let mut best = [u64::MAX; 6];
            sources.iter().for_each(|&s| best[usize::from(s)] = 0);
            for _ in 0..6 {
                for &(from, to, ns) in &links {
                    let through = best[usize::from(from)].saturating_add(ns);
                    best[usize::from(to)] = best[usize::from(to)].min(through);
                }
            }
            let found = find(6, &links, &sources, to);
            prop_assert_eq!(found.as_ref().and_then(|(_, ns)| *ns).unwrap_or(u64::MAX), best[usize::from(to)]);
            if let Some((path, ns)) = found {
                let walked: u64 = path.iter().map(|&id| links[usize::from(id)].2).sum();
                prop_assert_eq!(Some(walked), ns);
                let ends: Vec<_> = path.iter().map(|&id| links[usize::from(id)]).collect();
                prop_assert!(sources.contains(&ends[0].0) && ends.last().unwrap().1 == to);
                prop_assert!(ends.windows(2).all(|pair| pair[0].1 == pair[1].0));
            }
        }
    }
}
