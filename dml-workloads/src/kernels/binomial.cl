// values[i] = what the four options of item i are worth today, from trees of STEPS steps; a work-group is an item, a
// work-item a leaf of all four.
//
// The leaves are what the option is worth at its end. Then the levels follow from the end to today, each node from the two
// after it. Two arrays in local memory take turns, so that one barrier a level is enough. Nodes beyond a level are computed
// too, for nothing: no node of a level needs them. Contraction is welcome here.
// An even number.
#define STEPS 254
#define LEAVES (STEPS + 1)
#define FIELDS 5

kernel __attribute__((reqd_work_group_size(LEAVES, 1, 1))) void
binomial(global const float4 *restrict options, global float4 *restrict values, const ulong end) {
    local float4 even[LEAVES + 1];
    local float4 odd[LEAVES + 1];
    const ulong item = get_global_id(1);
    const uint node = get_local_id(0);

    // All work-items of a group have the same item, so that all of them return, or none.
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
