//! Bfs: the distance of each node of a graph from the first one, by a breadth-first search, level by level.
//!
//! ```text
//!   level ──visit──▶ next, cost ──advance──▶ level, visited, found
//!     ▲                                                       │ the host reads it
//!     └─────────────────────── repeat ◀── set ────────────────┤
//!                                        clear ──▶ cost ◀─────┘
//! ```
//! An item is a node. A level depends on all of the level before it, so the search is not co-executed.
//!
//! # Source
//! The search of the Rodinia benchmark suite, and its generator of graphs: every node draws two to four
//! neighbours, and each edge exists in both directions. "Abstract Representation of Shared Data for
//! Heterogeneous Computing", table 1: a million nodes, six million edges.

use crate::check::{Mismatch, Value};
use crate::random;
use bytemuck::{Pod, Zeroable};
use std::collections::VecDeque;
use std::ops::Range;
use thiserror::Error;

/// Work-items of one OpenCL work-group.
pub const LOCAL_SIZE: u64 = 256;

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Arguments of [`OPENCL_VISIT`]: `global const uint2* nodes`, `global const uint* edges`,
/// `global uchar* level`, `global uchar* next`, `global const uchar* visited`, `global int* cost`,
/// `ulong end`. Arguments of [`OPENCL_ADVANCE`]: `global uchar* level`, `global uchar* next`,
/// `global uchar* visited`, `global uint* found`, `ulong end`. The kernels skip nodes from `end` on.
pub const OPENCL_SOURCE: &str = include_str!("kernels/bfs.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/bfs.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`] that visits the neighbours of a level.
pub const OPENCL_VISIT: &str = "visit";

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`] that makes the neighbours the next
/// level.
pub const OPENCL_ADVANCE: &str = "advance";

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Nodes of the graph. It has six times as many edges, with each direction counted.
    pub nodes: u64,
}

/// Size for tests: takes milliseconds, and is no multiple of the local size.
pub const TINY: Size = Size { nodes: 2_003 };
/// A tenth of the published size.
pub const SMALL: Size = Size { nodes: 100_000 };
/// The published size.
pub const PAPER: Size = Size { nodes: 1_000_000 };

/// Cost of an unreachable node.
pub const UNREACHED: i32 = -1;

/// A node's range in the list of edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(8))]
pub struct Node {
    /// Index of its first edge.
    pub first: u32,
    /// Number of its edges.
    pub count: u32,
}

impl Node {
    fn edges(self) -> Range<usize> {
        self.first as usize..self.first as usize + self.count as usize
    }
}

/// The graph is so large that 32 bits cannot number its edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a graph of {nodes} nodes is too large: at most {}", Problem::LARGEST_NODES)]
pub struct TooLarge {
    /// The requested number of nodes.
    pub nodes: u64,
}

/// The state that the kernels change, one element per node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct State {
    /// One for the nodes of the current level.
    pub level: Vec<u8>,
    /// One for the nodes of the next level.
    pub next: Vec<u8>,
    /// One for the nodes of the current level and of those before.
    pub visited: Vec<u8>,
    /// Distance from the first node in steps, or [`UNREACHED`].
    pub cost: Vec<i32>,
}

/// The graph of one search.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    nodes: Vec<Node>,
    edges: Vec<u32>,
}

impl Problem {
    /// Maximum number of nodes. 32 bits can number six times as many edges.
    pub const LARGEST_NODES: u64 = 1 << 29;

    /// Draws a graph. Two consecutive nodes draw six neighbours together, two to four each.
    ///
    /// ```
    /// use dml_workloads::bfs::{self, Problem};
    ///
    /// let problem = Problem::generate(bfs::TINY, 42)?;
    /// problem.check(&bfs::host(&problem))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TooLarge`] above [`LARGEST_NODES`](Self::LARGEST_NODES).
    pub fn generate(size: Size, seed: u64) -> Result<Self, TooLarge> {
        let Size { nodes: count } = size;
        if count > Self::LARGEST_NODES {
            return Err(TooLarge { nodes: count });
        }
        let (counts, targets) = (random::stream(seed, 1), random::stream(seed, 2));
        let drawn = |node: u64| match (node % 2, node + 1 == count) {
            (0, true) => 3,
            (0, false) => 2 + random::word(counts, node) % 3,
            (_, _) => 4 - random::word(counts, node - 1) % 3,
        };
        let pairs = || {
            let edge = move |node: u64, number: u64| (node, random::word(targets, node * 4 + number) % count);
            (0..count).flat_map(move |node| (0..drawn(node)).map(move |number| edge(node, number)))
        };
        Ok(Self::of_pairs(count, pairs))
    }

    /// Makes a graph of `count` nodes, with an edge in both directions for each pair.
    fn of_pairs<I: Iterator<Item = (u64, u64)>>(count: u64, pairs: impl Fn() -> I) -> Self {
        let mut nodes = vec![Node::default(); count as usize];
        for (from, to) in pairs() {
            nodes[from as usize].count += 1;
            nodes[to as usize].count += 1;
        }
        let mut next = 0;
        for node in &mut nodes {
            node.first = next;
            next += node.count;
        }
        let mut free: Vec<u32> = nodes.iter().map(|node| node.first).collect();
        let mut edges = vec![0; next as usize];
        for (from, to) in pairs() {
            for (from, to) in [(from, to), (to, from)] {
                let place = &mut free[from as usize];
                edges[*place as usize] = to as u32;
                *place += 1;
            }
        }
        Self { nodes, edges }
    }

    /// Returns the number of items: one per node.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Returns the nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the target of every edge, sorted by the edge's source.
    #[must_use]
    pub fn edges(&self) -> &[u32] {
        &self.edges
    }

    /// Returns the initial state: the first node is the current level.
    #[must_use]
    pub fn state(&self) -> State {
        let count = self.nodes.len();
        let mut state = State {
            level: vec![0; count],
            next: vec![0; count],
            visited: vec![0; count],
            cost: vec![UNREACHED; count],
        };
        if count > 0 {
            (state.level[0], state.visited[0], state.cost[0]) = (1, 1, 0);
        }
        state
    }

    /// Returns the number of levels of a search. Both kernels run once per level.
    #[must_use]
    pub fn levels(&self) -> u64 {
        self.reference().into_iter().max().map_or(1, |cost| cost as u64 + 1)
    }

    /// Compares the costs exactly with those of a search with a queue.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong node, or with the lengths if they differ.
    pub fn check(&self, cost: &[i32]) -> Result<(), Mismatch> {
        Mismatch::of_length("length of the bfs output", self.nodes.len(), cost.len(), 1)?;
        let expected = self.reference();
        let wrong = (0..cost.len()).find(|&node| cost[node] != expected[node]);
        wrong.map_or(Ok(()), |node| {
            let value = |cost: i32| Value::Real(cost.into());
            let (expected, found) = (value(expected[node]), value(cost[node]));
            Err(Mismatch { item: node as u64, expected, found, what: "steps to a node" })
        })
    }

    /// Computes the costs with a queue, in the order of the nodes' distances.
    fn reference(&self) -> Vec<i32> {
        let mut cost = vec![UNREACHED; self.nodes.len()];
        let mut queue = VecDeque::new();
        if let Some(first) = cost.first_mut() {
            *first = 0;
            queue.push_back(0);
        }
        while let Some(node) = queue.pop_front() {
            for &neighbour in &self.edges[self.nodes[node].edges()] {
                let neighbour = neighbour as usize;
                if cost[neighbour] == UNREACHED {
                    cost[neighbour] = cost[node] + 1;
                    queue.push_back(neighbour);
                }
            }
        }
        cost
    }
}

/// Searches on the host, on the calling thread, with both kernels. Returns the costs.
#[must_use]
pub fn host(problem: &Problem) -> Vec<i32> {
    let mut state = problem.state();
    loop {
        host_visit(problem, &mut state);
        if !host_advance(&mut state) {
            return state.cost;
        }
    }
}

/// Gives the unvisited neighbours of the level a cost, and marks them for the next level.
///
/// # Panics
/// When the state belongs to another graph.
pub fn host_visit(problem: &Problem, state: &mut State) {
    for (node, desc) in problem.nodes.iter().enumerate() {
        if std::mem::take(&mut state.level[node]) == 0 {
            continue;
        }
        for &neighbour in &problem.edges[desc.edges()] {
            let neighbour = neighbour as usize;
            if state.visited[neighbour] == 0 {
                state.cost[neighbour] = state.cost[node] + 1;
                state.next[neighbour] = 1;
            }
        }
    }
}

/// Makes the marked nodes the current level. Returns whether there are any.
pub fn host_advance(state: &mut State) -> bool {
    let mut found = false;
    for ((level, next), visited) in state.level.iter_mut().zip(&mut state.next).zip(&mut state.visited) {
        if std::mem::take(next) != 0 {
            (*level, *visited, found) = (1, 1, true);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(nodes: u64, seed: u64) -> Problem {
        Problem::generate(Size { nodes }, seed).unwrap()
    }

    fn of_pairs(count: u64, pairs: &[(u64, u64)]) -> Problem {
        Problem::of_pairs(count, || pairs.iter().copied())
    }

    #[test]
    fn host_output_passes_the_check_at_every_awkward_size() {
        for nodes in [0, 1, 2, 3, 255, 256, 257, TINY.nodes] {
            let problem = problem(nodes, nodes);
            problem.check(&host(&problem)).unwrap();
        }
    }

    #[test]
    fn costs_are_the_known_ones() {
        // A line, a circle with a chord, and a graph with an unreachable component.
        let line: Vec<_> = (1..50).map(|node| (node - 1, node)).collect();
        let line = of_pairs(50, &line);
        assert_eq!(host(&line), (0..50).collect::<Vec<_>>());
        assert_eq!(line.levels(), 50);
        let circle = of_pairs(6, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3)]);
        assert_eq!(host(&circle), [0, 1, 2, 1, 2, 1]);
        let parts = of_pairs(5, &[(0, 4), (1, 2), (2, 3), (4, 4)]);
        assert_eq!(host(&parts), [0, UNREACHED, UNREACHED, UNREACHED, 1]);
        for problem in [line, circle, parts] {
            problem.check(&host(&problem)).unwrap();
        }
        assert_eq!(problem(0, 1).levels(), 1, "the kernels run once and find nothing");
    }

    #[test]
    fn graphs_have_six_edges_per_node_that_lead_both_ways() {
        let problem = problem(10_000, 3);
        assert_eq!(problem.edges.len(), 60_000);
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for (node, desc) in (0..).zip(&problem.nodes) {
            assert!(desc.count >= 2, "node {node}");
            pairs.extend(problem.edges[desc.edges()].iter().map(|far| (node, *far)));
        }
        let mut back: Vec<_> = pairs.iter().map(|(near, far)| (*far, *near)).collect();
        pairs.sort_unstable();
        back.sort_unstable();
        assert_eq!(pairs, back);
        assert!(pairs.iter().all(|(_, far)| *far < 10_000));
    }

    #[test]
    fn check_rejects_one_step_more_or_less_at_any_one_node() {
        let problem = problem(TINY.nodes, 5);
        let right = host(&problem);
        let last = right.len() - 1;
        for node in [0, 1, last / 2, last - 1, last] {
            for wrong in [right[node] + 1, right[node] - 1, i32::MAX, i32::MIN] {
                let mut cost = right.clone();
                cost[node] = wrong;
                assert_eq!(problem.check(&cost).unwrap_err().item, node as u64, "{wrong}");
            }
        }
    }

    #[test]
    fn check_rejects_shifted_missing_and_foreign_costs() {
        let small = problem(TINY.nodes, 6);
        let right = host(&small);
        let mut shifted = right.clone();
        shifted.rotate_left(1);
        assert_eq!(small.check(&shifted).unwrap_err().item, 0);
        assert_eq!(small.check(&right[1..]).unwrap_err().item, TINY.nodes - 1);
        assert!(small.check(&host(&problem(TINY.nodes, 7))).is_err());
        // The last level is missing.
        let levels = small.levels() as i32;
        let cut: Vec<i32> =
            right.iter().map(|cost| if *cost == levels - 1 { UNREACHED } else { *cost }).collect();
        assert!(small.check(&cut).is_err());
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(problem(TINY.nodes, 1), problem(TINY.nodes, 2));
        assert_eq!(problem(TINY.nodes, 1), problem(TINY.nodes, 1));
        let too_large = Problem::generate(Size { nodes: 1 << 40 }, 1);
        assert_eq!(too_large, Err(TooLarge { nodes: 1 << 40 }));
    }
}
