// out[i] = a[i] + b[i]; one work-item is one element.
kernel void vecadd(global const float *restrict a, global const float *restrict b, global float *restrict out,
                   const ulong end) {
    const size_t item = get_global_id(0);
    if (item >= end) {
        return;
    }
    out[item] = a[item] + b[item];
}
