// The tasks for OpenCL devices. The last argument is the number of items.

kernel void smooth(global const uint* from, global uint* to, uint radius, ulong end) {
    ulong i = get_global_id(0);
    if (i >= end) return;
    ulong first = i < radius ? 0 : i - radius, last = min(i + radius + 1, end);
    uint sum = 0;
    for (ulong k = first; k < last; k++) sum += from[k];
    to[i] = sum / (uint)(last - first);
}

kernel void difference(global const uint* a, global const uint* b, global uint* to, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) to[i] = abs_diff(a[i], b[i]);
}

kernel void join(global uint* both, global const uint* other, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) both[i] = max(both[i], other[i]);
}
