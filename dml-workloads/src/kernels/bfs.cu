// One level of a breadth-first search; one thread is one node. Nodes are pairs: first edge, number of edges.

// The nodes of the level give their unvisited neighbours a cost. Several may give it to one neighbour: they
// write the same value.
extern "C" __global__ void visit(const uint2 *__restrict__ nodes, const unsigned int *__restrict__ edges,
                                 unsigned char *level, unsigned char *next, const unsigned char *visited, int *cost,
                                 const unsigned long long end, const DmlItems items) {
    const unsigned long long node = items.x();
    if (node >= end || !level[node]) {
        return;
    }
    level[node] = 0;
    const uint2 own = nodes[node];
    for (unsigned int edge = own.x; edge < own.x + own.y; ++edge) {
        const unsigned int neighbour = edges[edge];
        if (!visited[neighbour]) {
            cost[neighbour] = cost[node] + 1;
            next[neighbour] = 1;
        }
    }
}

// The nodes that received a cost become the level. The flag reports that there are any.
extern "C" __global__ void advance(unsigned char *__restrict__ level, unsigned char *__restrict__ next,
                                   unsigned char *__restrict__ visited, unsigned int *__restrict__ found,
                                   const unsigned long long end, const DmlItems items) {
    const unsigned long long node = items.x();
    if (node >= end || !next[node]) {
        return;
    }
    level[node] = 1;
    visited[node] = 1;
    next[node] = 0;
    *found = 1;
}
