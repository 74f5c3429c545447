// to[i] = 3 * x[i] + y[i]; one thread is one element. `to` differs from `x` and `y`.
extern "C" __global__ void combine(const unsigned int *x, const unsigned int *y, unsigned int *to,
                               const unsigned long long end, const DmlItems items) {
    const unsigned long long item = items.x();
    if (item >= end) {
        return;
    }
    to[item] = 3 * x[item] + y[item];
}
