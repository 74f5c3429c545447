// out[i] = alpha * x[i] + y[i]; one work-item is one element.
kernel void saxpy(const float alpha, global const float *restrict x, global const float *restrict y,
                  global float *restrict out, const ulong end) {
    const size_t item = get_global_id(0);
    if (item >= end) {
        return;
    }
    out[item] = alpha * x[item] + y[item];
}
