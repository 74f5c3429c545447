// values[i] = the present values of the four options of item i, from trees of STEPS steps. A work-group is an
// item, and a work-item is a leaf of all four options.
//
// A leaf is the value of the option at expiry. The levels follow from expiry to today, each node from its two
// successors. Two arrays in local memory alternate, so that one barrier per level is enough. Nodes beyond a
// level are computed too, but no node of the level needs them. Contraction is allowed.
//
// STEPS is even.
#define STEPS 254
#define LEAVES (STEPS + 1)
#define FIELDS 5

kernel __attribute__((reqd_work_group_size(LEAVES, 1, 1))) void
binomial(global const float4 *restrict options, global float4 *restrict values, const ulong end) {
    local float4 even[LEAVES + 1];
    local float4 odd[LEAVES + 1];
    const ulong item = get_global_id(1);
    const uint node = get_local_id(0);

    // All work-items of a group have the same item, so either all of them return, or none.
    if (item >= end) {
        return;
    }
    global const float4 *option = options + item * FIELDS;
    const float4 price = option[0] * exp(option[2] * (float)((int)(2 * node) - STEPS));
    const float4 up = option[3];
    const float4 down = option[4];
    even[node] = fmax(price - option[1], 0.0f);
    if (node == 0) {
        even[LEAVES] = 0.0f;
        odd[LEAVES] = 0.0f;
    }
    for (uint level = 0; level < STEPS; level += 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        odd[node] = up * even[node + 1] + down * even[node];
        barrier(CLK_LOCAL_MEM_FENCE);
        even[node] = up * odd[node + 1] + down * odd[node];
    }
    if (node == 0) {
        values[item] = even[0];
    }
}
