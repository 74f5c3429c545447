// to[i] = x[i] after `rounds` multiply-adds; one work-item is one element. `to` differs from `x`.
kernel void advance(global const uint *x, global uint *to, const uint rounds, const ulong end) {
    const size_t item = get_global_id(0);
    if (item >= end) {
        return;
    }
    const uint first = x[item];
    uint value = first;
    for (uint round = 0; round < rounds; ++round) {
        value = 1664525 * value + first;
    }
    to[item] = value;
}
