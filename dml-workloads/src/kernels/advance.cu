// to[i] = x[i] after `rounds` multiply-adds; one thread is one element. `to` differs from `x`.
extern "C" __global__ void advance(const unsigned int *x, unsigned int *to, const unsigned int rounds,
                                   const unsigned long long end, const DmlItems items) {
    const unsigned long long item = items.x();
    if (item >= end) {
        return;
    }
    const unsigned int first = x[item];
    unsigned int value = first;
    for (unsigned int round = 0; round < rounds; ++round) {
        value = 1664525 * value + first;
    }
    to[item] = value;
}
