// One level of a breadth-first search; one work-item is one node. Nodes are pairs: first edge, number of
// edges.

// The nodes of the level give their unvisited neighbours a cost. Several may give it to one neighbour: they
// write the same value.
kernel void visit(global const uint2 *restrict nodes, global const uint *restrict edges, global uchar *level,
                  global uchar *next, global const uchar *visited, global int *cost, const ulong end) {
    const size_t node = get_global_id(0);
    if (node >= end || !level[node]) {
        return;
    }
    level[node] = 0;
    const uint2 own = nodes[node];
    for (uint edge = own.x; edge < own.x + own.y; ++edge) {
        const uint neighbour = edges[edge];
        if (!visited[neighbour]) {
            cost[neighbour] = cost[node] + 1;
            next[neighbour] = 1;
        }
    }
}

// The nodes that received a cost become the level. The flag reports that there are any.
kernel void advance(global uchar *restrict level, global uchar *restrict next, global uchar *restrict visited,
                    global uint *restrict found, const ulong end) {
    const size_t node = get_global_id(0);
    if (node >= end || !next[node]) {
        return;
    }
    level[node] = 1;
    visited[node] = 1;
    next[node] = 0;
    *found = 1;
}
