// to[i] = 3 * x[i] + y[i]; one work-item is one element. `to` differs from `x` and `y`.
kernel void combine(global const uint *x, global const uint *y, global uint *to, const ulong end) {
    const size_t item = get_global_id(0);
    if (item >= end) {
        return;
    }
    to[item] = 3 * x[item] + y[item];
}
